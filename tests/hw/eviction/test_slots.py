# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Flipped bits in what is known of a page that leaves: one changes neither where it goes nor
whether it is written, two are fatal when they are used."""

import random

import pytest
from amaranth.sim import Simulator
from flips import opened
from simulation import simulate

from kelp_hw.eviction.slots import EvictionSlots
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome

UNIT = named("unit")
SLOT, FRAME, SQUEUE, PAGE, MASK = 2, 5, 3, 6, 0b10010010
TABLES = ("begun", "found", "line_masks", "writes", "releases")


def evict(flips, config=UNIT):
    """One dirty eviction with `flips`, {memory: bits}, once it is known; (write-back, RELEASE,
    faults by kind)."""
    dut = EvictionSlots(config=config)
    top, memories = opened(dut)
    seen = {"corrected": 0, "poisoned": 0, "fatal": 0}
    got = {}

    def memory(name):
        (found,) = (data for path, data in memories.items() if path.split(".")[0] == name)
        return found

    def flip(name):
        rows = memory(name)
        row = 0 if name in ("writes", "releases") else SLOT
        mask = sum(1 << bit for bit in flips.get(name, ()))
        return rows[row], mask

    async def bench(ctx):
        async def cycle():
            await ctx.tick()
            for kind in seen:
                seen[kind] += ctx.get(dut.fault[kind])

        async def send(port, **fields):
            for name, value in fields.items():
                view = port.p
                for part in name.split("__"):
                    view = view[part]
                ctx.set(view, value)
            ctx.set(port.valid, 1)
            await cycle()
            ctx.set(port.valid, 0)

        async def flipped(*names):
            for name in names:
                row, mask = flip(name)
                ctx.set(row, ctx.get(row) ^ mask)

        await cycle()
        await send(
            dut.i_result,
            op__kind=Op.CLAIM,
            op__slot=SLOT,
            op__squeue=SQUEUE,
            op__page=PAGE,
            outcome=Outcome.DONE,
            pool=1,
        )
        await cycle()
        await send(
            dut.i_claim,
            slot=SLOT,
            frame=FRAME,
            dirty=1,
            line_mask__valid=MASK,
            line_mask__poison=MASK,
        )
        await cycle()
        await flipped("begun", "found", "line_masks")
        ctx.set(dut.i_flushed.p, SLOT)
        ctx.set(dut.i_flushed.valid, 1)
        await cycle()
        ctx.set(dut.i_flushed.valid, 0)
        await flipped("writes")
        for _ in range(4):
            if ctx.get(dut.o_write_back.valid):
                break
            await cycle()
        else:
            return
        p = dut.o_write_back.p
        got["write back"] = [ctx.get(x) for x in (p.token, p.squeue, p.page, p.frame)]
        got["masks"] = [ctx.get(p.line_mask.valid), ctx.get(p.line_mask.poison)]
        ctx.set(dut.o_write_back.ready, 1)
        await cycle()
        ctx.set(dut.o_write_back.ready, 0)
        await send(dut.i_written_back, token=SLOT)
        await flipped("releases")
        await cycle()
        p = dut.o_op.p
        assert ctx.get(dut.o_op.valid)
        got["release"] = [
            ctx.get(x) for x in (p.slot, p.squeue, p.page, p.frame, p.pool, p.written)
        ]
        ctx.set(dut.o_op.ready, 1)
        await cycle()
        ctx.set(dut.o_op.ready, 0)
        await cycle()

    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return got, seen


RIGHT = {
    "write back": [SLOT, SQUEUE, PAGE, FRAME],
    "masks": [MASK, MASK],
    "release": [SLOT, SQUEUE, PAGE, FRAME, 1, 1],
}


def width(name):
    _, memories = opened(EvictionSlots(config=UNIT))
    (found,) = (data for path, data in memories.items() if path.split(".")[0] == name)
    return found.shape.width if hasattr(found.shape, "width") else found.shape


def test_an_eviction_without_flips():
    assert evict({}) == (RIGHT, {"corrected": 0, "poisoned": 0, "fatal": 0})


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sampled
def test_one_flip_is_corrected_and_two_are_fatal(name):
    rng, bits = random.Random(name), range(width(name))
    for bit in rng.sample(bits, 2):
        got, seen = evict({name: [bit]})
        assert got == RIGHT and seen["corrected"] and not seen["fatal"], bit
    assert evict({name: rng.sample(bits, 2)})[1]["fatal"]


def test_without_protection_a_dirty_page_is_dropped():
    """What these tests are for."""
    got, seen = evict({"found": [UNIT.frame_bits]}, UNIT.with_(protect=False))
    assert "write back" not in got and not any(seen.values())


#: Sessions and queues are no powers of two.
ODD, COHERENT = (
    named(name).with_(sessions=3, queues=3, write_backs=4) for name in ("unit", "unit_coherent")
)


class Evictions:
    """What `EvictionSlots` knows, in the rough: of each slot its page, pool and frame, and how far
    it is; beside a host that caches, whether it held lines as the page was flushed."""

    def __init__(self, seed, config):
        self.dut, self.rng, self.config = EvictionSlots(config=config), random.Random(seed), config
        self.slots = [None] * config.write_backs
        self.writes, self.releases, self.decided, self.cooling = [], [], [], []
        self.calm = False  #: nothing begins, and the flash does not answer
        self.free, self.count, self.active = (1, 0), [0] * 4, [0] * 5
        kinds = ("written", "failed", "clean", "spoilt", "full", "waits")
        self.seen = dict.fromkeys(kinds + ("held",) * config.coherence, 0)

    def at(self, state):
        return [k for k, slot in enumerate(self.slots) if slot and slot["state"] == state]

    def working(self, page):
        return any(slot and slot["page"] == page for slot in self.slots)

    def page(self):
        busy = [slot["page"] for slot in self.slots if slot]
        if busy and self.rng.random() < 0.5:
            return self.rng.choice(busy)
        return self.rng.randrange(self.config.squeues), self.rng.randrange(self.config.pages)

    def before(self, ctx):
        """Inputs of the cycle; what they do, as functions of none, to be called after it."""
        dut, rng, c, then = self.dut, self.rng, self.config, []
        for port in ("i_result", "i_claim", "i_flushed", "i_error"):
            ctx.set(getattr(dut, port).valid, 0)
        self._results(ctx, then)
        claimed = rng.random() < 0.4 and self.at("claimed")
        if claimed:
            slot = rng.choice(claimed)
            mask = {name: rng.getrandbits(8) for name in ("valid", "poison")}
            found = {"frame": rng.randrange(c.total_frames), "dirty": rng.randrange(2)}
            ctx.set(dut.i_claim.p, found | {"slot": slot, "line_mask": mask})
            ctx.set(dut.i_claim.valid, 1)
            more = found | {"mask": mask, "state": "found", "spoilt": False}
            then.append(lambda slot=slot: self.slots[slot].update(more))
        found = self.at("found")
        clean = held = False
        if c.coherence:  # means something with a flush alone
            held = rng.random() < 0.3
            ctx.set(dut.i_held, held)
        if found and rng.random() < 0.4:
            slot = rng.choice(found)
            known = self.slots[slot]
            ctx.set(dut.i_flushed.p, slot)
            ctx.set(dut.i_flushed.valid, 1)
            failed = known["spoilt"] or held
            clean = failed or not known["dirty"]
            then.append(lambda slot=slot: self._flushed(slot, clean, failed, held))
        frames = [slot["frame"] for slot in self.slots if slot and "frame" in slot]
        if frames and not claimed and rng.random() < 0.4:
            frame = rng.choice(frames) ^ (rng.random() < 0.3) << rng.randrange(c.frame_bits)
            ctx.set(dut.i_error.p, frame)
            ctx.set(dut.i_error.valid, 1)
            then.append(lambda: self._spoil(frame))
        ctx.set(dut.o_write_back.ready, rng.random() < 0.5)
        ctx.set(dut.o_op.ready, rng.random() < 0.5)
        return clean, then

    def _results(self, ctx, then):
        """Of a CLAIM, of a RELEASE, or of something that is neither."""
        dut, rng, c = self.dut, self.rng, self.config
        (valid, slot), page = self.free, self.page()
        op = {"squeue": page[0], "page": page[1], "slot": slot}
        pool, choice = rng.randrange(4), rng.random()
        fields = {"op": op, "pool": pool, "outcome": Outcome.DONE}
        free = valid and self.slots[slot] is None and not self.working(page)
        if self.decided and choice < 0.3:
            slot = self.decided.pop(0)
            op |= {"kind": Op.RELEASE, "slot": slot, "pool": self.slots[slot]["pool"]}
            then.append(lambda slot=slot: self.cooling.append((EvictionSlots.COOL - 1, slot)))
        elif free and choice < 0.6 and not self.calm:
            op |= {"kind": Op.CLAIM}
            known = {"page": page, "pool": pool, "state": "claimed"}
            then.append(lambda slot=slot: self.slots.__setitem__(slot, known))
        elif choice < 0.8:
            kind, outcome = rng.choice(((Op.CLAIM, Outcome.VOID), (Op.READ, Outcome.DONE)))
            op |= {"kind": kind, "slot": rng.randrange(c.write_backs)}
            fields["outcome"] = outcome
        else:
            return
        ctx.set(dut.i_result.p, fields)
        ctx.set(dut.i_result.valid, 1)

    def _flushed(self, slot, clean, failed, held):
        known = self.slots[slot]
        known["state"] = "leaving"
        if clean:
            self.seen["held" if held else "spoilt" if failed else "clean"] += 1
            self.releases.append((slot, failed, held))
        else:
            self.writes.append(slot)

    def _spoil(self, frame):
        for slot in self.slots:
            if slot and slot["state"] == "found" and slot["frame"] == frame:
                slot["spoilt"] = True

    def check(self, ctx, clean, then):
        """Outputs of the cycle, and what of them is taken."""
        dut = self.dut
        assert not ctx.get(dut.fault.as_value())
        under_way = dut.under_way
        assert (ctx.get(under_way.free.valid), ctx.get(under_way.free.slot))[
            : 1 + self.free[0]
        ] == (self.free[: 1 + self.free[0]])
        self.seen["full"] += not self.free[0]
        assert [ctx.get(under_way.count[p]) for p in range(4)] == self.count
        assert ctx.get(dut.idle) == (not any(self.slots))
        wb, op = dut.o_write_back, dut.o_op
        assert ctx.get(wb.valid) == bool(self.writes)
        if self.writes:
            known = self.slots[self.writes[0]]
            assert [ctx.get(wb.p[name]) for name in ("token", "squeue", "page", "frame")] == [
                self.writes[0],
                *known["page"],
                known["frame"],
            ]
            masks = {name: ctx.get(wb.p.line_mask[name]) for name in ("valid", "poison")}
            assert masks == known["mask"]
            if ctx.get(wb.ready):
                slot = self.writes[0]
                then.append(lambda: self.writes.pop(0))
                then.append(lambda slot=slot: self.slots[slot].update(state="in flash"))
        assert ctx.get(op.valid) == bool(self.releases)
        if self.releases:
            slot, failed, held = self.releases[0]
            known, squeue = self.slots[slot], self.slots[slot]["page"][0]
            # What failed has its event, if `written`; what a host held has none.
            written = known["dirty"] or (self.config.coherence and failed)
            names = ("kind", "slot", "failed", "pool", "squeue", "page", "frame", "written")
            assert [ctx.get(op.p[name]) for name in (*names, "session")] == [
                Op.RELEASE,
                slot,
                failed,
                known["pool"],
                *known["page"],
                known["frame"],
                written and not held,
                squeue // self.config.queues,
            ]
            if ctx.get(op.ready):
                then.append(lambda: self.releases.pop(0))
                then.append(lambda slot=slot: self.decided.append(slot))
        waits = self.active[-1] == 0 and not ctx.get(dut.i_written_back.valid)
        if len(set(self.active)) == 1:
            assert ctx.get(dut.quiet) == waits
            self.seen["waits"] += waits and any(self.slots)
        if ctx.get(dut.i_written_back.valid):
            assert ctx.get(dut.i_written_back.ready) == (not clean)
            if not clean:
                p = dut.i_written_back.p
                slot, failed = ctx.get(p.token), bool(ctx.get(p.failed))
                self.seen["failed" if failed else "written"] += 1
                then.append(
                    lambda slot=slot, failed=failed: self.releases.append((slot, failed, False))
                )
                then.append(lambda slot=slot: self.slots[slot].update(state="leaving"))
        for check in (dut.check_victim, dut.check_orphan, dut.check_scrub):
            page = self.page()
            ctx.set(check.page, {"squeue": page[0], "page": page[1]})
        return then


@pytest.mark.parametrize(("seed", "config"), [(1, ODD), (2, COHERENT)])
def test_evictions_side_by_side_are_the_models(seed, config):
    model = Evictions(seed, config)
    dut, rng = model.dut, model.rng

    async def bench(ctx):
        await ctx.tick()
        answering = False
        for cycle in range(800):
            model.calm = cycle % 100 >= 60
            busy = [slot is not None for slot in model.slots]
            clean, then = model.before(ctx)
            done = model.at("in flash")
            if done and not (answering or model.calm) and rng.random() < 0.2:
                ctx.set(dut.i_written_back.p, {"token": rng.choice(done), "failed": cycle % 3 == 0})
                answering = True
            ctx.set(dut.i_written_back.valid, answering)
            then = model.check(ctx, clean, then)
            for check in (dut.check_victim, dut.check_orphan, dut.check_scrub):
                page = ctx.get(check.page.squeue), ctx.get(check.page.page)
                assert ctx.get(check.working) == model.working(page), f"seed {seed}, {cycle}"
            if answering and not clean:
                answering = False
            gone = [slot for left, slot in model.cooling if left == 0]
            model.cooling = [(left - 1, slot) for left, slot in model.cooling if left]
            await ctx.tick()
            for each in then:
                each()
            for slot in gone:
                model.slots[slot] = None
            model.free = (int(not all(busy)), busy.index(False) if not all(busy) else 0)
            model.count = [
                sum(s is not None and s["pool"] == p for s in model.slots) for p in range(4)
            ]
            flash = len(model.at("in flash"))
            model.active = [*model.active[1:], sum(s is not None for s in model.slots) - flash]

    simulate(dut, bench)
    assert min(model.seen.values()) > 5, model.seen


@pytest.mark.parametrize(
    "port, what",
    [
        ("i_flushed", "a flush that no eviction asked for"),
        ("i_written_back", "a page is written unasked"),
        ("i_claim", ""),
    ],
)
def test_what_is_told_out_of_turn_is_seen(port, what):
    """Slot 0 is CLAIMed: what comes next is its frame, and nothing else."""
    dut = EvictionSlots(config=UNIT)

    async def bench(ctx):
        await ctx.tick()
        ctx.set(dut.i_result.p.op.kind, Op.CLAIM)
        ctx.set(dut.i_result.p.outcome, Outcome.DONE)
        for valid in (dut.i_result.valid, getattr(dut, port).valid):
            ctx.set(valid, 1)
            await ctx.tick()
            ctx.set(valid, 0)
        await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    if what:
        with pytest.raises(AssertionError, match=what):
            simulator.run()
    else:
        simulator.run()
