# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""DataFront alone, beside a model of its contract: ops, slots, room and poisoned frames at random,
resets in the midst. Each look-up, op and read request is compared; waiting is bounded. Bits flip in
requests that wait."""

import random
from collections import Counter, deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge, Timer

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.datapath.front import DataFront
from kelp_hw.datapath.order import POSITION_BITS, order_layout
from kelp_hw.datapath.signatures import LookUp, full_write_layout
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.lib.axi import BURST_INCR, SIZE_LINE
from kelp_hw.lib.protected import Fault
from kelp_spec.config import Config
from kelp_spec.formats import Format
from kelp_spec.metadata import Answer, DataOp

from ..harness.clocking import start_quiet
from ..harness.runner import bench_params, record

KEPT = ("part", "scaled", "scale_byte", "format", "host_type", "partial", "fresh", "has_write")
SOON = 3  #: cycles from a request to AR, at most
OFFERS = "i__valid", "poisoned__valid", "room", "ar__ready", "o__ready", "o_write__ready"


class Entered:
    """An op between `i` and `o`."""

    def __init__(self, op, cycle):
        self.op, self.cycle = op, cycle
        self.told = set()  #: frames that are poisoned, of which the frame table did not tell it
        self.may = set()  #: the same, and those of other ops that came beside it
        self.stale = False
        reads, writes = op["kind"] == DataOp.READ, op["kind"] == DataOp.WRITE
        self.answered = reads and bool(op["poison"] or op["fresh"])
        self.accesses = (reads or writes) and not self.answered
        self.reads = (reads and not self.answered) or (
            writes and bool(op["partial"]) and not op["fresh"]
        )
        self.full_write = writes and not op["partial"]

    @property
    def quarters(self):
        fmt, part = self.op["format"], self.op["part"]
        if fmt == Format.INT4:
            return 1 << part
        return 0b1111 if fmt == Format.RAW16 else 0b1100 if part & 1 else 0b0011


class TB:
    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        self.config = c = Config.of_json(bench_params()["config"])
        self.data_op, self.order = Packing(Layouts(c).data_op), Packing(order_layout(c))
        self.token_bits = Layouts(c).token_bits
        self.write, axi = Packing(full_write_layout(c)), axi_signature(c)
        self.ar, self.id_bits = Packing(axi.address), axi.id_bits
        self.tag = Packing(LookUp(c, c.line_slots).tag_layout)
        self.stored = Packing(Layouts(c).stored)
        self.slots = {"lines": c.line_slots, "scales": c.scale_slots}
        self.closeness = 0.8  #: how often frames are near others
        self.coming, self.most = deque(), 12  #: ops that have passed the frame table; how many may
        self.cycle = 0
        self.fault, self.flipped, self.told = Packing(Fault), False, Counter()
        self.forget()
        self.figures = dict.fromkeys(
            ("ops", "poisoned", "spared", "asked", "turns", "full", "reset"), 0
        )

    def forget(self):
        """As after a reset."""
        self.offered = False
        self.inside = deque()
        self.windows, self.union = [], set()  #: [ops to come, frame]; frames of all of them
        self.requests = {"lines": deque(), "scales": deque()}
        self.asks, self.latest = None, None  #: what AR shows while it waits; which went last
        self.position = self.quiet = 0
        self.room = False

    async def reset(self):
        for port in OFFERS:
            # An op that stands may still leave: `room` has promised a place.
            getattr(self.dut, port).value = int(port.startswith("o") and self.room)
        self.dut.rst.value = 1
        for _ in range(2):
            await RisingEdge(self.dut.clk)
        self.dut.rst.value = 0
        self.forget()

    def some_frame(self):
        """One of two for a while, or one that differs from it in a bit; or any."""
        rng, frames = self.rng, self.config.total_frames
        frame = rng.choice(self.near) ^ rng.choice([0, 0, 1 << rng.randrange(8)])
        near = frame < frames and rng.random() < self.closeness
        return frame if near else rng.randrange(frames)

    def some_op(self):
        rng = self.rng
        op = {name: rng.getrandbits(mask.bit_length()) for name, (_, mask) in self.fields()}
        op["kind"] = rng.choice([DataOp.READ] * 3 + list(DataOp))
        op["answer"], op["format"] = rng.choice(list(Answer)), rng.choice(list(Format))
        for name in ("stored.format_k", "stored.format_v"):
            op[name] = rng.choice(list(Format))
        op["frame"] = self.some_frame()
        op["poison"], op["fresh"] = (int(rng.random() < 0.15) for _ in range(2))
        return {name: int(value) for name, value in op.items()}

    def fields(self):
        return self.data_op.fields.items()

    def weather(self):
        rng = self.rng
        self.rate, self.calls = rng.choice([0.3, 1]), rng.choice([0, 0.02, 0.02, 0.2])
        self.stall, self.misses = rng.choice([0, 0.3, 0.8]), rng.choice([0, 0.3, 1])
        self.ar_stall = rng.choice([0, 0.5, 0.95])
        # The last op that does not know comes soon, or behind as many as can be counted.
        self.most = rng.choice([2, 2, 12, 24, 48, 96, (1 << DataFront.COUNT_BITS) - 1])
        self.closeness = rng.choice([0.8, 0.8, 0.2])

    async def tick(self):
        """One cycle."""
        dut, rng = self.dut, self.rng
        if self.cycle % 50 == 0:
            self.near = [rng.randrange(self.config.total_frames) for _ in range(2)]
        for rate in (self.rate, self.most > 12):  # many are to wait soon
            if len(self.coming) < self.most and rng.random() < rate:
                self.coming.append(self.some_op())
        self.offered = bool(self.coming) and (self.offered or rng.random() < self.rate)
        dut.i__valid.value = int(self.offered)
        if self.offered:
            dut.i__payload.value = self.data_op.pack(**self.coming[0])
        poisoned = self.some_frame() if rng.random() < self.calls else None
        dut.poisoned__valid.value = int(poisoned is not None)
        dut.poisoned__payload.value = self.some_frame() if poisoned is None else poisoned
        # Without `poisoned` it says nothing.
        dut.waiting.value = len(self.coming) if poisoned is not None else rng.getrandbits(8)
        for name, slots in self.slots.items():
            slot = rng.randrange(slots)
            for what, value in (
                ("available", rng.random() >= self.stall),
                ("slot", slot),
                ("select", 1 << slot),
                ("request_fill", rng.random() < self.misses),
            ):
                getattr(dut, f"{name}__slot__{what}").value = int(value)
        dut.lines__wait.value = rng.randrange(2)
        # What `room` promised in the cycle before.
        dut.o__ready.value = dut.o_write__ready.value = int(self.room)
        room = rng.random() >= self.stall
        dut.room.value = int(room)
        dut.ar__ready.value = int(rng.random() >= self.ar_stall)
        await ReadOnly()
        self.where = f"cycle {self.cycle}"
        self.look_up()
        fired = self.look_at_ops()
        self.look_at_reads()
        self.turn(poisoned, fired)
        self.room = room
        await RisingEdge(dut.clk)
        self.cycle += 1

    # - what is compared ---------------------------------------------------------------------------
    def oldest(self):
        """The op in D2, if there is one."""
        there = self.inside and self.inside[0].cycle <= self.cycle - DataFront.LATENCY
        return self.inside[0] if there else None

    def look_up(self):
        """The op in D1 asks for its tags."""
        dut = self.dut
        two = self.oldest()
        ones = [entered for entered in self.inside if entered is not two]
        assert len(ones) <= 1
        if not ones or (two and not dut.o__valid.value):
            return
        op = ones[0].op
        for name, offset in (("lines", op["offset"]), ("scales", op["scale_offset"])):
            tag = self.tag.unpack(getattr(dut, f"{name}__slot__tag__payload").value)
            assert getattr(dut, f"{name}__slot__tag__valid").value == 1, self.where
            assert tag == {"frame": op["frame"], "offset": offset}, f"{self.where}: {tag}, {op}"

    def look_at_ops(self):
        """The op that leaves in this cycle, or None."""
        dut, two = self.dut, self.oldest()
        valid = int(dut.o__valid.value)
        assert not valid or two, f"{self.where}: an op from nowhere"
        if two is None:
            assert not (dut.lines__slot__fire.value or dut.scales__slot__fire.value), self.where
            return None
        scaled = two.accesses and bool(two.op["scaled"])
        able = self.room
        for name, uses in (("lines", two.accesses), ("scales", scaled)):
            able &= not uses or bool(getattr(dut, f"{name}__slot__available").value)
            assert bool(getattr(dut, f"{name}__slot__use").value) == uses, self.where
            assert getattr(dut, f"{name}__slot__fire").value == int(valid and uses), self.where
        assert able or not valid, f"{self.where}: it goes where nothing is free"
        levels = [len(requests) for requests in self.requests.values()]
        if max(levels) <= DataFront.QUEUED - 4:
            assert valid == able, f"{self.where}: it stays"
        elif max(levels) >= DataFront.QUEUED:
            assert not valid or not any(self.fills(two)), f"{self.where}: no place for its read"
            self.figures["full"] += 1
        assert int(dut.o_write__valid.value) == int(valid and two.full_write), self.where
        if not valid:
            return None
        self.compare(two, scaled)
        return two

    def fills(self, two):
        """Whether it asks memory, for a line and for scales."""
        for name, uses in (("lines", True), ("scales", bool(two.op["scaled"]))):
            asks = bool(getattr(self.dut, f"{name}__slot__request_fill").value)
            yield two.accesses and uses and asks

    def compare(self, two, scaled):
        """What the tables and the head learn of an op."""
        dut, op, c = self.dut, two.op, self.config
        where = f"{self.where}: {op}"
        offsets = {"lines": op["offset"], "scales": op["scale_offset"]}
        for (name, offset), uses in zip(offsets.items(), (two.accesses, scaled), strict=True):
            if not uses:
                continue
            address = op["base"] + offset & (1 << c.dram_line_bits) - 1
            assert getattr(dut, f"{name}__slot__address").value == address, where
            assert getattr(dut, f"{name}__slot__position").value == self.position, where
            stored = self.stored.unpack(getattr(dut, f"{name}__slot__stored").value)
            assert all(op[f"stored.{key}"] == value for key, value in stored.items()), where
            assert bool(getattr(dut, f"{name}__reads").value) == two.reads, where
            if getattr(dut, f"{name}__slot__request_fill").value:
                number = int(getattr(dut, f"{name}__slot__slot").value)
                number |= (name == "scales") << self.id_bits - 1
                self.requests[name].append((self.cycle, address << 6, number))
        if two.accesses:
            assert dut.lines__quarters.value == two.quarters, where
            assert bool(dut.lines__stores.value) == (op["kind"] == DataOp.WRITE), where
        self.position = (self.position + 1) % (1 << POSITION_BITS)

        o = self.order.unpack(dut.o__payload.value)
        kind, answer, poison = op["kind"], op["answer"], op["poison"]
        if two.answered:
            kind = DataOp.ANSWER
            answer = Answer.POISON if poison else Answer.ZEROS
        elif kind == DataOp.READ:
            must, may = (self.of_frame(op, frames) for frames in (two.told, two.may | two.told))
            outdated = o["answer"] == Answer.POISON and o["poison"]
            assert not must or outdated, f"{where}: it does not know that its frame is poisoned"
            if may and outdated:
                answer, poison = Answer.POISON, 1
                self.figures["poisoned"] += 1
            else:
                self.figures["spared"] += bool(self.union)
        expected = {name: op[name] for name in KEPT}
        expected |= {"kind": kind, "answer": answer, "poison": poison}
        expected |= {"write_slot": op["write_slot"]}
        got = {name: o[name] for name in expected}
        assert got == expected, f"{where}: {got}"
        origin = {name: value for name, value in o.items() if name.startswith("origin.")}
        if kind == DataOp.FLUSH:
            start = int(dut.o__payload.value) >> self.order.fields["origin.tag"][0]
            told = op["frame"] | op["token"] << c.frame_bits
            assert start & (1 << c.frame_bits + self.token_bits) - 1 == told, where
        else:
            assert all(op[name] == value for name, value in origin.items()), f"{where}: {origin}"
        for name, what in (("lines", "line"), ("scales", "scale")):
            for each in ("slot", "select"):
                held = int(getattr(dut, f"{name}__slot__{each}").value)
                assert o[f"{what}_{each}"] == held, where
        assert o["wait_line"] == int(dut.lines__wait.value), where
        assert o["wait_scale"] == int(two.reads and op["scaled"]), where
        if two.full_write:
            w = self.write.unpack(dut.o_write__payload.value)
            assert all(op[name] == value for name, value in w.items()), f"{where}: {w}"
        self.figures["ops"] += 1

    def of_frame(self, op, frames):
        low = (1 << DataFront.FRAME_BITS) - 1
        return any((op["frame"] ^ frame) & low == 0 for frame in frames)

    def look_at_reads(self):
        """AR: lines and scales each in order and in turn; what is shown stays."""
        dut = self.dut
        for name, requests in self.requests.items():
            waits = requests and self.cycle - requests[0][0] > SOON
            assert not waits or dut.ar__valid.value, f"{self.where}: {name} wait for AR"
        if not dut.ar__valid.value:
            assert self.asks is None, f"{self.where}: withdrawn"
            return
        shown = int(dut.ar__payload.value)
        assert self.asks in (None, shown), f"{self.where}: AR changes"
        ar = self.ar.unpack(shown)
        kind = ("lines", "scales")[ar["id"] >> self.id_bits - 1]
        other = ("lines", "scales")[kind == "lines"]
        assert self.requests[kind], f"{self.where}: {ar}"
        _, address, number = self.requests[kind][0]
        expected = {"id": number, "addr": address, "len": 0, "size": SIZE_LINE}
        assert ar == expected | {"burst": BURST_INCR}, f"{self.where}: {ar}, {expected}"
        waited = self.requests[other] and self.cycle - self.requests[other][0][0] > SOON
        if self.asks is None and kind == self.latest:
            assert not waited, f"{self.where}: {other} are not in turn"
        self.figures["turns"] += kind != self.latest
        self.latest = kind
        self.asks = shown
        if dut.ar__ready.value:
            self.requests[kind].popleft()
            self.asks = None
            self.figures["asked"] += 1

    # - what follows from a cycle ------------------------------------------------------------------
    def turn(self, poisoned, fired):
        dut = self.dut
        taken = self.offered and bool(dut.i__ready.value)
        free = len(self.inside) < 2 or fired
        assert bool(dut.i__ready.value) or not free, f"{self.where}: it does not take an op"
        assert not (dut.i__ready.value and not free), f"{self.where}: it takes an op too many"
        self.look_at_rest()
        if fired:
            self.inside.popleft()
        if poisoned is not None:
            self.union.add(poisoned)
            for entered in self.inside:
                entered.told.add(poisoned)
                entered.stale = True
            self.windows.append([len(self.coming), poisoned])
        for entered in self.inside:
            if entered.stale:
                entered.may |= self.union
        if taken:
            entered = Entered(self.coming.popleft(), self.cycle)
            self.offered = False
            self.inside.append(entered)
            entered.told |= {frame for left, frame in self.windows if left}
            entered.stale = bool(entered.told)
            entered.may |= self.union if entered.stale else set()
            self.windows = [[left - 1, frame] for left, frame in self.windows if left > 1]
        self.windows = [window for window in self.windows if window[0]]
        if not self.windows and not any(entered.stale for entered in self.inside):
            self.union.clear()

    def look_at_rest(self):
        dut = self.dut
        fault = self.fault.unpack(dut.fault.value)
        assert self.flipped or not any(fault.values()), self.where
        self.told.update(name for name, told in fault.items() if told)
        busy = self.inside or any(self.requests.values()) or self.asks
        assert not (busy and dut.idle.value), f"{self.where}: idle"
        self.quiet = 0 if busy else self.quiet + 1
        assert self.quiet <= SOON or dut.idle.value, f"{self.where}: not idle"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def contract(dut):
    tb = TB(dut)
    await start_quiet(dut, *OFFERS)
    for n in range(bench_params()["cycles"]):
        if n % 300 == 0:
            tb.weather()
        if n % 2500 == 2499:
            tb.figures["reset"] += bool(tb.inside and any(tb.requests.values()))
            await tb.reset()
        await tb.tick()
    record(**tb.figures)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def flipped_requests(dut):
    """One bit of each request that waits for AR changes nothing, and is told of as it leaves; two
    are told of while it is the next."""
    tb = TB(dut)
    await start_quiet(dut, *OFFERS)
    for name in tb.requests:
        rows = getattr(dut, f"{name[:-1]}_requests").rows
        for bits in (1, 2):
            await tb.reset()
            tb.told.clear()
            tb.rate, tb.stall, tb.calls, tb.misses, tb.ar_stall = 1, 0, 0, 1, 1
            while len(tb.requests[name]) < 5:
                await tb.tick()
            tb.coming, tb.offered, tb.rate = deque(), False, 0
            while tb.inside:
                await tb.tick()
            await tb.tick()  # a row that is just being written cannot be flipped
            tb.flipped, waiting = True, len(tb.requests[name])
            sound = [int(row.value) for row in rows]
            for row, word in zip(rows, sound, strict=True):
                flips = tb.rng.sample(range(len(row)), bits)
                row.value = word ^ sum(1 << bit for bit in flips)
            if bits == 2:
                await Timer(1, "ns")
                assert tb.fault.unpack(dut.fault.value) == {"corrected": 0, "uncorrected": 1}, name
                for row, word in zip(rows, sound, strict=True):
                    row.value = word  # what is offered must not change
                await RisingEdge(dut.clk)
            else:
                tb.ar_stall = 0
                while any(tb.requests.values()):
                    await tb.tick()
                assert tb.told == {"corrected": waiting}, f"{name}: {tb.told} of {waiting}"
            tb.flipped = False
