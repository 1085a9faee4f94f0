"""Special cases in which one sampler is another one, or a textbook formula."""

import jax.numpy as jnp
import pytest

from tests.laws import reductions
from tests.laws.samplers import ROWS

pytestmark = pytest.mark.usefixtures("x64")

PLAIN = [name for name, row in ROWS.items() if not row.dense]


@pytest.mark.parametrize("name", reductions.FULL_FRAMES)
def test_full_frame_is_langevin(name):
    reductions.full_frame_is_langevin(*reductions.FULL_FRAMES[name])


@pytest.mark.parametrize("algorithm", ["fmala", "line_fmala"])
def test_full_frame_with_a_preconditioner_is_preconditioned_mala(algorithm):
    covariance = reductions.COVARIANCE
    reductions.full_frame_is_langevin(algorithm, {}, lambda x: covariance, jnp.asarray(covariance))


def test_full_frame_with_a_preconditioner_has_the_whitened_hessian():
    reductions.full_frame_is_langevin(
        "pc_line_fmala",
        {"curvature_floor": reductions.FLOOR},
        reductions.preconditioned_absolute_inverse,
        jnp.asarray(reductions.COVARIANCE),
    )


@pytest.mark.parametrize("name", ["fmala", "fmala_sphere", "fmala_fresh", "line", "line_sphere"])
def test_full_frame_is_blackjax_mala(name):
    algorithm, arguments, _ = reductions.FULL_FRAMES[name]
    reductions.full_frame_is_blackjax_mala(algorithm, arguments)


def test_mala_is_blackjax_mala():
    reductions.mala_is_blackjax_mala()


def test_random_walk_is_blackjax_random_walk():
    reductions.random_walk_is_blackjax_random_walk()


@pytest.mark.parametrize("row", PLAIN)
@pytest.mark.parametrize("diagonal", [False, True])
def test_preconditioner_is_whitening(row, diagonal):
    reductions.preconditioner_is_whitening(row, diagonal)


@pytest.mark.parametrize(
    ("curved", "plain", "arguments"),
    [
        ("pc_fmala", "fmala", {}),
        ("pc_fmala", "fmala", {"persistent_tangent": False, "tangents": "sphere"}),
        ("pc_line_fmala", "line_fmala", {}),
        ("pc_line_fmala", "line_fmala", {"tangents": "sphere"}),
    ],
)
def test_unit_curvature_is_no_curvature(curved, plain, arguments):
    reductions.unit_curvature_is_no_curvature(curved, plain, arguments)
