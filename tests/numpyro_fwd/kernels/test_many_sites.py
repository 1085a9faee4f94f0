"""Models whose sites are made in a loop: what is alike in their programs goes together."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, init_to_median, init_to_value
from numpyro.infer.util import initialize_model

from blackjax_ext.adaptation.start import find_start
from blackjax_ext.equations import equations_in
from numpyro_fwd import MALA, AutoNUTS, LangevinSMC
from numpyro_fwd.bridge import views
from numpyro_fwd.bridge.arguments import split_arguments
from numpyro_fwd.bridge.priors import draw_prior
from numpyro_fwd.kernels.smc import Climb

LAWS = (
    lambda j: dist.Normal(0.0, 1.0 + j),
    lambda j: dist.Gamma(2.0 + j, 1.0),
    lambda j: dist.Dirichlet(jnp.ones(3) * (1 + j)),
    lambda j: dist.Beta(1.0 + j, 2.0),
    lambda j: dist.TruncatedNormal(0.0, 1.0, low=-1.0, high=2.0 + j),
    lambda j: dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2) + 0.3),
    lambda j: dist.HalfCauchy(1.0 + j),
)


def model(x, num_sites, y=None):
    """Sites of several laws in turn, and a predictor that is added up from the number zero."""
    predictor = 0.0
    for j in range(num_sites):
        value = numpyro.sample(f"site_{j}", LAWS[j % len(LAWS)](j))
        predictor += x[:, j] * jnp.sum(value * jnp.arange(1.0, 1.0 + jnp.size(value)))
        if j % 5 == 0:
            numpyro.factor(f"factor_{j}", -(jnp.sum(value) ** 2) / 100)
    numpyro.sample("y", dist.Normal(predictor, 1.0), obs=y)


def arguments(num_sites):
    rng = np.random.default_rng(0)
    return rng.normal(size=(7, num_sites)).astype(np.float32), num_sites, rng.normal(size=7)


# below, at and above the number from which on sites go together
NUM_SITES = (11, 12, pytest.param(25, marks=pytest.mark.full))


@pytest.mark.first
@pytest.mark.parametrize("num_sites", NUM_SITES)
def test_density_and_gradient_are_those_of_numpyro(num_sites):
    args = arguments(num_sites)
    key = jax.random.key(0)
    options = {"init_strategy": init_to_median, "init_params": None, "wanted": "reverse"}
    view, z = views.view_model(key, model, args, {}, **options)
    theirs = initialize_model(key, model, model_args=args).potential_fn
    found, expected = (
        jax.jit(jax.value_and_grad(f))(z) for f in (view.potential_fn(*args), theirs)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected
    )


def effects(num_sites):
    for j in range(num_sites):
        numpyro.sample(f"site_{j}", dist.Normal(0.0, 1.0 + j))


@pytest.mark.long
@pytest.mark.parametrize("kernel", [MALA, AutoNUTS])
def test_a_run_goes_on_when_it_has_been_pickled(kernel):
    mcmc = MCMC(kernel(effects), num_warmup=20, num_samples=10, progress_bar=False)
    mcmc.run(jax.random.key(0), 12)
    mcmc.post_warmup_state = mcmc.last_state
    draws = []
    for each in (pickle.loads(pickle.dumps(mcmc)), mcmc):
        each.run(jax.random.key(1), 12)
        draws.append(each.get_samples())
    jax.tree.map(np.testing.assert_array_equal, *draws)


def test_first_points_are_uniform_and_those_of_a_strategy_are_kept():
    args, keys = (40,), jax.random.split(jax.random.key(0), 50)
    options = {"init_params": None, "wanted": "reverse"}
    of = numpyro.infer.init_to_uniform(radius=0.5)
    _, z = views.view_model(keys, effects, args, {}, init_strategy=of, **options)
    x = np.concatenate([np.ravel(leaf) for leaf in z.values()])
    assert np.abs(x).max() < 0.5 and abs(x.mean()) < 0.03 and abs(x.std() - 0.5 / 3**0.5) < 0.01
    of = init_to_value(values={"site_0": 0.25})
    _, z = views.view_model(keys, effects, args, {}, init_strategy=of, **options)
    np.testing.assert_array_equal(z["site_0"], np.full(50, 0.25, np.float32))


def chain_of(num_sites):
    """Sites that depend on one another; the sine of each is in the density once."""

    def model():
        before = 0.0
        for i in range(num_sites):
            before = jnp.sin(numpyro.sample(f"x{i}", dist.Normal(before, 1.0)))
        numpyro.sample("y", dist.Normal(before, 1.0), obs=1.0)

    return model


def program_of_start(model):
    """The search for a start of four chains."""
    potential = initialize_model(jax.random.key(0), model)
    x, unravel = ravel_pytree(potential.param_info.z)
    logdensity_fn = lambda x: -potential.potential_fn(unravel(x))  # noqa: E731
    search = partial(find_start, logdensity_fn=logdensity_fn, differentiation="reverse")
    return jax.make_jaxpr(lambda key, x: search(key, x=x))(jax.random.key(0), jnp.tile(x, (4, 1)))


def program_of_annealing(model):
    """The annealing of LangevinSMC."""
    kernel, key = LangevinSMC(model), jax.random.key(0)
    z = draw_prior(key, model, (), {}, 100)
    annealed = partial(kernel._annealed, split_arguments((), {}), [], key, key)
    return jax.make_jaxpr(annealed)(z, Climb.of(0.0, 1.0, 0.5, 0.5, 100))


@pytest.mark.parametrize(
    ("program_of", "in_program"), [(program_of_start, 3), (program_of_annealing, 10)]
)
def test_a_density_stands_in_a_program_a_few_times(program_of, in_program):
    """However many sites there are; of an annealing prior and likelihood five times each.

    Many sites that are alike stand in it as one.
    """
    few, many = (list(equations_in(program_of(chain_of(n)).jaxpr)) for n in (8, 40))
    assert sum(equation.primitive.name == "sin" for equation in few) <= 8 * in_program
    assert len(many) < 1.2 * len(few)
