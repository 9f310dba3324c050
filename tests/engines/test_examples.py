# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The examples of docs/cxl_kv.md, as a user starts them: each in its engine's environment, which
KELP_ENGINE names (scripts/engines sets it)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES.parent / "data" / "model"
DAX = "dax:{folder}/memory?config=trace&create=1"
RUNS = [
    ("hf", ["generate.py", "golden:trace"], ["40 of 40 tokens as with DynamicCache", "layer 3:"]),
    (
        "hf",
        ["generate.py", "rtl:trace", "--tokens", "4"],
        ["20 of 20 tokens as with DynamicCache", "bytes in DRAM", "lines written"],
    ),
    (
        "hf",
        ["generate.py", DAX, "--tokens", "4"],
        ["20 of 20 tokens as with DynamicCache", "lie in dax:"],
    ),
    (
        "hf",
        ["generate.py", "--model", "{model}", "--tokens", "4", "--resident", "0.5"],
        ["tokens as with DynamicCache", "layer 5:", "who waited for flash: ", "lines written"],
    ),
    (
        "hf",
        ["perplexity.py", "--model", "{model}", "--texts", "2", "--tokens", "64", "raw16", "int8"],
        ["2 texts of 64 tokens", "raw16: ", "(+0.000%", "int8: "],
    ),
    (
        "lmcache",
        ["lmcache_adapter.py", "golden:trace"],
        ["found: 16 of 16; another tenant's key finds 0", "loaded: 16 of 16"],
    ),
    ("lmcache", ["lmcache_adapter.py", DAX, "--chunks", "32"], ["loaded: 32 of 32"]),
    (
        "vllm",
        ["vllm_tier.py", "golden:trace"],
        ["the CPU tier holds 8, the device 24", "loaded: 24 of 24"],
    ),
    ("vllm", ["vllm_tier.py", DAX], ["loaded: 24 of 24"]),
    (
        "sglang",
        ["sglang_storage.py", "golden:trace"],
        ["stored: True", "loaded: 32 of 32", "prefix: 5 pages"],
    ),
    ("sglang", ["sglang_storage.py", DAX, "--pages", "64"], ["loaded: 64 of 64"]),
]


@pytest.mark.timeout(1800)  # the first on the RTL builds the model
@pytest.mark.parametrize(
    ("engine", "command", "says"),
    [run for run in RUNS if run[0] == os.environ.get("KELP_ENGINE")],
    ids=lambda x: x[0] if x else None,
)
def test_an_example_runs(engine, command, says, tmp_path):
    arguments = [part.format(folder=tmp_path, model=MODEL) for part in command]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / arguments[0]), *arguments[1:]],
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr
    for text in says:
        assert text in done.stdout, done.stdout
