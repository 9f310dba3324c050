# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp config``: the named configurations and what follows from them."""

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from kelp_spec.config import NAMED, POOLS, Config
from kelp_spec.config_text import configuration
from kelp_spec.formats import Format
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.metadata import page_word_fields

from .output import show, write_json

__all__ = ["CONFIGURATION", "describe", "register"]

#: What an option that takes a configuration says of itself.
CONFIGURATION = (
    "A named configuration (kelp config lists them), other sizes after it: 'NAME?field=value&…'."
)


def describe(config: Config) -> dict:
    """A configuration's fields and what is derived from them, ready for JSON."""
    page_bytes = config.page_lines * 64
    return {
        **asdict(config),
        "digest": config.digest,
        "page_words": config.page_words,
        "page_bytes": page_bytes,
        "page_word_bits": sum(bits for _, bits in page_word_fields(config)),
        "aperture_bytes": 1 << config.aperture_bits,
        "dram_bytes": config.dram_lines * 64,
        # Behind a port of its own with `select_port`, on the chip without.
        "summary_bytes": config.summary_lines * 64,
        "mixed_pages": _mixed_pages(config),
        "pools": {
            name: {"pages": pages, "frames": frames, "frame_lines": lines}
            for name, pages, frames, lines in zip(
                POOLS, config.pool_formats, config.frames, config.frame_lines, strict=True
            )
        },
        "cold_slot_bytes": config.cold_slot_sectors * 512,
    }


def _mixed_pages(config: Config) -> dict[str, dict[str, int]]:
    """Of pages whose K and V are of different formats: DRAM lines, and those of the frame that
    such a page takes."""
    out = {}
    # fp8_e5m2 takes as much as fp8_e4m3.
    formats = [f for f in map(Format, sorted(config.formats)) if f != Format.FP8_E5M2]
    for k, v in itertools.combinations(formats, 2):
        lines = stored_lines(k, v, config.half_lines, False)
        frame = config.frame_lines[smallest_pool(config.frame_lines, lines)]
        out[f"{k.label}/{v.label}"] = {"lines": lines, "frame_lines": frame}
    return out


def register(app: typer.Typer) -> None:
    @app.command(name="config")
    def config_(
        name: Annotated[
            str | None,
            typer.Argument(
                help="One configuration in full, named or with other sizes "
                + "('unit?queues=8&frames=64,16,16,16'); all in brief when left out."
            ),
        ] = None,
        json: Annotated[
            Path | None, typer.Option("--json", help="Also write it to this file (- is stdout).")
        ] = None,
    ) -> None:
        """Show the named configurations: queues, pages, frames, widths and what they cost in
        memory."""
        chosen = [configuration(name)] if name else list(NAMED.values())
        if json is not None:
            write_json(json, "config", {"configurations": [describe(c) for c in chosen]})
            if str(json) == "-":
                return
        show(_one(chosen[0]) if name else _all(chosen))


def _all(configs: list[Config]) -> Table:
    table = Table(title="Configurations", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in (
        "name",
        "sessions × queues × pages",
        "lines per page",
        "frames",
        "DRAM",
        "digest",
    ):
        table.add_column(
            column,
            justify="left" if column in ("name", "digest") else "right",
            no_wrap=column in ("name", "digest"),
        )
    for c in configs:
        table.add_row(
            c.name,
            f"{c.sessions} × {c.queues} × {c.pages}",
            str(c.page_lines),
            f"{c.total_frames:,}",
            f"{c.dram_lines * 64 / 2**20:,.2f} MiB",
            c.digest,
        )
    return table


def _one(config: Config) -> Table:
    table = Table(title=f"Configuration {config.name}", title_justify="left", show_header=False)
    for key, value in describe(config).items():
        if key == "pools":
            for pool, sizes in value.items():
                table.add_row(
                    f"pool {pool}",
                    f"{sizes['frames']} frames of {sizes['frame_lines']} DRAM lines, for pages of "
                    + sizes["pages"],
                )
        elif key == "mixed_pages":
            for formats, page in value.items():
                table.add_row(
                    f"page of {formats}",
                    f"{page['lines']} DRAM lines in a frame of {page['frame_lines']}",
                )
        else:
            table.add_row(key, _said(value))
    return table


def _said(value) -> str:
    """Of a field as it is typed behind a configuration's name, but for large numbers."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return (
        str(int(value))
        if isinstance(value, bool)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
