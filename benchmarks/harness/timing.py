"""Seconds that calls take, by the wall clock or by that of the processor."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["in_turn", "least_seconds", "on_one_core", "timed"]


def on_one_core() -> None:
    """Keep this process on one core, before jax starts its threads.

    Their processor time can then be compared although other processes run: on several cores it
    holds the time that threads spend waiting for each other.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def timed(
    function: Callable, *arguments: Any, clock: Callable[[], float] = time.perf_counter
) -> tuple[Any, float]:
    """Result of a call, and the seconds it took by `clock`.

    `clock` may be `time.process_time`, of the processor, which other processes do not change.
    """
    start = clock()
    result = jax.block_until_ready(function(*arguments))
    return result, clock() - start


def least_seconds(function: Callable, *arguments: Any, repeats: int) -> float:
    """Least of the seconds that `repeats` calls take: what else runs only adds to them."""
    return min(timed(function, *arguments)[1] for _ in range(repeats))


def in_turn(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Least seconds of each call, all in turn: what slows the machine slows them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(timed(call)[1])
    return {name: min(found) for name, found in times.items()}
