"""What the warm-up of a kernel adapts: step size and metric, as they were given and asked for.

A metric may be in blocks of sites, written as for NumPyro's HMC and NUTS.
``dense_mass=[("m", "b"), ("c",)]`` keeps the covariances within (m, b) and within c, and variances
alone of all other sites. ``inverse_mass_matrix={("m", "b"): ..., ("c",): ...}`` gives the first
guess of these blocks, in the order in which their sites are named, each raveled; a block that is
not given has unit variances.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext import equations
from blackjax_ext.adaptation import windows
from blackjax_ext.adaptation.run import Plan
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import InverseMassMatrix, factorize
from blackjax_ext.metrics.low_rank import LowRank
from blackjax_ext.metrics.structures import Blocks
from blackjax_ext.types import Function, LogDensity, Unravel

Block: TypeAlias = tuple[str, ...]
DenseMass: TypeAlias = bool | Literal["low_rank"] | list[Block] | None
GivenMetric: TypeAlias = InverseMassMatrix | Mapping[Block, Array]

DENSE_UP_TO = windows.MANY  # dimensions in which a product with a covariance costs next to nothing
FULL_UP_TO = 512  # if it is learned from draws and gradients; further where products are cheap
LEAST_RANK, MOST_RANK = 32, 128  # directions of a metric of low rank


def check_metric_options(dense_mass: Any, inverse_mass_matrix: Any) -> None:
    """Raise TypeError or ValueError for what is neither a structure nor blocks of sites."""
    if isinstance(dense_mass, (list, tuple)):
        check_blocks("dense_mass", dense_mass)
    elif not (
        dense_mass is None
        or isinstance(dense_mass, (bool, np.bool_))
        or (isinstance(dense_mass, str) and dense_mass == "low_rank")
    ):
        raise TypeError(
            'dense_mass must be True (a full covariance), False (variances), "low_rank" (variances '
            f"and {LEAST_RANK} to {MOST_RANK} directions), None (a full covariance up to "
            f"{DENSE_UP_TO} dimensions) or a "
            f"list of tuples of site names, each of which is a block; got {dense_mass!r}."
        )
    if isinstance(inverse_mass_matrix, Mapping):
        check_blocks("inverse_mass_matrix", list(inverse_mass_matrix))


def check_blocks(name: str, blocks: Iterable[Any]) -> None:
    """Raise unless each block is a tuple of site names, and no site is in two."""
    for block in blocks:
        is_block = isinstance(block, tuple) and all(isinstance(site, str) for site in block)
        if not is_block or not block:
            raise TypeError(
                f'{name} must name its blocks by tuples of sites, such as ("m",); got {block!r}.'
            )
    sites = [site for block in blocks for site in block]
    if twice := sorted({site for site in sites if sites.count(site) > 1}):
        raise ValueError(f"{name} must name each site once; got {twice} more than once.")


def initial_metric(
    inverse_mass_matrix: GivenMetric, dense_mass: DenseMass, z: Any, like: Array
) -> Factor:
    """The metric that the user gave, or the identity, in the structure that is adapted.

    `z` is the position of one chain, and `like` the same raveled.
    """
    if isinstance(inverse_mass_matrix, Mapping):
        given = {block: jnp.asarray(value) for block, value in inverse_mass_matrix.items()}
        covariance = assemble(given, z, like)
        if not dense_mass:
            full = [block for block, value in given.items() if value.ndim == 2]
            dense_mass = full  # correlations that are given are kept
        metric = factorize(covariance if dense_mass else jnp.diagonal(covariance), like.size)
    else:
        metric = factorize(inverse_mass_matrix, like.size)
    metric = metric.at(like)
    keeps = inverse_mass_matrix is not None and not dense_mass
    return metric if keeps else in_structure(metric, dense_mass, z, like)


def default_rank(size: int) -> int:
    """Directions of a metric of low rank: 128 up to 1,024 dimensions, 32 from 4,096 on.

    Their products cost half a million operations at most, until there are 32. Correlations that
    reach over many coordinates, as those of an AR(1), need more than a few.
    """
    return min(size, int(np.clip(2**17 // size, LEAST_RANK, MOST_RANK)))


def is_covariance_cheap(logdensity_fn: LogDensity | None, x: Array) -> bool:
    """Whether a full covariance of `x`, shape (D,), may be learned for what it costs.

    Up to 512 dimensions a product takes a tenth of a millisecond at most. Beyond, the two products
    of a step may cost as much as its gradient, about four evaluations; and beyond 2,000 dimensions
    the factorizations at the ends of windows would cost more than the steps between them.
    """
    if logdensity_fn is None or not FULL_UP_TO < x.size <= 2_000:
        return x.size <= FULL_UP_TO
    return x.size**2 <= equations.operations(jax.make_jaxpr(logdensity_fn)(x))


def in_structure(metric: Factor, dense_mass: DenseMass, z: Any, like: Array) -> Factor:
    """`metric` with the covariances that `dense_mass` asks for."""
    if dense_mass is None:
        dense_mass = like.size <= DENSE_UP_TO
    if isinstance(dense_mass, (list, tuple)) and dense_mass:
        return Blocks.of(metric.dense(like), labels_of(dense_mass, z, like))
    if dense_mass == "low_rank":
        scale = metric.diagonal().at(like).inverse_sqrt
        return LowRank.of(jnp.asarray(scale), default_rank(like.size))
    return metric.dense(like) if dense_mass else metric.diagonal()


def labels_of(blocks: Iterable[Block], z: Any, like: Array) -> Array:
    """Number of the block of each coordinate; those in none have blocks of their own."""
    indices = site_indices("dense_mass", blocks, z, like)
    labels = np.arange(like.size)
    for block in blocks:
        members = np.concatenate([indices[site] for site in block])
        labels[members] = members.min()
    return jnp.asarray(labels)


def assemble(given: Mapping[Block, Array], z: Any, like: Array) -> Array:
    """Covariance of all coordinates from those of blocks."""
    indices = site_indices("inverse_mass_matrix", given, z, like)
    covariance = jnp.eye(like.size, dtype=like.dtype)
    for block, value in given.items():
        members = np.concatenate([indices[site] for site in block])
        if value.shape not in ((members.size,), (members.size,) * 2):
            raise ValueError(
                f"inverse_mass_matrix[{block!r}] must have shape ({members.size},) or "
                f"({members.size}, {members.size}); got {value.shape}."
            )
        full = jnp.diag(value) if value.ndim == 1 else value
        covariance = covariance.at[np.ix_(members, members)].set(full.astype(like.dtype))
    return covariance


def site_indices(name: str, blocks: Iterable[Block], z: Any, like: Array) -> dict[str, np.ndarray]:
    """Places of each site in a raveled position; ValueError for a site that is not there."""
    named = [site for block in blocks for site in block]
    if not isinstance(z, Mapping):
        raise TypeError(
            f"{name} must be without site names if the position is not a dict; got {named}."
        )
    if unknown := sorted(set(named) - set(z)):
        raise ValueError(f"{name} names {unknown}; the latent sites are {sorted(z)}.")
    unravel = ravel_pytree({site: np.zeros(np.shape(z[site]), np.float32) for site in z})[1]
    with jax.ensure_compile_time_eval():
        places = unravel(jnp.arange(like.size, dtype=jnp.float32))
        return {site: np.ravel(value).astype(int) for site, value in places.items()}


class Tuning(NamedTuple):
    """Step size and metric of a kernel: where they begin, and how they are adapted.

    step_size, inverse_mass_matrix, adapt_step_size, adapt_mass_matrix, dense_mass
        As they were given.
    target
        Acceptance probability to adapt to, by the number of dimensions.
    longest_step
        No step size is longer.
    is_doubling
        Whether trajectories are doubled until they turn.
    takes_matrices
        Whether the algorithm is known to accept a full covariance.
    correlates_many
        Whether ``dense_mass=None`` means more than variances beyond 64 dimensions.
    """

    step_size: float
    inverse_mass_matrix: GivenMetric
    adapt_step_size: bool
    adapt_mass_matrix: bool
    dense_mass: DenseMass
    target: Function
    longest_step: float = math.inf
    is_doubling: bool = False
    takes_matrices: bool = True
    correlates_many: bool = False

    def plan(self, size: int, num_warmup: int = 0) -> Plan:
        """Plan of the adaptation in `size` dimensions; states know how long the warm-up is."""
        return Plan(
            num_warmup,
            self.target(size),
            self.adapt_step_size and size > 0,
            self.adapt_mass_matrix and size > 0,
            self.longest_step,
            self.is_doubling,
        )

    def metric(
        self,
        found: Factor | None,
        x: Array,
        unravel: Unravel,
        logdensity_fn: LogDensity | None = None,
    ) -> Factor:
        """The metric that a start has `found`, else the given one, in the structure asked for.

        By default that depends on what an evaluation of the density costs.
        """
        z, like, dense_mass = unravel(x[0]), x[0], self.dense_mass
        if dense_mass is None and not (self.adapt_mass_matrix and self.takes_matrices):
            dense_mass = False
        if dense_mass is None and like.size > windows.MANY and self.inverse_mass_matrix is None:
            flat = logdensity_fn and (lambda x: logdensity_fn(unravel(x)))
            is_full = self.correlates_many and is_covariance_cheap(flat, like)
            dense_mass = is_full or (self.correlates_many and "low_rank")
        if found is None:
            return initial_metric(self.inverse_mass_matrix, dense_mass, z, like)
        return in_structure(found, dense_mass, z, like)
