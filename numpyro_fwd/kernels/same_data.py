"""Whether the data of a run are those that a kernel, or the state it goes on from, knows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from blackjax_ext.meshes import everywhere
from numpyro_fwd.bridge.fingerprints import Fingerprint, fingerprint, is_other, mutable_arrays
from numpyro_fwd.bridge.numpyro_private import give_arguments, not_jax_tracer
from numpyro_fwd.disk import OnDisk
from numpyro_fwd.kernels.running_mcmc import running_mcmc
from numpyro_fwd.types import Args, Kwargs

__all__ = ["NOTHING", "InPlace", "WhoseData", "check_data", "is_concrete", "is_ours", "is_said"]

NOTHING = 0x5EA10000  # the number of events of a state of which nothing is to be said
MOST_EVENTS = 2**28
OTHER_DATA = (
    "the state that is resumed was made with other data: the log density in it, and the mode or "
    "expansion that chains of AMAGOLD share, are not those of these arguments. Run the warm-up on "
    "them, mcmc.post_warmup_state = None; or keep step size and metric, mcmc.post_warmup_state = "
    "mcmc.sampler.refresh(mcmc.last_state, args, kwargs), unless chains share an expansion; or "
    "pass the arguments that the state was made with."
)
OTHER_PARTICLES = (
    "the particles that are resumed were annealed to other data, to which their evidence belongs. "
    "Anneal to these data from the prior, mcmc.post_warmup_state = None, or pass the arguments "
    "that the state was made with."
)


class InPlace:
    """Notices arrays of NumPy that were changed in place between two runs of a kernel.

    NumPyro keeps its loop by the identity of the arguments, and JAX what it has made of them, with
    the numbers that they held then.

    Attributes
    ----------
    has_changed
        Whether there were any.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[int, ...], int] | None = None  # the arrays, and their checksum
        self.has_changed = False

    def as_they_are(
        self, digest: Fingerprint, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[tuple[Any, ...], Any]:
        """Arguments, as new objects once an array has changed; those of the running MCMC, too."""
        arrays = mutable_arrays(model_args, model_kwargs)
        if not arrays or isinstance(digest.whole, jax.core.Tracer):
            return model_args, model_kwargs
        last, self._last = self._last, (arrays, int(digest.whole))
        if last is not None and last[0] == arrays and last != self._last:
            self.has_changed = True
        if not self.has_changed:
            return model_args, model_kwargs
        new = as_new((model_args, model_kwargs))
        if (mcmc := running_mcmc()) is not None:
            give_arguments(mcmc, *new)
        return new


@jax.tree_util.register_pytree_node_class
class WhoseData:
    """Record of the data of a population, carried in its state.

    Like :class:`~numpyro_fwd.kernels.chain_warnings.Noticed`, it speaks when it leaves a program.

    Attributes
    ----------
    made
        Fingerprint of the data that it was made with.
    has_other
        NOTHING, or more if a step was given others: an error once the state comes out of a program.
    """

    def __init__(self, made: Any, has_other: Any):
        self.made = made
        self.has_other = has_other

    @classmethod
    def of(cls, model_args: Args, model_kwargs: Kwargs | None) -> "WhoseData":
        """The record of these arguments."""
        return cls(fingerprint(model_args, model_kwargs), jnp.array(NOTHING))

    def compared(self, model_args: Args, model_kwargs: Kwargs | None) -> "WhoseData":
        """The record with whether these arguments are others."""
        is_new = is_other(self.made, model_args, model_kwargs)
        return WhoseData(self.made, everywhere(jnp.maximum(self.has_other, NOTHING + is_new)))

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Arrays alone."""
        return (self.made, self.has_other), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> "WhoseData":
        """Rebuild the record; ValueError if a step was given other data."""
        if is_said(children[1]):
            raise ValueError(OTHER_PARTICLES)
        return cls(*children)


def check_data(has_other: Any) -> None:
    """Raise ValueError for a state that was made with other data; what is traced passes."""
    if is_concrete(has_other) and np.any(has_other):
        raise ValueError(OTHER_DATA)


def as_new(arguments: Any) -> Any:
    """Arrays of NumPy and rows on disk as other objects that hold the same."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf.view()
        return leaf.renewed() if isinstance(leaf, OnDisk) else leaf

    return jax.tree.map(one, arguments, is_leaf=lambda leaf: isinstance(leaf, OnDisk))


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
    return bool(np.all((numbers >= NOTHING) & (numbers < NOTHING + MOST_EVENTS)))


def is_concrete(x: Any) -> bool:
    """Whether `x` is an array with values: what is traced has none, nor what was given away."""
    if not isinstance(x, Array) or not not_jax_tracer(x):
        return False
    return (x.is_fully_addressable or x.is_fully_replicated) and not x.is_deleted()
