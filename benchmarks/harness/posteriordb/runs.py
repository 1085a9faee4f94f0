"""All seeds of one sampler on one posterior, in a process of its own.

``python -m benchmarks.harness.posteriordb.runs POSTERIOR SAMPLER SEEDS STEPS`` prints them as JSON.
Four chains from defaults in double precision, as many steps of warm-up as draws. The first seed
pays for compilation.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpyro.infer import NUTS
from numpyro.infer.util import initialize_model

from benchmarks.harness.cold_run import in_new_process
from benchmarks.harness.diagnostics import least_ess, worst_rhat
from benchmarks.harness.nutpie_run import nutpie_chains
from benchmarks.harness.posteriordb import model_of, reference_of
from numpyro_fwd import MCMC, AutoNUTS

__all__ = ["SAMPLERS", "all_seeds", "size_of", "worth_of"]

CHAINS = 4
KERNELS: dict[str, Callable] = {
    "AutoNUTS": AutoNUTS,
    "NUTS": NUTS,
    "NUTS, dense": lambda model: NUTS(model, dense_mass=True),
}
NUTPIE = {"nutpie": False, "nutpie, low rank": True}
SAMPLERS = (*KERNELS, *NUTPIE)


def size_of(posterior: str) -> int:
    """Dimensions of the unconstrained space."""
    info = initialize_model(jax.random.key(0), model_of(posterior), validate_grad=False)
    return sum(np.size(leaf) for leaf in jax.tree.leaves(info.param_info.z))


def chains_of(kernel: Any, num_steps: int) -> Callable[[int], dict[str, Any]]:
    """From a seed to the draws of a kernel, and what they cost."""
    mcmc = MCMC(
        kernel,
        num_warmup=num_steps,
        num_samples=num_steps,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )

    def run(seed: int) -> dict[str, Any]:
        key_warmup, key_run = jax.random.split(jax.random.key(seed))
        mcmc.post_warmup_state = None
        mcmc.warmup(key_warmup, extra_fields=("num_steps",), collect_warmup=True)
        in_warmup = float(mcmc.get_extra_fields()["num_steps"].astype(float).sum()) / CHAINS
        mcmc.run(key_run, extra_fields=("num_steps", "diverging"))
        fields = mcmc.get_extra_fields()
        return {
            "draws": {k: np.asarray(x) for k, x in mcmc.get_samples(True).items()},
            "gradients": float(fields["num_steps"].astype(float).sum()),
            "in warm-up": in_warmup,
            "diverging": int(fields["diverging"].sum()),
        }

    return run


def worth_of(found: dict[str, Any], latent: set[str], reference: Any) -> dict[str, float]:
    """ESS in the bulk and the tails, R-hat, and errors in standard deviations of the reference.

    ESS and R-hat are those of the worst entry of a latent site that is not a constant.
    """
    draws = {k: np.asarray(x, np.float64) for k, x in found["draws"].items()}
    moving = {k: draws[k][..., np.ptp(draws[k], axis=(0, 1)) > 0] for k in latent}
    worth: dict[str, float] = {
        "bulk": least_ess(moving),
        "tail": least_ess(moving, "tail"),
        "rhat": worst_rhat(moving),
        **{k: x for k, x in found.items() if k != "draws"},
    }
    if reference is not None:
        errors = [
            (np.abs(draws[k].mean((0, 1)) - mean) / sd, np.abs(draws[k].std((0, 1)) / sd - 1))
            for k, (mean, sd) in reference.items()
        ]
        for i, name in enumerate(("error", "error of sd")):  # infinite where a draw is no number
            worth[name] = max(float(np.nan_to_num(each[i], nan=np.inf).max()) for each in errors)
    return worth


def measure(posterior: str, sampler: str, seeds: int, num_steps: int) -> dict[str, Any]:
    """What each seed found, and its processor seconds."""
    model, reference, runs = model_of(posterior), reference_of(posterior), []
    latent = set(initialize_model(jax.random.key(0), model, validate_grad=False).param_info.z)
    if sampler in KERNELS:
        run = chains_of(KERNELS[sampler](model), num_steps)
    else:
        is_low_rank = NUTPIE[sampler]

        def run(seed: int) -> dict[str, Any]:
            return nutpie_chains(model, num_steps, seed, is_low_rank=is_low_rank)

    for seed in range(seeds):
        since = time.process_time()
        found = run(seed)
        seconds = time.process_time() - since
        runs.append({**worth_of(found, latent, reference), "seconds": seconds})
    return {"runs": runs}


def all_seeds(posterior: str, sampler: str, seeds: int, num_steps: int) -> list[dict[str, Any]]:
    """:func:`measure` in a new process."""
    module = "benchmarks.harness.posteriordb.runs"
    found = in_new_process(module, posterior, sampler, seeds, num_steps)
    runs: list[dict[str, Any]] = found["runs"]
    return runs


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)  # Stan's programs add 1e-10 to diagonals
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
