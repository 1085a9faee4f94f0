"""Five posteriors of posteriordb as NumPyro models, with their data and reference moments.

The data are BSD-3 (posteriordb, stan-dev); see data/posteriordb/LICENCE.md.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

ROOT = Path(__file__).parents[2] / "data" / "posteriordb"


def eight_schools_noncentered(y, sigma):
    """Eight schools (Rubin 1981), non-centered: D = 10."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    trans = numpyro.sample("theta_trans", dist.Normal(0, 1).expand([y.shape[0]]))
    theta = numpyro.deterministic("theta", mu + tau * trans)
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def kidscore_interaction(mom_hs, mom_iq, kid_score):
    """Regression on unscaled covariates with flat priors: D = 5."""
    flat = dist.ImproperUniform(dist.constraints.real, (), event_shape=(4,))
    beta = numpyro.sample("beta", flat)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    design = jnp.stack([jnp.ones_like(mom_iq), mom_hs, mom_iq, mom_hs * mom_iq], axis=1)
    numpyro.sample("kid_score", dist.Normal(design @ beta, sigma), obs=kid_score)


def gp_regr(x, y):
    """Gaussian process regression: D = 3."""
    rho = numpyro.sample("rho", dist.Gamma(25, 4))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    squares = (x[:, None] - x) ** 2
    cov = alpha**2 * jnp.exp(-0.5 * squares / rho**2) + sigma * jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros_like(x), cov), obs=y)


def low_dim_gauss_mix(y):
    """Mixture of two normals: D = 5."""
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(0, 2).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2).expand([2]))
    theta = numpyro.sample("theta", dist.Beta(5, 5))
    parts = dist.Normal(mu, sigma)
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, parts), obs=y)


def hmm_drive(alpha, u, v):
    """Hidden Markov model of two states, whose modes are 65 nats apart: D = 6."""
    theta = numpyro.sample("theta", dist.Dirichlet(alpha))
    pair = dist.ImproperUniform(dist.constraints.positive_ordered_vector, (), (2,))
    phi, rate = numpyro.sample("phi", pair), numpyro.sample("lambda", pair)
    prior = dist.Normal(jnp.array([0.0, 3.0]), 1.0)
    numpyro.factor("pairs", prior.log_prob(phi).sum() + prior.log_prob(rate).sum())
    emitted = dist.Exponential(phi).log_prob(u[:, None])
    emitted += dist.Exponential(rate).log_prob(v[:, None])

    def step(forward, emitted):
        return logsumexp(forward[:, None] + jnp.log(theta), axis=0) + emitted, None

    last, _ = jax.lax.scan(step, emitted[0], emitted[1:])
    numpyro.factor("u, v", logsumexp(last))


def load(name):
    """Model, arguments and reference ``{site: (mean, sd)}`` of one posterior."""
    data_name, model, keys = (POSTERIORS | SEVERAL_MODES)[name]
    data = json.loads((ROOT / "data" / f"{data_name}.json").read_text())
    [path] = (ROOT / "reference").glob(f"{data_name.removesuffix('_data')}-*.json")
    sites = json.loads(path.read_text())["sites"]
    reference = {s: (np.array(v["mean"]), np.array(v["sd"])) for s, v in sites.items()}
    return model, tuple(jnp.asarray(data[key], float) for key in keys), reference


POSTERIORS = {
    "eight_schools": ("eight_schools", eight_schools_noncentered, ("y", "sigma")),
    "kidscore": ("kidiq", kidscore_interaction, ("mom_hs", "mom_iq", "kid_score")),
    "gp": ("gp_pois_regr", gp_regr, ("x", "y")),
    "mixture": ("low_dim_gauss_mix", low_dim_gauss_mix, ("y",)),
}
# on which the start decides: see tests/laws/test_starts.py
SEVERAL_MODES = {"drives": ("bball_drive_event_0", hmm_drive, ("alpha", "u", "v"))}
