"""A density and what to keep of its draws, for algorithms with step sizes by hand and for NUTS.

`tuned_chains` looks for a step size on seeds of its own and runs chains with it, without a warm-up,
as in the experiments of Cobb and Jha; `nuts_chains` gives NUTS the same density and starts.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from numpyro.infer import NUTS
from scipy.special import logsumexp
from scipy.stats import norm as normal

import blackjax_ext
from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.runs import best_step_size, run_chains
from benchmarks.harness.timing import timed

__all__ = [
    "FORWARD_MODE",
    "Chains",
    "Problem",
    "diagnostics",
    "mixture_nll",
    "nuts_chains",
    "run_problem",
    "samplers",
    "tuned_chains",
]

# the samplers of Cobb and Jha, and a random walk beside them
FORWARD_MODE = {
    "random walk": "random_walk",
    "MALA": "mala",
    "FMALA": "fmala",
    "Line-FMALA": "line_fmala",
    "PC-FMALA": "pc_fmala",
    "PC-Line-FMALA": "pc_line_fmala",
}


def samplers(quick: bool) -> dict[str, str]:
    """What is compared, by name: two are enough to show that a script runs."""
    return {name: FORWARD_MODE[name] for name in ("MALA", "FMALA")} if quick else FORWARD_MODE


class Problem(NamedTuple):
    """A density to sample, and what to keep of a draw.

    logdensity
        ``logdensity(position, *data)``, up to a constant.
    collect
        ``collect(position, *data)``: what is kept of a draw, an array or a pytree.
    start
        ``start(rng_key)``: where a chain begins.
    data
        Arrays, arguments of the functions above.
    burn_in
        Part of the draws, from 0 to 1, that is dropped.
    is_batched
        Whether chains step together; one after the other they need less memory.
    """

    logdensity: Callable
    collect: Callable
    start: Callable
    data: tuple
    burn_in: float = 0.5
    is_batched: bool = True


class Chains(NamedTuple):
    """What is left after the burn-in.

    step_size
        NaN for NUTS.
    kept, logdensity
        What was collected, (chains, draws, ...), and the log density, (chains, draws).
    acceptance
        Mean of each chain, (chains,).
    seconds
        Processor time of a step of one chain, of a draw for NUTS, without compilation and warm-up.
    """

    step_size: float
    kept: Any
    logdensity: np.ndarray
    acceptance: np.ndarray
    seconds: float


@partial(
    jax.jit,
    static_argnames=("name", "logdensity_fn", "collect", "num_draws", "thinning", "is_batched"),
)
def chains_of(
    step_sizes: Array,
    starts: Any,
    rng_key: Array,
    data: tuple,
    *,
    name: str,
    logdensity_fn: Callable,
    collect: Callable,
    num_draws: int,
    thinning: int,
    is_batched: bool = True,
) -> tuple[Any, Array, Array]:
    """Chains of the algorithm called `name`, one from each of `starts` with its own step size.

    Returns what `collect` keeps every `thinning` steps, (chains, num_draws, ...), the log density,
    (chains, num_draws), and the mean acceptance since the draw before, (chains, num_draws).
    """
    algorithm = getattr(blackjax_ext, name)
    kernel = algorithm.build_kernel()

    def target(position):
        return logdensity_fn(position, *data)

    def chain(each):
        start, step_size, rng_key = each

        def step(state, key):
            state, info = kernel(key, state, target, step_size)
            return state, info.acceptance_rate

        def draw(state, key):
            state, rates = jax.lax.scan(step, state, jax.random.split(key, thinning))
            return state, (collect(state.position, *data), state.logdensity, rates.mean())

        key_init, key_run = jax.random.split(rng_key)
        state = algorithm.init(start, target, key_init)
        return jax.lax.scan(draw, state, jax.random.split(key_run, num_draws))[1]

    every = starts, step_sizes, jax.random.split(rng_key, len(step_sizes))
    return jax.vmap(chain)(every) if is_batched else jax.lax.map(chain, every)


def without_burn_in(collected: Any, burn_in: float) -> Any:
    """Arrays (chains, draws, ...) without the first part of the draws."""
    return jax.tree.map(lambda x: np.asarray(x)[:, int(burn_in * x.shape[1]) :], collected)


def run_problem(
    problem: Problem,
    name: str,
    step_sizes: np.ndarray,
    rng_key: Array,
    num_draws: int,
    thinning: int,
) -> tuple[Any, np.ndarray, np.ndarray, float]:
    """A chain for each step size: what :class:`Chains` holds but the step size."""
    key_start, key_run = jax.random.split(rng_key)
    starts = jax.vmap(problem.start)(jax.random.split(key_start, len(step_sizes)))
    arguments = (jnp.asarray(step_sizes, jnp.float32), starts, key_run, problem.data)
    run = chains_of.lower(
        *arguments,
        name=name,
        logdensity_fn=problem.logdensity,
        collect=problem.collect,
        num_draws=num_draws,
        thinning=thinning,
        is_batched=problem.is_batched,
    ).compile()
    found, seconds = timed(run, *arguments, clock=time.process_time)
    kept, logdensity, rates = without_burn_in(found, problem.burn_in)
    return kept, logdensity, rates.mean(1), seconds / (len(step_sizes) * num_draws * thinning)


def tuned_chains(
    problem: Problem,
    name: str,
    step_sizes: np.ndarray,
    loss: Callable[[Any], float],
    num_search: int,
    num_draws: int,
    thinning: int,
    num_chains: int,
) -> Chains:
    """Chains with the step size whose chain of `num_search` draws has the least loss.

    `loss` gets what is kept of a chain, (draws, ...). The search has other seeds than the chains.
    """
    kept, *_ = run_problem(problem, name, step_sizes, jax.random.key(0), num_search, thinning)
    losses = [loss(jax.tree.map(lambda x, i=i: x[i], kept)) for i in range(len(step_sizes))]
    best = best_step_size(step_sizes, losses)
    sizes = np.full(num_chains, best)
    found = run_problem(problem, name, sizes, jax.random.key(1), num_draws, thinning)
    return Chains(best, *found)


def nuts_chains(
    problem: Problem,
    num_warmup: int,
    num_draws: int,
    num_chains: int,
    max_tree_depth: int = 10,
) -> Chains:
    """NumPyro's NUTS on the same problem from the same starts; no burn-in after its warm-up."""
    key_start, _ = jax.random.split(jax.random.key(1))
    starts = jax.vmap(problem.start)(jax.random.split(key_start, num_chains))
    unravel = ravel_pytree(jax.tree.map(lambda x: x[0], starts))[1]
    flat = jax.vmap(lambda x: ravel_pytree(x)[0])(starts)

    def model(*data):
        space = dist.ImproperUniform(constraints.real_vector, (), flat.shape[1:])
        position = unravel(numpyro.sample("position", space))
        numpyro.factor("density", problem.logdensity(position, *data))

    kernel = NUTS(model, max_tree_depth=max_tree_depth)
    run = run_chains(
        *(kernel, problem.data, num_warmup, num_draws, num_chains),
        fields=("accept_prob", "potential_energy"),
        init={"position": flat},
        clock=time.process_time,
    )
    collect = jax.jit(
        lambda draws, data: jax.lax.map(lambda x: problem.collect(unravel(x), *data), draws)
    )
    each = [collect(draws, problem.data) for draws in run.draws["position"]]
    kept = jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *each)
    return Chains(
        float("nan"),
        kept,
        -run.fields["potential_energy"],
        run.fields["accept_prob"].mean(1),
        run.sampling / (num_chains * num_draws),
    )


def mixture_nll(means: np.ndarray, sd: Any, y: np.ndarray) -> float:
    """Minus the mean log density at `y` of the mixture of normal laws, a draw each, (draws, N)."""
    terms = normal.logpdf(y, means, sd)
    return float(np.log(len(terms)) - logsumexp(terms, axis=0).mean())


def diagnostics(traces: np.ndarray) -> tuple[float, float]:
    """Least bulk ESS and worst R-hat of the numbers in (chains, draws, numbers)."""
    return least_ess(traces), worst_rhat(traces)
