# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What choices want is fetched, and beside it each queue's next page finds a frame."""

import numpy as np
import pytest

import cxl_kv
from cxl_kv.errors import UnsupportedError
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core

LAYERS, HEADS, DIM, TOKENS = 2, 2, 32, 95
SHAPE = cxl_kv.ModelShape(layers=LAYERS, kv_heads=HEADS, head_dim=DIM)
URL = "golden:unit_select?sessions=4&frames={},16,16,16"
RESET = (2, 4)


def marks(device):
    return tuple(device.registers.read_many(["low_water", "high_water"]))


def sources(device):
    return {s for s, on in device.registers.fields("prefetch_enable").items() if on}


def fill(session):
    k, v = np.random.default_rng(1).standard_normal((2, LAYERS, HEADS, TOKENS, DIM))
    session.write(range(LAYERS), k.astype(np.float16), v.astype(np.float16))


@pytest.mark.parametrize(
    ("frames", "wanted"),
    [(64, [(4, 8), (8, 12), (12, 16), (12, 16)]), (30, [(4, 7)] * 4), (8, [(1, 2)] * 4)],
)
def test_a_frame_for_each_queue_as_far_as_a_quarter_goes(frames, wanted):
    with cxl_kv.open(URL.format(frames)) as device:
        device.configure(prefetch=["window"])
        device.fetch_chosen()
        assert marks(device) == RESET and sources(device) == {"window", "hint"}
        for expected in wanted:
            device.open_session(SHAPE)
            device.fetch_chosen()
            assert marks(device) == expected


def test_the_smallest_pool_in_use_counts():
    with cxl_kv.open(URL.format(64)) as device:
        formats = (cxl_kv.LayerFormats(last_layer=0), cxl_kv.LayerFormats(k="int8", v="int8"))
        device.open_session(SHAPE.with_(formats=formats))
        device.fetch_chosen()
        assert marks(device) == (2, 4), "of 16 frames 4 are free: half for fetches"


def test_marks_that_somebody_set_stay():
    with cxl_kv.open(URL.format(64)) as device:
        device.configure(low_water=1, high_water=9)
        device.open_session(SHAPE)
        device.fetch_chosen()
        assert marks(device) == (1, 9) and sources(device) == {"hint"}


@pytest.mark.parametrize("url", ["golden:unit", "dax:{}/kv?config=unit_select&create=1"])
def test_a_device_that_does_not_choose_is_left_alone(url, tmp_path):
    with cxl_kv.open(url.format(tmp_path)) as device:
        device.open_session(SHAPE.with_(layers=1))
        device.fetch_chosen()
        if device.transport.hints:
            assert marks(device) == RESET and not sources(device)


def test_what_is_wanted_is_fetched_and_new_pages_find_frames():
    """Eviction keeps frames for both: with `low_water` alone raised, nothing would be fetched."""
    with cxl_kv.open(URL.format(64)) as device:
        session = device.open_session(SHAPE)
        device.fetch_chosen()
        fill(session)
        rng = np.random.default_rng(2)
        issued = []
        for _ in range(8):
            for layer in range(LAYERS):
                q = rng.standard_normal((2 * HEADS, DIM)).astype(np.float16)
                session.select(layer, q, tokens=TOKENS, fetch=True)
                pool = device.pools()["raw16"]
                assert pool["limit"] - pool["used"] >= session.shape.queues
            issued.append(device.counters()["prefetch_issued_hint"])
        assert issued[-1] > 0
        device.configure(low_water=8)
        for layer in range(LAYERS):
            q = rng.standard_normal((2 * HEADS, DIM)).astype(np.float16)
            session.select(layer, q, tokens=TOKENS, fetch=True)
        assert device.counters()["prefetch_issued_hint"] == issued[-1]


def test_a_server_counts_its_tenants_queues(tmp_path):
    with Server(make_core(URL.format(64))) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(f"{url}?admin=1") as admin, cxl_kv.open(url) as tenant:
            assert sources(admin) == {"hint"} and marks(admin) == RESET
            sessions = [tenant.open_session(SHAPE) for _ in range(2)]
            assert marks(admin) == (8, 12)
            sessions[0].close()
            assert marks(admin) == (4, 8)
            with pytest.raises(UnsupportedError, match=r"fetch_chosen\(\) needs the control plane"):
                tenant.fetch_chosen()
            admin.configure(low_water=3)
            tenant.open_session(SHAPE)
            assert marks(admin) == (3, 8), "the operator's"


def test_a_server_that_is_told_to_fetches_nothing(tmp_path):
    with Server(make_core(URL.format(64)), fetch=False) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(f"{url}?admin=1") as admin, cxl_kv.open(url) as tenant:
            tenant.open_session(SHAPE)
            assert marks(admin) == RESET and not sources(admin)
