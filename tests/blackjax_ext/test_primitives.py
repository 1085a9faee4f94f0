"""Primitives do what the sets say that they are in."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters.ad import add_jaxvals

from blackjax_ext import primitives
from blackjax_ext.equations import primitives_in
from blackjax_ext.subsampling.taylor import functions
from numpyro_fwd.bridge import scaled_noise
from tests import pages

X, Y = jnp.array([0.3, 1.7, 2.2]), jnp.array([1.1, 0.6, 0.4])
FIRST = np.int32(1)
MATRIX = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.2]])
INDICES = np.array([[2], [0]])
GATHERED = lax.GatherDimensionNumbers((), (0,), (0,))
# a program of two vectors that has the primitive, for each that moves, adds or transforms numbers
PROGRAMS = {
    "broadcast_in_dim": lambda x, y: lax.broadcast_in_dim(x, (2, 3), (1,)),
    "copy": lambda x, y: lax.copy_p.bind(x),
    "reshape": lambda x, y: lax.reshape(x, (3, 1)),
    "squeeze": lambda x, y: lax.squeeze(lax.slice(x, (1,), (2,)), (0,)),
    "rev": lambda x, y: lax.rev(x, (0,)),
    "slice": lambda x, y: lax.slice(x, (1,), (3,)),
    "transpose": lambda x, y: lax.transpose(jnp.stack([x, x]), (1, 0)),
    "concatenate": lambda x, y: lax.concatenate([x, x], 0),
    "stack": lambda x, y: jnp.stack([x, x]),
    "dynamic_slice": lambda x, y: lax.dynamic_slice(x, [FIRST], (2,)),
    "gather": lambda x, y: lax.gather(x, INDICES, GATHERED, (1,)),
    "select_n": lambda x, y: lax.select(np.array([True, False, True]), x, y),
    "convert_element_type": lambda x, y: x.astype("bfloat16").astype(x.dtype),
    "add": lax.add,
    "add_any": add_jaxvals,
    "sub": lax.sub,
    "neg": lambda x, y: lax.neg(x),
    "mul": lax.mul,
    "div": lax.div,
    "dot_general": lambda x, y: jnp.dot(x, y),
    "reduce_sum": lambda x, y: jnp.sum(x),
    "reduce_prod": lambda x, y: jnp.prod(x),
    "reduce_max": lambda x, y: jnp.max(x),
    "reduce_min": lambda x, y: jnp.min(x),
    "cumsum": lambda x, y: lax.cumsum(x),
    "cumprod": lambda x, y: lax.cumprod(x),
    "cummax": lambda x, y: lax.cummax(x),
    "cummin": lambda x, y: lax.cummin(x),
    "max": lax.max,
    "min": lax.min,
    "abs": lambda x, y: lax.abs(x),
    "ceil": lambda x, y: lax.ceil(x),
    "clamp": lambda x, y: lax.clamp(0.5, x, 2.0),
    "floor": lambda x, y: lax.floor(x),
    "round": lambda x, y: lax.round(x),
    "sign": lambda x, y: lax.sign(x),
    "pow": lax.pow,
    "exp2": lambda x, y: lax.exp2(x),
}
PROGRAMS |= {
    name: partial(lambda of, x, y: of(x), getattr(lax, name)) for name in sorted(primitives.SMOOTH)
}
# names of no primitive of this JAX
OTHER_RELEASES = {"copy_p", "expand_dims", "stop_gradient"}


def those_of(names):
    return sorted(set(names) - OTHER_RELEASES)


def value(name, x, y):
    return np.asarray(PROGRAMS[name](x, y))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_its_primitive(name):
    assert name in primitives_in(jax.make_jaxpr(PROGRAMS[name])(X, Y))


@pytest.mark.parametrize(
    "name", those_of(primitives.PLACING | primitives.JOINING | primitives.INDEXING)
)
def test_what_moves_numbers_makes_none(name):
    assert set(value(name, X, Y).ravel().tolist()) <= {0.0, *X.tolist(), *Y.tolist()}


def check_linear(name, others):
    """A combination of vectors, with `others` beside them, gives that of the values."""
    vectors = [X, X[::-1], 3.0 * X - 2.0 * X[::-1]]
    first, second, both = map(partial(value, name), vectors, others)
    np.testing.assert_allclose(both, 3.0 * first - 2.0 * second, rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("name", those_of(primitives.STRUCTURAL | primitives.ADDITIONS))
def test_what_is_linear_in_all_arguments_is(name):
    check_linear(name, [Y, Y[::-1], 3.0 * Y - 2.0 * Y[::-1]])


@pytest.mark.parametrize(
    "name",
    those_of(
        scaled_noise.ARITHMETIC.keys() - primitives.ADDITIONS - {"sub"}
        | scaled_noise.MIXING
        | primitives.PLACING
        | primitives.INDEXING
        | primitives.CONVERTING
    ),
)
def test_what_is_linear_in_the_first_argument_is(name):
    check_linear(name, [Y, Y, Y])


@pytest.mark.parametrize("name", sorted(primitives.SMOOTH))
def test_smooth_functions_have_bounds_and_a_second_derivative(name):
    assert hasattr(functions, f"{name}_")
    assert jax.grad(jax.grad(lambda x: PROGRAMS[name](x, None)))(0.3) != 0


@pytest.mark.parametrize("name", sorted(primitives.KINKS - {"select_n"}))
def test_kinks_have_no_second_derivative(name):
    x = jnp.array([-0.8, 0.9, 1.6, -1.0, 0.5])
    second = jax.jacfwd(jax.jacfwd(partial(PROGRAMS[name], y=0.3 * x)))(x)
    assert not np.any(second)


@pytest.mark.parametrize("name", sorted(primitives.COMPARISONS))
def test_comparisons_have_no_slope(name):
    is_logical = name in primitives.LOGICAL
    primitive = getattr(lax, f"{name}_p")
    size = 1 if name in ("not", "is_finite") else 2
    arguments = [np.array([True, False]) if is_logical else np.ones(2, "float32")] * size
    assert primitive.name == name and primitive.bind(*arguments).dtype == bool


def test_factorizations_are_those_of_jax():
    """A QR decomposition is one of Householder, of another module."""
    known = {getattr(lax.linalg, name).name for name in dir(lax.linalg) if name.endswith("_p")}
    assert primitives.FACTORIZATIONS - known == {"geqrf"}


def test_the_page_has_the_module():
    page = pages.DOCS / "api" / "parts.md"
    included = ".. literalinclude:: ../../blackjax_ext/primitives.py\n"
    assert included in page.read_text(encoding="utf-8")
    assert (page.parent / "../../blackjax_ext/primitives.py").exists()
