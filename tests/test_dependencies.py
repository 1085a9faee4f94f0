"""What pyproject.toml asks for: what the code imports, and nothing that others cannot have."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGES = ("blackjax_ext", "numpyro_fwd", "examples")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: [Requirement(each) for each in requirements]
    for name, requirements in PROJECT["optional-dependencies"].items()
}
CORE = [Requirement(each) for each in PROJECT["dependencies"]]
# found in any environment of an array library, or reported where it is missing
ELSEWHERE = {"pymc"}
# what an environment of PyMC 6.4, bambi and nutpie has, on Python 3.13
BESIDE = {
    "arviz-base": "1.3.1",
    "arviz-plots": "1.3.2",
    "arviz-stats": "1.3.3",
    "cloudpickle": "3.1.3",
    "filelock": "4.3.1",
    "matplotlib": "3.11.2",
    "numcodecs": "0.17.1",
    "numpy": "2.5.5",
    "scipy": "1.17.1",
    "xarray": "2026.9.0",
    "zarr": "3.4.2",
}


def imports(path, *, at_the_top):
    """Packages that a file imports when it is imported, or at all."""
    nodes = ast.parse(path.read_text()).body
    for node in nodes if at_the_top else ast.walk(ast.Module(nodes, [])):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        yield from (name.split(".")[0] for name in names)
        # import_module("zarr"), needed("zarr")
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "import_module",
            "needed",
        ):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def third_party(names):
    return {name for name in names if name not in {*sys.stdlib_module_names, *PACKAGES}}


@cache
def distributions():
    return packages_distributions()


def modules_of(requirements):
    """Modules of the distributions that are asked for."""
    named = {re.sub(r"[-_.]+", "-", each.name).lower() for each in requirements}
    return {
        module
        for module, named_by in distributions().items()
        if named & {re.sub(r"[-_.]+", "-", each).lower() for each in named_by}
    }


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_imported_is_declared(package):
    """At the top of a file: by the core, of an example by the extra demo too. Else: by any."""
    pytest.importorskip("sklearn", reason="names of modules are asked of what is installed")
    core = modules_of(CORE)
    every = core | ELSEWHERE | set().union(*map(modules_of, EXTRAS.values()))
    of_top = core | modules_of(EXTRAS["demo"] if package == "examples" else [])
    for path in (ROOT / package).rglob("*.py"):
        top = third_party(imports(path, at_the_top=True))
        assert top <= of_top, f"{path}: {top}"
        anywhere = third_party(imports(path, at_the_top=False))
        assert anywhere <= every, f"{path}: {anywhere}"


def asked_for(*extras):
    return [each for each in (*CORE, *(one for name in extras for one in EXTRAS[name]))]


@pytest.mark.parametrize("python", ["3.12", "3.13", "3.14"])
def test_the_packages_beside_stay_as_they_are(python):
    for each in asked_for("store", "demo", "nn", "ode"):
        applies = each.marker is None or each.marker.evaluate({"python_version": python})
        if applies and each.name in BESIDE:
            assert BESIDE[each.name] in each.specifier, each


@pytest.mark.parametrize("name", ["jax", "jaxlib"])
def test_releases_of_jax_with_faults_are_excluded(name):
    from blackjax_ext.dependencies import KNOWN_FAULTS

    (found,) = [each for each in CORE if each.name == name]
    # the last for Python 3.11, of which an import warns
    assert [version for version in KNOWN_FAULTS if version in found.specifier] == ["0.10.2"]
    assert "0.12.0.1" in found.specifier
