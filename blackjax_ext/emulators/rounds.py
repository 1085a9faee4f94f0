r"""An emulator that is learned in rounds, where its own posterior goes.

1. The mode, by paths on expansions of first order (:mod:`blackjax_ext.emulators.search`).
2. A first emulator, from a normal sample around the mode.
3. In each round draws of the emulated posterior, by Hamiltonian trajectories that cost no
   evaluation; the density at some of them says how right the emulator is, and with their
   derivatives they are the points of the next one. The form is the one that predicts them best.
   The last round is one in which hardly a draw is beyond the points of the emulator, and the test
   of :mod:`blackjax_ext.mcmc.emulated` would accept nearly always, or no more often than two rounds
   ago.
4. Where the polynomials are right beyond their points, the emulator goes on there.

Everything is frozen before the first exact step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.adaptation.algorithm import Algorithm, BoundAlgorithm
from blackjax_ext.adaptation.run import Plan, begin, ravel_each, run_windows
from blackjax_ext.checks import check_particles
from blackjax_ext.emulators.evaluations import Dear, Evaluations, Slopes, slopes_of
from blackjax_ext.emulators.marking import active_coordinates, flattened, unflattened
from blackjax_ext.emulators.polynomials import (
    Emulator,
    Form,
    Points,
    emulated_density,
    fitted,
    form_of,
)
from blackjax_ext.emulators.search import Mode, find_mode
from blackjax_ext.emulators.tails import acceptance_of, better_end, emulated_at, share_lacking
from blackjax_ext.metrics.factors import factorize
from blackjax_ext.types import LogDensity

NUM_PATHS = 5  # to modes, at least
SAME = 0.5  # nats between two ends of paths to one mode
NUM_CHAINS = 8  # on the emulated posterior
NUM_WARMUP, NUM_DRAWS, THINNING = 300, 64, 4  # of each
TARGET = 0.8  # acceptance probability of their steps
# leapfrog steps of a trajectory, four times as many where chains have an R-hat above `SLOW`: it is
# 1.00 to 1.08 on 20 posteriors that are sampled well, more along a sharp curved ridge
NUM_STEPS, MOST_STEPS, SLOW = 8, 128, 1.1
TURN = 2 * np.pi  # of trajectories in coordinates in which the emulated posterior has scales of one
WIDER = 1.3  # sd of points around the mode
# a quarter of a round's points are draws of the emulated posterior at this temperature: without
# them a chain stayed for 80 draws where an emulator of the epidemic was too low, and a run had 318
# effective draws of 4,000, others 1,010 and 2,230; with them 1,430 to 2,070, at 2.5 1,430 to 1,690
TEMPERATURE, SHARE = 1.7, 0.25
HOT = 3.0  # temperature at which 5 to 60 % of draws are beyond the points, of a banana and others
NARROWER, MAX_TRIALS = 3.0, 4  # where most of them fail
# nats for each coordinate below the mode: where a first emulator is lower (by 1e34 between points
# of a hierarchy of exponentials), chains that start do not move, and no round learns anything
DEEP = 5.0
GOOD = 0.95  # acceptance at which another round is not worth its solves
# share of draws beyond the points, at most: the emulated posterior presses against its end where
# it is cut off, as on a ring, of which it holds an arc (0.09 to 0.25), or in the tails of a banana
BEYOND = 0.01
# of the flatter draws, by polynomials that go on beyond their points; at 0.02 ten rounds for the
# short lynx and hare and twice the evaluations, for nothing
BEYOND_FLATTER = 0.1
RISE = 0.02  # of the acceptance, below which it no longer rises
PATIENCE = 2  # rounds without a rise: it is known from a dozen points
MAX_ROUNDS = 8  # five of nine sharp bananas took all of six, and were cut short
WIDER_END = 2.0  # radius to which polynomials are followed to see what is beyond their points
MIN_POINTS = 16  # of a round
MANY_TERMS = 600  # of a polynomial in all coordinates
NEARBY = 3.0  # of a mode, in its standard deviations (the mean over coordinates)


class Emulation(NamedTuple):
    """An emulator, and what was learned with it.

    emulator
        Of the outputs.
    step_size
        Of leapfrog steps in the coordinates that `covariance` whitens.
    mean, covariance
        Of the emulated posterior, (D,) and (D, D).
    draws
        Of the emulated posterior, (N, D).
    acceptance
        Probability that the exact test accepts, as the points of the last round have it before they
        are fitted, too.
    error
        sd of the emulated log density at these points, in nats.
    share
        Of the mass around all modes that paths ended in, that around those which draws are near.
    lacking
        Of the mass of the posterior, what is where the emulator has far less, an estimate.
    form
        Of the emulator.
    num_solves, num_jvps, num_failed
        Evaluations, directional derivatives and evaluations that failed.
    num_rounds
        Rounds that it took.
    num_steps
        Leapfrog steps of a trajectory that its chains took.
    r_hat
        Of the chains on the emulated posterior that `draws` are of, in the worst coordinate.
    """

    emulator: Emulator
    step_size: float
    mean: np.ndarray
    covariance: np.ndarray
    draws: np.ndarray
    acceptance: float
    error: float
    share: float
    lacking: float
    form: Form
    num_solves: int
    num_jvps: int
    num_failed: int
    num_rounds: int
    num_steps: int
    r_hat: float


class Law(NamedTuple):
    """The emulated posterior: draws (N, D), their mean and covariance, and how they were made."""

    draws: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    step_size: float
    num_steps: int


def emulate(
    outputs_fn: Callable[[ArrayTree], ArrayTree],
    logdensity_fn: Callable[[ArrayTree, ArrayTree], Array],
    rng_key: PRNGKey,
    positions: ArrayLikeTree,
) -> tuple[LogDensity, Emulation]:
    """Learn an emulator of a log density that goes through outputs of a dear function.

    Parameters
    ----------
    outputs_fn
        The dear function: from a position, a pytree, to a pytree of arrays. Forward mode is used
        if it has one, else reverse mode, else values alone.
    logdensity_fn
        From a position and the outputs to the log density; it is differentiated.
    rng_key
        Key, used once.
    positions
        First guesses, such as prior draws: a pytree whose leaves lead with S. Paths to the mode
        begin at them in turn, five or more; where the log density is finite at none of them, there
        is no emulator.

    Returns
    -------
    emulator_fn
        Log density that emulates it, for :func:`blackjax_ext.emulated`.
    emulation
        An :class:`~blackjax_ext.emulators.rounds.Emulation`: `step_size`, `covariance` and
        `num_steps` for that sampler, `draws` where chains may start, counts and errors.

    Cost: 200 to 600 evaluations and up to three times as many directional derivatives for up to ten
    dimensions.

    Raises
    ------
    ValueError
        If the log density is finite at no first guess.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> import blackjax_ext
    >>> outputs_fn = lambda x: jnp.exp(-jnp.exp(x) * jnp.arange(4.0))
    >>> logdensity_fn = lambda x, outputs: -0.5 * x**2 - 50.0 * jnp.sum((outputs - 0.4) ** 2)
    >>> emulator_fn, found = blackjax_ext.emulate(
    ...     outputs_fn, logdensity_fn, jax.random.key(0), jnp.linspace(-1.0, 1.0, 8)
    ... )
    >>> sampler = blackjax_ext.emulated(
    ...     lambda x: logdensity_fn(x, outputs_fn(x)), found.step_size, jnp.array(found.covariance),
    ...     emulator_fn=emulator_fn, num_integration_steps=found.num_steps,
    ... )
    >>> state = sampler.init(jnp.array(found.draws[0, 0]))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(1), state)
    """
    first = jax.tree.map(lambda leaf: leaf[0], check_particles(positions))
    like, unravel = ravel_pytree(first)
    shapes, structure = jax.tree.flatten(jax.eval_shape(outputs_fn, first))

    def density(x: Array, outputs: Array) -> Array:
        whole = jax.tree.unflatten(structure, unflattened(outputs, shapes))
        return logdensity_fn(unravel(x), whole)

    dear = Dear(lambda x: flattened(jax.tree.leaves(outputs_fn(unravel(x))), x.dtype), density)
    active = active_coordinates(outputs_fn, first)
    program = lambda function: jax.jit(partial(function, dear))  # noqa: E731
    evaluations = Evaluations(program, active, slopes_of(dear, like), like.dtype)
    found = learn(evaluations, rng_key, np.asarray(ravel_each(positions), float))
    emulator = evaluations.cast(found.emulator)
    emulated_fn = emulated_density(dear.logdensity_fn, emulator)
    return lambda position: emulated_fn(ravel_pytree(position)[0]), found


def learn(
    evaluations: Evaluations,
    rng_key: Array,
    starts: np.ndarray,
    say: Callable[[str], None] = lambda _: None,
) -> Emulation:
    """The emulator of a posterior, from first guesses (S, D); `say` tells whoever waits."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
    say("looking for the mode by expansions of the outputs")
    modes = modes_from(evaluations, rng, starts)
    mode = modes[0]
    weights = precisions(evaluations, mode)
    law = Law(mode.x[None], mode.x, mode.covariance, 1.0, NUM_STEPS)
    size = len(evaluations.active)
    num_points = points_of_round(size, evaluations.slopes)
    say("a first emulator around the mode")
    points = around(evaluations, rng, law, num_points)
    fit = partial(fitted, active=evaluations.active, weights=weights)
    form = form_of(size, points.num_equations, is_log=True)
    emulator = fit(points, law.mean, law.covariance, form=form)
    first = starts_of_chains(evaluations, emulator, rng, law)
    rates, num_rounds = [-1.0], 0
    while num_rounds < MAX_ROUNDS:
        num_rounds += 1
        law = mixed_law_of(evaluations, emulator, rng, first, law)
        flatter = law_of(evaluations, farther(emulator), rng, first, law, TEMPERATURE)
        at, fresh = fresh_points(evaluations, rng, law, flatter, num_points)
        errors = errors_of(evaluations, emulator, fresh, at)
        acceptance = acceptance_of(errors)
        is_covered = all(
            np.mean(emulator.is_beyond(each.draws)) < share
            for each, share in ((law, BEYOND), (flatter, BEYOND_FLATTER))
        )
        say(f"round {num_rounds} of the emulator: acceptance {acceptance:.2f}")
        form = best_form(evaluations, fit, points, (at, fresh), law)
        points, first = points.and_also(fresh.finite()), law.draws[-NUM_CHAINS:]
        emulator = fit(points, law.mean, law.covariance, form=form)
        rates.append(acceptance)
        has_risen = max(rates[-PATIENCE:]) >= max(rates[:-PATIENCE], default=-1) + RISE
        # after one round alone 7 % of a posterior with logistic tails were lacking
        if num_rounds > 1 and is_covered and (acceptance > GOOD or not has_risen):
            break
    law = mixed_law_of(evaluations, emulator, rng, first, law)
    is_finite = np.isfinite(errors)
    share = share_near(law.draws, modes)
    wider = farther(emulator)
    flatter = law_of(evaluations, wider, rng, law.draws[-NUM_CHAINS:], law, HOT)
    emulator, beyond = better_end(evaluations, emulator, wider, flatter.draws, HOT)
    lacking = max(beyond, share_lacking(evaluations, rng, emulator, law.draws, law.covariance))
    return Emulation(
        *(emulator, law.step_size, law.mean, law.covariance, law.draws, acceptance),
        *(float(np.std(errors[is_finite])) if is_finite.any() else np.inf, share, lacking, form),
        *(evaluations.num_solves, evaluations.num_jvps, evaluations.num_failed, num_rounds),
        *(law.num_steps, r_hat_of(law.draws)),
    )


def modes_from(
    evaluations: Evaluations, rng: np.random.Generator, starts: np.ndarray
) -> list[Mode]:
    """Ends of paths, the best one first; two of them have found it."""
    paths: list[Mode] = []
    for x in np.concatenate([starts[:1], rng.permutation(starts[1:])]):
        path = find_mode(evaluations, x, paths)
        if path is None:
            continue
        paths.append(path)
        best = max(path.logdensity for path in paths)
        num_best = sum(path.logdensity > best - SAME for path in paths)
        if len(paths) >= NUM_PATHS and num_best > 1:
            break
    if not paths:
        raise ValueError(
            "no start: the log density, or a derivative of the marked functions, is not finite at "
            f"any of {len(starts)} first guesses, the last of which is {starts[-1]} in "
            "unconstrained coordinates. Check what the solver returns there, its max_steps and "
            "tolerances, and the data against the supports; if they fit, give init_params near the "
            "posterior."
        )
    return sorted(paths, key=lambda path: -path.logdensity)


def share_near(draws: np.ndarray, modes: list[Mode]) -> float:
    """Share of the mass around modes of those that some of the draws, (N, D), are near."""
    distinct: list[Mode] = []
    for mode in modes:
        if not any(other.holds(mode.x) for other in distinct):
            distinct.append(mode)
    masses = np.array([mode.log_mass for mode in distinct])
    weights = np.exp(masses - masses.max())
    is_near = [mode.distances(draws).min() < NEARBY for mode in distinct]
    return float(weights[is_near].sum() / weights.sum())


def precisions(evaluations: Evaluations, mode: Mode) -> np.ndarray:
    """Curvature of the log density by each output, (M,), absolute."""
    found = np.asarray(evaluations.run(curvatures, mode.x, mode.outputs), float)
    curvature: np.ndarray = np.abs(np.nan_to_num(found))
    return curvature


def curvatures(dear: Dear, x: Array, outputs: Array) -> Array:
    """Second derivatives by one output at a time."""
    slopes = jax.grad(lambda outputs: dear.logdensity_fn(x, outputs))
    along = lambda v: jax.jvp(slopes, (outputs,), (v,))[1] @ v  # noqa: E731
    found: Array = jax.lax.map(along, jnp.eye(len(outputs), dtype=outputs.dtype))
    return found


def points_of_round(size: int, slopes: Slopes) -> int:
    """Points of a round: half as many equations more than a cubic has terms, or a quadratic."""
    terms = Form(3, size, is_log=False).num_terms(size)
    if terms > MANY_TERMS:
        terms = Form(2, size, is_log=False).num_terms(size)
    each = 1 if slopes == "differences" else size + 1
    return max(MIN_POINTS, -(-3 * terms // (2 * each)))


def evaluated(evaluations: Evaluations, x: np.ndarray) -> Points:
    """Points with what derivatives there are."""
    if evaluations.slopes == "differences":
        return Points(x, evaluations.outputs(x), None)
    return evaluations.with_jacobians(x)


def around(evaluations: Evaluations, rng: np.random.Generator, law: Law, num_points: int) -> Points:
    """Points of a normal law, wider than it; narrower where most of its points fail."""
    width, root = WIDER, np.linalg.cholesky(law.covariance)
    for _ in range(MAX_TRIALS):
        noise = rng.standard_normal((num_points, len(root))) @ root.T
        x = np.concatenate([law.mean[None], law.mean + width * noise])
        points = evaluated(evaluations, x).finite()
        if len(points.x) > num_points / 2:
            break
        width /= NARROWER
    return points


def starts_of_chains(
    evaluations: Evaluations, emulator: Emulator, rng: np.random.Generator, law: Law
) -> np.ndarray:
    """Draws of a normal law, (C, D); nearer to its mean where the emulator has no density."""
    first = rng.multivariate_normal(law.mean, law.covariance, NUM_CHAINS, method="cholesky")
    for _ in range(MAX_TRIALS):
        x = np.concatenate([law.mean[None], first])
        found = np.asarray(evaluations.run(emulated_at, evaluations.cast(emulator), x), float)
        is_low = ~(found[1:] > found[0] - DEEP * len(law.mean))
        nearer = law.mean + (first - law.mean) / NARROWER
        first = np.where(is_low[:, None], nearer, first)
    return first


def farther(emulator: Emulator) -> Emulator:
    """The same polynomials, beyond their points."""
    return emulator._replace(radius=WIDER_END * emulator.radius)


def mixed_law_of(
    evaluations: Evaluations,
    emulator: Emulator,
    rng: np.random.Generator,
    first: np.ndarray,
    before: Law,
) -> Law:
    """The emulated posterior, by trajectories of as many steps as its chains need to agree."""
    law = law_of(evaluations, emulator, rng, first, before)
    while (
        r_hat_of(law.draws) > SLOW
        and law.num_steps < MOST_STEPS
        and law.num_steps * law.step_size < TURN
    ):
        law = law._replace(num_steps=4 * law.num_steps)
        law = law_of(evaluations, emulator, rng, law.draws[-NUM_CHAINS:], law)
    return law


def law_of(
    evaluations: Evaluations,
    emulator: Emulator,
    rng: np.random.Generator,
    first: np.ndarray,
    before: Law,
    temperature: float = 1.0,
) -> Law:
    """The emulated posterior, flatter by a temperature, by trajectories without an evaluation."""
    key, power = jax.random.key(rng.integers(2**31)), 1 / temperature
    given = evaluations.cast(emulator), key, first, before.covariance, power, before.num_steps
    found = evaluations.run(sampled, *given)
    draws, step_size = np.asarray(found[0], float), float(found[1])
    spread = np.cov(draws.T).reshape(draws.shape[1], -1)
    covariance = spread + 1e-9 * np.diag(np.diag(spread))
    return Law(draws, draws.mean(0), covariance, step_size, before.num_steps)


def r_hat_of(draws: np.ndarray) -> float:
    """R-hat of chains of which these are draws, (N C, D), in the worst coordinate."""
    chains = draws.reshape(-1, NUM_CHAINS, draws.shape[1])
    within = chains.var(0, ddof=1).mean(0)
    between = chains.mean(0).var(0, ddof=1)
    return float(np.sqrt(1.0 + between / np.maximum(within, 1e-30)).max())


def sampled(
    dear: Dear,
    emulator: Emulator,
    rng_key: Array,
    first: Array,
    covariance: Array,
    power: Array,
    num_steps: Array,
) -> tuple[Array, Array]:
    """Draws, (N, D), of a power of the emulated posterior, and a step size."""
    algorithm = Algorithm(blackjax.hmc, {"num_integration_steps": num_steps})
    density = emulated_density(dear.logdensity_fn, emulator)
    bound = BoundAlgorithm(algorithm, lambda x: power * density(x))
    plan, metric = Plan(NUM_WARMUP, TARGET), factorize(covariance, first.shape[1])
    key_begin, key_warmup, key_draws = jax.random.split(rng_key, 3)
    keys = jax.random.split(key_begin, (2, NUM_CHAINS))
    chains = begin(bound, plan, (keys[0], keys[1]), first, metric, 1.0, is_whitened=False)
    (states, adapted), _ = run_windows(bound, plan, key_warmup, *chains)
    step_size = adapted.step_size[0]

    def step(states: Any, key: Array) -> tuple[Any, Array]:
        keys = jax.random.split(key, NUM_CHAINS)
        move = partial(bound.step, step_size=step_size, metric=adapted.metric)
        states, _ = jax.vmap(move)(keys, states)
        return states, states.position

    _, draws = jax.lax.scan(step, states, jax.random.split(key_draws, THINNING * NUM_DRAWS))
    return draws[THINNING - 1 :: THINNING].reshape(-1, first.shape[1]), step_size


def fresh_points(
    evaluations: Evaluations, rng: np.random.Generator, law: Law, flatter: Law, num_points: int
) -> tuple[np.ndarray, Points]:
    """Which are draws as they are, and the points: draws, and some that are farther out."""
    x, wide = (
        each.draws[rng.choice(len(each.draws), num_points, replace=False)]
        for each in (law, flatter)
    )
    is_draw = np.arange(num_points) < (1 - SHARE) * num_points
    return is_draw, evaluated(evaluations, np.where(is_draw[:, None], x, wide))


def errors_of(
    evaluations: Evaluations, emulator: Emulator, points: Points, at: np.ndarray
) -> np.ndarray:
    """Log density less the emulated one, up to a constant; not finite where one failed."""
    exact = evaluations.logdensities(points.x[at], points.outputs[at])
    found = evaluations.run(emulated_at, evaluations.cast(emulator), points.x[at])
    errors: np.ndarray = exact - np.asarray(found, float)
    return errors


def best_form(
    evaluations: Evaluations,
    fit: Callable[..., Emulator],
    old: Points,
    of_draws: tuple[np.ndarray, Points],
    law: Law,
) -> Form:
    """The form that predicts fresh points best from the old ones."""
    at, fresh = of_draws
    size, rates = len(evaluations.active), dict[Form, float]()
    for degree in (3, 2, 4):  # another one is another program: only where it is needed
        if degree == 4 and max(rates.values()) > GOOD:
            break
        for is_log in (True, False):
            form = form_of(size, old.num_equations, is_log=is_log, degree=degree)
            emulator = fit(old, law.mean, law.covariance, form=form)
            rates[form] = acceptance_of(errors_of(evaluations, emulator, fresh, at))
    return max(rates, key=lambda form: rates[form])
