"""What a model scales: read from its program, in the ways in which people write it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.contrib.control_flow import scan
from numpyro.distributions.transforms import AffineTransform
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import constrain_fn

from blackjax_ext.coordinates import laws, maps, sequences
from numpyro_fwd.bridge.coordinates import ModelCoordinates, effects_of
from numpyro_fwd.bridge.scaled_noise import scaled_noise
from numpyro_fwd.bridge.traces import first_sites, is_latent

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12) % 4
GROUP = np.arange(12, dtype=np.int32) % 4


def noise(name="z", size=4):
    """Standard noise."""
    return numpyro.sample(name, dist.Normal(0, 1).expand([size]).to_event(1))


def scales(*names):
    """Positive latents."""
    return [numpyro.sample(name, dist.HalfNormal(1)) for name in names]


def counted(rate):
    """A likelihood that sees all."""
    numpyro.sample("y", dist.Poisson(jnp.exp(rate)), obs=Y)


def shifted():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    (tau,) = scales("tau")
    counted((mu + tau * noise())[GROUP])


def shifted_by_less():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    (tau,) = scales("tau")
    counted((noise() / (1 / tau) - mu)[GROUP])


def within_a_plate():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.Uniform(0, 3))
    with numpyro.plate("groups", 4):
        z = numpyro.sample("z", dist.Normal(0, 1))
    counted((mu + z * tau)[GROUP])


def noise_first():
    z = noise()
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    (tau,) = scales("tau")
    counted((mu + tau * z)[GROUP])


def horseshoe():
    z = noise()
    tau, sigma = scales("tau", "sigma")
    local = numpyro.sample("local", dist.HalfCauchy(1).expand([4]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ (z * local * tau), sigma), obs=X[:, 0])


def chosen_first():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    (tau,) = scales("tau")
    counted(mu + tau * noise()[GROUP])


def taken_off():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    (tau,) = scales("tau")
    counted((mu - tau * noise())[GROUP])


def with_scales_of_zero():
    (tau,) = scales("tau")
    counted((noise() * tau * jnp.exp(-tau * np.array([0.0, 0.0, 5000.0, 5000.0])))[GROUP])


def walked(z, tau, way="sums"):
    """A walk, in ways in which people write it."""
    return {
        "sums": lambda: tau * jnp.cumsum(z),
        "steps": lambda: jnp.cumsum(z * tau),
        "by less": lambda: jnp.cumsum(z / (1 / tau)),
        "in two": lambda: tau**0.5 * jnp.cumsum(tau**0.5 * z),
        "with a number": lambda: 2 * jnp.cumsum(0.5 * z * tau),
        "from": lambda: 0.7 + jnp.cumsum(tau * z)[::-1],
        "in order": lambda: tau * jnp.cumsum(z, axis=-1)[jnp.arange(12)],
        "of others": lambda: jnp.cumsum(tau ** jnp.arange(1, 13) * z),
        "backwards": lambda: tau * jax.lax.cumsum(z, reverse=True),
        "columns": lambda: tau * jnp.cumsum(z.reshape(4, 3), 0).ravel(),
    }[way]()


WALKS = ["sums", "steps", "by less", "in two", "with a number", "from", "in order"]
NO_WALKS = {"of others": 0.3 ** np.arange(1, 13), "backwards": 0.3, "columns": 0.3}


def walk(way):
    (tau,) = scales("tau")
    counted(walked(noise(size=12), tau, way))


def by_handler(config):
    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        (tau,) = scales("tau")
        with reparam(config={"a": config}):
            base = dist.Normal(mu, tau)
            if isinstance(config, TransformReparam):
                base = dist.TransformedDistribution(dist.Normal(0, 1), AffineTransform(mu, tau))
            a = numpyro.sample("a", base.expand([4]).to_event(1))
        counted(a[GROUP])

    return model


def levels():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    of_group, of_row = scales("of_group", "of_row")
    a = mu + of_group * noise()
    counted(a[GROUP] + of_row * noise("of_rows", 12))


def under_an_effect():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    (tau,) = scales("tau")
    spread = numpyro.sample("spread", dist.LogNormal(mu, tau).expand([4]).to_event(1))
    counted((spread * noise())[GROUP])


def of_any_sign():
    s = numpyro.sample("s", dist.Normal(0, 1))
    counted((s * noise())[GROUP])


def with_a_sign():
    (tau,) = scales("tau")
    s = numpyro.sample("s", dist.Normal(0, 1))
    counted(((tau + s) * noise())[GROUP])


def scales_chosen_too():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    local = numpyro.sample("local", dist.HalfNormal(1).expand([4]).to_event(1))
    counted(mu + local[GROUP] * noise()[GROUP])


def written_twice():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    (tau,) = scales("tau")
    z = noise()
    counted((mu + tau * z)[GROUP])
    numpyro.sample("w", dist.Normal((mu + tau * z)[GROUP], 1.0), obs=Y)


def all_normal():
    mu, log_tau = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("mu", "s"))
    counted((mu + jnp.exp(log_tau) * noise())[GROUP])


# with these values: the location and the scale of `z`
POSITION = {
    "mu": 0.7,
    "tau": np.log(0.3),
    "local": np.log([1.0, 2.0, 3.0, 4.0]),
    "spread": 0.5,
    "s": -0.4,
}
READ = {
    "shifted": (shifted, "z", 0.7, 0.3),
    "shifted by less": (shifted_by_less, "z", -0.7, 0.3),
    "within a plate": (within_a_plate, "z", 0.7, 3 * 0.3 / 1.3),
    "noise first": (noise_first, "z", 0.7, 0.3),
    "horseshoe": (horseshoe, "z", 0.0, 0.3 * np.arange(1, 5)),
    "chosen first": (chosen_first, "z", 0.7, 0.3),
    "taken off": (taken_off, "z", 0.7, -0.3),
    "scales of zero": (with_scales_of_zero, "z", 0.0, np.array([0.3, 0.3, 0.0, 0.0])),
    **{way: (partial(walk, way), "z", 0.0, size) for way, size in NO_WALKS.items()},
    "LocScaleReparam": (by_handler(LocScaleReparam(0)), "a_decentered", 0.7, 0.3),
    "TransformReparam": (by_handler(TransformReparam()), "a_base", 0.7, 0.3),
    "levels": (levels, "z", 0.7, 1.0),
    "of any sign": (of_any_sign, "z", 0.0, -0.4),
    "with a sign": (with_a_sign, "z", 0.0, -0.1),
    "scales chosen too": (scales_chosen_too, "z", 0.7, np.arange(1.0, 5.0)),
    "written twice": (written_twice, "z", 0.7, 0.3),
    "all normal": (all_normal, "z", 0.7, np.exp(-0.4)),
    "under an effect": (under_an_effect, "z", 0.0, np.exp(0.5)),
}


def start_of(model, *arguments):
    """Zeros for the latents, or what `POSITION` has."""
    sites = first_sites(jax.random.key(0), model, arguments, {})
    return {
        name: jnp.broadcast_to(
            jnp.asarray(POSITION.get(name, 0.0), float), jnp.shape(site["value"])
        )
        for name, site in sites.items()
        if is_latent(site)
    }


def coordinates_of(model, *arguments):
    """The coordinates of a model, and a position."""
    z = start_of(model, *arguments)
    effects = effects_of(model, arguments, {}, z).names
    found = scaled_noise(model, arguments, {}, z, effects).names
    return ModelCoordinates(model, arguments, {}, effects, found), z


@pytest.mark.parametrize("name", READ)
def test_the_law_of_a_noise_is_read(name, x64):
    model, site, loc, scale = READ[name]
    coordinates, z = coordinates_of(model)
    z = z | {site: jnp.arange(1.0, z[site].size + 1)}
    half = {
        k: laws.Pseudo(jnp.full_like(z[k], 0.4), jnp.full_like(z[k], 5.0))
        if k in coordinates.names
        else None
        for k in z
    }

    @jax.jit
    def looked_at(z):
        u = coordinates.into(z, half)
        flat, unravel = ravel_pytree(u)
        jacobian = jax.jacfwd(lambda x: ravel_pytree(coordinates.out(unravel(x), half)[0])[0])(flat)
        return u, coordinates.out(u, half), jacobian

    u, placed, jacobian = looked_at(z)
    known = 1 + 5.0 * np.square(scale)
    expected = np.sqrt(known) * (z[site] - scale * 5.0 * (0.4 - loc) / known)
    np.testing.assert_allclose(u[site], expected, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), placed.position, z
    )
    np.testing.assert_allclose(placed.log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9)


@pytest.mark.parametrize("way", WALKS)
def test_the_noise_of_a_walk_has_the_coordinates_of_its_places(way, x64):
    coordinates, z = coordinates_of(walk, way)
    z = z | {"z": jnp.asarray(np.random.default_rng(1).normal(size=12))}
    some = laws.Pseudo(jnp.linspace(-1.0, 1.0, 12), jnp.linspace(0.0, 5.0, 12))

    @jax.jit
    def entered(z):
        u = coordinates.into(z, {"tau": None, "z": some})
        law = sequences.walk(0.3, 12)
        places = maps.into(law, some, walked(z["z"], jnp.float64(0.3)))
        return u, places, coordinates.out(u, {"tau": None, "z": some}).position

    u, places, back = entered(z)
    np.testing.assert_allclose(u["z"], places, rtol=1e-6)
    np.testing.assert_allclose(back["z"], z["z"], rtol=1e-6)


FACTORS = {
    "rows": ((5, 2), lambda z, k, L: z @ (k[:, None] * L).T),
    "rows of a product": ((5, 2), lambda z, k, L: (z @ L.T) * k),
    "columns": ((2, 5), lambda z, k, L: (k[:, None] * (L @ z)).T),
    "one": ((2,), lambda z, k, L: k * (L @ z)),
}


@pytest.mark.parametrize("form", FACTORS)
def test_factors_of_groups_are_read(form, x64):
    """The law's effect is the model's, of which the components are those of the factor."""
    shape, effect_of = FACTORS[form]

    def parts():
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        k = numpyro.sample("k", dist.HalfNormal(1).expand([2]).to_event(1))
        factor = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
        z = numpyro.sample("z", dist.Normal(0, 1).expand(shape).to_event(len(shape)))
        return mu, effect_of(z, k, factor)

    def model():
        mu, b = parts()
        counted(mu + jnp.resize(b, (12, 2))[:, 0] + X[:, 0] * jnp.resize(b, (12, 2))[:, 1])

    rng = np.random.default_rng(5)
    shapes = {"mu": (), "k": (2,), "L": (1,), "z": shape}
    z = {name: jnp.asarray(rng.normal(size=each)) for name, each in shapes.items()}
    noise = scaled_noise(model, (), {}, z, effects_of(model, (), {}, z).names).names
    assert noise == ("z",)
    coordinates = ModelCoordinates(model, (), {}, (), noise)
    pseudo = {name: None for name in z} | {"z": laws.Pseudo(z["z"] + 1, jnp.exp(z["z"]))}

    @jax.jit
    def looked_at(z):
        u = coordinates.into(z, pseudo)
        placed = coordinates.out(u, pseudo)
        jacobian = jax.jacfwd(lambda x: coordinates.out(u | {"z": x}, pseudo).position["z"])(u["z"])
        return placed, jacobian.reshape(z["z"].size, -1)

    placed, jacobian = looked_at(z)
    np.testing.assert_allclose(placed.position["z"], z["z"], rtol=1e-9)
    np.testing.assert_allclose(placed.log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9)
    values = constrain_fn(model, (), {}, z)
    _, expected = numpyro.handlers.seed(
        numpyro.handlers.substitute(parts, values), jax.random.key(0)
    )()
    found = placed.laws["z"].effect(z["z"])
    np.testing.assert_allclose(found.T if form == "columns" else found, expected, rtol=1e-9)


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("size", [2, 5])
def test_masked_components_of_a_factor_depend_on_nothing(form, size, x64):
    """Also where rows and columns are as many."""
    shape = (size, 2) if form == "rows" else (2, size)
    mask = np.random.default_rng(0).random(shape) < 0.5

    def model():
        k = numpyro.sample("k", dist.HalfNormal(1).expand([2]).to_event(1))
        factor = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
        z = numpyro.sample("z", dist.Normal(0, 1).expand(shape).mask(mask))
        counted(X[:, 0] * jnp.resize(FACTORS[form][1](z, k, factor), (12, 2)).sum(1))

    rng = np.random.default_rng(5)
    shapes = {"k": (2,), "L": (1,), "z": shape}
    u = {name: jnp.asarray(rng.normal(size=each)) for name, each in shapes.items()}
    coordinates = ModelCoordinates(model, (), {}, (), scaled_noise(model, (), {}, u, ()).names)
    assert coordinates.noise == ("z",)
    pseudo = dict.fromkeys(u) | {"z": laws.Pseudo(u["z"] + 1, jnp.exp(u["z"]))}
    slope = jax.jacfwd(lambda u: coordinates.out(u, pseudo).position["z"])(u)
    assert not slope["k"][~mask].any() and slope["k"][mask].any(-1).all()
    own = np.asarray(slope["z"]).reshape(mask.size, -1)[~mask.ravel()]
    np.testing.assert_array_equal(own, np.eye(mask.size)[~mask.ravel()])


def twice():
    (tau,) = scales("tau")
    z = noise()
    counted((tau * z)[GROUP] + jnp.sum(z**2))


def regression():
    (sigma,) = scales("sigma")
    numpyro.sample("y", dist.Normal(X @ noise(), sigma), obs=X[:, 0])


def observed_itself():
    (sigma,) = scales("sigma")
    numpyro.sample("y", dist.Normal(noise(size=12), sigma), obs=X[:, 0])


def of_a_later_effect():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    z = noise()
    spread = numpyro.sample("spread", dist.LogNormal(mu, 1.0))
    counted((spread * z)[GROUP])


def of_itself():
    z = noise()
    counted((jnp.exp(z) * z)[GROUP])


def in_a_loop():
    def turn(carry, _):
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        return carry + tau * numpyro.sample("z", dist.Normal(0, 1)), None

    carry, _ = scan(turn, 0.0, jnp.arange(3))
    counted(jnp.full(12, carry))


def response():
    sharpness = numpyro.sample("sharpness", dist.LogNormal(0, 1).expand([3]).to_event(1))
    level = numpyro.sample("level", dist.Normal(0, 1).expand([3]).to_event(1))
    counted((sharpness * (noise()[:, None] - level)).ravel())


NOT_READ = [twice, regression, observed_itself, of_a_later_effect]
NOT_READ += [of_itself, in_a_loop, response]


@pytest.mark.parametrize("model", NOT_READ)
def test_what_is_no_scaled_noise_is_left_alone(model):
    coordinates, _ = coordinates_of(model)
    assert not coordinates.noise


def test_a_program_of_other_arguments_may_use_the_noise_otherwise():
    """What was read is exact there, or stands for nothing."""

    def model(kind):
        (tau,) = scales("tau")
        z = noise()
        ways = {"scaled": tau * z, "itself": z, "squared": tau * z + z**2, "late": z * tau * 2}
        counted((ways | {"in turn": jnp.exp(z) * z})[kind][GROUP])

    first, z = coordinates_of(model, "scaled")
    for kind, scale in {"itself": 1.0, "squared": 1.0, "in turn": 1.0, "late": 0.6}.items():
        coordinates = ModelCoordinates(model, (kind,), {}, (), first.noise)
        found = coordinates.out(z, {"tau": None, "z": laws.Pseudo(jnp.ones(4), jnp.ones(4))}).laws[
            "z"
        ]
        np.testing.assert_allclose(found.scale, scale, rtol=1e-6)


def test_data_may_be_arguments_that_are_traced():
    """The scale is read where the program is made, of whatever the model has there."""

    def model(x, sizes):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        (tau,) = scales("tau")
        a = mu + tau * sizes * noise()
        numpyro.sample("y", dist.Normal(x @ a, 1.0), obs=x[:, 0])

    def as_model(x, sizes):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        (tau,) = scales("tau")
        numpyro.sample("y", dist.Normal(x @ (mu * sizes + noise() * tau), 1.0), obs=x[:, 0])

    sizes = jnp.arange(1.0, 5.0)
    assert coordinates_of(model, X, sizes)[0].noise == ("z",)  # whatever the signs of other data
    coordinates, z = coordinates_of(as_model, X, sizes)
    assert coordinates.noise == ("z",)

    def entered(x, sizes):
        known = ModelCoordinates(as_model, (x, sizes), {}, (), coordinates.noise)
        pseudo = laws.Pseudo(jnp.ones(4), jnp.ones(4))
        return known.into(z, {"mu": None, "tau": None, "z": pseudo})

    np.testing.assert_allclose(
        jax.jit(entered)(X, sizes)["z"], 0.3 * (0.7 * sizes - 1) / np.sqrt(1.09), rtol=1e-5
    )


def cut_off():
    (tau,) = scales("tau")
    x = numpyro.sample("x", dist.TruncatedNormal(tau, 1.0, low=0.0).expand([4]).to_event(1))
    counted(x[GROUP])


def squared():
    (tau,) = scales("tau")
    counted((tau * noise() ** 2)[GROUP])


def used_twice():
    (tau,) = scales("tau")
    z = noise()
    counted((tau * z + jnp.exp(z))[GROUP])


def looped():
    (tau,) = scales("tau")

    def body(x, _):
        x = numpyro.sample("x", dist.Normal(x, tau))
        return x, x

    counted(scan(body, jnp.zeros(()), None, length=12)[1])


def looped_then_scaled():
    looped()
    (s,) = scales("s")
    numpyro.sample("w", dist.Normal(s * noise(), 1), obs=X[0])


REASONS = {
    cut_off: ("x", "no law of a LeftTruncatedDistribution"),
    squared: ("z", "nothing that is sampled scales it before 'integer_pow'"),
    used_twice: ("z", "2 operations use it"),
    looped: ("x", "it is in a loop of NumPyro"),
}


@pytest.mark.parametrize("model", REASONS)
def test_what_is_sampled_as_written_says_why(model):
    z = start_of(model)
    effects = effects_of(model, (), {}, z)
    noise = scaled_noise(model, (), {}, z, effects.names)
    assert (effects.names, noise.names) == ((), ())
    site, reason = REASONS[model]
    assert reason in (noise.as_written | effects.as_written)[site]


def test_noise_beside_a_loop_has_its_law(x64):
    coordinates, z = coordinates_of(looped_then_scaled)
    placed = coordinates.out(z, dict.fromkeys(z) | {"z": laws.Pseudo(z["z"] + 1, z["z"] + 3)})
    assert coordinates.names == ("z",) and placed.laws["x"] is None
    np.testing.assert_allclose(placed.laws["z"].scale, jnp.exp(z["s"]), rtol=1e-9)
