"""Laws of sweeps over rows in groups.

The posterior has exact draws: counts whose log rates are sums of a shared coordinate and one of two
of their group, where gamma priors are those of the rates themselves; counts that see a shared
coordinate alone; and a hyperparameter that no row sees. The anchor is off the mode, so the bounds
are loose and rows are read many times.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import blackjax_ext
from blackjax_ext import families, potentials
from blackjax_ext.subsampling import group_sweeps, remainders, row_tests
from blackjax_ext.subsampling.expansion import Expansion
from tests.laws import laws
from tests.laws.laws import Outcome, Size

SIZE = Size(3_000, 5)
NUM_GROUPS, WIDTH, NUM_ROWS = 3, 2, 30
RNG = np.random.default_rng(80)
EXPOSURE = RNG.gamma(0.7, 0.5, NUM_ROWS)
EVENTS = RNG.poisson(EXPOSURE * 1.5)
LEVEL = RNG.integers(0, NUM_GROUPS, NUM_ROWS)
# which of three a row sees: a coefficient of its group with s, or theta
KIND = np.arange(NUM_ROWS) % 3
SHAPE, RATE = 1.5, 1.0
CELL = LEVEL * WIDTH + KIND
OWN = KIND < WIDTH
SHAPES = SHAPE + np.bincount(CELL[OWN], EVENTS[OWN], NUM_GROUPS * WIDTH)
RATES = RATE + np.bincount(CELL[OWN], EXPOSURE[OWN], NUM_GROUPS * WIDTH)
THETA = SHAPE + EVENTS[~OWN].sum(), RATE + EXPOSURE[~OWN].sum()


def logprior(shared):
    """Normal h, s around it, and the log of a gamma variable."""
    h, s, theta = shared["h"], shared["s"], shared["theta"]
    return -0.5 * h**2 - 0.5 * (s - h) ** 2 + SHAPE * theta - RATE * jnp.exp(theta)


def group_logprior(shared, b):
    """Log rates are logs of gamma variables."""
    eta = shared["s"] + b
    return jnp.sum(SHAPE * eta - RATE * jnp.exp(eta))


def posterior(dtype=jnp.float32):
    """The posterior by its predictors."""
    covariates = np.column_stack([np.eye(3)[KIND], np.log(EXPOSURE)]).astype(dtype)

    def predict(shared, b, row):
        return row[:2] @ (shared["s"] + b) + row[2] * shared["theta"] + row[3]

    return potentials.grouped_predictor(
        logprior,
        group_logprior,
        families.poisson(),
        (covariates, EVENTS.astype(dtype), LEVEL),
        start(dtype),
        predict_fn=predict,
    )


def start(dtype=jnp.float32):
    """A place off the mode."""
    groups = np.log(SHAPES / RATES).reshape(NUM_GROUPS, WIDTH) + 0.4
    shared = {"h": 0.2, "s": 0.3, "theta": np.log(THETA[0] / THETA[1]) + 0.3}
    position = {"groups": groups - 0.3, "shared": shared}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), position)


def expansion(order: int, dtype=jnp.float32) -> Expansion:
    """Its expansion there."""
    return potentials.expand_groups(posterior(dtype), start(dtype), order=order, find_mode=False)


def draw(rng, n):
    """Exact draws."""
    rates = rng.gamma(SHAPES, size=(n, SHAPES.size)) / RATES
    s = np.sqrt(2.0) * rng.normal(size=n)
    h = 0.5 * s + np.sqrt(0.5) * rng.normal(size=n)
    theta = np.log(rng.gamma(THETA[0], size=n) / THETA[1])
    groups = (np.log(rates) - s[:, None]).reshape(n, NUM_GROUPS, WIDTH)
    return {"groups": groups, "shared": {"h": h, "s": s, "theta": theta}}


def uniforms(x):
    """Each coordinate by its law given those before."""
    shared = {name: np.asarray(leaf, np.float64) for name, leaf in x["shared"].items()}
    groups = np.asarray(x["groups"], np.float64).reshape(-1, SHAPES.size)
    rates = np.exp(groups + shared["s"][:, None])
    return np.column_stack(
        [
            scipy.stats.gamma.cdf(rates, SHAPES, scale=1 / RATES),
            scipy.stats.norm.cdf(shared["s"] / np.sqrt(2.0)),
            scipy.stats.norm.cdf((shared["h"] - 0.5 * shared["s"]) / np.sqrt(0.5)),
            scipy.stats.gamma.cdf(np.exp(shared["theta"]), THETA[0], scale=1 / THETA[1]),
        ]
    )


def ends():
    """Moves on which the rows of each group have a say, as u and v of both ends."""
    rng = np.random.default_rng(81)
    for size in (0.6, 1.3, 2.0):
        u, v = rng.normal(size=(2, 3)), rng.normal(size=(2, NUM_GROUPS, WIDTH))
        yield size * u, size * v
        yield size * u[::-1], size * v[::-1]


def changes_by_definition(expanded: Expansion, old, new) -> np.ndarray:
    """How the remainder of each row changes, in double precision, shape (N,)."""
    anchor = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), expanded.position)

    def predictors(x):
        groups = np.asarray(x["groups"], np.float64)[LEVEL]
        shared = {name: np.asarray(leaf, np.float64) for name, leaf in x["shared"].items()}
        own = groups[np.arange(NUM_ROWS), np.minimum(KIND, 1)] + shared["s"]
        return np.where(OWN, own, shared["theta"]) + np.log(EXPOSURE)

    base = predictors(anchor)

    def remainder(x):
        t = predictors(x) - base
        return np.exp(base) * (np.expm1(t) - t - 0.5 * t**2 - (expanded.order - 2) * t**3 / 6)

    return remainder(new) - remainder(old)


def rows_decide_by_factors(order: int, *, is_joint: bool, num_repeats: int = 1_500) -> None:
    """Groups veto with the probability of their rows' factors, or are summed where they are far."""
    expanded = expansion(order)

    @jax.jit
    def outcomes(expanded, key, u, v):
        old, new = (expanded.position_of(*end) for end in zip(u, v, strict=True))
        ends = row_tests.MoveEnds.of(expanded, *zip(u, v, strict=True))
        is_far = row_tests.reaches_of(expanded, ends).is_far
        steps = row_tests.steps_to(expanded, old, new)

        def one(key):
            return row_tests.run_test(
                key, expanded, steps, ends, jnp.array(True), is_joint=is_joint
            )

        return old, new, is_far, jax.vmap(one)(jax.random.split(key, num_repeats))

    for i, (u, v) in enumerate(ends()):
        u, v = jnp.asarray(u, jnp.float32), jnp.asarray(v, jnp.float32)
        old, new, is_far, found = outcomes(expanded, jax.random.key(i), u, v)
        rows, is_far = changes_by_definition(expanded, old, new), np.asarray(is_far)
        sums = np.where(is_far, np.bincount(LEVEL, rows, NUM_GROUPS), 0.0)
        # which rule holds must not depend on the direction
        assert (
            is_far == np.asarray(outcomes(expanded, jax.random.key(i), u[::-1], v[::-1])[2])
        ).all()
        np.testing.assert_allclose(found.change[0], sums, rtol=2e-3, atol=2e-4, err_msg="sums")
        vetoes = np.where(is_far, 0.0, np.bincount(LEVEL, np.maximum(rows, 0), NUM_GROUPS))
        spared, survival = ~np.asarray(found.is_vetoed), np.asarray(found.survival)
        if is_joint:
            vetoes, spared = vetoes.sum(keepdims=True), spared.all(1, keepdims=True)
            survival = survival.prod(1, keepdims=True)
        expected = np.exp(-vetoes)
        spread = np.sqrt(expected * (1 - expected) / num_repeats) + 1e-4
        for rate in (spared.mean(0), survival.mean(0)):
            off = np.max(np.abs(rate - expected) / spread)
            assert off < 4.8, f"factors: {rate} for {expected} at the move {i}"


def logdensity(x) -> float:
    """Of the posterior, in double precision."""
    eta = np.asarray(x["groups"], np.float64).ravel() + float(x["shared"]["s"])
    h, s, theta = (float(x["shared"][name]) for name in ("h", "s", "theta"))
    of_rates = np.sum(SHAPES * eta - RATES * np.exp(eta)) + THETA[0] * theta
    return of_rates - THETA[1] * np.exp(theta) - 0.5 * h**2 - 0.5 * (s - h) ** 2


def energy_is_kept(order: int) -> None:
    """Shared energy, the rest of the expansion and the remainders add up to the energy.

    So do, from what is shared, the energies of the groups.
    """
    expanded = expansion(order)

    @jax.jit
    def energy(expanded, x):
        u, v = expanded.coordinates(x)
        steps = row_tests.steps_to(expanded, expanded.position, x)
        rows, _ = row_tests.changes_of(expanded, steps, jnp.ones(NUM_GROUPS, bool))
        nothing, terms = jnp.zeros_like(u), expanded.grouped.terms(x)
        by_shared = group_sweeps.shared_energy(expanded, v)(u)
        by_shared += expanded.given_shared(nothing)(v).sum() + rows.sum()
        by_groups = group_sweeps.conditional(expanded, u).energy(v).sum() - terms.shared
        by_groups += expanded.given_groups(jnp.zeros_like(v))(u) + rows.sum()
        return jnp.stack([by_shared, by_groups])

    places = [expanded.position_of(u[0], v[0]) for u, v in ends()]
    found = np.array([energy(expanded, x) for x in places])
    off = np.diff(found, axis=0) + np.diff([logdensity(x) for x in places])[:, None]
    assert np.max(np.abs(off)) < 1e-3, f"energy: off by {off}"


class Case(NamedTuple):
    """One configuration of the sweeps.

    step_size
        Of the shared coordinates, with an acceptance rate near one half.
    max_passes
        Expected events of a group, in passes over its rows, beyond which all of them are read.
    order
        Of the expansion.
    """

    step_size: float
    max_passes: float
    order: int = 2


CASES = {
    "events": Case(0.55, 6.0),
    # some groups are read whole and others are not
    "mixed": Case(0.6, 1.0),
    "whole": Case(0.8, 0.0),
    "third order": Case(1.0, 1.0, 3),
    "third order, events": Case(0.9, 6.0, 3),
}


def simulate(case: Case, size: Size) -> Outcome:
    """Run the sweeps from exact draws."""
    sampler = blackjax_ext.group_sweeps(
        expansion(case.order), case.step_size, num_integration_steps=2, num_moves=2
    )
    starts = draw(np.random.default_rng(20), size.num_chains)
    starts = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), starts)

    def chain(start, rng_key):
        def step(state, key):
            state, info = sampler.step(key, state)
            return state, (info.acceptance_rate, info.group_acceptance_rate)

        keys = jax.random.split(rng_key, size.num_steps)
        state, rates = jax.lax.scan(step, sampler.init(start), keys)
        return state.position, jnp.mean(jnp.stack(rates))

    keys = jax.random.split(jax.random.key(21), size.num_chains)
    ends, acceptance = jax.jit(jax.vmap(chain))(starts, keys)
    before, after = uniforms(starts), uniforms(ends)
    moved = np.mean(np.any(laws.flat(starts) != laws.flat(ends), axis=1))
    return Outcome(before, after, float(np.mean(acceptance)), float(moved))


def invariance(case: Case, size: Size = SIZE) -> Outcome:
    """Raise unless chains that start in equilibrium are still there; return what happened."""
    outcome = simulate(case, size)
    assert not np.isnan(outcome.end).any(), "invariance: NaN"
    smallest = min(*laws.uniformity(outcome.end), *laws.changes(outcome.start, outcome.end))
    assert smallest > laws.LEVEL, f"invariance: p = {smallest:.2g}"
    return outcome


# log densities of one coefficient, their laws, and how a normal approximation scales them
TAILS = {
    "t": (lambda x: -2.0 * jnp.log1p(x**2 / 3.0), scipy.stats.t(3), 1.0),
    "exponential": (lambda x: 0.3 * x - jnp.exp(x), scipy.stats.loggamma(0.3), 1.8),
    "normal": (lambda x: -0.5 * x**2, scipy.stats.norm(), 1.0),
}


def tails_are_visited(
    name: str, width: int, num_groups: int = 20_000, num_moves: int = 400
) -> None:
    """Of groups that all begin at the mode, as many are in each tail as are to be."""
    logdensity, law, scale = TAILS[name]
    mode = float(np.log(0.3)) if name == "exponential" else 0.0

    def total(z):
        return jnp.sum(logdensity(mode + scale * z), axis=1)

    @jax.jit
    def run(key):
        def move(z, key):
            key_move, key_accept = jax.random.split(key)
            found = group_sweeps.proposed(key_move, z)
            log_ratio = total(found.z) - total(z) + found.log_ratio
            is_accepted = jnp.log(jax.random.uniform(key_accept, (num_groups,))) < log_ratio
            return jnp.where(is_accepted[:, None], found.z, z), None

        start = jnp.zeros((num_groups, width))
        return jax.lax.scan(move, start, jax.random.split(key, num_moves))[0]

    x = mode + scale * np.asarray(run(jax.random.key(83)), np.float64)[:, 0]
    for share in (0.001, 0.01, 0.1, 0.5):
        for end in ((x < law.ppf(share)).mean(), (x > law.isf(share)).mean()):
            error = np.sqrt(share / num_groups)
            assert abs(end - share) < 4.5 * error, f"{name}, tail of {share}: {end:.4f}"


def expected_rows_are_those_that_are_read(order: int) -> None:
    """The rows of shared moves between draws of u, before a veto ends a test."""
    expanded = expansion(order)
    num_moves = 400
    found = float(remainders.expected_rows(jax.random.key(30), expanded, 4_000))

    @jax.jit
    def rows_of(key):
        key_u, key_v, key_rows = jax.random.split(key, 3)
        u = jax.random.normal(key_u, (2, expanded.frame.root.shape[0]))
        v = jax.random.normal(key_v, (NUM_GROUPS, WIDTH))
        ends = row_tests.MoveEnds.of(expanded, *((end, v) for end in u))
        steps = row_tests.steps_to(expanded, *(expanded.position_of(end, v) for end in u))
        # without an end at a veto, as tests of single groups have none
        return row_tests.run_test(
            key_rows, expanded, steps, ends, jnp.array(True), is_joint=False
        ).num_rows

    rows = np.array(jax.lax.map(rows_of, jax.random.split(jax.random.key(31), num_moves)))
    spread = rows.std() / np.sqrt(num_moves)
    assert abs(rows.mean() - found) < 4.0 * spread, f"rows: {rows.mean()} for {found}"


def changes_stay_below_their_bounds(order: int) -> None:
    """Of short moves and long ones, by each row's bound and by what settles most events."""
    expanded = expansion(order, jnp.float64)
    rng = np.random.default_rng(82)
    u = 1.5 * rng.normal(size=(400, 2, 3))
    v = 1.5 * rng.normal(size=(400, 2, NUM_GROUPS, WIDTH))
    share = rng.choice([0.01, 0.2, 1.0], size=400)
    u[:, 1] = u[:, 0] + share[:, None] * u[:, 1]
    v[:, 1] = v[:, 0] + share[:, None, None] * v[:, 1]

    @jax.jit
    @jax.vmap
    def ratios(u, v):
        both = list(zip(u, v, strict=True))
        ends = row_tests.MoveEnds.of(expanded, *both)
        reach = row_tests.reaches_of(expanded, ends).reach
        steps = row_tests.steps_to(expanded, *(expanded.position_of(*end) for end in both))
        rows = remainders.read_moved_rows(expanded, steps, expanded.rows)
        changes = jnp.abs(remainders.remainder_change(expanded, rows))
        level = jnp.searchsorted(expanded.first, jnp.arange(NUM_ROWS), side="right") - 1
        within = jnp.maximum(ends.old, ends.new)[level] <= expanded.radius**2
        bounds = expanded.bound * reach[level]
        settled = remainders.change_bounds(expanded, rows.changes, jnp.arange(NUM_ROWS))
        return jnp.where(within, jnp.stack([changes / bounds, changes / settled]), 0.0)

    by_bound, by_settled = np.moveaxis(np.asarray(ratios(jnp.asarray(u), jnp.asarray(v))), 1, 0)
    assert by_bound.max() <= 1.0 and by_settled.max() <= 1.0, "bound"
    # and not by much, for a rate that grows by a factor of twenty over the box of the bounds
    assert by_settled.max() > 0.05, f"looseness: {by_settled.max():.3f}, {by_bound.max():.3f}"
