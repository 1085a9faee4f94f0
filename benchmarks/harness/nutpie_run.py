"""Chains of nutpie, where it is installed, on a NumPyro model without arguments."""

import importlib.util
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model

__all__ = ["is_installed", "nutpie_chains"]


def is_installed() -> bool:
    """Whether nutpie is."""
    return importlib.util.find_spec("nutpie") is not None


def compiled(info: Any, first: Any, unravel: Any) -> Any:
    """nutpie's model of flat unconstrained positions, which starts where NumPyro does."""
    import nutpie

    potential = jax.jit(jax.value_and_grad(lambda x: info.potential_fn(unravel(x))))

    def logdensity(x):
        energy, gradient = potential(x.astype(first.dtype))
        return -float(energy), -np.asarray(gradient, np.float64)

    def start(seed):
        key = jax.random.key(seed % 2**31)
        return np.asarray(jax.random.uniform(key, first.shape, minval=-2, maxval=2), np.float64)

    return nutpie.compiled_pyfunc.from_pyfunc(
        *(first.size, lambda: logdensity, lambda *seeds: lambda x: {"x": np.array(x)}),
        *([np.dtype(np.float64)], [first.shape], ["x"]),
        make_initial_point_fn=start,
    )


def nutpie_chains(
    model: Any, num_steps: int, seed: int, *, is_low_rank: bool = False
) -> dict[str, Any]:
    """Constrained draws of four chains, (chains, draws, ...), and the gradients of all of them."""
    import nutpie

    info = initialize_model(jax.random.key(seed), model)
    first, unravel = ravel_pytree(info.param_info.z)
    trace = nutpie.sample(
        compiled(info, first, unravel),
        draws=num_steps,
        tune=num_steps,
        chains=4,
        cores=1,
        seed=seed,
        progress_bar=False,
        low_rank_modified_mass_matrix=is_low_rank,
    )
    x = np.asarray(trace.posterior["x"], first.dtype)
    constrained = jax.jit(jax.vmap(jax.vmap(lambda x: info.postprocess_fn(unravel(x)))))
    return {
        "draws": {k: np.asarray(leaf) for k, leaf in constrained(x).items()},
        "gradients": float(trace.sample_stats["n_steps"].sum()),
        "in warm-up": float(trace.warmup_sample_stats["n_steps"].sum()) / 4,
        "diverging": int(trace.sample_stats["diverging"].sum()),
    }
