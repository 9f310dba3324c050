# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a host does while bits flip in an endpoint that chooses pages (docs/select.md): SELECTs in
its traffic; in the end an answer to each, and in each slot the page that the answer names."""

from __future__ import annotations

import numpy as np

from kelp_rtl.device import Driver, DriverError
from kelp_rtl.program import Program, Response
from kelp_spec.config import POOLS, named
from kelp_spec.formats import LINE_BYTES
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    CHOSEN_FIELDS,
    SelectMap,
    SelectStatus,
    SlotState,
    record,
    record_bytes,
)

from .flip_traffic import Host
from .some_plan import some_plan

__all__ = ["SelectHost"]

_POLLS = 400  # reads of an answer, before the doorbell counts as lost
_TRIES = 3  # doorbells, before the choice counts as hanging
_WITHOUT = 200  # requests without a SELECT among them
_BELL = {"newest": 7, "tokens": 2, "lines": 2, "most": 2, "m": 47274, "sh": 18}


class SelectHost(Host):
    """Tenants that choose: group g of each session chooses for queue g, all of layer 0, so that
    the slots of both stay."""

    def __init__(self, seed: int):
        super().__init__(seed, named("unit_select"))
        self.map = SelectMap(self.config)
        self.sequence = 0

    def limits(self):
        return [(pool, 12) for pool in POOLS]

    def traffic(self, driver: Driver, count: int) -> Program:
        """With a SELECT for every thirty requests; short traffic leaves the slots as they are."""
        programs, rng = [super().traffic(driver, count)], self.rng
        if count < _WITHOUT:
            return programs[0]
        at = [np.arange(count, dtype=float)]
        for _ in range(count // 30):
            session, group = int(rng.integers(self.config.sessions)), int(rng.integers(2))
            programs.append(self._select(driver, session, group))
            at.append(np.full(len(programs[-1]), rng.random() * count))
        whole = Program.join(programs)
        order = np.argsort(np.concatenate(at), kind="stable")
        return Program(
            opcode=whole.opcode[order],
            address=whole.address[order],
            ld_id=whole.ld_id[order],
            data=whole.data,
            data_index=whole.data_index[order],
            byte_enable=whole.byte_enable[order],
        )

    def _select(self, driver, session, group):
        """A group's queries, a plan, and its doorbell."""
        c, rng = self.config, self.rng
        lines = [
            self.map.query(session, group, head, line)
            for head in range(c.select_heads)
            for line in range(c.select_lines)
        ]
        rows = rng.standard_normal((len(lines), 32)).astype("<f2").view(np.uint8)
        rows = np.concatenate([rows, some_plan(rng, c.select_lines)])
        lines += [self.map.plan(session, group, line) for line in range(c.select_lines)]
        self.sequence += 1
        bell = _BELL | {"sequence": self.sequence, "queue": group, "target": c.select_heads << 16}
        row = record_bytes(BELL_FIELDS, bell).ljust(LINE_BYTES, b"\0")
        lines.append(self.map.bell(session, group))
        return Program.writes(
            self._addresses(driver, lines),
            np.concatenate([rows, np.frombuffer(row, np.uint8)[None]]),
            ld_id=self.owners[session],
        )

    def _addresses(self, driver, lines):
        base = driver.addresses.select_base
        return np.array([base + LINE_BYTES * line for line in lines], np.uint64)

    def last(self, driver: Driver) -> None:
        """The slots as they are, by the answers as they stand; then a SELECT of every group, and
        its slots."""
        for again in (False, True):
            for session in range(self.config.sessions):
                for group in range(2):
                    self._look(driver, session, group, again)

    def _look(self, driver, session, group, again):
        first = self.map.bell(session, group)
        lines = self._addresses(driver, range(first, first + self.map.answer_lines))
        read = Program.reads(lines, ld_id=self.owners[session])
        header = {"status": SelectStatus.NONE}
        for _ in range(_TRIES if again else 1):
            if again:
                driver.run(self._select(driver, session, group))
            for _ in range(_POLLS):
                answer = driver.run(read).data
                header = record(ANSWER_FIELDS, answer[0].tobytes())
                if not again or header["sequence"] == self.sequence or driver.irq:
                    break
            if driver.irq:
                return
            if not again or header["sequence"] == self.sequence:
                break
        else:
            raise DriverError("nothing has moved: a SELECT has no answer", driver.time)
        if header["status"] != SelectStatus.DONE:
            return
        rows = answer[1:].tobytes()
        for slot in range(min(header["count"], self.config.select)):
            page = record(CHOSEN_FIELDS, rows[8 * slot : 8 * slot + 8])
            if page["state"] == SlotState.HELD:
                self._slot(driver, session, group, header["generation"], slot, page["page"])

    def _slot(self, driver, session, queue, generation, slot, page):
        places = [(kv, line) for kv in range(2) for line in range(self.config.half_lines)]
        result = driver.run(
            Program.reads(
                np.array(
                    [
                        driver.addresses.gather(session, queue, generation, kv, slot, line)
                        for kv, line in places
                    ],
                    np.uint64,
                ),
                ld_id=self.owners[session],
            )
        )
        if page >= self.config.pages:
            self.seen.wrong.append(f"page {page} in slot {slot}")
            return
        for (kv, line), response, data in zip(places, result.response, result.data, strict=True):
            self._read(driver.address(session, queue, page, kv, line), response, data.tobytes())
        assert Response(result.response[0]) != Response.CMP
