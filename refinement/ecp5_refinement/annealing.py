# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Exchanges of cells on a placed ECP5 by simulated annealing: the loops of :mod:`.refinement`,
compiled.

A move takes what may only go together (a table, a register, both, a slice, a tile, the tiles of a
carry chain, a block RAM) and what stands where it would go, and exchanges them. Its cost is that of
the nets' half perimeters and of the paths over every wire that changes (:mod:`.annealed_design`);
the arrivals at and the ways after the cells that move are followed exactly, those of others are as
old as the last `measure`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .annealed_design import compiled, length_of, path_of, price_of, wire_of

__all__ = ["LONGEST", "anneal", "scratch"]

LONGEST = 4  #: tiles of a carry chain that moves
_WEAK = 0.05  #: what the middle of a cell's wires gives a wire that is not late
_SEEN = 16  #: wires of a net or a cell that are looked at for that
_TABLE, _REGISTER, _WRITER, _BLOCK_RAM = 0, 1, 2, 3  # kinds of cells
_ALONE, _SLICE, _TILE = 0, 1, 2  # freedoms
_BOTH = 2  # what moves of a single site: the table, the register, both
# one of so many moves takes the whole tile along: what stands together on a path gets stuck else,
# as each of it leaves the others behind
_WHOLE = 16
_DRAWN = 8  #: block RAMs
_MOST = 17 * LONGEST  # cells of one side of a move


class Scratch(NamedTuple):
    """What one move needs, so that none is allocated."""

    arcs: np.ndarray
    old_wire: np.ndarray
    new_path: np.ndarray
    nets: np.ndarray
    old_arrival: np.ndarray
    old_left: np.ndarray
    changed: np.ndarray
    new_length: np.ndarray
    mine: np.ndarray
    mine_at: np.ndarray
    theirs: np.ndarray
    theirs_at: np.ndarray
    both: np.ndarray
    stamp: np.ndarray


def scratch(arcs: int, nets: int) -> Scratch:
    """Room for any move in a design of so many arcs and nets."""
    counts = (
        (arcs, "i4"),
        (arcs, "f8"),
        (arcs, "f8"),
        (nets, "i4"),
        (nets, "f8"),
        (nets, "f8"),
        (nets, "i4"),
        (nets, "f8"),
    )
    return Scratch(
        *(np.zeros(*each) for each in counts),
        *(np.zeros(_MOST, "i4") for _ in range(4)),
        np.zeros(2 * _MOST, "i4"),
        np.zeros(1, "i4"),
    )


@compiled(inline="always")
def _draw(random, below):
    word = random[0]
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    random[0] = word
    return np.int64((word >> np.uint64(11)) % np.uint64(below))


@compiled
def _legal(cells, tables, registers, tile):
    """As `Placed.legal`."""
    reset = -1
    for pair in range(4):
        enable = -1
        for site in (8 * tile + 2 * pair, 8 * tile + 2 * pair + 1):
            if registers[site] < 0:
                continue
            register = cells[registers[site]]
            if (enable >= 0 and register.enable != enable) or (
                reset >= 0 and register.reset != reset
            ):
                return False
            enable, reset = register.enable, register.reset
            if register.tied:
                if tables[site] < 0:
                    return False
            elif tables[site] >= 0 and cells[tables[site]].takes_m:
                return False
    return True


@compiled
def _stands(design, tile, z, count, what, found_cells, places):
    """What would go from `count` places on: how many cells, -1 when they may not. `what`: of a
    single place the table, the register or both."""
    found, cells = 0, design.cells
    if count > 8 * LONGEST:  # there is no room for more in `found_cells`
        return -1
    for n in range(count):
        site = 8 * tile + z + n
        table, register = design.table[site], design.register[site]
        if count == 1:
            tied = register >= 0 and cells[register].tied
            if (what != _BOTH and tied) or (
                what != _REGISTER and table >= 0 and cells[table].freedom != _ALONE
            ):
                return -1
            if what == _REGISTER:
                table = -1
            elif what == _TABLE:
                register = -1
        elif table >= 0:
            run = cells[table].run
            if (
                cells[table].freedom > (_SLICE if count == 2 else _TILE)
                or run > 1
                and (8 * run != count or cells[table].run_at != n // 8)
            ):
                return -1
        if register >= 0 and cells[register].freedom != _ALONE:
            return -1
        if table >= 0:
            found_cells[found], places[found] = table, n
            found += 1
        if register >= 0:
            found_cells[found], places[found] = register, n
            found += 1
    for n in range(count // 8):
        if design.writer[tile + n] >= 0:
            found_cells[found], places[found] = design.writer[tile + n], 8 * n
            found += 1
    return found


@compiled
def _take(design, moved, count):
    for n in range(count):
        cell = design.cells[moved[n]]
        tile = cell.y * design.width + cell.x
        if cell.kind == _WRITER:
            design.writer[tile] = -1
        elif cell.kind == _TABLE:
            design.table[8 * tile + cell.z] = -1
        elif cell.kind == _REGISTER:
            design.register[8 * tile + cell.z] = -1


@compiled
def _put(design, moved, places, count, tile, z):
    for n in range(count):
        cell, site = design.cells[moved[n]], 8 * tile + z + places[n]
        cell.x, cell.y = site // 8 % design.width, site // 8 // design.width
        if cell.kind == _WRITER:
            design.writer[site // 8] = moved[n]
        elif cell.kind == _TABLE:
            cell.z = site % 8
            design.table[site] = moved[n]
        elif cell.kind == _REGISTER:
            cell.z = site % 8
            design.register[site] = moved[n]


@compiled
def _middle(design, cell, late):
    """The middle of what a cell is wired to, ends of late wires first; its own place when that is
    nothing."""
    sx = sy = sw = 0.0
    for k in range(cell.into, min(cell.into_end, cell.into + _SEEN)):
        arc = design.arcs[design.members[k]]
        if arc.fixed < 0:
            other, weight = (
                design.cells[arc.source],
                _WEAK + price_of(arc.path, late, design.slope[0]),
            )
            sx, sy, sw = sx + weight * other.x, sy + weight * other.y, sw + weight
    for k in range(cell.drives, cell.drives_end):
        net = design.nets[design.members[k]]
        for j in range(net.after, min(net.after_end, net.after + _SEEN)):
            arc = design.arcs[design.members[j]]
            if arc.fixed < 0:
                other, weight = (
                    design.cells[arc.cell],
                    _WEAK + price_of(arc.path, late, design.slope[0]),
                )
                sx, sy, sw = sx + weight * other.x, sy + weight * other.y, sw + weight
    return (sx / sw, sy / sw) if sw else (float(cell.x), float(cell.y))


@compiled
def _end(design, cell):
    """The place of one of the cells that a cell is wired to, of three drawn the one on the latest
    path; its own place when there is none."""
    random, members = design.random, design.members
    best, x, y = -1.0, cell.x, cell.y
    for _ in range(3):
        if cell.into_end > cell.into and _draw(random, 2):
            arc = design.arcs[members[cell.into + _draw(random, cell.into_end - cell.into)]]
            other = design.cells[arc.source]
        elif cell.drives_end > cell.drives:
            net = design.nets[members[cell.drives + _draw(random, cell.drives_end - cell.drives)]]
            if net.after_end == net.after:
                continue
            arc = design.arcs[members[net.after + _draw(random, net.after_end - net.after)]]
            other = design.cells[arc.cell]
        else:
            continue
        if arc.fixed < 0 and arc.path > best:
            best, x, y = arc.path, other.x, other.y
    return float(x), float(y)


@compiled
def _aim(design, cell, late, reach):
    """A tile near the cell's own, or on the way to a cell or to the middle of the cells that it is
    wired to; -1 when there is none."""
    random = design.random
    way = _draw(random, 3)
    x, y = float(cell.x), float(cell.y)
    if way:
        to_x, to_y = _end(design, cell) if way == 1 else _middle(design, cell, late)
        part = (1 + _draw(random, 100)) / 100.0
        x, y = x + (to_x - x) * part, y + (to_y - y) * part
        reach = min(reach, 2)
    column, row = (
        round(x) + _draw(random, 2 * reach + 1) - reach,
        round(y) + _draw(random, 2 * reach + 1) - reach,
    )
    if not (0 <= column < design.width and 0 <= row < design.height):
        return -1
    tile = row * design.width + column
    return tile if design.usable[tile] else -1


@compiled
def anneal(design, scratch, late, tile_cost, temperature, reach, picks, moves):
    """Draw `moves` moves of the cells `picks`, and make those that a temperature allows; how many
    were made.

    Costs are ns of paths beyond `late` (ns; see `price_of`) and `tile_cost` for each tile of half
    perimeter; `temperature` is in the same unit, 0 being none that costs anything. `reach`: tiles
    that a cell goes at most, when it does not go towards what it is wired to. `measure` and
    `appraise` are as old as the caller lets them be.
    """
    made = 0
    for _ in range(moves):
        cell = picks[_draw(design.random, len(picks))]
        if design.cells[cell].kind == _BLOCK_RAM:
            made += _move_block_ram(design, scratch, late, tile_cost, temperature, cell)
        else:
            made += _move(design, scratch, late, tile_cost, temperature, reach, cell)
    return made


@compiled
def _block_ram_for(design, cell, late):
    """Another block RAM, or a free site of one: any, or of `_DRAWN` the one that is nearest to
    where a wire of `cell` leads, or to their middle."""
    random, cells = design.random, design.cells
    best = design.block_rams[_draw(random, len(design.block_rams))]
    way = _draw(random, 4)
    if way:
        x, y = _end(design, cells[cell]) if way > 1 else _middle(design, cells[cell], late)
        for _ in range(_DRAWN - 1):
            other = design.block_rams[_draw(random, len(design.block_rams))]
            if abs(cells[other].x - x) + abs(cells[other].y - y) < abs(cells[best].x - x) + abs(
                cells[best].y - y
            ):
                best = other
    return best


@compiled
def _move_block_ram(design, scratch, late, tile_cost, temperature, cell):
    other = _block_ram_for(design, cell, late)
    if other == cell:
        return 0
    a, b = design.cells[cell], design.cells[other]
    scratch.both[0], scratch.both[1] = cell, other
    a.x, b.x = b.x, a.x
    a.y, b.y = b.y, a.y
    if _accepted(design, scratch, late, tile_cost, temperature, 2):
        return 1
    a.x, b.x = b.x, a.x
    a.y, b.y = b.y, a.y
    return 0


@compiled
def _move(design, scratch, late, tile_cost, temperature, reach, number):
    cells, width = design.cells, design.width
    cell = cells[number]
    here, z, freedom = cell.y * width + cell.x, cell.z, cell.freedom
    if cell.kind == _REGISTER and cell.tied:
        freedom = cells[design.table[8 * here + z]].freedom
    if freedom > _TILE:
        return 0
    there = _aim(design, cell, late, reach)
    if there < 0 or there == here:
        return 0
    if _draw(design.random, _WHOLE) == 0:
        freedom = _TILE
    what, tiles = _BOTH, 1
    if freedom == _TILE:
        for site in range(8 * here, 8 * here + 8):
            table = design.table[site]
            if table >= 0 and cells[table].run > 1:
                tiles, here = cells[table].run, here - cells[table].run_at
                break
        # where a chain would overlap itself, `_stands` finds it out of step
        if there == here or there % width + tiles > width:
            return 0
        for tile in range(there, there + tiles):
            if not design.usable[tile]:
                return 0
        count, z, to = 8 * tiles, 0, 0
    elif freedom == _SLICE:
        count, z, to = 2, z & ~1, 2 * _draw(design.random, 4)
    else:
        count, to = 1, _draw(design.random, 8)
        register = design.register[8 * here + z]
        if register < 0 or not cells[register].tied:
            what = cell.kind
    if (freedom == _SLICE or (freedom == _ALONE and what != _TABLE)) and (
        design.writer[here] >= 0 or design.writer[there] >= 0
    ):
        return 0  # a RAM's write enable and its tile's registers share a wire
    mine, mine_at, theirs, theirs_at, both = (
        scratch.mine,
        scratch.mine_at,
        scratch.theirs,
        scratch.theirs_at,
        scratch.both,
    )
    ours = _stands(design, here, z, count, what, mine, mine_at)
    others = _stands(design, there, to, count, what, theirs, theirs_at)
    if ours < 0 or others < 0:
        return 0
    _take(design, mine, ours)
    _take(design, theirs, others)
    _put(design, mine, mine_at, ours, there, to)
    _put(design, theirs, theirs_at, others, here, z)
    legal = True
    for n in range(tiles):
        legal = (
            legal
            and _legal(cells, design.table, design.register, here + n)
            and _legal(cells, design.table, design.register, there + n)
        )
    if legal:
        both[:ours] = mine[:ours]
        both[ours : ours + others] = theirs[:others]
        if _accepted(design, scratch, late, tile_cost, temperature, ours + others):
            return 1
    _take(design, mine, ours)
    _take(design, theirs, others)
    _put(design, mine, mine_at, ours, here, z)
    _put(design, theirs, theirs_at, others, there, to)
    return 0


@compiled(inline="always")
def _rewired(cells, arcs, scratch, number, now, wires):
    """An arc's wire as its ends stand now, once in a move; how many wires are new."""
    arc = arcs[number]
    if arc.seen == now:
        return wires
    arc.seen = now
    scratch.arcs[wires], scratch.old_wire[wires] = number, arc.wire
    arc.wire = wire_of(cells, arc)
    return wires + 1


@compiled
def _accepted(design, scratch, late, tile_cost, temperature, count):
    """Whether the cells `scratch.both`, at their new places already, may stay there. Then what is
    known of their wires is made new, else it is as before."""
    cells, nets, arcs, members, moved = (
        design.cells,
        design.nets,
        design.arcs,
        design.members,
        scratch.both,
    )
    scratch.stamp[0] += 1
    now, total, gain, lengths, slope = scratch.stamp[0], 0.0, 0.0, 0, design.slope[0]
    for n in range(count):
        cell = cells[moved[n]]
        gain += cell.price
        for k in range(cell.weighed, cell.weighed_end):
            net = nets[members[k]]
            if net.seen != now:
                net.seen = now
                length = length_of(cells, members, net.pins, net.pins_end, design.crowd)
                if length != net.length:
                    scratch.changed[lengths], scratch.new_length[lengths] = members[k], length
                    total += tile_cost * (length - net.length)
                    lengths += 1
    # a move may cost so much
    most = -temperature * np.log((1 + _draw(design.random, 1 << 30)) / (1 << 30))
    if total - gain > most:
        return False
    for n in range(1, count):  # drivers before loads
        cell, k = moved[n], n
        while k and cells[moved[k - 1]].level > cells[cell].level:
            moved[k] = moved[k - 1]
            k -= 1
        moved[k] = cell
    wires = driven = 0
    for n in range(count):
        cell = cells[moved[n]]
        for k in range(cell.drives, cell.drives_end):
            net = nets[members[k]]
            scratch.nets[driven], scratch.old_arrival[driven], scratch.old_left[driven] = (
                members[k],
                net.arrival,
                net.left,
            )
            driven += 1
            net.arrival, net.left = net.start, 0.0
            for j in range(net.after, net.after_end):
                wires = _rewired(cells, arcs, scratch, members[j], now, wires)
        for k in range(cell.into, cell.into_end):
            wires = _rewired(cells, arcs, scratch, members[k], now, wires)
            arc = arcs[members[k]]
            if arc.to >= 0:
                nets[arc.to].arrival = max(
                    nets[arc.to].arrival, nets[arc.net].arrival + arc.wire + arc.through
                )
    for n in range(driven - 1, -1, -1):
        net = nets[scratch.nets[n]]
        for j in range(net.after, net.after_end):
            arc = arcs[members[j]]
            net.left = max(
                net.left, arc.wire + arc.through + (nets[arc.to].left if arc.to >= 0 else 0.0)
            )
    for n in range(wires):
        arc = arcs[scratch.arcs[n]]
        path = path_of(nets, arc)
        scratch.new_path[n] = path
        total += price_of(path, late, slope) - price_of(arc.path, late, slope)
    if total <= most:
        for n in range(wires):
            arcs[scratch.arcs[n]].path = scratch.new_path[n]
        for n in range(lengths):
            nets[scratch.changed[n]].length = scratch.new_length[n]
        return True
    for n in range(wires):
        arcs[scratch.arcs[n]].wire = scratch.old_wire[n]
    for n in range(driven):
        nets[scratch.nets[n]].arrival, nets[scratch.nets[n]].left = (
            scratch.old_arrival[n],
            scratch.old_left[n],
        )
    return False
