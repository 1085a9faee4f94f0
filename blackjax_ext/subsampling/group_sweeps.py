r"""Sweeps over what rows in groups share, and over the groups: exact MCMC in blocks.

A posterior of G groups has :math:`D = p + G d` coordinates. A single decision for all of them by
factors of the rows is rarely accepted, however many rows it reads: factors do not cancel, so the
acceptance falls as :math:`\exp(-c D^{3/2} / \sqrt N)`. Decisions in blocks avoid this. A sweep is

1. a few moves of the shared coordinates, by a Hamiltonian trajectory on the energy S (the exact
   prior and the expansion of all rows) in the coordinate u of
   :mod:`blackjax_ext.rows.arrowhead` at fixed v, so that the groups follow, and a
   test by the rows of all groups together;
2. a move of every group given u, and its own test by its own rows, all in parallel.

*Moves of u.* The map :math:`(u, v) \to x` is linear, so densities by (u, v) are those of x up to a
constant. With a fresh momentum :math:`r \sim N(0, I)` and T leapfrog steps, which preserve volume
and are reversed by the flip of the momentum, the ratio of the two ways is
:math:`e^{-\Delta S - \Delta |r|^2 / 2 - \sum_i \Delta r_i}`, the latter over the remainders of the
rows. The test of :mod:`blackjax_ext.subsampling.row_tests` splits it into factors, each with its
own ratio, as derived there: detailed balance holds for u given v.

*Moves of the groups.* Given u, the density of v is a product over the groups, because each row sees
one group and the prior of a group depends on no other. A normal approximation :math:`N(m_c,
P_c^{-1})` of a group is a function of u alone: two Newton steps on S from :math:`v_c = 0`. The
proposal :math:`v_c^* = m_c + \cos\theta_c (v_c - m_c) + \sin\theta_c P_c^{-1/2} \xi` is reversible
for it at every angle. So with :math:`z_c = P_c^{1/2} (v_c - m_c)` the acceptance

.. math::
    \min\Big(1, e^{-\Delta S_c + \frac12 |z_c^*|^2 - \frac12 |z_c|^2
    - [\text{far}] \sum_{i \in c} \Delta r_i}\Big)
    \prod_{i \in c,\,\text{near}} \min(1, e^{-\Delta r_i})

has the ratio of the densities of the group given u: each group is in detailed balance, and so are
all of them at once. For a group of many rows the sum over them is in a factor of its own, so that
they are read only where the expansion accepts. For a normal prior and an expansion of order 2 only
the rows decide. The angle is 2, where the proposal is antithetic, but for a share of the groups,
drawn independently of the state.

*Tails.* Where a group has few rows, its density has the tails of its prior, which may be those of a
Student t or, of the logarithm of a scale, exponential: normal proposals would not visit them. The
share of the groups moves by a multivariate t instead, :math:`z \sim t_\nu(0, I)`, which is a normal
of a random precision:

.. math::
    w \mid z \sim \chi^2_{\nu + d} / (\nu + |z|^2), \quad
    z^* = \cos\theta_c z + \sin\theta_c \, \xi / \sqrt w.

Given w that is reversible for :math:`N(0, I / w)`, so over w it is reversible for the t, and
:math:`\frac{\nu + d}{2} \log(1 + |z|^2 / \nu)` takes the place of :math:`\frac12 |z|^2` in the
acceptance. Far out steps are in proportion to :math:`|z|`: a chain comes back from any tail. Its
angle is 2 for half of these groups, half of that for a half of the rest, and so on.

Each part leaves the posterior invariant, and so does the sweep, which is not reversible.

Cost of a sweep: for M moves of T steps, M (T + 1) log priors and products of G d p numbers, and the
rows of M + 1 tests.

What goes wrong: with many groups of few rows, shared moves are short, since they are tested by the
remainders of all rows. A group without rows follows only its prior, so a hyperparameter and such
groups mix as slowly as Gibbs sampling of a centred hierarchy does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm, build_sampling_algorithm
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array

from blackjax_ext.checks import check_count, check_position, check_positive
from blackjax_ext.precision import exact_products
from blackjax_ext.subsampling.expansion import Expansion
from blackjax_ext.subsampling.grouped_mode import laplace_approximation, solved
from blackjax_ext.subsampling.remainders import MoveEnds, steps_to
from blackjax_ext.subsampling.row_tests import run_test
from blackjax_ext.top_level import public
from blackjax_ext.types import select

HEAVY_SHARE = 0.3  # of the groups, whose proposals have heavy tails
FEW_ROWS = 64  # of a group, up to which all are read even if the expansion would reject


class GroupSweepsState(NamedTuple):
    """State of the chain.

    Attributes
    ----------
    position
        Pytree of arrays.
    group_acceptance_rate
        Mean acceptance probability of the groups in the last sweep.
    """

    position: ArrayTree
    group_acceptance_rate: Array

    @property
    def logdensity(self) -> Array:
        """Not a number, since no sweep evaluates it."""
        return jnp.full_like(self.group_acceptance_rate, jnp.nan)


class GroupSweepsInfo(NamedTuple):
    """Facts about one sweep.

    Attributes
    ----------
    acceptance_rate
        Mean acceptance probability of the moves of what is shared; of the groups if nothing is.
    group_acceptance_rate
        Mean acceptance probability of the groups.
    is_accepted
        Whether what is shared moved in any of its moves; the groups if nothing is shared.
    is_divergent
        Whether a proposal was rejected because something there was not finite.
    num_integration_steps
        Leapfrog steps of all moves.
    num_rows
        Rows that the tests read.
    """

    acceptance_rate: Array
    group_acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    num_integration_steps: int
    num_rows: Array

    @property
    def has_moved(self) -> Array:
        """Whether the shared coordinates have moved; groups move in any case."""
        return self.is_accepted


def init(position: ArrayLikeTree, expansion: Expansion) -> GroupSweepsState:
    """First state at `position`."""
    return GroupSweepsState(check_position(position), jnp.zeros((), expansion.totals.dtype))


class BlockUpdate(NamedTuple):
    """Outcome of a part of a sweep, with the rows that it read.

    It is accepted where what is shared, or any group, moved.
    """

    position: ArrayTree
    acceptance_rate: Array
    is_accepted: Array
    is_divergent: Array
    num_rows: Array


def shared_energy(expansion: Expansion, v: Array) -> Callable[[Array], Array]:
    """S as a function of u at fixed v, up to a constant. Cost of a call: a log prior, and G d p."""
    rows, terms = expansion.given_groups(v), expansion.grouped.terms

    def energy(u: Array) -> Array:
        return rows(u) - terms(expansion.position_of(u, v)).total()

    return energy


def leapfrog_trajectory(
    energy: Callable[[Array], Array], u: Array, r: Array, step_size: Array, num_steps: int
) -> tuple[Array, Array]:
    """Leapfrog steps from a place and a momentum. Cost: T + 1 gradients."""
    slope = jax.grad(energy)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        u, r, g = carry
        r = r - 0.5 * step_size * g
        u = u + step_size * r
        g = slope(u)
        return (u, r - 0.5 * step_size * g, g), None

    (u, r, _), _ = jax.lax.scan(step, (u, r, slope(u)), length=num_steps)
    return u, r


@exact_products
def move_shared(
    rng_key: PRNGKey,
    expansion: Expansion,
    position: ArrayTree,
    step_size: Array,
    num_steps: int,
) -> BlockUpdate:
    """Move what is shared, with the groups in tow, and test by the rows of all groups."""
    key_momentum, key_accept, key_rows = jax.random.split(rng_key, 3)
    u, v = expansion.coordinates(position)
    energy = shared_energy(expansion, v)
    momentum = jax.random.normal(key_momentum, u.shape, u.dtype)
    new_u, new_momentum = leapfrog_trajectory(energy, u, momentum, step_size, num_steps)
    new = expansion.position_of(new_u, v)
    kinetic = 0.5 * (momentum @ momentum - new_momentum @ new_momentum)
    log_ratio = energy(u) - energy(new_u) + kinetic
    is_divergent = ~(log_ratio > -jnp.inf)

    outcome = run_test(
        key_rows,
        expansion,
        steps_to(expansion, position, new),
        MoveEnds.of(expansion, (u, v), (new_u, v)),
        ~is_divergent,
        is_joint=True,
    )
    log_ratio = log_ratio - jnp.sum(outcome.change)
    is_divergent = is_divergent | jnp.isnan(log_ratio)
    rate = jnp.where(is_divergent, 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    is_accepted = jax.random.uniform(key_accept, rate.shape, rate.dtype) < rate
    is_accepted &= ~jnp.any(outcome.is_vetoed)
    position = select(is_accepted, new, position)
    rate = rate * jnp.prod(outcome.survival)
    return BlockUpdate(position, rate, is_accepted, is_divergent, outcome.num_rows)


class Conditional(NamedTuple):
    """Groups given what is shared: S of each group, (G, d) to (G,), and their approximation.

    With means m, (G, d), and lower Cholesky factors of P, (G, d, d).
    """

    energy: Callable[[Array], Array]
    mean: Array
    factor: Array


def conditional(expansion: Expansion, u: Array) -> Conditional:
    """The groups given u, with their normal approximation. Cost: 2 (d + 1) prior gradients."""
    rows, terms = expansion.given_shared(u), expansion.grouped.terms

    def energy(v: Array) -> Array:
        return rows(v) - terms(expansion.position_of(u, v)).groups

    gradient = jax.grad(lambda v: jnp.sum(energy(v)))
    mean, factor = laplace_approximation(
        gradient, laplace_approximation(gradient, jnp.zeros_like(expansion.arrow.groups))[0]
    )
    return Conditional(energy, mean, factor)


class Proposed(NamedTuple):
    """Where groups are proposed to go, in the coordinates of their normal approximations.

    Attributes
    ----------
    z
        The places, shape (G, d).
    log_ratio
        Logarithm of the density for which the proposal is reversible, here less there, shape (G,).
    is_heavy
        Whether it has heavy tails, shape (G,).
    """

    z: Array
    log_ratio: Array
    is_heavy: Array


def proposed(rng_key: PRNGKey, z: Array) -> Proposed:
    """Moves of the groups from `z`, of which a share has heavy tails."""
    key_heavy, key_halved, key_noise, key_scale = jax.random.split(rng_key, 4)
    num_groups, width = z.shape
    is_heavy = jax.random.bernoulli(key_heavy, HEAVY_SHARE, (num_groups,))
    # how often their angles are halved: five times at most
    halved = jnp.minimum(jax.random.geometric(key_halved, 0.5, (num_groups,)) - 1, 5)
    # the autocorrelation of a normal is cos(2) = -0.4
    angle = 2.0 * jnp.exp2(-jnp.where(is_heavy, halved, 0).astype(z.dtype))[:, None]

    noise = jax.random.normal(key_noise, z.shape, z.dtype)
    # of Student's t with one degree of freedom
    normals = jax.random.normal(key_scale, (num_groups, 1 + width), z.dtype)
    heavy = noise * jnp.sqrt((1 + squares(z)) / squares(normals))[:, None]
    new = jnp.cos(angle) * z + jnp.sin(angle) * jnp.where(is_heavy[:, None], heavy, noise)

    def energy(z: Array) -> Array:
        of_t = 0.5 * (1 + width) * jnp.log1p(squares(z))
        return jnp.where(is_heavy, of_t, 0.5 * squares(z))

    return Proposed(new, energy(new) - energy(z), is_heavy)


def squares(z: Array) -> Array:
    """Squared lengths of rows, shape (G,)."""
    return jnp.sum(jnp.square(z), axis=1)


@exact_products
def move_groups(rng_key: PRNGKey, expansion: Expansion, position: ArrayTree) -> BlockUpdate:
    """Move every group given what is shared, each with a test by its own rows."""
    key_proposal, key_accept, key_rows = jax.random.split(rng_key, 3)
    u, v = expansion.coordinates(position)
    given = conditional(expansion, u)
    z = jnp.einsum("cji,cj->ci", given.factor, v - given.mean)
    proposal = proposed(key_proposal, z)
    new_v = given.mean + solved(given.factor, proposal.z, is_transposed=True)
    log_ratio = given.energy(v) - given.energy(new_v) + proposal.log_ratio
    is_divergent = ~(log_ratio > -jnp.inf)
    new_v = jnp.where(is_divergent[:, None], v, new_v)

    # a group of many rows is read whole only where the surrogate accepts
    is_joint = expansion.sizes <= FEW_ROWS
    log_uniform, of_rows = jnp.log(jax.random.uniform(key_accept, (2, *log_ratio.shape), v.dtype))
    is_first = log_uniform < log_ratio
    outcome = run_test(
        key_rows,
        expansion,
        steps_to(expansion, position, expansion.position_of(u, new_v)),
        MoveEnds.of(expansion, (u, v), (u, new_v)),
        is_first | is_joint,
        is_joint=False,
    )
    with_rows = log_ratio - jnp.where(is_joint, outcome.change, 0.0)
    rows_alone = -jnp.where(is_joint, 0.0, outcome.change)
    is_accepted = (log_uniform < with_rows) & (of_rows < rows_alone)
    is_accepted &= ~outcome.is_vetoed & ~is_divergent
    first = jnp.where(is_joint, jnp.exp(jnp.minimum(with_rows, 0.0)), is_first)
    rate = first * jnp.exp(jnp.minimum(rows_alone, 0.0)) * outcome.survival
    rate = jnp.nan_to_num(jnp.where(is_divergent, 0.0, rate))
    # coefficients of the groups that moved; all others are as they were
    grouping = expansion.grouped.grouping
    shared, groups = grouping.split(position)
    new_groups = grouping.split(expansion.position_of(u, new_v))[1]
    position = grouping.join(shared, jnp.where(is_accepted[:, None], new_groups, groups))
    rate = jnp.mean(rate)
    is_divergent = jnp.any(is_divergent & ~proposal.is_heavy)  # those may go anywhere
    return BlockUpdate(position, rate, jnp.any(is_accepted), is_divergent, outcome.num_rows)


def build_kernel() -> Callable[..., tuple[GroupSweepsState, GroupSweepsInfo]]:
    """Build the transition kernel.

    Returns
    -------
    Callable
        ``kernel(rng_key, state, expansion, step_size, *, num_integration_steps=4, num_moves=4) ->
        (state, info)``.
    """

    def kernel(
        rng_key: PRNGKey,
        state: GroupSweepsState,
        expansion: Expansion,
        step_size: float | Array,
        *,
        num_integration_steps: int = 4,
        num_moves: int = 4,
    ) -> tuple[GroupSweepsState, GroupSweepsInfo]:
        """One sweep."""
        key_shared, key_groups = jax.random.split(rng_key)
        position, step_size = state.position, jnp.asarray(step_size)

        def move(position: ArrayTree, key: PRNGKey) -> Any:
            moved = move_shared(key, expansion, position, step_size, num_integration_steps)
            return moved.position, moved[1:]

        if expansion.grouped.grouping.size == 0:
            num_moves = 0
        position, of_moves = jax.lax.scan(move, position, jax.random.split(key_shared, num_moves))
        moved = move_groups(key_groups, expansion, position)
        rates, accepted, divergent, num_rows = of_moves
        info = GroupSweepsInfo(
            jnp.mean(rates) if num_moves else moved.acceptance_rate,
            moved.acceptance_rate,
            jnp.any(accepted) if num_moves else moved.is_accepted,
            jnp.any(divergent) | moved.is_divergent,
            num_moves * num_integration_steps,
            jnp.sum(num_rows) + moved.num_rows,
        )
        return GroupSweepsState(moved.position, moved.acceptance_rate), info

    return kernel


@public(init, build_kernel)
def group_sweeps(
    expansion: Expansion,
    step_size: float,
    *,
    num_integration_steps: int = 4,
    num_moves: int = 4,
) -> SamplingAlgorithm:
    """Exact MCMC in blocks for rows in groups, by tests that read a few rows of each.

    Parameters
    ----------
    expansion
        Of :func:`blackjax_ext.potentials.expand_groups`.
    step_size
        epsilon > 0 of the leapfrog of what is shared, in standard deviations of the posterior.
    num_integration_steps
        T >= 1, leapfrog steps of a move of what is shared.
    num_moves
        M >= 1, such moves in a sweep.

    Returns
    -------
    A ``SamplingAlgorithm`` with ``init(position)`` and ``step(rng_key, state)``.

    Raises
    ------
    ValueError, TypeError
        For a step size that is not positive and finite, numbers of steps or moves below one,
        something that is no expansion, a position that is empty or not floating.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, blackjax_ext
    >>> from blackjax_ext import families, potentials
    >>> level = jnp.arange(4_000) % 40
    >>> x = jax.random.normal(jax.random.key(0), (4_000, 2))
    >>> effect = 0.5 * jax.random.normal(jax.random.key(1), (40,))
    >>> odds = x[:, 0] + effect[level]
    >>> y = jax.random.bernoulli(jax.random.key(2), jax.nn.sigmoid(odds)).astype(float)
    >>> start = {"shared": {"slopes": jnp.zeros(2), "log_sd": 0.0}, "groups": jnp.zeros(40)}
    >>> posterior = potentials.grouped_predictor(
    ...     lambda shared: -0.5 * jnp.sum(shared["slopes"] ** 2) - shared["log_sd"] ** 2,
    ...     lambda shared, b: -0.5 * jnp.exp(-2 * shared["log_sd"]) * b**2 - shared["log_sd"],
    ...     families.bernoulli(),
    ...     (x, y, level),
    ...     start,
    ...     predict_fn=lambda shared, b, row: row @ shared["slopes"] + b,
    ... )
    >>> expansion = potentials.expand_groups(posterior, start)
    >>> sweeps = blackjax_ext.group_sweeps(expansion, 0.3)
    >>> state = sweeps.init(expansion.position)
    >>> state, info = jax.jit(sweeps.step)(jax.random.key(3), state)
    >>> bool(info.group_acceptance_rate > 0.8), bool(info.num_rows < 4_000)
    (True, True)
    """
    is_grouped = isinstance(expansion, Expansion) and expansion.has_groups
    if not is_grouped or expansion.predictor is None:
        raise TypeError(f"expansion must be one that expand_groups makes; got {expansion!r}.")
    check_positive("step_size", step_size)
    check_count("num_integration_steps", num_integration_steps)
    check_count("num_moves", num_moves)
    kernel = partial(
        build_kernel(), num_integration_steps=num_integration_steps, num_moves=num_moves
    )
    return build_sampling_algorithm(kernel, init, expansion, kernel_args=(step_size,))
