# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""cocotb bench of the quantiser and the dequantiser: any format and host type after any other, idle
cycles, back-pressure, reset.

``params``: ``block`` ("Quantiser" or "Dequantiser"), ``latency`` in cycles as the block states it,
``turn``, the cycles that a line takes at least, ``count`` lines.
"""

import random

import cocotb
import numpy as np
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.codec import decode, encode
from kelp_spec.formats import LINE_BYTES, Format, HostType

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .codec_cases import mixed_lines, mixed_stored
from .codec_model import pack_lines, pack_stored, unpack_lines, unpack_stored

TIMEOUT = dict(timeout_time=8, timeout_unit="ms")


def expected_stored(lines, host_type, fmt) -> tuple[np.ndarray, np.ndarray]:
    """Payloads, filled up to a line, and scales of lines of mixed formats, by the golden model."""
    payload, scale = np.zeros((len(lines), LINE_BYTES), np.uint8), np.zeros(len(lines), np.uint16)
    for host in HostType:
        for f in Format:
            of = (host_type == host) & (fmt == f)
            payload[of, : f.payload_bytes], scale[of] = encode(lines[of], host, f)
    return payload, scale


def expected_lines(payload, scale, host_type, fmt) -> np.ndarray:
    """Lines of payloads of mixed formats, by the golden model."""
    lines = np.zeros((len(payload), LINE_BYTES // 2), np.uint16)
    for host in HostType:
        for f in Format:
            of = (host_type == host) & (fmt == f)
            lines[of] = decode(payload[of, : f.payload_bytes], scale[of], host, f)
    return lines


class TB:
    """Drives ``i`` and takes from ``o`` of one codec, and keeps the cycle of every transfer."""

    def __init__(self, dut):
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.params = bench_params()
        rng = np.random.default_rng(cocotb.RANDOM_SEED)
        if self.params["block"] == "Quantiser":
            self.case = mixed_lines(rng, self.params["count"])
            words = pack_lines(*self.case)
        else:
            self.case = mixed_stored(rng, self.params["count"])
            words = pack_stored(*self.case)
        self.items = [int.from_bytes(row.tobytes(), "little") for row in words]
        dut._log.info("seed %d", cocotb.RANDOM_SEED)

    async def start(self):
        self.dut.i__valid.value = 0
        self.dut.o__ready.value = 0
        await start_clock(self.dut)
        await self.reset()

    async def reset(self):
        self.dut.rst.value = 1
        self.dut.i__valid.value = 0
        for _ in range(2):
            await RisingEdge(self.dut.clk)
        self.dut.rst.value = 0

    async def run(self, items, offer: float, take: float) -> tuple[list[int], list[int], list[int]]:
        """Pass ``items`` through; what came out, and the cycles of acceptance and of arrival. A
        held ``valid`` and its payload stay as they are."""
        dut, rng = self.dut, self.rng
        got, accepted, given = [], [], []
        cycle, held, owed = 0, False, None
        while len(got) < len(items):
            held = held or (len(accepted) < len(items) and rng.random() < offer)
            dut.i__valid.value = int(held)
            dut.i__payload.value = items[len(accepted)] if held else rng.getrandbits(512)
            dut.o__ready.value = int(rng.random() < take)
            await ReadOnly()
            if held and dut.i__ready.value == 1:
                accepted.append(cycle)
                held = False
            if dut.o__valid.value == 1:
                payload = int(dut.o__payload.value)
                assert owed is None or owed == payload, "the payload changed while it waited"
                owed = payload
                if dut.o__ready.value == 1:
                    got.append(payload)
                    given.append(cycle)
                    owed = None
            else:
                assert owed is None, "valid fell before its transfer"
            await RisingEdge(dut.clk)
            cycle += 1
        dut.i__valid.value = 0
        return got, accepted, given

    def check(self, got: list[int], first: int = 0):
        """Compare what came out, from item ``first`` on, with the golden model."""
        words = np.stack([np.frombuffer(value.to_bytes(68, "little"), np.uint32) for value in got])
        case = [column[first : first + len(got)] for column in self.case]
        meta = np.arange(first, first + len(got)) % 256
        if self.params["block"] == "Quantiser":
            payload, scale, fmt, tag = unpack_stored(words)
            want_payload, want_scale = expected_stored(*case)
            same = (payload == want_payload).all(axis=1) & (scale == want_scale) & (fmt == case[2])
        else:
            lines, tag = unpack_lines(words)
            same = (lines == expected_lines(*case)).all(axis=1)
        bad = np.flatnonzero(~(same & (tag == meta)))
        assert not len(bad), (
            f"{len(bad)} of {len(got)} lines differ, first {bad[0]}: "
            + f"{[column[bad[0]] for column in case]}"
        )


@cocotb.test(**TIMEOUT)
async def every_format_under_back_pressure(dut):
    tb = TB(dut)
    await tb.start()
    for part, (offer, take) in enumerate(
        ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.3, 0.3), (0.9, 0.8))
    ):
        size = len(tb.items) // 5
        got, _, _ = await tb.run(tb.items[part * size : (part + 1) * size], offer, take)
        tb.check(got, part * size)


@cocotb.test(**TIMEOUT)
async def full_rate_at_stated_latency(dut):
    tb = TB(dut)
    await tb.start()
    got, accepted, given = await tb.run(tb.items, 1.0, 1.0)
    tb.check(got)
    assert {out - into for into, out in zip(accepted, given, strict=True)} == {tb.params["latency"]}
    assert accepted[-1] - accepted[0] == (len(got) - 1) * tb.params["turn"], "the input paused"
    record(lines=len(got), cycles=given[-1] - given[0] + 1, latency=given[0] - accepted[0])


@cocotb.test(**TIMEOUT)
async def reset_discards_what_is_in_flight(dut):
    tb = TB(dut)
    await tb.start()
    dut.o__ready.value = 0
    for item in tb.items[: 20 // tb.params["turn"]]:
        dut.i__valid.value = 1
        dut.i__payload.value = item
        for _ in range(tb.params["turn"]):
            await RisingEdge(dut.clk)
        if dut.i__ready.value == 0:
            break  # an offer that is not taken stays until the reset
    await tb.reset()
    got, _, _ = await tb.run(tb.items[20:60], 0.8, 0.8)
    tb.check(got, 20)
