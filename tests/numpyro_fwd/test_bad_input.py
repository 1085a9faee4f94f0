"""Bad input to a kernel raises and names what was given; a bad density loses no draws."""

import re

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.module import numpyro_mutable
from numpyro.infer import MCMC

import blackjax_ext
import numpyro_fwd
from numpyro_fwd import FMALA, MALA, PCFMALA, BlackJAXKernel, LineFMALA, PCLineFMALA, RandomWalk

NAMES = ("RandomWalk", "MALA", "FMALA", "LineFMALA", "PCFMALA", "PCLineFMALA")
NAMES += ("SMMALA", "ALSMMALA")
WITH_FRAMES = (FMALA, LineFMALA, PCLineFMALA)
FORWARD = (FMALA, LineFMALA, PCFMALA, PCLineFMALA)
NAN, INF = float("nan"), float("inf")

each_kernel = pytest.mark.parametrize("name", NAMES)


def normal():
    """Three unknowns in two sites."""
    numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("b", dist.Normal(0, 1).expand([2]))


def potential(z):
    return 0.5 * jnp.sum(z**2)


def run(kernel, *args, num_chains=1, num_warmup=5, num_samples=5, **kwargs):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *args, **kwargs)
    return mcmc


def raises(error, *parts):
    """Raises `error` with a message that holds every one of `parts`, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


# --- arguments of the constructor -----------------------------------------------------------------


@each_kernel
@pytest.mark.parametrize("step_size", [-0.5, 0.0, NAN, INF])
def test_step_size(name, step_size):
    with raises(ValueError, "step_size must be positive and finite", str(step_size)):
        getattr(numpyro_fwd, name)(normal, step_size=step_size)


def test_step_size_must_be_a_number():
    with raises(TypeError, "step_size must be a positive finite number", "'large'"):
        FMALA(normal, step_size="large")


def test_step_size_is_one_number():
    with raises(ValueError, "step_size", "(2,)"):
        FMALA(normal, step_size=jnp.ones(2))


@each_kernel
@pytest.mark.parametrize("target", [0, 1, -0.1, 1.5, NAN])
def test_target_accept_prob(name, target):
    with raises(ValueError, "target_accept_prob must be between 0 and 1", str(target)):
        getattr(numpyro_fwd, name)(normal, target_accept_prob=target)


@pytest.mark.parametrize("kernel", WITH_FRAMES)
@pytest.mark.parametrize(
    ("num_tangents", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)]
)
def test_num_tangents(kernel, num_tangents, error):
    with raises(error, "num_tangents must be", "at least 1", str(num_tangents)):
        kernel(normal, num_tangents=num_tangents)


@pytest.mark.long
@pytest.mark.parametrize("kernel", WITH_FRAMES)
@pytest.mark.parametrize("num_chains", [1, 2])
def test_num_tangents_is_at_most_the_dimension(kernel, num_chains):
    with raises(ValueError, "num_tangents must be from 1 to the 3", "got 4"):
        run(kernel(normal, num_tangents=4, warm_start=False), num_chains=num_chains)


@pytest.mark.parametrize("kernel", FORWARD)
def test_tangents(kernel):
    with raises(ValueError, "tangents must be one of", "rademacher", "'cube'"):
        kernel(normal, tangents="cube")


@pytest.mark.parametrize("kernel", [PCFMALA, PCLineFMALA])
@pytest.mark.parametrize("floor", [0.0, -1.0, NAN])
def test_curvature_floor(kernel, floor):
    with raises(ValueError, "curvature_floor must be positive and finite", str(floor)):
        kernel(normal, curvature_floor=floor)


@each_kernel
def test_model_or_potential_fn(name):
    kernel = getattr(numpyro_fwd, name)
    with raises(ValueError, "exactly one of model and potential_fn", "neither"):
        kernel()
    with raises(ValueError, "exactly one of model and potential_fn", "both"):
        kernel(normal, potential_fn=potential)


@pytest.mark.parametrize("name", ["model", "potential_fn"])
def test_model_and_potential_fn_are_callable(name):
    with raises(TypeError, f"{name} must be callable", "float"):
        FMALA(**{name: 3.0})


@each_kernel
def test_unknown_keyword(name):
    with raises(TypeError, "stepsize"):
        getattr(numpyro_fwd, name)(normal, stepsize=0.1)


def test_parameters_of_the_algorithm():
    with raises(TypeError, "num_integration_steps", "must be given"):
        BlackJAXKernel(normal, blackjax.hmc)
    with raises(TypeError, "takes no num_steps", "num_integration_steps"):
        BlackJAXKernel(normal, blackjax.hmc, num_integration_steps=3, num_steps=2)


@pytest.mark.parametrize("algorithm", [None, "hmc", lambda x: x])
def test_algorithm(algorithm):
    with raises(TypeError, "algorithm must have init and build_kernel"):
        BlackJAXKernel(normal, algorithm)


def test_differentiation():
    with raises(ValueError, "differentiation must be", "'backward'"):
        BlackJAXKernel(normal, blackjax_ext.fmala, differentiation="backward")


INDEFINITE = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
ASYMMETRIC = np.array([[1.0, 0.3, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.first
@pytest.mark.parametrize("dense_mass", [True, False])
@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (np.ones((2, 3)), "of shape (D,) or of shape (D, D); got shape (2, 3)"),
        (np.float64(1.0), "of shape (D,) or of shape (D, D); got shape ()"),
        (np.ones((3, 3, 3)), "of shape (D,) or of shape (D, D); got shape (3, 3, 3)"),
        (np.array([1.0, 0.0, 1.0]), "positive and finite; got [1. 0. 1.]"),
        (np.array([1.0, -2.0, 1.0]), "positive and finite; got [ 1. -2.  1.]"),
        (np.array([1.0, NAN, 1.0]), "positive and finite; got [ 1. nan  1.]"),
        (np.full((3, 3), INF), "symmetric and positive definite; got"),
        (INDEFINITE, "symmetric and positive definite; got"),
        (ASYMMETRIC, "symmetric and positive definite; got"),
        (np.ones(2), "3 dimensions; got shape (2,)"),
        (np.eye(2), "3 dimensions; got shape (2, 2)"),
        (np.eye(1), "3 dimensions; got shape (1, 1)"),
    ],
)
def test_inverse_mass_matrix(matrix, says, dense_mass):
    with raises(ValueError, "inverse_mass_matrix must", says):
        run(FMALA(normal, inverse_mass_matrix=matrix, dense_mass=dense_mass))


# --- models ---------------------------------------------------------------------------------------


def discrete():
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("x", dist.Normal(z, 1))


def with_param():
    loc = numpyro.param("loc", 0.5)
    numpyro.sample("x", dist.Normal(loc, 1))


def with_mutable():
    numpyro_mutable("memory", {"value": jnp.ones(())})
    numpyro.sample("x", dist.Normal(0, 1))


def subsampled():
    x = numpyro.sample("x", dist.Normal(0, 1))
    with numpyro.plate("rows", 10, subsample_size=3):
        numpyro.sample("y", dist.Normal(x, 1), obs=jnp.ones(3))


def impossible():
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Gamma(jnp.exp(x), 1, validate_args=False), obs=jnp.array(-1.0))


def nowhere():
    numpyro.sample("x", dist.Normal(0, 1))
    numpyro.factor("wall", -jnp.inf)


@each_kernel
@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (discrete, ("site 'z'", "Bernoulli", "discrete latent", "enumerate")),
        (with_param, ("param site 'loc'", "numpyro.sample")),
        (with_mutable, ("mutable site 'memory'",)),
        (subsampled, ("plate 'rows'", "3 of 10", "subsample_size")),
    ],
)
def test_model(name, model, parts):
    with raises(ValueError, *parts):
        run(getattr(numpyro_fwd, name)(model))


@pytest.mark.first
@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.parametrize("name", ["RandomWalk", "MALA", "FMALA"])
@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.parametrize(("model", "site"), [(impossible, "y"), (nowhere, "wall")])
def test_model_without_density(name, num_chains, model, site):
    with raises(ValueError, "model has no start", f"'{site}'"):
        run(getattr(numpyro_fwd, name)(model), num_chains=num_chains)


@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.parametrize(
    "argument, parts",
    [
        (0, ("invalid loc", "model_args[0] is nan at (3,)")),
        (1, ("model has no start", "model_args[1] is nan at (3,)", "site 'y' is -inf at (3,)")),
    ],
)
def test_a_row_that_is_nan_is_named(argument, parts):
    def line(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)

    arguments = [np.ones(5, np.float32), np.ones(5, np.float32)]
    arguments[argument][3] = np.nan
    with raises(ValueError, *parts):
        run(MALA(line), *arguments)


@pytest.mark.long
@pytest.mark.parametrize("kernel", [RandomWalk, MALA, FMALA])
@pytest.mark.parametrize("num_chains", [1, 2])
def test_model_without_density_and_init_params(kernel, num_chains):
    start = {"x": jnp.zeros((num_chains,) if num_chains > 1 else ())}
    with raises(ValueError, "'wall'"):
        run(kernel(nowhere), num_chains=num_chains, init_params=start)


def looping():
    """Reverse mode cannot differentiate this model."""
    x = numpyro.sample("x", dist.Normal(0, 1))
    total = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + x), (0, 0.0))[1]
    numpyro.factor("loop", -(total**2))


def test_reverse_mode_on_a_loop():
    with raises(ValueError, "model cannot be differentiated in reverse mode", "FMALA"):
        run(MALA(looping))


def test_reverse_mode_on_a_loop_and_init_params():
    with raises(ValueError, "model cannot be differentiated in reverse mode", "FMALA"):
        run(MALA(looping), init_params={"x": jnp.zeros(())})


def test_reverse_mode_on_a_potential_fn_with_a_loop():
    def potential_fn(x):
        return jax.lax.while_loop(lambda s: s < 9, lambda s: s + x**2 + 1, x)

    with raises(ValueError, "potential_fn cannot be differentiated in reverse mode", "FMALA"):
        run(MALA(potential_fn=potential_fn), init_params=jnp.zeros(()))


# --- start values ---------------------------------------------------------------------------------

GOOD = {"a": np.zeros(()), "b": np.zeros(2)}


def starts(change, num_chains):
    """A start for each chain, with one entry changed in all of them."""
    start = {**GOOD, **change}
    start = {site: np.asarray(value) for site, value in start.items() if value is not None}
    return {
        site: np.broadcast_to(value, (num_chains, *value.shape)) if num_chains > 1 else value
        for site, value in start.items()
    }


@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"b": [0.0, NAN]}, ValueError, ("init_params['b'] must be finite", "nan")),
        ({"a": INF}, ValueError, ("init_params['a'] must be finite", "inf")),
        ({"b": None}, ValueError, ("init_params must have", "['a', 'b']", "missing ['b']")),
        ({"c": 1.0}, ValueError, ("init_params must have", "['a', 'b']", "extra ['c']")),
        ({"a": 1}, TypeError, ("init_params['a'] must be floating", "int")),
        ({"b": [True, False]}, TypeError, ("init_params['b'] must be floating", "bool")),
        ({"b": [0.0] * 3}, ValueError, ("init_params['b'] must have", "(2,)", "(3,)")),
        ({"a": [0.0]}, ValueError, ("init_params['a'] must have", "shape")),
    ],
)
def test_init_params(change, error, parts, num_chains):
    if num_chains > 1 and "shape" in parts[-1]:
        parts = (*parts, "(2,)", "(2, 1)")
    with raises(error, *(part for part in parts if "(" not in part or num_chains == 1)):
        run(FMALA(normal), num_chains=num_chains, init_params=starts(change, num_chains))


@each_kernel
def test_init_params_of_every_kernel(name):
    with raises(ValueError, "init_params['b'] must be finite"):
        run(getattr(numpyro_fwd, name)(normal), init_params=starts({"b": [NAN, 0.0]}, 1))


def test_one_bad_chain():
    start = starts({}, 2)
    start["b"] = np.array([[0.0, 0.0], [0.0, NAN]])
    with raises(ValueError, "init_params['b'] must be finite"):
        run(FMALA(normal), num_chains=2, init_params=start)


def test_start_for_fewer_chains():
    with pytest.raises(ValueError, match="leading dimension"):
        run(FMALA(normal), num_chains=3, init_params=starts({}, 2))


def test_init_params_must_be_a_dict():
    with raises(TypeError, "init_params must be a dict", "['a', 'b']"):
        run(FMALA(normal), init_params=jnp.zeros(3))


@pytest.mark.long
@pytest.mark.parametrize("num_chains", [1, 2])
def test_start_outside_the_support(num_chains):
    start = jnp.array([-1.0, 2.0]) if num_chains > 1 else jnp.array(-1.0)
    kernel = FMALA(potential_fn=lambda z: jnp.where(z > 0, z, jnp.inf))
    with raises(ValueError, "init_params must have a finite log density", "-inf"):
        run(kernel, num_chains=num_chains, init_params=start)


@each_kernel
def test_potential_fn_without_init_params(name):
    with raises(ValueError, "init_params must be given", "potential_fn"):
        run(getattr(numpyro_fwd, name)(potential_fn=potential))


@pytest.mark.parametrize(
    ("start", "error", "parts"),
    [
        (jnp.array([0.0, NAN]), ValueError, ("init_params must be finite", "nan")),
        (jnp.zeros(2, int), TypeError, ("init_params must be floating", "int")),
        ({"a": [jnp.array(INF)]}, ValueError, ("init_params['a'][0] must be finite", "inf")),
        ({}, ValueError, ("init_params must be given", "at least one array", "{}")),
    ],
)
def test_init_params_of_a_potential_fn(start, error, parts):
    kernel = FMALA(potential_fn=lambda z: sum(jnp.sum(x**2) for x in jax.tree.leaves(z)))
    with raises(error, *parts):
        run(kernel, init_params=start)


@each_kernel
@pytest.mark.parametrize("num_chains", [1, 2])
def test_potential_fn_must_be_scalar(name, num_chains):
    start = jnp.zeros((num_chains, 3) if num_chains > 1 else 3)
    kernel = getattr(numpyro_fwd, name)(potential_fn=lambda z: 0.5 * z**2)
    with raises(TypeError, "potential_fn must return a scalar", "shape (3,)"):
        run(kernel, num_chains=num_chains, init_params=start)


# --- a density that turns bad on the way ----------------------------------------------------------


def walled(z):
    """A standard normal that is NaN beyond 0.5 in the first coordinate."""
    return jnp.where(z[0] < 0.5, 0.5 * jnp.sum(z**2), jnp.nan)


@pytest.mark.long
@pytest.mark.parametrize(("name", "num_chains"), [*((name, 1) for name in NAMES), ("FMALA", 2)])
def test_nan_is_rejected_and_counted(name, num_chains):
    mcmc = run(
        getattr(numpyro_fwd, name)(potential_fn=walled),
        num_chains=num_chains,
        num_warmup=1000,
        num_samples=6000,
        init_params=jnp.zeros((num_chains, 2) if num_chains > 1 else 2),
        extra_fields=("potential_energy", "accept_prob", "adapt_state.step_size"),
    )
    draws, fields = mcmc.get_samples(), mcmc.get_extra_fields()
    assert np.isfinite(draws).all() and (draws[:, 0] < 0.5).all()
    assert all(np.isfinite(value).all() for value in fields.values())
    assert 0 < fields["diverging"].mean() < 0.9
    assert (fields["accept_prob"][fields["diverging"]] == 0).all()
    # a normal truncated to (-inf, 0.5)
    np.testing.assert_allclose(draws.mean(0), [-0.509, 0.0], atol=0.2)


@pytest.mark.long
def test_divergences_are_printed(capsys):
    mcmc = run(FMALA(potential_fn=walled), num_samples=200, init_params=jnp.zeros(2))
    mcmc.print_summary()
    printed = capsys.readouterr().out
    assert f"Number of divergences: {int(mcmc.get_extra_fields()['diverging'].sum())}" in printed
    assert "Number of divergences: 0" not in printed
