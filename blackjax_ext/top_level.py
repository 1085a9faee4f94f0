"""A sampler under its public name, made from its ``init`` and ``build_kernel``.

BlackJAX calls a sampler ``name(logdensity_fn, step_size, ...)``, which gives a
``SamplingAlgorithm(init, step)``, and finds the functions underneath as ``name.init`` and
``name.build_kernel``. All of that follows from these two and from a function with the sampler's
signature, docstring and checks: :func:`top_level` puts them together.
"""

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper, wraps
from typing import Any

from blackjax import GenerateSamplingAPI
from blackjax.base import SamplingAlgorithm, build_sampling_algorithm

from blackjax_ext.checks import check_positive
from blackjax_ext.metrics.factors import factorize
from blackjax_ext.types import Function

__all__ = ["Algorithm", "public", "section_entries", "top_level"]

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
curvature_floor
    Lower bound > 0 of the curvature, in whitened coordinates, where a normal has curvature 1.
metric_fn
    ``metric_fn(logdensity_fn, position)``, of :mod:`blackjax_ext.metrics` or your own; a matrix
    (D, D), variances' inverses (D,) or a factor.
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
"""


class Algorithm(GenerateSamplingAPI):  # type: ignore[misc]  # BlackJAX has no types
    """A sampler that is called as `function`, with its docstring, signature and name."""

    def __init__(self, function: Function, init: Function, build_kernel: Function):
        super().__init__(function, init, build_kernel)
        update_wrapper(self, function)

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return str(self.__name__)


def public(init: Function, build_kernel: Function) -> Callable[[Function], Algorithm]:
    """Decorator of a function that returns the ``SamplingAlgorithm`` of these two."""
    return lambda function: Algorithm(function, init, build_kernel)


def top_level(init: Function, build_kernel: Function) -> Callable[[Function], Algorithm]:
    """Decorator of a function that has a sampler's signature and docstring, and checks arguments.

    Its first three arguments are the target, `step_size` and `inverse_mass_matrix`; the others are
    parameters of the kernel, and of ``init`` where that takes them. It returns a dict of arguments
    that are to be replaced, or None. The docstring gets what `SHARED` says of arguments that it
    does not name.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from blackjax_ext.mcmc import mala
    >>> @top_level(mala.init, mala.build_kernel)
    ... def langevin(logdensity_fn, step_size, inverse_mass_matrix=None):
    ...     '''MALA.'''
    >>> langevin(lambda x: -0.5 * x**2, 1.0).init(jnp.array(2.0)).logdensity_grad
    Array(-2., dtype=float32, weak_type=True)
    """
    takes = inspect.signature(init).parameters

    def decorate(check: Function) -> Algorithm:
        signature = inspect.signature(check)

        @wraps(check)
        def algorithm(*args: Any, **keywords: Any) -> SamplingAlgorithm:
            replaced = check(*args, **keywords) or {}
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            (_, target), (_, step_size), (_, metric), *rest = (bound.arguments | replaced).items()
            check_positive("step_size", step_size)
            metric, parameters = factorize(metric), dict(rest)
            of_init = {"inverse_mass_matrix": metric, **parameters}
            return build_sampling_algorithm(
                partial(sampler.build_kernel(), **parameters),
                partial(sampler.init, **{name: of_init[name] for name in takes if name in of_init}),
                target,
                kernel_args=(step_size, metric),
                pass_rng_key_to_init=True,
            )

        algorithm.__doc__ = described(check)
        sampler = Algorithm(algorithm, init, build_kernel)
        return sampler

    return decorate


def described(function: Function) -> str | None:
    """Docstring of a sampler with entries for all its arguments, in their order."""
    text = inspect.getdoc(function)
    if text is None:  # python -OO
        return None
    first, _, rest = text.partition("\nParameters\n----------\n")
    own, _, rest = rest.partition("\n\n")
    said = section_entries(f"Parameters\n----------\n{own}", "Parameters")
    entries = section_entries(SHARED, "Parameters") | said
    names = inspect.signature(function).parameters
    listed = "".join(f"{name}{entries[name]}\n" for name in names)
    if not said:  # what follows the summary is another section
        first, _, rest = text.partition("\n\n")
        first = f"{first}\n"
    return f"{first}\nParameters\n----------\n{listed}{RETURNS}\n{rest}"


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
