"""What an accelerator is asked to hold: millions of rows, particles, a network; and its digits."""

import time
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import blackjax_ext
from benchmarks.harness import device_speed as speed
from benchmarks.harness import models
from benchmarks.harness.timing import timed
from blackjax_ext import families, potentials
from numpyro_fwd import LangevinSMC

__all__ = ["digits", "millions", "network_memory", "particles"]

SIZE = 20
MEMORY = "temp_size_in_bytes"


def millions(num_rows: int, num_chains: int, seconds: float) -> list[list[Any]]:
    """AMAGOLD with the subsampled test, and NUTS, from a start of their own: a row each.

    Seconds of the start (mode, bounds, table), of a step of all chains, and the acceptance rate.
    """
    start = time.perf_counter()
    posterior = speed.expanded(num_rows, SIZE)
    jax.block_until_ready(posterior.expansion.bound)
    began = time.perf_counter() - start
    found = []
    for name, num_steps in (("AMAGOLD, subsampled", 50), ("NUTS (BlackJAX)", 5)):
        program = speed.compiled([name], posterior, num_chains, num_steps)[name]
        if isinstance(program, Exception):
            found.append([name, began, repr(program)[:100]])
            continue
        x = posterior.draw(num_chains)
        step_size = 0.7
        one = speed.measure(program, posterior, step_size, x, seconds / 2)
        found.append([name, began, one.step, one.acceptance])
    return found


def linear(x: Any, y: Any) -> None:
    """Linear regression with unit noise and a standard normal prior: its evidence is known."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ slope, 1.0), obs=y)


def log_evidence(x: np.ndarray, y: np.ndarray) -> float:
    """That of `linear`, in double precision."""
    precision = np.eye(x.shape[1]) + x.T @ x
    mode = np.linalg.solve(precision, x.T @ y)
    fit = y @ y - mode @ precision @ mode
    log_det = np.linalg.slogdet(precision)[1]
    return float(-0.5 * (fit + log_det + y.size * np.log(2 * np.pi)))


def particles(num_particles: int, num_rows: int) -> list[float]:
    """Seconds of the first annealing and of one with another key, and the second's evidence off."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(num_rows, SIZE)).astype(np.float32)
    y = (x @ rng.normal(size=SIZE) * 0.3 + rng.normal(size=num_rows)).astype(np.float32)
    kernel = LangevinSMC(linear)
    data = jnp.asarray(x), jnp.asarray(y)

    def run(seed):
        keys = jax.random.split(jax.random.key(seed), num_particles)
        return kernel.init(keys, 0, None, data, {})

    _, first = timed(run, 0)
    state, second = timed(run, 1)
    found = float(np.ravel(state.log_evidence)[0])
    return [first, second, found - log_evidence(x.astype(float), y.astype(float))]


def network_memory(name: str, depth: int, width: int, num_rows: int) -> list[float]:
    """Weights of a network, MiB of temporary memory of a step, and its milliseconds."""
    position = models.make_network(jax.random.key(1), depth=depth, width=width)
    data = models.network_data(jax.random.key(2), num_rows)
    algorithm = getattr(blackjax_ext, name)
    kernel = algorithm.build_kernel()

    def step(state, rng_key, *data):
        return kernel(rng_key, state, lambda x: models.network_logdensity(x, *data), 1e-4)

    init = partial(algorithm.init, rng_key=jax.random.key(3))
    state = jax.jit(lambda x, *data: init(x, lambda x: models.network_logdensity(x, *data)))(
        position, *data
    )
    program = jax.jit(step).lower(state, jax.random.key(4), *data).compile()
    times = [timed(program, state, jax.random.key(4), *data)[1] for _ in range(4)]
    num_weights = sum(leaf.size for leaf in jax.tree.leaves(position))
    memory = getattr(program.memory_analysis(), MEMORY) / 2**20
    return [float(num_weights), memory, 1e3 * min(times[1:])]


def digits(mean: float, num_rows: int, num_chains: int = 64) -> list[float]:
    """Errors where covariates are `mean` sds from zero: of the energy of chains, of expansions.

    In nats, of the model's own density by default and in full precision; then of the curvature of
    the expansion (one is right), and of the energies that the subsampled test makes of it.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 5)) + mean
    truth = 0.5 * rng.normal(size=5)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-(x - mean) @ truth))).astype(np.float32)
    x = np.concatenate([np.ones((num_rows, 1)), x], 1).astype(np.float32)
    scale = np.float32([1e3, *[10.0] * 5])

    def prior(z):
        return -0.5 * jnp.sum((z / scale) ** 2)

    rows = potentials.linear_predictor(prior, families.bernoulli(), (x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expansion = potentials.expand(rows, jnp.zeros(6))
    anchor, whitener = (
        np.asarray(each, float) for each in (expansion.position, expansion.whitener)
    )
    root = np.linalg.inv(whitener)
    at = (anchor + rng.normal(size=(num_chains, 6)) @ root.T).astype(np.float32)
    w = (at.astype(float) - anchor) @ whitener.T
    wide = x.astype(float)
    share = 1 / (1 + np.exp(-wide @ anchor))
    curvature = root.T @ ((wide.T * (share * (1 - share))) @ wide) @ root
    slope = root.T @ (wide.T @ (share - y))
    of_prior = 0.5 * np.sum((at.astype(float) / scale) ** 2, 1)
    logits = at.astype(float) @ wide.T
    exact = of_prior + np.sum(np.logaddexp(0, logits) - y * logits, 1)
    quadratic = of_prior + w @ slope + 0.5 * np.einsum("ni,ij,nj->n", w, curvature, w)

    def density(z, x, y):
        logits = x @ z
        return jnp.sum(jax.nn.softplus(logits) - y * logits) - prior(z)

    def off(energies, truth):
        error = np.asarray(energies, float) - truth
        return float(np.std(error))

    found = []
    for precision in (None, "highest"):
        with jax.default_matmul_precision(precision):
            found.append(jax.jit(jax.vmap(density, (0, None, None)))(at, x, y))
    of_test = jax.jit(jax.vmap(blackjax_ext.subsampling.expansion.surrogate, (None, 0)))
    return [
        *(off(each, exact) for each in found),
        float(np.abs(np.asarray(expansion.curvature, float) - curvature).max()),
        off(of_test(expansion, at), quadratic),
    ]
