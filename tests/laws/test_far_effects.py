"""Effects whose scale goes below the last digit of their location, wherever coordinates are."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import interweaving
from blackjax_ext.mcmc.interweaving import LocScaleHierarchy, chart_of
from tests.laws import far_effects
from tests.laws.far_effects import Layout


@pytest.mark.parametrize(
    "layout",
    [Layout("abc", 3, 1), Layout("bca", 4, 4), Layout("ba", 1, 0)],
    ids=lambda layout: layout.names,
)
def test_chains_stay_in_equilibrium(layout):
    """One more layout is among the planted bugs."""
    hidden = far_effects.stays(layout)
    assert 0.05 < np.mean(hidden >= 0) < 0.5


def hidden_at(layout, scales, dtype):
    """What rounding hides if effects are held one by one, and if none is; and their places."""
    rng, effect = np.random.default_rng(1), layout.names[0]
    starts = [layout.draw(rng, 1, np.log(scale)) for scale in scales]
    starts = jax.tree.map(lambda *leaves: jnp.concatenate(leaves).astype(dtype), *starts)
    first = jax.tree.map(lambda leaf: leaf[0], starts)
    x, unravel = ravel_pytree(first)
    places, _ = ravel_pytree({name: jnp.full_like(first[name], name == effect) for name in first})
    places = np.flatnonzero(places)
    held = jnp.eye(x.size, dtype=bool)[np.append(places, 0)].at[-1].set(False)

    def one(start, is_noise):
        chart = chart_of(LocScaleHierarchy(layout.laws), unravel, is_noise, x.dtype)
        return interweaving.hidden(chart, ravel_pytree(start)[0])

    found = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(starts, held)
    return found.tolist(), [*places.tolist(), -1]


ORDERS = ["".join(names) for names in permutations("abc")]


@pytest.mark.parametrize("num_effects", range(1, 9))
@pytest.mark.parametrize("is_own", [True, False])
def test_every_effect_is_hidden_in_every_layout(num_effects, is_own):
    """At a thousand the last digit of float32 is 1e-4, and that of float64 1e-13."""
    for order in ORDERS[num_effects % 2 :: 2] if is_own else ORDERS[num_effects % 6 :][:1]:
        layout = Layout(order, num_effects, num_effects if is_own else 1)
        found, places = hidden_at(layout, (1e-3, 0.1), "float32")
        assert found == [places, [-1] * len(places)], layout
    with jax.enable_x64(True):
        found, places = hidden_at(layout, (1e-12, 1e-3), "float64")
        assert found == [places, [-1] * len(places)], layout
