# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Egress: answers of both sources at every pace, two channels with pauses of their own; every
answer once, whole, in its source's order and timed."""

import random
from collections import Counter

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import MESSAGES, Layouts
from kelp_spec.config import named
from kelp_spec.messages import S2MDRS, S2MNDR, DevLoad
from kelp_spec.metadata import Answer

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

CHANNELS = ("drs", "ndr")
SOURCES = ("i", "i_window")


def channel_of(source, answer):
    """Completions are NDR, everything that carries a line is DRS."""
    return (
        "ndr" if (answer["answer"] == Answer.CMP if source == "i" else answer["write"]) else "drs"
    )


def message_of(source, answer, fatal):
    """The S2M message of an answer, all of its fields: nothing of MetaField is kept (3), the load
    is light. After a fatal error an answer of the data path has no data."""
    side = source == "i_window"
    common = {
        "meta_field": 3,
        "meta_value": 0,
        "dev_load": DevLoad.LIGHT,
        "tag": answer["tag" if side else "origin.tag"],
        "ld_id": answer["ld_id" if side else "origin.ld_id"],
    }
    if channel_of(source, answer) == "ndr":
        return common | {"opcode": S2MNDR.CMP}
    kind = Answer.DATA if side else answer["answer"]
    if fatal and not side:
        return common | {"opcode": S2MDRS.MEM_DATA, "data": 0, "poison": 1}
    return common | {
        "opcode": S2MDRS.MEM_DATA_NXM if kind == Answer.NXM else S2MDRS.MEM_DATA,
        "data": answer["data"] if kind == Answer.DATA else 0,
        "poison": int(not side and (answer["poison"] or kind == Answer.POISON)),
    }


class TB:
    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(named(bench_params()["config"]))
        self.source = {"i": Packing(layouts.answer), "i_window": Packing(layouts.window_answer)}
        self.message = {"drs": Packing(MESSAGES["S2MDRS"]), "ndr": Packing(MESSAGES["S2MNDR"])}
        self.p_valid, self.p_ready = dict.fromkeys(SOURCES, 0.5), dict.fromkeys(CHANNELS, 0.5)
        self.kinds = [Answer.DATA, Answer.ZEROS, Answer.POISON, Answer.NXM, Answer.CMP, Answer.CMP]
        self.side_kinds = [False, True]
        # the time base wraps on the way
        self.seen, self.cycles, self.serial, self.now = Counter(), 0, 0, (1 << 32) - 3000
        self.forget()

    def forget(self):
        self.fatal = False
        self.offered, self.waited = dict.fromkeys(SOURCES), dict.fromkeys(SOURCES, 0)
        self.held = dict.fromkeys(CHANNELS)

    async def reset(self):
        dut = self.dut
        dut.rst.value, dut.i__valid.value, dut.i_window__valid.value = 1, 0, 0
        for _ in range(2):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        self.forget()

    def answer(self, source):
        """Tags count up over both sources, so that what is lost, doubled or out of order shows."""
        rng = self.rng
        self.serial = self.serial + 1 & 0xFFFF
        if source == "i_window":
            return {
                "write": rng.choice(self.side_kinds),
                "tag": self.serial,
                "ld_id": rng.getrandbits(4),
                "data": rng.getrandbits(512),
            }
        kind = rng.choice(self.kinds)
        age = rng.choice([rng.randrange(30), rng.getrandbits(32) >> rng.randrange(32)])
        return {
            "answer": kind,
            "poison": kind == Answer.DATA and rng.random() < 0.2,
            "data": rng.getrandbits(512) * (kind == Answer.DATA),
            "origin.tag": self.serial,
            "origin.ld_id": rng.getrandbits(4),
            "origin.start": self.now - age & 0xFFFFFFFF,
            "origin.missed": rng.getrandbits(1),
        }

    async def cycle(self, offer=True):
        dut, rng = self.dut, self.rng
        for source, packing in self.source.items():
            if offer and self.offered[source] is None and rng.random() < self.p_valid[source]:
                self.offered[source] = self.answer(source)
            answer = self.offered[source]
            getattr(dut, f"{source}__valid").value = int(answer is not None)
            getattr(dut, f"{source}__payload").value = (
                rng.getrandbits(packing.width) if answer is None else packing.pack(**answer)
            )
        ready = {channel: rng.random() < p for channel, p in self.p_ready.items()}
        for channel, flag in ready.items():
            getattr(dut, f"s2m_{channel}__ready").value = int(flag)
        dut.now.value, dut.fatal.value = self.now, int(self.fatal)
        await ReadOnly()
        self.look(ready)
        await RisingEdge(dut.clk)
        self.cycles += 1
        self.now = self.now + 1 & 0xFFFFFFFF

    def look(self, ready):
        dut = self.dut
        assert dut.idle.value == (not any(self.held.values()))
        # The channels are registers: each holds the answer before, whole, until the host takes it.
        free = {}
        for channel, packing in self.message.items():
            want = self.held[channel]
            assert getattr(dut, f"s2m_{channel}__valid").value == (want is not None), (
                f"cycle {self.cycles}: {channel}, expected {want}"
            )
            if want is not None:
                got = packing.unpack(getattr(dut, f"s2m_{channel}__payload").value)
                assert got == want, f"cycle {self.cycles}: {channel} {got}, expected {want}"
                self.seen[f"{channel} held back"] += not ready[channel]
            free[channel] = want is None or ready[channel]
            if ready[channel]:
                self.held[channel] = None
        wants = {
            source: channel_of(source, answer)
            for source, answer in self.offered.items()
            if answer is not None
        }
        taken = [source for source in wants if getattr(dut, f"{source}__ready").value == 1]
        for source in taken:
            channel = wants[source]
            assert free[channel] and self.held[channel] is None, (
                f"cycle {self.cycles}: {source} overwrites what waits on {channel}"
            )
            self.held[channel] = message_of(source, self.offered[source], self.fatal)
            self.seen[f"{source} {channel}"] += 1
            self.seen[f"fatal {source} {channel}"] += self.fatal
            self.seen["nxm"] += (
                self.held[channel]["opcode"] == S2MDRS.MEM_DATA_NXM and channel == "drs"
            )
            self.seen["poison"] += self.held[channel].get("poison", 0)
        contended = len(set(wants.values())) < len(wants)
        self.seen["both taken"] += len(taken) == 2
        for source, channel in wants.items():
            if source in taken:
                self.waited[source] = 0
            elif free[channel]:
                # Only the other source's answer may be in the way of the data path's, and only once
                # in a row; the side's waits its turn once.
                assert source == "i_window" or (contended and len(taken) == 1), (
                    f"cycle {self.cycles}: {source} waits for a {channel} that is free"
                )
                self.waited[source] += 1
                assert self.waited[source] <= 1, (
                    f"cycle {self.cycles}: {source} is passed over a second time"
                )
                self.seen[f"{source} gives way"] += 1
        # Each KV answer is timed once, in the cycle in which it is taken.
        assert (dut.o_latency__valid.value == 1) == ("i" in taken)
        if "i" in taken:
            origin = self.offered["i"]
            got = int(dut.o_latency__payload.value)
            assert got == (
                (self.now - origin["origin.start"] & 0xFFFFFFFF) << 1 | origin["origin.missed"]
            ), f"cycle {self.cycles}: latency {got:#x} of {origin}"
        for source in taken:
            self.offered[source] = None


async def start(dut) -> TB:
    tb = TB(dut)
    await start_clock(dut)
    await tb.reset()
    return tb


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def random_answers(dut):
    tb = await start(dut)
    for n in range(bench_params()["cycles"]):
        if n % 100 == 0:
            tb.p_valid = {source: tb.rng.choice([0.1, 0.5, 1.0]) for source in SOURCES}
            tb.p_ready = {channel: tb.rng.choice([0.05, 0.5, 1.0, 1.0]) for channel in CHANNELS}
            tb.fatal = tb.rng.random() < 0.1
            tb.kinds = tb.rng.choice(
                [
                    [Answer.CMP],
                    [Answer.DATA, Answer.NXM],
                    [Answer.DATA, Answer.ZEROS, Answer.POISON, Answer.NXM, Answer.CMP, Answer.CMP],
                ]
            )
        if n % 1000 == 999:
            tb.seen["reset of an answer"] += any(tb.held.values())
            await tb.reset()
        await tb.cycle()
    tb.p_ready = dict.fromkeys(CHANNELS, 1.0)
    for _ in range(10):
        await tb.cycle(offer=False)
    assert dut.idle.value == 1
    record(seen=dict(tb.seen))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def full_rate(dut):
    """The data path alone sends one answer a cycle; against a side that always wants the same
    channel it keeps every second one."""
    tb = await start(dut)
    tb.p_ready, tb.kinds, tb.side_kinds = dict.fromkeys(CHANNELS, 1.0), [Answer.DATA], [False]
    rates = {}
    for name, tb.p_valid in (
        ("alone", {"i": 1.0, "i_window": 0.0}),
        ("shared", {"i": 1.0, "i_window": 1.0}),
    ):
        tb.offered = dict.fromkeys(SOURCES)
        before = dict(tb.seen)
        for _ in range(200):
            await tb.cycle()
        rates[name] = [
            (tb.seen[f"{source} drs"] - before.get(f"{source} drs", 0)) / 200 for source in SOURCES
        ]
    record(rates=rates)
