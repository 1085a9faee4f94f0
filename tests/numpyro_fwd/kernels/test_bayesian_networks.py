"""AMAGOLD samples networks of flax whose parameters all have a prior."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.contrib.module import random_flax_module, random_nnx_module
from numpyro.infer import MCMC, Predictive

from blackjax_ext.raising import Raised
from numpyro_fwd import AMAGOLD
from numpyro_fwd.bridge import plates
from numpyro_fwd.bridge.row_models import RowModel, stochastic_potential
from numpyro_fwd.kernels.strategy import Run

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")

WIDTHS = (3, 16, 8, 1)
SIZE = sum(a * b + b for a, b in itertools.pairwise(WIDTHS))  # 209
RNG = np.random.default_rng(80)
X = RNG.normal(size=(200, 3)).astype(np.float32)
Y = (np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=200)).astype(np.float32)


class Linen(linen.Module):
    """A network with two hidden layers."""

    @linen.compact
    def __call__(self, x):
        """Outputs (B,) at inputs (B, 3)."""
        for width in WIDTHS[1:-1]:
            x = linen.relu(linen.Dense(width)(x))
        return linen.Dense(1)(x)[..., 0]


class NNX(nnx.Module):
    """The same in the other interface of flax."""

    def __init__(self, rngs):
        pairs = itertools.pairwise(WIDTHS)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x):
        """Outputs (B,) at inputs (B, 3)."""
        *hidden, last = self.layers
        for layer in hidden:
            x = nnx.relu(layer(x))
        return last(x)[..., 0]


MODULE = NNX(nnx.Rngs(0))


def network(name):
    """The network as a function of its inputs, its parameters standard normal."""
    if name == "linen":
        return random_flax_module("net", Linen(), dist.Normal(0, 1), input_shape=(3,))
    return random_nnx_module("net", MODULE, dist.Normal(0, 1))


def regression(name):
    def model(x, y=None):
        net = network(name)
        with numpyro.plate("rows", len(x), subsample_size=50) as rows:
            mean = numpyro.deterministic("mean", net(x[rows]))
            numpyro.sample("y", dist.Normal(mean, 0.2), obs=None if y is None else y[rows])

    return model


@pytest.mark.long
@pytest.mark.parametrize("name", ["linen", pytest.param("nnx", marks=pytest.mark.full)])
def test_network_is_sampled_without_an_anchor(name):
    kernel = AMAGOLD(
        regression(name),
        control_variate=None,
        resample_momentum=False,
        friction=2.0,
        num_epochs=1500,
        optimizer=optax.adam(0.01),
        step_size=0.02,
        adapt_mass_matrix=False,
    )
    mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
    mcmc.run(jax.random.key(81), X, Y, extra_fields=("accept_prob", "potential_energy"))
    draws = mcmc.get_samples()
    assert sum(leaf[0].size for key, leaf in draws.items() if key != "mean") == SIZE
    fields = mcmc.get_extra_fields()
    assert 0.4 < fields["accept_prob"].mean() < 0.95
    assert np.unique(fields["potential_energy"]).size > 50
    draws.pop("mean")
    predicted = Predictive(kernel.model, draws)(jax.random.key(82), X)["mean"]
    assert predicted.shape == (200, 200)
    # a tenth of the variance of the responses, where the noise alone is a fiftieth
    assert np.mean((predicted.mean(axis=0) - Y) ** 2) < 0.1 * Y.var()


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("linen", marks=pytest.mark.full), "nnx"])
def test_optimizer_goes_down(name):
    kernel = AMAGOLD(regression(name), control_variate=None, num_epochs=20)
    first = kernel.init(jax.random.key(83), 0, None, (X, Y), {})
    later = kernel.init(jax.random.key(83), 10, None, (X, Y), {})
    assert later.potential_energy < 0.8 * first.potential_energy


def test_start_is_that_of_the_optimizer_in_many_dimensions():
    strategy = AMAGOLD(regression("linen"), control_variate=None)._strategy
    run = Run(None, None, 10, True, True, {}, Raised())
    assert strategy._epochs(run, 500) == 0 and strategy._epochs(run, 600) == 3
    assert strategy._epochs(run._replace(is_searching=False), 600) == 0


@pytest.mark.long
def test_partly_random_network_raises():
    def model(x, y):
        prior = {"Dense_0.kernel": dist.Normal(0, 1)}
        net = random_flax_module("net", Linen(), prior, input_shape=(3,))
        with numpyro.plate("rows", len(x), subsample_size=50) as rows:
            numpyro.sample("y", dist.Normal(net(x[rows]), 0.2), obs=y[rows])

    with pytest.raises(ValueError, match=r"param site 'net\$params'"):
        AMAGOLD(model, control_variate=None).init(jax.random.key(0), 0, None, (X, Y), {})


def test_networks_are_not_drawn_again():
    view = plates.FullView(regression("linen"))
    potential = stochastic_potential(RowModel.of(view, (X, Y), {}))
    z = {
        name: jnp.zeros(site["value"].shape)
        for name, site in plates.traced_view(view, (X, Y), {}).sites.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    program = str(jax.make_jaxpr(lambda z: potential.potential(z).value())(z))
    assert "random_bits" not in program and "random_split" not in program
