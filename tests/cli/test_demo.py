# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The demo, as long as its lock-step part needs to meet what it must (`make demo` goes on for
longer): equal in everything, and the report."""

import json
import re

import pytest
from command import kelp

from kelp_cli.demo import LOCKSTEP_NEEDS

KEYS = """trace config config_hash policy seed residency accesses lockstep_accesses line_requests
mismatches hit_rate lru_hit_rate lru_pooled_hit_rate belady_hit_rate demand_misses
flash_reads_per_access cycles lines_per_cycle lines_per_second""".split()
#: The least in which this recording prefetches often enough for LOCKSTEP_NEEDS.
ACCESSES = 1300


@pytest.mark.timeout(1500)
def test_demo_agrees_and_reports(repo_root, tmp_path):
    trace = repo_root / "data" / "traces" / "attn_0.npz"
    lengths = "--accesses", str(ACCESSES), "--lockstep-accesses", str(ACCESSES)
    done = kelp("demo", str(trace), "-o", str(tmp_path), *lengths, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert set(KEYS) <= set(found)
    assert (found["mismatches"], found["mismatch_examples"]) == (0, [])
    assert found["accesses"] >= ACCESSES and found["lockstep_accesses"] >= ACCESSES
    assert all(found["lockstep"][name] >= least for name, least in LOCKSTEP_NEEDS.items())
    assert len(set(found["formats"].values())) >= 2
    assert found["hit_rate"] == pytest.approx(1 - found["demand_misses"] / found["accesses"])
    # With Belady's frames and a few fewer, nobody does better than Belady.
    assert 0.5 < found["hit_rate"] <= found["belady_hit_rate"]
    assert (
        sum(found["hit_latency_log2_cycles"]) + sum(found["miss_latency_log2_cycles"])
        >= found["line_requests"]
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "hit_rate.png",
        "flash.png",
        "latency.png",
        "residency.png",
    }


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [(["none.npz"], "none.npz: no such trace"), (["-o", "/dev/null/x"], "/dev/null")],
)
def test_demo_complains_in_one_line(arguments, fault, monkeypatch, repo_root):
    monkeypatch.chdir(repo_root)
    done = kelp("demo", *arguments)
    assert done.returncode != 0
    assert fault in done.stderr and "Traceback" not in done.stderr
