# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The mailbox's requests beside a host's traffic: against a memory that answers as the endpoint
does."""

import random
from collections import deque
from itertools import groupby

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.media import media_port
from kelp_hw.media.media_port import MediaPort
from kelp_spec.address import AddressMap
from kelp_spec.coherence import sizes_of
from kelp_spec.config import named
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.knobs import KNOBS
from kelp_spec.messages import FIELDS, S2MDRS, M2SReq, M2SRwD
from kelp_spec.metadata import Op, Outcome
from kelp_spec.registers import RegisterMap

UNIT = named("unit").with_(cxlio="joined")
LINES = 1 << UNIT.aperture_bits - 6
INJECT, CLEAR, SANITIZE, READ, SET = range(1, 6)
ABSENT, CLOSED = 100, 101  #: lines that there are not
OUTSIDE = LINES + 5
OTHERS = [Op.PEEK, Op.PREFETCH, Op.LOOK]


class Bench:
    """Line → (data, poison); answers come after some cycles, in order."""

    HOSTS = range(8, 15)  #: lines that the host reads; it writes one more

    def __init__(self, seed):
        self.rng, self.dut = random.Random(seed), MediaPort(config=UNIT)
        # Behind the KV map something answers, too: the hint window, registers.
        self.lines = {i: (i, 0) for i in range(16)} | {OUTSIDE: (0, 1)}
        # Eight registers of 64 bits in each line of the window.
        base = AddressMap(UNIT).register_base // 64
        self.registers = {base + i: self.rng.getrandbits(512) for i in range(4)}
        self.standing = {}
        self.pending, self.writes = deque(), []
        #: What the port's own write gives: its poison, until it is confirmed; the request's tag.
        self.giving, self.tag = None, None
        self.host = {"sent": 0, "got": [], "tags": []}
        self.answers, self.values = [], []

    def serve(self, ctx):
        """The endpoint's side of one cycle, before the edge."""
        dut, rng = self.dut, self.rng
        if self.giving is None and ctx.get(dut.o_rwd.valid):
            offers = ctx.get(dut.o_rwd.p.address) != 15 and ctx.get(dut.o_rwd.p.poison)
            assert ctx.get(dut.injecting) == offers
        else:
            assert ctx.get(dut.injecting) == (self.giving or 0)
        for name in ("o_req", "o_rwd"):
            port = getattr(dut, name)
            offer = ctx.get(port.valid) and ctx.get(port.payload.as_value())
            if name in self.standing:
                assert offer == self.standing.pop(name), f"the offer at {name} does not stand"
            if ctx.get(port.valid) and not ctx.get(port.ready):
                self.standing[name] = offer
            if not (ctx.get(port.valid) and ctx.get(port.ready)):
                continue
            line, tag = ctx.get(port.p.address), ctx.get(port.p.tag)
            due = self.cycle + rng.randrange(3, 30)
            of_host = line == 15 if name == "o_rwd" else line in self.HOSTS
            if of_host:
                i = getattr(dut, "i" + name[1:])
                assert ctx.get(i.valid) and ctx.get(i.ready)
                assert offer == ctx.get(i.payload.as_value()), name
            if name == "o_rwd":
                if not of_host:
                    self.own(ctx, port, "address", "opcode", "poison", "bep", "byte_enable", "data")
                    self.giving = ctx.get(port.p.poison)
                partial = ctx.get(port.p.opcode) == M2SRwD.MEM_WR_PTL
                assert partial or ctx.get(port.p.opcode) == M2SRwD.MEM_WR
                if line in self.registers:
                    assert partial and ctx.get(port.p.bep) and not ctx.get(port.p.poison)
                    enable, data = ctx.get(port.p.byte_enable), ctx.get(port.p.data)
                    mask = sum(0xFF << 8 * i for i in range(64) if enable >> i & 1)
                    kept = self.registers[line] & ~mask
                    self.registers[line] = kept | data & mask
                elif line in self.lines:
                    assert of_host or ctx.get(port.p.byte_enable) == (1 << 64) - 1
                    self.lines[line] = ctx.get(port.p.data), ctx.get(port.p.poison)
                    self.writes.append(line)
                self.pending.append((due, "ndr", tag, None))
            else:
                assert ctx.get(port.p.opcode) == M2SReq.MEM_RD
                if not of_host:
                    self.own(ctx, port, "address", "opcode")
                    assert line < LINES or line in self.registers
                self.pending.append((due, "drs", tag, line))

    def own(self, ctx, port, *used):
        """A request of the port's own is LD-ID 0's, whatever the host offers behind it."""
        for name, _ in FIELDS["M2SRwD" if port is self.dut.o_rwd else "M2SReq"]:
            assert name in used or ctx.get(getattr(port.p, name)) == 0, name

    async def run(self, ctx, requests, cycles=6000):
        """Requests (kind, line, data) one after another, beside a host that reads and writes."""
        dut, rng = self.dut, self.rng
        requests, waiting, offered = deque(requests), False, {}
        for self.cycle in range(cycles):
            for name in ("i_req", "i_rwd"):
                port = getattr(dut, name)
                if name not in offered and rng.random() < 0.3:
                    self.host["sent"] += 1
                    tag = self.host["sent"]
                    write = name == "i_rwd"
                    offered[name] = tag
                    ctx.set(
                        port.p,
                        {
                            "opcode": M2SRwD.MEM_WR if write else M2SReq.MEM_RD,
                            "tag": tag,
                            "address": 15 if write else rng.choice(self.HOSTS),
                            "ld_id": rng.randrange(1, 16),
                            "snp_type": rng.randrange(1, 4),
                            "meta_field": rng.randrange(1, 4),
                            "meta_value": rng.randrange(1, 4),
                            "tc": rng.randrange(1, 4),
                            **({"data": 15} if write else {}),
                        },
                    )
                ctx.set(port.valid, name in offered)
            for name in ("o_req", "o_rwd"):
                ctx.set(getattr(dut, name).ready, rng.random() < 0.6)
            for name in ("o_drs", "o_ndr"):
                ctx.set(getattr(dut, name).ready, rng.random() < 0.6)
            ctx.set(dut.answered, len(self.pending) == 0)
            due = bool(self.pending) and self.pending[0][0] <= self.cycle
            ctx.set(dut.result.valid, 0)
            for name in ("drs", "ndr"):
                port, now = getattr(dut, "i_" + name), due and self.pending[0][1] == name
                ctx.set(port.valid, now)
                if now:
                    _, _, tag, line = self.pending[0]
                    fields = {"tag": tag}
                    for k, (field, bits) in enumerate(FIELDS["S2M" + name.upper()]):
                        fields.setdefault(field, (tag >> k) % (1 << bits))
                    if name == "drs":
                        data, poison = self.lines.get(line, (self.registers.get(line, 0), 0))
                        nxm = line not in {*self.lines, *self.registers, ABSENT}
                        fields |= {"data": data, "poison": poison}
                        fields["opcode"] = S2MDRS.MEM_DATA_NXM if nxm else S2MDRS.MEM_DATA
                    ctx.set(port.p, fields)
            if self.pending and self.pending[0][3] == ABSENT and not due:
                ctx.set(dut.result.valid, 1)
                ctx.set(dut.result.p.op.kind, Op.READ)
                ctx.set(dut.result.p.outcome, Outcome.ZERO)
            elif rng.random() < 0.3:  # what is absent to another op says nothing of the line
                ctx.set(dut.result.valid, 1)
                read = rng.random() < 0.3  # of a page that is there
                ctx.set(dut.result.p.op.kind, Op.READ if read else rng.choice(OTHERS))
                ctx.set(dut.result.p.outcome, Outcome.HIT if read else Outcome.ZERO)
            if requests and not waiting and rng.random() < 0.05:
                kind, line, data = requests[0]
                self.tag = rng.randrange(16)
                asked = {"kind": kind, "line": line, "data": data, "tag": self.tag}
                ctx.set(dut.requests.p, asked)
                ctx.set(dut.requests.valid, 1)
                waiting = True
            await ctx.delay(1e-9)
            self.serve(ctx)
            for name in ("i_req", "i_rwd"):
                port = getattr(dut, name)
                if ctx.get(port.valid) and ctx.get(port.ready):
                    self.host["tags"].append(offered.pop(name))
            for name in ("drs", "ndr"):
                port = getattr(dut, "i_" + name)
                given = ctx.get(port.payload.as_value())
                if ctx.get(port.valid) and ctx.get(port.ready):
                    self.pending.popleft()
                    if name == "ndr" and not ctx.get(dut.o_ndr.valid):
                        self.giving = None
                port = getattr(dut, "o_" + name)
                if ctx.get(port.valid) and ctx.get(port.ready):
                    self.host["got"].append(ctx.get(port.p.tag))
                    assert ctx.get(port.payload.as_value()) == given, name
            taken = ctx.get(dut.requests.valid) and ctx.get(dut.requests.ready)
            if ctx.get(dut.answers.valid):
                assert ctx.get(dut.answers.p.tag) == self.tag
                self.answers.append(ctx.get(dut.answers.p.code))
                self.values.append(ctx.get(dut.answers.p.value))
                waiting = False
            await ctx.tick()
            if taken:
                requests.popleft()
                ctx.set(dut.requests.valid, 0)


def play(requests, seed=1):
    bench = Bench(seed)

    async def run(ctx):
        await bench.run(ctx, requests)

    simulate(bench.dut, run)
    return bench


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.sampled
def test_lines_are_poisoned_and_cleared_beside_traffic(seed):
    requests = [
        (INJECT, 3, 7),
        (CLEAR, 3, 0x55),
        (INJECT, 4, 0),
        (CLEAR, 5, 0x66),
        (INJECT, ABSENT, 0),
        (CLEAR, ABSENT, 1),
        (INJECT, CLOSED, 0),
        (CLEAR, OUTSIDE, 2),
        (INJECT, 1 << 45 | 3, 0),
        (SANITIZE, 0, 0),
        (INJECT, 6, 0),  # what went before says nothing of it
    ]
    bench = play(requests, seed)
    assert bench.answers == [0, 0, 0, 0, 1, 1, 1, 1, 1, 3, 0]
    # Poisoned, then written; poisoned; left alone, for it was not poisoned; poisoned.
    assert [bench.lines[i] for i in (3, 4, 5, 6)] == [(0x55, 0), (0, 1), (5, 0), (0, 1)]
    assert [line for line in bench.writes if line != 15] == [3, 3, 4, 6]
    # The host got every answer to what was its own, and no other.
    assert len(bench.host["got"]) > 500
    assert set(bench.host["got"]) <= set(bench.host["tags"])
    missing = set(bench.host["tags"]) - set(bench.host["got"])
    assert len(missing) <= len(bench.pending) + 1
    assert len(bench.host["got"]) == len(set(bench.host["got"]))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.sampled
def test_features_are_the_endpoints_registers(seed):
    names = RegisterMap(UNIT).by_name
    places = [names[knob.register].offset for knob in KNOBS]
    requests = [(READ, i, 0) for i in range(len(KNOBS))]
    requests += [(SET, i, (0x100 + i) << 480) for i in range(len(KNOBS))]
    requests += [(READ, len(KNOBS), 0), (SET, 1 << 20, 0)]
    bench, before = play(requests, seed), Bench(seed).registers
    base = min(before)
    assert bench.answers == [0] * (2 * len(KNOBS)) + [3, 3]

    def lane(registers, at):
        return registers[base + at // 64] >> 8 * (at % 64) & (1 << 64) - 1

    low = (1 << 32) - 1
    assert bench.values[: len(KNOBS)] == [lane(before, at) & low for at in places]
    for at in range(0, 256, 8):
        wanted = 0x100 + places.index(at) if at in places else lane(before, at)
        assert lane(bench.registers, at) == wanted, hex(at)


def test_features_are_registers_of_one_field():
    for knob in KNOBS:
        register = RegisterMap(UNIT).by_name[knob.register]
        assert register.offset < 256 and min(f.low for f in register.fields) == 0
        assert max(f.low + f.bits for f in register.fields) == knob.bits
        reset = sum(f.reset << f.low for f in register.fields)
        assert reset == knob.default, knob


@pytest.fixture(params=[named_cxlio("joined").patience, 600])
def patience(request, monkeypatch):
    """The mailbox's, as configured, and one whose half is no power of two: to that a count that
    runs the other way comes at another time."""

    def impatient(name):
        return named_cxlio(name).replace(patience=request.param)

    monkeypatch.setattr(media_port, "named_cxlio", impatient)
    return request.param


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.sampled
def test_a_line_that_is_read_too_late_is_left_alone(late, patience):
    """The mailbox may have given up by then: the answer is to try again, and nothing is written. A
    little earlier it is in time."""
    dut = MediaPort(config=UNIT)
    seen = {"writes": 0, "codes": []}

    async def bench(ctx):
        async def tick():
            seen["writes"] += ctx.get(dut.o_rwd.valid)
            if ctx.get(dut.answers.valid):
                seen["codes"].append(ctx.get(dut.answers.p.code))
            await ctx.tick()

        for port in (dut.answered, dut.o_req.ready, dut.o_rwd.ready, dut.requests.valid):
            ctx.set(port, 1)
        ctx.set(dut.requests.p, {"kind": INJECT, "line": 3})
        await tick()
        ctx.set(dut.requests.valid, 0)
        while not ctx.get(dut.o_req.valid):
            await tick()
        for _ in range(patience // 2 if late else patience // 2 - 16):
            await tick()
        ctx.set(dut.i_drs.valid, 1)
        ctx.set(dut.i_drs.p.opcode, S2MDRS.MEM_DATA)
        await tick()
        ctx.set(dut.i_drs.valid, 0)
        for _ in range(4):
            await tick()
        ctx.set(dut.i_ndr.valid, 1)
        for _ in range(4):
            await tick()

    simulate(dut, bench)
    assert seen == ({"writes": 0, "codes": [2]} if late else {"writes": 1, "codes": [0]})


def test_an_endpoint_that_does_not_rest_is_asked_again(patience):
    """The answer is to try again, as late as the endpoint may rest; the next request waits for as
    long a rest as any, however long the last one had lasted when time was up."""
    dut, codes, reads = MediaPort(config=UNIT), [], []

    async def bench(ctx):
        for port in (dut.o_req.ready, dut.o_rwd.ready, dut.requests.valid):
            ctx.set(port, 1)
        ctx.set(dut.requests.p, {"kind": INJECT, "line": 3})
        rested = 0
        for cycle in range(patience // 2 + 40):
            # Some cycles of rest before time is up, and from then on.
            ctx.set(dut.answered, cycle > patience // 2 - 5)
            rested = rested + 1 if ctx.get(dut.answered) and codes else 0
            if ctx.get(dut.o_req.valid):
                reads.append(rested)
            if ctx.get(dut.answers.valid):
                codes.append(ctx.get(dut.answers.p.code))
            await ctx.tick()

    simulate(dut, bench)
    assert codes == [2]
    assert reads[0] >= 10


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_the_host_holds_is_called_back_first(stubborn, monkeypatch):
    """Asked for with the channels open until it is free, and once more with them held; what was
    granted meanwhile opens them again. A host that never gives it back ends in another try."""
    config, patience = named("unit_cxl_coherent"), 8000
    joined = named_cxlio(config.cxlio).replace(patience=patience)
    monkeypatch.setattr(media_port, "named_cxlio", lambda name: joined)
    dut, asks, codes, wrote = MediaPort(config=config), [], [], []
    held = [1, 1, 0, 1, 0, 0]

    async def bench(ctx):
        for port in (dut.answered, dut.o_req.ready, dut.o_rwd.ready, dut.recall.ready):
            ctx.set(port, 1)
        ctx.set(dut.requests.p, {"kind": INJECT, "line": 7})
        ctx.set(dut.requests.valid, 1)
        await ctx.tick()
        ctx.set(dut.requests.valid, 0)
        for _ in range(patience // 2 + 50 if stubborn else 200):
            asked = ctx.get(dut.recall.valid)
            reads, writes = (
                ctx.get(port.valid) and ctx.get(port.ready) for port in (dut.o_req, dut.o_rwd)
            )
            if asked:
                sector = ctx.get(dut.recall.p)
                assert sector == 7 >> sizes_of(config).sector_bits
                asks.append(ctx.get(dut.i_rwd.ready))
            if writes:
                wrote.append((len(asks), ctx.get(dut.o_rwd.p.poison)))
            if ctx.get(dut.answers.valid):
                codes.append(ctx.get(dut.answers.p.code))
            await ctx.tick()
            ctx.set(dut.still_held.valid, asked)
            ctx.set(dut.still_held.p, stubborn or (held[len(asks) - 1] if asked else 0))
            ctx.set(dut.i_drs.valid, reads)
            ctx.set(dut.i_ndr.valid, writes)

    simulate(dut, bench)
    if stubborn:
        assert codes == [2] and not wrote and all(asks) and len(asks) > 1000
    else:
        assert codes == [0] and wrote == [(6, 1)] and asks == [1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("kind", [INJECT, READ])
def test_what_the_endpoint_waits_for_may_be_the_hosts_to_give(kind):
    """It comes to rest only when a write has come, which the host sends when the channels are held
    already."""
    dut = MediaPort(config=named("unit_cxl_coherent"))
    seen = {"codes": [], "home": 0, "closed": [0]}

    async def bench(ctx):
        for port in (dut.o_req.ready, dut.o_rwd.ready, dut.recall.ready, dut.requests.valid):
            ctx.set(port, 1)
        ctx.set(dut.requests.p, {"kind": kind, "line": 1})
        await ctx.tick()
        ctx.set(dut.requests.valid, 0)
        for cycle in range(2000):
            if cycle == 20:
                ctx.set(dut.i_rwd.valid, 1)
            if ctx.get(dut.i_rwd.valid) and ctx.get(dut.i_rwd.ready):
                seen["home"] = 1
            asked, reads, writes = (
                ctx.get(port.valid) and ctx.get(port.ready)
                for port in (dut.recall, dut.o_req, dut.o_rwd)
            )
            seen["closed"].append(0 if ctx.get(dut.i_req.ready) else seen["closed"][-1] + 1)
            if ctx.get(dut.answers.valid):
                seen["codes"].append(ctx.get(dut.answers.p.code))
            await ctx.tick()
            ctx.set(dut.i_rwd.valid, cycle >= 20 and not seen["home"])
            ctx.set(dut.answered, seen["home"])
            ctx.set(dut.still_held.valid, asked)
            ctx.set(dut.i_drs.valid, reads)
            ctx.set(dut.i_ndr.valid, writes and seen["codes"] == [])

    simulate(dut, bench)
    assert seen["home"] and seen["codes"] == [0]
    assert max(seen["closed"]) <= dut.TRY[0] + 8


@pytest.mark.parametrize("kind", [INJECT, READ])
def test_how_long_the_channels_are_held_and_open(kind, monkeypatch):
    """Beside an endpoint that never rests: by `TRY`, whose last goes on, and `BREAK`; the next
    request begins anew."""
    monkeypatch.setattr(MediaPort, "TRY", (20, 31, 44, 52))
    monkeypatch.setattr(MediaPort, "BREAK", 17)
    config = named("unit_cxl_coherent")
    joined = named_cxlio(config.cxlio).replace(patience=1200)
    monkeypatch.setattr(media_port, "named_cxlio", lambda name: joined)
    dut = MediaPort(config=config)
    seen, codes = [], []

    async def bench(ctx):
        for port in (dut.o_req.ready, dut.o_rwd.ready, dut.recall.ready, dut.requests.valid):
            ctx.set(port, 1)
        ctx.set(dut.requests.p, {"kind": kind, "line": 1})
        while len(codes) < 2:
            opened = ctx.get(dut.i_req.ready)
            assert opened == ctx.get(dut.i_rwd.ready)
            if ctx.get(dut.answers.valid):
                codes.append(ctx.get(dut.answers.p.code))
                seen.append([])
            elif seen:
                seen[-1].append(opened)
            asked = ctx.get(dut.recall.valid)
            await ctx.tick()
            ctx.set(dut.still_held.valid, asked)

    simulate(dut, bench)
    assert codes == [2, 2]
    runs = [(opened, len([*same])) for opened, same in groupby(seen[0])]
    held = [length for opened, length in runs[1:-2] if not opened]
    free = [length for opened, length in runs[2:-2] if opened]
    assert held == [19, 30, 43, *[51] * (len(held) - 3)] and len(held) >= 6
    assert set(free) == {18}


@pytest.mark.parametrize("kind", [INJECT, READ])
def test_a_long_fetch_beside_a_host_that_never_pauses(kind):
    """The endpoint rests a good while after the last request, longer than the first tries."""
    dut, codes = MediaPort(config=named("unit_cxl_coherent")), []

    async def bench(ctx):
        busy = 0
        for port in (dut.o_req.ready, dut.o_rwd.ready, dut.recall.ready, dut.requests.valid):
            ctx.set(port, 1)
        ctx.set(dut.i_req.valid, 1)
        ctx.set(dut.requests.p, {"kind": kind, "line": 1})
        for _ in range(8000):
            asked, reads, writes = (
                ctx.get(port.valid) and ctx.get(port.ready)
                for port in (dut.recall, dut.o_req, dut.o_rwd)
            )
            passes = ctx.get(dut.i_req.ready)
            busy = 1500 if passes else max(0, busy - 1)
            if ctx.get(dut.answers.valid):
                codes.append(ctx.get(dut.answers.p.code))
            await ctx.tick()
            ctx.set(dut.requests.valid, 0)
            ctx.set(dut.answered, busy == 0)
            ctx.set(dut.still_held.valid, asked)
            ctx.set(dut.i_drs.valid, reads and not passes)
            ctx.set(dut.i_ndr.valid, writes)

    simulate(dut, bench)
    assert codes == [0]


def test_latency_is_none():
    dut = MediaPort(config=UNIT)
    given = [{"i_req.valid": 1, "i_req.p.tag": 5}]
    assert changes(dut, "o_req.p.tag", given, prepare={"o_req.ready": 1}) == [dut.LATENCY]
    assert dut.INTERVAL == 1
