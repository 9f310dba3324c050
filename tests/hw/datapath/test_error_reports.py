# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ErrorReports: each error is reported once; how soon one of a slot is offered, and the next."""

import random
from collections import Counter

import pytest
from simulation import cycles_until, simulate

from kelp_hw.datapath.error_reports import ErrorReports
from kelp_spec.config import named

UNIT = named("unit")


@pytest.mark.parametrize("buffer", ["lines", "scales"])
def test_latency_and_interval(buffer):
    """Every slot has an error, so that the slot that is looked at has one."""
    block = ErrorReports(config=UNIT)
    slots = getattr(block, buffer)

    async def bench(ctx):
        ctx.set(slots.any, 1)
        ctx.set(slots.there, 1)
        ctx.set(slots.offset, 5)
        assert await cycles_until(ctx, block.o.valid) == block.LATENCY
        assert ctx.get(block.o.p.offset) == 5
        ctx.set(block.o.ready, 1)
        reported = []
        for _ in range(3):
            assert ctx.get(slots.done.valid)
            reported.append(ctx.get(slots.done.p.slot))
            await ctx.tick()
            assert 1 + await cycles_until(ctx, block.o.valid) == block.INTERVAL
        assert len(set(reported)) == 3

    simulate(block, bench)


def test_each_error_is_reported_once_with_its_line():
    """Errors here and there in both buffers, some at the same slot of both; the taker pauses."""
    block, rng = ErrorReports(config=UNIT), random.Random(1)
    slots = {"lines": UNIT.line_slots, "scales": UNIT.scale_slots}
    fields = {"frame": UNIT.frame_bits, "offset": UNIT.offset_bits, "spoils": 1}
    errors, met = {name: {} for name in slots}, Counter()

    def any_line():
        drawn = {name: rng.getrandbits(bits) for name, bits in fields.items()}
        return drawn | {"used_lines": 1 + rng.randrange(UNIT.half_lines)}

    async def bench(ctx):
        looked, standing = dict.fromkeys(slots, 0), None
        for cycle in range(6000):
            more = cycle < 5000
            for name, count in slots.items():
                port, mine = getattr(block, name), errors[name]
                if more and rng.random() < 0.03:
                    mine.setdefault(
                        rng.choice((looked["lines"] % count, rng.randrange(count))), any_line()
                    )
                said = mine.get(looked[name]) or any_line()
                ctx.set(port.any, bool(mine))
                ctx.set(port.there, looked[name] in mine)
                for field in fields:
                    ctx.set(getattr(port, field), said[field])
                ctx.set(port.stored.used_lines, said["used_lines"])
            ready = not more or rng.random() < 0.5
            ctx.set(block.o.ready, ready)
            done = [name for name in slots if ctx.get(getattr(block, name).done.valid)]
            offer = None
            if ctx.get(block.o.valid):
                offer = {field: int(ctx.get(getattr(block.o.p, field))) for field in fields}
                offer |= {"used_lines": ctx.get(block.o.p.stored.used_lines)}
                assert standing in (None, offer), "an offer does not stand"
            assert len(done) == bool(offer and ready)
            for name in done:
                told = getattr(block, name).done.p
                slot = ctx.get(told.slot)
                both = all(slot in mine for mine in errors.values())
                assert errors[name].pop(slot) == offer
                assert ctx.get(told.spoils) == offer["spoils"]
                met[name] += 1
                met["both"] += both
            standing = offer if offer and not ready else None
            looked = {name: ctx.get(getattr(block, name).slot) for name in slots}
            await ctx.tick()

    simulate(block, bench)
    assert not any(errors.values())
    assert met["lines"] > 20 and met["scales"] > 20 and met["both"] > 4, met
