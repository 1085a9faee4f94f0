r"""The linear predictors of a NumPyro model, found from its trace.

An observed site in the subsample plate is understood if its distribution has a family in
:mod:`blackjax_ext.families`, or a smooth log density of a few scalar parameters
(:mod:`numpyro_fwd.subsampling.smooth_likelihoods`). Its parameters in coordinates without ends (a
mean, a log scale) that depend on the position are the predictors, which must be affine in the
unconstrained latents. Everything outside the plate is the prior, whatever its structure, and is
evaluated exactly. The model itself is asked for the predictors of each set of rows; no matrix of
covariates is taken out of it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from blackjax_ext.mcmc.dependence import dependent
from blackjax_ext.precision import exact_products
from blackjax_ext.rows.newton import UnresolvedError
from blackjax_ext.subsampling.expansion import Expansion, expand
from blackjax_ext.subsampling.families import Kind
from blackjax_ext.subsampling.predictors import (
    LinearPredictor,
    Responses,
)
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import NEED_VALUES, evaluating, traced_once
from numpyro_fwd.bridge.log_terms import kinds_of, log_prob_of
from numpyro_fwd.bridge.plates import as_array, subsample_plates
from numpyro_fwd.bridge.row_models import RowModel
from numpyro_fwd.bridge.traces import sites_at, unwrapped
from numpyro_fwd.subsampling.likelihoods import (
    READINGS,
    REFUSED,
    Reading,
    find_reading,
)
from numpyro_fwd.subsampling.predictor_errors import WITHOUT_LIMIT, explain_predictors
from numpyro_fwd.subsampling.smooth_likelihoods import smooth_reading
from numpyro_fwd.types import Site, Sites


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
    join, on_rows, plates_of = model.arguments.join, model.without_data().on_rows, model.plates_of

    def sites_on(rows, arrays, z):
        model_args, model_kwargs = join(arrays)
        return sites_at(on_rows({plate: rows}), model_args, model_kwargs, z)

    readings = tuple(reading_of(name, model.sites[name]) for name in names)

    # two ends of a move and a bound must see the same predictors
    @exact_products
    @traced_once
    def at(arrays, z, rows):
        """The log density outside of the plate, and what is read of each site, rows first."""
        found = sites_on(rows, arrays, z)
        share = rows.shape[0] / num_rows
        outside = [name for name in kinds_of(found, z) if not plates_of.get(name)]
        prior = sum((jnp.sum(log_prob_of(found[name])) for name in outside), jnp.zeros(()))
        return prior, tuple(
            read_site(reading, found[name], plate, share)
            for name, reading in zip(names, readings, strict=True)
        )

    arrays = [as_array(each) for each in model.arguments.arrays]
    with evaluating():  # arrays of NumPy take no traced rows
        first_row = jnp.zeros(1, int)
    kinds = response_kinds(readings, model.sites, names, lambda z: at(arrays, z, first_row)[1], z)

    def read(arrays, z, indices):
        def predictors(rows):
            parts = [
                part.split(kind) for part, kind in zip(at(arrays, z, rows)[1], kinds, strict=True)
            ]
            return tuple(eta for eta, _ in parts), tuple(row for _, row in parts)

        if indices.shape[0] != num_rows:
            return predictors(indices)
        # as many rows as there are: numpyro.subsample would take all of them in order
        one_by_one = jax.vmap(lambda row: predictors(row[None]))(indices)
        return jax.tree.map(lambda leaf: leaf[:, 0], one_by_one)

    def logprior(arrays, z):
        return at(arrays, z, jnp.zeros(1, int))[0]

    return RowFunctions(logprior, read, kinds, num_rows)


def response_kinds(
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
    """Name of the one subsample plate of a model, sites inside it, all rows, and of a minibatch."""

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
    say: Callable[[str], None],
    **options: Any,
) -> Expansion:
    """The rows of a full view expanded at the mode near `z`, without its data.

    `say` is told what is being done. The `options` are those of
    :func:`blackjax_ext.potentials.expand`.

    Raises
    ------
    ValueError
        For a site that cannot be expanded, by name, and as
        :func:`blackjax_ext.potentials.expand`.
    """

    def attempt(posterior):
        return expand(posterior, z, say=say, **options).without_data()

    return explaining_predictors(model, z, attempt)


def with_constants(posterior: LinearPredictor) -> LinearPredictor:
    """The same with its arrays as constants of whatever program it is in."""
    logprior, read = posterior.logprior, posterior.read
    return replace(
        posterior,
        logprior=Partial(lambda *arguments: logprior(*arguments)),
        read=Partial(lambda *arguments: read(*arguments)),
    )
