# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How long a SELECT of an endpoint takes among many pages, with summaries behind their port, beside
the sum of its stages (docs/select.md, "Passes and rates").

``python -m kelp_verif.select.latency --pages 128 1024 8192`` builds a model for each, some minutes,
and makes all pages and their summaries; exit status 1 where a SELECT takes more than its sum and
`MARGIN`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np

from kelp_hw.select.summary_store import SummaryStore
from kelp_rtl.device import Descriptor, Driver, MemoryTiming, RunRules
from kelp_rtl.program import Program
from kelp_spec.config import Config, named
from kelp_spec.formats import LINE_BYTES
from kelp_spec.metadata import Op
from kelp_spec.select import ANSWER_FIELDS, BELL_FIELDS, SelectMap, record, record_bytes
from kelp_spec.select_plan import plan_lines

__all__ = ["MARGIN", "Latency", "config_of", "main"]

HEADS, LINES, TOKENS, QUOTA, SLOTS = 8, 4, 16, 32, 32  # a KV head of Llama-3-70B
DIM = 32 * LINES
#: cycles of latencies that the sum leaves out: doorbell, queries and plan loaded, the engine's
#: pipelines, a line's way through the tracker and memory, both memories' latencies
MARGIN = 600
_LOOKS = 4  #: at an answer, 500 cycles apart, for each page


def config_of(pages: int) -> Config:
    """A queue of so many pages of 16 tokens, as `llama70b_select` has 640, beside the small buffers
    of `trace_select`."""
    return named("trace_select").with_(
        name=f"select_{pages}",
        sessions=1,
        queues=1,
        pages=pages,
        half_lines=LINES * TOKENS,
        frames=(pages, 4, 4, 4),
        select=SLOTS,
        select_heads=HEADS,
        select_lines=LINES,
        select_quota=QUOTA,
        select_groups=1,
        select_looks=256,
        select_estimates=True,
        select_port=True,
    )


@dataclass(frozen=True)
class Latency:
    """Of one SELECT, in cycles from its doorbell to its last HOLD."""

    cycles: int
    looks: int  #: lines of keys
    candidates: int
    summary_lines: int  #: read of memory
    chosen: int
    pages: int

    @property
    def masses(self) -> int:
        """Of that the pass over masses: candidates, the first page and the newest."""
        return 2 * (self.candidates + 2) + 23 + HEADS

    @property
    def stages(self) -> int:
        """docs/select.md's sum: the look for summaries, plan, stage one, names, stage two, masses,
        choice."""
        rows = TOKENS * LINES // 16
        one = self.pages // SummaryStore.ROW + 68 * LINES + self.pages * rows + QUOTA
        return one + self.looks + self.masses + self.chosen


class _Bench:
    """An endpoint with all keys of its queue's pages."""

    def __init__(self, pages: int, *, memory: int, seed: int):
        self.config, self.pages = config_of(pages), pages
        self.rng = np.random.default_rng(seed)
        self.map = SelectMap(self.config)
        self.driver = Driver(
            self.config,
            seed=seed,
            memory=MemoryTiming(latency=memory),
            rules=RunRules(stall_limit=4_000_000),
        )
        self.driver.open_session(0, Descriptor(layers=1, kv_heads=1))
        self.keys = self.rng.standard_normal((pages * TOKENS, DIM)).astype("<f2")
        address = self.driver.address(0, 0, 0, 0, 0)
        page_bytes = 2 * self.config.half_lines * LINE_BYTES
        for page in range(0, pages, 256):  # a program's arrays are in memory at once
            rows = self.keys[page * TOKENS : (page + 256) * TOKENS].view(np.uint8)
            rows = rows.reshape(-1, LINE_BYTES)
            n = np.arange(len(rows), dtype=np.uint64)
            at, line = np.divmod(n, np.uint64(self.config.half_lines))
            base = np.uint64(address + page * page_bytes)
            where = base + at * np.uint64(page_bytes) + line * np.uint64(LINE_BYTES)
            self.driver.run(Program.writes(where, rows))
        self.sequence = 0

    def _write(self, lines, rows):
        base = self.driver.addresses.select_base
        where = np.array([base + LINE_BYTES * line for line in lines], np.uint64)
        return self.driver.run(Program.writes(where, np.ascontiguousarray(rows).view(np.uint8)))

    def select(self) -> Latency:
        """One SELECT; the first makes the summaries."""
        driver, heads = self.driver, range(HEADS + 1)
        queries = self.rng.standard_normal((HEADS, DIM)).astype("<f2")
        plan = plan_lines(self.keys[:4096].astype(np.float64), queries.astype(np.float64))
        rows = np.concatenate([queries.view(np.uint8).reshape(-1, LINE_BYTES), plan])
        self._write([self.map.query(0, 0, h, n) for h in heads for n in range(LINES)], rows)
        self.sequence += 1
        bell = {"sequence": self.sequence, "newest": self.pages - 1, "tokens": TOKENS}
        bell |= {"lines": LINES, "most": SLOTS - 2, "target": HEADS << 16, "m": 33421, "sh": 16}
        data = record_bytes(BELL_FIELDS, bell).ljust(LINE_BYTES, b"\0")
        driver.take_commits()
        before = driver.counts()["summary_reads"]
        first = self.map.bell(0, 0)
        rung = self._write([first], np.frombuffer(data, np.uint8)[None])
        answer = np.array([driver.addresses.select_base + LINE_BYTES * first], np.uint64)
        for _ in range(_LOOKS * self.pages):
            header = driver.run(Program.reads(answer)).data[0].tobytes()
            if record(ANSWER_FIELDS, header)["sequence"] == self.sequence:
                break
            driver.idle(500)
        else:
            raise SystemExit(f"{self.pages} pages: no answer at cycle {driver.time}")
        results = driver.take_commits().result
        kind, page = results["op.kind"], results["op.page"]
        looks, holds = kind == Op.LOOK, kind == Op.HOLD
        return Latency(
            cycles=int(results.cycle[holds].max() - rung.accept_cycle[0]),
            looks=int(looks.sum()),
            candidates=len(np.unique(page[looks])) - 2,
            summary_lines=driver.counts()["summary_reads"] - before,
            chosen=int(holds.sum()),
            pages=self.pages,
        )


def main(arguments=None) -> int:
    """The command line; 1 where one took too long."""
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.select.latency")
    parser.add_argument("--pages", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--memory", type=int, default=64, help="latency in cycles (default: 64)")
    parser.add_argument("--selects", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    late = 0
    for pages in options.pages:
        bench = _Bench(pages, memory=options.memory, seed=options.seed)
        made = bench.select()
        print(f"{pages} pages: all summarised and chosen in {made.cycles} cycles", flush=True)
        for _ in range(options.selects):
            of = bench.select()
            late += of.cycles > of.stages + MARGIN
            shown = (
                f"{of.cycles} cycles, stages {of.stages}",
                f"{of.looks} lines of keys of {of.candidates} candidates",
                f"{of.summary_lines} lines of summaries, {of.chosen} chosen",
            )
            print("  " + "; ".join(shown), flush=True)
    return bool(late)


if __name__ == "__main__":
    sys.exit(main())
