"""Variance of the log evidence over many runs, at equal numbers of gradient evaluations.

Langevin SMC with each backward kernel and with MALA as its move, beside BlackJAX's adaptive
tempered SMC, on a logistic regression with a known evidence (a long run). Every method spends
`--gradients` gradients per particle: a run that has reached temperature 1 stops, and the number it
took is reported.

    python benchmarks/smc.py --runs 50 --particles 200
"""

import argparse
import time
from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc import resampling
from jax.scipy.stats import norm

import blackjax_ext
from blackjax_ext import moves
from blackjax_ext.smc.langevin_smc import build_kernel, init
from numpyro_fwd.smc import scales

SIZE, ROWS = 10, 100
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(ROWS, SIZE)) * np.linspace(0.5, 2.0, SIZE), jnp.float32)
Y = jnp.asarray(rng.uniform(size=ROWS) < 1 / (1 + np.exp(-X @ rng.normal(size=SIZE))), jnp.float32)


def logprior(w):
    return jnp.sum(norm.logpdf(w))


def loglikelihood(w):
    return jnp.sum(Y * (X @ w) - jax.nn.softplus(X @ w))


def ours(move, step_size, tempering_ess, num_moves, num_particles, rng_key):
    """Anneal with the population's variances as metric: log evidence and temperatures taken."""
    kernel = build_kernel(move, num_moves=num_moves, tempering_ess=tempering_ess)
    key_prior, key_run = jax.random.split(rng_key)
    state = init(
        jax.random.normal(key_prior, (num_particles, SIZE)),
        logprior,
        loglikelihood,
        differentiation=move.differentiation,
    )

    def goes_on(carry):
        return (carry[0].temperature < 1) & (carry[1] < 200)

    def step(carry):
        state, i = carry
        key = jax.random.fold_in(key_run, i)
        metric = scales(state, state.temperature)
        return kernel(key, state, logprior, loglikelihood, step_size, metric)[0], i + 1

    state, count = jax.lax.while_loop(goes_on, step, (state, 0))
    return state.log_evidence, count * num_moves


def peer(step_size, target_ess, num_moves, num_particles, rng_key):
    """BlackJAX's adaptive tempered SMC with its MALA, whose step is epsilon^2 / 2."""
    smc = blackjax.adaptive_tempered_smc(
        logprior,
        loglikelihood,
        blackjax.mala.build_kernel(),
        blackjax.mala.init,
        {"step_size": jnp.array([0.5 * step_size**2])},
        resampling.systematic,
        target_ess,
        num_mcmc_steps=num_moves,
    )
    key_prior, key_run = jax.random.split(rng_key)
    state = smc.init(jax.random.normal(key_prior, (num_particles, SIZE)))

    def goes_on(carry):
        return (carry[0].tempering_param < 1) & (carry[1] < 200)

    def step(carry):
        state, i, log_evidence = carry
        state, info = smc.step(jax.random.fold_in(key_run, i), state)
        return state, i + 1, log_evidence + info.log_likelihood_increment

    _, count, log_evidence = jax.lax.while_loop(goes_on, step, (state, 0, 0.0))
    return log_evidence, count * num_moves


METHODS = {
    "Langevin, reversed": partial(ours, moves.Unadjusted(), 0.4, 0.9, 2),
    "Langevin, random walk": partial(ours, moves.Unadjusted(l_kernel="random_walk"), 0.3, 0.9, 2),
    "Langevin, gaussian": partial(ours, moves.Unadjusted(l_kernel="gaussian"), 0.6, 0.9, 2),
    "MALA": partial(ours, moves.Metropolis(blackjax_ext.mala), 1.0, 0.9, 2),
    "BlackJAX adaptive tempered, MALA": partial(peer, 0.3, 0.9, 2),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--particles", type=int, default=200)
    arguments = parser.parse_args()
    key = jax.random.key(7)
    truth = jax.jit(partial(ours, moves.Metropolis(blackjax_ext.mala), 1.0, 0.95, 10, 20_000))
    truth = float(truth(key)[0])
    print(f"log evidence {truth:.3f} (20,000 particles); {arguments.particles} particles")
    print("| method | mean error | standard deviation | gradients per particle | s per run |")
    print("|---|---|---|---|---|")
    for name, method in METHODS.items():
        run = jax.jit(partial(method, arguments.particles))
        keys = jax.random.split(jax.random.key(8), arguments.runs)
        jax.block_until_ready(run(key))
        begin = time.perf_counter()
        results = np.array([[float(x) for x in run(key)] for key in keys])
        seconds = (time.perf_counter() - begin) / arguments.runs
        values, moves_taken = results.T
        print(
            f"| {name} | {values.mean() - truth:+.3f} | {values.std(ddof=1):.3f} "
            f"| {moves_taken.mean():.1f} | {seconds:.3f} |"
        )


if __name__ == "__main__":
    main()
