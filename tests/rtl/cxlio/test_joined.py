# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The whole device as one model: registers decode, poison and tell of the same memory that programs
load and store."""

import numpy as np
import pytest

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.cxlio.joined import JoinedDriver
from kelp_rtl.program import Program, Response
from kelp_spec.address import KvAddress
from kelp_spec.config import named
from kelp_spec.cxlio.chmu import CHMU_LIST
from kelp_spec.cxlio.commands import Opcode
from kelp_spec.cxlio.pci import MSIX_TABLE
from kelp_spec.metadata import ScoreSource
from kelp_spec.registers import SessionCommand

CONFIG = named("unit_cxl")

# Another model of the device: two and a half minutes of processor time. tests/hw/test_cxl_device.py
# runs it in `make test`.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def device():
    return JoinedDriver(CONFIG)


def le(value):
    return value.to_bytes(8, "little")


@pytest.mark.timeout(1800)
def test_registers_and_memory_are_one_device(device):
    assert device.run(Program.reads([0])).response[0] == Response.NXM  # nothing decodes
    device.write("configuration", 4, 2, 6)
    device.write("configuration", 0x10C, 2, 4)  # the range does, from 0 on
    observed = QueueParameters(score_source=ScoreSource.OBSERVED)
    device.open_session(0, Descriptor(layers=1, kv_heads=1), observed)
    at = [device.addresses.encode(KvAddress(0, 0, 0, 0, i)) for i in range(4)]
    lines = np.random.default_rng(3).integers(0, 60, (4, 64), np.uint8)
    device.run(Program.writes(at, lines))
    assert (device.run(Program.reads(at)).data == lines).all()
    # An interrupt for each event that finds its log empty.
    device.write("configuration", 0x7E, 2, 0x8000)
    entry = MSIX_TABLE + 16 * device.io.event_vector
    for offset, value in ((0, 0xFEE00000), (8, 0x31), (12, 0)):
        device.write("device", entry + offset, 4, value)
    assert device.command(Opcode.SET_INTERRUPT_POLICY, b"\1\1\1\1")[0] == 0
    assert device.command(Opcode.INJECT_POISON, le(at[2]))[0] == 0
    assert device.command(Opcode.INJECT_POISON, le(1 << 27))[0] == 0xF
    device.clock(2000)
    assert {"address": 0xFEE00000, "data": 0x31} in device.messages
    found = device.run(Program.reads(at)).response
    assert found.tolist() == [Response.DATA, Response.DATA, Response.POISON, Response.DATA]
    assert device.command(Opcode.CLEAR_POISON, le(at[2]) + lines[0].tobytes())[0] == 0
    assert (device.run(Program.reads(at)).data[2] == lines[0]).all()
    # The hot list: the page that was accessed, with the tracker's own score.
    device.write("chmu", 0x80, 8, 1)
    device.write("chmu", 0x58, 8, 1 << 40)
    device.write("chmu", 0x50, 8, 3 | 1 << 16 | 1 << 32)
    while not device.read("chmu", 0x70, 8)[0] & 1:
        pass
    device.session_command(0, SessionCommand.ADVANCE, 1)
    device.run(Program.reads(at[:1]))
    device.clock(100)
    assert device.read("chmu", 0x7A, 2)[0] == 1
    entry = device.read("chmu", CHMU_LIST, 8)[0]
    assert entry >> 16 == at[0] >> CONFIG.line_bits + 6 and entry & 0xFFFF
    device.warm(-5)
    code, health = device.command(Opcode.HEALTH)
    assert code == 0 and int.from_bytes(health[4:6], "little", signed=True) == -5


@pytest.mark.timeout(600)
def test_a_reset_in_the_middle_of_a_command(device):
    """Nothing of it is left: the mailbox is ready anew, its logs and its list are empty."""
    device.write("configuration", 4, 2, 6)
    device.write("device", 0x1008, 8, Opcode.GET_LOG | 24 << 16)
    device.write("device", 0x1004, 4, 1)
    device.reset()
    assert device.read("configuration", 4, 2)[0] == 0
    device.write("configuration", 4, 2, 6)
    assert device.read("device", 0x1004, 4)[0] == 0
    code, listed = device.command(Opcode.POISON_LIST, le(0) + le(1 << 22))
    assert code == 0 and listed[10] == 0
    assert device.run(Program.reads([0])).response[0] == Response.NXM
