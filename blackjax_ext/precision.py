"""Precision of matrix products: full where an acceptance ratio depends on them.

By JAX's defaults, NVIDIA's cards since 2020 multiply float32 matrices with 10 bits of each factor
(TF32), and TPUs with 7 (bfloat16). A product with a vector is a sum in full precision on a GPU, but
chains that run together turn ``x @ beta`` into a product of matrices.

What a step may not lose is a density and whatever stands for one: the energies and bounds of the
subsampled test, the squares of a proposal's density, and both factors of a metric that one density
is drawn with and another evaluated. They state their precision by :func:`exact_products`. Left as
they are, because a chain is exact whatever numbers they give:

- drifts, gradients and momenta: any function of a position will do, if both ends of a move are
  judged by the same one;
- products with a metric that is the same at both ends. A move adds R r to a position, and R
  rounded is odd in r: the way back is the same product (emulated with 7 bits, 40,000 chains of MALA
  on a target whose scales are 300 apart stay in equilibrium);
- metrics, starts and proposals learnt in a warm-up, which set how fast a chain moves, not where.

The model's own products are the user's (:mod:`numpyro_fwd.bridge.starts` looks at them), except
under the subsampled test, whose bounds hold for the density that is evaluated.
"""

from functools import wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from blackjax_ext.types import Function

# units in the last place of a shape a, as of a log(a) in each of three terms of a log density
OF_SHAPES = 16.0
NOISE_RESOLUTION = 0.02  # how far the rounding of a position may move the noise of an effect

F = TypeVar("F", bound=Function)
DEFAULT = "jax_default_matmul_precision"  # of jax.config
FULL = ("highest", "float32")  # names of a precision that loses nothing of float32


def exact_products(function: F) -> F:
    """`function` with its products of matrices in full precision, whatever the default is.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> square = exact_products(lambda x: x @ x)
    >>> "HIGHEST" in str(jax.make_jaxpr(square)(jnp.eye(2)))
    True
    """

    @wraps(function)
    def exact(*arguments: Any, **keywords: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*arguments, **keywords)

    return cast(F, exact)


inner = exact_products(jnp.dot)
"""Inner product of two vectors in full precision, of chains that run together too."""


def are_coarse_here() -> bool:
    """Whether the default device rounds the factors of a float32 product, as far as is known.

    A CPU does not.
    """
    return jax.default_backend() != "cpu" and getattr(jax.config, DEFAULT) not in FULL
