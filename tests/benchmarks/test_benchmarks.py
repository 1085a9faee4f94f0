"""The benchmarks' models, and what the benchmarks show that does not depend on the machine."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.handlers import seed
from numpyro.infer.util import initialize_model, log_density

pytest.importorskip("diffrax")

pytest.importorskip("sklearn")

from benchmarks import (
    convolutions,
    forward_mode,
    full_networks,
    gpu,
    image_networks,
    multinomial,
    network_regression,
)
from benchmarks.harness import data, models, partial_networks, problems, report, runs, timing


def lynx_hare():
    """Potential energy on the unconstrained space, and a position."""
    info = initialize_model(
        jax.random.key(0),
        models.lynx_hare,
        model_args=data.lynx_hare(),
        validate_grad=False,
    )
    return info.potential_fn, info.param_info.z


def test_lynx_hare_has_no_reverse_mode():
    potential_fn, z = lynx_hare()
    with pytest.raises(ValueError, match="Reverse-mode differentiation"):
        jax.grad(potential_fn)(z)


def test_solver_slope_is_that_of_finite_differences(x64):
    times, z_init = jnp.linspace(0.0, 20.0, 21), jnp.array([34.0, 5.9])
    theta = jnp.array([0.55, 0.028, 0.80, 0.024])

    @jax.jit
    def along(t):
        return models.solve_lotka_volterra(theta * jnp.exp(t), z_init, times, tolerance=1e-9)[0]

    slope = jax.jvp(along, (0.0,), (1.0,))[1]
    np.testing.assert_allclose(slope, (along(1e-4) - along(-1e-4)) / 2e-4, rtol=1e-4, atol=1e-4)
    default = models.solve_lotka_volterra(theta, z_init, times)[0]
    np.testing.assert_allclose(default, along(0.0), atol=5e-3)


@pytest.mark.parametrize("is_double", [False, True])
def test_lynx_hare_is_safe_where_the_solver_fails(is_double):
    with jax.enable_x64(is_double):
        potential_fn, z = lynx_hare()
        x, unravel = ravel_pytree(z)
        far = x + 4.0 * jax.random.normal(jax.random.key(1), (100, x.size))

        def both(x):
            return jax.jvp(lambda y: potential_fn(unravel(y)), (x,), (jnp.ones_like(x),))

        values, slopes = jax.jit(jax.vmap(both))(far)
        assert jnp.isinf(values).any()
        assert not jnp.isnan(values).any()
        assert not jnp.isnan(slopes).any()


def test_network_has_the_papers_size():
    assert ravel_pytree(models.make_network(jax.random.key(0)))[0].size == 40_701
    images = jax.eval_shape(convolutions.parameters, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(images)) == 2_396_330
    assert multinomial.start(jax.random.key(0)).size == 7_850


def assert_met(section):
    missed = [(what, value) for what, value, limit in section.checks if not value <= limit]
    assert section.checks
    assert not missed


def test_operations_of_a_step():
    assert_met(forward_mode.flops(quick=True))


def test_memory_of_a_step():
    assert_met(forward_mode.memory(quick=True))


def test_page_is_made_from_the_file(tmp_path):
    section = report.Section("Title", "Text.", ["a"], [[1234.5], [True]], [("r", 2.0, 1.0)])
    forward_mode.REPORT.save(tmp_path, {"flops": section})
    forward_mode.REPORT.save(tmp_path, {"wall": section})
    text = (tmp_path / "forward_mode.md").read_text()
    assert text.count("## Title") == 2
    assert "| 1,234 |" in text
    assert "**no**" in text
    assert jax.__version__ in text


def test_unknown_section_is_refused(capsys):
    with pytest.raises(SystemExit):
        forward_mode.REPORT.main(["nothing"])
    assert "unknown sections ['nothing']" in capsys.readouterr().err


def test_calibration_error():
    probabilities = np.array([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 10)
    right = np.array([0] * 9 + [1] + [1] * 6 + [0] * 4)
    assert partial_networks.calibration_error(probabilities, right) < 1e-6
    assert abs(partial_networks.calibration_error(probabilities, np.zeros(20, int)) - 0.35) < 1e-6


def test_scores_of_unknown_images():
    scores = image_networks.ood_scores(np.array([0.0, 1.0, 2.0, 5.0]), np.array([3.0, 4.0]), 2.5)
    assert scores == [5 / 6, 0.8, 2 / 3, 1.0, 0.75, 0.75]


def test_convolution_of_patches_is_a_convolution():
    layer, x = partial_networks.PatchConv(4), jax.random.normal(jax.random.key(0), (2, 7, 6, 3))
    params = layer.init(jax.random.key(1), x)
    weights = params["params"]["kernel3x3"]
    found = layer.apply(params, x)
    kernel = weights["kernel"].reshape(3, 3, 3, 4)
    numbers = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=numbers)
    np.testing.assert_allclose(found, expected + weights["bias"], rtol=1e-4, atol=1e-5)


def test_principal_components_keep_the_density():
    """The reference samples the posterior of the weights in other coordinates."""
    key_x, key_weights = jax.random.split(jax.random.key(0))
    x = np.asarray(jax.random.normal(key_x, (30, 6)) * jnp.arange(1.0, 7.0))
    y = np.arange(30, dtype=np.int32) % 10
    back, scales = multinomial.principal_components(x)
    weights = jax.random.normal(key_weights, (6, 10))
    there = multinomial.logdensity(back @ weights, x, y, jnp.ones(6))
    here = multinomial.logdensity(weights, x @ back, y, scales)
    np.testing.assert_allclose(here, there, rtol=1e-4)


def test_scores_of_a_mixture_of_curves():
    y, sd = np.array([0.0, 0.1]), network_regression.SD_NOISE
    curves = np.array([[0.0, 0.1], [0.05, 0.1]])
    nll, error = network_regression.scores(curves, y)
    terms = [np.log(0.5 + 0.5 * np.exp(-0.5 * (0.05 / sd) ** 2)), 0.0]
    assert abs(nll - np.log(sd * (2 * np.pi) ** 0.5) + np.mean(terms)) < 1e-9
    assert abs(error - 0.025**2 / 2) < 1e-12


def test_temperature_divides_the_density():
    network, x = models.make_network(jax.random.key(0), depth=1, width=3), jnp.ones((4, 1))
    cold, warm = (network_regression.logdensity(network, x, 2 * x, t) for t in (1.0, 400.0))
    np.testing.assert_allclose(warm, cold / 400, rtol=1e-6)


def small_task(num_rows=30):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 3))
    return partial_networks.split_of((x, x[:, 0] + 0.1 * rng.normal(size=num_rows)), 0)


def test_density_of_a_network_whose_weights_are_all_sampled():
    """What NumPyro makes of the priors that the page states."""
    problem = full_networks.problem_of(4, small_task())
    position, (x, y, *_) = problem.start(jax.random.key(1)), problem.data

    def prior(name, leaf, value):
        is_scaled = leaf == "kernel" and name != partial_networks.FIRST
        scale = len(value) ** -0.5 if is_scaled else 1.0
        return dist.Normal(0, scale).log_prob(value * scale).sum() + value.size * np.log(scale)

    terms = [
        prior(name, leaf, value)
        for name, leaves in position.weights.items()
        for leaf, value in leaves.items()
    ]
    kept = problem.collect(position, *problem.data)
    assert len(kept.test) == 3
    outputs = full_networks.outputs(partial_networks.Dense3(4), position, x)
    expected = sum(terms) + dist.Normal(0, 1).log_prob(position.log_noise)
    expected += dist.Normal(outputs, kept.noise).log_prob(y).sum()
    np.testing.assert_allclose(problem.logdensity(position, *problem.data), expected, rtol=1e-5)


def test_weights_that_are_scaled():
    problem = full_networks.problem_of(4, small_task())
    weights = problem.start(jax.random.key(1)).weights
    found = full_networks.scaled(weights)
    for name, leaves in found.items():
        by = 1.0 if name == partial_networks.FIRST else 2.0  # the square root of four inputs
        np.testing.assert_allclose(by * leaves["kernel"], weights[name]["kernel"], rtol=1e-6)
        np.testing.assert_array_equal(leaves["bias"], weights[name]["bias"])


def test_scores_of_samplers_are_those_of_partial_networks(monkeypatch):
    """Both tables score alike: the same draws go through both."""
    task, rng = small_task(), np.random.default_rng(1)
    outputs, noise = rng.normal(size=(5, 3)), np.full(5, 0.6)
    found = full_networks.scores(full_networks.Outputs(outputs, outputs, noise), task)
    monkeypatch.setattr(partial_networks, "outputs_of", lambda *arguments: outputs)
    weights = partial_networks.uniform(5)
    trained = partial_networks.Trained({"scale": 0.6}, {}, weights, 0.0, 0.0, np.zeros(1))
    expected = partial_networks.regression_scores(None, task, trained)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_worst_errors():
    truth = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    found = np.array([0.1, 0.6]), np.array([1.1, 2.6])
    np.testing.assert_allclose(runs.worst_errors(found, truth), (0.2, 0.3))


def test_chains_of_a_problem_batched_and_not():
    problem = problems.Problem(
        lambda x, scale: -0.5 * (x / scale) ** 2,
        lambda x, scale: x,
        jax.random.normal,
        (jnp.float32(2.0),),
    )
    found = [
        problems.run_problem(
            problem._replace(is_batched=is_batched),
            *("fmala", np.array([0.5, 1.5]), jax.random.key(0), 20, 3),
        )
        for is_batched in (True, False)
    ]
    for batched, alone in zip(*(f[:3] for f in found), strict=True):
        np.testing.assert_allclose(batched, alone, rtol=1e-5, atol=1e-6)
    kept, logdensity, rates, _ = found[0]
    assert kept.shape == (2, 10)
    assert rates[0] > rates[1] > 0
    np.testing.assert_allclose(logdensity, -0.5 * (kept / 2) ** 2, rtol=1e-5, atol=1e-6)


def test_seconds_are_the_least_of_several(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(timing.timed, "__kwdefaults__", {"clock": lambda: next(clock)})
    assert timing.least_seconds(lambda: None, repeats=3) == 2.0


def test_calls_take_turns():
    calls = []
    found = timing.in_turn({name: lambda name=name: calls.append(name) for name in "ab"}, 3)
    assert calls == list("ab" * 3)
    assert set(found) == {"a", "b"} and min(found.values()) >= 0


def test_minibatch_logistic_has_the_density_of_its_terms():
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(8, 3))), jnp.asarray(rng.random(8) < 0.5, float)
    slope = jnp.array([0.5, -1.0, 2.0])
    arguments = (x, y, 8)
    found, _ = log_density(seed(models.minibatch_logistic, 0), arguments, {}, {"slope": slope})
    terms = jax.vmap(lambda *row: models.logistic_term(slope, row))(x, y)
    expected = dist.Normal(0, 1).log_prob(slope).sum() + terms.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_best_step_size_is_finite():
    losses = [[3.0, 3.0], [1.0, 2.0], [0.0, np.nan]]
    assert runs.best_step_size(np.array([0.1, 0.2, 0.3]), losses) == 0.2


# --- what an accelerator is checked with ----------------------------------------------------------


def test_checks_of_an_accelerator_pass_on_the_cpu(capsys):
    section = gpu.checks(quick=True)
    assert_met(section)
    quantities = {row[1] for row in section.rows}
    assert {"log density", "JVP", "gradient", "energy", "log weights"} <= quantities
    assert any("ratio" in quantity for quantity in quantities)
    assert "no accelerator" in capsys.readouterr().out


def as_tf32(tree):
    """Ten bits of the mantissa, as in the matrix products of an accelerator by default."""

    def cut(leaf):
        leaf = np.asarray(leaf)
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        return (leaf.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    return jax.tree.map(cut, tree)


@pytest.mark.parametrize("cases", [gpu.langevin_cases, gpu.amagold_cases, gpu.smc_cases])
def test_checks_of_an_accelerator_see_coarse_arithmetic(cases):
    for case in cases(quick=True):
        truth, explained = gpu.reference(case)
        inputs = as_tf32((case.data, case.data, case.position))
        found = gpu.run_on(gpu.cpu(), None, case.facts, inputs)
        ratios = {
            name: gpu.distance(found[name], value) / explained[name]
            for name, value in truth.items()
        }
        assert max(ratios.values()) > 10 * gpu.LIMIT


def test_parts_for_an_accelerator_run_on_the_cpu():
    """Laws and speed in small, with what they say of kernels, and no section without a share."""
    rows = gpu.laws(quick=True).rows
    assert all(0.3 < acceptance < 0.8 and p > 1e-5 for _, acceptance, _, p, _ in rows)
    speed = gpu.speed(quick=True).rows
    assert {(row[0], row[1]) for row in speed} == {
        (name, num) for name in ("NUTS (BlackJAX)", "MALA") for num in (4, 8)
    }
    assert all(np.isfinite(row[2:4]).all() for row in speed)
    assert set(gpu.SHARES) == set(gpu.REPORT.sections) - {*gpu.REPORT.long}


def test_a_kernel_that_fails_is_a_row_of_its_own(monkeypatch):
    law = gpu.device_laws.Law("broken", lambda: 1 / 0)
    monkeypatch.setattr(gpu.device_laws, "chosen_laws", lambda *_, **__: [law])
    ((name, what, *rest),) = gpu.laws(quick=True).rows
    assert (name, rest) == ("broken", ["", "", ""])
    assert what.startswith("ZeroDivisionError")


def test_nothing_is_measured_without_an_accelerator(monkeypatch):
    monkeypatch.setattr(gpu, "accelerator", lambda: None)
    with pytest.raises(SystemExit, match="JAX finds no accelerator"):
        gpu.times(quick=False)


def test_times_of_a_case():
    case = next(gpu.amagold_times(2_000))
    seconds, memory, says = gpu.time_on(gpu.cpu(), case, repeats=1)
    assert seconds > 0
    assert says == "XLA"
    assert memory > 2_000 * gpu.SIZE * 4 / 2**20  # the covariates at least
