# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""vLLM's tiered offloading with a KELP device below its CPU tier: vLLM's own manager gives chunks
up to the device and promotes them back.

    .venv.vllm/bin/python examples/vllm_tier.py golden:trace
    .venv.vllm/bin/python examples/vllm_tier.py 'dax:/dev/shm/kelp?config=trace&create=1' --chunks
    48

What to put into vLLM's own configuration is printed first, for the tier and for the connector.
Simulation is not acceleration.
"""

import argparse
import json
import mmap
import time

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

CHUNK, CPU_CHUNKS = 4096, 8


class Region:
    """vLLM's shared memory of the CPU tier, in short: one mapping of as many rows as chunks."""

    def __init__(self):
        self.memory = mmap.mmap(-1, CHUNK * CPU_CHUNKS)
        self.rows = np.frombuffer(self.memory, np.uint8).reshape(CPU_CHUNKS, CHUNK)

    def create_kv_memoryview(self):
        return memoryview(self.memory).cast("B", (CPU_CHUNKS, CHUNK))

    def cleanup(self):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "device", nargs="?", default="golden:trace", help="golden:CONFIG, unix:/path, dax:/path …"
    )
    parser.add_argument("--chunks", type=int, default=24)
    options = parser.parse_args()

    tier = {"type": "CxlTier", "module_path": "cxl_kv.connectors.vllm", "url": options.device}
    print(
        "tier:",
        json.dumps(
            {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "spec_name": "TieringOffloadingSpec",
                    "secondary_tiers": [tier],
                    "eviction_policy": "KelpCachePolicy",
                    "cache_policy_module_path": "cxl_kv.connectors.vllm",
                },
            }
        ),
    )
    print(
        "connector:",
        json.dumps(
            {
                "kv_connector": "CxlConnector",
                "kv_connector_module_path": "cxl_kv.connectors.vllm_connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"url": options.device},
            }
        ),
    )
    region = Region()
    primary = CPUPrimaryTierOffloadingManager(
        num_chunks=CPU_CHUNKS,
        mmap_region=region,
        cache_policy="KelpCachePolicy",
        cache_policy_module_path="cxl_kv.connectors.vllm",
    )
    below = SecondaryTierFactory.create_secondary_tier(
        tier, primary_kv_view=primary.get_kv_memoryview(), offloading_spec=None
    )
    manager = TieringOffloadingManager(primary, [below])

    def settle():
        manager.on_schedule_end(ScheduleEndContext((), ()))
        while manager.has_pending_work():
            time.sleep(0.001)
            manager.on_schedule_end(ScheduleEndContext((), ()))

    try:
        keys = [make_offload_key(i.to_bytes(8, "big"), 0) for i in range(options.chunks)]
        contents = np.random.default_rng(1).integers(0, 256, (options.chunks, CHUNK), np.uint8)
        for i, key in enumerate(keys):
            context = ReqContext(f"store {i}")
            manager.on_new_request(context)
            out = manager.prepare_store([key], context)
            region.rows[int(out.store_spec.block_ids[0])] = contents[i]
            manager.complete_store([key], context, True)
            settle()
            manager.on_request_finished(context)
        print(
            f"stored: {options.chunks} chunks of {CHUNK} bytes; the CPU tier holds "
            + f"{CPU_CHUNKS}, the device {len(below.store)}"
        )
        same = 0
        for i, key in enumerate(keys):
            context = ReqContext(f"load {i}")
            manager.on_new_request(context)
            for _ in range(20):
                if manager.lookup(key, context) is LookupResult.HIT:
                    spec = manager.prepare_load([key], context)
                    same += int((region.rows[int(spec.block_ids[0])] == contents[i]).all())
                    manager.complete_load([key], context)
                    break
                settle()
            manager.on_request_finished(context)
        print(
            f"loaded: {same} of {options.chunks} as they were stored, most of them promoted "
            + "from the device"
        )
    finally:
        below.shutdown()


if __name__ == "__main__":
    main()
