"""Fingerprint of a run on disk, so that it goes on with nothing but the same run.

Bit for bit, a run is determined by the program of a step, by the numbers that the program is given,
and by the state before the first step. The program is taken as JAX traced it, so that a change of
the model counts wherever it was made, and a comment does not.
"""

from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_fwd.bridge.fingerprints import describe_leaf, describe_program
from numpyro_fwd.bridge.traces import first_sites
from numpyro_fwd.disk import OnDisk
from numpyro_fwd.types import Args, Kwargs, Model

PACKAGES = ("jax", "jaxlib", "numpyro", "blackjax", "numpyro-fwd")


def versions() -> dict[str, str]:
    """Versions of what computes the draws."""
    return {name: version(name) for name in PACKAGES}


def describe_numbers(tree: Any) -> dict[str, str]:
    """For each leaf, its place in the tree and what it is."""
    leaves = jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda leaf: isinstance(leaf, OnDisk)
    )
    return {jax.tree_util.keystr(path): describe_leaf(leaf) for path, leaf in leaves}


def describe_arguments(model_args: Args, model_kwargs: dict[str, Any]) -> dict[str, str]:
    """Arguments of the model by name."""
    named = {f"argument {i}": value for i, value in enumerate(model_args)}
    named |= {f"argument '{name}'": value for name, value in model_kwargs.items()}
    return {
        f"{name}{place}": what
        for name, value in named.items()
        for place, what in describe_numbers(value).items()
    }


def describe_model(model: Model, model_args: Args, model_kwargs: Kwargs) -> dict[str, str]:
    """For each site of a model its distribution and shape, and a checksum of the log densities."""
    sites = {}

    def log_densities(rng_key: jax.Array) -> dict[str, Any]:
        terms = {}
        for name, site in first_sites(rng_key, model, model_args, model_kwargs).items():
            if site["type"] not in ("sample", "deterministic"):
                continue
            kind = distribution_name(site["fn"]) if site["type"] == "sample" else "deterministic"
            sites[f"site '{name}'"] = f"{kind} {jnp.shape(site['value'])}"
            value = site["value"]
            terms[name] = site["fn"].log_prob(value) if site["type"] == "sample" else value
        return terms

    program = jax.make_jaxpr(log_densities)(jax.random.key(0))
    return {**sites, "the code": describe_program(program)}


def distribution_name(distribution: Any) -> str:
    """Name of a distribution, inside of what expands and masks it."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return type(distribution).__name__


def describe_state(state: Any) -> dict[str, Any]:
    """Shape and two sums of each array of a state, or a checksum for one without fractions."""
    return {
        jax.tree_util.keystr(path): describe_sums(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def describe_sums(leaf: Any) -> Any:
    """Two sums that most changes of an array change, and the size of its entries."""
    if not jnp.issubdtype(jnp.result_type(leaf), np.floating):
        return describe_leaf(leaf)
    flat = np.ravel(np.asarray(leaf)).astype(float)
    is_finite = np.isfinite(flat)
    flat = np.where(is_finite, flat, 0.0)
    weights = np.cos(np.arange(flat.size))
    sums = [float(np.abs(flat).sum()), float(flat.sum()), float(flat @ weights)]
    return {"kind": f"{jnp.shape(leaf)}, {int(is_finite.sum())} finite", "sums": sums}


def is_close(old: Any, new: Any) -> bool:
    """Whether two descriptions are the same up to rounding."""
    if not (is_sums(old) and is_sums(new)):
        return old == new
    # of the first state, which another machine rounds differently
    bound = 1e-3 * max(old["sums"][0], new["sums"][0])
    differences = np.abs(np.subtract(old["sums"], new["sums"]))
    return old["kind"] == new["kind"] and bool((differences <= bound).all())


def is_sums(described: Any) -> bool:
    """Whether it is what `describe_sums` says of an array."""
    return isinstance(described, dict) and "sums" in described


def check_same(path: Any, what: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise ValueError unless both descriptions are the same, naming the first difference.

    Parameters
    ----------
    path
        The path of the run.
    what
        What is described.
    old, new
        Descriptions: of the run on the path, and of this call.
    """
    names = [*old, *(name for name in new if name not in old)]
    for name in names:
        if name in old and name in new and is_close(old[name], new[name]):
            continue
        before = old.get(name, "not there")
        now = new.get(name, "not there")
        raise ValueError(
            f"path {path} holds a run with other {what}: {name} was {before}, and is {now}. "
            "Call sample_to as that run was begun, or on another path."
        )
