"""A start costs no more than it says, whatever a density costs and however many dimensions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import blackjax_ext
import numpyro_fwd
from blackjax_ext import equations
from blackjax_ext.adaptation import budget, newton_path, start

NUM_CHAINS = 2


class Counted:
    """A normal outside of JAX whose values and gradients are counted.

    Sds go from 0.1 to 10, and what counts in `Budget.gradients` is a gradient: a third of
    one for a value.
    """

    def __init__(self, size):
        self.sds = np.geomspace(0.1, 10.0, size).astype(np.float32)
        self.num_values = self.num_gradients = 0

    def value(self, x):
        self.num_values += x.size // self.sds.size
        return (-0.5 * np.sum((x / self.sds) ** 2, axis=-1)).astype(np.float32)

    def gradient(self, x):
        self.num_gradients += x.size // self.sds.size
        return -(x / self.sds**2).astype(np.float32)

    @property
    def cost(self):
        return self.num_gradients + self.num_values / 3

    def density(self):
        """The log density, with a reverse mode alone."""
        call = partial(jax.pure_callback, vmap_method="broadcast_all")

        @jax.custom_vjp
        def logdensity_fn(x):
            return call(self.value, jax.ShapeDtypeStruct((), x.dtype), x)

        def forward(x):
            return logdensity_fn(x), x

        def backward(x, slope):
            return (slope * call(self.gradient, jax.ShapeDtypeStruct(x.shape, x.dtype), x),)

        logdensity_fn.defvjp(forward, backward)
        return logdensity_fn


def searched(size, num_chains=NUM_CHAINS):
    """What was counted in a search, and what it found."""
    counted = Counted(size)
    x = jax.random.uniform(jax.random.key(0), (num_chains, size), jnp.float32, -2, 2)
    key = jax.random.key(1)
    find = jax.jit(lambda x: start.find_start(key, counted.density(), x, "gradients"))
    found = jax.block_until_ready(find(x))
    return counted, found


def change_budget(monkeypatch, **limits):
    """Plant other limits."""
    monkeypatch.setattr(budget, "BUDGET", budget.BUDGET._replace(**limits))


# the first and the last evaluations of a search, and the turn in which paths end
SLACK = 1.2


def costs_what_it_says(size, num_chains):
    """The law."""
    counted, _ = searched(size, num_chains)
    assert 0 < counted.cost < SLACK * num_chains * budget.BUDGET.gradients


@pytest.mark.first
@pytest.mark.parametrize(("size", "num_chains"), [(3, 1), (20, 2), (152, 2), (600, 2)])
def test_a_start_costs_what_it_says(size, num_chains):
    """A few dimensions, too many for Hessians of a density like this, too many for any."""
    costs_what_it_says(size, num_chains)


@pytest.mark.parametrize("size", [20, 152])
def test_planted_start_without_bounds(size, monkeypatch):
    """Every density is thought cheap."""
    change_budget(monkeypatch, operations=np.inf)
    monkeypatch.setattr(start, "LEAST_SHARE", 2.0)
    # further rounds, as where paths disagree
    monkeypatch.setattr(
        start.Search, "is_lesser", lambda search: jnp.ones(search.evidence.shape, bool)
    )
    with pytest.raises(AssertionError):
        costs_what_it_says(size, 2)


@pytest.mark.parametrize("size", [152, 600])
def test_chains_on_paths_of_gradients_are_near_the_mass_and_apart(size):
    counted, found = searched(size, 4)
    assert found.metric is None
    scaled = np.asarray(found.x) / counted.sds
    assert (np.sum(scaled**2, axis=1) < 4 * size).all()
    assert len(np.unique(scaled, axis=0)) == 4
    assert np.linalg.norm(scaled[0] - scaled[1]) > 1.0


def test_modes_of_chains_stay_their_own():
    """Two normals eight apart: each chain starts in that from which it came."""

    def two(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 4) ** 2), -0.5 * jnp.sum((x + 4) ** 2))

    x = jnp.ones((4, 600)) * jnp.array([[1.0], [-1.0], [1.0], [-1.0]])
    found = jax.jit(lambda x: start.find_start(jax.random.key(0), two, x, "reverse"))(x)
    np.testing.assert_array_equal(np.sign(found.x.mean(axis=1)), [1, -1, 1, -1])


def test_cheap_densities_have_all_that_they_had():
    def normal(x):
        return -0.5 * jnp.sum(x**2)

    for size, mode in ((2, "reverse"), (64, "reverse"), (64, "forward"), (8, "gradients")):
        x = jnp.ones((4, size))
        function, program = equations.traced(normal, x[0])
        if mode == "gradients":
            function = blackjax_ext.differenced(function)
        effort = budget.effort_of_hessians(function, program, x, mode)
        assert effort == budget.Effort(
            4, 4 * (budget.BUDGET.max_steps + 1), False, budget.BUDGET.rows, 4
        )


def dear(x):
    """A log density that no one waits for: it is traced alone."""
    turns = jax.lax.scan(lambda y, _: (jnp.sin(y), None), x, length=10**9)[0]
    return -jnp.sum(turns**2)


@pytest.mark.parametrize("mode", ["reverse", "forward", "gradients"])
def test_sizes_alone_say_where_dear_densities_have_hessians(mode):
    for size in (2, 10, 20, 40, 80, 120, 600):
        x = jnp.ones((NUM_CHAINS, size))
        function, program = equations.traced(dear, x[0])
        function = blackjax_ext.differenced(function) if mode == "gradients" else function
        effort = budget.effort_of_hessians(function, program, x, mode)
        is_possible = size <= budget.BUDGET.dimensions[mode]
        has_hessians = is_possible and effort.is_worthwhile
        assert has_hessians == budget.takes_hessians(size, mode), size


TIMES = jnp.linspace(0, 10, 150)
COUNTS = jnp.round(jnp.exp(jnp.sin(TIMES)))


def process():
    """A latent Gaussian process: D + 1 dimensions, and a factorization for each evaluation."""
    length = numpyro.sample("length", dist.InverseGamma(5.0, 5.0))
    gaps = (TIMES[:, None] - TIMES) / length
    covariance = jnp.exp(-0.5 * gaps**2) + 1e-3 * jnp.eye(TIMES.size)
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([TIMES.size]).to_event(1))
    rates = jnp.exp(jnp.linalg.cholesky(covariance) @ noise)
    numpyro.sample("y", dist.Poisson(rates), obs=COUNTS)


@pytest.mark.long
def test_a_latent_process_starts_without_hessians(monkeypatch):
    """150 factorizations for each, of 150 dimensions, are not affordable."""
    searches = []

    def find_starts(*arguments):
        searches.append(arguments)
        raise AssertionError("Hessians")

    monkeypatch.setattr(start, "find_starts", find_starts)
    kernel = numpyro_fwd.AutoMALA(process)
    state = kernel.init(jax.random.split(jax.random.key(0), 2), 1, None, (), {})
    assert np.isfinite(state.potential_energy).all()
    assert not searches
    change_budget(monkeypatch, operations=np.inf)
    kernel = numpyro_fwd.AutoMALA(process)
    with pytest.raises(AssertionError, match="Hessians"):
        kernel.init(jax.random.split(jax.random.key(0), 2), 1, None, (), {})


def two_modes(x):
    """Log density of two normals, of which one has next to nothing."""
    return jnp.logaddexp(-0.5 * jnp.sum((x - 4) ** 2), -0.5 * jnp.sum((x + 4) ** 2) - 30)


@pytest.mark.long
def test_paths_one_after_the_other_end_where_all_at_once_do(x64):
    x = jnp.array([[1.0], [-1.0], [1.0], [1.5], [0.5], [2.0], [-2.0]]) * jnp.ones(3)
    key = jax.random.key(0)

    def found(at_once):
        effort = budget.Effort(len(x), 61, False, budget.BUDGET.rows, at_once)
        find = partial(start.find_starts, key, two_modes, differentiation="reverse")
        return jax.jit(lambda x: find(x, effort=effort))(x)

    expected = found(7)
    assert expected.is_settled and (expected.x > 0).all()  # chains of the lesser mode were moved
    # the last batch of seven is filled up
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-7), found(3), expected)


@pytest.mark.long
@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0)], ids=["new", "raw"])
def test_paths_with_much_noise_end_where_they_do_in_other_batches(key, monkeypatch, x64):
    """The noise of a path is drawn when its turn comes, by a key of its own."""
    change_budget(monkeypatch, noise_arrays=10**9)
    x = jax.random.uniform(jax.random.key(1), (7, 3), minval=-2.0, maxval=2.0)

    def along_newton(at_once):
        effort = budget.Effort(len(x), 61, False, budget.BUDGET.rows, at_once)
        return start.find_starts(key, two_modes, x, "reverse", effort)

    def along_gradients(at_once):
        effort = budget.Effort(len(x), 20, False, 1, at_once)
        return start.along_gradients(key, two_modes, x, "reverse", effort)

    for walk in along_newton, along_gradients:
        expected, found = jax.jit(walk, static_argnums=0)(3), jax.jit(walk, static_argnums=0)(5)
        assert np.isfinite(found.x).all()
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-7), found, expected)


@pytest.mark.long
def test_paths_of_gradients_one_after_the_other_end_where_all_at_once_do(x64):
    x = jax.random.uniform(jax.random.key(1), (7, 30), minval=-2.0, maxval=2.0)
    arguments = jax.random.key(0), lambda x: -0.5 * jnp.sum(x**2 + x**4), x, "reverse"
    efforts = (budget.Effort(7, 20, False, 1, at_once) for at_once in (7, 3))
    expected, found = (start.along_gradients(*arguments, effort) for effort in efforts)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-7), found, expected)


def independent(size):
    """Normals of different scales."""
    numpyro.sample("x", dist.Normal(0.0, np.geomspace(0.01, 100.0, size)).to_event(1))


def regression(x, y):
    """A logistic regression."""
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


ROW_SUMS = np.linspace(-1.0, 1.0, 100_000, dtype=np.float32)


def needed(function, *arguments):
    """Temporary memory of a program, by XLA's analysis: it does not run."""
    program = jax.jit(function).lower(*arguments).compile()
    return program.memory_analysis().temp_size_in_bytes


def takes_the_memory_of_a_few_steps(model, num_chains, *data):
    """The law; what is below 16 MiB counts for nothing."""
    kernel = numpyro_fwd.MALA(model)
    keys = jax.random.split(jax.random.key(0), num_chains)

    def init(keys, *data):
        return kernel.init(keys, 300, None, data, {})

    states = jax.eval_shape(init, keys, *data)
    step = needed(lambda states, *data: kernel.sample(states, data, {}), states, *data)
    assert needed(init, keys, *data) <= max(3 * step, 2**24)


ROWS = jax.ShapeDtypeStruct((100_000, 20), "float32"), jax.ShapeDtypeStruct((100_000,), "float32")
SHAPES = {
    "64 dimensions, 1,000 chains": (partial(independent, 64), 1_000),
    "512 dimensions, 1,000 chains": (partial(independent, 512), 1_000),
    "100,000 rows, a chain": (regression, 1, *ROWS),
    "100,000 rows, 4 chains": (regression, 4, *ROWS),
}


@pytest.mark.first
@pytest.mark.parametrize("name", SHAPES)
def test_a_start_takes_the_memory_of_a_few_steps(name):
    takes_the_memory_of_a_few_steps(*SHAPES[name])


def test_planted_paths_all_at_once(monkeypatch):
    change_budget(monkeypatch, room=2**40)
    with pytest.raises(AssertionError):
        takes_the_memory_of_a_few_steps(*SHAPES["64 dimensions, 1,000 chains"])


def test_a_start_of_amagold_weighs_its_draws_one_after_the_other():
    """All at once they would take sixteen times the memory of a step."""

    def density(x):
        return -jnp.sum(jnp.log1p(jnp.exp(ROW_SUMS * x[0])))

    metric = newton_path.identity(jnp.ones(1))
    noise = jnp.ones((16, 1))
    weigh = partial(newton_path.sampled, noise, density, metric=metric)
    assert needed(lambda x: weigh(x).evidence, jnp.ones(1)) < 2 * ROW_SUMS.nbytes


MANY_SITES = 100


def priors(y=None):
    """Sites that are made in a loop, on which one prediction depends."""
    total = sum(numpyro.sample(f"a{i}", dist.Normal(0.0, 1.0 + i % 7)) for i in range(MANY_SITES))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(total, scale), obs=y)


def effects(y=None):
    """Effects that are made in a loop, each with a count of its own."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    for i in range(MANY_SITES):
        effect = numpyro.sample(f"a{i}", dist.Normal(mean, scale))
        numpyro.sample(f"y{i}", dist.Poisson(jnp.exp(effect)), obs=y[i % 3])


def lines_of_start(kernel):
    """Lines of all that a run does before its first step."""
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    y = jnp.arange(3)
    program = jax.jit(lambda keys: kernel.init(keys, 100, None, (), {"y": y})).lower(keys)
    return program.as_text().count("\n")


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "model"), [("AutoNUTS", effects), ("MALA", priors), ("AutoMALA", effects)]
)
def test_start_of_a_hundred_scalar_sites_is_no_longer_than_that_of_nuts(name, model):
    """Sites that are alike are one in a program."""
    ours, theirs = (lines_of_start(kernel(model)) for kernel in (getattr(numpyro_fwd, name), NUTS))
    assert ours < theirs
