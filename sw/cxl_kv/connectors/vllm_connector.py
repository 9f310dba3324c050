# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""vLLM (0.33): a KV connector on a KELP device, loaded by module path, whose lost blocks come back
to the scheduler as load errors.

::

    --kv-transfer-config '{"kv_connector": "CxlConnector", "kv_connector_module_path":
    "cxl_kv.connectors.vllm_connector", "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"url":
      "unix:/tmp/kelp.sock"}}'

A whole block of all layers is one object, under vLLM's own hash of the tokens up to its end (which
holds cache_salt and LoRA). Loads are made before the forward pass, stores after it. A block that
the device answers with poison, or that is not there any more, is reported by
`get_block_ids_with_load_errors`: with the policy "recompute" the scheduler computes it and what
follows it anew and the request goes on, with "fail" it ends. A pass with a failed load stores
nothing, since what it computed may rest on the lost block.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

import cxl_kv

from ..blocks import BlockStore

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["CxlConnector"]

_LOG = logging.getLogger("cxl_kv.vllm")


@dataclass
class Moves(KVConnectorMetadata):
    """Of one pass, scheduler to worker: (key, block) pairs."""

    loads: list[tuple[bytes, int]] = field(default_factory=list)
    stores: list[tuple[bytes, int]] = field(default_factory=list)


@dataclass
class News(KVConnectorWorkerMetadata):
    """Of one pass, workers to scheduler: how many of them stored a key; keys that one or more have
    lost."""

    stored: Counter = field(default_factory=Counter)
    lost: set[bytes] = field(default_factory=set)

    def aggregate(self, other: News) -> News:
        return News(self.stored + other.stored, self.lost | other.lost)


class CxlConnector(KVConnectorBase_V1):
    """One side of the connector; vLLM makes one in the scheduler and one in each worker, which
    alone opens the device.

    Extra config: `url`; `blocks`, optional, blocks kept at most. ValueError for models with more
    than one kind of KV cache.
    """

    def __init__(self, vllm_config, role: KVConnectorRole, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        unknown = set(extra) - {"url", "blocks"}
        if unknown or not isinstance(extra.get("url"), str):
            raise ValueError(f"kv_connector_extra_config {extra} is refused; legal: url, blocks")
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise ValueError(
                f"a model with {len(kv_cache_config.kv_cache_groups)} groups of KV caches is "
                + "refused; legal: one"
            )
        self._url, self._most = extra["url"], extra.get("blocks")
        self._num_blocks = kv_cache_config.num_blocks
        self._block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        # Scheduler.
        self._workers = vllm_config.parallel_config.world_size
        self._stored: Counter = Counter()  # key → workers that have it
        self._requests: dict[str, tuple[Request, list[int]]] = {}  # with its blocks so far
        self._loads: list[tuple[bytes, int]] = []
        # Worker.
        self._layers: list[torch.Tensor] = []  # each [blocks, …]
        self.device: cxl_kv.Device | None = None
        self.store: BlockStore | None = None
        self._failed: set[int] = set()
        self._news = News()

    # - scheduler ----------------------------------------------------------------------------------
    def _there(self, key: bytes) -> bool:
        return self._stored[key] >= self._workers

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if num_computed_tokens % self._block_size:
            return 0, False
        # one token is left to compute
        first, last = (
            num_computed_tokens // self._block_size,
            (request.num_tokens - 1) // self._block_size,
        )
        found = first
        while found < last and self._there(request.block_hashes[found]):
            found += 1
        return (found - first) * self._block_size, False

    def update_state_after_alloc(self, request: Request, blocks, num_external_tokens: int) -> None:
        ids = list(blocks.get_block_ids()[0])
        self._requests[request.request_id] = request, []
        if num_external_tokens:
            # `blocks` are all of the request's, those found in vLLM's own cache first.
            first = request.num_computed_tokens // self._block_size
            for i in range(first, first + num_external_tokens // self._block_size):
                self._loads.append((request.block_hashes[i], ids[i]))

    def build_connector_meta(self, scheduler_output) -> KVConnectorMetadata:
        moves, self._loads = Moves(loads=self._loads), []
        cached = scheduler_output.scheduled_cached_reqs
        new = [
            (r.req_id, r.block_ids[0], r.num_computed_tokens, True)
            for r in scheduler_output.scheduled_new_reqs
        ]
        old = [
            (name, (ids or ([],))[0], computed, name in cached.resumed_req_ids)
            for name, ids, computed in zip(
                cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
            )
        ]
        for name, ids, computed, afresh in new + old:
            if name not in self._requests:
                continue
            request, blocks = self._requests[name]
            blocks[:] = ids if afresh else blocks + ids
            whole = min(
                (computed + scheduler_output.num_scheduled_tokens[name]) // self._block_size,
                len(request.block_hashes),
                len(blocks),
            )
            loading = {key for key, _ in moves.loads}
            moves.stores += [
                (request.block_hashes[i], blocks[i])
                for i in range(whole)
                if not self._there(request.block_hashes[i])
                and request.block_hashes[i] not in loading
            ]
        return moves

    def update_connector_output(self, connector_output) -> None:
        news = connector_output.kv_connector_worker_meta
        if isinstance(news, News):
            self._stored.update(news.stored)
            for key in news.lost:
                del self._stored[key]

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._requests.pop(request.request_id, None)
        return False, None

    # - worker -------------------------------------------------------------------------------------
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Each layer's cache, its blocks along the first dimension, or the kernel blocks that make
        them up; the device is opened here. ValueError for another layout."""
        self._layers = [self._by_block(name, kv_caches[name]) for name in sorted(kv_caches)]
        size = sum(cache[0].numel() * cache.element_size() for cache in self._layers)
        self.device = cxl_kv.open(self._url)
        try:
            self.store = BlockStore(
                self.device,
                size,
                blocks=self._most,
                on_drop=lambda key, _: self._news.lost.add(key),
            )
        except BaseException:
            self.device.close()
            raise

    def _by_block(self, name: str, cache: torch.Tensor) -> torch.Tensor:
        """A view with vLLM's blocks along the first dimension: an attention kernel may cut each
        into several of its own, one behind another (as vLLM's `group_kernel_blocks` has it)."""
        if cache.shape[0] % self._num_blocks:
            raise ValueError(
                f"the cache of {name} has {cache.shape[0]} rows for {self._num_blocks} blocks and "
                + "is refused; legal: a whole number for each block"
            )
        return cache.unflatten(0, (self._num_blocks, -1))

    def start_load_kv(self, forward_context, **kwargs: Any) -> None:
        loads = self._get_connector_metadata().loads
        found = self.store.get_many([key for key, _ in loads])
        for (key, block), data in zip(loads, found, strict=True):
            if not isinstance(data, np.ndarray):
                if data is not None:
                    _LOG.warning("block %d was not loaded: %s", block, data)
                self._failed.add(block)
                self._news.lost.add(key)
                continue
            at = 0
            for cache in self._layers:
                part = cache[block]
                size = part.numel() * part.element_size()
                part.copy_(
                    torch.from_numpy(data[at : at + size]).view(part.dtype).reshape(part.shape)
                )
                at += size

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are done when `start_load_kv` returns."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata, **kwargs: Any
    ) -> None:
        """Layers are stored together, when the pass is over."""

    def wait_for_save(self) -> None:
        if self._failed:
            return
        stores = {
            key: block
            for key, block in self._get_connector_metadata().stores
            if key not in self.store
        }
        done = self.store.put_many([(key, self._bytes_of(block)) for key, block in stores.items()])
        for (key, block), stored in zip(stores.items(), done, strict=True):
            if isinstance(stored, Exception):
                _LOG.warning("block %d was not stored: %s", block, stored)
            elif key in self.store:  # and did not give way to a later one
                self._news.stored[key] += 1
                self._news.lost.discard(key)

    def _bytes_of(self, block: int) -> np.ndarray:
        """A block of every layer, one behind another."""
        return np.concatenate(
            [
                cache[block].detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy()
                for cache in self._layers
            ]
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        news, self._news = self._news, News()
        return news if news.stored or news.lost else None

    def shutdown(self) -> None:
        if self.device is not None:
            self.device.close()
            self.device = self.store = None
