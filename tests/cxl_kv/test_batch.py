# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Many threads on one device: plain calls, hints, telemetry and batches at once; each session keeps
what it was given."""

import contextlib
import copy
import gc
import pickle
import threading
import time
import weakref

import numpy as np
import pytest

import cxl_kv
from cxl_kv.batch import Worker
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)


def test_a_device_that_nobody_closed_leaves_no_thread():
    def use():
        device = cxl_kv.open("golden:unit")
        batch = device.batch()
        batch.advance(device.open_session(SHAPE))
        batch.submit().result(30)
        return weakref.ref(device), weakref.ref(device.worker._thread)

    device, thread = use()
    gc.collect()
    assert device() is None
    if (left := thread()) is not None:
        left.join(30)
        assert not left.is_alive()


@pytest.mark.parametrize("way", ["dax:{}/memory?config=trace&create=1", "unix:{}/kelp.sock"])
def test_a_call_under_way_does_not_reach_the_sessions_successor(way, tmp_path):
    """It is closed by one thread while another writes: the next session gets its number."""
    shape = cxl_kv.ModelShape(layers=6, kv_heads=2, head_dim=32)
    layers, k = list(range(6)), np.full((6, 2, 512, 32), 9, np.float16)
    with contextlib.ExitStack() as stack:
        if way.startswith("unix"):
            server = stack.enter_context(Server(make_core("golden:trace")))
            server.listen(way.format(tmp_path))
        device = stack.enter_context(cxl_kv.open(way.format(tmp_path)))
        for attempt in range(5):
            closed, begun, ended = device.open_session(shape), threading.Event(), []

            def write(session=closed, begun=begun, ended=ended):
                try:
                    while True:
                        begun.set()
                        session.write(layers, k, k)
                except cxl_kv.SessionClosedError as error:
                    ended.append(error)

            thread = threading.Thread(target=write)
            thread.start()
            assert begun.wait(30)
            time.sleep(0.008 * attempt)  # a write takes 20 ms and more
            closed.close()
            with device.open_session(shape) as successor:
                assert successor.number == closed.number
                thread.join(60)
                assert not any(half.any() for half in successor.read(layers, stop=512))
            assert len(ended) == 1


@pytest.mark.parametrize(
    "url",
    ["golden:unit?sessions=6&frames=12,8,8,8", "dax:{}/memory?config=unit&sessions=6&create=1"],
)
def test_sessions_in_threads_do_not_disturb_each_other(url, tmp_path):
    wrong, done = [], []
    with cxl_kv.open(url.format(tmp_path)) as device:
        together = threading.Barrier(6)

        def work(seed):
            try:
                rng = np.random.default_rng(seed)
                model = np.zeros((2, 2, 2, 32, 32), np.float16)
                with device.open_session(SHAPE) as session:
                    together.wait(30)
                    for step in range(30):
                        layer, n = int(rng.integers(2)), int(rng.integers(1, 6))
                        positions = rng.choice(32, n, replace=False)
                        k, v = rng.standard_normal((2, 2, n, 32)).astype(np.float16)
                        model[0, layer][:, positions], model[1, layer][:, positions] = k, v
                        if step % 3:
                            session.write(layer, k, v, positions=positions)
                            got = session.read(layer, stop=32)
                        else:
                            got = (
                                device.batch()
                                .write(session, layer, k, v, positions=positions)
                                .read(session, layer, stop=32)
                                .submit()
                                .result(60)[1]
                            )
                        if (
                            not (got[0] == model[0, layer]).all()
                            or not (got[1] == model[1, layer]).all()
                        ):
                            wrong.append((seed, step))
                        session.advance()
                        if device.transport.hints:
                            session.hints.push_mass(layer, 1, [0.1, 0.2])
                            if session.telemetry()["allocations"].sum() > 4 * session.pages:
                                wrong.append((seed, "telemetry"))
                    if session.step != 30:
                        wrong.append((seed, session.step))
                done.append(seed)
            except BaseException as error:
                wrong.append((seed, repr(error)))
                together.abort()
                raise

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not wrong and sorted(done) == list(range(6))


def test_a_batch_that_is_submitted_while_the_device_closes_is_carried_out(monkeypatch):
    """Or refused; never left to a thread that has ended, so that nobody's wait for it ends."""
    device = cxl_kv.open("golden:unit")
    batch = device.batch()
    batch.advance(device.open_session(SHAPE))
    closing, put = threading.Thread(target=device.close), Worker.put

    def late(worker, *item):
        if not closing.ident:
            closing.start()
            closing.join(0.5)
        put(worker, *item)

    monkeypatch.setattr(Worker, "put", late)
    assert batch.submit().result(10) == [None]
    closing.join(30)
    assert device.closed and not closing.is_alive()


def test_a_batch_is_not_copied_nor_is_what_tells_of_its_end():
    """A copy could be submitted a second time; one of a completion would end without its error."""
    with cxl_kv.open("golden:unit") as device:
        batch = device.batch()
        batch.advance(device.open_session(SHAPE))
        done = batch.submit()
        for thing, instead in ((batch, "make a new one"), (done, r"what result\(\) returns")):
            for how in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(cxl_kv.UnsupportedError, match=instead):
                    how(thing)
        assert done.result(30) == [None]


@pytest.mark.timeout(60)  # where both wait for each other, so does the device's end
@pytest.mark.parametrize("way", ["golden:unit", "unix:{}/kelp.sock"])
def test_events_within_a_stretch_do_not_wait_for_another_threads(way, tmp_path):
    """Whoever asks for events takes one lock, and the stretch has it."""
    with contextlib.ExitStack() as stack:
        if way.startswith("unix"):
            server = stack.enter_context(Server(make_core("golden:unit")))
            server.listen(way.format(tmp_path))
        device = stack.enter_context(cxl_kv.open(way.format(tmp_path)))
        calls = [
            device.poll,
            device.events,
            lambda: device.since(0),
            lambda: device.explain(0, 0, 0),
        ]
        for call in calls:
            beside = threading.Thread(target=call, daemon=True)

            def within(call=call, beside=beside):
                with device.transport.exclusive():
                    beside.start()
                    beside.join(0.2)  # it waits for the end of this
                    call()

            thread = threading.Thread(target=within, daemon=True)
            thread.start()
            thread.join(20)
            beside.join(20)
            assert not thread.is_alive() and not beside.is_alive()
