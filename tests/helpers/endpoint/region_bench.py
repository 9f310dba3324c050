# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A host beside the golden endpoint and its SELECT region (docs/select.md)."""

import numpy as np

from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session
from kelp_golden.select_region import SelectRegion
from kelp_spec.config import named
from kelp_spec.metadata import Op, PageState
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    CHOSEN_FIELDS,
    SlotState,
    record,
    record_bytes,
)
from kelp_spec.select_plan import plan_lines

__all__ = ["CONFIG", "LINES", "OWNER", "PAGES", "TOKENS", "Bench", "filled", "gone", "write"]

CONFIG = named("unit_select")
LINES, TOKENS, PAGES, OWNER = 2, 2, 12, 3


def write(device, queue, page, rows, session=0):
    """Lines of a page of a session's queue, from its first on, each a row of 32 elements."""
    for line, row in enumerate(rows):
        device.apply(
            TrackerOp(
                Op.WRITE,
                session=session,
                squeue=session * device.config.queues + queue,
                page=page,
                kv_line=line,
                write=1,
                has_write=1,
                ld_id=OWNER,
                origin=(row.tobytes(), (1 << 64) - 1),
            )
        )


class Bench:
    """One session of unit_select with `PAGES` pages in queue 0, and a host beside it."""

    def __init__(self, *, seed=1, queues=4, reserve=0, config=CONFIG, used_lines=4):
        self.used_lines = used_lines
        self.rng = np.random.default_rng(seed)
        self.device = Endpoint(config)
        self.region = SelectRegion(self.device)
        self.device.tracker.reserve = reserve
        for squeue in range(CONFIG.squeues):
            self.device.configure(squeue, QueueConfig(), QueuePolicy())
        shape = Session(
            used_queues=queues, used_lines=used_lines, used_pages=32, kv_heads=2, ld_id=OWNER
        )
        self.device.apply(TrackerOp(Op.OPEN, session=0), descriptor=shape)
        self.sequence = 0
        self.keys = {}  # page → its lines in whichever queue was written last

    def write(self, page, queue=0, data=None):
        rows = self.rng.standard_normal((4, 32)) if data is None else np.tile(data, (4, 1))
        self.keys[page] = rows.astype(np.float16)
        write(self.device, queue, page, self.keys[page])

    def query(self, codes=None, group=0):
        """Queries, and a plan for keys such as are written."""
        shape = 2, LINES, 32
        self.queries = self.rng.standard_normal(shape) if codes is None else np.tile(codes, shape)
        self.queries = self.queries[..., :32].astype("<f2")
        for head, line in np.ndindex(shape[:2]):
            row = self.queries[head, line].tobytes()
            self.region.write(self.region.map.query(0, group, head, line), row, 3)
        keys = np.random.default_rng(0).standard_normal((100, 32 * LINES))
        self.plan = plan_lines(keys, keys)
        for line in range(LINES):
            self.region.write(self.region.map.plan(0, group, line), self.plan[line].tobytes(), 3)

    def select(self, group=0, ld_id=3, **fields):
        self.sequence += 1
        bell = {
            "sequence": self.sequence,
            "newest": PAGES - 1,
            "tokens": TOKENS,
            "lines": LINES,
            "most": 4,
            "target": 2 << 16,
            "m": 23637,
            "sh": 17,
        } | fields
        line = self.region.map.bell(0, group)
        self.region.write(line, record_bytes(BELL_FIELDS, bell).ljust(64, b"\0"), ld_id)
        header = record(ANSWER_FIELDS, self.region.read(line, ld_id))
        rows = b"".join(self.region.read(line + n, ld_id) for n in (1,))
        entries = [record(CHOSEN_FIELDS, rows[8 * n : 8 * n + 8]) for n in range(CONFIG.select)]
        count = header["count"]
        pages, named = entries[:count], entries[count:][::-1]  # from the last place downwards
        named, rest = named[: header["wanted"]], named[header["wanted"] :]
        assert all(page["state"] == SlotState.WANTED for page in named)
        assert not any(page["state"] == SlotState.WANTED for page in pages)
        assert not any(any(page.values()) for page in rest)
        self.wanted = [(page["page"], page["mass"]) for page in named]
        for page in (*pages, *named):
            whole = page["page"] != bell["newest"]
            tokens = self.used_lines // bell["lines"] if whole else bell["tokens"]
            assert page["tokens"] == tokens, (bell, page)
        return header, pages

    def pinned(self):
        return {
            (key // CONFIG.pages, key % CONFIG.pages)
            for key, word in self.device.tracker.words.items()
            if word.pinned & 2
        }


def filled(**options):
    """A bench whose queue 0 has `PAGES` pages, and a query."""
    bench = Bench(**options)
    for page in range(PAGES):
        bench.write(page)
    bench.query()
    return bench


def gone(bench, *pages):
    for page in pages:
        bench.device.tracker.words[page] = bench.device.tracker.words[page]._replace(
            state=int(PageState.COLD)
        )
