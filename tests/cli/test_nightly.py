# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp nightly` goes on after a part that fails, keeps what was recorded of parts that it does not
run, and ends with exit 1; its table has every part."""

import json

from command import kelp

from kelp_cli.nightly import PARTS, runs_markdown

MAKEFILE = """
slow:
\t@echo a; echo "==== 1 failed, 2 passed in 3.0s ===="; exit 1
prove:
\t@echo "==== 7 passed in 0.1s ===="
bench:
\t@echo "3 rows measured"
"""


def test_goes_on_after_a_failure_and_records_each_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    listed = tmp_path / "build" / "nightly.json"
    there = {"KELP_BUILD": str(tmp_path / "build")}
    done = kelp("nightly", "bench", **there)
    assert done.returncode == 0, done.stderr
    done = kelp("nightly", "slow-verif", "prove", "mutate", **there)
    assert done.returncode == 1, done.stdout + done.stderr
    runs = {run["part"]: run for run in json.loads(listed.read_text())}
    assert {part: run["result"] for part, run in runs.items()} == {
        "slow-verif": "failed",
        "prove": "passed",
        "bench": "passed",
        "mutate": "not there",
    }
    assert runs["slow-verif"]["said"] == "1 failed, 2 passed in 3.0s"
    assert runs["bench"]["said"] == "3 rows measured"
    assert (tmp_path / "build" / "nightly" / "slow-verif.log").read_text().startswith("a\n")
    table = runs_markdown(runs.values())
    assert (
        '| `make slow KELP_SEED="fresh" ARGS="tests/verif --ignore=tests/verif/coherence"` |'
        in table
    )
    assert table.count("| `make ") == len(PARTS)
    assert table.count("never") == len(PARTS) - len(runs)


def test_a_part_is_not_given_what_chose_it(tmp_path, monkeypatch):
    """`make nightly ARGS="prove"`: below it every make has these ARGS, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text("prove slow:\n\t@echo '[$(ARGS)]'\n")
    given = {"MAKEFLAGS": "-- ARGS=prove", "KELP_BUILD": str(tmp_path / "build")}
    assert kelp("nightly", "prove", "slow-boards", **given).returncode == 0
    said = [run["said"] for run in json.loads((tmp_path / "build" / "nightly.json").read_text())]
    assert said == ["[tests/fpga]", "[]"]


def test_complains_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "in a checkout" in kelp("nightly").stderr
    done = kelp("nightly", "sleep")
    assert done.returncode == 1 and "'sleep' is no part; legal: test, slow-blocks" in done.stderr
