# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY` and `INTERVAL` of the control blocks."""

import sys

import pytest
from timing import changes

from kelp_hw.control.counters import QueueCounters, TotalCounters
from kelp_hw.control.events import EventLog
from kelp_hw.control.phase import PhaseDetector
from kelp_hw.control.queue_config import QueueConfig
from kelp_hw.control.register_file import RegisterFile
from kelp_hw.control.registers import Registers
from kelp_hw.control.session_control import SessionControl, _StoredLines
from kelp_hw.control.telemetry import Telemetry
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.metadata import Event, Op, Outcome
from kelp_spec.registers import COUNTERS, RegisterMap, SessionCommand

UNIT = named("unit")
OFFSET = {name: register.offset for name, register in RegisterMap(UNIT).by_name.items()}

BUMP = {"i.valid": 1, "i.p.bump": 1}
EVENT = {"i.0.valid": 1}
OF_CODE = {"i.0.p.code": int(Event.STARVED), "irq_enable": (1 << 32) - 1}
ACCESS = {
    "i_result.valid": 1,
    "i_result.p.first": 1,
    "i_result.p.op.kind": int(Op.READ),
    "i_result.p.outcome": int(Outcome.HIT),
}
COMMAND = {
    "command_ld_id": 0,
    "shape.0.layers": 1,
    "shape.0.kv_heads": UNIT.queues,
    "shape.0.used_lines": 1,
    "shape.0.used_pages": 1,
    "config_ready": 1,
    "o_op.ready": 1,
}


def command(code):
    return {"command.valid": 1, "command.p.command": int(code)}


def config(budget):
    return {"write.valid": 1, "write.p.squeue": budget, "write.p.queue_config.window": budget}


def access(name, write=0):
    return {"i.valid": 1, "i.p.offset": OFFSET[name] >> 6, "i.p.write": write, "o.ready": 1}


#: Class, arguments, attribute, output, stimuli, options of `changes`.
CASES = [
    (
        QueueCounters,
        {"config": UNIT},
        "LATENCY",
        "read_data.0",
        [{"read_squeue": squeue} for squeue in (1, 0, 1)],
        {"before": [BUMP | {"i.p.squeue": 1}]},
    ),
    (QueueCounters, {"config": UNIT}, "COUNT_LATENCY", "read_data.0", [BUMP], {}),
    (
        EventLog,
        {"config": UNIT, "sources": 1},
        "LATENCY",
        "count",
        [EVENT, EVENT, EVENT],
        {"prepare": OF_CODE},
    ),
    (
        EventLog,
        {"config": UNIT, "sources": 1},
        "IRQ_LATENCY",
        "irq",
        [EVENT],
        {"prepare": OF_CODE},
    ),
    (
        PhaseDetector,
        {"config": UNIT, "window": 16},
        "LATENCY",
        "decode",
        [{"i_op.valid": 1}],
        {"prepare": {"open": 1}, "before": [{"i_op.valid": 1}] * 15},
    ),
    (
        QueueConfig,
        {"config": UNIT, "fields": ("window",)},
        "LATENCY",
        "o",
        [{"read_squeue": squeue} for squeue in (1, 2, 3)],
        {"prepare": {"read_en": 1}, "before": [config(1), config(2), config(3)]},
    ),
    (
        RegisterFile,
        {"config": UNIT},
        "LATENCY",
        "read_data",
        [{"index": OFFSET[name] >> 3} for name in ("identity", "digest", "geometry")],
        {"prepare": {"index": 0x1FFF}},
    ),
    (
        RegisterFile,
        {"config": UNIT},
        "KNOWN_LATENCY",
        "known",
        [{"index": index} for index in (OFFSET["identity"] >> 3, 0x1FFF, OFFSET["digest"] >> 3)],
        {"prepare": {"index": 0x1FFF}},
    ),
    (
        SessionControl,
        {"config": UNIT},
        "LATENCY",
        "o_op.valid",
        [command(SessionCommand.ADVANCE)],
        {"prepare": COMMAND | {"open": 1}},
    ),
    (
        SessionControl,
        {"config": UNIT},
        "WALK_LATENCY",
        "config_write.valid",
        [command(SessionCommand.OPEN)],
        {"prepare": COMMAND},
    ),
    (
        _StoredLines,
        {"config": UNIT},
        "LATENCY",
        "lines",
        [{"format_k": int(code)} for code in (Format.INT4, Format.RAW16, Format.INT4)],
        {"prepare": {"used_lines": UNIT.half_lines, "k_only": 1, "format_k": int(Format.RAW16)}},
    ),
    (
        Telemetry,
        {"config": UNIT},
        "LATENCY",
        "o_event.valid",
        [ACCESS | {"i_result.p.corrected": 1}],
        {},
    ),
    (Telemetry, {"config": UNIT}, "LATENCY", "pulses", [ACCESS, {}, ACCESS], {}),
    (
        Telemetry,
        {"config": UNIT},
        "REPORT_LATENCY",
        "o_useful.valid",
        [{"i_usage.valid": 1, "i_usage.p.useful": 1}],
        {},
    ),
]


@pytest.fixture(autouse=True)
def deep_expressions():
    """The simulator descends into `RegisterFile`'s OR of all registers, one call per register."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{cls.__name__}-{attribute}" for cls, _, attribute, *_ in CASES]
)
def test_latency_and_interval(case):
    cls, arguments, attribute, output, stimuli, options = case
    expected = [getattr(cls, attribute) + k * cls.INTERVAL for k in range(len(stimuli))]
    assert changes(cls(**arguments), output, stimuli, **options) == expected


def test_totals_follow_a_pulse_as_the_pointer_stands():
    bits = (1 << len(COUNTERS)) - 1
    seen = sorted(
        changes(TotalCounters(), "read_data", [{"pulses": bits}], settle=2 + phase, within=80)[0]
        for phase in range(TotalCounters.TURN)
    )
    first = TotalCounters.LATENCY
    assert seen == list(range(first, first + TotalCounters.TURN))


def test_totals_count_each_pulse_at_their_interval():
    cycles = 8  # fewer than until the pointer passes
    counted = cycles // TotalCounters.INTERVAL
    assert changes(
        TotalCounters(),
        lambda dut: dut.read_data == counted,
        [{"pulses": 1}] * cycles,
        within=TotalCounters.TURN,
    )


def test_phase_counts_a_request_of_each_lane_at_its_interval():
    block = PhaseDetector(config=UNIT, window=16)
    requests = [{"i_op.valid": 1, "i_hot.valid": 1}] * 8
    seen = changes(block, "decode", requests, prepare={"open": 1})
    assert seen == [7 * block.INTERVAL + block.LATENCY]


def test_commands_are_as_far_apart_as_their_interval():
    block = SessionControl(config=UNIT)
    given = [command(SessionCommand.ADVANCE)] * 80
    seen = changes(block, "o_op.valid", given, prepare=COMMAND | {"open": 1})
    assert seen[0:6:2] == [block.LATENCY + k * block.INTERVAL for k in range(3)]


@pytest.mark.parametrize(
    ("attribute", "name", "write"),
    [
        ("LATENCY", "identity", 0),
        ("EXTERNAL_LATENCY", "count_accesses", 0),
        ("WRITE_LATENCY", "low_water", 1),
    ],
)
def test_register_access(attribute, name, write):
    block = Registers(config=UNIT, event_sources=1)
    given = [access(name, write)] * (2 * getattr(block, attribute) + 4)
    seen = changes(block, "o.valid", given)
    assert seen[0] == getattr(block, attribute)
    if attribute == "LATENCY":
        assert seen[2] - seen[0] == block.INTERVAL
