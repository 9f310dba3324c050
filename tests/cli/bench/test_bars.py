# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What `kelp bench` does where a row misses its bar; that a bar of the specification is measured or
listed as not measured."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from kelp_cli.bench import commands
from kelp_cli.bench.bars import NOT_MEASURED, meet_bars
from kelp_cli.bench.policy import policy_rows
from kelp_verif.measure.rows import Row


@pytest.mark.parametrize(
    "row, met, said",
    [
        (Row("a.rate", 0.97, "lines/cycle", "≥ 0.98"), False, "missed: a.rate = 0.97"),
        (Row("a.rate", 0.98, "lines/cycle", "≥ 0.98"), True, ""),
        (Row("a.latency", 21, "cycles", "≤ 20"), False, "missed: a.latency = 21 cycles"),
        (Row("a.ratio", 3.1, "ratio", "≤ 3"), False, "missed: a.ratio"),
        (Row("a.speed", 3, "lines/s", "≥ 20000"), True, "warning: a.speed = 3 lines/s"),
        (Row("a.wait", 30, "ms", "≤ 20"), True, "warning: a.wait"),
        (Row("a.rate", 3, "lines/cycle"), True, ""),
    ],
)
def test_a_missed_bar_fails_unless_it_is_wall_clock(row, met, said, capsys):
    assert meet_bars([Row("good", 1, "ratio", "≤ 1"), row]) is met
    out = capsys.readouterr().out
    assert said in out if said else not out


def test_numpys_values_go_into_json():
    row = Row("a.rate", np.float64(0.97), "lines/cycle", "≥ 0.98")
    assert json.loads(json.dumps(asdict(row) | {"met": row.met}))["met"] is False


def test_wall_clock_is_told_from_the_unit():
    assert all(Row("", 0, unit).wall_clock for unit in ("lines/s", "ms", "µs", "GB/s", "tokens/s"))
    for unit in ("cycles", "lines/cycle", "fraction", "ratio", "cycles/request", "bytes/byte"):
        assert not Row("", 0, unit).wall_clock


def test_what_is_listed_is_not_measured(monkeypatch, repo_root):
    names = [name for name, _, _ in NOT_MEASURED]
    assert len(set(names)) == len(names)
    monkeypatch.chdir(repo_root)
    recording = (Path("data/traces/attn_0.npz"),)
    rows = list(policy_rows({"policy.real_model": (recording, {0.125: "≥ 0.6", 0.25: "≥ 0.35"})}))
    assert not {row.name for row in rows} & set(names)
    # This recording is above the one bar and below the other.
    assert {row.name: row.met for row in rows} == {
        "policy.real_model.gap_closed.0.125": True,
        "policy.real_model.gap_closed.0.25": False,
    }


@pytest.mark.parametrize(
    "missed, code, said",
    [
        (Row("a.rate", 0.97, "lines/cycle", "≥ 0.98"), 1, "missed: a.rate"),
        (Row("a.ratio", 3.1, "ratio", "≤ 3"), 1, "missed: a.ratio"),
        (Row("a.speed", 3, "lines/s", "≥ 20000"), 0, "warning: a.speed"),
    ],
)
@pytest.mark.parametrize("arguments", [[], ["--only", "codec"]], ids=["all", "one group"])
def test_the_command_says_so(missed, code, said, arguments, monkeypatch, tmp_path):
    """By its exit code, whichever group the row is of; what is not measured is listed in a whole
    run."""
    monkeypatch.setattr(commands, "_rows", lambda group: [missed] if group == "codec" else [])
    app = typer.Typer()
    app.callback()(lambda: None)
    commands.register(app)
    output = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", *arguments, "-o", str(output)])
    assert done.exit_code == code and said in done.output
    assert done.output.count("not measured") == (0 if arguments else len(NOT_MEASURED))
    (row,) = json.loads(output.read_text(encoding="utf-8"))
    assert (row["name"], row["met"]) == (missed.name, False)
