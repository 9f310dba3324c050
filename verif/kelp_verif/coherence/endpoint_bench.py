# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The whole endpoint between a host that caches (endpoint_host.cpp), a memory and a cold tier:
`python -m kelp_verif.coherence.endpoint_bench --transactions 1000000`.

Sessions of all five formats, pools that are too small for their pages, sessions that close while
lines are held. What is read must be what was written, rounded as the golden codec rounds it."""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from kelp_golden import codec
from kelp_hw.layouts import Layouts
from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import (
    Driver,
    DriverError,
    Failure,
    FlashTiming,
    MemoryTiming,
    Pressure,
    RunRules,
)
from kelp_rtl.records import Records
from kelp_spec.address import AddressMap
from kelp_spec.config import Config, named
from kelp_spec.formats import Format, HostType
from kelp_spec.metadata import ColdOp, Event, PrefetchSource, ScoreSource
from kelp_verif.harness.covered import leave_figures

__all__ = [
    "FAILING",
    "FORMATS",
    "HOST_TYPES",
    "WEATHERS",
    "CachingDriver",
    "made",
    "each_weather",
    "main",
    "open_plain",
    "settings",
    "some_lines",
    "weather",
]

CLOSED, OPEN, CLOSING = range(3)
#: Stored formats of K and V in each layer of a session.
FORMATS = (
    ((Format.RAW16, Format.RAW16), (Format.FP8_E4M3, Format.FP8_E5M2)),
    ((Format.INT8, Format.INT4), (Format.INT4, Format.INT4)),
)
HOST_TYPES = (HostType.FP16, HostType.BF16)
_KINDS = "none read_shared read_any own look clean_evict write_i write_s write_a uncached".split()


class _Options(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "seed req rwd birsp bisnp acts late silent refuse uncached partial unused dwell "
            + "patience timeout notes errs bad hints registers hint_base register_base "
            + "keeps deaf strangers flood nonsense babble blocks runs no_op"
        ).split()
    ]


class Figures(ctypes.Structure):
    """What the host counted."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "transactions hits snoops conflicts ack_first ack_after silent too_late refused "
                + "granted poisoned rounded_writes left first last wrong nxm foreign "
                + "spoilt hints registers gathered gathered_nxm called_home answers times "
                + "kept healed dropped given owed_longest line_longest aside_longest beside "
                + "late_writes late_reads stale_rsps strange odd odd_snoops babbled blocks"
            ).split()
        ),
        ("done", ctypes.c_uint64 * len(_KINDS)),
    ]

    def as_dict(self) -> dict:
        counts = {name: getattr(self, name) for name, *_ in self._fields_[:-1]}
        return counts | dict(zip(_KINDS[1:], self.done[1:], strict=True))


_ROUNDER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_uint8 * 64),
    ctypes.POINTER(ctypes.c_uint8 * 64),
)


def some_values(seed: int, count: int = 400) -> np.ndarray:
    """Lines of all kinds: normal ones, zeros, huge and tiny ones, with infinities and NaNs."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((count, 32)) * np.exp2(rng.integers(-8, 9, (count, 1)))).astype(
        np.float16
    )
    lines = values.view(np.uint16)
    lines[rng.random((count, 32)) < 0.1] = 0
    special = rng.random((count, 32)) < np.where(rng.random((count, 1)) < 0.15, 0.1, 0)
    lines[special] = rng.integers(0, 1 << 16, special.sum())
    lines[0] = 0
    return np.ascontiguousarray(lines.view(np.uint8).reshape(count, 64))


def open_plain(
    driver: Driver,
    session: int,
    owner: int,
    formats,
    host_type=HostType.FP16,
    auto_step: int = 4,
) -> None:
    """Opens a session of so many layers as there are pairs of formats."""
    driver.open_session(
        session,
        Descriptor(
            layers=len(formats),
            kv_heads=driver.config.queues // len(formats),
            host_type=host_type,
            formats=[(layer, k, v) for layer, (k, v) in enumerate(formats)],
        ),
        QueueParameters(score_source=ScoreSource.OBSERVED, window=1, auto_step=auto_step),
        owner=owner,
    )


class CachingDriver(Driver):
    """A driver whose endpoint a caching host uses, too.

    Parameters
    ----------
    config : Config
    options
        Of the host (`_Options`), and of `Driver`.

    Attributes
    ----------
    judged : int
        Commits that were compared with the golden model's, by who does so (`AuditedDriver`).
    """

    judged = 0
    BESIDE = Path(__file__).with_name("endpoint_host.cpp")

    def __init__(self, config: Config, *, seed: int = 1, driver=(), **options):
        super().__init__(config, seed=seed, **dict(driver))
        chosen = {
            "seed": seed,
            **dict.fromkeys(("req", "rwd", "birsp", "bisnp"), 256),
            "acts": 2,
            "uncached": 60,
            "partial": 80,
            "unused": 30,
            "patience": 60_000,
            "blocks": 1,
            "runs": 200,
            "hint_base": AddressMap(config).hint_base // 64,
            "register_base": AddressMap(config).register_base // 64,
            **options,
        }
        unknown = chosen.keys() - {name for name, _ in _Options._fields_}
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        self._chosen = chosen
        self.options = _Options(**chosen)
        self._rounder = _ROUNDER(self._round)  # C++ calls it while the host lives
        call = self._call
        for name, result, count in (
            ("new", ctypes.c_void_p, 3),
            ("options", None, 2),
            ("values", None, 3),
            ("act", None, 3),
            ("streamed", ctypes.c_int, 1),
            ("flush", ctypes.c_int, 1),
            ("waiting", ctypes.c_uint64, 1),
            ("held", ctypes.c_uint64, 1),
            ("snooped", ctypes.c_uint64, 1),
            ("told", ctypes.c_uint64, 3),
            ("given_up", ctypes.c_uint64, 3),
            ("figures", None, 2),
        ):
            function = getattr(call, f"caching_{name}")
            function.restype = result
            function.argtypes = [ctypes.c_void_p] * count
        for many in (call.caching_told, call.caching_given_up):
            many.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        call.caching_values.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        call.caching_act.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
        call.caching_session_waiting.restype = ctypes.c_uint64
        call.caching_session_waiting.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        call.caching_notes.restype = ctypes.c_char_p
        call.caching_notes.argtypes = [ctypes.c_void_p]
        call.caching_line.restype = None
        call.caching_line.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint64,
            *[ctypes.c_uint32] * 3,
        ]
        call.caching_phase.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_uint32] * 3
        self.host = call.caching_new(
            self._simulation, ctypes.addressof(self.options), self._rounder
        )
        values = some_values(seed)
        call.caching_values(self.host, values.ctypes.data, len(values))
        self.host_types = [HostType.FP16] * config.sessions
        self.lines: list[tuple[int, int]] = []
        self.phases = [CLOSED] * config.sessions
        self.failed: BaseException | None = None
        self.longest_close = 0

    def _round(self, session, fmt, source, target):
        """What a line reads as that is written as `source`."""
        try:
            rows = np.frombuffer(source.contents, "<u2").astype(np.uint16).reshape(1, -1)
            kind, fmt = self.host_types[session], Format(fmt)
            stored = codec.round_trip(rows, kind, fmt).astype("<u2")
            ctypes.memmove(target, stored.tobytes(), 64)
        except BaseException as problem:  # ctypes would only print it
            self.failed = problem

    def add(self, where: tuple[int, int, int, int, int], fmt: Format) -> None:
        """A line that the host uses: session, queue, page, K or V, line of its half."""
        session, queue, page, *_ = where
        address, squeue = self.address(*where), session * self.config.queues + queue
        self._call.caching_line(self.host, address // 64, session, int(fmt), squeue << 16 | page)
        self.lines.append((address, session))

    def phase(self, session: int, phase: int, ld_id: int = 0) -> None:
        """Tells the host that a session opens, begins to close, is closed."""
        self.phases[session] = phase
        self._check(self._call.caching_phase(self._simulation, self.host, session, phase, ld_id))

    def act(self, on: bool, stream: int = 0) -> None:
        """Whether the host begins anything of its own; it answers snoops in any case."""
        self._call.caching_act(self.host, int(on), stream)

    def reset(self, cycles: int = 2, *, seed: int | None = None) -> None:
        """The host forgets as much as the device: nothing is held, and no session is open."""
        super().reset(cycles, seed=seed)
        self.phases = [CLOSED] * self.config.sessions

    def told(self) -> Records:
        """Every event so far as the log was told of it, whether or not it had room."""
        rows = self._rows(self._call.caching_told, 2)
        words = np.ascontiguousarray(rows[:, 1]).view("<u4").reshape(-1, 2)
        times = rows[:, 0].astype(np.int64)
        return Records(Layouts(self.config).event, words, times, times, times)

    def _rows(self, function, columns):
        count = function(self.host, None, 0)
        rows = np.empty((count, columns), np.uint64)
        function(self.host, rows.ctypes.data, count)
        return rows

    def account(self) -> None:
        """Each line that the host did not give back is poison and has its event, by its name, once,
        and no other line has."""
        told, f = self.told(), self.figures()
        lost = told["code"] == Event.SNOOP_LOST
        page = told["squeue"][lost] << 16 | told["page"][lost]
        named = page << 16 | told["argument"][lost] & 0x7FFF
        given_up = self._rows(self._call.caching_given_up, 1)[:, 0].astype(np.int64)
        assert sorted(named) == sorted(given_up), "SNOOP_LOST names other lines than are given up"
        owed = f.silent + f.refused + f.kept
        assert len(given_up) == owed, f"{len(given_up)} lines were given up, the host owed {owed}"
        late, unasked = f.too_late + f.stale_rsps, (told["code"] == Event.BIRSP_UNASKED).sum()
        assert unasked == late, f"{late} BIRsp came too late, {unasked} events tell of one"

    @property
    def waiting(self) -> bool:
        """Something of the host's is not answered."""
        return bool(self._call.caching_waiting(self.host))

    @property
    def snooped(self) -> int:
        """Lines that were called back, and are not given back yet."""
        return self._call.caching_snooped(self.host)

    def figures(self) -> Figures:
        figures = Figures()
        self._call.caching_figures(self.host, ctypes.addressof(figures))
        return figures

    def choose(self, **options) -> None:
        """Other options of the host, from the next cycle on."""
        self.options = _Options(**self._chosen | options)
        self._call.caching_options(self.host, ctypes.addressof(self.options))

    def notes(self) -> list[str]:
        """What an agent has seen that it must not, with the option `notes`."""
        return self._call.caching_notes(self.host).decode().splitlines()

    def until(self, condition, *, step: int = 200, limit: int = 50_000_000) -> None:
        """Lets the host go on until `condition()`."""
        done = 0
        while not condition():
            self.idle(step)
            done += step
            if self.failed:
                raise self.failed
            assert done < limit, "the host never comes to an end"

    def play(self, transactions: int) -> None:
        """So many more transactions."""
        goal = self.figures().transactions + transactions
        self.act(True)
        self.until(lambda: self.figures().transactions >= goal)
        self.act(False)

    def rest(self) -> None:
        """Dirty lines go home, and nothing is under way."""
        self.act(False)
        self.until(lambda: self._call.caching_flush(self.host))
        self.until(lambda: not self.waiting)

    def stream(self, number: int) -> None:
        """Each line in order, as endpoint_host.cpp numbers the ways."""
        self.act(True, stream=number)
        self.until(lambda: self.streamed)
        self.act(False)

    def look(self) -> None:
        """Every line of an open session is read past the caches and compared."""
        self.rest()
        before = self.figures().done[_KINDS.index("look")]
        self.stream(3)
        usable = sum(self.phases[session] == OPEN for _, session in self.lines)
        assert self.figures().done[_KINDS.index("look")] - before == usable

    def finish(self) -> None:
        """The run is over: for those who judge more than what agents read."""

    def open(
        self, session: int, owner: int, formats, host_type: HostType, auto_step: int = 4
    ) -> None:
        """Opens a session whose lines the host may use from now on."""
        self.host_types[session] = host_type
        open_plain(self, session, owner, formats, host_type, auto_step)
        self.phase(session, OPEN, owner)

    @property
    def streamed(self) -> bool:
        """The stream that `act` began is over."""
        return bool(self._call.caching_streamed(self.host))

    def end(self, session: int) -> None:
        """Closes a session while the host holds lines of it, dirty ones too, and other tenants go
        on."""
        self.phase(session, CLOSING)
        self.act(True)
        before = self.time
        self.close_session(session)
        self.longest_close = max(self.longest_close, self.time - before)
        self.act(False)
        self.until(lambda: self._quiet(session))
        self.phase(session, CLOSED)

    def close_session(self, session: int) -> None:
        """Closes a session and waits until it is closed. What was refused last may be a command of
        its tenant's that came behind the CLOSE."""
        try:
            super().close_session(session)
        except DriverError:
            if self._broken:  # that is no refusal, and nothing can be read any more
                raise
            state = self.read_fields(f"s{session}_state")
            if state["open"] or state["busy"]:
                raise

    def _quiet(self, session):
        return not self._call.caching_session_waiting(self.host, session)


#: Everything in every cycle, and channels that stand still most of the time.
SMOOTH = {}
ROUGH = {"req": 60, "rwd": 60, "birsp": 60, "bisnp": 60}
SILENT = {"silent": 6, "refuse": 6, "timeout": 2_000}
POISON = {"bad": 30}
#: Name → options of the host, back-pressure of the other channels.
WEATHERS = {
    "smooth": (SMOOTH, Pressure()),
    "dwelling": ({"dwell": 20, "late": 20}, Pressure.everywhere(0.05)),
    "rough": ({**ROUGH, "late": 60}, Pressure.everywhere(0.4)),
    "slow RwD": ({"rwd": 16, "dwell": 60}, Pressure()),
    "slow BIRsp": ({"birsp": 8, "dwell": 60}, Pressure()),
    "slow NDR": (SMOOTH, Pressure(ndr=0.9)),
    "slow DRS": (SMOOTH, Pressure(drs=0.9)),
    "slow memory": (SMOOTH, Pressure(ar=0.8, aw=0.8, w=0.5, r=0.5, b=0.8)),
    "uncached": ({"uncached": 200}, Pressure.everywhere(0.1)),
    # Most lines are owned for nothing, and pages leave that were never written.
    "unused": ({"unused": 240, "uncached": 10}, Pressure.everywhere(0.1)),
    "silent": (SILENT, Pressure.everywhere(0.1)),
    "poison": (POISON, Pressure.everywhere(0.1)),
    # Tenants' hint lines and register writes, sound and unsound.
    "hints": ({"hints": 60}, Pressure.everywhere(0.1)),
    "registers": ({"registers": 60}, Pressure.everywhere(0.1)),
    # Hint lines without a pause beside all the others do: RwD is never empty.
    "flood": ({"flood": 8}, Pressure.everywhere(0.1)),
    # Of a session that closes half of what is called back does.
    "deaf": ({"deaf": 200, "dwell": 40, "timeout": 2_000}, Pressure.everywhere(0.1)),
    # BIConflict of no snoop without a pause, and NDR that stands still half of the time.
    "babble": ({"babble": 8}, Pressure(ndr=0.5)),
    # What is called back stays where it is, dirty too, until long after the time-out or for good.
    "kept": ({**SILENT, "keeps": 8}, Pressure.everywhere(0.1)),
    # Most writes do not say what the host keeps; what is kept is rounded, or not.
    "unsaid": ({"no_op": 160, "dwell": 60, "late": 20}, Pressure.everywhere(0.1)),
    # Tenants ask for lines of others in every way.
    "strangers": ({"strangers": 60}, Pressure.everywhere(0.1)),
    # Messages of any form for the lines between those that agents use.
    "nonsense": ({"nonsense": 60, "dwell": 200}, Pressure.everywhere(0.1)),
    "foul": (
        {
            **SILENT,
            **POISON,
            "keeps": 4,
            "hints": 60,
            "registers": 60,
            "strangers": 60,
            "late": 60,
        },
        Pressure.everywhere(0.2),
    ),
}
#: Of those in which it is CLOSE that matters.
CHAPTERS = {"deaf": 16}
_MEMORY = MemoryTiming(latency=30, jitter=20, shuffle=True)
_TIER = FlashTiming(latency=400, write_latency=300, jitter=200)
_WELL = {"memory": _MEMORY, "flash": _TIER}
_ERRS = {"memory": replace(_MEMORY, read_error=0.02, write_error=0.02)}
_FAILS = {"flash": replace(_TIER, failure_rate=0.3)}
COLD_TIMEOUT = 3_000
#: Every fifth command of the tier is answered after its time, or never.
_MUTE = {
    "flash": replace(
        _TIER,
        failure_rate=0.1,
        failures=tuple(
            Failure(
                index=index,
                op=op,
                kind="late" if index % 2 else "never",
                cycles=2 * COLD_TIMEOUT,
            )
            for op in (ColdOp.READ, ColdOp.WRITE)
            for index in range(0, 400, 5)
        ),
    )
}
#: Name → what fails until the last look, before which every line is written anew.
FAILING = {
    "memory": _ERRS,
    "tier": _FAILS,
    "memory and tier": _ERRS | _FAILS,
    "late tier": _MUTE,
    "memory and late tier": _ERRS | _MUTE,
}


def made(name: str, *, seed: int, config: Config, driver, failing: str | None = None):
    """The device and its host of a weather."""
    options, pressure = WEATHERS[name]
    return driver(
        config,
        seed=seed,
        driver={
            **_WELL,
            **(FAILING[failing] if failing else {}),
            "pressure": pressure,
            "rules": RunRules(max_skip=0),
        },
        errs=failing is not None,
        **options,
    )


def settings(d: CachingDriver, name: str, failing: str | None = None) -> None:
    """What LD-ID 0 sets after a reset."""
    options, config = WEATHERS[name][0], d.config
    hints = options.get("hints") or options.get("flood")
    # Pools that do not hold their pages.
    d.write64("low_water", 1)
    if hints or config.select:  # what is pinned leaves pages that nobody holds, whatever this is
        d.write64("reserve", 0)
    if hints:
        d.write64("prefetch_enable", (1 << len(PrefetchSource) - 1) - 1)
    if failing:
        d.write64("cold_timeout", COLD_TIMEOUT)


def some_lines(d: CachingDriver, rng: random.Random, pages: int) -> None:
    """The host uses every line of half of so many pages of each queue, which are called back in
    blocks, and a quarter of the others'."""
    config = d.config
    places = [
        (session, queue, page)
        for session in range(config.sessions)
        for queue in range(config.queues)
        for page in range(pages)
    ]
    rng.shuffle(places)
    for session, queue, page in places:
        for kv, fmt in enumerate(FORMATS[session][queue // (config.queues // 2)]):
            used = rng.choice((config.half_lines, config.half_lines // 4))
            for line in sorted(rng.sample(range(config.half_lines), used)):
                d.add((session, queue, page, kv, line), fmt)


def weather(
    name: str,
    *,
    transactions: int,
    seed: int = 1,
    config: Config = named("unit_coherent"),
    chapters: int | None = None,
    driver=CachingDriver,
    failing: str | None = None,
    pages: int | None = None,
) -> dict:
    """Chapters of traffic, between which a session closes while its lines are held and another one
    opens in its place; what was counted. `pages`: of each queue, those used. AssertionError
    or DriverError with what was wrong."""
    chapters = chapters or CHAPTERS.get(name, 4)
    rng = random.Random(seed)
    d = made(name, seed=seed, config=config, driver=driver, failing=failing)
    settings(d, name, failing)
    owners = list(range(1, 1 + config.sessions))
    for session in range(config.sessions):
        d.open(session, owners[session], FORMATS[session], HOST_TYPES[session])
    some_lines(d, rng, pages or config.pages)
    for chapter in range(chapters):
        d.play(transactions // chapters)
        session = chapter % config.sessions
        if chapter % 2:
            d.look()
        d.end(session)
        if rng.random() < 0.8:
            owners[session] = 1 + (owners[session] + config.sessions - 1) % 15
        d.open(session, owners[session], FORMATS[session], HOST_TYPES[chapter // 2 % 2])
    if failing:
        d.rest()
        d.configure(**_WELL)
        d.settle()
        d.stream(6)
        d.choose(errs=0)
    d.look()
    d.finish()
    d.account()
    counted = d.figures().as_dict() | {
        key: d.counters()[key] for key in ("evictions", "hits", "misses")
    }
    counted["longest_close"], counted["judged"] = d.longest_close, d.judged
    driven = d.counts()
    counted["cycles"] = driven["evaluated"]
    for kind in ("memory_read_errors", "memory_write_errors", "flash_failed"):
        counted[kind] = driven[kind]
    count = d.read64("event_count")
    events = [
        Event(d.unpack("event_0", event)["code"]).name
        for event in d.read_registers([f"event_{i}" for i in range(count)])
    ]
    counted["events"] = {code: events.count(code) for code in sorted(set(events))}
    d.close()
    leave_figures("kelp_verif.coherence.endpoint_bench", counted)
    return counted


def each_weather(prog: str, run, argv, *, count: str = "transactions", default: int = 20_000):
    """The command line of a bench in weathers: what `run(name, seed=…, count=…)` says of each, for
    each seed. `count` names how much of it is to be run."""
    parser = argparse.ArgumentParser(prog=f"python -m kelp_verif.coherence.{prog}")
    parser.add_argument(f"--{count}", type=int, default=default)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 2), help="from, and before")
    parser.add_argument("--weather", choices=WEATHERS, action="append")
    args = parser.parse_args(argv)
    for seed in range(*args.seeds):
        for name in args.weather or WEATHERS:
            print(f"{name}, seed {seed}: {run(name, seed=seed, **{count: getattr(args, count)})}")
            sys.stdout.flush()
    return 0


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.endpoint_bench")
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weather", choices=WEATHERS, action="append")
    parser.add_argument("--failing", choices=FAILING)
    args = parser.parse_args(argv)
    for name in args.weather or WEATHERS:
        counted = weather(
            name, transactions=args.transactions, seed=args.seed, failing=args.failing
        )
        print(f"{name}, seed {args.seed}: {counted}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
