"""A run reads a model by a few traces, and by new ones whatever they could not tell."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC
from numpyro.infer.util import potential_energy

import numpyro_fwd
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.row_models import RowModel
from tests import fixed_seeds

NUM_GROUPS = 60
SUBSAMPLED = {"acceptance": "subsampled"}


def in_groups(x, y):
    """As `fixed_seeds.on_minibatches`, with an effect of each group."""
    w = numpyro.sample("w", dist.Normal(0, 2).expand([3]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0, 1).expand([NUM_GROUPS]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=40) as rows:
        numpyro.sample("y", dist.BernoulliLogits(x[rows] @ w + a[rows % NUM_GROUPS]), obs=y[rows])


class Counted:
    """A model that counts how often it runs."""

    def __init__(self, model):
        self.model, self.count = model, 0

    def __call__(self, *args, **kwargs):
        self.count += 1
        return self.model(*args, **kwargs)

    def runs(self, function, *arguments):
        """How often it runs while a function does."""
        before = self.count
        function(*arguments)
        return self.count - before


# the most that a run may take: NUTS, which checks nothing of rows, takes three
TRACES = {
    "MALA": ("MALA", fixed_seeds.regression, {}, 4),
    "FMALA": ("FMALA", fixed_seeds.regression, {}, 4),
    "AMAGOLD": ("AMAGOLD", fixed_seeds.on_minibatches, {}, 11),
    "AMAGOLD_subsampled": ("AMAGOLD", fixed_seeds.on_minibatches, SUBSAMPLED, 11),
    "AMAGOLD_groups": ("AMAGOLD", in_groups, SUBSAMPLED, 12),
}


@pytest.mark.first
@pytest.mark.parametrize("name", TRACES)
def test_a_run_traces_the_model_a_few_times(name):
    kernel, model, options, most = TRACES[name]
    model = Counted(model)
    mcmc = MCMC(
        getattr(numpyro_fwd, kernel)(model, **options),
        num_warmup=20,
        num_samples=10,
        progress_bar=False,
    )
    assert model.runs(mcmc.run, jax.random.key(0), *map(jnp.asarray, fixed_seeds.table())) <= most


def shifted(y):
    """A model that reads what is not among its arguments."""
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("rows", len(y), subsample_size=SHIFT["batch"]) as rows:
        numpyro.sample("y", dist.Normal(mean + SHIFT["is"], 1), obs=y[rows])


def masked(y, keep):
    """A model whose number of rows depends on the values of an argument."""
    mean, y = numpyro.sample("mean", dist.Normal(0, 10)), y[keep]
    with numpyro.plate("rows", len(y), subsample_size=10) as rows:
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])


SHIFT = {"is": 0.0, "batch": 10}
LATER = {
    "MALA": ("MALA", {}, 50),
    "AMAGOLD": ("AMAGOLD", {"control_variate": None}, 10),
}


@pytest.mark.long
@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.parametrize("name", LATER)
def test_what_a_model_reads_may_change_between_runs(name, num_chains, monkeypatch):
    """Also where the first run has traced no step for its last chain."""
    kernel, options, batch = LATER[name]
    monkeypatch.setitem(SHIFT, "batch", batch)
    mcmc = MCMC(
        getattr(numpyro_fwd, kernel)(shifted, **options),
        num_warmup=20,
        num_samples=10,
        num_chains=num_chains,
        chain_method="sequential",
        progress_bar=False,
    )
    y = jnp.zeros(50)
    mcmc.run(jax.random.key(0), y)
    monkeypatch.setitem(SHIFT, "is", 5.0)
    state = mcmc.sampler.refresh(mcmc.last_state, (y,), {})
    np.testing.assert_allclose(state.potential_energy, energy_of(shifted, state, y), rtol=1e-4)


@pytest.mark.long
def test_a_mask_may_change_between_runs():
    y = jnp.linspace(-1, 1, 200)
    mcmc = MCMC(
        numpyro_fwd.AMAGOLD(masked, control_variate=None),
        num_warmup=20,
        num_samples=10,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), y, np.arange(200) < 40)
    every = np.ones(200, bool)
    state = mcmc.sampler.refresh(mcmc.last_state, (y, every), {})
    np.testing.assert_allclose(state.potential_energy, energy_of(masked, state, y, every), 1e-4)


def energy_of(model, state, *args):
    """NumPyro's energy of all rows where chains are."""
    view = FullView(model)
    z = {"mean": jnp.ravel(state.z["mean"])}
    return jax.vmap(lambda z: potential_energy(view, args, {}, z))(z).reshape(
        np.shape(state.potential_energy)
    )


def plain(y, shift=0.0, keep=None):
    """Rows of a normal, some of which may be left out."""
    mean = numpyro.sample("mean", dist.Normal(shift, 1))
    if keep is not None:
        y = y[keep]
    with numpyro.plate("rows", len(y), subsample_size=1) as rows:
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])


Z = {"mean": jnp.array(0.3)}
Y = jnp.array([1.0, 2.0, 4.0])


def total(model):
    """The log density of all rows, less that of the prior."""
    return float(model.terms(Z).total(["y"]))


def expected(y):
    """The same by hand."""
    return float(dist.Normal(0.3, 1).log_prob(y).sum())


@pytest.mark.long
def test_one_trace_serves_other_values():
    counted = Counted(plain)
    model = RowModel.of(FullView(counted), (Y,), {})
    assert counted.runs(total, model) == 1
    other = model.having((2 * Y,), {})
    assert counted.runs(total, other) == 0
    np.testing.assert_allclose([total(model), total(other)], [expected(Y), expected(2 * Y)], 1e-6)


@pytest.mark.parametrize(
    "args, kwargs", [((Y[:2],), {}), ((Y,), {"shift": 1.0}), ((Y.astype(int),), {})]
)
def test_other_arguments_are_traced_anew(args, kwargs):
    counted = Counted(plain)
    model = RowModel.of(FullView(counted), (Y,), {})
    total(model)
    other = model.having(args, kwargs)
    assert counted.runs(total, other) == 1
    assert other.plates["rows"].size == len(args[0])
    np.testing.assert_allclose(total(other), expected(args[0]), 1e-6)


@pytest.mark.long
def test_a_model_that_needs_values_is_read_with_them():
    keep = np.array([True, False, True])
    model = RowModel.of(FullView(plain), (Y,), {"keep": keep})
    assert model.plates["rows"].size == 2
    np.testing.assert_allclose(total(model), expected(Y[keep]), 1e-6)


def test_shapes_alone_are_kept_of_the_data():
    kept = RowModel.of(FullView(plain), (Y,), {}).without_data()
    assert not any(isinstance(leaf, jax.Array) for leaf in kept.arguments.arrays)
    np.testing.assert_allclose(total(kept.having((Y,), {})), expected(Y), 1e-6)
