"""What a kernel reads from a NumPyro model.

A :class:`View` of a model makes its potential energy and its constraining function from the
arguments of each call, so that nothing of the data or of a chain is stored on a kernel.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro.distributions import Delta, ImproperUniform, constraints
from numpyro.handlers import block, substitute

from blackjax_ext.adaptation.budget import BUDGET
from blackjax_ext.mcmc.derivatives import (
    Differentiation,
    Wanted,
    differenced,
    differentiation_of,
)
from blackjax_ext.meshes import on_host
from blackjax_ext.programs import compiled_soon
from blackjax_ext.raising import Raised, forgiving, without_checks
from blackjax_ext.stacking import stacked
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.bridge.argument_errors import first_not_finite, not_finite
from numpyro_fwd.bridge.arguments import (
    NEED_VALUES,
    SplitArguments,
    run_with,
    split_arguments,
    traced_once,
)
from numpyro_fwd.bridge.numpyro_private import (
    GIBBS_SITES_KWARG,
    find_valid_initial_params,
    get_potential_fn,
    identity,
    is_prng_key,
    not_jax_tracer,
    prepare_model,
    transform_fn,
    transforms_of,
    unconstrain_fn,
)
from numpyro_fwd.bridge.raising import check_evaluated, first_evaluated
from numpyro_fwd.bridge.traces import drawn_on_host, first_sites, in_floats, is_latent, sites_at
from numpyro_fwd.types import Args, Kwargs, Model, Sites

NO_FORWARD_MODE = (
    "MALA, AutoMALA, RandomWalk and numpyro.infer.NUTS do not need it. Solvers of diffrax have a "
    "forward mode with adjoint=diffrax.ForwardMode(); jax.experimental.ode.odeint has none."
)
# by what there is instead
WAYS_OUT = {
    "forward": "FMALA, LineFMALA, PCFMALA, PCLineFMALA and RandomWalk do not need it.",
    "reverse": NO_FORWARD_MODE,
    "gradients": NO_FORWARD_MODE,
    "none": "it has no derivatives. RandomWalk(model) and "
    "LangevinSMC(model, algorithm=blackjax_ext.random_walk) need none.",
}

__all__ = [
    "View",
    "check_finite",
    "check_start",
    "explaining",
    "explaining_shapes",
    "logdensity_of",
    "view_model",
    "view_potential",
]

Position = Any
VECTOR = "all coordinates"
MANY_SITES = 12  # of a model, in whose program much may be alike


class View(NamedTuple):
    """A target as seen by a kernel.

    potential_fn
        ``potential_fn(*model_args, **model_kwargs)`` is the potential energy, a function of the
        unconstrained position; of a model one that all programs of a start share.
    postprocess_fn
        ``postprocess_fn(*model_args, **model_kwargs)`` maps an unconstrained position to values in
        the sites' supports, with the deterministic sites.
    differentiation
        How the potential energy can be differentiated, as far as the kernel needs it. Where it has
        gradients alone, `potential_fn` has differences of them as second derivatives.
    """

    potential_fn: Function
    postprocess_fn: Function
    differentiation: Differentiation

    def differentiable(self, function: Function) -> Function:
        """`function` of the model, with the derivatives that the potential energy has."""
        return differenced(function) if self.differentiation == "gradients" else function

    def anew(self) -> "View":
        """The same, for later programs, each of which traces the model for itself."""
        if not isinstance(self.potential_fn, SharedTrace):
            return self
        return self._replace(potential_fn=self.potential_fn.make_potential)


class SharedTrace:
    """The potential energies of a model that is traced once for all programs of its arrays.

    Parameters
    ----------
    make_potential
        ``make_potential(*model_args, **model_kwargs)`` is a potential energy.
    arguments
        Those that share the trace, up to the values of arrays; others are traced by themselves.
    """

    def __init__(self, make_potential: Function, arguments: SplitArguments):
        self.make_potential, self.arguments = make_potential, arguments.without_data()
        join = arguments.join

        def energy(arrays: list[Any], z: Position) -> Array:
            model_args, model_kwargs = join(arrays)
            return make_potential(*model_args, **model_kwargs)(z)

        self.energy = traced_once(energy)

    def __call__(self, *model_args: Any, **model_kwargs: Any) -> Function:
        """The potential energy for these arguments."""
        arguments = split_arguments(model_args, model_kwargs)
        # a model may compute with arrays of NumPy what no program shall round otherwise
        is_known = any(isinstance(array, np.ndarray) for array in arguments.arrays)
        if is_known or not arguments.is_like(self.arguments):
            return cast(Function, self.make_potential(*model_args, **model_kwargs))
        return partial(self.energy, arguments.arrays)


def logdensity_of(view: View, model_args: Args, model_kwargs: Kwargs | None) -> LogDensity:
    """Log density on the unconstrained space for these arguments."""
    potential_fn = view.potential_fn(*model_args, **(model_kwargs or {}))
    return view.differentiable(lambda z: -potential_fn(z))


def view_potential(
    potential_fn: Function,
    init_params: Position,
    *,
    is_single: bool,
    wanted: Wanted | None,
) -> tuple[View, Position]:
    """View of a bare potential energy, which must come with `init_params`."""
    if not jax.tree.leaves(init_params):
        raise ValueError(
            "init_params must be given to run() with potential_fn, and hold at least one array; "
            f"got {init_params}."
        )
    check_start(init_params)
    position = init_params if is_single else jax.tree.map(lambda x: x[0], init_params)
    shape = jnp.shape(jax.eval_shape(potential_fn, position))
    if shape != ():
        raise TypeError(f"potential_fn must return a scalar; got an array of shape {shape}.")
    differentiation = check_derivatives("potential_fn", potential_fn, position, wanted)
    view = View(lambda *_, **__: potential_fn, lambda *_, **__: identity, differentiation)
    return view, init_params


def in_precision_of(prototype: dict[str, Any], init_params: dict[str, Any]) -> dict[str, Any]:
    """Arrays of another precision than the model's would make a state of other types than it."""
    return {
        name: jnp.asarray(leaf, jnp.result_type(prototype[name]))
        if jnp.issubdtype(jnp.result_type(leaf), np.floating)
        else leaf
        for name, leaf in init_params.items()
    }


def check_derivatives(
    name: str, potential_fn: Function, position: Position, wanted: Wanted | None
) -> Differentiation:
    """How the energy of what is called `name` can be differentiated; "none" if `wanted` is None.

    Raises
    ------
    ValueError
        If it cannot be as a kernel wants it, with the kernels that can sample it.
    """
    if wanted is None:
        return "none"
    found = differentiation_of(potential_fn, position, wanted)
    if found is None:
        others = differentiation_of(potential_fn, position, "none")
        raise ValueError(
            f"{name} cannot be differentiated in {wanted} mode, which this kernel needs; "
            f"{WAYS_OUT[others or 'none']}"
        )
    return found


def differentiation_with(
    make_potential: Function,
    arguments: SplitArguments,
    prototype: Position,
    wanted: Wanted | None,
) -> Differentiation:
    """How a model's energy can be differentiated, with its arrays as a program has them."""

    def found(arrays):
        model_args, model_kwargs = arguments.join(arrays)
        potential_fn = make_potential(*model_args, **model_kwargs)
        return check_derivatives("model", potential_fn, prototype, wanted)

    try:
        return found([jnp.asarray(array) for array in arguments.arrays])
    except NEED_VALUES:
        return found(arguments.arrays)


def view_model(
    rng_key: Array,
    model: Model,
    model_args: Args,
    model_kwargs: Kwargs | None,
    *,
    init_strategy: Function,
    init_params: Position,
    wanted: Wanted | None,
) -> tuple[View, Position]:
    """View of `model` and a start with finite density, one per key.

    Raises
    ------
    ValueError, TypeError
        If no kernel could sample the model, or `init_params` is not a start; the site is named.
    """
    model_kwargs = model_kwargs or {}
    key = rng_key if is_prng_key(rng_key) else rng_key[0]
    init_strategy = init_strategy if isinstance(init_strategy, partial) else init_strategy()
    if drawn_on_host(init_strategy) is None:
        init_strategy = partial(in_floats, init_strategy)
    try:
        sites = first_evaluated(key, model, model_args, model_kwargs, init_strategy)
    except ValueError as error:  # of a law whose parameter is NaN, as a covariate is
        if bad := not_finite(model_args, model_kwargs):
            raise ValueError(f"{error} Of the model's arguments, {', '.join(bad)}.") from error
        raise
    latents = check_sites(sites)
    facts = transforms_of(sites)
    prepared = prepare_model(model, sites, enum=facts.has_enumerate_support)
    make_potential, make_postprocess = get_potential_fn(
        prepared,
        facts.inv_transforms,
        replay_model=facts.has_deterministic or facts.dynamic_support,
        enum=facts.has_enumerate_support,
        dynamic_args=True,
        model_args=model_args,
        model_kwargs=model_kwargs,
    )
    if sum(site["type"] == "sample" for site in sites.values()) >= MANY_SITES:
        make_potential = partial(stacked_potential, make_potential)
    make_potential = partial(unchecked_potential, make_potential)
    enumerated = {name for name in latents if sites[name]["fn"].support.is_discrete}
    values = {name: sites[name]["value"] for name in latents if name not in enumerated}
    prototype = transform_fn(facts.inv_transforms, values, invert=True)
    arguments = split_arguments(model_args, model_kwargs)
    make_potential = SharedTrace(make_potential, arguments)
    differentiation = differentiation_with(make_potential, arguments, prototype, wanted)
    view = View(make_potential, make_postprocess, differentiation)
    if init_params is not None:
        chains = () if is_prng_key(rng_key) else rng_key.shape[:1]
        check_init_params(init_params, prototype, latents, chains)
        if GIBBS_SITES_KWARG in model_kwargs:  # Gibbs hands over constrained values
            init_params = unconstrain_fn(model, model_args, model_kwargs, init_params)
        return view, in_precision_of(prototype, init_params)
    # values would be constants of the program, another one for each seed
    like = {
        name: np.zeros(np.shape(leaf), jnp.result_type(leaf)) for name, leaf in prototype.items()
    }
    # other strategies ask each site, and an enumeration has handlers that need its place
    is_plain = drawn_on_host(init_strategy) is not None and not facts.has_enumerate_support
    plates = {name: site["value"] for name, site in sites.items() if site["type"] == "plate"}
    fixed = substitute(prepared, data=plates)
    size = sum(np.size(leaf) for leaf in prototype.values())
    unravel: Function = identity
    if is_plain and len(like) >= MANY_SITES:  # one draw: that of each site is as much to compile
        flat, unravel_one = ravel_pytree(like)
        unravel = partial(of_vector, unravel_one)
        make_potential, like = (
            of_flat(make_potential, unravel),
            {VECTOR: np.zeros(flat.shape, flat.dtype)},
        )
    search = partial(
        find_valid_initial_params,
        model=as_model(make_potential, like) if is_plain else fixed,
        init_strategy=init_strategy,
        enum=facts.has_enumerate_support,
        prototype_params=like,
        forward_mode_differentiation=differentiation == "forward" and size > 0,
        # a gradient of D JVPs, asked for where the warm start can afford it too
        validate_grad=differentiation in ("reverse", "gradients")
        or (differentiation == "forward" and size <= BUDGET.dimensions["forward"]),
    )
    return view, search_start(search, rng_key, model, sites, arguments, unravel)


def stacked_potential(make_potential: Function, *model_args: Any, **model_kwargs: Any) -> Function:
    """A potential energy with what is alike in its program together."""
    return stacked(make_potential(*model_args, **model_kwargs))


def unchecked_potential(make_potential: Function, *args: Any, **kwargs: Any) -> Function:
    """A potential energy that is NaN where a check of its program fails."""
    return without_checks(make_potential(*args, **kwargs))


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


def search_start(
    search: Function,
    rng_key: Array,
    model: Model,
    sites: Sites,
    arguments: SplitArguments,
    unravel: Function,
) -> Any:
    """Random points of finite density with a finite gradient, one per key, in one program."""

    def find(arrays, rng_key):
        model_args, model_kwargs = arguments.join(arrays)
        (z, *_), is_valid = search(rng_key, model_args=model_args, model_kwargs=model_kwargs)
        is_whole = unravel is identity or is_prng_key(rng_key)
        return unravel(z) if is_whole else jax.vmap(unravel)(z), is_valid

    program = compiled_soon(forgiving(find, Raised()), runs_once=True)
    z, is_valid = run_with(arguments, program, rng_key)
    if not_jax_tracer(is_valid) and not np.all(on_host(is_valid)):
        args, kwargs = arguments.join(arguments.arrays)
        chains = z if np.ndim(is_valid) else jax.tree.map(lambda leaf: leaf[None], z)
        check_evaluated(model, args, kwargs, chains, np.atleast_1d(on_host(is_valid)))
        raise ValueError(no_start_message(sites, args, kwargs))
    return z


def check_sites(sites: Sites) -> list[str]:
    """Names of the latent sites; raises ValueError for a site that rules sampling out."""
    latents = []
    for name, site in sites.items():
        kind = site["type"]
        # the parameters of a network that all have a prior leave a param site without arrays
        if kind == "param" and jax.tree.leaves(site["value"]):
            raise ValueError(
                f"model has the param site '{name}', which MCMC would freeze at its first value; "
                "give it a prior with numpyro.sample, or fix it with numpyro.handlers.substitute."
            )
        if kind == "mutable":
            raise ValueError(
                f"model has the mutable site '{name}'; a kernel samples pure functions only: pass "
                "the value as an argument of the model."
            )
        if kind == "plate" and site["args"][1] not in (None, site["args"][0]):
            size, subsample_size = site["args"]
            raise ValueError(
                f"plate '{name}' subsamples {subsample_size} of {size} rows; this kernel needs "
                "every row: leave subsample_size out."
            )
        if is_latent(site):
            latents.append(name)
            if isinstance(site["fn"], Delta):
                raise ValueError(
                    f"site '{name}' has a Delta distribution, which cannot be sampled; "
                    "name it with numpyro.deterministic instead."
                )
            discrete = site["fn"].support.is_discrete
            if discrete and site["infer"].get("enumerate") != "parallel":
                raise ValueError(
                    f"site '{name}' ({type(site['fn']).__name__}) is a discrete latent, which has "
                    'no gradient; marginalize it with infer={"enumerate": "parallel"}, or give it '
                    "to DiscreteGibbs in a numpyro.infer.Gibbs kernel. If it stands for responses "
                    "that are missing (obs_mask), leave their rows out."
                )
    return latents


def no_start_message(sites: Sites, model_args: Args, model_kwargs: Kwargs | None) -> str:
    """Explain where the log density is not finite."""
    bad = [*not_finite(model_args, model_kwargs), *sites_not_finite(sites)]
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
        shapes = {} if model is None else shapes_of(model, model_args, model_kwargs)
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


def shapes_of(
    model: Model, model_args: Args, model_kwargs: Kwargs | None
) -> dict[str, tuple[int, ...]]:
    """Unconstrained shapes of the latents, without a computation."""
    found: dict[str, Any] = {}

    def look():
        sites = first_sites(jax.random.key(0), model, model_args, model_kwargs)
        latents = [name for name in sites if is_latent(sites[name])]
        latents = [name for name in latents if not sites[name]["fn"].support.is_discrete]
        values = {name: sites[name]["value"] for name in latents}
        inverse = transforms_of(sites).inv_transforms
        unconstrained = transform_fn(inverse, values, invert=True)
        found.update({name: jnp.shape(leaf) for name, leaf in unconstrained.items()})

    jax.eval_shape(look)
    return found
