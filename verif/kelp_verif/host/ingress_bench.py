# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Ingress against a plain decoder of what docs/interface.md says of each message: channels, outputs
and write slots, each with its own pauses."""

import random
from collections import Counter

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.layouts import MESSAGES, Layouts
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.coherence import MetaField, MetaValue
from kelp_spec.config import Config, named
from kelp_spec.messages import M2SReq, M2SRwD
from kelp_spec.metadata import Event
from kelp_spec.select import select_offset_bits

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record

READS = (M2SReq.MEM_RD, M2SReq.MEM_RD_DATA)
NOTHING = (M2SReq.MEM_INV, M2SReq.MEM_INV_NT, M2SReq.MEM_CLN_EVCT)
WRITES = (M2SRwD.MEM_WR, M2SRwD.MEM_WR_PTL)
FULL = (1 << 64) - 1
OUTPUTS = ("request", "window", "spec")
#: Messages that an output can hold: the one it shows, and one more while that is not taken.
PLACES = {"request": 2, "window": 1, "spec": 1}
#: Fields of a request that say nothing when it is refused: the address that they came from is not
#: the device's.
PLACE = ("session", "queue", "squeue", "page", "kv_line")


class Model:
    """Where a message goes and what it carries there, from the contract alone."""

    def __init__(self, config: Config):
        self.config, self.map = config, AddressMap(config)

    def region(self, line):
        region, where = self.map.decode(line << 6)
        if region == Region.GATHER:  # as GatherWindow leaves it: the line's own address
            _, where = self.map.decode(where)
        if region in (Region.KV, Region.GATHER) and (
            where.session >= self.config.sessions or where.queue >= self.config.queues
        ):
            return Region.OUTSIDE, None
        return region, where

    def route(self, message, is_write, slot, now):
        """(output or None, {field: value}), the fields that count."""
        c, m = self.config, message
        region, where = self.region(m["address"])
        opcode = m["opcode"]
        full = m["byte_enable"] if is_write and opcode == M2SRwD.MEM_WR_PTL else FULL
        kv = region == Region.KV or region == Region.GATHER and not is_write
        if not is_write and opcode == M2SReq.MEM_SPEC_RD:
            if not kv:
                return None, {}
            squeue = where.session * c.queues + where.queue
            return "spec", {
                "page.squeue": squeue,
                "page.page": where.page,
                "ld_id": m["ld_id"],
            }
        moves = opcode in (WRITES if is_write else READS)
        if moves and region in (Region.HINT, Region.REGISTER, Region.SELECT):
            want = {
                "hint": region == Region.HINT,
                "write": is_write,
                "offset": where >> 6,
                "ld_id": m["ld_id"],
                "tag": m["tag"],
                "poison": m["poison"] if is_write else 0,
            }
            if c.select:
                want["select"] = region == Region.SELECT
            return "window", want | ({"byte_enable": full, "data": m["data"]} if is_write else {})
        known = moves or not is_write and opcode in NOTHING
        no_byte = is_write and not full and not m["poison"]  # nothing to write
        want = {
            "write": is_write and moves,
            "no_memory": not moves or no_byte,
            "refused": Event.UNKNOWN_OPCODE
            if not known
            else Event.NONE
            if kv
            else Event.OUT_OF_MAP,
            "has_write": is_write and moves and kv and not no_byte,
            "origin.tag": m["tag"],
            "origin.ld_id": m["ld_id"],
            "origin.start": now,
            "origin.missed": 0,
        }
        if kv and moves and not is_write:
            owns = m["meta_field"] == MetaField.META0 and m["meta_value"] == MetaValue.ANY
            want |= {"partial": c.coherence and owns, "poison": 0}
        if kv and c.select:
            want["gathered"] = region == Region.GATHER
        if want["has_write"]:
            want |= {"write_slot": slot, "partial": full != FULL, "poison": m["poison"]}
        if kv:
            want |= {
                "session": where.session,
                "queue": where.queue,
                "squeue": where.session * c.queues + where.queue,
                "page": where.page,
                "kv_line": where.kv * c.half_lines + where.line,
            }
        return "request", want


class TB:
    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        params = bench_params()
        self.config = named(params.get("base", "unit")).with_(**params["config"])
        self.model, layouts = Model(self.config), Layouts(self.config)
        self.req, self.rwd, self.write = (
            Packing(MESSAGES["M2SReq"]),
            Packing(MESSAGES["M2SRwD"]),
            Packing(layouts.write_data),
        )
        self.out = {
            "request": Packing(layouts.request),
            "window": Packing(layouts.window_access),
            "spec": Packing(layouts.spec_read),
        }
        self.coming = Packing(layouts.coming)
        self.seen, self.cycles, self.now, self.tag = Counter(), 0, self.rng.getrandbits(32), 0
        self.p_req = self.p_rwd = self.p_slot = 0.5
        self.p_ready = dict.fromkeys(OUTPUTS, 0.5)
        self.forget()

    def forget(self):
        """As after a reset: nothing is held, nothing is owed."""
        self.offered_req = self.offered_rwd = self.offered_slot = None
        self.held = {name: [] for name in OUTPUTS}
        self.passed = False  # a RwD went past the Req that is offered
        self.behind = 0  # requests held that were accepted before what goes to the side
        self.foretold = None  # of the request that is shown in the next cycle

    async def reset(self):
        dut = self.dut
        dut.rst.value = 1
        dut.enable.value = 0
        dut.m2s_req__valid.value = dut.m2s_rwd__valid.value = dut.i_write_slot__valid.value = 0
        for _ in range(2):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        self.forget()

    def address(self):
        """A line address: mostly of the map, else just beside one of its edges."""
        c, rng, base = self.config, self.rng, self.model.map
        region = rng.choice(
            ["kv"] * 6
            + [
                "beyond",
                "hint",
                "hint",
                "hint end",
                "register",
                "register",
                "register end",
                "outside",
                "high",
            ]
            + ["gather", "gather", "select", "select end"] * (c.select > 0)
        )
        if region.startswith("select"):
            size = 1 << select_offset_bits(c)
            offset = rng.randrange(size) + (size if region == "select end" else 0)
            return (base.select_base >> 6) + offset
        if region == "gather":
            return (Region.GATHER << c.aperture_bits) + rng.randrange(base.hint_base) >> 6
        if region == "kv":
            return (
                base.encode(
                    KvAddress(
                        rng.randrange(c.sessions),
                        rng.randrange(c.queues),
                        rng.randrange(c.pages),
                        rng.randrange(2),
                        rng.randrange(c.half_lines),
                    )
                )
                >> 6
            )
        if region == "beyond":
            return rng.randrange(base.hint_base) >> 6
        if region.startswith("hint"):
            return (
                base.hint_base + rng.randrange(0x1000)
                if region == "hint"
                else base.hint_base + 0x1000 + rng.randrange(0x1000)
            ) >> 6
        if region.startswith("register"):
            return (
                base.register_base + rng.randrange(0x10000)
                if region == "register"
                else base.register_base + 0x10000 + rng.randrange(0x4000)
            ) >> 6
        if region == "outside":
            return 3 * base.hint_base + rng.randrange(base.hint_base) >> 6
        return rng.randrange(base.hint_base) >> 6 | 1 << rng.randrange(c.aperture_bits - 4, 46)

    def message(self, is_write):
        rng = self.rng
        likely = WRITES if is_write else (*READS, *READS, M2SReq.MEM_SPEC_RD, *NOTHING)
        self.tag = rng.choice([self.tag, rng.getrandbits(16)])  # tags need not be unique
        m = {
            "opcode": rng.choice(likely) if rng.random() < 0.8 else rng.randrange(16),
            "snp_type": rng.getrandbits(3),
            "meta_field": rng.choice([MetaField.META0, rng.getrandbits(2)]),
            "meta_value": rng.choice([MetaValue.ANY, rng.getrandbits(2)]),
            "tag": self.tag,
            "address": self.address(),
            "ld_id": rng.getrandbits(4),
            "tc": rng.getrandbits(2),
        }
        if is_write:
            m |= {
                "poison": rng.random() < 0.2,
                "bep": rng.getrandbits(1),
                "data": rng.getrandbits(512),
                "byte_enable": rng.choice(
                    [
                        0,
                        FULL,
                        FULL ^ 1 << rng.randrange(64),
                        1 << rng.randrange(64),
                        rng.getrandbits(64),
                    ]
                ),
            }
        return m

    async def cycle(self, *, enable=1, offer=True):
        """One cycle: everything is offered until it is taken, and every output says what the
        message before it asked for."""
        dut, rng = self.dut, self.rng
        if offer and self.offered_req is None and rng.random() < self.p_req:
            self.offered_req = self.message(False)
        if offer and self.offered_rwd is None and rng.random() < self.p_rwd:
            self.offered_rwd = self.message(True)
        if self.offered_slot is None and rng.random() < self.p_slot:
            self.offered_slot = rng.randrange(self.config.write_slots)
        req, rwd, slot = self.offered_req, self.offered_rwd, self.offered_slot
        dut.enable.value, dut.now.value = enable, self.now
        for port, packing, message in (("m2s_req", self.req, req), ("m2s_rwd", self.rwd, rwd)):
            getattr(dut, f"{port}__valid").value = int(message is not None)
            getattr(dut, f"{port}__payload").value = (
                rng.getrandbits(packing.width) if message is None else packing.pack(**message)
            )
        dut.i_write_slot__valid.value = int(slot is not None)
        dut.i_write_slot__payload.value = (
            rng.randrange(self.config.write_slots) if slot is None else slot
        )
        ready = {name: rng.random() < p for name, p in self.p_ready.items()}
        for name, flag in ready.items():
            getattr(dut, f"o_{name}__ready").value = int(flag)
        await ReadOnly()
        self.look(ready, req, rwd, slot, enable)
        await RisingEdge(dut.clk)
        self.cycles += 1
        # Each bit has its turn: nothing here counts how long anything takes.
        self.now = self.now + 1 & 0xFFFFFFFF if rng.random() < 0.98 else rng.getrandbits(32)

    def look(self, ready, req, rwd, slot, enable):
        dut = self.dut
        assert dut.idle.value == (req is None and rwd is None and not any(self.held.values())), (
            f"cycle {self.cycles}: idle with {self.held} {req} {rwd}"
        )
        # The outputs are registers: each holds the message before, whole, until it is taken. What
        # goes to the side shows itself behind its requests.
        for name, packing in self.out.items():
            want = (
                self.held[name][0]
                if self.held[name] and not (name == "window" and self.behind)
                else None
            )
            assert getattr(dut, f"o_{name}__valid").value == (want is not None), (
                f"cycle {self.cycles}: o_{name} valid, expected {want}"
            )
            if want is not None:
                got = packing.unpack(getattr(dut, f"o_{name}__payload").value)
                assert {f: got[f] for f in want} == want, (
                    f"cycle {self.cycles}: o_{name} {got}, expected {want}"
                )
        self.look_ahead(self.held["request"][:1], ready["request"])
        # What takes requests in a cycle is not known in it.
        taking = {name: ready[name] and not (name == "window" and self.behind) for name in OUTPUTS}
        free = {
            name: len(self.held[name]) < PLACES[name] or (name != "request" and taking[name])
            for name in OUTPUTS
        }
        self.look_stuck(rwd, slot, free)
        self.seen["window waits for a request"] += self.behind and ready["window"]
        for name in OUTPUTS:
            if taking[name]:
                del self.held[name][:1]
        self.behind = max(0, self.behind - taking["request"])
        takes_rwd = rwd is not None and dut.m2s_rwd__ready.value == 1
        takes_req = req is not None and dut.m2s_req__ready.value == 1
        taken, is_write = (rwd, True) if takes_rwd else (req, False) if takes_req else (None, False)
        assert not (takes_rwd and takes_req), "two messages in one cycle"
        assert enable or taken is None, "accepted before the endpoint is ready"
        self.liveness(req, rwd, slot, enable, free, takes_req, takes_rwd)
        where, want = self.model.route(taken, is_write, slot, self.now) if taken else (None, {})
        uses_slot = bool(want.get("has_write"))
        # Nothing is written but into the slot that is offered, until it is taken for a message's
        # own data.
        assert (dut.o_write__valid.value == 1) == (rwd is not None and slot is not None)
        assert (
            dut.o_write__valid.value == 0
            or self.write.unpack(dut.o_write__payload.value)["slot"] == slot
        )
        assert (slot is not None and dut.i_write_slot__ready.value == 1) == uses_slot, (
            "a write slot was taken for nothing, or none for a write"
        )
        if uses_slot:
            enables = taken["byte_enable"] if taken["opcode"] == M2SRwD.MEM_WR_PTL else FULL
            assert self.write.unpack(dut.o_write__payload.value) == {
                "slot": slot,
                "data": taken["data"],
                "byte_enable": enables,
            }
            self.offered_slot = None
        dropped = where == "spec" and not free["spec"]
        assert (dut.spec_dropped.value == 1) == dropped
        self.cover(taken, is_write, where, want, dropped, req, rwd)
        if where and not dropped:
            assert free[where], f"{taken} overwrites what waits on o_{where}"
            self.held[where].append({f: int(v) for f, v in want.items()})
            if where == "window":
                self.behind = len(self.held["request"])
            self.seen["two requests held"] += len(self.held["request"]) == 2
        if takes_rwd:
            self.offered_rwd = None
        if takes_req:
            self.offered_req = None

    def look_stuck(self, rwd, slot, free):
        """Whether the RwD that stands has no place, which `Select` is told of."""
        if rwd is None or not self.config.select or self.config.coherence:
            return
        moves, above = rwd["opcode"] in WRITES, rwd["address"] << 6 >> self.config.aperture_bits
        no_place = moves and (
            not free["window"] if self._for_side(rwd) else above == Region.KV and slot is None
        )
        assert self.dut.stuck.value == no_place, f"cycle {self.cycles}: {rwd}, a place: {free}"
        self.seen["stuck at the side"] += bool(no_place and self._for_side(rwd))
        self.seen["stuck without a slot"] += bool(no_place and above == Region.KV)

    def look_ahead(self, shown, taken):
        """`o_ahead` said of the request that is shown now what it is, but for one that stood; and
        what it says now."""
        if shown and self.foretold:
            want = shown[0]
            got = self.foretold | {"origin.ld_id": self.foretold["ld_id"]}
            fields = ("origin.ld_id", *(f for f in got if f in want and f in PLACE))
            assert {f: got[f] for f in fields} == {f: want[f] for f in fields}, (
                f"cycle {self.cycles}: {got} was foretold of {want}"
            )
            assert got["memory"] == (not want["refused"] and not want["no_memory"]), want
            self.seen["foretold"] += 1
        said = int(self.dut.o_ahead.value)
        which, width = said >> 2 * self.coming.width, self.coming.width
        chosen = self.coming.unpack(said >> width * which & (1 << width) - 1)
        self.foretold = None if shown and not taken else chosen

    def liveness(self, req, rwd, slot, enable, free, takes_req, takes_rwd):
        """Nobody waits for a place that is free, nor a Req for a write that has no slot; a
        MemSpecRd waits for nothing but a RwD. A RwD goes past a Req once, and then no more when
        that one can go."""
        if not enable:
            return
        open_ways = free["request"] and free["window"]
        turn = bool(req and self.passed and free["request"])
        if turn and req["opcode"] in READS and self._for_side(req):
            turn = free["window"]
        self.passed = req is not None and not takes_req and (self.passed or takes_rwd)
        if turn:
            assert takes_req, f"cycle {self.cycles}: {req} is kept out by RwD"
            self.seen["req in its turn"] += rwd is not None
        elif rwd and open_ways and slot is not None:
            assert takes_rwd, f"cycle {self.cycles}: {rwd} waits for nothing"
        if req and not takes_rwd and (open_ways or req["opcode"] == M2SReq.MEM_SPEC_RD):
            assert takes_req, f"cycle {self.cycles}: {req} waits for nothing"
        to_side = req and req["opcode"] in READS and self._for_side(req)
        if req and not takes_rwd and not to_side and free["request"]:
            assert takes_req, "what does not go there waits for the side path"

    def _for_side(self, message):
        """Whether the message is for a window, or beyond the end of one."""
        above = message["address"] << 6 >> self.config.aperture_bits
        select = (Region.SELECT,) if self.config.select else ()
        return above in (Region.HINT, Region.REGISTER, *select)

    def cover(self, taken, is_write, where, want, dropped, req, rwd):
        self.seen["both offered"] += req is not None and rwd is not None
        self.seen["req passes a write"] += bool(taken and not is_write and rwd)
        self.seen["spec dropped"] += dropped
        if taken:
            channel = "rwd" if is_write else "req"
            self.seen[f"{channel} opcode {taken['opcode']}"] += 1
            self.seen[f"{channel} to {where}"] += 1
            if where == "request":
                self.seen[f"{Event(want['refused']).name} {channel}"] += 1
                if want["has_write"]:
                    self.seen["partial" if want["partial"] else "full"] += 1
                self.seen["for ownership"] += bool(not is_write and want.get("partial"))
                self.seen["gathered"] += bool(want.get("gathered"))
                self.seen["no byte"] += bool(
                    want["write"] and want["no_memory"] and not want["refused"]
                )
            if where == "window":
                kind = "select" if want.get("select") else "hint" if want["hint"] else "register"
                self.seen[f"{kind} {'write' if is_write else 'read'}"] += 1
            region, _ = self.model.map.decode(taken["address"] << 6)
            self.seen["beyond the configuration"] += (
                region == Region.KV and self.model.region(taken["address"])[0] == Region.OUTSIDE
            )


async def start(dut) -> TB:
    tb = TB(dut)
    await start_clock(dut)
    await tb.reset()
    for _ in range(30):
        await tb.cycle(enable=0)
    return tb


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def random_messages(dut):
    tb = await start(dut)
    for n in range(bench_params()["cycles"]):
        if n % 100 == 0:
            tb.p_req, tb.p_rwd, tb.p_slot = (tb.rng.choice([0.1, 0.7, 1.0]) for _ in range(3))
            tb.p_ready = {name: tb.rng.choice([0.1, 0.5, 1.0]) for name in OUTPUTS}
        if n % 1000 == 999:
            tb.seen["reset of a message"] += any(tb.held.values())
            await tb.reset()
        await tb.cycle()
    tb.p_ready, tb.p_slot = dict.fromkeys(OUTPUTS, 1.0), 1.0
    for _ in range(10):
        await tb.cycle(offer=False)
    assert dut.idle.value == 1
    record(seen=dict(tb.seen))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def one_message_a_cycle(dut):
    """With free ways, one message passes in every cycle, whichever channel has it."""
    tb = await start(dut)
    tb.p_slot = 1.0
    tb.p_ready = dict.fromkeys(OUTPUTS, 1.0)
    rates = {}
    for name, tb.p_req, tb.p_rwd in (("req", 1.0, 0.0), ("rwd", 0.0, 1.0), ("both", 1.0, 1.0)):
        while tb.offered_req or tb.offered_rwd:  # an offer stays
            await tb.cycle(offer=False)
        before = sum(n for what, n in tb.seen.items() if " opcode " in what)
        for _ in range(200):
            await tb.cycle()
        rates[name] = (sum(n for what, n in tb.seen.items() if " opcode " in what) - before) / 200
    record(rates=rates)
