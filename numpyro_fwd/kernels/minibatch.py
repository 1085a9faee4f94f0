"""The named kernels of the minibatch family, on models with subsample plates."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

import blackjax_ext
from blackjax_ext.checks import check_count
from blackjax_ext.metrics.factors import Factor
from blackjax_ext.rows.control_variates import Anchor, anchored
from blackjax_ext.rows.potentials import StochasticPotential, energy_at
from blackjax_ext.sgmcmc.acceptance import FULL_PASS, Acceptance, subsampled
from blackjax_ext.sgmcmc.approximate_tests import barker_test, sequential_test
from blackjax_ext.sgmcmc.leapfrog import check_friction
from blackjax_ext.subsampling.expanded_potential import expanded_minibatch
from blackjax_ext.subsampling.expansion import Expansion, expand
from blackjax_ext.warmup import newton_path
from blackjax_ext.warmup.calling import Algorithm, Facts, Target
from blackjax_ext.warmup.windows import AdaptState
from numpyro_fwd.bridge.arguments import run_with, split_arguments
from numpyro_fwd.bridge.numpyro_private import GIBBS_SITES_KWARG, not_jax_tracer
from numpyro_fwd.bridge.plates import FullView, check_model
from numpyro_fwd.bridge.predictors import batch_size_of, check_predictors, linear_predictor_of
from numpyro_fwd.bridge.stochastic_potentials import size_of_epoch, stochastic_potential
from numpyro_fwd.bridge.views import View
from numpyro_fwd.kernels.base import BlackJAXKernel, KernelOptions
from numpyro_fwd.kernels.optimizer_start import check_optimizer, descend
from numpyro_fwd.kernels.state import KernelState, ravel_each, split_each

__all__ = ["AMAGOLD", "L2MC", "SGHMC"]

ControlVariate = Literal["first_order", "second_order"]
# where a normal forgets its start: the autocorrelation is cos(2) = -0.4 without friction, and with
# a friction of 1/4 it is -0.1
LENGTH = 2.0
ORDERS = {None: 0, "first_order": 1, "second_order": 2}
TESTS = {"full": FULL_PASS, "sequential": sequential_test(), "barker": barker_test()}
NUM_EPOCHS = 3  # as in section 6.3 of the paper
NO_ANCHOR = (
    "control_variate={!r} needs the mode of the full data, and Newton's path from the start found "
    "none: give init_params near one, or control_variate=None, which is exact too and accepts less."
)


class AnchoredState(NamedTuple):
    """State of an algorithm with the anchor of its control variate.

    chain
        State of the algorithm.
    anchor
        Expansion of the energy at a fixed place; None without a control variate.
    num_rows
        Rows that the last acceptance test read; as an extra field, "inner.num_rows".
    """

    chain: Any
    anchor: Anchor | None
    num_rows: Array

    @property
    def position(self) -> Any:
        """Unconstrained position."""
        return self.chain.position

    @property
    def logdensity(self) -> Array:
        """Log density at the position."""
        return self.chain.logdensity


class AnchoredTarget(NamedTuple):
    """An algorithm on a stochastic potential; the anchor travels in the state.

    algorithm
        The algorithm with its parameters.
    potential
        Potential without a control variate.
    order
        Order of the control variate; 0 for none.
    """

    algorithm: Algorithm
    potential: StochasticPotential
    order: int

    def init(self, position, rng_key, metric) -> AnchoredState:
        """First state at `position`, with an anchor that knows nothing."""
        chain = Target(self.algorithm, self.potential).init(position, rng_key, metric)
        if not self.order:
            return AnchoredState(chain, None, jnp.array(0))
        zeros = jnp.zeros_like(ravel_pytree(position)[0])
        hessian = jnp.zeros((zeros.size, zeros.size), zeros.dtype) if self.order == 2 else None
        return AnchoredState(chain, Anchor(position, zeros, hessian), jnp.array(0))

    def step(self, rng_key, state, step_size, metric) -> tuple[AnchoredState, Facts]:
        """One transition."""
        potential = self.potential
        if self.order:
            potential = anchored(potential, state.anchor, self.order)
        target = Target(self.algorithm, potential)
        chain, facts = target.step(rng_key, state.chain, step_size, metric)
        return state._replace(chain=chain, num_rows=facts.num_rows), facts


def energy_in_chunks(
    model: Callable, chunk_size: int | None, *model_args: Any, **model_kwargs: Any
) -> Callable:
    """Potential energy of a full view, in one float and with bounded memory."""
    potential = stochastic_potential(model, model_args, model_kwargs, chunk_size)
    return lambda z: energy_at(potential, z).value()


class MinibatchKernel(BlackJAXKernel):
    """Kernel of an algorithm that takes a stochastic potential, made from a model's plates.

    The anchor of the control variate is found before the warm-up and stays. The step size is
    adapted up to 1 and a trajectory of length 2: in whitened coordinates, a longer one turns back.
    """

    needs_minibatches = True
    # whether the acceptance test is the subsampled one, of an expansion that the state shares
    is_subsampled = False

    def __init__(
        self,
        model: Callable | None,
        algorithm: Any,
        *,
        control_variate: ControlVariate | None,
        chunk_size: int | None,
        num_integration_steps: int,
        friction: float,
        resample_momentum: bool,
        num_epochs: int | None,
        optimizer: optax.GradientTransformation | None,
        **options: Any,
    ):
        if model is None or options.get("potential_fn") is not None:
            name = type(self).__name__
            raise ValueError(
                f"model must be given to {name}, and no potential_fn: minibatches are those of a "
                "model's plates. blackjax_ext takes potentials of your own."
            )
        if control_variate not in ORDERS:
            raise ValueError(
                'control_variate must be None, "first_order" or "second_order"; '
                f"got {control_variate!r}."
            )
        if chunk_size is not None:
            check_count("chunk_size", chunk_size)
        if num_epochs:
            check_count("num_epochs", num_epochs)
        check_optimizer(optimizer)
        check_friction(friction, num_integration_steps, resample_momentum)
        self._num_epochs = num_epochs
        self._optimizer = optimizer
        self._control_variate = control_variate
        self._order = ORDERS[control_variate]
        self._chunk_size = chunk_size
        self._num_integration_steps = num_integration_steps
        # the curvature at the anchor beats a covariance of the few draws of a warm-up
        options.setdefault("dense_mass", self._order > 0)
        options.setdefault("adapt_mass_matrix", self._order == 0)
        super().__init__(
            FullView(model),
            algorithm,
            num_integration_steps=num_integration_steps,
            friction=friction,
            resample_momentum=resample_momentum,
            **options,
        )

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> KernelState:
        """First state: one chain for a key, vectorized chains for a batch of keys."""
        if self._order and GIBBS_SITES_KWARG in (model_kwargs or {}):
            raise ValueError(
                "control_variate must be None inside Gibbs, where the energy that it expands "
                f"changes with the other sites; got {self._control_variate!r}."
            )
        model = cast(Callable, self._model)
        with jax.ensure_compile_time_eval():  # keys and starts may be traced, arguments are not
            check_model(model, model_args, model_kwargs, needs_minibatches=self.needs_minibatches)
        return super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)

    def _takes_metric(self) -> bool:
        if self._order:
            return self._warm_start and self._num_warmup > 0
        return self._adapt_mass_matrix

    def _prepare(self, z, model_args, model_kwargs) -> Expansion | None:
        """The expansion of the rows at the mode, for the subsampled test: all that grows with N."""
        if not self.is_subsampled:
            return None
        first = jax.tree.map(lambda leaf: leaf[0], z)
        # parallel chains have traced starts
        if not all(not_jax_tracer(leaf) for leaf in jax.tree.leaves(first)):
            first = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), first)
        with jax.ensure_compile_time_eval():
            model = cast(Callable, self._model)
            posterior = linear_predictor_of(model, model_args, model_kwargs)
            check_predictors(posterior, model, model_args, model_kwargs, first)
            return expand(posterior, first, order=self._order).without_data()

    def _first_metric(self, x: Array, shared: Expansion | None) -> Factor:
        if shared is None or self._inverse_mass_matrix is not None:
            return super()._first_metric(x, shared)
        return shared.metric if self._dense_mass else newton_path.diagonal(shared.metric)

    def _is_warm(self, size: int) -> bool:
        if self.is_subsampled:  # the expansion has found the mode
            return False
        if self._order:  # there must be an anchor
            return True
        return self._takes_metric() and not self._epochs(size) and super()._is_warm(size)

    def _epochs(self, size: int) -> int:
        """Passes over the data of the optimizer that looks for a start."""
        if not self._warm_start or not self._num_warmup:
            return 0
        if self._num_epochs is None:
            return 0 if super()._is_warm(size) else NUM_EPOCHS
        return self._num_epochs

    def _descended(self, rng_key, z, model_args, model_kwargs) -> Any:
        """Positions `z` after as many epochs of the optimizer, each with its own minibatches."""
        split = split_arguments(model_args, model_kwargs)
        model = cast(Callable, self._model)
        per_epoch, num_rows = size_of_epoch(model, model_args, model_kwargs)
        num_steps = per_epoch * self._epochs(ravel_each(z).shape[1])

        def program(arrays, rng_key, z):
            arguments, keywords = split.join(arrays)
            potential = stochastic_potential(model, arguments, keywords, self._chunk_size)
            return jax.vmap(
                lambda key, z: descend(key, potential, z, num_steps, num_rows, self._optimizer)
            )(rng_key, z)

        return run_with(split, jax.jit(program), rng_key, z)

    def _target_of(self, model_args: tuple, model_kwargs: dict | None, shared: Any) -> Any:
        model = cast(Callable, self._model)
        if shared is not None:
            expansion = shared.of(linear_predictor_of(model, model_args, model_kwargs))
            batch_size = batch_size_of(model, model_args, model_kwargs)
            test = {"acceptance": subsampled(expansion)}
            algorithm = Algorithm(self._algorithm.api, self._algorithm.parameters | test)
            return AnchoredTarget(algorithm, expanded_minibatch(expansion, batch_size), 0)
        potential = stochastic_potential(model, model_args, model_kwargs, self._chunk_size)
        return AnchoredTarget(self._algorithm, potential, self._order)

    def _begin(self, rng_key, z, model_args, model_kwargs, shared) -> tuple[Any, AdaptState, Array]:
        size = ravel_each(z).shape[1]
        if self._order and size > newton_path.MAX_DIMENSION["reverse"]:
            most = newton_path.MAX_DIMENSION["reverse"]
            raise ValueError(
                f"control_variate must be None beyond {most} dimensions, "
                f"where no Hessian is taken to find the mode; the model has {size}."
            )

        # the start too reads the data in chunks
        model = cast(Callable, self._model)
        in_chunks = partial(energy_in_chunks, model, self._chunk_size)
        self._view = cast(View, self._view)._replace(potential_fn=in_chunks)
        if self._epochs(size):
            rng_key, key_descent = split_each(rng_key, 2)
            z = self._descended(key_descent, z, model_args, model_kwargs)
        if shared is not None and self._takes_metric():
            rng_key, z = starts(rng_key, shared)
        inner, adapt_state, rng_key = super()._begin(rng_key, z, model_args, model_kwargs, shared)
        for leaf in jax.tree.leaves(inner.anchor):
            if not_jax_tracer(leaf) and not np.isfinite(leaf).all():
                raise ValueError(NO_ANCHOR.format(self._control_variate))
        return inner, adapt_state, rng_key

    def _reuse(self, split, function, x) -> Callable:
        # an anchor outlives the search: it must be of this very model
        return jax.jit(function) if self._order else super()._reuse(split, function, x)

    def _find_start(self, rng_key, logdensity_fn, x, target_fn, unravel):
        """With a control variate, draws around the mode; and the mode as its anchor."""
        if not self._order:
            return super()._find_start(rng_key, logdensity_fn, x, target_fn, unravel)
        potential = target_fn().potential
        best = x[jnp.argmax(jax.vmap(logdensity_fn)(x))]
        mode = newton_path.mode(lambda x: energy_at(potential, unravel(x)), best)
        # NaN for no mode
        gradient = jnp.where(mode.distance < 1.0, -mode.gradient, jnp.nan)
        anchor = Anchor(unravel(mode.x), gradient, -mode.hessian if self._order == 2 else None)
        if self._takes_metric():
            draw = partial(newton_path.approximate, logdensity_fn=logdensity_fn)
            x = jax.vmap(lambda key: draw(key, x=mode.x, metric=mode.metric).draw)(rng_key)
        return x, mode.metric, anchor

    def _with_found(self, inner: Any, found: Any) -> Any:
        """States with the anchor."""
        num_chains = inner.chain.momentum.shape[0]

        def for_each(leaf):
            return jnp.broadcast_to(leaf, (num_chains, *leaf.shape))

        return inner._replace(anchor=jax.tree.map(for_each, found))

    def _first_step_size(self, target, rng_key, inner, metric) -> Array:
        """In coordinates that the mode has whitened, one that needs no search."""
        if not (self._order and self._adapt_step_size and self._takes_metric()):
            return super()._first_step_size(target, rng_key, inner, metric)
        most = min(self._step_size, self._longest_step())
        return jnp.full(rng_key.shape[:1], most, metric.inverse_sqrt.dtype)

    def _kept(self, old: Any, new: Any) -> Any:
        return new._replace(anchor=old.anchor)

    def _adapt(self, target, i, is_single, rng_key, facts, inner, adapt_state):
        new, adapt_state = super()._adapt(target, i, is_single, rng_key, facts, inner, adapt_state)
        if self._adapt_step_size:
            adapt_state = self._capped(adapt_state)
        return self._kept(inner, new), adapt_state

    def _longest_step(self) -> float:
        """No trajectory shall turn back, and no step come near 2, where leapfrogs diverge."""
        return min(LENGTH / self._num_integration_steps, 1.0)

    def _capped(self, adapt_state: AdaptState) -> AdaptState:
        """No step longer than the longest."""
        most = self._longest_step()
        averaging = adapt_state.averaging
        averaging = averaging._replace(log_x_avg=jnp.minimum(averaging.log_x_avg, np.log(most)))
        step_size = jnp.minimum(adapt_state.step_size, most)
        return adapt_state._replace(step_size=step_size, averaging=averaging)

    def best_accept_prob(self, size: int) -> float:
        """0.65, that of HMC (Beskos et al. 2013)."""
        del size
        return 0.65


def starts(rng_key: Array, expansion: Expansion) -> tuple[Array, Any]:
    """New keys, and a draw from the normal approximation at the anchor for each of them."""
    rng_key, key_draw = split_each(rng_key, 2)
    a, unravel = ravel_pytree(expansion.position)

    def draw(key):
        noise = jax.random.normal(key, a.shape, a.dtype)
        return unravel(a + expansion.metric.inverse_sqrt_times(noise))

    return rng_key, jax.vmap(draw)(key_draw)


class AMAGOLD(MinibatchKernel):
    r"""AMAGOLD (Zhang, Cooper and De Sa, Algorithm 2): exact, with minibatch gradients.

    For a model with ``numpyro.plate(name, N, subsample_size=B)`` around its observed sites. A
    transition costs T gradients on B rows and one evaluation on all N, in chunks.
    `target_accept_prob` is 0.65 by default. ``kernel.model`` is the model with all rows.

    :param model: NumPyro model with subsample plates.
    :param control_variate: "second_order", "first_order" or None: expansion of the gradient at the
        mode of the full data, found before the warm-up, which takes most of the minibatch noise
        out of it. Each is exact. Up to 512 dimensions; beyond, None.
    :param num_integration_steps: T, minibatch gradients per transition.
    :param friction: beta >= 0, in whitened coordinates. None for 1/4, which damps the noise of the
        gradient, or for 0 where a control variate leaves little of it and the momentum is fresh.
    :param resample_momentum: Draw the momentum anew for each trajectory (reversible), or keep it.
    :param acceptance: "full" is exact and reads all N rows once per transition. "subsampled" is as
        exact and reads a few: for rows that see the latents only through linear predictors, with a
        distribution whose derivatives are bounded (:mod:`blackjax_ext.subsampling.thinning`), and
        any prior. Nothing in a transition then grows with N; mode, bounds and alias table are found
        before the warm-up, which the extra field ``inner.num_rows`` does not count. Or an
        approximate test that reads a part of the rows:
        "sequential" or "barker" of :mod:`blackjax_ext.minibatch_tests`, or one of these with
        other parameters. With these the potential energy is not evaluated and shows as NaN. The
        extra field "inner.num_rows" counts the rows of each test.
    :param chunk_size: Rows read at once by the energy, which bounds its memory; None for as many as
        have their intermediate results in 32 MiB.
    :param num_epochs: Passes over the data, before the warm-up, of an optimizer on minibatches that
        looks for a start. None for 3 beyond 512 dimensions, and none below, where Newton's path
        does.
    :param optimizer: Of optax, for the energy over the number of rows; None for Adam.
    :param options: See :class:`BlackJAXKernel`. With a control variate, `dense_mass` is on and
        `adapt_mass_matrix` off by default: the metric is the curvature that the warm start finds.

    **Example**

    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import AMAGOLD
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     with numpyro.plate("rows", len(y), subsample_size=100) as rows:
    ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])
    >>> y = 2.0 + jax.random.normal(jax.random.key(0), (10_000,))
    >>> mcmc = MCMC(AMAGOLD(model), num_warmup=100, num_samples=300, progress_bar=False)
    >>> mcmc.run(jax.random.key(1), y)
    >>> bool(abs(mcmc.get_samples()["mean"].mean() - y.mean()) < 0.005)
    True
    """

    def __init__(
        self,
        model: Callable | None = None,
        *,
        control_variate: ControlVariate | None = "second_order",
        num_integration_steps: int = 10,
        friction: float | None = None,
        resample_momentum: bool = True,
        acceptance: Literal["full", "subsampled", "sequential", "barker"] | Acceptance = "full",
        chunk_size: int | None = None,
        num_epochs: int | None = None,
        optimizer: optax.GradientTransformation | None = None,
        **options: Unpack[KernelOptions],
    ):
        self.is_subsampled = isinstance(acceptance, str) and acceptance == "subsampled"
        if self.is_subsampled:
            if control_variate is None:
                raise ValueError(
                    'control_variate must be "second_order" or "first_order" with '
                    'acceptance="subsampled", whose expansion it is; got None.'
                )
            acceptance = "full"  # until there is an expansion
        self._acceptance = acceptance
        if isinstance(acceptance, str) and acceptance in TESTS:
            acceptance = TESTS[acceptance]
        if not isinstance(acceptance, Acceptance):
            raise ValueError(
                f"acceptance must be one of {sorted([*TESTS, 'subsampled'])}, or an Acceptance of "
                f"blackjax_ext; got {acceptance!r}."
            )
        if friction is None:
            friction = 0.0 if control_variate is not None and resample_momentum else 0.25
        super().__init__(
            model,
            blackjax_ext.amagold,
            control_variate=control_variate,
            num_integration_steps=num_integration_steps,
            friction=friction,
            resample_momentum=resample_momentum,
            chunk_size=chunk_size,
            num_epochs=num_epochs,
            optimizer=optimizer,
            acceptance=acceptance,
            **options,
        )

    def best_accept_prob(self, size: int) -> float:
        """0.65, that of HMC (Beskos et al. 2013), or as much of Barker's test, at most 1/2."""
        if self.is_subsampled:
            # vetoes make it exp(-c d) over a distance d, where d^2 exp(-c d) is greatest at exp(-2)
            return 0.25
        return 0.41 if self._acceptance == "barker" else super().best_accept_prob(size)


class L2MC(MinibatchKernel):
    """L2MC (Horowitz 1991): AMAGOLD with the gradient of all rows, its full-batch reference.

    T gradients and one evaluation on all N rows, in chunks. Without friction it is HMC.
    `target_accept_prob` is 0.65 by default. Models without subsample plates work too.

    :param model: NumPyro model.
    :param num_integration_steps: T, full gradients per transition.
    :param friction: beta >= 0, in whitened coordinates.
    :param resample_momentum: As for :class:`AMAGOLD`.
    :param chunk_size: As for :class:`AMAGOLD`.
    :param num_epochs: As for :class:`AMAGOLD`.
    :param optimizer: As for :class:`AMAGOLD`.
    :param options: See :class:`BlackJAXKernel`.
    """

    needs_minibatches = False

    def __init__(
        self,
        model: Callable | None = None,
        *,
        num_integration_steps: int = 10,
        friction: float = 0.25,
        resample_momentum: bool = True,
        chunk_size: int | None = None,
        num_epochs: int | None = None,
        optimizer: optax.GradientTransformation | None = None,
        **options: Unpack[KernelOptions],
    ):
        super().__init__(
            model,
            blackjax_ext.l2mc,
            control_variate=None,
            num_integration_steps=num_integration_steps,
            friction=friction,
            resample_momentum=resample_momentum,
            chunk_size=chunk_size,
            num_epochs=num_epochs,
            optimizer=optimizer,
            **options,
        )


class SGHMC(MinibatchKernel):
    """SGHMC (Chen, Fox and Guestrin 2014), biased: no acceptance test, no pass over the data.

    T gradients on B rows per transition. The bias grows with the step size, which cannot be
    adapted, and with the noise of the gradient: :class:`AMAGOLD` is the exact kernel.

    :param model: NumPyro model with subsample plates.
    :param control_variate: As for :class:`AMAGOLD`.
    :param num_integration_steps: T, minibatch gradients per transition.
    :param friction: beta >= 0, in whitened coordinates.
    :param resample_momentum: As for :class:`AMAGOLD`.
    :param chunk_size: Rows read at once while the start is looked for.
    :param num_epochs: As for :class:`AMAGOLD`.
    :param optimizer: As for :class:`AMAGOLD`.
    :param options: See :class:`BlackJAXKernel`. `step_size` is 0.1 by default.
    """

    def __init__(
        self,
        model: Callable | None = None,
        *,
        control_variate: ControlVariate | None = "second_order",
        num_integration_steps: int = 10,
        friction: float = 0.25,
        resample_momentum: bool = True,
        chunk_size: int | None = None,
        num_epochs: int | None = None,
        optimizer: optax.GradientTransformation | None = None,
        **options: Unpack[KernelOptions],
    ):
        for name in ("adapt_step_size", "target_accept_prob"):
            if options.get(name):
                raise ValueError(
                    f"{name} must be left out: SGHMC accepts everything; got {options[name]!r}."
                )
        arguments: dict[str, Any] = {"step_size": 0.1, **options, "adapt_step_size": False}
        super().__init__(
            model,
            blackjax_ext.sghmc,
            control_variate=control_variate,
            num_integration_steps=num_integration_steps,
            friction=friction,
            resample_momentum=resample_momentum,
            chunk_size=chunk_size,
            num_epochs=num_epochs,
            optimizer=optimizer,
            **arguments,
        )
