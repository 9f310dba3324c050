# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Which sessions a device has open, whoever has them, and whose a number is that is used again."""

import gc

import numpy as np
import pytest

import cxl_kv

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
ONE = np.ones((2, 1, 32), np.float16)


@pytest.fixture(params=["golden:unit?sessions=3", "dax:{}/memory?config=unit&sessions=3&create=1"])
def device(request, tmp_path):
    with cxl_kv.open(request.param.format(tmp_path)) as opened:
        yield opened


def test_a_session_that_nobody_has_is_open_still(device):
    """And takes its share of the frames, until the device is closed."""
    device.open_session(SHAPE)
    gc.collect()
    with device.open_session(SHAPE) as session:
        assert session.number == 1 and device.queues == 8
    assert device.queues == 4
    device.close()
    assert device.queues == 0


def test_what_was_closed_behind_its_owners_back_is_not_its_successor(device):
    session = device.open_session(SHAPE)
    device.transport.close_session(session.number)
    successor = device.open_session(SHAPE)
    successor.write(0, ONE, ONE)
    assert successor.number == session.number and session.closed and device.queues == 4
    session.close()
    assert successor.state()["open"] and device.queues == 4
    assert (successor.read(0, stop=1)[0] == 1).all()
    with pytest.raises(cxl_kv.SessionClosedError):
        session.read(0, stop=1)


@pytest.mark.parametrize("reused", [False, True])
def test_a_close_that_broke_off_once_the_device_had_closed_it(device, monkeypatch, reused):
    """It is made again, but does not close another session of that number."""
    session, close, successors = device.open_session(SHAPE), device.transport.close_session, []

    def broken(number):
        close(number)
        if reused:
            successors.append(device.open_session(SHAPE))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(device.transport, "close_session", broken)
        session.close()
    assert session.closed == reused and device.queues == 4
    if reused:
        session.close()
        assert successors[0].number == session.number and successors[0].state()["open"]
        assert device.queues == 4
