"""The reference of the open-horizon samplers, which starts anew on every batch."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from blackjax_ext.checks import check_count
from blackjax_ext.smc import langevin_smc, sampler
from blackjax_ext.smc.l_kernels import LKernel
from blackjax_ext.smc.moves import Unadjusted
from blackjax_ext.smc.open_horizon import OpenHorizonInfo, OpenHorizonState
from blackjax_ext.smc.training import (
    Evaluation,
    build_evaluators,
    mean_energy,
    mean_loss,
    update_parameters,
)
from blackjax_ext.types import LogDensity
from numpyro_fwd.partial_bayes.open_horizon import GOHSMC
from numpyro_fwd.partial_bayes.training import TrainingState
from numpyro_fwd.types import Args, Kwargs, Model, SiteValues


class SGSMC(GOHSMC):
    """Stochastic-gradient sequential Monte Carlo: on every batch a sampler starts from the prior.

    Section 2.2 of the paper: draws from the prior are annealed to the posterior of the batch, and
    give the gradient (12). The paper adds the rows of the batch one by one. This is not possible
    with a NumPyro model: here the target after step k of T = `num_temperatures` contains the share
    k / T of the batch's log likelihood. Each step resamples if needed, then makes a Langevin move
    with its exact weight. The result is the posterior of one batch, scaled to all data. Cost: T + 1
    gradients per particle, and one of the parameters.

    Parameters
    ----------
    num_temperatures
        T.
    model, optim, num_particles, l_kernel, num_integration_steps, ess_threshold
        As in :class:`GOHSMC`.
    step_size
        epsilon of the moves; 0.01 by default.

    Examples
    --------
    >>> import jax, numpyro, numpyro.distributions as dist, optax
    >>> from numpyro_fwd import SGSMC
    >>> def model(y):
    ...     scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     with numpyro.plate("data", y.shape[0], subsample_size=100):
    ...         numpyro.sample("y", dist.Normal(mean, scale), obs=numpyro.subsample(y, 0))
    >>> y = 2.0 + 3.0 * jax.random.normal(jax.random.key(0), (200,))
    >>> smc = SGSMC(model, optax.adam(0.02), num_particles=50, step_size=0.05)
    >>> result = smc.run(jax.random.key(1), 500, y, progress_bar=False)
    >>> bool(abs(result.params["scale"] - 3.0) < 1.0)
    True
    """

    best_step_size = 0.01

    def __init__(
        self,
        model: Model,
        optim: optax.GradientTransformation,
        *,
        num_temperatures: int = 10,
        l_kernel: str | LKernel = "reversed",
        num_integration_steps: int = 1,
        ess_threshold: float = 0.5,
        **arguments: Any,
    ):
        check_count("num_temperatures", num_temperatures)
        if "weight_ess" in arguments:
            raise TypeError("weight_ess is for GOHSMC and OHSMC: SGSMC restarts at each batch.")
        super().__init__(model, optim, l_kernel=l_kernel, ess_threshold=ess_threshold, **arguments)
        self.num_temperatures = num_temperatures
        move = Unadjusted("langevin", l_kernel, num_integration_steps)
        self._annealing = langevin_smc.build_kernel(move, ess_threshold=ess_threshold)

    def _softening(self, state: TrainingState) -> None:
        """Particles begin anew at each batch."""

    def _step(
        self,
        rng_key: Array,
        key_batch: Array,
        inner: OpenHorizonState,
        step_size: Array | float,
        args: Args,
        kwargs: Kwargs,
    ) -> tuple[OpenHorizonState, OpenHorizonInfo]:
        key_prior, key_moves = jax.random.split(rng_key)
        params, view = inner.params, self._view()
        potential_fn = partial(view.potential_fn, model_args=args, model_kwargs=kwargs)
        z = view.draw(params, key_prior, self.num_particles, args, kwargs)
        densities = view.split_fn(params, key_batch, args, kwargs)
        state, infos = self._anneal(key_moves, z, densities, step_size)
        x, unravel = sampler.ravel(state.position)
        local: Evaluation = build_evaluators(potential_fn, params, key_batch, unravel)[1](x)
        weights = jnp.where(jnp.isfinite(local.logdensity), jnp.exp(state.log_weights), 0.0)
        loss = mean_loss(weights, local.logdensity)
        trained = params, inner.opt_state, loss
        energy = mean_energy(potential_fn, state.position, key_batch, weights)
        params, opt_state = update_parameters(self.optim, weights, local.slope, *trained, energy)
        after = state.log_weights, state.log_evidence
        local = local._replace(slope=None)
        new = OpenHorizonState(state.position, params, opt_state, local, *after)
        info = OpenHorizonInfo(
            loss,
            sampler.effective_sample_size(state.log_weights),
            jnp.any(infos.num_resampled > 0),
            jnp.mean(infos.acceptance_rate),
            weights > 0,
            jnp.any(infos.is_divergent),
            jnp.sum(infos.num_divergent),
            jnp.ones(()),
        )
        return new, info

    def _anneal(
        self,
        rng_key: Array,
        z: SiteValues,
        densities: tuple[LogDensity, LogDensity],
        step_size: Any,
    ):
        """Draws of the prior taken to the posterior of a batch in equal steps of temperature."""
        temperatures = jnp.arange(1, self.num_temperatures + 1) / self.num_temperatures

        def heat(state, pair):
            key_move, temperature = pair
            return self._annealing(key_move, state, *densities, step_size, temperature=temperature)

        keys = jax.random.split(rng_key, self.num_temperatures)
        return jax.lax.scan(heat, langevin_smc.init(z, *densities), (keys, temperatures))
