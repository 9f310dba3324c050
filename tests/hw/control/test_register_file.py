# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""RegisterFile: how fast a register is read, and known to be one; beside a model of the register
map, who may read and write what, and when."""

import random
from collections import deque

import pytest
from simulation import simulate
from timing import check_pace, varied

from kelp_hw.control.register_file import RegisterFile
from kelp_spec.config import named
from kelp_spec.registers import SESSION_BASE, SESSION_STRIDE, Access, RegisterMap, Scope

UNIT = named("unit")
EXTERNAL = ("count_reads", "event_3", "s1_resident")
CYCLES = 4000
NONE = 0x1FFF  #: index of no register
CONSTANT = "identity", "digest", "geometry"


def index(name):
    return RegisterMap(UNIT).by_name[name].offset >> 3


@pytest.mark.parametrize(
    ("attribute", "output", "indices"),
    [
        ("LATENCY", "read_data", [index(name) for name in ("identity", "digest", "geometry")]),
        ("KNOWN_LATENCY", "known", [index("identity"), NONE, index("digest")]),
    ],
)
def test_latency_and_interval(attribute, output, indices):
    stimuli = varied("index", indices)
    check_pace(RegisterFile(config=UNIT), attribute, output, stimuli, prepare={"index": NONE})


class Model:
    """What the registers hold, and who may access them."""

    def __init__(self):
        self.map = RegisterMap(UNIT)
        registers = [r for r in self.map.registers if r.name not in EXTERNAL]
        self.by_index = {r.offset >> 3: r for r in self.map.registers}
        self.used = {
            r.name: sum((1 << f.bits) - 1 << f.low for f in r.fields) for r in self.map.registers
        }
        self.readable = [r for r in registers if r.access is Access.RO and r.name not in CONSTANT]
        self.written = [r for r in registers if r.access is Access.WO]
        self.held = {r.name: r.reset for r in registers if r.access is not Access.WO}

    def allowed(self, index, ld_id, owner):
        register = self.by_index.get(index)
        if register is None or register.scope is Scope.ALL:
            return register is not None
        if register.scope is Scope.CONTROL:
            return ld_id == 0
        return ld_id in (0, owner[int(register.name[1 : register.name.index("_")])])

    def read(self, index):
        register = self.by_index.get(index)
        return self.held.get(register.name, 0) if register else 0

    def write(self, index, value, mask):
        register = self.by_index.get(index)
        if register and register.access is Access.RW:
            name = register.name
            self.held[name] = (self.held[name] & ~mask | value & mask) & self.used[name]

    def forget(self, sessions):
        for r in self.map.registers:
            if r.access is Access.RW and r.forgotten:
                if sessions >> (r.offset - SESSION_BASE) // SESSION_STRIDE & 1:
                    self.held[r.name] = r.reset


def test_each_access_is_the_maps():
    rng, model = random.Random(3), Model()
    dut = RegisterFile(config=UNIT, external=EXTERNAL)
    writable = [r for r in model.map.registers if r.access is Access.RW]
    seen = dict.fromkeys(("read", "external", "refused", "write", "write refused", "strobe"), 0)
    forgotten = 0

    def port(register):
        prefix = {Access.RW: "rw_", Access.RO: "ro_", Access.WO: "wo_"}[register.access]
        return getattr(dut, prefix + register.name).as_value()

    def chosen():
        """Any register, those that may be written more often, or none, by a bit."""
        external = [model.map.by_name[name] for name in EXTERNAL]
        groups = model.map.registers, writable, model.written, external
        of = [register.offset >> 3 for register in rng.choice(groups)]
        index = rng.choice(of)
        return index ^ 1 << rng.randrange(13) if rng.random() < 0.15 else index

    async def bench(ctx):
        nonlocal forgotten
        # Of this cycle and those before: what was asked, and what registers and outside held.
        past = deque([(NONE, 0, False, 0, 0)] * 3, maxlen=3)
        writes = False
        owner = [0] * UNIT.sessions
        for register in model.readable:
            value = model.held[register.name] = rng.getrandbits(64) & model.used[register.name]
            ctx.set(port(register), value | ~model.used[register.name] & rng.getrandbits(64))
        for _ in range(CYCLES):
            again = past[-1][:2] if rng.random() < 0.5 and not writes else None
            index, ld_id = again or (chosen(), rng.choice([0, 0, *owner, rng.randrange(16)]))
            # `allowed` is of the cycle before, with the owners of then.
            may = past[-1][2]
            writes = bool(again) and rng.random() < 0.8
            value, mask = rng.getrandbits(64), rng.choice([rng.getrandbits(64), (1 << 64) - 1])
            outside, forgets = rng.getrandbits(64), rng.getrandbits(2) * (rng.random() < 0.02)
            if rng.random() < 0.05:
                owner = [rng.randrange(16) for _ in owner]
            given = zip(
                (dut.index, dut.ld_id, dut.write, dut.write_data, dut.mask, dut.external_data),
                (index, ld_id, writes, value, mask, outside),
                strict=True,
            )
            for signal, now in given:
                ctx.set(signal, now)
            ctx.set(dut.owner, owner)
            ctx.set(dut.forget, forgets)
            if rng.random() < 0.3:
                register = rng.choice(model.readable)
                read = model.held[register.name] = rng.getrandbits(64) & model.used[register.name]
                ctx.set(port(register), read)

            (at, _, ok, held, _), _, (last, *_, beside) = past
            external = at in model.by_index and model.by_index[at].name in EXTERNAL
            assert ctx.get(dut.known) == (last in model.by_index)
            assert ctx.get(dut.allowed) == may
            assert ctx.get(dut.read_data) == (0 if not ok else beside if external else held)
            for register in model.written:
                strobe = writes and may and last == register.offset >> 3
                assert ctx.get(getattr(dut, f"wo_{register.name}_strobe")) == strobe
                if strobe:
                    told = ctx.get(port(register)) & model.used[register.name]
                    assert told == value & mask & model.used[register.name]
                    seen["strobe"] += 1
            for register in rng.sample(writable, 3):
                assert ctx.get(port(register)) == model.held[register.name], register.name
            kind = "external" if external else "read"
            seen[kind if ok else "refused"] += at in model.by_index
            seen["write" if may else "write refused"] += writes

            # What a read of the cycle before finds is what registers hold in this one.
            past.append((index, ld_id, model.allowed(index, ld_id, owner), None, outside))
            past[-2] = (*past[-2][:3], model.read(last), past[-2][4])
            await ctx.tick()
            if writes and may:
                model.write(last, value, mask)
            model.forget(forgets)
            forgotten += forgets != 0
        for register in writable:
            assert ctx.get(port(register)) == model.held[register.name], register.name

    simulate(dut, bench)
    assert min(seen.values()) > 50 and forgotten > 20, (seen, forgotten)
