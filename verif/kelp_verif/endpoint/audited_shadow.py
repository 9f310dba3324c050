# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A shadow of the host's lines whose device is audited, too: the golden model judges every decision
of a free-running endpoint while its memory errs (spec §4, §9)."""

from __future__ import annotations

from collections import deque

import numpy as np

from kelp_golden.audit.stream import Audit, FrameRecord, ResultRecord, ScoreRecord
from kelp_golden.setup import SESSION, LayerFormats, Setup
from kelp_rtl.device import RunRules
from kelp_rtl.program import PARTIAL, READ, Program, Response, Result
from kelp_rtl.replay.job import KINDS
from kelp_rtl.replay.rows import audit_records
from kelp_spec.metadata import Op
from kelp_spec.policy import Policy

from .memory_shadow import MemoryShadow

__all__ = ["AuditedShadow"]


class AuditedShadow(MemoryShadow):
    """:class:`MemoryShadow`, and an :class:`Audit` of all that the device commits.

    M3 decides requests in its own order: reads and writes come on channels of their own, and
    neither waits for the other. Within a channel it is the order of acceptance. So each commit is
    the next request of its channel; whether it is, its address says.

    Parameters
    ----------
    policy : Policy
    tables : bool
        Policy 2, with policy `kelp`.

    Attributes
    ----------
    audit : Audit
    beside : tuple of int
        Requests of the program that is run next that are for no line, each of which gets its Cmp.
    """

    beside: tuple[int, ...] = ()
    RULES = RunRules(record_hot_reads=True)

    def __init__(
        self, config, formats, *, policy: Policy = Policy.EMA, tables: bool = False, **options
    ):
        budget = max(n * lines for n, lines in zip(config.frames, config.frame_lines, strict=True))
        self.setup = Setup(
            config=config,
            layers=1,
            kv_heads=config.queues,
            used_lines=config.half_lines,
            used_pages=config.pages,
            formats=(LayerFormats(last_layer=1023, k=formats[0], v=formats[1]),),
            limits=config.frames,
            budgets=(budget,) * len(config.frames),
            policy=policy,
            tables=tables,
        )
        #: of each channel, requests that were accepted and not decided yet
        self._due: dict[bool, deque[int]] = {True: deque(), False: deque()}
        self._program: Program | None = None
        self._op = (Op.READ, 0, 0, 0)  #: which demand op comes, with its page and line
        super().__init__(config, formats, **options)

    def open(self) -> None:
        self.audit = Audit(
            self.config, self.setup.endpoint(), {SESSION: self.setup.descriptor}, self._request
        )
        for name, value in self.setup.registers():
            self.device.write64(name, value)
        self.lines = {}
        self._feed()

    def judge(self, program: Program, result: Result) -> None:
        """After each program; at rest, so that every ERROR of it has been told."""
        self.settle()
        count = len(program)
        self._program = program
        for n in np.argsort(result.accept_order).tolist():
            if n not in self.beside:
                self._due[program.opcode[n] == READ].append(n)
        self.audit.begin(count, beside=self.beside)
        self._feed()
        left = sum(map(len, self._due.values()))
        assert not left, f"{left} requests were never committed"
        response = result.response
        self.audit.answers(KINDS[response], response == Response.POISON, result.data.view("<u2"))

    def decided(self, record: ResultRecord) -> None:
        """After each op of M3; for those who know more of it."""

    def records(self):
        """What was committed since the last call."""
        return audit_records(self.device.take_commits())

    def _feed(self) -> None:
        for record in self.records():
            if isinstance(record, ResultRecord):
                op = record.op
                self._op = op.kind, op.squeue, op.page, op.kv_line
                self.audit.result(record)
                self.decided(record)
            elif isinstance(record, FrameRecord):
                self._op = record.kind, record.squeue, record.page, record.kv_line
                self.audit.frame(record)
            elif isinstance(record, ScoreRecord):
                self.audit.score(record)

    def _request(self, tag: int):
        kind, squeue, page, kv_line = self._op
        n, program = self._due[kind == Op.READ].popleft(), self._program
        kv, line = divmod(kv_line, self.config.half_lines)
        assert program.address[n] == self.address(squeue, page, kv, line), (
            f"request {n} to {int(program.address[n]):#x} is due, {Op(kind).name} of "
            + f"{(squeue, page, kv, line)} was committed"
        )
        if kind == Op.READ:
            return n, None, None
        row = int(program.data_index[n])
        enable = int(program.byte_enable[n]) if program.opcode[n] == PARTIAL else -1
        return n, program.data[row].tobytes(), enable
