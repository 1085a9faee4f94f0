r"""The groups of a NumPyro model's rows, found from what each row depends on.

A factor with many levels (a random intercept, a random slope) makes rows see one level each: the
derivative of a predictor by a latent site with an axis of G levels has one entry for each row. It
is found by three products with the Jacobian along that axis, with ones, with the numbers of the
levels and with noise: the second is the number of the level times the first, and the third checks
it. So an index, ``effect[group[rows]]``, and one-hot columns are found alike, and no name of a
plate matters. The factor with most levels makes the groups; whatever else the rows see is shared.

The prior must leave the groups independent given what is shared: each of its terms that depends on
them has an axis of levels, whose entries depend on their own level alone. That is looked for in the
same way, with the latents of half the levels moved at a time: the halves are the bits of the
numbers of the levels, so that any two levels are told apart, and moves are steps too, since a term
may jump and have no slope.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.mcmc.dependence import dependent
from blackjax_ext.meshes import on_host
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.subsampling.expansion import Expansion, expand_groups
from blackjax_ext.subsampling.grouping import (
    GroupedPredictor,
    Grouping,
    Terms,
    grouping_of,
    no_levels,
)
from blackjax_ext.subsampling.passes import MAX_CHUNK, over_chunks
from blackjax_ext.subsampling.predictors import LinearPredictor
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import traced_once
from numpyro_fwd.bridge.log_terms import LogTerms, log_terms
from numpyro_fwd.bridge.plates import as_array
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.subsampling.predictors import (
    explaining_predictors,
    linear_predictor_of,
    single_plate,
)
from numpyro_fwd.types import SiteValues


class Layout(NamedTuple):
    """How a model's latents and prior fall into groups; static in a program.

    Which coordinates belong to groups, and for each term of the prior its axis of groups; None for
    what depends on none.
    """

    grouping: Grouping
    axes: tuple[tuple[str, int | None], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedModel:
    """What chains share: the expansion of a model's rows in groups, without its data."""

    expansion: Expansion
    layout: Layout = field(metadata={"static": True})


def prior_values(model: RowModel) -> Partial:
    """Log densities of all sites outside the plate by name, not summed: a function of latents.

    The arrays among the arguments are leaves of it.
    """
    arrays = [as_array(each) for each in model.arguments.arrays]
    return Partial(model.once(prior_values_of), arrays)


def prior_values_of(model: RowModel) -> Callable[..., dict[str, Array]]:
    """``(arrays, z)``: :func:`prior_values` with these arrays."""
    plate = single_plate(model.sites).plate
    join, on_rows = model.arguments.join, model.without_data().on_rows

    def values(arrays, z):
        model_args, model_kwargs = join(arrays)
        first_row = on_rows({plate: jnp.zeros(1, int)})
        terms = log_terms(first_row, model_args, model_kwargs, z)
        return {name: elementwise(terms, name) for name in terms.outside_plates}

    return exact_products(traced_once(values))


def elementwise(terms: LogTerms, name: str) -> Array:
    """The log density of a site before independent dimensions are summed."""
    site = terms.sites[name]
    fn, scale = site["fn"], jnp.asarray(1.0 if site["scale"] is None else site["scale"])
    if not isinstance(fn, dist.Independent) or scale.ndim:
        return terms.values[name]
    while isinstance(fn, dist.Independent):
        fn = fn.base_dist
    return scale * fn.log_prob(site["value"])


def grouped_predictor_of(model: RowModel, z: Any, layout: Layout) -> GroupedPredictor:
    """The model's rows in groups; the levels of the rows are left out."""
    rows, values = linear_predictor_of(model, z), prior_values(model)
    axes = dict(layout.axes)

    def terms(values, z):
        found = values(z)
        shared = sum((jnp.sum(found[k]) for k in found if axes[k] is None), jnp.zeros(()))
        groups = jnp.zeros(layout.grouping.num_groups)
        for name, axis in axes.items():
            if axis is not None:
                value = jnp.moveaxis(found[name], axis, 0)
                groups = groups + value.reshape(value.shape[0], -1).sum(1)
        return Terms(shared, groups)

    return GroupedPredictor(rows, Partial(terms, values), no_levels(), layout.grouping)


def expanded_groups(
    model: RowModel,
    z: SiteValues,
    *,
    say: Callable[[str], None],
) -> GroupedModel | None:
    """The rows of a full view expanded by groups, without its data; None where it has no groups.

    Nor are there any where more coordinates would not belong to them than a Hessian is taken in.

    Raises
    ------
    ValueError
        For a site that cannot be expanded, by name, and as
        :func:`blackjax_ext.potentials.expand_groups`.
    """
    if not candidates(z):
        return None

    def attempt(rows, *, only_seen=False):
        found = find_groups(model, rows, z, only_seen=only_seen)
        if found is None:
            return None
        layout, level = found
        if layout.grouping.size > BUDGET.dimensions["reverse"]:
            return None
        predictor = grouped_predictor_of(model, z, layout)
        predictor = replace(predictor, rows=rows, level=jnp.asarray(level))
        try:
            expansion = expand_groups(predictor, z, say=say)
            return GroupedModel(expansion.without_data(), layout)
        except ValueError:
            # scales of single groups among what is shared are held while the mode is looked for
            if only_seen or not (again := attempt(rows, only_seen=True)):
                raise
            return again

    return explaining_predictors(model, z, attempt)


def candidates(z: SiteValues) -> dict[int, list[tuple[str, int]]]:
    """Sites with an axis that may be one of groups, by its length, the longest first.

    Of fewer than 50 groups one decision for all coordinates does; each has up to 16 coefficients.
    """
    found: dict[int, list[tuple[str, int]]] = {}
    for name, leaf in z.items():
        for axis, length in enumerate(jnp.shape(leaf)):
            if length >= 50 and leaf.size // length <= 16:
                found.setdefault(length, []).append((name, axis))
    return dict(sorted(found.items(), reverse=True))


def probes(z: SiteValues, name: str, axis: int, levels: np.ndarray) -> Iterator[Any]:
    """Tangents of a site, `levels` (G,) along an axis, for each of its other coordinates."""
    leaf = z[name]
    others = leaf.size // levels.size
    rest = leaf.shape[:axis] + leaf.shape[axis + 1 :]
    for k in range(others):
        flat = np.zeros((levels.size, others), leaf.dtype)
        flat[:, k] = levels
        one = np.moveaxis(flat.reshape(levels.size, *rest), 0, axis)
        zeros = {each: np.zeros(value.shape, value.dtype) for each, value in z.items()}
        yield zeros | {name: one}


def levels_of(
    rows: LinearPredictor, z: SiteValues, name: str, axis: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which level of a site each row sees, -1 if none, and whether it sees one at most, (N,).

    Cost: a pass of three products for each coefficient.
    """
    num_levels = z[name].shape[axis]
    dtype = jnp.result_type(*z.values())
    noise = np.random.default_rng(0).normal(size=num_levels).astype(dtype)
    kinds = (np.ones(num_levels, dtype), np.arange(1, num_levels + 1, dtype=dtype), noise)
    tangents = [list(probes(z, name, axis, levels)) for levels in kinds]

    def look(rows, z, tangents, noise):
        def visit(indices, is_new):
            del is_new
            _, push = jax.linearize(lambda z: rows.read(z, indices)[0], z)

            def pushed(tangent):
                parts = [
                    leaf.reshape(indices.shape[0], -1) for leaf in jax.tree.leaves(push(tangent))
                ]
                return jnp.concatenate(parts, axis=1)

            one, number, noisy = (
                jnp.concatenate([pushed(tangent) for tangent in each], axis=1) for each in tangents
            )
            at = jnp.argmax(jnp.abs(one), axis=1)[:, None]
            most = jnp.take_along_axis(one, at, 1)
            level = jnp.rint(jnp.take_along_axis(number, at, 1) / jnp.where(most == 0, 1, most)) - 1
            level = jnp.where(most == 0, -1, level).astype(int)
            known = jnp.clip(level, 0, num_levels - 1)
            # of each coefficient by itself: that of a covariate in small units is no rounding
            is_close = jnp.abs(noisy - one * noise[known]) <= 1e-3 * jnp.abs(one)
            is_level = level[:, 0] == jnp.where(level[:, 0] < 0, -1, known[:, 0])
            is_one = is_close.all(1) & is_level
            return (), (level[:, 0], is_one)

        return over_chunks(visit, rows.num_rows, min(MAX_CHUNK, rows.num_rows))[1]

    level, is_one = on_host(tuple(compiled_soon(look)(rows, z, tangents, noise)))
    return level, is_one


def find_groups(
    model: RowModel,
    rows: LinearPredictor,
    z: SiteValues,
    *,
    only_seen: bool = False,
) -> tuple[Layout, np.ndarray] | None:
    """The groups of a model and the level of each row; None where it has none.

    With `only_seen` no site that no row sees belongs to the groups.

    Cost: a pass over the rows for each site with an axis of at least 50 levels.
    """
    values = None
    for num_levels, sites in candidates(z).items():
        axes, level = shared_levels(rows, z, sites)
        if not axes or not (level >= 0).any():
            continue
        values = values or prior_values(model)
        of_prior = None if only_seen else axes_of_prior(values, z, axes, num_levels)
        if of_prior is None:
            # sites that no row sees need not belong to the groups
            axes = {name: axis for name, axis in axes.items() if is_seen(rows, z, name)}
            of_prior = axes_of_prior(values, z, axes, num_levels)
        if of_prior is not None:
            grouping = grouping_of(z, [axes.get(name) for name in sorted(z)])
            return Layout(grouping, tuple(of_prior.items())), np.maximum(level, 0).astype(np.int32)
    return None


def shared_levels(
    rows: LinearPredictor, z: SiteValues, sites: list[tuple[str, int]]
) -> tuple[dict[str, int], np.ndarray]:
    """Axes of the sites whose rows agree on one level each, and these levels."""
    axes: dict[str, int] = {}
    level = np.full(rows.num_rows, -1)
    for name, axis in sites:
        if name in axes:
            continue
        seen, is_one = levels_of(rows, z, name, axis)
        if is_one.all() and (seen == level)[(seen >= 0) & (level >= 0)].all():
            axes[name] = axis
            level = np.maximum(level, seen)
    return axes, level


def is_seen(rows: LinearPredictor, z: SiteValues, name: str) -> bool:
    """Whether a predictor of any of a few thousand rows depends on a site."""
    indices = jnp.arange(min(MAX_CHUNK, rows.num_rows))
    tangent = {other: (1.0 if other == name else 0.0) + 0 * leaf for other, leaf in z.items()}

    def change(rows):
        return jax.jvp(lambda z: rows.read(z, indices)[0], (z,), (tangent,))[1]

    found = compiled_soon(change)
    return any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(found(rows)))


def halves_of(num_levels: int) -> list[np.ndarray]:
    """Halves of the levels such that for any two of them some half has one and not the other."""
    numbers = np.arange(num_levels)
    bits = [(numbers >> k) % 2 == 1 for k in range((num_levels - 1).bit_length())]
    return [half for bit in bits for half in (bit, ~bit)]


def has_moved(here: Array, there: Array, slope: Array) -> Array:
    """Whether a term changes on a step, by its slope or, as where it jumps, by its value."""
    rounding = 1e-5 * (1.0 + jnp.abs(here))  # of a term of the prior
    is_same = (here == there) | (jnp.abs(there - here) <= rounding)
    return (slope != 0) | ~(is_same | (jnp.isnan(here) & jnp.isnan(there)))


def axes_of_prior(
    values: Function, z: SiteValues, axes: dict[str, int], num_levels: int
) -> dict[str, int | None] | None:
    """For each term of the prior its axis of groups, or None; None at all if groups are coupled.

    `axes` are those of the latents that belong to groups. Terms are looked at around `z`, where
    constraints hold, and elsewhere. One that is computed from groups and never changes may couple
    them where nobody has looked.
    """
    rng = np.random.default_rng(1)

    def moved(values, z, noise, half):
        """Which terms change where the latents of half of the levels do, a little or by a step."""
        step = {}
        for name, leaf in z.items():
            kept = 0.0
            if name in axes:
                shape = [1] * leaf.ndim
                shape[axes[name]] = num_levels
                kept = half.reshape(shape)
            step[name] = (noise[name] * kept).astype(leaf.dtype)
        here, slope = jax.jvp(values, (z,), (step,))
        there = values({name: leaf + step[name] for name, leaf in z.items()})
        return jax.tree.map(has_moved, here, there, slope)

    changed, found = compiled_soon(moved), dict[str, set[int]]()
    for i, half in enumerate(halves_of(num_levels)):
        point, noise = (
            {name: rng.normal(size=leaf.shape).astype(leaf.dtype) for name, leaf in z.items()}
            for _ in range(2)
        )
        # how much longer every second step is that looks for jumps of the prior
        step = 10.0 ** (i % 2)
        noise = {name: (leaf * step).astype(leaf.dtype) for name, leaf in noise.items()}
        looks = [changed(values, around, noise, half) for around in (point, z)]
        for name in looks[0]:
            change = np.logical_or(*(on_host(look[name]) for look in looks))
            if change.any():
                fits = {
                    axis
                    for axis, length in enumerate(change.shape)
                    if length == num_levels and not np.moveaxis(change, axis, 0)[~half].any()
                }
                found[name] = found.get(name, fits) & fits
    of_groups = {name: z[name] for name in axes}
    depends = dependent(lambda of_groups: values({**z, **of_groups}), of_groups)
    if not all(found.get(name) for name, is_computed in depends.items() if is_computed):
        return None
    return {name: min(found[name]) if name in found else None for name in sorted(depends)}
