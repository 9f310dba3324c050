# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The recorder on small models built from a config: what was recorded against their attention in
full (in `.venv.hf`, docs/lab.md)."""

import json

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_sim.lab import recorder
from kelp_sim.lab.models import load
from kelp_sim.lab.recorder import ReadRule, RecorderError, qkv_path, record
from kelp_sim.trace.trace import read

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.manual_seed(1)
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", MODELS)
def test_mass_is_the_models_own_attention(tmp_path, name):
    model = MODELS[name]().eval()
    tokens = np.random.default_rng(2).integers(0, 64, 60)
    before = model.config._attn_implementation
    record(
        model,
        tokens,
        tmp_path / "t.npz",
        prefill=16,
        page_tokens=8,
        lines=True,
        rule=ReadRule(max_pages=3),
    )
    assert model.config._attn_implementation == before
    found = read(tmp_path / "t.npz")
    assert (
        found.layers,
        found.q_heads,
        found.kv_heads,
        found.head_dim,
        found.steps,
        found.pages,
    ) == (3, 4, 2, 8, 44, 8)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        whole = model(torch.as_tensor(tokens)[None], output_attentions=True)
    full = whole.attentions
    loss = torch.nn.functional.cross_entropy(whole.logits[0, 16:-1], torch.as_tensor(tokens[17:]))
    assert json.loads(str(np.load(tmp_path / "t.npz")["meta"]))["cross_entropy"] == pytest.approx(
        float(loss), abs=1e-3
    )
    for layer, attention in enumerate(full):
        # queries of a KV head's group together
        rows = attention[0, :, 16:].reshape(2, 2, 44, 60).mean(1)
        pages = torch.nn.functional.pad(rows, (0, 4)).unflatten(-1, (8, 8)).sum(-1).numpy()
        assert np.abs(pages * 65536 - found.mass[layer]).max() < 4


def test_queries_keys_and_values_of_some_layers_lie_beside_it(tmp_path):
    tokens, how = np.random.default_rng(3).integers(0, 64, 60), dict(prefill=16, page_tokens=8)
    record(_seeded(), tokens, tmp_path / "all.npz", lines=True, **how)
    record(_seeded(), tokens, tmp_path / "some.npz", lines=[0, 2], **how)
    whole, part = read(tmp_path / "all.npz"), np.load(qkv_path(tmp_path / "some.npz"))
    assert part["layers"].tolist() == [0, 2] and read(tmp_path / "some.npz").k is None
    for name in "qkv":
        assert part[name].dtype == np.float16
        assert (part[name] == getattr(whole, name)[[0, 2]]).all()
    assert not qkv_path(tmp_path / "all.npz").exists()
    with pytest.raises(RecorderError, match="layer 3 is refused; legal: 0 … 2"):
        record(_seeded(), tokens, tmp_path / "more.npz", lines=[3], **how)
    assert not (tmp_path / "more.npz").exists()


def test_a_prefill_goes_part_by_part(tmp_path, monkeypatch):
    """No pass is longer than a part, whatever the prefill, and what is recorded is the same; who
    waits hears of each pass."""
    tokens, how = np.random.default_rng(4).integers(0, 64, 120), dict(prefill=104, page_tokens=8)
    record(_seeded(), tokens, tmp_path / "one.npz", lines=True, **how)
    monkeypatch.setattr(recorder, "PART", 48)
    passes, told, model = [], [], _seeded()
    model.register_forward_pre_hook(lambda _, taken: passes.append(taken[0].shape[1]))
    record(model, tokens, tmp_path / "parts.npz", lines=True, progress=_both(told), **how)
    assert passes == [48, 48, 8, 16] and told == [(n, 120) for n in (48, 96, 104, 120)]
    one, parts = read(tmp_path / "one.npz"), read(tmp_path / "parts.npz")
    assert (one.reads == parts.reads).all()
    assert np.abs(one.mass.astype(int) - parts.mass).max() <= 1
    for name in "qkv":
        assert np.allclose(getattr(one, name), getattr(parts, name), atol=1e-3)


def _both(told):
    return lambda done, of: told.append((done, of))


def test_the_read_rule():
    mass = np.array([0.05, 0.5, 0.0, 0.3, 0.15])
    assert ReadRule(0.75, 16).chosen(mass, 4).tolist() == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert ReadRule(0.99, 2).chosen(mass, 2).tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert ReadRule(0.1, 16).chosen(mass, 0).tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "prefill,count,fault",
    [
        (12, 60, "prefill 12 is refused"),
        (64, 60, "prefill 64 is refused"),
        (16, 200, "200 tokens are refused"),
        (8, 15, "a text of 15 tokens is refused; legal: at least two pages, 16 tokens"),
    ],
)
def test_what_cannot_be_recorded(tmp_path, prefill, count, fault):
    with pytest.raises(RecorderError, match=fault):
        record(
            MODELS["llama"]().eval(),
            np.zeros(count, int),
            tmp_path / "t.npz",
            prefill=prefill,
            page_tokens=8,
        )


def test_sliding_windows_are_refused(tmp_path):
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).eval()
    with pytest.raises(RecorderError, match="sliding window"):
        record(model, np.zeros(60, int), tmp_path / "t.npz", prefill=16, page_tokens=8)


def test_a_model_that_also_sees_is_judged_by_its_text_part(tmp_path):
    """Its configuration has the window and the positions one level down."""
    text = SIZES | dict(head_dim=8, sliding_window=8, layer_types=["sliding_attention"] * 3)
    vision = dict(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    ) | dict(image_size=28, patch_size=14)
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config).eval()
    for count, fault in ((60, "sliding window of 8 tokens"), (200, "positions end at 128")):
        with pytest.raises(RecorderError, match=fault):
            record(model, np.zeros(count, int), tmp_path / "t.npz", prefill=16, page_tokens=8)


def test_another_softmax_is_refused(tmp_path):
    """Mass would be of scores that the model does not take."""
    full = SIZES | dict(head_dim=8, use_sliding_window=False, layer_types=["full_attention"] * 3)
    model = Gemma2ForCausalLM(Gemma2Config(**full, attn_logit_softcapping=50.0)).eval()
    with pytest.raises(RecorderError, match=r"changes its softmax \(softcap\)"):
        record(model, np.zeros(60, int), tmp_path / "t.npz", prefill=16, page_tokens=8)
    assert not list(tmp_path.iterdir())


def test_a_mass_floor_leaves_the_reads_and_their_mass(tmp_path):
    tokens = np.random.default_rng(3).integers(0, 64, 60)
    for name, floor in (("all", 0.0), ("some", 0.2)):
        record(
            _seeded(),
            tokens,
            tmp_path / f"{name}.npz",
            prefill=16,
            page_tokens=8,
            rule=ReadRule(max_pages=2, mass_floor=floor),
        )
    every, some = read(tmp_path / "all.npz"), read(tmp_path / "some.npz")
    assert (every.reads == some.reads).all()
    dropped = ~every.reads & (every.mass < 0.2 * 65536)
    assert (dropped & (every.mass > 0)).any()
    assert (some.mass == np.where(dropped, 0, every.mass)).all()


def _seeded():
    torch.manual_seed(1)
    return MODELS["llama"]().eval()


def _gguf(path, architecture="llama", kind=None, blocks=1):
    """A GGUF of one tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    if blocks:
        writer.add_block_count(blocks)
    if kind is None:
        writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float32))
    else:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor(
            "token_embd.weight", np.zeros((64, 256 // block * size), np.uint8), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _whole_gguf(path, *, blocks=1, tied=False):
    """A Llama of one block, with a tokenizer, that says it is of `blocks`."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, number in dict(
        block_count=blocks, context_length=64, embedding_length=32, feed_forward_length=48
    ).items():
        writer.add_uint32(f"llama.{name}", number)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["t", "1", "t1", *(f"x{i}" for i in range(61))])
    writer.add_token_types([1] * 64)
    writer.add_token_merges(["t 1"])
    shapes = {"token_embd": (64, 32), "output_norm": (32,)} | ({} if tied else {"output": (64, 32)})
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = (32, 32)
    shapes |= {f"blk.0.{name}_norm": (32,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.ffn_{name}": (48, 32) for name in ("gate", "up")} | {
        "blk.0.ffn_down": (32, 48)
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_all_its_weights_is_refused(tmp_path, tied):
    """transformers would make the others up, at random."""
    model, _ = load(str(_whole_gguf(tmp_path / "whole.gguf", tied=tied)))
    assert all((weights == 1).all() for weights in model.state_dict().values())
    with pytest.raises(RecorderError, match="9 weights are missing, model.layers.1.input_layern"):
        load(str(_whole_gguf(tmp_path / "less.gguf", blocks=2, tied=tied)))


def test_what_is_no_model_is_refused_in_a_line(tmp_path):
    text, whole = tmp_path / "text.gguf", _gguf(tmp_path / "whole.gguf")
    text.write_text("hello")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:-2000])
    unread = gguf.GGMLQuantizationType.Q8_K

    def damaged(at, number):
        content = bytearray(whole.read_bytes())
        content[at : at + 4] = number.to_bytes(4, "little")
        path = tmp_path / f"damaged{at}.gguf"
        path.write_bytes(content)
        return path

    for path, fault in (
        (tmp_path / "none.gguf", "no such file"),
        (text, "is no GGUF file"),
        (cut, "is cut short or damaged"),
        (_gguf(tmp_path / "type.gguf", kind=unread), "is of type Q8_K, which is not read"),
        (_gguf(tmp_path / "other.gguf", "plamo"), "architecture plamo is not supported"),
        (_gguf(tmp_path / "sizes.gguf", blocks=0), "'llama' and has no llama.block_count"),
        (_gguf(tmp_path / "blocks.gguf", blocks=1 << 20), "it says 1048576 blocks of 32 elements"),
        (damaged(8, 2), "is cut short or damaged"),  # tensors
        (damaged(16, 0), "is cut short or damaged"),  # fields
        (damaged(whole.read_bytes().index(b"token_embd.weight") + 17, 0), "is cut short or dam"),
        (damaged(4, 99), "version 99"),
        (damaged(whole.read_bytes().index(b"token_embd.weight") + 17 + 4 + 2 * 8, 200), "200"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(RecorderError, match=fault) as found:
            load(str(path))
        assert "\n" not in str(found.value)


def test_a_text_that_ends_early_is_said_to(tmp_path, repo_root):
    """Its recording has fewer steps than were asked for; one of less than two pages is refused."""
    text, out = tmp_path / "t.txt", tmp_path / "t.npz"
    asked = ["trace", "record", repo_root / "data" / "model", "--text", text, "-o", out]
    asked += ["--prefill", "16", "--tokens"]

    def recorded(tokens):
        return CliRunner().invoke(build_app(), [*map(str, asked), str(tokens)])

    text.write_text("def read(path):\n    return path\n" * 6)
    whole = recorded(32)
    assert whole.exit_code == 0 and whole.output.rstrip().endswith("16 steps recorded on cpu")
    short = recorded(1000)
    count = read(out).tokens
    assert 32 < count < 1000
    assert f"{count - 16} steps recorded on cpu; the text ends at token {count} of 1000" in (
        short.output
    )
    text.write_text("def read")
    refused = recorded(1000)
    assert isinstance(refused.exception, UserError)
    assert "at least two pages, 32 tokens" in str(refused.exception)
