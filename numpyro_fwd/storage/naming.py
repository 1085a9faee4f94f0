"""Draws of a run under the names that they have on disk, which are ArviZ's."""

from typing import Any

import jax
import jax.numpy as jnp

from numpyro_fwd.bridge.numpyro_private import nested_attrgetter
from numpyro_fwd.mcmc.memory import by_name
from numpyro_fwd.storage.folder import key_data_of

# statistics that are stored wherever the state of a kernel has them
STATISTICS = ("diverging", "potential_energy", "energy", "accept_prob", "num_steps")
# ArviZ's names of them
STATISTIC_NAMES = {
    "potential_energy": "lp",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
}


def field_of(state: Any, name: str) -> Any:
    """A field of a state, or of one of its fields, "adapt_state.step_size"; None if it has none."""
    try:
        return nested_attrgetter(name)(state)
    except (AttributeError, KeyError, TypeError):
        return None


def fields_of(kernel: Any, state: Any, extra_fields: tuple[str, ...]) -> tuple[str, ...]:
    """Fields of the state that are stored, the position first.

    Raises
    ------
    ValueError
        For a field that the state has not, or that is not one array.
    """
    usual = [name for name in kernel.default_fields if name != kernel.sample_field]
    usual += [name for name in STATISTICS if field_of(state, name) is not None]
    asked = [name for name in extra_fields if not name.startswith("~")]
    for name in asked:
        if (value := field_of(state, name)) is None:
            known = getattr(state, "_fields", ())
            raise ValueError(
                f"extra_fields must be fields of the kernel's state, {', '.join(known)}, or fields "
                f"of these as 'adapt_state.step_size'; got {name!r}."
            )
        if not hasattr(value, "shape"):
            raise ValueError(f"extra_fields must each be one array; {name!r} holds several.")
    return tuple(dict.fromkeys((kernel.sample_field, *usual, *asked)))


def named(position: str, found: dict[str, Any]) -> dict[str, Any]:
    """Draws by ``group/name``, from those by field."""
    sites = by_name(found[position])
    check_sites(list(sites))
    stored = {f"posterior/{name.replace('/', '.')}": storable(x) for name, x in sites.items()}
    for field, value in found.items():
        if field != position:
            name = STATISTIC_NAMES.get(field, field).replace("/", ".")
            value = -value if field == "potential_energy" else key_data_of(value)
            stored[f"sample_stats/{name}"] = value
    return stored


def shapes_of(position: str, shapes: dict[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of one draw of one chain, by ``group/name``."""
    found = jax.eval_shape(lambda found: named(position, found), shapes)
    return {name: jax.ShapeDtypeStruct(one.shape[2:], one.dtype) for name, one in found.items()}


def check_sites(names: list[str]) -> None:
    """Raise ValueError for sites that the store cannot hold under their names."""
    stored: dict[str, str] = {}
    for name in names:
        stored_as = name.replace("/", ".")
        if stored_as in ("chain", "draw"):
            raise ValueError(
                f"site '{name}' has the name of a dimension of the store: give it another name, or "
                f"leave it out with extra_fields=('~z.{name}',)."
            )
        if stored_as in stored:
            raise ValueError(
                f"sites '{stored[stored_as]}' and '{name}' would both be '{stored_as}' in the "
                "store, where a '/' is a '.': give one of them another name."
            )
        stored[stored_as] = name


def storable(value: Any) -> Any:
    """A value in a dtype that Zarr knows: bfloat16 is not one, and float32 holds its numbers."""
    return value.astype(jnp.float32) if value.dtype == jnp.bfloat16 else value
