"""Targets shared by the benchmarks, the tests and the notebooks."""

from collections.abc import Callable

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

from benchmarks.harness.data import breast_cancer, standardized

Network = list[tuple[Array, Array]]


# Lotka-Volterra on the Hudson Bay pelts: a posterior without a gradient


def solve_lotka_volterra(
    theta: Array,
    z_init: Array,
    times: Array,
    tolerance: float = 1e-4,
    adjoint: diffrax.AbstractAdjoint | None = None,
) -> tuple[Array, Array]:
    """Log populations (T, 2) of prey and predator at `times`, and whether the solver got there.

    The equations of Lotka and Volterra, ``u' = (alpha - beta v) u``, ``v' = (delta u - gamma) v``,
    are solved for the logarithms, which cannot turn negative. The number of steps adapts to theta
    in a ``while_loop``, so there is no reverse mode; `ForwardMode` says so to diffrax, where no
    other `adjoint` is given.
    """

    def field(t, log_z, theta):
        alpha, beta, gamma, delta = theta
        hare, lynx = jnp.exp(log_z)
        return jnp.stack([alpha - beta * lynx, delta * hare - gamma])

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=times[0],
        t1=times[-1],
        dt0=None,
        y0=jnp.log(z_init),
        args=theta,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        adjoint=adjoint or diffrax.ForwardMode(),
        max_steps=1000,
        throw=False,
    )
    is_solved = (solution.result == diffrax.RESULTS.successful) & jnp.isfinite(solution.ys).all()
    return solution.ys, is_solved


def lynx_hare(times, pelts) -> None:
    """Lotka-Volterra model of Carpenter's Stan case study: 8 parameters.

    Where the solver fails, the log density is -inf and its derivatives are finite.
    """
    location, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    prior = dist.TruncatedNormal(location, scale, low=0.0).to_event(1)
    theta = numpyro.sample("theta", prior)  # alpha, beta, gamma, delta
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    log_z, is_solved = solve_lotka_volterra(theta, z_init, jnp.asarray(times, theta.dtype))
    numpyro.factor("solved", jnp.where(is_solved, 0.0, -jnp.inf))
    numpyro.sample("pelts", dist.LogNormal(jnp.where(is_solved, log_z, 0.0), sigma), obs=pelts)


# Logistic regression on the breast cancer data: where a step costs almost nothing


def breast_cancer_data() -> tuple[np.ndarray, np.ndarray]:
    """Standardized covariates (569, 30) and labels (569,)."""
    x, y = breast_cancer()
    return standardized(x).astype(np.float32), y.astype(np.int32)


def logistic_regression(x, y) -> None:
    """Logistic regression with standard normal priors."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ weights), obs=y)


# Logistic regression that a sampler may read in parts


def minibatch_logistic(x, y, batch) -> None:
    """Logistic regression with standard normal priors whose rows come `batch` at a time."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def logistic_term(slope: Array, row: tuple[Array, Array]) -> Array:
    """Log-likelihood of one row: covariates and a label of zero or one."""
    logit = row[0] @ slope
    return row[1] * logit - jax.nn.softplus(logit)


# Network regression: where a step costs much and the dimension is high


def make_network(rng_key: Array, *, depth: int = 5, width: int = 100) -> Network:
    """Weights and biases of a ReLU network from R to R with `depth` hidden layers, from the prior.

    With 5 hidden layers of 100 units there are 40,701 parameters, as in Cobb and Jha.
    """
    sizes = [1, *[width] * depth, 1]

    def layer(key, size_in, size_out):
        key_weights, key_biases = jax.random.split(key)
        weights = 0.1 * jax.random.normal(key_weights, (size_in, size_out))
        return weights, 0.1 * jax.random.normal(key_biases, (size_out,))

    keys = jax.random.split(rng_key, len(sizes) - 1)
    return [layer(*args) for args in zip(keys, sizes[:-1], sizes[1:], strict=True)]


def predict(network: Network, x: Array) -> Array:
    """Output (N, 1) of the network at inputs (N, 1)."""
    *hidden, (weights, biases) = network
    for hidden_weights, hidden_biases in hidden:
        x = jax.nn.relu(x @ hidden_weights + hidden_biases)
    return x @ weights + biases


def network_data(rng_key: Array, num_rows: int) -> tuple[Array, Array]:
    """Noisy points of a smooth curve: inputs and outputs (N, 1)."""
    key_x, key_noise = jax.random.split(rng_key)
    x = jax.random.uniform(key_x, (num_rows, 1), minval=-1.0, maxval=1.0)
    return x, 0.3 * jnp.sin(5.0 * x) * x + 0.025 * jax.random.normal(key_noise, x.shape)


def network_logdensity(network: Network, x: Array, y: Array) -> Array:
    """Log density of a network given rows.

    Prior N(0, 0.1^2) on every parameter, Gaussian noise of standard deviation 0.025.
    """
    prior = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(network)) / 0.1**2
    likelihood = jnp.sum((y - predict(network, x)) ** 2) / 0.025**2
    return -0.5 * (prior + likelihood)


def network_regression(rng_key: Array, num_rows: int) -> Callable[[Network], Array]:
    """Log density of a network given `num_rows` rows of :func:`network_data`."""
    x, y = network_data(rng_key, num_rows)
    return lambda network: network_logdensity(network, x, y)
