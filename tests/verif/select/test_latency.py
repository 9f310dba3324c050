# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The command that times SELECTs among many pages: each is within its sum of stages."""

import pytest
from paths import DOCS

from kelp_hw.choice.choice import Choice
from kelp_hw.choice.mass_share import MassShare
from kelp_sim.select.timing import RTL, Shape
from kelp_verif.select import latency


@pytest.mark.parametrize("candidates", [1, 7, 128])
def test_the_pass_over_masses_takes_what_its_blocks_take(candidates):
    """The page, the clock of `kelp select` and this bench have one formula."""
    heads, scored = latency.HEADS, candidates + 2
    share = MassShare(heads=heads, depth=256, id_bits=8)
    blocks = share.latency(scored) + scored * share.INTERVAL + Choice.LATENCY
    shape = Shape(kv_heads=1, group=heads, lines=latency.LINES)
    took = latency.Latency(0, 0, candidates, 0, 0, 0)
    assert took.masses == RTL.masses(shape, candidates) == blocks
    page = (DOCS / "select.md").read_text(encoding="utf-8")
    assert blocks == 2 * (candidates + 2) + 23 + heads and "| 2 · (C + 2) + 23 + G |" in page


@pytest.mark.slow  # it builds a model: three minutes of processor time
@pytest.mark.timeout(1800)
def test_a_select_takes_what_its_stages_come_to(capsys):
    assert latency.main(["--pages", "128", "--selects", "1"]) == 0
    made, one = capsys.readouterr().out.strip().splitlines()
    assert made.startswith("128 pages: all summarised") and "32 chosen" in one
