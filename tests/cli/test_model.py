# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp model`: its tables, its files, inputs of one's own, and bad input."""

import json

import pytest
from trace_files import contents, save
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_sim.model.inputs import DEFAULTS


def model(*arguments):
    return CliRunner().invoke(build_app(), ["model", *map(str, arguments)])


def test_everything_at_once(tmp_path):
    found = model("--json", tmp_path / "m.json", "--png", tmp_path / "m.png")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert (report["schema"], report["schema_version"], report["inputs"]) == (
        "kelp.model",
        1,
        "shipped",
    )
    assert {
        "kv_size",
        "wall",
        "inflection",
        "latency",
        "bandwidth",
        "formats",
        "policy",
        "peers",
        "pipeline",
        "hit_rate",
        "percentiles",
        "prefetch",
        "retention",
        "power",
        "tco",
        "break_even",
        "choice",
        "indexers",
    } == set(report["tables"])
    assert sum(report["verdicts"].values()) == len(report["findings"]) > 80
    named = ("hit_rate", "link_busy", "flash_busy", "idle_share", "residency")
    shares = [
        row[key]
        for rows in report["tables"].values()
        for row in rows
        for key in named
        if key in row
    ]
    assert shares and all(0 <= share <= 1 for share in shares)
    assert "Published figures" in found.output and "refuted" in found.output


def test_inputs_of_ones_own(tmp_path):
    file = tmp_path / "my.toml"
    assert model("--write-inputs", file).exit_code == 0 and file.read_text() == DEFAULTS.read_text()
    file.write_text(file.read_text().replace("gb_per_s = 64\n", "gb_per_s = 128\n"))
    rows = [
        json.loads(model("pipeline", "--json", "-", *more).stdout)["tables"]["pipeline"]
        for more in ([], ["--inputs", file])
    ]
    assert [r[0]["transfer_ms"] for r in rows] == pytest.approx([1750 / 64, 1750 / 128])


def test_recordings_are_measured(tmp_path):
    trace = save(tmp_path / "t.npz", contents(with_kv=False))
    found = json.loads(model("verdicts", "--recordings", trace, "--json", "-").stdout)["findings"]
    shipped = json.loads(model("verdicts", "--json", "-").stdout)["findings"]
    captured = [
        next(f["computed"] for f in findings if f["what"] == "mass captured by a window")
        for findings in (found, shipped)
    ]
    assert captured[0] != captured[1] and 0 < captured[0] <= 100


@pytest.mark.parametrize(
    "arguments,fault",
    [
        (["kvs"], "topic 'kvs' is unknown; legal: kv, wall"),
        (["--inputs", "nowhere.toml"], "nowhere.toml: No such file"),
        (["--bench", "nowhere.json"], "nowhere.json: No such file"),
        (["--recordings", "nowhere.npz"], "no such trace"),
        (["--write-inputs", DEFAULTS], "the file exists; name another"),
    ],
)
def test_bad_input_is_one_line(arguments, fault):
    found = model(*arguments)
    assert (
        isinstance(found.exception, UserError)
        and fault in str(found.exception)
        and "\n" not in str(found.exception)
    )
