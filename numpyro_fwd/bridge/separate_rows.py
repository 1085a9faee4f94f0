r"""Whether the log density of a row is that of the row alone, as all minibatches take for granted.

A mean over the rows of a minibatch, a sort or a normalization of them makes the density of a row
another one in each minibatch: no chunk, no minibatch and no sum of rows is then the model's. It
shows in numbers. A few rows are read together with others, with copies of themselves, and alone.

*Together.* The same program reads the same row in the same place, and the others are exchanged.
What it computes of that row from that row alone it computes bit by bit as before, whatever the
size of the numbers: there is no rounding to allow for, and no need for a tolerance beyond that of
solvers that stop when all rows have converged.

*Alone.* Another number of rows is another program, which may round otherwise. So a difference
counts only beyond what a change of the last digits of the latents makes.

Gradients are compared beside values: where rows are far in their tails a value has no digits left
for what the others do, and where latents are near zero a gradient still has all of a covariate.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.meshes import on_host
from blackjax_ext.programs import compiled_soon
from numpyro_fwd.bridge.arguments import SplitArguments, run_with, split_arguments
from numpyro_fwd.bridge.centring import zeros_of
from numpyro_fwd.bridge.log_terms import LogTerms, log_terms
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer
from numpyro_fwd.bridge.plates import Plate, given_rows, subsample_plates
from numpyro_fwd.bridge.views import explaining

__all__ = ["check_minibatches", "check_rows_apart"]

NUM = 32  # rows that are read together
NUM_COMPANIES = 4  # in which each of three rows is asked: one, two others, and copies of itself
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
    """In what company rows are asked; NUM_COMPANIES of them for each row that is.

    rows
        The rows that are read, shape (cases, n).
    places
        Of the row that is asked, shape (cases,).
    turns
        Zero, or how the last digits of the latents are changed, shape (cases,).
    """

    rows: Any
    places: Any
    turns: Any


class Asked(NamedTuple):
    """What is read of rows, shapes (rows that are asked, NUM_COMPANIES, ...).

    inside
        Log densities of the row by site.
    outside
        Log densities of the sites that have no rows of the plate.
    gradient
        Of the sum of the first, in all latents, the last axis.
    """

    inside: dict[str, Any]
    outside: dict[str, Any]
    gradient: Any

    def is_finite(self) -> bool:
        """Whether all of it is."""
        return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self))


def check_minibatches(
    model: Callable, sites: dict, model_args: tuple, model_kwargs: dict | None
) -> None:
    """:func:`check_rows_apart` of a full view with these sites, near zero."""

    def terms_of(model_args, model_kwargs, z, rows):
        return log_terms(given_rows(model, rows), model_args, model_kwargs, z)

    rng = np.random.default_rng(0)
    z = jax.tree.map(
        lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), leaf.dtype), zeros_of(sites)
    )
    arguments = split_arguments(model_args, model_kwargs)
    with explaining(None, model_args, model_kwargs, z):
        check_rows_apart(terms_of, subsample_plates(sites).plates, arguments, z)


def check_rows_apart(
    terms_of: Callable[..., LogTerms],
    plates: dict[str, Plate],
    arguments: SplitArguments,
    z: Any,
    *,
    is_seeded: bool = False,
) -> None:
    """Raise ValueError, by site, for rows whose log density is not theirs alone.

    Data that are traced have no values, and are not looked at. Cost: two short programs for each
    plate, which read some four hundred rows.

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
        program = compiled_soon(asking(terms_of, plates, name, arguments), is_short=True)

        def ask(size, cases, program=program):
            found = run_with(arguments, program, z, jnp.asarray(size), cases)
            return jax.tree.map(by_row, found)

        if plate.size > 2:  # minibatches of two rows have one
            check_plate(ask, name, plate.size, is_seeded=is_seeded)


def by_row(leaf: Array) -> np.ndarray:
    """Cases of each row that is asked."""
    found = np.asarray(on_host(leaf))
    return found.reshape(-1, NUM_COMPANIES, *found.shape[1:])


def asking(terms_of: Callable, plates: dict[str, Plate], name: str, arguments: Any) -> Callable:
    """The program that reads one row of a plate in each of several cases."""
    first_row = {other: jnp.zeros(1, int) for other in plates}

    def of_case(model_args, model_kwargs, z, rows, place):
        def total(z):
            terms = terms_of(model_args, model_kwargs, z, first_row | {name: rows})
            share = rows.shape[0] / plates[name].size  # undoes the scale of the plate
            inside = {
                site: share * of_row(terms, site, name, place)
                for site, around in terms.plates.items()
                if name in around
            }
            rest = [site for site in terms.values if site not in inside]
            outside = {site: jnp.sum(terms.values[site]) for site in rest}
            return sum(inside.values(), jnp.zeros(())), (inside, outside)

        gradient, (inside, outside) = jax.grad(total, has_aux=True)(z)
        return Asked(inside, outside, ravel_pytree(gradient)[0])

    def asked(arrays, z, size, cases):
        model_args, model_kwargs = arguments.join(arrays)

        def visit(case):
            here = moved(z, size, case.turns)
            return of_case(model_args, model_kwargs, here, case.rows, case.places)

        return jax.lax.map(visit, cases)

    return asked


def of_row(terms: LogTerms, site: str, plate: str, place: Array) -> Array:
    """The log density of a site of the row at a place."""
    value = terms.values[site]
    frame = next(f for f in terms.sites[site]["cond_indep_stack"] if f.name == plate)
    return jnp.sum(jnp.take(value, place, axis=value.ndim + frame.dim))


def moved(z: Any, size: Array, turn: Array) -> Any:
    """Latents of some size, of which a `turn` other than zero changes the last digits."""

    def one(leaf):
        digits = 4.0 * jnp.finfo(leaf.dtype).eps
        wave = jnp.sin(turn * (1.0 + jnp.arange(leaf.size))).reshape(leaf.shape)
        return (size * leaf * (1.0 + digits * wave)).astype(leaf.dtype)

    return jax.tree.map(one, z)


def in_company(num_rows: int) -> Cases:
    """For each place one batch, it with other rows in all other places, and with copies there."""
    rng = np.random.default_rng(0)
    num = min(NUM, num_rows - 1)  # of as many as there are numpyro.subsample takes none
    first = rng.integers(num_rows, size=num)
    first[0], first[-1] = 0, num_rows - 1
    places = np.repeat([0, num // 2, num - 1], NUM_COMPANIES)
    rows = rng.integers(num_rows, size=(len(places), num))
    rows[::NUM_COMPANIES] = first
    rows[NUM_COMPANIES - 1 :: NUM_COMPANIES] = first[places[::NUM_COMPANIES], None]
    rows[np.arange(len(places)), places] = first[places]
    return Cases(rows, places, np.zeros(len(places)))


def alone(cases: Cases) -> Cases:
    """The rows that are asked without company, as they are and with other last digits."""
    asked = cases.rows[np.arange(len(cases.places)), cases.places][::NUM_COMPANIES]
    turns = np.tile(np.arange(NUM_COMPANIES, dtype=float), len(asked))
    rows = np.repeat(asked, NUM_COMPANIES)[:, None]
    return Cases(rows, np.zeros(len(rows), int), turns)


def check_plate(ask: Callable[[float, Cases], Asked], name: str, num_rows: int, *, is_seeded: bool):
    """Raise ValueError for the rows of a plate that are not apart."""
    cases = in_company(num_rows)
    for size in SIZES:
        together = ask(size, cases)
        if together.is_finite():
            break
    for text, values in ((TOGETHER, together.inside), (OUTSIDE, together.outside)):
        raise_for(text, name, [site for site, each in values.items() if differ(each)])
    if differ(together.gradient):
        raise_for(TOGETHER, name, list(together.inside))
    if is_seeded:
        return
    single = ask(size, alone(cases))
    copies = jax.tree.map(lambda leaf: leaf[:, -1:], together)
    changed = [site for site in single.inside if is_other(copies.inside[site], single.inside[site])]
    raise_for(ALONE, name, changed)
    if is_other(copies.gradient, single.gradient):
        raise_for(ALONE, name, list(single.inside))


def raise_for(text: str, plate: str, sites: list[str]) -> None:
    """Raise ValueError for these sites, if there are any."""
    if sites:
        raise ValueError(text.format("', '".join(sites), plate, WAY_OUT))


def differ(values: np.ndarray) -> bool:
    """Whether values of one row in several companies, along the second axis, are not the same.

    What is not finite is of another error.
    """
    off = np.abs(values - values[:, :1])
    allowed = SOLVED * spread(values) + 4.0 * eps_of(values) * np.abs(values)
    return bool(np.any(off > allowed))


def is_other(copies: np.ndarray, single: np.ndarray) -> bool:
    """Whether a row among copies of itself is another one than alone, beyond rounding."""
    noise = np.abs(single - single[:, :1]).max(axis=1)
    off, size = np.abs(copies[:, 0] - single[:, 0]), np.abs(single[:, 0])
    return bool(np.any(off > ROUNDED * (spread(single) + size) + DIGITS * noise))


def spread(values: np.ndarray) -> np.ndarray:
    """How far the rows that are asked are from each other."""
    return np.ptp(values[:, 0], axis=0)


def eps_of(values: np.ndarray) -> float:
    """The precision of values."""
    return float(np.finfo(values.dtype).eps)
