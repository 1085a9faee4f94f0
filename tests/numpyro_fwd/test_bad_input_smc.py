"""Bad input to sequential Monte Carlo raises and names what was given."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC

import blackjax_ext
from blackjax_ext import moves
from blackjax_ext.smc import langevin_smc, open_horizon
from numpyro_fwd import GOHSMC, SGSMC, LangevinSMC

Y = np.array([1.2, 0.7, 1.9, 1.1])


def raises(error, *parts):
    """Raises `error` with a message that holds every one of `parts`, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


def sample(model, *args, num_chains=20, **arguments):
    mcmc = MCMC(
        LangevinSMC(model, **arguments),
        num_warmup=5,
        num_samples=1,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *args, extra_fields=("log_evidence",))
    return mcmc


def train(model, *args, cls=GOHSMC, num_steps=3):
    smc = cls(model, optax.adam(0.01), num_particles=4)
    return smc, smc.run(jax.random.key(0), num_steps, *args, progress_bar=False)


# --- arguments of which one replaces another ------------------------------------------------------

METROPOLIS = moves.Metropolis(blackjax_ext.mala)


@pytest.mark.parametrize(
    "given",
    [
        {"proposal": "nonsense"},
        {"proposal": "langevin"},
        {"l_kernel": "gaussian"},
        {"num_integration_steps": 1},
        {"differentiation": "reverse"},
    ],
)
def test_a_move_replaces_arguments(given):
    with raises(ValueError, "move replaces", f"{list(given)}"):
        blackjax_ext.langevin_smc(jnp.sum, jnp.sum, step_size=0.1, move=METROPOLIS, **given)


def test_a_move_is_one():
    with raises(TypeError, "move must be", "'mala'"):
        blackjax_ext.langevin_smc(jnp.sum, jnp.sum, step_size=0.1, move="mala")


def test_a_random_walk_takes_no_gradient():
    with raises(ValueError, "differentiation", "proposal='random_walk'", "'forward'"):
        moves.Unadjusted("random_walk", differentiation="forward")
    with raises(ValueError, "guided is for proposal='langevin'"):
        open_horizon.build_kernel("random_walk", guided=True)


@pytest.mark.parametrize("name", ["step_size", "inverse_mass_matrix"])
def test_metropolis_leaves_out_what_the_sampler_gives(name):
    with raises(ValueError, "parameters must leave out", name):
        moves.Metropolis(blackjax_ext.mala, **{name: 0.5})
    with raises(TypeError, "['floors']", "unknown", "['floor']"):
        moves.Metropolis(blackjax_ext.hp_mala, floors=0.5)


def test_kernels_check_what_they_are_built_with():
    with raises(ValueError, "proposal must be one of", "'nonsense'"):
        open_horizon.build_kernel("nonsense")
    with raises(ValueError, "tempering_ess must be strictly between", "1.0"):
        langevin_smc.build_kernel(tempering_ess=1.0)


def normal(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean, 1), obs=y)


@pytest.mark.parametrize("algorithm", [None, blackjax_ext.mala])
def test_leapfrog_steps_of_an_algorithm_without_them(algorithm):
    with raises(TypeError, "num_integration_steps", "unknown to the algorithm"):
        LangevinSMC(normal, algorithm=algorithm, num_integration_steps=1)


def test_l_kernel_and_parameters():
    with raises(ValueError, "exclude each other"):
        LangevinSMC(normal, l_kernel="reversed", floor=0.1)
    with raises(TypeError, "['stepsize']", "unknown"):
        LangevinSMC(normal, stepsize=0.1)


# --- models ---------------------------------------------------------------------------------------


def not_enumerated(y):
    numpyro.param("w", 1.0)
    which = numpyro.sample("which", dist.Bernoulli(0.3))
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x + which, 1), obs=y)


def circular(y):
    numpyro.param("w", 1.0)
    with numpyro.handlers.reparam(config={"at": numpyro.infer.reparam.CircularReparam()}):
        at = numpyro.sample("at", dist.VonMises(0.5, 4.0))
    numpyro.sample("y", dist.Normal(at, 1), obs=y)


def enumerated(y):
    numpyro.param("w", 1.0)
    which = numpyro.sample("which", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
    mean = numpyro.sample("mean", dist.Normal(which, 1))
    numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def masked(y):
    numpyro.param("w", 1.0)
    with numpyro.handlers.mask(mask=jnp.array([True, False])):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]))
    numpyro.sample("y", dist.Normal(mean.sum(), 1), obs=y)


def masked_inside(y):
    numpyro.param("w", 1.0)
    prior = dist.Normal(0, 1).expand([2]).mask(jnp.array([True, False])).to_event(1)
    mean = numpyro.sample("mean", prior)
    numpyro.sample("y", dist.Normal(mean.sum(), 1), obs=y)


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (not_enumerated, ("site 'which'", "discrete latent", "does not enumerate")),
        (circular, ("site 'at' is reparametrized by CircularReparam", "leave", "out")),
        (enumerated, ("site 'which'", "discrete latent", "does not enumerate")),
        (masked, ("site 'mean'", "mask")),
        (masked_inside, ("site 'mean'", "mask")),
    ],
)
def test_models(model, parts):
    with raises(ValueError, *parts):
        sample(numpyro.handlers.block(model, hide=["w"]), Y)
    with raises(ValueError, *parts):
        train(model, Y)


@pytest.mark.long
def test_a_mask_of_all_values_is_none():
    def model(y):
        with numpyro.handlers.mask(mask=jnp.array([True, True])):
            mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]))
        with numpyro.handlers.mask(mask=y > 1):
            numpyro.sample("y", dist.Normal(mean.sum(), 1), obs=y)

    assert np.isfinite(sample(model, jnp.asarray(Y)).get_extra_fields()["log_evidence"]).all()


def impossible(y):
    scale = numpyro.param("scale", 1.0)
    shape = numpyro.sample("shape", dist.Normal(0, 1))
    numpyro.sample("fine", dist.Normal(shape, 1), obs=0.5)
    numpyro.sample("y", dist.Gamma(jnp.exp(shape), scale, validate_args=False), obs=y)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_no_prior_draw_has_a_likelihood(value):
    with raises(ValueError, "none of the 20 prior draws", "finite", "['y']"):
        sample(numpyro.handlers.block(impossible, hide=["scale"]), jnp.array(value))
    for cls in (GOHSMC, SGSMC):
        with raises(ValueError, "none of the 4 particles", "finite", "['y']"):
            train(impossible, jnp.array(value), cls=cls)


# --- arguments of a model -------------------------------------------------------------------------


def varied(size, name, y):
    """The size of a site, and a name that chooses a scale."""
    numpyro.param("w", 1.0)
    mean = numpyro.sample("mean", dist.Normal(jnp.zeros(size), 1).to_event(1))
    scale = {"a": 1.0, "2020-01-01": 2.0}[str(np.atleast_1d(name)[0])]
    with numpyro.plate("rows", y.shape[0], subsample_size=2):
        numpyro.sample("y", dist.Normal(mean.sum(), scale), obs=numpyro.subsample(y, 0))


def on_all(size, name, y):
    numpyro.sample("mean", dist.Normal(jnp.zeros(size), 1).to_event(1))
    numpyro.sample("y", dist.Normal({"a": 1.0}[str(np.atleast_1d(name)[0])], 1), obs=y)


NAMES = [
    "a",
    np.array("a"),
    np.array(["a"]),
    np.array(["a"], dtype=object),
    np.array("2020-01-01", dtype="datetime64[D]"),
]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES, ids=lambda name: str(np.asarray(name).dtype))
@pytest.mark.parametrize("size", [np.array(2), np.int64(2)])
def test_arguments_that_are_no_numbers(name, size):
    smc, result = train(varied, size, name, Y)
    assert np.isfinite(result.losses).all() and result.particles["mean"].shape == (4, 2)
    assert smc.predictive(jax.random.key(1), result, size, name, Y)["y"].shape == (4, 4)
    _, plain = train(varied, 2, str(np.atleast_1d(name)[0]), Y)
    np.testing.assert_array_equal(result.losses, plain.losses)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES[:4], ids=lambda name: str(np.asarray(name).dtype))
def test_arguments_that_are_no_numbers_of_a_kernel(name):
    assert sample(on_all, np.array(2), name, Y).get_samples()["mean"].shape == (20, 2)


@pytest.mark.long
def test_masked_arrays():
    y = np.ma.array(Y, mask=[True, False, False, False])
    with raises(TypeError, "model_args[2]", "masked array", "(4,)"):
        sample(on_all, 2, "a", y)
    with raises(TypeError, "model_args[2]", "masked array", "(4,)"):
        train(varied, 2, "a", y)
    smc = GOHSMC(varied, optax.sgd(0.01), num_particles=4)
    with raises(TypeError, "model_kwargs['y']", "masked array"):
        smc.init(jax.random.key(0), 2, "a", y=y)


# --- predictions ----------------------------------------------------------------------------------


def line(x, y=None):
    slope = numpyro.param("slope", 1.0)
    level = numpyro.sample("level", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0], subsample_size=3) as rows:
        obs = None if y is None else y[rows]
        numpyro.sample("y", dist.Normal(slope * x[rows] + level, 0.1), obs=obs)


@pytest.mark.long
def test_predictions_are_of_all_rows():
    x = jnp.linspace(-1.0, 1.0, 30)
    smc, result = train(line, x, 2.0 * x, num_steps=5)
    for new in (jnp.array([5.0, 9.0]), np.array([5.0, 9.0])):
        alone = result._replace(log_weights=jnp.full(4, -jnp.inf).at[1].set(0.0))
        found = smc.predictive(jax.random.key(1), alone, new, num_samples=500)["y"]
        mean = result.params["slope"] * new + result.particles["level"][1]
        assert found.shape == (500, 2)
        np.testing.assert_allclose(found.mean(0), mean, atol=0.03)
    assert smc.predictive(jax.random.key(1), result, x)["y"].shape == (4, 30)
