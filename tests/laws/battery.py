"""Every law that a sampler has to obey, by name: for a sampler from outside the packages."""

from collections.abc import Callable
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp

from tests.laws import conduct, costs, laws
from tests.laws.samplers import PAIR, ROWS, Row


def laws_of(name: str, row: Row, size: laws.Size = laws.SMALL) -> dict[str, Callable[[], None]]:
    """The laws for one row; each raises if the sampler breaks it.

    Invariance is tested on the targets for which the row has a step size.
    """
    targets = [target for target, step_size in row.step_sizes.items() if step_size is not None]
    double = {
        "vmap_is_loop": conduct.vmap_is_loop,
        "compiles_once": partial(conduct.compiles_once, dtype=jnp.dtype("float64")),
        "compiles_once_float32": partial(conduct.compiles_once, dtype=jnp.dtype("float32")),
        "keeps_dtype": partial(conduct.keeps_dtype, dtype=jnp.dtype("float64")),
        "keeps_dtype_float32": partial(conduct.keeps_dtype, dtype=jnp.dtype("float32")),
        "takes_any_pytree": conduct.takes_any_pytree,
    }
    single = {
        **{f"invariant_{target}": partial(invariant, target, size) for target in targets},
        "uses_keys_once": conduct.uses_keys_once,
        "rejects_nan": partial(conduct.rejects_nan, is_nan_at_start=False),
        "rejects_nan_at_start": partial(conduct.rejects_nan, is_nan_at_start=True),
        "escapes": conduct.escapes,
        "resumes": conduct.resumes,
        "costs_what_it_says": costs.costs_what_it_says,
    }
    if row.forward_only:
        single["samples_without_reverse_mode"] = costs.samples_without_reverse_mode
    else:
        single["calls_reverse_mode"] = costs.calls_reverse_mode
    if PAIR.items() <= row.arguments.items():
        single["shares_the_primal"] = costs.shares_the_primal
    return {
        law: partial(judge, judgement, name, row, law in double)
        for law, judgement in {**single, **double}.items()
    }


def invariant(target: str, size: laws.Size, row: str) -> None:
    """Chains that start in equilibrium stay there, while they move."""
    laws.power(laws.invariance(row, target, size))


def judge(law: Callable[[str], None], name: str, row: Row, x64: bool) -> None:
    """Apply a law to a row that is in the table for as long as that takes."""
    with mock.patch.dict(ROWS, {name: row}), jax.enable_x64(x64):
        law(name)
