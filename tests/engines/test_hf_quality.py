# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A model of transformers in the NumPy of `kelp quality`, and GGUF files that cannot be read."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_sim.quality import channels, llama, real

SIZES = dict(
    hidden_size=96,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=101,
    rms_norm_eps=1e-5,
)


def model_of(**changes):
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | changes)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3) if parameter.dim() > 1 else None
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_the_losses_are_those_of_transformers(tied):
    """But for the rounding of keys and values to fp16."""
    theta = {"rope_type": "default", "rope_theta": 500.0}
    model = model_of(tie_word_embeddings=tied, rope_parameters=theta)
    ids = np.random.default_rng(1).integers(0, 101, 300)
    given = real.of_transformers(model, Path("x"), "d").losses(ids)
    with torch.no_grad():
        logits = model(torch.tensor(ids)[None]).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    assert np.abs(given - expected.numpy()).max() < 0.02 < given.std()


def test_a_model_that_is_not_run_is_named():
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(llama.ModelError, match="some.gguf has rope_scaling, biases"):
        real.of_transformers(model_of(rope_parameters=scaled), Path("some.gguf"), "d")


def test_an_outlying_channel_is_found():
    model = model_of()
    with torch.no_grad():  # V of layer 1, head 1, element 5
        model.model.layers[1].self_attn.v_proj.weight[32 + 5] *= 40
    ids = np.random.default_rng(1).integers(0, 101, 100)
    given = real.of_transformers(model, Path("x"), "d")
    rows = channels.measure(given, ids, ["int8", "int4"])
    assert len(rows) == 3 * 2 * 2
    worst = max(rows, key=lambda row: row["peak"])
    assert (worst["layer"], worst["kv"], worst["head"], worst["channel"]) == (1, "V", 1, 5)
    assert worst["peak"] > 20 and all(r["snr_db"]["int8"] > r["snr_db"]["int4"] for r in rows)


class _Letters:
    def encode(self, text):
        return [ord(letter) % 100 for letter in text]


def test_excerpts_are_the_beginnings_then_what_follows():
    five = real.excerpts(_Letters(), 5, 100)
    names = [name for name, _ in five]
    assert names[0] == "argparse 1" and names[4] == "argparse 2" and len(set(names)) == 5
    whole = _Letters().encode(real.TEXTS["argparse"].make())
    assert np.concatenate([five[0][1], five[4][1]]).tolist() == whole[:200]
    assert not {name.split()[0] for name in names} & {
        name for name, text in real.TEXTS.items() if text.held_back
    }
    with pytest.raises(ValueError, match="9 texts of 900000 tokens are refused"):
        real.excerpts(_Letters(), 9, 900_000)


def _gguf(path, architecture="llama", kind=None):
    writer = gguf.GGUFWriter(path, architecture)
    if kind is None:
        writer.add_tensor("weight", np.zeros((4, 32), np.float32))
    else:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.zeros((4, size), np.uint8)
        writer.add_tensor("weight", data, raw_shape=data.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_that_cannot_be_read_is_one_line(tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(_gguf(tmp_path / "whole.gguf").read_bytes()[:-200])
    unread = gguf.GGMLQuantizationType.Q8_K
    for path, problem in (
        (tmp_path / "none.gguf", "no such file"),
        (cut, "is cut short or damaged"),
        (_gguf(tmp_path / "type.gguf", kind=unread), "is of type Q8_K, which is not read"),
        (_gguf(tmp_path / "other.gguf", "plamo"), "or of an architecture that is not read"),
    ):
        found = CliRunner().invoke(build_app(), ["quality", "--model", str(path), "--texts", "1"])
        said = str(found.exception)
        assert isinstance(found.exception, UserError), found.exception
        assert path.name in said and problem in said and "\n" not in said
