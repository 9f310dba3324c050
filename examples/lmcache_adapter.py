# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""LMCache's multi-process mode with its L2 on a KELP device: LMCache's own factory loads the
adapter, stores chunks, looks them up, loads them back.

    .venv.lmcache/bin/python examples/lmcache_adapter.py golden:trace
    .venv.lmcache/bin/python examples/lmcache_adapter.py 'dax:/dev/shm/kelp?config=trace&create=1'
    --chunks 64

What to put into LMCache's own configuration is printed first. Simulation is not acceleration.
"""

import argparse
import json
import select
import time

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform.event_notifier import consume_fd

SHAPE = torch.Size([2, 4, 16, 64])  # K and V, layers, tokens, heads · head_dim


def chunk(seed: int | None) -> TensorMemoryObj:
    """A chunk of random keys and values; zeros without a seed."""
    data = torch.zeros(SHAPE, dtype=torch.bfloat16)
    if seed is not None:
        data = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    meta = MemoryObjMetadata(
        SHAPE,
        torch.bfloat16,
        0,
        SHAPE.numel() * 2,
        1,
        fmt=MemoryFormat.KV_2LTD,
        shapes=[SHAPE],
        dtypes=[torch.bfloat16],
    )
    return TensorMemoryObj(data.view(torch.uint8).reshape(-1), meta, None)


def wait(fd: int) -> None:
    """Until LMCache's event descriptor says that a task is done."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(60_000):
        raise TimeoutError("the adapter did not answer within a minute")
    consume_fd(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "device", nargs="?", default="golden:trace", help="golden:CONFIG, unix:/path, dax:/path …"
    )
    parser.add_argument("--chunks", type=int, default=16)
    options = parser.parse_args()

    settings = {
        "type": "plugin",
        "module_path": "cxl_kv.connectors.lmcache",
        "class_name": "CxlL2Adapter",
        "adapter_params": {"url": options.device, "block_bytes": SHAPE.numel() * 2},
    }
    print("L2 adapter:", json.dumps(settings))
    adapter = create_l2_adapter(get_l2_adapter_config_class("plugin").from_dict(settings))
    try:
        keys = [
            ObjectKey(ObjectKey.IntHash2Bytes(i), "model", 0, cache_salt="anna")
            for i in range(options.chunks)
        ]
        started = time.perf_counter()
        adapter.submit_store_task(keys, [chunk(i) for i in range(options.chunks)])
        wait(adapter.get_store_event_fd())
        stored = next(iter(adapter.pop_completed_store_tasks().values()))
        print(
            f"stored: {stored.is_successful()}, {stored.bytes_transferred():,} bytes in "
            + f"{time.perf_counter() - started:.2f} s"
        )
        task = adapter.submit_lookup_and_lock_task(
            [*keys, ObjectKey(ObjectKey.IntHash2Bytes(0), "model", 0, cache_salt="eve")], {}
        )
        wait(adapter.get_lookup_and_lock_event_fd())
        bits = adapter.query_lookup_and_lock_result(task)
        print(
            f"found: {sum(bits.test(i) for i in range(len(keys)))} of {len(keys)}; another "
            + f"tenant's key finds {int(bits.test(len(keys)))}"
        )
        places = [chunk(None) for _ in keys]
        task = adapter.submit_load_task(keys, places)
        wait(adapter.get_load_event_fd())
        bits = adapter.query_load_result(task)
        same = sum(
            bits.test(i) and torch.equal(place.raw_data, chunk(i).raw_data)
            for i, place in enumerate(places)
        )
        print(f"loaded: {same} of {len(keys)} as they were stored")
        print("status:", adapter.report_status())
    finally:
        adapter.close()


if __name__ == "__main__":
    main()
