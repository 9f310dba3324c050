# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Select: the ops of whole SELECTs, one after another, and their answers are those of the golden
region; all that is not its own passes."""

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from amaranth.hdl import Shape, Value
from flips import opened
from hollow import hollow, port_of, wires
from select_room import CONFIG, OWNER, Room, compare, device, logged, pins, queries, write
from simulation import cycles_until
from simulation import simulate as simulate_here
from streams import Ends, pump

from kelp_golden.select_region import SelectRegion
from kelp_hw.select import select
from kelp_hw.select.select import Select
from kelp_hw.select.select_control import SelectControl, SelectParts
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.metadata import Event, Op, Outcome, PageState
from kelp_spec.select import ANSWER_FIELDS, SelectMap, record
from kelp_verif.harness import runner
from kelp_verif.harness.compiled import simulate

ORDERED = ("op", "page", "answer", "write", "request")
SIDES = Region.HINT, Region.REGISTER, Region.SELECT


#: What the parts of it are joined by, in the cycle: `part.port`, or a port of its own.
JOINED = """
i_request gather.i
o_request gather.o
sessions window.sessions
sessions control.sessions
now control.now
o_event.0 control.o_event
o_event.1 window.o_event
"""
WITH = {
    "select_port": "summary_axi store.axi ",
    "select_estimates": "dropped control.dropped ",
    "select_tables": """
        frames tables.frames
        values.squeue tables.value_of.squeue
        values.page tables.value_of.page
        tables.value values.value
    """,
}
WHOLE = CONFIG.with_(codec_lanes=32)
#: Configurations with and without each of its ports.
KINDS = {
    "whole": WHOLE,
    "coherent": WHOLE.with_(coherence=True),
    "plain": WHOLE.with_(select_tables=False, select_estimates=False, select_port=False),
}


class Wires:
    """The block, hollow but for the skid buffer of the choice's ops."""

    def __init__(self, monkeypatch, config):
        self.made, self.config, self.rng = {}, config, random.Random(3)
        parts = SelectParts(config)
        names = [name for name, part in vars(parts).items() if part is not None]

        def hollowed(config):
            made = dict.fromkeys(vars(parts))
            for name in names:
                signature = getattr(parts, name).signature
                made[name] = hollow(self.made, name, lambda signature=signature: signature)()
            return SimpleNamespace(**made)

        control = SelectControl(config=config, parts=parts).signature
        monkeypatch.setattr(select, "SelectParts", hollowed)
        kind = hollow(self.made, "control", lambda **_: control)
        monkeypatch.setattr(select, "SelectControl", kind)
        self.dut = Select(config=config)

    def simulate(self, bench):
        self.top, _ = opened(self.dut)  # the parts are made
        simulate_here(self.top, bench)

    def port(self, path):
        return port_of(self.made, self.dut, path)

    def joined(self):
        """(given, seen) of each signal that passes in the cycle."""
        pairs = JOINED + "".join(WITH[name] for name in WITH if getattr(self.config, name))
        ways = []
        for first, second in zip(*[iter(pairs.split())] * 2, strict=True):
            outside = first.split(".")[0] not in self.made
            ways += wires(self.port(first), self.port(second), outside=outside)
        return ways

    def any(self, ctx, *ports):
        """Any bits at each port."""
        for port in ports:
            port = Value.cast(port)
            ctx.set(port, self.rng.getrandbits(len(port)))


def bits(ctx, value):
    return ctx.get(Value.cast(value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled
def test_who_hears_whom(monkeypatch, kind):
    """Each bit, in the cycle: results, lines, faults, lost summaries, and who is at work."""
    room = Wires(monkeypatch, KINDS[kind])
    dut, made, rng, config = room.dut, room.made, room.rng, room.config
    seen = Counter()

    async def bench(ctx):
        parts = {name: made[name] for name in ("window", "gather", "reader", "control")}
        parts |= {"tables": made["tables"]} if config.select_tables else {}
        result, hot, answer, op = dut.i_result, dut.i_hot, dut.i_answer, dut.i_result.p.op
        faulty = [made[name] for name in ("gather", "window", "reader", "engine")]
        faulty += [made["store"]] * config.select_port
        ways = room.joined()
        kinds = [Op.WRITE, Op.REPLAY] * 3 + [Op.SCRUB, Op.CLOSE, Op.OPEN, Op.READ]
        given = {id(source): source for source, _ in ways}.values()
        for _ in range(400):
            room.any(ctx, *given, result.payload, hot.payload, answer.payload)
            if rng.random() < 0.5:
                ctx.set(op.kv_line, rng.randrange(2 * config.half_lines))
            room.any(ctx, answer.valid, dut.o_answer.ready, made["reader"].i_line.ready)
            for block in faulty:
                ctx.set(Value.cast(block.fault), 1 << rng.randrange(3) if rng.random() < 0.1 else 0)
            for block in parts.values():
                ctx.set(block.idle, rng.random() < 0.9)
            ctx.set(op.kind, rng.choice(kinds))
            outcomes = (Outcome.HIT, Outcome.ALLOCATED, Outcome.DONE, Outcome.MISSED)
            ctx.set(result.p.outcome, rng.choice(outcomes))
            ctx.set(result.p.old.state, rng.choice((PageState.COLD, PageState.ABSENT)))
            ctx.set(result.p.word.state, rng.choice((PageState.FETCHING, PageState.RESIDENT)))
            ctx.set(result.valid, rng.random() < 0.8)
            ctx.set(hot.valid, not ctx.get(result.valid))
            if config.select_port:
                lost = made["store"].o_failed
                room.any(ctx, lost.payload, lost.valid)
            await ctx.delay(1e-9)
            for source, to in ways:
                assert ctx.get(to) == ctx.get(source), to.name
            assert ctx.get(dut.idle) == all(ctx.get(block.idle) for block in parts.values())
            told = 0
            for block in faulty:
                told |= bits(ctx, block.fault)
            assert bits(ctx, dut.fault) == told
            for block in (made["reader"], made["control"]):
                to = block.i_result
                assert (ctx.get(to.valid), bits(ctx, to.payload)) == (
                    ctx.get(result.valid),
                    bits(ctx, result.payload),
                )
            _cleared(ctx, room, seen)
            _ended(ctx, room, seen)
            look = ctx.get(answer.p.origin.look)
            for to, own in ((made["reader"].i_line, look), (dut.o_answer, not look)):
                assert ctx.get(to.valid) == (ctx.get(answer.valid) and own)
                assert bits(ctx, to.payload) == bits(ctx, answer.payload)
                if own:
                    assert ctx.get(answer.ready) == ctx.get(to.ready)
            if config.select_port:
                event, names = dut.o_event[2], ("squeue", "page")
                assert ctx.get(event.valid) == ctx.get(lost.valid)
                owner = ctx.get(dut.sessions[ctx.get(lost.p.squeue) // config.queues].ld_id)
                wanted = {name: ctx.get(lost.p[name]) for name in names}
                wanted |= {"code": Event.SUMMARY_LOST, "argument": ctx.get(lost.p.write)}
                wanted |= {"ld_id": owner}
                assert {name: ctx.get(event.p[name]) for name in wanted} == wanted
            await ctx.tick()

    room.simulate(bench)
    assert min(seen.values()) >= 3 and len(seen) >= 6 + config.select_tables, seen


def _cleared(ctx, room, seen):
    """A page whose keys change, or which is scrubbed, has a summary no more."""
    result, hot, half = room.dut.i_result, room.dut.i_hot, room.config.half_lines
    op, outcome, clear = result.p.op, ctx.get(result.p.outcome), room.made["store"].i_clear
    why, page = None, op
    if ctx.get(hot.valid):
        if ctx.get(hot.p.write) and ctx.get(hot.p.kv_line) < half:
            why, page = "hot", hot.p
    elif ctx.get(result.valid):
        key, kind = ctx.get(op.kv_line) < half, ctx.get(op.kind)
        if kind == Op.SCRUB:
            why = "scrub"
        elif key and kind == Op.WRITE and outcome in (Outcome.HIT, Outcome.ALLOCATED):
            why = "write"
        elif key and kind == Op.REPLAY and ctx.get(op.write) > ctx.get(op.failed):
            why = "replay"
    assert ctx.get(clear.valid) == bool(why)
    if why:
        seen[why] += 1
        for name in ("squeue", "page"):
            assert ctx.get(clear.p[name]) == ctx.get(page[name])


def _ended(ctx, room, seen):
    """A session ends, or begins anew; it spends credit of the tables on a read of flash."""
    result, op = room.dut.i_result, room.dut.i_result.p.op
    valid, session = ctx.get(result.valid), ctx.get(op.session)
    ends = valid and ctx.get(op.kind) in (Op.CLOSE, Op.OPEN)
    ends = ends and ctx.get(result.p.outcome) == Outcome.DONE
    for told in (room.made["control"].ended, room.made["window"].forget):
        assert ctx.get(told) == (1 << session if ends else 0)
    seen["ends", session] += ends
    if room.config.select_tables:
        spend = room.made["tables"].i_spend
        states = ctx.get(result.p.old.state), ctx.get(result.p.word.state)
        spends = valid and ctx.get(result.p.changed)
        spends = spends and states == (PageState.COLD, PageState.FETCHING)
        assert (ctx.get(spend.valid), ctx.get(spend.p)) == (spends, session)
        seen["spends"] += spends


def test_ops_take_turns(monkeypatch):
    """Hints and the choice's ops in turn, of these what changes slots first: however many slots are
    given back, a hint waits for one op. None overtakes one that stands. What is fetched goes before
    the hints' pages."""
    room = Wires(monkeypatch, WHOLE)
    dut, made, rng = room.dut, room.made, room.rng
    went = []

    async def bench(ctx):
        ctx.set(made["tables"].idle, 1)
        for name in ("window", "gather", "reader", "control"):
            ctx.set(made[name].idle, 1)
        sources = {"hint": dut.i_op, "look": made["reader"].o_op, "slots": made["control"].o_op}
        pages = {"hint": dut.i_page, "fetch": made["control"].o_fetch}
        standing, stood = set(), None
        chances = {name: 0.5 for name in ("hint", "look", "slots", "fetch", "page")}
        page_stands, held, last = None, [], None
        for cycle in range(1500):
            if cycle % 100 == 0:
                chances = {name: rng.choice((0.1, 0.5, 1)) for name in chances}
                takes = rng.choice((0.3, 0.7, 1))
            offers = [(f"op {name}", port) for name, port in sources.items()]
            offers += [(f"page {name}", port) for name, port in pages.items()]
            for name, port in offers:
                chance = chances["page" if name == "page hint" else name.split()[1]]
                if name not in standing and rng.random() < chance:
                    standing.add(name)
                    room.any(ctx, port.payload)
                ctx.set(port.valid, name in standing)
            for port in (dut.o_op, dut.o_page):
                ctx.set(port.ready, rng.random() < takes)
            await ctx.delay(1e-9)
            assert ctx.get(dut.idle) == (not held)
            ready = {"hint": "op hint" in standing, "look": "op look" in standing, "slots": held}
            if stood is None:
                choice = ("slots", "look")
                turn = (*choice, "hint") if last == "hint" else ("hint", *choice)
                stood = next((name for name in turn if ready[name]), None)
            assert ctx.get(dut.o_op.valid) == (stood is not None), cycle
            moved = ctx.get(dut.o_op.valid) and ctx.get(dut.o_op.ready)
            if stood is not None:
                payload = held[0] if stood == "slots" else bits(ctx, sources[stood].payload)
                assert bits(ctx, dut.o_op.payload) == payload, (cycle, stood)
            for name in ("hint", "look"):
                if f"op {name}" in standing:
                    assert ctx.get(sources[name].ready) == bool(moved and stood == name)
            if moved:
                went.append(stood)
                last = stood
                if stood == "slots":
                    held.pop(0)
                else:
                    standing.remove(f"op {stood}")
            if "op slots" in standing and ctx.get(sources["slots"].ready):
                held.append(bits(ctx, sources["slots"].payload))
                standing.discard("op slots")
            stood = None if moved else stood
            if page_stands is None:
                offered = [name for name in ("fetch", "hint") if f"page {name}" in standing]
                page_stands = offered[0] if offered else None
            assert ctx.get(dut.o_page.valid) == (page_stands is not None)
            moved = page_stands and ctx.get(dut.o_page.ready)
            if page_stands:
                assert bits(ctx, dut.o_page.payload) == bits(ctx, pages[page_stands].payload)
            for name, port in pages.items():
                if f"page {name}" in standing:
                    assert ctx.get(port.ready) == bool(moved and page_stands == name)
            if moved:
                standing.discard(f"page {page_stands}")
                page_stands = None
            await ctx.tick()

    room.simulate(bench)
    assert min(map(went.count, ("hint", "look", "slots"))) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_writes_wait_for_requests_and_for_summaries_that_starve(monkeypatch, kind):
    """A RwD goes on where no Req stands before it, or a coherent front takes both in any order; one
    that is offered stays, also where a summary has begun to starve meanwhile. While one waits no
    Req is taken, but past one that has no place, until one that may have had it has gone."""
    room = Wires(monkeypatch, KINDS[kind])
    dut, made, rng, config = room.dut, room.made, room.rng, room.config
    seen = Counter()

    async def bench(ctx):
        gather, region = made["gather"], config.aperture_bits - 6
        stops = stands = passed = stuck = remains = False
        for _ in range(800):
            if not remains:
                room.any(ctx, dut.i_write.valid, dut.i_write.payload)
            room.any(ctx, dut.o_write.ready, dut.o_request.ready)
            before = rng.random() < 0.3 and not stands
            ctx.set(gather.o.valid, before)
            above = rng.choice(list(Region))
            ctx.set(gather.o.payload.address, above << region | rng.getrandbits(region))
            if not config.coherence:
                stuck = rng.random() < 0.5 and not stands
                ctx.set(dut.stuck, stuck)
            starves = 0
            if config.select_port:
                starves = int(rng.random() < 0.5)
                ctx.set(made["store"].starves, starves)
            await ctx.delay(1e-9)
            held = (before and not config.coherence) or stuck
            valid, ready = ctx.get(dut.i_write.valid), ctx.get(dut.o_write.ready)
            goes = valid and not held and not stops
            assert ctx.get(dut.o_write.valid) == goes
            assert bits(ctx, dut.o_write.payload) == bits(ctx, dut.i_write.payload)
            taken = ready and not held and not stops
            assert not valid or ctx.get(dut.i_write.ready) == taken
            waits = valid and not taken and not config.coherence
            assert ctx.get(gather.hold) == (waits and (not stuck or passed))
            seen["stuck", passed] += bool(waits and stuck)
            remains = bool(valid and not taken)
            takes = before and ctx.get(dut.o_request.ready) and above in SIDES
            passed = bool(waits and (passed or takes))
            stands = bool(goes and not ready)
            seen[bool(goes), bool(stops)] += 1
            stops = starves and (stops or not stands)
            await ctx.tick()

    room.simulate(bench)
    assert seen[True, False] > 30 and (seen[False, True] > 30) == config.select_port, seen
    assert config.coherence or min(seen["stuck", False], seen["stuck", True]) > 10, seen


def drawn(rng, stream, **values):
    """Any payload of a stream, with some fields (of fields) as they are said to be."""
    shape = stream.payload.shape()
    bits = rng.getrandbits(shape.size)
    for path, value in values.items():
        low, inner = 0, shape
        for part in path.split("__"):
            low, inner = low + inner[part].offset, inner[part].shape
        mask = (1 << Shape.cast(inner).width) - 1
        bits = bits & ~(mask << low) | value << low
    return shape.from_bits(bits)


class Passing:
    """A block without a SELECT, any payloads on all its streams, and registers behind it. It is
    not compiled: a bug planted in what passes shows before anything is built."""

    def __init__(self, seed):
        print("seed", seed)
        self.rng, self.map = random.Random(seed), SelectMap(CONFIG)
        self.dut = dut = Select(config=CONFIG.with_(protect=False))
        self.sends = {f"i_{name}": [] for name in (*ORDERED, "access")}
        regions = [each for each in Region if each != Region.GATHER]
        for n in range(50):
            place = self.rng.getrandbits(CONFIG.aperture_bits - 6)
            region = self.rng.choice(regions) << CONFIG.aperture_bits - 6
            told = {"request": {"address": region | place}, "answer": {"origin__look": n % 5 == 3}}
            for name in ORDERED:
                stream = getattr(dut, f"i_{name}")
                self.sends[f"i_{name}"].append(drawn(self.rng, stream, **told.get(name, {})))
            own = int(self.rng.random() < 0.6)
            owner = self.rng.choice([OWNER, OWNER + 1])
            fields = {"select": own, "offset": self.rng.randrange(64), "ld_id": owner}
            closed = fields["offset"] >> self.map.offset_bits - 1
            if owner == OWNER and not closed:
                fields["write"] = 0  # or a SELECT begins
            self.sends["i_access"].append(drawn(self.rng, dut.i_access, **fields))
        self.registers, self.served = [], []  # what they were asked for; what they answered
        self.phase, self.events, self.idle = "rests", [], []

    async def begin(self, ctx, dut):
        ctx.set(dut.sessions[0], {"open": 1, "ld_id": OWNER})
        ctx.set(dut.sessions[1], {"open": 1, "closing": 1, "ld_id": OWNER})
        await cycles_until(ctx, dut.idle, limit=200)

    def watch(self, ctx):
        """The registers, which answer an access while it stands and let it go behind that."""
        dut = self.dut
        self.phase = {"taken": "ends", "ends": "rests"}.get(self.phase, self.phase)
        if self.phase == "rests" and ctx.get(dut.o_access.valid) and self.rng.random() < 0.5:
            self.registers.append(ctx.get(dut.o_access.p).as_bits())
            self.served.append(drawn(self.rng, dut.i_served).as_bits())
            ctx.set(dut.i_served.p, dut.i_served.p.shape().from_bits(self.served[-1]))
            self.phase = "answers"
        ctx.set(dut.i_served.valid, self.phase == "answers")
        ctx.set(dut.o_access.ready, self.phase == "ends")
        if self.phase == "answers" and ctx.get(dut.i_served.ready):
            self.phase = "taken"
        self.idle.append(ctx.get(dut.idle))
        for k, event in enumerate(dut.o_event):
            if ctx.get(event.valid):
                told = event.p.shape().members
                self.events.append((k, {name: ctx.get(event.p[name]) for name in told}))

    def run(self):
        ends = Ends(
            sends=self.sends,
            takes=("o_served", *(f"o_{name}" for name in ORDERED)),
            offer=0.4,
            take=0.6,
            before=self.begin,
            watch=self.watch,
        )
        return pump(self.dut, ends, cycles=2000, quiet=10)


def test_what_is_not_its_own_passes():
    """Whole, in order, and but for requests in the same cycle; nothing of it goes elsewhere. Of its
    own are lines for LOOKs, and accesses to its region, which others than the owner's make
    events."""
    room = Passing(1)
    seen = room.run()
    assert {len(seen[f"i_{name}"]) for name in (*ORDERED, "access")} == {50}
    for name in ORDERED:
        came = seen[f"i_{name}"]
        if name == "answer":
            looks = [t for t in came if t.item.origin.look]
            assert looks and all(t.taken == t.offered for t in looks)
            came = [t for t in came if not t.item.origin.look]
        went = seen[f"o_{name}"]
        assert [t.item.as_bits() for t in went] == [t.item.as_bits() for t in came]
        if name in ("op", "page", "answer"):
            assert [t[:2] for t in went] == [t[:2] for t in came]
    own, others = [], []
    for t in seen["i_access"]:
        (own if t.item.select else others).append(t)
    assert room.registers == [t.item.as_bits() for t in others]
    served, events = iter(room.served), []
    for t, told in zip(seen["i_access"], seen["o_served"], strict=True):
        assert t.offered <= told.taken < t.taken
        if not t.item.select:
            assert told.item.as_bits() == next(served)
            continue
        answer = {name: t.item[name] for name in ("write", "tag", "ld_id")} | {"data": 0}
        assert {name: told.item[name] for name in answer} == answer
        session = t.item.offset >> room.map.offset_bits - 1
        if session or t.item.ld_id != OWNER:
            why = Event.CLOSED_SESSION if session else Event.FOREIGN_LD
            event = {"code": why, "ld_id": t.item.ld_id, "squeue": session * CONFIG.queues}
            events.append((1, event | {"page": 0, "argument": 0}))
    assert room.events == events and len({told["code"] for _, told in events}) == 2
    busy = {n for t in own for n in range(t.offered, t.taken + 1)}
    for came, went in zip(seen["i_request"], seen["o_request"], strict=True):
        busy.update(range(came.offered, went.taken + 1))
    assert room.idle == [n not in busy for n in range(len(room.idle))]


@pytest.mark.parametrize(("offer", "take", "session"), [(1.0, 1.0, 0), (0.5, 0.6, 1)])
def test_choices_are_the_golden_ones(offer, take, session):
    """Also while hints name pages, and where some are fetched."""
    bells = [{}, {"most": 0}, {"newest": 0}, {"tokens": 3}, {"fetch": 1}, {"speculative": 1}]

    def between(room, makes, n):
        for page in (1, 4, 6) if n == 3 else ():
            for words in (made.tracker.words for made in makes):
                key = session * CONFIG.queues * CONFIG.pages + page
                words[key] = words[key]._replace(state=int(PageState.COLD))

    at = {"around": {"session": session}, "offer": offer, "take": take, "between": between}
    room, _ = compare(bells, **at)
    assert {name for name, *_ in room.ops} == {"LOOK", "HOLD", "UNHOLD"}
    assert bool(room.passed_pages) == room.hinted and len(room.fetched) > 2


def test_it_is_idle_when_its_last_op_has_gone():
    """However long that waits: slots are given back when their time is over, and nobody asks."""
    made = device()
    room, region = Room(made, take=0.15), SelectRegion(device())

    async def host(room):
        await room.select(region, {"sequence": 1, "hold": 8}, queries())
        assert len(pins(made)) == 6
        while not room.ctx.get(room.dut.idle):  # its turn of the tables
            await room.cycle()
        room.ctx.set(room.dut.now, 300)
        for _ in range(300):
            await room.cycle()
        assert not pins(made) and room.ctx.get(room.dut.idle)

    room.run(host)


#: Results of ops, or what M0's shortcut says of hot pages, and whether a summary is made anew: of
#: pages 1, 2, and so on.
TOLD = (
    (1, {"kind": Op.WRITE, "outcome": Outcome.HIT}),
    (1, {"kind": Op.WRITE, "outcome": Outcome.ALLOCATED, "kv_line": 3}),
    (0, {"kind": Op.WRITE, "outcome": Outcome.HIT, "kv_line": 4}),
    (0, {"kind": Op.WRITE, "outcome": Outcome.MISSED}),
    (0, {"kind": Op.READ, "outcome": Outcome.HIT}),
    (1, {"kind": Op.REPLAY, "outcome": Outcome.HIT, "write": 1}),
    (0, {"kind": Op.REPLAY, "outcome": Outcome.HIT, "write": 0}),
    (0, {"kind": Op.REPLAY, "outcome": Outcome.HIT, "write": 1, "failed": 1}),
    (1, {"kind": Op.SCRUB, "kv_line": 5}),
    (1, {"write": 1, "kv_line": 3}),
    (0, {"write": 1, "kv_line": 4}),
    (0, {"write": 0}),
    (0, {"kind": Op.REPLAY, "outcome": Outcome.HIT, "write": 1, "kv_line": 7}),
    (0, {"kind": Op.CLOSE, "outcome": Outcome.DROPPED}),
    (0, {"kind": Op.READ, "outcome": Outcome.ALLOCATED, "write": 1}),
    (0, {"kind": Op.CLOSE, "session": 1}),
    (0, {"kind": Op.OPEN, "session": 1}),
)


def test_what_clears_a_summary():
    """Keys that are written, and a scrub; neither values, nor what was not written, nor what is not
    told. And what becomes of another session, or does not, does not end this one."""
    makes, rng = (device(pages=20), device(pages=20)), np.random.default_rng(1)
    rows = [rng.standard_normal((4, 32)).astype("<f2") for _ in range(20)]  # of its pages
    room, region = Room(makes[0], cycles=60_000), SelectRegion(makes[1])
    ops, bell, again = logged(region), {"newest": 19}, []

    async def host(room):
        await room.select(region, bell | {"sequence": 1}, queries())
        for page, (clears, told) in enumerate(TOLD, 1):
            if "kind" in told:
                room.tell(page=page, **told)
            else:
                room.hot_page = {"page": page} | told
            for _ in range(2):
                await room.cycle()
            if clears:
                again.append(page)
                write(makes[1], 0, page, rows[page])
        never = {"page": 3, "kind": Op.WRITE}
        room.ctx.set(room.dut.i_result.p, {"op": never, "outcome": Outcome.HIT})
        room.ctx.set(room.dut.i_hot.p, {"page": 3, "write": 1})
        for _ in range(3):
            await room.cycle()
        room.ops.clear(), ops.clear()
        found, wanted = await room.select(region, bell | {"sequence": 2})
        assert found == wanted

    room.run(host)
    assert room.ops == ops
    looks = [op for op in ops if op[0] == "LOOK"][: 4 * len(again)]
    assert looks == [("LOOK", 0, page, n) for page in again for n in range(4)]


def test_hints_without_pause_keep_no_choice_waiting():
    """LOOKs take turns with them, and what changes slots goes before them."""
    room, region, times = Room(device()), SelectRegion(device()), []

    async def host(room):
        for sequence in (1, 2, 3):  # the first one makes summaries
            room.hints, begun = sequence == 3, room.left
            found, wanted = await room.select(region, {"sequence": sequence}, queries())
            assert found == wanted
            times.append(begun - room.left)
            assert record(ANSWER_FIELDS, found[0])["count"] > 2

    room.run(host)
    assert times[2] < 2 * times[1], times


def test_a_summary_that_memory_loses_is_told_to_its_owner():
    for session in (0, 1):
        made = device(session=session)
        room = Room(made, errs=lambda writes, _: writes, session=session)
        region = SelectRegion(device(session=session))

        async def host(room, region=region, session=session):
            await room.select(region, {"sequence": 1}, queries())
            assert room.losers and set(room.losers) == {OWNER}
            assert {squeue for squeue, _ in room.named} == {session * CONFIG.queues}
            assert {page for _, page in room.named} <= set(range(10))
            assert set(room.events) == {(Event.SUMMARY_LOST, 1)}

        room.run(host)


def test_keys_in_each_cycle_keep_no_choice_waiting_for_a_failing_memory():
    """Those of a page beside one whose summary was not written."""
    room, region = Room(device(), errs=lambda writes, _: writes), SelectRegion(device())

    async def host(room):
        room.written = 1, 3
        found, _ = await room.select(region, {"sequence": 1}, queries())
        assert record(ANSWER_FIELDS, found[0])["sequence"] == 1
        assert room.losers and room.passed

    room.run(host)


def test_gather():
    """A slot's address becomes its page's, in the region of the window; all others pass or lie
    outside the map."""
    made = device()
    room, region = Room(made, take=0.7), SelectRegion(device())
    places, opened = AddressMap(CONFIG), []

    async def host(room):
        found, _ = await room.select(region, {"sequence": 1}, queries())
        header = record(ANSWER_FIELDS, found[0])
        generation = header["generation"]
        for slot, (page, _) in enumerate(region.queues[0].pages):
            for kv, line in ((0, 0), (1, 3)):
                asked = places.gather(0, 0, generation, kv, slot, line)
                window = Region.GATHER << CONFIG.aperture_bits
                of_page = places.encode(KvAddress(0, 0, page, kv, line))
                assert await room.gather(asked) == of_page | window
        empty = (
            places.gather(0, 0, generation, 0, header["count"], 0),
            places.gather(0, 0, generation + 1, 0, 0, 0),
            places.gather(0, 1, generation, 0, 0, 0),
            places.gather(1, 0, generation, 0, 0, 0),
        )
        for asked in empty:
            assert await room.gather(asked) >> CONFIG.aperture_bits == Region.OUTSIDE
        for asked in (places.hint_base, places.encode(KvAddress(1, 3, 9, 1, 2))):
            assert await room.gather(asked) == asked
        # Behind a release nothing is left.
        await room.select(region, {"sequence": 2, "release": 1})
        asked = places.gather(0, 0, generation, 0, 0, 0)
        assert await room.gather(asked) >> CONFIG.aperture_bits == Region.OUTSIDE
        opened.append(generation)

    room.run(host)
    assert opened and not pins(made)


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (1.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
def test_reads_and_writes_reach_ingress_in_the_order_in_which_they_were_taken(offer, take):
    """Of two in one cycle the write first; neither channel starves the other."""
    sends = {
        "i_request": [{"tag": n} for n in range(60)],
        "i_write": [{"tag": n} for n in range(60)],
    }
    ends = Ends(sends=sends, takes=("o_request", "o_write"), offer=offer, take=take)
    dut = runner.made(Select, config=CONFIG)
    seen = pump(dut, ends, cycles=int(400 / offer / take), quiet=200, compiled=simulate)

    def order(prefix):
        writes, reads = seen[prefix + "_write"], seen[prefix + "_request"]
        both = [(t.taken, 0, n) for n, t in enumerate(writes)]
        both += [(t.taken, 1, n) for n, t in enumerate(reads)]
        return [(channel, n) for _, channel, n in sorted(both)]

    assert len(order("o")) == 120 and order("o") == order("i")
    assert [t.item.tag for t in seen["o_request"]] == list(range(60))
    taken = [t.taken for t in seen["i_write"]]
    assert max(b - a for a, b in zip(taken, taken[1:], strict=False)) < 40 / offer / take
    if offer == take == 1.0:  # two messages in two cycles
        assert len({t.taken for name in ("i_request", "i_write") for t in seen[name]}) <= 122
