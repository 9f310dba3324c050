# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What `make coverage` makes of what runs leave: merged points, waivers, cover points."""

import json
import re
import tomllib

import pytest
from paths import ROOT

from kelp_verif.coverage import report

VERILOG = """module top(clk);
  reg state = 1'h0;
    if (\\$auto$verilog_backend.cc:1:dump_module$1 ) begin end
    if (go) begin
  assign \\$3  = pick ? a : b;
      if (!\\$7 )
        $write("never");
"""


def point(page, line, o, count, module="top"):
    fields = dict(f="top.v", l=line, n=1, t="x", page=f"{page}/{module}", o=o, h="top")
    text = "".join(f"\x01{name}\x02{value}" for name, value in fields.items())
    return f"C '{text}' {count}\n"


@pytest.fixture
def folder(tmp_path):
    """Two runs of one block: the second takes the branch that the first does not."""
    (tmp_path / "top.v").write_text(VERILOG)
    both = [
        point("v_line", 2, "block", 0),
        point("v_branch", 3, "else", 0),
        point("v_branch", 5, "cond_else", 0),
        point("v_branch", 5, "cond_else", 0, module="top.stream_rule"),
        point("v_branch", 6, "if", 0),
        point("v_toggle", 2, "state:0->1", 4),
        point("v_toggle", 2, "state:1->0", 0),
        point("v_toggle", 2, "__0243:0->1", 0),
    ]
    for n, taken in enumerate((0, 5)):
        data = "".join([*both, point("v_branch", 4, "if", taken)])
        (tmp_path / f"run{n}.dat").write_text("# SystemC::Coverage-3\n" + data)
        said = {
            "component": "Block",
            "bench": "kelp_verif.host.egress_bench",
            "verilog": str(tmp_path / "top.v"),
            "records": {"seen": {"nxm": n, "poison": 3 - n}, "rates": [1.0]},
        }
        (tmp_path / f"run{n}.json").write_text(json.dumps(said))
    return tmp_path


def test_runs_are_merged_and_what_others_add_is_left_out(folder):
    [row] = report.block_rows(folder)
    assert (row["block"], row["met"]) == ("Block", False)
    assert (row["line"]["points"], row["line"]["reached"]) == (2, 1)
    assert row["line"]["missed"] == ["top: assign \\$3  = pick ? a : b; (cond_else)"]
    assert (row["toggle"]["points"], row["toggle"]["reached"]) == (2, 1)
    assert row["toggle"]["missed"] == ["top: state:1->0"]


def test_a_block_is_judged_in_one_configuration(folder):
    (folder / "other.v").write_text(VERILOG.replace("\\$3  =", "\\$4  ="))
    points = [("v_branch", 5, "cond_else", 0), ("v_branch", 5, "cond_then", 0)]
    points.append(("v_toggle", 2, "state:1->0", 1))
    (folder / "other.dat").write_text("".join(point(*each) for each in points))
    said = json.loads((folder / "run0.json").read_text()) | {"verilog": str(folder / "other.v")}
    (folder / "other.json").write_text(json.dumps(said))
    [row] = report.block_rows(folder)
    assert (row["line"]["points"], row["line"]["reached"]) == (2, 1)
    assert row["toggle"]["share"] == 1.0  # a signal is the same one in both


def test_a_waiver_takes_a_point_off_what_is_asked(folder, monkeypatch):
    waivers = [
        {"block": "Block", "kind": "line", "match": "= pick", "why": "b is a"},
        {"block": "Other", "kind": "toggle", "match": "state", "why": "another block's"},
    ]
    monkeypatch.setattr(report, "_waivers", lambda: waivers)
    [row] = report.block_rows(folder)
    assert row["line"] == {"points": 2, "reached": 1, "waived": 1, "share": 1.0, "missed": []}
    assert row["toggle"]["missed"] and not row["met"]


def test_a_cover_point_counts_the_most_of_any_run(folder):
    rows = {(row["bench"], row["point"]): row for row in report.point_rows(folder)}
    nxm = rows["host.egress_bench", "an answer of NXM"]
    poison = rows["host.egress_bench", "an answer with poison"]
    assert (nxm["met"], poison["met"], nxm["reached"]) == (1, 3, True)
    both = rows["host.egress_bench", "both channels answer in one cycle"]
    assert (both["met"], both["reached"]) == (0, False)
    assert {row["met"] for (bench, _), row in rows.items() if bench != "host.egress_bench"} == {
        None
    }


def test_every_cover_point_has_a_bench_and_a_counter_of_its_own():
    folder = ROOT / "verif" / "kelp_verif"
    listed = tomllib.loads((folder / "coverage" / "points.toml").read_text(encoding="utf-8"))
    seen = set()
    for clause in listed["clause"]:
        assert re.match(r"§\d|(select|coherence|cxl)\.md ", clause["title"])
        bench = f"{clause['bench'].replace('.', '/')}.py"
        assert (folder / bench).is_file() or (ROOT / bench).is_file(), clause["bench"]
        for at in clause["points"]:
            assert (clause["bench"], at["counter"]) not in seen
            seen.add((clause["bench"], at["counter"]))
    waivers = tomllib.loads((folder / "coverage" / "waivers.toml").read_text(encoding="utf-8"))
    assert all(set(waiver) == {"block", "kind", "match", "why"} for waiver in waivers["waiver"])
