"""From ten dimensions to ten thousand, from one chain to a thousand: ``benchmarks/scaling.py``.

Everything from defaults. The unit of cost is a gradient.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.report import Report, Section, by_name
from numpyro_fwd import MALA, AutoMALA, AutoNUTS

NUM_STEPS, NUM_CHAINS = 1_000, 4
# beyond each size at which something changes, and far beyond
EDGES, CORRELATED = (10, 65, 129, 513, 2_000, 10_000), (65, 300, 1_000, 2_000)
EQUAL, AUTOREGRESSIVE = 0.95, 0.9  # correlations


# --- targets --------------------------------------------------------------------------------------


def scales_of(size: int) -> np.ndarray:
    """Standard deviations from 0.01 to 100."""
    return np.geomspace(0.01, 100.0, size).astype(np.float32)


def independent(size: int) -> None:
    """Normals of different scales."""
    numpyro.sample("x", dist.Normal(0.0, scales_of(size)).to_event(1))


def flat(size: int) -> jax.Array:
    """Coordinates without a prior."""
    law = dist.ImproperUniform(dist.constraints.real_vector, (), (size,))
    return numpyro.sample("x", law)


def equal_correlation(size: int) -> None:
    """Unit normals, each two with the same correlation."""
    x = flat(size)
    shared = EQUAL / (1.0 - EQUAL + EQUAL * size)
    squares = jnp.sum(x**2) - shared * jnp.sum(x) ** 2
    numpyro.factor("density", -0.5 * squares / (1.0 - EQUAL))


def autoregressive(size: int) -> None:
    """A stationary AR(1)."""
    x = flat(size)
    noise = (x[1:] - AUTOREGRESSIVE * x[:-1]) ** 2 / (1.0 - AUTOREGRESSIVE**2)
    numpyro.factor("density", -0.5 * (x[0] ** 2 + jnp.sum(noise)))


def table(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and labels, D / 10 rows for a coefficient and no fewer than ten."""
    rng = np.random.default_rng(size)
    x = rng.normal(size=(size * max(size // 10, 10), size)).astype(np.float32)
    p = 1.0 / (1.0 + np.exp(-x @ rng.normal(size=size) / math.sqrt(size)))
    return x, (rng.random(len(x)) < p).astype(np.float32)


def logistic(size: int, x, y) -> None:
    """Logistic regression."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([size]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


def latent_process(size: int) -> None:
    """Counts of a Gaussian process at all but two of the dimensions."""
    n = size - 2
    t = np.linspace(0.0, 10.0, n, dtype=np.float32)
    y = np.random.default_rng(0).poisson(np.exp(np.sin(t)))
    length = numpyro.sample("length", dist.InverseGamma(5.0, 5.0))
    amplitude = numpyro.sample("amplitude", dist.HalfNormal(2.0))
    square = ((t[:, None] - t) / length) ** 2
    kernel = amplitude**2 * jnp.exp(-0.5 * square) + 1e-4 * jnp.eye(n)
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([n]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(jnp.linalg.cholesky(kernel) @ noise)), obs=y)


def network(size: int) -> None:
    """A network of one hidden layer, 20 inputs, on 200 rows."""
    width = max((size - 1) // 22, 1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 20)).astype(np.float32)
    y = np.tanh(x[:, 0]) + 0.3 * rng.normal(size=200)
    first = numpyro.sample("first", dist.Normal(0, 20**-0.5).expand([20, width]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 1).expand([width]).to_event(1))
    last = numpyro.sample("last", dist.Normal(0, width**-0.5).expand([width]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.tanh(x @ first + bias) @ last, 0.3), obs=y)


class Target(NamedTuple):
    """A model of any size.

    model
        Of a size and its data.
    sds
        True standard deviations at a size, as far as they are known.
    sizes
        At which it is sampled.
    data
        Of a size.
    most_dense
        Dimensions beyond which NUTS with a dense metric is left out.
    """

    model: Callable[..., None]
    sds: Callable[[int], Any] | None = None
    sizes: tuple[int, ...] = CORRELATED
    data: Callable[[int], tuple] = lambda size: ()
    most_dense: int = 300


TARGETS = {
    "independent": Target(independent, scales_of, EDGES),
    "equal correlation": Target(equal_correlation, np.ones),
    "AR(1)": Target(autoregressive, np.ones),
    "logistic": Target(logistic, None, (10, 65, 129, 300), table),
    "latent process": Target(latent_process, None, (10, 64, 102), most_dense=64),
    "network": Target(network, None, (67, 507, 2_003)),
}


def samplers(target: str, size: int) -> dict[str, Callable]:
    """Kernels of a target by name."""
    found = {"NUTS": NUTS, "AutoNUTS": AutoNUTS, "AutoMALA": AutoMALA, "MALA": MALA}
    if size <= TARGETS[target].most_dense:
        found["NUTS, dense"] = partial(NUTS, dense_mass=True)
    return found


# --- runs -----------------------------------------------------------------------------------------


def measured(target: str, sampler: str, size: int, num_steps: int) -> dict[str, Any]:
    """One run of four chains from defaults, as many steps of warm-up as draws."""
    of = TARGETS[target]
    make = samplers(target, size)[sampler]
    mcmc = MCMC(
        make(partial(of.model, size)),
        num_warmup=num_steps,
        num_samples=num_steps,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    arguments = tuple(map(jnp.asarray, of.data(size)))
    key_warmup, key_run = jax.random.split(jax.random.key(0))
    mcmc.warmup(key_warmup, *arguments, extra_fields=("num_steps",), collect_warmup=True)
    in_warmup = mcmc.get_extra_fields()["num_steps"].astype(float).sum()
    mcmc.run(key_run, *arguments, extra_fields=("num_steps",))
    gradients = mcmc.get_extra_fields()["num_steps"].astype(float).sum()
    draws = [np.asarray(leaf, np.float64) for leaf in mcmc.get_samples(True).values()]
    x = np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in draws], axis=2)
    jax.clear_caches()  # the programs of all kernels are more than a process may map
    off = "" if of.sds is None else float(np.abs(np.log(x.std((0, 1)) / of.sds(size))).max())
    return {
        "ess": least_ess(x) / float(gradients) * 1e3,
        "rhat": worst_rhat(x),
        "sds": off,
        "gradients": float(gradients / (NUM_CHAINS * num_steps)),
        "in warm-up": float(in_warmup / NUM_CHAINS),
    }


def scaled(target: str, quick: bool) -> list[list]:
    """A row for each size and sampler, and the pictures."""
    rows, num_steps = [], 50 if quick else NUM_STEPS
    for size in TARGETS[target].sizes[: 1 if quick else None]:
        for sampler in list(samplers(target, size))[: 2 if quick else None]:
            key = (target, sampler, size, num_steps)
            found = REPORT.once(key, measured, target, sampler, size, num_steps)
            rows.append([size, sampler, *found.values()])
    draw(target, rows)
    return rows


def draw(target: str, rows: list[list]) -> None:
    """ESS per gradient and R-hat against dimensions."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for sampler in dict.fromkeys(row[1] for row in rows):
        of = np.array([[row[0], row[2], row[3]] for row in rows if row[1] == sampler], float)
        axes[0].loglog(of[:, 0], of[:, 1], "o-", label=sampler)
        axes[1].loglog(of[:, 0], np.maximum(of[:, 2] - 1.0, 1e-4), "o-")
    axes[0].set(xlabel="dimensions", ylabel="ESS per 1,000 gradients", title=target)
    axes[1].set(xlabel="dimensions", ylabel="R-hat - 1", title="worst coordinate")
    axes[1].axhline(0.01, color="grey", lw=0.8)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    REPORT.picture(figure, f"scaling_{target.split('(')[0].replace(' ', '_').lower()}.png")


COLUMNS = [
    *("dimensions", "sampler", "ESS per 1,000 gradients", "worst R-hat"),
    *("worst log sd", "gradients of a draw", "gradients of the warm-up"),
]
TEXT = (
    "Four vectorized chains from defaults, {steps:,} steps of warm-up and as many draws, one seed. "
    "{what} ESS is the least bulk ESS of a coordinate; the error of a standard deviation is that "
    "of its logarithm. Gradients of the warm-up are per chain, without those of the start."
)


def section(target: str, title: str, what: str, quick: bool) -> Section:
    """A target at all of its sizes."""
    text = TEXT.format(steps=NUM_STEPS, what=what)
    return Section(title, text, COLUMNS, scaled(target, quick))


def independent_scales(quick: bool) -> Section:
    """Independent normals."""
    what = "Independent normals with standard deviations from 0.01 to 100."
    return section("independent", "Independent scales", what, quick)


def equal_correlations(quick: bool) -> Section:
    """Normals that are all correlated."""
    what = f"Unit normals, each two with a correlation of {EQUAL}."
    return section("equal correlation", "Equal correlation", what, quick)


def autoregression(quick: bool) -> Section:
    """A stationary AR(1)."""
    what = f"A stationary AR(1) with a correlation of {AUTOREGRESSIVE} between neighbours."
    return section("AR(1)", "AR(1)", what, quick)


def regression(quick: bool) -> Section:
    """Logistic regression."""
    what = "Logistic regression, D / 10 rows for each coefficient and no fewer than ten."
    return section("logistic", "Logistic regression", what, quick)


def process(quick: bool) -> Section:
    """A latent Gaussian process."""
    what = "Counts of a latent Gaussian process, its length and amplitude among the coordinates."
    return section("latent process", "Latent Gaussian process", what, quick)


def weights(quick: bool) -> Section:
    """A network."""
    what = "A network with one hidden layer; its weights can be exchanged, so R-hat is of copies."
    return section("network", "Network", what, quick)


def bytes_of(size: int, num_chains: int) -> list[float]:
    """Memory of the programs of a start and of a step of MALA, without their arguments."""
    kernel = MALA(partial(independent, size))
    keys = jax.random.split(jax.random.key(0), num_chains)
    states = jax.eval_shape(lambda keys: kernel.init(keys, 300, None, (), {}), keys)

    def needed(function: Callable, *arguments: Any) -> float:
        program = jax.jit(function).lower(*arguments).compile()
        return program.memory_analysis().temp_size_in_bytes / 2**20

    start = needed(lambda keys: kernel.init(keys, 300, None, (), {}), keys)
    return [start, needed(lambda state: kernel.sample(state, (), {}), states)]


def memory(quick: bool) -> Section:
    """What the programs of a start and of a step need."""
    rows = []
    for size in (10,) if quick else (64, 512, 2_000):
        for num_chains in (1, 4) if quick else (1, 4, 64, 1_000):
            start, step = REPORT.once(("memory", size, num_chains), bytes_of, size, num_chains)
            rows.append([size, num_chains, start, step, start / step])
    return Section(
        "Memory",
        "MiB that XLA allocates beside arguments and results, independent scales, MALA.",
        ["dimensions", "chains", "start", "step", "start / step"],
        rows,
    )


REPORT = Report(
    "scaling",
    "From ten dimensions to ten thousand",
    by_name(
        *(independent_scales, equal_correlations, autoregression, regression, process, weights),
        memory,
    ),
)

if __name__ == "__main__":
    REPORT.main()
