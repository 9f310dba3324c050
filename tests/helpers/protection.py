# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What docs/protection.md says of memories: the rows of its tables."""

import fnmatch
import functools
import re

from paths import DOCS

__all__ = ["matches", "memory_rows"]


@functools.cache
def memory_rows(section):
    """(patterns of names, the other cells) of each row of that section that names memories."""
    page = (DOCS / "protection.md").read_text(encoding="utf-8")
    lines = page.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    rows = [(re.findall(r"`([^`]+)`", row[0]), *row[1:]) for row in cells]
    return [row for row in rows if row[0]]


def matches(name, rows):
    """Those of `rows` that name a memory."""
    return [row for row in rows if any(fnmatch.fnmatchcase(name, pattern) for pattern in row[0])]
