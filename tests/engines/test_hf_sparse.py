# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""generate() over the pages that the device chooses: the very tokens of DynamicCache where it
chooses all of them, and else attention to the chosen ones."""

import copy

import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DynamicCache,
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
from cxl_kv.connectors import hf_sparse
from cxl_kv.connectors.hf import EndpointCache
from cxl_kv.connectors.hf_sparse import Sparse, use_sparse
from cxl_kv.errors import UnsupportedError
from cxl_kv.serving.server import Server
from cxl_kv.session import Session
from cxl_kv.url import make_core

torch.set_num_threads(1)  # these models are too small to gain by more

SIZES = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=101,
    head_dim=64,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),  # with a bias of queries, keys and values
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "mistral with a window": (MistralConfig, MistralForCausalLM, {"sliding_window": 5}),
}
#: What a shape has that the others have not.
OWN = {
    "qwen2": ("q_proj.bias", "k_proj.bias", "v_proj.bias"),
    "qwen3": ("q_norm.weight", "k_norm.weight"),
}
DEVICE = "golden:unit_select?frames=512,16,16,16"  # all pages fit
#: Where every page is chosen, a device of plain memory and NumPy does as well.
DEVICES = (DEVICE, "dax:{}/memory?config=unit_select&create=1")


def model_of(name, seed=3):
    config_class, model_class, changes = MODELS[name]
    torch.manual_seed(seed)
    model = model_class(config_class(**(SIZES | changes)))
    for parameter in model.parameters():  # sharp attention, logits far apart
        parameter.data.mul_(3) if parameter.dim() > 1 else None
    own = [p for path, p in model.named_parameters() if path.endswith(OWN.get(name, "/"))]
    assert len(own) == len(OWN.get(name, ())) * SIZES["num_hidden_layers"]
    for parameter in own:  # which are begun with zeros, or ones, as if they were not there
        parameter.data.uniform_(-1, 1) if "bias" in OWN[name][0] else parameter.data.uniform_(
            0.5, 2
        )
    model = model.to(torch.float16).eval()
    use_sparse(model)
    return model


def prompt(batch=1, tokens=6):
    ids = torch.randint(3, 101, (batch, tokens), generator=torch.Generator().manual_seed(5))
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def generated(model, cache, tokens, **of):
    return model.generate(
        **prompt(**of), past_key_values=cache, max_new_tokens=tokens, do_sample=False
    )


def logits(model, cache, tokens):
    """After a prompt of six tokens, then of each."""
    steps = [tokens[:, :6], *tokens[:, 6:].split(1, dim=1)]
    with torch.no_grad():
        return torch.cat(
            [model(input_ids=ids, past_key_values=cache).logits[:, -1:] for ids in steps], dim=1
        ).float()


@pytest.mark.parametrize("url", DEVICES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [1, 2])
def test_where_every_page_is_chosen_the_logits_are_those_of_a_dense_cache(
    name, batch, url, tmp_path
):
    """Six pages of two tokens: each head names four. What has less than 2^-16 is left out."""
    model = model_of(name)
    tokens = generated(model, DynamicCache(), 6, batch=batch)
    wanted = logits(model, DynamicCache(), tokens)
    with cxl_kv.open(url.format(tmp_path)) as device:
        with EndpointCache(device, model.config, sparse=Sparse(mass=1.0)) as cache:
            found = logits(model, cache, tokens)
            report = cache.report()
    assert (found - wanted).abs().max() < 0.01 * wanted.abs().max()
    assert ("dense" in report) == ("window" in name)


def test_behind_a_server(tmp_path):
    """The very tokens that the device gives by itself."""
    model = model_of("llama")
    with cxl_kv.open(DEVICE) as device:
        with EndpointCache(device, model.config, sparse=Sparse(pages=2)) as cache:
            wanted = generated(model, cache, 20)
    with Server(make_core(DEVICE)) as server:
        with cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device:
            with EndpointCache(device, model.config, sparse=Sparse(pages=2)) as cache:
                assert (generated(model, cache, 20) == wanted).all()


@pytest.mark.slow
@pytest.mark.timeout(3600)  # builds the model
def test_on_the_rtl():
    """The very tokens of the golden device, where what is resident is no matter of time."""
    model, found = model_of("llama"), []
    for url in ("golden:unit_select", "rtl:unit_select"):
        with cxl_kv.open(url) as device:
            sparse = Sparse(pages=2, fetch=False)
            with EndpointCache(device, model.config, sparse=sparse) as cache:
                found.append(generated(model, cache, 8))
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize("fetch", [True, False])
def test_what_choices_want_is_fetched_where_the_device_is_ones_own(fetch):
    """Every queue keeps the frame of its next page, also of a row that comes later."""
    model = model_of("llama")
    with cxl_kv.open(DEVICE) as device:
        with EndpointCache(device, model.config, sparse=Sparse(fetch=fetch)) as cache:
            model(**prompt(batch=1), past_key_values=cache)
            cache.batch_repeat_interleave(2)
            found = device.registers.read_many(["low_water", "high_water"])
            assert found == ([8, 12] if fetch else [2, 4])
            assert device.registers.fields("prefetch_enable")["hint"] == fetch


def test_a_choice_may_wait_where_the_device_estimates_what_is_missing():
    """Each row's session is told, also of a row that comes later."""
    model = model_of("llama")
    with cxl_kv.open(DEVICE) as device:
        with EndpointCache(device, model.config, sparse=Sparse(wait_above=0.1)) as cache:
            generated(model, cache, 4)
            cache.batch_repeat_interleave(2)
            assert [session.wait_above for session in cache.rows] == [0.1] * len(cache.rows)
    with cxl_kv.open("golden:trace_select") as device:
        with EndpointCache(device, model.config, sparse=Sparse(wait_above=0.1)) as cache:
            for _ in range(3):  # a refused one leaves no session open
                with pytest.raises(cxl_kv.UnsupportedError, match="does not estimate"):
                    model(**prompt(), past_key_values=cache)
            assert not cache.rows and device.queues == 0
    with pytest.raises(ValueError, match="wait_above = 2"):
        Sparse(wait_above=2)


def test_layers_that_ask_for_it_are_dense():
    model = model_of("llama")
    with cxl_kv.open(DEVICE) as device:
        sparse = Sparse(pages=1, mass=1.0, dense=(1,))
        with EndpointCache(device, model.config, sparse=sparse) as cache:
            generated(model, cache, 12)
            assert set(cache.counts) == {0}
            choices, chosen, there, absent = cache.counts[0]
            assert choices == 11 and chosen <= 3 * 2 * choices < there and not absent
            lines = cache.report().splitlines()
    assert "pages a step" in lines[1] and lines[2].endswith("dense")


def test_layers_are_those_that_the_model_has():
    sparse = Sparse(dense=iter((1, 0)))
    assert sparse.dense == (1, 0)
    with cxl_kv.open(DEVICE) as device:
        EndpointCache(device, model_of("llama").config, sparse=sparse).close()
        with pytest.raises(ValueError, match=r"sparse.dense = \(2,\) is refused; legal: .* 0 … 1"):
            EndpointCache(device, model_of("llama").config, sparse=Sparse(dense=(2,)))


def test_with_every_layer_dense_nothing_changes():
    model = model_of("llama")
    wanted = generated(model, DynamicCache(), 20)
    with cxl_kv.open(DEVICE) as device:
        with EndpointCache(device, model.config, sparse=Sparse(dense=(0, 1))) as cache:
            assert (generated(model, cache, 20) == wanted).all()


def test_what_is_attended_to_is_what_was_chosen(monkeypatch):
    """A step's attention output, over the positions that `select` names, by the model's own
    attention with a mask for each KV head."""
    model, seen = model_of("llama"), []
    attended = hf_sparse._attend

    def compared(cache, layer, query, values, mask, scaling):
        output = attended(cache, layer, query, values, mask, scaling)
        session = cache.rows[0]
        k, v = session.read(layer, stop=cache.layers[layer].length, dtype=np.float16)
        k, v = (torch.from_numpy(x).repeat_interleave(2, dim=0).float() for x in (k, v))
        scores = (query[0].float() @ k.transpose(1, 2))[:, 0] * scaling
        shown = torch.zeros(len(scores), k.shape[1], dtype=torch.bool)
        for head, pages in enumerate(session.chosen.pages):
            assert len(pages) <= 4
            for page in pages.tolist():
                shown[2 * head : 2 * head + 2, 2 * page : 2 * page + 2] = True
        weights = scores.masked_fill(~shown, -torch.inf).softmax(dim=-1)
        wanted = (weights[:, None] @ v)[:, 0]
        torch.testing.assert_close(output[0, 0].float(), wanted, rtol=2e-2, atol=2e-2)
        seen.append((layer, int(shown.sum())))
        return output

    class Noted(Session):
        def select(self, *arguments, **options):
            self.chosen = super().select(*arguments, **options)
            return self.chosen

    monkeypatch.setattr(hf_sparse, "_attend", compared)
    with cxl_kv.open(DEVICE) as device:
        with EndpointCache(device, model.config, sparse=Sparse(pages=2)) as cache:
            model(input_ids=prompt(tokens=30)["input_ids"], past_key_values=cache)
            for session in cache.rows:
                session.__class__ = Noted
            model(input_ids=torch.tensor([[7]]), past_key_values=cache)
    assert [layer for layer, _ in seen] == [0, 1]
    assert all(count < 4 * 31 for _, count in seen)


def test_a_prompt_is_summarised_for_its_last_queries():
    """Each layer that chooses is planned by the prompt, once; a copy takes the plan along, and
    another prompt in the same sessions brings its own."""
    model, more = model_of("llama"), torch.tensor([[7, 8, 9]])
    with cxl_kv.open(DEVICE) as device:
        with EndpointCache(device, model.config, sparse=Sparse(dense=(0,))) as cache:
            model(input_ids=prompt(tokens=4)["input_ids"], past_key_values=cache)
            assert not cache.rows[0].plans, "no page to summarise"
            model(input_ids=more, past_key_values=cache)
            (first,) = cache.rows[0].plans.values()
            model(input_ids=more, past_key_values=cache)
            (second,) = cache.rows[0].plans.values()
            assert set(cache.rows[0].plans) == {1} and (first != second).any()
            model(input_ids=more[:, :1], past_key_values=cache)
            model(input_ids=more, past_key_values=cache)
            assert cache.rows[0].plans[1] is second, "pages are summarised by it"
            with copy.deepcopy(cache) as other:
                assert other.rows[0].plans == cache.rows[0].plans
            session = cache.rows[0]
            cache.reset()
            assert not session.plans
            model(input_ids=more.repeat(1, 4), past_key_values=cache)
            assert cache.rows[0] is session and (session.plans[1] != second).any()


def summarised(device, session):
    """Of each queue, how many of its pages have a summary."""
    c, held = device.config, device.transport.core.endpoint.summaries
    first = session.number * c.queues
    return [sum(k // c.pages == first + q for k in held) for q in range(session.shape.queues)]


@pytest.mark.parametrize("chunk", [60, 20])
def test_a_prompt_beyond_the_frames_is_summarised_as_it_comes(chunk):
    """Thirty pages of each of four queues, or eight, in 40 frames: all but the newest have a
    summary; the plan is the first part's that presses, also for what comes later, and a copy's
    pages are summarised as well."""
    model, ids = model_of("llama"), prompt(tokens=60)["input_ids"]
    with (
        cxl_kv.open("golden:unit_select?frames=40,16,16,16&sessions=4") as device,
        EndpointCache(device, model.config, sparse=Sparse()) as cache,
        torch.no_grad(),
    ):
        plans = None
        for part in ids.split(chunk, dim=1):
            model(input_ids=part, past_key_values=cache)
            (session,) = cache.rows
            assert summarised(device, session) == [cache.get_seq_length() // 2 - 1] * 4
            plans = plans or dict(session.plans)
        model(input_ids=ids[:, :1], past_key_values=cache)
        model(input_ids=ids[:, :21], past_key_values=cache)
        assert summarised(device, session) == [40] * 4
        assert all(session.plans[layer] is plan for layer, plan in plans.items())
        with copy.deepcopy(cache) as other:
            assert summarised(device, other.rows[0]) == [40] * 4
            model(input_ids=ids[:, :6], past_key_values=other)
            assert other.rows[0].plans[1] is plans[1]
        cache.batch_repeat_interleave(2)
        assert [summarised(device, row) for row in cache.rows] == [[40] * 4] * 2


def test_a_prompt_that_cannot_be_summarised_leaves_the_cache_as_it_was(monkeypatch):
    model, ids = model_of("llama"), prompt(tokens=60)["input_ids"]
    with (
        cxl_kv.open("golden:unit_select?frames=40,16,16,16") as device,
        EndpointCache(device, model.config, sparse=Sparse()) as cache,
    ):
        with monkeypatch.context() as broken, pytest.raises(TypeError):
            broken.setattr(Session, "summarise", None)
            model(input_ids=ids, past_key_values=cache)
        assert cache.get_seq_length() == 0
        model(input_ids=ids, past_key_values=cache)


def test_a_copy_counts_its_own_choices():
    model, more, sparse = model_of("llama"), torch.tensor([[7]]), Sparse()
    with (
        cxl_kv.open(DEVICE + "&sessions=4") as device,
        EndpointCache(device, model.config, sparse=sparse) as cache,
        EndpointCache(device, model.config, sparse=sparse) as one_more,
    ):
        model(**prompt(tokens=12), past_key_values=cache)
        model(input_ids=more, past_key_values=cache)
        with copy.deepcopy(cache) as other:
            model(input_ids=more, past_key_values=other)
            assert [x.counts[0][0] for x in (cache, other)] == [1, 2]
        assert not one_more.counts and "pages a step" not in one_more.report()


def test_another_text_brings_its_own_plan():
    """Also in sessions of rows that were dropped, and where all was cropped."""
    model = model_of("llama")
    with (
        cxl_kv.open(DEVICE) as device,
        EndpointCache(device, model.config, sparse=Sparse()) as cache,
    ):
        model(**prompt(batch=2, tokens=12), past_key_values=cache)
        model(input_ids=torch.tensor([[7], [8]]), past_key_values=cache)
        (first, second) = cache.rows
        cache.batch_select_indices(torch.tensor([1]))
        assert first.plans and second.plans
        cache.crop(-5)
        assert second.plans
        cache.crop(-8)
        assert not (first.plans or second.plans)
        model(**prompt(tokens=12), past_key_values=cache)
        assert second.plans and not first.plans
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0]))
        assert first.plans
        cache.reset()
        assert not (first.plans or second.plans)


def test_what_lies_behind_the_last_token_is_not_seen():
    """Of a page that is chosen, as a text before has left it there: 0 times NaN were NaN."""
    model, found = model_of("llama"), []
    with cxl_kv.open(DEVICE) as device, torch.no_grad():
        for left in (0, np.nan, np.inf):
            with EndpointCache(device, model.config, sparse=Sparse(mass=1.0)) as cache:
                model(**prompt(tokens=8), past_key_values=cache)
                lines = np.full((2, 2, 1, 64), left, np.float16)
                cache.rows[0].write([0, 1], lines, lines, start=9)
                found.append(model(input_ids=torch.tensor([[7]]), past_key_values=cache).logits)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_keys_that_are_made_of_what_is_stored_are_not_chosen_for():
    """Latent attention: one clear line; with every layer dense it is as ever."""
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    sizes |= dict(q_lora_rank=32, kv_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=16)
    sizes |= dict(v_head_dim=24, num_key_value_heads=4, first_k_dense_replace=2)
    sizes |= dict(n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1)
    torch.manual_seed(3)
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes)).half().eval()
    wanted = generated(model, DynamicCache(config=model.config), 4)
    use_sparse(model)
    with cxl_kv.open("golden:unit_select?queues=8&frames=512,16,16,16") as device:
        with EndpointCache(device, model.config, sparse=Sparse()) as cache:
            with pytest.raises(
                UnsupportedError, match="layer 0 attends to keys that .* in Sparse.de"
            ):
                generated(model, cache, 4)
        with EndpointCache(device, model.config, sparse=Sparse(dense=(0, 1))) as cache:
            assert (generated(model, cache, 4) == wanted).all()


def test_a_model_that_would_not_ask_is_refused():
    model = model_of("llama")
    model.set_attn_implementation("eager")
    with cxl_kv.open(DEVICE) as device:
        with EndpointCache(device, model.config, sparse=Sparse()) as cache:
            with pytest.raises(UnsupportedError, match="use_sparse"):
                generated(model, cache, 3)
