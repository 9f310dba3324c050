# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Phase detector: is a session in prefill or in decode? (spec §7)"""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

__all__ = ["PHASE_WINDOW", "PhaseDetector", "phase_request_layout"]

PHASE_WINDOW = 4096   #: requests of a session between two decisions
_FACTOR = 10          #: reads > 10 · writes means decode


def phase_request_layout(config: Config) -> data.StructLayout:
    """A demand line request that was served, of session `session`."""
    return data.StructLayout({"session": config.session_bits, "write": 1})


class PhaseDetector(wiring.Component):
    """After every 4096 requests of a session: decode when it read more than ten times as often as it wrote, else prefill.

    A session begins in prefill, with no requests counted, when it is opened. Two requests a cycle, the hot lane's before the tracker's, as
    at M3. `decode` follows in the second cycle.

    Parameters
    ----------
    config : Config
    window : int
        Requests between two decisions; a power of two of 16 … 65536.

    Members
    -------
    i_hot, i_hot_valid, i_op, i_op_valid : valid-only requests of the hot and of the tracker lane
    open : bit s: session s is open
    decode : bit s: session s is in decode
    """

    def __init__(self, *, config: Config, window: int = PHASE_WINDOW):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        if not 16 <= window <= 65536 or window & (window - 1):
            raise ValueError(f"window = {window} is refused; legal: a power of two of 16 … 65536")
        self.config = config
        self.window = window
        request = phase_request_layout(config)
        super().__init__({
            "i_hot": In(request), "i_hot_valid": In(1),
            "i_op": In(request), "i_op_valid": In(1),
            "open": In(config.sessions),
            "decode": Out(config.sessions),
        })

    def elaborate(self, platform):
        m = Module()
        # Only writes are counted: of `window` requests, reads > 10 · writes is window > 11 · writes, writes ≤ most.
        most = (self.window - 1) // (_FACTOR + 1)
        # Whose a request is, is known before it is counted.
        lanes = (("hot", self.i_hot_valid, self.i_hot), ("op", self.i_op_valid, self.i_op))
        writes_of = {lane: Signal(name=f"write_{lane}") for lane, _, _ in lanes}
        m.d.sync += [writes_of[lane].eq(request.write) for lane, _, request in lanes]
        is_open = Signal.like(self.open)
        m.d.sync += is_open.eq(self.open)
        for s in range(self.config.sessions):
            total = Signal(range(self.window), name=f"total_{s}")
            writes = Signal(range(most + 2), name=f"writes_{s}")       # stops at most + 1
            after_total, after_writes, after_decode = total, writes, self.decode[s]
            for lane, valid, request in lanes:
                mine = Signal(name=f"mine_{s}_{lane}")
                counted = Signal(range(most + 2), name=f"counted_{s}_{lane}")
                last = Signal(name=f"last_{s}_{lane}")
                m.d.sync += mine.eq(valid & (request.session == s))
                m.d.comb += [
                    last.eq(mine & (after_total == self.window - 1)),
                    counted.eq(Mux(mine & writes_of[lane] & (after_writes <= most), after_writes + 1, after_writes)),
                ]
                after_decode = Mux(last, counted <= most, after_decode)
                after_total = (after_total + mine)[:len(total)]
                after_writes = Mux(last, 0, counted)
            m.d.sync += [total.eq(after_total), writes.eq(after_writes), self.decode[s].eq(after_decode)]
            with m.If(~is_open[s]):
                m.d.sync += [total.eq(0), writes.eq(0), self.decode[s].eq(0)]
            m.d.comb += [Assert(writes <= most + 1), Assert(writes <= total)]
        return m
