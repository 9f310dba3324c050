# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A device that was reset in the midst of traffic, beside one that never ran: all that a host, a
memory, a tier or a commit stream can see of the two is equal, cycle by cycle (spec §9).

The twins differ in what memories, registers, DRAM and flash held before the reset: whatever the
reset forgets to clear shows. Left out are fields of commit records that say nothing of their op.
"""

import numpy as np
import pytest
from narrow_unit import UNIT
from power_up import Undefined, rows_of, undefined

from kelp_hw.endpoint import Endpoint
from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, FlashTiming, MemoryTiming, Pressure, RunRules
from kelp_rtl.program import PARTIAL, POISON, READ, SPEC_READ, WRITE, Program
from kelp_spec.config import named
from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.hints import ENTRIES, HintKind, HintLine, pack
from kelp_spec.metadata import Op, Outcome, PrefetchSource, ScoreSource
from kelp_spec.registers import SessionCommand
from kelp_spec.select import BELL_FIELDS, SelectMap, record_bytes
from kelp_verif.endpoint.inventory import inventory, memory_name
from kelp_verif.endpoint.some_plan import some_plan
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model

OWNERS = (3, 6)
STRANGER = 9
RULES = RunRules(outstanding=64, max_skip=0, stall_limit=40_000)
#: 16 bytes a cycle: the link's times are then exact in its model, wherever its clock stands.
FLASH = FlashTiming(latency=200, write_latency=250, bytes_per_cycle=16)
#: (timing of memory, flash, back-pressure)
WEATHER = (
    (
        MemoryTiming(latency=20),
        FlashTiming(latency=200, write_latency=200, bytes_per_cycle=16),
        Pressure(),
    ),
    (
        MemoryTiming(latency=10, jitter=30, shuffle=True),
        FlashTiming(
            latency=150, write_latency=250, bytes_per_cycle=16, jitter=200, failure_rate=0.05
        ),
        Pressure.everywhere(0.3),
    ),
)


class Twin:
    """One device. All that it is asked follows from `rng`, and all that it showed is in `seen`."""

    def __init__(self, seed, config=UNIT):
        self.config = config
        self.device = Driver(config, seed=seed, rules=RULES)
        self.device.memory[:] = np.random.default_rng(seed).integers(
            0, 256, self.device.memory.shape, np.uint8
        )

    def begin(self, seed, weather):
        """As after a reset: from here on everything follows from `seed`."""
        self.device.reset(seed=seed)
        self.device.configure(**dict(zip(("memory", "flash", "pressure"), weather, strict=True)))
        self.device.take_commits()
        self.rng, self.seen, self.began = np.random.default_rng(seed), [], self.device.counts()
        self.sequence = [0] * self.config.sessions

    def set_up(self):
        """Everything that a host may set, at random, and every session open."""
        d, rng = self.device, self.rng
        low = int(rng.integers(3))
        d.write_registers(
            {
                "prefetch_enable": int(rng.integers(1 << len(PrefetchSource) - 1)),
                "irq_enable": int(rng.integers(1 << 32)),
                "cold_timeout": 1500,
                "cold_retries": 1,
                "starve_limit": 8000,
                "low_water": low,
                "high_water": low + int(rng.integers(1, 3)),
                "reserve": int(rng.integers(1, 4)),
            }
        )
        for session, owner in enumerate(OWNERS):
            k, v = (Format(int(rng.integers(len(Format)))) for _ in range(2))
            d.open_session(
                session,
                Descriptor(layers=2, kv_heads=2, formats=((1023, k, v),)),
                QueueParameters(
                    alpha=int(rng.integers(1, 257)),
                    score_source=int(rng.choice(list(ScoreSource))),
                    window=int(rng.integers(4)),
                    policy=int(rng.integers(2)),
                    budget=int(rng.choice((0, 8, 20, 1 << 20))),
                    auto_step=int(rng.integers(6)),
                    tau=float(rng.choice((1, 20, 1000))),
                ),
                owner=owner,
            )
            if self.config.select:
                self._choosable(session, owner)

    def _choosable(self, session, owner):
        """Pages, queries and plans of a session, so that it may choose."""
        d, c = self.device, self.config
        groups = [self._asked(session, group) for group in range(c.select_groups)]
        asked = np.concatenate([list(lines) for lines, _ in groups]).astype(np.uint64)
        keys = [
            d.address(session, queue, page, 0, line)
            for queue in range(2)
            for page in range(8)
            for line in range(c.half_lines)
        ]
        rows = [*(rows for _, rows in groups)]
        rows += [self.rng.standard_normal((len(keys), 32)).astype("<f2").view(np.uint8)]
        address = [np.uint64(d.addresses.select_base) + asked * np.uint64(LINE_BYTES)]
        address += [np.array(keys, np.uint64)]
        d.run(Program.writes(np.concatenate(address), np.concatenate(rows), ld_id=owner))

    def before_any_session(self):
        """What anyone may ask for while nothing is configured."""
        d, names = self.device, list(self.device.registers)
        for queue in range(self.config.queues):
            for session in range(self.config.sessions):
                d.write64(f"s{session}_queue", d.pack(f"s{session}_queue", queue=queue))
            self.seen.append((f"registers of {queue}", d.read_registers(names), d.irq))
        self.look("traffic to nobody", d.run(self.traffic(150)))
        # Of what is refused the records name pool and policy of queues that nobody has configured.
        d.take_commits()

    def traffic(self, count):
        """Requests of owners and strangers to lines, hints, registers and nowhere; one program."""
        rng = self.rng
        rows = [self._request() for _ in range(count)]
        opcode, address, ld_id, data, enable, flags = zip(*rows, strict=True)
        opcode = np.array(opcode, np.uint8)
        return Program(
            opcode=opcode,
            address=np.array(address, np.uint64),
            ld_id=np.array(ld_id),
            data=np.stack([rng.integers(0, 256, 64, np.uint8) if d is None else d for d in data]),
            data_index=np.where((opcode == WRITE) | (opcode == PARTIAL), np.arange(count), -1),
            byte_enable=np.array(enable, np.uint64),
            flags=np.array(flags),
        )

    def _request(self):
        d, rng = self.device, self.rng
        session, whole = int(rng.integers(self.config.sessions)), (1 << 64) - 1
        owner = OWNERS[session] if rng.random() < 0.97 else STRANGER
        if self.config.select and rng.random() < 0.25:
            return self._choice(session, owner)
        kind = rng.random()
        if kind < 0.06:
            return WRITE, d.addresses.hint_base, owner, self._hint(session), whole, 0
        if kind < 0.09:
            return self._command(session, owner)
        if kind < 0.1:
            return READ, 3 << self.config.aperture_bits, owner, None, whole, 0
        if kind < 0.12:
            names = list(d.registers)
            register = d.registers[names[int(rng.integers(len(names)))]]
            at = d.addresses.register_base + register.offset // 64 * 64
            return READ, at, int(rng.choice((0, owner))), None, whole, 0
        address = d.address(
            session,
            *(
                int(rng.integers(n))
                for n in (self.config.queues, self.config.pages, 2, self.config.half_lines)
            ),
        )
        opcode = rng.choice((READ, WRITE, PARTIAL, SPEC_READ), p=(0.5, 0.3, 0.15, 0.05))
        poison = POISON if opcode == WRITE and rng.random() < 0.05 else 0
        return int(opcode), address, owner, None, int(rng.integers(1 << 63)), poison

    def _hint(self, session):
        rng = self.rng
        kind = HintKind(int(rng.integers(1, 5)))
        most = min(self.config.pages, ENTRIES)
        pages = rng.permutation(self.config.pages)[: int(rng.integers(1, most + 1))]
        line = HintLine(
            kind=kind,
            session=session,
            sequence=self.sequence[session],
            queue=int(rng.integers(self.config.queues)),
            entries=tuple(map(int, pages if kind != HintKind.MASS else pages * 1000)),
            advance=bool(rng.integers(2)),
        )
        self.sequence[session] += int(rng.random() < 0.95)
        return np.frombuffer(pack(line), np.uint8)

    def _choice(self, session, owner):
        """A line of a query or a plan, a doorbell, an answer, or a slot."""
        d, rng, c = self.device, self.rng, self.config
        places, whole = SelectMap(c), (1 << 64) - 1
        kind, group = rng.random(), int(rng.integers(c.select_groups))
        if kind < 0.3:
            generation, slot = int(rng.integers(3)), int(rng.integers(4))
            at = session, int(rng.integers(2)), generation, int(rng.integers(2)), slot
            address = d.addresses.gather(*at, int(rng.integers(c.half_lines)))
            return READ, address, owner, None, whole, 0
        bell = places.bell(session, group)
        if kind < 0.5:
            line = bell + int(rng.integers(places.answer_lines))
            return READ, d.addresses.select_base + 64 * line, owner, None, whole, 0
        lines, rows = (bell,), self._bell()
        if kind < 0.8:
            lines, rows = self._asked(session, group)
        n = int(rng.integers(len(lines)))
        return WRITE, d.addresses.select_base + 64 * lines[n], owner, rows[n], whole, 0

    def _bell(self):
        """A doorbell that is sound."""
        rng = self.rng
        lines = int(rng.integers(1, 3))
        fields = {"queue": int(rng.integers(2)), "newest": int(rng.integers(8)), "lines": lines}
        fields |= {"sequence": int(rng.integers(1, 99)), "tokens": 1, "m": 47274, "sh": 18}
        most = ("most", 5), ("hold", 9), ("patience", 12), ("release", 1.1), ("layer", 1.1)
        most += ("fetch", 2), ("speculative", 1.3), ("waits", 2), ("tables", 2), ("target", 1 << 17)
        fields |= {name: int(rng.random() * below) for name, below in most}
        row = record_bytes(BELL_FIELDS, fields, LINE_BYTES)
        return np.frombuffer(row, np.uint8)[None]

    def _asked(self, session, group):
        """Lines of a SELECT's queries and of its plan, and what is written there."""
        places, c = SelectMap(self.config), self.config
        first, count = places.query(session, group), c.select_heads * c.select_lines
        queries = self.rng.standard_normal((count, 32)).astype("<f2").view(np.uint8)
        rows = np.concatenate([queries, some_plan(self.rng, c.select_lines)])
        return range(first, first + len(rows)), rows

    def _command(self, session, owner):
        d, rng, p = self.device, self.rng, f"s{session}_"
        commands = (
            SessionCommand.ADVANCE,
            SessionCommand.APPLY_ALL,
            SessionCommand.PEEK,
            SessionCommand.CLOSE,
            SessionCommand.OPEN,
        )
        command = int(rng.choice(commands, p=(0.3, 0.1, 0.3, 0.1, 0.2)))
        offset = d.registers[p + "command"].offset
        row = np.zeros(8, "<u8")
        row[offset % 64 // 8] = d.pack(p + "command", command=command, argument=3)
        at = d.addresses.register_base + offset // 64 * 64
        enable = 0xFF << offset % 64
        return PARTIAL, at, int(rng.choice((0, owner))), row.view(np.uint8), enable, 0

    def _page(self, prefix, queue, page):
        """A page's word, its queue's counters, and whether the session let itself be asked."""
        d = self.device
        names = [name[3:] for name in d.registers if name.startswith(("s0_queue_", "s0_resident"))]
        d.write64(prefix + "queue", d.pack(prefix + "queue", queue=queue, page=page))
        d.write64(prefix + "command", d.pack(prefix + "command", command=SessionCommand.PEEK))
        return d.read_registers([prefix + name for name in ("page_word", "state", *names)])

    def look(self, what, result):
        """Keeps what a program showed: answers, their content, cycles and order."""
        now = np.array(
            [result.accept_cycle, result.response_cycle, result.accept_order, result.response_order]
        )
        self.seen.append(
            (what, result.response.tolist(), now[:2] % (1 << 32), now[2:], result.data)
        )

    def work(self, rounds, count):
        for n in range(rounds):
            self.look(f"traffic {n}", self.device.run(self.traffic(count)))
            self.everything(n)

    def everything(self, n):
        """Every line, register and page word, the commit stream so far, and the ports' totals."""
        d = self.device
        where = [
            (d.address(s, q, p, kv, line), OWNERS[s])
            for s in range(self.config.sessions)
            for q in range(self.config.queues)
            for p in range(self.config.pages)
            for kv in range(2)
            for line in range(self.config.half_lines)
        ]
        address, owner = (np.array(column) for column in zip(*where, strict=True))
        self.look(
            f"lines {n}", d.run(Program.reads(address.astype(np.uint64), ld_id=owner), settle=True)
        )
        for s in range(self.config.sessions):
            for q in range(self.config.queues):
                words = [self._page(f"s{s}_", q, p) for p in range(self.config.pages)]
                self.seen.append((f"pages {n}, {s}, {q}", words))
        names = list(d.registers)
        values = dict(zip(names, d.read_registers(names), strict=True))
        self.seen.append((f"registers {n}", values, d.irq))
        counts = d.counts()
        self.seen.append(
            (f"ports {n}", {k: v - self.began[k] for k, v in counts.items() if k[:4] != "peak"})
        )
        commits = d.take_commits()
        for name in ("result", "frame", "score"):
            self.seen.append((f"{name} records {n}", *_said(getattr(commits, name))))


def _said(records):
    """Cycles and fields of commit records; fields are zero where they say nothing of their op."""
    fields = {name: records[name].copy() for name in records.names}
    if "outcome" in fields:
        request = np.isin(fields["op.kind"], (Op.READ, Op.WRITE, Op.REPLAY))
        for name in fields:
            if name.startswith("op.origin.") or name in ("op.kv_line", "op.write_slot"):
                fields[name][~request] = 0
        fields["frame"][np.isin(fields["outcome"], (Outcome.MISSED, Outcome.DROPPED))] = 0
    if "op.use" in fields:
        for name in fields:
            if name.startswith("entry.") or name == "op.frame":
                fields[name][fields["op.use"] == 0] = 0
    return records.cycle % (1 << 32), records.hot, fields


def _equal(name, after, fresh):
    """Says what differs, not that two heaps of numbers do."""
    for got, wanted in zip(after, fresh, strict=True):
        if isinstance(wanted, dict):
            differs = {k: (got[k], v) for k, v in wanted.items() if not np.array_equal(got[k], v)}
            assert not differs, f"{name}, (after a reset, fresh): {differs}"
        assert isinstance(wanted, dict) or np.array_equal(got, wanted), (
            f"{name}, after a reset {got}, fresh {wanted}"
        )


def _alike(old, new):
    for (name, *after), (same, *fresh) in zip(old.seen, new.seen, strict=True):
        assert name == same
        _equal(name, after, fresh)


@pytest.mark.parametrize(
    ("weather", "config", "resets"),
    [
        pytest.param(WEATHER[0], UNIT, 2, id="calm", marks=pytest.mark.night),
        pytest.param(WEATHER[1], UNIT, 2, id="rough"),
        pytest.param(WEATHER[1], named("unit_select"), 4, id="chooses", marks=pytest.mark.night),
    ],
)
@pytest.mark.sampled
def test_a_reset_device_is_a_new_one(weather, config, resets):
    """One device lives through several resets, each in the midst of what it did so far and of a
    program; its twins are new each time."""
    old = Twin(reseeded(1), config)
    old.begin(reseeded(99), weather)
    old.set_up()
    for seed in range(resets):
        old.device.run(old.traffic(600), max_cycles=900 + 400 * seed, partial=True)
        new = Twin(reseeded(2 + seed), config)
        for twin in (old, new):
            twin.begin(reseeded(seed), weather)
            twin.set_up()
            twin.work(2, 400)
        _alike(old, new)
        totals = new.device.counters()
        assert totals["evictions"] and totals["misses"] and totals["write_backs"]
        if config.select:
            kinds = {
                kind for name, *of in new.seen if "result" in name for kind in of[2]["op.kind"]
            }
            assert {Op.LOOK, Op.HOLD, Op.UNHOLD} <= kinds


@pytest.mark.parametrize(
    "config",
    [
        UNIT,
        pytest.param(named("unit_select"), marks=pytest.mark.slow),
        pytest.param(named("unit_coherent"), marks=pytest.mark.slow),
    ],
    ids=lambda config: config.name,
)
@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_what_blocks_say_they_clear_is_what_is_cleared(config):
    """`CLEARS` of the blocks, which `kelp verilog` hands on: of these memories, and of no others,
    every row is the same when the device is ready, whatever it held before. That takes about as
    many cycles as the deepest of them has rows."""
    device = Driver(config, seed=1, rules=RULES)
    held = []
    for seed in range(3):
        Undefined().scramble(device, reseeded(seed))
        before = device.counts()["simulated"]
        device.reset(cycles=2)
        cycles = device.counts()["simulated"] - before - 2
        held.append([rows_of(a).copy() for a in device.arrays()])
    cleared = {
        memory_name(*f"{a.scope.decode()}.{a.name.decode()}".split(".")[2:])
        for a, *rows in zip(device.arrays(), *held, strict=True)
        if all(np.array_equal(rows[0], each) for each in rows)
    }
    memories = inventory(Endpoint(config=config))
    said = {name: cells.depth for name, cells in memories.items() if cells.cleared_by}
    assert cleared == said.keys()
    assert abs(cycles - max(said.values())) < 8, cycles  # the first row may go while `rst` is high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weather", "config"),
    [
        pytest.param(WEATHER[0], UNIT, id="calm"),
        pytest.param(WEATHER[1], UNIT, id="rough"),
        pytest.param(WEATHER[1], named("unit_select"), id="chooses"),
    ],
)
def test_any_power_up_is_as_good(weather, config):
    """Two chips in which no flip-flop and no memory began with a value, check bits included, are
    the same after a reset, and meet no error: nothing is used before it was written."""
    twins = []
    with undefined() as power:
        for seed in (reseeded(1), reseeded(2)):
            twin = Twin(seed, config)
            assert power.registers > 1000 and power.memories > 50
            assert len(power.tables) == 3 + 6 * bool(config.select)
            power.scramble(twin.device, seed)
            twin.begin(reseeded(3), weather)
            twin.before_any_session()
            twin.set_up()
            twin.work(2, 400)
            totals = twin.device.counters()
            assert totals["evictions"] and totals["misses"] and totals["write_backs"]
            assert not totals["corrected"] and not totals["uncorrected"]
            twins.append(twin)
    _alike(*twins)
