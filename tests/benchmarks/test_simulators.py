"""The simulators' models: what their density is, where it has derivatives, and when it is zero."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model, log_density

pytest.importorskip("diffrax")

from benchmarks.harness import data, models, simulators
from benchmarks.harness.simulators import SIMULATORS

pytestmark = pytest.mark.long

REFERENCES = json.loads(simulators.REFERENCE.read_text())


def at_the_mean(name: str, model):
    """Log density at the mean of the reference, of a flat array, and that array."""
    info = initialize_model(
        jax.random.key(0), model, model_args=SIMULATORS[name].args(), validate_grad=False
    )
    means = {site: jnp.asarray(mean) for site, (mean, _) in simulators.reference(name).items()}
    x, unravel = ravel_pytree(means)
    return jax.jit(lambda x: -info.potential_fn(unravel(x))), x


@pytest.mark.first
@pytest.mark.parametrize("name", REFERENCES)
def test_mean_has_more_density_than_points_around(x64, name):
    simulator = SIMULATORS[name]
    logdensity_fn, x = at_the_mean(name, simulator.model)
    assert x.size == simulator.size
    sds = {site: jnp.asarray(sd) for site, (_, sd) in simulators.reference(name).items()}
    spread = 2.5 * ravel_pytree(sds)[0] / np.sqrt(simulator.size)
    around = x + spread * jax.random.normal(jax.random.key(1), (5, x.size))
    assert jnp.isfinite(logdensity_fn(x))
    assert max(map(logdensity_fn, around)) < logdensity_fn(x) + 2


@pytest.mark.first
@pytest.mark.parametrize("name", [n for n in REFERENCES if SIMULATORS[n].reverse is not None])
def test_derivatives_of_both_modes_agree(x64, name):
    simulator = SIMULATORS[name]
    logdensity_fn, x = at_the_mean(name, simulator.model)
    forward = jax.jacfwd(logdensity_fn)(x)
    reverse = jax.grad(at_the_mean(name, simulator.reverse)[0])(x)
    np.testing.assert_allclose(forward, reverse, rtol=1e-5, atol=1e-3)


def test_call_into_python_has_no_derivatives():
    logdensity_fn, x = at_the_mean("school", SIMULATORS["school"].model)
    with pytest.raises(ValueError, match="JVP"):
        jax.jvp(logdensity_fn, (x,), (x,))


def test_lynx_hare_is_the_model_of_the_other_benchmarks(x64):
    (pelts,) = SIMULATORS["lynx_hare"].args()
    sites = {
        "theta": jnp.array([0.55, 0.028, 0.80, 0.024]),
        "z_init": jnp.array([34.0, 5.9]),
        "sigma": jnp.array([0.25, 0.25]),
    }
    found = log_density(simulators.lynx_hare, (pelts,), {}, sites)[0]
    other = log_density(models.lynx_hare, data.lynx_hare(), {}, sites)[0]
    np.testing.assert_allclose(found, other, rtol=1e-4)


@pytest.mark.first
@pytest.mark.parametrize("name", REFERENCES)
def test_failed_solve_has_no_density(name):
    logdensity_fn, x = at_the_mean(name, SIMULATORS[name].model)
    assert logdensity_fn(x + 60.0) == -jnp.inf


def test_references_are_long_runs():
    for found in REFERENCES.values():
        assert found["rhat"] <= 1.01
        assert found["ess"] >= 2500
