"""NUTS in coordinates that the warm-up learns, and any algorithm in them."""

import pickle
import warnings
from functools import cache

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density

import blackjax_ext
from numpyro_fwd import (
    AMAGOLD,
    AutoNUTS,
    BlackJAXKernel,
    Centredness,
    Until,
    reparam_config,
    sample_to,
)

pytestmark = pytest.mark.long

SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])


def schools(y=Y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, SIGMA).to_event(1), obs=y)


def mcmc_of(kernel, num_warmup=300, num_samples=200, num_chains=4, chain_method="vectorized"):
    return MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=chain_method,
        progress_bar=False,
    )


FIELDS = ("num_steps", "energy", "tree_depth", "diverging", "potential_energy", "accept_prob")


@cache
def sampled():
    """A run from defaults, looked at by many tests."""
    mcmc = mcmc_of(AutoNUTS(schools), 1000, 2000)
    mcmc.run(jax.random.key(0), Y, extra_fields=FIELDS)
    return mcmc


def far(mean):
    """Effects about locations of their own, near `mean`; no data."""
    w = numpyro.sample("w", dist.Normal(-4, 3))
    mu = numpyro.sample("mu", dist.Normal(mean, 10.0).expand([4]).to_event(1))
    numpyro.sample("effect", dist.Normal(mu, jnp.exp(w)).expand([4]).to_event(1))


def test_scales_below_the_last_digit_are_said():
    """Far from zero a part of the posterior is not there in float32."""
    mcmc = mcmc_of(AutoNUTS(far), 500, 500)
    with pytest.warns(UserWarning, match="rounding hides scales of effect"):
        mcmc.run(jax.random.key(0), 1000.0)


def test_the_neck_of_the_eight_schools_is_right_from_defaults():
    tau = np.asarray(sampled().get_samples(group_by_chain=True)["tau"], float)
    is_low = (tau < 1).astype(float)
    ess = numpyro.diagnostics.effective_sample_size(is_low)
    assert ess > 800
    assert abs(is_low.mean() - 0.200) < 4 * np.sqrt(0.16 / ess)


def test_extra_fields_are_those_of_nuts_of_numpyro():
    fields = sampled().get_extra_fields()
    assert (fields["num_steps"] >= 1).all() and fields["num_steps"].max() > 3
    assert fields["tree_depth"].max() <= 10
    assert (fields["num_steps"] < 2 ** (fields["tree_depth"] + 1)).all()
    assert np.isfinite(fields["energy"]).all()
    theirs = mcmc_of(NUTS(schools), 10, 10)
    theirs.run(jax.random.key(0), Y, extra_fields=[f for f in FIELDS if f != "tree_depth"])
    for name, value in theirs.get_extra_fields().items():
        assert value.dtype == fields[name].dtype, name


def test_the_potential_energy_is_that_of_the_draws_and_not_of_the_coordinates():
    mcmc = sampled()
    found = mcmc.get_samples()
    for i in (0, 77, 500):
        one = {name: value[i] for name, value in found.items()}
        expected = -log_density(schools, (Y,), {}, one)[0] - jnp.log(one["tau"])
        np.testing.assert_allclose(mcmc.get_extra_fields()["potential_energy"][i], expected, 1e-4)


def test_what_was_learned_is_told():
    mcmc = sampled()
    found = mcmc.sampler.centredness(mcmc)
    assert isinstance(found, Centredness) and list(found) == ["theta"]
    assert found["theta"].shape == (8,) and (found["theta"] <= 0.25).all()
    assert "median" in str(found) and "theta" in str(found)
    config = reparam_config(mcmc)
    assert isinstance(config["theta"], LocScaleReparam)
    again = mcmc_of(NUTS(numpyro.handlers.reparam(schools, config=config)), 20, 10, 1)
    again.run(jax.random.key(1), Y)
    assert np.isfinite(again.get_samples()["theta"]).all()


def test_the_density_of_the_coordinates_is_that_of_the_model():
    """Written out: a normal effect given a normal pseudo-observation."""
    mcmc = sampled()
    state = jax.tree.map(lambda leaf: leaf[0], mcmc.last_state.inner)
    learned = mcmc.last_state.adapt_state.coordinates
    value, w = learned.pseudo["theta"]
    u = state.coordinates
    tau = jnp.exp(u["tau"])
    variance = 1 / (1 / tau**2 + w)
    theta = variance * (u["mu"] / tau**2 + w * value) + jnp.sqrt(variance) * u["theta"]
    values = {"mu": u["mu"], "tau": tau, "theta": theta}
    expected = log_density(schools, (Y,), {}, values)[0] + u["tau"] + 0.5 * jnp.log(variance).sum()
    np.testing.assert_allclose(state.chain.logdensity, expected, rtol=1e-4)
    assert (w >= 0).all() and (w > 0).any()
    # what is printed is how centred they are at the typical scale
    known = w * learned.scales["theta"] ** 2
    found = mcmc.sampler.centredness(mcmc)["theta"]
    np.testing.assert_allclose(found, known / (1 + known), rtol=1e-5)


@pytest.mark.first
@pytest.mark.parametrize("change", ["checkpoint", "resumed", "pickled"])
def test_coordinates_are_frozen_with_the_metric_and_travel_with_it(change, tmp_path):
    mcmc = mcmc_of(AutoNUTS(schools), 100, 20)
    if change == "checkpoint":
        mcmc = mcmc_of(AutoNUTS(schools), 100, 20)
        first = sample_to(tmp_path / "run", mcmc, jax.random.key(0), Y)
        again = sample_to(
            tmp_path / "run",
            mcmc_of(AutoNUTS(schools), 100, 20),
            jax.random.key(0),
            Y,
            until=Until(max_draws=40),
        )
        assert (first.num_draws, again.num_draws) == (20, 40)
        return
    mcmc.run(jax.random.key(0), Y)
    before = mcmc.sampler.centredness(mcmc)["theta"]
    assert (before != 0.5).any()
    mcmc.post_warmup_state = mcmc.last_state
    if change == "pickled":
        mcmc = pickle.loads(pickle.dumps(mcmc))
    mcmc.run(jax.random.key(1), Y)
    np.testing.assert_array_equal(mcmc.sampler.centredness(mcmc)["theta"], before)


@pytest.mark.parametrize("chain_method", ["sequential", "parallel"])
def test_chains_that_run_alone_learn_for_themselves(chain_method):
    num_chains = 2 if chain_method == "sequential" else 1
    mcmc = mcmc_of(AutoNUTS(schools), 200, 50, num_chains, chain_method)
    mcmc.run(jax.random.key(2), Y)
    found = mcmc.sampler.centredness(mcmc)["theta"]
    assert found.shape == (8,) and (found < 0.5).all()


def two_levels(y):
    """Districts, schools in them, and a positive scale for each."""
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    with numpyro.plate("district", 3):
        m = numpyro.sample("m", dist.Normal(0, tau))
        s = numpyro.sample("s", dist.HalfNormal(tau))
    with numpyro.plate("school", 6):
        k = np.arange(6) % 3
        t = numpyro.sample("t", dist.StudentT(5, m[k], s[k]))
    numpyro.sample("y", dist.Normal(t, 1).to_event(1), obs=y)


OF_NUMBERS = {
    "normal": lambda t: dist.Normal(0.0, t),
    "scale alone": lambda t: dist.Normal(t, 2.0),
    "Laplace": lambda t: dist.Laplace(0, t),
    "log-normal": lambda t: dist.LogNormal(0.0, t),
    "half-normal": lambda t: dist.HalfNormal(t),
    "gamma": lambda t: dist.Gamma(2.0, t),
    "beta": lambda t: dist.Beta(2, t),
    "walk": lambda t: dist.GaussianRandomWalk(t, 3),
    "events": lambda t: dist.Normal(0.0, t).expand([2]).to_event(1),
}


@pytest.mark.first
@pytest.mark.parametrize(
    ("law", "num_chains", "batch_size"), [("walk", 3, 2), *((law, 1, None) for law in OF_NUMBERS)]
)
def test_parameters_of_an_effect_may_be_numbers_of_python(law, num_chains, batch_size):
    """One chain alone has no axis by which arrays come of them."""

    def model():
        t = numpyro.sample("t", dist.HalfNormal(1.0))
        numpyro.sample("x", OF_NUMBERS[law](t))

    kernel = AutoNUTS(model, warm_start=False, chain_batch_size=batch_size)
    keys = jax.random.split(jax.random.key(0), num_chains)
    state = kernel.init(keys[0] if num_chains == 1 else keys, 30, None, (), {})
    shapes = jax.eval_shape(lambda state: kernel.sample(state, (), {}), state)
    assert jax.tree.map(jnp.shape, shapes.z) == jax.tree.map(jnp.shape, state.z)


def test_an_algorithm_of_blackjax_in_coordinates_of_two_levels():
    kernel = BlackJAXKernel(
        two_levels, blackjax.hmc, num_integration_steps=4, learn_coordinates=True
    )
    mcmc = mcmc_of(kernel, 200, 50)
    mcmc.run(jax.random.key(0), np.zeros(6))
    assert set(kernel.centredness(mcmc)) == {"m", "s", "t"}
    assert set(reparam_config(mcmc)) == {"m", "t"}


def test_a_model_without_reverse_mode():
    def model(y):
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        a = numpyro.sample("a", dist.Normal(0, tau).expand([3]).to_event(1))
        level = jax.lax.while_loop(lambda v: v[0] < 2, lambda v: (v[0] + 1, v[1] * 0.5), (0, a))[1]
        numpyro.sample("y", dist.Normal(level, 1).to_event(1), obs=y)

    asked = mcmc_of(AutoNUTS(model, forward_mode_differentiation=True), 100, 20, 2)
    asked.run(jax.random.key(0), np.ones(3))
    assert set(asked.sampler.centredness(asked)) == {"a"}
    unasked = mcmc_of(AutoNUTS(model), 100, 20, 2)
    with pytest.warns(UserWarning, match="AutoNUTS takes each gradient from JVPs, 4 in one pass"):
        unasked.run(jax.random.key(0), np.ones(3))
    np.testing.assert_array_equal(*(each.get_samples()["a"] for each in (asked, unasked)))


def test_a_model_without_effects_is_sampled_as_it_is():
    def model():
        numpyro.sample("x", dist.Normal(1, 2).expand([3]).to_event(1))

    mcmc = mcmc_of(AutoNUTS(model), 100, 20, 1)
    mcmc.run(jax.random.key(0))
    assert mcmc.sampler.centredness(mcmc) == {} and reparam_config(mcmc) == {}
    why = "x  as written: nothing that is sampled scales it"
    assert str(mcmc.sampler.centredness(mcmc)) == f"no effects\n{why}"


def test_errors_say_what_is_accepted():
    with pytest.raises((TypeError, ValueError), match="max_tree_depth"):
        AutoNUTS(schools, max_tree_depth=0)
    with pytest.raises(ValueError, match="mcmc must have run"):
        AutoNUTS(schools).centredness(mcmc_of(AutoNUTS(schools)))
    with pytest.raises(TypeError, match="learns coordinates"):
        reparam_config(mcmc_of(NUTS(schools)))
    state_without = BlackJAXKernel(schools, blackjax_ext.random_walk, learn_coordinates=True)
    with pytest.raises(TypeError, match="logdensity_grad"):
        mcmc_of(state_without, 10, 10, 1).run(jax.random.key(0), Y)
    with pytest.raises(TypeError, match="reads all rows"):
        AMAGOLD(schools, learn_coordinates=True)


@pytest.mark.first
@pytest.mark.parametrize("chain_method", ["vectorized", "sequential"])
def test_a_depth_of_trees_for_each_phase(chain_method):
    """As NumPyro's NUTS, also where a run goes on; one depth twice is that depth."""
    draws = {}
    for depth in (2, (2, 2), (2, 4)):
        kernel = AutoNUTS(schools, max_tree_depth=depth)
        mcmc = mcmc_of(kernel, 50, 50, num_chains=2, chain_method=chain_method)
        mcmc.warmup(jax.random.key(0), Y, collect_warmup=True, extra_fields=("tree_depth",))
        assert mcmc.get_extra_fields()["tree_depth"].max() == 2
        for run in range(2):
            mcmc.run(jax.random.key(run), Y, extra_fields=("tree_depth",))
            most = mcmc.get_extra_fields()["tree_depth"].max()
            assert most == 2 if depth != (2, 4) else 2 < most <= 4
            mcmc.post_warmup_state = mcmc.last_state
        draws[depth] = mcmc.get_samples()["tau"]
    np.testing.assert_array_equal(draws[2], draws[2, 2])
    for wrong in ((6,), (6, 0), [6, 8], (2, 4, 6)):
        with pytest.raises((TypeError, ValueError), match=r"max_tree_depth .*warm-up"):
            AutoNUTS(schools, max_tree_depth=wrong)


def test_locations_far_from_the_origin():
    """Half-centred coordinates from near zero would not get there: the start does."""

    def model():
        mu = numpyro.sample("mu", dist.Normal(1000, 10))
        tau = numpyro.sample("tau", dist.HalfNormal(2))
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([6]).to_event(1))
        numpyro.sample("y", dist.Normal(theta, 0.5).to_event(1), obs=1002.0 + jnp.arange(6.0) / 3)

    mcmc = mcmc_of(AutoNUTS(model))
    with warnings.catch_warnings():  # of scales that rounding hides
        warnings.filterwarnings("ignore", "rounding hides")
        mcmc.run(jax.random.key(0))
    mu = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])
    assert split_gelman_rubin(mu) < 1.1
    np.testing.assert_allclose(mu.mean(), 1002.8, atol=0.3)


GROUP = np.repeat(np.arange(30, dtype=np.int32), np.where(np.arange(30) < 15, 2, 80))


def uneven(form, y=None):
    """Groups of 2 and of 80 rows, centred or not."""
    mu, tau = (numpyro.sample(*site) for site in [("mu", dist.Normal(0, 5)), ("tau", SCALE)])
    law = dist.Normal(mu, tau).expand([30]).to_event(1)
    if form == "centred":
        a = numpyro.sample("a", law)
    elif form == "by a handler":
        with numpyro.handlers.reparam(config={"a": LocScaleReparam(0)}):
            a = numpyro.sample("a", law)
    else:
        z = numpyro.sample("z", dist.Normal(0, 1).expand([30]).to_event(1))
        a = numpyro.deterministic("a", mu + z * tau)
    numpyro.sample("y", dist.Normal(a[GROUP], 1.0), obs=y)


SCALE = dist.HalfNormal(2)


def rows_of_uneven():
    rng = np.random.default_rng(3)
    return rng.normal(0.3 * rng.normal(size=30)[GROUP], 1.0)


@cache
def of_uneven(form):
    """What is learned, and means of the effects."""
    mcmc = mcmc_of(AutoNUTS(uneven), 600, 1000)
    mcmc.run(jax.random.key(0), form, rows_of_uneven())
    (learned,) = mcmc.sampler.centredness(mcmc).values()
    return mcmc, learned, np.asarray(mcmc.get_samples()["a"], float).mean(0)


@pytest.mark.parametrize("form", ["by hand", "by a handler"])
def test_the_form_of_a_hierarchy_does_not_matter(form):
    (_, expected, truth), (mcmc, learned, means) = map(of_uneven, ("centred", form))
    assert expected[15:].mean() > expected[:15].mean() + 0.3
    np.testing.assert_allclose(learned, expected, atol=0.26)
    np.testing.assert_allclose(learned[:15].mean(), expected[:15].mean(), atol=0.08)
    np.testing.assert_allclose(learned[15:].mean(), expected[15:].mean(), atol=0.08)
    np.testing.assert_allclose(means, truth, atol=0.05)
    assert (
        mcmc.sampler._effects.on_the_reals == ()
    )  # NumPyro has no handler for effects from their noise


def test_a_state_whose_effects_are_none_with_other_arguments_is_refused():
    def model(y, is_square=False):
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(tau * z + (z**2 if is_square else 0.0), 1.0), obs=y)

    y = Y[:2] / 10
    mcmc = mcmc_of(AutoNUTS(model), 100, 10, num_chains=1)
    mcmc.run(jax.random.key(0), y)
    other = {"is_square": True}
    mcmc.post_warmup_state = mcmc.sampler.refresh(mcmc.last_state, (y,), other)
    with pytest.raises(ValueError, match=r"coordinates of \['z'\], and .* are \[\]"):
        mcmc.run(jax.random.key(1), y, **other)
    mcmc.post_warmup_state = None
    mcmc.run(jax.random.key(1), y, **other)


def test_noise_that_is_scaled_goes_on_as_it_was():
    """What was learned of it is frozen, and pickled with the rest."""
    mcmc, learned, means = of_uneven("by hand")
    other = pickle.loads(pickle.dumps(mcmc))
    y = -rows_of_uneven()
    other.post_warmup_state = other.sampler.refresh(mcmc.last_state, ("by hand", y), {})
    other.run(jax.random.key(1), "by hand", y)
    (kept,) = other.sampler.centredness(other).values()
    np.testing.assert_array_equal(kept, learned)
    np.testing.assert_allclose(other.get_samples()["a"].mean(0), -means, atol=0.08)


def far_noise(y):
    """Noise that single precision keeps only as the model has it: the digits of 1e5 are 0.008."""
    m, t = numpyro.sample("m", dist.Normal(0, 1)), numpyro.sample("t", dist.HalfNormal(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([8]).to_event(1))
    a = 1e5 + m + t * z
    numpyro.sample("y", dist.Normal(jnp.repeat(a, 20), 0.3), obs=y)


def test_noise_of_effects_far_from_zero_is_not_hidden():
    rng = np.random.default_rng(0)
    y = (1e5 + np.repeat(0.2 * rng.normal(size=8), 20) + 0.3 * rng.normal(size=160)).astype("f")
    runs = [mcmc_of(kernel, 500, 1000) for kernel in (AutoNUTS(far_noise), NUTS(far_noise))]
    for mcmc in runs:
        mcmc.run(jax.random.key(0), y)
    (c,) = runs[0].sampler.centredness(runs[0]).values()
    assert c.max() <= 0.25
    found, expected = (np.log(mcmc.get_samples()["t"]).mean() for mcmc in runs)
    assert abs(found - expected) < 0.1


def short_walk(num_steps, is_centred):
    """A walk without data, whose steps have a scale of a known law."""
    scale = numpyro.sample("scale", dist.LogNormal(0, 0.7))
    if is_centred:
        x = numpyro.sample("x", dist.GaussianRandomWalk(scale, num_steps))
    else:
        x = scale * jnp.cumsum(numpyro.sample("z", dist.Normal(0, 1).expand([num_steps])))
        numpyro.factor("no data", 0.0 * x.sum())
    numpyro.deterministic("away", x[-1] / scale)


@pytest.mark.first
@pytest.mark.parametrize(("num_steps", "is_centred"), [(1, True), (5, True), (8, False)])
def test_short_walks_have_their_prior(num_steps, is_centred):
    """Of one chain: compilers lay out arrays of few numbers otherwise."""
    mcmc = MCMC(AutoNUTS(short_walk), num_warmup=300, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.key(0), num_steps, is_centred)
    draws = mcmc.get_samples()
    assert len(mcmc.sampler.centredness(mcmc)) == 1
    assert abs(jnp.log(draws["scale"]).mean()) < 0.2
    np.testing.assert_allclose(draws["away"].var(), num_steps, rtol=0.3)


@pytest.mark.first
def test_short_state_spaces_have_their_prior():
    transition, factor = jnp.array([[1.0, 1.0], [0.0, 0.9]]), jnp.array([[1.0, 0.0], [0.5, 0.8]])

    def model():
        scale = numpyro.sample("scale", dist.LogNormal(0, 0.7))
        law = dist.GaussianStateSpace(
            5, transition, scale_tril=scale * factor, initial_value=jnp.array([1.0, -2.0])
        )
        away = (numpyro.sample("x", law) - law.mean)[-1] / scale
        numpyro.deterministic("away", away)

    mcmc = MCMC(AutoNUTS(model), num_warmup=300, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.key(0))
    draws, expected = mcmc.get_samples(), jnp.zeros((2, 2))
    for _ in range(5):
        expected = transition @ expected @ transition.T + factor @ factor.T
    assert len(mcmc.sampler.centredness(mcmc)) == 1
    assert abs(jnp.log(draws["scale"]).mean()) < 0.2
    found = jnp.cov(draws["away"], rowvar=False)
    np.testing.assert_allclose(found / expected, 1.0, atol=0.3)
    np.testing.assert_allclose(draws["away"].mean(0) / jnp.sqrt(jnp.diag(expected)), 0, atol=0.2)


def test_a_walk_of_another_length_is_named():
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(walked(scale, len(y)), 1.0), obs=y)

    def walked(scale, size):
        return numpyro.sample("x", dist.GaussianRandomWalk(scale, size))

    mcmc = MCMC(AutoNUTS(model), num_warmup=20, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.ones(6))
    with pytest.raises(
        ValueError, match=r"site 'x' has \(4,\) with these arguments, and had \(6,\)"
    ):
        mcmc.sampler.refresh(mcmc.last_state, (jnp.ones(4),), {})


@pytest.mark.slow
def test_a_narrow_ridge_is_followed_by_short_steps():
    """What docs/howto/from_nuts.md says of few divergences."""

    def ridge():
        a = numpyro.sample("a", dist.Normal(0, 1.5))
        b = numpyro.sample("b", dist.Normal(0, 5))
        numpyro.sample("y", dist.Normal(b + a**2, 0.1), obs=0.5)

    a = np.linspace(-7, 7, 2001)  # b is known but for 0.1 given a
    logs = -0.5 * (a / 1.5) ** 2 - 0.5 * (a**2 - 0.5) ** 2 / (25 + 0.01)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    of_b = np.sqrt(weights @ a**4 - (weights @ a**2) ** 2)
    ratios, divergences = {}, {}
    for target in (0.85, 0.99):
        kernel = AutoNUTS(ridge, target_accept_prob=target)
        mcmc = mcmc_of(kernel, num_warmup=1000, num_samples=2000)
        mcmc.run(jax.random.key(0), extra_fields=("diverging",))
        ratios[target] = mcmc.get_samples()["b"].std() / of_b
        divergences[target] = mcmc.get_extra_fields()["diverging"].sum()
    assert divergences[0.99] == 0 and 0.85 < ratios[0.99] < 1.15
    assert 0 < divergences[0.85] < 100 and ratios[0.85] < 0.75
