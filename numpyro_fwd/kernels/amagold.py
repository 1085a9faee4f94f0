"""AMAGOLD as a NumPyro kernel."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack

from blackjax_ext.sgmcmc.acceptance import FULL_PASS, Acceptance
from blackjax_ext.sgmcmc.amagold import amagold
from numpyro_fwd.kernels.minibatch import ControlVariate, MinibatchKernel, MinibatchOptions
from numpyro_fwd.types import Model


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
