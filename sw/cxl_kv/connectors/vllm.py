# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""vLLM (0.33): a secondary offloading tier on a KELP device, and a replacement policy by KELP's
formula for vLLM's own CPU tier.

Both are loaded by module path, with no change to vLLM::

    "spec_name": "TieringOffloadingSpec",
    "secondary_tiers": [{"type": "CxlTier", "module_path": "cxl_kv.connectors.vllm", "url":
    "unix:/tmp/kelp.sock"}]

    "eviction_policy": "KelpCachePolicy", "cache_policy_module_path": "cxl_kv.connectors.vllm"

A chunk that the device answers with poison is a failed key of its job (the others of the job
succeed): vLLM then counts it as a miss and computes it anew.

vLLM's `reset_prefix_cache(reset_connector=True)`, as after a change of weights, resets its CPU tier
alone and has each secondary tier drain its jobs; stores that persist are meant to keep their data.
This one does not persist, and its keys do not say of which weights they are: it forgets every chunk
then, unless ``"keep_on_reset": true`` says that the weights stay the same (sleep and wake-up).
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Collection, Iterable
from typing import ClassVar

import numpy as np
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

import cxl_kv

from ..arguments import short
from ..blocks import BlockStore

__all__ = ["CxlTier", "KelpCachePolicy"]


_LOG = logging.getLogger("cxl_kv.vllm")
_FORGET = object()  # among the jobs: every chunk


class CxlTier(SecondaryTierManager):
    """Chunks on a KELP device, moved by one thread. The scheduler's calls never wait for it: they
    do not ask the store, which is locked while a chunk moves.

    The parameters are keys of the tier's config, besides `type` and `module_path`.

    Parameters
    ----------
    url : str
        The device.
    blocks : int, optional
        Chunks at most; as many as the device's configuration holds when left out.
    keep_on_reset : bool
        Keep the chunks when vLLM resets its caches.
    """

    medium: ClassVar[Medium] = Medium.CPU

    def __init__(
        self,
        offloading_spec,
        primary_kv_view: memoryview,
        tier_type: str,
        url: str,
        blocks: int | None = None,
        keep_on_reset: bool = False,
        backpressure_detector=None,
    ):
        if not isinstance(keep_on_reset, bool):
            raise ValueError(
                f"keep_on_reset = {short(keep_on_reset)} is refused; legal: true, false"
            )
        super().__init__(
            offloading_spec=offloading_spec,
            primary_kv_view=primary_kv_view,
            tier_type=tier_type,
            backpressure_detector=backpressure_detector,
        )
        self._keep_on_reset = keep_on_reset
        self._changed = threading.Condition()
        self._there: set[OffloadKey] = set()
        self.device = cxl_kv.open(url)
        try:
            self.store = BlockStore(
                self.device, self.block_size_bytes, blocks=blocks, on_drop=self._dropped
            )
        except BaseException:
            self.device.close()
            raise
        self._primary = np.asarray(primary_kv_view).view(np.uint8)
        self._storing: set[OffloadKey] = set()
        self._unfinished = 0
        self._ended = False
        self._results: list[JobResult] = []
        # Jobs, keys that were touched, and _FORGET; at last None.
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cxl_kv tier", daemon=True)
        self._thread.start()

    # - scheduler's side ---------------------------------------------------------------------------
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        with self._changed:
            if key in self._storing:
                return LookupResult.RETRY
            return LookupResult.HIT if key in self._there else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """TransportError once the tier was shut down, as of `submit_load`: nobody would carry it
        out, and `drain_jobs` would wait for it."""
        self._submit(job_metadata, job_metadata.keys)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata)

    def _submit(self, job, stored=()):
        with self._changed:
            if self._ended:
                raise cxl_kv.TransportError("the tier was shut down; make a new one")
            self._storing.update(stored)
            self._unfinished += 1
            self._jobs.put(job)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._changed:
            results, self._results = self._results, []
        return results

    def has_pending_work(self) -> bool:
        with self._changed:
            return self._unfinished > 0 or bool(self._results)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._jobs.put(list(keys))

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        """Wait until every job is done and, unless `keep_on_reset`, forget every chunk.

        It is all that a tier is told of `reset_cache`, and nothing else calls it (0.33); were it
        called otherwise, what is forgotten would be computed anew.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._unfinished)
            if not self._keep_on_reset:
                self._there.clear()
                self._jobs.put(_FORGET)  # before every store to come

    def shutdown(self) -> None:
        """Once what was submitted is done. Harmless a second time."""
        with self._changed:
            self._ended = True
            self._jobs.put(None)
        self._thread.join()
        self.device.close()
        self._primary = None

    # - the thread ---------------------------------------------------------------------------------
    def _run(self):
        while (job := self._jobs.get()) is not None:
            if job is _FORGET:
                for key in self.store.keys():
                    self.store.delete(key)
                continue
            if isinstance(job, list):
                self.store.touch(job)
                continue
            started, done, moved = time.monotonic(), [], 0
            for key, chunk in zip(job.keys, job.chunk_ids, strict=True):
                try:
                    ok = (
                        self._load(key, int(chunk))
                        if job.is_promotion
                        else self._keep(key, int(chunk))
                    )
                except Exception as error:
                    # Whatever it is: whoever waits for this job and for those behind it goes on.
                    _LOG.warning("a chunk was not moved: %s: %s", type(error).__name__, error)
                    ok = False
                if ok:
                    done.append(key)
                    moved += self.block_size_bytes
            with self._changed:
                if not job.is_promotion:
                    self._storing.difference_update(job.keys)
                    self._there.update(key for key in done if key in self.store)
                self._results.append(
                    JobResult(
                        job_id=job.job_id,
                        success=len(done) == len(job.keys),
                        successful_keys=done if job.is_promotion else None,
                        transfer_time=time.monotonic() - started,
                        transfer_bytes=moved,
                    )
                )
                self._unfinished -= 1
                self._changed.notify_all()

    def _dropped(self, key, size):
        with self._changed:
            self._there.discard(key)

    def _keep(self, key, chunk) -> bool:
        if key in self.store:
            return True
        return self.store.put(key, np.ascontiguousarray(self._primary[chunk]).reshape(-1))

    def _load(self, key, chunk) -> bool:
        data = self.store.get(key)
        if data is None:
            return False
        self._primary[chunk].reshape(-1)[: len(data)] = data
        return True


class KelpCachePolicy(CachePolicy):
    """Evicts by KELP's policy 0: priority = (1 − s) · (1 − exp(−age/τ)), highest first (spec §5), s
    the moving average of use, age in requests.

    A request that uses a chunk moves its s towards 1 by α; requests that do not let it decay by as
    much. Of equal priority, the later position of a request goes first, so that prefixes outlive
    their tails.
    """

    ALPHA = 26 / 256
    TAU = 1000.0

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._clock = 0
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        # key → s as of its last use, that request's number, position
        self._used: dict[OffloadKey, tuple[float, int, int]] = {}
        self._evictable: set[OffloadKey] = set()

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._chunks[key] = chunk
        self._used[key] = (self.ALPHA, self._clock, req_context.get_offload_key_position(key) or 0)
        if chunk.ref_cnt == 0:
            self._evictable.add(key)

    def remove(self, key: OffloadKey) -> None:
        del self._chunks[key], self._used[key]
        self._evictable.discard(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """One request's use of some chunks."""
        self._clock += 1
        for key in keys:
            if key in self._used:
                s, last, position = self._used[key]
                idle = max(0, self._clock - last - 1)
                s *= (1 - self.ALPHA) ** idle
                self._used[key] = (
                    s + (1 - s) * self.ALPHA,
                    self._clock,
                    req_context.get_offload_key_position(key) or position,
                )

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Nothing is known of what is not there."""

    def on_request_finished(
        self, key_groups, insertion_only_keys, reused_keys, req_context: ReqContext
    ) -> None:
        self.touch(order_request_keys(key_groups, req_context), req_context)

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        candidates = [key for key in self._evictable if key not in protected]
        if len(candidates) < n:
            return None

        def order(key):
            s, last, position = self._used[key]
            return ((1 - s) * -math.expm1(-(self._clock - last) / self.TAU), position, key)

        victims = sorted(candidates, key=order, reverse=True)[:n]
        out = [(key, self._chunks[key]) for key in victims]
        for key in victims:
            self.remove(key)
        return out

    def clear(self) -> None:
        self._chunks.clear()
        self._used.clear()
        self._evictable.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        self._evictable.add(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._evictable.discard(key)
