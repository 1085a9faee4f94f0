"""Gradients made of JVPs, for densities without a reverse mode."""

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.mcmc import tangents
from blackjax_ext.types import LogDensity


def forward_gradient(logdensity_fn: LogDensity) -> LogDensity:
    """`logdensity_fn` with a reverse mode that is made of D JVPs, which share one primal.

    Algorithms that call ``jax.grad`` then sample densities that have forward mode alone.
    """

    @jax.custom_vjp
    def function(x: ArrayTree) -> Array:
        return logdensity_fn(x)

    def forward(x: ArrayTree) -> tuple[Array, ArrayTree]:
        flat, unravel = ravel_pytree(x)
        basis = jnp.eye(flat.size, dtype=flat.dtype)
        value, slopes = tangents.slopes(lambda y: logdensity_fn(unravel(y)), flat, basis)
        return value, unravel(slopes)

    def backward(gradient: ArrayTree, cotangent: Array) -> tuple[ArrayTree]:
        return (jax.tree.map(lambda g: cotangent * g, gradient),)

    function.defvjp(forward, backward)
    return function
