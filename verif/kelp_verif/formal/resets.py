# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The list of blocks that are proven to be as new after a reset in the midst of traffic
(`ResetTwins`). `make prove` runs all of them, `make test` four."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from amaranth.hdl import Signal

from kelp_hw.control.phase import PhaseDetector
from kelp_hw.datapath.error_reports import ErrorReports
from kelp_hw.datapath.flush import FlushUnit
from kelp_hw.endpoint import DataFifo
from kelp_hw.eviction.candidates import CandidateList
from kelp_hw.eviction.closer import Closer
from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_hw.eviction.kelp_state import KelpState
from kelp_hw.eviction.orphans import Orphans
from kelp_hw.eviction.pool_need import PoolNeed
from kelp_hw.eviction.slots import EvictionSlots
from kelp_hw.lib.bypass_fifo import BypassFifo
from kelp_hw.lib.free_list import FreeList
from kelp_hw.lib.order_fifo import OrderFifo
from kelp_hw.lib.request_fifo import RequestFifo
from kelp_hw.lib.skid import Skid
from kelp_hw.miss.park_lists import ParkLists
from kelp_hw.prefetch.throttle import Throttle
from kelp_hw.tracker.miss_ids import MissIds

from .fifo_specs import SMALL
from .prove import ProofResult, Solver, mutant, prove
from .reset_specs import ResetTwins

__all__ = ["RESETS", "Reset"]


@dataclass(frozen=True, kw_only=True)
class Reset:
    """One row: `make` makes the block; for `when` and `given` see `ResetTwins`. Whatever the block
    that is reset holds by then, it is as new."""

    name: str
    make: Callable
    when: dict[str, Callable] = field(default_factory=dict)
    given: Callable | None = None
    #: a line of the block, and what makes a bug of it: something is kept in a reset
    bug: tuple[str, str] = ()
    #: cycles of traffic, reset and traffic together
    depth: int = 6
    timeout_s: int = 900

    def holds(self) -> ProofResult:
        return self._run("bmc", "")

    def covers(self) -> ProofResult:
        return self._run("cover", "")

    def catches(self) -> ProofResult:
        """The block does not hear its reset, or, with `bug`, a part of it does not."""
        make = self.make
        if self.bug:
            make = partial(mutant(make.func, *self.bug), **make.keywords)
        return self._run("bmc", "-planted", make, deaf=not self.bug)

    def _run(self, mode, suffix, make=None, deaf=False):
        return prove(
            ResetTwins(make or self.make, when=self.when, given=self.given, deaf=deaf),
            depth=self.depth,
            mode=mode,
            name=f"reset_{self.name}{suffix}",
            solver=Solver(
                engine="smtbmc --nomem --stbv z3",
                timeout_s=self.timeout_s,
                trusted=True,
                any_state="used",
            ),
        )


def _frames_are_known(m, slots, done):
    """Of `EvictionSlots`: the frame stage tells a slot's frame (`i_claim`) before that is flushed
    or written back."""
    known = Signal(slots.config.write_backs)
    with m.If(done & slots.i_claim.valid):
        m.d.sync += known.bit_select(slots.i_claim.p.slot, 1).eq(1)
    flushed = known.bit_select(slots.i_flushed.p, 1)
    written = known.bit_select(slots.i_written_back.p.token, 1)
    return (~slots.i_flushed.valid | flushed) & (~slots.i_written_back.valid | written)


def _lists_exist(m, lists, done):
    """Of `ParkLists`: a list is created before it is appended to and visited, and a visit stays
    with its list."""
    known, visiting, visit = Signal(lists.lists), Signal(), Signal.like(lists.visit)
    with m.If(done & lists.i.valid & lists.i.p.create):
        m.d.sync += known.bit_select(lists.i.p.list, 1).eq(1)
    m.d.sync += [
        visit.eq(lists.visit),
        visiting.eq(done & ~lists.visit_end & (visiting | lists.visit_start)),
    ]
    return (
        (~lists.i.valid | lists.i.p.create | known.bit_select(lists.i.p.list, 1))
        & (~lists.visit_start | (known.bit_select(lists.visit, 1) & ~lists.visit_end))
        & (~visiting | (lists.visit == visit))
    )


def _flushing(flush):
    return ~flush.idle


def _of_config(name, block, **more):
    return Reset(name=name, make=partial(block, config=SMALL), **more)


RESETS = (
    Reset(name="free_list", make=partial(FreeList, count=4)),
    Reset(name="order_fifo", make=partial(OrderFifo, width=3, depth=4)),
    Reset(name="request_fifo", make=partial(RequestFifo, depth=4, shape=3)),
    Reset(name="bypass_fifo", make=partial(BypassFifo, depth=4, shape=3)),
    Reset(name="skid", make=partial(Skid, 3)),
    _of_config("candidates", CandidateList),
    _of_config("kelp_search", KelpSearch),
    _of_config("kelp_state", KelpState),
    _of_config("pool_need", PoolNeed),
    _of_config("closer", Closer),
    _of_config("miss_ids", MissIds),
    _of_config("error_reports", ErrorReports),
    _of_config("data_fifo", DataFifo),
    _of_config(
        "flush_unit",
        FlushUnit,
        when={"lines.frame": _flushing, "scales.frame": _flushing},
    ),
    _of_config(
        "eviction_slots",
        EvictionSlots,
        given=_frames_are_known,
        bug=("busy = Signal(c.write_backs)", "busy = Signal(c.write_backs, reset_less=True)"),
    ),
    # A lost frame found by a sweep that a RETRY made due: from there on it takes 80 cycles.
    _of_config(
        "orphans",
        Orphans,
        depth=8,
        bug=("with m.If(lost.r_rdy):", "with m.If(1):"),
    ),
    Reset(
        name="park_lists",
        make=partial(ParkLists, lists=2, nodes=3, shape=3),
        given=_lists_exist,
        bug=(
            "created = Signal(range(self.lists + 1))",
            "created = Signal(range(self.lists + 1), reset_less=True)",
        ),
        depth=8,
    ),
    Reset(
        name="throttle",
        make=partial(Throttle),
        bug=(
            'issued = Signal(range(period), name=f"issued_{s}")',
            'issued = Signal(range(period), name=f"issued_{s}", reset_less=True)',
        ),
    ),
    Reset(
        name="phase_detector",
        make=partial(PhaseDetector, config=SMALL, window=16),
        depth=14,
    ),
)
