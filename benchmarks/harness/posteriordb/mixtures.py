"""Mixtures, hidden Markov models and topic models, their discrete variables summed out."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


@port("low_dim_gauss_mix-low_dim_gauss_mix")
def low_dim_gauss_mix(y):
    """Mixture of two normals: D = 5."""
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(0, 2).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2).expand([2]))
    theta = numpyro.sample("theta", dist.Beta(5, 5))
    parts = dist.Normal(mu, sigma)
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, parts), obs=y)


@port("low_dim_gauss_mix_collapse-low_dim_gauss_mix_collapse")
def low_dim_gauss_mix_collapse(y):
    """Mixture of two normals that may change places: D = 5."""
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2).expand([2]))
    theta = numpyro.sample("theta", dist.Beta(5, 5))
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


@port("normal_2-normal_mixture")
def normal_mixture(y):
    """Mixture of two normals of unit variance: D = 3."""
    theta = numpyro.sample("theta", dist.Uniform(0, 1))
    mu = numpyro.sample("mu", dist.Normal(0, 10).expand([2]))
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, 1)), obs=y)


@port("normal_5-normal_mixture_k")
def normal_mixture_k(K, y):
    """Mixture of five normals that may change places: D = 14."""
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(K)))
    mu = numpyro.sample("mu", dist.Normal(0, 10).expand([K]))
    sigma = numpyro.sample("sigma", dist.Uniform(0, 10).expand([K]))
    parts = dist.Normal(mu, sigma)
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=theta), parts), obs=y)


def forward(first, transitions, emitted):
    """Log evidence of a chain of states, given log densities of its emissions in each state.

    ``first`` are log probabilities of the first state with its emission, ``transitions`` those from
    the state in a row to that in a column, for all steps or, with one more axis, for each.
    """
    each = jnp.broadcast_to(transitions, (len(emitted), *transitions.shape[-2:]))

    def step(alpha, inputs):
        log_a, log_emitted = inputs
        return logsumexp(alpha[:, None] + log_a, axis=0) + log_emitted, None

    last, _ = jax.lax.scan(step, first, (each, emitted))
    return logsumexp(last)


def rows(*priors):
    """Transition probabilities of two states, in Stan's parameters theta1 and theta2."""
    pairs = [
        numpyro.sample(f"theta{i + 1}", dist.Dirichlet(prior)) for i, prior in enumerate(priors)
    ]
    return numpyro.deterministic("theta", jnp.stack(pairs))


def ordered_pair(name, support, means):
    """An ordered pair with normal priors about two means."""
    pair = numpyro.sample(name, dist.ImproperUniform(support, (), (2,)))
    numpyro.factor(f"{name}_prior", dist.Normal(jnp.array(means), 1).log_prob(pair).sum())
    return pair


@port("bball_drive_event_0-hmm_drive_0")
def hmm_drive_0(alpha, u, v):
    """Drives in basketball, two states with exponential emissions: D = 6."""
    theta = rows(*alpha)
    phi = ordered_pair("phi", constraints.positive_ordered_vector, [0.0, 3.0])
    rate = ordered_pair("lambda", constraints.positive_ordered_vector, [0.0, 3.0])
    emitted = dist.Exponential(phi).log_prob(u[:, None])
    emitted += dist.Exponential(rate).log_prob(v[:, None])
    numpyro.factor("u, v", forward(emitted[0], jnp.log(theta), emitted[1:]))


@port("bball_drive_event_1-hmm_drive_1")
def hmm_drive_1(alpha, u, v, tau, rho):
    """Drives in basketball, two states with normal emissions: D = 6."""
    theta = rows(*alpha)
    phi = ordered_pair("phi", constraints.ordered_vector, [0.0, 3.0])
    means = ordered_pair("lambda", constraints.ordered_vector, [0.0, 3.0])
    emitted = dist.Normal(phi, tau).log_prob(u[:, None])
    emitted += dist.Normal(means, rho).log_prob(v[:, None])
    numpyro.factor("u, v", forward(emitted[0], jnp.log(theta), emitted[1:]))


@port("hmm_example-hmm_example")
def hmm_example(y):
    """Two states with normal emissions of unit variance: D = 4."""
    theta = rows(jnp.ones(2), jnp.ones(2))
    mu = ordered_pair("mu", constraints.positive_ordered_vector, [3.0, 10.0])
    emitted = dist.Normal(mu, 1).log_prob(y[:, None])
    numpyro.factor("y", forward(emitted[0], jnp.log(theta), emitted[1:]))


@port("hmm_gaussian_simulated-hmm_gaussian")
def hmm_gaussian(K, y):
    """Three states with normal emissions, flat priors: D = 14.

    Stan's program gives each first state the density of y[0] in all states, and so does this one.
    """
    pi1 = numpyro.sample("pi1", dist.Dirichlet(jnp.ones(K)))
    A = numpyro.sample("A", dist.Dirichlet(jnp.ones(K)).expand([K]))
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (K,)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), (K,)))
    emitted = dist.Normal(mu, sigma).log_prob(y[:, None])
    first = jnp.log(pi1) + emitted[0].sum()
    numpyro.factor("y", forward(first, jnp.log(A), emitted[1:]))


@port("iohmm_reg_simulated-iohmm_reg")
def iohmm_reg(K, M, y, u):
    """Three states, inputs that decide the next state and the mean of the output: D = 29."""
    pi1 = numpyro.sample("pi1", dist.Dirichlet(jnp.ones(K)))
    w = numpyro.sample("w", dist.Normal(0, 5).expand([K, M]))
    b = numpyro.sample("b", dist.Normal(0, 5).expand([K, M]))
    sigma = numpyro.sample("sigma", dist.HalfNormal(3).expand([K]))
    emitted = dist.Normal(u @ b.T, sigma).log_prob(y[:, None])
    # Stan's program weighs the state that is left, not the one that is entered
    left = jax.nn.log_softmax(u[1:] @ w.T)[:, :, None]
    transitions = jnp.broadcast_to(left, (len(y) - 1, K, K))
    numpyro.factor("y", forward(jnp.log(pi1) + emitted[0], transitions, emitted[1:]))


def topics(alpha, beta, M, w, doc):
    """Latent Dirichlet allocation, the topic of each word summed out."""
    theta = numpyro.sample("theta", dist.Dirichlet(alpha).expand([M]))
    phi = numpyro.sample("phi", dist.Dirichlet(beta).expand([len(alpha)]))
    words = jnp.log(theta)[doc - 1] + jnp.log(phi).T[w - 1]
    numpyro.factor("w", logsumexp(words, axis=1).sum())


@port("three_men1-ldaK2", "three_men2-ldaK2", "three_men3-ldaK2", "three_docs1200-ldaK2")
def ldaK2(V, M, w, doc):
    """Two topics: D = 502, 510, 505 and 7."""
    topics(jnp.ones(2), jnp.ones(V), M, w, doc)


@port("prideprejudice_chapter-ldaK5", "prideprejudice_paragraph-ldaK5")
def ldaK5(M, w, doc, alpha, beta):
    """Five topics of Pride and Prejudice: D = 7714 and 15570."""
    topics(alpha, beta, M, w, doc)
