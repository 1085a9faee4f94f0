"""The loop of a training: steps, reports, validation, the best parameters so far."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tqdm.auto import tqdm

from blackjax_ext.smc.open_horizon import OpenHorizonState
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import SplitArguments, check_arguments, split_arguments
from numpyro_fwd.bridge.log_terms import mixture_loss
from numpyro_fwd.bridge.partial_models import PartialModel
from numpyro_fwd.types import Kwargs, SiteValues


class Best(NamedTuple):
    """Unconstrained parameters, particles and weights with the least validation loss, and it.

    Before the first validation they are those of the start, and the loss is infinite.
    """

    params: SiteValues
    position: SiteValues
    log_weights: Array
    loss: Array
    age: Array  # number of validations since


class TrainingState(NamedTuple):
    """State of a training, arrays alone: a checkpoint of it is all that it takes to go on.

    inner
        Particles, their weights, unconstrained parameters, state of the optimizer.
    rng_key
        Key of the next step.
    i
        Number of updates so far, of which a schedule of step sizes is a function.
    best
        What had the least validation loss so far; its form does not change when the first is found.
    """

    inner: OpenHorizonState
    rng_key: Array
    i: Array
    best: Best


class Result(NamedTuple):
    """Result of a training.

    params
        Values of the param sites: those with the least validation loss, the last without one.
    particles
        Unconstrained particles of the same step, a dict of arrays with a leading axis.
    log_weights
        Logarithms of their normalized weights.
    losses
        Weighted mean of the potential energy at each step, shape (num_steps,), or shorter if the
        training stopped early; NaN where no particle had a weight.
    ess
        Effective sample size at each step.
    weight_power
        Power to which the weights took the batch of each step: 1 for exact weights.
    validation_losses
        Shape (number of validations,).
    state
        State to go on from: ``run(..., init_state=state)``.
    """

    params: SiteValues
    particles: dict[str, Any]
    log_weights: Array
    losses: Array
    ess: Array
    weight_power: Array
    validation_losses: Array
    state: TrainingState


class Program(Protocol):
    """Compiled updates."""

    def __call__(
        self, arrays: list[Any], state: TrainingState, num: int
    ) -> tuple[TrainingState, tuple[Array, Array, Array]]:
        """`num` updates: the state, losses, effective sample sizes and powers of the weights."""


def loss_by(view: Callable[[], PartialModel], validation: Function) -> Function:
    """The loss of a state by a function of (params, particles, log_weights), compiled."""

    @jax.jit
    def loss(inner):
        arguments = (view().constrain_params(inner.params), inner.position, inner.log_weights)
        return number(validation(*arguments))

    return loss


def number(loss: Any) -> Array:
    """A validation loss as an array without axes; TypeError for anything else."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(loss)]
    if shapes != [()]:
        raise TypeError(
            "validation must return one number, the loss; got "
            + (f"an array of shape {shapes[0]}." if len(shapes) == 1 else f"{len(shapes)} of them.")
        )
    return jnp.asarray(loss)


def split_validation(validation: Any, kwargs: Kwargs) -> SplitArguments:
    """Arguments to validate with, taken apart; TypeError for what is no tuple of them."""
    if not isinstance(validation, tuple):
        raise TypeError(
            "validation must be a tuple of the model's arguments, or a function of (params, "
            f"particles, log_weights); got {type(validation).__name__}."
        )
    check_arguments(validation, kwargs)
    return split_arguments(validation, kwargs)


def loss_on(view: Callable[[], PartialModel], split: SplitArguments) -> Function:
    """The loss of a state on the arrays of other data, compiled."""

    @jax.jit
    def loss(arrays, inner):
        terms = view().observed_fn(inner.params, inner.position, *split.join(arrays))
        return mixture_loss(terms, inner.log_weights)

    return loss


def first_state(inner: OpenHorizonState, rng_key: Array) -> TrainingState:
    """The first state of a training."""
    loss = jnp.full((), jnp.inf, inner.log_weights.dtype)
    return TrainingState(inner, rng_key, jnp.zeros((), jnp.int32), found_by(inner, loss))


def check_resumable(state: Any, first: TrainingState) -> None:
    """Raise for what cannot be gone on from: no state, or one of other particles or parameters."""
    if not isinstance(state, TrainingState):
        way_out = ": give its state, result.state" if isinstance(state, Result) else ""
        raise TypeError(f"init_state must be a state; got {type(state).__name__}{way_out}.")
    if form_of(state) != form_of(first):
        raise ValueError(
            f"init_state is of another training: {differences(state, first)}. Continue with the "
            "number of particles, the optimizer and the model that it was made with."
        )


def differences(state: TrainingState, first: TrainingState) -> str:
    """Describe where a state has another form than the first state."""
    parts = {"particles": "position", "parameters": "params", "state of the optimizer": "opt_state"}
    names = []
    for what, name in parts.items():
        mine, new = (form_of(getattr(one_state.inner, name)) for one_state in (state, first))
        if mine != new:
            names.append(what)
    return f"its {' and '.join(names) or 'arrays'} have other shapes"


def form_of(tree: Any) -> tuple[Any, ...]:
    """The form of a pytree and the shapes of its leaves."""
    return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]


def found_by(inner: OpenHorizonState, loss: Array) -> Best:
    """The parameters and particles of a state, with its loss."""
    age = jnp.zeros((), jnp.int32)
    return Best(inner.params, inner.position, inner.log_weights, loss, age)


def better(inner: OpenHorizonState, best: Best, loss: Array) -> Best:
    """The better one of a state and the best so far; a loss that is not a number never is."""
    is_better = bool(loss < best.loss) or not bool(jnp.isfinite(best.loss))
    if not is_better:
        return best._replace(age=best.age + 1)
    return found_by(inner, jnp.asarray(loss, best.loss.dtype))


def train(
    program: Program,
    state: TrainingState,
    num_steps: int,
    arrays: list[Any],
    constrain_params: Function,
    loss_fn: Function | None,
    validate_every: int,
    patience: int | None,
    progress_bar: bool,
) -> Result:
    """Train for `num_steps` updates.

    Parameters
    ----------
    program
        The compiled updates; it runs in pieces, after which the bar and `loss_fn` look.
    state
        State to start from.
    num_steps
        Number of updates.
    arrays
        The arrays among the arguments of the model.
    constrain_params
        From unconstrained parameters to the values of the param sites.
    loss_fn
        Validation loss of a state; None for no validation.
    validate_every
        Steps between validations.
    patience
        Number of validations without a new least loss after which to stop; None for no stop.
    progress_bar
        Whether to show one.
    """
    size = max(num_steps // 20, 1) if progress_bar else num_steps
    size = size if loss_fn is None else validate_every
    history, validation_losses = [], []
    with tqdm(total=num_steps, disable=not progress_bar) as bar:
        for start in range(0, num_steps, size):
            num = min(size, num_steps - start)
            state, columns = program(arrays, state, num)
            history.append(jax.tree.map(np.asarray, columns))
            text = f"loss: {columns[0][-1]:.4f}, ess: {columns[1][-1]:.1f}"
            if loss_fn is not None:
                loss = loss_fn(state.inner)
                state = state._replace(best=better(state.inner, state.best, loss))
                validation_losses.append(loss)
                text += f", validation loss: {loss:.4f}"
            bar.set_postfix_str(text)
            bar.update(num)
            if patience is not None and int(state.best.age) >= patience:
                break
    losses, ess, power = (jnp.concatenate(parts) for parts in zip(*history, strict=True))
    return result_of(state, constrain_params, losses, ess, power, jnp.array(validation_losses))


def result_of(
    state: TrainingState,
    constrain_params: Function,
    losses: Array,
    ess: Array,
    weight_power: Array,
    validation_losses: Array,
) -> Result:
    """The best parameters and particles of a state, or the last ones if none was validated."""
    best: Any = state.inner if bool(jnp.isposinf(state.best.loss)) else state.best
    params = constrain_params(best.params)
    history = (losses, ess, weight_power, validation_losses)
    return Result(params, best.position, best.log_weights, *history, state)
