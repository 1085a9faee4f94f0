"""A funnel and a hierarchy.

A scale exp(w / 2) and nine values of that scale: the shape of a centred hierarchy, such as the
effects of coaching in eight schools (Rubin 1981). One step size cannot suit both the mouth and the
neck. AutoNUTS(model) learns in the warm-up how centred each effect should be; for NUTS one writes
the model non-centred by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.stats
from numpyro.handlers import reparam
from numpyro.infer import NUTS
from numpyro.infer.reparam import LocScaleReparam

from examples.demo import style
from examples.demo.chains import Chains, sample
from examples.demo.chapter import Results, code_of
from numpyro_fwd import AutoNUTS

HEADER = tuple("|mass of the neck|mean|sd|ESS|R-hat|divergences|seconds|compile, s".split("|"))
CHANGE = (
    "mcmc = MCMC(NUTS(eight_schools), ...)",
    "mcmc = MCMC(AutoNUTS(eight_schools), ...)",
)
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
LOOKS = (style.OURS, style.NUTS, style.OTHER)
# the grid on which the law of a logarithm of a scale is known, and where its neck ends
W_GRID, W_NECK = np.linspace(-15, 15, 6001), -3.0
LOG_TAU_GRID, LOG_TAU_NECK = np.linspace(-14, 8, 6001), 0.0


def funnel():
    """Neal's funnel, without data."""
    w = numpyro.sample("w", dist.Normal(0, 3))
    numpyro.sample("theta", dist.Normal(0, jnp.exp(w / 2)).expand([9]).to_event(1))


def eight_schools():
    """The eight schools in centred parametrization."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    numpyro.deterministic("log tau", jnp.log(tau))
    numpyro.sample("y", dist.Normal(theta, ERRORS).to_event(1), obs=EFFECTS)


def work_through(seed: int, quick: bool) -> Results:
    """Sample the funnel and the eight schools by AutoNUTS, and by NUTS in both forms."""
    keys = jax.random.split(jax.random.key(seed + 3), 3)
    num_warmup, num_samples = (300, 300) if quick else (1000, 4000)

    def sampled(model) -> dict[str, Chains]:
        by_hand = reparam(model, config={"theta": LocScaleReparam(0.0)})
        kernels = {
            "AutoNUTS": AutoNUTS(model),
            "NUTS": NUTS(model),
            "NUTS, non-centred": NUTS(by_hand),
        }
        size = {"num_warmup": num_warmup, "num_samples": num_samples}
        return {
            name: sample(kernel, key, fields=("diverging",), **size)
            for (name, kernel), key in zip(kernels.items(), keys, strict=True)
        }

    funnels, schools = sampled(funnel), sampled(eight_schools)
    density = density_of_log_tau()
    normal = scipy.stats.norm(0, 3).pdf(W_GRID)
    rows = [exact_row("exact, funnel", W_GRID, normal, W_NECK)]
    rows += [row(f"{name}, funnel", funnels[name], "w", W_NECK) for name in funnels]
    rows += [exact_row("exact, eight schools", LOG_TAU_GRID, density, LOG_TAU_NECK)]
    rows += [row(f"{name}, schools", schools[name], "log tau", LOG_TAU_NECK) for name in schools]
    r_hats = "; ".join(
        f"{name} {funnels[name].worst()[1]:.3f} and {schools[name].worst()[1]:.3f}"
        for name in funnels
    )
    return Results(
        HEADER,
        rows,
        f"Four chains, {num_warmup:,} steps of warm-up and {num_samples:,} draws. The neck of the "
        "funnel is w < -3, that of the eight schools tau < 1; mean and sd are those of w and of "
        "log tau, exact ones of the schools by quadrature. ESS and R-hat of the worst parameter.",
        draw(funnels, schools, density, seed),
        "Left: draws over exact draws of the funnel, the neck below the line. Right: density of "
        "log tau of the eight schools, the neck in grey.",
        f"R-hat on the funnel and the schools: {r_hats}. Do not trust draws with an R-hat above "
        "1.01 or with many divergences. NUTS in the right form is as good as AutoNUTS, which finds "
        "the form.",
        code_of(*CHANGE, eight_schools),
    )


def density_of_log_tau() -> np.ndarray:
    """Theta and mu integrated out: they are normal given tau."""
    variances = ERRORS**2 + np.exp(2 * LOG_TAU_GRID)[:, None]
    precision = 1 / 25 + np.sum(1 / variances, axis=1)
    mean = np.sum(EFFECTS / variances, axis=1) / precision
    squares = np.sum(np.log(variances) + EFFECTS**2 / variances, axis=1) - precision * mean**2
    prior = LOG_TAU_GRID - np.log1p((np.exp(LOG_TAU_GRID) / 5) ** 2)
    log = prior - 0.5 * (squares + np.log(precision))
    density = np.exp(log - np.max(log))
    return density / np.trapezoid(density, LOG_TAU_GRID)


def exact_row(name: str, grid, density, neck: float) -> tuple[str, ...]:
    """Cells of the truth: mass of the neck, mean and sd."""
    mass = density / density.sum()
    below = np.interp(neck, grid, np.cumsum(mass) - mass / 2)
    mean = mass @ grid
    sd = np.sqrt(mass @ (grid - mean) ** 2)
    return (name, f"{below:.3f}", f"{mean:.2f}", f"{sd:.2f}", *[""] * 5)


def row(name: str, chains: Chains, site: str, neck: float) -> tuple[str, ...]:
    """Cells of a sampler."""
    (ess, r_hat), x = chains.worst(), chains.draws(site)
    facts = (f"{np.mean(x < neck):.3f}", f"{x.mean():.2f}", f"{x.std():.2f}")
    num_divergences = int(chains.mcmc.get_extra_fields()["diverging"].sum())
    return (name, *facts, f"{ess:.0f}", f"{r_hat:.3f}", f"{num_divergences}", *chains.times)


def draw(funnels: dict[str, Chains], schools: dict[str, Chains], density: np.ndarray, seed: int):
    """Draws over exact draws of the funnel, and densities of log tau."""
    figure, axes = style.sheet(3, gridspec_kw={"width_ratios": [3, 3, 4]})
    rng = np.random.default_rng(seed)
    w = 3 * rng.standard_normal(4000)
    theta = np.exp(w / 2) * rng.standard_normal(w.size)
    for axis, name, look in zip(axes[:2], ("AutoNUTS", "NUTS"), LOOKS[:2], strict=True):
        axis.scatter(theta, w, s=4, color=style.GREY, linewidths=0, label="exact draws")
        found_theta, found_w = funnels[name].draws("theta")[:, 0], funnels[name].draws("w")
        step = max(1, len(found_w) // w.size)
        points = {"s": 5, "color": look.color, "marker": look.marker, "alpha": 0.5}
        axis.scatter(found_theta[::step], found_w[::step], **points, label=name)
        axis.axhline(W_NECK, **style.TRUTH.line)
        axis.set(xlabel=r"$\theta_1$", ylabel="w", xlim=(-25, 25), ylim=(-11, 11))
        style.legend_above(axis, columns=1)
    bins = np.linspace(-4, 4, 56)
    for (name, chains), look in zip(schools.items(), LOOKS, strict=True):
        heights = np.histogram(chains.draws("log tau"), bins, density=True)[0]
        axes[2].stairs(heights, bins, **look.line, label=name)
    axes[2].plot(LOG_TAU_GRID, density, **style.TRUTH.line, label="exact")
    axes[2].axvspan(-4, LOG_TAU_NECK, color=style.GREY, alpha=0.3, linewidth=0)
    axes[2].set(xlabel="log tau", xlim=(-4, 4), ylim=(0, None), ylabel="posterior density")
    style.legend_above(axes[2], columns=2)
    return figure
