"""Coordinates of effects as laws: a target with every map and two levels, and a known best."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.flatten_util import ravel_pytree

import blackjax_ext
from blackjax_ext.adaptation import windows
from blackjax_ext.adaptation.algorithm import Algorithm, BoundAlgorithm
from blackjax_ext.adaptation.in_coordinates import InCoordinates
from blackjax_ext.coordinates import learning, maps
from blackjax_ext.coordinates.laws import (
    LocFactor,
    LocFactorNoise,
    LocScale,
    LocScaleNoise,
    Pseudo,
)
from blackjax_ext.coordinates.learning import Frame
from blackjax_ext.coordinates.partial import LawCoordinates, in_coordinates
from blackjax_ext.coordinates.sequences import StateSpace, walk
from blackjax_ext.metrics import Diagonal, structures
from tests.laws import laws

SHAPES = {
    **{"f": (2,), "g": (2,), "m": (2,), "n": (2,), "q": (3,), "r": (3,)},
    **{"t": (2, 2), "w": (), "x": (2,)},
}
FACTOR = np.array([[1.0, 0.0], [0.6, 0.8]])
TRANSITION = np.array([[1.0, 1.0], [-0.2, 0.9]])
SIZE = laws.Size(16_000, 12)
STEP_SIZE = 0.75


def laws_of(z):
    """Effects of w, and x whose location and scale are another effect."""
    s = jnp.exp(0.5 * z["w"])
    return {
        "w": None,
        "m": LocScale(0.5 * z["w"], s),
        "x": LocScale(z["m"], jnp.exp(0.5 * jnp.tanh(z["m"]))),
        "n": LocScaleNoise(z["x"], s),
        "f": LocFactor(z["m"], s * jnp.asarray(FACTOR, s.dtype)),
        "g": LocFactorNoise(z["x"], s * jnp.asarray(FACTOR, s.dtype)),
        "q": walk(s, 3, is_noise=True),
        "r": walk(s, 3),
        "t": StateSpace(
            jnp.zeros(2, s.dtype),
            s * jnp.asarray(FACTOR[None], s.dtype),
            jnp.asarray(TRANSITION, s.dtype),
        ),
    }


def logdensity(z):
    """Of the position, written out: not by the maps that are judged."""
    s = jnp.exp(0.5 * z["w"])
    scale = jnp.exp(0.5 * jnp.tanh(z["m"]))
    normal = jax.scipy.stats.norm.logpdf
    f = (z["f"] - z["m"]) @ jnp.asarray(np.linalg.inv(FACTOR).T, s.dtype)
    steps = jnp.diff(z["r"], prepend=jnp.zeros(1, s.dtype))
    moves = z["t"].at[1].add(-jnp.asarray(TRANSITION, s.dtype) @ z["t"][0])
    t = moves @ jnp.asarray(np.linalg.inv(FACTOR).T, s.dtype)
    return (
        normal(z["w"])
        + normal(z["m"], 0.5 * z["w"], s).sum()
        + normal(z["n"]).sum()
        + normal(z["g"]).sum()
        + normal(z["q"]).sum()
        + normal(z["x"], z["m"], scale).sum()
        + normal(f, 0.0, s).sum()
        + normal(steps, 0.0, s).sum()
        + normal(t, 0.0, s).sum()
    )


def draw(rng, n):
    """Exact draws."""
    e = {name: rng.normal(size=(n, *shape)) for name, shape in SHAPES.items()}
    w = e["w"]
    s = np.exp(0.5 * w)[:, None]
    m = 0.5 * w[:, None] + s * e["m"]
    first, second = np.moveaxis(s[..., None] * (e["t"] @ FACTOR.T), 1, 0)
    return {
        "w": w,
        "m": m,
        "n": e["n"],
        "g": e["g"],
        "q": e["q"],
        "x": m + np.exp(0.5 * np.tanh(m)) * e["x"],
        "f": m + s * (e["f"] @ FACTOR.T),
        "r": np.cumsum(s * e["r"], axis=1),
        "t": np.stack([first, second + first @ TRANSITION.T], axis=1),
    }


def uniforms(z):
    """Independent uniforms of draws, written out as well."""
    w = z["w"]
    s = np.exp(0.5 * w)[:, None]
    e = [
        w[:, None],
        (z["m"] - 0.5 * w[:, None]) / s,
        z["n"],
        z["g"],
        z["q"],
        (z["x"] - z["m"]) / np.exp(0.5 * np.tanh(z["m"])),
        (z["f"] - z["m"]) @ np.linalg.inv(FACTOR).T / s,
        np.diff(z["r"], axis=1, prepend=0.0) / s,
        z["t"][:, 0] @ np.linalg.inv(FACTOR).T / s,
        (z["t"][:, 1] - z["t"][:, 0] @ TRANSITION.T) @ np.linalg.inv(FACTOR).T / s,
    ]
    return scipy.stats.norm.cdf(np.concatenate(e, axis=1))


def pseudo(seed):
    """Pseudo-observations of each coordinate, any: of no information, some, or much."""
    rng = np.random.default_rng(seed)

    def drawn(shape):
        information = np.exp(3 * rng.normal(size=shape)) * (rng.random(shape) > 0.2)
        return Pseudo(*(jnp.asarray(x, jnp.float32) for x in (rng.normal(size=shape), information)))

    return {k: drawn(s) for k, s in SHAPES.items()} | {"w": None}


def stepper():
    """MALA in the coordinates."""

    def bind(logdensity_fn):
        return BoundAlgorithm(Algorithm(blackjax_ext.mala, {}), logdensity_fn)

    return InCoordinates(bind, logdensity, LawCoordinates(laws_of))


def invariance() -> laws.Outcome:
    """Raise unless chains that start in equilibrium, in frozen coordinates, are still there."""
    starts = draw(np.random.default_rng(20), SIZE.num_chains)
    first = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in starts.items()}
    size = sum(int(np.prod(shape)) for shape in SHAPES.values())
    frame = Frame(Diagonal(jnp.ones(size)), pseudo(0))
    target = stepper()

    def chain(position, rng_key):
        state = target.init(position, rng_key, frame)

        def step(state, key):
            state, info = target.step(key, state, jnp.float32(STEP_SIZE), frame)
            return state, info.acceptance_rate

        keys = jax.random.split(rng_key, SIZE.num_steps)
        state, rate = jax.lax.scan(step, state, keys)
        return state.position, rate.mean()

    keys = jax.random.split(jax.random.key(21), SIZE.num_chains)
    ends, rate = jax.jit(jax.vmap(chain))(first, keys)
    ends = {name: np.asarray(leaf, np.float64) for name, leaf in ends.items()}
    moved = float(np.mean(ends["w"] != np.asarray(first["w"])))
    found = laws.Outcome(uniforms(starts), uniforms(ends), float(rate.mean()), moved)
    assert not np.isnan(found.end).any(), "invariance: NaN"
    smallest = min(*laws.uniformity(found.end), *laws.changes(found.start, found.end))
    assert smallest > laws.LEVEL, f"invariance: p = {smallest:.2g}"
    return found


def round_trip() -> None:
    """Raise unless coordinates lead back to the position, and to its log determinant."""
    with jax.enable_x64(True):
        z = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), draw(np.random.default_rng(1), 1))
        c = jax.tree.map(lambda leaf: leaf.astype(float), pseudo(1))
        found = LawCoordinates(laws_of)
        u = found.into(z, c)
        flat, unravel = ravel_pytree(u)

        def out(u):
            placed = found.out(unravel(u), c)
            return ravel_pytree(placed.position)[0], placed.log_det

        (x, log_det), jacobian = jax.jit(lambda u: (out(u), jax.jacfwd(lambda u: out(u)[0])(u)))(
            flat
        )
        expected = ravel_pytree(z)[0]
        np.testing.assert_allclose(x, expected, rtol=1e-9, err_msg="round trip")
        slope = np.linalg.slogdet(np.asarray(jacobian))[1]
        np.testing.assert_allclose(log_det, slope, rtol=1e-9, err_msg="determinant")


VALUE = 1.3


def posterior(rng, scales, noise, size):
    """Draws of x ~ N(0, s) given VALUE, of sd `noise`, and the slopes of their density."""
    s = scales[:, None]
    variance = 1 / (1 / s**2 + 1 / noise**2)
    x = variance / noise**2 * VALUE + np.sqrt(variance) * rng.normal(size=(len(s), size))
    return x, (VALUE - x) / noise**2 - x / s**2


def learned(draws, gradients, found):
    """What a window of draws of the leaves themselves teaches: the first coordinates are noise."""

    def learn(draws, gradients, found):
        zeros = jnp.zeros(draws.shape[1:])
        none = Pseudo(zeros, zeros)

        def look(x, g, law):
            u, pull = jax.vjp(lambda u: maps.out(law, none, u)[0], maps.into(law, none, x))
            u = maps.into(law, none, x)
            return learning.look(u, pull(g)[0], none, law)

        known = learning.first_learned(none)
        looked = jax.vmap(look)(draws, gradients, found)
        halves = [jax.tree.map(lambda x, i=i: jnp.split(x, 2)[i], looked) for i in (0, 1)]
        for part in halves:
            known = learning.count(known, part)
        known, ratio = learning.learn(known, jax.tree.map(lambda leaf: leaf[:2], found))
        return known, ratio

    return jax.jit(learn)(draws, gradients, found)


def learning_of_data() -> None:
    """Raise unless what is learned is what data say, in any units, whatever the leaf is."""
    rng = np.random.default_rng(0)
    scales = np.exp(rng.normal(size=2000))
    noise = np.array([0.03, 0.3, 1.0, 3.0, 100.0])
    x, g = posterior(rng, scales, noise, 5)
    scales, x, g = 1e-2 * scales, 1e-2 * x, 1e2 * g
    law = LocScale(jnp.zeros(2000), jnp.asarray(scales))
    known, ratio = learned(jnp.asarray(x), jnp.asarray(g), law)
    information = 1e4 / noise**2
    # each slope is exactly linear here, so nothing but rounding is lost
    np.testing.assert_allclose(known.pseudo.information, information, rtol=0.05, err_msg="learning")
    np.testing.assert_allclose(known.pseudo.value[:4], 1e-2 * VALUE, rtol=0.05, err_msg="learning")
    typical = np.exp(np.log(scales).mean())
    np.testing.assert_allclose(known.scales, typical, rtol=1e-4, err_msg="learning")
    widths = np.sqrt(1 + scales[:2, None] ** 2 * information)
    np.testing.assert_allclose(
        ratio, np.exp(np.log(widths).mean(0)), rtol=0.05, err_msg="learning: the metric"
    )
    s = scales[:, None]
    of_noise, _ = learned(jnp.asarray(x / s), jnp.asarray(g * s), LocScaleNoise(*law[:2]))
    for found, expected in zip(of_noise.pseudo, known.pseudo, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0.05, atol=1e-3, err_msg="learning")


def metric_of_other_coordinates() -> None:
    """Raise unless a metric says of chains in new coordinates what it said in the old ones."""
    with jax.enable_x64(True):
        old, new = (jax.tree.map(lambda leaf: leaf.astype(float), pseudo(i)) for i in (1, 2))
        target, rng = stepper(), np.random.default_rng(5)
        z = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), draw(rng, 1))
        flat, unravel = ravel_pytree(target.coordinates.into(z, old))
        # so near to each other that the map is linear
        wide = np.exp(rng.normal(size=flat.size)) * (np.eye(flat.size) + rng.normal(size=flat.size))
        x = flat + 1e-6 * jnp.asarray(rng.normal(size=(100, flat.size)) @ wide.T)
        u = jax.vmap(unravel)(x)

        def sums(c):
            ones = jnp.ones_like(c.value)
            mean = learning.Seen(c.value, 0 * ones, 0 * ones)
            return learning.Sums(100 * ones, mean, ones, -c.information)

        known = learning.Learned(old, learning.of_effects(sums, new), None)
        metric = structures.triangular(jnp.linalg.cholesky(jnp.cov(x.T)))
        state = windows.init(jnp.ones(100), metric, x, num_steps=100)
        keys = jax.random.split(jax.random.key(0), 100)
        frame = Frame(metric, old)
        chains = jax.jit(jax.vmap(lambda u, key: target.at(u, key, frame)))(u, keys)
        found = jax.jit(jax.vmap(lambda u: target.coordinates.out(u, old).laws))(u)
        state = state._replace(coordinates=known)
        chains, state = jax.jit(target.recentre)(keys, chains, found, state)
        moved = jax.vmap(lambda u: ravel_pytree(u)[0])(chains.coordinates)
        covariance = np.cov(np.asarray(moved).T)
        size = np.sqrt(np.diag(covariance))
        assert np.abs(np.asarray(x) - moved).max() > 0.1, "metric: nothing has moved"
        np.testing.assert_allclose(
            *(each / size[:, None] / size for each in (state.metric.inverse(), covariance)),
            **{"atol": 1e-3, "err_msg": "metric of other coordinates"},
        )
        log_det = -np.linalg.slogdet(covariance)[1]
        np.testing.assert_allclose(state.metric.log_det(flat.size), log_det, rtol=1e-3)


def rounding(is_noise: bool = False) -> None:
    """Raise if single precision gives a place of the eight schools more density than it has.

    With the schools, or with their noise, as leaves.
    """
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    normal = jax.scipy.stats.norm.logpdf

    def density(z):
        tau = jnp.exp(z["log_tau"])
        prior = normal(z["mu"], 0.0, 5.0) - jnp.log1p((tau / 5) ** 2) + z["log_tau"]
        if is_noise:
            theta, of_effects = z["mu"] + tau * z["theta"], normal(z["theta"]).sum()
        else:
            theta, of_effects = z["theta"], normal(z["theta"], z["mu"], tau).sum()
        return prior + of_effects + normal(jnp.asarray(y, tau.dtype), theta, 12.0).sum()

    def found(z):
        kind = LocScaleNoise if is_noise else LocScale
        return {"log_tau": None, "mu": None, "theta": kind(z["mu"], jnp.exp(z["log_tau"]))}

    def values(u, dtype):
        u = {name: jnp.asarray(leaf, dtype) for name, leaf in u.items()}
        information = jnp.full(8, 1 / 144, dtype)
        c = {"log_tau": None, "mu": None, "theta": Pseudo(jnp.asarray(y, dtype), information)}
        fn = in_coordinates(density, LawCoordinates(found), c)
        return np.asarray(jax.jit(jax.vmap(fn))(u), np.float64)

    rng = np.random.default_rng(4)
    n = 4000
    u = {"mu": rng.normal(size=n) * 5, "log_tau": rng.uniform(-25, 3, size=n)}
    u["theta"] = rng.normal(size=(n, 8)) * np.exp(rng.uniform(0, 4, size=(n, 1)))
    u = {name: leaf.astype(np.float32) for name, leaf in u.items()}
    single = values(u, jnp.float32)
    with jax.enable_x64(True):
        double = values(u, jnp.float64)
    # of the places that have any mass to speak of, which is that of the model's own position
    excess = (single - double)[single > single.max() - 0.9 * maps.WALL]
    assert excess.size > 500 and excess.max() < 2.0, f"rounding: {excess.max():.3g}"
