# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LMCache's own classes on a KELP device: its plug-in factory, its memory objects, its event
descriptors; and its own DAX adapter on the same calls."""

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform.event_notifier import consume_fd
from lmcache.v1.storage_backend import storage_plugin_launcher
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

import cxl_kv
from cxl_kv import blocks
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core

SHAPE = torch.Size([2, 4, 16, 64])  # K and V, layers, tokens, heads · head_dim
CHUNK = SHAPE.numel() * 2


def adapter_of(url="golden:trace", **params):
    config = get_l2_adapter_config_class("plugin").from_dict(
        {
            "type": "plugin",
            "module_path": "cxl_kv.connectors.lmcache",
            "class_name": "CxlL2Adapter",
            "adapter_params": {"url": url, "block_bytes": CHUNK, **params},
        }
    )
    return create_l2_adapter(config)


def test_the_configuration_files_are_lmcaches():
    """Each is taken whole by LMCache's own loader; the adapter is made, on another device."""
    folder = Path(__file__).resolve().parents[2] / "examples" / "configs"
    adapter = json.loads((folder / "lmcache_l2.json").read_text())
    config = get_l2_adapter_config_class("plugin").from_dict(adapter)
    assert config is not None
    made = adapter_of(**adapter["adapter_params"] | {"url": "golden:trace", "block_bytes": CHUNK})
    made.close()
    plugin = LMCacheEngineConfig.from_file(str(folder / "lmcache_plugin.yaml"))
    assert plugin.storage_plugins == ["cxlkv"]
    assert plugin.extra_config["storage_plugin.cxlkv.class_name"] == "CxlStoragePlugin"


def dax_of(path, slots, fresh=True):
    if fresh:
        path.write_bytes(b"")
        os.truncate(path, slots * CHUNK)
    size = {"device_path": str(path), "max_dax_size_gb": slots * CHUNK / 2**30}
    return create_l2_adapter(
        get_l2_adapter_config_class("dax").from_dict({"type": "dax", "slot_bytes": CHUNK, **size})
    )


def key_of(number, salt=""):
    return ObjectKey(ObjectKey.IntHash2Bytes(number), "model", 0, cache_salt=salt)


def object_of(seed=None):
    data = torch.zeros(SHAPE, dtype=torch.bfloat16)
    if seed is not None:
        data = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    meta = MemoryObjMetadata(
        SHAPE,
        torch.bfloat16,
        0,
        CHUNK,
        1,
        fmt=MemoryFormat.KV_2LTD,
        shapes=[SHAPE],
        dtypes=[torch.bfloat16],
    )
    return TensorMemoryObj(data.view(torch.uint8).reshape(-1), meta, None)


def wait(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(30_000), "the event descriptor was never signalled"
    consume_fd(fd)


def store(adapter, keys, objects):
    task = adapter.submit_store_task(keys, objects)
    results = {}
    while task not in results:
        wait(adapter.get_store_event_fd())
        results.update(adapter.pop_completed_store_tasks())
    return results[task]


def found(adapter, keys):
    task = adapter.submit_lookup_and_lock_task(keys, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    bits = adapter.query_lookup_and_lock_result(task)
    assert adapter.query_lookup_and_lock_result(task) is None
    return [bits.test(i) for i in range(len(keys))]


def load(adapter, keys):
    objects = [object_of() for _ in keys]
    task = adapter.submit_load_task(keys, objects)
    wait(adapter.get_load_event_fd())
    bits = adapter.query_load_result(task)
    return [bits.test(i) for i in range(len(keys))], objects


def same(obj, seed):
    return torch.equal(obj.raw_data, object_of(seed).raw_data)


@pytest.fixture
def adapter():
    made = adapter_of()
    yield made
    made.close()


def test_objects_come_back_as_they_went_in(adapter):
    assert (
        len(
            {
                adapter.get_store_event_fd(),
                adapter.get_lookup_and_lock_event_fd(),
                adapter.get_load_event_fd(),
            }
        )
        == 3
    )
    keys = [key_of(i) for i in range(12)]
    result = store(adapter, keys, [object_of(i) for i in range(12)])
    assert result.is_successful() and result.bytes_transferred() == 12 * CHUNK
    assert found(adapter, [*keys, key_of(99)]) == [True] * 12 + [False]
    ok, objects = load(adapter, keys[::-1])
    assert all(ok) and all(same(obj, 11 - i) for i, obj in enumerate(objects))
    assert load(adapter, [key_of(99)])[0] == [False]
    status = adapter.report_status()
    assert status["is_healthy"] and status["stored_object_count"] == 12
    page = adapter.list_l2_keys(page_size=5)
    assert (
        len(page.entries) == 5
        and len(adapter.list_l2_keys(cursor=page.next_page_token).entries) == 7
    )


def test_a_task_that_breaks_is_a_failed_one_and_the_next_goes_on(adapter, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    keys, objects = [key_of(1)], [object_of(1)]
    with monkeypatch.context() as patch:
        for name in ("put_many", "pin", "get_many"):
            patch.setattr(adapter.store, name, broken)
        assert not store(adapter, keys, objects).is_successful()
        assert found(adapter, keys) == [False] and load(adapter, keys)[0] == [False]
    assert store(adapter, keys, objects).is_successful() and load(adapter, keys)[0] == [True]


def test_salts_are_tenants(adapter):
    """The same content of two tenants is two objects, counted apart; a stranger finds neither."""
    store(adapter, [key_of(1, "anna"), key_of(1, "ben")], [object_of(1), object_of(2)])
    ok, (anna, ben) = load(adapter, [key_of(1, "anna"), key_of(1, "ben")])
    assert all(ok) and same(anna, 1) and same(ben, 2)
    assert found(adapter, [key_of(1), key_of(1, "eve")]) == [False, False]
    assert dict(adapter.get_usage().bytes_by_cache_salt) == {"anna": CHUNK, "ben": CHUNK}
    adapter.delete([key_of(1, "ben")])
    assert dict(adapter.get_usage().bytes_by_cache_salt) == {"anna": CHUNK} and found(
        adapter, [key_of(1, "ben")]
    ) == [False]


def test_locked_objects_outlive_pressure():
    adapter = adapter_of(blocks=4)
    try:
        store(adapter, [key_of(i) for i in range(4)], [object_of(i) for i in range(4)])
        assert all(found(adapter, [key_of(0), key_of(1)]))
        adapter.delete([key_of(0)])
        assert store(
            adapter, [key_of(i) for i in range(4, 8)], [object_of(i) for i in range(4, 8)]
        ).is_successful()
        ok, objects = load(adapter, [key_of(0), key_of(1), key_of(2), key_of(7)])
        assert ok == [True, True, False, True] and same(objects[0], 0) and same(objects[3], 7)
        assert adapter.get_usage().usage_fraction == 1.0
        assert (
            all(found(adapter, [key_of(6), key_of(7)]))
            and not store(adapter, [key_of(9)], [object_of(9)]).is_successful()
        )
        adapter.submit_unlock([key_of(0)])
        assert store(adapter, [key_of(9)], [object_of(9)]).is_successful() and found(
            adapter, [key_of(0)]
        ) == [False]
    finally:
        adapter.close()


def test_what_is_deleted_as_soon_as_it_is_there_is_not_counted(adapter, monkeypatch):
    """LMCache hears of an object's end after it heard of the object, whoever deletes it."""
    told, others = adapter._notify_keys_stored, []

    def slow(keys, sizes):
        others.append(threading.Thread(target=adapter.delete, args=(keys,)))
        others[0].start()
        others[0].join(0.3)  # it waits, or has told of the end already
        told(keys, sizes)

    monkeypatch.setattr(adapter, "_notify_keys_stored", slow)
    assert store(adapter, [key_of(1)], [object_of(1)]).is_successful()
    others[0].join()
    assert len(adapter.store) == 0 and adapter.get_usage().usage_fraction == 0


def test_what_gives_way_within_one_task_is_not_counted():
    """Seven objects for four places, one there before: LMCache's account is of the four that are
    left, and it hears of no object that it was not told of before."""

    class Listener:
        keys: frozenset = frozenset()

        def on_l2_keys_stored(self, keys, sizes):
            self.keys = self.keys | set(keys)

        def on_l2_keys_deleted(self, keys):
            assert set(keys) <= self.keys
            self.keys = self.keys - set(keys)

    adapter, listener = adapter_of(blocks=4), Listener()
    try:
        adapter.register_listener(listener)
        store(adapter, [key_of(0)], [object_of(0)])
        keys = [key_of(i) for i in range(1, 8)]
        store(adapter, keys, [object_of(i) for i in range(1, 8)])
        left = {key for key, there in zip(keys, found(adapter, keys), strict=True) if there}
        assert len(left) == 4 and listener.keys == left
        assert adapter.get_usage().usage_fraction == 1.0
    finally:
        adapter.close()


def test_what_was_stored_before_a_task_broke_off_is_told_of(monkeypatch):
    """It is there, and found: LMCache's account has it, and may have it deleted."""
    adapter = adapter_of()
    try:
        whole, calls = adapter.device.transport.store, []

        def breaks_off(*arguments):
            calls.append(arguments)
            if len(calls) == 2:
                raise MemoryError
            whole(*arguments)

        keys, objects = [key_of(i) for i in range(5)], [object_of(i) for i in range(5)]
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "_TOGETHER", 4 * CHUNK)
            patch.setattr(adapter.device.transport, "store", breaks_off)
            assert not store(adapter, keys, objects).is_successful()
        assert len(calls) == 2 and len(adapter.store) == 4
        assert adapter.get_usage().total_bytes_used == 4 * CHUNK
        adapter.delete(keys)
        assert adapter.get_usage().total_bytes_used == 0
    finally:
        adapter.close()


def test_what_is_deleted_within_its_task_is_not_told_of(adapter, monkeypatch):
    """Of an object that LMCache was not told of it hears no end."""
    put_many, told = adapter.store.put_many, []

    def deleted_then(items):
        results = put_many(items)
        adapter.delete([key_of(1)])
        return results

    monkeypatch.setattr(adapter.store, "put_many", deleted_then)
    monkeypatch.setattr(adapter, "_notify_keys_deleted", lambda *what: told.append(what))
    store(adapter, [key_of(1), key_of(2)], [object_of(1), object_of(2)])
    assert not told and adapter.get_usage().total_bytes_used == CHUNK


def test_an_adapter_whose_thread_has_ended_is_closed_all_the_same():
    adapter = adapter_of()
    adapter._tasks.put(None)
    adapter._thread.join()
    adapter.close()
    assert adapter.device.closed
    adapter.close()


def test_a_closed_adapter_takes_no_tasks():
    """Nobody would carry them out."""
    adapter = adapter_of()
    store(adapter, [key_of(1)], [object_of(1)])
    adapter.close()
    for submit in (
        lambda: adapter.submit_store_task([key_of(2)], [object_of(2)]),
        lambda: adapter.submit_load_task([key_of(1)], [object_of()]),
        lambda: adapter.submit_lookup_and_lock_task([key_of(1)], {}),
    ):
        with pytest.raises(cxl_kv.TransportError, match="the adapter was closed; make a new one"):
            submit()
    adapter.submit_unlock([key_of(1)])


def test_poison_is_a_failed_load_and_no_data():
    adapter = adapter_of("golden:trace?frames=16,16,16,16")
    try:
        keys = [key_of(i) for i in range(4)]
        store(adapter, keys, [object_of(i) for i in range(4)])
        adapter.device.transport.core.fail_fetches()
        ok, objects = load(adapter, keys)
        assert (
            ok == [False, True, True, True]
            and not objects[0].raw_data.any()
            and all(same(objects[i], i) for i in (1, 2, 3))
        )
        assert (
            found(adapter, keys) == [False, True, True, True]
            and adapter.get_usage().total_bytes_used == 3 * CHUNK
        )
        assert store(adapter, keys[:1], [object_of(7)]).is_successful() and same(
            load(adapter, keys[:1])[1][0], 7
        )
    finally:
        adapter.close()


def test_bad_parameters_are_named():
    for params, problem in (
        ({"blocks": 10**9}, "blocks"),
        ({"colour": 1}, "colour"),
        ({"block_bytes": "many"}, "many"),
        ({"url": "golden:x"}, "unknown"),
    ):
        with pytest.raises(ValueError, match=problem):
            adapter_of(**params)


# - storage plug-in --------------------------------------------------------------------------------


@pytest.fixture
def plugin():
    config = LMCacheEngineConfig.from_defaults(
        storage_plugins=["cxlkv"],
        extra_config={
            "storage_plugin.cxlkv.module_path": "cxl_kv.connectors.lmcache",
            "storage_plugin.cxlkv.class_name": "CxlStoragePlugin",
            "cxlkv.url": "golden:trace?frames=16,16,16,16",
            "cxlkv.block_bytes": CHUNK,
            "cxlkv.blocks": 6,
        },
    )
    loop = asyncio.new_event_loop()
    cpu = LocalCPUBackend(config, memory_allocator=HostMemoryAllocator(1 << 24))
    backends = OrderedDict()
    storage_plugin_launcher(config, None, loop, cpu, "cpu", backends)
    yield backends["cxlkv"]
    backends["cxlkv"].close()
    loop.close()


def engine_key(number):
    return CacheEngineKey("model", 1, 0, number, torch.bfloat16)


def test_the_storage_plugin_keeps_chunks(plugin):
    done = []
    keys = [engine_key(i) for i in range(5)]
    plugin.batched_submit_put_task(
        keys, [object_of(i) for i in range(5)], on_complete_callback=done.append
    )
    assert done == keys and plugin.contains(keys[0]) and not plugin.exists_in_put_tasks(keys[0])
    for i in (4, 0, 2):
        got = plugin.get_blocking(keys[i])
        assert (
            torch.equal(got.tensor, object_of(i).tensor)
            and got.metadata.fmt == MemoryFormat.KV_2LTD
        )
    assert plugin.contains(keys[1], pin=True) and not plugin.remove(keys[1], force=False)
    plugin.batched_submit_put_task(
        [engine_key(i) for i in range(10, 14)], [object_of(i) for i in range(10, 14)]
    )
    assert plugin.contains(keys[1]) and not plugin.contains(keys[3])
    assert plugin.unpin(keys[1]) and plugin.remove(keys[1]) and plugin.get_blocking(keys[1]) is None
    plugin.device.transport.core.fail_fetches(20)
    assert plugin.get_blocking(engine_key(10)) is None and not plugin.contains(engine_key(10))


def test_a_chunk_that_is_removed_while_it_is_put_anew_can_be_loaded_or_is_not_there(
    plugin, monkeypatch
):
    key, others = engine_key(0), []
    delete = plugin.store.delete

    def put_meanwhile(gone):
        found = delete(gone)
        arguments = ([key], [object_of(7)])
        others.append(threading.Thread(target=plugin.batched_submit_put_task, args=arguments))
        others[0].start()
        others[0].join(0.3)  # it waits, or is through
        return found

    plugin.batched_submit_put_task([key], [object_of(0)])
    with monkeypatch.context() as patch:
        patch.setattr(plugin.store, "delete", put_meanwhile)
        assert plugin.remove(key)
    others[0].join()
    assert plugin.contains(key)
    assert torch.equal(plugin.get_blocking(key).tensor, object_of(7).tensor)


def test_a_callback_that_fails_is_no_failed_put(plugin):
    """LMCache counts on it: an error of the put would leave its buffers held for ever."""

    def broken(key):
        raise RuntimeError("a listener's bug")

    keys = [engine_key(i) for i in range(3)]
    plugin.batched_submit_put_task(
        keys, [object_of(i) for i in range(3)], on_complete_callback=broken
    )
    assert all(map(plugin.contains, keys))


def test_chunks_are_looked_up_and_loaded_from_the_event_loop(plugin):
    """As with `enable_async_loading` and `use_layerwise`: what comes first and is there, and
    nothing behind a gap."""
    run, keys = plugin.loop.run_until_complete, [engine_key(i) for i in range(5)]
    plugin.batched_submit_put_task(keys, [object_of(i) for i in range(5)])
    assert run(plugin.batched_async_contains("lookup", keys)) == 5
    plugin.remove(keys[3])
    assert run(plugin.batched_async_contains("lookup", keys, pin=True)) == 3
    assert not plugin.remove(keys[2], force=False) and plugin.remove(keys[4], force=False)
    plugin.batched_submit_put_task(keys[4:], [object_of(4)])
    got = run(plugin.batched_get_non_blocking("lookup", keys, {"cum_chunk_lengths": [0, 16]}))
    assert [torch.equal(obj.tensor, object_of(i).tensor) for i, obj in enumerate(got)] == [True] * 3
    plugin.store._lose(keys[0])
    assert run(plugin.batched_get_non_blocking("lookup", keys)) == []
    assert run(plugin.batched_get_non_blocking("lookup", [])) == []


def test_a_chunk_of_several_kinds_of_layers_comes_back_whole(plugin):
    """As of a model whose layers differ in heads or types: a shape and a type for each kind."""
    shapes = [torch.Size([2, 2, 16, 64]), torch.Size([1, 2, 16, 32])]
    dtypes = [torch.bfloat16, torch.float32]
    size = sum(s.numel() * d.itemsize for s, d in zip(shapes, dtypes, strict=True))
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    meta = MemoryObjMetadata(
        shapes[0], dtypes[0], 0, size, 1, fmt=MemoryFormat.KV_2LTD, shapes=shapes, dtypes=dtypes
    )
    plugin.batched_submit_put_task([engine_key(0)], [TensorMemoryObj(data, meta, None)])
    got = plugin.get_blocking(engine_key(0))
    assert bytes(got.byte_array) == bytes(data.numpy())
    assert got.get_shapes() == shapes and got.get_dtypes() == dtypes


# - beside LMCache's own DAX adapter ---------------------------------------------------------------


def measured(adapter, first, count):
    """Bytes a second of puts and of gets of objects `first` …, a batch of eight at a time, and the
    share that was found."""
    batches = [range(i, min(i + 8, first + count)) for i in range(first, first + count, 8)]
    put = get = 0.0
    hits = 0
    for batch in batches:
        objects = [object_of(i) for i in batch]
        started = time.perf_counter()
        assert store(adapter, [key_of(i) for i in batch], objects).is_successful()
        put += time.perf_counter() - started
    for batch in batches:
        places = [object_of() for _ in batch]
        started = time.perf_counter()
        task = adapter.submit_load_task([key_of(i) for i in batch], places)
        wait(adapter.get_load_event_fd())
        bits = adapter.query_load_result(task)
        get += time.perf_counter() - started
        for i, place in zip(batch, places, strict=True):
            if bits.test(i - batch[0]):
                assert same(place, i)
                hits += 1
    return count * CHUNK / put, hits * CHUNK / get, hits / count


def test_beside_the_dax_adapter(tmp_path, record_property):
    """Throughput on files in one folder; figures, not bars. Rounds take turns, and each row is its
    best one: the machine may be busy. Both keep all."""
    count, rounds = 64, 4
    rows = {}
    ours = adapter_of(f"dax:{tmp_path}/ours?config=trace&create=1", blocks=count * rounds)
    theirs = dax_of(tmp_path / "theirs", count * rounds)
    golden = adapter_of(blocks=count)
    try:
        for turn in range(rounds):
            for name, adapter in (
                ("dax of LMCache", theirs),
                ("cxl_kv dax:", ours),
                *([("cxl_kv golden:", golden)] if turn == 0 else []),
            ):
                row = measured(adapter, count * turn, count)
                assert row[2] == 1.0
                rows[name] = tuple(map(max, row, rows.get(name, row)))
    finally:
        for adapter in (ours, theirs, golden):
            adapter.close()
    for name, (put, get, hits) in rows.items():
        print(f"{name}: put {put / 1e9:.3f} GB/s, get {get / 1e9:.3f} GB/s, {hits:.0%} found")
        record_property(name, (put, get))


def _keep(folder):
    """A process that stores into both kinds of file, says so, and is killed."""
    from pathlib import Path

    adapters = [
        adapter_of(f"dax:{folder}/ours?config=trace&create=1", blocks=8),
        dax_of(Path(folder) / "theirs", 8),
    ]
    for adapter in adapters:
        stored = store(adapter, [key_of(i) for i in range(4)], [object_of(i) for i in range(4)])
        assert stored.is_successful()
    print("stored", flush=True)
    time.sleep(600)


def test_after_kill_9_both_begin_anew_on_their_files(tmp_path):
    """Neither finds what the killed process had stored, for both keep their index in the process;
    both store and load again, and nothing wrong is loaded."""
    # By path: a package of this engine's environment installs a `tests` of its own, so that a
    # spawned process does not find this module by its name.
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['_keep'](sys.argv[2])"
    child = subprocess.Popen(
        [sys.executable, "-c", code, __file__, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert "stored\n" in iter(child.stdout.readline, "")
    child.kill()
    child.wait()
    child.stdout.close()
    size = os.path.getsize(tmp_path / "theirs")
    for adapter in (
        adapter_of(f"dax:{tmp_path}/ours?config=trace", blocks=8),
        dax_of(tmp_path / "theirs", size // CHUNK, fresh=False),
    ):
        try:
            keys = [key_of(i) for i in range(4)]
            assert found(adapter, keys) == [False] * 4 and load(adapter, keys)[0] == [False] * 4
            assert store(adapter, keys[:2], [object_of(50), object_of(51)]).is_successful()
            ok, objects = load(adapter, keys)
            assert (
                ok == [True, True, False, False] and same(objects[0], 50) and same(objects[1], 51)
            )
        finally:
            adapter.close()


def test_under_pressure_ours_makes_room_and_theirs_refuses(tmp_path):
    """Twice as many objects as places. LMCache's eviction is its controller's; without it, its DAX
    adapter refuses what does not fit."""
    results = {}
    for name, adapter in (
        ("ours", adapter_of(f"dax:{tmp_path}/ours?config=trace&create=1", blocks=8)),
        ("theirs", dax_of(tmp_path / "theirs", 8)),
    ):
        try:
            stored = [
                store(adapter, [key_of(i)], [object_of(i)]).is_successful() for i in range(16)
            ]
            ok, objects = load(adapter, [key_of(i) for i in range(16)])
            assert all(same(obj, i) for i, obj in enumerate(objects) if ok[i])
            results[name] = (sum(stored), [i for i in range(16) if ok[i]])
        finally:
            adapter.close()
    assert results["ours"] == (16, list(range(8, 16)))
    assert len(results["theirs"][1]) <= 8


def test_after_kill_9_of_the_server_loads_fail_and_stores_too(tmp_path):
    url = f"unix:{tmp_path}/kelp.sock"
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import time
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core
server = Server(make_core("golden:trace"))
server.listen({url!r})
print("up", flush=True)
time.sleep(600)""",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout.readline() == "up\n"
    adapter = adapter_of(url)
    try:
        store(adapter, [key_of(1)], [object_of(1)])
        assert same(load(adapter, [key_of(1)])[1][0], 1)
        server.kill()
        server.wait()
        ok, objects = load(adapter, [key_of(1)])
        assert (
            ok == [False]
            and not objects[0].raw_data.any()
            and not store(adapter, [key_of(2)], [object_of(2)]).is_successful()
        )
    finally:
        server.stdout.close()
        adapter.close()


def test_two_processes_behind_one_server_share_no_object():
    """The tenants of two engines: the device keeps their sessions apart."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, Server(make_core("golden:trace")) as served:
        url = served.listen(f"unix:{folder}/kelp.sock")
        first, second = adapter_of(url), adapter_of(url)
        try:
            store(first, [key_of(1)], [object_of(1)])
            assert found(second, [key_of(1)]) == [False] and same(load(first, [key_of(1)])[1][0], 1)
            assert first.device.ld_id != second.device.ld_id
        finally:
            first.close()
            second.close()
