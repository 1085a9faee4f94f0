"""BlackJAX's own tuning of its microcanonical samplers, which our warm-up cannot tune.

``blackjax.mclmc`` accepts every step: its step size is held to a variance of the energy error, and
its length L is found from the autocorrelation of its draws
(``blackjax.mclmc_find_L_and_step_size``). Its adjusted form accepts and rejects, and is tuned at a
fixed number of steps per proposal (``blackjax.adjusted_mclmc_find_L_and_step_size``).
"""

from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState
from jax import Array

from blackjax_ext.adaptation.algorithm import Algorithm, BoundAlgorithm, Stepper
from blackjax_ext.adaptation.run import bind
from blackjax_ext.mcmc.derivatives import Wanted
from blackjax_ext.metrics import Factor, factorize
from numpyro_fwd.bridge.views import logdensity_of
from numpyro_fwd.kernels.strategy import Run, Source, Start, WholeDensity, ravel_one
from numpyro_fwd.types import Args, Kwargs

__all__ = ["Tuned", "Tuning", "is_microcanonical"]

# shares of `num_steps` that BlackJAX's tunings take in all: they shall take the warm-up's steps
SHARES = {"mclmc": 1 / 3, "adjusted_mclmc": 0.2}
NUM_INTEGRATION_STEPS = 2  # of a proposal: the default of BlackJAX's tuning, robust by its account


class Tuned(NamedTuple):
    """Outcome of the tuning, which chains share.

    step_size
        Step size.
    L
        Distance after which the momentum is forgotten; None for the adjusted sampler.
    metric
        Variances of the posterior, as a metric.
    """

    step_size: Array
    L: Array | None
    metric: Factor


def is_microcanonical(api: Any) -> bool:
    """Whether BlackJAX has a tuning of its own for this algorithm."""
    return api is blackjax.mclmc or api is blackjax.adjusted_mclmc


class Tuning(WholeDensity):
    """All data as one density, and parameters from BlackJAX's tuning instead of the warm-up's.

    It takes `num_warmup` steps for each chain, from the end of Newton's path, before the steps of
    the warm-up, which burn in. The chains share the medians of what they found.

    Parameters
    ----------
    algorithm
        ``blackjax.mclmc`` or ``blackjax.adjusted_mclmc``, with its fixed parameters.
    differentiation
        "reverse" or "forward".
    target_accept_prob
        Acceptance probability that the adjusted sampler is tuned to.
    """

    finds = ("L",)

    def __init__(self, algorithm: Algorithm, differentiation: Wanted, target_accept_prob: float):
        super().__init__(differentiation)
        self.algorithm = algorithm
        self.target_accept_prob = target_accept_prob

    def prepare(self, run: Run, z: Any) -> Tuned | None:
        """The parameters that all chains share; None without a warm-up, which is what pays."""
        if not run.num_warmup:
            return None
        # a fixed key: what it finds are parameters, not a draw
        num_chains = jax.tree.leaves(z)[0].shape[0]
        key_path, key_tune = jax.random.split(jax.random.key(0))
        keys = jax.random.split(key_path, num_chains)
        start = super().start(run._replace(adapts_metric=True), keys, z, None)
        guess = None if start.metric is None else start.metric.diagonal()
        unravel = ravel_one(z)

        def tune_all(arrays, keys, x, guess):
            logdensity_fn = logdensity_of(run.source.view, *run.arguments.join(arrays))
            bound = bind(self.algorithm, logdensity_fn, self.differentiation)
            assert isinstance(bound, BoundAlgorithm)
            first = factorize(None if guess is None else guess.inverse()).at(x[0])
            tune = partial(self.tune, bound, run.num_warmup, first)
            tuned = jax.vmap(tune)(keys, jax.vmap(unravel)(x))
            return jax.tree.map(lambda leaf: jnp.median(leaf, axis=0), tuned)

        keys = jax.random.split(key_tune, num_chains)
        step_size, length, variances = run(tune_all, keys, start.x, guess)
        length = None if self.algorithm.api is blackjax.adjusted_mclmc else length
        return Tuned(step_size, length, factorize(variances))

    def tune(
        self, bound: BoundAlgorithm, num_steps: int, first: Factor, rng_key: Array, position: Any
    ) -> tuple[Array, Array, Array]:
        """Step size, length and variances of one chain from `position` and the metric `first`."""
        key_init, key_tune = jax.random.split(rng_key)
        api, kernel = self.algorithm.api, self.algorithm.kernel()
        options = self.algorithm.only(api.init, rng_key=key_init)
        state = api.init(position, bound.logdensity_fn, **options)
        variances = first.inverse()
        length = variances.size**0.5  # BlackJAX's own first guesses, but for the variances
        if api is blackjax.mclmc:
            state, tuned, _ = blackjax.mclmc_find_L_and_step_size(
                kernel,
                round(num_steps / SHARES["mclmc"]),
                state,
                key_tune,
                bound.logdensity_fn,
                params=MCLMCAdaptationState(length, 0.25 * length, variances),
            )
        else:
            state, tuned, _ = blackjax.adjusted_mclmc_find_L_and_step_size(
                partial(self.adjusted_step, kernel),
                bound.logdensity_fn,
                round(num_steps / SHARES["adjusted_mclmc"]),
                state,
                key_tune,
                self.target_accept_prob,
                params=MCLMCAdaptationState(length, 0.2 * length, variances),
                target_num_integration_steps=float(self.num_integration_steps),
            )
        return tuned.step_size, tuned.L, tuned.inverse_mass_matrix

    def adjusted_step(
        self, kernel: Any, rng_key, state, logdensity_fn, step_size, inverse_mass_matrix, **_: Any
    ) -> Any:
        """A step with the length of the kernel's own, whole where the tuning has a ratio."""
        supplied = {
            "step_size": step_size,
            "inverse_mass_matrix": inverse_mass_matrix,
            "integration_steps_params": (self.num_integration_steps,),
        }
        return kernel(
            rng_key, state, logdensity_fn, **{**self.algorithm.only(kernel, **supplied), **supplied}
        )

    @property
    def num_integration_steps(self) -> int:
        """Steps of a proposal of the adjusted sampler."""
        given = self.algorithm.parameters.get("integration_steps_params", (NUM_INTEGRATION_STEPS,))
        return int(given[0])

    def start(self, run: Run, rng_key: Array, z: Any, shared: Tuned | None) -> Start:
        """A draw from the best normal approximation on Newton's path, with what was tuned."""
        start = super().start(run, rng_key, z, None)
        if shared is None:
            return start
        return start._replace(metric=shared.metric, step_size=shared.step_size)

    def target(
        self,
        source: Source,
        algorithm: Algorithm,
        model_args: Args,
        model_kwargs: Kwargs | None,
        shared: Tuned | None,
    ) -> Stepper:
        """The algorithm on the log density with the parameters that were found."""
        if algorithm.api is blackjax.adjusted_mclmc:
            algorithm = algorithm.having(integration_steps_params=(self.num_integration_steps,))
        elif shared is not None and "L" not in algorithm.parameters:
            algorithm = algorithm.having(L=shared.L)
        elif "L" not in algorithm.parameters:
            raise ValueError("L must be given to blackjax.mclmc without a warm-up, which finds it.")
        return super().target(source, algorithm, model_args, model_kwargs, None)
