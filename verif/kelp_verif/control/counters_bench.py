# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Totals, queue counters, latency histogram and event log, each against a few lines of Python:
bursts, ties, wraps, reads under traffic, resets.

Their inputs are valid-only, so nothing can be held back; reads of queue counters are granted, and
wait.
"""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge, Timer

from kelp_hw.control.counters import QueueCounters, TotalCounters
from kelp_hw.control.events import TAKEN
from kelp_hw.control.signatures import queue_event_layout
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_spec.config import named
from kelp_spec.metadata import Event
from kelp_spec.registers import COUNTERS, EVENT_RECORDS, HISTOGRAM_BINS, QUEUE_COUNTERS

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .registers_tb import ON_ITS_WAY


class Bench:
    """Clock, reset and the seeded generator that all four share."""

    def __init__(self, dut):
        self.dut, self.rng, self.cycles, self.seen = (
            dut,
            random.Random(cocotb.RANDOM_SEED),
            0,
            Counter(),
        )
        params = bench_params()
        self.config = named(params["config"]).with_(**params.get("fields", {}))

    async def reset(self, quiet, clear, *, anew=True):
        """Reset with the inputs `quiet` at 0, then hold `clear` for so many cycles, as the register
        block does; without `anew` it is cleared and not reset."""
        dut = self.dut
        for name in (*quiet, "clear"):
            getattr(dut, name).value = 0
        if anew:
            dut.rst.value = 1
            await self.ticks(2)
        dut.rst.value, dut.clear.value = 0, int(clear > 0)
        await self.ticks(clear)
        dut.clear.value = 0

    async def ticks(self, n):
        for _ in range(n):
            await RisingEdge(self.dut.clk)
            self.cycles += 1

    async def deposit(self, row, value):
        """Writes a row of a memory that the block itself may be rewriting."""
        for _ in range(100):
            row.value = value
            await self.ticks(6)
            if row.value == value:
                return
        raise AssertionError("the memory does not keep what is put there")


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def totals(dut):
    """Any number of pulses in any cycle; each word that comes by holds every pulse up to the cycle
    of its visit, and none after it; 48 bits."""
    tb = Bench(dut)
    rng, names, turn = tb.rng, range(len(COUNTERS)), len(COUNTERS)
    await start_clock(dut)
    want = [0] * turn
    # (counter, its word) of the last visits: a word is shown so many cycles later.
    visits = deque(maxlen=TotalCounters.READ_LATENCY)

    async def cycle(pulses):
        """One cycle; whether the block is idle in it."""
        dut.pulses.value = pulses
        await ReadOnly()
        pointer, idle = int(dut.pointer.value), dut.idle.value == 1
        assert not (pulses and idle), "idle while pulses come"
        if len(visits) == visits.maxlen:
            i, word = visits[0]
            got = int(dut.read_data.value)
            assert got == word, f"cycle {tb.cycles}: {COUNTERS[i][0]} = {got}, expected {word}"
            tb.seen["read under traffic"] += not idle
        for i in names:
            tb.seen["wrapped"] += want[i] == (1 << 48) - 1 and pulses >> i & 1
            want[i] = want[i] + (pulses >> i & 1) & (1 << 48) - 1
        assert not visits or pointer == (visits[-1][0] + 1) % turn, f"{pointer} after {visits[-1]}"
        visits.append((pointer, want[pointer]))
        await tb.ticks(1)
        return idle

    async def rest():
        busy = 0
        while not await cycle(0):
            busy += 1
            assert busy < turn + 2, "the totals do not come to rest"
        tb.seen["rest after a while"] += busy > 10
        for _ in range(turn + TotalCounters.READ_LATENCY):
            await cycle(0)

    for round_ in range(bench_params()["rounds"]):
        if round_ % 2 == 0:
            dut.pulses.value = 0
            tb.seen["reset of gathered pulses"] += dut.idle.value == 0
            await tb.reset(["pulses"], turn + 4 + rng.randrange(turn), anew=round_ % 4 == 0)
            want[:] = [0] * turn
            visits.clear()
            for _ in range(turn + TotalCounters.READ_LATENCY):
                await cycle(0)
            for i, value in (
                *((rng.choice(names), rng.getrandbits(48)) for _ in range(3)),
                (rng.randrange(30), (1 << 32) - 3),
                (rng.randrange(30, turn), (1 << 48) - 3),
            ):
                want[i] = value
                await tb.deposit(dut.memory[i], value)
            visits.clear()
        density = rng.choice([0.0, 0.5, 1.0])
        for _ in range(4 * turn):
            await cycle(
                rng.getrandbits(turn)
                if 0 < density < 1
                else (1 << turn) - 1
                if density
                else 1 << rng.randrange(turn)
            )
        if round_ % 4 == 3:
            await rest()
    record(totals=dict(tb.seen))


class QueueRows:
    """The queue counters as they should be: rows that count two streams of events, a wipe that
    waits for a cycle without, a read that was granted."""

    def __init__(self, dut):
        self.dut, self.tb = dut, Bench(dut)
        self.config = self.tb.config
        self.event = Packing(queue_event_layout(self.config))
        self.kept = self.event.fields["bump"][1].bit_length()
        self.useful_at = [name for name, _ in QUEUE_COUNTERS].index("prefetch_useful")
        self.clear()

    def clear(self):
        """As after a reset."""
        self.rows = [[0] * self.kept for _ in range(self.config.squeues)]
        self.wiping = self.granted = None
        # What came in the last three cycles, which a read does not see.
        self.counting = deque([()] * 3)
        self.written = False  # something is, of four cycles ago
        self.reading, self.waited = False, 0
        self.quiet = deque([False] * ON_ITS_WAY)

    def bump(self, squeue, bits):
        if bits is None:  # a wipe
            self.tb.seen["wiped after traffic"] += any(self.rows[squeue])
            self.rows[squeue] = [0] * self.kept
            return
        row = self.rows[squeue]
        self.tb.seen["wrapped"] += any(
            bits >> k & 1 and row[k] == 0xFFFFFFFF for k in range(self.kept)
        )
        self.rows[squeue] = [n + (bits >> k & 1) & 0xFFFFFFFF for k, n in enumerate(row)]

    async def cycle(self, p_event, p_useful, p_wipe):
        """One cycle of random inputs; whether the block was idle."""
        rng, config = self.tb.rng, self.config
        few = rng.choice([1, 2, config.squeues])
        if p_event == 1 and self.quiet[0]:
            p_event = p_useful = 0
        given = (rng.randrange(few), rng.getrandbits(self.kept)) if rng.random() < p_event else None
        useful = rng.randrange(few) if rng.random() < p_useful else None
        if self.wiping is None and rng.random() < p_wipe:
            self.wiping = rng.randrange(few)
        self.reading |= rng.random() < 0.1
        wanted = rng.randrange(few)
        offered = given is not None or useful is not None or self.wiping is not None
        self.drive(given, useful, wanted)
        await ReadOnly()
        self.check_read()
        self.check_quiet()
        self.check_wipe()
        self.granted = (wanted, list(self.rows[wanted])) if self.dut.read_grant.value == 1 else None
        idle = self.dut.idle.value == 1
        busy = offered or any(self.counting) or self.written
        assert idle != busy, f"cycle {self.tb.cycles}: idle is {idle}"
        counted = self.counting.popleft()
        self.written = bool(counted)
        for event in counted:
            self.bump(*event)
        came = []
        if given is not None:
            came.append((given[0], given[1] & ~(1 << self.useful_at)))
        if useful is not None:
            came.append((useful, 1 << self.useful_at))
        self.counting.append(tuple(came))
        self.tb.seen["both at once"] += len(came) == 2
        await self.tb.ticks(1)
        return idle

    def drive(self, given, useful, wanted):
        """The inputs of a cycle; what is not valid says anything."""
        dut, rng, squeues = self.dut, self.tb.rng, self.config.squeues
        dut.i__valid.value, dut.i_useful__valid.value, dut.wipe.value = (
            int(given is not None),
            int(useful is not None),
            int(self.wiping is not None),
        )
        dut.i__payload.value = (
            self.event.pack(squeue=given[0], bump=given[1])
            if given
            else rng.getrandbits(self.event.width)
        )
        dut.i_useful__payload.value = useful if useful is not None else rng.randrange(squeues)
        dut.wipe_squeue.value = self.wiping if self.wiping is not None else rng.randrange(squeues)
        dut.read.value, dut.read_squeue.value = int(self.reading), wanted

    def check_quiet(self):
        """Who has waited for long asks for a cycle without an event."""
        quiet = self.dut.quiet.value == 1
        assert quiet == (self.waited == QueueCounters.PATIENCE), (
            f"cycle {self.tb.cycles}: quiet is {quiet} after {self.waited} cycles"
        )
        self.tb.seen["quiet"] += quiet
        self.quiet.popleft()
        self.quiet.append(quiet)
        granted = self.dut.read_grant.value == 1
        waits = (self.reading or self.wiping is not None) and not granted
        self.waited = min(self.waited + 1, QueueCounters.PATIENCE) if waits else 0
        self.reading &= not granted

    def check_read(self):
        """What the read of the cycle before shows, and whether one is granted now."""
        if self.granted is not None:
            squeue, row = self.granted
            got = [int(self.dut.read_data.value) >> 32 * k & 0xFFFFFFFF for k in range(self.kept)]
            assert got == row, (
                f"cycle {self.tb.cycles}: counters of squeue {squeue} {got}, expected {row}"
            )
            self.tb.seen["read"] += 1
        assert (self.dut.read_grant.value == 1) == (self.counting[-1] == ()), (
            "a read is granted in each cycle after one without an event, and in no other"
        )

    def check_wipe(self):
        """A wipe that is taken goes in the place of an event."""
        if self.wiping is not None and self.dut.wipe_ready.value == 1:
            assert self.counting[-1] == ()
            self.counting[-1] = ((self.wiping, None),)
            self.wiping = None
        self.tb.seen["wipe waits"] += self.wiping is not None

    async def to_the_end(self):
        """Rest, then rows with any counts, one of them about to wrap."""
        busy = 0
        while not await self.cycle(0, 0, 0):
            busy += 1
            assert busy < 20, "the queue counters do not come to rest"
        assert self.wiping is None, "the wipe is never done"
        await self.cycle(0, 0, 0)
        # `prefetch_useful` has a memory of its own.
        for squeue in range(self.config.squeues):
            row = [self.tb.rng.getrandbits(32) for _ in range(self.kept)]
            self.rows[squeue] = row = [0xFFFFFFFF] * self.kept if squeue == 1 else row
            others = [count for k, count in enumerate(row) if k != self.useful_at]
            word = sum(count << 32 * k for k, count in enumerate(others))
            await self.tb.deposit(self.dut.counts.memory[squeue], word)
            await self.tb.deposit(self.dut.useful.memory[squeue], row[self.useful_at])
        self.granted = None


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def queues(dut):
    """Events of both streams in every cycle, wipes and reads in between; 32 bits that wrap. In some
    rounds no cycle is without an event, unless `quiet` asks for one."""
    counters = QueueRows(dut)
    tb, rng = counters.tb, counters.tb.rng
    await start_clock(dut)
    for round_ in range(bench_params()["rounds"]):
        if round_ % 5 in (0, 3):
            tb.seen["reset of events"] += any(counters.counting)
            # The rows of a clear begin where those of the one before have ended.
            await tb.reset(
                ["i__valid", "i_useful__valid", "wipe", "read", "read_squeue"],
                tb.config.squeues + rng.randrange(tb.config.squeues),
                anew=round_ % 5 == 0,
            )
            counters.clear()
        p_event, p_useful, p_wipe = (rng.choice([0.0, 0.3, 0.9]) for _ in range(3))
        if round_ % 5 == 2:
            p_event = 1.0
        if round_ % 5 == 4:
            p_event = p_useful = 0.9  # the reset meets events
        for _ in range(300 if p_event == 1 else 150):
            await counters.cycle(p_event, p_useful, p_wipe / 10)
        if round_ % 5 == 1:
            await counters.to_the_end()
    record(queues=dict(tb.seen))


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def histogram(dut):
    """Latencies around every power of two, the same bin cycle after cycle; counts saturate."""
    tb = Bench(dut)
    rng, bits = tb.rng, len(dut.i__payload) - 1
    await start_clock(dut)
    counts, before, asked = [], None, None
    coming = deque([None] * 5)  # rows of the events that a read of this cycle does not see yet

    async def cycle(latency):
        nonlocal before, asked
        counted = coming.popleft()
        if counted is not None:
            counts[counted] = min(counts[counted] + 1, 0xFFFFFFFF)
        row = rng.randrange(64) if rng.random() < 0.3 or before is None else before
        dut.i__valid.value, dut.read_row.value = int(latency is not None), row
        dut.i__payload.value = (
            rng.getrandbits(bits + 1) if latency is None else latency[1] << 1 | latency[0]
        )
        await ReadOnly()
        if asked is not None:
            assert dut.read_data.value == asked[1], (
                f"bin {asked[0]} = {int(dut.read_data.value)}, expected {asked[1]}"
            )
            tb.seen["read"] += 1
            tb.seen["saturated"] += asked[1] == 0xFFFFFFFF
        asked = row, counts[row]
        if latency is not None:
            missed, cycles = latency
            before = 32 * missed + min(max(cycles.bit_length() - 1, 0), HISTOGRAM_BINS - 1)
            tb.seen[f"bin {before}"] += 1
        coming.append(before if latency is not None else None)
        await tb.ticks(1)

    def latency():
        n = 1 << rng.randrange(bits)
        return rng.getrandbits(1), rng.choice([0, n - 1, n, 2 * n - 1, rng.getrandbits(bits)])

    for round_ in range(bench_params()["rounds"]):
        if round_ % 3 == 0:
            await tb.reset(["i__valid"], 64 + rng.randrange(64), anew=round_ % 2 == 0)
            counts, asked = [0] * 64, None
            coming.extend([None] * 5)
            while len(coming) > 5:
                coming.popleft()
        if round_ % 3 == 1:
            for _ in range(8):
                await cycle(None)
            counts[3] = 0xFFFFFFFF - 2
            await tb.deposit(dut.memory[3], counts[3])
            asked = None
            for _ in range(5):
                await cycle((0, 8))
        rate, same = rng.choice([0.1, 0.5, 0.9, 1.0]), None
        for n in range(100):
            if n % 10 == 0:
                same = latency() if rng.random() < 0.5 else None
            await cycle(None if rng.random() >= rate else same or latency())
        for _ in range(6):
            await cycle(None)
        for n in range(70):
            before = n % 64
            await cycle(None)
    record(histogram=dict(tb.seen))


class Log:
    """What an event log should hold: records, what waits for each source, loss and interrupt."""

    def __init__(self, seen):
        self.seen, self.records, self.waiting = seen, [], {}
        self.lost = self.irq = False
        self.newest = 0  #: code of the record that is to interrupt
        self.recorded = self.sure = False  #: the newest record is unknown; nothing waits unseen
        self.forgives = False  #: the overflow was taken in the last cycle

    @property
    def full(self):
        return len(self.records) == EVENT_RECORDS

    def interrupt(self, enable):
        """A cycle after its record counts."""
        self.irq |= bool(enable >> self.newest & 1) and self.newest != 0
        self.newest = 0

    def find(self, got, where):
        """The newest record is one of those that waited."""
        source = next((s for s, r in self.waiting.items() if r == got), None)
        assert source is not None, f"{where}: recorded {got:#x}, which did not wait"
        self.seen["one of several"] += len(self.waiting) > 1
        del self.waiting[source]
        self.records[-1], self.newest = got, got & 31

    def come(self, came):
        """What came at the last edge found its source's place free or not."""
        self.sure = not self.waiting
        for s, r in came.items():
            taken = s in self.waiting
            self.lost |= taken
            self.seen["lost below sixteen"] += taken
            self.seen["overflow in the cycle of its take"] += taken and self.forgives
            self.waiting.setdefault(s, r)

    def drop(self):
        """Nothing waits any more while the log is full."""
        self.seen["lost to a full log"] += 1
        self.waiting, self.lost = {}, True

    def known(self):
        """Whether nothing that waits may be lost already, unseen."""
        return self.sure or not (self.full and self.waiting)

    def turn(self, clear, take, count, looked):
        """What the next edge does: `take` of `count` records, and of the overflow, or `clear`."""
        leaves, full = min(count, len(self.records)) if take else 0, self.full
        self.recorded = bool(self.waiting) and (not full or leaves > 0) and not clear
        self.forgives = take and looked
        if take:
            self._take(leaves, count, looked, full)
        if self.recorded:
            self.records.append(None)
        if clear:
            self.seen["clear of a record"] += bool(self.records)
            self.seen["clear of one that comes"] += bool(self.waiting)
            self.__init__(self.seen)

    def _take(self, leaves, count, looked, full):
        seen, here = self.seen, len(self.records)
        seen["take of some"] += 0 < leaves < here
        seen["take of more than there are"] += here < count
        seen["take beside a record"] += leaves > 0 and self.recorded
        seen["take of all beside a record"] += leaves == here > 0 and self.recorded
        seen["take of a full log beside a record"] += full and self.recorded
        seen["take of an overflow"] += looked and self.lost
        if looked:
            self.lost = full and bool(self.waiting) and not self.recorded  # in this very cycle
            seen["overflow in the cycle of its take"] += self.lost
        if leaves == here and not self.recorded:
            seen["irq falls with the last record"] += self.irq
            self.irq, self.newest = False, 0
        seen["irq stays with a record"] += self.irq and leaves > 0
        del self.records[:leaves]


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def events(dut):
    """Several sources at once, in bursts, up to and beyond sixteen records; taken, all or some of
    them, and cleared, while an event waits; which of several goes first is left open."""
    tb = Bench(dut)
    rng, sources = tb.rng, bench_params()["sources"]
    layout, taken = Packing(Layouts(tb.config).event), Packing(TAKEN)
    valids = [getattr(dut, f"i__{s}__valid") for s in range(sources)]
    inputs = [getattr(dut, f"i__{s}__payload") for s in range(sources)]
    await start_clock(dut)
    log, came = Log(tb.seen), {}
    serial, now, enable, rate, most = 0, (1 << 32) - 2000, 0, 0.1, 0.2
    for n in range(bench_params()["cycles"]):
        if n % 1500 == 0:
            tb.seen["reset of an event"] += bool(log.waiting)
            await tb.reset([*(port._name for port in valids), "take"], 0)
            log, came = Log(tb.seen), {}
        log.interrupt(enable)
        if n % 60 == 0:
            rate, most = rng.choice([0.02, 0.1, 0.9]), rng.choice([0.0, 0.02, 0.3])
            enable = rng.choice([0, 0, 1 << rng.randrange(1, 20), rng.getrandbits(32)])
            dut.irq_enable.value = enable

        # What the last edge did: one of those that waited became the newest record; then what came
        # found its source's place free or not.
        held = log.records
        index = len(held) - 1 if log.recorded else rng.randrange(EVENT_RECORDS)
        dut.read_index.value = index
        await Timer(1, "ns")
        got, idle = int(dut.read_data.value), dut.idle.value == 1
        if log.recorded:
            log.find(got, f"cycle {n}")
        elif index < len(held):
            assert got == held[index], (
                f"cycle {n}: record {index} {got:#x}, expected {held[index]:#x}"
            )
            tb.seen["read"] += 1
        log.come(came)
        if log.full and idle and log.waiting:
            log.drop()

        now = now + rng.choice([1, 1, 1000]) & 0xFFFFFFFF
        came = {}
        for s in range(sources):
            serial += 1
            event = layout.pack(
                code=rng.choice(list(Event)[1:]),
                ld_id=rng.getrandbits(4),
                squeue=rng.randrange(tb.config.squeues),
                page=rng.randrange(tb.config.pages),
                argument=serial & 0xFFFF,
            )
            if rng.random() < rate:
                came[s] = now << layout.width | event
            valids[s].value, inputs[s].value = int(s in came), event
        waiting, full = log.waiting, log.full
        # Of two that wait nobody knows which a clear finds recorded.
        clear = rng.random() < most and (not waiting or len(waiting) == 1 and not full)
        often = 0.5 if full and waiting else most
        take = not clear and log.known() and rng.random() < often
        count = rng.choice([0, 1, rng.randrange(32), len(held)]) if take else rng.randrange(32)
        looked = rng.getrandbits(1)
        dut.now.value, dut.clear.value, dut.take.value = now, int(clear), int(take)
        dut.taken.value = taken.pack(count=count, overflow=looked)
        await ReadOnly()
        assert dut.count.value == len(held), (
            f"cycle {n}: {int(dut.count.value)} records, expected {len(held)}"
        )
        assert (dut.irq.value == 1) == log.irq, f"cycle {n}: irq, expected {log.irq}"
        if not (full and waiting):
            assert (dut.overflow.value == 1) == log.lost, f"cycle {n}: expected {log.lost}"
            quiet = not waiting and not log.newest
            assert idle == quiet, f"cycle {n}: idle with {waiting}"
        tb.seen["irq"] += log.irq
        tb.seen["all at once"] += len(came) == sources
        tb.seen["full"] += full
        log.turn(clear, take, count, looked)
        await RisingEdge(dut.clk)
    record(events=dict(tb.seen))
