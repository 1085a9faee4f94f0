"""Chains through NumPyro's kernel interface, with compilation, warm-up and sampling timed apart."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.timing import timed

__all__ = ["Run", "best_step_size", "run_chains", "worst_errors"]


@dataclasses.dataclass
class Run:
    """What chains did.

    draws, fields
        Unconstrained draws and extra fields by name, (chains, draws, ...).
    compilation, warmup, sampling
        Seconds; the search for a start counts as compilation.
    """

    draws: dict[str, np.ndarray]
    fields: dict[str, np.ndarray]
    compilation: float
    warmup: float
    sampling: float

    @property
    def ess(self) -> float:
        """Least bulk effective sample size."""
        return least_ess(self.draws)

    @property
    def rhat(self) -> float:
        """Worst R-hat."""
        return worst_rhat(self.draws)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each coordinate of all sites, all chains together."""
        flat = [v.reshape(v.shape[0] * v.shape[1], -1) for v in self.draws.values()]
        every = np.concatenate(flat, axis=1).astype(np.float64)
        return every.mean(0), every.std(0)


def worst_errors(
    found: tuple[np.ndarray, np.ndarray], truth: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float]:
    """Largest error of a mean, in standard deviations, and of a standard deviation, relative."""
    (mean, sd), (true_mean, true_sd) = found, truth
    of_mean, of_sd = np.abs(mean - true_mean) / true_sd, np.abs(sd / true_sd - 1)
    return float(of_mean.max()), float(of_sd.max())


def run_chains(
    kernel: Any,
    data: tuple,
    num_warmup: int,
    num_samples: int,
    num_chains: int = 4,
    fields: tuple[str, ...] = (),
    seed: int = 0,
    init: Any = None,
    clock: Callable[[], float] = time.perf_counter,
    repeats: int = 1,
) -> Run:
    """Vectorized chains of `kernel` on its model with the arguments `data`.

    `fields` may have dots, as extra fields do. `init` holds unconstrained starts, (chains, ...);
    None leaves them to the kernel. `clock` gives the seconds: `time.process_time` for the
    processor, which other processes do not change. The same draws are made `repeats` times, and the
    least time is that of the sampling.
    """

    def collect(data, state, _):
        state = kernel.sample(state, data, {})
        return state, (state.z, {name: attrgetter(name)(state) for name in fields})

    def scan(length, collects):
        def run(state, data):
            state, collected = jax.lax.scan(partial(collect, data), state, length=length)
            return (state, collected) if collects else state

        return jax.jit(run).lower(first, data).compile()

    keys = jax.random.split(jax.random.key(seed), num_chains)
    start = clock()
    first = kernel.init(keys, num_warmup, init, data, {})
    warm, draw = scan(num_warmup, False), scan(num_samples, True)
    compilation = clock() - start
    state, warmup = timed(warm, first, data, clock=clock)
    (_, collected), sampling = timed(draw, state, data, clock=clock)
    again = [timed(draw, state, data, clock=clock)[1] for _ in range(1, repeats)]
    draws, found = jax.tree.map(lambda x: np.moveaxis(np.asarray(x), 0, 1), collected)
    return Run(draws, found, compilation, warmup, min([sampling, *again]))


def programs_of(
    kernel: Any, num_warmup: int, num_draws: int, every: int = 1
) -> tuple[Callable, Callable]:
    """Compiled warm-up and draws of a kernel, ``(state, data)`` to states and evaluations.

    A step counts as many times as the kernel says that it has evaluated the density; of draws one
    of `every` is kept.
    """

    def several(carry, length, data):
        def body(carry, _):
            state, count = carry
            state = kernel.sample(state, data, {})
            return (state, count + state.num_steps), None

        return jax.lax.scan(body, carry, length=length)[0]

    @jax.jit
    def warm(state, data):
        return several((state, jnp.zeros_like(state.num_steps)), num_warmup, data)

    @jax.jit
    def draw(state, data):
        def body(carry, _):
            carry = several(carry, every, data)
            return carry, carry[0].z

        first = state, jnp.zeros_like(state.num_steps)
        return jax.lax.scan(body, first, length=num_draws // every)

    return warm, draw


def best_step_size(step_sizes: np.ndarray, losses: Any) -> float:
    """The step size with the least of the losses (sizes, ...), averaged over seeds, if finite."""
    mean = np.asarray(losses, float).reshape(len(step_sizes), -1).mean(1)
    return float(step_sizes[np.argmin(np.where(np.isfinite(mean), mean, np.inf))])
