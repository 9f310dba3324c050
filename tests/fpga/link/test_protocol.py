# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Frames as the host makes and reads them."""

import hashlib
import random

from kelp_fpga.board_registers import BoardRegister, Control, Status
from kelp_fpga.link.protocol import (
    BOARD_REPLY,
    BOARD_REQUEST,
    FROM_DEVICE,
    TO_DEVICE,
    VERSION,
    WINDOW,
    Deframer,
    Frame,
    Kind,
    encode,
)
from kelp_fpga.selftest.self_test_program import Part, State
from kelp_spec.messages import FIELDS


def test_a_version_is_of_one_link():
    """A host tells a bitstream of other sources apart by it: what changes messages or the board's
    registers changes `VERSION`, and then stands here."""
    named = [
        [(e.name, int(e)) for e in enum]
        for enum in (Kind, BoardRegister, Control, Status, Part, State)
    ]
    sizes = [[(int(kind), n) for kind, n in side.items()] for side in (TO_DEVICE, FROM_DEVICE)]
    said = repr((named, BOARD_REQUEST, BOARD_REPLY, sizes, FIELDS))
    seen = hashlib.sha256(said.encode()).hexdigest()[:12]
    assert (VERSION, WINDOW, seen) == (1, 8, "802b19bebd28")


def test_frames_come_back_and_damage_is_seen():
    rng = random.Random(2)
    deframer = Deframer(TO_DEVICE)
    for _ in range(300):
        kind = rng.choice(list(Kind))
        frame = Frame(
            kind,
            rng.randrange(256),
            rng.randrange(256),
            0x10,
            bytes(rng.choices((0x7E, 0x7D, 0x5E, rng.randrange(256)), k=TO_DEVICE[kind])),
        )
        line = encode(frame)
        assert line.count(0x7E) == 2 and deframer.feed(line) == [frame]
        broken = bytearray(line)
        broken[rng.randrange(1, len(line) - 1)] ^= 1 << rng.randrange(8)
        assert frame not in deframer.feed(bytes(broken))
        assert deframer.feed(line) == [frame], "the frame after a broken one is lost"
    assert deframer.bad


def test_frames_of_no_known_length_are_refused():
    deframer = Deframer(FROM_DEVICE)
    assert (
        deframer.feed(encode(Frame(Kind.REQ, 0, 0, 0, bytes(5)))) == []
        and deframer.feed(encode(Frame(9, 0, 0, 0, b""))) == []
    )
    assert deframer.bad == 2
