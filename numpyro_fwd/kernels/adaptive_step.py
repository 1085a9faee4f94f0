"""The named kernel whose steps adapt to the place."""

from collections.abc import Mapping
from typing import Any, ClassVar

from blackjax_ext.mcmc.auto_mala import auto_mala
from numpyro_fwd.kernels.named import NamedKernel


class AutoMALA(NamedKernel):
    """MALA with a step size selected at each position, and persistent momentum; exact.

    For posteriors whose scale varies. One gradient for each trial of a step, 1 to 3 on average, in
    reverse mode. `step_size` is that of the first trial, and `target_accept_prob`, 0.8 by default,
    the acceptance probability that this trial alone would have. Hierarchies are sampled as they are
    written, in coordinates of their effects that the warm-up learns, as that of :class:`AutoNUTS`.

    Vectorized chains wait for the chain with the most trials; with ``chain_method="parallel"`` they
    do not. Extra fields: "num_steps", the gradients of a step, and "inner.exponent", j for a step
    of 2^j times `step_size`.
    """

    algorithm = auto_mala
    option_defaults: ClassVar[Mapping[str, Any]] = {"learn_coordinates": True}
    best_accept_prob = 0.8
    correlates_many = True
