# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The register window: decoder, session commands, telemetry read-out."""

from dataclasses import asdict

import pytest
from amaranth.sim import Simulator
from timing import changes

from kelp_hw.control.register_file import RegisterFile
from kelp_hw.control.registers import Registers
from kelp_rtl.verilator import QUICK_OPT
from kelp_spec.config import named
from kelp_spec.registers import RegisterMap
from kelp_verif.harness.runner import Model, made, run_cocotb

UNIT = named("unit")


def access(name, write=0):
    offset = RegisterMap(UNIT).by_name[name].offset
    return {"i.valid": 1, "i.p.offset": offset >> 6, "i.p.write": write, "o.ready": 1}


@pytest.mark.parametrize(
    ("attribute", "name", "write"),
    [
        ("LATENCY", "identity", 0),
        ("EXTERNAL_LATENCY", "count_accesses", 0),
        ("WRITE_LATENCY", "low_water", 1),
    ],
)
def test_latency_and_interval(attribute, name, write):
    block = Registers(config=UNIT, event_sources=1)
    given = [access(name, write)] * (2 * getattr(block, attribute) + 4)
    seen = changes(block, "o.valid", given)
    assert seen[0] == getattr(block, attribute)
    if attribute == "LATENCY":
        assert seen[2] - seen[0] == block.INTERVAL


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


def run(test, config=UNIT, **params):
    return run_cocotb(
        made(Registers, config=config, event_sources=2),
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
