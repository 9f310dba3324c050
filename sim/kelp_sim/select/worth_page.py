# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a choice near memory is worth: PNG plots, and one HTML page that has them inside."""

from __future__ import annotations

import base64
import io
from html import escape

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from ..lab.page import STYLE
from .worth import Found, summary

__all__ = ["page", "plots"]

_COLOURS = {
    "kelp": "#1f6fd1",
    "told": "#1f6fd1",
    "ideal": "#c9a227",
    "dense": "#8a94a0",
    "quest": "#4f9d69",
    "freekv": "#a0627f",
    "infinigen": "#d07a3a",
}
#: Heading and form of a summary's column.
COLUMNS = (
    ("reader", "{}"),
    ("residency", "{:.1%}"),
    ("token_time_0", "{:.2f}"),
    ("token_time_100us", "{:.3f}"),
    ("layers_wait", "{:.1%}"),
    ("tokens_wait", "{:.1%}"),
    ("choice_loss", "{:+.2%}"),
    ("residency_loss", "{:+.2%}"),
    ("worst_residency_loss", "{:+.2%}"),
    ("flash_over_lru", "{:.2f}"),
    ("link_over_chosen", "{:.2f}"),
)


def plots(found: Found) -> dict[str, bytes]:
    """File name → PNG."""
    rows = summary(found.rows)
    drawn = {
        "token_time.png": _draw(_token_time, rows),
        "who_waits.png": _draw(_who_waits, rows),
        "loss.png": _draw(_loss, found.rows),
    }
    if found.missing:
        drawn["missing.png"] = _draw(_missing, found.missing)
    return drawn


def page(found: Found, pictures: dict[str, bytes], what: str) -> str:
    """``what``: a line on model, documents and settings."""
    title = "KELP: a choice near memory, and what it is worth"
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="under">{escape(what)}</p>',
        "<h2>Over all documents, no host compute</h2>",
        _table(summary(found.rows)),
        "<h2>Over all documents, 100 µs of compute a layer</h2>",
        _table(summary(found.rows_100us)),
    ]
    for name, image in pictures.items():
        data = base64.b64encode(image).decode()
        parts.append(
            f'<h2>{escape(_TITLES[name])}</h2><section><img alt="{escape(_TITLES[name])}" '
            + f'src="data:image/png;base64,{data}"></section>'
        )
    parts += ["<h2>Document by document, no host compute</h2>", _documents(found.rows)]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        + f"<title>{title}</title><style>{STYLE}</style>"
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body><main>{"".join(parts)}'
        + "</main></body></html>\n"
    )


_TITLES = {
    "token_time.png": "Token time: 1 is plain reads of the ideal's pages, everything resident",
    "who_waits.png": "Who waits",
    "loss.png": "Perplexity against the ideal reader's, document by document",
    "missing.png": "Missing mass: estimated and true",
}


def _cell(value, form: str) -> str:
    return "–" if value is None else form.format(value)


def _table(entries) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name, _ in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(e[name], form)}</td>" for name, form in COLUMNS) + "</tr>"
        for e in entries
    )
    return f"<section><table><tr>{head}</tr>{body}</table></section>"


def _documents(rows) -> str:
    keys = list(rows[0])
    head = "".join(f"<th>{escape(key.replace('_', ' '))}</th>" for key in keys)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(r[k]) if isinstance(r[k], str) else f'{r[k]:.4g}'}</td>" for k in keys
        )
        + "</tr>"
        for r in rows
    )
    return f"<section><table><tr>{head}</tr>{body}</table></section>"


def _draw(how, rows) -> bytes:
    figure = how(rows)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    return data.getvalue()


def _bars(panel, entries, key, form, *, log=False) -> None:
    shares = sorted({e["residency"] for e in entries})
    readers = list(dict.fromkeys(e["reader"] for e in entries))
    width = 0.8 / len(readers)
    for n, reader in enumerate(readers):
        own = {e["residency"]: e[key] for e in entries if e["reader"] == reader}
        at = np.arange(len(shares)) + (n - (len(readers) - 1) / 2) * width
        values = [own[s] for s in shares]
        panel.bar(at, values, width * 0.92, color=_COLOURS.get(reader, "#555"), label=reader)
        for x, value in zip(at, values, strict=True):
            panel.text(x, value, form.format(value), ha="center", va="bottom", fontsize=7)
    panel.set_xticks(range(len(shares)), [f"{s:.1%} resident" for s in shares])
    panel.spines[["top", "right"]].set_visible(False)
    if log:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        values = [e[key] for e in entries]
        if max(values) < 10 * min(values):  # no decade is between them
            panel.yaxis.set_minor_formatter("{x:g}")
            panel.tick_params(axis="y", which="minor", labelsize=7)
    panel.margins(y=0.12)


def _token_time(entries):
    figure, panels = plt.subplots(2, 1, figsize=(11, 8), layout="constrained")
    for panel, key, title in (
        (panels[0], "token_time_0", "no host compute"),
        (panels[1], "token_time_100us", "100 µs of compute a layer"),
    ):
        _bars(panel, entries, key, "{:.2f}", log=True)
        panel.axhline(1, color="#252b33", linewidth=0.8)
        panel.set_title(f"token time, {title}", loc="left", fontsize=11)
    panels[0].legend(ncols=6, fontsize=8, frameon=False, loc="upper right")
    return figure


def _who_waits(entries):
    figure, panels = plt.subplots(2, 1, figsize=(11, 8), layout="constrained")
    for panel, key, title in (
        (panels[0], "layers_wait", "share of layers that wait, no host compute"),
        (panels[1], "tokens_wait", "share of tokens that wait, no host compute"),
    ):
        _bars(panel, entries, key, "{:.0%}")
        panel.set_ylim(0, 1.15)
        panel.set_title(title, loc="left", fontsize=11)
    panels[0].legend(ncols=6, fontsize=8, frameon=False, loc="upper right")
    return figure


def _loss(rows):
    shares = sorted({r["residency"] for r in rows})
    figure, panels = plt.subplots(
        1, len(shares), figsize=(4.2 * len(shares), 4.2), layout="constrained", squeeze=False
    )
    documents = list(dict.fromkeys(r["document"] for r in rows))
    for panel, share in zip(panels[0], shares, strict=True):
        for reader in dict.fromkeys(r["reader"] for r in rows):
            if reader == "ideal":
                continue
            own = [r for r in rows if r["residency"] == share and r["reader"] == reader]
            values = [100 * np.expm1(r["nll"] - r["nll_ideal"]) for r in own]
            panel.plot(
                values,
                [documents.index(r["document"]) for r in own],
                "o",
                color=_COLOURS.get(reader, "#555"),
                label=reader,
                alpha=0.85,
            )
        panel.axvline(0, color="#c9a227", linewidth=1)
        panel.set_yticks(range(len(documents)), documents, fontsize=8)
        panel.set_ylim(-0.6, len(documents) - 0.4)
        panel.set_xscale("symlog", linthresh=1)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.margins(x=0.12)
        panel.set_xlabel("perplexity over the ideal reader's, %")
        panel.set_title(f"{share:.1%} resident", loc="left", fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].legend(fontsize=8, frameon=False)
    return figure


def _missing(entries):
    figure, panel = plt.subplots(figsize=(6, 5.4), layout="constrained")
    for n, share in enumerate(sorted({e["residency"] for e in entries})):
        mine = [e for e in entries if e["residency"] == share and e["compute"] == 0]
        x, y = [], []
        for start in sorted({e["from"] for e in mine}):
            part = [e for e in mine if e["from"] == start]
            count = sum(e["count"] for e in part)
            x.append(sum(e["estimated"] * e["count"] for e in part) / count)
            y.append(sum(e["true"] * e["count"] for e in part) / count)
        panel.plot(x, y, "o-", color=plt.get_cmap("viridis")(0.2 + 0.3 * n), label=f"{share:.1%}")
    panel.plot([0, 1], [0, 1], color="#8a94a0", linewidth=1)
    panel.set_xlabel("estimated")
    panel.set_ylabel("true, mean of the choices in a bin")
    panel.legend(frameon=False, title="resident")
    panel.spines[["top", "right"]].set_visible(False)
    return figure
