# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a host does while bits flip, and what it must then see: several tenants read and write at
random, and a dictionary of lines says what is theirs.

The data are such that every stored format holds them exactly, so that the dictionary needs no
arithmetic: an element of a line is n · 2^k, n in −7 … 7, with one k for the line, and the last
element is ±7 · 2^k, also in a partial write."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, FlashTiming, MemoryTiming, Pressure, RunRules
from kelp_rtl.program import PARTIAL, READ, SPEC_READ, WRITE, Program, Response
from kelp_spec.config import Config
from kelp_spec.config_text import configuration
from kelp_spec.formats import Format, HostType
from kelp_spec.metadata import PrefetchSource, ScoreSource

from .flip_model import FlipDriver

__all__ = ["CONFIG", "PRESSURES", "TURN", "Host", "Seen", "ready_device"]

#: Half of each tenant's pages fit. Its codec has eight lanes, which spares a third of the model.
CONFIG: Config = configuration("unit?codec_lanes=8")
_PAGES = 8  # of a queue, in whatever configuration

#: Stored formats of K and V in each layer of a session.
_FORMATS = (
    ((Format.RAW16, Format.RAW16), (Format.FP8_E4M3, Format.FP8_E5M2)),
    ((Format.INT8, Format.INT4), (Format.INT4, Format.INT4)),
)
_LAST = 0xC000_0000_0000_0000  # bytes of a line's last element
_CYCLES = 40_000  # of a program, ten times what it takes

TURN = 4  #: cycles between two looks at memories in which bits are to flip
#: What traffic meets after a flip, in turn.
PRESSURES = (
    Pressure.everywhere(0.1),
    Pressure(drs=0.6, ndr=0.6),
    Pressure(aw=0.5, w=0.5, r=0.4),
    Pressure(command=0.5, completion=0.5, ar=0.5),
)


def _element_bits(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    return (n * np.exp2(k.astype(np.float64))).astype(np.float16).view(np.uint16)


@dataclass
class Seen:
    """What a host sees: lines whose content is neither theirs nor said to be lost (`wrong`), lines
    shown to strangers (`foreign`), and digests of every answer and of when it came."""

    wrong: list[str] = field(default_factory=list)
    poisoned: int = 0
    refused: int = 0
    foreign: int = 0
    answers: str = ""
    cycles: str = ""


class Host:
    """The tenants and their lines; LD-ID `owners[s]` holds session s. `seen` is what they have seen
    since the last `begin`, also where a device broke off."""

    def __init__(self, seed: int, config: Config = CONFIG):
        self.rng = np.random.default_rng(seed)
        self.config = c = config
        self.owners = [1 + s for s in range(c.sessions)]
        self.lines: dict[int, bytes] = {}
        self.places = [
            (s, q, p, kv, line)
            for s in range(c.sessions)
            for q in range(c.queues)
            for p in range(_PAGES)
            for kv in range(2)
            for line in range(c.half_lines)
        ]
        self.seen = Seen()
        self._answers, self._cycles = hashlib.sha256(), hashlib.sha256()

    def device(self, seed: int, **options) -> Driver:
        """What it is the host of."""
        return FlipDriver(self.config, seed=seed, **options)

    def begin(self, driver: Driver, choice: int) -> None:
        """A future of that number, of which nothing has been seen."""
        self.seen = Seen()
        self._answers, self._cycles = hashlib.sha256(), hashlib.sha256()
        self.rng = np.random.default_rng(choice)
        driver.configure(pressure=PRESSURES[choice % len(PRESSURES)])

    def open(self, driver: Driver, session: int) -> None:
        formats = _FORMATS[session]
        driver.open_session(
            session,
            Descriptor(
                layers=len(formats),
                kv_heads=self.config.queues // len(formats),
                host_type=HostType.FP16,
                formats=[(layer, k, v) for layer, (k, v) in enumerate(formats)],
            ),
            QueueParameters(score_source=ScoreSource.OBSERVED, window=1, auto_step=4),
            owner=self.owners[session],
        )

    def reopen(self, driver: Driver, session: int) -> None:
        """Closes a session and opens it for a stranger, who finds nothing."""
        driver.close_session(session)
        self.pass_on(session)
        self.lines = {
            address: data
            for address, data in self.lines.items()
            if driver.addresses.decode(address)[1].session != session
        }
        self.open(driver, session)

    def pass_on(self, session: int) -> None:
        """It is another's from now on."""
        self.owners[session] = 1 + (self.owners[session] + self.config.sessions - 1) % 15

    def play(self, driver: Driver, count: int, turn: Callable[[], object] | None = None) -> None:
        """So many requests; `turn` is called every `TURN` cycles meanwhile."""
        self._follow(driver, self.traffic(driver, count), turn)

    def everything(self, driver: Driver) -> None:
        """Every line is read by its owner."""
        places = np.array([driver.address(*place) for place in self.places], np.uint64)
        owners = np.array([self.owners[place[0]] for place in self.places])
        self._follow(driver, Program.reads(places, ld_id=owners))
        if not driver.irq:
            self.last(driver)

    def strangers(self, driver: Driver) -> None:
        """LD-IDs that own nothing there read, and are to be shown nothing."""
        chosen = [self.places[i] for i in self.rng.integers(0, len(self.places), 40)]
        places = np.array([driver.address(*place) for place in chosen], np.uint64)
        found = driver.run(
            Program.reads(
                places, ld_id=np.array([1 + self.owners[place[0]] % 15 for place in chosen])
            )
        )
        self.seen.foreign += int(found.data[found.response == Response.DATA].any(axis=1).sum())

    def _follow(self, driver, program, turn=None):
        """Runs a program and looks at its answers, also where the device breaks off."""
        options = {"max_cycles": _CYCLES}
        if turn:
            options |= {"progress": lambda *_: turn(), "every": TURN}
        try:
            driver.run(program, **options)
        finally:
            response, order, data, cycles = driver.answered()
            self._see(program, response, order, data)
            self._answers.update(response.tobytes())
            self._answers.update(data[response == Response.DATA].tobytes())
            self._cycles.update(cycles.tobytes())
            self.seen.answers = self._answers.hexdigest()
            self.seen.cycles = self._cycles.hexdigest()

    def traffic(self, driver: Driver, count: int) -> Program:
        """Reads and writes of all tenants; most go to a few pages, and these change."""
        rng, page_lines = self.rng, self.config.page_lines
        pages = rng.permutation(len(self.places) // page_lines)
        near = rng.random(count) < 0.7
        page = np.where(
            near,
            pages[rng.integers(0, 6, count)],
            pages[rng.integers(0, len(pages), count)],
        )
        place = page * page_lines + rng.integers(0, page_lines, count)
        opcode = rng.choice(
            np.array([READ, WRITE, PARTIAL, SPEC_READ], np.uint8), count, p=[0.45, 0.33, 0.19, 0.03]
        )
        address = np.array([driver.address(*self.places[i]) for i in place], np.uint64)
        n = rng.integers(-7, 8, (count, 32))
        n[:, 31] = np.where(rng.random(count) < 0.5, 7, -7)
        data = _element_bits(n, (place % 7 - 3)[:, None]).view(np.uint8).reshape(count, 64)
        elements = rng.random((count, 32)) < 0.3
        enable = (
            np.packbits(np.repeat(elements, 2, axis=1), axis=1, bitorder="little")
            .view("<u8")
            .reshape(count)
        )
        return Program(
            opcode=opcode,
            address=address,
            ld_id=np.array([self.owners[self.places[i][0]] for i in place]),
            data=data,
            data_index=np.where((opcode == WRITE) | (opcode == PARTIAL), np.arange(count), -1),
            byte_enable=np.where(opcode == PARTIAL, enable | np.uint64(_LAST), ~np.uint64(0)),
        )

    def limits(self):
        """(pool, frames) where fewer are used than there are."""
        return []

    def last(self, driver: Driver) -> None:
        """What else a host looks at when every line has been read."""

    def _see(self, program: Program, responses, accept_order, data) -> None:
        """Follows what the device accepted of a program, in that order."""
        zeros = bytes(64)
        for i in np.argsort(accept_order, kind="stable")[(accept_order < 0).sum() :]:
            address, opcode = int(program.address[i]), int(program.opcode[i])
            if address >> self.config.aperture_bits:
                continue
            if opcode in (WRITE, PARTIAL):
                before = self.lines.get(address, zeros)
                written = program.data[program.data_index[i]].tobytes()
                enable = int(program.byte_enable[i])
                self.lines[address] = bytes(
                    new if enable >> b & 1 else old
                    for b, (new, old) in enumerate(zip(written, before, strict=True))
                )
            elif opcode == READ:
                self._read(address, responses[i], data[i].tobytes())

    def _read(self, address: int, response: int, data: bytes) -> None:
        seen = self.seen
        if response == Response.POISON:
            seen.poisoned += 1
        elif response == Response.NXM:
            seen.refused += 1
        elif response == Response.DATA and data != self.lines.get(address, bytes(64)):
            whose = [a for a, held in self.lines.items() if held == data]
            seen.wrong.append(
                f"{address:#x}: "
                + (f"the line of {whose[0]:#x}" if whose else "neither its own line nor another")
            )


def ready_device(seed: int, host: Host | None = None) -> tuple[Driver, Host]:
    """A device with every session open, in traffic for some thousand cycles; that of `host`'s
    configuration, by default CONFIG."""
    host = host or Host(seed)
    driver = host.device(
        seed,
        memory=MemoryTiming(latency=20, jitter=8, shuffle=True),
        flash=FlashTiming(latency=120, write_latency=120, jitter=40),
        pressure=Pressure.everywhere(0.1),
        rules=RunRules(outstanding=256, max_skip=0, stall_limit=30_000),
    )
    driver.assertions(False)  # after a flip they would speak where hardware is silent
    driver.write_registers(
        {
            "cold_timeout": 4_000,
            "starve_limit": 20_000,
            "low_water": 1,
            "high_water": 2,
            "reserve": 1,
            "prefetch_enable": sum(
                1 << source - 1
                for source in (
                    PrefetchSource.WINDOW,
                    PrefetchSource.SPEC_READ,
                    PrefetchSource.LAYER_AHEAD,
                    PrefetchSource.PREVIOUS,
                )
            ),
        }
    )
    driver.write_registers({f"pool_limit_{pool}": frames for pool, frames in host.limits()})
    for session in range(host.config.sessions):
        host.open(driver, session)
    for _ in range(3):
        host.play(driver, 500)
    seen = host.seen
    assert not (seen.wrong or seen.poisoned or seen.refused or seen.foreign), (
        f"seed {seed}, before any flip: {seen}"
    )
    return driver, host
