# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""LMCache (0.5.6): an L2 adapter for its multi-process mode, and a storage plug-in for its
in-process engine, on a KELP device.

Both are loaded by module path::

    {"type": "plugin", "module_path": "cxl_kv.connectors.lmcache", "class_name": "CxlL2Adapter",
     "adapter_params": {"url": "unix:/tmp/kelp.sock", "block_bytes": 1048576}}

    storage_plugins: ["cxlkv"]
    extra_config:
      storage_plugin.cxlkv.module_path: cxl_kv.connectors.lmcache
      storage_plugin.cxlkv.class_name: CxlStoragePlugin
      cxlkv.url: unix:/tmp/kelp.sock
      cxlkv.block_bytes: 1048576

An object's key holds LMCache's cache_salt, so tenants that share a process never meet; tenants in
processes of their own are kept apart by the device itself. A chunk that the device answers with
poison is a failed load, and is dropped: LMCache recomputes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from lmcache.lmcache_native import Bitmap
from lmcache.utils import CacheEngineKey
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface, L2TaskId
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

import cxl_kv

from ..blocks import BlockStore

__all__ = ["CxlL2Adapter", "CxlStoragePlugin"]

_LOG = logging.getLogger("cxl_kv.lmcache")


def _bytes_of(obj: MemoryObj) -> np.ndarray:
    """The object's own bytes, uint8[n], writable."""
    return np.frombuffer(memoryview(obj.byte_array).cast("B"), np.uint8)


def _opened(url, block_bytes, blocks, on_drop=None) -> tuple[cxl_kv.Device, BlockStore]:
    if not isinstance(url, str) or not isinstance(block_bytes, int):
        raise ValueError(
            f"url = {url!r}, block_bytes = {block_bytes!r} is refused; legal: a device URL, "
            + "and the bytes of the largest chunk"
        )
    device = cxl_kv.open(url)
    try:
        return device, BlockStore(device, block_bytes, blocks=blocks, on_drop=on_drop)
    except BaseException:
        device.close()
        raise


class CxlL2Adapter(L2AdapterInterface):
    """LMCache's L2 on a device; one thread carries its tasks out, in their order.

    Parameters
    ----------
    params : dict
        `url`; `block_bytes`, of the largest object; `blocks`, optional, objects at most.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc=None):
        unknown = set(params) - {"url", "block_bytes", "blocks"}
        if unknown:
            raise ValueError(
                f"adapter_params {sorted(unknown)} are unknown; legal: url, block_bytes, blocks"
            )
        self.device, self.store = _opened(
            params.get("url"), params.get("block_bytes"), params.get("blocks"), self._dropped
        )
        super().__init__(max_capacity_bytes=self.store.capacity * self.store.block_bytes)
        self._store_done, self._lookup_done, self._load_done = (
            create_event_notifier() for _ in range(3)
        )
        self._lock = threading.Lock()
        # Else an object that is deleted as soon as it is there is told of as stored afterwards. A
        # listener may delete, so it may be taken again.
        self._telling = threading.RLock()
        self._next_task = 0
        self._closed = False
        self._stored: dict[L2TaskId, L2StoreResult] = {}
        self._found: dict[L2TaskId, Bitmap] = {}
        self._loaded: dict[L2TaskId, Bitmap] = {}
        self._storing: frozenset[ObjectKey] = frozenset()  # by this task, and not told of yet
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cxl_kv L2", daemon=True)
        self._thread.start()

    def get_store_event_fd(self) -> int:
        return self._store_done.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookup_done.fileno()

    def get_load_event_fd(self) -> int:
        return self._load_done.fileno()

    # - tasks --------------------------------------------------------------------------------------
    def _submit(
        self, work: Callable[[L2TaskId], None], failed: Callable[[L2TaskId], None]
    ) -> L2TaskId:
        """TransportError once the adapter was closed: nobody would carry it out."""
        with self._lock:
            if self._closed:
                raise cxl_kv.TransportError("the adapter was closed; make a new one")
            task, self._next_task = self._next_task, self._next_task + 1
            self._tasks.put((work, failed, task))
        return task

    def _run(self):
        while (item := self._tasks.get()) is not None:
            work, failed, task = item
            try:
                work(task)
            except Exception as error:
                # It has failed; those behind it, and whoever waits for them, go on.
                _LOG.error("a task failed: %s: %s", type(error).__name__, error)
                failed(task)

    def _finish(self, results: dict, task: L2TaskId, result, notifier) -> None:
        with self._lock:
            results[task] = result
        notifier.notify()

    def _finish_store(self, task, result):
        self._finish(self._stored, task, result, self._store_done)

    def _finish_lookup(self, task, bits):
        self._finish(self._found, task, bits, self._lookup_done)

    def _finish_load(self, task, bits):
        self._finish(self._loaded, task, bits, self._load_done)

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        return self._submit(
            lambda task: self._store(task, keys, objects),
            lambda task: self._finish_store(task, L2StoreResult(False, 0)),
        )

    def _store(self, task, keys, objects):
        fresh = {
            key: _bytes_of(obj)
            for key, obj in zip(keys, objects, strict=True)
            if key not in self.store
        }
        self._storing = frozenset(fresh)
        try:
            results = self.store.put_many(fresh.items())
        finally:  # also where it broke off: what was stored by then is there
            self._tell_stored(fresh)
        for result in results:
            if isinstance(result, Exception):
                _LOG.warning("an object was not stored: %s", result)
        size = sum(
            len(data)
            for data, result in zip(fresh.values(), results, strict=True)
            if result is True
        )
        ok = all(result is True for result in results)
        self._finish_store(task, L2StoreResult(ok, size))

    def _tell_stored(self, fresh):
        # What gave way to a later one of this very task, or was deleted amid it, was never there.
        with self._telling:
            self._storing = frozenset()
            done = [key for key in fresh if key in self.store]
            if done:
                self._notify_keys_stored(done, [len(fresh[key]) for key in done])

    def pop_completed_store_tasks(self) -> dict[L2TaskId, L2StoreResult]:
        with self._lock:
            done = dict(self._stored)
            self._stored.clear()
        return done

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs) -> L2TaskId:
        return self._submit(
            lambda task: self._look_up(task, keys),
            lambda task: self._finish_lookup(task, Bitmap(len(keys))),
        )

    def _look_up(self, task, keys):
        bits = Bitmap(len(keys))
        for i, key in enumerate(keys):
            if self.store.pin(key):
                bits.set(i)
        self._finish_lookup(task, bits)

    def query_lookup_and_lock_result(self, task_id: L2TaskId) -> Bitmap | None:
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Nothing once the adapter was closed, with which every lock has gone."""
        with contextlib.suppress(cxl_kv.TransportError):
            self._submit(lambda task: [self.store.unpin(key) for key in keys], lambda task: None)

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        return self._submit(
            lambda task: self._load(task, keys, objects),
            lambda task: self._finish_load(task, Bitmap(len(keys))),
        )

    def _load(self, task, keys, objects):
        bits, read = Bitmap(len(keys)), []
        for i, (key, obj, data) in enumerate(
            zip(keys, objects, self.store.get_many(keys), strict=True)
        ):
            if isinstance(data, Exception):
                _LOG.warning("an object was not loaded: %s", data)
                continue
            place = _bytes_of(obj)
            if data is None or len(data) != len(place):
                continue
            place[:] = data
            bits.set(i)
            read.append(key)
        if read:
            self._notify_keys_accessed(read)
        self._finish_load(task, bits)

    def query_load_result(self, task_id: L2TaskId) -> Bitmap | None:
        with self._lock:
            return self._loaded.pop(task_id, None)

    # - keys ---------------------------------------------------------------------------------------
    def _dropped(self, key, size):
        if key not in self._storing:
            self._notify_keys_deleted([key], [size])

    def delete(self, keys: list[ObjectKey]) -> None:
        """Forget objects; those that are locked stay."""
        with self._telling:
            sizes = {key: self.store.delete_unpinned(key) for key in keys}
            gone = [
                key for key, size in sizes.items() if size is not None and key not in self._storing
            ]
            if gone:
                self._notify_keys_deleted(gone, [sizes[key] for key in gone])

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        if page_size < 1 or cursor is not None and not cursor.isdigit():
            raise ValueError(f"page_size = {page_size}, cursor = {cursor!r} is refused")
        keys = sorted(
            (
                key
                for key in self.store.keys()
                if model_name is None or key.model_name == model_name
            ),
            key=repr,
        )
        first = int(cursor or 0)
        page = tuple(
            KeyEntry(key.to_encoded_object_key(), self.store.size_of(key))
            for key in keys[first : first + page_size]
        )
        return KeyListPage(page, str(first + page_size) if first + page_size < len(keys) else None)

    def report_status(self) -> dict:
        return {
            "is_healthy": self._thread.is_alive(),
            "type": "CxlL2Adapter",
            "device": self.device.config.name,
            "stored_object_count": len(self.store),
            "current_size_bytes": self.store.used_bytes,
            "max_capacity_bytes": self._max_capacity_bytes,
            "evicted": self.store.evicted,
            "lost": self.store.lost,
        }

    def close(self) -> None:
        """Once what was submitted is done. Harmless a second time."""
        with self._lock:
            self._closed = True
            self._tasks.put(None)
        self._thread.join()
        self.device.close()
        for notifier in (self._store_done, self._lookup_done, self._load_done):
            notifier.close()


class CxlStoragePlugin(StoragePluginInterface):
    """LMCache's in-process storage back end on a device; puts and gets are carried out where they
    are called, the gets of `enable_async_loading` and `use_layerwise` in a thread beside LMCache's
    event loop."""

    def __init__(
        self, dst_device: str = "cpu", config=None, metadata=None, local_cpu_backend=None, loop=None
    ):
        super().__init__(
            dst_device=dst_device,
            config=config,
            metadata=metadata,
            local_cpu_backend=local_cpu_backend,
            loop=loop,
        )
        extra = (config.extra_config if config is not None else None) or {}
        self.device, self.store = _opened(
            extra.get("cxlkv.url"),
            extra.get("cxlkv.block_bytes"),
            extra.get("cxlkv.blocks"),
            lambda key, _: self._about.pop(key, None),
        )
        # Shapes, dtypes, format, positions of what is stored. Under the store's lock, so that it
        # comes and goes with the key.
        self._about: dict[CacheEngineKey, tuple] = {}

    def __str__(self):
        return "CxlStoragePlugin"

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        return self.store.pin(key) if pin else key in self.store

    def exists_in_put_tasks(self, key: CacheEngineKey) -> bool:
        return False

    def batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        transfer_spec: Any = None,
        on_complete_callback=None,
    ) -> None:
        for key, obj in zip(keys, objs, strict=True):
            if self._put(key, obj) and on_complete_callback is not None:
                try:
                    on_complete_callback(key)
                except Exception as error:  # as LMCache has it: the others are stored all the same
                    _LOG.warning("a callback failed: %s: %s", type(error).__name__, error)

    def _put(self, key, obj) -> bool:
        """Whether it was stored just now."""
        meta, stored = obj.metadata, False
        # A model with several kinds of layers has a shape and a type for each.
        shapes, dtypes = meta.shapes or meta.shape, meta.dtypes or meta.dtype
        with self.store.lock:
            if key in self.store:
                return False
            self._about[key] = (shapes, dtypes, meta.fmt, meta.cached_positions)
            try:
                stored = self.store.put(key, _bytes_of(obj))
            except (cxl_kv.CxlKvError, ValueError) as error:
                _LOG.warning("a chunk was not stored: %s", error)
            finally:
                if not stored:
                    self._about.pop(key, None)
        return stored

    async def batched_async_contains(
        self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False
    ) -> int:
        return self.batched_contains(keys, pin)

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[MemoryObj]:
        """Those up to the first one that is not there."""
        return await asyncio.to_thread(self._leading, keys)

    def _leading(self, keys) -> list[MemoryObj]:
        found: list[MemoryObj] = []
        for key in keys:
            # Whoever waits for memory holds up other loads, whose end may be what frees it.
            obj = self._get(key, busy_loop=False)
            if obj is None:
                break
            found.append(obj)
        return found

    def get_blocking(self, key: CacheEngineKey) -> MemoryObj | None:
        return self._get(key)

    def _get(self, key, **allocation) -> MemoryObj | None:
        with self.store.lock:
            try:
                data = self.store.get(key)
            except cxl_kv.CxlKvError as error:
                _LOG.warning("a chunk was not loaded: %s", error)
                return None
            about = self._about.get(key)
        if data is None:
            return None
        shapes, dtypes, fmt, positions = about
        obj = self.local_cpu_backend.allocate(shapes, dtypes, fmt, **allocation)
        if obj is None:
            return None
        _bytes_of(obj)[:] = data
        obj.metadata.cached_positions = positions
        return obj

    def pin(self, key: CacheEngineKey) -> bool:
        return self.store.pin(key)

    def unpin(self, key: CacheEngineKey) -> bool:
        return self.store.unpin(key)

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        with self.store.lock:
            if force:
                gone = self.store.delete(key)
            else:
                gone = self.store.delete_unpinned(key) is not None
            if gone:
                self._about.pop(key, None)
        return gone

    def get_allocator_backend(self):
        return self.local_cpu_backend

    def close(self) -> None:
        self.device.close()
