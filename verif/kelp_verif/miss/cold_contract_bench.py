# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Cold-tier scheduler under a model of its contract, with a tier that says anything at any time:
of ids that nobody uses or knows, of tries that are over, OK and FAILED while their ABORT is under
way. Time is set by hand where deadlines are looked at."""

import cocotb

from kelp_hw.miss.cold_scheduler import TRY_BITS, ColdScheduler
from kelp_spec.config import named
from kelp_spec.metadata import ColdStatus

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .cold_contract_tb import ContractTB
from .cold_scheduler_tb import turn

STATUSES = tuple(ColdStatus)


async def start(dut, *, timeout=1 << 31, retries=0) -> ContractTB:
    tb = ContractTB(dut, named(bench_params()["config"]))
    await start_clock(dut)
    await tb.reset(timeout=timeout, retries=retries)
    return tb


async def rest(tb, cycles):
    for _ in range(cycles):
        await tb.cycle()


async def until(tb, condition, limit):
    began = tb.cycles
    while not condition():
        await tb.cycle()
        assert tb.cycles - began <= limit, f"nothing in {limit} cycles: {tb.entries}"


async def put(tb, kind):
    """Ask for something and wait until the tier has its command. Returns its index."""
    if kind == "write":
        await tb.cycle(write=(request := tb.new_write()))
        index = tb.config.misses + request["token"]
    else:
        await tb.cycle(fetch=(request := tb.new_fetch(kind == "demand")))
        index = request["miss"]
    await until(
        tb,
        lambda: index in tb.entries and tb.entries[index].accepted is not None,
        tb.config.misses + 2 * ColdScheduler.LATENCY,
    )
    return index


async def say(tb, index, status, attempt=None):
    """The tier says something, which is taken within a few cycles."""
    tb.say(index, tb.entries[index].attempt if attempt is None else attempt, status)
    await until(tb, lambda: not tb.flash.done and tb.port.offered is None, 3 * ColdScheduler.TURN)
    await rest(tb, 4)


async def answered(tb, index):
    await until(tb, lambda: index not in tb.entries, 2 * ColdScheduler.TURN)


async def finish(tb, limit):
    """A tier that does what it should, until nothing is left."""
    said, began = set(), tb.cycles
    while tb.entries or tb.offer or tb.dut.idle.value != 1:
        for index, entry in tb.entries.items():
            name = index, entry.attempt, entry.phase
            if entry.accepted is None or entry.phase not in ("flies", "aborting") or name in said:
                continue
            said.add(name)
            tb.say(
                index,
                entry.attempt,
                ColdStatus.OK if entry.phase == "flies" else ColdStatus.ABORTED,
            )
        await tb.cycle()
        assert tb.cycles - began < limit, f"left over: {tb.entries}"


def anything(tb):
    """What a tier might say in its confusion; the contract forbids only words about commands that
    it has not seen."""
    rng, known = tb.rng, tb.count
    index = rng.randrange(1 << (known - 1).bit_length())
    if index >= known:
        tb.say(index, rng.getrandbits(1), rng.choice(STATUSES))
        return
    if index not in tb.attempts:
        return
    entry, attempt, status = tb.entries.get(index), tb.attempts[index], rng.choice(STATUSES)
    if entry and entry.phase == "flies":
        if entry.accepted is None:
            return
        # Time enough to hear it before the try ends by itself and the next one begins.
        early = tb.age(tb.cycles - 1, entry.given) < tb.timeout // 2
        attempt ^= early and rng.random() < 0.3
        if status == ColdStatus.ABORTED and not early:
            return
    elif entry and entry.phase == "abort shown" and status == ColdStatus.ABORTED:
        return
    elif entry and entry.phase == "aborting" and status != ColdStatus.ABORTED:
        pass
    tb.say(index, attempt, status)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def a_tier_that_says_anything(dut):
    totals = {"answers": 0, "failed": 0, "aborts": 0, "retries": 0, "cycles": 0}
    tb = await start(dut)
    for retries in (0, 1, 3):
        timeout = 600
        await tb.reset(timeout=timeout, retries=retries)
        await anything_goes(tb, bench_params()["cycles"] // 3)
        tb.port.pressure = 0.0
        await finish(tb, 20 * timeout)
        assert tb.aborts == tb.timeouts
        assert tb.retries == sum(request["tries"] - 1 for request, _ in tb.answers)
        totals["answers"] += len(tb.answers)
        totals["failed"] += sum(bad for _, bad in tb.answers)
        totals["aborts"] += tb.aborts
        totals["retries"] += tb.retries
        totals["cycles"] += tb.cycles
    record(**totals)


async def anything_goes(tb, cycles):
    rng, began, stalled = tb.rng, tb.cycles, 0
    load, chatter, ready = 0.1, 0.1, 1.0
    while tb.cycles - began < cycles:
        if tb.cycles % 512 == 0:
            load = rng.choice([0.02, 0.1, 0.3])
            chatter = rng.choice([0.02, 0.1])
            ready = rng.choice([1.0, 1.0, 0.3])
            # Now and then the port stands still for longer than the timeout.
            tb.port.pressure = rng.choice([0.0, 0.0, 0.5, 0.9])
            stalled = 2 * tb.timeout if rng.random() < 0.2 else 0
        if stalled:
            stalled -= 1
            tb.port.pressure = 0.0 if not stalled else 1.0
        many = len(tb.free_frames) > 8
        fetch = (
            tb.new_fetch(rng.random() < 0.5)
            if tb.free_misses and many and rng.random() < load
            else None
        )
        raise_ = None
        if fetch is None and rng.random() < 0.1:
            raise_ = rng.choice(sorted(tb.unread) or range(tb.config.misses))
        write = (
            tb.new_write()
            if tb.offer is None
            and len(tb.writing) < tb.config.write_backs
            and many
            and rng.random() < load
            else None
        )
        if rng.random() < chatter and len(tb.flash.done) < 2 and tb.port.pressure < 1:
            anything(tb)
        await tb.cycle(fetch=fetch, raise_=raise_, write=write, ready=ready)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def every_prefetch_leaves_by_itself(dut):
    """Of each miss id, alone and all together; nobody raises them, and no demand comes."""
    tb = await start(dut)
    c = tb.config
    for _ in range(c.misses):
        index = await put(tb, "prefetch")
        tb.free_misses.sort()
        await say(tb, index, ColdStatus.OK)
        await answered(tb, index)
        tb.free_misses = tb.free_misses[1:] + tb.free_misses[:1]
    while tb.free_misses:
        await tb.cycle(fetch=tb.new_fetch(False))
    await until(
        tb,
        lambda: len([e for e in tb.entries.values() if e.accepted is not None]) == c.misses,
        ColdScheduler.TURN * c.misses + c.misses + ColdScheduler.LATENCY,
    )
    await finish(tb, 1000)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def words_that_concern_nobody(dut):
    """While each entry is in flight: unknown ids, ids that are not in use, and its own with the
    other attempt bit or with ABORTED, for which nobody asked. All are taken, none does anything."""
    tb = await start(dut, retries=1)
    ids = range(1 << (tb.count - 1).bit_length())
    for kind in ("demand", "write"):
        for _ in range(tb.config.misses if kind == "demand" else tb.config.write_backs):
            index = await put(tb, kind)
            entry = tb.entries[index]
            others = [i for i in ids if i != index]
            if index not in (0, tb.config.misses):
                others = tb.rng.sample(others, 3)
            for other in others:
                for attempt in range(2):
                    await say(tb, other, tb.rng.choice(STATUSES), attempt)
            for status in STATUSES:
                await say(tb, index, status, 1 - entry.attempt)
            await say(tb, index, ColdStatus.ABORTED)
            await rest(tb, 2 * ColdScheduler.LATENCY)
            assert entry.phase == "flies" and entry.tries == 1 and tb.retries == 0
            await say(tb, index, ColdStatus.OK)
            await answered(tb, index)
    assert not any(bad for _, bad in tb.answers)
    await finish(tb, 100)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def an_abort_under_way_is_waited_for(dut):
    """OK and FAILED between a timeout and the end of its ABORT end nothing, before the ABORT has
    left and after; ABORTED does. In between time stands still."""
    timeout = 500
    tb = await start(dut, timeout=timeout, retries=1)
    tb.step = 0
    for kind in ("demand", "write"):
        for status in (ColdStatus.OK, ColdStatus.FAILED):
            index = await put(tb, kind)
            entry, tb.port.pressure = tb.entries[index], 1.0
            tb.now += timeout
            await until(tb, lambda e=entry: tb.overdue or e.phase == "abort shown", turn(tb))
            tb.port.pressure = 0.0
            tb.port.command_ready.value = 0
            tb.say(index, entry.attempt, status)
            await until(tb, lambda e=entry: e.phase == "aborting", 2 * ColdScheduler.LATENCY)
            for _ in range(2):
                await say(tb, index, status)
            await say(tb, index, ColdStatus.ABORTED, 1 - entry.attempt)
            await rest(tb, turn(tb))
            assert entry.phase == "aborting" and entry.tries == 1
            await say(tb, index, ColdStatus.ABORTED)
            await until(
                tb, lambda e=entry: e.phase == "flies" and e.accepted, 2 * ColdScheduler.LATENCY
            )
            assert entry.tries == 2
            await say(tb, index, ColdStatus.FAILED)
            await answered(tb, index)
    assert [bad for _, bad in tb.answers] == [True] * 4
    await finish(tb, 100)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def deadlines_to_the_cycle(dut):
    """Time stands still but where it is moved: a cycle before its deadline nothing happens to a
    command, nor to an ABORT; at the deadline it does, within a turn of the engine."""
    tb = await start(dut, retries=1)
    tb.step = 0
    timeouts = [1 << bit for bit in range(32)] + [tb.rng.getrandbits(32) | 1 for _ in range(24)]
    for number, timeout in enumerate(timeouts):
        await tb.reset(timeout=timeout, retries=1)
        tb.now = tb.rng.getrandbits(32)
        index = await put(tb, "write" if number % 4 == 3 else "demand")
        entry = tb.entries[index]
        for phase, after in (("flies", "aborting"), ("aborting", "flies")):
            tb.now += timeout - 1
            if timeout > 1:
                await rest(tb, turn(tb))
            assert entry.phase == phase and entry.tries == 1, f"{timeout}: {entry}"
            tb.now += 1
            await until(tb, lambda e=entry, a=after: e.phase == a and e.accepted, turn(tb) + 2 * 8)
        assert entry.tries == 2 and tb.timeouts == tb.retries == 1
        await say(tb, index, ColdStatus.OK)
        await answered(tb, index)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def as_many_tries_as_asked_for(dut):
    tb = await start(dut)
    for retries in range(1 << TRY_BITS):
        await tb.reset(timeout=1 << 31, retries=retries)
        index = await put(tb, tb.rng.choice(["demand", "prefetch", "write"]))
        entry = tb.entries[index]
        for tries in range(1, retries + 2):
            await until(
                tb,
                lambda e=entry, n=tries: e.tries == n and e.accepted,
                2 * ColdScheduler.LATENCY,
            )
            await say(tb, index, ColdStatus.FAILED)
        await answered(tb, index)
        assert tb.answers[0][1] and tb.retries == retries
    assert tb.slowest <= 2 * ColdScheduler.TURN


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def an_abort_behind_a_stalled_command(dut):
    """A's ABORT stands behind the command of B, which the tier does not accept: A is not given up
    before the ABORT has been accepted and `timeout` cycles have passed."""
    timeout = 400
    tb = await start(dut, timeout=timeout)
    a = await put(tb, "demand")
    entry = tb.entries[a]
    while tb.age(tb.cycles - 1, entry.given) < timeout // 2:
        await tb.cycle()
    tb.port.pressure = 1.0
    await tb.cycle(fetch=tb.new_fetch(True))
    await rest(tb, 4 * timeout)
    assert tb.shown and a in tb.entries and tb.timeouts == 2, "both are overdue"
    tb.port.pressure = 0.0
    await until(tb, lambda: entry.phase == "aborting", 2)
    accepted = tb.cycles
    await until(tb, lambda: a not in tb.entries, 2 * timeout + 2 * turn(tb))
    assert tb.cycles - accepted >= timeout
    await finish(tb, 2 * timeout)
    # Alone at the port.
    entry = tb.entries[await put(tb, "demand")]
    tb.port.pressure = 1.0
    await rest(tb, 4 * timeout)
    assert entry.phase == "abort shown"
    tb.port.pressure = 0.0
    await finish(tb, 2 * timeout)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def aborts_of_others_keep_none_waiting(dut):
    """A tier that completes neither commands nor ABORTs, and commands that are late one after
    another: each is given up when its own ABORT's time is over."""
    timeout = 600
    tb = await start(dut, timeout=timeout)
    for kind in ("demand", "write"):
        began, first = tb.cycles, await put(tb, kind)
        for _ in range(10):
            await put(tb, "demand")
            await rest(tb, timeout // 3)
        assert first not in tb.entries, f"{tb.entries[first]} after {tb.cycles - began} cycles"
        await until(tb, lambda: not tb.entries, 2 * (timeout + turn(tb)) + turn(tb))
    assert len(tb.answers) == 22 and all(bad for _, bad in tb.answers)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def completions_and_commands_take_turns(dut):
    """A tier that talks in each cycle keeps no command waiting, and commands no completion."""
    tb = await start(dut)
    tb.port.pressure = 1.0
    while tb.free_misses:
        await tb.cycle(fetch=tb.new_fetch(True))
    tb.port.pressure = 0.0
    began = tb.cycles
    while len(tb.commands) < tb.config.misses:
        while len(tb.flash.done) < 2:
            tb.say(tb.count, tb.rng.getrandbits(1), tb.rng.choice(STATUSES))
        await tb.cycle()
        assert tb.cycles - began < 2 * ColdScheduler.TURN * tb.config.misses
    assert 0 < max(tb.slowest, tb.stood) <= 3 * ColdScheduler.TURN
    await finish(tb, 1000)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def quiet_and_idle(dut):
    """`quiet` while everything waits for the tier, and not while anything moves; `idle` when
    nothing is owed, soon."""
    tb = await start(dut, timeout=1 << 31)
    tb.step = 0
    for kind in ("demand", "prefetch", "write"):
        assert (dut.quiet.value, dut.idle.value) == (1, 1)
        index = await put(tb, kind)
        await rest(tb, 2)
        for _ in range(turn(tb)):
            await tb.cycle()
            assert (dut.quiet.value, dut.idle.value) == (1, 0)
        tb.say(index, tb.entries[index].attempt, ColdStatus.OK)
        await until(tb, lambda: tb.port.taken, 3 * ColdScheduler.TURN)
        # Its answer is not taken: neither.
        for _ in range(20):
            await tb.cycle(ready=0.0)
            assert (dut.quiet.value, dut.idle.value) == (0, 0)
        await until(tb, lambda i=index: i not in tb.entries, 2)
        await rest(tb, 2)
    # A command that the tier does not take.
    tb.port.pressure = 1.0
    await tb.cycle(fetch=tb.new_fetch(True))
    for _ in range(turn(tb)):
        await tb.cycle()
        assert (dut.quiet.value, dut.idle.value) == (0, 0)
    tb.port.pressure = 0.0
    await finish(tb, 100)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def reset_forgets_everything(dut):
    tb = await start(dut, timeout=300, retries=1)
    for _ in range(6):
        await anything_goes(tb, tb.rng.randrange(50, 900))
        await tb.reset(timeout=300, retries=1)
        tb.port.pressure = 0.0
        await rest(tb, turn(tb))
        assert not tb.commands and not tb.answers and dut.idle.value == 1
    await anything_goes(tb, 1000)
    tb.port.pressure = 0.0
    await finish(tb, 6000)


#: Memory, when its rows are flipped, and how many uses of a row are counted, of eight demands and
#: four write-backs. At a tier that takes nothing two commands have left by then, of ABORTs one, and
#: of a FIFO one word is in its output.
FLIPS = (
    ("demand.fifo.storage", "stalled", 5),
    ("writes.fifo.storage", "stalled", 3),
    ("where.rows.memory", "stalled", 10),
    ("line_masks.rows.memory", "stalled", 4),
    ("states.rows.memory", "flying", 12),
    ("aborts.fifo.storage", "late", 10),
)


async def _busy(tb, path, stage, bits):
    """Eight demands and four write-backs, first all at a tier that takes no command, then in
    flight, then in time or all of them late; at `stage` the rows of `path` are flipped."""
    tb.port.pressure = 1.0

    async def flip(now):
        if stage == now:
            await rest(tb, 4)
            tb.faults.flip(path, bits)

    for _ in range(8):
        await tb.cycle(fetch=tb.new_fetch(True))
    for _ in range(tb.config.write_backs):
        await tb.cycle(write=tb.new_write())
        await rest(tb, 8)
    await rest(tb, turn(tb))
    await flip("stalled")
    tb.port.pressure = 0.0
    await until(tb, lambda: all(e.accepted for e in tb.entries.values()), 2 * turn(tb))
    await flip("flying")
    if stage == "late":
        tb.port.pressure = 1.0
        tb.now += tb.timeout
        await rest(tb, 2 * turn(tb))
        await flip("late")
        tb.port.pressure = 0.0
    await finish(tb, 4 * turn(tb))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def flipped_bits(dut):
    """One and two in each row of each memory, as :meth:`.Faults.expect` says."""
    tb = await start(dut)
    for path, stage, counted in FLIPS:
        for bits in (1, 2):
            await tb.reset(timeout=1 << 20, retries=1)
            tb.faults.clear()
            await _busy(tb, path, None, 0)
            await tb.faults.expect(path, bits, counted, _busy(tb, path, stage, bits))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def flips_between_requests(dut):
    """A flipped bit in each row of `states` while nothing is in flight. Before an entry's first
    command since reset its row is nobody's, and nothing is said of it; afterwards it has the next
    command's attempt bit, and is counted once."""
    tb = await start(dut)
    for told in (0, tb.count):
        tb.faults.clear()
        tb.faults.flip("states.rows.memory", 1)
        while tb.free_misses:
            await put(tb, "demand")
        for _ in range(tb.config.write_backs):
            await put(tb, "write")
        await finish(tb, 3 * turn(tb))
        assert tb.faults.told["corrected"] == told, tb.faults.told
