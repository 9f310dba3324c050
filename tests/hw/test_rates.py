# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint's rates and its latency, all hits, counted in cycles (spec §10): in `make slow` on a
memory of 64 cycles. `make bench` has every format, larger pages and the miss path. And what a
register access costs, itself and those that come behind it."""

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_hw.control.counters import QueueCounters, TotalCounters
from kelp_hw.control.registers import Registers
from kelp_rtl.device import Descriptor, Driver, MemoryTiming
from kelp_rtl.program import PARTIAL, READ, WRITE, Program
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.hints import HintKind, HintLine
from kelp_spec.registers import SessionCommand
from kelp_verif.measure.endpoint import MEMORY_LATENCY, endpoint_rows

# int4 has the longest way through the codec; int8 and int4 read a scale line beside each data line.
FORMATS = (Format.RAW16, Format.INT8, Format.INT4)


def met(row):
    """A rate is meant of traffic that goes on: a run of `lines` may take as long besides as its
    last line is allowed to, from its request to its answer."""
    if row.unit == "cycles":
        return row.met
    lines, rate = row.value * row.cycles, float(row.goal.removeprefix("≥ "))
    return row.cycles <= lines / rate + MEMORY_LATENCY + 20


@pytest.mark.slow  # a model of its own
@pytest.mark.timeout(1800)
def test_all_hits():
    """At least 0.98 lines a cycle read, written and mixed, at most 20 cycles beyond the memory."""
    rows = [
        row
        for row in endpoint_rows("trace", FORMATS)
        if row.unit in ("lines/cycle", "requests/cycle", "cycles")
    ]
    print("\n".join(f"{row.name} {row.value:.4f} {row.goal}" for row in rows))
    assert len(rows) == 4 * len(FORMATS) + 2 and all(row.goal for row in rows)
    assert [row for row in rows if not met(row)] == []


@pytest.mark.timeout(1800)  # it may build the model
def test_hits_that_few_slots_can_bear():
    """Lines read as they are stored, from a memory at two cycles: one in each cycle, in any order,
    and the latency beyond the memory's. Sixteen slots bear no more: a write's is taken for 27
    cycles."""
    rows = {row.name: row for row in endpoint_rows("unit_select", FORMATS[:1], latency=2)}
    names = (
        "endpoint.read_hit.lines_per_cycle",
        "endpoint.random_line_hit.raw16.lines_per_cycle",
        "endpoint.random_page.requests_per_cycle",
        "endpoint.hit_latency_cycles",
        "endpoint.dram_lines_per_host_line.raw16",
    )
    assert [rows[name] for name in names if not rows[name].met] == []
    assert rows["endpoint.write_hit.lines_per_cycle"].value >= 0.98 * 16 / 27


# - register accesses ------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=[UNIT, named("unit_select")], ids=lambda c: c.name)
def device(request):
    """A device, and the address of a line that is hit."""
    driver = Driver(request.param, memory=MemoryTiming(latency=2, write_latency=2))
    driver.open_session(0, Descriptor(layers=1, kv_heads=driver.config.queues))
    line = driver.address(0, 0, 0, 0, 0)
    driver.run(Program.writes([line], np.zeros((1, 64), np.uint8)))
    driver.settle()
    yield driver, line
    driver.close()


def accepted(device, opcodes, addresses, byte_enable=0):
    """Latencies, and cycles of acceptance from the first one on."""
    driver, _ = device
    result = driver.run(Program(opcode=opcodes, address=addresses, byte_enable=byte_enable))
    driver.settle()
    return result.latency, result.accept_cycle - result.accept_cycle.min()


@pytest.mark.timeout(1800)  # it may build the model
@pytest.mark.parametrize(
    ("access", "opcode", "name", "least", "most"),
    [
        ("a read of registers", READ, "identity", Registers.LATENCY, 0),
        ("a read of event records", READ, "event_0", Registers.LATENCY, 0),
        ("a read of latencies", READ, "miss_latency_0", Registers.LATENCY, 0),
        ("a read of counters", READ, "count_accesses", Registers.LATENCY, TotalCounters.TURN - 1),
        ("a read of a queue's counters", READ, "s0_queue_hits", Registers.LATENCY + 2, 0),
        # QueueState counts a queue in nine cycles while nothing else comes or goes.
        ("a read of resident lines", READ, "s0_resident", Registers.LATENCY + 2, 12),
        ("a write of a register", PARTIAL, "event_clear", Registers.WRITE_LATENCY, 0),
    ],
)
def test_register_accesses_go_one_by_one(device, access, opcode, name, least, most):
    """Hits behind the first access wait for nothing. A second one stands at the head of its channel
    until the first is answered, and what is behind it too: where a `select` has taken a read before
    it, on RwD as well."""
    driver, line = device
    offset = driver.registers[name].offset
    register = driver.addresses.register_base + offset // 64 * 64
    same, other = (READ, WRITE) if opcode == READ else (WRITE, READ)
    enable = 0xFF << offset % 64
    least, took = least + 3, set()
    most += least + driver.config.select

    def answered(others, count):
        """The first access's latency, and cycles of acceptance."""
        (alone, *_), at = accepted(
            device, [opcode] * count + [others] * 8, [register] * count + [line] * 8, enable
        )
        assert least <= alone <= most
        took.add(int(alone))
        return alone, at

    _, at = answered(same, 1)
    assert at.tolist() == list(range(9))
    alone, at = answered(same, 2)
    assert alone <= at[2] <= alone + 1 and (np.diff(at[2:]) == 1).all()
    alone, at = answered(other, 2)
    stops = driver.config.select and other == WRITE
    assert at.max() >= alone if stops else np.sort(at)[:8].max() < 12
    took = " or ".join(str(cycles) for cycles in sorted(took))
    print(f"{driver.config.name}: {access} takes {took} cycles, and so long wait those behind it")


@pytest.mark.timeout(1800)
def test_a_hint_waits_for_the_registers(device):
    """And what is behind it on its channel."""
    driver, line = device
    counters = driver.addresses.register_base + driver.registers["count_accesses"].offset
    latency, at = accepted(
        device,
        [READ] + [WRITE] * 8,
        [counters] + [line] * 3 + [driver.addresses.hint_base] + [line] * 4,
    )
    assert at[:4].max() <= 4 and (at[4:] >= latency[0]).all() and at[8] < latency[0] + 8


@pytest.mark.slow  # a model of its own
@pytest.mark.timeout(1800)
def test_first_accesses_in_every_cycle_hold_up_no_open():
    """Each counts in its queue's row. An OPEN wipes the rows of its own queues, each in a cycle in
    which none counts: it gets some together, for which requests wait as long as the pipeline takes
    to empty. Without them it would take until the requests end."""
    driver = Driver(named("trace"), memory=MemoryTiming(latency=16, write_latency=16))
    c = driver.config
    shape = Descriptor(layers=1, kv_heads=c.queues)
    for session in (1, 0):
        driver.open_session(session, shape)
    driver.close_session(1)
    pages = np.array(
        [driver.address(0, q, p, 0, 0) for p in range(c.pages // 2) for q in range(c.queues)],
        np.uint64,
    )
    driver.run(Program.writes(pages, np.zeros((len(pages), 64), np.uint8)), settle=True)
    driver.push_hints([HintLine(kind=HintKind.MASS, session=0, advance=True)])
    driver.settle()
    at, offset = 50, driver.registers["s1_command"].offset
    command = np.zeros((1, 64), np.uint8)
    command[0, offset % 64] = SessionCommand.OPEN
    opcode = np.full(len(pages) + 1, READ)
    opcode[at] = PARTIAL
    result = driver.run(
        Program(
            opcode=opcode,
            address=np.insert(pages, at, driver.addresses.register_base + offset // 64 * 64),
            data=command,
            byte_enable=0xFF << offset % 64,
        )
    )
    driver.settle()
    took, lost = result.latency[at], np.ptp(result.accept_cycle) - len(pages)
    print(f"OPEN of {c.queues} queues takes {took} cycles; {len(pages)} requests lost {lost}")
    assert driver.counters()["accesses"] == 2 * len(pages)  # all of them first accesses
    assert driver.read_fields("s1_state")["open"]
    # Eight rows, at least, for each wait.
    waits = c.queues // 8
    assert took <= Registers.WRITE_LATENCY + waits * (QueueCounters.PATIENCE + 40) + 2 * c.queues
    assert 0 < lost <= 20 * waits
    driver.close()
