r"""How a distribution without a family of its own is read: by the program of its log density.

The scalar parameters of the distribution, in coordinates without ends, are the predictors: itself
where it is real, the logarithm of its distance to a lower end, log odds between two ends. What is
whole is data. The distribution is made anew from them, and what its ``log_prob`` computes is read
by :mod:`blackjax_ext.subsampling.families.densities`. A zero-inflated distribution has a gate and
what its base has. One that is censored or truncated has what its base has, and the flags or the
ends are data.

Only a distribution that is made of the parameters it names is read: another one, as a truncated or
a user's own with further arguments, might not be made anew as it was. An example of its class is
made anew once, and its densities compared: a class may keep a parameter other than it was given.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import gammaln, log_ndtr
from numpyro.distributions import constraints

from blackjax_ext.subsampling.families.densities import MOST, check_readable, smooth_kind
from blackjax_ext.subsampling.taylor.functions import HALF_LOG_2PI
from blackjax_ext.types import Function
from numpyro_fwd.bridge.traces import unwrapped
from numpyro_fwd.subsampling.likelihoods import Reading


class Tails(NamedTuple):
    """Logarithms of a density and of the probabilities on either side of a value.

    Each is a function of the value and of the parameters without ends by name.
    """

    density: Callable[..., Array]
    below: Callable[..., Array]
    above: Callable[..., Array]


def log_of_rest(log_share: Array) -> Array:
    """The logarithm of one minus a share."""
    return jnp.log(-jnp.expm1(log_share))


def between(tails: Tails, low: Array, high: Array, **values: Array) -> Array:
    """Log probability between two ends."""
    above = tails.above(low, **values)
    return above + log_of_rest(tails.above(high, **values) - above)


def from_standard(standard: Tails, place: Function, log_slope: Function) -> Tails:
    """The tails of an outcome whose `place` has a standard law."""

    def density(y, **values):
        return standard.density(place(y, **values)) + log_slope(y, **values)

    return Tails(
        density,
        lambda y, **values: standard.below(place(y, **values)),
        lambda y, **values: standard.above(place(y, **values)),
    )


def of_location(standard: Tails) -> Tails:
    """Of a law with a location and a scale."""
    return from_standard(
        standard,
        lambda y, loc, log_scale: (y - loc) * jnp.exp(-log_scale),
        lambda y, loc, log_scale: -log_scale,
    )


NORMAL_TAILS = Tails(
    lambda z: -0.5 * jnp.square(z) - HALF_LOG_2PI, log_ndtr, lambda z: log_ndtr(-z)
)
LOGISTIC_TAILS = Tails(
    lambda z: -jax.nn.softplus(z) - jax.nn.softplus(-z),
    lambda z: -jax.nn.softplus(-z),
    lambda z: -jax.nn.softplus(z),
)
GUMBEL_TAILS = Tails(
    lambda z: -z - jnp.exp(-z),
    lambda z: -jnp.exp(-z),
    lambda z: log_of_rest(-jnp.exp(-z)),
)
# of the logarithm of a cumulated hazard, which rises by one in the time scale of a Weibull law
HAZARD = Tails(
    lambda u: u - jnp.exp(u),
    lambda u: log_of_rest(-jnp.exp(u)),
    lambda u: -jnp.exp(u),
)
TAILS: dict[type, Tails] = {
    dist.Exponential: from_standard(
        HAZARD,
        lambda y, log_rate: jnp.log(y) + log_rate,
        lambda y, log_rate: -jnp.log(y),
    ),
    dist.Gompertz: from_standard(
        HAZARD,
        lambda y, log_concentration, log_rate: (
            log_concentration + jnp.log(jnp.expm1(y * jnp.exp(log_rate)))
        ),
        # the slope of the logarithm of a hazard, log(b exp(by) / expm1(by))
        lambda y, log_concentration, log_rate: (
            log_rate - jnp.log(-jnp.expm1(-y * jnp.exp(log_rate)))
        ),
    ),
    dist.Gumbel: of_location(GUMBEL_TAILS),
    dist.LogNormal: from_standard(
        NORMAL_TAILS,
        lambda y, loc, log_scale: (jnp.log(y) - loc) * jnp.exp(-log_scale),
        lambda y, loc, log_scale: -log_scale - jnp.log(y),
    ),
    dist.Logistic: of_location(LOGISTIC_TAILS),
    dist.Normal: of_location(NORMAL_TAILS),
    dist.Weibull: from_standard(
        HAZARD,
        lambda y, log_scale, log_concentration: (
            (jnp.log(y) - log_scale) * jnp.exp(log_concentration)
        ),
        lambda y, log_scale, log_concentration: log_concentration - jnp.log(y),
    ),
}


def tails_of_cdf(density: Callable[..., Array], law: Callable[..., Any]) -> Tails:
    """Those that the distribution function of ``law(**values)`` gives."""
    return Tails(
        density,
        lambda y, **values: jnp.log(law(**values).cdf(y)),
        lambda y, **values: jnp.log1p(-law(**values).cdf(y)),
    )


ZERO_INFLATED = (dist.ZeroInflatedProbs, dist.ZeroInflatedLogits)
CUT_OFF = {"censored": 1.0, "low": -1.0, "high": 1.7}  # what is data of these, in an example


class Parameter(NamedTuple):
    """A scalar parameter between two ends, either of which may be None.

    name
        In the distribution.
    low, high
        Its ends.
    """

    name: str
    low: float | None
    high: float | None

    @property
    def predictor(self) -> str:
        """Name of the value without ends."""
        if self.high is not None:
            return f"{self.name}_logits"
        return self.name if self.low is None else f"log_{self.name}"

    def free(self, value: Array) -> Array:
        """The value without ends."""
        if self.low is None:
            return jnp.asarray(value)
        above = jnp.log(value - self.low if self.low else value)
        return above if self.high is None else above - jnp.log(self.high - value)

    def back(self, free: Array) -> Array:
        """The value from the one without ends."""
        if self.low is None:
            return free
        if self.high is None:
            return jnp.exp(free) + self.low if self.low else jnp.exp(free)
        return self.low + (self.high - self.low) * jax.nn.sigmoid(free)

    def inner(self, at: int) -> float:
        """A value within the ends, for the parameter in place `at`: others for others."""
        if self.low is None:
            return 0.3 + 0.1 * at
        if self.high is None:
            return self.low + 0.7 + 0.1 * at
        return self.low + (self.high - self.low) * (0.4 + 0.05 * at)

    def rounding(self, free: Array) -> Array:
        """What rounding may take from the value without ends, in eps."""
        if self.low is None:
            return jnp.zeros_like(free)
        if self.high is None:
            return 1.0 + abs(self.low) * jnp.exp(-free)
        return 2.0 + 2.0 * (1.0 + abs(self.low)) * jnp.cosh(free)


def of_base(function: Function, fn: Any) -> Any:
    """A function of the distribution that another is made of."""
    return function(unwrapped(fn.base_dist))


class Structure(NamedTuple):
    """What a distribution is made of. Hashable.

    kind
        Its class.

    Parameters
    ----------
        Those with an unconstrained value, in order.
    whole
        Names of those that are whole numbers.
    base
        Of a distribution that inflates, censors or truncates another, what that is made of.
    """

    kind: type[dist.Distribution]
    parameters: tuple[Parameter, ...]
    whole: tuple[str, ...]
    base: "Structure | None" = None

    def predictors(self) -> tuple[str, ...]:
        """Names of the values without ends."""
        own = tuple(each.predictor for each in self.parameters)
        return own + (self.base.predictors() if self.base else ())

    def every(self) -> tuple[Parameter, ...]:
        """Parameters in the order of predictors."""
        return self.parameters + (self.base.every() if self.base else ())

    def values(self, fn: Any) -> tuple[Array, ...]:
        """Values without ends, of a distribution."""
        own = tuple(each.free(getattr(fn, each.name)) for each in self.parameters)
        return own + (of_base(self.base.values, fn) if self.base else ())

    def data(self) -> dict[str, Callable[[Any], Array]]:
        """Whole parameters by name, each from a distribution."""
        found: dict[str, Callable[[Any], Array]] = {n: attrgetter(n) for n in self.whole}
        inner = self.base.data() if self.base else {}
        return found | {name: partial(of_base, of) for name, of in inner.items()}

    def logdensity(self, y: Array, values: dict[str, Array]) -> Array:
        """Log density of a response, by values without ends and what is whole."""
        own = {each.name: each.back(values[each.predictor]) for each in self.parameters}
        own |= {name: values[name] for name in self.whole}
        if self.base and self.kind in WITH_TAILS:
            return WITH_TAILS[self.kind](y, self.base.tails(), self.base.given(values), **own)
        if self.base:
            return inflated(y, self.base.logdensity(y, values), **own)
        if self.kind.log_prob is dist.GammaPoisson.log_prob:
            return gamma_poisson(y, self.kind(**own, validate_args=False))
        return self.kind(**own, validate_args=False).log_prob(y)

    def given(self, values: dict[str, Array]) -> dict[str, Array]:
        """Of values by name those of this distribution."""
        return {name: values[name] for name in (*self.predictors(), *self.data())}

    def tails(self) -> Tails:
        """Its density, with the probabilities on either side of a value."""
        if self.kind in TAILS:
            return TAILS[self.kind]

        def law(**values):
            own = {each.name: each.back(values[each.predictor]) for each in self.parameters}
            own |= {name: values[name] for name in self.whole}
            return self.kind(**own, validate_args=False)

        return tails_of_cdf(lambda y, **values: self.logdensity(y, values), law)

    def example(self) -> dist.Distribution:
        """One with some values of its parameters that are within their ends."""
        inner = {each.name: each.inner(at) for at, each in enumerate(self.parameters)}
        own: dict[str, Any] = {name: jnp.asarray(value) for name, value in inner.items()}
        own |= {name: jnp.asarray(CUT_OFF.get(name, 3.0)) for name in self.whole}
        if self.base:
            own["base_dist"] = self.base.example()
        return self.kind(**own, validate_args=False)


def inflated(y: Array, base: Array, gate: Any = None, gate_logits: Any = None) -> Array:
    """Log density of a base with more zeros."""
    odds = jnp.log(gate) - jnp.log1p(-gate) if gate_logits is None else gate_logits
    none, some = -jax.nn.softplus(-odds), -jax.nn.softplus(odds) + base
    return jnp.where(y == 0, none + jax.nn.softplus(some - none), some)


# log densities of an outcome, or that it is beyond or below a value, or of one between ends
WITH_TAILS: dict[type, Callable[..., Array]] = {
    dist.LeftCensoredDistribution: lambda y, tails, values, censored: jnp.where(
        censored != 0, tails.below(y, **values), tails.density(y, **values)
    ),
    dist.LeftTruncatedDistribution: lambda y, tails, values, low: (
        tails.density(y, **values) - tails.above(low, **values)
    ),
    dist.RightCensoredDistribution: lambda y, tails, values, censored: jnp.where(
        censored != 0, tails.above(y, **values), tails.density(y, **values)
    ),
    dist.RightTruncatedDistribution: lambda y, tails, values, high: (
        tails.density(y, **values) - tails.below(high, **values)
    ),
    dist.TwoSidedTruncatedDistribution: lambda y, tails, values, low, high: (
        tails.density(y, **values) - between(tails, low, high, **values)
    ),
}


def gamma_poisson(y: Array, fn: dist.GammaPoisson) -> Array:
    """That of NumPyro, without the choices in its beta function."""
    shape, rate = fn.concentration, fn.rate
    ways = gammaln(y + shape) - gammaln(shape) - gammaln(y + 1.0)
    return ways - shape * jnp.log1p(1.0 / rate) - y * jnp.log1p(rate)


def smooth_reading(fn: dist.Distribution) -> Reading:
    """How to read a distribution by its program.

    Raises
    ------
    UnreadableError
        For a program with an operation of which no bounds are known.
    ValueError
        For a distribution that is not made of a few scalar parameters.
    """
    return reading_for(structure_of(fn))


def structure_of(fn: dist.Distribution) -> Structure:
    """What a distribution is made of; ValueError if it is of more than scalars that it names."""
    named = fn.arg_constraints
    accepted = set(inspect.signature(type(fn).__init__).parameters) - {"self", "validate_args"}
    has_ends = type(fn) in WITH_TAILS
    has_base = has_ends or isinstance(fn, ZERO_INFLATED)
    if accepted - ({"base_dist"} if has_base else set()) != set(named) or fn.event_shape:
        raise ValueError("it has arguments other than named scalar parameters")
    whole = tuple(name for name, each in named.items() if has_ends or is_whole(each))
    parameters = tuple(parameter_of(n, each) for n, each in named.items() if n not in whole)
    base = structure_of(unwrapped(fn.base_dist)) if has_base else None
    found = Structure(type(fn), parameters, whole, base)
    names = [*found.predictors(), *found.data()]
    if not found.predictors() or len(names) != len(set(names)) or len(found.every()) > MOST:
        raise ValueError(f"it has more than {MOST} parameters, none, or two of one name")
    return found


def is_whole(constraint: Any) -> bool:
    """Whether a constraint is that of whole numbers."""
    return getattr(constraint, "is_discrete", False) is True


def parameter_of(name: str, constraint: Any) -> Parameter:
    """A parameter with the ends of its constraint."""
    if constraint is constraints.real:
        return Parameter(name, None, None)
    low, high = (getattr(constraint, f"{end}_bound", None) for end in ("lower", "upper"))
    is_number = all(each is None or isinstance(each, (int, float)) for each in (low, high))
    if low is None or not is_number or getattr(constraint, "event_dim", 1) != 0:
        raise ValueError(f"its parameter '{name}' is neither real nor between fixed bounds")
    return Parameter(name, float(low), None if high is None else float(high))


@cache
def reading_for(structure: Structure) -> Reading:
    """The reading of a structure, which its program allows."""
    every = structure.every()

    def logdensity(y, **values):
        return structure.logdensity(y, values)

    def rounding(theta):
        return tuple(each.rounding(t) for each, t in zip(every, theta, strict=True))

    names = structure.predictors()
    kind = smooth_kind(structure.kind.__name__, names, logdensity, rounding)
    try:
        check_readable(kind.having(*names), structure.data())
    except (TypeError, NotImplementedError, jax.errors.ConcretizationTypeError) as error:
        raise ValueError(f"its log density is no program of scalars ({error})") from error
    check_made_anew(structure)
    return Reading(lambda fn: kind, structure.values, structure.data())


def check_made_anew(structure: Structure) -> None:
    """Raise ValueError unless an example that is made anew has the density that it had."""
    names = structure.predictors()
    with jax.ensure_compile_time_eval():
        first = structure.example()
        values = dict(zip(names, structure.values(first), strict=True))
        values |= {name: of(first) for name, of in structure.data().items()}
        responses = [jnp.asarray(y) for y in (0.0, 0.4, 1.0, 2.0, -1.3)]
        responses = [y for y in responses if np.all(first.support(y))]
        was = np.array([first.log_prob(y) for y in responses])
        now = np.array([structure.logdensity(y, values) for y in responses])
    if not np.allclose(was, now, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            "made anew from the parameters it names it has another density: keep each as it is "
            "given, and what log_prob needs beside them in parameters that it names"
        )
