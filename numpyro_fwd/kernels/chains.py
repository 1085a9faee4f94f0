"""A kernel's chains: their first state, and their steps with what the warm-up adapts in them."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.adaptation.algorithm import StepInfo, Stepper
from blackjax_ext.adaptation.run import Plan, adapt, begin, first_frame, states_at
from blackjax_ext.adaptation.windows import AdaptationSchedule, AdaptState
from blackjax_ext.metrics.factors import check_metric
from blackjax_ext.types import Function, once
from numpyro_fwd.bridge.fingerprints import Fingerprint
from numpyro_fwd.kernels.chain_warnings import forget, of_the_warmup
from numpyro_fwd.kernels.notices import Notice
from numpyro_fwd.kernels.precision import check_products, points_around
from numpyro_fwd.kernels.same_data import compared
from numpyro_fwd.kernels.state import (
    KernelState,
    after_step,
    make_state,
    of_one,
    split_each,
    with_types_of,
)
from numpyro_fwd.kernels.strategy import Run, Start, ravel_one
from numpyro_fwd.kernels.tuning import Tuning
from numpyro_fwd.types import Args, Kwargs


def first_state(
    run: Run,
    start: Start,
    z: Any,
    shared: Any,
    tuning: Tuning,
    target_of: Function,
    advice: str,
    is_single: bool,
) -> KernelState:
    """The state of chains at their `start`, whose positions are like `z`, by one program.

    ``target_of(model_args, model_kwargs, shared)`` is the target of a step, `advice` what to do
    about chains that do not move. A chain that `is_single` has no axis of chains.
    """
    unravel, given = ravel_one(z), None
    if tuning.inverse_mass_matrix is not None:  # values are checked where they are known
        given = tuning.metric(None, start.x, unravel)

    def begun(arrays, keys, x, start_metric, given, shared, guess):
        source, metric = run.at(arrays), start_metric if given is None else given
        if given is None and not start.is_structured:
            metric = tuning.metric(start_metric, x, unravel, source.logdensity())
        target, plan = target_of(*source.arguments, shared), tuning.plan(x.shape[1], run.num_warmup)
        positions, is_whitened = jax.vmap(unravel)(x), start.is_whitened and given is None
        both = keys.first, keys.step_size
        inner, adapt_state = begin(target, plan, both, positions, metric, guess, is_whitened)
        state = make_state(inner, adapt_state, keys.state, advice)
        return of_one(state) if is_single else state

    def energies(arrays, keys, x, metric, shared):
        target = target_of(*run.at(arrays).arguments, shared)
        frame, _ = first_frame(target, metric, unravel(x[0]))

        def at(keys, x):
            return states_at(target, keys, jax.vmap(unravel)(x), frame).logdensity

        if is_single:  # with a vector, as the chain's own products
            return jax.lax.map(lambda one: at(one[0][None], one[1][None])[0], (keys, x))
        return at(keys, x)

    def energies_around() -> Array:
        x = points_around(start.x, start.metric)
        keys = jax.random.split(start.keys.first[0], x.shape[0])
        found: Array = run(energies, keys, x, tuning.metric(start.metric, x, unravel), shared)
        return found

    run.say("compiling the first state")
    arguments = start.keys, start.x, start.metric, given, shared, tuning.step_size * start.step_size
    state: KernelState = run(begun, *arguments)
    forget(cast(Notice, state.noticed))
    check_products(energies_around)
    if hasattr(state.inner, "metric"):
        check_metric(state.inner.metric)
    return state


def step_chains(
    target: Stepper,
    tuning: Tuning,
    parameters_of: Function | None,
    given: tuple[Args, Kwargs | None],
    state: KernelState,
    each: Function,
) -> KernelState:
    """One step of chains that lead the arrays of `state`; ``each(step)`` is that of all.

    ``parameters_of(rng_key, i, inner, num_warmup)`` are parameters that chains share, None for
    none, and `given` the arguments of the model.
    """
    adapt_state, schedule, i = state.adapt_state, state.adapt_state.schedule, state.i[0]
    rng_key, key_move, key_renew, *key_shared = split_each(
        state.rng_key, 3 + (parameters_of is not None)
    )
    supplied, first = {}, jax.tree.map(lambda leaf: leaf[0], state.inner)
    if parameters_of is not None:
        supplied = parameters_of(key_shared[0][0], i, first, state.num_warmup)

    def move(rng_key, inner, step_size):
        return target.step(rng_key, inner, step_size, adapt_state.frame, **supplied)

    inner, info = each(move)(key_move, state.inner, adapt_state.step_size)
    info = info.rated(is_adapting=tuning.adapt_step_size and schedule is not None)
    noticed = compared(cast(Notice, state.noticed), cast(Fingerprint, state.fingerprint), *given)
    plan = tuning.plan(sum(map(jnp.size, jax.tree.leaves(first.position))))
    if schedule is not None and (plan.adapt_step_size or plan.adapt_metric):
        # one predicate for all chains: a batched one would run the update for ever
        inner, adapt_state, noticed = once(
            i < schedule.num_steps,
            partial(adapted, target, plan, i, key_renew, info),
            (inner, adapt_state, noticed),
        )
    return after_step(state, inner, info, adapt_state, noticed, rng_key)


def adapted(
    target: Stepper,
    plan: Plan,
    i: Array,
    rng_key: Array,
    info: StepInfo,
    seen: tuple[Any, AdaptState, Notice],
) -> tuple[Any, AdaptState, Notice]:
    """What step `i` of the warm-up makes of states, of what is adapted, and of the notice."""
    inner, adapt_state, noticed = seen
    inner, adapt_state = adapt(target, plan, i, rng_key, info, inner, adapt_state)
    noticed = jax.lax.cond(
        i == cast(AdaptationSchedule, adapt_state.schedule).num_steps - 1,
        lambda noticed, *seen: with_types_of(noticed, of_the_warmup(noticed, *seen)),
        lambda noticed, *seen: noticed,
        *(noticed, adapt_state, inner.logdensity),
    )
    # the branches of a `cond` must agree in weak types too
    found: tuple[Any, AdaptState, Notice] = with_types_of(seen, (inner, adapt_state, noticed))
    return found
