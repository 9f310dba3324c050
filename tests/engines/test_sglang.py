# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SGLang's HiCache with its pages on a KELP device, made by SGLang's own factory as its dynamic
back end."""

import json
from pathlib import Path

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageFailureInjector,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

PAGE, WIDTH = 4, 128


class Pool:
    """A host pool's page interface: `tokens` rows of which pages of four are read and written
    flat."""

    page_size = PAGE

    def __init__(self, tokens=64):
        self.rows = torch.zeros(tokens, WIDTH, dtype=torch.bfloat16)

    def get_data_page(self, index, flat=True):
        page = self.rows[index : index + PAGE]
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self):
        return torch.zeros(PAGE * WIDTH, dtype=torch.bfloat16)

    def set_from_flat_data_page(self, index, page):
        self.rows[index : index + PAGE] = page.reshape(PAGE, WIDTH)


def test_the_configuration_file_makes_the_back_end():
    file = Path(__file__).resolve().parents[2] / "examples" / "configs" / "sglang.json"
    extra = json.loads(file.read_text())
    assert extra["page_bytes"] == 1 << 20  # of a real model; here a page is small
    extra |= {"url": "golden:trace", "page_bytes": PAGE * WIDTH * 2}
    backend = backend_of(**extra)
    assert type(backend).__name__ == extra["class_name"]
    backend.close()


def backend_of(url="golden:trace?frames=8,8,8,8", rank=0, mla=False, **extra):
    config = HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=2,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=mla,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="model",
        extra_config={
            "backend_name": "cxlkv",
            "module_path": "cxl_kv.connectors.sglang",
            "class_name": "CxlHiCacheStorage",
            "url": url,
            "page_bytes": PAGE * WIDTH * 2,
            **extra,
        },
    )
    return StorageBackendFactory.create_backend("dynamic", config, None)


@pytest.fixture
def storage():
    made = backend_of()
    yield made
    made.close()


def tensor(seed):
    return torch.randn(PAGE * WIDTH, generator=torch.Generator().manual_seed(seed)).to(
        torch.bfloat16
    )


def indices(*pages):
    return torch.cat([torch.arange(PAGE * p, PAGE * p + PAGE) for p in pages])


def test_values_come_back_as_they_went_in(storage):
    keys = [f"hash{i}" for i in range(20)]
    assert storage.batch_set(keys, [tensor(i) for i in range(20)]) and storage.set(
        "hash0", tensor(99)
    )
    assert (
        storage.exists("hash3")
        and not storage.exists("nothing")
        and storage.batch_exists([*keys[:5], "nothing", *keys[5:]]) == 5
    )
    for i, got in enumerate(storage.batch_get(keys, [torch.zeros_like(tensor(0)) for _ in keys])):
        assert torch.equal(got, tensor(i))
    assert storage.get("nothing", torch.zeros_like(tensor(0))) is None
    across = torch.zeros(WIDTH, PAGE, dtype=torch.bfloat16).t()
    assert storage.get("hash7", across) is across and torch.equal(across.reshape(-1), tensor(7))
    storage.clear()
    assert not storage.exists("hash3")


def test_a_page_that_cannot_be_stored_keeps_back_no_other(storage):
    """The whole is no success, and nothing is there that was not stored."""
    values = [tensor(0), torch.cat([tensor(1), tensor(2)]), tensor(3)]  # one above `page_bytes`
    assert storage.batch_set(["first", "large", "last"], values) is False
    assert [storage.exists(key) for key in ("first", "large", "last")] == [True, False, True]
    assert storage.batch_set(["first", "last"], [values[0], values[2]]) is True


def test_pools_move_pages_by_index(storage):
    pool, other = Pool(), Pool()
    storage.register_mem_pool_host(pool)
    storage.register_mem_host_pool_v2(pool, PoolName.KV)
    storage.register_mem_host_pool_v2(other, PoolName.INDEXER)
    for i in range(3):
        pool.rows[PAGE * i : PAGE * i + PAGE] = tensor(i).reshape(PAGE, WIDTH)
        other.rows[PAGE * i : PAGE * i + PAGE] = tensor(50 + i).reshape(PAGE, WIDTH)
    keys = ["a", "b", "c"]
    assert storage.batch_set_v1(keys, indices(0, 1, 2)) == [True] * 3
    assert storage.batch_set_v2([PoolTransfer(PoolName.INDEXER, indices(0, 1), keys=keys[:2])]) == {
        PoolName.INDEXER: [True, True]
    }
    assert storage.batch_get_v1(["c", "nothing", "a"], indices(8, 9, 10)) == [True, False, True]
    assert (
        torch.equal(pool.rows[32:36].flatten(), tensor(2))
        and torch.equal(pool.rows[40:44].flatten(), tensor(0))
        and not pool.rows[36:40].any()
    )
    assert storage.batch_get_v2([PoolTransfer(PoolName.INDEXER, indices(5), keys=["b"])]) == {
        PoolName.INDEXER: [True]
    }
    assert torch.equal(other.rows[20:24].flatten(), tensor(51))
    assert storage.batch_get_v1(["a"], indices(1)[:2]) == [False]


def test_prefixes_end_where_a_pool_says_so(storage):
    pool = Pool()
    for name in (PoolName.KV, PoolName.INDEXER, PoolName.SWA):
        storage.register_mem_host_pool_v2(pool, name)
    keys = [f"k{i}" for i in range(6)]
    for name, there in (
        (PoolName.KV, keys[:5]),
        (PoolName.INDEXER, keys[:4]),
        (PoolName.SWA, [keys[1], keys[2]]),
    ):
        storage.batch_set_v2([PoolTransfer(name, indices(*range(len(there))), keys=there)])
    assert storage.batch_exists_v2(keys).kv_hit_pages == 5
    indexer = PoolTransfer(PoolName.INDEXER)
    window = PoolTransfer(PoolName.SWA, keys=["x", "x"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert storage.batch_exists_v2(keys, [indexer]).kv_hit_pages == 4
    result = storage.batch_exists_v2(keys, [indexer, window])
    assert (
        result.kv_hit_pages == 3
        and result.restorable_prefix_pages == [3]
        and result.extra_pool_hit_pages[PoolName.INDEXER] == 4
    )
    assert storage.batch_exists_v2(["nothing"]).kv_hit_pages == 0


def test_groups_of_compressed_blocks_tell_what_they_cover_and_gate_nothing(storage):
    """Two keys for every block of three pages: five keys there are two whole groups, six pages; the
    prefix stays what the KV pages say."""
    pool = Pool()
    for name in (PoolName.KV, PoolName.INDEXER):
        storage.register_mem_host_pool_v2(pool, name)
    keys, groups = [f"k{i}" for i in range(9)], [f"g{i}" for i in range(6)]
    storage.batch_set_v2(
        [
            PoolTransfer(PoolName.KV, indices(*range(8)), keys=keys[:8]),
            PoolTransfer(PoolName.INDEXER, indices(*range(5)), keys=groups[:5]),
        ]
    )
    blocks = PoolTransfer(
        PoolName.INDEXER,
        keys=groups,
        hit_policy=PoolHitPolicy.BLOCK_GROUPS,
        block_pages=3,
        group_pages=2,
    )
    result = storage.batch_exists_v2(keys, [blocks])
    assert (result.kv_hit_pages, result.extra_pool_hit_pages, result.restorable_prefix_pages) == (
        8,
        {PoolName.KV: 8, PoolName.INDEXER: 6},
        list(range(1, 9)),
    )
    storage.store.delete(storage._key("g1", PoolName.INDEXER))
    result = storage.batch_exists_v2(keys, [blocks])
    assert result.kv_hit_pages == 8 and PoolName.INDEXER not in result.extra_pool_hit_pages
    with pytest.raises(ValueError, match="block_pages = 0"):
        storage.batch_exists_v2(
            keys, [PoolTransfer(PoolName.INDEXER, hit_policy=PoolHitPolicy.BLOCK_GROUPS)]
        )


def test_poison_ends_the_prefix(storage):
    keys = [f"hash{i}" for i in range(20)]
    storage.batch_set(keys, [tensor(i) for i in range(20)])
    storage.device.transport.core.fail_fetches()
    target = torch.zeros_like(tensor(0))
    lost = next(i for i in range(20) if storage.get(keys[i], target) is None)
    assert not storage.exists(keys[lost]) and storage.batch_exists_v2(keys).kv_hit_pages == lost
    assert storage.set(keys[lost], tensor(lost)) and torch.equal(
        storage.get(keys[lost], target), tensor(lost)
    )


def test_ranks_do_not_share_pages_but_mla_replicas_do():
    for mla in (False, True):
        first = backend_of(rank=0, mla=mla)
        try:
            second = type(first).__new__(type(first))
            second.__dict__ = first.__dict__ | {"_own": (*first._shared, 1, 2)}
            first.set("page", tensor(1))
            assert second.exists("page") is mla
        finally:
            first.close()


def test_a_rank_that_will_find_nothing_says_so(caplog):
    """SGLang has one rank of an MLA model write, and all of them look."""
    backend_of(rank=0, mla=True).close()
    backend_of(rank=1).close()
    assert not caplog.records
    backend_of(rank=1, mla=True).close()
    (record,) = caplog.records
    assert "rank 1 of a latent attention model writes no page" in record.getMessage()


def test_sglangs_failure_injector_wraps_it(monkeypatch):
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.5")
    wrapped = backend_of()
    assert isinstance(wrapped, HiCacheStorageFailureInjector)
    wrapped._backend.close()


def test_bad_settings_are_named():
    for extra, problem in (
        ({"url": None}, "url = None"),
        ({"page_bytes": "big"}, "big"),
        ({"blocks": 10**9}, "blocks"),
    ):
        with pytest.raises(ValueError, match=problem):
            backend_of(**extra)
