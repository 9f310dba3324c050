# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Faults of memories: what is counted, what is an event, and that the fatal latch stays."""

from amaranth.sim import Simulator

from kelp_hw.control.faults import FaultMonitor
from kelp_spec.config import named
from kelp_spec.metadata import Event, Protected

IDLE = {"fatal": 0, "corrected": 0, "uncorrected": 0, "event": None}


def run(cycles):
    """What the outputs are in each cycle; `cycles` is a list of {block: kind}, one a cycle."""
    dut, seen = FaultMonitor(config=named("unit")), []

    async def bench(ctx):
        for faults in cycles:
            for block in Protected:
                kind = {"corrected": 1, "poisoned": 2, "fatal": 4}.get(faults.get(block), 0)
                ctx.set(dut.faults[block].as_value(), kind)
            event = dut.o_event
            seen.append(
                {
                    **{name: ctx.get(getattr(dut, name)) for name in IDLE if name != "event"},
                    "event": (Event(ctx.get(event.p.code)), Protected(ctx.get(event.p.argument)))
                    if ctx.get(event.valid)
                    else None,
                }
            )
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return seen


def test_a_fault_of_each_block_is_counted_and_logged():
    for block in Protected:
        quiet, later = [{}] * (FaultMonitor.LATENCY + 1), [{}] * 3
        first, *rest = run([{block: "corrected"}, *quiet, *later])
        assert first == IDLE and rest == [IDLE | {"corrected": 1}, *[IDLE] * 3]
        first, *rest = run([{block: "poisoned"}, *quiet, *later])
        event = (Event.WORD_LOST, block)
        assert first == IDLE and rest == [IDLE | {"uncorrected": 1, "event": event}, *[IDLE] * 3]
        first, *rest = run([{block: "fatal"}, *quiet, *later])
        last = IDLE | {"fatal": 1}
        assert first == last, "too late for an answer of the same cycle"
        assert rest == [last | {"uncorrected": 1, "event": (Event.FATAL, block)}, *[last] * 3]


def test_after_the_first_fatal_fault_others_are_only_counted():
    first, second = {Protected.TRACKER: "fatal"}, {Protected.EVICTION: "fatal"}
    seen = run([first, second, {Protected.MISS_BUFFER: "poisoned"}, {}])
    assert [each["event"] for each in seen] == [
        None,
        (Event.FATAL, Protected.TRACKER),
        None,
        (Event.WORD_LOST, Protected.MISS_BUFFER),
    ]
    assert [each["uncorrected"] for each in seen] == [0, 1, 1, 1]


def test_of_several_fatal_faults_the_first_block_is_named():
    both = {Protected.DATA_PATH: "fatal", Protected.MISS_BUFFER: "fatal"}
    assert run([both, {}])[1]["event"] == (Event.FATAL, Protected.MISS_BUFFER)


def test_words_of_several_blocks_are_told_one_after_the_other():
    """All of them in one cycle, one more while they wait, and one that waits already."""
    table, path, scores = Protected.FRAME_TABLE, Protected.DATA_PATH, Protected.SCORES
    cycles = [dict.fromkeys((table, path, scores), "poisoned"), {scores: "poisoned"}]
    seen = run([*cycles, {table: "poisoned"}, *[{}] * 5])[1:]
    blocks = [table, path, table, scores]
    assert [each["event"] for each in seen[:4]] == [(Event.WORD_LOST, b) for b in blocks]
    assert [each["uncorrected"] for each in seen] == [1, 1, 1, 1, 0, 0, 0]
    assert all(each == IDLE for each in seen[4:])


def test_a_word_beside_the_fatal_fault_is_told_after_it():
    mixed = {Protected.FRAME_TABLE: "poisoned", Protected.DATA_PATH: "fatal"}
    seen = run([mixed, {}, {}, {}])[1:]
    fatal, poisoned = (
        (Event.FATAL, Protected.DATA_PATH),
        (Event.WORD_LOST, Protected.FRAME_TABLE),
    )
    assert [each["event"] for each in seen] == [fatal, poisoned, None]
    assert [each["uncorrected"] for each in seen] == [1, 1, 0]
