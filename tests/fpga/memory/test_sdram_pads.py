# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Registers at the pads."""

from simulation import simulate
from stub_board import Stub

from kelp_fpga.boards.ulx3s import Ulx3s, Ulx3sPlatform
from kelp_fpga.memory.sdram_pads import SdramPads
from kelp_verif.fpga.chip import simulated_ports


def test_the_simulated_chip_has_the_ports_of_the_board_and_each_its_registers():
    platform = Ulx3sPlatform()
    ports, simulated = platform.request("sdram", dir="-"), simulated_ports()
    for name, port in vars(simulated).items():
        assert tuple(getattr(ports, name).invert) == tuple(port.invert), name
    netlist = next(
        str(text)
        for name, text in Ulx3sPlatform().build(Ulx3s(Stub()), do_build=False).files.items()
        if name.endswith(".il")
    )
    pins = sum(len(port) for port in vars(simulated).values())
    # An output has a register for its value and one for whether it is driven; the data pins have
    # one more, and the clock the latter.
    assert (
        netlist.count("cell \\OFS1P3DX"),
        netlist.count("cell \\IFS1P3DX"),
        netlist.count("cell \\ODDRX1F"),
    ) == (2 * pins + 1, 16, 1)


def test_latency_and_interval():
    """A command is at the chip's pins as many cycles after the controller's, and data from there
    likewise, as the block says: the pads' registers, each way, in the netlist that the simulated
    chip has."""
    ports = simulated_ports()
    dut, seen, n = SdramPads(ports), [], 6

    async def bench(ctx):
        for cycle in range(n + 4):
            ctx.set(dut.pins.a, cycle + 1 if cycle < n else 0)
            ctx.set(dut.pins.cs_n, cycle % 2)
            ctx.set(ports.dq.i, 100 + cycle)
            seen.append((ctx.get(ports.a.o), ctx.get(ports.cs.o), ctx.get(dut.pins.dq_i)))
            await ctx.tick()

    simulate(dut, bench)
    addresses = [a for a, _, _ in seen]
    assert addresses.index(1) == dut.LATENCY
    assert addresses.index(2) - addresses.index(1) == dut.INTERVAL
    for cycle in range(dut.LATENCY, n):
        assert seen[cycle][1] == (cycle - dut.LATENCY) % 2, "an active-low pin is what it was"
        assert seen[cycle][2] == 100 + cycle - dut.LATENCY
