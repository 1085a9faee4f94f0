r"""The linear predictors of a NumPyro model, found from its trace.

An observed site in the subsample plate is understood if its distribution has a family in
:mod:`blackjax_ext.families`, or a smooth log density of a few scalar parameters
(:mod:`numpyro_fwd.bridge.smooth_readings`), or if it is a factor that is a smooth function of a few
affine values (:mod:`numpyro_fwd.bridge.factor_programs`). Its parameters in coordinates without
ends (a mean, a log scale) that depend on the position are the predictors, which must be affine in
the unconstrained latents. Everything outside the plate is the prior, whatever its structure, and is
evaluated exactly. The model itself is asked for the predictors of each set of rows; no matrix of
covariates is taken out of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from blackjax_ext.mcmc.dependence import dependent
from blackjax_ext.meshes import on_host
from blackjax_ext.precision import exact_products
from blackjax_ext.programs import compiled_soon
from blackjax_ext.subsampling.expansion import Expansion, expand
from blackjax_ext.subsampling.families import Kind
from blackjax_ext.subsampling.families.densities import MOST
from blackjax_ext.subsampling.mode import UnresolvedError
from blackjax_ext.subsampling.predictors import (
    MAX_CHUNK,
    LinearPredictor,
    Responses,
    has_changed,
    over_chunks,
)
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import NEED_VALUES, evaluating, traced_once
from numpyro_fwd.bridge.factor_programs import parted
from numpyro_fwd.bridge.plates import as_array, subsample_plates
from numpyro_fwd.bridge.readings import (
    READINGS,
    REFUSED,
    Reading,
    find_reading,
    unwrapped,
)
from numpyro_fwd.bridge.row_models import RowModel, terms_of
from numpyro_fwd.bridge.smooth_readings import smooth_reading
from numpyro_fwd.bridge.traces import sites_at
from numpyro_fwd.types import Site, Sites

__all__ = [
    "batch_size_of",
    "expanded",
    "explaining_predictors",
    "linear_predictor_of",
    "read_by_program",
    "single_plate",
]

WITHOUT_LIMIT = 'acceptance="full" reads all rows and has no such limit.'


def linear_predictor_of(model: RowModel, z: Any) -> LinearPredictor:
    """Prior, predictors and responses of a full view that has passed ``check_model``.

    The arrays among the arguments are leaves of the outcome: a program takes them as its own.
    Positions are like `z`, of which the shapes alone matter. Parameters of a response that depend
    on the position are its predictors; the others are known.

    Raises
    ------
    ValueError
        For more than one plate, a distribution without a family, by name; see
        :func:`explain_predictors` for what depends on the position.
    """
    found = model.once(row_functions, z)
    arrays = [as_array(each) for each in model.arguments.arrays]
    return LinearPredictor(
        Partial(found.logprior, arrays), Partial(found.read, arrays), found.kinds, found.num_rows
    )


class RowFunctions(NamedTuple):
    """What a linear predictor is made of: functions of the arrays among the arguments first."""

    logprior: Function
    read: Function
    kinds: tuple[Kind, ...]
    num_rows: int


def row_functions(model: RowModel, z: Any) -> RowFunctions:
    """The parts of :func:`linear_predictor_of`."""
    plate, names, num_rows, _ = single_plate(model.sites)
    # jax keeps the functions of a pytree in its caches, and what they close over: no arrays
    join, on_rows, terms = model.arguments.join, model.without_data().on_rows, model.once(terms_of)

    def sites_on(rows, arrays, z):
        model_args, model_kwargs = join(arrays)
        return sites_at(on_rows({plate: rows}), model_args, model_kwargs, z)

    def factor_at(name, z, given):
        """What a factor site adds in one row."""
        arrays, row = given
        return unwrapped(sites_on(row[None], arrays, z)[name]["fn"]).log_factor

    factors = {name: partial(factor_at, name) for name in names if is_factor(model.sites[name])}
    given: Any = (model.arguments.arrays, np.zeros((), int))
    readings = tuple(
        factor_reading(name, factors[name], z, given)
        if name in factors
        else reading_of(name, model.sites[name])
        for name in names
    )

    # two ends of a move and a bound must see the same predictors
    @exact_products
    @traced_once
    def at(arrays, z, rows):
        """What is read of each site, rows first."""
        found = sites_on(rows, arrays, z)
        share = rows.shape[0] / num_rows
        return tuple(
            read_factor(factors[name], found[name], share, z, arrays, rows)
            if name in factors
            else read_site(reading, found[name], plate, share)
            for name, reading in zip(names, readings, strict=True)
        )

    arrays = [as_array(each) for each in model.arguments.arrays]
    with evaluating():  # arrays of NumPy take no traced rows
        first_row = jnp.zeros(1, int)
    kinds = kinds_of(readings, model.sites, names, lambda z: at(arrays, z, first_row), z)

    def read(arrays, z, indices):
        def predictors(rows):
            parts = [
                part.split(kind) for part, kind in zip(at(arrays, z, rows), kinds, strict=True)
            ]
            return tuple(eta for eta, _ in parts), tuple(row for _, row in parts)

        if indices.shape[0] != num_rows:
            return predictors(indices)
        # as many rows as there are: numpyro.subsample would take all of them in order
        one_by_one = jax.vmap(lambda row: predictors(row[None]))(indices)
        return jax.tree.map(lambda leaf: leaf[:, 0], one_by_one)

    @exact_products
    def logprior(arrays, z):
        return terms(arrays, z, {plate: jnp.zeros(1, int)}).outside_plates()

    return RowFunctions(logprior, read, kinds, num_rows)


def kinds_of(
    readings: tuple[Reading, ...], sites: Sites, names: list[str], read: Function, z: Any
) -> tuple[Kind, ...]:
    """Kinds of the responses, whose free predictors are those that depend on the position."""
    depends = dependent(lambda z: [part.predictors for part in read(z)], z)
    if not any(jax.tree.leaves(depends)):
        raise ValueError(
            f"none of the sites {sorted(names)} in the subsample plate depends on a latent: there "
            'is nothing for acceptance="subsampled" to read. Check that their parameters use them.'
        )
    kinds = []
    for reading, name, flags in zip(readings, names, depends, strict=True):
        kind = reading.kind(unwrapped(sites[name]["fn"]))
        free = [p for p, flag in zip(kind.predictors, flags, strict=False) if flag]
        # of a row that sees nothing the first one, whose Jacobian is zero
        kinds.append(kind.having(*(free or kind.predictors[:1])))
    return tuple(kinds)


class SinglePlate(NamedTuple):
    """The one subsample plate of a model.

    plate
        Its name.
    names
        The sites inside it.
    num_rows
        All its rows.
    batch_size
        Rows of a minibatch.
    """

    plate: str
    names: list[str]
    num_rows: int
    batch_size: int


def single_plate(sites: Sites) -> SinglePlate:
    """The subsample plate and the sites inside it; ValueError unless there is one such plate."""
    plates, plates_of = subsample_plates(sites)
    inside = {name: around for name, around in plates_of.items() if around}
    if len(set(inside.values())) != 1 or len(next(iter(inside.values()))) != 1:
        raise ValueError(
            f'acceptance="subsampled" needs one subsample plate around all observed rows; got '
            f"{sorted(plates)} with the sites {sorted(inside)}. {WITHOUT_LIMIT}"
        )
    plate = next(iter(inside.values()))[0]
    return SinglePlate(plate, list(inside), *plates[plate])


def reading_of(name: str, site: Site) -> Reading:
    """How to read a site; ValueError, naming it and its distribution, where that is unknown."""
    fn = unwrapped(site["fn"])
    if reading := find_reading(fn):
        return reading
    kind = type(fn).__name__
    why = REFUSED.get(kind)
    if why is None:
        try:
            return smooth_reading(fn)
        except ValueError as error:
            why = f"its log density cannot be read, {error}"
    known = sorted(each.__name__ for each in READINGS)
    raise ValueError(
        f"site '{name}' ({kind}) is not supported by acceptance=\"subsampled\": {why}. Supported "
        f"distributions are {known}, and smooth ones of a few scalar parameters. "
        f"{WITHOUT_LIMIT}"
    )


def is_factor(site: Site) -> bool:
    """Whether a site is that of ``numpyro.factor``."""
    return isinstance(unwrapped(site["fn"]), dist.Unit)


def factor_reading(name: str, function: Function, z: Any, first_row: Any) -> Reading:
    """How to read a factor site; ValueError, naming it, where its program cannot be read."""
    found = []

    def look(z, first_row):
        found.append(parted(function, z, first_row)[0])

    try:
        jax.eval_shape(look, z, first_row)
        kind = found[0].kind()
    except ValueError as error:
        raise ValueError(
            f"site '{name}' (factor) is not supported by acceptance=\"subsampled\": its program "
            f"cannot be read, {error}. A smooth function of up to {MOST} values that are affine in "
            f"the unconstrained latents can. {WITHOUT_LIMIT}"
        ) from error
    return Reading(lambda fn: kind, lambda fn: ())


def read_factor(
    function: Function, site: Site, share: float, z: Any, arrays: list[Any], rows: Array
) -> "Part":
    """What is read of a factor site; `share` undoes the plate's scale."""
    predictors, known = jax.vmap(lambda row: parted(function, z, (arrays, row))[1:])(rows)
    columns = [leaf[:, None] for leaf in predictors]
    weight = jnp.asarray(1.0 if site["scale"] is None else site["scale"])
    weight = jnp.broadcast_to(weight, jnp.shape(unwrapped(site["fn"]).log_factor))
    data = {f"known_{i}": leaf[:, None] for i, leaf in enumerate(known)}
    like = columns[0]
    weight = jnp.asarray(weight.reshape(-1, 1) * share, like.dtype)
    return Part(tuple(columns), data, jnp.zeros_like(like), weight)


def read_by_program(model: RowModel) -> list[str]:
    """Sites without a family of their own, each with its distribution."""
    names = single_plate(model.sites).names
    found = {name: unwrapped(model.sites[name]["fn"]) for name in names}
    return [f"'{n}' ({type(fn).__name__})" for n, fn in found.items() if not find_reading(fn)]


class Part(NamedTuple):
    """What is read of one site in some rows.

    predictors
        Each of the predictors of its kind, shapes (n, m); for classes one of shape (n, m, K).
    data
        What else its loss needs, by name, shapes (n, m).
    y
        Responses, shape (n, m).
    weight
        What their log likelihoods are multiplied by, shape (n, m).
    """

    predictors: tuple[Array, ...]
    data: dict[str, Array]
    y: Array
    weight: Array

    def split(self, kind: Kind) -> tuple[Array, Responses]:
        """Free predictors (n, m, k), and what is known."""
        if not kind.predictors:
            return self.predictors[0], Responses(self.y, self.data, self.weight)
        by_name = dict(zip(kind.predictors, self.predictors, strict=True))
        eta = jnp.stack([by_name.pop(name) for name in kind.free], axis=-1)
        return eta, Responses(self.y, self.data | by_name, self.weight)


def read_site(reading: Reading, site: Site, plate: str, share: float) -> Part:
    """What is read of a site; `share` undoes the plate's scale.

    The axes of the outermost distribution and of its independent dimensions are all responses.
    """
    fn, value = unwrapped(site["fn"]), site["value"]
    shape = site["fn"].batch_shape + site["fn"].event_shape
    frame = next(frame for frame in site["cond_indep_stack"] if frame.name == plate)
    axis = len(site["fn"].batch_shape) + frame.dim

    def rows_first(leaf, classes=()):
        leaf = jnp.moveaxis(jnp.broadcast_to(leaf, shape + classes), axis, 0)
        return leaf.reshape(leaf.shape[0], -1, *classes)

    predictors = [jnp.asarray(each) for each in reading.predictors(fn)]
    dtype = jnp.result_type(float, *predictors)
    predictors = [
        rows_first(each, each.shape[-1:] if reading.has_classes else ()) for each in predictors
    ]
    weight = jnp.asarray(1.0 if site["scale"] is None else site["scale"])
    if weight.ndim:  # a scale is one of log densities, which have no axes of events
        weight = weight.reshape(weight.shape + (1,) * len(site["fn"].event_shape))
    return Part(
        tuple(jnp.asarray(each, dtype) for each in predictors),
        {name: jnp.asarray(rows_first(of(fn)), dtype) for name, of in reading.data.items()},
        rows_first(reading.response(value)),
        jnp.asarray(rows_first(weight) * share, dtype),
    )


def batch_size_of(model: RowModel) -> int:
    """Rows of a minibatch."""
    return single_plate(model.sites).batch_size


NUM_CHECKED = 1000


def explaining_predictors(model: RowModel, z: Any, attempt: Function) -> Any:
    """``attempt(posterior)`` on the rows of a full view, with errors that name the sites."""
    posterior = linear_predictor_of(model, z)

    def explained(posterior):
        try:
            return attempt(posterior)
        except UnresolvedError:  # rounding would look like a bent predictor
            raise
        except ValueError:
            explain_predictors(posterior, single_plate(model.sites).names, z)
            raise

    try:
        return explained(posterior)
    except NEED_VALUES:
        return explained(with_constants(posterior))


def expanded(
    model: RowModel,
    z: Any,
    *,
    order: int,
    say: Callable[[str], None],
    find_mode: bool = True,
    **options: Any,
) -> Expansion:
    """The rows of a full view expanded at the mode near `z`, or at `z` itself, without its data.

    `say` is told what is being done. The `options` are those of
    :func:`blackjax_ext.potentials.expand`.

    Raises
    ------
    ValueError
        For a site that cannot be expanded, by name, and as
        :func:`blackjax_ext.potentials.expand`.
    """

    def attempt(posterior):
        expansion = expand(posterior, z, order=order, find_mode=find_mode, say=say, **options)
        return expansion.without_data()

    return explaining_predictors(model, z, attempt)


def with_constants(posterior: LinearPredictor) -> LinearPredictor:
    """The same with its arrays as constants of whatever program it is in."""
    logprior, read = posterior.logprior, posterior.read
    return replace(
        posterior,
        logprior=Partial(lambda *arguments: logprior(*arguments)),
        read=Partial(lambda *arguments: read(*arguments)),
    )


def explain_predictors(posterior: LinearPredictor, names: list[str], z: Any) -> None:
    """Raise ValueError where predictors are not affine or parameters are not known, by site.

    Or where a row has no finite density at `z`. What should be known is compared in all rows, at
    two points; predictors are read in a thousand rows at several. Cost: three reads of N rows.
    """
    check_known(posterior, names, z)
    check_densities(posterior, names, z)
    indices = jnp.arange(min(NUM_CHECKED, posterior.num_rows))
    x, unravel = ravel_pytree(z)
    step = step_from(z)
    read = compiled_soon(lambda posterior, x: posterior.read(unravel(x), indices)[0])

    def moved(latents, by):
        """Predictors after a step of the named latents alone."""
        return read(posterior, x + by * only(step, latents))

    for at, (name, kind) in enumerate(zip(names, posterior.kinds, strict=True)):
        for i, predictor in enumerate(kind.free or ("logits",)):
            one = (..., i) if kind.free else ...
            check_bent(name, predictor, lambda *step, at=at, one=one: moved(*step)[at][one], z)


CENTRE = (
    "It has {0} times a function of {1}, as non-centred effects have: write them centred, "
    "numpyro.sample('{2}', dist.Normal(loc, scale)) with what depends on {1} as scale, and use the "
    "site as it is. (A LocScaleReparam of numpyro.handlers.reparam is undone by itself.)"
)
HOW_TO_WRITE = {
    False: "Write it as x @ latent, with latents that have real support and enter only once.",
    True: "Let it be a latent whose support is positive, or exp(x @ latent), or a product of such.",
}


def check_bent(name: str, predictor: str, moved: Function, z: Any) -> None:
    """Raise ValueError where a predictor of a site is not affine, with the latents at fault."""
    # a logarithm has the unit one: the rest of one that does not change is rounding
    unit = 1.0 if "log" in predictor.split("_")[0] or "logits" in predictor else 0.0

    def is_bent_along(latents):
        """By the longest of some steps after which nothing has overflowed."""
        for size in (1.0, 0.1, 0.01):
            points = [moved(latents, by * size) for by in (0, 1, 2)]
            if has_stayed(points):
                break
        return is_bent(points, unit)

    bent = [each for each in z if is_bent_along([each])]
    if not bent and is_bent_along(z):
        bent = list(z)
    is_log = predictor.startswith("log_")
    if bent:
        scaled = [each for each in z if each not in bent and is_product(moved, bent, each, unit)]
        how = HOW_TO_WRITE[is_log]
        if scaled:
            how = CENTRE.format(scaled, sorted(bent), scaled[0])
        raise ValueError(
            f"site '{name}' has no linear predictor in the latent sites {sorted(bent)}: the "
            f"Jacobian of its {predictor.replace('_', ' ')} in their unconstrained values is not "
            f'constant, as it must be for acceptance="subsampled". {how} {WITHOUT_LIMIT}'
        )


def is_product(moved: Function, some: list[str], other: str, unit: float) -> bool:
    """Whether what a step of some latents changes in a predictor depends on another latent.

    By a long step, which shows beside predictors that are large, and a short one, after which
    nothing has overflowed.
    """
    steps: tuple[list[str], ...] = ([], some, [other], [*some, other])

    def is_mixed(by: float) -> bool:
        found = np.stack([np.asarray(moved(latents, by), np.float64) for latents in steps])
        found = found[:, np.isfinite(found).all(0)]
        size = np.max(np.abs(found), initial=unit)
        mixed = np.max(np.abs(found[3] - found[2] - found[1] + found[0]), initial=0.0)
        return bool(mixed > 1e-4 * size)

    return is_mixed(1.0) or is_mixed(0.1)


def step_from(z: Any) -> Any:
    """A step of all latents, a pytree like `z`."""
    x, unravel = ravel_pytree(z)
    return unravel(jnp.asarray(np.random.default_rng(0).normal(size=x.shape), x.dtype))


def only(step: Any, latents: Any) -> Array:
    """The step of the named latents alone, shape (D,)."""
    chosen = {name: leaf if name in latents else 0 * leaf for name, leaf in step.items()}
    return ravel_pytree(chosen)[0]


def check_known(posterior: LinearPredictor, names: list[str], z: Any) -> None:
    """Raise ValueError if what should be known of a site changes with the position, in any row."""
    step = step_from(z)
    first = first_changes(posterior, z, only(step, z))
    for name, found in zip(names, first, strict=True):
        changed = {of: int(row) for of, row in found.items() if row < posterior.num_rows}
        if not changed:
            continue
        latents = [
            each
            for each in z
            if any(
                row < posterior.num_rows
                for part in first_changes(posterior, z, only(step, [each]))
                for row in part.values()
            )
        ]
        on = f"on the latent sites {sorted(latents)}, in row {min(changed.values())} first"
        parameters = sorted(changed.keys() - {WEIGHT, RESPONSE})
        if parameters:
            raise ValueError(
                f"site '{name}' has the parameters {parameters} that depend {on}; "
                f'acceptance="subsampled" needs them known. {WITHOUT_LIMIT}'
            )
        what = "a scale" if WEIGHT in changed else "observations"
        raise ValueError(f"site '{name}' has {what} that depends {on}. {WITHOUT_LIMIT}")


NOT_FINITE = (
    "site '{}' has no finite density or predictor in row {}, whose response is {} as its family "
    "reads it, in {}: the response is outside of the support or at its end (a zero, a proportion "
    "that is rounded to one), or a parameter is (an exposure or a gate of zero), or both are too "
    "far from each other at the start. Move them inside, leave the row out, use float64 "
    "(jax.config.update('jax_enable_x64', True), with data in float64), or start nearer to the "
    "data (init_strategy)."
)


def has_overflown(arrays: Any) -> Array:
    """For each row, with which arrays lead, whether any entry is not finite, shape (n,)."""
    flags = [
        jnp.any(~jnp.isfinite(leaf.reshape(leaf.shape[0], -1)), axis=1)
        for leaf in jax.tree.leaves(arrays)
    ]
    return jnp.any(jnp.stack(flags), axis=0) if flags else jnp.array(False)


def check_densities(posterior: LinearPredictor, names: list[str], z: Any) -> None:
    """Raise ValueError for the first row of a site whose density at `z` is not finite."""

    def alone(kind):
        return replace(posterior, kinds=(kind,))

    @jax.jit
    def find(posterior, z):
        def visit(indices, is_new):
            del is_new
            read = zip(posterior.kinds, *posterior.read(z, indices), strict=True)
            return (), [
                has_overflown(row.parameters)
                | has_overflown((eta, jax.vmap(alone(kind).loss)((eta,), (row,))))
                for kind, eta, row in read
            ]

        return over_chunks(visit, posterior.num_rows, min(MAX_CHUNK, posterior.num_rows))[1]

    for at, (name, flags) in enumerate(zip(names, find(posterior, z), strict=True)):
        if flags.any():
            row = jnp.argmax(flags)
            y = on_host(posterior.read(z, row[None])[1][at].y[0])
            y = y.item() if y.size == 1 else y
            dtype = ravel_pytree(z)[0].dtype
            raise ValueError(NOT_FINITE.format(name, int(row), y, dtype))


# names of what is no parameter of a family
WEIGHT, RESPONSE = " weight", " response"


def first_changes(posterior: LinearPredictor, z: Any, step: Array) -> list[dict[str, Array]]:
    """For each site and each thing known of it, the first row where it changes; N if in none."""
    x, unravel = ravel_pytree(z)
    num_rows = posterior.num_rows

    def parts(posterior, x, indices):
        found = posterior.read(unravel(x), indices)[1]
        return [part.parameters | {WEIGHT: part.weight, RESPONSE: part.y} for part in found]

    @jax.jit
    def find(posterior):
        def visit(indices, is_new):
            del is_new
            here, there = (parts(posterior, at, indices) for at in (x, x + step))
            return (), has_changed(here, there)

        found = over_chunks(visit, num_rows, min(MAX_CHUNK, num_rows))[1]
        return jax.tree.map(
            lambda flags: jnp.where(flags.any(), jnp.argmax(flags), num_rows), found
        )

    return find(posterior)


def has_stayed(points: Sequence[Array]) -> bool:
    """Whether predictors that are finite at the first point are so at the others."""
    first, *others = (np.isfinite(each) for each in points)
    return not any(np.any(first & ~each) for each in others)


def is_bent(points: Sequence[Array], unit: float) -> bool:
    """Whether predictors at three equal steps along a line do not lie on a line.

    What is small against their size and `unit` is rounding.
    """
    stacked = np.stack(points).astype(np.float64)
    stacked = stacked[:, np.isfinite(stacked[0])]  # NaN in the data is another error
    size = np.max(np.abs(stacked), initial=unit)
    bend = np.max(np.abs(stacked[0] - 2 * stacked[1] + stacked[2]), initial=0.0)
    return not bend <= 1e-4 * size  # NaN on the way is bent
