# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Two sessions that choose at once amid their traffic, audited: every op of every choice, in the
order in which the device serves them, each answer, and what is gathered (docs/select.md)."""

from __future__ import annotations

import itertools

import numpy as np

from kelp_golden.ops import QueueConfig
from kelp_golden.setup import SESSION
from kelp_rtl.program import Program
from kelp_spec.formats import LINE_BYTES
from kelp_spec.select import BELL_FIELDS, record_bytes

from .audited_select import AuditedSelect, looks

__all__ = ["AuditedSelects"]


class AuditedSelects(AuditedSelect):
    """:class:`AuditedSelect` with a second session of the same shape and owner; a queue is session
    · queues + queue everywhere. SELECTs of every group of both are under way at once.

    Attributes
    ----------
    together : int
        SELECTs that were rung while another one was not served yet.
    """

    def open(self) -> None:
        self.together = 0
        super().open()
        audit, first = self.audit, f"s{SESSION}_"
        audit.descriptors[SESSION + 1] = self.setup.descriptor
        golden, queues = audit.endpoint, self.config.queues
        for queue, pool in enumerate(self.setup.pools):
            formats = self.setup.formats_of(queue)
            config = QueueConfig(int(formats.k), int(formats.v), pool)
            golden.configure(queues + queue, config, golden.policies[queue])
        for name, value in self.setup.registers():
            if name.startswith(first):
                self.device.write64(f"s{SESSION + 1}_{name.removeprefix(first)}", value)
        self._feed()

    def address(self, queue: int, page: int, kv: int = 0, line: int = 0) -> int:
        session, queue = divmod(queue, self.config.queues)
        return self.device.address(session, queue, page, kv, line)

    def addresses(self, pages: int | None = None) -> list[int]:
        c = self.config
        places = itertools.product(range(pages or c.pages), range(c.squeues), range(2))
        return [
            self.address(queue, page, kv, line)
            for page, queue, kv in places
            for line in range(c.half_lines)
        ]

    def records(self):
        """The commits since the last call; the choice hears which queues they are of."""
        records = super().records()
        if self.choice:
            self.choice.served(op.squeue for op in looks(records))
        return records

    def select_all(self, count: int, pages: int, addresses: list[int], bells: dict) -> int:
        """SELECTs among `count` random requests to `addresses`: of {(session, group): fields}, each
        of another queue; and their answers. How many of the pages chosen are held."""
        c, places, base = self.config, self.region.map, self.device.addresses.select_base
        lines, rows, rung, last = [], [], {}, []
        for (session, group), fields in bells.items():
            queries, written = self.asked(session, group)
            lines += queries
            rows += [*written]
            bell = {"sequence": self.sequence, "newest": pages - 1, "tokens": 1, "lines": 2}
            data = record_bytes(BELL_FIELDS, bell | fields).ljust(LINE_BYTES, b"\0")
            rung[session << places.group_bits | group] = data
            last.append((places.bell(session, group), np.frombuffer(data, np.uint8)))
        lines += [line for line, _ in last]
        rows += [row for _, row in last]
        self.choice.ring_all(rung)
        self.together += len(rung) - 1
        self.device.run(
            Program.writes(base + LINE_BYTES * np.array(lines, np.uint64), np.array(rows))
        )
        self.random(count, addresses)  # and rest, so that the choices are over
        self.choice.finish()
        held = 0
        for (session, group), fields in bells.items():
            first = places.bell(session, group)
            answer = [first + n for n in range(places.answer_lines)]
            read = Program.reads(base + LINE_BYTES * np.array(answer, np.uint64))
            found = self.device.run(read).data.tobytes()
            wanted = b"".join(self.region.read(line, 0) for line in answer)
            if found != wanted:
                self.audit._wrong(f"answer {session, group}", found.hex(), wanted.hex())
            self.count(wanted)
            queue = session * c.queues + fields["queue"]
            held += self._gather(queue)
        return held
