"""Open-horizon sequential Monte Carlo whose particles follow no gradient."""

from numpyro_fwd.partial_bayes.open_horizon import GOHSMC


class OHSMC(GOHSMC):
    """Open-horizon sequential Monte Carlo with random-walk moves; arguments as in :class:`GOHSMC`.

    A random walk uses the data only through the weights: `weight_ess` is 0 and `step_size` 0.01 by
    default, as published.

    Zhao et al. 2024, with the exact weight of a random walk. Cost: one gradient in the parameters
    per particle, none in the latents.

    Parameters
    ----------
    model, optim, num_particles, l_kernel, num_integration_steps, ess_threshold
        As in :class:`GOHSMC`.
    step_size
        epsilon of the proposal; None for 0.01.
    weight_ess
        As in :class:`GOHSMC`, but None for 0.

    Examples
    --------
    >>> import jax, numpyro, numpyro.distributions as dist, optax
    >>> from numpyro_fwd import OHSMC
    >>> def model(y):
    ...     scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    ...     mean = numpyro.sample("mean", dist.Normal(2, 1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mean, scale), obs=y)
    >>> y = 2.0 + 3.0 * jax.random.normal(jax.random.key(0), (20,))
    >>> smc = OHSMC(model, optax.adam(0.02), num_particles=50, step_size=0.05)
    >>> result = smc.run(jax.random.key(1), 500, y, progress_bar=False)
    >>> bool(abs(result.params["scale"] - y.std()) < 0.5)
    True
    """

    proposal = "random_walk"
    guided = False
    best_weight_ess = 0.0
    best_step_size = 0.01
