# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A placed ECP5 netlist as nextpnr writes it: which cell is where, which may share a slice, which
signal goes from which cell to which. Plain Python.

Sites are (x, y, z): the tile, and which of its eight places for a table and a register, two to a
slice (SLICEA.K0 and SLICEA.FF0 are z = 0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Arc", "Placed"]

#: ns at speed 6, from the delays in nextpnr's own reports.
CLOCK_TO_OUT = {"TRELLIS_FF": 0.52, "DP16KD": 5.6, "TRELLIS_COMB": 0.0, "DCCA": 0.0}
_OTHER_START, _MULTIPLY, _CLOCK_NETWORK, _WITHIN_SLICE = 0.5, 5.0, 0.8, 0.1
_CLOCKS = ("CLK", "CLKA", "CLKB", "WCK")
# inputs with a wire of their own from a neighbour
_CHAINED = ("FXA", "FXB", "F1", "FCI", "DI")
_WRITE = ("WAD0", "WAD1", "WAD2", "WAD3", "WD")
#: (output, input) → ns through a table, its multiplexers, its carry chain.
_THROUGH = (
    {("F", p): 0.24 for p in "ABCD"}
    | {("OFX", p): 0.44 for p in "ABCD"}
    | {("OFX", p): 0.2 for p in ("M", "FXA", "FXB", "F1")}
    | {("FCO", p): 0.45 for p in "ABCD"}
    | {("F", "FCI"): 0.45, ("FCO", "FCI"): 0.07}
)
#: nextpnr's name of a device → block RAMs on it.
_BLOCK_RAMS = {
    f"lfe5u{kind}_{size}f": count
    for kind in ("", "m", "m5g")
    for size, count in ((25, 56), (45, 108), (85, 208))
}
_MULTIPLIED = re.compile(r"[AB]\d+")
_SLICE = re.compile(r"SLICE([ABCD])\.(K|FF|RAMW)(\d?)")


@dataclass(frozen=True, slots=True)
class Arc:
    """From a net over a wire into `cell`, and through it to the net `to`, or no further (-1)."""

    net: int
    cell: int
    ns: float  #: through the cell
    to: int
    wire: float  #: ns where the wire does not depend on places, else -1


class Placed:
    """What of a design's cells stands where.

    Parameters
    ----------
    module : dict
        The top of nextpnr's JSON, placed. `store` changes it.

    Attributes
    ----------
    cells, types, x, y, z : list
        Per cell; z is -1 outside slices.
    table, register : dict
        Site → cell. `ram_writer`: (x, y) → cell. `block_rams`: cells. `block_ram_sites`: (x, y) →
        name, of the free ones as well.
    freedom : list[int]
        Per cell: 0 may go to any site, 1 only with its slice, 2 with its tile, 3 stays.
    run, run_at : list[int]
        Per cell: tiles of the carry chain that it is part of (1 of what is none), and which of them
        it is in.
    tied : list[bool]
        Registers that are fed by the table at their own site.
    driver, start : list
        Per net: its cell, and when it leaves that.
    arcs : list[Arc]
    """

    def __init__(self, module: dict):
        self._names, self.cells = list(module["cells"]), list(module["cells"].values())
        self.types = [cell["type"] for cell in self.cells]
        count = len(self.cells)
        self.x, self.y, self.z = [0] * count, [0] * count, [-1] * count
        self._place = [""] * count
        self.table: dict[tuple, int] = {}
        self.register: dict[tuple, int] = {}
        self.ram_writer: dict[tuple, int] = {}
        for n, cell in enumerate(self.cells):
            if bel := cell.get("attributes", {}).get("NEXTPNR_BEL"):
                self._stand(n, bel)
        self.block_rams = [n for n, kind in enumerate(self.types) if kind == "DP16KD"]
        self.block_ram_sites = self._block_ram_sites(
            module.get("settings", {}).get("arch.type", "")
        )
        self.tiles = {site[:2] for site in self.table}
        self._connect()
        self._judge()

    def _stand(self, n: int, bel: str) -> None:
        x, y, place = re.fullmatch(r"X(\d+)/Y(\d+)/(.*)", bel).groups()
        self.x[n], self.y[n], self._place[n] = int(x), int(y), place
        if found := _SLICE.fullmatch(place):
            letter, kind, lane = found.groups()
            if kind == "RAMW":
                self.ram_writer[self.x[n], self.y[n]] = n
            else:
                self.z[n] = 2 * "ABCD".index(letter) + int(lane)
                (self.table if kind == "K" else self.register)[self.x[n], self.y[n], self.z[n]] = n

    def _block_ram_sites(self, device: str) -> dict[tuple, str]:
        """They stand in rows that are all alike: where the rows and columns in which one is taken
        make up the whole device, the free ones are known."""
        taken = {(self.x[n], self.y[n]): self._place[n] for n in self.block_rams}
        column = {x: name for (x, _), name in taken.items()}
        grid = {
            (x, y): name
            for y in sorted({y for _, y in taken})
            for x, name in sorted(column.items())
        }
        return (
            grid
            if len(grid) == _BLOCK_RAMS.get(device)
            and all(grid[site] == name for site, name in taken.items())
            else taken
        )

    def net(self, n: int, port: str) -> int | None:
        """The bit at a port, None when it is open or constant."""
        bits = self.cells[n]["connections"].get(port)
        return bits[0] if bits and isinstance(bits[0], int) else None

    def _ports(self, n: int, direction: str) -> list[tuple[str, int]]:
        return [
            (port, bit)
            for port, way in self.cells[n]["port_directions"].items()
            if way == direction and (bit := self.net(n, port)) is not None
        ]

    def _connect(self) -> None:
        drivers = {
            bit: (n, port)
            for n in range(len(self.cells))
            if not self._names[n].startswith("$PACKER")
            for port, bit in self._ports(n, "output")
        }
        number = {bit: net for net, bit in enumerate(sorted(drivers))}
        self.driver = [drivers[bit][0] for bit in sorted(drivers)]
        self.start = [CLOCK_TO_OUT.get(self.types[n], _OTHER_START) for n in self.driver]
        self.arcs: list[Arc] = []
        for n, kind in enumerate(self.types):
            outputs = self._ports(n, "output")
            for port, bit in self._ports(n, "input"):
                if bit not in drivers or port in _CLOCKS:
                    continue
                source, out = drivers[bit]
                by_port = (
                    0.0
                    if port in _CHAINED or out == "FCO"
                    else _WITHIN_SLICE
                    if port in _WRITE
                    else -1.0
                )
                wire = _CLOCK_NETWORK if self.types[source] == "DCCA" else by_port
                for through, to in self._through(kind, port, outputs):
                    self.arcs.append(
                        Arc(number[bit], n, through, -1 if to is None else number[to], wire)
                    )

    @staticmethod
    def _through(
        kind: str, port: str, outputs: list[tuple[str, int]]
    ) -> list[tuple[float, int | None]]:
        if kind == "TRELLIS_COMB":
            return (
                [(0.0, None)]
                if port == "WRE"
                else [(_THROUGH[out, port], to) for out, to in outputs if (out, port) in _THROUGH]
            )
        if kind == "DCCA":
            return [(0.0, to) for _, to in outputs] if port == "CLKI" else []
        if kind == "MULT18X18D" and _MULTIPLIED.fullmatch(port):
            return [(_MULTIPLY, to) for _, to in outputs]
        return (
            [(0.0, None)] if kind in ("TRELLIS_FF", "DP16KD", "TRELLIS_RAMW", "MULT18X18D") else []
        )

    def _judge(self) -> None:
        """What may move, and the settings that registers share."""
        combs = [n for n, kind in enumerate(self.types) if kind == "TRELLIS_COMB"]
        wide = {self.net(n, port) for n in combs for port in ("FXA", "FXB")} - {None}
        halves = {self.net(n, "F1"): self.net(n, "OFX") for n in combs} | {None: None}
        self.freedom = [3] * len(self.cells)
        self.tied, self.takes_m = [False] * len(self.cells), [False] * len(self.cells)
        self.shared: dict[int, tuple] = {}
        for n, cell in enumerate(self.cells):
            settings = cell.get("parameters", {})
            if self.types[n] == "TRELLIS_FF":
                self.freedom[n], self.tied[n] = 0, self.net(n, "DI") is not None
                self.shared[n] = (
                    (self.net(n, "CE"), settings.get("CEMUX"), settings.get("GSR")),
                    (
                        self.net(n, "LSR"),
                        settings.get("LSRMUX"),
                        settings.get("SRMODE"),
                        self.net(n, "CLK"),
                        settings.get("CLKMUX"),
                    ),
                )
            elif self.types[n] == "TRELLIS_RAMW":
                self.freedom[n] = 2
            elif self.types[n] == "TRELLIS_COMB":
                self.takes_m[n] = self.net(n, "OFX") is not None
                self.freedom[n] = self._table_freedom(
                    n, settings.get("MODE", "LOGIC"), wide, halves
                )
        self._free_chains(combs)

    def _table_freedom(self, n: int, mode: str, wide: set, halves: dict) -> int:
        if mode in ("DPRAM", "RAMW_BLOCK"):
            return 2
        if mode != "LOGIC":
            return 3
        if (
            self.net(n, "FXA") is not None
            or self.net(n, "FXB") is not None
            or self.net(n, "OFX") in wide
            or halves.get(self.net(n, "F")) in wide
        ):
            return 2
        return (
            1
            if self.net(n, "OFX") is not None
            or self.net(n, "F1") is not None
            or (self.net(n, "F") or -1) in halves
            else 0
        )

    def _free_chains(self, combs: list[int]) -> None:
        """A carry chain moves with its tiles, which are neighbours in a row."""
        self.run, self.run_at = [1] * len(self.cells), [0] * len(self.cells)
        takes = {bit: n for n in combs if (bit := self.net(n, "FCI")) is not None}
        for n in combs:
            if self.freedom[n] != 3 or self.net(n, "FCI") is not None:
                continue
            chain = [n]
            while (bit := self.net(chain[-1], "FCO")) in takes and bit is not None:
                chain.append(takes[bit])
            tiles = sorted({(self.y[each], self.x[each]) for each in chain})
            (y, x), run = tiles[0], len(tiles)
            if tiles == [(y, x + k) for k in range(run)]:
                for each in chain:
                    self.freedom[each], self.run[each], self.run_at[each] = 2, run, self.x[each] - x

    def legal(self, x: int, y: int) -> bool:
        """Whether a tile's registers agree: on clock and reset in the tile, on the enable in each
        slice; and none takes the input that a multiplexer takes."""
        tile = None
        for z in range(8):
            if z % 2 == 0:
                pair = None
            if (n := self.register.get((x, y, z))) is None:
                continue
            enable, reset = self.shared[n]
            if (pair is not None and pair != enable) or (tile is not None and tile != reset):
                return False
            pair, tile = enable, reset
            table = self.table.get((x, y, z))
            if (
                self.tied[n]
                and table is None
                or table is not None
                and self.takes_m[table]
                and not self.tied[n]
            ):
                return False
        return True

    def arrange(self, x: list[int], y: list[int], z: list[int]) -> None:
        """Every cell to these places."""
        before = [
            len(places) for places in (self.table, self.register, self.ram_writer, self.block_rams)
        ]
        self.x, self.y, self.z = x, y, z
        for n in self.block_rams:
            self._place[n] = self.block_ram_sites[x[n], y[n]]
        self.table, self.register, self.ram_writer = {}, {}, {}
        for n, kind in enumerate(self.types):
            if kind == "TRELLIS_RAMW" and self._place[n]:
                self.ram_writer[x[n], y[n]] = n
            elif z[n] >= 0:
                (self.register if kind == "TRELLIS_FF" else self.table)[x[n], y[n], z[n]] = n
        if before != [
            len(places)
            for places in (
                self.table,
                self.register,
                self.ram_writer,
                {(x[n], y[n]) for n in self.block_rams},
            )
        ]:
            raise ValueError("two cells are at one place")

    def store(self) -> int:
        """Write the places into the module's attributes; how many have changed."""
        changed = 0
        for n, cell in enumerate(self.cells):
            if not self._place[n]:
                continue
            place = self._place[n]
            if self.z[n] >= 0:
                kind = "FF" if self.types[n] == "TRELLIS_FF" else "K"
                place = f"SLICE{'ABCD'[self.z[n] // 2]}.{kind}{self.z[n] % 2}"
            after = f"X{self.x[n]}/Y{self.y[n]}/{place}"
            changed += after != cell["attributes"]["NEXTPNR_BEL"]
            cell["attributes"]["NEXTPNR_BEL"] = after
        return changed
