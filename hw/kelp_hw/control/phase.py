# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Phase detector: is a session in prefill or in decode (spec §7)? One request of each lane a cycle;
`decode` follows the last one of a window after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..layouts import Layouts

__all__ = ["PHASE_WINDOW", "PhaseDetector"]

PHASE_WINDOW = 4096  #: requests of a session between two decisions
_FACTOR = 10  #: reads > 10 · writes means decode


class PhaseDetector(wiring.Component):
    """After every `window` requests of a session: decode when it read more than ten times as often
    as it wrote, else prefill (spec §7).

    A session begins in prefill, with no requests counted, when it is opened. The hot lane's request
    counts before that of the tracker lane in the same cycle, as at M3.

    Latency: `LATENCY` cycles from the last request of a window to `decode`. Interval: `INTERVAL`,
    one request of each lane per cycle.

    Parameters
    ----------
    config : Config
    window : int
        Requests between two decisions; a power of two of 16 … 65536.

    Members
    -------
    i_hot, i_op : in, always-ready streams of phase_request
        Requests of the hot and of the tracker lane.
    open : in
        Bit s: session s is open.
    decode : out
        Bit s: session s is in decode.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config, window: int = PHASE_WINDOW):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        if not 16 <= window <= 65536 or window & (window - 1):
            raise ValueError(f"window = {window} is refused; legal: a power of two of 16 … 65536")
        self.config = config
        self.window = window
        request = Layouts(config).phase_request
        super().__init__(
            {
                "i_hot": In(stream.Signature(request, always_ready=True)),
                "i_op": In(stream.Signature(request, always_ready=True)),
                "open": In(config.sessions),
                "decode": Out(config.sessions),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Only writes are counted: of `window` requests, reads > 10 · writes is window > 11 ·
        # writes, writes ≤ most.
        most = (self.window - 1) // (_FACTOR + 1)
        # The request's session and kind are registered; it is counted in the next cycle.
        lanes = (("hot", self.i_hot.valid, self.i_hot.p), ("op", self.i_op.valid, self.i_op.p))
        writes_of = {lane: Signal(name=f"write_{lane}") for lane, _, _ in lanes}
        m.d.sync += [writes_of[lane].eq(request.write) for lane, _, request in lanes]
        is_open = Signal.like(self.open)
        m.d.sync += is_open.eq(self.open)
        for s in range(self.config.sessions):
            total = Signal(range(self.window), name=f"total_{s}")
            writes = Signal(range(most + 2), name=f"writes_{s}")  # stops at most + 1
            mine, wrote, last = {}, {}, {}
            for lane, valid, request in lanes:
                mine[lane], wrote[lane], last[lane] = (
                    Signal(name=f"{what}_{s}_{lane}") for what in ("mine", "wrote", "last")
                )
                m.d.sync += mine[lane].eq(valid & (request.session == s))
                m.d.comb += wrote[lane].eq(mine[lane] & writes_of[lane])
            # Side by side, not one lane after the other: how many requests are left in the window,
            # and how many writes more leave it at most `most`. A window has more than two requests:
            # it ends with one lane's or with the other's.
            room = Signal(3, name=f"room_{s}")
            hot_room, op_room, counted = (
                Signal(name=f"hot_room_{s}"),
                Signal(name=f"op_room_{s}"),
                Signal(range(most + 2), name=f"counted_{s}"),
            )
            m.d.comb += [
                last["hot"].eq(mine["hot"] & (total == self.window - 1)),
                last["op"].eq(
                    mine["op"]
                    & Mux(mine["hot"], total == self.window - 2, total == self.window - 1)
                ),
                room.eq(Cat(writes <= most - k for k in range(3))),
                hot_room.eq(Mux(wrote["hot"], room[1], room[0])),
                op_room.eq(Mux(wrote["op"], Mux(wrote["hot"], room[2], room[1]), hot_room)),
                counted.eq(writes + ((wrote["hot"] & room[0]) + (wrote["op"] & hot_room))),
            ]
            m.d.sync += [total.eq(total + (mine["hot"] + mine["op"])), writes.eq(counted)]
            with m.If(last["hot"]):
                m.d.sync += [self.decode[s].eq(hot_room), writes.eq(wrote["op"])]
            with m.Elif(last["op"]):
                m.d.sync += [self.decode[s].eq(op_room), writes.eq(0)]
            with m.If(~is_open[s]):
                m.d.sync += [total.eq(0), writes.eq(0), self.decode[s].eq(0)]
            m.d.comb += [Assert(writes <= most + 1), Assert(writes <= total)]
        return m
