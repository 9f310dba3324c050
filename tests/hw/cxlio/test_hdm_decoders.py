# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Commit, lock, refusal of HDM decoders: random registers, against the golden model."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_golden.cxlio.hdm import HdmDecoders as Golden
from kelp_golden.cxlio.registers import Registers
from kelp_hw.cxlio.hdm_decoders import HdmDecoders
from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.config import named_cxlio

CONFIG = named_cxlio("full").replace(name="large", capacity=16, decoders=4)


@pytest.mark.parametrize("coherent", [False, True])
def test_random_commits(coherent):
    config = CONFIG.replace(coherent=coherent)
    rng, seen = random.Random(1), {"committed": 0, "error": 0, "uncommitted": 0}
    seen |= {"committed to the end": 0, "asked behind it": 0}
    registers = Registers(component_registers(config))
    golden, dut = Golden(config, registers), HdmDecoders(config=config)
    values = registers.values

    async def bench(ctx):
        for _ in range(600):
            i = rng.randrange(4) if rng.random() < 0.3 else sum(map(bool, golden.windows)) % 4
            p = f"decoder{i}_"
            held = golden.held(i)
            if not held:
                near = 8 if rng.random() < 0.9 else 1 << 36
                ways = values[p + "control_ways"] = rng.choice((0, 0, 0, 1, 2, 3, 4, 8))
                units = {what: rng.randrange(n) for what, n in (("base", 32), ("size", near))}
                units["skip"] = skip = rng.randrange(3)
                if rng.random() < 0.3:  # up to the end of memory, or a unit beyond
                    windows = [w for w in golden.windows if w]
                    left = CONFIG.capacity - skip
                    left -= max(((w.dpa + w.size // w.ways) >> 28 for w in windows), default=0)
                    units["size"] = max(0, left + (rng.random() < 0.3)) << min(ways, 3)
                if rng.random() < 0.15:  # up to the last address, or a unit beside
                    most = (1 << 36) - 1
                    units["base"] = min(most, most - units["size"] + rng.choice((0, 1, 1, 2)))
                if rng.random() < 0.1:  # beyond memory, with ends of 35 to 38 bits
                    units["skip"] = rng.choice((1 << rng.randrange(32, 36), (1 << 36) - skip - 1))
                for what, unit in units.items():
                    values[p + what], values[p + what + "_high"] = unit & 15, unit >> 4
                values[p + "control_granularity"] = rng.choice((0, 1, 6, 6, 7))
                snooped = coherent and rng.random() < 0.5
                values[p + "control_host_only"] = (rng.random() < 0.9) != snooped
                values[p + "control_back_invalidate"] = (rng.random() < 0.1) != snooped
                values[p + "control_uio"] = rng.random() < 0.05
            if not golden.locked(i):
                values[p + "control_commit"] = not held or rng.random() < 0.5
            was = values[p + "control_committed"]
            ended = [bool(w) and w.base + w.size == 1 << 64 for w in golden.windows]
            golden.control_written(i)
            for key in dut.values.shape().members:
                ctx.set(dut.values[key], int(values[key]))
            ctx.set(dut.written[p + "control"], 1)
            await ctx.tick()
            ctx.set(dut.written[p + "control"], 0)
            await ctx.tick().repeat(2 * dut.LATENCY)
            now = values[p + "control_committed"]
            seen["committed"] += bool(now and not was)
            seen["error"] += values[p + "control_error"]
            seen["uncommitted"] += bool(was and not now)
            ends = bool(now) and golden.windows[i].base + golden.windows[i].size == 1 << 64
            seen["committed to the end"] += ends and not was
            seen["asked behind it"] += bool(values[p + "control_error"] and i and ended[i - 1])
            for j, window in enumerate(golden.windows):
                state = dut.states[j]
                shown = tuple(
                    ctx.get(x) for x in (state.committed, state.error, state.held, state.locked)
                )
                control = f"decoder{j}_control_"
                assert shown == (
                    values[control + "committed"],
                    values[control + "error"],
                    golden.held(j),
                    golden.locked(j),
                )
                if window:
                    w = dut.windows[j]
                    got = tuple(ctx.get(x) for x in (w.on, w.base, w.size, w.dpa))
                    assert got == (1, window.base >> 28, window.size >> 28, window.dpa >> 28)
                    assert window.ways == 1 << ctx.get(w.ways)
                    assert window.granule == 256 << ctx.get(w.granularity)

    simulate(dut, bench)
    least = {"committed to the end": 3, "asked behind it": 3}
    assert all(count > least.get(what, 15) for what, count in seen.items()), seen


@pytest.mark.parametrize("coherent", [False, True])
def test_the_capability_offers_what_is_committed(coherent):
    """Interleaving by address bits 11:8 and 14:12; coherency models; MemData-NXM outside."""
    config = CONFIG.replace(coherent=coherent)
    shown = component_registers(config).by_name["hdm_capability"].reset
    assert shown & 0xF == config.decoders // 2 and shown >> 20 & 1
    assert shown >> 21 & 3 == 3 * coherent and shown >> 10 & 0x7 == 0
    for ways in (0, 1):
        dut, seen = HdmDecoders(config=config), []

        async def bench(ctx, dut=dut, seen=seen, ways=ways):
            p = "decoder0_"
            for key, value in (("size", 2), ("control_host_only", 1), ("control_ways", ways)):
                ctx.set(dut.values[p + key], value)
            ctx.set(dut.values[p + "control_commit"], 1)
            await ctx.tick().repeat(2 * dut.LATENCY)
            seen.append(ctx.get(dut.states[0].committed))

        simulate(dut, bench)
        assert seen == [ways == 0 or shown >> 8 & 3 == 3]


def test_lock_takes_effect_with_the_commit():
    dut, seen = HdmDecoders(config=CONFIG), []

    async def bench(ctx):
        for legal in (0, 1):
            ctx.set(dut.values.decoder0_control_lock, 1)
            ctx.set(dut.values.decoder0_control_commit, legal)
            ctx.set(dut.values.decoder0_control_host_only, 1)
            ctx.set(dut.values.decoder0_size, 1)
            await ctx.tick().repeat(2 * dut.LATENCY)
            state = dut.states[0]
            seen.append(tuple(ctx.get(x) for x in (state.committed, state.held, state.locked)))

    simulate(dut, bench)
    assert seen == [(0, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_device_may_have_one_decoder(beyond):
    """It has all of memory, and not more."""
    dut = HdmDecoders(config=CONFIG.replace(decoders=1))
    size = CONFIG.capacity + beyond

    async def bench(ctx):
        for key, value in (("base", 5), ("size", size & 15), ("size_high", size >> 4)):
            ctx.set(dut.values["decoder0_" + key], value)
        ctx.set(dut.values.decoder0_control_host_only, 1)
        for commit in (1, 0):
            ctx.set(dut.values.decoder0_control_commit, commit)
            ctx.set(dut.written.decoder0_control, 1)
            await ctx.tick()
            ctx.set(dut.written.decoder0_control, 0)
            await ctx.tick().repeat(2 * dut.LATENCY)
            state, window = dut.states[0], dut.windows[0]
            shown = tuple(ctx.get(x) for x in (state.committed, state.error, window.on))
            taken = commit and not beyond
            assert shown == (taken, commit and beyond, taken)
            assert not taken or (ctx.get(window.base), ctx.get(window.size)) == (5, size)

    simulate(dut, bench)


@pytest.mark.parametrize("wait", range(1, 2 * HdmDecoders.LATENCY))
@pytest.mark.parametrize("again", [0, 1])
def test_an_error_goes_with_a_write_of_any_cycle(wait, again):
    """The register port can write again `LATENCY` cycles later: in the cycle of the judgement."""
    dut, key = HdmDecoders(config=CONFIG), "decoder0_control"

    async def write(ctx, commit):
        """As the bank does: what is kept changes in the cycle after `written`."""
        ctx.set(dut.written[key], 1)
        await ctx.tick()
        ctx.set(dut.written[key], 0)
        ctx.set(dut.values[key + "_commit"], commit)

    async def bench(ctx):
        await write(ctx, 1)  # of no size: refused
        for _ in range(wait - 1):
            await ctx.tick()
        await write(ctx, again)
        await ctx.tick().repeat(2 * dut.LATENCY)
        assert ctx.get(dut.states[0].error) == again
        assert not ctx.get(dut.states[0].committed)

    simulate(dut, bench)


def test_latency_and_interval():
    legal = {"size": 1, "control_host_only": 1, "control_commit": 1}
    both = {f"values.decoder{i}_{key}": value for i in range(2) for key, value in legal.items()}
    both["values.decoder1_base"] = 1
    for decoder, later in ((0, 0), (1, HdmDecoders.INTERVAL)):
        dut = HdmDecoders(config=CONFIG)
        seen = changes(dut, lambda d, i=decoder: d.states[i].committed, [both] * 16)
        assert seen[0] == dut.LATENCY + later
