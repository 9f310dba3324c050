# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Many threads on one device: plain calls, hints, telemetry and batches at once; each session keeps
what it was given."""

import gc
import threading
import weakref

import numpy as np
import pytest

import cxl_kv

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
