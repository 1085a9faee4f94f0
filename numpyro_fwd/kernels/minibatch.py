"""The named kernels of the minibatch family, on models with subsample plates."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack, cast

import jax
import optax
from jax import Array

from blackjax_ext.checks import check_count
from blackjax_ext.sgmcmc.acceptance import FULL_PASS, Acceptance
from blackjax_ext.sgmcmc.amagold import amagold
from blackjax_ext.sgmcmc.l2mc import l2mc
from blackjax_ext.sgmcmc.leapfrog import check_friction
from blackjax_ext.sgmcmc.sghmc import sghmc
from numpyro_fwd.bridge.argument_errors import naming_arguments
from numpyro_fwd.bridge.arguments import evaluating
from numpyro_fwd.bridge.numpyro_private import GIBBS_SITES_KWARG, not_jax_tracer
from numpyro_fwd.bridge.plates import FullView, first_rows
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.bridge.separate_rows import checked_rows
from numpyro_fwd.bridge.views import View
from numpyro_fwd.disk import holds_rows_on_disk
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.minibatch_options import ControlVariate, MinibatchOptions, Subsampled
from numpyro_fwd.kernels.optimizer_start import check_start_optimizer
from numpyro_fwd.kernels.row_strategies import AnchoredRows, PlainRows, SubsampledRows
from numpyro_fwd.kernels.state import KernelState
from numpyro_fwd.kernels.strategy import Strategy
from numpyro_fwd.subsampling.centring import Centred, centred_start, noise_seen_by_rows
from numpyro_fwd.types import Args, Kwargs, Model

__all__ = ["AMAGOLD", "L2MC", "SGHMC"]

TestName = Literal["full", "subsampled"]

# where a normal forgets its start: the autocorrelation is cos(2) = -0.4 without friction, and with
# a friction of 1/4 it is -0.1
LENGTH = 2.0
# acceptance probability to adapt to with the subsampled test: vetoes make it exp(-c d) over a
# distance d, where d^2 exp(-c d) is greatest at exp(-2)
SUBSAMPLED_ACCEPT_PROB = 0.25


class MinibatchKernel(BlackJAXKernel):
    """Kernel of an algorithm that takes a stochastic potential, made from a model's plates.

    How rows are read is its strategy's (:mod:`numpyro_fwd.kernels.row_strategies`). The step size
    is adapted up to 1 and a trajectory of length 2: in whitened coordinates, a longer one turns
    back, and no step shall come near 2, where leapfrogs diverge.
    """

    needs_minibatches = True
    # noise of a hierarchy that chains have put back, found at each start
    _noise: tuple[str, ...] = ()
    advice = (
        "Where gradients are of minibatches, give a larger subsample_size, or "
        'control_variate="second_order" for None; where a scale of a hierarchy may tend to zero, '
        "reparametrize the model (numpyro.infer.reparam.LocScaleReparam); where covariates are far "
        "from zero, centre them; or use numpyro.infer.NUTS on a model without subsample_size."
    )

    def __init__(
        self,
        model: Model | None,
        algorithm: Any,
        *,
        control_variate: ControlVariate | None = None,
        subsampled: Subsampled | None = None,
        num_integration_steps: int = 10,
        friction: float | None = 0.25,
        resample_momentum: bool = True,
        chunk_size: int | None = None,
        num_epochs: int | None = None,
        optimizer: optax.GradientTransformation | None = None,
        **options: Any,
    ):
        if model is None or options.get("potential_fn") is not None:
            name = type(self).__name__
            raise ValueError(
                f"model must be given to {name}, and no potential_fn: minibatches are those of a "
                "model's plates. blackjax_ext takes potentials of your own."
            )
        is_anchored = isinstance(control_variate, str) and control_variate == "second_order"
        if not is_anchored and control_variate is not None:
            raise ValueError(
                'control_variate must be None or "second_order", which also takes the place of '
                f'"first_order"; got {control_variate!r}.'
            )
        if chunk_size is not None:
            check_count("chunk_size", chunk_size)
        if num_epochs:
            check_count("num_epochs", num_epochs)
        check_start_optimizer(optimizer)
        friction = 0.25 if friction is None else friction
        check_friction(friction, num_integration_steps, resample_momentum)
        self._control_variate = control_variate
        self.longest_step = min(LENGTH / num_integration_steps, 1.0)
        strategy: Strategy = PlainRows(chunk_size, num_epochs, optimizer)
        if is_anchored:
            strategy = AnchoredRows(chunk_size, num_epochs, optimizer)
        if subsampled is not None:
            strategy = SubsampledRows(subsampled)
        # the curvature at the anchor beats a covariance of the few draws of a warm-up
        options.setdefault("dense_mass", is_anchored)
        options.setdefault("adapt_mass_matrix", not is_anchored)
        super().__init__(
            FullView(model),
            algorithm,
            strategy=strategy,
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
        model_args: Args,
        model_kwargs: Kwargs | None,
    ) -> KernelState:
        """First state: one chain for a key, vectorized chains for a batch of keys."""
        if self._control_variate and GIBBS_SITES_KWARG in (model_kwargs or {}):
            raise ValueError(
                "control_variate must be None inside Gibbs, where the energy that it expands "
                f"changes with the other sites; got {self._control_variate!r}."
            )
        leaves = jax.tree.leaves((model_args, model_kwargs))
        if self._control_variate and not all(not_jax_tracer(leaf) for leaf in leaves):
            raise ValueError(
                "the data must not be traced, since the mode of all rows is found before a program "
                "is compiled: inside jax.jit let them be constants, or give control_variate=None; "
                f"got {self._control_variate!r}."
            )
        model = cast(Model, self._model)
        given = model_args, model_kwargs
        with evaluating(*given), naming_arguments(*given):  # keys and starts may be traced
            self._rows = checked_rows(model, *given, needs_minibatches=self.needs_minibatches)
        try:
            return super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        finally:
            self._rows = None

    @property
    def _viewed(self) -> Model | None:
        """The model, with noise that rows see put back where the test needs linear predictors."""
        return Centred(cast(Model, self._model), self._noise) if self._noise else self._model

    def _look(
        self, rng_key: Array, init_params: Any, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[View, Any]:
        """The target, whose coordinates may be others than those of `init_params`."""
        if isinstance(self._strategy, SubsampledRows):
            model = cast(Model, self._model)
            rows = self._rows or RowModel.of(model, model_args, model_kwargs)
            with evaluating(model_args, model_kwargs):
                self._noise = noise_seen_by_rows(rows)
            init_params = centred_start(rows, self._noise, rng_key, init_params)
        found = super()._look(rng_key, init_params, model_args, model_kwargs)
        if self._rows:  # of which noise may have been put back
            rows = self._rows
            if self._noise:
                rows = RowModel.of(cast(Model, self._viewed), model_args, model_kwargs)
            self._rows = rows.without_data()
        return found

    def _reset(self) -> None:
        super()._reset()
        self._noise = ()

    def _model_of_start(self, model_args: Args, model_kwargs: Kwargs | None) -> Model:
        """The model with all rows, or with a few where all of them are on disk."""
        model = super()._model_of_start(model_args, model_kwargs)
        return first_rows(model) if holds_rows_on_disk((model_args, model_kwargs)) else model


class AMAGOLD(MinibatchKernel):
    r"""AMAGOLD (Zhang, Cooper and De Sa, Algorithm 2): exact, with minibatch gradients.

    For a model with ``numpyro.plate(name, N, subsample_size=B)`` around its observed sites. A
    transition costs T gradients on B rows and one evaluation on all N, in chunks. With
    ``acceptance="subsampled"`` trajectories read no rows, and the test reads a few.
    `target_accept_prob` is 0.65 by default, 0.25 with ``"subsampled"``.
    ``kernel.model`` is the model with all rows: give it to ``Predictive``, or write the plate with
    ``subsample_size=B if y is not None else None``, or predictions are of B rows drawn at random.

    Parameters
    ----------
    model
        NumPyro model with subsample plates.
    control_variate
        "second_order" or None: expansion of the gradient at the mode of the full data, found before
        the warm-up, which takes most of the minibatch noise out of it. Both are exact. Up to 512
        dimensions (with acceptance="subsampled" those that all rows see: groups of rows may be
        thousands); beyond, None.
    acceptance
        "full" is exact and reads all N rows once per transition. "subsampled" is also exact and
        reads a few; its options are those of :class:`numpyro_fwd.Subsampled`, which may be given
        instead. It requires a likelihood that depends on the latents only through linear
        predictors, and a distribution with bounded derivatives: one with a family in
        :mod:`blackjax_ext.families`, any smooth one of at most four scalar parameters, one of these
        that is censored or truncated, or a ``numpyro.factor`` for each row. Any prior will do
        (:mod:`blackjax_ext.subsampling.thinning`). Models with 50 groups of rows or more are
        sampled in sweeps (:mod:`blackjax_ext.subsampling.group_sweeps`). ``LocScaleReparam`` is
        undone for effects that rows depend on; draws have the sites of the model as it is written
        (:mod:`numpyro_fwd.subsampling.centring`). The cost of a transition does not grow with N;
        mode, bounds and alias table are computed before the warm-up. The potential energy is then
        not evaluated and shows as NaN. Or an ``Acceptance`` of :mod:`blackjax_ext.acceptance`. The
        extra field "inner.num_rows" counts the rows of each test, without those of the set-up.
    options
        See :class:`numpyro_fwd.kernels.minibatch_options.MinibatchOptions`.

    Examples
    --------
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

    option_defaults: ClassVar[Mapping[str, Any]] = {"friction": None}

    def __init__(
        self,
        model: Model | None = None,
        *,
        control_variate: ControlVariate | None = "second_order",
        acceptance: TestName | Acceptance | Subsampled = "full",
        **options: Unpack[MinibatchOptions],
    ):
        if moved := sorted({"anchor", "gradient"} & options.keys()):
            raise TypeError(
                f"{moved[0]} is an option of the subsampled test; give it by "
                f"AMAGOLD(model, acceptance=numpyro_fwd.Subsampled({moved[0]}=...))."
            )
        subsampled = subsampled_of(acceptance, control_variate)
        if subsampled is not None:
            self.best_accept_prob = SUBSAMPLED_ACCEPT_PROB
            acceptance = FULL_PASS  # until there is an expansion
        elif isinstance(acceptance, str) and acceptance == "full":
            acceptance = FULL_PASS
        if not isinstance(acceptance, Acceptance):
            raise ValueError(
                'acceptance must be "full", "subsampled", a Subsampled, or an Acceptance of '
                f"blackjax_ext; got {acceptance!r}."
            )
        if options.get("friction") is None:
            is_fresh = options.get("resample_momentum", True)
            options["friction"] = 0.0 if control_variate is not None and is_fresh else 0.25
        super().__init__(
            model,
            amagold,
            control_variate=control_variate,
            subsampled=subsampled,
            acceptance=acceptance,
            **options,
        )


def subsampled_of(acceptance: Any, control_variate: Any) -> Subsampled | None:
    """Options of the subsampled test; None for another one."""
    is_named = isinstance(acceptance, str) and acceptance == "subsampled"
    if not is_named and not isinstance(acceptance, Subsampled):
        return None
    if not isinstance(control_variate, str) or control_variate != "second_order":
        raise ValueError(
            "control_variate must be left out with the subsampled test, whose expansion is of "
            f"second order; got {control_variate!r}."
        )
    return Subsampled() if is_named else acceptance


class L2MC(MinibatchKernel):
    """L2MC (Horowitz 1991): AMAGOLD with the gradient of all rows, its full-batch counterpart.

    T gradients and one evaluation on all N rows, in chunks. Without friction it is HMC.
    `target_accept_prob` is 0.65 by default. Models without subsample plates work too.

    Parameters
    ----------
    model
        NumPyro model.
    options
        See :class:`numpyro_fwd.kernels.minibatch_options.MinibatchOptions`.
    """

    needs_minibatches = False

    def __init__(self, model: Model | None = None, **options: Unpack[MinibatchOptions]):
        super().__init__(model, l2mc, **options)


class SGHMC(MinibatchKernel):
    """SGHMC (Chen, Fox and Guestrin 2014), biased: no acceptance test, no pass over the data.

    T gradients on B rows per transition. The bias grows with the step size, which cannot be
    adapted, and with the noise of the gradient: :class:`AMAGOLD` is the exact kernel.

    Parameters
    ----------
    model
        NumPyro model with subsample plates.
    control_variate
        As for :class:`AMAGOLD`.
    options
        See :class:`numpyro_fwd.kernels.minibatch_options.MinibatchOptions`; `step_size` is 0.1 by
        default.
    """

    option_defaults: ClassVar[Mapping[str, Any]] = {"step_size": 0.1}

    def __init__(
        self,
        model: Model | None = None,
        *,
        control_variate: ControlVariate | None = "second_order",
        **options: Unpack[MinibatchOptions],
    ):
        for name in ("adapt_step_size", "target_accept_prob"):
            if options.get(name):
                raise ValueError(
                    f"{name} must be left out: SGHMC accepts everything; got {options[name]!r}."
                )
        arguments: dict[str, Any] = {"step_size": 0.1, **options, "adapt_step_size": False}
        super().__init__(model, sghmc, control_variate=control_variate, **arguments)
