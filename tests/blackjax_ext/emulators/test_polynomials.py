"""Polynomials of outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.emulators.polynomials import (
    Form,
    Points,
    emulated_density,
    fitted,
    form_of,
    linear,
)

RNG = np.random.default_rng(0)
ROOT = np.array([[1.0, 0.0, 0.0], [0.4, 0.5, 0.0], [-0.3, 0.2, 2.0]])
MEAN = np.array([1.0, -2.0, 3.0])
ACTIVE = np.array([0, 2])


def cubic(x):
    """Two outputs of the first and the third coordinate; the second is positive."""
    a, b = x[0] - 1.0, x[2] - 3.0
    return jnp.stack([1.0 + a - 2.0 * a * b + 0.3 * b**3, jnp.exp(0.3 * a - 0.1 * a * b)])


def points(num, with_slopes):
    x = MEAN + RNG.standard_normal((num, 3)) @ ROOT.T
    outputs = np.asarray(jax.vmap(cubic)(x), float)
    slopes = np.asarray(jax.vmap(jax.jacfwd(cubic))(x), float)[..., ACTIVE]
    return Points(x, outputs, slopes if with_slopes else None)


@pytest.mark.parametrize("with_slopes", [True, False])
def test_a_cubic_is_found_by_values_and_by_slopes(with_slopes):
    with jax.enable_x64(True):
        form = Form(3, 2, is_log=True)
        several = points(8 if with_slopes else 24, with_slopes)
        found = fitted(several, MEAN, ROOT @ ROOT.T, active=ACTIVE, form=form).cast(float)
        for x in MEAN + 0.5 * RNG.standard_normal((5, 3)):
            outputs, loss = found.at(jnp.asarray(x))
            # the first takes negative values, the logarithm of the second is a quadratic
            np.testing.assert_allclose(outputs, cubic(x), rtol=1e-5, atol=1e-5)
            assert loss == 0
            np.testing.assert_allclose(
                jax.jacfwd(lambda x: found.at(x)[0])(jnp.asarray(x)),
                jax.jacfwd(cubic)(jnp.asarray(x)),
                atol=1e-4,
            )


def test_beyond_its_points_the_density_falls_and_stays_finite():
    form = Form(3, 2, is_log=True)
    found = fitted(points(8, True), MEAN, ROOT @ ROOT.T, active=ACTIVE, form=form).cast(np.float32)
    density = emulated_density(lambda x, outputs: -0.5 * jnp.sum(outputs**2), found)
    far = [density(jnp.asarray(MEAN + scale, jnp.float32)) for scale in (1e2, 1e4, 1e8)]
    assert np.all(np.isfinite(far))
    assert far[0] > far[1] > far[2]
    slope = jax.grad(density)(jnp.asarray(MEAN + 1e3, jnp.float32))
    assert np.all(np.isfinite(slope))


def test_the_expansion_of_first_order_is_exact_where_it_is_made():
    x = MEAN + 0.3
    jacobian = np.asarray(jax.jacfwd(cubic)(x), float)[:, ACTIVE]
    found = linear(x, np.asarray(cubic(x), float), jacobian, ACTIVE).cast(np.float32)
    outputs, _ = found.at(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(outputs, cubic(x), rtol=1e-5)
    there = jax.jacfwd(lambda x: found.at(x)[0])(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(there[:, ACTIVE], jacobian, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "num_equations", "form"),
    [
        (6, 7 * 18, Form(3, 6, is_log=True)),  # all 84 terms
        (20, 21 * 20, Form(3, 5, is_log=True)),  # 231 and 35 of them
        (20, 100, Form(2, 9, is_log=True)),  # 21 and 45
        (50, 10, Form(2, 0, is_log=True)),  # nothing but a line
    ],
)
def test_a_form_has_no_more_terms_than_the_points_can_tell(size, num_equations, form):
    assert form_of(size, num_equations, is_log=True) == form
    assert len(form.terms(size)) == form.num_terms(size)


def test_the_direction_along_which_slopes_change_has_the_cubic():
    def curved(x):
        return jnp.stack([x[0] + (x[0] + x[1] - 2.0 * x[2]) ** 3, x[1] - x[2]])

    x = RNG.standard_normal((20, 3))
    outputs = np.asarray(jax.vmap(curved)(x), float)
    slopes = np.asarray(jax.vmap(jax.jacfwd(curved))(x), float)
    form = Form(3, 1, is_log=False)
    found = fitted(
        Points(x, outputs, slopes), np.zeros(3), np.eye(3), active=np.arange(3), form=form
    ).cast(np.float32)
    for at in 0.5 * RNG.standard_normal((5, 3)):
        np.testing.assert_allclose(found.at(jnp.asarray(at))[0], curved(at), atol=2e-3)
