"""A network with one Bayesian layer.

A small network with two hidden layers of 16, on 150 rows with a gap in the middle and nothing
beyond the edges. GOHSMC samples the first layer with particles and trains the others. NUTS samples
all weights, for which this network is small enough.
"""

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

from examples.demo import style
from examples.demo.chains import Stopwatch, sample
from examples.demo.chapter import Results, code_of
from numpyro_fwd import GOHSMC

NUM_HIDDEN, NOISE = 16, 0.15
PLACES = ("data", "gap", "outside")
GAP, EDGE = (-0.5, 1.0), 3.0  # no data in the gap and beyond the edge
HEADER = (
    *("", "NLL", *(f"sd, {place}" for place in PLACES), *(f"held, {place}" for place in PLACES)),
    *("R-hat", "seconds", "compile, s"),
)
CHANGE = (
    "mcmc = MCMC(NUTS(partial(model, bayesian=tuple(LAYERS))), ...)",
    "smc = GOHSMC(model, optax.adam(rate), num_particles=40, step_size=0.02, ...)",
)
GRID = np.linspace(-4.5, 4.5, 181, dtype=np.float32)
LAYERS = {  # name: shape, and scale of the prior or of the first values
    "first": ((2, NUM_HIDDEN), 2.0),
    "second": ((NUM_HIDDEN + 1, NUM_HIDDEN), NUM_HIDDEN**-0.5),
    "last": ((NUM_HIDDEN + 1, 1), NUM_HIDDEN**-0.5),
}


class Predictions(NamedTuple):
    """Curve on the grid and mean of new rows, one row per draw; noise of each draw."""

    curve: np.ndarray
    new: np.ndarray
    noise: np.ndarray


def matrix(name: str, is_bayesian: bool):
    """A layer: a latent with a prior, or a parameter to be trained."""
    shape, scale = LAYERS[name]
    if is_bayesian:
        return numpyro.sample(name, dist.Normal(0, scale).expand(shape).to_event(2))
    return numpyro.param(name, lambda key: scale * jax.random.normal(key, shape))


def output(weights: dict[str, Any], x):
    """Output of the network; the last row of each matrix is the bias."""
    hidden = jnp.tanh(x[:, None] @ weights["first"][:-1] + weights["first"][-1])
    hidden = jax.nn.gelu(hidden @ weights["second"][:-1] + weights["second"][-1])
    return (hidden @ weights["last"][:-1] + weights["last"][-1])[:, 0]


def model(x, y=None, bayesian=("first",)):
    """The network with a prior on some layers; the noise is trained unless all have one."""
    weights = {name: matrix(name, name in bayesian) for name in LAYERS}
    if len(bayesian) == len(LAYERS):
        noise = numpyro.sample("noise", dist.HalfNormal(0.5))
    else:
        noise = numpyro.param("noise", 0.5, constraint=dist.constraints.positive)
    with numpyro.plate("data", x.shape[0]):
        mean = numpyro.deterministic("mean", output(weights, x))
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


def work_through(seed: int, quick: bool) -> Results:
    """Fit the network in both ways."""
    rng = np.random.default_rng(seed)
    train, test = simulated(150, rng), simulated(200, rng)
    points = jnp.concatenate([GRID, test[0]])
    key_smc, key_predict, key_nuts = jax.random.split(jax.random.key(seed + 5), 3)
    num_steps, half = (150, 20) if quick else (1500, 400)

    rate = optax.cosine_decay_schedule(0.03, int(0.7 * num_steps))
    smc = GOHSMC(model, optax.adam(rate), num_particles=40, step_size=0.02, num_integration_steps=3)
    with Stopwatch() as watch:
        result = smc.run(key_smc, num_steps, *train, progress_bar=False)
        draws = smc.predictive(key_predict, result, points, num_samples=200)
        ours = split(draws["mean"], np.full(200, float(result.params["noise"])))

    everything = partial(model, bayesian=tuple(LAYERS))
    kernel = NUTS(everything, max_tree_depth=6)
    chains = sample(kernel, key_nuts, *train, num_warmup=half, num_samples=half)
    draws = chains.mcmc.get_samples()
    nuts = split(jax.vmap(partial(output, x=points))(draws), draws["noise"])

    rows = {
        "GOHSMC": (*cells(ours, test[1]), "", f"{watch.seconds:.1f}", f"{watch.compilation:.1f}"),
        "NUTS": (*cells(nuts, test[1]), f"{largest_rhat(nuts.curve):.2f}", *chains.times),
    }
    best = min(rows, key=lambda name: float(rows[name][0]))
    return Results(
        HEADER,
        [(name, *found) for name, found in rows.items()],
        "NLL: negative log density of a new row, smaller is better. sd: of the curves, in the "
        "data, in the gap, outside. Held: share of the points whose 90 % band holds the true "
        "curve. R-hat: of predictions, four chains of NUTS, trees of at most 63 steps.",
        draw({"GOHSMC": ours, "NUTS": nuts}, train),
        "Predictions of each method: they should be uncertain where there are no data.",
        f"Smaller loss on new rows: {best}. GOHSMC is for networks that are too large for NUTS on "
        "all weights; its one Bayesian layer captures part of the uncertainty.",
        code_of(*CHANGE, matrix, model),
    )


def true_curve(x):
    """The mean of the data."""
    return np.sin(2 * x) + 0.3 * x


def simulated(num: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Rows to the left and to the right of the gap."""
    x = rng.uniform(-EDGE, EDGE, 4 * num)
    x = x[(x < GAP[0]) | (x > GAP[1])][:num]
    y = true_curve(x) + NOISE * rng.normal(size=x.size)
    return x.astype(np.float32), y.astype(np.float32)


def split(mean, noise) -> Predictions:
    """Predictions at the grid and at new rows, which follow it."""
    mean = np.asarray(mean, float)
    return Predictions(mean[:, : GRID.size], mean[:, GRID.size :], np.asarray(noise, float))


def largest_rhat(curve: np.ndarray) -> float:
    """Largest R-hat of a prediction: the weights themselves have symmetries."""
    chains = curve.reshape(4, -1, curve.shape[1])
    return float(max(arviz_stats.rhat(chains[:, :, i]) for i in range(0, GRID.size, 5)))


def cells(predictions: Predictions, y: np.ndarray) -> tuple[str, ...]:
    """What a method says of new rows, and of the curve in each place."""
    scores = scipy.stats.norm(predictions.new, predictions.noise[:, None]).logpdf(y)
    nll = -np.mean(scipy.special.logsumexp(scores, axis=0) - np.log(len(scores)))
    low, high = np.quantile(predictions.curve, (0.05, 0.95), axis=0)
    is_held = (low < true_curve(GRID)) & (true_curve(GRID) < high)
    is_gap, is_outside = (GRID > GAP[0]) & (GRID < GAP[1]), np.abs(GRID) > EDGE
    places = (~is_gap & ~is_outside, is_gap, is_outside)
    spreads = (f"{predictions.curve.std(axis=0)[place].mean():.2f}" for place in places)
    return (f"{nll:.2f}", *spreads, *(f"{is_held[place].mean():.2f}" for place in places))


def draw(methods: dict[str, Predictions], train):
    """Mean and band of each method, with data and truth."""
    figure, axes = style.sheet(len(methods), sharey=True)
    for axis, (name, predictions), look in zip(
        axes, methods.items(), (style.OURS, style.NUTS), strict=True
    ):
        low, high = np.quantile(predictions.curve, (0.05, 0.95), axis=0)
        axis.fill_between(GRID, low, high, color=look.color, alpha=0.3, label="90 % of curves")
        axis.plot(GRID, predictions.curve.mean(axis=0), **look.line, label="their mean")
        axis.plot(GRID, true_curve(GRID), **style.TRUTH.line, label="truth")
        axis.plot(*train, "o", color="0.4", ms=2, label="data")
        axis.set(xlabel=f"x  ({name})", ylim=(-4, 4))
        style.legend_above(axis, columns=2)
    axes[0].set_ylabel("y")
    return figure
