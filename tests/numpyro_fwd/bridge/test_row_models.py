"""A run reads a model by a few traces, and by new ones whatever they could not tell."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

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
    "MALA": ("MALA", fixed_seeds.regression, {}, 2),
    "FMALA": ("FMALA", fixed_seeds.regression, {}, 2),
    "AMAGOLD": ("AMAGOLD", fixed_seeds.on_minibatches, {}, 12),
    "AMAGOLD_subsampled": ("AMAGOLD", fixed_seeds.on_minibatches, SUBSAMPLED, 12),
    "AMAGOLD_groups": ("AMAGOLD", in_groups, SUBSAMPLED, 12),
}


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


def test_steps_of_a_later_program_trace_the_model_anew():
    """It may read what is not among its arguments, and that may have changed."""
    model = Counted(fixed_seeds.on_minibatches)
    args = tuple(map(jnp.asarray, fixed_seeds.table()))
    kernel = numpyro_fwd.AMAGOLD(model, warm_start=False, **SUBSAMPLED)
    state = kernel.init(jax.random.key(0), 0, None, args, {})

    def step():
        jax.eval_shape(lambda state: kernel.sample(state, args, {}), state)

    first, second = model.runs(step), model.runs(step)
    assert first < second


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


def test_a_model_that_needs_values_is_read_with_them():
    keep = np.array([True, False, True])
    model = RowModel.of(FullView(plain), (Y,), {"keep": keep})
    assert model.plates["rows"].size == 2
    np.testing.assert_allclose(total(model), expected(Y[keep]), 1e-6)


def test_shapes_alone_are_kept_of_the_data():
    kept = RowModel.of(FullView(plain), (Y,), {}).without_data()
    assert not any(isinstance(leaf, jax.Array) for leaf in kept.arguments.arrays)
    np.testing.assert_allclose(total(kept.having((Y,), {})), expected(Y), 1e-6)
