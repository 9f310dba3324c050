# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board at the end of a pseudo-terminal, for `serial:` without a simulator: frames and messages
by kelp_fpga.link.protocol, the link by the rules of the bridge's gateware (kelp_fpga.link.receiver
and link_sender), the golden model as the endpoint. The line can be told to lose, change and double
bytes."""

import os
import pty
import random
import select
import threading
import tty
from collections import deque

import numpy as np

from cxl_kv.backends.golden import GoldenCore
from cxl_kv.core import Status as Answer
from kelp_fpga.board_registers import IDENT, BoardRegister, Control, Status
from kelp_fpga.configs import board_config
from kelp_fpga.link.protocol import (
    BOARD_REPLY,
    BOARD_REQUEST,
    NAK,
    POLL,
    TO_DEVICE,
    VERSION,
    WINDOW,
    Deframer,
    Frame,
    Kind,
    encode,
    pack,
    unpack,
)
from kelp_spec.messages import FIELDS, S2MDRS, S2MNDR, M2SReq, M2SRwD

__all__ = ["Line", "SerialBoard"]


class Line:
    """Bytes on their way; `faults` says how many of the next chunks are spoilt: a bit flipped, cut
    in two with the rest lost, sent twice."""

    def __init__(self, seed=1):
        self.random, self.faults, self.spoilt = random.Random(seed), deque(), 0

    def carry(self, data: bytes) -> bytes:
        if not self.faults or not data:
            return data
        self.spoilt += 1
        kind, at = self.faults.popleft(), self.random.randrange(len(data))
        if kind == "flip":
            return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        return data[:at] if kind == "tear" else data + data


class DeviceLink:
    """The device's half of the connection: bytes in, (kind, payload) messages out; answers in,
    bytes out."""

    def __init__(self):
        self.deframer = Deframer(TO_DEVICE)
        self.clear()

    def clear(self):
        self.expected = self.base = 0
        # sent and not acknowledged, from `base` on
        self.kept: deque[tuple[int, bytes]] = deque()
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.told = False

    def feed(self, data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
        """Messages delivered, and what is to be sent at once."""
        messages, out = [], b""
        for frame in self.deframer.feed(data):
            if frame.kind == Kind.SYNC:
                self.clear()
                out += encode(
                    Frame(Kind.SYNC, 0, 0, 0, frame.payload + bytes([VERSION, WINDOW, 0, 0]))
                )
                continue
            done = frame.ack - self.base & 0xFF
            if done <= len(self.kept):
                for _ in range(done):
                    self.kept.popleft()
                self.base = frame.ack
            urgent, again = bool(frame.flags & POLL), bool(frame.flags & POLL)
            if frame.kind != Kind.CONTROL:
                ahead = frame.seq - self.expected & 0xFF
                if ahead == 0:
                    self.expected, self.told = self.expected + 1 & 0xFF, False
                    messages.append((frame.kind, frame.payload))
                elif ahead < 2 * WINDOW and not self.told:
                    self.told = urgent = True
            if again:
                self.told = False
            if urgent:
                out += encode(Frame(Kind.CONTROL, 0, self.expected, NAK, b""))
            if again:
                out += b"".join(
                    encode(Frame(kind, self.base + n, self.expected, 0, payload))
                    for n, (kind, payload) in enumerate(self.kept)
                )
            out += self.pump()
        return messages, out

    def submit(self, kind, payload):
        self.waiting.append((kind, payload))

    def pump(self) -> bytes:
        out = b""
        while self.waiting and len(self.kept) < WINDOW:
            kind, payload = self.waiting.popleft()
            out += encode(Frame(kind, self.base + len(self.kept), self.expected, 0, payload))
            self.kept.append((kind, payload))
        return out

    def acknowledgement(self) -> bytes:
        return encode(Frame(Kind.CONTROL, 0, self.expected, 0, b""))


class SerialBoard:
    """A running board; `port` is its line's name. A context manager.

    Attributes
    ----------
    core : GoldenCore
        The endpoint; a new one after each reset.
    line : Line
        Both directions.
    """

    def __init__(self, config: str = "unit", seed: int = 1):
        self.config = board_config(config)
        self.core, self.line, self.link = GoldenCore(self.config), Line(seed), DeviceLink()
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.port = os.ttyname(self._slave)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serial board", daemon=True)
        self._thread.start()

    def close(self):
        self._stop.set()
        self._thread.join(30)
        os.close(self._master)
        os.close(self._slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self):
        while not self._stop.is_set():
            if not select.select([self._master], [], [], 0.05)[0]:
                continue
            messages, out = self.link.feed(self.line.carry(os.read(self._master, 1 << 16)))
            for kind, payload in messages:
                self._answer(kind, payload)
            out += self.link.pump()
            if messages and not out:
                out = self.link.acknowledgement()
            out = self.line.carry(out)
            while out:
                out = out[os.write(self._master, out) :]

    def _answer(self, kind, payload):
        if kind == Kind.BOARD:
            request = unpack(BOARD_REQUEST, payload)
            value = self._register(
                request["address"], request["data"] if request["write"] else None
            )
            self.link.submit(Kind.BOARD, pack(BOARD_REPLY, tag=request["tag"], data=value))
            return
        fields = unpack(FIELDS["M2SReq" if kind == Kind.REQ else "M2SRwD"], payload)
        address = np.array([fields["address"] << 6], np.uint64)
        with self.core.lock:
            if kind == Kind.RWD:
                partial = fields["opcode"] == M2SRwD.MEM_WR_PTL
                line = np.frombuffer(fields["data"].to_bytes(64, "little"), np.uint8).reshape(1, 64)
                self.core.store(
                    address,
                    line,
                    np.array([fields["byte_enable"]], np.uint64) if partial else None,
                    fields["ld_id"],
                )
                self.link.submit(
                    Kind.REQ,
                    pack(
                        FIELDS["S2MNDR"],
                        opcode=S2MNDR.CMP,
                        tag=fields["tag"],
                        ld_id=fields["ld_id"],
                    ),
                )
            elif fields["opcode"] == M2SReq.MEM_SPEC_RD:
                self.core.spec_read(address, fields["ld_id"])
            else:
                lines, status = self.core.load(address, fields["ld_id"])
                self.link.submit(
                    Kind.RWD,
                    pack(
                        FIELDS["S2MDRS"],
                        opcode=S2MDRS.MEM_DATA_NXM
                        if status[0] == Answer.NOT_MAPPED
                        else S2MDRS.MEM_DATA,
                        tag=fields["tag"],
                        ld_id=fields["ld_id"],
                        poison=int(status[0] == Answer.POISON),
                        data=int.from_bytes(lines[0].tobytes(), "little"),
                    ),
                )

    def _register(self, address, value):
        if address == BoardRegister.CONTROL and value is not None and value >> Control.RESET & 1:
            self.core = GoldenCore(self.config)
        return {
            BoardRegister.IDENT: IDENT,
            BoardRegister.DIGEST: int(self.config.digest[:8], 16),
            BoardRegister.STATUS: 1 << Status.MEMORY | 1 << Status.READY | 1 << Status.QUIESCENT,
        }.get(address, 0)
