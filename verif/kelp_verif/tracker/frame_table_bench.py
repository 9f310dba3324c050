# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Frame table against its golden model: legal random ops on few frames, so that successive ops meet
the same entry."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden.frame_table import FrameOp
from kelp_golden.frame_table import FrameTable as GoldenFrameTable
from kelp_hw.export.packing import Packing
from kelp_hw.layouts import Layouts
from kelp_hw.lib.protected import BlockFault
from kelp_hw.tracker.frame_table import FrameTable
from kelp_spec.config import Config, named
from kelp_spec.formats import Format
from kelp_spec.geometry import StoredPage
from kelp_spec.metadata import Answer, DataOp, Event, Op, Outcome

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

LATENCY = FrameTable.LATENCY


class TB:
    """Drives one op a cycle (or none) and checks every output `LATENCY` cycles later, in no cycle
    more or less."""

    def __init__(self, dut, config: Config):
        self.dut, self.config = dut, config
        self.rng = random.Random(cocotb.RANDOM_SEED)
        layouts = Layouts(config)
        self.op, self.data_op = Packing(layouts.frame_op), Packing(layouts.data_op)
        self.claim, self.owner, self.usage = (
            Packing(layouts.claim),
            Packing(layouts.frame_owner),
            Packing(layouts.usage),
        )
        self.commit, self.line_mask = Packing(layouts.frame_commit), Packing(layouts.line_mask)
        self.poisoned = Packing(layouts.poisoned_lines)
        self.error, self.event = Packing(layouts.frame_error), Packing(layouts.event)
        self.line_masks = [self._line_mask() for _ in range(config.misses)]
        self.fault = Packing(BlockFault)
        self.flipped = self.told = (
            None  # an op whose entry has flipped bits, and what is told of it
        )
        self.cycles = 0
        self.forwarded = 0
        self.seen = set()

    def _line_mask(self):
        lines = self.config.page_lines
        valid = self.rng.getrandbits(lines)
        return valid, valid & self.rng.getrandbits(lines) & self.rng.getrandbits(lines)

    async def reset(self):
        dut = self.dut
        dut.rst.value = 1
        dut.i__valid.value = 0
        dut.i__payload.value = 0
        dut.i_error__valid.value = 0
        dut.line_mask_data.value = 0
        for _ in range(2):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        self.golden = GoldenFrameTable(self.config)
        self.pipe = [None] * LATENCY
        self.line_mask_address = 0
        waited = 0
        while True:
            await ReadOnly()
            if dut.ready.value == 1:
                break
            await RisingEdge(dut.clk)
            waited += 1
            assert waited <= self.config.total_frames + 2, "the scrub does not end"
        await RisingEdge(dut.clk)

    def legal_op(self, frames):
        """A random op that M3 could send, given what the frames hold; fields beyond FrameOp's in a
        second dict."""
        rng, c = self.rng, self.config
        frame = rng.choice(frames)
        f = self.golden[frame]
        extra = {
            "slot": rng.randrange(16),
            "miss": rng.randrange(c.misses),
            "used_lines": rng.randint(1, c.half_lines),
            "k_only": rng.random() < 0.2,
            "host_type": rng.randrange(2),
            "format_k": rng.choice(list(Format)),
            "format_v": rng.choice(list(Format)),
            "write_slot": rng.randrange(c.write_slots),
            "origin.tag": rng.getrandbits(16),
            "origin.ld_id": rng.randrange(16),
            "origin.start": rng.getrandbits(32),
            "origin.missed": rng.randrange(2),
            "has_write": 0,
        }
        halves = 1 if extra["k_only"] else 2
        line = rng.randrange(halves) * c.half_lines + rng.randrange(extra["used_lines"])
        op = FrameOp(Op.NOP, use=True, frame=frame, squeue=f.squeue, page=f.page, kv_line=line)
        choice = rng.random()
        if choice < 0.05 and all(item is None or item[0].kind != Op.ERROR for item in self.pipe):
            op.kind, op.poison, op.lines = (
                Op.ERROR,
                rng.random() < 0.7,
                rng.getrandbits(c.page_lines),
            )
            op.kv_line = rng.randrange(1 << c.offset_bits)
            return op, extra
        if choice < 0.1:
            op.use, op.kind, op.outcome = (
                False,
                rng.choice([Op.READ, Op.WRITE]),
                rng.choice([Outcome.REFUSED, Outcome.ZERO, Outcome.MISSED, Outcome.PARKED]),
            )
            extra["has_write"] = op.kind == Op.WRITE
            if op.outcome in (Outcome.REFUSED, Outcome.ZERO):
                op.answer = (
                    Answer.CMP
                    if op.kind == Op.WRITE
                    else rng.choice([Answer.ZEROS, Answer.NXM, Answer.POISON])
                )
        elif not f.in_use and choice < 0.9:
            op.squeue, op.page = rng.randrange(c.squeues), rng.randrange(c.pages)
            op.init, op.lost, op.source = True, rng.random() < 0.1, rng.randrange(6)
            if rng.random() < 0.5:
                op.kind, op.failed = Op.FILL, rng.random() < 0.1
                op.line_mask = self.line_masks[extra["miss"]]
            else:
                op.kind, op.outcome, op.source = Op.WRITE, Outcome.ALLOCATED, 0
        elif choice < 0.7 and f.in_use:
            op.kind, op.outcome = rng.choice([Op.READ, Op.WRITE, Op.REPLAY]), Outcome.HIT
        else:
            op.kind = rng.choice(
                [
                    Op.CLAIM,
                    Op.CLAIM,
                    Op.RELEASE,
                    Op.RELEASE,
                    Op.SCRUB,
                    Op.FLIP,
                    Op.RECOVER,
                    Op.PEEK,
                    Op.SCAN,
                    Op.GRANT,
                ]
            )
            outcomes = {
                Op.CLAIM: (Outcome.DONE, Outcome.VOID),
                Op.RELEASE: (Outcome.DONE, Outcome.VOID, Outcome.VOID),
                Op.SCRUB: (Outcome.DONE, Outcome.RETRY),
                Op.FLIP: (Outcome.DONE, Outcome.RETRY, Outcome.ORPHAN),
                Op.RECOVER: (Outcome.ORPHAN, Outcome.VOID),
            }
            op.outcome = rng.choice(outcomes.get(op.kind, (Outcome.DONE,)))
            op.failed = rng.random() < 0.2
            op.use = op.kind not in (Op.SCAN, Op.GRANT)
            if op.kind == Op.RELEASE and op.outcome == Outcome.VOID and rng.random() < 0.3:
                op.squeue, op.page = rng.randrange(c.squeues), rng.randrange(c.pages)
            if not f.in_use and op.outcome == Outcome.DONE and op.kind in (Op.CLAIM, Op.RELEASE):
                op.outcome = Outcome.VOID
        if op.use and op.kind in (Op.READ, Op.WRITE, Op.REPLAY):
            op.write = op.kind == Op.WRITE or op.kind == Op.REPLAY and rng.random() < 0.5
            # a READ with `partial` is for ownership
            op.partial = (op.write or self.config.coherence) and rng.random() < 0.3
            op.poison = op.write and rng.random() < 0.2
            extra["has_write"] = op.write
        return op, extra

    def expect(self, op, extra):
        c = self.config
        result = self.golden.step(op)
        f = self.golden[op.frame]
        entry = {
            name: int(getattr(f, name))
            for name in (
                "in_use",
                "dirty",
                "redirty",
                "used",
                "source",
                "squeue",
                "page",
                "valid",
                "poison",
            )
        }
        place = None
        if result.access and result.access.kind in (DataOp.READ, DataOp.WRITE):
            stored = StoredPage(
                Format(extra["format_k"]),
                Format(extra["format_v"]),
                extra["used_lines"],
                extra["k_only"],
            )
            place = stored.place(op.kv_line // c.half_lines, op.kv_line % c.half_lines)
        return result, entry, place

    def check(self, op, extra, expected):
        dut, c = self.dut, self.config
        result, entry, place = expected
        got = self.data_op.unpack(dut.o__payload.value) if dut.o__valid.value == 1 else None
        assert (got is not None) == (result.access is not None), (
            f"{op}: data op {got}, expected {result.access}"
        )
        if got:
            access = result.access
            # The data path answers a READ without memory by what its line is.
            if got["kind"] == DataOp.READ and (got["poison"] or got["fresh"]):
                got["kind"], got["answer"] = (
                    DataOp.ANSWER,
                    Answer.POISON if got["poison"] else Answer.ZEROS,
                )
            assert got["kind"] == access.kind and got["answer"] == access.answer, (
                f"{op} {entry}: {got}, expected {access}"
            )
            assert got["poison"] == (access.answer == Answer.POISON)
            for name in (
                "has_write",
                "write_slot",
                "origin.tag",
                "origin.ld_id",
                "origin.start",
                "origin.missed",
                "host_type",
            ):
                assert got[name] == extra[name], name
            pool = max(p for p in range(4) if op.frame >= c.pool_first_frame[p])
            if access.kind == DataOp.WRITE:
                assert got["fresh"] == access.fresh and got["partial"] == op.partial
            if access.kind == DataOp.FLUSH:
                assert got["token"] == extra["slot"] and got["frame"] == op.frame
            if access.kind in (DataOp.READ, DataOp.WRITE, DataOp.FLUSH):
                assert (
                    got["base"]
                    == c.pool_base_line[pool]
                    + (op.frame - c.pool_first_frame[pool]) * c.frame_lines[pool]
                )
                assert got["frame"] == op.frame
            if place:
                fmt = Format(extra["format_v" if op.kv_line >= c.half_lines else "format_k"])
                assert (got["offset"], got["part"], got["format"]) == (
                    place.offset,
                    place.part,
                    fmt,
                ), f"{op} {extra}: {got}, expected {place}"
                assert got["scaled"] == (fmt.scale_bytes != 0)
                if got["scaled"]:
                    assert (got["scale_offset"], got["scale_byte"]) == (
                        place.scale_offset,
                        place.scale_byte,
                    ), f"{op} {extra}: {got}, expected {place}"
            self.seen.add((DataOp(got["kind"]).name, Answer(got["answer"]).name))
        assert (dut.o_frame__claim__valid.value == 1) == (result.claim is not None), op
        if result.claim:
            assert self.claim.unpack(dut.o_frame__claim__payload.value) == {
                "slot": extra["slot"],
                "frame": op.frame,
                "dirty": result.claim.dirty,
                "line_mask.valid": result.claim.valid,
                "line_mask.poison": result.claim.poison,
            }
        assert (dut.o_usage__valid.value == 1) == (result.usage is not None), (
            f"{op}: {result.usage}"
        )
        if result.usage:
            u = result.usage
            assert self.usage.unpack(dut.o_usage__payload.value) == {
                "source": u.source,
                "squeue": u.squeue,
                "useful": u.useful,
                "useless": not u.useful,
            }
            self.seen.add("useful" if u.useful else "useless")
        assert (dut.o_frame__owner__valid.value == 1) == (result.owner is not None)
        if result.owner:
            in_use, squeue, page = result.owner
            assert self.owner.unpack(dut.o_frame__owner__payload.value) == {
                "slot": extra["slot"],
                "frame": op.frame,
                "in_use": in_use,
                "squeue": squeue,
                "page": page,
            }
        self.check_error(op, entry)
        self.check_poisoned(op, entry, result)
        commit = self.commit.unpack(dut.o_commit__payload.value)
        said = self.fields(op) | extra
        if op.kind == Op.ERROR:  # what is beside it in the op is anything
            said = {name: said[name] for name in ("kind", "use", "frame", "kv_line", "poison")}
        assert {name: commit[f"op.{name}"] for name in said} == said, op
        if op.use:
            assert {name: commit[f"entry.{name}"] for name in entry} == entry, op

    def check_poisoned(self, op, entry, result):
        if not self.config.cxlio:
            return
        dut, anything = self.dut, bool(result.poisoned or result.healed)
        assert not (result.poisoned and result.healed)
        assert (dut.o_poisoned__valid.value == 1) == anything, f"{op}: {result}"
        if anything:
            told = self.poisoned.unpack(dut.o_poisoned__payload.value)
            wanted = {name: entry[name] for name in ("squeue", "page")}
            if result.healed:
                told.pop("source")
                wanted |= {"healed": 1, "lines": result.healed}
                self.seen.add("healed")
            else:
                lines, source = result.poisoned
                wanted |= {"healed": 0, "source": source, "lines": lines}
                self.seen.add(("poisoned", source.name))
            assert told == wanted, f"{op}: {told}"

    def check_error(self, op, entry):
        dut = self.dut
        assert (dut.o_frame__error__valid.value == 1) == (op.kind == Op.ERROR), op
        assert (dut.o_event__valid.value == 1) == (op.kind == Op.ERROR), op
        if op.kind == Op.ERROR:
            assert int(dut.o_frame__error__payload.value) == op.frame
            code = Event.MEMORY_WRITE_FAILED if op.poison else Event.MEMORY_READ_FAILED
            event = self.event.unpack(dut.o_event__payload.value)
            assert event == {
                "code": code,
                "ld_id": 0,
                "squeue": entry["squeue"],
                "page": entry["page"],
                "argument": op.kv_line,
            }, f"{op}: {event}"
            self.seen.add(code.name)

    def fields(self, op):
        """Of a frame op; the rest is `extra`."""
        names = (
            "kind",
            "outcome",
            "use",
            "frame",
            "squeue",
            "page",
            "kv_line",
            "write",
            "partial",
            "poison",
            "answer",
            "init",
            "lost",
            "failed",
            "source",
        )
        pool = max(p for p in range(4) if op.frame >= self.config.pool_first_frame[p])
        return {name: getattr(op, name) for name in names} | {"pool": pool}

    async def cycle(self, item=None):
        """One cycle, with an op or without; checks the op of `LATENCY` cycles ago."""
        dut = self.dut
        error = item is not None and item[0].kind == Op.ERROR
        dut.i__valid.value = int(item is not None and not error)
        dut.i_error__valid.value = int(error)
        if error:
            op = item[0]
            dut.i_error__payload.value = self.error.pack(
                frame=op.frame, offset=op.kv_line, spoils=op.poison, lines=op.lines
            )
        if item and not error:
            op, extra = item
            dut.i__payload.value = self.op.pack(**self.fields(op), **extra)
        else:
            dut.i__payload.value = self.rng.getrandbits(self.op.width)
        valid, poison = self.line_masks[self.line_mask_address]
        dut.line_mask_data.value = self.line_mask.pack(valid=valid, poison=poison)
        self.pipe.append((*item, self.expect(*item)) if item else None)
        if item and self.pipe[-2] and self.pipe[-2][0].frame == item[0].frame:
            self.forwarded += 1
        await ReadOnly()
        due = self.pipe.pop(0)
        said = {name for name, told in self.fault.unpack(dut.fault.value).items() if told}
        flipped = due is not None and due[0] is self.flipped
        assert said == ({self.told} if flipped else set()), f"{said}, bits have flipped: {flipped}"
        if due:
            assert dut.o_commit__valid.value == 1
            if not flipped or self.told == "corrected":
                self.check(*due)
        else:
            for port in (
                dut.o__valid,
                dut.o_frame__claim__valid,
                dut.o_usage__valid,
                dut.o_frame__owner__valid,
                dut.o_frame__error__valid,
                dut.o_event__valid,
                dut.o_commit__valid,
            ):
                assert port.value == 0, port._name
        assert (dut.idle.value == 1) == (not item and not due and not any(self.pipe[-LATENCY:]))
        self.line_mask_address = int(dut.line_mask_address.value)
        await RisingEdge(dut.clk)
        self.cycles += 1


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def random_ops(dut):
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    await start_clock(dut)
    await tb.reset()
    frames = sorted(
        {tb.rng.randrange(config.total_frames) for _ in range(6)} | {0, config.total_frames - 1}
    )
    ops = 0
    for n in range(bench_params()["cycles"]):
        if n % 500 == 0:
            idle = tb.rng.choice([0.0, 0.0, 0.5])
            few = tb.rng.sample(frames, tb.rng.randint(1, len(frames)))
        await tb.cycle(tb.legal_op(few) if tb.rng.random() >= idle else None)
        ops += 1
    record(cycles=tb.cycles, forwarded=tb.forwarded, seen=sorted(map(str, tb.seen)))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def flipped_bits(dut):
    """The op that finds flipped bits tells of them, and nobody else: not the one behind it, nor one
    without the frame. One bit is mended, two in a page's line masks poison it, two elsewhere are
    fatal."""
    config = named(bench_params()["config"])
    tb, rng = TB(dut, config), random.Random(cocotb.RANDOM_SEED + 1)
    await start_clock(dut)
    await tb.reset()
    table, rows = FrameTable(config=config)._table(), dut.table.rows
    rows = rows.macro.words if table.rows.macro else rows.memory
    widths, frame = table.word.widths, rng.randrange(config.total_frames)
    while not tb.golden[frame].in_use:
        await tb.cycle(tb.legal_op([frame]))

    def peek(use):
        _, extra = tb.legal_op([frame])
        return FrameOp(Op.PEEK, use=use, frame=frame), extra

    for n in range(60):
        for _ in range(LATENCY + 3):  # an entry that is being written stands in a register
            await tb.cycle()
        part, bits, row = n % len(widths), rng.choice((1, 1, 2)), rows[frame]
        good = int(row.value)
        low = sum(widths[:part])
        flips = rng.sample(range(low, low + widths[part]), bits)
        row.value = good ^ sum(1 << bit for bit in flips)
        await tb.cycle(peek(False))
        item = peek(True)
        tb.flipped = item[0]
        tb.told = "corrected" if bits == 1 else "poisoned" if part else "fatal"
        await tb.cycle(item)
        for _ in range(rng.randrange(4)):  # which register the next one finds the entry in
            await tb.cycle()
        await tb.cycle(peek(True) if bits == 1 else None)
        for _ in range(LATENCY + 3):
            await tb.cycle()
        assert bits == 2 or int(row.value) == good
        row.value = good
    # An entry that starts anew is not looked at.
    for low, width in zip((0, widths[0]), widths, strict=False):
        owner = {"squeue": tb.golden[frame].squeue, "page": tb.golden[frame].page}
        _, extra = tb.legal_op([frame])
        scrub = FrameOp(Op.SCRUB, use=True, frame=frame, outcome=Outcome.DONE, **owner)
        await tb.cycle((scrub, extra))
        for _ in range(LATENCY + 3):
            await tb.cycle()
        row.value = int(row.value) ^ sum(1 << low + bit for bit in rng.sample(range(width), 2))
        begin = FrameOp(Op.WRITE, use=True, frame=frame, outcome=Outcome.ALLOCATED, **owner)
        begin.init = begin.write = True
        await tb.cycle((begin, extra | {"has_write": 1}))
        for _ in range(LATENCY + 3):
            await tb.cycle()


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def reset_frees_every_frame(dut):
    config = named(bench_params()["config"])
    tb = TB(dut, config)
    await start_clock(dut)
    await tb.reset()
    frames = range(min(config.total_frames, 64))
    for _ in range(200):
        await tb.cycle(tb.legal_op(frames))
    await tb.reset()
    for frame in frames:
        _, extra = tb.legal_op([frame])
        await tb.cycle((FrameOp(Op.PEEK, use=True, frame=frame), extra))
    for _ in range(LATENCY):
        await tb.cycle()
