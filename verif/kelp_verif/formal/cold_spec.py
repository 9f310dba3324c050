# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The cold-tier scheduler's contract, for the solver: every fetch and write-back is answered once,
and demand goes before prefetch and write-back."""

from dataclasses import dataclass

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_spec.metadata import ColdOp, ColdStatus

from .fifo_specs import SMALL

__all__ = ["ColdSchedulerContract"]


class _Seen:
    """What a cycle shows of the scheduler's ports."""

    def __init__(self, scheduler):
        self.started = Signal()
        #: of each miss id, of each write-back's token: it is in use
        self.asked, self.written = Signal(SMALL.misses), Signal(SMALL.write_backs)
        self.offers = Signal()  #: a command comes into sight
        done = scheduler.i_completion
        self.ended = done.valid & done.ready


@dataclass(frozen=True)
class _Errand:
    """A fetch or a write-back that is followed: its entry, and the cycles in which it `begins` and
    is `answered`."""

    name: str
    index: object
    begins: object
    answered: object
    answer_failed: object
    op: ColdOp


class ColdSchedulerContract(wiring.Component):
    """From reset: fetches, raises and write-backs at any time, a tier that takes commands and
    answers them, OK or FAILED, when and as often as it pleases, with up to one retry. Time stands
    still, so nothing is aborted (the cocotb bench does that).

    Of a miss and of a write-back, any one each: its command goes out only when it was asked for,
    once, and once more after a FAILED that may be retried; its answer comes after a completion,
    once, and says how that ended. A command of a prefetch or a write-back does not come into sight
    when a demand has waited for `PATIENCE` cycles, not counting those in which the tier lets a
    command stand: one that was chosen before may stand behind that. Bounded: the lines' contents
    are out of an induction's sight.
    """

    #: From `i_fetch` to where the choice is made, and from there to `o_command`.
    PATIENCE = 3 + 5

    def __init__(self, block=ColdScheduler):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.cold = d = self.block
        seen = _Seen(d)
        m.d.sync += seen.started.eq(1)
        mine, token = AnyConst(SMALL.miss_bits), AnyConst(SMALL.write_back_bits)
        m.d.comb += [d.timeout.eq(~0), d.retries.eq(AnyConst(1))]
        self._ask(m, seen)
        self._tier(m, seen)
        fetched, wb, wrote = d.o_fetched, d.i_write_back, d.o_written_back
        self._follow(
            m,
            seen,
            _Errand(
                name="fetch",
                index=mine,
                begins=d.i_fetch.valid & (d.i_fetch.p.miss == mine),
                answered=fetched.valid & fetched.ready & (fetched.p.miss == mine),
                answer_failed=fetched.p.failed,
                op=ColdOp.READ,
            ),
        )
        self._follow(
            m,
            seen,
            _Errand(
                name="write",
                index=SMALL.misses + token,
                begins=wb.valid & wb.ready & (wb.p.token == token),
                answered=wrote.valid & wrote.ready & (wrote.p.token == token),
                answer_failed=wrote.p.failed,
                op=ColdOp.WRITE,
            ),
        )
        self._order(m, seen, mine)
        return m

    def _ask(self, m: Module, seen: _Seen) -> None:
        """Fetches and write-backs: of each name one at a time."""
        d, asked, written = self.block, seen.asked, seen.written
        wb, wrote, fetched = d.i_write_back, d.o_written_back, d.o_fetched
        m.d.comb += [
            d.i_fetch.valid.eq(seen.started & AnySeq(1)),
            d.i_fetch.p.miss.eq(AnySeq(SMALL.miss_bits)),
            d.i_fetch.p.demand.eq(AnySeq(1)),
            d.i_fetch.p.page.eq(AnySeq(SMALL.page_bits)),
            d.i_raise.valid.eq(seen.started & AnySeq(1) & ~d.i_fetch.valid),
            d.i_raise.p.eq(AnySeq(SMALL.miss_bits)),
            wb.valid.eq(seen.started & AnySeq(1)),
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

    def _tier(self, m: Module, seen: _Seen) -> None:
        """The tier completes what it was told to do and has not completed."""
        d = self.block
        flying, attempts, shown = Signal(d.entries), Signal(d.entries), Signal()
        command, done = d.o_command, d.i_completion
        m.d.comb += [
            command.ready.eq(AnySeq(1)),
            done.valid.eq(seen.started & AnySeq(1)),
            done.p.id.index.eq(AnySeq(len(done.p.id.index))),
            done.p.id.attempt.eq(attempts.bit_select(done.p.id.index, 1)),
            done.p.status.eq(Mux(AnySeq(1), ColdStatus.OK, ColdStatus.FAILED)),
            Assume(
                ~done.valid
                | ((done.p.id.index < d.entries) & flying.bit_select(done.p.id.index, 1))
            ),
        ]
        with m.If(command.valid & command.ready):
            m.d.sync += [
                flying.bit_select(command.p.id.index, 1).eq(1),
                attempts.bit_select(command.p.id.index, 1).eq(command.p.id.attempt),
            ]
        with m.If(seen.ended):
            m.d.sync += flying.bit_select(done.p.id.index, 1).eq(0)
        m.d.sync += shown.eq(command.valid & ~command.ready)
        m.d.comb += [
            seen.offers.eq(command.valid & ~shown),
            Assert(~command.valid | (command.p.op != ColdOp.ABORT)),
        ]

    def _follow(self, m: Module, seen: _Seen, errand: _Errand) -> None:
        """Its command goes out once for each try, and its answer says how the last one ended."""
        d, command, done = self.block, self.block.o_command, self.block.i_completion
        owed, in_tier, over, failed, tries = (
            Signal(name=f"{errand.name}_{part}")
            for part in ("owed", "in_tier", "over", "failed", "tries")
        )
        here = seen.offers & (command.p.id.index == errand.index)
        good = done.p.status == ColdStatus.OK
        with m.If(errand.begins):
            m.d.sync += [owed.eq(1), tries.eq(0), over.eq(0), in_tier.eq(0)]
        with m.If(here):
            m.d.sync += in_tier.eq(1)
        with m.If(seen.ended & (done.p.id.index == errand.index)):
            with m.If(~good & (tries < d.retries)):
                m.d.sync += [tries.eq(1), in_tier.eq(0)]
            with m.Else():
                m.d.sync += [over.eq(1), failed.eq(~good)]
        with m.If(errand.answered):
            m.d.sync += owed.eq(0)
        m.d.comb += [
            Assert(~here | (owed & ~in_tier & ~over & (command.p.op == errand.op))),
            Assert(~errand.answered | (owed & over & (errand.answer_failed == failed))),
            Cover(errand.answered & failed),
        ]

    def _order(self, m: Module, seen: _Seen, mine) -> None:
        """No command of a prefetch or a write-back overtakes a demand that has waited for
        `PATIENCE` cycles."""
        d, command, offers = self.block, self.block.o_command, seen.offers
        waits, sent, demand = Signal(5), Signal(), Signal()
        asked = seen.asked.bit_select(mine, 1)
        with m.If(d.i_fetch.valid & (d.i_fetch.p.miss == mine)):
            m.d.sync += [sent.eq(0), demand.eq(d.i_fetch.p.demand), waits.eq(0)]
        with m.Else():
            here = offers & (command.p.id.index == mine)
            with m.If(d.i_raise.valid & (d.i_raise.p == mine)):
                m.d.sync += demand.eq(1)
            with m.If(here):
                m.d.sync += sent.eq(1)
            with m.If(asked & ~sent & ~here):
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
        first = asked & ~sent & demand & (waits >= self.PATIENCE)
        m.d.comb += [
            Assert(~((write_goes | prefetch_goes) & first)),
            Cover(first & offers & (command.p.op == ColdOp.READ)),
            Cover(prefetch_goes & seen.written.any()),
        ]
