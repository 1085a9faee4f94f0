"""A sampler under its public name, made from its ``init`` and ``build_kernel``.

BlackJAX calls a sampler ``name(logdensity_fn, step_size, ...)``, which gives a
``SamplingAlgorithm(init, step)``, and finds the functions underneath as ``name.init`` and
``name.build_kernel``. All of that follows from these two and from a function with the sampler's
name, docstring and checks: :func:`top_level` puts them together. What several samplers share of
their docstrings is written here.
"""

import inspect
import re
from collections.abc import Callable
from functools import partial, update_wrapper, wraps
from typing import Any

from blackjax import GenerateSamplingAPI
from blackjax.base import SamplingAlgorithm, build_sampling_algorithm

from blackjax_ext.checks import check_positive
from blackjax_ext.metrics.factors import factorize
from blackjax_ext.types import Function

# what means the same wherever a sampler's docstring does not say more
SHARED = """
Parameters
----------
logdensity_fn
    Log density of the target, up to a constant: pytree to scalar.
potential
    Of :mod:`blackjax_ext.potentials`, or three functions of your own.
step_size
    epsilon > 0: drift epsilon^2/2, noise epsilon, in units of the posterior's scale as given by
    `inverse_mass_matrix`.
inverse_mass_matrix
    Estimate of the posterior covariance: None, shape (D,), shape (D, D), or a factor.
num_tangents
    K in 1..D tangents, vmapped over one primal; K = D is MALA.
tangents
    "rademacher" or "sphere": see :func:`blackjax_ext.mcmc.tangents.draw`.
persistent_tangent
    Keep the tangents between steps; False, as published, draws others at the start of each, which
    costs a second evaluation.
curvature_floor
    Lower bound > 0 of the curvature, in whitened coordinates, where a normal has curvature 1.
metric_fn
    ``metric_fn(logdensity_fn, position)``, of :mod:`blackjax_ext.metrics` or your own: a matrix
    (D, D), variances' inverses (D,) or a factor, positive definite at the start. Where it is not so
    later, the proposal is rejected, and shows as divergent. Floors are measured in coordinates that
    `inverse_mass_matrix` whitens.
schedule
    Probability of an SMMALA step by iteration: of :mod:`blackjax_ext.schedules`.
num_integration_steps
    T >= 1, gradients per transition.
friction
    beta >= 0. Zero, with the exact gradient, is HMC.
resample_momentum
    Draw the momentum anew before each trajectory (reversible), or keep it (skew-reversible, which
    needs friction).
"""
RETURNS = """
Returns
-------
A ``SamplingAlgorithm`` with ``init(position, rng_key=None)`` and ``step(rng_key, state)``.

Raises
------
ValueError, TypeError
    For an argument outside of what is said above, a position that is empty or not floating, a
    density that is not scalar.
"""
EXAMPLE = """
Examples
--------
>>> import jax, jax.numpy as jnp
>>> from {package} import {name}{besides}
>>> sampler = {name}({target}, step_size=0.5)
>>> state = sampler.init(jnp.zeros(3), jax.random.key(0))
>>> state, info = jax.jit(sampler.step)(jax.random.key(1), state)
>>> state.position.shape
(3,)
"""
DENSITY = "lambda x: -0.5 * jnp.sum(x**2)"
# what the example of a sampler imports besides it, and its target
TARGETS = {
    "logdensity_fn": ("", DENSITY),
    "potential": (", potentials", f"potentials.full_batch({DENSITY})"),
}
SECTIONS = r"\n\n(?=[A-Z]\w+\n-{3,}\n)"


class Algorithm(GenerateSamplingAPI):  # type: ignore[misc]  # BlackJAX has no types
    """A sampler that is called as `function`, with its docstring, signature and name."""

    def __init__(self, function: Function, init: Function, build_kernel: Function):
        super().__init__(function, init, build_kernel)
        update_wrapper(self, function)

    def checked(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, each with what the checks put in its place; raises if one is bad."""
        check = inspect.unwrap(self.differentiable)
        names = inspect.signature(check).parameters
        replaced = check(**{name: given[name] for name in names})
        return given | (replaced or {})

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return str(self.__name__)


def public(init: Function, build_kernel: Function) -> Callable[[Function], Algorithm]:
    """Decorator of a function that returns the ``SamplingAlgorithm`` of these two."""
    return lambda function: Algorithm(function, init, build_kernel)


def top_level(
    init: Function, build_kernel: Function, *, internal: tuple[str, ...] = ()
) -> Callable[[Function], Algorithm]:
    """Decorator of a function that has a sampler's name and docstring, and checks arguments.

    The sampler takes what its kernel takes after the key and the state: the target, `step_size`,
    `inverse_mass_matrix` and options, without those that are `internal`. The function takes those
    that it checks, by name. It returns a dict of arguments that are to be replaced, or None. The
    docstring gets what is said here of arguments that it does not name, and an example if it has
    none.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from blackjax_ext.mcmc import mala
    >>> @top_level(mala.init, mala.build_kernel)
    ... def langevin():
    ...     '''MALA.'''
    >>> langevin(lambda x: -0.5 * x**2, 1.0).init(jnp.array(2.0)).logdensity_grad
    Array(-2., dtype=float32, weak_type=True)
    """
    taken_by_init = inspect.signature(init).parameters
    of_kernel = inspect.signature(build_kernel())
    taken = [each for name, each in of_kernel.parameters.items() if name not in internal]
    signature = inspect.Signature(taken[2:])

    def decorate(check: Function) -> Algorithm:
        @wraps(check)
        def algorithm(*args: Any, **keywords: Any) -> SamplingAlgorithm:
            try:
                bound = signature.bind(*args, **keywords)
            except TypeError as error:
                raise TypeError(f"{check.__name__}() {error}") from None
            bound.apply_defaults()
            arguments = sampler.checked(bound.arguments)
            (_, target), (_, step_size), (_, metric), *rest = arguments.items()
            check_positive("step_size", step_size)
            metric, parameters = factorize(metric), dict(rest)
            of_init = {"inverse_mass_matrix": metric, **parameters}
            of_init = {name: of_init[name] for name in taken_by_init if name in of_init}
            return build_sampling_algorithm(
                partial(sampler.build_kernel(), **parameters),
                partial(sampler.init, **of_init),
                target,
                kernel_args=(step_size, metric),
                pass_rng_key_to_init=True,
            )

        algorithm.__signature__ = signature  # type: ignore[attr-defined]  # of any function
        algorithm.__doc__ = described(check, signature)
        sampler = Algorithm(algorithm, init, build_kernel)
        return sampler

    if build_kernel.__doc__ and "Returns" not in build_kernel.__doc__:
        build_kernel.__doc__ += f"\n\n{returned(of_kernel)}"
    return decorate


def described(function: Function, signature: inspect.Signature) -> str | None:
    """Docstring of a sampler with entries for all its arguments, in their order."""
    text = inspect.getdoc(function)
    if text is None:  # python -OO
        return None
    first, rest = with_parameters(text, list(signature.parameters), SHARED_ENTRIES)
    besides, target = TARGETS[next(iter(signature.parameters))]
    rest = rest or EXAMPLE.strip().format(
        package=function.__module__.partition(".")[0],
        name=function.__name__,
        besides=besides,
        target=target,
    )
    return f"{first}\n{RETURNS}\n{rest}\n"


def with_parameters(text: str, names: list[str], shared: dict[str, str]) -> tuple[str, str]:
    """A docstring with an entry for each of `names`, of its own or `shared`; and what follows."""
    first, *sections = re.split(SECTIONS, text)
    by_title = {section.partition("\n")[0]: section for section in sections}
    own = by_title.pop("Parameters", "Parameters\n----------")
    entries = shared | section_entries(own, "Parameters")
    listed = "\n".join(f"{name}{entries[name]}" for name in names)
    return f"{first}\n\nParameters\n----------\n{listed}", "\n\n".join(by_title.values())


def returned(kernel: inspect.Signature) -> str:
    """What ``build_kernel`` says of the kernel that it returns: its arguments and defaults."""
    plain = (bool, int, float, str, type(None), type)  # a type is that of no default
    arguments = inspect.Signature(
        [
            each.replace(
                annotation=each.empty,
                default=each.default if isinstance(each.default, plain) else ...,
            )
            for each in kernel.parameters.values()
        ]
    )
    text = str(arguments).replace("Ellipsis", "...")
    return f"Returns\n-------\nCallable\n    ``kernel{text} -> (state, info)``."


def section_entries(docstring: str, section: str) -> dict[str, str]:
    """Names and descriptions of a section, up to its first empty line."""
    lines = inspect.cleandoc(docstring).splitlines()
    descriptions: dict[str, str] = {}
    name = ""
    for line in lines[lines.index(section) + 2 :]:
        if not line:
            break
        if line.startswith(" "):
            descriptions[name] += f"\n{line}"
        else:
            name = line
            descriptions[name] = ""
    return descriptions


SHARED_ENTRIES = section_entries(SHARED, "Parameters")
