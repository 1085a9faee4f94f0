"""The terms of a log density are where they belong, and add up to it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import potential_energy

from numpyro_fwd.bridge.log_terms import log_terms
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.priors import split_logdensity

Y = np.random.default_rng(50).normal(size=20)
Z = {"mean": jnp.array(0.3), "scale": jnp.array(-0.4)}


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.factor("penalty", -(mean**2))
    with numpyro.plate("rows", len(y), subsample_size=5) as rows:
        numpyro.sample("y", dist.Normal(mean, scale), obs=y[rows])


def test_terms_have_their_kinds_and_plates(x64):
    terms = log_terms(FullView(model), (Y,), {}, Z)
    assert set(terms.prior) == {"mean", "scale", "_scale_log_det"}
    assert set(terms.observed) == {"penalty", "y"}
    assert set(terms.outside_plates) == {"mean", "scale", "_scale_log_det", "penalty"}
    assert terms.plates["y"] == ("rows",)
    assert terms.values["y"].shape == (20,)


def test_terms_add_up_to_the_log_density(x64):
    terms = log_terms(FullView(model), (Y,), {}, Z)
    expected = -potential_energy(FullView(model), (Y,), {}, Z)
    np.testing.assert_allclose(terms.total(), expected, rtol=1e-12)


def test_jacobians_belong_to_the_prior_and_factors_to_the_likelihood(x64):
    logprior, loglikelihood = split_logdensity(FullView(model), (Y,), {})
    scale = jnp.exp(Z["scale"])
    prior = dist.Normal(0, 2).log_prob(Z["mean"]) + dist.HalfNormal(1.0).log_prob(scale)
    np.testing.assert_allclose(logprior(Z), prior + Z["scale"], rtol=1e-12)
    likelihood = dist.Normal(Z["mean"], scale).log_prob(Y).sum() - Z["mean"] ** 2
    np.testing.assert_allclose(loglikelihood(Z), likelihood, rtol=1e-12)


def test_a_minibatch_is_scaled_to_all_rows(x64):
    terms = log_terms(numpyro.handlers.seed(model, jax.random.key(0)), (Y,), {}, Z)
    rows = terms.sites["rows"]["value"]
    values = 4 * dist.Normal(Z["mean"], jnp.exp(Z["scale"])).log_prob(Y[rows])
    np.testing.assert_allclose(terms.values["y"], values, rtol=1e-12)


def test_jacobians_of_latents_in_a_scope_belong_to_the_prior(x64):
    def inner():
        numpyro.sample("y", dist.Normal(0.0, numpyro.sample("s", dist.HalfNormal(1.0))), obs=1.0)

    scoped = numpyro.handlers.scope(numpyro.handlers.scope(inner, prefix="a"), prefix="b")
    terms = log_terms(scoped, (), {}, {"b/a/s": jnp.array(0.3)})
    assert set(terms.prior) == {"b/a/s", "b/a/_b/a/s_log_det"} and terms.observed == ["b/a/y"]
