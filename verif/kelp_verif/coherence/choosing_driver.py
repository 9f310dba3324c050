# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A caching host whose tenants choose pages near memory (docs/select.md) while their agents hold
lines of these: what a slot shows must be what its page has, with what was dirty at home.
`python -m kelp_verif.coherence.choosing_driver --transactions 20000`."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections import Counter, defaultdict

import numpy as np

from kelp_spec.config import Config, named
from kelp_spec.formats import LINE_BYTES, Format
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

from ..endpoint.some_plan import some_plan
from .endpoint_bench import OPEN, CachingDriver, each_weather, weather

__all__ = ["CONFIG", "ChoosingDriver", "choosing_weather", "main"]

#: An endpoint with both, and so many pages of each queue that some are resident.
CONFIG, PAGES = named("unit_select_coherent"), 12
_NXM, _POISON = 2, 3
_LOOKS = 4000  #: reads of an answer until it counts as missing
_ROUNDS = 12  #: times that the lines of a choice's slots are read


class ChoosingDriver(CachingDriver):
    """:class:`CachingDriver` with SELECTs and GATHERs of each open session beside all that its host
    does. A DriverError names a line that a slot shows wrongly, an AssertionError an answer.

    Parameters
    ----------
    counted : Counter
        Where SELECTs are counted, those `refused`, pages `held`, lines that slots are read for.
    """

    def __init__(self, config: Config, *, counted: Counter, seed: int = 1, **options):
        super().__init__(config, seed=seed, **options)
        self.rng, self.map, self.counted = np.random.default_rng(seed), SelectMap(config), counted
        self._sequence = 0
        #: (session, queue, page, K or V) → (line of the half, its number in the host)
        self._known: dict[tuple, list[tuple[int, int]]] = defaultdict(list)
        self._choosing = [None] * config.sessions
        self._favoured: dict[int, list[int]] = {}  # of each session, its slots' lines
        for name, result, types in (
            ("put", None, [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p]),
            ("ask", ctypes.c_uint32, [ctypes.c_uint64, ctypes.c_uint32]),
            ("take", ctypes.c_int, [ctypes.c_uint32, ctypes.c_char_p]),
            ("gather", ctypes.c_int, [ctypes.c_uint32, ctypes.c_uint64]),
            ("gathering", ctypes.c_uint64, [ctypes.c_uint32]),
            ("favour", None, [ctypes.c_char_p, ctypes.c_uint64]),
        ):
            function = getattr(self._call, f"caching_{name}")
            function.restype, function.argtypes = result, [ctypes.c_void_p, *types]

    def add(self, where: tuple[int, int, int, int, int], fmt: Format) -> None:
        *place, line = where
        self._known[*place].append((line, len(self.lines)))
        super().add(where, fmt)

    def phase(self, session: int, phase: int, ld_id: int = 0) -> None:
        super().phase(session, phase, ld_id)
        self._choosing[session] = self._tenant(session, ld_id) if phase == OPEN else None
        self._favour(session, [])

    def play(self, transactions: int) -> None:
        goal = self.figures().transactions + transactions
        self.act(True)
        while self.figures().transactions < goal:
            for choosing in filter(None, self._choosing):
                next(choosing)
            self.until(lambda: True)
            self.idle(100)
        self.act(False)

    # - one tenant, step by step -------------------------------------------------------------------
    def _put(self, line: int, owner: int, data: bytes) -> None:
        address = self.addresses.select_base // LINE_BYTES + line
        self._call.caching_put(self.host, address, owner, data.ljust(LINE_BYTES, b"\0"))

    def _read(self, line: int, owner: int):
        """The line's content, sooner or later."""
        address = self.addresses.select_base // LINE_BYTES + line
        tag = self._call.caching_ask(self.host, address, owner)
        to = ctypes.create_string_buffer(LINE_BYTES)
        while not (kind := self._call.caching_take(self.host, tag, to)):
            yield
        assert kind not in (_NXM, _POISON), f"line {line} of the SELECT region: kind {kind}"
        return to.raw

    def _tenant(self, session, owner):
        """Chooses again and again, and reads what was chosen."""
        c = self.config
        while True:
            group = int(self.rng.integers(c.select_groups))
            fields = self._ring(session, owner, group)
            answer = yield from self._answer(session, owner, group, fields)
            if answer is None:
                self.counted["refused"] += 1
                continue
            self.counted["selects"] += 1
            generation, pages = answer
            lines = list(self._lines(session, fields["queue"], pages))
            self._favour(session, lines)
            for n in range(_ROUNDS):
                if n % 3 == 2:
                    self._gather(session, fields["queue"], generation, lines)
                yield
            self._favour(session, [])
            if self.rng.random() < 0.8:  # else some are under way when slots are given back
                while self._call.caching_gathering(self.host, session):
                    yield

    def _ring(self, session, owner, group) -> dict:
        """Queries, a plan and a doorbell."""
        c, rng = self.config, self.rng
        for head in range(c.select_heads):
            for line in range(c.select_lines):
                values = rng.standard_normal(LINE_BYTES // 2).astype(np.float16)
                self._put(self.map.query(session, group, head, line), owner, values.tobytes())
        for n, row in enumerate(some_plan(rng, c.select_lines)):
            self._put(self.map.plan(session, group, n), owner, row.tobytes())
        queue = int(rng.integers(c.queues))
        self._sequence += 1
        fields = {
            "sequence": self._sequence,
            "queue": queue,
            "layer": queue // (c.queues // 2),
            "newest": int(rng.integers(1, 1 + max(page for *_, page, _ in self._known))),
            "tokens": 1,
            "lines": c.select_lines,
            "most": c.select - 2,
            "fetch": int(rng.integers(2)),
            "waits": int(rng.random() < 0.3),
            "wait_above": 1 << 12,
            "patience": 12,
            "target": c.select_heads << 16,
            "m": 47274,
            "sh": 18,
        }
        self._put(self.map.bell(session, group), owner, record_bytes(BELL_FIELDS, fields))
        return fields

    def _answer(self, session, owner, group, fields):
        """(generation, pages) of the SELECT; None where it was refused."""
        bell = self.map.bell(session, group)
        for _ in range(_LOOKS):
            header = record(ANSWER_FIELDS, (yield from self._read(bell, owner)))
            if header["sequence"] == fields["sequence"]:
                break
            yield
        else:
            raise AssertionError(f"no answer to {fields}: {header}")
        if header["status"] != SelectStatus.DONE:
            return None
        rows = b""
        for n in range(1, self.map.answer_lines):
            rows += yield from self._read(bell + n, owner)
        pages = [record(CHOSEN_FIELDS, rows[8 * n : 8 * n + 8]) for n in range(header["count"])]
        self.counted["held"] += sum(page["state"] == SlotState.HELD for page in pages)
        return header["generation"], pages

    def _lines(self, session, queue, pages):
        """Of each line that the slots show (its K or V, slot, line), and its number in the host."""
        for slot, page in enumerate(pages):
            if page["state"] == SlotState.HELD:
                for kv in range(2):
                    for line, number in self._known[session, queue, page["page"], kv]:
                        yield (kv, slot, line), number

    def _favour(self, session, lines) -> None:
        """What its agents mostly load and store from now on, beside other tenants' lines: few lines
        of all are in slots, and fewer would be dirty when they are asked for."""
        self._favoured[session] = [number for _, number in lines]
        every = np.array(sum(self._favoured.values(), []), np.uint32)
        self._call.caching_favour(self.host, every.tobytes(), every.size)

    def _gather(self, session, queue, generation, lines) -> None:
        """Lines of the slots, as many as the host may ask for now."""
        for where, number in lines:
            at = self.addresses.gather(session, queue, generation, *where)
            if self.rng.random() < 0.5:
                self.counted["gathers"] += self._call.caching_gather(
                    self.host, number, at // LINE_BYTES
                )


def choosing_weather(name: str, *, driver=ChoosingDriver, **options) -> dict:
    """A `weather` of `CONFIG` with choices; what was counted."""
    counted = Counter()
    figures = weather(
        name,
        config=CONFIG,
        pages=PAGES,
        driver=functools.partial(driver, counted=counted),
        **options,
    )
    return figures | counted


def main(argv=None) -> int:
    return each_weather("choosing_driver", choosing_weather, argv)


if __name__ == "__main__":
    sys.exit(main())
