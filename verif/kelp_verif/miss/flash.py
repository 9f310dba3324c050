# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A cold tier: flash with its own DMA, as the cold-tier port of the endpoint sees it (spec §8,
docs/design.md §5).

:class:`Flash` is plain Python that is told the time; :class:`FlashPort` joins one to a command and
a completion stream in cocotb. A command takes ``latency`` cycles in the medium, each on its own,
then its page and line mask cross a link of ``bytes_per_cycle`` one page after another, and then the
DMA and the completion happen. With ``jitter`` the medium answers out of order.

The model holds the hardware to the port's contract: it raises :class:`ContractError` on an id, an
LBA or a DRAM line that two live commands share.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_spec.config import Config
from kelp_spec.metadata import ColdOp, ColdStatus

__all__ = ["SECTOR_BYTES", "Command", "Completion", "ContractError", "Flash", "FlashPort"]

LINE_BYTES = 64
SECTOR_BYTES = 512


class ContractError(AssertionError):
    """The hardware broke the port's contract."""


@dataclass(frozen=True)
class Command:
    op: ColdOp
    index: int
    attempt: int
    lba: int
    line: int
    lines: int
    valid: int = 0
    poison: int = 0


@dataclass(frozen=True)
class Completion:
    index: int
    attempt: int
    status: ColdStatus
    valid: int = 0
    poison: int = 0


@dataclass
class _Live:
    command: Command
    fails: bool
    gone: bool = False  # aborted: nothing more happens


@dataclass
class Flash:
    """``memory`` has ``read(address, length)`` and ``write(address, bytes)`` in bytes, like
    cocotbext-axi's AxiRam; None moves no data.

    ``fails(command)`` and ``silent(command)`` say, once per READ or WRITE, whether it completes
    with FAILED, or never; of an ERASE the first is asked. ``deaf(command)`` says of an ABORT that
    it works but is never answered. ``pages`` maps an LBA to (bytes, valid, poison).
    """

    memory: object = None
    latency: int = 25_000
    bytes_per_cycle: float = 14.0
    jitter: float = 0.0
    abort_latency: int = 20
    seed: int = 0
    fails: Callable[[Command], bool] = lambda _: False
    silent: Callable[[Command], bool] = lambda _: False
    deaf: Callable[[Command], bool] = lambda _: False
    pages: dict[int, tuple[bytes, int, int]] = field(default_factory=dict)

    def __post_init__(self):
        for name, legal, good in (
            ("latency", "0 and up", self.latency >= 0),
            ("abort_latency", "0 and up", self.abort_latency >= 0),
            ("jitter", "0 … 1", 0 <= self.jitter <= 1),
            ("bytes_per_cycle", "above 0", self.bytes_per_cycle > 0),
        ):
            if not good:
                raise ValueError(f"{name} = {getattr(self, name)!r} is refused; legal: {legal}")
        self.rng = random.Random(self.seed)
        self.live: dict[int, _Live] = {}
        self.lbas: dict[int, int] = {}
        self.frames: dict[int, int] = {}
        self.link_free = 0.0
        self.bytes_moved = 0
        self.done: deque[Completion] = deque()
        self._agenda: list = []  # (time, number, what, argument)
        self._number = 0

    def _at(self, time: float, what: Callable, *arguments) -> None:
        heapq.heappush(self._agenda, (time, self._number, what, arguments))
        self._number += 1

    def submit(self, now: int, command: Command) -> None:
        """A command has been accepted."""
        if command.op == ColdOp.ABORT:
            self._abort(now, command)
            return
        if command.op == ColdOp.ERASE:
            if self.live:
                raise ContractError(f"{command}: {len(self.live)} commands are in flight")
            self._at(now + self.latency, self._erased, command, self.fails(command))
            return
        for what, table, key in (
            ("id", self.live, command.index),
            ("LBA", self.lbas, command.lba),
            ("DRAM line", self.frames, command.line),
        ):
            if key in table:
                raise ContractError(
                    f"{command}: {what} {key} belongs to "
                    + f"{self.live[table[key] if table is not self.live else key].command}"
                )
        entry = _Live(command, self.fails(command))
        self.live[command.index], self.lbas[command.lba], self.frames[command.line] = (
            entry,
            command.index,
            command.index,
        )
        if not self.silent(command):
            self._at(
                now + self.latency * (1 + self.jitter * self.rng.uniform(-1, 1)),
                self._transfer,
                entry,
            )

    def _retire(self, entry: _Live) -> None:
        entry.gone = True
        for table, key in (
            (self.live, entry.command.index),
            (self.lbas, entry.command.lba),
            (self.frames, entry.command.line),
        ):
            del table[key]

    def _abort(self, now: int, command: Command) -> None:
        self._at(now + self.abort_latency, self._aborted, command, self.deaf(command))

    def _aborted(self, time: float, command: Command, deaf: bool) -> None:
        entry = self.live.get(command.index)
        if entry and entry.command.attempt == command.attempt:
            if entry.command.op == ColdOp.READ and self.rng.random() < 0.5:
                self._scribble(entry.command)
            self._retire(entry)
        if not deaf:
            self.done.append(Completion(command.index, command.attempt, ColdStatus.ABORTED))

    def _erased(self, time: float, command: Command, fails: bool) -> None:
        if not fails:
            self.pages.clear()
        status = ColdStatus.FAILED if fails else ColdStatus.OK
        self.done.append(Completion(command.index, command.attempt, status))

    def _transfer(self, time: float, entry: _Live) -> None:
        if entry.gone:
            return
        size = entry.command.lines * LINE_BYTES + SECTOR_BYTES
        self.link_free = max(self.link_free, time) + size / self.bytes_per_cycle
        self._at(self.link_free, self._finish, entry, size)

    def _finish(self, time: float, entry: _Live, size: int) -> None:
        if entry.gone:
            return
        c = entry.command
        self._retire(entry)
        address, length = c.line * LINE_BYTES, c.lines * LINE_BYTES
        valid = poison = 0
        if entry.fails:
            if c.op == ColdOp.READ:
                self._scribble(c)
            else:
                self.pages.pop(c.lba, None)
        elif c.op == ColdOp.READ:
            data, valid, poison = self.pages.get(c.lba, (bytes(length), 0, 0))
            if self.memory:
                self.memory.write(address, data)
        else:
            self.pages[c.lba] = (
                bytes(self.memory.read(address, length)) if self.memory else b"",
                c.valid,
                c.poison,
            )
        if not entry.fails:
            self.bytes_moved += size
        self.done.append(
            Completion(
                c.index,
                c.attempt,
                ColdStatus.FAILED if entry.fails else ColdStatus.OK,
                valid,
                poison,
            )
        )

    def _scribble(self, c: Command) -> None:
        """A READ that does not end well may have written anything into its frame."""
        if self.memory:
            self.memory.write(
                c.line * LINE_BYTES, self.rng.randbytes(self.rng.randint(1, c.lines) * LINE_BYTES)
            )

    def advance(self, now: int) -> None:
        """Let everything happen that is due at ``now``."""
        while self._agenda and self._agenda[0][0] <= now:
            time, _, what, arguments = heapq.heappop(self._agenda)
            what(time, *arguments)

    def next_time(self) -> float | None:
        """When the next thing happens, or None: a driver that skips idle time must not skip beyond
        it."""
        return self._agenda[0][0] if self._agenda else None


class FlashPort:
    """Joins a :class:`Flash` to the ports ``command`` and ``completion`` of ``dut``, with
    back-pressure on both.

    ``pressure`` is the part of the cycles in which a command is not accepted, or a completion that
    waits is not offered. With ``shuffle``, completions that wait overtake each other. ``now``
    counts cycles; a bench that skips time adds to it.
    """

    def __init__(
        self,
        dut,
        flash: Flash,
        config: Config,
        *,
        command: str = "cold_command",
        completion: str = "cold_completion",
        pressure: float = 0.0,
        shuffle: bool = False,
        seed: int = 0,
    ):
        layouts = Layouts(config)
        self.dut, self.flash, self.pressure, self.shuffle = dut, flash, pressure, shuffle
        self.rng = random.Random(seed)
        self.command, self.completion = (
            Packing(layouts.cold_command),
            Packing(layouts.cold_completion),
        )
        parts = ("valid", "ready", "payload")
        self.command_valid, self.command_ready, self.command_payload = (
            getattr(dut, f"{command}__{part}") for part in parts
        )
        self.completion_valid, self.completion_ready, self.completion_payload = (
            getattr(dut, f"{completion}__{part}") for part in parts
        )
        self.offered: Completion | None = None
        self.taken: Completion | None = None  # in the last cycle
        self.accepted = 0
        self.now = 0
        self.command_ready.value = 0
        self.completion_valid.value = 0

    async def run(self):
        """Forever, one cycle at a time: start it with ``cocotb.start_soon``."""
        while True:
            self.drive()
            await ReadOnly()
            self.sample()
            await RisingEdge(self.dut.clk)
            self.now += 1

    def drive(self) -> None:
        """At the beginning of a cycle."""
        self.flash.advance(self.now)
        if self.offered is None and self.flash.done and self.rng.random() >= self.pressure:
            if self.shuffle:
                self.flash.done.rotate(self.rng.randrange(len(self.flash.done)))
            self.offered = c = self.flash.done.popleft()
            self.completion_payload.value = self.completion.pack(
                **{
                    "id.index": c.index,
                    "id.attempt": c.attempt,
                    "status": c.status,
                    "line_mask.valid": c.valid,
                    "line_mask.poison": c.poison,
                }
            )
        self.completion_valid.value = int(self.offered is not None)
        self.command_ready.value = int(self.rng.random() >= self.pressure)

    def sample(self) -> Command | None:
        """In the read-only phase of the cycle: the command accepted in it."""
        self.taken = self.offered if self.completion_ready.value == 1 else None
        if self.taken is not None:
            self.offered = None
        if not (self.command_valid.value == 1 and self.command_ready.value == 1):
            return None
        command = self.shown()
        self.accepted += 1
        self.flash.submit(self.now, command)
        return command

    def shown(self) -> Command:
        """The command that stands at the port."""
        f = self.command.unpack(self.command_payload.value)
        return Command(
            ColdOp(f["op"]),
            f["id.index"],
            f["id.attempt"],
            f["lba"],
            f["line"],
            f["lines"],
            f["line_mask.valid"],
            f["line_mask.poison"],
        )
