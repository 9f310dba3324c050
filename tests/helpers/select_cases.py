# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Queries, stored keys and summaries for the blocks of the room `select`, and what the golden model
makes of them."""

import numpy as np

from kelp_golden import codec, select
from kelp_spec.formats import ELEMENTS, Format, HostType
from kelp_spec.select import BLOCK_EXPONENT_BITS, SUMMARY_BITS

__all__ = ["SCALE", "Group", "put_queries", "query_lines", "summary_words"]

#: log2(e) / 8 as m · 2^−sh
SCALE = {"m": 47274, "sh": 18}


class Group:
    """A query of `heads` heads and stored keys of `pages` pages."""

    def __init__(self, seed, *, heads, lines, pages, tokens=16, fmt=Format.INT8):
        rng = np.random.default_rng(seed)
        size = 2.0 ** rng.integers(-6, 4, (pages, tokens, lines, 1))
        keys = rng.normal(size=(pages, tokens, lines, ELEMENTS)) * size
        keys[rng.random(keys.shape) < 0.1] = 0
        keys[0, 0, 0, 3] = np.nan
        # 2^15 saturates products, 2^−12 leaves nothing of them.
        spread = rng.choice([-12, -3, 0, 2, 3, 15], (heads, lines, 1))
        query = rng.normal(size=(heads, lines, ELEMENTS)) * 2.0**spread
        self.fmt = fmt
        self.payload, self.scale = self._stored(keys, fmt)
        self.keys = select.of_stored(self.payload, self.scale, HostType.FP16, fmt)
        self.query = select.of_host(np.clip(query, -6e4, 6e4).astype(np.float16).view(np.uint16))
        self.summary = select.summary(self.keys, np.ones(self.keys.e.shape, bool))

    @staticmethod
    def _stored(values, fmt):
        codes = values.astype(np.float16).view(np.uint16)
        payload, scale = codec.encode(codes.reshape(-1, ELEMENTS), HostType.FP16, fmt)
        shape = values.shape[:-1]
        return payload.reshape(*shape, -1), scale.reshape(shape)

    def scores(self, page):
        """int64 [heads, tokens]."""
        keys = select.Blocks(*(part[page] for part in self.keys))
        return select.scores(self.query, keys, SCALE["m"], SCALE["sh"])

    def bounds(self):
        """int64 [heads, pages]."""
        return select.bounds(self.query, self.summary, SCALE["m"], SCALE["sh"])

    def key_lines(self):
        """What KeyScore is sent, token after token."""
        pages, tokens, lines = self.scale.shape
        return [
            {
                "payload": int.from_bytes(self.payload[page, token, line].tobytes(), "little"),
                "scale": int(self.scale[page, token, line]),
                "int4": self.fmt is Format.INT4,
                "line": line,
                "last": line == lines - 1,
                "id": page * tokens + token,
            }
            for page in range(pages)
            for token in range(tokens)
            for line in range(lines)
        ]

    def summary_lines(self):
        """What SummaryScore is sent, page after page."""
        words = summary_words(self.summary)
        pages, lines = self.summary.e.shape
        return [
            {"data": words[page][line], "line": line, "last": line == lines - 1, "id": page}
            for page in range(pages)
            for line in range(lines)
        ]


def summary_words(summary):
    """The 64-byte lines of summaries, as integers [pages][lines]."""
    least = (1 << SUMMARY_BITS) - 1
    pages, lines = summary.e.shape
    out = []
    for page in range(pages):
        out.append([])
        for line in range(lines):
            word, at = 0, 0
            for value in (*summary.low[page, line], *-summary.high[page, line]):
                word |= (int(value) & least) << at
                at += SUMMARY_BITS
            word |= (int(summary.e[page, line]) & (1 << BLOCK_EXPONENT_BITS) - 1) << at
            out[-1].append(word)
    return out


def query_lines(query):
    """What a block is sent of a query."""
    heads, lines = query.e.shape
    return [
        {
            "head": head,
            "line": line,
            "element": [int(x) for x in query.x[head, line]],
            "exponent": int(query.e[head, line]),
        }
        for head in range(heads)
        for line in range(lines)
    ]


def put_queries(query):
    """A testbench that writes a query's lines into a block."""

    async def put(ctx, dut):
        for line in query_lines(query):
            ctx.set(dut.i_query.p, line)
            ctx.set(dut.i_query.valid, 1)
            await ctx.tick()
        ctx.set(dut.i_query.valid, 0)

    return put
