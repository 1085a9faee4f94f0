"""Special cases in which one sampler is another one, or a textbook formula."""

import jax.numpy as jnp
import pytest

from blackjax_ext import metrics
from tests.laws import reductions
from tests.laws.samplers import CASES

pytestmark = pytest.mark.usefixtures("x64")

PLAIN = [name for name, case in CASES.items() if not case.dense]
# an information is a function of x, not of the density: it knows nothing of whitened coordinates
# a metric of one's own and an emulator are functions of the coordinates that they are given in
EQUIVARIANT = [name for name in PLAIN if not name.endswith("_fisher") and "emulated" not in name]


@pytest.mark.first
@pytest.mark.statistical
@pytest.mark.parametrize("name", reductions.FULL_FRAMES)
def test_full_frame_is_langevin(name):
    reductions.full_frame_is_langevin(*reductions.FULL_FRAMES[name])


@pytest.mark.statistical
@pytest.mark.parametrize("algorithm", ["fmala", "line_fmala"])
def test_full_frame_with_a_preconditioner_is_preconditioned_mala(algorithm):
    covariance = reductions.COVARIANCE
    reductions.full_frame_is_langevin(algorithm, {}, lambda x: covariance, jnp.asarray(covariance))


@pytest.mark.statistical
def test_full_frame_with_a_preconditioner_has_the_whitened_hessian():
    reductions.full_frame_is_langevin(
        "pc_line_fmala",
        {"curvature_floor": reductions.FLOOR},
        reductions.preconditioned_absolute_inverse,
        jnp.asarray(reductions.COVARIANCE),
    )


@pytest.mark.first
@pytest.mark.parametrize("name", ["fmala", "fmala_sphere", "fmala_fresh", "line", "line_sphere"])
def test_full_frame_is_blackjax_mala(name):
    algorithm, arguments, _ = reductions.FULL_FRAMES[name]
    reductions.full_frame_is_blackjax_mala(algorithm, arguments)


def test_mala_is_blackjax_mala():
    reductions.mala_is_blackjax_mala()


def test_random_walk_is_blackjax_random_walk():
    reductions.random_walk_is_blackjax_random_walk()


@pytest.mark.first
@pytest.mark.parametrize(
    ("case", "diagonal"), [(case, i % 2 == 0) for i, case in enumerate(EQUIVARIANT)]
)
def test_preconditioner_is_whitening(case, diagonal):
    reductions.preconditioner_is_whitening(case, diagonal)


@pytest.mark.statistical
@pytest.mark.parametrize("name", reductions.METRICS)
def test_metric_is_langevin(name):
    reductions.metric_is_langevin(name)


@pytest.mark.statistical
def test_information_does_not_depend_on_the_preconditioner():
    algorithm, arguments, covariance_fn = reductions.METRICS["fisher"]
    metric = jnp.asarray(reductions.COVARIANCE)
    reductions.is_langevin(algorithm, arguments, covariance_fn, metric)


@pytest.mark.statistical
def test_metric_with_a_preconditioner_is_the_whitened_hessian():
    reductions.metric_is_langevin("hp_mala", dense=True)


@pytest.mark.first
@pytest.mark.statistical
@pytest.mark.parametrize(
    "metric_fn",
    [
        metrics.softabs_hessian(2.0),
        metrics.diagonal_hessian(0.3),
        metrics.absolute_hessian(0.3),
        metrics.fisher(reductions.information),
    ],
)
def test_curvature_terms_are_the_divergence_of_the_inverse_metric(metric_fn):
    reductions.curved_is_langevin(metric_fn)


def test_infinite_floor_is_mala():
    reductions.infinite_floor_is_mala()


def test_never_refreshed_is_mala():
    reductions.never_refreshed_is_mala()


@pytest.mark.parametrize("algorithm", ["alsmmala", "amsmmala"])
def test_always_refreshed_is_smmala(algorithm):
    reductions.always_refreshed_is_smmala(algorithm)


@pytest.mark.first
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
