# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled CXL.io: what its calls do is what the register port, the streams and the decode
do."""

import re
from pathlib import Path

import pytest
from amaranth.lib.wiring import Flow
from processes import ends_in_a_child

import kelp_rtl.cxlio.model
from kelp_hw.cxlio.cxl_io import CxlIo
from kelp_rtl.cxlio.model import RegisterModel
from kelp_spec.cxlio.commands import Opcode
from kelp_spec.cxlio.config import CXLIO, named_cxlio
from kelp_spec.cxlio.pci import MSIX_TABLE

UNIT = 1 << 28


@pytest.fixture(scope="module")
def model():
    return RegisterModel(named_cxlio("full"))


@pytest.mark.timeout(900)
def test_accesses_commands_requests_events_messages_and_decode(model):
    assert model.read("device", 0x200, 8) == ((1 << 64) - 1, 2)
    model.write("configuration", 4, 2, 6)
    code, answer = model.command(Opcode.IDENTIFY)
    assert code == 0 and answer.startswith(b"KELP") and len(answer) == 0x43
    assert model.command(0x777) == (3, b"")
    asked = []
    model.decide = lambda request: asked.append(request) or 1
    assert model.command(Opcode.INJECT_POISON, (64 * 5).to_bytes(8, "little")) == (0xF, b"")
    assert [(each["kind"], each["line"]) for each in asked] == [(1, 5)]
    model.write("configuration", 0x7E, 2, 0x8000)
    entry = MSIX_TABLE + 16 * model.config.event_vector
    for at, value in ((0, 0xFEE00000), (8, 0x31), (12, 0)):
        model.write("device", entry + at, 4, value)
    model.command(Opcode.SET_INTERRUPT_POLICY, b"\1\1\1\1")
    model.event(log=2, dpa=0x1000)
    model.clock(900)
    assert not model.waiting and model.read("device", 0x100, 4)[0] == 4
    assert model.messages == [{"address": 0xFEE00000, "data": 0x31}]
    assert model.decode(64) is None
    model.write("configuration", 0x10C, 2, 6)
    assert model.decode(UNIT - 64) == UNIT - 64 and model.decode(UNIT) is None
    model.write("configuration", 0x48, 2, 7)
    model.report(correctable=2)
    model.clock(2)
    assert model.faults()["err_correctable"] == 0  # masked
    model.write("component", 0x1090, 4, 0)
    model.report(correctable=2)
    model.clock(2)
    assert {k: v for k, v in model.faults().items() if v} == {"err_correctable": 1}


def test_no_input_is_left_to_chance():
    """What holds any value before the reset has one behind it, but for payloads of nothing."""
    source = Path(kelp_rtl.cxlio.model.__file__).with_name("model.cpp").read_text("utf-8")
    reset = source[source.index("void reset()") : source.index("int access(")]
    inputs = set()
    for name in CXLIO:
        port = CxlIo(config=named_cxlio(name))
        members = [(path, member) for path, member, _ in port.signature.flatten(port)]
        inputs |= {"__".join(path) for path, member in members if member.flow == Flow.In}
    inputs -= {"events__valid"}  # of what waits, in each cycle
    assert {"progress", "heat__valid", "port__aw__valid"} < inputs
    for name in sorted(inputs):
        if not name.endswith("__payload"):
            assert re.search(rf"\bt\.{name.replace('__', '___05F')}\b", reset), name


@pytest.mark.timeout(300)
def test_a_child_lets_its_parents_simulation_be(model):
    """Its threads are the parent's, who goes on."""
    model.write("configuration", 4, 2, 6)
    assert ends_in_a_child(model.close)
    assert model.command(Opcode.IDENTIFY)[0] == 0


@pytest.mark.timeout(300)
def test_a_simulation_ends_after_one_that_was_built_later(model):
    """Verilator's scopes leave the context of the thread, which is gone with the other."""
    other = RegisterModel(model.config)
    other.close()
    assert model.command(Opcode.IDENTIFY)[0] == 0
    model.close()
