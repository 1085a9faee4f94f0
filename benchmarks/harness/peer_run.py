"""A sampler of a big table in a process of its own.

``python -m benchmarks.harness.peer_run NAME N D`` prints what it found as JSON; `fresh` starts such
a process. `reference` has the posterior's means and standard deviations.
"""

import json
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.cold_run import in_new_process

__all__ = ["EXPANDED", "SAMPLERS", "fresh", "importance", "reference", "table"]

BATCH, STEPS = 30, 5  # of AMAGOLD, as in benchmarks/below_one_pass.py


def table(num_rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and responses of a logistic regression; its prior is standard normal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, size)).astype(np.float32)
    eta = x @ (0.5 * (20 / size) ** 0.5 * rng.normal(size=size))
    return x, (rng.random(num_rows) < 1 / (1 + np.exp(-eta))).astype(np.float32)


# In double precision, on the host


def energies(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Minus the log density at positions (n, D)."""
    total = 0.5 * np.sum(at**2, axis=1)
    for first in range(0, len(y), 20_000):
        part = slice(first, first + 20_000)
        eta = x[part] @ at.T
        total += np.sum(np.logaddexp(0.0, eta), axis=0) - y[part] @ eta
    return total


def mode_of(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode by Newton's method, and a root of the inverse Hessian there."""
    at = np.zeros(x.shape[1])
    for _ in range(12):
        p = 1 / (1 + np.exp(-(x @ at)))
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(len(at))
        at = at - np.linalg.solve(hessian, x.T @ (p - y) + at)
    return at, np.linalg.cholesky(np.linalg.inv(hessian))


def importance(x: np.ndarray, y: np.ndarray, num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the normal at the mode, (num, D), and their weights."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    mode, root = mode_of(x, y)
    z = np.random.default_rng(seed).normal(size=(num, len(mode)))
    draws = mode + z @ root.T
    parts = [energies(x, y, part) for part in np.array_split(draws, max(1, num // 500))]
    return draws, weights_of(0.5 * np.sum(z**2, axis=1) - np.concatenate(parts))


def weights_of(logs: np.ndarray) -> np.ndarray:
    """Normalized weights."""
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def moments(draws: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of weighted draws."""
    mean = weights @ draws
    return mean, np.sqrt(weights @ (draws - mean) ** 2)


def reference(num_rows: int, size: int, num: int) -> dict[str, Any]:
    """Means and sds in double precision by importance, and the ESS of the weights."""
    draws, weights = importance(*table(num_rows, size), num, seed=11)
    mean, sd = moments(draws, weights)
    return {"mean": mean, "sd": sd, "ess": float(1 / np.sum(weights**2))}


# The samplers: a function of the data that gives what `measured` or `weighted` gives


def measured(
    draws: np.ndarray, begun: float, seconds: float, rows: float, first: float | None = None
) -> dict[str, Any]:
    """Of draws (n, D) that took so many `seconds` and `rows` each; all began at `begun`.

    `first` are the seconds of all from a cold process, None for those until now.
    """
    from benchmarks.harness.diagnostics import least_ess

    first = time.perf_counter() - begun if first is None else first
    draws = np.asarray(draws, np.float64)
    is_moved = np.any(draws[1:] != draws[:-1], axis=1)
    return {
        "first": first,
        "sampling": seconds,
        "num": len(draws),
        "ess": least_ess(draws[None]),
        "rows": rows,
        "acceptance": float(is_moved.mean()),
        "mean": draws.mean(0).tolist(),
        "sd": draws.std(0).tolist(),
    }


def weighted(draws: np.ndarray, weights: np.ndarray, begun: float, seconds: float, rows: float):
    """The same of weighted draws."""
    mean, sd = moments(draws, weights)
    ess = float(1 / np.sum(weights**2))
    return {
        "first": time.perf_counter() - begun,
        "sampling": seconds,
        "num": len(draws),
        "ess": ess,
        "rows": rows,
        "acceptance": ess / len(draws),
        "mean": mean.tolist(),
        "sd": sd.tolist(),
    }


def by_kernel(name: str, x: np.ndarray, y: np.ndarray, num: int) -> dict[str, Any]:
    """A kernel of NumPyro's interface: NUTS, or AMAGOLD with a test."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    from benchmarks.harness.runs import run_chains
    from numpyro_fwd import AMAGOLD

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        batch = None if name == "NUTS" else BATCH
        with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])

    begun = time.perf_counter()
    if name == "NUTS":
        kernel, fields, warmup = NUTS(model), ("num_steps",), 200
    else:
        kernel = AMAGOLD(model, acceptance=name, num_integration_steps=STEPS)
        fields, warmup = ("inner.num_rows",) if name == "subsampled" else (), 100
    data = (jnp.asarray(x), jnp.asarray(y))
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=num, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)  # what a user waits for; programs of parts are timed below
    jax.block_until_ready(mcmc.get_samples())
    first = time.perf_counter() - begun
    run = run_chains(kernel, data, warmup, num, 1, fields)
    if name == "NUTS":
        rows = float(run.fields["num_steps"].mean()) * len(y)
    else:
        test = run.fields["inner.num_rows"].mean() if fields else len(y)
        rows = float(test) + BATCH * STEPS
    return measured(run.draws["slope"][0], begun, run.sampling, rows, first)


def expansion_of(x: np.ndarray, y: np.ndarray) -> Any:
    """Mode, curvature and bounds, by blackjax_ext: what all that need a mode are given."""
    import jax.numpy as jnp

    from blackjax_ext import families, potentials

    rows = potentials.linear_predictor(
        lambda z: -0.5 * z @ z, families.bernoulli(), (jnp.asarray(x), jnp.asarray(y))
    )
    return potentials.expand(rows, jnp.zeros(x.shape[1]))


def scanned(step: Any, state: Any, num: int, *shared: Any) -> tuple[Any, float]:
    """What `num` steps collect, and their seconds without compilation; `shared` is no constant."""
    import jax

    from benchmarks.harness.timing import timed

    def run(state, rng_key, *shared):
        return jax.lax.scan(partial(step, *shared), state, jax.random.split(rng_key, num))[1]

    arguments = (state, jax.random.key(1), *shared)
    program = jax.jit(run).lower(*arguments).compile()
    return timed(program, *arguments)


def by_test(
    rule: str,
    proposal: str,
    step_size: float,
    x: np.ndarray,
    y: np.ndarray,
    num: int,
    expansion: Any = None,
) -> dict[str, Any]:
    """Metropolis-Hastings by one of two tests; steps of a walk are over the root of D.

    `expansion` is found anew where it is None.
    """
    import jax.numpy as jnp

    from benchmarks.peers_from_papers import scalable_subsampling as paper

    begun = time.perf_counter()
    expansion = expansion or expansion_of(x, y)
    size, rule = x.shape[1], {"scalable": "weights"}.get(rule, rule)
    scale = step_size / size**0.5 if proposal == "random walk" else step_size

    def step(expansion, state, rng_key):
        state, (_, rows) = paper.build_kernel(expansion, rule, proposal)[1](rng_key, state, scale)
        return state, (state.w, rows)

    first = paper.build_kernel(expansion, rule, proposal)[0](jnp.zeros(size))
    (w, rows), seconds = scanned(step, first, num, expansion)
    root = np.linalg.inv(np.asarray(expansion.whitener, np.float64))
    draws = np.asarray(expansion.position) + np.asarray(w, np.float64) @ root.T
    return measured(draws, begun, seconds, float(np.mean(rows)))


def whitened_data(expansion: Any, x: np.ndarray) -> tuple[Any, Any, Any, np.ndarray]:
    """Rows in whitened coordinates, predictors at the mode, the prior's curvature, the root."""
    import jax.numpy as jnp

    root = np.linalg.inv(np.asarray(expansion.whitener, np.float64))
    rows = jnp.asarray(x @ root, jnp.float32)
    predictors = jnp.asarray(x @ np.asarray(expansion.position), jnp.float32)
    return rows, predictors, jnp.asarray(root.T @ root, jnp.float32), root


def by_langevin(
    step_size: float, x: np.ndarray, y: np.ndarray, num: int, expansion: Any = None
) -> dict[str, Any]:
    """SGLD with control variates; a row of a minibatch counts once, as all do."""
    import jax.numpy as jnp

    from benchmarks.peers_from_papers import langevin

    begun = time.perf_counter()
    expansion = expansion or expansion_of(x, y)
    *data, root = whitened_data(expansion, x)

    def step(rows, predictors, prior, w, rng_key):
        w = langevin.build_kernel(rows, predictors, prior, BATCH)(rng_key, w, step_size)
        return w, w

    w, seconds = scanned(step, jnp.zeros(x.shape[1]), num, *data)
    draws = np.asarray(expansion.position) + np.asarray(w, np.float64) @ root.T
    return measured(draws[num // 100 :], begun, seconds, BATCH)


def by_zig_zag(x: np.ndarray, y: np.ndarray, num: int, expansion: Any = None) -> dict[str, Any]:
    """Zig-Zag with subsampling, one row an event; its path has ten points for a hundred events."""
    import jax.numpy as jnp

    from benchmarks.peers_from_papers import zig_zag

    begun = time.perf_counter()
    expansion = expansion or expansion_of(x, y)
    *data, root = whitened_data(expansion, x)
    size = x.shape[1]
    kernel = zig_zag.build_kernel(*data)

    def step(state, rng_key):
        state = kernel(rng_key, state)
        return state, state

    first = zig_zag.State(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))
    states, seconds = scanned(step, first, num)
    w = zig_zag.on_grid(states, num // 10)
    draws = np.asarray(expansion.position) + w @ root.T
    return measured(draws, begun, seconds, 10.0)


def by_laplace(x: np.ndarray, y: np.ndarray, num: int) -> dict[str, Any]:
    """The normal at the mode with importance weights, in double precision by numpy."""
    begun = time.perf_counter()
    draws, weights = importance(x, y, num, seed=3)
    seconds = time.perf_counter() - begun
    return weighted(draws, weights, begun, seconds, len(y))


def by_pathfinder(x: np.ndarray, y: np.ndarray, num: int) -> dict[str, Any]:
    """BlackJAX's Pathfinder from its defaults with importance weights, in double precision."""
    import blackjax
    import jax
    import jax.numpy as jnp

    begun = time.perf_counter()
    with jax.enable_x64(True):
        a, b = jnp.asarray(x, jnp.float64), jnp.asarray(y, jnp.float64)

        def logdensity(w):
            eta = a @ w
            return b @ eta - jnp.sum(jax.nn.softplus(eta)) - 0.5 * w @ w

        key_fit, key_draw = jax.random.split(jax.random.key(2))
        state, _ = blackjax.vi.pathfinder.approximate(key_fit, logdensity, jnp.zeros(x.shape[1]))
        draws, logs = blackjax.vi.pathfinder.sample(key_draw, state, num)
        draws = np.asarray(draws)
        middle = time.perf_counter()
        parts = np.array_split(draws, max(1, num // 500))
        energy = np.concatenate([energies(np.asarray(a), np.asarray(b), each) for each in parts])
        weights = weights_of(-energy - np.asarray(logs))
    seconds = time.perf_counter() - middle
    return weighted(draws, weights, begun, seconds, len(y))


WALK, NORMAL = "random walk", "Crank-Nicolson"
# name: the sampler, and what it does with 1e5 rows and 20 coefficients
SAMPLERS: dict[str, tuple[Any, int]] = {
    "AMAGOLD, subsampled": (partial(by_kernel, "subsampled"), 3_000),
    "AMAGOLD, full": (partial(by_kernel, "full"), 300),
    "NUTS": (partial(by_kernel, "NUTS"), 200),
    "scalable subsampling, random walk": (partial(by_test, "scalable", WALK, 2.0), 100_000),
    "factors, random walk": (partial(by_test, "factors", WALK, 2.0), 100_000),
    "scalable subsampling, from the normal": (partial(by_test, "scalable", NORMAL, 1.0), 20_000),
    "factors, from the normal": (partial(by_test, "factors", NORMAL, 1.0), 20_000),
    "scalable subsampling, half steps": (partial(by_test, "scalable", NORMAL, 0.5), 20_000),
    "factors, half steps": (partial(by_test, "factors", NORMAL, 0.5), 20_000),
    "SGLD, step 0.1": (partial(by_langevin, 0.1), 100_000),
    "SGLD, step 0.5": (partial(by_langevin, 0.5), 100_000),
    "Zig-Zag, subsampled": (by_zig_zag, 500_000),
    "Laplace, weighted": (by_laplace, 2_000),
    "Pathfinder, weighted": (by_pathfinder, 2_000),
}

# those that are given mode, metric and bounds
EXPANDED = [
    name for name in SAMPLERS if name.startswith(("scalable", "factors", "SGLD", "Zig-Zag"))
]


def fresh(name: str, num_rows: int, size: int, num: int) -> dict[str, Any]:
    """What the sampler `name` finds in a new process."""
    return in_new_process("benchmarks.harness.peer_run", name, num_rows, size, num)


if __name__ == "__main__":
    _, chosen, *sizes = sys.argv
    rows, coefficients, draws = map(int, sizes)
    print(json.dumps(SAMPLERS[chosen][0](*table(rows, coefficients), draws)))
