r"""Whether a posterior has the tails of the expansion that drives its trajectories.

Trajectories of :func:`blackjax_ext.subsampling.expanded_potential.expanded_minibatch` without
minibatches follow the expansion of the rows at the anchor, which is quadratic. Where
rows say little, as ten of them do, or one event among a thousand, the likelihood flattens away from
the mode: the posterior has more mass in a tail than such trajectories propose. The test is exact,
and the chain leaves the posterior invariant; it visits that tail so rarely that a run may not.

With the remainders :math:`r_i` of the energy, the log density at w is above that of the expansion
by :math:`-\sum r_i(w)`. :func:`tail_gap` looks at four standard deviations along the coordinates of
the metric, and along the predictors of rows that matter; its greatest value is the logarithm of how
often too seldom such a place is proposed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import PRNGKey
from jax import Array

from blackjax_ext.meshes import on_host
from blackjax_ext.subsampling import alias_table
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.passes import jacobians
from blackjax_ext.subsampling.remainders import loss_remainders

DISTANCE = 4.0  # standard deviations
MAX_GAP = 3.0  # a gap from which on tails are missed
# rows that tell; where there are more, these are drawn in proportion to bounds
NUM_ROWS_COMPARED = 4096


def may_differ(expansion: Expansion) -> bool:
    """Whether the bounds of the rows leave room for a gap of `MAX_GAP`. Cost: nothing."""
    most = float(on_host(expansion.totals).sum()) * DISTANCE ** (expansion.order + 1)
    return not most <= MAX_GAP  # not if NaN either


def tail_gap(rng_key: PRNGKey, expansion: Expansion) -> Array:
    """How far the log density is above the expansion at the worst of some places, a scalar.

    Of more than 4,096 rows it is estimated, less two standard errors. Cost: that many rows, their
    remainders at two places for each coordinate and each predictor of sixteen rows.
    """
    key_rows, key_seen = jax.random.split(rng_key)
    directions = jnp.concatenate(
        [jnp.eye(len(expansion.frame.root)), seen_by_rows(key_seen, expansion)]
    )
    ends = DISTANCE * jnp.concatenate([directions, -directions])
    assert expansion.metric is not None
    steps = jax.vmap(expansion.metric.inverse_sqrt_times)(ends)
    if expansion.num_rows <= NUM_ROWS_COMPARED:
        rows = jnp.arange(expansion.num_rows)
        return jnp.max(-jnp.sum(loss_remainders(expansion, steps, rows), axis=1))
    rows = alias_table.draw(key_rows, expansion.table, (NUM_ROWS_COMPARED,))
    weight = expansion.total / expansion.bound[rows]
    terms = -weight * loss_remainders(expansion, steps, rows)
    error = jnp.std(terms, axis=1) / np.sqrt(NUM_ROWS_COMPARED)
    return jnp.max(jnp.mean(terms, axis=1) - 2.0 * error)


def seen_by_rows(rng_key: PRNGKey, expansion: Expansion) -> Array:
    """Unit vectors along the predictors of rows drawn in proportion to their bounds, (m, D)."""
    num_seen = 16
    if expansion.num_rows <= num_seen:
        rows = jnp.arange(expansion.num_rows)
    else:
        rows = alias_table.draw(rng_key, expansion.table, (num_seen,))
    matrix = jacobians(expansion.grouped, expansion.position, rows) @ expansion.frame.root
    along: Array = matrix.reshape(-1, matrix.shape[-1])
    length = jnp.linalg.norm(along, axis=1, keepdims=True)
    return along / jnp.where(length > 0, length, 1.0)
