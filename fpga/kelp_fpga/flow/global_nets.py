# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Resets and enables of hundreds of registers onto an ECP5's clock network, which reaches every
register in a nanosecond or two.

`python -m kelp_fpga.flow.global_nets promote NETLIST OUTPUT`, a step of :mod:`.build`: nextpnr does
this for clocks alone, and routes other nets over the network only behind a DCCA buffer. On a device
that is 70 % full, ordinary wires from one register to 19 000 resets, or 600 enables, take 8 to 14
ns.

`python -m kelp_fpga.flow.global_nets move PLACED OUTPUT`, after placement: ecppack's database lacks
a way into the buffers at the device's lower edge (`G_JLLMPCLKCIB3`), which nextpnr takes.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

from kelp_spec.files import write_whole

__all__ = ["LEAST", "MOST", "move", "promote"]

LEAST = 256  #: pins: below that, the way to the buffer and back costs more than it saves
MOST = 14  #: of the 16 nets that each quarter of the device has; the clock is another
_PINS = {"TRELLIS_FF": ("LSR", "CE")}
_PLACES = 12  #: of buffers at an edge, at least


def promote(module: dict, *, least: int = LEAST, most: int = MOST) -> list[tuple[int, str]]:
    """Put a DCCA before the reset and enable pins of the nets that have the most of them; other
    pins of those nets stay where they were.

    Parameters
    ----------
    module : dict
        A module of Yosys's JSON, of ECP5 cells; changed in place.
    least, most : int
        Fewest pins for a net to be worth it; most nets.

    Returns
    -------
    (pins, name) of each such net, most pins first.
    """
    pins: dict[int, list[tuple[dict, str]]] = defaultdict(list)
    driven, clocked = set(), set()
    for cell in module["cells"].values():
        for port, [bit, *_] in ((port, bits) for port, bits in cell["connections"].items() if bits):
            if cell["port_directions"][port] == "output" and cell["type"] == "DCCA":
                driven.add(bit)
            if port == "CLK":
                clocked.add(bit)
            if port in _PINS.get(cell["type"], ()) and isinstance(bit, int):
                pins[bit].append((cell["connections"], port))
    chosen = sorted(
        (
            item
            for item in pins.items()
            if len(item[1]) >= least and item[0] not in driven | clocked
        ),
        key=lambda item: -len(item[1]),
    )[:most]
    names: dict[int, str] = {}
    for name, net in module["netnames"].items():
        for bit in net["bits"]:
            if isinstance(bit, int) and len(name) < len(names.get(bit, name + " ")):
                names[bit] = name
    unused = 1 + max(
        (
            bit
            for net in (*module["netnames"].values(), *module["ports"].values())
            for bit in net["bits"]
            if isinstance(bit, int)
        ),
        default=1,
    )
    for n, (bit, users) in enumerate(chosen):
        module["cells"][f"global_{n}"] = {
            "hide_name": 0,
            "type": "DCCA",
            "parameters": {},
            "attributes": {},
            "port_directions": {"CLKI": "input", "CE": "input", "CLKO": "output"},
            "connections": {"CLKI": [bit], "CE": ["1"], "CLKO": [unused + n]},
        }
        module["netnames"][f"global_{n}"] = {"hide_name": 0, "bits": [unused + n], "attributes": {}}
        for connections, port in users:
            connections[port] = [unused + n]
    return [(len(users), names.get(bit, str(bit))) for bit, users in chosen]


def move(module: dict) -> list[tuple[str, str]]:
    """Take buffers off the lower edge: each to a free place beside another one, as near to its
    driver as there is; then exchange those of `promote` while that brings them nearer to theirs,
    the furthest first of all.

    Parameters
    ----------
    module : dict
        Of nextpnr's JSON, placed and not routed; changed in place.

    Returns
    -------
    (cell, its new place)

    Raises
    ------
    ValueError
        No buffer is off the lower edge, or there is no free place beside those that are.
    """
    bels = {
        name: cell["attributes"]["NEXTPNR_BEL"]
        for name, cell in module["cells"].items()
        if "NEXTPNR_BEL" in cell.get("attributes", {})
    }
    places = {
        name: re.fullmatch(r"X(\d+)/Y(\d+)/([TLRB])DCC(\d+)", bels[name])
        for name, cell in module["cells"].items()
        if cell["type"] == "DCCA"
    }
    used = {bels[name] for name in places}
    sides = {
        place[0].rstrip("0123456789"): (int(place[1]), int(place[2]))
        for place in places.values()
        if place[3] != "B"
    }
    drivers = {
        bit: name
        for name, cell in module["cells"].items()
        for port, bits in cell["connections"].items()
        if cell["port_directions"][port] == "output"
        for bit in bits
    }

    def way(name: str, place: str) -> int:
        """Tiles from a buffer's driver to a place."""
        at, to = (
            tuple(map(int, re.match(r"X(\d+)/Y(\d+)/", bel).groups()))
            for bel in (bels[drivers[module["cells"][name]["connections"]["CLKI"][0]]], place)
        )
        return abs(at[0] - to[0]) + abs(at[1] - to[1])

    before = {name: bels[name] for name in sorted(places)}
    now = dict(before)
    for name in now:
        if places[name][3] == "B":
            free = [
                place
                for side in sides
                for k in range(_PLACES)
                if (place := f"{side}{k}") not in used
            ]
            if not free:
                raise ValueError(
                    f"{name} at {before[name]} is at the lower edge, and no free buffer is "
                    + "known elsewhere"
                )
            now[name] = min(free, key=lambda place: (way(name, place), place))
            used.add(now[name])
    ours = [name for name in now if name.startswith("global_")]
    better = True
    while better:
        better = False
        for a, b in itertools.combinations(ours, 2):
            if (
                way(a, now[b]) ** 2 + way(b, now[a]) ** 2
                < way(a, now[a]) ** 2 + way(b, now[b]) ** 2
            ):
                now[a], now[b], better = now[b], now[a], True
    moved = [(name, place) for name, place in now.items() if place != before[name]]
    for name, place in moved:
        module["cells"][name]["attributes"]["NEXTPNR_BEL"] = place
    return moved


def main(what: str, source: str, target: str) -> int:
    design = json.loads(Path(source).read_text(encoding="utf-8"))
    [top] = [
        module
        for module in design["modules"].values()
        if int(module.get("attributes", {}).get("top", "0"), 2)
    ]
    for figure, name in {"promote": promote, "move": move}[what](top):
        print(figure, name)
    write_whole(Path(target), json.dumps(design))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
