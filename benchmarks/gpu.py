"""Steps on an accelerator, checked against double precision: ``python benchmarks/gpu.py``.

Every case runs in single precision on the accelerator, with matrix products in full single
precision (``jax_default_matmul_precision="highest"``) and once more with the backend's default,
which on NVIDIA's GPUs is TF32. What it finds is compared with the same step, driven by the same
random numbers, in double precision on the CPU. Next to the error stands what single precision
explains: the change of the result in double precision if every number that goes in is rounded once,
at random up or down (the root mean square of some such changes), and one rounding of what the
result is the difference or the sum of. An error of a few times that is rounding; a wrong reduction,
TF32 or a race is a thousand times that.

Before that come laws, which take less time: chains of every kernel, from draws of the posterior
itself, must still be there after some steps; and errors of energies where covariates are far from
zero. After it comes speed: steps and gradients a second for one chain and for many, effective
draws of a step (``draws``, which needs no accelerator), millions of rows, ten thousand particles,
the memory of a network, and rows on two devices where there are two.

Parts run apart (``python benchmarks/gpu.py laws digits``). With ``--seconds 400`` each section
stops by itself, and what it has is on the page; what it measures is kept as it comes, in
.cache/bench/gpu.

Without an accelerator ``--quick`` runs all of it on the CPU, in single precision and at small
sizes. The rest needs an accelerator that JAX finds beside the CPU (``JAX_PLATFORMS`` unset, or
"cuda,cpu"), and a host with 32 GiB of memory.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax.flatten_util import ravel_pytree

import blackjax_ext
from benchmarks import convolutions
from benchmarks.harness import device_laws, device_mesh, device_sizes, models
from benchmarks.harness import device_speed as speed_of
from benchmarks.harness import partial_networks as networks
from benchmarks.harness.report import ROOT, Report, Section, by_name, rows_of
from benchmarks.harness.timing import timed
from blackjax_ext import potentials
from blackjax_ext.mcmc import langevin
from blackjax_ext.rows.potentials import full_gradient
from numpyro_fwd import GOHSMC
from numpyro_fwd.bridge.partial_models import view_partial
from numpyro_fwd.partial_bayes.training import TrainingState, first_state

EPSILON = float(np.finfo(np.float32).eps)
ROUNDINGS = 4  # how often what goes in is rounded at random
LIMIT = 10.0  # times what single precision explains
STEP_SIZE = 1e-3
SIZE, BATCH, STEPS = 20, 1_000, 4  # of the logistic regression
IMAGES = 100  # of a batch of the LeNet


def accelerator() -> Any | None:
    """The first device that is no CPU, or None."""
    others = [device for device in jax.devices() if device.platform != "cpu"]
    return others[0] if others else None


def cpu() -> Any:
    return jax.devices("cpu")[0]


# Cases


class Case(NamedTuple):
    """Something to check.

    facts
        ``facts(first, data, position)`` gives pairs by name: a quantity, and what it is the sum or
        the difference of, in absolute value. `first` are the data again, for what the step is
        given by the one before: rounding there has nothing to do with rounding here.
    data, position
        Pytrees of arrays, in single precision.
    """

    name: str
    facts: Callable[..., dict[str, tuple]]
    data: tuple
    position: Any


class Timed(NamedTuple):
    """Something to time: a function and its arguments."""

    name: str
    function: Callable
    arguments: tuple


def keys(num: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), num)


# Forward-mode and reverse-mode MALA


def langevin_facts(logdensity: Callable, first: tuple, data: tuple, position: Any) -> dict:
    """A step of FMALA and one of MALA."""
    found = {}
    size = sum(leaf.size for leaf in jax.tree.leaves(position))
    for name in ("fmala", "mala"):
        algorithm = getattr(blackjax_ext, name)
        key_init, key_step = keys(2)
        start = algorithm.init(position, lambda x: logdensity(x, *first), key_init)
        end, info = algorithm.build_kernel()(
            key_step, start, lambda x: logdensity(x, *data), STEP_SIZE
        )
        slope = start.slopes if name == "fmala" else ravel_pytree(start.logdensity_grad)[0]
        terms = jnp.abs(start.logdensity) + jnp.abs(end.logdensity) + 4.0 * size**0.5
        found["log density"] = start.logdensity, start.logdensity
        found["JVP" if name == "fmala" else "gradient"] = slope, slope
        found[f"log acceptance ratio, {name}"] = info.acceptance_rate, terms
    return found


def langevin_step(name: str, logdensity: Callable, state: Any, rng_key: Any, *data: Any) -> Any:
    kernel = getattr(blackjax_ext, name).build_kernel()
    return kernel(rng_key, state, lambda x: logdensity(x, *data), STEP_SIZE)


class Target(NamedTuple):
    """A network: its log density, a position, and data of a given number of rows."""

    name: str
    logdensity: Callable
    position: Any
    draw: Callable[[int], tuple]


def draw_images(num: int) -> tuple:
    """Images of the size of CIFAR-10 and labels, at random."""
    return jax.random.normal(jax.random.key(2), (num, 32, 32, 3)), jnp.arange(num) % 10


def regression(depth: int = 5) -> Target:
    position = models.make_network(jax.random.key(1), depth=depth)
    size = sum(leaf.size for leaf in jax.tree.leaves(position))
    return Target(
        f"network, {size:,} parameters",
        models.network_logdensity,
        position,
        lambda num: models.network_data(jax.random.key(2), num),
    )


def images() -> Target:
    return Target(
        "CNN, 2.4 million parameters",
        convolutions.logdensity,
        convolutions.parameters(jax.random.key(1)),
        draw_images,
    )


def langevin_cases(quick: bool) -> list[Case]:
    """Both networks; a small one only, if quick."""
    chosen = [(regression(depth=2), 50)] if quick else [(regression(), 10_000), (images(), 64)]
    return [
        Case(each.name, partial(langevin_facts, each.logdensity), each.draw(num), each.position)
        for each, num in chosen
    ]


def langevin_times() -> Iterator[Timed]:
    for target, sizes in zip((regression(), images()), ((400, 10_000), (256,)), strict=True):
        for num in sizes:
            data = target.draw(num)
            for name in ("fmala", "mala"):
                algorithm = getattr(blackjax_ext, name)
                state = algorithm.init(
                    target.position, partial(at_data, target.logdensity, data), keys(1)[0]
                )
                step = partial(langevin_step, name, target.logdensity)
                label = f"{name}, {target.name}, {num:,} rows"
                yield Timed(label, step, (state, keys(2)[1], *data))


def at_data(logdensity: Callable, data: tuple, position: Any) -> Any:
    return logdensity(position, *data)


# AMAGOLD on a logistic regression


def logprior(slope):
    return -0.5 * slope @ slope


def loglikelihood(slope, row):
    logit = row[0] @ slope
    return row[1] * logit - jax.nn.softplus(logit)


def potential_of(x, y, anchor, _):
    """With control variates of the first order, of which the gradient at the anchor is summed."""
    plain = potentials.minibatch(logprior, loglikelihood, (x, y), BATCH)
    return potentials.control_variate(plain, anchor)


def amagold_step(state: Any, rng_key: Any, *data: Any) -> tuple:
    kernel = blackjax_ext.amagold.build_kernel()
    return kernel(rng_key, state, potential_of(*data), 0.3, data[3], num_integration_steps=STEPS)


def energy(slope: Any, *data: Any) -> Any:
    return potential_of(*data).potential(slope).value()


def amagold_facts(first: tuple, data: tuple, position: Any) -> dict:
    """Energy and gradient, and the log acceptance ratio, whose energies keep what rounding left."""
    start = blackjax_ext.amagold.init(position, potential_of(*first))
    gradient = full_gradient(potential_of(*first).potential, position)
    _, info = amagold_step(start, keys(1)[0], *data)
    ratio = info.acceptance_rate
    # terms of the gradient cancel at the mode: each coordinate is a sum of that many
    terms = jnp.abs(first[0]).mean(axis=0) * first[0].shape[0] ** 0.5
    return {
        "energy": (start.cache.value(), start.cache.high),
        "gradient": (gradient, terms),
        "log acceptance ratio": (ratio, ratio),
    }


def regression_data(num_rows: int) -> tuple:
    """Rows, the mode by Newton's method, and the posterior variances there."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(0.3, 3.0, SIZE)
    x = (rng.normal(size=(num_rows, SIZE)) * scales).astype(np.float32)
    truth = rng.normal(size=SIZE) * 0.5 / scales
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ truth))
    mode = np.zeros(SIZE)
    for _ in range(8):
        p = 1 / (1 + np.exp(-x @ mode))
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(SIZE)
        mode -= np.linalg.solve(hessian, x.T @ (p - y) + mode)
    variances = np.diag(np.linalg.inv(hessian))
    return tuple(jnp.asarray(each, jnp.float32) for each in (x, y, mode, variances))


def amagold_position(data: tuple) -> jax.Array:
    """A standard deviation away from the mode."""
    return data[2] + data[3] ** 0.5 * jnp.where(jnp.arange(SIZE) % 2 == 0, 1.0, -1.0)


def amagold_cases(quick: bool) -> list[Case]:
    num_rows = 2_000 if quick else 1_000_000
    data = regression_data(num_rows)
    name = f"AMAGOLD, logistic regression, {num_rows:,} rows"
    return [Case(name, amagold_facts, data, amagold_position(data))]


def amagold_times(num_rows: int = 1_000_000) -> Iterator[Timed]:
    data = regression_data(num_rows)
    position = amagold_position(data)
    state = blackjax_ext.amagold.init(position, potential_of(*data), keys(1)[0])
    name = f"AMAGOLD, logistic regression, {num_rows:,} rows"
    yield Timed(f"energy, {name}", energy, (position, *data))
    yield Timed(f"step, {name}", amagold_step, (state, keys(1)[0], *data))


# Sequential Monte Carlo on the first layer of a network


class Bayesian(NamedTuple):
    """A model with parameters and latents, and data of a given number of rows, at random."""

    name: str
    model: Callable
    draw: Callable[[int], tuple]


def lenet() -> Bayesian:
    def draw(num):
        return jax.random.uniform(jax.random.key(4), (num, 28, 28, 1)), jnp.arange(num) % 10

    return Bayesian("LeNet", networks.classification(16).model, draw)


def line() -> Bayesian:
    """A regression whose intercept is a parameter: it compiles in no time."""

    def draw(num):
        return jax.random.normal(jax.random.key(4), (num, 8)), jnp.linspace(-1.0, 1.0, num)

    def model(x, y, batch_size):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        intercept = numpyro.param("intercept", 0.5)
        with numpyro.plate("data", x.shape[0], subsample_size=batch_size) as rows:
            numpyro.sample("y", dist.Normal(x[rows] @ slope + intercept, 1.0), obs=y[rows])

    return Bayesian("linear regression", model, draw)


def population(
    model: Callable, num_particles: int, data: tuple, batch_size: int, threshold: float
) -> tuple[GOHSMC, TrainingState]:
    """A trainer that has seen the model, and its first state."""
    trainer = GOHSMC(model, optax.adam(0.01), num_particles=num_particles, ess_threshold=threshold)
    return trainer, trainer.init(jax.random.key(3), *data, batch_size)


def weight_scale(logdensity: Any) -> Any:
    """What the logarithm of a weight is the difference of."""
    return jnp.abs(logdensity) + jnp.max(jnp.abs(logdensity))


def gohsmc_facts(trainer: GOHSMC, first: tuple, data: tuple, position: Any) -> dict:
    """A step on all rows, without resampling; the step before it was a draw from the prior."""
    del first
    start = first_state(position, keys(1)[0])
    state, info = trainer.update(start, *data, data[0].shape[0])
    local, weights = state.inner.local, state.inner.log_weights
    terms = weight_scale(local.logdensity)
    # an error of the log weights moves a weighted mean by the spread of what is averaged
    spread = jnp.exp(weights) @ jnp.abs(local.logdensity + info.loss)
    return {
        "log density": (local.logdensity, local.logdensity),
        "gradient": (local.gradient, local.gradient),
        "log weights": (weights, terms),
        "loss": (info.loss, terms.max() * (1.0 + spread)),
    }


def langevin_smc(view: Any, params: dict, data: tuple) -> Any:
    """Tempered from the prior of the first layer to its posterior, the other layers being given."""
    arguments = (*data, data[0].shape[0])
    parts = view.split_fn(params, jax.random.key(0), arguments, {})
    return blackjax_ext.langevin_smc(*parts, step_size=0.01, ess_threshold=0.0)


def langevin_smc_facts(view: Any, first: tuple, data: tuple, position: tuple) -> dict:
    """A step to a given temperature."""
    particles, params = position
    start = langevin_smc(view, params, first).init(particles)
    smc = langevin_smc(view, params, data)
    state, _ = smc.step(keys(1)[0], start, temperature=0.1)
    local = state.local
    terms = weight_scale(jnp.abs(local.logprior) + jnp.abs(local.loglikelihood))
    return {
        "log likelihood": (local.loglikelihood, local.loglikelihood),
        "log weights": (state.log_weights, terms),
        "log evidence": (state.log_evidence, terms.max()),
    }


def smc_cases(quick: bool) -> list[Case]:
    """Both samplers on the LeNet; on a regression, if quick."""
    network, num_particles, num_rows = (line(), 50, 20) if quick else (lenet(), 100, 20)
    data = network.draw(num_rows)
    trainer, state = population(network.model, num_particles, data, num_rows, threshold=0.0)
    view = view_partial(jax.random.key(3), network.model, (*data, num_rows), {})
    where = f"{network.name}, {num_particles} particles"
    position = (state.inner.position, state.inner.params)
    return [
        Case(f"GOHSMC, {where}", partial(gohsmc_facts, trainer), data, state.inner),
        Case(f"LangevinSMC, {where}", partial(langevin_smc_facts, view), data, position),
    ]


def smc_times() -> Iterator[Timed]:
    network = lenet()
    data = network.draw(2_000)
    few = tuple(leaf[:IMAGES] for leaf in data)
    view = view_partial(jax.random.key(3), network.model, (*few, IMAGES), {})
    for num in (100, 1_000):
        where = f"LeNet, {num:,} particles"
        trainer, state = population(network.model, num, data, IMAGES, threshold=0.5)
        yield Timed(f"GOHSMC, {where}", partial(gohsmc_update, trainer), (state, *data))
        inner = state.inner
        start = langevin_smc(view, inner.params, few).init(inner.position)
        arguments = (start, inner.params, keys(1)[0], *few)
        yield Timed(f"LangevinSMC, {where}", partial(langevin_smc_step, view), arguments)


def gohsmc_update(trainer: GOHSMC, state: TrainingState, *data: Any) -> tuple:
    return trainer.update(state, *data, IMAGES)


def langevin_smc_step(view: Any, state: Any, params: dict, rng_key: Any, *data: Any) -> tuple:
    return langevin_smc(view, params, data).step(rng_key, state, temperature=0.1)


# Comparison


@contextlib.contextmanager
def observed() -> Iterator[None]:
    """The same random numbers in both precisions; proposals are accepted, and tell their ratio."""
    normal, randint = jax.random.normal, jax.random.randint

    def single_normal(key, shape=(), dtype=None, **options):
        draws = normal(key, shape, np.float32, **options)
        return draws.astype(jnp.result_type(float if dtype is None else dtype))

    def single_randint(key, shape, minval, maxval, dtype=int, **options):
        draws = randint(key, shape, minval, maxval, np.int32, **options)
        return draws.astype(jnp.result_type(dtype))

    def accept(rng_key, log_ratio, end_logdensity, end, start):
        return end, log_ratio, jnp.array(True), jnp.array(False)

    with (
        patch.object(jax.random, "normal", single_normal),
        patch.object(jax.random, "randint", single_randint),
        patch.object(langevin, "accept", accept),
    ):
        yield


def as_type(tree: Any, dtype: Any) -> Any:
    """Floating arrays in another precision, on the host."""

    def convert(leaf):
        array = np.asarray(leaf)
        return array.astype(dtype) if np.issubdtype(array.dtype, np.floating) else array

    return jax.tree.map(convert, tree)


def rounded(tree: Any, rng: np.random.Generator) -> Any:
    """Every floating number one rounding of single precision up or down."""

    def change(leaf):
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        return leaf * (1 + EPSILON * rng.choice((-1.0, 1.0), leaf.shape))

    return jax.tree.map(change, tree)


def run_on(device: Any, precision: str | None, program: Callable, inputs: tuple) -> dict:
    """What a program finds in single precision on a device."""
    with (
        observed(),
        jax.enable_x64(False),
        jax.default_device(device),
        jax.default_matmul_precision(precision),
    ):
        found = jax.jit(program)(*jax.device_put(as_type(inputs, np.float32), device))
    return {name: np.asarray(value, np.float64) for name, (value, _) in found.items()}


def reference(case: Case) -> tuple[dict, dict]:
    """Quantities in double precision on the CPU, and the error that single precision explains."""
    inputs = as_type((case.data, case.data, case.position), np.float64)
    rng = np.random.default_rng(5)
    with observed(), jax.enable_x64(True), jax.default_device(cpu()):
        program = jax.jit(case.facts)
        truth = jax.tree.map(np.asarray, program(*inputs))
        others = [program(*rounded(inputs, rng)) for _ in range(ROUNDINGS)]
    explained = {}
    for name, (value, scale) in truth.items():
        changes = [np.sum((np.asarray(other[name][0]) - value) ** 2) for other in others]
        once = EPSILON * np.linalg.norm(np.broadcast_to(scale, value.shape))
        explained[name] = float(np.mean(changes) ** 0.5 + once)
    return {name: value for name, (value, _) in truth.items()}, explained


def distance(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(found - truth))


def compare(case: Case, device: Any, has_default: bool) -> list[list]:
    """A row for each quantity of a case."""
    inputs = (case.data, case.data, case.position)
    truth, explained = reference(case)
    found = run_on(device, "highest", case.facts, inputs)
    by_default = run_on(device, None, case.facts, inputs) if has_default else None
    rows = []
    for name, value in truth.items():
        error = distance(found[name], value)
        size = float(np.linalg.norm(value))
        rows.append([case.name, name, size, error, explained[name], error / explained[name]])
        if by_default is not None:
            rows[-1].append(distance(by_default[name], value) / explained[name])
    return rows


def device_for(quick: bool) -> Any:
    """The accelerator; with `quick`, the CPU where there is none."""
    device = accelerator()
    if device is None and not quick:
        raise SystemExit(
            "JAX finds no accelerator, only the CPU: nothing is measured. --quick runs the checks "
            "on the CPU in single precision."
        )
    if device is None:
        print("  JAX finds no accelerator: checks on the CPU in single precision", flush=True)
    return device or cpu()


def checks(quick: bool) -> Section:
    """What a step finds in single precision against double precision on the CPU."""
    device = device_for(quick)
    is_cpu = device.platform == "cpu"
    cases = [*langevin_cases(quick), *amagold_cases(quick), *smc_cases(quick)]
    rows = []
    for case in cases:
        if REPORT.seconds_left() > 0:
            rows += REPORT.once((case.name,), compare, case, device, not is_cpu)
    columns = ["case", "quantity", "norm", "error", "explained", "error / explained"]
    worst = {
        name: max(row[5] for row in rows if row[0] == name) for name in {row[0]: 0 for row in rows}
    }
    return Section(
        f"Single precision on {device.device_kind} against double precision on the CPU",
        "One step with the same random numbers in both, accepted whatever the ratio; norms are "
        "Euclidean. 'Explained' is the root mean square change of the result in double precision "
        f"if what goes in is rounded at random ({ROUNDINGS} times), and one rounding of the terms "
        "of the result. Matrix products in full single precision"
        + ("." if is_cpu else "; the last column has the backend's default instead."),
        columns if is_cpu else [*columns, "by default"],
        rows,
        [(f"{name}: error / explained", value, LIMIT) for name, value in worst.items()],
    )


# Times


def peak_memory(device: Any, compiled: Any, before: int) -> tuple[float, str]:
    """MiB: of the device if this program set a new record, else by XLA's analysis of it."""
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
    if peak > before:
        return peak / 2**20, "device"
    analysis = compiled.memory_analysis()
    sizes = (analysis.temp_size_in_bytes, analysis.argument_size_in_bytes)
    return (sum(sizes) + analysis.output_size_in_bytes) / 2**20, "XLA"


def time_on(device: Any, case: Timed, repeats: int) -> list:
    """Median seconds of a call, peak memory in MiB, and who says so."""
    with jax.default_device(device):
        arguments = jax.device_put(case.arguments, device)
        before = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
        compiled = jax.jit(case.function).lower(*arguments).compile()
        times = [timed(compiled, *arguments)[1] for _ in range(1 + repeats)]
    return [float(np.median(times[1:])), *peak_memory(device, compiled, before)]


def times(quick: bool) -> Section:
    """Time and memory of a step on the accelerator and on the CPU."""
    device = device_for(quick)
    rows = []
    for case in amagold_times(10_000) if quick else all_times():
        there = REPORT.once((case.name, "accelerator"), time_on, device, case, 2 if quick else 20)
        here = REPORT.once((case.name, "CPU"), time_on, cpu(), case, 2 if quick else 3)
        rows.append([case.name, 1e3 * there[0], 1e3 * here[0], here[0] / there[0], *there[1:]])
    return Section(
        "Time of a step",
        f"Medians of calls on {device.device_kind} and on this host's CPU, after compilation, in "
        "single precision with the backend's default precision of matrix products. Memory is the "
        "device's peak where this case set a new one, else the sum of arguments, results and "
        "temporary memory by XLA's analysis.",
        [
            *("case", f"{device.device_kind}, ms", "CPU of the host, ms", "CPU / device"),
            *("memory, MiB", "says"),
        ],
        rows,
    )


def all_times() -> Iterator[Timed]:
    """One family after the other: each has its data on the device while it is case."""
    for family in (langevin_times, amagold_times, smc_times):
        yield from family()


# Laws: every kernel from draws of the posterior


def laws(quick: bool) -> Section:
    """Chains of every kernel that start in equilibrium: are they still there?"""
    device = device_for(quick)
    num_chains = 500 if quick else 20_000
    chosen = device_laws.chosen_laws(num_chains, is_quick=quick)
    rows = [[name, *found] for name, found in at_once(chosen)]
    return Section(
        f"Every kernel on {device.device_kind}, from draws of the posterior",
        f"{num_chains:,} chains (fewer where a step lasts long) or runs of particles, "
        f"{device_laws.STEPS} steps each in single precision, products of matrices as the device "
        "makes them by default. p is the smallest of those of the ends' marginals, their "
        "dependence and changes of means; z is the largest change of a mean or of a square, in its "
        "standard errors." + missing(len(chosen) - len(rows)),
        ["kernel: case, target", "acceptance", "moved", "smallest p", "largest z"],
        rows,
        [
            (f"{name}: {device_laws.LEVEL:g} / p", device_laws.LEVEL / p, 1.0)
            for name, _, _, p, _ in rows
            if isinstance(p, float)
        ],
    )


def at_once(chosen: list) -> Iterator[tuple[str, list]]:
    """What laws find, as they find it, compiled and run on threads; those in time, that is."""
    # not a context: what is too late is not waited for
    pool = ThreadPoolExecutor(8)
    running = {pool.submit(guarded, law.find): law.name for law in chosen}
    while running and (left := REPORT.seconds_left()) > 0:
        done, _ = wait(running, min(left, 1e6), FIRST_COMPLETED)
        for one in done:
            name = running.pop(one)
            yield name, REPORT.once((name,), one.result)
    pool.shutdown(wait=False, cancel_futures=True)


def guarded(function: Callable, *arguments: Any) -> list:
    """What a function finds; where it fails, the words of its error in the first place of four."""
    try:
        return function(*arguments)
    except Exception as error:  # one that fails leaves the others
        return [f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " "), "", "", ""]


def missing(num: int) -> str:
    """How many there was no time for."""
    return f" There was no time for {num} more." if num else ""


def digits(quick: bool) -> Section:
    """Errors where covariates are far from zero, by default and in full precision."""
    device = device_for(quick)
    rows = []
    for mean in (0.0, 300.0) if quick else (0.0, 10.0, 100.0, 300.0):
        if REPORT.seconds_left() > 0:
            rows.append([mean, *REPORT.once((mean,), device_sizes.digits, mean, 10_000)])
    return Section(
        f"Energies on {device.device_kind} of covariates that are not centred",
        "Logistic regression on 10,000 rows of five covariates, 64 chains at once. Standard "
        "deviations of errors against double precision, in nats: of the model's density by the "
        "default of the device and in full precision, and of the energy that the subsampled test "
        "works with; and the error of its curvature, where one is right.",
        [
            *("mean of covariates, sds", "density, by default", 'density, "highest"'),
            *("curvature of the expansion", "energy of the test"),
        ],
        rows,
        [(f"curvature at {row[0]:g} sds", row[3], 3e-3) for row in rows],
    )


# Speed


CHAINS = (64, 16_384, 1, 1_024)  # in the order in which they are measured


def speed(quick: bool) -> Section:
    """Steps and gradients a second of every kernel, and of NUTS."""
    device = device_for(quick)
    num_rows, num_steps, seconds = (500, 10, 0.1) if quick else (10_000, 100, 1.0)
    names = list(speed_of.KERNELS)[: 2 if quick else None]
    posterior = speed_of.expanded(num_rows, SIZE)
    sizes: dict[str, float] = {}
    rows: list[list] = []
    for num_chains in (8, 4) if quick else CHAINS:
        most = {name: speed_of.KERNELS[name].most_chains for name in names}
        chosen = [name for name in names if num_chains <= most[name]]
        if REPORT.seconds_left() < (0 if num_chains == CHAINS[0] else 15):
            break
        left = 0.5 * REPORT.seconds_left()
        few = max(num_steps * 64 // max(num_chains, 64), num_steps // 5)
        programs = speed_of.compiled(chosen, posterior, num_chains, few, left)
        for name in chosen:
            if REPORT.seconds_left() < 0:
                break
            measure = partial(speed_row, posterior, name, num_chains, programs, sizes, seconds)
            rows.append([name, num_chains, *REPORT.once((name, num_chains), guarded, measure)[:3]])
    rows.sort(key=lambda row: (row[1], names.index(row[0])))
    return Section(
        f"Every kernel against NUTS on {device.device_kind}",
        f"Logistic regression, {num_rows:,} rows, {SIZE} coefficients; all chains in one program, "
        "with the metric of the normal approximation and steps tuned for each kernel's acceptance "
        "rate. Gradients are tangents for forward-mode kernels, and those with a Hessian for "
        "second-order ones.",
        ["kernel", "chains", "steps of all chains per s", "gradients per s", "acceptance"],
        rows,
    )


def speed_row(
    posterior: Any, name: str, num_chains: int, programs: dict, sizes: dict, seconds: float
) -> list:
    """A row of the table; the step size is that of the first number of chains."""
    program = programs[name]
    if isinstance(program, Exception):
        raise program
    x = posterior.draw(num_chains)
    if name not in sizes:
        target = speed_of.KERNELS[name].target
        sizes[name] = speed_of.tuned(program, posterior, x, target, 3.0 * seconds)
    found = speed_of.measure(program, posterior, sizes[name], x, seconds)
    return [1.0 / found.step, found.gradients, found.acceptance]


def draws(quick: bool) -> Section:
    """Effective draws of a step, on any device, and a second with the steps that `speed` found."""
    num_rows, num_steps, num_chains = (500, 20, 4) if quick else (10_000, 1_000, 16)
    names = list(speed_of.KERNELS)[: 2 if quick else None]
    posterior = speed_of.expanded(num_rows, SIZE)
    shape = num_steps, num_chains
    found = {
        name: REPORT.once((name, *shape), speed_of.effective, name, posterior, *shape)
        for name in names
    }
    file = json.loads((ROOT / "docs" / "results" / "gpu.json").read_text())
    per_second: dict[tuple, float] = {}
    rows = []
    for row in rows_of(file["sections"], "speed"):
        name, chains = row["kernel"], row["chains"]
        if name not in found or isinstance(row["steps of all chains per s"], str):
            continue
        of_mean, of_square, _ = found[name]
        each = min(of_mean, of_square)
        per_second[name, chains] = row["steps of all chains per s"] * chains * each
        ratio = per_second[name, chains] / per_second[names[0], chains]
        rows.append([name, chains, of_mean, of_square, per_second[name, chains], ratio])
    return Section(
        "Effective draws a second",
        f"Bulk ESS of a step, of the worst coordinate and of the worst squared distance from the "
        f"mean: {num_chains} chains of {num_steps:,} steps on the regression above, counted where "
        "the origin of this table says; the step size is tuned there for the same acceptance rate. "
        "The lesser of the two, times chains, times the steps a second of the table above.",
        [
            *("kernel", "chains", "ESS of a step, mean", "ESS of a step, square"),
            *("effective draws per s", "times NUTS's"),
        ],
        rows,
    )


def rows(quick: bool) -> Section:
    """AMAGOLD that reads a few rows against NUTS that reads all."""
    device = device_for(quick)
    chains, table = 4 if quick else 16, []
    for num_rows in (2_000,) if quick else (1_000_000, 10_000_000):
        if REPORT.seconds_left() < 5 and not quick:
            break
        measure = partial(device_sizes.millions, num_rows, chains, 1.0 if quick else 8.0)
        found = REPORT.once((num_rows,), guarded, measure)
        table += [[num_rows, *row] for row in found if isinstance(row, list)]
    return Section(
        f"Millions of rows on {device.device_kind}",
        f"Logistic regression of {SIZE} coefficients, {chains} chains at once, the step size 0.7 "
        "and the same metric for both. The start has the mode, the bounds of all rows and their "
        "table; NUTS would need the mode alone.",
        ["rows", "kernel", "start, s", "step of all chains, s", "acceptance"],
        [[*row, *[""] * (5 - len(row))] for row in table],
    )


def particles(quick: bool) -> Section:
    """LangevinSMC: time and evidence."""
    device = device_for(quick)
    num, num_rows = (200, 100) if quick else (10_000, 10_000)
    found = REPORT.once((num,), guarded, partial(device_sizes.particles, num, num_rows))
    return Section(
        f"Particles on {device.device_kind}",
        f"LangevinSMC with {num:,} particles from the prior to the posterior of a linear "
        f"regression of {num_rows:,} rows and {SIZE} coefficients, whose evidence is known.",
        ["particles", "s with compilation", "s again", "log evidence off"],
        [[num, *found[:3]]],
    )


def memory(quick: bool) -> Section:
    """Forward and reverse mode on a network of ten million weights."""
    device = device_for(quick)
    depth, width, num_rows = (3, 50, 500) if quick else (11, 1_000, 10_000)
    table = []
    for name in ("fmala", "mala"):
        measure = partial(device_sizes.network_memory, name, depth, width, num_rows)
        table.append([name, *REPORT.once((name,), guarded, measure)[:3]])
    return Section(
        f"Memory of a step on {device.device_kind}",
        f"A network of {depth} hidden layers of {width:,} units on {num_rows:,} rows. Temporary "
        "memory is that of XLA's analysis of the compiled step, without state and data.",
        ["kernel", "weights", "temporary memory, MiB", "step, ms"],
        table,
    )


def devices(quick: bool) -> Section:
    """Rows over two devices, where there are two."""
    found = REPORT.once(("devices",), guarded, partial(device_mesh.over_two, is_quick=quick))
    return Section(
        "Rows over two devices",
        "A step of MALA and an energy of all rows with the rows on one device and over two.",
        ["devices", "step, ms", "energy off, relative", "what"],
        [found],
    )


SHARES = {
    "laws": 90.0,
    "digits": 20.0,
    "speed": 160.0,
    "draws": 60.0,
    "rows": 60.0,
    "particles": 25.0,
    "memory": 20.0,
    "devices": 5.0,
    "checks": 55.0,
}
REPORT = Report(
    "gpu",
    "Steps on an accelerator",
    by_name(laws, digits, speed, draws, rows, particles, memory, devices, checks, times),
    long=("times",),
    shares=SHARES,
)

if __name__ == "__main__":
    REPORT.main()
