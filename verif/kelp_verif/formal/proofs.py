# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The list of proofs, and how one of them is done: the contract holds, its covers are reached, and
each planted bug breaks it.

docs/formal.md says in words what every row means. `make prove` runs all of them, `make test` those
that are `quick`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered

from kelp_hw.control.register_file import RegisterFile
from kelp_hw.datapath.write_out import WriteOut
from kelp_hw.datapath.write_store import WriteStore
from kelp_hw.endpoint import DataFifo
from kelp_hw.eviction.candidates import CandidateList
from kelp_hw.eviction.closer import Closer
from kelp_hw.eviction.evictor import Evictor
from kelp_hw.eviction.excess_tree import ExcessTree
from kelp_hw.eviction.orphans import Orphans
from kelp_hw.eviction.slots import EvictionSlots
from kelp_hw.flit.credits import CreditReceiver
from kelp_hw.host.egress import Egress
from kelp_hw.host.hints import HintAbsorber
from kelp_hw.lib.bypass_fifo import BypassFifo
from kelp_hw.lib.free_list import FreeList
from kelp_hw.lib.order_fifo import OrderFifo
from kelp_hw.lib.request_fifo import RequestFifo
from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_hw.miss.grants import MissGrants
from kelp_hw.miss.miss_buffer import MissBuffer
from kelp_hw.miss.park_lists import ParkLists
from kelp_hw.prefetch.fifo import PrefetchFifo
from kelp_hw.prefetch.throttle import Throttle
from kelp_hw.scores.ema import EmaStep
from kelp_hw.tracker.arbiter import Arbiter
from kelp_hw.tracker.decide import Decide
from kelp_hw.tracker.foresight import Foresight
from kelp_hw.tracker.miss_ids import MissIds
from kelp_hw.tracker.pools import FreeFrames, Pools
from kelp_hw.tracker.sessions import SessionCheck

from .arbiter_spec import ArbiterContract
from .arithmetic_specs import EmaStepContract, ThrottleContract
from .cold_spec import ColdSchedulerContract
from .credit_spec import CreditsContract
from .end_specs import CloserEnds, OrphansEnds
from .evictor_spec import EvictorEnds
from .fifo_specs import (
    BypassFifoContract,
    DataFifoContract,
    FifoContract,
    OrderFifoContract,
    RequestFifoContract,
)
from .grant_specs import MissGrantsContract, MissIdsContract
from .isolation_specs import HintOwner, HotLaneOwner, RegisterOwner, RequestOwner
from .miss_buffer_spec import MissBufferContract
from .miss_specs import ParkListsContract
from .order_specs import CandidatesContract, ExcessTreeContract
from .owner_spec import FrameOwnerContract
from .pool_specs import FreeFramesContract, FreeListContract, PoolsContract, WriteSlotsContract
from .prefetch_spec import PrefetchFifoContract
from .prove import ProofResult, Solver, mutant, prove
from .slots_spec import EvictionSlotsContract
from .turn_specs import EgressContract, WriteOutContract

__all__ = ["PROOFS", "Proof", "table"]

#: Memories as registers, for they are small, and the solver is much slower on arrays.
REGISTERS = "smtbmc --nomem --stbv z3"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One row: `spec(block)` is the contract around `block`; `bugs` are (old, new) pieces of the
    block's source."""

    name: str
    block: type
    spec: Callable
    #: "prove": by induction, for all time; "bmc": for `depth` cycles after reset
    mode: str = "prove"
    depth: int = 2
    cover: int  #: cycles within which every cover is reached
    bugs: tuple[tuple[str, str], ...]
    #: likewise, pieces whose replacement withdraws or changes an offer: the stream rule
    #: (kelp_hw.export.stream_rule), which prove() states on every stream port, must fail
    withdrawals: tuple[tuple[str, str], ...] = ()
    bug_depth: int = 12  #: cycles within which every bug shows,
    bug_skip: int = 0  #: and within which none does
    bug_spec: Callable | None = None  #: where a bug shows sooner than in `spec`
    quick: bool = True  #: runs in `make test` too
    engine: str = REGISTERS
    #: by the clock, so it allows for a machine that has other things to do; a proof takes 200 s of
    #: processor time at most, where its row says nothing else
    timeout_s: int = 900

    def holds(self) -> ProofResult:
        return self._run(self.spec(self.block), self.mode, self.depth, "")

    def covers(self) -> ProofResult:
        return self._run(self.spec(self.block), "cover", self.cover, "")

    def catches(self, old: str, new: str, *, stream_rule: bool = False) -> ProofResult:
        """What the contract, or the stream rule alone, says of a planted bug."""
        spec = (self.bug_spec or self.spec)(mutant(self.block, old, new))
        return self._run(spec, "bmc", self.bug_depth, "-planted", self.bug_skip, stream_rule)

    def _run(self, spec, mode, depth, suffix, skip=0, stream_rule=False):
        return prove(
            spec,
            depth=depth,
            mode=mode,
            name=f"{self.name}{suffix}",
            solver=Solver(engine=self.engine, timeout_s=self.timeout_s, stream_rule=stream_rule),
            skip=skip,
        )


PROOFS = (
    # Queues.
    Proof(
        name="fifo",
        block=SyncFIFO,
        spec=FifoContract,
        cover=10,
        quick=False,
        bugs=(
            (
                "produce.eq(_incr(produce, self.depth))",
                "produce.eq(_incr(produce, self.depth - 1))",
            ),
            ("with m.If(do_write & ~do_read):", "with m.If(do_write):"),
        ),
    ),
    Proof(
        name="fifo_buffered",
        block=SyncFIFOBuffered,
        spec=FifoContract,
        cover=10,
        quick=False,
        bugs=(("inner_level != inner_depth", "1"), ("~self.r_rdy | self.r_en", "1")),
    ),
    Proof(
        name="order_fifo",
        block=OrderFifo,
        spec=OrderFifoContract,
        cover=10,
        bugs=(
            # what came last is not there yet
            ("Mux(ahead, rows.read_data, last)", "rows.read_data"),
            ("waits & (~ahead | moves)", "waits & moves"),
            ("Mux(moves, ahead & waits, ahead | waits)", "waits"),
        ),
        withdrawals=(("moves.eq(~self.o.valid | self.o.ready)", "moves.eq(1)"),),
    ),
    Proof(
        name="request_fifo",
        block=RequestFifo,
        spec=RequestFifoContract,
        cover=10,
        bugs=(
            ("write.en.eq(self.level != self.depth)", "write.en.eq(1)"),
            ("with m.If(takes != self.i.valid):", "with m.If(self.i.valid):"),
        ),
        withdrawals=(("takes.eq(self.o.valid & self.o.ready)", "takes.eq(self.o.valid)"),),
    ),
    Proof(
        name="data_fifo",
        block=DataFifo,
        quick=False,  # half a minute
        spec=DataFifoContract,
        cover=30,
        bug_depth=20,
        bugs=(("self.DEPTH - RESERVE", "self.DEPTH - RESERVE + 1"),),
        withdrawals=(
            (
                "connect(m, fifo.o, flipped(self.o))",
                "m.d.comb += [self.o.valid.eq(fifo.o.valid & (fifo.level != 1)), "
                + "self.o.p.eq(fifo.o.p), fifo.o.ready.eq(self.o.ready)]",
            ),
        ),
    ),
    Proof(
        name="bypass_fifo",
        block=BypassFifo,
        spec=BypassFifoContract,
        cover=10,
        bug_depth=10,
        bugs=(
            # what went straight on waits as well
            ("self.i.valid & (waits | ~self.o.ready)", "self.i.valid"),
            # overtakes what waits
            ("self.i.valid & (waits | ~self.o.ready)", "self.i.valid & ~self.o.ready"),
            ("takes.eq(self.row_valid & self.o.ready)", "takes.eq(self.o.valid & self.o.ready)"),
        ),
        withdrawals=(("Mux(waits, self.row_valid, self.i.valid)", "self.i.valid"),),
    ),
    Proof(
        name="bypass_fifo_registered",
        block=BypassFifo,
        spec=partial(BypassFifoContract, registered=True),
        cover=14,
        bug_depth=12,
        bugs=(
            # the row that has left leaves again
            ("Mux(waits, ~takes, keeps)", "Mux(waits, 1, keeps)"),
        ),
        withdrawals=(
            # an offer that bypasses the rows is withdrawn for a cycle, or another follows it
            ("Mux(waits, ~takes, keeps)", "waits & ~takes"),
            ("Mux(waits, oldest, item)", "oldest"),
        ),
    ),
    Proof(
        name="prefetch_fifo",
        block=PrefetchFifo,
        spec=PrefetchFifoContract,
        cover=10,
        bug_depth=8,
        engine="smtbmc z3",
        quick=False,
        bugs=(
            # a page that leaves comes in again
            ("Mux(leave, earlier[1:], earlier[:n])", "earlier[:n]"),
            # last come, first served
            ("return a.distance > b.distance", "return a.distance >= b.distance"),
            # moves past the twin that it replaces
            ("push = insert & ~earlier_here[k] & below", "push = insert & below"),
            # a drop is not told
            ("(on_o | any_twin | full)", "(on_o | any_twin)"),
            # a cancelled one leaves
            ("self.o.valid.eq(leave & ~dead[0])", "self.o.valid.eq(leave)"),
        ),
        withdrawals=(("with m.If(o_free):", "with m.If(1):"),),
    ),
    # Arbiters.
    Proof(
        name="arbiter",
        block=Arbiter,
        spec=ArbiterContract,
        cover=30,
        bug_depth=30,
        bugs=(
            ("Cat(ahead.data, ", "Cat(1, "),
            ("claim - self.PATIENCE", "claim - self.PATIENCE - 1"),
            ("any_able & (claim == self.PATIENCE)", "0"),
            ("able & ~Cat(here[:i]).any()", "able"),
            # hints without pause keep evictions waiting
            ("~(hinted & here[evict])", "1"),
            # control ops without pause keep evictions waiting
            ("~(controlled & (here[hint] | here[evict]))", "1"),
            ("~(hot_able & pick_frame)", "1"),
            # an op goes that has gone
            ("Mux(background, if_goes, if_stays)", "if_stays"),
        ),
    ),
    Proof(
        name="egress",
        block=Egress,
        spec=EgressContract,
        cover=8,
        bug_depth=8,
        bug_skip=2,
        quick=False,
        bugs=(
            # a channel that stands still costs a turn
            (
                "self.i_window.valid & Mux(self.i_window.p.write, ndr_free, drs_free)",
                "self.i_window.valid",
            ),
            ("drs_free & ~pick_side_drs)", "drs_free)"),
        ),
        withdrawals=(
            ("with m.If(drs_free):", "with m.If(1):"),
            ("with m.If(ndr_free):", "with m.If(1):"),
        ),
    ),
    Proof(
        name="write_out",
        block=WriteOut,
        spec=WriteOutContract,
        cover=24,
        bug_depth=20,
        engine="smtbmc z3",
        quick=False,
        bugs=(
            ("lines.turn.eq(space & ~chosen)", "lines.turn.eq(space & lines.due.valid)"),
            ("scales_next.eq(~chosen)", "scales_next.eq(1)"),
        ),
        withdrawals=(
            ("self.aw.valid.eq(addresses.r_rdy)", "self.aw.valid.eq(addresses.r_rdy & ~self.read)"),
            ("self.w.valid.eq(data.r_rdy)", "self.w.valid.eq(data.r_rdy & ~self.read)"),
        ),
    ),
    # Free lists and pools.
    Proof(
        name="free_list",
        block=FreeList,
        spec=FreeListContract,
        cover=16,
        bugs=(
            ("returned.r_en.eq(take & ~fresh)", "returned.r_en.eq(take & ~fresh & ~self.i.valid)"),
            ("self.level + self.i.valid - take", "self.level - take"),
        ),
        withdrawals=(
            (
                "self.o.valid.eq(fresh | returned.r_rdy)",
                "self.o.valid.eq((fresh | returned.r_rdy) & ~self.i.valid)",
            ),
            (
                "Mux(fresh, never_used, returned.r_data)",
                "Mux(fresh & ~self.i.valid, never_used, returned.r_data)",
            ),
        ),
    ),
    Proof(
        name="flit_credits",
        block=CreditReceiver,
        spec=CreditsContract,
        cover=14,
        bugs=(
            # what was lost is not promised anew, or counts as if it had not been lost
            ("more.eq(missing + self.freed[n])", "more.eq(self.freed[n])"),
            ("received + missing + came", "received + came"),
            # a freed place is promised although the flit was refused
            ("came.eq(self.new[n] & self.takes.replicate(self.NEW_BITS))", "came.eq(self.new[n])"),
            ("missing > free", "missing >= free"),
        ),
    ),
    Proof(
        name="free_frames",
        block=FreeFrames,
        spec=FreeFramesContract,
        cover=16,
        bugs=(
            ("Mux(pop_freed, count == 1, count == 0)", "(count == 0)"),
            ("Mux(pop_freed, third, second)", "second"),
            ("self.pop & ~has_fresh", "self.pop"),
        ),
    ),
    Proof(
        name="pools",
        block=Pools,
        spec=PoolsContract,
        depth=3,
        cover=12,
        quick=False,
        bugs=(
            ("change.pop & here", "change.pop"),
            ("here & change.want", "here & change.pop"),
            ("Mux(up, more, less)", "stays"),
            # a prefetch takes what a limit that has just fallen leaves to nobody
            ("spare & free", "spare"),
        ),
    ),
    Proof(
        name="write_slots",
        block=WriteStore,
        spec=WriteSlotsContract,
        cover=20,
        quick=False,
        bugs=(
            ("(unused == 0) & offer.i.ready", "offer.i.ready"),
            ("held + taken - self.free.valid", "held + taken"),
        ),
        withdrawals=(
            (
                "offer.i.valid.eq((unused != 0) | free.r_rdy)",
                "offer.i.valid.eq(((unused != 0) | free.r_rdy) & ~self.free.valid)",
            ),
            (
                "connect(m, offer.o, flipped(self.o_slot))",
                "m.d.comb += [self.o_slot.valid.eq(offer.o.valid & ~self.free.valid), "
                + "self.o_slot.p.eq(offer.o.p), offer.o.ready.eq(self.o_slot.ready)]",
            ),
        ),
    ),
    Proof(
        name="frame_owner",
        block=Decide,
        spec=FrameOwnerContract,
        cover=9,
        bug_depth=9,
        engine="smtbmc --stbv z3",
        quick=False,
        bugs=(
            # a page touched since its CLAIM loses its frame
            ("is_op[Op.RELEASE] & writing_back", "is_op[Op.RELEASE] & ~cold"),
            # RECOVER takes a frame that is in use
            ("with m.Elif(k.here & (read.place == op.frame)):", "with m.Elif(0):"),
        ),
    ),
    # The miss table.
    Proof(
        name="miss_ids",
        block=MissIds,
        spec=MissIdsContract,
        cover=14,
        bugs=(
            ("is_unparked, one, none", "is_unparked, 1, none"),
            ("Mux(self.take, moves, stays)", "stays"),
            ("self.level != self.DEPTH", "1"),
        ),
    ),
    Proof(
        name="miss_grants",
        block=MissGrants,
        spec=MissGrantsContract,
        cover=28,
        bug_depth=10,
        bug_skip=6,
        quick=False,
        bugs=(
            ("pop.eq(self.i_outcome.p == Outcome.DONE)", "pop.eq(1)"),
            ("line.r_en.eq(pop & (pool == p))", "line.r_en.eq(pop)"),
        ),
        withdrawals=(("with m.If(self.o_op.ready):", "with m.If(1):"),),
    ),
    Proof(
        name="park_lists",
        block=ParkLists,
        spec=ParkListsContract,
        mode="bmc",
        depth=10,
        cover=10,
        bug_depth=10,
        quick=False,
        timeout_s=1800,
        bugs=(
            # a list's second life begins as its first
            (
                "head.write_en.eq(held_valid & held.create)",
                "head.write_en.eq(held_valid & held_first)",
            ),
        ),
        withdrawals=(
            (
                "open_ & (cursor != tail_seen.read_data)",
                "open_ & (cursor != tail_seen.read_data) & ~self.i.valid",
            ),
        ),
    ),
    Proof(
        name="miss_buffer",
        block=MissBuffer,
        spec=partial(MissBufferContract, prompt=True),
        mode="bmc",
        depth=15,
        cover=15,
        bug_depth=15,
        bug_skip=6,
        quick=False,
        timeout_s=1800,
        bugs=(
            # a failed fetch fills a page as if it had come
            ("arrival.failed.eq(~at_once & self.i_fetched.payload.failed)", "arrival.failed.eq(0)"),
            # what a page lost reads as zeros
            ("row.lost.eq(r.old.state == PageState.LOST)", "row.lost.eq(0)"),
        ),
    ),
    Proof(
        name="miss_buffer_two",
        block=MissBuffer,
        spec=partial(MissBufferContract, alive=2),
        mode="bmc",
        depth=11,
        cover=11,
        bug_depth=12,
        bug_skip=6,
        quick=False,
        timeout_s=1800,
        bugs=(
            # one entry's requests go to another's page
            ("rows.read_address.eq(done.miss)", "rows.read_address.eq(0)"),
        ),
        # Here M3 stalls; in the proof of one page it takes every op at once.
        withdrawals=(("~self.o_op.valid | self.o_op.ready", "self.o_op.valid | ~self.o_op.valid"),),
    ),
    Proof(
        name="cold_scheduler",
        block=ColdScheduler,
        spec=ColdSchedulerContract,
        mode="bmc",
        depth=16,
        cover=17,
        bug_depth=18,
        bug_skip=12,
        quick=False,
        timeout_s=1200,
        bugs=(
            (
                "self.o_fetched.payload.failed.eq(~turn.succeeded)",
                "self.o_fetched.payload.failed.eq(0)",
            ),
        ),
        withdrawals=(
            ("with m.If(~self.o_command.valid | self.o_command.ready):", "with m.If(1):"),
            ("with m.If(self.o_fetched.ready):", "with m.If(1):"),
        ),
    ),
    Proof(
        name="eviction_slots",
        block=EvictionSlots,
        spec=EvictionSlotsContract,
        mode="bmc",
        depth=12,
        cover=14,
        quick=False,
        bug_depth=12,
        bugs=(
            # a frame whose lines may be poisoned goes to flash
            (
                "writes.w_en.eq(self.i_flushed.valid & judged.dirty & ~fails)",
                "writes.w_en.eq(self.i_flushed.valid & judged.dirty)",
            ),
            # the answer of the tier is lost behind a clean flush
            ("back.ready.eq(~clean)", "back.ready.eq(1)"),
            # a slot is free before the pool's count has its frame
            ("with m.If(freed & (gone.slot == k)):", "with m.If(released & (at == k)):"),
            # it does not answer for its page
            ("busy[k] & (pages[k].squeue == page.squeue)", "(pages[k].squeue == page.squeue)"),
            # another's frame
            ("judged, fails = read_found(self.i_flushed.p,", "judged, fails = read_found(0,"),
        ),
    ),
    # Engines that walk.
    Proof(
        name="orphans",
        block=Orphans,
        spec=OrphansEnds,
        depth=1,
        cover=16,
        bug_depth=14,
        bug_skip=3,
        bugs=(
            # a search that asks the same frame again and again
            ("certain.eq(1), moved.eq(0)", "certain.eq(0), moved.eq(0)"),
            # takes a frame that a miss entry has
            ("with m.If(~pending.any()):", "with m.If(1):"),
            # or an eviction
            ("with m.If(~self.check.working):", "with m.If(1):"),
            # one that came back to its pool, and went to another miss entry, or to an eviction
            ("with m.If((given | claimed) & ", "with m.If(claimed & "),
            ("with m.If((given | claimed) & ", "with m.If(given & "),
        ),
        withdrawals=(
            (
                "self.o_free.valid.eq(self.i_flushed.valid)",
                "self.o_free.valid.eq(self.i_flushed.valid & ~self.event_taken)",
            ),
        ),
    ),
    Proof(
        name="closer",
        block=Closer,
        spec=CloserEnds,
        depth=1,
        cover=12,
        bugs=(
            # CLOSED before all frames are free
            ("with m.Elif(frames == 0):", "with m.Elif(1):"),
            # before all SCRUBs are answered
            ("with m.If(in_flight == 0):", "with m.If(1):"),
            # waits for nothing
            ("room.eq(load < self.IN_FLIGHT - 1)", "room.eq(load == self.IN_FLIGHT - 1)"),
            # a walk without an end
            ("with m.If(squeue == last_squeue):", "with m.If(squeue > last_squeue):"),
        ),
        withdrawals=(("self.o_op.valid.eq(offered | room)", "self.o_op.valid.eq(room)"),),
    ),
    Proof(
        name="evictor",
        block=Evictor,
        spec=EvictorEnds,
        depth=1,
        cover=18,
        bug_depth=30,
        quick=False,
        bugs=(
            # a look-up without an end
            ('m.next = "JUDGE"', 'm.next = "LOOK"'),
            # a wait without an end
            ('m.next = "ABSORB"', 'm.next = "SETTLE"'),
            # a queue valued anew gives a page
            ("with m.If(self._job == Job.REFRESH):", "with m.If(Const(0)):"),
        ),
    ),
    # Whose a session is.
    Proof(
        name="request_owner",
        block=SessionCheck,
        spec=RequestOwner,
        depth=1,
        cover=2,
        bug_depth=3,
        bugs=(
            ("with m.Elif(self.ld_id != s.ld_id):", "with m.Elif(self.ld_id > s.ld_id):"),
            ("with m.If(~s.open | s.closing):", "with m.If(~s.open):"),
        ),
    ),
    Proof(
        name="hot_lane_owner",
        block=Foresight,
        spec=HotLaneOwner,
        depth=1,
        cover=4,
        bug_depth=4,
        bugs=(
            ("(of.ld_id == mine.ld_id)", "(of.ld_id[:3] == mine.ld_id[:3])"),
            # a request that stays is no longer asked whose its session is
            (
                "Mux(self.moves, fresh[-1], good(self.request))",
                "self.moves & fresh[-1] | self.good",
            ),
        ),
    ),
    Proof(
        name="hint_owner",
        block=HintAbsorber,
        spec=HintOwner,
        depth=1,
        cover=10,
        bug_depth=10,
        quick=False,
        bugs=(
            (
                "(head.ld_id != session.ld_id) & (head.ld_id != 0)",
                "(head.ld_id > session.ld_id) & (head.ld_id != 0)",
            ),
            # what is left of a line when its session changes hands
            ("item.void.eq(void | ~line_live)", "item.void.eq(0)"),
        ),
        withdrawals=(
            (
                "(~out_op.valid | out_op.ready) & (~out_page.valid | out_page.ready)",
                "(~out_page.valid | out_page.ready)",
            ),
        ),
    ),
    Proof(
        name="register_owner",
        block=RegisterFile,
        spec=RegisterOwner,
        depth=1,
        cover=5,
        bug_depth=4,
        quick=False,
        bugs=(("control | (self.ld_id == self.owner[session])", "1"),),
    ),
    # What is best, and arithmetic.
    Proof(
        name="candidates",
        block=CandidateList,
        spec=CandidatesContract,
        cover=10,
        bugs=(
            ("key(self.i.p) < key(places[k])", "key(self.i.p) <= key(places[k])"),
            ("valid.eq(valid >> 1)", "valid.eq(valid)"),
        ),
    ),
    Proof(
        name="excess_tree",
        block=ExcessTree,
        spec=ExcessTreeContract,
        cover=70,
        bug_spec=partial(ExcessTreeContract, cleared=True),
        bug_depth=8,
        quick=False,
        bugs=(
            # a walk that ends below the root
            ("with m.If(node == 1):", "with m.If(node <= 3):"),
        ),
    ),
    Proof(
        name="throttle",
        block=Throttle,
        spec=ThrottleContract,
        cover=8,
        quick=False,
        bugs=(("position[s].eq(position[s] + 1)", "position[s].eq(position[s] + 2)"),),
    ),
    Proof(
        name="ema_step",
        block=EmaStep,
        spec=EmaStepContract,
        mode="bmc",
        depth=4,
        cover=5,
        bug_depth=4,
        quick=False,
        bugs=(
            ("Mux(self.a[8], 256, self.a)", "self.a"),
            ("(product + 128) >> 8", "(product + 256) >> 8"),
        ),
    ),
)


def table(rows: list[dict]) -> list[str]:
    """The summary: one line per proof from what its tests recorded, {"proof", "part", "mode",
    "depth", "status", "good", "seconds"} each."""
    columns = ("proof", "mode", "depth", "result", "cover reached", "planted bugs caught", "CPU s")
    lines = [columns]
    for proof in PROOFS:
        mine = [row for row in rows if row["proof"] == proof.name]
        main = next((row for row in mine if row["part"] == "holds"), None)
        cover = next((row for row in mine if row["part"] == "covers"), None)
        bugs = [row["good"] for row in mine if row["part"] == "catches"]
        if mine:
            lines.append(
                (
                    proof.name,
                    {"prove": "induction", "bmc": "bounded"}[proof.mode],
                    str(proof.depth),
                    main["status"] if main else "-",
                    "-"
                    if cover is None
                    else f"by cycle {cover['depth']}"
                    if cover["good"]
                    else "NO",
                    f"{sum(bugs)} of {len(bugs)}",
                    f"{sum(row['seconds'] for row in mine):.1f}",
                )
            )
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
