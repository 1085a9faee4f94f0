"""Consecutive rows are read by slices, and read right."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from blackjax_ext.equations import equations_in
from blackjax_ext.rows.compensated_sums import at_chunk, at_consecutive
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.row_models import RowModel, stochastic_potential

N, FIRST, LENGTH = 50, 13, 9
X = jnp.asarray(np.random.default_rng(0).normal(size=(N, 3)))
GROUP = jnp.arange(N) % 4

# name: a function of the rows, and how many gathers are left in its program
READS = {
    "table": (lambda rows: X[rows], 0),
    "column": (lambda rows: X[:, 1][rows], 0),
    "integers": (lambda rows: GROUP[rows], 0),
    "take": (lambda rows: jnp.take(X, rows, axis=0), 0),
    "clipped": (lambda rows: jnp.take(X, rows, axis=0, mode="clip"), 0),
    "inside jit": (lambda rows: jax.jit(lambda r: X[r] @ jnp.ones(3))(rows), 0),
    "mapped": (lambda rows: jax.vmap(lambda row: X[row] @ jnp.ones(3))(rows), 1),
    "one by one": (lambda rows: jax.vmap(lambda row: X[row[None]] @ jnp.ones(3))(rows), 1),
    "other rows": (lambda rows: X[rows + 1], 1),
    "backwards": (lambda rows: X[-rows], 1),
    "the numbers": (lambda rows: rows % 3 + X[rows, 0], 1),
    "levels of groups": (lambda rows: jnp.arange(4.0)[GROUP[rows]], 1),
    "too short": (lambda rows: X[:40][rows], 1),
    "backwards again": (lambda rows: X[rows[::-1]], 1),
    "pytree": (lambda rows: {"x": X[rows], "sum": (jnp.sum(X[rows]), rows)}, 0),
    "narrow": (lambda rows: X[rows.astype(jnp.int8)], 1),
}


def gathers(jaxpr) -> int:
    """Gathers of a program and of those inside it."""
    return sum(equation.primitive.name == "gather" for equation in equations_in(jaxpr))


@pytest.mark.first
@pytest.mark.parametrize("name", READS)
def test_rows_are_read(name):
    function, left = READS[name]
    expected = function(FIRST + jnp.arange(LENGTH))

    def read(first):
        return at_consecutive(function, first, LENGTH, N)

    jax.tree.map(np.testing.assert_array_equal, read(FIRST), expected)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(read)(FIRST), expected)
    assert gathers(jax.make_jaxpr(read)(FIRST).jaxpr) == left


def test_it_is_differentiated():
    def total(scale, read):
        return jnp.sum(jnp.sin(scale * read(lambda rows: X[rows])))

    def sliced(function):
        return at_consecutive(function, FIRST, LENGTH, N)

    def gathered(function):
        return function(FIRST + jnp.arange(LENGTH))

    found, expected = (
        jax.jit(jax.grad(total), static_argnums=1)(2.0, f) for f in (sliced, gathered)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def model(x, group):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
    level = numpyro.sample("level", dist.Normal(0, 1).expand([4]).to_event(1))
    with numpyro.plate("rows", N, subsample_size=5) as rows:
        mean = x[rows] @ slope + level[group[rows]]
        numpyro.sample("y", dist.Normal(mean, 1), obs=jnp.take(x, rows, axis=0)[:, 0])


def test_full_pass_of_a_model_gathers_no_covariates():
    """What is left is the level of each row's group."""
    potential = stochastic_potential(RowModel.of(FullView(model), (X, GROUP), {}), chunk_size=8)
    z = {"slope": jnp.ones(3), "level": jnp.ones(4)}
    program = jax.make_jaxpr(potential.potential)(z).jaxpr
    batch = potential.draw(jax.random.key(0))
    # a minibatch gathers covariates, groups, responses and levels; so does what lies outside the
    # plate, which is evaluated at one row, and the chunks gather the levels alone
    rows = RowModel.of(FullView(model), (X, GROUP), {})
    of_batch = gathers(jax.make_jaxpr(lambda z: rows.terms(z, batch).total())(z).jaxpr)
    assert gathers(program) == of_batch + 1


def test_one_row_is_repeated():
    numbers = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))

    def read(rows):
        return jax.lax.gather(X, jax.lax.broadcast_in_dim(rows, (5, 1), (0,)), numbers, (1, 3))

    np.testing.assert_array_equal(at_consecutive(read, 3, 1, N), X[jnp.full(5, 3)])


@pytest.mark.parametrize("name", ["table", "column", "integers", "one by one", "pytree"])
def test_rows_of_blocks_are_read(name):
    """Chunks of two blocks of rows, whatever the mesh."""
    function, _ = READS[name]
    num_blocks, length = 2, 7
    rows = np.concatenate([at + np.arange(length) for at in (5, N // 2 + 5)])

    def read(first):
        return at_consecutive(function, first, length, N, num_blocks)

    jax.tree.map(np.testing.assert_array_equal, jax.jit(read)(5), function(rows))
    assert gathers(jax.make_jaxpr(read)(5).jaxpr) == 0


@pytest.mark.long
def test_a_chunk_of_blocks_counts_each_row_once():
    num_blocks, length = 2, 10
    seen = []
    for i in range(3):
        rows, is_new = at_chunk(lambda rows, is_new: (rows, is_new), i, length, N, num_blocks)
        seen += np.asarray(rows)[np.asarray(is_new)].tolist()
    assert sorted(seen) == list(range(N))
