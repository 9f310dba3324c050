# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""kelp size, kelp top and the metrics: figures that can be checked by hand, and clear words for bad
input."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from tenants import tenants

import cxl_kv
from cxl_kv.device import Device
from cxl_kv.serving.metrics import render
from cxl_kv.serving.server import Server
from cxl_kv.serving.tokens import Grant, Tokens, read_token
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core


def kelp(*arguments, code=0, before=""):
    run = [sys.executable, "-c", before + "from kelp_cli.main import main; main()", *arguments]
    done = subprocess.run(
        run,
        capture_output=True,
        text=True,
        timeout=60,
        env={"COLUMNS": "200", "PATH": ""}
        | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
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


def test_what_a_mixed_page_leaves_unused_is_said():
    """51 lines of 64 bytes in a frame of 64 lines: as much DRAM as fp8."""
    mixed = kelp("size", "--formats", "int8/int4")
    assert "3,264 bytes and takes a whole frame of 4,096" in " ".join(mixed.split())
    assert "20% of its DRAM is not used" in " ".join(mixed.split())
    assert "whole frame" not in kelp("size", "--formats", "int8")
    fitting = kelp("size", "--formats", "int8/int4", "--pools", "raw16,int8/int4,int8,int4")
    assert "whole frame" not in fitting and "frames of 3,264 bytes" in fitting
    assert re.search(
        r"page of int8/int4 +│ 51 DRAM lines in a frame of 64", kelp("config", "64x64")
    )


def test_bad_sizes_are_refused():
    for arguments, problem in (
        (["--model", "llama-9"], "llama-9"),
        (["--formats", "int5"], "int5"),
        (["--users", "0"], "users = 0"),
        (["--users", f"1{'0' * 400}"], "users = an object of int"),
        (["--context", f"{10**18}"], "context = 1000000000000000000,"),
    ):
        assert problem in kelp("size", *arguments, code=1)
    told = kelp("top", "unix:/nowhere.sock", "--once", code=1)
    assert "nobody serves there" in told and "?" not in told.partition("--listen")[2]
    assert "interval = 0" in kelp("top", "--interval", "0", code=1)
    assert "interval = 1e+300" in kelp("top", "--interval", "1e300", code=1)


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


def test_a_server_without_file_descriptors_says_so(tmp_path):
    none = "def none(*_): raise OSError(24, 'Too many open files')\nimport os; os.eventfd = none\n"
    said = kelp("serve", "golden:unit", "--listen", f"unix:{tmp_path}/s", code=1, before=none)
    assert "golden:unit is not served: Too many open files; let the process open more" in said


def test_a_device_that_fails_as_its_server_starts_is_one_line(tmp_path):
    """As a board that is unplugged then."""
    lost = """
from cxl_kv.backends.golden import GoldenCore
from cxl_kv.errors import TransportError
def load(self, addresses, ld_id):
    raise TransportError("the board is gone")
GoldenCore.load = load
"""
    url = f"unix:{tmp_path}/kelp.sock"
    said = kelp("serve", "golden:unit_select", "--listen", url, code=1, before=lost)
    assert said == "kelp: the board is gone\n"


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


def scrape(url, token_file=None, path="/metrics"):
    request = urllib.request.Request(url.replace("/metrics", path))
    if token_file is not None:
        request.add_header("Authorization", f"Bearer {read_token(token_file)}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def test_metrics_are_the_counters(tmp_path):
    core = make_core("golden:unit")
    known = tenants(tmp_path, "alice", "bob", "metrics")
    with Server(core, tokens=known) as server:
        url = server.listen("tcp://127.0.0.1:0")
        where = server.serve_metrics("127.0.0.1:0")
        with cxl_kv.open(f"{url}?token_file={tmp_path}/alice.token") as device:
            session = device.open_session(cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32))
            session.write([0, 1], *np.ones((2, 2, 2, 32, 32), np.float16))
            text = scrape(where, tmp_path / "metrics.token")
            hers = scrape(where, tmp_path / "alice.token")
            his = scrape(where, tmp_path / "bob.token")
        device = Device(LocalTransport(core, shared=True))
        counters = device.counters()
        # The server's own part comes first, and render(device) alone is the device's.
        assert render(device).startswith("# HELP kelp_accesses_total")
        server.close()
    for name in ("accesses", "evictions", "hint_lines"):
        assert f"\nkelp_{name}_total {counters[name]}\n" in text
    assert (
        'kelp_prefetch_issued_total{source="window"} 0\n' in text
        and "kelp_sessions_open 1\n" in text
        and 'kelp_session_step{session="0",owner="1"} 0\n' in text
    )
    opened = 'kelp_requests_total{tenant="alice",request="open",outcome="ok"} 1\n'
    assert opened in text and opened in hers and "alice" not in his
    assert 'kelp_request_seconds_count{tenant="alice",request="open"} 1\n' in hers
    bins = re.findall(r'seconds_bucket{tenant="alice",request="open",le="(.+?)"} (\d)', hers)
    assert bins[-1] == ("+Inf", "1") and [n for _, n in bins] == sorted(n for _, n in bins)
    assert re.search(r'kelp_build_info{version="[^"]+",protocol="3",config="unit"} 1', text)
    for private in ("sessions_open", "session_step", "accesses_total", "hangups", "pool_used"):
        assert f"kelp_{private}" in text and f"kelp_{private}" not in hers
    assert 'kelp_device_answers_total{kind="miss",log2_cycles="0"} 0\n' in text
    assert (
        len(re.findall(r"^# TYPE", text, re.MULTILINE))
        == len(re.findall(r"^# HELP", text, re.MULTILINE))
        > 20
    )


def test_a_session_that_is_closing_is_not_open(monkeypatch):
    """It is there, with its step, until its last frame is free."""
    device = Device(LocalTransport(make_core("golden:unit"), shared=True))
    device.open_session(cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32))
    assert "\nkelp_sessions_open 1\n" in render(device)
    fields = device.registers.fields

    def closing(name):
        found = fields(name)
        return found | {"open": 0, "busy": 1} if name == "s0_state" else found

    monkeypatch.setattr(device.registers, "fields", closing)
    text = render(device)
    assert "\nkelp_sessions_open 0\n" in text and 'kelp_session_step{session="0"' in text


def test_metrics_need_a_token(tmp_path):
    with Server(make_core("golden:unit"), tokens=tenants(tmp_path, "metrics")) as server:
        where = server.serve_metrics("127.0.0.1:0")
        (tmp_path / "wrong").write_text("x" * 43)
        (tmp_path / "wrong").chmod(0o600)
        for token_file in (None, tmp_path / "wrong"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                scrape(where, token_file)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(where, tmp_path / "metrics.token", "/secrets")
    with (
        Server(make_core("golden:unit")) as server,
        pytest.raises(ValueError, match="need a token"),
    ):
        server.serve_metrics("127.0.0.1:0")


def test_tokens_are_made_and_never_shown(tmp_path):
    arguments = ["--tokens", f"{tmp_path}/tokens.toml", "--to"]
    said = kelp("token", "alice", *arguments, f"{tmp_path}/a", "--clients", "3", "--sessions", "2")
    said += kelp("token", "bob", *arguments, f"{tmp_path}/b", "--budget", "4096")
    assert "LD-ID 1" in said and "LD-ID 2" in said
    for name in ("tokens.toml", "a", "b"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    tokens = [read_token(tmp_path / name) for name in ("a", "b")]
    assert tokens[0] != tokens[1] and not any(token in said for token in tokens)
    known = Tokens.load(tmp_path / "tokens.toml")
    assert known.find(tokens[0]) == Grant("alice", 1, clients=3, sessions=2)
    assert known.find(tokens[1]) == Grant("bob", 2, budget_bytes=4096)
    assert known.find(tokens[0] + "x") is None
    before = (tmp_path / "tokens.toml").read_text()
    for name, to, problem in (
        ("alice", "c", "has alice already"),
        ("carol", "a", "is there already"),
        ("car/ol", "c", "is refused"),
        ("admin", "c", "is refused"),
        ("carol", "tokens.toml", "legal: another file than the server's"),
    ):
        assert problem in kelp("token", name, *arguments, f"{tmp_path}/{to}", code=1)
    assert (tmp_path / "tokens.toml").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "tokens.toml"]
