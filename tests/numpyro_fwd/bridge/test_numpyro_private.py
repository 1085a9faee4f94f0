"""A NumPyro that lacks a private name says so by name."""

import ast
import importlib
import runpy
from pathlib import Path

import numpyro
import pytest

from numpyro_fwd.bridge import numpyro_private

PATH = Path(numpyro_private.__file__)
NAMES = [
    (node.module, alias.name)
    for node in ast.walk(ast.parse(PATH.read_text()))
    if isinstance(node, ast.ImportFrom) and node.module.startswith("numpyro.")
    if node.module != "numpyro.infer"  # public
    for alias in node.names
]


def test_private_names_are_found():
    assert ("numpyro.infer.util", "_unconstrain_params") in NAMES and len(NAMES) >= 9


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_that_is_gone_is_named(module, name, monkeypatch):
    monkeypatch.delattr(importlib.import_module(module), name)
    monkeypatch.setattr(numpyro, "__version__", "9.8.7")
    checked = numpyro_private.CHECKED_AGAINST.replace(".", r"\.")
    message = (
        rf"NumPyro 9\.8\.7 lacks .*'{name}' from '{module}'.* checked against NumPyro {checked}"
    )
    with pytest.raises(ImportError, match=message):
        runpy.run_path(str(PATH))
