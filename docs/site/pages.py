# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A Sphinx extension: the repository as a site.

- A README beside Python modules becomes their API page: the modules of its folder, and of the
  folders below that have no README of their own, are appended to it.
- A link to a source file leads to that file as a page, with line numbers.
- An SVG with links in it is set into the page, its links led the same way; a plain Markdown reader
  shows it as a picture.
"""

from __future__ import annotations

import inspect
import os
import re
from functools import cache
from pathlib import Path

from amaranth.lib import wiring
from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.ext.napoleon import Config, NumpyDocstring
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
# Packages whose docstrings are shown, by the folder that holds them.
API = ("hw/kelp_spec", "hw/kelp_hw", "sim/kelp_golden", "sim/kelp_sim", "sim/kelp_rtl", "sw/cxl_kv")
PACKAGES = (*API, "verif/kelp_verif", "fpga/kelp_fpga", "sw/kelp_cli")
SHOWN = ("hw", "fpga", "refinement", "sim", "verif", "sw", "tests", "examples", "scripts", "docs")
SUFFIXES = {".py", ".v", ".c", ".cpp", ".h", ".toml"}


def is_source(path: str) -> bool:
    """Whether the repository's file `path` has a page of its own."""
    return Path(path).suffix in SUFFIXES or path.startswith("scripts/") or path == "Makefile"


def link(docname: str, path: str) -> str | None:
    """Where the page `docname` finds the repository's file `path`: its page in the site."""
    if Path(path).suffix == ".md":
        target = path.removesuffix(".md") + ".html"
    elif (ROOT / path).is_file() and is_source(path):
        target = f"source/{path}.html"
    else:
        return None
    return "../" * docname.count("/") + target


def resolved(folder: str, target: str) -> str:
    """`target`, relative to `folder`, as a path from the repository's root."""
    return os.path.normpath(os.path.join(folder, target.partition("#")[0]))


# - API -------------------------------------------------------------------------------------------


@cache
def modules_of(folder: str) -> tuple[str, ...]:
    """Modules shown on the README of `folder`, as paths from the root."""
    found = []
    for path in sorted((ROOT / folder).iterdir()):
        if path.suffix == ".py" and path.stem != "__main__":
            found.append(path.relative_to(ROOT).as_posix())
        elif (path / "__init__.py").is_file() and not (path / "README.md").is_file():
            found += modules_of(path.relative_to(ROOT).as_posix())
    return tuple(found)


def append_rooms(app, docname, source):
    folder = os.path.dirname(docname)
    if os.path.basename(docname) != "README" or not folder.startswith(PACKAGES):
        return
    below = sorted(
        path.relative_to(ROOT / folder).with_suffix("").as_posix()
        for path in (ROOT / folder).glob("*/README.md")
    )
    parts = ["\n\n```{toctree}\n:hidden:\n\n" + "\n".join(below) + "\n```\n"] if below else []
    if folder.startswith(API):
        parts += api_of(app, docname, folder)
    source[0] += "".join(parts)


def api_of(app, docname, folder):
    parts = ["\n\n## API\n"]
    for path in modules_of(folder):
        name = path.split("/", 1)[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        title = os.path.relpath(path, folder)
        parts.append(
            f"\n### [`{title}`]({title})\n\n"
            + f"```{{eval-rst}}\n.. automodule:: {name}\n   :ignore-module-all:\n```\n"
        )
        app.env.note_dependency(str(ROOT / path), docname=docname)
    return parts


# Docstrings are numpydoc's, with a section of ours for ports. Words where numpydoc has a type are
# words ("in", "a cycle later"), so no section looks them up as Python names.
NUMPYDOC = Config(
    napoleon_use_param=False,
    napoleon_use_rtype=False,
    napoleon_custom_sections=[
        (section, "params_style") for section in ("Members", "Attributes", "Raises")
    ],
)


# Marks of a docstring, first match first: a literal, a role, `code` (and the letter behind it,
# which reStructuredText wants apart), and what would start a substitution.
MARKS = re.compile(r"``.+?``|:\w+:`[^`]+`|`(?P<code>[^`]+)`(?P<next>\w?)|(?P<bar>\|)", re.DOTALL)


def render_docstring(app, what, name, obj, options, lines):
    """Our docstrings to reStructuredText: `code` in single quotes, `|` as it stands."""

    def mark(match):
        if match["bar"]:
            return r"\|"
        if match["code"]:
            return f"``{match['code']}``" + (rf"\ {match['next']}" if match["next"] else "")
        return match[0]

    text = MARKS.sub(mark, "\n".join(lines))
    # An attribute's docstring is a sentence; napoleon would take what precedes a colon for a type.
    kind = "class" if what in ("attribute", "data", "property") else what
    lines[:] = NumpyDocstring(text.split("\n"), NUMPYDOC, app, kind, name, obj, options).lines()


def signature(app, what, name, obj, options, args, returned):
    """A component's own parameters, which Amaranth's metaclass hides."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, wiring.Component):
        own = inspect.signature(obj.__init__)
        rest = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in list(own.parameters.values())[1:]
        ]
        return str(inspect.Signature(rest)), None
    return None


# - links -----------------------------------------------------------------------------------------


class Links(SphinxTransform):
    """Links to files become links to their pages; linked SVGs are set into the page."""

    default_priority = 400

    def apply(self):
        docname = self.env.docname
        folder = os.path.dirname(docname)
        for node in list(self.document.findall(addnodes.download_reference)):
            target = link(docname, resolved(folder, node["reftarget"]))
            if target:
                new = nodes.reference("", "", *node.children, refuri=target, internal=True)
                node.replace_self(new)
        for node in list(self.document.findall(nodes.image)):
            path = resolved(folder, node["uri"])
            if path.endswith(".svg") and (ROOT / path).is_file():
                text = (ROOT / path).read_text(encoding="utf-8")
                if "<a " in text:
                    self.env.note_dependency(str(ROOT / path))
                    node.replace_self(self.inline(docname, path, text))

    def inline(self, docname, path, text):
        def lead(match):
            return f'href="{link(docname, resolved(os.path.dirname(path), match[1]))}"'

        text = re.sub(r"<\?xml.*?\?>|<!--.*?-->", "", text, flags=re.DOTALL)
        text = re.sub(r'href="([^"#][^"]*)"', lead, text)
        return nodes.raw("", f'<div class="picture">{text}</div>', format="html")


# - source files ----------------------------------------------------------------------------------

PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{path}</title>
<link rel="stylesheet" href="{up}_static/pygments.css">
<link rel="stylesheet" href="{up}_static/source.css"></head>
<body data-theme="auto"><p><a href="{up}docs/index.html">KELP</a> / {where}</p>
{code}
</body></html>
"""


def source_pages(app, exception):
    """Every source file as a page of its own, written again only when it has changed."""
    if exception or app.builder.name != "html":
        return
    out, formatter = (
        Path(app.outdir) / "source",
        HtmlFormatter(linenos="inline", anchorlinenos=True),
    )
    formatter.lineanchors, own = "L", Path(__file__).stat().st_mtime
    files = [
        path
        for top in SHOWN
        for path in (ROOT / top).rglob("*")
        if path.is_file() and (path.suffix in SUFFIXES or top == "scripts")
    ]
    for path in files + [ROOT / "Makefile", ROOT / "pyproject.toml"]:
        name = path.relative_to(ROOT).as_posix()
        page = out / f"{name}.html"
        if "__pycache__" in name or (
            page.is_file() and page.stat().st_mtime > max(own, path.stat().st_mtime)
        ):
            continue
        text = path.read_text(encoding="utf-8")
        try:
            lexer = get_lexer_for_filename(name)
        except ClassNotFound:
            lexer = get_lexer_for_filename("x.sh")
        up = "../" * (name.count("/") + 1)
        room = os.path.dirname(name)
        where = (
            f'<a href="{up}{room}/README.html">{room}</a>/{path.name}'
            if (ROOT / room / "README.md").is_file() and room
            else name
        )
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(
            PAGE.format(path=name, up=up, where=where, code=highlight(text, lexer, formatter)),
            encoding="utf-8",
        )


def setup(app):
    app.connect("source-read", append_rooms)
    app.connect("autodoc-process-docstring", render_docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("build-finished", source_pages)
    app.add_transform(Links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
