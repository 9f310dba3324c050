# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The connector below vLLM's own scheduler (`vllm_engine`)."""

import contextlib
import json
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import RequestStatus
from vllm_engine import BLOCK, BLOCKS, DIM, HEADS, LAYERS, Engine, prompt

import cxl_kv
from cxl_kv.connectors.vllm_connector import Key, Moves, News


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
        assert not engine.scheduler.requires_kv_delivery, "a preempted request need not start over"


@pytest.fixture
def engine(tmp_path, request):
    with contextlib.closing(Engine(tmp_path, **getattr(request, "param", {}))) as made:
        yield made


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"kernel_blocks": 2},
        {"kernel_blocks": 4},
        {"load_async": True},
        {"window": 40},
        {"window": 20, "kernel_blocks": 2},
        {"window": (20, LAYERS)},
        {"workers": 2},
        {"overlap": 2},
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


@pytest.mark.parametrize(
    "engine",
    [{"load_async": True}, {"window": 40}, {"window": (20, LAYERS)}],
    indirect=True,
    ids=str,
)
def test_poison_beside_the_passes_is_a_load_error_too(engine):
    """Of one group by its blocks; of several, or of a window, by the request, which starts over."""
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
        engine.forget()
        engine.add("third", prompt(1))
        assert not any(engine.run()), "nobody is told of blocks that cannot be loaded"


def test_bad_settings_are_named(tmp_path):
    wrong = ({"url": None}, "url"), ({"colour": 1}, "colour"), ({"load_async": "no"}, "load_async")
    for extra, problem in wrong:
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


def test_caches_that_are_registered_again_leave_no_device_open(engine):
    before = engine.worker.device
    caches = [torch.zeros(BLOCKS, HEADS, BLOCK, DIM) for _ in range(LAYERS)]
    engine.worker.register_kv_caches({f"layer.{i}": cache for i, cache in enumerate(caches)})
    assert engine.worker.device is not before
    with pytest.raises(cxl_kv.TransportError, match="was closed"):
        before.transport.load(np.zeros(1, np.uint64))


def test_what_is_lost_as_soon_as_it_is_stored_is_not_promised(engine):
    """As by a load beside the pass, before the pass's news leaves."""
    connector, keys = engine.worker, [Key(0, b"one"), Key(0, b"two")]
    connector.bind_connector_metadata(Moves(number=1, stores=[(keys[0], 4), (keys[1], 5)]))
    connector.wait_for_save()
    connector.store._lose(keys[0])
    news = connector.build_connector_worker_meta()
    assert news.lost == {keys[0]} and news.stored == {1: {keys[1]: {0}}}


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


def gated(core):
    """A device's loads, counted; all but the first wait for the event."""
    load, calls, second = core.load, [], threading.Event()

    def gate(*arguments):
        calls.append(arguments)
        assert len(calls) == 1 or second.wait(60)
        return load(*arguments)

    core.load = gate
    return calls, second


def test_layers_are_loaded_and_saved_one_by_one(engine):
    """Layer 0 is in its cache while layer 1 is still on its way; what save_kv_layer was given is
    stored, not what a later layer's kernel leaves there."""
    connector, core = engine.worker, engine.worker.device.transport.core
    for i, cache in enumerate(engine.caches.values()):
        cache[4] = 1 + i
    keys = [Key(0, b"one"), Key(0, b"two")]
    connector.bind_connector_metadata(Moves(stores=[(keys[0], 4), (keys[1], 5)]))
    for name, cache in engine.caches.items():
        connector.wait_for_layer_load(name)
        connector.save_kv_layer(name, cache, None)
        cache.fill_(55.0)
    connector.wait_for_save()
    calls, second = gated(core)
    connector.bind_connector_metadata(Moves(loads=[(keys[0], 7), (keys[1], 8)]))
    connector.start_load_kv(None)
    connector.wait_for_layer_load("layer.0")
    assert (engine.caches["layer.0"][7] == 1).all() and (engine.caches["layer.1"][7] == 55).all()
    second.set()
    connector.wait_for_layer_load("layer.1")
    assert (engine.caches["layer.1"][7] == 2).all()
    assert not connector.get_block_ids_with_load_errors()
    assert len(calls) == LAYERS, "all blocks of a layer by one call"


def test_what_no_layer_waits_for_is_there_before_the_pass(engine):
    """An indexer's keys, as DeepSeek-V3.2's, are read before the attention beside them waits; here
    the last layer's cache is such a one, and the first layer's is still to come."""
    connector, core = engine.worker, engine.worker.device.transport.core
    for i, cache in enumerate(engine.caches.values()):
        cache[4] = 1 + i
    key = Key(0, b"key")
    connector.bind_connector_metadata(Moves(stores=[(key, 4)]))
    connector.wait_for_layer_load("layer.0")
    connector.wait_for_save()
    _, second = gated(core)
    connector.bind_connector_metadata(Moves(loads=[(key, 7)]))
    connector.start_load_kv(None)
    assert (engine.caches["layer.1"][7] == 2).all() and (engine.caches["layer.0"][7] == 0).all()
    second.set()
    connector.wait_for_layer_load("layer.0")
    assert (engine.caches["layer.0"][7] == 1).all()
    assert not connector.get_block_ids_with_load_errors()


SIZES = dict(block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16)
DENSE = FullAttentionSpec(**SIZES)
STATE = MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,))


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (CircularBufferSpec(**SIZES), "CircularBufferSpec of 16"),
        (STATE, "MambaSpec of 16"),
        (
            UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs={"layer.1": STATE}),
            "MambaSpec of 16",
        ),
        (FullAttentionSpec(**(SIZES | {"block_size": 32})), "FullAttentionSpec of 32"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_group_whose_blocks_are_not_of_their_tokens_is_refused(engine, spec, kind):
    """Also a ring of the newest tokens that calls itself attention's and of the others' block size,
    as Step 5's: its one block is not what it was when the tokens of a hash had just come."""
    groups = [KVCacheGroupSpec(["layer.0"], DENSE), KVCacheGroupSpec(["layer.1"], spec)]
    config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    with pytest.raises(ValueError, match=f"FullAttentionSpec of 16, {kind}, .* refused; legal"):
        KVConnectorFactory.create_connector(engine.config, KVConnectorRole.WORKER, config)


def test_a_group_that_is_not_to_be_transferred_is_refused(engine):
    groups = [KVCacheGroupSpec(["layer.0", "layer.1"], DENSE, enable_kv_transfer=False)]
    config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    with pytest.raises(ValueError, match="FullAttentionSpec of 16, .* refused; legal"):
        KVConnectorFactory.create_connector(engine.config, KVConnectorRole.WORKER, config)


@pytest.mark.parametrize(
    "engine", [{"generated": 4, "memory": 18, "blocks": 24}], indirect=True, ids=str
)
def test_blocks_that_vllm_took_back_are_not_stored_again(engine):
    """A request has generated more than it sees of that, others have its blocks, and the device
    has kept none of them, when another one's load fails."""
    engine.add("long", prompt(50, 16), most=80)
    for _ in range(50):
        engine.step()
    for seed in range(4):
        engine.add(f"fill {seed}", prompt(seed, 100), most=1)
        for _ in range(3):
            engine.step()
    engine.worker.device.transport.core.fail_fetches(2)
    engine.add("again", prompt(0, 100), most=1)
    engine.run()
    assert engine.worker.store.lost and engine.stored()


def test_a_cache_whose_rows_are_no_blocks_is_refused(engine):
    engine.worker.shutdown()
    with pytest.raises(ValueError, match="layer.0 has 2 rows for 24 blocks"):
        engine.worker.register_kv_caches({"layer.0": torch.zeros(2, BLOCKS, HEADS, BLOCK, DIM)})


@pytest.mark.parametrize(
    "engine", [{}, {"load_async": True}, {"window": 40}, {"overlap": 2}], indirect=True, ids=str
)
def test_a_load_begins_behind_what_vllm_has_itself(engine):
    """Two blocks are in vLLM's own cache, and two more on the device: these are loaded, each into
    its own place."""
    engine.add("first", prompt(1))
    assert not any(engine.run())
    engine.forget()
    engine.add("short", prompt(1)[:33])
    assert not any(engine.run())
    before = engine.computed
    engine.add("long", prompt(1))
    assert not any(engine.run()) and engine.computed - before == 6 + 2


@pytest.mark.parametrize(
    "engine", [{"workers": 2}, {"workers": 2, "late_save": True}], indirect=True, ids=str
)
def test_what_another_workers_lost_block_has_spoiled_is_forgotten(engine):
    """One worker loses a block, and what both compute is wrong: the other, whose loads went well,
    must not have it for later. The lost block, which that one still has, is found again, too."""
    for seed in range(6):
        engine.add(f"fill {seed}", prompt(seed))
        assert not any(engine.run())
    engine.forget()
    engine.workers[1].device.transport.core.fail_fetches(1)
    longer = prompt(0) + prompt(9)[:40]
    engine.add("again", longer)
    assert any(engine.run()) and engine.workers[1].store.lost
    engine.stored()
    engine.forget()
    before = engine.computed
    engine.add("third", longer)
    assert not any(engine.run()) and engine.computed - before == 110 - 96 + 2


@pytest.mark.parametrize("engine", [{}, {"workers": 2}], indirect=True, ids=str)
def test_a_reset_forgets_what_older_weights_have_computed(engine):
    engine.add("first", prompt(1))
    engine.run()
    engine.forget()
    engine.add("running", prompt(2), most=40)
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.weights += 1
    before = engine.computed
    engine.add("second", prompt(1))
    assert not any(engine.run()) and engine.computed - before == 70 + 39 + 70 + 2
    engine.forget()
    engine.add("third", prompt(2))
    assert not any(engine.run()) and engine.stored() >= 8


@pytest.mark.parametrize("engine", [{"overlap": 2}], indirect=True)
def test_a_reset_counts_nothing_that_is_under_way(engine):
    engine.add("first", prompt(1)[:50], most=1)
    engine.step()
    assert engine.scheduler.reset_connector_cache()
    engine.run()
    engine.forget()
    engine.add("second", prompt(1)[:50])
    assert not any(engine.run())


@pytest.mark.parametrize("engine", [{}, {"load_async": True}, {"window": 40}], indirect=True)
def test_who_goes_on_through_a_reset_stores_nothing(engine):
    """What it has computed is of the weights of before, and so is what that made of later tokens;
    one that starts over counts again."""
    for name in ("running", "preempted"):
        engine.add(name, prompt(len(name)), most=20)
        engine.step()
    assert engine.scheduler.reset_connector_cache()
    request = engine.scheduler.running.pop()
    engine.scheduler._preempt_request(request, 0.0)
    engine.run()
    again = set(engine.requests["preempted"].block_hashes)
    assert engine.stored() and {key.tokens for key in engine.worker.store.keys()} <= again


@pytest.mark.parametrize("engine", [{"overlap": 2}], indirect=True)
def test_nobody_shares_a_block_whose_load_may_fail(engine):
    """Where a pass is scheduled before the outcome of the last one is known, a request that shares
    a prefix with one that is loading it does not count on that."""
    for seed in range(6):
        engine.add(f"fill {seed}", prompt(seed))
        assert not any(engine.run())
    engine.forget()
    engine.worker.device.transport.core.fail_fetches(2)
    engine.add("again", prompt(0))
    engine.step()
    engine.add("sharing", prompt(0))
    assert any(engine.run()) and engine.stored()


@pytest.mark.parametrize("engine", [{"blocks": 2}], indirect=True)
def test_what_gave_way_is_not_stored_in_every_pass(engine, monkeypatch):
    """A request of more blocks than the device keeps offers each of them once."""
    put_many, stored = engine.worker.store.put_many, []
    monkeypatch.setattr(
        engine.worker.store, "put_many", lambda items: (stored.extend(items), put_many(items))[1]
    )
    engine.add("long", prompt(1), most=30)
    engine.run()
    assert len(stored) == (70 + 30) // BLOCK


def test_a_pass_may_be_told_of_late():
    """A worker's stores count for the pass that they are of, whichever news they come with."""
    one = News(stored={3: {Key(0, b"a"): {0}}}, lost={Key(0, b"z")}, spoiled=4)
    two = News(stored={3: {Key(0, b"a"): {1}, Key(0, b"b"): {1}}})
    both = one.aggregate(two)
    assert both.stored == {3: {Key(0, b"a"): {0, 1}, Key(0, b"b"): {1}}}
    assert (both.lost, both.spoiled) == (one.lost, 4) and one.stored[3][Key(0, b"a")] == {0}


STORMS = [
    {},
    {"workers": 2},
    {"workers": 2, "overlap": 2, "late_save": True},
    {"load_async": True, "memory": 14},
    {"window": 40, "workers": 2},
    {"window": (20, LAYERS), "memory": 14},
    {"generated": 2, "memory": 14},
    {"kernel_blocks": 2, "memory": 16, "blocks": 12, "overlap": 2},
]


@pytest.mark.parametrize("engine", STORMS, indirect=True, ids=str)
def test_in_a_storm_nothing_wrong_is_computed_or_kept(engine, seed=1):
    """Prefixes shared in every length, little memory, aborted requests, fetches that fail, new
    weights: what is attended to is right in every pass, and so is what is kept."""
    rng, added = random.Random(seed), 0
    for _ in range(80):
        waiting = [n for n, r in engine.requests.items() if not r.is_finished()]
        if len(waiting) < 6 and rng.random() < 0.6:
            tokens = prompt(rng.randrange(5), 110)[: rng.choice([16, 31, 33, 48, 80, 96, 110])]
            tokens += prompt(100 + rng.randrange(8), rng.choice([0, 1, 16, 30]))
            salt = rng.choice([None, None, "salt"])
            engine.add(f"{added}", tokens, salt=salt, most=rng.choice([1, 3, 20]))
            added += 1
        if waiting and rng.random() < 0.06:
            engine.scheduler.finish_requests(rng.choice(waiting), RequestStatus.FINISHED_ABORTED)
        if rng.random() < 0.1:
            rng.choice(engine.workers).device.transport.core.fail_fetches(rng.choice([1, 2, 5]))
        loading = any(
            r.status == RequestStatus.WAITING_FOR_REMOTE_KVS for r in engine.requests.values()
        )
        if not loading and rng.random() < 0.04:
            engine.settle()
            engine.stored()
            if engine.scheduler.reset_prefix_cache(
                reset_running_requests=True, reset_connector=True
            ):
                engine.weights += 1
        engine.step()
    engine.run()
    assert engine.stored() and engine.weights
