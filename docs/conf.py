"""Sphinx's settings: `make docs` builds the site, offline, with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import paceline

project = "Paceline"
author = "The Paceline authors"
copyright = "2026, The Paceline authors"
version = release = paceline.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "paceline_reference"]
exclude_patterns = ["_build", "_gallery"]
suppress_warnings = []
smartquotes = False  # it would make one dash of the two of an option
highlight_language = "none"

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"Paceline {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["readable.css"]
html_js_files = [("accessible.js", {"defer": "defer"})]
html_extra_path = ["_gallery/site"]  # docs/make_gallery.py
