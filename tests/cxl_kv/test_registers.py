# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A device is opened where its registers say that it is the one that the URL names."""

import pytest
from serial_board import SerialBoard

import cxl_kv
from cxl_kv import url
from cxl_kv.backends.golden import GoldenCore
from cxl_kv.core import Loaded, Status
from kelp_spec.config import named

OTHERS = [
    ("identity", 1 << 16, "version 0.1 of the register map, and this host version 1.1"),
    ("identity", 1, "version 1.0 of the register map, and this host version 1.1"),
    ("identity", 1 << 32, "shows 0x4b454c5100010001; a KELP device's shows 0x4b454c5000010001"),
    ("digest", 1, f"and 'unit' has digest {named('unit').digest}"),
]


@pytest.mark.parametrize(("register", "flip", "said"), OTHERS)
def test_a_device_of_another_version_or_configuration_is_refused(monkeypatch, register, flip, said):
    core, closed = GoldenCore(named("unit")), []
    core.window._constants[register] ^= flip
    monkeypatch.setattr(core, "close", lambda: closed.append(True))
    monkeypatch.setattr(url, "_core_of", lambda _: core)
    with pytest.raises(cxl_kv.TransportError, match=f"^golden:unit: .*{said}") as refused:
        cxl_kv.open("golden:unit")
    assert closed and "\n" not in str(refused.value)


def test_a_device_without_registers_is_refused(monkeypatch):
    core = GoldenCore(named("unit"))
    lines, status = core.load(cxl_kv.transport.as_addresses([0]), 0)
    assert status[0] == Status.NOT_MAPPED
    monkeypatch.setattr(core, "load", lambda addresses, ld_id: Loaded(lines, status))
    monkeypatch.setattr(url, "_core_of", lambda _: core)
    with pytest.raises(cxl_kv.TransportError, match="no registers answer where .* 'unit' has them"):
        cxl_kv.open("golden:unit")


@pytest.mark.parametrize(("register", "flip", "said"), OTHERS)
def test_so_is_a_board(register, flip, said):
    """Whose own registers show that it is ours, with 32 of the digest's bits."""
    with SerialBoard() as board:
        board.core.window._constants[register] ^= flip
        with pytest.raises(cxl_kv.TransportError, match=said):
            cxl_kv.open(f"serial:{board.port}?reset=0")
        cxl_kv.open(f"serial:{board.port}").close()  # with a new endpoint
