"""Models with many groups of rows: found, sampled, and refused with the site's name."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, init_to_value
from numpyro.infer.util import potential_energy

from blackjax_ext.subsampling import group_sweeps, row_tests
from numpyro_fwd import AMAGOLD
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.subsampling import groups
from numpyro_fwd.subsampling.predictors import linear_predictor_of

NUM_ROWS, NUM_GROUPS = 1_500, 60
RNG = np.random.default_rng(90)
X = RNG.normal(size=(NUM_ROWS, 2)).astype(np.float32)
# the last group has no row, and the one before it a single one
GROUP = np.append(RNG.integers(0, NUM_GROUPS - 2, NUM_ROWS - 1), NUM_GROUPS - 2)
EFFECT = 0.8 * RNG.normal(size=NUM_GROUPS)
Y = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-X[:, 0] - EFFECT[GROUP]))).astype(np.float32)
ONE_HOT = np.eye(NUM_GROUPS, dtype=np.float32)[GROUP]


def priors(num_slopes=2):
    b = numpyro.sample("b", dist.Normal(0, 2).expand([num_slopes]).to_event(1))
    return b, numpyro.sample("mu", dist.Normal(0, 2)), numpyro.sample("tau", dist.HalfNormal(1.0))


def rows(eta_of, y):
    with numpyro.plate("rows", len(y), subsample_size=50) as r:
        numpyro.sample("y", dist.Bernoulli(logits=eta_of(r)), obs=y[r])


def indexed(x, group, y):
    """Effects in a plate, indexed by the group of a row."""
    b, mu, tau = priors()
    with numpyro.plate("groups", NUM_GROUPS):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    rows(lambda r: x[r] @ b + a[group[r]], y)


def one_hot(x, columns, y):
    """The same by columns, with effects that are one event."""
    b, mu, tau = priors()
    a = numpyro.sample("a", dist.Normal(mu, tau).expand([NUM_GROUPS]).to_event(1))
    rows(lambda r: x[r] @ b + columns[r] @ a, y)


def slopes(x, group, y):
    """Two coefficients of each group, of one distribution and correlated."""
    b, mu, tau = priors()
    tril = jnp.array([[1.0, 0.0], [0.3, 0.5]])
    mean = jnp.stack([mu, 0.0 * mu])
    with numpyro.plate("groups", NUM_GROUPS):
        a = numpyro.sample("a", dist.MultivariateNormal(mean, scale_tril=tau * tril))
    rows(lambda r: x[r] @ b + a[group[r], 0] + a[group[r], 1] * x[r][:, 1], y)


def two_sites(x, group, y):
    """Two coefficients of two sites, one of them heavy-tailed, groups last."""
    b, mu, tau = priors()
    with numpyro.plate("groups", NUM_GROUPS):
        a = numpyro.sample("a", dist.StudentT(4.0, mu, tau))
    c = numpyro.sample("c", dist.Normal(0, 0.5).expand([1, NUM_GROUPS]).to_event(2))
    rows(lambda r: x[r] @ b + a[group[r]] + c[0, group[r]] * x[r][:, 1], y)


MODELS = {
    "indexed": (indexed, GROUP, 1),
    "one_hot": (one_hot, ONE_HOT, 1),
    "slopes": (slopes, GROUP, 2),
    "two_sites": (two_sites, GROUP, 2),
}


def view_of(name):
    model, how, width = MODELS[name]
    args = tuple(map(jnp.asarray, (X, how, Y)))
    full = FullView(model)
    z = {"a": jnp.zeros(NUM_GROUPS), "b": jnp.zeros(2), "mu": jnp.zeros(()), "tau": jnp.zeros(())}
    if name == "slopes":
        z["a"] = jnp.zeros((NUM_GROUPS, 2))
    if name == "two_sites":
        z["c"] = jnp.zeros((1, NUM_GROUPS))
    return full, args, z, width


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_groups_are_found(name):
    full, args, z, width = view_of(name)
    rows = RowModel.of(full, args, None)
    layout, level = groups.find_groups(rows, linear_predictor_of(rows, z), z)
    assert (level == GROUP).all()
    assert layout.grouping.num_groups == NUM_GROUPS
    assert layout.grouping.width == width
    assert layout.grouping.size == 4
    shared, of_groups = layout.grouping.split(z)
    for old, new in zip(
        jax.tree.leaves(z), jax.tree.leaves(layout.grouping.join(shared, of_groups)), strict=True
    ):
        assert old.shape == new.shape


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("name", ["one_hot", "slopes", "two_sites"])
def test_expansion_and_remainders_are_the_energy(name, x64):
    energies_add_up(name)


TRUE_ENERGY = group_sweeps.shared_energy


def energy_without_coupling(expanded, v):
    """Shared coordinates forget what the groups' rows say of them."""
    arrow = expanded.arrow
    return TRUE_ENERGY(replace(expanded, arrow=arrow._replace(coupling=0.0 * arrow.coupling)), v)


def test_planted_bug_of_the_energy_is_found(x64, monkeypatch):
    monkeypatch.setattr(group_sweeps, "shared_energy", energy_without_coupling)
    with pytest.raises(AssertionError):
        energies_add_up("slopes")


def energies_add_up(name):
    """What is known and what rows leave add up to NumPyro's potential energy."""
    full, args, z, _ = view_of(name)
    args, z = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, float)), (args, z))
    args = (args[0], jnp.asarray(MODELS[name][1]), args[2])
    rows = RowModel.of(full, args, None)
    found = groups.expanded_groups(rows, z, say=lambda _: None)
    predictor = groups.grouped_predictor_of(rows, found.expansion.position, found.layout)
    expanded = found.expansion.of(predictor)

    @jax.jit
    def both(expanded, x):
        u, v = expanded.coordinates(x)
        known = group_sweeps.shared_energy(expanded, v)(u)
        own = expanded.given_shared(jnp.zeros_like(u))(v).sum()
        steps = group_sweeps.steps_to(expanded, expanded.position, x)
        everything = jnp.ones(NUM_GROUPS, bool)
        rest, num_rows = row_tests.changes_of(expanded, steps, everything)
        return known + own + rest.sum(), num_rows

    keys = jax.random.split(jax.random.key(0), 4)
    places = [expanded.draw(key) for key in keys]
    energies, exact = [], []
    for place in places:
        energy, num_rows = both(expanded, place)
        assert num_rows == NUM_ROWS
        energies.append(float(energy))
        exact.append(float(potential_energy(full, args, {}, place)))
    np.testing.assert_allclose(np.diff(energies), np.diff(exact), rtol=1e-8, atol=1e-8)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("name", ["indexed", "two_sites"])
def test_the_anchor_does_not_depend_on_the_start(name):
    """From spreads of a fifth to seven, with heavy tails and a group without rows."""
    full, args, z, _ = view_of(name)
    found = []
    for i, value in enumerate((-1.8, 0.0, 2.0)):
        keys = jax.random.split(jax.random.key(i), len(z))
        start = {
            site: jax.random.uniform(key, leaf.shape, minval=-2.0, maxval=2.0)
            for key, (site, leaf) in zip(keys, z.items(), strict=True)
        }
        start["tau"] = jnp.array(value)
        model = groups.expanded_groups(RowModel.of(full, args, None), start, say=lambda _: None)
        found.append(model.expansion.position["tau"])
    assert np.ptp(found) < 0.05
    assert 0.4 < np.exp(found[0]) < 1.0


def coupled(x, group, y):
    """Neighbouring effects are coupled by their prior."""
    b, mu, tau = priors()
    walk = dist.GaussianRandomWalk(tau, num_steps=NUM_GROUPS)
    a = numpyro.sample("a", walk)
    rows(lambda r: x[r] @ b + mu + a[group[r]], y)


def member_of_two(x, group, y):
    """A row sees two levels of one factor."""
    b, mu, tau = priors()
    with numpyro.plate("groups", NUM_GROUPS):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    rows(lambda r: x[r] @ b + a[group[r]] + a[(group[r] + 1) % NUM_GROUPS], y)


def constrained(holds):
    """Effects of which all together must meet a condition, or pay."""

    def model(x, group, y):
        b, mu, tau = priors()
        with numpyro.plate("groups", NUM_GROUPS):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        numpyro.factor("holds", holds(a))
        rows(lambda r: x[r] @ b + a[group[r]], y)

    return model


def barrier(condition):
    return jnp.where(condition, 0.0, -jnp.inf)


CONSTRAINTS = {
    "all above": constrained(lambda a: barrier(jnp.all(a > -0.5))),
    "sum": constrained(lambda a: barrier(jnp.sum(a) < 1e4)),
    "hinge": constrained(lambda a: -jax.nn.relu(jnp.sum(a) - 1e4)),
    "in order": constrained(lambda a: barrier(a[1:] > a[:-1] - 0.5)),
    "in a ring": constrained(lambda a: barrier(a > jnp.roll(a, 1) - 0.5)),
}


@pytest.mark.parametrize("model", [coupled, member_of_two, *CONSTRAINTS.values()])
def test_what_is_no_group_is_one_block(model):
    args = tuple(map(jnp.asarray, (X, GROUP, Y)))
    z = {"a": jnp.zeros(NUM_GROUPS), "b": jnp.zeros(2), "mu": jnp.zeros(()), "tau": jnp.zeros(())}
    full = FullView(model)
    posterior = linear_predictor_of(RowModel.of(full, args, None), z)
    assert groups.find_groups(RowModel.of(full, args, None), posterior, z) is None


def test_a_constraint_of_each_group_is_one_of_its_group():
    model = constrained(lambda a: barrier(a > -0.5))
    args = tuple(map(jnp.asarray, (X, GROUP, Y)))
    z = {"a": jnp.zeros(NUM_GROUPS), "b": jnp.zeros(2), "mu": jnp.zeros(()), "tau": jnp.zeros(())}
    found = RowModel.of(FullView(model), args, None)
    layout, _ = groups.find_groups(found, linear_predictor_of(found, z), z)
    assert dict(layout.axes)["holds"] == 0


def of_slopes(x, group, y):
    """Without groups, and with a constraint beside the mode."""
    del group
    b, _, _ = priors()
    numpyro.factor("holds", barrier(b[1] > 0.0))
    rows(lambda r: x[r] @ b, y)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("model", [constrained(lambda a: barrier(a > -2.2)), of_slopes])
def test_chains_start_where_a_constraint_holds(model):
    """Though draws from the normal approximation at the anchor may not meet it."""
    inside = {"a": jnp.full(NUM_GROUPS, 0.5), "b": jnp.full(2, 0.5)}
    kernel = AMAGOLD(model, acceptance="subsampled", init_strategy=init_to_value(values=inside))
    keys = jax.random.split(jax.random.key(0), 20)
    state = kernel.init(keys, 30, None, tuple(map(jnp.asarray, (X, GROUP, Y))), {})
    held = state.z["b"][:, 1] > 0 if model is of_slopes else state.z["a"] > -2.2
    assert held.all()


@pytest.mark.long
def test_draws_are_those_of_nuts():
    """Means and sds of all coordinates, and a test that reads a part of the rows."""
    full = run(AMAGOLD(indexed, acceptance="subsampled", num_integration_steps=3), 300, 3_000)
    nuts = run(numpyro.infer.NUTS(FullView(indexed)), 300, 2_000)
    for site, exact in nuts.items():
        sd = exact.std(0)
        assert np.max(np.abs(full[site].mean(0) - exact.mean(0)) / sd) < 0.25, site
        ratio = full[site].std(0) / sd
        assert 0.8 < np.min(ratio) and np.max(ratio) < 1.25, site


def run(kernel, num_warmup, num_samples):
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
    mcmc.run(jax.random.key(0), *map(jnp.asarray, (X, GROUP, Y)))
    return {site: np.asarray(draws) for site, draws in mcmc.get_samples().items()}
