# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp lab`: its rows and files, a user's own policy, parameters as an axis, a sweep that goes on
where it was killed, and bad input."""

import csv
import json
import re
from pathlib import Path

import pytest
from paths import DOCS, RECORDING
from trace_files import contents, save
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_sim.lab import gaps
from kelp_sim.lab import sweep as sweeping
from kelp_sim.lab.cells import _sources, cells, row

FIELDS = {
    "trace",
    "residency",
    "policy",
    "scope",
    "accesses",
    "waiting_layers",
    "waiting_tokens",
    "token_time",
    "hit_rate",
    "demand_misses",
    "flash_reads_per_access",
    "prefetch_issued",
    "prefetch_useful",
    "prefetch_late",
    "queue_hit_rates",
    "metadata_bits_per_page",
}

#: The page's own example of a policy (docs/lab.md), as it stands.
(MRU,) = re.findall(
    r"^```python\n(.*?)^```",
    (DOCS / "lab.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture
def traces(tmp_path):
    return [
        save(tmp_path / f"{name}.npz", contents(seed=seed, with_kv=False))
        for seed, name in enumerate("ab")
    ]


def lab(*arguments):
    return CliRunner().invoke(build_app(), ["lab", *map(str, arguments)])


def test_rows_and_files(traces, tmp_path):
    found = lab(
        *traces,
        "--residency",
        "0.5,0.75",
        "--policy",
        "lru,kelp",
        "--jobs",
        1,
        "--store",
        tmp_path / "rows.jsonl",
        "--json",
        tmp_path / "o.json",
        "--csv",
        tmp_path / "o.csv",
        "--html",
        tmp_path / "o.html",
    )
    assert found.exit_code == 0, found.output
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["schema"] == "kelp.lab" and all(set(r) >= FIELDS for r in report["rows"])
    assert {r["scope"] for r in report["rows"] if r["policy"] == "kelp"} == {"pooled"}
    # traces, residencies; LRU in two scopes, kelp and Belady in one
    assert len(report["rows"]) == 2 * 2 * 4
    lines = list(csv.DictReader((tmp_path / "o.csv").read_text().splitlines()))
    assert [float(line["hit_rate"]) for line in lines] == [r["hit_rate"] for r in report["rows"]]
    page = (tmp_path / "o.html").read_text()
    assert (
        page.count("data:image/png;base64") == 3 and "href=" not in page and page.count("src=") == 3
    )


def test_lab_and_replay_report_the_same_kelp(tmp_path):
    part = [
        RECORDING,
        "--residency",
        "0.25",
        "--policy",
        "kelp",
        "--accesses",
        3000,
        "--first-step",
        1024,
    ]
    found = lab(*part, "--jobs", 1, "--fresh", "--json", tmp_path / "lab.json")
    assert found.exit_code == 0, found.output
    replayed = CliRunner().invoke(
        build_app(),
        ["replay", *map(str, part), "--engine", "golden", "--json", str(tmp_path / "replay.json")],
    )
    assert replayed.exit_code == 0, replayed.output
    own = next(
        r for r in json.loads((tmp_path / "lab.json").read_text())["rows"] if r["policy"] == "kelp"
    )
    device = json.loads((tmp_path / "replay.json").read_text())
    for name in ("hit_rate", "demand_misses", "flash_reads", "waiting_layers", "waiting_tokens"):
        assert own[name] == device[name]
    # stored pages are smaller than the lab's, and so soon there
    assert 1 < device["token_time"] < own["token_time"] and not device["token_time_measured"]
    assert own["demand_misses"] > 200 and "prefetch" not in device["policy"]


@pytest.mark.parametrize(
    "choice,said",
    [
        (["--policy", "arc"], "legal: ema or 0, kelp or 1"),
        (["--policy", "1", "--source", "pushed"], "kelp takes no pushed scores"),
        (["--policy", "kelp", "--prefetch", "policy"], "window, layer_ahead, previous, or none"),
    ],
)
def test_replay_refuses_a_choice_that_its_policy_has_not(choice, said):
    done = CliRunner().invoke(
        build_app(), ["replay", str(RECORDING), "--engine", "golden", *choice]
    )
    assert isinstance(done.exception, UserError) and said in str(done.exception)


def test_a_policy_of_ones_own(traces, tmp_path):
    file = tmp_path / "my.py"
    file.write_text(MRU)
    found = lab(
        traces[0],
        "--residency",
        "0.5",
        "--policy",
        f"{file}:Mru",
        "--jobs",
        1,
        "--fresh",
        "--json",
        tmp_path / "o.json",
    )
    assert found.exit_code == 0, found.output
    rows = json.loads((tmp_path / "o.json").read_text())["rows"]
    own = [r for r in rows if r["policy"].endswith(":Mru")]
    assert {r["scope"] for r in own} == {"per-head", "pooled"}
    assert (
        own[0]["demand_misses"]
        != next(r for r in rows if r["policy"] == "lru" and r["scope"] == own[0]["scope"])[
            "demand_misses"
        ]
    )


def rows_of(path):
    return json.loads(path.read_text())["rows"]


def test_a_parameter_is_an_axis_of_the_sweep(traces, tmp_path):
    found = lab(
        *traces,
        "--residency",
        "0.5,0.75",
        "--policy",
        "ema,quest,lru",
        "--set",
        "tau=5,1000",
        "--set",
        "ema.alpha=26,200",
        "--jobs",
        1,
        "--store",
        tmp_path / "rows.jsonl",
        "--json",
        tmp_path / "o.json",
        "--csv",
        tmp_path / "o.csv",
        "--html",
        tmp_path / "o.html",
    )
    assert found.exit_code == 0, found.output
    rows = rows_of(tmp_path / "o.json")
    chosen = {tuple(r["parameters"].items()) for r in rows if r["policy"] == "ema"}
    assert chosen == {(("tau", t), ("alpha", a)) for t in (5, 1000) for a in (26, 200)}
    assert all(r["parameters"] == {} for r in rows if r["policy"] != "ema")
    # traces, residencies, scopes, combinations
    assert sum(r["policy"] == "ema" for r in rows) == 2 * 2 * 2 * 4
    assert (
        len(
            {
                r["demand_misses"]
                for r in rows
                if (r["policy"], r["scope"], r["residency"], r["trace"])
                == ("ema", "pooled", 0.5, "a")
            }
        )
        > 1
    )
    assert "tau=5 alpha=200" in {
        line["parameters"] for line in csv.DictReader((tmp_path / "o.csv").read_text().splitlines())
    }
    assert "ema tau=5 alpha=200 (pooled)" in (tmp_path / "o.html").read_text()
    entries = json.loads((tmp_path / "o.json").read_text())["summary"]
    # ema, quest and lru in two scopes, Belady in one
    assert len(entries) == 2 * (4 * 2 + 2 + 2 + 1)

    # What was set to its default decides as if nothing had been set, and every cell is found again.
    lab(
        traces[0],
        "--residency",
        "0.5",
        "--policy",
        "ema",
        "--jobs",
        1,
        "--fresh",
        "--json",
        tmp_path / "d.json",
    )
    same = next(
        r for r in rows_of(tmp_path / "d.json") if (r["policy"], r["scope"]) == ("ema", "pooled")
    )
    assert same["demand_misses"] == next(
        r["demand_misses"]
        for r in rows
        if (r["trace"], r["scope"], r["residency"], r["parameters"])
        == ("a", "pooled", 0.5, {"tau": 1000, "alpha": 26})
    )
    wanted = cells(
        traces,
        [0.5, 0.75],
        ["ema", "quest", "lru"],
        settings={"tau": [5, 1000], "ema.alpha": [26, 200]},
    )
    heard = []
    sweeping.sweep(
        wanted, store=tmp_path / "rows.jsonl", progress=lambda cell, stored: heard.append(stored)
    )
    assert heard == [True] * len(wanted)


@pytest.mark.parametrize("order", [("tau", "ema.tau"), ("ema.tau", "tau")])
def test_a_setting_of_one_policy_is_before_that_of_all(traces, order):
    values = {"tau": [5], "ema.tau": [7]}
    asked = cells([traces[0]], [0.5], ["ema"], settings={name: values[name] for name in order})
    assert {cell.parameters for cell in asked if cell.policy == "ema"} == {(("tau", 7),)}


def test_a_policy_of_ones_own_declares_parameters(traces, tmp_path):
    file = tmp_path / "my.py"
    file.write_text(
        MRU.replace("def __init__(self, pool):", "def __init__(self, pool, keep=0, *, ratio=0.5):")
        .replace(
            "reversed(self.order) if",
            "list(reversed(self.order))[keep_of(self):] + list(self.order) if",
        )
        .replace("super().__init__(pool)", "super().__init__(pool)\n        self.keep = keep")
        + "\n\ndef keep_of(policy):\n    return policy.keep\n"
    )
    found = lab(
        traces[0],
        "--residency",
        "0.5",
        "--policy",
        f"{file}:Mru",
        "--set",
        "keep=0,12",
        "--set",
        "ratio=0.25",
        "--jobs",
        1,
        "--fresh",
        "--json",
        tmp_path / "o.json",
    )
    assert found.exit_code == 0, found.output
    own = {
        r["parameters"]["keep"]: r
        for r in rows_of(tmp_path / "o.json")
        if r["policy"].endswith(":Mru") and r["scope"] == "pooled"
    }
    assert set(own) == {0, 12} and own[0]["demand_misses"] != own[12]["demand_misses"]


def test_a_killed_sweep_goes_on(traces, tmp_path, monkeypatch):
    wanted = cells(traces, [0.5], ["fifo"])
    store = tmp_path / "rows.jsonl"
    done = []

    def killed(cell):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(cell)
        return cell, row(cell)

    monkeypatch.setattr(sweeping, "_pair", killed)
    with pytest.raises(KeyboardInterrupt):
        sweeping.sweep(wanted, store=store)
    monkeypatch.undo()
    with store.open("a") as file:
        file.write('{"key": "cut sho')
    heard = []
    rows = sweeping.sweep(wanted, store=store, progress=lambda cell, stored: heard.append(stored))
    assert heard.count(True) == 3 and len(rows) == len(wanted)
    again = sweeping.sweep(wanted)
    assert [r["demand_misses"] for r in rows] == [r["demand_misses"] for r in again]


def test_what_the_rows_say_together():
    """Gap of summed counts, of each document, without each, and with prefetch off; queues that
    lose. By hand: 30 of 60 and 10 of 40 misses are won."""

    def made(policy, scope, misses, without=None, rates=(0.5, 0.5)):
        return [
            {
                "trace": t,
                "rule": "recorded",
                "residency": 0.5,
                "policy": policy,
                "parameters": {},
                "scope": scope,
                "accesses": 200,
                "steps": steps,
                "layers": 2,
                "waiting_layers": m / 200,
                "waiting_tokens": 0.5 if t == "a" else 1.0,
                "cycles": 1000 + m,
                "resident_cycles": 100 * steps,
                "hit_rate": 1 - m / 200,
                "demand_misses": m,
                "demand_misses_without_prefetch": w,
                "flash_reads": m,
                "prefetch_issued": 0,
                "prefetch_useful": 0,
                "prefetch_late": 0,
                "queue_hit_rates": list(rates),
                "metadata_bits_per_page": 1,
                "oracle": policy == "belady",
            }
            for t, steps, m, w in zip("ab", (1, 3), misses, without or misses, strict=True)
        ]

    rows = [
        *made("lru", "per-head", (120, 90), rates=(0.5, 0.503)),
        *made("lru", "pooled", (100, 80)),
        *made("belady", "pooled", (40, 40)),
        *made("kelp", "pooled", (70, 70), (85, 80), rates=(0.6, 0.5)),
        *made("my.py:P", "pooled", (70, 70), rates=(0.498, 0.6)),
    ]
    ours = next(e for e in gaps.summary(rows) if e["policy"] == "kelp")
    assert ours["waiting_layers"] == 0.35 and ours["waiting_tokens"] == (0.5 + 3 * 1.0) / 4
    assert ours["token_time"] == (1070 + 1070) / 400
    assert ours["gap"] == 0.4 and ours["gap_without_prefetch"] == 0.15
    assert ours["gap_by_trace"] == {"a": 0.5, "b": 0.25} and ours["gap_leaving_out"] == {
        "a": 0.25,
        "b": 0.5,
    }
    assert ours["gap_interval"] == [0.25, 0.5] and ours["hit_rate_by_trace"] == {
        "a": 0.65,
        "b": 0.65,
    }
    assert [(f["policy"], f["queue"]) for f in gaps.losses(rows)] == [
        ("kelp", 1),
        ("kelp", 1),
        ("my.py:P", 0),
        ("my.py:P", 0),
    ]


def test_cores_agree_with_one(traces):
    wanted = cells(traces, [0.5], ["kelp"])
    one, two = sweeping.sweep(wanted), sweeping.sweep(wanted, jobs=2)
    assert [{**r, "seconds": 0} for r in one] == [{**r, "seconds": 0} for r in two]


def test_read_rules_are_an_axis(traces, tmp_path):
    """Each rule's rows and tables are those that it gives alone."""
    rules = ("recorded", "top-p=0.5,k=2")

    def run(*names):
        reads = [part for name in names for part in ("--reads", name)]
        found = lab(
            *(traces[0], "--residency", "0.5", "--fresh", "--jobs", 1, "--policy", "kelp"),
            *(*reads, "--json", tmp_path / "o.json"),
        )
        assert found.exit_code == 0, found.output
        return found.output, json.loads((tmp_path / "o.json").read_text())

    said, both = run(*rules, rules[0])
    assert both["rules"] == list(rules)
    assert [said.count(f"1 trace{of}: hit rate") for of in ("", f", {rules[1]}")] == [1, 1]
    for rule in rules:
        _, alone = run(rule)
        for part in ("rows", "summary", "losses"):
            mine = [{**e, "seconds": 0} for e in both[part] if e["rule"] == rule]
            assert mine == [{**e, "seconds": 0} for e in alone[part]]
    first, second = (next(r for r in both["rows"] if r["rule"] == rule) for rule in rules)
    assert first["accesses"] > second["accesses"]


@pytest.mark.parametrize(
    "arguments,fault",
    [
        (["--policy", "lur"], "policy 'lur' is refused; legal: lru fifo"),
        (["--policy", "nowhere.py:P"], "no such file nowhere.py"),
        (
            ["--policy", "lru", "--set", "tau=5"],
            "parameter 'tau' belongs to none of the policies chosen; legal: none of them has any",
        ),
        (
            ["--policy", "lru,quest", "--set", "lru.half=5"],
            "policy 'lru' has no parameter 'half'; legal: none",
        ),
        (
            ["--policy", "ema,quest", "--set", "window=5"],
            "legal: ema: alpha (26), tau (1000); quest: half (64)",
        ),
        (
            ["--policy", "ema", "--set", "tau"],
            "--set 'tau' is refused; legal: a parameter and numbers",
        ),
        (["--policy", "ema", "--set", "tau=x"], "--set 'tau=x' is refused"),
        (["--policy", "ema", "--set", "tau=0.5"], "tau = 0.5 is refused; legal: whole numbers"),
        (["--policy", "ema", "--set", "alpha=0"], "alpha = 0 is refused; legal: 1 … 256"),
        (["--policy", "quest", "--set", "half=0"], "half = 0 is refused; legal: 1 … 65536"),
        (["--policy", "quest", "--set", "half=10000000000"], "half = 10000000000 is refused"),
        (["--policy", "tworate", "--set", "slow=0"], "tworate: fast = 4, slow = 0 is refused"),
        (["--policy", "snapkv", "--set", "window=1000000000"], "window = 1000000000 is refused"),
        (["--policy", "s3fifo", "--set", "ghost=inf"], "ghost = inf, promote = 2 is refused"),
        (["--policy", "s3fifo", "--set", f"promote={10**22}"], f"promote = {10**22} is refused"),
        (["--policy", "streamingllm", "--set", "sinks=-1"], "sinks = -1 is refused; legal: 0 or"),
        (["--policy", "ema", "--set", "tau=5", "--set", "tau=6"], "--set tau is given twice"),
        (["--policy", "speckv", "--set", "window=-1"], "window = -1 is refused"),
        (["--jobs", "0"], "--jobs 0 is refused; legal: 1 … 1024, or -1"),
        (["--residency", "half"], "--residency 'half' is not numbers"),
        (["--residency", "0"], "residency = 0.0 is refused"),
        (["--residency", "0.001"], ".npz: residency = 0.001 of "),
        (["--residency", "0.001"], "is refused: 0 frames; legal: a frame for each queue, 1/"),
        (["--reads", "quest"], "has no queries and keys"),
        (["--reads", "best"], "read rule 'best' is refused"),
        (["--reads", "recorded", "--reads", "best"], "read rule 'best' is refused"),
        (
            ["--reads", "recorded", "--reads", "top-p=0.5,k=2", "--html", "o.html"],
            "--html o.html draws one read rule; --reads names 2",
        ),
    ],
)
def test_bad_input_is_one_line(traces, arguments, fault):
    found = lab(traces[0], "--fresh", "--jobs", 1, *arguments)
    assert isinstance(found.exception, UserError) and fault in str(found.exception)


def test_what_a_policy_does_not_take_is_refused_before_any_replay(traces, tmp_path):
    store = tmp_path / "rows.jsonl"
    found = lab(traces[0], "--store", store, "--jobs", 1, "--policy", "ema", "--set", "tau=0")
    assert "tau = 0 is refused" in str(found.exception) and not store.exists()


def test_traces_of_one_name_are_refused(traces, tmp_path):
    twin = tmp_path / "elsewhere" / traces[0].name
    twin.parent.mkdir()
    twin.write_bytes(traces[1].read_bytes())
    for other in (twin, traces[0]):
        found = lab(traces[0], other, "--fresh", "--jobs", 1)
        assert f"{traces[0]} and {other} are both named" in str(found.exception)


def test_a_stored_row_depends_on_the_device_s_arithmetic(traces, monkeypatch):
    [cell, *_] = cells([traces[0]], [0.5], ["ema"])
    before, read = cell.key, Path.read_bytes
    for name in ("arithmetic.py", "scores.py"):  # of kelp_golden and of kelp_spec
        _sources.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda p, n=name: read(p) + b"#" * (p.name == n))
            assert cell.key != before
    _sources.cache_clear()
    assert cell.key == before


def test_a_trace_that_is_none(tmp_path):
    found = lab(tmp_path / "none.npz", "--fresh")
    assert isinstance(found.exception, UserError) and "no such trace" in str(found.exception)
