"""Reaches of moves: at least what the steepest remainder changes by, and little more."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackjax_ext.subsampling import remainders

# what Cauchy and Schwarz's inequality may add, by order: on a line through w = 0
MOST = {2: 1.0, 3: 4.0 / np.sqrt(15.0)}
ROUNDING = 1e-4


def in_groups(order, num_groups, num_rows=1e9):
    """What a reach needs of an expansion whose bounds hold everywhere and are always cheap."""
    return SimpleNamespace(
        order=order,
        num_seen=2,
        totals=jnp.ones(num_groups),
        sizes=jnp.full(num_groups, num_rows),
        radius=jnp.inf,
    )


def exact_reach(order, old, new):
    r"""In double precision the lesser of :math:`|w|^{k+1} + |w^*|^{k+1}` and the way.

    The way is :math:`(k + 1) |w^* - w| \int_0^1 |w + t (w^* - w)|^k dt`, by Gauss's rule.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = 0.5 * (nodes + 1.0)[:, None, None]
    sizes = np.linalg.norm(old + t * (new - old), axis=-1)
    mean = 0.5 * (weights[:, None] * sizes**order).sum(axis=0)
    way = (order + 1) * np.linalg.norm(new - old, axis=-1) * mean
    apart = sum(np.linalg.norm(end, axis=-1) ** (order + 1) for end in (old, new))
    return np.minimum(apart, way)


def ratios(order, seed, scale, length, num_groups=5):
    """Reaches over exact ones of a move in u, of three coordinates of which rows see two, and v."""
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=3), rng.normal(size=(num_groups, 2))
    ends = [
        tuple(np.float32(scale * (x + step * rng.normal(size=x.shape))) for x in (u, v))
        for step in (0.0, length)
    ]
    move = remainders.MoveEnds.of(in_groups(order, num_groups), *ends)
    found = remainders.reaches_of(in_groups(order, num_groups), move)
    assert not found.is_far.any()
    seen = [
        np.concatenate([np.broadcast_to(u[:2], (num_groups, 2)), v], axis=1).astype(float)
        for u, v in ends
    ]
    return np.asarray(found.reach, float) / exact_reach(order, *seen)


def check_reaches(order, seed, scale, length):
    """The law."""
    ratio = ratios(order, seed, scale, length)
    assert (ratio >= 1.0 - ROUNDING).all(), ratio
    assert (ratio <= MOST[order] + ROUNDING).all(), ratio


@pytest.mark.long
@pytest.mark.parametrize("order", [2, 3])
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-3, 0.3, 1.0, 3.0]),
    length=st.sampled_from([1e-5, 1e-3, 0.1, 1.0, 10.0]),
)
def test_a_reach_is_what_the_steepest_remainder_changes_by(order, seed, scale, length):
    check_reaches(order, seed, scale, length)


def step_as_a_difference_of_squares(expansion, old, new, exact=remainders.MoveEnds.of):
    """What has no digits where a move is short."""
    move = exact(expansion, old, new)
    return move._replace(step=jnp.maximum(move.old - 2.0 * move.inner + move.new, 0.0))


def step_of_all_coordinates(expansion, old, new, exact=remainders.MoveEnds.of):
    """Also of those that no row sees."""
    move = exact(expansion, old, new)
    return move._replace(step=move.step + (new[0][2] - old[0][2]) ** 2)


def way_of_the_nearer_end(expansion, ends, exact=remainders.reaches_of):
    """A bound that the farther one breaks."""
    least = jnp.minimum(ends.old, ends.new)
    return exact(expansion, ends._replace(old=least, new=least))


BUGS = {
    "difference": ("MoveEnds", "of", step_as_a_difference_of_squares),
    "unseen": ("MoveEnds", "of", step_of_all_coordinates),
    "nearer": (None, "reaches_of", way_of_the_nearer_end),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name, monkeypatch):
    holder, attribute, bug = BUGS[name]
    monkeypatch.setattr(getattr(remainders, holder) if holder else remainders, attribute, bug)
    with pytest.raises(AssertionError):
        for order in (2, 3):
            for length in (1e-5, 1e-3, 0.1, 1.0):
                check_reaches(order, 0, 1.0, length)
