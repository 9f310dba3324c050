# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select`` as a user calls it."""

import io
import json

import pytest
from command import kelp, refused
from paths import ROOT
from rich.console import Console

from kelp_cli.output import UserError
from kelp_cli.select import rtl as select_rtl
from kelp_cli.select import worth as select_worth
from kelp_rtl.device import DriverError
from kelp_spec.config import named

MODEL = str(ROOT / "data" / "model")


def test_a_short_study():
    done = kelp(
        *("select", "--model", MODEL, "--texts", "1", "--tokens", "200", "--first", "180"),
        *("--quotas", "3", "--most", "4", "--json", "-"),
    )
    found = json.loads(done.stdout)
    assert [row["quota"] for row in found["rows"]] == [0, 3]
    assert 0.5 < found["quotas"]["3"]["mass"] <= 1.01


def test_curves_over_bytes_and_page_size(tmp_path):
    done = kelp(
        *("select", "--model", MODEL, "--texts", "1", "--tokens", "200", "--first", "180"),
        *("--quotas", "3", "--most", "4", "--page-tokens", "16,8", "--code-bits", "32,8"),
        *("--json", str(tmp_path / "curve.json"), "--page", str(tmp_path / "page")),
    )
    assert not done.returncode, done.stderr
    found = json.loads((tmp_path / "curve.json").read_text())
    told = [(e["page_tokens"], e["code_bits"], e["quota"], e["bytes"]) for e in found["curve"]]
    assert told == [(16, 32, 3, 2.0), (16, 8, 3, 0.5), (8, 32, 6, 1.0), (8, 8, 6, 0.25)]
    assert found["quotas"] == {"3": found["curve"][0]} and len(found["rows"]) == 6
    assert {path.name for path in (tmp_path / "page").iterdir()} == {
        *("mass.png", "recall.png", "loss.png", "select.html")
    }
    assert "0.25" in done.stdout


def test_bad_options_are_one_line():
    for options, said in (
        (("--quotas", "3,x"), "--quotas '3,x' is not whole numbers from 1 to 65536"),
        (("--quotas", "99999999999999999999999"), "is not whole numbers from 1 to 65536"),
        (("--page-tokens", "100000000000"), "--page-tokens '100000000000' is not whole numbers"),
        (
            ("--code-bits", "8,33"),
            "--code-bits '8,33' is not whole numbers from 1 to 32, each once",
        ),
        (("--code-bits", "8", str(ROOT / "LICENSE")), "--code-bits goes without TRACE"),
        (("--tokens", "100", "--first", "99"), "--first 99 of 100 tokens leaves none"),
        (("--model", "nowhere"), "nowhere"),
        (("--residency", "0.5"), "--residency goes with TRACE"),
        (("--no-guess",), "--guess goes with TRACE"),
        (("--gap",), "--gap goes with TRACE"),
        (("--gap", "--policy", "kelp", str(ROOT / "LICENSE")), "--policy goes without --gap"),
        (("--gap", "--rtl", str(ROOT / "LICENSE")), "--gap goes without --rtl"),
        (("--policy", "fifo", str(ROOT / "LICENSE")), "legal: lru, table, kelp"),
        (("--fetch-from", "2", str(ROOT / "LICENSE")), "be less than or equal to 1"),
    ):
        done = refused("select", *options)
        assert done.returncode and said in done.stderr and "Traceback" not in done.stderr


def test_what_policies_close_of_the_gap(tmp_path):
    """A table of eighty columns, and rows."""
    text = tmp_path / "text.txt"
    text.write_text((ROOT / "LICENSE").read_text(encoding="utf-8"), encoding="utf-8")
    asks = (
        *("select", str(text), "--model", MODEL, "--tokens", "150", "--first", "112", "--warm"),
        *("4", "--quotas", "3", "--most", "4", "--residency", "0.5", "--gap"),
    )
    done = kelp(*asks, "--json", str(tmp_path / "gap.json"))
    found = json.loads((tmp_path / "gap.json").read_text(encoding="utf-8"))
    told = [(row["policy"], row["told"]) for row in found["summary"]]
    guess, read = "pages read, guessed query", "pages read"
    near = [("table", guess), ("table", read), ("kelp", guess)]
    assert told == [*near, ("lru", read), ("belady", read), ("kelp", read)]
    assert [row["gap"] for row in found["rows"]][3:5] == [0, 1]
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and sum(" 50.0%" in line for line in lines) == len(told)


def test_worth_with_little_memory(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text((ROOT / "LICENSE").read_text(encoding="utf-8"), encoding="utf-8")
    done = kelp(
        *("select", str(text), "--model", MODEL, "--tokens", "150", "--first", "112", "--warm"),
        *("4", "--quotas", "3", "--most", "4", "--residency", "0.5", "--json", "-"),
        *("--lists", str(tmp_path / "lists.npz"), "--page", str(tmp_path / "page")),
    )
    found = json.loads(done.stdout)
    assert [row["reader"] for row in found["rows"]][-1] == "kelp"
    assert (tmp_path / "lists.npz").is_file()
    assert {path.suffix for path in (tmp_path / "page").iterdir()} == {".png", ".html"}
    shown = Console(width=80, file=io.StringIO())
    monkeypatch.setattr(select_worth, "console", shown)
    select_worth._show(found["summary"], "no host compute")
    assert "…" not in shown.file.getvalue()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_rtl_chooses_so_in_as_many_cycles():
    """Of a short part, whose first step makes all summaries."""
    trace = str(ROOT / "data" / "traces" / "attn_3.npz")
    done = kelp(
        *("select", trace, "--model", MODEL, "--tokens", "533", "--warm", "1", "--rtl"),
        *("--json", "-"),
        timeout=1500,  # it may build the model
    )
    found = json.loads(done.stdout)
    [row] = found["rows"]
    assert row["steps"] == 19 and row["selects"] == 20 * 12 and row["as_decoded"] == 1
    assert not row["wrong"] and row["gathered_lines"] > 20 * 12 * 32
    assert abs(row["error"]) <= found["bar"] and row["gather_lines_per_cycle"] >= 0.98


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_text_is_decoded_by_what_the_rtl_chooses():
    """A short part, a quarter of the pages resident, beside the model with a clock."""
    trace = str(ROOT / "data" / "traces" / "attn_3.npz")
    done = kelp(
        *("select", trace, "--model", MODEL, "--tokens", "545", "--warm", "1", "--rtl"),
        *("--residency", "0.25", "--wait-above", "0.2", "--json", "-"),
        timeout=3000,  # it builds the model
    )
    rows = json.loads(done.stdout)["rows"]
    assert [row["compute"] for row in rows] == [0, 100_000]
    for row in rows:
        assert row["steps"] == 31 and not row["wrong"]
        assert row["rtl"]["flash_per_layer"] > 0 and 2 < row["rtl"]["pages"] < 18
        assert abs(row["rtl"]["residency_loss"]) < 0.2
        assert row["rtl"]["layer_cycles"] > row["compute"] + 500


def test_bad_input_for_worth_is_one_line(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a short text", encoding="utf-8")
    real = str(ROOT / "data" / "traces" / "smollm2_argparse.npz")
    small = str(ROOT / "data" / "traces" / "attn_3.npz")
    for options, said in (
        (("nowhere.npz",), "nowhere.npz: no such file"),
        ((str(text),), "text.txt has 3 tokens; legal: two pages, 32 tokens, or more"),
        ((real,), "is of 30 layers"),
        ((small, "--tokens", "4000"), "tokens, and --tokens 4000 is refused; legal: 2048 at most"),
        ((small, "--residency", "0,2"), "--residency '0,2' is not shares"),
        ((small, "--tokens", "600", "--residency", "0.05"), "is 23 frames; legal: 24 or more"),
        ((small, small), "are both named 'attn_3'; give each recording once"),
        ((small, "--policy", "fifo"), "--policy 'fifo' is unknown"),
        ((small, "--page-tokens", "8"), "--page-tokens goes without TRACE"),
        ((small, "--lists", str(tmp_path)), f"{tmp_path} is a directory"),
        ((small, "--page", str(text)), f"{text} is a file; the name of a directory"),
        ((small, "--tokens", "600", "--warm", "900"), "--warm 900 of"),
        ((small, "--rtl", "--policy", "lru"), "--policy goes without --rtl"),
        ((small, "--rtl", "--wait-above", "0.2"), "--wait-above with --rtl goes with --residency"),
        ((small, "--wait-above", "nan"), "--wait-above nan is refused; legal: 0 to 1"),
        ((small, "--wait-above", "1.5"), "--wait-above 1.5 is refused; legal: 0 to 1"),
        ((small, "--rtl", "--residency", "0"), "--residency '0' is not shares"),
        ((small, "--config", "trace_select"), "--config goes with --rtl"),
        ((small, "--rtl", "--quotas", "3"), "--quotas 3 is not the device's; legal: 8"),
        ((small, "--rtl", "--config", "trace"), "--config trace: it chooses no pages"),
    ):
        done = refused("select", *options, "--model", MODEL)
        assert done.returncode and "Traceback" not in done.stderr
        assert said in " ".join(done.stderr.split()), done.stderr


def test_a_simulation_that_stops_is_one_line(monkeypatch):
    def stops(*_, **__):
        raise DriverError("no answer within 4096 cycles", 7)

    monkeypatch.setattr(select_rtl, "decode", lambda *_, **__: [None])
    monkeypatch.setattr(select_rtl, "hold", stops)
    with pytest.raises(UserError, match="a.npz: .*no answer within 4096 cycles"):
        select_rtl.rtl(None, [("a.npz", range(40), 32)], named("trace_select"), 4, 0, None)
