r"""Effects that ``numpyro.handlers.reparam`` has taken out of their hierarchy, put back.

``LocScaleReparam`` samples noise z where a model says :math:`\theta`, and computes

.. math:: \theta = m + s z, \qquad m, s \text{ functions of the other latents},

so that the predictors of rows that see :math:`\theta` are products of latents. The posterior is the
same in the coordinates :math:`\theta`: given m and s the map is a bijection of the real line, of
slope s for each coordinate, and noise of density D becomes

.. math:: p(\theta \mid m, s) = D\big((\theta - m) / s\big) / |s|.

In the order in which a model draws its latents the Jacobian of several such maps is triangular, so
this holds for all of them at once, whatever m and s are computed from. :class:`Centred` runs a
model in these coordinates: :math:`\theta` is a latent site of the density above and z a
deterministic one, so draws have the sites of the user's model, with the same joint law.

The model is not rewritten. Where it draws noise, :class:`centring` answers with 0 and with a number
f at once, along an axis in front; the outcomes are m and m + s f, from which it reads m and s. f is
a power of two so large that what rounding leaves of m is nothing to s. So partial centring,
``TransformReparam`` of an affine transform, plates and handlers inside of a model are understood
like ``reparam(model, config)``. That an outcome is affine, each coordinate in its own noise, is
checked at a dozen points (:func:`noise_sites`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from blackjax_ext.mcmc.dependence import dependent
from numpyro_fwd.bridge.arguments import evaluating
from numpyro_fwd.bridge.numpyro_private import (
    Messenger,
    is_prng_key,
    is_reparametrizing,
)
from numpyro_fwd.bridge.plates import first_rows
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.bridge.starts import check_init_params
from numpyro_fwd.bridge.traces import first_sites, sites_at, unwrapped
from numpyro_fwd.subsampling.predictors import linear_predictor_of
from numpyro_fwd.types import Model, Site

# what NumPyro appends to the name of a site for its noise
SUFFIXES = ("_decentered", "_base")
FAR_POINT = 2.0**40
NUM_PLACES = 12


def outcome_of(noise: str) -> str | None:
    """The name of the site that is computed from a site of noise, if its name is one of noise."""
    return next((noise.removesuffix(end) for end in SUFFIXES if noise.endswith(end)), None)


def shape_of_draws(fn: dist.Distribution) -> tuple[int, ...]:
    """Of its values."""
    return fn.batch_shape + fn.event_shape


class AffineMap(NamedTuple):
    """Shift and scale of noise, of the shape of a site."""

    shift: Array
    scale: Array

    def law(self, noise: dist.Distribution) -> dist.Distribution:
        """Of the site, each coordinate by itself."""
        of_one = unwrapped(noise).expand(shape_of_draws(noise))
        transform = dist.transforms.AffineTransform(self.shift, self.scale)
        law = dist.TransformedDistribution(of_one, [transform])
        return law.to_event(noise.event_dim) if noise.event_dim else law


class centring(Messenger):
    """Sample the sites whose noise is in `names`, and keep the noise."""

    def __init__(self, names: tuple[str, ...] = (), fn: Model | None = None):
        super().__init__(fn)
        self.names = names
        self.noise: dict[str, Site] = {}  # the last message of noise, by the site that it is for
        self.maps: dict[str, AffineMap] = {}
        self.kept: dict[str, Array] = {}

    def is_answered(self, name: str) -> bool:
        """Whether noise is answered with several values at once."""
        return name in self.names

    def values(self, shape: tuple[int, ...]) -> Array:
        """What it is answered with, along an axis in front: zero and far."""
        return jnp.stack([jnp.zeros(shape), jnp.full(shape, FAR_POINT)])

    def turn(self, msg: Site, noise: Site) -> None:
        """Sample the site that is computed from the noise."""
        shift, far = msg["value"]
        self.maps[msg["name"]] = found = AffineMap(shift, (far - shift) / FAR_POINT)
        msg.update(noise | {"name": msg["name"], "fn": found.law(noise["fn"])})

    def process_message(self, msg: Site) -> None:
        """Answer noise, which no handler outside sees; the next site is its outcome."""
        name = str(msg.get("name"))
        if msg["type"] == "sample" and msg["value"] is None and self.is_answered(name):
            self.noise[str(outcome_of(name))] = dict(msg)
            msg["value"], msg["stop"] = self.values(shape_of_draws(msg["fn"])), True
        elif msg["type"] == "deterministic" and name in self.noise:
            self.turn(msg, self.noise.pop(name))

    def postprocess_message(self, msg: Site) -> None:
        """Keep the noise of a site that has its value."""
        if msg["type"] == "sample" and msg["name"] in self.maps:
            shift, scale = self.maps[msg["name"]]
            self.kept[msg["name"]] = (msg["value"] - shift) / scale


class Centred:
    """A model that samples the sites whose noise is in `names`, which is deterministic.

    Picklable, and a model like any other.
    """

    def __init__(self, model: Model, names: tuple[str, ...]):
        self.model, self.names = model, names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with (handler := centring(self.names)):
            returned = self.model(*args, **kwargs)
        for name in self.names:
            numpyro.deterministic(name, handler.kept[str(outcome_of(name))])
        return returned


class probing(centring):
    """Find, as `names`, the noise of which the next site is an affine outcome."""

    def is_answered(self, name: str) -> bool:
        """Whether the site may be noise of a handler that is at work."""
        return outcome_of(name) is not None and is_reparametrizing()

    def values(self, shape: tuple[int, ...]) -> Array:
        """Zero, one, and points of either size."""
        noise = np.random.default_rng(0).normal(size=(NUM_PLACES, *shape))
        noise[0], noise[1], noise[2::2] = 0.0, 1.0, 10.0 * noise[2::2]
        return jnp.asarray(noise)

    def turn(self, msg: Site, noise: Site) -> None:
        """Give the outcome its first value."""
        of_one, outcome = unwrapped(noise["fn"]), jnp.asarray(msg["value"])
        is_real = of_one.support is constraints.real and not of_one.event_shape
        is_plain = not isinstance(of_one, dist.MaskedDistribution)
        points = self.values(shape_of_draws(noise["fn"]))
        if is_real and is_plain and are_affine(points, outcome):
            self.names = (*self.names, noise["name"])
        msg["value"] = outcome[0]


def are_affine(points: Array, outcomes: ArrayLike) -> bool:
    """Whether outcomes are shift + scale * point in each coordinate; at zero and one they lead."""
    outcomes = np.asarray(outcomes, np.float64)
    if outcomes.shape != points.shape:
        return False
    shift, scale = outcomes[0], outcomes[1] - outcomes[0]
    expected = shift + scale * np.asarray(points, np.float64)
    size = np.abs(shift) + np.abs(scale * points)
    # of an outcome that is affine
    return bool(np.all(scale != 0) and np.all(np.abs(outcomes - expected) <= 1e-4 * size))


def noise_sites(model: RowModel) -> tuple[str, ...]:
    """Names of the latents of a full view that are noise of a shift and a scale."""
    if not any(map(outcome_of, model.sites)):
        return ()
    with evaluating(*model.model_args):
        handler = probing(fn=first_rows(model.model))
        first_sites(jax.random.key(0), handler, *model.model_args)
    return handler.names


def noise_seen_by_rows(model: RowModel) -> tuple[str, ...]:
    """The noise of a full view whose outcomes are what rows see.

    Noise above it in a hierarchy is left as it is: it bends no predictor.
    """
    names = noise_sites(model)
    if not names:
        return ()
    centred = RowModel.of(Centred(model.model, names), *model.model_args)
    z = centred.traced.zeros
    rows = linear_predictor_of(centred, z)

    def is_seen(name):
        def predictors(leaf):
            return rows.read(z | {name: leaf}, jnp.zeros(1, int))[0]

        return any(jax.tree.leaves(dependent(predictors, z[name])))

    return tuple(name for name in names if is_seen(str(outcome_of(name))))


def centred_start(model: RowModel, names: tuple[str, ...], rng_key: Array, init_params: Any) -> Any:
    """`init_params` of a full view as those of the model that samples the outcomes of `names`.

    What has no noise is returned as it is.
    """
    if not isinstance(init_params, dict) or not set(names) & set(init_params):
        return init_params
    prototype = model.traced.zeros
    chains = () if is_prng_key(rng_key) else rng_key.shape[:1]
    check_init_params(init_params, prototype, list(prototype), chains)

    def centred(z):
        found = sites_at(first_rows(model.model), *model.model_args, z, jax.random.key(0))
        outcomes = {of: found[of]["value"] for of in map(outcome_of, names) if of is not None}
        return {name: leaf for name, leaf in z.items() if name not in names} | outcomes

    for _ in chains:
        centred = jax.vmap(centred)
    return centred({name: jnp.asarray(leaf) for name, leaf in init_params.items()})
