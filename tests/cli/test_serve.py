# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""kelp size, kelp top and the metrics: figures that can be checked by hand, and clear words for bad
input."""

import importlib.util
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

import cxl_kv
from cxl_kv.device import Device
from cxl_kv.serving.metrics import MetricsServer, render
from cxl_kv.serving.server import Server
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core


def kelp(*arguments, code=0):
    run = [sys.executable, "-c", "from kelp_cli.main import main; main()", *arguments]
    done = subprocess.run(
        run, capture_output=True, text=True, timeout=60, env={"COLUMNS": "200", "PATH": ""}
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_size_counts_pages_bytes_and_shares():
    out = kelp(
        "size", "--model", "llama-3-70b", "--context", "131072", "--users", "2", "--dram", "10"
    )
    assert (
        "80.0 GiB" in out
        and "10.0 GiB: 12.5 % of the pages" in out
        and "10,485,760 frames of 8,192 bytes" in out
    )
    assert re.search(r"LRU pooled +│ 74\.8 %", out) and "docs/recordings.md" in out
    # Half-way between two measured shares, and below the least.
    assert re.search(
        r"LRU per queue +│ 79\.8 %", kelp("size", "--context", "131072", "--dram", "7.5")
    )
    assert "below 69.1 %" in kelp("size", "--context", "131072", "--dram", "1")
    assert "none is needed" in kelp(
        "size", "--model", "deepseek-v3-mla", "--context", "1000", "--formats", "int8/int4"
    )


def test_bad_sizes_are_refused():
    for arguments, problem in (
        (["--model", "llama-9"], "llama-9"),
        (["--formats", "int5"], "int5"),
        (["--users", "0"], "users = 0"),
    ):
        assert problem in kelp("size", *arguments, code=1)
    assert "nobody serves there" in kelp("top", "unix:/nowhere.sock", "--once", code=1)
    assert "interval = 0" in kelp("top", "--interval", "0", code=1)


def test_a_bench_that_needs_another_environment_says_which():
    if importlib.util.find_spec("transformers"):
        pytest.skip("this environment has transformers")
    assert ".venv.hf/bin/kelp bench --only hf" in kelp("bench", "--only", "hf", code=1)


def test_a_bench_keeps_the_rows_of_other_groups(tmp_path):
    rows = tmp_path / "bench.json"
    rows.write_text(
        json.dumps(
            [
                {"name": "old", "command": "kelp bench --only metadata"},
                {"name": "hf.x", "command": "kelp bench --only hf"},
            ]
        )
    )
    kelp("bench", "--only", "metadata", "-o", str(rows))
    kept, *measured = json.loads(rows.read_text())
    assert kept["name"] == "hf.x" and measured
    assert all(row["name"] != "old" and row["measured"].startswith("20") for row in measured)
    rows.write_text("{")
    assert "holds no rows" in kelp("bench", "--only", "metadata", "-o", str(rows), code=1)


@pytest.fixture
def served(tmp_path):
    core = make_core("golden:unit")
    with Server(core) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as device:
            session = device.open_session(cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32))
            session.write([0, 1], *np.ones((2, 2, 2, 32, 32), np.float16))
            session.advance()
            session.read(0, stop=32)
            yield core, url


def test_top_shows_what_the_device_counts(served):
    out = kelp("top", served[1], "--once")
    with cxl_kv.open(served[1] + "?admin=1") as admin:
        counters = admin.counters()
    assert f"{100 * counters['hits'] / (counters['hits'] + counters['misses']):.2f} %" in out
    assert (
        re.search(rf"evictions +│ +{counters['evictions']:,} ", out)
        and "session 0 · owner" in out
        and "step 1" in out
    )
    assert (
        sum(int(n.replace(",", "")) for n in re.findall(r"│ +\d │ [ ░▒▓█]+ │ +([\d,]+) │", out))
        == 4 * 512
    )


def test_metrics_are_the_counters(served):
    device = Device(LocalTransport(served[0], shared=True))
    server = MetricsServer(device, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.port}/metrics", timeout=30
        ) as answer:
            text = answer.read().decode()
        assert text == render(device)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/secrets", timeout=30)
    finally:
        server.close()
    counters = device.counters()
    for name in ("accesses", "evictions", "hint_lines"):
        assert f"\nkelp_{name}_total {counters[name]}\n" in text
    assert (
        'kelp_prefetch_issued_total{source="window"} 0\n' in text
        and "kelp_sessions_open 1\n" in text
    )
    assert (
        len(re.findall(r"^# TYPE", text, re.MULTILINE))
        == len(re.findall(r"^# HELP", text, re.MULTILINE))
        > 20
    )
