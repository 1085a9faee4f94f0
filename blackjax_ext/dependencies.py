"""Imports BlackJAX without taking devices, and warns of a jaxlib with known faults."""

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jaxlib

HANGS = "can wait for ever, on a CPU, for a program that it reads from the compilation cache"
KNOWN_FAULTS = {
    "0.10.0": HANGS,
    "0.10.1": HANGS,
    "0.10.2": "computes wrong numbers on a CPU for some sums of products of a matrix with each of "
    "more than 32,000 rows (jax issue 39103). Models of fewer rows are not concerned",
    "0.11.1": "needs a time that grows with the square of the number of draws to collect them on a "
    "CPU (jax issue 40101)",
}


def check_jaxlib(version: str) -> None:
    """Warn of a jaxlib that is known to be at fault: for Python 3.11 there is no other."""
    if version in KNOWN_FAULTS:
        warnings.warn(
            f"jaxlib {version} {KNOWN_FAULTS[version]}. Use a newer one: JAX 0.12 needs Python "
            "3.12 or newer.",
            stacklevel=3,
        )


def log_on_host(log: Callable[..., Any]) -> Callable[..., Any]:
    """`log`, but of a Python number the Python number, which takes no device."""

    def host_log(x: Any) -> Any:
        return math.log(x) if type(x) is float else log(x)

    return host_log


def import_blackjax() -> None:
    """Import BlackJAX so that the backend of JAX is not started.

    A default argument in BlackJAX is ``jnp.log(2.0)``, an array. Were it made when it is imported,
    ``numpyro.set_host_device_count``, ``jax.distributed.initialize`` and XLA_FLAGS would come too
    late. The default is a number of Python here, of the same value.
    """
    if "blackjax" in sys.modules:
        return
    log = jnp.log
    jnp.log = log_on_host(log)
    try:
        import blackjax  # noqa: F401
    finally:
        jnp.log = log


check_jaxlib(jaxlib.__version__)
import_blackjax()
