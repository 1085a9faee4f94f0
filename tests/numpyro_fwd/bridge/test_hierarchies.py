"""Effects of a model: which there are, their laws and their coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.contrib.control_flow import scan
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    OrderedTransform,
    SigmoidTransform,
)
from numpyro.handlers import reparam, seed, trace
from numpyro.infer import MCMC, Predictive
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import unconstrain_fn
from scipy.stats import ks_2samp

from blackjax_ext.coordinates import laws, maps
from blackjax_ext.coordinates.laws import Pseudo
from numpyro_fwd import AutoMALA
from numpyro_fwd.bridge.coordinates import ModelCoordinates, effects_of
from numpyro_fwd.bridge.hierarchies import MAPS, law_of, low_rank_factor


def factor(z):
    """A Cholesky factor that depends on a latent."""
    return jnp.array([[1.0, 0.0, 0.0], [0.5, 0.7, 0.0], [z, -0.3, 2.0]]) * jnp.exp(0.2 * z)


# a law with parameters that are computed from a latent z, for each that is understood
LAWS = {
    dist.Beta: lambda z: dist.Beta(jnp.exp(z), 3.0 * jnp.exp(0.5 * z)),
    dist.BetaProportion: lambda z: dist.BetaProportion(jax.nn.sigmoid(z), 4.0 * jnp.exp(z)),
    dist.Cauchy: lambda z: dist.Cauchy(z, jnp.exp(z)),
    dist.Dirichlet: lambda z: dist.Dirichlet(jnp.exp(z) * jnp.array([0.5, 3.0, 1.0, 6.0])),
    dist.Exponential: lambda z: dist.Exponential(jnp.exp(z)),
    dist.Gamma: lambda z: dist.Gamma(2.0, jnp.exp(z)),
    dist.GaussianRandomWalk: lambda z: dist.GaussianRandomWalk(jnp.exp(z), 3),
    dist.GaussianStateSpace: lambda z: dist.GaussianStateSpace(
        3,
        jnp.array([[1.0, 1.0, 0.0], [0.0, 0.8, z], [0.3, 0.0, 0.1]]),
        scale_tril=factor(z),
        initial_value=jnp.array([z, 0.5, -1.0]),
    ),
    dist.Gumbel: lambda z: dist.Gumbel(z, jnp.exp(z)),
    dist.HalfCauchy: lambda z: dist.HalfCauchy(jnp.exp(z)),
    dist.HalfNormal: lambda z: dist.HalfNormal(jnp.exp(z)),
    dist.InverseGamma: lambda z: dist.InverseGamma(3.0, jnp.exp(z)),
    dist.Laplace: lambda z: dist.Laplace(z, jnp.exp(z)),
    dist.LogNormal: lambda z: dist.LogNormal(z, jnp.exp(z)),
    dist.Logistic: lambda z: dist.Logistic(z, jnp.exp(z)),
    dist.LowRankMultivariateNormal: lambda z: dist.LowRankMultivariateNormal(
        z * jnp.ones(3),
        jnp.exp(z) * jnp.array([[0.5], [1.0], [-0.3]]),
        jnp.exp(2 * z) * jnp.ones(3),
    ),
    dist.ZeroSumNormal: lambda z: dist.ZeroSumNormal(jnp.exp(z), (4,)),
    dist.MultivariateNormal: lambda z: dist.MultivariateNormal(z, scale_tril=factor(z)),
    dist.Normal: lambda z: dist.Normal(z, jnp.exp(z)),
    dist.StudentT: lambda z: dist.StudentT(4.0, z, jnp.exp(z)),
    dist.Weibull: lambda z: dist.Weibull(jnp.exp(z), jnp.exp(0.3 * z)),
}
# laws with a shape, of whose noise a location and a scale alone are about the same
SHAPED = {
    "Beta": LAWS[dist.Beta],
    "BetaProportion": LAWS[dist.BetaProportion],
    "Dirichlet": LAWS[dist.Dirichlet],
    "shape of a gamma": lambda z: dist.Gamma(jnp.exp(1.5 * z), 2.0),
    "shape of an inverse gamma": lambda z: dist.InverseGamma(jnp.exp(1.5 * z), jnp.exp(z)),
}

AFFINE = AffineTransform(1.5, -2.0)
EVERY = (
    {law.__name__: make for law, make in LAWS.items()}
    | SHAPED
    | {
        "shifted": lambda z: dist.TransformedDistribution(
            dist.StudentT(4.0), AffineTransform(z, jnp.exp(z))
        ),
        "shifted twice": lambda z: dist.TransformedDistribution(
            dist.Normal(z, jnp.exp(z)), [AFFINE, AffineTransform(z, 3.0)]
        ),
        "positive": lambda z: dist.TransformedDistribution(
            dist.Laplace(z, jnp.exp(z)), [AFFINE, ExpTransform()]
        ),
        "probability": lambda z: dist.TransformedDistribution(
            dist.Normal(z, jnp.exp(z)), SigmoidTransform()
        ),
        "zero sum of scales": lambda z: dist.ZeroSumNormal(
            jnp.exp(z) * jnp.array([1.0, 2.0, 0.5]), (4,)
        ),
        "zero sum of a table": lambda z: dist.ZeroSumNormal(
            jnp.exp(z) * jnp.array([[1.0, 3.0], [2.0, 0.5]]), (3, 3)
        ),
        "zero sum of one scale": lambda z: dist.ZeroSumNormal(jnp.exp(z)[None], (4,)),
        "masked": lambda z: dist.Normal(z, jnp.exp(z)).mask(True),
        "padded": lambda z: dist.StudentT(4.0, z, jnp.exp(z)).mask(jnp.array([True, True])),
    }
)


def written(make, way):
    """A model in which the law stands in one of the ways that users write it."""

    def model():
        z = numpyro.sample("z", dist.Normal(0, 1))
        fn = make(z)
        if way == "plate":
            with numpyro.plate("groups", 2):
                numpyro.sample("a", fn)
        elif way == "event":
            numpyro.sample("a", fn.expand([2]).to_event(1))
        else:
            with numpyro.plate("rows", 3, dim=-2), numpyro.plate("groups", 2):
                numpyro.sample("a", fn)

    return model


def position_of(model, *args):
    """Unconstrained draws of the prior."""
    sites = trace(seed(model, 1)).get_trace(*args)
    values = {
        n: s["value"] for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]
    }
    return unconstrain_fn(seed(model, 1), args, {}, values)


def test_every_law_is_tried():
    assert set(LAWS) == set(MAPS)


@pytest.mark.first
@pytest.mark.parametrize("way", ["plate", pytest.param("event", marks=pytest.mark.full), "table"])
@pytest.mark.parametrize("law", EVERY)
def test_coordinates_are_bijections_with_their_determinants(law, way):
    with jax.enable_x64(True):
        model = written(EVERY[law], way)
        position = position_of(model)
        assert effects_of(model, (), None, position).names == ("a",)
        coordinates = ModelCoordinates(model, (), None, ("a",), ())
        values, information = np.random.default_rng(0).uniform(size=(2, *np.shape(position["a"])))
        pseudo = {"a": Pseudo(jnp.asarray(values), jnp.asarray(information)), "z": None}
        u = coordinates.into(position, pseudo)
        placed = coordinates.out(u, pseudo)
        for name in position:
            np.testing.assert_allclose(placed.position[name], position[name], rtol=1e-9, atol=1e-9)
        flat, unravel = ravel_pytree(u)

        def out(u):
            return ravel_pytree(coordinates.out(unravel(u), pseudo).position)[0]

        sign, expected = np.linalg.slogdet(jax.jacfwd(out)(flat))
        np.testing.assert_allclose(placed.log_det, expected, atol=1e-9)
        assert abs(sign) == 1 and not np.allclose(u["a"], position["a"])


def unobserved(like):
    """Observations that say nothing: coordinates are the noise."""
    return Pseudo(jnp.zeros_like(like), jnp.zeros_like(like))


@pytest.mark.first
@pytest.mark.parametrize("law", [name for name in EVERY if name not in SHAPED])
def test_noise_has_a_law_without_parameters(law):
    """That is what makes coordinates worth while."""
    with jax.enable_x64(True):
        model = written(EVERY[law], "plate")
        coordinates = ModelCoordinates(model, (), None, ("a",), ())
        like = position_of(model)["a"]
        u = jnp.asarray(np.random.default_rng(1).normal(size=np.shape(like)))
        pseudo = {"a": unobserved(like), "z": None}

        def density(z):
            placed = coordinates.out({"a": u, "z": z}, pseudo)
            energy = numpyro.infer.util.potential_energy(model, (), {}, placed.position)
            return -energy + placed.log_det + z**2 / 2

        values = [density(jnp.asarray(z)) for z in (-1.0, 0.3, 1.2)]
        np.testing.assert_allclose(values, values[0], atol=1e-9)


@pytest.mark.first
@pytest.mark.parametrize("law", SHAPED)
def test_noise_of_a_law_with_a_shape_is_about_standard(law):
    """Whatever the parameters: shapes of a sixth to a hundred."""
    for z in (-1.2, 0.0, 2.0):
        fn = SHAPED[law](z)
        x = biject_to(fn.support).inv(fn.sample(jax.random.key(0), (20_000,)))
        noise = maps.into(law_of(fn), unobserved(x), x)
        np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.06)
        np.testing.assert_allclose(noise.std(0), 1.0, atol=0.06)


@pytest.mark.parametrize("shape", [2, np.float32(2), np.array([2, 65_536], np.int32)])
def test_shapes_may_be_whole_numbers(shape):
    for fn in (dist.Gamma(shape, 1), dist.Beta(shape, 3), dist.Dirichlet(np.array([1, 2, 3]))):
        found = law_of(fn)
        assert all(np.isfinite(np.asarray(each)).all() for each in jax.tree.leaves(found))
        assert maps.unresolved(found, unobserved(0.0), jnp.array(0.1)) == 0


@pytest.mark.parametrize("law", SHAPED)
def test_a_shape_beyond_the_digits_of_a_log_density_has_no_mass(law):
    """With single precision from half a million on; with double precision it has."""

    def walls(fn):
        law = law_of(fn)
        x = jnp.broadcast_to(law.mean, (2, 3) if law.mean.ndim else (2,))
        return maps.unresolved(law, Pseudo(jnp.zeros_like(x), jnp.ones_like(x)), x)

    assert walls(SHAPED[law](3.0)) == 0
    assert walls(SHAPED[law](10.0 if "shape" in law else 16.0)) > 100
    with jax.enable_x64(True):
        assert walls(SHAPED[law](10.0 if "shape" in law else 16.0)) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    [
        [AffineTransform(0.5, 2.0), ExpTransform(), AffineTransform(1.0, 2.0)],
        [OrderedTransform()],
        [ExpTransform(), ExpTransform()],
    ],
)
def test_other_transforms_are_no_effects(steps):
    def model():
        z = numpyro.sample("z", dist.Normal(0, 1))
        base = dist.Normal(z, jnp.exp(z)).expand([3])
        base = base.to_event(1) if type(steps[0]) is OrderedTransform else base
        numpyro.sample("a", dist.TransformedDistribution(base, steps))

    assert effects_of(model, (), None, position_of(model)).names == ()


def schools(y=None):
    """Three levels, a plate, and a site that nothing governs."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    numpyro.sample("alone", dist.Normal(0, 1))
    with numpyro.plate("district", 3):
        m = numpyro.sample("m", dist.Normal(mu, tau))
    with numpyro.plate("school", 6):
        t = numpyro.sample("t", dist.StudentT(3, m[np.arange(6) % 3], tau / 2))
    numpyro.sample("y", dist.Normal(t, 1).to_event(1), obs=y)


def looping(y):
    """A walk whose steps are in a loop of NumPyro."""
    scale = numpyro.sample("scale", dist.HalfNormal(1))

    def step(x, y):
        x = numpyro.sample("x", dist.Normal(x, scale))
        numpyro.sample("y", dist.Normal(x, 1), obs=y)
        return x, None

    scan(step, 0.0, y)


def enumerated(y):
    """A mixture with sampled classes."""
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("classes", 2):
        loc = numpyro.sample("loc", dist.Normal(0, scale))
    with numpyro.plate("rows", 3):
        c = numpyro.sample("c", dist.Categorical(jnp.ones(2) / 2), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(loc[c], 1), obs=y)


def regression(y):
    """Nothing that is sampled governs another latent."""
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(b[0], sigma), obs=y)


Y = np.arange(3.0)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (regression, ()),
        (looping, ()),
        (enumerated, ()),
        (reparam(enumerated, {}), ()),
    ],
)
def test_effects_are_found(model, expected):
    position = {
        "scale": 0.0,
        "loc": jnp.zeros(2),
        "b": jnp.zeros(2),
        "sigma": 0.0,
        "x": jnp.zeros(3),
    }
    assert effects_of(model, (Y,), None, position).names == expected


@pytest.mark.long
def test_effects_of_three_levels():
    assert effects_of(schools, (), None, position_of(schools, np.zeros(6))).names == ("m", "t")


@pytest.mark.long
def test_partial_centring_leaves_effects():
    """The noise of a site that is centred in part has parameters of its own."""
    model = reparam(
        schools, {"m": LocScaleReparam(0.5), "t": LocScaleReparam(0, shape_params=("df",))}
    )
    assert effects_of(model, (), None, position_of(model, np.zeros(6))).names == ("m_decentered",)


def prior():
    """Laws of all kinds over each other, whose exact draws are those of the prior."""
    tau = numpyro.sample("tau", dist.Gamma(3.0, 2.0))
    mu = numpyro.sample("mu", dist.Normal(1, 0.5))
    rate = numpyro.sample("rate", dist.Gamma(2.0, tau))
    with numpyro.plate("groups", 2):
        a = numpyro.sample("a", dist.Normal(mu, tau))
        numpyro.sample("b", dist.HalfNormal(0.5 + a**2))
    numpyro.sample("c", dist.MultivariateNormal(mu, scale_tril=factor(jnp.tanh(a[0]))))
    numpyro.sample("walk", dist.GaussianRandomWalk(rate, 3))


def steps_from_the_prior(kernel, model, num_chains, num_steps):
    """Draws of a model without data by latent site, those after some steps, and the sampler."""
    drawn = Predictive(model, num_samples=num_chains)(jax.random.key(0))
    starts = jax.vmap(lambda v: unconstrain_fn(model, (), {}, v))(drawn)
    sampler = kernel(model, step_size=0.4, adapt_step_size=False, adapt_mass_matrix=False)
    mcmc = MCMC(
        sampler,
        num_warmup=0,
        num_samples=num_steps,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), init_params=starts)
    draws = mcmc.get_samples(group_by_chain=True)
    return drawn, {name: draws[name][:, -1] for name in drawn}, sampler


@pytest.mark.long
@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore:.*no data")
def test_draws_of_the_prior_stay_draws_of_the_prior():
    num_chains = 4_000
    drawn, last, sampler = steps_from_the_prior(AutoMALA, prior, num_chains, 20)
    assert sampler._effects.effects == ("rate", "a", "b", "c", "walk")
    exact = Predictive(prior, num_samples=num_chains)(jax.random.key(2))
    for name in drawn:
        found = np.asarray(last[name]).reshape(num_chains, -1)
        others = np.asarray(exact[name]).reshape(num_chains, -1)
        moved = np.mean(found != np.asarray(drawn[name]).reshape(num_chains, -1), axis=0)
        assert np.all(moved > 0.5), name
        for i in range(found.shape[1]):
            assert ks_2samp(found[:, i], others[:, i]).pvalue > 1e-4, (name, i)


def sharp():
    """Effects whose scale may be smaller than the last digit of their location."""
    z = numpyro.sample("z", dist.Normal(0, 1))
    numpyro.sample("x", dist.Normal(100 * z, jnp.exp(12 * z)))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*no data", "ignore:rounding hides scales of x")
def test_noise_below_the_last_digit():
    """Where digits resolve the scale, draws of the prior stay that; nowhere else do they go."""
    drawn, last, _ = steps_from_the_prior(AutoMALA, sharp, 12_000, 40)

    def is_resolved(draws):
        law = laws.LocScale(100 * draws["z"], jnp.exp(12 * draws["z"]))
        first = laws.Pseudo(jnp.zeros(()), jnp.ones(()))
        return np.asarray(maps.rounding(law, first, jnp.asarray(draws["x"]))).ravel() <= 1

    inside = is_resolved(drawn)
    assert 0.1 < inside.mean() < 0.9 and is_resolved(last)[inside].all()
    for power in (1, 2):
        before, after = (np.asarray(each["z"]).ravel()[inside] ** power for each in (drawn, last))
        change = after - before
        error = change.std() / np.sqrt(change.size)
        assert abs(change.mean()) < 4 * error, (power, change.mean() / error)


def test_effects_are_looked_for_at_a_position_only():
    """Elsewhere a parameter may be outside of what its law allows: here w is 0 or negative."""

    def model():
        w = numpyro.sample("w", dist.Normal(1.0, 0.1))
        numpyro.sample("x", dist.Normal(0.0, w))

    position = {"w": jnp.array(1.0), "x": jnp.array(0.0)}
    with numpyro.validation_enabled():
        assert effects_of(model, (), None, position).names == ("x",)


def test_arguments_may_make_of_an_effect_what_is_none():
    """The states of one run go on with a model whose effects have a law that is not read."""

    def model(is_other=False):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        law = dist.SoftLaplace if is_other else dist.Normal
        numpyro.sample("x", law(0.0, tau).expand([2]))

    found = ModelCoordinates(model, (), {"is_other": True}, ("x",), ())
    position = {"tau": jnp.array(0.3), "x": jnp.array([1.0, -2.0])}
    pseudo = {"tau": None, "x": unobserved(position["x"])}
    u = found.into(position, pseudo)
    assert jnp.array_equal(u["x"], position["x"])
    placed = found.out(u, pseudo)
    assert jnp.array_equal(placed.position["x"], position["x"]) and placed.log_det == 0


@pytest.mark.long
def test_states_go_on_with_the_effects_that_they_have_learned_of():
    def model(has_more=False):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        x = numpyro.sample("x", dist.Normal(0.0, tau))
        if has_more:
            numpyro.sample("more", dist.Normal(x, tau))

    kernel = AutoMALA(model)
    state = kernel.init(jax.random.key(0), 0, None, (), {})
    kernel.init(jax.random.key(0), 0, None, (), {"has_more": True})
    with pytest.raises(ValueError, match=r"of \['x'\], .* are \['more', 'x'\]\. Run the warm-up"):
        kernel.sample(state, (), {})


REAL = constraints.real, constraints.real_vector, constraints.real_matrix


@pytest.mark.long
def test_supports_are_those_of_the_maps():
    """Unconstrained values are the values themselves, their logarithms or their logits."""
    positive = {
        *(dist.Exponential, dist.Gamma, dist.HalfCauchy, dist.HalfNormal, dist.InverseGamma),
        *(dist.LogNormal, dist.Weibull),
    }
    odds = {dist.Beta, dist.BetaProportion}
    for law, make in LAWS.items():
        support = make(jnp.array(0.1)).support
        transform = dist.biject_to(support)
        if law in positive:
            assert isinstance(transform, dist.transforms.ExpTransform), law
        elif law in odds:
            assert isinstance(transform, dist.transforms.SigmoidTransform), law
        elif law is dist.Dirichlet:
            assert isinstance(transform, dist.transforms.StickBreakingTransform), law
        else:
            free = (*REAL, constraints.zero_sum(1))
            assert support in free, law


@pytest.mark.parametrize("diagonal", [1e-4, 1e-7, 1e-9, 1e-11])
def test_a_low_rank_has_a_factor_where_its_covariance_has_no_digits(diagonal):
    """In single precision, of which the last digit of the covariance is 1e-7."""
    columns, scales = np.array([[0.5, 0.1], [1.0, 0.3], [-0.3, 0.9]]), np.array([1.0, 2.0, 0.5])
    fn = dist.LowRankMultivariateNormal(
        jnp.zeros(3), jnp.asarray(columns), jnp.asarray(diagonal * scales)
    )
    exact = np.linalg.cholesky(columns @ columns.T + diagonal * np.diag(scales))
    factor = low_rank_factor(fn)
    np.testing.assert_allclose(factor, exact, rtol=1e-4, atol=1e-6 * diagonal**0.5)

    def log_det(diagonal):
        fn = dist.LowRankMultivariateNormal(
            jnp.zeros(3), jnp.asarray(columns), diagonal * jnp.asarray(scales)
        )
        return jnp.sum(jnp.log(jnp.diagonal(low_rank_factor(fn))))

    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(derivative(log_det)(diagonal) * diagonal, 0.5, rtol=1e-3)


def test_a_low_rank_in_batches():
    fn = dist.LowRankMultivariateNormal(jnp.zeros(3), jnp.ones((4, 3, 2)), jnp.ones(3))
    found = low_rank_factor(fn)
    np.testing.assert_allclose(
        found, jnp.linalg.cholesky(fn.covariance_matrix), rtol=1e-5, atol=1e-6
    )
