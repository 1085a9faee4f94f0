"""The minibatch view and the full view are the same model, and what cannot be viewed raises."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import log_density, potential_energy

from blackjax_ext.rows.compensated_sums import rows_at_once
from numpyro_fwd.bridge import row_models
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.row_models import RowModel, stochastic_potential
from numpyro_fwd.bridge.separate_rows import checked_rows

NUM_ROWS, BATCH = 103, 10
RNG = np.random.default_rng(40)
X, Y, W = RNG.normal(size=(NUM_ROWS, 2)), RNG.normal(size=NUM_ROWS), RNG.normal(size=(31, 3))
Z = {"slope": np.array([0.3, -0.2]), "scale": np.array(-0.4)}


def model(x, y, w, batch=BATCH):
    """Two data sets of different sizes, one of them in nested plates, with a constrained latent."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("x", len(x), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ slope, scale), obs=y[rows])
    with numpyro.plate("columns", 3, dim=-1), numpyro.plate("w", 31, subsample_size=5, dim=-2):
        values = numpyro.subsample(w, event_dim=0)
        numpyro.sample("z", dist.StudentT(4.0, slope[0], scale), obs=values)


def whole(x, y, w):
    """The same without minibatches."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ slope, scale), obs=y)
    numpyro.sample("z", dist.StudentT(4.0, slope[0], scale), obs=w)


def crossed(w):
    """Rows and columns are both subsampled."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("columns", 3, subsample_size=2, dim=-1) as columns:
        with numpyro.plate("rows", 31, subsample_size=5, dim=-2) as rows:
            numpyro.sample("w", dist.Normal(mean, 1.0), obs=w[rows][:, columns])


def energy_is_that_of_the_whole_model(chunk_size):
    potential = stochastic_potential(RowModel.of(FullView(model), (X, Y, W), {}), chunk_size)
    expected, gradient = jax.value_and_grad(lambda z: potential_energy(whole, (X, Y, W), {}, z))(Z)
    found = jax.jit(jax.value_and_grad(lambda z: potential.potential(z).value()))(Z)
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(found[1])[0], ravel_pytree(gradient)[0], rtol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_energy_is_that_of_the_whole_model(chunk_size, x64):
    energy_is_that_of_the_whole_model(chunk_size)


@pytest.mark.long
def test_gradient_is_unbiased(x64):
    potential = stochastic_potential(RowModel.of(FullView(model), (X, Y, W), {}))
    keys = jax.random.split(jax.random.key(41), 20_000)

    @jax.jit
    @jax.vmap
    def draws(key):
        return ravel_pytree(potential.stochastic_grad(Z, potential.draw(key)))[0]

    found = np.asarray(draws(keys))
    exact = ravel_pytree(jax.grad(lambda z: potential.potential(z).value())(Z))[0]
    errors = (found.mean(axis=0) - exact) / (found.std(axis=0) / np.sqrt(len(keys)))
    assert np.all(np.abs(errors) < 4.5), errors
    assert np.all(found.std(axis=0) > 1.0)


@pytest.mark.long
def test_minibatches_have_the_rows_of_each_plate(x64):
    potential = stochastic_potential(RowModel.of(FullView(model), (X, Y, W), {}))
    rows = potential.draw(jax.random.key(0))
    assert {name: each.shape for name, each in rows.items()} == {"x": (BATCH,), "w": (5,)}
    assert potential.num_rows == NUM_ROWS + 31
    assert 0 <= rows["w"].min() and rows["w"].max() < 31


@pytest.mark.long
def test_sites_in_two_subsample_plates(x64):
    potential = stochastic_potential(RowModel.of(FullView(crossed), (W,), {}), 4)
    checked_rows(FullView(crossed), (W,), {})
    assert potential.num_rows == 0
    z = {"mean": jnp.array(0.3)}
    expected = 0.5 * 0.3**2 + 0.5 * np.sum((W - 0.3) ** 2) + 0.5 * 94 * np.log(2 * np.pi)
    np.testing.assert_allclose(potential.potential(z).value(), expected, rtol=1e-12)


@pytest.mark.long
def test_full_view_is_a_model_with_all_rows(x64):
    values = {"slope": Z["slope"], "scale": jnp.array(0.7)}
    found, sites = log_density(FullView(model), (X, Y, W), {}, values)
    np.testing.assert_allclose(found, log_density(whole, (X, Y, W), {}, values)[0], rtol=1e-12)
    assert sites["y"]["value"].shape == (NUM_ROWS,)


@pytest.mark.long
def test_memory_is_that_of_a_chunk():
    rows = 200_000

    def wide(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([8]).to_event(1))
        with numpyro.plate("rows", rows, subsample_size=10) as i:
            numpyro.sample("y", dist.Normal(jnp.tanh(y[i, None] * mean).sum(-1), 1.0), obs=y[i])

    def energy(y, z):
        potential = stochastic_potential(RowModel.of(FullView(wide), (y,), {}), 1000)
        return potential.potential(z).value()

    y, z = jnp.zeros(rows), {"mean": jnp.ones(8)}
    for function in (energy, jax.grad(energy, argnums=1)):
        memory = jax.jit(function).lower(y, z).compile().memory_analysis()
        assert memory.temp_size_in_bytes < 1e6, memory.temp_size_in_bytes


def test_default_chunk_is_bounded_by_its_intermediates():
    few, many = (
        rows_at_once(lambda rows, width=width: jnp.ones((1000, width))[rows].sum(1), 10**9)
        for width in (10, 1000)
    )
    assert 50 * many < few < 200 * many
    assert 2**24 < 4 * 1000 * many < 2**26
    assert rows_at_once(lambda rows: rows, 100) == 100
    chunk = rows_at_once(lambda rows: jnp.ones((1000, 10))[rows].sum(1), few + few // 2)
    assert chunk == -(-(few + few // 2) // 2)  # two of equal length


def mean():
    return numpyro.sample("mean", dist.Normal(0, 1))


def rows_of(size=NUM_ROWS, batch=BATCH):
    return numpyro.plate("rows", size, subsample_size=batch)


def without_plate(y):
    numpyro.sample("y", dist.Normal(mean(), 1.0), obs=y)


def latent_inside(y):
    with rows_of() as i:
        numpyro.sample("y", dist.Normal(numpyro.sample("local", dist.Normal(0, 1)), 1), obs=y[i])


def batched(y):
    location = mean()
    with rows_of():
        numpyro.sample("y", dist.Normal(location, 1.0), obs=y[:BATCH])


def too_short(y):
    location = mean()
    with rows_of() as i:
        numpyro.sample("y", dist.Normal(location, 1.0), obs=y[:BATCH][i])


class OfAllRows(dist.Normal):
    """A law that knows how many rows there are."""

    def log_prob(self, value):
        """Of all rows."""
        return super().log_prob(value) + jnp.zeros(NUM_ROWS)


def law_of_all_rows(y):
    location = mean()
    with rows_of() as i:
        numpyro.sample("y", OfAllRows(location, 1.0), obs=y[i])


def column_against_row(y):
    location = mean()
    with rows_of() as i:
        numpyro.sample("y", dist.Normal(location, 1.0), obs=y[i][:, None])


def scalar_factor(y):
    location = mean()
    with rows_of() as i:
        numpyro.sample("y", dist.Normal(location, 1.0), obs=y[i])
        numpyro.factor("penalty", -(location**2))


def discrete(y):
    location = numpyro.sample("location", dist.Bernoulli(0.5))
    with rows_of() as i:
        numpyro.sample("y", dist.Normal(location, 1.0), obs=y[i])


def discrete_without_plate(y):
    location = numpyro.sample("location", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(location, 1.0), obs=y)


def outside(y):
    with rows_of():
        pass
    without_plate(y)


def without_data(y):
    del y
    location = mean()
    with rows_of():
        numpyro.sample("y", dist.Normal(location, 1.0))


def batch_of(batch):
    def sized(y):
        location = mean()
        with rows_of(batch=batch) as i:
            numpyro.sample("y", dist.Normal(location, 1.0), obs=y[i])

    return sized


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (without_plate, "no plate with a subsample_size"),
        (without_data, "no observed site, so no rows to subsample"),
        (latent_inside, "latent site 'local' lies inside the subsample plate 'rows'"),
        (batched, "site 'y' has values of shape"),
        (too_short, "reads rows that are not there"),
        (law_of_all_rows, "site 'y' does not follow the rows"),
        (column_against_row, "site 'y' has values of shape"),
        (scalar_factor, "factor site 'penalty'"),
        (discrete, "site 'location' is a discrete latent"),
        (discrete_without_plate, "site 'location' is a discrete latent"),
        (outside, "no observed site lies inside"),
        (batch_of(0), "plate 'rows' must have a subsample_size from 1"),
        (batch_of(NUM_ROWS + 1), "plate 'rows' must have a subsample_size from 1"),
    ],
)
def test_models_without_a_minibatch_view_raise(bad, message):
    with pytest.raises(ValueError, match=message):
        checked_rows(FullView(bad), (Y,), {})


def test_the_support_of_a_latent_may_depend_on_data_and_latents(x64):
    def model(y):
        width = numpyro.sample("width", dist.HalfNormal(1.0))
        location = numpyro.sample("location", dist.Uniform(y.min(), y.max() + width))
        with rows_of() as i:
            numpyro.sample("y", dist.Normal(location, 1.0), obs=y[i])

    rows = checked_rows(FullView(model), (Y,), {})
    z = {name: 0.3 + zero for name, zero in rows.traced.zeros.items()}
    expected = potential_energy(FullView(model), (Y,), {}, z)
    np.testing.assert_allclose(-rows.terms(z).total(), expected, rtol=1e-12)


def test_traced_batch_size_raises():
    def energy(batch):
        stochastic_potential(RowModel.of(FullView(batch_of(batch)), (Y,), {}))

    with pytest.raises(TypeError, match="whole numbers, not traced"):
        jax.jit(energy)(10)


def test_model_must_be_callable():
    with pytest.raises(TypeError, match="model must be callable; got int"):
        FullView(3)


def scale_forgotten(terms, plate, length):
    """The chunks keep the scale N/B of the plate."""
    return (NUM_ROWS / length) * TRUE_PER_ROW(terms, plate, length)


TRUE_PER_ROW = row_models.per_row


@pytest.mark.long
def test_law_of_the_energy_finds_a_forgotten_scale(monkeypatch, x64):
    monkeypatch.setattr(row_models, "per_row", scale_forgotten)
    with pytest.raises(AssertionError, match="Not equal"):
        energy_is_that_of_the_whole_model(7)
