"""The first state of a kernel's chains, once their starts are known."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.adaptation import windows
from blackjax_ext.adaptation.algorithm import Stepper, coordinates_of
from blackjax_ext.adaptation.run import first_step_size, ravel_each, states_at
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.metrics.factors import check_metric
from blackjax_ext.types import Function, Unravel
from numpyro_fwd.bridge.views import logdensity_of
from numpyro_fwd.kernels.chain_warnings import forget
from numpyro_fwd.kernels.notices import Notice
from numpyro_fwd.kernels.precision import check_products, points_around
from numpyro_fwd.kernels.state import KernelState, make_state, of_one
from numpyro_fwd.kernels.strategy import Run, Start
from numpyro_fwd.kernels.tuning import Tuning

__all__ = ["FirstState"]


def first_frame(target: Stepper, metric: Factor, position: Any) -> tuple[Any, Any]:
    """Coordinates of the first step, and what is known of them if `target` learns them."""
    if not hasattr(target, "first_learned"):
        return metric, None
    learned = target.first_learned(position)
    return learned.frame(metric), learned


class FirstState(NamedTuple):
    """How chains go from their start to a state.

    run, start
        The run, and where its chains start.
    unravel
        From a flat position to one of the chains'.
    shared
        What chains share.
    tuning
        What the warm-up adapts.
    target_of
        ``target_of(model_args, model_kwargs, shared)``, the target of a step.
    advice
        What to do about chains that do not move.
    is_single
        Whether there is one chain, without the axis of chains.
    """

    run: Run
    start: Start
    unravel: Unravel
    shared: Any
    tuning: Tuning
    target_of: Function
    advice: str
    is_single: bool

    def make(self) -> KernelState:
        """The state, by one program."""
        run, start, tuning = self.run, self.start, self.tuning
        given = None
        if tuning.inverse_mass_matrix is not None:  # values are checked where they are known
            given = tuning.metric(None, start.x, self.unravel)
        run.say("compiling the first state")
        guess = tuning.first_step_size(is_capped=start.is_whitened)
        arguments = start.keys, start.x, start.metric, given, self.shared, guess
        state: KernelState = run(self.begun, *arguments)
        forget(cast(Notice, state.noticed))
        check_products(self.energies_around)
        if hasattr(state.inner, "metric"):
            check_metric(state.inner.metric)
        return state

    def begun(self, arrays, keys, x, start_metric, given, shared, guess) -> KernelState:
        """The state of chains at x, (C, D); `arrays` are those among the model's arguments."""
        run, start, tuning = self.run, self.start, self.tuning
        model_args, model_kwargs = run.arguments.join(arrays)
        metric = start_metric if given is None else given
        if given is None and not start.is_structured:
            logdensity_fn = logdensity_of(run.source.view, model_args, model_kwargs)
            metric = tuning.metric(start_metric, x, self.unravel, logdensity_fn)
        target = self.target_of(model_args, model_kwargs, shared)
        frame, learned = first_frame(target, metric, self.unravel(x[0]))
        inner = states_at(target, keys.first, jax.vmap(self.unravel)(x), frame)
        plan = tuning.plan(x.shape[1], run.num_warmup)
        # in coordinates that the mode has whitened there is nothing to search for
        if start.is_whitened and given is None and plan.adapt_step_size:
            step_size = jnp.full(x.shape[:1], guess, jax.tree.leaves(metric)[0].dtype)
        else:
            step_size = first_step_size(target, plan, keys.step_size, inner, frame, guess)
        x = ravel_each(coordinates_of(inner), x.shape[0])
        with_gradients = tuning.learns_from_gradients(inner, metric, x.shape[1])
        adapt_state = windows.init(
            step_size, metric, x, num_steps=run.num_warmup, with_gradients=with_gradients
        )
        adapt_state = adapt_state._replace(coordinates=learned)
        state = make_state(inner, adapt_state, keys.state, self.advice)
        return of_one(state) if self.is_single else state

    def energies_around(self) -> Array:
        """Energies at some points around the start, as chains evaluate them."""
        start = self.start
        x = points_around(start.x, start.metric)
        keys = jax.random.split(start.keys.first[0], x.shape[0])
        metric = self.tuning.metric(start.metric, x, self.unravel)

        def energies(arrays, keys, x, metric, shared):
            target = self.target_of(*self.run.arguments.join(arrays), shared)
            frame, _ = first_frame(target, metric, self.unravel(x[0]))

            def at(keys, x):
                return states_at(target, keys, jax.vmap(self.unravel)(x), frame).logdensity

            if self.is_single:  # with a vector, as the chain's own products
                return jax.lax.map(lambda one: at(one[0][None], one[1][None])[0], (keys, x))
            return at(keys, x)

        found: Array = self.run(energies, keys, x, metric, self.shared)
        return found
