# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rows of `make bench` that need the whole endpoint: hit rates and latency, DRAM traffic, the miss
path, cost against size (spec §10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kelp_rtl.device import Descriptor, Driver, FlashTiming, MemoryTiming, QueueParameters
from kelp_rtl.program import READ, WRITE, Program, Result
from kelp_spec.config import Config
from kelp_spec.config_text import configuration
from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.metadata import PageState
from kelp_spec.policy import Policy
from kelp_spec.registers import SessionCommand

from .rows import Row

__all__ = ["dirty_pressure", "endpoint_rows", "kelp_rows", "miss_rows", "scale_row"]

MEMORY_LATENCY = 64  #: cycles from AR to R: the bar's memory
STREAMS = 16  #: interleaved page-sequential streams
SECTOR_BYTES = 512  #: validity and poison, beside the page in its cold slot
_CLEANING = 12  #: passes over all pages, in random order, until nothing dirty is evicted
#: hits between two requests of the storm, a little fewer than the cycles of a page on the tier's
#: link
_STORM_HITS = 600
_LEAST = 4096  #: lines of a run
_WARM = 400  #: requests at either end that are not measured: pipelines fill and drain


def _rate(result: Result) -> tuple[float, int]:
    """Answers per cycle between the first and the last of the middle ones."""
    done = np.sort(result.response_cycle[result.response_cycle >= 0])[_WARM:-_WARM]
    return (len(done) - 1) / float(done[-1] - done[0]), int(done[-1] - done[0])


def _lines(driver: Driver, queues: int, pages: int) -> np.ndarray:
    """Addresses [queue, page, line of the page]."""
    c = driver.config
    return np.array(
        [
            [
                [
                    driver.address(0, q, p, kv, line)
                    for kv in range(2)
                    for line in range(c.half_lines)
                ]
                for p in range(pages)
            ]
            for q in range(queues)
        ],
        np.uint64,
    )


def _interleaved(pages: np.ndarray) -> np.ndarray:
    """Pages [n, lines] read by `STREAMS` streams, a line of each in turn."""
    n, lines = pages.shape
    return pages.reshape(n // STREAMS, STREAMS, lines).transpose(0, 2, 1).reshape(-1)


def _open(
    config: Config, fmt: Format, policy: int = Policy.EMA, latency: int = MEMORY_LATENCY
) -> Driver:
    driver = Driver(config, memory=MemoryTiming(latency=latency, write_latency=latency))
    driver.open_session(
        0,
        Descriptor(layers=1, kv_heads=config.queues, formats=((1023, fmt, fmt),)),
        QueueParameters(policy=policy),
    )
    return driver


def endpoint_rows(
    config_name: str = "64x64",
    formats: Iterable[Format] = tuple(Format),
    *,
    latency: int = MEMORY_LATENCY,
) -> Iterator[Row]:
    """All hits: page-sequential reads, writes and both, random lines, random pages, latency, DRAM
    lines per host line, whose bar is for pages of 128 lines. A configuration with few line slots
    needs a memory of less `latency` than the bars are for."""
    config = configuration(config_name)
    rng = np.random.default_rng(1)
    worst = {}
    for fmt in formats:
        driver = _open(config, fmt, latency=latency)
        queues = min(config.queues, 16)
        pages = _lines(driver, queues, min(8, min(config.frames) // queues))
        pages = pages.reshape(-1, config.page_lines)
        sequential = np.resize(_interleaved(pages), max(pages.size, _LEAST))
        data = (
            rng.integers(0, 1 << 16, (len(sequential), 32), np.uint16).astype("<u2").view(np.uint8)
        )
        written = driver.run(Program.writes(sequential, data))
        read = driver.run(Program.reads(sequential))
        opcode = np.where(np.arange(len(sequential)) % 2, WRITE, READ)
        mixed = driver.run(
            Program(opcode=opcode, address=sequential, data=data[: len(sequential) // 2])
        )
        random_lines = driver.run(Program.reads(rng.permutation(sequential)))
        driver.settle()
        alone = driver.run(Program.reads(rng.choice(sequential, 300), group=np.arange(300)))
        worst[fmt] = int(alone.latency.max()) - latency, alone.counts["simulated"]
        for kind, result in (("read", read), ("write", written), ("mixed", mixed)):
            rate, cycles = _rate(result)
            name = (
                f"endpoint.{kind}_hit.lines_per_cycle"
                if fmt is Format.RAW16
                else f"endpoint.{kind}_hit.{fmt.label}.lines_per_cycle"
            )
            yield Row(name, rate, "lines/cycle", "≥ 0.98", config.name, cycles)
        rate, cycles = _rate(random_lines)
        goal = "≥ 0.98" if fmt is Format.RAW16 else "≥ 0.48"
        yield Row(
            f"endpoint.random_line_hit.{fmt.label}.lines_per_cycle",
            rate,
            "lines/cycle",
            goal,
            config.name,
            cycles,
        )
        goal = {16: "≤ 1", 8: "≤ 0.53", 4: "≤ 0.3"}[fmt.element_bits]
        yield Row(
            f"endpoint.dram_lines_per_host_line.{fmt.label}",
            read.counts["memory_reads"] / len(sequential),
            "lines/line",
            goal,
            config.name,
            read.counts["simulated"],
        )
        if fmt is Format.RAW16:
            first = rng.choice(pages[:, 0], 12_000)
            rate, cycles = _rate(driver.run(Program.reads(first)))
            yield Row(
                "endpoint.random_page.requests_per_cycle",
                rate,
                "requests/cycle",
                "≥ 0.85",
                config.name,
                cycles,
            )
        driver.close()
    slowest = max(worst, key=worst.get)
    cycles, measured = worst[slowest]
    yield Row(
        "endpoint.hit_latency_cycles",
        cycles,
        "cycles",
        "≤ 20",
        f"{config.name} ({slowest.label})",
        measured,
    )


def kelp_rows(config_name: str = "64x64") -> Iterator[Row]:
    """Under policy `kelp`: hits page by page, random pages, latency, and the miss path."""
    config = configuration(config_name)
    rng = np.random.default_rng(1)
    driver = _open(config, Format.RAW16, Policy.KELP)
    pages = _lines(driver, 16, 8).reshape(128, -1)
    sequential = _interleaved(pages)
    driver.run(
        Program.writes(sequential, rng.integers(0, 256, (len(sequential), LINE_BYTES), np.uint8))
    )
    rate, cycles = _rate(driver.run(Program.reads(sequential)))
    yield Row(
        "endpoint.kelp.read_hit.lines_per_cycle", rate, "lines/cycle", "≥ 0.98", config.name, cycles
    )
    rate, cycles = _rate(driver.run(Program.reads(rng.choice(pages[:, 0], 12_000))))
    yield Row(
        "endpoint.kelp.random_page.requests_per_cycle",
        rate,
        "requests/cycle",
        "≥ 0.85",
        config.name,
        cycles,
    )
    driver.settle()
    alone = driver.run(Program.reads(rng.choice(sequential, 300), group=np.arange(300)))
    yield Row(
        "endpoint.kelp.hit_latency_cycles",
        int(alone.latency.max()) - MEMORY_LATENCY,
        "cycles",
        "≤ 20",
        config.name,
        alone.counts["simulated"],
    )
    driver.close()
    yield from miss_rows(config_name, policy=Policy.KELP)
    yield from _pressure_rows(config)


def miss_rows(config_name: str = "64x64", *, policy: Policy = Policy.EMA) -> Iterator[Row]:
    """A storm of one line per cold page from a tier of 14 bytes/cycle and 25 000 cycles, with hits
    on 16 streams in between.

    A request of the storm every `_STORM_HITS` hits asks for slightly more than the tier gives. At
    first every frame equals its cold copy, so that the tier's bandwidth is the fetches' alone.
    `one_hot_queue`: the same, with all the streams in one queue. `dirty`: the storm writes, and
    every frame was written before, so that each fetch costs a write-back too, and the storm asks
    half as often; eviction keeps as many frames free as it can have on their way to the flash.
    """
    config = configuration(config_name)
    driver = Driver(
        config,
        memory=MemoryTiming(latency=MEMORY_LATENCY, write_latency=MEMORY_LATENCY),
        flash=FlashTiming(),
    )
    driver.write_registers(
        {"pool_limit_raw16": 384, "low_water": 2, "high_water": config.write_backs}
    )
    driver.open_session(
        0, Descriptor(layers=1, kv_heads=config.queues), QueueParameters(policy=policy)
    )
    pages = _lines(driver, 24, 32)  # [queue, page, line]: twice as many pages as frames
    lines = pages.reshape(768, -1)
    rng = np.random.default_rng(1)
    driver.run(Program.writes(lines[:, 0], rng.integers(0, 256, (len(lines), 64), np.uint8)))
    order = np.random.default_rng(2)
    for _ in range(_CLEANING):
        driver.session_command(0, SessionCommand.ADVANCE, 1)
        cleaned = driver.run(Program.reads(order.permutation(lines[:, 0])))
        driver.settle()
        if not cleaned.counts["flash_writes"]:
            break
    for name, hits in (
        ("", _STORM_HITS),
        (".one_hot_queue", _STORM_HITS),
        (".dirty", 2 * _STORM_HITS),
    ):
        driver.session_command(0, SessionCommand.ADVANCE, 1)
        states = np.array(
            [[driver.page_word(0, q, p)["state"] for p in range(32)] for q in range(24)]
        )
        resident = pages[states == PageState.RESIDENT][:, 0]
        if name == ".dirty":
            driver.run(
                Program.writes(resident, rng.integers(0, 256, (len(resident), 64), np.uint8))
            )
            driver.session_command(0, SessionCommand.ADVANCE, 1)
        listed = [np.flatnonzero(states[q] == PageState.RESIDENT) for q in range(24)]
        most = max(range(24), key=lambda q: len(listed[q]))
        # A page of every queue that has any, then another one of each.
        spread = [(q, p) for k in range(32) for q in range(24) for p in listed[q][k : k + 1]]
        where = [(most, p) for p in listed[most]] if name == ".one_hot_queue" else spread
        hot = np.array([pages[at] for at in where[:STREAMS]])
        opcode = WRITE if name == ".dirty" else READ
        fraction, answered, cycles = _storm(
            driver, opcode, pages[states == PageState.COLD][:240, 0], hot, hits
        )
        of = "" if policy == Policy.EMA else f".{policy.name.lower()}"
        yield Row(
            f"misspath{of}{name}.tier_bandwidth_fraction",
            fraction,
            "fraction",
            "≥ 0.9",
            config.name,
            cycles,
        )
        yield Row(
            f"misspath{of}{name}.hit_lines_per_cycle",
            answered,
            "lines/cycle",
            "≥ 0.9",
            config.name,
            cycles,
        )
    driver.close()


def _storm(
    driver: Driver, opcode: int, cold: np.ndarray, hot: np.ndarray, between: int
) -> tuple[float, float, int]:
    """One read or write of each `cold` page's line, `between` hits after each. Returns the share of
    the tier's bandwidth that was used while there was something to fetch, the hits answered in each
    cycle that no storm answer took, and the cycles."""
    driver.run(Program.reads(hot[:, 0]))
    driver.settle()
    address = np.concatenate(
        [cold[:, None], np.resize(hot[:, 0], (len(cold), between))], axis=1
    ).reshape(-1)
    is_storm = np.tile(np.arange(between + 1) == 0, len(cold))
    data = np.zeros((len(cold) if opcode == WRITE else 0, LINE_BYTES), np.uint8)
    result = driver.run(
        Program(opcode=np.where(is_storm, opcode, READ), address=address, data=data)
    )
    landed = np.sort(result.response_cycle[is_storm])
    # The last page lands when the last request has long been accepted: the link is judged while
    # there is something to answer.
    first, last = int(landed[0]), int(result.accept_cycle.max())
    inside = landed[(landed >= first) & (landed <= last)]
    cycles = int(inside[-1] - first)
    page_bytes = driver.config.frame_lines[0] * LINE_BYTES + SECTOR_BYTES
    # At most one write-back for each fetch counts: the two alternate on the link, and the rest
    # belongs to the time after the storm.
    moved = (
        (len(inside) - 1)
        * page_bytes
        * (1 + min(1, result.counts["flash_writes"] / result.counts["flash_reads"]))
    )
    answered = (
        ~is_storm & (result.response_cycle >= first) & (result.response_cycle <= inside[-1])
    ).sum()
    driver.settle()
    return (
        moved / (FlashTiming().bytes_per_cycle * cycles),
        float(answered) / (cycles - len(inside)),
        cycles,
    )


def _pressure_rows(config: Config) -> Iterator[Row]:
    """:func:`dirty_pressure` of both policies."""
    fractions = {}
    for policy, of in ((Policy.EMA, ""), (Policy.KELP, ".kelp")):
        fractions[policy], cycles = dirty_pressure(config, policy, pages=32, limit=384, passes=2)
        yield Row(
            f"misspath{of}.pressure.tier_bandwidth_fraction",
            fractions[policy],
            "fraction",
            "≥ 0.9",
            config.name,
            cycles,
        )
    yield Row(
        "misspath.kelp.pressure.tier_bandwidth_of_policy_0",
        fractions[Policy.KELP] / fractions[Policy.EMA],
        "ratio",
        "≥ 0.9",
        config.name,
        cycles,
    )


def dirty_pressure(
    config: Config,
    policy: Policy,
    *,
    pages: int,
    limit: int,
    passes: int,
    flash: FlashTiming = FlashTiming(),
) -> tuple[float, int]:
    """Share of the tier's bandwidth that is used, and the cycles, while a line of each of `pages`
    pages of 24 queues (or as many as there are) is written, `passes` times in random order and as
    fast as the endpoint takes it, with `limit` frames. Nothing is kept free but the frame of the
    documented reserve (`low_water` 0, `high_water` 1), and every victim is dirty."""
    driver = Driver(
        config,
        memory=MemoryTiming(latency=MEMORY_LATENCY, write_latency=MEMORY_LATENCY),
        flash=flash,
    )
    queues = min(config.queues, 24)
    driver.write_registers({"pool_limit_raw16": limit, "low_water": 0, "high_water": 1})
    driver.open_session(
        0,
        Descriptor(layers=2, kv_heads=queues // 2),
        QueueParameters(policy=policy, auto_step=queues * pages // 4),
    )
    first = _lines(driver, queues, pages)[:, :, 0].reshape(-1)
    rng = np.random.default_rng(1)
    address = np.concatenate([rng.permutation(first) for _ in range(passes + 1)])
    data = rng.integers(0, 256, (len(address), LINE_BYTES), np.uint8)
    driver.run(Program.writes(address[: len(first)], data[: len(first)]))  # allocations
    result = driver.run(Program.writes(address[len(first) :], data[len(first) :]))
    driver.close()
    cycles = int(result.response_cycle.max() - result.accept_cycle.min())
    page_bytes = config.frame_lines[0] * LINE_BYTES + SECTOR_BYTES
    moved = page_bytes * (result.counts["flash_reads"] + result.counts["flash_writes"])
    return moved / (flash.bytes_per_cycle * cycles), cycles


def scale_row(config_name: str) -> Row:
    """Cycles per line request at 5 % page misses and 128 lines per access."""
    config = configuration(config_name)
    driver = Driver(
        config,
        memory=MemoryTiming(latency=MEMORY_LATENCY, write_latency=MEMORY_LATENCY),
        flash=FlashTiming(latency=500, bytes_per_cycle=512.0),
    )
    spread = np.linspace(0, config.queues - 1, 40).astype(int)
    depth = np.linspace(0, config.pages - 1, 16).astype(int)
    driver.write_registers({"pool_limit_raw16": 600, "low_water": 2, "high_water": 8})
    driver.open_session(0, Descriptor(layers=1, kv_heads=config.queues))
    pages = np.array(
        [
            [
                driver.address(0, q, p, kv, line)
                for kv in range(2)
                for line in range(config.half_lines)
            ]
            for q in spread
            for p in depth
        ],
        np.uint64,
    )
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
    return Row(
        f"scale.cycles_per_request.{config_name}",
        cycles / len(done),
        "cycles/request",
        "",
        config_name,
        cycles,
    )
