"""Chains in coordinates of a model's effects, and how centred a warm-up has made these."""

from typing import Any, cast

import jax
import numpy as np
from jax import Array
from numpyro.infer import MCMC, reparam

from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.adaptation.in_coordinates import InCoordinates
from blackjax_ext.adaptation.run import bind, ravel_each
from blackjax_ext.coordinates.maps import centred
from blackjax_ext.coordinates.partial import first_pseudo, in_coordinates
from blackjax_ext.meshes import on_host
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.bridge.coordinates import ModelCoordinates, effects_of
from numpyro_fwd.bridge.scaled_noise import scaled_noise
from numpyro_fwd.kernels.chains import KernelState
from numpyro_fwd.kernels.strategy import (
    Run,
    Source,
    Start,
    Strategy,
    WholeDensity,
    follow_path,
    ravel_one,
)
from numpyro_fwd.types import Args, Kwargs, Model


class Effects(WholeDensity):
    """The effects of a model, and the strategy of steps in coordinates of them.

    ``recorded(target)`` is what is kept of a step.

    effects, noise, on_the_reals
        Names of the effects, of the noise of others, and of the effects with a location and a scale
        on the real line.
    as_written
        Sites that look like effects or like noise and are sampled as they are written, with why.
    """

    def __init__(self, strategy: Strategy, recorded: Function):
        if not isinstance(strategy, WholeDensity):
            raise TypeError(
                "learn_coordinates needs a kernel that reads all rows in each step; got one with "
                f"{type(strategy).__name__}."
            )
        super().__init__(strategy.differentiation)
        self.recorded = recorded
        self.effects: tuple[str, ...] = ()
        self.noise: tuple[str, ...] = ()
        self.on_the_reals: tuple[str, ...] = ()
        self.as_written: dict[str, str] = {}

    @property
    def names(self) -> set[str]:
        """All of them."""
        return {*self.effects, *self.noise}

    def look(self, model: Model, model_args: Args, model_kwargs: Kwargs | None, z: Any) -> None:
        """Find the effects of a model at a position."""
        of_model = model, model_args, model_kwargs
        effects = effects_of(*of_model, z)
        noise = scaled_noise(*of_model, z, effects.names)
        self.effects, self.noise = effects.names, noise.names
        self.as_written = noise.as_written | effects.as_written
        self.on_the_reals = self.of(*of_model).on_the_reals(z) if self.names else ()

    def of(self, model: Model, model_args: Args, model_kwargs: Kwargs | None) -> ModelCoordinates:
        """The coordinates for these arguments."""
        return ModelCoordinates(model, model_args, model_kwargs, self.effects, self.noise)

    def at(self, source: Source) -> ModelCoordinates:
        """The coordinates for the arguments of a source."""
        return self.of(cast(Model, source.model), *source.arguments)

    def start(self, run: Run, rng_key: Array, z: Any, shared: Any) -> Start:
        """Start chains whose first metric is that of coordinates before anything is observed."""
        if not run.is_searching:
            return super().start(run, rng_key, z, shared)

        def density_of(source):
            coordinates, logdensity_fn = self.at(source), source.logdensity()

            def function(u):
                return in_coordinates(logdensity_fn, coordinates, first_pseudo(coordinates, u))(u)

            return source.view.differentiable(function)

        def entered(arrays, z):
            coordinates = self.at(run.at(arrays))
            return jax.vmap(lambda x: coordinates.into(x, first_pseudo(coordinates, x)))(z)

        def left(arrays, u):
            coordinates = self.at(run.at(arrays))

            def placed(u):
                return coordinates.out(u, first_pseudo(coordinates, u)).position

            return ravel_each(jax.vmap(placed)(u))

        u = run(entered, z)
        start = follow_path(run, rng_key, u, density_of)
        return start._replace(x=run(left, jax.vmap(ravel_one(u))(start.x)))

    def target(self, source: Source, algorithm: Algorithm, shared: Any) -> Stepper:
        """The algorithm in the coordinates."""
        del shared

        def bound(logdensity_fn: LogDensity) -> Stepper:
            target = bind(algorithm, logdensity_fn, self.differentiation)
            return cast(Stepper, self.recorded(target))

        return InCoordinates(bound, source.logdensity(), self.at(source))


class Centredness(dict[str, Any]):
    """The centredness of each effect by its site: 1 for the effect itself, 0 for its noise.

    Of a random walk it is that of its waves, the longest first. Printed, it is a table with the
    least, the median and the greatest of each site, and below it the sites that look like effects
    or like noise and are sampled as they are written.

    as_written
        Why, by their sites.
    """

    def __init__(self, centredness: dict[str, Any], as_written: dict[str, str]):
        super().__init__(centredness)
        self.as_written = as_written

    def __str__(self) -> str:
        """One line for each site."""
        width = max((len(name) for name in (*self, *self.as_written)), default=0)
        header = f"{'':>{width}}{'least':>9}{'median':>9}{'greatest':>9}{'number':>9}"
        lines = [header] if self else ["no effects"]
        for name, c in self.items():
            numbers = "".join(f"{v:>9.2f}" for v in np.quantile(c, (0.0, 0.5, 1.0)))
            lines.append(f"{name:>{width}}{numbers}{np.size(c):>9}")
        reasons = self.as_written.items()
        return "\n".join(
            [*lines, *(f"{name:>{width}}  as written: {why}" for name, why in reasons)]
        )


def centredness_of(state: KernelState, as_written: dict[str, str]) -> Centredness:
    """Centredness of the effects of a state, as a mean over chains that learned their own."""
    learned = state.adapt_state.coordinates
    if learned is None:
        return Centredness({}, as_written)
    centredness = {
        name: on_host(centred(learned.scales[name], pseudo.information))
        for name, pseudo in learned.pseudo.items()
        if pseudo is not None
    }
    if state.is_stacked:
        centredness = {name: np.mean(c, axis=0) for name, c in centredness.items()}
    return Centredness(centredness, as_written)


def reparam_config(mcmc: MCMC) -> dict[str, Any]:
    """The learned coordinates for NumPyro's handlers: ``{site: LocScaleReparam(centered)}``.

    With them any kernel samples the model in the coordinates that a warm-up has learned.

    Parameters
    ----------
    mcmc
        An ``MCMC(AutoNUTS(model), ...)`` that has run.

    Returns
    -------
    A reparametrization for each effect with a location and a scale on the real line. Those of
    positive sites, of covariances and of random walks have no counterpart in NumPyro.

    Raises
    ------
    TypeError, ValueError
        If the kernel learns no coordinates, or has not run.

    Examples
    --------
    >>> import jax, numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC, NUTS
    >>> from numpyro_fwd import AutoNUTS, reparam_config
    >>> def model():
    ...     tau = numpyro.sample("tau", dist.HalfNormal(1))
    ...     numpyro.sample("a", dist.Normal(0, tau).expand([3]).to_event(1))
    >>> mcmc = MCMC(AutoNUTS(model), num_warmup=300, num_samples=100, progress_bar=False)
    >>> mcmc.run(jax.random.key(0))
    >>> kernel = NUTS(numpyro.handlers.reparam(model, config=reparam_config(mcmc)))
    """
    kernel: Any = mcmc.sampler
    if not getattr(kernel, "learn_coordinates", False):
        raise TypeError(
            "mcmc must have a kernel that learns coordinates, such as numpyro_fwd.AutoNUTS; got "
            f"{type(kernel).__name__}."
        )
    centredness = kernel.centredness(mcmc)
    return {
        name: reparam.LocScaleReparam(c)
        for name, c in centredness.items()
        if name in kernel._effects.on_the_reals
    }
