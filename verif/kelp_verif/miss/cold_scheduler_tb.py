# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The cold-tier scheduler with those who ask it for pages, and DRAM (see
:mod:`kelp_verif.miss.cold_scheduler_bench`)."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_spec.config import Config
from kelp_spec.metadata import ColdOp

from ..harness.flips import Faults
from .flash import LINE_BYTES, Flash, FlashPort

__all__ = ["TB", "Frames", "turn"]


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


def turn(tb) -> int:
    """Cycles in which the engine looks at every entry and acts on what it finds, when nothing else
    is due."""
    entries = tb.config.misses + tb.config.write_backs
    return ColdScheduler.TURN * entries + ColdScheduler.LATENCY


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
        dut.now.value = dut.i_fetch__valid.value = dut.i_fetch__payload.value = (
            dut.i_raise__valid.value
        ) = dut.i_raise__payload.value = 0
        dut.i_write_back__valid.value = dut.i_write_back__payload.value = (
            dut.o_fetched__ready.value
        ) = dut.o_written_back__ready.value = 0
        self.port = self.tier(**flash)
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
        self.faults = Faults(dut, self.rng)
        self.cycles = 0
        self.step = 1  #: what a cycle adds to the time base

    def tier(self, **flash):
        """What stands at the cold-tier port."""
        self.flash = Flash(memory=self.memory, seed=cocotb.RANDOM_SEED, **flash)
        return FlashPort(
            self.dut,
            self.flash,
            self.config,
            command="o_command",
            completion="i_completion",
            shuffle=True,
            seed=cocotb.RANDOM_SEED + 1,
        )

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
        """A page that nobody works on, and a frame for it; its bytes and line mask in the flash
        or in DRAM are up to the caller."""
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
        self.faults.hear()
        self.watch()
        if dut.idle.value == 1:
            assert not self.fetching and not self.writing, "idle with work to do"
        await RisingEdge(dut.clk)
        self.cycles += 1
        self.now += self.step
        return self.offer is None

    def watch(self):
        """In the read-only phase of each cycle."""

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
