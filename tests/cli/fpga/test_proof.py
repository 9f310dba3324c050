# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What `kelp fpga proof` makes of a self-test and a replay, whose places are taken here;
`tests/verif/fpga` and `tests/fpga/boards` run both."""

import contextlib
import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import typer
from paths import RECORDING
from typer.testing import CliRunner

from kelp_cli import fpga
from kelp_cli.fpga import simulation
from kelp_fpga.configs import board_config

LEAST = {"lines": 1024, "misses": 16, "write_backs": 8, "fetched_pages": 16, "stored_pages": 8}


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a proof goes: what the board breaks, and what passes."""

    violations: tuple[str, ...] = ()
    framing_errors: int = 0
    tested: bool = True
    replayed: bool = True


def proof(monkeypatch, path, *arguments, course=Course(), named=True, **counted):
    """Exit code and sim.json."""
    counted = LEAST | counted
    board = SimpleNamespace(
        port="none",
        violations=list(course.violations),
        framing_errors=course.framing_errors,
        cycles=9,
        seconds=3.0,
    )
    played = {
        "passed": course.replayed,
        "counters": {name: counted.pop(name) for name in ("misses", "write_backs")},
    } | counted
    monkeypatch.setattr(simulation, "_simulation", lambda _: contextlib.nullcontext(board))
    monkeypatch.setattr(
        simulation,
        "_called",
        lambda command, *_: {"selftest": {"passed": course.tested}, "replay": played}[command],
    )
    fpga.register(app := typer.Typer())
    done = CliRunner().invoke(
        app, ["fpga", "proof", *(["--json", str(path)] if named else []), *arguments]
    )
    return done.exit_code, json.loads(path.read_text(encoding="utf-8"))


def test_the_least_that_counts(monkeypatch, tmp_path):
    code, result = proof(monkeypatch, tmp_path / "sim.json", "--mhz", "50")
    assert code == 0 and result["passed"] and result["enough"]
    assert (result["config"], result["digest"], result["mhz"]) == (
        "ulx3s",
        board_config("ulx3s").digest,
        50.0,
    )


@pytest.mark.parametrize("name", LEAST)
def test_less_is_not_enough_whatever_was_asked_for(monkeypatch, tmp_path, name):
    code, result = proof(
        monkeypatch, tmp_path / "sim.json", "--lines", "64", **{name: LEAST[name] - 1}
    )
    assert code == 1 and not result["passed"] and not result["enough"]


@pytest.mark.parametrize(
    "wrong",
    [{"violations": ("tRC",)}, {"framing_errors": 1}, {"tested": False}, {"replayed": False}],
)
def test_enough_is_not_all(monkeypatch, tmp_path, wrong):
    code, result = proof(monkeypatch, tmp_path / "sim.json", course=Course(**wrong))
    assert code == 1 and not result["passed"] and result["enough"]


def test_the_commit_is_told_in_a_checkout_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(
        simulation, "__file__", str(tmp_path / "sw" / "kelp_cli" / "fpga" / "simulation.py")
    )
    assert proof(monkeypatch, tmp_path / "sim.json")[1]["commit"] is None


def test_the_result_goes_where_everything_that_is_built_goes(monkeypatch, tmp_path):
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fpga" / "sim.json"
    assert proof(monkeypatch, path, str(RECORDING), named=False)[0] == 0
    assert simulation._result("netlist") == tmp_path / "fpga" / "netlist.json"


def test_what_goes_to_stdout_leaves_nothing_where_one_is(monkeypatch, tmp_path):
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    passed, places = {"passed": True}, []

    def proved(_, __, ___, directory):
        places.append(directory)
        return passed | {"selftest": passed, "replay": passed}

    monkeypatch.setattr(simulation, "_prove", proved)
    fpga.register(app := typer.Typer())
    done = CliRunner().invoke(app, ["fpga", "proof", str(RECORDING), "--json", "-"])
    assert done.exit_code == 0 and places == [tmp_path / "fpga"]
