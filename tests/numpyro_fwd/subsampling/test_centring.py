"""Reparametrized effects put back where a model has them: the same posterior and sites."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions.transforms import AffineTransform, ExpTransform
from numpyro.handlers import reparam, scope
from numpyro.infer import MCMC, Predictive
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import potential_energy

from numpyro_fwd import AMAGOLD
from numpyro_fwd.bridge.plates import FullView, traced_view
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.subsampling import centring
from numpyro_fwd.subsampling.centring import Centred, centred_start, noise_seen_by_rows
from numpyro_fwd.subsampling.groups import expanded_groups

NUM_ROWS, NUM_GROUPS = 400, 60
RNG = np.random.default_rng(110)
GROUP = RNG.integers(0, NUM_GROUPS, NUM_ROWS)
X = RNG.normal(size=NUM_ROWS)
Y = X + 0.7 * RNG.normal(size=NUM_GROUPS)[GROUP] + RNG.normal(size=NUM_ROWS)
ARGS = tuple(map(jnp.asarray, (X.astype(np.float32), GROUP, Y.astype(np.float32))))
sample = numpyro.sample


def model_of(effects):
    """A mixed model with these effects, given a mean and a scale."""

    def model(x, group, y):
        slope = sample("slope", dist.Normal(0, 1))
        a = effects(sample("mu", dist.Normal(0, 2)), sample("tau", dist.HalfNormal(1.0)))
        with numpyro.plate("rows", len(y), subsample_size=50) as rows:
            sample("y", dist.Normal(slope * x[rows] + a[group[rows]], 1.0), obs=y[rows])

    return model


def in_plate(mu, tau):
    with numpyro.plate("groups", NUM_GROUPS):
        return sample("a", dist.Normal(mu, tau))


def as_event(mu, tau):
    return sample("a", dist.Normal(mu, tau).expand([NUM_GROUPS]).to_event(1))


def heavy(mu, tau):
    with numpyro.plate("groups", NUM_GROUPS):
        return sample("a", dist.StudentT(4.0, mu, tau))


def inside(how, effects=in_plate, name="a"):
    """The handler is written in the model."""

    def reparametrized(mu, tau):
        with reparam(config={name: how}):
            return effects(mu, tau)

    return model_of(reparametrized)


def around(how, effects=in_plate):
    """The handler is around the model."""
    return reparam(model_of(effects), config={"a": how})


def transformed(*more):
    """As NumPyro's own example of eight schools, backwards."""

    def effects(mu, tau):
        with numpyro.plate("groups", NUM_GROUPS):
            law = dist.TransformedDistribution(
                dist.Gumbel(0.3, 0.8), [AffineTransform(mu, -tau), *more]
            )
            return sample("a", law)

    return inside(TransformReparam(), effects)


def nested(mu, tau):
    """Means of groups, of districts, of which the rows see the former."""
    with reparam(config={"a": LocScaleReparam(0.0), "d": LocScaleReparam(0.0)}):
        with numpyro.plate("districts", 5):
            of_district = sample("d", dist.Normal(mu, 0.5))
        with numpyro.plate("groups", NUM_GROUPS):
            return sample("a", dist.Normal(of_district[np.arange(NUM_GROUPS) % 5], tau))


def scales_of_effects(mu, tau):
    """Rows see two effects, the second of which has the first in its scale."""
    with reparam(config={"a": LocScaleReparam(0.0), "c": LocScaleReparam(0.0)}):
        with numpyro.plate("groups", NUM_GROUPS):
            a = sample("a", dist.Normal(mu, tau))
            return a + sample("c", dist.Normal(mu, jnp.exp(0.1 * a)))


def scoped(mu, tau):
    with scope(prefix="s"), reparam(config={"s/a": LocScaleReparam(0.0), "a": LocScaleReparam(0)}):
        return as_event(mu, tau)


UNDONE = {
    "around": (around(LocScaleReparam(0.0)), ("a_decentered",)),
    "callable": (
        reparam(
            model_of(in_plate),
            config=lambda msg: LocScaleReparam(0.0) if msg["name"] == "a" else None,
        ),
        ("a_decentered",),
    ),
    "inside": (inside(LocScaleReparam(0.0)), ("a_decentered",)),
    "partial": (around(LocScaleReparam(0.3)), ("a_decentered",)),
    "event": (around(LocScaleReparam(0.0), as_event), ("a_decentered",)),
    "heavy": (inside(LocScaleReparam(0.2, ["df"]), heavy), ("a_decentered",)),
    "backwards": (transformed(), ("a_base",)),
    "nested": (model_of(nested), ("a_decentered",)),
    "two": (model_of(scales_of_effects), ("a_decentered", "c_decentered")),
    "scoped": (model_of(scoped), ("s/a_decentered",)),
}


def start(model, args=ARGS):
    """A random position of a model."""
    zeros = traced_view(model, args, None).zeros
    x, unravel = ravel_pytree(zeros)
    return unravel(jnp.asarray(np.random.default_rng(7).normal(size=x.shape), x.dtype))


def energies_agree(name: str) -> None:
    """NumPyro's energy there is that here, but for the Jacobian of the way from here to there."""
    model, names = FullView(UNDONE[name][0]), UNDONE[name][1]
    args = (ARGS[0].astype(float), ARGS[1], ARGS[2].astype(float))
    assert noise_seen_by_rows(RowModel.of(model, args, None)) == names
    centred, z = Centred(model, names), start(model, args)
    x, unravel = ravel_pytree(z)

    def there(x):
        return centred_start(RowModel.of(model, args, None), names, jax.random.key(0), unravel(x))

    jacobian = jax.jacfwd(lambda x: ravel_pytree(there(x))[0])(x)
    here = potential_energy(model, args, {}, z)
    found = potential_energy(centred, args, {}, there(x))
    np.testing.assert_allclose(
        found, here + np.linalg.slogdet(jacobian)[1], rtol=1e-10, err_msg="energy"
    )


@pytest.mark.first
@pytest.mark.parametrize("name", UNDONE)
def test_the_posterior_is_that_of_the_model(name, x64):
    energies_agree(name)


def values_off_zero(self, shape):
    """What is read as the shift is the outcome of one."""
    return jnp.stack([jnp.ones(shape), jnp.full(shape, centring.FAR_POINT)])


def no_jacobian(self, x, y, intermediates=None):
    """The density of the noise is taken for that of the effect."""
    return jnp.zeros(jnp.shape(x))


@pytest.mark.parametrize("bug", ["shifted", "no jacobian"])
def test_planted_bug_is_found(bug, x64, monkeypatch):
    if bug == "shifted":
        monkeypatch.setattr(centring.centring, "values", values_off_zero)
    else:
        monkeypatch.setattr(AffineTransform, "log_abs_det_jacobian", no_jacobian)
    with pytest.raises(AssertionError, match="energy"):
        energies_agree("inside")


def lookalike(mu, tau):
    """The names of a handler, without one."""
    with numpyro.plate("groups", NUM_GROUPS):
        noise = sample("a_decentered", dist.Normal(0, 1))
    effects = mu + tau * noise
    numpyro.deterministic("a", effects)
    return effects


def mixed(mu, tau):
    """Affine, but not each coordinate by itself."""
    law = dist.TransformedDistribution(
        dist.Normal(0, 1).expand([NUM_GROUPS]).to_event(1),
        dist.transforms.LowerCholeskyAffine(
            mu * jnp.ones(NUM_GROUPS), tau * jnp.tri(NUM_GROUPS) / NUM_GROUPS
        ),
    )
    with reparam(config={"a": TransformReparam()}):
        return sample("a", law)


@pytest.mark.first
@pytest.mark.parametrize(
    "model",
    [
        model_of(in_plate),
        model_of(lookalike),
        model_of(mixed),
        transformed(ExpTransform()),
    ],
    ids=["centred", "lookalike", "mixed", "log"],
)
def test_what_is_no_shift_and_scale_is_left(model):
    assert noise_seen_by_rows(RowModel.of(FullView(model), ARGS, None)) == ()


@pytest.mark.long
def test_groups_are_found():
    model = FullView(UNDONE["inside"][0])
    centred = RowModel.of(Centred(model, ("a_decentered",)), ARGS, None)
    found = expanded_groups(centred, centred.traced.zeros, say=lambda _: None)
    assert found.layout.grouping.num_groups == NUM_GROUPS
    assert found.layout.grouping.size == 3


def written_by_hand(mu, tau):
    with numpyro.plate("groups", NUM_GROUPS):
        return mu + tau * sample("z", dist.Normal(0, 1))


@pytest.mark.long
def test_effects_that_are_written_by_hand_are_named():
    kernel = AMAGOLD(model_of(written_by_hand), acceptance="subsampled")
    message = (
        r"\['z'\] times a function of \['tau'\], as non-centred effects have: write them centred"
    )
    with pytest.raises(ValueError, match=message):
        kernel.init(jax.random.key(0), 10, None, ARGS, {})


def run(model, **settings: Any) -> MCMC:
    kernel = AMAGOLD(model, acceptance="subsampled", num_integration_steps=4)
    mcmc = MCMC(
        kernel,
        num_warmup=100,
        num_samples=100,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *ARGS, **settings)
    return mcmc


@pytest.fixture(scope="module")
def mcmc():
    return run(UNDONE["around"][0])


@pytest.mark.long
def test_draws_are_those_of_the_centred_model_with_the_sites_of_the_users(mcmc):
    draws, plain = mcmc.get_samples(), run(model_of(in_plate)).get_samples()
    assert sorted(draws) == ["a", "a_decentered", "mu", "slope", "tau"]
    for name, value in plain.items():
        np.testing.assert_allclose(draws[name], value, rtol=2e-3, atol=2e-3)
    again = draws["mu"][:, None] + draws["tau"][:, None] * draws["a_decentered"]
    np.testing.assert_allclose(draws["a"], again, atol=1e-5)


@pytest.mark.long
def test_the_users_model_predicts_from_the_draws(mcmc):
    model = mcmc.sampler.model
    found = Predictive(model, mcmc.get_samples())(jax.random.key(1), *ARGS)
    assert found["y"].shape == (200, NUM_ROWS)
    np.testing.assert_allclose(found["a"], mcmc.get_samples()["a"], atol=1e-5)
    assert not any(np.isnan(leaf).any() for leaf in found.values())


@pytest.mark.long
def test_is_pickled_and_goes_on(mcmc):
    kernel, state = pickle.loads(pickle.dumps((mcmc.sampler._noise, mcmc.last_state)))
    assert kernel == ("a_decentered",)
    mcmc.post_warmup_state = state
    mcmc.run(jax.random.key(2), *ARGS)
    assert np.isfinite(mcmc.get_samples()["a_decentered"]).all()


@pytest.mark.long
@pytest.mark.parametrize("is_batch", [True, False])
def test_starts_are_given_in_the_coordinates_of_either_model(is_batch):
    model = UNDONE["around"][0]
    kernel = AMAGOLD(model, acceptance="subsampled", warm_start=False)
    theirs = {name: leaf for name, leaf in start(FullView(model)).items()}
    mine = {name: leaf for name, leaf in theirs.items() if name != "a_decentered"}
    mine["a"] = theirs["mu"] + jnp.exp(theirs["tau"]) * theirs["a_decentered"]
    key = jax.random.key(0)
    if is_batch:
        key = jax.random.split(key, 2)
        theirs, mine = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), (theirs, mine))
    found = [kernel.init(key, 10, given, ARGS, {}).z for given in (theirs, mine)]
    for name, leaf in mine.items():
        for z in found:
            np.testing.assert_allclose(z[name], leaf, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_starts_of_a_wrong_shape_are_named():
    kernel = AMAGOLD(UNDONE["around"][0], acceptance="subsampled")
    given = start(FullView(UNDONE["around"][0]))
    with pytest.raises(ValueError, match=r"init_params\['a_decentered'\] must have the"):
        kernel.init(jax.random.key(0), 10, given | {"a_decentered": jnp.zeros(3)}, ARGS, {})
    with pytest.raises(ValueError, match=r"missing \['mu'\]"):
        kernel.init(jax.random.key(0), 10, {k: v for k, v in given.items() if k != "mu"}, ARGS, {})


@pytest.mark.long
def test_other_kernels_sample_the_noise():
    kernel = AMAGOLD(UNDONE["around"][0], acceptance="full")
    assert "a_decentered" in kernel.init(jax.random.key(0), 10, None, ARGS, {}).z
