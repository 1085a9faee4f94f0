"""Partly centred coordinates keep the target, and the laws that say so find planted bugs."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from blackjax_ext.adaptation.in_coordinates import InCoordinates
from blackjax_ext.coordinates import laws as maps
from blackjax_ext.coordinates.partial import Frame, LawCoordinates
from tests.laws import coordinates, laws


@pytest.mark.statistical
def test_chains_in_equilibrium_stay_there():
    laws.power(coordinates.invariance())


def test_what_is_learned():
    coordinates.learning_of_data()


@pytest.mark.parametrize("is_noise", [False, True], ids=["effects", "noise"])
def test_rounding_makes_no_place_for_a_chain_to_stay_in(is_noise):
    coordinates.rounding(is_noise)


def test_coordinates_lead_back_to_the_position():
    coordinates.round_trip()


OUT, STEP, LEVELS = maps.out, InCoordinates.step, LawCoordinates.out


def determinant_dropped(law, c, u):
    return OUT(law, c, u)[0], jnp.zeros((), u.dtype)


def determinant_of_a_noise(law, c, u):
    """As if each effect were not centred at all."""
    return OUT(law, c, u)[0], OUT(law, 0 * c, u)[1]


def levels_in_one_round(self, u, centredness):
    """Laws of the second level at the coordinates of the first."""
    return LEVELS(self, u, centredness)._replace(
        position=jax.tree.map(
            lambda u, c, law: u if law is None else maps.out(law, c, u)[0],
            *(u, centredness, self.at(u)),
        )
    )


def learned_after_the_warm_up(self, rng_key, state, step_size, metric, **supplied):
    """Coordinates that follow the chain."""
    is_low = state.position["w"] < 0
    centredness = jax.tree.map(lambda c: jnp.where(is_low, 0.0, c), metric.centredness)
    frame = Frame(metric.metric, centredness)
    return STEP(self, rng_key, self.init(state.position, rng_key, frame), step_size, frame)


def gradient_not_pulled_back(law, c, new, gradient):
    return gradient


def unguarded(law, c, x):
    return jnp.zeros((), x.dtype)


BUGS = {
    "noise unguarded": (maps, "unresolved", unguarded, partial(coordinates.rounding, True)),
    "unguarded": (maps, "unresolved", unguarded, coordinates.rounding),
    "gradient not pulled": (
        *(maps, "pulled", gradient_not_pulled_back),
        coordinates.learning_of_data,
    ),
    "determinant dropped": (maps, "out", determinant_dropped, coordinates.invariance),
    "determinant of a noise": (maps, "out", determinant_of_a_noise, coordinates.invariance),
    "levels in one round": (LawCoordinates, "out", levels_in_one_round, coordinates.round_trip),
    "learned on": (InCoordinates, "step", learned_after_the_warm_up, coordinates.invariance),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(name, monkeypatch):
    owner, attribute, bug, law = BUGS[name]
    monkeypatch.setattr(owner, attribute, bug)
    with pytest.raises(
        AssertionError, match=r"invariance|round trip|determinant|learning|rounding"
    ):
        law()
