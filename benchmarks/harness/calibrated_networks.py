"""Networks with one Bayesian layer, judged by what they say of new rows: NLL and calibration.

Every method trains the same network on the same batches for the same number of epochs, and keeps
what has the least NLL on the validation rows after an epoch.
"""

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
from numpyro.contrib.module import random_flax_module
from numpyro.distributions import constraints
from scipy.special import expit, logsumexp
from scipy.stats import norm

from benchmarks.harness import data as sources
from benchmarks.harness.partial_networks import (
    SGHMC,
    VI,
    Dense3,
    Settings,
    Split,
    Task,
    mixture_scores,
    outputs_of,
    prior_of,
    split_of,
    steps_of,
)
from numpyro_fwd import GOHSMC

__all__ = ["DATA", "METHODS", "PUBLISHED", "WIDTH", "case_of", "scores", "task_of"]

NUM_MEMBERS = 5
LEVELS = np.linspace(0.05, 0.95, 19)  # of central intervals


class Case(NamedTuple):
    """A network and its NumPyro model.

    loss
        ``(params, outputs (J, N), log_weights (J,), y) -> NLL`` of the mixture of the particles.
    """

    net: nn.Module
    model: Callable
    loss: Callable
    is_regression: bool
    is_convolutional: bool = False


class Source(NamedTuple):
    """Data, and the size of a training on them."""

    read: Callable
    is_regression: bool
    batch_size: int
    num_epochs: int


def good_wine() -> tuple[np.ndarray, np.ndarray]:
    """Red wine: whether its quality is 7 or more, as 14 percent of the wines."""
    x, y = sources.wine()
    return x, y >= 7


DATA = {
    "red wine": Source(sources.wine, True, 50, 40),
    "California housing": Source(sources.california, True, 100, 4),
    "diabetes": Source(sources.diabetes, True, 50, 40),
    "good wine, 14 %": Source(good_wine, False, 50, 40),
}
WIDTH = 20


def task_of(source: Source, seed: int) -> Task:
    """A split; labels are not standardized."""
    x, y = source.read()
    task = split_of((x, y.astype(float)), seed)
    if source.is_regression:
        return task
    low = min(part.y.min() for part in task[:3])
    return Task(*(Split(part.x, np.float32(part.y > low)) for part in task[:3]))


def law(is_regression: bool, params: dict, outputs: Array) -> dist.Distribution:
    """What a network says of a row: normal noise of a scale that is optimized, or a logit."""
    return (
        dist.Normal(outputs, params["scale"]) if is_regression else dist.Bernoulli(logits=outputs)
    )


def case_of(source: Source, size: int) -> Case:
    net, is_regression = Dense3(WIDTH), source.is_regression

    def model(x, y, batch_size):
        f = random_flax_module("net", net, prior=prior_of(False), input_shape=(1, size))
        params = {}
        if is_regression:
            params["scale"] = numpyro.param("scale", 0.7, constraint=constraints.positive)
        with numpyro.plate("data", x.shape[0], subsample_size=batch_size):
            rows, obs = numpyro.subsample(x, 1), numpyro.subsample(y, 0)
            numpyro.sample("y", law(is_regression, params, f(rows)), obs=obs)

    def loss(params, outputs, log_weights, y):
        terms = law(is_regression, params, outputs).log_prob(y) + log_weights[:, None]
        return -jnp.mean(jax.nn.logsumexp(terms, axis=0))

    return Case(net, model, loss, is_regression)


# Methods: ``method(case, settings)(task, seed)`` has the parameters, outputs and weights


class Found(NamedTuple):
    """What a method says of the test rows.

    Scales of the noise (J,), 1 without noise; outputs (J, N); log weights (J,).
    """

    scales: np.ndarray
    outputs: np.ndarray
    log_weights: np.ndarray


def found_of(case: Case, params: dict, particles: dict, log_weights: Array, task: Task) -> Found:
    outputs = outputs_of(case, params, particles, task.test.x)
    scales = jnp.broadcast_to(params.get("scale", jnp.ones(())), log_weights.shape)
    return Found(*(np.asarray(a, float) for a in (scales, outputs, log_weights)))


def trained_by(method: Callable, case: Case, settings: Settings) -> Callable:
    """One of the methods that share parameters between particles."""
    train = method(case, settings)

    def run(task: Task, seed: int) -> Found:
        return found_of(case, *train(task, seed)[:3], task)

    return run


def gohsmc(case: Case, settings: Settings, **options: Any) -> Callable:
    """GOHSMC with its defaults, but for `options`."""
    optimizer, num = optax.adam(settings.learning_rate), settings.num_particles
    smc = GOHSMC(case.model, optimizer, num_particles=num, **options)

    def run(task: Task, seed: int) -> Found:
        num, arguments = steps_of(task, settings), [*map(jnp.asarray, task.train)]
        result = smc.run(
            jax.random.key(seed),
            num * settings.num_epochs,
            *(*arguments, settings.batch_size),
            progress_bar=False,
            validation=(*map(jnp.asarray, task.validation), settings.batch_size),
            validate_every=num,
        )
        return found_of(case, *result[:3], task)

    return run


def ensemble(case: Case, settings: Settings) -> Callable:
    """Networks without priors, from several starts; each keeps the best of its epochs."""
    optimizer = optax.adam(settings.learning_rate)

    def loss(params, x, y):
        outputs = case.net.apply({"params": params["net"]}, x)
        return case.loss(constrained(params), outputs[None], jnp.zeros(1), y)

    def constrained(params):
        return {"scale": jnp.exp(params["log_scale"])}

    def start(rng_key, x):
        params = {"net": case.net.init(rng_key, x[:1])["params"], "log_scale": jnp.log(0.7)}
        return params, optimizer.init(params), rng_key

    def step(state, data):
        params, opt_state, rng_key = state
        rng_key, key_batch = jax.random.split(rng_key)
        rows = jax.random.choice(key_batch, len(data.y), (settings.batch_size,), replace=False)
        gradient = jax.grad(loss)(params, data.x[rows], data.y[rows])
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, rng_key

    @partial(jax.jit, static_argnums=3)
    def epoch(states, train, validation, num):
        states = jax.lax.fori_loop(0, num, lambda _, s: jax.vmap(step, (0, None))(s, train), states)
        return states, jax.vmap(loss, (0, None, None))(states[0], *validation)

    def run(task: Task, seed: int) -> Found:
        train, validation, test = jax.tree.map(jnp.asarray, task[:3])
        keys = jax.random.split(jax.random.key(seed), NUM_MEMBERS)
        states = jax.vmap(start, (0, None))(keys, train.x)
        best, least = states[0], jnp.full(NUM_MEMBERS, jnp.inf)
        for _ in range(settings.num_epochs):
            states, losses = epoch(states, train, validation, steps_of(task, settings))
            is_better = losses < least
            least = jnp.where(is_better, losses, least)
            best = jax.tree.map(partial(chosen, is_better), states[0], best)
        outputs = jax.vmap(lambda p: case.net.apply({"params": p}, test.x))(best["net"])
        scales = jnp.exp(best["log_scale"]) if case.is_regression else jnp.ones(NUM_MEMBERS)
        weights = jnp.full(NUM_MEMBERS, -jnp.log(NUM_MEMBERS))
        return Found(*(np.asarray(a, float) for a in (scales, outputs, weights)))

    return run


def chosen(is_first: Array, first: Array, second: Array) -> Array:
    """For each member, a row of one array or of the other."""
    return jnp.where(is_first.reshape(-1, *[1] * (first.ndim - 1)), first, second)


METHODS: dict[str, Callable] = {
    "GOHSMC": gohsmc,
    "SVI": partial(trained_by, VI),
    "ensemble of five": ensemble,
    "SGHMC": partial(trained_by, SGHMC),
}

PUBLISHED = {"GOHSMC, as published": partial(gohsmc, weight_ess=0.0, step_size=0.01)}


# What to report


def scores(case: Case, found: Found, y: np.ndarray) -> tuple[float, float]:
    """NLL of a test value, and calibration error.

    Of a regression: mean difference between the share of central intervals and that of the values
    in them. Of a classification: the expected calibration error.
    """
    weights = np.exp(found.log_weights)
    if not case.is_regression:
        ones = weights @ expit(found.outputs)
        return mixture_scores(np.stack([1 - ones, ones], axis=1), y.astype(int))[::2]
    terms = norm.logpdf(y, found.outputs, found.scales[:, None]) + found.log_weights[:, None]
    place = weights @ norm.cdf(y, found.outputs, found.scales[:, None])
    inside = np.abs(2 * place - 1)[:, None] < LEVELS
    return float(-logsumexp(terms, axis=0).mean()), float(np.abs(inside.mean(0) - LEVELS).mean())
