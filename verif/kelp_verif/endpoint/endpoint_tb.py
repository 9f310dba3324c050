# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Everything around the endpoint in its cocotb bench: CXL.mem channels, AxiRam, flash, and what the
host does with registers.

One coroutine moves all streams, a cycle at a time; AxiRam has its own. The flash takes hundreds of
cycles where the real one takes 25 000, so that a run sees hundreds of misses; its link has the real
bandwidth (14 bytes a cycle at 1 ns).
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from functools import cached_property

import cocotb
from cocotb.triggers import ClockCycles, Event, ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiRam

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import MESSAGES, Layouts
from kelp_spec.address import KvAddress
from kelp_spec.config import Config
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq, M2SRwD
from kelp_spec.metadata import ColdStatus, Op, Outcome, PageState
from kelp_spec.registers import RegisterMap

from ..harness.clocking import start_clock
from ..miss.flash import Completion, Flash, FlashPort
from .endpoint_cold import ColdWatch
from .endpoint_model import NXM, POISON, ZEROS, Model, Request
from .endpoint_top import PAGE_WORDS
from .endpoint_traffic import Mix, Traffic, pace

__all__ = ["PATIENCE", "TB"]

LATENCY, JITTER = 250, 0.9  # of the flash: cycles, and the part of them by which it varies
TIMEOUT, RETRIES = 2500, 1  # what the endpoint is told
PATIENCE = 60_000  # cycles until an answer counts as missing
ONE_LINE = 64


class _Sender:
    """Drives one M2S stream: what the bench wants to send first, then traffic."""

    def __init__(self, tb: TB, name: str, layout):
        self.tb, self.rwd = tb, name == "m2s_rwd"
        self.packing = Packing(layout)
        self.valid, self.ready, self.payload = (
            getattr(tb.dut, f"{name}__{part}") for part in ("valid", "ready", "payload")
        )
        self.queue: list[Request] = []
        self.clear()

    def clear(self) -> None:
        self.request: Request | None = None
        self.queue.clear()
        self.valid.value = 0

    def drive(self, go: bool) -> None:
        if self.request is not None:
            return
        tb = self.tb
        request = None
        if self.queue:
            request = self.queue.pop(0)
        elif go and tb.traffic.on:
            request = tb.traffic.next(self.rwd)
        if request is None:
            self.valid.value = 0
            return
        if request.offered:
            request.offered()
        request.tag = tb.tag_for(request) if request.tag < 0 else request.tag
        rng = tb.rng
        fields = {
            "opcode": request.opcode,
            "snp_type": rng.randrange(8),
            "meta_field": rng.randrange(4),
            "meta_value": rng.randrange(4),
            "tag": request.tag,
            "address": request.address >> 6,
            "ld_id": request.ld_id,
            "tc": rng.randrange(4),
        }
        if self.rwd:
            fields |= {
                "poison": request.poison,
                "bep": rng.randrange(2),
                "byte_enable": request.byte_enable,
                "data": int.from_bytes(request.data, "little"),
            }
        self.payload.value = self.packing.pack(**fields)
        self.valid.value = 1
        self.request = request

    def sample(self) -> None:
        if self.request is not None and self.ready.value == 1:
            request, self.request = self.request, None
            self.tb.model.accept(request, self.tb.cycle)


class _Receiver:
    """Takes one S2M stream's answers to the model."""

    def __init__(self, tb: TB, name: str, layout):
        self.tb, self.drs = tb, name == "s2m_drs"
        self.packing = Packing(layout)
        self.valid, self.ready, self.payload = (
            getattr(tb.dut, f"{name}__{part}") for part in ("valid", "ready", "payload")
        )
        self.standing: dict | None = None  #: an answer that is offered and not taken
        self.ready.value = 0

    def sample(self, ready: bool) -> None:
        before, self.standing = self.standing, None
        if self.valid.value != 1:
            assert before is None, f"answer {before} was withdrawn"
            return
        got = self.packing.unpack(self.payload.value)
        assert before in (None, got), f"answer {before} became {got}"
        if not ready:
            self.standing = got
            return
        assert (got["meta_field"], got["meta_value"], got["dev_load"]) == (3, 0, 0), got
        content = None
        if self.drs:
            content = got["data"].to_bytes(ONE_LINE, "little")
            if got["opcode"] == S2MDRS.MEM_DATA_NXM:
                assert content == ZEROS and not got["poison"], got
                content = NXM
            elif got["poison"]:
                assert content == ZEROS, f"poison with data: {got}"
                content = POISON
            else:
                assert got["opcode"] == S2MDRS.MEM_DATA, got
        else:
            assert got["opcode"] == S2MNDR.CMP, got
        self.tb.answered = self.tb.cycle
        self.tb.model.answer(self.drs, got["ld_id"], got["tag"], content)


class TB:
    """The endpoint, what is around it, the scoreboard and the traffic."""

    def __init__(self, dut, config: Config, standstill: int = PATIENCE):
        self.dut, self.config = dut, config
        self.standstill = standstill  #: cycles without an answer, while some are owed, that fail
        self.seed = cocotb.RANDOM_SEED
        self.rng = random.Random(self.seed)
        self.loose = random.Random(self.seed + 3)
        self.birsp_bits = MESSAGES["M2SBIRsp"].size
        self.birsp_stands = False
        self.registers = RegisterMap(config).by_name
        self.model = Model(config)
        self.watch = ColdWatch(
            config, self.model, timeout=TIMEOUT, retries=RETRIES, seed=self.seed + 1
        )
        self.watch.visible = self.visible
        self.traffic = Traffic(config, self.model, random.Random(self.seed + 2))
        # in order of acceptance
        self.senders = [
            _Sender(self, "m2s_rwd", MESSAGES["M2SRwD"]),
            _Sender(self, "m2s_req", MESSAGES["M2SReq"]),
        ]
        self.receivers = [
            _Receiver(self, "s2m_drs", MESSAGES["S2MDRS"]),
            _Receiver(self, "s2m_ndr", MESSAGES["S2MNDR"]),
        ]
        self.result = Packing(Layouts(config).result)
        self.result_fields = [
            self.result.fields[name] for name in ("op.kind", "outcome", "old.state", "op.failed")
        ]
        #: (cycle, result or cold command or completion), for whoever has to find a fault
        self.history: deque = deque(maxlen=20_000)
        self.cycle = 0
        self.tag = self.rng.randrange(1 << 16)
        self.decided: Counter = Counter()  #: coverage: what M3 did
        self.quiet_for = 0
        self.answered = 0  #: the cycle of the latest answer
        #: callables that write into the hardware, run when a cycle begins
        self.deposits: list = []

    async def start(self) -> None:
        dut = self.dut
        logging.getLogger("cocotb").setLevel(logging.WARNING)
        await start_clock(dut)
        for channel in ("ar", "aw", "w"):
            getattr(dut, f"m_axi_{channel}ready").value = 0
        size = 1 << (self.config.dram_lines * ONE_LINE - 1).bit_length()
        self.memory = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=size)
        # whoever shows a line that nobody wrote is found out
        self.memory.write(0, self.rng.randbytes(size))
        self.new_flash()
        self.set_mix(Mix(ready=1.0))
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        self.task = cocotb.start_soon(self.run())
        await self.until_ready()

    def new_flash(self) -> None:
        watch = self.watch
        self.flash = Flash(
            memory=self.memory,
            latency=LATENCY,
            jitter=JITTER,
            seed=self.rng.getrandbits(32),
            fails=watch.fails,
            silent=watch.silent,
            deaf=watch.deaf,
        )
        self.flash_port = FlashPort(
            self.dut, self.flash, self.config, shuffle=True, seed=self.rng.getrandbits(32)
        )
        self.flash_port.now = self.cycle

    async def until_ready(self) -> None:
        for _ in range(2000 + 8 * self.config.page_words):  # a reset scrubs metadata
            await RisingEdge(self.dut.clk)
            if self.dut.ready.value == 1:
                return
        raise AssertionError("the endpoint does not become ready")

    async def reset(self) -> int:
        """Reset under traffic: nothing older is answered after it, and nothing is left. How many
        cold-tier commands were in flight."""
        self.task.cancel()
        older = list(self.flash.live.values())
        self.dut.rst.value = 1
        for sender in self.senders:
            sender.clear()
        for receiver in self.receivers:
            receiver.standing = None
        self.model.reset()
        self.watch.reset()
        await ClockCycles(self.dut.clk, self.rng.randint(1, 4))
        self.new_flash()  # the tier is reset with the endpoint
        self.dut.rst.value = 0
        await self.complete(older)
        self.task = cocotb.start_soon(self.run())
        await self.until_ready()
        return len(older)

    async def complete(self, older) -> None:
        """A tier that was not reset completes what it still has, before there is a new command: the
        endpoint takes it for nothing (docs/cold_tier.md)."""
        for live in older:
            c = live.command
            self.flash.done.append(Completion(c.index, c.attempt, ColdStatus.OK, 1, 0))
        while self.flash.done or self.flash_port.offered:
            self.flash_port.drive()
            await ReadOnly()
            self.flash_port.sample()
            await RisingEdge(self.dut.clk)

    def set_mix(self, mix: Mix) -> None:
        rng, axi = self.rng, self.memory
        self.traffic.mix = mix
        self.go = [
            pace(random.Random(rng.getrandbits(32)), chance) for chance in (mix.rwd, mix.req)
        ]
        self.readies = [pace(random.Random(rng.getrandbits(32)), mix.ready) for _ in self.receivers]
        self.flash_port.pressure = (1 - mix.ready) / 2
        for channel in (
            axi.write_if.aw_channel,
            axi.write_if.w_channel,
            axi.write_if.b_channel,
            axi.read_if.ar_channel,
            axi.read_if.r_channel,
        ):
            if mix.ready < 1:
                steps = pace(random.Random(rng.getrandbits(32)), mix.ready)
                channel.set_pause_generator(not go for go in steps)
            else:
                channel.clear_pause_generator()
                channel.pause = False

    def tag_for(self, request: Request) -> int:
        """A fresh one; for a read now and then that of an earlier read of the same line."""
        if request.is_read and self.rng.random() < 0.15:
            same = self.model.order.get((True, request.address))
            if same and same[-1].ld_id == request.ld_id:
                return same[-1].tag
        self.tag = (self.tag + 1) % (1 << 16)
        return self.tag

    def visible(self):
        """Requests whose answers stand on the S2M ports."""
        for receiver in self.receivers:
            if receiver.standing:
                waiting = self.model.waiting.get(
                    (receiver.drs, receiver.standing["ld_id"], receiver.standing["tag"])
                )
                if waiting:
                    yield waiting[0]

    # - every cycle --------------------------------------------------------------------------------
    async def run(self) -> None:
        try:
            await self.every_cycle()
        except AssertionError:
            self.tell()
            raise

    def tell(self) -> None:
        """Leaves what M3 decided and what passed on the cold-tier port in ``history.txt``, the last
        of it last."""
        with open("history.txt", "w", encoding="utf-8") as out:
            for cycle, what in self.history:
                if isinstance(what, int):
                    f = self.result.unpack(what)
                    page = (
                        f"page {f['op.squeue']}.{f['op.page']}: "
                        + f"{_name(PageState, f['old.state'])} to "
                        + f"{_name(PageState, f['word.state'])}"
                    )
                    rest = {
                        name: f[name]
                        for name in (
                            "frame",
                            "miss",
                            "op.kv_line",
                            "op.slot",
                            "op.write",
                            "op.failed",
                            "op.origin.tag",
                            "word.place",
                        )
                    }
                    what = f"{_name(Op, f['op.kind'])} {_name(Outcome, f['outcome'])} {page} {rest}"
                print(cycle, what, file=out)

    async def every_cycle(self) -> None:
        dut, edge, settled = self.dut, RisingEdge(self.dut.clk), ReadOnly()
        while True:
            for deposit in self.deposits:
                deposit()
            self.deposits.clear()
            for sender, go in zip(self.senders, self.go, strict=True):
                sender.drive(next(go))
            ready = [next(r) for r in self.readies]
            for receiver, r in zip(self.receivers, ready, strict=True):
                receiver.ready.value = int(r)
            self.flash_port.drive()
            if self.cycle % 16 == 0:
                self.send_birsp()
            await settled
            for sender in self.senders:
                sender.sample()
            for receiver, r in zip(self.receivers, ready, strict=True):
                receiver.sample(r)
            self.sample_cold()
            if self.config.flits:
                self.birsp_stands = bool(
                    dut.m2s_birsp__valid.value == 1 and dut.m2s_birsp__ready.value == 0
                )
            if dut.commit_result__valid.value == 1:
                vector = int(dut.commit_result__payload.value)
                self.decided[tuple(vector >> low & mask for low, mask in self.result_fields)] += 1
                self.history.append((self.cycle, vector))
            self.quiet_for = (
                self.quiet_for + 1 if not self.model.outstanding and dut.quiescent.value == 1 else 0
            )
            if self.cycle % 1024 == 0:
                self.check_age()
            await edge
            self.cycle += 1
            self.flash_port.now = self.cycle

    def send_birsp(self) -> None:
        """Answers to snoops that nobody sent come at any time: they are taken, and change
        nothing. On a link they wait for their turn, and stand still meanwhile."""
        if self.birsp_stands:
            return
        assert self.config.flits or self.dut.m2s_birsp__ready.value == 1
        self.dut.m2s_birsp__valid.value = self.loose.getrandbits(1)
        self.dut.m2s_birsp__payload.value = self.loose.getrandbits(self.birsp_bits)

    def sample_cold(self) -> None:
        port = self.flash_port
        if port.offered is not None and port.completion_ready.value == 1:
            self.history.append((self.cycle, port.offered))
            self.watch.completion(port.offered)
        submit = self.flash.submit

        def watched(now, command):
            self.history.append((now, command))
            self.watch.command(command, self.cycle)
            submit(now, command)

        self.flash.submit = watched
        port.sample()
        self.flash.submit = submit

    def check_age(self) -> None:
        for request in self.model.outstanding.values():
            still = self.cycle - max(request.cycle, self.answered)
            assert still < self.standstill, f"{request}: nothing is answered for {still} cycles"
            assert self.cycle - request.cycle < PATIENCE, (
                f"{request}: no answer after {self.cycle - request.cycle} cycles"
            )
            return  # the others are younger

    def offered(self, key: tuple) -> bool:
        """A request to the page (session, queue, page) is offered and not yet accepted."""
        first = self.model.map.encode(KvAddress(*key, 0, 0))
        return any(
            s.request is not None
            and 0 <= s.request.address - first < ONE_LINE * self.config.page_lines
            for s in self.senders
        )

    async def cycles(self, count: int) -> None:
        await ClockCycles(self.dut.clk, count)

    async def settle(self) -> None:
        """No more traffic, every request answered, and the endpoint says that nothing will
        change."""
        self.traffic.on = False
        since = self.cycle
        while (
            self.quiet_for < 8
            or any(s.request or s.queue for s in self.senders)
            or self.watch.busy(self.cycle)
            # What is on a link of flits is not at the endpoint yet.
            or (self.config.flits and self.model.outstanding)
        ):
            await RisingEdge(self.dut.clk)
            assert self.cycle - since < PATIENCE, (
                f"not quiescent after {PATIENCE} cycles; unanswered: "
                + f"{[str(r) for r in self.model.outstanding.values()][:5]}"
            )
        for s in self.model.sessions:
            s.hints = 0

    # - registers ----------------------------------------------------------------------------------
    async def access(self, request: Request) -> bytes | str | None:
        """Sends one request of the bench's own, between those of the traffic; the content of its
        answer."""
        done, box = Event(), []

        def answered(content):
            box.append(content)
            done.set()

        request.done = answered
        self.senders[0 if request.rwd else 1].queue.append(request)
        await done.wait()
        await RisingEdge(self.dut.clk)
        return box[0]

    def register_address(self, name: str) -> int:
        return self.model.map.register_base + self.registers[name].offset

    async def read_line(self, name: str, ld_id: int = 0) -> bytes:
        """The eight registers of the line that holds `name`."""
        return await self.access(
            Request(False, M2SReq.MEM_RD, self.register_address(name) & -ONE_LINE, ld_id)
        )

    async def read(self, name: str, ld_id: int = 0) -> int:
        at = self.register_address(name) % ONE_LINE
        return int.from_bytes((await self.read_line(name, ld_id))[at : at + 8], "little")

    async def read_fields(self, name: str, ld_id: int = 0) -> dict[str, int]:
        value = await self.read(name, ld_id)
        return {f.name: value >> f.low & (1 << f.bits) - 1 for f in self.registers[name].fields}

    async def write(self, values: dict[str, int], ld_id: int = 0, taken=None) -> None:
        """Registers of one line, in one message."""
        lines = {self.register_address(name) & -ONE_LINE for name in values}
        assert len(lines) == 1, f"{list(values)} are not in one line"
        data, enable = bytearray(ONE_LINE), 0
        for name, value in values.items():
            at = self.register_address(name) % ONE_LINE
            data[at : at + 8] = value.to_bytes(8, "little")
            enable |= 0xFF << at
        await self.access(
            Request(True, M2SRwD.MEM_WR_PTL, lines.pop(), ld_id, bytes(data), enable, taken=taken)
        )

    def pack(self, name: str, **fields: int) -> int:
        layout = {f.name: f for f in self.registers[name].fields}
        values = {f.name: f.reset for f in layout.values()} | fields
        assert values.keys() == layout.keys(), name
        return sum(int(value) << layout[field].low for field, value in values.items())

    # - page words ---------------------------------------------------------------------------------
    @cached_property
    def words(self):
        """Rows of the page words: of a configuration whose page words are no macro."""
        memory = self.dut
        for part in PAGE_WORDS:
            memory = getattr(memory, part)
        return memory

    def word(self, key: tuple):
        session, queue, page = key
        return self.words[(session * self.config.queues + queue) * self.config.pages + page]

    def coverage(self) -> dict[str, int]:
        """What came about, of the tracker's decisions."""

        def total(kind, outcome=None, state=None, failed=None):
            return sum(
                n
                for (k, o, s, f), n in self.decided.items()
                if k == kind and outcome in (None, o) and state in (None, s) and failed in (None, f)
            )

        demand = (Op.READ, Op.WRITE)
        return {
            "hit": sum(total(k, Outcome.HIT) for k in demand),
            "miss": sum(total(k, Outcome.MISSED, PageState.COLD) for k in demand),
            "park": sum(total(k, Outcome.PARKED) for k in demand),
            "allocate": total(Op.WRITE, Outcome.ALLOCATED),
            "allocate_waits": total(Op.WRITE, Outcome.MISSED, PageState.ABSENT),
            "read_absent": total(Op.READ, Outcome.ZERO),
            "hit_writing_back": sum(total(k, Outcome.HIT, PageState.WRITING_BACK) for k in demand),
            "read_lost": total(Op.READ, Outcome.POISON),
            "write_lost": total(Op.WRITE, None, PageState.LOST),
            "claim": total(Op.CLAIM, Outcome.DONE),
            "claim_void": total(Op.CLAIM, Outcome.VOID),
            "evicted": total(Op.RELEASE, Outcome.DONE, failed=0),
            "cancelled_write_back": total(Op.RELEASE, Outcome.VOID),
            "failed_release": total(Op.RELEASE, failed=1),
            "prefetch": total(Op.PREFETCH, Outcome.MISSED),
            "prefetch_dropped": total(Op.PREFETCH, Outcome.DROPPED),
            "grant_retry": total(Op.GRANT, Outcome.RETRY),
            "flip_retry": total(Op.FLIP, Outcome.RETRY),
            "orphan": total(Op.FLIP, Outcome.ORPHAN),
            "recover": total(Op.RECOVER, Outcome.ORPHAN),
            "scrub_retry": total(Op.SCRUB, Outcome.RETRY),
            "scrub": total(Op.SCRUB, Outcome.DONE),
            "replay": total(Op.REPLAY),
            "fill_failed": total(Op.FILL, failed=1),
            "mass": total(Op.MASS, Outcome.DONE),
            "pin": total(Op.PIN, Outcome.DONE),
            "pin_refused": total(Op.PIN, Outcome.REFUSED),
            "unpin": total(Op.UNPIN, Outcome.DONE),
            "step": total(Op.STEP, Outcome.DONE),
        }


def _name(kind, value: int) -> str:
    """An op that looks at no page carries whatever the word's register holds."""
    return kind(value).name if value in kind._value2member_map_ else str(value)
