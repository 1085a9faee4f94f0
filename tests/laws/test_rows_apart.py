"""The log density of a row is that of the row alone, or every kernel of minibatches raises."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import linen as nn
from numpyro.contrib.module import random_flax_module

from numpyro_fwd import AMAGOLD, GOHSMC, L2MC, OHSMC, SGHMC, SGSMC, on_disk
from numpyro_fwd.bridge import separate_rows
from numpyro_fwd.bridge.plates import FullView
from numpyro_fwd.bridge.separate_rows import checked_rows

sample = numpyro.sample


# the law


def check(model, *args):
    """Look at a model as a kernel does."""
    checked_rows(FullView(model), args, {})


def table(num, far=0.0, dtype=np.float32, size=3, seed=0):
    """Covariates, responses and groups."""
    rng = np.random.default_rng(seed)
    x = (far + rng.normal(size=(num, size))).astype(dtype)
    y = (x @ np.linspace(-0.5, 0.5, size) + rng.normal(size=num)).astype(dtype)
    return x, y, rng.integers(5, size=num)


def regression(rows_of, x, y, g):
    """A model with what rows are said to be by `rows_of`."""
    beta = sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    scale = sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 5):
        effect = sample("effect", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), subsample_size=max(len(y) // 10, 1)) as rows:
        rows_of(x[rows], y[rows], g[rows], rows, beta, scale, effect)


def normal(mean, scale, y):
    sample("y", dist.Normal(mean, scale), obs=y)


def share_of_group(x, y, g, rows, beta, scale, effect):
    """Weights by how many rows of a minibatch are of a group."""
    num = jnp.zeros(5).at[g].add(1.0)
    normal(x @ beta / num[g], scale, y)


def by_scan(x, y, g, rows, beta, scale, effect):
    """A state that goes from row to row."""

    def step(level, row):
        level = 0.9 * level + row @ beta
        return level, level

    normal(jax.lax.scan(step, 0.0 * beta[0], x)[1], scale, y)


def outside(x, y, g):
    """What rows leave behind when the plate is over."""
    beta = sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=max(len(y) // 10, 1)) as rows:
        normal(x[rows] @ beta, 1.0, y[rows])
    numpyro.factor("penalty", -jnp.sum(jnp.square(x[rows].mean(0) * beta)))


def of_rows(function):
    """`function(x, y, beta)` as the mean of the responses."""

    def rows_of(x, y, g, rows, beta, scale, effect):
        normal(function(x, y, beta), scale, y)

    return partial(regression, rows_of)


def of_parts(function):
    """`function` of all that rows have."""
    return partial(regression, function)


TOGETHER = {
    "mean": of_rows(lambda x, y, b: (x - x.mean(0)) @ b),
    "standardized": of_rows(lambda x, y, b: (x - x.mean(0)) / (x.std(0) + 0.1) @ b),
    "sort": of_rows(lambda x, y, b: jnp.sort(x @ b)),
    "ranks": of_rows(lambda x, y, b: jnp.argsort(jnp.argsort(x[:, 0])) * b[0] / 8),
    "cumulative_sum": of_rows(lambda x, y, b: jnp.cumsum(x @ b)),
    "cumulative_sum_backwards": of_rows(lambda x, y, b: jax.lax.cumsum(x @ b, reverse=True)),
    "softmax": of_rows(lambda x, y, b: jax.nn.softmax(x @ b)),
    "greatest": of_rows(lambda x, y, b: x / jnp.max(jnp.abs(x), axis=0) @ b),
    "differences": of_rows(lambda x, y, b: jnp.diff(x @ b, prepend=0.0)),
    "every_second": of_rows(lambda x, y, b: x @ b - jnp.roll(x @ b, 2)),
    "attention": of_rows(lambda x, y, b: jax.nn.softmax(x @ x.T / 9) @ x @ b),
    "total": of_rows(lambda x, y, b: jnp.broadcast_to(x.sum(0) @ b, y.shape)),
    "responses": of_parts(
        lambda x, y, g, rows, beta, scale, effect: normal(x @ beta, scale, y - y.mean())
    ),
    "groups": of_parts(share_of_group),
    "factor": of_parts(
        lambda x, y, g, rows, beta, scale, effect: numpyro.factor(
            "y", -0.5 * jnp.square(y - x @ beta) / jnp.sum(jnp.square(x))
        )
    ),
    "scan": of_parts(by_scan),
}
ALONE = {
    "number": of_rows(lambda x, y, b: x @ b / len(x)),
    "place": of_rows(lambda x, y, b: x @ b + b[0] * jnp.arange(len(x))),
}


SEEN = "site 'y' has a log density of a row of plate 'rows' that changes with the {}"


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "num"), [*zip([*TOGETHER, *ALONE], 6 * [4, 32, 200], strict=True)]
)
def test_rows_that_see_each_other(name, num):
    what = "other rows" if name in TOGETHER else "number of rows"
    with pytest.raises(ValueError, match=SEEN.format(what)):
        check({**TOGETHER, **ALONE}[name], *table(num))


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "far"),
    [
        *zip(["mean", "standardized", "cumulative_sum"], [1e3, 1e6, 1e3], strict=True),
        *zip(["softmax", "responses"], [1e6, 1e3], strict=True),
    ],
)
def test_rows_that_see_each_other_far_from_zero(name, far):
    with pytest.raises(ValueError, match=SEEN.format("")):
        check(TOGETHER[name], *table(500, far))


def test_in_double_precision(x64):
    for name in ("mean", "groups"):
        with pytest.raises(ValueError, match="other rows of its minibatch"):
            check(TOGETHER[name], *table(100, 1e6, np.float64))
    check(APART["groups"], *table(100, 1e6, np.float64))


def test_rows_that_leave_something_outside():
    with pytest.raises(ValueError, match="site 'penalty' lies outside of plate 'rows'"):
        check(outside, *table(100))


def test_a_rare_covariate():
    """One row in fifty has it: rows that are alike do not hide what they have in common."""
    x, y, g = table(5000)
    x[:] = np.random.default_rng(1).random(x.shape) < 0.02
    with pytest.raises(ValueError, match="other rows of its minibatch"):
        check(TOGETHER["mean"], x, y, g)


# rows of which only some see others, and only some others


def centred_by_set(x, y, g, rows, beta, scale, effect):
    """Less the mean of the rows of a set: as a rule a small minibatch has one of them."""
    total = jax.ops.segment_sum(jnp.c_[x, jnp.ones(len(x))], g, MOST_SETS)[g]
    normal((x - total[:, :-1] / total[:, -1:]) @ beta, scale, y)


def choices(x, y, g, rows, beta, scale, effect):
    """Conditional logit: one of a set is chosen."""
    total = jax.ops.segment_sum(jnp.exp(x @ beta), g, MOST_SETS)
    numpyro.factor("y", jnp.where(y > 1, x @ beta - jnp.log(total[g]), 0.0))


def imputed(x, y, g, rows, beta, scale, effect):
    """The mean of those that are known where a covariate is not."""
    is_known = 1.0 - g[:, None]
    mean = jnp.sum(x * is_known, axis=0) / jnp.maximum(jnp.sum(is_known), 1.0)
    normal(jnp.where(is_known > 0, x, mean) @ beta, scale, y)


def imputed_nan(x, y, g, rows, beta, scale, effect):
    x = jnp.where(g[:, None] > 0, jnp.nan, x)
    normal(jnp.where(jnp.isnan(x), jnp.nanmean(x, axis=0), x) @ beta, scale, y)


def partial_likelihood(x, y, g, rows, beta, scale, effect):
    """Cox's: rows with an event see all that are at risk."""
    numpyro.factor("y", jnp.where(g > 0, x @ beta - jnp.log(jnp.cumsum(jnp.exp(x @ beta))), 0.0))


def centred_class(x, y, g, rows, beta, scale, effect):
    mean = jnp.sum(x * g[:, None], axis=0) / jnp.maximum(jnp.sum(g), 1)
    normal((x - mean * g[:, None]) @ beta, scale, y)


def numbered(x, y, g, rows, beta, scale, effect):
    normal(x @ beta / jnp.where(g > 0, len(x), 1), scale, y)


def placed(x, y, g, rows, beta, scale, effect):
    normal(x @ beta + effect[0] * g * jnp.arange(len(x)), scale, y)


MOST_SETS = 4000
OF_FLAGS = (imputed, imputed_nan, partial_likelihood, centred_class, numbered, placed)
SOME = {each.__name__: of_parts(each) for each in (centred_by_set, choices, *OF_FLAGS)}


def some_table(name, num, share, dtype=np.float32):
    """A table whose groups are sets of two or four rows, or flags, 0 or 1, of a share."""
    x, y, _ = table(num, dtype=dtype, seed=num)
    rng = np.random.default_rng(num)
    if name in ("centred_by_set", "choices"):
        x = np.round(3 * x)  # alike, so that few rows have a value of their own
        size = 2 if name == "centred_by_set" else 4
        return x, y, rng.permutation(np.arange(num) // size)
    if name == "imputed_nan":  # one after the other, in the middle
        return x, y, (np.abs(np.arange(num) - 0.4 * num) < share * num / 2) * 1
    return x, y, (rng.random(num) < share) * 1


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "num", "share"),
    [
        (name, *size)
        for i, size in enumerate([(301, 0.1), (1500, 0.02), (3000, 0.06), (12000, 0.02)])
        for name in [*SOME][i % 2 :: 2]  # two sizes of each
    ],
)
def test_some_rows_that_see_some_others(name, num, share):
    what = "number of rows" if name in ("numbered", "placed") else "other rows"
    with pytest.raises(ValueError, match=SEEN.format(what)):
        check(SOME[name], *some_table(name, num, share))


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "far"),
    [("softmax", 1e4), ("imputed", 1e8), ("centred_class", 1e4), ("centred_by_set", 1e8)],
)
def test_responses_far_from_all_means(name, far):
    x, y, g = some_table(name, 2000, 0.05)
    with pytest.raises(ValueError, match=SEEN.format("other rows")):
        check({**TOGETHER, **SOME}[name], x, y + np.float32(far), g)


def test_pairs_far_apart():
    x, y, _ = some_table("centred_by_set", 1200, 0.1)
    with pytest.raises(ValueError, match=SEEN.format("other rows")):
        check(SOME["centred_by_set"], x, y, np.tile(np.arange(600), 2))


def test_some_rows_in_double_precision(x64):
    for name in ("centred_by_set", "imputed", "partial_likelihood"):
        with pytest.raises(ValueError, match=SEEN.format("other rows")):
            check(SOME[name], *some_table(name, 701, 0.04, np.float64))


# models whose rows are apart


def ordered(x, y, g, rows, beta, scale, effect):
    cut = jnp.array([-1.0, 0.0]) * scale
    sample("y", dist.OrderedLogistic(x @ beta, cut), obs=g % 3)


def classes(x, y, g, rows, beta, scale, effect):
    logits = (x @ beta)[:, None] * jnp.arange(5.0) + effect
    sample("y", dist.Categorical(logits=logits), obs=g)


def masked(x, y, g, rows, beta, scale, effect):
    with numpyro.handlers.mask(mask=g > 1):
        normal(x @ beta, scale, y)


def scaled(x, y, g, rows, beta, scale, effect):
    with numpyro.handlers.scale(scale=1.0 + g):
        numpyro.factor("y", -0.5 * jnp.square(y - x @ beta))


def mixture(x, y, g, rows, beta, scale, effect):
    parts = dist.Normal(jnp.stack([x @ beta, effect[g]], -1), scale)
    sample("y", dist.MixtureSameFamily(dist.Categorical(logits=jnp.zeros(2)), parts), obs=y)


def events(x, y, g, rows, beta, scale, effect):
    mean = jnp.stack([x @ beta, effect[g]], axis=-1)
    obs = jnp.stack([y, y], axis=-1)
    sample("y", dist.MultivariateNormal(mean, jnp.eye(2) * (1.0 + scale)), obs=obs)


def iterated(x, y, g, rows, beta, scale, effect):
    """Newton's method, of all rows at once, until each has converged."""
    eta = jnp.tanh(x @ beta)

    def step(t, _):
        return t - (t + jnp.tanh(t) - eta) / (1 + jax.nn.sigmoid(t)), None

    normal(jax.lax.scan(step, eta, None, length=20)[0], scale, y)


@jax.custom_vjp
def curved(t):
    """A function that has gradients, and no derivatives in directions."""
    return jnp.sin(t)


curved.defvjp(lambda t: (jnp.sin(t), jnp.cos(t)), lambda cos, of_sin: (cos * of_sin,))


def times(x, y, g, rows, beta, scale, effect):
    """A trend along all rows, and a curve between knots."""
    curve = jnp.interp(x[:, 0], jnp.linspace(-2, 2, 5), effect)
    normal(x @ beta + curve + effect[0] * rows / 50, scale, y)


APART = {
    "products": of_rows(lambda x, y, b: x @ b),
    "network": of_rows(lambda x, y, b: jnp.tanh(x[..., None] * b).sum((-1, -2))),
    "custom_vjp": of_rows(lambda x, y, b: curved(x @ b)),
    "norms": of_rows(lambda x, y, b: x / (1 + jnp.linalg.norm(x, axis=1, keepdims=True)) @ b),
    "cumulative_over_columns": of_rows(lambda x, y, b: jnp.cumsum(x * b, axis=1)[:, -1]),
    "softmax_of_columns": of_rows(lambda x, y, b: jax.nn.softmax(x * b, axis=-1)[:, 0]),
    "vmapped": of_rows(lambda x, y, b: jax.vmap(lambda row: jnp.sort(row * b)[0])(x)),
    "groups": of_parts(
        lambda x, y, g, rows, beta, scale, effect: normal(x @ beta + effect[g], scale, y)
    ),
    "poisson": of_parts(
        lambda x, y, g, rows, beta, scale, effect: sample(
            "y", dist.Poisson(jnp.exp(x @ beta)), obs=g
        )
    ),
    "logistic": of_parts(
        lambda x, y, g, rows, beta, scale, effect: sample(
            "y", dist.Bernoulli(logits=x @ beta), obs=(y > 0) * 1
        )
    ),
    **{
        each.__name__: of_parts(each)
        for each in (ordered, classes, masked, scaled, mixture, events, iterated, times)
    },
}


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "num", "far"),
    [
        *((name, 2 + i % 2, 0.0) for i, name in enumerate(APART)),
        *((name, 4000, 1e6) for name in APART),
    ],
)
def test_rows_that_are_apart(name, num, far):
    check(APART[name], *table(num, far))


@pytest.mark.first
@pytest.mark.parametrize("name", ["products", "poisson", "scaled", "network", "groups"])
def test_a_million_rows(name):
    check(APART[name], *table(1_000_000, 300.0))


def test_many_covariates():
    """A product of another number of rows may be summed in another order."""
    check(APART["products"], *table(300, 1e3, size=700))
    check(APART["logistic"], *table(300, 1e3, size=700))


def test_derivatives_for_gradients_alone():
    with pytest.raises(ValueError, match=SEEN.format("other rows")):
        check(of_rows(lambda x, y, b: curved(x @ b - jnp.mean(x @ b))), *table(500))


def test_rows_on_disk(tmp_path):
    x, y, g = table(300)
    for name, leaf in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", leaf)
    x, y = (on_disk(np.load(tmp_path / f"{name}.npy", mmap_mode="r")) for name in "xy")
    check(APART["products"], x, y, g)
    with pytest.raises(ValueError, match="other rows of its minibatch"):
        check(TOGETHER["mean"], x, y, g)


def test_plates_that_cross():
    def crossed(w, is_centred):
        mean = sample("mean", dist.Normal(0, 1))
        with numpyro.plate("columns", 6, subsample_size=2, dim=-1) as columns:
            with numpyro.plate("rows", 31, subsample_size=5, dim=-2) as rows:
                some = w[rows][:, columns]
                sample("w", dist.Normal(mean * some.mean(1, keepdims=is_centred), 1.0), obs=some)

    w = np.random.default_rng(0).normal(size=(31, 6))
    with pytest.raises(ValueError, match="plate 'columns' that changes with the other rows"):
        check(crossed, w, True)


# kernels


KERNELS = {
    **{
        f"AMAGOLD_{acceptance}_{order}": partial(
            AMAGOLD, acceptance=acceptance, control_variate=order
        )
        for acceptance in ("full", "subsampled")
        for order in (None, "second_order")
        if order or acceptance != "subsampled"
    },
    "AMAGOLD_chunks": partial(AMAGOLD, chunk_size=7),
    "L2MC": L2MC,
    "L2MC_chunks": partial(L2MC, chunk_size=7),
    "SGHMC": SGHMC,
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_of_minibatches_raises(name):
    kernel = KERNELS[name](TOGETHER["mean"])
    with pytest.raises(ValueError, match=r"site 'y' .* other rows of its minibatch"):
        kernel.init(jax.random.key(0), 5, None, table(60), {})


class Net(nn.Module):
    is_normalized: bool

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        x = (x - x.mean(0)) if self.is_normalized else nn.LayerNorm()(x)
        return nn.Dense(1)(nn.tanh(x))[:, 0]


def network(is_normalized, x, y, g):
    net = random_flax_module(
        "net",
        Net(is_normalized),
        prior={"Dense_0.kernel": dist.Normal(0, 1)},
        input_shape=(2, x.shape[1]),
    )
    with numpyro.plate("rows", len(x), subsample_size=10) as rows:
        sample("y", dist.Normal(net(x[rows]), 1.0), obs=y[rows])


@pytest.mark.first
@pytest.mark.parametrize("cls", [GOHSMC, OHSMC, SGSMC])
def test_every_training_on_minibatches_raises(cls):
    x, y, g = map(jnp.asarray, table(60))
    smc = cls(partial(network, True), optax.adam(0.01), num_particles=3)
    with pytest.raises(ValueError, match=r"site 'y' .* other rows of its minibatch"):
        smc.init(jax.random.key(0), x, y, g)
    cls(partial(network, False), optax.adam(0.01), num_particles=3).init(jax.random.key(0), x, y, g)


# planted bugs


@pytest.mark.parametrize(
    ("function", "name"), [("differ", "mean"), ("differ", "responses"), ("has_changed", "place")]
)
def test_the_law_finds_a_check_that_is_out(function, name, monkeypatch):
    monkeypatch.setattr(separate_rows, function, lambda *values: False)
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        test_rows_that_see_each_other(name, 200)


def test_the_law_finds_values_without_gradients(monkeypatch):
    """Where rows are far in their tails a value does not tell."""
    nowhere = lambda z, part: jax.tree.map(jnp.zeros_like, z)  # noqa: E731
    monkeypatch.setattr(separate_rows, "direction", nowhere)
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        test_responses_far_from_all_means("softmax", 1e6)


def test_the_law_finds_slopes_in_one_direction(monkeypatch):
    """That of the scale leaves the others no digits."""
    monkeypatch.setattr(separate_rows, "DIRECTIONS", 1)
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        test_responses_far_from_all_means("centred_class", 1e6)


@pytest.mark.first
@pytest.mark.parametrize("name", ["centred_by_set", "choices", "imputed_nan"])
def test_the_law_finds_a_check_of_few_rows(name, monkeypatch):
    monkeypatch.setattr(separate_rows, "MOST_ROWS", 32)
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        test_some_rows_that_see_some_others(name, 3000, 0.02)
