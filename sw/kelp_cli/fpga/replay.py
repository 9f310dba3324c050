# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A recording through a board, line by line against the golden model (used by ``kelp fpga
replay``)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from ..output import UserError
from .endpoint_registers import read_registers, write_register

__all__ = ["ENOUGH", "BoardReplay", "crop", "enough", "replay", "write_register"]

_EXAMPLES = 5
_LOOK_SECONDS = 5.0  #: between two looks at a board's clock, which wraps in a minute

#: What a replay asks for at least that is to prove a board.
ENOUGH = {"lines": 1024, "misses": 16, "write_backs": 8, "fetched_pages": 16, "stored_pages": 8}


@dataclass(frozen=True)
class BoardReplay:
    """What came of it. Counters are the board's own, of the replay without its history."""

    lines: int
    history: int
    mismatches: int
    examples: tuple[str, ...]
    counters: dict[str, int]
    counter_mismatches: dict[str, tuple[int, int]]
    fetched_pages: int
    stored_pages: int
    seconds: float
    cycles: int

    @property
    def passed(self) -> bool:
        return not self.mismatches and not self.counter_mismatches


def enough(result: dict) -> bool:
    """Whether a replay, as :class:`BoardReplay` has it, is as large as `ENOUGH`: by the endpoint's
    counters and its cold tier's own."""
    figures = result | result["counters"]
    return all(figures[name] >= least for name, least in ENOUGH.items())


def crop(trace, prefill_pages: int):
    """The recording without its oldest pages, so that `prefill_pages` of the prefill are left: for
    boards whose queues are shorter than the recording's."""
    if not 1 <= prefill_pages <= trace.prefill_pages:
        raise UserError(
            f"--prefill-pages {prefill_pages} is refused; legal: 1 … {trace.prefill_pages}"
        )
    pages = trace.prefill_pages - prefill_pages
    tokens = pages * trace.page_tokens
    parts = {
        name: getattr(trace, name)[:, :, tokens:]
        for name in ("k", "v")
        if getattr(trace, name) is not None
    }
    return replace(
        trace,
        prefill_tokens=trace.prefill_tokens - tokens,
        reads=trace.reads[..., pages:],
        mass=trace.mass[..., pages:],
        **parts,
    )


class _Golden:
    """The golden model in lock-step, request by request."""

    def __init__(self, plan):
        from kelp_golden.lockstep import LockStep
        from kelp_golden.setup import SESSION

        setup = self.setup = plan.setup
        self.plan, self.session, self.endpoint = plan, SESSION, setup.endpoint()
        self.lockstep = LockStep(
            self.endpoint,
            evict_target=max(1, setup.low_water, setup.high_water),
            enable=setup.prefetch,
        )
        self.lockstep.open(SESSION, setup.descriptor)
        self._bytes = plan.lines.tobytes()

    def run(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Requests first … end − 1, of one step: of each whether it is poison, and the data,
        uint8[n, 64]."""
        from kelp_golden.lines import POISONED, ZEROS
        from kelp_golden.ops import Op as TrackerOp
        from kelp_spec.metadata import Op

        versions = []
        for r, row in zip(
            self.plan.requests[first:end], self.plan.row[first:end].tolist(), strict=True
        ):
            write = int(r["write"])
            origin = (self._bytes[64 * row : 64 * row + 64], -1) if write else None
            line = int(r["kv"]) * self.setup.config.half_lines + int(r["line"])
            answer = self.lockstep.request(
                TrackerOp(
                    Op.WRITE if write else Op.READ,
                    self.session,
                    int(r["queue"]),
                    int(r["page"]),
                    line,
                    write,
                    origin=origin,
                )
            )
            versions.append(POISONED if answer.poison else answer.version)
        versions = np.array(versions)
        poison = versions == POISONED
        data = self.endpoint.lines.resolve(np.where(poison, ZEROS, versions))
        return poison, np.ascontiguousarray(data).view(np.uint8).reshape(-1, 64)


class _Clock:
    """Cycles that a board has counted since this was made, up to the latest look. Its register
    begins again every 2³² of them, which is a minute: looks have to be closer to one another than
    that, and a step may take longer, so `keep_up` is called amid it."""

    def __init__(self, host):
        self._host, self.cycles = host, 0
        self._last, self._looked = self._now(), time.monotonic()

    def _now(self) -> int:
        from kelp_fpga.board_registers import BoardRegister

        return self._host.board(BoardRegister.TIME)

    def look(self) -> None:
        now = self._now()
        self.cycles += now - self._last & 0xFFFFFFFF
        self._last, self._looked = now, time.monotonic()

    def keep_up(self, seconds: float = _LOOK_SECONDS) -> None:
        """Look where the latest look is as long ago."""
        if time.monotonic() - self._looked >= seconds:
            self.look()


def _differing(board: dict, golden: dict) -> dict[str, tuple[int, int]]:
    """Counters that a board has otherwise than the golden model: by name, both."""
    return {
        name: (board[f"count_{name}"], golden[name])
        for name in ("accesses", "misses", "evictions", "write_backs", "fetches")
        if board[f"count_{name}"] != golden[name]
    }


def replay(host, plan, *, lines: int, lockstep: bool, progress=None) -> BoardReplay:
    """The history, then whole steps until `lines` lines have been asked for. With `lockstep` each
    request waits until the board is quiescent, and the board's counters must be the golden model's
    as well; otherwise a layer's requests go together and data alone is compared."""
    from kelp_fpga.board_registers import BoardRegister
    from kelp_spec.registers import COUNTERS

    config, setup = plan.setup.config, plan.setup
    golden = _Golden(plan)
    host.reset(lockstep=lockstep)
    host.check_endpoint()
    for name, value in setup.registers():
        write_register(host, name, value)
    requests, step = plan.requests, plan.step
    address = (
        (
            (
                requests["queue"].astype(np.uint64) << np.uint64(config.page_bits)
                | requests["page"].astype(np.uint64)
            )
            << np.uint64(1)
            | requests["kv"].astype(np.uint64)
        )
        << np.uint64(config.half_line_bits)
        | requests["line"].astype(np.uint64)
    ) << np.uint64(6)
    names = [f"count_{name}" for name, _ in COUNTERS]
    history = plan.history
    ends = np.flatnonzero(np.diff(step, append=-2)) + 1
    last = int(ends[np.searchsorted(ends, min(history + lines, len(requests)))])
    first, examples, mismatches, before = 0, [], 0, {}
    began, clock = time.monotonic(), _Clock(host)
    for end in ends[ends <= last].tolist():
        if first == history:
            before = dict(zip(names, read_registers(host, names), strict=True))
            pages = host.board(BoardRegister.FETCHES), host.board(BoardRegister.STORES)
            began, clock = time.monotonic(), _Clock(host)
        if step[first] >= 0:
            write_register(host, *setup.advance())
        # A step's layers one after another: reads and writes of one layer go together, which never
        # name the same line.
        layer = requests["queue"][first:end] // setup.kv_heads
        write = requests["write"][first:end].astype(bool)
        got, poison = np.zeros((end - first, 64), np.uint8), np.zeros(end - first, bool)
        groups = (
            np.arange(end - first)
            if lockstep
            else np.cumsum(
                (np.diff(layer, prepend=layer[0]) != 0) | (np.diff(write, prepend=write[0]) != 0)
            )
        )
        for group in range(int(groups[-1]) + 1):
            at = np.flatnonzero(groups == group)
            if lockstep:
                host.wait("quiescent", 60)
            if write[at[0]]:
                host.write(address[first + at], plan.lines[plan.row[first + at]])
            else:
                got[at], poison[at], nxm = host.read(address[first + at])
                if nxm.any():
                    raise UserError(
                        "the board answers NXM to request "
                        + f"{first + int(at[np.flatnonzero(nxm)[0]])}"
                    )
            clock.keep_up()
            if progress is not None:
                progress(first + int(at[-1]) + 1, last)
        if lockstep:
            host.wait("quiescent", 60)
        clock.look()
        golden.lockstep.step(golden.session)
        wanted_poison, wanted = golden.run(first, end)
        bad = ~write & ((poison != wanted_poison) | ((got != wanted).any(axis=1) & ~wanted_poison))
        mismatches += int(bad.sum())
        examples += [
            f"request {first + i}: board {got[i].tobytes().hex()}, golden "
            + f"{wanted[i].tobytes().hex()}"
            for i in np.flatnonzero(bad).tolist()
        ]
        first = end
    seconds = time.monotonic() - began
    after = dict(zip(names, read_registers(host, names), strict=True))
    return BoardReplay(
        lines=last - history,
        history=history,
        mismatches=mismatches,
        examples=tuple(examples[:_EXAMPLES]),
        counters={name: after[f"count_{name}"] - before[f"count_{name}"] for name, _ in COUNTERS},
        counter_mismatches=_differing(after, golden.endpoint.counters) if lockstep else {},
        fetched_pages=host.board(BoardRegister.FETCHES) - pages[0],
        stored_pages=host.board(BoardRegister.STORES) - pages[1],
        seconds=seconds,
        cycles=clock.cycles,
    )
