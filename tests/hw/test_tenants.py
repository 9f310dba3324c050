# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A session's next owner finds a fresh device: what its LD-ID can read after OPEN, and what the
device does for it, after a former owner that wrote everything it could.

Left out, because the device keeps them for all sessions together: times and cycle counts, totals,
event log, `irq` and overflow (LD-ID 0 clears them), the frames that pages stand in, and what the
prefetch throttle has learned of the whole device.
"""

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, FlashTiming
from kelp_rtl.program import PARTIAL, POISON, READ, WRITE, Program
from kelp_spec.formats import Format
from kelp_spec.hints import ENTRIES, HEADER_BITS, HintKind, HintLine, pack
from kelp_spec.metadata import Event, Op, ScoreEvent
from kelp_spec.registers import EVENT_RECORDS, Scope, SessionCommand
from kelp_verif.harness.seeds import reseeded

NEIGHBOUR, SESSION = 0, 1
#: LD-IDs: the neighbour session's, the former owner's, the next owner's
BESIDE, FORMER, NEXT = 5, 3, 6
P = f"s{SESSION}_"
SHAPE = Descriptor(layers=1, kv_heads=UNIT.queues)
#: what LD-ID 0 sets for the whole device
DEVICE_WIDE = ("prefetch_enable", "irq_enable", "low_water", "high_water")


class Bench:
    """A device with a session beside the one under test, and what its hosts do."""

    def __init__(self, seed):
        seed = reseeded(seed)
        self.device = Driver(UNIT, flash=FlashTiming(latency=100, write_latency=100), seed=seed)
        self.device.open_session(NEIGHBOUR, Descriptor(layers=1, kv_heads=2), owner=BESIDE)
        self.rng = np.random.default_rng(seed)

    # - what a former owner does -------------------------------------------------------------------
    def dirty(self, rounds=60):
        """Opens the session for FORMER, which then writes, reads, hints and programs at random."""
        d, rng = self.device, self.rng
        formats = tuple(
            (layer, Format(int(rng.integers(len(Format)))), Format(int(rng.integers(len(Format)))))
            for layer in (0, 1)
        )
        d.open_session(
            SESSION,
            Descriptor(layers=2, kv_heads=2, formats=formats, used_lines=3),
            QueueParameters(
                alpha=77, mass_shift=5, score_source=2, window=3, policy=1, budget=40, auto_step=9
            ),
            owner=FORMER,
        )
        d.write_registers({"prefetch_enable": 31, "irq_enable": ~0 & (1 << 32) - 1})
        for _ in range(rounds):
            (self._traffic, self._traffic, self._hints, self._program)[rng.integers(4)]()
        self._traffic()

    def _traffic(self):
        rng = self.rng
        count = int(rng.integers(1, 40))
        address = [
            self.device.address(
                SESSION,
                *(int(rng.integers(n)) for n in (UNIT.queues, UNIT.pages, 2, 4)),
            )
            for _ in range(count)
        ]
        opcode = rng.choice([READ, WRITE, WRITE, PARTIAL], count)
        self.device.run(
            Program(
                opcode=opcode,
                address=np.array(address, np.uint64),
                ld_id=FORMER,
                data=rng.integers(0, 256, (int((opcode != READ).sum()), 64), np.uint8),
                byte_enable=rng.integers(0, 1 << 63, count, np.uint64),
                flags=np.where((opcode == WRITE) & (rng.random(count) < 0.1), POISON, 0),
            )
        )

    def _hints(self):
        rng = self.rng
        lines = []
        for _ in range(int(rng.integers(1, 6))):
            kind = HintKind(int(rng.integers(1, 5)))
            pages = rng.permutation(UNIT.pages)[: int(rng.integers(1, UNIT.pages + 1))]
            lines.append(
                HintLine(
                    kind=kind,
                    session=SESSION,
                    sequence=int(rng.integers(1 << 16)),
                    queue=int(rng.integers(UNIT.queues)),
                    entries=tuple(map(int, pages))
                    if kind != HintKind.MASS
                    else tuple(map(int, rng.integers(0, 65536, len(pages)))),
                    advance=bool(rng.integers(2)),
                )
            )
        self.device.push_hints(lines, ld_id=FORMER)

    def _program(self):
        """Any of the session's registers, in range or not, and any command but OPEN and CLOSE."""
        d, rng = self.device, self.rng
        writable = [
            r.name
            for r in d.registers.values()
            if r.name.startswith(P) and r.scope is Scope.SESSION and r.name != P + "command"
        ]
        for name in rng.choice(writable, 3):
            d.write64(name, int(rng.integers(1 << 63)), ld_id=FORMER)
        d.write64(P + "budget", int(rng.integers(1 << 10)))
        # α = 0 is refused: most commands are to take effect.
        d.write64(P + "policy", d.pack(P + "policy", alpha=200, policy=1), ld_id=FORMER)
        d.write64(P + "queue", d.pack(P + "queue", queue=1, page=2), ld_id=FORMER)
        d.write64(P + "auto_step", int(rng.integers(1, 8)), ld_id=FORMER)
        for command in rng.choice(
            [
                SessionCommand.ADVANCE,
                SessionCommand.APPLY_ALL,
                SessionCommand.APPLY_QUEUE,
                SessionCommand.PEEK,
            ],
            2,
        ):
            d.write64(
                P + "command",
                d.pack(P + "command", command=int(command), argument=int(rng.integers(1 << 20))),
                ld_id=FORMER,
            )

    def close(self):
        """CLOSE, and the device's own settings back to what a reset leaves."""
        d = self.device
        d.close_session(SESSION)
        d.write_registers({name: d.registers[name].reset for name in DEVICE_WIDE})

    # - what the next owner sees -------------------------------------------------------------------
    def open(self):
        """OPEN for NEXT, by a host that writes the shape and nothing else."""
        d = self.device
        d.settle()  # what the evictor still says of the former owner's pages is not of the next's
        d.write64("event_clear", 1)
        d.write64(P + "shape", d._descriptor(P, SHAPE, NEXT)[P + "shape"])
        d.session_command(SESSION, SessionCommand.OPEN)
        d.settle()
        d.take_commits()

    def registers(self):
        """The whole register window, as NEXT reads it, and as LD-ID 0 reads the session's part."""
        d = self.device
        names = list(d.registers)
        seen = dict(zip(names, d.read_registers(names, ld_id=NEXT), strict=True))
        own = [name for name in names if name.startswith(P)]
        return seen, dict(zip(own, d.read_registers(own), strict=True))

    def queues(self):
        """Counters and resident lines of every queue, words of every page; queues beyond the
        configuration too."""
        d, seen = self.device, {}
        own = [n for n in d.registers if n.startswith((P + "queue_", P + "resident"))]
        for queue in range(UNIT.queues + 1):
            for page in range(UNIT.pages):
                d.write64(P + "queue", d.pack(P + "queue", queue=queue, page=page), ld_id=NEXT)
                d.write64(
                    P + "command", d.pack(P + "command", command=SessionCommand.PEEK), ld_id=NEXT
                )
                seen[queue, page] = (
                    d.read64(P + "page_word", ld_id=NEXT),
                    d.read64(P + "state", ld_id=NEXT),
                )
            seen[queue] = d.read_registers(own, ld_id=NEXT)
        d.write64(P + "queue", 0, ld_id=NEXT)
        return seen

    def lines(self):
        """Every line of the session's aperture and of its neighbour's."""
        d = self.device
        address = [
            d.address(session, queue, page, kv, line)
            for session in (SESSION, NEIGHBOUR)
            for queue in range(UNIT.queues)
            for page in range(UNIT.pages)
            for kv in range(2)
            for line in range(UNIT.half_lines)
        ]
        result = d.run(Program.reads(np.array(address, np.uint64), ld_id=NEXT))
        return result.response.tolist(), result.data.tolist()

    def hint(self):
        """The answer to the first hint line, and the codes that the log gets of it."""
        d = self.device
        result = d.push_hints(
            [HintLine(kind=HintKind.MASS, session=SESSION, queue=0, entries=(1, 2))], ld_id=NEXT
        )
        d.settle()
        records = [
            d.unpack("event_0", value) | {"code": Event(value & 255)}
            for value in d.read_registers([f"event_{i}" for i in range(EVENT_RECORDS)])
        ]
        return result.response.tolist(), [r for r in records if r["code"]]

    def work(self):
        """What the device decides and which scores it writes, while NEXT works: more pages than
        frames, not in order, hints between."""
        d, rng, sequence = self.device, np.random.default_rng(11), 1
        pages = [(q, p) for p in (6, 1, 3, 0, 7, 2, 5, 4) for q in range(UNIT.queues)]
        for step in range(4):
            for queue, page in pages[: 4 * (step + 1)] + pages[:6]:
                address = np.array([d.address(SESSION, queue, page, 0, 1)], np.uint64)
                data = rng.integers(0, 256, (1, 64), np.uint8)
                for program in (
                    Program.writes(address, data, ld_id=NEXT),
                    Program.reads(address, ld_id=NEXT),
                ):
                    d.run(program, lockstep=True)
            line = HintLine(
                kind=HintKind.MASS,
                session=SESSION,
                sequence=sequence,
                entries=(40, 50, 60),
                advance=True,
            )
            sequence += 1
            d.run(
                Program(
                    opcode=WRITE,
                    address=np.array([d.addresses.hint_base], np.uint64),
                    ld_id=NEXT,
                    data=np.frombuffer(pack(line), np.uint8).reshape(1, 64),
                ),
                lockstep=True,
            )
        d.settle()
        commits = d.take_commits()
        return _decided(commits.result), _scored(commits.score)


def _decided(results):
    """Decisions in order, without the frames and miss entries, which are the device's."""
    kinds = results["op.kind"]
    kept = np.isin(kinds, [Op.READ, Op.WRITE, Op.STEP, Op.MASS, Op.CLAIM, Op.RELEASE, Op.PREFETCH])
    names = ("op.kind", "outcome", "op.squeue", "op.page", "old.state", "word.state")
    names += ("word.last_step", "word.format_k", "word.format_v", "word.pinned", "first")
    return np.stack([results[name][kept] for name in names], axis=1).tolist()


def _scored(scores):
    kept = np.isin(scores["kind"], [ScoreEvent.INIT, ScoreEvent.TOUCH, ScoreEvent.MASS])
    names = ("kind", "squeue", "page", "score", "profile")
    return np.stack([scores[name][kept] for name in names], axis=1).tolist()


def _seen(bench):
    registers = bench.registers()
    return {
        "registers": registers[0],
        "the session's registers, as LD-ID 0 reads them": registers[1],
        "queues": bench.queues(),
        "lines": bench.lines(),
        "hint": bench.hint(),
    }


def _equal(after, fresh):
    """Says what differs, not that two heaps of numbers do."""
    for part, values in fresh.items():
        got = after[part]
        if isinstance(values, dict):
            differs = {k: (got[k], v) for k, v in values.items() if got[k] != v}
            assert not differs, f"{part}, (after a former owner, fresh): {differs}"
        assert got == values, part


@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.sampled
def test_next_owner_finds_a_fresh_device(policy):
    """Under both policies the next owner's decisions and scores are those of a fresh device, too.

    Under `kelp` victims follow what the whole device has learned: there scores alone are compared.
    """
    benches = used, fresh = Bench(7 + policy), Bench(7 + policy)
    used.dirty()
    used.close()
    for bench in benches:
        bench.open()
    _equal(_seen(used), _seen(fresh))
    done = []
    for bench in benches:
        d = bench.device
        if policy:
            d.write64(P + "policy", d.pack(P + "policy", policy=1), ld_id=NEXT)
            d.write64(
                P + "command", d.pack(P + "command", command=SessionCommand.APPLY_ALL), ld_id=NEXT
            )
        d.settle()
        d.take_commits()
        done.append(bench.work())
    (decided, scored), (fresh_decided, fresh_scored) = done
    assert scored == fresh_scored
    if not policy:
        assert any(row[0] == Op.CLAIM for row in fresh_decided)
        assert decided == fresh_decided


@pytest.mark.parametrize("owner", [FORMER, NEXT])
def test_hint_lines_of_a_former_owner_do_not_count(owner):
    """A line that was taken in before the CLOSE, behind a neighbour's prefetch lists, takes effect
    before it or not at all: registers wait for it, 255 cycles an access. When the session is open
    again its step stays 0, also for a next owner with the same LD-ID."""
    d = Bench(3).device
    shape = Descriptor(layers=1, kv_heads=1, used_pages=1)
    d.open_session(SESSION, shape, owner=FORMER)
    d.write64("prefetch_enable", 31)
    ahead = [
        HintLine(
            kind=HintKind.PREFETCH,
            session=NEIGHBOUR,
            queue=i % 2,
            sequence=i,
            entries=tuple(range(ENTRIES)),
        )
        for i in range(4)
    ]
    # As many entries as a line holds, over and over the queue's pages.
    pages = np.resize(np.arange(UNIT.pages, dtype="<u2"), ENTRIES).tobytes()
    lines = [
        *(pack(line)[: HEADER_BITS // 8] + pages for line in ahead),
        pack(HintLine(kind=HintKind.MASS, session=SESSION, advance=True)),
    ]
    hosts = [BESIDE] * len(ahead) + [FORMER]
    command = d.registers[P + "command"].offset
    shapes = d.registers[P + "shape"].offset
    register = d.addresses.register_base

    def word(offset, value):
        row = np.zeros(8, "<u8")
        row[offset % 64 // 8] = value
        return row.view(np.uint8)

    # OPEN is refused until the CLOSE is over, and again once the session is open.
    writes = [
        (shapes, d._descriptor(P, shape, owner)[P + "shape"]),
        (command, d.pack(P + "command", command=SessionCommand.CLOSE)),
        *[(command, d.pack(P + "command", command=SessionCommand.OPEN))] * 40,
    ]
    reads = 3000  # of the neighbour, which leave the hints few slots
    address = [
        *[d.addresses.hint_base] * len(lines),
        *(register + offset // 64 * 64 for offset, _ in writes),
        *[d.address(NEIGHBOUR, 0, 0, 0, 0)] * reads,
    ]
    d.run(
        Program(
            opcode=[WRITE] * len(lines) + [PARTIAL] * len(writes) + [READ] * reads,
            address=np.array(address, np.uint64),
            ld_id=hosts + [0] * len(writes) + [BESIDE] * reads,
            data=np.stack(
                [np.frombuffer(line, np.uint8) for line in lines]
                + [word(offset, value) for offset, value in writes]
            ),
            byte_enable=[(1 << 64) - 1] * len(lines)
            + [0xFF << offset % 64 for offset, _ in writes]
            + [0] * reads,
        )
    )
    d.settle()
    commits = d.take_commits().result
    kinds = commits["op.kind"]
    opened = np.flatnonzero((kinds == Op.OPEN) & (commits["op.session"] == SESSION))
    closed = np.flatnonzero((kinds == Op.CLOSE) & (commits["op.session"] == SESSION))
    assert len(opened) == 2 and (kinds == Op.PREFETCH).any()
    assert (np.flatnonzero(kinds == Op.STEP) < closed[0]).all()
    state = d.read_fields(P + "state", ld_id=owner)
    assert state["open"] and state["step"] == 0
