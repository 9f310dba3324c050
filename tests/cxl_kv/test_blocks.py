# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Opaque blocks: bytes in, the same bytes out, under pressure, pins and poison, on every kind of
device."""

import contextlib
import threading

import numpy as np
import pytest

import cxl_kv
from cxl_kv.blocks import BlockStore
from cxl_kv.device import Device
from cxl_kv.serving.server import Server
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core


@pytest.fixture(params=["golden:unit", "dax:{}/memory?config=unit&create=1"])
def device(request, tmp_path):
    with cxl_kv.open(request.param.format(tmp_path)) as opened:
        yield opened


def block(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [1, 64, 1000, 1500])
def test_blocks_come_back_as_they_went_in(device, size):
    with BlockStore(device, size) as store:
        n = store.capacity
        assert n == 4 * 8 // -(-size // 512)
        for i in range(n):
            assert store.put(i, block(i, size))
        for i in np.random.default_rng(1).permutation(n).tolist():
            assert (store.get(i) == block(i, size)).all()
        assert (
            store.put(0, block(99, size)[: size // 2].tobytes())
            and (store.get(0) == block(99, size)[: size // 2]).all()
        )
        assert (
            len(store) == n
            and store.get("nothing") is None
            and store.used_bytes == n * size - size + size // 2
        )


@pytest.mark.parametrize("queues", [1, 1023, 1024])
@pytest.mark.sampled
def test_a_store_takes_every_queue_of_a_session(queues):
    """Also of as many as a configuration may have."""
    url = f"golden:unit?queues={queues}&pages=4"
    with cxl_kv.open(url) as device, BlockStore(device, 512) as store:
        assert store.capacity == 4 * queues
        assert store.put_many((i, block(i, 512)) for i in range(4 * queues)) == [True] * 4 * queues
        for i in (0, queues - 1, queues, 4 * queues - 1):
            assert (store.get(i) == block(i, 512)).all()


def test_the_least_recently_used_gives_way_and_pinned_ones_stay(device):
    with BlockStore(device, 512, blocks=3) as store:
        for i in range(3):
            store.put(i, block(i, 512))
        store.get(0)
        store.pin(1)
        store.put(3, block(3, 512))
        assert store.keys() == [1, 0, 3] and store.evicted == 1
        store.pin(0)
        store.pin(3)
        assert not store.put(4, block(4, 512)) and store.keys() == [1, 0, 3]
        store.unpin(3)
        assert store.put(4, block(4, 512)) and store.keys() == [1, 0, 4]
        assert store.delete(1) and not store.delete(1) and store.put(5, block(5, 512))
        assert (store.get(0) == block(0, 512)).all() and (store.get(5) == block(5, 512)).all()


def test_delete_unpinned_spares_what_is_in_use(device):
    with BlockStore(device, 512, blocks=3) as store:
        store.put(0, block(0, 300))
        assert store.pin(0) and store.delete_unpinned(0) is None and 0 in store
        store.unpin(0)
        assert store.delete_unpinned(0) == 300 and 0 not in store
        assert store.delete_unpinned(0) is None


def test_a_late_unpin_takes_no_other_readers_pin():
    """Of a block that was lost under a reader's pin, and stored anew and pinned by another one."""
    with cxl_kv.open("golden:unit") as device, BlockStore(device, 512, blocks=2) as store:
        store.put(0, block(0, 512))
        assert store.pin(0) and store.delete(0) and not store.pin(0)
        store.put(0, block(1, 512))
        assert store.pin(0) and store.unpin(0)  # the first reader's
        for key in (1, 2):
            store.put(key, block(key, 512))
        assert 0 in store and store.delete_unpinned(0) is None
        assert store.unpin(0) and not store.unpin(0) and store.delete_unpinned(0) == 512


def test_no_pin_is_lost_to_delete_unpinned(monkeypatch):
    """Whoever comes between its look and its end waits, and is not told of a pin then."""
    with cxl_kv.open("golden:unit") as device, BlockStore(device, 512, blocks=3) as store:
        store.put(0, block(0, 512))
        pinned, delete = [], store.delete
        other = threading.Thread(target=lambda: pinned.append(store.pin(0)))

        def late(key):
            other.start()
            other.join(0.3)
            delete(key)

        monkeypatch.setattr(store, "delete", late)
        assert store.delete_unpinned(0) == 512
        other.join(30)
        assert pinned == [False]


def test_a_poisoned_block_is_dropped_and_named():
    with cxl_kv.open("golden:unit") as device, BlockStore(device, 512) as store:
        for i in range(32):
            store.put(i, block(i, 512))
        device.transport.core.fail_fetches()
        with pytest.raises(cxl_kv.FlashError, match="block 0 is lost"):
            store.get(0)
        assert 0 not in store and store.lost == 1 and store.get(0) is None
        assert all((store.get(i) == block(i, 512)).all() for i in range(1, 32))
        assert store.put(0, block(7, 512)) and (store.get(0) == block(7, 512)).all()


def pinned(device, frames):
    """A session that has pinned all frames, so that no other page finds one."""
    session = device.open_session(cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32))
    x = np.ones((1, 4 * frames, 32), np.float16)
    session.write(0, x, x)
    pin(session, frames)
    return session


def pin(session, frames):
    session.hints.pin(0, 0, range(frames))
    session.read(0, stop=4 * frames)  # those that had gone come back, and stay


@pytest.mark.parametrize("served", [False, True])
def test_a_block_that_finds_no_frame_stays(tmp_path, served):
    """It is in the cold tier still, and is read when others were released; one of which any page
    was lost is not there."""
    with contextlib.ExitStack() as stack:
        core = make_core("golden:unit")
        device = stack.enter_context(Device(LocalTransport(core, shared=True)))
        user = device
        if served:
            address = stack.enter_context(Server(core)).listen(f"unix:{tmp_path}/kelp.sock")
            user = stack.enter_context(cxl_kv.open(address))
        device.configure(low_water=0, high_water=0, reserve=0)
        dropped = []
        store = BlockStore(user, 1024, on_drop=lambda *what: dropped.append(what))
        for key in range(3):  # of two pages each
            assert store.put(key, block(key, 1024))
        others = pinned(device, 8)
        for _ in range(2):
            with pytest.raises(cxl_kv.DeviceFullError, match="page 0: block 0: .*cold") as caught:
                store.get(0)
            assert caught.value.in_cold_tier and 0 in store
        found = store.get_many([1, "nothing", 0])
        assert found[1] is None
        assert all(isinstance(found[i], cxl_kv.DeviceFullError) for i in (0, 2))
        others.hints.release(0, 0, [0, 1])
        assert (store.get(0) == block(0, 1024)).all()
        pin(others, 8)
        # A write that finds no frame costs block 1 its second page; the first has lost nothing.
        user.transport.store(store._addresses(1, 64, 512), np.zeros((1, 64), np.uint8))
        with pytest.raises(cxl_kv.PoisonError, match="head 3, page 0: block 1 is lost: "):
            store.get(1)
        assert store.keys() == [2, 0] and store.lost == 1 and dropped == [(1, 1024)]
        with pytest.raises(cxl_kv.DeviceFullError, match="what was written to it is lost"):
            store.put(2, block(9, 1024))
        assert store.keys() == [0] and store.lost == 1


def test_a_block_behind_a_server_that_has_gone_is_not_there(tmp_path):
    """An engine that finds it would wait for a load that fails, each time anew."""
    dropped = []
    server = Server(make_core("golden:unit"))
    with cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device:
        store = BlockStore(device, 200, on_drop=lambda *what: dropped.append(what))
        for key in range(3):
            assert store.put(key, bytes([key]) * 200)
        server.close()
        one, two = store.get_many([1, 2])
        assert isinstance(one, cxl_kv.TransportError) and isinstance(two, cxl_kv.TransportError)
        assert store.keys() == [0] and store.lost == 2 and dropped == [(1, 200), (2, 200)]
        with pytest.raises(cxl_kv.TransportError):
            store.put(1, b"again")
        assert 1 not in store


def test_a_closed_store_touches_nothing(device):
    """Its number is the next session's, whose lines it would write."""
    store = BlockStore(device, 4096)
    assert store.put("mine", block(1, 4096))
    store.close()
    store.close()
    shape = cxl_kv.ModelShape(layers=1, kv_heads=2, head_dim=32)
    with device.open_session(shape, max_tokens=4) as successor:
        assert successor.number == store.session.number
        ones = np.ones((2, 4, 32), np.float16)
        successor.write(0, ones, ones)
        for late in (
            lambda: store.put("late", block(2, 4096)),
            lambda: store.put_many([("late", block(2, 4096))]),
            lambda: store.get("mine"),
            lambda: store.prefetch(["mine"]),
        ):
            with pytest.raises(cxl_kv.SessionClosedError):
                late()
        assert len(store) == 0
        assert all((half == 1).all() for half in successor.read(0, stop=4))


def test_blocks_can_be_fetched_ahead():
    with cxl_kv.open("golden:unit") as device, BlockStore(device, 512) as store:
        device.configure(prefetch=["spec_read"], low_water=1, high_water=2)
        for i in range(32):
            store.put(i, block(i, 512))
        store.prefetch([0, "nothing"])
        assert device.counters()["prefetch_issued_spec_read"] == 1


def test_senseless_sizes_are_refused(device):
    for arguments, problem in (((0,), "block_bytes = 0"), ((1 << 20,), "holds 16384 bytes")):
        with pytest.raises(ValueError, match=problem):
            BlockStore(device, *arguments)
    with pytest.raises(ValueError, match="blocks = 33"):
        BlockStore(device, 512, blocks=33)
    with BlockStore(device, 512) as store, pytest.raises(ValueError, match="513 bytes"):
        store.put(1, bytes(513))


@pytest.mark.parametrize(
    "wrong",
    [{"device": "golden:unit"}, {"block_bytes": "x"}, {"block_bytes": 1.5}, {"blocks": "3"}],
)
def test_a_wrong_argument_is_named(device, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} = .* is refused; legal: "):
        BlockStore(**({"device": device, "block_bytes": 100} | wrong))


def test_what_is_no_block_is_named_and_the_others_are_stored(device):
    with BlockStore(device, 100) as store:
        done = store.put_many(
            [
                *(("a", b"1"), ("b", None), ("c", "text"), ("d", bytes(101)), ("e", b"5")),
                *((["f"], b"6"), (("g", []), b"7")),
            ]
        )
        assert [str(r) for r in done] == [
            "True",
            "data of type NoneType is refused; legal: bytes-like, in one piece",
            "data of type str is refused; legal: bytes-like, in one piece",
            "a block of 101 bytes is refused; legal: 100 at most",
            "True",
            "key = ['f'] is refused; legal: what is hashable, such as str or tuple",
            "key = ('g', []) is refused; legal: what is hashable, such as str or tuple",
        ]
        for call in (
            *(store.get, store.contains, store.delete, store.delete_unpinned, store.pin),
            *(store.unpin, store.size_of),
            lambda key: store.touch(["a", key]),
            lambda key: store.prefetch(["a", key]),
        ):
            with pytest.raises(TypeError, match="key = {} is refused"):
                call({})
        assert [store.get(key) for key in "bcd"] == [None] * 3
        assert bytes(store.get("a")) == b"1" and bytes(store.get("e")) == b"5"
        for wrong in ({"first": -64}, {"first": 1}, {"first": 0.0}, {"size": -1}):
            with pytest.raises(ValueError, match="is refused"):
                store.get_many(["a"], **wrong)


@pytest.mark.parametrize(
    "data, said",
    [
        (np.array(["a"], object), "data of dtype object is refused; legal: numbers, or bytes"),
        (np.ma.masked_less([1, 5], 3), "data with 1 masked elements is refused"),
        (np.ma.array([(1, 2)], [("a", "u1"), ("b", "u1")], mask=[(0, 1)]), "data with 1 masked"),
        (memoryview(b"abcd")[::2], "data of type memoryview is refused; legal: bytes-like, in one"),
    ],
)
def test_what_has_no_bytes_of_its_own_is_refused(device, data, said):
    with BlockStore(device, 100) as store:
        with pytest.raises(ValueError, match=said):
            store.put("a", data)
        assert "a" not in store


@pytest.mark.parametrize("error", [TypeError, KeyboardInterrupt])
def test_what_breaks_off_before_it_is_stored_is_not_there(device, monkeypatch, error):
    """Neither under the key's old bytes nor under another's."""

    def broken(*_):
        raise error

    with BlockStore(device, 100) as store:
        store.put("old", b"old")

        def items():
            yield from (("old", b"newer"), ("new", b"1"))
            raise error

        with pytest.raises(error):
            store.put_many(items())
        assert not store.keys()
        store.put("old", b"old")
        with monkeypatch.context() as patch:
            patch.setattr(device.transport, "store", broken)
            with pytest.raises(error):
                store.put_many([("old", b"newer"), ("new", b"1")])
        assert not store.keys()
        assert all(store.put(i, b"x") for i in range(store.capacity)) and not store.evicted


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_put_that_breaks_off_before_it_is_stored_has_no_other_blocks_bytes(
    device, monkeypatch, error
):
    """It has the place of a block that is gone, and where its lines lie is not known yet."""

    def broken(*_):
        raise error

    with BlockStore(device, 100) as store:
        store.put("gone", b"another's")
        store.delete("gone")
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(store, "_addresses", broken)
            store.put("new", b"1")
        assert store.get("new") is None and not store.keys()
        assert all(store.put(i, b"x") for i in range(store.capacity)) and not store.evicted


def test_who_is_told_of_a_dropped_block_may_do_anything_but_put(device):
    """The place that it had is the other block's by then, which is not stored then either."""
    told = []

    def dropped(key, size):
        told.append((key, size, bytes(store.get(1)), key in store, store.delete(3)))
        if putting:
            store.put(key, b"again")

    with BlockStore(device, 100, blocks=4, on_drop=dropped) as store:
        for i in range(4):
            store.put(i, bytes([i]))
        putting = True
        with pytest.raises(RuntimeError, match="a put within on_drop is refused"):
            store.put(4, b"4")
        putting = False
        assert told == [(0, 1, b"\1", False, True)] and store.keys() == [2, 1]
        for i in range(5, 8):
            assert store.put(i, bytes([i]))
        assert [bytes(x) for x in store.get_many(store.keys())] == [b"\5", b"\6", b"\1", b"\7"]


def test_of_two_blocks_under_one_key_neither_is_said_to_be_there_that_is_not(device, monkeypatch):
    def full(*_):
        raise cxl_kv.DeviceFullError("planted")

    with BlockStore(device, 100) as store:
        assert store.put_many([("a", b"1"), ("a", b"22"), ("b", b"")]) == [True] * 3
        assert bytes(store.get("a")) == b"22" and bytes(store.get("b")) == b""
        monkeypatch.setattr(device.transport, "store", full)
        done = store.put_many([("a", b"3"), ("a", b"4"), ("b", b"5")])
        assert [str(x) for x in done] == ["planted"] * 3 and not store.keys()
