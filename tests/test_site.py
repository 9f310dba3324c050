# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`make site`: the pages build without a warning, need no network, and lead nowhere that is not
there."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from paths import ROOT

SITE = ROOT / "build/site"
PAGE = re.compile(r"<(?P<tag>\w+)\b[^>]*?\b(?:href|src)=\"(?P<to>[^\"]*)\"")


def references():
    """(page, tag, target) of every href and src of every page but the source files'."""
    for page in sorted(SITE.rglob("*.html")):
        if not page.is_relative_to(SITE / "source"):
            for match in PAGE.finditer(page.read_text(encoding="utf-8")):
                yield page, match["tag"], match["to"]


@pytest.mark.slow  # a minute and a half for every page of the API
@pytest.mark.timeout(600)
def test_site_builds_and_is_whole():
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    command = re.search(r"^\t\.venv/bin/python (-m sphinx .*) \$\(ARGS\)$", recipe, re.M)[1]
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (SITE / "index.html").is_file()
    fetched, dead = set(), set()
    for page, tag, to in references():
        if re.match(r"(https?:)?//", to):
            if tag in ("link", "script", "img", "iframe", "source", "use", "image"):
                fetched.add((page.name, tag, to))
        elif not re.match(r"[a-z]+:|#", to) and to:
            target = Path(page.parent, unquote(re.split(r"[#?]", to)[0]))
            if not target.exists():
                dead.add((str(page.relative_to(SITE)), to))
    for style in SITE.rglob("*.css"):
        if re.search(
            r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")
        ):
            fetched.add(style.name)
    assert not fetched, f"needs the network: {sorted(fetched)}"
    assert not dead, f"leads nowhere: {sorted(dead)}"
