# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The trainer of small models: it learns, saves what transformers loads, the same from the same
seed; its model can be recorded, and run in NumPy."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kelp_sim.lab import train
from kelp_sim.lab.recorder import record
from kelp_sim.quality import llama
from kelp_sim.quality.tokens import Tokenizer
from kelp_sim.trace.trace import read

TEXT = "def area(width, height):\n    return width * height  # the area of 1 rectangle\n\n\n" * 60
SHAPE = [
    "--layers",
    "2",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--hidden",
    "32",
    "--vocabulary",
    "300",
    "--context",
    "32",
    "--batch",
    "4",
    "--rate",
    "0.01",
]


def trained(folder, monkeypatch, capsys, *more):
    monkeypatch.setattr(train, "texts", lambda hold_out: [TEXT, TEXT.replace("area", "size")])
    torch.set_num_threads(1)
    assert train.main(["-o", str(folder), "--steps", "30", *SHAPE, *more]) == 0
    return capsys.readouterr().out


def test_it_learns_saves_and_can_be_recorded(tmp_path, monkeypatch, capsys):
    said = trained(tmp_path / "m", monkeypatch, capsys)
    assert re.search(r"parameters after 30 steps of 128 tokens", said)
    before = float(re.search(r"step 1, loss ([0-9.]+)", said)[1])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(tmp_path / "m")(TEXT)["input_ids"][:96]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits, torch.tensor(ids[1:]), reduction="none"
        ).numpy()
    assert before > 5 and losses.mean() < before - 0.5

    record(model, ids, tmp_path / "t.npz", prefill=32, page_tokens=16, lines=True)
    found = read(tmp_path / "t.npz")
    assert (found.layers, found.q_heads, found.kv_heads, found.head_dim, found.steps) == (
        2,
        4,
        2,
        8,
        64,
    )

    # The same folder in plain NumPy: tokens, losses, and the keys that were recorded.
    assert Tokenizer(tmp_path / "m" / "tokenizer.json").encode(TEXT)[:96] == ids
    keys = {}
    ours = llama.load(tmp_path / "m").losses(
        np.array(ids), lambda layer, kv: keys.setdefault(layer, kv).astype(np.float32)
    )
    assert np.abs(ours - losses).max() < 0.02
    assert all(
        np.abs(keys[layer][0].astype(np.float32) - found.k[layer].astype(np.float32)).max() < 0.01
        for layer in range(2)
    )


def test_equal_seeds_give_equal_models(tmp_path, monkeypatch, capsys):
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        trained(tmp_path / name, monkeypatch, capsys, "--seed", seed, "--steps", "3")
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_held_out_texts_are_left_out():
    found = set(train.texts({"argparse.py"}))
    assert (
        Path(argparse.__file__).read_text(encoding="utf-8") not in found
        and Path(re.__file__).read_text(encoding="utf-8") in found
    )


@pytest.mark.parametrize(
    "more,fault",
    [
        (["--hidden", "30"], "each must divide the one before"),
        (["--kv-heads", "3"], "each must divide the one before"),
        (["--minutes", "0"], "legal: above 0"),
        (["--steps", "0"], "legal: above 0"),
    ],
)
def test_bad_shapes_are_one_line(tmp_path, capsys, more, fault):
    assert train.main(["-o", str(tmp_path / "m"), *SHAPE, *more]) == 1
    said = capsys.readouterr().err
    assert fault in said and said.count("\n") == 1 and not (tmp_path / "m").exists()
