# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Payload and doorbell: whose the payload is, and when."""

import random

from flips import flip, simulate_memory
from simulation import simulate
from timing import changes

from kelp_hw.cxlio.mailbox import Mailbox
from kelp_spec.cxlio.config import named_cxlio

CONFIG = named_cxlio("recorded")


def test_random_accesses_of_both_sides():
    rng, box = random.Random(8), Mailbox(config=CONFIG)
    words, seen = [0] * (CONFIG.payload // 4), {"host": 0, "device": 0}

    async def bench(ctx):
        busy = False
        for _ in range(2000):
            lane, word = rng.randrange(CONFIG.payload // 8), rng.randrange(CONFIG.payload // 4)
            data, strobe = rng.getrandbits(64), rng.getrandbits(8)
            write = rng.getrandbits(4) if rng.random() < 0.5 else 0
            host = rng.random() < 0.5
            ctx.set(box.access.lane, lane)
            ctx.set(box.access.write, host)
            ctx.set(box.access.write_data, data)
            ctx.set(box.access.strobe, strobe)
            ctx.set(box.address, word)
            ctx.set(box.write, write)
            ctx.set(box.write_data, data >> 32)
            for name, on in (("ring", rng.random() < 0.1), ("done", rng.random() < 0.1)):
                ctx.set(getattr(box, name), on)
            assert ctx.get(box.busy) == busy
            if busy:
                mask = sum(0xFF << 8 * i for i in range(4) if write >> i & 1)
                words[word] = words[word] & ~mask | data >> 32 & mask
            elif host:
                mask = sum(0xFF << 8 * i for i in range(8) if strobe >> i & 1)
                for i in (0, 1):
                    part = mask >> 32 * i & 0xFFFFFFFF
                    old = words[2 * lane + i] & ~part
                    words[2 * lane + i] = old | data >> 32 * i & part
            was = busy
            busy = not ctx.get(box.done) and (busy or bool(ctx.get(box.ring)))
            await ctx.tick()
            if was:
                assert ctx.get(box.read_data) == words[word]
                assert ctx.get(box.access.read_data) == 0
            else:
                assert ctx.get(box.access.read_data) == words[2 * lane] | words[2 * lane + 1] << 32
            seen["device" if was else "host"] += 1

    simulate(box, bench)
    assert min(seen.values()) > 300


def test_who_meets_a_flip_is_told():
    """Of a word that was read, or written in part, by whoever has the payload; nobody else."""
    box, told = Mailbox(config=CONFIG), []

    async def bench(ctx, memory):
        async def step(**inputs):
            port = box.access if not ctx.get(box.busy) else box
            for name, value in inputs.items():
                ctx.set(getattr(port, name), value)
            await ctx.tick()
            faults = (box.host_fault, box.fault)
            told.append(tuple(ctx.get(f[n]) for f in faults for n in ("corrected", "uncorrected")))
            for name in ("read", "write"):
                ctx.set(getattr(port, name), 0)

        flip(ctx, memory, 0, 3)
        flip(ctx, memory, 1, 3, 9)
        await step(lane=0)
        await step(lane=0, read=1)
        await step(lane=1, read=1)
        await step(lane=1, write=1, strobe=1)
        await step(lane=1, write=1, strobe=0xF0)  # the word beside it
        await step(lane=0, write=1, strobe=0xFF)
        ctx.set(box.ring, 1)
        await ctx.tick()
        ctx.set(box.ring, 0)
        ctx.set(box.access.read, 1)
        flip(ctx, memory, 0, 3)
        await step(address=0)
        await step(address=0, read=1)
        await step(address=2, read=1)
        await step(address=2, write=1)
        await step(address=3, read=1)  # the word beside it
        await step(address=3, write=1)
        await step(address=2, write=15)

    simulate_memory(box, bench)
    none, host, device = (0, 0, 0, 0), [(1, 0, 0, 0), (0, 1, 0, 0)], [(0, 0, 1, 0), (0, 0, 0, 1)]
    assert told == [none, *host, host[1], none, none, none, *device, device[1], none, none, none]


def test_clear_makes_the_payload_zero():
    """After it nobody meets a row of which power-up made no code word."""
    box, lanes = Mailbox(config=CONFIG), CONFIG.payload // 8

    async def bench(ctx, memory):
        rng = random.Random(9)
        for lane in range(lanes):
            ctx.set(memory[lane], rng.getrandbits(len(memory[lane])))
        ctx.set(box.clear, 1)
        await ctx.tick().repeat(lanes)
        ctx.set(box.clear, 0)
        ctx.set(box.access.read, 1)
        for lane in range(lanes):
            ctx.set(box.access.lane, lane)
            await ctx.tick()
            assert ctx.get(box.access.read_data) == 0
            assert not ctx.get(box.host_fault.corrected)
            assert not ctx.get(box.host_fault.uncorrected)

    simulate_memory(box, bench)


def test_latency_and_interval():
    write = [
        {"access.lane": i, "access.write": 1, "access.strobe": 255, "access.write_data": i}
        for i in range(4)
    ]
    reads = [{"access.lane": i} for i in (1, 2, 3)]
    box = Mailbox(config=CONFIG)
    seen = changes(box, "access.read_data", reads, before=write)
    assert seen == [box.LATENCY + i * box.INTERVAL for i in range(3)]
