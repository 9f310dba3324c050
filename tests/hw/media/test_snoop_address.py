# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Snoops carry the host's address, by windows or range."""

import random

import pytest
from simulation import simulate
from streams import Ends, pump
from timing import check_pace, offers, shown

from kelp_hw.media.snoop_address import SnoopAddress
from kelp_spec.cxlio.config import UNIT_BYTES, named_cxlio
from kelp_spec.messages import FIELDS

CONFIG = named_cxlio("joined").replace(name="large", capacity=8)
LINES = UNIT_BYTES // 64


WINDOWS = [
    {"on": 1, "base": 40, "size": 2, "dpa": 0},
    {"on": 1, "base": 50, "size": 3, "dpa": 4},
]


@pytest.mark.parametrize("take", [1.0, 0.3])
def test_each_snoop_has_the_hosts_address(take):
    places = [(0, 40), (1, 41), (2, None), (4, 50), (6, 52), (7, None)]
    snoops = [{"bi_tag": i, "address": u * LINES + 5 + i} for i, (u, _) in enumerate(places)]
    held = {"decoding": {"windows": WINDOWS, "enable": 1}}
    ends = Ends(sends={"i": snoops}, takes=("o",), take=take, held=held)
    seen = pump(SnoopAddress(config=CONFIG), ends, cycles=80)["o"]
    assert [(t.item["bi_tag"], t.item["address"]) for t in seen] == [
        (i, u * LINES + 5 + i) for i, (_, u) in enumerate(places) if u is not None
    ]


def test_a_window_that_is_off_is_none():
    windows = [{"on": 0, "base": 60, "size": 8, "dpa": 0}]
    held = {"decoding": {"windows": windows, "enable": 1}}
    ends = Ends(sends={"i": [{"address": LINES}]}, takes=("o",), held=held)
    assert pump(SnoopAddress(config=CONFIG), ends, cycles=20)["o"] == []


def test_beyond_the_device_is_no_range():
    held = {"decoding": {"mem_enable": 1, "range_base": 100}}
    snoops = [{"address": unit * LINES} for unit in (CONFIG.capacity - 1, CONFIG.capacity)]
    ends = Ends(sends={"i": snoops}, takes=("o",), held=held)
    seen = pump(SnoopAddress(config=CONFIG), ends, cycles=20)["o"]
    assert [t.item["address"] for t in seen] == [(99 + CONFIG.capacity) * LINES]


def test_the_range_decodes_where_no_decoder_does():
    for enable, wanted in ((0, [102 * LINES + 1]), (1, [])):
        held = {"decoding": {"mem_enable": 1, "range_base": 100, "enable": enable}}
        ends = Ends(sends={"i": [{"address": 2 * LINES + 1}]}, takes=("o",), held=held)
        seen = pump(SnoopAddress(config=CONFIG), ends, cycles=20)["o"]
        assert [t.item["address"] for t in seen] == wanted


def test_any_snoop_through_any_windows():
    """Each field, whatever the decoders and the range are just then, against the same in Python; of
    a device whose size is no power of two."""
    config, rng = CONFIG.replace(name="seven", capacity=7), random.Random(5)
    dut, sizes = SnoopAddress(config=config), dict(FIELDS["S2MBISnp"])
    seen = {"range": 0, "window": 0, "none": 0, "stood": 0}

    def drawn():
        """Windows one behind the other, as decoders are committed."""
        dpa, windows = rng.randrange(3), []
        for _ in range(config.decoders):
            size = rng.randrange(1, 4)
            base = rng.choice((rng.getrandbits(24), (1 << 24) - 8 + rng.randrange(4)))
            windows.append({"on": rng.random() < 0.7, "base": base, "size": size, "dpa": dpa})
            dpa += size + rng.randrange(2)
        how = {name: rng.random() < 0.5 for name in ("enable", "mem_enable")}
        return how | {"windows": windows, "range_base": rng.getrandbits(24) - 8 & 0xFF_FFFF}

    def at_host(decoding, unit):
        for window in decoding["windows"] if decoding["enable"] else ():
            if window["on"] and 0 <= unit - window["dpa"] < window["size"]:
                seen["window"] += 1
                return window["base"] + unit - window["dpa"]
        if decoding["mem_enable"] and not decoding["enable"] and unit < config.capacity:
            seen["range"] += 1
            return decoding["range_base"] + unit
        seen["none"] += 1
        return None

    async def bench(ctx):
        standing = decoding = None
        for _ in range(3000):
            if decoding is None or rng.random() < 0.2:
                decoding = drawn()
                ctx.set(dut.decoding, decoding)
            snoop = {name: rng.getrandbits(bits) for name, bits in sizes.items()}
            unit = rng.randrange(9) ^ (rng.random() < 0.1) << rng.randrange(24)
            snoop["address"] = unit * LINES + rng.randrange(LINES)
            valid, ready = rng.random() < 0.8, rng.random() < 0.6
            ctx.set(dut.i.p, snoop)
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.o.ready, ready)
            shown = {name: ctx.get(dut.o.p[name]) for name in sizes}
            assert (shown if ctx.get(dut.o.valid) else None) == standing
            moves = ready or standing is None
            assert ctx.get(dut.i.ready) == moves
            if moves:
                host = at_host(decoding, unit) if valid else None
                mask = (1 << sizes["address"]) - 1
                address = (host or 0) * LINES + snoop["address"] % LINES & mask
                standing = None if host is None else snoop | {"address": address}
            else:
                seen["stood"] += 1
            await ctx.tick()

    simulate(dut, bench)
    assert min(seen.values()) > 200


def test_latency_and_interval():
    hold = {"o.ready": 1, "decoding.mem_enable": 1}
    dut = SnoopAddress(config=CONFIG)
    check_pace(dut, "LATENCY", shown("o", "bi_tag"), offers(field="bi_tag"), prepare=hold)
