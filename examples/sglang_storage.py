# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SGLang's HiCache with its pages on a KELP device: SGLang's own factory loads the dynamic back
end, which keeps pages and tells prefixes.

    .venv.sglang/bin/python examples/sglang_storage.py golden:trace
    .venv.sglang/bin/python examples/sglang_storage.py 'dax:/dev/shm/kelp?config=trace&create=1'
    --pages 64

What to put on SGLang's own command line is printed first. Simulation is not acceleration.
"""

import argparse
import json

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

ELEMENTS = 1024  # of a page


def page(seed: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "device", nargs="?", default="golden:trace", help="golden:CONFIG, unix:/path, dax:/path …"
    )
    parser.add_argument("--pages", type=int, default=32)
    options = parser.parse_args()

    extra = {
        "backend_name": "cxlkv",
        "module_path": "cxl_kv.connectors.sglang",
        "class_name": "CxlHiCacheStorage",
        "url": options.device,
        "page_bytes": 2 * ELEMENTS,
    }
    print(
        "--hicache-storage-backend dynamic --hicache-storage-backend-extra-config "
        + f"'{json.dumps(extra)}'"
    )
    storage = StorageBackendFactory.create_backend(
        "dynamic",
        HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name="model",
            extra_config=extra,
        ),
        None,
    )
    try:
        keys = [f"hash{i}" for i in range(options.pages)]
        print("stored:", storage.batch_set(keys, [page(i) for i in range(options.pages)]))
        got = storage.batch_get(keys, [torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in keys])
        print(
            "loaded: "
            + f"{sum(x is not None and torch.equal(x, page(i)) for i, x in enumerate(got))} "
            + f"of {len(keys)} as they were stored"
        )
        print(
            f"prefix: {storage.batch_exists([*keys[:5], 'unknown', *keys[5:]])} pages, then "
            + "one that nobody stored"
        )
        print(
            f"device: {storage.device.config.name}, {storage.store.used_bytes:,} bytes in "
            + f"{len(storage.store)} pages, room for {storage.store.capacity}"
        )
    finally:
        storage.close()


if __name__ == "__main__":
    main()
