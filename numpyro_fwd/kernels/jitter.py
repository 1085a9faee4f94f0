"""Steps of which a share is shortened at random, whatever the state is."""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["Jitter", "check_jitter", "jittered"]

Jitter: TypeAlias = tuple[float, float]


def check_jitter(jitter: Jitter | None, *, has_step_size: bool) -> None:
    """Raise unless `jitter` is None or (share, J), a share below 1 and a finite J above 1."""
    if jitter is None:
        return
    accepted = "step_size_jitter must be None or (share, J), two numbers with 0 <= share < 1"
    try:
        share, most = (float(value) for value in jitter)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{accepted} and J above 1; got {jitter!r}.") from error
    if not (0 <= share < 1 and 1 < most < math.inf):
        raise ValueError(f"{accepted} and J above 1 and finite; got {jitter!r}.")
    if not has_step_size:
        raise ValueError(
            f"step_size_jitter must be None for an algorithm without step_size; got {jitter!r}."
        )


def jittered(rng_key: Array, step_size: Array, jitter: Jitter) -> tuple[Array, Array]:
    """`step_size`, or by the share divided by a factor that is log-uniform from 1 to J.

    And whether it is divided.
    """
    share, most = jitter
    key_whether, key_factor = jax.random.split(rng_key)
    exponent = jax.random.uniform(key_factor, jnp.shape(step_size), step_size.dtype)
    is_short = jax.random.bernoulli(key_whether, share, jnp.shape(step_size))
    return step_size * jnp.where(is_short, jnp.exp(-np.log(most) * exponent), 1.0), is_short
