"""NUTS in coordinates that its warm-up learns."""

import copy
import warnings
from typing import Any, Unpack

import blackjax
import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.adaptation.algorithm import BoundAlgorithm, Stepper
from blackjax_ext.checks import check_count
from blackjax_ext.meshes import is_first_process
from blackjax_ext.types import LogDensity
from numpyro_fwd.bridge.numpyro_private import is_prng_key
from numpyro_fwd.bridge.views import NoDerivatives, View
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.chains import KernelState
from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.kernels.recording import Recording, of_trajectory
from numpyro_fwd.kernels.strategy import WholeDensity
from numpyro_fwd.types import Args, Kwargs, Model


class AutoNUTS(BlackJAXKernel):
    """NUTS for hierarchies as they are written, in coordinates that follow the scale of effects.

    ``blackjax.nuts`` with the habits of NumPyro's NUTS. An effect (a site whose location or scale
    is computed from other sites, or the noise that a model multiplies by such a scale) is sampled
    in the coordinates of its noise given a pseudo-observation of each of its components, which the
    warm-up learns from draws and gradients (:mod:`blackjax_ext.coordinates.laws`);
    ``centredness(mcmc)`` says how centred they are. Exact for whatever it finds. Models without
    effects are sampled as they are. Vectorized chains share step size, metric and coordinates. The
    warm-up ends with steps of half a turn where these are near and cost less, which are accepted
    less often than ``target_accept_prob`` says (:mod:`blackjax_ext.adaptation.half_turns`).

    Extra fields: "num_steps", the gradients of a draw, "energy", "tree_depth" and "diverging".

    Parameters
    ----------
    model
        NumPyro model.
    max_tree_depth
        A trajectory is doubled at most so many times. A pair is the number in the warm-up and the
        number after it; a step is then compiled twice.
    forward_mode_differentiation
        Gradients from D JVPs in one pass, whether or not the model has a reverse mode. A model
        without one gets them unasked, and a warning says so.
    learn_coordinates
        Whether to learn coordinates; if not, effects are sampled as they are written.
    options
        See :class:`BlackJAXKernel`.
    """

    # what chains of NumPyro's NUTS that aim at 0.8 come to is 0.88; those here come to their
    # target, before steps are lengthened to half a turn
    best_accept_prob = 0.85
    takes_matrices = True
    correlates_many = True
    is_doubling = True
    advice = (
        "Give a higher target_accept_prob, which makes steps shorter; where covariates are far "
        "from zero, centre them; or reparametrize the model."
    )

    def __init__(
        self,
        model: Model | None = None,
        *,
        max_tree_depth: int | tuple[int, int] = 10,
        forward_mode_differentiation: bool = False,
        learn_coordinates: bool = True,
        **options: Unpack[KernelOptions],
    ):
        depths: tuple[Any, Any] = max_tree_depth, max_tree_depth
        if isinstance(max_tree_depth, tuple) and len(max_tree_depth) == 2:
            depths = max_tree_depth
        for depth in depths:
            check_count("max_tree_depth (one number, or that of the warm-up and that after)", depth)
        self._depth_of_draws = depths[1] if depths[1] != depths[0] else None
        super().__init__(
            model,
            blackjax.nuts,
            differentiation="forward" if forward_mode_differentiation else "reverse",
            learn_coordinates=learn_coordinates,
            max_num_doublings=depths[0],
            **options,
        )

    def _look(
        self, rng_key: Array, init_params: Any, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[View, Any]:
        """The target, by JVPs where the model has no reverse mode."""
        given = rng_key, init_params, model_args, model_kwargs
        try:
            return super()._look(*given)
        except NoDerivatives as error:
            if error.others != "forward":
                raise
        self._differentiation, self._strategy = "forward", WholeDensity("forward")
        self._reset()  # what has been made is for gradients
        view, z = super()._look(*given)
        one = z if is_prng_key(rng_key) else jax.tree.map(lambda leaf: leaf[0], z)
        size = sum(map(jnp.size, jax.tree.leaves(one)))
        if is_first_process():
            warnings.warn(
                f"AutoNUTS takes each gradient from JVPs, {size} in one pass: the model has no "
                "reverse mode. forward_mode_differentiation=True says the same without a warning; "
                "where a solver is dear, numpyro_fwd.Emulated evaluates it once a draw.",
                stacklevel=2,
            )
        return view, z

    def sample(self, state: KernelState, model_args: Args, model_kwargs: Kwargs | None):
        """One step, with trees of the depth of its phase."""
        if self._depth_of_draws is None:
            return super().sample(state, model_args, model_kwargs)
        after = copy.copy(self)
        after._algorithm = self._algorithm.having(max_num_doublings=self._depth_of_draws)

        def step(kernel):
            return lambda state: BlackJAXKernel.sample(kernel, state, model_args, model_kwargs)

        # one predicate for all chains
        return jax.lax.cond(
            jnp.ravel(state.i)[0] < state.num_warmup, step(self), step(after), state
        )

    def _recorded(self, target: Stepper) -> Stepper:
        if not isinstance(target, BoundAlgorithm):  # of a model without coordinates
            return target
        target = target._replace(logdensity_fn=bounded(target.logdensity_fn))
        return Recording(target, of_trajectory)


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
