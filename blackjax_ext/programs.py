"""Programs that run a few times: XLA compiles them soon rather than well.

Most of the wait for a posterior of moderate size is compilation, and much of that is of programs
that find a start or expand a table and then never run again. With the options below XLA takes less
time for them on a CPU, and sums over a million rows take as long as before. With no optimization
at all (level 0) they compile sooner still, and those sums take four times as long.
"""

import os
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["compiled_soon"]

# fewer passes of LLVM, and loops that are not fused by the newer emitters, which compile slowly
OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_use_fusion_emitters": False,
}


def compiled_soon(function: Callable, **options: Any) -> Callable:
    """``jax.jit(function, **options)`` for a program that runs a few times.

    Within another program, of which it becomes a part, and on accelerators it is just that.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> double = compiled_soon(lambda x: 2 * x)
    >>> float(double(jnp.ones(())))
    2.0
    """
    plain = jax.jit(function, **options)
    soon = jax.jit(function, compiler_options=OPTIONS, **options)

    def program(*arguments: Any, **keywords: Any) -> Any:
        if is_inside(arguments, keywords) or jax.default_backend() != "cpu" or is_chosen():
            return plain(*arguments, **keywords)
        try:
            return soon(*arguments, **keywords)
        except jax.errors.JaxRuntimeError as error:  # of a jaxlib in which an option has gone
            if "compile option" not in str(error):
                raise
            return plain(*arguments, **keywords)

    return update_wrapper(program, function)


def is_inside(*arguments: Any) -> bool:
    """Whether what is called becomes a part of another program."""
    leaves = [*jax.tree.leaves(arguments), jnp.asarray(np.int32(0))]
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def is_chosen() -> bool:
    """Whether the environment says how much XLA is to optimize."""
    return any(name in os.environ.get("XLA_FLAGS", "") for name in OPTIONS)
