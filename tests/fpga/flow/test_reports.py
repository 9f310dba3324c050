# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What is reported of a routed board, of its parts and of its seeds; and that no part of it has
gone in synthesis."""

import json
import os
from collections import Counter

import pytest
from amaranth.hdl import Elaboratable, Module, Signal
from stub_board import Stub

from kelp_cli.fpga import reports as fpga_reports
from kelp_fpga.boards.block_boards import BLOCK_BOARDS, BlockTop
from kelp_fpga.configs import board_config
from kelp_fpga.flow import parts
from kelp_fpga.flow.build import BuildError, size
from kelp_fpga.flow.reports import report, summary
from kelp_spec.config import named

BOARD = "versa_ecp5_5g"


def net(cell, ns):
    return {"endpoints": [{"cell": cell, "delay": [ns / 2, ns]}]}


def a_report(directory, **timing):
    given = {
        "fmax": {"clk": {"achieved": 80.004, "constraint": 40}},
        "utilization": {},
        "detailed_net_timings": [],
        "critical_paths": [],
    } | timing
    (directory / "timing.json").write_text(json.dumps(given), encoding="utf-8")
    cells = {
        "board": Counter(),
        "bridge": Counter(TRELLIS_FF=3, LUT4=4, CCU2C=1),
        "cold_store": Counter(),
        "endpoint": Counter(),
        "endpoint.cold": Counter(DP16KD=2, MULT18X18D=1, TRELLIS_DPR16X4=1),
        "endpoint.ema": Counter(),
    }
    return report(
        "ulx3s_85f",
        directory,
        config=named("ulx3s"),
        seed=3,
        target_mhz=80.0,
        most_luts=0.75,
        cells=cells,
        netlist="abc",
    )


def test_report_tells_the_slowest_path_of_each_part_and_what_it_took(tmp_path):
    nets = [
        net("board.endpoint.ema.b0_TRELLIS_FF_Q", 4.0),
        net("board.endpoint.ema.front.b1", 9.5),
        net("board.bridge.sender.left", 12.5),
        net("board.endpoint.still_TRELLIS_FF_Q", 2.0),
        net("led_0.buf", 1.0),
        net("board.o__w__payload.data_TRELLIS_FF_Q_7", 3.0),
        net("board.cold_store.order", 5.0),
        net("board.endpoint.cold.order", 6.0),
        net("board.endpoint.m2s.valid_TRELLIS_FF_Q", 1.5),
        {"endpoints": []},
    ]
    path = {
        "from": "posedge clk",
        "to": "posedge clk",
        "path": [{"delay": 12.5, "from": {"cell": "a"}, "to": {"cell": "b"}}],
    }
    figures = a_report(tmp_path, detailed_net_timings=nets, critical_paths=[path])
    assert (figures["fmax_mhz"], figures["clock_mhz"], figures["seed"], figures["netlist"]) == (
        80.0,
        40,
        3,
        "abc",
    )
    assert (figures["config"], figures["digest"]) == ("ulx3s", named("ulx3s").digest)
    assert figures["critical_path"] == {"ns": 12.5, "from": "a", "to": "b"}
    assert [(block, found["ns"]) for block, found in figures["blocks"].items()] == [
        ("bridge", 12.5),
        ("endpoint.ema", 9.5),
        ("endpoint.cold", 6.0),
        ("cold_store", 5.0),
        ("board", 3.0),
        ("endpoint", 2.0),
        ("(top)", 1.0),
    ]
    assert figures["blocks"]["bridge"] == {
        "ns": 12.5,
        "fmax_mhz": 80.0,
        "to": "board.bridge.sender.left",
        "luts": 6,
        "ffs": 3,
        "ebr": 0,
        "dsp": 0,
    }
    assert [figures["blocks"]["endpoint.cold"][what] for what in ("luts", "ffs", "ebr", "dsp")] == [
        4,
        0,
        2,
        1,
    ]
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == figures


def test_the_slowest_clock_counts(tmp_path):
    def path(clock, end):
        return {
            "from": f"posedge {clock}",
            "to": f"posedge {clock}",
            "path": [{"delay": 9.0, "from": {"cell": "a"}, "to": {"cell": end}}],
        }

    clocks = {
        "fast": {"achieved": 125.0, "constraint": 80},
        "slow": {"achieved": 71.0, "constraint": 60},
        "other": {"achieved": 90.0, "constraint": 80},
    }
    figures = a_report(
        tmp_path,
        fmax=clocks,
        critical_paths=[
            path("fast", "of fast"),
            path("slow", "of slow"),
            path("other", "of other"),
        ],
    )
    assert (figures["fmax_mhz"], figures["clock_mhz"], figures["critical_path"]["to"]) == (
        71.0,
        60,
        "of slow",
    )


def seeds(directory, *given):
    for n, (seed, fmax, netlist, clock) in enumerate(given):
        path = directory / f"seed{seed}" / "report.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps({"seed": seed, "fmax_mhz": fmax, "netlist": netlist, "clock_mhz": clock}),
            encoding="utf-8",
        )
        os.utime(path, ns=(n * 10**9, n * 10**9))


def test_the_slowest_seed_counts(tmp_path):
    assert summary(tmp_path) is None
    seeds(tmp_path, (1, 90.0, "new", 80), (2, 81.5, "new", 80), (3, 88.0, "new", 80))
    found = summary(tmp_path)
    assert (found["seed"], found["fmax_mhz"], found["seeds"], found["stale"]) == (
        2,
        81.5,
        {"1": 90.0, "2": 81.5, "3": 88.0},
        [],
    )
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == found


@pytest.mark.parametrize("said", ["", "[]", '{"seed": 7}'])
def test_a_report_of_another_version_of_kelp_is_left_out_and_named(tmp_path, said):
    (other := tmp_path / "seed7" / "report.json").parent.mkdir()
    other.write_text(said, encoding="utf-8")
    assert summary(tmp_path) is None
    seeds(tmp_path, (1, 90.0, "new", 80))
    os.utime(other)  # it is the newest
    found = summary(tmp_path)
    assert (found["seed"], found["seeds"], found["stale"]) == (1, {"1": 90.0}, ["7"])
    with fpga_reports.console.capture() as shown:
        fpga_reports.show_seeds("ulx3s_85f", tmp_path)
    assert "of another version of kelp than the newest: seed 7" in shown.get()


def test_a_seed_of_other_rtl_or_for_another_clock_does_not_count_and_is_named(tmp_path):
    seeds(
        tmp_path,
        (1, 57.0, "old", 80),
        (4, 62.0, "new", 60),
        (3, 88.0, "new", 80),
        (2, 90.0, "new", 80),
    )
    (early := tmp_path / "seed5" / "report.json").parent.mkdir()
    # from before there were digests
    early.write_text(json.dumps({"seed": 5, "fmax_mhz": 40.0, "clock_mhz": 80}), encoding="utf-8")
    os.utime(early, ns=(0, 0))
    found = summary(tmp_path)
    assert (found["seed"], found["seeds"], found["stale"]) == (3, {"2": 90.0, "3": 88.0}, [1, 4, 5])
    with fpga_reports.console.capture() as shown:
        fpga_reports.show_seeds("ulx3s_85f", tmp_path)
    assert (
        "fmax_mhz over 2 seeds: 88.0" in shown.get()
        and "than the newest: seed 1, 4, 5" in shown.get()
        and "57.0" not in shown.get()
    )


class Counting(Elaboratable):
    """`o` counts `i`, in a module of its own below."""

    def __init__(self, inside=None):
        self.i, self.o, self.inside = Signal(4), Signal(4), inside

    def elaborate(self, platform):
        m = Module()
        if self.inside is None:
            m.d.sync += self.o.eq(self.o + self.i)
        else:
            m.submodules.inside = self.inside
            m.d.comb += [self.inside.i.eq(self.i), self.o.eq(self.inside.o)]
        return m


class Inverting(Counting):
    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(~self.i)
        return m


class Parted(Stub):
    """A board of a part that is used, one that is not when `unused` names it, and one that is
    combinational; the same in its endpoint."""

    def __init__(self, unused=()):
        super().__init__()
        self.unused = unused

    def elaborate(self, platform):
        m = super().elaborate(platform)
        ends = []
        m.submodules.endpoint = endpoint = Module()
        for name, of in (
            ("bridge", m),
            ("endpoint.tracker", endpoint),
            ("endpoint.bridge", endpoint),
        ):
            of.submodules[name.split(".")[-1]] = part = Counting(Counting(Counting()))
            m.d.comb += part.i.eq(self.rx)
            if name not in self.unused:
                ends.append(part.o)
        m.submodules.inverts = inverting = Inverting()
        m.d.comb += inverting.i.eq(self.sdram.dq_i)
        m.d.sync += self.leds.eq(sum(ends, inverting.o))
        return m


def test_parts_and_their_state_are_read_from_the_design():
    kind = BLOCK_BOARDS[BOARD]
    plan = kind.platform().build(BlockTop(kind, Parted()), do_build=False)
    assert parts.parts(str(plan.files["top.il"])) == {
        "board": True,
        "bridge": True,
        "inverts": False,
        "endpoint": False,
        "endpoint.tracker": True,
        "endpoint.bridge": True,
    }


def test_a_part_that_synthesis_optimised_away_ends_the_build(tmp_path):
    """With Yosys: a part that nothing reads. One of the same name elsewhere does not stand in for
    it, and what is combinational may go."""
    kind = BLOCK_BOARDS[BOARD]
    with pytest.raises(
        BuildError,
        match=r"optimised away endpoint\.bridge: no register.* of it is left in .*top\.json",
    ):
        size(
            BOARD,
            board_config("unit"),
            directory=tmp_path,
            hz=80_000_000,
            top=lambda *_: (kind.platform(), BlockTop(kind, Parted({"endpoint.bridge"}))),
        )
