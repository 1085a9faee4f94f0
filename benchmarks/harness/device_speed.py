"""Steps of every kernel on one regression, for one chain and for many: programs, times, draws."""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import blackjax_ext
from benchmarks.harness.diagnostics import least_ess, least_ess_of_squares
from benchmarks.harness.timing import timed
from blackjax_ext import acceptance, families, metrics, potentials

__all__ = [
    *("KERNELS", "Kernel", "Regression", "Speed", "compiled", "effective", "expanded", "measure"),
    "tuned",
]

NUM_KEPT = 64  # chains whose draws are looked at
NUM_TUNINGS = 12


class Kernel(NamedTuple):
    """How a kernel is run.

    make
        ``(posterior, step_size) -> SamplingAlgorithm``.
    cost
        Gradients of a step (or directional derivatives, or Hessians), as words and a number; the
        number is None where the kernel says it.
    target
        Acceptance rate that the step size is tuned for, None for a step size of one.
    most_chains
        Beyond that there is no memory for its Hessians.
    """

    make: Callable[[Any, Any], Any]
    cost: tuple[float | None, str]
    target: float | None
    most_chains: int = 1_000_000


class Regression(NamedTuple):
    """Logistic regression with a standard normal prior: a pytree, so that no program holds rows.

    x, y
        Rows and labels.
    mode, root
        The mode, and a root of the posterior covariance there.
    expansion
        Of the rows at the mode, for the subsampled test.
    """

    x: jax.Array
    y: jax.Array
    mode: jax.Array
    root: jax.Array
    expansion: Any

    def logdensity(self, slope: jax.Array) -> jax.Array:
        """All rows, and the prior."""
        logits = self.x @ slope
        return jnp.sum(self.y * logits - jax.nn.softplus(logits)) - 0.5 * slope @ slope

    @property
    def metric(self) -> metrics.Factor:
        """That of the normal approximation."""
        return self.expansion.metric

    def draw(self, num_chains: int) -> jax.Array:
        """Positions from the normal approximation."""
        noise = jax.random.normal(jax.random.key(7), (num_chains, self.mode.size))
        return self.mode + noise @ self.root.T


def logprior(slope: jax.Array) -> jax.Array:
    """Standard normal."""
    return -0.5 * slope @ slope


def expanded(num_rows: int, size: int) -> Regression:
    """A regression of that size, drawn on the device, with its expansion."""
    key_x, key_y, key_slope = jax.random.split(jax.random.key(11), 3)
    x = jax.random.normal(key_x, (num_rows, size))
    truth = 0.5 * jax.random.normal(key_slope, (size,))
    y = jax.random.bernoulli(key_y, jax.nn.sigmoid(x @ truth)).astype(x.dtype)
    rows = potentials.linear_predictor(logprior, families.bernoulli(), (x, y))
    expansion = potentials.expand(rows, jnp.zeros(size))
    return Regression(x, y, expansion.position, expansion.metric.root(), expansion)


def on_density(name: str, **parameters: Any) -> Callable:
    """A kernel of the package on the log density."""

    def make(posterior, step_size):
        algorithm = getattr(blackjax_ext, name)
        return algorithm(posterior.logdensity, step_size, posterior.metric, **parameters)

    return make


def nuts(posterior: Regression, step_size: Any) -> Any:
    """BlackJAX's, with the same metric."""
    covariance = jnp.matmul(posterior.root, posterior.root.T, precision="highest")
    return blackjax.nuts(posterior.logdensity, step_size, covariance)


def subsampled(posterior: Regression, step_size: Any) -> Any:
    """AMAGOLD with the test that reads a few rows, and no row beside."""
    expansion = posterior.expansion
    return blackjax_ext.amagold(
        potentials.expanded_minibatch(expansion, 0),
        step_size,
        expansion.metric,
        num_integration_steps=10,
        friction=0.0,
        acceptance=acceptance.subsampled(expansion),
    )


GRADIENT, JVP, HESSIAN = "gradients", "tangents", "gradients with a Hessian"
KERNELS = {
    "NUTS (BlackJAX)": Kernel(nuts, (None, GRADIENT), 0.8),
    "MALA": Kernel(on_density("mala"), (1, GRADIENT), 0.574),
    "FMALA, 4 tangents": Kernel(on_density("fmala", num_tangents=4), (4, JVP), 0.574),
    "AMAGOLD, subsampled": Kernel(subsampled, (0, GRADIENT), 0.8),
    "AutoMALA": Kernel(on_density("auto_mala"), (2, GRADIENT), None),
    "SMMALA": Kernel(on_density("smmala"), (1, HESSIAN), 0.7, 1_024),
    "LineFMALA": Kernel(on_density("line_fmala"), (2, JVP), 0.574),
    "PCFMALA": Kernel(on_density("pc_fmala"), (1, JVP), 0.574),
    "PCLineFMALA": Kernel(on_density("pc_line_fmala"), (2, JVP), 0.7),
    "RandomWalk": Kernel(on_density("random_walk"), (1, "evaluations"), 0.234),
    "HPMALA": Kernel(on_density("hp_mala"), (1, HESSIAN), 0.7, 1_024),
    "AMSMMALA": Kernel(on_density("amsmmala"), (1, "evaluations"), 0.234, 1_024),
    "ALSMMALA": Kernel(on_density("alsmmala"), (1, GRADIENT), 0.574, 1_024),
    "MMALA": Kernel(on_density("mmala"), (1, HESSIAN), 0.7, 1_024),
}


class Steps(NamedTuple):
    """What a program of some steps gives: positions after them, draws of a few chains, rates."""

    x: jax.Array
    draws: jax.Array
    acceptance: jax.Array
    gradients: jax.Array


def run(
    kernel: Kernel, num_steps: int, posterior: Regression, step_size: Any, x: Any, rng_key: Any
) -> Steps:
    """Steps of all chains from positions (C, D)."""
    sampler = kernel.make(posterior, step_size)
    key_init, key_steps = jax.random.split(rng_key)
    states = jax.vmap(sampler.init)(x, jax.random.split(key_init, len(x)))

    def step(states, key):
        states, info = jax.vmap(sampler.step)(jax.random.split(key, len(x)), states)
        count = getattr(info, "num_integration_steps", 0.0) if kernel.cost[0] is None else 0.0
        facts = jnp.mean(info.acceptance_rate), jnp.mean(jnp.asarray(count, x.dtype))
        return states, (states.position[:NUM_KEPT], *facts)

    states, (draws, rates, counts) = jax.lax.scan(
        step, states, jax.random.split(key_steps, num_steps)
    )
    each = jnp.mean(counts) if kernel.cost[0] is None else jnp.asarray(float(kernel.cost[0]))
    return Steps(states.position, jnp.swapaxes(draws, 0, 1), jnp.mean(rates), each)


def compiled(
    names: list[str],
    posterior: Regression,
    num_chains: int,
    num_steps: int,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """The programs of some kernels, all compiled at once; an error in the place of one.

    What takes longer than `seconds` is not waited for.
    """
    arguments = posterior, jnp.float32(1.0), posterior.draw(num_chains), jax.random.key(0)

    def compile_one(name):
        try:
            return jax.jit(partial(run, KERNELS[name], num_steps)).lower(*arguments).compile()
        except Exception as error:  # one that fails leaves the others
            return error

    pool = ThreadPoolExecutor(8)
    running = {name: pool.submit(compile_one, name) for name in names}
    done, _ = wait(running.values(), None if seconds == math.inf else max(seconds, 0.0))
    pool.shutdown(wait=False, cancel_futures=True)
    late = TimeoutError(f"not compiled within {seconds:.0f} s")
    return {name: one.result() if one in done else late for name, one in running.items()}


def tuned(
    program: Callable, posterior: Regression, x: jax.Array, target: float | None, seconds: float
) -> float:
    """The step size of an acceptance rate near `target`; one where there is none.

    After so many seconds it is what it is.
    """
    step_size, end = 1.0, time.monotonic() + seconds
    if target is None:
        return step_size
    for i in range(NUM_TUNINGS):
        if time.monotonic() > end:
            break
        found = program(posterior, jnp.float32(step_size), x, jax.random.key(100 + i))
        step_size *= float(np.exp(1.5 * (float(found.acceptance) - target) / (1 + i / 4)))
    return step_size


class Speed(NamedTuple):
    """What was measured: seconds of a step, gradients a second, acceptance."""

    step: float
    gradients: float
    acceptance: float


def measure(
    program: Callable, posterior: Regression, step_size: float, x: jax.Array, seconds: float
) -> Speed:
    """Run a compiled program again and again for about so many seconds, after once for nothing."""
    arguments = posterior, jnp.float32(step_size)
    x = program(*arguments, x, jax.random.key(1)).x
    spent, rates, gradients, end = [], [], [], time.monotonic() + seconds
    while not spent or (len(spent) < 200 and time.monotonic() < end):
        found, took = timed(program, *arguments, x, jax.random.key(2 + len(spent)))
        x = found.x
        spent.append(took)
        rates.append(float(found.acceptance))
        gradients.append(float(found.gradients))
    step = float(np.mean(spent)) / found.draws.shape[1]
    return Speed(step, len(x) * float(np.mean(gradients)) / step, float(np.mean(rates)))


def effective(name: str, posterior: Regression, num_steps: int, num_chains: int) -> list[float]:
    """Effective draws of a step, of the worst coordinate and of the worst square; acceptance."""
    x = posterior.draw(num_chains)
    program = jax.jit(partial(run, KERNELS[name], min(num_steps, 100)))
    step_size = tuned(program, posterior, x, KERNELS[name].target, math.inf)
    blocks, rates = [], []
    for i in range(max(num_steps // 100, 1)):
        found = program(posterior, jnp.float32(step_size), x, jax.random.key(1 + i))
        x = found.x
        blocks.append(np.asarray(found.draws, np.float64))
        rates.append(float(found.acceptance))
    draws = np.concatenate(blocks, axis=1)
    num_draws = draws.shape[0] * draws.shape[1]
    of_a_step = [size(draws) / num_draws for size in (least_ess, least_ess_of_squares)]
    return [*of_a_step, float(np.mean(rates))]
