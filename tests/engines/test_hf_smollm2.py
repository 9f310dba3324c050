# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A real model: SmolLM2-135M-Instruct generates with its keys and values on a device. Skipped, with
one line that says what to install, where its weights are missing."""

import copy

import numpy as np
import pytest
import torch
from real_model import smollm2_or_skip
from transformers import DynamicCache

import cxl_kv
from cxl_kv.connectors.hf import EndpointCache
from kelp_cli.bench.host import _of_smollm2
from kelp_sim.lab.models import smollm2
from kelp_sim.lab.texts import TEXTS
from kelp_sim.quality import real

SIZES = "queues=90&half_lines=32&pages=8&sessions=1"
LONG = "queues=90&half_lines=32&pages=32&sessions=1&frames=4096,256,4096,256"  # 512 tokens
K8V4 = "&pool_formats=raw16,int8/int4,int8,int4"
PROMPT = "<|im_start|>user\nWhat is a cache?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def loaded():
    return smollm2_or_skip()


@pytest.fixture(scope="module")
def inputs(loaded):
    return loaded[1](PROMPT, return_tensors="pt")


@pytest.fixture(scope="module")
def half(loaded):
    """In the type that a device stores. The original stays as it is."""
    return copy.deepcopy(loaded[0]).to(torch.float16)


@pytest.fixture(scope="module")
def expected(half, inputs):
    cache = DynamicCache(config=half.config)
    return half.generate(**inputs, past_key_values=cache, max_new_tokens=12, do_sample=False)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "url",
    [
        f"golden:trace?{SIZES}",
        f"golden:trace?{SIZES}&frames=96,16,16,16",
        f"dax:{{}}/m?config=trace&{SIZES}&create=1",
    ],
    ids=["golden", "golden with half of its pages on flash", "dax"],
)
def test_the_tokens_are_those_of_a_dynamic_cache(half, inputs, expected, url, tmp_path):
    with cxl_kv.open(url.format(tmp_path)) as device:
        cache = EndpointCache(device, half.config, policy=cxl_kv.Policy(score="observed"))
        got = half.generate(**inputs, past_key_values=cache, max_new_tokens=12, do_sample=False)
        assert got.tolist() == expected.tolist() and got.shape[1] > inputs["input_ids"].shape[1]
        if "frames" in url:
            assert cache.rows[0].telemetry("session")["misses"] > 0


@pytest.fixture(scope="module")
def expected_long(half, inputs):
    return half.generate(
        **inputs, past_key_values=DynamicCache(config=half.config), **_exactly(256)
    )


def _exactly(tokens):
    return dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "url",
    [
        f"dax:{{}}/m?config=trace&{LONG}&create=1",
        pytest.param(f"golden:trace?{LONG}", marks=pytest.mark.slow),
        pytest.param("rtl:smollm2", marks=pytest.mark.slow),
    ],
    ids=["dax", "golden", "rtl"],
)
def test_256_tokens_are_those_of_a_dynamic_cache(half, inputs, expected_long, url, tmp_path):
    with cxl_kv.open(url.format(tmp_path)) as device:
        cache = EndpointCache(device, half.config, policy=cxl_kv.Policy(score="observed"))
        got = half.generate(**inputs, past_key_values=cache, **_exactly(256))
        assert got.shape[1] == inputs["input_ids"].shape[1] + 256
        assert got.tolist() == expected_long.tolist()


@pytest.mark.timeout(1200)
def test_perplexity_through_the_device_is_that_of_the_format(loaded, half):
    """As `kelp quality` finds it with the codec alone (docs/quality.md): K in int8 costs nothing, K
    in int4 a great deal; raw16 is exact."""
    ids = torch.tensor(loaded[1].encode(TEXTS["argparse"].make())[:128])[None]

    def loss(cache):
        with torch.no_grad():
            logits = half(input_ids=ids, past_key_values=cache).logits[0, :-1].float()
        return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))

    plain, found = loss(DynamicCache(config=half.config)), {}
    with cxl_kv.open(f"golden:trace?{LONG}{K8V4}") as device:
        for k, v in (("raw16", "raw16"), ("int8", "int8"), ("int8", "int4"), ("int4", "int4")):
            formats, policy = cxl_kv.LayerFormats(k=k, v=v), cxl_kv.Policy(score="observed")
            with EndpointCache(device, half.config, formats=formats, policy=policy) as cache:
                found[k, v] = loss(cache) - plain
    assert found["raw16", "raw16"] == 0
    assert abs(found["int8", "int8"]) < 0.01 and abs(found["int8", "int4"]) < 0.04
    assert found["int4", "int4"] > 0.08


@pytest.mark.timeout(1200)
def test_a_pool_for_k_and_v_apart_takes_what_its_bits_say(half, inputs):
    """K in int8 with V in int4 takes 26 lines a page instead of the 32 of fp8's pool: 16 and 8 of
    data, 32 and 64 bytes of scales. The first token is the same."""
    taken = []
    for options in ("", K8V4):
        with cxl_kv.open(f"golden:trace?{SIZES}{options}") as device:
            cache = EndpointCache(
                device,
                half.config,
                formats=cxl_kv.LayerFormats(k="int8", v="int4"),
                policy=cxl_kv.Policy(score="observed"),
            )
            half.generate(**inputs, past_key_values=cache, max_new_tokens=2, do_sample=False)
            taken.append(int(cache.rows[0].telemetry("session")["resident_bytes"]))
    pages = taken[0] // (32 * 64)
    assert taken == [pages * 32 * 64, pages * 26 * 64] and pages >= 90


def test_numpy_computes_the_losses_of_transformers(loaded):
    model, tokenizer = loaded
    ids = np.array(tokenizer(PROMPT * 4)["input_ids"])
    with torch.no_grad():
        logits = model(torch.tensor(ids)[None]).logits[0, :-1]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]))
    given = real.of_transformers(model, smollm2(), "d").losses(ids)
    assert given.mean() == pytest.approx(float(loss), abs=2e-3)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_the_tokens_of_a_recording(loaded, name):
    assert len(loaded[1](TEXTS[name].make(), verbose=False)["input_ids"]) >= 4096


def test_a_bench_without_the_weights_says_what_it_leaves_out(monkeypatch, capsys):
    monkeypatch.delenv("KELP_SMOLLM2", raising=False)
    monkeypatch.setattr("kelp_sim.lab.models.find_spec", lambda name: None)
    assert not list(_of_smollm2())
    assert "the rows hf.smollm2.* are left out: the weights of SmolLM2 are not installed" in (
        capsys.readouterr().err
    )
