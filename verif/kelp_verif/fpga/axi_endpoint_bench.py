# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint with AXI4 on both sides between cocotbext-axi's AxiMaster and AxiRam, with a flash
that takes 250 cycles: everything goes over `s_axi_…`, registers too. Every port has back-pressure,
but where an order in time is looked at."""

import logging
import random

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge, with_timeout
from cocotbext.axi import AxiBus, AxiMaster, AxiRam, AxiResp

from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES, Format, HostType
from kelp_spec.metadata import LAYER_RANGES, ColdOp
from kelp_spec.registers import RegisterMap, SessionCommand

from ..endpoint.endpoint_model import stored
from ..endpoint.endpoint_traffic import pace
from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from ..miss.flash import Flash, FlashPort

LATENCY = 250  # of the flash
PATIENCE = 30_000  # cycles until an answer counts as missing


class TB:
    """The top, what is around it, and `mirror`: what each line of session 0 holds, None for
    poison."""

    def __init__(self, dut):
        values = bench_params()["config"]
        self.dut, self.config = dut, Config.of_json(values)
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.map, self.registers = AddressMap(self.config), RegisterMap(self.config).by_name
        self.mirror: dict[int, bytes | None] = {}
        self.commands, self.memory_reads = [], 0
        #: of the memory's side: ids under way, and beats of data that are due
        self.live, self.owed = {"r": set(), "w": set()}, 0
        self.strip = False  #: write beats lose their strobes

    async def start(self, ready: float) -> None:
        dut, rng = self.dut, self.rng
        logging.getLogger("cocotb").setLevel(logging.WARNING)
        self.master = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        size = 1 << (self.config.dram_lines * LINE_BYTES - 1).bit_length()
        self.memory = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=size)
        # whoever shows a line that nobody wrote is found out
        self.memory.write(0, rng.randbytes(size))
        self.flash = Flash(
            memory=self.memory, latency=LATENCY, jitter=0.9, seed=rng.getrandbits(32)
        )
        self.port = FlashPort(
            dut,
            self.flash,
            self.config,
            shuffle=True,
            seed=rng.getrandbits(32),
            pressure=(1 - ready) / 2,
        )
        await start_clock(dut)
        await ClockCycles(dut.clk, 4)
        for side in (self.master, self.memory):
            for channel in (
                side.write_if.aw_channel,
                side.write_if.w_channel,
                side.write_if.b_channel,
                side.read_if.ar_channel,
                side.read_if.r_channel,
            ):
                if ready < 1:
                    channel.set_pause_generator(
                        not go for go in pace(random.Random(rng.getrandbits(32)), ready)
                    )
        send = self.master.write_if.w_channel.send

        async def stripped(beat):
            beat.wstrb = 0 if self.strip else beat.wstrb
            await send(beat)

        self.master.write_if.w_channel.send = stripped
        dut.rst.value = 0
        cocotb.start_soon(self.run())
        for _ in range(2000):
            await RisingEdge(dut.clk)
            if dut.ready.value == 1:
                return
        raise AssertionError("the endpoint does not become ready")

    async def run(self) -> None:
        dut = self.dut
        passed = {
            c: (getattr(dut, f"m_axi_{c}valid"), getattr(dut, f"m_axi_{c}ready"))
            for c in ("ar", "r", "aw", "b", "w")
        }
        while True:
            self.port.drive()
            await ReadOnly()
            command = self.port.sample()
            if command is not None:
                self.commands.append(command)
            for channel, (valid, ready) in passed.items():
                if valid.value == 1 and ready.value == 1:
                    self.memory_transfer(channel)
            await RisingEdge(dut.clk)
            self.port.now += 1

    def memory_transfer(self, channel: str) -> None:
        """What the table of ports promises of the memory's side: whole lines, one transaction of an
        id at a time."""
        dut = self.dut
        if channel == "w":
            assert dut.m_axi_wlast.value == 1 and int(dut.m_axi_wstrb.value)
            self.owed -= 1
            return
        ids, number = (
            self.live["r" if "r" in channel else "w"],
            int(getattr(dut, f"m_axi_{channel}id").value),
        )
        if channel in ("r", "b"):
            ids.remove(number)
            return
        assert number not in ids, f"{channel}id = {number} has a transaction under way"
        ids.add(number)
        shape = [
            int(getattr(dut, f"m_axi_{channel}{field}").value)
            for field in ("len", "size", "burst", "addr")
        ]
        assert shape[:3] == [0, 6, 1] and shape[3] % LINE_BYTES == 0, f"{channel}: {shape}"
        self.memory_reads += channel == "ar"
        self.owed += channel == "aw"

    async def rest(self) -> None:
        """What was asked of memory ends."""
        for _ in range(PATIENCE):
            if not self.owed and not any(self.live.values()):
                return
            await RisingEdge(self.dut.clk)
        raise AssertionError(f"ids under way {self.live}, {self.owed} beats of data due")

    def count(self, op: ColdOp) -> int:
        return sum(command.op == op for command in self.commands)

    # - AXI ----------------------------------------------------------------------------------------
    async def write(self, address: int, data: bytes, **options) -> None:
        got = await with_timeout(
            self.master.write(
                address, data, awid=options.pop("awid", self.rng.randrange(256)), **options
            ),
            10 * PATIENCE,
            "ns",
        )
        assert got.resp == AxiResp.OKAY, f"write to {address:#x}: {got.resp}"

    async def read(self, address: int, length: int, **options):
        arid = options.pop("arid", self.rng.randrange(256))
        return await with_timeout(
            self.master.read(address, length, arid=arid, **options), 10 * PATIENCE, "ns"
        )

    async def all(self, *coroutines) -> list:
        return [await task for task in [cocotb.start_soon(each) for each in coroutines]]

    # - registers ----------------------------------------------------------------------------------
    async def set(self, name: str, **fields: int) -> None:
        register = self.registers[name]
        values = {f.name: f.reset for f in register.fields} | fields
        value = sum(int(values[f.name]) << f.low for f in register.fields)
        await self.write(self.map.register_base + register.offset, value.to_bytes(8, "little"))

    async def get(self, name: str) -> dict[str, int]:
        register = self.registers[name]
        got = await self.read(self.map.register_base + register.offset, 8, size=3)
        assert got.resp == AxiResp.OKAY, name
        value = int.from_bytes(got.data, "little")
        return {f.name: value >> f.low & (1 << f.bits) - 1 for f in register.fields}

    async def open(self, session: int, k: Format = Format.RAW16, v: Format = Format.RAW16) -> None:
        c, p = self.config, f"s{session}_"
        await self.set(
            p + "shape",
            layers=1,
            kv_heads=c.queues,
            used_lines=c.half_lines,
            host_type=HostType.FP16,
            k_only=0,
            used_pages=c.pages,
            owner=0,
        )
        await self.set(
            p + "formats",
            **{
                name: value
                for r in range(LAYER_RANGES)
                for name, value in (
                    (f"last_layer_{r}", 1023),
                    (f"format_k_{r}", k),
                    (f"format_v_{r}", v),
                )
            },
        )
        await self.set(p + "command", command=SessionCommand.OPEN)
        state = await self.get(p + "state")
        assert state["open"] and not state["refused"], state

    # - lines --------------------------------------------------------------------------------------
    @property
    def lines(self) -> int:
        """Of a session, all in one piece."""
        return self.config.queues * self.config.pages * self.config.page_lines

    def base(self, session: int) -> int:
        return self.map.encode(KvAddress(session, 0, 0, 0, 0))

    def ranges(self, most: int) -> list[tuple[int, int]]:
        """All lines of a session in pieces of 1 … `most`, in any order."""
        cuts = [0]
        while cuts[-1] < self.lines:
            cuts.append(min(self.lines, cuts[-1] + self.rng.randint(1, most)))
        pieces = list(zip(cuts[:-1], cuts[1:], strict=True))
        self.rng.shuffle(pieces)
        return pieces

    async def put(self, first: int, data: bytes, poison: bool = False) -> None:
        """Whole lines of session 0."""
        await self.write(self.base(0) + first * LINE_BYTES, data, wuser=int(poison))
        for n in range(len(data) // LINE_BYTES):
            self.mirror[first + n] = None if poison else data[n * LINE_BYTES : (n + 1) * LINE_BYTES]

    async def check(self, first: int, end: int) -> None:
        got = await self.read(self.base(0) + first * LINE_BYTES, (end - first) * LINE_BYTES)
        for n, line in enumerate(range(first, end)):
            held, shown = (
                self.mirror.get(line, bytes(LINE_BYTES)),
                got.data[n * LINE_BYTES : (n + 1) * LINE_BYTES],
            )
            assert got.user[n] == (held is None), f"line {line}: ruser {got.user[n]}"
            assert got.resp == AxiResp.OKAY and shown == (held or bytes(LINE_BYTES)), (
                f"line {line}: {shown.hex()}, not {held and held.hex()}"
            )

    async def check_all(self) -> None:
        pieces = self.ranges(40)
        for n in range(0, len(pieces), 3):
            await self.all(*(self.check(*piece) for piece in pieces[n : n + 3]))

    async def fill(self) -> None:
        """Every line of session 0, several bursts at once: twice as many pages as frames, at
        least."""
        pieces = self.ranges(40)
        for n in range(0, len(pieces), 3):
            await self.all(
                *(
                    self.put(first, self.rng.randbytes((end - first) * LINE_BYTES))
                    for first, end in pieces[n : n + 3]
                )
            )


async def started(dut, ready: float) -> TB:
    tb = TB(dut)
    await tb.start(ready)
    return tb


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def lines_come_back(dut):
    """Bursts to more pages than there are frames, through eviction and fetch; then the stored
    formats, line by line as the golden model has them."""
    tb = await started(dut, 0.7)
    await tb.open(0)
    await tb.fill()
    await tb.check_all()
    fetches, write_backs = tb.count(ColdOp.READ), tb.count(ColdOp.WRITE)
    assert fetches >= 8 and write_backs >= 8, f"{fetches} fetches, {write_backs} write-backs"
    formats = Format.INT8, Format.FP8_E4M3
    await tb.open(1, *formats)
    c, base = tb.config, tb.base(1)
    values = (
        np.random.default_rng(tb.rng.getrandbits(32))
        .normal(size=(4 * c.page_lines, LINE_BYTES // 2))
        .astype("<f2")
        .view(np.uint8)
    )
    await tb.write(base, values.tobytes())
    got = (await tb.read(base, values.size)).data
    for n, row in enumerate(values):
        fmt = formats[n // c.half_lines % 2]
        assert got[n * LINE_BYTES : (n + 1) * LINE_BYTES] == stored(
            row.tobytes(), fmt, HostType.FP16
        ), f"line {n}, {fmt.label}"
    await tb.rest()
    record(fetches=fetches, write_backs=write_backs, cycles=tb.port.now)


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def poison_strobes_and_holes(dut):
    tb = await started(dut, 0.7)
    c, base, rng = tb.config, tb.base(0), tb.rng
    got = await tb.read(base, 2 * LINE_BYTES)  # the session is closed
    assert got.resp == AxiResp.DECERR and not any(got.user) and not any(got.data)
    await tb.open(0)
    # open, and nothing written: zeros
    await tb.check(0, 4)
    for first in range(0, 16, 4):
        await tb.put(first, rng.randbytes(4 * LINE_BYTES))

    async def part(line, first, data, **options):
        await tb.write(base + line * LINE_BYTES + first, data, **options)
        held = tb.mirror[line]
        if options.get("wuser"):
            tb.mirror[line] = None
        elif held is not None and not tb.strip:
            tb.mirror[line] = held[:first] + data + held[first + len(data) :]

    await part(1, 5, rng.randbytes(20))  # partial strobes
    await part(2, 8, rng.randbytes(16), size=3)  # two narrow beats
    await tb.put(3, rng.randbytes(LINE_BYTES), poison=True)  # poison
    await part(4, 40, rng.randbytes(9), wuser=1)  # poison, partial strobes
    # a part of a poisoned line mends nothing
    await part(3, 0, rng.randbytes(32))
    await tb.put(5, rng.randbytes(LINE_BYTES), poison=True)
    await tb.put(5, rng.randbytes(LINE_BYTES))  # a whole line does
    await tb.check(0, 16)
    tb.strip = True
    # no strobes: nothing, over good lines and poisoned ones
    await tb.write(base, rng.randbytes(8 * LINE_BYTES))
    await part(6, 0, rng.randbytes(LINE_BYTES), wuser=1)  # no strobes, but poison
    tb.strip = False
    await tb.check(0, 16)
    # Beats with poison and without in one burst.
    users = [rng.randrange(2) for _ in range(8)]
    data = rng.randbytes(8 * LINE_BYTES)
    await tb.write(base + 8 * LINE_BYTES, data, wuser=users)
    for n, user in enumerate(users):
        tb.mirror[8 + n] = None if user else data[n * LINE_BYTES : (n + 1) * LINE_BYTES]
    await tb.check(0, 16)
    # Out to flash and back.
    for first in range(16, tb.lines, 16):
        await tb.put(first, rng.randbytes(16 * LINE_BYTES))
    before = tb.count(ColdOp.READ)
    await tb.check(0, 16)
    assert tb.count(ColdOp.READ) > before
    # Holes: a write there is answered and dropped, a read says DECERR.
    beyond = tb.map.register_base + (1 << c.aperture_bits)
    for hole in (tb.base(1), beyond, 1 << 46, (1 << 52) - LINE_BYTES, tb.map.hint_base + (1 << 13)):
        await tb.write(hole, rng.randbytes(LINE_BYTES))
        got = await tb.read(hole, LINE_BYTES)
        assert got.resp == AxiResp.DECERR and got.user == [0] and not any(got.data), f"{hole:#x}"
    await tb.check_all()
    await tb.rest()
    record(poisoned=sum(held is None for held in tb.mirror.values()))


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def a_read_after_b_sees_the_write(dut):
    """With another id, at once, page resident or not; six at a time, each with lines of its own."""
    tb = await started(dut, 0.7)
    await tb.open(0)
    await tb.fill()
    share = tb.lines // 6

    async def one(own):
        rng = random.Random(tb.rng.getrandbits(32))
        for _ in range(10):
            first = own * share + rng.randrange(share - 4)
            length = rng.randint(1, 4)
            await tb.write(
                tb.base(0) + first * LINE_BYTES,
                data := rng.randbytes(length * LINE_BYTES),
                awid=own,
            )
            for n in range(length):
                tb.mirror[first + n] = data[n * LINE_BYTES : (n + 1) * LINE_BYTES]
            got = await tb.read(tb.base(0) + first * LINE_BYTES, len(data), arid=100 + own)
            assert got.data == data and not any(got.user), (
                f"lines {first} …: what was there before B"
            )

    await tb.all(*(one(own) for own in range(6)))
    await tb.check_all()
    await tb.rest()


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def a_miss_holds_up_answers_not_requests(dut):
    """Hits behind a miss go to memory while it is fetched, and are answered in the cycles after it,
    whatever their id."""
    tb = await started(dut, 1.0)
    await tb.open(0)
    await tb.fill()
    per_page, held = tb.config.page_lines, []
    # more than the endpoint keeps slots for: the others are read from memory
    kept = tb.config.line_slots
    hits = kept + per_page
    hot = tb.lines - hits
    for cold in range(0, hot, per_page):
        for first in range(hot, tb.lines, per_page):  # resident, and the newest
            await tb.check(first, first + per_page)
        # nothing is under way any more
        await ClockCycles(dut.clk, 800)
        before, reads, times = tb.count(ColdOp.READ), tb.memory_reads, []

        async def timed(first, lines, arid, times=times):
            got = await tb.read(tb.base(0) + first * LINE_BYTES, lines * LINE_BYTES, arid=arid)
            times.append((tb.port.now, arid, tb.memory_reads))
            assert b"".join(tb.mirror[line] for line in range(first, first + lines)) == got.data

        await tb.all(timed(cold, 1, 1), timed(hot, hits, 2))
        if tb.count(ColdOp.READ) != before + 1:
            continue
        (miss, first, seen), (hit, second, _) = times
        assert (first, second) == (1, 2), "a hit was answered before the miss that it is behind"
        assert seen - reads > (hits - kept) // 2, (
            f"{seen - reads} reads of the memory before the miss was answered: the hits waited"
        )
        assert hit - miss <= hits + 8, (
            f"{hit - miss} cycles from the miss's answer to the last of {hits} hits'"
        )
        held.append((seen - reads, hit - miss))
    assert held, "no page was fetched"
    await tb.rest()
    record(held=held[:4])


@cocotb.test(timeout_time=3, timeout_unit="ms")
async def hits_at_full_rate(dut):
    """Bursts to resident pages, 32 of them one behind the other: a line a cycle, reads alone,
    writes alone; both together, which take turns, share the endpoint's cycle. There each kind
    keeps slots of lines: 16 suffice for 0.8 lines a cycle (32 for 0.9; 2026-11-30)."""
    tb = await started(dut, 1.0)
    await tb.open(0)
    lines, rounds, rates = 2 * tb.config.page_lines, 32, {}

    def reads(first):
        return [tb.check(first, first + lines) for _ in range(rounds)]

    def writes():
        return [tb.put(0, tb.rng.randbytes(lines * LINE_BYTES)) for _ in range(rounds)]

    async def timed(*bursts):
        begun = tb.port.now
        await tb.all(*bursts)
        return round(len(bursts) * lines / (tb.port.now - begun), 3)

    await tb.put(0, tb.rng.randbytes(2 * lines * LINE_BYTES))
    rates["reads"] = await timed(*reads(0))
    rates["writes"] = await timed(*writes())
    # of other pages: of lines that are being written a read may see either
    rates["both"] = await timed(*writes(), *reads(lines))
    record(lines_per_cycle=rates)
    await tb.check(0, 2 * lines)
    await tb.rest()
    assert not tb.count(ColdOp.READ), "a page was not resident"
    assert rates["reads"] > 0.9 and rates["writes"] > 0.9 and rates["both"] > 0.78, rates
