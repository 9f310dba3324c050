# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""vLLM's own scheduler, block pool and connector factory with KELP devices behind them; only the
forward pass is stood in for, by a function of the tokens."""

import collections
import json
import time

import numpy as np
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
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

__all__ = ["BLOCK", "BLOCKS", "DIM", "HEADS", "LAYERS", "Engine", "prompt"]

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
SAMPLED = 7  #: every token that a pass samples
WRONG = torch.full((HEADS, 2 * DIM), 99.0, dtype=torch.bfloat16)


def prompt(seed, tokens=70):
    return np.random.default_rng(seed).integers(3, 128, tokens).tolist()


def _config(folder, memory, extra):
    policy = extra.pop("policy", "recompute")
    (folder / "config.json").write_text(json.dumps(MODEL))
    transfer = KVTransferConfig(
        kv_connector="CxlConnector",
        kv_connector_module_path="cxl_kv.connectors.vllm_connector",
        kv_role="kv_both",
        kv_load_failure_policy=policy,
        kv_connector_extra_config=extra,
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = memory
    return VllmConfig(
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


class Engine:
    """vLLM's engine loop in short: schedule, load, compute, store, report.

    Parameters
    ----------
    workers : int
        Ranks of one tensor-parallel model, each with caches and a device of its own: what one of
        them attends to wrongly is wrong in all.
    overlap : int
        Passes that are scheduled before the first one's outcome is known, and that one.
    late_save : bool
        A pass's stores are finished after its outcome has left, as with a draft model.
    memory : int
        Blocks of each worker's caches.
    window : int or (int, int)
        A sliding window of the last layer, or of as many of the last ones: a group of their own.
    extra
        `policy`, of failed loads; `generated`, how many of the tokens that a request has generated
        its layers see beside its prompt (a reference window); and the connector's own settings.
    """

    def __init__(
        self,
        folder,
        kernel_blocks=1,
        window=None,
        workers=1,
        overlap=1,
        late_save=False,
        memory=BLOCKS,
        **extra,
    ):
        self.generated = extra.pop("generated", None)
        self.config = _config(folder, memory, {"url": "golden:trace?frames=64,16,16,16", **extra})
        # Set late: these processes are never started, and no executor supports them here.
        self.config.parallel_config.world_size = workers
        self.config.scheduler_config.async_scheduling = overlap > 1
        names = [f"layer.{i}" for i in range(LAYERS)]
        sizes = dict(block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16)
        window, windowed = window if isinstance(window, tuple) else (window, int(bool(window)))
        dense = LAYERS - windowed
        spec = FullAttentionSpec(**sizes)
        if self.generated:
            spec = RSWASpec(**sizes, rswa_window=self.generated)
        groups = [KVCacheGroupSpec(names[:dense], spec)] if dense else []
        if window:
            spec = SlidingWindowSpec(**sizes, sliding_window=window)
            groups.append(KVCacheGroupSpec(names[dense:], spec))
        self.window, self.dense, self.overlap, self.late_save = window, dense, overlap, late_save
        self.groups = [int(0 < dense <= i) for i in range(LAYERS)]  # by layer
        self.kv_config = KVCacheConfig(
            num_blocks=memory, kv_cache_tensors=[], kv_cache_groups=groups
        )
        self.scheduler = (AsyncScheduler if overlap > 1 else Scheduler)(
            self.config, self.kv_config, StructuredOutputManager(self.config), block_size=BLOCK
        )
        self.kernel_block = BLOCK // kernel_blocks  # tokens
        self.workers, self.all_caches = [], []
        for rank in range(workers):
            self._start_worker(rank, (memory * kernel_blocks, HEADS, self.kernel_block, 2 * DIM))
        self.worker, self.caches = self.workers[0], self.all_caches[0]
        self.requests: dict[str, Request] = {}
        self.tables: dict[str, list[list[int]]] = {}  # of each group
        self.computed = 0  # tokens that forward passes were given
        self.failed_requests: set[str] = set()  # of loads beside the passes
        self.weights = 0  # of the model, as it is now
        self._under_way: collections.deque = collections.deque()  # passes
        self._received: collections.Counter = collections.Counter()  # request → workers

    def _start_worker(self, rank, shape):
        self.config.parallel_config.rank = rank
        worker = KVConnectorFactory.create_connector(
            self.config, KVConnectorRole.WORKER, self.kv_config
        )
        caches = {f"layer.{i}": torch.zeros(shape, dtype=torch.bfloat16) for i in range(LAYERS)}
        worker.register_kv_caches(caches)
        self.workers.append(worker)
        self.all_caches.append(caches)

    def close(self):
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()

    def add(self, name, tokens, salt=None, most=3):
        init_none_hash(sha256)
        request = Request(
            name,
            list(tokens),
            SamplingParams(max_tokens=most, ignore_eos=True),
            None,
            cache_salt=salt,
            block_hasher=get_request_block_hasher(BLOCK, sha256),
        )
        self.requests[name] = request
        self.scheduler.add_request(request)
        return request

    def right(self, name, position, layer, rank=0):
        """What a layer's cache must hold at a position: a function of every token up to it, as
        attention is, of the weights and of the worker's part of them."""
        told = self.requests[name].prompt_token_ids
        tokens = (*told, *[SAMPLED] * (position + 1 - len(told)))[: position + 1]
        seed = hash((self.weights, rank, *tokens)) & 0x7FFFFFFF
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
        """Whether a layer's caches hold what the pass from position `start` on must read there."""
        first = max(0, start - self.window + 1) if layer >= self.dense else 0
        seen = range(first, start)
        if self.generated:
            told = self.requests[name].num_prompt_tokens
            seen = [p for p in seen if p < told or p > start - self.generated]
        return all(
            torch.equal(
                caches[f"layer.{layer}"][self.place(name, p, layer)],
                self.right(name, p, layer, rank),
            )
            for rank, caches in enumerate(self.all_caches)
            for p in seen
        )

    def step(self):
        """One pass, as vLLM's runner makes it; the load errors that it had."""
        out = self.scheduler.schedule()
        result = self._execute(out)
        self._under_way.append((out, result))
        if len(self._under_way) >= self.overlap:
            self.scheduler.update_from_output(*self._under_way.popleft())
        if not out.num_scheduled_tokens:
            time.sleep(0.005)  # requests wait for the thread that loads
        return result.kv_connector_output.invalid_block_ids

    def settle(self):
        """The scheduler hears of every pass that was made."""
        while self._under_way:
            self.scheduler.update_from_output(*self._under_way.popleft())

    def _starts(self, out):
        """Of each request of a pass: its first position. Tables are brought up to date."""
        for r in out.scheduled_new_reqs:
            self.tables[r.req_id] = [list(ids) for ids in r.block_ids]
        cached = out.scheduled_cached_reqs
        for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            afresh = name in cached.resumed_req_ids
            for table, more in zip(self.tables[name], ids or (), strict=bool(ids)):
                table[:] = list(more) if afresh else table + list(more)
        return {r.req_id: r.num_computed_tokens for r in out.scheduled_new_reqs} | dict(
            zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        )

    def _execute(self, out):
        starts = self._starts(out)
        for worker in self.workers:
            worker.bind_connector_metadata(out.kv_connector_metadata)
            if out.has_sync_kv_loads:
                worker.start_load_kv(None)
        names, astray = list(out.num_scheduled_tokens), set()
        for i in range(LAYERS if names else 0):
            for worker in self.workers:
                worker.wait_for_layer_load(f"layer.{i}")
            for name in names:
                start, count = starts[name], out.num_scheduled_tokens[name]
                if not self.check(name, start, i):
                    astray.add(name)
                for position in range(start, start + count):
                    for rank, caches in enumerate(self.all_caches):
                        # What is computed from a lost block is wrong, and must not be kept.
                        value = WRONG if name in astray else self.right(name, position, i, rank)
                        caches[f"layer.{i}"][self.place(name, position, i)] = value
            for worker, caches in zip(self.workers, self.all_caches, strict=True):
                worker.save_kv_layer(f"layer.{i}", caches[f"layer.{i}"], None)
        sampled = []
        for name in names:
            self.computed += out.num_scheduled_tokens[name]
            done = starts[name] + out.num_scheduled_tokens[name]
            sampled.append([SAMPLED] if done >= self.requests[name].num_tokens else [])
        output = self._outcome(out)
        for name in astray:
            assert output.invalid_block_ids & set(self.tables[name][0]), (
                f"{name} attended to something else than its own tokens"
            )
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=output,
        )

    def _outcome(self, out):
        """The end of a pass, and what the workers say of it, as vLLM puts it together."""
        failed, invalid, news = set(), set(), None
        for worker in self.workers:
            if not out.has_sync_kv_loads:
                worker.start_load_kv(None)
            if not self.late_save:
                worker.wait_for_save()
            results = worker.get_transfer_results(out.finished_req_ids)
            self._received.update(results.finished_recving)
            failed |= results.failed_recving
            invalid |= worker.get_block_ids_with_load_errors()
            more = worker.build_connector_worker_meta()
            news = news.aggregate(more) if news and more else news or more
            if self.late_save:
                worker.wait_for_save()
            worker.clear_connector_metadata()
        self.failed_requests |= failed
        received = {name for name, n in self._received.items() if n == len(self.workers)}
        for name in received:
            del self._received[name]
        return KVConnectorOutput(
            finished_recving=received,
            failed_recving=failed,
            invalid_block_ids=invalid,
            kv_connector_worker_meta=news,
        )

    def run(self):
        """To the end of every request; the passes' load errors."""
        errors = []
        for _ in range(2000):
            if not self.scheduler.has_unfinished_requests():
                self.settle()
                return errors
            errors.append(self.step())
        raise AssertionError("requests did not end")

    def forget(self):
        """vLLM's own prefix cache is emptied, and its memory overwritten: what is found from here
        on came from the device."""
        assert self.scheduler.kv_cache_manager.reset_prefix_cache()
        for caches in self.all_caches:
            for cache in caches.values():
                cache.fill_(55.0)

    def stored(self):
        """How many blocks would be found, each of which is right in every worker that still has
        it."""
        connector, whose = self.scheduler.connector, {}
        for name, request in self.requests.items():
            whose |= {tokens: (name, i) for i, tokens in enumerate(request.block_hashes)}
        found = 0
        for key in filter(connector._there, list(connector._stored)):
            name, i = whose[key.tokens]
            found += 1
            for rank, worker in enumerate(self.workers):
                data = worker.store.get_many([key])[0]
                for number, layer in enumerate(worker._layers.values()):
                    if layer.group != key.group or not isinstance(data, np.ndarray):
                        continue
                    rows = torch.from_numpy(data[layer.first : layer.first + layer.size].copy())
                    rows = rows.view(torch.bfloat16).reshape(-1, *layer.cache.shape[-3:])
                    rows = rows.transpose(1, 2).reshape(BLOCK, HEADS, 2 * DIM)
                    positions = range(i * BLOCK, (i + 1) * BLOCK)
                    right = torch.stack([self.right(name, p, number, rank) for p in positions])
                    assert torch.equal(rows, right), f"block {i} of {name} is wrong in {rank}"
        return found
