"""The sampler of docs/adding_a_sampler.md, which is in no package of ours, obeys every law."""

import doctest
import inspect
import pickle
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC

import blackjax_ext
from tests import pages
from tests.laws import costs, jax_contracts
from tests.laws.battery import laws_of
from tests.test_architecture import check_order

BLOCKS = {block.module: block for block in pages.blocks("adding_a_sampler")}
ALGORITHM = BLOCKS["my_samplers.mcmc.malta"]
MALTA, _, KERNELS, TEST = (
    pages.define(BLOCKS[name])
    for name in ("my_samplers.mcmc.malta", "my_samplers", "my_samplers.kernels", "test_malta")
)

# the test on the page, run as it stands there
test_malta_obeys = TEST.test_malta_obeys


def test_every_law_is_in_the_battery():
    judged = {
        name
        for module in (jax_contracts, costs)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and next(iter(inspect.signature(function).parameters), "") == "case"
    }
    forward = TEST.CASE._replace(
        arguments={"num_tangents": 2}, step_sizes={**TEST.CASE.step_sizes, "loop": 1.0}
    )
    battery = {**TEST.LAWS, **laws_of("forward", forward)}
    # each entry is judge(law, ...), and the law may be bound to some of its arguments
    found = {getattr(judge.args[0], "func", judge.args[0]).__name__ for judge in battery.values()}
    # memory is promised by forward mode alone, on a network of its own
    assert found - {"invariant"} == judged - {"start", "saves_memory"}


def test_file_has_the_order_of_every_algorithm():
    check_order(ALGORITHM.text)


def test_example_in_the_docstring():
    assert doctest.testmod(MALTA) == (0, 6)


def test_without_truncation_it_is_mala():
    def last(sampler):
        state = sampler.init(jnp.asarray(jax_contracts.START, jnp.float32))
        for key in jax.random.split(jax.random.key(0), 5):
            state, _ = jax.jit(sampler.step)(key, state)
        return state.position

    metric = jnp.array([1.0, 0.5, 2.0])
    malta = MALTA.malta(jax_contracts.logdensity, 0.7, metric, max_drift=1e6)
    np.testing.assert_allclose(
        last(malta), last(blackjax_ext.mala(jax_contracts.logdensity, 0.7, metric)), rtol=1e-5
    )


MOVE = "langevin.move(rng_key, state, step_size, metric, point, state_at)"
STATE = "MALTAState(position, *jax.value_and_grad(logdensity_fn)(position))"


def told(info: str) -> str:
    """A step that tells other facts."""
    return f"(lambda new, info: (new, info._replace({info})))(*{MOVE})"


class Mutation(NamedTuple):
    """A bug in the place of some text of the algorithm, and the law that must fail."""

    text: str
    bug: str
    law: str = "invariant_log_gamma"
    message: str = "invariance"


KEYS = "uses_keys_once", "consumed"
MUTATIONS = {
    "both_ends_are_the_start": Mutation("def point(state)", "def point(_)"),
    "density_of_the_start": Mutation(
        STATE, "MALTAState(position, state.logdensity, jax.grad(logdensity_fn)(position))"
    ),
    "gradient_of_the_start": Mutation(
        STATE, "MALTAState(position, logdensity_fn(position), state.logdensity_grad)"
    ),
    "accept_deleted": Mutation(
        MOVE,
        "langevin.move(rng_key, state, step_size, metric, "
        "lambda s: point(s)._replace(logdensity=jnp.where(s is state, 0.0, 1e9)), state_at)",
    ),
    "key_used_twice": Mutation(
        MOVE, MOVE.replace("rng_key", "(jax.random.bits(rng_key), rng_key)[1]"), *KEYS
    ),
    "divergence_not_reported": Mutation(
        MOVE, told("is_divergent=info.is_divergent & False"), "rejects_nan", "does not report"
    ),
    "acceptance_promoted": Mutation(
        MOVE,
        told("acceptance_rate=info.acceptance_rate.astype(float)"),
        "keeps_dtype_float32",
        "dtype",
    ),
    "one_evaluation_too_many": Mutation(
        f"return {STATE}",
        f"logdensity_fn(position)\n            return {STATE}",
        "costs_what_it_says",
        "cost",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bug_is_found(name):
    mutation = MUTATIONS[name]
    assert ALGORITHM.text.count(mutation.text) == 1
    broken = ModuleType(name)
    ALGORITHM._replace(text=ALGORITHM.text.replace(mutation.text, mutation.bug)).run(vars(broken))
    case = TEST.CASE._replace(algorithm=broken.malta)
    with pytest.raises(Exception, match=mutation.message):
        laws_of(name, case)[mutation.law]()


def test_kernel_samples_a_model(capsys):
    namespace = BLOCKS["sample_with_malta"].run({})
    mcmc, y = namespace["mcmc"], namespace["y"]
    assert "Number of divergences: 0" in capsys.readouterr().out
    assert abs(mcmc.get_samples()["mean"].mean() - y.mean()) < 0.1
    assert abs(mcmc.last_state.mean_accept_prob.mean() - 0.574) < 0.15


def test_kernel_is_pickled_and_resumed():
    kernel = pickle.loads(pickle.dumps(KERNELS.MALTA(potential_fn=potential, warm_start=False)))
    mcmc = MCMC(
        kernel,
        num_warmup=20,
        num_samples=10,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), init_params=jnp.zeros((2, 3)))
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1))
    assert mcmc.get_samples().shape == (20, 3)


def potential(x):
    """A function of a module, which can be pickled."""
    return -jax_contracts.logdensity(x)
