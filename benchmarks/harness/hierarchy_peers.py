"""Samplers of others for models with effects, and the small grids of their settings."""

from collections.abc import Callable
from typing import Any

from benchmarks.harness.hierarchies import Model
from benchmarks.peers_from_papers.auto_step import auto_step
from benchmarks.peers_from_papers.interleaved import Interleaved
from benchmarks.peers_from_papers.kinetic_langevin import kinetic_langevin
from benchmarks.peers_from_papers.walnuts import walnuts
from numpyro_fwd import AutoNUTS, BlackJAXKernel

__all__ = ["GRIDS", "kernel_of", "setting_name"]

# algorithms, and the acceptance that the warm-up adapts the (macro) step to
ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AutoStep HMC": (auto_step, {}),
    "WALNUTS": (walnuts, {"target_accept_prob": 0.8}),
    "kinetic Langevin, BCSS2": (kinetic_langevin, {"target_accept_prob": 0.9}),
}
PLAIN: list[dict[str, Any]] = [{}]
# settings of each sampler; more than one are a grid
GRIDS: dict[str, list[dict[str, Any]]] = {
    "AutoNUTS": PLAIN,
    "interleaved HMC": PLAIN,
    "AutoStep HMC": [{"num_integration_steps": num} for num in (4, 8, 16)],
    "WALNUTS": [{"tolerance": 0.5, "finer": 0.0}, {"tolerance": 0.3, "finer": 1 / 3}],
    "kinetic Langevin, BCSS2": [{"friction": friction} for friction in (0.3, 1.0)],
}


def kernel_of(name: str, setting: dict[str, Any], make: Callable[..., Model]) -> Any:
    """A kernel of the sampler `name` for the model that ``make(is_centred=...)`` makes."""
    model = make(is_centred=True)
    if name == "AutoNUTS":
        return AutoNUTS(model)
    if name == "interleaved HMC":
        return Interleaved(model, make(is_centred=False))
    algorithm, options = ALGORITHMS[name]
    return BlackJAXKernel(model, algorithm, chain_batch_size=1, **options, **setting)


def setting_name(setting: dict[str, Any]) -> str:
    """A setting in words."""
    words = (f"{name.replace('_', ' ')} {value:.2g}" for name, value in setting.items())
    return ", ".join(words) or "defaults"
