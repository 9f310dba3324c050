# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SGLang (0.5.23): a HiCache storage back end on a KELP device, loaded as its dynamic back end.

::

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name":
    "cxlkv",
      "module_path": "cxl_kv.connectors.sglang", "class_name": "CxlHiCacheStorage", "url":
      "unix:/tmp/kelp.sock", "page_bytes": 1048576}'

A page is stored as its flat bytes. One that the device answers with poison is not there any more:
SGLang ends the prefix before it and computes on from there. Each rank's process finds what it has
stored itself: of a model with latent attention (MLA) on several tensor-parallel ranks SGLang has
one of them write, so that nothing is ever found by all.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

import cxl_kv

from ..blocks import BlockStore

__all__ = ["CxlHiCacheStorage"]

_LOG = logging.getLogger("cxl_kv.sglang")


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous CPU tensor's bytes, uint8[n]; a view where it is contiguous."""
    return tensor.contiguous().view(torch.uint8).reshape(-1).numpy()


class CxlHiCacheStorage(HiCacheStorage):
    """Pages by key.

    `extra_config`: `url`; `page_bytes`, of the largest page of any pool; `blocks`, optional, pages
    at most.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict | None = None):
        extra = storage_config.extra_config or {}
        url, size = extra.get("url"), extra.get("page_bytes")
        if not isinstance(url, str) or not isinstance(size, int):
            raise ValueError(
                f"url = {url!r}, page_bytes = {size!r} is refused; legal: a device URL, and "
                + "the bytes of the largest page"
            )
        # Ranks hold different slices of a page; MLA's are alike on every tensor-parallel rank.
        c = storage_config
        rank = (
            c.model_name,
            c.pp_rank,
            c.pp_size,
            c.attn_cp_rank,
            c.attn_cp_size,
            c.dcp_rank,
            c.dcp_size,
        )
        self._shared, self._own = rank, (*rank, c.tp_rank, c.tp_size)
        self._is_mla = c.is_mla_model
        if not c.is_storage_writer:
            _LOG.warning(
                "rank %d of a latent attention model writes no page, and another's are not found "
                + "here: HiCache will load nothing from this device",
                c.tp_rank,
            )
        self.device = cxl_kv.open(url)
        try:
            self.store = BlockStore(self.device, size, blocks=extra.get("blocks"))
        except BaseException:
            self.device.close()
            raise
        self.registered_pools: dict[str, Any] = {}

    def _key(self, key: str, pool: str = PoolName.KV) -> tuple:
        shared = self._is_mla and pool != PoolName.MAMBA
        return str(pool), key, self._shared if shared else self._own

    # - pages --------------------------------------------------------------------------------------
    def _get(self, key, target: torch.Tensor) -> bool:
        try:
            data = self.store.get(key)
        except cxl_kv.CxlKvError as error:
            _LOG.warning("a page was not loaded: %s", error)
            return False
        if data is None or len(data) != target.numel() * target.element_size():
            return False
        if target.is_contiguous():
            _flat(target)[:] = data
        else:
            target.copy_(torch.from_numpy(data.copy()).view(target.dtype).reshape(target.shape))
        return True

    def _set(self, key, value: torch.Tensor) -> bool:
        if key in self.store:
            self.store.touch([key])
            return True
        try:
            return self.store.put(key, _flat(value))
        except (cxl_kv.CxlKvError, ValueError) as error:
            _LOG.warning("a page was not stored: %s", error)
            return False

    def get(
        self, key: str, target_location: torch.Tensor | None = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        return (
            target_location
            if target_location is not None and self._get(self._key(key), target_location)
            else None
        )

    def batch_get(
        self,
        keys: list[str],
        target_locations: list[torch.Tensor] | None = None,
        target_sizes: Any = None,
    ) -> list[torch.Tensor | None]:
        return [
            self.get(key, target)
            for key, target in zip(keys, target_locations or [None] * len(keys), strict=True)
        ]

    def set(
        self,
        key: str,
        value: torch.Tensor | None = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        return value is not None and self._set(self._key(key), value)

    def batch_set(
        self,
        keys: list[str],
        values: list[torch.Tensor] | None = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Whether all are stored. Each is tried, whatever became of those before it."""
        done = [
            self.set(key, value)
            for key, value in zip(keys, values or [None] * len(keys), strict=True)
        ]
        return all(done)

    def exists(self, key: str) -> bool:
        return self._key(key) in self.store

    # - pages of the host's pools ------------------------------------------------------------------
    def _offsets(self, pool, indices, count) -> list[int] | None:
        """Offsets of the pool's pages, the first of each page's indices; None when there are not as
        many indices as pages take."""
        page = getattr(pool, "page_size", 1) or 1
        if indices is None or indices.numel() != count * page:
            _LOG.error(
                "%s indices for %d pages of %d are refused",
                None if indices is None else indices.numel(),
                count,
                page,
            )
            return None
        return indices.reshape(-1)[::page].tolist()

    def _read(self, pool_name, pool, keys, indices) -> list[bool]:
        offsets, out = self._offsets(pool, indices, len(keys)), []
        if offsets is None:
            return [False] * len(keys)
        for key, offset in zip(keys, offsets, strict=True):
            page = pool.get_dummy_flat_data_page()
            ok = self._get(self._key(key, pool_name), page)
            if ok:
                pool.set_from_flat_data_page(offset, page)
            out.append(ok)
        return out

    def _write(self, pool_name, pool, keys, indices) -> list[bool]:
        offsets = self._offsets(pool, indices, len(keys))
        if offsets is None:
            return [False] * len(keys)
        return [
            self._set(self._key(key, pool_name), pool.get_data_page(offset, flat=True))
            for key, offset in zip(keys, offsets, strict=True)
        ]

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info=None
    ) -> list[bool]:
        return self._read(PoolName.KV, self.mem_pool_host, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info=None
    ) -> list[bool]:
        return self._write(PoolName.KV, self.mem_pool_host, keys, host_indices)

    def batch_get_v2(self, transfers: list[PoolTransfer], extra_info=None) -> dict[str, list[bool]]:
        return {
            t.name: self._read(t.name, self.registered_pools[t.name], t.keys or [], t.host_indices)
            for t in transfers
        }

    def batch_set_v2(self, transfers: list[PoolTransfer], extra_info=None) -> dict[str, list[bool]]:
        return {
            t.name: self._write(t.name, self.registered_pools[t.name], t.keys or [], t.host_indices)
            for t in transfers
        }

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None, extra_info=None
    ) -> PoolTransferResult:
        """The longest prefix whose KV pages are all there and which every pool allows by its
        policy; a pool of key groups tells what it covers, and allows everything."""

        def there(i, pool=PoolName.KV):
            return self._key(keys[i], pool) in self.store

        def leading(pool=PoolName.KV, most=len(keys)):
            return next((i for i in range(most) if not there(i, pool)), most)

        whole = leading()
        hits = {PoolName.KV: whole} if whole else {}
        legal = list(range(1, whole + 1))
        for t in pool_transfers or []:
            if t.hit_policy == PoolHitPolicy.ALL_PAGES:
                allowed = range(1, leading(t.name, whole) + 1)
            elif t.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                trailing = max(1, len(t.keys or ()))
                allowed = [
                    n
                    for n in range(1, whole + 1)
                    if all(there(i, t.name) for i in range(max(0, n - trailing), n))
                ]
            else:
                covered = self._covered_by_groups(t)
                if covered:
                    hits[t.name] = covered
                continue
            if len(allowed):
                hits[t.name] = max(allowed)
            legal = [n for n in legal if n in set(allowed)]
        return PoolTransferResult(legal[-1] if legal else 0, hits, legal)

    def _covered_by_groups(self, t: PoolTransfer) -> int:
        """BLOCK_GROUPS: pages that the leading whole groups of the pool's own keys cover,
        `group_pages` keys for each block of `block_pages` pages."""
        if t.block_pages < 1 or t.group_pages < 1:
            raise ValueError(
                f"pool {t.name}: block_pages = {t.block_pages}, group_pages = {t.group_pages} "
                + "are refused; legal: 1 and up"
            )
        keys = t.keys or []
        there = next(
            (i for i, key in enumerate(keys) if self._key(key, t.name) not in self.store), len(keys)
        )
        return there // t.group_pages * t.block_pages

    def clear(self) -> None:
        for key in self.store.keys():
            self.store.delete(key)

    def close(self) -> None:
        self.device.close()
