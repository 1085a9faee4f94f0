"""Five reasons to use this package, each compared with NUTS.

Prints a table per chapter; writes pictures and report.html.
"""

import argparse
import importlib.util
import sys
import textwrap
import time
import warnings
from inspect import getdoc
from pathlib import Path

EXTRA = ("matplotlib", "arviz_base", "arviz_stats", "diffrax")


def main(arguments: list[str] | None = None) -> None:
    """Work through the chapters, and write the page."""
    options = parse(arguments)
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        sys.exit(
            f"The demonstration needs {', '.join(missing)}: install with the extras demo and ode."
        )
    warnings.filterwarnings("ignore", "Your data appears to have a single value", UserWarning)
    import matplotlib

    matplotlib.use("Agg")
    from examples.demo import epidemic, funnel, many_rows, network, page, two_modes
    from numpyro_fwd import keep_compiled

    keep_compiled()  # a second demonstration waits for its draws alone
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    modules = (funnel, epidemic, many_rows, two_modes, network)
    if not options.quick and not options.chapter:
        print("Five chapters of one to four minutes each, about ten minutes on two cores.")
    chapters = [
        one(number, module, options)
        for number, module in enumerate(modules, 1)
        if options.chapter in (None, number)
    ]
    path = options.out / "report.html"
    page.write(path, chapters, facts(time.perf_counter() - begin, options))
    print(f"\nOpen {path.resolve()} in a browser.")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chapter", type=int, choices=range(1, 6), help="this one alone")
    parser.add_argument("--quick", action="store_true", help="few and short runs, for a test")
    return parser.parse_args(arguments)


def one(number: int, module, options: argparse.Namespace):
    """Work through a chapter, print its table and conclusion, and keep its picture."""
    from examples.demo import chapter, style

    title, question = (getdoc(module) or "").split("\n\n", 1)
    print(f"\n{number}/5 {title} ...", flush=True)
    begin = time.perf_counter()
    results = module.work_through(options.seed, options.quick)
    print(chapter.text_table(results.header, results.rows))
    print(textwrap.fill(results.conclusion, 100))
    picture = options.out / f"{number}_{module.__name__.split('.')[-1]}.png"
    style.save_picture(results.figure, picture)
    print(f"{time.perf_counter() - begin:.0f} s, picture: {picture}", flush=True)
    return chapter.Chapter(title.rstrip("."), question, picture, results)


def facts(seconds: float, options: argparse.Namespace) -> str:
    """How the page was made."""
    import os

    import jax

    size = ", small sizes for a test: the numbers mean nothing" if options.quick else ""
    return (
        f"Made by python -m examples.demo with seed {options.seed} in {seconds:.0f} s on "
        f"{os.cpu_count()} cores, JAX {jax.__version__} on {jax.default_backend()}{size}."
    )


if __name__ == "__main__":
    main()
