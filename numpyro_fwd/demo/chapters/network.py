"""A network with one Bayesian layer, beside an ensemble and NUTS on all of its weights."""

import time
from functools import partial
from typing import Any, NamedTuple

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import scipy.special
import scipy.stats
from numpyro.infer import NUTS

from numpyro_fwd import GOHSMC
from numpyro_fwd.demo import style
from numpyro_fwd.demo.chains import Chains, pooled_draws, sample
from numpyro_fwd.demo.chapter import Chapter, Setting, code_of
from numpyro_fwd.demo.sampling import compilation, covered

__all__ = ["NAME", "chapter", "model", "network_data"]

NAME = "A network with one Bayesian layer"
QUESTION = (
    "A small network with two hidden layers of 16, on 150 rows with a gap in the middle and "
    "nothing beyond the edges. GOHSMC samples the first layer with particles and trains the other "
    "layers. It is compared with an ensemble of five trained networks, and with NUTS on all "
    "weights, for which this network is small enough."
)
HEADER = (
    "",
    "NLL",
    *(f"{number}, {place}" for number in ("sd", "held") for place in ("data", "gap", "outside")),
    "R-hat",
    "seconds",
    "compile, s",
)
CAPTION = "Predictions of each method: they should be uncertain where there are no data."
READING = (
    "NLL: negative log density of a new row, smaller is better. sd: of the curves, in the data, in "
    "the gap, outside. Held: share of the points whose 90 % band holds the true curve. R-hat: of "
    "predictions, four chains of NUTS, trees of at most 63 steps."
)
NUM_HIDDEN, NOISE, NUM_MEMBERS, NUM_SAMPLES = 16, 0.15, 5, 200
GAP, EDGE = (-0.5, 1.0), 3.0  # no data in the gap and beyond the edge
CURVE_GRID = np.linspace(-4.5, 4.5, 181, dtype=np.float32)
LAYERS = {  # name: shape, and scale of the prior or of the first values
    "first": ((2, NUM_HIDDEN), 2.0),
    "second": ((NUM_HIDDEN + 1, NUM_HIDDEN), NUM_HIDDEN**-0.5),
    "last": ((NUM_HIDDEN + 1, 1), NUM_HIDDEN**-0.5),
}


class Predictions(NamedTuple):
    """Mean at each point, one row per draw, noise of each draw; seconds, and of compilation."""

    mean: np.ndarray
    noise: np.ndarray
    seconds: float
    compilation: float
    r_hat: str = ""


def curve(x):
    """The true curve."""
    return np.sin(2 * x) + 0.3 * x


def network_data(num: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Rows to the left and to the right of the gap."""
    x = rng.uniform(-EDGE, EDGE, 4 * num)
    x = x[(x < GAP[0]) | (x > GAP[1])][:num]
    y = curve(x) + NOISE * rng.normal(size=x.size)
    return x.astype(np.float32), y.astype(np.float32)


def network_output(weights: dict[str, Any], x):
    """Output of the network; the last row of each matrix is the bias."""
    hidden = jnp.tanh(x[:, None] @ weights["first"][:-1] + weights["first"][-1])
    hidden = jax.nn.gelu(hidden @ weights["second"][:-1] + weights["second"][-1])
    return (hidden @ weights["last"][:-1] + weights["last"][-1])[:, 0]


def matrix(name: str, is_bayesian: bool):
    """A layer: a latent with a prior, or a parameter to be trained."""
    shape, scale = LAYERS[name]
    if is_bayesian:
        return numpyro.sample(name, dist.Normal(0, scale).expand(shape).to_event(2))
    return numpyro.param(name, lambda key: scale * jax.random.normal(key, shape))


def model(x, y=None, bayesian: tuple[str, ...] = ("first",)):
    """The network with a prior on some layers; the noise is trained unless all have one."""
    weights = {name: matrix(name, name in bayesian) for name in LAYERS}
    if len(bayesian) == len(LAYERS):
        noise = numpyro.sample("noise", dist.HalfNormal(0.5))
    else:
        noise = numpyro.param("noise", 0.5, constraint=dist.constraints.positive)
    with numpyro.plate("data", x.shape[0]):
        mean = numpyro.deterministic("mean", network_output(weights, x))
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


def partly_bayesian(key, train, points, num_steps: int) -> Predictions:
    """GOHSMC: particles for the first layer, gradient descent for all others."""
    rate = optax.cosine_decay_schedule(0.03, max(1, int(0.7 * num_steps)))
    smc = GOHSMC(model, optax.adam(rate), num_particles=40, step_size=0.02, num_integration_steps=3)
    begin = time.perf_counter()
    with compilation() as spans:
        result = smc.run(key, num_steps, *train, progress_bar=False)
        draws = smc.predictive(jax.random.fold_in(key, 1), result, points, num_samples=NUM_SAMPLES)
        mean = np.asarray(draws["mean"], float)
    elapsed, compiled = time.perf_counter() - begin, covered(spans)
    noise = np.full(len(mean), float(result.params["noise"]))
    return Predictions(mean, noise, elapsed - compiled, compiled)


def ensemble(key, train, points, num_steps: int) -> Predictions:
    """Networks trained by maximum likelihood from different starts, with the same optimizer."""
    begin = time.perf_counter()
    with compilation() as spans:
        fit = jax.jit(jax.vmap(partial(member, train=train, num_steps=num_steps)))
        weights, noise = fit(jax.random.split(key, NUM_MEMBERS))
        mean = np.asarray(jax.vmap(partial(network_output, x=points))(weights), float)
    elapsed, compiled = time.perf_counter() - begin, covered(spans)
    return Predictions(mean, np.asarray(noise, float), elapsed - compiled, compiled)


def member(key, train, num_steps: int):
    """One trained network and its noise."""
    x, y = train
    keys = dict(zip(LAYERS, jax.random.split(key, len(LAYERS)), strict=True))
    start = {
        name: LAYERS[name][1] * jax.random.normal(keys[name], LAYERS[name][0]) for name in keys
    }
    optim = optax.adam(optax.cosine_decay_schedule(0.03, num_steps))

    def loss(params):
        weights, log_noise = params
        return -dist.Normal(network_output(weights, x), jnp.exp(log_noise)).log_prob(y).mean()

    def step(state, _):
        params, memory = state
        change, memory = optim.update(jax.grad(loss)(params), memory)
        return (optax.apply_updates(params, change), memory), None

    params = (start, jnp.log(0.5))
    (params, _), _ = jax.lax.scan(step, (params, optim.init(params)), length=num_steps)
    return params[0], jnp.exp(params[1])


def all_bayesian(key, train, points, size: dict[str, Any]) -> tuple[Predictions, Chains]:
    """NUTS with a prior on all weights, its trees kept short."""
    kernel = NUTS(partial(model, bayesian=tuple(LAYERS)), max_tree_depth=6)
    chains = sample(kernel, key, *train, **size)
    draws = {name: jnp.asarray(pooled_draws(chains, name)) for name in (*LAYERS, "noise")}
    mean = np.asarray(jax.vmap(partial(network_output, x=points))(draws), float)
    worst = rhat_of(mean.reshape(4, -1, mean.shape[-1]))
    noise = np.asarray(draws["noise"], float)
    return Predictions(mean, noise, chains.seconds, chains.compilation, f"{worst:.2f}"), chains


def rhat_of(mean: np.ndarray) -> float:
    """Largest R-hat of a prediction: the weights themselves have symmetries."""
    return float(max(arviz_stats.rhat(mean[:, :, i]) for i in range(0, mean.shape[2], 5)))


def places() -> dict[str, np.ndarray]:
    """Points of the grid with data, and without."""
    gap = (CURVE_GRID > GAP[0]) & (CURVE_GRID < GAP[1])
    outside = np.abs(CURVE_GRID) > EDGE
    return {"data": ~gap & ~outside, "gap": gap, "outside": outside}


def row(name: str, predictions: Predictions, test) -> tuple[str, ...]:
    """Cells: what it says of new rows, and of the curve in each place."""
    mean, new = predictions.mean[:, : CURVE_GRID.size], predictions.mean[:, CURVE_GRID.size :]
    scores = scipy.stats.norm(new, predictions.noise[:, None]).logpdf(test[1])
    nll = -np.mean(scipy.special.logsumexp(scores, axis=0) - np.log(len(new)))
    low, high = np.quantile(mean, (0.05, 0.95), axis=0)
    inside = (low < curve(CURVE_GRID)) & (curve(CURVE_GRID) < high)
    at = places()
    spreads = (f"{mean.std(axis=0)[at[place]].mean():.2f}" for place in at)
    shares = (f"{inside[at[place]].mean():.2f}" for place in at)
    return (name, f"{nll:.2f}", *spreads, *shares, predictions.r_hat, f"{predictions.seconds:.1f}",
            f"{predictions.compilation:.1f}")  # fmt: skip


def draw(methods: dict[str, Predictions], train, setting: Setting) -> str:
    """Mean and band of each method, with data and truth."""
    figure, axes = style.sheet(len(methods), sharey=True)
    looks = (style.OURS, style.OTHER_SAMPLER, style.NUTS)
    for axis, (name, predictions), look in zip(axes, methods.items(), looks, strict=True):
        mean = predictions.mean[:, : CURVE_GRID.size]
        low, high = np.quantile(mean, (0.05, 0.95), axis=0)
        axis.fill_between(
            CURVE_GRID, low, high, color=look.color, alpha=0.3, label="90 % of curves"
        )
        axis.plot(CURVE_GRID, mean.mean(axis=0), **look.line, label="their mean")
        axis.plot(CURVE_GRID, curve(CURVE_GRID), **style.TRUTH.line, label="truth")
        axis.plot(*train, "o", color="0.4", ms=2, label="data")
        axis.set(xlabel=f"x  ({name})", ylim=(-4, 4))
        style.legend_above(axis, columns=2)
    axes[0].set_ylabel("y")
    return style.save_picture(figure, setting.out / "5_network.png")


def chapter(setting: Setting) -> Chapter:
    """Fit the network in three ways."""
    rng = np.random.default_rng(setting.seed)
    train, test = network_data(150, rng), network_data(200, rng)
    points = jnp.concatenate([CURVE_GRID, test[0]])
    keys = jax.random.split(jax.random.key(setting.seed + 5), 3)
    num_steps = 150 if setting.quick else 1500
    half = 20 if setting.quick else 400
    size = {"num_warmup": half, "num_samples": half}
    everything, chains = all_bayesian(keys[2], train, points, size)
    methods = {
        "GOHSMC": partly_bayesian(keys[0], train, points, num_steps),
        "ensemble": ensemble(keys[1], train, points, num_steps),
        "NUTS": everything,
    }
    rows = {name: row(name, predictions, test) for name, predictions in methods.items()}
    picture = draw(methods, train, setting)
    files = (chains.write(setting.out, "5_nuts"),)
    table = list(rows.values())
    change = (
        "mcmc = MCMC(NUTS(partial(model, bayesian=tuple(LAYERS))), ...)",
        "smc = GOHSMC(model, optax.adam(rate), num_particles=40, step_size=0.02, "
        "num_integration_steps=3)",
    )
    code, said = code_of(*change, matrix, model), verdict(rows)
    return Chapter(NAME, QUESTION, HEADER, table, picture, CAPTION, READING, said, files, code)


def verdict(rows: dict[str, tuple[str, ...]]) -> str:
    """Who is best on new rows, and what the bands hold in the gap and outside."""
    best = min(rows, key=lambda name: float(rows[name][1]))
    gap, outside = (
        ", ".join(f"{name} {100 * float(cells[at]):.0f} %" for name, cells in rows.items())
        for at in (6, 7)
    )
    return (
        f"Best on new rows: {best}. Truth within the bands in the gap: {gap}. Outside, where the "
        f"network extrapolates freely: {outside}. One Bayesian layer captures only part of the "
        "uncertainty: if NUTS on all weights mixes, use NUTS; this is for larger networks."
    )
