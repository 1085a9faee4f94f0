"""Centredness of effects as a warm-up has learned it, for its user."""

from typing import Any

import numpy as np
from numpyro.infer import MCMC, reparam

from blackjax_ext.coordinates.maps import centred
from blackjax_ext.meshes import on_host
from numpyro_fwd.kernels.state import KernelState


class Centredness(dict[str, Any]):
    """The centredness of each effect by its site: 1 for the effect itself, 0 for its noise.

    Of a random walk it is that of its waves, the longest first. Printed, it is a table with the
    least, the median and the greatest of each site, and below it the sites that look like effects
    or like noise and are sampled as they are written.

    as_written
        Why, by their sites.
    """

    def __init__(self, centredness: dict[str, Any], as_written: dict[str, str]):
        super().__init__(centredness)
        self.as_written = as_written

    def __str__(self) -> str:
        """One line for each site."""
        width = max((len(name) for name in (*self, *self.as_written)), default=0)
        header = f"{'':>{width}}{'least':>9}{'median':>9}{'greatest':>9}{'number':>9}"
        lines = [header] if self else ["no effects"]
        for name, c in self.items():
            numbers = "".join(f"{v:>9.2f}" for v in np.quantile(c, (0.0, 0.5, 1.0)))
            lines.append(f"{name:>{width}}{numbers}{np.size(c):>9}")
        reasons = self.as_written.items()
        return "\n".join(
            [*lines, *(f"{name:>{width}}  as written: {why}" for name, why in reasons)]
        )


def centredness_of(state: KernelState, as_written: dict[str, str]) -> Centredness:
    """Centredness of the effects of a state, as a mean over chains that learned their own."""
    learned = state.adapt_state.coordinates
    if learned is None:
        return Centredness({}, as_written)
    centredness = {
        name: on_host(centred(learned.scales[name], pseudo.information))
        for name, pseudo in learned.pseudo.items()
        if pseudo is not None
    }
    if state.is_stacked:
        centredness = {name: np.mean(c, axis=0) for name, c in centredness.items()}
    return Centredness(centredness, as_written)


def reparam_config(mcmc: MCMC) -> dict[str, Any]:
    """The learned coordinates for NumPyro's handlers: ``{site: LocScaleReparam(centered)}``.

    With them any kernel samples the model in the coordinates that a warm-up has learned.

    Parameters
    ----------
    mcmc
        An ``MCMC(AutoNUTS(model), ...)`` that has run.

    Returns
    -------
    A reparametrization for each effect with a location and a scale on the real line. Those of
    positive sites, of covariances and of random walks have no counterpart in NumPyro.

    Raises
    ------
    TypeError, ValueError
        If the kernel learns no coordinates, or has not run.

    Examples
    --------
    >>> import jax, numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC, NUTS
    >>> from numpyro_fwd import AutoNUTS, reparam_config
    >>> def model():
    ...     tau = numpyro.sample("tau", dist.HalfNormal(1))
    ...     numpyro.sample("a", dist.Normal(0, tau).expand([3]).to_event(1))
    >>> mcmc = MCMC(AutoNUTS(model), num_warmup=300, num_samples=100, progress_bar=False)
    >>> mcmc.run(jax.random.key(0))
    >>> kernel = NUTS(numpyro.handlers.reparam(model, config=reparam_config(mcmc)))
    """
    kernel: Any = mcmc.sampler
    if not getattr(kernel, "learn_coordinates", False):
        raise TypeError(
            "mcmc must have a kernel that learns coordinates, such as numpyro_fwd.AutoNUTS; got "
            f"{type(kernel).__name__}."
        )
    centredness = kernel.centredness(mcmc)
    return {
        name: reparam.LocScaleReparam(c)
        for name, c in centredness.items()
        if name in kernel._effects.on_the_reals
    }
