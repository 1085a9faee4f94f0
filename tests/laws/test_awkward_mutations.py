"""Planted bugs in what reads awkward data: each must be noticed by a cell of the table."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from blackjax_ext import families, potentials
from blackjax_ext.checks import check_positive
from blackjax_ext.subsampling import expanded_potential, newton, row_bounds, thinning
from blackjax_ext.subsampling.families import logits
from numpyro_fwd.bridge import information, prior_curvature
from numpyro_fwd.subsampling import predictors
from tests.laws import awkward

TRUE = {
    "read_site": predictors.read_site,
    "standardized": information.standardized,
    "binomial": predictors.READINGS[dist.BinomialLogits],
    "scaled_and_sizes": row_bounds.scaled_and_sizes,
}


# laws besides the cells


def shifts_of_logits_cost_nothing() -> None:
    """Three free logits are bounded like two beside a class of reference."""
    x, y = jnp.asarray(awkward.NORMAL[:90], jnp.float32), jnp.arange(90) % 3

    def expected(num_free):
        def logprior(theta):
            return -0.5 * jnp.sum(jnp.square(theta / 100.0))

        def predict(theta, x):
            logits = theta[0] + theta[1] * x
            return jnp.pad(logits, (3 - num_free, 0))

        rows = potentials.linear_predictor(
            logprior, families.categorical(), (x, y), predict_fn=predict
        )
        expanded = potentials.expand(rows, jnp.zeros((2, num_free)))
        return float(expanded.total)

    free, reference = expected(3), expected(2)
    assert free < 10 * reference, f"events: {free:.2g} for {reference:.2g}"


def rows_may_have_no_trials() -> None:
    """As many rows of a table of counts have."""
    families.binomial(np.array([0.0, 2.0]))


def one_location_is_that_of_all() -> None:
    """A normal vector with one number for its mean says of it what its covariance says."""
    covariance = np.array([[2.0, 0.6, 0.2], [0.6, 1.0, -0.3], [0.2, -0.3, 0.7]], np.float32)

    def model():
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        numpyro.sample("y", dist.MultivariateNormal(mean, covariance), obs=jnp.zeros(3))

    found = information.gauss_newton(model, (), {})({"mean": jnp.float32(0.3)})
    wanted = 0.25 + np.sum(np.linalg.inv(covariance))
    np.testing.assert_allclose(found, [[wanted]], rtol=1e-5, err_msg="metric")


# bugs


def weights_on_the_axis_of_events(reading, site, plate, share):
    """Weights of rows are broadcast to the last axis, that of the responses."""
    part = TRUE["read_site"](reading, {**site, "scale": None}, plate, share)
    if site["scale"] is None:
        return part
    weight = jnp.broadcast_to(site["scale"], part.weight.shape) * share
    return part._replace(weight=weight)


def loss_per_trial(eta, y, total_count):
    """A mean over the trials, of which there may be none."""
    return total_count * logits.logistic_loss(eta, 1.0, y / total_count)


def units_of_logits_with_their_mean(kind, order, radius, eta, tangents, part):
    """Logits are bounded by themselves, not by their differences."""
    found, sizes = TRUE["scaled_and_sizes"](kind, order, radius, eta, tangents, part)
    return (tangents if kind.norm else found), sizes


def curvature_at_the_place(d, u):
    """The prior's curvature where the chain is, which vanishes in the tail."""
    logdensity = prior_curvature.unconstrained_logdensity(d, u)
    return prior_curvature.curvatures_along_axes(logdensity, u[..., None])[0, 0]


def mask_forgotten(d, at, u, shape):
    """Masked values say as much as the others."""
    return information.broadcast_standardized(d.base_dist, at.base_dist, u, shape)


def location_of_the_first(d, at, u):
    """The location of a vector keeps the length 1 that it was given."""
    found = TRUE["standardized"](d, at, u)
    return [found[0][..., :1], *found[1:]] if isinstance(d, dist.MultivariateNormal) else found


def weights_of_the_last_axes(root, weight, num_axes):
    """Weights of log densities are broadcast to the axes of events."""
    return weight * root


def surrogate_by_position(expanded, x):
    """The quadratic form in the coordinates of the position."""
    (d,) = thinning.steps_to(expanded, x)
    quadratic = 0.5 * d @ (expanded.hessian @ d)
    return expanded.gradient @ d + quadratic - expanded.posterior.logprior(x)


class Mutation(NamedTuple):
    """What is planted where, the law that must notice, and what it says.

    plants
        Each an object, the name of an attribute or a key, and the bug.
    """

    plants: list[tuple[Any, Any, Any]]
    law: Callable[[], None]
    message: str


MUTATIONS = {
    "weights_of_events": Mutation(
        [(predictors, "read_site", weights_on_the_axis_of_events)],
        partial(awkward.sees, "amagold_subsampled", "weights_of_events"),
        "energy|gradient|bound|Incompatible types",  # the tails are looked at along sixteen rows
    ),
    "weights_of_events_in_the_metric": Mutation(
        [(information, "weighed", weights_of_the_last_axes)],
        partial(awkward.sees, "smmala_gauss_newton", "weights_of_events"),
        "Incompatible shapes",
    ),
    "no_trials": Mutation(
        [
            (
                predictors.READINGS,
                dist.BinomialLogits,
                replace(
                    TRUE["binomial"],
                    kind=lambda fn: replace(logits.BINOMIAL, loss=loss_per_trial),
                ),
            )
        ],
        partial(awkward.sees, "amagold_subsampled", "rows_without_trials"),
        "no finite density",
    ),
    "no_trials_refused": Mutation(
        [(logits, "check_not_negative", check_positive)], rows_may_have_no_trials, "total_count"
    ),
    "shifts_of_logits": Mutation(
        [(row_bounds, "scaled_and_sizes", units_of_logits_with_their_mean)],
        shifts_of_logits_cost_nothing,
        "events",
    ),
    "prior_at_the_place": Mutation(
        [
            (information, "MOVED_BY_PARAMETERS", ()),
            (prior_curvature, "scalar_curvature", curvature_at_the_place),
        ],
        partial(awkward.sees, "smmala_gauss_newton", "half_normals"),
        "metric",
    ),
    "mask_forgotten": Mutation(
        [(information, "masked", mask_forgotten)],
        partial(awkward.sees, "smmala_gauss_newton", "nan_response_behind_a_mask"),
        "metric",
    ),
    "location_not_broadcast": Mutation(
        [(information, "standardized", location_of_the_first)],
        one_location_is_that_of_all,
        "metric",
    ),
    "quadratic_form_by_position": Mutation(
        [(expanded_potential, "surrogate", surrogate_by_position)],
        partial(awkward.sees, "amagold_subsampled", "mean_of_1000_sds"),
        "energy",
    ),
    "saturated_start": Mutation(
        [(newton, "MAX_HALVINGS", 20)],
        partial(awkward.draws, "amagold_subsampled", "mean_of_1000_sds"),
        "no mode near the start",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bug_is_found(name, monkeypatch):
    mutation = MUTATIONS[name]
    for where, what, bug in mutation.plants:
        if isinstance(where, dict):
            monkeypatch.setitem(where, what, bug)
        else:
            monkeypatch.setattr(where, what, bug)
    with pytest.raises(Exception, match=mutation.message):
        mutation.law()


# cells of the table hold without bugs in test_awkward.py
@pytest.mark.parametrize(
    "law", [shifts_of_logits_cost_nothing, rows_may_have_no_trials, one_location_is_that_of_all]
)
def test_law_holds_without_the_bug(law):
    law()
