"""Two modes and the evidence, both known in closed form: particles against chains of NUTS."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.special
import scipy.stats
from numpyro.infer import NUTS

from numpyro_fwd import LangevinSMC, smc_summary
from numpyro_fwd.demo import style
from numpyro_fwd.demo.chains import Chains, pooled_draws, sample, worst
from numpyro_fwd.demo.chapter import Chapter, Setting, code_of

__all__ = ["NAME", "chapter"]

NAME = "Two modes and the evidence"
QUESTION = (
    "A likelihood with two peaks in four dimensions, under a wide prior. LangevinSMC anneals "
    "particles from the prior to the posterior. It finds both modes, and estimates the evidence "
    "(marginal likelihood), which NUTS does not provide."
)
HEADER = ("", "log evidence", "share of the mode at +2", "R-hat", "seconds", "compile, s")
CAPTION = "Left: draws of one coordinate. Right: where each chain of NUTS stayed."
READING = (
    "2,000 particles; four chains of NUTS. Particles are not chains and have no R-hat. ± is "
    "the standard error that LangevinSMC reports."
)
SIZE, SCALE, MODE_WIDTH, PLACE = 4, 3.0, 0.3, 2.0
MODE_SHARES = (0.7, 0.3)  # of the modes at PLACE and at -PLACE


def model():
    """A wide prior, and a likelihood with two narrow peaks."""
    x = numpyro.sample("x", dist.Normal(0, SCALE).expand([SIZE]).to_event(1))
    peaks = [dist.Normal(at, MODE_WIDTH).log_prob(x).sum() for at in (PLACE, -PLACE)]
    numpyro.factor(
        "likelihood", jax.nn.logsumexp(jnp.stack(peaks) + jnp.log(jnp.array(MODE_SHARES)))
    )


def log_evidence() -> float:
    """Log evidence in closed form: each peak against the prior."""
    wide = scipy.stats.norm(0, np.hypot(SCALE, MODE_WIDTH))
    peaks = [SIZE * wide.logpdf(at) for at in (PLACE, -PLACE)]
    return float(scipy.special.logsumexp(peaks, b=MODE_SHARES))


def density(x: np.ndarray) -> np.ndarray:
    """Exact posterior density of a coordinate: the prior pulls the modes in a little."""
    shrink = SCALE**2 / (SCALE**2 + MODE_WIDTH**2)
    modes = (scipy.stats.norm(at * shrink, MODE_WIDTH * np.sqrt(shrink)) for at in (PLACE, -PLACE))
    return sum(share * mode.pdf(x) for share, mode in zip(MODE_SHARES, modes, strict=True))


def draw(samplers: dict[str, Chains], setting: Setting) -> str:
    """The first coordinate of all draws, and of each chain of NUTS."""
    figure, (left, right) = style.sheet(2, sharex=True)
    grid, bins = np.linspace(-4, 4, 600), np.linspace(-4, 4, 81)
    for (name, chains), look in zip(samplers.items(), (style.OURS, style.NUTS), strict=True):
        heights = np.histogram(pooled_draws(chains, "x")[:, 0], bins, density=True)[0]
        left.stairs(heights, bins, **look.line, label=name, linewidth=1.5)
    left.plot(grid, density(grid), **style.TRUTH.line, label="exact")
    left.set(xlabel="first coordinate", ylabel="posterior density")
    style.legend_above(left)
    chains_of_nuts(right, samplers["NUTS"])
    return style.save_picture(figure, setting.out / "4_two_modes.png")


def chains_of_nuts(axis, chains: Chains) -> None:
    """Plot where each chain of NUTS was."""
    paths = chains.idata.posterior["x"].values[
        :, :: max(1, chains.idata.posterior.draw.size // 60), 0
    ]
    for place, path in enumerate(paths):
        heights = place + np.linspace(-0.25, 0.25, len(path))
        axis.plot(path, heights, style.NUTS.marker, color=style.NUTS.color, ms=3, alpha=0.6)
    axis.set(xlabel="first coordinate", ylabel="chain of NUTS", xlim=(-4, 4))
    axis.set_yticks(range(len(paths)), [str(i + 1) for i in range(len(paths))])


def chapter(setting: Setting) -> Chapter:
    """Sample both modes and estimate the evidence."""
    keys = jax.random.split(jax.random.key(setting.seed + 4), 2)
    num_particles = 500 if setting.quick else 2000
    size = {"num_warmup": 5, "num_samples": 5, "num_chains": num_particles}
    ours = sample(LangevinSMC(model), keys[0], fields=("ancestors",), **size)
    nuts = sample(NUTS(model), keys[1], num_warmup=500, num_samples=300 if setting.quick else 2000)
    said = (
        "NUTS stays where a chain begins: its share of a mode is the share of the chains that "
        f"began near it. Its R-hat of {(r_hat := worst(nuts.idata)[1]):.2f} "
        + ("shows this." if r_hat > 1.01 else "does not show this: all began near one mode.")
    )
    picture = draw({"LangevinSMC": ours, "NUTS": nuts}, setting)
    files = (ours.write(setting.out, "4_langevin_smc"), nuts.write(setting.out, "4_nuts"))
    change = (
        "mcmc = MCMC(NUTS(model), num_chains=4, ...)",
        'mcmc = MCMC(LangevinSMC(model), num_chains=2_000, chain_method="vectorized", ...)',
    )
    code = code_of(*change, model)
    rows = table(ours, nuts)
    return Chapter(NAME, QUESTION, HEADER, rows, picture, CAPTION, READING, said, files, code)


def table(ours: Chains, nuts: Chains) -> list[tuple[str, ...]]:
    """Rows of truth, particles and chains."""
    summary = smc_summary(ours.mcmc)
    evidence = f"{summary.log_evidence:.2f} ± {summary.log_evidence_error:.2f}"
    times = [(f"{sampler.seconds:.1f}", f"{sampler.compilation:.1f}") for sampler in (ours, nuts)]
    shares = [f"{np.mean(pooled_draws(sampler, 'x')[:, 0] > 0):.2f}" for sampler in (ours, nuts)]
    return [
        ("exact", f"{log_evidence():.2f}", f"{MODE_SHARES[0]:.2f}", "", "", ""),
        ("LangevinSMC", evidence, shares[0], "", *times[0]),
        ("NUTS", "none", shares[1], f"{worst(nuts.idata)[1]:.2f}", *times[1]),
    ]
