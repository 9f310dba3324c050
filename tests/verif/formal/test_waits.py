# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The table of docs/design.md §11: who waits for whom is no circle, and what is said to hold a
bound exists."""

import re

import pytest

from kelp_verif.formal.proofs import PROOFS


@pytest.fixture(scope="module")
def section(repo_root):
    text = (repo_root / "docs" / "design.md").read_text(encoding="utf-8")
    return text[text.index("## 11. Who waits for whom") :]


def rows(section):
    """{row: (who, rows it waits for)}; a provider is a row, a span of rows, or outside."""
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or not cells[0].isdigit():
            continue
        named = set()
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", cells[3]):
            named |= set(range(int(first), int(last or first) + 1))
        found[int(cells[0])] = cells[1], named
    return found


def test_a_wait_points_to_rows_above(section):
    found = rows(section)
    assert list(found) == list(range(1, len(found) + 1)) and len(found) >= 20
    for row, (who, named) in found.items():
        assert all(other < row for other in named), f"row {row}, {who}, waits for {named}"


def test_a_circle_is_found(section):
    """If the evictor waited for a PREFETCH."""
    closed = section.replace("| rows 5 to 7, 9, 10 |", "| rows 5 to 7, 9, 10, 17 |")
    assert closed != section
    with pytest.raises(AssertionError, match="Evictor"):
        test_a_wait_points_to_rows_above(closed)


def test_every_proof_that_is_named_exists(section):
    named = set(re.findall(r"\(proof `(\w+)`", section))
    assert {"arbiter", "closer", "orphans"} <= named <= {proof.name for proof in PROOFS}
