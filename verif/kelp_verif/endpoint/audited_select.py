# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""An audited shadow that chooses pages amid its traffic: the golden model judges every op
of every choice, its answer, and what is gathered (docs/select.md)."""

from __future__ import annotations

import numpy as np

from kelp_golden.audit.choices import SelectAudit
from kelp_golden.select_region import Decided, SelectRegion
from kelp_rtl.program import Program, Response
from kelp_spec.formats import LINE_BYTES
from kelp_spec.select import BELL_FIELDS, SlotState, record_bytes

from .audited_shadow import AuditedShadow

__all__ = ["AuditedSelect"]


class AuditedSelect(AuditedShadow):
    """:class:`AuditedShadow` of a configuration with `select`; one SELECT at a time."""

    choice: SelectAudit | None = None  # until the session is open

    def open(self) -> None:
        super().open()
        self.region = SelectRegion(self.audit.endpoint, apply=self._never)
        self.choice = SelectAudit(self.region, self.audit._wrong)
        self.sequence = self.gathered = 0

    @staticmethod
    def _never(op):
        raise AssertionError(f"the golden model decides {op} by itself")

    def decided(self, record) -> None:
        if self.choice:
            self.choice.op(record.op, Decided(record.outcome, self.audit.endpoint.version))

    def select(self, count: int, pages: int, addresses: list[int], **fields) -> int:
        """A SELECT of random queries among `count` random requests to `addresses`, and its answer;
        how many of the pages chosen are held."""
        c, group = self.config, int(self.rng.integers(self.config.select_groups))
        places = self.region.map
        lines = [
            places.query(0, group, head, line)
            for head in range(c.select_heads)
            for line in range(c.select_lines)
        ]
        self.sequence += 1
        bell = {"sequence": self.sequence, "newest": pages - 1, "tokens": 1, "lines": 2} | fields
        data = record_bytes(BELL_FIELDS, bell).ljust(LINE_BYTES, b"\0")
        rows = np.concatenate([self.data(len(lines)), np.frombuffer(data, np.uint8)[None]])
        first = places.bell(0, group)
        base = self.device.addresses.select_base
        for line, row in zip(lines, rows, strict=False):
            self.region.write(line, row.tobytes(), 0)
        self.device.run(
            Program.writes(
                np.array([base + LINE_BYTES * line for line in (*lines, first)], np.uint64), rows
            )
        )
        self.choice.ring(group, data)
        answer = np.array(
            [base + LINE_BYTES * (first + n) for n in range(places.answer_lines)], np.uint64
        )
        self.random(count, addresses)  # and rest, so that the choice is over
        found = self.device.run(Program.reads(answer)).data
        self.choice.finish()
        wanted = b"".join(self.region.read(first + n, 0) for n in range(places.answer_lines))
        if found.tobytes() != wanted:
            self.audit._wrong("answer", found.tobytes().hex(), wanted.hex())
        return self._gather(bell.get("queue", 0))

    def _gather(self, squeue):
        """Every line of the queue's slots, compared with the page that the golden model has in
        them; how many pages those are."""
        places, own, held = [], [], 0
        session, queue = divmod(squeue, self.config.queues)
        at = self.region.queues[squeue]
        generation = at.generation % (1 << self.config.generation_bits)
        for slot, (page, state) in enumerate(at.pages):
            if state != SlotState.HELD:
                continue
            held += 1
            assert self.region.page_of(session, queue, generation, slot) == page
            for kv in range(2):
                for line in range(self.config.half_lines):
                    places.append(
                        self.device.addresses.gather(session, queue, generation, kv, slot, line)
                    )
                    own.append(self.address(squeue, page, kv, line))
        if places:
            read = self.device.run(Program.reads(np.array(places, np.uint64)))
            # The commits are reads of the pages' own lines.
            self.judge(Program.reads(np.array(own, np.uint64)), read)
            self.gathered += len(places)
            for address, response, data in zip(own, read.response, read.data, strict=True):
                self._judge(address, Response(response), data.tobytes())
        return held
