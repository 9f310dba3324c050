# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled driver: its models and its vigilance on a small stand-in for the endpoint, then the
endpoint itself."""

import functools
import re
import threading
import time

import numpy as np
import pytest
from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from narrow_unit import UNIT
from paths import DOCS
from processes import ends_in_a_child

from kelp_hw.endpoint import endpoint_signature
from kelp_rtl.device import (
    Descriptor,
    Driver,
    DriverError,
    Failure,
    FlashTiming,
    MemoryTiming,
    Pressure,
    QueueParameters,
    RunRules,
    UncheckedDriver,
    Waves,
)
from kelp_rtl.program import PARTIAL, POISON, READ, SETTLE, SPEC_READ, WRITE, Program, Response
from kelp_spec.hints import HintKind, HintLine
from kelp_spec.messages import S2MDRS, M2SReq
from kelp_spec.metadata import ColdOp, ColdStatus, Op, PageState

COLD = 1 << 30  #: address bit that sends an access of the stand-in through the cold tier


class _Request:
    """The request that is served."""

    def __init__(self, config):
        self.write = Signal()
        self.tag = Signal(16)
        self.ld_id = Signal(4)
        self.address = Signal(46)
        self.held = Signal(512)
        self.strobe = Signal(64)
        self.poison = Signal()
        self.opcode = Signal(4)
        self.failed = Signal()  #: the tier said so
        self.line = self.address[: config.dram_line_bits]
        self.cold = self.address[(COLD >> 6).bit_length() - 1]


class Offer(wiring.Component):
    """Offers what nobody takes; `withdraw` takes it back for a cycle."""

    def __init__(self):
        super().__init__({"withdraw": In(1), "o": Out(stream.Signature(1))})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.valid.eq(~self.withdraw)
        return m


class StandIn(wiring.Component):
    """Serves one request at a time: line = low address bits. With COLD a read fetches the line from
    lba = line first and a write puts it there afterwards.

    The LD-ID chooses what goes wrong: 7 breaks the stream rule inside, 8 answers twice, 9 under
    another tag, 10 on the wrong channel, 11 never, 12 breaks an Assert, 13 changes an offer, 14
    leaves the memory, 15 answers another LD-ID.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__(endpoint_signature(config))

    def elaborate(self, platform):
        m = Module()
        request, attempt = _Request(self.config), Signal()
        m.d.sync += [self.now.eq(self.now + 1 + self.skip), self.ready.eq(1)]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                take_rwd = self.ready & self.m2s_rwd.valid
                take_req = self.ready & ~self.m2s_rwd.valid & self.m2s_req.valid
                self._take(m, request, take_rwd, take_req)
                self._commit(m, take_rwd, take_req)
            self._memory(m, request)
            self._tier(m, request, attempt)
            self._answer(m, request)
        self._payloads(m, request, attempt)
        m.submodules.offer = offer = Offer()
        m.d.comb += offer.withdraw.eq(fsm.ongoing("ANSWER") & (request.ld_id == 7))
        m.d.comb += Assert(~(fsm.ongoing("ANSWER") & (request.ld_id == 12)))
        return m

    def _take(self, m, request, take_rwd, take_req):
        """A request comes, and what it needs first."""
        req, rwd = self.m2s_req, self.m2s_rwd
        m.d.comb += [
            rwd.ready.eq(self.ready),
            req.ready.eq(self.ready & ~rwd.valid),
            self.quiescent.eq(self.ready & ~rwd.valid & ~req.valid),
        ]
        with m.If(take_rwd):
            m.d.sync += [
                request.write.eq(1),
                request.tag.eq(rwd.p.tag),
                request.ld_id.eq(rwd.p.ld_id),
                request.address.eq(rwd.p.address),
                request.held.eq(rwd.p.data),
                request.opcode.eq(0),
                request.strobe.eq(Mux(rwd.p.bep, rwd.p.byte_enable, ~0)),
                request.poison.eq(rwd.p.poison),
            ]
            m.next = "WRITE"
        with m.Elif(take_req):
            m.d.sync += [
                request.write.eq(0),
                request.tag.eq(req.p.tag),
                request.ld_id.eq(req.p.ld_id),
                request.address.eq(req.p.address),
                request.opcode.eq(req.p.opcode),
            ]
            with m.If(req.p.opcode != M2SReq.MEM_SPEC_RD):
                m.next = "ANSWER"
                with m.If(req.p.opcode == M2SReq.MEM_RD):
                    m.next = "READ"
                    with m.If(req.p.address & (COLD >> 6) != 0):
                        m.next = "COMMAND"

    def _commit(self, m, take_rwd, take_req):
        """The commit ports show the request, and how many came before it."""
        req, rwd, served = self.m2s_req, self.m2s_rwd, Signal(8)
        result, frame, score = self.commit_result, self.commit_frame, self.commit_score
        with m.If(take_rwd | take_req):
            m.d.sync += served.eq(served + 1)
        m.d.comb += [
            result.valid.eq(take_rwd | take_req),
            result.p.op.kind.eq(Mux(take_rwd, Op.WRITE, Op.READ)),
            result.p.op.origin.tag.eq(Mux(take_rwd, rwd.p.tag, req.p.tag)),
            result.p.frame.eq(served),
            frame.valid.eq(take_rwd | take_req),
            self.commit_hot.eq(take_req),
            frame.p.op.kind.eq(result.p.op.kind),
            frame.p.entry.valid.eq(served),
            frame.p.entry.poison.eq(~0),
            score.valid.eq(take_rwd),
            score.p.score.eq(served),
        ]

    def _memory(self, m, request):
        """States that write a line and read one."""
        axi = self.axi
        with m.State("WRITE"):
            sent_aw, sent_w = Signal(), Signal()
            m.d.comb += [axi.aw.valid.eq(~sent_aw), axi.w.valid.eq(~sent_w)]
            m.d.sync += [sent_aw.eq(sent_aw | axi.aw.ready), sent_w.eq(sent_w | axi.w.ready)]
            with m.If((sent_aw | axi.aw.ready) & (sent_w | axi.w.ready)):
                m.d.sync += [sent_aw.eq(0), sent_w.eq(0)]
                m.next = "WRITTEN"
        with m.State("WRITTEN"):
            m.d.comb += axi.b.ready.eq(1)
            with m.If(axi.b.valid):
                m.next = "ANSWER"
                with m.If(request.cold):
                    m.next = "COMMAND"
        with m.State("READ"):
            m.d.comb += axi.ar.valid.eq(1)
            with m.If(axi.ar.ready):
                m.next = "BEAT"
        with m.State("BEAT"):
            m.d.comb += axi.r.ready.eq(1)
            with m.If(axi.r.valid):
                m.d.sync += request.held.eq(axi.r.p.data)
                m.next = "ANSWER"

    def _tier(self, m, request, attempt):
        """States of a command to the cold tier."""
        command, completion = self.cold_command, self.cold_completion
        with m.State("COMMAND"):
            m.d.comb += command.valid.eq(1)
            with m.If(command.ready):
                m.next = "COMPLETION"
                m.d.sync += attempt.eq(~attempt)
        with m.State("COMPLETION"):
            m.d.comb += [completion.ready.eq(1), self.quiescent.eq(1)]
            with m.If(completion.valid):
                m.d.sync += [
                    request.failed.eq(completion.p.status != ColdStatus.OK),
                    request.poison.eq(completion.p.line_mask.poison[0]),
                ]
                m.next = "ANSWER"
                with m.If(~request.write & (completion.p.status == ColdStatus.OK)):
                    m.next = "READ"

    def _answer(self, m, request):
        """State ANSWER: on its channel, once, unless the LD-ID says otherwise."""
        drs, ndr, ld_id, again = self.s2m_drs, self.s2m_ndr, request.ld_id, Signal()
        with m.State("ANSWER"):
            on_drs = (~request.write & (request.opcode == M2SReq.MEM_RD)) ^ (ld_id == 10)
            with m.If(ld_id == 11):
                m.next = "IDLE"
            with m.Elif(on_drs):
                m.d.comb += drs.valid.eq(1)
            with m.Else():
                m.d.comb += ndr.valid.eq(1)
            with m.If((drs.valid & drs.ready) | (ndr.valid & ndr.ready)):
                m.d.sync += again.eq(~again & (ld_id == 8))
                with m.If(again | (ld_id != 8)):
                    m.d.sync += [request.failed.eq(0), request.poison.eq(0)]
                    m.next = "IDLE"

    def _payloads(self, m, request, attempt):
        """What the offers say."""
        drs, ndr, axi, command = self.s2m_drs, self.s2m_ndr, self.axi, self.cold_command
        line, ld_id = request.line, request.ld_id
        m.d.comb += [
            axi.ar.p.addr.eq(Mux(ld_id == 14, ~0, line) << 6),
            axi.ar.p.size.eq(6),
            axi.ar.p.burst.eq(1),
            axi.ar.p.id.eq(line),
            axi.aw.p.addr.eq(line << 6),
            axi.aw.p.size.eq(6),
            axi.aw.p.burst.eq(1),
            axi.w.p.data.eq(request.held),
            axi.w.p.strb.eq(request.strobe),
            axi.w.p.last.eq(1),
            command.p.op.eq(Mux(request.write, ColdOp.WRITE, ColdOp.READ)),
            command.p.id.attempt.eq(attempt),
            command.p.lba.eq(line),
            command.p.line.eq(line),
            command.p.lines.eq(1),
            command.p.line_mask.valid.eq(1),
            command.p.line_mask.poison.eq(request.poison),
            drs.p.tag.eq(request.tag ^ (ld_id == 9)),
            drs.p.ld_id.eq(Mux(ld_id == 15, 0, ld_id)),
            drs.p.data.eq(request.held ^ Mux(ld_id == 13, self.now, 0)),
            drs.p.poison.eq(request.poison),
            drs.p.opcode.eq(Mux(request.failed, S2MDRS.MEM_DATA_NXM, S2MDRS.MEM_DATA)),
            ndr.p.tag.eq(request.tag),
            ndr.p.ld_id.eq(ld_id),
        ]


@functools.cache
def stand_in():
    return StandIn(config=UNIT)


def driver(**options):
    return Driver(UNIT, component=stand_in(), **options)


def lines(count, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (count, 64), np.uint8)


def at(numbers):
    return np.asarray(numbers, np.uint64) * 64


# - the host ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("stall", [0.0, 0.4])
@pytest.mark.parametrize("in_order", [False, True])
def test_what_was_written_is_read(stall, in_order):
    d = driver(
        pressure=Pressure.everywhere(stall),
        memory=MemoryTiming(jitter=20, shuffle=True),
        seed=5,
        rules=RunRules(in_order=in_order),
    )
    data = lines(100)
    written = d.run(Program.writes(at(range(100)), data, ld_id=3))
    assert (written.response == Response.CMP).all() and written.missing == 0
    order = np.random.default_rng(2).permutation(100)
    read = d.run(Program.reads(at(order)))
    assert (read.response == Response.DATA).all()
    assert (read.data == data[order]).all()
    assert (d.memory[:100] == data).all()
    assert (
        read.counts["memory_reads"] == 100
        and read.counts["memory_writes"] == 0
        and written.counts["memory_writes"] == 100
    )
    assert (
        sorted(read.response_order) == list(range(100))
        and (read.accept_order == np.arange(100)).all()
    )
    assert (read.latency >= 64).all() and read.accept_cycle.min() >= written.response_cycle.max()


def test_a_closed_driver_says_so():
    d = driver()
    with pytest.raises(ValueError, match="every = 0 is refused"):
        d.run(Program.reads(at([1])), every=0)
    with pytest.raises(ValueError, match="cycles = 0 is refused"):
        d.reset(0)
    d.close()
    d.close()
    for use in (lambda: d.run(Program.reads(at([1]))), lambda: d.memory, lambda: d.time, d.counts):
        with pytest.raises(DriverError, match="is closed"):
            use()


def test_a_line_beyond_32_bits_is_none_of_the_first_ones():
    config = UNIT.with_(half_lines=512, frames=(1 << 22, 1 << 22, 4, 4))
    d, far, data = Driver(config, component=StandIn(config=config)), (1 << 32) + 3, lines(1)
    assert config.dram_lines > far
    d.run(Program.writes([64 * far], data))
    assert (d.memory[far] == data).all() and not d.memory[3].any()


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: MemoryTiming(latency=-1), "latency = -1 is refused; legal: 0 …"),
        (lambda: MemoryTiming(jitter=1 << 31), "jitter = 2147483648 is refused"),
        (lambda: FlashTiming(abort_latency=1.5), "abort_latency = 1.5 is refused"),
        (lambda: FlashTiming(bytes_per_cycle=0), "bytes_per_cycle = 0 is refused; legal: above 0"),
        (lambda: FlashTiming(bytes_per_cycle=float("nan")), "bytes_per_cycle = nan is refused"),
        (lambda: Failure(index=-1), "index = -1 is refused"),
        (lambda: RunRules(max_skip=-1), "max_skip = -1 is refused"),
        (lambda: RunRules(stall_limit=0), "stall_limit = 0 is refused; legal: 1 …"),
    ],
)
def test_no_time_is_negative_and_no_link_stands_still(made, problem):
    with pytest.raises(ValueError, match=problem):
        made()


def test_partial_writes_and_poison():
    d = driver()
    data = lines(3)
    masks = np.array([0x00FF00FF00FF00FF, 1, 1 << 63], np.uint64)
    d.run(Program(opcode=PARTIAL, address=at([5, 6, 7]), data=data, byte_enable=masks))
    bits = np.unpackbits(masks.view(np.uint8).reshape(3, 8), axis=1, bitorder="little").astype(bool)
    assert (d.memory[5:8] == np.where(bits, data, 0)).all()
    d.run(Program(opcode=WRITE, address=at([9 + (COLD >> 6)]), data=data[:1], flags=POISON))
    assert d.run(Program.reads(at([9 + (COLD >> 6)]))).response.tolist() == [Response.POISON]


def test_groups_wait_for_the_answers_before():
    d = driver()
    alone = d.run(Program.reads(at(range(20)), group=np.arange(20)))
    assert alone.counts["peak_outstanding"] == 1
    group = np.repeat(np.arange(5), 4)
    result = d.run(Program.reads(at(range(20)), group=group))
    assert result.counts["peak_outstanding"] == 2  # one served, one on offer
    for g in range(1, 5):
        assert result.accept_cycle[group == g].min() > result.response_cycle[group == g - 1].max()


def test_settled_groups_and_lockstep_come_one_by_one():
    d = driver()
    plain, settled = (
        d.run(Program.reads(at(range(20)), group=np.arange(20), flags=flags))
        for flags in (0, SETTLE)
    )
    assert settled.counts["simulated"] > plain.counts["simulated"]
    locked = d.run(Program.reads(at(range(20))), lockstep=True)
    assert (locked.accept_cycle[1:] > locked.response_cycle[:-1]).all()


def test_spec_reads_and_other_opcodes():
    d = driver()
    result = d.run(Program(opcode=[SPEC_READ, M2SReq.MEM_INV, READ, 15], address=at([1, 2, 3, 4])))
    assert (
        result.response.tolist() == [Response.NONE, Response.CMP, Response.DATA, Response.CMP]
        and result.missing == 0
    )
    assert result.response_cycle[0] == -1 and (result.accept_cycle >= 0).all()


def test_joined_programs():
    program = Program.join(
        [
            Program.writes(at([1, 2]), lines(2)),
            Program.reads(at([1])),
            Program.writes(at([3, 4]), lines(2, 7)),
            Program.reads(at([3])),
        ]
    )
    assert program.group.tolist() == [0, 0, 1, 2, 2, 3] and program.data_index.tolist() == [
        0,
        1,
        -1,
        2,
        3,
        -1,
    ]
    result = driver().run(program)
    assert (result.data[2] == lines(1)[0]).all() and (result.data[5] == lines(1, 7)[0]).all()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"opcode": READ, "address": [32]}, "address"),
        ({"opcode": 32, "address": [0]}, "opcode"),
        ({"opcode": READ, "address": [0], "ld_id": 16}, "ld_id"),
        ({"opcode": WRITE, "address": [0], "data": lines(2)}, "rows"),
        ({"opcode": WRITE, "address": [0], "data_index": 0}, "data_index"),
        # What would be another value in the driver's arrays.
        ({"opcode": 256, "address": [0]}, "opcode is refused"),
        ({"opcode": READ, "address": [0], "ld_id": 256}, "ld_id is refused; legal: .* 0 … 255"),
        ({"opcode": READ, "address": [-64]}, "address is refused"),
        ({"opcode": READ, "address": [64.5]}, "address is refused"),
        ({"opcode": READ, "address": ["64"]}, "address is refused"),
        ({"opcode": READ, "address": [None]}, "address is refused"),
        ({"opcode": READ, "address": [0], "flags": -1}, "flags is refused"),
        ({"opcode": READ, "address": [0], "flags": 4}, "flags = 4 is refused"),
        ({"opcode": READ, "address": [0], "byte_enable": -1}, "byte_enable is refused"),
        ({"opcode": READ, "address": [0], "group": 1 << 32}, "group is refused"),
        ({"opcode": WRITE, "address": [0], "data": np.full((1, 64), 256)}, "data is refused"),
        ({"opcode": WRITE, "address": [0], "data": lines(2).reshape(4, 32)}, "of shape .4, 32."),
    ],
)
def test_bad_programs_are_refused(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        Program(**arguments)


# - the memory -------------------------------------------------------------------------------------
@pytest.mark.parametrize("latency", [1, 64])
def test_memory_latency(latency):
    d = driver(memory=MemoryTiming(latency=latency))
    # Accepted in cycle 0, AR in 1, R in 1 + latency, DRS after it.
    assert set(d.run(Program.reads(at(range(10)))).latency) == {latency + 2}


# - the cold tier ----------------------------------------------------------------------------------
def cold_round(d, numbers, data):
    cold = np.asarray(numbers) + (COLD >> 6)
    written = d.run(Program.writes(at(cold), data))
    d.memory[:] = 0
    return written, d.run(Program.reads(at(cold), group=np.arange(len(cold))))


def test_cold_lines_come_back_in_time():
    d = driver(flash=FlashTiming(latency=5000, write_latency=300, bytes_per_cycle=8))
    data = lines(8)
    written, read = cold_round(d, range(8), data)
    assert (read.response == Response.DATA).all() and (read.data == data).all()
    assert (read.counts["flash_reads"], read.counts["flash_read_bytes"]) == (8, 8 * 1024)
    # One line fills a 512-byte sector and its line mask another: 128 cycles of link.
    assert (np.abs(read.latency - (5000 + 128 + 64)) < 8).all() and (
        np.abs(written.latency - (300 + 128 + 16)) < 8
    ).all()
    contents, valid, poison = d.flash(3)
    assert (contents == data[3]).all() and valid == 1 and poison == 0 and d.flash(99) is None


def test_time_is_skipped_without_changing_a_cycle():
    results = []
    for max_skip in (0, 700, 1 << 20):
        d = driver(rules=RunRules(max_skip=max_skip))
        results.append(cold_round(d, range(4), lines(4))[1])
    plain, short, long = results
    for other in (short, long):
        assert (
            other.response_cycle - other.accept_cycle[0]
            == plain.response_cycle - plain.accept_cycle[0]
        ).all()
        assert other.counts["simulated"] == plain.counts["simulated"] == plain.counts["evaluated"]
    assert (
        plain.counts["evaluated"] > 100_000
        and short.counts["evaluated"] < 10_000
        and long.counts["evaluated"] < short.counts["evaluated"]
    )


def test_time_without_requests_is_exact_and_jumped_over():
    """Also across a page that lands meanwhile."""
    landed = []
    for max_skip in (0, 700):
        d = driver(rules=RunRules(max_skip=max_skip), flash=FlashTiming(latency=5000))
        d.run(Program.reads(np.arange(4, dtype=np.uint64) * 64))
        d.run(Program(opcode=SPEC_READ, address=np.array([COLD], np.uint64)))
        time, before = d.time, d.counts()
        d.elapse(20_000)
        after = d.counts()
        assert d.time == time + 20_000
        landed.append(after["flash_reads"] - before["flash_reads"])
        evaluated = after["evaluated"] - before["evaluated"]
        assert evaluated == 20_000 if max_skip == 0 else evaluated < 5_000
    assert landed[0] == landed[1]


def test_planted_failures():
    d = driver(
        flash=FlashTiming(
            latency=1000, failures=[Failure(index=1), Failure(index=2, kind="late", cycles=5000)]
        )
    )
    _, read = cold_round(d, range(4), lines(4))
    assert read.response.tolist() == [Response.DATA, Response.NXM, Response.DATA, Response.DATA]
    assert read.latency[2] - read.latency[3] == 5000 and read.counts["flash_failed"] == 1


def test_a_tier_that_never_answers_is_noticed():
    d = driver(
        flash=FlashTiming(failures=[Failure(index=0, op=ColdOp.WRITE, kind="never")]),
        rules=RunRules(stall_limit=3000),
    )
    with pytest.raises(DriverError, match="nothing has moved for 3000 cycles; 1 requests wait"):
        cold_round(d, [0], lines(1))


def test_reading_an_empty_slot_is_noticed():
    with pytest.raises(DriverError, match="lba 5, which holds nothing"):
        driver().run(Program.reads(at([5 + (COLD >> 6)])))


# - vigilance --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ld_id", "opcode", "problem"),
    [
        (7, READ, r"assertion failed at .*top\.v:\d+, module \\top\.offer\.stream_rule$"),
        (8, READ, r"tag 0x\w+ answered again \(it was last used by request 0\)"),
        (9, READ, "was never used"),
        (10, READ, "wrong channel"),
        (10, WRITE, "wrong channel"),
        (11, READ, "nothing has moved"),
        (12, READ, r"assertion failed at .*top\.v:\d+, module top$"),
        (13, READ, "s2m_drs: the payload changed"),
        (14, READ, "axi.ar: address"),
        (15, READ, "answered to LD-ID 0"),
    ],
)
def test_what_goes_wrong_is_said(ld_id, opcode, problem):
    d = driver(pressure=Pressure(drs=0.5), rules=RunRules(stall_limit=2000))
    with pytest.raises(DriverError, match=problem) as caught:
        d.run(Program(opcode=opcode, address=at(range(10)), ld_id=ld_id))
    assert 0 < caught.value.cycle <= 3000
    with pytest.raises(DriverError, match="failed before"):
        d.run(Program.reads(at([1])))


def test_the_stream_rule_is_not_asserted_where_it_is_left_out():
    d = UncheckedDriver(UNIT, component=stand_in())
    read = d.run(Program(opcode=READ, address=at(range(10)), ld_id=7))
    assert (read.response == Response.DATA).all()


def test_models_are_closed_in_any_order_and_clocked_by_any_thread():
    first, second = driver(seed=1), driver(seed=2)
    clocked = threading.Thread(target=second.run, args=[Program.reads(at(range(10)))])
    clocked.start()
    clocked.join()
    second.close()
    with pytest.raises(DriverError, match="assertion failed"):
        first.run(Program(opcode=READ, address=at(range(10)), ld_id=12))
    first.close()


def test_a_child_lets_its_parents_simulation_be():
    """Where it becomes garbage, too; the parent goes on."""
    d = driver()
    d.run(Program.reads(at(range(10))))
    assert ends_in_a_child(d.close)
    assert (d.run(Program.reads(at(range(10)))).response == Response.DATA).all()


def test_running_out_of_cycles():
    d = driver()
    with pytest.raises(
        DriverError, match="90 of 100 requests unfinished after 700 evaluated cycles"
    ):
        d.run(Program.reads(at(range(100))), max_cycles=700)


def test_reset_under_traffic():
    d = driver()
    begun = d.run(Program.reads(at(range(100))), max_cycles=700, partial=True)
    assert 0 < begun.missing < 100
    with pytest.raises(DriverError, match="without an answer"):
        d.run(Program.reads(at([1])))
    d = driver()
    d.run(Program.reads(at(range(100))), max_cycles=700, partial=True)
    d.reset()
    assert d.time >= 1 << 32
    assert (d.run(Program.reads(at(range(100)))).response == Response.DATA).all()


def test_the_seed_decides():
    def run(seed):
        return (
            driver(pressure=Pressure.everywhere(0.3), seed=seed)
            .run(Program.reads(at(range(50))))
            .response_cycle.tolist()
        )

    assert run(1) == run(1) != run(2)


# - commits, progress, waves -----------------------------------------------------------------------
def test_commit_records():
    program = Program(opcode=[READ, WRITE] * 4, address=at(range(8)), data=lines(4))
    for hot in (False, True):
        d = driver(rules=RunRules(record_hot_reads=hot, in_order=True))
        result = d.run(program)
        commits = d.take_commits()
        assert commits.result["op.kind"].tolist() == [Op.READ, Op.WRITE] * 4
        assert (
            commits.result["frame"].tolist() == list(range(8))
            and len(set(commits.result["op.origin.tag"].tolist())) == 8
        )
        assert (commits.result.cycle == result.accept_cycle).all()
        assert commits.frame["entry.valid"].tolist() == (list(range(8)) if hot else [1, 3, 5, 7])
        assert (
            commits.frame["entry.poison"] == (1 << UNIT.page_lines) - 1
        ).all() and commits.score["score"].tolist() == [1, 3, 5, 7]
        kinds = [kind for kind, _ in commits]
        assert kinds == (["frame"] if hot else []) * 1 + kinds[hot:] and kinds[-3:] == [
            "result",
            "frame",
            "score",
        ]
        assert commits.frame.hot.sum() == (4 if hot else 0)
        assert len(d.take_commits()) == 0
        with pytest.raises(KeyError, match="not a field"):
            commits.result["nonsense"]


def test_progress_is_reported():
    seen = []
    driver().run(
        Program.reads(at(range(100))),
        progress=lambda done, cycle: seen.append((done, cycle)),
        every=500,
    )
    assert len(seen) > 10 and seen == sorted(seen) and seen[-1][0] == 100


@pytest.mark.slow  # compiles Verilator's run time with waves
def test_waves(tmp_path):
    d = driver(waves=Waves(tmp_path / "run.vcd"))
    d.run(Program.reads(at(range(3))))
    d.close()
    text = (tmp_path / "run.vcd").read_text()
    assert "s2m_drs__valid" in text and text.count("\n#") > 300
    d = driver(waves=Waves(tmp_path / "later.vcd", dumping=False))
    d.run(Program.reads(at(range(3))))
    d.dump(True)
    from_here = d.counts()["evaluated"]
    d.run(Program.reads(at(range(3))))
    cycles = d.counts()["evaluated"] - from_here
    d.close()
    assert cycles <= (tmp_path / "later.vcd").read_text().count("\n#") <= 2 * cycles + 2
    with pytest.raises(ValueError, match=".vcd"):
        driver(waves=Waves(tmp_path / "run.fst"))


def test_overhead(record_property):
    """A figure, not a bar: cycles a second with next to no model behind the driver."""
    d = driver(memory=MemoryTiming(latency=1))
    program = Program.reads(at(np.arange(50_000) % 100))
    started = time.perf_counter()
    result = d.run(program)
    rate = result.counts["evaluated"] / (time.perf_counter() - started)
    record_property("cycles_per_second", rate)
    print(
        f"driver alone: {rate:,.0f} cycles/s, "
        + f"{len(program) / result.counts['evaluated'] * rate:,.0f} requests/s"
    )
    assert rate > 20_000


# - the endpoint itself ----------------------------------------------------------------------------
FAST = FlashTiming(latency=2000, write_latency=1500)


def endpoint(queues=4, **options):
    d = Driver(UNIT, **{"flash": FAST} | options)
    d.open_session(0, Descriptor(layers=1, kv_heads=queues), QueueParameters(score_source=2))
    return d


def pages(d, queues, numbers):
    """Addresses of every line of some pages."""
    return np.array(
        [
            d.address(0, q, p, kv, line)
            for q in range(queues)
            for p in numbers
            for kv in range(2)
            for line in range(UNIT.half_lines)
        ],
        np.uint64,
    )


@pytest.mark.timeout(1800)  # the first one builds the model
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_endpoint_keeps_what_it_is_given(stall):
    """Four times as many pages as frames: most of them go to flash and come back."""
    d = endpoint(
        pressure=Pressure.everywhere(stall),
        memory=MemoryTiming(jitter=30 if stall else 0, shuffle=stall > 0),
        seed=3,
    )
    addresses = pages(d, 4, range(8))
    data = lines(len(addresses))
    written = d.run(Program.writes(addresses, data), settle=True)
    assert (written.response == Response.CMP).all()
    order = np.random.default_rng(4).permutation(len(addresses))
    read = d.run(Program.reads(addresses[order]), settle=True)
    assert (read.response == Response.DATA).all() and (read.data == data[order]).all()
    counters, counts = d.counters(), d.counts()
    assert (counters["writes"], counters["reads"], counters["allocations"]) == (
        len(addresses),
        len(addresses),
        32,
    )
    assert (
        counters["evictions"] >= 24
        and counters["write_backs"] == counts["flash_writes"]
        and counters["fetches"] == counts["flash_reads"] > 0
    )
    histograms = d.latency_histograms()
    assert sum(histograms["hit"]) + sum(histograms["miss"]) == 2 * len(addresses)
    commits = d.take_commits()
    assert (
        (commits.result["op.kind"] == Op.RELEASE).sum() >= 24
        and len(commits.frame)
        and len(commits.score)
    )


@pytest.mark.timeout(1800)
def test_the_code_of_its_page_runs():
    page = (DOCS / "driver.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    said = {"UNIT": UNIT, "lines": lines(32), "layer_of": np.repeat(np.arange(4), 8)}
    exec(code.replace('named("unit")', "UNIT"), said)  # of eight lanes, as every endpoint here
    assert (said["answers"].data == said["lines"]).all()


@pytest.mark.timeout(1800)
def test_lockstep_does_not_depend_on_timing():
    def run(**options):
        d = endpoint(**options)
        addresses = pages(d, 4, range(4))
        d.run(Program.writes(addresses, lines(len(addresses))), lockstep=True)
        order = np.random.default_rng(5).permutation(len(addresses))
        read = d.run(Program.reads(addresses[order]), lockstep=True)
        commits = d.take_commits().result
        return read, np.stack(
            [
                commits[name]
                for name in (
                    "op.kind",
                    "outcome",
                    "op.squeue",
                    "op.page",
                    "word.state",
                    "word.place",
                    "frame",
                )
            ],
            axis=1,
        )

    (fast, ops), (slow, other) = (
        run(),
        run(
            flash=FlashTiming(latency=9000, jitter=500),
            memory=MemoryTiming(latency=100, jitter=50, shuffle=True),
        ),
    )
    assert (fast.data == slow.data).all() and slow.counts["simulated"] > fast.counts["simulated"]
    # The hot lane's own commits aside, the ops are the same.
    assert ops.shape == other.shape and (ops == other).all()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["failed", "never", "late"])
def test_endpoint_survives_a_faulty_tier(kind):
    failures = [
        Failure(index=i, op=op, kind=kind, cycles=9000)
        for op in (ColdOp.READ, ColdOp.WRITE)
        for i in (0, 3, 7)
    ]
    d = endpoint(
        flash=FlashTiming(latency=2000, write_latency=1500, failures=failures),
        rules=RunRules(max_skip=500),
    )
    d.write64("cold_timeout", 8000)
    addresses = pages(d, 4, range(4))
    data = lines(len(addresses))
    d.run(Program.writes(addresses, data), settle=True)
    read = d.run(Program.reads(addresses), settle=True)
    assert (read.response == Response.DATA).all() and (read.data == data).all()
    counts = d.counts()
    assert counts["flash_failed"] == (6 if kind == "failed" else 0) and counts["flash_aborts"] == (
        0 if kind == "failed" else 6
    )


@pytest.mark.timeout(1800)
def test_endpoint_registers_hints_and_refusals():
    d = endpoint(queues=2)
    assert d.read64("identity") == d.registers["identity"].reset
    first = pages(d, 1, [0])
    d.run(Program.writes(first, lines(len(first))))
    assert (
        d.page_word(0, 0, 0)["state"] == PageState.RESIDENT
        and d.page_word(0, 0, 1)["state"] == PageState.ABSENT
    )
    d.push_hints(
        [
            HintLine(
                kind=HintKind.MASS, session=0, queue=0, first_page=0, entries=(5, 6), advance=True
            )
        ]
    )
    d.settle()
    assert d.read_fields("s0_state")["step"] == 1 and d.counters()["hint_lines"] == 1
    answers = d.run(
        Program(
            opcode=[READ, READ, READ, READ, WRITE],
            ld_id=[0, 0, 0, 5, 0],
            data=lines(1),
            address=[
                d.address(0, 0, 1, 0, 0),
                d.address(1, 0, 0, 0, 0),
                3 << UNIT.aperture_bits,
                int(first[0]),
                d.address(0, 3, 0, 0, 0),
            ],
        )
    )
    assert (
        answers.response.tolist()
        == [Response.DATA, Response.NXM, Response.NXM, Response.NXM, Response.CMP]
        and not answers.data[0].any()
    )
    d.close_session(0)
    assert not d.read_fields("s0_state")["open"] and d.read64("pool_used_raw16") == 0
    assert (d.run(Program.reads(first)).response == Response.NXM).all()


@pytest.mark.timeout(1800)
def test_endpoint_reset_under_traffic():
    d = endpoint()
    addresses = pages(d, 4, range(8))
    cut = d.run(Program.writes(addresses, lines(len(addresses))), max_cycles=300, partial=True)
    assert cut.missing
    d.reset()
    d.open_session(0, Descriptor(layers=1, kv_heads=4))
    read = d.run(Program.reads(addresses))
    assert (read.response == Response.DATA).all() and not read.data.any()
