"""The demonstration: ``python -m numpyro_fwd``, five chapters; ``--all``, every kernel.

Prints a table per chapter; writes pictures, draws as NetCDF and report.html to ``demo/``.
"""

import argparse
import importlib.util
import sys
import textwrap
import time
import warnings
from pathlib import Path

EXTRA = ("matplotlib", "sklearn", "h5netcdf")


def main(arguments: list[str] | None = None) -> None:
    """Show the chapters, or sample with every kernel."""
    options = parse(arguments)
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        sys.exit(f"The demonstration needs {', '.join(missing)}: install with the extra demo.")
    warnings.filterwarnings("ignore", "Your data appears to have a single value", UserWarning)
    import matplotlib

    matplotlib.use("Agg")
    from numpyro_fwd import keep_compiled

    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    keep_compiled()  # a second demonstration waits for its draws alone
    if options.all:
        from numpyro_fwd.demo.tour import tour

        tour(options)
    else:
        show(options)
    print(f"\nWritten in {time.perf_counter() - begin:.0f} s:")
    for pattern in ("*.html", "*.png", "*.nc"):
        names = " ".join(sorted(path.name for path in options.out.glob(pattern)))
        print(textwrap.fill(f"{options.out}/: {names}", 100, subsequent_indent="  "))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m numpyro_fwd", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="every kernel on a few targets")
    parser.add_argument("--quick", action="store_true", help="few and short runs, for a test")
    return parser.parse_args(arguments)


def show(options: argparse.Namespace) -> None:
    """Work through the chapters, print each one, and write the report."""
    from numpyro_fwd.demo import report
    from numpyro_fwd.demo.chapter import Setting
    from numpyro_fwd.demo.chapters import CHAPTERS

    setting = Setting(options.out, options.seed, options.quick)
    begin = time.perf_counter()
    done = [one(i, module, setting) for i, module in enumerate(CHAPTERS, 1)]
    report.write(options.out / "report.html", done, facts(time.perf_counter() - begin, options))
    print(f"\nOpen {(options.out / 'report.html').resolve()} in a browser.")


def one(number: int, module, setting):
    """Work through a chapter; say so before, and print its table and conclusion after."""
    from numpyro_fwd.demo.chapter import text_table

    print(f"\n{number}/5 {module.NAME} ...", flush=True)
    begin = time.perf_counter()
    chapter = module.chapter(setting)
    print(text_table(chapter.header, chapter.rows))
    print(textwrap.fill(chapter.conclusion, 100))
    print(
        f"{time.perf_counter() - begin:.0f} s, picture: {setting.out / chapter.picture}", flush=True
    )
    return chapter


def facts(seconds: float, options: argparse.Namespace) -> str:
    """How the report was made."""
    import os

    import jax

    size = ", small sizes for a test: the numbers mean nothing" if options.quick else ""
    return (
        f"Made by python -m numpyro_fwd with seed {options.seed} in {seconds:.0f} s on "
        f"{os.cpu_count()} cores, JAX {jax.__version__} on {jax.default_backend()}{size}."
    )
