# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MemoryTest on a memory with one cell that sticks, bridged data pins or a deaf address line: each
is found, and a sound memory passes."""

from itertools import pairwise

import pytest
from streams import Ends, pump

from kelp_fpga.memory.memory_test import MemoryTest

FIRST, COUNT = 5, 12


def run(broken=lambda line, data: (line, data), take=1.0, count=COUNT):
    """Result, first wrong line, accesses, cycles; `broken` changes where what is written lands."""
    dut, lines, out, begun = MemoryTest(address_bits=25), {}, {}, []

    def memory(path, item):
        accesses.append((path, item))
        if path == "axi.ar":
            line, _ = broken(item.addr >> 6, 0)
            yield "axi.r", {"data": broken(line, lines[line])[1]}
        addresses = [item.addr >> 6 for path, item in accesses if path == "axi.aw"]
        data = [item.data for path, item in accesses if path == "axi.w"]
        if path != "axi.ar" and len(addresses) == len(data):
            line, word = broken(addresses[-1], data[-1])
            lines[line] = word
            yield "axi.b", {}

    def watch(ctx):
        ctx.set(dut.start, not begun)
        begun.append(1)
        if ctx.get(dut.done) and not out:
            out.update(result=ctx.get(dut.result), detail=ctx.get(dut.detail), cycles=len(begun))

    accesses = []
    takes = ("axi.ar", "axi.aw", "axi.w")
    ends = Ends({"axi.r": [], "axi.b": []}, takes, take=take, answer=memory, watch=watch)
    ends.held = {"first": FIRST, "count": count}
    pump(dut, ends, cycles=5000)
    return out["result"], out["detail"], accesses, out["cycles"]


@pytest.mark.parametrize("take", [1.0, 0.3])
def test_a_sound_memory_passes(take):
    result, _, accesses, cycles = run(take=take)
    reads = [item.addr >> 6 for path, item in accesses if path == "axi.ar"]
    up, down = list(range(FIRST, FIRST + COUNT)), list(range(FIRST + COUNT - 1, FIRST - 1, -1))
    assert result == 0 and reads == up + up + down + down + up
    assert take < 1 or cycles < 12 * 10 * COUNT


def stuck(line, data):
    return line, data | 1 << 100 if line == FIRST + 7 else data


def bridged(line, data):
    return line, data & ~3 | 3 * (data & 1 & data >> 1)


def deaf(line, data):
    return line & ~2, data


@pytest.mark.parametrize(("broken", "wrong"), [(stuck, FIRST + 7), (bridged, None), (deaf, None)])
def test_a_broken_memory_is_found(broken, wrong):
    result, detail, _, _ = run(broken)
    assert result == 1 and wrong in (None, detail)


def test_no_lines_are_a_result_of_their_own():
    result, _, accesses, _ = run(count=0)
    assert result == 2 and not accesses


def test_neighbouring_lines_and_columns_differ():
    """Else a deaf address line or a bridge would hide."""
    _, _, accesses, _ = run()
    words = [item.data for path, item in accesses if path == "axi.w"][:COUNT]
    columns = [[word >> 16 * k & 0xFFFF for k in range(32)] for word in words]
    assert all(len(set(each)) == 32 for each in columns)
    assert all((a ^ b).bit_count() >= 32 for a, b in pairwise(words))
