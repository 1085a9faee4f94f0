"""Sphinx configuration: MyST pages, API pages from docstrings, notebooks as committed."""

import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "numpyro-fwd"
author = "the numpyro-fwd developers"
copyright = f"2026, {author}"
release = tomllib.loads(
    (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
)["project"]["version"]
version = release

extensions = [
    "measured",
    "myst_nb",
    "reference",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = [
    "_build",
    "jupyter_execute",
    "results",
    "which_sampler.md",
    "**/.ipynb_checkpoints",
]

html_theme = "furo"
html_title = f"numpyro-fwd {release}"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# The tests execute the notebooks; the pages show the outputs that are committed.
nb_execution_mode = "off"

# the docstrings say what a field is; its annotation would take ten lines
napoleon_attr_annotations = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_ivar = True
napoleon_use_rtype = False


def skip_namedtuple_fields(app, what, name, obj, skip, options):
    """Leave out "Alias for field number 0": the class docstring describes the fields."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app):
    """Connect the filter for fields of named tuples."""
    app.connect("autodoc-skip-member", skip_namedtuple_fields)
