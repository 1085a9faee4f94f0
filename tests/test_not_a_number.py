"""A check that compares with NaN has failed: none of them passes, or is silent, by a comparison."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import precision
from blackjax_ext.adaptation import report
from blackjax_ext.coordinates import laws, maps, partial
from blackjax_ext.smc.cooled import missed_evidence
from numpyro_fwd.bridge import priors, separate_rows, starts
from numpyro_fwd.kernels import other_modes, smc_state, subsampled_rows
from numpyro_fwd.partial_bayes import diagnostics

NAN = float("nan")
HEALTHY = report.Health(
    is_frozen=np.zeros(2, bool),
    share_moved=np.ones(2),
    rate=np.full(2, 0.6),
    num_steps=np.array(200),
    jump=np.array(1.0),
    num_effective=np.array(100.0),
    step_size=np.array(0.5),
    spread=np.zeros(1),
    means=np.array([[0.0], [0.01]]),
    variances=np.ones(1),
    reach=np.array(3.0),
    logdensity=np.array(-3.0),
)


def warns(function, *arguments, **options):
    """Whether a function warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*arguments, **options)
    return bool(caught)


def health(**facts):
    """Whether a warm-up with this diagnostic is said to be bad."""
    return bool(report.is_bad(HEALTHY._replace(**facts)))


def hidden(value):
    """Whether a coordinate is said to be hidden of which the rounding is this."""
    law, pseudo = laws.LocScale(jnp.zeros(1), jnp.array([value])), laws.Pseudo(jnp.zeros(1), 1.0)
    return int(partial.coarsest(partial.Placed(jnp.ones(1), jnp.zeros(()), law), pseudo)) == 0


def resolved(value):
    """Whether a place has a density where the scale is this."""
    law, pseudo = laws.LocScale(jnp.zeros(1), jnp.array([value])), laws.Pseudo(jnp.zeros(1), 1.0)
    return bool(maps.unresolved(law, pseudo, jnp.ones(1)) == 0.0)


def population(**facts):
    """Whether a population with this fact is complained of."""
    good = {"least_ess": 80.0, "is_forced": False, "genealogical_ess": 50.0, "log_evidence": -3.0}
    good |= {"mixed_ancestors": 50.0, "log_evidence_error": 0.1, "remembered": 0.1} | facts
    state = SimpleNamespace(
        ancestors=np.arange(100),
        schedule=SimpleNamespace(
            remembered=jnp.full((1, 9), good.pop("remembered")), num_temperatures=jnp.array([5])
        ),
        **{k: jnp.array([v]) for k, v in good.items()},
    )
    options = {"is_adjusted": True, "share": 0.9, "missed": list}
    return warns(smc_state.warn_of_annealing, state, 1000, **options)


def lost(least_ess, loglikelihood):
    """Whether a population is lost."""
    inner = SimpleNamespace(
        log_weights=jnp.zeros(100),
        local=SimpleNamespace(loglikelihood=jnp.zeros(100)),
        temperature=jnp.array(loglikelihood),
    )
    return bool(smc_state.is_collapsed(jnp.array(least_ess), inner))


def products(value, monkeypatch):
    """Whether coarse products are warned of that make an energy this."""
    monkeypatch.setattr(precision, "are_coarse_here", lambda: True)
    found = iter([jnp.array([0.0, value]), jnp.array([0.0, 1.0])])
    monkeypatch.setattr(precision, "exact_products", lambda function: function)
    return warns(starts.check_products, lambda: next(found))


def training(loss):
    """Whether a training is said to have diverged whose observed values are so many."""
    result = SimpleNamespace(losses=jnp.zeros(40))
    return bool(diagnostics.diverged(result, loss))


def place(evidence):
    """Whether a mode of this log evidence is kept beside another."""
    first, far = (
        other_modes.Place(np.full(1, x), np.ones(1), 0.0, SimpleNamespace(), e)
        for x, e in ((0.0, 0.0), (100.0, evidence))
    )
    return len(other_modes.that_matter([first, far], 11.0)) == 2


# each is true of a failure: of NaN, and not of a number that is fine
CHECKS = {
    "coordinates apart": (lambda x: health(spread=np.array([x])), 0.0),
    "chains that disagree": (lambda x: health(means=np.array([[0.0], [x]])), 0.01),
    "chains that ran away": (lambda x: health(reach=np.array(x)), 3.0),
    "collapsed steps": (lambda x: health(jump=np.array(x), num_effective=np.array(x)), 10.0),
    "an effect that rounding hides": (hidden, 1.0),
    "a place without digits": (lambda x: not resolved(x), 1.0),
    "the least effective sample size": (lambda x: population(least_ess=x), 80.0),
    "ancestors": (lambda x: population(genealogical_ess=x), 50.0),
    "ancestors if mixed": (lambda x: population(mixed_ancestors=x), 50.0),
    "what moves remember": (lambda x: population(remembered=x), 0.1),
    "the log evidence": (lambda x: population(log_evidence=x), -3.0),
    "a lost population": (lambda x: lost(x, 1.0), 50.0),
    "a rough likelihood": (lambda x: lost(50.0, x), 1.0),
    "a training": (training, 10.0),
    "another mode": (place, -100.0),
    "equal draws of the prior": (lambda x: is_tied(x), 0.0),
    "lighter tails": (lambda x: warns(subsampled_rows.warn_if_light, jnp.array(x)), 0.0),
    "many rows": (lambda x: warns(subsampled_rows.warn_if_many, jnp.array(x), 10), 1.0),
    "rows with others": (lambda x: separate_rows.differ(np.ones(2), np.array([1.0, x])), 1.0),
    "rows in minibatches": (
        lambda x: separate_rows.has_changed(np.ones(2), np.ones(2), np.array([1.0, x])),
        1.0,
    ),
}


def is_tied(share):
    """Whether draws of the prior are warned of, so many of which are equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priors, "shares_of_ties", lambda z: {"x": share})
        return warns(priors.warn_of_ties, {"x": jnp.arange(3.0)})


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_not_a_number_fails_the_check(name):
    check, fine = CHECKS[name]
    assert check(NAN)
    assert not check(fine)


def test_coarse_products_that_make_nan(monkeypatch):
    assert products(NAN, monkeypatch)
    assert not products(1.0, monkeypatch)


def test_rows_that_are_the_same_without_a_density():
    """What is infinite or NaN with every set of rows is of another error."""
    for value in (NAN, -np.inf):
        values = np.array([1.0, value])
        assert not separate_rows.differ(values, values)


def test_a_spread_that_is_not_a_number():
    """Where the metric is lost, chains that are apart are said to be."""
    facts = HEALTHY._replace(spread=np.array([NAN]))
    assert "do not mix" in report.places_message(facts, (("x", 1),))


def test_weights_that_are_not_numbers_weigh_nothing():
    assert missed_evidence(1.0, np.full(10, NAN)) == -np.inf
    assert jax.numpy.isfinite(missed_evidence(0.5, np.full(10, NAN)))
