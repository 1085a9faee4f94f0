"""Whether the data of a run are those that a kernel, or the state it goes on from, knows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from numpyro_fwd.bridge.fingerprints import Fingerprint, is_other, mutable_arrays
from numpyro_fwd.bridge.numpyro_private import give_arguments
from numpyro_fwd.disk import OnDisk
from numpyro_fwd.kernels.notices import Notice, is_concrete
from numpyro_fwd.kernels.running_mcmc import running_mcmc
from numpyro_fwd.types import Args, Kwargs

OTHER_DATA = (
    "the state that is resumed was made with other data: the log density in it, and what its "
    "chains share, are not those of these arguments. Run the warm-up on them, "
    "mcmc.post_warmup_state = None; or keep step size and metric, mcmc.post_warmup_state = "
    "mcmc.sampler.refresh(mcmc.last_state, args, kwargs), unless chains share an expansion or an "
    "emulator; or pass the arguments that the state was made with."
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


class OfParticles(NamedTuple):
    """Facts of the :class:`~numpyro_fwd.kernels.notices.Notice` of a population on its data.

    made
        Fingerprint of the data that it was made with.
    has_other_data
        Whether a step was given others: an error once the state comes out of a program.
    """

    made: Fingerprint
    has_other_data: Array


def noticing_data(made: Fingerprint) -> Notice:
    """Record of the data of a population, before any step."""
    return Notice.first(OfParticles(made, jnp.array(False)), check_particles)


def compared(notice: Notice, made: Fingerprint, model_args: Args, model_kwargs: Any) -> Notice:
    """Record with whether these arguments are others than those of the fingerprint `made`."""
    is_new = is_other(made, model_args, model_kwargs)
    return notice.having(is_new, has_other_data=notice.facts.has_other_data | is_new)


def check_particles(facts: OfParticles) -> None:
    """Raise ValueError for particles that were annealed to other data."""
    if np.any(facts.has_other_data):
        raise ValueError(OTHER_PARTICLES)


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
