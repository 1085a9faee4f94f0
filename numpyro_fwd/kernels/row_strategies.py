"""The ways in which a minibatch kernel reads the rows of a model's subsample plates.

:class:`PlainRows` estimates gradients from a minibatch;
:class:`numpyro_fwd.kernels.anchored_rows.AnchoredRows` corrects them by an expansion of the full
energy at its mode; :class:`numpyro_fwd.kernels.subsampled_rows.SubsampledRows` also accepts or
rejects from a few rows. A kernel imports the one that it is asked for. A fourth way is one more
class with the methods of :class:`numpyro_fwd.kernels.strategy.Strategy`.
"""

from functools import partial
from typing import Any, cast

import jax
import optax
from jax import Array

from blackjax_ext.adaptation.algorithm import Algorithm, BoundAlgorithm, Stepper
from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.adaptation.run import ravel_each
from blackjax_ext.rows.potentials import energy_at
from blackjax_ext.types import LogDensity
from numpyro_fwd.bridge.row_models import RowModel, size_of_epoch, stochastic_potential
from numpyro_fwd.kernels.recording import Recording, of_rows
from numpyro_fwd.kernels.strategy import Run, Source, Start, follow_path, split_each


def rows_of(source: Source) -> RowModel:
    """The rows of a full view."""
    if source.known is None:
        return RowModel.of(source.model, *source.arguments)
    return cast(RowModel, source.known).having(*source.arguments)


def counting(algorithm: Algorithm, potential: Any) -> Recording:
    """An algorithm on a potential, or an expansion by groups, whose states count rows."""
    return Recording(BoundAlgorithm(algorithm, potential), of_rows)


def density_in_chunks(chunk_size: int | None, source: Source) -> LogDensity:
    """Log density of a full view, in one float and with bounded memory."""
    potential = stochastic_potential(rows_of(source), chunk_size)
    return lambda z: -energy_at(potential, z).value()


def optimize(
    rng_key: Array,
    potential: Any,
    position: Any,
    num_steps: int,
    num_rows: int,
    optimizer: optax.GradientTransformation | None,
) -> Any:
    """Position after `num_steps` steps from `position`; the loss is the energy over `num_rows`.

    Cost: a minibatch gradient per step.
    """
    optimizer = optimizer or optax.adam(1e-3)  # the default of most of its users

    def step(carry, key):
        position, state = carry
        gradient = potential.stochastic_grad(position, potential.draw(key))
        gradient = jax.tree.map(lambda g: g / num_rows, gradient)
        updates, state = optimizer.update(gradient, state, position)
        return (optax.apply_updates(position, updates), state), None

    first = (position, optimizer.init(position))
    return jax.lax.scan(step, first, jax.random.split(rng_key, num_steps))[0][0]


def check_start_optimizer(optimizer: optax.GradientTransformation | None) -> None:
    """Raise TypeError unless `optimizer` is one of optax, or None."""
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            "optimizer must be a GradientTransformation of optax, such as optax.sgd(1e-2, 0.9); "
            f"got {type(optimizer).__name__}."
        )


class PlainRows:
    """Gradients from the rows of a minibatch alone.

    Parameters
    ----------
    chunk_size
        Rows that a pass over all of them reads at once.
    num_epochs
        Passes over the data of an optimizer that looks for a start; None for 3 where there are too
        many dimensions for Newton's path, and none elsewhere.
    optimizer
        Of optax; None for Adam.
    """

    def __init__(
        self,
        chunk_size: int | None,
        num_epochs: int | None,
        optimizer: optax.GradientTransformation | None,
    ):
        self.chunk_size = chunk_size
        self.num_epochs = num_epochs
        self.optimizer = optimizer

    def prepare(self, run: Run, z: Any) -> Any:
        """Chains share nothing."""

    def start(self, run: Run, rng_key: Array, z: Any, shared: Any) -> Start:
        """Where the optimizer leads, or Newton's path."""
        del shared
        density_of = partial(density_in_chunks, self.chunk_size)
        num_epochs = self._epochs(run, ravel_each(z).shape[1])
        if num_epochs:
            rng_key, key_search = split_each(rng_key, 2)
            z = self._optimized(run, key_search, z, num_epochs)
        # an optimized start is not improved, and no metric is looked for that is not wanted
        is_searching = run.is_searching and run.adapts_metric and not num_epochs
        run = run._replace(is_searching=is_searching)
        return follow_path(run, rng_key, z, density_of)

    def target(self, source: Source, algorithm: Algorithm, shared: Any) -> Stepper:
        """The algorithm on minibatches."""
        del shared
        rows = rows_of(source)
        return counting(algorithm, stochastic_potential(rows, self.chunk_size))

    def _epochs(self, run: Run, size: int) -> int:
        """Passes over the data of the optimizer for a start: 3, as in section 6.3 of the paper."""
        if not run.is_searching:
            return 0
        if self.num_epochs is None:
            return 0 if size <= BUDGET.dimensions["reverse"] else 3
        return self.num_epochs

    def _optimized(self, run: Run, rng_key: Array, z: Any, num_epochs: int) -> Any:
        """Positions `z` after as many epochs of the optimizer, each with its own minibatches."""
        per_epoch, num_rows = size_of_epoch(rows_of(run.source))
        num_steps = per_epoch * num_epochs

        def program(arrays, rng_key, z):
            potential = stochastic_potential(rows_of(run.at(arrays)), self.chunk_size)
            return jax.vmap(
                lambda key, z: optimize(key, potential, z, num_steps, num_rows, self.optimizer)
            )(rng_key, z)

        run.say(f"{num_epochs} epochs of an optimizer that looks for a start")
        return run(program, rng_key, z)
