"""Planted bugs: each case breaks one shared function and names the law that must notice."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import blackjax_ext
from blackjax_ext import metrics
from blackjax_ext.mcmc import (
    auto_mala,
    auto_step,
    emulated,
    fmala,
    langevin,
    pc_line_fmala,
    tangents,
)
from blackjax_ext.metrics import factors
from blackjax_ext.types import select
from tests.laws import costs, jax_contracts, laws, proposal, reductions, samplers
from tests.laws.laws import SMALL

TRUE = {
    "log_ratio": langevin.log_ratio,
    "increment": langevin.increment,
    "residual": langevin.residual,
    "accept": langevin.accept,
    "draw": tangents.draw,
    "absolute": metrics.absolute,
    "init": fmala.init,
}


def accept_everything(rng_key, log_ratio, end_logdensity, end, start):
    """The accept step is deleted; the acceptance rate is still reported."""
    _, *decision = TRUE["accept"](rng_key, log_ratio, end_logdensity, end, start)
    return end, *decision


def accept_without_a_check(rng_key, log_ratio, end_logdensity, end, start):
    """A NaN reaches the acceptance probability."""
    end, probability, is_accepted, _ = TRUE["accept"](rng_key, log_ratio, jnp.zeros(()), end, start)
    return end, probability, is_accepted, jnp.zeros_like(is_accepted)


def accept_but_keep_the_tangent(rng_key, log_ratio, end_logdensity, end, start):
    """An accepted move keeps the old tangent with its old slope."""
    end = end._replace(tangents=start.tangents, slopes=start.slopes)
    return TRUE["accept"](rng_key, log_ratio, end_logdensity, end, start)


def accept_but_replace_the_tangent_always(rng_key, log_ratio, end_logdensity, end, start):
    """A rejected move takes the tangent and the slope of the proposal."""
    start = start._replace(tangents=end.tangents, slopes=end.slopes)
    return TRUE["accept"](rng_key, log_ratio, end_logdensity, end, start)


def accept_with_a_used_key(rng_key, *arguments):
    """The key of the decision also makes something else."""
    jax.random.normal(rng_key)
    return TRUE["accept"](rng_key, *arguments)


def accept_and_promote(*arguments):
    """The acceptance probability is always double precision."""
    state, probability, *rest = TRUE["accept"](*arguments)
    return state, probability.astype(jnp.float64), *rest


def reverse_step_off_by_5_percent(r, start, end, step_size):
    """The reverse density has a slightly longer step."""
    forward = langevin.residual(r, start, step_size)
    backward = langevin.residual(-r, end, 1.05 * step_size)
    return without_squares(r, start, end) + 0.5 * (forward @ forward - backward @ backward)


def reverse_density_dropped(r, start, end, step_size):
    """Metropolis without Hastings."""
    return end.logdensity - start.logdensity


def without_squares(r, start, end):
    """Target and determinants of the log ratio."""
    dets = 0.5 * (end.metric.log_det(r.size) - start.metric.log_det(r.size))
    return end.logdensity - start.logdensity + dets


def determinants_dropped(r, start, end, step_size):
    """The proposal densities are compared without their normalizing constants."""
    dets = 0.5 * (end.metric.log_det(r.size) - start.metric.log_det(r.size))
    return TRUE["log_ratio"](r, start, end, step_size) - dets


def determinant_of_one_dimension(r, start, end, step_size):
    """The determinant of a scalar metric is not raised to the number of dimensions."""
    dets = 0.5 * (end.metric.log_det(r.size) - start.metric.log_det(r.size))
    return TRUE["log_ratio"](r, start, end, step_size) - dets * (1 - 1 / r.size)


def stale_slope(r, start, end, step_size):
    """The reverse drift is that of the start."""
    return TRUE["log_ratio"](r, start, end._replace(gradient=start.gradient), step_size)


def stale_metric(r, start, end, step_size):
    """The reverse metric is that of the start."""
    return TRUE["log_ratio"](r, start, end._replace(metric=start.metric), step_size)


def reverse_along_the_old_tangent(r, start, end, step_size):
    """The reverse slope belongs to the old tangent: the projection of the new drift on it."""
    along = start.gradient / (jnp.linalg.norm(start.gradient) + 1e-12)
    old = end._replace(gradient=(end.gradient @ along) * along)
    return TRUE["log_ratio"](r, start, old, step_size)


def sign_of_the_reverse_drift(r, start, end, step_size):
    """The reverse move is scored as a move in the same direction."""
    forward, backward = (langevin.residual(r, point, step_size) for point in (start, end))
    return without_squares(r, start, end) + 0.5 * (forward @ forward - backward @ backward)


def prior_like_term_left_out(r, start, end, step_size):
    """The log density at the start counts for nine tenths."""
    return TRUE["log_ratio"](r, start, end, step_size) + 0.1 * start.logdensity


def drift_twice_as_long(noise, point, step_size):
    """The proposal drifts by e^2 where its density says e^2/2."""
    return 2.0 * TRUE["increment"](jnp.zeros_like(noise), point, step_size) + (
        TRUE["increment"](noise, point._replace(gradient=jnp.zeros_like(noise)), step_size)
    )


def noise_not_rescaled(noise, point, step_size):
    """The noise of the proposal ignores the metric."""
    drift = TRUE["increment"](jnp.zeros_like(noise), point, step_size)
    return drift + step_size * noise


def half_noise(noise, point, step_size):
    """The noise is off by 5 %."""
    return TRUE["increment"](0.95 * noise, point, step_size)


def drift_with_e_squared(r, point, step_size):
    """The density of the proposal has a drift of e^2."""
    return TRUE["residual"](r, point._replace(gradient=2.0 * point.gradient), step_size)


def draw_that_looks_at_the_position(rng_key, num_tangents, like, law):
    """Tangents prefer the coordinates that are large here.

    This breaks the line samplers, which use one frame at both ends. FMALA draws at each end and
    stays exact: its drift is then some function of the position and of independent signs.
    """
    frame = TRUE["draw"](rng_key, num_tangents, like, law) * jnp.exp(like)
    return frame / jnp.linalg.norm(frame, axis=1, keepdims=True)


def draw_unnormalized(rng_key, num_tangents, like, law):
    """Tangents are 5 % too long: exact still, but K = D is no longer MALA."""
    return 1.05 * TRUE["draw"](rng_key, num_tangents, like, law)


def draw_in_float32(rng_key, num_tangents, like, law):
    """Tangents are single precision whatever the position is."""
    return TRUE["draw"](rng_key, num_tangents, like, law).astype(jnp.float32)


def floor_on_one_end() -> Callable:
    """Every second call, the one at the end of the move, has no floor."""
    calls = []

    def absolute(curvature, floor):
        calls.append(floor)
        return TRUE["absolute"](curvature, floor if len(calls) % 2 else 1e-3)

    return absolute


def unsigned_curvature(curvature, floor):
    """Negative curvature becomes the floor instead of its absolute value."""
    return TRUE["absolute"](jnp.maximum(curvature, 0.0), floor)


def start_along_the_first_axis(position, logdensity_fn, rng_key=None, *arguments, **named):
    """A start without a key has a fixed tangent, and moves along it at once."""
    state = TRUE["init"](position, logdensity_fn, rng_key, *arguments, **named)
    axis = jnp.zeros_like(state.tangents).at[:, 0].set(1.0)
    _, slopes = tangents.slopes(logdensity_fn, state.position, axis)
    return state._replace(tangents=axis, slopes=slopes)


def start_with_no_slope(*arguments, **named):
    """A start without a key has a slope of zero: a random walk with a Langevin reverse."""
    state = TRUE["init"](*arguments, **named)
    return state._replace(slopes=jnp.zeros_like(state.slopes))


def second_evaluation(*arguments):
    """The density is evaluated once more than needed."""
    logdensity_fn, x, directions = arguments
    logdensity_fn(x)
    return TRUE_SLOPES(logdensity_fn, x, directions)


def slopes_by_reverse_mode(logdensity_fn, x, directions):
    """The slopes come from a gradient."""
    value, gradient = jax.value_and_grad(logdensity_fn)(x)
    return value, directions @ gradient


def another_floor_at_the_end(r, start, end, step_size):
    """The reverse metric has a floor of its own."""
    values = jnp.sum(end.metric.inverse_sqrt**2, axis=0) ** -1.0
    vectors = end.metric.inverse_sqrt * values**0.5
    floored = factors.from_eigen(partial(jnp.maximum, 1.0), values, vectors)
    return TRUE["log_ratio"](r, start, end._replace(metric=floored), step_size)


def half_the_drift_at_the_end(r, start, end, step_size):
    """The reverse drift counts for half: as if its curvature terms were another sampler's."""
    return TRUE["log_ratio"](r, start, end._replace(gradient=0.5 * end.gradient), step_size)


def root_not_transposed(self, g):
    """The drift of the cached metric is taken by the wrong side of its root."""
    return self.inverse_sqrt @ self.outer.inverse_sqrt_transpose_times(g)


def one_end_for_both(self, *arguments, **options):
    """The metric is that of the origin, wherever it is asked for: exact, but another sampler."""
    logdensity_fn, position, *rest = arguments
    local = TRUE_EVALUATE(self, logdensity_fn, position, *rest, **options)
    origin = jax.tree.map(jnp.zeros_like, position)
    return local._replace(metric=TRUE_EVALUATE(self, logdensity_fn, origin, *rest).metric)


def no_way_back(found, log_ratio, band):
    """The way back is taken to select the same step."""
    return found._replace(stage=jnp.int32(auto_step.FINISHED), is_confirmed=jnp.array(True))


def one_sided_distance(log_ratio):
    """A gain is never too large: what is seen from the other end as a loss."""
    return jnp.where(jnp.isnan(log_ratio), jnp.inf, jnp.maximum(-log_ratio, 0.0))


def way_back_from_the_start(found, start):
    """The trials of the way back begin where those of the way there did."""
    return start


def momentum_kept_on_rejection(is_accepted, proposal, start):
    """A rejected move goes on in the same direction."""
    end = select(is_accepted, proposal, start)
    return end._replace(momentum=jnp.where(is_accepted, -1.0, 1.0) * end.momentum)


def gain_without_momentum(start, end):
    """The kinetic energy is left out."""
    return end.logdensity - start.logdensity


def upside_down(end, start):
    """The ratio of the emulator is that of the way back."""
    return start - end


def emulator_left_out(end, start):
    """Trajectories on the emulator are accepted as if their proposal were symmetric."""
    return jnp.zeros_like(end - start)


def another_emulator(end, start):
    """The emulator was fitted anew after the trajectories: its log density is a tenth higher."""
    return 1.1 * (end - start)


TRUE_EVALUATE = metrics.HessianMetric.evaluate
TRUE_SLOPES = tangents.slopes
SHORT = SMALL._replace(num_steps=1)
LONG = SMALL._replace(num_steps=30)


def with_following_metric(self, logdensity_fn, step_size=0.5, inverse_mass_matrix=None):
    """The cached metric keeps following the chain, as ALSMMALA was published."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return blackjax_ext.alsmmala(
            logdensity_fn, step_size, inverse_mass_matrix, **self.arguments, follow=True
        )


def invariant(case, target, size=SMALL):
    """The law of invariance for one cell of the table."""
    return partial(laws.invariance, case, target, size)


class Mutation(NamedTuple):
    """A function of a module, the bug to put in its place, and the law that must fail."""

    module: object
    name: str
    bug: Callable
    law: Callable
    message: str = "invariance"
    x64: bool = False


RATIO = partial(Mutation, langevin, "log_ratio")
ACCEPT = partial(Mutation, langevin, "accept")
INCREMENT = partial(Mutation, langevin, "increment")
EMULATOR = partial(Mutation, emulated, "emulator_ratio")
DRAW = partial(Mutation, tangents, "draw")
AUTO = partial(Mutation, auto_step)
ABSOLUTE = partial(Mutation, pc_line_fmala, "absolute")
frame = reductions.FULL_FRAMES

MUTATIONS = {
    "accept_deleted_mala": ACCEPT(accept_everything, invariant("mala", "log_gamma")),
    "accept_deleted_emulated": ACCEPT(accept_everything, invariant("emulated", "log_gamma")),
    "emulator_upside_down": EMULATOR(upside_down, invariant("emulated", "log_gamma")),
    "emulator_left_out": EMULATOR(emulator_left_out, invariant("emulated", "log_gamma")),
    "emulator_changed": EMULATOR(another_emulator, invariant("emulated", "normal")),
    "accept_deleted_fmala": ACCEPT(accept_everything, invariant("fmala", "log_gamma")),
    "accept_deleted_line": ACCEPT(accept_everything, invariant("line", "normal")),
    "accept_deleted_pc_line": ACCEPT(accept_everything, invariant("pc_line", "loop")),
    "reverse_step_mala": RATIO(reverse_step_off_by_5_percent, invariant("mala", "log_gamma")),
    "reverse_step_fmala": RATIO(reverse_step_off_by_5_percent, invariant("fmala", "log_gamma")),
    "reverse_step_line": RATIO(reverse_step_off_by_5_percent, invariant("line", "log_gamma")),
    "reverse_step_line_pair": RATIO(
        reverse_step_off_by_5_percent, invariant("line_pair", "funnel")
    ),
    "reverse_step_pc_fmala": RATIO(
        reverse_step_off_by_5_percent, invariant("pc_fmala", "log_gamma")
    ),
    "reverse_step_pc_line": RATIO(reverse_step_off_by_5_percent, invariant("pc_line", "log_gamma")),
    "reverse_density_dropped": RATIO(reverse_density_dropped, invariant("line", "log_gamma")),
    "determinant_pc_fmala": RATIO(determinants_dropped, invariant("pc_fmala", "log_gamma")),
    "determinant_pc_line": RATIO(determinants_dropped, invariant("pc_line", "log_gamma")),
    "determinant_pc_line_pair": RATIO(determinants_dropped, invariant("pc_line_pair", "funnel")),
    "determinant_of_one_dimension": RATIO(
        determinant_of_one_dimension, invariant("pc_fmala", "log_gamma")
    ),
    "stale_slope_mala": RATIO(stale_slope, invariant("mala", "log_gamma")),
    "stale_slope_fmala": RATIO(stale_slope, invariant("fmala", "log_gamma")),
    "stale_slope_line": RATIO(stale_slope, invariant("line", "log_gamma")),
    "stale_metric_pc_line": RATIO(stale_metric, invariant("pc_line", "log_gamma")),
    "old_tangent_fmala": RATIO(reverse_along_the_old_tangent, invariant("fmala", "log_gamma")),
    "reverse_sign": RATIO(sign_of_the_reverse_drift, invariant("line", "log_gamma")),
    "target_tempered": RATIO(prior_like_term_left_out, invariant("line", "normal")),
    "drift_doubled": INCREMENT(drift_twice_as_long, invariant("line", "log_gamma")),
    "noise_not_rescaled_pc_line": INCREMENT(noise_not_rescaled, invariant("pc_line", "log_gamma")),
    "noise_off_by_5_percent": INCREMENT(half_noise, invariant("line", "log_gamma")),
    "floor_on_one_end": ABSOLUTE(floor_on_one_end(), invariant("pc_line", "funnel")),
    "tangent_kept_on_acceptance": ACCEPT(
        accept_but_keep_the_tangent, invariant("fmala", "log_gamma")
    ),
    "tangent_replaced_on_rejection": ACCEPT(
        accept_but_replace_the_tangent_always, invariant("fmala", "log_gamma")
    ),
    "tangent_law_line": DRAW(draw_that_looks_at_the_position, invariant("line", "log_gamma")),
    "keyless_start_fixed": Mutation(
        fmala.fmala,
        "init",
        start_along_the_first_axis,
        invariant("fmala_keyless", "log_gamma", SHORT),
    ),
    "keyless_start_zero": Mutation(
        fmala.fmala, "init", start_with_no_slope, invariant("fmala_keyless", "log_gamma", SHORT)
    ),
    "accept_deleted_smmala": ACCEPT(accept_everything, invariant("smmala", "log_gamma")),
    "accept_deleted_amsmmala": ACCEPT(accept_everything, invariant("amsmmala", "log_gamma")),
    "reverse_step_smmala": RATIO(reverse_step_off_by_5_percent, invariant("smmala", "log_gamma")),
    "reverse_step_mmala": RATIO(reverse_step_off_by_5_percent, invariant("mmala", "funnel")),
    "determinant_smmala": RATIO(determinants_dropped, invariant("smmala", "log_gamma")),
    "determinant_hp_mala": RATIO(determinants_dropped, invariant("hp_mala", "funnel")),
    "determinant_smmala_fisher": RATIO(
        determinants_dropped, invariant("smmala_fisher", "log_gamma")
    ),
    "determinant_alsmmala": RATIO(determinants_dropped, invariant("alsmmala", "log_gamma")),
    "stale_metric_smmala": RATIO(stale_metric, invariant("smmala", "log_gamma")),
    "stale_metric_mmala": RATIO(stale_metric, invariant("mmala_fisher", "log_gamma")),
    "stale_slope_smmala": RATIO(stale_slope, invariant("smmala", "log_gamma")),
    "floor_at_the_end": RATIO(another_floor_at_the_end, invariant("hp_mala", "log_gamma")),
    "curvature_at_one_end": RATIO(half_the_drift_at_the_end, invariant("mmala", "log_gamma")),
    "metric_follows_the_chain": Mutation(
        samplers.Case,
        "on",
        with_following_metric,
        invariant("alsmmala", "funnel", LONG),
    ),
    "cached_root_not_transposed": Mutation(
        metrics.Composed,
        "inverse_sqrt_transpose_times",
        root_not_transposed,
        reductions.never_refreshed_is_mala,
        "Not equal",
        True,
    ),
    "metric_of_another_place": Mutation(
        metrics.HessianMetric,
        "evaluate",
        one_end_for_both,
        partial(reductions.metric_is_langevin, "softabs"),
        "Not equal",
        True,
    ),
    "divergence_dropped": Mutation(
        metrics.HessianMetric,
        "_divergence",
        lambda self, flat_fn, x, *rest: jnp.zeros_like(x),
        partial(reductions.curved_is_langevin, metrics.softabs_hessian(2.0)),
        "Not equal",
        True,
    ),
    "no_way_back": AUTO("go_back", no_way_back, invariant("auto_mala", "log_gamma")),
    "one_sided_band": AUTO("distance", one_sided_distance, invariant("auto_mala", "log_gamma")),
    "way_back_from_the_start": AUTO(
        "origin", way_back_from_the_start, invariant("auto_mala", "log_gamma")
    ),
    "momentum_kept": Mutation(
        auto_mala,
        "accept_or_flip",
        momentum_kept_on_rejection,
        invariant("auto_mala_dense", "funnel"),
    ),
    "momentum_left_out": AUTO(
        "log_joint_ratio", gain_without_momentum, invariant("auto_mala_keyless", "log_gamma")
    ),
    "antisymmetry": RATIO(
        reverse_step_off_by_5_percent,
        partial(proposal.antisymmetry, 1, 3, 0.5, "dense", "diagonal"),
        "antisymmetry",
        True,
    ),
    "determinant_against_scipy": RATIO(
        determinants_dropped,
        partial(proposal.log_ratio_is_made_of_densities, 1, 3, 0.5, "dense", "diagonal"),
        "log ratio",
        True,
    ),
    "residual_drift": Mutation(
        langevin,
        "residual",
        drift_with_e_squared,
        partial(proposal.residual_inverts_increment, 1, 3, 0.5, "dense"),
        "residual",
        True,
    ),
    "increment_against_density": INCREMENT(
        half_noise,
        partial(proposal.density_has_the_moments_of_the_increments, "dense", 0.8),
        "do not follow",
        True,
    ),
    "negative_curvature_floored": ABSOLUTE(
        unsigned_curvature,
        partial(reductions.full_frame_is_langevin, *frame["pc_line"]),
        "Not equal",
        True,
    ),
    "tangents_too_long": DRAW(
        draw_unnormalized,
        partial(reductions.full_frame_is_langevin, *frame["line"]),
        "Not equal",
        True,
    ),
    "tangents_too_long_blackjax": DRAW(
        draw_unnormalized,
        partial(reductions.full_frame_is_blackjax_mala, *frame["fmala"][:2]),
        "Not equal",
        True,
    ),
    "preconditioner_of_the_move_dropped": Mutation(
        metrics.Dense,
        "inverse_sqrt_times",
        lambda self, z: z if z.ndim == 1 else z @ self.inverse_sqrt.T,
        partial(reductions.preconditioner_is_whitening, "fmala"),
        "Not equal",
        True,
    ),
    "preconditioner_not_transposed": Mutation(
        metrics.Dense,
        "inverse_sqrt_transpose_times",
        lambda self, g: g @ self.inverse_sqrt.T,
        partial(reductions.preconditioner_is_whitening, "mala"),
        "Not equal",
        True,
    ),
    "nan_not_reported": ACCEPT(
        accept_without_a_check, partial(jax_contracts.rejects_nan, "line", False), "NaN"
    ),
    "key_used_twice": ACCEPT(
        accept_with_a_used_key, partial(jax_contracts.uses_keys_once, "fmala"), "consumed"
    ),
    "acceptance_promoted": ACCEPT(
        accept_and_promote,
        partial(jax_contracts.keeps_dtype, "line", jnp.dtype("float32")),
        "dtype",
        True,
    ),
    "one_evaluation_too_many": Mutation(
        tangents,
        "slopes",
        second_evaluation,
        partial(costs.costs_what_it_says, "line"),
        "cost",
    ),
    "primal_not_shared": Mutation(
        tangents,
        "slopes",
        lambda f, x, directions: tuple(
            value[0] if i == 0 else value
            for i, value in enumerate(
                jax.vmap(lambda y, d: jax.jvp(f, (y,), (d,)))(x + 0 * directions, directions)
            )
        ),
        partial(costs.shares_the_primal, "fmala_pair"),
        "cost",
    ),
    "reverse_mode": Mutation(
        tangents,
        "slopes",
        slopes_by_reverse_mode,
        partial(costs.samples_without_reverse_mode, "line"),
        "Reverse-mode",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bug_is_found(name, monkeypatch):
    mutation = MUTATIONS[name]
    monkeypatch.setattr(mutation.module, mutation.name, mutation.bug)
    with jax.enable_x64(mutation.x64), pytest.raises(Exception, match=mutation.message):
        mutation.law()


# the law of invariance is seen to hold for every case in test_invariance
OTHER = [name for name, mutation in MUTATIONS.items() if mutation.message != "invariance"]


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.statistical
def test_law_holds_without_the_bug(name):
    with jax.enable_x64(MUTATIONS[name].x64):
        MUTATIONS[name].law()
