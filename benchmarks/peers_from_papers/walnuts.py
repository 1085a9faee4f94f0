r"""WALNUTS: NUTS whose steps adapt within an orbit (Bou-Rabee, Carpenter, Kleppe, Liu, 2506.18746).

An orbit consists of macro steps of length h, each of :math:`2^c` leapfrog steps of size
:math:`h / 2^c`. From a state z the least c is f(z), with which the energies of both ends differ by
no more than a tolerance. It is taken with probability 1 - s, and f(z) + 1 with probability s: s = 0
is the choice of the authors' code (github.com/flatironinstitute/walnuts), s = 1/3 that of the
funnel in the paper (the integrator R2P of github.com/bob-carpenter/walnuts).

Why it is exact. Write :math:`q(c \mid z)` for these probabilities, and -z for z with its momentum
reversed. From :math:`z_k` the orbit :math:`z_a, \dots, z_b` with the choices :math:`c_i` arises
with a probability proportional to

.. math::
    w_k = \pi(z_k) \prod_{i \ge k} q(c_i \mid z_i) \prod_{i < k} q(c_i \mid -z_{i + 1}), \qquad
    \frac{w_{k + 1}}{w_k}
    = \frac{\pi(z_{k + 1})\, q(c_k \mid -z_{k + 1})}{\pi(z_k)\, q(c_k \mid z_k)},

as leapfrog steps keep volume and are undone from the reversed state by as many steps. The signs of
doublings are fair, and where they end depends on the orbit alone: at a U-turn of its ends, or if
the next half has a U-turn or a macro step that cannot be undone (w = 0; as in the authors' code
that half is dropped). So states that are chosen from the orbit in proportion to w keep the target:
within a half at random, between halves with probability :math:`\min(1, W_{new} / W_{old})`, which
is NUTS's biased progressive sampling and keeps w, too.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax import GenerateSamplingAPI
from blackjax.base import build_sampling_algorithm
from blackjax.mcmc import hmc
from jax.flatten_util import ravel_pytree

__all__ = ["WalnutsInfo", "build_kernel", "walnuts"]


class WalnutsInfo(NamedTuple):
    """Of a draw: `num_integration_steps` counts all gradients, those of both searches with them.

    `acceptance_rate` is the mean over macro steps of exp(-abs(energy error)) of a single leapfrog
    step, to which the authors' code adapts h.
    """

    acceptance_rate: Any
    is_divergent: Any
    num_integration_steps: Any
    depth: Any


class Point(NamedTuple):
    """Of phase space, where the metric is the identity: v is the momentum, g the gradient."""

    u: Any
    v: Any
    g: Any
    logdensity: Any

    def energy(self):
        """Infinite where it is no number."""
        energy = 0.5 * self.v @ self.v - self.logdensity
        return jnp.where(jnp.isnan(energy), jnp.inf, energy)

    def reversed(self):
        """The same with the opposite momentum."""
        return self._replace(v=-self.v)

    def where(self, condition, other):
        """This where the condition holds."""
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), self, other)


class Half(NamedTuple):
    """States that extend an orbit: the last, the selected one, and the log weights of both."""

    rng_key: Any
    last: Point
    weight: Any
    selected: Point
    total: Any
    size: Any
    is_over: Any
    is_divergent: Any
    gradients: Any
    accepted: Any
    first: Any  # states that begin blocks of 2, 4, ... states


def has_turned(one: Point, other: Point):
    """Whether one end of a path, `other` after `one`, moves towards the other end."""
    way = other.u - one.u
    return (way @ one.v < 0) | (way @ other.v < 0)


def log_choice(finer, chosen, first):
    """log q of :math:`2^{chosen}` steps where :math:`2^{first}` are the fewest within tolerance."""
    share = jnp.where(chosen == first, 1 - finer, jnp.where(chosen == first + 1, finer, 0.0))
    return jnp.log(share)


def macro_steps(value_and_grad, step_size, tolerance, finer, max_halvings):
    """``step(key, z) -> (z', change of log w, gradients, acceptance of one leapfrog step)``."""

    def leapfrog(h, z):
        v = z.v + 0.5 * h * z.g
        u = z.u + h * v
        logdensity, g = value_and_grad(u)
        return Point(u, v + 0.5 * h * g, g, logdensity)

    def path(z, c, num):
        h = step_size / 2.0**c
        return jax.lax.fori_loop(0, num, lambda _, z: leapfrog(h, z), z)

    def error_of(end, z):
        error = jnp.abs(end.energy() - z.energy())
        return jnp.where(jnp.isnan(error), jnp.inf, error)

    def search(z, limit):
        """The least c < limit within tolerance, or the limit; where it ends, errors, gradients."""

        def goes_on(carry):
            c, _, error, _, _ = carry
            return (c < limit) & (error > tolerance)

        def one(carry):
            c, _, _, most, gradients = carry
            end = path(z, c + 1, 2 ** (c + 1))
            error = error_of(end, z)
            return c + 1, end, error, jnp.where(c < 0, error, most), gradients + 2 ** (c + 1)

        none = jnp.asarray(jnp.inf, z.logdensity.dtype)
        carry = jnp.asarray(-1), z, none, none, jnp.asarray(0)
        return jax.lax.while_loop(goes_on, one, carry)

    def step(rng_key, z):
        first, end, error, of_one, gradients = search(z, max_halvings)
        is_within = error <= tolerance
        is_finer = jax.random.uniform(rng_key) < finer
        chosen = first + is_finer
        more = jnp.where(is_finer & is_within & (chosen <= max_halvings), 2**chosen, 0)
        end = path(z, chosen, more).where(more > 0, end)
        is_within &= chosen <= max_halvings
        error = error_of(end, z)
        # back: what is coarser than the choice, whose own error is known
        back, _, error_back, _, of_back = search(
            end.reversed(), jnp.where(is_within, chosen, 0) - 1
        )
        found = jnp.where(error_back <= tolerance, back, chosen)
        is_undone = is_within & ((error_back <= tolerance) | (error <= tolerance))
        change = z.energy() - end.energy()
        change += log_choice(finer, chosen, found) - log_choice(finer, chosen, first)
        change = jnp.where(is_undone, change, -jnp.inf)
        return end, change, gradients + more + of_back, jnp.exp(-of_one), ~is_within

    return step


def build_kernel(
    tolerance: float = 0.5, finer: float = 0.0, max_doublings: int = 10, max_halvings: int = 10
):
    """``kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info)``.

    tolerance
        Of the energies of the ends of a macro step.
    finer
        s, how often twice as many leapfrog steps are taken as are needed.
    max_doublings, max_halvings
        Of orbits, and of the macro step.
    """

    def kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix):
        x, unravel = ravel_pytree(state.position)
        scale = jnp.sqrt(jnp.broadcast_to(inverse_mass_matrix, x.shape))
        value_and_grad = jax.value_and_grad(lambda u: logdensity_fn(unravel(x + scale * u)))
        step = macro_steps(value_and_grad, step_size, tolerance, finer, max_halvings)
        levels = 2 ** jnp.arange(1, max_doublings + 1)

        def extended(half: Half) -> Half:
            """By one macro step."""
            rng_key, key_step, key_choice = jax.random.split(half.rng_key, 3)
            z, change, gradients, accepted, is_divergent = step(key_step, half.last)
            weight = half.weight + change
            total = jnp.logaddexp(half.total, weight)
            is_chosen = jnp.log(jax.random.uniform(key_choice)) < weight - total
            starts = (half.size % levels == 0)[:, None]
            u, v = (
                jnp.where(starts, new, old) for new, old in zip((z.u, z.v), half.first, strict=True)
            )
            size = half.size + 1
            way = z.u - u
            turned = (jnp.sum(way * v, axis=1) < 0) | (way @ z.v < 0)
            is_over = jnp.any(turned & (size % levels == 0)) | ~jnp.isfinite(weight)
            return Half(
                *(rng_key, z, weight, z.where(is_chosen, half.selected), total, size, is_over),
                *(half.is_divergent | is_divergent, half.gradients + gradients),
                *(half.accepted + accepted, (u, v)),
            )

        def doubled(carry):
            """The orbit with as many states more, if they may be there."""
            rng_key, ends, weights, selected, total, depth, _, counts = carry
            rng_key, key_side, key_half, key_choice = jax.random.split(rng_key, 4)
            is_forward = jax.random.bernoulli(key_side)
            start = ends[1].where(is_forward, ends[0].reversed())
            weight = jnp.where(is_forward, weights[1], weights[0])
            blocks = jnp.zeros((max_doublings, x.size), x.dtype)
            zero = jnp.zeros_like(total)
            half = Half(
                *(key_half, start, weight, start, zero - jnp.inf, 0, False, counts[0]),
                *(counts[1], counts[2], (blocks, blocks)),
            )
            half = jax.lax.while_loop(
                lambda half: (half.size < 2**depth) & ~half.is_over, extended, half
            )
            is_chosen = jnp.log(jax.random.uniform(key_choice)) < half.total - total
            selected = half.selected.where(is_chosen & ~half.is_over, selected)
            ends = (
                ends[0].where(is_forward, half.last.reversed()),
                half.last.where(is_forward, ends[1]),
            )
            weights = (
                jnp.where(is_forward, weights[0], half.weight),
                jnp.where(is_forward, half.weight, weights[1]),
            )
            is_over = half.is_over | has_turned(*ends)
            counts = half.is_divergent, half.gradients, half.accepted, counts[3] + half.size
            total = jnp.logaddexp(total, half.total)
            return rng_key, ends, weights, selected, total, depth + 1, is_over, counts

        key_momentum, key_orbit = jax.random.split(rng_key)
        v = jax.random.normal(key_momentum, x.shape, x.dtype)
        gradient = ravel_pytree(state.logdensity_grad)[0]
        z = Point(jnp.zeros_like(x), v, scale * gradient, state.logdensity)
        zero = jnp.zeros_like(state.logdensity)
        counts = False, jnp.asarray(0), zero, jnp.asarray(0)
        carry = (key_orbit, (z, z), (zero, zero), z, zero, jnp.asarray(0), False, counts)
        found = jax.lax.while_loop(
            lambda carry: (carry[5] < max_doublings) & ~carry[6], doubled, carry
        )
        z, depth, (is_divergent, gradients, accepted, num_steps) = found[3], found[5], found[7]
        new = hmc.HMCState(unravel(x + scale * z.u), z.logdensity, unravel(z.g / scale))
        return new, WalnutsInfo(accepted / num_steps, is_divergent, gradients, depth)

    return kernel


def as_top_level_api(
    logdensity_fn: Any,
    step_size: float,
    inverse_mass_matrix: Any,
    tolerance: float = 0.5,
    finer: float = 0.0,
):
    """A BlackJAX algorithm."""
    kernel = build_kernel(tolerance, finer)
    parameters = (step_size, inverse_mass_matrix)
    return build_sampling_algorithm(kernel, hmc.init, logdensity_fn, kernel_args=parameters)


walnuts = GenerateSamplingAPI(as_top_level_api, hmc.init, build_kernel)
