"""Posteriors whose density is dear: five simulators, and what is known of their posteriors.

Each model calls its simulator once, ``expensive(solve)(parameters)``: a dict of arrays in, an array
out, NaN where the solver fails. Priors and noise are outside of the call and cost nothing. The data
of four are drawn once from fixed parameters (``simulator_data.json``), those of lynx and hare and
of the boarding school are real. ``python -m benchmarks.harness.simulator_runs`` makes the data, the
references and the counts anew.
"""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

from benchmarks.harness import data
from benchmarks.harness.models import solve_lotka_volterra
from numpyro_fwd import expensive

__all__ = ["DATA", "REFERENCE", "SIMULATORS", "Simulator", "reference"]

DATA = Path(__file__).parent / "simulator_data.json"
REFERENCE = Path(__file__).parent / "simulator_reference.json"
FORWARD = diffrax.ForwardMode()
REVERSE = diffrax.RecursiveCheckpointAdjoint()


class Simulator(NamedTuple):
    """A model whose density calls a simulator.

    kind
        What it is.
    model
        The NumPyro model, with derivatives by forward mode where there are any.
    args
        Makes the arguments of the model, which are data.
    reverse
        The same posterior with derivatives by reverse mode; None without.
    size
        Number of latent scalars.
    has_derivatives
        Whether forward mode works.
    """

    kind: str
    model: Callable
    args: Callable[[], tuple]
    reverse: Callable | None
    size: int
    has_derivatives: bool = True


def solved(outputs: Array) -> Array:
    """`outputs`, or zeros and a density of zero where the solver has failed."""
    is_solved = jnp.isfinite(outputs).all()
    numpyro.factor("solved", jnp.where(is_solved, 0.0, -jnp.inf))
    return jnp.where(is_solved, outputs, 0.0)


def or_nan(solution: diffrax.Solution, outputs: Array) -> Array:
    """`outputs`, NaN where the solver did not get to the end."""
    return jnp.where(solution.result == diffrax.RESULTS.successful, outputs, jnp.nan)


@cache
def stored() -> dict[str, np.ndarray]:
    """Data that were simulated."""
    return {name: np.asarray(x) for name, x in json.loads(DATA.read_text()).items()}


# Lynx and hare


def solve_lynx_hare(parameters: dict, num_years: int, adjoint=FORWARD) -> Array:
    """Log populations (`num_years`, 2)."""
    theta, z_init = parameters["theta"], parameters["z_init"]
    times = jnp.arange(num_years, dtype=theta.dtype)
    log_z, is_solved = solve_lotka_volterra(theta, z_init, times, adjoint=adjoint)
    return jnp.where(is_solved, log_z, jnp.nan)


def lynx_hare(pelts, adjoint=FORWARD) -> None:
    """The posterior of `models.lynx_hare`."""
    location, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    prior = dist.TruncatedNormal(location, scale, low=0.0).to_event(1)
    theta = numpyro.sample("theta", prior)
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    solve = partial(solve_lynx_hare, num_years=pelts.shape[0], adjoint=adjoint)
    log_z = solved(expensive(solve)({"theta": theta, "z_init": z_init}))
    numpyro.sample("pelts", dist.LogNormal(log_z, sigma), obs=pelts)


# An antibody that binds its target: pharmacokinetics, stiff

# three of the doses of Peletier and Gabrielsson (2012), mg/kg; hours of the samples
DOSES = np.array([5.0, 15.0, 45.0])
HOURS = np.array([0.5, 2.0, 8.0, 24.0, 48.0, 96.0, 150.0, 200.0, 300.0, 400.0, 500.0, 650.0])
BLANK = 0.05  # what the assay reads without antibody, mg/l
# centres of the priors: elimination, binding, release, synthesis and loss of the target, loss of
# the complex, each an hour; litres per kg
USUAL = {
    "elimination": 0.002,
    "binding": 0.1,
    "release": 0.002,
    "synthesis": 0.1,
    "loss": 0.01,
    "internalization": 0.003,
    "volume": 0.05,
}
ANTIBODY_TRUTH = {
    "elimination": 0.0015,
    "binding": 0.091,
    "release": 0.001,
    "synthesis": 0.11,
    "loss": 0.0089,
    "internalization": 0.003,
    "volume": 0.05,
}


def solve_antibody(parameters: dict, adjoint=FORWARD) -> Array:
    """Log concentrations of free antibody and of all target, (2, 3 doses, 12 hours).

    Binding takes seconds and elimination weeks, so the solver is an implicit one; Kvaerno3 needs
    fewer steps than Kvaerno5 here, which rejects half of its own.
    """
    p = parameters
    start = p["synthesis"] / p["loss"]

    def field(t, y, args):
        free, target, bound = y
        pairs = p["binding"] * free * target - p["release"] * bound
        return jnp.stack(
            [
                -p["elimination"] * free - pairs,
                p["synthesis"] - p["loss"] * target - pairs,
                pairs - p["internalization"] * bound,
            ]
        )

    def one(dose):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Kvaerno3(),
            t0=0.0,
            t1=HOURS[-1],
            dt0=None,
            y0=jnp.stack([dose / p["volume"], start, jnp.zeros_like(start)]),
            saveat=diffrax.SaveAt(ts=jnp.asarray(HOURS, start.dtype)),
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
            adjoint=adjoint,
            max_steps=1000,
            throw=False,
        )
        free, target, bound = solution.ys.T
        outputs = jnp.stack([free + BLANK, target + bound])
        return or_nan(solution, jnp.log(outputs))

    return jnp.moveaxis(jax.vmap(one)(jnp.asarray(DOSES, start.dtype)), 0, 1)


def antibody(log_concentrations, adjoint=FORWARD) -> None:
    """Target-mediated drug disposition (Mager and Jusko 2001): 9 parameters, 72 measurements."""
    parameters = {
        name: numpyro.sample(name, dist.LogNormal(np.log(usual), 1.0 if name != "volume" else 0.2))
        for name, usual in USUAL.items()
    }
    sigma = numpyro.sample("sigma", dist.LogNormal(-2.0, 0.7).expand([2]).to_event(1))
    outputs = solved(expensive(partial(solve_antibody, adjoint=adjoint))(parameters))
    noise = sigma[:, None, None]
    numpyro.sample("log_concentrations", dist.Normal(outputs, noise), obs=log_concentrations)


# An epidemic in three age groups

PEOPLE = np.array([25_000.0, 55_000.0, 20_000.0])
CONTACTS = np.array([[9.0, 6.0, 1.0], [2.7, 8.0, 1.5], [1.2, 4.1, 3.0]])  # a day, of rows
WEEKS = 18
EPIDEMIC_TRUTH = {
    "reproduction": np.array(2.4),
    "susceptibility": np.array([0.7, 1.2]),
    "latent": np.array(3.0),
    "infectious": np.array(4.5),
    "seeds": np.array(12.0),
    "day": np.array(48.0),
    "remaining": np.array(0.6),
}


def solve_epidemic(parameters: dict, adjoint=FORWARD) -> Array:
    """Log infections of a week, (weeks, 3 groups)."""
    p = parameters
    dtype = p["reproduction"].dtype
    people, contacts = jnp.asarray(PEOPLE, dtype), jnp.asarray(CONTACTS, dtype)
    largest = np.abs(np.linalg.eigvals(CONTACTS)).max()
    rate = p["reproduction"] / (p["infectious"] * largest)
    children, old = p["susceptibility"]
    susceptible = jnp.stack([children, jnp.ones_like(children), old])

    def field(t, y, args):
        s, e, i, _ = y
        after = jax.nn.sigmoid((t - p["day"]) / 3.0)
        force = rate * (1 - (1 - p["remaining"]) * after) * susceptible * (contacts @ i)
        falls_ill = e / p["latent"]
        return jnp.stack(
            [-force * s, force * s - falls_ill, falls_ill - i / p["infectious"], force * s]
        )

    first = p["seeds"] * jnp.ones(3, dtype) / people.sum()
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=7.0 * WEEKS,
        dt0=None,
        y0=jnp.stack([1 - 2 * first, first, first, jnp.zeros_like(first)]),
        saveat=diffrax.SaveAt(ts=7.0 * jnp.arange(WEEKS + 1, dtype=dtype)),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-8),
        adjoint=adjoint,
        max_steps=1000,
        throw=False,
    )
    infections = people * jnp.diff(solution.ys[:, 3], axis=0)
    log_infections = jnp.where(
        infections > 0, jnp.log(jnp.where(infections > 0, infections, 1)), jnp.nan
    )
    return or_nan(solution, log_infections)


def epidemic(cases, adjoint=FORWARD) -> None:
    """SEIR in three age groups with a change of contacts: 12 parameters, 54 counts."""
    parameters = {
        "reproduction": numpyro.sample("reproduction", dist.LogNormal(np.log(2.5), 0.4)),
        "susceptibility": numpyro.sample(
            "susceptibility", dist.LogNormal(0.0, 0.4).expand([2]).to_event(1)
        ),
        "latent": numpyro.sample("latent", dist.LogNormal(np.log(3.0), 0.3)),
        "infectious": numpyro.sample("infectious", dist.LogNormal(np.log(4.0), 0.3)),
        "seeds": numpyro.sample("seeds", dist.LogNormal(np.log(10.0), 1.0)),
        "day": numpyro.sample("day", dist.Normal(50.0, 10.0)),
        "remaining": numpyro.sample("remaining", dist.Beta(2.0, 2.0)),
    }
    reported = numpyro.sample("reported", dist.Beta(3.0, 5.0).expand([3]).to_event(1))
    concentration = numpyro.sample("concentration", dist.LogNormal(np.log(20.0), 1.0))
    log_infections = solved(expensive(partial(solve_epidemic, adjoint=adjoint))(parameters))
    counts = dist.NegativeBinomial2(reported * jnp.exp(log_infections), concentration)
    numpyro.sample("cases", counts, obs=cases)


# Flow through a porous square: an elliptic equation

CELLS = 12  # of a side
NUM_MODES = 20
SENSORS = 30


@cache
def porous_square() -> tuple[np.ndarray, np.ndarray]:
    """Log permeability per coefficient (cells, 20), and the cells of the sensors (30,).

    The expansion of a Matérn field with the Laplacian's boundary conditions: products of cosines,
    the 20 of the largest variance, scaled to a variance of one on average.
    """
    at = (np.arange(CELLS) + 0.5) / CELLS
    orders = [(i, j) for i in range(8) for j in range(8)]
    variance = {(i, j): (1 + 0.04 * np.pi**2 * (i**2 + j**2)) ** -2.0 for i, j in orders}
    chosen = sorted(orders, key=lambda o: (-variance[o], o))[:NUM_MODES]

    def mode(i, j):
        wave = [np.sqrt(2.0 if n else 1.0) * np.cos(n * np.pi * at) for n in (i, j)]
        return np.sqrt(variance[i, j]) * np.outer(*wave).ravel()

    modes = np.stack([mode(i, j) for i, j in chosen], axis=1)
    modes /= np.sqrt((modes**2).sum(1).mean())
    return modes, np.sort(np.random.default_rng(1).choice(CELLS**2, SENSORS, replace=False))


def solve_flow(parameters: dict) -> Array:
    """Pressures at the sensors (30,).

    Finite volumes; pressure zero at the edge, a uniform source.
    """
    modes, sensors = porous_square()
    coefficients = parameters["coefficients"]
    k = jnp.exp(jnp.asarray(modes, coefficients.dtype) @ coefficients).reshape(CELLS, CELLS)
    number = np.arange(CELLS**2).reshape(CELLS, CELLS)
    matrix = jnp.zeros((CELLS**2, CELLS**2), k.dtype)

    def between(a, b):
        return 2 * k[a] * k[b] / (k[a] + k[b])

    whole, low, high = slice(None), slice(None, -1), slice(1, None)
    for a, b in (((low, whole), (high, whole)), ((whole, low), (whole, high))):
        one, other, flow = number[a].ravel(), number[b].ravel(), between(a, b).ravel()
        matrix = matrix.at[one, one].add(flow).at[other, other].add(flow)
        matrix = matrix.at[one, other].add(-flow).at[other, one].add(-flow)
    for edge in ((0, whole), (-1, whole), (whole, 0), (whole, -1)):
        matrix = matrix.at[number[edge], number[edge]].add(2 * k[edge])
    source = jnp.full(CELLS**2, 10.0 / CELLS**2, k.dtype)
    return jax.scipy.linalg.solve(matrix, source, assume_a="pos")[sensors]


def flow(pressures) -> None:
    """Log permeability from pressures: 21 parameters, 30 measurements."""
    coefficients = numpyro.sample(
        "coefficients", dist.Normal(0.0, 1.0).expand([NUM_MODES]).to_event(1)
    )
    sigma = numpyro.sample("sigma", dist.LogNormal(np.log(0.01), 0.5))
    outputs = solved(expensive(solve_flow)({"coefficients": coefficients}))
    numpyro.sample("pressures", dist.Normal(outputs, sigma), obs=pressures)


# Influenza in a boarding school: a simulator that JAX cannot see into

BOYS = 763.0
# boys in bed from 22 January 1978 on (British Medical Journal, 4 March 1978)
IN_BED = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])
STEPS = 8  # of a day


def boys_in_bed(contact: float, falls_ill: float, gets_up: float, first: float) -> np.ndarray:
    """Log numbers in bed on 14 days, by Runge and Kutta's method in Python; NaN if it fails."""

    def field(s, i, b):
        new, ill = contact * s * i / BOYS, falls_ill * i
        return -new, new - ill, ill - gets_up * b

    def moved(y, slope, h):
        return tuple(a + h * d for a, d in zip(y, slope, strict=True))

    y, h, found = (BOYS - first, first, 0.0), 1.0 / STEPS, []
    for _ in range(len(IN_BED)):
        for _ in range(STEPS):
            k1 = field(*y)
            k2 = field(*moved(y, k1, h / 2))
            k3 = field(*moved(y, k2, h / 2))
            k4 = field(*moved(y, k3, h))
            y = tuple(
                a + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
                for a, d1, d2, d3, d4 in zip(y, k1, k2, k3, k4, strict=True)
            )
        found.append(y[2])
    in_bed = np.asarray(found)
    return np.log(np.where(in_bed > 0, in_bed, np.nan))


def solve_school(parameters: dict) -> Array:
    """Log numbers in bed (14,); a call into Python, without derivatives."""
    values = [parameters[name] for name in ("contact", "falls_ill", "gets_up", "first")]
    dtype = values[0].dtype

    def call(*values):
        return boys_in_bed(*map(float, values)).astype(dtype)

    shape = jax.ShapeDtypeStruct(IN_BED.shape, dtype)
    return jax.pure_callback(call, shape, *values, vmap_method="sequential")


def school(in_bed) -> None:
    """Susceptible, infectious, in bed, up again: 5 parameters, 14 counts."""
    parameters = {
        "contact": numpyro.sample("contact", dist.LogNormal(np.log(2.0), 0.5)),
        "falls_ill": numpyro.sample("falls_ill", dist.LogNormal(np.log(1.0), 0.4)),
        "gets_up": numpyro.sample("gets_up", dist.LogNormal(np.log(0.5), 0.4)),
        "first": numpyro.sample("first", dist.LogNormal(np.log(2.0), 1.0)),
    }
    concentration = numpyro.sample("concentration", dist.LogNormal(np.log(10.0), 1.0))
    log_in_bed = solved(expensive(solve_school)(parameters))
    counts = dist.NegativeBinomial2(jnp.exp(log_in_bed), concentration)
    numpyro.sample("in_bed", counts, obs=in_bed)


# All of them


def first_years(num_years: int | None = None) -> tuple[np.ndarray]:
    """Pelts of hare and lynx in thousands, (years, 2)."""
    return (data.lynx_hare()[1][:num_years],)


def of_file(name: str) -> tuple[np.ndarray]:
    """Data that were simulated."""
    return (stored()[name],)


SIMULATORS: dict[str, Simulator] = {
    "lynx_hare": Simulator(
        "Lotka-Volterra, 21 years", lynx_hare, first_years, partial(lynx_hare, adjoint=REVERSE), 8
    ),
    "lynx_hare_8": Simulator(
        *("Lotka-Volterra, 8 years", lynx_hare, partial(first_years, 8)),
        *(partial(lynx_hare, adjoint=REVERSE), 8),
    ),
    "antibody": Simulator(
        *("pharmacokinetics, stiff", antibody, partial(of_file, "antibody")),
        *(partial(antibody, adjoint=REVERSE), 9),
    ),
    "epidemic": Simulator(
        *("SEIR in three groups", epidemic, partial(of_file, "epidemic")),
        *(partial(epidemic, adjoint=REVERSE), 12),
    ),
    "flow": Simulator("elliptic equation", flow, partial(of_file, "flow"), flow, 21),
    "school": Simulator(
        "a call into Python", school, lambda: (IN_BED,), None, 5, has_derivatives=False
    ),
}


def reference(name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means and standard deviations of the unconstrained latents, by site."""
    found = json.loads(REFERENCE.read_text())[name]["sites"]
    return {site: (np.asarray(mean), np.asarray(sd)) for site, (mean, sd) in found.items()}
