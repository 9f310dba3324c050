# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""vLLM (0.33): a KV connector on a KELP device, loaded by module path, whose lost blocks come back
to the scheduler as load errors.

::

    --kv-transfer-config '{"kv_connector": "CxlConnector", "kv_connector_module_path":
    "cxl_kv.connectors.vllm_connector", "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"url":
      "unix:/tmp/kelp.sock"}}'

A block of all layers of one KV cache group is one object, under the group and vLLM's own hash of
the tokens up to its end (which holds cache_salt and LoRA). A thread moves them, layer by layer:

- Loads of a pass begin before it (`start_load_kv`); each attention layer waits for its own
  (`wait_for_layer_load`). What no layer has ever waited for, as an indexer's keys, is there before
  the pass begins. With ``"load_async": true``, and always where a model has several groups or a
  window, or passes overlap (asynchronous scheduling, pipeline parallelism), a request waits outside
  the passes instead, until `get_finished` names it.
- Each layer's stores are copied out as soon as it is computed (`save_kv_layer`), and go to the
  device together when the pass is over (`wait_for_save`).

A block that the device answers with poison, or that is not there any more, is reported by
`get_block_ids_with_load_errors` (with several groups or a window, its request by
`get_transfer_results`): with the policy "recompute" the scheduler computes it and what follows it
anew and the request goes on, with "fail" it ends. Whatever computes with a lost block is wrong from
there on: in every worker of the pass, also in those whose own loads went well, and in the passes
that were scheduled before the failure was known. The scheduler counts nothing of what these stored,
and has it forgotten.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    RSWASpec,
    group_kernel_blocks,
    iter_layer_specs,
)

import cxl_kv
from kelp_spec.formats import LINE_BYTES

from ..arguments import instance
from ..blocks import BlockStore

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["CxlConnector"]

_LOG = logging.getLogger("cxl_kv.vllm")


class Key(NamedTuple):
    """Of one object."""

    group: int
    tokens: bytes  #: vLLM's hash


@dataclass
class Moves(KVConnectorMetadata):
    """Of one pass, scheduler to worker: (key, block) pairs to load before it, by request to load
    beside it, and to store after it; keys to forget before all that, or None for every key."""

    number: int = 0  #: of the pass
    forget: set[Key] | None = field(default_factory=set)
    loads: list[tuple[Key, int]] = field(default_factory=list)
    beside: dict[str, list[tuple[Key, int]]] = field(default_factory=dict)
    stores: list[tuple[Key, int]] = field(default_factory=list)


@dataclass
class News(KVConnectorWorkerMetadata):
    """Workers to scheduler: the workers, by their ranks, that have what a pass had them store, by
    pass and key; keys that one or more have lost; the latest pass that computed with lost
    blocks."""

    stored: dict[int, dict[Key, set[int]]] = field(default_factory=dict)
    lost: set[Key] = field(default_factory=set)
    spoiled: int = 0

    def aggregate(self, other: News) -> News:
        stored = {number: dict(keys) for number, keys in self.stored.items()}
        for number, keys in other.stored.items():
            of_pass = stored.setdefault(number, {})
            for key, ranks in keys.items():
                of_pass[key] = of_pass.get(key, set()) | ranks
        return News(stored, self.lost | other.lost, max(self.spoiled, other.spoiled))


@dataclass
class Known:
    """What the scheduler's side knows of a request."""

    request: Request
    local: int = 0  #: tokens that vLLM's own cache had when it was looked up here
    blocks: list[list[int]] = field(default_factory=list)  #: so far, of each group
    offered: int = 0  #: blocks that were to be stored already
    older: bool = False  #: holds what was computed before a reset


class Layer(NamedTuple):
    """One layer's cache, its blocks along the first dimension, and its place in an object."""

    cache: torch.Tensor
    group: int
    first: int  #: byte of the object, a multiple of a line
    size: int  #: bytes of one block


class Load:
    """Blocks on their way into the caches, of one layer after the other."""

    def __init__(self, pairs: list[tuple[Key, int]], layers: Iterable[str]):
        self.pairs = pairs
        # Requests of one prefix may wait for one key in several blocks.
        self.lost: dict[Key, set[int]] = {}
        self.ready = {name: threading.Event() for name in layers}
        self.future: Future | None = None


def _has_window(spec) -> bool:
    """Whether vLLM takes blocks back that a request needs no more: of RSWASpec those that it has
    generated, although it is full attention's."""
    return any(
        isinstance(one, RSWASpec) or not isinstance(one, FullAttentionSpec)
        for one in iter_layer_specs(spec)
    )


class CxlConnector(KVConnectorBase_V1, SupportsHMA):
    """One side of the connector; vLLM makes one in the scheduler and one in each worker, which
    alone opens the device.

    Extra config: `url`; `blocks`, optional, blocks kept at most (of each group, one); `load_async`,
    optional. ValueError for KV cache groups of different block sizes, of other states than
    attention's, or of blocks that vLLM itself does not find again by their hashes.
    """

    def __init__(self, vllm_config, role: KVConnectorRole, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        unknown = set(extra) - {"url", "blocks", "load_async"}
        if unknown or not isinstance(extra.get("url"), str):
            raise ValueError(
                f"kv_connector_extra_config {extra} is refused; legal: url, blocks, load_async"
            )
        groups = kv_cache_config.kv_cache_groups
        sizes = {group.kv_cache_spec.block_size for group in groups}
        sizes.add(kv_cache_config.hash_block_size or next(iter(sizes)))
        specs = [spec for group in groups for spec in iter_layer_specs(group.kv_cache_spec)]
        if (
            len(sizes) != 1
            # A ring of the newest tokens is attention's, too, but no block of it is of some tokens.
            or not all(isinstance(one, AttentionSpec) and one.prefix_cacheable for one in specs)
            or not all(group.enable_kv_transfer for group in groups)
        ):
            kinds = dict.fromkeys(f"{type(one).__name__} of {one.block_size}" for one in specs)
            raise ValueError(
                f"KV cache groups {', '.join(kinds)}, hashes of {kv_cache_config.hash_block_size} "
                + "are refused; legal: attention's, of one block size, whose blocks are found "
                + "again by their hashes"
            )
        self._url, self._most = extra["url"], extra.get("blocks")
        self._num_blocks = kv_cache_config.num_blocks
        self._block_size = sizes.pop()
        self._groups = range(len(groups))
        self._group_of = {name: i for i, g in enumerate(groups) for name in g.layer_names}
        # Block numbers mean nothing across groups, and from a lost block of a window on there is
        # nothing to compute with: vLLM has no blocks before those that it was to load. So only a
        # request that waits can be failed, which starts over.
        self._start_over = len(groups) > 1 or any(_has_window(g.kv_cache_spec) for g in groups)
        # And a failure in a pass must be known before another is scheduled on what it was to load:
        # vLLM takes back the request itself, but not those that share its blocks since.
        self._beside = (
            instance("load_async", extra.get("load_async", False), bool, "true, false")
            or self._start_over
            or vllm_config.max_concurrent_batches > 1
        )
        # Scheduler.
        self._workers = vllm_config.parallel_config.world_size
        self._stored: dict[Key, set[int]] = {}  # the ranks of workers that have it
        self._requests: dict[str, Known] = {}
        self._next = Moves()
        self._pass = 0  # the latest
        self._distrusted = 0  # what passes up to this one have stored does not count
        self._under_way: dict[int, list[Key]] = {}  # what passes were told to store
        # Worker.
        self._rank = vllm_config.parallel_config.rank
        self._layers: dict[str, Layer] = {}
        self.device: cxl_kv.Device | None = None
        self.store: BlockStore | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._number = 0  # of this pass
        self._load: Load | None = None  # of this pass
        self._receiving: dict[str, Load] = {}  # by request
        self._asked: set[str] = set()  # layers that have waited for a load, had there been one
        self._saved: dict[str, np.ndarray] = {}  # of this pass: a layer's blocks, a row each
        self._sizes: list[int] = []  # bytes of an object, by group
        self._spoiled = False  # this pass computes with lost blocks
        self._failed: set[int] = set()
        self._dropped: deque[Key] = deque()  # from either thread
        self._news = News()

    @property
    def requires_kv_delivery(self) -> bool:
        """Nobody waits for a block: one that was not stored is a later miss."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A graph of the whole model would leave out the calls of each layer."""
        return True

    # - scheduler ----------------------------------------------------------------------------------
    def _keys(self, tokens: bytes) -> list[Key]:
        return [Key(group, tokens) for group in self._groups]

    def _know(self, request: Request) -> Known:
        return self._requests.setdefault(request.request_id, Known(request))

    def _there(self, key: Key) -> bool:
        return len(self._stored.get(key, ())) >= self._workers

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        # Where a load begins: `num_computed_tokens` of the request itself does not say.
        self._know(request).local = num_computed_tokens
        if num_computed_tokens % self._block_size:
            return 0, False
        # one token is left to compute
        first, last = (
            num_computed_tokens // self._block_size,
            (request.num_tokens - 1) // self._block_size,
        )
        found = first
        while found < last and all(map(self._there, self._keys(request.block_hashes[found]))):
            found += 1
        return (found - first) * self._block_size, self._beside and found > first

    def update_state_after_alloc(self, request: Request, blocks, num_external_tokens: int) -> None:
        known = self._know(request)
        known.blocks, known.offered, known.older = [[] for _ in self._groups], 0, False
        if not num_external_tokens:
            return
        # `blocks` are all of the request's, those found in vLLM's own cache first.
        first = known.local // self._block_size
        pairs = [
            (key, ids[i])
            for i in range(first, first - -num_external_tokens // self._block_size)
            for key, ids in zip(
                self._keys(request.block_hashes[i]), blocks.get_block_ids(), strict=True
            )
            if ids[i]  # block 0 stands where a sliding window needs none
        ]
        if self._beside:
            self._next.beside[request.request_id] = pairs
        else:
            self._next.loads += pairs

    def build_connector_meta(self, scheduler_output) -> KVConnectorMetadata:
        moves, self._next = self._next, Moves()
        self._pass += 1
        moves.number = self._pass
        cached = scheduler_output.scheduled_cached_reqs
        none = [[] for _ in self._groups]
        new = [
            (r.req_id, r.block_ids, r.num_computed_tokens, True)
            for r in scheduler_output.scheduled_new_reqs
        ]
        old = [
            (name, ids or none, computed, name in cached.resumed_req_ids)
            for name, ids, computed in zip(
                cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
            )
        ]
        loading = {key for key, _ in moves.loads}
        for name, ids, computed, afresh in new + old:
            known = self._requests.get(name)
            if known is None or known.older:
                continue
            hashes = known.request.block_hashes
            whole = min(
                (computed + scheduler_output.num_scheduled_tokens[name]) // self._block_size,
                len(hashes),
            )
            # From where it was taken back to, after a failed load, it is computed anew.
            first = min(known.offered, computed // self._block_size)
            known.offered = max(first, whole)
            for group, (blocks, more) in enumerate(zip(known.blocks, ids, strict=True)):
                blocks[:] = more if afresh else blocks + list(more)
                keys = [Key(group, tokens) for tokens in hashes[first:whole]]
                moves.stores += [
                    (key, block)
                    for key, block in zip(keys, blocks[first:], strict=False)
                    if block and not self._there(key) and key not in loading
                ]
        if moves.stores:
            self._under_way[moves.number] = [key for key, _ in moves.stores]
        return moves

    def update_connector_output(self, connector_output) -> None:
        news = connector_output.kv_connector_worker_meta
        if not isinstance(news, News):
            return
        for key in news.lost:
            self._stored.pop(key, None)
        if news.spoiled > self._distrusted:
            # So have the passes that were scheduled since, not knowing of it.
            doubtful = {
                key
                for number, keys in self._under_way.items()
                if number >= news.spoiled
                for key in keys
            }
            for key in doubtful:
                self._stored.pop(key, None)
            if self._next.forget is not None:
                self._next.forget |= doubtful
            self._distrust()
        for number, keys in news.stored.items():
            self._under_way.pop(number, None)
            if number > self._distrusted:
                for key, ranks in keys.items():
                    self._stored[key] = self._stored.get(key, set()) | ranks

    def _distrust(self) -> None:
        """Count nothing of what was told to be stored so far, and offer it again."""
        self._distrusted = self._pass
        self._under_way.clear()
        for known in self._requests.values():
            known.offered = 0

    def reset_cache(self) -> bool:
        """Forget every block, as after a change of the model's weights: nothing that was computed
        before this call is loaded after it."""
        self._stored.clear()
        self._next.forget = None
        self._distrust()
        for known in self._requests.values():
            known.older = True  # until it starts over
        return True

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._requests.pop(request.request_id, None)
        return False, None

    # - worker -------------------------------------------------------------------------------------
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Each layer's cache, its blocks along the first dimension, or the kernel blocks that make
        them up; the device is opened here, and one from an earlier call closed: its blocks are
        misses from then on. ValueError for another layout."""
        self.shutdown()
        self._layers, self._sizes = {}, [0 for _ in self._groups]
        for name, cache in kv_caches.items():
            if name not in self._group_of:
                continue  # another name for a layer's cache
            if cache.shape[0] % self._num_blocks:
                raise ValueError(
                    f"the cache of {name} has {cache.shape[0]} rows for {self._num_blocks} blocks "
                    + "and is refused; legal: a whole number for each block"
                )
            group, blocks = self._group_of[name], group_kernel_blocks(cache, self._num_blocks)
            size = blocks[0].numel() * blocks.element_size()
            self._layers[name] = Layer(blocks, group, self._sizes[group], size)
            self._sizes[group] += -(-size // LINE_BYTES) * LINE_BYTES
        self.device = cxl_kv.open(self._url)
        try:
            self.store = BlockStore(
                self.device,
                max(self._sizes),
                blocks=None if self._most is None else self._most * len(self._groups),
                on_drop=lambda key, _: self._dropped.append(key),
            )
        except BaseException:
            self.device.close()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cxl_kv.vllm")

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._spoiled, self._saved = False, {}
        self._number, forget = connector_metadata.number, connector_metadata.forget
        for key in self.store.keys() if forget is None else forget:
            self.store.delete(key)

    def start_load_kv(self, forward_context, **kwargs: Any) -> None:
        moves = self._get_connector_metadata()
        if moves.loads:
            self._load = self._submit(moves.loads)
            for name in self._layers.keys() - self._asked:
                self._load.ready[name].wait()
        for request, pairs in moves.beside.items():
            self._receiving[request] = self._submit(pairs)

    def _submit(self, pairs) -> Load:
        # First what nobody waits for within the pass.
        load = Load(pairs, sorted(self._layers, key=self._asked.__contains__))
        load.future = self._thread.submit(self._carry_out, load)
        return load

    def _carry_out(self, load: Load) -> None:
        """On the thread: every layer by one call of the device and one copy."""
        try:
            for name in load.ready:
                layer = self._layers[name]
                pairs = [
                    (key, block)
                    for key, block in load.pairs
                    if key.group == layer.group and block not in load.lost.get(key, ())
                ]
                found = self.store.get_many(
                    [key for key, _ in pairs], first=layer.first, size=layer.size
                )
                blocks, parts = [], []
                for (key, block), data in zip(pairs, found, strict=True):
                    if isinstance(data, np.ndarray):
                        blocks.append(block)
                        parts.append(data)
                        continue
                    if data is not None:
                        _LOG.warning("block %d was not loaded: %s", block, data)
                    load.lost.setdefault(key, set()).add(block)
                if blocks:
                    rows = torch.from_numpy(np.stack(parts)).view(layer.cache.dtype)
                    rows = rows.reshape(len(blocks), *layer.cache.shape[1:])
                    layer.cache[torch.tensor(blocks)] = rows.to(layer.cache.device)
                    if layer.cache.is_cuda:
                        # The model computes on another stream than this thread's.
                        torch.cuda.current_stream(layer.cache.device).synchronize()
                load.ready[name].set()
        except Exception as error:
            # Of what was to come nothing is known: the scheduler computes it anew.
            _LOG.error("a load failed: %s: %s", type(error).__name__, error)
            for key, block in load.pairs:
                load.lost.setdefault(key, set()).add(block)
        finally:
            for event in load.ready.values():
                event.set()

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._asked.add(layer_name)
        if self._load is not None and layer_name in self._load.ready:
            self._load.ready[layer_name].wait()

    def _finish_load(self) -> None:
        """This pass's loads are in the caches, and what was lost is known."""
        if self._load is not None:
            load, self._load = self._load, None
            load.future.result()
            if load.lost:
                self._spoiled = True
                self._news.spoiled = self._number
            self._failed.update(*load.lost.values())
            self._news.lost |= set(load.lost)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, {name for name, load in self._receiving.items() if load.future.done()}

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        _, done = self.get_finished(finished_req_ids)
        failed = set()
        for name in done:
            load = self._receiving.pop(name)
            load.future.result()
            self._news.lost |= set(load.lost)
            if load.lost and self._start_over:
                failed.add(name)
            else:
                self._failed.update(*load.lost.values())
        return KVConnectorTransferResults(finished_recving=done, failed_recving=failed)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata, **kwargs: Any
    ) -> None:
        if layer_name in self._layers and self._get_connector_metadata().stores:
            self._saved[layer_name] = self._copied_out(layer_name)

    def _copied_out(self, name: str) -> np.ndarray:
        """uint8[blocks, bytes] of what this pass stores of one layer, in the order of `stores`."""
        layer = self._layers[name]
        blocks = [b for key, b in self._get_connector_metadata().stores if key.group == layer.group]
        rows = layer.cache[torch.tensor(blocks, dtype=torch.int64)].detach().cpu().contiguous()
        return rows.flatten(1).view(torch.uint8).numpy()

    def wait_for_save(self) -> None:
        self._finish_load()
        saved, stores = self._saved, self._get_connector_metadata().stores
        if self._spoiled or not stores:
            return
        wanted: dict[Key, tuple[int, np.ndarray]] = {}
        for group in self._groups:
            of_group = [pair for pair in stores if pair[0].group == group]
            objects = np.zeros((len(of_group), self._sizes[group]), np.uint8)
            for name, layer in self._layers.items():
                if layer.group == group and of_group:
                    # Where no attention layer calls save_kv_layer, it is copied out here.
                    rows = saved[name] if name in saved else self._copied_out(name)
                    objects[:, layer.first : layer.first + layer.size] = rows
            for (key, block), data in zip(of_group, objects, strict=True):
                if key not in self.store:
                    wanted[key] = block, data
        done = self.store.put_many([(key, data) for key, (_, data) in wanted.items()])
        self._take_dropped()
        for (block, _), stored in zip(wanted.values(), done, strict=True):
            if isinstance(stored, Exception):
                _LOG.warning("block %d was not stored: %s", block, stored)
        # What is here, also from before where another worker had lost it; not what has given way.
        have = {key for key, _ in stores if key in self.store}
        self._news.lost -= have
        self._news.stored[self._number] = {key: {self._rank} for key in have}

    def _take_dropped(self) -> None:
        while self._dropped:
            self._news.lost.add(self._dropped.popleft())

    def get_block_ids_with_load_errors(self) -> set[int]:
        self._finish_load()
        failed, self._failed = self._failed, set()
        return failed

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        self._take_dropped()
        news, self._news = self._news, News()
        for key in news.lost:
            if key not in self.store:  # may be lost since it was stored
                for keys in news.stored.values():
                    keys.pop(key, None)
        return news if news.stored or news.lost or news.spoiled else None

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        if self.device is not None:
            self.device.close()
            self.device = self.store = None
