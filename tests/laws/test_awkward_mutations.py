"""Planted bugs in what reads awkward data: each must be noticed by a cell of the table."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from blackjax_ext import families, potentials
from blackjax_ext.checks import check_positive
from blackjax_ext.rows import newton
from blackjax_ext.subsampling import row_bounds, row_tests
from blackjax_ext.subsampling.families import logits
from numpyro_fwd.subsampling import predictors
from tests.laws import awkward

TRUE = {
    "read_site": predictors.read_site,
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


def surrogate_by_position(expanded, x):
    """The quadratic form in the coordinates of the position."""
    (d,) = row_tests.steps_to(expanded, x)
    inverse, arrow = expanded.frame.root_inverse, expanded.arrow
    hessian = inverse.T @ arrow.of_shared @ inverse
    slope = (arrow.shared @ inverse) @ d
    return slope + 0.5 * d @ (hessian @ d) - expanded.posterior.logprior(x)


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
    "quadratic_form_by_position": Mutation(
        [(row_tests, "surrogate", surrogate_by_position)],
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
@pytest.mark.parametrize("law", [shifts_of_logits_cost_nothing, rows_may_have_no_trials])
def test_law_holds_without_the_bug(law):
    law()
