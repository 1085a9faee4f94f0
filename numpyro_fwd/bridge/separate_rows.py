r"""The guard of the rows: the log density of each is that of the row alone, in all minibatches.

First two rows are read, the last of each plate: each site has a value for each, and no array of the
model ends before. Then rows are read in two groupings, and together.

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

Slopes along a few directions take the place of a second point: where rows are far in their tails a
value has no digits left at any point for what the others do, and where latents are near zero a
slope still has all of a covariate. Numbers are compared and not the program read: in a program all
rows of a scan, of a solver that stops when all have converged, or of a gather depend on each other,
and none that divides by ``len(rows)`` does.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from numpyro.infer import init_to_sample

from blackjax_ext.equations import equations_in
from blackjax_ext.meshes import on_host
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import INDEXED, SplitArguments, program_with, run_with
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.bridge.plates import Plate, check_model
from numpyro_fwd.bridge.row_models import RowModel, RowTerms
from numpyro_fwd.bridge.traces import first_sites, is_latent
from numpyro_fwd.disk import OnDisk, leaves_with_rows_on_disk
from numpyro_fwd.types import Args, Kwargs, Model, Site, SiteValues

MOST_ROWS = 4096  # rows that are read at once
DIRECTIONS = 4  # in which latents change
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


# sets of rows that are read, shape (sets, n), and of each set zero, or how the last digits of the
# latents are changed
Cases = tuple[np.ndarray, np.ndarray]
# by site: log densities and their slopes of sets of rows, shape (sets, 1 + directions, n); without
# the last axis those of a site that has no rows of the plate
SeenRows = dict[str, Any]


def checked_rows(
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    *,
    needs_minibatches: bool = True,
) -> RowModel:
    """A full view whose rows may be read by any minibatch; ValueError, by site, if they may not."""
    traced = check_model(model, model_args, model_kwargs, needs_minibatches=needs_minibatches)
    rows = RowModel.of(model, model_args, model_kwargs, traced)
    if not rows.plates:
        return rows
    check_reading(rows)

    def terms_of(model_args, model_kwargs, z, some):
        return rows.having(model_args, model_kwargs).terms(z, some)

    rng = np.random.default_rng(0)
    z = jax.tree.map(
        lambda leaf: jnp.asarray((0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype)),
        traced.zeros,
    )
    check_rows_apart(terms_of, rows.plates, rows.arguments, z)
    return rows


# each site has a value for each row, and all rows are there


def check_reading(model: RowModel) -> None:
    """Raise ValueError unless sites follow their rows, of which the last is in every array.

    If it is not, jax would not tell.
    """
    plates, number = model.plates, jnp.result_type(int)

    def all_at(place: Callable[[Plate], int]) -> dict[str, Array]:
        """Another number of rows than all, at a place; from the host: nothing is compiled."""
        return {
            name: jax.device_put(np.full(3 if plate.size == 2 else 2, place(plate), number))
            for name, plate in plates.items()
        }

    first, last = all_at(lambda plate: 0), all_at(lambda plate: plate.size - 1)
    arrays, program = model.arguments.arrays, program_of_rows(model, last)
    for leaf in leaves_with_rows_on_disk(model.model_args):
        # a program cannot ask how long they are: no plate reads beyond the shortest of them
        if isinstance(leaf, OnDisk) and len(leaf) < min(plate.size for plate in plates.values()):
            raise_no_rows(plates, f"The argument {leaf} has {len(leaf)}.")
    error = index_error(program, arrays, last)
    if error and index_error(program, arrays, first):
        # that has nothing to do with the rows: checkify misreads the scatter by which Cholesky
        # factors are drawn, as those of LKJCholesky; a program that knows the latents draws none
        view = model.on_rows(first), *model.model_args
        sites = first_sites(jax.random.key(0), *view, init_to_sample)
        values = {name: site["value"] for name, site in sites.items() if is_latent(site)}
        error = index_error(program_of_rows(model, first, values), arrays, last)
    if error:
        raise_no_rows(plates, f"jax said: {error.splitlines()[0]}")


def program_of_rows(
    model: RowModel, rows: dict[str, Array], values: SiteValues | None = None
) -> ClosedJaxpr:
    """The program of a model on `rows`; ValueError unless each site has one value for each of them.

    The rows are traced. Of the latents, `values` may be known.
    """
    numbers = {name: len(each) for name, each in rows.items()}
    strategy = init_to_sample if values is None else lambda site: values.get(site.get("name"))

    def read(arrays, rows):
        model_args, model_kwargs = model.arguments.join(arrays)
        view = model.on_rows(rows), model_args, model_kwargs
        sites = first_sites(jax.random.key(0), *view, strategy)
        for name, around in model.plates_of.items():
            if around:
                check_values(sites[name], numbers)

    try:
        return program_with(model.arguments, read, rows)
    except (RowsError, *INDEXED):  # of the latter :func:`naming_arguments` says more
        raise
    except (TypeError, ValueError, IndexError) as error:
        raise RowsError(failing_site(error), numbers, str(error).splitlines()[0]) from error


def check_values(msg: Site, numbers: dict[str, int]) -> None:
    """Raise RowsError unless a site, `msg` to :func:`failing_site`, has a value for each row."""
    shape = jax.eval_shape(lambda: msg["fn"].log_prob(msg["value"])).shape
    frames = (frame for frame in msg["cond_indep_stack"] if frame.name in numbers)
    if any(shape[frame.dim] != numbers[frame.name] for frame in frames):
        raise RowsError(f"site '{msg['name']}'", numbers, f"log densities of shape {shape}")


class RowsError(ValueError):
    """A site does not follow the rows of its plates."""

    def __init__(self, site: str, numbers: dict[str, int], found: str):
        found = found.rstrip(".")
        super().__init__(
            f"{site} does not follow the rows of the subsample plates: index every array of all "
            "rows with the rows of its plate, as in `with numpyro.plate(...) as rows: "
            f"numpyro.sample(..., x[rows] ..., obs=y[rows])`. With {numbers} rows: {found}."
        )


def failing_site(error: BaseException) -> str:
    """The site at which NumPyro raised `error`, or the model if it was at none."""
    found, traceback = "model", error.__traceback__
    while traceback is not None:
        message = traceback.tb_frame.f_locals.get("msg")
        if isinstance(message, dict) and message.get("type") == "sample":
            found = f"site '{message['name']}'"
        traceback = traceback.tb_next
    return found


def index_error(program: ClosedJaxpr, arrays: list[Any], rows: dict[str, Array]) -> str | None:
    """What jax says of an index out of bounds in these rows, if anything; of traced data nothing.

    `program` is that of a model on its arrays and rows.
    """

    def flags(*leaves):  # an error has a number that differs from program to program
        of_error = jax.tree.leaves(checked(*leaves)[0])
        return [leaf for leaf in of_error if leaf.dtype == bool]

    checked = checkify.checkify(jaxpr_as_fun(program), errors=checkify.index_checks)
    leaves = [*arrays, *jax.tree.leaves(rows)]
    found = compiled_soon(flags, runs_once=True)(*leaves)
    # data that are traced have no values
    is_known = all(not_jax_tracer(leaf) for leaf in found)
    return checked(*leaves)[0].get() if is_known and any(found) else None


def raise_no_rows(plates: dict[str, Plate], what: str) -> NoReturn:
    """Say that the model reads rows that are not there."""
    sizes = {name: plate.size for name, plate in plates.items()}
    raise ValueError(
        f"model reads rows that are not there, with plates of sizes {sizes}: pass the data of "
        f"all rows, not of one batch. {what}"
    )


# the rows do not see each other


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
    which evaluate up to MOST_ROWS rows, and their slopes, five times: once as they are, twice with
    half of them exchanged, once with other last digits, and once in minibatches. That is 20,480 log
    densities at most, and three times as many where they overflow. Of more rows than MOST_ROWS a
    kind is not seen that is not among those, or a set of rows of which no two are.

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
        if plate.size <= 2:  # minibatches of two rows have one
            continue
        of_plate = partial(reading, terms_of, plates, name, arguments)
        slopes, values = (exact_products(of_plate(has_slopes=is_so)) for is_so in (True, False))
        programs = [compiled_soon(function, runs_once=True) for function in (slopes, values)]

        def read(size, cases, programs=programs):
            size = jnp.asarray(size)
            try:
                found = run_with(arguments, programs[0], z, size, cases)
            except TypeError:  # jax.custom_vjp has gradients, and no slopes
                found = run_with(arguments, programs[1], z, size, cases)
            return jax.tree.map(lambda leaf: np.asarray(on_host(leaf)), found)

        rows = some_rows(plate.size, num_read(slopes, plate.size, arguments, z))
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
        return {
            site: share * (terms.by_row(site, name) * jnp.ones(rows.shape))
            if name in around
            else jnp.sum(terms.values[site])
            for site, around in terms.plates.items()
        }

    def seen(arrays, z, size, cases):
        model_args, model_kwargs = arguments.join(arrays)

        def visit(case):
            rows, turn = case
            here = moved(z, size, turn)

            def values_at(z):
                return of_set(model_args, model_kwargs, z, rows)

            if not has_slopes:
                return jax.tree.map(lambda value: value[None], values_at(here))
            values, along = jax.linearize(values_at, here)
            parts = jnp.arange(min(DIRECTIONS, len(jax.tree.leaves(z))))
            slopes = jax.lax.map(lambda part: along(direction(z, part)), parts)
            return {site: jnp.concatenate([values[site][None], slopes[site]]) for site in values}

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
    largest, few = 2**26, 256  # numbers that are computed of them, unless they are so few
    if most <= few:
        return most

    def numbers(num):
        """How many numbers the program computes of so many rows, those of its loops once."""
        rest = (z, 1.0, (np.zeros((1, num), int), np.zeros(1)))
        equations = equations_in(program_with(arguments, program, *rest))
        return sum(math.prod(each.aval.shape) for step in equations for each in step.outvars)

    if (all_numbers := numbers(most)) <= largest:
        return most
    each = (all_numbers - numbers(1)) // most
    return min(most, max(largest // max(each, 1), few))


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
    return (np.stack([rows, first, second, rows]), np.array([0.0, 0.0, 0.0, 1.0])), is_kept


def in_minibatches(num: int) -> np.ndarray:
    """Places of so many rows in minibatches, shape (sets, n <= 32); some are there twice."""
    size = max(min(32, num // 2), 1)
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
    # of the latents: where they are large a density may overflow, and beside far covariates all are
    for size in (1.0, 1e-3, 1e-6):
        together = read(size, cases)
        if all(np.isfinite(leaf).all() for leaf in together.values()):
            break
    # parts first: the value, and the slopes
    parts = {site: np.moveaxis(values, 1, 0) for site, values in together.items()}
    inside = [site for site, values in parts.items() if values.ndim == 3]
    outside = [site for site in parts if site not in inside]

    def raise_where(text: str, sites: list[str], is_wrong: Callable[..., bool], *more: Any) -> None:
        """Raise ValueError for the sites of which some part is wrong, if there are any."""
        each = {site: zip(parts[site], *(m[site] for m in more), strict=True) for site in sites}
        wrong = [site for site in sites if any(is_wrong(*values) for values in each[site])]
        if wrong:
            raise ValueError(text.format("', '".join(wrong), name, WAY_OUT))

    raise_where(TOGETHER, inside, lambda v: differ(v[0], np.where(is_kept, v[1], v[2])))
    raise_where(OUTSIDE, outside, lambda v: differ(v[:1], v[1:3]))
    if is_seeded:
        return
    places = in_minibatches(len(rows))
    apart = read(size, (rows[places], np.zeros(len(places))))
    few = {site: np.moveaxis(apart[site], 1, 0) for site in inside}
    raise_where(ALONE, inside, lambda v, few: has_changed(v[0][places], v[3][places], few), few)


def differ(values: np.ndarray, others: np.ndarray) -> bool:
    """Whether values of rows are not the same in the same program with other rows."""
    eps = float(np.finfo(values.dtype).eps)
    # of the distance between rows: solvers that stop together differ by less
    allowed = 1e-4 * spread(values) + 4.0 * eps * np.abs(values)
    return not is_within(values, others, allowed)


def has_changed(values: np.ndarray, moved: np.ndarray, few: np.ndarray) -> bool:
    """Whether rows are others in minibatches than at once, beyond rounding.

    `moved` are values with other last digits of the latents.
    """
    noise = np.abs(moved - values)
    # of a value, and of what a change of last digits makes of it
    allowed = 1e-3 * (spread(values) + np.abs(values)) + 40.0 * (noise + mean_of(noise))
    return not is_within(values, few, allowed)


def is_within(values: np.ndarray, others: np.ndarray, allowed: np.ndarray) -> bool:
    """Whether values differ by what is allowed at most; one alone that is not finite is too far."""
    with np.errstate(invalid="ignore"):
        is_near = np.abs(others - values) <= allowed
    return bool(np.all(is_near | (others == values) | (np.isnan(others) & np.isnan(values))))


def spread(values: np.ndarray) -> float:
    """How far rows are from each other: the mean distance from their mean."""
    return mean_of(np.abs(values - mean_of(values)))


def mean_of(values: np.ndarray) -> float:
    """Mean of what is finite, zero if nothing is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype=float)) if finite.size else 0.0
