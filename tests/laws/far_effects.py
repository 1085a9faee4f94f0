"""The law of effects whose scale goes below the last digit of their location.

``x ~ N(m, s)`` without data, in single precision. Chains start in equilibrium and stay there,
wherever the coordinates are, though no move that holds the noise may go where the noise is lost.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import blackjax_ext
from blackjax_ext.mcmc.interweaving import LocScale, LocScaleHierarchy

SIGMAS = 4.5
STEP_SIZE, BLOCK_SHARE = 0.4, 0.9


class Layout(NamedTuple):
    """Where coordinates are.

    names
        Of the effects, the log scale and the location: leaves are in the order of their names.
    num_effects
        How many.
    num_locations
        As many, or one for all; 0 if it is computed from the log scale.
    """

    names: str
    num_effects: int
    num_locations: int

    def parts(self, position):
        """Effects, log scale, location and where it is expected."""
        x, w = position[self.names[0]], position[self.names[1]]
        if not self.num_locations:
            return x, 12 * w[..., None], 100 * w[..., None], 0.0
        return x, w[..., None], position[self.names[2]], 1000.0

    def logdensity(self, position):
        """The density: ``w ~ N(-4, 3), m ~ N(1000, 10)``, or ``w ~ N(0, 1)``, twelvefold in s."""
        x, log_scale, loc, mean = self.parts(position)
        squares = jnp.sum(((x - loc) / jnp.exp(log_scale)) ** 2)
        if self.num_locations:
            squares += jnp.sum(((loc - mean) / 10) ** 2) + jnp.sum((log_scale + 4) ** 2) / 9
        else:
            squares += position[self.names[1]] ** 2
        return -0.5 * squares - x.size * log_scale[0]

    def laws(self, position):
        """The hierarchy."""
        _, log_scale, loc, _ = self.parts(position)
        return dict.fromkeys(position) | {self.names[0]: LocScale(loc, jnp.exp(log_scale))}

    def draw(self, rng, num_chains, log_scale=None):
        """Exact draws, rounded; with this log scale if it is given."""
        w = rng.normal(size=num_chains)
        w = 3 * w - 4 if self.num_locations else w
        if log_scale is not None:
            w = np.full(num_chains, log_scale if self.num_locations else log_scale / 12)
        position = {self.names[0]: np.zeros((num_chains, self.num_effects)), self.names[1]: w}
        if self.num_locations:
            loc = rng.normal(1000.0, 10.0, (num_chains, self.num_locations))
            position[self.names[2]] = loc
        _, log_scale, loc, _ = self.parts(position)
        noise = rng.normal(size=(num_chains, self.num_effects))
        position[self.names[0]] = loc + np.exp(log_scale) * noise
        return {name: jnp.asarray(leaf, jnp.float32) for name, leaf in position.items()}


def stays(layout, num_chains=2_000, num_steps=30):
    """Raise AssertionError unless chains in equilibrium stay there; return what they met."""
    sampler = blackjax_ext.auto_mala(
        layout.logdensity,
        STEP_SIZE,
        block_share=BLOCK_SHARE,
        hierarchy=LocScaleHierarchy(layout.laws),
    )
    starts = layout.draw(np.random.default_rng(30), num_chains)

    def chain(start, rng_key):
        key_init, key_steps = jax.random.split(rng_key)

        def one_step(state, key):
            state, info = sampler.step(key, state)
            return state, info.hidden

        keys = jax.random.split(key_steps, num_steps)
        state, hidden = jax.lax.scan(one_step, sampler.init(start, key_init), keys)
        return state.position, hidden

    keys = jax.random.split(jax.random.key(31), num_chains)
    ends, hidden = jax.jit(jax.vmap(chain))(starts, keys)
    before, after = (np.asarray(each[layout.names[1]], float) for each in (starts, ends))
    assert np.mean(before != after) > 0.6, "far from zero: chains do not move"
    for share in (0.03, 0.1, 0.2, 0.3, 0.5):
        edge = np.quantile(before, share)
        change = 1.0 * (after < edge) - (before < edge)
        score = change.mean() / (change.std() + 1e-9) * num_chains**0.5
        assert abs(score) < SIGMAS, f"far from zero: P(w < {edge:.1f}) is off by {score:.1f} sds"
    return np.asarray(hidden)
