"""A funnel and the eight schools as they are written: learned coordinates reach the neck."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
from numpyro.handlers import reparam
from numpyro.infer import NUTS
from numpyro.infer.reparam import LocScaleReparam

from numpyro_fwd import AutoNUTS
from numpyro_fwd.demo import sampling, style
from numpyro_fwd.demo.chains import Chains, pooled_draws, sample, worst
from numpyro_fwd.demo.chapter import Chapter, Setting, code_of

__all__ = ["NAME", "chapter"]

NAME = "A funnel and a hierarchy"
QUESTION = (
    "A scale exp(w / 2) and nine values of that scale: the shape of a centred hierarchy, such as "
    "the effects of coaching in eight schools (Rubin 1981). One step size cannot suit both the "
    "mouth and the neck. AutoNUTS(model) learns in the warm-up how centred each effect should be; "
    "for NUTS one writes the model non-centred by hand."
)
HEADER = (
    *("", "mass of the neck", "mean", "sd", "ESS", "R-hat", "divergences", "seconds"),
    "compile, s",
)
CAPTION = (
    "Draws of each sampler over exact draws of the funnel, the neck below the line; densities of w "
    "and of log tau."
)
READING = (
    "Four chains, 1,000 steps of warm-up and 4,000 draws. The neck of the funnel is w < -3, that "
    "of the eight schools tau < 1; mean and sd are those of w and of log tau, exact ones of the "
    "schools by quadrature. ESS and R-hat of the worst parameter."
)
NUM_EXACT_DRAWS = 4000
LIMITS = {"xlim": (-25, 25), "ylim": (-11, 11)}
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
LOOKS = (style.OURS, style.NUTS, style.OTHER_SAMPLER)


class Log(NamedTuple):
    """The logarithm of a scale: its name, grid and exact density, and where the neck ends."""

    title: str
    name: str
    grid: np.ndarray
    density: np.ndarray
    neck: float

    def exact(self) -> tuple[float, float, float]:
        """Mass of the neck, mean and sd."""
        mass = self.density / self.density.sum()
        mean = mass @ self.grid
        below = np.cumsum(mass) - mass / 2
        sd = np.sqrt(mass @ (self.grid - mean) ** 2)
        return float(np.interp(self.neck, self.grid, below)), float(mean), float(sd)


def log_of_the_funnel() -> Log:
    """The prior of w."""
    grid = np.linspace(-15, 15, 6001)
    return Log("funnel", "w", grid, scipy.stats.norm(0, 3).pdf(grid), -3.0)


def eight_schools() -> None:
    """The eight schools in centred parametrization."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    numpyro.deterministic("log tau", jnp.log(tau))
    numpyro.sample("y", dist.Normal(theta, ERRORS).to_event(1), obs=EFFECTS)


def log_of_the_schools() -> Log:
    """Theta and mu integrated out: they are normal given tau."""
    grid = np.linspace(-14, 8, 6001)
    variances = ERRORS**2 + np.exp(2 * grid)[:, None]
    precision = 1 / 25 + np.sum(1 / variances, axis=1)
    mean = np.sum(EFFECTS / variances, axis=1) / precision
    logdensity = (
        grid
        - np.log1p((np.exp(grid) / 5) ** 2)
        - 0.5
        * (
            np.sum(np.log(variances) + EFFECTS**2 / variances, axis=1)
            + np.log(precision)
            - precision * mean**2
        )
    )
    density = np.exp(logdensity - np.max(logdensity))
    return Log("eight schools", "log tau", grid, density / np.trapezoid(density, grid), 0.0)


def row(name: str, chains: Chains, log: Log) -> tuple[str, ...]:
    """Cells of a sampler."""
    ess, r_hat = worst(chains.idata)
    x = pooled_draws(chains, log.name)
    facts = (f"{np.mean(x < log.neck):.3f}", f"{x.mean():.2f}", f"{x.std():.2f}")
    return (
        f"{name}, {log.title}",
        *facts,
        f"{ess:.0f}",
        f"{r_hat:.3f}",
        f"{int(chains.mcmc.get_extra_fields()['diverging'].sum())}",
        f"{chains.seconds:.1f}",
        f"{chains.compilation:.1f}",
    )


def exact_row(log: Log) -> tuple[str, ...]:
    """Cells of the truth."""
    mass, mean, sd = log.exact()
    return (f"exact, {log.title}", f"{mass:.3f}", f"{mean:.2f}", f"{sd:.2f}", *[""] * 5)


def exact_draws(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of w and of one theta."""
    rng = np.random.default_rng(seed)
    w = 3 * rng.standard_normal(NUM_EXACT_DRAWS)
    return w, np.exp(w / 2) * rng.standard_normal(NUM_EXACT_DRAWS)


def draw(funnel: dict[str, Chains], schools: dict[str, Chains], setting: Setting) -> str:
    """Draws over exact draws, the line under which the neck is, and densities of both logs."""
    figure, axes = style.sheet(4, gridspec_kw={"width_ratios": [3, 3, 4, 4]})
    w, theta = exact_draws(setting.seed)
    for axis, (name, chains), look in zip(axes[:2], funnel.items(), LOOKS[:2], strict=False):
        axis.scatter(theta, w, s=4, color=style.GREY, linewidths=0, label="exact draws")
        step = max(1, len(pooled_draws(chains, "w")) // NUM_EXACT_DRAWS)
        points = (pooled_draws(chains, "theta")[::step, 0], pooled_draws(chains, "w")[::step])
        axis.scatter(*points, s=5, color=look.color, marker=look.marker, alpha=0.5, label=name)
        axis.axhline(-3.0, **style.TRUTH.line)
        axis.annotate("neck", (24, -3.4), ha="right", va="top")
        axis.set(xlabel=r"$\theta_1$", ylabel="w", **LIMITS)
        style.legend_above(axis, columns=1)
    marginal(axes[2], funnel, log_of_the_funnel(), (-11, 11))
    marginal(axes[3], schools, log_of_the_schools(), (-4, 4))
    return style.save_picture(figure, setting.out / "3_funnel.png")


def marginal(axis, samplers: dict[str, Chains], log: Log, limits: tuple[float, float]) -> None:
    """Density of the log under each sampler and in truth."""
    bins = np.linspace(*limits, 56)
    for (name, chains), look in zip(samplers.items(), LOOKS, strict=True):
        heights = np.histogram(pooled_draws(chains, log.name), bins, density=True)[0]
        axis.stairs(heights, bins, **look.line, label=name)
    axis.plot(log.grid, log.density, **style.TRUTH.line, label="exact")
    axis.axvspan(limits[0], log.neck, color=style.GREY, alpha=0.3, linewidth=0)
    axis.set(xlabel=f"{log.name}, {log.title}\n(grey: the neck)", xlim=limits, ylim=(0, None))
    style.legend_above(axis, columns=1)


def chapter(setting: Setting) -> Chapter:
    """Sample the funnel and the eight schools by AutoNUTS, and by NUTS in both forms."""
    keys = jax.random.split(jax.random.key(setting.seed + 3), 3)
    num_warmup, num_samples = (500, 500) if setting.quick else (1000, 4000)

    def both(model) -> dict[str, Chains]:
        kernels = {
            "AutoNUTS": AutoNUTS(model),
            "NUTS": NUTS(model),
            "NUTS, non-centred": NUTS(reparam(model, config={"theta": LocScaleReparam(0.0)})),
        }
        size = {"num_warmup": num_warmup, "num_samples": num_samples}
        return {
            name: sample(kernel, key, fields=("diverging",), **size)
            for (name, kernel), key in zip(kernels.items(), keys, strict=True)
        }

    funnel, schools = both(sampling.funnel().model), both(eight_schools)
    rows: list[tuple[str, ...]] = []
    for log, samplers in ((log_of_the_funnel(), funnel), (log_of_the_schools(), schools)):
        rows += [exact_row(log), *(row(name, chains, log) for name, chains in samplers.items())]
    picture = draw(funnel, schools, setting)
    files = tuple(
        chains.write(setting.out, f"3_{target}_{name.replace(', non-', '_non_')}")
        for target, samplers in (("funnel", funnel), ("schools", schools))
        for name, chains in samplers.items()
    )
    conclusion = verdict(funnel, schools)
    change = ("mcmc = MCMC(NUTS(eight_schools), ...)", "mcmc = MCMC(AutoNUTS(eight_schools), ...)")
    code = code_of(*change, eight_schools)
    return Chapter(NAME, QUESTION, HEADER, rows, picture, CAPTION, READING, conclusion, files, code)


def verdict(funnel: dict[str, Chains], schools: dict[str, Chains]) -> str:
    """Whether to believe the draws."""
    worst_ones = "; ".join(
        f"{name} {worst(funnel[name].idata)[1]:.3f} and {worst(schools[name].idata)[1]:.3f}"
        for name in funnel
    )
    return (
        f"R-hat on the funnel and the schools: {worst_ones}. Do not trust draws with an R-hat "
        "above 1.01 or with many divergences. NUTS in the right form is as good as AutoNUTS, which "
        "finds the form."
    )
