# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mailbox's commands, carried out by the sequencer: payload, store and tables on its bus,
events and requests to the data path beside it. A load is answered after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.commands import ReturnCode
from kelp_spec.cxlio.config import CxlIoConfig

from ..firmware.commands import image
from ..firmware.image import IO, IO_BASE, STORE, TABLES, Work
from ..lib.byte_memory import ByteMemory
from ..lib.constant_memory import ConstantMemory
from ..lib.protected import BlockFault, Fault, gather, merged, used
from .mailbox import Mailbox
from .sequencer import Sequencer
from .signatures import (
    Access,
    answer_layout,
    event_layout,
    exchange_layout,
    health_layout,
    request_layout,
)

__all__ = ["CommandEngine", "state_layout"]

_TIME_BITS = 64


def state_layout() -> data.StructLayout:
    """What the registers show of the engine."""
    return data.StructLayout(
        {
            "code": 16,
            "event_status": 4,
            "media": 2,
            "ready": 1,
            "opcode": 16,
            "percent": 7,
            "running": 1,
            "background_code": 16,
        }
    )


class CommandEngine(wiring.Component):
    """Carries out what the host rings for, keeps the device's events, and asks the data path to
    poison, clear and sanitize.

    A command takes as many cycles as its program (docs/cxl.md, "The mailbox"). A request to the
    data path that is not answered within `config.patience` cycles after it was offered is lost: the
    command answers "internal", and a later answer is dropped by its tag; while it is still offered
    the next one answers "retry". Sanitize waits for ever,
    in the background. Events wait while a command is carried out.

    A word of program, tables, store or payload that is beyond repair when the sequencer uses it is
    fatal, and halts it before it acts on the word: until reset every command answers "internal",
    events are taken and dropped, and no request leaves. A word of the payload that is beyond repair
    when the host uses it is told by `host_fault` alone.

    Latency: `LATENCY` cycle from a host's read of the payload to its data. Interval: `INTERVAL`, an
    access of the payload a cycle.

    Parameters
    ----------
    config : CxlIoConfig

    Members
    -------
    access : In Access
        The host's, to the payload.
    ring : in
        The host rings the doorbell.
    busy : out
        The doorbell is on.
    clear : in
        The mailbox's: while the program clears its store, before the first command.
    opcode, length : in
        The command register.
    length_load, out_length : out
        The length that the answer puts there.
    state : out
    interrupt : out
        Pulses, a bit for each vector.
    events : In stream of event_layout
    requests : Out stream of request_layout
    answers : In stream of answer_layout, always taken
    health : in
    progress : in, with `config.wired`
        Percent of a sanitize, as the data path has it; shown while it is above what is shown.
    exchange : In stream of exchange_layout, always taken
    exchange_word : Out stream, always taken
    exchange_send : out
        Of Doe.
    knobs : out
        The vendor features' values.
    host_fault : out, Fault
        Of what the host has read, or written in part, of the payload in the cycle before.
    fault : out, BlockFault
        Of the cycle before.
    """

    LATENCY = Mailbox.LATENCY
    INTERVAL = Mailbox.INTERVAL

    def __init__(self, *, config: CxlIoConfig):
        self.config = config
        super().__init__(
            {
                "access": In(Access(lane_bits=config.payload_bits - 3)),
                "ring": In(1),
                "busy": Out(1),
                "clear": In(1),
                "opcode": In(16),
                "length": In(21),
                "length_load": Out(1),
                "out_length": Out(21),
                "state": Out(state_layout()),
                "interrupt": Out(config.vectors),
                "events": In(stream.Signature(event_layout())),
                "requests": Out(stream.Signature(request_layout())),
                "answers": In(stream.Signature(answer_layout(), always_ready=True)),
                "health": In(health_layout()),
                **({"progress": In(7)} if config.wired else {}),
                "exchange": In(stream.Signature(exchange_layout(), always_ready=True)),
                "exchange_word": Out(stream.Signature(32, always_ready=True)),
                "exchange_send": Out(1),
                "knobs": Out(data.ArrayLayout(32, max(1, config.knobs))),
                "host_fault": Out(Fault),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        im, protect = image(self.config), self.config.protect
        m.submodules.sequencer = core = Sequencer(program=im.program.words(), protect=protect)
        m.submodules.mailbox = box = Mailbox(config=self.config)
        m.submodules.store = store = ByteMemory(depth=im.store_words, words=1, protect=protect)
        m.submodules.tables = tables = ConstantMemory(content=im.tables, protect=protect)
        region, word = Signal(2), core.address[2:13]
        was, io_data = Signal(2), Signal(32)
        m.d.comb += [
            region.eq(core.address[13:]),
            box.address.eq(word),
            box.write_data.eq(core.write_data),
            box.read.eq(core.read & (region == 0)),
            box.write.eq(Mux(region == 0, core.write, 0)),
            store.address.eq(word),
            store.write_data.eq(core.write_data),
            store.write.eq(Mux(region == STORE >> 13, core.write, 0)),
            tables.address.eq(word),
            core.read_data.eq(
                Array([box.read_data, store.read_data, tables.read_data, io_data])[was]
            ),
            box.ring.eq(self.ring),
            box.clear.eq(self.clear),
            self.busy.eq(box.busy),
            self.host_fault.eq(box.host_fault),
        ]
        self._faults(m, core, box, store, tables, region)
        m.d.sync += was.eq(region)
        wiring.connect(m, wiring.flipped(self.access), box.access)
        assert (STORE, TABLES, IO_BASE) == (1 << 13, 2 << 13, 3 << 13)
        shown: dict[int, object] = {}
        writes = self._writes(m, core, region)
        self._command(m, box, shown, writes)
        self._clock(m, shown, writes)
        self._events(shown, writes, m)
        self._requests(m, shown, writes)
        self._rest(m, shown, writes)
        with m.Switch(word):
            for at, value in shown.items():
                with m.Case(at // 4):
                    m.d.sync += io_data.eq(value)
            with m.Default():
                m.d.sync += io_data.eq(0)
        return m

    def _faults(self, m, core, box, store, tables, region):
        """What the sequencer used in the cycle before; and that it stays inside its memories."""
        stored, tabled, on = Signal(), Signal(), core.read | core.write.any()
        m.d.sync += [stored.eq(on & (region == STORE >> 13))]
        m.d.sync += tabled.eq(core.read & (region == TABLES >> 13))
        loaded = merged(box.fault, used(store.fault, stored), used(tables.fault, tabled))
        m.d.comb += core.stop.eq(loaded.uncorrected)
        gather(m, self.fault, loaded, core.fault, poisoned=(box.host_fault,))
        word = core.address[2:13]
        depths = {0: self.config.payload // 4, 1: store.depth, 2: len(tables.content)}
        for which, depth in depths.items():
            m.d.sync += Assert(~(on & (region == which)) | (word < depth), "beyond the memory")

    def _writes(self, m, core, region):
        """I/O word → (pulse, value) of the sequencer's write to it."""
        taken = {}
        on = (region == IO_BASE >> 13) & core.write.any()

        def write(at):
            if at not in taken:
                pulse = Signal(name=f"io_{at:x}")
                m.d.comb += pulse.eq(on & (core.address[2:13] == at // 4))
                taken[at] = pulse
            return taken[at], core.write_data

        return write

    def _command(self, m, box, shown, write):
        shown[IO.OPCODE], shown[IO.LENGTH] = self.opcode, self.length
        done, code = write(IO.DONE)
        length, value = write(IO.OUT_LENGTH)
        # What is halted answers all the same.
        halted = m.submodules.sequencer.halted
        given_up = halted & self.busy
        m.d.comb += [
            box.done.eq(done | given_up),
            self.length_load.eq(length | given_up),
            self.out_length.eq(Mux(halted, 0, value)),
        ]
        m.d.sync += Assert(~done | self.busy, "an answer to no command")
        with m.If(box.done):
            m.d.sync += self.state.code.eq(Mux(halted, ReturnCode.INTERNAL, code))
        status, value = write(IO.EVENT_STATUS)
        with m.If(status):
            m.d.sync += self.state.event_status.eq(value)
        memory_status, value = write(IO.MEMORY)
        with m.If(memory_status):
            m.d.sync += [self.state.media.eq(value), self.state.ready.eq(value[2])]
        background, value = write(IO.BACKGROUND)
        with m.If(background):
            m.d.sync += [
                self.state.opcode.eq(value),
                self.state.percent.eq(value[16:]),
                self.state.running.eq(value[31]),
            ]
        if self.config.wired:
            with m.Elif(self.state.running & (self.progress > self.state.percent)):
                m.d.sync += self.state.percent.eq(self.progress)
        with m.If(halted & self.state.running):
            m.d.sync += [
                self.state.running.eq(0),
                self.state.background_code.eq(ReturnCode.INTERNAL),
            ]
        background_code, value = write(IO.BACKGROUND_CODE)
        with m.If(background_code):
            m.d.sync += self.state.background_code.eq(value)
        interrupt, value = write(IO.INTERRUPT)
        m.d.comb += self.interrupt.eq(Mux(interrupt, value, 0))

    def _clock(self, m, shown, write):
        """Nanoseconds since the host set them."""
        time, high, low, running = Signal(_TIME_BITS), Signal(32), Signal(32), Signal()
        shown[IO.TIME], shown[IO.TIME_HIGH] = time[:32], high
        m.d.sync += time.eq(time + Mux(running, self.config.period_ns, 0))
        core = self._read_of
        with m.If(core(m, IO.TIME)):
            m.d.sync += high.eq(time[32:])
        stage, value = write(IO.SET_TIME)
        with m.If(stage):
            m.d.sync += low.eq(value)
        start, value = write(IO.SET_TIME_HIGH)
        with m.If(start):
            m.d.sync += [time.eq(Cat(low, value)), running.eq(1)]

    def _read_of(self, m, at):
        core = m.submodules.sequencer
        return core.read & (core.address == IO_BASE + at)

    def _events(self, shown, write, m):
        vector = self.events.p.as_value()
        for i in range(5):
            shown[IO.EVENT + 4 * i] = vector[32 * i : 32 * (i + 1)]
        take, _ = write(IO.EVENT_TAKE)
        m.d.comb += self.events.ready.eq(take | m.submodules.sequencer.halted)

    def _requests(self, m, shown, write):
        request, answered, code = self.requests.p, Signal(), Signal(2)
        value_told = Signal(32)
        open_, late = Signal(), Signal()
        waited = Signal(range(self.config.patience + 1))
        m.d.comb += late.eq(waited == self.config.patience)
        line, value = write(IO.LINE)
        line_high, value = write(IO.LINE_HIGH)
        word, value = write(IO.DATA)
        go, value = write(IO.REQUEST)
        take, value = write(IO.ANSWER_TAKE)
        with m.If(line):
            m.d.sync += request.line[:26].eq(value[6:])
        with m.If(line_high):
            m.d.sync += request.line[26:].eq(value)
        with m.If(word):
            m.d.sync += request.data.eq(Cat(request.data[32:], value))
        with m.If(self.requests.valid & self.requests.ready):
            m.d.sync += self.requests.valid.eq(0)
        with m.If(open_ & ~late & ~answered):
            m.d.sync += waited.eq(waited + 1)
        with m.If(self.answers.valid & open_ & (self.answers.p.tag == request.tag)):
            m.d.sync += [answered.eq(1), code.eq(self.answers.p.code)]
            if self.config.wired:
                m.d.sync += value_told.eq(self.answers.p.value)
        m.d.sync += [
            Assert(~(go & open_), "a request before the answer to the last"),
            Assert(~(go & self.requests.valid), "a request in place of one that is offered"),
        ]
        with m.If(go):
            m.d.sync += [self.requests.valid.eq(1), request.kind.eq(value)]
            m.d.sync += [open_.eq(1), waited.eq(0), request.tag.eq(request.tag + 1)]
        with m.If(take):
            m.d.sync += [open_.eq(0), answered.eq(0)]
        shown[IO.ANSWER] = code
        if self.config.wired:
            shown[IO.VALUE] = value_told
        self._late, self._answered = late & open_, answered

    def _rest(self, m, shown, write):
        health = self.health
        shown[IO.HEALTH] = Cat(health.status, health.media, health.additional, health.life)
        shown[IO.TEMPERATURE], shown[IO.CORRECTED] = health.temperature, health.corrected
        exchange = self.exchange.p
        for i, part in enumerate((exchange.header, exchange.length, exchange.word, exchange.count)):
            shown[IO.EXCHANGE + 4 * i] = part
        word, value = write(IO.EXCHANGE_WORD)
        send, _ = write(IO.EXCHANGE_SEND)
        m.d.comb += [
            self.exchange_word.valid.eq(word),
            self.exchange_word.p.eq(value),
            self.exchange_send.eq(send | m.submodules.sequencer.halted & self.exchange.valid),
        ]
        for i in range(0 if self.config.wired else self.config.knobs):
            knob, value = write(IO.KNOB + 4 * i)
            with m.If(knob):
                m.d.sync += self.knobs[i].eq(value)
        waits = {
            Work.DOORBELL: self.busy,
            Work.EVENT: self.events.valid,
            Work.EXCHANGE: self.exchange.valid,
            Work.ANSWER: self._answered,
            Work.LATE: self._late,
            Work.OFFERED: self.requests.valid,
        }
        shown[IO.WORK] = Cat(waits[bit] for bit in Work)
