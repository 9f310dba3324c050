# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint's own wires, between blocks that have ports alone: who hears whom, in which cycle,
and when all is at rest."""

import random

import pytest
from amaranth.hdl import Value
from flips import opened
from hollow import hollow, port_of, wires
from simulation import cycles_until, simulate

from kelp_hw import endpoint
from kelp_hw.endpoint import Endpoint
from kelp_spec.config import POOLS, named
from kelp_spec.metadata import Event, Op, Outcome, Protected

UNIT = named("unit")
BLOCKS = {
    "ingress": "Ingress",
    "router": "WindowRouter",
    "tracker": "Tracker",
    "frame_table": "FrameTable",
    "error_lines": "ErrorLines",
    "data_path": "DataPath",
    "egress": "Egress",
    "miss_buffer": "MissBuffer",
    "cold": "ColdScheduler",
    "eviction": "Eviction",
    "ema": "EmaEngine",
    "prefetcher": "Prefetcher",
    "windows": "QueueConfig",
    "hints": "HintAbsorber",
    "phase": "PhaseDetector",
    "telemetry": "Telemetry",
    "registers": "Registers",
    "faults": "FaultMonitor",
}
#: Whose ports are joined, in the cycle: `block.port`, or a port of the endpoint's.
JOINED = """
m2s_req ingress.m2s_req
m2s_rwd ingress.m2s_rwd
s2m_drs egress.s2m_drs
s2m_ndr egress.s2m_ndr
axi data_path.axi
cold_command cold.o_command
cold_completion cold.i_completion
commit_frame frame_table.o_commit
commit_score ema.o_commit
ingress.o_request tracker.i_request
ingress.o_window router.i
ingress.spec_dropped telemetry.spec_dropped
ingress.o_write data_path.i_write
ingress.o_ahead tracker.ahead
data_path.o_write_slot ingress.i_write_slot
data_path.o egress.i
data_path.o_error error_lines.i
data_path.o_flushed eviction.i_flushed
router.o_register registers.i
router.o_hint hints.i
router.o egress.i_window
registers.o router.i_register
registers.o_control tracker.ops.control
registers.descriptor tracker.descriptor
registers.settings.starve_limit miss_buffer.starve_limit
registers.settings.cold_timeout cold.timeout
registers.settings.cold_retries cold.retries
registers.settings.prefetch_enable prefetcher.enable
lockstep prefetcher.lockstep
registers.resident eviction.resident
registers.config_write tracker.config_write
registers.config_write eviction.config_write
registers.config_write ema.config_write
registers.config_write windows.write
miss_buffer.o_miss_free tracker.i_miss_free
miss_buffer.ready tracker.credits.miss
miss_buffer.line_mask_data frame_table.line_mask_data
frame_table.line_mask_address miss_buffer.line_mask_address
frame_table.o_frame eviction.i_frame
frame_table.o_frame.error.valid error_lines.executed
frame_table.o_event registers.i_event.4
frame_table.o_usage prefetcher.i_usage
frame_table.o_usage telemetry.i_usage
error_lines.o frame_table.i_error
tracker.hold.paused error_lines.hold.paused
tracker.o_frame_op frame_table.i
tracker.o_score ema.i
tracker.o_hot telemetry.i_hot
tracker.o_result miss_buffer.i_result
tracker.o_result eviction.i_result
tracker.o_result prefetcher.i_result
tracker.o_result telemetry.i_result
tracker.o_result registers.i_result
tracker.sessions eviction.sessions
tracker.sessions prefetcher.sessions
tracker.sessions hints.sessions
tracker.sessions registers.sessions
ema.ready tracker.credits.score
ema.o_scan eviction.i_scan
ema.corrected telemetry.score_corrected
ema.uncorrected telemetry.score_uncorrected
ema.uncorrected registers.i_event.3.valid
eviction.queue_ready tracker.credits.queue
eviction.o_write_back cold.i_write_back
eviction.swept telemetry.swept
eviction.o_event registers.i_event.2
cold.o_fetched miss_buffer.i_fetched
cold.o_written_back eviction.i_written_back
hints.o_event registers.i_event.1
hints.line_taken telemetry.hint_line
hints.mass_taken telemetry.hint_update
prefetcher.window_squeue windows.read_squeue
prefetcher.pulses telemetry.i_prefetch
windows.o.window prefetcher.window
telemetry.o_event registers.i_event.0
telemetry.o_late prefetcher.i_late
telemetry.o_counted registers.i_counted
egress.o_latency registers.i_latency
phase.decode registers.decode
faults.o_event registers.i_event.5
faults.fatal egress.fatal
faults.fatal tracker.fatal
faults.fatal registers.status.fatal
faults.corrected telemetry.memory_corrected
faults.uncorrected telemetry.memory_uncorrected
"""
#: Whose faults are whose in the monitor.
FAULTS = {
    Protected.FRAME_TABLE: "frame_table",
    Protected.TRACKER: "tracker",
    Protected.EVICTION: "eviction",
    Protected.MISS_BUFFER: "miss_buffer",
    Protected.COLD_SCHEDULER: "cold",
    Protected.DATA_PATH: "data_path",
    Protected.SCORES: "ema",
    Protected.HOST: "hints",
}
IDLES = ("data_path", "router", "registers", "tracker", "frame_table", "egress", "ema")
IDLES += ("prefetcher", "hints", "telemetry", "ingress")
QUIETS = ("eviction", "miss_buffer", "cold")
#: Of the pipeline: in lock-step nothing else begins until it is empty.
IN_TURN = ("ingress", "tracker", "frame_table", "miss_buffer")


class Wires:
    """The endpoint, hollow but for its FIFO and its skid buffers."""

    def __init__(self, monkeypatch, config=UNIT):
        self.made = {}
        blocks = BLOCKS | ({"select": "Select"} if config.select else {})
        for name, block in blocks.items():
            real = getattr(endpoint, block)

            def signature_of(real=real, **options):
                return real(**options).signature

            monkeypatch.setattr(endpoint, block, hollow(self.made, name, signature_of))
        self.dut = Endpoint(config=config)

    def simulate(self, bench):
        top, _ = opened(self.dut)
        simulate(top, bench)

    def port(self, path):
        """`block.port.field`, or a port of the endpoint's."""
        return port_of(self.made, self.dut, path)

    def joined(self):
        ways = []
        for pair in JOINED.strip().splitlines():
            first, second = pair.split()
            outside = first.split(".")[0] not in self.made
            ways += wires(self.port(first), self.port(second), outside=outside)
        pools = self.made["tracker"].pools
        for p in range(len(POOLS)):
            limit = self.made["registers"].settings.pool_limit[p]
            ways += [
                (limit, self.made["tracker"].pool_settings.limit[p]),
                (pools.free[p], self.made["miss_buffer"].pool_free[p]),
                (pools.used[p], self.made["registers"].pools.used[p]),
                (pools.unused[p], self.made["registers"].pools.unused[p]),
                (pools.used[p], self.made["eviction"].pools.used[p]),
                (pools.spare[p], self.made["eviction"].pools.spare[p]),
            ]
        for k in range(UNIT.sessions):
            open_ = self.made["tracker"].sessions[k].open
            ways.append((open_, self.made["phase"].open[k]))
        for block, name in FAULTS.items():
            seen = self.made["faults"].faults[block]
            ways.append((self.made[name].fault.as_value(), Value.cast(seen)))
        return [(Value.cast(given), Value.cast(seen)) for given, seen in ways]


def item(ctx, stream):
    return [ctx.get(stream.valid), ctx.get(Value.cast(stream.payload))]


def access(ctx, payload):
    return [ctx.get(payload.session), ctx.get(payload.write)]


@pytest.mark.parametrize("name", ["unit", "unit_select"])
def test_a_hint_is_busy_until_m0_has_taken_its_last_op(monkeypatch, name):
    """The absorber is done with a line, and ops of it stand before M0, for longer than an op takes
    from there: a register access behind the line does not overtake them. It does not wait for ops
    of a choice."""
    config = named(name)
    bench_of = Wires(monkeypatch, config)
    kinds = [Op.MASS, Op.STEP, *([Op.LOOK] * 2 + [Op.STEP, Op.HOLD] if config.select else [])]

    async def bench(ctx):
        made, taken = bench_of.made, bench_of.made["tracker"].ops.hint
        given = made["select" if config.select else "hints"].o_op
        ctx.set(made["hints"].idle, 1)
        stands, left = [], list(kinds)
        for cycle in range(120):
            ctx.set(taken.ready, cycle % 20 == 19)
            ctx.set(given.valid, bool(left))
            ctx.set(given.p.kind, left[0] if left else 0)
            await ctx.delay(1e-9)
            hints = [kind in (Op.MASS, Op.STEP) for kind in stands]
            assert ctx.get(made["router"].hints_busy) == any(hints), (cycle, stands)
            leaves = ctx.get(taken.valid) and ctx.get(taken.ready)
            if left and ctx.get(given.ready):
                stands.append(left.pop(0))
            if leaves:
                stands.pop(0)
            await ctx.tick()
        assert not left and not stands

    bench_of.simulate(bench)


def test_who_hears_whom(monkeypatch):
    """Each bit, in the cycle; accesses and commits a cycle or two later."""
    bench_of, rng = Wires(monkeypatch), random.Random(9)
    dut, made = bench_of.dut, bench_of.made

    async def bench(ctx):
        ways = bench_of.joined()
        given = {id(source): source for source, _ in ways}.values()
        frame_op = made["tracker"].o_frame_op_hot
        result, hot, miss = made["tracker"].o_result, made["tracker"].o_hot, made["miss_buffer"]
        readies = [made[n].ready for n in ("tracker", "frame_table", "eviction")]
        readies += [made["ema"].cleared, made["registers"].cleared]
        expected, frames, now = None, [0, 0], ctx.get(dut.now)
        for _ in range(60):
            for source in given:
                ctx.set(source, rng.getrandbits(len(source)))
            for port in (miss.o_fetch, miss.o_raise):
                ctx.set(Value.cast(port.payload), rng.getrandbits(len(Value.cast(port.payload))))
                ctx.set(port.valid, rng.getrandbits(1))
            if rng.random() < 0.7:
                ctx.set(result.p.op.kind, rng.choice((Op.READ, Op.WRITE)))
                ctx.set(result.p.op.no_memory, rng.random() < 0.2)
                ctx.set(result.valid, 1)
            for port in readies:
                ctx.set(port, rng.random() < 0.8)
            high = rng.getrandbits(16)
            for name, value in (
                ("high_water", high),
                ("low_water", rng.getrandbits(rng.choice((3, 16)))),
                ("reserve", rng.getrandbits(rng.choice((3, 16)))),
            ):
                ctx.set(made["registers"].settings[name], value)
            quiet, pause = rng.getrandbits(1), rng.getrandbits(1)
            ctx.set(made["registers"].quiet, quiet)
            ctx.set(made["error_lines"].hold.pause, pause)
            ctx.set(made["hints"].idle, rng.getrandbits(1))
            ctx.set(frame_op, rng.getrandbits(1))
            skip = rng.choice((0, 1, 1 << 31))
            ctx.set(dut.skip, skip)
            await ctx.delay(1e-9)
            for source, seen in ways:
                assert (ctx.get(seen) - ctx.get(source)) % (1 << len(seen)) == 0, seen
            settings, pools = made["registers"].settings, made["tracker"].pool_settings
            for name in ("low_water", "reserve"):
                most = (1 << len(getattr(pools, name))) - 1
                assert ctx.get(getattr(pools, name)) == min(ctx.get(settings[name]), most)
            low = ctx.get(settings.low_water)
            assert ctx.get(made["eviction"].low_water) == max(high, low)
            assert ctx.get(made["tracker"].hold.pause) == quiet | pause
            assert ctx.get(made["router"].hints_busy) == 1 - ctx.get(made["hints"].idle)
            assert ctx.get(made["tracker"].credits.event) == 1 and ctx.get(dut.m2s_birsp.ready)
            lost, scored = made["registers"].i_event[3].p, made["ema"].o_commit.p
            assert (ctx.get(lost.code), ctx.get(lost.argument)) == (
                Event.WORD_LOST,
                Protected.SCORES,
            )
            assert ctx.get(lost.squeue) == ctx.get(scored.squeue)
            assert ctx.get(lost.page) == ctx.get(scored.page)
            assert ctx.get(made["registers"].status.ready) == ctx.get(dut.ready)
            assert ctx.get(made["ingress"].enable) == ctx.get(dut.ready)
            for name in ("ingress", "egress", "miss_buffer", "cold", "registers"):
                assert ctx.get(made[name].now) == ctx.get(dut.now) == now
            phase = made["phase"]
            seen = {
                "hot": [ctx.get(phase.i_hot.valid), access(ctx, phase.i_hot.p)],
                "op": [ctx.get(phase.i_op.valid), access(ctx, phase.i_op.p)],
                "result": item(ctx, dut.commit_result),
                "ready": ctx.get(dut.ready),
                "fetch": [item(ctx, made["cold"].i_fetch), item(ctx, made["cold"].i_raise)],
            }
            assert expected in (None, seen)
            assert ctx.get(dut.commit_hot) == frames.pop(0)
            frames.append(ctx.get(frame_op))
            op = result.p.op
            counts = (
                ctx.get(result.valid)
                and ctx.get(op.kind) in (Op.READ, Op.WRITE)
                and ctx.get(result.p.outcome) != Outcome.REFUSED
                and not ctx.get(op.no_memory)
            )

            expected = {
                "hot": [ctx.get(hot.valid), access(ctx, hot.p)],
                "op": [int(counts), access(ctx, op)],
                "result": item(ctx, result),
                "ready": min(map(ctx.get, readies)),
                "fetch": [item(ctx, miss.o_fetch), item(ctx, miss.o_raise)],
            }
            await ctx.tick()
            now = (now + 1 + skip) % (1 << len(dut.now))

    bench_of.simulate(bench)


def rests(ctx, made):
    """Every block is at rest and ready; a session is open, for whom something may be under way."""
    ctx.set(made["tracker"].sessions[0].open, 1)
    for name in IDLES:
        ctx.set(made[name].idle, 1)
    for name in QUIETS:
        ctx.set(made[name].quiet, 1)
        ctx.set(made[name].idle, 1)
    for name in ("tracker", "frame_table", "eviction"):
        ctx.set(made[name].ready, 1)
    ctx.set(made["ema"].cleared, 1)
    ctx.set(made["registers"].cleared, 1)


def test_all_is_at_rest_when_each_block_is(monkeypatch):
    """And has been for some cycles; who is not ends it within three. In lock-step a prefetch that
    waits for a miss is no work."""
    bench_of = Wires(monkeypatch)
    dut, made = bench_of.dut, bench_of.made

    async def bench(ctx):
        async def quiet_after(port, *, lasts):
            ctx.set(port, 0)
            await ctx.tick().repeat(3)
            quiet = ctx.get(dut.quiescent)
            await ctx.tick().repeat(3)
            assert ctx.get(dut.quiescent) == quiet == lasts, port.name
            ctx.set(port, 1)
            cycles = await cycles_until(ctx, dut.quiescent)
            assert lasts or 5 <= cycles < 12, port.name

        rests(ctx, made)
        await ctx.tick().repeat(20)
        assert ctx.get(dut.quiescent)
        for name in IDLES:
            await quiet_after(made[name].idle, lasts=0)
        for name in QUIETS:
            await quiet_after(made[name].quiet, lasts=0)
            await quiet_after(made[name].idle, lasts=1)
        await quiet_after(made["ema"].cleared, lasts=0)
        for lockstep in (0, 1):
            ctx.set(dut.lockstep, lockstep)
            ctx.set(made["miss_buffer"].idle, 0)
            await quiet_after(made["prefetcher"].idle, lasts=lockstep)
            ctx.set(made["miss_buffer"].idle, 1)
            await quiet_after(made["prefetcher"].idle, lasts=0)

    bench_of.simulate(bench)


def test_in_lock_step_prefetch_and_eviction_take_turns(monkeypatch):
    """Neither begins while an op is on its way, or four cycles after; free-running, both may."""
    bench_of, rng = Wires(monkeypatch), random.Random(10)
    dut, made = bench_of.dut, bench_of.made

    async def bench(ctx):
        rests(ctx, made)
        turn, offer = made["eviction"].turn, made["prefetcher"].o_op
        recent, may, seen = [0] * 4, None, {False: 0, True: 0}
        for cycle in range(1500):
            if cycle % 25 == 0:
                ctx.set(dut.lockstep, rng.random() < 0.8)
                for name in IN_TURN:
                    ctx.set(made[name].idle, 1)
            for name in IN_TURN:
                if rng.random() < 0.03:
                    ctx.set(made[name].idle, rng.getrandbits(1))
            for port in (turn.evicting, turn.learning, made["miss_buffer"].starving):
                ctx.set(port, rng.random() < 0.1)
            ctx.set(made["prefetcher"].idle, rng.random() < 0.8)
            control = rng.random() < 0.05
            ctx.set(made["registers"].o_control.valid, control)
            ctx.set(offer.valid, 0)
            await ctx.delay(1e-9)
            lockstep = ctx.get(dut.lockstep)
            busy = not all(ctx.get(made[name].idle) for name in IN_TURN)
            works = busy or any(recent) or not ctx.get(made["prefetcher"].idle)
            held = ctx.get(turn.evicting) or ctx.get(turn.learning)
            held = held or (works and not ctx.get(made["miss_buffer"].starving))
            assert ctx.get(turn.hold) == (lockstep and held), cycle
            assert may in (None, ctx.get(offer.ready)), cycle
            may = not (lockstep and (busy or control or any(recent)))
            seen[may] += 1
            recent = [busy, *recent[:3]]
            await ctx.tick()
        assert min(seen.values()) > 100, seen

    bench_of.simulate(bench)


def test_a_prefetch_goes_to_the_tracker_once(monkeypatch):
    bench_of = Wires(monkeypatch)
    made, taken, given = bench_of.made, [], []

    async def bench(ctx):
        rests(ctx, made)
        offer, entry = made["prefetcher"].o_op, made["tracker"].ops.prefetch
        before = 0
        for cycle in range(60):
            ctx.set(offer.valid, 1)
            ctx.set(offer.p.page, len(given) % UNIT.pages)
            ctx.set(entry.ready, cycle % 3 > 0)
            await ctx.delay(1e-9)
            ready = ctx.get(offer.ready)
            assert not (ready and before), cycle  # one that has just left shows nowhere yet
            given.extend([len(given) % UNIT.pages] * ready)
            before = ready
            if ctx.get(entry.valid) and ctx.get(entry.ready):
                taken.append(ctx.get(entry.p.page))
            await ctx.tick()

    bench_of.simulate(bench)
    assert taken == given[: len(taken)] and len(given) - len(taken) <= 2 and len(taken) > 10
