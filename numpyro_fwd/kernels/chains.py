"""A kernel's chains: their state, first and after each step, and the axis of vectorized ones."""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.adaptation.algorithm import StepInfo, Stepper
from blackjax_ext.adaptation.run import Plan, adapt, begin, first_frame, ravel_each, states_at
from blackjax_ext.adaptation.windows import AdaptationSchedule, AdaptState
from blackjax_ext.checks import item_of
from blackjax_ext.metrics.factors import check_metric
from blackjax_ext.programs import compiled_soon
from blackjax_ext.types import Function, once
from numpyro_fwd.bridge.fingerprints import Fingerprint
from numpyro_fwd.bridge.starts import check_products, points_around
from numpyro_fwd.kernels.notices import (
    Notice,
    compared,
    forget,
    noticing_chains,
    of_hidden,
    of_stuck,
    of_the_warmup,
)
from numpyro_fwd.kernels.strategy import Run, Start, ravel_one, split_each
from numpyro_fwd.kernels.tuning import Tuning
from numpyro_fwd.types import Args, Kwargs


class KernelState(NamedTuple):
    """State of a chain, or of vectorized chains with a leading axis.

    i
        Iteration, counted from the start of the warm-up.
    inner
        State of the BlackJAX algorithm.
    accept_prob
        Acceptance probability of the last proposal.
    mean_accept_prob
        Mean of it, over the warm-up and then over the draws.
    diverging
        Whether the last proposal was rejected because it was not finite.
    num_steps
        Integration steps of the last proposal, or evaluations of a step that was selected by
        trials: 1 for most algorithms.
    adapt_state
        Step size, metric and what adapts them; frozen after the warm-up.
    rng_key
        Key of the next step.
    shared
        What was found before the first step and never changes, without an axis of chains; None for
        most kernels.
    fingerprint
        Checksum of the data that the state was made with.
    num_still
        Steps since the last move, of those after the warm-up.
    noticed
        What was noticed of the chains, and is said when the state comes out of a program.
    """

    i: Array
    inner: Any
    accept_prob: Array
    mean_accept_prob: Array
    diverging: Array
    num_steps: Array
    adapt_state: AdaptState
    rng_key: Array
    shared: Any = None
    fingerprint: Fingerprint | None = None
    num_still: Array | int = 0
    noticed: Notice | None = None

    def __getitem__(self, key: Any) -> Any:
        return item_of(self, key)

    @property
    def z(self) -> Any:
        """Unconstrained position."""
        return self.inner.position

    @property
    def n_steps(self) -> Array:
        """`num_steps` under ArviZ's name, which adds no depth of a tree to it."""
        return self.num_steps

    @property
    def num_warmup(self) -> Array:
        """Steps of the warm-up, in which alone anything adapts."""
        schedule = self.adapt_state.schedule
        return jnp.zeros((), int) if schedule is None else schedule.num_steps

    def check_effects(self, names: set[str]) -> None:
        """Raise ValueError unless what is learned of is what a model has, `names`."""
        learned = self.adapt_state.coordinates
        pseudo = {} if learned is None else learned.pseudo
        found = {name for name, each in pseudo.items() if each is not None}
        if found != names:
            raise ValueError(
                f"the state that is resumed has learned coordinates of {sorted(found)}, and with "
                f"these arguments the effects of the model are {sorted(names)}. Run the warm-up on "
                "them, mcmc.post_warmup_state = None."
            )

    @property
    def is_stacked(self) -> bool:
        """Whether this is several states of one chain each, as sequential chains end with."""
        return cast(Notice, self.noticed).facts.run.ndim == 2

    @property
    def energy(self) -> Array:
        """Energy of the last trajectory, of kernels whose states keep it."""
        return self.inner.energy

    @property
    def tree_depth(self) -> Array:
        """How often the last trajectory was doubled, of kernels whose states keep it."""
        return self.inner.tree_depth

    @property
    def num_solves(self) -> Array:
        """Evaluations of marked functions by a chain with an emulator: one in each step."""
        return self.i + jnp.ones_like(self.shared.report.num_rounds)

    @property
    def potential_energy(self) -> Array:
        """Minus the log density at the position."""
        return -self.inner.logdensity

    @property
    def z_grad(self) -> Any:
        """Gradient of it, of kernels whose states keep that of the position."""
        if self.inner.logdensity_grad is None:
            raise AttributeError("z_grad")
        return jax.tree.map(jnp.negative, self.inner.logdensity_grad)


@partial(compiled_soon, runs_once=True)
def as_chains(single: Any) -> Any:
    """The key and the start of a single chain as those of chains, one in number."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], single)


def make_state(inner: Any, adapt_state: AdaptState, rng_key: Array, advice: str) -> KernelState:
    """State of chains before the first step, from states and keys that lead with them."""
    shape = rng_key.shape[:1]
    zeros = jnp.zeros(shape, adapt_state.step_size.dtype)
    state = KernelState(
        jnp.zeros(shape, int),
        inner,
        zeros,
        zeros,
        jnp.zeros(shape, bool),
        jnp.zeros(shape, int),
        adapt_state,
        rng_key,
        num_still=jnp.zeros(shape, int),
        noticed=noticing_chains(rng_key, adapt_state, inner, advice),
    )
    return with_types_of(state, state)


def after_step(
    state: KernelState,
    inner: Any,
    info: StepInfo,
    adapt_state: AdaptState,
    noticed: Notice,
    rng_key: Array,
) -> KernelState:
    """The state of chains after a step from `state`, with what is counted and noticed of it."""
    i, num_warmup = state.i, state.num_warmup
    rate = jnp.asarray(info.acceptance_rate)
    count = jnp.where(i < num_warmup, i, i - num_warmup) + 1
    num_still = jnp.where(info.has_moved | (i < num_warmup), 0, state.num_still + 1)
    noticed = of_stuck(noticed, num_still, i[0] - num_warmup)
    if info.hidden is not None:
        x = ravel_each(inner.position)
        noticed = of_hidden(noticed, info.hidden, x, i[0] + 1 - num_warmup)
    return state._replace(
        i=i + 1,
        inner=inner,
        accept_prob=rate,
        mean_accept_prob=state.mean_accept_prob + (rate - state.mean_accept_prob) / count,
        diverging=info.is_divergent,
        num_steps=info.num_steps,
        adapt_state=adapt_state,
        rng_key=rng_key,
        num_still=num_still,
        noticed=noticed.everywhere(),
    )


def of_one(state: KernelState) -> KernelState:
    """The state of a single chain, without the axis of chains; metric and moments keep theirs."""
    return mapped(state, lambda leaf: leaf[0])


def with_chains(step: Function, state: KernelState, batch_size: int | None = None) -> KernelState:
    """``step(state, each)`` for a state that leads with chains; that of a single chain stays one.

    ``each(function)`` is a `function` of one chain for all, or for so many at a time.
    """
    if not jnp.ndim(state.i):
        return of_one(step(mapped(state, lambda leaf: leaf[None]), alone))
    if batch_size is None:
        return cast(KernelState, step(state, jax.vmap))

    def some_at_a_time(one: Function) -> Function:
        return lambda *chains: jax.lax.map(lambda each: one(*each), chains, batch_size=batch_size)

    return cast(KernelState, step(state, some_at_a_time))


def made_anew(target: Stepper, kept_fields: tuple[str, ...], state: KernelState) -> KernelState:
    """A state whose chains are made anew where they are, but for fields of the algorithm's."""

    def made(state: KernelState, each: Function) -> KernelState:
        rng_key, key_inner = split_each(state.rng_key, 2)
        metric = state.adapt_state.frame
        inner = each(lambda z, key: target.init(z, key, metric))(state.z, key_inner)
        if kept_fields:
            inner = inner._replace(**{name: getattr(state.inner, name) for name in kept_fields})
        return state._replace(inner=inner, rng_key=rng_key)

    return with_chains(made, state)


def first_position(state: KernelState) -> Any:
    """The position of a chain, or of the first of several."""
    if state.is_stacked or jnp.ndim(state.i):
        return jax.tree.map(lambda leaf: leaf[0], state.z)
    return state.z


def mapped(state: KernelState, function: Function) -> KernelState:
    """`state` with `function` of the arrays of which each chain has its own."""
    adapt_state = state.adapt_state
    own = {name: getattr(adapt_state, name) for name in ("step_size", "averaging")}
    others = ("adapt_state", "shared", "fingerprint", "noticed")
    each = {name: leaf for name, leaf in state._asdict().items() if name not in others}
    own, each = jax.tree.map(function, (own, each))
    return state._replace(**each, adapt_state=adapt_state._replace(**own))


def alone(step: Function) -> Function:
    """A step of a batch of one chain as it is of a chain: no branch is made of both."""

    def one(*chains: Any) -> Any:
        squeezed = jax.tree.map(lambda leaf: leaf[0], chains)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], step(*squeezed))

    return one


def with_types_of(old: Any, new: Any) -> Any:
    """`new` with the dtypes of `old`, none of them weak.

    A step that returns the types that it was given is compiled once.
    """

    def cast(old, new):
        dtype = jnp.result_type(old)
        if jnp.issubdtype(dtype, jax.dtypes.extended):
            return new
        return jax.lax.convert_element_type(new, np.dtype(dtype))

    return jax.tree.map(cast, old, new)


def first_state(
    run: Run,
    start: Start,
    z: Any,
    shared: Any,
    tuning: Tuning,
    target_of: Function,
    advice: str,
    is_single: bool,
) -> KernelState:
    """The state of chains at their `start`, whose positions are like `z`, by one program.

    ``target_of(model_args, model_kwargs, shared)`` is the target of a step, `advice` what to do
    about chains that do not move. A chain that `is_single` has no axis of chains.
    """
    unravel, given = ravel_one(z), None
    if tuning.inverse_mass_matrix is not None:  # values are checked where they are known
        given = tuning.metric(None, start.x, unravel)

    def begun(arrays, keys, x, start_metric, given, shared, guess):
        source, metric = run.at(arrays), start_metric if given is None else given
        if given is None and not start.is_structured:
            metric = tuning.metric(start_metric, x, unravel, source.logdensity())
        target, plan = target_of(*source.arguments, shared), tuning.plan(x.shape[1], run.num_warmup)
        positions, is_whitened = jax.vmap(unravel)(x), start.is_whitened and given is None
        both = keys.first, keys.step_size
        inner, adapt_state = begin(target, plan, both, positions, metric, guess, is_whitened)
        state = make_state(inner, adapt_state, keys.state, advice)
        return of_one(state) if is_single else state

    def energies(arrays, keys, x, metric, shared):
        target = target_of(*run.at(arrays).arguments, shared)
        frame, _ = first_frame(target, metric, unravel(x[0]))

        def at(keys, x):
            return states_at(target, keys, jax.vmap(unravel)(x), frame).logdensity

        if is_single:  # with a vector, as the chain's own products
            return jax.lax.map(lambda one: at(one[0][None], one[1][None])[0], (keys, x))
        return at(keys, x)

    def energies_around() -> Array:
        x = points_around(start.x, start.metric)
        keys = jax.random.split(start.keys.first[0], x.shape[0])
        found: Array = run(energies, keys, x, tuning.metric(start.metric, x, unravel), shared)
        return found

    run.say("compiling the first state")
    arguments = start.keys, start.x, start.metric, given, shared, tuning.step_size * start.step_size
    state: KernelState = run(begun, *arguments)
    forget(cast(Notice, state.noticed))
    check_products(energies_around)
    if hasattr(state.inner, "metric"):
        check_metric(state.inner.metric)
    return state


def step_chains(
    target: Stepper,
    tuning: Tuning,
    parameters_of: Function | None,
    given: tuple[Args, Kwargs | None],
    state: KernelState,
    each: Function,
) -> KernelState:
    """One step of chains that lead the arrays of `state`; ``each(step)`` is that of all.

    ``parameters_of(rng_key, i, inner, num_warmup)`` are parameters that chains share, None for
    none, and `given` the arguments of the model.
    """
    adapt_state, schedule, i = state.adapt_state, state.adapt_state.schedule, state.i[0]
    rng_key, key_move, key_renew, *key_shared = split_each(
        state.rng_key, 3 + (parameters_of is not None)
    )
    supplied, first = {}, jax.tree.map(lambda leaf: leaf[0], state.inner)
    if parameters_of is not None:
        supplied = parameters_of(key_shared[0][0], i, first, state.num_warmup)

    def move(rng_key, inner, step_size):
        return target.step(rng_key, inner, step_size, adapt_state.frame, **supplied)

    inner, info = each(move)(key_move, state.inner, adapt_state.step_size)
    info = info.rated(is_adapting=tuning.adapt_step_size and schedule is not None)
    noticed = compared(cast(Notice, state.noticed), cast(Fingerprint, state.fingerprint), *given)
    plan = tuning.plan(sum(map(jnp.size, jax.tree.leaves(first.position))))
    if schedule is not None and (plan.adapt_step_size or plan.adapt_metric):
        # one predicate for all chains: a batched one would run the update for ever
        inner, adapt_state, noticed = once(
            i < schedule.num_steps,
            partial(adapted, target, plan, i, key_renew, info),
            (inner, adapt_state, noticed),
        )
    return after_step(state, inner, info, adapt_state, noticed, rng_key)


def adapted(
    target: Stepper,
    plan: Plan,
    i: Array,
    rng_key: Array,
    info: StepInfo,
    seen: tuple[Any, AdaptState, Notice],
) -> tuple[Any, AdaptState, Notice]:
    """What step `i` of the warm-up makes of states, of what is adapted, and of the notice."""
    inner, adapt_state, noticed = seen
    inner, adapt_state = adapt(target, plan, i, rng_key, info, inner, adapt_state)
    noticed = jax.lax.cond(
        i == cast(AdaptationSchedule, adapt_state.schedule).num_steps - 1,
        lambda noticed, *seen: with_types_of(noticed, of_the_warmup(noticed, *seen)),
        lambda noticed, *seen: noticed,
        *(noticed, adapt_state, inner.logdensity),
    )
    # the branches of a `cond` must agree in weak types too
    found: tuple[Any, AdaptState, Notice] = with_types_of(seen, (inner, adapt_state, noticed))
    return found
