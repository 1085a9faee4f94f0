"""What derivatives a density has is asked by tracing; differences stand in for those it lacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.mcmc import derivatives
from blackjax_ext.mcmc.derivatives import differenced, differentiation_of
from tests import reverse_only
from tests.laws import laws, samplers
from tests.laws.samplers import SOFTABS, Case, steps

ANSWERS = {  # to reverse, forward, none
    "plain": (lambda x: 2 * x, ("reverse", "forward", "forward")),
    "double": (reverse_only.double, ("gradients", None, "gradients")),
    "once": (reverse_only.once, ("gradients", None, "gradients")),
    "looped": (reverse_only.looped, (None, "forward", "forward")),
    "simulated": (reverse_only.simulated, (None, None, "none")),
}
# inside other programs the backward rule is as hard to see
AROUND = {
    "bare": lambda function: function,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "scan": lambda function: lambda x: jax.lax.scan(lambda c, y: (c, function(y)), 0, x)[1],
    "cond": lambda function: lambda x: jax.lax.cond(x[0] > 0, function, jnp.sin, x),
    "remat": jax.checkpoint,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ANSWERS)
def test_what_there_is_by_tracing(name, around):
    function, answers = ANSWERS[name]
    wrapped = AROUND[around](function)
    evaluated = []

    def logdensity_fn(x):
        jax.debug.callback(lambda: evaluated.append(1))
        return -jnp.sum(wrapped(x["a"]) ** 2) - x["b"] ** 2

    position = {"a": jnp.ones(3), "b": jnp.ones(())}
    wanted = ("reverse", "forward", "none")
    assert tuple(differentiation_of(logdensity_fn, position, each) for each in wanted) == answers
    assert not evaluated


def hessian_of_differences(scales, at, dtype=np.float32):
    """Largest error of a Hessian of differences, in the units of a density with these scales."""
    scales = jnp.asarray(scales, dtype)
    position = jnp.asarray(at, dtype) * scales
    density = density_of(scales)
    found = jax.jit(lambda x: derivatives.derivatives(density, x, "gradients"))(position)
    with jax.enable_x64(True):
        scales, position = (x.astype(np.float64) for x in (scales, position))
        density = lambda x: reverse_only.product(x / scales)  # noqa: E731
        exact = derivatives.derivatives(density, position, "reverse")
    units = (np.asarray(scales), np.outer(scales, scales))
    gradient, hessian = (
        np.abs(np.asarray(value, np.float64) - np.asarray(true)) * unit
        for value, true, unit in zip(found, exact, units, strict=True)
    )
    assert hessian.shape == (len(scales), len(scales))
    assert gradient.max() < 1e-4, "gradient"
    assert hessian.max() < 0.01, "hessian"


def density_of(scales):
    return reverse_only.by_gradient(lambda x: reverse_only.product(x / scales))


SCALES = {
    "one": [1.0],
    "equal": [1.0, 1.0, 1.0],
    "apart": [1e-4, 1.0, 30.0, 1e3],
    "small": [1e-6, 2e-6],
    "large": [1e4, 3e4],
    "many": np.geomspace(0.01, 100.0, 20),
}


@pytest.mark.first
@pytest.mark.parametrize(("name", "at"), [*zip(SCALES, 2 * [0.0, 1.0, -3.0], strict=True)])
def test_differences_are_the_hessian(name, at):
    hessian_of_differences(SCALES[name], np.full(len(SCALES[name]), at))


@pytest.mark.long
def test_differences_keep_double_precision(x64):
    hessian_of_differences(SCALES["apart"], np.ones(4), np.float64)


def forgotten_half(gradient_fn, x, v):
    return 2.0 * TRUE(gradient_fn, x, v)


def one_width(gradient_fn, x, v):
    h = 0.01
    return (gradient_fn(x + h * v) - gradient_fn(x - h * v)) / (2 * h)


def one_sided(gradient_fn, x, v):
    h = 0.1
    return (gradient_fn(x + h * v) - gradient_fn(x)) / h


TRUE = derivatives.central_difference


@pytest.mark.parametrize("bug", [forgotten_half, one_width, one_sided])
def test_planted_bug_is_found(bug, monkeypatch):
    monkeypatch.setattr(derivatives, "central_difference", bug)
    with pytest.raises(AssertionError, match="hessian"):
        hessian_of_differences(SCALES["apart"], np.ones(4))


def test_planted_bug_in_the_question_is_found(monkeypatch):
    """Without a look into the program a custom_vjp seems to have a forward mode."""
    monkeypatch.setattr(derivatives, "primitives_in", lambda program: set())
    with pytest.raises(AssertionError):
        test_what_there_is_by_tracing("double", "bare")


@pytest.mark.long
def test_nothing_moves_where_nothing_is_finite():
    gradient = derivatives.central_difference(lambda x: x * jnp.nan, jnp.ones(2), jnp.ones(2))
    assert jnp.isnan(gradient).all()
    assert (derivatives.central_difference(lambda x: -x, jnp.ones(2), jnp.zeros(2)) == 0).all()


@pytest.mark.long
def test_metric_of_differences_is_exact(size, monkeypatch):
    def algorithm(logdensity_fn, *arguments, **named):
        hidden = differenced(reverse_only.by_gradient(logdensity_fn))
        return blackjax_ext.smmala(hidden, *arguments, **named)

    case = Case(algorithm, SOFTABS, steps(1.2, None, None), share=0.5)
    monkeypatch.setitem(samplers.CASES, "differenced", case)
    laws.power(laws.invariance("differenced", "log_gamma", size))


@pytest.mark.long
def test_warmup_of_gradients_alone():
    logdensity_fn = density_of(jnp.array([0.1, 30.0]))
    positions = jnp.ones((4, 2))
    _, parameters, info = blackjax_ext.warmup(
        *(blackjax_ext.mala, logdensity_fn, jax.random.key(0), positions, 200),
        target_acceptance_rate=0.574,
    )
    small, large = parameters["inverse_mass_matrix"] ** 0.5
    assert 150 < large / small < 600
    assert 0.4 < info.acceptance_rate[100:].mean() < 0.75
    with pytest.raises(ValueError, match=r'logdensity_fn .*differentiation="forward"'):
        blackjax_ext.warmup(
            *(blackjax_ext.fmala, logdensity_fn, jax.random.key(0), positions, 20),
            target_acceptance_rate=0.3,
            differentiation="forward",
        )


@pytest.mark.long
def test_warmup_without_derivatives():
    def logdensity_fn(x):
        return -0.5 * jnp.sum((reverse_only.simulated(x) - 2.0) ** 2)

    _, parameters, _ = blackjax_ext.warmup(
        *(blackjax_ext.random_walk, logdensity_fn, jax.random.key(0), jnp.ones((4, 2)), 300),
        target_acceptance_rate=0.234,
        differentiation="none",
    )
    np.testing.assert_allclose(parameters["inverse_mass_matrix"], 0.25, atol=0.2)
