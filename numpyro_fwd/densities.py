"""Log densities from elsewhere: a plain function with bounds, a model of PyMC, a model of Stan."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import biject_to

from blackjax_ext.types import Function
from numpyro_fwd.bridge.numpyro_private import identity


class Density:
    """A log density with what ``MCMC`` needs: unconstrained positions, and the way back.

    Parameters
    ----------
    log_density
        Log density, up to a constant, of a dictionary of arrays on their supports.
    first
        A position to begin near: a dictionary of arrays on their supports.
    supports
        NumPyro's constraint of each array that is not free. The Jacobian is added to the density.
    sites
        What draws hold, a dictionary, as a function of the dictionary; by default the same.

    Raises
    ------
    ValueError
        For a support of something that is not in `first`, and for a position beyond its support.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from numpyro.distributions import constraints
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import Density, MALA
    >>> def log_density(x):  # of a gamma distribution
    ...     return 2.0 * jnp.log(x["rate"]) - 3.0 * x["rate"]
    >>> density = Density(log_density, {"rate": 1.0}, {"rate": constraints.positive})
    >>> mcmc = MCMC(
    ...     MALA(potential_fn=density.potential_fn), postprocess_fn=density.postprocess_fn,
    ...     num_warmup=200, num_samples=500, num_chains=4, chain_method="vectorized",
    ...     progress_bar=False,
    ... )
    >>> starts = density.starts(jax.random.key(0), 4)
    >>> mcmc.run(jax.random.key(1), init_params=starts)
    >>> bool(abs(mcmc.get_samples()["rate"].mean() - 1.0) < 0.2)
    True
    """

    def __init__(
        self,
        log_density: Callable[[dict[str, Array]], Array],
        first: Mapping[str, Any],
        supports: Mapping[str, Any] | None = None,
        *,
        sites: Callable[[dict[str, Array]], dict[str, Array]] = identity,
    ):
        supports = dict(supports or {})
        if unknown := sorted(supports.keys() - first.keys()):
            raise ValueError(
                f"supports must be of arrays in first, {', '.join(first)}; got '{unknown[0]}'."
            )
        values = {name: as_float(value) for name, value in first.items()}
        for name, support in supports.items():
            if not np.all(support(values[name])):
                raise ValueError(f"first['{name}'] must be within {support}; got {first[name]!r}.")
        self._transforms = {name: biject_to(support) for name, support in supports.items()}
        self._log_density = log_density
        self._sites = sites
        self._first = values | {k: t.inv(values[k]) for k, t in self._transforms.items()}

    def potential_fn(self, z: dict[str, Array]) -> Array:
        """Minus the log density of unconstrained positions, with the Jacobians."""
        x = self._on_supports(z)
        jacobians = (
            jnp.sum(transform.log_abs_det_jacobian(z[name], x[name]))
            for name, transform in self._transforms.items()
        )
        return -self._log_density(x) - sum(jacobians)

    def postprocess_fn(self, z: dict[str, Array]) -> dict[str, Array]:
        """Map unconstrained positions to the values that draws hold."""
        return self._sites(self._on_supports(z))

    def _on_supports(self, z: dict[str, Array]) -> dict[str, Array]:
        return z | {name: transform(z[name]) for name, transform in self._transforms.items()}

    def starts(self, rng_key: Array, num_chains: int, radius: float = 1.0) -> dict[str, Array]:
        """Unconstrained positions (C, ...) near the first one; without the axis for one chain."""
        shape = () if num_chains == 1 else (num_chains,)
        keys = dict(zip(self._first, jax.random.split(rng_key, len(self._first)), strict=True))
        return {
            name: z + radius * jax.random.uniform(keys[name], (*shape, *z.shape), z.dtype, -1.0)
            for name, z in self._first.items()
        }

    @classmethod
    def from_pymc(cls, model: Any) -> "Density":
        """Density of a ``pymc.Model`` of continuous variables, which PyMC translates to JAX.

        Draws have the free variables and the deterministic ones. PyMC switches JAX to double
        precision.

        Raises
        ------
        ValueError
            For a model with discrete variables, by name.
        """
        from pymc.sampling.jax import get_jaxified_graph

        if discrete := [variable.name for variable in model.discrete_value_vars]:
            raise ValueError(
                f"the model must have continuous variables alone; '{discrete[0]}' is discrete: sum "
                "it out, for example with pymc_extras.marginalize."
            )
        inputs = model.value_vars
        named = {variable.name for variable in (*model.free_RVs, *model.deterministics)}
        outputs = [variable for variable in model.unobserved_value_vars if variable.name in named]
        log_density = get_jaxified_graph(inputs, [model.logp()])
        sites = get_jaxified_graph(inputs, outputs)

        def values(x: dict[str, Array]) -> list[Array]:
            return [x[variable.name] for variable in inputs]

        def named_sites(x: dict[str, Array]) -> dict[str, Array]:
            outcomes = sites(*values(x))
            return {variable.name: one for variable, one in zip(outputs, outcomes, strict=True)}

        first = {variable.name: model.initial_point()[variable.name] for variable in inputs}
        return cls(lambda x: log_density(*values(x))[0], first, sites=named_sites)

    @classmethod
    def from_stan(cls, model: Any) -> "Density":
        """Density of a ``bridgestan.StanModel``, which is called on the host in double precision.

        It has first derivatives, in forward and in reverse mode, and no second ones: give kernels
        ``warm_start=False``. Draws have a number for each entry of Stan's parameters.
        """
        size, names = model.param_unc_num(), model.param_names()

        def called(function: Function, z: Array, *shapes: tuple[int, ...]) -> Any:
            def on_host(z: Any) -> list[np.ndarray]:
                return [np.asarray(one, z.dtype) for one in function(np.asarray(z, np.float64))]

            like = [jax.ShapeDtypeStruct(shape, z.dtype) for shape in shapes]
            return jax.pure_callback(on_host, like, z, vmap_method="sequential")

        def evaluate(z: Array) -> Any:
            return called(model.log_density_gradient, z, (), (size,))

        @jax.custom_jvp
        def log_density(z: Array) -> Array:
            return evaluate(z)[0]

        @log_density.defjvp
        def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
            value, gradient = evaluate(*primals)
            return value, gradient @ tangents[0]

        def sites(x: dict[str, Array]) -> dict[str, Array]:
            (constrained,) = called(lambda z: [model.param_constrain(z)], x["z"], (len(names),))
            return {name: constrained[i] for i, name in enumerate(names)}

        return cls(lambda x: log_density(x["z"]), {"z": np.zeros(size)}, sites=sites)


def as_float(value: Any) -> Array:
    """An array of floating-point numbers."""
    return jnp.asarray(value, jnp.result_type(float))
