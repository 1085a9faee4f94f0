"""Bad arguments raise before anything is compiled, and name the argument and its value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import blackjax_ext
from tests.laws.samplers import CASES

ALGORITHMS = tuple(dict.fromkeys(case.algorithm for case in CASES.values()))
FORWARD = ("fmala", "line_fmala", "pc_fmala", "pc_line_fmala")
WITH_FRAMES = ("fmala", "line_fmala", "pc_line_fmala")
WITH_FLOOR = ("pc_fmala", "pc_line_fmala")

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def logdensity(x):
    return -0.5 * jnp.sum(x**2)


def make(algorithm, step_size=0.5, fn=logdensity, metric=None, **arguments):
    if algorithm == "emulated":
        arguments.setdefault("emulator_fn", lambda x: logdensity(ravel_pytree(x)[0]))
    return getattr(blackjax_ext, algorithm)(fn, step_size, metric, **arguments)


def start_and_step(sampler, position):
    state = sampler.init(position, jax.random.key(0))
    return sampler.step(jax.random.key(1), state)


@every_algorithm
@pytest.mark.parametrize("step_size", [-0.1, 0.0, float("nan"), float("inf"), np.float32(-2.0)])
def test_step_size_must_be_positive(algorithm, step_size):
    with pytest.raises(ValueError, match=rf"step_size must be positive and finite; .*{step_size}"):
        make(algorithm, step_size)


@every_algorithm
def test_step_size_must_be_a_number(algorithm):
    with pytest.raises(TypeError, match=r"step_size must be a positive finite number; got 'large'"):
        make(algorithm, "large")


@pytest.mark.first
@every_algorithm
def test_step_size_may_be_traced(algorithm):
    def step(step_size):
        return start_and_step(make(algorithm, step_size), jnp.zeros(3))[0].position

    assert jax.jit(step)(0.5).shape == (3,)


@pytest.mark.parametrize("algorithm", WITH_FLOOR)
@pytest.mark.parametrize("floor", [0.0, -1.0, float("nan")])
def test_curvature_floor_must_be_positive(algorithm, floor):
    with pytest.raises(ValueError, match=f"curvature_floor must be positive and finite.*{floor}"):
        make(algorithm, curvature_floor=floor)


@pytest.mark.parametrize("algorithm", FORWARD)
def test_law_of_tangents_is_known(algorithm):
    with pytest.raises(ValueError, match=r"tangents must be one of .*sphere.*; got 'cube'"):
        make(algorithm, tangents="cube")


@pytest.mark.parametrize("algorithm", WITH_FRAMES)
@pytest.mark.parametrize(
    ("num_tangents", "error"),
    [(0, ValueError), (-2, ValueError), (1.5, TypeError), (True, TypeError)],
)
def test_num_tangents_is_a_positive_integer(algorithm, num_tangents, error):
    with pytest.raises(error, match=f"num_tangents must be .*at least 1.*; got {num_tangents}"):
        make(algorithm, num_tangents=num_tangents)


@pytest.mark.parametrize("algorithm", WITH_FRAMES)
def test_num_tangents_is_at_most_the_dimension(algorithm):
    with pytest.raises(
        ValueError, match=r"num_tangents must be from 1 to the 3 dimensions .*; got 4"
    ):
        start_and_step(make(algorithm, num_tangents=4), jnp.zeros(3))


@pytest.mark.long
def test_num_tangents_of_state_and_kernel_agree():
    state = blackjax_ext.fmala.init(jnp.zeros(3), logdensity, jax.random.key(0), num_tangents=2)
    with pytest.raises(ValueError, match=r"num_tangents is 1, but the state .* with 2"):
        make("fmala").step(jax.random.key(1), state)


@every_algorithm
@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_position_must_be_floating(algorithm, dtype):
    position = {"a": jnp.zeros(2), "b": jnp.zeros(2, dtype)}
    with pytest.raises(
        TypeError, match=rf"position\['b'\] must be of a floating dtype; got {dtype}"
    ):
        make(algorithm, fn=lambda x: logdensity(x["a"])).init(position, jax.random.key(0))


@every_algorithm
@pytest.mark.parametrize("position", [{}, (), None])
def test_position_must_not_be_empty(algorithm, position):
    with pytest.raises(ValueError, match="position must have at least one array; got an empty"):
        make(algorithm, fn=lambda x: jnp.zeros(())).init(position, jax.random.key(0))


@pytest.mark.long
@every_algorithm
def test_position_may_be_python_floats(algorithm):
    fn = lambda x: -0.5 * (x["a"] ** 2 + x["b"] ** 2)  # noqa: E731
    state, _ = start_and_step(make(algorithm, fn=fn), {"a": 0.0, "b": 1.0})
    assert state.position["a"].dtype == jnp.float32


@every_algorithm
@pytest.mark.parametrize("keyed", [True, False])
def test_density_must_be_scalar(algorithm, keyed):
    sampler = make(algorithm, fn=lambda x: -0.5 * x**2)
    with pytest.raises(TypeError, match=r"must return a scalar; got an array of shape \(3,\)"):
        sampler.init(jnp.zeros(3), jax.random.key(0) if keyed else None)


@every_algorithm
@pytest.mark.parametrize("shape", [(), (2, 3), (2, 2, 2)])
def test_inverse_mass_matrix_has_one_or_two_equal_axes(algorithm, shape):
    with pytest.raises(ValueError, match=r"inverse_mass_matrix must be .*got shape") as raised:
        make(algorithm, metric=jnp.ones(shape))
    assert str(shape) in str(raised.value)


@every_algorithm
@pytest.mark.parametrize("metric", [np.ones(2), np.eye(2), np.eye(1)])
def test_inverse_mass_matrix_fits_the_position(algorithm, metric):
    sampler = make(algorithm, metric=jnp.asarray(metric))
    with pytest.raises((ValueError, TypeError), match="inverse_mass_matrix"):
        start_and_step(sampler, jnp.zeros(3))
