r"""The warm-up of many chains of any algorithm with a step size and a metric.

1. *Start.* Each chain follows Newton's path to the best normal approximation along it
   (:mod:`blackjax_ext.adaptation.newton_path`), which gives the first position and the first
   metric, or, where Hessians are dear, a path of gradients (:mod:`blackjax_ext.adaptation.start`),
   which gives the position alone.
2. *First step size.* Doubled or halved until the acceptance probability crosses the target.
3. *Windows* that grow. Each but the last ends in a metric from the draws of all chains in it; the
   step size is adapted by dual averaging of the mean acceptance probability over the chains
   (:mod:`blackjax_ext.adaptation.windows`).

Nothing adapts after the last step. :func:`warmup` runs it; `first_step_size` and
`adapt` are its parts, for those who step the chains themselves.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.step_size import find_reasonable_step_size
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.adaptation import half_turns, report, windows
from blackjax_ext.adaptation.algorithm import (
    Algorithm,
    BoundAlgorithm,
    StepInfo,
    Stepper,
    coordinates_of,
    gradients_of,
)
from blackjax_ext.adaptation.start import find_start
from blackjax_ext.adaptation.windows import AdaptationSchedule, AdaptState
from blackjax_ext.checks import check_count, check_particles, check_positive
from blackjax_ext.factoring import density_in_parts
from blackjax_ext.mcmc.derivatives import (
    SERVING,
    Differentiation,
    Wanted,
    differenced,
    differentiation_of,
)
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix, check_metric, factorize
from blackjax_ext.types import Function, LogDensity

ADVICE = (
    "Use blackjax_ext.auto_mala, whose steps adapt to the position, reparametrize the target, give "
    "a higher target_acceptance_rate, which makes steps shorter, or use blackjax.nuts."
)


class Plan(NamedTuple):
    """What a warm-up adapts, and to what: constants of its program.

    num_steps
        Number of steps.
    target_acceptance_rate
        Acceptance probability that the step size is adapted to.
    adapt_step_size, adapt_metric
        Whether they are adapted.
    longest_step
        No step size is longer.
    is_doubling
        Whether trajectories are doubled until they turn, as those of NUTS.
    """

    num_steps: int
    target_acceptance_rate: float
    adapt_step_size: bool = True
    adapt_metric: bool = True
    longest_step: float = np.inf
    is_doubling: bool = False


class WarmupInfo(NamedTuple):
    """What happened in each step of a warm-up; arrays lead with the steps.

    acceptance_rate
        Of each chain, shape (num_steps, C).
    is_divergent
        Whether the proposal was not finite, shape (num_steps, C).
    step_size
        The step size that was used, shape (num_steps,).
    """

    acceptance_rate: Array
    is_divergent: Array
    step_size: Array


def warmup(
    algorithm: Any,
    logdensity_fn: LogDensity,
    rng_key: PRNGKey,
    positions: ArrayLikeTree,
    num_steps: int,
    *,
    target_acceptance_rate: float,
    dense: bool = False,
    differentiation: Wanted = "reverse",
    step_size: float = 1.0,
    inverse_mass_matrix: InverseMassMatrix = None,
    newton_start: bool = True,
    **parameters: Any,
) -> tuple[Any, dict[str, Array], WarmupInfo]:
    """Find a start, a step size and a metric for C chains of a BlackJAX algorithm.

    Parameters
    ----------
    algorithm
        Anything with ``init`` and ``build_kernel`` whose kernel takes `step_size` and
        `inverse_mass_matrix`: ``blackjax_ext.mala``, ``blackjax.hmc``, ``blackjax.nuts``, ...
    logdensity_fn
        Log density of the target, up to a constant: pytree to scalar.
    rng_key
        Key, used once.
    positions
        Where the chains start: a pytree whose leaves lead with C.
    num_steps
        Steps of the warm-up, at least 1; below 20 the metric is not adapted.
    target_acceptance_rate
        Acceptance probability to adapt the step size to, between 0 and 1: 0.574 for MALA, 0.234 for
        a random walk, 0.65 for HMC, 0.8 for NUTS.
    dense
        Adapt a full covariance instead of variances.
    differentiation
        "reverse"; "forward" for densities without a reverse mode, which BlackJAX's own algorithms
        then get with gradients of D JVPs; or "none" for algorithms that need no derivative, such as
        ``blackjax_ext.random_walk``, where Newton's path uses those that there are. Where a density
        has gradients and no more, their differences are the curvature.
    step_size
        First guess, positive.
    inverse_mass_matrix
        First guess of the posterior covariance; None for what Newton's path finds.
    newton_start
        Follow Newton's path first, or one of gradients alone where Hessians are dear, and beyond
        512 dimensions, 128 in forward mode; not without derivatives.
    parameters
        Further parameters of the algorithm, such as ``num_integration_steps``.

    Returns
    -------
    states
        States of the algorithm after the warm-up, with a leading axis C.
    parameters
        ``{"step_size": (), "inverse_mass_matrix": (D,) or (D, D)}``, which all chains share: ready
        for ``algorithm(logdensity_fn, **parameters, ...)``.
    info
        A :class:`~blackjax_ext.adaptation.run.WarmupInfo`.

    Cost: up to 60 steps of a Hessian and 37 evaluations, beyond 64 dimensions 55 and two gradients,
    for the path of each chain, or for each of 16 paths where those of fewer chains disagree, but no
    more than 1,200 gradients for each chain or 2e10 operations, whichever is more; a few steps for
    the first step size; and `num_steps` steps of C chains.

    Raises
    ------
    ValueError, TypeError
        For an algorithm or a parameter that does not fit, by name; a start that is not finite; a
        target outside (0, 1); a density that cannot be differentiated as `differentiation` says;
        chains that run away, as from the negative of a log density, or end where the log density
        is so large that its dtype has no digits left to accept a proposal by.

    Examples
    --------
    >>> import blackjax, blackjax_ext, jax, jax.numpy as jnp
    >>> logdensity_fn = lambda x: -0.5 * jnp.sum((x / jnp.array([1.0, 10.0])) ** 2)
    >>> states, parameters, info = blackjax_ext.warmup(
    ...     blackjax.hmc, logdensity_fn, jax.random.key(0), jnp.ones((4, 2)), 300,
    ...     target_acceptance_rate=0.65, num_integration_steps=8,
    ... )
    >>> sampler = blackjax.hmc(logdensity_fn, **parameters, num_integration_steps=8)
    >>> step = jax.jit(jax.vmap(sampler.step))
    >>> states, info = step(jax.random.split(jax.random.key(1), 4), states)
    >>> states.position.shape
    (4, 2)
    """
    check_count("num_steps", num_steps)
    check_target("target_acceptance_rate", target_acceptance_rate)
    check_positive("step_size", step_size)
    check_differentiation(differentiation)
    called = adaptable(Algorithm(algorithm, parameters))
    positions = check_particles(positions)
    plan = Plan(num_steps, target_acceptance_rate)
    first = jax.tree.map(lambda leaf: leaf[0], positions)
    mode: Differentiation = differentiation
    if newton_start or mode != "none":
        mode = check_derivatives(logdensity_fn, first, differentiation)
    if mode == "gradients":
        logdensity_fn = differenced(logdensity_fn)
    bound = bind(called, logdensity_fn, differentiation)
    x, unravel = ravel_each(positions), ravel_pytree(first)[1]
    metric = factorize(inverse_mass_matrix, x.shape[1]).at(x[0])
    metric = metric.dense(x[0]) if dense else metric
    is_guessed = inverse_mass_matrix is not None

    @jax.jit
    def start(rng_key: PRNGKey, x: Array, metric: Factor) -> tuple[Any, ...]:
        key_path, key_init, key_search = jax.random.split(rng_key, 3)
        flat_fn: LogDensity = lambda x: logdensity_fn(unravel(x))  # noqa: E731
        found = find_start(key_path, flat_fn, x, mode if newton_start else "none")
        is_whitened = found.metric is not None and not is_guessed
        if is_whitened:
            metric = found.metric if dense else found.metric.diagonal()
        keys = jax.random.split(key_init, len(x)), jax.random.split(key_search, len(x))
        z = jax.vmap(unravel)(found.x)
        return *begin(bound, plan, keys, z, metric, step_size, is_whitened), found

    key_start, key_run = jax.random.split(rng_key)
    states, adapt_state, found = start(key_start, x, metric)
    if not jnp.isfinite(found.first_values).all():
        raise ValueError("positions must have a finite log density in every chain.")
    sites = report.sites_of(positions)
    report.warn_of_starts(found, sites)
    check_metric(getattr(states, "metric", adapt_state.metric))
    run = jax.jit(partial(run_windows, bound, plan))
    (states, adapt_state), info = run(key_run, states, adapt_state)
    report.warn(ADVICE, report.judge(adapt_state, states.logdensity), sites)
    metric = adapt_state.metric
    inverse = metric.inverse() if called.is_own else called.preconditioner(metric)
    return states, {"step_size": adapt_state.step_size[0], "inverse_mass_matrix": inverse}, info


def adaptable(called: Algorithm) -> Algorithm:
    """An algorithm as it is; TypeError unless it takes a step size to adapt."""
    called.check()
    if "step_size" not in called.takes():
        raise TypeError(f"algorithm must take a step_size to adapt; it takes {called.takes()}.")
    return called


def run_windows(
    bound: BoundAlgorithm, plan: Plan, rng_key: PRNGKey, states: Any, adapt_state: AdaptState
) -> tuple[tuple[Any, AdaptState], WarmupInfo]:
    """All steps of the plan, of chains that share step size and metric."""
    num_chains = adapt_state.step_size.shape[0]

    def step(carry: tuple[Any, AdaptState], xs: tuple[Array, PRNGKey]) -> Any:
        states, adapt_state = carry
        i, key = xs
        key_step, key_renew = jax.random.split(key)
        keys = jax.random.split(key_step, num_chains)
        used = adapt_state.step_size
        move = partial(bound.step, step_size=used[0], metric=adapt_state.metric)
        states, info = jax.vmap(move)(keys, states)
        info = info.rated(is_adapting=True)
        keys = jax.random.split(key_renew, num_chains)
        states, adapt_state = adapt(bound, plan, i, keys, info, states, adapt_state)
        return (states, adapt_state), WarmupInfo(
            jnp.asarray(info.acceptance_rate), info.is_divergent, used[0]
        )

    keys = jax.random.split(rng_key, plan.num_steps)
    return jax.lax.scan(step, (states, adapt_state), (jnp.arange(plan.num_steps), keys))


def check_target(name: str, rate: float | Array) -> None:
    """Raise ValueError unless `rate` is between 0 and 1; a traced value is let through."""
    if not isinstance(rate, jax.core.Tracer) and not 0 < rate < 1:
        raise ValueError(f"{name} must be between 0 and 1; got {rate}.")


def check_differentiation(differentiation: str) -> None:
    """Raise ValueError for an unknown mode."""
    if differentiation not in SERVING:
        raise ValueError(
            f'differentiation must be "reverse", "forward" or "none"; got {differentiation!r}.'
        )


def check_derivatives(
    logdensity_fn: LogDensity, position: ArrayTree, wanted: Wanted
) -> Differentiation:
    """How the density can be differentiated; ValueError if not as it is wanted."""
    found = differentiation_of(logdensity_fn, position, wanted)
    if found is None:
        raise ValueError(
            f'logdensity_fn cannot be differentiated as differentiation="{wanted}" says. Give '
            '"forward" for a loop of unknown length, "reverse" for a custom_vjp, or "none" with an '
            "algorithm that needs no derivative, such as blackjax_ext.random_walk."
        )
    return found


def bind(
    algorithm: Algorithm, logdensity_fn: LogDensity, differentiation: Wanted
) -> BoundAlgorithm:
    """The algorithm on a density; one that calls ``jax.grad`` gets gradients of JVPs if need be."""
    logdensity_fn = density_in_parts(logdensity_fn, differentiation)
    if differentiation == "forward" and not algorithm.is_own:
        from blackjax_ext.mcmc.tangents import forward_gradient  # which others do not need

        logdensity_fn = forward_gradient(logdensity_fn)
    return BoundAlgorithm(algorithm, logdensity_fn)


@partial(jax.jit, static_argnums=1)
def ravel_each(tree: ArrayTree, num_chains: int | None = None) -> Array:
    """Flat positions (C, D) of a pytree whose leaves lead with C, which is given if D may be 0."""
    return jax.vmap(lambda leaf: ravel_pytree(leaf)[0], axis_size=num_chains)(tree)


def begin(
    bound: Stepper,
    plan: Plan,
    keys: tuple[Array, Array],
    positions: ArrayTree,
    metric: Factor,
    guess: float | Array,
    is_whitened: bool,
) -> tuple[Any, AdaptState]:
    """First states of C chains at `positions`, and of what is adapted; two keys (C,) of each.

    `guess` is the step size in coordinates that the mode has whitened, where none is looked for.
    """
    frame, learned = first_frame(bound, metric, jax.tree.map(lambda leaf: leaf[0], positions))
    states = states_at(bound, keys[0], positions, frame)
    if is_whitened and plan.adapt_step_size and np.isfinite(plan.longest_step):
        guess = jnp.minimum(guess, plan.longest_step)
    searched = plan._replace(adapt_step_size=plan.adapt_step_size and not is_whitened)
    step_size = first_step_size(bound, searched, keys[1], states, frame, guess)
    x = ravel_each(coordinates_of(states), keys[0].shape[0])
    adapt_state = windows.init(
        *(step_size, metric, x),
        num_steps=plan.num_steps,
        with_gradients=learns_from_gradients(plan, states, metric, x.shape[1]),
    )
    trial = half_turns.no_trial(step_size) if plan.is_doubling else None
    return states, adapt_state._replace(coordinates=learned, trial=trial)


def first_frame(bound: Stepper, metric: Factor, position: ArrayTree) -> tuple[Any, Any]:
    """Coordinates of the first step, and what is known of them if `bound` learns them."""
    if not hasattr(bound, "first_learned"):
        return metric, None
    learned = bound.first_learned(position)
    return learned.frame(metric), learned


def learns_from_gradients(plan: Plan, states: Any, metric: Factor, size: int) -> bool:
    """Whether the metric is learned from gradients, too; TypeError if it must and cannot be."""
    has_gradients = gradients_of(states) is not None
    if metric.learns_from_rows and not has_gradients:
        raise TypeError(
            'dense_mass="low_rank" needs an algorithm whose state has a logdensity_grad and no '
            "metric of its own, such as MALA, AutoMALA, AutoNUTS or blackjax.hmc; got one with "
            f"{type(states).__name__}. Give True, False or None."
        )
    return plan.adapt_metric and has_gradients and (metric.learns_from_rows or size > windows.MANY)


def states_at(bound: Stepper, keys: Array, positions: ArrayTree, metric: Any) -> Any:
    """States at `positions`, made anew with `metric`; keys are of shape (C,)."""

    def init(position: ArrayTree, key: PRNGKey) -> Any:
        return bound.init(position, key, metric)

    return jax.vmap(init)(positions, keys)


def first_step_size(
    bound: Stepper, plan: Plan, keys: Array, states: Any, metric: Factor, guess: float | Array
) -> Array:
    """Step sizes (C,), all equal: doubled or halved until acceptance crosses the target.

    Vectorized chains share a step size: one that ends the warm-up in a narrow place would otherwise
    keep steps that suit no other place.
    """
    guess = jnp.asarray(guess, jax.tree.leaves(metric)[0].dtype)
    if not (plan.adapt_step_size and plan.num_steps):
        return jnp.broadcast_to(guess, keys.shape[:1])

    def search(key: PRNGKey, state: Any) -> Any:
        def kernel_with(step_size: Array) -> Function:
            def step(key: PRNGKey, state: Any) -> tuple[Any, StepInfo]:
                state, info = bound.step(key, state, step_size, metric)
                info = info.rated(is_adapting=True)
                return state, info._replace(acceptance_rate=info.tuning_rate)

            return step

        return find_reasonable_step_size(
            key, kernel_with, state, guess, plan.target_acceptance_rate
        )

    found = jax.vmap(search)(keys, states)
    return jnp.full_like(found, jnp.exp(jnp.mean(jnp.log(found))))


def adapt(
    bound: Stepper,
    plan: Plan,
    i: Array,
    keys: Array,
    info: StepInfo,
    states: Any,
    adapt_state: AdaptState,
) -> tuple[Any, AdaptState]:
    """Update step size and moments after step i; where a window ends, the metric and the states.

    Keys and states lead with the chains.
    """
    schedule = cast(AdaptationSchedule, adapt_state.schedule)
    accepted = jnp.asarray(info.acceptance_rate)
    adapt_state = windows.update_motion(adapt_state, accepted, info.has_moved)
    is_last = i == schedule.num_steps - 1
    if plan.adapt_step_size:
        target = plan.target_acceptance_rate
        rate = windows.rate_to_adapt_to(adapt_state, info.tuning_rate, target)
        rate = jnp.full_like(adapt_state.step_size, rate)
        adapted = windows.update_step(adapt_state, rate, target, is_last)
        if adapt_state.trial is not None:
            adapted = half_turns.tried(adapt_state, adapted, i, info, target)
        adapt_state = adapted
    x = ravel_each(coordinates_of(states))
    if adapt_state.slopes is not None:
        gradients = ravel_each(gradients_of(states))
        adapt_state = windows.update_slopes(adapt_state, x, gradients)
    adapt_state = windows.update_moments(adapt_state, x)
    if hasattr(bound, "counted"):  # and learns its coordinates
        adapt_state = bound.counted(states, info.laws, adapt_state)
    is_end = jnp.isin(i, schedule.ends)
    states, adapt_state = jax.lax.cond(
        is_end | is_last,
        partial(end_window, bound, plan, is_last),
        lambda keys, states, laws, adapt_state: (states, adapt_state),
        *(keys, states, info.laws, adapt_state),
    )
    if plan.adapt_step_size and np.isfinite(plan.longest_step):
        adapt_state = windows.limit_step_size(adapt_state, plan.longest_step)
    return states, adapt_state


def end_window(
    bound: Stepper,
    plan: Plan,
    is_last: Array,
    keys: Array,
    states: Any,
    laws: Any,
    adapt_state: AdaptState,
) -> tuple[Any, AdaptState]:
    """Put frozen chains back; unless the warm-up ends too, begin another window."""
    (states, laws), adapt_state = windows.rescue((states, laws), adapt_state)
    x = ravel_each(coordinates_of(states))

    def renew(states: Any, adapt_state: AdaptState) -> tuple[Any, AdaptState]:
        start = windows.update_metric if plan.adapt_metric else windows.start_counting
        adapt_state = start(adapt_state, x)
        if hasattr(bound, "recentre"):
            recentred: tuple[Any, AdaptState] = bound.recentre(keys, states, laws, adapt_state)
            return recentred
        if not plan.adapt_metric:
            return states, adapt_state
        metric = adapt_state.metric
        states = jax.vmap(lambda key, state: bound.renew(key, state, metric))(keys, states)
        return states, adapt_state

    renewed: tuple[Any, AdaptState]
    renewed = jax.lax.cond(is_last, lambda *both: both, renew, states, adapt_state)
    return renewed
