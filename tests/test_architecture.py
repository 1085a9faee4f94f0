"""Rooms, what each may import, and what the packages promise."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import blackjax.base
import jax
import pytest

import blackjax_ext
import numpyro_fwd
from tests import declared
from tests.laws import groups

ROOT = Path(blackjax_ext.__file__).parent
BRIDGE = Path(numpyro_fwd.__file__).parent
# what each room may import of the package, besides itself and the types
ROOMS = {
    "checks": set(),
    "dependencies": set(),
    "lazy": set(),
    "meshes": set(),
    "precision": set(),
    "primitives": set(),
    "equations": {"primitives"},
    "programs": {"equations"},
    "raising": {"equations", "factoring"},
    "types": set(),
    "factoring": {"equations"},
    "stacking": {"equations", "primitives"},
    "metrics": {"checks", "factoring", "lazy", "precision"},
    "coordinates": {"checks", "precision", "stacking"},
    "top_level": {"checks", "metrics"},
    "mcmc": {
        "checks",
        "coordinates",
        "equations",
        "factoring",
        "metrics",
        "precision",
        "primitives",
        "top_level",
    },
    "adaptation": {
        "checks",
        "coordinates",
        "equations",
        "factoring",
        "meshes",
        "metrics",
        "mcmc",
        "precision",
        "stacking",
    },
    "emulators": {"adaptation", "checks", "equations", "metrics", "mcmc", "primitives"},
    "rows": {"checks", "equations", "meshes", "metrics", "mcmc", "precision"},
    "sgmcmc": {"checks", "metrics", "mcmc", "rows", "precision", "top_level"},
    "smc": {"checks", "equations", "factoring", "metrics", "mcmc", "precision", "top_level"},
    # nothing else imports the last rooms
    "subsampling": {
        "checks",
        "equations",
        "meshes",
        "metrics",
        "mcmc",
        "precision",
        "primitives",
        "programs",
        "rows",
        "sgmcmc",
        "top_level",
    },
    "acceptance": {"sgmcmc", "subsampling"},
    "potentials": {"rows", "subsampling"},
}
BRIDGE_ROOMS = {
    "disk": set(),
    "table_file": {"disk"},
    "bridge": {"disk"},
    "subsampling": {"bridge"},
    "kernels": {"bridge", "disk", "meshes", "subsampling", "table_file"},
    "partial_bayes": {"bridge"},
    "storage": {"bridge", "disk", "mcmc"},
    "meshes": {"bridge"},
    "mcmc": {"bridge", "kernels"},
    "compilation": set(),
    "densities": {"bridge"},
    "types": set(),
}
# shared files of a room: each may import those in the rows above its own
LAYERS = {
    "metrics": [
        {"factor"},
        {"structures"},
        {"low_rank"},
        {"factors"},
        {"metric_functions"},
    ],
    "coordinates": [{"laws"}, {"sequences"}, {"maps"}, {"learning"}, {"partial"}],
    "mcmc": [
        {"dependence", "derivatives"},
        {"auto_step", "langevin", "schedules"},
        {"tangents"},
        {"metric_moves", "tangent_moves"},
    ],
    "adaptation": [
        {"half_turns"},
        {"windows"},
        {"algorithm"},
        {"budget"},
        {"newton_path"},
        {"start"},
        {"in_coordinates", "report"},
    ],
    "rows": [
        {"arrowhead", "shuffles"},
        {"compensated_sums"},
        {"newton", "potentials"},
        {"minibatches"},
    ],
    "subsampling": [
        {"alias_table", "intervals"},
        {"taylor"},
        {"families"},
        {"predictors"},
        {"grouping"},
        {"passes"},
        {"mode", "row_bounds"},
        {"grouped_mode"},
        {"expansion"},
        {"remainders"},
        {"thinning"},
        {"row_tests"},
    ],
    "sgmcmc": [{"leapfrog", "acceptance"}],
    "smc": [
        {"annealing", "offspring", "proposals", "sampler", "training"},
        {"l_kernels", "mixtures", "tempered"},
        {"cooled", "moves"},
    ],
}
# a named special case may be an alias of its parent, and a mixture consists of the kernels it mixes
SPECIAL_CASES = {
    "alsmmala": {"smmala", "mala"},
    "amsmmala": {"smmala", "random_walk"},
    "l2mc": {"amagold"},
}
PUBLIC_NAMES = {"open_horizon": "open_horizon_smc"}
FILES = {
    f"{path.parent.name}.{path.stem}": path
    for room in LAYERS
    for path in (ROOT / room).glob("*.py")
    if path.stem != "__init__"
}
ALGORITHMS = sorted(
    name
    for name in FILES
    if (name.split(".")[0] in ("mcmc", "sgmcmc", "smc") or name == "subsampling.group_sweeps")
    and name.split(".")[1] not in set().union(*LAYERS[name.split(".")[0]])
)
CHAINS = [name for name in ALGORITHMS if not name.startswith("smc.")]
MODULES = [
    module.name
    for package in (blackjax_ext, numpyro_fwd)
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
    if not module.name.endswith("__main__")
]


def module_of(name: str):
    """The module of an algorithm."""
    return importlib.import_module(f"blackjax_ext.{name}")


def public_name(name: str) -> str:
    """The name of an algorithm in the package."""
    stem = name.split(".")[1]
    return PUBLIC_NAMES.get(stem, stem)


def sampler_of(name: str):
    """The algorithm on a normal density."""

    def logdensity(x):
        return -(x**2)

    if name == "subsampling.group_sweeps":  # whose position has groups
        sweeps = blackjax_ext.group_sweeps(groups.expansion(2), 1.0)
        return sweeps._replace(init=lambda _, key: sweeps.init(groups.start(), key))
    if name == "mcmc.emulated":
        return blackjax_ext.emulated(logdensity, 1.0, emulator_fn=logdensity)
    with_minibatches = name.startswith("sgmcmc.")
    target = blackjax_ext.potentials.full_batch(logdensity) if with_minibatches else logdensity
    return getattr(blackjax_ext, public_name(name))(target, 1.0)


def imported(path: Path) -> set[str]:
    """Dotted names of everything a file imports when it runs."""
    names = set()
    tree = ast.parse(path.read_text())
    for_types = [node for node in ast.walk(tree) if is_for_types(node)]
    skipped = {each for node in for_types for each in ast.walk(node)}
    for node in set(ast.walk(tree)) - skipped:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def is_for_types(node: ast.AST) -> bool:
    """Whether a block is read by the type checker alone."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def rooms_of(path: Path, package: str) -> set[str]:
    """Rooms of a package that a file imports."""
    found = {name for name in imported(path) if name.startswith(f"{package}.")}
    folder = ROOT if package == "blackjax_ext" else BRIDGE
    rooms = {name.split(".")[1] for name in found}
    # other names are public ones, of the package itself
    return {room for room in rooms if (folder / room).exists() or (folder / f"{room}.py").exists()}


def siblings(path: Path) -> set[str]:
    """Files of its own room that a file imports."""
    prefix = f"blackjax_ext.{path.relative_to(ROOT).parts[0]}."
    found = (used for used in imported(path) if prefix in used)
    return {used.removeprefix(prefix).split(".")[0] for used in found}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.stem)
def test_samplers_never_import_numpyro(path):
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & {"numpyro", "numpyro_fwd"}


def test_there_is_no_other_room():
    assert {path.stem for path in ROOT.iterdir() if not path.stem.startswith("_")} == (
        set(ROOMS) | {"py"}
    )
    assert {path.stem for path in BRIDGE.iterdir() if not path.stem.startswith("_")} == (
        set(BRIDGE_ROOMS) | {"py"}
    )


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_one_way(room):
    paths = (ROOT / room).rglob("*.py") if (ROOT / room).is_dir() else [ROOT / f"{room}.py"]
    for path in paths:
        assert rooms_of(path, "blackjax_ext") <= ROOMS[room] | {room, "types"}, path


@pytest.mark.parametrize("room", BRIDGE_ROOMS)
def test_rooms_of_the_bridge_import_one_way(room):
    for path in (BRIDGE / room).rglob("*.py"):
        assert rooms_of(path, "numpyro_fwd") <= BRIDGE_ROOMS[room] | {room, "types"}, path


@pytest.mark.parametrize("room", LAYERS)
def test_shared_files_import_only_those_above(room):
    above = set()
    for layer in LAYERS[room]:
        for name in layer:
            folder = ROOT / room / name
            files = folder.rglob("*.py") if folder.is_dir() else [FILES[f"{room}.{name}"]]
            for path in files:
                assert siblings(path) - {name} <= above, path
        above |= layer


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_import_no_algorithm(name):
    room, stem = name.split(".")
    shared = set().union(*LAYERS[room])
    assert siblings(FILES[name]) <= shared | SPECIAL_CASES.get(stem, set())


def check_order(text: str) -> None:
    """Fail unless State, Info, init, build_kernel and top level are there, in this order."""

    def ranks(names: list[str]) -> list[int]:
        order = ("State", "Info", "init", "build_kernel", "decorated")
        return [order.index(end) for name in names for end in order if name.endswith(end)]

    def name_of(node: ast.ClassDef | ast.FunctionDef) -> str:
        decorators = [ast.unparse(each) for each in node.decorator_list]
        is_public = any("(init, build_kernel" in each for each in decorators)
        return "decorated" if is_public else node.name

    body = ast.parse(text).body
    own = ranks([name_of(n) for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef))])
    # a State or an Info that several share has a name of each
    shared = [a.asname or "" for n in body if isinstance(n, ast.ImportFrom) for a in n.names]
    assert own == sorted(own) and {*own, *ranks(shared)} >= {1, 2, 3, 4}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_files_keep_the_order(name):
    check_order(FILES[name].read_text())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_are_public(name):
    api, module = getattr(blackjax_ext, public_name(name)), module_of(name)
    assert public_name(name) in blackjax_ext.__all__
    assert api.init is module.init and api.build_kernel is module.build_kernel


@pytest.mark.first
@pytest.mark.parametrize("name", CHAINS)
def test_info_has_what_every_sampler_reports(name):
    sampler = sampler_of(name)
    assert isinstance(sampler, blackjax.base.SamplingAlgorithm)
    state, info = sampler.step(jax.random.key(0), sampler.init(0.5, jax.random.key(1)))
    assert {"acceptance_rate", "is_accepted", "is_divergent"} <= set(info._fields)
    assert "position" in state._fields


@pytest.mark.parametrize("name", MODULES)
def test_modules_export_what_they_say(name):
    module = importlib.import_module(name)
    missing = [each for each in getattr(module, "__all__", []) if not hasattr(module, each)]
    assert not missing


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("blackjax_ext.")])
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_an_example(name):
    assert doctest.DocTestParser().get_examples(getattr(module_of(name), public_name(name)).__doc__)


@pytest.mark.parametrize("path", declared.WRITTEN, ids=lambda path: path.parent.name)
def test_what_follows_from_declarations_is_written(path):
    """Else run ``make declared``."""
    assert path.read_text(encoding="utf-8") == declared.WRITTEN[path]()


@pytest.mark.long
def test_nothing_is_mocked_in_the_packages():
    for path in [*ROOT.rglob("*.py"), *BRIDGE.rglob("*.py")]:
        assert not any(name.startswith("unittest") for name in imported(path)), path


# modules of NumPyro whose documented names any file may import
PUBLIC_NUMPYRO = {
    "numpyro",
    "numpyro.contrib.module",
    "numpyro.distributions",
    "numpyro.handlers",
    "numpyro.infer",
    "numpyro.infer.mcmc",
    "numpyro.infer.reparam",
}


def private_numpyro_names(path: Path) -> set[str]:
    """Names that a file imports from NumPyro and NumPyro does not list as its public ones.

    A module without a list, as `numpyro.infer.reparam`, has those that begin without an underscore.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names if alias.name.startswith("numpyro.")}
            found |= {name for name in names if name not in PUBLIC_NUMPYRO}
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("numpyro."):
            is_public = node.module in PUBLIC_NUMPYRO
            module = importlib.import_module(node.module) if is_public else None
            listed = getattr(module, "__all__", [name for name in dir(module) if name[0] != "_"])
            public = listed if is_public else ()
            modules = {module.removeprefix(f"{node.module}.") for module in PUBLIC_NUMPYRO}
            names = {alias.name for alias in node.names} - set(public) - modules
            found |= {f"{node.module}.{name}" for name in names}
    return found


@pytest.mark.long
def test_private_names_of_numpyro_are_imported_in_one_file():
    users = {
        path.relative_to(ROOT.parent).as_posix(): names
        for path in [*ROOT.rglob("*.py"), *BRIDGE.rglob("*.py")]
        if (names := private_numpyro_names(path))
    }
    assert set(users) == {"numpyro_fwd/bridge/numpyro_private.py"}, users
    assert "numpyro.infer.util._unconstrain_params" in users.popitem()[1]


@pytest.mark.long
def test_models_are_traced_in_one_file():
    users = {
        path.relative_to(ROOT.parent).as_posix()
        for path in BRIDGE.rglob("*.py")
        if imported(path) & {"numpyro.handlers.trace", "numpyro.handlers"}
        and "trace(" in path.read_text()
    }
    assert users == {"numpyro_fwd/bridge/traces.py"}
