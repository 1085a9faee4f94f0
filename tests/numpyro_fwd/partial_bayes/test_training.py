"""Training as people do it: schedules, early stopping, dropout, weights of classes, bad data."""

import warnings
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.contrib.module import random_flax_module, random_nnx_module
from numpyro.handlers import scale as scaled_by

from numpyro_fwd import GOHSMC, OHSMC, SGSMC
from numpyro_fwd.partial_bayes import training

SHARED = {"progress_bar": False}
Y = np.array([1.2, 0.7, 1.9, 1.1], np.float32)
SCALE = 0.7


def conjugate(y, batch=None):
    """y ~ N(shift + x, SCALE^2), x ~ N(0, 1)."""
    shift = numpyro.param("shift", 0.0)
    x = numpyro.sample("x", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0], subsample_size=batch):
        numpyro.sample("y", dist.Normal(shift + x, SCALE), obs=numpyro.subsample(y, 0))


def drifting(rate: float) -> optax.GradientTransformation:
    """Parameters that grow by `rate` whatever the gradient says."""

    def update(gradients, state, params=None):
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, rate), gradients), state

    return optax.GradientTransformation(lambda params: (), update)


# --- early stopping -------------------------------------------------------------------------------


def distance(params, particles, log_weights):
    return (params["shift"] - 1.2) ** 2


def test_the_better_of_two_losses_is_kept():
    inner = SimpleNamespace(params=1.0, position=2.0, log_weights=0.0)
    first = training.found_by(inner, jnp.float32(0.5))
    worse, nothing = (training.better(inner, first, loss) for loss in (0.6, jnp.nan))
    assert (worse.loss, worse.age, nothing.loss, nothing.age) == (0.5, 1, 0.5, 1)
    less = training.better(inner, worse, jnp.float32(0.4))
    assert less.loss == jnp.float32(0.4) and less.age == 0


@pytest.mark.long
def test_training_stops_early_and_remembers_where_it_was():
    smc = GOHSMC(conjugate, drifting(0.1), num_particles=5)
    shared = {"validation": distance, "validate_every": 4, "patience": 2, **SHARED}
    result = smc.run(jax.random.key(0), 100, Y, **shared)
    # least at the third validation, of which the fifth is the second after it
    assert result.losses.shape == (20,) and result.validation_losses.shape == (5,)
    np.testing.assert_allclose(result.params["shift"], 1.2, rtol=1e-5)
    # nothing was forgotten: one more validation without a new least loss, and it stops again
    again = smc.run(jax.random.key(0), 100, Y, init_state=result.state, **shared)
    assert again.losses.shape == (4,)
    one = smc.run(jax.random.key(0), 16, Y, **shared)
    assert one.losses.shape == (16,) and int(one.state.best.age) == 1
    rest = smc.run(jax.random.key(0), 100, Y, init_state=one.state, **shared)
    assert rest.losses.shape == (4,)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"patience": 2}, ValueError, "patience counts validations: give validation, too; got 2"),
        ({"patience": 0, "validation": (Y,)}, ValueError, "patience must be at least 1; got 0"),
    ],
)
def test_wrong_patience(arguments, error, message):
    with pytest.raises(error, match=message):
        GOHSMC(conjugate, drifting(0.1)).run(jax.random.key(0), 2, Y, **arguments, **SHARED)


# --- schedules ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("cls", [GOHSMC, SGSMC])
def test_a_schedule_of_step_sizes_goes_on_where_it_was(cls):
    """A schedule that is a constant is that constant; one that changes is read at each update."""

    def run(step_size, num, **arguments):
        smc = cls(conjugate, drifting(0.0), num_particles=5, step_size=step_size)
        return smc.run(jax.random.key(1), num, Y, **arguments, **SHARED)

    constant = run(optax.constant_schedule(0.1), 4)
    np.testing.assert_allclose(constant.particles["x"], run(0.1, 4).particles["x"], rtol=1e-5)
    falling = optax.piecewise_constant_schedule(0.1, {2: 1e-3})
    half = run(falling, 2)
    np.testing.assert_array_equal(half.particles["x"], run(0.1, 2).particles["x"])
    rest = run(falling, 2, init_state=half.state)
    short = run(1e-4, 2, init_state=half.state)
    np.testing.assert_allclose(rest.particles["x"], short.particles["x"], rtol=1e-5)
    assert int(rest.state.i) == 4


@pytest.mark.long
@pytest.mark.parametrize(("num", "batch", "expected"), [(4, None, 0.03), (10_000, 50, 0.01)])
def test_the_default_step_is_by_the_number_of_observed_values(num, batch, expected):
    """Of all rows, also where batches are small."""
    y = np.zeros(num, np.float32)

    def particles(**arguments):
        smc = GOHSMC(conjugate, drifting(0.0), num_particles=5, **arguments)
        return smc.run(jax.random.key(1), 2, y, batch=batch, **SHARED).particles["x"]

    np.testing.assert_allclose(particles(), particles(step_size=expected), rtol=1e-4)
    assert OHSMC(conjugate, drifting(0.0)).step_size == 0.01


def test_a_wrong_schedule_is_refused():
    with pytest.raises(ValueError, match=r"step_size\(0\) must be positive and finite; got 0"):
        GOHSMC(conjugate, drifting(0.1), step_size=optax.linear_schedule(0.0, 0.1, 10))


@pytest.mark.long
def test_learning_rates_follow_the_loss():
    """`reduce_on_plateau` sees the loss of each step, and takes the rate down where it stays."""
    plateau = optax.contrib.reduce_on_plateau(patience=5, accumulation_size=20, factor=0.5)
    smc = GOHSMC(conjugate, optax.chain(optax.sgd(0.01), plateau), num_particles=20)
    result = smc.run(jax.random.key(0), 400, Y, **SHARED)
    state = result.state.inner.opt_state[1]
    assert float(state.scale) < 1.0
    least, late = float(state.best_value), result.losses[-20:].mean()
    assert result.losses.min() <= least <= late + 1e-3


@pytest.mark.long
@pytest.mark.parametrize(
    ("cls", "optim"),
    [
        (
            GOHSMC,
            optax.chain(
                optax.sgd(1.0), optax.scale_by_backtracking_linesearch(max_backtracking_steps=20)
            ),
        ),
        (SGSMC, optax.lbfgs()),
    ],
    ids=["backtracking", "lbfgs"],
)
def test_line_searches_lower_the_loss_of_the_particles(cls, optim):
    """Their steps are too long without the search, and go where the data are with it."""
    y = np.float32(3.0 + 0.01 * np.arange(200))
    smc = cls(conjugate, optim, num_particles=10)
    result = smc.run(jax.random.key(2), 30, y, **SHARED)
    mean = result.params["shift"] + jnp.exp(result.log_weights) @ result.particles["x"]
    assert abs(float(mean) - y.mean()) < SCALE
    assert result.losses[-1] < result.losses[0] - 100


# --- dropout --------------------------------------------------------------------------------------


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, is_training):
        x = nn.tanh(nn.Dense(8)(x))
        x = nn.Dropout(0.5, deterministic=not is_training)(x)
        return nn.Dense(1)(x)[..., 0]


def linen_network(x, y=None, is_training=True):
    prior = {"Dense_0.kernel": dist.Normal(0, 1)}
    net = random_flax_module(
        *("net", LinenNet()),
        prior=prior,
        apply_rng=["dropout"],
        input_shape=(1, 2),
        is_training=False,
    )
    rngs = {"dropout": numpyro.prng_key()} if is_training else None
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x, is_training, rngs=rngs), 0.3), obs=y)


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(2, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x, is_training):
        x = self.dropout(jnp.tanh(self.hidden(x)), deterministic=not is_training)
        return self.out(x)[..., 0]


def nnx_network(x, y=None, is_training=True):
    module = NNXNet(nnx.Rngs(0))
    net = random_nnx_module("net", module, prior={"hidden.kernel": dist.Normal(0, 1)})
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x, is_training), 0.3), obs=y)


def data():
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    return x, np.sin(1.5 * x[:, 0])


@pytest.mark.long
@pytest.mark.parametrize("model", [linen_network, nnx_network])
def test_dropout_draws_new_masks_for_every_batch_and_the_same_for_all_particles(model):
    smc = GOHSMC(model, optax.adam(0.02), num_particles=4)
    state = smc.init(jax.random.key(0), *data())
    z = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), state.inner.position)
    potential = smc._partial.potential_fn

    def energies(seed, *flags):
        key = jax.random.key(seed)
        params = state.inner.params
        return jax.vmap(lambda z: potential(params, z, key, (*data(), *flags), {}))(z)

    np.testing.assert_allclose(energies(1), energies(1)[0], rtol=1e-6)
    assert abs(float(energies(1)[0] - energies(2)[0])) > 1.0
    np.testing.assert_allclose(energies(1, False), energies(2, False), rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("model", [linen_network, nnx_network])
def test_networks_with_dropout_are_trained_validated_and_predict(model):
    smc = GOHSMC(model, optax.adam(0.02), num_particles=4)
    arguments = {"validation": (*data(), False), "validate_every": 50, **SHARED}
    result = smc.run(jax.random.key(0), 200, *data(), **arguments)
    assert result.losses[-20:].mean() < result.losses[:10].mean() - 20
    assert result.validation_losses[-1] < result.validation_losses[0]
    x, y = data()
    found = smc.predictive(jax.random.key(1), result, x, None, False, num_samples=40)["y"]
    assert float(jnp.mean((found.mean(0) - y) ** 2)) < 0.5 * float(np.var(y))


def test_dropout_without_a_key_is_flax_s_own_error():
    def model(x, y=None):
        prior = {"Dense_0.kernel": dist.Normal(0, 1)}
        net = random_flax_module(
            *("net", LinenNet()), prior=prior, input_shape=(1, 2), is_training=False
        )
        numpyro.sample("y", dist.Normal(net(x, True), 0.3), obs=y)

    with pytest.raises(Exception, match='Dropout_0 needs PRNG for "dropout"'):
        GOHSMC(model, optax.adam(0.02)).init(jax.random.key(0), *data())


class Normalized(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(2, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.hidden(x))).sum(-1)


def test_running_statistics_are_refused():
    def model(x, y):
        prior = {"hidden.kernel": dist.Normal(0, 1)}
        net = random_nnx_module("net", Normalized(nnx.Rngs(0)), prior=prior)
        numpyro.sample("y", dist.Normal(net(x), 0.3), obs=y)

    with pytest.raises(ValueError, match=r"mutable site 'net\$state'.*batch normalization"):
        GOHSMC(model, optax.adam(0.02)).init(jax.random.key(0), *data())


# --- weights of classes ---------------------------------------------------------------------------


def classes(y, weights=(1.0, 1.0)):
    shift = numpyro.param("shift", 0.3)
    x = numpyro.sample("x", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]), scaled_by(scale=jnp.asarray(weights)[y]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.full(y.shape, shift + x)), obs=y)


@pytest.mark.long
def test_weights_of_classes_count_in_the_loss_and_in_the_validation():
    y, weights = jnp.array([0, 1, 0, 0, 0]), jnp.array([0.5, 4.0])
    smc = GOHSMC(classes, drifting(0.0), num_particles=3)
    state = smc.init(jax.random.key(0), y, weights)
    x = state.inner.position["x"]
    terms = dist.Bernoulli(logits=0.3 + x[:, None]).log_prob(y)
    found = jax.vmap(
        lambda z: smc._partial.potential_fn(
            state.inner.params, {"x": z}, jax.random.key(1), (y, weights), {}
        )
    )(x)
    expected = -(terms @ weights[y]) - dist.Normal(0, 1).log_prob(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # of the mixture, and then weighted: a weight is no power of a density that is mixed
    result = smc.run(jax.random.key(2), 1, y, weights, validation=(y, weights), **SHARED)
    terms = dist.Bernoulli(logits=0.3 + result.particles["x"][:, None]).log_prob(y)
    mixed = jax.nn.logsumexp(terms + result.log_weights[:, None], axis=0)
    loss = -(mixed @ weights[y]) / weights[y].sum()
    np.testing.assert_allclose(result.validation_losses, loss[None], rtol=1e-5)


# --- what goes wrong ------------------------------------------------------------------------------


def line(x, y):
    slope = numpyro.param("slope", 0.0)
    level = numpyro.sample("level", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0], subsample_size=4):
        rows, obs = numpyro.subsample(x, 1), numpyro.subsample(y, 0)
        numpyro.sample("y", dist.Normal(slope * rows.sum(-1) + level, 1.0), obs=obs)


@pytest.mark.long
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_no_number_is_named(bad):
    x, y = data()
    x[17, 1] = x[41, 0] = bad
    smc = GOHSMC(line, optax.sgd(1e-3), num_particles=10)
    message = rf"model_args\[0\] is {bad} at \(17, 1\). Site 'y' .* row 17, and 1 more of 60"
    with pytest.raises(ValueError, match=message):
        smc.run(jax.random.key(0), 2, x, y, **SHARED)
    with pytest.raises(ValueError, match=message):
        smc.run(jax.random.key(0), 2, *data(), validation=(x, y), **SHARED)


@pytest.mark.long
def test_rows_behind_a_mask_may_be_anything():
    def model(y):
        shift = numpyro.param("shift", 0.0)
        x = numpyro.sample("x", dist.Normal(0, 1))
        known = ~jnp.isnan(y)
        with numpyro.plate("data", y.shape[0]), numpyro.handlers.mask(mask=known):
            obs = jnp.where(known, y, 0.0)
            numpyro.sample("y", dist.Normal(shift + x, 1.0), obs=obs)

    y = np.array([0.3, np.nan, 0.5], np.float32)
    result = GOHSMC(model, optax.sgd(0.01)).run(jax.random.key(0), 3, y, **SHARED)
    assert np.isfinite(result.losses).all()


@pytest.mark.long
def test_a_diverged_loss_warns():
    smc = GOHSMC(line, optax.sgd(0.1), num_particles=10)
    with pytest.warns(UserWarning, match=r"training diverged: the loss rose from .* to .*rate"):
        smc.run(jax.random.key(0), 4, *data(), **SHARED)
    with pytest.warns(UserWarning, match=r"at step \d+ of 200 no particle had a finite density"):
        smc.run(jax.random.key(0), 200, *data(), **SHARED)
    # what was best before is not lost with it
    with pytest.warns(UserWarning, match=r"the result is the best before"):
        result = smc.run(
            jax.random.key(0), 200, *data(), validation=data(), validate_every=1, **SHARED
        )
    assert np.isfinite(result.params["slope"])


@pytest.mark.long
def test_a_training_that_has_ended_does_not_warn():
    smc = GOHSMC(line, optax.sgd(1e-3), num_particles=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = smc.run(jax.random.key(0), 200, *data(), **SHARED)
        smc.run(jax.random.key(0), 20, *data(), init_state=result.state, **SHARED)


# --- states and losses of others ------------------------------------------------------------------


@pytest.mark.long
def test_states_of_other_trainings_are_refused():
    smc = GOHSMC(conjugate, optax.adam(0.01), num_particles=4, step_size=0.1)
    result = smc.run(jax.random.key(0), 2, Y, **SHARED)
    others = {
        "its particles": GOHSMC(conjugate, optax.adam(0.01), num_particles=5, step_size=0.1),
        "its state of the optimizer": GOHSMC(conjugate, optax.sgd(0.01), num_particles=4),
        "its particles and parameters": GOHSMC(line, optax.adam(0.01), num_particles=4),
    }
    for what, other in others.items():
        args = data() if "parameters" in what else (Y,)
        with pytest.raises(ValueError, match=f"init_state is of another training: {what}"):
            other.run(jax.random.key(0), 2, *args, init_state=result.state, **SHARED)
    with pytest.raises(TypeError, match=r"got Result: give its state, result\.state"):
        smc.run(jax.random.key(0), 2, Y, init_state=result, **SHARED)
    # other rows are welcome
    longer = smc.run(jax.random.key(0), 2, np.tile(Y, 2), init_state=result.state, **SHARED)
    assert longer.losses.shape == (2,)


@pytest.mark.long
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda params, particles, log_weights: particles["x"], r"an array of shape \(4,\)"),
        (lambda params, particles, log_weights: (1.0, 2.0), "got 2 of them"),
        (lambda params, particles, log_weights: None, "got 0 of them"),
    ],
)
def test_a_validation_returns_one_number(loss, message):
    smc = GOHSMC(conjugate, optax.sgd(0.01), num_particles=4, step_size=0.1)
    with pytest.raises(
        TypeError, match=f"validation must return one number, the loss; .*{message}"
    ):
        smc.run(jax.random.key(0), 2, Y, validation=loss, **SHARED)


@pytest.mark.long
def test_validation_losses_that_are_no_numbers_are_told():
    smc = GOHSMC(conjugate, optax.sgd(0.01), num_particles=4, step_size=0.1)
    with pytest.warns(UserWarning, match=r"1 of 1 validation losses are not finite.*validation 0"):
        smc.run(jax.random.key(0), 2, Y, validation=lambda *_: jnp.nan, **SHARED)


# --- particles that follow the batches ------------------------------------------------------------


def mean_of(y, batch=None):
    numpyro.param("unused", 0.0)
    x = numpyro.sample("x", dist.Normal(0, 2))
    with numpyro.plate("data", y.shape[0], subsample_size=batch):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=numpyro.subsample(y, 0))


MANY = np.random.default_rng(0).normal(1.5, 1.0, 250).astype(np.float32)


@pytest.mark.long
def test_particles_that_follow_small_batches_are_told():
    """Four of 250 rows: their weights stay even, and the powers of these tell."""
    smc = GOHSMC(mean_of, optax.sgd(0.0), num_particles=100)
    with pytest.warns(
        UserWarning, match=r"not a posterior: .* power of 0.01.*off by about \d\.\d of"
    ):
        small = smc.run(jax.random.key(1), 400, MANY, 4, **SHARED)
    assert small.ess.min() > 40 and np.median(small.weight_power) < 0.02
    # larger batches, and shorter steps, are no reason to warn
    smc.run(jax.random.key(1), 400, MANY, 100, **SHARED)
    falling = optax.exponential_decay(0.03, 400, 0.1)
    smc = GOHSMC(mean_of, optax.sgd(0.0), num_particles=100, step_size=falling)
    smc.run(jax.random.key(1), 400, MANY, 4, **SHARED)


@pytest.mark.long
def test_all_rows_take_weights_as_they_are():
    smc = GOHSMC(mean_of, optax.sgd(0.0), num_particles=100)
    result = smc.run(jax.random.key(1), 400, MANY, **SHARED)
    np.testing.assert_array_equal(result.weight_power[-100:], 1.0)
