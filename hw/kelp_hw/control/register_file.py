# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The storage and decoder of the register window, made from `kelp_spec.registers` (spec §9). One
read a cycle, answered after 3 cycles; a write is done in the next cycle."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.registers import (
    SESSION_BASE,
    SESSION_STRIDE,
    Access,
    Register,
    RegisterMap,
    Scope,
)

__all__ = ["RegisterFile", "register_layout"]


def register_layout(register: Register) -> data.Layout:
    """A register's fields as a layout of 64 bits."""
    return data.FlexibleLayout(64, {f.name: data.Field(f.bits, f.low) for f in register.fields})


class RegisterFile(wiring.Component):
    """Decoder, access rights and storage of the 64-bit registers (spec §9).

    Latency: `LATENCY` cycles from `index` to `read_data`, `KNOWN_LATENCY` to `known` and `allowed`;
    a register changes in the cycle after `write`. Interval: `INTERVAL`,
    one read per cycle, or one write `KNOWN_LATENCY` cycle after its `index`, which holds until
    then.

    A write that is not allowed changes nothing, and a read that is not returns zero. Offsets that
    are not `known` read zero and ignore writes.

    Parameters
    ----------
    config : Config
    external : iterable of str
        Names of read-only registers that live in memories: the owner answers on `external_data`.

    Members
    -------
    index : in
        Offset of the register in words of 64 bits.
    write, write_data, mask : in
        The bits of `mask` in the register at `index` become those of `write_data`.
    ld_id : in
        Host of the access.
    owner : in
        LD-ID that owns each session.
    known : out
        There is a register at `index`.
    allowed : out
        `ld_id` may access it.
    read_data : out
    external_data : in
        The external register at the `index` of two cycles ago: one cycle before `read_data`.
    forget : in
        Bit s: what was written to session s, `shape` aside, is forgotten; a write of the same cycle
        too.
    rw_<name> : out
        A writable register.
    ro_<name> : in
        A read-only register that is not external and no constant.
    wo_<name>, wo_<name>_strobe : out
        A write-only register, and the pulse with its value.
    """

    LATENCY = 3
    KNOWN_LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config, external=()):
        self.map = RegisterMap(config)
        self.external = frozenset(external)
        unknown = self.external - self.map.by_name.keys()
        if unknown:
            raise ValueError(
                f"external = {sorted(unknown)} is refused; legal: names of registers in the map"
            )
        self.index_bits = 13
        self.sessions = config.sessions
        members = {
            "index": In(self.index_bits),
            "write": In(1),
            "write_data": In(64),
            "mask": In(64),
            "ld_id": In(LD_ID_BITS),
            "owner": In(data.ArrayLayout(LD_ID_BITS, config.sessions)),
            "known": Out(1),
            "allowed": Out(1),
            "read_data": Out(64),
            "external_data": In(64),
            "forget": In(config.sessions),
        }
        for r in self.map.registers:
            if r.name in self.external:
                continue
            layout = register_layout(r)
            if r.access is Access.RW:
                members["rw_" + r.name] = Out(layout, init=_init(r))
            elif r.access is Access.RO and not _constant(r):
                members["ro_" + r.name] = In(layout)
            elif r.access is Access.WO:
                members["wo_" + r.name] = Out(layout)
                members["wo_" + r.name + "_strobe"] = Out(1)
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        control = self.ld_id == 0
        write = Signal()
        m.d.comb += write.eq(self.write & self.allowed)
        # Critical path: `index` to the register's selection: registered here (`here_*`).
        here = {r.name: Signal(name=f"here_{r.name}") for r in self.map.registers}
        known, allowed, external = Signal(), Signal(), Signal()
        here_external, was_external = Signal(), Signal()
        # Comparators: a case of the switch for each flag would be Verilog that grows with the
        # square of the registers.
        m.d.sync += [here[r.name].eq(self.index == r.offset >> 3) for r in self.map.registers]
        m.d.sync += [self.known.eq(known), self.allowed.eq(allowed), here_external.eq(external)]
        with m.Switch(self.index):
            for r in self.map.registers:
                with m.Case(r.offset >> 3):
                    m.d.comb += known.eq(1)
                    if r.scope is Scope.ALL:
                        m.d.comb += allowed.eq(1)
                    elif r.scope is Scope.CONTROL:
                        m.d.comb += allowed.eq(control)
                    else:
                        session = int(r.name[1 : r.name.index("_")])
                        m.d.comb += allowed.eq(control | (self.ld_id == self.owner[session]))
                    if r.name in self.external:
                        m.d.comb += external.eq(1)
        read = Const(0, 64)
        for r in self.map.registers:
            if r.name in self.external:
                continue
            of_this = 0
            if r.access is Access.RW:
                held = getattr(self, "rw_" + r.name)
                used = _used_mask(r)
                of_this = held.as_value() & used
                with m.If(here[r.name] & write):
                    m.d.sync += held.as_value().eq(
                        ((held.as_value() & ~self.mask) | (self.write_data & self.mask)) & used
                    )
                if r.forgotten:
                    with m.If(self.forget[(r.offset - SESSION_BASE) // SESSION_STRIDE]):
                        m.d.sync += held.as_value().eq(r.reset)
            elif r.access is Access.WO:
                m.d.comb += [
                    getattr(self, "wo_" + r.name).as_value().eq(self.write_data & self.mask),
                    getattr(self, f"wo_{r.name}_strobe").eq(here[r.name] & write),
                ]
            elif _constant(r):
                of_this = r.reset
            else:
                of_this = getattr(self, "ro_" + r.name).as_value() & _used_mask(r)
            read = read | Mux(here[r.name], of_this, 0)
        chosen = Signal(64)
        was_allowed = Signal()
        m.d.sync += [
            chosen.eq(read),
            was_external.eq(here_external),
            was_allowed.eq(self.allowed),
            self.read_data.eq(Mux(was_allowed, Mux(was_external, self.external_data, chosen), 0)),
        ]
        return m


def _constant(r: Register) -> bool:
    """Read-only registers that tell what the hardware is."""
    return r.name in ("identity", "digest", "geometry")


def _used_mask(r: Register) -> int:
    return sum(((1 << f.bits) - 1) << f.low for f in r.fields)


def _init(r: Register) -> dict:
    return {f.name: f.reset for f in r.fields}
