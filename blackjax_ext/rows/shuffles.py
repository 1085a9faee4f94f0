r"""Rows drawn at random, distinct or with replacement, without a random number for every row.

*Distinct rows.* Draw :math:`B` of :math:`N` rows with replacement; as long as some are equal, draw
all but the first of them anew. Nothing here depends on how the rows are numbered, so the
probability of an ordered tuple of distinct rows is that of any other: they are drawn uniformly
without replacement. A round sorts B numbers.

*With replacement.* :math:`\lfloor N u \rfloor` for a fraction u of 64 random bits: uniform to
:math:`N / 2^{64}`. One call of the generator, where ``jax.random.randint`` has three: on a
processor each is a loop to compile and to start.
"""

from typing import Any

import jax
import jax.numpy as jnp
from blackjax.types import PRNGKey
from jax import Array


def with_replacement(rng_key: PRNGKey, size: int, num: int) -> Array:
    """`num` independent numbers from 0 to ``size - 1``, uniform to 2^-32 for any size below 2^31.

    Examples
    --------
    >>> import jax
    >>> from blackjax_ext.rows.shuffles import with_replacement
    >>> with_replacement(jax.random.key(0), 1_000, 50).shape
    (50,)
    """
    return times_fraction(jax.random.bits(rng_key, (2, num), jnp.uint32), size)


def times_fraction(words: Array, size: int | Array) -> Array:
    """Fractions of 64 bits, pairs of words of shape (2, n), times `size` and rounded down; (n,)."""
    high, low = words
    carried = high_word(low, size)
    is_over: Array = high * jnp.uint32(size) + carried < carried
    return (high_word(high, size) + is_over).astype(int)


def words_per_number(dtype: Any) -> int:
    """Number of random words that :func:`uniform_numbers` needs for a number."""
    return jnp.finfo(dtype).bits // 32


def uniform_numbers(words: Array, dtype: Any) -> Array:
    """Uniform numbers from random words (n, ...), as ``jax.random.uniform`` makes them."""
    if words_per_number(dtype) == 1:
        return (words[0] >> 9).astype(dtype) * 2.0**-23
    high, low = words[0].astype(dtype), (words[1] >> 12).astype(dtype)
    return high * 2.0**-32 + low * 2.0**-52


def high_word(factor: Array, size: int | Array) -> Array:
    """The upper 32 of the 64 bits of a product, by the halves of its factors."""
    f1, f0 = factor >> 16, factor & 0xFFFF
    s1, s0 = jnp.uint32(size >> 16), jnp.uint32(size & 0xFFFF)
    middle = f1 * s0 + (f0 * s0 >> 16)
    upper: Array = f1 * s1 + (middle >> 16) + (f0 * s1 + (middle & 0xFFFF) >> 16)
    return upper


def distinct(rng_key: PRNGKey, size: int, num: int) -> Array:
    """`num` different numbers from 0 to ``size - 1``, each ordered tuple as likely as any other.

    Cost: a few sorts of `num` numbers, or one of `size` numbers where that is less than twice as
    many.

    Examples
    --------
    >>> import jax
    >>> from blackjax_ext.rows.shuffles import distinct
    >>> len(set(distinct(jax.random.key(0), 1_000, 50).tolist()))
    50
    """
    if 2 * num > size:
        return jax.random.permutation(rng_key, size)[:num]

    def draw_again(carry: tuple[int, Array, Array]) -> tuple[int, Array, Array]:
        round, rows, is_missing = carry
        new = jax.random.randint(jax.random.fold_in(rng_key, round), (num,), 0, size)
        rows = jnp.where(is_missing, new, rows)
        return round + 1, rows, is_repeated(rows)

    first = 0, jnp.zeros(num, int), jnp.ones(num, bool)
    return jax.lax.while_loop(lambda carry: jnp.any(carry[2]), draw_again, first)[1]


def is_repeated(values: Array) -> Array:
    """Which elements are equal to an earlier one, shape (n,)."""
    order = jnp.argsort(values, stable=True)
    in_order = values[order]
    is_same = jnp.zeros(values.shape, bool).at[1:].set(in_order[1:] == in_order[:-1])
    return jnp.zeros_like(is_same).at[order].set(is_same)
