"""Models with a reverse mode alone, with a forward mode alone, and with no derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

import blackjax_ext
import numpyro_fwd
from numpyro_fwd import AMAGOLD, FMALA, L2MC, MALA, SMMALA, AutoMALA, LangevinSMC, RandomWalk
from numpyro_fwd.bridge.plates import FullView
from tests import reverse_only
from tests.numpyro_fwd.kernels.test_base import assert_moments, mcmc_of
from tests.numpyro_fwd.test_bad_input import raises, run

ROWS = 200


def regression(function, x, y):
    """Rows whose means are twice a linear predictor, by a `function` that says so in its way."""
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=20) as rows:
        numpyro.sample("y", dist.Normal(function(x[rows] @ beta), 1), obs=y[rows])


def minibatches(x, y):
    regression(reverse_only.double, x, y)


def black_box(x, y):
    regression(reverse_only.simulated, x, y)


whole = FullView(minibatches)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2)) * [1, 10] + [0, 3]
    y = 2 * x @ [1.0, 0.5] + rng.normal(size=ROWS)
    precision = 4 * x.T @ x + np.eye(2) / 100
    mean = np.linalg.solve(precision, 2 * x.T @ y)
    arguments = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    return arguments, mean, np.sqrt(np.diag(np.linalg.inv(precision)))


KERNELS = {
    "MALA": lambda: MALA(whole),
    "AutoMALA": lambda: AutoMALA(whole),
    "HPMALA": lambda: numpyro_fwd.HPMALA(whole),
    "SMMALA": lambda: SMMALA(whole),
    "ALSMMALA": lambda: numpyro_fwd.ALSMMALA(whole),
    "AMSMMALA": lambda: numpyro_fwd.AMSMMALA(whole),
    "RandomWalk": lambda: RandomWalk(whole),
    "L2MC": lambda: L2MC(minibatches),
    "AMAGOLD": lambda: AMAGOLD(minibatches),
    "black box": lambda: RandomWalk(FullView(black_box)),
    "black box, no start": lambda: RandomWalk(FullView(black_box), warm_start=False),
}
FULL = ("ALSMMALA", "AMSMMALA", "HPMALA")
each = [pytest.param(name, marks=[pytest.mark.full] if name in FULL else []) for name in KERNELS]


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("name", each)
def test_posterior_without_forward_mode(name):
    arguments, mean, sd = data()
    num_steps = (1500, 6000) if name.startswith("black box") else (400, 1500)
    mcmc = mcmc_of(KERNELS[name](), *num_steps, num_chains=2)
    mcmc.run(jax.random.key(0), *arguments)
    assert_moments(mcmc.get_samples(group_by_chain=True)["beta"], mean, sd)


def decay(times, y):
    """Several rates of one population, by a solver with a backward rule of its own."""
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    rate = numpyro.sample("rate", dist.LogNormal(0.0, spread).expand([2]).to_event(1))
    start = jnp.ones_like(rate)
    values = odeint(lambda z, t, k: -k * z, start, times, rate, rtol=1e-5, atol=1e-5, mxstep=100)
    numpyro.sample("y", dist.Normal(values, 0.05), obs=y)


@pytest.mark.slow
def test_differential_equation_in_a_hierarchy():
    """The start, and moves that take effects along, on an equation whose solution is known."""
    times = jnp.linspace(0.0, 2.0, 6)
    y = jnp.exp(-times[:, None] * jnp.array([0.8, 1.3])) + 0.02 * jnp.cos(9 * times)[:, None]

    def solved(times, y):
        spread = numpyro.sample("spread", dist.HalfNormal(0.5))
        rate = numpyro.sample("rate", dist.LogNormal(0.0, spread).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.exp(-times[:, None] * rate), 0.05), obs=y)

    draws = []
    for model in (decay, solved):
        mcmc = mcmc_of(AutoMALA(model), 150, 400, num_chains=2)
        mcmc.run(jax.random.key(0), times, y)
        draws.append(np.asarray(mcmc.get_samples()["rate"]))
    error = draws[1].std(0) / 10  # a hundred draws or more that are independent
    np.testing.assert_array_less(np.abs(draws[0].mean(0) - draws[1].mean(0)), 4 * error)
    np.testing.assert_allclose(draws[0].std(0), draws[1].std(0), rtol=0.3)


@pytest.mark.long
def test_black_box_as_potential_energy():
    """Scales far from one are found by the warm-up alone."""
    sd = np.array([0.1, 20.0])

    def potential_fn(z):
        return 0.5 * jnp.sum((reverse_only.simulated(z) / 2 / sd) ** 2)

    mcmc = mcmc_of(
        RandomWalk(potential_fn=potential_fn, warm_start=False), 1500, 4000, num_chains=2
    )
    mcmc.run(jax.random.key(0), init_params=jnp.ones((2, 2)))
    assert_moments(mcmc.get_samples(group_by_chain=True), 0.0, sd)


# --- what cannot work ----------------------------------------------------------------------------


def simple(function):
    """A model of one site and one `function` of it."""

    def model():
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.factor("f", -(function(x) ** 2))

    return model


FORWARD = ("FMALA", "LineFMALA", "PCFMALA", "PCLineFMALA")
REVERSE = ("MALA", "AutoMALA", "SMMALA", "HPMALA")


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("function", [reverse_only.double, reverse_only.once])
def test_forward_mode_names_the_way_out(name, function):
    parts = (
        "model cannot be differentiated in forward mode",
        "MALA",
        "NUTS",
        "diffrax.ForwardMode()",
    )
    with raises(ValueError, *parts):
        run(getattr(numpyro_fwd, name)(simple(function)))


@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("name", [*FORWARD, *REVERSE])
def test_without_derivatives_the_random_walk_is_named(name, warm_start):
    with raises(ValueError, "model cannot be differentiated", "RandomWalk", "LangevinSMC"):
        run(getattr(numpyro_fwd, name)(simple(reverse_only.simulated), warm_start=warm_start))


@pytest.mark.parametrize("name", REVERSE)
def test_reverse_mode_names_the_way_out(name):
    with raises(ValueError, "model cannot be differentiated in reverse mode", "FMALA"):
        run(getattr(numpyro_fwd, name)(simple(reverse_only.looped)))


def test_potential_energy_names_the_way_out():
    for kernel, function in ((MALA, reverse_only.simulated), (FMALA, reverse_only.double)):
        with raises(ValueError, "potential_fn cannot be differentiated in"):
            run(kernel(potential_fn=lambda z, f=function: f(z) ** 2), init_params=jnp.ones(()))


@pytest.mark.long
def test_derivative_of_a_metric():
    with raises(ValueError, "MMALA needs the derivative of its metric", "SMMALA"):
        run(numpyro_fwd.MMALA(whole), *data()[0])


@pytest.mark.long
def test_metric_of_the_user_has_its_own_derivative():
    metric_fn = blackjax_ext.metrics.fisher(lambda z: 1 + z["x"][None] ** 2)
    run(numpyro_fwd.MMALA(simple(reverse_only.double), metric_fn=metric_fn))


@pytest.mark.long
def test_subsampled_test_names_the_way_out():
    with raises(ValueError, 'acceptance="subsampled"', "forward mode", "AMAGOLD(model)"):
        run(AMAGOLD(minibatches, acceptance="subsampled"), *data()[0])


MOVES = {
    "black box": (reverse_only.simulated, {}, "blackjax_ext.random_walk"),
    "loop": (reverse_only.looped, {}, "blackjax_ext.fmala"),
    "forward": (reverse_only.double, {"algorithm": blackjax_ext.fmala}, "blackjax_ext.mala"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MOVES)
def test_moves_of_particles_name_the_way_out(name):
    function, options, way_out = MOVES[name]
    with raises(ValueError, "model has", way_out):
        run(LangevinSMC(simple(function), **options), num_chains=50)
