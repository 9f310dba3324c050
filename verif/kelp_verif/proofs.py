# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The list of proofs, and how one of them is done: the contract holds, its covers are reached, and each planted bug breaks it.

docs/formal.md says in words what every row means. `make prove` runs all of them, `make test` those that are `quick`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered

from kelp_hw.arbiter import Arbiter
from kelp_hw.endpoint import DataQueue
from kelp_hw.free_list import FreeList
from kelp_hw.pools import FreeFrames, Pools
from kelp_hw.prefetch_queue import PrefetchQueue
from kelp_hw.write_store import WriteStore

from .arbiter_spec import ArbiterContract
from .formal import ProofResult, mutant, prove
from .pool_specs import FreeFramesContract, FreeListContract, PoolsContract, WriteSlotsContract
from .prefetch_spec import PrefetchQueueContract
from .queue_specs import DataQueueContract, FifoContract

__all__ = ["PROOFS", "Proof", "table"]

#: Memories as registers, for they are small, and the solver is much slower on arrays.
REGISTERS = "smtbmc --nomem --stbv z3"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One row: `spec(block)` is the contract around `block`; `bugs` are (old, new) pieces of the block's source."""

    name: str
    block: type
    spec: Callable
    mode: str = "prove"         #: "prove": by induction, for all time; "bmc": for `depth` cycles after reset
    depth: int = 2
    cover: int                  #: cycles within which every cover is reached
    bugs: tuple[tuple[str, str], ...]
    bug_depth: int = 12
    quick: bool = True          #: runs in `make test` too
    engine: str = REGISTERS
    timeout_s: int = field(default=240)

    def holds(self) -> ProofResult:
        return self._run(self.block, self.mode, self.depth, "")

    def covers(self) -> ProofResult:
        return self._run(self.block, "cover", self.cover, "")

    def catches(self, old: str, new: str) -> ProofResult:
        return self._run(mutant(self.block, old, new), "bmc", self.bug_depth, "-planted")

    def _run(self, block, mode, depth, suffix):
        return prove(self.spec(block), depth=depth, mode=mode, name=f"{self.name}{suffix}", engine=self.engine, timeout_s=self.timeout_s)


PROOFS = (
    Proof(name="fifo", block=SyncFIFO, spec=FifoContract, cover=10, bugs=(
        ("produce.eq(_incr(produce, self.depth))", "produce.eq(_incr(produce, self.depth - 1))"), ("with m.If(do_write & ~do_read):", "with m.If(do_write):"))),
    Proof(name="fifo_buffered", block=SyncFIFOBuffered, spec=FifoContract, cover=10, bugs=(
        ("inner_level != inner_depth", "1"), ("~self.r_rdy | self.r_en", "1"))),
    Proof(name="data_queue", block=DataQueue, spec=DataQueueContract, cover=30, bug_depth=20, bugs=(
        ("self.i_valid & ~fifo.r_rdy & self.o.ready", "self.i_valid & self.o.ready"), ("self.i_valid & ~direct", "self.i_valid"),
        ("self.DEPTH - RESERVE", "self.DEPTH - RESERVE + 1"))),
    Proof(name="prefetch_queue", block=PrefetchQueue, spec=PrefetchQueueContract, cover=10, bug_depth=8, engine="smtbmc z3", bugs=(
        ("Mux(leave, earlier[1:], earlier[:n])", "earlier[:n]"),                    # a page that leaves comes in again
        ("return a.distance > b.distance", "return a.distance >= b.distance"),      # last come, first served
        ("push = insert & ~earlier_here[k] & below", "push = insert & below"),      # moves past the twin that it replaces
        ("(on_o | any_twin | full)", "(on_o | any_twin)"),                          # a drop is not told
        ("self.o.valid.eq(leave & ~dead[0])", "self.o.valid.eq(leave)"))),          # a cancelled one leaves
    Proof(name="arbiter", block=Arbiter, spec=ArbiterContract, cover=30, bug_depth=30, bugs=(
        ("(credits.data | ~uses_frame[i]) & ", ""), ("claim - self.PATIENCE", "claim - self.PATIENCE - 1"), ("any_able & (claim == self.PATIENCE)", "0"),
        ("able & (~able + 1)", "able"), ("~(hot_able & pick_frame)", "1"))),
    Proof(name="free_list", block=FreeList, spec=FreeListContract, cover=16, bugs=(
        ("returned.r_en.eq(take & ~fresh)", "returned.r_en.eq(take & ~fresh & ~self.i_valid)"), ("self.level + self.i_valid - take", "self.level - take"))),
    Proof(name="free_frames", block=FreeFrames, spec=FreeFramesContract, cover=16, bugs=(
        ("self.push & (count == pop_freed)", "self.push & (count == 0)"), ("Mux(pop_freed, third, second)", "second"),
        ("self.pop & ~has_fresh", "self.pop"))),
    Proof(name="pools", block=Pools, spec=PoolsContract, depth=3, cover=12, bugs=(
        ("self.pop & here", "self.pop"), ("(self.wait | self.pop)", "self.pop"), ("pins < pin_limit", "pins <= pin_limit"))),
    Proof(name="write_slots", block=WriteStore, spec=WriteSlotsContract, cover=20, bugs=(
        ("(unused == 0) & self.o_slot.ready", "self.o_slot.ready"), ("held + taken - self.free_en", "held + taken"))),
)


def table(rows: list[dict]) -> list[str]:
    """The summary: one line per proof from what its tests recorded, {"proof", "part", "mode", "depth", "status", "good", "seconds"} each."""
    columns = ("proof", "mode", "depth", "result", "cover reached", "planted bugs caught", "CPU s")
    lines = [columns]
    for proof in PROOFS:
        mine = [row for row in rows if row["proof"] == proof.name]
        main = next((row for row in mine if row["part"] == "holds"), None)
        cover = next((row for row in mine if row["part"] == "covers"), None)
        bugs = [row["good"] for row in mine if row["part"] == "catches"]
        if mine:
            lines.append((
                proof.name, {"prove": "induction", "bmc": "bounded"}[proof.mode], str(proof.depth), main["status"] if main else "-",
                "-" if cover is None else f"by cycle {cover['depth']}" if cover["good"] else "NO",
                f"{sum(bugs)} of {len(bugs)}", f"{sum(row['seconds'] for row in mine):.1f}"))
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
