"""Sequential Monte Carlo: evidence, and partially Bayesian networks: ``python benchmarks/smc.py``.

Sections: `evidence`, `models`, `slow_peers`, `algorithms`, `standard_error`, `modes`,
`modes_from_defaults`, `few`, `many_dimensions`, `networks`, `wine`, `california`, `steps`,
`gradients`, `particles`.
They are kept in ``docs/results/smc.json``, from which ``docs/results/smc.md`` is written.
``--full`` takes the epochs of the paper, and for `models` 200 and 10,000 particles beside 1,000.
Networks for images are in ``benchmarks/image_networks.py``.
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from blackjax.smc import resampling
from jax.scipy.stats import norm
from matplotlib.figure import Figure

import blackjax_ext
from benchmarks.harness import calibrated_networks as calibrated
from benchmarks.harness import data as sources
from benchmarks.harness import evidence as known
from benchmarks.harness import partial_networks as partial_nets
from benchmarks.harness.partial_networks import METHODS, Settings
from benchmarks.harness.report import Picture, Report, Section, by_name, rows_of
from benchmarks.harness.timing import in_turn
from blackjax_ext import anneal, langevin_smc
from blackjax_ext.smc.moves import Metropolis, WithJumps
from numpyro_fwd import GOHSMC, OHSMC, LangevinSMC
from numpyro_fwd.bridge.partial_models import view_partial
from numpyro_fwd.bridge.priors import split_logdensity
from numpyro_fwd.kernels.smc import share_to_keep

# Evidence of a logistic regression

SIZE, ROWS = 10, 100
GRADIENTS = 4_800  # of a run, all particles together; BlackJAX takes about as many
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(ROWS, SIZE)) * np.linspace(0.5, 2.0, SIZE), jnp.float32)
Y = jnp.asarray(rng.uniform(size=ROWS) < 1 / (1 + np.exp(-X @ rng.normal(size=SIZE))), jnp.float32)


def logprior(w):
    return jnp.sum(norm.logpdf(w))


def loglikelihood(w):
    return jnp.sum(Y * (X @ w) - jax.nn.softplus(X @ w))


def ours(num_particles: int, gradients: int, rng_key, **arguments):
    """Anneal with the particles' variances as metric: log evidence, gradients of all particles."""
    smc = langevin_smc(logprior, loglikelihood, **{"inverse_mass_matrix": "particles"} | arguments)
    key_prior, key_run = jax.random.split(rng_key)
    state = smc.init(jax.random.normal(key_prior, (num_particles, SIZE)))
    state, schedule = anneal(key_run, smc, state)
    return state.log_evidence, schedule.num_temperatures * gradients * num_particles


def peer(
    num_particles: int, step_size: float, rng_key, target_ess: float = 0.9, num_moves: int = 2
):
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
    return log_evidence, count * num_moves * num_particles


MALA = Metropolis(blackjax_ext.mala)
AUTO_MALA = Metropolis(blackjax_ext.auto_mala)
WALK = Metropolis(blackjax_ext.random_walk)
HMC3 = Metropolis(blackjax.hmc, num_integration_steps=3)
# name: particles, then gradients per particle and temperature, then arguments of langevin_smc
EVIDENCE: dict[str, tuple[int, float, dict]] = {
    "reversed, Langevin": (
        *(225, 1),
        {"step_size": 0.6, "tempering_ess": 0.9},
    ),
    "reversed, HMC with 2 steps": (
        *(170, 2),
        {"step_size": 0.6, "num_integration_steps": 2},
    ),
    "reversed, HMC with 3 steps": (
        *(115, 3),
        {"step_size": 0.5, "num_integration_steps": 3},
    ),
    "random_walk, Langevin": (
        *(225, 1),
        {"step_size": 0.3, "tempering_ess": 0.9, "l_kernel": "random_walk"},
    ),
    "random_walk, HMC with 4 steps": (
        *(156, 4),
        {
            "step_size": 0.35,
            "num_integration_steps": 4,
            "tempering_ess": 0.5,
            "l_kernel": "random_walk",
        },
    ),
    "gaussian, HMC with 2 steps": (
        *(170, 2),
        {"step_size": 0.6, "num_integration_steps": 2, "l_kernel": "gaussian"},
    ),
    "MALA": (
        *(112, 2),
        {"step_size": 1.0, "num_moves": 2, "tempering_ess": 0.9, "move": MALA},
    ),
    "HMC of BlackJAX with 3 steps": (
        *(115, 3),
        {"step_size": 0.6, "move": HMC3},
    ),
    "random walk, evaluations": (
        *(112, 2),
        {"step_size": 0.7, "num_moves": 2, "tempering_ess": 0.9, "move": WALK},
    ),
}


def evidence(quick: bool) -> Section:
    """Spread of the log evidence over runs with the same number of gradients."""
    num_runs, num_true = (4, 500) if quick else (50, 10_000)
    keys = jax.random.split(jax.random.key(8), num_runs)
    exact = partial(ours, num_true, 1, step_size=1.0, num_moves=10, tempering_ess=0.95, move=MALA)
    truth = float(jax.jit(exact)(jax.random.key(7))[0])
    methods: dict[str, tuple[int, Callable]] = {
        f"ours: {name}": (num, partial(ours, num, gradients, **arguments))
        for name, (num, gradients, arguments) in EVIDENCE.items()
    }
    methods["BlackJAX adaptive tempered, MALA"] = (100, lambda key: peer(100, 0.4, key))
    rows, spread = [], {}
    for name, (num, method) in methods.items():
        values, gradients = map(np.asarray, jax.jit(jax.vmap(method))(keys))
        error = values - truth
        spread[name] = error.std(ddof=1) ** 2
        root = float(np.sqrt(np.mean(error**2)))
        rows.append([name, num, gradients.mean(), error.mean(), error.std(ddof=1), root])
    theirs = spread["BlackJAX adaptive tempered, MALA"]
    shown = (
        *("reversed, HMC with 2 steps", "reversed, HMC with 3 steps"),
        *("random_walk, HMC with 4 steps", "gaussian, HMC with 2 steps"),
    )
    return Section(
        "Variance of the log evidence",
        f"Logistic regression, {SIZE} coefficients with standard normal priors, {ROWS} rows; "
        f"{num_runs} runs; errors against a run with {num_true:,} particles ({truth:.2f}). The "
        f"number of particles is such that every run takes at most about {GRADIENTS:,} gradients, "
        "all particles together. Ours scale their steps by the variances of the particles, which "
        "BlackJAX's tempered SMC does not; its step of 0.4 is the best of 0.2, 0.3, 0.4, 0.5. The "
        "first six move unadjusted and are weighted by the backward kernel that is named; the "
        "others are Metropolis moves. The settings of random_walk with 4 steps have the least RMSE "
        "of 24 that were tried with other seeds; its backward kernel ignores the drift, and that "
        "of gaussian is fitted to few particles with fewer ancestors, which is a bias. A standard "
        "deviation over 50 runs is known to 10 percent.",
        ["move", "particles", "gradients", "mean error", "standard deviation", "RMSE"],
        rows,
        [(f"variance, {name} / BlackJAX", spread[f"ours: {name}"] / theirs, 1.0) for name in shown],
    )


# Evidence of models where it is known


NUMBERS = (200, 1_000, 10_000)
# how each runs, and with how many seeds for each number of particles
FAST = {
    "LangevinSMC": (known.ours, dict.fromkeys(NUMBERS, 20)),
    "BlackJAX tempered": (known.tempered, {200: 20, 1_000: 20, 10_000: 5}),
}
SLOW = {
    "BlackJAX persistent": (known.persistent, {200: 5, 1_000: 5}),
    "BlackJAX nested": (known.nested, {200: 5, 1_000: 5}),
}
COLUMNS = [
    *("model", "particles", "method", "seeds", "bias", "standard deviation", "standard error"),
    *("ancestors", "evaluations / 1,000", "lost"),
]


def models(quick: bool) -> Section:
    """Log evidence from defaults, beside BlackJAX's tempered sampler at as many evaluations."""
    numbers = NUMBERS if REPORT.is_full and not quick else (1_000,)
    rows = evidence_rows(FAST, numbers, quick)
    sizes = {name: make().size for name, make in known.PROBLEMS.items()}
    mine = [row for row in rows if row[2] == "LangevinSMC" and sizes[row[0]] <= 10]
    checks = [(f"{num:,} particles, {name}", *facts) for name, num, _, *facts in mine]
    return Section(
        "Log evidence where it is known",
        "Errors of the log evidence over so many seeds: LangevinSMC from defaults, and "
        "BlackJAX's adaptive tempered sampler with the same number of gradients and values per "
        "particle and temperature and the same share to keep at each, whose MALA has one step for "
        "all dimensions, 1.2 D^(-1/6) times the least posterior sd. The standard error is what "
        "our runs claim, as a root mean square. Unequal modes have sds 0.5 and 1, and masses "
        "36 and 64 percent: a sampler that loses the narrow one is off by -0.45. Runs whose log "
        "evidence is not finite (ours are lost, and warn) are counted and left out of the other "
        "columns. Of biases that are zero one in twenty exceeds two standard errors.",
        COLUMNS,
        rows,
        [(f"bias of LangevinSMC, {what}", abs(bias), 0.2) for what, _, bias, *_ in checks]
        + [
            (f"the same in standard errors, {what}", abs(bias) / (sd / np.sqrt(num)), 2.0)
            for what, num, bias, sd, *_ in checks
        ],
    )


def slow_peers(quick: bool) -> Section:
    """Log evidence from BlackJAX's persistent and nested samplers at as many evaluations."""
    return Section(
        "Log evidence from persistent and nested samplers",
        "The models above. BlackJAX's persistent sampler has the moves of its tempered one, and "
        "its nested slice sampler as many live points as take the values of one run of LangevinSMC "
        "with that number of particles and tempering_ess=0.9 (50 at least, a tenth of them "
        "replaced at once, 2 D slices each). Both are slow, and have few seeds.",
        COLUMNS,
        evidence_rows(SLOW, (200, 1_000), quick),
    )


def evidence_rows(
    methods: dict[str, tuple[Callable, dict[int, int]]], numbers: tuple[int, ...], quick: bool
) -> list[list]:
    """A row for each model, number of particles and method."""
    names, rows = list(known.PROBLEMS), []
    cases = [(name, num) for name in names for num in numbers]
    for name, num in [(names[0], 50)] if quick else cases:
        problem = known.PROBLEMS[name]()
        jax.clear_caches()  # programs of all of them are more than a process may map into memory
        for method, (run, seeds) in methods.items():
            num_seeds = 2 if quick else seeds[num]
            key = ("models", name, num, method, num_seeds)
            found = REPORT.once(key, over_seeds, run, problem, num, num_seeds)
            rows.append([name, num, method, num_seeds, *facts_of(problem, found)])
    return rows


def facts_of(problem: known.Problem, found: dict[str, list]) -> list:
    """Errors of the runs whose evidence is a number, what they claim, and how many are lost."""
    columns = {key: np.array(value, float) for key, value in found.items()}
    is_finite = np.isfinite(columns["value"])
    if is_finite.sum() < 2:
        return [*[""] * 5, int(np.sum(~is_finite))]
    columns = {key: value[is_finite] for key, value in columns.items()}
    error = columns["value"] - problem.truth
    claimed = np.sqrt(np.mean(columns["error"] ** 2))
    facts = [error.mean(), error.std(ddof=1), claimed, columns["ancestors"].mean()]
    facts += [columns["evaluations"].mean() / 1e3]
    return [*map(shown, facts), int(np.sum(~is_finite))]


def over_seeds(
    run: Callable, problem: known.Problem, num: int, num_seeds: int, first: int = 0
) -> dict:
    """Each fact of some runs, as a list."""
    found = [run(problem, num, seed) for seed in range(first, first + num_seeds)]
    return {key: [each[key] for each in found] for key in found[0]}


def shown(value: float) -> Any:
    """A number, or nothing where there is none."""
    return "" if np.isnan(value) else float(value)


# Algorithms of the moves at equal gradients

MOVED = (
    *("unequal modes, D = 10", "eight schools"),
    *("regression, D = 10", "regression, D = 30"),
)
# about as many gradients, and the default
MOVES = {
    "3 of mala": ("mala", 3),
    "2 of auto_mala": ("auto_mala", 2),
    "3 of auto_mala (default)": ("auto_mala", 3),
}


def algorithms(quick: bool) -> Section:
    """Log evidence by moves of MALA and of AutoMALA, whose gradients are counted."""
    num_seeds, num = (2, 50) if quick else (10, 1_000)
    rows, checks = [], []
    for name in MOVED[-1:] if quick else MOVED:
        problem, roots = known.PROBLEMS[name](), {}
        for way, (algorithm, num_moves) in MOVES.items():
            key = ("algorithms", name, num, algorithm, num_moves, num_seeds)
            run = partial(known.moving, algorithm, num_moves)
            found = REPORT.once(key, over_seeds, run, problem, num, num_seeds)
            columns = {key: np.array(value, float) for key, value in found.items()}
            error = columns["value"] - problem.truth
            roots[way] = float(np.sqrt(np.mean(error**2)))
            rows.append([name, way, columns["gradients"].mean() / 1e3])
            rows[-1] += [error.mean(), error.std(ddof=1), roots[way], columns["ancestors"].mean()]
        first, *others = MOVES
        checks += [
            (f"RMSE, {way} / {first}, {name}", roots[way] / roots[first], 1.0) for way in others
        ]
    return Section(
        "Moves of MALA and of AutoMALA at equal gradients",
        f"Errors of the log evidence of LangevinSMC with {num:,} particles over {num_seeds} seeds; "
        "defaults but for algorithm and number of moves per temperature, with jumps; the last way "
        "is the default, with half as many gradients more. Gradients are "
        "those of all particles that moves needed, two for one of MALA; particles in lockstep wait "
        "for the longest. A root mean square over 10 seeds is known to 22 percent.",
        [
            *("model", "moves", "gradients / 1,000", "bias", "standard deviation", "RMSE"),
            "ancestors",
        ],
        rows,
        checks,
    )


# The standard error of one run

RUNS = [(num, step_size) for num in (500, 1_000) for step_size in (0.9, 0.7, 0.5)]


def annealed(num: int, step_size: float, num_runs: int) -> dict[str, list[float]]:
    """Errors of the log evidence of a normal posterior, and what each run claims."""
    smc = langevin_smc(
        lambda x: jnp.sum(norm.logpdf(x)),
        lambda x: jnp.sum(norm.logpdf(2.0, x, 0.3)),
        step_size=step_size,
        inverse_mass_matrix="particles",
        move=MALA,
        tempering_ess=0.7,
    )

    def run(rng_key):
        key_prior, key_run = jax.random.split(rng_key)
        state = smc.init(jax.random.normal(key_prior, (num, 3)))
        state, _ = anneal(key_run, smc, state, max_steps=20)
        return state.log_evidence, jnp.sqrt(state.variance)

    keys = jax.random.split(jax.random.key(12), num_runs)
    value, claimed = (np.asarray(each, float) for each in jax.jit(jax.vmap(run))(keys))
    error = value - 3 * float(norm.logpdf(2.0, 0.0, 1.09**0.5))
    return {"error": error.tolist(), "claimed": claimed.tolist()}


def standard_error(quick: bool) -> Section:
    """Coverage of the standard error of the log evidence."""
    num_runs, rows = 10 if quick else 200, []
    for num, step_size in RUNS[:1] if quick else RUNS:
        found = REPORT.once(
            ("errors", num, step_size, num_runs), annealed, num, step_size, num_runs
        )
        error, claimed = (np.array(found[name]) for name in ("error", "claimed"))
        within = [float(np.mean(np.abs(error) < times * claimed)) for times in (1.0, 2.0)]
        root = float(np.sqrt(np.mean(claimed**2)))
        rows.append([num, step_size, error.mean(), error.std(ddof=1), root, *within])
    return Section(
        "The standard error of one run",
        "Three normals with sd 0.3 at 2 under a standard normal prior, one move of MALA per "
        "temperature in units of the particles' variances, tempering_ess 0.7: short moves, which "
        f"forget little of where a particle came from; {num_runs} runs. Of normal errors 68 and 95 "
        "percent are within one and two.",
        [
            *("particles", "step size", "bias", "standard deviation", "standard error"),
            *("within one", "within two"),
        ],
        rows,
    )


# Modes of unequal width

SHARE = 0.36  # of the narrow mode
FIXED = {"inverse_mass_matrix": "particles", "step_size": 0.8}
# a name, particles, dimensions, moves per temperature, options
WAYS: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("5 moves", 1_000, 10, 5, {}),
    ("20 moves", 1_000, 10, 20, {}),
    ("2 moves, 0.9", 1_000, 10, 2, {"tempering_ess": 0.9}),
    ("1 move, 0.97", 1_000, 10, 1, {"tempering_ess": 0.97}),
    ("1 move", 5_000, 10, 1, {}),
    ("10 moves", 10_000, 10, 10, {}),
    *[
        (name, num, size, num_moves, {"tempering_ess": 0.9, "move": move})
        for size, num in ((2, 200), (5, 200), (5, 1_000), (10, 1_000), (10, 10_000), (15, 1_000))
        for name, num_moves, move in (
            ("4 moves, 0.9", 4, MALA),
            ("3 moves with jumps, 0.9", 3, WithJumps(MALA)),
            ("3 moves of AutoMALA with jumps, 0.9", 3, WithJumps(AUTO_MALA)),
        )
    ],
]


def modes(quick: bool) -> Section:
    """The share of a narrow mode beside a wide one, and the evidence."""
    num_seeds = 2 if quick else 10
    ways = [(name, 60, 2, *rest) for name, _, _, *rest in WAYS[:2]] if quick else WAYS
    rows = []
    for name, num, size, num_moves, options in ways:
        key = ("modes", name, num, size, num_seeds)
        found = REPORT.once(key, of_unequal_modes, num, size, num_moves, options, num_seeds)
        columns = {what: np.array(values, float) for what, values in found.items()}
        gradients = num * num_moves * columns["temperatures"].mean() / 1e3
        facts = [columns["temperatures"].mean(), gradients]
        for values in (columns["share"], columns["log_evidence"]):
            facts += [values.mean(), values.std(ddof=1)]
        rows.append([name, size, num, *facts])
    return Section(
        "Modes of unequal width",
        "Normal modes at -2 and 2 in each of D dimensions with sds 0.5 and 1, prior sd 3: the "
        f"share of the narrow mode is {SHARE}, the log evidence 0, and -0.45 where the narrow mode "
        f"is lost. MALA with a step of {FIXED['step_size']} in units of the particles' variances "
        "(AutoMALA's first guess of it; of the gradients of its moves one each is counted), "
        f"tempering_ess 0.8 or as it says; {num_seeds} seeds. Jumps are proposals from a normal "
        "mixture that is fitted to the particles.",
        [
            *("moves", "D", "particles", "temperatures", "gradients / 1,000"),
            *("share", "its sd over seeds", "log Z", "its sd"),
        ],
        rows,
    )


def modes_from_defaults(quick: bool) -> Section:
    """The same of `LangevinSMC`, which adapts its step size."""
    num_seeds, num = (2, 60) if quick else (10, 1_000)
    rows = []
    for size in (2,) if quick else (5, 10, 20):
        for algorithm, num_moves in (("mala", 3), ("auto_mala", 3)):
            case = (num, size, algorithm, num_moves, num_seeds)
            found = REPORT.once(("modes from defaults", *case), from_defaults, *case)
            columns = {what: np.array(values, float) for what, values in found.items()}
            facts = [columns["temperatures"].mean(), columns["gradients"].mean() / 1e3]
            for values in (columns["share"], columns["log_evidence"]):
                facts += [values.mean(), values.std(ddof=1)]
            rows.append([f"{num_moves} of {algorithm}", size, num, *facts])
    return Section(
        "Modes of unequal width, from defaults",
        "The same modes; LangevinSMC with its defaults, and with moves of MALA, both with jumps. "
        "Its step adapts to the mean acceptance rate, of the first trials for AutoMALA. "
        f"Gradients are counted, those of all particles that moves needed; {num_seeds} seeds.",
        [
            *("moves", "D", "particles", "temperatures", "gradients / 1,000"),
            *("share", "its sd over seeds", "log Z", "its sd"),
        ],
        rows,
    )


# particles, moves and tempering_ess, None for the default
FEW = {
    "default": (200, 3, None),
    "0.9": (200, 3, 0.9),
    "15 moves, 0.9": (200, 15, 0.9),
    "6 moves": (200, 6, None),
    "500 particles": (500, 3, None),
    "500 particles, 0.9": (500, 3, 0.9),
    "1,000 particles": (1_000, 3, None),
}
FIRST_SEED = 100  # other settings were tried with the first hundred
OF_SETTINGS = [
    *("way", "evaluations / 1,000", "bias", "standard deviation", "error of the bias"),
    *("standard error", "ancestors"),
]


def of_settings(
    title: str, text: str, name: str, settings: dict[str, tuple], num_seeds: int
) -> Section:
    """A row for each of the settings (particles, moves and tempering_ess), the first by default."""
    problem, rows = known.PROBLEMS[name](), []
    for way, (num, *options) in settings.items():
        case, run = (name, num, *options, num_seeds, FIRST_SEED), known.tempering(*options)
        found = REPORT.once(
            ("settings", *case), over_seeds, run, problem, num, num_seeds, FIRST_SEED
        )
        columns = {what: np.array(values, float) for what, values in found.items()}
        error = columns["value"] - problem.truth
        claimed = np.sqrt(np.mean(columns["error"] ** 2))
        rows.append([way, columns["evaluations"].mean() / 1e3])
        rows[-1] += [error.mean(), error.std(ddof=1), error.std(ddof=1) / np.sqrt(num_seeds)]
        rows[-1] += [claimed, columns["ancestors"].mean()]
    num, num_moves, share = next(iter(settings.values()))
    text = (
        f"{text}; LangevinSMC over {num_seeds} seeds with {num:,} particles, {num_moves} moves at "
        f"each temperature and {share or share_to_keep(num):.3g} for the share of the conditional "
        "effective sample size that one leaves, but for what the row says. The seeds are none of "
        "those with which settings were tried."
    )
    return Section(title, text, OF_SETTINGS, rows)


def few(quick: bool) -> Section:
    """Few particles and modes of unequal width: what moves, temperatures and particles do."""
    num_seeds, size = (2, 2) if quick else (60, 10)
    section = of_settings(
        "Few particles and modes of unequal width",
        f"Modes of sds 0.5 and 1 in {size} dimensions, log evidence 0, and -0.45 where the narrow "
        "mode is lost",
        f"unequal modes, D = {size}",
        {"default": (50, 3, None)} if quick else FEW,
        num_seeds,
    )
    section.checks = [(f"bias, {row[0]}", abs(row[2]), 0.2) for row in section.rows]
    return section


MANY = {
    "default": (1_000, 3, 0.9),
    "12 moves": (1_000, 12, 0.9),
    "0.98": (1_000, 3, 0.98),
    "12 moves, 0.98": (1_000, 12, 0.98),
    "10,000 particles": (10_000, 3, 0.9),
    "3,000 particles, 12 moves, 0.98": (3_000, 12, 0.98),
}


def many_dimensions(quick: bool) -> Section:
    """Thirty dimensions: what moves, temperatures and particles do."""
    num_seeds, size = (2, 3) if quick else (10, 30)
    return of_settings(
        "Thirty dimensions",
        f"The regression with {size} coefficients",
        f"regression, D = {size}",
        {"default": (50, 3, None)} if quick else MANY,
        num_seeds,
    )


def from_defaults(
    num: int, size: int, algorithm: str, num_moves: int, num_seeds: int
) -> dict[str, list[float]]:
    """Share of the narrow mode, log evidence, temperatures and gradients for each seed."""
    counted = known.Counted(getattr(blackjax_ext, algorithm))
    model = known.mixture(size, 0.5).model
    kernel = LangevinSMC(model, algorithm=counted, num_moves=num_moves)
    names = ("share", "log_evidence", "temperatures", "gradients")
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(num_seeds):
        keys = jax.random.split(jax.random.key(seed), num)
        before = counted.num_gradients
        state = jax.block_until_ready(kernel.init(keys, 0, None, (), {}))
        is_narrow = jnp.mean(state.inner.position["x"], axis=1) < 0
        found["share"].append(float(jnp.sum(jnp.exp(state.inner.log_weights) * is_narrow)))
        found["log_evidence"].append(float(state.inner.log_evidence))
        found["temperatures"].append(float(state.num_temperatures[0]))
        found["gradients"].append(counted.num_gradients - before)
    return found


def of_unequal_modes(
    num: int, size: int, num_moves: int, options: dict[str, Any], num_seeds: int
) -> dict[str, list[float]]:
    """Share of the narrow mode, log evidence and number of temperatures for each seed."""
    prior, likelihood = split_logdensity(known.mixture(size, 0.5).model, (), {})
    smc = langevin_smc(
        prior, likelihood, **{"move": MALA, "num_moves": num_moves, **FIXED, **options}
    )

    @jax.jit
    def run(rng_key):
        key_prior, key_run = jax.random.split(rng_key)
        state = smc.init({"x": 3.0 * jax.random.normal(key_prior, (num, size))})
        state, schedule = anneal(key_run, smc, state)
        is_narrow = jnp.mean(state.position["x"], axis=1) < 0
        share = jnp.sum(jnp.exp(state.log_weights) * is_narrow)
        return share, state.log_evidence, schedule.num_temperatures

    found = [run(key) for key in jax.random.split(jax.random.key(20), num_seeds)]
    names = ("share", "log_evidence", "temperatures")
    return {
        name: [float(value) for value in values]
        for name, values in zip(names, zip(*found, strict=True), strict=True)
    }


# What networks say of new rows


def networks_table(quick: bool) -> list[list]:
    """NLL and calibration of every method, and how far each is from the best."""
    num_seeds, num_particles = (2, 5) if quick else (5, 50)
    rows = []
    for name, source in list(calibrated.DATA.items())[: 1 if quick else None]:
        num_epochs = 1 if quick else source.num_epochs
        settings = Settings(source.batch_size, num_epochs, num_particles)
        tasks = [calibrated.task_of(source, seed) for seed in range(num_seeds)]
        case = calibrated.case_of(source, tasks[0].train.x.shape[1])
        found = {}
        published = calibrated.PUBLISHED if name == "red wine" else {}
        for method, build in (calibrated.METHODS | published).items():
            run = build(case, settings)
            found[method] = np.array(
                [
                    REPORT.once(
                        (name, method, *settings, seed), networks_unit, case, run, task, seed
                    )
                    for seed, task in enumerate(tasks)
                ]
            )
        best = min(found.values(), key=lambda each: each[:, 0].mean())
        for method, each in found.items():
            # seeds change the split, so that differences are taken within a seed
            apart = each[:, 0] - best[:, 0]
            error = apart.std(ddof=1) / np.sqrt(num_seeds)
            rows.append([name, method, *each.mean(0), each[:, 0].std(ddof=1), apart.mean(), error])
    return rows


def networks_unit(case, run: Callable, task, seed: int) -> tuple[float, float]:
    """NLL and calibration error of one training."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the effective sample size fell")  # as published
        return calibrated.scores(case, run(task, seed), task.test.y)


def networks(quick: bool) -> Section:
    """What networks with one Bayesian layer say of new rows, beside SVI, ensembles and SGHMC."""
    rows = networks_table(quick)
    mine = [row for row in rows if row[1] == "GOHSMC"]
    return Section(
        "What networks say of new rows",
        f"Three dense layers (width {calibrated.WIDTH}, GeLU), the first Bayesian with priors "
        "N(0, 1), all methods with Adam at 0.01, the same batches (50 rows; 100 of California "
        "housing) and epochs (40; 4 of California housing), splits 60/30/10, and each keeps what "
        "has the least NLL on the validation rows after an epoch. GOHSMC, VI and SGHMC have 50 "
        "particles, draws or chains; SGHMC takes steps of 0.01; the ensemble has five networks "
        "without priors. GOHSMC as published has exact weights and steps of 0.01. Good wine is "
        "quality 7 or more, 14 percent of the rows. NLL is that of a standardized test "
        "value under the mixture. ECE: of a classification the expected calibration error in 15 "
        "bins; of a regression the mean difference between the nominal "
        f"and the observed share of test values in 19 central intervals. Means over "
        f"{2 if quick else 5} seeds, which also change the split; the last columns are the mean "
        "difference of the NLL from that of the best method, and its standard error.",
        ["data", "method", "NLL", "ECE", "sd of NLL", "behind the best", "standard error"],
        rows,
        [
            (f"GOHSMC behind the best on {name}, in standard errors", apart / max(error, 1e-9), 1.0)
            for name, _, *_, apart, error in mine
        ],
    )


# Regressions

PAPER = {
    ("wine", 20): (0.4094, 0.4388, 0.4213, 0.4478),
    ("wine", 50): (0.4096, 0.4474, 0.4211, 0.4433),
    ("wine", 100): (0.4083, 0.4455, 0.4401, 0.4461),
    ("california", 50): (0.2962, 0.3546, 0.2851, 0.4332),
    ("california", 100): (0.3032, 0.3473, 0.2915, 0.4252),
    ("california", 200): (0.2989, 0.3418, 0.3047, 0.4173),
}
DATA = {"wine": (sources.wine, 20, 11), "california": (sources.california, 50, 8)}
UNITS = {
    "wine": "points of quality squared (the variance of the target is 0.65)",
    "california": "(100,000 dollars) squared (the variance of the target is 1.33)",
}
LEARNING_RATES = {"VI": 0.001}
# what is run by default: batch sizes, epochs, seeds
SIZES = {"wine": ((20, 50, 100), 200, 5), "california": ((50, 100, 200), 10, 5)}
FULL_SIZES = {"wine": ((20, 50, 100), 200, 5), "california": ((50, 100, 200), 200, 5)}
QUICK_SIZES = {"wine": ((100,), 2, 2), "california": ((200,), 1, 2)}


def regression_rows(data: str, quick: bool) -> list[list]:
    """Scores of every method for each batch size."""
    sizes = QUICK_SIZES if quick else FULL_SIZES if REPORT.is_full else SIZES
    batch_sizes, num_epochs, num_seeds = sizes[data]
    read, width, size = DATA[data]
    problem, rows, losses = partial_nets.regression(width, size), [], {}
    for batch_size in batch_sizes:
        for method, paper in zip(METHODS, PAPER[data, batch_size], strict=True):
            rate = LEARNING_RATES.get(method, 0.01)
            num_particles = 10 if quick else 100
            settings = Settings(batch_size, num_epochs, num_particles, learning_rate=rate)
            train, found = METHODS[method](problem, settings), []
            for seed in range(num_seeds):
                key = (method, *settings, seed)
                found.append(REPORT.once(key, regression_unit, problem, train, read, seed))
            scores = [unit["scores"] for unit in found]
            losses[batch_size, method] = np.mean([unit["losses"] for unit in found], axis=0)
            loss, nll, ess, seconds = np.mean(scores, axis=0)
            seconds /= num_epochs
            deviation = np.std(scores, axis=0, ddof=1)[0]
            text = "" if np.isnan(ess) else f"{ess:.1f}"
            rows.append([batch_size, num_epochs, method, loss, deviation, paper, nll, text])
            rows[-1].append(seconds)
    losses_picture(data, losses)
    return rows


def regression_unit(problem, train: Callable, read: Callable, seed: int) -> dict:
    """Scores of one training, effective sample size, seconds; validation losses in raw units."""
    task = partial_nets.split_of(read(), seed)
    trained = train(task, seed)
    scores = partial_nets.regression_scores(problem, task, trained)
    losses = trained.losses * task.scale**2
    return {"scores": [*scores, trained.ess, trained.seconds], "losses": losses}


def losses_picture(data: str, losses: dict[tuple[int, str], np.ndarray]) -> None:
    """Validation loss after each epoch, mean over the seeds, as in figure 1 of the paper."""
    batch_sizes = list(dict.fromkeys(batch_size for batch_size, _ in losses))
    figure, axes = plt.subplots(
        1, len(batch_sizes), figsize=(12, 3.5), layout="constrained", sharey=True, squeeze=False
    )
    for batch_size, axis in zip(batch_sizes, axes[0], strict=True):
        for method in METHODS:
            found = losses[batch_size, method]
            axis.loglog(np.arange(1, len(found) + 1), found, label=method)
        axis.set(title=f"batches of {batch_size}", xlabel="epoch")
    axes[0, 0].set_ylabel("validation loss")
    axes[0, 0].legend(fontsize=7)
    REPORT.picture(figure, f"smc_{data}.png")


def regression_section(data: str, text: str, quick: bool) -> Section:
    num_seeds = (QUICK_SIZES if quick else FULL_SIZES if REPORT.is_full else SIZES)[data][2]
    return Section(
        f"Test loss on {text}",
        f"Three dense layers (width {DATA[data][1]}, GeLU), the first Bayesian with normal "
        "priors N(0, 1), 100 particles, Adam with 0.01 (VI 0.001, as the paper), step 0.01, splits "
        "60/30/10, the weights with the least validation loss after an epoch; mean and standard "
        f"deviation over {num_seeds} seeds, which also change the split. The loss is the squared "
        f"error of the posterior mean in raw units, {UNITS[data]}. Models see standardized data; "
        "NLL is minus the mean log density of a test value in those units under the mixture. The "
        "paper's losses are for 200 epochs"
        + (", which `--full` takes" if data == "california" else "")
        + ". ESS is the mean effective sample size over the steps; seconds are those of a loaded "
        f"machine, with compilation.\n\n![validation losses](smc_{data}.png)",
        ["batch", "epochs", "method", "test loss", "sd", "paper", "NLL", "ESS", "s per epoch"],
        regression_rows(data, quick),
    )


def wine(quick: bool) -> Section:
    """Test loss of four methods on red wine."""
    return regression_section("wine", "red wine", quick)


def california(quick: bool) -> Section:
    """Test loss of four methods on California housing."""
    return regression_section("california", "California housing", quick)


# What a step costs


def seconds_of(programs: dict, repeats: int = 5) -> dict[str, float]:
    """Least time of each program on its state; the first call, which compiles, is one more."""
    calls = {name: partial(run, state) for name, (run, state) in programs.items()}
    return in_turn(calls, 1 + repeats)


def smc_steps(cls: type, problem, task, batch_size: int, num_particles: int, length: int):
    """A program of `length` updates, and its first state."""
    trainer = cls(problem.model, optax.adam(0.01), num_particles=num_particles)
    arguments = (*map(jnp.asarray, task.train), batch_size)
    state = trainer.init(jax.random.key(0), *arguments)

    @jax.jit
    def run(state):
        return jax.lax.scan(
            lambda s, _: (trainer.update(s, *arguments)[0], None), state, length=length
        )[0]

    return run, state


def optax_steps(problem, task, batch_size: int, num_particles: int, length: int, loss: Callable):
    """The same network trained by optax, on batches with each row repeated for every particle."""
    x, y = map(jnp.asarray, task.train)
    optimizer = optax.adam(0.01)
    params = problem.net.init(jax.random.key(0), x[:1])
    state = (params, optimizer.init(params), jax.random.key(1))

    def update(state, _):
        params, opt_state, rng_key = state
        rng_key, key_batch = jax.random.split(rng_key)
        rows = jnp.tile(jax.random.randint(key_batch, (batch_size,), 0, len(y)), num_particles)
        gradient = jax.grad(lambda p: loss(problem.net.apply(p, x[rows]), y[rows]))(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, rng_key), None

    return jax.jit(lambda state: jax.lax.scan(update, state, length=length)[0]), state


def mean_squared(outputs, y):
    return jnp.mean((outputs - y) ** 2)


def mean_cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


PAPER_TIMES = {"dense": 817 / 635, "LeNet": 1977 / 1386}


def steps(quick: bool) -> Section:
    """Time of a step against the same network trained by optax on as many rows."""
    dense = partial_nets.regression(50, 8)
    conv = partial_nets.classification(16)
    house = partial_nets.split_of(sources.california(), 0)
    digits = partial_nets.image_task("mnist", 2_000, 10, 0)
    cases: dict = {"dense, 100 particles": (dense, house, 100, 100, mean_squared)}
    if not quick:
        cases["dense, 1,000 particles"] = (dense, house, 100, 1_000, mean_squared)
        cases["LeNet, 10 particles"] = (conv, digits, 100, 10, mean_cross_entropy)
    rows, checks = [], []
    for name, (problem, task, batch_size, num, loss) in cases.items():
        length = 2 if quick else 10 if num * batch_size <= 10_000 and problem is dense else 2
        programs = {"optax": optax_steps(problem, task, batch_size, num, length, loss)}
        for cls in (GOHSMC, OHSMC):
            programs[cls.__name__] = smc_steps(cls, problem, task, batch_size, num, length)
        seconds = seconds_of(programs, 30 if length == 10 else 4)
        for method, value in seconds.items():
            walk = value / seconds["OHSMC"] if method == "GOHSMC" else ""
            paper = PAPER_TIMES[name.partition(",")[0]] if walk else ""
            ratio = value / seconds["optax"]
            rows.append([name, method, 1e3 * value / length, ratio, walk, paper])
        checks.append((f"GOHSMC / optax, {name}", seconds["GOHSMC"] / seconds["optax"], 2.3))
    return Section(
        "Time of a step",
        "The network for California housing and the LeNet for MNIST, batch size 100; optax trains "
        "the same network with the batch repeated for every particle. Least time of runs in turn. "
        "The paper: seconds of trainings with Langevin moves over those with a random walk, Tables "
        "6 and 7, batches of 100 and 100 particles.",
        ["network", "method", "ms", "over optax", "over OHSMC", "paper"],
        rows,
        checks,
    )


def gradient_steps(problem, task, batch_size: int, num_particles: int, length: int):
    """Weighted gradients in parameters and latents alone, of the same program, and a first state.

    Each draws its batch; what it finds is taken off by next to nothing, so that none is left out.
    """
    arguments = (*map(jnp.asarray, task.train), batch_size)
    view = view_partial(jax.random.key(0), problem.model, arguments, {})
    z = view.draw(view.params, jax.random.key(1), num_particles, arguments, {})

    def energy(params, z, key_batch):
        each = jax.vmap(lambda z: view.potential_fn(params, z, key_batch, arguments, {}))(z)
        return jnp.mean(each)

    def step(state, _):
        rng_key, key_batch = jax.random.split(state[2])
        found = jax.grad(energy, argnums=(0, 1))(*state[:2], key_batch)
        moved = jax.tree.map(lambda leaf, slope: leaf - 1e-8 * slope, state[:2], found)
        return (*moved, rng_key), None

    state = (view.params, z, jax.random.key(2))
    return jax.jit(lambda state: jax.lax.scan(step, state, length=length)[0]), state


def gradients(quick: bool) -> Section:
    """Time of a step against two bare gradients of the same program."""
    cases = {
        "red wine, 100 particles, 50 rows": (20, 11, sources.wine, 50, 100),
        "California, 100 particles, 100 rows": (50, 8, sources.california, 100, 100),
    }
    if quick:
        cases = {"red wine, 10 particles, 20 rows": (20, 11, sources.wine, 20, 10)}
    length, rows, checks = 2 if quick else 20, [], []
    for name, (width, size, read, batch_size, num) in cases.items():
        case = (partial_nets.regression(width, size), partial_nets.split_of(read(), 0), batch_size)
        programs = {
            "one gradient": gradient_steps(*case, num, length),
            "GOHSMC": smc_steps(GOHSMC, *case, num, length),
            "OHSMC": smc_steps(OHSMC, *case, num, length),
        }
        seconds = seconds_of(programs, 2 if quick else 30)
        two = 2 * seconds["one gradient"]
        rows += [
            [name, method, 1e3 * value / length, value / two] for method, value in seconds.items()
        ]
        checks.append((f"GOHSMC / two gradients, {name}", seconds["GOHSMC"] / two, 1.9))
    return Section(
        "A step against two gradients",
        "The networks of the tables above. One gradient is that of the weighted potential energy "
        "in the parameters and the latents, of the same model on a batch of its own, without "
        "moves, weights or an optimizer. Least time of runs in turn, in one process.",
        ["network", "method", "ms", "over two gradients"],
        rows,
        checks,
    )


def particles(quick: bool) -> Section:
    """Time of a step against the number of particles."""
    problem, task = partial_nets.regression(20, 11), partial_nets.split_of(sources.wine(), 0)
    numbers = (10, 30) if quick else (10, 30, 100, 300, 1_000)
    rows = []
    for num in numbers:
        length = 4 if quick else max(4, 1_000 // num)
        program = smc_steps(GOHSMC, problem, task, 50, num, length)
        rows.append([num, 1e3 * seconds_of({"it": program})["it"] / length])
        rows[-1].append((rows[-1][1] / rows[0][1]) / (num / numbers[0]))
    return Section(
        "Time against particles",
        "GOHSMC with the network for red wine, batch size 50. The last column is 1 where time is "
        "proportional to the number of particles, and below it where a step of few particles costs "
        "more than its share.",
        ["particles", "ms", "over proportional"],
        rows,
        [("time of 100 particles over 10 times that of 10", rows[-1 if quick else 2][2], 1.0)],
    )


# --- picture --------------------------------------------------------------------------------------

SHOWN = (
    *("regression, D = 10", "regression, D = 30", "equal modes, D = 10"),
    *("unequal modes, D = 10", "eight schools"),
)


def errors_drawn(sections: dict[str, dict]) -> Figure:
    """Root mean square errors of the log evidence against particles."""
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(12, 3.2), sharey=True)
    rows = [row for row in rows_of(sections, "models") if isinstance(row["bias"], float)]
    for ax, model in zip(axes, SHOWN, strict=True):
        for method, line in (("LangevinSMC", "o-"), ("BlackJAX tempered", "s--")):
            points = [
                (row["particles"], np.hypot(row["bias"], row["standard deviation"]))
                for row in rows
                if (row["model"], row["method"]) == (model, method)
            ]
            ax.loglog(*zip(*points, strict=True), line, label=method)
        ax.set(title=model, xlabel="particles")
    axes[0].set_ylabel("error of the log evidence")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


REPORT = Report(
    "smc",
    "Sequential Monte Carlo: evidence and partially Bayesian networks",
    by_name(
        *(evidence, models, slow_peers, algorithms, standard_error, modes, modes_from_defaults),
        *(few, many_dimensions),
        *(networks, wine, california, steps, gradients, particles),
    ),
    long=("slow_peers", "networks", "wine", "california"),
    pictures={
        "models": Picture("Error of the log evidence against the number of particles", errors_drawn)
    },
)

if __name__ == "__main__":
    REPORT.main()
