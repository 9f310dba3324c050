# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The coherent front between a host that caches and a plain memory: no stale read, no lost write,
no lock, and each decision of its directory as the golden model has it. Its pace, and its rates."""

import itertools
import random
from unittest import mock

import pytest
from flips import opened
from simulation import simulate
from timing import changes, check_pace, offers, shown

import kelp_golden.coherence as golden
import kelp_hw.coherence.front as front
from kelp_hw.coherence.completions import Completions
from kelp_hw.coherence.directory import Directory
from kelp_hw.coherence.front import CoherentFront
from kelp_hw.coherence.grants import Grants
from kelp_hw.coherence.request_window import RequestWindow
from kelp_hw.coherence.snoop_engine import SnoopEngine
from kelp_spec.address import Region
from kelp_spec.coherence import (
    SIZES,
    Coherence,
    DirectoryOp,
    DirectoryOutcome,
    Held,
    MetaField,
    MetaValue,
    SnpType,
)
from kelp_spec.config import named
from kelp_spec.messages import S2MNDR, M2SReq, M2SRwD
from kelp_verif.coherence import flip_bench
from kelp_verif.coherence.coherent_bench import ROUGH, SMOOTH, audit, run, some_lines
from kelp_verif.coherence.rates import OWNERSHIP, SHARED
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.compiled import simulate as simulate_compiled
from kelp_verif.harness.runner import made

CONFIG, SMALL = named("unit"), SIZES["unit"]
OPEN = {"inner_req.ready": 1, "inner_rwd.ready": 1, "s2m_drs.ready": 1, "s2m_ndr.ready": 1}
SETTLED = {"prepare": OPEN, "settle": SMALL.sets + 4}
ENCODING = ("opcode", "snp_type", "meta_field", "meta_value")


def front_of(block, old, new):
    """A front with a planted bug in one of its blocks."""
    bad = mutant(block, old, new)
    if block is CoherentFront:
        return bad

    class Planted(CoherentFront):
        def elaborate(self, platform):
            with mock.patch.object(front, block.__name__, bad):
                return super().elaborate(platform)

    return Planted


def new_front():
    return CoherentFront(config=CONFIG, sizes=SMALL)


class _Alone:
    """One message after another, each port at a pace of its own: what of it is here, and which ops
    it comes to."""

    PORTS = ("s2m_drs", "s2m_ndr", "s2m_bisnp", "inner_req", "inner_rwd")
    RECALLS = (DirectoryOutcome.RECALL, DirectoryOutcome.DONE_RECALL)

    def __init__(self, ctx, dut, rng):
        self.ctx, self.dut, self.rng = ctx, dut, rng
        self.owed = {"drs": [], "ndr": []}  # tags and LD-IDs that the inner device answers
        self.called, self.asks, self.recalls, self.ops = [], 0, 0, 0
        self.inside, self.answers, self.wants, self.told = None, 0, {}, []

    def _drive(self, offers):
        """The inputs of a cycle, with the message on `offers`, if any."""
        ctx, dut, rng = self.ctx, self.dut, self.rng
        for name in self.PORTS:
            ctx.set(getattr(dut, name).ready, rng.random() < 0.5)
        for name in ("m2s_req", "m2s_rwd", "i_ask"):
            ctx.set(getattr(dut, name).valid, name == offers)
        for kind, owed in self.owed.items():
            inner = getattr(dut, f"inner_{kind}")
            if not ctx.get(inner.valid):
                ctx.set(inner.valid, bool(owed) and rng.random() < 0.5)
            if owed:
                ctx.set(inner.p.tag, owed[0][0])
                ctx.set(inner.p.ld_id, owed[0][1])
        ctx.set(dut.m2s_birsp.valid, bool(self.called) and rng.random() < 0.2)
        if self.called:
            ctx.set(dut.m2s_birsp.p.bi_tag, self.called[0])

    def _check_idle(self, offers):
        ctx, dut = self.ctx, self.dut
        shown = [name for name in self.PORTS if ctx.get(getattr(dut, name).valid)]
        shown += [name for name in ("o_answer", "commit") if ctx.get(getattr(dut, name).valid)]
        shown += ["m2s_rwd"] * (offers == "m2s_rwd")
        under_way = ("inside", "called", "asks", "recalls")
        shown += [name for name in under_way if getattr(self, name)]
        assert not (ctx.get(dut.idle) and (shown or self.owed["drs"])), f"idle with {shown}"

    def _commit(self):
        """An op that was decided is one of the message."""
        ctx, result = self.ctx, self.dut.commit.p
        self.recalls += ctx.get(result.outcome) in self.RECALLS
        kind = ctx.get(result.op.kind)
        if kind == DirectoryOp.FINISH:
            self.recalls -= 1
        else:
            got = {name: ctx.get(result.op[name]) for name in self.wants}
            assert got == self.wants
            self.ops += 1

    async def cycle(self, offers=None):
        """Whether what is offered was taken."""
        ctx, dut = self.ctx, self.dut
        self._drive(offers)
        self._check_idle(offers)
        went = {n for n in self.PORTS if ctx.get(getattr(dut, n).valid & getattr(dut, n).ready)}
        taken = offers is not None and bool(ctx.get(getattr(dut, offers).ready))
        if ctx.get(dut.commit.valid):
            self._commit()
        for kind in ("drs", "ndr"):
            inner = getattr(dut, f"inner_{kind}")
            if ctx.get(inner.valid & inner.ready):
                self.owed[kind].pop(0)
        # What is handed on as it is is not here any more.
        for name in went & {"inner_req", "inner_rwd"}:
            p = getattr(dut, name).p
            reads = name == "inner_req" and ctx.get(p.opcode) == M2SReq.MEM_RD
            self.owed["drs" if reads else "ndr"].append((ctx.get(p.tag), ctx.get(p.ld_id)))
            self.inside = self.inside if reads else None
        if "s2m_ndr" in went:
            self.told.append(ctx.get(dut.s2m_ndr.p.opcode))
        if "s2m_bisnp" in went:
            self.called.append(ctx.get(dut.s2m_bisnp.p.bi_tag))
        self.asks -= ctx.get(dut.o_answer.valid)
        spoken = ctx.get(dut.m2s_birsp.valid)
        await ctx.tick()
        if spoken:
            self.called.pop(0)
            self.ctx.set(dut.m2s_birsp.valid, 0)
        for kind in ("drs", "ndr"):
            inner = getattr(dut, f"inner_{kind}")
            if not self.owed[kind] or ctx.get(inner.p.tag) != self.owed[kind][0][0]:
                ctx.set(inner.valid, 0)
        self.answers -= len(went & {"s2m_drs", "s2m_ndr"})
        if self.inside and not self.answers:
            self.inside = None
        return taken

    async def whole(self, port, wants, answers):
        """The message that is on `port`, from its offer until nothing of it is here."""
        self.wants, self.ops = wants, 0
        while not await self.cycle(port):
            pass
        if port == "i_ask":
            self.asks += 1
        else:
            self.answers, self.inside = answers, port
        for _ in range(400):
            await self.cycle()
            done = not (self.answers or self.asks or self.recalls or self.called or self.inside)
            if done and self.ctx.get(self.dut.idle):
                return
        raise AssertionError(f"{port} is never over: {vars(self)}")


def _some_line(rng, config, owners):
    """An address in the map or beside it, somebody who asks, and whether the line is his."""
    session, queue = (
        rng.choice([rng.randrange(count), rng.randrange(1 << bits)])
        for count, bits in (
            (config.sessions, config.session_bits),
            (config.queues, config.queue_bits),
        )
    )
    line_bits = config.aperture_bits - 6
    below = line_bits - config.session_bits - config.queue_bits
    address = (session << config.queue_bits | queue) << below | rng.getrandbits(below)
    address |= rng.random() < 0.1 and 1 << rng.randrange(line_bits, 46)
    # Of a session that is not there, whom an index beyond the array's end would give.
    owner = (*owners, 0)[session]
    ld_id = owner ^ (rng.random() < 0.2) << rng.randrange(4)
    is_own = session < config.sessions and queue < config.queues and address >> line_bits == 0
    return address, session, ld_id, is_own and ld_id == owner


def test_each_message_is_an_op_of_its_line_and_idle_is_when_none_is_here():
    """Lines of any session and queue, where these are no powers of two, of strangers and beyond the
    map: the directory has a say in those alone that are their owner's."""
    rng, config, owners = random.Random(8), CONFIG.with_(sessions=3, queues=5), [9, 2, 12]
    dut, is_open, rounds = CoherentFront(config=config, sizes=SMALL), 0b101, 0b110
    met = dict.fromkeys(("tracked", "other", "ask", "recall"), 0)

    async def bench(ctx):
        alone, lines = _Alone(ctx, dut, rng), []
        ctx.set(dut.sessions.open, is_open)
        ctx.set(dut.sessions.rounds, rounds)
        for k, owner in enumerate(owners):
            ctx.set(dut.sessions.owners[k], owner)
        while not ctx.get(dut.ready):
            await ctx.tick()
        for tag in range(200):
            if lines and rng.random() < 0.2:
                sector = rng.choice(lines) >> SMALL.sector_bits
                ctx.set(dut.i_ask.p, sector)
                await alone.whole("i_ask", {"kind": DirectoryOp.ASK, "sector": sector}, 0)
                met["ask"] += 1
                continue
            address, session, ld_id, own = _some_line(rng, config, owners)
            kind = rng.choice([M2SReq.MEM_RD] * 3 + [M2SReq.MEM_INV, M2SReq.MEM_CLN_EVCT, "rwd"])
            port = dut.m2s_rwd if kind == "rwd" else dut.m2s_req
            opcode = rng.choice([M2SRwD.MEM_WR, M2SRwD.BI_CONFLICT]) if kind == "rwd" else kind
            encoding = {"opcode": opcode, "meta_field": MetaField.META0, "snp_type": SnpType.DATA}
            encoding |= {"meta_value": rng.choice([MetaValue.SHARED, MetaValue.ANY])}
            for name, value in (
                encoding | {"tag": tag, "address": address, "ld_id": ld_id}
            ).items():
                ctx.set(port.p[name], int(value))
            usable = is_open >> session & 1 or kind in ("rwd", M2SReq.MEM_CLN_EVCT)
            tracked = own and bool(usable) and opcode is not M2SRwD.BI_CONFLICT
            line = address & (1 << config.aperture_bits - 6) - 1
            wants = {
                "kind": DirectoryOp.WRITE if kind == "rwd" else DirectoryOp.REQUEST,
                "tracked": tracked,
                "sector": line >> SMALL.sector_bits,
                "line": line % SMALL.sector,
            }
            if tracked:
                wants |= {"rounds": rounds >> session & 1}
                lines.append(line)
            name = "m2s_rwd" if kind == "rwd" else "m2s_req"
            await alone.whole(name, wants, 2 if kind == M2SReq.MEM_RD else 1)
            assert bool(alone.ops) == (tracked or kind != "rwd")
            met["tracked" if tracked else "other"] += 1
            met["recall"] += alone.ops > 1
        # After a fatal error nothing is granted, as the golden directory's test says.
        ctx.set(dut.fatal, 1)
        read = {"opcode": M2SReq.MEM_RD, "meta_value": MetaValue.SHARED, "address": 8}
        for name, value in (read | {"tag": 999, "ld_id": owners[0]}).items():
            ctx.set(dut.m2s_req.p[name], int(value))
        await alone.whole("m2s_req", {"tracked": 1}, 2)
        assert alone.told.pop() == S2MNDR.CMP

    simulate(opened(dut)[0], bench)
    assert min(met.values()) > 4, met


@pytest.mark.parametrize(
    ("attribute", "output", "stimuli"),
    [
        (
            "LATENCY",
            shown("inner_req", "address"),
            offers(stream="m2s_req", field="address", **{"m2s_req.p.opcode": M2SReq.MEM_RD}),
        ),
        (
            "WRITE_LATENCY",
            shown("inner_rwd", "tag"),
            offers(stream="m2s_rwd", field="tag", **{"m2s_rwd.p.opcode": M2SRwD.MEM_WR}),
        ),
    ],
    ids=["request", "write"],
)
def test_latency_and_interval(attribute, output, stimuli):
    check_pace(new_front(), attribute, output, stimuli, **SETTLED)


def test_writes_in_every_cycle_keep_no_request_out():
    """Nor requests writes: of two that are offered in every cycle, each goes in every other one."""
    dut, went = new_front(), {"req": 0, "rwd": 0}

    async def bench(ctx):
        for port in (dut.inner_req, dut.inner_rwd, dut.s2m_drs, dut.s2m_ndr):
            ctx.set(port.ready, 1)
        while not ctx.get(dut.ready):
            await ctx.tick()
        ctx.set(dut.m2s_rwd.p.opcode, M2SRwD.MEM_WR)
        ctx.set(dut.m2s_req.p.opcode, M2SReq.MEM_RD)
        ctx.set(dut.m2s_req.p.meta_field, MetaField.NO_OP)
        for port in (dut.m2s_req, dut.m2s_rwd):
            ctx.set(port.valid, 1)
        under_way = 0
        for _ in range(200):
            # What is read is answered at once.
            ctx.set(dut.inner_drs.valid, under_way > 0)
            answers = under_way > 0 and ctx.get(dut.inner_drs.ready)
            asked = ctx.get(dut.inner_req.valid)
            if asked:
                ctx.set(dut.inner_drs.p.tag, ctx.get(dut.inner_req.p.tag))
            went["req"] += asked
            went["rwd"] += ctx.get(dut.inner_rwd.valid)
            await ctx.tick()
            under_way += asked - answers
        assert min(went.values()) > 80, went

    simulate(dut, bench)


@pytest.mark.parametrize("writes", [0, 1, 2, 40])
@pytest.mark.sampled
def test_a_gathered_read_follows_the_writes_that_were_taken_before_it(writes):
    """The inner device takes no RwD for a while, and then all: none that was taken comes behind a
    gathered read that was taken after it, for the read may be of its line, and the host's caches
    know nothing of that. Nor do RwD in every cycle keep the read out."""
    config = named("unit_select_coherent")
    dut = CoherentFront(config=config, sizes=SIZES[config.name])
    gathers = Region.GATHER << config.aperture_bits - 6
    stalls, order, taken = 30, [], []

    async def bench(ctx):
        for name, value in OPEN.items():
            port, _, member = name.partition(".")
            ctx.set(getattr(getattr(dut, port), member), value)
        ctx.set(dut.sessions.open, ~0)
        ctx.set(dut.m2s_req.p.opcode, M2SReq.MEM_RD)
        ctx.set(dut.m2s_req.p.meta_field, MetaField.NO_OP)
        ctx.set(dut.m2s_req.p.address, gathers)
        ctx.set(dut.m2s_rwd.p.opcode, M2SRwD.MEM_WR)
        while not ctx.get(dut.ready):
            await ctx.tick()
        for cycle in range(100):
            tag = len(taken) - ("read" in taken)
            ctx.set(dut.inner_rwd.ready, cycle >= stalls)
            ctx.set(dut.m2s_rwd.valid, tag < writes)
            ctx.set(dut.m2s_rwd.p.tag, tag)
            ctx.set(dut.m2s_req.valid, cycle >= 4 and "read" not in taken)
            for name in ("inner_req", "inner_rwd"):
                port = getattr(dut, name)
                if ctx.get(port.valid) and ctx.get(port.ready):
                    order.append("read" if name == "inner_req" else ctx.get(port.p.tag))
            if ctx.get(dut.m2s_rwd.valid) and ctx.get(dut.m2s_rwd.ready):
                taken.append(tag)
            if ctx.get(dut.m2s_req.valid) and ctx.get(dut.m2s_req.ready):
                taken.append("read")
            await ctx.tick()

    simulate(dut, bench)
    assert sorted(map(str, order)) == sorted(map(str, [*range(writes), "read"]))
    before = taken.index("read")
    assert order.index("read") >= before == min(writes, 2), (taken, order)
    assert order.index("read") <= before + 4, (taken, order)


def test_a_page_that_is_not_held_may_leave_within_ten_cycles():
    """Four sectors, as a page of 128 lines has with sectors of 32."""
    dut = new_front()
    asks = [row for n in (1, 2, 3, 4) for row in ({"i_ask.valid": 1, "i_ask.p": n}, {})]
    # Between two of them nothing is said.
    took = changes(dut, lambda dut: dut.o_answer.valid, [*asks, *[{}] * 4], **SETTLED)
    assert took == list(range(dut.ASK_LATENCY, 11))


def test_lines_within_the_directory_are_owned_one_a_cycle():
    sizes = Coherence(sets=16, ways=4, sector=4, recalls=4, pending=64)
    lines = list(range(sizes.lines))
    for kind in (OWNERSHIP, SHARED):
        figures, _ = run(CONFIG, sizes, lines, stream=kind, latency=40)
        assert figures.granted == sizes.lines and figures.snoops == 0
        assert sizes.lines / (figures.last - figures.first + 1) >= 0.98
    # Beyond it, with a host that answers at once.
    beyond = list(range(2 * sizes.lines))
    figures, _ = run(CONFIG, sizes, beyond, stream=SHARED, latency=40)
    assert figures.snoops >= sizes.lines // 2
    assert len(beyond) / (figures.last - figures.first + 1) >= 0.2


async def _sent(ctx, dut, channel, encoding):
    """A message of line 0, and what comes of it until the front is idle: the opcodes that it is
    handed on as, and whether as a read for ownership; the answers (channel, opcode); how many lines
    were called back; how many copies are told of as not granted."""
    port, on, answers, owed, called = getattr(dut, f"m2s_{channel}"), [], [], [], []
    snooped = ungranted = 0
    for name, value in zip(ENCODING, encoding, strict=True):
        ctx.set(port.p[name], value)
    ctx.set(port.valid, 1)
    while ctx.get(port.valid) or owed or called or not ctx.get(dut.idle):
        taken = None
        for kind in ("drs", "ndr"):
            inner = getattr(dut, f"inner_{kind}")
            ctx.set(inner.valid, owed[:1] == [kind])
            if owed[:1] == [kind] and ctx.get(inner.ready):
                taken = kind
        ctx.set(dut.m2s_birsp.valid, bool(called))
        if called:
            ctx.set(dut.m2s_birsp.p.bi_tag, called.pop())
        accepted = ctx.get(port.valid) and ctx.get(port.ready)
        p = dut.inner_req.p
        if ctx.get(dut.inner_req.valid):
            opcode = ctx.get(p.opcode)
            owns = (ctx.get(p.meta_field), ctx.get(p.meta_value)) == (0, MetaValue.ANY)
            on.append((opcode, owns and opcode == M2SReq.MEM_RD))
            if opcode != M2SReq.MEM_SPEC_RD:
                owed.append("drs" if opcode in golden.READS else "ndr")
                ctx.set(dut.inner_drs.p.tag, ctx.get(p.tag))
        if ctx.get(dut.inner_rwd.valid):
            on.append((ctx.get(dut.inner_rwd.p.opcode), False))
            owed.append("ndr")
        for kind in ("drs", "ndr"):
            out = getattr(dut, f"s2m_{kind}")
            if ctx.get(out.valid):
                answers.append((kind, ctx.get(out.p.opcode)))
        if ctx.get(dut.s2m_bisnp.valid):
            called.append(ctx.get(dut.s2m_bisnp.p.bi_tag))
            snooped += 1
        ungranted += ctx.get(dut.pulses.ungranted)
        await ctx.tick()
        if accepted:
            ctx.set(port.valid, 0)
        if taken:
            owed.pop(0)
    return on, sorted(answers), snooped, ungranted


def _comes_to(channel, encoding, held, is_open):
    """(held afterwards, what `_sent` is to tell), by the golden model."""
    opcode, snoop, field, value = encoding
    if channel == "rwd":
        if opcode == M2SRwD.BI_CONFLICT:
            return held, ([], [("ndr", S2MNDR.BI_CONFLICT_ACK)], 0, 0)
        ungranted = False
        if opcode in (M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL):
            held, ungranted = golden.written(held, field, value, rounds=True, recalled=False)
        return held, ([(opcode, False)], [("ndr", S2MNDR.CMP)], 0, int(ungranted))
    if opcode == M2SReq.MEM_CLN_EVCT:
        return Held.NONE, ([], [("ndr", S2MNDR.CMP)], 0, 0)
    reads = opcode in golden.READS
    if not is_open or not reads and opcode not in golden.INVALIDATES:
        silent = opcode == M2SReq.MEM_SPEC_RD or reads and snoop == SnpType.NO_OP
        answers = [("drs", 0)] * reads + [("ndr", S2MNDR.CMP)] * (not silent)
        return held, ([(M2SReq.MEM_RD if reads else opcode, False)], answers, 0, 0)
    reply, first = golden.request(held, opcode, field, value, snoop, False), False
    if reply.first:
        reply, first = golden.request(Held.NONE, opcode, field, value, snoop, False), True
    owns = reply.ndr == S2MNDR.CMP_E and not (reads and value == MetaValue.SHARED)
    answers = [("drs", 0)] * reply.data + [("ndr", reply.ndr)] * (reply.ndr is not None)
    return reply.held, ([(M2SReq.MEM_RD, owns)], answers, int(first), 0)


@pytest.mark.parametrize("is_open", [True, False])
def test_every_encoding_comes_to_what_the_golden_model_says(is_open):
    """Reserved ones among them, on both channels, in random order on one line. Of a read the
    message alone says whether a completion comes: not whether its session is open."""
    rng, seen = random.Random(is_open), set()
    dut = made(CoherentFront, config=CONFIG, sizes=SIZES["unit_coherent"])
    sweep = [
        (channel, each)
        for channel in ("req", "rwd")
        for each in itertools.product(range(16), range(8), range(4), range(4))
        # Unknown opcodes of one kind are as good as all.
        if each[0] < 11 or each[1:] == (7, 1, 1)
    ]
    # What the host may hold is as it is found: MemRd and MemWr that keep a copy come often.
    sweep += rng.choices([(c, e) for c, e in sweep if e[0] in (1, 2) and e[2] == 0], k=600)
    rng.shuffle(sweep)

    async def bench(ctx):
        held = Held.NONE
        for port in (dut.inner_req, dut.inner_rwd, dut.s2m_drs, dut.s2m_ndr, dut.s2m_bisnp):
            ctx.set(port.ready, 1)
        ctx.set(dut.sessions.rounds, 1)
        ctx.set(dut.sessions.open, int(is_open))
        while not ctx.get(dut.ready):
            await ctx.tick()
        for channel, encoding in sweep:
            before = held
            held, wanted = _comes_to(channel, encoding, before, is_open)
            got = await _sent(ctx, dut, channel, encoding)
            assert got == wanted, f"{channel} {encoding} of a line that is {before.name}"
            seen.add((channel, before))

    simulate_compiled(dut, bench)
    assert len(seen) == (8 if is_open else 2)


#: Name → sectors in use, options of the run. 8 sectors fill the directory.
WEATHERS = {
    "within": (6, {"ask": 1}),
    "rounds": (6, {"ask": 1, "rounded": 0b01}),
    "beyond": (24, {"ask": 1}),
    "rough": (12, {"ask": 2, "late": 60, "rounded": 0b10, **ROUGH}),
    "leaving": (12, {"ask": 256}),
    "slow NDR": (12, {"ask": 4, **SMOOTH, "ndr": 20}),
    "slow DRS": (12, {"ask": 4, **SMOOTH, "drs": 20}),
    "slow BIRsp": (12, {"ask": 4, **SMOOTH, "birsp": 10}),
    "slow BISnp": (12, {"ask": 4, **SMOOTH, "bisnp": 10}),
    "slow RwD": (12, {"ask": 4, **SMOOTH, "rwd": 16, "inner_rwd": 16}),
    "slow inner": (12, {"ask": 4, **SMOOTH, "inner_req": 16, "inner_ndr": 16}),
    "closed": (12, {"ask": 2, "opened": 0b01}),
    "windows": (12, {"ask": 2}),
    "silent": (12, {"ask": 2, "silent": 10, "refuse": 10, "timeout": 400}),
    # Most writes do not say what the host keeps.
    "unsaid": (6, {"ask": 1, "no_op": 160, "rounded": 0b01}),
}


def weather(name, *, make=CoherentFront, transactions=4_000, commits=4_000, **more):
    sectors, options = WEATHERS[name]
    lines = some_lines(CONFIG, SMALL, sectors)
    if name == "windows":  # hints, registers, and beyond the map
        lines += [(n << CONFIG.aperture_bits - 6) + k for n in (1, 2, 1 << 20) for k in range(5)]
    options = {"jitter": 20, **options, **more}
    figures, log = run(
        CONFIG, SMALL, lines, make=make, transactions=transactions, commits=commits, **options
    )
    assert audit(CONFIG, SMALL, log) == commits
    return figures


@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize("name", WEATHERS)
@pytest.mark.sampled
def test_the_host_and_the_device_stay_coherent(name, blocks):
    figures = weather(name, blocks=blocks)
    assert (figures.blocks > 20) == bool(blocks)
    assert figures.transactions >= 4_000 and figures.snoops > 400 and figures.conflicts > 5
    assert figures.ungranted == 0
    assert figures.lost == figures.silent + figures.refused
    assert figures.unasked == figures.too_late
    assert (figures.lost > 40) == (name == "silent")


@pytest.mark.slow  # models of their own
@pytest.mark.parametrize("protect", [True, False])
def test_other_shapes(protect):
    """Many ways of short sectors; memories without check bits."""
    config = CONFIG.with_(protect=protect, sessions=3, queues=5)
    sizes = Coherence(sets=4, ways=8, sector=2, recalls=4, pending=16)
    lines = some_lines(config, sizes, 48)
    options = {"ask": 2, "jitter": 30, "rounded": 0b010, "late": 30}
    figures, log = run(config, sizes, lines, transactions=4_000, commits=4_000, **options)
    assert audit(config, sizes, log) == 4_000 and figures.snoops > 400


def test_both_orders_of_a_race_are_met():
    figures = weather("slow NDR")
    assert figures.ack_first > 10 and figures.ack_after > 100


#: Planted bugs, and the weather that shows each.
BUGS = {
    "a Req passes a recall": ("within", Directory, "(matches & busy).any()", "Const(0)"),
    "an op ahead is forgotten": ("within", Directory, "row2.eq(Mux(same,", "row2.eq(Mux(0,"),
    "a rounded copy stays": ("rounds", Directory, "op.rounds | (s.old == Held.STALE)", "0"),
    "S is called E": (
        "within",
        Directory,
        "Mux(shared, S2MNDR.CMP_S, S2MNDR.CMP_E)",
        "S2MNDR.CMP_E",
    ),
    "a kept copy is forgotten": (
        "rounds",
        Directory,
        "d.held.eq(Held.STALE)",
        "d.held.eq(Held.NONE)",
    ),
    "a write that does not say what is kept is one that keeps nothing": (
        "unsaid",
        CoherentFront,
        "op.evicts.eq(meta0 & (value == MetaValue.INVALID))",
        "op.evicts.eq(~meta0 | (value == MetaValue.INVALID))",
    ),
    "a BISnp overtakes its grant": (
        "slow NDR",
        Directory,
        "self.free & ~granting.bit_select(d.victim, 1)",
        "self.free",
    ),
    "a recall ends too soon": (
        "within",
        SnoopEngine,
        "(each.send | each.wait | each.lost)",
        "(each.send | each.lost)",
    ),
    "a late BIRsp counts": (
        "silent",
        SnoopEngine,
        "(answered.generation == generation)",
        "(answered.generation != ~generation)",
    ),
    "a line's answer counts for its block": (
        "within",
        SnoopEngine,
        "m.If(pair & ~for_all)",
        "m.If(Const(0))",
    ),
    "a lost line is not told": (
        "silent",
        SnoopEngine,
        "(each.lost | change.kept | change.silent)",
        "(each.lost | change.kept)",
    ),
    "RwD waits for a recall": (
        "rough",
        CoherentFront,
        "rwd.valid & may",
        "rwd.valid & may & b.recalls.free",
    ),
    "BIConflict goes on as a write": (
        "rough",
        CoherentFront,
        "conflict.eq(rwd.p.opcode == M2SRwD.BI_CONFLICT)",
        "conflict.eq(0)",
    ),
    "a grant under way does not count": (
        "slow NDR",
        CoherentFront,
        "begun.counts.eq(tracked & result.op.holds)",
        "begun.counts.eq(0)",
    ),
    "the device asks for another sector": (
        "within",
        CoherentFront,
        "op.p.sector.eq(b.asks.o.p)",
        "op.p.sector.eq(0)",
    ),
    "BIConflict is dropped": ("rough", CoherentFront, "goes & conflict", "0"),
    "a grant without its completion": (
        "slow DRS",
        Grants,
        "(~grant.has_ndr | ndr_left | ndr.ready)",
        "1",
    ),
    "a request is lost on its way back": (
        "beyond",
        RequestWindow,
        "following.eq(begin)",
        "following.eq(begin + 1)",
    ),
    "a completion is given twice": ("rough", Completions, "port.ready.eq(1)", "port.ready.eq(0)"),
}
QUICK = ("a BISnp overtakes its grant",)


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=() if bug in QUICK else pytest.mark.slow) for bug in BUGS],
)
def test_the_bench_catches_a_planted_bug(bug):
    name, block, old, new = BUGS[bug]
    with pytest.raises(AssertionError):
        for blocks in (0, 1):
            weather(name, make=front_of(block, old, new), patience=20_000, blocks=blocks)
        figures = weather(name, make=front_of(block, old, new), transactions=40_000)
        assert figures.lost == figures.silent + figures.refused
        assert figures.unasked == figures.too_late


def test_flipped_bits_in_the_fronts_memories_are_corrected_or_loud():
    """Some of each memory are met; but the queue of own completions hardly ever waits there
    (test_completions.py)."""
    found = flip_bench.campaign(each=8)
    for name, kinds in found.items():
        for bits, counts in kinds.items():
            assert not counts.keys() - set(flip_bench.GOOD[bits]), (name, bits, counts)
            met = counts[flip_bench.GOOD[bits][0]]
            assert met or name == "completions.queue.rows.rows", (name, bits, counts)
    assert len(found) == 6


@pytest.mark.slow  # a model of its own
def test_the_flip_bench_catches_a_decoder_that_does_not_correct():
    row = 'data.View(MESSAGES["M2SReq"], row)'
    bad = front_of(RequestWindow, row, row.replace("row)", "row ^ single.any())"))
    counts = flip_bench.campaign(each=12, make=bad, only=("window.rows",))["window.rows"][1]
    assert any(what.startswith("silent") for what in counts), counts


def test_bad_parameters_are_refused():
    with pytest.raises(TypeError, match="sizes must be a kelp_spec.coherence.Coherence, not 4"):
        CoherentFront(config=CONFIG, sizes=4)
