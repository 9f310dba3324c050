# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Choice of pages near memory at the size of large models, on paper: cycles of the passes as the
RTL takes them (docs/select.md), links and DRAM as the inputs have them.

What is assumed beside the inputs are the constants below.
"""

from __future__ import annotations

import math

from ..select.timing import RTL, Choice, Shape
from .findings import Condition, Finding, Table, finding
from .inputs import Inputs

__all__ = ["Scale", "findings", "index_rows", "levels_from", "scales", "tables"]

PAGE = 16  #: tokens
QUOTA = (
    16  #: pages that each query head names: with 8 heads at most 128 candidates, all are counted
)
CHOSEN = 128  #: pages of a KV head that are read
TOKENS_PER_S = 10  #: of one session
COMPUTE_US = 100  #: of the host, a layer
LEVEL = 16  #: pages that a summary of the next level stands for
PNM_KV = "21.9"  #: times the throughput, claimed (PNM-KV, arXiv 2511.00321, simulated)


class Scale:
    """A model whose layers have KV heads, at a context, spread over endpoints by KV head."""

    def __init__(self, inputs: Inputs, name: str, context: int, endpoints: int):
        model = inputs.models[name]
        self.inputs, self.name = inputs, name
        self.context, self.endpoints, self.layers = context, endpoints, model.layers
        self.all_heads = model.kv_heads
        self.heads = -(-model.kv_heads // endpoints)  # of the endpoint that has most
        self.shape = Shape(
            kv_heads=self.heads,
            group=model.query_heads // model.kv_heads,
            lines=math.ceil(model.head_dim * model.element_bytes / 64),
            page_tokens=PAGE,
        )
        self.pages = -(-context // PAGE)
        self.candidates = min(QUOTA * self.shape.group, max(0, self.pages - 2))
        self.chosen = min(CHOSEN, self.pages)

    def _us(self, cycles: float) -> float:
        return cycles / (1e3 * self.inputs.endpoint.clock_ghz)

    @property
    def first_us(self) -> float:
        """Stage one of a layer: every summary once."""
        return self._us(self.heads * self.pages * self.shape.lines)

    @property
    def level_us(self) -> float:
        """The same behind a level of summaries, each of LEVEL pages: all of these, and of the pages
        of those that the heads name as many as they name pages."""
        above = -(-self.pages // LEVEL)
        below = min(self.pages, LEVEL * QUOTA * self.shape.group)
        return self._us(self.heads * (above + below) * self.shape.lines)

    @property
    def select_us(self) -> float:
        """All choices of a layer."""
        did = Choice(
            pages=self.pages,
            candidates=self.candidates,
            looks=PAGE * self.candidates,  # at most
            chosen=self.chosen,
            tokens=PAGE,
        )
        return self._us(self.heads * RTL.select(self.shape, did, QUOTA))

    @property
    def gather_us(self) -> float:
        """The chosen pages of a layer over the link."""
        page = 2 * PAGE * self.shape.lines * 64
        return self.heads * self.chosen * page / (1e3 * self.inputs.link.gb_per_s)

    @property
    def dense_us(self) -> float:
        """All pages of a layer over the link."""
        return self.gather_us * self.pages / self.chosen

    @property
    def dram_bytes(self) -> int:
        """What the choices of a token read on one endpoint: summaries, and candidates' keys."""
        lines = self.pages + (self.candidates + 2) * (PAGE + 1)
        return self.layers * self.heads * lines * self.shape.lines * 64

    @property
    def token_ms(self) -> float:
        """Choices and gathers one after the other, no host compute."""
        return self.layers * (self.select_us + self.gather_us) / 1e3


def levels_from(inputs: Inputs, name: str, endpoints: int) -> int:
    """Tokens from which stage one of a layer takes longer than the host computes."""
    one = Scale(inputs, name, PAGE, endpoints)
    return int(COMPUTE_US / one.first_us) * PAGE


def scales(inputs: Inputs) -> list[Scale]:
    return [
        Scale(inputs, "llama-3-70b", context, endpoints)
        for context in (131_072, 1_048_576)
        for endpoints in (1, 5)
    ]


#: Sparse attention with an index key a token or entry: name, layers, tokens an entry, bytes of an
#: index key, entries chosen, bytes of an entry. V3.2: one fp8 key of 128 for 64 index heads in each
#: of 61 layers, 2048 tokens of 576 · 2 bytes; V4: docs/facts.md and the inputs.
def index_rows(inputs: Inputs) -> list[dict]:
    v4 = next(g for g in inputs.models["deepseek-v4-pro-fp8"].groups if g.index_bytes)
    shapes = (
        ("DeepSeek-V3.2", 61, 1, 128, 2048, 1152),
        ("DeepSeek-V4-Pro, fp8", v4.layers, v4.compress, v4.index_bytes, 1024, v4.entry_bytes),
    )
    rows = []
    for name, layers, compress, key, chosen, entry in shapes:
        for context in (131_072, 1_048_576):
            entries = context // compress
            lines = -(-entries * key // 64)
            rows.append(
                {
                    "model": name,
                    "context": context,
                    "scan_us": lines / (1e3 * inputs.endpoint.clock_ghz),
                    "scan_link_us": entries * key / (1e3 * inputs.link.gb_per_s),
                    "token_ms": layers * lines / (1e6 * inputs.endpoint.clock_ghz),
                    "dram_gb_per_s": layers * entries * key * TOKENS_PER_S / 1e9,
                    "chosen_us": min(chosen, entries) * entry / (1e3 * inputs.link.gb_per_s),
                }
            )
    return rows


def tables(inputs: Inputs) -> list[Table]:
    rows = tuple(
        {
            "context": s.context,
            "endpoints": s.endpoints,
            "first_us": s.first_us,
            "level_us": s.level_us,
            "select_us": s.select_us,
            "gather_us": s.gather_us,
            "dense_us": s.dense_us,
            "token_ms": s.token_ms,
            "dram_gb_per_s": s.dram_bytes * TOKENS_PER_S / 1e9,
        }
        for s in scales(inputs)
    )
    one, five = (levels_from(inputs, "llama-3-70b", n) for n in (1, 5))
    choice = Table(
        name="choice",
        title="Llama-3-70B: choice and gather near memory, a layer of one token",
        columns=(
            ("context", "tokens", ",d"),
            ("endpoints", "endpoints", "d"),
            ("first_us", "stage one µs", ",.1f"),
            ("level_us", "by levels µs", ",.1f"),
            ("select_us", "SELECT µs", ",.1f"),
            ("gather_us", "gather µs", ",.1f"),
            ("dense_us", "all pages µs", ",.0f"),
            ("token_ms", "token ms", ",.1f"),
            ("dram_gb_per_s", "DRAM GB/s", ",.1f"),
        ),
        rows=rows,
        notes=(
            f"quota {QUOTA} of 8 query heads, {CHOSEN} pages of {PAGE} tokens read; DRAM: of the "
            + f"choices, at {TOKENS_PER_S} tokens/s, of {inputs_dram(inputs):.0f} GB/s",
            f"stage one alone takes more than {COMPUTE_US} µs of host compute from {one:,} tokens "
            + f"on ({five:,} with five endpoints): there summaries need a level of {LEVEL} pages",
            "passes: docs/select.md, held to RTL by tests/hw/choice/test_select_engine.py",
        ),
    )
    index = Table(
        name="indexers",
        title="Indexers as published: every index key read near memory, a layer of one token",
        columns=(
            ("model", "model", ""),
            ("context", "tokens", ",d"),
            ("scan_us", "scan µs", ",.1f"),
            ("scan_link_us", "over the link µs", ",.1f"),
            ("chosen_us", "chosen µs", ",.1f"),
            ("token_ms", "scans of a token ms", ",.1f"),
            ("dram_gb_per_s", "DRAM GB/s", ",.1f"),
        ),
        rows=tuple(index_rows(inputs)),
        notes=(
            "one endpoint, a line of keys a cycle. One key serves 64 index heads: the engine, with "
            + "scorers for 8, would read it eight times or have eight times the multipliers",
        ),
    )
    return [choice, index]


def inputs_dram(inputs: Inputs) -> float:
    return inputs.endpoint.dram_channels * 8 * inputs.endpoint.dram_mt_per_s / 1e3


def _speedup(scale: Scale) -> float:
    return scale.layers * scale.dense_us / 1e3 / scale.token_ms


def findings(inputs: Inputs) -> list[Finding]:
    one = Scale(inputs, "llama-3-70b", 131_072, 1)
    same = min(
        (PAGE * n for n in range(512, 131_072, 16)),
        key=lambda context: abs(_speedup(Scale(inputs, "llama-3-70b", context, 1)) - float(PNM_KV)),
    )
    there = Scale(inputs, "llama-3-70b", same, 1)
    return [
        finding(
            "choice",
            "throughput with pages chosen near memory (PNM-KV)",
            "×",
            PNM_KV,
            _speedup(one),
            f"70B at 128K, one endpoint, no host compute: {one.layers * one.dense_us / 1e3:.0f} ms "
            + f"of dense reads over {one.token_ms:.1f} ms of choices and gathers",
            under=Condition(f"a context of {same:,} tokens", _speedup(there)),
        ),
    ]
