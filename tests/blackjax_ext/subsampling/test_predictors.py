"""Families, bounds, alias tables and expansions of posteriors with linear predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from blackjax_ext import acceptance, families, potentials
from blackjax_ext.rows import compensated_sums, newton
from blackjax_ext.subsampling import (
    alias_table,
    expansion,
    passes,
    predictors,
    remainders,
    row_tests,
)
from blackjax_ext.subsampling.predictors import Responses


@pytest.mark.long
@pytest.mark.statistical
@pytest.mark.parametrize(
    "weights",
    [np.ones(5), np.array([3.0]), np.r_[np.zeros(9), 1.0], np.random.default_rng(0).pareto(1, 999)],
    ids=["equal", "one", "zeros", "heavy"],
)
def test_alias_table_has_the_law_of_the_weights(weights):
    table = alias_table.columns(weights)
    realized = alias_table.realized(*table, slice(0, weights.size))
    np.testing.assert_allclose(
        realized, weights / weights.sum(), atol=2 / 2**23 / weights.size * 10
    )
    np.testing.assert_allclose(realized.sum(), 1.0, rtol=1e-12)
    draws = np.asarray(alias_table.draw(jax.random.key(0), table, (100_000,)))
    seen = realized > 5e-5
    counts = np.bincount(draws, minlength=weights.size)
    observed = np.append(counts[seen], counts[~seen].sum())
    expected = 1e5 * np.append(realized[seen], realized[~seen].sum())
    assert not counts[realized == 0].any()
    keep = expected > 0
    if keep.sum() > 1:
        assert scipy.stats.chisquare(observed[keep], expected[keep]).pvalue > 1e-5


@pytest.mark.long
def test_alias_table_of_a_million_rows_is_exact_in_float32():
    weights = np.random.default_rng(1).chisquare(1, 1_000_000)
    table = alias_table.columns(weights)
    assert table.threshold.dtype == np.float32 and table.alias.dtype == np.int32
    assert np.array_equal(np.rint(table.threshold * 2.0**23), table.threshold * 2.0**23)
    # a row's probability as a sum of what float32 represents, without error
    realized = table.threshold.astype(float)
    np.add.at(realized, table.alias, 1.0 - table.threshold.astype(float))
    realized /= weights.size
    assert np.array_equal(realized, alias_table.realized(*table, slice(0, weights.size)))
    assert np.max(np.abs(realized * weights.size - weights / weights.mean())) < 1e-5


@pytest.mark.parametrize("size", [3, 7, 300, 999])
def test_alias_table_of_equal_weights_is_uniform(size):
    for weight in np.random.default_rng(2).uniform(size=50):  # some add up to less than N of them
        table = alias_table.columns(np.full(size, weight))
        realized = alias_table.realized(*table, slice(0, size))
        np.testing.assert_allclose(realized * size, 1.0, atol=1e-6)


def rows_of(family, classes=1, num_rows=40, size=3, dtype=float):
    """A posterior with normal covariates, and responses from its family's range."""
    rng = np.random.default_rng(81)
    x = jnp.asarray(rng.normal(size=(num_rows, size)), dtype)
    kind = family.kind.name
    if kind == "categorical":
        y = jnp.asarray(rng.integers(0, classes, num_rows))
    elif kind in ("bernoulli", "binomial", "negative_binomial"):
        y = jnp.asarray(rng.integers(0, 2, num_rows), dtype)
    else:
        y = jnp.asarray(rng.standard_t(2, num_rows), dtype)

    def predict(theta, row):
        return theta.reshape(classes, size) @ row if classes > 1 else theta @ row

    return potentials.linear_predictor(
        lambda theta: -0.5 * jnp.sum(theta**2), family, (x, y), predict_fn=predict
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "classes"),
    [
        (families.student_t(3.0, 0.5), 1),
        (families.categorical(), 3),
    ],
    ids=["student_t", "categorical"],
)
def test_remainders_stay_below_their_bounds(family, classes, x64):
    rows = rows_of(family, classes)
    expanded = potentials.expand(rows, jnp.zeros(3 * classes))
    rng = np.random.default_rng(82)
    size = expanded.whitener.shape[0]
    w = rng.normal(size=(300, 2, size)) * rng.choice([0.01, 0.3, 2.0, 20.0], size=(300, 1, 1))
    w[::2, 1] = w[::2, 0] + 0.1 * w[::2, 1]
    w *= np.minimum(1.0, float(expanded.radius) / np.linalg.norm(w, axis=-1, keepdims=True))
    steps = jnp.linalg.solve(expanded.whitener, jnp.asarray(w)[..., None])[..., 0]

    @jax.jit
    @jax.vmap
    def ratios(w, steps):
        old, new = remainders.loss_remainders(expanded, steps, jnp.arange(40))
        nothing = jnp.zeros((1, 0))
        ends = row_tests.MoveEnds.of(expanded, *((end, nothing) for end in w))
        return jnp.abs(new - old) / (expanded.bound * row_tests.reaches_of(expanded, ends).reach)

    found = ratios(jnp.asarray(w), steps)
    assert np.max(found) < 1.0
    assert np.max(found) > 0.005  # and not by much


@pytest.mark.first
@pytest.mark.parametrize("place", [0, 1, 2])
def test_coordinates_that_no_row_sees_have_no_part_in_the_bounds(place, x64):
    """A hyperparameter before, between or after the slopes: rows change by less than they allow."""
    rng = np.random.default_rng(83)
    x, y = rng.normal(size=(40, 2)), rng.integers(0, 2, 40).astype(float)

    def prior(z):
        mu, slopes = z[place], jnp.delete(z, place)
        return -0.5 * mu**2 - 0.5 * jnp.sum((slopes - mu) ** 2)

    rows = potentials.linear_predictor(
        prior, families.bernoulli(), (x, y), predict_fn=lambda z, row: row @ jnp.delete(z, place)
    )
    expanded = potentials.expand(rows, jnp.zeros(3))
    np.testing.assert_allclose(expanded.radius, np.sqrt(2.0) + 4.0, rtol=1e-6)
    noise = jnp.asarray(rng.normal(size=(300, 2, 3)))
    steps = expanded.metric.inverse_sqrt_times(noise)

    @jax.jit
    @jax.vmap
    def ratios(steps):
        old, new = remainders.loss_remainders(expanded, steps, jnp.arange(40))
        ends = (expanded.coordinates(expanded.position + step) for step in steps)
        reaches = row_tests.reaches_of(expanded, row_tests.MoveEnds.of(expanded, *ends))
        return jnp.abs(new - old) / (expanded.bound * reaches.reach)

    assert 0.005 < np.max(ratios(steps)) < 1.0


@pytest.mark.long
@pytest.mark.parametrize("order", [2, 3])
def test_remainders_of_tiny_changes_in_float32(order):
    """Of 1e-9, where a difference of losses would have no digit."""
    posterior = rows_of(families.bernoulli(), dtype=jnp.float32)
    row = (Responses(jnp.ones(1), {}, jnp.ones(1)),)
    for t in (1e-4, 1e-2, 0.9, 1.1, 8.0):
        found = predictors.loss_remainder(
            posterior, order, (jnp.array([[0.7]]),), (jnp.array([[np.float32(t)]]),), row
        )
        s = np.linspace(0, 1, 20_001)
        p = 1 / (1 + np.exp(-(np.float64(np.float32(0.7)) + s * np.float32(t))))
        g = p * (1 - p)
        highest = {2: g * (1 - 2 * p), 3: g * (1 - 6 * g)}[order]
        values = (1 - s) ** order / order * highest / (order - 1)
        values *= np.float64(np.float32(t)) ** (order + 1)
        np.testing.assert_allclose(found, np.trapezoid(values, s), rtol=2e-5)


@pytest.mark.long
def test_expansion_is_that_of_autodiff(x64):
    rows = rows_of(families.student_t(4.0, 1.0))
    expanded = potentials.expand(rows, jnp.zeros(3))
    a = expanded.position

    def energy(x):
        eta, responses = rows.read(x, jnp.arange(40))
        return jnp.sum(jax.vmap(rows.loss)(eta, responses))

    arrow, inverse = expanded.arrow, expanded.frame.root_inverse
    gradient, hessian = arrow.shared @ inverse, inverse.T @ arrow.of_shared @ inverse
    np.testing.assert_allclose(gradient, jax.grad(energy)(a), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(hessian, jax.hessian(energy)(a), rtol=1e-9)
    np.testing.assert_allclose(jax.grad(energy)(a) + a, 0.0, atol=1e-3)
    exact = energy(a + 0.3) + 0.5 * jnp.sum((a + 0.3) ** 2)
    np.testing.assert_allclose(passes.energy(rows, a + 0.3).value(), exact, rtol=1e-9)


@pytest.mark.long
def test_gradient_is_unbiased(x64):
    rows = rows_of(families.student_t(4.0, 1.0))
    expanded = potentials.expand(rows, jnp.zeros(3))
    potential = potentials.expanded_minibatch(expanded, 1)
    x = expanded.position + 0.3
    each = jax.vmap(lambda i: potential.stochastic_grad(x, i[None]))(jnp.arange(40))
    exact = jax.grad(lambda x: potential.potential(x).value())(x)
    np.testing.assert_allclose(each.mean(axis=0), exact, rtol=1e-8)
    alone = potentials.expanded_minibatch(expanded, 0)
    known = jax.grad(lambda x: row_tests.surrogate(expanded, x))(x)
    np.testing.assert_allclose(
        alone.stochastic_grad(x, alone.draw(jax.random.key(0))), known, rtol=1e-9
    )


@pytest.mark.full
def test_chunks_do_not_matter(monkeypatch, x64):
    rows = rows_of(families.bernoulli())
    whole = potentials.expand(rows, jnp.zeros(3))
    monkeypatch.setattr(predictors, "MAX_CHUNK", 7)
    jax.clear_caches()  # the length of a chunk is read when a pass is traced
    parts = potentials.expand(rows, jnp.zeros(3))
    jax.clear_caches()
    for name in ("gradient", "hessian", "bound"):
        np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), atol=1e-6)


@pytest.mark.long
def test_rows_that_are_quadratic_are_never_read():
    expanded = potentials.expand(rows_of(families.normal(1.0), dtype=jnp.float32), jnp.zeros(3))
    assert expanded.total == 0
    old, new = expanded.position, expanded.position + 1.0
    energy = row_tests.surrogate(expanded, old)
    assert row_tests.thinning_test(jax.random.key(0), expanded, old, energy, new, 9.0).num_rows == 0


@pytest.mark.long
@pytest.mark.parametrize("scale", [4e12, 1.0, 1e-13])
@pytest.mark.parametrize("make", [lambda s: families.student_t(3.0, s), families.logistic])
def test_bounds_have_no_units(make, scale):
    """In float32 the third power of a scale may be zero or infinite; the bound of a row is not."""
    y = np.random.default_rng(83).standard_t(3, 50).astype(np.float32)

    def bounds(scale):
        rows = potentials.linear_predictor(
            lambda x: 0.0 * x[0], make(scale), (np.ones((50, 1), np.float32), scale * y)
        )
        return potentials.expand(rows, jnp.zeros(1)).bound

    found = bounds(np.float32(scale))
    assert found.min() > 0
    np.testing.assert_allclose(found, bounds(np.float32(1.0)), rtol=2e-3)


@pytest.mark.long
def test_bounds_below_floats_are_not_zero():
    """Of rows that hardly matter: their loss is no polynomial."""
    data = np.ones((5, 1), np.float32), np.zeros(5, np.float32)
    family = families.student_t(3.0, np.float32(1e15))
    rows = potentials.linear_predictor(lambda x: -0.5 * x[0] ** 2, family, data)
    assert potentials.expand(rows, jnp.zeros(1)).bound.min() > 0


@pytest.mark.long
def test_rows_without_trials_are_legal():
    """They have no loss and no bound."""
    x = np.random.default_rng(84).normal(size=(40, 2)).astype(np.float32)
    count = (np.arange(40) % 3).astype(np.float32)
    y = np.where(np.arange(40) % 2, count, 0).astype(np.float32)

    def expanded(keep):
        return potentials.expand(
            potentials.linear_predictor(
                lambda theta: -0.5 * theta @ theta,
                families.binomial(count[keep]),
                (x[keep], y[keep]),
            ),
            jnp.zeros(2),
        )

    whole, some = expanded(slice(None)), expanded(count > 0)
    np.testing.assert_allclose(whole.position, some.position, atol=1e-4)
    np.testing.assert_allclose(whole.total, some.total, rtol=3e-3)  # a share of the mean remains


@pytest.mark.long
@pytest.mark.parametrize("seed", range(85, 87))
def test_classes_without_a_reference_have_the_bounds_of_differences(seed):
    """The sum of the logits is as wide as the prior, and changes no row: nor does its rounding."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(2_000), rng.normal(size=2_000)]).astype(np.float32)
    y = rng.integers(0, 3, 2_000)

    def events(width, with_reference):
        def predict(theta, row):
            logits = theta.reshape(-1, 2) @ row
            return jnp.append(logits, 0.0) if with_reference else logits

        rows = potentials.linear_predictor(
            lambda theta: -0.5 * jnp.sum(theta**2) / width**2,
            families.categorical(),
            (x, y),
            predict_fn=predict,
        )
        size = 4 if with_reference else 6
        return float(potentials.expand(rows, jnp.zeros(size)).total)

    assert events(10.0, False) < 2.0 * events(10.0, True)
    np.testing.assert_allclose(events(10.0, False), events(100.0, False), rtol=0.1)


@pytest.mark.long
def test_a_pass_over_an_expansion_counts_its_rows(x64):
    rows = rows_of(families.bernoulli())
    expanded = potentials.expand(rows, jnp.zeros(3))
    potential = potentials.expanded_minibatch(expanded, 5)
    x, far = expanded.position, expanded.position + 0.4
    test = acceptance.full_pass()
    verdict = test.test(jax.random.key(0), potential, x, test.init(potential, x), far, 0.0)
    assert verdict.num_rows == 40

    def energy(x):
        rest = remainders.loss_remainders(expanded, row_tests.steps_to(expanded, x), jnp.arange(40))
        return row_tests.surrogate(expanded, x) + jnp.sum(rest)

    exact = potential.potential(far).value() - potential.potential(x).value()
    np.testing.assert_allclose(energy(far) - energy(x), exact, rtol=1e-9)


def separable():
    x = jnp.linspace(-1.0, 1.0, 40)[:, None]
    return x, (x[:, 0] > 0).astype(jnp.float32)


X = np.ones((4, 2), np.float32)


@pytest.mark.first
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: potentials.linear_predictor(jnp.sum, families.bernoulli(), (X, np.ones(3))),
            "data must be arrays that lead with the same N > 0 rows",
        ),
        (
            lambda: potentials.linear_predictor(
                jnp.sum, families.normal(np.ones(3)), (X, np.ones(4))
            ),
            "scale of the family must be one number or one for each of the 4 rows",
        ),
        (lambda: families.student_t(-1.0, 1.0), "df must be positive"),
        (
            lambda: potentials.expand(
                potentials.linear_predictor(
                    lambda x: -(x @ x),
                    families.normal(1.0),
                    (X + np.arange(4.0)[:, None], np.ones(4)),
                    predict_fn=lambda x, row: row @ jnp.exp(x),
                ),
                jnp.zeros(2),
            ),
            "predict_fn must be affine in the position",
        ),
        (
            lambda: potentials.expand(
                potentials.linear_predictor(
                    lambda x: 0.0 * x[0], families.bernoulli(), separable()
                ),
                jnp.zeros(1),
            ),
            "no mode near the start .*separable data under a flat prior",
        ),
        (
            lambda: potentials.expand(
                potentials.linear_predictor(
                    lambda x: -(x[0] ** 2),
                    families.bernoulli(),
                    (np.eye(4, dtype=np.float32)[:, :2], np.ones(4, np.float32)),
                ),
                jnp.array([0.0, jnp.inf]),
            ),
            "not finite in float32 near the start",
        ),
        (
            lambda: potentials.expanded_minibatch(
                potentials.expand(rows_of(families.bernoulli(), dtype=jnp.float32), jnp.zeros(3)),
                41,
            ),
            "batch_size must be from 1 to the 40 rows",
        ),
    ],
)
def test_wrong_values_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: potentials.linear_predictor(jnp.sum, "normal", (X, X)), "family must be one that"),
        (lambda: acceptance.subsampled(None), "expansion must be one that .* makes; got NoneType"),
        (lambda: potentials.expanded_minibatch(None, 3), "expansion must be one that expand makes"),
    ],
)
def test_wrong_types_raise(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("nonsense", [-np.inf, np.inf, np.nan])
def test_the_search_for_a_mode_goes_nowhere_where_a_law_overflows(nonsense):
    """As one that is truncated does: Newton's first step from 2 along log(1 + x^2) leads to -10."""

    def energy(x):
        value = np.log1p(x**2).sum() if abs(x[0]) < 5 else nonsense
        return compensated_sums.Pair(np.float32(value), np.float32(0))

    def derivatives(x, root):
        slope = 2 * x / (1 + x**2) if abs(x[0]) < 5 else np.array([np.nan])
        curvature = 2 * (1 - x**2) / (1 + x**2) ** 2
        return root.T @ slope, root.T @ np.diag(curvature) @ root

    found = newton.newton(energy, derivatives, np.array([2.0], np.float32))
    assert found.is_mode and abs(found.x[0]) < 1e-3


def test_modules_say_what_they_export():
    assert expansion.expand is potentials.expand and callable(newton.newton)
