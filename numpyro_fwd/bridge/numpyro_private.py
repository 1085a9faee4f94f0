"""The names that the library takes from inside NumPyro, which NumPyro may change without notice.

No other file imports a private name of NumPyro. What counts as public is what NumPyro documents:
``numpyro``, ``numpyro.distributions``, ``numpyro.handlers``, ``numpyro.infer`` and
``numpyro.contrib.module``. If a name below is gone, importing this file says which.
"""

# ruff: noqa: F401  # for other files

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpyro
from numpyro.infer import MCMC
from tqdm import trange
from tqdm.auto import tqdm

from numpyro_fwd.types import Args, Kwargs

CHECKED_AGAINST = "0.22.0"

try:
    from numpyro.contrib.control_flow.scan import scan_wrapper
    from numpyro.contrib.module import ParamShape
    from numpyro.diagnostics import effective_sample_size, gelman_rubin
    from numpyro.infer.gibbs import GIBBS_SITES_KWARG
    from numpyro.infer.util import _prepare_model_for_potential as prepare_model
    from numpyro.infer.util import _transforms_from_trace as transforms_of
    from numpyro.infer.util import _unconstrain_params as unconstrain_params
    from numpyro.infer.util import (
        constrain_fn,
        find_valid_initial_params,
        get_potential_fn,
        helpful_support_errors,
        transform_fn,
        unconstrain_fn,
    )
    from numpyro.primitives import Messenger
    from numpyro.util import _is_under_jax_transform as is_under_jax_transform
    from numpyro.util import _validate_model as validate_model
    from numpyro.util import identity, is_prng_key, nested_attrgetter, not_jax_tracer
except ImportError as error:
    raise ImportError(
        f"the installed NumPyro {numpyro.__version__} lacks a private name that numpyro_fwd uses: "
        f"{error}. numpyro_fwd was checked against NumPyro {CHECKED_AGAINST}: install that "
        "version, or a later release of numpyro_fwd."
    ) from error


def is_jacobian_of(site: str, latent: str) -> bool:
    """Whether `unconstrain_params` puts the Jacobian of a constrained latent in this site.

    Its name passes through the ``handlers.scope`` around the latent, whose own name has: the latent
    "a/x" has the site "a/_a/x_log_det".
    """
    name = f"_{latent}_log_det"
    return site.endswith(name) and latent.startswith(site.removesuffix(name))


def mask_of(distribution: Any) -> Any:
    """Mask of a ``MaskedDistribution``: a boolean or an array of them."""
    return distribution._mask


def give_arguments(mcmc: MCMC, model_args: Args, model_kwargs: Kwargs | None) -> None:
    """Let the run that `mcmc` begins have these arguments of its model."""
    mcmc._args, mcmc._kwargs = model_args, model_kwargs or {}


def forget_steps(kernel: Any) -> None:
    """Let the next `init` of NumPyro's HMC make its step anew: for many chains, it maps the last.

    A second `init` of vectorized chains would map a step that is mapped already.
    """
    kernel._init_fn = kernel._sample_fn = None


def has_own_steps(kernel: Any, steps: Any) -> bool:
    """Whether the step of NumPyro's HMC is `steps` and depends on no data besides its arguments.

    Another MCMC that takes the same kernel makes others, for its own warm-up. The heuristic of step
    sizes keeps the data that it began with.
    """
    return kernel._sample_fn is steps and not kernel._find_heuristic_step_size


def hide_bars() -> None:
    """Show no progress bars of NumPyro in this process; those of others are left alone."""
    numpyro.util.tqdm_auto = partial(tqdm, disable=True)
    numpyro.util.tqdm = SimpleNamespace(trange=partial(trange, disable=True))
