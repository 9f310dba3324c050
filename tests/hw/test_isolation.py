# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One tenant beside another, from ingress to egress: what a tenant is answered does not depend on
what the other does. The tenant's program is the same twice, the other's is another one each time.

Left out: time, and what it decides of pages that share the pools (which of them are resident, hits
and misses, refused pins); totals, and that an event log of sixteen may be full of another's events.
"""

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import Driver, FlashTiming, MemoryTiming, Pressure
from kelp_rtl.program import PARTIAL, POISON, READ, WRITE, Program, Response
from kelp_spec.formats import Format
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.metadata import Event
from kelp_spec.registers import Scope, SessionCommand
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(1800)  # the first test builds the model

MINE, THEIRS = 1, 0  # sessions
ME, OTHER = 6, 3  # LD-IDs
P = f"s{MINE}_"
ROUNDS, MOST = 12, 150
ALL_BYTES = (1 << 64) - 1


class Tenants:
    """A device with two sessions. `seed` is the tenant's under test, `foreign` the other's, and
    of all that is random around the device. What the other does to what is not its own, it does as
    `intruder`. A round has `own` requests of the one and fewer than `others` of the other."""

    def __init__(self, seed, foreign, intruder=OTHER, own=(20, MOST), others=3 * MOST):
        seed, foreign = reseeded(seed), reseeded(foreign)
        self.intruder, self.own, self.others = intruder, own, others
        self.mine, self.theirs = np.random.default_rng(seed), np.random.default_rng(foreign)
        self.device = d = Driver(
            UNIT,
            memory=MemoryTiming(latency=12, write_latency=12, jitter=40, shuffle=True),
            flash=FlashTiming(latency=200, write_latency=200, jitter=200),
            pressure=Pressure.everywhere(0.2),
            seed=foreign,
        )
        shape = {"layers": 2, "kv_heads": UNIT.queues // 2}
        mine = ((0, Format.INT8, Format.INT4), (1023, Format.RAW16, Format.FP8_E4M3))
        d.open_session(MINE, Descriptor(**shape, formats=mine), owner=ME)
        some = [Format(int(n)) for n in self.theirs.integers(len(Format), size=2)]
        d.open_session(
            THEIRS,
            Descriptor(**shape, formats=((1023, *some),)),
            QueueParameters(policy=int(self.theirs.integers(2))),
            owner=OTHER,
        )
        d.write_registers({"prefetch_enable": int(self.theirs.integers(16))})
        self.sequence = {MINE: 0, THEIRS: 0}
        self.seen = []

    def line(self, rng, session):
        """Any line of a session."""
        c = UNIT
        place = (int(rng.integers(n)) for n in (c.queues, c.pages, 2, c.half_lines))
        return self.device.address(session, *place)

    def hint(self, rng, session):
        kind = HintKind(int(rng.integers(1, 5)))
        pages = rng.permutation(UNIT.pages)[: int(rng.integers(1, UNIT.pages + 1))].tolist()
        self.sequence[session] += 1
        line = HintLine(
            kind=kind,
            session=session,
            sequence=self.sequence[session],
            queue=int(rng.integers(UNIT.queues)),
            entries=tuple(rng.integers(0, 65536, 3).tolist())
            if kind == HintKind.MASS
            else tuple(pages),
        )
        return self.device.addresses.hint_base, pack(line)

    def request(self, rng, session, ld_id, writes):
        """(opcode, address, LD-ID, data, bytes, flags); reads are of lines not in `writes`."""
        kind = rng.random()
        if kind < 0.08:
            address, data = self.hint(rng, session)
            return WRITE, address, ld_id, data, ALL_BYTES, 0
        address = self.line(rng, session)
        if kind < 0.5:
            # A write and a read of one line, or two writes of which one is partial, are not
            # ordered with one another: each line is in one request of a round.
            while address in writes:
                address = self.line(rng, session)
            writes.add(address)
            opcode = PARTIAL if rng.random() < 0.3 else WRITE
            enable = int(rng.integers(1 << 63)) if opcode == PARTIAL else ALL_BYTES
            flags = POISON * (rng.random() < 0.05)
            return opcode, address, ld_id, rng.bytes(64), enable, flags
        return READ, address, ld_id, None, ALL_BYTES, 0

    def intrusion(self):
        """The other tenant at what is not its own: lines, hints and registers of mine."""
        rng, d = self.theirs, self.device
        what = rng.integers(4)
        if what == 0:
            return READ, self.line(rng, MINE), self.intruder, None, ALL_BYTES, 0
        if what == 1:
            return WRITE, self.line(rng, MINE), self.intruder, rng.bytes(64), ALL_BYTES, 0
        if what == 2:
            kind = HintKind(int(rng.integers(1, 5)))
            sequence = self.sequence[MINE] + int(rng.integers(-2, 200)) & 0xFFFF
            line = HintLine(kind=kind, session=MINE, sequence=sequence, entries=(1, 2))
            return WRITE, d.addresses.hint_base, self.intruder, pack(line), ALL_BYTES, 0
        names = [r for r in d.registers.values() if r.name.startswith(P)]
        register = names[rng.integers(len(names))]
        address = d.addresses.register_base + register.offset // 64 * 64
        if rng.random() < 0.5:
            return READ, address, self.intruder, None, ALL_BYTES, 0
        return PARTIAL, address, self.intruder, rng.bytes(64), 0xFF << register.offset % 64, 0

    def round(self):
        """Requests of both, mixed by chance; what mine were answered."""
        written: set[int] = set()
        own = [
            self.request(self.mine, MINE, ME, written) for _ in range(self.mine.integers(*self.own))
        ]
        own = [r for r in own if r[0] != READ or r[1] not in written]
        count, foreign = int(self.theirs.integers(0, self.others)), []
        for _ in range(count):
            foreign.append(
                self.intrusion()
                if self.theirs.random() < 0.2
                else self.request(self.theirs, THEIRS, OTHER, set())
            )
        mixed = np.array([True] * len(own) + [False] * len(foreign))
        self.theirs.shuffle(mixed)
        parts = {True: iter(own), False: iter(foreign)}
        asks = [next(parts[bool(mine)]) for mine in mixed]
        rows = b"".join(a[3] for a in asks if a[3] is not None)
        result = self.device.run(
            Program(
                opcode=[a[0] for a in asks],
                address=np.array([a[1] for a in asks], np.uint64),
                ld_id=[a[2] for a in asks],
                data=np.frombuffer(rows, np.uint8),
                byte_enable=np.array([a[4] for a in asks], np.uint64),
                flags=[a[5] for a in asks],
            )
        )
        answers = list(
            zip(result.response[mixed].tolist(), result.data[mixed].tolist(), strict=True)
        )
        self.seen += [(own[n][:2], answer) for n, answer in enumerate(answers)]
        for address, response in zip([a[1] for a in asks], result.response.tolist(), strict=True):
            assert response != Response.NONE, hex(address)

    def commands(self):
        """The tenant's own registers: written, read back, and a step."""
        d, rng = self.device, self.mine
        alpha = int(rng.integers(1, 257))
        d.write64(P + "policy", d.pack(P + "policy", alpha=alpha, policy=1), ld_id=ME)
        for command in (SessionCommand.APPLY_ALL, SessionCommand.ADVANCE):
            value = d.pack(P + "command", command=command, argument=int(rng.integers(1, 4)))
            d.write64(P + "command", value, ld_id=ME)
        d.settle()
        own = [r.name for r in d.registers.values() if r.scope is Scope.SESSION]
        own = [name for name in own if name.startswith(P) and not _of_the_pools(name)]
        self.seen.append(dict(zip(own, d.read_registers(own, ld_id=ME), strict=True)))

    def events(self):
        """The log's records with the tenant's LD-ID, in order of their content, but for those of
        the pools; then it is empty. None may have been lost."""
        d = self.device
        d.settle()
        names = [f"event_{i}" for i in range(d.read64("event_count"))]
        records = [d.unpack("event_0", word) for word in d.read_registers(names)]
        assert not d.unpack("status", d.read64("status"))["event_overflow"]
        d.write64("event_clear", 1)
        pools = (Event.PIN_REFUSED, Event.NO_VICTIM)
        own = [r for r in records if r["ld_id"] == ME and r["code"] not in pools]
        assert all(r["squeue"] // UNIT.queues == MINE for r in own if r["squeue"])
        # The argument may be a request's tag, which the driver counts over both.
        return sorted((r["code"], r["squeue"], r["page"]) for r in own), len(records)

    def run(self):
        for n in range(ROUNDS):
            self.round()
            if n % 3 == 2:
                self.commands()
        return self.seen


def _of_the_pools(name):
    """Depends on which pages are resident, which the pools share out."""
    return any(part in name for part in ("resident", "miss", "hit", "evict", "page_word", "queue_"))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_answers_do_not_depend_on_another_tenant(seed):
    seen = [Tenants(seed, foreign).run() for foreign in (100 + seed, 200 + seed)]
    assert len(seen[0]) == len(seen[1]) > 300
    for n, (one, two) in enumerate(zip(*seen, strict=True)):
        assert one == two, f"answer {n}"
    lines = [s for s in seen[0] if isinstance(s, tuple)]
    data = [answer for (opcode, _), answer in lines if opcode == READ]
    assert {response for response, _ in data} == {Response.DATA, Response.POISON}
    assert sum(any(line) for _, line in data) > 100


@pytest.mark.parametrize("intruder", [OTHER, pytest.param(ME, marks=pytest.mark.night)])
def test_events_of_a_tenant_do_not_depend_on_another(intruder):
    """Poison, closed and foreign accesses of the other stand under its own LD-ID; under the
    tenant's, they are seen."""
    seen, records = [], 0
    for foreign in (300, 400):
        tenants, told = Tenants(5, foreign, intruder, own=(2, 6), others=9), []
        for _ in range(100):
            tenants.round()
            own, count = tenants.events()
            told += own
            records += count
        seen.append(told)
    assert len(seen[0]) > 6 and records > len(seen[0]) + len(seen[1]) + 50
    assert (seen[0] == seen[1]) == (intruder == OTHER)


def test_one_who_comes_in_under_the_tenants_name_is_seen():
    """What the comparison is for: the same requests, were they not refused."""
    seen = [Tenants(0, foreign, intruder=ME).run() for foreign in (100, 200)]
    assert any(one != two for one, two in zip(*seen, strict=False))
