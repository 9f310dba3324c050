# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a choice finds, as curves over bytes a page, candidates and page size: PNG plots, and one
HTML page that has them inside."""

from __future__ import annotations

import base64
import io
from html import escape

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from ..lab.page import STYLE

__all__ = ["page", "plots"]

#: File name → what is drawn, how it is called, and what it is held to, if anything.
_DRAWN = {
    "mass.png": ("mass_at_as_many", "mass found with as many pages, of the ideal reader's", 0.97),
    "recall.png": ("recall", "recall of the ideal reader's pages", None),
    "loss.png": ("loss", "perplexity over the ideal reader's, share", 0.005),
}
#: What a panel has from left to right, its name, and what is alike along a line.
_AXES = (
    ("bytes", "summary, bytes a dimension and page", ("page_tokens", "named")),
    ("candidates", "pages with exact scores", ("page_tokens", "code_bits")),
    ("page_tokens", "tokens a page", ("code_bits", "named")),
)
_NAMES = {
    "page_tokens": "{} tokens a page",
    "code_bits": "{} bits a line of a key",
    "named": "{} tokens named by a head",
}
_COLUMNS = (
    ("page_tokens", "{}"),
    ("code_bits", "{}"),
    ("bytes", "{:.2f}"),
    ("quota", "{}"),
    ("candidates", "{:.1f}"),
    ("looks", "{:.0f}"),
    ("pages", "{:.1f}"),
    ("ideal_pages", "{:.1f}"),
    ("recall", "{:.3f}"),
    ("mass", "{:.3f}"),
    ("mass_at_as_many", "{:.3f}"),
    ("loss", "{:+.2%}"),
    ("worst", "{:+.2%}"),
)


def plots(curve: list[dict]) -> dict[str, bytes]:
    """File name → PNG, of :func:`kelp_sim.select.study.curve`; a panel of each thing that
    varies."""
    entries = [e | {"named": e["quota"] * e["page_tokens"]} for e in curve]
    axes = [axis for axis in _AXES if len({e[axis[0]] for e in entries}) > 1]
    return {name: _draw(entries, axes or _AXES[1:2], *what) for name, what in _DRAWN.items()}


def page(curve: list[dict], pictures: dict[str, bytes], what: str) -> str:
    """``what``: a line on model, texts and settings."""
    title = "KELP: what a choice near memory finds"
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name, _ in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{form.format(e[name])}</td>" for name, form in _COLUMNS) + "</tr>"
        for e in curve
    )
    parts = [
        f'<h1>{title}</h1><p class="under">{escape(what)}</p>',
        f"<section><table><tr>{head}</tr>{body}</table></section>",
    ]
    for name, image in pictures.items():
        said, data = escape(_DRAWN[name][1]), base64.b64encode(image).decode()
        parts.append(
            f'<h2>{said}</h2><section><img alt="{said}" src="data:image/png;base64,{data}">'
            + "</section>"
        )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        + f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        + f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _draw(entries, axes, key, said, bar) -> bytes:
    figure, panels = plt.subplots(
        1, len(axes), figsize=(5.2 * len(axes), 4.2), layout="constrained", squeeze=False
    )
    for panel, (x, name, alike) in zip(panels[0], axes, strict=True):
        lines: dict[tuple, list[dict]] = {}
        for entry in entries:
            lines.setdefault(tuple(entry[a] for a in alike), []).append(entry)
        for n, (of, mine) in enumerate(lines.items()):
            mine = sorted(mine, key=lambda e: e[x])
            panel.plot(
                [e[x] for e in mine],
                [e[key] for e in mine],
                "o-",
                color=plt.get_cmap("viridis")(n / max(1, len(lines))),
                label=", ".join(
                    _NAMES[a].format(value)
                    for a, value in zip(alike, of, strict=True)
                    if len({e[a] for e in entries}) > 1
                ),
            )
        if bar is not None:
            panel.axhline(bar, color="#c9a227", linewidth=1)
        panel.set_xlabel(name)
        panel.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            panel.legend(fontsize=7, frameon=False)
    panels[0][0].set_ylabel(said)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    return data.getvalue()
