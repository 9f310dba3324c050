# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""vLLM's own scheduler, block pool and connector factory with a KELP device behind them; only the
forward pass is stood in for, by a function of the tokens."""

import contextlib
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from cxl_kv.connectors.vllm_connector import Key, Moves

BLOCK, BLOCKS, LAYERS, HEADS, DIM = 16, 24, 2, 2, 32
MODEL = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=HEADS,
    head_dim=DIM,
    vocab_size=128,
    max_position_embeddings=512,
    torch_dtype="bfloat16",
    eos_token_id=2,
    bos_token_id=1,
)


class Engine:
    """vLLM's engine loop in short: schedule, load, compute, store, report."""

    def __init__(
        self,
        folder,
        url="golden:trace?frames=64,16,16,16",
        policy="recompute",
        kernel_blocks=1,
        window=None,
        **extra,
    ):
        (folder / "config.json").write_text(json.dumps(MODEL))
        transfer = KVTransferConfig(
            kv_connector="CxlConnector",
            kv_connector_module_path="cxl_kv.connectors.vllm_connector",
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            kv_connector_extra_config={"url": url, **extra},
        )
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        cache.num_gpu_blocks = BLOCKS
        self.config = VllmConfig(
            model_config=ModelConfig(
                model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True
            ),
            cache_config=cache,
            scheduler_config=SchedulerConfig(
                max_num_seqs=4,
                max_num_batched_tokens=64,
                max_model_len=256,
                is_encoder_decoder=False,
            ),
            kv_transfer_config=transfer,
            device_config=DeviceConfig("cpu"),
        )
        names = [f"layer.{i}" for i in range(LAYERS)]
        sizes = dict(block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16)
        groups = [KVCacheGroupSpec(names, FullAttentionSpec(**sizes))]
        if window:  # the last layer's, in a group of its own
            groups = [
                KVCacheGroupSpec(names[:-1], FullAttentionSpec(**sizes)),
                KVCacheGroupSpec(names[-1:], SlidingWindowSpec(**sizes, sliding_window=window)),
            ]
        self.window = window
        self.groups = [int(bool(window) and i == LAYERS - 1) for i in range(LAYERS)]  # by layer
        self.kv_config = KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups
        )
        self.scheduler = Scheduler(
            self.config, self.kv_config, StructuredOutputManager(self.config), block_size=BLOCK
        )
        self.worker = KVConnectorFactory.create_connector(
            self.config, KVConnectorRole.WORKER, self.kv_config
        )
        self.kernel_block = BLOCK // kernel_blocks  # tokens
        rows = BLOCKS * kernel_blocks
        self.caches = {
            name: torch.zeros(rows, HEADS, self.kernel_block, 2 * DIM, dtype=torch.bfloat16)
            for name in names
        }
        self.worker.register_kv_caches(self.caches)
        self.requests: dict[str, Request] = {}
        self.tables: dict[str, list[list[int]]] = {}  # of each group
        self.computed = 0  # tokens that forward passes were given
        self.failed_requests: set[str] = set()  # of loads beside the passes

    def close(self):
        self.worker.shutdown()
        self.scheduler.shutdown()

    def add(self, name, tokens, salt=None):
        init_none_hash(sha256)
        request = Request(
            name,
            list(tokens),
            SamplingParams(max_tokens=3, ignore_eos=True),
            None,
            cache_salt=salt,
            block_hasher=get_request_block_hasher(BLOCK, sha256),
        )
        self.requests[name] = request
        self.scheduler.add_request(request)
        return request

    def right(self, name, position, layer):
        """What a layer's cache must hold at a position: a function of every token up to it, as
        attention is."""
        seed = hash(tuple(self.requests[name].all_token_ids[: position + 1])) & 0x7FFFFFFF
        rng = np.random.default_rng([seed, layer])
        return torch.from_numpy(rng.standard_normal((HEADS, 2 * DIM)).astype(np.float32)).to(
            torch.bfloat16
        )

    def place(self, name, position, layer):
        """Of a position in a layer's cache, as the kernel numbers its blocks."""
        table, within = self.tables[name][self.groups[layer]], position % BLOCK
        row, token = divmod(table[position // BLOCK] * BLOCK + within, self.kernel_block)
        return row, slice(None), token

    def check(self, name, start, layer):
        """Whether a layer's cache holds what the pass from position `start` on must read there."""
        first = max(0, start - self.window + 1) if self.groups[layer] else 0
        cache = self.caches[f"layer.{layer}"]
        return all(
            torch.equal(cache[self.place(name, p, layer)], self.right(name, p, layer))
            for p in range(first, start)
        )

    def step(self):
        """One pass, as vLLM's runner makes it; the load errors that it had."""
        out = self.scheduler.schedule()
        for r in out.scheduled_new_reqs:
            self.tables[r.req_id] = [list(ids) for ids in r.block_ids]
        cached = out.scheduled_cached_reqs
        for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            afresh = name in cached.resumed_req_ids
            for table, more in zip(self.tables[name], ids or (), strict=bool(ids)):
                table[:] = list(more) if afresh else table + list(more)
        starts = {r.req_id: r.num_computed_tokens for r in out.scheduled_new_reqs} | dict(
            zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        )
        self.worker.bind_connector_metadata(out.kv_connector_metadata)
        if out.has_sync_kv_loads:
            self.worker.start_load_kv(None)
        names, astray = list(out.num_scheduled_tokens), set()
        for i in range(LAYERS if names else 0):
            self.worker.wait_for_layer_load(f"layer.{i}")
            for name in names:
                start, count = starts[name], out.num_scheduled_tokens[name]
                if not self.check(name, start, i):
                    astray.add(name)
                for position in range(start, start + count):
                    # What is computed from a lost block is wrong, and must not be kept.
                    value = (
                        self.right(name, position, i)
                        if name not in astray
                        else torch.full((HEADS, 2 * DIM), 99.0, dtype=torch.bfloat16)
                    )
                    self.caches[f"layer.{i}"][self.place(name, position, i)] = value
            self.worker.save_kv_layer(f"layer.{i}", self.caches[f"layer.{i}"], None)
        sampled = []
        for name in names:
            self.computed += out.num_scheduled_tokens[name]
            done = starts[name] + out.num_scheduled_tokens[name]
            sampled.append([7] if done >= self.requests[name].num_tokens else [])
        if not out.has_sync_kv_loads:
            self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(out.finished_req_ids)
        self.failed_requests |= results.failed_recving
        output = KVConnectorOutput(
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
        )
        for name in astray:
            assert output.invalid_block_ids & set(self.tables[name][0]), (
                f"{name} attended to something else than its own tokens"
            )
        self.worker.clear_connector_metadata()
        self.scheduler.update_from_output(
            out,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=sampled,
                kv_connector_output=output,
            ),
        )
        if not names:
            time.sleep(0.005)  # requests wait for the thread that loads
        return output.invalid_block_ids

    def run(self):
        """To the end of every request; the passes' load errors."""
        errors = []
        for _ in range(2000):
            if not self.scheduler.has_unfinished_requests():
                return errors
            errors.append(self.step())
        raise AssertionError("requests did not end")

    def forget(self):
        """vLLM's own prefix cache is emptied, and its memory overwritten: what is found from here
        on came from the device."""
        assert self.scheduler.kv_cache_manager.reset_prefix_cache()
        for cache in self.caches.values():
            cache.fill_(55.0)


@pytest.mark.parametrize("name", ["vllm_connector", "vllm_tier"])
def test_the_configuration_file_is_one_of_vllms(name):
    """vLLM's own class takes each file whole, and its factory finds the connector."""
    file = Path(__file__).resolve().parents[2] / "examples" / "configs" / f"{name}.json"
    config = KVTransferConfig(**json.loads(file.read_text()))
    found = KVConnectorFactory.get_connector_class(config)
    assert found.__name__ == config.kv_connector and config.is_kv_transfer_instance


def test_the_connector_runs_as_its_file_says(tmp_path):
    """All but the URL, which is that of another device here."""
    file = Path(__file__).resolve().parents[2] / "examples" / "configs" / "vllm_connector.json"
    config = json.loads(file.read_text())
    extra = config["kv_connector_extra_config"] | {"url": "golden:trace"}
    policy = config["kv_load_failure_policy"]
    with contextlib.closing(Engine(tmp_path, policy=policy, **extra)) as engine:
        engine.add("first", prompt(1))
        assert not any(engine.run()) and engine.worker.store.keys()


@pytest.fixture
def engine(tmp_path, request):
    with contextlib.closing(Engine(tmp_path, **getattr(request, "param", {}))) as made:
        yield made


def prompt(seed, tokens=70):
    return np.random.default_rng(seed).integers(3, 128, tokens).tolist()


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"kernel_blocks": 2},
        {"kernel_blocks": 4},
        {"load_async": True},
        {"window": 40},
        {"window": 20, "kernel_blocks": 2},
    ],
    indirect=True,
    ids=str,
)
def test_a_prefix_comes_back_from_the_device(engine):
    """Four whole blocks of the prompt are loaded, not computed; what attention reads is right in
    every pass. Also where the kernel cuts each block into several of its own, where requests wait
    for their loads beside the passes, and with a sliding window in a group of its own."""
    engine.add("first", prompt(1))
    assert not any(engine.run()) and engine.computed == 70 + 2
    engine.forget()
    engine.add("second", prompt(1))
    assert not any(engine.run()) and engine.computed == 72 + 6 + 2
    engine.forget()
    engine.add("branch", prompt(1)[:40] + prompt(2))
    assert not any(engine.run()) and engine.computed == 80 + (110 - 32) + 2
    engine.forget()
    engine.add("other tenant", prompt(1), salt="ben")
    assert not any(engine.run()) and engine.computed == 160 + 72, "a salt's blocks are no other's"


def test_poison_is_a_load_error_and_the_request_recomputes(engine):
    """Blocks beyond the device's frames are cold, and two fetches fail: the scheduler computes from
    the first lost block on, and the request ends well."""
    for seed in range(6):
        engine.add(f"fill {seed}", prompt(seed))
        assert not any(engine.run())
    engine.forget()
    before = engine.computed
    engine.worker.device.transport.core.fail_fetches(2)
    longer = prompt(0) + prompt(9)[:40]  # the pass that fails fills two more blocks, wrongly
    request = engine.add("again", longer)
    errors = engine.run()
    assert 1 <= len(errors[0]) <= 2 and not any(errors[1:])
    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED and request.num_output_tokens == 3
    assert engine.computed - before > 46 + 2, "what was lost is computed anew"
    lost = engine.worker.store.lost
    engine.forget()
    before = engine.computed
    engine.add("third", longer)
    assert lost and not any(engine.run()) and engine.computed - before == 110 - 96 + 2, (
        "and is on the device again, as the right pass had it"
    )


@pytest.mark.parametrize("engine", [{"load_async": True}, {"window": 40}], indirect=True, ids=str)
def test_poison_beside_the_passes_is_a_load_error_too(engine):
    """Of one group by its blocks, of several by the request, which starts over."""
    for seed in range(6):
        engine.add(f"fill {seed}", prompt(seed))
        assert not any(engine.run())
    engine.forget()
    engine.worker.device.transport.core.fail_fetches(1)
    before = engine.computed
    request = engine.add("again", prompt(0))
    errors = engine.run()
    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED and request.num_output_tokens == 3
    assert engine.worker.store.lost and engine.computed - before > 6 + 2
    if engine.window:
        assert not any(errors) and engine.failed_requests == {"again"}
    else:
        assert sum(map(len, errors)) == 1 and not engine.failed_requests


@pytest.mark.parametrize("engine", [{"policy": "fail"}], indirect=True)
def test_poison_ends_the_request_where_that_is_the_policy(engine):
    for seed in range(6):
        engine.add(f"fill {seed}", prompt(seed))
        engine.run()
    engine.forget()
    engine.worker.device.transport.core.fail_fetches(1)
    request = engine.add("again", prompt(0))
    other = engine.add("unharmed", prompt(77))
    engine.run()
    assert (
        request.status == RequestStatus.FINISHED_ERROR
        and other.status == RequestStatus.FINISHED_LENGTH_CAPPED
    )


@pytest.mark.parametrize("engine", [{"blocks": 5}], indirect=True)
def test_what_gave_way_is_not_promised(engine):
    """Five blocks for eight: the scheduler knows which are left, and no load fails."""
    for seed in (1, 2):
        engine.add(f"fill {seed}", prompt(seed))
        engine.run()
    engine.forget()
    before = engine.computed
    engine.add("kept", prompt(2))
    assert not any(engine.run()) and engine.computed - before == 6 + 2
    engine.forget()
    before = engine.computed
    engine.add("gone", prompt(1))
    assert (
        not any(engine.run()) and engine.computed - before == 70 + 2 and engine.worker.store.evicted
    )


def test_a_server_that_dies_is_a_load_error(tmp_path):
    from cxl_kv.serving.server import Server
    from cxl_kv.url import make_core

    server = Server(make_core("golden:trace"))
    url = server.listen(f"unix:{tmp_path}/kelp.sock")
    with contextlib.closing(Engine(tmp_path, url=url)) as engine:
        engine.add("first", prompt(1))
        engine.run()
        engine.forget()
        server.close()
        request = engine.add("second", prompt(1))
        errors = engine.run()
        assert (
            len(errors[0]) == 4
            and request.status == RequestStatus.FINISHED_LENGTH_CAPPED
            and engine.computed == 72 + 6 + 70 + 2
        )


def test_bad_settings_are_named(tmp_path):
    for extra, problem in (({"url": None}, "url"), ({"colour": 1}, "colour")):
        with pytest.raises(ValueError, match=problem):
            Engine(tmp_path, **extra)


def test_a_block_goes_to_its_own_place_and_no_other(engine):
    """Two kernel blocks each: block 5 is stored and loaded into block 3; all other bytes stay."""
    connector = engine.worker
    cache = {f"layer.{i}": torch.zeros(2 * BLOCKS, HEADS, 8, 2 * DIM) for i in range(LAYERS)}
    for number, layer in enumerate(cache.values()):
        layer[:] = torch.arange(2 * BLOCKS)[:, None, None, None] + 100 * number
    connector.shutdown()
    connector.register_kv_caches(cache)
    moved = {name: layer.clone() for name, layer in cache.items()}
    for layer in moved.values():
        layer[6:8] = layer[10:12]
    key = Key(0, b"key")
    connector.bind_connector_metadata(Moves(stores=[(key, 5)]))
    connector.wait_for_save()
    connector.bind_connector_metadata(Moves(loads=[(key, 3)]))
    connector.start_load_kv(None)
    assert not connector.get_block_ids_with_load_errors()
    assert all(torch.equal(cache[name], moved[name]) for name in cache)


def test_every_block_that_waits_for_a_lost_key_is_named(engine):
    """Two requests of one pass may want the same prefix, each in a block of its own."""
    connector, gone = engine.worker, Key(0, b"never stored")
    connector.bind_connector_metadata(Moves(loads=[(gone, 3), (gone, 7)]))
    connector.start_load_kv(None)
    assert connector.get_block_ids_with_load_errors() == {3, 7}


def test_a_load_that_breaks_is_lost_as_a_whole(engine, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    connector, key = engine.worker, Key(0, b"key")
    connector.bind_connector_metadata(Moves(stores=[(key, 5)]))
    connector.wait_for_save()
    monkeypatch.setattr(connector.store, "get_many", broken)
    connector.bind_connector_metadata(Moves(loads=[(key, 3)]))
    connector.start_load_kv(None)
    assert connector.get_block_ids_with_load_errors() == {3}


def test_layers_are_loaded_and_saved_one_by_one(engine):
    """Layer 0 is in its cache while layer 1 is still on its way; what save_kv_layer was given is
    stored, not what a later layer's kernel leaves there."""
    connector, core = engine.worker, engine.worker.device.transport.core
    for i, cache in enumerate(engine.caches.values()):
        cache[4] = 1 + i
    keys = [Key(0, b"one"), Key(0, b"two")]
    connector.bind_connector_metadata(Moves(stores=[(keys[0], 4), (keys[1], 5)]))
    for name, cache in engine.caches.items():
        connector.save_kv_layer(name, cache, None)
        cache.fill_(55.0)
    connector.wait_for_save()
    load, calls, second = core.load, [], threading.Event()

    def gated(*arguments):
        calls.append(arguments)
        assert len(calls) == 1 or second.wait(60)
        return load(*arguments)

    core.load = gated
    connector.bind_connector_metadata(Moves(loads=[(keys[0], 7), (keys[1], 8)]))
    connector.start_load_kv(None)
    connector.wait_for_layer_load("layer.0")
    assert (engine.caches["layer.0"][7] == 1).all() and (engine.caches["layer.1"][7] == 55).all()
    second.set()
    connector.wait_for_layer_load("layer.1")
    assert (engine.caches["layer.1"][7] == 2).all()
    assert not connector.get_block_ids_with_load_errors()
    assert len(calls) == LAYERS, "all blocks of a layer by one call"


def test_a_cache_whose_rows_are_no_blocks_is_refused(engine):
    engine.worker.shutdown()
    with pytest.raises(ValueError, match="layer.0 has 2 rows for 24 blocks"):
        engine.worker.register_kv_caches({"layer.0": torch.zeros(2, BLOCKS, HEADS, BLOCK, DIM)})
