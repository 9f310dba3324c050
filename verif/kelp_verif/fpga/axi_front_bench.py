# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""AXI4 front end between cocotbext-axi's AxiMaster, which we did not write, and an endpoint that
answers out of order."""

import itertools
import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBurstType, AxiBus, AxiMaster

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import MESSAGES
from kelp_spec.messages import M2SReq, M2SRwD

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record


class Endpoint:
    """A memory behind M2S/S2M: at most one message a cycle accepted and one answer a cycle each
    way; answers of different lines overtake each other."""

    def __init__(self, dut, latency=(20, 20), pressure=0.0):
        self.dut, self.latency, self.pressure = dut, latency, pressure
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.req, self.rwd = Packing(MESSAGES["M2SReq"]), Packing(MESSAGES["M2SRwD"])
        self.drs, self.ndr = Packing(MESSAGES["S2MDRS"]), Packing(MESSAGES["S2MNDR"])
        self.io = {
            f"{c}_{p}": getattr(dut, f"{c}__{p}")
            for c in ("m2s_req", "m2s_rwd", "s2m_drs", "s2m_ndr")
            for p in ("valid", "ready", "payload")
        }
        self.memory, self.poisoned, self.unmapped = {}, set(), 1 << 40
        self.due = {"s2m_drs": {}, "s2m_ndr": {}}  # cycle → payload
        self.cycle, self.overtaken, self.requests, self.opcodes = 0, 0, 0, set()
        for name in ("m2s_req", "m2s_rwd"):
            self.io[f"{name}_ready"].value = 0
        for name in ("s2m_drs", "s2m_ndr"):
            self.io[f"{name}_valid"].value = 0

    def answer(self, channel, payload):
        when = self.cycle + self.rng.randint(*self.latency)
        while when in self.due[channel]:
            when += 1
        self.overtaken += any(other > when for other in self.due[channel])
        self.due[channel][when] = payload

    async def run(self):
        io = self.io
        while True:
            take = [int(self.rng.random() >= self.pressure) for _ in range(2)]
            for name in ("s2m_drs", "s2m_ndr"):
                payload = self.due[name].pop(self.cycle, None)
                io[f"{name}_valid"].value = int(payload is not None)
                if payload is not None:
                    io[f"{name}_payload"].value = payload
            io["m2s_rwd_ready"].value, io["m2s_req_ready"].value = take
            await ReadOnly()
            if take[0] and io["m2s_rwd_valid"].value:
                f = self.rwd.unpack(io["m2s_rwd_payload"].value)
                self.write(f)
            if take[1] and io["m2s_req_valid"].value:
                f = self.req.unpack(io["m2s_req_payload"].value)
                assert f["opcode"] == M2SReq.MEM_RD
                line = f["address"]
                bad = line in self.poisoned
                self.answer(
                    "s2m_drs",
                    self.drs.pack(
                        tag=f["tag"],
                        poison=int(bad),
                        opcode=int(line >= self.unmapped),
                        data=0 if bad or line >= self.unmapped else self.memory.get(line, 0),
                    ),
                )
                self.requests += 1
            await RisingEdge(self.dut.clk)
            self.cycle += 1

    def write(self, f):
        line, enable = f["address"], f["byte_enable"]
        self.opcodes.add(f["opcode"])
        assert (
            f["opcode"] == M2SRwD.MEM_WR
            and (f["poison"] or enable == (1 << 64) - 1)
            or f["opcode"] == M2SRwD.MEM_WR_PTL
            and enable
        )
        if f["poison"]:
            self.poisoned.add(line)
        else:
            mask = int.from_bytes(
                bytes(0xFF if enable >> b & 1 else 0 for b in range(64)), "little"
            )
            self.memory[line] = self.memory.get(line, 0) & ~mask | f["data"] & mask
            if f["opcode"] == M2SRwD.MEM_WR:
                self.poisoned.discard(line)
        self.answer("s2m_ndr", self.ndr.pack(tag=f["tag"]))
        self.requests += 1


async def start(dut, **options):
    endpoint = Endpoint(dut, **options)
    master = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
    await start_clock(dut)
    cocotb.start_soon(endpoint.run())
    for _ in range(3):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    for _ in range(3):
        await RisingEdge(dut.clk)
    return endpoint, master


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def bytes_are_kept(dut):
    """Any length at any address, several ids, back-pressure everywhere, answers out of order."""
    endpoint, master = await start(dut, latency=(5, 120), pressure=0.3)
    rng = endpoint.rng
    pause = itertools.cycle([rng.random() < 0.4 for _ in range(101)])
    for channel in (
        master.write_if.aw_channel,
        master.write_if.w_channel,
        master.write_if.b_channel,
        master.read_if.ar_channel,
        master.read_if.r_channel,
    ):
        channel.set_pause_generator(pause)
    mirror = bytearray(8192)
    for _ in range(bench_params().get("rounds", 12)):
        writes = []
        # Pieces that do not touch each other, so that they may be under way together.
        cuts = sorted(rng.sample(range(0, 8192), 8))
        for first, end in zip(cuts[::2], cuts[1::2], strict=True):
            data = rng.randbytes(min(end - first, 700))
            mirror[first : first + len(data)] = data
            writes.append(
                cocotb.start_soon(
                    master.write(first, data, awid=rng.randrange(16), size=rng.choice((6, 6, 3, 5)))
                )
            )
        for write in writes:
            await write
        reads = []
        for _ in range(4):
            first = rng.randrange(8000)
            length = rng.randint(1, min(700, 8192 - first))
            reads.append(
                (
                    first,
                    length,
                    cocotb.start_soon(
                        master.read(
                            first, length, arid=rng.randrange(16), size=rng.choice((6, 6, 4))
                        )
                    ),
                )
            )
        for first, length, read in reads:
            got = await read
            assert got.data == bytes(mirror[first : first + length]), f"{length} bytes at {first}"
    # Four beats of a line each. The second half of a wrapping burst lies before its first, of a
    # fixed one the last beat is what stays.
    wrapped, fixed = rng.randbytes(256), rng.randbytes(256)
    await master.write(384, wrapped, burst=AxiBurstType.WRAP)
    mirror[256:512] = wrapped[128:] + wrapped[:128]
    await master.write(640, fixed, burst=AxiBurstType.FIXED)
    mirror[640:704] = fixed[192:]
    assert (await master.read(256, 448)).data == bytes(mirror[256:704])
    assert (await master.read(384, 256, burst=AxiBurstType.WRAP)).data == wrapped
    assert (await master.read(640, 256, burst=AxiBurstType.FIXED)).data == 4 * fixed[192:]
    assert endpoint.overtaken > 10 and endpoint.opcodes == {M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL}
    record(requests=endpoint.requests, overtaken=endpoint.overtaken)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def poison_and_holes_are_told(dut):
    endpoint, master = await start(dut, latency=(3, 30))
    await master.write(0, bytes(range(256)))
    await master.write(64, bytes(64), wuser=1)
    got = await master.read(0, 256)
    users = list(got.user) if isinstance(got.user, (list, tuple)) else [got.user]
    assert (
        endpoint.poisoned == {1}
        and users == [0, 1, 0, 0]
        and got.data[128:] == bytes(range(128, 256))
    )
    await master.write(64, bytes(64 * [7]))
    got = await master.read(64, 64)
    assert got.data == bytes(64 * [7]) and not any(
        [got.user] if isinstance(got.user, int) else got.user or []
    )
    got = await master.read(1 << 46, 64)
    assert int(got.resp) == 3


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def full_rate(dut):
    """256 lines in bursts of 64 beats (AXI4 stops at 4 KB), of an endpoint that answers in any
    order after 30 to 60 cycles, the first 60 not counted: reads alone, writes alone, both
    together."""
    endpoint, master = await start(dut, latency=(30, 60))
    size, rates = 256 * 64, {}
    data = endpoint.rng.randbytes(size)

    async def timed(*tasks):
        begun, before = endpoint.cycle, endpoint.requests
        for task in [cocotb.start_soon(task) for task in tasks]:
            await task
        return (endpoint.requests - before) / (endpoint.cycle - begun - 60)

    async def read(first):
        assert (await master.read(first, size)).data == data, f"{size} bytes at {first}"

    rates["writes"] = await timed(master.write(0, data))
    rates["reads"] = await timed(read(0))
    rates["both"] = await timed(master.write(1 << 20, data), read(0))
    await read(1 << 20)
    record(beats_per_cycle={name: round(rate, 3) for name, rate in rates.items()})
