"""Acceptance probability to adapt to: ``python benchmarks/acceptance_targets.py``.

The measure is the expected squared jump of a chain started in equilibrium, in units of the variance
and per coordinate, over a grid of step sizes.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import numpy as np

import blackjax_ext
from benchmarks.harness.report import Report, Section

CHAINS, STEPS, NUM_SIZES = 4000, 15, 28
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


REPORT = Report("acceptance_targets", "Acceptance probability to adapt to", {"targets": targets})

if __name__ == "__main__":
    REPORT.main()
