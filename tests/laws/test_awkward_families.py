"""Regressions of every family on awkward data: right to NumPyro in double precision, or by name.

Three things are asked of a model. The part that is known without rows and the remainders of the
rows add up to its energy. No remainder is larger than its bound. Or it raises, naming the site.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.handlers import scale
from numpyro.infer.util import potential_energy

from blackjax_ext.subsampling import expansion, remainders, row_tests
from numpyro_fwd.bridge.plates import FullView, check_model
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.subsampling import predictors

FULL_ONLY = pytest.mark.full
ENERGY = 0.01  # in units of the posterior, as the page on the test promises
N = 120
sample = numpyro.sample


# the law


def in_double(leaf: Any) -> Any:
    """An array in double precision."""
    leaf = np.asarray(leaf)
    return jnp.asarray(leaf, float) if leaf.dtype.kind == "f" else jnp.asarray(leaf)


def expanded(model: Callable, args: tuple, z: Any) -> expansion.Expansion:
    """As a kernel expands it, with its data."""
    view = FullView(model)
    rows = RowModel.of(view, args, {}, check_model(view, args, {}))
    found = predictors.expanded(rows, z, say=lambda words: None)
    return found.of(predictors.linear_predictor_of(rows, z))


def sees(model: Callable, args: tuple, z: Any) -> None:
    """Raise AssertionError unless energies add up, and no remainder is beyond its bound."""
    made = expanded(model, args, z)
    flat, unravel = ravel_pytree(made.position)
    noise = jnp.asarray(np.random.default_rng(1).normal(size=(8, flat.size)), flat.dtype)
    x = flat + jax.vmap(made.metric.inverse_sqrt_times)(noise)

    @jax.jit
    @jax.vmap
    def parts(x):
        rows = remainders.loss_remainders(made, (x - flat)[None], jnp.arange(made.num_rows))[0]
        return row_tests.surrogate(made, unravel(x)), rows

    known, rows = (np.asarray(each, np.float64) for each in parts(x))
    lengths = np.linalg.norm(np.asarray((x - flat) @ made.whitener.T, np.float64), axis=1)
    assert np.all(lengths < made.radius) and np.all(np.isfinite(rows)), "remainder: not finite"
    bound = np.asarray(made.bound, np.float64) * lengths[:, None] ** 3
    assert np.all(np.abs(rows) <= bound), f"bound: {np.max(np.abs(rows) / bound):.3f}"
    with jax.enable_x64(True):
        wide = jax.tree.map(in_double, args)
        back = ravel_pytree(jax.tree.map(in_double, unravel(flat)))[1]
        energy = jax.vmap(lambda x: potential_energy(FullView(model), wide, {}, back(x)))
        exact = np.asarray(jax.jit(energy)(in_double(x)))
    off = known + rows.sum(axis=1) - exact
    # of an energy of a hundred thousand that a draw from tails so unlike a normal has, its digits
    most = ENERGY + 1e-5 * (exact - exact.min())
    assert np.all(np.abs(off - np.median(off)) < most), f"energy: off by {np.ptp(off):.3g}"


# every family in every condition


class Rows(NamedTuple):
    """A likelihood of a predictor and a positive parameter, and responses that it could have.

    One that is beyond the floats where all is zero is searched from the truth.
    """

    likelihood: Callable
    draw: Callable
    is_beyond_at_zero: bool = False


def share(e):
    return 1 / (1 + np.exp(-e))


def beta_rows(size):
    return Rows(
        lambda e, s: dist.Beta(size * s * jax.nn.sigmoid(e), size * s * jax.nn.sigmoid(-e)),
        lambda rng, e: np.clip(rng.beta(size * share(e), size * share(-e)), 1e-4, 1 - 1e-4),
    )


def noisy(law, noise):
    return Rows(law, lambda rng, e: e + 0.7 * getattr(rng, noise[0])(*noise[1:], size=e.shape))


FAMILIES = {
    "normal": noisy(dist.Normal, ("normal", 0, 1)),
    "lognormal": Rows(dist.LogNormal, lambda rng, e: np.exp(e + 0.7 * rng.normal(size=e.shape))),
    "student": noisy(lambda e, s: dist.StudentT(4 / s, e, s), ("standard_t", 4)),
    "cauchy": noisy(dist.Cauchy, ("standard_cauchy",)),
    "gumbel": noisy(dist.Gumbel, ("gumbel", 0, 1)),
    "logistic": noisy(dist.Logistic, ("logistic", 0, 1)),
    "poisson": Rows(lambda e, s: dist.Poisson(jnp.exp(e)), lambda rng, e: rng.poisson(np.exp(e))),
    "poisson_big": Rows(
        lambda e, s: dist.Poisson(20000 * jnp.exp(e)), lambda rng, e: rng.poisson(20000 * np.exp(e))
    ),
    "negative_binomial": Rows(
        lambda e, s: dist.NegativeBinomial2(jnp.exp(e), s),
        lambda rng, e: rng.negative_binomial(2, 2 / (2 + np.exp(e))),
    ),
    "negative_binomial_big": Rows(
        lambda e, s: dist.NegativeBinomial2(1e7 * jnp.exp(e), s),
        lambda rng, e: rng.negative_binomial(3, 3 / (3 + 1e7 * np.exp(e))),
    ),
    "nearly_poisson": Rows(
        lambda e, s: dist.NegativeBinomial2(5 * jnp.exp(e), 1000 * s),
        lambda rng, e: rng.poisson(5 * np.exp(e)),
    ),
    "zero_inflated": Rows(
        lambda e, s: dist.ZeroInflatedPoisson(s / (1 + s), 3 * jnp.exp(e)),
        lambda rng, e: rng.poisson(3 * np.exp(e)) * (rng.random(e.shape) < 0.7),
    ),
    "gamma": Rows(
        lambda e, s: dist.Gamma(s, s * jnp.exp(-e)), lambda rng, e: rng.gamma(1.5, np.exp(e) / 1.5)
    ),
    "gamma_sharp": Rows(
        lambda e, s: dist.Gamma(4000 * s, 4000 * s * jnp.exp(-e)),
        lambda rng, e: rng.gamma(4000, np.exp(e) / 4000),
    ),
    "inverse_gamma": Rows(
        lambda e, s: dist.InverseGamma(2 * s, jnp.exp(e)),
        lambda rng, e: 1 / rng.gamma(2.0, np.exp(-e)),
    ),
    "weibull": Rows(
        lambda e, s: dist.Weibull(jnp.exp(e), s),
        lambda rng, e: np.exp(e) * rng.weibull(1.7, e.shape),
    ),
    "weibull_sharp": Rows(
        lambda e, s: dist.Weibull(jnp.exp(e), 80 * s),
        lambda rng, e: np.exp(e) * rng.weibull(80, e.shape),
        is_beyond_at_zero=True,
    ),
    "beta": beta_rows(8),
    "beta_sharp": beta_rows(8000),
    "ordered": Rows(
        lambda e, s: dist.OrderedLogistic(e, jnp.stack([-1 + 0 * s, -1 + s])),
        lambda rng, e: np.digitize(e + rng.logistic(size=e.shape), [-1.0, 0.5]),
    ),
}


class Condition(NamedTuple):
    """Covariates of a mean and a unit, weights of the rows, groups of which one has no rows."""

    mean: float = 0.0
    unit: float = 1.0
    is_weighted: bool = False
    has_groups: bool = False


CONDITIONS = {
    "plain": Condition(),
    "uncentred": Condition(mean=30.0),
    "very_uncentred": Condition(mean=1000.0),
    "weighted": Condition(is_weighted=True),
    "units": Condition(unit=1e-4),
    "groups": Condition(has_groups=True),
}


def single(leaf: np.ndarray) -> jax.Array:
    """An array of the device, with numbers of 32 bits at most."""
    leaf = np.asarray(leaf)
    narrow = {"float64": np.float32, "int64": np.int32}
    return jnp.asarray(leaf.astype(narrow.get(leaf.dtype.name, leaf.dtype)))


def regression(rows: Rows, condition: Condition, num_rows: int = N) -> tuple:
    """Model, arguments and a start."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(num_rows, 2))
    group = np.minimum(rng.geometric(0.3, size=num_rows) - 1, 9)
    effects = condition.has_groups * 0.5 * rng.normal(size=10)
    eta = 0.4 * x[:, 0] - 0.2 + effects[group]
    y = np.asarray(rows.draw(rng, eta))
    y = y.astype(np.int32 if rows is FAMILIES["ordered"] else np.float32)
    weight = rng.gamma(1, 1, size=num_rows) if condition.is_weighted else np.ones(num_rows)

    def model(x, group, y, weight):
        a = sample("a", dist.Normal(0, 1000.0 if condition.mean else 3.0))
        b = sample("b", dist.Normal(0, 3.0 / condition.unit).expand([2]).to_event(1))
        s = sample("s", dist.HalfNormal(3.0))
        effect = jnp.zeros(11)
        if condition.has_groups:
            tau = sample("tau", dist.LogNormal(0.0, 0.3))
            effect = sample("effect", dist.Normal(0, tau).expand([11]).to_event(1))
        with numpyro.plate("rows", num_rows, subsample_size=7) as at, scale(scale=weight[at]):
            eta = a + x[at] @ b + effect[group[at]]
            sample("y", rows.likelihood(eta, s), obs=y[at])

    slope = 0.4 / condition.unit if rows.is_beyond_at_zero else 0.0
    z = {"a": -slope * condition.mean, "b": np.array([slope, 0.0]), "s": 0.0}
    if condition.has_groups:
        z |= {"tau": 0.0, "effect": rows.is_beyond_at_zero * np.append(effects, 0.0)}
    z = jax.tree.map(single, z)
    args = (x * condition.unit + condition.mean, group, y, weight)
    return model, jax.tree.map(single, args), z


# covariates so far from zero that their products have too few digits, and what is said of it
BEYOND = {
    ("poisson_big", "very_uncentred"): "too narrow for float32|the condition number",
    ("beta", "very_uncentred"): "the condition number",
}
# the others are like one of these, in the code that they meet
ALWAYS = {("weibull", "groups"), ("beta_sharp", "very_uncentred")}


@pytest.mark.parametrize(
    ("family", "condition"),
    [
        pytest.param(f, c, id=f"{f}-{c}", marks=() if (f, c) in ALWAYS else FULL_ONLY)
        for f in FAMILIES
        for c in CONDITIONS
    ],
)
def test_energies_add_up_within_their_bounds(family, condition):
    made = regression(FAMILIES[family], CONDITIONS[condition])
    if (family, condition) in BEYOND:
        with pytest.raises(ValueError, match=BEYOND[family, condition]):
            expanded(*made)
    else:
        sees(*made)


# models and data as users bring them

RNG = np.random.default_rng(6)
X = RNG.normal(size=(N, 2))


def of_rows(likelihood: Callable, *data: Any, **latents: Any) -> tuple:
    """A model whose latents are those, with what it observes of rows of the data.

    ``likelihood(latents, *rows)`` gives a distribution, or one for each of the last of the data.
    """
    num_rows = len(data[0])

    def model(*data):
        z = {name: sample(name, prior) for name, prior in latents.items()}
        with numpyro.plate("rows", num_rows, subsample_size=max(1, min(7, num_rows - 1))) as at:
            rows = [each[at] for each in data]
            laws = likelihood(z, *rows)
            laws = laws if isinstance(laws, list) else [laws]
            for i, (law, y) in enumerate(zip(laws, rows[-len(laws) :], strict=True)):
                sample(f"y{i}", law, obs=y)

    shapes = {
        name: dist.biject_to(prior.support).inverse_shape(prior.batch_shape + prior.event_shape)
        for name, prior in latents.items()
    }
    args = jax.tree.map(single, data)
    return model, args, {name: jnp.zeros(shape) for name, shape in shapes.items()}


def wide(*shape: int) -> dist.Distribution:
    return dist.Normal(0, 20.0).expand(shape).to_event(len(shape))


POSITIVE = dist.HalfNormal(3.0)
CUTS = dist.TransformedDistribution(
    dist.Normal(0, 2).expand([3]).to_event(1), dist.transforms.OrderedTransform()
)


def linear(likelihood: Callable, y: Any, x: np.ndarray = X) -> tuple:
    """Of an intercept, slopes and a positive latent."""

    def of(z, x, y):
        return likelihood(z["a"] + x @ z["b"], z["s"])

    return of_rows(of, x[: len(y)], y, a=wide(), b=wide(2), s=POSITIVE)


def negative_binomial(e, s):
    return dist.NegativeBinomial2(jnp.exp(e), s)


def poisson(e, s):
    return dist.Poisson(jnp.exp(e))


def gamma(e, s):
    return dist.Gamma(s, s * jnp.exp(-e))


def zero_inflated(e, s):
    return dist.ZeroInflatedPoisson(s / (1 + s), jnp.exp(e))


def with_one(values: np.ndarray, value: float) -> np.ndarray:
    return np.append(values[:-1], value)


def leverage(rng: np.random.Generator, size: float) -> np.ndarray:
    x = 0.1 * rng.normal(size=(N, 2))
    x[0, 0] = size
    return x


def survival(law: Callable, censored: Any = None, times: Any = None) -> tuple:
    """Of times that end at their hour or go on: an intercept, slopes and a positive latent."""
    rng = np.random.default_rng(8)
    times = np.exp(X[:, 0]) * rng.weibull(1.5, N) if times is None else times
    censored = rng.random(N) < 0.4 if censored is None else censored

    def of(z, x, censored, y):
        return dist.RightCensoredDistribution(law(z["a"] + x @ z["b"], z["s"]), censored)

    return of_rows(of, X, censored, times, a=wide(), b=wide(2), s=POSITIVE)


def weibull(e, s):
    return dist.Weibull(jnp.exp(e), s)


class Interval(dist.Distribution):
    """A distribution of one's own: a Weibull law that is only known to lie between two ends."""

    arg_constraints = dict.fromkeys(("scale", "concentration", "low", "high"), POSITIVE.support)
    support = dist.constraints.real

    def __init__(self, scale, concentration, low, high, *, validate_args=None):
        self.scale, self.concentration, self.low, self.high = scale, concentration, low, high
        shape = jnp.broadcast_shapes(*map(jnp.shape, (scale, concentration, low, high)))
        super().__init__(shape, validate_args=validate_args)

    def log_prob(self, value):
        log_survival = lambda y: -jnp.exp(self.concentration * (jnp.log(y) - jnp.log(self.scale)))  # noqa: E731
        above, beyond = log_survival(self.low), log_survival(self.high)
        return above + jnp.log(-jnp.expm1(beyond - above))


def censored_below(e, s, y, bound):
    return dist.LeftCensoredDistribution(dist.Normal(e, s), y <= bound)


COUNTS = RNG.negative_binomial(2, 0.4, N)
POWERS = 10.0 ** RNG.uniform(-30, 30, size=N)
AWKWARD = {
    "counts_of_zero": lambda rng: linear(negative_binomial, 0.0 * COUNTS),
    "counts_of_ten_millions": lambda rng: linear(negative_binomial, 4_000_000 * COUNTS),
    # of ten millions floats would be 0.06 sds apart, which is 0.02 of the energy
    "many_zeros_and_many": lambda rng: linear(
        zero_inflated, rng.poisson(1e6, N) * (rng.random(N) < 0.7)
    ),
    "nearly_all_successes": lambda rng: linear(
        lambda e, s: dist.BinomialLogits(e, 10_000_000), 1e7 - rng.poisson(3, N)
    ),
    "logits_of_ten_millions": lambda rng: linear(
        lambda e, s: dist.NegativeBinomialLogits(3.0, e), rng.negative_binomial(3, 3e-7, N)
    ),
    "exposures": lambda rng: of_rows(
        lambda z, x, known, y: dist.Poisson(known * jnp.exp(z["a"] + x @ z["b"])),
        X,
        POWERS**0.2,
        rng.poisson(POWERS**0.2),
        a=wide(),
        b=wide(2),
    ),
    "shares_at_the_ends": lambda rng: linear(
        lambda e, s: dist.Beta(s * jax.nn.sigmoid(e), s * jax.nn.sigmoid(-e)),
        np.clip(rng.beta(0.05, 0.05, N), 1e-30, 1 - 6e-8),
    ),
    "far_response": lambda rng: linear(
        lambda e, s: dist.StudentT(3.0, e, s), with_one(rng.normal(size=N), 1e10)
    ),
    "far_response_of_free_tails": lambda rng: of_rows(
        lambda z, y: dist.StudentT(z["df"], z["a"], z["s"]),
        with_one(rng.standard_cauchy(size=N), 1e12),
        a=wide(),
        s=POSITIVE,
        df=POSITIVE,
    ),
    "far_below_the_others": lambda rng: linear(dist.Gumbel, with_one(rng.gumbel(size=N), -60.0)),
    "constant": lambda rng: linear(gamma, np.full(N, 3.0)),
    "row_of_great_leverage": lambda rng: linear(
        poisson, with_one(COUNTS, 3)[::-1], leverage(rng, 30.0)
    ),
    "bound_beyond_floats": lambda rng: linear(
        poisson, with_one(COUNTS, 0)[::-1], leverage(rng, 2000.0)
    ),
    "two_rows": lambda rng: of_rows(
        lambda z, y: dist.StudentT(4.0, z["a"], z["s"]),
        rng.normal(size=2),
        a=wide(),
        s=dist.LogNormal(0.0, 0.5),
    ),
    "whole_numbers": lambda rng: of_rows(
        lambda z, whole, flag, y: dist.NegativeBinomial2(
            jnp.exp(z["a"] + z["b"] * whole + z["c"] * flag), z["s"]
        ),
        rng.integers(0, 4, N),
        rng.random(N) < 0.4,
        COUNTS.astype(np.uint8),
        a=wide(),
        b=wide(),
        c=wide(),
        s=POSITIVE,
    ),
    "several_responses": lambda rng: of_rows(
        lambda z, x, y: dist.NegativeBinomial2(jnp.exp(z["a"] + x[:, :1]), z["s"]).to_event(1),
        X,
        rng.poisson(2, size=(N, 3)),
        a=wide(3),
        s=POSITIVE,
    ),
    "several_ordered": lambda rng: of_rows(
        lambda z, x, y: dist.OrderedLogistic(z["a"] + x[:, :1], z["c"]).to_event(1),
        X,
        rng.integers(0, 4, size=(N, 3)),
        a=wide(3),
        c=CUTS,
    ),
    "class_without_rows": lambda rng: of_rows(
        lambda z, x, y: dist.OrderedLogistic(x @ z["b"], z["c"]),
        X,
        rng.choice([0, 1, 3], size=N).astype(np.uint8),
        b=wide(2),
        c=CUTS,
    ),
    "two_sites": lambda rng: of_rows(
        lambda z, x, y, t: [
            dist.NegativeBinomial2(jnp.exp(z["a"] + x @ z["b"]), z["s"]),
            dist.Weibull(jnp.exp(x @ z["b"]), z["s"]),
        ],
        X,
        COUNTS,
        rng.weibull(1.5, N),
        a=wide(),
        b=wide(2),
        s=POSITIVE,
    ),
    "python_numbers": lambda rng: of_rows(
        lambda z, y: dist.StudentT(z["s"], 0, 1), rng.normal(size=N), s=POSITIVE
    ),
    "regression_of_the_shape": lambda rng: of_rows(
        lambda z, x, y: dist.Gamma(jnp.exp(x @ z["c"]), jnp.exp(x @ z["c"] - x @ z["b"])),
        X,
        rng.gamma(2, size=N),
        b=wide(2),
        c=wide(2),
    ),
    "survival_weibull": lambda rng: survival(weibull),
    "survival_lognormal": lambda rng: survival(dist.LogNormal),
    "survival_exponential": lambda rng: survival(lambda e, s: dist.Exponential(jnp.exp(-e) * s)),
    "survival_gompertz": lambda rng: survival(lambda e, s: dist.Gompertz(s, jnp.exp(-e))),
    "survival_gumbel": lambda rng: survival(dist.Gumbel),
    # NumPyro clips the logarithm of a survival probability at -36: none of these goes so far
    "survival_of_a_few_events": lambda rng: survival(weibull, np.arange(N) > 30),
    "survival_for_thousands_of_years": lambda rng: survival(
        dist.LogNormal, times=1e6 * np.exp(X[:, 0] + rng.normal(size=N))
    ),
    "censored_on_the_left": lambda rng: of_rows(
        lambda z, x, y: censored_below(z["a"] + x @ z["b"], z["s"], y, -0.3),
        X,
        np.maximum(rng.normal(size=N), -0.3),
        a=wide(),
        b=wide(2),
        s=POSITIVE,
    ),
    "truncated_on_the_left": lambda rng: linear(
        lambda e, s: dist.TruncatedNormal(e, s, low=-1.0), np.abs(rng.normal(size=N)) - 0.9
    ),
    "truncated_on_the_right": lambda rng: linear(
        lambda e, s: dist.RightTruncatedDistribution(dist.Logistic(e, s), 1.0),
        0.9 - np.abs(rng.normal(size=N)),
    ),
    "truncated_on_both_sides": lambda rng: linear(
        lambda e, s: dist.TruncatedNormal(e, s, low=-1.0, high=2.0), rng.beta(2, 3, N) * 2.9 - 0.95
    ),
    "intervals_of_ones_own": lambda rng: of_rows(
        lambda z, x, low, high, y: Interval(jnp.exp(z["a"] + x @ z["b"]), z["s"], low, high),
        X,
        times := rng.weibull(1.5, N),
        1.5 * times,
        np.zeros(N),
        a=wide(),
        b=wide(2),
        s=POSITIVE,
    ),
    "gate_of_no_zeros": lambda rng: of_rows(
        lambda z, y: dist.ZeroInflatedPoisson(z["g"], jnp.exp(z["a"])),
        1 + COUNTS,
        a=wide(),
        g=dist.Beta(1.0, 1.0),
    ),
    "shape_and_rate": lambda rng: of_rows(
        lambda z, y: dist.Gamma(z["u"], z["v"]), rng.gamma(3, size=N), u=POSITIVE, v=POSITIVE
    ),
    "truncated_scale": lambda rng: of_rows(
        lambda z, y: dist.Logistic(z["a"], z["s"]),
        rng.normal(size=N),
        a=wide(),
        s=dist.TruncatedNormal(0.0, 3.0, low=0.0),
    ),
    "far_from_normal": lambda rng: of_rows(
        lambda z, y: dist.StudentT(1.5, z["a"].sum(), z["s"]),
        rng.standard_t(1.5, size=6),
        a=wide(3),
        s=dist.HalfCauchy(1.0),
    ),
}
ONCE_WRONG = {
    *("far_response", "far_below_the_others", "bound_beyond_floats", "counts_of_ten_millions"),
    *("survival_weibull", "survival_lognormal", "truncated_on_the_left", "intervals_of_ones_own"),
    "truncated_on_both_sides",
}


@pytest.mark.first
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ONCE_WRONG else FULL_ONLY) for name in AWKWARD],
)
def test_awkward_data_add_up_within_their_bounds(name):
    sees(*AWKWARD[name](np.random.default_rng(7)))


@FULL_ONLY
@pytest.mark.parametrize("name", ["two_sites", "far_response_of_free_tails", "class_without_rows"])
def test_awkward_data_add_up_in_double_precision(name, x64):
    model, args, z = AWKWARD[name](np.random.default_rng(7))
    sees(model, jax.tree.map(in_double, args), jax.tree.map(in_double, z))


def factors(x):
    a = sample("a", wide())
    with numpyro.plate("rows", N, subsample_size=7) as at:
        numpyro.factor("f", -jnp.square(a - x[at, 0]))


RAISES = {
    "share_of_one": (
        lambda rng: linear(
            lambda e, s: dist.Beta(s * jax.nn.sigmoid(e), s * jax.nn.sigmoid(-e)),
            with_one(rng.beta(2, 2, N), 1.0),
        ),
        "site 'y0' has no finite density or predictor in row 119, whose response is 1.0",
    ),
    "duration_of_zero": (
        lambda rng: linear(gamma, with_one(rng.gamma(1.5, size=N), 0.0)),
        "site 'y0' has no finite density or predictor in row 119, whose response is 0.0",
    ),
    "class_beyond_the_last": (
        lambda rng: of_rows(
            lambda z, y: dist.OrderedLogistic(z["a"], jnp.array([-1.0, 1.0])),
            with_one(rng.integers(0, 3, N), 3),
            a=wide(),
        ),
        "site 'y0' has no finite density or predictor in row 119, whose response is 3",
    ),
    "exposure_of_zero": (
        lambda rng: of_rows(
            lambda z, known, y: dist.Poisson(known * jnp.exp(z["a"])),
            with_one(np.ones(N), 0.0),
            with_one(COUNTS, 0),
            a=wide(),
        ),
        "site 'y0' has no finite .* in row 119, .* exposure or a gate of zero",
    ),
    "constant_without_noise": (
        lambda rng: linear(dist.Normal, np.full(N, 3.0)),
        "sampled scale, .* may tend to zero",
    ),
    "nothing_depends": (
        lambda rng: of_rows(lambda z, y: dist.Normal(0.0, 1.0), rng.normal(size=N), a=wide()),
        r"none of the sites \['y0'\] in the subsample plate depends on a latent",
    ),
    "overflow_on_the_way": (
        lambda rng: of_rows(
            lambda z, x, y: dist.Poisson(2.0 * jnp.exp(x @ z["b"])),
            X + np.array([0.0, 1000.0]),
            np.zeros(N),
            b=dist.ImproperUniform(dist.constraints.real, (), (2,)),
        ),
        "the posterior has no mode near the start",
    ),
    "rounding_of_a_constant": (
        lambda rng: of_rows(
            lambda z, x, y: dist.Beta(
                jax.nn.sigmoid(z["a"] + x @ z["b"]), jax.nn.sigmoid(-z["a"] - x @ z["b"])
            ),
            X * np.array([1.0, 0.0]),
            rng.beta(0.5, 0.5, N),
            a=wide(),
            b=dist.ImproperUniform(dist.constraints.real_vector, (), (2,)),
        ),
        "the posterior has no mode near the start",
    ),
    "factor": (
        lambda rng: (factors, (single(X),), {"a": jnp.zeros(())}),
        r"site 'f' \(Unit\) .* a numpyro.factor names no parameters; give a distribution of your",
    ),
    "intervals": (
        lambda rng: of_rows(
            lambda z, y: dist.IntervalCensoredDistribution(
                dist.Weibull(jnp.exp(z["a"] + 0 * y[:, 0]), 1.0), y[:, 0] < 0, y[:, 0] < 0
            ),
            np.stack([rng.weibull(1.5, N), 3 + rng.random(N)], axis=1),
            a=wide(),
        ),
        "its values are pairs; a distribution of your own with the ends as arguments",
    ),
    "bounded_scale": (
        lambda rng: of_rows(
            lambda z, y: dist.Normal(0.0, z["s"]), rng.normal(size=N), s=dist.Uniform(0, 10.0)
        ),
        r"site 'y0' has no linear predictor in the latent sites \['s'\]: .* log scale",
    ),
    "sum_of_shapes": (
        lambda rng: of_rows(
            lambda z, y: dist.Beta(z["u"], z["v"]), rng.beta(3, 5, N), u=POSITIVE, v=POSITIVE
        ),
        r"no linear predictor in the latent sites \['u', 'v'\]: .* log concentration",
    ),
}
QUICK = {
    "factor",
    "share_of_one",
    "class_beyond_the_last",
    "exposure_of_zero",
    "nothing_depends",
}


@pytest.mark.first
@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else FULL_ONLY) for name in RAISES]
)
def test_what_is_beyond_raises_by_name(name):
    build, message = RAISES[name]
    with pytest.raises(ValueError, match=message):
        expanded(*build(np.random.default_rng(7)))
