"""What a run noticed is said on the host when its state comes out of a program: by one class.

NumPyro gives a kernel no better moment. Its MCMC calls a kernel before its loop, while the loop is
traced, and for the text of a progress bar; after the loop it calls nothing of it. A callback could
speak from within the loop. But JAX keeps no program with a callback in its compilation cache, so
that every process would compile the loop anew. What remains is the moment at which JAX puts the
state together from the arrays that a program returned: ``tree_unflatten`` of a class of pytrees.

It is also called while programs are traced, with arrays that have no values, and by all who map the
leaves of a state to others. So nothing is said unless all leaves are arrays with values, and the
number of events is one that a program of ours returned.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.meshes import everywhere
from numpyro_fwd.bridge.numpyro_private import not_jax_tracer

NOTHING = 0x5EA10000  # the number of events of a state of which nothing is to be said


@jax.tree_util.register_pytree_node_class
class Notice:
    """A record in the state of a run, which speaks when it comes out of a program.

    Attributes
    ----------
    num_events
        NOTHING and the number of events: nothing else is looked at while there is none.
    facts
        What was noticed: a NamedTuple of arrays.
    speak
        Called with the facts after an event, to warn or to raise. Static, so that it is a function
        or compares by its value.
    """

    def __init__(self, num_events: Any, facts: Any, speak: Callable[[Any], None]):
        self.num_events = num_events
        self.facts = facts
        self.speak = speak

    @classmethod
    def first(cls, facts: Any, speak: Callable[[Any], None]) -> "Notice":
        """Record before any event."""
        # the carry of a loop may stay divided as it was at first
        return cls(jnp.array(NOTHING, int), facts, speak).everywhere()

    def having(self, is_event: Array, **facts: Any) -> "Notice":
        """Record with these facts, which are an event or none."""
        num_events = self.num_events + jnp.asarray(is_event, int)
        # here already: XLA gives the carry of a loop the sharding of what a branch computes
        return Notice(num_events, self.facts._replace(**everywhere(facts)), self.speak)

    def everywhere(self) -> "Notice":
        """Record with all arrays on each device, so that each process can read it."""
        num_events, facts = everywhere((self.num_events, self.facts))
        return Notice(num_events, facts, self.speak)

    def tree_flatten(self) -> tuple[tuple[Any, Any], Callable[[Any], None]]:
        """Arrays, and what speaks as static data."""
        return (self.num_events, self.facts), self.speak

    @classmethod
    def tree_unflatten(cls, speak: Callable[[Any], None], children: tuple[Any, Any]) -> "Notice":
        """Rebuild the record, and say what there is to say."""
        notice = cls(*children, speak)
        # all of it, or the first process alone would fail where it reads what others hold
        if all(map(is_concrete, jax.tree.leaves(children))) and is_ours(notice.num_events):
            # chains that ran alone come stacked: they may disagree where none has an event
            if is_said(notice.num_events) or np.ndim(notice.num_events) == 1:
                speak(notice.facts)
        return notice


def is_said(events: Any) -> bool:
    """Whether a program of ours returned a number of events that is not NOTHING.

    A state is a pytree, whose leaves anyone may map to others. What the functions of ``jax.tree``
    make of NOTHING is a boolean, or far from it, and says nothing.
    """
    return is_ours(events) and bool(np.any(np.asarray(events) > NOTHING))


def is_ours(events: Any) -> bool:
    """Whether a program of ours returned this number of events."""
    if not is_concrete(events) or not jnp.issubdtype(events.dtype, jnp.integer):
        return False
    numbers = np.asarray(events)
    return bool(np.all((numbers >= NOTHING) & (numbers < NOTHING + 2**28)))


def is_concrete(x: Any) -> bool:
    """Whether `x` is an array with values: what is traced has none, nor what was given away."""
    if not isinstance(x, Array) or not not_jax_tracer(x):
        return False
    return (x.is_fully_addressable or x.is_fully_replicated) and not x.is_deleted()
