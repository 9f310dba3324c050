# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Cold-tier scheduler between random fetches and write-backs and a flash that fails, falls silent
and answers out of order."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.layouts import Layouts
from kelp_rtl.build.packing import Packing
from kelp_spec.config import Config, named
from kelp_spec.metadata import ColdOp

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .flash import LINE_BYTES, SECTOR_BYTES, Flash, FlashPort


class Frames:
    """DRAM that lets the flash touch a line only while its frame belongs to a fetch or
    write-back."""

    def __init__(self):
        self.lent: dict[int, int] = {}  # byte address of a frame → bytes
        self.data: dict[int, bytes] = {}

    def _check(self, address, length):
        assert address in self.lent and length <= self.lent[address], (
            f"DMA to {address:#x}, which belongs to nobody"
        )

    def write(self, address, data):
        self._check(address, len(data))
        self.data[address] = data

    def read(self, address, length):
        self._check(address, length)
        return self.data.get(address, bytes(length))


class TB:
    def __init__(self, dut, config: Config, **flash):
        self.dut, self.config = dut, config
        self.rng = random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(config)
        self.fetch, self.fetched = Packing(layouts.fetch), Packing(layouts.fetched)
        self.write_back, self.written_back = (
            Packing(layouts.write_back),
            Packing(layouts.written_back),
        )
        self.memory = Frames()
        self.flash = Flash(memory=self.memory, seed=cocotb.RANDOM_SEED, **flash)
        dut.now.value = dut.i_fetch__valid.value = dut.i_fetch__payload.value = (
            dut.i_raise__valid.value
        ) = dut.i_raise__payload.value = 0
        dut.i_write_back__valid.value = dut.i_write_back__payload.value = (
            dut.o_fetched__ready.value
        ) = dut.o_written_back__ready.value = 0
        self.port = FlashPort(
            dut,
            self.flash,
            config,
            command="o_command",
            completion="i_completion",
            shuffle=True,
            seed=cocotb.RANDOM_SEED + 1,
        )
        self.now = (1 << 32) - self.rng.randrange(2000)  # the time base wraps during every test
        self.fetching: dict[int, dict] = {}  # miss → its fetch
        self.writing: dict[int, dict] = {}  # token → its write-back
        self.free_misses = list(range(config.misses))
        self.free_frames = list(range(config.total_frames))
        self.unread: set[int] = set()  # prefetches whose command has not left
        self.offer = None
        self.commands = []
        self.answers = []  # (request, failed)
        self.retries = self.timeouts = self.aborts = 0
        self.cycles = 0

    async def reset(self, *, timeout, retries):
        dut = self.dut
        dut.timeout.value, dut.retries.value = timeout, retries
        dut.rst.value = 1
        for _ in range(3):
            await RisingEdge(dut.clk)
        dut.rst.value = 0

    def place(self, frame):
        """Byte address and length of a frame."""
        c = self.config
        pool = max(p for p in range(4) if frame >= c.pool_first_frame[p])
        line = c.pool_base_line[pool] + (frame - c.pool_first_frame[pool]) * c.frame_lines[pool]
        return line * LINE_BYTES, c.frame_lines[pool] * LINE_BYTES

    def lba(self, request):
        return (
            request["squeue"] * self.config.pages + request["page"]
        ) * self.config.cold_slot_sectors

    def request(self):
        """A page that nobody works on, and a frame for it; its bytes and line mask in the flash or
        in DRAM are up to the caller."""
        c, rng = self.config, self.rng
        busy = {(r["squeue"], r["page"]) for r in [*self.fetching.values(), *self.writing.values()]}
        while (page := (rng.randrange(c.squeues), rng.randrange(c.pages))) in busy:
            pass
        frame = self.free_frames.pop(rng.randrange(len(self.free_frames)))
        address, length = self.place(frame)
        self.memory.lent[address] = length
        return {"squeue": page[0], "page": page[1], "frame": frame, "tries": 0}

    def new_fetch(self, demand=True):
        request = self.request() | {
            "miss": self.free_misses.pop(self.rng.randrange(len(self.free_misses))),
            "demand": demand,
        }
        _, length = self.place(request["frame"])
        lines = self.config.page_lines
        self.flash.pages[self.lba(request)] = (
            self.rng.randbytes(length),
            self.rng.getrandbits(lines),
            self.rng.getrandbits(lines),
        )
        self.fetching[request["miss"]] = request
        if not demand:
            self.unread.add(request["miss"])
        return request

    def new_write(self):
        token = self.rng.choice(
            [t for t in range(self.config.write_backs) if t not in self.writing]
        )
        lines = self.config.page_lines
        request = self.request() | {
            "token": token,
            "line_mask.valid": self.rng.getrandbits(lines),
            "line_mask.poison": self.rng.getrandbits(lines),
        }
        address, length = self.place(request["frame"])
        self.memory.data[address] = self.rng.randbytes(length)
        self.writing[token] = request
        return request

    async def cycle(self, *, fetch=None, raise_=None, write=None, ready=1.0):
        """One cycle. `write` is offered until it is taken; True is returned when no write is on
        offer after the cycle."""
        dut, rng = self.dut, self.rng
        dut.now.value = self.now & 0xFFFFFFFF
        dut.i_fetch__valid.value, dut.i_raise__valid.value = (
            int(fetch is not None),
            int(raise_ is not None),
        )
        fields = ("miss", "squeue", "page", "frame", "demand")
        dut.i_fetch__payload.value = (
            self.fetch.pack(**{k: fetch[k] for k in fields})
            if fetch
            else rng.getrandbits(self.fetch.width)
        )
        dut.i_raise__payload.value = raise_ if raise_ is not None else 0
        if write:
            assert self.offer is None
            self.offer = write
            names = ("token", "squeue", "page", "frame", "line_mask.valid", "line_mask.poison")
            dut.i_write_back__payload.value = self.write_back.pack(**{k: write[k] for k in names})
        dut.i_write_back__valid.value = int(self.offer is not None)
        dut.o_fetched__ready.value, dut.o_written_back__ready.value = (
            int(rng.random() < ready),
            int(rng.random() < ready),
        )
        self.port.now = self.cycles
        self.port.drive()
        await ReadOnly()
        command = self.port.sample()
        if command:
            self.sent(command)
        if self.offer and dut.i_write_back__ready.value == 1:
            self.offer = None
        if dut.o_fetched__valid.value == 1 and dut.o_fetched__ready.value == 1:
            self.got_fetched(self.fetched.unpack(dut.o_fetched__payload.value))
        if dut.o_written_back__valid.value == 1 and dut.o_written_back__ready.value == 1:
            self.got_written_back(self.written_back.unpack(dut.o_written_back__payload.value))
        self.retries += int(dut.o_retry.value)
        self.timeouts += int(dut.o_timeout.value)
        if dut.idle.value == 1:
            assert not self.fetching and not self.writing, "idle with work to do"
        await RisingEdge(dut.clk)
        self.cycles += 1
        self.now += 1
        return self.offer is None

    def sent(self, command):
        self.commands.append(command)
        if command.op == ColdOp.ABORT:
            self.aborts += 1
            return
        if command.op == ColdOp.READ:
            request = self.fetching[command.index]
            self.unread.discard(command.index)
        else:
            (request,) = [r for r in self.writing.values() if self.lba(r) == command.lba]
            assert command.index >= self.config.misses
            assert (command.valid, command.poison) == (
                request["line_mask.valid"],
                request["line_mask.poison"],
            )
        request["tries"] += 1
        address, length = self.place(request["frame"])
        assert (command.lba, command.line * LINE_BYTES, command.lines * LINE_BYTES) == (
            self.lba(request),
            address,
            length,
        ), f"{command} for {request}"

    def take_back(self, request):
        address, _ = self.place(request["frame"])
        del self.memory.lent[address]
        self.free_frames.append(request["frame"])
        return self.memory.data.get(address)

    def got_fetched(self, got):
        request = self.fetching.pop(got["miss"])
        self.free_misses.append(got["miss"])
        data = self.take_back(request)
        if not got["failed"]:
            assert (data, got["line_mask.valid"], got["line_mask.poison"]) == self.flash.pages[
                self.lba(request)
            ], f"{request}: wrong page"
        self.answers.append((request, bool(got["failed"])))

    def got_written_back(self, got):
        request = self.writing.pop(got["token"])
        data = self.take_back(request)
        if not got["failed"]:
            assert self.flash.pages[self.lba(request)] == (
                data,
                request["line_mask.valid"],
                request["line_mask.poison"],
            ), f"{request}: flash has another page"
        self.answers.append((request, bool(got["failed"])))

    async def drain(self, limit, ready=1.0):
        started = self.cycles
        while self.fetching or self.writing or self.dut.idle.value != 1:
            await self.cycle(ready=ready)
            assert self.cycles - started < limit, (
                f"{self.fetching} {self.writing} have not been answered"
            )


async def start(dut, *, timeout=1 << 31, retries=0, **flash) -> TB:
    tb = TB(dut, named(bench_params()["config"]), **flash)
    await start_clock(dut)
    await tb.reset(timeout=timeout, retries=retries)
    return tb


async def mixed_traffic(tb, cycles, ready):
    started, write = tb.cycles, None
    while tb.cycles - started < cycles:
        rng = tb.rng
        busy = rng.random() < 0.15
        fetch = (
            tb.new_fetch(rng.random() < 0.5)
            if busy and tb.free_misses and len(tb.free_frames) > 8
            else None
        )
        raise_ = None
        if fetch is None and rng.random() < 0.2:
            raise_ = rng.choice(sorted(tb.unread or tb.fetching) or range(tb.config.misses))
        write = (
            tb.new_write()
            if tb.offer is None
            and len(tb.writing) < tb.config.write_backs
            and rng.random() < 0.05
            and len(tb.free_frames) > 8
            else None
        )
        await tb.cycle(fetch=fetch, raise_=raise_, write=write, ready=ready)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def every_request_is_answered_once(dut):
    """Failures, silence, late answers and aborts that are never answered, with back-pressure
    everywhere."""
    rng = random.Random(cocotb.RANDOM_SEED)
    rate = {"fail": 0.1, "silent": 0.05, "deaf": 0.2}
    tb = await start(
        dut,
        timeout=700,
        retries=2,
        latency=400,
        jitter=0.9,
        fails=lambda _: rng.random() < rate["fail"],
        silent=lambda _: rng.random() < rate["silent"],
        deaf=lambda _: rng.random() < rate["deaf"],
    )
    for pressure, ready in ((0.0, 1.0), (0.5, 0.5), (0.97, 0.2), (0.1, 1.0)):
        tb.port.pressure = pressure
        await mixed_traffic(tb, bench_params()["cycles"] // 4, ready)
    await tb.drain(40_000)
    failed = [request for request, bad in tb.answers if bad]
    assert all(request["tries"] == 3 for request in failed), "given up too early or too late"
    assert all(request["tries"] <= 3 for request, _ in tb.answers)
    assert tb.aborts == tb.timeouts > 0 and tb.retries > 0 and failed
    # Every command but the first of a request is a retry.
    assert tb.retries == sum(request["tries"] - 1 for request, _ in tb.answers)
    record(
        cycles=tb.cycles,
        answers=len(tb.answers),
        failed=len(failed),
        aborts=tb.aborts,
        retries=tb.retries,
    )


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def demand_goes_before_prefetch_before_write_back(dut):
    tb = await start(dut, latency=100)
    tb.port.pressure = 1.0
    while len(tb.writing) < tb.config.write_backs:
        await tb.cycle(write=tb.new_write())
    for _ in range(20):
        await tb.cycle()
    prefetches = [tb.new_fetch(False) for _ in range(tb.config.misses // 2)]
    for request in prefetches:
        await tb.cycle(fetch=request)
    raised = sorted(tb.unread)[-3:]
    for miss in raised:
        await tb.cycle(raise_=miss)
        await tb.cycle(raise_=miss)
    while tb.free_misses:
        await tb.cycle(fetch=tb.new_fetch(True))
    tb.port.pressure = 0.0
    await tb.drain(20_000)
    # The first two had left for the output long before the others came.
    kinds = [
        "write"
        if c.op == ColdOp.WRITE
        else "demand"
        if c.index in raised or c.index not in {p["miss"] for p in prefetches}
        else "prefetch"
        for c in tb.commands
    ]
    assert kinds[:2] == ["write", "write"]
    assert kinds[2:] == sorted(kinds[2:], key=["demand", "prefetch", "write"].index), " ".join(
        kinds
    )
    assert {c.index for c in tb.commands[2:5]} == set(raised)
    assert len(kinds) == tb.config.misses + tb.config.write_backs


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def as_many_fetches_in_flight_as_misses(dut):
    tb = await start(dut, latency=2000)
    while tb.free_misses:
        await tb.cycle(fetch=tb.new_fetch(True))
    for _ in range(tb.config.write_backs):
        await tb.cycle(write=tb.new_write())
    for _ in range(8 * tb.config.misses):
        await tb.cycle()
    assert len(tb.flash.live) == tb.config.misses + tb.config.write_backs
    await tb.drain(20_000)
    assert not any(bad for _, bad in tb.answers)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flash_that_never_answers(dut):
    """Not even an ABORT: every request fails after its tries, within a stated time."""
    tb = await start(dut, timeout=300, retries=1, silent=lambda _: True, deaf=lambda _: True)
    for _ in range(4):
        await tb.cycle(fetch=tb.new_fetch(True))
        await tb.cycle(write=tb.new_write())
        while tb.offer:
            await tb.cycle()
    # Each try: its own timeout and that of its ABORT, each noticed a turn of the scan later at
    # most.
    await tb.drain(2 * 2 * (300 + 4 * (tb.config.misses + tb.config.write_backs)) + 200)
    assert len(tb.answers) == 8 and all(
        bad and request["tries"] == 2 for request, bad in tb.answers
    )


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def an_abort_counts_from_its_acceptance(dut):
    """The port stalls for longer than the timeout just as an ABORT is offered; the tier stops its
    DMA soon after it has the ABORT, but never says so."""
    tb = await start(
        dut, timeout=200, retries=0, abort_latency=150, silent=lambda _: True, deaf=lambda _: True
    )
    await tb.cycle(fetch=tb.new_fetch(True))
    while not tb.commands:
        await tb.cycle()
    tb.port.pressure = 1.0
    for _ in range(1000):
        await tb.cycle()
    tb.port.pressure = 0.0
    while len(tb.commands) < 2:
        await tb.cycle()
    accepted = tb.cycles
    while not tb.answers:
        await tb.cycle()
    assert 200 <= tb.cycles - accepted < 200 + 4 * (tb.config.misses + tb.config.write_backs) + 20


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def storm(dut):
    """One page after another at the tier's own bandwidth and latency; what part of the bandwidth is
    used after the first latency."""
    tb = await start(dut, latency=bench_params().get("latency", 25_000))
    page = max(tb.config.frame_lines) * LINE_BYTES + SECTOR_BYTES
    tb.flash.memory = None
    raw16 = [f for f in tb.free_frames if f < tb.config.frames[0]]
    cycles = tb.flash.latency + bench_params()["cycles"]
    tb.got_fetched = lambda got: (
        tb.free_misses.append(got["miss"]),
        raw16.append(tb.fetching.pop(got["miss"])["frame"]),
    )
    moved = 0
    for n in range(cycles):
        if n == tb.flash.latency + 1000:
            moved = tb.flash.bytes_moved
        fetch = None
        if tb.free_misses:
            tb.free_frames = [raw16.pop()]
            fetch = tb.request() | {"miss": tb.free_misses.pop(), "demand": 1}
            tb.fetching[fetch["miss"]] = fetch
        await tb.cycle(fetch=fetch)
    fraction = (
        (tb.flash.bytes_moved - moved)
        / (bench_params()["cycles"] - 1000)
        / tb.flash.bytes_per_cycle
    )
    record(fraction=fraction, page_bytes=page, cycles=tb.cycles)
