"""Sphinx configuration: MyST pages, API pages from docstrings, notebooks as committed."""

import re
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
    "folded",
    "linked",
    "measured",
    "myst_nb",
    "reference",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "thumbnails",
]
exclude_patterns = [
    "_build",
    "jupyter_execute",
    "results",
    "**/.ipynb_checkpoints",
]

html_theme = "furo"
html_title = f"numpyro-fwd {release}"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

# The tests execute the notebooks; the pages show the outputs that are committed.
nb_execution_mode = "off"

# the docstrings say what a field is; its annotation would take ten lines
napoleon_attr_annotations = False
autodoc_typehints = "none"  # the docstrings say what each argument is
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_ivar = True
napoleon_use_rtype = False


# Every reference is resolved, but for types of other projects, whose pages are not at hand when
# these are built, and base classes that have no page.
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"(blackjax|collections|jax|numpy|numpyro|optax|os|pathlib)\..*"),
    ("py:class", "ArrayTree|ArrayLikeTree"),
    ("py:class", r"numpyro_fwd\.kernels\.\w+\.(Minibatch|Named|Scheduled)Kernel"),
    ("py:class", r"numpyro_fwd\.kernels\.(notices\.Notice|strategy\.Strategy)"),
    ("py:class", r"numpyro_fwd\.(bridge\.arguments\.Fingerprint|partial_bayes\.training\.Best)"),
    ("py:class", r"blackjax_ext\.subsampling\.groups\.(mode\.GroupedPosition|predictor\.Leaf)"),
]


def one_name_each(app, what, name, obj, options, lines):
    """Describe names that share a description one by one, as napoleon wants them."""
    done = []
    while lines:
        line = lines.pop(0)
        found = re.fullmatch(r"(\s*)(\w+(?:, \w+)+)", line)
        is_shared = found and lines and lines[0].startswith(found[1] + "    ")
        text = []
        while is_shared and lines and lines[0].startswith(found[1] + "    "):
            text.append(lines.pop(0))
        names = found[2].split(", ") if is_shared else []
        done += [each for one in names for each in (found[1] + one, *text)] or [line]
    lines[:] = done


def skip_namedtuple_fields(app, what, name, obj, skip, options):
    """Leave out "Alias for field number 0": the class docstring describes the fields."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def link_notebooks(app, page, source):
    """Links to the notebooks where they lie lead to their pages, which have copies of them."""
    source[0] = re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+notebooks/(\w+)\.ipynb\)", r"{doc}`\1 </notebooks/\2>`", source[0]
    )


def setup(app):
    """Connect the filters for docstrings and pages."""
    app.connect("source-read", link_notebooks)
    app.connect("autodoc-process-docstring", one_name_each, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", skip_namedtuple_fields)
