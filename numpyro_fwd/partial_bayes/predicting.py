"""Predictions of a trained model for new rows, a few rows at a time."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.handlers import seed, uncondition
from numpyro.infer import Predictive

from blackjax_ext.meshes import on_host
from blackjax_ext.smc import sampler
from numpyro_fwd.bridge.arguments import split_arguments
from numpyro_fwd.bridge.log_terms import mixture_log_density, observed_terms
from numpyro_fwd.bridge.networks import with_new_streams
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.bridge.partial_models import on_all_rows, with_trained
from numpyro_fwd.bridge.priors import constrain
from numpyro_fwd.partial_bayes.training import Result
from numpyro_fwd.types import Args, Kwargs, Model, SiteValues

Values: TypeAlias = Array | np.ndarray  # of jax while it is computed, of numpy in the end


class Prediction(NamedTuple):
    """Predictions for new rows: dicts by observed site, arrays of numpy.

    draws
        Of the predictive distribution, shape (num_samples, ...).
    mean
        Mean of the draws.
    quantiles
        Quantiles of the draws, shape (number of quantiles, ...).
    log_score
        Log density of each value that was given, under the mixture of the particles by their
        weights, without the scales of ``numpyro.handlers.scale``; NaN for a value that a mask
        hides, and None where no value was given.
    """

    draws: dict[str, Values]
    mean: dict[str, Values]
    quantiles: dict[str, Values]
    log_score: dict[str, Values] | None


def trained_model(
    model: Model, params: SiteValues, model_args: Args, model_kwargs: Kwargs
) -> Model:
    """`model` with trained parameters, on all rows."""
    every = with_new_streams(on_all_rows(model))
    return with_trained(every, params, model_args, model_kwargs)


def check_trained(values: SiteValues) -> None:
    """Raise for values of sites that are not finite; traced values are let through."""
    for name, value in values.items():
        is_finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(value)]
        if all(map(not_jax_tracer, is_finite)) and not all(on_host(is_finite)):
            raise ValueError(
                f"the trained values of the site {name!r} are not finite: the training diverged, "
                "as its warning said. Train again with a shorter step_size or a smaller learning "
                "rate."
            )


def latents_of(
    rng_key: Array,
    model: Model,
    result: Result,
    num_samples: int | None,
    model_args: Args,
    model_kwargs: Kwargs,
) -> dict[str, Any]:
    """Latents of a trained model in their supports, of particles drawn by their weights."""
    population = sampler.Population(result.particles, result.log_weights, jnp.zeros(()))
    population = sampler.resample(rng_key, population, num_samples)
    check_trained({**result.params, **population.particles})
    values = constrain(seed(model, jax.random.key(0)), model_args, model_kwargs)
    latents = jax.vmap(values)(population.particles)
    return {name: latents[name] for name in population.particles}


def in_batches(
    rng_key: Array,
    model: Model,
    result: Result,
    model_args: Args,
    model_kwargs: Kwargs,
    num_samples: int | None,
    quantiles: tuple[float, ...],
    rows_at_once: int | None,
) -> Prediction:
    """Predictions as ``GOHSMC.predict`` returns them, whose parameters these are."""
    key_latents, key_draws = jax.random.split(rng_key)
    split = split_arguments(model_args, model_kwargs)
    num_rows = first_axis_length(split.arrays)
    size = num_rows if rows_at_once is None else min(rows_at_once, num_rows)
    first = split.join(cut(split.arrays, 0, size, num_rows))
    trained = trained_model(model, result.params, *first)
    latents = latents_of(key_latents, trained, result, num_samples, *first)

    @jax.jit
    def predict(rng_key, arrays):
        return of_rows(rng_key, trained, latents, result, quantiles, *split.join(arrays))

    starts = range(0, num_rows, size)
    keys = jax.random.split(key_draws, len(starts))
    pieces = [cut(split.arrays, start, size, num_rows) for start in starts]
    parts = [
        jax.tree.map(np.asarray, predict(key, arrays))
        for key, arrays in zip(keys, pieces, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    shapes = [
        jax.eval_shape(predict, keys[0], cut(split.arrays, 0, num, num_rows))
        for num in (size, size + 1)
    ]
    check_axes(*(shape.draws for shape in shapes))
    copies = predict(keys[0], copies_of_first(split.arrays, size, num_rows))
    check_independent_rows(shapes[0].draws, shapes[1].draws, parts[0].draws, copies.draws)
    return jax.tree.map(joined, *shapes, *parts)


def of_rows(
    rng_key: Array,
    model: Model,
    latents: SiteValues,
    result: Result,
    quantiles: tuple[float, ...],
    model_args: Args,
    model_kwargs: Kwargs,
) -> Prediction:
    """Draws, their mean and quantiles, and the log score, of some rows."""
    predictive = Predictive(uncondition(model), latents, condition_deterministic=False)
    draws = {
        name: value
        for name, value in predictive(rng_key, *model_args, **model_kwargs).items()
        if name not in latents and value.size  # a factor has no draws
    }
    seeded = seed(model, jax.random.key(0))
    terms = jax.vmap(lambda z: observed_terms(seeded, z, model_args, model_kwargs))
    given = {name: values for name, values in terms(result.particles).items() if name in draws}
    score: dict[str, Values] = {
        name: jnp.where(
            values.is_given[0], mixture_log_density(values, result.log_weights), jnp.nan
        )
        for name, values in given.items()
    }
    return Prediction(
        draws,
        {name: jnp.mean(values, axis=0) for name, values in draws.items()},
        {
            name: jnp.quantile(values, jnp.array(quantiles), axis=0)
            for name, values in draws.items()
        },
        score or None,
    )


def first_axis_length(arrays: list[Any]) -> int:
    """Length of the first array among the arguments of a model that has an axis; 1 without one."""
    return next((len(array) for array in arrays if np.ndim(array)), 1)


def cut(arrays: list[Any], start: int, size: int, num_rows: int) -> list[Any]:
    """Some rows of the arrays that have as many rows as the data; the other arrays whole."""
    return [array[start : start + size] if has_rows(array, num_rows) else array for array in arrays]


def copies_of_first(arrays: list[Any], size: int, num_rows: int) -> list[Any]:
    """As :func:`cut`, but with the first row in place of all others."""
    return [
        jnp.broadcast_to(array[:1], (size, *array.shape[1:]))
        if has_rows(array, num_rows)
        else array
        for array in arrays
    ]


def has_rows(array: Any, num_rows: int) -> bool:
    """Whether an array has a row for each of so many."""
    return bool(np.ndim(array)) and len(array) == num_rows


def row_axis(shape: jax.ShapeDtypeStruct, longer: jax.ShapeDtypeStruct) -> int | None:
    """The axis along the rows: the one that is longer where there is one row more."""
    pairs = zip(shape.shape, longer.shape, strict=True)
    return next((axis for axis, (a, b) in enumerate(pairs) if a != b), None)


def check_axes(shapes: dict[str, Any], longer: SiteValues) -> None:
    """Raise ValueError, by site, for predictions that are not made row by row."""
    for name in shapes:
        if row_axis(shapes[name], longer[name]) is None:
            raise ValueError(
                f"site '{name}' has no axis along the rows of the first array among the arguments, "
                "so it cannot be predicted a few rows at a time: give rows_at_once=None."
            )


def check_independent_rows(
    shapes: dict[str, Any], longer: SiteValues, draws: SiteValues, copies: SiteValues
) -> None:
    """Raise ValueError, by site, for draws of a first row that change with the other rows."""
    for name in shapes:
        axis = row_axis(shapes[name], longer[name])
        mine, other = (np.take(np.asarray(draws_of[name]), 0, axis) for draws_of in (draws, copies))
        if not np.allclose(mine, other, rtol=1e-3, atol=1e-3 * np.std(draws[name])):
            raise ValueError(
                f"the prediction of a row at site '{name}' changes with the other rows, for "
                "example by a mean over them: give rows_at_once=None, or compute what all rows "
                "share outside of the model."
            )


def joined(
    shape: jax.ShapeDtypeStruct, longer: jax.ShapeDtypeStruct, *parts: np.ndarray
) -> np.ndarray:
    """Parts put together along their rows."""
    return np.concatenate(parts, axis=row_axis(shape, longer))
