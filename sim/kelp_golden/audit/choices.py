# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Whether a free-running endpoint chooses what it has to (docs/select.md): each LOOK, HOLD and
UNHOLD that it commits is the one that the SELECT under way asks for, by the lines as they are
then."""

from __future__ import annotations

from collections.abc import Callable, Generator

from kelp_spec.metadata import Op

from ..ops import Op as TrackerOp
from ..select_region import Built, Decided, Holds, SelectRegion

__all__ = ["SelectAudit"]

_CHOICES = (Op.LOOK, Op.HOLD, Op.UNHOLD)


class _Summaries(dict):
    """Summaries of an endpoint, and those that were dropped lately."""

    def __init__(self):
        super().__init__()
        self.dropped: dict = {}  #: since `forget`: page → what held, or None
        self.touched: set = set()  #: pages whose keys were written since their first LOOK

    def pop(self, key, default=None):
        self.touched.add(key)
        found = super().pop(key, default)
        self.dropped[key] = found or self.dropped.get(key)
        return found

    def __bool__(self):
        return True  # writes are of interest even where no summary holds


class SelectAudit:
    """Follows one SELECT at a time through the commit stream.

    The endpoint asks whether a summary holds some time between two ops of its choice: it may go
    either way where a key was written in between. What its next op is says which way it went.

    Parameters
    ----------
    region : SelectRegion
        Of the audited golden endpoint; the audit applies that endpoint's ops.
    wrong : callable
        Called with (what, the device's, the golden model's) of each difference.
    """

    def __init__(self, region: SelectRegion, wrong: Callable):
        self.region, self._wrong = region, wrong
        self._summaries = region.endpoint.summaries = _Summaries()
        self._steps: Generator | None = None
        self._reply: Decided | None = None  # to the SELECT's last op
        #: ops of choices so far; summaries that were dropped while a SELECT asked for them
        self.choices = self.raced = 0

    def ring(self, block: int, data: bytes, *, whole: bool = True) -> None:
        """A doorbell; the SELECT before it is over."""
        self.finish()
        self._steps = self.region.steps(block, data, whole=whole)
        self._summaries.dropped.clear()

    def op(self, op: TrackerOp, decided: Decided) -> None:
        """An op that was committed, and what the golden endpoint, which has applied it, decided."""
        if op.kind not in _CHOICES:
            return
        if self._steps is None:
            self._wrong("choice", Op(op.kind).name, "no SELECT is under way")
            return
        wanted = self._next(op)
        found = int(op.kind), op.squeue, op.page, op.kv_line if op.kind == Op.LOOK else 0
        golden = wanted and (int(wanted.kind), wanted.squeue, wanted.page, wanted.kv_line)
        if found != golden:
            self._wrong("op of a choice", found, golden)
            self._steps = None
            return
        self.choices += 1
        if op.kind == Op.LOOK and op.kv_line == 0:
            self._summaries.touched.discard(op.squeue * self.region.config.pages + op.page)
        self._summaries.dropped.clear()
        self._reply = decided

    def finish(self) -> None:
        """The answer has come: nothing more is asked for."""
        if self._steps is None:
            return
        wanted = self._next(None)
        if wanted is not None:
            self._wrong("op of a choice", None, wanted)
        self._steps = None

    def _next(self, op: TrackerOp | None) -> TrackerOp | None:
        """The op that the SELECT asks for next, `op` being the one that the device commits; None
        when it is over."""
        reply, self._reply = self._reply, None
        while True:
            try:
                step = self._steps.send(reply)
            except StopIteration:
                self._steps = None
                return None
            reply = None
            if isinstance(step, Holds):
                reply = self._holds(step, op)
            elif isinstance(step, Built):
                if step.page not in self._summaries.touched:
                    self._summaries[step.page] = step.lines, step.summary
            else:
                return step

    def _holds(self, asked: Holds, op: TrackerOp | None):
        """What the device found, as its next op has it, among what it may have found."""
        now, before = self._summaries.get(asked.page), self._summaries.dropped.get(asked.page)
        legal = [found for found in (now, before) if found and found[0] == asked.lines]
        page = op and op.squeue * self.region.config.pages + op.page
        looks = op and op.kind == Op.LOOK and op.kv_line == 0 and page == asked.page
        self.raced += asked.page in self._summaries.dropped
        if not looks and legal:
            return legal[0][1]
        if looks and now and now[0] == asked.lines and asked.page not in self._summaries.dropped:
            self._wrong("summary", "built anew", "holds")
        return None
