"""Mixed models with many groups, as users bring them: exact, one block, or refused by name.

Of a model whose groups are found three things are asked. Each term of the prior of a group depends
on no other group. The parts that sweeps reckon with add up to NumPyro's energy, and no remainder is
larger than its bound. Draws are those of the posterior, which is known here without sampling.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.distributions.transforms import AffineTransform
from numpyro.infer import MCMC
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import initialize_model, potential_energy

from blackjax_ext.rows import newton
from blackjax_ext.subsampling import group_sweeps, grouped_mode, remainders, row_tests
from blackjax_ext.subsampling.expansion import Expansion
from numpyro_fwd import AMAGOLD
from numpyro_fwd.bridge.plates import FullView, check_model
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.bridge.separate_rows import checked_rows
from numpyro_fwd.subsampling import groups
from numpyro_fwd.subsampling.predictors import linear_predictor_of

FULL_ONLY = pytest.mark.full
ENERGY = 0.01  # in units of the posterior, as the page on the test promises
N, G = 1_200, 60
FAR_OFF = 4.5  # standard errors: one of a million normal numbers is beyond
sample = numpyro.sample
RNG = np.random.default_rng(100)
X = RNG.normal(size=(N, 2))
# one group has no row, and one a single row
GROUP = np.append(RNG.integers(0, G - 2, N - 1), G - 2)
OTHER = RNG.integers(0, 60, N)
# one group has most of the rows
ALL_BUT_FEW = np.where(RNG.random(N) < 0.9, 0, GROUP)
EFFECT = 0.8 * RNG.normal(size=G)


def single(leaf: np.ndarray) -> jax.Array:
    """An array of the device, with numbers of 32 bits at most."""
    narrow = {"float64": np.float32, "int64": np.int32}
    return jnp.asarray(leaf.astype(narrow.get(leaf.dtype.name, leaf.dtype)))


def successes(eta: np.ndarray) -> np.ndarray:
    return (np.random.default_rng(101).random(N) < 1 / (1 + np.exp(-eta))).astype(float)


ETA = 0.5 * X[:, 0] + EFFECT[GROUP]
Y = successes(ETA)


class Case(NamedTuple):
    """A model of a group of each row, and its arguments."""

    model: Callable
    args: tuple


def rows(eta_of: Callable, y: Any, law: Callable = lambda eta: dist.Bernoulli(logits=eta)) -> None:
    with numpyro.plate("rows", len(y), subsample_size=50) as at:
        sample("y", law(eta_of(at)), obs=y[at])


def priors(unit: float = 1.0, far: float = 2.0) -> tuple:
    b = sample("b", dist.Normal(0, 2.0 / unit).expand([2]).to_event(1))
    return b, sample("mu", dist.Normal(0, far)), sample("tau", dist.HalfNormal(1.0))


def in_plate(name: str, law: dist.Distribution, size: int = G) -> jax.Array:
    with numpyro.plate(f"plate of {name}", size):
        return sample(name, law)


def intercepts(prior: Callable, x=X, group=GROUP, y=Y, law=None, **units: float) -> Case:
    """Slopes, and an intercept of each group of this prior, given a mean and a scale."""
    law = law or (lambda eta: dist.Bernoulli(logits=eta))

    def model(x, group, y):
        b, mu, tau = priors(**units)
        a = prior(mu, tau)
        rows(lambda at: x[at] @ b + a[group[at]], y, law)

    return Case(model, tuple(map(single, (x, group, y))))


def normal_effects(mu, tau):
    return in_plate("a", dist.Normal(mu, tau))


def correlated() -> Case:
    """Intercepts and slopes whose correlation is sampled."""

    def model(x, group, y):
        b, mu, tau = priors()
        corr = sample("corr", dist.LKJCholesky(2, 2.0))
        sds = sample("sds", dist.HalfNormal(1.0).expand([2]).to_event(1))
        tril = tau * sds[:, None] * corr
        a = in_plate("a", dist.MultivariateNormal(jnp.stack([mu, 0 * mu]), scale_tril=tril))
        rows(lambda at: x[at] @ b + a[group[at], 0] + a[group[at], 1] * x[at][:, 1], y)

    return Case(model, tuple(map(single, (X, GROUP, Y))))


def crossed() -> Case:
    """A second factor of as many levels, whose scale has a density without a bound at zero."""
    second = 0.5 * np.random.default_rng(102).normal(size=60)

    def model(x, group, other, y):
        b, mu, tau = priors()
        a = in_plate("a", dist.Normal(mu, tau))
        second_tau = sample("second_tau", dist.HalfNormal(1.0))
        c = in_plate("c", dist.Normal(0, second_tau), 60)
        rows(lambda at: x[at] @ b + a[group[at]] + c[other[at]], y)

    y = successes(ETA + second[OTHER])
    return Case(model, tuple(map(single, (X, GROUP, OTHER, y))))


def nested() -> Case:
    """Groups in districts, which no row sees."""
    district = single(np.arange(G) % 9)

    def model(x, group, y):
        b, mu, tau = priors()
        of_district = in_plate("d", dist.Normal(mu, sample("district_tau", dist.HalfNormal())), 9)
        a = in_plate("a", dist.Normal(of_district[district], tau))
        rows(lambda at: x[at] @ b + a[group[at]], y)

    return Case(model, tuple(map(single, (X, GROUP, Y))))


def scales_of_groups() -> Case:
    """A mean and a scale of each group."""
    rng = np.random.default_rng(103)
    noise = np.exp(0.4 * rng.normal(size=G))[GROUP] * rng.normal(size=N)

    def model(x, group, y):
        b, mu, tau = priors()
        a = in_plate("a", dist.Normal(mu, tau))
        s = in_plate("s", dist.LogNormal(0.0, sample("spread", dist.HalfNormal(1.0))))
        with numpyro.plate("rows", N, subsample_size=50) as at:
            mean = x[at] @ b + a[group[at]]
            sample("y", dist.Normal(mean, s[group[at]]), obs=y[at])

    return Case(model, tuple(map(single, (X, GROUP, ETA + noise))))


def local_scales(mu, tau):
    """A horseshoe."""
    return in_plate("a", dist.Normal(mu, tau * in_plate("local", dist.HalfCauchy(1.0))))


def by_covariates(mu, tau):
    """Means and scales that depend on what is known of a group."""
    known = single(np.random.default_rng(104).normal(size=(G, 2)))
    slopes = sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    return in_plate("a", dist.Normal(mu + known @ slopes, tau * jnp.exp(0.3 * known[:, 0])))


def nothing_shared() -> Case:
    """Effects of a known law with a kink, and nothing else."""

    def model(group, y):
        a = in_plate("a", dist.Laplace(0.2, 0.5))
        rows(lambda at: a[group[at]], y)

    return Case(model, tuple(map(single, (GROUP, successes(EFFECT[GROUP])))))


def poisson(eta):
    return dist.Poisson(jnp.exp(eta))


COUNTS = np.random.default_rng(105).poisson(np.exp(ETA))
CASES: dict[str, Callable[[], Case]] = {
    "nothing_shared": nothing_shared,
    "correlated": correlated,
    "crossed": crossed,
    "nested": nested,
    "scales_of_groups": scales_of_groups,
    "laplace": lambda: intercepts(lambda mu, tau: in_plate("a", dist.Laplace(mu, tau))),
    "cauchy": lambda: intercepts(lambda mu, tau: in_plate("a", dist.Cauchy(mu, tau))),
    "horseshoe": lambda: intercepts(local_scales),
    "by_covariates": lambda: intercepts(by_covariates),
    "uncentred": lambda: intercepts(normal_effects, x=X + 300.0, far=1000.0),
    "small_units": lambda: intercepts(normal_effects, x=1e-6 * X, unit=1e-6),
    "large_units": lambda: intercepts(normal_effects, x=1e6 * X, unit=1e6),
    "one_group_of_most_rows": lambda: intercepts(
        normal_effects, group=ALL_BUT_FEW, y=successes(0.5 * X[:, 0] + EFFECT[ALL_BUT_FEW])
    ),
    "counts": lambda: intercepts(normal_effects, y=COUNTS, law=poisson),
    "truth_values": lambda: intercepts(normal_effects, y=Y > 0.5),
    "negative_index": lambda: intercepts(normal_effects, group=GROUP - G),
    "narrow_index": lambda: intercepts(normal_effects, group=GROUP.astype(np.int8)),
    "weighted_prior": lambda: intercepts(
        lambda mu, tau: numpyro.handlers.scale(normal_effects, 1.0 + jnp.arange(G) / G)(mu, 0.7)
    ),
    "no_effect": lambda: intercepts(normal_effects, y=successes(0.5 * X[:, 0])),
    "separated_groups": lambda: intercepts(
        normal_effects, y=np.where(GROUP < 6, 1.0, np.where(GROUP < 12, 0.0, Y))
    ),
}


def expanded(case: Case) -> tuple[groups.GroupedModel | None, Any]:
    """As a kernel expands it, with its data; None where there are no groups."""
    view = FullView(case.model)
    rows = RowModel.of(view, case.args, {}, check_model(view, case.args, {}))
    z = dict(initialize_model(jax.random.key(0), view, model_args=case.args).param_info.z)
    found = groups.expanded_groups(rows, z, say=lambda words: None)
    if found is None:
        return None, None
    layout, position = found.layout, found.expansion.position
    predictor = groups.grouped_predictor_of(rows, position, layout)
    return found, found.expansion.of(predictor)


def groups_are_apart(found: groups.GroupedModel, made: Expansion) -> None:
    """Raise AssertionError unless each term of a group depends on no other, and none is left."""
    grouping, terms = found.layout.grouping, made.grouped.terms
    y, b = grouping.split(made.draw(jax.random.key(1)))

    @jax.jit
    def slopes(b):
        of = jax.jacrev(lambda b: terms(grouping.join(y, b)).groups)(b)
        return of, jax.grad(lambda b: terms(grouping.join(y, b)).shared)(b)

    of_groups, of_shared = slopes(b)
    others = np.asarray(of_groups)[~np.eye(grouping.num_groups, dtype=bool)]
    assert not others.any(), "a term of a group depends on another"
    assert not of_shared.any(), "a term that is shared depends on a group"


def energies_add_up(case: Case, made: Expansion) -> None:
    """Raise AssertionError unless parts add up to NumPyro's energy, and bounds are none too small.

    NumPyro's is in double precision.
    """

    @jax.jit
    def parts(made, x):
        u, v = made.coordinates(x)
        known = group_sweeps.shared_energy(made, v)(u)
        known += jnp.sum(made.given_shared(jnp.zeros_like(u))(v))
        steps = row_tests.steps_to(made, made.position, x)
        rest = remainders.remainder_change(made, remainders.read_moved_rows(made, steps, made.rows))
        level = jnp.searchsorted(made.first, jnp.arange(made.num_rows), side="right") - 1
        return known + rest.sum(), rest, (u @ u + jnp.sum(v * v, 1))[level]

    def in_double(tree):
        kinds = jax.tree.map(np.asarray, tree)
        return jax.tree.map(lambda a: jnp.asarray(a, float if a.dtype.kind == "f" else None), kinds)

    energies, exact = [], []
    for key in jax.random.split(jax.random.key(2), 5):
        x = made.draw(key)
        energy, rest, squares = map(np.asarray, parts(made, x))
        energies.append(energy)
        within = squares < made.radius**2
        bound = np.asarray(made.bound, np.float64) * squares ** (0.5 * (made.order + 1))
        assert np.all(np.abs(rest[within]) <= bound[within]), "bound"
        with jax.enable_x64(True):
            args, z = in_double(case.args), in_double(x)
            exact.append(float(potential_energy(FullView(case.model), args, {}, z)))
    off = np.asarray(energies, np.float64) - exact
    most = ENERGY + 1e-5 * np.ptp(exact)
    assert np.max(np.abs(off - np.median(off))) < most, f"energy: off by {np.ptp(off):.3g}"


QUICK = {"nothing_shared", "correlated", "laplace", "uncentred"}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else FULL_ONLY) for name in CASES]
)
def test_energies_of_groups_add_up_within_their_bounds(name):
    case = CASES[name]()
    found, made = expanded(case)
    assert found is not None and found.layout.grouping.num_groups == G
    groups_are_apart(found, made)
    energies_add_up(case, made)


# where the anchor is


@FULL_ONLY
def test_the_scale_of_a_second_factor_does_not_run_to_zero():
    """At the mode of its effects it would."""
    position = expanded(crossed())[1].position
    assert 0.25 < np.exp(float(position["second_tau"])) < 0.9


@pytest.mark.long
def test_means_follow_covariates_that_are_not_centred():
    """The mean of the groups takes up 300 times the slopes: that is where the anchor must be."""
    plain = expanded(intercepts(normal_effects))[1].position
    found = expanded(CASES["uncentred"]())[1].position
    np.testing.assert_allclose(found["b"], plain["b"], atol=0.02)
    assert abs(float(found["mu"] + 300.0 * found["b"].sum() - plain["mu"])) < 0.1


@pytest.mark.long
def test_groups_of_one_row_stay_near_a_kink():
    """Far off, neither the prior nor the row has a curvature that says how far it is back.

    By its inverse steps went 1e13 and more, for some means and scales of the prior.
    """
    rng = np.random.default_rng(107)
    group = np.append(np.arange(30), 30 + rng.integers(0, G - 32, 300))
    x, y = rng.normal(size=(group.size, 2)), (rng.random(group.size) < 0.5).astype(float)
    case = intercepts(lambda mu, tau: in_plate("a", dist.Laplace(mu, tau)), x, group, y)
    view = FullView(case.model)
    z = dict(initialize_model(jax.random.key(0), view, model_args=case.args).param_info.z)
    rows = RowModel.of(view, case.args, None)
    layout, _ = groups.find_groups(rows, linear_predictor_of(rows, z), z)
    predictor = groups.grouped_predictor_of(rows, z, layout)
    passes = grouped_mode.GroupPasses(replace(predictor, level=jnp.asarray(group)), None)
    passes.is_smoothed = True
    for mu, log_tau in itertools.product((-0.6, 0.0, 0.6), (-1.0, 0.0, 1.0)):
        start = predictor.grouping.split(z | {"mu": jnp.float32(mu), "tau": jnp.float32(log_tau)})
        start = newton.HostPosition(*map(np.asarray, start))
        is_free = np.array([True, True, False, False])
        last = newton.descend(passes, start, start.frame(), is_free)
        nearly = newton.TOLERANCES.coordinate * (4 + G)
        assert last.distance < nearly, (mu, log_tau, last.distance)
        assert np.abs(last.point.groups - mu).max() < 5.0 * np.exp(log_tau)
        assert last.frame.roots.max() < 3.0 * np.exp(log_tau)


def test_hyperparameters_do_not_go_where_nothing_is_finite():
    found = grouped_mode.maximized(lambda h: np.nan, lambda h: -np.eye(2), np.ones(2), np.float32)
    assert found is None


# what couples groups


def one_pair(mu, tau):
    """A coefficient of one group depends on that of another, whose halves by chance were alike."""
    a = in_plate("a", dist.Normal(mu, tau))
    return a + in_plate("c", dist.Normal(a.at[1].set(a[11]), 0.5))


def jump(mu, tau):
    """A factor that has no slope."""
    a = normal_effects(mu, tau)
    numpyro.factor("sign", jnp.where(a.mean() > 0, 0.0, -2.0))
    return a


def sum_to_zero(mu, tau):
    a = normal_effects(mu, tau)
    numpyro.factor("sum", -0.5 * (a.sum() / 0.01) ** 2)
    return a


COUPLED = {
    "one_pair": one_pair,
    "jump": jump,
    "sum_to_zero": sum_to_zero,
    "zero_sum": lambda mu, tau: mu + sample("a", dist.ZeroSumNormal(tau, (G,))),
    "walk": lambda mu, tau: mu + sample("a", dist.GaussianRandomWalk(tau, num_steps=G)),
}


@pytest.mark.first
@pytest.mark.parametrize("name", COUPLED)
def test_coupled_groups_are_one_block(name):
    assert expanded(intercepts(COUPLED[name]))[0] is None


def by_hand(mu, tau):
    return mu + tau * in_plate("a", dist.Normal(0, 1))


def by_handler(handler, law):
    """The same by a handler of NumPyro."""

    def effects(mu, tau):
        with numpyro.handlers.reparam(config={"a": handler}):
            return in_plate("a", law(mu, tau))

    return effects


def affine(mu, tau):
    return dist.TransformedDistribution(dist.Normal(0, 1), AffineTransform(mu, tau))


UNCENTRED = [
    ("a", by_hand),
    ("a_decentered", by_handler(LocScaleReparam(0.0), dist.Normal)),
    ("a_decentered", by_handler(LocScaleReparam(0.5), dist.Normal)),
    ("a_base", by_handler(TransformReparam(), affine)),
]


@pytest.mark.long
@pytest.mark.parametrize(("site", "effects"), UNCENTRED)
@pytest.mark.parametrize("far", [0.0, 500.0])
def test_effects_that_are_not_centred_raise_by_name(far, site, effects):
    """With the site to centre, also where the effects are small beside the predictors."""
    law = lambda eta: dist.Normal(far + eta, 1.0)  # noqa: E731
    noise = rf"site 'y' has no linear predictor .*'{site}'.*\] times a function of \['tau'\]"
    with pytest.raises(ValueError, match=noise):
        expanded(intercepts(effects, y=far + Y, law=law))


@pytest.mark.long
def test_correlations_are_no_index_beyond_the_rows():
    """What checkify says of the Cholesky factors of LKJ does not hide data that are too short."""
    model, (x, group, y) = correlated()
    checked_rows(FullView(model), (x, group, y), {})
    with pytest.raises(ValueError, match="reads rows that are not there"):
        checked_rows(FullView(model), (x, group[:-5], y), {})


# draws of posteriors that are known


def draws(kernel: AMAGOLD, args: tuple, **settings: Any) -> MCMC:
    defaults = {"num_warmup": 100, "num_samples": 1_500, "progress_bar": False}
    mcmc = MCMC(kernel, **(defaults | settings))
    mcmc.run(jax.random.key(0), *args)
    return mcmc


def are_draws_of(found: np.ndarray, mean: np.ndarray, sd: np.ndarray, what: str) -> None:
    """Raise AssertionError unless means and mean squares are those of the law, by their errors."""
    z = (np.asarray(found, np.float64).reshape(1, len(found), -1) - mean) / sd
    for values, exact in ((z, 0.0), (z**2, 1.0)):
        error = values.std((0, 1)) / np.sqrt(effective_sample_size(values))
        off = np.max(np.abs(values.mean((0, 1)) - exact) / error)
        assert off < FAR_OFF, f"{what}: {off:.1f} standard errors off"


@pytest.mark.long
def test_groups_under_a_prior_with_a_kink_have_their_own_laws():
    """Each is one-dimensional, so its moments are those of a grid; one group has no row."""
    case = nothing_shared()
    group, y = (np.asarray(each, np.float64) for each in case.args)
    grid = np.linspace(-12.0, 12.0, 24_001)
    size, sums = (np.bincount(group.astype(int), w, G) for w in (np.ones(N), y))
    log_density = np.outer(sums, grid) - np.outer(size, np.logaddexp(0, grid))
    log_density -= np.abs(grid - 0.2) / 0.5
    weight = np.exp(log_density - log_density.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    mean = weight @ grid
    sd = np.sqrt(weight @ grid**2 - mean**2)
    kernel = AMAGOLD(case.model, acceptance="subsampled", num_integration_steps=1)
    found = draws(kernel, case.args, num_samples=16_000).get_samples()["a"]
    are_draws_of(found, mean, sd, "kink")


def normal_model(x, group, y):
    """Everything is normal."""
    b = sample("b", dist.Normal(0, 2).expand([2]).to_event(1))
    a = in_plate("a", dist.Normal(sample("mu", dist.Normal(0, 2)), 0.7))
    with numpyro.plate("rows", N, subsample_size=50) as at:
        sample("y", dist.Normal(x[at] @ b + a[group[at]], 1.0), obs=y[at])


def normal_posterior(x, group, y):
    """Mean and sds of b, mu and a."""
    design = np.hstack([x, np.zeros((N, 1)), np.eye(G)[group]]).astype(np.float64)
    about_mean = np.hstack([np.zeros((G, 2)), -np.ones((G, 1)), np.eye(G)])
    precision = design.T @ design + about_mean.T @ about_mean / 0.49
    precision[:3, :3] += np.eye(3) / 4.0
    covariance = np.linalg.inv(precision)
    return covariance @ (design.T @ np.asarray(y, np.float64)), np.sqrt(np.diag(covariance))


@pytest.mark.long
@pytest.mark.parametrize("jit_model_args", [pytest.param(False, marks=FULL_ONLY), True])
def test_a_run_on_other_data_forgets_the_first(jit_model_args):
    """Other groups of the same shape, and other responses; and other data are no way to go on."""
    rng = np.random.default_rng(106)
    y = single(ETA + rng.normal(size=N))
    first = (single(X), single(GROUP), y)
    second = (single(X), single(rng.permutation(GROUP)), y)
    kernel = AMAGOLD(normal_model, acceptance="subsampled")
    mcmc = draws(kernel, first, jit_model_args=jit_model_args)
    for args in (first, second):
        mcmc.run(jax.random.key(1), *args)
        z = mcmc.get_samples()
        flat = np.column_stack([z["b"], z["mu"], z["a"]])
        are_draws_of(flat, *normal_posterior(*map(np.asarray, args)), "normal")
    mcmc.post_warmup_state = mcmc.last_state
    with pytest.raises(ValueError, match="made with other data"):
        mcmc.run(jax.random.key(2), *first)
