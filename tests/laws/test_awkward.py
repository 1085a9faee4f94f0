"""Every kernel that takes data on every awkwardness of data: right to a reference, or by name."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext import families, potentials
from tests.laws import awkward
from tests.laws.awkward import KERNELS, PROBLEMS

ANCHORED = {"amagold", "amagold_subsampled", "sghmc"}
FEW = {name for name in KERNELS if "subsampled" in name}
BATCHES = ANCHORED | {"amagold_plain"}
# what a group of kernels says of a problem that it refuses
REFUSED = [
    (ANCHORED, {"mean_of_10000_sds"}, "the condition number of the posterior"),
    (BATCHES, {"one_row", "batches_of_all_rows"}, "no plate with a subsample_size below its size"),
    (FEW, {"weights_nested", "nan_response_behind_a_mask"}, "MaskedDistribution.* leave them out"),
    (FEW, {"two_plates"}, "needs one subsample plate"),
    (FEW, {"half_normals"}, r"no linear predictor in the latent sites \['x'\]"),
    (set(KERNELS), {"nan_covariate_behind_a_mask"}, "invalid loc parameter"),
]
# each problem meets a kernel, and each kernel a problem or two; at the full size all meet
STRIDE = len(KERNELS)
# cells where something was wrong once
ONCE_WRONG = {
    ("amagold_subsampled", "mean_of_1000_sds"),
    ("amagold", "mean_of_1000_sds"),
    ("amagold_subsampled", "weights_of_events"),
    ("gohsmc", "weights_of_events"),
    ("amagold_subsampled", "rows_without_trials"),
    ("amagold_subsampled", "rare_events"),
}
CELLS = [
    pytest.param(
        kernel,
        problem,
        id=f"{kernel}-{problem}",
        marks=() if (i + j) % STRIDE == 0 or (kernel, problem) in ONCE_WRONG else pytest.mark.full,
    )
    for i, problem in enumerate(PROBLEMS)
    for j, kernel in enumerate(KERNELS)
]
# problems that are hard to begin with, not only to see
HARD = [
    "mean_of_1000_sds",
    "scales_side_by_side",
    "one_row",
    "half_normals",
    "narrow",
]
ALWAYS_DRAWN = {
    ("amagold_subsampled", "mean_of_1000_sds"),
    ("langevin_smc", "mean_of_1000_sds"),
}
DRAWN = [
    pytest.param(
        kernel,
        problem,
        id=f"{kernel}-{problem}",
        marks=() if (kernel, problem) in ALWAYS_DRAWN else pytest.mark.full,
    )
    for problem in HARD
    for kernel, made in KERNELS.items()
    if made.is_exact and "ohsmc" not in kernel
]


# cells that warn: gradients of five rows without a control variate
WARNED = {("l2mc", "mean_of_1000_sds")}
WARNED |= {("amagold_plain", problem) for problem in ("mean_of_1000_sds", "scales_side_by_side")}
STILL = r"have collapsed|is frozen|has stuck|chains disagree"
# cells whose draws are few in the tail, and need a longer run
LONG = {
    ("pc_fmala", "half_normals"): awkward.Run(600, 600),
    ("alsmmala", "half_normals"): awkward.Run(600, 600),
}


def refusal(kernel, problem):
    """What the kernel says of a problem that it refuses; None for one that it samples."""
    found = [why for names, problems, why in REFUSED if kernel in names and problem in problems]
    return found[0] if found else None


def holds(law, kernel, problem):
    """The cell is right, or raises by name."""
    if why := refusal(kernel, problem):
        with pytest.raises(ValueError, match=why):
            law(kernel, problem)
    else:
        law(kernel, problem)


# of so few particles, which are enough to see with
@pytest.mark.first
@pytest.mark.filterwarnings("ignore:.* particles descend from one draw of the prior")
@pytest.mark.parametrize(("kernel", "problem"), CELLS)
def test_a_kernel_sees_the_posterior(kernel, problem):
    holds(awkward.sees, kernel, problem)


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "problem"), DRAWN)
def test_a_kernel_draws_from_the_posterior(kernel, problem):
    with contextlib.ExitStack() as says:
        if (kernel, problem) in WARNED:
            says.enter_context(pytest.raises(AssertionError, match="effective draws"))
            says.enter_context(pytest.warns(UserWarning, match=STILL))
        run = LONG.get((kernel, problem), awkward.RUN)
        holds(partial(awkward.draws, run=run), kernel, problem)


def test_each_kernel_and_each_problem_occur():
    default = [cell.values for cell in CELLS if not cell.marks]
    assert {kernel for kernel, _ in default} == set(KERNELS)
    assert {problem for _, problem in default} == set(PROBLEMS)


@pytest.mark.parametrize("name", PROBLEMS)
def test_references_agree(name):
    """Gradients and Hessians in double precision are derivatives of the energies."""
    problem, (mode, root) = awkward.problem_of(name), awkward.laplace(name)
    step = 1e-4
    for column in root.T:
        ends = [mode + sign * step * column for sign in (-1, 1)]
        (low, high), slopes = problem.energy(np.stack(ends))
        middle, slope = problem.energy(mode[None])
        assert abs((high - low) / (2 * step) - slope[0] @ column) < 1e-3
        assert abs(slopes[1] @ column - slopes[0] @ column - 2 * step) < 1e-3 * step
        assert abs(column @ problem.hessian(mode) @ column - 1) < 1e-6
        assert middle[0] < min(low, high) + 1e-9


# of so few particles, which are enough to see with
@pytest.mark.filterwarnings("ignore:.* particles descend from one draw of the prior")
@pytest.mark.parametrize("kernel", ["mala", "langevin_smc"])
def test_rows_of_an_array_of_numpy_are_named(kernel):
    problem = awkward.problem_of("centred")
    sampler = KERNELS[kernel].make(problem.model(None))
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(
        TypeError, match=r"model gives NumPy what is traced by JAX: .* jnp.asarray\(x\)"
    ):
        state = sampler.init(keys, kernel == "langevin_smc", None, problem.args, {})
        jax.eval_shape(lambda state: sampler.sample(state, problem.args, {}), state)


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_covariates_far_from_centred_raise(mean):
    x = np.column_stack([np.ones(400), mean + awkward.NORMAL]).astype(np.float32)
    y = awkward.responses_by(0.5 * awkward.NORMAL)
    rows = potentials.linear_predictor(
        lambda theta: -0.5 * jnp.sum(jnp.square(theta / jnp.array([1e5, 5.0]))),
        families.bernoulli(),
        (x, y),
    )
    with pytest.raises(ValueError, match=r"the condition number of the posterior .* float32"):
        potentials.expand(rows, jnp.zeros(2))


def test_numbers_beyond_the_floats_are_named():
    scale = 1e-25
    x = awkward.NORMAL[:50, None].astype(np.float32)
    rows = potentials.linear_predictor(
        lambda theta: -0.5 * jnp.sum(theta**2), families.logistic(scale), (x, scale * x[:, 0])
    )
    with pytest.raises(ValueError, match=r"not finite in float32 .* other units"):
        potentials.expand(rows, jnp.zeros(1))
