r"""Posteriors whose rows each see what is shared and the coefficients of one group.

.. math::
    U(y, b) = -\log p(y) - \sum_{c=1}^G \log p(b_c \mid y)
    + \sum_{i=1}^N \phi_i\big(A_i y + B_i b_{c(i)} + \text{const}\big),

with p shared coordinates y (slopes, means, scales) and d coefficients in each of G groups. Given y
the groups are independent, whatever their prior; given the groups, y is a small regression.

Rows without groups are the case of one group without coefficients, d = 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.checks import check_position, count_rows
from blackjax_ext.meshes import on_host
from blackjax_ext.subsampling.families import Family
from blackjax_ext.subsampling.predictors import LinearPredictor, linear_predictor
from blackjax_ext.types import Function, LogDensity


class Terms(NamedTuple):
    """Log prior density, apart.

    Attributes
    ----------
    shared
        Of what depends on no group, a scalar.
    groups
        Of what depends on a group, shape (G,).
    """

    shared: Array
    groups: Array

    def total(self) -> Array:
        """Sum of the shared part and of those of all groups."""
        return self.shared + jnp.sum(self.groups)


class Leaf(NamedTuple):
    """A leaf of a position, with its axis of groups; None for what is shared."""

    shape: tuple[int, ...]
    axis: int | None
    dtype: Any


@dataclass(frozen=True)
class Grouping:
    """Which coordinates of a position belong to groups.

    Attributes
    ----------
    leaves
        Of the position, in their order.
    structure
        Of the position.
    num_groups
        G.
    """

    leaves: tuple[Leaf, ...]
    structure: Any
    num_groups: int

    @property
    def size(self) -> int:
        """p, the number of shared coordinates."""
        return sum(math.prod(leaf.shape) for leaf in self.leaves if leaf.axis is None)

    @property
    def width(self) -> int:
        """d, the number of coefficients of a group."""
        of_groups = [math.prod(leaf.shape) for leaf in self.leaves if leaf.axis is not None]
        return sum(of_groups) // self.num_groups

    def split(self, x: ArrayTree, on: Any = jnp) -> tuple[Any, Any]:
        """Shared coordinates (p,), and those of the groups, (G, d).

        By `jax.numpy`, or on the host by `numpy`, which compiles nothing.
        """
        pairs = list(zip(self.leaves, map(on.asarray, jax.tree.leaves(x)), strict=True))
        dtype = jnp.result_type(*(value for _, value in pairs))
        shared = [value.ravel() for leaf, value in pairs if leaf.axis is None]
        groups = [
            on.moveaxis(value, leaf.axis, 0).reshape(self.num_groups, -1)
            for leaf, value in pairs
            if leaf.axis is not None
        ]
        nothing = on.zeros((self.num_groups, 0), dtype)
        return on.concatenate([nothing[0], *shared]), on.concatenate([nothing, *groups], axis=1)

    def join(self, shared: Any, groups: Any, on: Any = jnp) -> ArrayTree:
        """The position of these coordinates, by `jax.numpy` or `numpy`."""
        values, at, of = [], 0, 0
        for shape, axis, dtype in self.leaves:
            size = math.prod(shape)
            if axis is None:
                value = shared[at : at + size].reshape(shape)
                at += size
            else:
                width = size // self.num_groups
                rest = shape[:axis] + shape[axis + 1 :]
                value = groups[:, of : of + width].reshape(self.num_groups, *rest)
                value = on.moveaxis(value, 0, axis)
                of += width
            values.append(value.astype(dtype))
        return jax.tree.unflatten(self.structure, values)


def grouping_of(x: ArrayTree, axes: list[int | None]) -> Grouping:
    """The grouping of positions like `x`, whose leaves have these axes of groups, or None.

    Where none has one there is one group without coefficients.
    """
    leaves, structure = jax.tree.flatten(x)
    shapes = [tuple(jnp.shape(leaf)) for leaf in leaves]
    sizes = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if axis is not None}
    assert len(sizes) <= 1, f"groups of several numbers: {sizes}"
    known_leaves = tuple(
        Leaf(shape, axis, jnp.result_type(leaf))
        for leaf, shape, axis in zip(leaves, shapes, axes, strict=True)
    )
    return Grouping(known_leaves, structure, sizes.pop() if sizes else 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedPredictor:
    """A posterior of the kind above; see :func:`grouped_predictor`.

    Attributes
    ----------
    rows
        Prior, predictors and responses.
    terms
        Log prior of a position, apart: pytree to `Terms`.
    level
        Group of each row, c(i), shape (N,).
    grouping
        Which coordinates belong to groups.
    """

    rows: LinearPredictor
    terms: Callable[[ArrayTree], Terms]
    level: Array
    grouping: Grouping = field(metadata={"static": True})

    @classmethod
    def without_groups(cls, rows: LinearPredictor, position: ArrayTree) -> "GroupedPredictor":
        """The posterior of rows that have no groups, at positions like `position`."""
        grouping = grouping_of(position, [None] * len(jax.tree.leaves(position)))
        return cls(rows, Partial(shared_alone, rows.logprior), no_levels(), grouping)

    @property
    def has_groups(self) -> bool:
        """Whether rows see coefficients of a group."""
        return self.grouping.width > 0

    def without_levels(self) -> "GroupedPredictor":
        """The posterior for what does not ask to which group a row belongs."""
        return replace(self, level=no_levels())

    def level_of(self, indices: Array) -> Array:
        """Groups of some rows."""
        return self.level[indices] if self.has_groups else jnp.zeros_like(indices)


def no_levels() -> Array:
    """Of rows without groups."""
    levels: Array = jax.device_put(np.zeros(0, np.int32))
    return levels


def shared_alone(logprior: LogDensity, x: ArrayTree) -> Terms:
    """The log prior where nothing depends on a group."""
    return Terms(logprior(x), jnp.zeros(1))


def grouped_predictor(
    logprior_fn: LogDensity,
    group_logprior_fn: Function,
    family: Family,
    data: tuple[ArrayLikeTree, ArrayLikeTree, ArrayLikeTree],
    position: ArrayLikeTree,
    *,
    predict_fn: Function,
) -> GroupedPredictor:
    r"""A posterior of rows in groups, which see shared coordinates and those of their group.

    Parameters
    ----------
    logprior_fn
        Log density of the shared coordinates: pytree to scalar.
    group_logprior_fn
        ``group_logprior_fn(shared, group)``, log density of the coordinates of one group given the
        shared ones.
    family
        Of :mod:`blackjax_ext.families`.
    data
        Covariates, responses, and the group of each row, whole numbers from 0 to G - 1, shape (N,).
    position
        A position: ``{"shared": pytree, "groups": pytree}``, where the leaves of the latter lead
        with the G groups. Its shapes alone matter.
    predict_fn
        ``predict_fn(shared, group, row)``, the predictors of a row of the covariates; affine in
        shared and group together.

    Returns
    -------
    The posterior, to be expanded with :func:`blackjax_ext.potentials.expand_groups`.

    Raises
    ------
    ValueError, TypeError
        For a position without these two parts, groups of several numbers, a group beyond them, and
        as :func:`blackjax_ext.potentials.linear_predictor`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from blackjax_ext import families, potentials
    >>> level = jnp.arange(2_000) % 40
    >>> x = jax.random.normal(jax.random.key(0), (2_000, 2))
    >>> y = jnp.asarray(x[:, 0] + 0.1 * (level % 3) > 0, float)
    >>> posterior = potentials.grouped_predictor(
    ...     lambda shared: -0.5 * jnp.sum(shared["slopes"] ** 2) - shared["log_sd"] ** 2,
    ...     lambda shared, b: -0.5 * jnp.exp(-2 * shared["log_sd"]) * b**2 - shared["log_sd"],
    ...     families.bernoulli(),
    ...     (x, y, level),
    ...     {"shared": {"slopes": jnp.zeros(2), "log_sd": 0.0}, "groups": jnp.zeros(40)},
    ...     predict_fn=lambda shared, b, row: row @ shared["slopes"] + b,
    ... )
    >>> posterior.grouping.num_groups, posterior.grouping.size, posterior.grouping.width
    (40, 3, 1)
    """
    position = check_position(position)
    if not isinstance(position, dict) or set(position) != {"shared", "groups"}:
        raise ValueError(
            'position must be {"shared": pytree, "groups": pytree}; got '
            f"{jax.tree.structure(position)}."
        )
    covariates, responses, level = data
    num_rows = count_rows((covariates, responses, level))
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(position["groups"])}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"groups must all lead with one number of them; got {sorted(sizes)}.")
    axes = {
        "groups": jax.tree.map(lambda _: 0, position["groups"]),
        "shared": jax.tree.map(lambda _: -1, position["shared"]),
    }
    grouping = grouping_of(position, [None if a < 0 else a for a in jax.tree.leaves(axes)])
    level = check_levels(level, num_rows, grouping.num_groups)

    def terms(x: ArrayTree) -> Terms:
        groups = jax.vmap(partial(group_logprior_fn, x["shared"]))(x["groups"])
        return Terms(logprior_fn(x["shared"]), groups)

    rows = linear_predictor(
        lambda x: terms(x).total(),
        family,
        ((covariates, level), responses),
        predict_fn=lambda x, row: predict_fn(
            x["shared"], jax.tree.map(lambda leaf: leaf[row[1]], x["groups"]), row[0]
        ),
    )
    return GroupedPredictor(rows, Partial(terms), level, grouping)


def check_levels(level: ArrayLikeTree, num_rows: int, num_groups: int) -> Array:
    """The groups of all rows; ValueError unless they are whole numbers from 0 to G - 1."""
    levels = on_host(level)
    if levels.shape != (num_rows,) or not np.issubdtype(levels.dtype, np.integer):
        raise ValueError(
            f"the group of each row must be a whole number, shape ({num_rows},); got shape "
            f"{levels.shape} of {levels.dtype}."
        )
    bad = np.flatnonzero((levels < 0) | (levels >= num_groups))
    if bad.size:
        raise ValueError(
            f"the group of row {bad[0]} is {levels[bad[0]]}; groups are 0 to {num_groups - 1}."
        )
    return jnp.asarray(levels, jnp.int32)
