"""How Sphinx builds the documentation: `make docs`, where every warning is an error."""

from __future__ import annotations

import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from config_reference import configuration_reference  # noqa: E402 - it lies in _ext

DISTRIBUTION = "recsys-target-attention"

project = "recsys"
author = "the recsys contributors"
project_copyright = author
try:
    release = metadata.version(DISTRIBUTION)
except metadata.PackageNotFoundError:  # built from a checkout that is not installed
    release = "unreleased"

extensions = [
    "mathml",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_ext", "**.ipynb_checkpoints"]
templates_path: list[str] = []

# --- Markdown and notebooks ----------------------------------------------------------------------

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the tests run the notebooks; the pages show their stored outputs
nb_merge_streams = True

# --- API reference -------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
default_role = "code"  # docstrings write `name` for code
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# --- Pages ---------------------------------------------------------------------------------------

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "recsys"
html_static_path = ["_static"]
html_css_files = ["recsys.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "logo": {"text": "recsys"},
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}


def copy_notebooks() -> None:
    """Copy the notebooks into the documentation: Sphinx reads nothing outside its folder."""
    target = HERE / "notebooks"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, target)


def insert_reference(app: object, page: str, source: list[str]) -> None:
    """Put the generated configuration reference into its page."""
    if page == "configuration":
        source[0] += "\n" + configuration_reference()


def keep_intervals_together(app: object, page: str, source: list[str]) -> None:
    """Break no line inside an interval such as [.2040, .2192]."""
    if page in ("results", "lab-log"):
        source[0] = re.sub(r"(\[[-−+.\d]+,) ([-−+.\d]+\])", "\\1\N{NO-BREAK SPACE}\\2", source[0])


def setup(app: Any) -> None:
    """Prepare the sources before Sphinx reads them."""
    copy_notebooks()
    app.connect("source-read", insert_reference)
    app.connect("source-read", keep_intervals_together)
