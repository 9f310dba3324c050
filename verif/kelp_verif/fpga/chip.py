# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The SDRAM chip's behavioural model, joined to a controller's pins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from amaranth.hdl import ClockSignal, Instance, Module
from amaranth.lib import io, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_fpga.memory.sdram import Sdram
from kelp_fpga.memory.sdram_core import SdramPins
from kelp_fpga.memory.sdram_pads import SdramPads
from kelp_hw.lib.axi import AxiSignature

__all__ = [
    "CHIP",
    "VIOLATIONS",
    "BareChip",
    "SdramWithChip",
    "chip",
    "chip_on_pads",
    "simulated_ports",
]

CHIP = Path(__file__).with_name("sdram_chip.v")
#: Bit of `violation` → what is broken.
VIOLATIONS = (
    "power-up",
    "init",
    "tRC",
    "tRFC",
    "tRCD",
    "tRP",
    "tRRD",
    "tMRD",
    "tRAS",
    "tRAS max",
    "tWR",
    "tCK",
    "tREFI",
    "ACTIVE of an open bank",
    "access to a closed bank",
    "data pins driven by both",
    "mode",
    "REFRESH or MODE with a bank open",
    "auto-precharge cut",
    "unknown command",
    "write data not driven",
)


def chip(pins, violation, *, hz: float, clk=None) -> Instance:
    """The instance. `violation`: Signal(32). `clk`: our own clock inverted, as the board's."""
    names = ("cke", "cs_n", "ras_n", "cas_n", "we_n", "ba", "a", "dqm")
    return Instance(
        "sdram_chip",
        p_TCK=round(1e12 / hz),
        i_clk=~ClockSignal() if clk is None else clk,
        **{f"i_{name}": getattr(pins, name) for name in names},
        i_dq_i=pins.dq_o,
        i_dq_i_driven=pins.dq_oe,
        o_dq_o=pins.dq_i,
        o_violation=violation,
    )


def simulated_ports() -> SimpleNamespace:
    """The ports of an ULX3S that lead to its chip, but for the clock: names, widths and which are
    active low as amaranth-boards has them."""
    widths, low = (
        {"clk_en": 1, "cs": 1, "ras": 1, "cas": 1, "we": 1, "ba": 2, "a": 13, "dqm": 2},
        ("cs", "ras", "cas", "we"),
    )
    return SimpleNamespace(
        **{
            name: io.SimulationPort("o", width, invert=name in low, name=f"sdram_{name}")
            for name, width in widths.items()
        },
        dq=io.SimulationPort("io", 16, name="sdram_dq"),
    )


def chip_on_pads(m: Module, pins, violation, *, hz: float) -> None:
    """The chip behind the registers at a board's pads."""
    at = simulated_ports()
    m.submodules.pads = pads = SdramPads(at)
    connect(m, pins, pads.pins)
    wires = SimpleNamespace(
        cke=at.clk_en.o,
        cs_n=at.cs.o,
        ras_n=at.ras.o,
        cas_n=at.cas.o,
        we_n=at.we.o,
        ba=at.ba.o,
        a=at.a.o,
        dqm=at.dqm.o,
        dq_o=at.dq.o,
        dq_oe=at.dq.oe.all(),
        dq_i=at.dq.i,
    )
    m.submodules.chip = chip(wires, violation, hz=hz)


class SdramWithChip(wiring.Component):
    """:class:`kelp_fpga.memory.sdram.Sdram`, the pads' registers, and the chip."""

    def __init__(self, *, hz: float, address_bits: int = 25, id_bits: int = 4):
        self.hz = hz
        self.sdram = Sdram(hz=hz, address_bits=address_bits, id_bits=id_bits)
        super().__init__(
            {
                "axi": In(AxiSignature(address_bits=address_bits, id_bits=id_bits)),
                "ready": Out(1),
                "violation": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.sdram = sdram = self.sdram
        connect(m, flipped(self.axi), sdram.axi)
        chip_on_pads(m, sdram.pins, self.violation, hz=self.hz)
        m.d.comb += self.ready.eq(sdram.ready)
        return m


class BareChip(wiring.Component):
    """The chip's pins as ports."""

    def __init__(self, *, hz: float):
        self.hz = hz
        super().__init__({"pins": In(SdramPins()), "violation": Out(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.chip = chip(self.pins, self.violation, hz=self.hz)
        return m
