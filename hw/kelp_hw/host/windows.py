# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Sends an access of the hint window to the hint absorber, one of the register window to the
registers, and joins their answers (spec §3). One hint in 2 cycles, answered 1 cycle after its
transfer; register accesses at the registers' rate."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS, TAG_BITS

from ..layouts import Layouts
from ..pipeline import DECIDED

__all__ = ["WindowRouter"]


class WindowRouter(wiring.Component):
    """Serves one access to the windows above the KV aperture at a time, in order.

    A hint line is handed to the absorber and answered with Cmp once the absorber has taken it; a
    read of the hint window is answered with zeros. A register access is handed on when the hint
    lines before it have taken effect, so that who advances by a hint reads the new step, or after
    `HINT_WAIT` cycles, and answered by the registers.

    Latency: `o_hint` and `o_register` follow `i` combinationally (`ACCESS_LATENCY`); a hint's
    answer comes `LATENCY` cycle after its transfer. One hint in `INTERVAL` cycles; register
    accesses at the registers' rate. No error cases. Critical path: for a hint `i.ready` is the
    register `done`, which `o.ready` does not reach in the same cycle.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, stream of window_access
    o_hint : out, stream of hint_line
        `broken` marks a partial or poisoned write.
    hints_busy : in
        The absorber has a line, or an op of one, or such an op waits for M0.
    o_register : out, stream of register_access
    i_register : in, stream of window_answer
        Comes while its access stands at `o_register`.
    o : out, stream of window_answer
    idle : out
        No access is being served, no answer waits.
    """

    LATENCY = 1
    ACCESS_LATENCY = 0
    INTERVAL = 2
    HINT_WAIT = 255
    #: from when M0 has taken the absorber's last op to its decision, with some margin
    _EFFECT = DECIDED + 4

    def __init__(self, *, config: Config):
        layouts = Layouts(config)
        self._answered = data.StructLayout({"write": 1, "tag": TAG_BITS, "ld_id": LD_ID_BITS})
        super().__init__(
            {
                "i": In(stream.Signature(layouts.window_access)),
                "o_hint": Out(stream.Signature(layouts.hint_line)),
                "hints_busy": In(1),
                "o_register": Out(stream.Signature(layouts.register_access)),
                "i_register": In(stream.Signature(layouts.window_answer)),
                "o": Out(stream.Signature(layouts.window_answer)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        access, answer = self.i.p, self.i_register.p
        hint = self.i.valid & access.hint
        held, waits, done, served = Signal(self._answered), Signal(), Signal(), Signal()
        open_ = hint & ~waits  # `waits` covers `done`: nothing is served twice
        # cycles since the absorber was busy; cycles of a register access that waits for it
        quiet = Signal(range(self._EFFECT + 1), init=self._EFFECT)
        waited, asks = Signal(range(self.HINT_WAIT + 1)), Signal()
        m.d.comb += asks.eq(self.i.valid & ~access.hint)
        m.d.sync += waited.eq(Mux(asks & ~self.i.ready, waited + ~waited.all(), 0))
        with m.If(self.hints_busy | served):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != self._EFFECT):
            m.d.sync += quiet.eq(quiet + 1)

        m.d.comb += [
            self.o_hint.valid.eq(open_ & access.write),
            self.o_hint.p.data.eq(access.data),
            self.o_hint.p.ld_id.eq(access.ld_id),
            self.o_hint.p.broken.eq(~access.byte_enable.all() | access.poison),
            self.o_register.valid.eq(asks & ((quiet == self._EFFECT) | waited.all())),
            *(field.eq(access[name]) for name, field in _fields(self.o_register.p)),
            self.i.ready.eq(Mux(access.hint, done, self.o_register.ready)),
        ]
        m.d.comb += served.eq(open_ & (~access.write | self.o_hint.ready))
        m.d.sync += done.eq(served)
        with m.If(self.o.ready):
            m.d.sync += waits.eq(0)
        with m.If(served):
            m.d.sync += [waits.eq(1), *(field.eq(access[name]) for name, field in _fields(held))]

        m.d.comb += [
            self.o.valid.eq(waits | self.i_register.valid),
            *(self.o.p[name].eq(Mux(waits, field, answer[name])) for name, field in _fields(held)),
            self.o.p.data.eq(Mux(waits, 0, answer.data)),
            self.i_register.ready.eq(self.o.ready & ~waits),
            self.idle.eq(~self.i.valid & ~waits),
            # A register's answer that is offered is not hidden by a hint's.
            Assert(~(self.i_register.valid & hint)),
            Assert(~done | waits),
        ]
        return m


def _fields(view: data.View):
    return [(name, view[name]) for name in view.shape().members]
