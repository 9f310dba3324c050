# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The demo on a small made-up recording: both ways of replaying, its figures and its report. The
recording that is shipped is replayed by `make demo` alone, which takes minutes."""

import json
import re

import pytest
from command import kelp
from trace_files import contents, save

from kelp_cli.demo import LOCKSTEP_NEEDS

KEYS = """trace config config_hash policy seed residency accesses lockstep_accesses line_requests
mismatches token_time token_time_modelled waiting_layers waiting_tokens hit_rate lru_hit_rate
lru_pooled_hit_rate belady_hit_rate demand_misses flash_reads_per_access cycles lines_per_cycle
lines_per_second""".split()


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("config", "first_step", "residency", "accesses", "lockstep", "sizes"),
    # The first has too few frames for a run with everything resident, and so misses most of the
    # time, which is 7 000 cycles an access. It writes most of its pages itself: what is written
    # back takes the fewest reads that miss.
    [
        ("unit_select", 24, "0.25", 60, 720, dict(layers=2, prefill_tokens=8, steps=56, tokens=64)),
        pytest.param(
            *("trace", 4, "0.25", 400, 800),
            dict(layers=3, prefill_tokens=48, steps=48, tokens=96),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["unit_select", "trace"],
)
def test_demo_agrees_and_reports(
    config, first_step, residency, accesses, lockstep, sizes, tmp_path
):
    trace = save(tmp_path / "small.npz", contents(with_kv=False, **sizes))
    part = ["--accesses", str(accesses), "--lockstep-accesses", str(lockstep)]
    part += ["--first-step", str(first_step), "--residency", residency]
    part += ["--tier-latency", "25000" if config == "trace" else "1000"]
    done = kelp("demo", str(trace), "-o", str(tmp_path), "--config", config, *part, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert set(KEYS) <= set(found)
    assert (found["mismatches"], found["mismatch_examples"]) == (0, [])
    assert found["accesses"] >= accesses and found["lockstep_accesses"] >= lockstep
    assert all(found["lockstep"][name] >= least for name, least in LOCKSTEP_NEEDS.items())
    assert found["tier_latency"] == (25_000 if config == "trace" else 1000)
    assert len(set(found["formats"].values())) >= 2
    assert found["hit_rate"] == pytest.approx(1 - found["demand_misses"] / found["accesses"])
    assert found["token_time_measured"] == (config == "trace") and 1 < found["token_time"] < 1000
    ladder = found["ladder"]["belady"]["demand_misses"], found["ladder"]["lru"]["demand_misses"]
    assert ladder[0] < ladder[1]
    said = done.stdout
    assert said.index("token time") < said.index("layers that wait") < said.index("Hit rate on")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "waiting.png",
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
