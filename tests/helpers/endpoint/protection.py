# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What docs/protection.md says of memories: the rows of its tables, and whether a campaign of flips
found it so."""

import fnmatch
import functools
import re

from paths import DOCS

from kelp_verif.endpoint.flip_campaign import BAD, Outcome, table

__all__ = ["UNSEEN", "judge", "matches", "memory_rows"]

#: What may come of one flip where there are check bits. Beside a host that caches, times may
#: change, too: what its agents send follows from when they were answered, and a row that is mended
#: is written anew.
UNSEEN = {Outcome.CORRECTED, Outcome.MASKED}


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


def judge(result, checked, unseen=UNSEEN):
    """Fails where a flip of a campaign's `result` came to what must never be, or one alone to what
    is not `unseen` in a memory that is `checked`, by its name; and where nothing came of any, as
    where none happens."""
    wrong = [
        f"{name}: {bits} flipped, {outcome}"
        for name, kinds in result["memories"].items()
        for bits in ("1", "2")
        for outcome in kinds.get(bits, {})
        if outcome in BAD or (bits == "1" and checked(name) and outcome not in unseen)
    ]
    assert not wrong, "\n".join([table(result), *wrong, *map(str, result["bad"])])
    for bits, heard in (("1", {Outcome.CORRECTED}), ("2", {Outcome.FATAL, Outcome.POISON})):
        came = [set(kinds[bits]) for kinds in result["memories"].values() if bits in kinds]
        assert not came or heard & set().union(*came), f"{bits} flipped, and nobody heard of it"
