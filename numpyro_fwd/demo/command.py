"""The demonstration: ``python -m numpyro_fwd`` samples two models with every sampler.

Writes pictures and a NetCDF file per sampler and target to ``demo/``; prints a table per target.
"""

import argparse
import importlib.util
import sys
import textwrap
import time
import warnings
from pathlib import Path

EXTRA = ("matplotlib", "sklearn", "h5netcdf")
READING = """
ESS and R-hat: of the worst parameter, over four chains. ESS/s: warm-up included, compilation not.
mean-error: largest error of a posterior mean in sds of the reference (regression: NUTS; funnel: the
exact distribution); sd-ratio: posterior sd over that of the reference where it is farthest from 1.
Trust a row with R-hat below 1.01 and several hundred ESS. On the funnel expect none: a step size
that suits its mouth is too long for its neck, NUTS included (funnel_scatter.png)."""


def main(arguments: list[str] | None = None) -> None:
    """Sample both targets, print the tables, write files."""
    options = parse(arguments)
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        sys.exit(f"The demonstration needs {', '.join(missing)}: pip install numpyro-fwd[demo]")
    warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
    warnings.filterwarnings("ignore", "Your data appears to have a single value", UserWarning)
    import matplotlib

    matplotlib.use("Agg")
    from numpyro_fwd import keep_compiled
    from numpyro_fwd.demo import sampling

    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    keep_compiled()  # a second demonstration waits for its draws alone
    for target in (sampling.logistic_regression(), sampling.funnel()):
        demonstrate(target, options)
    print(READING)
    print(f"\nWritten in {time.perf_counter() - begin:.0f} s, pictures and draws (az.from_netcdf):")
    for pattern in ("*.png", "*.nc"):
        names = " ".join(sorted(path.name for path in options.out.glob(pattern)))
        print(textwrap.fill(f"{options.out}/: {names}", 100, subsequent_indent="  "))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m numpyro_fwd", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="few samplers and few draws")
    return parser.parse_args(arguments)


def demonstrate(target, options: argparse.Namespace) -> None:
    """Sample one target with every sampler; write its files and print its table."""
    import jax
    from tqdm import tqdm  # type: ignore[import-untyped]

    from numpyro_fwd.demo import pictures, sampling

    runs = []
    bar = tqdm(
        list(sampling.budgets(target, options.quick)),
        bar_format="{desc} {bar:30} {n}/{total} {elapsed}",
    )
    for i, (sampler, budget) in enumerate(bar):
        bar.set_description(f"{target.name}: {sampler.__name__:<12}")
        key = jax.random.fold_in(jax.random.key(options.seed), i)
        runs.append(sampling.run(target, sampler, budget, key))
        runs[-1].idata.to_netcdf(str(options.out / f"{target.name}_{sampler.__name__}.nc"))
    print(f"\n{sampling.table(target, runs)}\n", flush=True)
    for run in runs:
        for text in run.said:
            print(textwrap.fill(f"Said by {run.sampler}: {text}", 100, subsequent_indent="  "))
    pictures.traces_and_ranks(target, runs, options.out / f"{target.name}_traces.png")
    if target.name == "funnel":
        pictures.funnel_scatter(runs, options.out / "funnel_scatter.png", options.seed)
