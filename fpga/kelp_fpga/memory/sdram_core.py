# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""64-byte lines to the commands and data of an SDR SDRAM of 16 bits: a line in 32 cycles; the first
column of a read about 9 cycles after its request."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .sdram_timing import BANK_BITS, BURST, COLUMN_BITS, COMMON, ROW_BITS, SdramTiming

__all__ = ["LINE_BEATS", "SdramCore", "SdramPins", "column_layout", "line_layout"]

LINE_BEATS = 32  #: columns of a line
#: cycles that a command and its data take through the pads' registers, out and in
_PADS = 2
_LINES_PER_ROW_BITS = COLUMN_BITS - 5


class _Code(IntEnum):
    """ras_n, cas_n, we_n, highest first."""

    NOP = 0b111
    ACTIVE = 0b011
    READ = 0b101
    WRITE = 0b100
    PRECHARGE = 0b010
    REFRESH = 0b001
    MODE = 0b000


class SdramPins(wiring.Signature):
    """The chip's pins, seen from the controller, a register before the pads' own each way
    (:class:`.sdram_pads.SdramPads`); `dq_oe` drives all of `dq_o`. The clock is not among them: the
    board inverts its own."""

    def __init__(self):
        super().__init__(
            {
                "cke": Out(1, init=1),
                "cs_n": Out(1, init=1),
                "ras_n": Out(1, init=1),
                "cas_n": Out(1, init=1),
                "we_n": Out(1, init=1),
                "ba": Out(BANK_BITS),
                "a": Out(ROW_BITS),
                "dqm": Out(2, init=3),
                "dq_o": Out(16),
                "dq_oe": Out(1),
                "dq_i": In(16),
            }
        )


def column_layout(id_bits: int) -> data.StructLayout:
    """A column of a line that is read; with the line's `last`, its `id`."""
    return data.StructLayout({"data": 16, "last": 1, "id": id_bits})


def line_layout(id_bits: int) -> data.StructLayout:
    """A request: `line` counts 64 bytes. Consecutive lines lie in consecutive banks."""
    return data.StructLayout(
        {
            "write": 1,
            "id": id_bits,
            "line": data.StructLayout(
                {"bank": BANK_BITS, "group": _LINES_PER_ROW_BITS, "row": ROW_BITS}
            ),
        }
    )


class _Command:
    """The command of this cycle; it is at the pins in the next."""

    def __init__(self):
        self.code = Signal(3, init=_Code.NOP)
        self.bank = Signal(BANK_BITS)
        self.address = Signal(ROW_BITS)


class _Lines:
    """The line that moves, `now`, and the line after it, `then`, whose row is opened meanwhile."""

    def __init__(self, id_bits: int):
        self.now = Signal(line_layout(id_bits))
        self.then = Signal(line_layout(id_bits))
        self.moving = Signal()
        self.beat = Signal(5)  #: column of `now`
        self.last = self.moving & (self.beat == LINE_BEATS - 1)
        self.waiting = Signal()  #: `then` is a line
        self.opened = Signal()  #: its row
        self.begin = Signal()  #: `then` becomes `now`


class _Banks:
    """What keeps a bank, or all of them, from the next command: timers in cycles."""

    def __init__(self, t):
        self.is_open = Signal(4)
        self.rcd = Signal(range(t.rcd + 1))
        self.rrd = Signal(range(t.rrd + 1))
        self.turn = Signal(range(t.cl + 4))  #: until the chip has let go of the data pins
        self.closing = Array(
            Signal(range(BURST + t.wr + t.rp + 1), name=f"closing_{b}") for b in range(4)
        )


class _Refresh:
    """Refreshes that are due; `wait` is what power-up or the last of them leaves to wait for."""

    def __init__(self, t):
        self.wait = Signal(range(max(t.power_up, t.rfc) + 1), init=t.power_up)
        self.due = Signal(4)
        self.done = Signal()  #: one, in this cycle


class SdramCore(wiring.Component):
    """Lines in order: four bursts of 8 columns, the last with auto-precharge. While one line moves,
    the next one's row is opened, so lines of different banks follow one another without a gap: 32
    cycles a line. Refresh waits for the two lines under way.

    Pins are registered, here and at the pads. The chip takes commands on the falling edge of our
    clock (the board sends it the clock inverted). Its data is taken at the pads with the rising
    edge one and a half cycles after the edge that it belongs to by CAS latency's count: access time
    (6 ns) and both ways through pads and board (about 6 ns) fit into one period, and data then
    still stands for hold time plus the same 6 ns (docs/fpga.md has the budget).

    Latency: `LATENCY` cycles from a read that is taken to its first column, when nothing is under
    way: tRCD, CAS latency, and the registers here and at the pads. A line each `INTERVAL` cycles.

    Parameters
    ----------
    hz : float
        Clock.
    id_bits : int
    timing : SdramTiming

    Members
    -------
    i : In stream(line_layout)
        Once ready it stays so until a line comes.
    start_write : Out
        The line whose request is a write begins; its data must be on `write_data` from the next
        cycle on, a column a cycle, 32 of them.
    write_data, write_mask : In
        16 bits, and the two bytes that are *not* to be written.
    wrote, wrote_id : Out
        The last column of a written line has gone out; every later read sees it.
    read : Out, always-ready stream(column_layout)
        Columns of lines that are read; `last` is low without one.
    ready : Out
        The chip is initialised.
    pins : Out(SdramPins)
    """

    INTERVAL = LINE_BEATS

    def __init__(self, *, hz: float, id_bits: int, timing: SdramTiming = COMMON):
        self.hz, self.id_bits, self.timing = hz, id_bits, timing
        self.cycles = timing.cycles(hz)
        super().__init__(
            {
                "i": In(stream.Signature(line_layout(id_bits))),
                "start_write": Out(1),
                "write_data": In(16),
                "write_mask": In(2),
                "wrote": Out(1),
                "wrote_id": Out(id_bits),
                "read": Out(stream.Signature(column_layout(id_bits), always_ready=True)),
                "ready": Out(1),
                "pins": Out(SdramPins()),
            }
        )

    @property
    def LATENCY(self) -> int:
        """A line is taken, its row opened, the column asked for; then the chip's own latency and
        the registers each way."""
        return max(2, self.cycles.rcd) + self.cycles.cl + _PADS + 3

    def elaborate(self, platform):
        m = Module()
        command, lines = _Command(), _Lines(self.id_bits)
        banks, refresh = _Banks(self.cycles), _Refresh(self.cycles)
        pins = self.pins
        m.d.sync += [
            pins.cke.eq(1),
            pins.cs_n.eq(0),
            Cat(pins.we_n, pins.cas_n, pins.ras_n).eq(command.code),
            pins.ba.eq(command.bank),
            pins.a.eq(command.address),
        ]
        self._count(m, refresh, banks)
        self._follow(m, lines, banks)
        closing = Cat(timer != 0 for timer in banks.closing).any()
        quiet = ~lines.moving & ~banks.is_open.any() & ~closing
        with m.FSM():
            self._power_up(m, command, refresh)
            with m.State("RUN"):
                m.d.sync += [self.ready.eq(1), pins.dqm.eq(0)]
                with m.If(lines.moving & (lines.beat[:3] == 0)):
                    self._burst(m, command, lines, banks)
                with m.Elif((refresh.due != 0) & quiet & ~lines.opened & (refresh.wait == 0)):
                    m.d.comb += [command.code.eq(_Code.REFRESH), refresh.done.eq(1)]
                    m.d.sync += refresh.wait.eq(self.cycles.rfc - 1)
                with m.Elif(
                    lines.waiting
                    & ~lines.opened
                    & (refresh.wait == 0)
                    & (refresh.due == 0)
                    & (banks.rrd == 0)
                    & ~banks.is_open.bit_select(lines.then.line.bank, 1)
                    & (banks.closing[lines.then.line.bank] == 0)
                ):
                    self._open(m, command, lines, banks)
        self._data(m, lines)
        return m

    def _count(self, m: Module, refresh: _Refresh, banks: _Banks) -> None:
        """Time: when a refresh is due, when a bank's next command may come."""
        t, since = self.cycles, Signal(range(self.cycles.refi))
        for timer in (refresh.wait, banks.rcd, banks.rrd, banks.turn, *banks.closing):
            with m.If(timer != 0):
                m.d.sync += timer.eq(timer - 1)
        tick = since == t.refi - 1
        m.d.sync += [
            since.eq(Mux(tick | ~self.ready, 0, since + 1)),
            refresh.due.eq(refresh.due + (tick & ~refresh.due.all()) - refresh.done),
        ]

    def _follow(self, m: Module, lines: _Lines, banks: _Banks) -> None:
        """One line after the other: `then` comes from `i` and becomes `now`."""
        now, then, moving, last = lines.now, lines.then, lines.moving, lines.last
        m.d.comb += [
            lines.begin.eq(
                lines.waiting
                & lines.opened
                & (banks.rcd == 0)
                & (~moving | last)
                & ~(then.write & (banks.turn != 0))
            ),
            self.i.ready.eq((~lines.waiting | lines.begin) & self.ready),
            self.start_write.eq(lines.begin & then.write),
        ]
        with m.If(lines.begin):
            m.d.sync += [
                moving.eq(1),
                lines.beat.eq(0),
                now.eq(then),
                lines.waiting.eq(0),
                lines.opened.eq(0),
            ]
        with m.Elif(moving):
            m.d.sync += [lines.beat.eq(lines.beat + 1), moving.eq(~last)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [then.eq(self.i.payload), lines.waiting.eq(1), lines.opened.eq(0)]
        with m.If(moving & ~now.write):
            m.d.sync += banks.turn.eq(self.cycles.cl)

    def _power_up(self, m: Module, command: _Command, refresh: _Refresh) -> None:
        """States from power-up to RUN: all banks are closed, eight refreshes, the mode is set."""
        t, wait, left = self.cycles, refresh.wait, Signal(range(9))
        with m.State("POWER_UP"):
            with m.If(wait == 0):
                m.d.comb += [command.code.eq(_Code.PRECHARGE), command.address.eq(1 << 10)]
                m.d.sync += [wait.eq(t.rp - 1), left.eq(8)]
                m.next = "REFRESHES"
        with m.State("REFRESHES"):
            with m.If(wait == 0):
                m.d.comb += command.code.eq(_Code.REFRESH)
                m.d.sync += [wait.eq(t.rfc - 1), left.eq(left - 1)]
                with m.If(left == 1):
                    m.next = "MODE"
        with m.State("MODE"):
            with m.If(wait == 0):
                # bursts of 8, in order
                m.d.comb += [command.code.eq(_Code.MODE), command.address.eq(0b011 | t.cl << 4)]
                m.d.sync += wait.eq(t.mrd - 1)
                m.next = "RUN"

    def _burst(self, m: Module, command: _Command, lines: _Lines, banks: _Banks) -> None:
        """The next 8 columns of `now`; the last close their bank."""
        t, now = self.cycles, lines.now
        final = lines.beat[3:] == LINE_BEATS // BURST - 1
        m.d.comb += [
            command.code.eq(Mux(now.write, _Code.WRITE, _Code.READ)),
            command.bank.eq(now.line.bank),
            command.address.eq(Cat(lines.beat, now.line.group, Const(0, 1), final)),
        ]
        with m.If(final):
            m.d.sync += [
                banks.is_open.bit_select(now.line.bank, 1).eq(0),
                banks.closing[now.line.bank].eq(
                    Mux(now.write, BURST - 2 + t.wr + t.rp, BURST - 1 + t.rp)
                ),
            ]

    def _open(self, m: Module, command: _Command, lines: _Lines, banks: _Banks) -> None:
        """The row of `then`."""
        line = lines.then.line
        m.d.comb += [
            command.code.eq(_Code.ACTIVE),
            command.bank.eq(line.bank),
            command.address.eq(line.row),
        ]
        m.d.sync += [
            lines.opened.eq(1),
            banks.is_open.bit_select(line.bank, 1).eq(1),
            banks.rcd.eq(max(0, self.cycles.rcd - 2)),
            banks.rrd.eq(self.cycles.rrd - 1),
        ]

    def _data(self, m: Module, lines: _Lines) -> None:
        """Columns of `now` to the pins and from them."""
        now, last, pins = lines.now, lines.last, self.pins
        writing, reading = lines.moving & now.write, lines.moving & ~now.write
        m.d.sync += [pins.dq_oe.eq(writing), pins.dq_o.eq(self.write_data)]
        with m.If(writing):
            m.d.sync += pins.dqm.eq(self.write_mask)
        m.d.comb += [self.wrote.eq(writing & last), self.wrote_id.eq(now.id)]
        way = self.cycles.cl + 2 + _PADS  # of a column, from its beat to `read`
        coming, ends = Signal(way), Signal(way)
        column, column_id = Signal(16), Signal(self.id_bits)
        m.d.sync += [
            coming.eq(Cat(reading, coming)),
            ends.eq(Cat(last & ~now.write, ends)),
            column.eq(pins.dq_i),
        ]
        with m.If(last & ~now.write):
            m.d.sync += column_id.eq(now.id)
        m.d.comb += [
            self.read.valid.eq(coming[-1]),
            self.read.p.last.eq(ends[-1]),
            self.read.p.data.eq(column),
            self.read.p.id.eq(column_id),
        ]
