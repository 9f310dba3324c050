# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rows of `make bench` that need the whole endpoint: hit rates and latency, DRAM traffic, the miss path, cost against size (spec §10)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kelp_spec.config import Config, named
from kelp_spec.formats import Format

from .bench_rows import Row
from .driver import Driver, FlashTiming, MemoryTiming
from .program import READ, WRITE, Program, Result

__all__ = ["endpoint_rows", "miss_rows", "scale_row"]

MEMORY_LATENCY = 64     #: cycles from AR to R: the bar's memory
STREAMS = 16            #: interleaved page-sequential streams
_WARM = 400             #: requests at either end that are not measured: pipelines fill and drain


def _rate(result: Result) -> tuple[float, int]:
    """Answers per cycle between the first and the last of the middle ones."""
    done = np.sort(result.response_cycle[result.response_cycle >= 0])[_WARM:-_WARM]
    return (len(done) - 1) / float(done[-1] - done[0]), int(done[-1] - done[0])


def _lines(driver: Driver, queues: int, pages: int) -> np.ndarray:
    """Addresses [queue, page, line of the page]."""
    c = driver.config
    return np.array([[[driver.address(0, q, p, kv, line) for kv in range(2) for line in range(c.half_lines)] for p in range(pages)] for q in range(queues)],
                    np.uint64)


def _interleaved(pages: np.ndarray) -> np.ndarray:
    """Pages [n, lines] read by `STREAMS` streams, a line of each in turn."""
    n, lines = pages.shape
    return pages.reshape(n // STREAMS, STREAMS, lines).transpose(0, 2, 1).reshape(-1)


def _open(config: Config, fmt: Format, **options) -> Driver:
    driver = Driver(config, memory=MemoryTiming(latency=MEMORY_LATENCY, write_latency=MEMORY_LATENCY))
    driver.open_session(0, layers=1, kv_heads=config.queues, formats=((1023, fmt, fmt),), **options)
    return driver


def endpoint_rows(config_name: str = "64x64") -> Iterator[Row]:
    """All hits: page-sequential reads, writes and both, random lines, random pages, latency, DRAM lines per host line."""
    config = named(config_name)
    rng = np.random.default_rng(1)
    worst = {}
    for fmt in Format:
        driver = _open(config, fmt)
        pages = _lines(driver, 16, 8).reshape(128, -1)
        sequential = _interleaved(pages)
        data = rng.integers(0, 1 << 16, (len(sequential), 32), np.uint16).astype("<u2").view(np.uint8)
        written = driver.run(Program.writes(sequential, data))
        read = driver.run(Program.reads(sequential))
        opcode = np.where(np.arange(len(sequential)) % 2, WRITE, READ)
        mixed = driver.run(Program(opcode=opcode, address=sequential, data=data[: len(sequential) // 2]))
        random_lines = driver.run(Program.reads(rng.permutation(sequential)))
        driver.settle()
        alone = driver.run(Program.reads(rng.choice(sequential, 300), group=np.arange(300)))
        worst[fmt] = int(alone.latency.max()) - MEMORY_LATENCY
        for kind, result in (("read", read), ("write", written), ("mixed", mixed)):
            rate, cycles = _rate(result)
            name = f"endpoint.{kind}_hit.lines_per_cycle" if fmt is Format.RAW16 else f"endpoint.{kind}_hit.{fmt.label}.lines_per_cycle"
            yield Row(name, rate, "lines/cycle", "≥ 0.98", config.name, cycles)
        rate, cycles = _rate(random_lines)
        goal = "≥ 0.98" if fmt is Format.RAW16 else "≥ 0.48"
        yield Row(f"endpoint.random_line_hit.{fmt.label}.lines_per_cycle", rate, "lines/cycle", goal, config.name, cycles)
        goal = {16: "≤ 1", 8: "≤ 0.53", 4: "≤ 0.3"}[fmt.element_bits]
        yield Row(f"endpoint.dram_lines_per_host_line.{fmt.label}", read.counts["memory_reads"] / len(sequential), "lines/line", goal, config.name,
                  read.counts["simulated"])
        if fmt is Format.RAW16:
            first = rng.choice(pages[:, 0], 12_000)
            rate, cycles = _rate(driver.run(Program.reads(first)))
            yield Row("endpoint.random_page.requests_per_cycle", rate, "requests/cycle", "≥ 0.85", config.name, cycles)
        driver.close()
    slowest = max(worst, key=worst.get)
    yield Row("endpoint.hit_latency_cycles", worst[slowest], "cycles", "≤ 20", f"{config.name} ({slowest.label})", 300)


def miss_rows(config_name: str = "64x64") -> Iterator[Row]:
    """A storm of one line per cold page from a tier of 14 bytes/cycle and 25 000 cycles, with hits in between."""
    config = named(config_name)
    driver = Driver(config, memory=MemoryTiming(latency=MEMORY_LATENCY, write_latency=MEMORY_LATENCY), flash=FlashTiming())
    driver.write_registers({"pool_limit_raw16": 1024, "low_water": 2, "high_water": 8})
    driver.open_session(0, layers=1, kv_heads=config.queues)
    pages = _lines(driver, 40, 32)      # more pages than frames: the first ones written go cold
    data = np.random.default_rng(1).integers(0, 256, (pages[..., :2].size, 64), np.uint8)
    driver.run(Program.writes(pages[..., :2].reshape(-1), data))
    driver.settle()
    states = {(q, p): driver.page_word(0, q, p)["state"] for q in range(40) for p in range(32)}
    cold = [pages[q, p, 0] for (q, p), state in states.items() if state == 3]
    hot = [pages[q, p, 0] for (q, p), state in states.items() if state == 1][-16:]
    # Hits keep the link busy while at most `misses` storm requests wait.
    storm = np.array(cold[:240], np.uint64)
    hits = np.resize(np.array(hot, np.uint64), 400 * len(storm))
    address = np.concatenate([np.concatenate([[s], hits[400 * i:400 * i + 400]]) for i, s in enumerate(storm)])
    result = driver.run(Program.reads(address))
    is_storm = np.isin(address, storm)
    landed = np.sort(result.response_cycle[is_storm])
    page_bytes = config.frame_lines[0] * 64 + 512
    busy = float(landed[-1] - landed[0])
    yield Row("misspath.tier_bandwidth_fraction", (len(landed) - 1) * page_bytes / (14 * busy), "fraction", "≥ 0.9", config.name, int(busy))
    inside = (result.response_cycle >= landed[0]) & (result.response_cycle <= landed[-1]) & ~is_storm
    left = busy - len(landed)
    yield Row("misspath.hit_lines_per_cycle", float(inside.sum()) / left if left else 0.0, "lines/cycle", "≥ 0.9", config.name, int(busy))
    driver.close()


def scale_row(config_name: str) -> Row:
    """Cycles per line request at 5 % page misses and 128 lines per access."""
    config = named(config_name)
    driver = Driver(config, memory=MemoryTiming(latency=MEMORY_LATENCY, write_latency=MEMORY_LATENCY), flash=FlashTiming(latency=500, bytes_per_cycle=512.0))
    spread = np.linspace(0, config.queues - 1, 40).astype(int)
    depth = np.linspace(0, config.pages - 1, 16).astype(int)
    driver.write_registers({"pool_limit_raw16": 600, "low_water": 2, "high_water": 8})
    driver.open_session(0, layers=1, kv_heads=config.queues)
    pages = np.array([[driver.address(0, q, p, kv, line) for kv in range(2) for line in range(config.half_lines)] for q in spread for p in depth], np.uint64)
    driver.run(Program.writes(pages[:, 0], np.zeros((len(pages), 64), np.uint8)))
    driver.settle()
    states = [driver.page_word(0, q, p)["state"] for q in spread for p in depth]
    cold = [i for i, state in enumerate(states) if state == 3]
    hot = [i for i, state in enumerate(states) if state == 1]
    rng = np.random.default_rng(1)
    order = []
    for k in range(2 * STREAMS * 10):
        order.append(cold.pop() if k % 20 == 19 and cold else int(rng.choice(hot)))
    result = driver.run(Program.reads(_interleaved(pages[order])))
    driver.close()
    done = result.response_cycle
    cycles = int(done.max() - result.accept_cycle.min())
    return Row(f"scale.cycles_per_request.{config_name}", cycles / len(done), "cycles/request", "", config_name, cycles)
