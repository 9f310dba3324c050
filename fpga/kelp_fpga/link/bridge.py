# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The host bridge: CXL.mem messages and the board's registers over any stream of bytes, each
delivered exactly once. A byte a cycle each way; a request leaves 5 cycles and its bytes after its
frame's last byte."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_hw.layouts import MESSAGES
from kelp_hw.lib.skid import Skid
from kelp_spec.messages import M2SReq

from .framing import Deframer, Framer, body_byte
from .protocol import BOARD_REPLY, BOARD_REQUEST, TO_DEVICE, Kind
from .receiver import LinkReceiver, injected
from .sender import LinkSender

__all__ = ["HostBridge", "board_access", "injected"]

_BOARD_REQUEST = data.StructLayout(dict(BOARD_REQUEST))
_BOARD_REPLY = data.StructLayout(dict(BOARD_REPLY))

#: An access to a register of the board.
board_access = data.StructLayout({name: w for name, w in BOARD_REQUEST if name != "tag"})


class _Session:
    """A connection of a host's, and what the endpoint owes it."""

    def __init__(self):
        self.draining = Signal()  #: the answers to an earlier host are taken and dropped
        self.nonce = Signal(32)
        self.owed = Signal(24)  #: answers that the endpoint still owes
        self.cleared = Signal()
        self.asked = Signal()  #: of `owed`, this cycle
        self.answered = Signal(2)


class HostBridge(wiring.Component):
    """Between a line of bytes (UART, Ethernet, …) and the endpoint's channels.
    kelp_fpga.link.protocol has the frames, kelp_fpga.link.host_link the protocol.

    A request waits in the bridge while the endpoint does not take it; an answer is kept until the
    host acknowledges it, and at `WINDOW` of them the bridge takes no more. After a SYNC with a new
    nonce the answers still owed to the host before are taken and dropped.

    Latency: a request leaves `LATENCY` cycles, and one for each of its bytes, after its frame's
    last byte. Throughput: that of the line, a byte each `INTERVAL` cycles at most.

    Parameters
    ----------
    patience : int
        Cycles that an acknowledgement waits for an answer to carry it; about two bytes of the line.

    Members
    -------
    i, o : stream(8)
        The line.
    m2s_req, m2s_rwd, s2m_drs, s2m_ndr
        The endpoint's channels.
    device_reset : In
        The endpoint is being reset and owes no more answers.
    hold : In
        The device tests itself: the host reaches the board's registers alone, its requests and a
        new connection wait.
    inject : In stream(injected)
        The test's requests.
    take_drs, take_ndr : In
        The endpoint's answers are taken where they come in.
    owed : Out
        The endpoint owes answers.
    board : Out, always-ready stream(board_access)
        A register of the board is read, and written when `write`, which is low without an access.
    board_read_data : In
        What it holds, in that cycle.
    synced : Out
        A host has connected.
    heard : Out
        A good frame has come.
    """

    LATENCY = Deframer.LATENCY + LinkReceiver.LATENCY
    INTERVAL = 1

    def __init__(self, *, patience: int = 512):
        self.patience = patience
        super().__init__(
            {
                "i": In(stream.Signature(8)),
                "o": Out(stream.Signature(8)),
                "m2s_req": Out(stream.Signature(MESSAGES["M2SReq"])),
                "m2s_rwd": Out(stream.Signature(MESSAGES["M2SRwD"])),
                "s2m_drs": In(stream.Signature(MESSAGES["S2MDRS"])),
                "s2m_ndr": In(stream.Signature(MESSAGES["S2MNDR"])),
                "device_reset": In(1),
                "hold": In(1),
                "inject": In(stream.Signature(injected)),
                "take_drs": In(1),
                "take_ndr": In(1),
                "owed": Out(1),
                "board": Out(stream.Signature(board_access, always_ready=True)),
                "board_read_data": In(32),
                "synced": Out(1),
                "heard": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        session = _Session()
        self._link(m, session)
        self._connect(m, session)
        self._request(m, session)
        self._answer(m, session, *self._board(m, session))
        return m

    def _link(self, m: Module, session: _Session) -> None:
        """Bytes to bodies to messages, and back."""
        s = m.submodules
        s.deframer = deframer = Deframer()
        s.framer = framer = Framer()
        s.receiver = receiver = LinkReceiver()
        s.sender = sender = LinkSender(patience=self.patience)
        connect(m, flipped(self.i), deframer.i)
        # Whether the framer must escape a byte hangs on the sender's memory, whose address hangs on
        # whether the framer takes the byte: a register between.
        s.to_framer = to_framer = Skid(body_byte)
        connect(m, sender.o, to_framer.i)
        connect(m, to_framer.o, framer.i)
        connect(m, framer.o, flipped(self.o))
        connect(m, flipped(self.inject), receiver.inject)
        m.d.comb += [
            receiver.end.eq(deframer.end),
            receiver.good.eq(deframer.good),
            receiver.enable.eq(self.synced),
            sender.enable.eq(self.synced),
            sender.expected.eq(receiver.expected),
            sender.nonce.eq(session.nonce),
            *(
                getattr(sender, name).eq(getattr(receiver, name))
                for name in ("polled", "owed", "urgent")
            ),
            self.heard.eq(receiver.sync | receiver.ack.valid),
            receiver.hold.eq(self.hold),
        ]
        connect(m, deframer.byte, receiver.byte)
        connect(m, receiver.ack, sender.ack)

    def _connect(self, m: Module, session: _Session) -> None:
        """A host connects. A request that stands at the endpoint's door goes in first: what is
        offered is not taken back. Then all is forgotten, then the endpoint answers."""
        receiver, sender = m.submodules.receiver, m.submodules.sender
        owed, cleared, draining = session.owed, session.cleared, session.draining
        # counted a cycle after it is so: `cleared` comes after that
        asked_before, answered_before = Signal(), Signal(2)
        m.d.sync += [
            asked_before.eq(session.asked),
            answered_before.eq(session.answered),
            owed.eq(owed + asked_before - answered_before),
        ]
        m.d.comb += self.owed.eq(owed.any())
        with m.If(self.device_reset):
            m.d.sync += owed.eq(0)  # for hundreds of cycles
        with m.If(draining & ~cleared & ~receiver.o.valid & ~self.hold):
            m.d.comb += [receiver.clear.eq(1), sender.clear.eq(1)]
            m.d.sync += cleared.eq(1)
        with m.If(draining & cleared & (owed == 0) & ~self.hold):
            m.d.sync += [draining.eq(0), self.synced.eq(1)]
            m.d.comb += sender.greet.eq(1)
        with m.If(receiver.sync):
            with m.If((receiver.nonce != session.nonce) | ~(self.synced | draining)):
                m.d.sync += [
                    session.nonce.eq(receiver.nonce),
                    draining.eq(1),
                    cleared.eq(0),
                    self.synced.eq(0),
                ]
                m.d.comb += sender.greet.eq(0)
            with m.Elif(self.synced):
                m.d.comb += sender.greet.eq(1)  # its answer was lost

    def _view(self, m: Module, shape, code: Kind):
        """The message at the receiver's door as a message of kind `code`."""
        message = m.submodules.receiver.o.p.payload
        return data.View(shape, message[len(message) - 8 * TO_DEVICE[code] :][: shape.size])

    def _request(self, m: Module, session: _Session) -> None:
        """Messages to the endpoint."""
        receiver = m.submodules.receiver
        req = self._view(m, MESSAGES["M2SReq"], Kind.REQ)
        rwd = self._view(m, MESSAGES["M2SRwD"], Kind.RWD)
        for port, payload, code in ((self.m2s_req, req, Kind.REQ), (self.m2s_rwd, rwd, Kind.RWD)):
            m.d.comb += [
                Value.cast(port.payload).eq(Value.cast(payload)),
                port.valid.eq(receiver.o.valid & (receiver.o.p.kind == code)),
            ]
            with m.If(port.valid & port.ready):
                m.d.comb += [
                    receiver.o.ready.eq(1),
                    session.asked.eq(
                        1 if code == Kind.RWD else payload.opcode != M2SReq.MEM_SPEC_RD
                    ),
                ]

    def _board(self, m: Module, session: _Session):
        """Messages to the board's registers. Returns whether a reply waits, and the reply."""
        receiver, board = m.submodules.receiver, self._view(m, _BOARD_REQUEST, Kind.BOARD)
        pending, reply = Signal(), Signal(_BOARD_REPLY)
        valid, write, address, value = Signal(), Signal(), Signal(7), Signal(32)
        m.d.comb += [
            self.board.valid.eq(valid),
            self.board.p.write.eq(write),
            self.board.p.address.eq(address),
            self.board.p.data.eq(value),
        ]
        m.d.sync += [valid.eq(0), write.eq(0)]
        with m.If(valid):
            m.d.sync += reply.data.eq(self.board_read_data)
        with m.If(
            receiver.o.valid & (receiver.o.p.kind == Kind.BOARD) & (session.draining | ~pending)
        ):
            m.d.comb += receiver.o.ready.eq(1)
            m.d.sync += [
                valid.eq(1),
                write.eq(board.write),
                address.eq(board.address),
                value.eq(board.data),
                pending.eq(1),
                reply.tag.eq(board.tag),
            ]
        return pending, reply

    def _answer(self, m: Module, session: _Session, pending: Signal, reply) -> None:
        """Answers to the sender: the board's, then data, then completions.

        Critical path: `turn` chooses among hundreds of bits, so it is registered; an answer takes
        the line longer than that cycle. A turn is given when the sender is ready, which it stays
        until a message comes: an offer that waited would be withdrawn by `draining`, `hold` or a
        reset of the endpoint. Of a shorter message the bytes behind its own are never sent.
        """
        sender, draining = m.submodules.sender, session.draining
        drs, ndr = self.s2m_drs, self.s2m_ndr
        with m.If(self.hold):
            m.d.comb += [drs.ready.eq(self.take_drs), ndr.ready.eq(self.take_ndr)]
        turn, payload = Signal(Kind), sender.i.p.payload
        m.d.comb += [sender.i.p.kind.eq(turn), payload.eq(Value.cast(drs.payload))]
        with m.Switch(turn):
            for code, message in ((Kind.BOARD, reply), (Kind.REQ, ndr.payload)):
                with m.Case(code):
                    bits = Value.cast(message)
                    m.d.comb += payload[: len(bits)].eq(bits)
        # its answer is still there: a reset forgets it, draining and hold take it by themselves
        stands = Signal()
        m.d.comb += [
            stands.eq(
                ~draining
                & (
                    ((turn == Kind.BOARD) & pending)
                    | (
                        ~self.hold
                        & (((turn == Kind.RWD) & drs.valid) | ((turn == Kind.REQ) & ndr.valid))
                    )
                )
            ),
            sender.i.valid.eq(stands),
        ]
        with m.If(draining):
            with m.If(~self.hold):
                m.d.comb += [drs.ready.eq(1), ndr.ready.eq(1)]
            m.d.sync += pending.eq(0)
        with m.If(stands):
            with m.If(sender.i.ready):
                m.d.sync += turn.eq(Kind.CONTROL)
                with m.Switch(turn):
                    with m.Case(Kind.BOARD):
                        m.d.sync += pending.eq(0)
                    with m.Case(Kind.RWD):
                        m.d.comb += drs.ready.eq(1)
                    with m.Case(Kind.REQ):
                        m.d.comb += ndr.ready.eq(1)
        with m.Else():
            of_endpoint = Mux(drs.valid, Kind.RWD, Mux(ndr.valid, Kind.REQ, Kind.CONTROL))
            first = Mux(pending, Kind.BOARD, Mux(self.hold, Kind.CONTROL, of_endpoint))
            m.d.sync += turn.eq(Mux(draining | ~sender.i.ready, Kind.CONTROL, first))
        m.d.comb += session.answered.eq((drs.valid & drs.ready) + (ndr.valid & ndr.ready))
