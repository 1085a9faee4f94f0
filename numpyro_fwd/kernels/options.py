"""Options that several kernels share, each written once, and the docstrings with all of them."""

import inspect
from typing import Any, TypedDict, get_args

import jax.numpy as jnp

from blackjax_ext.adaptation.run import check_differentiation, check_target
from blackjax_ext.checks import check_count, check_positive
from blackjax_ext.top_level import section_entries
from blackjax_ext.types import Function
from numpyro_fwd.kernels.tuning import DenseMass, GivenMetric

# arguments of numpyro.infer.NUTS and HMC that ask for what is always done
AS_IT_IS_DONE = {
    **dict.fromkeys(("kinetic_fn", "num_steps", "trajectory_length")),
    **dict.fromkeys(("find_heuristic_step_size", "regularize_mass_matrix"), True),
}
LENGTH = (
    "trajectories of AutoNUTS end where they turn, or at its max_tree_depth; those of AMAGOLD, "
    "L2MC and BlackJAXKernel(model, blackjax.hmc) have num_integration_steps steps."
)
# what to take in place of the others
INSTEAD = {
    "kinetic_fn": "momenta are normal; give their inverse_mass_matrix, or dense_mass.",
    "num_steps": LENGTH,
    "trajectory_length": LENGTH,
    "max_tree_depth": "it has no tree; AutoNUTS has one.",
    "find_heuristic_step_size": "a warm-up that adapts the step size begins with a search for it; "
    "give step_size and adapt_step_size=False for none.",
    "forward_mode_differentiation": "AutoNUTS takes it; FMALA and its kin are in forward mode, and "
    'BlackJAXKernel(..., differentiation="forward").',
    "regularize_mass_matrix": "what is estimated is always regularized; give inverse_mass_matrix "
    "and adapt_mass_matrix=False for a metric of your own.",
}


class KernelOptions(TypedDict, total=False):
    """Keywords that every kernel takes.

    Attributes
    ----------
    potential_fn
        Minus the log density, a function of a pytree; `init_params` must then be given to
        ``MCMC.run``.
    step_size
        First guess of the step size, positive; kept if `adapt_step_size` is False.
    inverse_mass_matrix
        First guess of the posterior covariance, (D,) or (D, D), or a dict of blocks by their sites,
        ``{("m", "b"): matrix}``, as for NumPyro's HMC; None for the one that the warm start finds,
        or the identity without a warm start.
    adapt_step_size
        Adapt the step size to `target_accept_prob` by dual averaging.
    adapt_mass_matrix
        Adapt the metric to the posterior covariance.
    dense_mass
        True to adapt a full covariance, False for variances, "low_rank" for variances and the K
        directions that differ most from them, 128 up to 1,024 dimensions and 32 from 4,096 on, at
        the cost of 2 K D a product,
        ``[("m", "b"), ("c",)]`` for covariances within these blocks of sites and variances of all
        others. None for a full covariance up to 64 dimensions, where it costs next to nothing:
        steps of these samplers are short, and correlations slow them far more than NUTS. Beyond 64
        dimensions None means a full covariance up to 512 and "low_rank" from there on for MALA,
        AutoMALA and AutoNUTS, and variances for others; up to 2,000 dimensions these three keep
        a full covariance where its two products cost no more than a gradient. Algorithms that take
        gradients learn each of these from draws and gradients there. The structure of an
        `inverse_mass_matrix` that is given is then kept. For an algorithm that is not from
        `blackjax_ext`, None means variances, since not all accept a matrix.
    target_accept_prob
        Acceptance probability between 0 and 1 to adapt to; None for the kernel's own
        (`best_accept_prob`).
    init_strategy
        NumPyro initialization strategy.
    warm_start
        Before the warm-up, follow Newton's path from the start to the best normal approximation
        along it, which gives the first position and, if `adapt_mass_matrix`, the first metric
        (:mod:`blackjax_ext.adaptation.newton_path`). Where its Hessians cost more than about 300
        steps and more than a few seconds, and beyond 128 dimensions in forward mode and 512 in
        reverse mode, a path of gradients gives the position alone
        (:mod:`blackjax_ext.adaptation.start`). Off if there is no warm-up; not tried without
        derivatives.
    chain_batch_size
        Of vectorized chains, how many take a step at once, the others after them: the memory of a
        step is that of so many chains, and its draws are the same up to rounding. None for all.
    """

    potential_fn: Function | None
    step_size: float
    inverse_mass_matrix: GivenMetric
    adapt_step_size: bool
    adapt_mass_matrix: bool
    dense_mass: DenseMass
    target_accept_prob: float | None
    init_strategy: Function
    warm_start: bool
    chain_batch_size: int | None


def check_options(
    model: Any,
    potential_fn: Any,
    differentiation: str,
    step_size: Any,
    target: Any,
    chain_batch_size: Any,
) -> None:
    """Raise ValueError or TypeError for what no kernel takes."""
    if (model is None) == (potential_fn is None):
        given = "neither" if model is None else "both"
        raise ValueError(f"exactly one of model and potential_fn must be given; got {given}.")
    for name, value in (("model", model), ("potential_fn", potential_fn)):
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be callable; got {type(value).__name__}.")
    check_positive("step_size", step_size)
    if jnp.ndim(step_size):
        raise ValueError(f"step_size must be one number; got shape {jnp.shape(step_size)}.")
    check_differentiation(differentiation)
    if target is not None:
        check_target("target_accept_prob", target)
    if chain_batch_size is not None:
        check_count("chain_batch_size", chain_batch_size)


def full_signature(kernel: type) -> inspect.Signature:
    """Signature of a kernel with each of its options by name, instead of ``**options``."""
    own = inspect.signature(vars(kernel).get("__init__", kernel))
    merged = {
        name: parameter
        for name, parameter in own.parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }
    rest = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD]
    shared = options_of(kernel)
    names = [name for options in shared for name in options.__annotations__]
    for name in names:
        if name not in merged:
            merged[name] = inherited(kernel, name)
    return inspect.Signature([*merged.values(), *(rest if not shared else [])])


def options_of(kernel: type) -> tuple[Any, ...]:
    """The TypedDict of the options that a kernel takes by ``**options``; empty without one."""
    own = inspect.signature(vars(kernel).get("__init__", kernel))
    rest = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD]
    return get_args(rest[0].annotation) if rest else ()


def inherited(kernel: type, name: str) -> inspect.Parameter:
    """The parameter `name` of the nearest parent that has it."""
    for parent in kernel.__mro__[1:]:
        parameters = inspect.signature(vars(parent).get("__init__", parent)).parameters
        if name in parameters:
            parameter = parameters[name]
            default = getattr(kernel, "option_defaults", {}).get(name, parameter.default)
            return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default)
    raise TypeError(f"{kernel.__name__} has no option {name}.")


EXAMPLE = """
Examples
--------
>>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
>>> from numpyro.infer import MCMC
>>> from numpyro_fwd import {name}
>>> def model(y):
...     mean = numpyro.sample("mean", dist.Normal(0, 10))
...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
>>> mcmc = MCMC({name}(model), num_warmup=300, num_samples=1000, progress_bar=False)
>>> mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]))
>>> bool(abs(mcmc.get_samples()["mean"].mean() - 2.0) < 0.2)
True
"""
EXAMPLE_OF_ROWS = """
Examples
--------
>>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
>>> from numpyro.infer import MCMC
>>> from numpyro_fwd import {name}
>>> def model(y):
...     mean = numpyro.sample("mean", dist.Normal(0, 10))
...     with numpyro.plate("rows", len(y), subsample_size=100) as rows:
...         numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])
>>> y = 2.0 + jax.random.normal(jax.random.key(0), (1000,))
>>> mcmc = MCMC({name}(model), num_warmup=100, num_samples=300, progress_bar=False)
>>> mcmc.run(jax.random.key(1), y)
>>> bool(abs(mcmc.get_samples()["mean"].mean() - y.mean()) < 0.02)
True
"""


def describe(kernel: type) -> None:
    """Write into a kernel's docstring what `options` stands for, and an example if it has none."""
    if not kernel.__doc__:  # python -OO
        return
    text = inspect.cleandoc(kernel.__doc__)
    if "\noptions\n" not in text:
        return
    shared: dict[str, str] = {}
    for options in (KernelOptions, *options_of(kernel)):
        if "\nAttributes\n" in inspect.cleandoc(options.__doc__ or ""):
            shared |= section_entries(options.__doc__ or "", "Attributes")
    own = section_entries(text, "Parameters")
    said = {name for names in own for name in names.split(", ")}
    names = [name for name in inspect.signature(kernel).parameters if name not in said]
    listed = "\n".join(f"{name}{shared[name]}" for name in names if name in shared)
    text = text.replace(f"options{own['options']}", listed)
    if "\nExamples\n" not in text:
        example = EXAMPLE_OF_ROWS if "num_integration_steps" in names else EXAMPLE
        text = f"{text}\n{example.format(name=kernel.__name__)}"
    kernel.__doc__ = text
