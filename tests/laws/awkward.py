"""Data as users bring them: models, what their posteriors are, and what a kernel sees of them.

A problem is a generalized linear model, written as a user would, beside its energy in double
precision by NumPy. Three things are asked of a kernel. What it sees (:func:`sees`): energies,
gradients and metrics at a few points, without a chain. What it decides by (the same function, for
kernels that read a few rows): expansions, the remainders of the rows and their bounds. What it
draws (:func:`draws`): means and standard deviations after a warm-up from where a user would start,
against quadrature. Or it raises, by name.
"""

import contextlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import scipy.special
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import effective_sample_size
from numpyro.handlers import mask, scale
from numpyro.infer import MCMC

import numpyro_fwd
from blackjax_ext.rows.compensated_sums import as_pair
from blackjax_ext.rows.potentials import full_gradient
from blackjax_ext.subsampling import remainders, row_tests
from numpyro_fwd.bridge import priors
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.subsampling.predictors import linear_predictor_of
from tests import declared

RNG = np.random.default_rng(110)
NORMAL = RNG.normal(size=400)
# energies in units of the posterior: what a decision may be off by
ENERGY, SLOPE, METRIC = 0.02, 0.03, 2e-3
NUM_POINTS = 8


class Part(NamedTuple):
    """Rows of one site.

    x, y, weight
        Predictors by the flat latents (N, D), responses (N,), and what each row counts for.
    noise
        Of a normal response; None for successes with a logit.
    count
        Trials of these.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    noise: float | None = None
    count: Any = 1.0

    def loss(self, eta):
        """Minus the log density of each row, and its first two derivatives in the predictor."""
        if self.noise is None:
            n, p = self.count, scipy.special.expit(eta)
            ways = [scipy.special.gammaln(m + 1.0) for m in (n, self.y, n - self.y)]
            loss = n * np.logaddexp(0, eta) - self.y * eta - ways[0] + ways[1] + ways[2]
            return loss, n * p - self.y, n * p * (1 - p)
        z = (eta - self.y) / self.noise
        constant = np.log(self.noise) + 0.5 * np.log(2 * np.pi)
        return 0.5 * z**2 + constant, z / self.noise, np.full_like(z, self.noise**-2)


class Problem(NamedTuple):
    """A posterior, as a model and as an energy.

    model
        ``model(batch_size)`` is the model; None is all rows.
    args
        Its arguments.
    parts
        Its rows.
    prior
        Standard deviations of the normal prior of the flat latents, shape (D,).
    shapes
        Shapes of the latents by name, in the order of the flat latents.
    batch_size
        Of minibatches.
    x64
        Whether it runs in double precision.
    """

    model: Callable
    args: tuple
    parts: tuple[Part, ...]
    prior: np.ndarray
    shapes: dict[str, tuple[int, ...]]
    batch_size: int = 5
    x64: bool = False

    @property
    def size(self) -> int:
        """D."""
        return len(self.prior)

    @property
    def jax_args(self) -> tuple:
        """The arguments as arrays that rows of a program can index."""
        return jax.tree.map(jnp.asarray, self.args)

    @property
    def num_rows(self) -> int:
        """Rows of the last argument: those of the plate, where there is one."""
        return len(self.args[-1])

    def unflatten(self, x):
        """Latents by name from flat ones, with any leading axes."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])[:-1]
        pieces = jnp.split(x, ends, axis=-1)
        return {
            name: piece.reshape(x.shape[:-1] + shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def energy(self, x):
        """Minus the normalized log joint density at positions (n, D), and gradients (n, D)."""
        z = x / self.prior
        total = 0.5 * np.sum(z**2, axis=1)
        total = total + np.sum(np.log(self.prior) + 0.5 * np.log(2 * np.pi))
        slope = z / self.prior
        for part in self.parts:
            loss, first, _ = part.loss(x @ part.x.T)
            total, slope = total + loss @ part.weight, slope + (first * part.weight) @ part.x
        return total, slope

    def hessian(self, x):
        """Second derivatives at one position."""
        curved = np.diag(self.prior**-2.0)
        for part in self.parts:
            curved = curved + (part.x.T * (part.loss(part.x @ x)[2] * part.weight)) @ part.x
        return curved

    def flat(self, samples):
        """Draws of the latents by name, with two leading axes, as flat ones."""
        leaves = [np.asarray(samples[key], np.float64) for key in self.shapes]
        return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=2)


@cache
def problem_of(name: str) -> Problem:
    """The problem with this name."""
    return PROBLEMS[name]()


@cache
def laplace(name: str):
    """Mode and a root of the covariance there, by Newton's method in units of the prior."""
    problem = problem_of(name)
    unit, x = problem.prior, np.zeros(problem.size)
    for _ in range(100):
        curved = problem.hessian(x) * np.outer(unit, unit)
        slope = problem.energy(x[None])[1][0] * unit
        step = unit * np.linalg.solve(curved, slope)
        length, value = 1.0, problem.energy(x[None])[0][0]
        while length > 1e-9 and problem.energy((x - length * step)[None])[0][0] > value:
            length /= 2
        x = x - length * step
        if slope @ (step / unit) < 1e-20:
            break
    return x, unit[:, None] * np.linalg.inv(np.linalg.cholesky(curved)).T


class Moments(NamedTuple):
    """Of the posterior in the coordinates of Laplace's approximation, and the log evidence."""

    mean: np.ndarray
    sd: np.ndarray
    log_evidence: float


@cache
def moments(name: str) -> Moments:
    """By a tensor product of Gauss and Hermite's rule in the coordinates of the approximation."""
    problem, (mode, root) = problem_of(name), laplace(name)
    nodes, weights = np.polynomial.hermite_e.hermegauss({1: 60, 2: 24, 3: 14}.get(problem.size, 7))
    grid = np.stack(np.meshgrid(*[1.2 * nodes] * problem.size, indexing="ij"), -1)
    u = grid.reshape(-1, problem.size)
    rule = np.stack(np.meshgrid(*[weights] * problem.size, indexing="ij"), -1)
    log_rule = np.log(rule.reshape(u.shape)).sum(axis=1) + 0.5 * np.sum((u / 1.2) ** 2, axis=1)
    chunks = np.array_split(u, max(1, u.shape[0] // 50))
    energies = np.concatenate([problem.energy(mode + each @ root.T)[0] for each in chunks])
    logs = log_rule - energies
    p = scipy.special.softmax(logs)
    mean = p @ u
    sd = np.sqrt(p @ (u - mean) ** 2)
    volume = problem.size * np.log(1.2) + np.linalg.slogdet(root)[1]
    return Moments(mean, sd, scipy.special.logsumexp(logs) + volume)


def points(name: str) -> np.ndarray:
    """The mode, and places up to three standard deviations from it."""
    mode, root = laplace(name)
    w = np.random.default_rng(112).normal(size=(NUM_POINTS, len(mode)))
    w *= np.linspace(0, 3, NUM_POINTS)[:, None] / np.linalg.norm(w, axis=1)[:, None]
    return mode + w @ root.T


# models


def regression(prior, batch_size, x, y, *, noise=None, weight=None, keep=None, outer=1.0):
    """An intercept and slopes; rows with weights and a mask."""
    a = numpyro.sample("a", dist.Normal(0.0, prior[0]))
    b = numpyro.sample("b", dist.Normal(jnp.zeros(len(prior) - 1), prior[1:]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch_size) as rows:
        eta = a + x[rows] @ b
        with contextlib.ExitStack() as handlers:
            handlers.enter_context(scale(scale=outer))
            if weight is not None:
                handlers.enter_context(scale(scale=weight[rows]))
            if keep is not None:
                handlers.enter_context(mask(mask=keep[rows]))
            of = dist.BernoulliLogits(eta) if noise is None else dist.Normal(eta, noise)
            numpyro.sample("y", of, obs=y[rows])


def responses_by(eta, seed=111):
    """Zeros and ones."""
    eta = np.asarray(eta, float)
    return (np.random.default_rng(seed).random(eta.shape) < scipy.special.expit(eta)).astype("f4")


def rows_of(*covariates, y=None, scales=None, wide=1e4, dtype="f4", **rest):
    """A logistic regression with an intercept; `scales` are the units of the covariates."""
    more = {key: rest.pop(key) for key in ("batch_size", "x64") if key in rest}
    x = np.column_stack(covariates).astype(dtype)
    scales = np.ones(x.shape[1]) if scales is None else np.asarray(scales)
    design = np.column_stack([np.ones(len(x)), x.astype(float)])
    spread = x[:, 0].astype(float).std()
    centred = (x[:, 0].astype(float) - x[:, 0].astype(float).mean()) / (spread or 1.0)
    y = responses_by(0.5 * centred) if y is None else np.asarray(y, "f4")
    prior = np.append(wide, 5.0 / scales)
    # as they are in the model
    prior = np.asarray(prior, "f8" if more.get("x64") else "f4").astype(float)

    weight = np.full(len(y), rest.get("outer", 1.0))
    weight = weight * (1.0 if rest.get("weight") is None else rest["weight"])
    kept = np.ones(len(y), bool) if rest.get("keep") is None else rest["keep"]
    part = Part(
        np.where(kept[:, None], design, 0.0),
        np.where(kept, y.astype(float), 0.0),
        np.where(kept, weight, 0.0),
        rest.get("noise"),
    )
    arrays = {key: rest.pop(key) for key in ("weight", "keep") if rest.get(key) is not None}

    def model(batch_size):
        def made(x, y, *arrays_given):
            named = dict(zip(arrays, arrays_given, strict=True))
            regression(prior, batch_size, x, y, **named, **rest)

        return made

    shapes = {"a": (), "b": (len(scales),)}
    return Problem(model, (x, y, *arrays.values()), (part,), prior, shapes, **more)


def group_without_rows() -> Problem:
    """Four groups; the last has no rows, and the posterior of its effect is the prior."""
    x, group = NORMAL[:60].astype("f4"), np.arange(60) % 3
    prior = np.array([3.0, 2.0, 2.0, 2.0, 2.0])  # of b and of the groups
    design = np.column_stack([x.astype(float), np.eye(4)[group]])
    y = responses_by(design @ [1.0, -1.0, 0.0, 1.0, 0.0])

    def model(batch_size):
        def made(x, group, y):
            b = numpyro.sample("b", dist.Normal(0.0, 3.0))
            with numpyro.plate("groups", 4):
                g = numpyro.sample("g", dist.Normal(0.0, 2.0))
            with numpyro.plate("rows", len(y), subsample_size=batch_size) as rows:
                eta = b * x[rows] + g[group[rows]]
                numpyro.sample("y", dist.BernoulliLogits(eta), obs=y[rows])

        return made

    shapes = {"b": (), "g": (4,)}
    return Problem(model, (x, group, y), (Part(design, y, np.ones(60)),), prior, shapes)


def two_plates() -> Problem:
    """Two plates that subsample, of other sizes, with a site each."""
    x, u = NORMAL[:40].astype("f4"), NORMAL[40:60].astype("f4")
    first, second = np.column_stack([np.ones(40), x]), np.column_stack([np.ones(20), u])
    y, v = responses_by(first @ [0.5, 1.0]), (second @ [0.3, 0.8]).astype("f4")

    def model(batch_size):
        def made(x, u, y, v):
            a, b = (numpyro.sample(name, dist.Normal(0.0, 3.0)) for name in "ab")
            with numpyro.plate("first", 40, subsample_size=batch_size) as rows:
                numpyro.sample("y", dist.BernoulliLogits(a + b * x[rows]), obs=y[rows])
            with numpyro.plate("second", 20, subsample_size=batch_size) as rows:
                numpyro.sample("v", dist.Normal(a + b * u[rows], 0.5), obs=v[rows])

        return made

    parts = (Part(first, y, np.ones(40)), Part(second, v.astype(float), np.ones(20), 0.5))
    return Problem(model, (x, u, y, v), parts, np.full(2, 3.0), {"a": (), "b": ()})


def several_responses(*, is_event: bool) -> Problem:
    """Several responses, in a plate of their own or as an event; rows have weights."""
    # batches have as many rows as there are responses: weights on the wrong axis still fit
    num, num_responses = 60, 3
    x, weight = NORMAL[:num].astype("f4"), WEIGHT
    at = np.linspace(-1, 1, num_responses).astype("f4")
    y = responses_by(x[:, None] + at)

    def model(batch_size):
        def made(x, at, y, weight):
            a, b = (numpyro.sample(name, dist.Normal(0.0, 3.0)) for name in "ab")
            if is_event:
                with numpyro.plate("rows", num, subsample_size=batch_size) as rows:
                    eta = a * at + b * x[rows, None]
                    with scale(scale=weight[rows]):
                        numpyro.sample("y", dist.BernoulliLogits(eta).to_event(1), obs=y[rows])
                return
            with (
                numpyro.plate("responses", num_responses),
                numpyro.plate("rows", num, subsample_size=batch_size, dim=-2) as rows,
                scale(scale=weight[rows, None]),
            ):
                eta = a * at + b * x[rows, None]
                numpyro.sample("y", dist.BernoulliLogits(eta), obs=y[rows])

        return made

    grid = np.stack(np.broadcast_arrays(at.astype(float), x[:, None].astype(float)), -1)
    weights = np.repeat(weight.astype(float), num_responses)
    part = Part(grid.reshape(-1, 2), y.ravel(), weights)
    shapes = {"a": (), "b": ()}
    return Problem(model, (x, at, y, weight), (part,), np.full(2, 3.0), shapes, num_responses)


def rows_without_trials() -> Problem:
    """Binomial rows, some of which count nothing."""
    count, x = np.arange(60) % 4, SHORT.astype("f4")
    design = np.column_stack([np.ones(60), x.astype(float)])
    y = np.random.default_rng(111).binomial(count, scipy.special.expit(design @ [0.3, 0.8]))

    def model(batch_size):
        def made(x, y, count):
            a, b = (numpyro.sample(name, dist.Normal(0.0, 3.0)) for name in "ab")
            with numpyro.plate("rows", 60, subsample_size=batch_size) as rows:
                of = dist.Binomial(count[rows], logits=a + b * x[rows])
                numpyro.sample("y", of, obs=y[rows])

        return made

    part = Part(design, y.astype(float), np.ones(60), count=count.astype(float))
    return Problem(model, (x, y, count), (part,), np.full(2, 3.0), {"a": (), "b": ()})


class HalfNormals(Problem):
    """Positive latents that the data push to zero, where their logarithms have a long tail.

    They are independent: energies, gradients and curvatures by coordinate u = log x.
    """

    def energy(self, u):
        """Minus the log joint density of the logarithms, and gradients."""
        x = np.exp(u)
        constants = np.log(np.pi / 2) / 2 + np.log(2 * np.pi) / 2
        total = 0.5 * x**2 - u + 0.5 * (x + 1) ** 2 + constants
        return np.sum(total, axis=1), x**2 - 1 + x * (x + 1)

    def hessian(self, u):
        """Second derivatives at one position."""
        x = np.exp(u)
        return np.diag(4 * x**2 + x)

    def flat(self, samples):
        """Logarithms of draws."""
        return np.log(np.asarray(samples["x"], np.float64))


def half_normals() -> Problem:
    """Scales of a hierarchy with weak data."""
    num = 2

    def model(batch_size):
        def made(y):
            x = numpyro.sample("x", dist.HalfNormal(1.0).expand([num]).to_event(1))
            with numpyro.plate("rows", num, subsample_size=batch_size) as rows:
                numpyro.sample("y", dist.Normal(x[rows], 1.0), obs=y[rows])

        return made

    y = np.full(num, -1.0, "f4")
    return HalfNormals(model, (y,), (), np.ones(num), {"x": (num,)}, batch_size=1)


KEEP = np.arange(60) % 4 != 1
SHORT = NORMAL[:60]
# neighbours differ, so that what is given to the wrong row shows
WEIGHT = (0.1 + 2.4 * (np.arange(60) * 37 % 60) / 59).astype("f4")

PROBLEMS: dict[str, Callable[[], Problem]] = {
    "centred": lambda: rows_of(NORMAL),
    "mean_of_10_sds": lambda: rows_of(10 + NORMAL),
    "mean_of_1000_sds": lambda: rows_of(1000 + NORMAL),
    "mean_of_10000_sds": lambda: rows_of(1e4 + NORMAL, wide=1e5),
    "scales_side_by_side": lambda: rows_of(1e-6 * NORMAL, 1e6 * NORMAL[::-1], scales=(1e-6, 1e6)),
    "one_row": lambda: rows_of([0.3], y=[1.0], wide=3.0, batch_size=1),
    "equal_rows": lambda: rows_of([0.7] * 60, y=np.arange(60) % 3 == 0, wide=3.0),
    "duplicated_rows": lambda: rows_of(np.repeat(NORMAL[:30], 4)),
    "group_without_rows": group_without_rows,
    "weights_nested": lambda: rows_of(SHORT, weight=WEIGHT, keep=KEEP, outer=0.5),
    "weights_of_events": partial(several_responses, is_event=True),
    "plate_in_a_plate": partial(several_responses, is_event=False),
    "two_plates": two_plates,
    "integers": lambda: rows_of(RNG_INTEGERS, dtype="i4"),
    "booleans": lambda: rows_of(RNG_INTEGERS > 3, RNG_INTEGERS < 1, dtype="?"),
    "nan_response_behind_a_mask": lambda: rows_of(
        SHORT, y=np.where(KEEP, 0.4 * SHORT, np.nan), keep=KEEP, noise=0.5
    ),
    "nan_covariate_behind_a_mask": lambda: rows_of(
        np.where(KEEP, SHORT, np.nan), y=0.4 * SHORT, keep=KEEP, noise=0.5
    ),
    "float32_under_x64": lambda: rows_of(SHORT, x64=True),
    "integers_under_x64": lambda: rows_of(RNG_INTEGERS, dtype="i8", x64=True),
    "batches_of_all_rows": lambda: rows_of(SHORT, batch_size=60),
    "rare_events": lambda: rows_of(
        np.resize(NORMAL, 100_000), y=np.arange(100_000) % 1250 == 0, batch_size=100
    ),
    "rows_without_trials": rows_without_trials,
    "half_normals": half_normals,
    "narrow": lambda: rows_of(NORMAL, y=0.7 + 0.3 * NORMAL, noise=0.02, wide=10.0),
}
RNG_INTEGERS = RNG.integers(0, 5, 60)

# kernels


class Kernel(NamedTuple):
    """How a kernel is made for a model, and whether it reads minibatches."""

    make: Callable
    reads_rows: bool = False
    is_exact: bool = True


def minibatch(name, **options):
    """A kernel of minibatches."""
    is_exact = options.pop("is_exact", True)
    options = {"num_integration_steps": 3} | options
    return Kernel(partial(getattr(numpyro_fwd, name), **options), True, is_exact)


def whole(name, **options):
    """A kernel of all rows."""
    return Kernel(partial(getattr(numpyro_fwd, name), **options))


KERNELS = {
    "random_walk": whole("RandomWalk"),
    "mala": whole("MALA"),
    "fmala": whole("FMALA"),
    "line_fmala": whole("LineFMALA"),
    "pc_fmala": whole("PCFMALA"),
    "pc_line_fmala": whole("PCLineFMALA"),
    "hp_mala": whole("HPMALA"),
    "smmala": whole("SMMALA"),
    "mmala": whole("MMALA"),
    "alsmmala": whole("ALSMMALA"),
    "amsmmala": whole("AMSMMALA"),
    "l2mc": minibatch("L2MC"),
    "amagold": minibatch("AMAGOLD"),
    "amagold_plain": minibatch("AMAGOLD", control_variate=None),
    "amagold_subsampled": minibatch("AMAGOLD", acceptance="subsampled"),
    "sghmc": minibatch("SGHMC", is_exact=False),
    "langevin_smc": Kernel(numpyro_fwd.LangevinSMC),
    "gohsmc": Kernel(partial(numpyro_fwd.GOHSMC, optim=optax.adam(0.01), num_particles=4)),
    "ohsmc": Kernel(partial(numpyro_fwd.OHSMC, optim=optax.adam(0.01), num_particles=4)),
}
KERNELS |= {
    algorithm: whole(name)
    for name, kernel in declared.kernels().items()
    if (algorithm := kernel.algorithm.__name__) not in {*KERNELS, "auto_mala"}
}


# what a kernel sees


class Seen(NamedTuple):
    """What a kernel makes of positions (C, D), whose energies are known.

    energies
        By where they are found, each of shape (C,), up to a constant.
    gradient
        Of the energy, shape (C, D); None for a kernel that takes none.
    precision
        Of the metric, (C, D, D); None for a kernel without.
    tangents, slopes, curvatures
        Directions (C, K, D), and derivatives of the log density along them; None without.
    """

    energies: dict[str, Any]
    gradient: Any = None
    precision: Any = None
    tangents: Any = None
    slopes: Any = None
    curvatures: Any = None


def sees(kernel: str, name: str) -> None:
    """Raise AssertionError unless `kernel` sees the posterior of the problem `name`."""
    problem = problem_of(name)
    with jax.enable_x64(problem.x64):
        x = jnp.asarray(points(name), float)
        check(kernel, name, np.asarray(x, np.float64), seen_by(kernel, problem, x))


def check(kernel: str, name: str, x: np.ndarray, seen: Seen) -> None:
    """Raise AssertionError unless energies, gradients and metrics are those of the problem."""
    problem, root = problem_of(name), laplace(name)[1]
    energy, slope = problem.energy(x)
    for what, found in seen.energies.items():
        found = np.asarray(found, np.float64)
        np.testing.assert_allclose(
            found - found[0], energy - energy[0], atol=ENERGY, err_msg=f"energy: {what}"
        )
    if seen.gradient is not None:
        off = np.linalg.norm((np.asarray(seen.gradient, np.float64) - slope) @ root, axis=1)
        size = 1 + np.linalg.norm(slope @ root, axis=1)
        assert np.all(off < SLOPE * size), f"gradient: off by {off / size}"
    if seen.tangents is not None:
        check_along(problem, x, slope, seen)
    if seen.precision is not None:
        for at, found in zip(x, np.asarray(seen.precision, np.float64), strict=True):
            wanted = metric_of(kernel, problem, at)
            unit = np.sqrt(np.outer(np.diagonal(wanted), np.diagonal(wanted)))
            np.testing.assert_allclose(found / unit, wanted / unit, atol=METRIC, err_msg="metric")


def check_along(problem: Problem, x: np.ndarray, slope: np.ndarray, seen: Seen) -> None:
    """Raise AssertionError unless derivatives along tangents are those of the problem."""
    for i, tangents in enumerate(np.asarray(seen.tangents, np.float64)):
        curved = problem.hessian(x[i])
        unit = np.abs(tangents) @ np.sqrt(np.diagonal(curved))
        off = np.asarray(seen.slopes[i], np.float64) + tangents @ slope[i]
        # at a logit of exactly zero NumPyro's derivative of a row is off by one half
        zeros = [part.x[np.abs(part.x @ x[i]) < 1e-3] for part in problem.parts]
        slack = sum(0.5 * np.abs(tangents @ rows.T).sum(axis=1) for rows in zeros)
        assert np.all(np.abs(off) < SLOPE * unit + slack), f"slope: off by {off / unit}"
        if seen.curvatures is not None:
            bent = np.asarray(seen.curvatures[i], np.float64) - tangents @ curved @ tangents.T
            assert np.all(np.abs(bent) < METRIC * np.outer(unit, unit)), "curvature"


def metric_of(kernel: str, problem: Problem, x: np.ndarray) -> np.ndarray:
    """The metric that a kernel has at a position."""
    values, vectors = np.linalg.eigh(problem.hessian(x))
    values = values / np.tanh(values) if kernel == "mmala" else np.maximum(np.abs(values), 1.0)
    return (vectors * values) @ vectors.T


def seen_by(kernel: str, problem: Problem, x) -> Seen:
    """What a kernel makes of positions (C, D)."""
    if kernel == "langevin_smc":
        return seen_by_smc(problem, x)
    if kernel in ("gohsmc", "ohsmc"):
        return seen_by_open_horizon(kernel, problem, x)
    made = KERNELS[kernel]
    options = {} if kernel == "sghmc" else {"adapt_step_size": False}
    batch_size = problem.batch_size if made.reads_rows else None
    sampler = made.make(problem.model(batch_size), adapt_mass_matrix=False, **options)
    keys = jax.random.split(jax.random.key(0), len(x))
    state = sampler.init(keys, 0, problem.unflatten(x), problem.args, {})
    if made.reads_rows:
        return seen_by_rows(kernel, sampler, state, problem, x)
    inner = state.inner
    slope, precision = None, None
    if getattr(inner, "logdensity_grad", None) is not None:
        slope = -flat_each(inner.logdensity_grad)
    if hasattr(inner, "metric"):
        precision = jax.jit(jax.vmap(lambda metric: metric.precision(x.shape[1])))(inner.metric)
    along = (getattr(inner, name, None) for name in ("tangents", "slopes", "curvatures"))
    return Seen({"state": -inner.logdensity}, slope, precision, *along)


def flat_each(tree):
    """Pytrees with a leading axis as an array (C, D)."""
    return jax.vmap(lambda each: ravel_pytree(each)[0])(tree)


def seen_by_rows(kernel: str, sampler, state, problem: Problem, x) -> Seen:
    """Energies of all rows and by remainders, and the mean of gradients over all minibatches."""
    is_few = "subsampled" in kernel

    def at(shared, args, x):
        potential = sampler._target_of(args, {}, shared).bound.logdensity_fn
        z = problem.unflatten(x)
        energy = as_pair(potential.potential(z))
        found = {"high": energy.high, "low": energy.low}
        found["slope"] = ravel_pytree(mean_gradient(kernel, potential, z, problem))[0]
        if is_few:
            expansion = shared.of(linear_predictor_of(RowModel.of(sampler.model, args, {}), z))
            step = row_tests.steps_to(expansion, z)
            found["known"] = row_tests.surrogate(expansion, z)
            # as many at once as in a minibatch
            found["rest"] = jax.lax.map(
                lambda indices: remainders.loss_remainders(expansion, step, indices)[0],
                in_batches(expansion.num_rows),
            ).ravel()
            found["u"] = expansion.coordinates(z)[0]
        return found

    found = jax.jit(jax.vmap(at, in_axes=(None, None, 0)))(state.shared, problem.args, x)
    found = {name: np.asarray(value, np.float64) for name, value in found.items()}
    energies = {"all rows": found["high"] + found["low"]}
    if is_few:
        energies["row by row"] = found["known"] + found["rest"].sum(axis=1)
        check_bounds(state.shared, found["u"], found["rest"])
    return Seen(energies, found["slope"])


def mean_gradient(kernel: str, potential, z, problem: Problem):
    """Of the estimates by minibatches that together hold every row once."""
    if kernel == "l2mc":
        return full_gradient(potential.potential, z)
    template = potential.draw(jax.random.key(0))
    # rows of plates, as a batch has them
    sizes = [len(part.y) for part in problem.parts]
    if len(jax.tree.leaves(template)) == 1:
        sizes = [problem.num_rows]
    batches = [in_batches(size) for size in sizes]
    batches = jax.tree.unflatten(jax.tree.structure(template), batches)
    slopes = jax.lax.map(lambda batch: potential.stochastic_grad(z, batch), batches)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), slopes)


def in_batches(num_rows: int):
    """Numbers of all rows in at most 20 batches."""
    return jnp.arange(num_rows).reshape(min(20, num_rows), -1)


def check_bounds(expansion, u, rest) -> None:
    """Raise AssertionError if a row changes by more than its bound allows."""
    bound = np.asarray(expansion.bound, np.float64)
    for old in range(len(u) - 1):
        ends = ((jnp.asarray(u[at]), jnp.zeros((1, 0))) for at in (old, old + 1))
        reaches = row_tests.reaches_of(expansion, row_tests.MoveEnds.of(expansion, *ends))
        reach = float(reaches.reach[0])
        change = np.abs(rest[old + 1] - rest[old])
        rounding = 1e-5 * np.abs(rest[[old, old + 1]]).sum(axis=0) + 1e-6
        assert np.all(change <= bound * reach + rounding), "bound: a row changes by more"


def seen_by_smc(problem: Problem, x) -> Seen:
    """Prior and likelihood of the particles; the kernel is initialized for its checks."""
    model, args = problem.model(None), problem.jax_args
    keys = jax.random.split(jax.random.key(0), 20)
    numpyro_fwd.LangevinSMC(model).init(keys, 1, None, args, {})

    @jax.jit
    @jax.vmap
    def at(x):
        logprior, loglikelihood = priors.split_logdensity(model, args, {})
        z = problem.unflatten(x)
        return -logprior(z), -loglikelihood(z)

    prior, likelihood = (np.asarray(each, np.float64) for each in at(x))
    return Seen({"prior and likelihood": prior + likelihood})


def seen_by_open_horizon(kernel: str, problem: Problem, x) -> Seen:
    """The energy that the particles move by, with all rows in the batch."""
    smc = KERNELS[kernel].make(with_a_parameter(problem.model(None)))
    state = smc.init(jax.random.key(0), *problem.jax_args)
    energy = partial(smc._view().potential_fn, model_args=problem.jax_args, model_kwargs={})

    @jax.jit
    @jax.vmap
    def at(x):
        return energy(state.inner.params, problem.unflatten(x), jax.random.key(1))

    return Seen({"potential": at(x)})


def with_a_parameter(model: Callable) -> Callable:
    """A model with a parameter to train, which changes nothing."""

    def trained(*args):
        numpyro.param("unused", 0.0)
        return model(*args)

    return trained


# what a kernel draws


class Run(NamedTuple):
    """How long a kernel runs."""

    num_warmup: int = 300
    num_samples: int = 200
    num_chains: int = 16


RUN, POPULATION = Run(), Run(60, 1, 400)


def draws(kernel: str, name: str, run: Run = RUN, seed: int = 5) -> None:
    """Raise AssertionError unless the draws of `kernel` have the moments of the problem `name`."""
    problem, made = problem_of(name), KERNELS[kernel]
    with jax.enable_x64(problem.x64):
        model = problem.model(problem.batch_size if made.reads_rows else None)
        is_smc = kernel == "langevin_smc"
        run, extra = (POPULATION, ("log_evidence",)) if is_smc else (run, ())
        lengths = run._asdict() | {"chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(made.make(model), **lengths)
        mcmc.run(jax.random.key(seed), *problem.jax_args, extra_fields=extra)
        samples = mcmc.get_samples(group_by_chain=True)
        compare(name, problem.flat(samples))
        if extra:
            found = float(mcmc.get_extra_fields()["log_evidence"][-1])
            wanted = moments(name).log_evidence
            assert abs(found - wanted) < 0.5, f"evidence: {found:.2f} for {wanted:.2f}"


def compare(name: str, x: np.ndarray) -> None:
    """Raise AssertionError unless draws (chains, steps, D) have the moments of the posterior."""
    mode, root = laplace(name)
    exact = moments(name)
    u = np.linalg.solve(root, (x - mode).reshape(-1, x.shape[2]).T).T.reshape(x.shape)
    for d in range(u.shape[2]):
        of_mean = (u[..., d] - exact.mean[d]) / exact.sd[d]
        for what, values, wanted in (("mean", of_mean, 0.0), ("variance", of_mean**2, 1.0)):
            # particles are independent
            ess = float(effective_sample_size(values)) if values.shape[1] > 3 else values.size
            assert ess > 30, f"{what}: {ess:.0f} effective draws in direction {d}"
            # the spread is that of the posterior if that is larger: frozen chains show none
            off = (
                (np.mean(values) - wanted) / max(np.std(values), 1.0) * min(ess, values.size) ** 0.5
            )
            assert abs(off) < 5, f"{what}: {np.mean(values):.3g} in direction {d}, z = {off:.1f}"
