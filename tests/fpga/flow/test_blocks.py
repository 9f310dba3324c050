# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The blocks that are placed and routed alone: all that the endpoint is made of, and how they are
asked for."""

import json

import pytest

import kelp_fpga.flow.pnr
from kelp_cli.fpga.blocks import blocks
from kelp_cli.output import UserError
from kelp_fpga.flow.blocks import BLOCKS, block
from kelp_fpga.flow.pnr import PnrResult
from kelp_hw.endpoint import Endpoint
from kelp_hw.lib.skid import Skid
from kelp_spec.config import named


@pytest.mark.parametrize(("protect", "more"), [(False, []), (True, ["FaultMonitor"])])
def test_they_are_what_the_endpoint_is_made_of(protect, more):
    config = named("ulx3s").with_(name="blocks", protect=protect)
    inside = Endpoint(config=config).elaborate(None)._named_submodules
    made_of = sorted(
        type(each).__name__ for each, _ in inside.values() if not isinstance(each, Skid)
    )
    assert sorted([*more, *(type(block(name, config)).__name__ for name in BLOCKS)]) == made_of


def test_each_is_refined_as_the_top_is_and_kept_at_once(tmp_path, monkeypatch):
    """Figures of one stand in the file before the next is begun, beside those that were there."""
    asked, path = [], tmp_path / "blocks.json"
    steps = [
        {"delay": 5.0, "from": {"cell": "block.a"}, "to": {"cell": "block.b"}, "type": "logic"}
    ]

    def place_and_route(component, *, name, speed, goal_mhz, seed, flow):
        asked.append(
            (type(component).__name__, name, speed, goal_mhz, seed, flow.refined, path.is_file())
        )
        report = {
            "critical_paths": [
                {"from": "clk", "to": "clk", "path": steps},
                {"from": "clk", "to": "async", "path": steps * 2},
            ],
            "utilization": {
                cell: {"available": 10}
                for cell in ("TRELLIS_COMB", "TRELLIS_FF", "DP16KD", "MULT18X18D")
            },
        }
        (tmp_path / "report.json").write_text(json.dumps(report))
        return PnrResult(name, speed, seed, goal_mhz, 200.0, 1, 2, 3, 4, 5.0, tmp_path)

    monkeypatch.setattr(kelp_fpga.flow.pnr, "place_and_route", place_and_route)
    found = dict(blocks("unit", ["phase", "windows"], 7, path))
    assert asked == [
        ("PhaseDetector", "phase-unit", 6, 80.0, 7, True, False),
        ("QueueConfig", "windows-unit", 6, 80.0, 7, True, True),
    ]
    assert json.loads(path.read_text()) == found and found["windows"]["critical_path"]["ns"] == 5.0


@pytest.mark.parametrize("said", ["", "[]", "figures"])
def test_another_file_is_refused_before_anything_is_placed(tmp_path, monkeypatch, said):
    monkeypatch.setattr(kelp_fpga.flow.pnr, "place_and_route", None)
    (path := tmp_path / "blocks.json").write_text(said, encoding="utf-8")
    with pytest.raises(UserError, match="blocks.json is no record of kelp fpga blocks; remove it"):
        next(blocks("unit", ["phase"], 1, path))


@pytest.mark.slow  # synthesises and places two blocks
def test_blocks_are_placed_alone_and_added_to_what_was_done(tmp_path):
    """The smallest block, with the tools; what an earlier run found stays."""
    path = tmp_path / "board" / "blocks.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"tracker": {"fmax_mhz": 1.0}}), encoding="utf-8")
    [(name, figures)] = blocks("unit", ["phase"], 1, path)
    assert (
        name == "phase"
        and figures["fmax_mhz"] > 60
        and 20 < figures["luts"] < 600
        and figures["luts_total"] > 80_000
    )
    assert (
        figures["bitstream"] is None
        and {"target_mhz", "ffs", "ebr", "ebr_total", "dsp", "seed"} <= figures.keys()
    )
    path_alone = figures["critical_path"]
    assert (
        0 < path_alone["ns"] < 17
        and path_alone["from"].startswith("block.")
        and path_alone["to"].startswith("block.")
    ), "not the shell's"
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "tracker": {"fmax_mhz": 1.0},
        "phase": figures,
    }
    with pytest.raises(UserError, match="--only nothing is unknown; known: data_path, tracker"):
        list(blocks("unit", ["nothing"], 1, path))
