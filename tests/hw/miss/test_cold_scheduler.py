# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The cold-tier scheduler, and the flash model that it is tested against."""

import pytest
from simulation import simulate
from timing import check_phases

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_spec.config import named
from kelp_spec.metadata import ColdOp, ColdStatus
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, made, run_cocotb
from kelp_verif.miss.flash import Command, Completion, ContractError, Flash


def test_latency_and_interval_at_each_phase():
    check_phases(
        lambda: ColdScheduler(config=named("unit")),
        "o_command.valid",
        [{"i_fetch.valid": 1, "i_fetch.p.demand": 1, "i_fetch.p.miss": k} for k in range(4)],
        {"o_command.ready": 1, "timeout": 1 << 31},
    )


def bench(config, test, **params):
    params["config"] = config
    return run_cocotb(
        made(ColdScheduler, config=named(config)),
        bench="kelp_verif.miss.cold_scheduler_bench",
        test=test,
        params=params,
        timeout_s=280,
    )


def test_commands_without_pause_hide_no_deadline():
    """A tier that fails each fetch at once, and fetches without pause, so that the engine always
    has one to send or to answer: a command that is never completed is aborted all the same."""
    config, timeout, lost = named("unit"), 400, 15
    dut, aborted = ColdScheduler(config=config), []

    async def host(ctx):
        for port in (dut.o_command, dut.o_fetched):
            ctx.set(port.ready, 1)
        ctx.set(dut.timeout, timeout)
        ctx.set(dut.retries, 2)
        ctx.set(dut.i_fetch.p.demand, 1)
        ctx.set(dut.i_completion.p.status, ColdStatus.FAILED)
        idle, owed, offered = [*range(lost + 1)], [], False
        most = timeout + (dut.BESIDE + 1) * dut.TURN * (dut.entries + 2) + 100
        for cycle in range(most):
            ctx.set(dut.now, cycle)
            ctx.set(dut.i_fetch.valid, bool(idle))
            if idle:
                ctx.set(dut.i_fetch.p.miss, idle.pop())
            command = dut.o_command.p
            if ctx.get(dut.o_command.valid):
                id_ = ctx.get(command.id.index), ctx.get(command.id.attempt)
                if ctx.get(command.op) == ColdOp.ABORT:
                    aborted.append((cycle, id_[0]))
                    return
                if id_[0] != lost:
                    owed.append(id_)
            if owed and not offered:
                ctx.set(dut.i_completion.p.id.index, owed[0][0])
                ctx.set(dut.i_completion.p.id.attempt, owed.pop(0)[1])
                offered = True
            ctx.set(dut.i_completion.valid, offered)
            if ctx.get(dut.o_fetched.valid):
                idle.append(ctx.get(dut.o_fetched.p.miss))
            taken = offered and ctx.get(dut.i_completion.ready)
            await ctx.tick()
            if taken:
                offered = False

    simulate(dut, host)
    ((cycle, index),) = aborted
    print(f"aborted after {cycle} cycles, timed out after {timeout}")
    assert index == lost


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


def contract(test=None, block=ColdScheduler, cycles=12_000):
    return run_cocotb(
        made(block, config=named("unit")),
        bench="kelp_verif.miss.cold_contract_bench",
        model=Model(public=PUBLIC),
        test=test,
        params={"config": "unit", "cycles": cycles},
        timeout_s=280,
    )


def test_the_contract_with_a_tier_that_says_anything():
    records = contract().records
    assert records["answers"] > 100 and records["failed"] > 10
    assert records["aborts"] > 20 and records["retries"] > 20


#: What an outsider would plant: each is caught by the contract's bench.
PLANTED = [
    # a completion of an unknown id is entry 0's
    ("known.eq(completion.id.index < self.entries)", "known.eq(1)"),
    # FAILED ends the try while its ABORT is under way
    ("Mux(is_aborted, aborting, flight & ~is_ok)", "Mux(is_ok, 0, flight | aborting)"),
    # an ABORT behind a stalled command expires unsent
    ("& ~unnoted & (age >= self.timeout)", "& (age >= self.timeout)"),
    ("stage.accepted.eq(1), stage.accepted_at.eq(self.now)", "stage.accepted.eq(1)"),
    (
        "self.o_command.valid & self.o_command.ready & (command.op == ColdOp.ABORT)",
        "self.o_command.valid & (command.op == ColdOp.ABORT)",
    ),
    # its time is another's, or never begins
    ("chosen.eq(command.aborted)", "chosen.eq(0)"),
    ("after.sent.eq(command.accepted_at)", "after.sent.eq(state.sent)"),
    ("stage.abort_out.eq(0), stage.accepted.eq(0)", "stage.accepted.eq(0)"),
    # two ABORTs under way, or a command before the second
    ("& ~(lines.aborts.r_rdy & command.abort_out)", ""),
    # the last miss id's prefetch never leaves
    ("pointer == c.misses - 1", "pointer == c.misses - 2"),
    # deadlines, tries
    ("& flight & (age >= self.timeout)", "& flight & (age > self.timeout)"),
    ("& ~unnoted & (age >= self.timeout)", "& ~unnoted & (age > self.timeout)"),
    ("more.eq(state.tries < self.retries)", "more.eq(state.tries <= self.retries)"),
    ("after.tries.eq(Mux(turn.again, state.tries, 0))", "after.tries.eq(state.tries)"),
    ("after.tries.eq(state.tries + 1)", "after.tries.eq(state.tries)"),
    ("writes.w_data.again.eq(turn.push_again)", "writes.w_data.again.eq(0)"),
    ("demand.w_data.again.eq(~new_demand)", "demand.w_data.again.eq(0)"),
    # whose word it is
    ("after.attempt.eq(~state.attempt)", "after.attempt.eq(state.attempt)"),
    ("pre.id.attempt.eq(state.attempt ^ (act == _Act.SEND))", "pre.id.attempt.eq(state.attempt)"),
    ("turn.live & known & (attempt == state.attempt)", "turn.live & known"),
    ("mine.eq(turn.live & known & (attempt", "mine.eq(known & (attempt"),
    (
        "Mux(is_aborted, aborting, flight & ~is_ok)",
        "Mux(is_aborted, aborting | flight, flight & ~is_ok)",
    ),
    # an entry is lost, or released too early or never
    ("& ~(waiting.new_demand & (turn.rejected | turn.lapsed))", ""),
    ("& ~(turn.here & finish.replicate(entries))", ""),
    ("can_answer.eq(~self.o_fetched.valid & ~self.o_written_back.valid)", "can_answer.eq(1)"),
    ("waiting.prefetches.any(), waiting.new_demand,", "waiting.new_demand,"),
    ("~active.any() & ~waiting.busy_writes.any()", "~waiting.busy_writes.any()"),
    (
        "raised.eq(self.i_raise.valid & prefetches.bit_select(self.i_raise.p, 1))",
        "raised.eq(self.i_raise.valid)",
    ),
    ("can_leave.eq(found & ~self.i_raise.valid)", "can_leave.eq(found)"),
    # stalls, order, what is told
    ("with m.If(self.o_fetched.ready):", "with m.If(1):"),
    ("with m.If(~self.o_command.valid | self.o_command.ready):", "with m.If(1):"),
    ("(lines.writes.r_rdy & ~waiting.any_prefetch)", "lines.writes.r_rdy"),
    ("~(prefer_send & turn.can_send)", "1"),
    ("prefer_send.eq(choice == _Act.COMPLETE)", "prefer_send.eq(1)"),
    ("Mux(lines.aborts.r_rdy, _Act.ABORT, _Act.SEND)", "_Act.SEND"),
    (
        "self.o_fetched.payload.line_mask.eq(self.i_completion.payload.line_mask)",
        "self.o_fetched.payload.line_mask.eq(0)",
    ),
    ("command.line_mask.eq(m.submodules.line_masks.read_data)", "command.line_mask.eq(0)"),
    (
        "self.o_written_back.payload.failed.eq(~turn.succeeded)",
        "self.o_written_back.payload.failed.eq(0)",
    ),
    ("self.o_retry.eq(turn.push_again)", "self.o_retry.eq(turn.tried)"),
    ("self.o_timeout.eq(1)", "self.o_timeout.eq(0)"),
    # a row of which nothing is known yet, or one that names the next attempt
    ("(turn.here & known_row).any()", "1"),
    ("turn.live | ((act == _Act.SEND) & (turn.here & known_row).any())", "turn.live"),
]


@pytest.mark.parametrize(
    ("old", "new"),
    [*PLANTED[:2], *(pytest.param(*bug, marks=pytest.mark.slow) for bug in PLANTED[2:])],
)
@pytest.mark.sampled
def test_the_contract_catches_a_planted_bug(old, new):
    with pytest.raises(AssertionError, match="failed with seed"):
        contract(block=mutant(ColdScheduler, old, new))


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


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("latency", -1, "0 and up"),
        ("abort_latency", -1, "0 and up"),
        ("jitter", 1.5, "0 … 1"),
        ("bytes_per_cycle", 0, "above 0"),
    ],
)
def test_flash_refuses_times_that_run_backwards(name, value, legal):
    with pytest.raises(ValueError, match=f"{name} = {value} is refused; legal: {legal}"):
        Flash(**{name: value})


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
