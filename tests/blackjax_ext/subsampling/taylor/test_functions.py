"""Taylor coefficients of functions of one variable, searched for counter-examples."""

from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from blackjax_ext.subsampling.intervals import Interval
from blackjax_ext.subsampling.taylor import functions

ORDER = 5
REAL, POSITIVE = st.floats(-6.0, 6.0), st.floats(1e-2, 50.0)
FUNCTIONS = {
    "exp": (functions.exp_, jnp.exp, REAL),
    "expm1": (functions.expm1_, jnp.expm1, REAL),
    "log": (functions.log_, jnp.log, POSITIVE),
    "log1p": (functions.log1p_, jnp.log1p, POSITIVE),
    "reciprocal": (functions.reciprocal_, lambda x: 1 / x, POSITIVE),
    "sqrt": (functions.sqrt_, jnp.sqrt, POSITIVE),
    "rsqrt": (functions.rsqrt_, jax.lax.rsqrt, POSITIVE),
    "logistic": (functions.logistic_, jax.nn.sigmoid, REAL),
    "softplus": (functions.softplus_, lambda x: -jax.nn.log_sigmoid(-x), REAL),
    "tanh": (functions.tanh_, jnp.tanh, REAL),
    "erf": (functions.erf_, jax.lax.erf, REAL),
    "log_ndtr": (functions.log_ndtr_, jax.scipy.special.log_ndtr, REAL),
    "lgamma": (functions.lgamma_, jax.lax.lgamma, POSITIVE),
    "digamma": (functions.digamma_, jax.lax.digamma, POSITIVE),
    "cube": (lambda x, n: functions.power_(x, n, 3), lambda x: x**3, REAL),
}


def derivatives(function):
    found = [function]
    for _ in range(ORDER):
        found.append(jax.grad(found[-1]))
    return jax.jit(lambda x: jnp.stack([jax.vmap(each)(x) for each in found]))


@pytest.mark.first
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_counter_example_to_coefficients(name, x64):
    """In single precision, of derivatives in double at many points."""
    make, function, domain = FUNCTIONS[name]
    exact = derivatives(function)

    @jax.jit
    def bounds(low, high):
        found = make(Interval(low, high), ORDER)
        return jnp.stack([each.low for each in found]), jnp.stack([each.high for each in found])

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(domain, st.floats(0.0, 3.0))
    def search(low, width):
        ends = np.float32(low), np.float32(low + width)
        points = np.linspace(*map(float, ends), 41)
        factors = np.array([factorial(m) for m in range(ORDER + 1)])[:, None]
        found = np.asarray(exact(jnp.asarray(points))) / factors
        for dtype in (jnp.float32, jnp.float64):
            least, most = bounds(*(jnp.asarray(end, dtype) for end in ends))
            slack = 1e-11 * (1 + np.abs(found).max(axis=1))  # of the derivatives themselves
            assert np.all(found.min(axis=1) >= np.asarray(least, np.float64) - slack)
            assert np.all(found.max(axis=1) <= np.asarray(most, np.float64) + slack)

    search()


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gamma_functions_are_as_exact_as_their_rounding_says(dtype, x64):
    """Half of it, from tiny arguments to where single precision underflows."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-6, 18, 20_000)).astype(dtype)
    x = np.concatenate([x, rng.uniform(1, 2.5, 20_000).astype(dtype)])
    wide, eps = x.astype(float), np.finfo(dtype).eps
    checks = [
        (functions.digamma_value(jnp.asarray(x)), scipy.special.digamma(wide)),
        (functions.lgamma_value(jnp.asarray(x)), scipy.special.gammaln(wide)),
    ]
    found, size = functions.zeta_values(jnp.asarray(x), range(2, 7))
    checks += [
        ((found[m - 2], size[m - 2]), scipy.special.zeta(float(m), wide)) for m in range(2, 7)
    ]
    for (value, size), exact in checks:
        is_normal = np.abs(exact) > 1e-30
        off = np.abs(np.asarray(value, float) - exact)[is_normal]
        assert np.all(off <= 0.5 * eps * np.asarray(size, float)[is_normal])


@pytest.mark.long
def test_what_leaves_the_domain_is_unbounded():
    x = Interval(jnp.float32(-1.0), jnp.float32(2.0))
    for make in (functions.log_, functions.sqrt_, functions.reciprocal_, functions.lgamma_):
        assert all(np.isneginf(each.low) and np.isposinf(each.high) for each in make(x, 3))


def holds(make, x, exact):
    """The coefficients of points hold the exact ones, (order + 1, n); what is NaN is unbounded."""
    found = make(Interval(x, x), ORDER)
    for m, (each, values) in enumerate(zip(found, exact, strict=True)):
        assert not np.any(np.asarray(each.low, float) > values), m
        assert not np.any(np.asarray(each.high, float) < values), m


@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
def test_roots_keep_derivatives_where_powers_overflow(name):
    """The fifth power of 1e8 is too large for single precision."""
    x = np.geomspace(1e-37, 1e37, 400, dtype=np.float32)
    power = {"sqrt": 0.5, "rsqrt": -0.5}[name]
    wide = x.astype(float)
    exact = [scipy.special.binom(power, m) * wide ** (power - m) for m in range(ORDER + 1)]
    holds(FUNCTIONS[name][0], jnp.asarray(x), np.stack(exact))


@pytest.mark.long
def test_derivatives_of_erf_in_its_tail_are_above_its_weight():
    """A polynomial times a number below the least one of single precision may be above that."""
    x = np.linspace(-10.0, 10.0, 401, dtype=np.float32)
    wide = x.astype(float)
    exact = [scipy.special.erf(wide)]
    for m in range(1, ORDER + 1):
        of_polynomial = scipy.special.eval_hermite(m - 1, wide) * np.exp(-(wide**2))
        exact.append((-1) ** (m - 1) * 2 / np.sqrt(np.pi) * of_polynomial / factorial(m))
    holds(functions.erf_, jnp.asarray(x), exact)


def test_log1p_holds_its_value_where_xla_loses_digits(x64):
    x = np.linspace(-0.9, 2.0, 4001)
    holds(lambda x, order: functions.log1p_(x, 0), jnp.asarray(x), [np.log1p(x)])


@pytest.mark.long
@pytest.mark.parametrize("y", [0.0, 1.0, 2.0, 7.0, 300.0])
def test_no_counter_example_to_rising_factorials(y, x64):
    """Sums of logarithms, by the logarithm of their first term."""
    exact = derivatives(lambda c: jnp.sum(jnp.log(jnp.exp(c) + jnp.arange(y))))
    rng = np.random.default_rng(1)
    for _ in range(10):
        low = rng.uniform(-4, 6)
        ends = jnp.asarray([low, low + rng.uniform(0, 1)])
        found = np.asarray(exact(jnp.linspace(*ends, 41))) / np.array(
            [[factorial(m)] for m in range(ORDER + 1)]
        )
        bounds = functions.rising_(Interval(*ends), ORDER, jnp.asarray(y), jnp.inf)
        for values, bound in zip(found[1:], bounds[1:], strict=True):
            slack = 1e-9 * (1 + np.abs(values).max())
            assert values.min() >= bound.low - slack and values.max() <= bound.high + slack
