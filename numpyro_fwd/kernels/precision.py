"""A model's density on a device with coarse products, compared with that in full precision.

What the library multiplies states its precision (:mod:`blackjax_ext.precision`); the products of a
model are the user's. A constant of the energy does no harm, so differences between points are
compared.
"""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext import precision
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.metrics.factor import Factor
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer

NUM_COMPARED = 8
COARSE_PRODUCTS = (
    "the products of matrices on {} are rounded by default, to 10 bits (TF32) or fewer. Around the "
    "start this changes differences of the model's log density by {:.2g} nats: the chains would "
    "sample another posterior. Set "
    'jax.config.update("jax_default_matmul_precision", "highest") before the run, or write '
    'precision="highest" in the products of the model, which then take longer; or subtract means '
    "from what they multiply."
)


@precision.exact_products  # the same places under both precisions
def points_around(x: Array, metric: Factor | None) -> Array:
    """A few places to compare energies at, (n, D): starts of chains (C, D), and moves from them."""
    x = x[:NUM_COMPARED]
    rest = NUM_COMPARED - x.shape[0]
    if not rest:
        return x
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(rest, x.shape[1])), x.dtype)
    moves = 0.1 * noise if metric is None else jax.vmap(metric.inverse_sqrt_times)(noise)
    return jnp.concatenate([x, x[0] + moves])


def check_products(energies: Callable[[], Array]) -> None:
    """Warn if `energies` (n,), traced and run twice, depend on the precision of products.

    Only where the device has coarse ones: elsewhere nothing is run. Traced values are let through.
    """
    if not precision.are_coarse_here():
        return
    both = energies(), precision.exact_products(energies)()
    if not not_jax_tracer(both[0]):
        return
    here, full = (np.asarray(on_host(values), np.float64) for values in both)
    is_known = np.isfinite(full)
    if not is_known.any():
        return
    here, full = here[is_known], full[is_known]
    off = float(np.max(np.abs(here - full - np.median(here - full))))
    # roundings of the energy that full precision would not take away
    rounding = 8.0 * float(jnp.finfo(both[0].dtype).eps * np.max(np.abs(full)))
    # nats that nobody sees in a posterior
    if not off <= max(0.01, rounding) and is_first_process():
        warnings.warn(COARSE_PRODUCTS.format(jax.devices()[0].device_kind, off), stacklevel=2)
