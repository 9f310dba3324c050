# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Lines that the host does not give back are poisoned in the name of their owner, and told."""

import random

from flips import fields
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


def test_any_lines_of_any_session_amid_the_hosts_completions():
    """Every field, in every cycle, with completions that look like its own but for a bit; queues
    that are no power of two."""
    config, rng = CONFIG.with_(queues=3), random.Random(6)
    dut, waits, owner, met = LostLines(config=config), False, None, {True: 0, False: 0}
    widths = (config.line_bits, config.page_bits, config.queue_bits, config.session_bits)

    async def bench(ctx):
        nonlocal waits, owner
        rwd, event, ndr = dut.o_rwd, dut.o_event, dut.i_ndr
        offered = None
        for _ in range(1500):
            if offered is None and rng.random() < 0.7:
                queue, session = rng.randrange(config.queues), rng.randrange(config.sessions)
                page, line = rng.getrandbits(config.page_bits), rng.getrandbits(config.line_bits)
                offered = line, page, queue, session
                address = 0
                for value, bits in zip(reversed(offered), reversed(widths), strict=True):
                    address = address << bits | value
                refused = rng.randrange(2)
                ctx.set(dut.i.p, {"sector": address >> 2, "line": address & 3, "refused": refused})
            ctx.set(dut.i.valid, offered is not None)
            owners = [rng.randrange(16) for _ in range(config.sessions)]
            for k, ld_id in enumerate(owners):
                ctx.set(dut.owners[k], ld_id)
            message = {name: rng.getrandbits(2) for name in ndr.p.shape().members}
            message["tag"] = dut.TAG ^ rng.choice([0, 0, 1 << rng.randrange(16)])
            message["ld_id"] = (owner or 0) ^ rng.choice([0, 0, 1 << rng.randrange(4)])
            answers = rng.random() < 0.5
            ctx.set(ndr.valid, answers)
            ctx.set(ndr.p, message)
            ctx.set(rwd.ready, rng.random() < 0.5)
            ctx.set(dut.o_ndr.ready, rng.random() < 0.5)

            begins = offered is not None and not waits
            taken = begins and ctx.get(rwd.ready)
            assert (ctx.get(rwd.valid), ctx.get(event.valid)) == (begins, taken)
            assert ctx.get(dut.i.ready) == (not waits and ctx.get(rwd.ready))
            assert ctx.get(dut.idle) == (not waits and offered is None)
            own = waits and answers and (message["tag"], message["ld_id"]) == (dut.TAG, owner)
            assert ctx.get(dut.o_ndr.valid) == (answers and not own)
            assert fields(ctx, dut.o_ndr.p) == message
            assert not answers or ctx.get(ndr.ready) == (own or ctx.get(dut.o_ndr.ready))
            if begins:
                line, page, queue, session = offered
                said = fields(ctx, rwd.p)
                assert said == dict.fromkeys(said, 0) | {
                    "opcode": M2SRwD.MEM_WR,
                    "meta_field": MetaField.NO_OP,
                    "tag": dut.TAG,
                    "ld_id": owners[session],
                    "address": address,
                    "poison": 1,
                    "byte_enable": (1 << 64) - 1,
                }
                assert fields(ctx, event.p) == {
                    "code": Event.SNOOP_LOST,
                    "ld_id": owners[session],
                    "squeue": session * config.queues + queue,
                    "page": page,
                    "argument": refused << 15 | line,
                }
            await ctx.tick()
            met[own] += 1
            if own:
                waits = False
            if taken:
                waits, owner, offered = True, owners[session], None

    simulate(dut, bench)
    assert met[True] > 50
