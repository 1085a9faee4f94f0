"""Why the rows of a model have no linear predictors: which site, which latents, which row."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from blackjax_ext.meshes import on_host
from blackjax_ext.programs import compiled_soon
from blackjax_ext.subsampling.passes import MAX_CHUNK, over_chunks
from blackjax_ext.subsampling.predictors import LinearPredictor
from blackjax_ext.subsampling.row_bounds import has_changed
from blackjax_ext.types import Function

WITHOUT_LIMIT = 'acceptance="full" reads all rows and has no such limit.'


def explain_predictors(posterior: LinearPredictor, names: list[str], z: Any) -> None:
    """Raise ValueError where predictors are not affine or parameters are not known, by site.

    Or where a row has no finite density at `z`. What should be known is compared in all rows, at
    two points; predictors are read in a thousand rows at several. Cost: three reads of N rows.
    """
    check_known(posterior, names, z)
    check_densities(posterior, names, z)
    indices = jnp.arange(min(1000, posterior.num_rows))
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
    "site as it is. Leave LocScaleReparam and TransformReparam of the effects out."
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
            f"site '{name}' has no linear predictor in the latent sites {sorted(bent)}: its "
            f"predictor {predictor.replace('_', ' ')} is not affine in their unconstrained values, "
            f'as acceptance="subsampled" needs. {how} {WITHOUT_LIMIT}'
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
    flags = [~jnp.isfinite(leaf) for leaf in jax.tree.leaves(arrays)]
    return jnp.any(jnp.stack([flag.reshape(len(flag), -1).any(axis=1) for flag in flags]), axis=0)


def check_densities(posterior: LinearPredictor, names: list[str], z: Any) -> None:
    """Raise ValueError for the first row of a site whose density at `z` is not finite."""

    def flags_of(posterior, indices):
        """Of each site, in which rows it has no density."""
        alone = [replace(posterior, kinds=(kind,)) for kind in posterior.kinds]
        return [
            has_overflown((row.parameters, eta, jax.vmap(of_site.loss)((eta,), (row,))))
            for of_site, eta, row in zip(alone, *posterior.read(z, indices), strict=True)
        ]

    for at, (name, row) in enumerate(zip(names, first_rows(posterior, flags_of), strict=True)):
        if row < posterior.num_rows:
            y = on_host(posterior.read(z, row[None])[1][at].y[0])
            y = y.item() if y.size == 1 else y
            dtype = ravel_pytree(z)[0].dtype
            raise ValueError(NOT_FINITE.format(name, int(row), y, dtype))


# names of what is no parameter of a family
WEIGHT, RESPONSE = " weight", " response"


def first_changes(posterior: LinearPredictor, z: Any, step: Array) -> list[dict[str, Array]]:
    """For each site and each thing known of it, the first row where it changes; N if in none."""
    x, unravel = ravel_pytree(z)

    def flags_of(posterior, indices):
        def parts(x):
            found = posterior.read(unravel(x), indices)[1]
            return [part.parameters | {WEIGHT: part.weight, RESPONSE: part.y} for part in found]

        return has_changed(parts(x), parts(x + step))

    return first_rows(posterior, flags_of)


def first_rows(posterior: LinearPredictor, flags_of: Function) -> Any:
    """For each of ``flags_of(posterior, indices)`` the first row that has it; N if none has."""
    num_rows = posterior.num_rows

    @jax.jit
    def find(posterior):
        flags = over_chunks(
            lambda indices, is_new: ((), flags_of(posterior, indices)),
            *(num_rows, min(MAX_CHUNK, num_rows)),
        )[1]
        return jax.tree.map(
            lambda flags: jnp.where(flags.any(), jnp.argmax(flags), num_rows), flags
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
