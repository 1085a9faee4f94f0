"""Networks of which the first layer is Bayesian: models, data, and four ways to train them.

Every method trains the same NumPyro model: `GOHSMC` and `OHSMC`, NumPyro's SVI with a normal guide
(VI), and SGHMC, whose chains are moved on the batches while an optimizer follows the mean gradient.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro.contrib.module import random_flax_module
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from scipy.special import softmax

from benchmarks.harness import data as sources
from blackjax_ext.rows.potentials import StochasticPotential
from blackjax_ext.sgmcmc import sghmc
from numpyro_fwd import GOHSMC, OHSMC
from numpyro_fwd.bridge.partial_models import view_partial

NUM_PARTICLES = 100
FIRST = "first"


# Data


class Split(NamedTuple):
    """Arrays of one part of the data."""

    x: np.ndarray
    y: np.ndarray


class Task(NamedTuple):
    """Standardized data in three parts; `scale` is the standard deviation of the raw target."""

    train: Split
    validation: Split
    test: Split
    scale: float = 1.0


def split_of(data: tuple[np.ndarray, np.ndarray], seed: int) -> Task:
    """60, 30 and 10 percent, standardized by the first part."""
    x, y = data
    order = np.random.default_rng(seed).permutation(len(y))
    ends = [round(0.6 * len(y)), round(0.9 * len(y))]
    first = order[: ends[0]]
    x = (x - x[first].mean(0)) / x[first].std(0)
    scale = float(y[first].std())
    y = (y - y[first].mean()) / scale
    parts = [Split(np.float32(x[i]), np.float32(y[i])) for i in np.split(order, ends)]
    return Task(*parts, scale)


def images(name: str, part: str) -> Split:
    """Images (N, 28, 28, 1) in [0, 1] and labels; name mnist or fashion, part train or t10k."""
    x, y = sources.images(name, part)
    return Split(x[..., None], y)


def image_task(name: str, num_train: int, num_test: int, seed: int) -> Task:
    """Part of the training images, a tenth of them for validation, and part of the test images."""
    rng = np.random.default_rng(seed)
    every, test = images(name, "train"), images(name, "t10k")
    order = rng.permutation(len(every.y))[:num_train]
    chosen = rng.permutation(len(test.y))[:num_test]
    parts = [Split(every.x[i], every.y[i]) for i in np.split(order, [round(0.9 * num_train)])]
    return Task(*parts, Split(test.x[chosen], test.y[chosen]))


# Networks


class Dense3(nn.Module):
    """Three dense layers with GeLU, the first of `width` units."""

    width: int

    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.Dense(self.width, name=FIRST)(x))
        x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)[..., 0]


class PatchConv(nn.Module):
    """A 3 x 3 convolution as one product with patches.

    XLA's convolution on CPU is slow where each particle has a kernel of its own.
    """

    features: int

    @nn.compact
    def __call__(self, x):
        height, width = x.shape[-3] - 2, x.shape[-2] - 2
        shifted = [x[..., i : i + height, j : j + width, :] for i in range(3) for j in range(3)]
        return nn.Dense(self.features, name="kernel3x3")(jnp.concatenate(shifted, axis=-1))


def relu(x):
    """``flax.linen.relu``, whose own gradient takes a CPU longer behind a kernel per particle."""
    return jnp.maximum(x, 0)


class LeNet(nn.Module):
    """Two convolutions, two dense layers."""

    features: int
    activation: Callable = nn.tanh

    @nn.compact
    def __call__(self, x):
        x = self.activation(PatchConv(self.features, name=FIRST)(x))
        x = nn.avg_pool(x, (2, 2), (2, 2))
        x = self.activation(PatchConv(16)(x))
        x = nn.avg_pool(x, (2, 2), (2, 2)).reshape(*x.shape[:-3], -1)
        return nn.Dense(10)(self.activation(nn.Dense(64)(x)))


class Problem(NamedTuple):
    """A network, its NumPyro model, and what to make of its outputs.

    loss
        ``(params, outputs (J, N, ...), log_weights (J,), y) -> loss`` that validation looks at.
    """

    net: nn.Module
    model: Callable
    loss: Callable
    is_convolutional: bool


def prior_of(is_convolutional: bool) -> dict:
    layer = f"{FIRST}.kernel3x3" if is_convolutional else FIRST
    return {f"{layer}.{leaf}": dist.Normal(0, 1) for leaf in ("kernel", "bias")}


def squared_error(params: dict, outputs: Array, log_weights: Array, y: Array) -> Array:
    """Of the posterior mean."""
    del params
    return jnp.mean((jnp.exp(log_weights) @ outputs - y) ** 2)


def cross_entropy(params: dict, outputs: Array, log_weights: Array, y: Array) -> Array:
    """Of the mixture of the particles."""
    del params
    log_probs = jax.nn.log_softmax(outputs)
    mixed = jax.nn.logsumexp(log_probs + log_weights[:, None, None], axis=0)
    return -jnp.mean(jnp.take_along_axis(mixed, y[:, None], axis=1))


def regression(width: int, size: int) -> Problem:
    """Normal noise of a scale that is optimized."""
    net = Dense3(width)

    def model(x, y, batch_size):
        f = random_flax_module("net", net, prior=prior_of(False), input_shape=(1, size))
        scale = numpyro.param("scale", 0.7, constraint=constraints.positive)
        with numpyro.plate("data", x.shape[0], subsample_size=batch_size):
            rows, obs = numpyro.subsample(x, 1), numpyro.subsample(y, 0)
            numpyro.sample("y", dist.Normal(f(rows), scale), obs=obs)

    return Problem(net, model, squared_error, False)


def classification(features: int, activation: Callable = nn.tanh) -> Problem:
    net = LeNet(features, activation)

    def model(x, y, batch_size):
        f = random_flax_module("net", net, prior=prior_of(True), input_shape=(1, 28, 28, 1))
        with numpyro.plate("data", x.shape[0], subsample_size=batch_size) as rows:
            numpyro.sample("y", dist.Categorical(logits=f(x[rows])), obs=y[rows])

    return Problem(net, model, cross_entropy, True)


def merged(problem: Problem, params: dict, latents: dict) -> dict:
    """Weights of the network for one particle."""
    weights = dict(params["net$params"])
    found = {name.rpartition(".")[2]: value for name, value in latents.items()}
    weights[FIRST] = {"kernel3x3": found} if problem.is_convolutional else found
    return weights


def outputs_of(problem: Problem, params: dict, particles: dict, x: Array) -> Array:
    """Outputs of the network for every particle, (J, N, ...)."""

    def one(latents):
        return problem.net.apply({"params": merged(problem, params, latents)}, x)

    return jax.vmap(one)(particles)


# Methods


class Trained(NamedTuple):
    """What a method leaves: parameters and weighted particles.

    With the seconds it took, the mean ESS, and the validation losses after the epochs.
    """

    params: dict
    particles: dict
    log_weights: Array
    seconds: float
    ess: float
    losses: np.ndarray


class Settings(NamedTuple):
    """Size of a training."""

    batch_size: int
    num_epochs: int
    num_particles: int = NUM_PARTICLES
    step_size: float = 0.01
    learning_rate: float = 0.01


def steps_of(task: Task, settings: Settings) -> int:
    """Steps of an epoch."""
    return max(len(task.train.y) // settings.batch_size, 1)


class Trainer:
    """A method that trains one problem on any data of the same shape, compiled once.

    A subclass has `start(arguments, seed) -> state`, `update(state, arguments) -> state`, and
    `read(state, rng_key) -> (params, particles, log_weights)`.
    """

    def __init__(self, problem: Problem, settings: Settings):
        self.problem, self.settings = problem, settings
        self.advance = jax.jit(self._advance, static_argnums=2)
        self.validate = jax.jit(self._validate)

    def _advance(self, state: Any, data: Split, num: int) -> Any:
        arguments = (*data, self.settings.batch_size)
        return jax.lax.scan(lambda s, _: (self.update(s, arguments), None), state, length=num)[0]

    def _validate(self, found: tuple, data: Split) -> Array:
        params, particles, log_weights = found
        outputs = outputs_of(self.problem, params, particles, data.x)
        return self.problem.loss(params, outputs, log_weights, data.y)

    def __call__(self, task: Task, seed: int) -> Trained:
        """Train; what `read` finds after the epoch with the least validation loss."""
        train, validation = jax.tree.map(jnp.asarray, (task.train, task.validation))
        key_start, key_read = jax.random.split(jax.random.key(seed))
        state = self.start(key_start, (*train, self.settings.batch_size))
        best, least, losses, start = None, np.inf, [], time.perf_counter()
        for epoch in range(self.settings.num_epochs):
            state = self.advance(state, train, steps_of(task, self.settings))
            found = self.read(state, jax.random.fold_in(key_read, epoch))
            losses.append(float(self.validate(found, validation)))
            if best is None or losses[-1] < least:
                best, least = found, losses[-1]
        return Trained(*best, time.perf_counter() - start, float("nan"), np.array(losses))


class SMC:
    """GOHSMC or OHSMC, which validate by themselves."""

    def __init__(self, cls: type, problem: Problem, settings: Settings):
        self.problem, self.settings = problem, settings
        self.trainer = cls(
            problem.model,
            optax.adam(settings.learning_rate),
            num_particles=settings.num_particles,
            step_size=settings.step_size,
            weight_ess=0.0,  # the published weights
        )

    def __call__(self, task: Task, seed: int) -> Trained:
        num, (x, y) = steps_of(task, self.settings), map(jnp.asarray, task.validation)

        def validation(params, particles, log_weights):
            outputs = outputs_of(self.problem, params, particles, x)
            return self.problem.loss(params, outputs, log_weights, y)

        start = time.perf_counter()
        result = self.trainer.run(
            jax.random.key(seed),
            num * self.settings.num_epochs,
            *map(jnp.asarray, task.train),
            self.settings.batch_size,
            progress_bar=False,
            validation=validation,
            validate_every=num,
        )
        seconds, ess = time.perf_counter() - start, float(result.ess.mean())
        return Trained(*result[:3], seconds, ess, np.asarray(result.validation_losses))


def uniform(num: int) -> Array:
    return jnp.full(num, -jnp.log(num))


class VI(Trainer):
    """NumPyro's SVI with independent normals for the first layer; `num_particles` draws of it."""

    def start(self, rng_key, arguments):
        self.guide = AutoNormal(self.problem.model)
        optimizer = optax.adam(self.settings.learning_rate)
        self.svi = SVI(self.problem.model, self.guide, optimizer, Trace_ELBO())
        return self.svi.init(rng_key, *arguments)

    def update(self, state, arguments):
        return self.svi.update(state, *arguments)[0]

    def read(self, state, rng_key):
        params, num = self.svi.get_params(state), self.settings.num_particles
        draws = self.guide.sample_posterior(rng_key, params, sample_shape=(num,))
        latents = {name: draws[name] for name in draws if name.startswith("net/")}
        network = {name: params[name] for name in ("net$params", "scale") if name in params}
        return network, latents, uniform(num)


class SGHMC(Trainer):
    """SGHMC chains with persistent momentum, one gradient each per batch, equally weighted.

    The optimizer follows the mean gradient over the chains.
    """

    def start(self, rng_key, arguments):
        key_model, key_prior, key_momentum, key_run = jax.random.split(rng_key, 4)
        num = self.settings.num_particles
        self.view = view_partial(key_model, self.problem.model, arguments, {})
        self.optimizer = optax.adam(self.settings.learning_rate)
        self.kernel = sghmc.build_kernel()
        z = self.view.draw(self.view.params, key_prior, num, arguments, {})
        size = ravel_pytree(z)[0].size // num
        momentum = jax.random.normal(key_momentum, (num, size))
        params = self.view.params
        return sghmc.SGHMCState(z, momentum), params, self.optimizer.init(params), key_run

    def update(self, state, arguments):
        chains, params, opt_state, rng_key = state
        rng_key, key_batch, key_moves = jax.random.split(rng_key, 3)
        energy = partial(self.energy, key_batch, arguments)

        def move(rng_key, chain):
            potential = StochasticPotential(
                partial(energy, params),
                lambda rng_key: None,
                lambda position, batch: jax.grad(energy, argnums=1)(params, position),
            )
            arguments = (rng_key, chain, potential, self.settings.step_size)
            return self.kernel(*arguments, num_integration_steps=1, resample_momentum=False)[0]

        chains = jax.vmap(move)(jax.random.split(key_moves, len(chains.momentum)), chains)
        slopes = jax.grad(lambda p: jnp.mean(jax.vmap(partial(energy, p))(chains.position)))(params)
        updates, opt_state = self.optimizer.update(slopes, opt_state, params)
        return chains, optax.apply_updates(params, updates), opt_state, rng_key

    def energy(self, key_batch, arguments, params, position):
        return self.view.potential_fn(params, position, key_batch, arguments, {})

    def read(self, state, rng_key):
        chains, params = state[:2]
        weights = uniform(self.settings.num_particles)
        return self.view.constrain_params(params), chains.position, weights


METHODS: dict[str, Callable] = {
    "GOHSMC (Langevin)": partial(SMC, GOHSMC),
    "OHSMC (random walk)": partial(SMC, OHSMC),
    "SGHMC": SGHMC,
    "VI": VI,
}


# What to report


def regression_scores(problem: Problem, task: Task, found: Trained) -> tuple[float, float]:
    """Mean squared error in raw units, and minus the mean log density in standardized ones."""
    outputs = np.asarray(outputs_of(problem, found.params, found.particles, task.test.x))
    weights = np.exp(np.asarray(found.log_weights, np.float64))
    error = np.mean((weights @ outputs - task.test.y) ** 2) * task.scale**2
    scale = float(found.params["scale"])
    terms = dist.Normal(outputs, scale).log_prob(task.test.y) + found.log_weights[:, None]
    return float(error), -float(jax.nn.logsumexp(terms, axis=0).mean())


def calibration_error(probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15) -> float:
    """Expected calibration error: confidence against accuracy in equal bins of confidence."""
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == y
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = [
        np.mean(bins == b) * abs(confidence[bins == b].mean() - is_right[bins == b].mean())
        for b in range(num_bins)
        if np.any(bins == b)
    ]
    return float(np.sum(gaps))


def image_outputs(problem: Problem, found: Trained, x: np.ndarray, size: int = 250) -> np.ndarray:
    """Logits (J, N, 10), a few images at a time."""
    run = jax.jit(partial(outputs_of, problem))
    parts = [run(found.params, found.particles, x[i : i + size]) for i in range(0, len(x), size)]
    return np.concatenate([np.asarray(part) for part in parts], axis=1)


def mixture_scores(
    probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15
) -> tuple[float, float, float]:
    """Cross entropy, accuracy and expected calibration error of probabilities (N, classes)."""
    loss = -np.log(probabilities[np.arange(len(y)), y] + 1e-300).mean()
    accuracy = np.mean(probabilities.argmax(1) == y)
    return float(loss), float(accuracy), calibration_error(probabilities, y, num_bins)


def image_scores(outputs: np.ndarray, found: Trained, y: np.ndarray) -> tuple[float, float, float]:
    """Scores of the mixture of the particles."""
    weights = np.exp(np.asarray(found.log_weights, np.float64))
    mixed = np.tensordot(weights, softmax(np.asarray(outputs, np.float64), axis=-1), axes=1)
    return mixture_scores(mixed, y)


def energies(outputs: np.ndarray, found: Trained) -> np.ndarray:
    """Energy score of each image, the weighted mean over the particles: low for what is known."""
    weights = np.exp(np.asarray(found.log_weights, np.float64))
    return -weights @ np.asarray(jax.nn.logsumexp(outputs, axis=-1))
