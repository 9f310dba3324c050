# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`make site`: what Sphinx is told. The pages are this repository's Markdown files where they lie;
:mod:`pages` (docs/site/pages.py) adds API pages to the rooms' READMEs, and source files as pages.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The docstrings of this checkout, whatever is installed.
sys.path[:0] = [
    str(ROOT / "docs/site"),
    *(str(ROOT / d) for d in ("hw", "fpga", "refinement", "sim", "sw")),
]

project = "KELP"
copyright = "the KELP authors"
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "docs/**.md",
    *(f"{top}/**README.md" for top in ("hw", "fpga", "refinement", "sim", "verif", "sw", "data")),
]
exclude_patterns = ["build", "dist", ".*", "shared", "tests", "**/__pycache__"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "pages",
]

# Markdown: links to headings, down to the third level; no typographic replacement.
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
add_module_names = False
# The inference engines of cxl_kv.connectors and a cluster's client: no part of this environment.
autodoc_mock_imports = ["torch", "transformers", "vllm", "lmcache", "sglang", "distributed"]

html_theme = "furo"
html_title = "KELP"
templates_path = ["site/templates"]
html_static_path = ["site/static"]
html_css_files = ["kelp.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
# The entry that everybody looks for: it goes to docs/index.html.
html_additional_pages = {"index": "redirect.html"}
