r"""Whether the log density of a row is that of the row alone, as all minibatches take for granted.

A mean over the rows of a minibatch, a sort or a normalization of them makes the density of a row
another one in each minibatch: no chunk, no minibatch and no sum of rows is then the model's. It
may do so for few rows only: those with a missing value, of one class, with an event, or with a
partner in the minibatch. So all rows are asked, up to some thousands, in the view that is meant.

*Together.* All are read at once, and again with every second one, at random, exchanged for copies
of one row; then the other half is. What a program computes of a row in its place from that row
alone it computes bit by bit as before, whatever the size of the numbers: there is no rounding to
allow for, and no need for a tolerance beyond that of solvers that stop when all rows have
converged. A partner, a risk set, a mean lose half of their rows, however many there are.

*Apart.* All are read again, in small minibatches, in a random order. Another number of rows is
another program, which may round otherwise. So a difference counts only beyond what a change of the
last digits of the latents makes.

Slopes along a few directions are compared beside values: where rows are far in their tails a value
has no digits left for what the others do, and where latents are near zero a slope still has all of
a covariate.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.equations import equations_in
from blackjax_ext.meshes import on_host
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import SplitArguments, program_with, run_with
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.bridge.plates import Plate
from numpyro_fwd.bridge.row_models import RowModel, RowTerms
from numpyro_fwd.bridge.traces import zeros_of
from numpyro_fwd.bridge.views import explaining

__all__ = ["check_minibatches", "check_rows_apart"]

NUM = 32  # rows of a small minibatch
MOST_ROWS = 4096  # rows that are read at once
LARGEST, FEW = 2**26, 256  # numbers that are computed of them, unless they are so few
DIRECTIONS = 4  # in which latents change
# of the latents: where they are large a density may overflow, and beside far covariates all are
SIZES = (1.0, 1e-3, 1e-6)
SOLVED = 1e-4  # of the distance between rows: solvers that stop together differ by less
ROUNDED, DIGITS = 1e-3, 40.0  # of a value, and of what a change of last digits makes of it
WAY_OUT = (
    "Compute what rows share from the data of all rows, before the plate or outside of the model "
    "(x = x - x.mean(0), then x[rows]); or sample the model without subsample_size, by "
    "numpyro.infer.NUTS or another kernel that reads all rows at once."
)
TOGETHER = (
    "site '{}' has a log density of a row of plate '{}' that changes with the other rows of its "
    "minibatch, as by a mean, a sort, a cumulative sum or a normalization over x[rows]: it would "
    "be another model for each minibatch and each chunk. {}"
)
ALONE = (
    "site '{}' has a log density of a row of plate '{}' that changes with the number of rows of "
    "its minibatch, or with the place of the row among them, as by len(rows) or "
    "jnp.arange(len(rows)) where rows is meant. {}"
)
OUTSIDE = (
    "site '{}' lies outside of plate '{}' and changes with the rows of its minibatch: move it into "
    "the plate, with a value for each row. {}"
)


class Cases(NamedTuple):
    """Sets of rows that are read.

    rows
        Of each set, shape (sets, n).
    turns
        Zero, or how the last digits of the latents are changed, shape (sets,).
    """

    rows: Any
    turns: Any


class SeenRows(NamedTuple):
    """What is read of sets of rows.

    inside
        Log densities by site, shape (sets, n).
    outside
        Log densities of the sites that have no rows of the plate, shape (sets,).
    slopes
        Of the sum of the first, in a few directions of the latents, shape (sets, directions, n).
    """

    inside: dict[str, Any]
    outside: dict[str, Any]
    slopes: Any

    def is_finite(self) -> bool:
        """Whether all of it is."""
        return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self))


def check_minibatches(model: RowModel) -> None:
    """:func:`check_rows_apart` of a full view, near zero."""

    def terms_of(model_args, model_kwargs, z, rows):
        return model.having(model_args, model_kwargs).terms(z, rows)

    rng = np.random.default_rng(0)
    z = jax.tree.map(
        lambda leaf: jnp.asarray((0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype)),
        zeros_of(model.sites),
    )
    with explaining(None, *model.model_args, z):
        check_rows_apart(terms_of, model.plates, model.arguments, z)


def check_rows_apart(
    terms_of: Callable[..., RowTerms],
    plates: dict[str, Plate],
    arguments: SplitArguments,
    z: Any,
    *,
    is_seeded: bool = False,
) -> None:
    """Raise ValueError, by site, for rows whose log density is not theirs alone.

    Data that are traced have no values, and are not looked at. Cost: two programs for each plate,
    which evaluate up to MOST rows, and their slopes, five times: once as they are, twice with half
    of them exchanged, once with other last digits, and once in minibatches. That is 20,480 log
    densities at most, and three times as many where they overflow. Of more rows than MOST a kind
    is not seen that is not among those, or a set of rows of which no two are.

    Parameters
    ----------
    terms_of
        ``(model_args, model_kwargs, z, rows)``: the terms of a full view on some rows by plate.
    plates
        The subsample plates.
    arguments
        Those of the model.
    z
        Unconstrained latents, a pytree.
    is_seeded
        Whether the model draws numbers, as for dropout, which are others for each number of rows.
    """
    if not all(map(not_jax_tracer, jax.tree.leaves((arguments.arrays, z)))):
        return
    for name, plate in plates.items():
        slopes, values = (
            exact_products(reading(terms_of, plates, name, arguments, has_slopes=has_slopes))
            for has_slopes in (True, False)
        )
        programs = [compiled_soon(function, runs_once=True) for function in (slopes, values)]

        def read(size, cases, programs=programs):
            size = jnp.asarray(size)
            try:
                found = run_with(arguments, programs[0], z, size, cases)
            except TypeError:  # jax.custom_vjp has gradients, and no slopes
                found = run_with(arguments, programs[1], z, size, cases)
            return jax.tree.map(lambda leaf: np.asarray(on_host(leaf)), found)

        if plate.size > 2:  # minibatches of two rows have one
            num = num_read(slopes, plate.size, arguments, z)
            rows = some_rows(plate.size, num)
            check_plate(read, name, rows, plate.size, is_seeded=is_seeded)


def reading(
    terms_of: Function,
    plates: dict[str, Plate],
    name: str,
    arguments: SplitArguments,
    *,
    has_slopes: bool,
) -> Function:
    """The program that reads sets of rows of a plate, one after the other."""
    first_row = {other: jnp.zeros(1, int) for other in plates}

    def of_set(model_args, model_kwargs, z, rows):
        terms = terms_of(model_args, model_kwargs, z, first_row | {name: rows})
        share = rows.shape[0] / plates[name].size  # undoes the scale of the plate
        inside = {
            site: share * (terms.by_row(site, name) * jnp.ones(rows.shape))
            for site, around in terms.plates.items()
            if name in around
        }
        rest = [site for site in terms.values if site not in inside]
        outside = {site: jnp.sum(terms.values[site]) for site in rest}
        return sum(inside.values(), jnp.zeros(rows.shape)), (inside, outside)

    def seen(arrays, z, size, cases):
        model_args, model_kwargs = arguments.join(arrays)

        def visit(case):
            here = moved(z, size, case.turns)

            def total(z):
                return of_set(model_args, model_kwargs, z, case.rows)

            if not has_slopes:
                values, (inside, outside) = total(here)
                return SeenRows(inside, outside, values[None])
            _, along, (inside, outside) = jax.linearize(total, here, has_aux=True)
            parts = jnp.arange(min(DIRECTIONS, len(jax.tree.leaves(z))))
            return SeenRows(
                inside, outside, jax.lax.map(lambda part: along(direction(z, part)), parts)
            )

        return jax.lax.map(visit, cases)

    return seen


def direction(z: Any, part: Array) -> Any:
    """A direction in which some of the latents change, no two of them alike.

    Apart from the others, since a scale may be so steep that it leaves them no digits.
    """
    rng = np.random.default_rng(1)
    leaves, tree = jax.tree.flatten(z)
    steps = [jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype) for leaf in leaves]
    steps = [jnp.where(part == i % DIRECTIONS, step, 0.0) for i, step in enumerate(steps)]
    return jax.tree.unflatten(tree, steps)


def moved(z: Any, size: Array, turn: Array) -> Any:
    """Latents of some size, of which a `turn` other than zero changes the last digits."""

    def one(leaf):
        digits = 4.0 * jnp.finfo(leaf.dtype).eps
        wave = jnp.sin(turn * (1.0 + jnp.arange(leaf.size))).reshape(leaf.shape)
        return (size * leaf * (1.0 + digits * wave)).astype(leaf.dtype)

    return jax.tree.map(one, z)


def num_read(program: Function, num_rows: int, arguments: SplitArguments, z: Any) -> int:
    """How many of so many rows are read at once: as many as memory has place for."""
    most = min(num_rows - 1, MOST_ROWS)  # of as many as there are numpyro.subsample takes none
    if most <= FEW:
        return most

    def numbers(num):
        rest = (z, 1.0, Cases(np.zeros((1, num), int), np.zeros(1)))
        return numbers_in(program_with(arguments, program, *rest))

    if (all_numbers := numbers(most)) <= LARGEST:
        return most
    each = (all_numbers - numbers(1)) // most
    return min(most, max(LARGEST // max(each, 1), FEW))


def numbers_in(jaxpr: Any) -> int:
    """How many numbers a program computes, those of its loops once."""
    outputs = (output for equation in equations_in(jaxpr) for output in equation.outvars)
    return sum(math.prod(output.aval.shape) for output in outputs)


def some_rows(num_rows: int, num: int) -> np.ndarray:
    """All rows but the last, or about so many of them: some at random, and the next of each."""
    if num_rows - 1 <= num:
        return np.arange(num_rows - 1)
    first = np.random.default_rng(0).integers(num_rows - 1, size=num // 2)
    return np.sort(np.concatenate([first, first + 1]))


def exchanged(rows: np.ndarray, num_rows: int) -> tuple[Cases, np.ndarray]:
    """The rows, with copies of one for a half, and for the other; and which the first keeps.

    The last set is the rows with other last digits.
    """
    rng = np.random.default_rng(0)
    is_kept = rng.permutation(len(rows)) % 2 == 0
    one, other = rng.integers(num_rows, size=2)
    first, second = np.where(is_kept, rows, one), np.where(is_kept, other, rows)
    return Cases(np.stack([rows, first, second, rows]), np.array([0.0, 0.0, 0.0, 1.0])), is_kept


def in_minibatches(num: int) -> np.ndarray:
    """Places of so many rows in minibatches, shape (sets, n), of which some are there twice."""
    size = max(min(NUM, num // 2), 1)
    places = np.random.default_rng(0).permutation(num)
    return np.resize(places, (-(-num // size), size))


def check_plate(
    read: Callable[[float, Cases], SeenRows],
    name: str,
    rows: np.ndarray,
    num_rows: int,
    *,
    is_seeded: bool,
) -> None:
    """Raise ValueError for the rows of a plate that are not apart."""
    cases, is_kept = exchanged(rows, num_rows)
    for size in SIZES:
        together = read(size, cases)
        if together.is_finite():
            break

    def differ_together(values):
        return differ(values[0], np.where(is_kept, values[1], values[2]))

    inside, outside = together.inside, together.outside
    raise_for(TOGETHER, name, [site for site in inside if differ_together(inside[site])])
    raise_for(
        OUTSIDE, name, [site for site, each in outside.items() if differ(each[:1], each[1:3])]
    )
    if any(map(differ_together, np.moveaxis(together.slopes, 1, 0))):
        raise_for(TOGETHER, name, list(inside))
    if is_seeded:
        return
    places = in_minibatches(len(rows))
    apart = read(size, Cases(rows[places], np.zeros(len(places))))

    def is_other_apart(values, few):
        return has_changed(values[0][places], values[3][places], few)

    changed = [site for site in inside if is_other_apart(inside[site], apart.inside[site])]
    raise_for(ALONE, name, changed)
    if any(map(is_other_apart, *(np.moveaxis(each.slopes, 1, 0) for each in (together, apart)))):
        raise_for(ALONE, name, list(inside))


def raise_for(text: str, plate: str, sites: list[str]) -> None:
    """Raise ValueError for these sites, if there are any."""
    if sites:
        raise ValueError(text.format("', '".join(sites), plate, WAY_OUT))


def differ(values: np.ndarray, others: np.ndarray) -> bool:
    """Whether values of rows are not the same in the same program with other rows.

    What is not finite is of another error.
    """
    allowed = SOLVED * spread(values) + 4.0 * eps_of(values) * np.abs(values)
    with np.errstate(invalid="ignore"):
        return bool(np.any(np.abs(others - values) > allowed))


def has_changed(values: np.ndarray, moved: np.ndarray, few: np.ndarray) -> bool:
    """Whether rows are others in minibatches than at once, beyond rounding.

    `moved` are values with other last digits of the latents.
    """
    noise = np.abs(moved - values)
    allowed = ROUNDED * (spread(values) + np.abs(values)) + DIGITS * (noise + mean_of(noise))
    return bool(np.any(np.abs(few - values) > allowed))


def spread(values: np.ndarray) -> float:
    """How far rows are from each other: the mean distance from their mean."""
    return mean_of(np.abs(values - mean_of(values)))


def mean_of(values: np.ndarray) -> float:
    """Mean of what is finite, zero if nothing is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype=float)) if finite.size else 0.0


def eps_of(values: np.ndarray) -> float:
    """The precision of values."""
    return float(np.finfo(values.dtype).eps)
