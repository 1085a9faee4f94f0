"""NUTS in coordinates that its warm-up learns."""

from typing import Any

import blackjax
import jax.numpy as jnp
from jax import Array
from numpyro.infer import init_to_uniform

from blackjax_ext.adaptation.algorithm import BoundAlgorithm, Stepper
from blackjax_ext.checks import check_count
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.blocks import DenseMass, GivenMetric
from numpyro_fwd.kernels.trajectories import Recording
from numpyro_fwd.types import Model

__all__ = ["AutoNUTS"]


class AutoNUTS(BlackJAXKernel):
    """NUTS for hierarchies as they are written: the warm-up learns how centred effects should be.

    ``blackjax.nuts`` with the habits of NumPyro's NUTS. An effect (a site whose location or scale
    is computed from other sites, or the noise that a model multiplies by such a scale) is sampled
    in coordinates between itself and its noise, of which the warm-up finds the best for each of its
    coordinates from draws and gradients (:mod:`blackjax_ext.coordinates.partial`);
    ``centredness(mcmc)`` says which they are. Exact for whatever it finds. Models without effects
    are sampled as they are. Vectorized chains share step size, metric and coordinates.

    Extra fields: "num_steps", the gradients of a draw, "energy", "tree_depth" and "diverging".

    Parameters
    ----------
    model
        NumPyro model.
    max_tree_depth
        A trajectory is doubled at most so many times.
    forward_mode_differentiation
        For models without a reverse mode: gradients from D JVPs.
    learn_coordinates
        Whether to learn coordinates; if not, effects are sampled as they are written.
    options
        See :class:`BlackJAXKernel`.
    """

    # what chains of NumPyro's NUTS that aim at 0.8 come to is 0.88; those here come to their target
    best_accept_prob = 0.85
    takes_matrices = True
    correlates_many = True
    is_doubling = True
    advice = (
        "Centre the covariates of a regression; give a higher target_accept_prob, which makes "
        "steps shorter; or reparametrize the model."
    )

    def __init__(
        self,
        model: Model | None = None,
        *,
        potential_fn: Function | None = None,
        step_size: float = 1.0,
        inverse_mass_matrix: GivenMetric = None,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        dense_mass: DenseMass = None,
        target_accept_prob: float | None = None,
        max_tree_depth: int = 10,
        init_strategy: Function = init_to_uniform,
        forward_mode_differentiation: bool = False,
        learn_coordinates: bool = True,
        warm_start: bool = True,
        chain_batch_size: int | None = None,
    ):
        check_count("max_tree_depth", max_tree_depth)
        super().__init__(
            model,
            blackjax.nuts,
            potential_fn=potential_fn,
            step_size=step_size,
            inverse_mass_matrix=inverse_mass_matrix,
            adapt_step_size=adapt_step_size,
            adapt_mass_matrix=adapt_mass_matrix,
            dense_mass=dense_mass,
            target_accept_prob=target_accept_prob,
            init_strategy=init_strategy,
            warm_start=warm_start,
            differentiation="forward" if forward_mode_differentiation else "reverse",
            chain_batch_size=chain_batch_size,
            learn_coordinates=learn_coordinates,
            max_num_doublings=max_tree_depth,
        )

    def _recorded(self, target: Stepper) -> Stepper:
        if not isinstance(target, BoundAlgorithm):  # of a model without coordinates
            return target
        return Recording(target._replace(logdensity_fn=bounded(target.logdensity_fn)))


def bounded(logdensity_fn: LogDensity) -> LogDensity:
    """`logdensity_fn`, minus infinity where momenta could overflow.

    A step that is far too long leads to slopes of 1e20 and more; in single precision the kinetic
    energy of such momenta may overflow to minus infinity with a dense metric, and ``blackjax.nuts``
    accepts any energy that is not above the first. With no density there it is no number, which is
    rejected.
    """

    def function(position: Any) -> Array:
        value = logdensity_fn(position)
        return jnp.where(value > -1e-4 * jnp.finfo(value.dtype).max ** 0.5, value, -jnp.inf)

    return function
