# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint behind CXL.io (kelp_verif.cxlio.device_bench), and what it costs the endpoint alone:
nothing."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from simulation import simulate

from kelp_hw import cxl_device
from kelp_hw.cxl_device import CxlDevice
from kelp_hw.endpoint import endpoint_signature
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import ConfigError, named
from kelp_spec.metadata import ScoreEvent
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


@pytest.mark.parametrize("sizes", [{}, {"sessions": 3, "queues": 3}, {"sessions": 1, "queues": 5}])
def test_the_hot_list_hears_of_pages_by_their_addresses(monkeypatch, sizes):
    """Also where a session's queues are no power of two. The device's own wires alone: what they
    join stands still."""
    c, made = UNIT.with_(cxlio="joined", **sizes), {}

    def hollow(name, signature_of):
        class Hollow(wiring.Component):
            def __init__(self, *, config):
                super().__init__(signature_of(config))
                made[name] = self

            def elaborate(self, platform):
                return Module()

        return Hollow

    io_of = cxl_device.CxlIo
    monkeypatch.setattr(cxl_device, "CxlIo", hollow("io", lambda io: io_of(config=io).signature))
    monkeypatch.setattr(
        cxl_device,
        "Endpoint",
        hollow("endpoint", lambda c: wiring.Signature(endpoint_signature(c))),
    )
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
