"""Functions of which JAX knows a backward rule and no forward rule, or neither."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.custom_vjp
def double(x):
    """Twice x; the backward rule is a custom_vjp too, as that of jax.experimental.ode.odeint."""
    return 2.0 * x


double.defvjp(lambda x: (2.0 * x, None), lambda _, slope: (double(slope),))


@jax.custom_vjp
def once(x):
    """Twice x; the backward rule can be differentiated in forward mode, the function cannot."""
    return 2.0 * x


once.defvjp(lambda x: (2.0 * x, None), lambda _, slope: (2.0 * slope,))


def simulated(x):
    """Twice x, by a program that is not JAX."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: np.asarray(2 * x), shape, x, vmap_method="expand_dims")


def looped(x):
    """Twice x, by a loop of a length that is not known before."""
    return jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] + x), (0, 0.0 * x))[1]


def by_gradient(function):
    """A scalar `function` of an array with a reverse mode alone."""

    @jax.custom_vjp
    def gradient(x):
        return jax.grad(function)(x)

    def forbidden(*_):
        raise AssertionError("differentiated twice")

    gradient.defvjp(forbidden, forbidden)

    @jax.custom_vjp
    def value(x):
        return function(x)

    value.defvjp(lambda x: (function(x), gradient(x)), lambda slope, weight: (weight * slope,))
    return value


def product(x):
    """A density whose scales are those of its coordinates: skewed and correlated."""
    return -jnp.sum(jnp.exp(x) - x) - 0.5 * jnp.sum(x) ** 2
