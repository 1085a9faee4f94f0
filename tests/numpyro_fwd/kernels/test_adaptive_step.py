"""Kernels whose steps adapt to the place."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

from blackjax_ext.adaptation import report
from numpyro_fwd import AutoMALA

pytestmark = pytest.mark.long


def funnel():
    w = numpyro.sample("w", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(w / 2)).expand([4]).to_event(1))


@pytest.mark.parametrize("learn_coordinates", [True, False])
def test_the_neck_of_a_funnel_is_visited(learn_coordinates):
    """Where effects are sampled as they are written, steps are shorter there."""
    mcmc = MCMC(
        AutoMALA(funnel, learn_coordinates=learn_coordinates),
        num_warmup=1000,
        num_samples=8000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), extra_fields=("num_steps", "inner.exponent"))
    w, fields = mcmc.get_samples()["w"], mcmc.get_extra_fields()
    low, high = (fields["inner.exponent"][mask].mean() for mask in (w < -3, w > 0))
    if learn_coordinates:
        assert abs(np.mean(w < -3) - 0.159) < 0.03
        assert fields["num_steps"].mean() < 1.2 and abs(low - high) < 0.1
    else:
        assert fields["num_steps"].mean() < 4 and low < high - 0.5


def far(loc, log_scale=-4.0):
    """Effects whose scales go down to 1e-5 or so."""
    w = numpyro.sample("w", dist.Normal(log_scale, 3))
    with numpyro.plate("groups", 3):
        m = numpyro.sample("m", dist.Normal(loc, 10))
        numpyro.sample("x", dist.Normal(m, jnp.exp(w)))


def words_of(model, *args, num_samples=400, **options):
    """What a run warns of."""
    kernel = AutoMALA(model, warm_start=False, adapt_step_size=False, step_size=0.3)
    mcmc = MCMC(kernel, num_warmup=100, num_samples=num_samples, progress_bar=False, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        init = {"w": 0.0, "m": jnp.full(3, args[0]), "x": jnp.full(3, args[0])} if args else None
        if init and mcmc.num_chains > 1:
            init = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * mcmc.num_chains), init)
        mcmc.run(jax.random.key(0), *args, init_params=init)
    return [str(w.message) for w in caught if "rounding hides" in str(w.message)]


@pytest.mark.parametrize(
    "method, name, number",
    [("vectorized", r"chain \d of 2 \(counted from 0\)", 1), ("sequential", "a chain", 2)],
)
def test_a_run_says_what_rounding_hides(method, name, number):
    """The neck, P(w < -6) = 0.25, is missing from all chains, which agree."""
    message, *others = words_of(far, 1000.0, num_chains=2, chain_method=method)
    assert len(others) < number
    assert re.match(
        rf"rounding hides scales of x: {name} met them in \d+ of 400 steps\. x has values near "
        r"(1e\+03|9\.\de\+02), where float32 numbers are (1e-04|6e-05) apart, so that scales below "
        r"about 0\.01 cannot be sampled together with x, nor shapes above about 5e\+05 of a ",
        message,
    )
    for way_out in ("enable_x64", "subtract a constant", "LocScaleReparam"):
        assert way_out in message
    assert "AutoMALA" not in message  # the advice of chains that do not move


def test_nothing_is_said_where_nothing_is_hidden():
    assert words_of(far, 0.0, 2.0) == []
    with jax.enable_x64(True):
        assert words_of(far, 1000.0) == []


def test_one_chain_that_meets_little_says_nothing():
    hidden = report.Hidden.first(jnp.ones((2, 3)))
    place, x = jnp.array([1, -1]), jnp.array([[1.0, -7.0, 1.0], [1.0, 1.0, 1.0]])
    for step in range(-3, 1):  # of the warm-up
        hidden = hidden.having(place, x, jnp.asarray(step))
    assert hidden.num_hidden.tolist() == [0, 0] and hidden.num_steps == 0
    for step in range(1, 7):
        assert not hidden.is_many.any()
        hidden = hidden.having(place, x, jnp.asarray(step))
    assert hidden.is_many.tolist() == [True, False]
    assert hidden.size[0] == 7 and hidden.place[0] == 1
    assert not hidden._replace(num_steps=2000).is_many.any()
