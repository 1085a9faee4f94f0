"""Models that raise far from the mass, in each way in which a program can."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, init_to_value

from numpyro_fwd import FMALA, MALA, AutoNUTS, RandomWalk

pytestmark = pytest.mark.filterwarnings("ignore:.*jax.pure_callback failed")

Y = jnp.array([6.0, 10.0])
FAR = 30.0  # twenty sds from the mass: leaps of a search, and first steps of a warm-up, go beyond
KERNELS = {
    "FMALA": lambda model: FMALA(model, num_tangents=2),
    "RandomWalk": RandomWalk,
    "MALA": MALA,
    "AutoNUTS": AutoNUTS,
}


def simulate(x):
    if np.any(np.abs(x) > FAR):
        raise KeyError("no such place")
    return x


def by_callback(x, callback=jax.pure_callback, **options):
    return callback(simulate, jax.ShapeDtypeStruct(x.shape, x.dtype), x, **options)


@jax.custom_jvp
def simulated(x):
    return by_callback(x, vmap_method="sequential")


@jax.custom_jvp
def simulated_together(x):
    return by_callback(x, vmap_method="expand_dims")


simulated.defjvp(lambda x, slope: (simulated(*x), *slope))
simulated_together.defjvp(lambda x, slope: (simulated_together(*x), *slope))


def by_error_if(x):
    equinox = pytest.importorskip("equinox")
    return equinox.error_if(x, jnp.abs(x) > FAR, "solver ran out of steps")


def without_density(x):
    return jnp.where(jnp.all(jnp.abs(x) <= FAR), x, jnp.nan)


def model_of(evaluate):
    def model(y):
        x = numpyro.sample("x", dist.Normal(0, 10).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(evaluate(x), 1).to_event(1), obs=y)

    return model


def run(kernel, num_warmup=300, num_samples=1500, **options):
    options = {"num_chains": 2, "chain_method": "vectorized"} | options
    mcmc = MCMC(
        kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=False, **options
    )
    mcmc.run(jax.random.key(0), Y)
    return mcmc.get_samples()["x"]


def check_moments(x):
    np.testing.assert_allclose(x.mean(0), [5.94, 9.9], atol=0.2)
    np.testing.assert_allclose(x.std(0), 0.995, atol=0.15)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "evaluate"),
    [
        ("RandomWalk", without_density),
        ("MALA", by_error_if),
        ("FMALA", simulated),
        ("AutoNUTS", simulated_together),
    ],
)
def test_model_that_raises_far_away(name, evaluate):
    check_moments(run(KERNELS[name](model_of(evaluate))))


def raising_where(is_bad):
    def look(x):
        if np.any(is_bad(x)):
            raise KeyError("no such place")
        return x

    def evaluate(x):
        return jax.pure_callback(look, x, x, vmap_method="sequential")

    return model_of(evaluate)


NO_START = (
    r"model raises where chains would start: KeyError: 'no such place' "
    r"\(test_raising.py, line \d+, in evaluate\), at x = \[.*\]. Let the call return NaN"
)


def test_model_that_raises_everywhere_names_line_point_and_remedy():
    with pytest.raises(RuntimeError, match=NO_START):
        run(RandomWalk(raising_where(lambda x: x < np.inf)))


@pytest.mark.long
def test_check_of_equinox_that_fails_everywhere():
    equinox = pytest.importorskip("equinox")
    model = model_of(lambda x: equinox.error_if(x, x < jnp.inf, "solver ran out of steps"))
    with pytest.raises(RuntimeError, match=r"solver ran out of steps \(test_raising.py, line \d+"):
        run(FMALA(model, num_tangents=2))


@pytest.mark.long
def test_model_that_raises_at_the_first_draw_starts_at_values_that_are_given():
    model = raising_where(lambda x: np.abs(x) <= 0.1)
    with pytest.raises(RuntimeError, match=NO_START):
        run(RandomWalk(model))
    at = init_to_value(values={"x": jnp.array([5.0, 9.0])})
    x = run(RandomWalk(model, init_strategy=at), num_samples=5, num_warmup=0)
    assert np.isfinite(x).all()


@pytest.mark.long
def test_data_that_make_a_model_raise_are_named():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0, 10).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(by_error(x + y), 1).to_event(1), obs=jnp.zeros(2))

    def by_error(x):
        return jax.pure_callback(of_finite, x, x, vmap_method="sequential")

    def of_finite(x):
        if np.isnan(x).any():
            raise KeyError("no such place")
        return x

    mcmc = MCMC(RandomWalk(model), num_warmup=5, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match=r"model raises where .*model_args\[0\] is nan at \(1,\)"):
        mcmc.run(jax.random.key(0), jnp.array([1.0, jnp.nan]))


def test_point_given_by_the_user_is_named():
    mcmc = MCMC(RandomWalk(raising_where(lambda x: x > FAR)), num_warmup=5, num_samples=5)
    with pytest.raises(RuntimeError, match=r"at x = \[ ?1. +40. ?\]"):
        mcmc.run(jax.random.key(0), Y, init_params={"x": jnp.array([1.0, 40.0])})


@pytest.mark.long
def test_what_raises_in_the_mass_is_rejected_and_told_with_line_and_remedy():
    kernel = RandomWalk(raising_where(lambda x: x > 10))
    with pytest.warns(UserWarning, match="where a chain would step") as caught:
        x = run(kernel)
    (text,) = {str(w.message) for w in caught if "would step" in str(w.message)}
    assert "model raises where a chain would step: KeyError: 'no such place' (" in text
    assert "throw=False" in text
    assert x.max() <= 10


@pytest.mark.long
def test_a_derivative_that_raises_in_the_mass_is_rejected_and_told():
    """As of an implicit solver, whose linear solves raise where its values are finite."""

    @jax.custom_jvp
    def solved(x):
        return x

    @jax.custom_jvp
    def one(x):
        return jax.pure_callback(look, x, x, vmap_method="sequential")

    def look(x):
        if np.any(x > 11):
            raise KeyError("no such place")
        return np.ones_like(x)

    solved.defjvp(lambda x, v: (solved(*x), v[0] * one(*x)))
    one.defjvp(lambda x, v: (one(*x), jnp.zeros_like(*v)))

    kernel = AutoNUTS(model_of(solved), forward_mode_differentiation=True)
    with pytest.warns(UserWarning, match=r"would step: KeyError: 'no such place' \("):
        x = run(kernel, num_samples=300)
    assert np.isfinite(x).all() and x.max() <= 11
    assert len(np.unique(x[:, 0])) > 200
