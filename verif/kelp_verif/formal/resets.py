# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The list of blocks that are proven to be as new after a reset in the midst of traffic
(`ResetTwins`). `make prove` runs all of them, `make test` three."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kelp_hw.datapath.error_reports import ErrorReports
from kelp_hw.eviction.candidates import CandidateList
from kelp_hw.eviction.closer import Closer
from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_hw.eviction.kelp_state import KelpState
from kelp_hw.eviction.pool_need import PoolNeed
from kelp_hw.lib.bypass_fifo import BypassFifo
from kelp_hw.lib.free_list import FreeList
from kelp_hw.lib.order_fifo import OrderFifo
from kelp_hw.lib.request_fifo import RequestFifo
from kelp_hw.lib.skid import Skid
from kelp_hw.tracker.miss_ids import MissIds

from .fifo_specs import SMALL
from .prove import ProofResult, Solver, prove
from .reset_specs import ResetTwins

__all__ = ["RESETS", "Reset"]


@dataclass(frozen=True, kw_only=True)
class Reset:
    """One row: `make` makes the block; for `when` see `ResetTwins`."""

    name: str
    make: Callable
    when: dict[str, str] = field(default_factory=dict)
    #: cycles of traffic, reset and traffic together
    depth: int = 6
    timeout_s: int = 900

    def holds(self) -> ProofResult:
        return self._run("bmc", "")

    def covers(self) -> ProofResult:
        return self._run("cover", "")

    def catches(self) -> ProofResult:
        """The block does not hear its reset."""
        return self._run("bmc", "-planted", deaf=True)

    def _run(self, mode, suffix, deaf=False):
        return prove(
            ResetTwins(self.make, when=self.when, deaf=deaf),
            depth=self.depth,
            mode=mode,
            name=f"reset_{self.name}{suffix}",
            solver=Solver(
                engine="smtbmc --nomem --stbv z3", timeout_s=self.timeout_s, trusted=True
            ),
        )


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
)
