# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Evictions under way: from a CLAIM that was granted to the decision on its RELEASE (docs/design.md §6)."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Op, Outcome

from .eviction_layouts import EvictionLayouts
from .layouts import POOL_BITS
from .pipeline import WRITE_BACKS

__all__ = ["EvictionSlots"]


class _State(enum.Enum, shape=3):
    FREE = 0
    CLAIMED = 1      # the frame stage will say whether the frame is dirty
    FLUSHING = 2     # and the data path when memory holds all of it
    WRITE = 3        # wants its cold write
    WRITING = 4
    RELEASE = 5      # wants its RELEASE
    RELEASING = 6
    COOLING = 7      # the pool's free count is on its way


class EvictionSlots(wiring.Component):
    """Four evictions side by side: claimed → flushed → (dirty) written to flash → RELEASE.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result, i_result_valid : in, result
        A CLAIM that is DONE begins the eviction of slot `op.slot`, the result of its RELEASE ends it.
    i_claim, i_claim_valid : in, claim
    i_flushed, i_flushed_valid : in, token
        Only those of evictions.
    o_write_back : out, stream; i_written_back : in, stream, always ready
    o_op : out, stream of op (RELEASE)
    free_slot : out; has_free : out
        Where the next CLAIM goes.
    under_way : out, per pool
        Evictions whose frame the pool does not count as free yet.
    squeue, page : in; working : out; other_squeue, other_page : in; other_working : out
        Whether an eviction works on that page; asked by two.
    idle : out; quiet : out
        Quiet when all that is under way waits for the flash.
    """

    COOL = 4

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__({
            "i_result": In(layouts.result), "i_result_valid": In(1), "i_claim": In(layouts.claim), "i_claim_valid": In(1),
            "i_flushed": In(range(WRITE_BACKS)), "i_flushed_valid": In(1),
            "o_write_back": Out(stream.Signature(layouts.write_back)), "i_written_back": In(stream.Signature(layouts.written_back)),
            "o_op": Out(stream.Signature(layouts.op)),
            "free_slot": Out(range(WRITE_BACKS)), "has_free": Out(1),
            "under_way": Out(data.ArrayLayout(range(WRITE_BACKS + 1), len(POOLS))),
            "squeue": In(config.squeue_bits), "page": In(config.page_bits), "working": Out(1),
            "other_squeue": In(config.squeue_bits), "other_page": In(config.page_bits), "other_working": Out(1), "idle": Out(1), "quiet": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        c, layouts = self.config, self.layouts
        slots = range(WRITE_BACKS)
        state = [Signal(_State, name=f"state{k}") for k in slots]
        squeue = Array([Signal(c.squeue_bits, name=f"squeue{k}") for k in slots])
        page = Array([Signal(c.page_bits, name=f"page{k}") for k in slots])
        frame = Array([Signal(c.frame_bits, name=f"frame{k}") for k in slots])
        pool = Array([Signal(POOL_BITS, name=f"pool{k}") for k in slots])
        dirty, flushed, failed = Signal(WRITE_BACKS), Signal(WRITE_BACKS), Signal(WRITE_BACKS)
        cooling = [Signal(range(self.COOL + 1), name=f"cooling{k}") for k in slots]

        m.submodules.sectors = sectors = memory.Memory(shape=layouts.sector, depth=WRITE_BACKS, init=())
        store, load = sectors.write_port(), sectors.read_port(domain="comb")
        m.d.comb += [store.en.eq(self.i_claim_valid), store.addr.eq(self.i_claim.slot), store.data.eq(self.i_claim.sector)]

        started = Signal()   # before the first clock edge inputs mean nothing
        m.d.sync += started.eq(1)
        r = self.i_result
        for k in slots:
            mine = self.i_result_valid & (r.op.slot == k)
            with m.Switch(state[k]):
                with m.Case(_State.FREE):
                    with m.If(mine & (r.op.kind == Op.CLAIM) & (r.outcome == Outcome.DONE)):
                        m.d.sync += [
                            state[k].eq(_State.CLAIMED), squeue[k].eq(r.op.squeue), page[k].eq(r.op.page), pool[k].eq(r.pool),
                            flushed[k].eq(0), failed[k].eq(0),
                        ]
                with m.Case(_State.CLAIMED):
                    with m.If(self.i_claim_valid & (self.i_claim.slot == k)):
                        m.d.sync += [state[k].eq(_State.FLUSHING), frame[k].eq(self.i_claim.frame), dirty[k].eq(self.i_claim.dirty)]
                with m.Case(_State.FLUSHING):
                    with m.If(flushed[k]):
                        m.d.sync += state[k].eq(Mux(dirty[k], _State.WRITE, _State.RELEASE))
                with m.Case(_State.WRITE):
                    with m.If(self.o_write_back.valid & self.o_write_back.ready & (self.o_write_back.payload.token == k)):
                        m.d.sync += state[k].eq(_State.WRITING)
                with m.Case(_State.WRITING):
                    with m.If(self.i_written_back.valid & (self.i_written_back.payload.token == k)):
                        m.d.sync += [state[k].eq(_State.RELEASE), failed[k].eq(self.i_written_back.payload.failed)]
                with m.Case(_State.RELEASE):
                    with m.If(self.o_op.valid & self.o_op.ready & (self.o_op.payload.slot == k)):
                        m.d.sync += state[k].eq(_State.RELEASING)
                with m.Case(_State.RELEASING):
                    with m.If(mine & (r.op.kind == Op.RELEASE)):
                        m.d.sync += [state[k].eq(_State.COOLING), cooling[k].eq(self.COOL)]
                with m.Case(_State.COOLING):
                    m.d.sync += cooling[k].eq(cooling[k] - 1)
                    with m.If(cooling[k] == 0):
                        m.d.sync += state[k].eq(_State.FREE)
            with m.If(self.i_flushed_valid & (self.i_flushed == k)):
                expected = (state[k] == _State.CLAIMED) | (state[k] == _State.FLUSHING)
                m.d.sync += [flushed[k].eq(1), Assert(~started | expected, "a flush that no eviction asked for")]

        def offer(port, wanted_state, fields):
            """One slot in `wanted_state` at a time on a stream, its choice held until it is taken."""
            chosen, wants = Signal(range(WRITE_BACKS)), Signal(WRITE_BACKS)
            m.d.comb += wants.eq(Cat(state[k] == wanted_state for k in slots))
            with m.If(~port.valid | port.ready):
                m.d.sync += port.valid.eq(0)
            with m.If(~port.valid & wants.any()):
                m.d.sync += port.valid.eq(1)
                for k in reversed(slots):
                    with m.If(wants[k]):
                        m.d.sync += chosen.eq(k)
            m.d.comb += [port.payload[name].eq(value[chosen]) for name, value in fields.items()]
            return chosen

        token = offer(self.o_write_back, _State.WRITE, {"squeue": squeue, "page": page, "frame": frame})
        m.d.comb += [load.addr.eq(token), self.o_write_back.payload.sector.eq(load.data), self.o_write_back.payload.token.eq(token)]
        released = {"squeue": squeue, "page": page, "frame": frame, "failed": Array(failed), "written": Array(dirty), "pool": pool}
        slot = offer(self.o_op, _State.RELEASE, released)
        # M3 keeps the session's step in the word of an evicted page.
        # Its session is worked out beside the op, not from it: a payload that depends on itself is a loop to whoever takes it as one vector.
        releasing = Signal(c.squeue_bits)
        m.d.comb += [releasing.eq(squeue[slot]), self.o_op.payload.session.eq(sum((releasing >= k * c.queues for k in range(1, c.sessions)), start=Const(0)))]
        m.d.comb += [self.o_op.payload.kind.eq(Op.RELEASE), self.o_op.payload.slot.eq(slot), self.i_written_back.ready.eq(1)]

        free = Signal(WRITE_BACKS)
        m.d.comb += [
            free.eq(Cat(s == _State.FREE for s in state)), self.has_free.eq(free.any()), self.idle.eq(free.all()),
            self.quiet.eq(Cat((s == _State.FREE) | (s == _State.WRITING) for s in state).all() & ~self.i_written_back.valid),
            self.working.eq(Cat(~free[k] & (squeue[k] == self.squeue) & (page[k] == self.page) for k in slots).any()),
            self.other_working.eq(Cat(~free[k] & (squeue[k] == self.other_squeue) & (page[k] == self.other_page) for k in slots).any()),
        ]
        for k in reversed(slots):
            with m.If(free[k]):
                m.d.comb += self.free_slot.eq(k)
        for p in range(len(POOLS)):
            counted = [(~free[k] & (pool[k] == p)) for k in slots]
            m.d.comb += self.under_way[p].eq(counted[0] + counted[1] + counted[2] + counted[3])
        m.d.sync += [
            *(Assert(~started | ~(self.i_claim_valid & (self.i_claim.slot == k)) | (state[k] == _State.CLAIMED)) for k in slots),
            *(Assert(~started | ~(self.i_written_back.valid & (self.i_written_back.payload.token == k)) | (state[k] == _State.WRITING)) for k in slots),
            *(Assert(free[j] | free[k] | (squeue[j] != squeue[k]) | (page[j] != page[k]), "two evictions of one page") for j in slots for k in range(j)),
        ]
        return m
