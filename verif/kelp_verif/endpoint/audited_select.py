# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""An audited shadow that chooses pages amid its traffic: the golden model judges every op
of every choice, its answer, and what is gathered (docs/select.md)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kelp_golden.audit.choices import SelectAudit
from kelp_golden.audit.stream import ResultRecord
from kelp_golden.select_region import Decided, SelectRegion
from kelp_rtl.program import Program, Response
from kelp_spec.formats import LINE_BYTES
from kelp_spec.metadata import Op
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    CHOSEN_FIELDS,
    Refusal,
    SlotState,
    record,
    record_bytes,
)

from ..harness.covered import leave_figures
from .audited_shadow import AuditedShadow
from .some_plan import no_plan, some_plan

__all__ = ["AuditedSelect", "looks"]

_UNSOUND = 16  # of so many SELECTs one has no sound plan


def looks(records) -> list:
    """The LOOKs among commits."""
    ops = [record.op for record in records if isinstance(record, ResultRecord)]
    return [op for op in ops if op.kind == Op.LOOK]


class AuditedSelect(AuditedShadow):
    """:class:`AuditedShadow` of a configuration with `select`; one SELECT at a time."""

    choice: SelectAudit | None = None  # until the session is open
    together = 0  # SELECTs that were rung while another one was not served yet

    def open(self) -> None:
        super().open()
        self.region = SelectRegion(self.audit.endpoint, apply=self._never)
        self.choice = SelectAudit(self.region, self.audit._wrong)
        self.sequence = self.gathered = 0
        self.seen: Counter[str] = Counter()  # in answers

    @staticmethod
    def _never(op):
        raise AssertionError(f"the golden model decides {op} by itself")

    def decided(self, record) -> None:
        if self.choice:
            self.choice.op(record.op, Decided(record.outcome, self.audit.endpoint.version))

    def records(self):
        """The commits since the last call; the choice hears which LOOKs are among them."""
        records = list(super().records())
        if self.choice:
            self.choice.coming(looks(records))
        return records

    def asked(self, session: int, group: int) -> tuple[list[int], np.ndarray]:
        """Random queries of the next SELECT, and a plan of no reason: lines of the region, and what
        the host writes there; the golden model has it."""
        c, places = self.config, self.region.map
        lines = [
            places.query(session, group, head, line)
            for head in range(c.select_heads)
            for line in range(c.select_lines)
        ]
        self.sequence += 1
        plan = no_plan if self.sequence % _UNSOUND == 0 else some_plan
        rows = np.concatenate([self.data(len(lines)), plan(self.rng, c.select_lines)])
        lines += [places.plan(session, group, line) for line in range(c.select_lines)]
        for line, row in zip(lines, rows, strict=True):
            self.region.write(line, row.tobytes(), 0)
        return lines, rows

    def select(self, count: int, pages: int, addresses: list[int], **fields) -> int:
        """A SELECT of random queries among `count` random requests to `addresses`, and its answer;
        how many of the pages chosen are held."""
        group, places = int(self.rng.integers(self.config.select_groups)), self.region.map
        lines, rows = self.asked(0, group)
        bell = {"sequence": self.sequence, "newest": pages - 1, "tokens": 1, "lines": 2} | fields
        data = record_bytes(BELL_FIELDS, bell).ljust(LINE_BYTES, b"\0")
        rows = np.concatenate([rows, np.frombuffer(data, np.uint8)[None]])
        first = places.bell(0, group)
        base = self.device.addresses.select_base
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
        self.count(wanted)
        return self._gather(bell.get("queue", 0))

    def count(self, answer: bytes) -> None:
        """What an answer says."""
        header = record(ANSWER_FIELDS, answer[:LINE_BYTES])
        self.seen[f"refused.{Refusal(header['refusal']).name}"] += 1
        self.seen["missing"] += header["missing"] > 0
        named = self.region.map.named_places(header["count"], header["wanted"])
        for n in (*range(header["count"]), *named):
            page = record(CHOSEN_FIELDS, answer[LINE_BYTES + 8 * n :][:8])
            self.seen[f"slot.{SlotState(page['state']).name}"] += 1

    def leave(self) -> None:
        """What was met, for the cover points."""
        met = {name: getattr(self.choice, name) for name in ("choices", "raced", "waited")}
        met |= {"gathered": self.gathered, "together": self.together}
        leave_figures("kelp_verif.endpoint.audited_select", {**met, **self.seen})

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
