# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Hint absorber against its golden model: good lines and bad, idles on the input, back-pressure on
both outputs; headers whose bits flip."""

import random
from collections import Counter
from dataclasses import dataclass

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.hints import HintAbsorber, HintEvent, HintOp
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.lib.protected import BlockFault, CheckedWord
from kelp_spec.config import Config, named
from kelp_spec.hints import ENTRIES, HEADER_BITS, HintKind, HintLine, mass_lines, pack
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.metadata import Event, Op

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

LIMIT = 200_000
#: What a hint says of an op.
SAID = ("kind", "session", "squeue", "page", "mass", "delta")


def _config() -> Config:
    return named(bench_params()["config"]).with_(**bench_params().get("fields", {}))


@dataclass
class Session:
    """One session's registers, as the golden model and the packer read them."""

    open: int = 1
    closing: int = 0
    ld_id: int = 0
    used_queues: int = 0
    used_pages: int = 0
    kv_heads: int = 1
    k_only: int = 0
    step: int = 0


def pack_sessions(config: Config, sessions) -> int:
    packing = Packing(Layouts(config).session)
    return sum(packing.pack(**vars(s)) << packing.width * i for i, s in enumerate(sessions))


class TB:
    """Sends lines, gathers ops, candidates and events."""

    def __init__(self, dut, config: Config):
        self.dut, self.config, self.rng = dut, config, random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(config)
        self.line, self.op = Packing(layouts.hint_line), Packing(layouts.op)
        self.page, self.event = Packing(layouts.page), Packing(layouts.event)
        self.golden = HintAbsorber(config)
        self.sessions = self.any_sessions()
        self.fault, self.flipped, self.told = Packing(BlockFault), False, Counter()
        self.out, self.events, self.cycles = [], [], 0
        self.lines_taken = self.masses_taken = 0
        self.p_valid = self.p_ready = 1.0
        self.next_sequence = [0] * config.sessions

    def any_sessions(self):
        """Open sessions of any size: owners differ in any bits; what a hint does not ask for is
        anything."""
        rng, c = self.rng, self.config
        return [
            Session(
                ld_id=ld_id,
                kv_heads=rng.randint(1, c.queues),
                k_only=rng.getrandbits(1),
                step=rng.getrandbits(24),
                used_queues=rng.randint(1, c.queues),
                used_pages=rng.randint(2, c.pages),
            )
            for ld_id in rng.sample(range(1, 16), c.sessions)
        ]

    async def reset(self):
        dut = self.dut
        await start_clock(dut)
        dut.i__valid.value = dut.i__payload.value = dut.o_op__ready.value = (
            dut.o_prefetch__ready.value
        ) = 0
        dut.sessions.value = pack_sessions(self.config, self.sessions)
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        dut.rst.value = 0

    async def run(self, lines):
        """Sends (bytes, ld_id, broken) lines and runs until the absorber is idle."""
        dut, rng, todo, held = self.dut, self.rng, list(lines), None
        shown = None
        while True:
            if held is None and todo and rng.random() < self.p_valid:
                data, ld_id, broken = todo.pop(0)
                held = self.line.pack(
                    data=int.from_bytes(data, "little"), ld_id=ld_id, broken=broken
                )
            dut.i__valid.value = int(held is not None)
            dut.i__payload.value = held if held is not None else rng.getrandbits(self.line.width)
            dut.o_op__ready.value = int(rng.random() < self.p_ready)
            dut.o_prefetch__ready.value = int(rng.random() < self.p_ready)
            await ReadOnly()
            offered = [
                (port, int(payload.value))
                for port, valid, payload in (
                    ("op", dut.o_op__valid, dut.o_op__payload),
                    ("prefetch", dut.o_prefetch__valid, dut.o_prefetch__payload),
                )
                if valid.value == 1
            ]
            if shown:
                assert offered == shown, "an offered item changed before it was taken"
            shown = None
            for port, payload in offered:
                if (dut.o_op__ready if port == "op" else dut.o_prefetch__ready).value == 0:
                    shown = offered
                elif port == "op":
                    op = self.op.unpack(payload)
                    kind = Op(op["kind"])
                    assert op["delta"] == (kind == Op.STEP)
                    # Nothing of a request: M3 would free its write slot, or refuse it.
                    said = {name: op[name] for name in SAID}
                    assert payload == self.op.pack(**said), f"an op with more than {said}"
                    self.out.append(
                        HintOp(kind, op["session"], op["squeue"], op["page"], op["mass"])
                    )
                else:
                    page = self.page.unpack(payload)
                    self.out.append(
                        HintOp(
                            Op.PREFETCH,
                            page["squeue"] // self.config.queues,
                            page["squeue"],
                            page["page"],
                        )
                    )
            if dut.o_event__valid.value == 1:
                e = self.event.unpack(dut.o_event__payload.value)
                self.events.append(
                    HintEvent(Event(e["code"]), e["ld_id"], e["squeue"], e["page"], e["argument"])
                )
            fault = self.fault.unpack(dut.fault.value)
            assert self.flipped or not any(fault.values()), f"{fault}, and no bit has flipped"
            self.told.update(name for name, told in fault.items() if told)
            assert held is None or dut.idle.value == 0, "idle while a line is offered"
            self.lines_taken += dut.line_taken.value == 1
            self.masses_taken += dut.mass_taken.value == 1
            if held is not None and dut.i__ready.value == 1:
                held = None
            done = not todo and held is None and dut.idle.value == 1
            await RisingEdge(dut.clk)
            self.cycles += 1
            assert self.cycles < LIMIT, "the absorber hangs"
            if done:
                return

    async def check(self, lines):
        """Runs `lines` and compares everything they cause with the golden model."""
        lines = list(lines)
        self.out, self.events = [], []
        before, masses = self.lines_taken, self.masses_taken
        await self.run(lines)
        want = [
            x
            for data, ld_id, broken in lines
            for x in self.golden.absorb(data, ld_id, self.sessions, broken)
        ]
        assert self.out == [x for x in want if isinstance(x, HintOp)]
        assert self.events == [x for x in want if isinstance(x, HintEvent)]
        assert self.lines_taken - before == len(lines)
        assert self.masses_taken - masses == sum(x.kind == Op.MASS for x in self.out)

    def random_line(self):
        """A line that is good three times in four, and otherwise wrong in one way or in all."""
        rng, c = self.rng, self.config
        session, kind = rng.randrange(c.sessions), rng.choice(list(HintKind))
        regs = self.sessions[session]
        count = rng.choice([0, 1, rng.randint(0, ENTRIES), ENTRIES])
        pages = c.pages if rng.random() < 0.1 else regs.used_pages
        first = rng.randrange(pages) if kind == HintKind.MASS else 0
        if kind == HintKind.MASS:
            count = min(count, pages - first)
            entries = tuple(rng.getrandbits(16) for _ in range(count))
        else:
            entries = tuple(rng.sample(range(pages), min(count, pages)))
        line = bytearray(
            pack(
                HintLine(
                    kind=kind,
                    session=session,
                    queue=rng.randrange(regs.used_queues),
                    sequence=self.next_sequence[session],
                    first_page=first,
                    entries=entries,
                    advance=not entries or rng.random() < 0.3,
                )
            )
        )
        ld_id, broken = rng.choice([0, regs.ld_id]), False
        fault = rng.choice(
            [None] * 30
            + [
                "version",
                "kind",
                "flags",
                "session",
                "count",
                "queue",
                "gap",
                "first",
                "reserved",
                "ld_id",
                "broken",
                "empty",
                "noise",
                "entry",
            ]
        )
        if fault == "version":
            line[0] ^= 1 << rng.randrange(4)
        elif fault == "kind":
            line[0] = line[0] & 15 | rng.choice([0, *range(5, 16)]) << 4
        elif fault == "flags":
            line[1] |= 1 << rng.randint(1, 7)
        elif fault == "session":
            line[2] = rng.randint(c.sessions, 255)
        elif fault == "count":
            line[3] = rng.randint(ENTRIES + 1, 255)
        elif fault == "queue":
            line[4:6] = rng.randint(regs.used_queues, 65535).to_bytes(2, "little")
        elif fault == "gap":
            line[6:8] = rng.getrandbits(16).to_bytes(2, "little")
        elif fault == "first":  # also such that the last pages are beyond 65535
            last = 65536 - rng.randint(1, max(1, len(entries)))
            line[8:10] = rng.choice([rng.getrandbits(16), last]).to_bytes(2, "little")
        elif fault == "reserved":
            line[10 + rng.randrange(2)] |= 1 << rng.randrange(8)
        elif fault == "ld_id":
            ld_id = regs.ld_id ^ 1 << rng.randrange(4)
        elif fault == "broken":
            broken = True
        elif fault == "empty":
            line[1] = line[3] = 0
        elif fault == "noise":
            line = bytearray(rng.randbytes(64))
        elif fault == "entry":
            i = 12 + 2 * rng.randrange(ENTRIES)
            line[i : i + 2] = rng.getrandbits(16).to_bytes(2, "little")
        if rng.random() > 0.02:  # a line that the host lost never reaches us
            self.next_sequence[session] = (int.from_bytes(line[6:8], "little") + 1) & 0xFFFF
        return bytes(line), ld_id, broken


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def random_lines(dut):
    tb = TB(dut, _config())
    await tb.reset()
    seen = set()
    for _ in range(bench_params()["rounds"]):
        tb.p_valid, tb.p_ready = tb.rng.choice([0.1, 0.5, 1.0]), tb.rng.choice([0.2, 0.7, 1.0])
        tb.sessions = tb.any_sessions()
        dut.sessions.value = pack_sessions(tb.config, tb.sessions)
        await tb.check(tb.random_line() for _ in range(40))
        seen |= {e.code.name for e in tb.events} | {x.kind.name for x in tb.out}
    record(seen=sorted(seen))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reset_forgets(dut):
    """Reset amid lines: nothing of them comes any more, and numbers start at 0."""
    tb = TB(dut, _config())
    await tb.reset()
    for _ in range(bench_params()["resets"]):
        tb.p_valid, tb.p_ready = 1.0, tb.rng.choice([0.0, 0.3, 1.0])
        running = cocotb.start_soon(tb.run(tb.random_line() for _ in range(40)))
        for _ in range(tb.rng.randint(1, 60)):
            await RisingEdge(dut.clk)
        running.cancel()
        dut.rst.value, dut.i__valid.value = 1, 0
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        tb.golden, tb.next_sequence = HintAbsorber(tb.config), [0] * tb.config.sessions
        tb.p_ready = 0.7
        await tb.check(tb.random_line() for _ in range(3))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def sessions_open_and_close(dut):
    """A closed or closing session takes no hint; one that is opened anew counts from 0."""
    tb = TB(dut, _config())
    await tb.reset()
    s = tb.config.sessions - 1
    regs = tb.sessions[s]

    def line(sequence):
        return (
            pack(
                HintLine(
                    kind=HintKind.PIN, session=s, sequence=sequence, entries=(1,), advance=True
                )
            ),
            regs.ld_id,
            False,
        )

    await tb.check([line(0), line(1)])
    assert not tb.events
    for change in ({"closing": 1}, {"closing": 0, "open": 0}):
        vars(regs).update(change)
        dut.sessions.value = pack_sessions(tb.config, tb.sessions)
        await tb.check([line(2)])
        assert [e.code for e in tb.events] == [Event.CLOSED_SESSION] and not tb.out
    regs.open = 1
    dut.sessions.value = pack_sessions(tb.config, tb.sessions)
    tb.golden.opened(s)
    await tb.check([line(0), line(2)])
    assert [(e.code, e.argument) for e in tb.events] == [(Event.HINT_GAP, 1)] and len(tb.out) == 4


class Closing:
    """Closes a session of a test bench while its lines are in the absorber."""

    def __init__(self, tb: TB):
        self.tb = tb
        for regs in tb.sessions:
            regs.used_pages, regs.used_queues = tb.config.pages, tb.config.queues

    def line(self, session: int, sequence: int, kind: HintKind | None = None, count: int = 3):
        rng = self.tb.rng
        entries = rng.sample(range(self.tb.config.pages), count)
        return (
            pack(
                HintLine(
                    kind=kind or rng.choice(list(HintKind)),
                    session=session,
                    queue=rng.randrange(self.tb.config.queues),
                    sequence=sequence,
                    entries=tuple(entries),
                    advance=rng.random() < 0.5,
                )
            ),
            self.tb.sessions[session].ld_id,
            False,
        )

    async def now(self, session: int) -> None:
        """CLOSE, with or without a while in which it closes; open again some cycles later."""
        tb, rng = self.tb, self.tb.rng
        steps = [{"closing": 1}] if rng.random() < 0.5 else []
        for step in [*steps, {"closing": 0, "open": 0}, {"open": 1}]:
            vars(tb.sessions[session]).update(step)
            tb.dut.sessions.value = pack_sessions(tb.config, tb.sessions)
            for _ in range(rng.randint(1, 8)):
                await RisingEdge(tb.dut.clk)

    def refused(self, session: int, lines) -> list:
        """What the golden model says of lines that wait when their session closes."""
        tb = self.tb
        tb.sessions[session].closing = 1
        events = [x for line in lines for x in tb.golden.absorb(*line[:2], tb.sessions)]
        tb.sessions[session].closing = 0
        return events


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_session_closes_under_way(dut):
    """Of a line under way the op that is offered leaves and the rest does not; lines that wait are
    refused, though the session is open again when their turn comes; another session's are not; and
    numbers start at 0."""
    tb = TB(dut, _config())
    closing, kinds = Closing(tb), list(HintKind)
    await tb.reset()
    numbers = [0] * tb.config.sessions
    for n in range(96):
        s, other = n % tb.config.sessions, (n + 1) % tb.config.sessions
        under_way = closing.line(s, numbers[s], kinds[n % len(kinds)])
        waiting = [closing.line(s, numbers[s] + k + 1) for k in range(2)]
        its_own = closing.line(other, numbers[other])
        numbers[other] += 1
        offered = tb.golden.absorb(*under_way[:2], tb.sessions)[0]
        refused = closing.refused(s, waiting)
        kept = tb.golden.absorb(*its_own[:2], tb.sessions)
        tb.out, tb.events, tb.p_valid, tb.p_ready = [], [], 1.0, 0.0
        running = cocotb.start_soon(tb.run([under_way, *waiting, its_own]))
        for _ in range(30):  # all are in, and nothing is taken
            await RisingEdge(dut.clk)
        assert not tb.out and not tb.events
        tb.p_ready = tb.rng.choice([0.0, 0.5])  # lines are judged while it is closed, or after
        await closing.now(s)
        tb.p_ready = 0.5
        await running
        assert tb.out == [offered, *kept], n
        assert tb.events == refused and {e.code for e in refused} == {Event.CLOSED_SESSION}, n
        tb.golden.opened(s)
        await tb.check([closing.line(s, 0), closing.line(s, 1)])
        assert not tb.events
        numbers[s] = 2


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def flipped_headers(dut):
    """Of a header that waits, one flipped bit is corrected and told; of two, in either code word,
    its line is malformed, which is told as poison. The line under way and the one behind it have
    left the rows."""
    tb = TB(dut, _config())
    closing = Closing(tb)
    await tb.reset()
    here, numbers = tb.config.hint_lines, [0] * tb.config.sessions
    word = CheckedWord(HEADER_BITS + LD_ID_BITS + 1, protect=True)
    parts = [(sum(word.widths[:p]), width) for p, width in enumerate(word.widths)]
    for bits, (low, width) in ((bits, part) for bits in (1, 2) for part in 2 * parts):
        lines, tb.out, tb.events = [], [], []
        for n in range(here):
            session = tb.rng.randrange(tb.config.sessions)
            lines.append(closing.line(session, numbers[session]))
            numbers[session] += bits == 1 or n < 2
        tb.p_valid, tb.p_ready = 1.0, 0.0
        running = cocotb.start_soon(tb.run(lines))
        for _ in range(30):  # all are in, and nothing is taken
            await RisingEdge(dut.clk)
        for row in dut.heads.fifo.storage:
            flips = tb.rng.sample(range(low, low + width), bits)
            row.value = int(row.value) ^ sum(1 << bit for bit in flips)
        tb.flipped, tb.p_ready = True, 0.5
        tb.told.clear()
        await running
        await tb.run([])  # what is told of the last one
        await tb.run([])
        tb.flipped = False
        kind = "corrected" if bits == 1 else "poisoned"
        assert tb.told == {kind: here - 2}, f"{bits} in each row: {tb.told}"
        sound = lines if bits == 1 else lines[:2]
        want = [x for line in sound for x in tb.golden.absorb(*line[:2], tb.sessions)]
        assert tb.out == want
        assert [e.code for e in tb.events] == [Event.HINT_MALFORMED] * (here - len(sound))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def full_rate(dut):
    """Full lines leave at one entry a cycle, the line's step advance included."""
    tb = TB(dut, _config())
    await tb.reset()
    pages, lines = tb.config.pages, bench_params()["rate_lines"]
    tb.sessions[0].used_pages, tb.sessions[0].used_queues = pages, tb.config.queues
    dut.sessions.value = pack_sessions(tb.config, tb.sessions)
    count = min(ENTRIES, pages)
    await tb.check(
        (pack(line), 0, False)
        for n in range(lines)
        for line in mass_lines(
            session=0,
            queue=n % tb.config.queues,
            first_page=0,
            masses=[7] * count,
            sequence=n,
            advance=n % 4 == 3,
        )
    )
    record(
        updates_per_cycle=tb.masses_taken / tb.cycles,
        ops_per_cycle=len(tb.out) / tb.cycles,
        cycles=tb.cycles,
    )
