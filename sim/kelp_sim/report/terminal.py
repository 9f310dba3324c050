# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A result as a table for the terminal."""

from __future__ import annotations

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..replay.result import ReplayResult
from .facts import sections, verdict

__all__ = ["table"]


def table(result: ReplayResult) -> Table:
    """All figures of ``result``, the verdict as its caption, for ``rich``'s ``console.print``."""
    good = not result.mismatches
    shown = Table(
        title=f"KELP replay of {result.trace}",
        title_justify="left",
        title_style="bold",
        caption=Text(
            ("✓ " if good else "✗ ") + verdict(result), style="bold green" if good else "bold red"
        ),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_header=False,
    )
    shown.add_column("what", width=31)
    shown.add_column("value", justify="right", no_wrap=True)
    shown.add_column("note", style="dim", overflow="fold")
    for section in sections(result):
        shown.add_row(Text(section.title, style="bold cyan"), "", Text(section.note))
        for row in section.rows:
            if row.label == "command":
                # As wide as the terminal, not as wide as a number: it is there to be copied.
                continue
            bad = row.label == "mismatches" and not good
            shown.add_row(
                Padding(Text(row.label), (0, 0, 0, 2)),
                Text(row.value, style="bold red" if bad else "bold"),
                Text(row.note),
            )
        shown.add_section()
    for example in result.mismatch_examples[:5]:
        shown.add_row(Text("  mismatch", style="red"), "", Text(example))
    return shown
