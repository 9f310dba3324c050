# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The refinement of a placement: what it may not change, and that paths get shorter."""

import copy
import json
import random
import re
from collections import defaultdict

import numpy as np
import pytest

from ecp5_refinement import annealed_design, annealing, placed_netlist
from ecp5_refinement.__main__ import main
from ecp5_refinement.annealed_design import wire
from ecp5_refinement.late_paths import late_paths
from ecp5_refinement.placed_netlist import Placed
from ecp5_refinement.refinement import Refinement, refine

SIDE = 24  #: tiles
OUTPUTS = ("F", "OFX", "FCO", "Q", "CLKO", "DOA0", "WADO0", "WADO1", "WADO2", "WADO3")


class Design:
    """A placed module in nextpnr's form, made cell by cell."""

    def __init__(self, seed: int):
        self.random, self.cells, self.nets = random.Random(seed), {}, 100
        self.free = [(x, y) for x in range(SIDE) for y in range(SIDE)]
        self.random.shuffle(self.free)

    def net(self) -> int:
        self.nets += 1
        return self.nets

    def cell(self, kind: str, bel: str, ports: dict, **parameters) -> None:
        ports = {port: [] if bit is None else [bit] for port, bit in ports.items()}
        self.cells[f"{kind}_{len(self.cells)}"] = {
            "type": kind,
            "parameters": parameters,
            "attributes": {"NEXTPNR_BEL": bel},
            "connections": ports,
            "port_directions": {port: "output" if port in OUTPUTS else "input" for port in ports},
        }

    def module(self) -> dict:
        return {"cells": self.cells, "attributes": {"top": "1"}}


def table(x, y, z):
    return f"X{x}/Y{y}/SLICE{'ABCD'[z // 2]}.K{z % 2}"


def register(x, y, z):
    return f"X{x}/Y{y}/SLICE{'ABCD'[z // 2]}.FF{z % 2}"


SETTINGS = {
    "CEMUX": "CE",
    "LSRMUX": "LSR",
    "SRMODE": "LSR_OVER_CE",
    "CLKMUX": "CLK",
    "GSR": "DISABLED",
}


class Cells:
    """Every kind of cell that moves or must not, in a design of their own."""

    def __init__(self, seed: int):
        d = self.d = Design(seed)
        self.clock, self.resets = d.net(), [d.net(), d.net()]
        self.enables = [None, d.net(), d.net()]
        self.known = [d.net()]  # nets that a cell may be fed by
        self.wide = d.net()
        d.cell("DCCA", "X0/Y0/TDCC0", {"CLKI": self.known[0], "CLKO": self.wide})

    def flip_flop(self, site, reset, enable, **fed):
        self.known.append(out := self.d.net())
        self.d.cell(
            "TRELLIS_FF",
            register(*site),
            {"CLK": self.clock, "LSR": reset, "CE": enable, **fed, "Q": out},
            **SETTINGS,
        )

    def tables(self):
        """Tiles of them, some with a register that they feed, and registers on their own."""
        d, known, pick = self.d, self.known, self.d.random.choice
        for _ in range(60):
            x, y = d.free.pop()
            reset = pick(self.resets)
            for pair in range(4):
                enable = pick([*self.enables, self.wide])
                for z in (2 * pair, 2 * pair + 1):
                    if d.random.random() < 0.6:
                        out = d.net()
                        d.cell(
                            "TRELLIS_COMB",
                            table(x, y, z),
                            {
                                **{p: pick(known) for p in "ABCD"[: d.random.randint(1, 4)]},
                                "F": out,
                            },
                        )
                        if d.random.random() < 0.4:
                            self.flip_flop((x, y, z), reset, enable, DI=out)
                        else:
                            known.append(out)
                    if d.random.random() < 0.2 and register(x, y, z) not in {
                        c["attributes"]["NEXTPNR_BEL"] for c in d.cells.values()
                    }:
                        self.flip_flop((x, y, z), reset, enable, M=pick(known))

    def multiplexers(self):
        """Two tables and the multiplexer behind them, in one slice, with a register or without."""
        d, known, pick = self.d, self.known, self.d.random.choice
        for n in range(24):
            x, y = d.free.pop()
            half, out = d.net(), d.net()
            d.cell("TRELLIS_COMB", table(x, y, 1), {"A": pick(known), "B": pick(known), "F": half})
            d.cell(
                "TRELLIS_COMB",
                table(x, y, 0),
                {"A": pick(known), "F1": half, "M": pick(known), "OFX": out},
            )
            if n % 2:
                self.flip_flop((x, y, 0), self.resets[0], None, DI=out)
            known.append(out)

    def distributed_ram(self):
        """Four rows of RAM and what writes them."""
        d, known, pick = self.d, self.known, self.d.random.choice
        for _ in range(4):
            x, y = d.free.pop()
            addresses = [d.net() for _ in range(4)]
            d.cell(
                "TRELLIS_RAMW",
                f"X{x}/Y{y}/SLICEC.RAMW",
                {
                    "A0": pick(known),
                    "B0": pick(known),
                    **{f"WADO{n}": bit for n, bit in enumerate(addresses)},
                },
            )
            for z in range(4):
                known.append(out := d.net())
                d.cell(
                    "TRELLIS_COMB",
                    table(x, y, z),
                    {
                        "A": pick(known[:-1]),
                        "WRE": pick(known[:-1]),
                        "F": out,
                        **{f"WAD{n}": bit for n, bit in enumerate(addresses)},
                    },
                    MODE="DPRAM",
                )
            for z in (4, 5):
                d.cell("TRELLIS_COMB", table(x, y, z), {}, MODE="RAMW_BLOCK")

    def carry_chains(self):
        """One over five tiles, two within one, one over two."""
        d, known, pick = self.d, self.known, self.d.random.choice
        for length in (36, 4, 4, 12):
            x, y = next(
                (x, y)
                for x, y in sorted(d.free)
                if all((x + n, y) in d.free for n in range(-(-length // 8)))
            )
            carry = None
            for n in range(length):
                known.append(out := d.net())
                tile = (x + n // 8, y)
                d.cell(
                    "TRELLIS_COMB",
                    table(*tile, n % 8),
                    {"A": pick(known[:-1]), "FCI": carry, "F": out, "FCO": (carry := d.net())},
                    MODE="CCU2",
                )
                if tile in d.free:
                    d.free.remove(tile)
            if length == 36:  # a register that may move, in a tile of a chain that may not
                self.flip_flop((x, y, 0), self.resets[0], None, M=pick(known))

    def block_rams(self):
        """Three, and a register that closes the loop to the first net."""
        d, known, pick = self.d, self.known, self.d.random.choice
        for n in range(3):
            x, y = d.free.pop()
            known.append(out := d.net())
            d.cell(
                "DP16KD",
                f"X{x}/Y{y}/EBR{n}",
                {"ADA0": pick(known[:-1]), "CLKA": self.clock, "DOA0": out},
            )
        d.cell(
            "TRELLIS_FF",
            register(*d.free.pop(), 0),
            {"CLK": self.clock, "LSR": self.resets[0], "M": known[-1], "Q": known[0]},
            **SETTINGS,
        )


def design(seed: int) -> dict:
    cells = Cells(seed)
    cells.tables()
    cells.multiplexers()
    cells.distributed_ram()
    cells.carry_chains()
    cells.block_rams()
    return cells.d.module()


def bels(module: dict) -> dict[str, str]:
    return {name: cell["attributes"]["NEXTPNR_BEL"] for name, cell in module["cells"].items()}


def tile_of(bel: str) -> tuple[int, int]:
    return tuple(map(int, re.match(r"X(\d+)/Y(\d+)/", bel).groups()))


def way(a: str, b: str) -> tuple[int, int]:
    (x1, y1), (x2, y2) = tile_of(a), tile_of(b)
    return x2 - x1, y2 - y1


@pytest.mark.slow  # half a minute of it compiles
@pytest.mark.parametrize("seed", range(4))
def test_a_refined_placement_is_as_legal_as_before_and_shorter(seed):
    before = design(seed)
    after = copy.deepcopy(before)
    start = Refinement(Placed(copy.deepcopy(before)))
    end = refine(after)
    old, new = bels(before), bels(after)
    moved = {name for name in old if old[name] != new[name]}
    assert len(moved) > 50 and end.worst < start.worst - 0.5 and end.wires < start.wires, (
        len(moved),
        start.worst,
        end.worst,
        start.wires,
        end.wires,
    )
    for cell in (*before["cells"].values(), *after["cells"].values()):
        del cell["attributes"]["NEXTPNR_BEL"]
    assert before == after, "nothing but places changes"
    cells = after["cells"]
    assert len(set(new.values())) == len(new), "two cells at one place"
    kind = re.compile(r".*/(EBR|SLICE|TDCC).*?(FF|K|RAMW|)\d?$")
    assert all(
        kind.fullmatch(bel).groups() == kind.fullmatch(old[name]).groups()
        for name, bel in new.items()
    ), "a cell at a place of another kind"
    at, shared, by_slice = (
        {bel: name for name, bel in new.items()},
        defaultdict(set),
        defaultdict(set),
    )
    drivers = {
        bit: name
        for name, cell in cells.items()
        for port, bits in cell["connections"].items()
        if port in OUTPUTS
        for bit in bits
    }
    for name, cell in cells.items():
        ports, tile = cell["connections"], tile_of(new[name])
        if cell["type"] == "TRELLIS_FF":
            shared[tile].add(tuple(ports["LSR"]))
            by_slice[new[name].split(".")[0]].add(tuple(ports.get("CE", [])))
            if "DI" in ports:
                assert at[new[name].replace("FF", "K")] == drivers[ports["DI"][0]], (
                    f"{name} has lost its table"
                )
            else:
                table_here = at.get(new[name].replace("FF", "K"))
                assert table_here is None or "M" not in cells[table_here]["connections"], (
                    f"{name} takes a multiplexer's input"
                )
        if "F1" in ports:
            assert (
                new[name].endswith("K0") and new[drivers[ports["F1"][0]]] == new[name][:-1] + "1"
            ), "a multiplexer and its second table are one slice"
        if "WAD0" in ports:
            assert tile_of(new[drivers[ports["WAD0"][0]]]) == tile, (
                "a RAM and what writes it are one tile"
            )
            assert new[name].split("/")[2] == old[name].split("/")[2], (
                "a RAM keeps its place in its tile"
            )
        if ports.get("FCI"):
            source = drivers[ports["FCI"][0]]
            assert way(new[source], new[name]) == way(old[source], old[name]), (
                "a chain has been torn"
            )
    assert all(len(each) == 1 for each in (*shared.values(), *by_slice.values())), (
        "registers that share a wire disagree"
    )
    assert not set(shared) & {
        tile_of(new[name]) for name, cell in cells.items() if cell["type"] == "TRELLIS_RAMW"
    }, "a register where a RAM is written"
    known = start.placed
    stays = {
        name for name, run in zip(known._names, known.run, strict=True) if run > annealing.LONGEST
    }
    free = {
        name
        for name, cell in zip(known._names, start.design.cells, strict=True)
        if cell["freedom"] <= 2
    }
    assert len(stays) == 36 and not stays & (moved | free), (
        "a chain may move that is longer than what a move can hold"
    )


def test_block_rams_change_places():
    d = Design(0)
    for place, other in (("X2/Y2/EBR0", (20, 20)), ("X20/Y20/EBR1", (2, 3))):
        out = d.net()
        d.cell("DP16KD", place, {"DOA0": out})
        d.cell("TRELLIS_FF", register(*other, 0), {"M": out, "Q": d.net()})
    module = d.module()
    refinement = refine(module, epochs=20)
    assert (
        list(bels(module).values())[::2] == ["X20/Y20/EBR1", "X2/Y2/EBR0"]
        and refinement.worst < 6.5
    )


def ram_far_from_its_register(settings: dict) -> dict:
    """Two block RAMs, at opposite corners of the grid of sites: (2, 20) and (20, 2). Each one's
    register is at a corner where no block RAM stands."""
    d = Design(0)
    for place, other in (("X2/Y20/EBR0", (2, 3)), ("X20/Y2/EBR1", (20, 19))):
        out = d.net()
        d.cell("DP16KD", place, {"DOA0": out})
        d.cell("TRELLIS_FF", register(*other, 0), {"M": out, "Q": d.net()})
    return d.module() | {"settings": settings}


def test_a_block_ram_goes_to_a_free_site(monkeypatch):
    """Where the sites that are taken tell the device's whole grid, a block RAM may go to any of it,
    by the name of that column."""
    monkeypatch.setitem(placed_netlist._BLOCK_RAMS, "two by two", 4)
    module = ram_far_from_its_register({"arch.type": "two by two"})
    refinement = refine(module, epochs=20)
    assert list(bels(module).values())[::2] == ["X2/Y2/EBR0", "X20/Y20/EBR1"]
    assert refinement.worst == pytest.approx(max(Refinement(Placed(module)).arrivals))


def test_a_block_ram_is_offered_sites_where_its_wires_lead():
    """One in four at random, the others near: of eight drawn from a grid the nearest is a third as
    far away as one is. Each site is offered now and then."""
    d = Design(0)
    out = d.net()
    for x in range(2, 22, 2):
        for y in range(2, 22, 2):
            d.cell("DP16KD", f"X{x}/Y{y}/EBR0", {"DOA0": out if (x, y) == (2, 2) else d.net()})
    d.cell("TRELLIS_FF", register(19, 18, 0), {"M": out, "Q": d.net()})
    refinement = Refinement(Placed(d.module()))
    cells = refinement.design.cells
    offered = [cells[annealing._block_ram_for(refinement.design, 0, 0.0)] for _ in range(2000)]
    far = [abs(int(cell["x"]) - 19) + abs(int(cell["y"]) - 18) for cell in offered]
    of_all = np.mean([abs(x - 19) + abs(y - 18) for x in range(2, 22, 2) for y in range(2, 22, 2)])
    assert (
        np.mean(far) < 0.55 * of_all
        and len({(int(cell["x"]), int(cell["y"])) for cell in offered}) == 100
    )


@pytest.mark.parametrize(("device", "sites"), [("two by two", 5), ("another", 4)])
def test_no_site_is_made_up(monkeypatch, device, sites):
    """A device with other sites than the grid of those that are taken, or that is not known: they
    change places with each other alone."""
    monkeypatch.setitem(placed_netlist._BLOCK_RAMS, "two by two", sites)
    module = ram_far_from_its_register({"arch.type": device})
    refine(module, epochs=20)
    assert set(list(bels(module).values())[::2]) == {"X2/Y20/EBR0", "X20/Y2/EBR1"}


def test_paths_are_the_longest_over_each_wire():
    module = design(11)
    placed = Placed(module)
    into = defaultdict(list)
    for arc in placed.arcs:
        into[arc.to].append(arc)

    def ns(arc):
        source = placed.driver[arc.net]
        return (
            arc.wire
            if arc.wire >= 0
            else wire(placed.x[source], placed.y[source], placed.x[arc.cell], placed.y[arc.cell])
        )

    known = {}

    def arrival(net):
        if net not in known:
            known[net] = max(
                (arrival(arc.net) + ns(arc) + arc.ns for arc in into[net]), default=0.0
            )
            known[net] = max(known[net], placed.start[net])
        return known[net]

    out_of = defaultdict(list)
    for arc in placed.arcs:
        out_of[arc.net].append(arc)
    rest = {-1: 0.0}

    def remaining(net):
        if net not in rest:
            rest[net] = max(
                (ns(arc) + arc.ns + remaining(arc.to) for arc in out_of[net]), default=0.0
            )
        return rest[net]

    refinement = Refinement(placed)
    assert [round(float(each), 5) for each in refinement.design.arcs["wire"]] == [
        round(ns(arc), 5) for arc in placed.arcs
    ]
    assert len(refinement.arrivals) > 100
    for path, arc in zip(refinement.design.arcs["path"], placed.arcs, strict=True):
        assert path == pytest.approx(arrival(arc.net) + ns(arc) + arc.ns + remaining(arc.to))


def test_moves_keep_account():
    """What moves change of wires, half perimeters and sites is what measuring afresh finds; a move
    that is not made changes nothing."""
    refinement = Refinement(Placed(design(5)))
    at = refinement.design
    for step in range(3000):
        annealed_design.appraise(at, 12.0)  # what paths cost is what a longer wire may be worth
        before = at.arcs.copy(), at.nets.copy()
        made = annealing.anneal(at, refinement.scratch, 12.0, 0.06, 0.3, 12, refinement.movable, 1)
        arcs, nets = at.arcs.copy(), at.nets.copy()
        if not made:
            assert all(
                (a[name] == b[name]).all()
                for a, b in zip(before, (arcs, nets), strict=True)
                for name in a.dtype.names
                if name != "seen"
            ), step
        annealed_design.measure(at)
        assert np.allclose(arcs["wire"], at.arcs["wire"]) and np.allclose(
            nets["length"], at.nets["length"]
        ), step
    for sites, kind in ((at.table, 0), (at.register, 1)):
        for site in np.nonzero(sites >= 0)[0]:
            cell = at.cells[sites[site]]
            assert (
                cell["kind"] == kind and 8 * (cell["y"] * at.width + cell["x"]) + cell["z"] == site
            )
    assert (at.writer >= 0).any() and (at.cells["price"] > 0).any()
    for tile in np.nonzero(at.writer >= 0)[0]:
        cell = at.cells[at.writer[tile]]
        assert cell["y"] * at.width + cell["x"] == tile


def test_half_perimeters_count_for_more_where_many_wires_are():
    at = Refinement(Placed(design(5))).design
    enough = 2.0
    total = annealed_design.spread(at, enough)
    annealed_design.measure(at)
    boxes = []
    for net in at.nets:
        cells = at.cells[at.members[net["pins"] : net["pins_end"]]]
        boxes.append(
            (
                slice(cells["y"].min(), cells["y"].max() + 1),
                slice(cells["x"].min(), cells["x"].max() + 1),
            )
            if len(cells) > 1
            else None
        )
    lengths = [
        0 if box is None else sum(side.stop - side.start - 1 for side in box) for box in boxes
    ]
    over = np.zeros((at.height, at.width))
    for box, length in zip(boxes, lengths, strict=True):
        if length:
            over[box] += length / over[box].size
    more = 2.0 * np.maximum(0, over / enough - 1)
    assert total == sum(lengths) and (more > 0).any() and (more == 0).any()
    wanted = [
        length and length * (1 + more[box].mean())
        for box, length in zip(boxes, lengths, strict=True)
    ]
    assert np.allclose(at.nets["length"], wanted)


def test_a_wire_gets_longer_with_each_tile():
    lengths = [wire(5, 5, 5 + n, 5) for n in range(20)]
    assert lengths == sorted(lengths) and wire(0, 0, 3, 9) == wire(9, 0, 6, 9) == pytest.approx(
        0.69 + 0.10 * (3 + 4) + 0.05 * (9 - 4)
    )


def test_a_placement_that_is_not_legal_is_refused():
    module = design(3)
    one = next(
        cell
        for cell in module["cells"].values()
        if cell["type"] == "TRELLIS_FF" and cell["connections"]["LSR"] == [102]
    )
    x, y = tile_of(one["attributes"]["NEXTPNR_BEL"])
    other = copy.deepcopy(one)
    other["connections"] |= {"LSR": [103], "Q": [99999]}
    taken = set(bels(module).values())
    other["attributes"]["NEXTPNR_BEL"] = next(
        bel for bel in (register(x, y, z) for z in range(8)) if bel not in taken
    )
    module["cells"]["one_more"] = other
    with pytest.raises(
        ValueError, match=rf"1 tiles are not legal before refinement, the first one \({x}, {y}\)"
    ):
        refine(module, epochs=20)


def test_the_command_changes_places_alone(tmp_path, capsys):
    module = design(11)
    (tmp_path / "placed.json").write_text(json.dumps({"modules": {"top": module}}))
    assert main([str(tmp_path / "placed.json"), str(tmp_path / "out.json"), "--epochs", "5"]) == 0
    assert "after 5 epochs: worst" in capsys.readouterr().out
    after = json.loads((tmp_path / "out.json").read_text())["modules"]["top"]
    assert bels(after) != bels(module) and {path.name for path in tmp_path.iterdir()} == {
        "placed.json",
        "out.json",
    }
    for cell in (*module["cells"].values(), *after["cells"].values()):
        del cell["attributes"]["NEXTPNR_BEL"]
    assert after == json.loads(json.dumps(module))


def test_late_paths_are_told_with_their_wires(tmp_path):
    module = design(11)
    (tmp_path / "refined.json").write_text(
        json.dumps({"modules": {"blackbox": {"cells": {}}, "top": module}})
    )
    refinement = Refinement(placed := Placed(module))
    arrivals = sorted(refinement.arrivals)
    above = float(arrivals[len(arrivals) // 2])
    groups = late_paths(tmp_path / "refined.json", above=above)
    assert sum(group.ends for group in groups) == sum(each > above for each in arrivals) > 50
    assert [group.ns for group in groups] == sorted(
        (group.ns for group in groups), reverse=True
    ) and groups[0].ns == pytest.approx(refinement.worst)
    names = list(module["cells"])
    for group in groups:
        assert group.wires[0].driver == group.begin
        cells = [names.index(each) for each in (*(each.driver for each in group.wires), group.end)]
        tables = 0.0
        for each, cell, after in zip(group.wires, cells[:-1], cells[1:], strict=True):
            assert (each.x, each.y) == (placed.x[cell], placed.y[cell])
            arcs = [
                arc for arc in placed.arcs if placed.driver[arc.net] == cell and arc.cell == after
            ]
            assert arcs and each.loads == max(
                sum(other.net == arc.net for other in placed.arcs) for arc in arcs
            )
            tables += max(arc.ns for arc in arcs)
        start = max(
            placed.start[net] for net, driver in enumerate(placed.driver) if driver == cells[0]
        )
        assert group.ns <= start + sum(each.ns for each in group.wires) + tables + 1e-3
    assert late_paths(tmp_path / "refined.json", above=refinement.worst) == []


def test_late_paths_of_what_is_no_netlist(tmp_path):
    (tmp_path / "refined.json").write_text('{"modules": {"part": {"cells": {}}}}')
    with pytest.raises(ValueError, match="no module of it is the top"):
        late_paths(tmp_path / "refined.json", above=11.0)


def test_no_more_tiles_move_than_there_is_room_for():
    """A register in the tile of a chain that is longer takes all of it along, and as many tiles of
    anything come back."""
    d = Design(3)
    for x in range(2, 12):
        for z in range(8):
            d.cell("TRELLIS_COMB", table(x, 5, z), {"A": d.net(), "F": (out := d.net())})
            d.cell("TRELLIS_FF", register(x, 5, z), {"M": out, "Q": d.net()})
    at, room = (refinement := Refinement(Placed(d.module()))).design, len(refinement.scratch.theirs)
    first = 5 * at.width + 2
    for tiles in range(1, annealing.LONGEST + 1):
        assert (
            annealing._stands(
                at, first, 0, 8 * tiles, 2, refinement.scratch.theirs, refinement.scratch.theirs_at
            )
            == 16 * tiles
            <= room
        )
    assert (
        annealing._stands(
            at,
            first,
            0,
            8 * (annealing.LONGEST + 1),
            2,
            refinement.scratch.theirs,
            refinement.scratch.theirs_at,
        )
        == -1
    )
