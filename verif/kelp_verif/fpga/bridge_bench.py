# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Host bridge between the host's own link code and an endpoint that answers late, over a line that
loses, doubles, changes and adds bytes."""

import random
from collections import deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_fpga.link.bridge import board_access, injected
from kelp_fpga.link.host_link import HostLink
from kelp_fpga.link.protocol import (
    BOARD_REPLY,
    BOARD_REQUEST,
    FLAG,
    WINDOW,
    Frame,
    Kind,
    encode,
    pack,
    unpack,
)
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import MESSAGES
from kelp_spec.messages import FIELDS, M2SReq

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

_TIMEOUT = 600  # cycles of silence before the host polls


class Line:
    """One direction. `rate` is the chance of each of five kinds of fault, per byte."""

    def __init__(self, rng, rate=0.0):
        self.rng, self.rate, self.bytes, self.faults, self.carried = rng, rate, deque(), 0, 0

    def put(self, data):
        for byte in data:
            roll = self.rng.random() / self.rate if self.rate else 9
            self.faults += roll < 5
            if roll < 1:
                continue
            if roll < 2:
                byte ^= 1 << self.rng.randrange(8)
            self.bytes.append(byte)
            if 2 <= roll < 3:
                self.bytes.append(byte)
            elif 3 <= roll < 4:  # somebody else's bytes among ours
                self.bytes.extend(
                    self.rng.choice((FLAG, self.rng.randrange(256)))
                    for _ in range(self.rng.randint(1, 12))
                )
            elif 4 <= roll < 5 and len(self.bytes) > 40:  # the same stretch twice
                self.bytes.extend(list(self.bytes)[-self.rng.randint(2, 40) :])

    def take(self):
        self.carried += bool(self.bytes)
        return self.bytes.popleft() if self.bytes else None


class TB:
    def __init__(self, dut, rate=0.0, pressure=0.3):
        self.dut, self.rng, self.pressure = dut, random.Random(cocotb.RANDOM_SEED), pressure
        self.down, self.up = Line(self.rng, rate), Line(self.rng, rate)
        self.req, self.rwd = Packing(MESSAGES["M2SReq"]), Packing(MESSAGES["M2SRwD"])
        self.drs, self.ndr = Packing(MESSAGES["S2MDRS"]), Packing(MESSAGES["S2MNDR"])
        self.cycle = 0
        # (kind, fields) in the order in which the endpoint took them
        self.accepted = []
        # (cycle, is drs, vector): the endpoint's answers to come
        self.owed = []
        self.offered = [None, None]
        self.delivered = []  # (kind, payload) that the host got
        self.board = {}
        self.host = None
        self.taking = True  # the endpoint accepts requests
        self.latency = 100
        streams = ("i", "o", "m2s_req", "m2s_rwd", "s2m_drs", "s2m_ndr")
        self.io = {
            f"{name}__{part}": getattr(dut, f"{name}__{part}")
            for name in streams
            for part in ("valid", "ready", "payload")
        }
        self.io["board__valid"] = dut.board__valid
        self.driven = {}

    def connect(self):
        self.host = HostLink(nonce=self.rng.getrandbits(32), timeout=_TIMEOUT)

    async def start(self):
        dut = self.dut
        dut.i__valid.value = dut.m2s_req__ready.value = dut.m2s_rwd__ready.value = (
            dut.device_reset.value
        ) = 0
        dut.s2m_drs__valid.value = dut.s2m_ndr__valid.value = dut.i__payload.value = 0
        dut.hold.value = dut.inject__valid.value = dut.take_drs.value = dut.take_ndr.value = 0
        dut.o__ready.value, dut.board_read_data.value = 1, 0x5A5A1234
        await start_clock(dut)
        for _ in range(3):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        self.connect()

    async def step(self):
        """One cycle, and a byte of the line each way at most: no faster line exists."""
        dut, rng, io = self.dut, self.rng, self.io
        now = self.cycle
        byte = self.down.take()
        if byte is not None:
            io["i__payload"].value = byte
        self.drive("i__valid", int(byte is not None))
        take = [int(self.taking and rng.random() >= self.pressure) for _ in range(2)]
        self.drive("m2s_req__ready", take[0])
        self.drive("m2s_rwd__ready", take[1])
        for n, name in enumerate(("s2m_drs", "s2m_ndr")):
            if self.offered[n] is None and self.owed:
                due = next(
                    (entry for entry in self.owed if entry[0] <= now and entry[1] == (n == 0)), None
                )
                if due is not None:
                    self.owed.remove(due)
                    self.offered[n] = due[2]
                    io[f"{name}__payload"].value = due[2]
            self.drive(f"{name}__valid", int(self.offered[n] is not None))
        await ReadOnly()
        if io["o__valid"].value:
            self.up.put([int(io["o__payload"].value)])
        for kind, name, packing in (
            (Kind.REQ, "m2s_req", self.req),
            (Kind.RWD, "m2s_rwd", self.rwd),
        ):
            if take[kind == Kind.RWD] and io[f"{name}__valid"].value:
                fields = packing.unpack(io[f"{name}__payload"].value)
                self.accepted.append((kind, fields))
                if kind == Kind.RWD or fields["opcode"] != M2SReq.MEM_SPEC_RD:
                    self.owed.append(
                        (now + rng.randint(1, self.latency), *self.answer(kind, fields))
                    )
        for n, name in enumerate(("s2m_drs", "s2m_ndr")):
            if self.offered[n] is not None and io[f"{name}__ready"].value:
                self.offered[n] = None
        self.injected = bool(dut.inject__ready.value)
        if io["board__valid"].value:
            access = board_access.from_bits(int(dut.board__payload.value))
            self.board[access.address] = access.data, access.write
        await RisingEdge(dut.clk)
        self.cycle += 1
        byte = self.up.take()
        if byte is not None:
            self.delivered += self.host.feed(bytes([byte]), now)
        if now % 8 == 0:
            self.down.put(self.host.pump(now))

    def drive(self, name, value):
        if self.driven.get(name) != value:
            self.driven[name] = self.io[name].value = value

    @staticmethod
    def data(address):
        return random.Random(address).getrandbits(512)

    def answer(self, kind, fields):
        if kind == Kind.REQ:
            return True, self.drs.pack(
                tag=fields["tag"],
                ld_id=fields["ld_id"],
                data=self.data(fields["address"]),
                dev_load=fields["tag"] & 3,
            )
        return False, self.ndr.pack(
            tag=fields["tag"], ld_id=fields["ld_id"], dev_load=fields["tag"] & 3
        )

    def submit(self, count, first=0):
        """`count` random messages; [(kind, fields)]."""
        rng, out = self.rng, []
        for tag in range(first, first + count):
            kind = rng.choice((Kind.REQ, Kind.REQ, Kind.RWD))
            fields = {"tag": tag, "address": rng.getrandbits(46), "ld_id": rng.randrange(16)}
            if kind == Kind.REQ:
                fields["opcode"] = rng.choice((M2SReq.MEM_RD, M2SReq.MEM_RD, M2SReq.MEM_SPEC_RD))
            else:
                fields |= {
                    "opcode": 1,
                    "byte_enable": rng.getrandbits(64),
                    "data": rng.getrandbits(512) | 0x7E7D << rng.randrange(490),
                }
            answers = int(fields["opcode"] != M2SReq.MEM_SPEC_RD or kind == Kind.RWD)
            self.host.submit(
                kind, pack(FIELDS["M2SReq" if kind == Kind.REQ else "M2SRwD"], **fields), answers
            )
            out.append((kind, fields))
        return out

    async def until(self, condition, limit):
        started = self.cycle
        while not condition():
            await self.step()
            assert self.cycle - started < limit, (
                f"not after {limit} cycles: awaiting {self.host.awaiting}, accepted "
                + f"{len(self.accepted)}"
            )

    def check(self, asked):
        """Every message reached the endpoint once, in order among its kind's channel; every answer
        the host once; nothing else did either."""
        for kind in (Kind.REQ, Kind.RWD):
            wanted = [fields for k, fields in asked if k == kind]
            got = [
                {name: fields[name] for name in wanted[0]}
                for k, fields in self.accepted
                if k == kind
            ]
            assert got == wanted, (
                f"{kind.name}: {len(got)} of {len(wanted)} reached the endpoint as they were sent"
            )
        assert all(
            fields[name] == 0
            for _, fields in self.accepted
            for name in ("meta_field", "snp_type", "tc")
        )
        answers = {}
        for kind, payload in self.delivered:
            fields = unpack(FIELDS["S2MNDR" if kind == Kind.REQ else "S2MDRS"], payload)
            assert fields["tag"] not in answers, f"two answers to {fields['tag']}"
            answers[fields["tag"]] = fields
        reads = {f["tag"]: f for k, f in asked if k == Kind.REQ and f["opcode"] == M2SReq.MEM_RD}
        writes = {f["tag"]: f for k, f in asked if k == Kind.RWD}
        assert answers.keys() == reads.keys() | writes.keys()
        for tag, fields in reads.items():
            assert answers[tag]["data"] == self.data(fields["address"]), f"wrong data for {tag}"
        for tag, fields in (reads | writes).items():
            assert (answers[tag]["ld_id"], answers[tag]["dev_load"]) == (fields["ld_id"], tag & 3)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_clean_line_carries_everything_once(dut):
    tb = TB(dut)
    await tb.start()
    asked = tb.submit(bench_params().get("messages", 60))
    await tb.until(lambda: tb.host.idle, 60_000)
    tb.check(asked)
    assert (tb.host.bad, tb.host.duplicates) == (0, 0)
    # MemSpecRd has no answer to carry its acknowledgement, which is then a frame of its own;
    # nothing is sent twice.
    assert tb.host.resent == 0 and tb.host.polls == 0
    bytes_needed = sum(
        len(encode(Frame(k, 0, 0, 0, pack(FIELDS["M2SReq" if k == Kind.REQ else "M2SRwD"], **f))))
        for k, f in asked
    )
    record(clean_cycles=tb.cycle, line_use=bytes_needed / tb.cycle)
    for _ in range(200):  # the last acknowledgements
        await tb.step()
    carried = tb.down.carried, tb.up.carried
    for _ in range(4 * _TIMEOUT):
        await tb.step()
    assert (tb.down.carried, tb.up.carried) == carried, "an idle line is not silent"


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def a_bad_line_loses_and_invents_nothing(dut):
    tb = TB(dut)
    await tb.start()
    asked = []
    for round_ in range(bench_params().get("rounds", 3)):
        tb.down.rate = tb.up.rate = (0.0006, 0.002, 0.0002)[round_ % 3]
        asked += tb.submit(40, 40 * round_)
        await tb.until(lambda: tb.host.idle, 60_000)
        for line in (tb.down, tb.up):
            line.bytes.clear()
    tb.check(asked)
    assert (
        tb.down.faults > 10
        and tb.up.faults > 10
        and tb.host.resent
        and tb.host.polls
        and tb.host.bad
    )
    record(
        faults=tb.down.faults + tb.up.faults,
        resent=tb.host.resent,
        polls=tb.host.polls,
        cycles=tb.cycle,
    )


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_new_host_sees_nothing_of_the_old_one(dut):
    tb = TB(dut)
    await tb.start()
    tb.latency = 1500
    tb.submit(40)
    await tb.until(lambda: len(tb.accepted) > 10, 20_000)
    tb.connect()
    tb.down.bytes.clear()
    await tb.until(lambda: tb.host.up, 20_000)
    assert not tb.owed and tb.offered == [None, None], (
        "SYNC was answered while the endpoint still owed answers"
    )
    tb.accepted.clear()
    tb.delivered.clear()
    asked = tb.submit(30, first=1000)
    await tb.until(lambda: tb.host.idle, 30_000)
    tb.check(asked)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def an_endpoint_that_stops_holds_the_host_back(dut):
    """No more than the window is accepted from the line, and nothing is lost when the endpoint goes
    on."""
    tb = TB(dut)
    await tb.start()
    tb.taking = False
    asked = tb.submit(50)
    for _ in range(3000):
        await tb.step()
    assert not tb.accepted and tb.host.backlog >= 50 - 2 * WINDOW
    tb.taking = True
    await tb.until(lambda: tb.host.idle, 60_000)
    tb.check(asked)


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def a_place_that_comes_free_within_a_frame_takes_the_next_one(dut):
    """A body whose first bytes found no place is not a message, though there is one at its end."""
    tb = TB(dut)
    await tb.start()
    asked = tb.submit(120)
    while not tb.host.idle:
        tb.taking = not tb.taking
        for _ in range(tb.rng.randint(1, 60) if tb.taking else tb.rng.randint(300, 1500)):
            await tb.step()
        assert tb.cycle < 300_000
    tb.check(asked)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def the_boards_registers(dut):
    tb = TB(dut)
    await tb.start()
    tb.host.submit(Kind.BOARD, pack(BOARD_REQUEST, tag=7, address=5, write=1, data=0xDEADBEEF))
    tb.host.submit(Kind.BOARD, pack(BOARD_REQUEST, tag=8, address=6))
    await tb.until(lambda: tb.host.idle, 20_000)
    assert tb.board == {5: (0xDEADBEEF, 1), 6: (0, 0)}
    replies = [unpack(BOARD_REPLY, payload) for kind, payload in tb.delivered if kind == Kind.BOARD]
    assert [r["tag"] for r in replies] == [7, 8] and all(r["data"] >> 16 == 0x5A5A for r in replies)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_self_test_has_the_endpoint_to_itself(dut):
    """Held, the host reaches registers and nothing else; the test's own messages come out whole,
    their answers where they are taken; then the host goes on."""
    tb = TB(dut)
    await tb.start()
    message_byte = Packing(injected)
    await tb.until(lambda: tb.host.up, 20_000)
    dut.hold.value = 1
    tb.host.submit(Kind.BOARD, pack(BOARD_REQUEST, tag=7, address=5))
    await tb.until(lambda: 5 in tb.board, 20_000)
    asked = tb.submit(5, first=100)
    for _ in range(2000):
        await tb.step()
    assert not tb.accepted and not tb.owed
    own = {
        "opcode": 1,
        "address": 0x123456789,
        "tag": 9,
        "byte_enable": 0xFF00,
        "data": tb.rng.getrandbits(512),
    }
    for kind, fields in (
        (Kind.RWD, own),
        (Kind.REQ, {"opcode": M2SReq.MEM_RD, "address": 77, "tag": 3}),
    ):
        message = pack(FIELDS["M2SRwD" if kind == Kind.RWD else "M2SReq"], **fields)
        for n, byte in enumerate(message):
            dut.inject__payload.value = message_byte.pack(
                byte=byte, kind=kind, last=int(n == len(message) - 1)
            )
            dut.inject__valid.value = 1
            taken = False
            while not taken:
                await tb.step()
                taken = tb.injected
        dut.inject__valid.value = 0
        await tb.until(
            lambda: tb.accepted and any(offered is not None for offered in tb.offered), 2000
        )
        [(got_kind, got)] = tb.accepted
        assert (
            got_kind == kind
            and {name: got[name] for name in fields} == fields
            and int(dut.owed.value)
        )
        for _ in range(50):
            await tb.step()
        assert tb.offered != [None, None], "an answer was taken before the test took it"
        (dut.take_drs if kind == Kind.REQ else dut.take_ndr).value = 1
        await tb.until(lambda: tb.offered == [None, None], 10)
        dut.take_drs.value = dut.take_ndr.value = 0
        for _ in range(3):
            await tb.step()
        assert not int(dut.owed.value)
        tb.accepted.clear()
    assert [kind for kind, _ in tb.delivered] == [Kind.BOARD]
    tb.delivered.clear()
    dut.hold.value = 0
    await tb.until(lambda: tb.host.idle, 30_000)
    tb.check(asked)
    # A host that connects meanwhile waits, too.
    dut.hold.value = 1
    tb.connect()
    for _ in range(2000):
        await tb.step()
    assert not tb.host.up
    dut.hold.value = 0
    await tb.until(lambda: tb.host.up, 20_000)
    tb.accepted.clear()
    tb.delivered.clear()
    asked = tb.submit(5, first=200)
    await tb.until(lambda: tb.host.idle, 30_000)
    tb.check(asked)
