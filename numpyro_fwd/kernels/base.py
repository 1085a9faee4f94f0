"""Any BlackJAX algorithm as a NumPyro ``MCMCKernel``, with a warm-up for first-order kernels."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict, cast

import jax
import jax.numpy as jnp
from blackjax.adaptation.step_size import find_reasonable_step_size
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_uniform
from numpyro.infer.mcmc import MCMCKernel

from blackjax_ext.checks import check_positive
from blackjax_ext.mcmc.forward_gradient import forward_gradient
from blackjax_ext.metrics import Diagonal, Factor, check_metric, factorize
from blackjax_ext.metrics.factors import dense
from blackjax_ext.warmup import newton_path, windows
from blackjax_ext.warmup.calling import Algorithm, Facts, Target
from blackjax_ext.warmup.windows import AdaptState
from numpyro_fwd.bridge.arguments import run_with, split_arguments
from numpyro_fwd.bridge.numpyro_private import identity, is_prng_key, not_jax_tracer
from numpyro_fwd.bridge.views import (
    View,
    check_finite,
    check_start,
    logdensity_of,
    view_model,
    view_potential,
)
from numpyro_fwd.kernels.state import KernelState, make_state, ravel_each, split_each

__all__ = ["BlackJAXKernel", "KernelOptions"]


class KernelOptions(TypedDict, total=False):
    """Keywords every kernel takes; see :class:`BlackJAXKernel`."""

    potential_fn: Callable | None
    step_size: float
    inverse_mass_matrix: Array | None
    adapt_step_size: bool
    adapt_mass_matrix: bool
    dense_mass: bool
    target_accept_prob: float | None
    init_strategy: Callable
    warm_start: bool


class BlackJAXKernel(MCMCKernel):
    r"""Kernel for ``numpyro.infer.MCMC`` from a BlackJAX algorithm.

    Works for every algorithm whose kernel is ``(rng_key, state, logdensity_fn, **parameters)``.
    A parameter called `step_size` or `inverse_mass_matrix` is adapted in the warm-up unless it is
    fixed here; the others are passed on as they are given.

    :param model: NumPyro model; exactly one of `model` and `potential_fn` must be given.
    :param algorithm: BlackJAX algorithm with ``init`` and ``build_kernel``: ``blackjax.hmc``,
        ``blackjax.rmhmc``, ``blackjax_ext.fmala``, ...
    :param potential_fn: Minus the log density, a function of a pytree; `init_params` must then be
        given to ``MCMC.run``.
    :param step_size: First guess of the step size, positive; kept if `adapt_step_size` is False.
    :param inverse_mass_matrix: First guess of the posterior covariance, (D,) or (D, D); None for
        what the warm start finds, or the identity without one.
    :param adapt_step_size: Adapt the step size to `target_accept_prob` by dual averaging.
    :param adapt_mass_matrix: Adapt the metric to the posterior covariance.
    :param dense_mass: Adapt a full covariance rather than variances.
    :param target_accept_prob: Acceptance probability between 0 and 1 to adapt to; None for the
        kernel's own, :meth:`best_accept_prob`.
    :param init_strategy: NumPyro initialization strategy.
    :param warm_start: Before the warm-up, follow Newton's path from the start to the best normal
        approximation along it, which gives the first position and, if `adapt_mass_matrix`, the
        first metric (:mod:`blackjax_ext.warmup.newton_path`). Off if there is no warm-up;
        not tried beyond 128 dimensions in forward mode and 512 in reverse mode.
    :param differentiation: "reverse", or "forward" for models without a reverse mode: no algorithm
        then calls it. BlackJAX's own are given gradients of D JVPs.
    :param parameters: Further parameters of the algorithm's kernel or ``build_kernel``.
    :raises ValueError, TypeError: for an argument or a model that cannot be sampled, by name.

    **Example**

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
    # whether steps have parameters that chains share, for which a key is drawn (_shared)
    has_shared_parameters = False

    def __init__(
        self,
        model: Callable | None = None,
        algorithm: Any = None,
        *,
        potential_fn: Callable | None = None,
        step_size: float = 1.0,
        inverse_mass_matrix: Array | None = None,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        dense_mass: bool = False,
        target_accept_prob: float | None = None,
        init_strategy: Callable = init_to_uniform,
        warm_start: bool = True,
        differentiation: newton_path.Differentiation = "reverse",
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
        if target_accept_prob is not None and not 0 < target_accept_prob < 1:
            raise ValueError(
                f"target_accept_prob must be between 0 and 1; got {target_accept_prob}."
            )
        if differentiation not in newton_path.MAX_DIMENSION:
            raise ValueError(
                f'differentiation must be "forward" or "reverse"; got {differentiation!r}.'
            )
        self._model = model
        self._potential_fn = potential_fn
        self._step_size = step_size
        self._inverse_mass_matrix = inverse_mass_matrix
        self._adapt_step_size = adapt_step_size
        self._adapt_mass_matrix = adapt_mass_matrix
        self._dense_mass = dense_mass
        self._target_accept_prob = target_accept_prob
        self._init_strategy = init_strategy
        self._warm_start = warm_start
        self._differentiation: newton_path.Differentiation = differentiation
        self._algorithm = Algorithm(algorithm, parameters)
        self._algorithm.check()
        self._reset()

    def _reset(self) -> None:
        self._view: View | None = None
        self._num_warmup = 0
        self._sample_fn: Callable | None = None  # MCMC initializes again while this is None
        self._programs: dict[Any, Callable] = {}

    @property
    def model(self) -> Callable | None:
        """The model, as given."""
        return self._model

    def get_diagnostics_str(self, state: KernelState) -> str:
        """Step size and acceptance for the progress bar."""
        return (
            f"step size {state.adapt_state.step_size:.2e}. acc. prob={state.mean_accept_prob:.2f}"
        )

    def best_accept_prob(self, size: int) -> float:
        """Acceptance probability to adapt to in `size` dimensions, each named kernel's own."""
        del size
        return 0.65

    def _goal(self, inner: Any) -> float:
        """Acceptance probability to adapt to."""
        if self._target_accept_prob is not None:
            return self._target_accept_prob
        return self.best_accept_prob(sum(leaf.size for leaf in jax.tree.leaves(inner.position)))

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Map from unconstrained positions to the sites' supports and deterministic sites."""
        if self._view is None:
            return identity
        return self._view.postprocess_fn(*model_args, **(model_kwargs or {}))

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> KernelState:
        """First state: one chain for a key, vectorized chains for a batch of keys."""
        self._num_warmup = num_warmup
        rng_key, key_model = split_each(rng_key, 2)
        if self._potential_fn is not None:
            self._view, z = view_potential(
                self._potential_fn,
                init_params,
                is_single=is_prng_key(rng_key),
                differentiation=self._differentiation,
            )
        else:
            self._view, z = view_model(
                key_model,
                cast(Callable, self._model),
                model_args,
                model_kwargs,
                init_strategy=self._init_strategy,
                init_params=init_params,
                differentiation=self._differentiation,
            )
        self._sample_fn = self.sample
        check_start(z)
        is_single = is_prng_key(rng_key)
        if is_single:
            rng_key, z = rng_key[None], jax.tree.map(lambda x: jnp.asarray(x)[None], z)
        shared = self._prepare(z, model_args, model_kwargs)
        inner, adapt_state, rng_key = self._begin(rng_key, z, model_args, model_kwargs, shared)
        return make_state(inner, adapt_state, rng_key, is_single, shared)

    def _prepare(self, z, model_args, model_kwargs) -> Any:
        """What all chains share and no step changes, made once from the arguments."""
        del z, model_args, model_kwargs

    def _begin(self, rng_key, z, model_args, model_kwargs, shared) -> tuple[Any, AdaptState, Array]:
        """Start C chains from keys (C,) and positions with a leading axis C."""
        rng_key, key_start, key_inner, key_step = split_each(rng_key, 4)
        split = split_arguments(model_args, model_kwargs)
        unravel = ravel_pytree(jax.tree.map(lambda x: x[0], z))[1]
        x = ravel_each(z)
        metric = self._first_metric(x, shared)

        def logdensity(arrays):
            return logdensity_of(cast(View, self._view), *split.join(arrays))

        def target(arrays, shared=None):
            model_args, model_kwargs = split.join(arrays)
            return self._target_of(model_args, model_kwargs, shared)

        def evaluate(arrays, x):
            return jax.vmap(lambda x: logdensity(arrays)(unravel(x)))(x)

        def find(arrays, key, x):
            logdensity_fn = logdensity(arrays)
            return self._find_start(
                key, lambda x: logdensity_fn(unravel(x)), x, partial(target, arrays), unravel
            )

        def begin(arrays, key_inner, key_step, x, metric, found, shared):
            bound = target(arrays, shared)
            inner = self._inner(bound, key_inner, jax.vmap(unravel)(x), metric)
            inner = self._with_found(inner, found)
            step_size = self._first_step_size(bound, key_step, inner, metric)
            return inner, step_size

        values = run_with(split, jax.jit(evaluate), x)
        check_finite(values)
        found = None
        if self._is_warm(x.shape[1]):
            program = self._reuse(split, find, x)
            x, curvature, found = run_with(split, program, key_start, x)
            if self._inverse_mass_matrix is None and self._takes_metric():
                metric = curvature if self._dense_mass else newton_path.diagonal(curvature)
        inner, step_size = run_with(
            split, jax.jit(begin), key_inner, key_step, x, metric, found, shared
        )
        if hasattr(inner, "metric"):
            check_metric(inner.metric)
        adapt_state = windows.init(step_size, metric, x, adapt_metric=self._adapt_mass_matrix)
        return inner, adapt_state, rng_key

    def _reuse(self, split, function, x) -> Callable:
        """`function` compiled, or the program that an earlier sequential chain left.

        Only the search for a start is reused, which no state of the chain depends on: a model may
        read what is not among its arguments, and that may have changed.
        """
        program: Callable = jax.jit(function)
        if split.key is None or not not_jax_tracer(x):
            return program
        return self._programs.setdefault((split.key, x.shape), program)

    def _find_start(self, rng_key, logdensity_fn, x, target_fn, unravel) -> tuple[Array, Any, Any]:
        """Better starts than `x`, shape (C, D), the metric there, and what else states keep."""
        del target_fn, unravel
        return *newton_path.find_all(rng_key, logdensity_fn, x, self._differentiation), None

    def _with_found(self, inner: Any, found: Any) -> Any:
        """States before the warm-up, with what the search for a start found and they keep."""
        del found
        return inner

    def _takes_metric(self) -> bool:
        """Whether the warm start gives the metric too."""
        return self._adapt_mass_matrix

    def _is_warm(self, size: int) -> bool:
        is_small = size <= newton_path.MAX_DIMENSION[self._differentiation]
        return self._warm_start and is_small and self._num_warmup > 0

    def _first_metric(self, x: Array, shared: Any) -> Factor:
        """The metric given, or the identity, in the form that is adapted."""
        del shared
        size = x.shape[1]
        metric = factorize(self._inverse_mass_matrix, size)
        if isinstance(metric, Diagonal):
            metric = Diagonal(jnp.broadcast_to(metric.inverse_sqrt, (size,)).astype(x.dtype))
            return dense(metric, x[0]) if self._dense_mass else metric
        return dense(metric, x[0])

    def _parameters(self, model_args: tuple, model_kwargs: dict | None) -> dict[str, Any]:
        """Parameters of the algorithm that depend on the arguments of the model."""
        del model_args, model_kwargs
        return {}

    def _shared(self, rng_key: Array, i: Array, inner: Any) -> dict[str, Any]:
        """Parameters of step `i` that chains share; `inner` is the state of the first of them."""
        del rng_key, i, inner
        return {}

    def _kept(self, old: Any, new: Any) -> Any:
        """`new`, the state made anew where `old` is, with what must not depend on the position."""
        del old
        return new

    def _target_of(self, model_args: tuple, model_kwargs: dict | None, shared: Any) -> Target:
        """The algorithm on the log density for these arguments."""
        del shared
        algorithm = self._algorithm
        logdensity_fn = logdensity_of(cast(View, self._view), model_args, model_kwargs)
        if self._differentiation == "forward" and not algorithm.is_own:
            logdensity_fn = forward_gradient(logdensity_fn)
        parameters = algorithm.parameters | self._parameters(model_args, model_kwargs)
        return Target(Algorithm(algorithm.api, parameters), logdensity_fn)

    def _inner(self, target: Target, rng_key, position, metric):
        def init(position, key):
            return target.init(position, key, metric)

        return jax.vmap(init)(position, rng_key)

    def _first_step_size(self, target: Target, rng_key, inner, metric) -> Array:
        """Double or halve the step size until the acceptance probability crosses the target."""
        first = jnp.asarray(self._step_size, metric.inverse_sqrt.dtype)
        if not (self._adapt_step_size and self._num_warmup):
            return jnp.broadcast_to(first, rng_key.shape[:1])

        def search(key, inner):
            def kernel_with(step_size):
                return lambda key, state: target.step(key, state, step_size, metric)

            return find_reasonable_step_size(key, kernel_with, inner, first, self._goal(inner))

        # vectorized chains share a step size: one that ends the warm-up in a narrow place would
        # otherwise keep steps that suit no other place
        found = jax.vmap(search)(rng_key, inner)
        return jnp.full_like(found, jnp.exp(jnp.mean(jnp.log(found))))

    def sample(self, state: KernelState, model_args: tuple, model_kwargs: dict | None):
        """One step of one chain, or of vectorized chains, with adaptation during the warm-up."""
        target = self._target_of(model_args, model_kwargs, state.shared)
        is_single = jnp.ndim(state.i) == 0
        adapt_state = state.adapt_state
        rng_key, key_move, key_renew, *key_shared = split_each(
            state.rng_key, 3 + self.has_shared_parameters
        )
        i = state.i if is_single else state.i[0]
        shared = {}
        if self.has_shared_parameters:
            key, first = key_shared[0], state.inner
            if not is_single:
                key, first = key[0], jax.tree.map(lambda x: x[0], first)
            shared = self._shared(key, i, first)

        def move(rng_key, inner, step_size):
            return target.step(rng_key, inner, step_size, adapt_state.metric, **shared)

        move = move if is_single else jax.vmap(move)
        inner, facts = move(key_move, state.inner, adapt_state.step_size)
        if self._num_warmup and (self._adapt_step_size or self._adapt_mass_matrix):
            # one predicate for all chains: a batched one would run the update for ever
            inner, adapt_state = jax.lax.cond(
                i < self._num_warmup,
                partial(self._adapt, target, i, is_single),
                lambda key, facts, inner, adapt_state: (inner, adapt_state),
                *(key_renew, facts, inner, adapt_state),
            )
        count = jnp.where(state.i < self._num_warmup, state.i, state.i - self._num_warmup) + 1
        mean = state.mean_accept_prob
        mean = mean + (facts.acceptance_rate - mean) / count
        return KernelState(
            state.i + 1,
            inner,
            facts.acceptance_rate,
            mean,
            facts.is_divergent,
            facts.num_steps,
            adapt_state,
            rng_key,
            state.shared,
        )

    def _adapt(self, target: Target, i, is_single, rng_key, facts: Facts, inner, adapt_state):
        """Update step size and moments; where a window ends, the metric and what depends on it."""
        if self._adapt_step_size:
            is_last = i == self._num_warmup - 1
            rate = jnp.full_like(adapt_state.step_size, jnp.mean(facts.acceptance_rate))
            one = inner if is_single else jax.tree.map(lambda x: x[0], inner)
            goal = self._goal(one)
            adapt_state = windows.update_step(adapt_state, rate, goal, is_last)
        ends = windows.windows(self._num_warmup)
        if not self._adapt_mass_matrix or not ends.size:
            return inner, adapt_state
        position = inner.position
        if is_single:
            rng_key, position = rng_key[None], jax.tree.map(lambda x: x[None], position)
        x = ravel_each(position)

        def renew(inner, adapt_state):
            adapt_state = windows.update_metric(adapt_state, x)
            inner = self._inner(target, rng_key, position, adapt_state.metric)
            return (jax.tree.map(lambda x: x[0], inner) if is_single else inner), adapt_state

        return jax.lax.cond(
            jnp.isin(i, ends),
            renew,
            lambda inner, adapt_state: (inner, adapt_state),
            inner,
            windows.update_moments(adapt_state, x),
        )

    def refresh(self, state: KernelState, model_args: tuple, model_kwargs: dict | None):
        """Evaluate what the state caches anew where it is, for ``numpyro.infer.Gibbs``."""
        target = self._target_of(model_args, model_kwargs, state.shared)
        rng_key, key_inner = split_each(state.rng_key, 2)
        metric = state.adapt_state.metric
        if jnp.ndim(state.i):
            inner = self._inner(target, key_inner, state.z, metric)
        else:
            inner = target.init(state.z, key_inner, metric)
        return state._replace(inner=self._kept(state.inner, inner), rng_key=rng_key)

    def wrap_model(self, wrapper: Callable) -> "BlackJAXKernel":
        """Copy of this kernel whose model is ``wrapper(model)``."""
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        kernel._reset()
        return kernel

    def __getstate__(self) -> dict:
        """Everything but the compiled programs and what tells MCMC that the kernel is ready."""
        return {**self.__dict__, "_sample_fn": None, "_programs": {}}
