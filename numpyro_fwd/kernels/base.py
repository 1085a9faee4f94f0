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

from blackjax_ext.adaptation.algorithm import Algorithm, StepInfo, Stepper
from blackjax_ext.adaptation.run import (
    adapt,
    bind,
    check_differentiation,
    check_target,
    ravel_each,
    states_at,
)
from blackjax_ext.adaptation.windows import AdaptationSchedule
from blackjax_ext.checks import check_count, check_positive
from blackjax_ext.mcmc.derivatives import Wanted
from blackjax_ext.programs import compiled_soon
from blackjax_ext.raising import Raised, forgiving_while
from blackjax_ext.types import Function, once
from numpyro_fwd.bridge.argument_errors import naming_arguments
from numpyro_fwd.bridge.arguments import run_with, split_arguments
from numpyro_fwd.bridge.fingerprints import Fingerprint, fingerprint, is_other
from numpyro_fwd.bridge.imputation import imputing
from numpyro_fwd.bridge.numpyro_private import identity, is_prng_key
from numpyro_fwd.bridge.raising import REMEDY
from numpyro_fwd.bridge.starts import check_start, explaining, explaining_shapes
from numpyro_fwd.bridge.views import View, view_model, view_potential
from numpyro_fwd.kernels.blocks import (
    DenseMass,
    GivenMetric,
    check_metric_options,
)
from numpyro_fwd.kernels.chain_warnings import of_hidden, of_stuck, of_the_warmup
from numpyro_fwd.kernels.descriptions import describe
from numpyro_fwd.kernels.first_state import FirstState
from numpyro_fwd.kernels.notices import Notice
from numpyro_fwd.kernels.options import AS_IT_IS_DONE, INSTEAD, full_signature
from numpyro_fwd.kernels.running_mcmc import check_arguments_of_loop, status_line
from numpyro_fwd.kernels.same_data import InPlace, check_data, compared
from numpyro_fwd.kernels.state import (
    KernelState,
    alone,
    as_batch,
    as_chains,
    of_one,
    split_each,
    with_types_of,
)
from numpyro_fwd.kernels.strategy import (
    Motionless,
    Run,
    Source,
    Strategy,
    WholeDensity,
    ravel_one,
)
from numpyro_fwd.kernels.tuning import Tuning
from numpyro_fwd.meshes import check_run, over_chains
from numpyro_fwd.types import Args, Kwargs, Model

if TYPE_CHECKING:
    from numpyro_fwd.kernels.centredness import Centredness
    from numpyro_fwd.kernels.coordinates import Effects

__all__ = ["BlackJAXKernel"]


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
    potential_fn
        Minus the log density, a function of a pytree; `init_params` must then be given to
        ``MCMC.run``.
    step_size
        First guess of the step size, positive; kept if `adapt_step_size` is False.
    inverse_mass_matrix
        First guess of the posterior covariance, (D,) or (D, D), or a dict of blocks by their sites,
        ``{("m", "b"): matrix}``, as for NumPyro's HMC; None for the one that the warm start finds,
        or the identity without a warm start.
    adapt_step_size
        Adapt the step size to `target_accept_prob` by dual averaging.
    adapt_mass_matrix
        Adapt the metric to the posterior covariance.
    dense_mass
        True to adapt a full covariance, False for variances, "low_rank" for variances and the K
        directions that differ most from them, 128 up to 1,024 dimensions and 32 from 4,096 on, at
        the cost of 2 K D a product,
        ``[("m", "b"), ("c",)]`` for covariances within these blocks of sites and variances of all
        others. None for a full covariance up to 64 dimensions, where it costs next to nothing:
        steps of these samplers are short, and correlations slow them far more than NUTS. Beyond 64
        dimensions None means a full covariance up to 512 and "low_rank" from there on for MALA,
        AutoMALA and AutoNUTS, and variances for others; up to 2,000 dimensions these three keep
        a full covariance where its two products cost no more than a gradient. Algorithms that take
        gradients learn each of these from draws and gradients there. The structure of an
        `inverse_mass_matrix` that is given is then kept. For an algorithm that is not from
        `blackjax_ext`, None means variances, since not all accept a matrix.
    target_accept_prob
        Acceptance probability between 0 and 1 to adapt to; None for the kernel's own
        (`best_accept_prob`).
    init_strategy
        NumPyro initialization strategy.
    warm_start
        Before the warm-up, follow Newton's path from the start to the best normal approximation
        along it, which gives the first position and, if `adapt_mass_matrix`, the first metric
        (:mod:`blackjax_ext.adaptation.newton_path`). Where its Hessians cost more than about 300
        steps and more than a few seconds, and beyond 128 dimensions in forward mode and 512 in
        reverse mode, a path of gradients gives the position alone
        (:mod:`blackjax_ext.adaptation.start`). Off if there is no warm-up; not tried without
        derivatives.
    differentiation
        "reverse"; "forward" for models without a reverse mode, which is then never used, where
        BlackJAX's own algorithms get gradients from D JVPs; or "none" for algorithms that need no
        derivative, where the warm start uses what the model has. A model that has gradients and no
        forward mode, as by a ``custom_vjp``, needs no setting: their differences are its curvature.
    chain_batch_size
        Of vectorized chains, how many take a step at once, the others after them: the memory of a
        step is that of so many chains, and its draws are the same up to rounding. None for all.
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
        if (model is None) == (potential_fn is None):
            given = "neither" if model is None else "both"
            raise ValueError(f"exactly one of model and potential_fn must be given; got {given}.")
        for name, value in (("model", model), ("potential_fn", potential_fn)):
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be callable; got {type(value).__name__}.")
        check_positive("step_size", step_size)
        if jnp.ndim(step_size):
            raise ValueError(f"step_size must be one number; got shape {jnp.shape(step_size)}.")
        if target_accept_prob is not None:
            check_target("target_accept_prob", target_accept_prob)
        check_differentiation(differentiation)
        if chain_batch_size is not None:
            check_count("chain_batch_size", chain_batch_size)
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
        describe(cls, BlackJAXKernel)

    def _reset(self) -> None:
        self._view: View | None = None
        self._started_from: Source | None = None
        self._sample_fn: Function | None = None  # MCMC initializes again while this is None
        self._programs: dict[Any, Function] = {}
        self._raised = Raised()
        self._in_place = InPlace()
        self._has_coordinates = True
        self._effects: Effects | None = None
        if self.learn_coordinates:
            from numpyro_fwd.kernels import coordinates  # which other kernels do not need

            self._effects = coordinates.Effects(self._strategy)

    @property
    def model(self) -> Model | None:
        """The model, as given."""
        return self._model

    @property
    def _viewed(self) -> Model | None:
        """The model whose latents are the coordinates of chains."""
        return None if self._model is None else imputing(self._model)

    @property
    def _wanted(self) -> Wanted | None:
        """Derivatives that the kernel or its start takes; None for neither."""
        is_used = self._differentiation != "none" or self._warm_start
        return self._differentiation if is_used else None

    @property
    def _strategy_of_run(self) -> Strategy:
        """The strategy, unless there is nothing to sample."""
        return self._strategy if self._has_coordinates else Motionless()

    @property
    def _source(self) -> Source:
        return self._started_from or Source(self._viewed, cast(View, self._view))

    def get_diagnostics_str(self, state: KernelState) -> str:
        """Step size and acceptance for the progress bar."""
        return (
            f"step size {state.adapt_state.step_size:.2e}. acc. prob={state.mean_accept_prob:.2f}"
        )

    def _goal(self, size: int) -> float:
        """Acceptance probability to adapt to in `size` dimensions."""
        if self._target_accept_prob is not None:
            return self._target_accept_prob
        best = self.best_accept_prob
        return best(max(size, 1)) if callable(best) else best

    def postprocess_fn(self, model_args: Args, model_kwargs: Kwargs | None) -> Function:
        """Map from unconstrained positions to the sites' supports and deterministic sites."""
        if self._view is None:
            return identity
        return self._view.postprocess_fn(*model_args, **(model_kwargs or {}))

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any,
        model_args: Args,
        model_kwargs: Kwargs | None,
    ) -> KernelState:
        """First state: one chain for a key, vectorized chains for a batch of keys."""
        is_single = is_prng_key(rng_key)
        check_run(type(self).__name__, rng_key, num_warmup, model_args, model_kwargs)
        check_arguments_of_loop(model_args, model_kwargs)
        rng_key = rng_key if is_single else over_chains(rng_key)
        with status_line(self) as say:
            say("looking for a point of finite density")
            rng_key, key_model = split_each(rng_key, 2)
            view, z = self._look(key_model, init_params, model_args, model_kwargs)
            rows = self._known_rows(model_args, model_kwargs)
            self._view = view.anew()
            self._has_coordinates = any(jnp.size(leaf) for leaf in jax.tree.leaves(z))
            self._sample_fn = self.sample
            check_start(z)
            # programs of later steps trace the model anew: what it reads besides its arguments, or
            # does with their values, may have changed
            self._started_from = Source(self._viewed, view, rows)
            try:
                return self._first_state(
                    rng_key, num_warmup, z, model_args, model_kwargs, is_single, say
                )
            finally:
                self._started_from = None

    def _first_state(
        self,
        rng_key: Array,
        num_warmup: int,
        z: Any,
        model_args: Args,
        model_kwargs: Kwargs | None,
        is_single: bool,
        say: Function,
    ) -> KernelState:
        """The state of chains at `z`, or where the search for a start leads from there."""
        digest = fingerprint(model_args, model_kwargs)
        model_args, model_kwargs = self._in_place.as_they_are(digest, model_args, model_kwargs)
        if is_single:
            rng_key, z = as_chains((rng_key, z))
        run = Run(
            self._source,
            split_arguments(model_args, model_kwargs),
            num_warmup,
            self._warm_start and num_warmup > 0,
            self._tuning.adapt_mass_matrix,
            self._programs,
            self._raised,
            say,
        )
        started = self._model and self._model_of_start(model_args, model_kwargs)
        with explaining(started, model_args, model_kwargs, z):
            shared = self._strategy_of_run.prepare(run, z)
            begin = self._begin(run, rng_key, z, shared, is_single)
            return begin.make()._replace(shared=shared, fingerprint=digest)

    def _look(
        self, rng_key: Array, init_params: Any, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[View, Any]:
        """The target of these arguments, and a start for each key."""
        if self._potential_fn is not None:
            return view_potential(
                self._potential_fn,
                init_params,
                is_single=is_prng_key(rng_key),
                wanted=self._wanted,
            )
        with naming_arguments(model_args, model_kwargs):
            view, z = view_model(
                rng_key,
                self._model_of_start(model_args, model_kwargs),
                model_args,
                model_kwargs,
                init_strategy=self._init_strategy,
                init_params=init_params,
                wanted=self._wanted,
            )
            if self._effects is not None:
                first = z if is_prng_key(rng_key) else jax.tree.map(lambda leaf: leaf[0], z)
                self._effects.look(cast(Model, self._viewed), model_args, model_kwargs, first)
        return view, z

    def _known_rows(self, model_args: Args, model_kwargs: Kwargs | None) -> Any:
        """What is known of the rows of a model, without data: nothing here."""
        del model_args, model_kwargs
        return None

    def _model_of_start(self, model_args: Args, model_kwargs: Kwargs | None) -> Model:
        """The model in which points of finite density are looked for."""
        del model_args, model_kwargs
        return cast(Model, self._viewed)

    def _begin(self, run: Run, rng_key: Array, z: Any, shared: Any, is_single: bool) -> FirstState:
        """Start C chains from keys (C,) and positions with a leading axis C."""
        strategy, effects = self._strategy_of_run, self._effects
        if effects is not None and effects.names:
            start = effects.start(strategy, run, rng_key, z)
        else:
            start = strategy.start(run, rng_key, z, shared)
        return FirstState(
            *(run, start, ravel_one(z), shared),
            *(self._tuning, self._target_of, self.advice, is_single),
        )

    def step_parameters(
        self, rng_key: Array, i: Array, inner: Any, num_warmup: Array
    ) -> dict[str, Any]:
        """Parameters of step `i` that chains share; `inner` is the state of the first of them."""
        del rng_key, i, inner, num_warmup
        return {}

    def _target_of(self, model_args: Args, model_kwargs: Kwargs | None, shared: Any) -> Stepper:
        """The target of a step for these arguments."""
        algorithm = self._algorithm
        if self._effects is not None and self._effects.names:

            def bound(logdensity_fn):
                return self._recorded(bind(algorithm, logdensity_fn, self._differentiation))

            return self._effects.target(bound, self._source, model_args, model_kwargs)
        strategy = self._strategy_of_run
        target = strategy.target(self._source, algorithm, model_args, model_kwargs, shared)
        return self._recorded(target)

    def centredness(self, mcmc: MCMC) -> "Centredness":
        """How centred the effects are in the coordinates that the warm-up of `mcmc` has learned.

        A dict from sites to arrays, printed as a table: 1 for the effect itself, 0 for its noise,
        at the typical scale of the effect in the last window. Empty for models without effects,
        and without `learn_coordinates`. Below the table stand the sites that look like effects or
        like noise and are sampled as they are written, with why.
        """
        if mcmc.last_state is None:
            raise ValueError("mcmc must have run: coordinates are learned in its warm-up.")
        from numpyro_fwd.kernels.centredness import centredness_of

        as_written = {} if self._effects is None else self._effects.as_written
        return centredness_of(mcmc.last_state, as_written)

    def _recorded(self, target: Stepper) -> Stepper:
        """`target`, with what its states shall keep of a step: no more here."""
        return target

    def sample(self, state: KernelState, model_args: Args, model_kwargs: Kwargs | None):
        """One step of one chain, or of vectorized chains, with adaptation during the warm-up."""
        names = set() if self._effects is None else self._effects.names
        check_same_effects(state.adapt_state.coordinates, names)
        target = self._target_of(model_args, model_kwargs, state.shared)
        is_batch = jnp.ndim(state.i) > 0
        each = partial(for_chains, batch_size=self._chain_batch_size) if is_batch else alone

        def step(state: KernelState) -> KernelState:
            return self._step(target, each, state, model_args, model_kwargs)

        if self._raised.is_possible and type(self._strategy) is WholeDensity:
            is_warmup = jnp.ravel(state.i)[0] < jnp.ravel(state.num_warmup)[0]
            step = forgiving_while(is_warmup, step, REMEDY)
        new = step(state) if is_batch else of_one(step(as_batch(state)))
        return with_types_of(state, new)

    def _step(
        self,
        target: Stepper,
        each: Function,
        state: KernelState,
        model_args: Args,
        model_kwargs: Kwargs | None,
    ) -> KernelState:
        """One step of chains that lead the arrays of `state`; ``each(step)`` is that of all."""
        i, adapt_state = state.i[0], state.adapt_state
        rng_key, key_move, key_renew, *key_shared = split_each(
            state.rng_key, 3 + self.has_step_parameters
        )
        supplied = {}
        if key_shared and self._has_coordinates:
            first = jax.tree.map(lambda x: x[0], state.inner)
            supplied = self.step_parameters(key_shared[0][0], i, first, state.num_warmup)

        def move(rng_key, inner, step_size):
            return target.step(rng_key, inner, step_size, adapt_state.frame, **supplied)

        first = jax.tree.map(lambda leaf: leaf[0], state.z)
        explaining_sites = explaining_shapes(self._viewed, model_args, model_kwargs, first)
        with naming_arguments(model_args, model_kwargs), explaining_sites:
            inner, info = each(move)(key_move, state.inner, adapt_state.step_size)
        schedule = adapt_state.schedule
        info = info.rated(is_adapting=self._tuning.adapt_step_size and schedule is not None)
        noticed, digest = cast(Notice, state.noticed), cast(Fingerprint, state.fingerprint)
        noticed = compared(noticed, digest, model_args, model_kwargs)
        if schedule is not None and self._tuning.is_adapting and self._has_coordinates:
            # one predicate for all chains: a batched one would run the update for ever
            adapted = partial(self._adapted, target, i, key_renew, info)
            inner, adapt_state, noticed = once(
                i < schedule.num_steps, adapted, (inner, adapt_state, noticed)
            )
        num_warmup = state.num_warmup
        count = jnp.where(state.i < num_warmup, state.i, state.i - num_warmup) + 1
        mean = state.mean_accept_prob
        mean = mean + (info.acceptance_rate - mean) / count
        num_still = jnp.where(info.has_moved | (state.i < num_warmup), 0, state.num_still + 1)
        noticed = of_stuck(noticed, num_still, i - num_warmup)
        if info.hidden is not None:
            x = ravel_each(inner.position)
            noticed = of_hidden(noticed, info.hidden, x, i + 1 - num_warmup)
        return KernelState(
            state.i + 1,
            inner,
            info.acceptance_rate,
            mean,
            info.is_divergent,
            info.num_steps,
            adapt_state,
            rng_key,
            state.shared,
            state.fingerprint,
            num_still,
            noticed.everywhere(),
        )

    def _adapted(
        self, target: Stepper, i: Array, rng_key: Array, info: StepInfo, seen: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """What step `i` of the warm-up makes of states, of what is adapted, and of the notice."""
        inner, adapt_state, noticed = seen
        plan = self._tuning.plan(ravel_each(inner.position).shape[1])
        inner, adapt_state = adapt(target, plan, i, rng_key, info, inner, adapt_state)
        noticed = jax.lax.cond(
            i == cast(AdaptationSchedule, adapt_state.schedule).num_steps - 1,
            lambda noticed, *seen: with_types_of(noticed, of_the_warmup(noticed, *seen)),
            lambda noticed, *seen: noticed,
            *(noticed, adapt_state, inner.logdensity),
        )
        # the branches of a `cond` must agree in weak types too
        return with_types_of(seen, (inner, adapt_state, noticed))

    def _kept(self, old: Any, new: Any) -> Any:
        """`new`, the state made anew where `old` is, with what must not depend on the position."""
        if not self.kept_fields:
            return new
        return new._replace(**{name: getattr(old, name) for name in self.kept_fields})

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
        model_args, model_kwargs = self._in_place.as_they_are(digest, model_args, model_kwargs)
        if self._in_place.has_changed:
            self._sample_fn = None  # MCMC initializes, and so takes them as new ones, too
        arguments = split_arguments(model_args, model_kwargs)

        def refreshed(arrays, state):
            model_args, model_kwargs = arguments.join(arrays)
            target = self._target_of(model_args, model_kwargs, state.shared)
            rng_key, key_inner = split_each(state.rng_key, 2)
            metric = state.adapt_state.frame
            if jnp.ndim(state.i):
                inner = states_at(target, key_inner, state.z, metric)
            else:
                inner = target.init(state.z, key_inner, metric)
            inner = self._kept(state.inner, inner)
            return state._replace(inner=inner, rng_key=rng_key, fingerprint=digest)

        # states of sequential and parallel chains come stacked
        refreshed_all = jax.vmap(refreshed, (None, 0)) if state.is_stacked else refreshed
        has_chains = state.is_stacked or jnp.ndim(state.i) > 0
        first = jax.tree.map(lambda leaf: leaf[0], state.z) if has_chains else state.z
        with explaining_shapes(self._viewed, model_args, model_kwargs, first):
            return run_with(arguments, compiled_soon(refreshed_all), state)

    def wrap_model(self, wrapper: Function) -> "BlackJAXKernel":
        """Copy of this kernel whose model is ``wrapper(model)``."""
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        kernel._reset()
        return kernel

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled programs and what tells MCMC that the kernel is ready."""
        return {**self.__dict__, "_sample_fn": None, "_programs": {}, "_in_place": InPlace()}


def check_same_effects(learned: Any, names: set[str]) -> None:
    """Raise ValueError unless what is learned of is what a model has for the arguments of a run."""
    found = set() if learned is None else {k for k, c in learned.pseudo.items() if c is not None}
    if found != names:
        raise ValueError(
            f"the state that is resumed has learned coordinates of {sorted(found)}, and with these "
            f"arguments the effects of the model are {sorted(names)}. Run the warm-up on them, "
            "mcmc.post_warmup_state = None."
        )


def for_chains(step: Function, batch_size: int | None) -> Function:
    """A step of many chains: of all at once, or of so many at a time."""
    if batch_size is None:
        return jax.vmap(step)
    return lambda *chains: jax.lax.map(lambda one: step(*one), chains, batch_size=batch_size)
