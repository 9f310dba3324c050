# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What coherence costs the endpoint: `python -m kelp_verif.coherence.endpoint_rates` prints lines a
cycle of reads within the directory, and the cycles of an eviction with and without it."""

from __future__ import annotations

import argparse
import statistics
import sys

import numpy as np

from kelp_rtl.device import Driver, FlashTiming, MemoryTiming, RunRules
from kelp_rtl.program import Program
from kelp_spec.coherence import sizes_of
from kelp_spec.config import Config, named
from kelp_spec.formats import Format, HostType
from kelp_spec.metadata import Op, Outcome

from .endpoint_bench import CachingDriver, open_plain

__all__ = ["evictions", "main", "reads"]

RAW = ((Format.RAW16, Format.RAW16),)
KINDS = {1: "for ownership", 2: "shared", 3: "SnpCur"}


def reads(config: Config, *, lines: int) -> dict[str, float]:
    """Lines a cycle, page by page, of lines that are in DRAM and fit the directory."""
    d = CachingDriver(
        config, driver={"memory": MemoryTiming(latency=64), "rules": RunRules(max_skip=0)}
    )
    # No step of its own: each takes five cycles in which nothing hits.
    d.open(0, 1, RAW, HostType.FP16, auto_step=0)
    per_page = config.page_lines
    for number in range(lines // per_page):
        queue, page = divmod(number, config.pages)
        for n in range(per_page):
            d.add((0, queue, page, n // config.half_lines, n % config.half_lines), Format.RAW16)
    for stream in (1, 4):  # pages get frames, lines are written, and nothing is held any more
        d.act(True, stream)
        d.until(lambda: d.streamed)
    d.rest()
    seen = {}
    for stream, name in KINDS.items():
        d.act(True, stream)
        d.until(lambda: d.streamed, step=50)
        figures = d.figures()
        seen[name] = lines / (figures.last - figures.first + 1)
        d.act(False)
    d.close()
    return seen


def evictions(config: Config, *, pages: int = 40) -> float:
    """Cycles from CLAIM to RELEASE of clean pages of which the host holds nothing, the median."""
    d = Driver(
        config,
        memory=MemoryTiming(latency=64),
        flash=FlashTiming(latency=300, write_latency=300),
        rules=RunRules(max_skip=0),
    )
    for session in range(config.sessions):
        open_plain(d, session, 1 + session, RAW)
    where = [
        (s, q, p, 0, 0)
        for s in range(config.sessions)
        for q in range(config.queues)
        for p in range(config.pages)
    ][:pages]
    addresses = np.array([d.address(*each) for each in where])
    owners = np.array([1 + each[0] for each in where])
    d.run(Program.writes(addresses, np.zeros((pages, 64), np.uint8), ld_id=owners))
    d.take_commits()
    for _ in range(6):  # pages come back clean, and leave
        d.run(Program.reads(addresses, ld_id=owners))
    commits = d.take_commits().result
    begun, took = {}, []
    for kind, outcome, slot, written, cycle in zip(
        *(commits[name] for name in ("op.kind", "outcome", "op.slot", "op.written")),
        commits.cycle,
        strict=True,
    ):
        if kind == Op.CLAIM and outcome == Outcome.DONE:
            begun[slot] = cycle
        elif kind == Op.RELEASE and outcome == Outcome.DONE and slot in begun:
            cycles = cycle - begun.pop(slot)
            if not written:
                took.append(int(cycles))
    d.close()
    assert len(took) > 20, took
    return statistics.median(took)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.endpoint_rates")
    parser.add_argument("--config", default="trace")
    parser.add_argument("--only", choices=("reads", "evictions"))
    args = parser.parse_args(argv)
    if args.only != "reads":
        config = named("unit_coherent")
        with_it, without = evictions(config), evictions(config.with_(coherence=False))
        print(f"eviction of a clean page that is not held: {with_it} cycles, HDM-H {without}")
    if args.only != "evictions":
        config = named(args.config).with_(coherence=True)
        lines = sizes_of(config).lines // 4
        for name, rate in reads(config, lines=lines).items():
            print(f"{args.config}, {lines} lines, {name}: {rate:.3f} lines a cycle", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
