# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Evictions under way, side by side: from a CLAIM that was granted to the decision on its RELEASE
(docs/design.md §6). One flush and one RELEASE a cycle; a clean flush becomes a RELEASE after 1
cycle."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Op, Outcome

from ..layouts import POOL_BITS
from ..lib.protected import BlockFault, CheckedWord, Fault, ProtectedFifo, gather
from ..pipeline import RELEASE_TO_FREE
from .signatures import EvictionLayouts, EvictionsUnderWay, PageCheck

__all__ = ["EvictionSlots"]


class EvictionSlots(wiring.Component):
    """`write_backs` evictions side by side: claimed → flushed → (dirty) written to flash → RELEASE.

    What the frame stage and the data path report of a slot moves it on at once: a flushed frame
    goes into the FIFO of those that want their cold write or of those that want their RELEASE.
    Latency: `LATENCY` cycles from a clean flush to its RELEASE on `o_op`. Interval: `INTERVAL`, one
    flush and one RELEASE per cycle. A slot takes its next
    eviction `COOL` cycles after its RELEASE was decided, when the pool's free count has it.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result : in, always-ready stream of result
        A CLAIM that is DONE begins the eviction of slot `op.slot`, the result of its RELEASE ends
        it.
    i_claim : in, always-ready stream of claim
        What the frame stage found; before the frame is flushed.
    i_flushed : in, always-ready stream of token
        Only those of evictions.
    i_held : in
        With `Config.coherence`: the host holds lines of the page of `i_flushed`, so the eviction
        fails, without an event.
    i_error : in, always-ready stream of a frame
        Lines of the frame may have been poisoned since it was claimed: what was found then is not
        what flash is to keep, so the eviction fails. Never with `i_claim`.
    o_write_back : out, stream of write_back
    i_written_back : in, stream of written_back
    o_op : out, stream of op (RELEASE)
    under_way : out, EvictionsUnderWay
    check_victim, check_orphan, check_scrub : in, PageCheck
        Asked by the evictor, by `Orphans` and by the closer.
    fault : out, BlockFault
        Of what is known of a page that leaves: where it goes, whether it is dirty, its line masks.
    idle, quiet : out
        Nothing is under way; all that is under way waits for the flash.
    """

    LATENCY = 1
    INTERVAL = 1
    COOL = RELEASE_TO_FREE

    def __init__(self, *, config: Config):
        self.config = config
        self.words: dict[str, CheckedWord] = {}  #: the rows of each memory, when elaborated
        layouts = self.layouts = EvictionLayouts(config)
        token = config.write_back_bits
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_claim": In(stream.Signature(layouts.claim, always_ready=True)),
                "i_flushed": In(stream.Signature(token, always_ready=True)),
                "i_error": In(stream.Signature(config.frame_bits, always_ready=True)),
                "o_write_back": Out(stream.Signature(layouts.write_back)),
                "i_written_back": In(stream.Signature(layouts.written_back)),
                "o_op": Out(stream.Signature(layouts.op)),
                "under_way": Out(EvictionsUnderWay(config)),
                "check_victim": In(PageCheck(config)),
                "check_orphan": In(PageCheck(config)),
                "check_scrub": In(PageCheck(config)),
                "fault": Out(BlockFault),
                "idle": Out(1),
                "quiet": Out(1),
                **({"i_held": In(1)} if config.coherence else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        slots, token = range(c.write_backs), c.write_back_bits
        r = self.i_result.p
        started = Signal()  # before the first clock edge inputs mean nothing
        m.d.sync += started.eq(1)
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.slots, s.token, s.r, s.started = slots, token, r, started
        self._pages(m, s)
        self._tables(m, s)
        self._fifos(m, s)
        self._activity(m, s)
        return m

    def _pages(self, m: Module, s: SimpleNamespace) -> None:
        """Which page each slot works on, from its CLAIM until `COOL` cycles after its RELEASE."""
        layouts, c = self.layouts, self.config
        slots, token, r = s.slots, s.token, s.r
        where = layouts.page
        busy = Signal(c.write_backs)
        pages = [Signal(where, name=f"page{k}") for k in slots]
        at = Signal(token)
        claimed, released, freed = Signal(), Signal(), Signal()
        m.d.comb += [
            at.eq(r.op.slot),
            claimed.eq(self.i_result.valid & (r.op.kind == Op.CLAIM) & (r.outcome == Outcome.DONE)),
            released.eq(self.i_result.valid & (r.op.kind == Op.RELEASE)),
        ]
        cooling = [
            Signal(
                data.StructLayout({"valid": 1, "slot": token, "pool": POOL_BITS}),
                name=f"cooling{k}",
            )
            for k in range(self.COOL)
        ]
        m.d.sync += [
            cooling[0].valid.eq(released),
            cooling[0].slot.eq(at),
            cooling[0].pool.eq(r.op.pool),
        ]
        m.d.sync += [after.eq(before) for before, after in zip(cooling, cooling[1:], strict=False)]
        gone = cooling[-1]
        m.d.comb += freed.eq(gone.valid)
        for k in slots:
            with m.If(claimed & (at == k)):
                m.d.sync += [
                    busy[k].eq(1),
                    pages[k].squeue.eq(r.op.squeue),
                    pages[k].page.eq(r.op.page),
                ]
            with m.If(freed & (gone.slot == k)):
                m.d.sync += busy[k].eq(0)
        m.d.sync += self.under_way.free.valid.eq(~busy.all())
        for k in reversed(slots):
            with m.If(~busy[k]):
                m.d.sync += self.under_way.free.slot.eq(k)

        def working_on(page):
            return Cat(
                busy[k] & (pages[k].squeue == page.squeue) & (pages[k].page == page.page)
                for k in slots
            ).any()

        m.d.comb += [
            *(
                check.working.eq(working_on(check.page))
                for check in (self.check_victim, self.check_orphan, self.check_scrub)
            ),
            self.idle.eq(busy == 0),
        ]
        for p in range(len(POOLS)):
            m.d.sync += self.under_way.count[p].eq(
                self.under_way.count[p] + (claimed & (r.pool == p)) - (freed & (gone.pool == p))
            )
        s.where, s.busy, s.at, s.claimed, s.freed = where, busy, at, claimed, freed
        s.working_on = working_on

    def _tables(self, m: Module, s: SimpleNamespace) -> None:
        """What is known of each eviction: three writers, a memory for each."""
        c, layouts = self.config, self.layouts
        where, r, claimed, at, token, slots = s.where, s.r, s.claimed, s.at, s.token, s.slots
        faults = []

        begun = data.StructLayout({"where": where, "pool": POOL_BITS})
        beginning = Signal(begun)
        m.d.comb += [
            beginning.where.squeue.eq(r.op.squeue),
            beginning.where.page.eq(r.op.page),
            beginning.pool.eq(r.pool),
        ]
        read_begun = self._table(m, faults, "begun", begun, claimed, at, beginning)
        found = data.StructLayout({"frame": c.frame_bits, "dirty": 1})
        finding = Signal(found)
        m.d.comb += [finding.frame.eq(self.i_claim.p.frame), finding.dirty.eq(self.i_claim.p.dirty)]
        claim, claim_slot = self.i_claim, Signal(token)
        m.d.comb += claim_slot.eq(claim.p.slot)
        read_found = self._table(m, faults, "found", found, claim.valid, claim_slot, finding)
        read_line_mask = self._table(
            m, faults, "line_masks", layouts.line_mask, claim.valid, claim_slot, claim.p.line_mask
        )
        # Frames are in registers beside the table: an error is compared with all of them.
        spoilt = Signal(c.write_backs)
        for k in slots:
            frame = Signal(c.frame_bits, name=f"frame{k}")
            with m.If(self.i_claim.valid & (claim_slot == k)):
                m.d.sync += [frame.eq(self.i_claim.p.frame), spoilt[k].eq(0)]
            with m.Elif(self.i_error.valid & (frame == self.i_error.p)):
                m.d.sync += spoilt[k].eq(1)
        m.d.sync += Assert(
            ~s.started | ~(claim.valid & self.i_error.valid), "an error comes with a claim"
        )
        judged, fails = read_found(self.i_flushed.p, self.i_flushed.valid), Signal()
        s.spoilt, s.is_held = spoilt.bit_select(self.i_flushed.p, 1), Const(0)
        if c.coherence:
            s.is_held = self.i_held
        m.d.comb += fails.eq(s.spoilt | s.is_held if c.coherence else s.spoilt)
        s.faults, s.read_begun, s.claim_slot = faults, read_begun, claim_slot
        s.read_found, s.read_line_mask, s.judged = read_found, read_line_mask, judged
        s.fails = fails

    def _fifos(self, m: Module, s: SimpleNamespace) -> None:
        """The two FIFOs: write-backs to the flash, and RELEASEs to M0."""
        c = self.config
        token, judged, fails, read_begun = s.token, s.judged, s.fails, s.read_begun
        read_found, read_line_mask, faults = s.read_found, s.read_line_mask, s.faults
        m.submodules.writes = writes = self._fifo(token)
        leaving = data.StructLayout(
            {"slot": token, "failed": 1} | ({"held": 1} if c.coherence else {})
        )
        m.submodules.releases = releases = self._fifo(leaving.size)
        clean, back = Signal(), self.i_written_back
        going, release = data.View(leaving, releases.w_data), data.View(leaving, releases.r_data)
        m.d.comb += [
            writes.w_data.eq(self.i_flushed.p),
            writes.w_en.eq(self.i_flushed.valid & judged.dirty & ~fails),
            clean.eq(self.i_flushed.valid & (~judged.dirty | fails)),
            back.ready.eq(~clean),
            going.slot.eq(self.i_flushed.p),
            going.failed.eq(fails),
            releases.w_en.eq(clean | back.valid),
        ]
        if c.coherence:
            m.d.comb += going.held.eq(clean & s.is_held)
        with m.If(~clean):
            m.d.comb += [going.slot.eq(back.payload.token), going.failed.eq(back.payload.failed)]

        writing = self.o_write_back.valid & self.o_write_back.ready
        wanted, wanted_frame, wanted_line_mask = (
            read(writes.r_data, writing) for read in (read_begun, read_found, read_line_mask)
        )
        m.d.comb += [
            self.o_write_back.valid.eq(writes.r_rdy),
            writes.r_en.eq(self.o_write_back.ready),
            self.o_write_back.payload.token.eq(writes.r_data),
            self.o_write_back.payload.squeue.eq(wanted.where.squeue),
            self.o_write_back.payload.page.eq(wanted.where.page),
            self.o_write_back.payload.frame.eq(wanted_frame.frame),
            self.o_write_back.payload.line_mask.eq(wanted_line_mask),
        ]
        leaves = self.o_op.valid & self.o_op.ready
        ending, ending_frame = (read(release.slot, leaves) for read in (read_begun, read_found))
        op = self.o_op.payload
        m.d.comb += [
            self.o_op.valid.eq(releases.r_rdy),
            releases.r_en.eq(self.o_op.ready),
            op.kind.eq(Op.RELEASE),
            op.slot.eq(release.slot),
            op.failed.eq(release.failed),
            op.pool.eq(ending.pool),
            op.squeue.eq(ending.where.squeue),
            op.page.eq(ending.where.page),
            op.frame.eq(ending_frame.frame),
            op.written.eq(
                (ending_frame.dirty | release.failed) & ~release.held
                if c.coherence
                else ending_frame.dirty
            ),
            # M3 keeps the session's step in the word of an evicted page.
            # Computed beside the op, not from it: a payload that depends on itself is a
            # combinational loop where it is taken as one vector.
            op.session.eq(
                sum(
                    (ending.where.squeue >= k * c.queues for k in range(1, c.sessions)),
                    start=Const(0),
                )
            ),
        ]

        gather(m, self.fault, writes.fault, releases.fault, *faults)
        s.writes, s.releases, s.back = writes, releases, back

    def _activity(self, m: Module, s: SimpleNamespace) -> None:
        """`quiet`: evictions that do not wait for the flash; and what holds of all of them."""
        c = self.config
        claimed, back, freed, started, busy = s.claimed, s.back, s.freed, s.started, s.busy
        at, working_on, r, writes = s.at, s.working_on, s.r, s.writes
        releases = s.releases
        active = Signal(range(c.write_backs + 1))
        # Critical path: registered here, between the flash's answers and the count.
        more, fewer = Signal(2), Signal(2)
        m.d.sync += [
            more.eq(Cat(claimed, back.valid & back.ready)),
            fewer.eq(Cat(self.o_write_back.valid & self.o_write_back.ready, freed)),
            active.eq(active + more[0] + more[1] - fewer[0] - fewer[1]),
        ]
        m.d.comb += self.quiet.eq((active == 0) & (more == 0) & ~back.valid)

        self._in_turn(m, s)
        m.d.sync += [
            Assert(
                ~started | ~claimed | ~busy.bit_select(at, 1), "a CLAIM into a slot that is taken"
            ),
            Assert(
                ~started | ~claimed | ~working_on(r.op),
                "two evictions of one page",
            ),
            Assert(~started | ((writes.w_rdy | ~writes.w_en) & (releases.w_rdy | ~releases.w_en))),
        ]

    def _in_turn(self, m: Module, s: SimpleNamespace) -> None:
        """Others tell of an eviction once each, and in its order."""
        n, write, op, r = self.config.write_backs, self.o_write_back, self.o_op, s.r
        claimed, found, writing, leaving = (
            Signal(n, name=f"{name}_ones") for name in ("claimed", "found", "writing", "leaving")
        )
        sent, left = write.valid & write.ready, op.valid & op.ready
        decided = self.i_result.valid & (r.op.kind == Op.RELEASE)
        lost, was_lost = Signal(), Signal()  # what is beyond repair may name any slot
        m.d.sync += was_lost.eq(lost)
        m.d.comb += lost.eq(was_lost | self.fault.fatal)
        for comes, slot, ones, what in (
            (self.i_claim.valid, s.claim_slot, claimed, "a frame is found for no CLAIM"),
            (self.i_flushed.valid, self.i_flushed.p, found, "a flush that no eviction asked for"),
            (s.back.valid & s.back.ready, s.back.p.token, writing, "a page is written unasked"),
            (decided, s.at, leaving, "a RELEASE of nobody's"),
        ):
            one = ones.bit_select(slot, 1)
            m.d.sync += Assert(~s.started | lost | ~comes | one, what)
            with m.If(comes):
                m.d.sync += one.eq(0)
        for comes, slot, ones in (
            (s.claimed, s.at, claimed),
            # Of a CLAIM, in the first cycle too.
            (self.i_claim.valid & claimed.bit_select(s.claim_slot, 1), s.claim_slot, found),
            (sent, write.p.token, writing),
            (left, op.p.slot, leaving),
        ):
            with m.If(comes):
                m.d.sync += ones.bit_select(slot, 1).eq(1)

    def _fifo(self, shape) -> ProtectedFifo:
        c = self.config
        return ProtectedFifo(shape=shape, depth=c.write_backs, protect=c.protect, buffered=False)

    def _table(self, m, faults, name, layout, writes, address, value):
        """A memory, written with `writes`, and its reader: the row at an address; its fault, where
        the row is used, is one of `faults`."""
        word = self.words[name] = CheckedWord(layout, protect=self.config.protect)
        m.submodules[name] = rows = memory.Memory(
            shape=word.code_bits, depth=self.config.write_backs, init=()
        )
        port = rows.write_port()
        m.d.comb += [
            port.en.eq(writes),
            port.addr.eq(address),
            port.data.eq(word.encode(m, value)),
        ]

        def read(address, used):
            port, fault = rows.read_port(domain="comb"), Signal(Fault)
            row, single, double = word.decode(m, port.data)
            m.d.comb += [
                port.addr.eq(address),
                fault.corrected.eq(used & single.any()),
                fault.uncorrected.eq(used & double.any()),
            ]
            faults.append(fault)
            return data.View(layout, row)

        return read
