# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The register window: decoder, session commands, telemetry read-out."""

from dataclasses import asdict

import pytest
from amaranth.sim import Simulator
from simulation import simulate
from timing import changes

from kelp_golden.tracker import Tracker
from kelp_hw.control.counters import QueueCounters
from kelp_hw.control.register_file import RegisterFile
from kelp_hw.control.registers import Registers
from kelp_rtl.verilator import QUICK_OPT
from kelp_spec.config import named
from kelp_spec.metadata import Op
from kelp_spec.registers import LONGEST_WAIT, RegisterMap, SessionCommand
from kelp_verif.control.registers_tb import ON_ITS_WAY
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.runner import Model, made, run_cocotb

UNIT = named("unit")


def access(name, write=0):
    offset = RegisterMap(UNIT).by_name[name].offset
    return {"i.valid": 1, "i.p.offset": offset >> 6, "i.p.write": write, "o.ready": 1}


KNOWN = {"resident.known": 1}


@pytest.mark.parametrize(
    ("name", "write", "prepare", "expected"),
    [
        ("identity", 0, {}, Registers.LATENCY),
        ("event_0", 0, {}, Registers.LATENCY),
        ("miss_latency_0", 0, {}, Registers.LATENCY),
        ("s0_queue_hits", 0, {}, Registers.LATENCY + 2),
        ("s0_resident", 0, KNOWN, Registers.LATENCY + 2),
        ("s0_resident", 0, {}, Registers.LATENCY + Registers.RESIDENT_WAIT),
        ("s1_queue_hits", 1, {}, Registers.WRITE_LATENCY - 1),  # nothing of it is written
        ("low_water", 1, {"i.p.byte_enable": 0xFF << 32}, Registers.WRITE_LATENCY),
        ("low_water", 1, {"i.p.byte_enable": (1 << 64) - 1}, Registers.WRITE_LATENCY + 7),
    ],
)
@pytest.mark.sampled
def test_latency_and_interval(name, write, prepare, expected):
    block = Registers(config=UNIT, event_sources=1)
    given = [access(name, write) | prepare] * (2 * expected + 4)
    seen = changes(block, "o.valid", given, prepare=prepare)
    assert seen[0] == expected
    if name == "identity":
        assert seen[2] - seen[0] == block.INTERVAL


@pytest.mark.parametrize("name", ["count_accesses", "count_sweeps", "s0_queue_hits"])
@pytest.mark.sampled
def test_what_a_reader_may_not_see_is_not_waited_for(name):
    """Nor is a pause asked for, though a queue counts in every cycle."""
    block, cycles = Registers(config=UNIT, event_sources=1), 4 * Registers.COUNTERS_LATENCY
    counts = {"i_counted.queue.valid": 1}
    given = [access(name) | counts | {"i.p.ld_id": 5}] * cycles
    seen = changes(block, "o.valid", given, prepare=counts)
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) <= Registers.LATENCY + 2 + 2
    assert changes(block, "quiet", given + [counts] * QueueCounters.PATIENCE, prepare=counts) == []


@pytest.mark.parametrize(("name", "least"), [("unit", 1), ("unit_coherent", 9)])
def test_a_pool_keeps_more_frames_than_a_host_can_hold_sectors(name, least):
    """Whatever its limit is set to, in the golden model, too; never more than it has."""
    config = named(name)
    block, tracker = Registers(config=config, event_sources=1), Tracker(config)
    register = RegisterMap(config).by_name["pool_limit_fp8"]
    at, most = register.offset % 64, config.frames[1]

    async def bench(ctx):
        ctx.set(block.o.ready, 1)
        ctx.set(block.pools.unused, 0b1111)
        for wanted in (*range(most + 3), 1 << 20):
            ctx.set(block.i.p.offset, register.offset >> 6)
            ctx.set(block.i.p.write, 1)
            ctx.set(block.i.p.byte_enable, 0xFF << at)
            ctx.set(block.i.p.data, wanted << 8 * at)
            ctx.set(block.i.valid, 1)
            while not ctx.get(block.o.valid):
                await ctx.tick()
            ctx.set(block.i.valid, 0)
            await ctx.tick().repeat(3)
            limit = min(max(wanted, least), most)
            assert ctx.get(block.settings.pool_limit[1]) == limit
            tracker.set_limits([1, min(wanted, most), 1, 1])
            assert tracker.pools[1].limit == limit

    simulate(block, bench)


@pytest.mark.parametrize("name", ["cold_timeout", "starve_limit"])
def test_a_deadline_is_no_longer_than_can_be_told(name):
    """It reads back as it was written."""
    block, register = Registers(config=UNIT, event_sources=1), RegisterMap(UNIT).by_name[name]
    at = register.offset % 64

    async def bench(ctx):
        ctx.set(block.o.ready, 1)
        ctx.set(block.i.p.offset, register.offset >> 6)
        for wanted in (0, 1, LONGEST_WAIT - 1, LONGEST_WAIT, LONGEST_WAIT + 1, (1 << 32) - 1):
            for write in (1, 0):
                ctx.set(block.i.p.write, write)
                ctx.set(block.i.p.byte_enable, 0xFF << at)
                ctx.set(block.i.p.data, wanted << 8 * at)
                ctx.set(block.i.valid, 1)
                while not ctx.get(block.o.valid):
                    await ctx.tick()
                read = ctx.get(block.o.p.data) >> 8 * at & 0xFFFFFFFFFFFFFFFF
                assert write or read == wanted
                ctx.set(block.i.valid, 0)
                await ctx.tick().repeat(3)
            assert ctx.get(block.settings[name]) == min(wanted, LONGEST_WAIT)

    simulate(block, bench)


def offer(ctx, block, register, value):
    """A write of one register, offered from now on."""
    at = register.offset
    ctx.set(block.i.p.offset, at >> 6)
    ctx.set(block.i.p.byte_enable, 0xFF << at % 64)
    ctx.set(block.i.p.data, value << 8 * (at % 64))
    ctx.set(block.i.p.write, 1)
    ctx.set(block.i.valid, 1)


def test_steps_of_sessions_take_turns():
    """A session whose accesses advance its step in every cycle keeps no other's step waiting, nor
    an ADVANCE."""
    config = UNIT.with_(name="three", sessions=3)
    block = Registers(config=config, event_sources=1)
    registers, stepped = RegisterMap(config).by_name, []

    async def bench(ctx):
        ctx.set(block.o.ready, 1)
        for s in range(3):
            ctx.set(block.sessions[s].open, 1)
        for s in (0, 2):
            offer(ctx, block, registers[f"s{s}_auto_step"], 1)
            while not ctx.get(block.i.ready):
                await ctx.tick()
            await ctx.tick()
        ctx.set(block.i.valid, 0)
        ctx.set(block.i_result.p.first, 1)
        ctx.set(block.i_result.p.op.kind, Op.READ)
        ctx.set(block.i_result.valid, 1)
        offer(ctx, block, registers["s1_command"], SessionCommand.ADVANCE)
        for cycle in range(400):
            ctx.set(block.i.valid, cycle >= 200 and 1 not in stepped)
            ctx.set(block.i_result.p.op.session, 2 if cycle % 50 == 10 else 0)
            ctx.set(block.o_control.ready, cycle % 8 == 0)
            if ctx.get(block.o_control.valid) and cycle % 8 == 0:
                assert ctx.get(block.o_control.p.kind) == Op.STEP.value
                stepped.append(ctx.get(block.o_control.p.session))
            await ctx.tick()

    simulate(block, bench)
    assert stepped.count(1) == 1 and stepped.count(2) == 8 and stepped.count(0) > 30, stepped


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.sampled
def test_steps_that_fall_due_while_one_waits_are_not_lost(every):
    """Whether it is still to be offered, is offered, is being taken or has just been: with any
    distance between M0's turns, the step comes to what the accesses say."""
    config = UNIT.with_(name="three", sessions=3)
    block, registers = Registers(config=config, event_sources=1), RegisterMap(config).by_name
    stepped, accesses = [0, 0, 0], [0, 0, 0]

    async def bench(ctx):
        async def write(name, value):
            offer(ctx, block, registers[name], value)
            while not ctx.get(block.i.ready):
                await cycle(ready=True)
            await cycle(ready=True)
            ctx.set(block.i.valid, 0)

        async def cycle(ready, session=None):
            ctx.set(block.i_result.valid, session is not None)
            if session is not None:
                ctx.set(block.i_result.p.op.session, session)
                accesses[session] += 1
            ctx.set(block.o_control.ready, ready)
            if ready and ctx.get(block.o_control.valid):
                stepped[ctx.get(block.o_control.p.session)] += ctx.get(block.o_control.p.delta)
            await ctx.tick()

        async def rest():
            for _ in range(40):
                await cycle(ready=True)
            assert stepped == [n // every for n in accesses]

        ctx.set(block.o.ready, 1)
        ctx.set(block.i_result.p.first, 1)
        ctx.set(block.i_result.p.op.kind, Op.READ)
        for s in range(3):
            ctx.set(block.sessions[s].open, 1)
            await write(f"s{s}_auto_step", every)
        for pause in (1, 2, 3, 4, 5, 8, 40):
            for n in range(6 * pause * every):
                await cycle(n % pause == pause - 1, (0, 0, 1, 2)[n % 4])
            await rest()

    simulate(block, bench)


def test_no_memory_is_asked_for_a_queue_that_is_not_there():
    """Whatever line is read, where sessions and queues are no powers of two: `resident` goes to a
    memory that has a row a queue."""
    config = UNIT.with_(name="odd", sessions=3, queues=5)
    block = Registers(config=config, event_sources=1)
    last = RegisterMap(config).registers[-1].offset >> 6
    asked = set()

    async def bench(ctx):
        ctx.set(block.o.ready, 1)
        ctx.set(block.i.valid, 1)
        for line in (*range(last + 1), 1023):
            ctx.set(block.i.p.offset, line)
            for _ in range(12):
                asked.add(ctx.get(block.resident.squeue))
                await ctx.tick()

    simulator = Simulator(block)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert {0, 5, 10} <= asked and max(asked) < config.squeues


def run(test, config=UNIT, block=Registers, **params):
    return run_cocotb(
        made(block, config=config, event_sources=2),
        bench="kelp_verif.control.registers_bench",
        test=test,
        params={"config": asdict(config), **params},
        model=Model(opt=QUICK_OPT),  # a hundred thousand cycles a run
        timeout_s=200,
    ).records


def rare(seen, *wanted, least=2):
    return {what: seen.get(what, 0) for what in wanted if seen.get(what, 0) < least}


def test_every_line_is_what_the_map_says_to_whom_it_says_so():
    seen = run("random_accesses", accesses=980)["accesses"]
    assert (
        rare(
            seen,
            "read",
            "write refused",
            "read refused",
            "write of some bytes",
            "read by an owner",
            "unknown line",
            "record",
            "clear",
            "take of some",
            "take of an overflow",
            "log full",
            "irq",
            "reset of an access",
            "fatal",
            "resident lines waited for",
            "resident lines not counted",
        )
        == {}
    )


def test_session_commands_are_carried_out_or_refused():
    seen = run("session_commands", commands=320)["commands"]
    commands = ("OPEN", "CLOSE", "ADVANCE", "APPLY_QUEUE", "APPLY_ALL", "PEEK")
    assert (
        rare(
            seen,
            *(f"{name} {how}" for name in commands for how in ("done", "unheard")),
            "OPEN refused",
            "APPLY_ALL refused",
            "unknown refused",
            "PEEK of another session's queue",
            "wiped",
            "read of a queue counter",
            least=1,
        )
        == {}
    )


@pytest.mark.slow  # a model of its own
def test_without_codecs_every_format_but_raw16_is_refused():
    seen = run("session_commands", UNIT.with_(name="unit_raw", codecs=False), commands=160)[
        "commands"
    ]
    assert rare(seen, "OPEN done", "OPEN refused for its formats") == {}


def test_steps_and_telemetry():
    records = run(["steps_by_accesses", "telemetry_is_read_back"], results=600, every=(1, 9))
    assert (
        records["steps"] >= 5
        and rare(records["telemetry"], "rounds", "record", "read of a queue counter") == {}
    )


def test_counters_are_read_while_they_count():
    seen = run("counters_are_read_meanwhile", reads=800)["meanwhile"]
    counters, latencies, queue = seen["counters"], seen["latencies"], seen["queue"]
    assert counters == list(range(Registers.LATENCY, Registers.COUNTERS_LATENCY + 1))
    assert latencies == [Registers.LATENCY]
    # What had begun when the block became quiet still counts.
    most = Registers.LATENCY + 2 + QueueCounters.PATIENCE + 2 + ON_ITS_WAY
    assert queue[0] == Registers.LATENCY + 2 and most - 10 < queue[-1] <= most, queue[-1]


#: Planted bugs of the read-out: the piece and what it becomes; what the benches say.
BUGS = {
    "a line of counters begins a row late": (
        "totals.pointer == line << 3",
        "totals.pointer == (line << 3) + 1",
        "(count_|no answer)",
    ),
    "a line of counters waits for no pointer": (
        "come.eq((totals.pointer == line << 3) | (settled & ~file.allowed))",
        "come.eq(settled)",
        "count_",
    ),
    "counters of a queue are not waited for": (
        "come.eq(settled & (queues.read_grant | ~file.allowed))",
        "come.eq(settled)",
        "_queue_",
    ),
    "no cycle is asked for": (
        "queues.read.eq(settled & file.allowed)",
        "queues.read.eq(0)",
        "no answer",
    ),
    "the line before has another queue": (
        "settled.eq(waited >= 2)",
        "settled.eq(1)",
        "(count_|_queue_)",
    ),
    "resident lines are not waited for": ("(counted | waited.all())", "1", "_resident"),
    "latencies are a bin late": ("read_row.eq(index[:6])", "read_row.eq(word_next)", "_latency_"),
    "a refusal names another register of the line": (
        "events.i[self.event_sources + 1].p.argument.eq(file.index)",
        "events.i[self.event_sources + 1].p.argument.eq(file.index ^ 1)",
        "event_",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_benches_catch_a_planted_bug(bug):
    old, new, says = BUGS[bug]
    block = mutant(Registers, old, new)
    with pytest.raises(AssertionError, match=rf"failed with seed(?s:.)*AssertionError: .*{says}"):
        run("counters_are_read_meanwhile", block=block, reads=200)
        run("random_accesses", block=block, accesses=600)


def test_a_step_may_take_many_accesses():
    assert run("steps_by_accesses", results=2000, every=(128, 180))["steps"]


def test_bad_parameters_are_refused():
    with pytest.raises(TypeError, match="config must be a kelp_spec.Config, not 3"):
        Registers(config=3, event_sources=1)
    with pytest.raises(
        ValueError,
        match=r"external = \['count_sheep'\] is refused; legal: names of registers in the map",
    ):
        RegisterFile(config=named("unit"), external=["identity", "count_sheep"])
