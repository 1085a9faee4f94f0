"""Missing responses by ``obs_mask``: the posterior of all else, and of the missing ones."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.handlers import mask as masked
from numpyro.handlers import scale as scaled
from numpyro.handlers import scope
from numpyro.infer import MCMC
from numpyro.infer.util import log_density

from blackjax_ext.coordinates.laws import Pseudo
from numpyro_fwd import AutoNUTS, LangevinSMC
from numpyro_fwd.bridge.coordinates import ModelCoordinates, effects_of
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.scaled_noise import scaled_noise
from numpyro_fwd.bridge.traces import imputing

Y = jnp.array([1.3, 0.0, -0.4, 0.0, 2.2, 0.7])
KNOWN = jnp.array([True, False, True, False, True, True])


def prior():
    """Location and scale of the responses."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    return mu, numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))


def responses(law=dist.Normal):
    """Responses of which two are missing."""
    return numpyro.sample("y", law(*prior()).expand([6]), obs=Y, obs_mask=KNOWN)


def in_a_plate():
    mu, sigma = prior()
    with numpyro.plate("rows", 6):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=Y, obs_mask=KNOWN)


def of_vectors(in_plate=False):
    law = dist.Normal(*prior()).expand([2] if in_plate else [3, 2]).to_event(1)
    with numpyro.plate("rows", 3) if in_plate else contextlib.nullcontext():
        numpyro.sample("y", law, obs=Y.reshape(3, 2), obs_mask=KNOWN[jnp.array([0, 1, 2])])


def of_vectors_in_a_plate():
    of_vectors(in_plate=True)


def in_two_plates():
    """With a mask of rows, which the plates expand."""
    mu, sigma = prior()
    with numpyro.plate("rows", 3, dim=-2), numpyro.plate("columns", 2, dim=-1):
        law = dist.Normal(mu, sigma)
        numpyro.sample("y", law, obs=Y.reshape(3, 2), obs_mask=KNOWN[:3, None])


def in_a_scan():
    mu, sigma = prior()

    def step(state, row):
        y, is_known = row
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y, obs_mask=is_known)
        return state, None

    scan(step, None, (Y, KNOWN))


OF_ROWS = [of_vectors, of_vectors_in_a_plate, in_two_plates]


@pytest.mark.parametrize("model", [responses, in_a_plate, in_a_scan, *OF_ROWS])
def test_the_density_is_that_of_known_rows_times_the_law_of_the_latent(model):
    of_rows = model in OF_ROWS
    known = jnp.repeat(KNOWN[:3], 2) if of_rows else KNOWN
    rng = np.random.default_rng(0)
    for mu, sigma in rng.uniform(0.2, 2.0, (3, 2)):
        latent = jnp.asarray(rng.normal(size=(3, 2) if of_rows else 6), jnp.float32)
        z = {"mu": mu, "sigma": sigma, "y_unobserved": latent}
        found, _ = log_density(imputing(model), (), {}, z)
        law = dist.Normal(mu, sigma)
        expected = (
            dist.Normal(0.0, 2.0).log_prob(mu)
            + dist.LogNormal(0.0, 0.5).log_prob(sigma)
            + law.log_prob(Y)[known].sum()
            + law.log_prob(latent).sum()
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)


LAWS = {
    "mixture": lambda mu, sigma: mixture(dist.Normal(mu, sigma), dist.Cauchy(mu, 1.0)).expand([6]),
    "beta": lambda mu, sigma: dist.Beta(sigma, 2.0).expand([6]),
    "dirichlet": lambda mu, sigma: dist.Dirichlet(sigma * jnp.ones(3)).expand([6]),
    "gamma": lambda mu, sigma: dist.Gamma(sigma, 2.0).expand([6]),
    "transformed": lambda mu, sigma: dist.LogNormal(mu, sigma).expand([6]),
    "truncated": lambda mu, sigma: dist.TruncatedNormal(mu, sigma, low=0.1).expand([6]),
    "uniform": lambda mu, sigma: dist.Uniform(0.0, 9 + sigma).expand([6]),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_latent_has_its_law_where_a_response_is_known(name):
    def model(y):
        numpyro.sample("y", LAWS[name](*prior()), obs=y, obs_mask=KNOWN)

    law = LAWS[name](0.4, 1.7)
    y, latent = law.sample(jax.random.key(0)), law.sample(jax.random.key(1))
    z = {"mu": 0.4, "sigma": 1.7, "y_unobserved": latent}
    found = log_density(imputing(model), (y,), {}, z)[0] - log_density(model, (y,), {}, z)[0]
    np.testing.assert_allclose(found, law.log_prob(latent)[KNOWN].sum(), rtol=1e-4, atol=1e-5)


def weighted():
    """A power of a law does not integrate to one."""
    with scaled(scale=2.0):
        responses()


def within_a_mask():
    with masked(mask=jnp.arange(6) < 5):
        responses()


def of_a_masked_law():
    mu, sigma = prior()
    law = dist.Normal(mu, sigma).expand([6]).mask(jnp.arange(6) < 5)
    numpyro.sample("y", law, obs=Y, obs_mask=KNOWN)


def by_hand():
    """A latent whose density a factor gives."""
    mu, sigma = prior()
    y = numpyro.sample("y_unobserved", dist.Normal(mu, sigma).expand([6]).mask(KNOWN))
    numpyro.factor("flat", -jnp.sum(jnp.where(KNOWN, 0.0, jnp.abs(y))))


def by_hand_beside_another_law():
    """Names and masks alike, but another law."""
    mu, sigma = prior()
    with masked(mask=KNOWN):
        numpyro.sample("y_observed", dist.Normal(mu, 1.0), obs=Y)
    numpyro.sample("y_unobserved", dist.Normal(mu, sigma).expand([6]).mask(~KNOWN))


def of_censored_values():
    """A law of events does not integrate to one."""
    law = dist.RightCensoredDistribution(dist.LogNormal(*prior()), jnp.arange(6) < 3)
    numpyro.sample("y", law, obs=jnp.abs(Y) + 0.1, obs_mask=KNOWN)


class OwnLaw(dist.Normal):
    """A law of which nothing is known."""


def of_an_own_law():
    responses(OwnLaw)


class OwnTransform(dist.transforms.AffineTransform):
    """A transform of which nothing is known."""


def of_an_own_transform():
    mu, sigma = prior()
    law = dist.TransformedDistribution(dist.Normal(0.0, 1.0), OwnTransform(mu, sigma))
    numpyro.sample("y", law.expand([6]), obs=Y, obs_mask=KNOWN)


def mixture(*laws):
    return dist.MixtureGeneral(
        dist.Categorical(jnp.ones(2) / 2), list(laws), support=dist.constraints.real
    )


def of_an_own_component():
    mu, sigma = prior()
    law = mixture(dist.Normal(mu, sigma), OwnLaw(mu, sigma))
    numpyro.sample("y", law.expand([6]), obs=Y, obs_mask=KNOWN)


def of_own_components():
    mu, sigma = prior()
    law = dist.MixtureSameFamily(
        dist.Categorical(jnp.ones(2) / 2), OwnLaw(jnp.stack([mu, -mu]), sigma)
    )
    numpyro.sample("y", law.expand([6]), obs=Y, obs_mask=KNOWN)


def of_a_masked_component():
    mu, sigma = prior()
    law = mixture(dist.Normal(mu, sigma), dist.Normal(mu, sigma).mask(False))
    numpyro.sample("y", law.expand([6]), obs=Y, obs_mask=KNOWN)


def beside_another():
    """Of a name that only looks like it."""
    mu, sigma = prior()
    with masked(mask=KNOWN):
        numpyro.sample("y_observed", dist.Normal(mu, sigma), obs=Y)
    with masked(mask=~KNOWN):
        numpyro.sample("y", dist.Normal(mu, sigma).expand([6]))


LEFT = [weighted, within_a_mask, of_a_masked_law, by_hand, by_hand_beside_another_law]
LEFT += [of_censored_values, of_an_own_law, of_an_own_transform, of_an_own_component]
LEFT += [of_own_components, of_a_masked_component, beside_another]


@pytest.mark.parametrize("model", LEFT)
def test_other_densities_are_left_as_they_are(model):
    name = "y" if model is beside_another else "y_unobserved"
    z = {"mu": 0.3, "sigma": 0.8, name: jnp.abs(Y) + 1}
    assert log_density(imputing(model), (), {}, z)[0] == log_density(model, (), {}, z)[0]
    is_flat = np.asarray(~KNOWN if model is by_hand else KNOWN)
    check_what_is_flat(imputing(model), jax.tree.map(jnp.asarray, z), name, is_flat)


def check_what_is_flat(model, z, name, is_flat):
    """What is flat has no coordinates that depend on others, whatever is observed of it."""
    effects = effects_of(model, (), {}, z).names
    noise = scaled_noise(model, (), {}, z, effects).names
    coordinates = ModelCoordinates(model, (), {}, effects, noise)
    if name not in coordinates.names:
        return
    one = Pseudo(jnp.ones(6), jnp.ones(6))
    pseudo = {each: one if each == name else None for each in z}

    def moved(sigma):
        return coordinates.out(z | {"sigma": sigma}, pseudo).position[name]

    slope = np.asarray(jax.jacfwd(moved)(z["sigma"]))
    assert not slope[is_flat].any() and slope[~is_flat].all()


def test_masked_noise_has_no_coordinates():
    def model(mask=~KNOWN):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("sigma", dist.HalfNormal(1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([6]).mask(mask))
        numpyro.sample("y", dist.Normal(mu + tau * z, 1.0), obs=Y)

    z = {"mu": jnp.zeros(()), "sigma": jnp.zeros(()), "z": jnp.zeros(6)}
    assert scaled_noise(model, (), {}, z, ()).names == ("z",)
    check_what_is_flat(model, z, "z", np.asarray(KNOWN))


def test_beside_the_rows_of_a_minibatch():
    def model():
        in_a_plate()
        with numpyro.plate("others", 6, subsample_size=2) as rows:
            numpyro.sample("x", dist.Normal(0.0, 1.0), obs=Y[rows])

    z = {"mu": 0.3, "sigma": 0.8, "y_unobserved": Y + 1}
    found = log_density(FullView(model), (), {}, z)[0] - dist.Normal(0, 1).log_prob(Y).sum()
    np.testing.assert_allclose(found, log_density(imputing(in_a_plate), (), {}, z)[0], rtol=1e-5)


def test_in_a_scope():
    z = {"a/mu": 0.3, "a/sigma": 0.8, "a/y_unobserved": Y + 1}
    found, _ = log_density(imputing(scope(responses, "a")), (), {}, z)
    plain = {name.removeprefix("a/"): value for name, value in z.items()}
    assert found == log_density(imputing(responses), (), {}, plain)[0]


@pytest.mark.long
@pytest.mark.parametrize("kernel", [AutoNUTS, LangevinSMC])
def test_missing_responses_are_drawn(kernel):
    chains = 4 if kernel is AutoNUTS else 500
    mcmc = MCMC(
        kernel(responses),
        num_warmup=200 if kernel is AutoNUTS else 2,
        num_samples=500 if kernel is AutoNUTS else 1,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    draws = {name: np.asarray(x) for name, x in mcmc.get_samples().items()}
    known = np.asarray(KNOWN)
    np.testing.assert_array_equal(
        draws["y"][:, known], np.broadcast_to(Y[known], (len(draws["y"]), 4))
    )
    # a missing response has the mean of the others, and more spread than their location
    away = draws["y"][:, ~known].mean() - draws["mu"].mean()
    assert abs(away) < 0.3 and draws["y"][:, 1].std() > draws["mu"].std()
    assert np.abs(draws["y_unobserved"]).max() < 100  # where it is flat, a chain runs away
