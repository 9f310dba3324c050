# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""vLLM's own offloading classes with a KELP device as a secondary tier, and KELP's formula as the
policy of its CPU tier; both loaded by module path."""

import json
import mmap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

import cxl_kv

CHUNK, CHUNKS = 4096, 8


def key_of(number):
    return make_offload_key(number.to_bytes(8, "big"), 0)


def content(seed):
    return np.random.default_rng(seed).integers(0, 256, CHUNK, np.uint8)


class Region:
    """What the manager needs of vLLM's shared region: one mapping, as many rows as chunks."""

    def __init__(self):
        self.memory = mmap.mmap(-1, CHUNK * CHUNKS)
        self.rows = np.frombuffer(self.memory, np.uint8).reshape(CHUNKS, CHUNK)

    def create_kv_memoryview(self):
        return memoryview(self.memory).cast("B", (CHUNKS, CHUNK))

    def cleanup(self):
        pass


def tier_of(view, url="golden:trace?frames=8,8,8,8", **config):
    return SecondaryTierFactory.create_secondary_tier(
        {"type": "CxlTier", "module_path": "cxl_kv.connectors.vllm", "url": url, **config},
        primary_kv_view=view,
        offloading_spec=None,
    )


def test_the_configuration_file_makes_the_tier(region):
    file = Path(__file__).resolve().parents[2] / "examples" / "configs" / "vllm_tier.json"
    extra = json.loads(file.read_text())["kv_connector_extra_config"]
    (tier,) = extra["secondary_tiers"]
    made = SecondaryTierFactory.create_secondary_tier(
        tier | {"url": "golden:trace"},
        primary_kv_view=region.create_kv_memoryview(),
        offloading_spec=None,
    )
    made.shutdown()
    policy = CachePolicyFactory.get_cache_policy_cls(
        extra["eviction_policy"], extra["cache_policy_module_path"]
    )
    assert policy.__name__ == "KelpCachePolicy"


@pytest.fixture
def region():
    return Region()


@pytest.fixture
def tier(region):
    made = tier_of(region.create_kv_memoryview(), blocks=6)
    yield made
    made.shutdown()


def job(number, keys, chunks, load=False):
    return TransferJob(number, keys, np.array(chunks), load, ReqContext("r"))


def finished(tier):
    results = {}
    while tier.has_pending_work():
        results |= {result.job_id: result for result in tier.get_finished_jobs()}
        time.sleep(0.001)
    return results


def test_chunks_come_back_as_they_went_in(tier, region):
    context, keys = ReqContext("r"), [key_of(i) for i in range(4)]
    for i in range(4):
        region.rows[i] = content(i)
    tier.submit_store(job(1, keys, range(4)))
    done = finished(tier)[1]
    assert done.success and done.transfer_bytes == 4 * CHUNK and not tier.has_pending_work()
    assert [tier.lookup(key, context) for key in [*keys, key_of(9)]] == [LookupResult.HIT] * 4 + [
        LookupResult.MISS
    ]
    region.rows[:] = 0
    tier.submit_load(job(2, keys[::-1], [7, 6, 5, 4], load=True))
    assert finished(tier)[2].success and all(
        (region.rows[4 + i] == content(i)).all() for i in range(4)
    )
    tier.submit_load(job(3, [keys[0], key_of(9)], [0, 1], load=True))
    failed = finished(tier)[3]
    assert (
        not failed.success
        and list(failed.successful_keys) == [keys[0]]
        and (region.rows[0] == content(0)).all()
    )


def test_a_job_that_breaks_is_a_failed_one_and_the_next_goes_on(tier, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    context = ReqContext("r")
    with monkeypatch.context() as patch:
        patch.setattr(tier.store, "put", broken)
        tier.submit_store(job(1, [key_of(1)], [0]))
        assert not finished(tier)[1].success
        assert tier.lookup(key_of(1), context) == LookupResult.MISS
    tier.submit_store(job(2, [key_of(1)], [0]))
    assert finished(tier)[2].success and tier.lookup(key_of(1), context) == LookupResult.HIT


def test_poison_is_a_failed_key_and_leaves_no_data(tier, region):
    keys = [key_of(i) for i in range(6)]
    for i in range(6):
        region.rows[i] = content(i)
    tier.submit_store(job(1, keys, range(6)))
    finished(tier)
    region.rows[:] = 0
    tier.device.transport.core.fail_fetches()
    tier.submit_load(job(2, keys, range(6), load=True))
    result = finished(tier)[2]
    lost = [key for key in keys if key not in result.successful_keys]
    assert (
        not result.success
        and len(lost) == 1
        and tier.lookup(lost[0], ReqContext("r")) is LookupResult.MISS
    )
    assert all(
        (region.rows[i] == (content(i) if keys[i] in result.successful_keys else 0)).all()
        for i in range(6)
    )


def test_a_tier_whose_thread_has_ended_is_shut_down_all_the_same(region):
    tier = tier_of(region.create_kv_memoryview())
    tier._jobs.put(None)
    tier._thread.join()
    tier.shutdown()
    assert tier.device.closed
    tier.shutdown()


def test_a_tier_that_was_shut_down_takes_no_jobs(region):
    """Nobody would carry them out, and `drain_jobs` would wait for them."""
    tier = tier_of(region.create_kv_memoryview())
    tier.shutdown()
    for submit, load in ((tier.submit_store, False), (tier.submit_load, True)):
        with pytest.raises(cxl_kv.TransportError, match="the tier was shut down; make a new one"):
            submit(job(1, [key_of(1)], [0], load=load))
    tier.drain_jobs()
    assert not tier.has_pending_work()
    assert tier.lookup(key_of(1), ReqContext("r")) == LookupResult.MISS


def test_nothing_blocks_the_scheduler(tier, region):
    """Submitting returns at once, and a chunk on its way says RETRY; what is asked of others
    meanwhile does not wait for it."""
    tier.submit_store(job(0, [key_of(0)], [0]))
    assert finished(tier)[0].success
    said, put, moving = [], tier.device.transport.store, threading.Event()
    tier.device.transport.store = lambda *a: (moving.set(), put(*a))

    def ask():
        tier.touch([key_of(0), key_of(1)], ReqContext("r"))
        said.extend(tier.lookup(key_of(i), ReqContext("r")) for i in range(3))
        said.append(tier.has_pending_work() and not tier.get_finished_jobs())

    with tier.device.transport.core.lock:
        tier.submit_store(job(1, [key_of(1)], [0]))
        assert moving.wait(5)
        scheduler = threading.Thread(target=ask)
        scheduler.start()
        scheduler.join(5)
    scheduler.join()
    hit, retry, miss = LookupResult.HIT, LookupResult.RETRY, LookupResult.MISS
    assert said == [hit, retry, miss, True]
    assert finished(tier)[1].success and tier.lookup(key_of(1), ReqContext("r")) is LookupResult.HIT


def test_more_chunks_than_places(tier, region):
    for i in range(10):
        region.rows[0] = content(i)
        tier.submit_store(job(i, [key_of(i)], [0]))
        assert finished(tier)[i].success
        tier.touch([key_of(0)], ReqContext("r"))
    there = [i for i in range(10) if tier.lookup(key_of(i), ReqContext("r")) is LookupResult.HIT]
    assert there == [0, 5, 6, 7, 8, 9] and tier.store.evicted == 4


@pytest.fixture
def managed(region):
    primary = CPUPrimaryTierOffloadingManager(
        num_chunks=CHUNKS,
        mmap_region=region,
        cache_policy="KelpCachePolicy",
        cache_policy_module_path="cxl_kv.connectors.vllm",
    )
    manager = TieringOffloadingManager(
        primary, [tier_of(primary.get_kv_memoryview(), url="golden:trace?frames=8,8,8,8")]
    )
    yield manager
    manager.secondary_tiers[0].shutdown()


def step(manager):
    """Steps of the scheduler until nothing is under way."""
    manager.on_schedule_end(ScheduleEndContext((), ()))
    while manager.has_pending_work():
        time.sleep(0.001)
        manager.on_schedule_end(ScheduleEndContext((), ()))


def offload(manager, region, numbers, request):
    """What the scheduler does when a request's chunks have been computed."""
    context = ReqContext(request)
    manager.on_new_request(context)
    keys = [key_of(i) for i in numbers]
    for position, key in enumerate(keys):
        context.set_offload_key_position(key, position)
    out = manager.prepare_store(keys, context)
    assert out is not None
    for key, chunk in zip(
        out.keys_to_store,
        out.store_spec.block_ids
        if hasattr(out.store_spec, "block_ids")
        else out.store_spec.chunk_ids,
        strict=True,
    ):
        region.rows[int(chunk)] = content(int.from_bytes(key[:8], "big"))
    manager.complete_store(keys, context, True)
    step(manager)
    manager.on_request_finished(context)
    return out


def test_vllms_manager_cascades_to_the_device_and_promotes_from_it(managed, region):
    """Three times as many chunks as the CPU tier holds: those that it gave up come back from the
    device."""
    for first in range(0, 24, 4):
        offload(managed, region, range(first, first + 4), f"store {first}")
        step(managed)
    tier = managed.secondary_tiers[0]
    assert len(tier.store) == 24
    context = ReqContext("read")
    managed.on_new_request(context)
    assert managed.lookup(key_of(0), context) is not LookupResult.HIT
    for _ in range(20):
        step(managed)
        if managed.lookup(key_of(0), context) is LookupResult.HIT:
            break
    spec = managed.prepare_load([key_of(0)], context)
    chunk = int((spec.block_ids if hasattr(spec, "block_ids") else spec.chunk_ids)[0])
    assert (region.rows[chunk] == content(0)).all()
    managed.complete_load([key_of(0)], context)


def test_a_lost_chunk_is_a_miss_that_vllm_recomputes(managed, region):
    for first in range(0, 24, 4):
        offload(managed, region, range(first, first + 4), f"store {first}")
        step(managed)
    tier, context = managed.secondary_tiers[0], ReqContext("read")
    managed.on_new_request(context)
    tier.device.transport.core.fail_fetches(8)
    seen = set()
    for _ in range(20):
        seen.add(managed.lookup(key_of(0), context))
        step(managed)
        if LookupResult.MISS in seen:
            break
    assert LookupResult.MISS in seen and LookupResult.HIT not in seen
    offload(managed, region, [0], "again")
    assert managed.lookup(key_of(0), context) is LookupResult.HIT


def reset(manager):
    """What vLLM's `reset_prefix_cache(reset_connector=True)` comes to, with no job at a worker."""
    manager.reset_cache()
    manager.on_reset_flushed()


def promoted(manager, region, number, request):
    """A chunk as the CPU tier has it after vLLM has looked for it; None where that is a miss."""
    context = ReqContext(request)
    manager.on_new_request(context)
    for _ in range(20):
        found = manager.lookup(key_of(number), context)
        if found is LookupResult.MISS:
            return None
        if found is LookupResult.HIT:
            chunk = int(manager.prepare_load([key_of(number)], context).chunk_ids[0])
            manager.complete_load([key_of(number)], context)
            return region.rows[chunk].copy()
        step(manager)
    raise AssertionError(f"chunk {number} is on its way after 20 steps")


@pytest.mark.parametrize("keep", [False, True])
def test_a_reset_forgets_what_older_weights_have_computed(region, keep):
    """Every chunk, also one whose store was under way, and none that is stored afterwards; whoever
    asks for it keeps them."""
    primary = CPUPrimaryTierOffloadingManager(
        num_chunks=CHUNKS, mmap_region=region, cache_policy="lru"
    )
    tier = tier_of(primary.get_kv_memoryview(), keep_on_reset=keep)
    manager = TieringOffloadingManager(primary, [tier])
    offload(manager, region, range(4), "old weights")
    context = ReqContext("under way")
    manager.on_new_request(context)
    manager.prepare_store([key_of(4)], context)
    manager.complete_store([key_of(4)], context, True)
    reset(manager)
    offload(manager, region, [5], "new weights")
    assert sorted(tier.store.keys()) == [key_of(i) for i in (range(6) if keep else [5])]
    found = [promoted(manager, region, i, f"look {i}") for i in range(6)]
    assert [data is not None for data in found] == [keep] * 5 + [True]
    assert all((found[i] == content(i)).all() for i in ([0, 1, 2, 3, 5] if keep else [5]))
    tier.shutdown()


def test_what_is_to_be_kept_at_a_reset_is_a_truth_value(region):
    with pytest.raises(ValueError, match=r"keep_on_reset = 'no' is refused; legal: true, false"):
        tier_of(region.create_kv_memoryview(), keep_on_reset="no")


# - policy -----------------------------------------------------------------------------------------


def policy_of(capacity=8):
    return CachePolicyFactory.get_cache_policy_cls("KelpCachePolicy", "cxl_kv.connectors.vllm")(
        cache_capacity=capacity
    )


def filled(policy, count):
    context = ReqContext("fill")
    for i in range(count):
        chunk = ChunkStatus(i)
        chunk.ref_cnt = 0
        policy.insert(key_of(i), chunk, context)
    return context


def test_what_is_used_often_outlives_what_was_used_last():
    policy = policy_of()
    context = filled(policy, 3)
    for _ in range(20):
        policy.touch([key_of(0)], context)
    for _ in range(3):
        policy.touch([key_of(1)], context)
    policy.touch([key_of(2)], context)
    policy.touch([], context)
    # Used alike three requests ago and just now, the older one goes first; the much used one stays
    # though it is the oldest of all.
    assert [key for key, _ in policy.evict(2, set())] == [key_of(1), key_of(2)] and policy.get(
        key_of(0)
    ) is not None


def test_eviction_is_all_or_nothing_and_honours_pins():
    policy = policy_of()
    filled(policy, 4)
    policy.mark_non_evictable(key_of(0))
    assert (
        policy.evict(4, set()) is None
        and policy.evict(3, {key_of(1)}) is None
        and all(policy.get(key_of(i)) for i in range(4))
    )
    out = policy.evict(2, {key_of(1)})
    assert {key for key, _ in out} == {key_of(2), key_of(3)} and policy.get(key_of(2)) is None
    policy.mark_evictable(key_of(0))
    assert len(policy.evict(2, set())) == 2 and policy.evict(1, set()) is None
    filled(policy, 2)
    policy.clear()
    assert policy.get(key_of(0)) is None and policy.evict(1, set()) is None


def test_vllms_cpu_manager_runs_on_the_policy():
    manager = CPUOffloadingManager(
        num_chunks=4,
        cache_policy="KelpCachePolicy",
        cache_policy_module_path="cxl_kv.connectors.vllm",
    )
    for n in range(10):
        context = ReqContext(f"request {n}")
        manager.on_new_request(context)
        keys = [key_of(0), key_of(100 + n)]
        manager.lookup(keys[0], context)
        out = manager.prepare_store(keys, context)
        manager.complete_store(out.keys_to_store, context, True)
        manager.on_request_finished(context)
    context = ReqContext("last")
    assert (
        manager.lookup(key_of(0), context) is LookupResult.HIT
        and manager.lookup(key_of(100), context) is LookupResult.MISS
    )
