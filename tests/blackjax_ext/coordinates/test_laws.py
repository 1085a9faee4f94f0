"""Maps of effects between themselves and their noise, at any centredness."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.coordinates import laws
from blackjax_ext.coordinates.laws import (
    LocFactor,
    LocScale,
    LocScaleNoise,
    LongWalk,
    Walk,
    WalkNoise,
    walk,
)

LOC = np.array([1.0, -2.0, 0.5])
FACTOR = np.array([[1.5, 0.0, 0.0], [0.5, 0.7, 0.0], [-0.4, -0.3, 2.0]])
LAWS = {
    "one scale": LocScale(0.7, 0.2),
    "scales": LocScale(LOC, np.array([0.1, 1.0, 30.0])),
    "noise of one scale": LocScaleNoise(0.7, 0.2),
    "noise of scales": LocScaleNoise(LOC, np.array([0.1, 1.0, 30.0])),
    "factor": LocFactor(LOC, FACTOR),
    "walk": Walk(0.0, np.array([3.0, 0.2, 0.1])),
    "noise of a walk": WalkNoise(0.0, np.array([3.0, 0.2, 0.1])),
    "long walk": LongWalk(0.3),
    "long walks": LongWalk(np.array([0.3, 2.0])),
    "walks": Walk(0.0, np.array([[3.0, 0.2, 0.1], [1.0, 2.0, 0.5]])),
}
SHAPE = (2, 3)


def by_hand(law, z):
    """The effect with the noise `z`, or the noise of the effect `z`."""
    t, k = np.arange(3)[:, None], 2 * np.arange(3) + 1  # of waves, written out
    if isinstance(law, Walk):
        return (law.scale * z) @ (2 / np.sqrt(7) * np.sin(np.pi * (t + 1) * k / 7)).T
    if isinstance(law, WalkNoise):
        return (z / law.scale) @ (2 / np.sqrt(7) * np.cos(np.pi * (t + 0.5) * k / 7)).T
    if isinstance(law, LocScaleNoise):
        return (z - law.loc) / law.scale
    if isinstance(law, LocScale):
        return law.loc + law.scale * z
    if isinstance(law, LocFactor):
        return law.loc + z @ law.factor.T
    return np.cumsum(np.asarray(law.scale)[..., None] * z, -1)


@jax.jit
def looked_at(law, c, new, u):
    """All that there is to compare, in one program."""

    def density(c):
        return lambda u: jnp.sum(jnp.sin(laws.out(law, c, u)[0])) + laws.out(law, c, u)[1]

    x, log_det = laws.out(law, c, u)
    there = laws.recentred(law, c, new, u)
    pulled = laws.pulled(law, c, new, jax.grad(density(c))(u))
    jacobian = jax.jacfwd(lambda u: laws.out(law, c, u.reshape(SHAPE))[0].ravel())(u.ravel())
    at_ends = [(laws.out(law, end, u), laws.into(law, end, u)) for end in (0 * c, 0 * c + 1)]
    return {
        "x": x,
        "log_det": log_det,
        "back": laws.into(law, c, x),
        "jacobian": jacobian,
        "x there": laws.out(law, new, there)[0],
        "stays": laws.recentred(law, c, c, u),
        "pulled": pulled,
        "slopes there": jax.grad(density(new))(there),
        "ends": at_ends,
    }


@pytest.mark.parametrize("name", LAWS)
def test_maps_of_each_law(name):
    rng = np.random.default_rng(0)
    c, new, u = rng.uniform(size=SHAPE), rng.uniform(size=SHAPE), rng.normal(size=SHAPE)
    c[0, :2] = 0.0, 1.0
    with jax.enable_x64(True):
        found = jax.device_get(looked_at(LAWS[name], c, new, u))
    np.testing.assert_allclose(found["back"], u, rtol=1e-9)
    sign, expected = np.linalg.slogdet(found["jacobian"])
    np.testing.assert_allclose(found["log_det"], expected, rtol=1e-9)
    assert abs(sign) == 1
    # the same effect, and the slopes of the same density
    np.testing.assert_allclose(found["x there"], found["x"], rtol=1e-9)
    np.testing.assert_allclose(found["pulled"], found["slopes there"], rtol=1e-9)
    np.testing.assert_array_equal(found["stays"], u)
    is_noise = isinstance(LAWS[name], LocScaleNoise)
    (other, _), (itself, entered) = reversed(found["ends"]) if is_noise else found["ends"]
    np.testing.assert_allclose(other[0], by_hand(LAWS[name], u), rtol=1e-9)
    assert itself[1] == 0
    if not isinstance(LAWS[name], laws.Waves):
        np.testing.assert_array_equal(itself[0], u)
        np.testing.assert_array_equal(entered, u)


@pytest.mark.parametrize("num_steps", [1, 2, 5, 12, 33])
def test_waves_of_a_walk_are_independent(num_steps):
    """Of each, the walk and its noise are the same."""
    with jax.enable_x64(True):
        zero = jnp.zeros(num_steps)

        def slopes(kind, c):
            law = walk(0.3, num_steps, kind is WalkNoise)
            return np.asarray(jax.jacfwd(lambda u: laws.out(law, zero + c, u)[0])(zero))

        of_place, of_noise = (slopes(kind, 0.0) for kind in (Walk, WalkNoise))
        waves, centred = slopes(Walk, 1.0), slopes(WalkNoise, 1.0)
        scale = np.asarray(walk(0.3, num_steps).scale)
    steps = 0.3 * np.tril(np.ones((num_steps, num_steps)))
    np.testing.assert_allclose(of_place, steps @ of_noise, atol=1e-12)
    np.testing.assert_allclose(of_noise @ of_noise.T, np.eye(num_steps), atol=1e-12)
    np.testing.assert_allclose(waves @ waves.T, np.eye(num_steps), atol=1e-12)
    np.testing.assert_allclose(waves, steps @ centred, atol=1e-12)
    longest = np.sum(np.diff(np.sign(waves[:, 0])) != 0)
    assert longest == 0 and (np.diff(scale) < 0).all()


def test_a_walk_of_no_steps():
    x, log_det = laws.out(walk(0.3, 0), jnp.zeros(0), jnp.zeros(0))
    assert x.shape == (0,) and log_det == 0


def test_long_walks_have_no_matrix_of_waves():
    n = laws.MOST_WAVES + 1
    assert isinstance(walk(0.3, n), LongWalk)
    noise = walk(np.array([0.3, 2.0]), n, is_noise=True)
    assert type(noise) is LocScaleNoise and noise.scale.shape == (2, 1)


def test_coordinates_keep_what_an_effect_has_lost():
    """An effect of scale 1e-9 about 1000, whose last digit has no trace of its noise."""
    law = LocScale(jnp.float32(1e3), jnp.float32(1e-9))
    noise = jnp.asarray([0.3, -1.2], jnp.float32)
    zero, new = jnp.zeros(2, jnp.float32), jnp.full(2, 1 / 16, jnp.float32)
    back = laws.recentred(law, new, zero, laws.recentred(law, zero, new, noise))
    loss = 1e3 / 16 * np.finfo(np.float32).eps / 1e-9 ** (1 / 16)
    np.testing.assert_allclose(back, noise, atol=4 * loss)
    x = laws.out(law, zero, noise)[0]
    assert x[0] == x[1]
