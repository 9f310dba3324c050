# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A result as one HTML page that needs no other file: pictures and data are inside it."""

from __future__ import annotations

import base64
import json
from html import escape

from ..replay.result import ReplayResult
from .facts import as_json, sections, verdict
from .plots import Plot

__all__ = ["html"]

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; color: #252b33;
  background: #f5f6f8; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 10px; }
h1, p { overflow-wrap: anywhere; }
p.under { margin: 0 0 18px; color: #5b6570; }
p.verdict { padding: 12px 16px; border-radius: 8px; font-weight: 600; }
p.good { background: #e3f4e9; color: #17653a; }
p.bad { background: #fbe4e2; color: #9a2018; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 18px 0; }
.card, figure, section { background: #fff; border: 1px solid #e1e5ea; border-radius: 8px; }
.card { padding: 12px 16px; }
.card b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.card span { color: #5b6570; font-size: 13px; }
section { padding: 16px 18px; margin: 0 0 16px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; padding: 14px 0 4px; color: #1f5fbf; font-size: 14px; }
tr:first-child th { padding-top: 0; }
td { padding: 4px 12px 4px 0; border-bottom: 1px solid #eef0f3; vertical-align: top; }
td.value { text-align: right; font-weight: 600; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
td.note { color: #5b6570; width: 50%; overflow-wrap: anywhere; }
figure { margin: 0 0 16px; padding: 14px; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: #5b6570; font-size: 14px; margin-top: 8px; }
pre { background: #f0f2f5; border-radius: 6px; padding: 10px 12px; margin: 0; overflow-x: auto;
  font-size: 13px; }
summary { cursor: pointer; font-weight: 600; }
details pre { margin-top: 10px; }
@media (max-width: 640px) {
  main { padding: 16px 10px 40px; }
  .cards { grid-template-columns: 1fr 1fr; gap: 8px; }
  section { padding: 12px; }
  table, tbody { display: block; }
  tr { display: flex; flex-wrap: wrap; justify-content: space-between; column-gap: 12px;
    border-bottom: 1px solid #eef0f3; padding: 6px 0; }
  th { width: 100%; padding-top: 10px; }
  td { padding: 0; border: 0; }
  td.value { white-space: normal; overflow-wrap: anywhere; }
  td.note { width: 100%; font-size: 13px; }
  figure { padding: 8px; overflow-x: auto; }
  figure img { min-width: 620px; }
  figcaption { position: sticky; left: 0; }
}
"""


def html(result: ReplayResult, pictures: list[tuple[Plot, bytes]]) -> str:
    """The whole page; ``pictures`` are PNG bytes with the plot they show."""
    title = f"KELP replay of {escape(result.trace)}"
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="under">{escape(_subtitle(result))}</p>',
        '<p class="verdict '
        + f'{"bad" if result.mismatches else "good"}">{escape(verdict(result))}</p>',
        f'<div class="cards">{"".join(_card(*card) for card in _cards(result))}</div>',
        *(_picture(plot, image) for plot, image in pictures),
        f"<section><h2>Figures</h2>{_table(result)}</section>",
    ]
    if result.mismatch_examples:
        examples = escape("\n".join(result.mismatch_examples))
        parts.append(f"<section><h2>Mismatches</h2><pre>{examples}</pre></section>")
    parts.append(
        "<section><h2>The command that made this "
        + f"page</h2><pre>{escape(result.command)}</pre></section>"
    )
    data = escape(json.dumps(as_json(result), indent=2, ensure_ascii=False, allow_nan=False))
    parts.append(
        f"<section><details><summary>report.json</summary><pre>{data}</pre></details></section>"
    )
    body = "\n".join(parts)
    meta = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    head = f"<head>{meta}<title>{title}</title><style>{_STYLE}</style></head>"
    return f'<!DOCTYPE html>\n<html lang="en">{head}\n<body><main>\n{body}\n</main></body></html>\n'


def _subtitle(result: ReplayResult) -> str:
    what = [
        f"{result.engine} engine",
        f"configuration {result.config}",
        result.policy,
        f"residency {result.residency:.4g}",
    ]
    return ", ".join([*what, f"seed {result.seed}"])


def _cards(result: ReplayResult) -> list[tuple[str, str]]:
    how = "" if result.token_time_measured else ", by the model"
    lru = result.reference_waiting["LRU pooled"]
    return [
        (f"{result.token_time:.2f}", f"token time: 1 with everything resident{how}"),
        (
            f"{result.waiting.layers:.2%}",
            f"of the layers wait (LRU pooled {lru.layers:.2%})",
        ),
        (
            f"{result.waiting.tokens:.2%}",
            f"of the tokens wait (LRU pooled {lru.tokens:.2%})",
        ),
        (f"{result.hit_rate:.2%}", f"hit rate ({result.policy})"),
        (f"{result.lru_pooled_hit_rate:.2%}", "LRU pooled: the baseline"),
        (f"{result.belady_hit_rate:.2%}", "Belady pooled: the bound"),
        (f"{result.flash_reads_per_access:.3f}", "flash reads per access"),
        (f"{result.lines_per_cycle:.3f}", "lines per cycle"),
        (f"{result.line_requests:,}", "line requests compared"),
    ]


def _card(value: str, label: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _picture(plot: Plot, image: bytes) -> str:
    source = "data:image/png;base64," + base64.b64encode(image).decode("ascii")
    caption = escape(plot.caption)
    return (
        f'<figure id="{plot.name}"><img src="{source}" '
        + f'alt="{caption}"><figcaption>{caption}</figcaption></figure>'
    )


def _table(result: ReplayResult) -> str:
    lines = ["<table>"]
    for section in sections(result):
        title = f"{section.title} ({section.note})" if section.note else section.title
        lines.append(f'<tr><th colspan="3">{escape(title)}</th></tr>')
        for row in section.rows:
            if row.label != "command":
                label, value, note = map(escape, row)
                lines.append(
                    f'<tr><td>{label}</td><td class="value">{value}</td><td '
                    + f'class="note">{note}</td></tr>'
                )
    return "\n".join([*lines, "</table>"])
