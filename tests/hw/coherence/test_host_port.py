# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The host's port of the endpoint: its pace, what it knows of the sessions, and what it puts where,
wire by wire. What it does for a host that caches is tests/verif/coherence's business."""

import random
from unittest import mock

import pytest
from amaranth.hdl import Const, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from flips import opened
from simulation import simulate
from timing import check_pace, offers, shown

from kelp_hw.coherence import host_port
from kelp_hw.coherence.front import CoherentFront
from kelp_hw.coherence.host_port import CoherentHostPort
from kelp_hw.coherence.lost_lines import LostLines
from kelp_spec.coherence import MetaValue, sizes_of
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.messages import S2MNDR, M2SReq, M2SRwD
from kelp_spec.metadata import Event

CONFIG = named("unit_coherent")
SIZES = sizes_of(CONFIG)
SETTLE = SIZES.sets + 4
OPEN = {
    "enable": 1,
    **dict.fromkeys(("inner_req.ready", "inner_rwd.ready", "s2m_drs.ready", "s2m_ndr.ready"), 1),
}


def new_port():
    return CoherentHostPort(config=CONFIG)


def _aside(block):
    """A block's ports and nothing behind them; the bench is what is in it."""

    class Aside(wiring.Component):
        made = []  # the one that was built

        def __init__(self, **arguments):
            super().__init__(dict(block(**arguments).signature.members))
            self.made.append(self)

        def elaborate(self, platform):
            return Module()

    return Aside


class _Ports:
    """The signals of a block's ports by their path, and which of them it is told."""

    def __init__(self, block):
        flat = [each for each in block.signature.flatten(block) if type(each[2]) is not Const]
        self.at = {path: Value.cast(value) for path, _, value in flat}
        self.told = [path for path, member, _ in flat if member.flow == In]
        self.says = [path for path, member, _ in flat if member.flow != In]


class _Sessions:
    """What the port is to know of the sessions: of each, whether it rounds."""

    def __init__(self):
        self.rounds, self.was_open = ([0] * CONFIG.sessions for _ in range(2))
        self.fresh = [1] * CONFIG.sessions

    def tick(self, is_open, write):
        """A cycle with the configuration `write` of a queue: (squeue, whether it is raw), or
        None."""
        for k in range(CONFIG.sessions):
            if write and write[0] // CONFIG.queues == k:
                kept = 0 if self.fresh[k] else self.rounds[k]
                self.rounds[k], self.fresh[k] = int(kept or not write[1]), 0
            elif self.was_open[k] and not is_open[k]:
                self.fresh[k] = 1
        self.was_open = is_open


#: Port of the endpoint's, as it is, at the front (`to`: the endpoint's own; `from`: the host's).
_FROM = ("s2m_drs", "s2m_ndr", "s2m_bisnp", "inner_req", "o_answer")
_TO = ("inner_drs", "i_ask")


def _places(line):
    """(squeue, page, line in its page) of a line of the KV map."""
    squeue, rest = divmod(line, 1 << CONFIG.page_bits + CONFIG.line_bits)
    session, queue = divmod(squeue, 1 << CONFIG.queue_bits)
    return session * CONFIG.queues + queue, *divmod(rest, 1 << CONFIG.line_bits)


def _names(ctx, dut, line):
    """The event of a copy that was never granted names this line, and its session's owner."""
    event, squeue = dut.o_event[2].p, _places(line)[0]
    assert ctx.get(event.code) == Event.COPY_UNGRANTED
    named = tuple(ctx.get(event[name]) for name in ("squeue", "page", "argument"))
    assert named == _places(line)
    assert ctx.get(event.ld_id) == ctx.get(dut.sessions[squeue // CONFIG.queues].ld_id)


def _wired(dut, front, lost, sessions, stays):
    """Every wire that leaves the port, or goes to one of its blocks: what is to be on it. Each
    argument is what is on the wires by path; `stays`: the host's write was offered before."""
    on = {}

    def stream(source, sink, *names):
        (out, out_of), (into, into_of) = source, sink
        for kind in ("valid", "payload"):
            on[into, *names[1], kind] = out_of[*names[0], kind]
        if (*names[0], "ready") in out_of:
            on[out, *names[0], "ready"] = into_of.get((*names[1], "ready"), 1)

    ports = {"dut": ("dut", dut), "front": ("front", front), "lost": ("lost", lost)}
    for name in _FROM:
        stream(ports["front"], ports["dut"], (name,), (name,))
    for name in _TO:
        stream(ports["dut"], ports["front"], (name,), (name,))
    stream(ports["dut"], ports["lost"], ("inner_ndr",), ("i_ndr",))
    stream(ports["lost"], ports["front"], ("o_ndr",), ("inner_ndr",))
    stream(ports["front"], ports["lost"], ("o_lost",), ("i",))
    stream(ports["lost"], ports["dut"], ("o_event",), ("o_event", 0))
    stream(ports["dut"], ports["front"], ("m2s_birsp",), ("m2s_birsp",))
    for name in ("m2s_req", "m2s_rwd"):
        on["front", name, "valid"] = dut[name, "valid"] & dut["enable",]
        on["front", name, "payload"] = dut[name, "payload"]
        on["dut", name, "ready"] = front[name, "ready"] & dut["enable",]
    turn = lost["o_rwd", "valid"] and not stays
    own = lost if turn else front
    name = "o_rwd" if turn else "inner_rwd"
    on["dut", "inner_rwd", "valid"] = own[name, "valid"]
    on["dut", "inner_rwd", "payload"] = own[name, "payload"]
    on["lost", "o_rwd", "ready"] = int(dut["inner_rwd", "ready"] and turn)
    on["front", "inner_rwd", "ready"] = int(dut["inner_rwd", "ready"] and not turn)
    for name in ("now", "bi", "fatal"):
        on["front", name] = dut[name,]
    for name in ("ready", "fault"):
        on["dut", name] = front[name,]
    on["dut", "idle"] = front["idle",] & lost["idle",]
    on["lost", "owners"] = on["front", "sessions"] = None  # by field, by the caller
    for n, (bit, code) in enumerate(((0, Event.BIRSP_UNASKED), (1, Event.COPY_UNGRANTED)), 1):
        on["dut", "o_event", n, "valid"] = front["pulses",] >> bit & 1
        on["dut", "o_event", n, "payload"] = int(code)
    on["dut", "o_event", 2, "payload"] = None  # by field, by the caller
    return on, turn


def test_every_wire_is_where_it_belongs():
    """Every port of the front and of what poisons lost lines, with anything on it, in every
    cycle."""
    rng = random.Random(3)
    asides = {"front": _aside(CoherentFront), "lost": _aside(LostLines)}
    known, seen = _Sessions(), set()
    dut = new_port()

    async def bench(ctx):
        front, lost = (asides[name].made[-1] for name in ("front", "lost"))
        ports = {"dut": _Ports(dut), "front": _Ports(front), "lost": _Ports(lost)}
        driven = [(ports["dut"], ports["dut"].told)]
        driven += [(ports[name], ports[name].says) for name in asides]
        checked = {("dut", *path) for path in ports["dut"].says}
        checked |= {(name, *path) for name in asides for path in ports[name].told}
        stays = False
        for _ in range(500):
            for port, paths in driven:
                for path in paths:
                    ctx.set(port.at[path], rng.getrandbits(len(port.at[path])))
            write = dut.config_write.p
            raw = rng.random() < 0.7
            for name in ("format_k", "format_v"):
                each = Format.RAW16 if raw or rng.random() < 0.5 else rng.choice(list(Format))
                ctx.set(write.queue_config[name], each)
            raw = all(
                ctx.get(write.queue_config[name]) == Format.RAW16
                for name in ("format_k", "format_v")
            )
            ctx.set(dut.config_write.valid, rng.random() < 0.3)
            has = {
                name: {path: ctx.get(value) for path, value in port.at.items()}
                for name, port in ports.items()
            }
            wanted, turn = _wired(has["dut"], has["front"], has["lost"], known, stays)
            assert wanted.keys() == checked
            for (name, *path), value in wanted.items():
                if value is not None:
                    assert has[name][*path] == value, (name, *path)
            op = front.commit.p.op
            _names(ctx, dut, ctx.get(op.sector) * SIZES.sector + ctx.get(op.line))
            is_open = [ctx.get(each.open) for each in dut.sessions]
            for k, session in enumerate(dut.sessions):
                owner = ctx.get(session.ld_id)
                usable = is_open[k] and not ctx.get(session.closing)
                assert ctx.get(lost.owners[k]) == ctx.get(front.sessions.owners[k]) == owner
                assert ctx.get(front.sessions.open) >> k & 1 == usable
                if not known.fresh[k]:
                    assert ctx.get(front.sessions.rounds) >> k & 1 == known.rounds[k]
                    seen.add((k, known.rounds[k]))
            comes = (ctx.get(write.squeue), raw) if ctx.get(dut.config_write.valid) else None
            stays = bool(
                ctx.get(dut.inner_rwd.valid) and not ctx.get(dut.inner_rwd.ready) and not turn
            )
            await ctx.tick()
            known.tick(is_open, comes)

    with (
        mock.patch.object(host_port, "CoherentFront", asides["front"]),
        mock.patch.object(host_port, "LostLines", asides["lost"]),
    ):
        simulate(dut, bench)
    assert len(seen) == 2 * CONFIG.sessions


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
    check_pace(new_port(), attribute, output, stimuli, prepare=OPEN, settle=SETTLE)


async def _opened(ctx, dut):
    for name, value in OPEN.items():
        port, _, field = name.partition(".")
        ctx.set(getattr(getattr(dut, port), field) if field else dut.enable, value)
    while not ctx.get(dut.ready):
        await ctx.tick()


async def _read(ctx, dut, value, snoop=1, ld_id=5):
    """The completion of a MemRd of line 0 for `value`, and what the endpoint was asked."""
    ctx.set(dut.m2s_req.valid, 1)
    ctx.set(dut.m2s_req.p.ld_id, ld_id)
    ctx.set(dut.m2s_req.p.opcode, M2SReq.MEM_RD)
    ctx.set(dut.m2s_req.p.meta_value, value)
    ctx.set(dut.m2s_req.p.snp_type, snoop)
    await ctx.tick()
    ctx.set(dut.m2s_req.valid, 0)
    for _ in range(20):
        if ctx.get(dut.inner_req.valid):
            asked = ctx.get(dut.inner_req.p.meta_field), ctx.get(dut.inner_req.p.meta_value)
            tag = ctx.get(dut.inner_req.p.tag)
            break
        await ctx.tick()
    await ctx.tick()
    ctx.set(dut.inner_drs.valid, 1)
    ctx.set(dut.inner_drs.p.tag, tag)
    ctx.set(dut.inner_drs.p.ld_id, ld_id)
    await ctx.tick()
    ctx.set(dut.inner_drs.valid, 0)
    for _ in range(20):
        if ctx.get(dut.s2m_ndr.valid):
            return ctx.get(dut.s2m_ndr.p.opcode), asked
        await ctx.tick()
    raise AssertionError("no completion")


def test_grants_are_given_to_usable_sessions_and_e_to_owners_alone():
    dut = new_port()

    async def bench(ctx):
        await _opened(ctx, dut)
        none = (3, 0)
        assert await _read(ctx, dut, MetaValue.SHARED) == (S2MNDR.CMP, none)
        ctx.set(dut.sessions[0].open, 1)
        ctx.set(dut.sessions[0].ld_id, 5)
        assert await _read(ctx, dut, MetaValue.ANY, ld_id=6) == (S2MNDR.CMP, none)
        assert await _read(ctx, dut, MetaValue.SHARED) == (S2MNDR.CMP_S, none)
        assert await _read(ctx, dut, MetaValue.ANY) == (S2MNDR.CMP_E, (0, MetaValue.ANY))
        assert await _read(ctx, dut, MetaValue.SHARED) == (S2MNDR.CMP_E, none)
        ctx.set(dut.sessions[0].closing, 1)
        assert await _read(ctx, dut, MetaValue.ANY) == (S2MNDR.CMP, none)

    simulate(dut, bench)


def test_a_session_rounds_once_a_queue_of_it_does_until_it_is_closed():
    dut = new_port()

    async def bench(ctx):
        async def configure(squeue, fmt):
            ctx.set(dut.config_write.valid, 1)
            ctx.set(dut.config_write.p.squeue, squeue)
            ctx.set(dut.config_write.p.queue_config.format_k, fmt)
            ctx.set(dut.config_write.p.queue_config.format_v, Format.RAW16)
            await ctx.tick()
            ctx.set(dut.config_write.valid, 0)
            await ctx.tick()

        def rounds():
            return ctx.get(dut.rounding)

        await configure(0, Format.RAW16)
        assert rounds() == 0
        await configure(CONFIG.queues, Format.INT4)
        assert rounds() == 0b10
        await configure(CONFIG.queues + 1, Format.INT4)
        await configure(CONFIG.queues + 2, Format.RAW16)
        assert rounds() == 0b10
        ctx.set(dut.sessions[1].open, 1)
        await ctx.tick()
        await ctx.tick()
        ctx.set(dut.sessions[1].open, 0)
        await ctx.tick()
        await ctx.tick()
        assert rounds() == 0b10
        await configure(CONFIG.queues, Format.RAW16)
        assert rounds() == 0

    simulate(dut, bench)


def test_a_line_that_does_not_come_back_is_written_as_poison_and_told():
    """Behind a write that the endpoint was offered before it; the front is at rest when the
    endpoint has confirmed it."""
    dut, events = new_port(), []

    async def bench(ctx):
        async def until(what, steps=200):
            for _ in range(steps):
                if ctx.get(what):
                    return
                await step()
            raise AssertionError("it does not come")

        async def step():
            for event in dut.o_event:
                if ctx.get(event.valid):
                    p = event.p
                    events.append((ctx.get(p.code), ctx.get(p.ld_id), ctx.get(dut.inner_rwd.ready)))
            await ctx.tick()

        def offered():
            p = dut.inner_rwd.p
            return tuple(ctx.get(x) for x in (dut.inner_rwd.valid, p.tag, p.address, p.poison))

        await _opened(ctx, dut)
        ctx.set(dut.sessions[0].open, 1)
        ctx.set(dut.sessions[0].ld_id, 5)
        ctx.set(dut.bi.timeout, 100)
        assert (await _read(ctx, dut, MetaValue.ANY))[0] == S2MNDR.CMP_E
        await until(dut.idle)
        ctx.set(dut.inner_rwd.ready, 0)
        ctx.set(dut.s2m_bisnp.ready, 1)
        ctx.set(dut.i_ask.valid, 1)
        await until(dut.i_ask.ready)
        await step()
        ctx.set(dut.i_ask.valid, 0)
        await until(dut.s2m_bisnp.valid)
        await step()
        ctx.set(dut.m2s_rwd.valid, 1)
        ctx.set(dut.m2s_rwd.p, {"opcode": M2SRwD.MEM_WR, "tag": 77, "address": 64})
        await until(dut.m2s_rwd.ready)
        await step()
        ctx.set(dut.m2s_rwd.valid, 0)
        await until(dut.inner_rwd.valid)
        ctx.set(dut.now, 1000)
        for _ in range(20):
            assert offered()[:3] == (1, 77, 64) and not ctx.get(dut.idle)
            await step()
        ctx.set(dut.inner_rwd.ready, 1)
        await step()
        ctx.set(dut.inner_rwd.ready, 0)
        for _ in range(3):
            assert offered() == (1, LostLines.TAG, 0, 1)
            await step()
        assert not events
        ctx.set(dut.inner_rwd.ready, 1)
        ctx.set(dut.m2s_birsp.valid, 1)  # an answer to no snoop, in the cycle of the other event
        await step()
        ctx.set(dut.m2s_birsp.valid, 0)
        for _ in range(30):
            assert not ctx.get(dut.inner_rwd.valid) and not ctx.get(dut.idle)
            await step()
        ctx.set(dut.inner_ndr.valid, 1)
        for fields in ({"tag": 77, "ld_id": 0}, {"tag": LostLines.TAG, "ld_id": 5}):
            ctx.set(dut.inner_ndr.p, fields)
            await until(dut.inner_ndr.ready)
            await step()
        ctx.set(dut.inner_ndr.valid, 0)
        await until(dut.idle)

    simulate(opened(dut)[0], bench)
    assert events == [(Event.SNOOP_LOST, 5, 1), (Event.BIRSP_UNASKED, 0, 1)]


def test_an_answer_to_no_snoop_is_an_event():
    dut = new_port()

    async def bench(ctx):
        ctx.set(dut.m2s_birsp.valid, 1)
        assert ctx.get(dut.m2s_birsp.ready)
        unasked = dut.o_event[1]
        assert ctx.get(unasked.valid) and ctx.get(unasked.p.code) == Event.BIRSP_UNASKED

    simulate(dut, bench)


@pytest.mark.parametrize("value", [MetaValue.SHARED, MetaValue.ANY])
def test_a_copy_that_was_never_granted_is_an_event_that_names_its_line(value):
    """In whichever session, queue and page; of two, one behind the other, each its own."""
    dut, told = new_port(), []
    rng = random.Random(value)
    lines = [rng.randrange(1 << CONFIG.aperture_bits - 6) for _ in range(40)]
    lines = [line for line in lines if _places(line)[0] < CONFIG.squeues]

    async def bench(ctx):
        await _opened(ctx, dut)
        for k, session in enumerate(dut.sessions):
            ctx.set(session.ld_id, 3 + k)
        ungranted = dut.o_event[2]
        for line in [*lines, *8 * [None]]:
            write = {"opcode": M2SRwD.MEM_WR, "meta_value": value, "address": line or 0}
            write["ld_id"] = 3 + _places(line or 0)[0] // CONFIG.queues
            ctx.set(dut.m2s_rwd.p, write)
            ctx.set(dut.m2s_rwd.valid, line is not None)
            assert line is None or ctx.get(dut.m2s_rwd.ready)
            if ctx.get(ungranted.valid):
                _names(ctx, dut, lines[len(told)])
                told.append(ctx.get(ungranted.p.code))
            await ctx.tick()

    simulate(dut, bench)
    assert told == len(lines) * [Event.COPY_UNGRANTED] and len(lines) > 10
