# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which miss entry gets the next free frame of its pool (docs/design.md §5). One GRANT in 5 cycles;
an entry that is alone gets its own after 5 cycles when its pool has a frame."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import MissKind, Op, Outcome

from ..layouts import POOL_BITS, TIME_BITS, Layouts, code_shape
from ..lib.protected import BlockFault, ProtectedFifo, ProtectedMemory, gather, used
from ..tracker.signatures import count_bits

__all__ = ["MissGrants"]


class MissGrants(wiring.Component):
    """Asks for frames, oldest miss first within a pool, pools in turn: one GRANT at a time, and
    only for a pool that has a frame (spec §4, docs/design.md §5).

    Latency: `LATENCY` cycles from `i` to `o_op` for an entry that is alone and whose pool has a
    frame, and up to `TURN` − 1 more until it is the pool's turn. A GRANT each `INTERVAL` cycles
    when `i_outcome` follows the handshake of `o_op` at once; M3 decides later, and that comes on
    top.

    An entry that heads its pool's line when `starve_limit` cycles have passed since its miss, and
    for which there is still no frame, gets a GRANT with `failed`: M3 then only stops counting it as
    waiting. Those behind it are older than the limit by then or soon, so a dead pool empties
    itself. Errors: more entries than miss ids (asserted).

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, always-ready stream of {miss, pool, session, squeue, page, kind}
        A new miss that needs a frame; each miss id at most once until its GRANT is done.
    i_outcome : in, always-ready stream of Outcome
        M3's decision about the GRANT that is under way.
    pool_free : in, four counts
        Free frames of each pool.
    now, starve_limit : in
        The time base; cycles after which an entry is given up.
    o_op : out, stream of op
        GRANT.
    quiet : out
        No entry waits, or those that do wait for time to pass, or for a frame, of which it hears a
        cycle after.
    starving : out
        An entry waits, and none that does can have a frame.
    fault : out, BlockFault
        Of an entry's row and of the lines of waiting entries; none can be rebuilt.
    """

    LATENCY = 5
    TURN = len(POOLS)
    INTERVAL = 5

    def __init__(self, *, config: Config):
        c = self.config = config
        layouts = Layouts(config)
        self.waiting = data.StructLayout(
            {
                "miss": c.miss_bits,
                "pool": POOL_BITS,
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "kind": code_shape(MissKind),
            }
        )
        super().__init__(
            {
                "i": In(stream.Signature(self.waiting, always_ready=True)),
                "i_outcome": In(stream.Signature(code_shape(Outcome), always_ready=True)),
                "pool_free": In(data.ArrayLayout(count_bits(c), len(POOLS))),
                "now": In(TIME_BITS),
                "starve_limit": In(TIME_BITS),
                "o_op": Out(stream.Signature(layouts.op)),
                "quiet": Out(1),
                "starving": Out(1),
                "fault": Out(BlockFault),
            }
        )
        # State that proofs look at (kelp_verif.formal.grant_specs): of the cycle before, the pool's
        # first entry, and which pools had a frame.
        self.head, self.had_frame = Signal(c.miss_bits), Signal(len(POOLS))

    def elaborate(self, platform):
        m = Module()
        c = self.config
        lines = []
        for p, name in enumerate(POOLS):
            m.submodules[f"line_{name}"] = line = ProtectedFifo(
                shape=c.miss_bits, depth=c.misses + 1, protect=c.protect
            )
            lines.append(line)
            m.d.comb += [
                line.w_data.eq(self.i.p.miss),
                line.w_en.eq(self.i.valid & (self.i.p.pool == p)),
            ]

        row = data.StructLayout({"waiting": self.waiting, "since": TIME_BITS})
        m.submodules.rows = rows = ProtectedMemory(depth=c.misses, shape=row, protect=c.protect)
        m.d.comb += [
            rows.write_en.eq(self.i.valid),
            rows.write_address.eq(self.i.p.miss),
            rows.write_data.waiting.eq(self.i.p),
            rows.write_data.since.eq(self.now),
        ]

        pool = Signal(POOL_BITS)
        head, had_frame = self.head, self.had_frame
        has_frame, in_line = Signal(len(POOLS)), Signal(len(POOLS))
        m.d.comb += [
            bit.eq(count != 0) for bit, count in zip(has_frame, self.pool_free, strict=True)
        ]
        m.d.comb += [bit.eq(line.r_level != 0) for bit, line in zip(in_line, lines, strict=True)]
        m.d.comb += [
            rows.read_en.eq(1),
            rows.read_address.eq(head),
        ]

        # Judged is by the frames of the cycle before; M3 has the last word.
        entry, op, pop, looking = rows.read_data, self.o_op.payload, Signal(), Signal()
        m.d.comb += [
            self.quiet.eq(looking & ((in_line & had_frame) == 0)),
            self.starving.eq(looking & in_line.any() & ((in_line & has_frame) == 0)),
        ]
        m.d.comb += [line.r_en.eq(pop & (pool == p)) for p, line in enumerate(lines)]
        m.d.sync += [head.eq(Array(line.r_data for line in lines)[pool]), had_frame.eq(has_frame)]
        grant, waited, judges = Signal(), Signal(TIME_BITS), Signal()
        m.d.comb += [grant.eq(had_frame.bit_select(pool, 1)), waited.eq(self.now - entry.since)]
        # Nothing but `valid` waits for the judgement.
        with m.If(~self.o_op.valid):
            m.d.sync += [
                op.eq(0),
                op.kind.eq(Op.GRANT),
                op.session.eq(entry.waiting.session),
                op.squeue.eq(entry.waiting.squeue),
                op.page.eq(entry.waiting.page),
                op.miss.eq(entry.waiting.miss),
                op.pool.eq(pool),
                op.miss_kind.eq(entry.waiting.kind),
                op.failed.eq(~grant),
            ]
        with m.FSM():
            with m.State("LOOK"):
                m.d.comb += looking.eq(1)
                with m.If(Array(line.r_rdy for line in lines)[pool]):
                    m.next = "READ"
                with m.Else():
                    m.d.sync += pool.eq(pool + 1)
            with m.State("READ"):
                m.d.comb += looking.eq(1)
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.comb += [looking.eq(1), judges.eq(1)]
                with m.If(grant | (waited >= self.starve_limit)):
                    m.d.sync += self.o_op.valid.eq(1)
                    m.next = "SEND"
                with m.Else():
                    m.d.sync += pool.eq(pool + 1)
                    m.next = "LOOK"
            with m.State("SEND"):
                with m.If(self.o_op.ready):
                    m.d.sync += self.o_op.valid.eq(0)
                    m.next = "DECIDED"
            with m.State("DECIDED"):
                with m.If(self.i_outcome.valid):
                    m.d.sync += pool.eq(pool + 1)
                    m.d.comb += pop.eq(self.i_outcome.p == Outcome.DONE)
                    m.next = "LOOK"

        gather(m, self.fault, *(line.fault for line in lines), used(rows.fault, judges))

        lost = Signal()
        m.d.sync += lost.eq(
            self.i.valid & (Array(line.w_rdy for line in lines)[self.i.p.pool] == 0)
        )
        m.d.comb += Assert(~lost)
        return m
