"""Families: their densities, and bounds of their derivatives searched for counter-examples."""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from blackjax_ext import families
from blackjax_ext.subsampling.families import log_gamma
from blackjax_ext.subsampling.intervals import Interval, around, magnitude

expit, exp = scipy.special.expit, np.exp


def ordered_logpmf(y, theta):
    """Of four classes."""
    cuts = np.cumsum(np.append(0.0, exp(theta[1:])))
    above = np.concatenate([[1.0], expit(theta[0] - cuts), [0.0]])
    return np.log(above[int(y)] - above[int(y) + 1])


def zero_inflated_logpmf(y, theta):
    of_count = scipy.stats.poisson.logpmf(y, exp(theta[0])) - np.logaddexp(0, theta[1])
    return np.logaddexp(of_count, -np.logaddexp(0, -theta[1])) if y == 0 else of_count


class Case(NamedTuple):
    """A family with all its predictors free.

    family
        What it is.
    logpdf
        ``logpdf(y, theta)`` by SciPy.
    response
        A response from a number between zero and one, of predictors.
    looseness
        At most how much larger the sum of the bounds is than that of the greatest derivatives over
        a narrow box, typically.
    """

    family: families.Family
    logpdf: Callable
    response: Callable
    looseness: float = 1.05


def quantile(law):
    return lambda u, theta: float(law(theta).ppf(u))


def share(u, theta):
    """A beta quantile that is neither zero nor one in floats."""
    return float(np.clip(beta(theta).ppf(u), 1e-6, 1 - 1e-6))


def student(t):
    return scipy.stats.t(exp(t[2]), t[0], exp(t[1]))


def negative_binomial_2(t):
    return scipy.stats.nbinom(exp(t[1]), exp(t[1]) / (exp(t[1]) + exp(t[0])))


def gamma(t):
    return scipy.stats.gamma(exp(t[1]), scale=exp(t[0] - t[1]))


def beta(t):
    return scipy.stats.beta(exp(t[1]) * expit(t[0]), exp(t[1]) * expit(-t[0]))


def beta_binomial(t):
    return scipy.stats.betabinom(20, exp(t[1]) * expit(t[0]), exp(t[1]) * expit(-t[0]))


LAWS = {
    "bernoulli": (families.bernoulli(), lambda t: scipy.stats.bernoulli(expit(t[0])), 1.05),
    "binomial": (families.binomial(7.0), lambda t: scipy.stats.binom(7, expit(t[0])), 1.05),
    "negative_binomial": (
        families.negative_binomial(3.0),
        lambda t: scipy.stats.nbinom(3, expit(-t[0])),
        1.05,
    ),
    "beta_binomial": (families.beta_binomial(20.0), beta_binomial, 1.4),
    "normal": (families.normal(), lambda t: scipy.stats.norm(t[0], exp(t[1])), 1.05),
    "logistic": (families.logistic(), lambda t: scipy.stats.logistic(t[0], exp(t[1])), 1.1),
    "gumbel": (families.gumbel(), lambda t: scipy.stats.gumbel_r(t[0], exp(t[1])), 1.2),
    "student_t": (families.student_t(), student, 2.0),
    "poisson": (families.poisson(), lambda t: scipy.stats.poisson(exp(t[0])), 1.05),
    "negative_binomial_2": (families.negative_binomial_2(), negative_binomial_2, 2.0),
    "gamma": (families.gamma(), gamma, 1.1),
    "exponential": (families.exponential(), lambda t: scipy.stats.expon(scale=exp(t[0])), 1.05),
    "weibull": (
        families.weibull(),
        lambda t: scipy.stats.weibull_min(exp(t[1]), scale=exp(t[0])),
        1.2,
    ),
}


def logpdf_of(law):
    def logpdf(y, theta):
        made = law(theta)
        return made.logpmf(y) if hasattr(made.dist, "pmf") else made.logpdf(y)

    return logpdf


CASES = {
    name: Case(family, logpdf_of(law), quantile(law), looseness)
    for name, (family, law, looseness) in LAWS.items()
} | {
    "beta": Case(families.beta(), logpdf_of(beta), share, 1.6),
    "zero_inflated_poisson": Case(
        families.zero_inflated_poisson(),
        zero_inflated_logpmf,
        lambda u, t: float(scipy.stats.poisson.ppf(max(0.01, 2 * u - 1), exp(t[0]))),
        1.1,
    ),
    "ordered_logistic": Case(
        families.ordered_logistic(4), ordered_logpmf, lambda u, t: float(int(4 * u)), 3.0
    ),
}
SIZES = {name: len(case.family.kind.free) for name, case in CASES.items()}


def predictors(name):
    """Legal predictors: the first anything, the others logarithms."""
    first = st.floats(-3.0, 3.0)
    return st.tuples(first, *[st.floats(-2.0, 4.0)] * (SIZES[name] - 1))


UNIFORM = st.floats(0.01, 0.99)


@pytest.mark.parametrize("name", CASES)
def test_loss_is_the_density(name, x64):
    case = CASES[name]
    kind, parameters = case.family.kind, case.family.parameters
    loss = jax.jit(lambda theta, y: kind.call(theta, y, parameters))

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(predictors(name), predictors(name), UNIFORM)
    def search(one, other, u):
        y = jnp.array(case.response(u, one))
        changes = [
            float(loss(jnp.array(one), y) - loss(jnp.array(other), y)),
            float(case.logpdf(y, np.array(other)) - case.logpdf(y, np.array(one))),
        ]
        np.testing.assert_allclose(*changes, rtol=1e-6, atol=1e-6)

    search()


@cache
def derivative(kind, order):
    """Derivatives of the loss in the units of the predictors at the centre."""

    def of(theta, centre, y, parameters):
        function = lambda t: kind.call(t, y, parameters)  # noqa: E731
        for _ in range(order):
            function = jax.jacfwd(function)
        units, found = kind.units(centre, parameters), function(theta)
        for axis in range(order):
            found = found * units.reshape([-1 if i == axis else 1 for i in range(order)])
        return jnp.abs(found)

    return jax.jit(jax.vmap(of, (0, None, None, None)))


@cache
def bounds(kind, order):
    """Bounds in one program."""
    return jax.jit(partial(kind.bounds, order))


def corners_and_more(rng, size, num=60):
    """Points of the unit box: corners, the centre, others."""
    corners = np.array(list(product([-1.0, 0.0, 1.0], repeat=size)))
    return np.concatenate([corners, rng.uniform(-1, 1, (num, size))])


def worst_and_bound(case, order, theta, y, radius):
    """Greatest derivatives over points of a box, and their bounds."""
    kind, parameters = case.family.kind, case.family.parameters
    units, y = kind.units(jnp.array(theta), parameters), jnp.array(y)
    around = corners_and_more(np.random.default_rng(0), len(theta))
    points = jnp.array(theta) + radius * units * around
    found = derivative(kind, order)(points, jnp.array(theta), y, parameters)
    bound = bounds(kind, order)(jnp.array(theta), radius * units, y, parameters)
    return np.max(found, axis=0), np.asarray(bound)


OF_THIRD_ORDER = [name for name in CASES if CASES[name].family.kind.highest >= 4]


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "order"),
    [
        *((name, 3) for name in CASES),
        *((name, 4) for name in OF_THIRD_ORDER),
    ],
)
def test_no_counter_example_to_a_bound(name, order, x64):
    case = CASES[name]

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(predictors(name), UNIFORM, st.floats(1e-4, 1.0))
    def search(theta, u, radius):
        worst, bound = worst_and_bound(case, order, theta, case.response(u, theta), radius)
        assert np.all(worst <= bound * (1 + 1e-7) + 1e-10), (worst / bound).max()

    search()


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "order"), [*((name, 3) for name in CASES), *((name, 4) for name in OF_THIRD_ORDER)]
)
def test_bounds_are_tight(name, order, x64):
    """A bound that is too large costs rows."""
    case, rng = CASES[name], np.random.default_rng(1)
    ratios = []
    for _ in range(12):
        theta = rng.normal(0.0, 1.0, SIZES[name]) * [1.0, *[0.7] * (SIZES[name] - 1)]
        y = case.response(rng.uniform(0.05, 0.95), theta)
        worst, bound = worst_and_bound(case, order, theta, y, 0.05)
        ratios.append(bound.sum() / worst.sum())
    # each order has one more term that is bounded by itself
    assert np.median(ratios) < case.looseness ** (order - 2)


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "order"), [*((name, 3) for name in CASES), *((name, 4) for name in OF_THIRD_ORDER)]
)
def test_bounds_hold_in_float32(name, order):
    """At bounds of double precision, to the margin that an expansion adds."""
    case, rng = CASES[name], np.random.default_rng(2)
    kind, parameters = case.family.kind, case.family.parameters
    for _ in range(8):
        theta = np.float32(rng.normal(0.0, 1.5, SIZES[name]))
        y = np.float32(case.response(rng.uniform(0.01, 0.99), theta))
        radius = np.float32(rng.choice([1e-6, 1e-3, 0.1]) * np.ones(SIZES[name]))
        arguments = [theta, radius, y]
        single = bounds(kind, order)(*map(jnp.asarray, arguments), parameters)
        assert single.dtype == jnp.float32
        with jax.enable_x64(True):
            arguments = [jnp.asarray(each, float) for each in arguments]
            double = np.asarray(bounds(kind, order)(*arguments, parameters))
        assert np.all(np.asarray(single) >= double * (1 - 1e-6))
        np.testing.assert_allclose(single, double, rtol=2e-2, atol=1e-3 * np.max(double))


@pytest.mark.parametrize("y", [1e6, -1e10, 1e15])
def test_bounds_hold_far_out_in_float32(y):
    """Third powers of a response that is that far are more than a float holds."""
    kind, arguments = families.student_t().kind, [np.zeros(3), 0.1 * np.ones(3), y]
    single = bounds(kind, 3)(*[jnp.asarray(each, jnp.float32) for each in arguments], {})
    with jax.enable_x64(True):
        double = np.asarray(bounds(kind, 3)(*[jnp.asarray(each) for each in arguments], {}))
    lost = 1e-12 * np.max(double)  # what underflows is nothing beside the rest
    assert np.all(np.asarray(single) >= double * (1 - 1e-6) - lost), single / double
    np.testing.assert_allclose(single, double, rtol=2e-2, atol=1e-3 * np.max(double))


@pytest.mark.long
def test_known_parameters_are_those_of_the_free_ones(x64):
    """A density with a known scale is the one with its scale at that value."""
    known, free = families.student_t(4.0, 2.0), families.student_t()
    both = free.kind.having("loc"), known.kind
    assert both[0] == both[1] and known.kind.free == ("loc",)
    loss = known.kind.call(jnp.array([0.3]), 1.0, known.parameters)
    theta = jnp.array([0.3, np.log(2.0), np.log(4.0)])
    np.testing.assert_allclose(loss, free.kind.call(theta, 1.0, {}), rtol=1e-12)
    bound = known.kind.bounds(3, jnp.array([0.3]), jnp.array([0.1]), 1.0, known.parameters)
    assert bound.shape == (1, 1, 1)


def test_no_counter_example_to_the_bounds_of_classes(x64):
    """Forms on different directions, from greedy and random starts."""
    kind = families.categorical().kind

    @jax.jit
    @jax.vmap
    def forms(eta, u, v, w):
        def loss(a, b, c):
            return kind.loss(eta + a * u + b * v + c * w, 1)

        third = jax.grad(jax.grad(jax.grad(loss, 2), 1), 0)(0.0, 0.0, 0.0)
        norms = [jnp.linalg.norm(each) for each in (u, v, w)]
        return third / (norms[0] * norms[1] * norms[2])

    rng = np.random.default_rng(80)
    eta, u, v, w = rng.normal(size=(4, 4000, 4)) * rng.choice([0.3, 1, 5], size=(4, 4000, 1))
    u[:2000] = np.array([1.0, -1.0, 0.0, 0.0])
    v[:1500], w[:1000] = u[:1500], u[:1000]
    eta[:1000, 2:] = -20.0
    third = forms(eta, u, v, w)
    # two classes and their difference reach it
    assert 0.99 * kind.norm < np.max(np.abs(third)) <= kind.norm


@pytest.mark.long
def test_what_is_left_of_log_gamma_functions(x64):
    """Values, and the bounds of their derivatives, from tiny arguments to large ones."""
    c = jnp.linspace(-12.0, 9.0, 4001)
    alpha = np.exp(c)
    stirling = scipy.special.gammaln(alpha) - alpha * c + alpha
    np.testing.assert_allclose(log_gamma.stirling_excess(c), stirling, rtol=1e-9, atol=1e-9)
    half = scipy.special.gammaln(alpha) - scipy.special.gammaln(alpha + 0.5) + 0.5 * c
    np.testing.assert_allclose(log_gamma.half_step(c), half, rtol=1e-8, atol=1e-10)

    def derivatives(function):
        first = jax.grad(function)
        second = jax.grad(first)
        return [jax.vmap(each)(c) for each in (first, second, jax.grad(second))]

    point = Interval(c, c)
    bounds = [*log_gamma.stirling_derivatives(point), log_gamma.half_step_third(point)]
    found = derivatives(log_gamma.stirling_excess) + derivatives(log_gamma.half_step)[2:]
    for value, bound in zip(found, bounds, strict=True):
        assert np.all(value >= bound.low - 1e-7) and np.all(value <= bound.high + 1e-7)


def test_intervals_hold_what_rounding_takes():
    a = around(jnp.float32(1.0), jnp.float32(1e-9))
    assert a.low < 1 < a.high
    rest = 1.0 - a * a
    assert rest.low < 0 < rest.high and magnitude(rest) < 1e-5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: families.binomial(-1.0), r"total_count must be at least 0 .*; got -1\.0"),
        (lambda: families.normal(0.0), "scale must be positive"),
        (lambda: families.ordered_logistic(1), "num_classes must be at least 2; got 1"),
        (
            lambda: families.ordered_logistic(3, [1.0, 0.5]),
            "cutpoints must be 2 increasing numbers",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
