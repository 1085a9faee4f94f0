"""Temporary memory of a full pass, counted by XLA."""

import jax
import jax.numpy as jnp

from benchmarks.amagold.many_rows import BATCH, SIZE
from benchmarks.harness import models
from benchmarks.harness.report import Section
from blackjax_ext import potentials

BY_DEFAULT = "by default"


def memory(quick: bool) -> Section:
    """Temporary memory of a full pass."""
    rows = []
    for num_rows in (10_000, 400_000) if quick else (100_000, 1_000_000, 10_000_000):
        for chunk in (1024, None, num_rows):
            x = jax.ShapeDtypeStruct((num_rows, SIZE), jnp.float32)
            y = jax.ShapeDtypeStruct((num_rows,), jnp.float32)

            def energy(x, y, z, chunk=chunk):
                potential = potentials.minibatch(
                    lambda b: -0.5 * b @ b, models.logistic_term, (x, y), BATCH, chunk_size=chunk
                )
                return potential.potential(z).value()

            z = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
            sizes = [
                jax.jit(f).lower(x, y, z).compile().memory_analysis().temp_size_in_bytes / 2**20
                for f in (energy, jax.grad(energy, argnums=2))
            ]
            name = "all rows" if chunk == num_rows else f"{chunk:,}" if chunk else BY_DEFAULT
            rows.append([f"{num_rows:,}", name, *sizes])
    default = [row for row in rows if row[1] == BY_DEFAULT]
    return Section(
        "Temporary memory of a full pass",
        "Of the energy and of its gradient on the logistic regression, counted by XLA; MiB.",
        ["rows", "rows in a chunk", "energy", "gradient"],
        rows,
        [
            (
                f"gradient of {default[-1][0]} rows / {default[-2][0]}",
                default[-1][3] / default[-2][3],
                1.1,
            )
        ],
    )
