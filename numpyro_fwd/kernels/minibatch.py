"""AMAGOLD, and what kernels have in common that read models with subsample plates."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack, cast

import jax
import optax
from jax import Array

from blackjax_ext.checks import check_count
from blackjax_ext.sgmcmc.acceptance import FULL_PASS, Acceptance
from blackjax_ext.sgmcmc.amagold import amagold
from blackjax_ext.sgmcmc.leapfrog import check_friction
from numpyro_fwd.bridge.arguments import evaluating, naming_arguments
from numpyro_fwd.bridge.numpyro_private import GIBBS_SITES_KWARG, not_jax_tracer
from numpyro_fwd.bridge.plates import FullView, first_rows
from numpyro_fwd.bridge.separate_rows import checked_rows
from numpyro_fwd.bridge.views import View
from numpyro_fwd.disk import holds_rows_on_disk
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.chains import KernelState
from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.kernels.row_strategies import PlainRows, check_start_optimizer
from numpyro_fwd.kernels.strategy import Strategy
from numpyro_fwd.types import Args, Kwargs, Model

ControlVariate = Literal["second_order"]


class MinibatchOptions(KernelOptions, total=False):
    """Keywords every minibatch kernel takes, besides those of ``KernelOptions``.

    With a control variate, `dense_mass` is on and `adapt_mass_matrix` off by default: the metric is
    the curvature at the mode.

    Attributes
    ----------
    num_integration_steps
        T, gradients per transition; 10 by default.
    friction
        beta >= 0, in whitened coordinates; None for 1/4, which damps the noise of the gradient.
        For AMAGOLD, None means 0 with a control variate, which leaves little noise, if the
        momentum is resampled.
    resample_momentum
        Draw a new momentum for each trajectory (reversible), the default, or keep it.
    chunk_size
        Rows that a full pass reads at once, which bounds its memory; None for as many as have
        their intermediate results in 32 MiB.
    num_epochs
        Passes over the data, before the warm-up, of an optimizer on minibatches that finds a
        start. None for 3 beyond 512 dimensions, and 0 below, where Newton's path finds it.
    optimizer
        Of optax, for the energy divided by the number of rows; None for Adam.
    """

    num_integration_steps: int
    friction: float | None
    resample_momentum: bool
    chunk_size: int | None
    num_epochs: int | None
    optimizer: optax.GradientTransformation | None


class MinibatchKernel(BlackJAXKernel):
    """Kernel of an algorithm that takes a stochastic potential, made from a model's plates.

    How rows are read is its strategy's (:mod:`numpyro_fwd.kernels.row_strategies`). The step size
    is adapted up to 1 and a trajectory of length 2: in whitened coordinates, a longer one turns
    back, and no step shall come near 2, where leapfrogs diverge.
    """

    needs_minibatches = True
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
        reads_few_rows: bool = False,
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
        # trajectories of a length at which a normal forgets its start: the autocorrelation is
        # cos(2) = -0.4 without friction, and with a friction of 1/4 it is -0.1
        self.longest_step = min(2.0 / num_integration_steps, 1.0)
        strategy: Strategy = PlainRows(chunk_size, num_epochs, optimizer)
        if reads_few_rows:  # what stands on so much more
            from numpyro_fwd.kernels.subsampled_rows import SubsampledRows

            strategy = SubsampledRows()
        elif is_anchored:
            from numpyro_fwd.kernels.anchored_rows import AnchoredRows

            strategy = AnchoredRows(chunk_size, num_epochs, optimizer)
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
        """The model as it is: none of its latents is a missing response."""
        return self._model

    def _look(
        self, rng_key: Array, init_params: Any, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[View, Any]:
        found = super()._look(rng_key, init_params, model_args, model_kwargs)
        if self._rows:
            self._rows = self._rows.without_data()
        return found

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
        reads a few. It requires a likelihood that depends on the latents only through linear
        predictors, and a distribution with bounded derivatives: one with a family in
        :mod:`blackjax_ext.families`, any smooth one of at most four scalar parameters, or one of
        these that is censored or truncated. Effects are written centred, and any prior will do
        (:mod:`blackjax_ext.subsampling.row_tests`). Models with 50 groups of rows or more are
        sampled in sweeps (:mod:`blackjax_ext.subsampling.group_sweeps`). The cost of a transition
        does not grow with N; mode, bounds and alias table are computed before the warm-up. The
        potential energy is then not evaluated and shows as NaN. Or an ``Acceptance`` of
        :mod:`blackjax_ext.acceptance`. The extra field "inner.num_rows" counts the rows of each
        test, without those of the set-up.
    options
        See :class:`numpyro_fwd.kernels.minibatch.MinibatchOptions`.

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
        acceptance: Literal["full", "subsampled"] | Acceptance = "full",
        **options: Unpack[MinibatchOptions],
    ):
        name = acceptance if isinstance(acceptance, str) else None
        if name not in ("full", "subsampled") and not isinstance(acceptance, Acceptance):
            raise ValueError(
                'acceptance must be "full", "subsampled", or an Acceptance of blackjax_ext; got '
                f"{acceptance!r}."
            )
        if name == "subsampled":
            if not isinstance(control_variate, str) or control_variate != "second_order":
                raise ValueError(
                    "control_variate must be left out with the subsampled test, whose expansion is "
                    f"of second order; got {control_variate!r}."
                )
            # vetoes make it exp(-c d) over a distance d, where d^2 exp(-c d) is greatest at exp(-2)
            self.best_accept_prob = 0.25
        if options.get("friction") is None:
            is_fresh = options.get("resample_momentum", True)
            options["friction"] = 0.0 if control_variate is not None and is_fresh else 0.25
        super().__init__(
            model,
            amagold,
            control_variate=control_variate,
            reads_few_rows=name == "subsampled",
            # of the subsampled test there is one as soon as there is an expansion
            acceptance=acceptance if name is None else FULL_PASS,
            **options,
        )
