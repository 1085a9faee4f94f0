r"""Stochastic gradient Langevin dynamics with control variates (Baker et al. 2019), approximate.

In whitened coordinates, with B rows i drawn uniformly and the mode at w = 0,

.. math::
    w' = w - \frac{h}{2} \hat g(w) + \sqrt{h}\, z, \qquad
    \hat g(w) = \nabla U_0(w) - \nabla U_0(0) + \frac NB \sum_i [\nabla U_i(w) - \nabla U_i(0)].

There is no acceptance step: the sd of a normal coordinate is too large by a factor of about
1 + h / 8, and by the noise of the gradients besides.
"""

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["build_kernel"]


def build_kernel(rows: Array, predictors: Array, prior: Array, batch_size: int):
    """``kernel(rng_key, w, step_size) -> w`` for a logistic regression with a normal prior.

    rows
        Covariates in whitened coordinates, (N, D).
    predictors
        Of the rows at the mode, (N,).
    prior
        Hessian of minus the log prior in these coordinates, (D, D).
    """

    def kernel(rng_key, w, step_size):
        key_rows, key_noise = jax.random.split(rng_key)
        chosen = jax.random.randint(key_rows, (batch_size,), 0, len(rows))
        a, eta = rows[chosen], predictors[chosen]
        change = jax.nn.sigmoid(eta + a @ w) - jax.nn.sigmoid(eta)
        gradient = prior @ w + len(rows) / batch_size * change @ a
        noise = jax.random.normal(key_noise, w.shape, w.dtype)
        return w - 0.5 * step_size * gradient + jnp.sqrt(step_size) * noise

    return kernel
