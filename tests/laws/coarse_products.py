"""Matrix products of an accelerator, emulated on a CPU: factors of float32 lose digits.

NVIDIA's cards since 2020 keep 10 bits of a factor (TF32) and TPUs 7 (bfloat16), unless a product
states another precision. A product with a vector XLA turns into sums in full precision, on a GPU;
chains that run together make a product of matrices of it. What is emulated is the lowering of
``dot_general`` alone: convolutions stay as they are.
"""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.interpreters import mlir
from jax._src.lax import lax as lax_internal

from blackjax_ext import precision as library

__all__ = ["BFLOAT16", "TF32", "coarse_products"]

TF32, BFLOAT16 = 10, 7  # bits of the mantissa
HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
as_on_cpu = partial(lax_internal._dot_general_lower, platform="cpu")


@contextlib.contextmanager
def coarse_products(bits: int = TF32, *, of_vectors: bool = False) -> Iterator[None]:
    """Programs that are compiled within have products as an accelerator makes them.

    `of_vectors` for products with a vector, too: what no accelerator is known to do.
    """
    lower = partial(lower_coarsely, bits, of_vectors)
    jax.clear_caches()
    with patch.object(library, "are_coarse_here", lambda: not is_highest(None)):
        mlir.register_lowering(lax.dot_general_p, lower, platform="cpu")
        try:
            yield
        finally:
            mlir.register_lowering(lax.dot_general_p, as_on_cpu, platform="cpu")
            jax.clear_caches()


def is_highest(precision) -> bool:
    """Whether a product, or by None the default, is asked for in full precision."""
    return lax_internal.canonicalize_precision(precision) == HIGHEST


def is_product_of_matrices(a, b, dimension_numbers) -> bool:
    """Whether both factors have more than one row that is not summed over."""
    (summed_a, summed_b), (batch_a, batch_b) = dimension_numbers
    sides = ((a, (*summed_a, *batch_a)), (b, (*summed_b, *batch_b)))
    return all(
        math.prod(n for i, n in enumerate(x.shape) if i not in taken) > 1 for x, taken in sides
    )


def lower_coarsely(bits, of_vectors, ctx, lhs, rhs, *, dimension_numbers, precision, **options):
    """The lowering of ``dot_general`` with rounded factors, where an accelerator rounds them."""
    a, b = ctx.avals_in
    is_single = a.dtype == b.dtype == jnp.float32
    is_sum = math.prod(a.shape[i] for i in dimension_numbers[0][0]) > 1
    is_coarse = is_single and is_sum and not is_highest(precision)
    if not is_coarse or not (of_vectors or is_product_of_matrices(a, b, dimension_numbers)):
        options |= {"dimension_numbers": dimension_numbers, "precision": precision}
        return as_on_cpu(ctx, lhs, rhs, **options)

    def product(x, y):
        x, y = (lax.reduce_precision(each, exponent_bits=8, mantissa_bits=bits) for each in (x, y))
        kind = options.get("preferred_element_type")
        return lax.dot_general(
            x, y, dimension_numbers, precision=HIGHEST, preferred_element_type=kind
        )

    return mlir.lower_fun(product, multiple_results=False)(ctx, lhs, rhs)
