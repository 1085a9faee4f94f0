"""Particles cooled past the posterior, and what is said if they find mass that was missed."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from blackjax_ext.meshes import on_host
from blackjax_ext.smc import sampler
from blackjax_ext.smc.cooled import missed_evidence, place_of

SHARE = 0.5  # of the conditional effective sample size that is left, since nothing is estimated
TEMPERATURES = 30  # at most: a normal in 100 dimensions takes 15


@jax.jit
def drawn_from(rng_key: Array, cold: Any, temperature: Array, z: Any) -> tuple[Any, Array, Array]:
    """As many draws as particles from the place of `cold` ones.

    With the share of the particles `z` that are in the place, and the log density of the draws,
    infinite outside of it.
    """
    x, unravel = sampler.ravel(cold)
    place = place_of(x, temperature)
    y = place.draws(rng_key, x.shape[0])
    log_q = jnp.where(place.is_inside(y), place.logpdf(y), jnp.inf)
    return jax.vmap(unravel)(y), jnp.mean(place.is_inside(sampler.ravel(z)[0])), log_q


def complaints_of_cooling(state: Any, share: Array, log_weights: Array) -> list[str]:
    """Whether the place of cooled particles has more mass than the population `state` has there.

    `share` of its particles are in it, and `log_weights` are those of draws from a normal there.
    """
    facts = share, log_weights, state.log_evidence[0], state.log_evidence_error[0]
    share, log_weights, log_evidence, error = on_host(facts)
    gain = missed_evidence(float(share), log_weights - log_evidence)
    # of the log evidence, in nats and in standard errors
    if gain <= max(0.2, 3.0 * error):
        return []
    return [
        f"cooled past the posterior, particles fell into a place that {share:.0%} of the particles "
        f"are in, and with its mass the log evidence is {log_evidence + gain:.1f} or more instead "
        f"of {log_evidence:.1f}. Tempering has passed it by, like a narrow mode in a broad one: "
        "trust neither log_evidence nor the share of the draws in that mode. Take a nested sampler "
        "(blackjax.nss) for the evidence, and start NUTS in that mode to see it."
    ]
