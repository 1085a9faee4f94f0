"""Densities that factor matrices: the same numbers, and no batch that could lock a CPU up."""

from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext import equations, factoring, metrics
from blackjax_ext.adaptation.algorithm import Algorithm
from blackjax_ext.adaptation.run import bind, find_start
from blackjax_ext.equations import equations_in
from blackjax_ext.mcmc import tangents
from blackjax_ext.primitives import FACTORIZATIONS
from blackjax_ext.smc.moves import Metropolis, Unadjusted
from blackjax_ext.smc.tempered import tempered

NUM_PLACES = 40  # of a process: no other matrix of a step is as large
pytestmark = pytest.mark.usefixtures("x64")
FEW_PLACES = 8  # so few that nothing locks up


def processes(noise, x, num_places=FEW_PLACES):
    """Two processes: independent factors are what locks up."""
    t = jnp.linspace(0.0, 5.0, num_places)
    counts = np.arange(num_places) % 3  # whole numbers among what a program closes over
    square = (t[:, None] - t) ** 2
    total = -0.5 * jnp.sum(x["scale"] ** 2) - 0.5 * jnp.sum(x["effects"] ** 2)
    for scale, sign in zip(x["scale"], (1.0, -1.0), strict=True):
        covariance = jnp.exp(scale - 0.1 * square * jnp.exp(scale)) + noise * jnp.eye(num_places)
        root = jnp.linalg.cholesky(covariance)
        f = jax.scipy.linalg.solve_triangular(root, counts + sign * x["effects"][0], lower=True)
        total += -0.5 * jnp.sum(f**2) - jnp.sum(jnp.log(jnp.diagonal(root)))
    return total


density = partial(processes, 0.1)
large_density = partial(processes, 0.1, num_places=NUM_PLACES)
SIZE = 5


def unravel(x):
    """A position of a flat one."""
    return {"scale": x[:2], "effects": x[2:]}


def flat(logdensity_fn):
    return lambda x: logdensity_fn(unravel(x))


def points(*shape):
    return 0.3 * jax.random.normal(jax.random.key(0), (*shape, SIZE))


def line(function, x):
    """Second derivative along a line."""
    way = jnp.arange(1.0, 1.0 + x.size)
    first = lambda y: jax.jvp(function, (y,), (way,))[1]  # noqa: E731
    return jax.jvp(first, (x,), (way,))[1]


REVERSE = {
    "value": lambda f: f,
    "gradient": jax.value_and_grad,
    "Hessian": jax.hessian,
    "Hessian by reverse mode": lambda f: jax.jacrev(jax.jacfwd(f)),
    "third derivatives": lambda f: jax.grad(partial(line, f)),
    "forward mode": jax.jacfwd,
}
FORWARD = {
    "value": lambda f: f,
    "forward mode": jax.jacfwd,
    "second derivative": lambda f: partial(line, f),
}
CASES = [pytest.param("reverse", of, id=f"reverse-{name}") for name, of in REVERSE.items()]
CASES += [pytest.param("forward", of, id=f"forward-{name}") for name, of in FORWARD.items()]


def in_small_parts(monkeypatch, num_matrices):
    """Parts of one matrix, or of two."""
    monkeypatch.setattr(factoring, "MOST_AT_ONCE", (num_matrices + 0.5) * FEW_PLACES**3)


def close(found, truth):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-8), found, truth)


@pytest.mark.first
@pytest.mark.parametrize(("mode", "derivative"), CASES)
@pytest.mark.parametrize(("num_matrices", "shape"), [(2, (5,)), (1, (3, 2))])
def test_derivatives_are_those_of_the_density(monkeypatch, mode, derivative, num_matrices, shape):
    """Of chains, and of points of chains."""
    in_small_parts(monkeypatch, num_matrices)
    function, truth = flat(factoring.density_in_parts(density, mode)), flat(density)
    of = derivative(function)
    for _ in shape:
        of = jax.vmap(of)
    x = points(*shape)
    close(jax.jit(of)(x), one_by_one(derivative(truth), x, len(shape)))


def one_by_one(function, x, depth):
    """Nested loops, which lock nothing up."""
    for _ in range(depth):
        function = partial(jax.lax.map, function)
    return jax.jit(function)(x)


@pytest.mark.first
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_what_a_density_closes_over_may_be_a_batch_and_has_derivatives(monkeypatch, mode):
    """Temperatures and hyperparameters of chains, a loop around them, and slopes along them."""
    in_small_parts(monkeypatch, 2)

    def along(noise, x):
        function = factoring.density_in_parts(partial(processes, noise), mode)
        return jax.jvp(flat(function), (x,), (jnp.ones_like(x),))

    def plain(noise, x):
        return jax.jvp(flat(partial(processes, noise)), (x,), (jnp.ones_like(x),))

    noises, x = jnp.array([0.1, 0.2, 0.5]), points(3)
    truth = jax.lax.map(lambda pair: plain(*pair), (noises, x))
    close(jax.jit(jax.vmap(along))(noises, x), truth)
    close(
        jax.jit(lambda: jax.lax.map(lambda n: jax.vmap(partial(along, n))(x), noises))(),
        jax.lax.map(lambda n: jax.lax.map(partial(plain, n), x), noises),
    )
    slope = lambda of, noise: jax.jvp(lambda n: of(n, points())[0], (noise,), (1.0,))[1]  # noqa: E731
    close(slope(along, 0.2), slope(plain, 0.2))


def batches(program):
    """Matrices of a density that a program factors or solves at once."""
    for equation in equations_in(program):
        shape = getattr(equation.invars[0].aval, "shape", ()) if equation.invars else ()
        if equation.primitive.name in FACTORIZATIONS and shape[-1:] == (NUM_PLACES,):
            yield int(np.prod(shape[:-2]))


def most(function, *arguments):
    found = list(batches(jax.make_jaxpr(function)(*arguments).jaxpr))
    assert found
    return max(found)


MOST = 2e5 / NUM_PLACES**3  # beyond which jaxlib shares a batch of solves out
KERNELS = {
    "mala": (blackjax_ext.mala, {}, "reverse"),
    "nuts": (blackjax.nuts, {}, "reverse"),
    "nuts, forward": (blackjax.nuts, {}, "forward"),
    "fmala": (blackjax_ext.fmala, {"num_tangents": 4}, "forward"),
    "pc_line_fmala": (blackjax_ext.pc_line_fmala, {"num_tangents": 4}, "forward"),
    "hp_mala": (blackjax_ext.hp_mala, {}, "reverse"),
    "mmala": (blackjax_ext.mmala, {"metric_fn": metrics.softabs_hessian(1.0)}, "reverse"),
    "random_walk": (blackjax_ext.random_walk, {}, "none"),
}


@pytest.mark.first
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("num_chains", [1, 7, 64])
def test_a_step_factors_few_matrices_at_once(name, num_chains):
    """jaxlib shares larger batches out on threads that wait for them."""
    api, parameters, mode = KERNELS[name]
    algorithm = Algorithm(api, parameters)
    bound = bind(algorithm, large_density, mode)
    metric = metrics.factorize(jnp.ones(SIZE), SIZE)
    keys = jax.random.split(jax.random.key(0), num_chains)
    x = jax.vmap(unravel)(points(num_chains))

    def run(keys, x):
        states = jax.vmap(lambda x, key: bound.init(x, key, metric))(x, keys)
        return jax.vmap(lambda key, state: bound.step(key, state, 0.1, metric))(keys, states)

    assert most(run, keys, x) <= MOST


@pytest.mark.long
@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("num_normals", [0, 70, 600])
def test_a_start_factors_few_matrices_at_once(mode, num_normals):
    """By Newton's path, by that of pairs of draws, and by L-BFGS."""

    def longer(x):
        return flat(large_density)(x[:SIZE]) - 0.5 * jnp.sum(x[SIZE:] ** 2)

    x = jnp.zeros((4, SIZE + num_normals))
    assert most(lambda x: find_start(jax.random.key(0), longer, x, mode).x, x) <= MOST


@pytest.mark.long
@pytest.mark.parametrize("num_chains", [1, 2, 9])
@pytest.mark.parametrize("size", [24, 30, 64, 65, 600])
def test_a_start_takes_few_eigenvalues_at_once(size, num_chains):
    """Of the metrics of its paths: devices of one host share the threads that would wait."""
    normal = lambda x: -0.5 * jnp.sum(x**2 * jnp.arange(1.0, 1.0 + size))  # noqa: E731

    def run(x):
        return find_start(jax.random.key(0), normal, x, "reverse").x

    program = jax.make_jaxpr(run)(jnp.zeros((num_chains, size))).jaxpr
    assert equations.is_factoring(program)
    assert equations.batch_of_factorizations(program) <= 2e5


def test_operations_are_those_that_jaxlib_counts():
    """None of one matrix, three times as many of complex ones."""
    count = lambda f, *x: equations.batch_of_factorizations(jax.make_jaxpr(f)(*x).jaxpr)  # noqa: E731
    matrices, one = jnp.ones((3, 7, 7)), jnp.ones((7, 7))
    solve = partial(jax.lax.linalg.triangular_solve, left_side=True)
    assert count(jnp.linalg.eigh, one) == 0
    assert count(jnp.linalg.eigh, matrices) == 3 * 5 * 7**3
    assert count(solve, matrices, matrices) == 3 * 7**3
    assert count(solve, matrices.astype(complex), matrices.astype(complex)) == 9 * 7**3
    assert count(lambda x: jnp.linalg.svd(x, compute_uv=False), matrices) >= 3 * 10 * 7**3


MOVES = {
    "Langevin": Unadjusted(),
    "Langevin, forward": Unadjusted(differentiation="forward"),
    "random walk": Unadjusted("random_walk"),
    "mala": Metropolis(blackjax_ext.mala),
    "hmc": Metropolis(blackjax.hmc, num_integration_steps=2),
    "fmala": Metropolis(blackjax_ext.fmala, num_tangents=2),
    "hp_mala": Metropolis(blackjax_ext.hp_mala),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MOVES)
def test_particles_factor_few_matrices_at_once(name):
    """Prior and likelihood apart, and both at a temperature."""
    move, num_particles = MOVES[name], 50

    def run(key, x, temperature):
        target = tempered(large_density, large_density, temperature, unravel, move.differentiation)
        metric = metrics.factorize(jnp.ones(SIZE), SIZE)
        zeros = jnp.zeros(num_particles)
        return move(key, x, target.evaluate(x), target, 0.1, metric, zeros)

    assert most(run, jax.random.key(0), points(num_particles), 0.5) <= MOST


@pytest.mark.first
@pytest.mark.parametrize("name", ["Hessian", "slopes", "curvatures"])
def test_directions_go_in_parts(name):
    """Where a BlackJAX user calls the pieces, without a kernel of ours around them."""
    frame = jnp.eye(SIZE)
    pieces = {
        "Hessian": lambda x: metrics.clipped_hessian()(flat(large_density), x).inverse(),
        "slopes": lambda x: tangents.slopes(flat(large_density), x, frame),
        "curvatures": lambda x: tangents.curvatures(flat(large_density), x, frame),
    }
    assert most(pieces[name], points()) <= MOST
    assert most(jax.vmap(pieces[name]), points(9)) <= MOST


def test_small_matrices_go_together():
    """A loop over chains costs more than 1,000 small factors."""

    def small(x):
        return jnp.sum(jnp.linalg.cholesky(jnp.outer(x, x) + 10 * jnp.eye(x.size)) ** 2)

    function = jax.vmap(jax.grad(factoring.density_in_parts(small, "reverse")))
    program = str(jax.make_jaxpr(function)(jnp.zeros((1_000, 5))))
    assert "scan" not in program
    assert "f64[1000,5,5]" in program


def test_a_matrix_that_all_chains_have_in_common_is_no_batch():
    """A normal prior with a given covariance: its solves are one product for all."""
    root = jnp.linalg.cholesky(jnp.eye(NUM_PLACES) + 0.5)

    def normal(x):
        return -0.5 * jnp.sum(jax.scipy.linalg.solve_triangular(root, x, lower=True) ** 2)

    function = factoring.density_in_parts(normal, "reverse")
    x = jnp.zeros((64, NUM_PLACES))
    assert "scan" not in str(jax.make_jaxpr(jax.vmap(jax.grad(function)))(x))
    hessian = jax.vmap(lambda x: metrics.clipped_hessian()(normal, x).inverse())
    assert "scan" not in str(jax.make_jaxpr(hessian)(x))


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("of_density", ["float32", "float64"])
@pytest.mark.parametrize("of_position", ["float32", "float64"])
def test_a_density_may_be_of_another_type_than_its_position(mode, of_density, of_position):
    def mixed(x):
        matrix = (jnp.outer(x, x) + 10 * jnp.eye(x.size)).astype(of_density)
        return -jnp.sum(jnp.linalg.cholesky(matrix) ** 2)

    x = jnp.arange(3.0).astype(of_position)
    function = factoring.density_in_parts(mixed, mode)
    found = jax.jvp(function, (x,), (x,))
    assert [leaf.dtype for leaf in found] == [of_density] * 2
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, jax.jvp(mixed, (x,), (x,)))
    if mode == "reverse":
        np.testing.assert_allclose(jax.grad(function)(x), jax.grad(mixed)(x), rtol=1e-5)


def test_a_density_that_factors_nothing_is_left_as_it_is():
    function = factoring.density_in_parts(lambda x: -jnp.sum(jnp.cosh(x)), "reverse")
    plain = jax.make_jaxpr(jax.vmap(jax.grad(lambda x: -jnp.sum(jnp.cosh(x)))))(points(3))
    assert str(jax.make_jaxpr(jax.vmap(jax.grad(function)))(points(3))) == str(plain)


def test_a_batch_that_is_too_large_is_found(monkeypatch):
    """Planted: the density as it is."""
    monkeypatch.setattr(factoring, "evaluated_in_parts", lambda function: function)
    with pytest.raises(AssertionError):
        test_a_step_factors_few_matrices_at_once("mala", 64)
