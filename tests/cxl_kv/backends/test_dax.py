# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mapped plain memory: the same calls, persistence and its limits, several processes, and memory
that goes away under the mapping."""

import gc
import hashlib
import multiprocessing
import os
import resource
import signal
import threading
import time

import numpy as np
import pytest

import cxl_kv
from cxl_kv.backends import dax, dax_header, file_lock
from cxl_kv.backends.dax import ALIGNMENT, mapped_bytes
from cxl_kv.native import build, library
from kelp_spec.config import named
from kelp_spec.registers import SessionCommand

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "memory")


def opened(path, create=True):
    return cxl_kv.open(f"dax:{path}?config=unit" + ("&create=1" if create else ""))


def tensors(tokens, seed=1):
    return np.random.default_rng(seed).standard_normal((2, 2, 2, tokens, 32)).astype(np.float16)


@pytest.mark.parametrize("error", [cxl_kv.TransportError, KeyboardInterrupt])
def test_a_file_that_is_made_and_cannot_be_used_is_not_left(path, monkeypatch, error):
    """With all its room taken, in memory for a file of /dev/shm; one that was there is."""

    def refused(*_):
        raise error("planted")

    with monkeypatch.context() as patch:
        patch.setattr(dax, "mapped", refused)
        with pytest.raises(error):
            opened(path)
        assert not os.path.exists(path)
        open(path, "wb").close()
        with pytest.raises(error):
            opened(path)
    with opened(path) as device:
        device.open_session(SHAPE).close()


def test_what_was_written_is_read_and_seen_without_a_copy(path):
    with opened(path) as device:
        assert (
            os.path.getsize(path) == mapped_bytes(named("unit"))
            and not os.path.getsize(path) % ALIGNMENT
        )
        session = device.open_session(SHAPE)
        assert not device.transport.core.view(0, 64).ctypes.data % ALIGNMENT, (
            "header and aperture are whole 2 MiB from a mapping at a multiple of 2 MiB"
        )
        k, v = tensors(session.max_tokens)
        session.write([0, 1], k, v)
        got_k, got_v = session.read([0, 1], stop=session.max_tokens)
        assert (got_k == k).all() and (got_v == v).all()
        seen_k, seen_v = session.view(1, 0, 3)
        assert (seen_k.view(np.float16) == k[1, 0, 12:16]).all() and (
            seen_v.view(np.float16) == v[1, 0, 12:16]
        ).all()
        seen_v[2] = 0x3C00
        assert (session.read(1, positions=[14], heads=0)[1] == 1.0).all()
        session.advance(5)
        assert session.step == 5
        for fmt in ("int8", "fp8_e4m3"):
            with pytest.raises(cxl_kv.UnsupportedError, match=f"format {fmt}.*raw16; golden:"):
                device.open_session(SHAPE.with_(formats=fmt))
        with pytest.raises(cxl_kv.UnsupportedError, match="no hints"):
            session.hints.push_mass(0, 0, [0.5])


@pytest.mark.parametrize("way", ["dax", "golden"])
def test_parts_of_a_line_in_one_store_are_stored_in_their_order(path, way):
    with opened(path) if way == "dax" else cxl_kv.open("golden:unit") as device:
        session, rng = device.open_session(SHAPE), np.random.default_rng(2)
        addresses = session.layout.addresses(slice(0, 2), slice(0, 2), np.arange(3)).reshape(-1)
        model = np.zeros((len(addresses), 64), np.uint8)
        for _ in range(20):
            which = rng.integers(0, len(addresses), 30)  # 24 lines, so some more than once
            lines = rng.integers(0, 256, (30, 64), np.uint8)
            enabled = rng.random((30, 64)) < rng.choice([0.0, 0.5, 1.0], (30, 1))
            device.transport.store(
                addresses[which],
                lines,
                np.packbits(enabled, axis=1, bitorder="little").view(np.uint64)[:, 0],
            )
            for line, data, enable in zip(which, lines, enabled, strict=True):
                model[line, enable] = data[enable]
            assert (device.transport.load(addresses).lines == model).all()


def test_a_session_begins_empty_whatever_lies_there(path):
    with opened(path) as device:
        session = device.open_session(SHAPE)
        k, v = tensors(session.max_tokens)
        session.write([0, 1], k, v)
        session.close()
        again = device.open_session(SHAPE)
        assert again.number == session.number and not again.read([0, 1], stop=32)[0].any()
        again.write(0, k[0, :, :1], v[0, :, :1])
        assert not again.read(0, start=1, stop=32)[0].any() and not again.view(1, 1, 0)[0].any()


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        SHAPE.with_(head_dim=48, page_tokens=2),
        SHAPE.with_(k_only=True, page_tokens=3),
    ],
    ids=["32", "48", "keys alone"],
)
def test_page_by_page_is_as_line_by_line(path, shape, native, monkeypatch):
    """What `read` of a stretch asks for in spans, against the same positions one by one."""
    monkeypatch.setenv("KELP_NATIVE", native)
    if native == "1":
        build()
    library.cache_clear()
    rng = np.random.default_rng(2)
    with opened(path) as device:
        session, spans = device.open_session(shape), device.transport.load_spans
        most, answered = session.max_tokens, []
        monkeypatch.setattr(
            device.transport,
            "load_spans",
            lambda *asked: answered.append(spans(*asked)) or answered[-1],
        )
        k = rng.standard_normal((2, 2, most, shape.head_dim)).astype(np.float16)
        session.write([0, 1], k, None if shape.k_only else -k)
        for start, stop in ((0, most), (1, most - 1), (3, 4), (5, 5), (0, shape.page_tokens or 4)):
            for layer, heads in ((1, None), ([1, 0], 1), (0, [1, 0])):
                got = session.read(layer, start=start, stop=stop, heads=heads)
                one_by_one = session.read(layer, positions=range(start, stop), heads=heads)
                for a, b in zip(got, one_by_one, strict=True):
                    assert a is b is None or (a == b).all() and a.shape == b.shape
        # Three times each stretch but that of no position, which asks for nothing.
        assert len(answered) == 12 and not any(lines is None for lines in answered)
        session.close()
        # A page that nobody wrote has no lines of its own: they read as zeros one by one.
        session = device.open_session(shape)
        session.write(0, k[0, :, :1], None if shape.k_only else -k[0, :, :1])
        answered.clear()
        assert not session.read(0, start=1, stop=most)[0].any() and answered == [None]
    library.cache_clear()


def test_spans_that_are_not_the_sessions_are_left_to_the_lines(path):
    with opened(path) as device:
        c, session = device.config, device.open_session(SHAPE, max_tokens=8)
        session.write([0, 1], *(x[..., :8, :] for x in tensors(8)))
        first, counts = session.layout.spans(slice(0, 1), slice(0, 1), 0, 4)
        load = device.transport.load_spans
        assert len(load(first, counts)) == 8
        page = np.uint64(64 * c.page_lines)
        for wrong in (
            (first + page * np.uint64(2), counts),  # beyond max_tokens
            (first + page * np.uint64(c.pages * 4), counts),  # a queue that the model has not
            (first + page * np.uint64(c.pages << c.queue_bits), counts),  # another session
            (first, counts + c.half_lines),  # over the half's end
            (first, -counts),
            (first[:0], counts[:0]),
        ):
            assert load(*wrong) is None
        session.close()
        assert load(first, counts) is None


def test_layouts_are_told_apart(path):
    with pytest.raises(cxl_kv.TransportError, match="create=1 makes a file"):
        opened(path, create=False)
    opened(path).close()
    opened(path, create=False).close()
    size = os.path.getsize(path)
    unit, trace = named("unit").digest, named("trace").digest
    both = rf"another configuration, .* {unit} \('unit'\), and 'trace' has digest {trace}; name"
    for create in (0, 1):
        with pytest.raises(cxl_kv.TransportError, match=both):
            cxl_kv.open(f"dax:{path}?config=trace&create={create}")
    assert os.path.getsize(path) == size < mapped_bytes(named("trace"))
    with open(path, "r+b") as file:
        file.truncate(64 << 20)
    with pytest.raises(cxl_kv.TransportError, match=both):
        cxl_kv.open(f"dax:{path}?config=trace")
    with open(path, "r+b") as file:
        file.write(b"KELPDAX3")
    for create in (0, 1):
        with pytest.raises(
            cxl_kv.TransportError,
            match="laid out in version 3 of the layout, and this cxl_kv has version 2; use",
        ):
            opened(path, create=create)
    with open(path, "r+b") as file:
        file.write(bytes(64))
    with pytest.raises(cxl_kv.TransportError, match="no KELP layout"):
        opened(path, create=False)
    with open(path, "r+b") as file:
        file.truncate(ALIGNMENT)
    with pytest.raises(cxl_kv.TransportError, match=f"needs {mapped_bytes(named('unit'))}"):
        opened(path, create=False)


def test_a_version_is_of_one_layout():
    """Another layout, as of a session's entry, has another version: `_VERSION`, and here."""
    entry, unit = dax_header._SESSION, named("unit")
    layout = [(name, entry.fields[name][0].str, entry.fields[name][1]) for name in entry.names]
    layout.append((dax_header._HEAD, dax_header._unused(unit), dax_header.header_bytes(unit)))
    seen = hashlib.sha256(repr(layout).encode()).hexdigest()[:12]
    assert (dax_header._VERSION, seen) == (b"2", "d85e3afd2644")


@pytest.mark.parametrize(
    ("zeros", "size"),
    [(0, 20), (0, 64 << 20), (8, 20), (1024, 64 << 20), (32768, 1 << 20), (32768, 64 << 20)],
)
def test_a_file_with_something_else_is_left_alone(path, zeros, size):
    """A wrong path must not cost what lies there: images of disks begin with zeros, too."""
    content = bytes(zeros) + b"My thesis, chapter 1" * (size // 20)
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(cxl_kv.TransportError, match="something else .* is left alone"):
        opened(path)
    with open(path, "rb") as file:
        assert file.read() == content


def test_a_closed_device_says_that_it_was_closed(path):
    device = opened(path)
    session = device.open_session(SHAPE)
    device.close()
    device.close()
    session.close()
    for call in (lambda: device.open_session(SHAPE), lambda: device.registers.read("s0_state")):
        with pytest.raises(cxl_kv.TransportError, match="the device was closed; open it again"):
            call()


@pytest.mark.parametrize("scheme", ["golden", "dax"])
def test_a_look_at_a_page_is_no_refusal(path, scheme):
    """One at a queue that the session does not have is."""
    url = "golden:unit" if scheme == "golden" else f"dax:{path}?config=unit&create=1"
    with cxl_kv.open(url) as device:
        session = device.open_session(SHAPE.with_(layers=1))
        session.page_state(0, 1, 0)
        session.set_policy(cxl_kv.Policy(), head=1)
        assert not session.state()["refused"]
        for command in (SessionCommand.PEEK, SessionCommand.APPLY_QUEUE):
            device.registers.write("s0_queue", queue=2)
            device.registers.write("s0_command", command=command)
            assert session.state()["refused"]
            session.page_state(0, 1, 0)
            assert not session.state()["refused"]


def test_a_device_that_nobody_closed_leaves_nothing(path):
    """No session that others could not have, and no open file, once its last reference is gone."""
    files = len(os.listdir("/proc/self/fd"))
    with opened(path) as other:
        lost = opened(path)
        numbers = [lost.open_session(SHAPE).number for _ in range(other.config.sessions)]
        with pytest.raises(cxl_kv.DeviceFullError):
            other.open_session(SHAPE)
        del lost
        gc.collect()
        assert [other.open_session(SHAPE).number for _ in numbers] == numbers
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_full_file_system_is_an_error_when_the_file_is_made(path):
    """No room for all of it, or not allowed to take it: nothing is made that would fail later, and
    what was there stays."""
    huge = "dax:{}?create=1&config=trace&queues=640&pages=8192&half_lines=64&sessions=16"  # 1 TiB
    with pytest.raises(cxl_kv.DeviceFullError, match="No space left"):
        cxl_kv.open(huge.format(path))
    assert not os.path.exists(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ALIGNMENT, limits[1]))
    try:
        for there in (False, True):  # a file that somebody else has made stays
            if there:
                open(path, "w").close()
            with pytest.raises(
                cxl_kv.DeviceFullError, match="File too large.*smaller configuration"
            ):
                opened(path)
            assert os.path.exists(path) == there and not (there and os.path.getsize(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for holes in (False, True):  # a file of that length without any memory
        if holes:
            os.truncate(path, 0)
            os.truncate(path, mapped_bytes(named("unit")))
        opened(path).close()
        assert os.stat(path).st_blocks * 512 >= mapped_bytes(named("unit")), (
            "the file has its memory from the start"
        )
    os.truncate(path, 0)
    os.truncate(path, 2 << 40)
    with pytest.raises(cxl_kv.DeviceFullError, match="No space left"):
        cxl_kv.open(huge.format(path))
    assert os.path.getsize(path) == 2 << 40 and not os.stat(path).st_blocks


def test_a_file_that_was_removed_meanwhile_is_not_laid_out(path, monkeypatch):
    """As by another process, which made it and found no room."""
    take = file_lock.take

    def late(*how):
        monkeypatch.setattr(file_lock, "take", take)
        os.unlink(path)
        take(*how)

    monkeypatch.setattr(file_lock, "take", late)
    with pytest.raises(cxl_kv.TransportError, match="was removed while it was opened; open it"):
        opened(path)


def test_memory_that_goes_away_is_an_error_and_not_a_signal(path):
    """The file is cut behind the first pages: what is left is read, the rest is named."""
    device = opened(path)
    sessions = [device.open_session(SHAPE) for _ in range(2)]
    k, v = tensors(32)
    for session in sessions:
        session.write([0, 1], k, v)
    # all of session 0, nothing of session 1
    keep = mapped_bytes(named("unit")) - ALIGNMENT + (1 << named("unit").aperture_bits) // 2
    os.truncate(path, keep)
    assert (sessions[0].read([0, 1], stop=32)[0] == k).all()
    with pytest.raises(cxl_kv.BusError, match="session 1, layer 0, head 0, page 0") as caught:
        sessions[1].read([0, 1], stop=32)
    assert (caught.value.session, caught.value.layer, caught.value.page) == (1, 0, 0)
    with pytest.raises(cxl_kv.BusError, match="session 1, layer 1, head 0, page 2"):
        sessions[1].write(1, k[1, :, 8:12], v[1, :, 8:12], start=8)
    os.truncate(path, 0)
    with pytest.raises(cxl_kv.TransportError, match="truncated"):
        sessions[0].read(0, stop=1)
    device.close()


@pytest.mark.parametrize("left", [128, 4096, ALIGNMENT, ALIGNMENT + 4096])
def test_a_file_that_was_cut_and_made_whole_again_keeps_no_session(path, left):
    """What was cut away comes back as zeros, which nobody wrote."""
    with opened(path) as device:
        session = device.open_session(SHAPE)
        k, v = tensors(32)
        session.write([0, 1], k, v)
        os.truncate(path, left)
        with opened(path) as other:
            for call in (lambda: session.read(0, stop=32), lambda: session.write([0, 1], k, v)):
                with pytest.raises(cxl_kv.SessionLostError):
                    call()
            fresh = other.open_session(SHAPE)
            assert fresh.number != session.number  # whose process has not closed it yet
            assert not fresh.read(0, stop=32)[0].any()
            session.close()
            with device.open_session(SHAPE) as again:
                again.write([0, 1], k, v)
                assert (again.read([0, 1], stop=32)[0] == k).all()


def test_a_device_that_another_thread_closes_first_says_so(path):
    """Not that its file was closed behind the library's back."""
    transport, said = opened(path).transport, []

    def ask():
        with pytest.raises(cxl_kv.TransportError) as caught, transport.exclusive():
            pass
        said.append(str(caught.value))

    other = threading.Thread(target=ask)
    with transport.core.lock:
        other.start()
        time.sleep(0.2)  # it waits for the lock now
        transport.close()
    other.join(10)
    assert said == ["the device was closed; open it again"]


def _hold(path, ready, seed):
    device = opened(path, create=False)
    session = device.open_session(SHAPE)
    session.write([0, 1], *tensors(32, seed))
    ready.put(session.number)
    signal.pause()


def test_processes_share_a_mapping_and_a_killed_one_makes_room(path):
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Queue()
    with opened(path) as device:
        child = spawn.Process(target=_hold, args=(path, ready, 7))
        child.start()
        taken = ready.get(timeout=60)
        mine = device.open_session(SHAPE)
        assert mine.number != taken
        k, v = tensors(32, 3)
        mine.write([0, 1], k, v)
        with pytest.raises(cxl_kv.DeviceFullError, match="2 sessions"):
            device.open_session(SHAPE)
        # The other process's lines are not to be had by address either.
        foreign = np.array([taken << named("unit").aperture_bits - 1], np.uint64)
        assert device.transport.load(foreign).status.tolist() == [cxl_kv.Status.NOT_MAPPED]
        with pytest.raises(cxl_kv.SessionClosedError, match="another owner's; nothing was stored"):
            device.transport.store(foreign, np.full((1, 64), 9, np.uint8))
        os.kill(child.pid, signal.SIGKILL)
        child.join(60)
        after = device.open_session(SHAPE)
        assert after.number == taken and not after.read([0, 1], stop=32)[0].any()
        assert (mine.read([0, 1], stop=32)[1] == v).all()
