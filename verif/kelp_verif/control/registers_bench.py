# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The register window: accesses of every kind and right, session commands, steps by accesses,
telemetry read back, resets in between."""

import cocotb
from cocotb.triggers import RisingEdge

from kelp_hw.control.counters import QueueCounters, TotalCounters
from kelp_hw.tracker.signatures import count_bits
from kelp_spec.config import POOLS
from kelp_spec.formats import Format
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.metadata import LAYER_RANGES, Event, Op
from kelp_spec.registers import SESSION_BASE, SESSION_STRIDE, SessionCommand

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .registers_tb import FULL, TB, fields_of

OWN_WORD = {
    "shape": 0,
    "formats": 1,
    "command": 2,
    "auto_step": 4,
    "queue": 5,
    "policy": 6,
    "recency": 7,
}


def line_of(session, number=0):
    return (SESSION_BASE + SESSION_STRIDE * session) // 64 + number


async def start(dut) -> TB:
    tb = TB(dut)
    await start_clock(dut)
    await tb.reset()
    return tb


async def settle(tb, cycles=3):
    for _ in range(cycles):
        await tb.cycle()


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def random_accesses(dut):
    """Reads and writes of all lines by all LD-IDs with any byte enables; no commands. After every
    other reset, while the log is empty, all events are enabled to interrupt."""
    tb = await start(dut)
    rng, c = tb.rng, tb.config
    plain = [0, 1, 2, *(line_of(s, n) for s in range(c.sessions) for n in (0, 1))]
    slow = [
        4,
        5,
        6,
        7,
        *range(16, 22),
        *range(32, 35),
        *range(36, 39),
        *(line_of(s, 2) for s in range(c.sessions)),
    ]
    # of `unit` the window ends with the aperture, at 512 lines
    nothing = [3, 12, 30, line_of(0, 5), line_of(c.sessions), 511]
    for n in range(bench_params()["accesses"]):
        tb.p_ready = rng.choice([0.2, 0.6, 1.0])
        if n % 20 == 0:
            tb.sessions = [
                {
                    "open": rng.random() < 0.8,
                    "closing": 0,
                    "ld_id": rng.getrandbits(4),
                    "step": rng.getrandbits(24),
                    "used_queues": c.queues,
                }
                for _ in range(c.sessions)
            ]
            tb.sessions[0]["closing"] = tb.sessions[0]["open"] and rng.getrandbits(1)
            used = 1 << count_bits(c)
            tb.pool_used = [rng.choice([0, 0, 1, rng.randrange(used)]) for _ in POOLS]
            tb.fatal = rng.random() < 0.2
            await settle(tb)
        ld_id = rng.choice([0, 0, rng.choice(tb.sessions)["ld_id"], rng.getrandbits(4)])
        offset = rng.choice(plain * 6 + slow + nothing)
        data, enable, poison = (
            rng.getrandbits(512),
            rng.choice([FULL, FULL, rng.getrandbits(64), 1 << rng.randrange(64), 0]),
            rng.random() < 0.05,
        )
        what = rng.random()
        if what < 0.5:
            if offset >= SESSION_BASE // 64 and offset % 8 == 0:
                enable &= ~(0xFF << 8 * OWN_WORD["command"])
            taken = tb.map.by_name["event_taken"].offset
            if offset == taken // 64 and tb.events and rng.getrandbits(1):
                # some of the records that are there
                ld_id, poison, enable = 0, False, 0xFF << taken % 64
                count = rng.randrange(len(tb.events) + 1)
                data = (count | rng.getrandbits(1) << 8) << 8 * (taken % 64)
            # pool limits of both sides of the configuration's
            for limit in (2 * p for p in range(4)) if offset == 2 else ():
                data = data & ~(0xFFFF << 64 * limit + 8) if rng.getrandbits(1) else data
            await tb.write_line(offset, data, byte_enable=enable, ld_id=ld_id, poison=poison)
            await settle(tb)
            tb.check_settings()
        else:
            await tb.read_line(offset, ld_id=ld_id)
        tb.seen["log full"] += tb.lost
        tb.seen["irq"] += tb.irq
        tb.seen["fatal"] += tb.fatal
        assert (dut.irq.value == 1) == (tb.irq or tb.fatal)
        if n % 70 == 69:
            # In the midst of an access, or just after its answer: nothing of it is left, and every
            # register starts again.
            tb.got = None
            tb.offer = {
                "write": rng.getrandbits(1),
                "offset": rng.choice(plain),
                "byte_enable": 0,
                "data": 0,
                "ld_id": 0,
                "tag": 7,
                "poison": 0,
            }
            await settle(tb, rng.randint(1, 20))
            tb.seen["reset of an access"] += tb.offer is not None
            await tb.reset()
            await settle(tb)
            tb.check_settings()
            if n % 140 == 69:
                irq_enable = tb.map.by_name["irq_enable"].offset
                await tb.write_line(
                    irq_enable // 64,
                    FULL << 8 * (irq_enable % 64),
                    byte_enable=0xFF << irq_enable % 64,
                )
    assert not tb.ops and not tb.writes
    record(accesses=dict(tb.seen))


class Commands:
    """Session commands and what they ought to cause."""

    def __init__(self, tb):
        self.tb, self.opened = tb, [None] * tb.config.sessions

    async def program(self, s):
        """New values for the registers that commands take, mostly legal ones."""
        tb, rng, c = self.tb, self.tb.rng, self.tb.config
        layers = rng.randint(1, c.queues)
        shape = {
            "layers": layers,
            "kv_heads": rng.randint(1, c.queues // layers),
            "used_lines": rng.randint(1, c.half_lines),
            "host_type": rng.getrandbits(1),
            "k_only": rng.getrandbits(1),
            "used_pages": rng.randint(1, c.pages),
            "owner": rng.randrange(1, 16),
        }
        wrong = rng.choice([None] * 12 + ["layers", "kv_heads", "used_lines", "used_pages"])
        if wrong:
            most = {
                "layers": c.queues,
                "kv_heads": c.queues,
                "used_lines": c.half_lines,
                "used_pages": c.pages,
            }[wrong]
            shape[wrong] = rng.choice([0, most + 1, tb.field("s0_shape", wrong).bits ** 2])
        formats = {}
        for r in range(LAYER_RANGES):
            bad = rng.choices(["", "k", "v"], [96, 2, 2] if c.codecs else [84, 8, 8])[0]
            formats |= {f"last_layer_{r}": rng.choice([rng.randrange(c.queues), 1023])}
            formats |= {
                f"format_{kv}_{r}": rng.randint(len(c.formats), 7)
                if kv == bad
                else rng.choice(c.formats)
                for kv in "kv"
            }
        queue = {
            "queue": rng.choice([rng.randrange(c.queues), rng.randrange(1024)]),
            "page": rng.randrange(c.pages),
        }
        policy = {
            "alpha": rng.choice([1, 26, 256, rng.randrange(512)]),
            "mass_shift": rng.getrandbits(4),
            "score_source": rng.randrange(3),
            "window": rng.getrandbits(6),
            "policy": rng.getrandbits(8),
        }
        recency = {
            "tau_m": rng.getrandbits(16),
            "tau_sh": rng.randrange(17),
            "idle_m": rng.getrandbits(16),
            "idle_sh": rng.randrange(20),
        }
        data = 0
        for name, fields in (
            ("shape", shape),
            ("formats", formats),
            ("queue", queue),
            ("policy", policy),
            ("recency", recency),
        ):
            data |= (
                sum(v << tb.field(f"s0_{name}", f).low for f, v in fields.items())
                << 64 * OWN_WORD[name]
            )
        await tb.write_line(line_of(s), data, byte_enable=FULL & ~(0xFF << 8 * OWN_WORD["command"]))
        await tb.write_line(
            line_of(s, 1), rng.choice([rng.getrandbits(5), rng.getrandbits(32)]), byte_enable=0xFF
        )

    def registers(self, s):
        return {
            name: fields_of(self.tb.map.by_name[f"s{s}_{name}"], self.tb.values[f"s{s}_{name}"])
            for name in ("shape", "formats", "queue", "policy", "recency", "budget")
        }

    def fits(self, shape):
        c = self.tb.config
        return (
            1 <= shape["layers"] * shape["kv_heads"] <= c.queues
            and 1 <= shape["used_lines"] <= c.half_lines
            and 1 <= shape["used_pages"] <= c.pages
        )

    def stored(self, formats):
        return {formats[f"format_{kv}_{r}"] for kv in "kv" for r in range(LAYER_RANGES)} <= set(
            self.tb.config.formats
        )

    def configuration(self, s, given, shape, formats, queue):
        """What queue `queue` of session `s` is configured to."""
        c, tb = self.tb.config, self.tb
        layer = queue // shape["kv_heads"]
        r = next(
            (r for r in range(LAYER_RANGES) if layer <= formats[f"last_layer_{r}"]),
            LAYER_RANGES - 1,
        )
        k, v = Format(formats[f"format_k_{r}"]), Format(formats[f"format_v_{r}"])
        want = (
            given["policy"]
            | given["recency"]
            | {"format_k": k, "format_v": v, "budget": min(given["budget"]["value"], tb.budget_max)}
        )
        want["pool"] = smallest_pool(
            c.frame_lines, stored_lines(k, v, shape["used_lines"], bool(shape["k_only"]))
        )
        return {"squeue": s * c.queues + queue} | {
            f"queue_config.{name}": int(value) for name, value in want.items()
        }

    async def give(self, s, command, argument, ld_id):
        """One command: its op, its configuration writes, its refusal."""
        tb, c = self.tb, self.tb.config
        given, regs, begun = self.registers(s), dict(tb.sessions[s]), tb.now
        is_open, free = bool(regs["open"]) and not regs["closing"], not regs["open"]
        used = self.opened[s][0]["layers"] * self.opened[s][0]["kv_heads"] if is_open else 0
        queue, alpha_ok = given["queue"]["queue"], 1 <= given["policy"]["alpha"] <= 256
        opens = ld_id == 0 and free and self.fits(given["shape"])
        ok = {
            SessionCommand.OPEN: opens and self.stored(given["formats"]),
            SessionCommand.CLOSE: ld_id == 0 and is_open,
            SessionCommand.ADVANCE: is_open,
            SessionCommand.PEEK: is_open and queue < used,
            SessionCommand.APPLY_QUEUE: is_open and alpha_ok and queue < used,
            SessionCommand.APPLY_ALL: is_open and alpha_ok,
        }.get(command, False)
        heard = tb.allowed(tb.map.by_name[f"s{s}_command"], ld_id)
        tb.ops.clear()
        tb.writes.clear()
        word = command | argument << 16
        await tb.write_line(
            line_of(s),
            word << 64 * OWN_WORD["command"],
            byte_enable=0xFF << 8 * OWN_WORD["command"],
            ld_id=ld_id,
        )
        assert not tb.due, "answered before the op was decided"
        if heard:
            tb.refused[s] = int(not ok)
            if not ok:
                tb.log(Event.OPEN_REFUSED, begun, ld_id=ld_id, argument=s)
        done = heard and ok
        name = SessionCommand(command).name if command in list(SessionCommand) else "unknown"
        tb.seen[f"{name} {'done' if done else 'refused' if heard else 'unheard'}"] += 1
        tb.seen["PEEK of another session's queue"] += (
            heard and is_open and command == SessionCommand.PEEK and queue >= c.queues
        )
        tb.seen["OPEN refused for its formats"] += (
            heard and opens and not ok and command == SessionCommand.OPEN
        )
        ops, writes = [], []
        if done and command in (
            SessionCommand.OPEN,
            SessionCommand.APPLY_QUEUE,
            SessionCommand.APPLY_ALL,
        ):
            if command == SessionCommand.OPEN:
                self.opened[s] = given["shape"], given["formats"]
                for squeue in range(s * c.queues, (s + 1) * c.queues):
                    tb.seen["wiped"] += any(tb.queues[squeue].values())
                    tb.queues[squeue].clear()
                tb.peeked[s] = 0
            shape, formats = self.opened[s]
            chosen = (
                [queue]
                if command == SessionCommand.APPLY_QUEUE
                else range(shape["layers"] * shape["kv_heads"])
            )
            writes = [self.configuration(s, given, shape, formats, q) for q in chosen]
        if done and command not in (SessionCommand.APPLY_QUEUE, SessionCommand.APPLY_ALL):
            kind = {
                SessionCommand.OPEN: Op.OPEN,
                SessionCommand.CLOSE: Op.CLOSE,
                SessionCommand.ADVANCE: Op.STEP,
                SessionCommand.PEEK: Op.PEEK,
            }[command]
            ops = [
                {"kind": kind, "session": s}
                | ({"delta": argument} if kind == Op.STEP else {})
                | (
                    {"squeue": s * c.queues + queue, "page": given["queue"]["page"]}
                    if kind == Op.PEEK
                    else {}
                )
            ]
        assert sorted(tb.writes, key=str) == sorted(writes, key=str), (
            f"{command} of session {s}: {tb.writes}, expected {writes}"
        )
        assert len(tb.ops) == len(ops) and all(
            got[f] == want[f] for got, want in zip(tb.ops, ops, strict=True) for f in want
        ), f"{tb.ops}, expected {ops}"
        if ops and command == SessionCommand.OPEN:
            shape = given["shape"]
            want = {
                f: shape[f] for f in ("host_type", "used_lines", "k_only", "used_pages", "kv_heads")
            } | {
                "open": 1,
                "closing": 0,
                "ld_id": shape["owner"],
                "used_queues": shape["layers"] * shape["kv_heads"],
                "step": 0,
            }
            assert tb.ops[0]["descriptor"] == want


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def session_commands(dut):
    """Commands of every kind by owners and others, legal and not; each is answered once its op has
    been decided, or refused with an event."""
    tb = await start(dut)
    rng, c, commands = tb.rng, tb.config, Commands(tb)
    likely = [
        SessionCommand.APPLY_QUEUE,
        SessionCommand.APPLY_ALL,
        SessionCommand.ADVANCE,
        SessionCommand.PEEK,
        SessionCommand.PEEK,
    ]
    for n in range(bench_params()["commands"]):
        tb.p_ready = rng.choice([0.2, 0.6, 1.0])
        s = rng.randrange(c.sessions)
        regs = tb.sessions[s]
        if regs["closing"] and rng.random() < 0.5:
            regs.update(open=0, closing=0)  # its pages are scrubbed
            await settle(tb)
        if rng.random() < 0.6:
            await commands.program(s)
        if regs["closing"]:
            command = rng.choice([*SessionCommand])
        elif regs["open"]:
            command = rng.choice(
                likely * 2 + [SessionCommand.OPEN, SessionCommand.CLOSE, rng.choice([0, 7, 15])]
            )
        else:
            command = rng.choice([SessionCommand.OPEN] * 6 + [*SessionCommand])
        if regs["open"]:
            tb.noise = 0.3  # what an owner's requests leave in the counters
            await settle(tb, 20)
            tb.noise = 0.0
            await settle(tb, 10)
        ld_id = rng.choice([0, 0, 0, regs["ld_id"], rng.getrandbits(4)])
        await commands.give(s, command, rng.choice([1, rng.getrandbits(24)]), ld_id)
        reader = rng.choice([0, tb.sessions[s]["ld_id"] if tb.sessions[s]["open"] else 0])
        await tb.read_line(line_of(s), ld_id=reader)
        # a peeked word is for the session that asked
        await tb.read_line(line_of(rng.randrange(c.sessions), 1))
        if n % 5 == 0 or command == SessionCommand.OPEN:
            await tb.read_line(line_of(s, 2), ld_id=reader)
        if len(tb.events) > 10:
            for line in (4, 5, 6, 7):
                await tb.read_line(line)
            await tb.write_line(1, 1 << 128, byte_enable=0xFF << 16)
    record(commands=dict(tb.seen))


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def steps_by_accesses(dut):
    """`auto_step` counts first accesses of its own session; a PEEK of the evictor's shows
    nowhere."""
    tb = await start(dut)
    rng, c = tb.rng, tb.config
    every = [0, *(rng.randint(*bench_params()["every"]) for _ in range(c.sessions - 1))]
    rng.shuffle(every)
    for s, n in enumerate(every):
        tb.sessions[s].update(open=1, ld_id=s + 1, used_queues=c.queues)
        await tb.write_line(
            line_of(s),
            n << 64 * OWN_WORD["auto_step"],
            byte_enable=0xFF << 8 * OWN_WORD["auto_step"],
            ld_id=s + 1,
        )
    counted, steps = [0] * c.sessions, [0] * c.sessions
    for _ in range(bench_params()["results"]):
        kind, s, first = (
            rng.choice([Op.READ, Op.WRITE, Op.READ, Op.REPLAY, Op.PEEK, Op.MASS]),
            rng.randrange(c.sessions),
            rng.random() < 0.7,
        )
        result = {
            "op.kind": kind,
            "op.session": s,
            "first": first,
            "op.slot": 1 + rng.randrange(7),
            "word.last_step": rng.getrandbits(24),
            "word.state": 1,
        }
        await tb.cycle(result=result if rng.random() < 0.8 and not tb.due else None)
        if tb.dut.i_result__valid.value == 1 and kind in (Op.READ, Op.WRITE) and first:
            counted[s] += 1
            if every[s] and counted[s] % every[s] == 0:
                steps[s] += 1
                while sum(op["session"] == s for op in tb.ops) < steps[s]:
                    await tb.cycle()
                    assert len(tb.ops) <= sum(steps)
    assert [sum(op["session"] == s for op in tb.ops) for s in range(c.sessions)] == steps
    assert all(op["kind"] == Op.STEP and op["delta"] == 1 for op in tb.ops)
    for s in range(c.sessions):
        await tb.read_line(line_of(s))
        await tb.read_line(line_of(s, 1), ld_id=s + 1)
    record(steps=sum(steps))


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def telemetry_is_read_back(dut):
    """Every counter, bin and event shows what happened, to LD-ID 0 or the owner; after a reset,
    nothing."""
    tb = await start(dut)
    rng, c = tb.rng, tb.config
    lines = [
        0,
        1,
        4,
        5,
        6,
        7,
        *range(16, 22),
        *range(32, 35),
        *range(36, 39),
        *(line_of(s, n) for s in range(c.sessions) for n in range(3)),
    ]
    for round_ in range(2):
        for s in range(c.sessions):
            tb.sessions[s].update(
                open=1, ld_id=s + 1, used_queues=rng.randint(1, c.queues), step=rng.getrandbits(24)
            )
        for _ in range(3):
            tb.noise = 0.3
            for n in range(300):
                events = ()
                if n % 40 == 0:
                    fields = {
                        "code": rng.choice(list(Event)[1:]),
                        "ld_id": rng.getrandbits(4),
                        "squeue": rng.randrange(c.squeues),
                        "page": rng.randrange(c.pages),
                        "argument": rng.getrandbits(16),
                    }
                    events = ((rng.randrange(2), fields),)
                    tb.log(fields.pop("code"), tb.now, **fields)
                    events[0][1]["code"] = (
                        tb.events[-1][0]["code"] if not tb.lost else Event.STARVED
                    )
                await tb.cycle(events=events)
            tb.noise = 0.0
            await settle(tb, 100)
            assert dut.idle.value == 1
            for s in range(c.sessions):
                await tb.write_line(
                    line_of(s),
                    rng.randrange(c.queues) << 64 * OWN_WORD["queue"],
                    byte_enable=0xFF << 8 * OWN_WORD["queue"],
                    ld_id=s + 1,
                )
            for offset in rng.sample(lines, len(lines)):
                await tb.read_line(offset)
            await tb.read_line(line_of(1, 2), ld_id=2)
            await tb.read_line(16, ld_id=2)  # nobody else's
        tb.seen["rounds"] += 1
        if round_ == 0:
            await tb.reset()
            await RisingEdge(dut.clk)
            for offset in lines:
                await tb.read_line(offset)
    record(telemetry=dict(tb.seen))


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def counters_are_read_meanwhile(dut):
    """Counters, latencies and queue counters while all of them count in every cycle, but for one
    now and then, or for those that `quiet` asks for: each word holds what had been counted before
    the access began, no more than what has been by its answer, and none is another's. How long each
    kind of line takes."""
    tb = await start(dut)
    rng, c = tb.rng, tb.config
    tb.p_ready = 1.0
    for s in range(c.sessions):
        tb.sessions[s].update(open=1, ld_id=s + 1, used_queues=c.queues)
    tb.storm = 300
    await settle(tb, 600)
    kinds = {
        "counters": range(16, 22),
        "latencies": (32, 33, 36, 37),
        "queue": [line_of(s, 2) for s in range(c.sessions)],
    }
    took = {kind: set() for kind in kinds}
    for n in range(bench_params()["reads"]):
        # Beside the pointer's turn, each in its turn too.
        for _ in range(n % TotalCounters.TURN):
            await tb.cycle()
        kind = rng.choice([*kinds])
        offset = rng.choice(kinds[kind])
        tb.storm = rng.choice([0, 0, 3, 300, 10_000])
        if kind == "queue":
            s = kinds[kind].index(offset)
            await tb.write_line(
                line_of(s),
                rng.randrange(c.queues) << 64 * OWN_WORD["queue"],
                byte_enable=0xFF << 8 * OWN_WORD["queue"],
            )
        here = [(k, r) for k in range(8) if (r := tb.at.get(64 * offset + 8 * k))]
        before = [tb.value(r) for _, r in here]
        begun = tb.cycles
        data = await tb.access(offset=offset)
        took[kind].add(tb.answered - begun)
        for (k, r), least in zip(here, before, strict=True):
            got, most = data >> 64 * k & FULL, tb.value(r)
            # An event may be on its way to its memory for so long.
            least -= 0 if kind == "counters" else QueueCounters.COUNT_LATENCY
            assert least <= got <= most, f"{r.name} = {got}, expected {least} … {most}"
        tb.seen[kind] += 1
    record(meanwhile=dict(tb.seen) | {kind: sorted(cycles) for kind, cycles in took.items()})
