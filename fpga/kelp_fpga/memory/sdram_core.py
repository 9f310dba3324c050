# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""64-byte lines to the commands and data of an SDR SDRAM of 16 bits."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .sdram_timing import BANK_BITS, BURST, COLUMN_BITS, COMMON, ROW_BITS, SdramTiming

__all__ = ["LINE_BEATS", "SdramCore", "SdramPins", "line_layout"]

LINE_BEATS = 32  #: columns of a line
#: cycles that a command and its data take through the pads' registers, out and in
_PADS = 2
_LINES_PER_ROW_BITS = COLUMN_BITS - 5


class _Command(IntEnum):
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


class SdramCore(wiring.Component):
    """Lines in order: four bursts of 8 columns, the last with auto-precharge. While one line moves,
    the next one's row is opened, so lines of different banks follow one another without a gap: 32
    cycles a line. Refresh waits for the two lines under way.

    Pins are registered, here and at the pads. The chip takes commands on the falling edge of our
    clock (the board sends it the clock inverted). Its data is taken at the pads with the rising
    edge one and a half cycles after the edge that it belongs to by CAS latency's count: access time
    (6 ns) and both ways through pads and board (about 6 ns) fit into one period, and data then
    still stands for hold time plus the same 6 ns (docs/fpga.md has the budget).

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
    read_data, read_valid, read_last, read_id : Out
        Columns of lines that are read.
    ready : Out
        The chip is initialised.
    pins : Out(SdramPins)
    """

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
                "read_data": Out(16),
                "read_valid": Out(1),
                "read_last": Out(1),
                "read_id": Out(id_bits),
                "ready": Out(1),
                "pins": Out(SdramPins()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        t, pins = self.cycles, self.pins
        command, bank, address = Signal(3, init=_Command.NOP), Signal(BANK_BITS), Signal(ROW_BITS)
        m.d.comb += command.eq(_Command.NOP)
        m.d.sync += [
            pins.cke.eq(1),
            pins.cs_n.eq(0),
            Cat(pins.we_n, pins.cas_n, pins.ras_n).eq(command),
            pins.ba.eq(bank),
            pins.a.eq(address),
        ]

        # - power-up, refresh ----------------------------------------------------------------------
        wait = Signal(range(max(t.power_up, t.rfc) + 1), init=t.power_up)
        count, due, since = Signal(range(9)), Signal(4), Signal(range(t.refi))
        with m.If(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        refreshed = Signal()
        tick = since == t.refi - 1
        m.d.sync += [
            since.eq(Mux(tick | ~self.ready, 0, since + 1)),
            due.eq(due + (tick & ~due.all()) - refreshed),
        ]

        # - the line that moves and the line after it ----------------------------------------------
        now, then = Signal(line_layout(self.id_bits)), Signal(line_layout(self.id_bits))
        moving, waiting, opened, beat = Signal(), Signal(), Signal(), Signal(5)
        rcd, rrd, turn = Signal(range(t.rcd + 1)), Signal(range(t.rrd + 1)), Signal(range(t.cl + 4))
        is_open = Signal(4)
        closing = Array(
            Signal(range(BURST + t.wr + t.rp + 1), name=f"closing_{b}") for b in range(4)
        )
        for timer in (rcd, rrd, turn, *closing):
            with m.If(timer != 0):
                m.d.sync += timer.eq(timer - 1)
        last = moving & (beat == LINE_BEATS - 1)
        begin, free = Signal(), Signal()
        m.d.comb += [
            begin.eq(
                waiting & opened & (rcd == 0) & (~moving | last) & ~(then.write & (turn != 0))
            ),
            free.eq(~waiting | begin),
            self.i.ready.eq(free & self.ready),
            self.start_write.eq(begin & then.write),
        ]
        with m.If(begin):
            m.d.sync += [moving.eq(1), beat.eq(0), now.eq(then), waiting.eq(0), opened.eq(0)]
        with m.Elif(moving):
            m.d.sync += [beat.eq(beat + 1), moving.eq(~last)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [then.eq(self.i.payload), waiting.eq(1), opened.eq(0)]
        with m.If(moving & ~now.write):
            m.d.sync += turn.eq(t.cl)  # until the chip has let go of the data pins

        final = beat[3:] == LINE_BEATS // BURST - 1
        quiet = ~moving & ~is_open.any() & ~Cat(timer != 0 for timer in closing).any()
        with m.FSM():
            with m.State("POWER_UP"):
                with m.If(wait == 0):
                    m.d.comb += [command.eq(_Command.PRECHARGE), address.eq(1 << 10)]
                    m.d.sync += [wait.eq(t.rp - 1), count.eq(8)]
                    m.next = "REFRESHES"
            with m.State("REFRESHES"):
                with m.If(wait == 0):
                    m.d.comb += command.eq(_Command.REFRESH)
                    m.d.sync += [wait.eq(t.rfc - 1), count.eq(count - 1)]
                    with m.If(count == 1):
                        m.next = "MODE"
            with m.State("MODE"):
                with m.If(wait == 0):
                    # bursts of 8, in order
                    m.d.comb += [command.eq(_Command.MODE), address.eq(0b011 | t.cl << 4)]
                    m.d.sync += wait.eq(t.mrd - 1)
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.sync += [self.ready.eq(1), pins.dqm.eq(0)]
                with m.If(moving & (beat[:3] == 0)):
                    m.d.comb += [
                        command.eq(Mux(now.write, _Command.WRITE, _Command.READ)),
                        bank.eq(now.line.bank),
                        address.eq(Cat(beat, now.line.group, Const(0, 1), final)),
                    ]
                    with m.If(final):
                        m.d.sync += [
                            is_open.bit_select(now.line.bank, 1).eq(0),
                            closing[now.line.bank].eq(
                                Mux(now.write, BURST - 2 + t.wr + t.rp, BURST - 1 + t.rp)
                            ),
                        ]
                with m.Elif((due != 0) & quiet & ~opened & (wait == 0)):
                    m.d.comb += [command.eq(_Command.REFRESH), refreshed.eq(1)]
                    m.d.sync += wait.eq(t.rfc - 1)
                with m.Elif(
                    waiting
                    & ~opened
                    & (wait == 0)
                    & (due == 0)
                    & (rrd == 0)
                    & ~is_open.bit_select(then.line.bank, 1)
                    & (closing[then.line.bank] == 0)
                ):
                    m.d.comb += [
                        command.eq(_Command.ACTIVE),
                        bank.eq(then.line.bank),
                        address.eq(then.line.row),
                    ]
                    m.d.sync += [
                        opened.eq(1),
                        is_open.bit_select(then.line.bank, 1).eq(1),
                        rcd.eq(max(0, t.rcd - 2)),
                        rrd.eq(t.rrd - 1),
                    ]

        # - data -----------------------------------------------------------------------------------
        writing = moving & now.write
        m.d.sync += [pins.dq_oe.eq(writing), pins.dq_o.eq(self.write_data)]
        with m.If(writing):
            m.d.sync += pins.dqm.eq(self.write_mask)
        m.d.comb += [self.wrote.eq(writing & last), self.wrote_id.eq(now.id)]
        coming, ends = Signal(t.cl + 2 + _PADS), Signal(t.cl + 2 + _PADS)
        m.d.sync += [
            coming.eq(Cat(moving & ~now.write, coming)),
            ends.eq(Cat(last & ~now.write, ends)),
            self.read_data.eq(pins.dq_i),
        ]
        with m.If(last & ~now.write):
            m.d.sync += self.read_id.eq(now.id)
        m.d.comb += [self.read_valid.eq(coming[-1]), self.read_last.eq(ends[-1])]
        return m
