"""Effective draws per second and per pass over the data, on a logistic regression with many rows.

The model is that of a benchmark of minibatch samplers: 20 coefficients of scales from 0.3 to 3, a
standard normal prior, 1,000 rows in a minibatch. Draws are timed after the warm-up and without
compilation. Run ``python benchmarks/amagold.py --rows 100000``; it prints a table.
"""

import argparse
import time

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from numpyro_fwd import AMAGOLD, L2MC
from numpyro_fwd.minibatch_views import FullView

SIZE, BATCH, STEPS = 20, 1000, 4
# gradients of a minibatch in one estimate
ESTIMATES = {None: 1, "first_order": 2, "second_order": 3}
FORWARD_AND_BACK = 3  # evaluations that a gradient costs


def simulate(num_rows):
    """Covariates and binary responses, in single precision."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(0.3, 3.0, SIZE)
    x = rng.normal(size=(num_rows, SIZE)) * scales
    slope = rng.normal(size=SIZE) * 0.5 / scales
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ slope))
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([SIZE]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=BATCH) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slope), obs=y[rows])


def amagold(control_variate):
    """AMAGOLD, and what a transition costs in evaluations of `num_rows` rows."""
    kernel = AMAGOLD(model, control_variate=control_variate, num_integration_steps=STEPS)
    reads = STEPS * BATCH * FORWARD_AND_BACK * ESTIMATES[control_variate]
    return kernel, lambda num_rows, _: (reads + num_rows) / num_rows


SAMPLERS = {
    "AMAGOLD, second order": lambda: amagold("second_order"),
    "AMAGOLD, first order": lambda: amagold("first_order"),
    "AMAGOLD, none": lambda: amagold(None),
    "L2MC": lambda: (
        L2MC(model, num_integration_steps=STEPS, dense_mass=True),
        lambda *_: STEPS * FORWARD_AND_BACK + 1,
    ),
    "NUTS": lambda: (
        NUTS(FullView(model), dense_mass=True),
        lambda _, num_steps: num_steps * FORWARD_AND_BACK,
    ),
}


def measure(name, data, num_warmup, num_samples):
    """Draws after a warm-up, seconds they took, mean acceptance, mean passes per draw."""
    kernel, passes = SAMPLERS[name]()
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=1, progress_bar=False)
    mcmc.warmup(jax.random.key(1), *data)

    def step(state, _):
        state = kernel.sample(state, data, {})
        return state, (state.z["slope"], state.accept_prob, state.num_steps)

    program = jax.jit(lambda state: jax.lax.scan(step, state, length=num_samples)[1])
    program = program.lower(mcmc.post_warmup_state).compile()
    began = time.perf_counter()
    draws, rates, num_steps = jax.block_until_ready(program(mcmc.post_warmup_state))
    seconds = time.perf_counter() - began
    cost = passes(len(data[1]), float(jnp.mean(num_steps)))
    return np.asarray(draws), seconds, float(jnp.mean(rates)), cost


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=SAMPLERS)
    options = parser.parse_args()
    data = simulate(options.rows)
    print(
        "| sampler | acceptance | ESS per draw | ESS/s | passes per ESS | mean off, sd | sd off |"
    )
    print("|---|---|---|---|---|---|---|")
    reference = None
    # NUTS comes first, as the reference of the others
    for name in sorted(options.samplers, key=list(SAMPLERS).index, reverse=True):
        draws, seconds, rate, cost = measure(name, data, options.warmup, options.samples)
        mean, sd = draws.mean(axis=0), draws.std(axis=0)
        reference = reference or (mean, sd)
        ess = float(az.ess(az.convert_to_dataset({"x": draws[None]}))["x"].min())
        off = np.abs(mean - reference[0]).max() / reference[1].mean()
        wide = np.abs(sd / reference[1] - 1).max()
        print(
            f"| {name} | {rate:.2f} | {ess / len(draws):.2f} | {ess / seconds:.1f} "
            f"| {cost * len(draws) / ess:.1f} | {off:.3f} | {wide:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
