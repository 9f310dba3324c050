# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Queries, stored keys, plans and summaries for blocks of the rooms `choice` and `select`, and what
the golden model makes of them."""

import numpy as np

from kelp_golden import codec, select
from kelp_spec.formats import ELEMENTS, SCALE_NAN, Format, HostType
from kelp_spec.select import (
    BLOCK_EXPONENT_BITS,
    CODED_LINES,
    MEAN_BITS,
    PLAN_FIELDS,
    record,
)
from kelp_spec.select_plan import plan_lines
from kelp_verif.endpoint.some_plan import some_plan

__all__ = ["SCALE", "Group", "plan_items", "put_plan", "put_queries", "query_lines", "sound_plan"]

#: log2(e) / 8 as m · 2^−sh
SCALE = {"m": 47274, "sh": 18}


class Group:
    """A query of `heads` heads, stored keys of `pages` pages, and a plan: a sound one, or a
    `wild` one. Where `far`, lines and queries have any exponents that can be stored."""

    def __init__(
        self, seed, *, heads, lines, pages, tokens=16, fmt=Format.INT8, wild=False, far=False
    ):
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
        if far:
            any_scale = rng.integers(SCALE_NAN, size=self.scale.shape).astype(self.scale.dtype)
            some = rng.random(self.scale.shape) < 0.5
            self.scale = np.where(some, self.scale & 0xFF00 | any_scale, self.scale)
        self.keys = select.of_stored(self.payload, self.scale, HostType.FP16, fmt)
        self.query = select.of_host(np.clip(query, -6e4, 6e4).astype(np.float16).view(np.uint16))
        if far:
            exponents = rng.integers(SCALE_NAN, size=self.query.e.shape) - 127
            some = rng.random(exponents.shape) < 0.7
            self.query = self.query._replace(e=np.where(some, exponents, self.query.e))
        rows = plan_lines(
            np.nan_to_num(keys).reshape(-1, lines * ELEMENTS), query.reshape(heads, -1)
        )
        self.plan_rows = some_plan(rng, lines) if wild else rows
        self.plan = select.plan_of(self.plan_rows)
        self.codes = select.summary(self.keys, self.plan)

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

    def estimates(self):
        """int64 [heads, pages]."""
        return select.estimates(self.query, self.codes, self.plan, SCALE["m"], SCALE["sh"])

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
        codes = self.codes.reshape(len(self.codes), -1).tolist()
        rows = -(-len(codes[0]) // CODED_LINES)
        return [
            {
                "code": (page[CODED_LINES * row :] + [0] * CODED_LINES)[:CODED_LINES],
                "line": row,
                "last": row == rows - 1,
                "id": number,
            }
            for number, page in enumerate(codes)
            for row in range(rows)
        ]


def sound_plan(rng, lines):
    """A host's plan for keys and queries of normal numbers, uint8 [lines, 64]."""
    return plan_lines(*rng.standard_normal((2, 64, lines * ELEMENTS)))


def plan_items(rows):
    """What a block is sent of a plan."""
    out = []
    for line, row in enumerate(rows):
        fields = record(PLAN_FIELDS, row.tobytes())
        plan = {
            name: [fields[f"{name}_{k}"] for k in range(ELEMENTS)]
            for name in ("mean", "step", "count")
        }
        plan["mean"] = [x - (x >> MEAN_BITS - 1 << MEAN_BITS) for x in plan["mean"]]
        e = fields["exponent"]
        plan["exponent"] = e - (e >> BLOCK_EXPONENT_BITS - 1 << BLOCK_EXPONENT_BITS)
        out.append({"plan": plan | {"planned": 1}, "line": line, "last": line == len(rows) - 1})
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


def put_queries(query, plan=None):
    """A testbench that writes a query's lines, and a plan's, into a block."""

    async def put(ctx, dut):
        for line in query_lines(query):
            ctx.set(dut.i_query.p, line)
            ctx.set(dut.i_query.valid, 1)
            await ctx.tick()
        ctx.set(dut.i_query.valid, 0)
        await put_plan(ctx, dut, plan)

    return put


async def put_plan(ctx, dut, plan):
    """Writes the lines of a plan, or none, into a block."""
    for line in plan_items(plan) if plan is not None else ():
        ctx.set(dut.i_plan.p, line)
        ctx.set(dut.i_plan.valid, 1)
        await ctx.tick()
    if plan is not None:
        ctx.set(dut.i_plan.valid, 0)
