# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mailbox's commands, carried out by the sequencer: payload, store and tables on its bus,
events and requests to the data path beside it. A load is answered after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import CxlIoConfig

from .firmware import image
from .image import IO, IO_BASE, STORE, TABLES, Work
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
    data path that is not answered within `config.patience` cycles is lost: the command answers
    "internal", and a later answer is dropped by its tag. Sanitize waits for ever, in the
    background. Events wait while a command is carried out.

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
    exchange : In stream of exchange_layout, always taken
    exchange_word : Out stream, always taken
    exchange_send : out
        Of Doe.
    knobs : out
        The vendor features' values.
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
                "exchange": In(stream.Signature(exchange_layout(), always_ready=True)),
                "exchange_word": Out(stream.Signature(32, always_ready=True)),
                "exchange_send": Out(1),
                "knobs": Out(data.ArrayLayout(32, max(1, config.knobs))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        im = image(self.config)
        m.submodules.sequencer = core = Sequencer(program=im.program.words())
        m.submodules.mailbox = box = Mailbox(config=self.config)
        m.submodules.store = store = memory.Memory(shape=32, depth=im.store_words, init=())
        m.submodules.tables = tables = memory.Memory(shape=32, depth=len(im.tables), init=im.tables)
        store_write = store.write_port(granularity=8)
        store_read, table_read = store.read_port(), tables.read_port()
        region, word = Signal(2), core.address[2:13]
        was, io_data = Signal(2), Signal(32)
        m.d.comb += [
            region.eq(core.address[13:]),
            box.address.eq(word),
            box.write_data.eq(core.write_data),
            box.write.eq(Mux(region == 0, core.write, 0)),
            store_write.addr.eq(word),
            store_write.data.eq(core.write_data),
            store_write.en.eq(Mux(region == STORE >> 13, core.write, 0)),
            store_read.addr.eq(word),
            store_read.en.eq(core.read),
            table_read.addr.eq(word),
            table_read.en.eq(core.read),
            core.read_data.eq(
                Array([box.read_data, store_read.data, table_read.data, io_data])[was]
            ),
            box.ring.eq(self.ring),
            self.busy.eq(box.busy),
        ]
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
        m.d.comb += [
            box.done.eq(done),
            self.length_load.eq(length),
            self.out_length.eq(value),
        ]
        with m.If(done):
            m.d.sync += self.state.code.eq(code)
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
        m.d.comb += self.events.ready.eq(take)

    def _requests(self, m, shown, write):
        request, answered, code = self.requests.p, Signal(), Signal(2)
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
        with m.If(go):
            m.d.sync += [self.requests.valid.eq(1), request.kind.eq(value)]
            m.d.sync += [open_.eq(1), waited.eq(0)]
        with m.If(take):
            m.d.sync += [open_.eq(0), answered.eq(0), request.tag.eq(request.tag + 1)]
        shown[IO.ANSWER] = code
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
            self.exchange_send.eq(send),
        ]
        for i in range(self.config.knobs):
            knob, value = write(IO.KNOB + 4 * i)
            with m.If(knob):
                m.d.sync += self.knobs[i].eq(value)
        waits = {
            Work.DOORBELL: self.busy,
            Work.EVENT: self.events.valid,
            Work.EXCHANGE: self.exchange.valid,
            Work.ANSWER: self._answered,
            Work.LATE: self._late,
        }
        shown[IO.WORK] = Cat(waits[bit] for bit in Work)
