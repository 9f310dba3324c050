# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""transformers' generate() with its keys and values on a device: the very tokens of DynamicCache,
and nothing kept on the host."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    EncoderDecoderCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import cxl_kv
from cxl_kv.connectors.hf import EndpointCache, model_shape, use_probe
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core

torch.set_num_threads(1)  # these models are too small to gain by more

SIZES = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=101,
    head_dim=32,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama without groups": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4}),
    "llama of odd heads": (LlamaConfig, LlamaForCausalLM, {"head_dim": 24}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "mistral with a window": (MistralConfig, MistralForCausalLM, {"sliding_window": 7}),
    "qwen2 with windows on some layers": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
}
DEVICE = "golden:trace?sessions=8"


def model_of(name, dtype=torch.bfloat16, seed=3):
    config_class, model_class, changes = MODELS[name]
    torch.manual_seed(seed)
    config = config_class(**(SIZES | changes))
    model = model_class(config)
    # Large weights make attention sharp and logits far apart: a wrong key would show.
    for parameter in model.parameters():
        parameter.data.mul_(3) if parameter.dim() > 1 else None
    return model.to(dtype).eval()


def prompt(batch=2, tokens=11, padding=3):
    """Left-padded rows, as a batch of unequal texts comes."""
    ids = torch.randint(3, 101, (batch, tokens), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        ids[row, :padding], mask[row, :padding] = 0, 0
    return dict(input_ids=ids, attention_mask=mask)


@pytest.fixture
def device():
    with cxl_kv.open(DEVICE) as opened:
        yield opened


def cache_of(device, model, **options):
    return EndpointCache(device, model.config, **{"policy": cxl_kv.Policy(), **options})


def generate(model, cache, inputs, tokens=14, **options):
    return model.generate(
        **inputs, past_key_values=cache, max_new_tokens=tokens, do_sample=False, **options
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_are_those_of_a_dynamic_cache(device, name, dtype):
    model, inputs = model_of(name, dtype), prompt()
    expected = generate(model, DynamicCache(config=model.config), inputs)
    cache = cache_of(device, model)
    assert (generate(model, cache, inputs) == expected).all()
    assert (
        len(cache.rows) == 2
        and cache.get_seq_length() == 24
        and not any(torch.is_tensor(x) for layer in cache.layers for x in vars(layer).values())
    )
    assert (
        cache.rows[0].telemetry()["allocations"].sum()
        == model.config.num_hidden_layers * model.config.num_key_value_heads * 2
    )


@pytest.mark.parametrize("name", ["llama", "mistral with a window"])
def test_beams_are_reordered(device, name):
    model, inputs = model_of(name), prompt()
    options = dict(num_beams=3, tokens=16)
    expected = generate(model, DynamicCache(config=model.config), inputs, **options)
    cache = cache_of(device, model)
    assert (generate(model, cache, inputs, **options) == expected).all() and len(cache.rows) == 6
    assert len(expected[0].unique()) > 4, "a model that says one thing over and over tests no order"


def test_rejected_tokens_are_cropped(device):
    """Assisted decoding by prompt look-up guesses tokens and takes the wrong ones back."""
    model = model_of("llama")
    text = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]])
    inputs = dict(input_ids=text, attention_mask=torch.ones_like(text))
    expected = generate(model, DynamicCache(config=model.config), inputs, tokens=30)
    cache, cropped = cache_of(device, model), []
    crop = cache.crop
    cache.crop = lambda n: (cropped.append(n), crop(n))
    assert (generate(model, cache, inputs, tokens=30, prompt_lookup_num_tokens=4) == expected).all()
    assert min(cropped) < 0


def test_rows_are_repeated_selected_and_reset(device):
    model, inputs = model_of("qwen2"), prompt(batch=2, padding=0)
    ours, theirs = cache_of(device, model), DynamicCache(config=model.config)
    for cache in (ours, theirs):
        model(**inputs, past_key_values=cache)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0, 1]))
        cache.crop(-2)
    next_ids = torch.tensor([[40, 41], [42, 43], [44, 45]])
    mask = torch.ones(3, 11, dtype=torch.long)
    logits = [
        model(input_ids=next_ids, attention_mask=mask, past_key_values=cache).logits
        for cache in (ours, theirs)
    ]
    assert (logits[0] == logits[1]).all()
    ours.reset()
    assert (
        generate(model, ours, inputs) == generate(model, DynamicCache(config=model.config), inputs)
    ).all()
    with pytest.raises(ValueError, match="batch of 3 rows"):
        model(input_ids=next_ids, past_key_values=ours)


def test_one_stored_byte_changes_the_logits(device):
    """What attention sees is what lies on the device, not a copy."""
    model, inputs = model_of("llama"), prompt(batch=1)
    cache = cache_of(device, model)
    model(**inputs, past_key_values=cache)
    step = dict(input_ids=torch.tensor([[50]]), attention_mask=torch.ones(1, 12, dtype=torch.long))
    before = model(**step, past_key_values=cache).logits
    cache.crop(-1)
    assert (model(**step, past_key_values=cache).logits == before).all()
    cache.crop(-1)
    session = cache.rows[0]
    address = session.layout.addresses(np.array([1]), np.array([0]), np.array([4])).reshape(-1)[:1]
    line = device.transport.load(address).lines
    line[0, 1] ^= 0x40  # an exponent bit of the first element of layer 1, head 0, position 4's key
    device.transport.store(address, line, np.array([2], np.uint64))
    assert (model(**step, past_key_values=cache).logits != before).any()


@pytest.mark.parametrize("name", ["llama", "mistral with a window"])
def test_attention_mass_reaches_the_device(device, name):
    """What the probe pushes is the eager attention's own mass, page by page, and changes no
    token."""
    model, inputs = model_of(name), prompt(batch=1, tokens=20)
    model.set_attn_implementation("eager")
    expected = generate(model, DynamicCache(config=model.config), inputs, tokens=4)
    with torch.no_grad():
        seen = model(input_ids=expected[:, :-1], output_attentions=True).attentions
    use_probe(model)
    cache = EndpointCache(device, model.config)
    pushed = []
    push_attention = cxl_kv.Hints.push_attention
    try:
        cxl_kv.Hints.push_attention = lambda self, layer, weights, **how: (
            pushed.append((layer, weights, how)),
            push_attention(self, layer, weights, **how),
        )[1]
        assert (generate(model, cache, inputs, tokens=4) == expected).all()
    finally:
        cxl_kv.Hints.push_attention = push_attention
    assert len(pushed) == 4 * 3
    for layer, weights, how in pushed[-3:]:
        wanted = seen[layer][0, :, -1].float().reshape(2, 2, -1).mean(dim=1).numpy()
        got = np.zeros_like(wanted)
        got[:, how["first_position"] :][:, : weights.shape[1]] = weights
        assert np.allclose(got, wanted, atol=0.02) and how["advance"] == (layer == 2)
    counters = device.counters()
    pages = {"llama": 2}.get(name, 1)
    assert (
        counters["hint_updates"] >= 4 * 3 * 2 * pages
        and cache.rows[0].step == 4
        and not device.events()
    )


@pytest.mark.parametrize("formats", ["fp8_e4m3", "fp8_e5m2", "int8", "int4"])
def test_narrow_formats_stay_close(device, formats):
    """Logits move, and by no more than the format's rounding would have it."""
    model, inputs = model_of("llama", torch.float16), prompt(batch=2, padding=0)
    exact = model(**inputs).logits.float()
    cache = cache_of(device, model, formats=formats)
    got = model(**inputs, past_key_values=cache).logits.float()
    error = ((got - exact).norm() / exact.norm()).item()
    assert 0 < error < {"fp8_e4m3": 0.25, "fp8_e5m2": 0.4, "int8": 0.1, "int4": 0.8}[formats]
    assert cache.rows[0].telemetry()["resident_bytes"].sum() < 0.6 * 3 * 2 * 16 * 2 * 64


@pytest.mark.timeout(1800)  # builds the model of the endpoint
def test_through_the_rtl():
    """The tokens again, with every key and value read back from the simulated endpoint's memory."""
    model, inputs = model_of("llama"), prompt(batch=2, tokens=6, padding=1)
    expected = generate(model, DynamicCache(config=model.config), inputs, tokens=5)
    with cxl_kv.open("rtl:trace") as device:
        cache = cache_of(device, model)
        assert (generate(model, cache, inputs, tokens=5) == expected).all()
        assert (
            device.transport.core.driver.counts()["memory_writes"] > 0
            and "sessions" in cache.report()
        )


def test_the_report_says_what_hits_are_of(device):
    """Accesses that allocate their page are neither hits nor misses, and there are such."""
    model = model_of("llama")
    cache = cache_of(device, model)
    generate(model, cache, prompt())
    tables = [session.telemetry(by="layer") for session in cache.rows]
    for layer, line in enumerate(cache.report().splitlines()[1:]):
        hits, misses, allocations = (
            sum(int(t[name][layer]) for t in tables) for name in ("hits", "misses", "allocations")
        )
        assert allocations and f"% hits of {hits + misses:>6,} hits and misses, " in line
        assert "accesses" not in line


def test_what_cannot_be_stored_is_refused_by_name(device):
    model = model_of("llama", torch.float32)
    with pytest.raises(cxl_kv.UnsupportedError, match="torch.float32"):
        generate(model, cache_of(device, model), prompt())
    with pytest.raises(cxl_kv.DeviceFullError, match="8 sessions"):
        generate(model_of("llama"), cache_of(device, model_of("llama")), prompt(batch=9))
    assert model_shape(model.config, torch.float16, formats="int8").queues == 6
    cache, keys = cache_of(device, model), torch.ones(1, 2, 3, 32, dtype=torch.float16)
    for shape in ((2, 2, 3, 32), (1, 2, 4, 32)):
        with pytest.raises(ValueError, match="as many rows and tokens of both"):
            cache.update(keys, torch.ones(shape, dtype=torch.float16), 0)
    assert cache.get_seq_length() == 0 and not cache.rows


def test_an_encoder_decoder_model_has_its_own_attention_on_the_device(device):
    """Of its cross-attention's cache it takes the tensors themselves, which are not there."""
    torch.manual_seed(3)
    sizes = dict(vocab_size=101, d_model=64, max_position_embeddings=64)
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 64}
    config = BartConfig(**sizes, eos_token_id=None, forced_eos_token_id=None)
    model = BartForConditionalGeneration(config).to(torch.float16).eval()

    def tokens(own, cross):
        return generate(model, EncoderDecoderCache(own, cross), prompt())

    expected = tokens(DynamicCache(config=config), DynamicCache(config=config))
    with EndpointCache(device, config) as cache:
        assert (tokens(cache, DynamicCache(config=config)) == expected).all()
    with (
        EndpointCache(device, config) as cache,
        pytest.raises(cxl_kv.UnsupportedError, match="layer 0 are on the device.*a DynamicCache"),
    ):
        tokens(DynamicCache(config=config), cache)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["SERVED"], 0, "20 of 20 tokens as with DynamicCache"),
        (["SERVED", "--formats", "int8"], 1, "format int8 is not to be had"),
        (["unix:/nowhere"], 1, "nobody serves there"),
        (["golden:nonsense"], 1, "unknown configuration 'nonsense'"),
    ],
)
def test_the_example_on_plain_memory_behind_a_server(tmp_path, arguments, code, said):
    """It takes no hints, as its URL does not say."""
    example = Path(__file__).resolve().parents[2] / "examples" / "generate.py"
    with Server(make_core(f"dax:{tmp_path}/memory?config=trace&create=1")) as server:
        served = server.listen(f"unix:{tmp_path}/kelp.sock")
        arguments = [served if argument == "SERVED" else argument for argument in arguments]
        done = subprocess.run(
            [sys.executable, str(example), *arguments, "--tokens", "4"],
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == code and said in done.stdout + done.stderr, done.stderr
    assert "Traceback" not in done.stderr
