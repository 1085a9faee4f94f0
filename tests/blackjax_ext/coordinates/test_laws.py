"""Maps of effects between themselves and their noise, whatever is observed of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.coordinates import laws, maps, sequences
from blackjax_ext.coordinates.laws import (
    LocFactor,
    LocFactorNoise,
    LocScale,
    LocScaleNoise,
    Pseudo,
)
from blackjax_ext.coordinates.sequences import LongWalk, StateSpace, Walk, WalkNoise, walk

pytestmark = pytest.mark.long

LOC = np.array([1.0, -2.0, 0.5])
FACTOR = np.array([[1.5, 0.0, 0.0], [0.5, 0.7, 0.0], [-0.4, -0.3, 2.0]])
TRANSITION = np.array([[1.0, 1.0, 0.0], [0.0, 0.8, -0.5], [0.3, 0.0, 0.1]])
LAWS = {
    "one scale": LocScale(0.7, 0.2),
    "scales": LocScale(LOC, np.array([0.1, 1.0, 30.0])),
    "noise of one scale": LocScaleNoise(0.7, 0.2),
    "noise of scales": LocScaleNoise(LOC, np.array([0.1, 1.0, 30.0])),
    "factor": LocFactor(LOC, FACTOR),
    "noise of a factor": LocFactorNoise(LOC, FACTOR),
    "negative scales": LocScale(LOC, np.array([-0.1, 1.0, -30.0])),
    "negative scales of noise": LocScaleNoise(LOC, np.array([-0.1, 1.0, -30.0])),
    "walk": Walk(0.0, np.array([3.0, 0.2, 0.1])),
    "noise of a walk": WalkNoise(0.0, np.array([3.0, 0.2, 0.1])),
    "long walk": LongWalk(0.3),
    "long walks": LongWalk(np.array([0.3, 2.0])),
    "states": StateSpace(np.array([[1.0, -2.0, 0.5], [0.3, 0.0, 4.0]]), FACTOR[None], TRANSITION),
    "walks": Walk(0.0, np.array([[3.0, 0.2, 0.1], [1.0, 2.0, 0.5]])),
}
SHAPE = (2, 3)


def waves_by_hand():
    """Of three places, and of their steps, written out."""
    t, k = np.arange(3)[:, None], 2 * np.arange(3) + 1
    places = 2 / np.sqrt(7) * np.sin(np.pi * (t + 1) * k / 7)
    return places, 2 / np.sqrt(7) * np.cos(np.pi * (t + 0.5) * k / 7)


def system_by_hand(law):
    """``m, M`` for a leaf of shape (2, 3), and what turns a leaf out of the components."""
    eye, places = np.eye(3), waves_by_hand()
    turn = places[isinstance(law, WalkNoise)] if isinstance(law, sequences.Waves) else eye
    if isinstance(law, laws.Together):
        m, matrix = law.loc, law.factor
    elif isinstance(law, LongWalk):
        m = np.zeros(3)
        matrix = np.asarray(law.scale)[..., None, None] * np.tril(np.ones((3, 3)))
    else:
        m, matrix = np.asarray(law.loc), np.asarray(law.scale)[..., None] * eye
    return np.broadcast_to(m, SHAPE), np.broadcast_to(matrix, (2, 3, 3)), turn


def states_by_hand(law, pseudo, u):
    """All places at once, with what is known of them in a matrix of all components."""
    zero = np.zeros((3, 3))
    own = np.kron(np.eye(2), FACTOR)
    steps = np.block([[np.eye(3), zero], [-TRANSITION, np.eye(3)]])
    matrix = np.linalg.inv(steps) @ own  # the effect of the noise
    back = np.linalg.inv(own) @ steps @ own  # T
    seen = own.T @ np.diag(pseudo.information.ravel())
    known = back.T @ back + seen @ own
    last = np.linalg.cholesky(known[3:, 3:])
    right = np.linalg.solve(last, known[3:, :3]).T
    first = np.linalg.cholesky(known[:3, :3] - right @ right.T)
    root = np.block([[first, right], [zero, last]])
    np.testing.assert_allclose(root @ root.T, known)
    noise = np.linalg.solve(root, seen @ (pseudo.value - law.loc).ravel()) + u.ravel()
    z = back @ np.linalg.solve(root.T, noise)
    return law.loc + (matrix @ z).reshape(SHAPE)


def by_hand(law, pseudo, u):
    """The leaf at `u`: components one after another."""
    m, matrix, turn = system_by_hand(law)
    z, v = np.zeros(SHAPE), np.zeros(SHAPE)
    if isinstance(law, StateSpace):
        return states_by_hand(law, pseudo, u)
    if isinstance(law, laws.Together):  # all components at once
        for g in range(2):
            root = np.linalg.cholesky(
                np.eye(3) + matrix[g].T @ np.diag(pseudo.information[g]) @ matrix[g]
            )
            seen = matrix[g].T @ (pseudo.information[g] * (pseudo.value[g] - m[g]))
            z[g] = np.linalg.solve(root.T, np.linalg.solve(root, seen) + u[g])
            v[g] = m[g] + matrix[g] @ z[g]
        return z if law.is_noise else v
    for i in range(3):
        s, w = matrix[:, i, i], pseudo.information[:, i]
        precision = 1 + s**2 * w
        before = m[:, i] + (matrix[:, i, :i] * z[:, :i]).sum(1)
        z[:, i] = s * w * (pseudo.value[:, i] - before) / precision + u[:, i] / np.sqrt(precision)
        v[:, i] = before + s * z[:, i]
    return (z if law.is_noise else v) @ turn.T


@jax.jit
def looked_at(law, pseudo, new, u):
    """All that there is to compare, in one program."""

    def density(u):
        _, log_det = maps.out(law, pseudo, u)
        z = maps.noise(law, pseudo, u)
        normal = -0.5 * jnp.sum(z**2) if law.is_noise else 0.0
        return jnp.sum(jnp.sin(law.effect(z))) + normal + log_det

    x, log_det = maps.out(law, pseudo, u)
    there = maps.moved(law, pseudo, new, u)
    jacobian = jax.jacfwd(lambda u: maps.out(law, pseudo, u.reshape(SHAPE))[0].ravel())(u.ravel())
    gradient = jax.grad(density)(u)

    def own_law(u):
        z = maps.noise(law, pseudo, u)
        return -0.5 * jnp.sum(z * law.precision_times(z))

    own = jax.grad(own_law)(u)
    v, slope = maps.seen(law, pseudo, u, gradient if law.is_noise else gradient + own)
    return {
        "x": x,
        "log_det": log_det,
        "back": maps.into(law, pseudo, x),
        "jacobian": jacobian,
        "x there": maps.out(law, new, there)[0],
        "slope": slope,
        "slope by hand": jnp.cos(v),
    }


@pytest.mark.parametrize("name", LAWS)
def test_maps_of_each_law(name):
    rng = np.random.default_rng(0)

    def drawn():
        return Pseudo(rng.normal(size=SHAPE), np.exp(2 * rng.normal(size=SHAPE)))

    old, new, u = drawn(), drawn(), rng.normal(size=SHAPE)
    old.information[0, :2] = 0.0, 1e5
    law = LAWS[name]
    with jax.enable_x64(True):
        found = jax.device_get(looked_at(law, old, new, u))
    np.testing.assert_allclose(found["x"], by_hand(law, old, u), rtol=1e-9)
    np.testing.assert_allclose(found["back"], u, rtol=1e-7)
    sign, expected = np.linalg.slogdet(found["jacobian"])
    np.testing.assert_allclose(found["log_det"], expected, rtol=1e-9)
    assert abs(sign) == 1
    # the same effect, and the slope of what is no law of it
    np.testing.assert_allclose(found["x there"], found["x"], rtol=1e-7)
    np.testing.assert_allclose(found["slope"], found["slope by hand"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_steps", [1, 2, 5, 12, 33])
def test_waves_of_a_walk_are_independent(num_steps):
    """Of each, the walk and its noise are the same."""
    with jax.enable_x64(True):
        zero = jnp.zeros(num_steps)

        def slopes(kind, w):
            law, pseudo = walk(0.3, num_steps, kind is WalkNoise), Pseudo(zero, zero + w)
            return np.asarray(jax.jacfwd(lambda u: maps.out(law, pseudo, u)[0])(zero))

        of_place, of_noise = (slopes(kind, 0.0) for kind in (Walk, WalkNoise))
        centred = slopes(WalkNoise, 1e16) * 1e8
        scale = np.asarray(walk(0.3, num_steps).scale)
        waves = slopes(Walk, 1e16) * 1e8
    steps = 0.3 * np.tril(np.ones((num_steps, num_steps)))
    np.testing.assert_allclose(of_place, steps @ of_noise, atol=1e-12)
    np.testing.assert_allclose(of_noise @ of_noise.T, np.eye(num_steps), atol=1e-12)
    np.testing.assert_allclose(waves @ waves.T, np.eye(num_steps), atol=1e-9)
    np.testing.assert_allclose(waves, steps @ centred, atol=1e-9)
    longest = np.sum(np.diff(np.sign(waves[:, 0])) != 0)
    assert longest == 0 and (np.diff(scale) < 0).all()


def test_a_walk_of_no_steps():
    none = Pseudo(jnp.zeros(0), jnp.zeros(0))
    x, log_det = maps.out(walk(0.3, 0), none, jnp.zeros(0))
    assert x.shape == (0,) and log_det == 0


def test_long_walks_have_no_matrix_of_waves():
    n = sequences.MOST_WAVES + 1
    assert isinstance(walk(0.3, n), LongWalk)
    noise = walk(np.array([0.3, 2.0]), n, is_noise=True)
    assert type(noise) is LocScaleNoise and noise.scale.shape == (2, 1)


def test_coordinates_keep_what_an_effect_has_lost():
    """An effect of scale 1e-9 about 1000, whose last digit has no trace of its noise."""
    law = LocScale(jnp.float32(1e3), jnp.float32(1e-9))
    noise = jnp.asarray([0.3, -1.2], jnp.float32)
    zero = Pseudo(0 * noise, 0 * noise)
    new = Pseudo(noise, 0 * noise + 4)
    back = maps.moved(law, new, zero, maps.moved(law, zero, new, noise))
    np.testing.assert_allclose(back, noise, rtol=1e-5)
    x = maps.out(law, zero, noise)[0]
    assert x[0] == x[1]


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e8, 1e18])
@pytest.mark.parametrize("kind", [LocScale, LocScaleNoise])
def test_scales_of_any_size_in_single_precision(kind, scale):
    """Values and gradients are numbers, whatever is observed; of a scale of zero that is noise."""
    law = kind(jnp.float32(0.5), jnp.full(3, scale, jnp.float32))
    pseudo = Pseudo(jnp.full(3, 2.0), jnp.asarray([0.0, 1.0, 1e4], jnp.float32))
    u = jnp.asarray([0.3, -1.2, 0.1], jnp.float32)

    def density(scale, u):
        x, log_det = maps.out(law._replace(scale=scale), pseudo, u)
        return jnp.sum(x) + (log_det if scale is not None and kind is LocScaleNoise else 0.0)

    gradients = jax.grad(density, (0, 1))(law.scale, u)
    assert jax.tree.all(jax.tree.map(lambda g: jnp.isfinite(g).all(), gradients))
    if scale == 0:
        x, _ = maps.out(law, pseudo, u)
        np.testing.assert_array_equal(x, u if kind is LocScaleNoise else 0.5)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 9])
def test_small_factors_are_those_of_lapack(size, x64):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(3, size, size))
    matrix, x = root @ np.swapaxes(root, 1, 2) + np.eye(size), rng.normal(size=(3, size))
    expected = np.linalg.cholesky(matrix)
    factor = laws.cholesky(jnp.asarray(matrix))
    np.testing.assert_allclose(factor, expected, rtol=1e-9, atol=1e-12)
    for trans, of in enumerate((expected, np.swapaxes(expected, 1, 2))):
        found = laws.solved(factor, jnp.asarray(x), trans)
        np.testing.assert_allclose(found, np.linalg.solve(of, x[..., None])[..., 0], rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("kind", ["scale", "factor"])
def test_first_coordinates_go_with_the_mean(kind, scale):
    """However far from zero: a search for a start sees effects about 1,000 as those about 0."""
    first = laws.Pseudo(jnp.full(3, laws.AT_THE_MEAN), jnp.ones(3))
    u = jnp.array([-1.0, 0.5, 2.0])

    def effect_and_slope(mean):
        own = scale * jnp.eye(3) if kind == "factor" else jnp.full(3, scale)
        law = (laws.LocFactor if kind == "factor" else laws.LocScale)(jnp.full(3, mean), own)
        return maps.noise(law, first, u), maps.out(law, first, u)[0] - mean

    for near, far in zip(effect_and_slope(0.0), effect_and_slope(1000.0), strict=True):
        np.testing.assert_allclose(far, near, rtol=1e-5, atol=2e-4)
