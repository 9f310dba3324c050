# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Everything at once on the compiled endpoint: tenants that come and go under every format, policy
and source of prefetch, hints, nonsense in registers, pools of a few frames, a memory and a tier
that fail. What a read may answer follows from what was accepted (spec §3, §4); the rest is
*silent*.

``python -m kelp_verif.endpoint.storm --seeds 0 20 --weather foul`` runs storms and exits with 1
where one was silent, stood still or left a frame behind.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, Failure, FlashTiming, MemoryTiming, Pressure, RunRules
from kelp_rtl.program import PARTIAL, POISON, READ, SPEC_READ, WRITE, Program, Response, rwd
from kelp_spec.config import POOLS, Config, named
from kelp_spec.config_text import configuration
from kelp_spec.formats import LINE_BYTES, Format, HostType
from kelp_spec.hints import ENTRIES, ENTRY_BITS, HEADER, HintKind
from kelp_spec.messages import M2SReq
from kelp_spec.metadata import ColdOp, PrefetchSource
from kelp_spec.registers import SessionCommand

from ..harness.covered import leave_figures
from .drawn import drawn
from .endpoint_model import ZEROS, stored
from .storm_select import Choices

__all__ = ["WEATHERS", "Ask", "Storm", "Tenant", "Times", "Weather", "main", "now", "wide"]

ALL_BYTES = (1 << LINE_BYTES) - 1
MOST_PAGES = 512  #: that are looked at
EVERY_SOURCE = (1 << len(PrefetchSource) - 1) - 1
_READS = (READ, int(M2SReq.MEM_RD_DATA))
_NO_DATA = (int(M2SReq.MEM_INV), int(M2SReq.MEM_INV_NT), int(M2SReq.MEM_CLN_EVCT))
LOST = b"poison"  #: content of a line whose writer said that it is poison


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What goes wrong around the device.

    Parameters
    ----------
    memory : (float, float)
        Shares of memory's reads and writes that end in an error.
    flash : float
        Share of the tier's commands that fail.
    late : bool
        Commands may take longer than the timeout, or have no completion at all.
    nonsense : bool
        LD-ID 0 programs limits at random, down to none.
    """

    memory: tuple[float, float] = (0.0, 0.0)
    flash: float = 0.0
    late: bool = False
    nonsense: bool = False

    @property
    def fair(self) -> bool:
        """Nothing fails, so nothing that was written whole may be poison."""
        return self == Weather()


WEATHERS = {
    "fair": Weather(),
    "memory": Weather(memory=(0.03, 0.03)),
    "tier": Weather(flash=0.2, late=True),
    "nonsense": Weather(nonsense=True),
    "dead": Weather(memory=(0.4, 0.4), flash=0.9, late=True),
    "foul": Weather(memory=(0.02, 0.05), flash=0.2, late=True, nonsense=True),
}


@dataclass
class Tenant:
    """A session that is open, and what its owner wrote."""

    session: int
    owner: int
    shape: Descriptor
    lines: dict[int, bytes] = field(default_factory=dict)
    sequence: int = 0
    #: from the acceptance of its CLOSE on: whether a read has been refused
    closing: bool = False
    gone: bool = False

    @property
    def queues(self) -> int:
        return self.shape.layers * self.shape.kv_heads

    def format_of(self, queue: int, kv: int) -> Format:
        layer = queue // self.shape.kv_heads
        return next(row for row in self.shape.formats if layer <= row[0])[1 + kv]


@dataclass
class Ask:
    """One request of a program, and what its answer is judged by."""

    opcode: int
    address: int
    ld_id: int
    data: bytes | None = None
    enable: int = ALL_BYTES
    poison: bool = False
    tenant: Tenant | None = None  #: whose line it is
    fmt: Format | None = None
    refused: bool = False  #: outside the map, or another's
    closes: Tenant | None = None
    means: int | None = None  #: the address of the line, where it was asked for by another
    #: called with response, data and what gives a line's truths, instead of the rules for a
    #: tenant's line
    judge: Callable[[Response, bytes, Truths], None] | None = None
    accepted: Callable[[], None] | None = None

    @property
    def line(self) -> int:
        """The address of the line that it is about."""
        return self.address if self.means is None else self.means


#: Of a tenant and the address of a line of its: what a read may find there.
Truths = Callable[[Tenant, int], list[bytes]]


def now(tenant: Tenant, line: int) -> list[bytes]:
    """The :data:`Truths` of a read that is judged where it stands among writes."""
    return [tenant.lines.get(line, ZEROS)]


class Times:
    """When a program's writes were accepted and answered, and what each line was between them: what
    a read may find where Req and RwD of one line are in no order, as on the coherent endpoint."""

    def __init__(self):
        self.closes: dict[int, int] = {}  #: tenant → the cycle in which its CLOSE was accepted
        self._writes: dict[tuple[int, int], list[tuple[int, int, bytes]]] = {}

    def write(self, ask: Ask, before: bytes, accepted: int, answered: int) -> None:
        """Once it has changed its line, which was `before`."""
        writes = self._writes.setdefault((id(ask.tenant), ask.address), [(-1, -1, before)])
        writes.append((accepted, answered, ask.tenant.lines.get(ask.address, ZEROS)))

    def truths(self, accepted: int, answered: int, tenant: Tenant, line: int) -> list[bytes]:
        """From the last write that was answered when a read was accepted to the last that was
        accepted when the read was answered."""
        writes = self._writes.get((id(tenant), line))
        if writes is None:
            return now(tenant, line)
        first = max(n for n, write in enumerate(writes) if write[1] < accepted)
        last = max(n for n, write in enumerate(writes) if write[0] <= answered)
        return [write[2] for write in writes[first : last + 1]]


class Storm:
    """A device in a weather, drawn from `seed`. `chapter` asks and judges, `calm` shows that
    nothing is left of the bad weather, `blackout` and `end` that nothing is left at all.

    Attributes
    ----------
    silent : list of str
        Answers that nothing allows.
    seen : dict of str to int
        How often what happened.
    """

    def __init__(self, config: Config, seed: int, weather: Weather):
        self.config, self.weather = config, weather
        self.rng = rng = np.random.default_rng(seed)
        self.silent: list[str] = []
        self.seen: dict[str, int] = {}
        self.slow = bool(rng.integers(2))
        self.device = Driver(
            config,
            memory=self._memory(),
            flash=self._flash(),
            pressure=Pressure.everywhere(float(rng.choice([0.0, 0.2, 0.5]))),
            seed=seed,
            rules=RunRules(
                max_skip=0, stall_limit=60_000, outstanding=int(rng.choice([8, 64, 1024]))
            ),
        )
        self._settings()
        # Where there are slots to fill, larger ones in every other storm.
        most = 20 if config.select and seed % 2 else 8
        self.pools = {f"pool_limit_{pool}": int(rng.integers(2, most + 1)) for pool in POOLS}
        self.device.write_registers(self.pools)
        self.tenants = [self._open(session) for session in range(config.sessions)]
        self.choices = Choices(self, Ask, LOST) if config.select else None

    # - surroundings -------------------------------------------------------------------------------
    def _memory(self, calm=False):
        reads, writes = (0.0, 0.0) if calm else self.weather.memory
        return MemoryTiming(
            latency=12,
            write_latency=12,
            jitter=60 if self.slow else 4,
            shuffle=True,
            read_error=reads,
            write_error=writes,
        )

    def _flash(self, calm=False):
        late = self.weather.late and not calm
        now = self.device.counts() if late and hasattr(self, "device") else {}
        never = [
            Failure(op=op, kind="never", index=now.get(name, 0) + n)
            for op, name in ((ColdOp.READ, "flash_reads"), (ColdOp.WRITE, "flash_writes"))
            for n in self.rng.choice(400, 8 * late, replace=False).tolist()
        ]
        return FlashTiming(
            latency=200,
            write_latency=250,
            jitter=1500 if late else 300,
            failures=never,
            failure_rate=0.0 if calm else self.weather.flash,
        )

    def _cold_timeout(self):
        """Cycles in which whatever is asked of the tier at once has come, half as much again."""
        c = self.config
        page = max(c.frame_lines) * LINE_BYTES / FlashTiming().bytes_per_cycle
        return max(1200, int(1.5 * (c.misses + c.write_backs) * page))

    def _settings(self, calm=False):
        """Sound ones. A miss that waits for all others in a pool of one frame waits long: it is
        given up only where poison is foreseen."""
        rng, patient = self.rng, calm or self.weather.fair
        self.device.write_registers(
            {
                "low_water": int(rng.choice([0, 0, 1, 2])),
                "high_water": int(rng.choice([1, 1, 2, 4])),
                "reserve": int(rng.choice([1, 2])),
                "prefetch_enable": int(rng.choice([0, 8, EVERY_SOURCE, EVERY_SOURCE])),
                "cold_timeout": self._cold_timeout(),
                # a command that is to be lost may still come when all is calm
                "cold_retries": 15 if calm else int(rng.integers(0, 3)),
                "starve_limit": 1 << 24 if patient else 5000,
            }
        )

    def _open(self, session):
        c, rng = self.config, self.rng
        kv_heads = int(rng.integers(1, c.queues + 1))
        layers = int(rng.integers(1, c.queues // kv_heads + 1))
        formats = tuple(
            (last, *(c.formats[int(rng.integers(len(c.formats)))] for _ in range(2)))
            for last in (*sorted({int(rng.integers(layers)) for _ in range(2)}), 1023)
        )
        shape = Descriptor(
            layers=layers,
            kv_heads=kv_heads,
            used_lines=int(rng.integers(1, c.half_lines + 1)),
            used_pages=int(rng.integers(c.pages // 2, c.pages + 1)),
            host_type=HostType(int(rng.integers(len(HostType)))),
            k_only=bool(rng.random() < 0.2),
            formats=formats,
        )
        owner = 1 + session + c.sessions * int(rng.integers(14 // c.sessions))
        tenant = Tenant(session, owner, shape)
        self.device.open_session(session, shape, self._parameters(), owner=owner)
        if rng.random() < 0.5:  # policies side by side in one pool
            self._apply(tenant)
        return tenant

    def _parameters(self):
        rng = self.rng
        return QueueParameters(
            alpha=int(rng.choice([1, 26, 256])),
            mass_shift=int(rng.integers(16)),
            score_source=int(rng.integers(3)),
            window=int(rng.integers(4)),
            policy=int(rng.integers(2 + self.config.select_tables)),
            tau=float(rng.choice([1.0, 1000.0])),
            budget=int(rng.choice([0, 10, 1000])),
            auto_step=int(rng.choice([0, 1, 7])),
        )

    def _apply(self, tenant):
        """One queue gets parameters of its own."""
        d, p = self.device, f"s{tenant.session}_"
        d.write_registers(
            d._parameters(p, self._parameters())
            | {p + "queue": d.pack(p + "queue", queue=int(self.rng.integers(tenant.queues)))}
        )
        d.session_command(tenant.session, SessionCommand.APPLY_QUEUE)

    # - what is asked ------------------------------------------------------------------------------
    def _lines(self, count):
        """Requests for lines: runs through a few pages that are wanted now."""
        rng, asks = self.rng, []
        pages = [self._page() for _ in range(int(rng.integers(2, 24)))]
        while len(asks) < count:
            tenant, queue, page = pages[rng.integers(len(pages))] if pages else self._page()
            halves = 1 if tenant.shape.k_only else 2
            kv, line = int(rng.integers(halves)), int(rng.integers(tenant.shape.used_lines))
            writes = rng.random() < 0.4
            for at in range(line, min(line + int(rng.integers(1, 6)), tenant.shape.used_lines)):
                asks.append(self._line(tenant, queue, page, kv, at, writes))
        return asks[:count]

    def _page(self):
        tenant = self.tenants[self.rng.integers(len(self.tenants))]
        queue = int(self.rng.integers(tenant.queues))
        pages = tenant.shape.used_pages
        if self.config.select and self.rng.random() < 0.7:
            pages = 12  # many pages of few queues, so that there is something to choose among
        return tenant, queue, int(self.rng.integers(pages))

    def _line(self, tenant, queue, page, kv, line, writes):
        rng = self.rng
        address = self.device.address(tenant.session, queue, page, kv, line)
        opcode = READ if rng.random() < 0.8 else int(M2SReq.MEM_RD_DATA)
        ask = Ask(opcode, address, tenant.owner, tenant=tenant, fmt=tenant.format_of(queue, kv))
        kind = rng.random()
        if writes and kind < 0.9:
            ask.opcode, ask.data = (WRITE, PARTIAL)[int(kind < 0.25)], self._data()
            ask.poison = rng.random() < 0.02
            if ask.opcode == PARTIAL:
                some = [0, 1, ALL_BYTES, 0xFF00, int(rng.integers(1, 1 << 63))]
                ask.enable = some[rng.integers(len(some))]
        elif kind < 0.05:
            ask.opcode, ask.tenant = SPEC_READ, None
        elif kind < 0.08:
            ask.opcode, ask.tenant = int(rng.choice(_NO_DATA)), None
        return ask

    def _data(self):
        rng = self.rng
        if rng.random() < 0.2:
            return rng.bytes(LINE_BYTES)
        scale = float(rng.choice([1e-4, 1.0, 100.0]))
        return rng.normal(scale=scale, size=32).astype(np.float16).tobytes()

    def _odd(self):
        """Another's line, a place outside, an opcode that nobody knows."""
        rng, d = self.rng, self.device
        tenant, queue, page = self._page()
        address = d.address(tenant.session, queue, page, 0, 0)
        kind = rng.integers(7)
        if kind == 5:  # a prefetch hint for what cannot be fetched
            place = [address, d.addresses.hint_base, d.addresses.register_base, 1 << 51]
            return Ask(SPEC_READ, place[rng.integers(4)], int(rng.integers(16)))
        if kind == 6:  # registers and hint lines as anyone may read them
            at = d.addresses.register_base + 64 * int(rng.integers(256))
            at = at if rng.random() < 0.9 else d.addresses.hint_base
            return Ask(READ, at, int(rng.integers(16)))
        opcode, data = (READ, None) if rng.random() < 0.7 else (WRITE, self._data())
        if kind == 0:
            return Ask(opcode, 3 << self.config.aperture_bits, tenant.owner, data, refused=True)
        if kind == 1 and tenant.shape.used_pages < self.config.pages:
            address = d.address(tenant.session, queue, self.config.pages - 1, 0, 0)
            return Ask(opcode, address, tenant.owner, data, refused=True)
        if kind == 2:  # a neighbour's
            owner = next(t.owner for t in (*self.tenants[::-1], tenant))
            if owner == tenant.owner:
                owner = 15
            return Ask(opcode, address, owner, data, refused=True)
        if kind == 3:
            return Ask(int(rng.choice([3, 4, 7, 11, 15])), address, tenant.owner)
        unknown = [3, 7, 15] if self.config.coherence else [3, 4, 7, 15]  # 4 is BIConflict
        return Ask(rwd(int(rng.choice(unknown))), address, tenant.owner, self._data())

    def _hint(self):
        rng, c = self.rng, self.config
        tenant, queue, _ = self._page()
        kind = HintKind(int(rng.integers(1, 5)))
        count = int(rng.integers(0, ENTRIES + 1))
        if kind == HintKind.MASS:
            entries = rng.integers(0, 1 << 16, min(count, c.pages))
        else:
            entries = rng.integers(0, c.pages + (rng.random() < 0.05), count)
        ask = self._hint_line(tenant, queue, kind, entries.tolist(), int(rng.integers(2)))
        if rng.random() < 0.1:
            ask.ld_id = 15
        return ask

    def _hint_line(self, tenant, queue, kind, entries, flags=0):
        sequence = tenant.sequence if self.rng.random() < 0.95 else 77
        tenant.sequence = (sequence + 1) & 0xFFFF
        header = {"version": 1, "kind": kind, "flags": flags, "queue": queue}
        header |= {"session": tenant.session, "count": len(entries), "sequence": sequence}
        value = shift = 0
        for name, bits, _ in HEADER:
            value |= int(header.get(name, 0)) << shift
            shift += bits
        for entry in entries:  # a page may be named twice, which `pack` refuses
            value |= entry << shift
            shift += ENTRY_BITS
        data = value.to_bytes(LINE_BYTES, "little")
        return Ask(WRITE, self.device.addresses.hint_base, tenant.owner, data)

    def _release(self):
        """Hints that unpin every page."""
        asks = []
        for tenant in self.tenants:
            pages = list(range(tenant.shape.used_pages))
            for queue in range(tenant.queues):
                for first in range(0, len(pages), ENTRIES):
                    some = pages[first : first + ENTRIES]
                    asks.append(self._hint_line(tenant, queue, HintKind.RELEASE, some))
        return asks

    def _register(self, name, value, ld_id=0, closes=None):
        d = self.device
        offset = d.registers[name].offset
        data = np.zeros(8, "<u8")
        data[offset % 64 // 8] = value
        return Ask(
            PARTIAL,
            d.addresses.register_base + offset // 64 * 64,
            ld_id,
            data.tobytes(),
            0xFF << offset % 64,
            closes=closes,
        )

    def _command(self, tenant, command, argument=0, ld_id=0, closes=None):
        name = f"s{tenant.session}_command"
        value = self.device.pack(name, command=command, argument=argument)
        return self._register(name, value, ld_id, closes)

    def _meddle(self):
        """A register written in the midst of traffic."""
        rng = self.rng
        tenant = self.tenants[rng.integers(len(self.tenants))]
        s = f"s{tenant.session}_"
        wide = [0, 1, 2, 3, 9, 0xFFFF, (1 << 48) - 1]
        mild = [
            ("prefetch_enable", [0, 8, EVERY_SOURCE]),
            ("event_clear", [1]),
            ("event_taken", [0, 1, 3, 16, 31, 1 << 8, 1 << 8 | 5]),
            ("irq_enable", wide),
        ]
        mild += [("low_water", [0, 1, 2]), ("high_water", [0, 1, 4])]
        own = [(s + name, wide) for name in ("policy", "recency", "queue", "auto_step")]
        limits = [("low_water", wide), ("high_water", wide), ("reserve", [1, *wide])]
        limits += [
            ("cold_retries", [0, 1, 15]),
            ("cold_timeout", [self._cold_timeout() * n // 3 for n in (1, 2, 3)]),
        ]
        limits += [("starve_limit", [0, 1, 500, 5000]), (s + "budget", wide)]
        limits += [(f"pool_limit_{POOLS[rng.integers(len(POOLS))]}", wide)]
        names = mild + own + (limits if self.weather.nonsense else [])
        if rng.random() < 0.4:
            commands = ["ADVANCE", "APPLY_QUEUE", "APPLY_ALL", "PEEK"]
            command = SessionCommand[commands[rng.integers(len(commands))]]
            argument = int(rng.choice([0, 1, 300, (1 << 24) - 1]))
            return self._command(tenant, command, argument, tenant.owner)
        if rng.random() < 0.2:  # its line, by one who may not OPEN
            ask = self._register(s + "policy", 0, tenant.owner)
            ask.data = rng.bytes(LINE_BYTES)
            ask.enable = ALL_BYTES if rng.random() < 0.5 else int(rng.integers(1 << 63))
            return ask
        name, values = names[rng.integers(len(names))]
        return self._register(name, int(rng.choice(values)))

    def chapter(self, count: int = 1200, *, close: bool = False) -> None:
        """`count` requests at random; with `close` a tenant leaves in their midst, and another
        comes afterwards."""
        rng = self.rng
        asks = self._lines(count)
        leaving = self.tenants[rng.integers(len(self.tenants))] if close else None
        if self.choices:
            for at in sorted(rng.choice(count, count // 24, replace=False), reverse=True):
                asks[at:at] = self.choices.some()
        for make, share in ((self._odd, 0.1), (self._hint, 0.5), (self._meddle, 0.1)):
            for at in rng.choice(count, int(count * share * rng.random() ** 4), replace=False):
                asks[at] = make()
        if leaving:
            asks.insert(
                int(rng.integers(count)),
                self._command(leaving, SessionCommand.CLOSE, closes=leaving),
            )
        self._ask(asks)
        if leaving:
            self.device._idle_session(leaving.session)
            self.tenants[leaving.session] = self._open(leaving.session)
            if self.choices:
                self.choices.forget(leaving.session)
        if self.choices:
            self.choices.check()

    def blackout(self, count: int = 600) -> None:
        """A reset in the midst of requests: everything is gone, for the next tenants, too."""
        self.device.run(
            self._program(self._lines(count)),
            max_cycles=int(self.rng.integers(50, 3000)),
            partial=True,
        )
        self.device.reset(int(self.rng.integers(1, 5)))
        self._settings(calm=True)
        self.device.write_registers(self.pools)
        self.tenants = [self._open(tenant.session) for tenant in self.tenants]
        if self.choices:
            self.choices.forget()
        self.look()
        self._settings()

    # - what is answered ---------------------------------------------------------------------------
    def _program(self, asks):
        rows = [a.data for a in asks if a.data is not None]
        return Program(
            opcode=[a.opcode for a in asks],
            address=np.array([a.address for a in asks], np.uint64),
            ld_id=[a.ld_id for a in asks],
            data=np.frombuffer(b"".join(rows), np.uint8),
            byte_enable=np.array([a.enable for a in asks], np.uint64),
            flags=[POISON * a.poison for a in asks],
        )

    def _ask(self, asks, exact=False):
        result = self.device.run(self._program(asks))
        times, reads = Times(), []
        for n in np.argsort(result.accept_order).tolist():
            ask, response = asks[n], Response(result.response[n])
            when = int(result.accept_cycle[n]), int(result.response_cycle[n])
            if ask.closes:
                ask.closes.closing = True
                times.closes[id(ask.closes)] = when[0]
            if ask.accepted:
                ask.accepted()
            if ask.refused:
                wanted = Response.NXM if ask.opcode in _READS else Response.CMP
                self._count("refused")
                if response != wanted:
                    self._silent(ask, f"{response.name}, not refused")
            elif ask.judge or (ask.tenant and ask.opcode in _READS):
                read = ask, response, result.data[n].tobytes(), exact
                if self.config.coherence:  # Req and RwD pass each other (docs/coherence.md)
                    reads.append((read, when))
                else:
                    self._judge(*read, now, ask.tenant and ask.tenant.closing)
            elif ask.tenant:
                before = ask.tenant.lines.get(ask.address, ZEROS)
                self._write(ask)
                times.write(ask, before, *when)
        for read, when in reads:
            tenant = read[0].tenant
            closing = tenant and tenant.closing and times.closes.get(id(tenant), 0) <= when[1]
            self._judge(*read, functools.partial(times.truths, *when), closing)

    def _write(self, ask):
        lines = ask.tenant.lines
        if ask.opcode == PARTIAL and not ask.enable and not ask.poison:
            return
        if ask.poison:
            lines[ask.address] = LOST
            return
        enable = ask.enable if ask.opcode == PARTIAL else ALL_BYTES
        before = lines.get(ask.address, ZEROS)
        if before == LOST and enable != ALL_BYTES:
            return
        if enable == ALL_BYTES:
            merged = ask.data
        else:
            merged = bytes(
                new if enable >> i & 1 else old
                for i, (old, new) in enumerate(zip(before, ask.data, strict=True))
            )
        lines[ask.address] = stored(merged, ask.fmt, ask.tenant.shape.host_type)

    def _judge(self, ask, response, data, exact, truths_of, closing):
        if ask.judge:
            ask.judge(response, data, truths_of)
            return
        t = ask.tenant
        truths = truths_of(t, ask.line)
        self._count(response.name.lower())
        if response == Response.NXM:
            t.gone = True
            if not closing:
                self._silent(ask, "refused, though its session is open")
        elif t.gone:
            self._silent(ask, f"{response.name} after its session was gone")
        elif response == Response.POISON:
            if LOST not in truths and (self.weather.fair or exact):
                self._silent(ask, "poison, where nothing fails")
        elif data not in truths:
            wanted = ["poison" if truth == LOST else truth.hex() for truth in truths]
            self._silent(ask, f"{data.hex()}, not {' or '.join(wanted)}")

    def _silent(self, ask, what):
        where = self.device.addresses.decode(ask.address)[1]
        self.silent.append(f"{where} for LD-ID {ask.ld_id}: {what}")

    def _count(self, what, times=1):
        self.seen[what] = self.seen.get(what, 0) + times

    # - what is left -------------------------------------------------------------------------------
    def _places(self):
        """Every line of every tenant; some of them where there are very many."""
        pages = [
            (tenant, queue, page)
            for tenant in self.tenants
            for queue in range(tenant.queues)
            for page in range(tenant.shape.used_pages)
        ]
        if len(pages) > MOST_PAGES:
            some = np.sort(self.rng.choice(len(pages), MOST_PAGES, replace=False))
            pages = [pages[n] for n in some]
        return [
            (tenant, queue, page, kv, line)
            for tenant, queue, page in pages
            for kv in range(1 if tenant.shape.k_only else 2)
            for line in range(tenant.shape.used_lines)
        ]

    def _plain(self, opcode, places):
        """One request of that kind for each of these lines."""
        asks = []
        for tenant, queue, page, kv, line in places:
            address = self.device.address(tenant.session, queue, page, kv, line)
            data = self._data() if opcode == WRITE else None
            fmt = tenant.format_of(queue, kv)
            asks.append(Ask(opcode, address, tenant.owner, data, tenant=tenant, fmt=fmt))
        return asks

    def look(self, places=None) -> None:
        """Every line is read: poison only where its writer said so."""
        self._ask(self._plain(READ, places or self._places()), exact=True)

    def calm(self) -> None:
        """The weather clears: what is written anew is sound, to the bit."""
        d = self.device
        d.configure(memory=self._memory(calm=True), flash=self._flash(calm=True))
        self._settings(calm=True)
        self._ask(self._release())
        if self.choices:
            self.choices.release()
        d.settle()
        places = self._places()
        for _ in range(2):  # the second time nothing of the bad weather is under way
            self._ask(self._plain(WRITE, places))
            d.settle()
        self.look(places)
        d.configure(memory=self._memory(), flash=self._flash())
        self._settings()

    def end(self) -> None:
        """Every tenant leaves: no frame is left in use, and the next ones find zeros."""
        d = self.device
        d.configure(memory=self._memory(calm=True), flash=self._flash(calm=True))
        self._settings(calm=True)
        for tenant in self.tenants:
            d.close_session(tenant.session)
        d.settle()
        used = {pool: d.read64(f"pool_used_{pool}") for pool in POOLS}
        if any(used.values()):
            self.silent.append(f"frames in use when every session is closed: {used}")
        if d.read_fields("status")["fatal"]:
            self.silent.append("a fatal error, where no bit flips")
        self.tenants = [self._open(tenant.session) for tenant in self.tenants]
        self.look()
        counts = d.counts()
        self.seen["cycles"], self.seen["fetches"] = counts["evaluated"], counts["flash_reads"]
        d.close()

    def run(self, chapters: int = 6, count: int = 1200) -> Storm:
        """Chapters, every other one with a tenant that leaves; then calm, and the end."""
        for n in range(chapters):
            self.chapter(count, close=bool(n % 2))
        self.calm()
        self.blackout()
        self.chapter(count)
        self.end()
        leave_figures("kelp_verif.endpoint.storm", self.seen)
        return self


def wide(queues: int) -> Config:
    """`unit` with so many queues, and pages for a few of them."""
    return named("unit").with_(name="unit_wide", queues=queues, pages=4, frames=(24, 8, 8, 8))


def main(arguments=None) -> int:
    """The command line; 1 where a storm found something."""
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.endpoint.storm")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 4), metavar=("FIRST", "END"))
    parser.add_argument("--weather", choices=WEATHERS, nargs="*", default=list(WEATHERS))
    parser.add_argument("--queues", type=int, help="of `unit` with four pages to a queue")
    parser.add_argument("--config", default="unit", help="default: unit")
    parser.add_argument(
        "--coherence", action="store_true", help="on HDM-DB, for hosts that cache nothing"
    )
    parser.add_argument(
        "--drawn", action="store_true", help="each seed draws its configuration, too (minutes each)"
    )
    options = parser.parse_args(arguments)
    bad = 0
    for seed in range(*options.seeds):
        if options.drawn:
            config = drawn(seed, coherence=options.coherence)
            print(config, flush=True)
        else:
            config = wide(options.queues) if options.queues else configuration(options.config)
            config = config.with_(coherence=config.coherence or options.coherence)
        for name in options.weather:
            try:
                storm = Storm(config, seed, WEATHERS[name])
                found = storm.run().silent
                seen = storm.seen
            except RuntimeError as error:
                found, seen = [str(error)], {}
            bad += bool(found)
            names = ("data", "poison", "nxm", "selects", "held", "gather_data", "cycles")
            shown = {k: seen[k] for k in names if k in seen}
            print(
                f"{name} {seed}: {len(found)} silent; {shown}", *found[:3], sep="\n  ", flush=True
            )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
