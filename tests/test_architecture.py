"""Imports go one way, and what the packages promise is there."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import blackjax.base
import jax
import pytest

import blackjax_ext
import blackjax_ext.mcmc
import blackjax_ext.smc

ROOT = Path(blackjax_ext.__file__).parent
FOLDERS = ("mcmc", "sgmcmc")
FILES = {
    path.stem: path
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*.py")
    if path.stem != "__init__"
}
SMC_FILES = {path.stem: path for path in (ROOT / "smc").glob("*.py") if path.stem != "__init__"}
# what sequential Monte Carlo may import of itself; of mcmc, only what the samplers there share
SMC_LAYERS = [
    {"checks", "offspring", "proposals", "sampler", "training"},
    {"l_kernels", "tempered"},
    {"moves"},
]
MODULES = [
    module.name for module in pkgutil.walk_packages(blackjax_ext.__path__, prefix="blackjax_ext.")
]
# each file may import those in the rows above its own, and none of mcmc one of sgmcmc
LAYERS = [
    {"checks"},
    {"factors", "spectra"},
    {"metrics"},
    {"langevin", "consecutive"},
    {"tangents", "sums", "rows", "shuffles"},
    {"alias", "families"},
    {"linear_predictors"},
    {"newton"},
    {"expansion"},
    {"thinning"},
    {"potentials"},
    {"leapfrog", "acceptance"},
    {"minibatch_tests"},
]
# a named special case may be an alias of its parent, and a mixture consists of the kernels it mixes
SPECIAL_CASES = {
    "hp_mala": {"smmala"},
    "alsmmala": {"smmala", "mala"},
    "amsmmala": {"smmala", "random_walk"},
    "l2mc": {"amagold"},
}
SHARED = set().union(*LAYERS)
ALGORITHMS = sorted(set(FILES) - SHARED - {"schedules"})
PUBLIC_NAMES = {"open_horizon": "open_horizon_smc"}
SMC_ALGORITHMS = sorted(set(SMC_FILES) - set().union(*SMC_LAYERS))


def module_of(name: str):
    """The module of an algorithm."""
    return importlib.import_module(f"blackjax_ext.{FILES[name].parent.name}.{name}")


def sampler_of(name: str):
    """The algorithm on a normal density."""

    def logdensity(x):
        return -(x**2)

    with_minibatches = FILES[name].parent.name == "sgmcmc"
    target = blackjax_ext.potentials.full_batch(logdensity) if with_minibatches else logdensity
    return getattr(blackjax_ext, name)(target, 1.0)


def imported(path: Path) -> set[str]:
    """Dotted names of everything a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def siblings(path: Path, package: str = "") -> set[str]:
    """Files of `package`, or of the folders of Markov chains, that a file imports."""
    if package:
        prefix = f"blackjax_ext.{package}."
        found = (used for used in imported(path) if prefix in used)
        return {used.removeprefix(prefix).split(".")[0] for used in found}
    return {
        name
        for name in FILES
        if any(f".{name}." in f".{used}." and "blackjax_ext" in used for used in imported(path))
    }


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.stem)
def test_samplers_never_import_numpyro(path):
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & {"numpyro", "numpyro_fwd"}


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_shared_files_import_only_those_above(layer):
    above = set().union(*LAYERS[:layer])
    for name in LAYERS[layer]:
        assert siblings(FILES[name]) <= above, name


@pytest.mark.parametrize("name", sorted(FILES))
def test_samplers_without_minibatches_do_not_know_of_them(name):
    if FILES[name].parent.name == "mcmc":
        assert not any("sgmcmc" in used for used in imported(FILES[name]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_import_no_algorithm(name):
    assert siblings(FILES[name]) <= SHARED | {"schedules"} | SPECIAL_CASES.get(name, set())


def order_of(path: Path) -> list[int]:
    """Ranks of what a file defines in the order State, Info, init, build_kernel, top level."""
    tree = ast.parse(path.read_text())
    found = [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    order = ("State", "Info", "init", "build_kernel", "as_top_level_api")
    return [order.index(end) for name in found for end in order if name.endswith(end)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_files_keep_the_order(name):
    ranks = order_of(FILES[name])
    # an alias has the State and Info of its parent
    assert ranks == sorted(ranks) and set(ranks) >= {1 + (name in SPECIAL_CASES), 2, 3, 4}


@pytest.mark.parametrize("layer", range(len(SMC_LAYERS)))
def test_shared_files_of_smc_import_only_those_above(layer):
    above = set().union(*SMC_LAYERS[:layer])
    for name in SMC_LAYERS[layer]:
        assert siblings(SMC_FILES[name], "smc") <= above, name
        assert siblings(SMC_FILES[name]) <= SHARED, name


@pytest.mark.parametrize("name", SMC_ALGORITHMS)
def test_algorithms_of_smc_are_public_and_keep_the_order(name):
    module = importlib.import_module(f"blackjax_ext.smc.{name}")
    public_name = PUBLIC_NAMES.get(name, name)
    api = getattr(blackjax_ext, public_name)
    assert order_of(SMC_FILES[name]) == [0, 1, 2, 3, 4]
    assert public_name in blackjax_ext.__all__
    assert api.init is module.init and api.build_kernel is module.build_kernel
    assert siblings(SMC_FILES[name], "smc") <= set().union(*SMC_LAYERS)
    assert siblings(SMC_FILES[name]) <= SHARED
    assert doctest.DocTestFinder().find(module.as_top_level_api)[0].examples


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_are_public(name):
    api = getattr(blackjax_ext, name)
    module = module_of(name)
    assert name in blackjax_ext.__all__
    assert api.init is module.init and api.build_kernel is module.build_kernel
    assert isinstance(sampler_of(name), blackjax.base.SamplingAlgorithm)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_info_has_what_every_sampler_reports(name):
    sampler = sampler_of(name)
    state, info = sampler.step(jax.random.key(0), sampler.init(0.5, jax.random.key(1)))
    assert {"acceptance_rate", "is_accepted", "is_divergent"} <= set(info._fields)
    assert "position" in state._fields


@pytest.mark.parametrize("name", MODULES)
def test_modules_export_what_they_say(name):
    module = importlib.import_module(name)
    missing = [each for each in getattr(module, "__all__", []) if not hasattr(module, each)]
    assert not missing


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_an_example(name):
    module = module_of(name)
    assert doctest.DocTestFinder().find(module.as_top_level_api)[0].examples
