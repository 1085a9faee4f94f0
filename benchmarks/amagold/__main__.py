"""Minibatch samplers: what they yield and where they are wrong: ``python benchmarks/amagold``.

Each section is a function that measures and returns a table. The sections are kept in
``docs/results/amagold.json``, from which ``docs/results/amagold.md`` is written.
``--full`` takes all 60,000 images of MNIST and the 5 million draws of the paper.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ON_ALL_CORES = {"network", "memory"}  # sections


def main(arguments: list[str]) -> None:
    """Run the sections that are named; on one core, unless one of them needs all."""
    sys.path.insert(0, str(ROOT))  # benchmarks are not installed
    from benchmarks.harness.timing import on_one_core

    if ON_ALL_CORES.isdisjoint(arguments):
        on_one_core()  # before blackjax is imported, which makes jax start its threads
    from benchmarks.amagold.sections import REPORT

    REPORT.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
