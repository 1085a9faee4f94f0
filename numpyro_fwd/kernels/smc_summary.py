"""Summary of a population by site, with its errors: no chains, hence no R-hat."""

from typing import Any, NamedTuple

import numpy as np
from numpyro.infer import MCMC

from blackjax_ext.checks import check_share
from blackjax_ext.meshes import on_host
from numpyro_fwd.kernels.smc import LangevinSMC


class PopulationSummary(NamedTuple):
    """Summary of a run of :class:`LangevinSMC`; ``print`` shows it as a table.

    Attributes
    ----------
    sites
        For each site a dict of arrays in the shape of the site: `mean`, `sd`, the quantiles, named
        as in "5.0%", and `ess`.
    log_evidence, log_evidence_error
        Logarithm of the evidence, and its standard error.
    num_particles, num_draws
        Particles of a population, and populations.
    num_temperatures
        Temperatures of the annealing.
    least_ess
        Least effective sample size at any of them, before resampling.
    genealogical_ess, num_ancestors
        Effective number of draws of the prior that the particles descend from, and their number.
    mixed_ancestors
        What `genealogical_ess` would be if the moves of the annealing had mixed.
    """

    sites: dict[str, dict[str, np.ndarray]]
    log_evidence: float
    log_evidence_error: float
    num_particles: int
    num_draws: int
    num_temperatures: int
    least_ess: float
    genealogical_ess: float
    num_ancestors: int
    mixed_ancestors: float

    def __str__(self) -> str:
        """A table with a row for each number of each site, and what holds for all of them."""
        names = [
            name if not index else f"{name}[{','.join(map(str, index))}]"
            for name, columns in self.sites.items()
            for index in np.ndindex(columns["mean"].shape)
        ]
        width = max(map(len, names), default=0)
        heads = list(next(iter(self.sites.values()), {}))
        flat = [
            zip(*map(np.ravel, columns.values()), strict=True) for columns in self.sites.values()
        ]
        rows = [[f"{value:.2f}" for value in row] for rows in flat for row in rows]
        lines = [
            f"{name:>{width}}" + "".join(f"{text:>10}" for text in row)
            for name, row in zip(["", *names], [heads, *rows], strict=True)
        ]
        return "\n".join([*lines, "", self.facts()])

    def facts(self) -> str:
        """Facts that are no property of a site."""
        populations = "population" if self.num_draws == 1 else "populations"
        return (
            f"log evidence {self.log_evidence:.2f}, standard error {self.log_evidence_error:.2f}\n"
            f"{self.num_particles} particles, {self.num_draws} {populations}, "
            f"{self.num_temperatures} temperatures; least effective sample size "
            f"{self.least_ess:.0f}\n"
            f"{self.num_ancestors} ancestors, effectively {self.genealogical_ess:.0f}, and "
            f"{self.mixed_ancestors:.0f} if moves mix"
        )


def smc_summary(mcmc: MCMC, prob: float = 0.9) -> PopulationSummary:
    r"""Mean, sd, quantiles and effective sample size of each site, and the evidence with its error.

    Use it instead of ``mcmc.print_summary()``, which treats particles as chains: its R-hat is
    meaningless then, and it needs at least four draws. Here one population is enough.

    The effective sample size of a number :math:`\varphi` compares its variance with that of its
    mean, which the families of the particles tell (Lee and Whiteley 2018): with :math:`T_k` the sum
    of :math:`(\varphi - \bar\varphi) / n` over the descendants of draw k in all n values, the
    variance of the mean is :math:`\sum_k T_k^2 / (1 - \sum_k G_k^2)`, and :math:`G_k` their share.
    It does not see modes that no particle has found, or that all particles have left.

    Parameters
    ----------
    mcmc
        An ``MCMC(LangevinSMC(model), ...)`` that has run.
    prob
        Share of the draws between the outer quantiles.

    Returns
    -------
    A :class:`PopulationSummary`.

    Raises
    ------
    TypeError, ValueError
        If the kernel is another one, if it has not run, or for a share outside of [0, 1].

    Examples
    --------
    >>> import jax, numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import LangevinSMC, smc_summary
    >>> def model():
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mean, 1), obs=2.0)
    >>> mcmc = MCMC(LangevinSMC(model), num_warmup=2, num_samples=1, num_chains=500,
    ...             chain_method="vectorized", progress_bar=False)
    >>> mcmc.run(jax.random.key(0))
    >>> found = smc_summary(mcmc)
    >>> list(found.sites["mean"])
    ['mean', 'sd', '5.0%', '50.0%', '95.0%', 'ess']
    >>> bool(abs(found.log_evidence + 3.25) < 5 * found.log_evidence_error)
    True
    """
    check_share("prob", prob)
    if not isinstance(mcmc.sampler, LangevinSMC):
        raise TypeError(f"mcmc must have a LangevinSMC; got {type(mcmc.sampler).__name__}.")
    if mcmc.last_state is None:
        raise ValueError("mcmc must have run: call mcmc.run first.")
    state = mcmc.last_state
    ancestors = on_host(mcmc.get_extra_fields(group_by_chain=True)["ancestors"])
    num_particles, num_draws = ancestors.shape
    samples = mcmc.get_samples(group_by_chain=True)
    return PopulationSummary(
        {name: summary_columns(on_host(draws), ancestors, prob) for name, draws in samples.items()},
        float(state.log_evidence[0]),
        float(state.log_evidence_error[0]),
        num_particles,
        num_draws,
        int(state.num_temperatures[0]),
        float(state.least_ess[0]),
        float(state.genealogical_ess[0]),
        np.unique(on_host(state.ancestors)).size,
        float(state.mixed_ancestors[0]),
    )


def summary_columns(draws: np.ndarray, ancestors: np.ndarray, prob: float) -> dict[str, Any]:
    """The columns of a site, from draws that lead with particles and populations."""
    values = draws.reshape(-1, *draws.shape[2:]).astype(np.float64)
    tail = 0.5 * (1.0 - prob)
    levels = [tail, 0.5, 1.0 - tail]
    quantiles = np.quantile(values, levels, axis=0)
    names = [f"{100 * level:.1f}%" for level in levels]
    return {
        "mean": values.mean(axis=0),
        "sd": values.std(axis=0),
        **dict(zip(names, quantiles, strict=True)),
        "ess": family_ess(values, ancestors.reshape(-1)),
    }


def family_ess(values: np.ndarray, ancestors: np.ndarray) -> np.ndarray:
    """Effective sample size of the means of `values`, which lead with particles in families."""
    families, index, counts = np.unique(ancestors, return_inverse=True, return_counts=True)
    centred = (values - values.mean(axis=0)) / len(values)
    sums = np.zeros((families.size, *values.shape[1:]))
    np.add.at(sums, index, centred)
    spread = 1.0 - np.sum((counts / counts.sum()) ** 2)
    if families.size == 1:  # one family says nothing of its mean
        return np.full(values.shape[1:], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return values.var(axis=0) * spread / np.sum(sums**2, axis=0)
