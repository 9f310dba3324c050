# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp size``: how much DRAM and flash a model's users need, and what hit rate was measured at
that share of DRAM."""

import math
from typing import Annotated

import typer
from rich.table import Table

from kelp_spec.config import Config

from .output import UserError, console, show

__all__ = ["register"]

# Hit rates over the five recordings, by share of the pages in DRAM (docs/recordings.md,
# "The reference rows"; made by `python -m kelp_sim.replay.reference`).
_MEASURED = (
    (0.125, 69.12, 74.82, 86.50),
    (0.25, 90.39, 95.96, 98.38),
    (0.50, 98.12, 99.47, 99.89),
    (1.0, 100.0, 100.0, 100.0),
)
_MOST = 10**18  #: tokens, or users
_POLICIES = ("LRU per queue", "LRU pooled", "Belady pooled (bound)")


def register(app: typer.Typer) -> None:
    @app.command()
    def size(
        model: Annotated[
            str,
            typer.Option(
                help="A shape by name: llama-3-70b, llama-3-8b, qwen2.5-7b, qwen3-8b, "
                + "qwen3-32b, deepseek-v3-mla."
            ),
        ] = "llama-3-70b",
        context: Annotated[int, typer.Option(help="Tokens of one user.")] = 131072,
        users: Annotated[int, typer.Option(help="Sessions at once.")] = 1,
        formats: Annotated[
            str, typer.Option(help="Stored format; K and V apart as int8/int4.")
        ] = "raw16",
        dram: Annotated[
            float, typer.Option(help="DRAM of the device for KV, in GiB (2^30 bytes).")
        ] = 64.0,
        pools: Annotated[
            str,
            typer.Option(help="The device's pool_formats, comma between."),
        ] = ",".join(Config.pool_formats),
    ) -> None:
        """DRAM and flash for a model's users, and the hit rate that recordings had at that share of
        DRAM."""
        from cxl_kv.arguments import short
        from cxl_kv.shape import LayerFormats, preset
        from kelp_spec.formats import LINE_BYTES, formats_of
        from kelp_spec.geometry import smallest_pool, stored_lines

        k, _, v = formats.partition("/")
        try:
            shape = preset(model, formats=LayerFormats(k=k, v=v or k), page_tokens=16)
            pool_formats = Config(name="size", pool_formats=tuple(pools.split(","))).pool_formats
        except ValueError as error:
            raise UserError(str(error)) from None
        if not (0 < context < _MOST and 0 < users < _MOST and 0 < dram < math.inf):
            raise UserError(
                f"context = {short(context)}, users = {short(users)}, dram = {dram} is refused; "
                + "legal: positive numbers, of tokens and users below 10^18"
            )
        pages = -(-context // 16) * shape.queues * users
        lines = 16 * shape.token_lines
        frames = tuple(stored_lines(*formats_of(text), lines) for text in pool_formats)
        needed = stored_lines(shape.formats[0].k, shape.formats[0].v, lines, shape.k_only)
        pool = smallest_pool(frames, needed)
        # whole frames move, and a page takes the smallest that holds it
        stored = frames[pool] * LINE_BYTES
        # the cold copy: the stored page, and a sector for the line mask
        sectors = (-(-stored // 512) + 1) * 512
        total, capacity = pages * stored, dram * 2**30
        share = min(1.0, capacity / total)
        table = Table(
            title=f"{model}, {users} × {context:,} tokens, stored as {formats}",
            title_justify="left",
            show_header=False,
        )
        host = shape.token_bytes * context * users
        for name, value in (
            ("as the host sees it", f"{host / 2**30:,.1f} GiB"),
            ("as stored", f"{total / 2**30:,.1f} GiB in {pages:,} frames of {stored:,} bytes"),
            ("DRAM", f"{min(capacity, total) / 2**30:,.1f} GiB: {100 * share:.1f} % of the pages"),
            ("flash", f"{pages * sectors / 2**30:,.1f} GiB" if share < 1 else "none is needed"),
        ):
            table.add_row(name, value)
        for column, policy in enumerate(_POLICIES, 1):
            table.add_row(f"hit rate, {policy}", _rate(share, column))
        show(table)
        if needed < frames[pool]:
            console.print(
                f"A page stored as {formats} is {needed * LINE_BYTES:,} bytes and takes a whole "
                + f"frame of {frames[pool] * LINE_BYTES:,}, the smallest size that holds it: "
                + f"{1 - needed / frames[pool]:.0%} of its DRAM is not used. Frames have the sizes "
                + f"of pages of {', '.join(pool_formats)}: a device whose pool_formats has "
                + f"{formats} has a frame of that size (docs/cxl_kv.md, --pools)."
            )
        console.print(
            "Hit rates: measured over five recordings of a small model's attention, "
            + "interpolated between 12.5, 25, 50 and 100 % (docs/recordings.md)."
        )
        console.print("Your model's attention will differ: record it and run kelp replay.")


def _rate(share: float, column: int) -> str:
    if share < _MEASURED[0][0]:
        return f"below {_MEASURED[0][column]:.1f} % (nothing was measured under 12.5 %)"
    for low, high in zip(_MEASURED, _MEASURED[1:], strict=False):
        if share <= high[0]:
            part = (share - low[0]) / (high[0] - low[0])
            return f"{low[column] + (high[column] - low[column]) * part:.1f} %"
    return "100.0 %"
