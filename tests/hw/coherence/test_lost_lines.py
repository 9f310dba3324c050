# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Lines that the host does not give back are poisoned in the name of their owner, and told."""

from simulation import simulate
from timing import check_pace, shown

from kelp_hw.coherence.lost_lines import LostLines
from kelp_spec.coherence import MetaField
from kelp_spec.config import named
from kelp_spec.messages import M2SRwD
from kelp_spec.metadata import Event

CONFIG = named("unit_coherent")


def new_lines():
    return LostLines(config=CONFIG)


def test_latency_and_interval():
    lost = [{"i.valid": 1, "i.p.sector": 1, "i.p.line": 2}]
    check_pace(new_lines(), "LATENCY", shown("o_rwd", "address"), lost, prepare={"o_rwd.ready": 1})


def test_a_line_is_poisoned_told_and_its_completion_is_not_the_hosts():
    dut = new_lines()
    line = CONFIG.session_bits + CONFIG.queue_bits + CONFIG.page_bits + CONFIG.line_bits
    address = 1 << line - 1 | 3 << CONFIG.page_bits + CONFIG.line_bits | 5 << CONFIG.line_bits | 6

    async def bench(ctx):
        ctx.set(dut.owners[0], 4)
        ctx.set(dut.owners[1], 9)
        ctx.set(dut.i.valid, 1)
        ctx.set(dut.i.p.sector, address >> 2)
        ctx.set(dut.i.p.line, address & 3)
        ctx.set(dut.i.p.refused, 1)
        rwd, event = dut.o_rwd, dut.o_event
        assert ctx.get(rwd.valid) and not ctx.get(dut.i.ready) and not ctx.get(event.valid)
        await ctx.tick()
        ctx.set(rwd.ready, 1)
        assert ctx.get(dut.i.ready) and ctx.get(event.valid)
        wanted = {"opcode": M2SRwD.MEM_WR, "address": address, "poison": 1, "ld_id": 9}
        wanted |= {"meta_field": MetaField.NO_OP, "byte_enable": (1 << 64) - 1}
        assert {name: ctx.get(rwd.p[name]) for name in wanted} == wanted
        assert ctx.get(event.p.code) == Event.SNOOP_LOST and ctx.get(event.p.ld_id) == 9
        assert (ctx.get(event.p.squeue), ctx.get(event.p.page)) == (CONFIG.queues + 3, 5)
        assert ctx.get(event.p.argument) == 1 << 15 | 6
        tag = ctx.get(rwd.p.tag)
        await ctx.tick()
        # The next one waits; the host's completions pass, its own does not.
        assert not ctx.get(rwd.valid) and not ctx.get(dut.i.ready) and not ctx.get(dut.idle)
        assert not ctx.get(dut.o_ndr.valid)
        ctx.set(dut.i.valid, 0)
        ndr, host = dut.i_ndr, dut.o_ndr
        for ld_id, own in ((8, False), (9, True), (9, False)):
            ctx.set(ndr.valid, 1)
            ctx.set(ndr.p.tag, tag)
            ctx.set(ndr.p.ld_id, ld_id)
            assert ctx.get(host.valid) == (not own) and ctx.get(ndr.ready) == own
            ctx.set(host.ready, not own)
            await ctx.tick()
            ctx.set(host.ready, 0)
        ctx.set(ndr.valid, 0)
        assert ctx.get(dut.idle)

    simulate(dut, bench)
