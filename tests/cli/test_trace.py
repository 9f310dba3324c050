# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp trace record``: which layers' queries, keys and values are asked for. The recorder itself
is held to a model's attention in tests/engines."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_cli.trace import _layer_list
from kelp_sim.lab import models, recorder


def test_layers_are_listed_and_in_ranges():
    assert _layer_list("5,0,10-12,11") == [0, 5, 10, 11, 12]


@pytest.mark.parametrize("text", ["", "a", "1,", "-2", "3-1", "1-", "0-2-4", "1.5", "0-65536"])
def test_what_is_no_list_of_layers_is_one_line(text):
    with pytest.raises(UserError) as found:
        _layer_list(text)
    assert str(found.value) == f"--qkv {text!r} is refused; legal: layers below 65536 as 0,5,10-12"


@pytest.mark.parametrize(
    ("option", "value"),
    [("top-p", "nan"), ("top-p", "0"), ("max-pages", "0"), ("mass-floor", "nan")],
)
def test_a_rule_that_reads_nothing_sensible_is_one_line(tmp_path, option, value):
    """Before the model is read."""
    asked = ["trace", "record", "m.gguf", "--text", "t", "-o", tmp_path / "o.npz"]
    found = CliRunner().invoke(build_app(), [*map(str, asked), f"--{option}", value])
    assert isinstance(found.exception, UserError)
    assert f"{option.replace('-', '_')} = {value}" in str(found.exception)


@pytest.mark.parametrize("option", ["--tokens", "--prefill", "--page-tokens"])
def test_a_recording_of_no_tokens_is_a_usage_error(option):
    asked = ["trace", "record", "m.gguf", "--text", "t", "-o", "o.npz", option, "0"]
    found = CliRunner().invoke(build_app(), asked)
    assert found.exit_code == 2 and option in found.output


def test_all_lines_and_some_exclude_each_other():
    asked = ["trace", "record", "m.gguf", "--text", "t", "-o", "o.npz", "--lines", "--qkv", "1"]
    found = CliRunner().invoke(build_app(), asked)
    assert isinstance(found.exception, UserError) and "leave out --qkv" in str(found.exception)


@pytest.mark.parametrize("option", [[], ["--qkv", "0"]])
def test_queries_of_an_earlier_recording_are_named(monkeypatch, tmp_path, option):
    """They lie beside the new one under its name."""
    output, text = tmp_path / "o.npz", tmp_path / "t"
    text.write_text("words", encoding="utf-8")
    (tmp_path / "o.qkv.npz").write_bytes(b"")
    model = SimpleNamespace(device=SimpleNamespace(type="cpu"))

    def tokenizer(text, verbose):
        return {"input_ids": [*range(1024)]}

    monkeypatch.setattr(models, "load", lambda path: (model, tokenizer))
    monkeypatch.setattr(recorder, "record", lambda *arguments, **named: None)
    asked = ["trace", "record", "m.gguf", "--text", str(text), "-o", str(output), *option]
    found = CliRunner().invoke(build_app(), asked)
    assert found.exit_code == 0, found.output
    left = "o.qkv.npz is of an earlier recording, and was left" in found.output
    assert left is not bool(option)
