# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mailbox's requests to the data path: a line is poisoned, or written and its poison cleared,
by requests to the endpoint when no other is under way. Messages of the host pass in the cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.address import AddressMap
from kelp_spec.coherence import MetaField, sizes_of
from kelp_spec.config import Config
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.knobs import KNOBS
from kelp_spec.messages import S2MDRS, M2SReq, M2SRwD
from kelp_spec.metadata import Op, Outcome
from kelp_spec.registers import RegisterMap

from ..cxlio.signatures import answer_layout, request_layout
from ..layouts import Layouts, passing, recall_ports
from ..lib.power_of_two import power_of_two
from .sanitizer import Sanitizer

__all__ = ["MediaPort"]

_INJECT, _CLEAR, _READ, _SET = 1, 2, 4, 5
_LOW_HALVES = sum(0xFFFF_FFFF << 64 * i for i in range(8))  #: of the registers in a line
_DONE, _NO_LINE, _AGAIN, _FAILED = 0, 1, 2, 3


class MediaPort(wiring.Component):
    """Between the host's channels and the endpoint. A request of the mailbox waits until the
    endpoint owes no answer, with both M2S channels held meanwhile; then the line is read, as LD-ID
    0. A line that is none, of a session that is closed or another's, or of an absent page, is
    refused (code 1) and nothing changes. Otherwise it is written, with poison or with the data; a
    line that is not poisoned is left alone by a clear. A vendor feature (`kelp_spec.cxlio.knobs`)
    is a register of the endpoint's, read and written in the same way. A sanitize is refused (code
    3): the endpoint has no such request. Where the endpoint does not come to rest, or has not read
    the line, within half the mailbox's patience, the answer is to try again (code 2), and nothing
    is written.

    With coherence the line's sector is called back first, while the host's messages pass, so that
    what is dirty comes home. When nothing of it is held, both channels are held until the endpoint
    owes no answer; what the host was granted meanwhile is called back anew, with the channels open.
    Where the host keeps it too long the answer is to try again. What the endpoint waits for may be
    the host's to give: where it does not come to rest within `TRY[0]` cycles, the channels are open
    for `BREAK`; then within `TRY[1]`, and so on.

    Latency: `LATENCY`; interval: `INTERVAL`: messages pass combinationally. A request takes as long
    as the endpoint needs for what is under way, a read and a write.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_req, i_rwd : In streams
        Of the host, addresses decoded.
    o_req, o_rwd : Out streams
        To the endpoint.
    i_drs, i_ndr, o_drs, o_ndr : streams
        Answers, of the endpoint and to the host.
    requests : In stream of request_layout
    answers : Out stream of answer_layout, always taken
    result : In stream of Layouts.result, always taken
        The endpoint's commit records: which page is absent.
    answered : in
        The endpoint is quiescent and owes no answer: else the answer to our own request could be
        another's.
    injecting : out
        The endpoint is being given poison that the mailbox asked for.
    recall : out, stream of sectors; still_held : in, always-ready stream
        With coherence: a sector that nobody is to hold; whether somebody does (`AskShare`).
    """

    LATENCY = 0
    INTERVAL = 1
    TRY, BREAK = Sanitizer.TRY, Sanitizer.BREAK

    def __init__(self, *, config: Config):
        self.config = config
        registers, base = RegisterMap(config).by_name, AddressMap(config).register_base
        self._knobs = [base + registers[knob.register].offset for knob in KNOBS]
        super().__init__(
            {
                **passing("M2SReq", "M2SRwD"),
                **passing("S2MDRS", "S2MNDR"),
                "requests": In(stream.Signature(request_layout())),
                "answers": Out(stream.Signature(answer_layout(), always_ready=True)),
                "result": In(stream.Signature(Layouts(config).result, always_ready=True)),
                "answered": In(1),
                "injecting": Out(1),
                **(recall_ports(config) if config.coherence else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        request, lines = Signal(request_layout()), self.config.aperture_bits - 6
        busy = Signal()
        own, held = Signal(), Signal(2)
        reading, writing = Signal(), Signal()
        absent, poisoned, code = Signal(), Signal(), Signal(2)
        waited, late = self._patience(m)
        inject = request.kind == _INJECT
        knob = (request.kind == _READ) | (request.kind == _SET)
        self._channels(m, request, own, held, busy, (reading, writing))
        value, drained = Signal(32), Signal()
        m.d.comb += [
            self.answers.p.tag.eq(request.tag),
            self.answers.p.code.eq(code),
            self.answers.p.value.eq(value),
        ]
        demand = self.result.valid & (self.result.p.op.kind == Op.READ)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.requests.ready.eq(1)
                m.d.sync += [
                    request.eq(self.requests.p),
                    waited.eq(0),
                    absent.eq(0),
                    code.eq(_DONE),
                    drained.eq(0),
                ]
                with m.If(self.requests.valid):
                    m.next = "SORT"
            with m.State("SORT"):
                m.next = "ANSWER"
                with m.If(knob & (request.line < len(self._knobs))):
                    m.d.sync += busy.eq(1)
                    m.next = "DRAIN"
                with m.Elif((request.kind != _INJECT) & (request.kind != _CLEAR)):
                    m.d.sync += code.eq(_FAILED)
                with m.Elif((request.line >> lines).any()):
                    m.d.sync += code.eq(_NO_LINE)
                with m.Else():
                    m.next = "RECALL" if self.config.coherence else "DRAIN"
                    m.d.sync += busy.eq(not self.config.coherence)
            self._drain(m, request, (busy, held, drained), late, code)
            with m.State("READ"):
                m.d.comb += [own.eq(1), reading.eq(1)]
                with m.If(self.o_req.ready):
                    m.next = "LOOK"
            with m.State("LOOK"):
                m.d.comb += own.eq(1)
                with m.If(demand & (self.result.p.outcome == Outcome.ZERO)):
                    m.d.sync += absent.eq(1)
                with m.If(self.i_drs.valid):
                    m.d.sync += [
                        poisoned.eq(self.i_drs.p.poison),
                        value.eq(self._lane(self.i_drs.p.data, request.line)),
                    ]
                    m.next = "JUDGE"
                    with m.If(self.i_drs.p.opcode == S2MDRS.MEM_DATA_NXM):
                        m.d.sync += code.eq(_NO_LINE)
                        m.next = "ANSWER"
            with m.State("JUDGE"):
                m.d.comb += own.eq(1)
                m.next = "ANSWER"
                with m.If(knob):
                    pass
                with m.Elif(absent):
                    m.d.sync += code.eq(_NO_LINE)
                with m.Elif(late):
                    m.d.sync += code.eq(_AGAIN)
                with m.Elif(inject | poisoned):
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += [own.eq(1), writing.eq(1), self.injecting.eq(inject)]
                with m.If(self.o_rwd.ready):
                    m.next = "CONFIRM"
            with m.State("CONFIRM"):
                m.d.comb += [own.eq(1), self.injecting.eq(inject)]
                with m.If(self.i_ndr.valid):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.answers.valid.eq(1)
                m.d.sync += [held.eq(0), busy.eq(0)]
                m.next = "IDLE"
            if self.config.coherence:
                self._recall(m, request.line, (busy, held, drained), late, code)
        m.d.sync += [
            Assert(~own | held.all(), "the host's messages beside our own"),
            Assert(~(own & self.i_drs.valid & self.i_ndr.valid), "two answers to one request"),
        ]
        return m

    def _drain(self, m, request, pause, late, code):
        """The state in which the endpoint comes to rest."""
        busy, held, drained = pause
        still, coherent = Signal(3), self.config.coherence
        if coherent:
            places = power_of_two("len(TRY)", len(self.TRY))
            waited, tries = Signal(range(max(*self.TRY, self.BREAK))), Signal(range(places))
            tried = waited == Array(Const(cycles - 1) for cycles in self.TRY)[tries]
            begins = [waited.eq(0), tries.eq(0)]
        # An op between two blocks shows in neither's rest for a cycle or two. Nothing is held in
        # the first cycle, so that a rest begins anew.
        with m.State("DRAIN"):
            m.d.sync += still.eq(Mux(held.all() & self.answered, still + 1, 0))
            with m.If(still == 7):
                m.next = "RECALL" if coherent else "READ"
                m.d.sync += [drained.eq(1), *(begins if coherent else [])]
                with m.If(request.kind == _READ):
                    m.next = "READ"
                with m.If(request.kind == _SET):
                    m.next = "WRITE"
            with m.Elif(late):
                m.d.sync += [code.eq(_AGAIN), *(begins if coherent else [])]
                m.next = "ANSWER"
            if coherent:
                with m.Elif(tried):
                    m.d.sync += [busy.eq(0), held.eq(0), waited.eq(0)]
                    m.d.sync += tries.eq(tries + ~tries.all())
                    m.next = "BREAK"
                with m.Else():
                    m.d.sync += waited.eq(waited + 1)
        if coherent:
            with m.State("BREAK"):
                m.d.sync += waited.eq(waited + 1)
                with m.If(waited == self.BREAK - 1):
                    m.d.sync += [busy.eq(1), waited.eq(0)]
                    m.next = "DRAIN"

    def _recall(self, m, line, pause, late, code):
        """States in which the line's sector is asked for until nothing of it is held: before the
        host's channels are held, and once more when the endpoint owes no answer."""
        busy, held, drained = pause
        with m.State("RECALL"):
            m.d.comb += self.recall.valid.eq(1)
            with m.If(self.recall.ready):
                m.next = "HEAR"
        with m.State("HEAR"):
            with m.If(self.still_held.valid):
                with m.If(self.still_held.p & late):
                    m.d.sync += code.eq(_AGAIN)
                    m.next = "ANSWER"
                with m.Elif(self.still_held.p):
                    m.d.sync += [busy.eq(0), held.eq(0), drained.eq(0)]
                    m.next = "RECALL"
                with m.Elif(drained):
                    m.next = "READ"
                with m.Else():
                    m.d.sync += busy.eq(1)
                    m.next = "DRAIN"
        m.d.comb += self.recall.p.eq(line[sizes_of(self.config).sector_bits :])

    def _patience(self, m):
        """A count of cycles, and that there have been too many."""
        limit = named_cxlio(self.config.cxlio).patience // 2
        waited, late = Signal(range(limit + 1)), Signal()
        m.d.comb += late.eq(waited == limit)
        with m.If(~late):
            m.d.sync += waited.eq(waited + 1)
        return waited, late

    def _of_knobs(self, number, what):
        """`what` of the byte address of the register that feature `number` is."""
        values = [what(at) for at in self._knobs]
        return Array(Const(v, max(values).bit_length()) for v in values)[number[:4]]

    def _lane(self, line, number):
        """The value in a register's line."""
        parts = [line[8 * (at % 64) :][:32] for at in self._knobs]
        return Array(parts)[number[:4]]

    def _channels(self, m, request, own, held, busy, offers):
        """The host's messages pass, but while they are held; our own, while `own` is on."""
        inject, (reading, writing) = request.kind == _INJECT, offers
        setting = request.kind == _SET
        line = Mux(request.kind[2], self._of_knobs(request.line, lambda at: at // 64), request.line)
        for k, (i, o, mine) in enumerate(
            ((self.i_req, self.o_req, reading), (self.i_rwd, self.o_rwd, writing))
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
                self.o_req.p.eq(0),
                self.o_req.p.opcode.eq(M2SReq.MEM_RD),
                self.o_req.p.address.eq(line),
                self.o_rwd.p.eq(0),
                self.o_rwd.p.opcode.eq(Mux(setting, M2SRwD.MEM_WR_PTL, M2SRwD.MEM_WR)),
                self.o_rwd.p.address.eq(line),
                self.o_rwd.p.poison.eq(inject),
                self.o_rwd.p.bep.eq(setting),
                self.o_rwd.p.byte_enable.eq(
                    Mux(setting, self._of_knobs(request.line, lambda at: 0xFF << at % 64), ~0)
                ),
                self.o_rwd.p.data.eq(
                    Mux(
                        setting,
                        request.data[480:].replicate(16) & _LOW_HALVES,
                        Mux(inject, 0, request.data),
                    )
                ),
            ]
            if self.config.coherence:
                # Nothing is held by these, and nothing changes of what the host holds.
                no_op = MetaField.NO_OP
                m.d.comb += [
                    self.o_req.p.meta_field.eq(no_op),
                    self.o_rwd.p.meta_field.eq(no_op),
                ]
        for i, o in ((self.i_drs, self.o_drs), (self.i_ndr, self.o_ndr)):
            m.d.comb += [
                o.valid.eq(i.valid & ~own),
                o.p.eq(i.p),
                i.ready.eq(o.ready | own),
            ]
