"""The table of samplers: one case for each configuration that has to obey the laws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

import blackjax_ext
from blackjax_ext import metrics, schedules
from tests.laws.targets import TARGETS, Target


class Case(NamedTuple):
    """One configuration of one sampler.

    algorithm
        Public name in `blackjax_ext`, or an algorithm from elsewhere.
    arguments
        Keyword arguments other than the step size and the preconditioner.
    step_sizes
        For each target, a step size with an acceptance rate near one half; none for "loop" if the
        sampler calls reverse mode, and none where another case says enough.
    dense
        Whether the sampler gets the target's dense preconditioner.
    keyed
        Whether ``init`` is given a key.
    costs
        Calls of the density in the program of a step, all branches together, and highest order of
        derivative.
    fixed
        Fields of the state that are those of a start at the origin, whatever the start is: what an
        adaptation has found before the chain begins.
    share
        Of the chains: fewer where a step lasts as long as that of the slowest chain.
    """

    algorithm: str | Callable
    arguments: dict[str, Any]
    step_sizes: dict[str, float]
    dense: bool = False
    keyed: bool = True
    costs: tuple[int, int] = (1, 1)
    fixed: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def forward_only(self) -> bool:
        """Whether the sampler never calls reverse mode."""
        return self.step_sizes.get("loop") is not None

    def build(self, target: Target, dtype=None):
        """Make the sampler of this case for `target`."""
        metric = jnp.asarray(target.covariance, dtype or jnp.float32) if self.dense else None
        return self.on(target.logdensity, self.step_sizes[target.name], metric)

    def on(self, logdensity_fn, step_size=0.5, inverse_mass_matrix=None):
        """Make the sampler of this case for any density."""
        is_name = isinstance(self.algorithm, str)
        make = getattr(blackjax_ext, self.algorithm) if is_name else self.algorithm
        sampler = make(logdensity_fn, step_size, inverse_mass_matrix, **self.arguments)
        if not self.fixed:
            return sampler

        def init(position, rng_key=None):
            origin = sampler.init(jax.tree.map(jnp.zeros_like, position), rng_key)
            fields = {name: getattr(origin, name) for name in self.fixed}
            return sampler.init(position, rng_key)._replace(**fields)

        return sampler._replace(init=init)


def steps(log_gamma, funnel, normal, loop=None):
    """Name the step sizes of a case."""
    return {"log_gamma": log_gamma, "funnel": funnel, "normal": normal, "loop": loop}


FRESH = {"persistent_tangent": False}
SPHERE = {"tangents": "sphere"}
# a fresh momentum in each step
STILL = {"persistence": 0.0}
PAIR = {"num_tangents": 2}
# a floor that is active on a good part of every skewed target
FLOOR = {"curvature_floor": 0.3}


def information(position):
    """A metric that is no Hessian: any positive definite function of the position is exact."""
    x = jnp.tanh(ravel_pytree(position)[0])
    return jnp.diag(1.0 + x**2) + 0.4 * jnp.outer(x, x)


def wide(position):
    """A normal emulator that is right for no target: any density of which the position is exact."""
    return -0.25 * jnp.sum(ravel_pytree(position)[0] ** 2)


EMULATOR = {"emulator_fn": wide, "walk_probability": 0.2}
EMULATOR |= {"num_trajectories": 2, "num_integration_steps": 3}
FISHER = {"metric_fn": metrics.fisher(information)}
SOFTABS = {"metric_fn": metrics.softabs_hessian(2.0)}
DIAGONAL = {"metric_fn": metrics.diagonal_hessian(0.3)}
HALF = {"schedule": schedules.geometric(0.5)}
CACHED = ("cached",)
LEARNED = ("covariance", "mean")

CASES = {
    "random_walk": Case("random_walk", {}, steps(0.75, 0.54, 0.69, 0.81), costs=(1, 0)),
    "random_walk_dense": Case(
        "random_walk", {}, steps(0.66, 0.53, 0.77, 0.67), dense=True, costs=(1, 0)
    ),
    "emulated": Case("emulated", EMULATOR, steps(0.4, 0.25, 0.25, 0.4), costs=(1, 0)),
    "emulated_dense": Case(
        "emulated", EMULATOR, steps(0.3, 0.25, 0.25, 0.3), dense=True, costs=(1, 0)
    ),
    "mala": Case("mala", {}, steps(1.2, 0.89, 1.1, None)),
    "mala_dense": Case("mala", {}, steps(1.1, 0.87, 1.5, None), dense=True),
    "fmala": Case("fmala", {}, steps(0.92, 0.61, 0.83, 0.97)),
    "fmala_sphere": Case("fmala", SPHERE, steps(0.93, 0.62, 0.84, 0.98)),
    "fmala_pair": Case("fmala", PAIR, steps(1.1, 0.72, 0.99, 1.1)),
    "fmala_pair_sphere": Case("fmala", PAIR | SPHERE, steps(1.1, 0.71, 0.98, 1.1)),
    "fmala_fresh": Case("fmala", FRESH, steps(0.92, 0.63, 0.84, 0.96), costs=(2, 1)),
    "fmala_keyless": Case("fmala", {}, steps(1.0, 0.69, 0.93, 1.1), keyed=False),
    "fmala_dense": Case("fmala", {}, steps(0.8, 0.61, 0.97, 0.81), dense=True),
    "line": Case("line_fmala", {}, steps(1.8, 1.5, 1.7, 2.0), costs=(2, 1)),
    "line_pair": Case("line_fmala", PAIR, steps(1.4, 1.2, 1.3, 1.5), costs=(2, 1)),
    "line_dense": Case("line_fmala", SPHERE, steps(1.6, 1.5, 1.9, 1.6), dense=True, costs=(2, 1)),
    "pc_fmala": Case("pc_fmala", FLOOR, steps(0.86, 0.43, 0.66, 0.68), costs=(1, 2)),
    "pc_fmala_fresh": Case("pc_fmala", FLOOR | FRESH, steps(0.86, 0.42, 0.66, 0.68), costs=(2, 2)),
    "pc_fmala_keyless": Case(
        "pc_fmala", FLOOR, steps(0.97, 0.52, 0.78, 0.83), keyed=False, costs=(1, 2)
    ),
    "pc_fmala_dense": Case(
        "pc_fmala", FLOOR, steps(0.72, 0.39, 0.97, 0.84), dense=True, costs=(1, 2)
    ),
    "pc_line": Case("pc_line_fmala", FLOOR, steps(1.9, 1.6, 1.9, 2.0), costs=(2, 2)),
    "pc_line_pair": Case("pc_line_fmala", FLOOR | PAIR, steps(1.3, 1.1, 1.6, 1.4), costs=(2, 2)),
    "pc_line_dense": Case(
        "pc_line_fmala", FLOOR, steps(1.8, 1.6, 1.9, 1.9), dense=True, costs=(2, 2)
    ),
    "auto_mala": Case("auto_mala", {}, steps(1.6, 1.2, 1.5), share=0.25),
    "auto_mala_dense": Case("auto_mala", {}, steps(1.6, 1.2, 1.8), dense=True, share=0.25),
    "auto_mala_keyless": Case("auto_mala", STILL, steps(1.6, 1.2, 1.5), keyed=False, share=0.25),
    "smmala": Case("smmala", {}, steps(0.62, 0.38, 1.4), costs=(1, 2)),
    "smmala_softabs": Case("smmala", SOFTABS, steps(1.2, 0.73, 1.6), costs=(1, 2)),
    "smmala_diagonal": Case("smmala", DIAGONAL, steps(0.86, 1.2, 1.4), costs=(1, 2)),
    "smmala_fisher": Case("smmala", FISHER, steps(1.4, 0.86, 1.4)),
    "smmala_dense": Case("smmala", SOFTABS, steps(1.0, 0.73, 1.4), dense=True, costs=(1, 2)),
    "hp_mala": Case("hp_mala", {"floor": 0.3}, steps(0.86, 0.45, 1.4), costs=(1, 2)),
    "mmala": Case("mmala", SOFTABS, steps(1.2, 0.86, 1.6), costs=(2, 3)),
    "mmala_fisher": Case("mmala", FISHER, steps(1.2, 0.86, 1.2)),
    "alsmmala": Case(
        "alsmmala",
        SOFTABS | HALF | {"run_length": 2},
        steps(1.2, 0.73, 1.6),
        costs=(3, 2),
        fixed=CACHED,
    ),
    "alsmmala_diagonal": Case(
        "alsmmala", DIAGONAL | HALF, steps(1.0, 0.86, 1.4), costs=(3, 2), fixed=CACHED
    ),
    "amsmmala": Case(
        "amsmmala", SOFTABS | HALF, steps(1.0, 0.62, 1.2), costs=(3, 2), fixed=LEARNED
    ),
}

# every sampler on every target it can be differentiated on
PAIRS = [
    (case, target)
    for case in CASES
    for target in TARGETS
    if CASES[case].step_sizes[target] is not None
]
