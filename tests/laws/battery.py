"""Every law that a sampler has to obey, by name: for a sampler from outside the packages."""

from collections.abc import Callable
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp

from tests.laws import costs, jax_contracts, laws
from tests.laws.samplers import CASES, PAIR, Case


def laws_of(name: str, case: Case, size: laws.Size = laws.SMALL) -> dict[str, Callable[[], None]]:
    """The laws for one case; each raises if the sampler breaks it.

    Invariance is tested on the targets for which the case has a step size.
    """
    targets = [target for target, step_size in case.step_sizes.items() if step_size is not None]
    double = {
        "vmap_is_loop": jax_contracts.vmap_is_loop,
        "compiles_once": partial(jax_contracts.compiles_once, dtype=jnp.dtype("float64")),
        "compiles_once_float32": partial(jax_contracts.compiles_once, dtype=jnp.dtype("float32")),
        "keeps_dtype": partial(jax_contracts.keeps_dtype, dtype=jnp.dtype("float64")),
        "keeps_dtype_float32": partial(jax_contracts.keeps_dtype, dtype=jnp.dtype("float32")),
        "takes_any_pytree": jax_contracts.takes_any_pytree,
    }
    single = {
        **{f"invariant_{target}": partial(invariant, target, size) for target in targets},
        "uses_keys_once": jax_contracts.uses_keys_once,
        "rejects_nan": partial(jax_contracts.rejects_nan, is_nan_at_start=False),
        "rejects_nan_at_start": partial(jax_contracts.rejects_nan, is_nan_at_start=True),
        "escapes": jax_contracts.escapes,
        "resumes": jax_contracts.resumes,
        "costs_what_it_says": costs.costs_what_it_says,
    }
    if case.forward_only:
        single["samples_without_reverse_mode"] = costs.samples_without_reverse_mode
    else:
        single["calls_reverse_mode"] = costs.calls_reverse_mode
    if PAIR.items() <= case.arguments.items():
        single["shares_the_primal"] = costs.shares_the_primal
    return {
        law: partial(judge, judgement, name, case, law in double)
        for law, judgement in {**single, **double}.items()
    }


def invariant(target: str, size: laws.Size, case: str) -> None:
    """Chains that start in equilibrium stay there, while they move."""
    laws.power(laws.invariance(case, target, size))


def judge(law: Callable[[str], None], name: str, case: Case, x64: bool) -> None:
    """Apply a law to a case that is in the table for as long as that takes."""
    with mock.patch.dict(CASES, {name: case}), jax.enable_x64(x64):
        law(name)
