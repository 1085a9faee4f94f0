"""Arguments of models and models that a kernel or a metric cannot take: errors that say what is."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.reparam import NeuTraReparam

from numpyro_fwd import AMAGOLD, L2MC, MALA, AutoNUTS, LangevinSMC
from numpyro_fwd.bridge.arguments import split_arguments
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.separate_rows import checked_rows

NUM_ROWS, BATCH = 12, 5
X = np.random.default_rng(0).normal(size=(NUM_ROWS, 2))
Y = X.sum(axis=1)
DATES = np.arange("2020-01-01", "2020-01-13", dtype="datetime64[D]")


def run(kernel, *args, **kwargs):
    mcmc = MCMC(kernel, num_warmup=3, num_samples=3, progress_bar=False)
    mcmc.run(jax.random.key(0), *args, **kwargs)
    return mcmc.get_samples()


def raises(error, *parts):
    """Raises `error` with a message that holds every one of `parts`, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


# --- arguments that are not arrays of numbers -----------------------------------------------------


def mean():
    return numpyro.sample("mean", dist.Normal(0, 1))


def observed(y):
    numpyro.sample("y", dist.Normal(mean(), 1.0), obs=y)


class Opaque:
    """Not an array."""


@pytest.mark.filterwarnings("ignore:.*requires ndarray or scalar:DeprecationWarning")
@pytest.mark.parametrize(
    ("y", "parts"),
    [
        (Y.astype(object), ("argument 0", "ndarray of dtype object and shape (12,)")),
        (Y.astype(str), ("argument 0", "dtype <U")),
        (Y.astype(bytes), ("argument 0", "dtype |S")),
        (DATES, ("argument 0", "datetime64[D]")),
        (np.ma.masked_array(Y, Y > 0), ("argument 0", "MaskedArray", "filled")),
        ("many", ("argument 0 is a str",)),
        ([1.0, 2.0], ("argument 0 is a list",)),
        (Opaque(), ("argument 0 is a Opaque",)),
    ],
    ids=["object", "str", "bytes", "dates", "masked", "string", "list", "opaque"],
)
def test_what_is_observed_must_be_numbers(y, parts):
    with raises(TypeError, "not an array of numbers", *parts):
        run(MALA(observed), y)


def test_the_keyword_and_the_place_inside_are_named():
    def model(data=None):
        observed(data["y"])

    with raises(TypeError, "argument 'data'['y'] is a ndarray of dtype object"):
        run(MALA(model), data={"x": X, "y": Y.astype(object)})


def test_a_column_of_a_table():
    pandas = pytest.importorskip("pandas")

    def model(table):
        numpyro.sample("y", dist.Normal(mean(), 1.0), obs=table["y"])

    with raises(TypeError, "NumPy or pandas", "Give arrays of jax"):
        run(MALA(model), pandas.DataFrame({"y": Y}))


def test_errors_about_something_else_stay_what_they_are():
    def model(name):
        raise ValueError(f"no data of the name {name}")

    with raises(ValueError, "no data of the name many"):
        run(MALA(model), "many")


# --- arguments that are not arrays of numbers, and may be used ------------------------------------


def by_shape(shape):
    numpyro.sample("x", dist.Normal(0, 1).expand(tuple(np.atleast_1d(shape))))
    numpyro.factor("zero", jnp.zeros(shape).sum())


def by_name(kind):
    numpyro.sample("x", {"narrow": dist.Normal(0, 0.1), "wide": dist.Normal(0, 9.0)}[str(kind)])


def by_group(names):
    group = jnp.asarray([{"a": 0, "b": 1}[name] for name in names])
    x = numpyro.sample("x", dist.Normal(0, 1).expand([2]))
    numpyro.sample("y", dist.Normal(x[group], 1.0), obs=Y[: len(names)])


def by_day(dates):
    days = (dates - dates[0]) / np.timedelta64(1, "D")
    numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal(0, 1)) * days, 1.0), obs=Y)


def by_mask(y):
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1.0).mask(~np.asarray(y.mask)), obs=y.filled(0.0))


def by_flag(is_wide):
    numpyro.sample("x", dist.Normal(0, 9.0 if is_wide else 0.1))


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "argument"),
    [
        (by_shape, np.array(3)),
        (by_shape, jnp.array(3)),
        (by_shape, np.int64(3)),
        (by_shape, np.array([2, 2])),
        (by_name, "wide"),
        (by_name, np.array("narrow")),
        (by_group, np.array(list("abba"))),
        (by_group, np.array(list("abba"), object)),
        (by_day, DATES),
        (by_mask, np.ma.masked_array(Y, Y > 0)),
        (by_flag, np.array(True)),
        (by_flag, np.True_),
    ],
)
def test_what_a_model_may_use_before_it_computes(model, argument):
    assert np.isfinite(run(MALA(model), argument)["x"]).all()


@pytest.mark.long
def test_a_table():
    pandas = pytest.importorskip("pandas")

    def model(table):
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(x * table["x"].to_numpy(), 1.0), obs=table["y"].to_numpy())

    assert np.isfinite(run(MALA(model), pandas.DataFrame({"x": X[:, 0], "y": Y}))["x"]).all()


def test_whole_numbers_without_axes_are_no_arrays():
    split = split_arguments((np.array(3), jnp.array(True), np.array(3.0), np.array([3])), {})
    assert [np.shape(array) for array in split.arrays] == [(), (1,)]
    assert split.join(split.arrays)[0][0].shape == ()


def test_keys_tell_types_and_values_apart():
    arguments = [1, 1.0, True, np.array(1), np.array(2), np.int32(1), "1", None, jnp.tanh]
    keys = [split_arguments((argument,), {}).key for argument in arguments]
    assert None not in keys and len(set(keys)) == len(keys)
    assert split_arguments((np.array(1),), {}).key == keys[3]


@pytest.mark.parametrize("argument", [Opaque(), np.array(["a"]), np.array(None), {1}])
def test_what_may_change_unseen_has_no_key(argument):
    assert split_arguments((argument,), {}).key is None


# --- subsample plates -----------------------------------------------------------------------------


def slope():
    return numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))


def rows_of(size=NUM_ROWS, batch=BATCH):
    return numpyro.plate("rows", size, subsample_size=batch)


def whole_observed(x, y):
    b = slope()
    with rows_of() as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ b, 1.0), obs=y)


def whole_observed_and_a_scalar(x, y):
    b = slope()
    with rows_of() as _:
        numpyro.sample("y", dist.Normal(b[0], 1.0), obs=y)


def whole_observed_in_batches_of_one(x, y):
    b = slope()
    with rows_of(batch=1) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ b, 1.0), obs=y)


def whole_covariates(x, y):
    b = slope()
    with rows_of() as rows:
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y[rows])


def whole_factor(x, y):
    b = slope()
    with rows_of() as _:
        numpyro.factor("y", dist.Normal(x @ b, 1.0).log_prob(y))


def whole_columns(x, y):
    b = slope()
    with numpyro.plate("columns", 2, dim=-1), rows_of() as rows:
        del rows
        numpyro.sample("y", dist.Normal(b, 1.0), obs=x)


@pytest.mark.parametrize(
    "model",
    [
        whole_observed,
        whole_observed_and_a_scalar,
        whole_observed_in_batches_of_one,
        whole_covariates,
        whole_factor,
        whole_columns,
    ],
)
def test_arrays_that_do_not_follow_the_rows(model):
    with raises(ValueError, "site 'y' does not follow the rows", "obs=y[rows]", "{'rows': 2}"):
        checked_rows(FullView(model), (X, Y), {})


def test_a_plate_of_two_rows():
    def model(y):
        with rows_of(2, 1):
            numpyro.sample("y", dist.Normal(mean(), 1.0), obs=y)

    def outside(y):
        location = mean()
        with rows_of(2, 1):
            numpyro.sample("y", dist.Normal(location, 1.0), obs=y)

    with raises(ValueError, "latent site 'mean'"):
        checked_rows(FullView(model), (Y[:2],), {})
    with raises(ValueError, "site 'y' does not follow the rows", "{'rows': 3}"):
        checked_rows(FullView(outside), (Y[:2],), {})


def test_an_array_of_numpy_indexed_by_rows():
    def model():
        b = slope()
        with rows_of() as rows:
            numpyro.sample("y", dist.Normal(jnp.asarray(X)[rows] @ b, 1.0), obs=Y[rows])

    with raises(TypeError, "array of NumPy", "jnp.asarray(x)[rows]"):
        run(AMAGOLD(model))


@pytest.mark.long
def test_sizes_may_be_whole_numbers_without_axes():
    def model(y, size, batch):
        location = mean()
        with rows_of(size, batch) as rows:
            numpyro.sample("y", dist.Normal(location, 1.0), obs=y[rows])

    draws = run(AMAGOLD(model), Y, np.array(NUM_ROWS), np.array(BATCH))
    assert np.isfinite(draws["mean"]).all()


# --- starts ---------------------------------------------------------------------------------------


def hardly_anywhere(z=101.0):
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.factor("near", jnp.where(jnp.abs(a - z) < 1, 0.0, -jnp.inf))


@pytest.mark.long
def test_given_starts_serve_where_random_ones_have_no_density():
    mcmc = MCMC(MALA(hardly_anywhere), num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), init_params={"a": jnp.array(100.5)})
    assert (jnp.abs(mcmc.get_samples()["a"] - 101.0) < 1).all()


@pytest.mark.long
def test_given_starts_without_density_are_said_to_have_none():
    mcmc = MCMC(MALA(hardly_anywhere), num_warmup=20, num_samples=20, progress_bar=False)
    with pytest.raises(ValueError, match="init_params must have a finite log density"):
        mcmc.run(jax.random.key(0), init_params={"a": jnp.array(90.0)})


# --- an error adds a cause only where it has shown it ---------------------------------------------

HOLE = jnp.asarray(Y).at[3].set(jnp.nan)


def with_hole(y, fault):
    """NaN in masked data, and a fault of the model that has nothing to do with it."""
    m = numpyro.sample("m", dist.Normal(0, 1).expand([3]).to_event(1))
    if fault == "shapes":
        m = m + jnp.ones(2)
    if fault == "scale":
        numpyro.sample("z", dist.Normal(0, jnp.array(-1.0)), obs=0.0)
    if fault == "numpy":
        m = m + np.exp(m)
    if fault == "wall":
        numpyro.factor("wall", -jnp.inf + m[0])
    with numpyro.handlers.mask(mask=~jnp.isnan(y)), numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m[0], 1.0), obs=jnp.nan_to_num(y))


@pytest.mark.first
@pytest.mark.parametrize("kernel", [MALA, AutoNUTS, AMAGOLD, L2MC])
@pytest.mark.parametrize(
    ("fault", "words"),
    [("shapes", "broadcast"), ("scale", "invalid scale"), ("numpy", "NumPy"), ("wall", "'wall'")],
)
def test_a_hole_in_masked_data_is_not_to_blame(kernel, fault, words):
    """Nor are subsample plates, which the model has not, nor a string that it may read."""
    if kernel is AMAGOLD and fault in ("scale", "wall"):
        words = "no plate with a subsample_size"  # which is true, too
    with pytest.raises((TypeError, ValueError), match=words) as raised:
        run(kernel(with_hole), HOLE, fault)
    for blamed in ("is nan", "subsample plates", "argument 1"):
        assert blamed not in str(raised.value)


def test_what_fails_with_minibatches_too_has_nothing_to_do_with_all_rows():
    def model(y, is_of_rows):
        m = numpyro.sample("m", dist.Normal(0, 1).expand([NUM_ROWS]).to_event(1))
        with rows_of() as rows:
            error = jnp.ones(BATCH if is_of_rows else 3)
            numpyro.sample("y", dist.Normal(m[rows] + error, 1.0), obs=y[rows])

    with raises(ValueError, "does not run with all rows in its subsample plates"):
        run(AMAGOLD(model), jnp.asarray(Y), True)
    with pytest.raises((TypeError, ValueError), match="broadcast") as raised:
        run(AMAGOLD(model), jnp.asarray(Y), False)
    assert "subsample plates" not in str(raised.value)


def test_a_model_that_is_neutralized_has_no_mask():
    guide = AutoDiagonalNormal(mean)
    svi = SVI(mean, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    params = svi.run(jax.random.key(0), 2, progress_bar=False).params
    neutral = NeuTraReparam(guide, params).reparam(mean)
    with raises(ValueError, "'auto_shared_latent'", "NeuTraReparam", "reparametrization out"):
        LangevinSMC(neutral).init(jax.random.split(jax.random.key(0), 4), 0, None, (), {})
