# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One cache for each request: whatever shape the model's attention has, what a probe sees of it,
and that no session outlives its request."""

import contextlib
import copy
import gc
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
)

import cxl_kv
from cxl_kv.connectors.hf import EndpointCache, use_probe
from cxl_kv.connectors.hf_sparse import Sparse, use_sparse

torch.set_num_threads(1)

COMMON = dict(vocab_size=101, pad_token_id=0, bos_token_id=1, eos_token_id=None)
SIZES = COMMON | dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=256,
)
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, SIZES),
    "one head for all queries": (
        LlamaConfig,
        LlamaForCausalLM,
        SIZES | dict(num_key_value_heads=1),
    ),
    "gpt-bigcode, multi-query": (
        GPTBigCodeConfig,
        GPTBigCodeForCausalLM,
        COMMON | dict(n_embd=64, n_layer=2, n_head=4, n_positions=256, multi_query=True),
    ),
    "gpt-oss, with sinks": (
        GptOssConfig,
        GptOssForCausalLM,
        SIZES | dict(num_local_experts=2, num_experts_per_tok=1, sliding_window=8),
    ),
    "gemma2, with soft-caps": (
        Gemma2Config,
        Gemma2ForCausalLM,
        SIZES | dict(attn_logit_softcapping=2.0, query_pre_attn_scalar=32, sliding_window=8),
    ),
    "deepseek-v3, latent": (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        {name: size for name, size in SIZES.items() if name != "head_dim"}
        | dict(
            num_key_value_heads=4,
            q_lora_rank=32,
            kv_lora_rank=48,
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=24,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=32,
            first_k_dense_replace=2,
        ),
    ),
}


def model_of(name, attention="eager"):
    kind, model_kind, sizes = MODELS[name]
    torch.manual_seed(3)
    model = model_kind(kind(**sizes))
    for module_name, parameter in model.named_parameters():
        if "sinks" in module_name:
            parameter.data.fill_(2.5)  # so that a probe without them would be seen
        elif parameter.dim() > 1:
            parameter.data.mul_(3)
    model = model.to(torch.bfloat16).eval()
    model.set_attn_implementation(attention)
    return model


def prompt(tokens=12, batch=1):
    ids = torch.randint(3, 101, (batch, tokens), generator=torch.Generator().manual_seed(5))
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


@pytest.fixture
def device():
    with cxl_kv.open("golden:trace?sessions=4") as opened:
        yield opened


def generate(model, cache, inputs=None, tokens=10):
    return model.generate(
        **(inputs or prompt()), past_key_values=cache, max_new_tokens=tokens, do_sample=False
    )


def open_sessions(device):
    return sum(
        device.registers.fields(f"s{s}_state")["open"] for s in range(device.config.sessions)
    )


# - what attention looks like ----------------------------------------------------------------------
@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_are_those_of_a_dynamic_cache(device, name):
    model = model_of(name)
    expected = generate(model, DynamicCache(config=model.config))
    with EndpointCache(device, model.config) as cache:
        assert (generate(model, cache) == expected).all()
        assert cache.get_seq_length() == 21 and len(cache.rows) == 1


@pytest.mark.parametrize("name", MODELS)
def test_a_probe_changes_no_logit(device, name):
    """Sinks take their share and soft-caps bend the scores, with the probe as without; the masses
    that are pushed are those of the model's own attention."""
    model, inputs = model_of(name), prompt(20)
    with torch.no_grad():
        plain = model(**inputs, past_key_values=DynamicCache(config=model.config))
        seen = model(**inputs, output_attentions=True).attentions
        use_probe(model)
        cache = EndpointCache(device, model.config)
        pushed = []
        cache.push = lambda layer, weights: pushed.append((layer, weights))
        probed = model(**inputs, past_key_values=cache)
    assert (probed.logits == plain.logits).all()
    if name == "deepseek-v3, latent":
        assert not pushed, "its attention sees heads that are made of what is stored"
        return
    assert [layer for layer, _ in pushed] == [0, 1]
    for layer, weights in pushed:
        assert (weights == seen[layer]).all()
    if name == "gpt-oss, with sinks":
        assert (pushed[0][1].sum(dim=-1) < 0.9).any()


def test_layers_that_use_earlier_ones_keys_take_no_room(device):
    """Gemma 3n's last two layers have none: the device has two layers, and a step ends with the
    second, with the probe and without."""
    sizes = SIZES | dict(
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=6,
        intermediate_size=[96] * 4,
        vocab_size_per_layer_input=101,
        hidden_size_per_layer_input=16,
        altup_num_inputs=2,
        laurel_rank=8,
    )
    torch.manual_seed(3)
    model = Gemma3nForCausalLM(Gemma3nTextConfig(**sizes)).to(torch.bfloat16).eval()
    expected = generate(model, DynamicCache(config=model.config))
    for change in (lambda _: None, use_probe):
        change(model)
        with EndpointCache(device, model.config) as cache:
            assert (generate(model, cache) == expected).all()
            (session,) = cache.rows
            assert session.shape.layers == 2 and session.step == 10
            assert cache.report().count("layer ") == 2


def test_a_probe_tells_the_cache_that_gave_the_keys_and_no_other(device, monkeypatch):
    model = model_of("llama")
    use_probe(model)
    told = []
    push = EndpointCache.push
    monkeypatch.setattr(
        EndpointCache, "push", lambda self, *what: (told.append(self), push(self, *what))[1]
    )
    first, second = (EndpointCache(device, model.config) for _ in range(2))
    expected = generate(model, DynamicCache(config=model.config))
    assert not told
    assert (generate(model, first) == expected).all() and set(told) == {first}
    told.clear()
    step = first.rows[0].step
    generate(model, DynamicCache(config=model.config))
    assert not told and first.rows[0].step == step
    assert (generate(model, second) == expected).all() and set(told) == {second}
    told.clear()
    first.close()
    generate(model, DynamicCache(config=model.config))
    device.close()
    assert (generate(model, DynamicCache(config=model.config)) == expected).all() and not told


def test_a_cache_that_is_not_probed_leaves_nothing_for_a_probe(device):
    """The latest keys were given to another model, of the same shape, that has no probe."""
    plain, probed = model_of("llama"), model_of("llama")
    use_probe(probed)
    cache = EndpointCache(device, plain.config)
    generate(plain, cache)
    cache.push = None  # to be called is an error
    generate(probed, DynamicCache(config=probed.config))


def test_layers_of_different_sizes_are_one_clear_line(device):
    model = model_of("llama")
    with EndpointCache(device, model.config) as cache:
        cache.update(*(torch.ones(1, 2, 3, 32, dtype=torch.bfloat16) for _ in "kv"), 0)
        with pytest.raises(
            cxl_kv.UnsupportedError,
            match="layer 1 gives 4 heads with keys of 16 .* before it were 2 of 32 and 32",
        ):
            cache.update(*(torch.ones(1, 4, 3, 16, dtype=torch.bfloat16) for _ in "kv"), 1)
        assert cache.layers[1].length == 0


def test_a_model_without_an_eager_attention_is_refused_a_probe():
    class Attention(torch.nn.Module):
        layer_idx, scaling = 0, 1.0

    Attention.__module__ = "builtins"
    with pytest.raises(cxl_kv.UnsupportedError, match="Attention has no eager_attention_forward"):
        use_probe(torch.nn.Sequential(Attention()))


# - how long a session lives -----------------------------------------------------------------------
@pytest.mark.parametrize("end", ["context", "error", "del", "cycle", "close twice"])
def test_many_requests_need_no_more_sessions_than_one(device, end):
    """Ten requests of three rows, on a device of four sessions."""
    model, inputs = model_of("llama"), prompt(batch=3)
    expected = generate(model, DynamicCache(config=model.config), inputs, 2)
    for _ in range(10):
        cache = EndpointCache(device, model.config)
        assert (generate(model, cache, inputs, 2) == expected).all()
        if end == "context":
            with cache:
                pass
        elif end == "error":
            with pytest.raises(ZeroDivisionError), cache:
                _ = 1 / 0
        elif end == "del":
            del cache
        elif end == "cycle":
            cache.itself = cache
            del cache
        else:
            cache.close()
            cache.close()
    device.open_session(cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32))
    gc.collect()
    sessions = [
        device.open_session(cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)) for _ in range(3)
    ]
    assert len(sessions) == 3 and open_sessions(device) == 4


def test_a_request_without_enough_sessions_takes_none(device):
    model = model_of("llama")
    with EndpointCache(device, model.config) as cache:
        with pytest.raises(cxl_kv.DeviceFullError, match="4 sessions"):
            generate(model, cache, prompt(batch=5))
        assert open_sessions(device) == 0
        assert generate(model, cache, prompt(batch=4)).shape[0] == 4


def test_rows_stay_as_they_are_where_a_copy_finds_no_session(device):
    model = model_of("llama")
    with EndpointCache(device, model.config) as cache:
        with torch.no_grad():
            model(**prompt(batch=2), past_key_values=cache)
        others = [device.open_session(cache.rows[0].shape) for _ in range(2)]
        before = [row.read([0, 1], stop=12)[0] for row in cache.rows]
        with pytest.raises(cxl_kv.DeviceFullError):
            cache.batch_select_indices(torch.tensor([1, 1, 1]))
        assert all(
            np.array_equal(row.read([0, 1], stop=12)[0], x)
            for row, x in zip(cache.rows, before, strict=True)
        )
        others[0].close()
        cache.batch_select_indices(torch.tensor([1, 1, 1]))
        assert all(np.array_equal(row.read([0, 1], stop=12)[0], before[1]) for row in cache.rows)
        others[1].close()


@pytest.mark.parametrize(
    "rows", [[-1, 3], [-1, -1, 0], [3], [True, False, True, False], [2, 2, 2, 1]]
)
def test_rows_are_chosen_as_a_dynamic_cache_does(device, rows):
    model, logits = model_of("llama"), []
    for cache in (DynamicCache(config=model.config), EndpointCache(device, model.config)):
        with torch.no_grad():
            model(**prompt(batch=4), past_key_values=cache)
            cache.batch_select_indices(torch.tensor(rows))
            batch = sum(rows) if rows[0] is True else len(rows)
            # The second pass sees what the first one has stored.
            for first in (7, 17):
                more = torch.arange(first, first + batch)[:, None]
                logits.append(model(input_ids=more, past_key_values=cache).logits)
    assert torch.equal(logits[0], logits[2]) and torch.equal(logits[1], logits[3])
    cache.close()


def test_rows_that_are_not_there_are_refused(device):
    model = model_of("llama")
    with EndpointCache(device, model.config) as cache, torch.no_grad():
        model(**prompt(batch=3), past_key_values=cache)
        before = list(cache.rows)
        for wrong, problem in (
            ([3], "row 3 is refused; legal: 0 … 2"),
            ([0, -4], "row -4"),
            ([True, False], "a mask of 2 for 3 rows"),
        ):
            with pytest.raises(IndexError, match=problem):
                cache.batch_select_indices(torch.tensor(wrong))
        assert cache.rows == before
        cache.batch_select_indices(torch.tensor([], dtype=torch.int64))
        with pytest.raises(ValueError, match="a batch of 1 rows for a cache of 0"):
            model(input_ids=torch.tensor([[7]]), past_key_values=cache)
        cache.reset()
        model(**prompt(batch=1), past_key_values=cache)


@pytest.mark.parametrize("failing", ["read", "write"])
def test_rows_that_a_failed_copy_has_spoiled_are_not_used(device, monkeypatch, failing):
    """Rows 2 and 3 give way, and the second copy fails: row 2 holds what row 0 does by then."""
    model = model_of("llama")
    with EndpointCache(device, model.config) as cache:
        with torch.no_grad():
            model(**prompt(batch=4), past_key_values=cache)
        plain, calls = getattr(cxl_kv.Session, failing), itertools.count(1)

        def fails(session, *arguments, **named):
            if next(calls) == 2:
                raise cxl_kv.PoisonError("planted")
            return plain(session, *arguments, **named)

        with monkeypatch.context() as patched:
            patched.setattr(cxl_kv.Session, failing, fails)
            with pytest.raises(cxl_kv.PoisonError, match="planted"):
                cache.reorder_cache(torch.tensor([0, 0, 1, 1]))
        with pytest.raises(cxl_kv.SessionClosedError), torch.no_grad():
            model(input_ids=torch.tensor([[7]] * 4), past_key_values=cache)
    assert open_sessions(device) == 0


def test_a_closed_cache_says_so(device):
    model = model_of("llama")
    cache = EndpointCache(device, model.config)
    generate(model, cache)
    cache.close()
    assert (
        cache.get_seq_length() == 0
        and open_sessions(device) == 0
        and "0 sessions" in cache.report()
    )
    with pytest.raises(cxl_kv.SessionClosedError, match="this cache was closed"):
        generate(model, cache)


@pytest.mark.parametrize("sparse", [None, Sparse()])
def test_a_cache_that_is_closed_within_a_pass_says_so(sparse):
    """As by another thread, between a layer's write and its read."""
    model = model_of("llama")
    use_sparse(model)
    with cxl_kv.open("golden:unit_select") as device, torch.no_grad():
        cache = EndpointCache(device, model.config, sparse=sparse)
        model(**prompt(6), past_key_values=cache)
        write = cache.write
        cache.write = lambda *what: (write(*what), cache.close())
        with pytest.raises(cxl_kv.SessionClosedError, match="this cache was closed"):
            model(input_ids=torch.tensor([[7]]), past_key_values=cache)


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "golden:trace"},
        {"config": None},
        {"max_tokens": 0},
        {"max_tokens": "8"},
        {"policy": "kelp"},
        {"sparse": True},
        {"device": np.zeros((40, 40))},  # what it is, not what it holds
    ],
)
def test_a_wrong_argument_is_named(device, wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} = .* is refused; legal: .*$"):
        EndpointCache(**({"device": device, "config": LlamaConfig(**SIZES)} | wrong))


def test_a_layer_does_not_outlive_its_cache(device):
    layer, states = EndpointCache(device, LlamaConfig(**SIZES)).layers[0], torch.zeros(1, 2, 1, 32)
    gc.collect()
    with pytest.raises(cxl_kv.SessionClosedError, match="the cache of this layer is gone"):
        layer.update(states.half(), states.half())


def test_a_prefix_is_shared_by_deep_copies(device):
    """As with DynamicCache: each goes on by itself."""
    model, start = model_of("gpt-oss, with sinks"), prompt(12)
    answers = []
    for make in (
        lambda: DynamicCache(config=model.config),
        lambda: EndpointCache(device, model.config),
    ):
        with torch.no_grad():
            prefix = make()
            model(**start, past_key_values=prefix)
            copies = [copy.deepcopy(prefix) for _ in range(2)]
            logits = []
            for number, cache in enumerate((*copies, prefix)):
                ids = torch.tensor([[40 + number]])
                for _ in range(3):
                    out = model(input_ids=ids, past_key_values=cache)
                    logits.append(out.logits)
            answers.append(logits)
    for ours, theirs in zip(*answers, strict=True):
        assert (ours == theirs).all()
    assert not (answers[0][2] == answers[0][5]).all()
    assert open_sessions(device) == 3
    for how in (copy.copy, pickle.dumps):
        with pytest.raises(cxl_kv.UnsupportedError, match="a cache on a device"):
            how(prefix)


def test_a_copy_that_finds_no_room_keeps_no_session(device):
    """Whoever holds its error holds the half copy, as a notebook does."""
    cache, one = EndpointCache(device, LlamaConfig(**SIZES)), torch.ones(3, 2, 4, 32).half()
    cache.update(one, one, 0)
    with pytest.raises(cxl_kv.DeviceFullError) as error:
        copy.deepcopy(cache)
    assert error.value and open_sessions(device) == 3


def test_a_close_that_is_interrupted_is_made_again(device, monkeypatch):
    """As by Ctrl-C while pages are scrubbed: no session takes its place for good."""
    cache, one = EndpointCache(device, LlamaConfig(**SIZES)), torch.ones(2, 2, 4, 32).half()
    cache.update(one, one, 0)

    def interrupted(session):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(device.transport, "close_session", interrupted)
        cache.close()
    cache.close()
    assert not open_sessions(device)


# - passes that break off -------------------------------------------------------------------------
def steps_of(model, cache, tokens):
    """Logits after each of `tokens`, as lists of one."""
    with torch.no_grad():
        return [model(input_ids=torch.tensor([t]), past_key_values=cache).logits for t in tokens]


def test_a_pass_that_meets_poison_can_be_made_again():
    """Whichever layer it is, and after a fetch that failed just once."""
    model, text, more = model_of("llama"), prompt(60)["input_ids"].tolist(), [[7], [8], [9]]
    expected = steps_of(model, DynamicCache(config=model.config), text + more)
    for fetches in range(4):
        with (
            cxl_kv.open("golden:trace?sessions=1&frames=4,4,4,4") as device,
            EndpointCache(device, model.config, policy=cxl_kv.Policy()) as cache,
        ):
            found = steps_of(model, cache, text)
            core, fetch = device.transport.core, 0
            load = core.load

            def failing(addresses, ld_id, load=load, core=core, at=fetches):
                nonlocal fetch
                if fetch == at:
                    core.fail_fetches(1)
                fetch += 1
                return load(addresses, ld_id)

            core.load = failing
            with pytest.raises(cxl_kv.PoisonError):
                for token in more:
                    found += steps_of(model, cache, [token])
            core.load = load
            assert {layer.length for layer in cache.layers} == {60 + len(found) - 1}
            found += steps_of(model, cache, more[len(found) - 1 :])
            assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_a_pass_that_broke_off_elsewhere_is_noticed(device):
    """As by a lack of memory between two layers: the next pass does not go on from half of it."""
    model, text = model_of("llama"), [[5, 6, 7], [8], [9]]
    expected = steps_of(model, DynamicCache(config=model.config), text)
    with EndpointCache(device, model.config) as cache:
        steps_of(model, cache, text[:2])

        def no_memory(*_):
            raise MemoryError

        hook = model.model.layers[1].register_forward_pre_hook(no_memory)
        with pytest.raises(MemoryError):
            steps_of(model, cache, text[2:])
        hook.remove()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"layer 1 holds 4 tokens, layer 0 5: .*crop"):
                steps_of(model, cache, text[2:])
        cache.crop(-1)
        assert cache.get_seq_length() == 4
        assert (steps_of(model, cache, text[2:])[0] == expected[2]).all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_another_type_than_before_is_refused(device, kind):
    model = model_of("llama").to(torch.float16)
    with EndpointCache(device, model.config) as cache:
        steps_of(model, cache, [[5, 6, 7]])
        before = cache.rows[0].read([0, 1], stop=3)[0]
        with pytest.raises(cxl_kv.UnsupportedError, match="one size and type"):
            steps_of(model.to(kind), cache, [[8]])
        assert cache.get_seq_length() == 3
        assert np.array_equal(cache.rows[0].read([0, 1], stop=3)[0], before)


# - how much it holds ------------------------------------------------------------------------------
def test_a_prompt_beyond_the_capacity_is_refused_before_it_starts():
    model = model_of("llama")
    with cxl_kv.open("golden:trace?sessions=4&pages=4") as device:
        holds = 4 * 16
        with EndpointCache(device, model.config) as cache:
            with pytest.raises(ValueError, match=f"{holds + 1} tokens are refused.*holds {holds} "):
                model(**prompt(holds + 1), past_key_values=cache)
            assert open_sessions(device) == 0 and device.counters()["writes"] == 0
            generate(model, cache, prompt(holds - 4), 4)
            assert cache.get_seq_length() == holds - 1
            before = cache.rows[0].read([0, 1], stop=holds)
            with pytest.raises(ValueError, match=f"{holds + 1} tokens are refused"):
                model(input_ids=torch.tensor([[5, 6]]), past_key_values=cache)
            assert cache.get_seq_length() == holds - 1
            after = cache.rows[0].read([0, 1], stop=holds)
            assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        with (
            EndpointCache(device, model.config, max_tokens=9) as cache,
            pytest.raises(ValueError, match="10 tokens are refused.*holds 9 .*max_tokens = 9"),
        ):
            model(**prompt(10), past_key_values=cache)


@pytest.mark.parametrize(
    "more",
    [
        dict(max_new_tokens=5),
        dict(max_length=65),
        dict(max_new_tokens=5, num_beams=2),
        dict(max_new_tokens=5, prefill_chunk_size=16),
        dict(max_new_tokens=5, prompt_lookup_num_tokens=2),
        dict(max_new_tokens=5, do_sample=True),
    ],
)
def test_new_tokens_beyond_the_capacity_are_refused_before_it_starts(more):
    """However they are asked for and decoded; as many as fit are made."""
    model, asked = model_of("llama"), dict(do_sample=False, **prompt(60)) | more
    beyond = {k: v + 1 if k in ("max_new_tokens", "max_length") else v for k, v in asked.items()}
    with (
        cxl_kv.open("golden:trace?sessions=4&pages=4") as device,
        EndpointCache(device, model.config) as cache,
    ):
        with pytest.raises(
            ValueError, match="may become 65 are refused.*holds 64 .*max_length by 1"
        ):
            model.generate(**beyond, past_key_values=cache)
        assert cache.get_seq_length() == 0 and open_sessions(device) == 0
        made = model.generate(**asked, past_key_values=cache)
        assert made.shape == (1, 65) and cache.get_seq_length() == 64 and cache.room == 0


@pytest.mark.parametrize("tokens", [4, 5])
def test_embeddings_count_like_tokens(tokens):
    model = model_of("llama")
    embeds = model.get_input_embeddings()(prompt(61)["input_ids"]).detach()
    with (
        cxl_kv.open("golden:trace?sessions=4&pages=4") as device,
        EndpointCache(device, model.config) as cache,
        pytest.raises(ValueError, match="61 tokens that may become 65")
        if tokens == 5
        else contextlib.nullcontext(),
    ):
        model.generate(inputs_embeds=embeds, past_key_values=cache, max_new_tokens=tokens)
        assert cache.room == 0


def test_a_next_turn_that_does_not_fit_is_refused_before_it_starts():
    """The prompt is what was said before and what is new, or what is new alone."""
    model = model_of("llama")
    with (
        cxl_kv.open("golden:trace?sessions=4&pages=4") as device,
        EndpointCache(device, model.config) as cache,
    ):
        said = generate(model, cache, prompt(40), 10)
        assert cache.room == 64 - 49
        more = torch.cat([said, torch.tensor([[7, 8]])], dim=1)
        for inputs in (
            dict(input_ids=more, attention_mask=torch.ones_like(more)),
            dict(input_ids=more[:, 49:], attention_mask=torch.ones_like(more)),
        ):
            with pytest.raises(ValueError, match="52 tokens that may become 65.*by 1"):
                generate(model, cache, inputs, 14)
            assert cache.get_seq_length() == 49
        expected = generate(model, DynamicCache(config=model.config), dict(input_ids=more), 13)
        made = generate(model, cache, dict(input_ids=more), 13)
        assert (made == expected).all() and cache.room == 0


@pytest.mark.parametrize(
    ("given", "length", "beyond", "how"),
    [
        ("all ids", 65, 1, {}),
        ("all ids", 65, 1, dict(num_beams=2)),
        ("all ids, no mask", 65, 1, {}),
        ("new ids", 16, 1, {}),  # it counts the ids that are given
        ("new ids", 16, 1, dict(num_beams=2)),
        ("new ids", 16, 1, dict(prompt_lookup_num_tokens=2)),
        ("new ids", None, 7, {}),  # twenty more, by default
        ("all embeddings", 65, 1, {}),
        ("all embeddings, new ids", 68, 1, {}),
    ],
)
def test_a_next_turn_by_its_length_alone_is_refused_where_it_would_not_fit(
    given, length, beyond, how
):
    """Without max_new_tokens; what fits is made, down to the last position."""
    model = model_of("llama")
    with (
        cxl_kv.open("golden:trace?sessions=4&pages=4") as device,
        EndpointCache(device, model.config) as cache,
    ):
        said = model.generate(
            **prompt(40), past_key_values=cache, max_new_tokens=10, do_sample=False, **how
        )
        more = torch.cat([said, torch.tensor([[7, 8]])], dim=1)
        mask, embeds = torch.ones_like(more), model.get_input_embeddings()(more).detach()
        inputs = {
            "all ids": dict(input_ids=more, attention_mask=mask),
            "all ids, no mask": dict(input_ids=more),
            "new ids": dict(input_ids=more[:, 49:], attention_mask=mask),
            "all embeddings": dict(inputs_embeds=embeds),
            "all embeddings, new ids": dict(
                inputs=more[:, 49:], inputs_embeds=embeds, attention_mask=mask
            ),
        }[given]
        asked = inputs | how | dict(past_key_values=cache, do_sample=False)
        too_much = {} if length is None else dict(max_length=length + beyond)
        with pytest.raises(ValueError, match=f"may become {64 + beyond} are.*by {beyond},"):
            model.generate(**asked, **too_much)
        assert cache.get_seq_length() == 49
        if length is not None:
            model.generate(**asked, max_length=length)
            assert cache.room == 0


def test_a_loop_of_ones_own_that_comes_to_the_end_has_lost_nothing():
    """Nobody has said how much is to come: the pass that does not fit is refused, the cache stays
    as it was, and what it holds goes on once there is room."""
    model = model_of("llama")
    expected = generate(model, DynamicCache(config=model.config), prompt(60), 5)
    with (
        cxl_kv.open("golden:trace?sessions=4&pages=4") as device,
        EndpointCache(device, model.config) as cache,
        torch.no_grad(),
    ):
        tokens, inputs = prompt(60)["input_ids"], prompt(60)
        with pytest.raises(ValueError, match=r"65 tokens are refused.*crop\(-n\) and reset\(\)"):
            while True:
                logits = model(**inputs, past_key_values=cache).logits
                tokens = torch.cat([tokens, logits[:, -1:].argmax(dim=-1)], dim=1)
                inputs = dict(input_ids=tokens[:, -1:])
        assert (tokens == expected).all() and cache.room == 0
        assert {layer.length for layer in cache.layers} == {64}
        cache.crop(-3)
        logits = model(input_ids=tokens[:, 61:64], past_key_values=cache).logits
        assert (logits[:, -1].argmax(dim=-1) == tokens[:, -1]).all() and cache.room == 0
        cache.crop(-4)
        cache.expect(66)
        with pytest.raises(ValueError, match="61 tokens that may become 66"):
            model(input_ids=tokens[:, 60:61], past_key_values=cache)
        model(input_ids=tokens[:, 60:61], past_key_values=cache)  # it has been told once


@pytest.mark.parametrize("wrong", [-1, 1.5])
def test_what_is_expected_is_a_number(device, wrong):
    with (
        EndpointCache(device, model_of("llama").config) as cache,
        pytest.raises(ValueError, match=f"length = {wrong} is refused"),
    ):
        cache.expect(wrong)


def test_what_is_expected_is_of_the_next_pass_of_this_request():
    """Not of one behind a reset; of two before a pass the later one counts; and a closed cache
    expects nothing."""
    model = model_of("llama")
    with cxl_kv.open("golden:trace?sessions=4&pages=4") as device, torch.no_grad():
        cache = EndpointCache(device, model.config)
        cache.expect(66)
        cache.reset()
        model(**prompt(60), past_key_values=cache)
        cache.reset()
        cache.expect(66)
        cache.expect(61)
        model(**prompt(60), past_key_values=cache)
        cache.close()
        for call in (
            lambda: cache.expect(61),
            lambda: cache.reorder_cache(torch.zeros(0, dtype=torch.long)),
            lambda: cache.batch_repeat_interleave(2),
            lambda: cache.batch_select_indices(torch.zeros(0, dtype=torch.long)),
        ):
            with pytest.raises(cxl_kv.SessionClosedError, match="this cache was closed"):
                call()


# - any sequence of operations ---------------------------------------------------------------------
def states(rng, batch, tokens):
    """Keys or values, as projections, slices and expansions leave them in memory."""
    layout = rng.choice(["sliced", "dense", "expanded", "transposed"])
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if layout == "transposed":
        return (
            torch.randn(batch, 2, 35, tokens, generator=generator).half()[:, :, 3:].transpose(2, 3)
        )
    found = torch.randn(batch, tokens, 2, 35, generator=generator).half()[..., 3:].transpose(1, 2)
    if layout == "expanded":
        return found[:, :1].expand(-1, 2, -1, -1)
    return found.contiguous() if layout == "dense" else found


def rows_of(rng, what, batch):
    """Arguments of a cache's method that moves rows, and the rows there are then."""
    if what == "batch_repeat_interleave":
        return 2, 2 * batch
    first, count = (0, batch) if what == "reorder_cache" else (-batch, rng.choice([1, 2, 4]))
    return torch.tensor([rng.randrange(first, batch) for _ in range(count)]), count


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(
    "url",
    ["golden:trace?sessions=16&frames=16,4,4,4", "dax:{}/memory?config=trace&create=1&sessions=16"],
)
def test_after_any_sequence_of_operations_a_cache_holds_what_a_dynamic_one_does(
    tmp_path, url, window, seed=1
):
    """Under pressure, too; passes that are refused, and copies of which one is closed, leave no
    trace."""
    rng, config = random.Random(seed), MistralConfig(**SIZES, sliding_window=window)
    moves = ["reorder_cache", "batch_repeat_interleave", "batch_select_indices"]
    with cxl_kv.open(url.format(tmp_path)) as device:
        theirs, ours = DynamicCache(config=config), EndpointCache(device, config)
        batch = 2
        for _ in range(60):
            what, length = (
                rng.choice([*["update"] * 4, *moves, "crop", "copy", "reset"]),
                ours.get_seq_length(),
            )
            if what == "update" or not length:
                tokens = rng.choice([1, 1, 2, 17])
                if length:
                    with pytest.raises(ValueError, match="a batch of"):
                        ours.update(*(states(rng, batch + 1, 1) for _ in "kv"), 0)
                for layer in range(2 * (length + tokens <= 110)):
                    k, v = (states(rng, batch, tokens) for _ in "kv")
                    wanted, found = theirs.update(k, v, layer), ours.update(k, v, layer)
                    assert all(map(torch.equal, wanted, found))
            elif what in moves and (what != moves[1] or batch <= 2):
                argument, batch = rows_of(rng, what, batch)
                for cache in (theirs, ours):
                    getattr(cache, what)(argument)
            elif what == "crop" and not window:
                for cache in (theirs, ours):
                    cache.crop(-(length // 3))
            elif what == "copy":
                kept = [ours, copy.deepcopy(ours)]
                rng.shuffle(kept)
                kept.pop().close()
                (ours,) = kept
            elif what == "reset":
                ours.reset()
                theirs, batch = DynamicCache(config=config), rng.choice([1, 2, 3])
            assert ours.get_seq_length() == theirs.get_seq_length()
