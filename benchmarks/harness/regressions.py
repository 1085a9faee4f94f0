"""Regressions of every family that reads a few rows, on tables of any length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform
from sklearn.datasets import make_friedman1

__all__ = ["FAMILIES", "OF_FRIEDMAN", "mixed", "table"]

SIZE = 20
POSITIVE = dist.HalfNormal(2.0)
SHAPE = dist.Gamma(2.0, 0.5)


@dataclass(frozen=True)
class Regression:
    """A likelihood with all its parameters sampled.

    Attributes
    ----------
    draw
        Responses from a generator and predictors.
    likelihood
        Distribution from predictors and the other latents, by name.
    others
        Priors of these.
    """

    draw: Callable[[Any, np.ndarray], np.ndarray]
    likelihood: Callable[..., dist.Distribution]
    others: dict[str, dist.Distribution]


def share(eta: np.ndarray) -> np.ndarray:
    """Of log odds."""
    return 1 / (1 + np.exp(-eta))


def inflated(rng: Any, eta: np.ndarray) -> np.ndarray:
    """Counts, three of ten of them zero besides."""
    return rng.poisson(np.exp(eta)) * (rng.random(eta.size) < 0.7)


def shares(rng: Any, eta: np.ndarray) -> np.ndarray:
    """Beta, away from the ends by what float32 resolves."""
    return np.clip(rng.beta(8 * share(eta), 8 * share(-eta)), 1e-5, 1 - 1e-5)


CUTS = dist.TransformedDistribution(dist.Normal(0, 2).expand([3]).to_event(1), OrderedTransform())
FAMILIES: dict[str, Regression] = {
    "logistic": Regression(
        lambda rng, eta: rng.random(eta.size) < share(eta), lambda e: dist.Bernoulli(logits=e), {}
    ),
    "normal, scale": Regression(
        lambda rng, eta: eta + 1.3 * rng.normal(size=eta.size),
        lambda e, scale: dist.Normal(e, scale),
        {"scale": POSITIVE},
    ),
    "Poisson": Regression(
        lambda rng, eta: rng.poisson(np.exp(eta)), lambda e: dist.Poisson(jnp.exp(e)), {}
    ),
    "negative binomial, dispersion": Regression(
        lambda rng, eta: rng.negative_binomial(2, 2 / (2 + np.exp(eta))),
        lambda e, size: dist.NegativeBinomial2(jnp.exp(e), size),
        {"size": SHAPE},
    ),
    "zero-inflated Poisson, share": Regression(
        inflated,
        lambda e, gate: dist.ZeroInflatedPoisson(gate, jnp.exp(e)),
        {"gate": dist.Beta(1.0, 1.0)},
    ),
    "gamma, shape": Regression(
        lambda rng, eta: rng.gamma(1.5, np.exp(eta) / 1.5),
        lambda e, shape: dist.Gamma(shape, shape * jnp.exp(-e)),
        {"shape": SHAPE},
    ),
    "Weibull, shape": Regression(
        lambda rng, eta: np.exp(eta) * rng.weibull(1.7, eta.size),
        lambda e, shape: dist.Weibull(jnp.exp(e), shape),
        {"shape": SHAPE},
    ),
    "beta, precision": Regression(
        shares,
        lambda e, precision: dist.BetaProportion(jax.nn.sigmoid(e), precision),
        {"precision": SHAPE},
    ),
    "ordered, cutpoints": Regression(
        lambda rng, eta: np.digitize(eta + rng.logistic(size=eta.size), [-1.0, 0.3, 1.5]),
        lambda e, cuts: dist.OrderedLogistic(e, cuts),
        {"cuts": CUTS},
    ),
    "Student t, scale and df": Regression(
        lambda rng, eta: eta + 0.8 * rng.standard_t(4, size=eta.size),
        lambda e, df, scale: dist.StudentT(df, e, scale),
        {"df": SHAPE, "scale": POSITIVE},
    ),
    "lognormal, scale": Regression(
        lambda rng, eta: np.exp(eta + 1.3 * rng.normal(size=eta.size)),
        lambda e, scale: dist.LogNormal(e, scale),
        {"scale": POSITIVE},
    ),
    "exponential": Regression(
        lambda rng, eta: rng.exponential(np.exp(eta)), lambda e: dist.Exponential(jnp.exp(-e)), {}
    ),
    "logistic errors, scale": Regression(
        lambda rng, eta: eta + 0.8 * rng.logistic(size=eta.size),
        lambda e, scale: dist.Logistic(e, scale),
        {"scale": POSITIVE},
    ),
    "beta-binomial, concentration": Regression(
        lambda rng, eta: rng.binomial(20, shares(rng, eta)),
        lambda e, size: dist.BetaBinomial(
            size * jax.nn.sigmoid(e), size * jax.nn.sigmoid(-e), total_count=20
        ),
        {"size": SHAPE},
    ),
}


# likelihoods for the responses of Friedman's recipe, by the name of a table
OF_FRIEDMAN = {
    "Friedman, normal": "normal, scale",
    "Friedman, Student t": "Student t, scale and df",
}


def friedman(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The first recipe of Friedman 1991, Multivariate adaptive regression splines.

    Ten features, of which five count, and their squares, all centred and scaled: a response that is
    smooth in them, which the regression can only approximate.
    """
    features, y = make_friedman1(num_rows, n_features=SIZE // 2, noise=1.0, random_state=0)
    centred = features - 0.5
    x = np.concatenate([centred, centred**2], axis=1)
    x, y = ((each - each.mean(0)) / each.std(0) for each in (x, y))
    return x.astype(np.float32), y


def table(name: str, num_rows: int) -> tuple[Callable, tuple]:
    """A model of one of the :data:`FAMILIES`, ``model(x, y, batch=None)``, and its data.

    Or of :data:`OF_FRIEDMAN`.
    """
    chosen, rng = FAMILIES[OF_FRIEDMAN.get(name, name)], np.random.default_rng(0)
    if name in OF_FRIEDMAN:
        x, y = friedman(num_rows)
    else:
        x = 0.5 * rng.normal(size=(num_rows, SIZE)).astype(np.float32)
        y = np.asarray(chosen.draw(rng, x @ rng.normal(size=SIZE) * 0.3))
    y = y.astype(np.int32 if name.startswith("ordered") else np.float32)

    def model(x, y, batch=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([SIZE]).to_event(1))
        others = {each: numpyro.sample(each, prior) for each, prior in chosen.others.items()}
        with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
            numpyro.sample("y", chosen.likelihood(x[rows] @ slope, **others), obs=y[rows])

    return model, (jnp.asarray(x), jnp.asarray(y))


def mixed(name: str, num_rows: int, num_groups: int) -> tuple[Callable, tuple]:
    """A regression with an intercept for each group, centred, and its data.

    The model is ``model(x, group, y, batch=None)``; groups have as many rows as chance gives them.
    """
    chosen, rng = FAMILIES[name], np.random.default_rng(0)
    x = 0.5 * rng.normal(size=(num_rows, SIZE)).astype(np.float32)
    group = rng.integers(0, num_groups, num_rows).astype(np.int32)
    effect = -0.5 + 0.7 * rng.normal(size=num_groups)
    y = chosen.draw(rng, x @ rng.normal(size=SIZE) * 0.3 + effect[group]).astype(np.float32)

    def model(x, group, y, batch=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([SIZE]).to_event(1))
        centre = numpyro.sample("centre", dist.Normal(0, 2))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("groups", num_groups):
            effect = numpyro.sample("effect", dist.Normal(centre, spread))
        with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
            eta = x[rows] @ slope + effect[group[rows]]
            numpyro.sample("y", chosen.likelihood(eta), obs=y[rows])

    return model, tuple(map(jnp.asarray, (x, group, y)))
