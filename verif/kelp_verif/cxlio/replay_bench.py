# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The register accesses of a Linux boot (data/linux), one after another: each read gives what the
recording says, but for a list of differences that the caller allows."""

import cocotb

from ..harness.runner import bench_params, record
from .port_tb import OKAY, TB

SPACE = {"ecam": "configuration", "dev": "device", "epc": "component", "pmu": "pmu"}
_ECAM_BASE = 0x100000
_DOORBELL = ("dev", 0x1004)


def accesses(lines):
    for number, line in enumerate(lines, 1):
        space, kind, address, size, value = line.split()
        at = int(address, 16) - (_ECAM_BASE if space == "ecam" else 0)
        yield number, space, kind == "w", at, int(size), int(value, 16)


@cocotb.test(timeout_time=60, timeout_unit="ms")
async def replay(dut):
    tb, params = TB(dut), bench_params()
    tb.dut.health.value = 0
    await tb.start()
    dut.health.value = tb.health.pack(temperature=0x23)
    await tb.boot()
    # The machine's firmware, which placed the BARs before the recording begins.
    for bar, base in enumerate((0xF020_0000, 0xF021_0000, 0xF022_0000)):
        await tb.write("configuration", 0x10 + 8 * bar, 4, base)
    # What the stand-in did behind the registers: an injected poison is an event of its info log.
    tb.decide = lambda request: _event(tb, request)
    differs, reads, line = [], 0, 0
    lines = open(params["recording"]).read().splitlines()
    for line, space, write, at, size, value in accesses(lines):
        if line in params.get("traffic", ()):
            # 200 loads that were refused, 300 stores.
            await tb.happen([(2, 0), (0, 0), (3, 0)], 200)
            await tb.happen([(0, 0), (4, 0), (0, 0)], 300)
        if write:
            assert await tb.write(SPACE[space], at, size, value) == OKAY, f"line {line}"
            if (space, at) == _DOORBELL:
                await tb.quiet()
        else:
            got, code = await tb.read(SPACE[space], at, size)
            assert code == OKAY, f"line {line}: answer {code}"
            reads += 1
            if got != value:
                differs.append([line, got, value])
    record(lines=line, reads=reads, differs=differs, messages=len(tb.messages))


def _event(tb, request):
    if request["kind"] == 1:
        tb.events.append(
            {"log": 0, "kind": 0, "flags": 1, "dpa": request["line"] << 6, "word": 0x20001}
        )
    return 0
