# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What one tenant's traffic leaves of another's reads of resident lines (docs/design.md, "How
slow"), and the program that has the whole table."""

import json

import pytest

from kelp_spec.config import named
from kelp_verif.endpoint import neighbours
from kelp_verif.endpoint.neighbours import ATTACKS, Neighbours

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model
CYCLES = 2000


@pytest.fixture(scope="module")
def bench():
    bench = Neighbours(named("unit_select"), cycles=CYCLES)
    yield bench
    bench.close()


@pytest.mark.parametrize(
    ("attack", "lines", "longest", "theirs"),
    [
        ("nobody", 0.98, 25, 0),
        ("reads, page by page", 0.49, 26, 0.49),
        ("reads outside the map", 0.49, 26, 0.49),
        ("reads of int4 lines at random", 0.45, 60, 0.45),
        ("writes with poison", 0.49, 26, 0.49),
        ("MemSpecRd of cold pages", 0.49, 26, 0.49),
        ("reads of the hint window", 0.32, 28, 0.32),
        ("register reads", 1 / 17, 45, 1 / 17),
        ("register writes", 0.9, 30, 1 / 24),
        ("APPLY_ALL", 0.9, 40, 1 / 40),
        ("hints: masses", 0.8, 40, 1 / 70),
        ("reads, a step each", 0.2, 40, 0.2),
        ("hints: steps", 0.25, 40, 0.12),
        ("queries", 0.7, 30, 0.15),
        ("SELECTs", 0.6, 60, 0.15),
        ("writes in part", 1 / 23, 380, 1 / 24),
    ],
)
@pytest.mark.sampled
def test_what_is_left(bench, attack, lines, longest, theirs):
    """Lines a cycle at least, cycles of a turn at most, and what the tenant itself gets."""
    cell = bench.cell(attack)
    print(cell)
    assert cell.lines >= lines and cell.longest <= longest and cell.theirs >= theirs


def test_at_a_quarter(bench):
    cell = bench.cell("hints: masses", "quarter")
    assert cell.lines > 0.24 and cell.longest < 45


def test_what_is_no_traffic_is_refused(bench):
    with pytest.raises(ValueError, match="name = 'noise' is refused; legal: nobody, reads"):
        bench.cell("noise")
    with pytest.raises(ValueError, match="pace = 'half' is refused; legal: full, quarter"):
        bench.cell("nobody", "half")
    with pytest.raises(ValueError, match="cycles = 10 is refused"):
        Neighbours(bench.config, cycles=10)
    with pytest.raises(ValueError, match="sessions = 1 is refused"):
        Neighbours(bench.config.with_(sessions=1))


def test_the_program(capsys, tmp_path):
    file = tmp_path / "cells.json"
    asks = ["--cycles", "1000", "--only", "MemInv", "--json", str(file), "--seed", "3"]
    assert neighbours.main(asks) == 0
    shown = capsys.readouterr().out
    assert "seed 3" in shown and "MemInv" in shown
    found = json.loads(file.read_text())
    assert found["seed"] == 3
    assert [(c["attack"], c["pace"]) for c in found["cells"]] == [
        ("MemInv", "full"),
        ("MemInv", "quarter"),
    ]
    assert {"nobody", "writes in part"} <= ATTACKS.keys()
