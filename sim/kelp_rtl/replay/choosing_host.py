# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a host writes and reads whose device chooses: where its keys, values, queries and doorbells
go, where its answers are, and in which order it reads pages and looks at answers
(docs/select.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, LINE_BYTES
from kelp_spec.select import ANSWER_FIELDS, BELL_FIELDS, SelectMap, SlotState, record, record_bytes

from ..device import Driver
from ..program import Program, Result

__all__ = ["ChoosingHost", "Head", "Reads", "padded"]

#: looks at an answer, each some 20 cycles, before a SELECT counts as lost
_POLLS = 100_000
#: gathered lines between two looks at the next head's answer
_STRIDE = 32


def padded(values: np.ndarray) -> np.ndarray:
    """float16 [..., head_dim] as the lines' bytes, uint8 [..., 64 · lines]."""
    dim = values.shape[-1]
    beyond = ((0, 0),) * (values.ndim - 1) + ((0, -dim % ELEMENTS),)
    return np.ascontiguousarray(np.pad(values, beyond), "<f2").view(np.uint8)


@dataclass(eq=False)
class Head:
    """A KV head's SELECT as the host has it."""

    place: tuple[int, int, int]  #: step, layer, head
    sequence: int
    told: np.ndarray  #: addresses of its answer
    pages: np.ndarray  #: addresses of the lines that are gathered
    wanted: np.ndarray  #: these lines

    def is_done(self, header: np.ndarray) -> bool:
        return record(ANSWER_FIELDS, header.tobytes())["sequence"] == self.sequence


class Reads:
    """What a host reads in one go: pages of heads, and amid them looks at the answers to others."""

    def __init__(self):
        self.parts: list[tuple[str, Head, np.ndarray]] = []

    def gather(self, head: Head, after: Head | None = None) -> None:
        """The pages of a head, with looks at the answer to the one `after` it; all of that before
        the last _STRIDE lines."""
        ends = range(len(head.pages), 0, -_STRIDE)
        for end in reversed(ends):
            if after is not None:
                last = end == len(head.pages)
                self.parts.append(("told", after, after.told if last else after.told[:1]))
            self.parts.append(("pages", head, head.pages[max(0, end - _STRIDE) : end]))

    def run(self, driver: Driver) -> list[tuple[str, Head, slice, Result]]:
        addresses = [addresses for *_, addresses in self.parts]
        result = driver.run(Program.reads(np.concatenate(addresses)))
        ends = np.cumsum([len(each) for each in addresses])
        return [
            (what, head, slice(end - len(each), end), result)
            for (what, head, each), end in zip(self.parts, ends, strict=True)
        ]


class ChoosingHost:
    """A host of session 0, whose driver it has.

    Attributes
    ----------
    k, v : uint8 [layers, kv_heads, tokens, 64 · lines of a token]
    plans : uint8 [layers, kv_heads, lines, 64]
    bell : dict
        Fields that every doorbell of the host has: ``most``, ``target``, ``m``, ``sh``.
    """

    def __init__(self, config: Config, driver: Driver, k, v, plans, bell: dict[str, int]):
        self.config, self.driver = config, driver
        self.k, self.v, self.plans, self.bell_fields = k, v, plans, bell
        self.layers, self.kv_heads = k.shape[:2]
        self.lines = k.shape[-1] // LINE_BYTES
        self.size = config.half_lines // self.lines
        self.map, self.base = SelectMap(config), driver.addresses.select_base

    def placed(self, layer: int, tokens) -> Iterator[tuple[int, int, int, int, np.ndarray]]:
        """(queue, page, half, line, row) of tokens of a layer, K and V of each head."""
        for token in tokens:
            page, at = divmod(token, self.size)
            for head in range(self.kv_heads):
                queue = layer * self.kv_heads + head
                for kv, half in enumerate((self.k, self.v)):
                    for n, row in enumerate(half[layer, head, token].reshape(-1, LINE_BYTES)):
                        yield queue, page, kv, at * self.lines + n, row

    def written(self, layer: int, tokens) -> tuple[list[int], list[np.ndarray]]:
        """Addresses and lines of tokens of a layer."""
        addresses, rows = [], []
        for queue, page, kv, line, row in self.placed(layer, tokens):
            addresses.append(self.driver.address(0, queue, page, kv, line))
            rows.append(row)
        return addresses, rows

    def bell(self, sequence: int, layer: int, head: int, position: int, **more: int) -> bytes:
        """A head's doorbell with `position` as its newest token; `more` fields."""
        fields = {
            "sequence": sequence,
            "queue": layer * self.kv_heads + head,
            "layer": layer,
            "newest": position // self.size,
            "tokens": position % self.size + 1,
            "lines": self.lines,
        }
        data = record_bytes(BELL_FIELDS, fields | self.bell_fields | more)
        return data.ljust(LINE_BYTES, b"\0")

    def asked_lines(self, layer: int, head: int, queries) -> list[tuple[int, np.ndarray]]:
        """Lines of the region, and rows, of a head's `queries` uint8 [group, 64 · lines] and plan;
        its doorbell goes to ``map.bell(0, head)``."""
        rows = queries.reshape(len(queries), self.lines, LINE_BYTES)
        places = np.ndindex(rows.shape[:2])
        told = [(self.map.query(0, head, *at), rows[at]) for at in places]
        return told + [
            (self.map.plan(0, head, n), row) for n, row in enumerate(self.plans[layer, head])
        ]

    def answer_addresses(self, head: int) -> np.ndarray:
        first = self.map.bell(0, head)
        told = 1 + -(-(self.bell_fields["most"] + 2) // 8)
        return self.base + LINE_BYTES * np.arange(first, first + told, dtype=np.uint64)

    def poll(self, head: Head) -> tuple[list[np.ndarray], int] | None:
        """Look until the head's answer is there, then at the rest of it: its lines, and the cycle
        in which the first was; None where none comes."""
        for _ in range(_POLLS):
            first = self.driver.run(Program.reads(head.told[:1]))
            if head.is_done(first.data[0]):
                rest = self.driver.run(Program.reads(head.told[1:]))
                return [first.data[0], *rest.data], first.response_cycle[0]
        return None

    def page_lines(self, layer: int, head: int, header: dict, pages: list[dict], position: int):
        """Addresses of the lines of the pages chosen, K and then V, and what they must bring."""
        queue, whole = layer * self.kv_heads + head, self.size * self.lines
        newest, last = position // self.size, (position % self.size + 1) * self.lines
        addresses, wanted = [], []
        for kv, half in enumerate((self.k, self.v)):
            mine = half[layer, head].reshape(-1, LINE_BYTES)
            for slot, chosen in enumerate(pages):
                page, count = chosen["page"], last if chosen["page"] == newest else whole
                own = self.driver.address(0, queue, page, kv, 0)
                window = self.driver.addresses.gather(0, queue, header["generation"], kv, slot, 0)
                start = window if chosen["state"] == SlotState.HELD else own
                addresses.append(start + LINE_BYTES * np.arange(count, dtype=np.uint64))
                wanted.append(mine[page * whole : page * whole + count])
        return np.concatenate(addresses), np.concatenate(wanted)
