"""The named kernels of the second-order family, whose chains share schedules."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from blackjax_ext import metrics, schedules
from blackjax_ext.mcmc import alsmmala, amsmmala
from blackjax_ext.mcmc.hp_mala import hp_mala
from blackjax_ext.mcmc.mmala import mmala
from blackjax_ext.mcmc.smmala import smmala
from numpyro_fwd.bridge.views import View
from numpyro_fwd.kernels.named import NamedKernel
from numpyro_fwd.types import Args, Kwargs

# in whitened coordinates a normal posterior has curvature 1: a lesser floor makes steps longer than
# the posterior where curvature is negative, and needs several times the evaluations (docs/results)
WHITENED_FLOOR = 1.0


METRIC = {"metric_fn": metrics.absolute_hessian(WHITENED_FLOOR)}


class HPMALA(NamedKernel):
    """Hessian-preconditioned MALA: Langevin steps scaled by the clipped Hessian.

    One gradient, one Hessian and one eigenvalue problem per step. `target_accept_prob` is 0.574 by
    default.

    Parameters
    ----------
    model
        NumPyro model, twice differentiable.
    floor
        Lower bound delta > 0 of the eigenvalues, in coordinates that the adapted
        `inverse_mass_matrix` whitens; with 1 a step is nowhere longer than the posterior's scale.
    """

    algorithm = hp_mala
    option_defaults: ClassVar[Mapping[str, Any]] = {"floor": WHITENED_FLOOR}
    best_accept_prob = 0.574  # MALA's, as its paper recommends


class SMMALA(NamedKernel):
    """Simplified manifold MALA (Girolami and Calderhead 2011).

    One gradient and one metric per step. `target_accept_prob` is 0.7 by default.

    Parameters
    ----------
    model
        NumPyro model, twice differentiable.
    metric_fn
        ``metric_fn(logdensity_fn, position)`` in unconstrained coordinates, of
        :mod:`blackjax_ext.metrics` or your own; the absolute Hessian with floor 1 by default.
    """

    algorithm = smmala
    option_defaults: ClassVar[Mapping[str, Any]] = METRIC
    best_accept_prob = 0.7  # Girolami and Calderhead 2011


class MMALA(NamedKernel):
    """Manifold MALA (Girolami and Calderhead 2011; Xifara et al. 2014).

    One gradient, one metric and its derivative per step. `target_accept_prob` is 0.7 by default.

    Parameters
    ----------
    model
        NumPyro model, three times differentiable.
    metric_fn
        As for :class:`SMMALA`; the SoftAbs Hessian with alpha 1 by default.
    """

    algorithm = mmala
    option_defaults: ClassVar[Mapping[str, Any]] = {"metric_fn": metrics.softabs_hessian(1.0)}
    best_accept_prob = 0.7  # Girolami and Calderhead 2011

    def _look(
        self, rng_key: Array, init_params: Any, model_args: Args, model_kwargs: Kwargs | None
    ) -> tuple[View, Any]:
        """The target and starts; ValueError for a metric whose derivative the model lacks."""
        view, z = super()._look(rng_key, init_params, model_args, model_kwargs)
        is_hessian = isinstance(self._algorithm.parameters["metric_fn"], metrics.HessianMetric)
        if is_hessian and view.differentiation == "gradients":
            raise ValueError(
                "MMALA needs the derivative of its metric, and the model has gradients alone; "
                "SMMALA(model), HPMALA(model) and MALA(model) do not need it, nor does a metric_fn "
                "of your own that is not made of the model's derivatives."
            )
        return view, z


class ScheduledKernel(NamedKernel):
    """Kernel that takes a step with a new metric as a schedule says.

    The decision is drawn once for all vectorized chains. The cached metric, or covariance, follows
    the chain in the warm-up and is then frozen, unless `follow` is set.
    """

    has_step_parameters = True
    option_defaults: ClassVar[Mapping[str, Any]] = {"schedule": None, **METRIC}

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """The metric; what decides on a step is given to each (:meth:`step_parameters`)."""
        self._options = options
        schedule = options["schedule"] or alsmmala.SCHEDULE
        checked: dict[str, Any] = self.algorithm.checked(options | {"schedule": schedule})
        return {"metric_fn": checked["metric_fn"]}

    def _follows(self, i: Array, num_warmup: Array) -> Array:
        return jnp.asarray(self._options["follow"]) | (i < num_warmup)


class ALSMMALA(ScheduledKernel):
    """MALA with a cached metric and scheduled SMMALA steps (Papamarkou and Ford, Algorithm 1).

    One gradient per step, and a metric on SMMALA steps. Exact: the cached metric is frozen after
    the warm-up. `target_accept_prob` is 0.6 by default. Biased with ``follow=True``.

    Parameters
    ----------
    model
        NumPyro model, twice differentiable.
    schedule
        Probability of an SMMALA step by iteration, warm-up included
        (:mod:`blackjax_ext.schedules`); None for one that falls from 1 to 0.05 in the warm-up.
    metric_fn
        As for :class:`SMMALA`; the absolute Hessian by default.
    follow
        Let the cached metric follow the chain after the warm-up too, as published.
    run_length
        Number of SMMALA steps in a row.
    """

    algorithm = alsmmala.alsmmala
    best_accept_prob = 0.6  # Papamarkou and Ford
    kept_fields = ("cached",)

    def step_parameters(
        self, rng_key: Array, i: Array, inner: Any, num_warmup: Array
    ) -> dict[str, Any]:
        """Whether step `i` is SMMALA's, and whether what it learns is kept."""
        decay = schedules.exponential(7.0, 0.05, 1)
        schedule = self._options["schedule"] or (lambda i: decay(i / jnp.maximum(num_warmup, 1)))
        run_length = self._options["run_length"]
        refresh = alsmmala.decide(rng_key, i, inner.is_current, schedule, run_length)
        follow = self._follows(i, num_warmup)
        return {"refresh": refresh, "is_current": inner.is_current, "follow": follow}


class AMSMMALA(ScheduledKernel):
    """Adaptive Metropolis with scheduled SMMALA steps (Papamarkou and Ford, Algorithm 2).

    One evaluation per step, and two gradients and metrics on SMMALA steps. Exact: the covariance
    is frozen after the warm-up. `target_accept_prob` is 0.27 by default. Biased with
    ``follow=True``.

    Parameters
    ----------
    model
        NumPyro model, twice differentiable.
    schedule
        Probability of an SMMALA step by iteration, warm-up included
        (:mod:`blackjax_ext.schedules`); None for every seventh.
    metric_fn
        As for :class:`SMMALA`; the absolute Hessian by default.
    follow
        Let the covariance follow the chain after the warm-up too, as published.
    """

    algorithm = amsmmala.amsmmala
    best_accept_prob = 0.27  # Papamarkou and Ford
    kept_fields = ("covariance", "mean", "num_draws")

    def step_parameters(
        self, rng_key: Array, i: Array, inner: Any, num_warmup: Array
    ) -> dict[str, Any]:
        """Whether step `i` is SMMALA's, and whether what it learns is kept."""
        del inner
        schedule = self._options["schedule"] or schedules.modulo(7)
        refresh = amsmmala.is_scheduled(rng_key, i, schedule)
        return {"refresh": refresh, "follow": self._follows(i, num_warmup)}
