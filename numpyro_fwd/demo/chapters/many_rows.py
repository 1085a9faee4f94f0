"""A million rows: an exact test that reads a few of them, and NUTS for as many seconds."""

import time
from typing import Any, NamedTuple

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
from numpyro.infer import NUTS, init_to_value

from numpyro_fwd import AMAGOLD
from numpyro_fwd.demo import style
from numpyro_fwd.demo.chains import Chains, pooled_draws, sample
from numpyro_fwd.demo.chapter import Chapter, Setting, code_of
from numpyro_fwd.demo.sampling import compilation, covered

__all__ = ["NAME", "chapter"]

NAME = "A million rows"
QUESTION = (
    "A logistic regression with {:,} rows and {} coefficients. AMAGOLD moves along an "
    "expansion at the mode and accepts or rejects with an exact test that reads a few rows. NUTS "
    "reads all rows for every gradient."
)
HEADER = ("", "draws", "ESS", "ESS/s", "mean off, in sd", "seconds", "compile, s")
CAPTION = "Left: one coefficient. Right: draws of the two, on a logarithmic axis."
READING = (
    "One chain each, in single precision. Seconds are without compilation: search for the mode, "
    "bounds, warm-up and draws of AMAGOLD, the steps of NUTS. ESS of the worst coefficient, not "
    "shown below 20 draws; errors are relative to a normal approximation at the mode, which is "
    "good but not exact here."
)
NUM_ROWS, NUM_COVARIATES = 1_000_000, 10
WARMUP_OF_NUTS = 10


class Pieces(NamedTuple):
    """Draws of NUTS after its warm-up, seconds at which each step ended, and of compilation."""

    draws: np.ndarray
    ends: np.ndarray
    compilation: float


def regression_data(num_rows: int, seed: int) -> tuple[Any, ...]:
    """Covariates and outcomes of a logistic regression."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, NUM_COVARIATES)).astype(np.float32)
    truth = np.linspace(-1.0, 1.0, NUM_COVARIATES)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ truth))
    return jnp.asarray(x), jnp.asarray(y, jnp.float32)


def parts(x, y):
    """The model with a plate that subsamples."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([NUM_COVARIATES]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=min(1000, len(y))) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def full_model(x, y):
    """The model for NUTS, which reads all rows and gathers none."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([NUM_COVARIATES]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


def nuts_for(seconds: float, key, rows: tuple[Any, ...], truth: tuple[Any, ...]) -> Pieces:
    """NUTS from the mode and its scales, a step at a time, until its seconds are over."""
    with compilation() as spans:
        kernel = kernel_at(*(jnp.asarray(array, jnp.float32) for array in truth))
        begin = time.perf_counter()
        state = kernel.init(key, WARMUP_OF_NUTS, None, rows, {})
        step = jax.jit(lambda state, rows: kernel.sample(state, rows, {})).lower(state, rows)
        compiled = step.compile()
        draws: list[np.ndarray] = []
        ends: list[float] = []
        while not ends or ends[-1] < seconds:
            state = jax.block_until_ready(compiled(state, rows))
            ends.append(time.perf_counter() - begin - covered(spans))
            draws.append(np.asarray(state.z["slope"], float))
    return Pieces(np.array(draws[WARMUP_OF_NUTS:]), np.array(ends), covered(spans))


def kernel_at(mode, sd) -> NUTS:
    """NUTS that is given a start and a metric, and adapts its step size alone."""
    return NUTS(
        full_model,
        init_strategy=init_to_value(values={"slope": mode}),
        inverse_mass_matrix=sd**2,
        adapt_mass_matrix=False,
    )


def at_mode(rows: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the normal approximation at the mode, by Newton in double precision."""
    x, y = (np.asarray(array, float) for array in rows)
    slope = np.zeros(NUM_COVARIATES)
    for _ in range(8):
        share = 1 / (1 + np.exp(-x @ slope))
        hessian = (x * (share * (1 - share))[:, None]).T @ x + np.eye(NUM_COVARIATES)
        slope = slope + np.linalg.solve(hessian, x.T @ (y - share) - slope)
    return slope, np.sqrt(np.diag(np.linalg.inv(hessian)))


def row(name: str, draws: np.ndarray, seconds: float, compiled: float, truth) -> tuple[str, ...]:
    """Cells of a sampler; a handful of draws has no effective sample size."""
    ess = min(arviz_stats.ess(column[None]) for column in draws.T) if len(draws) >= 20 else None
    off = (np.abs(draws.mean(axis=0) - truth[0]) / truth[1]).max() if len(draws) else None
    rate = None if ess is None else ess / seconds
    cells = [(len(draws), "{:,}"), (ess, "{:.0f}"), (rate, "{:.1f}"), (off, "{:.2f}")]
    shown = (form.format(value) if value is not None else "none" for value, form in cells)
    return (name, *shown, f"{seconds:.1f}", f"{compiled:.1f}")


def draw(ours: Chains, nuts: Pieces, truth, setting: Setting) -> str:
    """One coefficient, and draws against seconds."""
    figure, (left, right) = style.sheet(2)
    coefficient = pooled_draws(ours, "slope")[:, 0]
    grid = truth[0][0] + truth[1][0] * np.linspace(-4, 4, 300)
    normal = scipy.stats.norm(truth[0][0], truth[1][0]).pdf(grid)
    left.hist(coefficient, 40, density=True, color=style.OURS.color, alpha=0.4, label="AMAGOLD")
    left.plot(grid, normal, **style.TRUTH.line, label="normal at the mode")
    points = nuts.draws[:, 0] if len(nuts.draws) else np.array([])
    at = np.full(len(points), 0.05 * normal.max())
    left.plot(points, at, style.NUTS.marker, color=style.NUTS.color, ms=4, label="draws of NUTS")
    left.set(xlabel="first coefficient", ylabel="posterior density", xlim=(grid[0], grid[-1]))
    race(right, ours, nuts)
    style.legend_above(left)
    return style.save_picture(figure, setting.out / "2_million_rows.png")


def race(axis, ours: Chains, nuts: Pieces) -> None:
    """Draws of both, on a logarithmic axis."""
    counts = {"AMAGOLD": len(pooled_draws(ours, "slope")), "NUTS": len(nuts.draws)}
    looks = (style.OURS, style.NUTS)
    for place, (count, look) in enumerate(zip(counts.values(), looks, strict=True)):
        axis.bar(place, max(count, 0.5), 0.6, color=look.color, hatch="/" * place)
        axis.annotate(f"{count:,}", (place, max(count, 0.5)), ha="center", va="bottom")
    axis.set(yscale="log", ylabel="draws after the warm-up", xlabel="in the same seconds")
    axis.set_xticks(range(2), list(counts))
    axis.set_ylim(0.5, 4 * max(counts.values()))


def chapter(setting: Setting) -> Chapter:
    """Sample a regression by its exact subsampled test, then give NUTS the same seconds."""
    keys = jax.random.split(jax.random.key(setting.seed + 2), 2)
    rows = regression_data(5000 if setting.quick else NUM_ROWS, setting.seed)
    kernel = AMAGOLD(parts, acceptance="subsampled", num_integration_steps=4)
    size = {"num_warmup": 200, "num_samples": 300 if setting.quick else 20_000, "num_chains": 1}
    fields = ("accept_prob", "inner.num_rows")
    ours = sample(kernel, keys[0], *rows, fields=fields, jit_model_args=True, **size)
    truth = at_mode(rows)
    nuts = nuts_for(ours.seconds, keys[1], rows, truth)
    read = float(np.mean(ours.mcmc.get_extra_fields()["inner.num_rows"]))
    table = [
        row(
            "AMAGOLD, subsampled",
            pooled_draws(ours, "slope"),
            ours.seconds,
            ours.compilation,
            truth,
        ),
        row("NUTS, same seconds", nuts.draws, nuts.ends[-1], nuts.compilation, truth),
    ]
    question = QUESTION.format(len(rows[1]), NUM_COVARIATES)
    said = f"A test of AMAGOLD read {read:.2g} rows on average. {of_nuts(nuts)}"
    picture = draw(ours, nuts, truth, setting)
    files = (ours.write(setting.out, "2_amagold"),)
    change = (
        "mcmc = MCMC(NUTS(full_model), ...)",
        'mcmc = MCMC(AMAGOLD(parts, acceptance="subsampled", num_integration_steps=4), ...)',
    )
    code = code_of(*change, full_model, parts)
    return Chapter(NAME, question, HEADER, table, picture, CAPTION, READING, said, files, code)


def of_nuts(nuts: Pieces) -> str:
    """How far NUTS came, and how long the usual run of it would take."""
    warmup = min(len(nuts.ends), WARMUP_OF_NUTS)
    minutes = 2000 * np.diff(nuts.ends, prepend=0.0)[-10:].mean() / 60
    return (
        "NUTS was given the mode and the scales there, which AMAGOLD had to find, and ran a "
        f"step at a time for the same number of seconds: {warmup} of {WARMUP_OF_NUTS} "
        f"steps that adapt its step size, then {len(nuts.draws):,} draws. The usual 1,000 draws "
        f"after 1,000 steps would take {minutes:.1f} min (extrapolated from its last ten steps)."
    )
