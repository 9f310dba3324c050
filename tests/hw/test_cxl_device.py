# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint behind CXL.io (kelp_verif.cxlio.device_bench), and what it costs the endpoint alone:
nothing."""

import random
from collections import Counter

import pytest
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from hollow import hollow, wires
from simulation import simulate

from kelp_hw import cxl_device
from kelp_hw.cxl_device import CxlDevice
from kelp_hw.endpoint import endpoint_signature
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import ConfigError, named
from kelp_spec.cxlio.pmu import VendorEvent, pmu_map
from kelp_spec.messages import M2SReq, M2SRwD
from kelp_spec.metadata import ScoreEvent
from kelp_spec.registers import COUNTERS
from kelp_verif.harness.runner import Model, made, run_cocotb

UNIT = named("unit")


def test_without_cxlio_there_is_no_device_and_no_port():
    with pytest.raises(ConfigError, match="cxlio = '' is refused"):
        CxlDevice(config=UNIT)
    with pytest.raises(ConfigError, match="cxlio = 'nothing' is refused"):
        UNIT.with_(cxlio="nothing")
    assert set(endpoint_signature(UNIT.with_(cxlio="joined"))) - set(endpoint_signature(UNIT)) == {
        "o_told",
        "o_poisoned",
        "o_counted",
        "o_answered",
        "o_rest",
    }
    assert UNIT.with_(cxlio="joined").digest != UNIT.digest


def test_coherence_needs_a_cxlio_that_calls_lines_back():
    for cxlio, coherence in (("joined", True), ("joined_coherent", False)):
        with pytest.raises(ConfigError, match=f"cxlio = '{cxlio}' is refused"):
            UNIT.with_(cxlio=cxlio, coherence=coherence)


@pytest.mark.slow  # a second model of the device
@pytest.mark.timeout(2400)
def test_the_whole_coherent_device():
    seen = run_cocotb(
        CxlDevice(config=named("unit_cxl_coherent")),
        bench="kelp_verif.cxlio.coherent_device_bench",
        params={"config": "joined_coherent", "endpoint": "unit_cxl_coherent", "pause": 0.2},
        model=Model(opt="-O0"),
        timeout_s=1200,
    ).records
    assert seen["snooped"] >= 8


# Begun first: it builds a model of its own, while another worker builds that of choices.
@pytest.mark.timeout(2700)
@pytest.mark.parametrize(
    "bench",
    ["device_bench", "sanitize_bench", pytest.param("attack_bench", marks=pytest.mark.slow)],
)
@pytest.mark.sampled
def test_the_whole_device(bench):
    """What a host does with it; that a sanitize leaves nothing; what is against the rules."""
    seen = run_cocotb(
        made(CxlDevice, config=named("unit_cxl")),
        bench=f"kelp_verif.cxlio.{bench}",
        params={"config": "joined", "endpoint": "unit_cxl", "pause": 0.2},
        timeout_s=1200,
    ).records
    assert seen["cycles"] > 10_000


def test_a_sanitize_needs_an_id_of_its_own_at_the_tier():
    with pytest.raises(ConfigError, match="write_backs = 16 is refused"):
        named("unit_cxl").with_(write_backs=16)


def hollowed(monkeypatch):
    """The device's own wires alone: endpoint and CXL.io, by name once they are made, stand still
    unless a bench drives them."""
    made, io_of = {}, cxl_device.CxlIo
    io = hollow(made, "io", lambda config: io_of(config=config).signature)
    endpoint = hollow(made, "endpoint", lambda config: wiring.Signature(endpoint_signature(config)))
    monkeypatch.setattr(cxl_device, "CxlIo", io)
    monkeypatch.setattr(cxl_device, "Endpoint", endpoint)
    return made


#: Ports of the device that are the endpoint's own, and CXL.io's.
OF_ENDPOINT = ("m2s_birsp", "s2m_bisnp", "ready", "irq", "now", "quiescent", "skip", "lockstep")
OF_ENDPOINT += ("commit_result", "commit_frame", "commit_hot", "commit_score")
OF_IO = ("port", "messages", "signals")


def test_what_is_the_endpoints_and_what_is_cxl_ios_passes_in_the_cycle(monkeypatch):
    """Each bit of it, either way; faults of CXL.io's memories, and a sensor's temperature."""
    made, rng = hollowed(monkeypatch), random.Random(7)
    dut = CxlDevice(config=named("unit_cxl"))

    async def bench(ctx):
        ways = []
        for names, block in ((OF_ENDPOINT, made["endpoint"]), (OF_IO, made["io"])):
            for name in names:
                given = dut.signature.members[name].flow == In
                ends = getattr(dut, name), getattr(block, name)
                interface = hasattr(ends[0], "signature")
                ways += wires(*(ends if given or interface else ends[::-1]), outside=True)
        ways += [
            (made["endpoint"].ready, made["io"].memory_ready),
            (made["io"].fault.as_value(), dut.io_fault.as_value()),
        ]
        for _ in range(40):
            for given, _ in ways:
                ctx.set(given, rng.getrandbits(len(given)))
            ctx.set(dut.temperature, rng.getrandbits(16))
            await ctx.delay(1e-9)
            for given, seen in ways:
                assert ctx.get(seen) == ctx.get(given), seen.name
            await ctx.tick().repeat(2)
            assert ctx.get(made["io"].health.temperature) == ctx.get(dut.temperature)

    simulate(dut, bench)


def test_the_monitor_counts_what_moves_on_the_channels(monkeypatch):
    """By channel and opcode, and what the endpoint counts, in any cycle."""
    made, rng = hollowed(monkeypatch), random.Random(8)
    dut = CxlDevice(config=named("unit_cxl"))
    capabilities, seen = pmu_map(dut.io).capabilities, Counter()
    names = ("m2s_req", "m2s_rwd", "s2m_ndr", "s2m_drs")
    hit = 1 << [name for name, _ in COUNTERS].index("hits")

    async def bench(ctx):
        endpoint, io, owed = made["endpoint"], made["io"], dict.fromkeys(names, 0)
        ctx.set(io.decoding.mem_enable, 1)
        ctx.set(endpoint.ready, 1)
        standing = set()
        for _ in range(600):
            for name in names[:2]:
                port = getattr(dut, name)
                if name not in standing and rng.random() < 0.5:
                    standing.add(name)
                    of = M2SReq if name == "m2s_req" else M2SRwD
                    ctx.set(port.p.opcode, rng.choice([*of]))
                ctx.set(port.valid, name in standing)
                ctx.set(getattr(endpoint, name).ready, rng.random() < 0.7)
            for name in names[2:]:
                port = getattr(endpoint, name)
                if name not in standing and owed[name]:
                    standing.add(name)
                    owed[name] -= 1
                    ctx.set(port.p.opcode, rng.randrange(3))
                ctx.set(port.valid, name in standing)
                ctx.set(getattr(dut, name).ready, rng.random() < 0.7)
            hits = rng.random() < 0.3
            ctx.set(endpoint.o_counted, hit * hits)
            await ctx.delay(1e-9)
            moved = {VendorEvent.GROUP: hits << VendorEvent.HIT}
            for name, group in zip(names, cxl_device.GROUPS, strict=True):
                port = getattr(dut, name)
                moves = ctx.get(port.valid) and ctx.get(port.ready)
                moved[group] = moves << ctx.get(port.p.opcode)
                seen[name] += moves
                inner = port if name in names[:2] else getattr(endpoint, name)
                if ctx.get(inner.valid) and ctx.get(inner.ready):
                    standing.discard(name)
                if name in names[:2]:
                    to = getattr(endpoint, name)
                    answer = names[3] if name == names[0] else names[2]
                    told = name == names[1] or ctx.get(to.p.opcode) != M2SReq.MEM_SPEC_RD
                    owed[answer] += told and ctx.get(to.valid) and ctx.get(to.ready)
            for n, (_, group, _) in enumerate(capabilities):
                counted = ctx.get(io.counted[n])
                assert (counted["events"], counted["decoder"]) == (moved[group], 0), group
            await ctx.tick()

    simulate(dut, bench)
    assert min(seen.values()) > 60, seen


@pytest.mark.parametrize("stalls", ["m2s_req", "m2s_rwd"])
def test_a_channel_that_stands_still_is_not_overtaken(monkeypatch, stalls):
    """The endpoint takes one channel's messages seldom, as a RwD waits for a write slot. It is
    given all of both in the order in which the device took them, of one cycle the RwD first."""
    made, rng = hollowed(monkeypatch), random.Random(9)
    dut, taken, given = CxlDevice(config=named("unit_cxl")), [], []

    async def bench(ctx):
        endpoint, tags, offered = made["endpoint"], {"m2s_rwd": 0, "m2s_req": 0}, set()
        ctx.set(endpoint.ready, 1)
        for _ in range(600):
            for name in tags:
                port = getattr(dut, name)
                stands = name in offered
                ctx.set(port.valid, stands or rng.random() < 0.4)
                ctx.set(port.p.tag, tags[name])
                seldom = 0.1 if name == stalls else 1
                ctx.set(getattr(endpoint, name).ready, rng.random() < seldom)
            await ctx.delay(1e-9)
            for name in tags:
                inner, port = getattr(endpoint, name), getattr(dut, name)
                if ctx.get(inner.valid) and ctx.get(inner.ready):
                    given.append((name, ctx.get(inner.p.tag)))
                if ctx.get(port.valid) and not ctx.get(port.ready):
                    offered.add(name)
                elif ctx.get(port.valid):
                    offered.discard(name)
                    taken.append((name, tags[name]))
                    tags[name] += 1
            await ctx.tick()

    simulate(dut, bench)
    assert given == taken[: len(given)] and len(given) > 60


@pytest.mark.parametrize("sizes", [{}, {"sessions": 3, "queues": 3}, {"sessions": 1, "queues": 5}])
def test_the_hot_list_hears_of_pages_by_their_addresses(monkeypatch, sizes):
    """Also where a session's queues are no power of two. The device's own wires alone: what they
    join stands still."""
    c = UNIT.with_(cxlio="joined", **sizes)
    made = hollowed(monkeypatch)
    pages = [
        KvAddress(s, q, p, 0, 0)
        for s in range(c.sessions)
        for q in range(c.queues)
        for p in (0, 5, c.pages - 1)
    ]
    heard = []

    async def bench(ctx):
        score, heat = made["endpoint"].commit_score, made["io"].heat
        ctx.set(score.valid, 1)
        for kind in ScoreEvent:
            for page in pages:
                ctx.set(score.p.kind, kind)
                ctx.set(score.p.squeue, page.session * c.queues + page.queue)
                ctx.set(score.p.page, page.page)
                await ctx.delay(1e-9)
                if ctx.get(heat.valid):
                    heard.append((kind, ctx.get(heat.p.unit)))

    simulate(CxlDevice(config=c), bench)
    page_bits = c.line_bits + 6
    assert heard == [
        (kind, AddressMap(c).encode(page) >> page_bits)
        for kind in (ScoreEvent.TOUCH, ScoreEvent.MASS)
        for page in pages
    ]
