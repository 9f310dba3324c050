# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mailbox's sanitize: every session is closed, memory and tier are erased, and the host is
answered here meanwhile. Otherwise messages pass in the cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.address import AddressMap, Region
from kelp_spec.coherence import MetaField, SnpType
from kelp_spec.config import Config
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq, M2SRwD
from kelp_spec.registers import RegisterMap, SessionCommand

from ..cxlio.signatures import answer_layout, request_layout
from ..layouts import passing
from ..lib.power_of_two import power_of_two

__all__ = ["Sanitizer"]

_SANITIZE = 3
_DONE, _AGAIN, _FAILED = 0, 2, 3


class Sanitizer(wiring.Component):
    """Between `MediaPort` and the endpoint. A sanitize waits until the endpoint is at rest, with
    both M2S channels held; where it does not come to rest within half the mailbox's patience, the
    answer is to try again (code 2), and nothing has happened. Then, as LD-ID 0, each session's
    state is read, and one that is open is closed; when all are closed and the endpoint is at rest
    once more, `MediaEraser` erases what lies outside of it. Code 0, or 3 where that failed: the
    sessions are closed all the same.

    From the end of the first rest until the answer the media is disabled: a MemRd or MemRdData of
    the host is answered NXM, every other request Cmp without effect, but for MemSpecRd, which has
    no answer. None of these is an event.

    With coherence a session closes only when the host has given back what it holds of it. So the
    host is let go on for `BREAK` cycles behind each close, and whenever the endpoint does not come
    to rest within `TRY[0]` cycles, then within `TRY[1]`, and so on: it may wait for what the host
    holds, or for a long fetch. From the first rest on a RwD to a register is answered Cmp without
    effect, so that nobody opens a session again; and from the last of `TRY` on RwD alone go on,
    which bring back what is dirty and call nothing back, until the endpoint rests. The media is
    disabled when all sessions were seen closed in one rest; a MemRd with a snoop type is then
    answered Cmp as well, a BIConflict by its BIConflictAck.

    Latency: `LATENCY`; interval: `INTERVAL`: messages pass combinationally. Disabled, an answer
    comes after a cycle, one in two cycles on each channel. Errors: code 3.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_req, i_rwd : In streams
        Of the host, behind `MediaPort`.
    o_req, o_rwd : Out streams
        To the endpoint.
    i_drs, i_ndr, o_drs, o_ndr : streams
        Answers, of the endpoint and to the host.
    requests : In stream of request_layout, o_requests : Out
        Those of another kind pass.
    answers : Out stream of answer_layout, i_answers : In, always taken
        One that comes amid a sanitize is too late for the mailbox, and is dropped.
    rest : in
        The endpoint is quiescent, owes no answer, and the tier has no command of its.
    erase : out, erased, erase_failed : in
        `go`, `done` and `failed` of `MediaEraser`.
    """

    LATENCY = 0
    INTERVAL = 1
    TRY, BREAK = tuple(256 << i for i in range(8)), 512

    def __init__(self, *, config: Config):
        self.config = config
        registers, base = RegisterMap(config).by_name, AddressMap(config).register_base
        each = range(config.sessions)
        #: Lines of the sessions' command and state, and the bytes where these begin.
        self._lines = [(base + registers[f"s{s}_command"].offset) // 64 for s in each]
        self._command = registers["s0_command"].offset % 64
        self._state = registers["s0_state"].offset % 64
        assert self._lines == [(base + registers[f"s{s}_state"].offset) // 64 for s in each]
        answers = stream.Signature(answer_layout(), always_ready=True)
        super().__init__(
            {
                **passing("M2SReq", "M2SRwD"),
                **passing("S2MDRS", "S2MNDR"),
                "requests": In(stream.Signature(request_layout())),
                "o_requests": Out(stream.Signature(request_layout())),
                "answers": Out(answers),
                "i_answers": In(answers),
                "rest": In(1),
                "erase": Out(1),
                "erased": In(1),
                "erase_failed": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        mine, tag, code = Signal(), Signal(4), Signal(2)
        busy, held, own = Signal(), Signal(2), Signal()
        disabled, ending = Signal(), Signal()
        reading, writing, idle, answer = Signal(), Signal(), Signal(), Signal()
        session = Signal(range(self.config.sessions))
        coherent, begun = self.config.coherence, Signal()
        self._channels(m, busy, held, own, (reading, writing), session)
        if coherent:
            self._freeze(m, begun & ~own)
        empty = self._disabled(m, disabled, ending)
        m.d.comb += mine.eq(self.requests.p.kind == _SANITIZE)
        self._mailbox(m, mine, idle, answer, (tag, code))
        limit = named_cxlio(self.config.cxlio).patience // 2
        waited, still, life = Signal(range(limit + 1)), Signal(3), Signal(2)
        places = power_of_two("len(TRY)", len(self.TRY))
        pause, tries = Signal(range(max(*self.TRY, self.BREAK))), Signal(range(places))
        tried = pause == Array(Const(cycles - 1) for cycles in self.TRY)[tries]
        # An op between two blocks shows in neither's rest for a cycle or two.
        m.d.sync += still.eq(Mux(held.all() & self.rest, still + 1, 0))
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += idle.eq(1)
                m.d.sync += [waited.eq(0), session.eq(0), tag.eq(self.requests.p.tag)]
                m.d.sync += [pause.eq(0), tries.eq(0)]
                with m.If(self.requests.valid & mine):
                    m.d.sync += busy.eq(1)
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.sync += [waited.eq(waited + 1), pause.eq(pause + 1)]
                with m.If(still == 7):
                    m.d.sync += [own.eq(1), disabled.eq(not coherent), begun.eq(1), tries.eq(0)]
                    m.next = "READ"
                with m.Elif(~begun & (waited >= limit)):
                    m.d.sync += code.eq(_AGAIN)
                    m.next = "ANSWER"
                if coherent:
                    with m.Elif(tried):
                        m.d.sync += [pause.eq(0), tries.eq(tries + ~tries.all())]
                        m.next = "BREAK"
            if coherent:
                with m.State("BREAK"):
                    m.d.sync += [pause.eq(pause + 1), waited.eq(waited + ~begun)]
                    m.d.sync += [
                        held.eq(held[0] & begun & tries.all()),
                        busy.eq(0),
                        own.eq(0),
                        session.eq(0),
                    ]
                    with m.If(pause == self.BREAK - 1):
                        m.d.sync += [busy.eq(1), pause.eq(0)]
                        m.next = "DRAIN"
            with m.State("READ"):
                m.d.comb += reading.eq(1)
                with m.If(self.o_req.ready):
                    m.next = "LOOK"
            with m.State("LOOK"):
                m.d.sync += life.eq(self.i_drs.p.data[8 * self._state :])  # open, busy
                with m.If(self.i_drs.valid):
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += pause.eq(0)
                m.next = "BREAK" if coherent else "READ"
                with m.If(life == 0b01):
                    m.next = "CLOSE"
                with m.Elif(life == 0):
                    m.d.sync += session.eq(session + 1)
                    m.next = "READ"
                    with m.If(session == self.config.sessions - 1):
                        m.d.sync += disabled.eq(1)
                        m.next = "SETTLE"
            with m.State("CLOSE"):
                m.d.comb += writing.eq(1)
                with m.If(self.o_rwd.ready):
                    m.next = "CONFIRM"
            with m.State("CONFIRM"):
                with m.If(self.i_ndr.valid):
                    m.next = "BREAK" if coherent else "READ"
            with m.State("SETTLE"):
                with m.If(still == 7):
                    m.next = "ERASE"
            with m.State("ERASE"):
                m.d.comb += self.erase.eq(1)
                m.d.sync += code.eq(Mux(self.erase_failed, _FAILED, _DONE))
                with m.If(self.erased):
                    m.next = "ENABLE"
            with m.State("ENABLE"):
                m.d.comb += ending.eq(1)
                with m.If(empty):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += answer.eq(1)
                m.d.sync += [held.eq(0), busy.eq(0), own.eq(0), disabled.eq(0), begun.eq(0)]
                m.next = "IDLE"
        m.d.sync += Assert(~own | held.all(), "the host's messages beside our own")
        return m

    def _mailbox(self, m, mine, idle, answer, told):
        """Requests of another kind, and their answers, pass. The mailbox has one request under way:
        amid a sanitize an answer of `MediaPort` is to one that was given up, and 16 requests later
        its tag is the sanitize's."""
        amid = ~idle | (self.requests.valid & mine)
        m.d.comb += [
            self.o_requests.valid.eq(self.requests.valid & ~mine),
            self.o_requests.p.eq(self.requests.p),
            self.requests.ready.eq(Mux(mine, idle, self.o_requests.ready)),
            self.answers.valid.eq((self.i_answers.valid & ~amid) | answer),
            self.answers.p.eq(self.i_answers.p),
        ]
        with m.If(answer):
            m.d.comb += [self.answers.p.tag.eq(told[0]), self.answers.p.code.eq(told[1])]

    def _channels(self, m, busy, held, own, offers, session):
        """The host's messages pass, but while they are held; our own, while `own` is on."""
        line = Array(Const(at, max(self._lines).bit_length()) for at in self._lines)[session]
        for k, (i, o, mine) in enumerate(
            ((self.i_req, self.o_req, offers[0]), (self.i_rwd, self.o_rwd, offers[1]))
        ):
            m.d.comb += [
                o.valid.eq(Mux(own, mine, i.valid & ~held[k])),
                o.p.eq(i.p),
                i.ready.eq(o.ready & ~held[k]),
            ]
            # An offer that stands goes first.
            with m.If(busy & ~(i.valid & ~o.ready)):
                m.d.sync += held[k].eq(1)
        with m.If(own):
            m.d.comb += [
                *_only(self.o_req.p, opcode=M2SReq.MEM_RD, address=line),
                *_only(
                    self.o_rwd.p,
                    opcode=M2SRwD.MEM_WR_PTL,
                    address=line,
                    bep=1,
                    byte_enable=0xFF << self._command,
                    data=SessionCommand.CLOSE << 8 * self._command,
                ),
            ]
            if self.config.coherence:
                m.d.comb += [
                    self.o_req.p.meta_field.eq(MetaField.NO_OP),
                    self.o_rwd.p.meta_field.eq(MetaField.NO_OP),
                ]
        for i, o in ((self.i_drs, self.o_drs), (self.i_ndr, self.o_ndr)):
            m.d.comb += [
                o.valid.eq(i.valid & ~own),
                o.p.eq(i.p),
                i.ready.eq(o.ready | own),
            ]

    def _freeze(self, m, frozen):
        """What the host would write to registers writes no byte."""
        rwd = self.i_rwd.p
        register = rwd.address[self.config.aperture_bits - 6 :] == Region.REGISTER
        writes = (rwd.opcode == M2SRwD.MEM_WR) | (rwd.opcode == M2SRwD.MEM_WR_PTL)
        with m.If(frozen & register & writes):
            m.d.comb += [
                self.o_rwd.p.opcode.eq(M2SRwD.MEM_WR_PTL),
                self.o_rwd.p.bep.eq(1),
                self.o_rwd.p.byte_enable.eq(0),
                self.o_rwd.p.poison.eq(0),
            ]

    def _disabled(self, m, disabled, ending):
        """The host's requests are answered, but when it is `ending`; whether all answers are
        taken."""
        req, rwd = self.i_req, self.i_rwd
        snoops = req.p.snp_type != SnpType.NO_OP if self.config.coherence else 0
        data, done = Signal(), Signal()  # an answer stands, of DRS and of NDR
        reads, silent, completes = Signal(), Signal(), Signal()
        take_req, take_rwd = Signal(), Signal()
        m.d.comb += [
            reads.eq((req.p.opcode == M2SReq.MEM_RD) | (req.p.opcode == M2SReq.MEM_RD_DATA)),
            silent.eq(req.p.opcode == M2SReq.MEM_SPEC_RD),
            completes.eq(~silent & (~reads | snoops)),
        ]
        with m.If(disabled):
            m.d.comb += [req.ready.eq(take_req), rwd.ready.eq(take_rwd)]
        # Both channels' completions share NDR, and take turns.
        turn, offers, wants = Signal(), Signal(), Signal()
        m.d.comb += [
            offers.eq(req.valid & ~(reads & data)),
            wants.eq(offers & completes),
        ]
        with m.If(disabled & ~ending):
            m.d.comb += [
                take_rwd.eq(rwd.valid & ~done & ~(turn & wants)),
                take_req.eq(offers & ~(completes & (done | take_rwd))),
            ]
        with m.If(take_rwd | (take_req & completes)):
            m.d.sync += turn.eq(take_rwd)
        named = [Signal(20, name=f"named_{name}") for name in ("drs", "ndr")]  # tag, LD-ID
        completion = Signal(S2MNDR) if self.config.coherence else S2MNDR.CMP
        if self.config.coherence:
            conflict = take_rwd & (rwd.p.opcode == M2SRwD.BI_CONFLICT)
            with m.If(take_rwd | (take_req & completes)):
                m.d.sync += completion.eq(Mux(conflict, S2MNDR.BI_CONFLICT_ACK, S2MNDR.CMP))
        for stands, o, opcode, told in (
            (data, self.o_drs, S2MDRS.MEM_DATA_NXM, named[0]),
            (done, self.o_ndr, completion, named[1]),
        ):
            with m.If(stands):
                m.d.comb += [
                    o.valid.eq(1),
                    *_only(o.p, opcode=opcode, tag=told[:16], ld_id=told[16:]),
                ]
                with m.If(o.ready):
                    m.d.sync += stands.eq(0)
        with m.If(take_req & reads):
            m.d.sync += [data.eq(1), named[0].eq(_names(req))]
        with m.If(take_rwd):
            m.d.sync += [done.eq(1), named[1].eq(_names(rwd))]
        with m.Elif(take_req & completes):
            m.d.sync += [done.eq(1), named[1].eq(_names(req))]
        return ~data & ~done


def _names(port):
    return Cat(port.p.tag, port.p.ld_id)


def _only(message, **fields):
    """A message of these fields; the others are 0."""
    return [message.eq(0), *(message[name].eq(value) for name, value in fields.items())]
