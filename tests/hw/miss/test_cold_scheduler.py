# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The cold-tier scheduler, and the flash model that it is tested against."""

import pytest

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_spec.config import named
from kelp_spec.metadata import ColdOp, ColdStatus
from kelp_verif.harness.runner import made, run_cocotb
from kelp_verif.miss.flash import Command, Completion, ContractError, Flash


def bench(config, test, **params):
    params["config"] = config
    return run_cocotb(
        made(ColdScheduler, config=named(config)),
        bench="kelp_verif.miss.cold_scheduler_bench",
        test=test,
        params=params,
        timeout_s=280,
    )


def test_requests_are_answered_once_in_spite_of_the_flash():
    tests = [
        "every_request_is_answered_once",
        "demand_goes_before_prefetch_before_write_back",
        "as_many_fetches_in_flight_as_misses",
        "a_flash_that_never_answers",
        "an_abort_counts_from_its_acceptance",
    ]
    records = bench("unit", tests, cycles=30_000).records
    assert records["answers"] > 150 and records["failed"] > 0 and records["aborts"] > 10


def test_a_storm_of_cold_pages_uses_the_tiers_bandwidth():
    assert bench("64x64", "storm", cycles=12_000).records["fraction"] >= 0.9


class Memory:
    def __init__(self):
        self.lines = {}

    def write(self, address, data):
        for n in range(0, len(data), 64):
            self.lines[address + n] = data[n : n + 64]

    def read(self, address, length):
        return b"".join(self.lines.get(address + n, bytes(64)) for n in range(0, length, 64))


def read(index, lba=0, line=0, attempt=0):
    return Command(ColdOp.READ, index, attempt, lba, line, 4)


def run_until(flash, start, end):
    """[(time, completion)]."""
    out = []
    for now in range(start, end):
        flash.advance(now)
        while flash.done:
            out.append((now, flash.done.popleft()))
    return out


def test_flash_keeps_latency_and_bandwidth():
    flash = Flash(latency=1000)
    for n in range(3):
        flash.submit(0, read(n, lba=n, line=4 * n))
    transfer = (4 * 64 + 512) / 14
    assert [t for t, _ in run_until(flash, 0, 2000)] == [
        1 + int(1000 + transfer * (n + 1)) for n in range(3)
    ]


def test_flash_returns_what_was_written():
    memory = Memory()
    flash = Flash(memory=memory, latency=10)
    memory.write(256, bytes(range(256)))
    flash.submit(0, Command(ColdOp.WRITE, 1, 0, 34, 4, 4, valid=0b1011, poison=0b1000))
    assert [c for _, c in run_until(flash, 0, 100)] == [Completion(1, 0, ColdStatus.OK)]
    flash.submit(100, Command(ColdOp.READ, 2, 1, 34, 8, 4))
    assert [c for _, c in run_until(flash, 100, 200)] == [
        Completion(2, 1, ColdStatus.OK, 0b1011, 0b1000)
    ]
    assert memory.read(512, 256) == bytes(range(256))


def test_flash_moves_nothing_after_an_abort():
    memory = Memory()
    flash = Flash(memory=memory, latency=1000, pages={0: (b"x" * 256, 1, 0)})
    flash.submit(0, read(0))
    run_until(flash, 0, 10)
    flash.submit(10, Command(ColdOp.ABORT, 0, 0, 0, 0, 0))
    memory.lines.clear()
    assert [c for _, c in run_until(flash, 10, 3000)] == [Completion(0, 0, ColdStatus.ABORTED)]
    assert not memory.lines


@pytest.mark.parametrize(
    "second", [read(0, lba=1, line=4), read(1, lba=0, line=4), read(1, lba=1, line=0)]
)
def test_flash_refuses_two_live_commands_on_one_thing(second):
    flash = Flash(silent=lambda _: True)
    flash.submit(0, read(0))
    with pytest.raises(ContractError, match="belongs to"):
        flash.submit(5, second)
