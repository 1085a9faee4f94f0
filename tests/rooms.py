"""Which tests belong to a part of the packages: ``python -m tests.rooms subsampling`` lists them.

Tests of a part lie in a folder, or in files, of its name. Laws belong to the parts that they judge,
and so do tests of a package as a whole.
"""

import sys
from pathlib import Path

__all__ = ["ROOMS", "TESTS", "paths_of"]

TESTS = Path(__file__).parent
PACKAGES = [TESTS.parent / name for name in ("blackjax_ext", "numpyro_fwd")]
ROOMS = sorted(
    {
        path.stem
        for package in PACKAGES
        for path in package.iterdir()
        if path.suffix in {"", ".py"} and not path.name.startswith("__")
        if path.stem != "types"  # in which nothing runs
    }
)

# What no folder of tests says.
LAWS = {
    "test_awkward.py": {"kernels", "mcmc", "metrics", "rows", "sgmcmc", "smc", "adaptation"},
    "test_awkward_families.py": {"bridge", "subsampling"},
    "test_awkward_groups.py": {"bridge", "sgmcmc", "subsampling", "table_file"},
    "test_awkward_mutations.py": {"bridge", "checks", "metrics", "rows", "subsampling"},
    "test_awkward_smc.py": {"bridge", "partial_bayes", "smc"},
    "test_calibration.py": {"kernels", "adaptation"},
    "test_coarse_products.py": {"mcmc", "metrics", "precision", "smc", "subsampling"},
    "test_coordinates.py": {"coordinates", "adaptation"},
    "test_cost_of_starts.py": {"adaptation"},
    "test_costs.py": {"mcmc", "metrics", "rows", "sgmcmc", "smc"},
    "test_far_rows.py": {"bridge", "subsampling"},
    "test_groups.py": {"sgmcmc", "subsampling"},
    "test_interop.py": {"kernels", "mcmc"},
    "test_invariance.py": {"mcmc", "metrics", "rows", "sgmcmc", "smc"},
    "test_jax_contracts.py": {"checks", "mcmc", "metrics", "rows", "sgmcmc", "smc"},
    "test_lowering.py": {"disk", "kernels", "precision"},
    "test_minibatch.py": {"potentials", "rows", "sgmcmc"},
    "test_mutations.py": {"mcmc", "metrics"},
    "test_open_horizon.py": {"partial_bayes", "smc"},
    "test_other_modes.py": {"kernels", "adaptation"},
    "test_outside_sampler.py": {"mcmc"},
    "test_proposal.py": {"mcmc", "metrics"},
    "test_reductions.py": {"mcmc", "metrics", "rows", "sgmcmc"},
    "test_rows_apart.py": {"bridge"},
    "test_smc.py": {"smc"},
    "test_smc_mutations.py": {"smc"},
    "test_starts.py": {"adaptation"},
    "test_subsampled.py": {"acceptance", "subsampling"},
}
OTHERS = {
    "numpyro_fwd/test_bad_input.py": {"bridge", "checks", "kernels"},
    "numpyro_fwd/test_bad_input_models.py": {"bridge", "kernels"},
    "numpyro_fwd/test_bad_input_smc.py": {"kernels", "partial_bayes", "smc"},
    "numpyro_fwd/test_descriptions.py": {"kernels"},
    "numpyro_fwd/test_memory.py": {"kernels", "programs"},
    "numpyro_fwd/test_on_disk.py": {"disk", "file_rows", "table_file"},
    "numpyro_fwd/kernels/test_raising.py": {"bridge", "raising"},
    "numpyro_fwd/kernels/test_subsampled.py": {"subsampling"},
    "numpyro_fwd/kernels/test_groups.py": {"subsampling"},
    "numpyro_fwd/kernels/test_minibatch.py": {"rows", "sgmcmc"},
    "blackjax_ext/mcmc/test_arguments.py": {"checks"},
    "blackjax_ext/rows/test_potentials.py": {"potentials"},
    "test_dependencies.py": {"dependencies", "storage"},
    "test_docs_pages.py": set(ROOMS),
    "test_fixed_seeds.py": {"kernels", "mcmc", "sgmcmc", "smc", "subsampling", "adaptation"},
    "test_mesh.py": {"meshes"},
    "test_not_a_number.py": {
        "adaptation",
        "bridge",
        "coordinates",
        "kernels",
        "partial_bayes",
        "smc",
    },
    "test_side_effects.py": {"dependencies", "kernels"},
}
# What belongs to no part alone: how the parts fit, and all that stands beside the packages.
EVERYWHERE = {
    "examples/test_demo.py",
    "test_architecture.py",
    "test_docs_numbers.py",
    "test_notebooks.py",
    "test_rooms.py",
    "test_seeds.py",
}


def paths_of(room: str) -> list[Path]:
    """Files of tests that belong to a part of the packages, and test_architecture.py."""
    named = {f"laws/{name}": rooms for name, rooms in LAWS.items()} | OTHERS
    found = {TESTS / name for name, rooms in named.items() if room in rooms}
    for package in PACKAGES:
        found |= {*(TESTS / package.name / room).glob("**/test_*.py")}
        found |= {*(TESTS / package.name).glob(f"test_{room}.py")}
    return sorted({*found, TESTS / "test_architecture.py"})


if __name__ == "__main__":
    if (room := sys.argv[-1]) not in ROOMS:
        raise SystemExit(f"ROOM must be one of {', '.join(ROOMS)}; got {room!r}.")
    print(*(path.relative_to(TESTS.parent) for path in paths_of(room)))
