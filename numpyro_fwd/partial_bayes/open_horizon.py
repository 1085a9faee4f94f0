"""Train the parameters of a NumPyro model while particles sample its latents.

For models with ``numpyro.param`` and ``numpyro.sample`` sites, such as networks of which one layer
is Bayesian: ``init``, ``update`` and ``run`` as in ``numpyro.infer.SVI``.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from numpyro.infer import Predictive

from blackjax_ext.checks import check_count, check_positive, check_share
from blackjax_ext.smc import open_horizon
from blackjax_ext.smc.l_kernels import LKernel
from blackjax_ext.smc.open_horizon import OpenHorizonInfo, OpenHorizonState
from blackjax_ext.smc.training import check_optimizer
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import (
    SplitArguments,
    check_arguments,
    naming_arguments,
    split_arguments,
)
from numpyro_fwd.bridge.log_terms import check_rows, impossible_sites
from numpyro_fwd.bridge.partial_models import PartialModel, view_partial
from numpyro_fwd.bridge.separate_rows import check_rows_apart
from numpyro_fwd.partial_bayes.diagnostics import Softening, has_no_weights, warn_of
from numpyro_fwd.partial_bayes.predicting import Prediction, in_batches, latents_of, trained_model
from numpyro_fwd.partial_bayes.training import (
    Program,
    Result,
    TrainingState,
    check_resumable,
    first_state,
    loss_by,
    loss_on,
    result_of,
    split_validation,
    train,
)
from numpyro_fwd.types import Args, Kwargs, Model, SiteValues


class GOHSMC:
    r"""Guided open-horizon sequential Monte Carlo (Algorithm 3 of the paper on partial networks).

    Each step resamples the particles if their weights are uneven, moves them by an unadjusted
    Langevin step on the new batch, weighs them (by default with softened weights, which are not
    exact: see `weight_ess`), and updates the parameters by the weighted gradient
    (:mod:`blackjax_ext.smc.open_horizon`). Batches come from the model's subsample plate,
    ``numpyro.plate("data", N, subsample_size=B)``; all particles see the same rows.

    Parameters
    ----------
    model
        NumPyro model with ``param`` and ``sample`` sites; or ``random_flax_module`` with a prior on
        some layers, given as a dict.
    optim
        An optax transformation: with schedules, with ``optax.contrib.reduce_on_plateau``, which is
        given the loss of each step, or with a line search (``optax.lbfgs``), which looks at the
        loss of the particles, their weights and the batch of the step.
    num_particles
        Number of particles.
    step_size
        epsilon of the proposal: drift epsilon^2/2, noise epsilon. Or a schedule, a function of the
        number of updates so far, such as those of optax. None for 1 / sqrt(N), where N is the
        number of observed values, and at most 0.03: a posterior is about as wide, in a model of
        standardized data.
    l_kernel
        Backward kernel: "reversed", "random_walk" (the paper's eq. 10 to the letter), "gaussian",
        or a function.
    num_integration_steps
        Leapfrog steps of a move.
    ess_threshold
        Resample below this share of the particles.
    weight_ess
        Least share of the conditional effective sample size after the weights of one batch:
        weights that leave less are raised to the largest power below 1 that leaves this share.
        None for 0.99; 0 for the published weights, which are exact for the batch but collapse if
        it is small.

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
    best_step_size: float | None = None  # None: by the number of observed values

    def __init__(
        self,
        model: Model,
        optim: optax.GradientTransformation,
        *,
        num_particles: int = 100,
        step_size: float | Callable[[Array], Array] | None = None,
        l_kernel: str | LKernel = "reversed",
        num_integration_steps: int = 1,
        ess_threshold: float = 0.5,
        weight_ess: float | None = None,
    ):
        if not callable(model):
            raise TypeError(f"model must be callable; got {type(model).__name__}.")
        check_optimizer("optim", optim)
        check_count("num_particles", num_particles)
        step_size = self.best_step_size if step_size is None else step_size
        if callable(step_size):
            check_positive("step_size(0)", step_size(jnp.zeros((), jnp.int32)))
        elif step_size is not None:
            check_positive("step_size", step_size)
        check_share("ess_threshold", ess_threshold)
        check_count("num_integration_steps", num_integration_steps)
        self.model = model
        self.optim = optim
        self.num_particles = num_particles
        self.step_size = step_size
        self.num_integration_steps = num_integration_steps
        self.weight_ess = self.best_weight_ess if weight_ess is None else weight_ess
        self._kernel = open_horizon.build_kernel(
            self.proposal,
            guided=self.guided,
            l_kernel=l_kernel,
            num_integration_steps=num_integration_steps,
            ess_threshold=ess_threshold,
            weight_ess=self.weight_ess,
        )
        self._partial: PartialModel | None = None
        self._programs: dict[Any, Program] = {}

    def init(self, rng_key: Array, *args: Any, **kwargs: Any) -> TrainingState:
        """First state: parameters as the model makes them, particles drawn from the prior."""
        check_arguments(args, kwargs)
        rng_key, key_model, key_prior = jax.random.split(rng_key, 3)
        split = split_arguments(args, kwargs)
        with naming_arguments(args, kwargs):
            view = self._partial = view_partial(key_model, self.model, args, kwargs)
            start = self._kept("start", split, partial(self._start, split))
            state = start(split.arrays, key_prior, rng_key, view.params)
            self._check_rows(view.params, state.inner.position, args, kwargs)
            self._check_minibatches(view, state.inner.position, split)
        return state

    @staticmethod
    def _check_minibatches(view: PartialModel, position: SiteValues, split: SplitArguments) -> None:
        """Raise ValueError, by site, for rows of a minibatch whose density is not theirs alone."""

        def terms_of(args, kwargs, z, rows):
            return view.row_terms_fn(view.params, z, rows, args, kwargs)

        first = jax.tree.map(lambda leaf: leaf[0], position)
        check_rows_apart(terms_of, view.plates, split, first, is_seeded=True)

    def _start(self, split: SplitArguments) -> Function:
        """The program of the first state, which takes draws from the prior."""

        @jax.jit
        def start(arrays, key_prior, rng_key, params):
            args, kwargs = split.join(arrays)
            view = self._view()
            z = view.draw(params, key_prior, self.num_particles, args, kwargs)
            logprior_fn = view.split_fn(params, jax.random.key(0), args, kwargs)[0]
            return first_state(open_horizon.init(z, params, logprior_fn, self.optim), rng_key)

        return start

    def update(
        self, state: TrainingState, *args: Any, **kwargs: Any
    ) -> tuple[TrainingState, OpenHorizonInfo]:
        """State after one batch: particles moved and weighed, then parameters updated."""
        rng_key, key_step, key_batch = jax.random.split(state.rng_key, 3)
        step_size = self._step_size(state.i)
        inner, info = self._step(key_step, key_batch, state.inner, step_size, args, kwargs)
        return state._replace(inner=inner, rng_key=rng_key, i=state.i + 1), info

    def run(
        self,
        rng_key: Array,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        init_state: TrainingState | None = None,
        validation: Args | Function | None = None,
        validate_every: int = 100,
        patience: int | None = None,
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
        patience
            Stop after that many validations in a row without a new least loss, those before
            `init_state` included; None to make all steps.

        Raises
        ------
        ValueError, TypeError
            For an argument; for values that are not finite, by row; and if no particle has a
            finite density at the first step.

        Warns
        -----
        UserWarning
            If the training diverged, or if a few particles are the ancestors of all.
        """
        check_count("num_steps", num_steps)
        check_count("validate_every", validate_every)
        if patience is not None:
            check_count("patience", patience)
            if validation is None:
                raise ValueError(
                    f"patience counts validations: give validation, too; got {patience}."
                )
        first = self.init(rng_key, *args, **kwargs)
        if init_state is not None:
            check_resumable(init_state, first)
        split = split_arguments(args, kwargs)
        loss_fn = self._validator(validation, kwargs)
        if isinstance(validation, tuple):
            self._check_rows(first.inner.params, first.inner.position, validation, kwargs)
        result = train(
            self._kept("advance", split, partial(self._advance, split)),
            first if init_state is None else init_state,
            num_steps,
            split.arrays,
            self._view().constrain_params,
            loss_fn,
            validate_every,
            patience,
            progress_bar,
        )
        if has_no_weights(result):
            self._raise_lost(result.state, args, kwargs)
        warn_of(result, self.num_particles, self._view().num_values, self._softening(result.state))
        return result

    def _softening(self, state: TrainingState) -> Softening | None:
        """How the last step moved and weighed; None for particles that follow no gradient."""
        if self.proposal != "langevin":
            return None
        step_size = float(self._step_size(state.i))
        return Softening(step_size * self.num_integration_steps, self.weight_ess)

    def _check_rows(
        self, params: SiteValues, position: SiteValues, args: Args, kwargs: Kwargs
    ) -> None:
        """Raise ValueError, by row, for arguments that are not finite where a density needs them.

        Rows that are not numbers are so for every particle: a few are asked.
        """
        # particles that are asked whether a row has a density
        few = jax.tree.map(lambda leaf: leaf[:4], position)
        check_rows(partial(self._view().observed_fn, params, few), args, kwargs)

    def _raise_lost(self, state: TrainingState, args: Args, kwargs: Kwargs) -> None:
        """Raise ValueError: no particle had a finite density from the start."""
        view, params = self._view(), state.inner.params
        start = view.draw(params, state.rng_key, self.num_particles, args, kwargs)
        bad = impossible_sites(view.observed_fn(params, start, args, kwargs))
        where = f", and no prior draw has one at the sites {bad}" if bad else ""
        raise ValueError(
            f"none of the {self.num_particles} particles had a finite density at the first step, "
            f"so they cannot represent a posterior{where}. Check the data against the "
            "supports, or take more particles, a shorter step_size or larger batches."
        )

    def _kept(self, name: str, split: SplitArguments, build: Function) -> Any:
        """A compiled program, kept if the arguments that are part of it can be told apart."""
        if split.key is None:
            return build()
        return self._programs.setdefault((name, split.key), build())

    def _advance(self, split: SplitArguments) -> Program:
        """The updates: arrays are arguments, a batch size, say, is part of the program."""

        @partial(jax.jit, static_argnums=2)
        def advance(arrays, state, num):
            args, kwargs = split.join(arrays)

            def step(state, _):
                state, info = self.update(state, *args, **kwargs)
                return state, (info.loss, info.ess, info.weight_power)

            return jax.lax.scan(step, state, length=num)

        return advance

    def _validator(self, validation: Args | Function | None, kwargs: Kwargs) -> Function | None:
        """The validation loss of a state; None without data or function for it."""
        if callable(validation):
            return self._programs.setdefault(
                ("validation", validation), loss_by(self._view, validation)
            )
        if validation is None:
            return None
        split = split_validation(validation, kwargs)
        program = self._kept("validation", split, partial(loss_on, self._view, split))
        return partial(program, split.arrays)

    def _step(
        self,
        rng_key: Array,
        key_batch: Array,
        inner: OpenHorizonState,
        step_size: Array | float,
        args: Args,
        kwargs: Kwargs,
    ) -> tuple[OpenHorizonState, OpenHorizonInfo]:
        """State and information after one step on the batch that `key_batch` draws."""
        potential_fn = partial(self._view().potential_fn, model_args=args, model_kwargs=kwargs)
        return self._kernel(rng_key, inner, potential_fn, self.optim, key_batch, step_size)

    def _step_size(self, i: Array) -> Array | float:
        """Step size of the update that follows `i` of them."""
        if self.step_size is None:
            # the longest of those that are chosen by the number of observed values
            return min(max(self._view().num_values, 1.0) ** -0.5, 0.03)
        return self.step_size(i) if callable(self.step_size) else self.step_size

    def get_params(self, state: TrainingState) -> dict[str, Any]:
        """Values of the param sites, without the layers of a network that have a prior."""
        return self._view().constrain_params(state.inner.params)

    def result(self, state: TrainingState) -> Result:
        """Result of a training that ends with `state`, its histories empty.

        For a state that was read from a checkpoint, or as the form of a result that is read.
        """
        nothing = jnp.zeros(0)
        return result_of(state, self._view().constrain_params, nothing, nothing, nothing, nothing)

    def __getstate__(self) -> bytes:
        """The functions themselves where pickle would ask for a name, as those of an optimizer.

        Neither what was seen of a model's data nor compiled programs are kept.
        """
        return by_value().dumps({**self.__dict__, "_partial": None, "_programs": {}})

    def __setstate__(self, state: bytes) -> None:
        """Take over what :meth:`__getstate__` kept."""
        self.__dict__.update(by_value().loads(state))

    def predictive(
        self,
        rng_key: Array,
        result: Result,
        *args: Any,
        num_samples: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
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
        model = trained_model(self.model, result.params, args, kwargs)
        latents = latents_of(key_resample, model, result, num_samples, args, kwargs)
        return Predictive(model, latents)(key_predict, *args, **kwargs)

    def predict(
        self,
        rng_key: Array,
        result: Result,
        *args: Any,
        num_samples: int | None = None,
        quantiles: tuple[float, ...] = (0.05, 0.5, 0.95),
        rows_at_once: int | None = None,
        **kwargs: Any,
    ) -> Prediction:
        """Draws, means, quantiles and log scores for new rows.

        Parameters
        ----------
        rng_key
            Key of the particles and of the draws.
        result
            What :meth:`run` returned.
        args, kwargs
            Arguments of the model. With its observations, which are scored and otherwise not
            looked at; without them, as the model allows, there is no score.
        num_samples
            Number of draws, of particles by their weights; None for as many as there are particles.
        quantiles
            Which quantiles, each in [0, 1].
        rows_at_once
            How many rows to predict at once, the memory being that of so many rows for every
            particle: of each array among the arguments that has as many rows as the first of them,
            so many are given to the model. None for all.

        Returns
        -------
        Prediction
            Dicts by observed site: `draws` (num_samples, ...), `mean` (...), `quantiles`
            (number of quantiles, ...), and `log_score` (...), the log density of each value under
            the mixture of the particles.

        Raises
        ------
        ValueError, TypeError
            For a quantile or a number that cannot be, and for a site that is not along the rows
            where a few are predicted at a time.
        """
        for quantile in quantiles:
            check_share("quantiles", quantile)
        for name, number in (("num_samples", num_samples), ("rows_at_once", rows_at_once)):
            if number is not None:
                check_count(name, number)
        check_arguments(args, kwargs)
        with naming_arguments(args, kwargs):
            return in_batches(
                *(rng_key, self.model, result, args, kwargs),
                num_samples=num_samples,
                quantiles=quantiles,
                rows_at_once=rows_at_once,
            )

    def _view(self) -> PartialModel:
        if self._partial is None:
            raise RuntimeError("call init or run before update: they look at the model.")
        return self._partial


def by_value() -> ModuleType:
    """The package cloudpickle, which pickles functions that have no name.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        return import_module("cloudpickle")
    except ImportError as error:
        raise ImportError(
            "a sampler with an optimizer is pickled with the package cloudpickle, which is "
            "missing: install it, or install this package with its extra nn."
        ) from error
