"""Acceptance probability at the most efficient step size of each sampler.

The measure is the expected squared jump of a chain started in equilibrium, in units of the variance
and per coordinate, over a grid of step sizes. Run ``python benchmarks/acceptance_targets.py``; it
writes docs/results/acceptance_targets.md.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import blackjax_ext

PAGE = Path(__file__).parent.parent / "docs" / "results" / "acceptance_targets.md"
CHAINS, STEPS = 4000, 15
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


def jump_and_acceptance(name, options, target, size, step_sizes):
    """Expected squared jump and acceptance probability at each of `step_sizes`."""
    logdensity_fn, draw, sd = TARGETS[target]
    key_start, key_init, key_run = jax.random.split(jax.random.key(0), 3)
    start = draw(key_start, (CHAINS, size))

    def measure(step_size):
        metric = jnp.full(size, sd**2)
        kernel = getattr(blackjax_ext, name).build_kernel()
        algorithm = getattr(blackjax_ext, name)(logdensity_fn, 1.0, metric, **options)
        states = jax.vmap(algorithm.init)(start, jax.random.split(key_init, CHAINS))

        def step(key, state):
            return kernel(key, state, logdensity_fn, step_size, metric, **options)

        def body(states, key):
            new, info = jax.vmap(step)(jax.random.split(key, CHAINS), states)
            jump = jnp.mean((new.position - states.position) ** 2) / sd**2
            return new, (jump, info.acceptance_rate.mean())

        _, (jump, rate) = jax.lax.scan(body, states, jax.random.split(key_run, STEPS))
        return jump.mean(), rate.mean()

    return jax.jit(lambda sizes: jax.lax.map(measure, sizes))(step_sizes)


def row(name, options, target, size):
    """One line of the table."""
    widest = 6.0 if "line" in name else 4.0
    step_sizes = np.geomspace(0.12, widest, 28)
    jumps, rates = map(np.asarray, jump_and_acceptance(name, options, target, size, step_sizes))
    best = jumps.argmax()
    near = rates[jumps > 0.9 * jumps.max()]
    tangents = options.get("num_tangents", 1)
    return (
        f"| `{name}` | {tangents} | {target} | {size} | {step_sizes[best]:.2f} | {rates[best]:.2f} "
        f"| {near.min():.2f} to {near.max():.2f} | {jumps[best]:.3f} |"
    )


def main():
    """Measure every sampler on every target and write the page."""
    cases = [(*s, t, d) for s in SAMPLERS for d in (5, 20) for t in TARGETS]
    rows = [row(*case) for case in tqdm(cases, desc="acceptance targets")]
    head = [
        "# Acceptance probability to adapt to",
        "",
        "Step size, acceptance probability and expected squared jump (in variances, per",
        "coordinate) where the jump is largest, and the acceptance probabilities at which it is",
        "within 10 % of",
        f"that. {CHAINS:,} chains from equilibrium, {STEPS} steps, a grid of 28 step sizes.",
        f"JAX {jax.__version__}. Regenerate with `python benchmarks/acceptance_targets.py`.",
        "",
        "| sampler | tangents | target | D | step size | acceptance | within 10 % | jump |",
        "|---|---|---|---|---|---|---|---|",
    ]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(head + rows) + "\n")
    print("\n".join(head + rows))


if __name__ == "__main__":
    main()
