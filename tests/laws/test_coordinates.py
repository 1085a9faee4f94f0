"""Coordinates given pseudo-observations keep the target, and their laws find planted bugs."""

import jax
import jax.numpy as jnp
import pytest

from blackjax_ext.adaptation.in_coordinates import InCoordinates
from blackjax_ext.coordinates import maps
from blackjax_ext.coordinates.learning import Frame
from blackjax_ext.coordinates.partial import LawCoordinates
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.structures import Dense
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


def test_a_metric_goes_along_where_coordinates_change():
    coordinates.metric_of_other_coordinates()


OUT, STEP, LEVELS, SEEN = maps.out, InCoordinates.step, LawCoordinates.out, maps.seen


def determinant_dropped(law, pseudo, u):
    return OUT(law, pseudo, u)[0], jnp.zeros((), u.dtype)


def determinant_of_a_noise(law, pseudo, u):
    """As if nothing were observed."""
    return OUT(law, pseudo, u)[0], OUT(law, jax.tree.map(jnp.zeros_like, pseudo), u)[1]


def levels_in_one_round(self, u, pseudo):
    """Laws of the second level at the coordinates of the first."""
    return LEVELS(self, u, pseudo)._replace(
        position=jax.tree.map(
            lambda u, c, law: u if law is None else maps.out(law, c, u)[0],
            *(u, pseudo, self.at(u)),
        )
    )


def learned_after_the_warm_up(self, rng_key, state, step_size, metric, **supplied):
    """Coordinates that follow the chain."""
    is_low = state.position["w"] < 0
    pseudo = jax.tree.map(lambda c: jnp.where(is_low, 0.0, c), metric.pseudo)
    frame = Frame(metric.metric, pseudo)
    return STEP(self, rng_key, self.init(state.position, rng_key, frame), step_size, frame)


def own_law_not_taken_off(law, pseudo, u, gradient):
    effect, slope = SEEN(law, pseudo, u, gradient)
    return effect, slope - law.unslope(maps.noise(law, pseudo, u))


def scale_forgotten(law, pseudo, u, gradient):
    return SEEN(law, pseudo, u, gradient)[0], gradient


def unguarded(law, pseudo, x):
    return jnp.zeros((), x.dtype)


BUGS = {
    "widths alone": (
        *(Dense, "through", Factor.through),
        coordinates.metric_of_other_coordinates,
    ),
    "unguarded": (maps, "unresolved", unguarded, coordinates.rounding),
    "own law not taken off": (maps, "seen", own_law_not_taken_off, coordinates.learning_of_data),
    "scale forgotten": (maps, "seen", scale_forgotten, coordinates.learning_of_data),
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
        AssertionError, match=r"invariance|round trip|determinant|learning|rounding|metric"
    ):
        law()
