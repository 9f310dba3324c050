# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SdramCore without its chip, which tests/fpga/memory/test_sdram.py has: commands as the datasheet
wants them, lines in order, its pace."""

from dataclasses import replace

import pytest
from amaranth.hdl import Cat
from streams import Ends, pump

from kelp_fpga.memory.sdram_core import LINE_BEATS, SdramCore
from kelp_fpga.memory.sdram_timing import COMMON

#: power-up is thousands of cycles of nothing
QUICK = replace(COMMON, power_up=100)
ACTIVE, READ, WRITE, PRECHARGE, REFRESH, MODE = 3, 5, 4, 2, 1, 0


def line(n, write=0):
    return {"write": write, "id": n % 16, "line": {"bank": n % 4, "group": 1, "row": 7 + n // 4}}


def run(hz, lines, cycles=1200, **rates):
    """The block, its requests, (cycle, command, bank, address) at the pins, and the cycles with a
    column that was read, with its id."""
    dut, commands, columns, now = SdramCore(hz=hz, id_bits=4, timing=QUICK), [], [], [0]

    def watch(ctx):
        pins = dut.pins
        command = ctx.get(Cat(pins.we_n, pins.cas_n, pins.ras_n))
        if not ctx.get(pins.cs_n) and command != 7:
            commands.append((now[0], command, ctx.get(pins.ba), ctx.get(pins.a)))
        if ctx.get(dut.read.valid):
            column = ctx.get(dut.read.p)
            columns.append((now[0], column.id if column.last else None))
        now[0] += 1

    seen = pump(dut, Ends({"i": lines}, (), watch=watch, **rates), cycles=cycles)
    return dut, seen["i"], commands, columns


@pytest.mark.parametrize("hz", [50e6, 80e6, 125e6])
def test_latency_and_interval(hz):
    dut, taken, _, columns = run(hz, [line(n) for n in range(8)])
    assert columns[0][0] - taken[0].taken == dut.LATENCY
    ends = [cycle for cycle, last in columns if last is not None]
    assert len(columns) == 8 * LINE_BEATS == 8 * dut.INTERVAL
    assert [b - a for a, b in zip(ends, ends[1:], strict=False)] == 7 * [dut.INTERVAL]


@pytest.mark.parametrize("offer", [1.0, 0.02])
def test_commands_of_a_line(offer):
    """Each line opens its row once and moves four bursts, the last with auto-precharge; refreshes
    come between lines, when no row is open."""
    lines = [line(n, write=n in (1, 4, 5)) for n in range(8)]
    dut, taken, commands, columns = run(80e6, lines, cycles=4000, offer=offer)
    t = dut.cycles
    assert len(taken) == len(lines)
    assert [last for _, last in columns if last is not None] == [0, 2, 3, 6, 7]
    kinds = [command for _, command, _, _ in commands]
    assert kinds[:10] == [PRECHARGE, *8 * [REFRESH], MODE]
    assert commands[9][3] == 0b011 | t.cl << 4
    opened, rows, last_open = {}, [], None
    for cycle, command, bank, address in commands[10:]:
        if command == ACTIVE:
            assert bank not in opened and (last_open is None or cycle - last_open >= t.rrd)
            opened[bank], last_open = [cycle, 0], cycle
            rows.append((bank, address))
        elif command == REFRESH:
            assert not opened
        else:
            assert command in (READ, WRITE) and cycle - opened[bank][0] >= t.rcd
            opened[bank][1] += 1
            assert bool(address >> 10 & 1) == (opened[bank][1] == 4)
            if opened[bank][1] == 4:
                del opened[bank]
    assert rows == [(n % 4, 7 + n // 4) for n in range(8)]
    refreshes = [cycle for cycle, command, _, _ in commands[10:] if command == REFRESH]
    assert len(refreshes) >= (4000 - commands[9][0]) // t.refi


def test_refresh_is_not_starved():
    """While lines follow one another without a pause, two lines at most pass before a refresh that
    is due."""
    dut, _, commands, _ = run(80e6, [line(n) for n in range(80)], cycles=2600)
    refreshes = [cycle for cycle, command, _, _ in commands[10:] if command == REFRESH]
    assert commands[-1][0] - commands[9][0] > 3 * dut.cycles.refi
    for n, cycle in enumerate(refreshes, 1):
        due = refreshes[0] + (n - 1) * dut.cycles.refi
        assert abs(cycle - due) <= 3 * LINE_BEATS
    assert len(refreshes) >= 3
