"""Hierarchies as users write them, centred or not, for comparisons of samplers."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

__all__ = ["MODELS", "NOISE", "effect"]

Model = Callable[[], None]
NOISE = "_z"  # how the name of the noise of a non-centred effect ends


def effect(name: str, loc, scale, size: int, is_centred: bool):
    """A normal effect, or the same from its noise."""
    if is_centred:
        return numpyro.sample(name, dist.Normal(loc, scale).expand([size]).to_event(1))
    z = numpyro.sample(name + NOISE, dist.Normal(0, 1).expand([size]).to_event(1))
    return numpyro.deterministic(name, loc + scale * z)


def counts(sizes: np.ndarray, spread: float, is_centred: bool = True) -> Model:
    """Counts in groups of `sizes` rows, with an intercept for each group."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(sizes.size), sizes)
    intercepts = 1 + spread * rng.normal(size=sizes.size)
    x = rng.normal(size=group.size)
    y = rng.poisson(np.exp(0.3 * intercepts[group] + 0.3 * x))

    def model() -> None:
        mu, slope = (numpyro.sample(name, dist.Normal(0, 5)) for name in ("mu", "slope"))
        tau = numpyro.sample("tau", dist.HalfCauchy(2))
        a = effect("a", mu, tau, sizes.size, is_centred)
        numpyro.sample("y", dist.Poisson(jnp.exp(a[group] + slope * x)), obs=y)

    return model


def item_response(is_centred: bool = True, num_people: int = 400, num_items: int = 30) -> Model:
    """Two parameters for each item."""
    rng = np.random.default_rng(0)
    ability = rng.normal(size=num_people)
    sharpness, level = np.exp(0.3 * rng.normal(size=num_items)), rng.normal(size=num_items)
    p = 1 / (1 + np.exp(-sharpness * (ability[:, None] - level)))
    y = (rng.random(p.shape) < p).astype(int)

    def model() -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        of_level = numpyro.sample("of_level", dist.HalfNormal(2))
        of_sharpness = numpyro.sample("of_sharpness", dist.HalfNormal(1))
        b = effect("level", mu, of_level, num_items, is_centred)
        a = effect("log_sharpness", 0.0, of_sharpness, num_items, is_centred)
        t = numpyro.sample("ability", dist.Normal(0, 1).expand([num_people]).to_event(1))
        logits = jnp.exp(a) * (t[:, None] - b)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return model


def horseshoe(is_centred: bool = True, num_rows: int = 60, size: int = 20) -> Model:
    """Regression with 20 coefficients, three of which matter."""
    rng = np.random.default_rng(0)
    x, truth = rng.normal(size=(num_rows, size)), np.zeros(size)
    truth[:3] = 2.0, -1.0, 0.5
    y = x @ truth + rng.normal(size=num_rows)

    def model() -> None:
        tau = numpyro.sample("tau", dist.HalfCauchy(1))
        scale = numpyro.sample("scale", dist.HalfCauchy(1).expand([size]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        b = effect("b", 0.0, tau * scale, size, is_centred)
        numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)

    return model


def radon(is_centred: bool = True, num_counties: int = 85) -> Model:
    """Houses in counties, half of which have two, with a covariate of the county."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 30, size=num_counties)
    sizes[rng.random(num_counties) < 0.5] = 2
    county = np.repeat(np.arange(num_counties), sizes)
    floor, uranium = rng.integers(0, 2, size=county.size), rng.normal(size=num_counties)
    a = 1.4 + 0.7 * uranium + 0.15 * rng.normal(size=num_counties)
    y = a[county] - 0.7 * floor + 0.75 * rng.normal(size=county.size)

    def model() -> None:
        names = ("level", "slope", "of_floor")
        level, slope, of_floor = (numpyro.sample(name, dist.Normal(0, 10)) for name in names)
        tau, sigma = (numpyro.sample(name, dist.HalfCauchy(1)) for name in ("tau", "sigma"))
        a = effect("a", level + slope * uranium, tau, num_counties, is_centred)
        numpyro.sample("y", dist.Normal(a[county] + of_floor * floor, sigma), obs=y)

    return model


# made when they are asked for: `make(is_centred=...)`
MODELS: dict[str, Callable[..., Model]] = {
    "500 groups of 5 counts": partial(counts, np.full(500, 5), 0.7),
    "200 groups, half of 2 rows, half of 100": partial(
        counts, np.where(np.arange(200) < 100, 2, 100), 0.3
    ),
    "item response, 400 x 30": item_response,
    "horseshoe, 20 coefficients": horseshoe,
    "radon, 85 counties": radon,
}
