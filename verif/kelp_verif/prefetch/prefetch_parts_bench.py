# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Parts of the prefetcher: the queue against a sorted list, the throttle and the source of the
previous step against their models."""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.prefetch import Throttle
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import DropReason
from kelp_hw.prefetch.fifo import candidate_layout, drop_layout
from kelp_hw.prefetch.sources import access_layout
from kelp_spec.config import named
from kelp_spec.metadata import PrefetchSource

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .prefetch_tb import SOURCES


# - the queue --------------------------------------------------------------------------------------
class SortedList:
    """What the queue should hold, cycle by cycle, as a list of [distance, candidate, dead]."""

    def __init__(self, slots):
        self.slots, self.held, self.out, self.crowded = slots, [], None, None

    def cycle(self, new, ready, cancel):
        """One clock edge. Returns (drop, cancelled): (source, reason) of the one dropped, source of
        a dead one whose turn came. `crowded` is then the queue of one for which there was no
        place."""
        drop = cancelled = None
        free = self.out is None or ready
        leaver = self.held[0] if self.held and (free or self.held[0][2]) else None
        if leaver:
            self.held.pop(0)
        if new:
            page = new["squeue"], new["page"]
            twins = [
                i
                for i, (_, h, dead) in enumerate(self.held)
                if not dead and (h["squeue"], h["page"]) == page
            ]
            gone = [
                h
                for h in (self.out, leaver and not leaver[2] and leaver[1])
                if h and (h["squeue"], h["page"]) == page
            ]
            if gone or twins and self.held[twins[0]][0] <= new["distance"]:
                drop = new["source"], DropReason.DUPLICATE
                new = None
            elif twins:
                drop = self.held.pop(twins[0])[1]["source"], DropReason.DUPLICATE
        if new:
            place = next(
                (i for i, h in enumerate(self.held) if h[0] > new["distance"]), len(self.held)
            )
            self.held.insert(place, [new["distance"], new, False])
            if len(self.held) > self.slots:
                _, last, dead = self.held.pop()
                drop = last["source"], DropReason.CANCELLED if dead else DropReason.FULL
                self.crowded = None if dead else last["squeue"]
        for h in self.held:
            h[2] |= cancel >> h[1]["session"] & 1
        if leaver and leaver[2]:
            cancelled = leaver[1]["source"]
        if free:
            self.out = leaver[1] if leaver and not leaver[2] else None
        return drop, cancelled


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def queue_against_list(dut):
    config = named(bench_params()["config"])
    rng = random.Random(cocotb.RANDOM_SEED)
    packing, drops = Packing(candidate_layout(config)), Packing(drop_layout(config))
    model = SortedList(config.prefetch_slots)
    await start_clock(dut)
    dut.i__valid.value = dut.i__payload.value = dut.o__ready.value = dut.cancel.value = 0
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    seen = Counter()
    coming = None  # a candidate is compared for a cycle before it goes in
    p_new, p_ready, pages = 1.0, 0.5, 4
    for n in range(bench_params()["cycles"]):
        if n % 200 == 0:
            p_new, p_ready, pages = (
                rng.choice([0.3, 0.8, 1.0]),
                rng.choice([0.0, 0.1, 0.6, 1.0]),
                rng.choice([2, config.pages]),
            )
        new = None
        if rng.random() < p_new:
            session = rng.randrange(config.sessions)
            new = {
                "session": session,
                "squeue": session * config.queues + rng.randrange(config.queues),
                "page": rng.randrange(pages),
                "source": rng.choice(SOURCES),
                "distance": rng.choice([0, 1, 1, 2, 3, 63, 1 << rng.randrange(6)]),
            }
        ready = int(rng.random() < p_ready)
        cancel = rng.getrandbits(config.sessions) if rng.random() < 0.02 else 0
        dut.i__valid.value = int(new is not None)
        dut.i__payload.value = packing.pack(**new) if new else rng.getrandbits(packing.width)
        dut.o__ready.value, dut.cancel.value = ready, cancel
        await ReadOnly()
        shown = packing.unpack(dut.o__payload.value) if dut.o__valid.value == 1 else None
        assert shown == model.out, n
        assert int(dut.count.value) == len(model.held) + (coming is not None), n
        # A candidate that dies in the cycle in which it is pushed out counts either way; the model
        # says FULL, as the queue does.
        drop, cancelled = model.cycle(coming, ready, cancel)
        coming = new
        got = drops.unpack(dut.o_drop__payload.value) if dut.o_drop__valid.value == 1 else None
        assert (got and (got["source"], got["reason"])) == drop, n
        if config.select_estimates and drop and drop[1] == DropReason.FULL:
            assert got["squeue"] == model.crowded, n
        assert (
            int(dut.o_cancel__payload.value) if dut.o_cancel__valid.value == 1 else None
        ) == cancelled, n
        seen[drop and drop[1].name] += 1
        seen["CANCEL"] += cancelled is not None
        seen["LEFT"] += shown is not None and ready
        await RisingEdge(dut.clk)
    record(seen=dict(seen))


# - the throttle and the previous step -------------------------------------------------------------
@cocotb.test(timeout_time=5, timeout_unit="ms")
async def throttle_against_model(dut):
    """Offers, issues, uses and settling in any mixture of one cycle."""
    rng = random.Random(cocotb.RANDOM_SEED)
    model = {s: Throttle() for s in SOURCES}
    await start_clock(dut)
    for name in ("offer", "issued", "useful"):
        getattr(dut, f"{name}__payload").value = getattr(dut, f"{name}__valid").value = 0
    dut.settle.value = 0
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    p_useful, refused = 0.5, 0
    for n in range(bench_params()["cycles"]):
        if n % 3000 == 0:
            p_useful = (0.02, 0.5, 0.2, 0.8)[n // 3000 % 4]
        source = {name: rng.choice(SOURCES) for name in ("offer", "issued", "useful")}
        valid = {
            "offer": rng.random() < 0.6,
            "issued": rng.random() < 0.9,
            "useful": rng.random() < p_useful,
        }
        if n < 512:
            # The use in the last cycle of a period counts for the next one: with 63 more it is
            # enough.
            source["issued"] = source["useful"] = PrefetchSource.WINDOW
            valid["issued"], valid["useful"] = True, 255 <= n < 319
        for name in source:
            getattr(dut, f"{name}__payload").value, getattr(dut, f"{name}__valid").value = (
                int(source[name]),
                int(valid[name]),
            )
        settle = rng.random() < 0.3
        dut.settle.value = int(settle)
        await ReadOnly()
        credit = int(dut.credit.value)
        assert [credit >> 7 * s & 127 for s in SOURCES] == [model[s].credit for s in SOURCES], n
        if valid["offer"]:
            allowed = model[source["offer"]].offer()
            assert (dut.allow.value == 1) == allowed, n
            refused += not allowed
        if settle:
            for throttle in model.values():
                throttle.settle()
        if valid["issued"]:
            model[source["issued"]].issue()
        if valid["useful"]:
            model[source["useful"]].use()
        await RisingEdge(dut.clk)
    record(throttled=refused)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def every_credit_of_each_source(dut):
    """Alone, each source's credit falls from 64 to 1 and climbs to 33, one by one; the others' stay
    as they are."""
    model = {s: Throttle() for s in SOURCES}
    await start_clock(dut)
    dut.offer__valid.value = dut.offer__payload.value = 0
    dut.issued__valid.value = dut.useful__valid.value = 0
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    dut.settle.value = 1
    for source in SOURCES:
        dut.issued__payload.value = dut.useful__payload.value = int(source)
        for period in range(7 + 32):
            uses = 64 if period >= 7 else 63
            dut.issued__valid.value = dut.useful__valid.value = 1
            for n in range(256):
                if n == uses:
                    dut.useful__valid.value = 0
                if n < uses:
                    model[source].use()
                model[source].issue()
                await RisingEdge(dut.clk)
            model[source].settle()
            dut.issued__valid.value = 0
            for _ in range(2):
                await RisingEdge(dut.clk)
            credit = int(dut.credit.value)
            assert [credit >> 7 * s & 127 for s in SOURCES] == [model[s].credit for s in SOURCES]
        assert model[source].credit == 33


class PreviousTraffic:
    """What comes to the source of the previous step: accesses and steps, of sessions that close for
    a while."""

    def __init__(self, config, rng):
        self.config, self.rng, self.serial = config, rng, 0
        self.closed = set()
        self.place = None  #: (squeue, page) of the last access

    def next(self, n):
        """Of cycle `n`: "access", "step" or None, and its session."""
        c, rng = self.config, self.rng
        if n % 150 == 0:
            self.p_access, self.p_step, self.p_ready = (
                rng.choice([0.05, 0.3, 0.9]),
                rng.choice([0.005, 0.05]),
                rng.choice([0.1, 0.6, 1.0]),
            )
        if n % 50 == 0:
            self.closed = {s for s in range(c.sessions) if rng.random() < 0.15}
        session = rng.randrange(c.sessions)
        if session in self.closed:
            return None, session
        if rng.random() < self.p_step:
            return "step", session
        if rng.random() >= self.p_access:
            return None, session
        self.serial += 1
        queue = self.serial // c.pages % c.queues
        self.place = session * c.queues + queue, self.serial % c.pages
        return "access", session


async def _start_previous(dut):
    await start_clock(dut)
    for port in (dut.i__valid, dut.i__payload, dut.step__valid, dut.step__payload):
        port.value = 0
    dut.quiet.value = dut.o__ready.value = dut.live.value = 0
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    dut.rst.value = 0


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def previous_against_lists(dut):
    """A walk offers what its step accessed last, in order; what new accesses have overwritten is
    left out and counted, nothing else is. A walk ends with what stands on `o` where its session
    steps again or closes; a session that closes has nothing to offer."""
    params = bench_params()
    config, size = named(params["config"]).with_(**params.get("fields", {})), params["entries"]
    rng = random.Random(cocotb.RANDOM_SEED)
    access, candidate = Packing(access_layout(config)), Packing(candidate_layout(config))
    await _start_previous(dut)
    traffic = PreviousTraffic(config, rng)
    rings = [deque(maxlen=size) for _ in range(config.sessions)]
    # session → what its ended step accessed; in the order of arrival
    noted = {}
    fresh = [0] * config.sessions  # accesses since then
    later = 0  # accesses of the walk's session since the step that it is of
    walk, walker = deque(), None
    at = length = silent = offered = overwritten = overflows = rested = stopped = 0
    for n in range(bench_params()["cycles"]):
        event, session = traffic.next(n)
        closed, (squeue, page) = traffic.closed, traffic.place or (0, 0)
        dut.live.value = sum(1 << s for s in range(config.sessions) if s not in closed)
        dut.i__payload.value = access.pack(session=session, squeue=squeue, page=page)
        dut.i__valid.value, dut.step__valid.value, dut.step__payload.value = (
            int(event == "access"),
            int(event == "step"),
            session,
        )
        # Only between walks, so that what is on `o` is of the walk that we know of.
        quiet, ready = not walk and rng.random() < 0.3, int(rng.random() < traffic.p_ready)
        dut.quiet.value, dut.o__ready.value = int(quiet), ready
        await ReadOnly()
        busy = event or noted or walk
        rested = 0 if busy else rested + 1
        # What is left of a walk may have been lost in cycles of overflow.
        assert dut.idle.value != 1 or not (event or noted or dut.o__valid.value == 1), n
        assert dut.idle.value == 1 or rested <= 5, n
        stops = bool(walk) and (walker in noted or walker in closed)
        overflow = event == "access" and len(rings[session]) == size
        lost = dut.lost.value == 1
        if walk and dut.o__valid.value == 0 and lost and not overflow:
            walk.popleft()
            at += 1
            overwritten += 1
            assert later > size - length + at - 2, "an entry that is still there was left out"
        elif dut.o__valid.value == 1 and ready:
            c = candidate.unpack(dut.o__payload.value)
            assert walk, "an offer without a walk"
            # A loss that coincides with an overflow shows as one pulse.
            while (c["squeue"], c["page"]) != walk[0]:
                walk.popleft()
                at += 1
                overwritten += 1
                assert later > size - length + at - 2, "an entry that is still there was left out"
            walk.popleft()
            at += 1
            told = c["session"], c["source"], c["distance"]
            assert told == (walker, PrefetchSource.PREVIOUS, 1)
            offered += 1
        assert lost or not overflow
        overflows += overflow
        if stops:
            stays = dut.o__valid.value == 1 and not ready
            c = candidate.unpack(dut.o__payload.value)
            kept = [page for page in walk if page == (c["squeue"], c["page"])]
            assert kept or not stays, "an offer that is none of the walk's"
            walk = deque(kept[:1] if stays else [])
            stopped += 1
        if dut.start.value == 1:
            walker = min([s for s in noted if s > (walker or 0)] or noted)  # in turn
            walk = noted.pop(walker)
            later = fresh[walker]
            at, length = 0, len(walk)
            if event == "step" and session == walker and rings[session]:
                walk.clear()  # ended before it began
        if event == "access":
            rings[session].append((squeue, page))
            fresh[session] += 1
            later += session == walker
        elif event == "step" and rings[session]:
            noted[session], rings[session], fresh[session] = rings[session], deque(maxlen=size), 0
        for each in closed:
            rings[each] = deque(maxlen=size)
            noted.pop(each, None)
        silent = 0 if dut.o__valid.value == 1 or dut.start.value == 1 else silent + 1
        if walk and silent > size + 8:
            # the last ones, in cycles of overflow
            at, overwritten = at + len(walk), overwritten + len(walk)
            walk.clear()
            assert later > size - length + at - 2, "an entry that is still there was left out"
        await RisingEdge(dut.clk)
    record(offered=offered, overwritten=overwritten, overflows=overflows, stopped=stopped)
