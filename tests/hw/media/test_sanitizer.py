# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A sanitize beside a host's traffic: sessions are closed, then all is erased, and the host is
answered meanwhile, each request once."""

import itertools
import random
from collections import Counter, deque

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.media.sanitizer import Sanitizer
from kelp_spec.address import AddressMap
from kelp_spec.config import named
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq, M2SRwD
from kelp_spec.registers import SESSION_BASE, SESSION_STRIDE, SessionCommand

UNIT = named("unit_cxl").with_(sessions=3)
COHERENT = named("unit_cxl_coherent").with_(sessions=3)
BASE = AddressMap(UNIT).register_base // 64
LINES = {BASE + (SESSION_BASE + SESSION_STRIDE * s) // 64: s for s in range(UNIT.sessions)}
SANITIZE, INJECT = 3, 1
PATIENCE = named_cxlio("joined").patience // 2
READS = (M2SReq.MEM_RD, M2SReq.MEM_RD_DATA)
SILENT = M2SReq.MEM_SPEC_RD


def _same(ctx, payload, fields):
    return {name: ctx.get(payload[name]) for name in fields} == fields


class Bench:
    """An endpoint with registers alone, a host that never rests, and an eraser. `open`: sessions
    that are. Coherent, a session closes only while the host is let go on."""

    def __init__(self, seed, *, open=(0, 2), erase_fails=False, coherent=False):
        config = COHERENT if coherent else UNIT
        self.dut, self.rng, self.seed = Sanitizer(config=config), random.Random(seed), seed
        self.open, self.closing, self.coherent = set(open), {}, coherent
        self.erase_fails = erase_fails
        self.tag = 0
        self.offered, self.asked, self.got = {}, {}, {}
        self.pending = deque()  # due, channel, tag, LD-ID, other fields
        self.own, self.standing = [], {}
        self.answers, self.passed = [], []
        self.erasing, self.erased = 0, 0
        self.cycle = 0

    def _host(self, ctx):
        """Requests of every opcode, of any LD-ID."""
        dut, rng = self.dut, self.rng
        for name in ("i_req", "i_rwd"):
            port = getattr(dut, name)
            if name not in self.offered and len(self.pending) < 8 and rng.random() < 0.4:
                self.tag += 1
                opcode = rng.choice([*(M2SReq if name == "i_req" else M2SRwD)])
                fields = {"opcode": opcode, "tag": self.tag, "ld_id": rng.randrange(16)}
                fields["snp_type"] = rng.choice((0, 3)) if self.coherent else 0
                self.offered[name] = fields
                ctx.set(port.p, fields | {"address": rng.randrange(64)})
            ctx.set(port.valid, name in self.offered)
        for name in ("o_req", "o_rwd", "o_drs", "o_ndr"):
            ctx.set(getattr(dut, name).ready, rng.random() < 0.6)

    def _answers(self, ctx):
        due = bool(self.pending) and self.pending[0][0] <= self.cycle
        for name in ("drs", "ndr"):
            port, now = getattr(self.dut, "i_" + name), due and self.pending[0][1] == name
            ctx.set(port.valid, now)
            if now:
                _, _, tag, ld, more = self.pending[0]
                ctx.set(port.p, {"tag": tag, "ld_id": ld} | more)

    def _state(self, session):
        if self.closing.get(session, 0) > self.cycle:
            return 0b11
        if session in self.closing:
            self.open.discard(session)
        return int(session in self.open)

    def _endpoint(self, ctx, disabled):
        """Takes what comes; what names registers is the sanitizer's own, and comes alone."""
        for name in ("o_req", "o_rwd"):
            port = getattr(self.dut, name)
            offer = ctx.get(port.valid) and ctx.get(port.p.tag)
            if name in self.standing:
                assert offer == self.standing.pop(name), f"the offer at {name} does not stand"
            if not ctx.get(port.valid):
                continue
            if not ctx.get(port.ready):
                self.standing[name] = offer
                continue
            opcode, tag, ld = (ctx.get(port.p[f]) for f in ("opcode", "tag", "ld_id"))
            due, data = self.cycle + self.rng.randrange(2, 8), 0
            own = ctx.get(port.p.address) in LINES
            assert own or self.coherent or not disabled, f"seed {self.seed}: the host's, {tag}"
            if own:
                session = LINES[ctx.get(port.p.address)]
                assert ld == 0 and not self.pending
                self.own.append((name, session))
                if name == "o_rwd":
                    assert opcode == M2SRwD.MEM_WR_PTL and ctx.get(port.p.bep)
                    assert ctx.get(port.p.byte_enable) == 0xFF << 16
                    assert ctx.get(port.p.data) >> 128 == SessionCommand.CLOSE
                    took = self.rng.randrange(30, 900 if self.coherent else 90)
                    self.closing[session] = self.cycle + took
                else:
                    data = self._state(session) << 8 * 0x18
            if name == "o_req" and opcode == SILENT:
                continue
            reads = name == "o_req" and opcode in READS
            if reads:
                self.pending.append((due, "drs", tag, ld, {"data": data}))
            if not reads or ctx.get(port.p.snp_type):
                acks = self.coherent and name == "o_rwd" and opcode == M2SRwD.BI_CONFLICT
                answer = S2MNDR.BI_CONFLICT_ACK if acks else S2MNDR.CMP
                self.pending.append((due, "ndr", tag, ld, {"opcode": answer}))

    def _taken(self, ctx):
        for name in ("i_req", "i_rwd"):
            port = getattr(self.dut, name)
            if ctx.get(port.valid) and ctx.get(port.ready):
                fields = self.offered.pop(name)
                self.asked[fields["tag"]] = (name, fields)
        for name in ("drs", "ndr"):
            port = getattr(self.dut, "i_" + name)
            if ctx.get(port.valid) and ctx.get(port.ready):
                self.pending.popleft()
            port = getattr(self.dut, "o_" + name)
            if ctx.get(port.valid) and ctx.get(port.ready):
                tag = ctx.get(port.p.tag)
                told = self.got.setdefault(tag, {})
                assert name not in told, f"seed {self.seed}: {tag} is answered twice"
                told[name] = ctx.get(port.p.opcode), ctx.get(port.p.ld_id)

    async def run(self, ctx, requests, cycles=3000):
        dut, requests, waiting, disabled = self.dut, deque(requests), False, False
        for self.cycle in range(cycles):
            self._host(ctx)
            self._answers(ctx)
            closing = any(end > self.cycle for end in self.closing.values())
            ctx.set(dut.rest, not self.pending and not (self.coherent and closing))
            if requests and not waiting and self.rng.random() < 0.02:
                asked = {"kind": requests[0], "tag": self.rng.randrange(16)}
                asked |= {"line": self.rng.getrandbits(46), "data": self.rng.getrandbits(512)}
                ctx.set(dut.requests.p, asked)
                ctx.set(dut.requests.valid, 1)
                waiting = True
            ctx.set(dut.o_requests.ready, 1)
            self.erasing = self.erasing + 1 if ctx.get(dut.erase) else 0
            ctx.set(dut.erased, self.erasing > 300)
            ctx.set(dut.erase_failed, self.erase_fails)
            mine = {"tag": self.rng.randrange(16), "code": self.rng.randrange(4)}
            mine |= {"value": self.rng.getrandbits(32)}
            answered = bool(self.passed) and self.passed[-1] == self.cycle - 9
            ctx.set(dut.i_answers.valid, answered)
            ctx.set(dut.i_answers.p, mine)
            await ctx.delay(1e-9)
            if ctx.get(dut.erase):
                assert not self.pending and not self.open, f"seed {self.seed}: not at rest"
                self.erased += self.erasing == 1
            disabled |= bool(waiting and self._disabled(ctx))
            self._endpoint(ctx, disabled)
            self._taken(ctx)
            if ctx.get(dut.o_requests.valid):
                assert asked["kind"] == INJECT and _same(ctx, dut.o_requests.p, asked)
                self.passed.append(self.cycle)
            taken = ctx.get(dut.requests.valid) and ctx.get(dut.requests.ready)
            if ctx.get(dut.answers.valid):
                if answered:
                    assert _same(ctx, dut.answers.p, mine)
                else:
                    assert ctx.get(dut.answers.p.tag) == asked["tag"]
                self.answers.append("passed" if answered else ctx.get(dut.answers.p.code))
                waiting = disabled = False
            await ctx.tick()
            if taken:
                requests.popleft()
                ctx.set(dut.requests.valid, 0)

    def _disabled(self, ctx):
        """The sanitizer's own messages name registers; the host's none."""
        port = self.dut.o_req
        return ctx.get(port.valid) and ctx.get(port.p.address) in LINES

    def check(self):
        """Each request has had its answer, but for what is under way; how many were NXM."""
        kinds = Counter()
        for tag, (name, fields) in self.asked.items():
            silent = name == "i_req" and fields["opcode"] == SILENT
            reads = name == "i_req" and fields["opcode"] in READS
            wanted = {"drs"} if reads else set()
            if not silent and (not reads or fields["snp_type"]):
                wanted.add("ndr")
            told = self.got.get(tag, {})
            assert set(told) <= wanted, (tag, told, fields)
            kinds["silent"] += silent
            kinds["under way"] += len(wanted - set(told))
            assert all(ld == fields["ld_id"] for _, ld in told.values())
            if "ndr" in told:
                conflict = name == "i_rwd" and fields["opcode"] == M2SRwD.BI_CONFLICT
                acks = self.coherent and conflict
                assert told["ndr"][0] == (S2MNDR.BI_CONFLICT_ACK if acks else S2MNDR.CMP)
            if "drs" in told:
                kinds["nxm" if told["drs"][0] == S2MDRS.MEM_DATA_NXM else "data"] += 1
        assert set(self.got) <= set(self.asked)
        assert kinds["under way"] <= len(self.pending) + 3, kinds
        return kinds


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize(
    ("seed", "open_", "fails"), [(1, (0, 2), False), (2, (0, 1, 2), True), (3, (), False)]
)
@pytest.mark.sampled
def test_sessions_are_closed_and_the_host_is_answered(coherent, seed, open_, fails):
    bench = Bench(seed, open=open_, erase_fails=fails, coherent=coherent)

    async def run(ctx):
        await bench.run(ctx, [INJECT, SANITIZE, INJECT], 3000 if coherent else 1200)

    simulate(bench.dut, run)
    assert bench.answers == ["passed", 3 if fails else 0, "passed"] and bench.erased == 1
    closed = [session for name, session in bench.own if name == "o_rwd"]
    assert closed == sorted(open_) and not bench.open
    kinds = bench.check()
    assert kinds["nxm"] > 8 and kinds["data"] > 30 and kinds["silent"] > 20, kinds


def test_a_session_that_is_closing_is_waited_for():
    bench = Bench(5, open=(1,))
    bench.closing[1] = 1500

    async def run(ctx):
        await bench.run(ctx, [SANITIZE])

    simulate(bench.dut, run)
    assert bench.answers == [0] and not [name for name, _ in bench.own if name == "o_rwd"]
    bench.check()


class Disabled:
    """The host amid a sanitize, at an endpoint that rests: whatever it asks is answered here, as
    soon as the answer before has been taken. Completions of both channels take turns."""

    def __init__(self, seed, *, coherent):
        self.dut = Sanitizer(config=COHERENT if coherent else UNIT)
        self.rng, self.seed, self.coherent = random.Random(seed), seed, coherent
        self.offers = {"i_req": None, "i_rwd": None}
        self.stands = {"o_drs": None, "o_ndr": None}
        self.last, self.answered = None, Counter()

    def run(self):
        dut, rng = self.dut, self.rng
        offering, ready = rng.choice((0.3, 1)), rng.choice((0.5, 1))

        async def bench(ctx):
            ctx.set(dut.rest, 1)
            ctx.set(dut.requests.p, {"kind": SANITIZE})
            ctx.set(dut.requests.valid, 1)
            ctx.set(dut.o_req.ready, 1)
            disabled, closed, erasing, own = False, 0, 0, (False, False)
            for cycle in range(700):
                for name, message in (("i_req", M2SReq), ("i_rwd", M2SRwD)):
                    # Before, one that stands would be held; the channels themselves are another's.
                    if disabled and self.offers[name] is None and rng.random() < offering:
                        self.offers[name] = {
                            "opcode": rng.choice([*message]),
                            "tag": rng.getrandbits(16),
                            "ld_id": rng.randrange(16),
                            "snp_type": rng.choice((0, 3)) if self.coherent else 0,
                        }
                        ctx.set(getattr(dut, name).p, self.offers[name])
                    ctx.set(getattr(dut, name).valid, self.offers[name] is not None)
                for name in self.stands:
                    ctx.set(getattr(dut, name).ready, rng.random() < ready)
                # Session 1 is open until it has been closed, which takes its time.
                asks, closes = own
                state = (0b11 if cycle < closed + 250 else 0) if closed else 0b01
                wanted = asks and LINES[ctx.get(dut.o_req.p.address)] == 1
                ctx.set(dut.i_drs.p, {"data": state * (wanted and not self.coherent) << 8 * 0x18})
                ctx.set(dut.o_rwd.ready, 1)
                ctx.set(dut.i_drs.valid, asks)
                ctx.set(dut.i_ndr.valid, closes)
                erasing += ctx.get(dut.erase)
                if erasing == 200:
                    break
                if disabled:
                    self._judge(ctx)
                own = ctx.get(dut.o_req.valid), ctx.get(dut.o_rwd.valid)
                disabled |= bool(own[0] and not self.coherent) or bool(erasing)
                closed = closed or (cycle if own[1] else 0)
                await ctx.tick()
                ctx.set(dut.requests.valid, 0)
            assert erasing == 200 and (closed or self.coherent)

        simulate(dut, bench)

    def _judge(self, ctx):
        """What is answered and taken in this cycle."""
        why = f"seed {self.seed}"
        free = {name for name, fields in self.stands.items() if fields is None}
        for name, fields in self.stands.items():
            port = getattr(self.dut, name)
            assert bool(ctx.get(port.valid)) == (fields is not None), why
            if fields is not None:
                shown = {field: ctx.get(port.p[field]) for field, _ in port.p.shape()}
                assert {k: v for k, v in shown.items() if v} == {
                    k: v for k, v in fields.items() if v
                }, why
                if ctx.get(port.ready):
                    self.stands[name] = None
                    self.answered[name] += 1
        wants = {name: self._wants(name) for name in self.offers if self.offers[name]}
        takes = {name for name in wants if ctx.get(getattr(self.dut, name).ready)}
        may = {name for name, needed in wants.items() if set(needed) <= free}
        both = [name for name in may if "o_ndr" in wants[name]]
        if len(both) == 2:
            (other,) = {*both} - {self.last} if self.last else {*both} & takes
            may = {other}
        assert takes == may, why
        for name in takes:
            for channel, opcode in wants[name].items():
                offer = self.offers[name]
                self.stands[channel] = {k: offer[k] for k in ("tag", "ld_id")} | {"opcode": opcode}
            if "o_ndr" in wants[name]:
                self.last = name
            self.offers[name] = None

    def _wants(self, name):
        """Channel → opcode of the answers to what is offered at `name`."""
        opcode, snoops = (self.offers[name][field] for field in ("opcode", "snp_type"))
        if name == "i_rwd":
            acks = self.coherent and opcode == M2SRwD.BI_CONFLICT
            return {"o_ndr": S2MNDR.BI_CONFLICT_ACK if acks else S2MNDR.CMP}
        if opcode == SILENT:
            return {}
        reads = {"o_drs": S2MDRS.MEM_DATA_NXM} if opcode in READS else {}
        return reads | ({"o_ndr": S2MNDR.CMP} if snoops or not reads else {})


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_amid_a_sanitize_each_request_is_answered_at_once(seed, coherent):
    bench = Disabled(seed, coherent=coherent)
    bench.run()
    assert min(bench.answered.values()) > 8, bench.answered


@pytest.mark.parametrize("seed", range(8))
def test_how_long_the_host_is_held_and_how_long_it_goes_on(seed):
    """It offers all the time. Before the first rest, and between the close of a session and the
    second one, the endpoint rests when the host has been let go on so many times."""
    rng, dut = random.Random(seed), Sanitizer(config=COHERENT)
    dut.TRY = tuple(rng.randrange(24, 60) for _ in dut.TRY)
    dut.BREAK = rng.randrange(12, 90)
    waits = [rng.randrange(11), rng.randrange(11)]
    seen = []  # of each cycle: whether Req and RwD are taken

    async def bench(ctx):
        for port in (dut.o_req, dut.o_rwd):
            ctx.set(port.ready, 1)
        ctx.set(dut.requests.p, {"kind": SANITIZE})
        ctx.set(dut.requests.valid, 1)
        await ctx.tick()
        ctx.set(dut.requests.valid, 0)
        for port in (dut.i_req, dut.i_rwd):
            ctx.set(port.valid, 1)
        pauses, rests, before = 0, 0, 1
        while not ctx.get(dut.erase):
            own = LINES.get(ctx.get(dut.o_req.p.address)) if ctx.get(dut.o_req.valid) else None
            closes = ctx.get(dut.o_rwd.valid) and ctx.get(dut.o_rwd.p.address) in LINES
            now = ctx.get(dut.i_rwd.ready)
            if closes:
                pauses, rests = -1, rests + 1  # the pause behind it is not one of those
            pauses += now > before
            before = now
            seen.append((ctx.get(dut.i_req.ready), now))
            await ctx.tick()
            ctx.set(dut.rest, pauses >= waits[min(rests, 1)])
            ctx.set(dut.i_drs.valid, own is not None)
            ctx.set(dut.i_drs.p, {"data": (own == 1 and not rests) << 8 * 0x18})
            ctx.set(dut.i_ndr.valid, closes)
            assert len(seen) < 5000, f"seed {seed}: no end"

    simulate(dut, bench)
    runs = [[*each] for _, each in itertools.groupby(seen, lambda each: each[1])]
    last, n = len(dut.TRY) - 1, 0
    for rests, wait in enumerate(waits):
        for tries in range(wait + 1):
            free, held = runs[n : n + 2]
            why = f"seed {seed}: {dut.TRY}, {dut.BREAK}, {waits}, try {n // 2}: {free}, {held}"
            assert not n or len(free) == dut.BREAK, why
            # From the last of TRY on, once the sanitize has begun, RwD go on alone.
            assert {reads for reads, _ in free} == {not (rests and tries >= last)}, why
            assert not any(reads for reads, _ in held), why
            limit = dut.TRY[min(tries, last)]
            assert len(held) < limit + 16 if tries == wait else len(held) == limit, why
            n += 2


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.sampled
def test_an_endpoint_that_does_not_come_to_rest_is_left_alone(coherent):
    """The host is let go on, and nothing was closed."""
    dut = Sanitizer(config=COHERENT if coherent else UNIT)
    seen = []

    async def bench(ctx):
        ctx.set(dut.requests.p, {"kind": SANITIZE, "tag": 2})
        ctx.set(dut.requests.valid, 1)
        await ctx.tick()
        ctx.set(dut.requests.valid, 0)
        ctx.set(dut.o_req.ready, 1)
        for cycle in range(PATIENCE + dut.BREAK + 20):
            if ctx.get(dut.answers.valid):
                seen.append((cycle, ctx.get(dut.answers.p.code), ctx.get(dut.answers.p.tag)))
            ctx.set(dut.i_req.valid, cycle > 10)
            passes = cycle < 1 or bool(seen and seen[0][0] < cycle)
            assert coherent or bool(ctx.get(dut.i_req.ready)) == passes, cycle
            await ctx.tick()

    simulate(dut, bench)
    ((cycle, code, tag),) = seen
    assert (code, tag) == (2, 2)
    # Coherent, it may come to the end of its patience while the host is let go on.
    assert 0 <= cycle - (PATIENCE + 1) <= coherent * dut.BREAK


def test_an_answer_to_a_request_that_was_given_up_is_none_to_a_sanitize():
    """The mailbox has had 16 requests since, so that the two have one tag; before and after the
    sanitize answers pass."""
    dut, seen = Sanitizer(config=UNIT), []
    late, told = {"tag": 5, "code": 0, "value": 7}, {"tag": 5, "code": 2}

    async def bench(ctx):
        ctx.set(dut.i_answers.p, late)
        ctx.set(dut.i_answers.valid, 1)
        for cycle in range(PATIENCE + 20):
            ctx.set(dut.requests.p, {"kind": SANITIZE, "tag": 5})
            ctx.set(dut.requests.valid, cycle == 3)
            await ctx.delay(1e-9)
            if ctx.get(dut.answers.valid):
                seen.append(
                    (cycle, _same(ctx, dut.answers.p, late), _same(ctx, dut.answers.p, told))
                )
            await ctx.tick()

    simulate(dut, bench)
    own = [cycle for cycle, _, is_told in seen if is_told]
    assert len(own) == 1 and own[0] > PATIENCE
    passed = [cycle for cycle, is_late, _ in seen if is_late]
    assert passed == [0, 1, 2, *range(own[0] + 1, PATIENCE + 20)] and len(passed) + 1 == len(seen)


def test_nothing_is_erased_before_the_endpoint_rests():
    """It may have work of its own after the last session has ended."""
    dut, asked, erases = Sanitizer(config=UNIT), [], []

    async def bench(ctx):
        ctx.set(dut.requests.p, {"kind": SANITIZE, "tag": 2})
        ctx.set(dut.requests.valid, 1)
        ctx.set(dut.o_req.ready, 1)
        for cycle in range(120):
            own = ctx.get(dut.o_req.valid) and ctx.get(dut.o_req.p.address) in LINES
            if own:
                asked.append(cycle)
            works = len(asked) == UNIT.sessions and cycle < 90
            if ctx.get(dut.erase):
                erases.append(cycle)
            await ctx.tick()
            ctx.set(dut.requests.valid, 0)
            ctx.set(dut.rest, not works)
            ctx.set(dut.i_drs.valid, own)

    simulate(dut, bench)
    assert len(asked) == UNIT.sessions and asked[-1] < 80 and 90 < erases[0] < 110


def test_a_long_fetch_beside_a_host_that_never_pauses():
    """The endpoint rests a good while after the host's last request, longer than the first
    tries."""
    dut, codes = Sanitizer(config=COHERENT), []

    async def bench(ctx):
        busy = 0
        for port in (dut.o_req, dut.o_rwd, dut.o_drs, dut.o_ndr):
            ctx.set(port.ready, 1)
        ctx.set(dut.requests.valid, 1)
        ctx.set(dut.i_req.valid, 1)
        ctx.set(dut.erased, 1)
        ctx.set(dut.requests.p, {"kind": SANITIZE, "tag": 2})
        for _ in range(8000):
            own = ctx.get(dut.o_req.valid) and ctx.get(dut.o_req.p.address) in LINES
            busy = 1500 if ctx.get(dut.o_req.valid) and not own else max(0, busy - 1)
            if ctx.get(dut.answers.valid):
                codes.append(ctx.get(dut.answers.p.code))
            await ctx.tick()
            ctx.set(dut.requests.valid, 0)
            ctx.set(dut.rest, busy == 0)
            ctx.set(dut.i_drs.valid, own)

    simulate(dut, bench)
    assert codes == [0]


class Persistent:
    """A coherent endpoint with registers alone, at rest but while a session closes, and for `busy`
    cycles behind a Req of the host's; and a host that offers, whenever it is let go on, what `req`
    and `rwd` say."""

    def __init__(self, *, req=None, rwd=None, busy=0):
        self.dut, self.req, self.rwd, self.busy = Sanitizer(config=COHERENT), req, rwd, busy
        self.open, self.closing, self.passed = {0, 2}, {}, Counter()

    def run(self, cycles):
        """The answer's code, in a list, where there is one within so many cycles."""
        dut, codes = self.dut, []

        async def bench(ctx):
            for port in (dut.o_req, dut.o_rwd, dut.o_drs, dut.o_ndr):
                ctx.set(port.ready, 1)
            ctx.set(dut.requests.p, {"kind": SANITIZE, "tag": 2})
            ctx.set(dut.requests.valid, 1)
            ctx.set(dut.erased, 1)
            busy = 0
            for cycle in range(cycles):
                took_req, took_rwd = (ctx.get(p.valid) for p in (dut.o_req, dut.o_rwd))
                own = took_req and ctx.get(dut.o_req.p.address) in LINES
                state = self._state(LINES[ctx.get(dut.o_req.p.address)], cycle) if own else 0
                busy = self.busy if took_req and not own else max(0, busy - 1)
                if took_rwd:
                    self._write(ctx, cycle)
                if ctx.get(dut.answers.valid):
                    codes.append(ctx.get(dut.answers.p.code))
                    return
                await ctx.tick()
                ctx.set(dut.requests.valid, 0)
                for port, fields in ((dut.i_req, self.req), (dut.i_rwd, self.rwd)):
                    ctx.set(port.valid, fields is not None and cycle > 20)
                    ctx.set(port.p, fields or {})
                closing = any(end > cycle for end in self.closing.values())
                ctx.set(dut.rest, not busy and not closing)
                ctx.set(dut.i_drs.valid, own)
                ctx.set(dut.i_drs.p, {"data": state << 8 * 0x18})
                ctx.set(dut.i_ndr.valid, took_rwd)

        simulate(dut, bench)
        return codes

    def _state(self, session, cycle):
        if self.closing.get(session, 0) > cycle:
            return 0b11
        if self.closing.pop(session, None):
            self.open.discard(session)
        return int(session in self.open)

    def _write(self, ctx, cycle):
        rwd = self.dut.o_rwd.p
        session = LINES.get(ctx.get(rwd.address))
        ptl = ctx.get(rwd.opcode) == M2SRwD.MEM_WR_PTL
        enabled = not ptl or ctx.get(rwd.byte_enable) >> 16 & 1
        self.passed[bool(enabled)] += 1
        assert enabled or not ctx.get(rwd.poison)
        if session is None or not enabled:
            return
        command = ctx.get(rwd.data) >> 128 & 0xF
        if command == SessionCommand.CLOSE and self._state(session, cycle) == 1:
            self.closing[session] = cycle + 60
        elif command == SessionCommand.OPEN and not self._state(session, cycle):
            self.open.add(session)


@pytest.mark.parametrize("opcode", [M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL])
def test_nobody_opens_a_session_again(opcode):
    """A host that never pauses to open session 0: it writes nothing once the sanitize has begun."""
    line = min(LINES)
    given = {"opcode": opcode, "address": line, "bep": 1, "byte_enable": 0xFF << 16}
    bench = Persistent(rwd=given | {"data": SessionCommand.OPEN << 128, "poison": 1, "tag": 7})
    assert bench.run(8000) == [0] and not bench.open
    assert bench.passed[False] > 100


def test_what_is_dirty_comes_home_while_registers_are_frozen():
    bench = Persistent(rwd={"opcode": M2SRwD.MEM_WR, "address": min(LINES) - 1024, "data": 1})
    assert bench.run(8000) == [0] and not bench.passed[False] and bench.passed[True] > 100


def test_reads_that_call_back_without_end_are_held_at_last():
    """Behind each Req the endpoint works longer than it is ever waited for."""
    bench = Persistent(req={"opcode": M2SReq.MEM_RD, "address": 5}, busy=150)
    bench.dut.TRY = (16, 32, 64, 128)
    bench.open = {1}
    assert bench.run(8000) == [0] and not bench.open


def test_latency_is_none():
    given = [{"i_req.valid": 1, "i_req.p.tag": 5}]
    dut = Sanitizer(config=UNIT)
    assert changes(dut, "o_req.p.tag", given, prepare={"o_req.ready": 1}) == [dut.LATENCY]
    assert dut.INTERVAL == 1
