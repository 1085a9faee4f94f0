"""Every sampler with a fixed seed: what it draws now is what it drew before a change of the code.

``make fixed-seeds`` writes tests/data/fixed_seeds.json anew; the test reads it. A change that moves
these numbers changes what a seed gives, and says so in the CHANGELOG. A sampler that is new has the
arguments of its first case of the laws, and a declared kernel its defaults: ``make declared`` adds
their numbers and leaves the others as they are.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import MCMC

import blackjax_ext
import numpyro_fwd
from blackjax_ext import families, metrics, moves, potentials, schedules
from tests import declared
from tests.laws.samplers import CASES

PATH = Path(__file__).parent / "data" / "fixed_seeds.json"
NUM_STEPS = 20
START = np.array([0.4, -0.7, 1.1])


def first_cases():
    """The first case of the laws of each sampler."""
    return {case.algorithm: case for case in reversed(CASES.values())}.values()


def logdensity(x):
    """Skewed, with curvature everywhere."""
    return jnp.sum(x - jnp.exp(x)) - 0.1 * jnp.sum(x) ** 2


ALGORITHMS = {case.algorithm: (case.algorithm, case.arguments) for case in first_cases()} | {
    "auto_mala": ("auto_mala", {}),
    "fmala_pair": ("fmala", {"num_tangents": 2, "tangents": "sphere"}),
    "line_fmala": ("line_fmala", {"num_tangents": 2}),
    "pc_fmala": ("pc_fmala", {}),
    "pc_line_fmala": ("pc_line_fmala", {"num_tangents": 2}),
    "hp_mala": ("hp_mala", {}),
    "smmala": ("smmala", {"metric_fn": metrics.absolute_hessian(0.5)}),
    "alsmmala": ("alsmmala", {"schedule": schedules.geometric(0.5)}),
    "amsmmala": ("amsmmala", {"schedule": schedules.modulo(3)}),
}


def run(sampler, state):
    """Flat position after a few steps."""

    def step(state, key):
        state, info = sampler.step(key, state)
        return state, info.acceptance_rate

    keys = jax.random.split(jax.random.key(1), NUM_STEPS)
    state, rates = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
    return jnp.concatenate([jax.flatten_util.ravel_pytree(state.position)[0], rates[-1:]])


def chain(name):
    """One of the algorithms that take a log density."""
    algorithm, arguments = ALGORITHMS[name]
    metric = jnp.diag(jnp.array([1.0, 0.5, 0.8])) + 0.1
    sampler = getattr(blackjax_ext, algorithm)(logdensity, 0.7, metric, **arguments)
    return run(sampler, sampler.init(jnp.asarray(START), jax.random.key(0)))


def table(num_rows=300):
    """Covariates and zeros and ones."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(num_rows), rng.normal(size=(num_rows, 2))])
    return x, (rng.random(num_rows) < 1 / (1 + np.exp(-x @ START))).astype(float)


def minibatch_chain(name):
    """AMAGOLD and its relatives."""
    x, y = map(jnp.asarray, table())
    posterior = potentials.linear_predictor(
        lambda theta: -0.5 * jnp.sum(theta**2), families.bernoulli(), (x, y)
    )
    plain = potentials.minibatch(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, row: row[1] * (row[0] @ theta) - jax.nn.softplus(row[0] @ theta),
        (x, y),
        batch_size=30,
    )
    expansion = potentials.expand(posterior, jnp.zeros(3))
    metric = expansion.metric
    potential = potentials.control_variate(plain, expansion.position, order=2)
    arguments = {}
    if name == "amagold_subsampled":
        potential = potentials.expanded_minibatch(expansion, 30)
        arguments = {"acceptance": blackjax_ext.acceptance.subsampled(expansion)}
    sampler = getattr(blackjax_ext, name.split("_")[0])(potential, 0.3, metric, **arguments)
    return run(sampler, sampler.init(expansion.position, jax.random.key(0)))


def smc(name):
    """Tempered populations."""
    arguments = {
        "langevin_smc": {},
        "langevin_smc_metropolis": {"move": moves.Metropolis(blackjax_ext.mala), "num_moves": 2},
    }[name]
    algorithm = blackjax_ext.langevin_smc(
        lambda x: -0.5 * jnp.sum(x**2),
        lambda x: -2.0 * jnp.sum((x - 1.0) ** 2),
        step_size=0.4,
        inverse_mass_matrix="particles",
        **arguments,
    )
    state = algorithm.init(jax.random.normal(jax.random.key(0), (64, 2)))
    state, schedule = blackjax_ext.anneal(jax.random.key(1), algorithm, state)
    num = schedule.num_temperatures
    return jnp.array([*jnp.mean(state.position, axis=0), state.log_evidence, num])


def regression(x, y):
    """A logistic regression on all rows."""
    w = numpyro.sample("w", dist.Normal(0, 2).expand([3]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.BernoulliLogits(x @ w - s), obs=y)


def on_minibatches(x, y):
    """The same on the rows of a plate."""
    w = numpyro.sample("w", dist.Normal(0, 2).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=40) as rows:
        numpyro.sample("y", dist.BernoulliLogits(x[rows] @ w), obs=y[rows])


KERNELS: dict[str, dict] = {name: {} for name in declared.kernels()} | {
    "MALA": {"dense_mass": True},
    "FMALA": {"num_tangents": 2},
}
MINIBATCH_KERNELS = {
    "AMAGOLD": ("AMAGOLD", {}),
    "AMAGOLD_plain": ("AMAGOLD", {"control_variate": None}),
    "AMAGOLD_subsampled": ("AMAGOLD", {"acceptance": "subsampled"}),
    "L2MC": ("L2MC", {}),
    "SGHMC": ("SGHMC", {}),
}


def mcmc(kernel, chain_method="vectorized", num_warmup=20):
    """Last draws of a short run, warm-up included, and the step size it found.

    Roundings grow in a warm-up. After 20 steps a change of the data by 1e-14 has moved no draw by
    more than 5e-9 of it; after 60 it moved AutoMALA's by 1e-4, as another processor does.
    """
    sampler = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=10,
        num_chains=2,
        chain_method=chain_method,
        progress_bar=False,
    )
    sampler.run(jax.random.key(2), *map(jnp.asarray, table()))
    draws = sampler.get_samples(group_by_chain=True)
    step_size = jnp.ravel(sampler.last_state.adapt_state.step_size)[:1]
    last = [jnp.ravel(draws[name][:, -1]) for name in sorted(draws)]
    return jnp.concatenate([*last, step_size])


def kernel(name):
    """A kernel for all rows."""
    return mcmc(getattr(numpyro_fwd, name)(regression, **KERNELS[name]))


def sequential_kernel(name):
    """A kernel whose chains run one after the other."""
    return mcmc(numpyro_fwd.MALA(regression), "sequential")


def minibatch_kernel(name):
    """A kernel for minibatches."""
    algorithm, options = MINIBATCH_KERNELS[name]
    # 20 steps adapt nothing, and after 60 the roundings of these are still 1e-14
    return mcmc(getattr(numpyro_fwd, algorithm)(on_minibatches, **options), num_warmup=60)


def blackjax_kernel(name):
    """BlackJAX's own algorithm, in reverse and in forward mode."""
    import blackjax

    options = {"num_integration_steps": 3, "differentiation": name.split("_")[1]}
    return mcmc(numpyro_fwd.BlackJAXKernel(regression, blackjax.hmc, **options))


def smc_kernel(name):
    """A population as a kernel."""
    sampler = MCMC(
        numpyro_fwd.LangevinSMC(regression),
        num_warmup=10,
        num_samples=1,
        num_chains=50,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(
        jax.random.key(2), *map(jnp.asarray, table()), extra_fields=("log_evidence", "step_size")
    )
    fields = sampler.get_extra_fields()
    means = jnp.mean(sampler.get_samples()["w"], axis=0)
    return jnp.concatenate([means, fields["log_evidence"][:1], fields["step_size"][:1]])


def partial_network(x, y):
    """A trained slope, a sampled intercept."""
    slope = numpyro.param("slope", jnp.zeros(2))
    scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), subsample_size=40) as rows:
        numpyro.sample("y", dist.Normal(x[rows][:, 1:] @ slope + b, scale), obs=y[rows])


def training(name):
    """A trained model."""
    algorithm = getattr(numpyro_fwd, name)
    smc = algorithm(partial_network, optax.adam(0.05), num_particles=20, step_size=0.02)
    result = smc.run(jax.random.key(2), NUM_STEPS, *map(jnp.asarray, table()), progress_bar=False)
    return jnp.array([*result.params["slope"], result.params["scale"], result.losses[-1]])


MAKERS = {
    **dict.fromkeys(ALGORITHMS, chain),
    **dict.fromkeys(("amagold", "amagold_subsampled", "l2mc", "sghmc"), minibatch_chain),
    **dict.fromkeys(("langevin_smc", "langevin_smc_metropolis"), smc),
    **dict.fromkeys(KERNELS, kernel),
    "MALA_sequential": sequential_kernel,
    **dict.fromkeys(MINIBATCH_KERNELS, minibatch_kernel),
    **dict.fromkeys(("hmc_reverse", "hmc_forward"), blackjax_kernel),
    "LangevinSMC": smc_kernel,
    **dict.fromkeys(("GOHSMC", "OHSMC", "SGSMC"), training),
}


def found(name: str) -> np.ndarray:
    """What a sampler draws, in double precision."""
    with jax.enable_x64(True):
        return np.asarray(MAKERS[name](name), np.float64)


def write(kept: dict[str, list[float]]) -> None:
    """Write the draws of all samplers, those that are `kept` as they are."""
    names = [name for name in dict.fromkeys((*kept, *MAKERS)) if name in MAKERS]
    new = {
        name: kept.get(name) or [float(f"{value:.10g}") for value in found(name)] for name in names
    }
    PATH.write_text(json.dumps(new, indent=1) + "\n")


if __name__ == "__main__":
    write(json.loads(PATH.read_text()) if "--new" in sys.argv else {})
