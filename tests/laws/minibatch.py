"""Laws of the algorithms that are driven by minibatches, and the table they are put to.

Invariance is that of position and momentum together: without fresh momentum a sampler that
forgets to flip it keeps the marginal of the position nearly right.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats
from blackjax.mcmc import hmc, integrators

import blackjax_ext
from blackjax_ext import potentials
from blackjax_ext.metrics import factors
from blackjax_ext.rows import compensated_sums
from blackjax_ext.sgmcmc import leapfrog
from tests.laws import laws
from tests.laws.laws import Outcome, Size, flat
from tests.laws.targets import LOG_GAMMA, NORMAL, SHAPES, Target

# rows of unequal information: the gradient of a minibatch is far from that of the data
WEIGHT, PRIOR_RATE = 0.1, 1.5
DATA = np.random.default_rng(30).gamma(0.5, 2.0, (12, 3)).astype(np.float32)
POSTERIOR_SHAPES = SHAPES + WEIGHT * len(DATA)
POSTERIOR_RATES = PRIOR_RATE + WEIGHT * DATA.sum(axis=0)
ANCHOR = np.log(POSTERIOR_SHAPES / POSTERIOR_RATES).astype(np.float32) + 0.3


def logprior(x):
    """Logarithms of gamma variables: skewed, and as strong as the data."""
    return jnp.sum(jnp.asarray(SHAPES, x.dtype) * x - PRIOR_RATE * jnp.exp(x))


def loglikelihood(x, y):
    """An exponential variable of rate exp(x) that counts for a tenth of a row."""
    return WEIGHT * jnp.sum(x - y * jnp.exp(x))


def posterior_draw(rng, n):
    grown = np.log(rng.gamma(POSTERIOR_SHAPES + 1, size=(n, 3)) / POSTERIOR_RATES)
    return grown + np.log(rng.uniform(size=(n, 3))) / POSTERIOR_SHAPES


POSTERIOR = Target(
    name="posterior",
    logdensity=lambda x: logprior(x) + sum(loglikelihood(x, y) for y in jnp.asarray(DATA)),
    draw=posterior_draw,
    uniforms=lambda x: scipy.special.gammainc(POSTERIOR_SHAPES, POSTERIOR_RATES * np.exp(x)),
    covariance=0.7 * np.diag([0.8, 0.6, 0.4]) + 0.1,
)


def plain(batch_size=3, chunk_size=5):
    """The posterior with minibatches; chunks that do not divide the rows."""
    return potentials.minibatch(logprior, loglikelihood, DATA, batch_size, chunk_size=chunk_size)


def anchored(order):
    """The same with a control variate, away from the mode."""
    return potentials.control_variate(plain(), jnp.asarray(ANCHOR), order=order)


class Case(NamedTuple):
    """One configuration of one sampler.

    algorithm
        Public name in `blackjax_ext`.
    target
        What it samples.
    potential
        Makes the potential, which planted bugs may have changed.
    step_size
        One with an acceptance rate near one half.
    arguments
        Keyword arguments.
    dense
        Whether it gets the dense preconditioner of the target.
    keyed
        Whether ``init`` is given a key.
    """

    algorithm: str
    target: Target
    potential: Callable
    step_size: float
    arguments: dict[str, Any]
    dense: bool = False
    keyed: bool = True

    def on(self, logdensity_fn, step_size=0.5):
        """Make the sampler for any density, with noise on its gradient."""
        make = getattr(blackjax_ext, self.algorithm)
        return make(potentials.gaussian_noise(logdensity_fn, 0.3), step_size, **self.arguments)

    def build(self):
        """Make the sampler."""
        metric = jnp.asarray(self.target.covariance, jnp.float32) if self.dense else None
        make = getattr(blackjax_ext, self.algorithm)
        return make(self.potential(), self.step_size, metric, **self.arguments)


FRESH = {"num_integration_steps": 3, "friction": 0.5}
PERSISTENT = FRESH | {"resample_momentum": False}

CASES = {
    "fresh": Case("amagold", POSTERIOR, plain, 0.5, FRESH),
    "fresh_dense": Case("amagold", POSTERIOR, plain, 0.6, FRESH, dense=True),
    "persistent": Case("amagold", POSTERIOR, plain, 0.5, PERSISTENT),
    "first_order": Case("amagold", POSTERIOR, partial(anchored, 1), 0.7, FRESH),
    "second_order": Case("amagold", POSTERIOR, partial(anchored, 2), 0.85, PERSISTENT, dense=True),
    "noise": Case(
        "amagold",
        LOG_GAMMA,
        partial(potentials.gaussian_noise, LOG_GAMMA.logdensity, 1.0),
        0.5,
        PERSISTENT,
    ),
    "tree": Case(
        "amagold",
        NORMAL,
        partial(potentials.gaussian_noise, NORMAL.logdensity, 1.0),
        0.5,
        FRESH,
        dense=True,
    ),
    "l2mc": Case("l2mc", POSTERIOR, plain, 0.8, PERSISTENT),
}
BIASED = Case("sghmc", POSTERIOR, plain, 0.5, PERSISTENT)


def simulate(case: Case, size: Size) -> Outcome:
    """Run the sampler from exact draws of position and momentum."""
    sampler = case.build()
    starts = case.target.draw(np.random.default_rng(31), size.num_chains)
    starts = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), starts)

    def chain(start, rng_key):
        key_init, key_steps = jax.random.split(rng_key)
        first = sampler.init(start, key_init)

        def one_step(state, key):
            state, info = sampler.step(key, state)
            return state, info.acceptance_rate

        keys = jax.random.split(key_steps, size.num_steps)
        last, acceptance = jax.lax.scan(one_step, first, keys)
        ends = (first.position, first.momentum), (last.position, last.momentum)
        return ends, jnp.mean(acceptance)

    keys = jax.random.split(jax.random.key(32), size.num_chains)
    (first, last), acceptance = jax.jit(jax.vmap(chain))(starts, keys)
    moved = np.mean(np.any(flat(first[0]) != flat(last[0]), axis=1))
    with np.errstate(all="ignore"):  # a broken sampler may leave the range of floats
        both = [
            np.hstack([case.target.uniforms(flat(x)), scipy.stats.norm.cdf(flat(r))])
            for x, r in (first, last)
        ]
    return Outcome(*both, float(np.mean(acceptance)), float(moved))


def invariance(case: Case, size: Size) -> Outcome:
    """Raise unless position and momentum stay in equilibrium; return what happened."""
    outcome = simulate(case, size)
    assert not np.isnan(outcome.end).any(), "invariance: NaN"
    smallest = min(*laws.uniformity(outcome.end), *laws.changes(outcome.start, outcome.end))
    assert smallest > laws.LEVEL, f"invariance: p = {smallest:.2g}"
    return outcome


def path_density_ratio() -> None:
    """The accumulator is the ratio of the Gaussian densities of the way back and the way there."""
    epsilon, beta = 0.4, 0.7
    metric = factors.factorize(jnp.asarray(POSTERIOR.covariance))
    potential = plain()
    rng = np.random.default_rng(33)
    start = leapfrog.Phase(jnp.asarray(ANCHOR, float), jnp.asarray(rng.normal(size=3)), 0.0)
    there = back = 0.0
    phase = start

    @jax.jit
    def step(phase, batch, noise):
        estimate = leapfrog.gradient_estimator(potential, batch, lambda x: x)
        return leapfrog.step(phase, estimate, noise, metric, epsilon, beta)

    for key in jax.random.split(jax.random.key(34), 4):
        batch, noise = potential.draw(key), rng.normal(size=3)
        new = step(phase, batch, noise)
        # the same component from the far end with the momentum turned: the noise that comes back
        middle = new.x - 0.5 * epsilon * metric.inverse_sqrt_times(new.momentum)
        gradient = metric.inverse_sqrt_transpose_times(potential.stochastic_grad(middle, batch))
        b = epsilon * beta
        needed = -(1 + b) * phase.momentum + (1 - b) * new.momentum + epsilon * gradient
        needed = needed / (2 * np.sqrt(b))
        turned = step(new._replace(momentum=-new.momentum), batch, needed)
        np.testing.assert_allclose(turned.x, phase.x, atol=1e-10)
        np.testing.assert_allclose(turned.momentum, -phase.momentum, atol=1e-10)
        there += scipy.stats.norm.logpdf(noise).sum()
        back += scipy.stats.norm.logpdf(needed).sum()
        phase = new
    kinetic = 0.5 * (start.momentum @ start.momentum - phase.momentum @ phase.momentum)
    np.testing.assert_allclose(phase.accumulator, back - there + kinetic, rtol=1e-9)


def gradient_is_unbiased(make: Callable = plain) -> None:
    """The mean of the estimate over all single rows is the gradient of the energy."""
    potential = make(batch_size=1)
    gradient = jax.jit(potential.stochastic_grad)
    for x in (ANCHOR, ANCHOR - 1.0):
        rows = [gradient(x, y[None]) for y in DATA]
        exact = jax.grad(lambda x: -POSTERIOR.logdensity(x))(x)
        np.testing.assert_allclose(np.mean(rows, axis=0), exact, rtol=1e-5)


def energy_is_precise() -> None:
    """In float32, differences of the energy of a million rows are right to 0.01."""
    y = np.random.default_rng(35).normal(size=1_000_000).astype(np.float32)

    def loglikelihood(x, y):
        return -0.5 * (y - x) ** 2 - 1.0

    potential = potentials.minibatch(lambda x: -0.5 * x**2, loglikelihood, y, 10)
    a, b = np.float32(0.001), np.float32(-0.002)
    energy = jax.jit(lambda x: potential.potential(x))
    found = compensated_sums.difference(energy(jnp.asarray(a)), energy(jnp.asarray(b)))
    wide, a, b = y.astype(np.float64), float(a), float(b)
    exact = 0.5 * (a**2 - b**2) + 0.5 * np.sum((wide - a) ** 2 - (wide - b) ** 2)
    assert found.dtype == jnp.float32
    assert abs(found - exact) < 0.01, f"precision: off by {abs(found - exact):.2g}"


def no_friction_is_hmc() -> None:
    """L2MC without friction is BlackJAX's HMC with the leapfrog that starts with the position."""
    metric = blackjax.mcmc.metrics.default_metric(jnp.asarray(POSTERIOR.covariance))
    position_verlet = integrators.generate_euclidean_integrator([0.0, 0.5, 1.0, 0.5, 0.0])
    integrator = position_verlet(POSTERIOR.logdensity, metric.kinetic_energy)
    propose = jax.jit(hmc.hmc_proposal(integrator, metric.kinetic_energy, 0.4, 3))
    potential = potentials.full_batch(POSTERIOR.logdensity)
    factor = factors.factorize(jnp.asarray(POSTERIOR.covariance))
    arguments = {"num_integration_steps": 3, "friction": 0.0, "resample_momentum": False}

    @jax.jit
    def step(key, state):
        kernel = blackjax_ext.l2mc.build_kernel()
        return kernel(key, state, potential, 0.4, factor, **arguments)

    for key in jax.random.split(jax.random.key(36), 5):
        r = jax.random.normal(key, (3,))
        state = blackjax_ext.l2mc.init(jnp.asarray(ANCHOR, float), potential)
        mine, info = step(key, state._replace(momentum=r))
        momentum = factor.sqrt.T @ r
        start = integrators.new_integrator_state(POSTERIOR.logdensity, state.position, momentum)
        _, theirs, _ = propose(key, start)
        np.testing.assert_allclose(info.acceptance_rate, theirs.acceptance_rate, rtol=1e-9)
        if info.is_accepted:
            np.testing.assert_allclose(mine.position, theirs.proposal.position, rtol=1e-9)
