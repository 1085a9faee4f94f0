"""Types of models, of what they take and of what is read from them."""

from collections.abc import Callable
from typing import Any, TypeAlias

Model: TypeAlias = Callable[..., Any]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
Site: TypeAlias = dict[str, Any]  # what NumPyro's handlers pass on and a trace keeps
Sites: TypeAlias = dict[str, Site]
SiteValues: TypeAlias = dict[str, Any]
