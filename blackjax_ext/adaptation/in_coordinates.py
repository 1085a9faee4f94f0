"""Any algorithm in coordinates of effects given pseudo-observations, which the warm-up learns.

Chains step in u; the position that all others see is x. The state keeps both: where the scale of an
effect is below its last digit, u could not be found again from x. Pseudo-observations are part
of what the warm-up adapts, beside the metric (``AdaptState.coordinates``). They change where a
window ends, with u, and the metric with the width of the coordinates.
After the warm-up it is frozen, and a step is the algorithm's own on the density of u
(:mod:`blackjax_ext.coordinates.partial`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.adaptation import windows
from blackjax_ext.adaptation.algorithm import StepInfo, Stepper
from blackjax_ext.adaptation.windows import AdaptState
from blackjax_ext.coordinates import learning, maps
from blackjax_ext.coordinates.learning import Frame
from blackjax_ext.coordinates.partial import (
    Coordinates,
    Placed,
    coarsest,
    first_pseudo,
    in_coordinates,
)
from blackjax_ext.stacking import stacked
from blackjax_ext.types import Function, LogDensity, select


class CoordinateState(NamedTuple):
    """State of an algorithm that steps in coordinates.

    chain
        Its state in u.
    position
        x.
    logdensity
        Log density of x.
    """

    chain: Any
    position: ArrayTree
    logdensity: Array

    @property
    def coordinates(self) -> ArrayTree:
        """The position u, in which steps are taken."""
        return self.chain.position

    @property
    def exponent(self) -> Array:
        """Of the step that was selected, for algorithms that select one."""
        exponent: Array = self.chain.exponent
        return exponent

    @property
    def energy(self) -> Array:
        """Energy of the trajectory, for algorithms that have one."""
        energy: Array = self.chain.energy
        return energy

    @property
    def tree_depth(self) -> Array:
        """Number of doublings of the trajectory, for algorithms that double it."""
        tree_depth: Array = self.chain.tree_depth
        return tree_depth


def coordinate_state(chain: Any, placed: Placed) -> CoordinateState:
    """The state where a chain is, which is `placed`."""
    return CoordinateState(chain, placed.position, chain.logdensity - placed.log_det)


class InCoordinates(NamedTuple):
    """An algorithm on a log density in the coordinates of its effects.

    bind
        From a log density to the algorithm on it; its states keep a `logdensity_grad`.
    logdensity_fn
        Log density of x.
    coordinates
        The effects.
    """

    bind: Callable[[Function], Stepper]
    logdensity_fn: LogDensity
    coordinates: Coordinates

    def bound(self, pseudo: ArrayTree) -> Stepper:
        """The algorithm on the density of u."""
        return self.bind(in_coordinates(self.logdensity_fn, self.coordinates, pseudo))

    def first_learned(self, position: ArrayTree) -> learning.Learned:
        """What is known of coordinates before the first step."""
        return learning.first_learned(first_pseudo(self.coordinates, position))

    def at(self, u: ArrayTree, rng_key: Array, frame: Frame) -> CoordinateState:
        """First state at `u`; TypeError for a state without the gradient that is learned from."""
        chain = self.bound(frame.pseudo).init(u, rng_key, frame.metric)
        if getattr(chain, "logdensity_grad", None) is None:
            raise TypeError(
                "learn_coordinates needs an algorithm whose state has a logdensity_grad, such as "
                f"blackjax.nuts, blackjax.hmc or blackjax.mala; got {type(chain).__name__}."
            )
        return coordinate_state(chain, self.coordinates.out(u, frame.pseudo))

    def init(self, position: ArrayTree, rng_key: Array, metric: Any) -> CoordinateState:
        """First state at `position`; `metric` is a frame."""
        return self.at(self.coordinates.into(position, metric.pseudo), rng_key, metric)

    def renew(self, rng_key: Array, state: CoordinateState, metric: Any) -> CoordinateState:
        """The state where `state` is, for steps in another metric."""
        return self.at(state.coordinates, rng_key, metric)

    def step(
        self, rng_key: Array, state: CoordinateState, step_size: Array, metric: Any, **supplied: Any
    ) -> tuple[CoordinateState, StepInfo]:
        """One transition; `metric` is a frame."""
        bound = self.bound(metric.pseudo)
        chain, info = bound.step(rng_key, state.chain, step_size, metric.metric, **supplied)
        placed = self.coordinates.out(chain.position, metric.pseudo)
        return coordinate_state(chain, placed), info._replace(
            hidden=coarsest(placed, metric.pseudo),
            laws=jax.tree.map(jnp.asarray, placed.laws),  # of which some may be Python's numbers
        )

    def counted(
        self, states: CoordinateState, effect_laws: Any, adapt_state: AdaptState
    ) -> AdaptState:
        """Add draws and gradients of C chains to what tells what data say of effects."""
        learned = adapt_state.coordinates
        assert learned is not None

        def looked(chain: Any, effect_laws: Any) -> Any:
            return learning.look(chain.position, chain.logdensity_grad, learned.pseudo, effect_laws)

        counted = learning.count(learned, jax.vmap(looked)(states.chain, effect_laws))
        # the first steps of a window are much too long: dual averaging begins at ten times the step
        # steps of a window that say nothing of coordinates
        is_settled = adapt_state.motion.num_steps > 15
        return adapt_state._replace(coordinates=select(is_settled, counted, learned))

    def recentre(
        self, keys: Array, states: CoordinateState, effect_laws: Any, adapt_state: AdaptState
    ) -> tuple[CoordinateState, AdaptState]:
        """A window ends: the chains where they are, in the coordinates that it asks for."""
        old = adapt_state.coordinates
        assert old is not None
        learned, ratios = learning.learn(old, effect_laws)
        both = old.pseudo, learned.pseudo
        u = jax.vmap(stacked(moved), (0, None, None, 0))(states.coordinates, *both, effect_laws)
        one = jax.tree.map(lambda leaf: leaf[0], u)
        filled = jax.tree.map(lambda x, r: jnp.ones_like(x) if r is None else r, one, ratios)
        mean, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf.mean(0), states.coordinates))

        def renewed(u: Array) -> Array:
            at = unravel(u)
            laws = self.coordinates.out(at, old.pseudo).laws
            return ravel_pytree(moved(at, *both, laws))[0]

        # coordinates depend on what is above an effect. With widths alone a metric would keep the
        # correlations of the old ones: it was nine times too narrow where 30 levels move with their
        # mean
        metric = adapt_state.metric.through(renewed, mean, ravel_pytree(filled)[0])
        adapt_state = adapt_state._replace(metric=metric, coordinates=learned)
        bound = self.bound(learned.pseudo)
        chains = jax.vmap(lambda u, key: bound.init(u, key, metric))(u, keys)
        states = states._replace(chain=chains)  # the position is what it was
        flat = jax.vmap(lambda u: ravel_pytree(u)[0])(u)
        return states, windows.start_counting(adapt_state, flat)


def moved(u: ArrayTree, old: ArrayTree, new: ArrayTree, effect_laws: ArrayTree) -> ArrayTree:
    """Coordinates given `new` of what is at `u` given `old`."""

    def move(u: Array, old: Any, new: Any, law: Any) -> Array:
        return u if old is None else maps.moved(law, old, new, u)

    return jax.tree.map(move, u, old, new, effect_laws)
