# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Class, recency and priority of scanned pages (spec §5): a pipeline. One page a cycle, judged
after 15 cycles, under policy `kelp` after 2."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import SCORE_BITS, STEP_BITS
from kelp_spec.scores import RECENCY_BIAS

from ..lib.delay import Delay
from ..lib.exp2 import Exp2
from .signatures import CLASS_BITS, EvictionLayouts

__all__ = ["PriorityUnit"]


class PriorityUnit(wiring.Component):
    """From a scanned page to its class and priority, p = (65535 − s)·decay(step − last_step) >> 16;
    under policy `kelp` p = 65535 − value, and a page in use that is `finished` is an ordinary one.
    With tables (`constants.tables`) the value is what they say, where that is more, 65533 at most,
    so that no priority means something else, and the first page is as much in use as the newest.

    Latency: `LATENCY` cycles; under `kelp`, whose value has the age in it, `KELP_LATENCY`.
    Interval: `INTERVAL`, one page per cycle, in order, never stalls. `constants` must hold still
    while pages are inside.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, always-ready stream of scanned
    constants : in, sweep_constants
    o : out, always-ready stream of judged
    value : in
        With `Config.select_tables`: what tables have of the page that was at `i` in the cycle
        before.
    """

    LATENCY = 4 + Exp2.LATENCY
    KELP_LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.scanned, always_ready=True)),
                "constants": In(layouts.sweep_constants),
                "o": Out(stream.Signature(layouts.judged, always_ready=True)),
            }
            | ({"value": In(SCORE_BITS)} if config.select_tables else {})
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        held, o = self.constants, self.o.p

        # 1: age and class
        carried = data.StructLayout(
            {
                "page": c.page_bits,
                "last_step": STEP_BITS,
                "kind": CLASS_BITS,
                "eligible": 1,
                "score": SCORE_BITS,
            }
        )
        age, first = Signal(STEP_BITS, reset_less=True), Signal(carried, reset_less=True)
        is_newest, in_use = Signal(), Signal()
        kept = held.newest.valid & (self.i.p.page == held.newest.page)
        worth = first.score
        if c.select_tables:
            kept = kept | (held.tables & (self.i.p.page == 0))
            capped = Mux(self.value[1:].all(), (1 << SCORE_BITS) - 3, self.value)
            worth = Mux(held.tables & (capped > first.score), capped, first.score)
        m.d.comb += [
            is_newest.eq(kept),
            in_use.eq((self.i.p.last_step == held.step) & ~(held.kelp & self.i.p.finished)),
        ]
        m.d.sync += [
            age.eq(held.step - self.i.p.last_step),
            first.page.eq(self.i.p.page),
            first.last_step.eq(self.i.p.last_step),
            first.eligible.eq(self.i.p.eligible),
            first.score.eq(self.i.p.score),
            first.kind.eq(Mux(is_newest, 2, in_use)),
        ]

        # … : decay of the age, the rest waits
        m.submodules.exp2 = exp2 = Exp2(bias=RECENCY_BIAS)
        m.submodules.wait = wait = Delay(shape=carried, cycles=Exp2.LATENCY)
        m.d.comb += [
            exp2.steps.eq(age),
            exp2.mantissa.eq(held.tau_m),
            exp2.shift.eq(held.tau_sh),
            wait.en.eq(1),
            wait.i.eq(first),
        ]
        decay, last = Signal(SCORE_BITS, reset_less=True), Signal(carried, reset_less=True)
        # 65536 − halving, and 65535 where nothing is left of the halving.
        m.d.sync += [decay.eq(Mux(exp2.halving == 0, 65535, 0 - exp2.halving)), last.eq(wait.o)]

        product = Signal(2 * SCORE_BITS, reset_less=True)
        multiplied = Signal(
            data.StructLayout({name: shape.shape for name, shape in carried if name != "score"}),
            reset_less=True,
        )
        m.d.sync += [
            product.eq((~last.score)[:SCORE_BITS] * decay),
            *(multiplied[name].eq(last[name]) for name in multiplied.shape().members),
        ]

        valid, early = Signal(self.LATENCY), self.KELP_LATENCY
        m.d.sync += [
            valid.eq(Cat(self.i.valid, valid)),
            *(
                o.candidate[name].eq(Mux(held.kelp, first[name], multiplied[name]))
                for name in ("page", "last_step", "kind")
            ),
            o.eligible.eq(Mux(held.kelp, first.eligible, multiplied.eligible)),
            o.candidate.priority.eq(Mux(held.kelp, (~worth)[:SCORE_BITS], product[SCORE_BITS:])),
        ]
        m.d.comb += self.o.valid.eq(Mux(held.kelp, valid[early - 1], valid[-1]))
        with m.If(held.kelp):  # it has left
            m.d.sync += valid[early:].eq(0)
        steady = Signal(STEP_BITS)
        m.d.sync += steady.eq(held.step)
        m.d.sync += Assert(~valid.any() | (steady == held.step), "the step changed under a sweep")
        return m
