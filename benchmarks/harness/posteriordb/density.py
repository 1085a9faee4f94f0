"""Log densities of the ports beside those of Stan's programs.

``python -m benchmarks.harness.posteriordb.density CLONE [POSTERIOR ...]``, where pystan is
installed: at points of Stan's unconstrained space the log joint of both in the constrained one,
whose difference has to be one number. The largest deviation of it goes into `density.json`.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import numpy as np
from numpyro.infer.util import initialize_model, log_density

from benchmarks.harness.posteriordb.fetched import ROOT, git
from benchmarks.harness.posteriordb.ports import COMMIT, HERE, PORTS, model_of, stan_data_of

POINTS, SCALE = 8, 0.5  # points, and the scale of the normal law they are drawn from
FOUND = HERE / "density.json"
# where Stan's solver leaves the support at points about zero: about which they are, in its order
ABOUT = {"sir-sir": ((0.95, 0.24, 9.0, 0.22), 0.1)}  # constrained, all positive; scale of the logs
# tolerances of a solver that are too wide to compare by, and what they are replaced by
TIGHTER = {"lotka_volterra": ("1e-5, 1e-3, 5e2", "1e-10, 1e-10, 1e5")}


def stan_model(clone: Path, posterior: str):
    """The compiled Stan program with its data."""
    import stan

    program = posterior.split("-", 1)[1]
    code = git(clone, "show", f"{COMMIT}:{ROOT}/models/stan/{program}.stan").decode()
    code = code.split("\ngenerated quantities")[0] + "\n"  # they can fail, and take time to compile
    code = code.replace(*TIGHTER.get(program, ("", "")))
    return stan.build(code, data=stan_data_of(posterior))


def named(model, flat: list[float]) -> dict[str, np.ndarray]:
    """Stan's parameters of one point by name, which come flat in column-major order."""
    found, start = {}, 0
    for name, shape in zip(model.param_names, model.dims, strict=True):
        size = int(np.prod(shape, dtype=int))
        found[name] = np.reshape(flat[start : start + size], shape, order="F")
        start += size
    return found


def deviation(clone: Path, posterior: str) -> float:
    """Of the difference of both, the range over points, by the size of the densities."""
    stan, model = stan_model(clone, posterior), model_of(posterior)
    info = initialize_model(jax.random.key(0), model, validate_grad=False)
    latent, size = info.param_info.z, sum(np.size(x) for x in info.param_info.z.values())
    density = jax.jit(lambda values: log_density(model, (), {}, values)[0])
    rng, ours, theirs = np.random.default_rng(0), [], []
    about, scale = ABOUT.get(posterior, (np.ones(size), SCALE))
    while len(ours) < POINTS:
        z = (np.log(about) + scale * rng.normal(size=size)).tolist()
        found = stan.log_prob(z, adjust_transform=False)
        if not np.isfinite(found):  # bounds of a prior that are not those of its parameter
            continue
        theirs.append(found)
        values = named(stan, stan.constrain_pars(z))
        ours.append(float(density({name: values[name] for name in latent})))
    difference = np.subtract(ours, theirs)
    return float(np.ptp(difference) / max(np.abs(theirs).max(), 1.0))


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("posteriors", nargs="*")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in options.posteriors or PORTS:
        found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
        found[name] = float(f"{deviation(options.clone, name):.1g}")
        print(name, found[name], flush=True)
        FOUND.write_text(json.dumps(dict(sorted(found.items())), indent=0) + "\n")


if __name__ == "__main__":
    sys.exit(main())
