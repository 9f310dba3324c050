# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Handles that are quick are cocotb's in all that they say."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_verif.harness import runner

WIDTHS = (1, 8, 31, 32, 33, 100)


class Through(wiring.Component):
    """What comes in goes out, whatever its width."""

    def __init__(self):
        ports = ((f"{way}_{n}", kind(n)) for way, kind in (("i", In), ("o", Out)) for n in WIDTHS)
        super().__init__(dict(ports))

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [getattr(self, f"o_{n}").eq(getattr(self, f"i_{n}")) for n in WIDTHS]
        m.d.sync += Signal().eq(self.i_1)  # it has a clock
        return m


def test_they_mean_what_they_meant():
    found = runner.run_cocotb(
        Through(), bench="kelp_verif.harness.handles_bench", params={"widths": WIDTHS}
    ).records
    assert found["checked"] >= 2 * 3 * len(WIDTHS)
