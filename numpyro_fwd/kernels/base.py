"""Any BlackJAX algorithm as a NumPyro ``MCMCKernel``, with a warm-up for first-order kernels."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.infer import MCMC, init_to_uniform
from numpyro.infer.mcmc import MCMCKernel

from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.mcmc.derivatives import Wanted
from blackjax_ext.programs import compiled_soon, keeping
from blackjax_ext.raising import Raised, warning_after
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import naming_arguments, run_with, split_arguments
from numpyro_fwd.bridge.fingerprints import Fingerprint, KnownPrograms, fingerprint, is_other
from numpyro_fwd.bridge.numpyro_private import identity, is_prng_key
from numpyro_fwd.bridge.starts import REMEDY, check_start, explaining, explaining_shapes
from numpyro_fwd.bridge.traces import imputing
from numpyro_fwd.bridge.views import View, view_model, view_potential
from numpyro_fwd.kernels.chains import (
    KernelState,
    as_chains,
    first_position,
    first_state,
    made_anew,
    step_chains,
    with_chains,
    with_types_of,
)
from numpyro_fwd.kernels.notices import InPlace, check_data
from numpyro_fwd.kernels.options import (
    AS_IT_IS_DONE,
    INSTEAD,
    check_options,
    describe,
    full_signature,
)
from numpyro_fwd.kernels.running_mcmc import check_arguments_of_loop, status_line
from numpyro_fwd.kernels.strategy import Motionless, Run, Source, Strategy, WholeDensity, split_each
from numpyro_fwd.kernels.tuning import DenseMass, GivenMetric, Tuning, check_metric_options
from numpyro_fwd.meshes import check_run, over_chains
from numpyro_fwd.types import Args, Kwargs, Model

if TYPE_CHECKING:
    from numpyro_fwd.kernels.coordinates import Centredness, Effects

MOST_KEPT = 32  # programs of starts that a kernel keeps


class BlackJAXKernel(MCMCKernel):
    r"""Kernel for ``numpyro.infer.MCMC`` from a BlackJAX algorithm.

    Works for every algorithm whose kernel is ``(rng_key, state, logdensity_fn, **parameters)``.
    A parameter called `step_size` or `inverse_mass_matrix` is adapted in the warm-up unless it is
    fixed here; the others are passed on as they are given.

    Parameters
    ----------
    model
        NumPyro model; exactly one of `model` and `potential_fn` must be given.
    algorithm
        BlackJAX algorithm with ``init`` and ``build_kernel``: ``blackjax.hmc``, ``blackjax.rmhmc``,
        ``blackjax_ext.fmala``, ... One without an acceptance rate, such as ``blackjax.mclmc``,
        cannot be adapted and needs ``adapt_step_size=False`` with a step size from a tuning of its
        own.
    options
        See :class:`numpyro_fwd.kernels.options.KernelOptions`.
    differentiation
        "reverse"; "forward" for models without a reverse mode, which is then never used, where
        BlackJAX's own algorithms get gradients from D JVPs; or "none" for algorithms that need no
        derivative, where the warm start uses what the model has. A model that has gradients and no
        forward mode, as by a ``custom_vjp``, needs no setting: their differences are its curvature.
    learn_coordinates
        Step in coordinates of the effects of the model given pseudo-observations, which the
        warm-up learns from draws and gradients (:mod:`blackjax_ext.coordinates.laws`); for
        algorithms that take gradients, such as ``blackjax.hmc``.
    parameters
        Further parameters of the algorithm's kernel or ``build_kernel``.

    Raises
    ------
    ValueError, TypeError
        For an argument or a model that cannot be sampled, by name.

    Examples
    --------
    >>> import blackjax, jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import BlackJAXKernel
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> kernel = BlackJAXKernel(model, blackjax.hmc, num_integration_steps=8)
    >>> mcmc = MCMC(kernel, num_warmup=300, num_samples=300, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]))
    >>> bool(abs(mcmc.get_samples()["mean"].mean() - 2.0) < 0.2)
    True
    """

    sample_field = "z"
    default_fields = ("z", "diverging")
    # acceptance probability to adapt to, a number or a function of the number of dimensions
    best_accept_prob: float | Callable[[int], float] = 0.65
    # no step size is longer
    longest_step = math.inf
    # whether trajectories are doubled until they turn
    is_doubling = False
    # whether steps have parameters that chains share, for which a key is drawn: step_parameters
    has_step_parameters = False
    # fields of the algorithm's state that the warm-up made and that `refresh` leaves as they are
    kept_fields: tuple[str, ...] = ()
    # what to try where chains do not move
    advice = (
        "Give a higher target_accept_prob, which makes steps shorter; where a scale of a hierarchy "
        "may tend to zero, use AutoNUTS or numpyro.infer.reparam.LocScaleReparam; where covariates "
        "are far from zero, centre them; or use numpyro.infer.NUTS."
    )
    # whether the algorithm, if it is not of `blackjax_ext`, is known to accept a full covariance
    takes_matrices = False
    # whether dense_mass=None means more than variances beyond 64 dimensions, if it is adapted
    correlates_many = False
    # what is known of the rows of a model while a start is made
    _rows: Any = None
    # options whose defaults are this kernel's own
    option_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __init__(
        self,
        model: Model | None = None,
        algorithm: Any = None,
        *,
        potential_fn: Function | None = None,
        step_size: float = 1.0,
        inverse_mass_matrix: GivenMetric = None,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        dense_mass: DenseMass = None,
        target_accept_prob: float | None = None,
        init_strategy: Function = init_to_uniform,
        warm_start: bool = True,
        differentiation: Wanted = "reverse",
        strategy: Strategy | None = None,
        chain_batch_size: int | None = None,
        learn_coordinates: bool = False,
        **parameters: Any,
    ):
        numbers = step_size, target_accept_prob, chain_batch_size
        check_options(model, potential_fn, differentiation, *numbers)
        check_metric_options(dense_mass, inverse_mass_matrix)
        self._model = model
        self._potential_fn = potential_fn
        self._target_accept_prob = target_accept_prob
        self._init_strategy = init_strategy
        self._warm_start = warm_start
        self._differentiation: Wanted = differentiation
        self._strategy: Strategy = strategy or WholeDensity(differentiation)
        self.learn_coordinates = learn_coordinates
        self._chain_batch_size = chain_batch_size
        parameters = {n: v for n, v in parameters.items() if AS_IT_IS_DONE.get(n, self) is not v}
        self._algorithm = Algorithm(algorithm, parameters)
        self._algorithm.check(inspect.signature(type(self)).parameters, INSTEAD)
        self._tuning = Tuning(
            *(step_size, inverse_mass_matrix, adapt_step_size, adapt_mass_matrix, dense_mass),
            self._goal,
            self.longest_step,
            self.is_doubling,
            self.takes_matrices or self._algorithm.is_own,
            self.correlates_many,
        )
        self._reset()

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        cls.__signature__ = full_signature(cls)
        describe(cls)

    def _reset(self) -> None:
        self._view: View | None = None
        self._started_from: Source | None = None
        self._sample_fn: Function | None = None  # MCMC initializes again while this is None
        self._programs: dict[Any, Function] = {}
        self._kept = KnownPrograms(MOST_KEPT)
        self._raised = Raised()
        self._in_place = InPlace()
        self._has_coordinates = True
        self._effects: Effects | None = None
        if self.learn_coordinates:
            from numpyro_fwd.kernels import coordinates  # which other kernels do not need

            self._effects = coordinates.Effects(self._strategy, self._recorded)

    @property
    def model(self) -> Model | None:
        """The model, as given."""
        return self._model

    @property
    def _viewed(self) -> Model | None:
        """The model whose latents are the coordinates of chains."""
        return None if self._model is None else imputing(self._model)

    @property
    def _strategy_of_run(self) -> Strategy:
        """The strategy, unless there is nothing to sample or are coordinates to learn."""
        if not self._has_coordinates:
            return Motionless()
        return self._effects if self._effects and self._effects.names else self._strategy

    def get_diagnostics_str(self, state: KernelState) -> str:
        """Step size and acceptance for the progress bar."""
        step_size, rate = state.adapt_state.step_size, state.mean_accept_prob
        return f"step size {step_size:.2e}. acc. prob={rate:.2f}"

    def _goal(self, size: int) -> float:
        """Acceptance probability to adapt to in `size` dimensions."""
        given = self._target_accept_prob
        best = self.best_accept_prob if given is None else given
        return best(max(size, 1)) if callable(best) else best

    def postprocess_fn(self, model_args: Args, model_kwargs: Kwargs | None) -> Function:
        """Map from unconstrained positions to the sites' supports and deterministic sites."""
        view, keywords = self._view, model_kwargs or {}
        return identity if view is None else view.postprocess_fn(*model_args, **keywords)

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any,
        model_args: Args,
        model_kwargs: Kwargs | None,
    ) -> KernelState:
        """First state: one chain for a key, vectorized chains for a batch of keys."""
        given = model_args, model_kwargs
        check_run(type(self).__name__, rng_key, num_warmup, *given)
        check_arguments_of_loop(*given)
        rng_key = rng_key if is_prng_key(rng_key) else over_chains(rng_key)
        with status_line(self) as say, keeping(self._kept.keep):
            say("looking for a point of finite density")
            rng_key, key_model = split_each(rng_key, 2)
            view, z = self._look(key_model, init_params, *given)
            # programs of later steps trace the model anew: what it reads besides its arguments, or
            # does with their values, may have changed
            source = Source(self._viewed, view, self._rows, *given)
            self._view, self._sample_fn = view.anew(), self.sample
            self._has_coordinates = any(jnp.size(leaf) for leaf in jax.tree.leaves(z))
            check_start(z)
            self._started_from = source
            try:
                is_given = init_params is not None
                return self._first_state(rng_key, num_warmup, z, is_given, source, say)
            finally:
                self._started_from = None

    def _first_state(
        self,
        rng_key: Array,
        num_warmup: int,
        z: Any,
        is_given: bool,
        source: Source,
        say: Function,
    ) -> KernelState:
        """The state of chains at `z`, or where the search for a start leads from there."""
        digest = fingerprint(*source.arguments)
        given = self._in_place.as_they_are(digest, *source.arguments)
        if is_single := is_prng_key(rng_key):
            rng_key, z = as_chains((rng_key, z))
        is_searching = self._warm_start and num_warmup > 0
        run = Run(
            *(source.of(*given), split_arguments(*given), num_warmup, is_searching),
            *(self._tuning.adapt_mass_matrix, self._programs, self._raised),
            say=say,
            is_given=is_given,
        )
        strategy, started = self._strategy_of_run, self._model and self._model_of_start(*given)
        of_kernel = self._tuning, self._target_of, self.advice, is_single
        with explaining(started, *given, z):
            shared = strategy.prepare(run, z)
            start = strategy.start(run, rng_key, z, shared)
            state = first_state(run, start, z, shared, *of_kernel)
        return state._replace(shared=shared, fingerprint=digest)

    def _look(
        self, rng_key: Array, init_params: Any, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[View, Any]:
        """The target of these arguments, and a start for each key."""
        given, is_single = (model_args, model_kwargs), is_prng_key(rng_key)
        # neither the kernel nor its start takes derivatives that are not wanted
        is_used = self._differentiation != "none" or self._warm_start
        wanted = self._differentiation if is_used else None
        if self._potential_fn is not None:
            of_start = self._potential_fn, init_params
            return view_potential(*of_start, is_single=is_single, wanted=wanted)
        with naming_arguments(*given):
            model = self._model_of_start(*given)
            options: dict[str, Any] = {"init_strategy": self._init_strategy, "wanted": wanted}
            view, z = view_model(rng_key, model, *given, **options, init_params=init_params)
            if self._effects is not None:
                first = z if is_single else jax.tree.map(lambda leaf: leaf[0], z)
                self._effects.look(cast(Model, self._viewed), *given, first)
        return view, z

    def _model_of_start(self, model_args: Args, model_kwargs: Kwargs | None) -> Model:
        """The model in which points of finite density are looked for."""
        del model_args, model_kwargs
        return cast(Model, self._viewed)

    def step_parameters(
        self, rng_key: Array, i: Array, inner: Any, num_warmup: Array
    ) -> dict[str, Any]:
        """Parameters of step `i` that chains share; `inner` is the state of the first of them."""
        del rng_key, i, inner, num_warmup
        return {}

    def _target_of(self, model_args: Args, model_kwargs: Kwargs | None, shared: Any) -> Stepper:
        """The target of a step for these arguments."""
        source = self._started_from or Source(self._viewed, cast(View, self._view))
        source = source.of(model_args, model_kwargs)
        return self._recorded(self._strategy_of_run.target(source, self._algorithm, shared))

    def _recorded(self, target: Stepper) -> Stepper:
        """`target`, with what its states shall keep of a step: no more here."""
        return target

    def centredness(self, mcmc: MCMC) -> "Centredness":
        """How centred the effects are in the coordinates that the warm-up of `mcmc` has learned.

        A dict from sites to arrays, printed as a table: 1 for the effect itself, 0 for its noise,
        at the typical scale of the effect in the last window. Empty for models without effects,
        and without `learn_coordinates`. Below the table stand the sites that look like effects or
        like noise and are sampled as they are written, with why.
        """
        if mcmc.last_state is None:
            raise ValueError("mcmc must have run: coordinates are learned in its warm-up.")
        from numpyro_fwd.kernels.coordinates import centredness_of

        as_written = {} if self._effects is None else self._effects.as_written
        return centredness_of(mcmc.last_state, as_written)

    def sample(self, state: KernelState, model_args: Args, model_kwargs: Kwargs | None):
        """One step of one chain, or of vectorized chains, with adaptation during the warm-up."""
        given = model_args, model_kwargs
        state.check_effects(self._effects.names if self._effects else set())
        target = self._target_of(*given, state.shared)
        is_sharing = self.has_step_parameters and self._has_coordinates
        parameters_of = self.step_parameters if is_sharing else None
        one = partial(step_chains, target, self._tuning, parameters_of, given)
        step: Function = lambda state: with_chains(one, state, self._chain_batch_size)  # noqa: E731
        if self._raised.is_possible and getattr(self._strategy, "forgives", False):
            is_warmup = jnp.ravel(state.i)[0] < jnp.ravel(state.num_warmup)[0]
            step = warning_after(is_warmup, step, REMEDY)
        first = first_position(state)
        with naming_arguments(*given), explaining_shapes(self._viewed, *given, first):
            return with_types_of(state, step(state))

    def refresh(self, state: KernelState, model_args: Args, model_kwargs: Kwargs | None):
        """Evaluate what a state caches anew where it is, for other data; step size and metric stay.

        A run goes on with other data after ``mcmc.post_warmup_state = mcmc.sampler.refresh(
        mcmc.last_state, args, kwargs)``. ``numpyro.infer.Gibbs`` calls it, too.

        Raises
        ------
        ValueError
            If what chains share, such as an expansion, was made with other data.
        """
        if self._view is None:
            view, _ = self._look(jax.random.key(0), None, model_args, model_kwargs)
            self._view = view.anew()
        if state.shared is not None:
            old = cast(Fingerprint, state.fingerprint)
            check_data(is_other(old, model_args, model_kwargs))
        digest = fingerprint(model_args, model_kwargs)
        given = self._in_place.as_they_are(digest, model_args, model_kwargs)
        if self._in_place.has_changed:
            self._sample_fn = None  # MCMC initializes, and so takes them as new ones, too
        arguments = split_arguments(*given)

        def refreshed(arrays, state):
            model_args, model_kwargs = arguments.join(arrays)
            target = self._target_of(model_args, model_kwargs, state.shared)
            return made_anew(target, self.kept_fields, state)._replace(fingerprint=digest)

        # states of sequential and parallel chains come stacked
        refreshed_all = jax.vmap(refreshed, (None, 0)) if state.is_stacked else refreshed
        with explaining_shapes(self._viewed, *given, first_position(state)):
            return run_with(arguments, compiled_soon(refreshed_all), state)

    def wrap_model(self, wrapper: Function) -> "BlackJAXKernel":
        """Copy of this kernel whose model is ``wrapper(model)``."""
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        kernel._reset()
        return kernel

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled programs and what tells MCMC that the kernel is ready."""
        anew = {"_programs": {}, "_kept": KnownPrograms(MOST_KEPT), "_in_place": InPlace()}
        return {**self.__dict__, "_sample_fn": None, **anew}


describe(BlackJAXKernel)
