"""Programs read on boxes: searched for counter-examples, compared with bounds by hand, refused."""

from functools import cache
from math import factorial, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.scipy.special import gammaln

from blackjax_ext import families, potentials
from blackjax_ext.subsampling import predictors
from blackjax_ext.subsampling.intervals import Interval
from blackjax_ext.subsampling.predictors import loss_remainder
from blackjax_ext.subsampling.taylor import functions, jets
from blackjax_ext.subsampling.taylor.jets import Box, Jet
from blackjax_ext.subsampling.taylor.reader import UnreadableError, derivatives_over
from tests.blackjax_ext.subsampling.test_families import CASES, corners_and_more

softplus = jax.nn.softplus


class Program(NamedTuple):
    """A loss as one would write it.

    size
        Number of predictors.
    loss
        ``loss(theta, y)``.
    family
        The family of which it is the loss, if any.
    looseness
        At most how much larger bounds are than by hand, in the median of narrow boxes.
    """

    size: int
    loss: object
    family: str | None = None
    looseness: float = 1.0


def z_of(t, y):
    return (y - t[0]) * jnp.exp(-t[1])


def negative_binomial(t, y):
    k = jnp.exp(t[1])
    return gammaln(k) - gammaln(k + y) + (k + y) * softplus(t[0] - t[1]) - y * (t[0] - t[1])


def student_t(t, y):
    df = jnp.exp(t[2])
    rest = gammaln(df / 2) - gammaln(df / 2 + 0.5) + 0.5 * t[2] + t[1]
    return rest + (df + 1) / 2 * jnp.log1p(z_of(t, y) ** 2 / df)


def gamma(t, y):
    a = jnp.exp(t[1])
    return gammaln(a) - a * (t[1] - t[0]) - (a - 1) * jnp.log(y) + y * jnp.exp(t[1] - t[0])


PROGRAMS = {
    "normal": Program(2, lambda t, y: t[1] + 0.5 * z_of(t, y) ** 2, "normal", 1.05),
    "poisson": Program(1, lambda t, y: jnp.exp(t[0]) - y * t[0], "poisson", 1.05),
    "logistic": Program(
        2, lambda t, y: t[1] + z_of(t, y) + 2 * softplus(-z_of(t, y)), "logistic", 1.05
    ),
    "gamma": Program(2, gamma, "gamma", 1.1),
    "negative_binomial_2": Program(2, negative_binomial, "negative_binomial_2", 1.7),
    "student_t": Program(3, student_t, "student_t", 6.0),
    "roots": Program(2, lambda t, y: jnp.sqrt(1 + z_of(t, y) ** 2) + jax.lax.rsqrt(2 + y * y)),
    "powers": Program(1, lambda t, y: (1 + jnp.exp(t[0])) ** 1.7 + jnp.tanh(t[0]) ** 3),
    "quotient": Program(1, lambda t, y: jax.lax.erf(t[0]) / (3 + jnp.expm1(t[0]))),
    "vector": Program(2, lambda t, y: jnp.sum(jnp.exp(jnp.stack([*t]) * jnp.arange(2.0)) * y)),
}


# three variables, or programs that the others have in parts
SLOW = ("student_t", "quotient", "vector")


@cache
def compiled(name, order=4):
    """Third derivatives at points, and their jet over a box."""
    program = PROGRAMS[name]

    def at(theta, y):
        function = lambda t: program.loss(tuple(t), y)  # noqa: E731
        for _ in range(3):
            function = jax.jacfwd(function)
        return function(theta)

    def over(centre, radius, y):
        found = derivatives_over(program.loss, Box(tuple(centre), tuple(radius), order), y)
        return found.coefficients

    return jax.jit(jax.vmap(at, (0, None))), jax.jit(over)


def thirds(name, order=4):
    """Multi-indices of the third derivatives, with their places in an array and in a jet."""
    table = jets.index_table(PROGRAMS[name].size, order)
    for index, place in table.position.items():
        if sum(index) == 3:
            axes = tuple(j for j, power in enumerate(index) for _ in range(power))
            yield axes, place, prod(map(factorial, index))


def check(name, centre, radius, y, dtype=jnp.float64):
    """No third derivative at a point of a box is outside of its interval."""
    at, over = compiled(name)
    inside = corners_and_more(np.random.default_rng(0), len(centre))
    centre, radius = (np.asarray(each, dtype) for each in (centre, radius))
    found = np.asarray(at(jnp.asarray(centre + radius * inside, float), float(y)))
    bounds = over(jnp.asarray(centre), jnp.asarray(radius), dtype(y))
    assert bounds.low.dtype == dtype
    for axes, place, factor in thirds(name):
        values = found[(slice(None), *axes)] / factor
        low, high = (np.float64(end[1, place]) for end in (bounds.low, bounds.high))
        slack = 1e-9 * np.abs(found).max() + 1e-12  # of the derivatives themselves
        assert low - slack <= values.min() and values.max() <= high + slack, (name, axes)


def search_for(name, dtype=jnp.float64, num=20):
    """Look for a counter-example."""
    size = PROGRAMS[name].size
    centres = st.tuples(*[st.floats(-2.0, 2.0)] * size)
    radii = st.tuples(*[st.floats(0.0, 0.7)] * size)

    @settings(max_examples=num, deadline=None, derandomize=True, database=None)
    @given(centres, radii, st.sampled_from([1.0, 3.0, 0.2]))
    def search(centre, radius, y):
        check(name, centre, radius, y, dtype)

    search()


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in PROGRAMS],
)
def test_no_counter_example_to_third_derivatives(name, x64):
    search_for(name)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("name", ["logistic", "gamma", "negative_binomial_2"])
def test_no_counter_example_in_single_precision(name, x64):
    search_for(name, jnp.float32)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if p.family])
def test_bounds_are_near_those_by_hand(name, x64):
    """In boxes as narrow as a hundred thousand rows make them."""
    program, rng, ratios = PROGRAMS[name], np.random.default_rng(1), []
    kind = CASES[program.family].family.kind
    names = kind.predictors[: program.size]
    for _ in range(8):
        theta, radius = rng.normal(0, 0.7, program.size), 0.05 * np.ones(program.size)
        y = float(CASES[program.family].response(rng.uniform(0.1, 0.9), theta))
        bounds = compiled(name)[1](jnp.asarray(theta), jnp.asarray(radius), y)
        by_hand = kind.having(*names).bounds(3, jnp.asarray(theta), radius, y, {})
        units = np.asarray(kind.having(*names).units(jnp.asarray(theta), {}))
        total = sum(
            factor
            * max(abs(float(bounds.low[1, place])), abs(float(bounds.high[1, place])))
            * np.prod(units[list(axes)])
            * multiplicity(axes)
            for axes, place, factor in thirds(name)
        )
        ratios.append(total / float(np.sum(by_hand)))
    print(name, np.round(np.median(ratios), 3), np.round(np.max(ratios), 3))
    assert np.median(ratios) < program.looseness


def multiplicity(axes):
    """How often an entry stands in the array of third derivatives."""
    return factorial(3) // prod(factorial(axes.count(j)) for j in set(axes))


@pytest.mark.parametrize(
    ("loss", "primitive"),
    [
        (lambda t: jnp.abs(t[0]), "abs"),
        (lambda t: jnp.where(t[0] > 1, t[0] ** 2, 0.0), "select_n"),
        (lambda t: jnp.maximum(t[0], 0.0), "max"),
        (lambda t: jax.nn.relu(t[0]), "max|select_n"),
        (lambda t: jax.lax.bessel_i0e(t[0]), "bessel_i0e"),
        (lambda t: jnp.sin(t[0]), "sin"),
        (lambda t: (1.3 - t[0].astype(int)) ** 2, "convert_element_type"),
        (lambda t: t[0].astype(bool) * 2.0, "convert_element_type"),
        (lambda t: jax.lax.fori_loop(0, 3, lambda i, x: x * x, t[0]), "scan|while"),
    ],
)
def test_what_is_not_known_or_not_smooth_is_refused_by_name(loss, primitive):
    box = Box((jnp.zeros(()),), (jnp.ones(()),), 4)
    with pytest.raises(UnreadableError, match=rf"primitive '({primitive})'"):
        derivatives_over(loss, box)


@pytest.mark.long
def test_a_clamped_value_is_read_where_the_box_is_on_one_side():
    def third(centre):
        box = Box((jnp.float32(centre),), (jnp.float32(0.1),), 4)
        found = derivatives_over(
            lambda t: jnp.exp(jax.lax.clamp(-1.0, t[0], 1.0)), box
        ).coefficients
        return float(found.low[1, 3] * 6), float(found.high[1, 3] * 6)

    low, high = third(0.5)
    assert low <= np.exp(0.4) and np.exp(0.6) <= high < 1.01 * np.exp(0.6)
    assert np.abs(third(2.0)).max() < 1e-5 and not np.isfinite(third(1.0)).any()


@pytest.mark.long
def test_each_entry_of_an_array_is_clamped_by_itself():
    def loss(t):
        return jnp.sum(jnp.exp(jax.lax.clamp(-1.0, jnp.stack([*t]), 1.0)))

    box = Box((jnp.float32(0.5), jnp.float32(2.0)), (jnp.float32(0.1), jnp.float32(0.1)), 4)
    found, place = derivatives_over(loss, box).coefficients, jets.index_table(2, 4).position
    first, second = ([float(end[1, place[i]]) for end in (found.low, found.high)] for i in THIRDS)
    assert 6 * first[0] <= np.exp(0.4) and np.exp(0.6) <= 6 * first[1] < 1.01 * np.exp(0.6)
    assert np.abs(second).max() < 1e-5


THIRDS = ((3, 0), (0, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: families.smooth(lambda y, a: a, []), "one to 4 names"),
        (lambda: families.smooth(lambda y, a: a * y, ["a"], a=1.0), "must be free"),
        (lambda: families.smooth(lambda y, a: -jnp.abs(y - a), ["a"]), "primitive 'abs'"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# planted bugs

TRUE = {"tightened": Box.tightened, "convolved": jets.combined, "exp": functions.exp_}


def narrower(self, a):
    """A tenth of each interval is lost."""
    found = TRUE["tightened"](self, a)
    low, high = found.coefficients.low, found.coefficients.high
    lost = 0.05 * (high - low)
    return Jet(Interval(low + lost, high - lost), found.over)


def expansion_without_its_last_term(self, a):
    """Taylor's theorem without the remainder."""
    table, last = self.table(a.over), self.order
    is_last = (table.degree == last).reshape(1, -1)
    zero = a.mapped(lambda end: jnp.where(is_last, 0.0, end))
    found = TRUE["tightened"](self, zero)
    return Jet(
        jax.tree.map(
            lambda new, old: jnp.where(is_last, old, new), found.coefficients, a.coefficients
        ),
        a.over,
    )


def exponential_of_the_left_end(x, order):
    """Where it is least."""
    return TRUE["exp"](Interval(x.low, x.low), order)


def products_of_centres(a, b, weight):
    """Ends are not all combined."""
    middle = Interval(0.5 * (b.low + b.high), 0.5 * (b.low + b.high))
    return TRUE["convolved"](a, middle, weight)


MUTATIONS = {
    "narrower": (Box, "tightened", narrower),
    "no_remainder": (Box, "tightened", expansion_without_its_last_term),
    "products": (jets, "combined", products_of_centres),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bugs_are_found(name, monkeypatch, x64):
    monkeypatch.setattr(*MUTATIONS[name])
    compiled.cache_clear()
    try:
        with pytest.raises(AssertionError):
            search_for("logistic", num=10)
    finally:
        compiled.cache_clear()


def skew_normal(y, loc, skew):
    """Along the location almost a parabola where the skewness is none."""
    return -0.5 * (y - loc) ** 2 + jnp.log(0.5 + 0.5 * jax.lax.erf(skew * (y - loc)))


def remainder_error():
    """Of a long move of both predictors, to the difference that it is."""
    rows = (jnp.ones((1, 1)), jnp.array([1.4]))
    family = families.smooth(skew_normal, ["loc", "skew"])
    posterior = potentials.linear_predictor(
        lambda x: 0.0, family, rows, predict_fn=lambda x, row: x * row[0]
    )
    t = jnp.array([5.4, -2.0])
    eta, row = jax.tree.map(
        lambda leaf: leaf[0], posterior.read(jnp.array([1.8, 0.01]), jnp.zeros(1, int))
    )
    assert np.all(np.abs(t) < posterior.reach(eta, row)), "not a move that its reach forbids"
    loss = lambda s: posterior.loss((eta[0] + s * t,), row)  # noqa: E731
    slope, bend = jax.grad(loss)(0.0), jax.grad(jax.grad(loss))(0.0)
    found = loss_remainder(posterior, 2, eta, (t[None],), row)
    return abs(float(found - (loss(1.0) - loss(0.0) - slope - 0.5 * bend)))


@pytest.mark.long
def test_the_quadrature_of_a_product_of_predictors_is_checked(x64):
    assert remainder_error() < 1e-9


@pytest.mark.long
def test_a_quadrature_that_is_not_checked_is_found(x64, monkeypatch):
    monkeypatch.setattr(predictors, "is_resolved", lambda weights, values: True)
    assert remainder_error() > 0.1
