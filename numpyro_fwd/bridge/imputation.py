"""Responses that a model draws where they are missing, by ``obs_mask``.

NumPyro makes two sites of ``sample("y", law, obs=y, obs_mask=is_known)``: "y_observed", and a
latent "y_unobserved" of y's shape. Where y is known, nothing depends on the latent, and its density
is flat: chains run away there, and a warm-up learns nothing of use. Here it has its law at those
places, too: given all else the law integrates to one, so the posterior of all else is the same, and
that of the missing responses. A density that the model scales does not integrate to one, and keeps
its mask.
"""

from typing import Any

from numpyro.distributions import MaskedDistribution

from numpyro_fwd.bridge.numpyro_private import Messenger
from numpyro_fwd.bridge.traces import is_latent
from numpyro_fwd.types import Site

__all__ = ["imputing"]

OBSERVED, UNOBSERVED = "_observed", "_unobserved"


class imputing(Messenger):
    """Give latents that stand for missing responses their law at all places."""

    def __enter__(self) -> Any:
        """Begin a run of the model."""
        self.observed: set[str] = set()
        return super().__enter__()

    def process_message(self, msg: Site) -> None:
        """Take the mask from the latent of two sites that ``obs_mask`` has made."""
        if msg["type"] != "sample" or type(msg["fn"]) is not MaskedDistribution:
            return
        name, law = msg["name"], msg["fn"].base_dist
        if msg["is_observed"] and name.endswith(OBSERVED):
            self.observed.add(name.removesuffix(OBSERVED))
        elif (
            is_latent(msg)
            and name.endswith(UNOBSERVED)
            and name.removesuffix(UNOBSERVED) in self.observed
            and msg["scale"] is None
            and type(law) is not MaskedDistribution  # by a mask of the user's
        ):
            msg["fn"] = law
