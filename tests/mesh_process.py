"""One process of those that tests/test_mesh.py starts: ``python -m tests.mesh_process WHAT ...``.

It writes to its standard output one line of JSON for each thing that it has found.
"""

import functools
import json
import math
import re
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpyro_fwd  # before BlackJAX, whose import would take devices

# isort: split
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from blackjax_ext import families, potentials
from blackjax_ext.rows import arrowhead
from blackjax_ext.rows.compensated_sums import over_rows
from blackjax_ext.subsampling import grouping, passes, row_bounds, row_tests
from blackjax_ext.subsampling.expansion import surrogate
from numpyro_fwd import (
    AMAGOLD,
    FMALA,
    L2MC,
    MALA,
    SGHMC,
    SMMALA,
    BlackJAXKernel,
    LangevinSMC,
    PCLineFMALA,
    gather,
    make_mesh,
    on_disk,
    shard_rows,
)

jax.config.update("jax_enable_x64", True)  # so that a difference of draws is one of algorithms

NUM_ROWS, NUM_COLUMNS = 1000, 2
SECONDS = 60
COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
START = time.perf_counter()


def model(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)


def rows_model(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=20) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ slopes), obs=y[rows])


FROM_DEFAULTS = "AutoMALA HPMALA MMALA ALSMMALA AMSMMALA PCFMALA LineFMALA PCLineFMALA".split()

# name: a kernel, and its number of chains
KERNELS: dict[str, tuple[Callable, int]] = {
    "MALA": (lambda: MALA(model), 4),
    "SMMALA": (lambda: SMMALA(model), 4),
    "FMALA": (lambda: FMALA(model, num_tangents=2), 4),
    "full": (lambda: AMAGOLD(rows_model, num_integration_steps=3), 4),
    "subsampled": (
        lambda: AMAGOLD(rows_model, acceptance="subsampled", num_integration_steps=3),
        4,
    ),
    # enough particles for a covariance
    "LangevinSMC": (lambda: LangevinSMC(model, num_clusters=0, num_moves=1), 32),
}
OTHERS: dict[str, tuple[Callable, int]] = {
    "LangevinSMC from defaults": (lambda: LangevinSMC(model), 64),
    "PCLineFMALA, 2": (lambda: PCLineFMALA(model, num_tangents=2), 4),
    "L2MC": (lambda: L2MC(rows_model, num_integration_steps=3), 4),
    "SGHMC": (lambda: SGHMC(rows_model, num_integration_steps=3), 4),
    "BlackJAX's HMC": (lambda: BlackJAXKernel(model, blackjax.hmc, num_integration_steps=3), 4),
    **{name: (partial(getattr(numpyro_fwd, name), model), 4) for name in FROM_DEFAULTS},
}


def data() -> tuple[np.ndarray, np.ndarray]:
    """Covariates and responses; the second half of the rows says something else than the first."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, NUM_COLUMNS))
    slope = np.where(np.arange(NUM_ROWS) < NUM_ROWS // 2, 1.0, -0.5)
    share = 1 / (1 + np.exp(-slope * x.sum(axis=1)))
    return x, (rng.random(NUM_ROWS) < share).astype(float)


def say(**facts) -> None:
    """One line for the test that listens."""
    print(json.dumps({**facts, "seconds": round(time.perf_counter() - START)}), flush=True)


def draws_of(name: str, x, y, **options) -> np.ndarray:
    """A few draws after a few steps of a warm-up, in every process."""
    make, num_chains = {**KERNELS, **OTHERS}[name]
    options = {"progress_bar": False, "jit_model_args": True, **options}
    mcmc = MCMC(
        make(),
        num_warmup=4,
        num_samples=4,
        num_chains=num_chains,
        chain_method="vectorized",
        **options,
    )
    mcmc.progress_bar = options["progress_bar"]  # which NumPyro turns off in tests
    mcmc.run(jax.random.key(3), x, y)
    return gather(mcmc.get_samples(group_by_chain=True))["slopes"]


@functools.cache
def reference_of(name: str) -> np.ndarray:
    """The same on one device of this process."""
    return draws_of(name, *map(jnp.asarray, data()))


def compare(name: str, chains: int, rows: int, **options) -> None:
    """Say how far draws on a mesh are from those on one device, in their standard deviations."""
    reference = reference_of(name)
    with jax.set_mesh(make_mesh(chains=chains, rows=rows)):
        found = draws_of(name, *shard_rows(data()), **options)
    say(kernel=name, mesh=[chains, rows], error=distance(found, reference))


def distance(found: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference of draws, in standard deviations."""
    return float(np.max(np.abs(found - reference)) / reference.std())


def plant() -> None:
    """The subsampled test with set-up passes that leave out the rows of the second process."""
    over_chunks = passes.over_chunks

    def of_first_half(visit, num_rows, length):
        def only(indices, is_new):
            return visit(indices, is_new & (indices < num_rows // 2))

        return over_chunks(only, num_rows, length)

    reference = reference_of("subsampled")
    passes.over_chunks = row_bounds.over_chunks = of_first_half
    try:
        with jax.set_mesh(make_mesh()):
            found = draws_of("subsampled", *shard_rows(data()))
    finally:
        passes.over_chunks = row_bounds.over_chunks = over_chunks
    say(planted=distance(found, reference))


def stand_still() -> None:
    """Chains that do not move: the first process warns of them, and both go on."""
    kernel = MALA(model, step_size=1e6, adapt_step_size=False)
    mcmc = MCMC(
        kernel,
        num_warmup=4,
        num_samples=250,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
        jit_model_args=True,
    )
    with jax.set_mesh(make_mesh(chains=2, rows=1)), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        mcmc.run(jax.random.key(0), *shard_rows(data()))
        shape = gather(mcmc.get_samples())["slopes"].shape
    # chains share a warning
    say(stuck=sum(str(each.message).count("has stuck") for each in heard), shape=shape)


def complain(name: str, act: Callable) -> None:
    """Say which error an act that all processes take is."""
    try:
        act()
    except ValueError as error:
        say(complaint=name, says=str(error))
    else:
        say(complaint=name, says=None)


def disagree(rank: int) -> None:
    """What must be an error in both of two processes."""
    x, y = data()
    mesh = make_mesh()

    def run_with_key():
        MCMC(MALA(model), num_warmup=1, num_samples=1, num_chains=2, chain_method="vectorized").run(
            jax.random.key(rank), *shard_rows((x, y), mesh)
        )

    def other_version():
        known = numpyro_fwd.meshes.version
        numpyro_fwd.meshes.version = lambda name: f"{known(name)}.{rank}"
        try:
            numpyro_fwd.meshes.check_agreement({})
        finally:
            numpyro_fwd.meshes.version = known

    def run_on(x, y, kernel):
        mcmc = MCMC(
            kernel,
            num_warmup=1,
            num_samples=1,
            num_chains=2,
            chain_method="vectorized",
            jit_model_args=True,
        )
        mcmc.run(jax.random.key(0), *shard_rows((x, y), mesh))

    no_number = np.where(np.arange(NUM_ROWS) == 700, np.nan, y)  # with the second process
    complain("NaN", lambda: run_on(x + no_number[:, None], y, MALA(model)))
    subsampled = AMAGOLD(rows_model, acceptance="subsampled")
    complain("NaN below one pass", lambda: run_on(x, no_number, subsampled))
    complain("no rows", lambda: shard_rows({"x": x, "n": 5}, mesh))
    complain("shapes", lambda: shard_rows(x[: NUM_ROWS - 2 * rank], mesh))
    complain("own rows", lambda: shard_rows(x[: 10 + rank], mesh, of_process=True))
    complain("indivisible", lambda: shard_rows(x[:999], mesh))
    complain("key", run_with_key)
    complain("version", other_version)
    with jax.set_mesh(mesh):
        complain("rows on disk", lambda: draws_of("full", on_disk(x), on_disk(y)))
        sharded = shard_rows((x, y))
        complain("constants", lambda: draws_of("full", *sharded, jit_model_args=False))
    with jax.set_mesh(make_mesh(chains=2, rows=1)):
        odd = MCMC(
            MALA(model), num_warmup=1, num_samples=1, num_chains=3, chain_method="vectorized"
        )
        complain("chains", lambda: odd.run(jax.random.key(0), x, y))


def one_process(names: list[str]) -> None:
    """Kernels on a mesh of four devices."""
    for name in OTHERS if names == ["others"] else names:
        compare(name, 2, 2)


def two_processes(port: str, rank: str, *also: str) -> None:
    """Kernels on two processes with one device each."""
    numpyro_fwd.join_processes(f"localhost:{port}", 2, int(rank), seconds=SECONDS)
    disagree(int(rank))
    compare("subsampled", 1, 2)
    compare("MALA", 2, 1, progress_bar=True)
    for name in also:
        compare(name, *((1, 2) if name == "full" else (2, 1)))
    stand_still()
    plant()


def alone(port: str) -> None:
    """The first of two processes, whose second one never comes."""
    numpyro_fwd.join_processes(f"localhost:{port}", 2, 0, seconds=5)
    say(joined=True)


def sent() -> None:
    """Say how many bytes programs of the subsampled test send, each collective counted once."""
    with jax.set_mesh(make_mesh()):
        x, y = shard_rows(data())
        zero = jnp.zeros(NUM_COLUMNS)
        posterior = potentials.linear_predictor(
            lambda z: -0.5 * z @ z, families.bernoulli(), (x, y)
        )
        predictor = grouping.GroupedPredictor.without_groups(posterior, zero)
        frame = arrowhead.cast(arrowhead.identity_whitening(NUM_COLUMNS, 1, 0), zero.dtype)
        derivatives = jax.jit(passes.row_arrow).lower(predictor, zero, frame)
        say(sent="derivatives", bytes=bytes_sent(derivatives))

        def energy_of(x, y):
            return over_rows(lambda i: (x[i] @ zero - y[i]) ** 2, NUM_ROWS, 50, x.dtype)

        say(sent="energy", bytes=bytes_sent(jax.jit(energy_of).lower(x, y)))
        expansion = potentials.expand(posterior, zero)
        of_rows = (expansion.bound, expansion.threshold, expansion.alias)
        held = [max(each.data.nbytes for each in x.addressable_shards) for x in of_rows]
        say(held=sum(held), all=sum(x.nbytes for x in of_rows))

        def test(expansion, key, x, new):
            old = surrogate(expansion, x)
            return row_tests.thinning_test(key, expansion, x, old, new, jnp.zeros(()))

        keys, at = jax.random.split(jax.random.key(0), 4), jnp.zeros((4, NUM_COLUMNS))
        program = jax.jit(jax.vmap(test, (None, 0, 0, 0)))
        say(sent="test", bytes=bytes_sent(program.lower(expansion, keys, at, at + 0.1)))


def bytes_sent(lowered: Any) -> int:
    """Bytes of the results of all collectives of a program."""
    text = lowered.compile().as_text()
    found = re.findall(rf"= (.*?) (?:{COLLECTIVES})(?:-start)?\(", text)
    shapes = [shape for each in found for shape in re.findall(r"(\w+?)(\d+)\[([\d,]*)\]", each)]
    return sum(
        int(bits) // 8 * math.prod(int(n) for n in sizes.split(",") if n)
        for _, bits, sizes in shapes
    )


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "one":
        one_process(rest)
    elif what == "two":
        two_processes(*rest)
    elif what == "sent":
        sent()
    else:
        alone(*rest)
