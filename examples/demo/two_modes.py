"""Two modes and the evidence.

A likelihood with two peaks in four dimensions, under a wide prior. LangevinSMC anneals particles
from the prior to the posterior. It finds both modes, and estimates the evidence (marginal
likelihood), which NUTS does not provide. Both are known in closed form.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.special
import scipy.stats
from numpyro.infer import NUTS

from examples.demo import style
from examples.demo.chains import Chains, sample
from examples.demo.chapter import Results, code_of
from numpyro_fwd import LangevinSMC, smc_summary

CHANGE = (
    "mcmc = MCMC(NUTS(model), num_chains=4, ...)",
    'mcmc = MCMC(LangevinSMC(model), num_chains=2_000, chain_method="vectorized", ...)',
)
SIZE, SCALE, WIDTH = 4, 3.0, 0.3  # of the vector, of the prior and of a peak
SHARES = {2.0: 0.7, -2.0: 0.3}  # place of a peak, and its share


def model():
    """A wide prior, and a likelihood with two narrow peaks."""
    x = numpyro.sample("x", dist.Normal(0, SCALE).expand([SIZE]).to_event(1))
    peaks = [
        jnp.log(share) + dist.Normal(at, WIDTH).log_prob(x).sum() for at, share in SHARES.items()
    ]
    numpyro.factor("likelihood", jax.nn.logsumexp(jnp.stack(peaks)))


def work_through(seed: int, quick: bool) -> Results:
    """Sample both modes and estimate the evidence."""
    keys = jax.random.split(jax.random.key(seed + 4), 2)
    num_particles, num_samples = (500, 300) if quick else (2000, 2000)
    size = {"num_warmup": 5, "num_samples": 5, "num_chains": num_particles}
    ours = sample(LangevinSMC(model), keys[0], fields=("ancestors",), **size)
    nuts = sample(NUTS(model), keys[1], num_warmup=500, num_samples=num_samples)
    summary, r_hat = smc_summary(ours.mcmc), nuts.worst()[1]
    evidence = f"{summary.log_evidence:.2f} ± {summary.log_evidence_error:.2f}"
    shares = [f"{np.mean(chains.draws('x')[:, 0] > 0):.2f}" for chains in (ours, nuts)]
    shows = "shows this" if r_hat > 1.01 else "does not show this: all began near one mode"
    return Results(
        ("", "log evidence", "share of the mode at +2", "R-hat", "seconds", "compile, s"),
        [
            ("exact", f"{log_evidence():.2f}", f"{SHARES[2.0]:.2f}", "", "", ""),
            ("LangevinSMC", evidence, shares[0], "", *ours.times),
            ("NUTS", "none", shares[1], f"{r_hat:.2f}", *nuts.times),
        ],
        f"{num_particles:,} particles; four chains of NUTS. Particles are not chains and have no "
        "R-hat. ± is the standard error that LangevinSMC reports.",
        draw(ours, nuts),
        "Left: draws of one coordinate. Right: where each chain of NUTS stayed.",
        "NUTS stays where a chain begins: its share of a mode is the share of the chains that "
        f"began near it. Its R-hat of {r_hat:.2f} {shows}.",
        code_of(*CHANGE, model),
    )


def log_evidence() -> float:
    """Log evidence in closed form: each peak against the prior."""
    wide = scipy.stats.norm(0, np.hypot(SCALE, WIDTH))
    peaks = [SIZE * wide.logpdf(at) for at in SHARES]
    return float(scipy.special.logsumexp(peaks, b=list(SHARES.values())))


def density(x: np.ndarray) -> np.ndarray:
    """Exact posterior density of a coordinate: the prior pulls the modes in a little."""
    shrink = SCALE**2 / (SCALE**2 + WIDTH**2)
    sd = WIDTH * np.sqrt(shrink)
    modes = [share * scipy.stats.norm(at * shrink, sd).pdf(x) for at, share in SHARES.items()]
    return np.sum(modes, axis=0)


def draw(ours: Chains, nuts: Chains):
    """The first coordinate of all draws, and of each chain of NUTS."""
    figure, (left, right) = style.sheet(2, sharex=True)
    grid, bins = np.linspace(-4, 4, 600), np.linspace(-4, 4, 81)
    for name, chains, look in (("LangevinSMC", ours, style.OURS), ("NUTS", nuts, style.NUTS)):
        heights = np.histogram(chains.draws("x")[:, 0], bins, density=True)[0]
        left.stairs(heights, bins, **look.line, label=name, linewidth=1.5)
    left.plot(grid, density(grid), **style.TRUTH.line, label="exact")
    left.set(xlabel="first coordinate", ylabel="posterior density")
    style.legend_above(left)
    paths = np.asarray(nuts.mcmc.get_samples(group_by_chain=True)["x"])[:, ::30, 0]
    for place, path in enumerate(paths, 1):
        heights = place + np.linspace(-0.25, 0.25, len(path))
        right.plot(path, heights, style.NUTS.marker, color=style.NUTS.color, ms=3, alpha=0.6)
    right.set(xlabel="first coordinate", ylabel="chain of NUTS", xlim=(-4, 4))
    right.set_yticks(range(1, len(paths) + 1))
    return figure
