"""Responses that a model draws where they are missing, by ``obs_mask``.

NumPyro makes two sites of ``sample("y", law, obs=y, obs_mask=is_known)``: "y_observed", and a
latent "y_unobserved" of y's shape, with one law. Where y is known, nothing depends on the latent,
and its density is flat: chains run away there, and a warm-up learns nothing of use. Here it has its
law at those places, too: given all else the law integrates to one, so the posterior of all else is
the same, and that of the missing responses. What need not integrate to one keeps its mask: a
density that the model scales, a law of censored values, an improper law, or one that is not
NumPyro's.
"""

from collections.abc import Callable
from typing import Any

from numpyro import distributions
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)

from numpyro_fwd.bridge.numpyro_private import Messenger, scan_wrapper
from numpyro_fwd.bridge.traces import is_latent
from numpyro_fwd.types import Site

OBSERVED, UNOBSERVED = "_observed", "_unobserved"
UNNORMALIZED = (
    distributions.ImproperUniform,
    distributions.IntervalCensoredDistribution,
    distributions.LeftCensoredDistribution,
    distributions.RightCensoredDistribution,
    distributions.Unit,
)


class imputing(Messenger):
    """Give latents that stand for missing responses their law at all places."""

    def __enter__(self) -> Any:
        """Begin a run of the model."""
        self.observed: dict[str, Any] = {}
        return super().__enter__()

    def process_message(self, msg: Site) -> None:
        """Take the mask from the latent of two sites that ``obs_mask`` has made."""
        if msg["type"] == "control_flow" and msg["fn"] is scan_wrapper:
            # the sites of a step are seen from outside when their laws are other objects
            step, *rest = msg["args"]
            msg["args"] = (imputing_in(step), *rest)
        if msg["type"] != "sample" or (law := unmasked(msg["fn"])) is None:
            return
        name = msg["name"]
        if msg["is_observed"] and name.endswith(OBSERVED):
            self.observed[name.removesuffix(OBSERVED)] = as_given(law)
        elif (
            is_latent(msg)
            and name.endswith(UNOBSERVED)
            and self.observed.get(name.removesuffix(UNOBSERVED)) is as_given(law)
            and msg["scale"] is None
            and is_normalized(law)
        ):
            msg["fn"] = law


def imputing_in(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of a scan, with laws where responses are missing."""

    def imputed(*arguments: Any) -> Any:
        with imputing():
            return step(*arguments)

    return imputed


def unmasked(law: Distribution) -> Distribution | None:
    """A law without its mask, which plates may have expanded; None for one without a mask."""
    if type(law) is ExpandedDistribution:
        inner = unmasked(law.base_dist)
        return None if inner is None else inner.expand(law.batch_shape)
    return law.base_dist if type(law) is MaskedDistribution else None


def as_given(law: Distribution) -> Distribution:
    """A law before it has been expanded to the shape of a mask: one object for both sites."""
    while isinstance(law, (ExpandedDistribution, Independent)):
        law = law.base_dist
    return law


def is_normalized(law: Any) -> bool:
    """Whether a law is known to integrate to one, as is all that it is made of.

    A mask within it is the user's.
    """
    if isinstance(law, (list, tuple)):
        return all(map(is_normalized, law))
    if not isinstance(law, (Distribution, distributions.transforms.Transform)):
        return True
    is_known = type(law).__module__.startswith(distributions.__name__)
    if not is_known or isinstance(law, (*UNNORMALIZED, MaskedDistribution)):
        return False
    return all(map(is_normalized, vars(law).values()))
