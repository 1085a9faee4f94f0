"""What a kernel reads from a NumPyro model.

A :class:`View` of a model makes its potential energy and its constraining function from the
arguments of each call, so that nothing of the data or of a chain is stored on a kernel.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Delta
from numpyro.infer import init_to_median

from blackjax_ext.mcmc.derivatives import Differentiation, Wanted, differenced, differentiation_of
from blackjax_ext.stacking import stacked
from blackjax_ext.types import Function, LogDensity
from numpyro_fwd.bridge.arguments import (
    NEED_VALUES,
    SplitArguments,
    split_arguments,
    to_blame,
    traced_once,
)
from numpyro_fwd.bridge.numpyro_private import (
    GIBBS_SITES_KWARG,
    get_potential_fn,
    identity,
    is_prng_key,
    prepare_model,
    transforms_of,
    unconstrain_fn,
)
from numpyro_fwd.bridge.starts import (
    MANY_SITES,
    check_evaluated,
    check_init_params,
    check_start,
    find_start,
    first_evaluated,
    in_precision_of,
)
from numpyro_fwd.bridge.traces import drawn_on_host, first_sites, in_floats, is_latent
from numpyro_fwd.types import Args, Kwargs, Model, Sites

NUM_LOOKS = 16  # at draws of the prior, until the model can be evaluated at one
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

Position = Any


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


class NoDerivatives(ValueError):
    """A density cannot be differentiated as a kernel wants it; `others` is how it can be."""

    def __init__(self, message: str, others: Differentiation):
        super().__init__(message)
        self.others = others


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
        raise NoDerivatives(
            f"{name} cannot be differentiated in {wanted} mode, which this kernel needs; "
            f"{WAYS_OUT[others or 'none']}",
            others or "none",
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
    num_looks = NUM_LOOKS if init_strategy.func is init_to_median else 1  # init_to_sample, too
    if drawn_on_host(init_strategy) is None:
        init_strategy = partial(in_floats, init_strategy)
    sites_with = partial(first_sites, model=model, init_strategy=init_strategy)
    look = partial(first_evaluated, partial(first_of_draws, sites_with, key, num_looks))
    try:
        sites = look(model_args, model_kwargs)
    except (ValueError, RuntimeError) as error:  # perhaps of a covariate that is NaN
        if bad := to_blame(model_args, model_kwargs, lambda *given: bool(look(*given))):
            raise ValueError(f"{error} Of the model's arguments, {', '.join(bad)}.") from error
        raise
    latents = check_sites(sites)
    facts = transforms_of(sites)
    inverse = facts.inv_transforms  # of all but discrete latents, which are enumerated
    prepared = prepare_model(model, sites, enum=facts.has_enumerate_support)
    make_potential, make_postprocess = get_potential_fn(
        prepared,
        inverse,
        replay_model=facts.has_deterministic or facts.dynamic_support,
        enum=facts.has_enumerate_support,
        dynamic_args=True,
        model_args=model_args,
        model_kwargs=model_kwargs,
    )
    if sum(site["type"] == "sample" for site in sites.values()) >= MANY_SITES:
        make_potential = partial(stacked_potential, make_potential)
    prototype = {
        name: inverse[name].inv(sites[name]["value"]) for name in latents if name in inverse
    }
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
    return view, find_start(
        *(rng_key, prepared, sites, arguments, make_potential, prototype),
        look=look,
        check=partial(check_evaluated, model, model_args, model_kwargs),
        init_strategy=init_strategy,
        differentiation=differentiation,
        enum=facts.has_enumerate_support,
    )


def first_of_draws(
    sites_with: Function, rng_key: Array, num_looks: int, args: Args, kwargs: Kwargs | None
) -> Sites:
    """Sites at the first of draws of the prior that NumPyro takes, as where no solver fails."""
    errors: list[Exception] = []
    for i in range(num_looks):
        key = jax.random.fold_in(rng_key, i) if i else rng_key
        try:
            sites: Sites = sites_with(key, model_args=args, model_kwargs=kwargs)
        except (ValueError, RuntimeError) as error:  # of a parameter that is NaN, or of a call
            errors.append(error)
        else:
            return sites
    raise errors[0]


def stacked_potential(make_potential: Function, *model_args: Any, **model_kwargs: Any) -> Function:
    """A potential energy with what is alike in its program together."""
    return stacked(make_potential(*model_args, **model_kwargs))


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
