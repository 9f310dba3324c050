# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SessionControl: how fast it answers a command, and how far apart commands are; beside a model of
the commands, what each of them does, with registers of any bits."""

import itertools
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from simulation import simulate
from timing import changes, check_pace, varied

from kelp_hw.control.session_control import SessionControl, _StoredLines
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.metadata import LAYER_RANGES, Event, Op
from kelp_spec.registers import RegisterMap, SessionCommand

UNIT = named("unit")
#: Sessions and queues that are no powers of two.
ODD = UNIT.with_(name="odd", sessions=3, queues=12, pages=16)
OPS = {
    SessionCommand.OPEN: Op.OPEN,
    SessionCommand.CLOSE: Op.CLOSE,
    SessionCommand.ADVANCE: Op.STEP,
    SessionCommand.PEEK: Op.PEEK,
}
COMMAND = {
    "given.ld_id": 0,
    "registers.shape.0.layers": 1,
    "registers.shape.0.kv_heads": UNIT.queues,
    "registers.shape.0.used_lines": 1,
    "registers.shape.0.used_pages": 1,
    "configuration.ready": 1,
    "o_op.ready": 1,
}


def command(code):
    return {"given.command.valid": 1, "given.command.p.command": int(code)}


def test_latency():
    given = [command(SessionCommand.ADVANCE)]
    prepare = COMMAND | {"sessions.open": 1}
    check_pace(SessionControl(config=UNIT), "LATENCY", "o_op.valid", given, prepare=prepare)


def test_walk_latency():
    given = [command(SessionCommand.OPEN)]
    output = "configuration.write.valid"
    check_pace(SessionControl(config=UNIT), "WALK_LATENCY", output, given, prepare=COMMAND)


def test_commands_are_as_far_apart_as_their_interval():
    block = SessionControl(config=UNIT)
    given = [command(SessionCommand.ADVANCE)] * 80
    seen = changes(block, "o_op.valid", given, prepare=COMMAND | {"sessions.open": 1})
    assert seen[0:6:2] == [block.LATENCY + k * block.INTERVAL for k in range(3)]


def test_stored_lines_are_those_of_the_page():
    """Of every pair of formats and every number of lines, one a cycle."""
    config = named("llama70b")
    dut, seen = _StoredLines(config=config), []
    numbers = range(1, config.half_lines + 1)
    pages = [*itertools.product(Format, Format, numbers, (0, 1))]

    async def bench(ctx):
        for page in pages:
            names = ("format_k", "format_v", "used_lines", "k_only")
            for name, value in zip(names, page, strict=True):
                ctx.set(getattr(dut, name), int(value))
            await ctx.tick()
            seen.append(ctx.get(dut.lines))

    simulate(dut, bench)
    assert seen == [stored_lines(*page) for page in pages]


def test_stored_lines_latency_and_interval():
    check_pace(
        _StoredLines(config=UNIT),
        "LATENCY",
        "lines",
        varied("format_k", [int(code) for code in (Format.INT4, Format.RAW16, Format.INT4)]),
        prepare={"used_lines": UNIT.half_lines, "k_only": 1, "format_k": int(Format.RAW16)},
    )


class Model:
    """Which sessions are open, with which registers, and what a command does."""

    def __init__(self, rng):
        self.rng, self.opened = rng, [None] * ODD.sessions
        self.open, self.closing = set(), set()
        by_name = RegisterMap(ODD).by_name
        names = ("shape", "formats", "queue", "policy", "recency", "budget")
        self.fields = {name: by_name[f"s0_{name}"].fields for name in names}

    def registers(self):
        """A session's, any bits of which may be set; mostly they can be opened with."""
        rng, c = self.rng, ODD
        regs = {
            name: {f.name: rng.getrandbits(f.bits) for f in fields}
            for name, fields in self.fields.items()
        }
        shape, formats = regs["shape"], regs["formats"]
        layers = rng.randint(1, c.queues)
        likely = {
            "layers": layers,
            "kv_heads": rng.randint(1, c.queues // layers),
            "used_lines": rng.randint(1, c.half_lines),
            "used_pages": rng.randint(1, c.pages),
        }
        for name, value in likely.items():
            if rng.random() < 0.96:
                shape[name] = value
            elif rng.random() < 0.5:
                shape[name] = rng.choice([0, c.queues + 1, c.half_lines + 1, c.pages + 1])
        for r in range(LAYER_RANGES):
            if rng.random() < 0.7:
                formats[f"last_layer_{r}"] = rng.randrange(layers)
            for half in "kv":
                if rng.random() < 0.98:
                    formats[f"format_{half}_{r}"] = rng.choice(c.formats)
        if rng.random() < 0.8:
            regs["queue"]["queue"] = rng.randrange(c.queues)
        if rng.random() < 0.8:
            regs["policy"]["alpha"] = rng.choice([1, 256, rng.randint(1, 256)])
        if rng.random() < 0.7:
            regs["budget"]["value"] >>= 32 - ODD.dram_line_bits
        return regs

    def noisy(self, name, values):
        """The register's word; bits that it does not have are anything."""
        word = self.rng.getrandbits(64)
        for f in self.fields[name]:
            word &= ~((1 << f.bits) - 1 << f.low)
            word |= values[f.name] << f.low
        return word

    def accepted(self, command, s, regs, ld_id):
        shape, formats = regs["shape"], regs["formats"]
        usable = s in self.open and s not in self.closing
        if command == SessionCommand.OPEN:
            return (
                ld_id == 0
                and s not in self.open | self.closing
                and 1 <= shape["layers"] * shape["kv_heads"] <= ODD.queues
                and 1 <= shape["used_lines"] <= ODD.half_lines
                and 1 <= shape["used_pages"] <= ODD.pages
                and all(
                    formats[f"format_{half}_{r}"] in ODD.formats
                    for half in "kv"
                    for r in range(LAYER_RANGES)
                )
            )
        if not usable:
            return False
        selects = regs["queue"]["queue"] < self.queues(s)
        alpha = 1 <= regs["policy"]["alpha"] <= 256
        return {
            SessionCommand.CLOSE: ld_id == 0,
            SessionCommand.ADVANCE: True,
            SessionCommand.PEEK: selects,
            SessionCommand.APPLY_QUEUE: alpha and selects,
            SessionCommand.APPLY_ALL: alpha,
        }.get(command, False)

    def queues(self, s):
        shape, _ = self.opened[s]
        return shape["layers"] * shape["kv_heads"]

    def configuration(self, s, queue, regs):
        shape, formats = self.opened[s]
        layer, ranges = queue // shape["kv_heads"], range(LAYER_RANGES)
        r = next((r for r in ranges if layer <= formats[f"last_layer_{r}"]), LAYER_RANGES - 1)
        k, v = (formats[f"format_{half}_{r}"] for half in "kv")
        lines = stored_lines(Format(k), Format(v), shape["used_lines"], bool(shape["k_only"]))
        budget = min(regs["budget"]["value"], (1 << ODD.dram_line_bits) - 1)
        pool = smallest_pool(ODD.frame_lines, lines)
        told = {"squeue": s * ODD.queues + queue, "format_k": k, "format_v": v, "pool": pool}
        return told | regs["policy"] | regs["recency"] | {"budget": budget}

    def descriptor(self, s):
        shape, _ = self.opened[s]
        names = ("host_type", "used_lines", "k_only", "used_pages", "kv_heads")
        told = {"open": 1, "closing": 0, "ld_id": shape["owner"], "step": 0}
        return told | {"used_queues": self.queues(s)} | {name: shape[name] for name in names}

    def done(self, command, argument, s, regs):
        """The configurations that an accepted command writes, and its op."""
        if command == SessionCommand.OPEN:
            self.opened[s] = regs["shape"], regs["formats"]
        queue, chosen, op = regs["queue"]["queue"], (), None
        if command in (SessionCommand.OPEN, SessionCommand.APPLY_ALL):
            chosen = range(self.queues(s))
        elif command == SessionCommand.APPLY_QUEUE:
            chosen = [queue]
        if command in OPS:
            op = {"kind": OPS[command], "session": s}
        if command == SessionCommand.ADVANCE:
            op["delta"] = argument
        elif command == SessionCommand.PEEK:
            op |= {"squeue": s * ODD.queues + queue, "page": regs["queue"]["page"] % ODD.pages}
        return [self.configuration(s, each, regs) for each in chosen], op


def test_what_each_command_does_is_the_models():
    rng = random.Random(3)
    dut, model, seen = SessionControl(config=ODD), Model(rng), Counter()

    def fields(ctx, view, names):
        return {name: ctx.get(view[name]) for name in names}

    def set_registers(ctx, s, regs):
        for name, values in regs.items():
            port = getattr(dut.registers, name)[s].as_value()
            ctx.set(port, model.noisy(name, values))

    async def carried_out(ctx, s, heard):
        """What comes of the command of session `s` until the next one may be given."""
        got = SimpleNamespace(writes=[], ops=[], descriptor=None, events=[], opening=set())
        offered, ready = None, rng.choice([0.3, 1])
        for cycle in range(2000):
            ctx.set(dut.configuration.ready, rng.random() < ready)
            ctx.set(dut.o_op.ready, rng.random() < ready)
            other = (s + rng.randint(1, ODD.sessions - 1)) % ODD.sessions
            if rng.random() < 0.2:  # nobody looks at another session's
                set_registers(ctx, other, model.registers())
            if cycle and not ctx.get(dut.given.busy):
                assert not (offered or ctx.get(dut.o_op.valid))
                return got
            assert not cycle or ctx.get(dut.given.busy_session) == s
            if ctx.get(dut.configuration.write.valid):
                write = dut.configuration.write.p
                assert ctx.get(dut.configuration.ready)
                names = heard - {"squeue"}
                told = {"squeue": ctx.get(write.squeue)}
                got.writes.append(told | fields(ctx, write.queue_config, names))
                got.opening.add(ctx.get(dut.configuration.opening))
            if ctx.get(dut.o_op.valid):
                names = ("kind", "session", "delta", "squeue", "page")
                op = fields(ctx, dut.o_op.p, names)
                assert offered in (None, op), "the offer does not stand"
                offered = op
                if ctx.get(dut.o_op.ready):
                    got.ops.append(op)
                    got.descriptor = fields(ctx, dut.descriptor, model.descriptor(s))
                    offered = None
            if ctx.get(dut.o_event.valid):
                names = ("code", "ld_id", "argument")
                got.events.append(fields(ctx, dut.o_event.p, names))
            await ctx.tick()
        raise AssertionError("the command does not end")

    async def bench(ctx):
        refused = 0
        for _ in range(260):
            s = rng.randrange(ODD.sessions)
            usual = [SessionCommand.OPEN] * 3
            if s in model.open:
                usual = [*SessionCommand][1:]
            command = rng.choice(usual * 3 + [*SessionCommand, rng.randrange(16)])
            argument, ld_id = rng.getrandbits(24), rng.choice([0] * 9 + [rng.randrange(16)])
            regs = model.registers()
            set_registers(ctx, s, regs)
            ctx.set(dut.sessions.open, sum(1 << each for each in model.open))
            ctx.set(dut.sessions.closing, sum(1 << each for each in model.closing))
            ctx.set(dut.given.command.p, {"command": command, "argument": argument})
            ctx.set(dut.given.command.valid, 1)
            ctx.set(dut.given.session, s)
            ctx.set(dut.given.ld_id, ld_id)
            assert not ctx.get(dut.given.busy)
            await ctx.tick()
            ctx.set(dut.given.command.valid, 0)
            ctx.set(dut.given.command.p, {"command": rng.randrange(16), "argument": 5})
            ctx.set(dut.given.session, rng.randrange(ODD.sessions))
            ctx.set(dut.given.ld_id, rng.randrange(16))

            ok = model.accepted(command, s, regs, ld_id)
            writes, op = model.done(command, argument, s, regs) if ok else ([], None)
            got = await carried_out(ctx, s, {name for each in writes for name in each})
            assert got.writes == writes
            assert got.opening <= {command == SessionCommand.OPEN}
            assert len(got.ops) == (op is not None)
            if op:
                assert op.items() <= got.ops[0].items()
            if op and command == SessionCommand.OPEN:
                assert got.descriptor == model.descriptor(s)
                model.open.add(s)
            elif op and command == SessionCommand.CLOSE:
                model.closing.add(s)
            told = {"code": Event.OPEN_REFUSED, "ld_id": ld_id, "argument": s}
            assert got.events == ([] if ok else [told])
            refused = refused & ~(1 << s) | (not ok) << s
            assert ctx.get(dut.given.refused) == refused
            seen[command, ok] += 1
            if model.closing and rng.random() < 0.5:
                each = rng.choice(sorted(model.closing))
                model.closing.discard(each)
                model.open.discard(each)

    simulate(dut, bench)
    assert all(seen[command, ok] > 2 for command in SessionCommand for ok in (True, False)), seen


#: Cycles of an OPEN behind its command, at whose end CLOSED of the session before passes M3.
CLOSED = range(SessionControl._CHECK + 2)


@pytest.mark.parametrize("closed", CLOSED)
def test_apply_has_the_formats_that_open_wrote(closed):
    """An OPEN that is written too soon: the session before it is closed while the command is looked
    at, and its formats take their reset values in the cycle after that. Where it is not refused, an
    APPLY writes what OPEN has written, for pages lie in frames of that size."""
    dut, formats = SessionControl(config=UNIT), []
    shape, regs = dut.registers.shape[0], dut.registers.formats[0]

    def is_open(ctx, is_open, is_closing):
        ctx.set(dut.sessions.open, is_open)
        ctx.set(dut.sessions.closing, is_closing)

    async def commanded(ctx, code, closed=None):
        """Formats and pool of queue 0 that the command writes; None where it is refused."""
        ctx.set(dut.given.command.p.command, int(code))
        ctx.set(dut.given.command.valid, 1)
        written, write = None, dut.configuration.write
        for cycle in range(100):
            if cycle == closed:
                is_open(ctx, 0, 0)
            elif closed is not None and cycle == closed + 1:
                ctx.set(regs.as_value(), 0)
            if ctx.get(write.valid) and ctx.get(write.p.squeue) == 0:
                config = write.p.queue_config
                written = [ctx.get(config[name]) for name in ("format_k", "format_v", "pool")]
            await ctx.tick()
            ctx.set(dut.given.command.valid, 0)
        formats.append(written)

    async def bench(ctx):
        for name, value in COMMAND.items():
            if name.startswith("registers.shape.0."):
                ctx.set(shape[name.rpartition(".")[2]], value)
        ctx.set(shape.used_lines, UNIT.half_lines)
        for r in range(LAYER_RANGES):
            ctx.set(regs[f"format_k_{r}"], int(Format.INT4))
        ctx.set(dut.registers.policy[0].alpha, 1)
        ctx.set(dut.configuration.ready, 1)
        ctx.set(dut.o_op.ready, 1)
        is_open(ctx, 1, 1)
        await commanded(ctx, SessionCommand.OPEN, closed)
        is_open(ctx, 1, 0)
        await commanded(ctx, SessionCommand.APPLY_ALL)

    simulate(dut, bench)
    opened = closed <= SessionControl._CHECK
    assert formats[0] == ([Format.RAW16, Format.RAW16, 0] if opened else None)
    assert formats[1] == formats[0] or not opened
