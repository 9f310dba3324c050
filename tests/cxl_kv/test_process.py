# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A handle belongs to the process that opened it: in a child every call says so, nothing of the
parent's is read, changed or closed, and the child may open the device for itself."""

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
from processes import forked
from serial_board import SerialBoard

import cxl_kv
from cxl_kv.blocks import BlockStore
from cxl_kv.process import Home
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
ONES = np.ones((2, 2, 32, 32), np.float16)


@pytest.fixture(params=["dax", "golden", "unix", "serial"])
def url(request, tmp_path):
    if request.param == "dax":
        yield f"dax:{tmp_path}/memory?config=unit&create=1"
    elif request.param == "golden":
        yield "golden:unit"
    elif request.param == "serial":
        with SerialBoard() as board:
            yield f"serial:{board.port}?patience=30"
    else:
        with Server(make_core("golden:unit")) as server:
            yield server.listen(f"unix:{tmp_path}/kelp.sock")


def in_a_child(check, seconds=30):
    """What `check` returns in a forked child; the child must end in time."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            os.write(write, repr(check()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    os.waitpid(pid, 0)
    timer.cancel()
    with os.fdopen(read, "rb") as answer:
        return answer.read().decode()


def refused(calls):
    """Names of the calls that were not a ForkedError."""
    wrong = []
    for name, call in calls.items():
        try:
            wrong.append((name, call()))
        except cxl_kv.ForkedError:
            pass
        except Exception as error:
            wrong.append((name, error))
    return wrong


def calls_of(device, session):
    address = np.zeros(1, np.uint64)
    return {
        "read": lambda: session.read(0, stop=1),
        "write": lambda: session.write([0, 1], 9 * ONES, 9 * ONES),
        "advance": session.advance,
        "state": session.state,
        "open": lambda: device.open_session(SHAPE),
        "batch": lambda: device.batch().read(session, 0, stop=1).submit(),
        "load": lambda: device.transport.load(address),
        "store": lambda: device.transport.store(address, np.full((1, 64), 9, np.uint8)),
        "spec_read": lambda: device.transport.spec_read(address),
        "close_session": lambda: device.transport.close_session(session.number),
        "exclusive": lambda: device.transport.exclusive().__enter__(),
        "events": device.events,
    }


def test_a_childs_handle_is_refused(url):
    with cxl_kv.open(url) as device:
        session = device.open_session(SHAPE)
        session.write([0, 1], ONES, ONES)

        def check():
            wrong = refused(calls_of(device, session))
            session.close()
            device.close()
            gc.collect()
            return wrong

        assert in_a_child(check) == "[]"
        assert (session.read([0, 1], stop=32)[0] == 1).all(), "the parent goes on"
        session.write([0, 1], 2 * ONES, 2 * ONES)
        assert (session.read([0, 1], stop=32)[1] == 2).all() and session.state()["open"]


def test_a_child_does_not_wait_for_threads_that_it_has_not(url):
    """Another thread is within a call, and a batch is under way, when the process forks."""
    with cxl_kv.open(url) as device:
        session = device.open_session(SHAPE)
        session.write([0, 1], ONES, ONES)
        entered, leave = threading.Event(), threading.Event()

        def occupy():
            with device.transport.exclusive():
                entered.set()
                leave.wait(60)

        thread = threading.Thread(target=occupy)
        thread.start()
        entered.wait(30)
        done = device.batch().read(session, 0, stop=1).submit()
        assert not done.done()
        calls = calls_of(device, session) | {"result": done.result, "wait": done.wait}

        def check():
            wrong = refused(calls)
            device.close()
            return wrong

        try:
            assert in_a_child(check) == "[]"
        finally:
            leave.set()
            thread.join()
        assert (done.result(30)[0][0] == 1).all()


def _of_a_child(url, answers):
    with cxl_kv.open(url.replace("&create=1", "")) as device:
        session = device.open_session(SHAPE)
        empty = not session.read([0, 1], stop=32)[0].any()
        session.write([0, 1], 3 * ONES, 3 * ONES)
        answers.put((session.number, empty, bool((session.read([0, 1], stop=32)[0] == 3).all())))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("url", ["dax", "unix"], indirect=True)
def test_a_child_opens_the_device_for_itself(url, method):
    with cxl_kv.open(url) as device:
        session = device.open_session(SHAPE)
        session.write([0, 1], ONES, ONES)
        context = multiprocessing.get_context(method)
        answers = context.SimpleQueue()
        child = context.Process(target=_of_a_child, args=(url, answers))
        child.start()
        number, empty, own = answers.get()
        child.join(60)
        assert (child.exitcode, empty, own) == (0, True, True) and number != session.number
        assert (session.read([0, 1], stop=32)[0] == 1).all()


@pytest.mark.parametrize("url", ["dax", "unix"], indirect=True)
def test_a_child_does_not_keep_the_sessions_of_a_parent_that_is_gone(url):
    """A worker outlives the process that had the session open."""

    def begin():
        device = cxl_kv.open(url)
        sessions = [device.open_session(SHAPE) for _ in range(2)]
        return device, sessions, forked(lambda: None)

    read, write = os.pipe()

    def begin_and_tell():
        kept = begin()
        os.write(write, kept[2].to_bytes(4, "little"))
        return kept

    parent = forked(begin_and_tell)
    worker = int.from_bytes(os.read(read, 4), "little")
    os.close(read), os.close(write)
    try:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        deadline = time.monotonic() + 20
        with cxl_kv.open(url) as device:
            while True:
                try:
                    device.open_session(SHAPE)
                    break
                except cxl_kv.DeviceFullError:
                    assert time.monotonic() < deadline, "the worker keeps the sessions"
                    time.sleep(0.02)
        os.kill(worker, 0)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_view_does_not_reach_into_a_child(tmp_path):
    """What it would show there may be another owner's by then."""
    with cxl_kv.open(f"dax:{tmp_path}/memory?config=unit&create=1") as device:
        session = device.open_session(SHAPE)
        session.write([0, 1], ONES, ONES)
        keys, _ = session.view(0, 0, 0)
        pid = os.fork()
        if not pid:
            try:
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                keys[0, 0] = 7
            finally:
                os._exit(0)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGSEGV
        assert (keys.view(np.float16) == 1).all()


def test_a_handle_is_neither_copied_nor_sent(url):
    with cxl_kv.open(url) as device:
        session, store = device.open_session(SHAPE), BlockStore(device, 64)
        things = [device, session, device.transport, store, device.registers, session.hints]
        if url.startswith(("golden", "dax")):
            things.append(device.transport.core)
        for thing in things:
            for how in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(cxl_kv.UnsupportedError, match="open .* by its URL"):
                    how(thing)


def test_a_child_with_its_parents_number_is_a_child():
    """The first process of two pid namespaces is number 1 in both."""
    home = Home()
    number = os.getpid()

    def check():
        os.getpid = lambda: number
        return home.left()

    assert not home.left() and in_a_child(check) == "True"
