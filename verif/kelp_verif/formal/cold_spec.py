# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The cold-tier scheduler's contract, for the solver: every fetch and write-back is answered once,
and demand goes before prefetch and write-back."""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_spec.metadata import ColdOp, ColdStatus

from .fifo_specs import SMALL

__all__ = ["ColdSchedulerContract"]


class ColdSchedulerContract(wiring.Component):
    """From reset: fetches, raises and write-backs at any time, a tier that takes commands and
    answers them, OK or FAILED, when and as often as it pleases, with up to one retry. Time stands
    still, so nothing is aborted (the cocotb bench does that).

    Of a miss and of a write-back, any one each: its command goes out only when it was asked for,
    once, and once more after a FAILED that may be retried; its answer comes after a completion,
    once, and says how that ended. A command of a prefetch or a write-back does not come into sight
    when a demand has waited for `LATE` cycles, those apart in which the tier lets a command stand:
    one that was chosen before may stand behind that. Bounded: the lines' contents are out of an
    induction's sight.
    """

    #: From `i_fetch` to where the choice is made, and from there to `o_command`.
    LATE = 3 + 5

    def __init__(self, block=ColdScheduler):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.cold = d = self.block
        started = Signal()
        m.d.sync += started.eq(1)

        mine, token = AnyConst(SMALL.miss_bits), AnyConst(SMALL.write_back_bits)
        m.d.comb += [d.timeout.eq(~0), d.retries.eq(AnyConst(1))]
        # Fetches and write-backs: of each name one at a time.
        asked, written = Signal(SMALL.misses), Signal(SMALL.write_backs)
        wb, wrote, fetched = d.i_write_back, d.o_written_back, d.o_fetched
        m.d.comb += [
            d.i_fetch.valid.eq(started & AnySeq(1)),
            d.i_fetch.p.miss.eq(AnySeq(SMALL.miss_bits)),
            d.i_fetch.p.demand.eq(AnySeq(1)),
            d.i_fetch.p.page.eq(AnySeq(SMALL.page_bits)),
            d.i_raise.valid.eq(started & AnySeq(1) & ~d.i_fetch.valid),
            d.i_raise.p.eq(AnySeq(SMALL.miss_bits)),
            wb.valid.eq(started & AnySeq(1)),
            wb.p.token.eq(AnySeq(SMALL.write_back_bits)),
            wb.p.page.eq(AnySeq(SMALL.page_bits)),
            Assume(~d.i_fetch.valid | ~asked.bit_select(d.i_fetch.p.miss, 1)),
            Assume(~wb.valid | ~written.bit_select(wb.p.token, 1)),
            fetched.ready.eq(AnySeq(1)),
            wrote.ready.eq(AnySeq(1)),
        ]
        with m.If(d.i_fetch.valid):
            m.d.sync += asked.bit_select(d.i_fetch.p.miss, 1).eq(1)
        with m.If(wb.valid & wb.ready):
            m.d.sync += written.bit_select(wb.p.token, 1).eq(1)
        with m.If(fetched.valid & fetched.ready):
            m.d.sync += asked.bit_select(fetched.p.miss, 1).eq(0)
        with m.If(wrote.valid & wrote.ready):
            m.d.sync += written.bit_select(wrote.p.token, 1).eq(0)

        # The tier: completes what it was told to do and has not completed.
        flying, attempts = Signal(d.entries), Signal(d.entries)
        command, done = d.o_command, d.i_completion
        went, ended = command.valid & command.ready, done.valid & done.ready
        m.d.comb += [
            command.ready.eq(AnySeq(1)),
            done.valid.eq(started & AnySeq(1)),
            done.p.id.index.eq(AnySeq(len(done.p.id.index))),
            done.p.id.attempt.eq(attempts.bit_select(done.p.id.index, 1)),
            done.p.status.eq(Mux(AnySeq(1), ColdStatus.OK, ColdStatus.FAILED)),
            Assume(
                ~done.valid
                | ((done.p.id.index < d.entries) & flying.bit_select(done.p.id.index, 1))
            ),
        ]
        with m.If(went):
            m.d.sync += [
                flying.bit_select(command.p.id.index, 1).eq(1),
                attempts.bit_select(command.p.id.index, 1).eq(command.p.id.attempt),
            ]
        with m.If(ended):
            m.d.sync += flying.bit_select(done.p.id.index, 1).eq(0)

        # One of each is followed.
        offers = Signal()  # a command comes into sight
        shown = Signal()
        m.d.sync += shown.eq(command.valid & ~command.ready)
        m.d.comb += [
            offers.eq(command.valid & ~shown),
            Assert(~command.valid | (command.p.op != ColdOp.ABORT)),
        ]
        for name, index, begins, answered, answer_failed, op in (
            (
                "fetch",
                mine,
                d.i_fetch.valid & (d.i_fetch.p.miss == mine),
                fetched.valid & fetched.ready & (fetched.p.miss == mine),
                fetched.p.failed,
                ColdOp.READ,
            ),
            (
                "write",
                SMALL.misses + token,
                wb.valid & wb.ready & (wb.p.token == token),
                wrote.valid & wrote.ready & (wrote.p.token == token),
                wrote.p.failed,
                ColdOp.WRITE,
            ),
        ):
            owed, in_tier, over, failed, tries = (
                Signal(name=f"{name}_{part}")
                for part in ("owed", "in_tier", "over", "failed", "tries")
            )
            here, ends = offers & (command.p.id.index == index), ended & (done.p.id.index == index)
            good = done.p.status == ColdStatus.OK
            with m.If(begins):
                m.d.sync += [owed.eq(1), tries.eq(0), over.eq(0), in_tier.eq(0)]
            with m.If(here):
                m.d.sync += in_tier.eq(1)
            with m.If(ends):
                with m.If(~good & (tries < d.retries)):
                    m.d.sync += [tries.eq(1), in_tier.eq(0)]
                with m.Else():
                    m.d.sync += [over.eq(1), failed.eq(~good)]
            with m.If(answered):
                m.d.sync += owed.eq(0)
            m.d.comb += [
                Assert(~here | (owed & ~in_tier & ~over & (command.p.op == op))),
                Assert(~answered | (owed & over & (answer_failed == failed))),
                Cover(answered & failed),
            ]

        # Order.
        waits = Signal(5)
        sent, demand = Signal(), Signal()
        with m.If(d.i_fetch.valid & (d.i_fetch.p.miss == mine)):
            m.d.sync += [sent.eq(0), demand.eq(d.i_fetch.p.demand), waits.eq(0)]
        with m.Else():
            here = offers & (command.p.id.index == mine)
            with m.If(d.i_raise.valid & (d.i_raise.p == mine)):
                m.d.sync += demand.eq(1)
            with m.If(here):
                m.d.sync += sent.eq(1)
            with m.If(asked.bit_select(mine, 1) & ~sent & ~here):
                m.d.sync += waits.eq(
                    waits + (demand & (waits != 31) & ~(command.valid & ~command.ready))
                )
        lower, prefetch_goes = Signal(SMALL.misses), Signal()
        with m.If(d.i_fetch.valid):
            m.d.sync += lower.bit_select(d.i_fetch.p.miss, 1).eq(~d.i_fetch.p.demand)
        with m.If(d.i_raise.valid):
            m.d.sync += lower.bit_select(d.i_raise.p, 1).eq(0)
        write_goes = offers & (command.p.op == ColdOp.WRITE)
        m.d.comb += prefetch_goes.eq(
            offers & (command.p.op == ColdOp.READ) & lower.bit_select(command.p.id.index, 1)
        )
        late = asked.bit_select(mine, 1) & ~sent & demand & (waits >= self.LATE)
        m.d.comb += [
            Assert(~((write_goes | prefetch_goes) & late)),
            Cover(late & offers & (command.p.op == ColdOp.READ)),
            Cover(prefetch_goes & written.any()),
        ]
        return m
