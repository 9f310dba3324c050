# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp quality`: its tables, its files and bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError

FEW = (
    "--formats",
    "int8,int8/int4",
    "--texts",
    3,
    "--tune",
    1,
    "--tokens",
    48,
    "--every",
    512,
    "--budgets",
    0.02,
)


def quality(*arguments):
    return CliRunner().invoke(build_app(), ["quality", *map(str, arguments)])


def test_everything_at_once(tmp_path):
    found = quality(
        *FEW,
        "--store",
        tmp_path / "rows.jsonl",
        "--json",
        tmp_path / "q.json",
        "--png",
        tmp_path / "q.png",
    )
    assert found.exit_code == 0, found.output
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "q.json").read_text(encoding="utf-8"))
    assert (report["schema"], report["schema_version"]) == ("kelp.quality", 1)
    assert (
        [row["label"] for row in report["formats"]] == ["int8", "int8/int4"]
        and len(report["noise"]) == 2 * 12
        and len(report["units"]) == 24
    )
    assert all(
        row["low"] <= row["increase"] <= row["high"] and abs(row["increase"]) < 1
        for row in report["formats"] + report["units"] + report["plans"]
    )
    assert [bar["format"] for bar in report["bars"]] == ["int8"]
    assert "Plans of int8 and int4" in found.output
    lines = len((tmp_path / "rows.jsonl").read_text().splitlines())
    assert quality(*FEW, "--store", tmp_path / "rows.jsonl").exit_code == 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == lines


def test_noise_alone():
    found = quality("--formats", "fp8_e4m3", "--texts", 0, "--every", 512)
    assert found.exit_code == 0 and "fp8_e4m3" in found.output and "Perplexity" not in found.output


def test_a_tokenizer_of_another_model_is_named(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(Path("data/model").resolve() / name)
    table = json.loads(Path("data/model/tokenizer.json").read_text(encoding="utf-8"))
    table["model"]["vocab"]["h"] = 32000
    (tmp_path / "tokenizer.json").write_text(json.dumps(table), encoding="utf-8")
    found = quality("--model", tmp_path, "--formats", "raw16", "--texts", 5)
    assert isinstance(found.exception, UserError) and (
        "the ids of tokenizer.json go to 32000, and model.safetensors has 4096 tokens: they are of "
        + "two models"
    ) in str(found.exception)


@pytest.mark.parametrize(
    "arguments,fault",
    [
        (["--formats", "int5"], "format 'int5' is unknown; legal: raw16"),
        (["nowhere.npz"], "no such trace"),
        (["data/traces/attn_0.npz"] * 2, "are both named 'attn_0'; give each recording once"),
        (["data/traces/attn_2.npz"], "has no keys, values and queries"),
        (["--model", "nowhere"], "nowhere/config.json: No such file"),
        (["--budgets", "much"], "--budgets 'much' is not positive numbers"),
        (["--texts", 2, "--tune", 2], "leaves none to judge by"),
        (["--tokens", 500000], "texts are refused"),
        (["--texts", 5, "--tokens", 2049], "--tokens 2049 is refused; the positions of data/model"),
        (["--model", "m.gguf", "--texts", 0], "leave nothing to measure of m.gguf"),
        (["--model", "other", "--texts", 0], "leave nothing to measure of other"),
    ],
)
def test_bad_input_is_one_line(arguments, fault):
    found = quality("--formats", "raw16", "--every", 512, *arguments)
    assert (
        isinstance(found.exception, UserError)
        and fault in str(found.exception)
        and "\n" not in str(found.exception)
        and "1/1" not in found.output  # nothing was measured
    )
