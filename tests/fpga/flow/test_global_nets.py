# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Resets and enables on the clock network."""

import pytest

from kelp_fpga.flow.global_nets import move, promote


def test_resets_and_enables_with_many_pins_go_over_the_clock_network():
    cells = {
        f"ff{n}": {
            "type": "TRELLIS_FF",
            "port_directions": {
                "CLK": "input",
                "LSR": "input",
                "CE": "input",
                "DI": "input",
                "Q": "output",
            },
            "connections": {
                "CLK": [2],
                "LSR": [3] if n < 5 else ["0"],
                "CE": [4 if n < 3 else 5],
                "DI": [3],
                "Q": [10 + n],
            },
        }
        for n in range(8)
    }
    module = {
        "cells": cells,
        "ports": {"q": {"bits": [17]}},
        "netnames": {
            "clk": {"bits": [2]},
            "reset": {"bits": [3]},
            "few": {"bits": [4]},
            "some": {"bits": ["x", 5]},
        },
    }
    assert promote(module, least=4, most=9) == [(5, "reset"), (5, "some")]
    buffers = {name: cell["connections"] for name, cell in cells.items() if cell["type"] == "DCCA"}
    assert {name: (of["CLKI"], of["CE"]) for name, of in buffers.items()} == {
        "global_0": ([3], ["1"]),
        "global_1": ([5], ["1"]),
    }
    outputs = [buffers[f"global_{n}"]["CLKO"] for n in range(2)]
    assert all(bit > 17 for [bit] in outputs) and outputs[0] != outputs[1]
    ff0, ff7 = cells["ff0"]["connections"], cells["ff7"]["connections"]
    assert (ff0["LSR"], ff0["CE"], ff0["CLK"], ff0["DI"]) == (outputs[0], [4], [2], [3]) and (
        ff7["LSR"],
        ff7["CE"],
    ) == (["0"], outputs[1])
    assert promote(module, least=4) == [] and promote(module, least=3, most=0) == []


def test_buffers_leave_the_lower_edge():
    def cell(kind, bel, **connections):
        return {
            "type": kind,
            "attributes": {"NEXTPNR_BEL": bel},
            "connections": {port: [bit] for port, bit in connections.items()},
            "port_directions": {
                port: "output" if port in ("Q", "CLKO") else "input" for port in connections
            },
        }

    cells = {
        "ff": cell("TRELLIS_FF", "X100/Y80/SLICEA.FF0", Q=7),
        "pll": cell("EHXPLLL", "X2/Y95/EHXPLL_LL", CLKO=8),
        "clock": cell("DCCA", "X67/Y0/TDCC0", CLKI=8, CLKO=9),
        "side": cell("DCCA", "X123/Y46/RDCC0", CLKI=7, CLKO=10),
        "low": cell("DCCA", "X67/Y95/BDCC1", CLKI=7, CLKO=11),
    }
    assert move({"cells": cells}) == [("low", "X123/Y46/RDCC1")]
    assert [cells[name]["attributes"]["NEXTPNR_BEL"] for name in ("clock", "side", "low")] == [
        "X67/Y0/TDCC0",
        "X123/Y46/RDCC0",
        "X123/Y46/RDCC1",
    ]
    assert move({"cells": cells}) == []
    # Buffers of ours change places until none is nearer to its driver for it; a clock's stays.
    far = {
        "left": cell("TRELLIS_FF", "X4/Y40/SLICEA.FF0", Q=7),
        "right": cell("TRELLIS_FF", "X120/Y40/SLICEA.FF0", Q=8),
        "clock": cell("DCCA", "X67/Y0/TDCC0", CLKI=8, CLKO=9),
        "global_0": cell("DCCA", "X123/Y46/RDCC0", CLKI=7, CLKO=10),
        "global_1": cell("DCCA", "X3/Y46/LDCC0", CLKI=8, CLKO=11),
    }
    assert (
        move({"cells": far}) == [("global_0", "X3/Y46/LDCC0"), ("global_1", "X123/Y46/RDCC0")]
        and move({"cells": far}) == []
    )
    lowest = {
        "ff": cell("TRELLIS_FF", "X100/Y80/SLICEA.FF0", Q=7),
        "low": cell("DCCA", "X67/Y95/BDCC1", CLKI=7, CLKO=11),
    }
    with pytest.raises(
        ValueError,
        match="low at X67/Y95/BDCC1 is at the lower edge, and no free buffer is known elsewhere",
    ):
        move({"cells": lowest})
