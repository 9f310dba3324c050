# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How many hits an endpoint serves in a cycle while it chooses pages (docs/select.md, "Passes and
rates")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kelp_rtl.device import Descriptor, Driver, MemoryTiming
from kelp_rtl.program import READ, WRITE, Program, Response
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES
from kelp_spec.metadata import Op
from kelp_spec.select import ANSWER_FIELDS, BELL_FIELDS, SelectMap, record, record_bytes
from kelp_spec.select_plan import plan_lines

__all__ = ["HitsBeside", "hits_beside_choice"]

_PAGES = 12  #: of each queue
_HITS = 4096  #: longer than a choice among so few pages takes


@dataclass(frozen=True)
class HitsBeside:
    """`rate` hits a cycle, from the choice's first op to its last one, `cycles` later; `looks` of
    them were its LOOKs."""

    rate: float
    cycles: int
    looks: int


class _Bench:
    """A session of two queues, whose pages are all resident."""

    def __init__(self, config: Config, memory: int, seed: int):
        self.config, self.rng = config, np.random.default_rng(seed)
        self.map = SelectMap(config)
        self.driver = Driver(config, seed=seed, memory=MemoryTiming(latency=memory))
        self.driver.open_session(0, Descriptor(layers=1, kv_heads=2))
        self.sequence = 0
        for queue in range(2):
            where = [
                self.driver.address(0, queue, page, kv, line)
                for page in range(_PAGES)
                for kv in (0, 1)
                for line in range(config.half_lines)
            ]
            self.driver.run(Program.writes(np.array(where, np.uint64), self._lines(len(where))))

    def _lines(self, count: int):
        return self.rng.standard_normal((count, LINE_BYTES // 2)).astype("<f2").view(np.uint8)

    def _region(self, line: int) -> int:
        return self.driver.addresses.select_base + LINE_BYTES * line

    def bell(self, queue: int):
        """The next doorbell of the queue's group, as a line."""
        c = self.config
        self.sequence += 1
        fields = {"sequence": self.sequence, "queue": queue, "newest": _PAGES - 1}
        fields |= {"tokens": c.half_lines // c.select_lines, "lines": c.select_lines}
        fields |= {"most": min(c.select, 16) - 2, "target": c.select_heads << 16}
        data = record_bytes(BELL_FIELDS, fields | {"m": 33421, "sh": 16})
        return np.frombuffer(data.ljust(LINE_BYTES, b"\0"), np.uint8)

    def choose(self, queue: int) -> tuple[int, int]:
        """(generation, pages) of a choice by random queries and a plan for them."""
        c = self.config
        heads, lines = c.select_heads, c.select_lines
        queries = self._lines(heads * lines)
        of_heads = queries.view("<f2").reshape(heads, -1).astype(np.float64)
        plan = plan_lines(self.rng.standard_normal((256, of_heads.shape[1])), of_heads)
        where = [self.map.query(0, queue, h, n) for h in range(heads + 1) for n in range(lines)]
        where = [self._region(line) for line in (*where, self.map.bell(0, queue))]
        rows = np.concatenate([queries, plan, self.bell(queue)[None]])
        self.driver.run(Program.writes(np.array(where, np.uint64), rows))
        self.driver.settle()
        answer = self.driver.run(Program.reads(np.array(where[-1:], np.uint64))).data[0].tobytes()
        header = record(ANSWER_FIELDS, answer)
        if header["sequence"] != self.sequence or header["refusal"] or header["absent"]:
            raise RuntimeError(f"no choice of resident pages: {header}")
        return header["generation"], header["count"]

    def hits(self, gathered: bool) -> HitsBeside:
        """Reads of the second queue's chosen pages amid a choice of the first one's."""
        c, driver = self.config, self.driver
        self.choose(0)  # summaries are there
        generation, count = self.choose(1)
        places = [(n, kv, at) for n in range(count) for kv in (0, 1) for at in range(c.half_lines)]
        reads = [
            driver.addresses.gather(0, 1, generation, kv, n, line)
            if gathered
            else driver.address(0, 1, n, kv, line)
            for n, kv, line in places
        ]
        reads = np.resize(np.array(reads, np.uint64), _HITS)
        program = Program(
            opcode=np.r_[WRITE, np.full(_HITS, READ)],
            address=np.r_[np.uint64(self._region(self.map.bell(0, 0))), reads],
            data=self.bell(0)[None],
            data_index=np.r_[0, np.full(_HITS, -1)],
        )
        driver.take_commits()
        result = driver.run(program)
        if (result.response[1:] != Response.DATA).any():
            raise RuntimeError("a hit has no data")
        ops = driver.take_commits().result
        kind, answered = ops["op.kind"], result.response_cycle[1:]
        cycles = ops.cycle[np.isin(kind, (int(Op.LOOK), int(Op.HOLD)))]
        first, last = int(cycles.min()), int(cycles.max())
        if last > answered.max():
            raise RuntimeError(f"{_HITS} hits are over before the choice is")
        during = np.count_nonzero((answered >= first) & (answered <= last))
        looks = np.count_nonzero(kind == int(Op.LOOK))
        return HitsBeside(during / (last - first), last - first, looks)


def hits_beside_choice(
    config: Config, *, gathered: bool = False, memory: int = 64, seed: int = 1
) -> HitsBeside:
    """Plain hits of a session while it chooses among 12 pages, or `gathered` ones, with a memory of
    so many cycles. It builds the model of `config`."""
    return _Bench(config, memory, seed).hits(gathered)
