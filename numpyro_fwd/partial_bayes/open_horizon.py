"""Train the parameters of a NumPyro model while particles sample its latents.

For models with ``numpyro.param`` and ``numpyro.sample`` sites, such as networks of which one layer
is Bayesian: ``init``, ``update`` and ``run`` as in ``numpyro.infer.SVI``.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import jax
import jax.numpy as jnp
import optax
from blackjax.smc.resampling import systematic
from jax import Array
from numpyro.handlers import seed
from numpyro.infer import Predictive

from blackjax_ext.checks import check_count, check_positive, check_share
from blackjax_ext.smc import open_horizon, sampler
from blackjax_ext.smc.l_kernels import LKernel
from blackjax_ext.smc.open_horizon import OpenHorizonInfo, OpenHorizonState
from blackjax_ext.smc.training import check_optimizer
from numpyro_fwd.bridge.arguments import check_arguments, naming_arguments, split_arguments
from numpyro_fwd.bridge.partial_models import PartialModel, on_all_rows, view_partial, with_trained
from numpyro_fwd.bridge.priors import constrain
from numpyro_fwd.partial_bayes.training import (
    Program,
    Result,
    TrainingState,
    begin,
    result_of,
    train,
    validator,
)

__all__ = ["GOHSMC", "OHSMC", "Result", "TrainingState"]

LOW_SHARE = 0.1  # of the particles: an effective sample size below it is warned of


class GOHSMC:
    r"""Guided open-horizon sequential Monte Carlo (Algorithm 3 of the paper on partial networks).

    Each step resamples the particles if their weights are uneven, moves them by an unadjusted
    Langevin step on the new batch, weighs them exactly, and updates the parameters by the weighted
    gradient (:mod:`blackjax_ext.smc.open_horizon`). Batches come from the model's subsample plate,
    ``numpyro.plate("data", N, subsample_size=B)``; all particles see the same rows.

    Parameters
    ----------
    model
        NumPyro model with ``param`` and ``sample`` sites; or ``random_flax_module`` with a prior on
        some layers, given as a dict.
    optim
        An optax transformation.
    num_particles
        Number of particles.
    step_size
        epsilon of the proposal: drift epsilon^2/2, noise epsilon.
    l_kernel
        Backward kernel: "reversed", "random_walk" (the paper's eq. 10 to the letter), "gaussian",
        or a function.
    num_integration_steps
        Leapfrog steps of a move.
    ess_threshold
        Resample below this share of the particles.
    weight_ess
        Share of the conditional effective sample size that one batch may leave: weights of a batch
        that leave less are taken to a power below 1, the largest that leaves it. None for 0.99; 0
        for the published weights, which are exact for the batch, and collapse if it is small.

    Raises
    ------
    ValueError, TypeError
        For an argument, or for a model that cannot be trained, by site.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
    >>> from numpyro_fwd import GOHSMC
    >>> def model(y):
    ...     scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     with numpyro.plate("data", y.shape[0], subsample_size=20):
    ...         numpyro.sample("y", dist.Normal(mean, scale), obs=numpyro.subsample(y, 0))
    >>> y = 2.0 + 3.0 * jax.random.normal(jax.random.key(0), (200,))
    >>> smc = GOHSMC(model, optax.adam(0.02), num_particles=50, step_size=0.05)
    >>> result = smc.run(jax.random.key(1), 500, y, progress_bar=False)
    >>> bool(abs(result.params["scale"] - 3.0) < 0.6)
    True
    """

    proposal = "langevin"
    guided = True
    best_weight_ess = 0.99

    def __init__(
        self,
        model: Callable,
        optim: optax.GradientTransformation,
        *,
        num_particles: int = 100,
        step_size: float = 0.01,
        l_kernel: str | LKernel = "reversed",
        num_integration_steps: int = 1,
        ess_threshold: float = 0.5,
        weight_ess: float | None = None,
    ):
        if not callable(model):
            raise TypeError(f"model must be callable; got {type(model).__name__}.")
        check_optimizer("optim", optim)
        check_count("num_particles", num_particles)
        check_positive("step_size", step_size)
        check_share("ess_threshold", ess_threshold)
        check_count("num_integration_steps", num_integration_steps)
        self.model = model
        self.optim = optim
        self.num_particles = num_particles
        self.step_size = step_size
        self._kernel = open_horizon.build_kernel(
            self.proposal,
            guided=self.guided,
            l_kernel=l_kernel,
            num_integration_steps=num_integration_steps,
            ess_threshold=ess_threshold,
            weight_ess=self.best_weight_ess if weight_ess is None else weight_ess,
        )
        self._partial: PartialModel | None = None
        self._programs: dict[Any, Program] = {}

    def init(self, rng_key: Array, *args: Any, **kwargs: Any) -> TrainingState:
        """First state: parameters as the model makes them, particles drawn from the prior."""
        check_arguments(args, kwargs)
        rng_key, key_model, key_prior = jax.random.split(rng_key, 3)
        with naming_arguments(args, kwargs):
            view = self._partial = view_partial(key_model, self.model, args, kwargs)
            z = view.draw(view.params, key_prior, self.num_particles, args, kwargs)
            inner = open_horizon.init(z, view.params, view.logprior_fn, self.optim)
        return begin(inner, rng_key)

    def update(
        self, state: TrainingState, *args: Any, **kwargs: Any
    ) -> tuple[TrainingState, OpenHorizonInfo]:
        """State after one batch: particles moved and weighed, then parameters updated."""
        rng_key, key_step, key_batch = jax.random.split(state.rng_key, 3)
        inner, info = self._step(key_step, key_batch, state.inner, args, kwargs)
        return state._replace(inner=inner, rng_key=rng_key), info

    def run(
        self,
        rng_key: Array,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        init_state: TrainingState | None = None,
        validation: tuple | Callable | None = None,
        validate_every: int = 100,
        **kwargs: Any,
    ) -> Result:
        """Trained parameters and particles, after `num_steps` updates.

        Parameters
        ----------
        rng_key
            Key of the start; a state to go on from has its own.
        num_steps
            Number of updates.
        args, kwargs
            Arguments of the model.
        progress_bar
            Whether to show a bar with the loss and the effective sample size.
        init_state
            State to go on from; None for the start.
        validation
            Arguments of the model, with data that the training does not see, in place of `args`:
            every `validate_every` steps the loss is minus the mean log density of the observed
            values under the mixture of the particles. Or a loss of one's own, a function of
            (params, particles, log_weights) as they are in the result. The result holds the
            parameters and the particles with the least loss so far, `init_state` included.
        validate_every
            Steps between validations; the last step is always followed by one.
        """
        check_count("num_steps", num_steps)
        check_count("validate_every", validate_every)
        first = self.init(rng_key, *args, **kwargs)
        split = split_arguments(args, kwargs)
        loss_fn = validator(self._view(), validation, kwargs)
        result = train(
            self._program(split),
            first if init_state is None else init_state,
            num_steps,
            split.arrays,
            self._view().constrain_params,
            loss_fn,
            validate_every,
            progress_bar,
        )
        self._check_weights(result.state, args, kwargs)
        self._warn(result)
        return result

    def _warn(self, result: Result) -> None:
        """Warn of particles that are copies of a few."""
        # copies of one particle have equal weights: the least size tells, not the last
        ess = float(jnp.min(result.ess))
        if ess < LOW_SHARE * self.num_particles:
            warnings.warn(
                f"the effective sample size fell to {ess:.1f} of {self.num_particles} particles: a "
                "few of them are the ancestors of all that came after. Take larger batches, a "
                "shorter step_size, or a weight_ess closer to 1.",
                stacklevel=3,
            )

    def _check_weights(self, state: TrainingState, args: tuple, kwargs: dict) -> None:
        """Raise ValueError if there was a step at which no particle had a finite density."""
        if not jnp.isneginf(state.inner.log_evidence):
            return
        view = self._view()
        start = view.draw(state.inner.params, state.rng_key, self.num_particles, args, kwargs)
        bad = view.impossible_fn(state.inner.params, start, args, kwargs)
        where = f", and no prior draw has one at the sites {bad}" if bad else ""
        raise ValueError(
            f"none of the {self.num_particles} particles had a finite density at some step, so "
            f"that they are no draws of a posterior{where}. Check the data against the supports, "
            "or take more particles, a shorter step_size or larger batches."
        )

    def _program(self, split: Any) -> Program:
        """The compiled updates: arrays are arguments, a batch size, say, is part of the program."""
        if split.key is not None and split.key in self._programs:
            return self._programs[split.key]

        @partial(jax.jit, static_argnums=2)
        def advance(arrays, state, num):
            args, kwargs = split.join(arrays)

            def step(state, _):
                state, info = self.update(state, *args, **kwargs)
                return state, (info.loss, info.ess)

            return jax.lax.scan(step, state, length=num)

        if split.key is not None:
            self._programs[split.key] = advance
        return advance

    def _step(
        self, rng_key: Array, key_batch: Array, inner: OpenHorizonState, args: tuple, kwargs: dict
    ) -> tuple[OpenHorizonState, OpenHorizonInfo]:
        """State and information after one step on the batch that `key_batch` draws."""
        potential_fn = self._potential_fn(args, kwargs)
        return self._kernel(rng_key, inner, potential_fn, self.optim, key_batch, self.step_size)

    def _potential_fn(self, args: tuple, kwargs: dict) -> Callable:
        view = self._view()

        def potential_fn(params, position, key_batch):
            return view.potential_fn(params, position, key_batch, args, kwargs)

        return potential_fn

    def get_params(self, state: TrainingState) -> dict:
        """Values of the param sites, without the layers of a network that have a prior."""
        return self._view().constrain_params(state.inner.params)

    def result(self, state: TrainingState) -> Result:
        """What a training leaves that ends with `state`, its histories empty.

        For a state that was read from a checkpoint, or as the form of a result that is read.
        """
        nothing = jnp.zeros(0)
        return result_of(state, self._view().constrain_params, nothing, nothing, nothing)

    def __getstate__(self) -> bytes:
        """The functions themselves where pickle would ask for a name, as those of an optimizer.

        Neither what was seen of a model's data nor compiled programs are kept.
        """
        return cloudpickle.dumps({**self.__dict__, "_partial": None, "_programs": {}})

    def __setstate__(self, state: bytes) -> None:
        """Take over what :meth:`__getstate__` kept."""
        self.__dict__.update(cloudpickle.loads(state))

    def predictive(
        self,
        rng_key: Array,
        result: Result,
        *args: Any,
        num_samples: int | None = None,
        **kwargs: Any,
    ) -> dict:
        """Predictions with the trained parameters and particles drawn by their weights.

        Parameters
        ----------
        rng_key
            Key of the particles and of the predictions.
        result
            What :meth:`run` returned.
        args, kwargs
            Arguments of the model, without its observations; predictions are of all rows, also
            where the model subsamples.
        num_samples
            Number of particles to draw; None for as many as there are.

        Notes
        -----
        Latents and parameters both come from `result`: neither can be left out.
        """
        key_resample, key_predict = jax.random.split(rng_key)
        population = sampler.Population(result.particles, result.log_weights, jnp.zeros(()))
        population = sampler.resample(key_resample, population, systematic, num_samples)
        model = with_trained(on_all_rows(self.model), result.params, args, kwargs)
        values = constrain(seed(model, jax.random.key(0)), args, kwargs)
        latents = jax.vmap(values)(population.particles)
        latents = {name: latents[name] for name in population.particles}
        return Predictive(model, latents)(key_predict, *args, **kwargs)

    def _view(self) -> PartialModel:
        if self._partial is None:
            raise RuntimeError("call init or run before update: they look at the model.")
        return self._partial


class OHSMC(GOHSMC):
    """Open-horizon sequential Monte Carlo with random-walk moves; arguments as in :class:`GOHSMC`.

    Only weights tell a random walk of the data: `weight_ess` is 0 by default, as published.

    Zhao et al. 2024, with the exact weight of a random walk. Cost: one gradient in the parameters
    per particle, none in the latents.
    """

    proposal = "random_walk"
    guided = False
    best_weight_ess = 0.0
