# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Arrival times of a netlist small enough to add up by hand."""

import json

import pytest
from command import kelp

from kelp_fpga.flow.estimate import Netlist, _wire


def cell(kind, outputs, **pins):
    directions = {pin: "output" if pin in outputs else "input" for pin in pins}
    return {
        "type": kind,
        "port_directions": directions,
        "connections": {
            pin: bits if isinstance(bits, list) else [bits] for pin, bits in pins.items()
        },
    }


@pytest.fixture
def netlist(tmp_path):
    """Register a → LUT → LUT → register b; a carry chain from a into c's enable; a block RAM's
    output into d. Bits 30 and 31 are a loop."""
    cells = {
        "a_ff": cell("TRELLIS_FF", "Q", CLK=1, DI="0", Q=2),
        "b_ff": cell("TRELLIS_FF", "Q", CLK=1, DI=5, Q=6),
        "lut_1": cell("LUT4", "Z", A=2, B="0", Z=4),
        "lut_2": cell("LUT4", "Z", A=4, B=2, Z=5),
        "carry": cell(
            "CCU2C",
            ("COUT", "S0", "S1"),
            A0=2,
            B0="0",
            A1="0",
            B1="0",
            CIN="0",
            COUT=10,
            S0=11,
            S1=12,
        ),
        "carry_2": cell(
            "CCU2C",
            ("COUT", "S0", "S1"),
            A0="0",
            B0="0",
            A1="0",
            B1="0",
            CIN=10,
            COUT=13,
            S0=14,
            S1=15,
        ),
        "c_ff": cell("TRELLIS_FF", "Q", CLK=1, DI="0", CE=14, Q=16),
        "rows.0.0": cell("DP16KD", "DOA0", CLKA=1, ADA0=6, DOA0=20),
        "d_ff": cell("TRELLIS_FF", "Q", CLK=1, DI=20, Q=21),
        "loop_1": cell("LUT4", "Z", A=31, Z=30),
        "loop_2": cell("LUT4", "Z", A=30, Z=31),
    }
    names = {"clk": 1, "a": 2, "mid": 4, "next_b": 5, "b": 6, "c": 16, "ram": 20, "d": 21}
    path = tmp_path / "netlist.json"
    path.write_text(
        json.dumps(
            {
                "modules": {
                    "top": {
                        "cells": cells,
                        "netnames": {name: {"bits": [bit]} for name, bit in names.items()},
                    }
                }
            }
        )
    )
    return path


def test_delays_add_up(netlist):
    design = Netlist(netlist)
    slow = {(p.end, p.pin): p for p in design.slowest()}
    # the register's three loads: two LUTs and the carry
    to_b = 0.52 + _wire(3) + 0.24 + _wire(1) + 0.24 + 0.1
    assert slow["b", "DI"].ns == pytest.approx(to_b)
    assert [name for _, _, name in slow["b", "DI"].nets] == ["a", "mid", "next_b"]
    assert slow["c", "CE"].ns == pytest.approx(0.52 + _wire(3) + 0.45 + 0.45 + _wire(1) + 0.1)
    assert slow["d", "DI"].ns == pytest.approx(5.6 + 0.1)
    assert [p.end for p in design.slowest("^[bd]$")] == ["d", "b"]
    assert design.memories() == {"rows": 1} and design.counts["LUT4"] == 4


def test_the_command_shows_them_and_says_when_there_is_no_netlist(netlist, tmp_path):
    done = kelp("fpga", "estimate", "--netlist", str(netlist), "--only", "b")
    assert (
        done.returncode == 0 and "next_b" in done.stdout and "block RAMs: 1: 1 rows" in done.stdout
    )
    for bad in (
        ["--netlist", str(tmp_path / "none.json")],
        ["--netlist", str(netlist), "--top", "other"],
    ):
        done = kelp("fpga", "estimate", *bad)
        assert (
            done.returncode == 1 and "no netlist" in done.stderr and "Traceback" not in done.stderr
        )
