"""Factors as programs of predictors and of what is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_fwd.subsampling.factor_programs import parted

Z = {"a": jnp.array([0.3, -0.4]), "b": jnp.array(1.2)}
ROW = {"x": jnp.array([2.0, 0.5]), "y": jnp.array(0.7)}
SHIFT = np.array([0.25, -1.5], np.float32)


def of_one_predictor(z, row):
    return -jnp.logaddexp(0.0, -row["y"] * (z["a"] @ row["x"] + z["b"]))


def of_two(z, row):
    """One by a call within a call, with a constant of its own."""

    @jax.checkpoint
    def loss(t):
        return jnp.sum(jax.jit(lambda t: (t - SHIFT) ** 2)(t * row["x"]))

    return -loss(z["a"] + z["b"]) - jnp.exp(z["b"])


@pytest.mark.parametrize(("function", "num"), [(of_one_predictor, 1), (of_two, 3)])
def test_the_program_is_the_factor(function, num):
    program, predictors, known = parted(function, Z, ROW)
    assert len(predictors) == len(program.predictors) == num
    values = dict(zip((*program.predictors, *program.known), (*predictors, *known), strict=True))
    np.testing.assert_allclose(program(jnp.zeros(()), **values), function(Z, ROW), rtol=1e-6)
    again = {"a": Z["a"] + 1.0, "b": Z["b"]}, {"x": ROW["x"] - 3.0, "y": ROW["y"]}
    assert parted(function, *again)[0] == program


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z, row: 3.0, "it is a constant"),
        (lambda z, row: jnp.asarray(SHIFT[:1]), "it is a constant"),
        (lambda z, row: row["y"], "it depends on 0 predictors"),
        (lambda z, row: z["a"], "it has 2 values"),
        (lambda z, row: jnp.sum(jnp.exp(jnp.outer(z["a"], jnp.arange(3.0)))), "6 predictors"),
    ],
)
def test_what_cannot_be_read_is_said(function, message):
    with pytest.raises(ValueError, match=message):
        parted(function, Z, ROW)
