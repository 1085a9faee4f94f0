"""Where the chains of a model start: points of finite density, and what is wrong without one.

Around them the density of the model is also compared with itself in full precision, on a device
with coarse products. What the library multiplies states its precision
(:mod:`blackjax_ext.precision`); the products of a model are the user's. A constant of the energy
does no harm, so differences between points are compared.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro.distributions import ImproperUniform, constraints
from numpyro.handlers import block, substitute

from blackjax_ext import precision
from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.mcmc.derivatives import Differentiation
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.metrics.factor import Factor
from blackjax_ext.programs import compiled_soon
from blackjax_ext.raising import Raised, forgiving
from blackjax_ext.stacking import stacked
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import (
    SplitArguments,
    first_not_finite,
    run_with,
    split_arguments,
    to_blame,
)
from numpyro_fwd.bridge.numpyro_private import (
    find_valid_initial_params,
    identity,
    is_prng_key,
    not_jax_tracer,
)
from numpyro_fwd.bridge.traces import (
    drawn_on_host,
    first_sites,
    is_latent,
    sites_at,
    without_values,
)
from numpyro_fwd.types import Args, Kwargs, Model, Sites

Position = Any
VECTOR = "all coordinates"
MANY_SITES = 12  # of a model, in whose program much may be alike


def find_start(
    rng_key: Array,
    model: Model,
    sites: Sites,
    arguments: SplitArguments,
    make_potential: Function,
    prototype: dict[str, Any],
    *,
    look: Callable[[Args, Kwargs | None], Sites],
    check: Callable[[Any, np.ndarray], None],
    init_strategy: Function,
    differentiation: Differentiation,
    enum: bool,
) -> Any:
    """Random points of finite density with a finite gradient, one per key, in one program.

    Of a `model` as NumPyro evaluates it, with `sites` at some values, those of
    ``look(model_args, model_kwargs)``; `prototype` is a position. Where none is found,
    ``check(z, is_valid)`` raises an error if the model does.
    """
    # values would be constants of the program, another one for each seed
    like = {
        name: np.zeros(np.shape(leaf), jnp.result_type(leaf)) for name, leaf in prototype.items()
    }
    # other strategies ask each site, and an enumeration has handlers that need its place
    is_plain = drawn_on_host(init_strategy) is not None and not enum
    size = sum(np.size(leaf) for leaf in like.values())
    unravel: Function = identity
    if is_plain and len(like) >= MANY_SITES:  # one draw: that of each site is as much to compile
        flat, unravel_one = ravel_pytree(like)
        unravel = partial(of_vector, unravel_one)
        make_potential = of_flat(make_potential, unravel)
        like = {VECTOR: np.zeros(flat.shape, flat.dtype)}
    plates = {name: site["value"] for name, site in sites.items() if site["type"] == "plate"}
    search = partial(
        find_valid_initial_params,
        model=as_model(make_potential, like) if is_plain else substitute(model, data=plates),
        init_strategy=init_strategy,
        enum=enum,
        prototype_params=like,
        forward_mode_differentiation=differentiation == "forward" and size > 0,
        # a gradient of D JVPs, asked for where the warm start can afford it too
        validate_grad=differentiation in ("reverse", "gradients")
        or (differentiation == "forward" and size <= BUDGET.dimensions["forward"]),
    )

    def find(arrays, rng_key):
        model_args, model_kwargs = arguments.join(arrays)
        (z, *_), is_valid = search(rng_key, model_args=model_args, model_kwargs=model_kwargs)
        is_whole = unravel is identity or is_prng_key(rng_key)
        return unravel(z) if is_whole else jax.vmap(unravel)(z), is_valid

    program = compiled_soon(forgiving(find, Raised()), runs_once=True)
    z, is_valid = run_with(arguments, program, rng_key)
    if not_jax_tracer(is_valid) and not np.all(is_valid := on_host(is_valid)):
        check(z if is_valid.ndim else jax.tree.map(lambda leaf: leaf[None], z), is_valid)
        raise ValueError(no_start_message(look, *arguments.join(arguments.arrays)))
    return z


def as_model(make_potential: Function, like: dict[str, Any]) -> Model:
    """A model of this energy, of latents like these on the real line and one factor."""

    def model(*args: Any, **kwargs: Any) -> None:
        z = {
            name: numpyro.sample(name, ImproperUniform(constraints.real, (), np.shape(leaf)))
            for name, leaf in like.items()
        }
        with block():  # sites of the model of which the energy is
            energy = make_potential(*args, **kwargs)(z)
        numpyro.factor(f"density of {', '.join(like)}", -energy)

    return model


def of_flat(make_potential: Function, unravel: Function) -> Function:
    """The same potential energies of all coordinates in one site."""

    def make(*model_args: Any, **model_kwargs: Any) -> Function:
        energy = make_potential(*model_args, **model_kwargs)
        return stacked(lambda z: energy(unravel(z)))

    return make


def of_vector(unravel: Function, z: dict[str, Array]) -> Any:
    """The position of all sites from that of one."""
    return unravel(z[VECTOR])


def no_start_message(look: Function, model_args: Args, model_kwargs: Kwargs | None) -> str:
    """Explain where the log density is not finite; ``look(args, kwargs)`` are sites."""
    bad = sites_not_finite(look(model_args, model_kwargs))
    if bad:
        bad = [*to_blame(model_args, model_kwargs, lambda *a: not sites_not_finite(look(*a))), *bad]
    where = f"; at a first draw {', '.join(bad)}" if bad else ""
    return (
        "model has no start: its log density (or its gradient) was not finite at 100 random "
        f"points{where}. Check the data against the supports; if they fit, give init_params, or "
        "init_strategy=numpyro.infer.init_to_median, here or to numpyro.infer.NUTS."
    )


def sites_not_finite(sites: Sites) -> list[str]:
    """Where the log density of each site is not finite first."""
    found = []
    for name, site in sites.items():
        if site["type"] != "sample":
            continue
        bad = first_not_finite(jnp.asarray(site["fn"].log_prob(site["value"])))
        if bad is not None:
            place, value = bad
            found.append(f"site '{name}' is {value}{f' at {place}' if place else ''}")
    return found


def in_precision_of(prototype: dict[str, Any], init_params: dict[str, Any]) -> dict[str, Any]:
    """Arrays of another precision than the model's would make a state of other types than it."""
    return {
        name: jnp.asarray(leaf, jnp.result_type(prototype[name]))
        if jnp.issubdtype(jnp.result_type(leaf), np.floating)
        else leaf
        for name, leaf in init_params.items()
    }


def check_init_params(
    init_params: Position, prototype: dict[str, Any], latents: list[str], chains: tuple[int, ...]
) -> None:
    """Raise unless `init_params` gives each latent site a value of its shape, for all `chains`."""
    if not isinstance(init_params, dict):
        raise TypeError(
            f"init_params must be a dict with the sites {sorted(latents)}; "
            f"got {type(init_params).__name__}."
        )
    missing, extra = set(prototype) - set(init_params), set(init_params) - set(prototype)
    if missing or extra:
        raise ValueError(
            f"init_params must have exactly the latent sites {sorted(prototype)}; "
            f"missing {sorted(missing)}, extra {sorted(extra)}."
        )
    for name, like in prototype.items():
        if jnp.shape(init_params[name]) != (shape := chains + jnp.shape(like)):
            raise ValueError(
                f"init_params['{name}'] must have the unconstrained shape {shape}; "
                f"got {jnp.shape(init_params[name])}."
            )


def check_start(position: Position) -> None:
    """Raise unless the start is finite and of a floating dtype; traced values are let through."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(position):
        name = f"init_params{jax.tree_util.keystr(path)}"
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(f"{name} must be floating; got {jnp.result_type(leaf)}.")
        if not_jax_tracer(leaf) and not np.isfinite(value := on_host(leaf)).all():
            raise ValueError(f"{name} must be finite; got {value}.")


class NoDensityError(ValueError):
    """The log density is not finite where chains start."""

    def __init__(self, logdensities: np.ndarray, where: str = ""):
        super().__init__(
            "init_params must have a finite log density in every chain; "
            f"got {logdensities}{where}. Check the data against the supports of the observed sites."
        )
        self.logdensities = logdensities


def check_finite(logdensities: Array) -> None:
    """Raise NoDensityError unless the log density is finite in each of the chains."""
    if not_jax_tracer(logdensities) and not np.isfinite(values := on_host(logdensities)).all():
        raise NoDensityError(values)


@contextlib.contextmanager
def explaining(
    model: Model | None, model_args: Args, model_kwargs: Kwargs | None, z: Position
) -> Iterator[None]:
    """Say more of what is wrong with the density of a model at the start `z` of its chains."""
    try:
        yield
    except NoDensityError as error:
        if model is None:
            raise
        is_finite = np.isfinite(error.logdensities)
        check_evaluated(model, model_args, model_kwargs, z, is_finite)
        first = int(np.argmin(is_finite))
        at_first = jax.tree.map(lambda leaf: leaf[first], z)
        sites = sites_at(model, model_args, model_kwargs, at_first, jax.random.key(0))
        where = f"; in chain {first} {', '.join(sites_not_finite(sites))}"
        raise NoDensityError(error.logdensities, where) from error


@contextlib.contextmanager
def explaining_shapes(
    model: Model | None, model_args: Args, model_kwargs: Kwargs | None, z: Position
) -> Iterator[None]:
    """Name the sites that have other shapes with these arguments than in a state at `z`.

    Raises
    ------
    ValueError
        In place of whatever came of the shapes.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        shapes = {}
        if model is not None:
            first = first_sites, jax.random.key(0), model, model_args, model_kwargs
            latents = without_values(*first).latents
            shapes = {name: leaf.shape for name, leaf in latents.items()}
        had = {name: jnp.shape(leaf) for name, leaf in z.items()} if shapes else {}
        if not shapes or had == shapes:
            raise
        found = [
            f"site '{name}' has {shapes.get(name, 'no value')} with these arguments, and had "
            f"{had.get(name, 'none')}"
            for name in sorted(had | shapes)
            if had.get(name) != shapes.get(name)
        ]
        raise ValueError(
            "a run cannot go on from a state of latents with other unconstrained shapes: "
            f"{', '.join(found)}. Set post_warmup_state = None for a warm-up of its own."
        ) from error


REMEDY = (
    "Let the call return NaN instead of raising, as diffrax.diffeqsolve(..., throw=False) returns "
    "numbers that are not finite: the log density is not finite either, and the point is rejected."
)


def first_evaluated(look: Function, args: Args, kwargs: Kwargs | None) -> Sites:
    """Sites ``look(args, kwargs)``; RuntimeError with line and point if a call into Python raises.

    NumPyro's own errors, and those of the model's own Python, are as they are.
    """
    try:
        sites: Sites = look(args, kwargs)
    except (RuntimeError, ValueError) as error:  # jaxlib has either for what a callback raises
        is_of_a_call = any(word in str(error).lower() for word in ("callback", "equinox"))
        if is_of_a_call and (raised := raised_by(look, args, kwargs)):
            raise refusal(raised) from error
        raise
    return sites


def check_evaluated(
    model: Model, args: Args, kwargs: Kwargs | None, z: Any, is_finite: np.ndarray
) -> None:
    """RuntimeError if `model` raises in a chain at `z`, (C, ...), without a density."""

    def look(args: Args, kwargs: Kwargs | None, at: Any) -> Sites:
        return sites_at(model, args, kwargs, at, jax.random.key(0))

    for i in np.flatnonzero(~is_finite):
        at = jax.tree.map(lambda leaf: leaf[i], z)  # noqa: B023
        if raised := raised_by(look, args, kwargs, at):
            raise refusal(raised)


def refusal(raised: str) -> RuntimeError:
    """An error that says what a model raises, and what to do."""
    return RuntimeError(
        f"model raises where chains would start: {raised}. {REMEDY} Or give "
        "init_strategy=numpyro.infer.init_to_value(values=...), where the model can be evaluated."
    )


def raised_by(look: Function, args: Args, kwargs: Kwargs | None, *rest: Any) -> str:
    """What the sites ``look(args, kwargs, *rest)`` raise, and the latents; "" for nothing."""
    split = split_arguments(args, kwargs)

    def evaluation(arrays: list[Any], *rest: Any) -> tuple[dict[str, Any], list[Any]]:
        found = look(*split.join(arrays), *rest)
        sites = {name: site for name, site in found.items() if site["type"] == "sample"}
        latents = {name: site["value"] for name, site in sites.items() if is_latent(site)}
        return latents, [site["fn"].log_prob(site["value"]) for site in sites.values()]

    program = jax.jit(forgiving(evaluation, raised := Raised()))
    # of a mesh no process holds all of the arrays, which it must be given
    latents, _ = jax.block_until_ready(run_with(split, program, *rest))
    point = ", ".join(f"{name} = {on_host(value)}" for name, value in latents.items())
    return raised.first and f"{raised.first}, at {point}"


NUM_COMPARED = 8
COARSE_PRODUCTS = (
    "the products of matrices on {} are rounded by default, to 10 bits (TF32) or fewer. Around the "
    "start this changes differences of the model's log density by {:.2g} nats: the chains would "
    "sample another posterior. Set "
    'jax.config.update("jax_default_matmul_precision", "highest") before the run, or write '
    'precision="highest" in the products of the model, which then take longer; or subtract means '
    "from what they multiply."
)


@precision.exact_products  # the same places under both precisions
def points_around(x: Array, metric: Factor | None) -> Array:
    """A few places to compare energies at, (n, D): starts of chains (C, D), and moves from them."""
    x = x[:NUM_COMPARED]
    rest = NUM_COMPARED - x.shape[0]
    if not rest:
        return x
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(rest, x.shape[1])), x.dtype)
    moves = 0.1 * noise if metric is None else jax.vmap(metric.inverse_sqrt_times)(noise)
    return jnp.concatenate([x, x[0] + moves])


def check_products(energies: Callable[[], Array]) -> None:
    """Warn if `energies` (n,), traced and run twice, depend on the precision of products.

    Only where the device has coarse ones: elsewhere nothing is run. Traced values are let through.
    """
    if not precision.are_coarse_here():
        return
    both = energies(), precision.exact_products(energies)()
    if not not_jax_tracer(both[0]):
        return
    here, full = (np.asarray(on_host(values), np.float64) for values in both)
    is_known = np.isfinite(full)
    if not is_known.any():
        return
    here, full = here[is_known], full[is_known]
    off = float(np.max(np.abs(here - full - np.median(here - full))))
    # roundings of the energy that full precision would not take away
    rounding = 8.0 * float(jnp.finfo(both[0].dtype).eps * np.max(np.abs(full)))
    # nats that nobody sees in a posterior
    if not off <= max(0.01, rounding) and is_first_process():
        warnings.warn(COARSE_PRODUCTS.format(jax.devices()[0].device_kind, off), stacklevel=2)
