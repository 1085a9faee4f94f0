"""Acceptance probability to adapt to: ``python benchmarks/acceptance_targets.py``.

The measure is the expected squared jump of a chain started in equilibrium, in units of the variance
and per coordinate, over a grid of step sizes; of trajectories that are doubled it is the effective
draws per gradient with the step size of the target, and with the longer one of half a turn.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import numpy as np

import blackjax_ext
import numpyro_fwd
from benchmarks.harness.board_posteriors import POSTERIORS
from benchmarks.harness.diagnostics import least_ess, least_ess_of_squares, worst_rhat
from benchmarks.harness.report import Report, Section
from blackjax_ext.adaptation import half_turns

CHAINS, STEPS, NUM_SIZES = 4000, 15, 28
DOUBLED = (  # models whose step size is a little below that of half a turn
    *("kidscore", "mixture", "funnel", "swiss", "robust", "linear", "survival", "ordinal"),
    *("negative_binomial", "autoregression", "hidden_markov", "lynx_hare", "local_level"),
    *("schools_centred", "item_response", "crossed", "disease_map"),
)
SAMPLERS = [
    ("random_walk", {}),
    ("mala", {}),
    ("fmala", {}),
    ("fmala", {"num_tangents": 4}),
    ("line_fmala", {}),
    ("line_fmala", {"num_tangents": 4}),
    ("pc_fmala", {}),
    ("pc_line_fmala", {}),
    ("pc_line_fmala", {"num_tangents": 4}),
]
TARGETS = {
    "normal": (lambda x: -0.5 * jnp.sum(x**2), jax.random.normal, 1.0),
    "logistic": (
        lambda x: jnp.sum(x - 2 * jax.nn.softplus(x)),
        jax.random.logistic,
        np.pi / 3**0.5,
    ),
    "log-exponential": (
        lambda x: jnp.sum(x - jnp.exp(x)),
        lambda key, shape: jnp.log(jax.random.exponential(key, shape)),
        np.pi / 6**0.5,
    ),
}


def jump_and_acceptance(name, options, target, size, step_sizes, num_chains):
    """Expected squared jump and acceptance probability at each of `step_sizes`."""
    logdensity_fn, draw, sd = TARGETS[target]
    key_start, key_init, key_run = jax.random.split(jax.random.key(0), 3)
    start = draw(key_start, (num_chains, size))

    def measure(step_size):
        metric = jnp.full(size, sd**2)
        kernel = getattr(blackjax_ext, name).build_kernel()
        algorithm = getattr(blackjax_ext, name)(logdensity_fn, 1.0, metric, **options)
        states = jax.vmap(algorithm.init)(start, jax.random.split(key_init, num_chains))

        def step(key, state):
            return kernel(key, state, logdensity_fn, step_size, metric, **options)

        def body(states, key):
            new, info = jax.vmap(step)(jax.random.split(key, num_chains), states)
            jump = jnp.mean((new.position - states.position) ** 2) / sd**2
            return new, (jump, info.acceptance_rate.mean())

        _, (jump, rate) = jax.lax.scan(body, states, jax.random.split(key_run, STEPS))
        return jump.mean(), rate.mean()

    return jax.jit(lambda sizes: jax.lax.map(measure, sizes))(step_sizes)


def row(name, options, target, size, num_chains) -> list:
    """One line of the table."""
    widest = 6.0 if "line" in name else 4.0
    step_sizes = np.geomspace(0.12, widest, NUM_SIZES)
    found = jump_and_acceptance(name, options, target, size, step_sizes, num_chains)
    jumps, rates = map(np.asarray, found)
    best = jumps.argmax()
    near = rates[jumps > 0.9 * jumps.max()]
    tangents = options.get("num_tangents", 1)
    return [
        *(f"`{name}`", tangents, target, size, float(step_sizes[best]), float(rates[best])),
        *(f"{near.min():.2f} to {near.max():.2f}", float(jumps[best])),
    ]


def targets(quick: bool) -> Section:
    """Where the expected squared jump of each sampler is largest."""
    num_chains = 100 if quick else CHAINS
    cases = [
        (name, options, target, size)
        for name, options in (SAMPLERS[:2] if quick else SAMPLERS)
        for size in (5, 20)
        for target in TARGETS
    ]
    rows = [REPORT.once(case, row, *case, num_chains) for case in cases]
    return Section(
        "Where the expected squared jump is largest",
        "Step size, acceptance probability and expected squared jump (in variances, per "
        "coordinate) where the jump is largest, and the acceptance probabilities at which it is "
        f"within 10 % of that. {num_chains:,} chains from equilibrium, {STEPS} steps, a grid of "
        f"{NUM_SIZES} step sizes.",
        ["sampler", "tangents", "target", "D", "step size", "acceptance", "within 10 %", "jump"],
        rows,
    )


def with_both_steps(name: str, num_steps: int) -> list[list]:
    """Rows of a posterior: with the step size of the target, and with the longer one."""
    model, arguments = POSTERIORS[name].make()
    mcmc = numpyro_fwd.MCMC(
        numpyro_fwd.AutoNUTS(model),
        num_warmup=num_steps,
        num_samples=num_steps,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.warmup(jax.random.key(0), *arguments)
    state = mcmc.post_warmup_state
    adapted = state.adapt_state
    average = jnp.exp(adapted.averaging.log_x_avg)
    rows = []
    for step_size in (average, half_turns.longer(average)):
        mcmc.post_warmup_state = state._replace(adapt_state=adapted._replace(step_size=step_size))
        fields = ("num_steps", "accept_prob", "diverging")
        mcmc.run(jax.random.key(1), *arguments, extra_fields=fields)
        found = mcmc.get_extra_fields(group_by_chain=True)
        samples = mcmc.get_samples(group_by_chain=True)
        draws = {site: np.asarray(samples[site]) for site in state.z}
        count = float(found["num_steps"].sum()) / 1000
        is_taken = bool(jnp.allclose(step_size, adapted.step_size, rtol=0.02))
        squares = min(least_ess_of_squares(x) for x in draws.values() if x.size)
        rows.append(
            [
                *(name, (len(rows) and "half a turn") or "of the target", float(step_size[0])),
                "yes" if is_taken else "no",
                float(found["accept_prob"].mean()),
                100 * float((found["accept_prob"] < half_turns.LOST).mean()),
                int(found["diverging"].sum()),
                float(found["num_steps"].mean()),
                *(worst_rhat(draws), least_ess(draws) / count, squares / count),
            ]
        )
    jax.clear_caches()
    return rows


def doubled(quick: bool) -> Section:
    """What the step size of half a turn brings to trajectories that are doubled."""
    names, num_steps = (DOUBLED[:1], 100) if quick else (DOUBLED, 1000)
    tables = [REPORT.once(name, with_both_steps, name, num_steps) for name in names]
    return Section(
        "Step sizes of half a turn",
        "AutoNUTS on posteriors of the leaderboard whose step size, adapted to an acceptance "
        "probability of 0.85, is a little below that with which 3 or 7 steps are half a turn: with "
        f"both step sizes. Four chains, {num_steps:,} steps of warm-up, {num_steps:,} draws, one "
        "seed. Lost: trajectories with an acceptance probability below "
        f"{half_turns.LOST}, in per cent. Taken: by the warm-up, which tries the longer step. "
        "Least bulk ESS of a value, and of a square, per 1,000 gradients of the "
        "draws.",
        [
            *("posterior", "step", "step size", "taken", "acceptance", "lost, %", "divergences"),
            *("gradients a draw", "R-hat", "ESS", "ESS of squares"),
        ],
        [row for table in tables for row in table],
    )


REPORT = Report(
    "acceptance_targets",
    "Acceptance probability to adapt to",
    {"targets": targets, "doubled": doubled},
)

if __name__ == "__main__":
    REPORT.main()
