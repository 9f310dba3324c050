# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Block traces: the format, its checks, the importers, and `kelp trace`."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from paths import RECORDING
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_sim.lab.blocks import IMPORTERS, BlockTrace, read_blocks
from kelp_sim.lab.policies import load
from kelp_sim.lab.stream import run_keys
from kelp_sim.trace.trace import TraceError

MOONCAKE = [(0, [0, 1, 2]), (5, [0, 7]), (9, [0, 1, 2, 3])]


def kelp(*arguments):
    return CliRunner().invoke(build_app(), ["trace", *map(str, arguments)])


def jsonl(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def mooncake(path):
    return jsonl(
        path,
        [
            {"timestamp": t, "input_length": 1, "output_length": 1, "hash_ids": ids}
            for t, ids in MOONCAKE
        ],
    )


def test_mooncake(tmp_path):
    found = IMPORTERS["mooncake"](mooncake(tmp_path / "m.jsonl"))
    assert found.block.tolist() == [0, 1, 2, 0, 3, 0, 1, 2, 4]
    assert (
        found.request.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
        and found.time_ms[-1] == 9
        and found.block_tokens == 512
    )


def test_names_are_told_apart_whatever_they_hold(tmp_path):
    names = ["a", "a\0", "a", "b" * 100_000]  # in one NumPy array the second would be the first
    path = jsonl(tmp_path / "m.jsonl", [{"timestamp": 0, "hash_ids": names}])
    assert IMPORTERS["mooncake"](path).block.tolist() == [0, 1, 0, 2]


def test_lmcache_sorts_by_time(tmp_path):
    entry = {
        "request_id": "r",
        "model_name": "m",
        "chunk_size": 128,
        "seq_len": 300,
        "dtypes": [],
        "shapes": [],
    }
    path = jsonl(
        tmp_path / "l.jsonl",
        [
            entry | {"timestamp": 2.5, "chunk_hashes": ["b", "c"]},
            entry | {"timestamp": 1.25, "chunk_hashes": ["a", "b"]},
        ],
    )
    found = IMPORTERS["lmcache"](path)
    assert found.block.tolist() == [0, 1, 1, 2] and found.request.tolist() == [0, 0, 1, 1]
    assert found.time_ms.tolist() == [1250, 1250, 2500, 2500] and found.block_tokens == 128


def test_oracle_general(tmp_path):
    path = tmp_path / "o.bin"
    path.write_bytes(
        b"".join(struct.pack("<IQIq", t, o, 4096, -1) for t, o in ((0, 9), (0, 4), (3, 9)))
    )
    found = IMPORTERS["oracle"](path)
    assert found.block.tolist() == [0, 1, 0] and found.time_ms.tolist() == [0, 0, 3000]


def test_written_is_read(tmp_path):
    made = IMPORTERS["mooncake"](mooncake(tmp_path / "m.jsonl"))
    made.write(tmp_path / "m.npz")
    found = read_blocks(tmp_path / "m.npz")
    assert (
        all((getattr(made, c) == getattr(found, c)).all() for c in ("time_ms", "request", "block"))
        and found.source == "mooncake"
    )


@pytest.mark.parametrize(
    "change,fault",
    [
        (dict(block=[0, 2, 1]), "not numbered from 0 in order"),
        (dict(time_ms=[0, 5, 4]), "time_ms falls at reference 2"),
        (dict(request=[0, 0]), r"request is int64\[2\]; the format asks for int64\[3\]"),
    ],
)
def test_a_faulty_block_trace_is_refused(tmp_path, change, fault):
    columns = {
        c: np.array(v, np.int64)
        for c, v in (dict(block=[0, 1, 0], time_ms=[0, 1, 1], request=[0, 1, 2]) | change).items()
    }
    trace = BlockTrace("test", 0, **columns)
    trace.write(tmp_path / "t.npz")
    with pytest.raises(TraceError, match=fault):
        read_blocks(tmp_path / "t.npz")


def test_a_damaged_block_trace_is_one_line(tmp_path):
    """Any byte of it, cut anywhere; and an .npy, which is an array and no archive."""
    path = tmp_path / "t.npz"
    BlockTrace.of("test", 4, [0, 1, 1, 2], [0, 0, 1, 1], ["a", "b", "a", "c"]).write(path)
    sound, random = path.read_bytes(), np.random.default_rng(1)
    refused = 0
    for _ in range(400):
        damaged = bytearray(sound)
        damaged[random.integers(len(sound))] = random.integers(256)
        path.write_bytes(damaged[: random.choice([len(sound), random.integers(len(sound))])])
        try:
            read_blocks(path)
        except TraceError as error:
            refused += "\n" not in str(error) and str(path) in str(error)
    assert refused > 250
    np.save(tmp_path / "t.npy", np.arange(4))
    with pytest.raises(TraceError, match="is not an .npz"):
        read_blocks(tmp_path / "t.npy")


@pytest.mark.parametrize(
    "change,fault",
    [
        (dict(meta="[" * 100_000), "meta is not JSON: it is nested"),
        (dict(meta=f'{{"a": {"9" * 5000}}}'), "meta is not JSON: Exceeds"),
        (dict(block_tokens=None), "meta.block_tokens is None"),
        (dict(block_tokens=float("nan")), "meta.block_tokens is nan"),
        (dict(format="x" * 100_000), "meta.format is 'x{119}, not"),
        (dict(block=np.int64(0)), r"block is int64\[\]; the format asks for int64\[1\]"),
    ],
)
def test_a_senseless_block_trace_is_one_line(tmp_path, change, fault):
    meta = dict(format="kelp-blocks-1", source="test", block_tokens=4, references=1, blocks=1)
    meta |= {key: value for key, value in change.items() if key in meta}
    columns = {name: np.zeros(1, np.int64) for name in ("block", "time_ms", "request")}
    columns["meta"] = np.array(json.dumps(meta))
    np.savez(
        tmp_path / "t.npz",
        **columns | {key: np.array(v) for key, v in change.items() if key in columns},
    )
    with pytest.raises(TraceError, match=fault):
        read_blocks(tmp_path / "t.npz")


@pytest.mark.parametrize(
    "line,fault",
    [
        ("[" * 100_000, "line 2 is not JSON: it is nested"),
        ('{"timestamp": NaN, "chunk_hashes": [1]}', "line 2 has no timestamp"),
        ('{"timestamp": 1e999, "chunk_hashes": [1]}', "line 2 has no timestamp"),
        (f'{{"timestamp": {10**30}, "chunk_hashes": [1]}}', "line 2 has no timestamp"),
        ('{"timestamp": 1, "chunk_hashes": [1], "chunk_size": "a"}', "line 2: chunk_size is 'a'"),
        ('{"timestamp": 1, "chunk_hashes": [1], "chunk_size": null}', "chunk_size is None"),
        ('{"timestamp": 1, "chunk_hashes": [1], "chunk_size": 1e999}', "chunk_size is inf"),
    ],
)
def test_a_senseless_line_is_named(tmp_path, line, fault):
    path = tmp_path / "lookups.jsonl"
    path.write_text('{"timestamp": 1, "chunk_hashes": [1], "chunk_size": 4}\n' + line)
    with pytest.raises(TraceError, match=fault):
        IMPORTERS["lmcache"](path)


def test_the_command(tmp_path):
    done = kelp("import", "mooncake", mooncake(tmp_path / "m.jsonl"), "-o", tmp_path / "m.npz")
    assert done.exit_code == 0, done.output
    assert "9 references to 5 blocks" in kelp("check", tmp_path / "m.npz").output
    assert "218,604 accesses" in kelp("check", RECORDING).output
    shown = kelp("blocks", tmp_path / "m.npz", "--frames", "10", "--policy", "lru")
    assert "44.4%" in shown.output, shown.output


@pytest.mark.parametrize(
    "arguments,fault",
    [
        (["import", "nobody", "x", "-o", "y.npz"], "source 'nobody' is refused"),
        (["import", "oracle", RECORDING, "-o", "y.npz"], "are no whole records"),
        (["import", "mooncake", __file__, "-o", "y.npz"], "line 1 is not JSON"),
        (["import", "mooncake", RECORDING, "-o", "y.npz"], "line 1 is not JSON"),
        (["check", "nowhere.npz"], "no such trace"),
        (["blocks", RECORDING], "has no time_ms"),
    ],
)
def test_bad_input_is_one_line(arguments, fault):
    found = kelp(*arguments)
    assert isinstance(found.exception, UserError) and fault in str(found.exception), found.exception


@pytest.mark.slow
@pytest.mark.skipif(
    "KELP_TRACES" not in os.environ,
    reason="KELP_TRACES names no folder with mooncake_conversation.jsonl",
)
def test_published_hit_rates_of_the_conversation_trace():
    found = IMPORTERS["mooncake"](Path(os.environ["KELP_TRACES"]) / "mooncake_conversation.jsonl")
    assert found.blocks == 182_790
    rates = [
        100 * (1 - run_keys(found.block, load("lru"), frames).mean())
        for frames in (1000, 10_000, 30_000, 50_000)
    ]
    assert rates == pytest.approx([4.5, 21.1, 32.6, 35.5], abs=0.051)
