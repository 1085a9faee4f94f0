"""Hierarchies without data, whose draws a forward pass through the model makes exactly.

Effects and noise are read by sites that are masked out, as a model's are whose likelihood is
switched off.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.contrib.control_flow import scan
from numpyro.handlers import mask, reparam, scope
from numpyro.infer import Predictive
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

__all__ = ["PADDED", "STRUCTURES", "forward_draws"]

KEPT = np.array([True, False, True, True, False, True])  # rows of a table that was padded


def read(value: ArrayLike, name: str = "effect") -> None:
    """What the likelihood would read: kept, and under an observation that is masked out."""
    numpyro.deterministic(name, value)
    seen = dist.Normal(value, 1.0).mask(False)
    numpyro.sample(f"{name}_y", seen, obs=jnp.zeros(jnp.shape(value)))


def noise(name: str, *shape: int, law: dist.Distribution | None = None) -> jax.Array:
    """Independent noise, standard normal if no law is given."""
    law = dist.Normal(0.0, 1.0) if law is None else law
    return numpyro.sample(name, law.expand(shape).to_event(len(shape)))


def location_and_scale() -> tuple[jax.Array, jax.Array]:
    """Those of effects."""
    return (
        numpyro.sample("mu", dist.Normal(0.0, 2.0)),
        numpyro.sample("tau", dist.LogNormal(0.0, 1.0)),
    )


def groups() -> None:
    """Effects as they are written first."""
    mu, tau = location_and_scale()
    with numpyro.plate("groups", 6):
        read(numpyro.sample("theta", dist.Normal(mu, tau)))


def groups_by_noise() -> None:
    """Effects by their noise."""
    mu, tau = location_and_scale()
    read(mu + tau * noise("z", 6))


def plain_normals() -> None:
    """All latents normal, the scale by its logarithm."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    log_tau = numpyro.sample("log_tau", dist.Normal(0.0, 1.0))
    read(mu + jnp.exp(log_tau) * noise("z", 6))


def signed() -> None:
    """A minus sign, and a scale by softplus."""
    raw = numpyro.sample("raw", dist.Normal(-1.0, 2.0))
    read(-jax.nn.softplus(raw) * noise("z", 6))


def crossed() -> None:
    """Two factors, the one centred and the other by its noise."""
    scales = numpyro.sample("scales", dist.HalfNormal(1.0).expand([2]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0.0, scales[0]).expand([4]).to_event(1))
    read(a[:, None] + scales[1] * noise("z", 3))


def nested() -> None:
    """Schools in districts, each district with a scale."""
    mu, tau = location_and_scale()
    with numpyro.plate("districts", 3, dim=-1):
        mean = numpyro.sample("mean", dist.Normal(mu, tau))
        scale = numpyro.sample("scale", dist.LogNormal(jnp.log(tau), 0.5))
        with numpyro.plate("schools", 2, dim=-2):
            read(numpyro.sample("theta", dist.Normal(mean, scale)))


def correlated(size: int = 3) -> tuple[jax.Array, jax.Array]:
    """Scales of correlated effects, and the factor of their correlation."""
    scales = numpyro.sample("scales", dist.LogNormal(0.0, 0.7).expand([size]).to_event(1))
    return scales, numpyro.sample("factor", dist.LKJCholesky(size, 1.5))


def lkj_centred() -> None:
    """Slopes that vary, as a multivariate normal."""
    scales, factor = correlated()
    with numpyro.plate("groups", 4):
        law = dist.MultivariateNormal(0.0, scale_tril=scales[:, None] * factor)
        b = numpyro.sample("b", law)
    read(b)


def lkj_by_rows() -> None:
    """Slopes that vary, by noise of which each row is a group."""
    scales, factor = correlated()
    read(noise("z", 4, 3) @ (scales[:, None] * factor).T)


def lkj_by_columns() -> None:
    """Slopes that vary, by noise of which each column is a group."""
    scales, factor = correlated()
    read((scales[:, None] * (factor @ noise("z", 3, 4))).T)


def horseshoe() -> None:
    """A scale for each coefficient, and one for all."""
    tau = numpyro.sample("tau", dist.HalfCauchy(0.2))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([5]).to_event(1))
    read(numpyro.sample("beta", dist.Normal(0.0, tau * scale).to_event(1)))


def regularized_horseshoe() -> None:
    """By noise, with scales that a slab bounds."""
    tau = numpyro.sample("tau", dist.HalfCauchy(0.3))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([5]).to_event(1))
    slab = numpyro.sample("slab", dist.InverseGamma(2.0, 4.0))
    bounded = jnp.sqrt(slab / (slab + (tau * scale) ** 2)) * scale
    read(tau * bounded * noise("z", 5))


def laplace_noise() -> None:
    """Noise whose density has a corner."""
    mu, tau = location_and_scale()
    read(mu + tau * noise("z", 5, law=dist.Laplace(0.0, 1.0)))


def student_noise() -> None:
    """Noise with heavy tails, and an effect with them."""
    mu, tau = location_and_scale()
    read(mu + tau * noise("z", 4, law=dist.StudentT(3.0, 0.0, 1.0)))
    read(numpyro.sample("v", dist.StudentT(4.0, mu, tau).expand([3]).to_event(1)), "heavy")


def cut_effects() -> None:
    """Effects that are positive, and noise that is."""
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.7))
    read(numpyro.sample("half", dist.HalfNormal(tau).expand([3]).to_event(1)), "first")
    read(numpyro.sample("cut", dist.TruncatedNormal(tau, tau, low=0.0).expand([3]).to_event(1)))
    read(tau * noise("z", 3, law=dist.Exponential(1.0)), "last")


def sums_to_zero() -> None:
    """Effects that sum to zero, with one scale and with one for each coordinate."""
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0).expand([4]).to_event(1))
    read(numpyro.sample("theta", dist.ZeroSumNormal(scale, (5,))))
    one = numpyro.sample("one", dist.LogNormal(0.0, 1.0))
    read(numpyro.sample("cells", dist.ZeroSumNormal(one, (3, 2))), "table")


def walk() -> None:
    """A random walk of unknown step."""
    step = numpyro.sample("step", dist.HalfNormal(1.0))
    read(numpyro.sample("h", dist.GaussianRandomWalk(step, 12)))


def walk_by_noise() -> None:
    """The walk as a sum of noise, from a level of its own."""
    level, step = location_and_scale()
    read(level + step * jnp.cumsum(noise("z", 12)))


def autoregression() -> None:
    """Step by step in a loop of NumPyro."""
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.7))

    def step(before: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
        now = numpyro.sample("x", dist.Normal(phi * before, sigma))
        return now, now

    read(scan(step, jnp.zeros(()), None, length=8)[1])


def python_loop() -> None:
    """A walk whose every step is a site of its own."""
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    x = [numpyro.sample("x0", dist.Normal(0.0, 1.0))]
    for i in range(1, 6):
        x.append(numpyro.sample(f"x{i}", dist.Normal(x[-1], tau)))
    read(jnp.stack(x))


def gaussian_process() -> None:
    """Noise seen through the factor of a kernel."""
    x = jnp.linspace(0.0, 1.0, 8)
    length = numpyro.sample("length", dist.LogNormal(-1.0, 0.5))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.7))
    kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-4 * jnp.eye(8)
    read(scale * (jnp.linalg.cholesky(kernel) @ noise("z", 8)))


def padded() -> None:
    """Groups of a table that was padded; what is left out has a law of its own, N(0, 1)."""
    mu, tau = location_and_scale()
    with numpyro.plate("groups", 6), mask(mask=KEPT):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.factor("others", jnp.sum(jnp.where(KEPT, 0.0, -0.5 * theta**2)))


def scoped() -> None:
    """One hierarchy three times, under three names."""
    for name in ("first", "second", "third"):
        scope(groups, name, divider="_")()


def half_centred() -> None:
    """A user's own parametrization, half centred."""
    reparam(groups, config={"theta": LocScaleReparam(0.5)})()


def transformed() -> None:
    """Effects that NumPyro writes by their noise."""

    def model() -> None:
        mu, tau = location_and_scale()
        affine = dist.transforms.AffineTransform(mu, tau)
        with numpyro.plate("groups", 5):
            read(numpyro.sample("v", dist.TransformedDistribution(dist.Normal(0.0, 1.0), affine)))

    reparam(model, config={"v": TransformReparam()})()


def positive() -> None:
    """Positive effects whose shape or scale is sampled."""
    shape = numpyro.sample("shape", dist.LogNormal(0.5, 0.4))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.7))
    with numpyro.plate("groups", 2):
        numpyro.sample("gamma", dist.Gamma(shape, 1 / scale))
        numpyro.sample("inverse", dist.InverseGamma(shape + 2.0, scale))
        numpyro.sample("weibull", dist.Weibull(scale, shape))
        read(numpyro.sample("log_normal", dist.LogNormal(jnp.log(scale), shape)))


def shares() -> None:
    """Shares of which the concentration is sampled, and chances."""
    size = numpyro.sample("size", dist.LogNormal(1.0, 0.7))
    with numpyro.plate("groups", 2):
        numpyro.sample("share", dist.Dirichlet(size * jnp.array([0.5, 0.3, 0.2])))
        numpyro.sample("chance", dist.Beta(size, 1.0 + size))


def two_levels_by_noise() -> None:
    """A mean of groups that has noise of its own, and a scale that is a product."""
    mu, tau = location_and_scale()
    part = numpyro.sample("part", dist.Beta(2.0, 2.0))
    mean = mu + tau * part * noise("z_mean", 3)
    read(mean[:, None] + tau * (1 - part) * noise("z", 3, 2))


def matrix_normal() -> None:
    """Effects correlated along rows and columns."""
    scales, factor = correlated()
    columns = jnp.linalg.cholesky(0.5 * jnp.eye(2) + 0.5)
    law = dist.MatrixNormal(jnp.zeros((3, 2)), scales[:, None] * factor, columns)
    read(numpyro.sample("b", law))


STRUCTURES: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(groups, groups_by_noise, plain_normals, signed, crossed, nested, two_levels_by_noise),
        *(lkj_centred, lkj_by_rows, lkj_by_columns, matrix_normal),
        *(horseshoe, regularized_horseshoe, laplace_noise, student_noise, cut_effects),
        *(sums_to_zero, walk, walk_by_noise, autoregression, python_loop, gaussian_process),
        *(padded, scoped, half_centred, transformed, positive, shares),
    )
}
PADDED = padded


def forward_draws(model: Callable[[], None], num: int, rng_key: jax.Array) -> dict[str, np.ndarray]:
    """Exact draws of all sites by name, (num, ...)."""
    key_model, key_others = jax.random.split(rng_key)
    draw = jax.jit(partial(Predictive(model, num_samples=num, parallel=True)))
    draws = {name: np.asarray(value) for name, value in draw(key_model).items()}
    if model is PADDED:
        others = np.asarray(jax.random.normal(key_others, draws["theta"].shape))
        draws["theta"] = np.where(KEPT, draws["theta"], others)
    return draws
