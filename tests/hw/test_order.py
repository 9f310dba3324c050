# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What has happened when a host has an answer (docs/interface.md, "Order"): a read of registers
that is sent with the answer in hand finds it counted and told of."""

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_rtl.device import (
    Descriptor,
    Driver,
    Failure,
    FlashTiming,
    MemoryTiming,
    Pressure,
    QueueParameters,
)
from kelp_rtl.program import READ, WRITE, Program, Response
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.metadata import ColdOp, PageState
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model

WHOLE = Descriptor(layers=1, kv_heads=UNIT.queues)
PRESSURES = (0.0, 0.3, 0.7)


class Host:
    """Of session 0, whose queue 0 has four pages in memory."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(reseeded(seed))
        self.d = Driver(UNIT, seed=seed)
        self.d.open_session(0, WHOLE, QueueParameters())
        pages = range(4)
        self.lines = [self.d.address(0, 0, p, 0, n) for p in pages for n in range(UNIT.half_lines)]
        self.write(self.lines)

    def write(self, addresses):
        data = np.zeros((len(addresses), 64), np.uint8)
        self.d.run(Program.writes(np.array(addresses, np.uint64), data), settle=True)

    def begin(self, pressure, **memory):
        """Another pace, and an empty log."""
        latency, written = self.rng.integers(1, 60, 2).tolist()
        memory = MemoryTiming(latency=latency, write_latency=written, **memory)
        flash = FlashTiming(latency=int(self.rng.integers(1, 300)), write_latency=50)
        self.d.settle()
        self.d.write64("event_clear", 1)
        self.d.configure(pressure=Pressure.everywhere(pressure), memory=memory, flash=flash)

    def then(self, opcode, addresses, register, *, data=None, times=1):
        """Requests, and when all are answered a read of a register, `times` times, each when the
        one before is answered: the result, and the register's values."""
        word = self.d.registers[register].offset
        window = self.d.addresses.register_base + word // 64 * 64
        count = len(addresses)
        result = self.d.run(
            Program(
                opcode=[opcode] * count + [READ] * times,
                address=np.array([*addresses, *[window] * times], np.uint64),
                group=[0] * count + list(range(1, times + 1)),
                data=data,
            )
        )
        rows = result.data[count:].view("<u8")
        return result, rows[:, word % 64 // 8].tolist()


@pytest.fixture(scope="module")
def host():
    made = Host(1)
    yield made
    made.d.close()


@pytest.mark.parametrize("pressure", PRESSURES)
def test_what_was_answered_is_counted(host, pressure):
    for _ in range(20):
        host.begin(pressure)
        asked = host.rng.permutation(host.lines)[: host.rng.integers(1, 16)]
        before = host.d.counters()["reads"]
        _, [reads] = host.then(READ, asked, "count_reads")
        assert reads == before + len(asked)


@pytest.mark.parametrize("pressure", PRESSURES)
def test_what_was_refused_is_told(host, pressure):
    for _ in range(20):
        host.begin(pressure)
        asked = [3 << UNIT.aperture_bits] * int(host.rng.integers(1, 12))
        result, [told] = host.then(READ, asked, "event_count")
        assert told == len(asked) and (result.response[:-1] == Response.NXM).all()


@pytest.mark.parametrize("pressure", PRESSURES)
def test_why_a_page_is_lost_is_told(host, pressure):
    """More pages than frames, so that one of them is cold; its fetch fails, retries included."""
    host.begin(pressure)
    host.write([host.d.address(0, q, p, 0, 0) for q in (1, 2, 3) for p in range(4)])
    for _ in range(10):
        host.begin(pressure)
        cold = next(
            address
            for q, p in host.rng.permutation([(q, p) for q in range(4) for p in range(4)]).tolist()
            if host.d.page_word(0, q, p)["state"] == PageState.COLD
            for address in [host.d.address(0, q, p, 0, 0)]
        )
        first = host.d.counts()["flash_reads"]
        tries = range(1 + host.d.read64("cold_retries"))
        failures = [Failure(index=first + n, op=ColdOp.READ) for n in tries]
        host.d.configure(flash=FlashTiming(latency=50, write_latency=50, failures=failures))
        result, [told] = host.then(READ, [cold], "event_count")
        assert result.response[0] == Response.POISON and told


@pytest.mark.parametrize("pressure", PRESSURES)
def test_a_failed_read_of_memory_is_told_soon(host, pressure):
    """Its answer does not wait for the lines of its page to be looked through, one a cycle."""
    soon, failed = UNIT.page_lines + 80 / (1 - pressure), 0
    others = [host.d.address(0, 1, p, 0, n) for p in range(4) for n in range(UNIT.half_lines)]
    for _ in range(30):
        host.begin(pressure)
        host.write(others)  # of which the line buffers are full then
        host.begin(pressure, read_error=1.0)
        asked = host.rng.permutation(host.lines)[:1]
        result, told = host.then(READ, asked, "event_count", times=12)
        if result.response[0] != Response.POISON:
            continue  # a slot of the line buffers had it
        first = next(n for n, count in enumerate(told) if count)
        assert result.response_cycle[1 + first] - result.response_cycle[0] < soon
        failed += 1
    assert failed > 10


@pytest.mark.parametrize("pressure", PRESSURES)
def test_registers_behind_hint_lines_find_what_these_did(host, pressure):
    """Though a hint line's own Cmp says no more than that it was taken."""
    d, seen = host.d, 0
    for _ in range(20):
        host.begin(pressure)
        lines = [
            HintLine(kind=HintKind.MASS, sequence=0, entries=(1,) * UNIT.pages, advance=True)
            for _ in range(int(host.rng.integers(1, 9)))
        ]
        before = d.read_fields("s0_state")["step"]
        rows = np.array([np.frombuffer(pack(line, UNIT), np.uint8) for line in lines])
        state = d.registers["s0_state"].offset
        result = d.run(
            Program(
                opcode=[WRITE] * len(lines) + [READ],
                address=np.array(
                    [d.addresses.hint_base] * len(lines)
                    + [d.addresses.register_base + state // 64 * 64],
                    np.uint64,
                ),
                data=rows,
            )
        )
        word = int(result.data[-1].view("<u8")[state % 64 // 8])
        # The channels take turns, so that the read may be accepted amid the lines.
        behind = int((result.accept_order[:-1] < result.accept_order[-1]).sum())
        assert d.unpack("s0_state", word)["step"] == before + behind
        seen += behind
    assert seen > 5
