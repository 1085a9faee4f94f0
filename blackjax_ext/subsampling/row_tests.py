r"""Exact acceptance tests that read a few rows: by factors for groups, by weights without them.

Split the energy at an anchor into a part that is known without the rows and their remainders
(:mod:`blackjax_ext.subsampling.predictors`),

.. math::
    U(x) = S(x) + \sum_{i=1}^N r_i(x) + \text{const}, \qquad |r_i(x)| \le \psi_i |w|^{k+1},

where S is minus the exact log prior plus the expansion of all rows. A trajectory of AMAGOLD from
:math:`x` to :math:`x_*` with accumulator :math:`\rho` is accepted in factors (Cornish et al. 2019,
their eq. 6, with one factor more for the accumulator),

.. math::
    \alpha = \min\left(1, e^{S(x) - S(x_*) + \rho}\right)
    \prod_{i=1}^N \min\left(1, e^{r_i(x) - r_i(x_*)}\right).

*Detailed balance.* Let :math:`y = (x, r)`, :math:`z = (x_*, r_*)`, and let a path be the noises and
random components of a trajectory. The derivation in :mod:`blackjax_ext.sgmcmc.amagold` gives, for
the density P of a path with its start and :math:`P^\perp` of the reversed path that leads from
:math:`z^\perp = (x_*, -r_*)` to :math:`y^\perp`,

.. math::
    \pi(z^\perp) P^\perp / [\pi(y) P] = e^{U(x) - U(x_*) + \rho},

and the reversed path has the accumulator :math:`-\rho`. The step is skew-reversible,
:math:`\pi(y) P \alpha = \pi(z^\perp) P^\perp \alpha^\perp`, if
:math:`\alpha / \alpha^\perp` is that ratio, and each factor gives its own part of it, since
:math:`\min(1, e^u) / \min(1, e^{-u}) = e^u`:

.. math::
    \alpha / \alpha^\perp = e^{S(x) - S(x_*) + \rho} \prod_i e^{r_i(x) - r_i(x_*)}
    = e^{U(x) - U(x_*) + \rho}.

A rejection returns :math:`(x, -r)`, so the whole step leaves :math:`\pi(x, r)` invariant; with
fresh momenta it is reversible in x. The rows that the test draws are independent of the path
(:mod:`blackjax_ext.subsampling.thinning`).

*Weights in the place of factors.* A factor below one rejects, whatever others above one would have
given back: the product falls with the number of rows that matter, which grows as
:math:`D^{3/2} / \sqrt N`. Few matter to a group, whose tests are by factors; moves of rows without
groups are decided by weights (Prado, Nemeth and Sherlock). Every row has a number of events
:math:`n_i \sim \mathrm{Poisson}(\phi_i)`,

.. math::
    \phi_i = c_i + \min(0, \Delta_i), \qquad \phi_i' = \phi_i - \Delta_i, \qquad
    \Delta_i = r_i(x_*) - r_i(x), \quad c_i = \psi_i q,

where :math:`\phi_i'` is that of the way back. The move is accepted with probability

.. math::
    \min\left(1, e^{S(x) - S(x_*) + \rho}\right)
    \min\Big(1, \prod_i (\phi_i' / \phi_i)^{n_i}\Big).

*Detailed balance* with the numbers n: the ratio of the laws of n, there and back, is
:math:`\prod (\phi_i / \phi_i')^{n_i} e^{-\sum (\phi_i - \phi_i')}`, of which the second minimum
takes the product back, and :math:`\sum (\phi_i - \phi_i') = \sum \Delta_i` is what remains. So the
ratio of both ways is :math:`e^{S(x) - S(x_*) + \rho - \sum \Delta_i}`, as it must be, for each n,
and summed over n. The events are those of the rates :math:`c_i`, thinned to :math:`\phi_i`; none
ends the process, and none is drawn where the first minimum rejects.

*Groups.* A move of what all groups share is decided by the product of their factors, a move of the
groups given the rest by a test of each.

*Far from the anchor* (:mod:`blackjax_ext.subsampling.remainders`) all rows of a group are read, and
the sum of their changes joins the ordinary ratio: without groups the move is accepted with
probability :math:`\min(1, e^{U(x) - U(x_*) + \rho})`. Which of the two rules holds depends on the
pair of ends alone, in a symmetric way, so the ratio above holds for every pair: exact too, and no
step reads more than about N rows. `num_rows` says what was read.

Reference: R. Cornish, P. Vanetti, A. Bouchard-Côté, G. Deligiannidis and A. Doucet 2019, Scalable
Metropolis-Hastings for exact Bayesian inference with large datasets; E. Prado, C. Nemeth and
C. Sherlock 2024, Metropolis-Hastings with scalable subsampling (arXiv 2407.19602).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.checks import check_count
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.potentials import StochasticPotential, check_fits
from blackjax_ext.rows.shuffles import with_replacement
from blackjax_ext.sgmcmc.acceptance import Acceptance, Verdict
from blackjax_ext.subsampling.expansion import Expansion, surrogate
from blackjax_ext.subsampling.passes import energy
from blackjax_ext.subsampling.remainders import MoveEnds, changes_of, reaches_of, steps_to
from blackjax_ext.subsampling.thinning import FACTORS, WEIGHTS, thin


def subsampled(expansion: Expansion) -> Acceptance:
    r"""An exact test that reads a few rows, drawn in proportion to bounds of what they can change.

    See :mod:`blackjax_ext.subsampling.row_tests` for the derivation. The potential must be that of
    the same posterior, such as :func:`blackjax_ext.potentials.expanded_minibatch` of `expansion`.

    Parameters
    ----------
    expansion
        Of :func:`blackjax_ext.potentials.expand`. It must not depend on the chain.

    Returns
    -------
    The test. Cost: D^2, one log prior, and `num_rows` rows, each at two positions; on average about
    :math:`2 \Psi P^{(k+1)/2}` rows near the mode, for P coordinates that the rows see, and never
    much more than all N. The state keeps no exact energy: its `logdensity` is NaN.

    Raises
    ------
    TypeError
        For something that is no expansion.
    """
    is_expansion = isinstance(expansion, Expansion)
    if not is_expansion or expansion.has_groups:
        given = "one by groups, for group_sweeps" if is_expansion else type(expansion).__name__
        raise TypeError(
            f"expansion must be one that blackjax_ext.potentials.expand makes; got {given}."
        )
    return Acceptance(Partial(known_energy, expansion), Partial(read_few_rows, expansion))


def known_energy(expansion: Expansion, potential: StochasticPotential, x: ArrayTree) -> Array:
    """The energy at a position less the remainders of its rows, which the subsampled test keeps."""
    del potential
    return surrogate(expansion, x)


def read_few_rows(
    expansion: Expansion,
    rng_key: PRNGKey,
    potential: StochasticPotential,
    old_position: ArrayTree,
    old_cache: Array,
    new_position: ArrayTree,
    rho: Array,
) -> Verdict:
    """Verdict of the test, of which the potential is no part."""
    del potential
    return thinning_test(rng_key, expansion, old_position, old_cache, new_position, rho)


@exact_products
def thinning_test(
    rng_key: PRNGKey,
    expansion: Expansion,
    old_position: ArrayTree,
    old_surrogate: Array,
    new_position: ArrayTree,
    rho: Array,
) -> Verdict:
    """Whether to accept a move of rows without groups, by weights.

    Cost: D^2, one log prior, and the rows of the events.
    """
    key_first, key_second, key_events = jax.random.split(rng_key, 3)
    new_surrogate = surrogate(expansion, new_position)
    ends = (expansion.coordinates(x) for x in (old_position, new_position))
    reaches = reaches_of(expansion, MoveEnds.of(expansion, *ends))
    steps = steps_to(expansion, old_position, new_position)
    log_ratio = old_surrogate - new_surrogate + rho
    is_divergent = jnp.isnan(log_ratio) | ~jnp.isfinite(new_surrogate)

    # of a symmetric function of the two ends; an overflow is far too
    exact, num_far = changes_of(expansion, steps, reaches.is_far & ~is_divergent)
    log_ratio = log_ratio - exact[0]
    is_divergent = is_divergent | jnp.isnan(log_ratio)
    rate = jnp.where(is_divergent, 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    is_first = jax.random.uniform(key_first, rate.shape, rate.dtype) < rate
    is_on = ~is_divergent & is_first
    events = thin(key_events, expansion, steps, reaches, is_on, WEIGHTS, is_joint=True)
    second = jnp.exp(jnp.minimum(events.value[0], 0.0))
    is_second = jax.random.uniform(key_second, rate.shape, rate.dtype) < second
    rate = jnp.where(reaches.is_far[0], rate, jnp.where(is_first, second, 0.0))
    num_rows = events.num_rows + num_far
    return Verdict(is_first & is_second, rate, is_divergent, new_surrogate, num_rows)


class RowTest(NamedTuple):
    """Outcome of the rows' test of a move, with the rows that were read; shapes (G,).

    `change` sums the changes of remainders of groups that were read whole. `survival` is the
    probability that no event of a group vetoes, given them; of the last round where one veto is
    enough.
    """

    change: Array
    is_vetoed: Array
    survival: Array
    num_rows: Array


def run_test(
    rng_key: PRNGKey,
    expansion: Expansion,
    steps: Array,
    ends: MoveEnds,
    is_on: Array,
    *,
    is_joint: bool,
) -> RowTest:
    """Test a move by the factors of its rows; no row is read where `is_on` is False.

    `steps` are those from the anchor to both ends, flat, shape (2, D). With `is_joint` one veto is
    enough for all groups, and events end with it.
    """
    reaches = reaches_of(expansion, ends)
    change, num_far = changes_of(expansion, steps, reaches.is_far & is_on)
    events = thin(rng_key, expansion, steps, reaches, is_on, FACTORS, is_joint=is_joint)
    return RowTest(change, events.is_ended, events.value, events.num_rows + num_far)


def expanded_minibatch(expansion: Expansion, batch_size: int) -> StochasticPotential:
    r"""Energy of an expanded posterior, with the control variate that its expansion is.

    .. math::
        \hat{g}(x; \zeta) = \nabla S(x)
        + \frac{N}{B} \sum_{i \in \zeta} A_i^T \left[ \nabla\phi_i(\eta_i)
        - \nabla\phi_i(a_i) - \nabla^2\phi_i(a_i)\, t_i \right],

    the gradient of `control_variate` with two reads of each row instead of three gradients.
    Notation of :mod:`blackjax_ext.subsampling.predictors`.

    Parameters
    ----------
    expansion
        Of `expand`.
    batch_size
        B, from 1 to N; 0 leaves the sum out, which is exact too: then S alone drives the
        trajectory.

    Returns
    -------
    A potential. Cost: B rows and D^2 for a gradient, N rows for an energy, in chunks.

    Raises
    ------
    ValueError, TypeError
        For something that is no expansion, or a batch size that is not a whole number from 0 to N.
    """
    if not isinstance(expansion, Expansion) or expansion.has_groups or expansion.predictor is None:
        raise TypeError(f"expansion must be one that expand makes; got {expansion!r}.")
    if batch_size != 0:
        check_count("batch_size", batch_size, most=expansion.num_rows, of="rows of the data")
    draw = Partial(partial(draw_indices, expansion.num_rows, batch_size))
    energy_fn = Partial(energy, expansion.posterior)
    gradient = Partial(expanded_gradient, expansion)
    return StochasticPotential(energy_fn, draw, gradient, expansion.num_rows)


def draw_indices(num_rows: int, batch_size: int, rng_key: PRNGKey) -> Array:
    """Rows by their numbers, drawn with replacement."""
    return with_replacement(rng_key, num_rows, batch_size)


def expanded_gradient(expansion: Expansion, x: ArrayTree, indices: Array) -> ArrayTree:
    """Gradient of the surrogate energy, corrected by the rows of a minibatch."""
    posterior = expansion.posterior
    a, unravel = ravel_pytree(expansion.position)
    check_fits(expansion.position, x)
    (d,), (u, _) = steps_to(expansion, x), expansion.coordinates(x)
    slope = expansion.arrow.shared + expansion.arrow.of_shared @ u
    of_prior = ravel_pytree(jax.grad(posterior.logprior)(x))[0]
    gradient = slope @ expansion.frame.root_inverse - of_prior
    if not indices.size:
        return unravel(gradient)
    eta, changes, rows = jax.linearize(
        lambda x: posterior.read(unravel(x), indices), a, has_aux=True
    )

    def excess(eta: ArrayTree, t: ArrayTree, row: ArrayTree) -> ArrayTree:
        slope = partial(jax.grad(posterior.loss), row=row)
        moved = slope(jax.tree.map(jnp.add, eta, t))
        here, bend = jax.jvp(slope, (eta,), (t,))
        return jax.tree.map(lambda a, b, c: a - b - c, moved, here, bend)

    excesses = jax.vmap(excess)(eta, changes(d), rows)
    (rest,) = jax.linear_transpose(changes, d)(excesses)
    return unravel(gradient + expansion.num_rows / indices.size * rest)
