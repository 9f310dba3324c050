# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The one kind of memory that every block uses: one read and one write port, replaceable. One read
and one write a cycle; a read is answered after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import ClockSignal, Instance, Module, Shape, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

__all__ = ["Sram", "memory_ports"]


def memory_ports(depth: int, shape) -> tuple[int, int, dict]:
    """(bits of a row, bits of an address, members) of a memory with one read and one write port;
    ValueError when it would have no row or no bit."""
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"depth = {depth!r} is refused; legal: an integer of 1 and up")
    width = Shape.cast(shape).width
    if width < 1:
        raise ValueError(f"shape = {shape!r} is refused; legal: a shape of at least one bit")
    address_bits = max(1, ceil_log2(depth))
    return (
        width,
        address_bits,
        {
            "read_en": In(1),
            "read_address": In(address_bits),
            "read_data": Out(shape),
            "write_en": In(1),
            "write_address": In(address_bits),
            "write_data": In(shape),
        },
    )


class Sram(wiring.Component):
    """A memory with one read and one write port on one clock.

    Small ones are `lib.memory`: block or distributed RAM on an FPGA, and Amaranth's simulator runs
    them. Large ones are an `Instance` of the macro `kelp_sram` or `kelp_sram_collision_x`. Their
    behavioural models are in `macros`; an ASIC or UltraRAM flow replaces them.

    Latency: `LATENCY` cycle, `read_en` with `read_address` → `read_data`, which then holds while
    `read_en` is low. One read and one write in each cycle (`INTERVAL`). A read of the address that
    is written in the same cycle returns the **new** data, which costs an FPGA a multiplexer behind
    its block RAM, or an undefined row when not `transparent`. Contents after configuration are zero
    for `lib.memory` and undefined for the macro: a block that needs a value scrubs. Reset clears
    nothing. No error cases.

    Parameters
    ----------
    depth : int
        Rows, 1 and up. An address at or above it must not be written, where no bit has flipped;
        what is read there is undefined.
    shape : shape-like
        Shape of a row: a width or a layout.
    macro : bool or None
        Force or forbid the macro; by default it is used above `MACRO_ABOVE` rows, or above
        `COLLISION_X_ABOVE` when not `transparent`.
    transparent : bool
        A read of the row that is written in the same cycle returns the new data.
    slice_bits : int, optional
        A macro for each so many bits of a row, instead of one for all of it: where synthesis would
        make a wider one of shallower block RAMs and choose between their outputs.

    block : bool
        A `lib.memory` is block RAM on an FPGA, also where synthesis would make small RAMs of it.

    Members
    -------
    read_en, read_address : in
    read_data : out
    write_en, write_address, write_data : in
    """

    LATENCY = 1
    INTERVAL = 1

    #: Amaranth writes out a Memory's initial value row by row, which does not scale.
    MACRO_ABOVE = 4096
    #: A Memory's read without transparency returns the old row, which FPGA synthesis keeps with a
    #: comparison and a multiplexer behind the block RAM; the macro's may return anything.
    COLLISION_X_ABOVE = 128

    def __init__(
        self,
        *,
        depth: int,
        shape,
        macro: bool | None = None,
        transparent: bool = True,
        slice_bits: int | None = None,
        block: bool = False,
    ):
        self.depth = depth
        self.shape = shape
        self.width, self.address_bits, members = memory_ports(depth, shape)
        self.macro = (
            depth > (self.MACRO_ABOVE if transparent else self.COLLISION_X_ABOVE)
            if macro is None
            else bool(macro)
        )
        self.transparent, self.block = transparent, bool(block)
        self.slice_bits = self.width if slice_bits is None else slice_bits
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        if self.macro:
            for low in range(0, self.width, self.slice_bits):
                bits = slice(low, min(low + self.slice_bits, self.width))
                name = "macro" if self.slice_bits >= self.width else f"macro_{low}"
                m.submodules[name] = Instance(
                    "kelp_sram" if self.transparent else "kelp_sram_collision_x",
                    p_DEPTH=self.depth,
                    p_WIDTH=bits.stop - bits.start,
                    p_ADDRESS_WIDTH=self.address_bits,
                    i_clk=ClockSignal("sync"),
                    i_read_en=self.read_en,
                    i_read_address=self.read_address,
                    o_read_data=Value.cast(self.read_data)[bits],
                    i_write_en=self.write_en,
                    i_write_address=self.write_address,
                    i_write_data=Value.cast(self.write_data)[bits],
                )
            return m
        m.submodules.memory = rows = memory.Memory(
            shape=self.width,
            depth=self.depth,
            init=(),
            attrs={"ram_style": "block"} if self.block else None,
        )
        write = rows.write_port()
        read = rows.read_port(transparent_for=(write,) if self.transparent else ())
        m.d.comb += [
            read.en.eq(self.read_en),
            read.addr.eq(self.read_address),
            Value.cast(self.read_data).eq(read.data),
            write.en.eq(self.write_en),
            write.addr.eq(self.write_address),
            write.data.eq(Value.cast(self.write_data)),
        ]
        return m
