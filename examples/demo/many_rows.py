"""A million rows.

A logistic regression with ten coefficients. AMAGOLD moves along an expansion at the mode, and
accepts or rejects with an exact test that reads a few rows. NUTS reads all rows for every gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
from numpyro.infer import NUTS, init_to_value

from examples.demo import style
from examples.demo.chains import Chains, sample
from examples.demo.chapter import Results, code_of
from numpyro_fwd import AMAGOLD

NUM_COVARIATES = 10
CHANGE = (
    "mcmc = MCMC(NUTS(model), ...)",
    'mcmc = MCMC(AMAGOLD(parts, acceptance="subsampled", num_integration_steps=4), ...)',
)


def model(x, y):
    """The model for NUTS, which reads all rows and gathers none."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([NUM_COVARIATES]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


def parts(x, y):
    """The same model with a plate that subsamples."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([NUM_COVARIATES]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=1000) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def work_through(seed: int, quick: bool) -> Results:
    """Sample with the exact subsampled test, and with NUTS from the mode."""
    keys = jax.random.split(jax.random.key(seed + 2), 2)
    data = simulated(5000 if quick else 1_000_000, seed)
    mode, sd = at_mode(*data)
    amagold = sample(
        AMAGOLD(parts, acceptance="subsampled", num_integration_steps=4),
        keys[0],
        *data,
        num_chains=1,
        num_warmup=200,
        num_samples=300 if quick else 20_000,
        fields=("inner.num_rows",),
        jit_model_args=True,
    )
    # which need not search for the mode and the scales there
    nuts = NUTS(
        model,
        init_strategy=init_to_value(values={"slope": jnp.asarray(mode, jnp.float32)}),
        inverse_mass_matrix=jnp.asarray(sd**2, jnp.float32),
        adapt_mass_matrix=False,
    )
    size = {"num_chains": 1, "num_warmup": 10, "num_samples": 100, "jit_model_args": True}
    runs = {"AMAGOLD, subsampled": amagold, "NUTS": sample(nuts, keys[1], *data, **size)}
    num_read = np.mean(amagold.mcmc.get_extra_fields()["inner.num_rows"])
    rates = {name: chains.worst()[0] / chains.seconds for name, chains in runs.items()}
    ratio = rates["AMAGOLD, subsampled"] / rates["NUTS"]
    return Results(
        ("", "draws", "ESS", "ESS/s", "mean off, in sd", "seconds", "compile, s"),
        [row(name, chains, mode, sd) for name, chains in runs.items()],
        "One chain each, in single precision, seconds without compilation. Those of AMAGOLD have "
        "the search for the mode, bounds and 200 steps of warm-up; NUTS was given the mode and the "
        "scales there, and 10 steps for its step size. ESS of the worst coefficient, rough "
        "for 100 draws; errors are against a normal approximation at the mode, good but not exact.",
        draw(runs, rates, mode[0], sd[0]),
        "Left: one coefficient. Right: effective draws per second, on a logarithmic axis.",
        f"A test of AMAGOLD read {num_read:.2g} of {len(data[1]):,} rows on average. It has "
        f"{ratio:,.1f} times the effective draws per second of NUTS, compilation not counted.",
        code_of(*CHANGE, model, parts),
    )


def simulated(num_rows: int, seed: int) -> tuple[jax.Array, jax.Array]:
    """Covariates and outcomes of a logistic regression."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, NUM_COVARIATES)).astype(np.float32)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.linspace(-1.0, 1.0, NUM_COVARIATES)))
    return jnp.asarray(x), jnp.asarray(y, jnp.float32)


def at_mode(x, y) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the normal approximation at the mode, by Newton in double precision."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    slope = np.zeros(NUM_COVARIATES)
    for _ in range(8):
        share = 1 / (1 + np.exp(-x @ slope))
        hessian = (x * (share * (1 - share))[:, None]).T @ x + np.eye(NUM_COVARIATES)
        slope = slope + np.linalg.solve(hessian, x.T @ (y - share) - slope)
    return slope, np.sqrt(np.diag(np.linalg.inv(hessian)))


def row(name: str, chains: Chains, mode: np.ndarray, sd: np.ndarray) -> tuple[str, ...]:
    """Cells of a sampler."""
    draws, ess = chains.draws("slope"), chains.worst()[0]
    off = np.max(np.abs(draws.mean(axis=0) - mode) / sd)
    cells = (f"{len(draws):,}", f"{ess:.0f}", f"{ess / chains.seconds:.1f}", f"{off:.2f}")
    return (name, *cells, *chains.times)


def draw(runs: dict[str, Chains], rates: dict[str, float], mode: float, sd: float):
    """One coefficient, and effective draws per second."""
    figure, (left, right) = style.sheet(2)
    grid = mode + sd * np.linspace(-4, 4, 300)
    looks = (style.OURS, style.NUTS)
    for place, (name, look) in enumerate(zip(runs, looks, strict=True)):
        options = {"density": True, "histtype": "step", "label": name}
        left.hist(runs[name].draws("slope")[:, 0], 20, **look.line, **options)
        right.plot(place, rates[name], "os"[place], color=look.color, markersize=10)
        right.annotate(f"  {rates[name]:,.0f}", (place, rates[name]), ha="left", va="center")
    density = scipy.stats.norm(mode, sd).pdf(grid)
    left.plot(grid, density, **style.TRUTH.line, label="normal at the mode")
    left.set(xlabel="first coefficient", ylabel="posterior density", xlim=(grid[0], grid[-1]))
    right.set(
        yscale="log",
        ylabel="effective draws per second",
        xlim=(-0.5, 1.5),
        ylim=(min(rates.values()) / 3, 3 * max(rates.values())),
    )
    right.set_xticks(range(len(runs)), list(runs))
    style.legend_above(left)
    return figure
