# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Which memories a design has and how their rows are made of code words, read off its blocks: what
is elaborated is what is listed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from amaranth.hdl import Instance, Module, Shape
from amaranth.lib.memory import Memory

from kelp_hw.lib.protected import CheckedWord

__all__ = ["Cells", "inventory", "memory_name"]


@dataclass(frozen=True)
class Cells:
    """A memory's size, and the bits of each code word of a row: the whole row where it is one word
    or has no check bits. `columns`: of each CheckedWord, the syndrome of a flip of each bit."""

    width: int
    depth: int
    words: tuple[range, ...]
    columns: tuple[tuple[int, ...], ...]
    #: the block that writes every row between a reset and `ready`, by its path; "" where none does
    cleared_by: str = ""


def memory_name(*path: str) -> str:
    """A memory's path in the endpoint, without what every one of `lib`'s memories has at its end,
    and without the numbers by which Verilog tells a part from a signal of its name."""
    whole = re.sub(r"\$\d+(?=\.|$)", "", ".".join(path))
    return re.sub(r"(\.whole)?(\.macro\.words|\.memory)$", "", whole)


def inventory(block) -> dict[str, Cells]:
    """Every memory below `block`, an elaboratable, by name. Where a block has `word`, a
    CheckedWord, the rows of its memories are such words; where it has `words`, those of the memory
    of that name. Where it has `CLEARS`, it clears the memories of these names, patterns among
    them."""
    found: dict[str, Cells] = {}
    _walk(block, (), None, found)
    return dict(sorted(found.items()))


def _walk(block, path: tuple[str, ...], word: CheckedWord | None, found: dict[str, Cells]) -> None:
    if isinstance(block, Memory):
        _add(found, memory_name(*path), Shape.cast(block.shape).width, block.depth, word)
    elif isinstance(block, Instance):
        if block.type.startswith("kelp_sram"):
            sizes = block.parameters
            _add(found, memory_name(*path, "words"), sizes["WIDTH"], sizes["DEPTH"], word)
    else:
        module = block if isinstance(block, Module) else block.elaborate(None)
        own, words = getattr(block, "word", None), getattr(block, "words", None)
        word = own if isinstance(own, CheckedWord) else word
        words = words if isinstance(words, dict) else {}
        below: dict[str, Cells] = {}
        for name, (part, _) in module._named_submodules.items():
            _walk(part, (*path, name), words.get(name, word), below)
        clears = [memory_name(*path, name) for name in getattr(block, "CLEARS", ())]
        for name, cells in below.items():
            if any(fnmatchcase(name, pattern) for pattern in clears):
                below[name] = replace(cells, cleared_by=".".join(path))
        assert not (twice := found.keys() & below.keys()), twice
        found |= below
        assert not module._anon_submodules, f"{path}: submodules without a name"


def _add(found, name: str, width: int, depth: int, word: CheckedWord | None) -> None:
    words, low = [], 0
    if word is not None and word.protect:
        for size in word.widths:
            words.append(range(low, low + size))
            low += size
        assert low == width, f"{name}: rows of {width} bits of code words of {low}"
    assert name not in found, name
    columns = word.columns if words else ()
    found[name] = Cells(width, depth, tuple(words) or (range(width),), columns)
