# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Phase detector against its golden model: two lanes, several sessions, mixes of reads and writes
around the threshold."""

import random

import cocotb
from cocotb.triggers import NextTimeStep, ReadOnly, RisingEdge

from kelp_golden.phase import PhaseDetector
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_spec.config import named

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def two_lanes(dut):
    config, window = named(bench_params()["config"]), bench_params()["window"]
    rng = random.Random(cocotb.RANDOM_SEED)
    packing = Packing(Layouts(config).phase_request)
    golden = [PhaseDetector(window) for _ in range(config.sessions)]
    await start_clock(dut)
    dut.i_hot__valid.value = dut.i_op__valid.value = dut.i_hot__payload.value = (
        dut.i_op__payload.value
    ) = 0
    is_open = (1 << config.sessions) - 1
    dut.open.value = is_open
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    assert dut.decode.value == 0
    dut.rst.value = 0
    changes = before = later = 0
    for n in range(bench_params()["cycles"]):
        if n % window == 0:
            busy = [rng.choice([0.2, 0.9, 1.0]) if n else 1.0 for _ in range(2)]
            # Around 1 write in 11 both answers come up; a session alone in a lane, and one that
            # shares both.
            writes = [
                rng.choice([0.0, 1 / 11.5, 1 / 10.5, 0.5]) if n or s else 0.0
                for s in range(config.sessions)
            ]
        if rng.random() < 1 / (8 * window):
            is_open ^= 1 << rng.randrange(config.sessions)
            dut.open.value = is_open
        # Often both lanes end a session's window together, and each may write.
        ending = [s for s, g in enumerate(golden) if g.reads + g.writes >= window - 2]
        together = ending and rng.random() < 0.9
        for name, chance in (("i_hot", busy[0]), ("i_op", busy[1])):
            valid = rng.random() < chance
            session = rng.randrange(config.sessions)
            write = rng.random() < writes[session]
            if together:
                valid, session, write = True, ending[0], rng.random() < 0.5
            getattr(dut, f"{name}__valid").value = int(valid)
            getattr(dut, f"{name}__payload").value = packing.pack(session=session, write=write)
            if valid:
                golden[session].request(write)
        for s, g in enumerate(golden):
            if not is_open >> s & 1:
                g.opened()
        await RisingEdge(dut.clk)
        await ReadOnly()
        # a request is counted in the cycle after its own
        want, later = later, sum(g.decode << s for s, g in enumerate(golden))
        got = int(dut.decode.value)
        assert got == want, f"cycle {n}: decode {got:b}, expected {want:b}"
        changes += got != before
        before = got
        await NextTimeStep()
    record(changes=changes)
