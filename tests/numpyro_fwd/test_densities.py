"""Log densities from elsewhere, through MCMC to draws in ArviZ."""

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from numpyro.infer import MCMC

import numpyro_fwd
from numpyro_fwd import Density

TRUTH = {"rate": (1.5, 0.866), "share": (0.4, 0.2)}  # Gamma(3, 2), Beta(2, 3)


def log_density(x):
    rate, share = x["rate"], x["share"]
    gamma = 2.0 * jnp.log(rate) - 2.0 * rate
    return gamma + jnp.log(share).sum() + 2.0 * jnp.log1p(-share).sum()


def plain():
    supports = {"rate": constraints.positive, "share": constraints.unit_interval}
    return Density(log_density, {"rate": 1.0, "share": [0.5, 0.5]}, supports)


class Stan:
    """What bridgestan has of a model with a positive rate and two shares."""

    inner = plain()

    def param_unc_num(self):
        return 3

    def param_names(self):
        return ["rate", "share.1", "share.2"]

    def of(self, z):
        assert isinstance(z, np.ndarray) and z.dtype == np.float64
        return {"rate": jnp.float32(z[0]), "share": jnp.asarray(z[1:], jnp.float32)}

    def log_density_gradient(self, z):
        value, gradient = jax.value_and_grad(self.inner.potential_fn)(self.of(z))
        return -float(value), -np.append(gradient["rate"], gradient["share"]).astype(float)

    def param_constrain(self, z):
        x = self.inner.postprocess_fn(self.of(z))
        return np.append(x["rate"], x["share"]).astype(float)


def draws_of(density, kernel=numpyro_fwd.MALA, num_chains=4, num_samples=2000, **options):
    """Draws of all chains by the name of the site."""
    mcmc = MCMC(
        kernel(potential_fn=density.potential_fn, **options),
        postprocess_fn=density.postprocess_fn,
        num_warmup=400,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), init_params=density.starts(jax.random.key(0), num_chains))
    return arviz_base.from_numpyro(mcmc).posterior


@pytest.mark.long
@pytest.mark.parametrize("num_chains", [1, 4])
def test_a_function_with_bounds(num_chains):
    draws = draws_of(plain(), num_chains=num_chains, num_samples=8000 // num_chains)
    for name, (mean, sd) in TRUTH.items():
        np.testing.assert_allclose(draws[name].mean(("chain", "draw")), mean, atol=0.2 * sd)
        np.testing.assert_allclose(draws[name].std(("chain", "draw")), sd, rtol=0.2)
    assert draws["share"].dims[:2] == ("chain", "draw")


def test_the_jacobian_is_that_of_the_density():
    """Probabilities of the unconstrained positions: they integrate to those of the supports."""
    density = Density(lambda x: -x["a"], {"a": 1.0}, {"a": constraints.positive})
    z = jnp.linspace(-20.0, 5.0, 20_001)
    values = jnp.exp(-jax.vmap(lambda one: density.potential_fn({"a": one}))(z))
    assert abs(float(values.sum() * (z[1] - z[0])) - 1.0) < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("kernel", [numpyro_fwd.MALA, numpyro_fwd.FMALA])
def test_a_model_of_stan(kernel):
    """As far as bridgestan's methods go: its compiler is not at hand."""
    draws = draws_of(Density.from_stan(Stan()), kernel, 2, 300, warm_start=False)
    assert set(draws.data_vars) == {"rate", "share.1", "share.2"}
    assert abs(float(draws["rate"].mean()) - 1.5) < 0.6
    assert 0.0 < float(draws["share.1"].min()) and float(draws["share.2"].max()) < 1.0


def test_a_model_of_pymc():
    pymc = pytest.importorskip("pymc")
    rng = np.random.default_rng(0)
    with pymc.Model() as model:
        mean = pymc.Normal("mean", 0, 10)
        scale = pymc.HalfNormal("scale", 5)
        pymc.Deterministic("ratio", mean / scale)
        pymc.Normal("y", mean, scale, observed=2.0 + rng.normal(size=100))
    try:
        draws = draws_of(Density.from_pymc(model))
    finally:
        jax.config.update("jax_enable_x64", False)  # which PyMC switches on
    assert set(draws.data_vars) == {"mean", "scale", "ratio"}
    np.testing.assert_allclose(draws["ratio"], draws["mean"] / draws["scale"], rtol=1e-4)
    assert abs(float(draws["mean"].mean()) - 2.0) < 0.3
    assert abs(float(draws["scale"].mean()) - 1.0) < 0.3
    with pymc.Model() as model:
        pymc.Poisson("number", 3)
    with pytest.raises(ValueError, match="continuous variables alone; 'number' is discrete"):
        Density.from_pymc(model)


@pytest.mark.parametrize(
    "first, supports, message",
    [
        ({"a": 1.0}, {"b": constraints.positive}, "arrays in first, a; got 'b'"),
        ({"a": -1.0}, {"a": constraints.positive}, r"first\['a'\] must be within .*got -1.0"),
    ],
)
def test_bad_arguments(first, supports, message):
    with pytest.raises(ValueError, match=message):
        Density(lambda x: 0.0, first, supports)
