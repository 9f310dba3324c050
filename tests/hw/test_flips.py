# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits that flip in the endpoint's memories (docs/protection.md): each memory is in the table."""

import fnmatch
import functools
import re

from paths import DOCS

from kelp_hw.endpoint import Endpoint
from kelp_spec.config import named
from kelp_verif.endpoint.inventory import inventory


@functools.cache
def rows():
    """Patterns of each row of the table."""
    lines = (DOCS / "protection.md").read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    return [re.findall(r"`([^`]+)`", row[0]) for row in cells[2:]]


@functools.cache
def design():
    return inventory(Endpoint(config=named("unit")))


def rows_of(name):
    return [row for row in rows() if any(fnmatch.fnmatchcase(name, pattern) for pattern in row)]


def test_each_memory_is_in_the_table_once():
    strays = {name: len(rows_of(name)) for name in design() if len(rows_of(name)) != 1}
    assert not strays, f"rows of docs/protection.md for each of these: {strays}"
    patterns = [pattern for row in rows() for pattern in row]
    idle = [pattern for pattern in patterns if not fnmatch.filter(design(), pattern)]
    assert not idle, f"docs/protection.md names what is not there: {idle}"
