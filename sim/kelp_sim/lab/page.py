# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The rows of a sweep as one HTML page that a person reads top to bottom; plots are inside it,
nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import io
from html import escape

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from .gaps import name_of

__all__ = ["STYLE", "page"]

_GAP = "0 is LRU over one pool, 1 is Belady over one pool"
#: Of the pages of lab and choice.
STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; color: #252b33;
  background: #f5f6f8; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 26px 0 8px; }
p.under { color: #5b6570; margin: 0 0 12px; }
section { background: #fff; border: 1px solid #e1e5ea; border-radius: 8px; padding: 14px 18px;
  overflow-x: auto; }
img { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; padding: 4px 12px 4px 0;
  border-bottom: 2px solid #d5dae0; }
td { padding: 3px 12px 3px 0; border-bottom: 1px solid #eef0f3; white-space: nowrap; }
"""


def page(rows: list[dict], entries: list[dict], losses: list[dict]) -> str:
    """``rows``, their ``entries`` (gaps.summary) and ``losses`` (gaps.losses) as one page."""
    traces = list(dict.fromkeys(r["trace"] for r in rows))
    shares = list(dict.fromkeys(r["residency"] for r in rows))
    title = f"KELP policy lab: {', '.join(traces)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="under">{_count(rows):,} accesses a policy and residency · read rule '
        + f"{escape(rows[0]['rule'])} · gap: {_GAP}</p>",
        "<h2>Who waits</h2>",
        _section(_waiting(entries, shares)),
        "<h2>The ladder</h2>",
        _section(_figure(_ladder, entries, shares)),
        "<h2>Misses against residency</h2>",
        _section(_figure(_curves, entries, shares)),
        "<h2>Every policy</h2>",
        _section(_table(entries)),
        "<h2>Document by document</h2>",
        _section(_documents(entries)),
        "<h2>Hit rate of each queue (layer, KV head)</h2>",
        _section(_figure(_maps, rows, shares)),
        "<h2>Prefetch: was it used?</h2>",
        _section(_prefetch(entries)),
        "<h2>What it costs</h2>",
        _section(_costs(entries)),
        "<h2>Where a queue loses to LRU per queue</h2>",
        _section(_losses(losses)),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" '
        + f'content="width=device-width"><title>{escape(title)}</title><style>{STYLE}</style>'
    )
    return (
        "<!doctype html><html "
        + f'lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>\n'
    )


def _count(rows):
    first = rows[0]
    return sum(
        r["accesses"]
        for r in rows
        if all(r[f] == first[f] for f in ("policy", "parameters", "scope", "residency"))
    )


def _name(entry) -> str:
    return f"{name_of(entry)} ({entry['scope']})"


def _section(body: str) -> str:
    return f"<section>{body}</section>"


def _figure(draw, *arguments) -> str:
    figure = draw(*arguments)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}">'


def _ladder(entries, shares):
    """Horizontal bars of the hit rate, one panel a residency, lowest first."""
    most = max(sum(e["residency"] == s for e in entries) for s in shares)
    figure, panels = plt.subplots(
        1, len(shares), figsize=(5 * len(shares), 0.9 + 0.27 * most), squeeze=False
    )
    for panel, share in zip(panels[0], shares, strict=True):
        own = sorted((e for e in entries if e["residency"] == share), key=lambda e: e["hit_rate"])
        rates = [100 * e["hit_rate"] for e in own]
        colours = [
            "#1f6fd1"
            if e["policy"].startswith("kelp")
            else "#8a94a0"
            if not e["oracle"]
            else "#c9a227"
            for e in own
        ]
        panel.barh([_name(e) for e in own], rates, color=colours)
        low = min(rates)
        panel.set_xlim(max(0, min(99, low - 0.15 * (100 - low))), 100)
        for at, rate in enumerate(rates):
            panel.text(rate, at, f" {rate:.2f}", va="center", fontsize=7)
        panel.tick_params(labelsize=8)
        panel.locator_params(axis="x", nbins=5)
        panel.set_title(f"{share:.1%} resident: hit rate, %", fontsize=10)
    figure.tight_layout()
    return figure


def _curves(entries, shares):
    figure, panel = plt.subplots(figsize=(9, 4.5))
    for name, scope in dict.fromkeys((_name(e), e["scope"]) for e in entries):
        own = {e["residency"]: 100 * (1 - e["hit_rate"]) for e in entries if _name(e) == name}
        ours = name.startswith("kelp")
        at = sorted(shares)
        panel.plot(
            [100 * s for s in at],
            [max(1e-3, own[s]) for s in at],
            marker="o",
            lw=2.4 if ours else 1,
            ls="-" if scope == "pooled" else "--",
            label=name,
        )
    panel.set_yscale("log")
    panel.set_xlabel("resident at the end, % of all pages")
    panel.set_ylabel("misses, % of accesses")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _maps(rows, shares):
    """Queue hit rates, mean over traces, layers × heads, for the pooled policies at the least
    residency."""
    share = min(shares)
    pooled = [r for r in rows if r["residency"] == share and r["scope"] == "pooled"]
    names = list(dict.fromkeys(name_of(r) for r in pooled))
    across = min(6, len(names))
    down = -(-len(names) // across)
    figure, panels = plt.subplots(down, across, figsize=(2.2 * across, 2.6 * down), squeeze=False)
    for panel in panels.flat:
        panel.axis("off")
    for panel, name in zip(panels.flat, names, strict=False):
        own = [r for r in pooled if name_of(r) == name]
        if len({(len(r["queue_hit_rates"]), r["kv_heads"]) for r in own}) > 1:
            panel.set_title(f"{name}: traces of several shapes", fontsize=8)
            continue
        rates = np.mean([r["queue_hit_rates"] for r in own], axis=0).reshape(-1, own[0]["kv_heads"])
        panel.axis("on")
        shown = panel.imshow(100 * rates, vmin=40, vmax=100, cmap="viridis", aspect="auto")
        panel.set_title(name, fontsize=9)
        panel.set_xticks(range(rates.shape[1]))
        panel.set_xlabel("KV head", fontsize=7)
        panel.set_ylabel("layer", fontsize=7)
        panel.tick_params(labelsize=6)
        bar = figure.colorbar(shown, ax=panel, fraction=0.05, extend="min")
        bar.ax.tick_params(labelsize=6)
    figure.suptitle(f"{share:.1%} resident, one pool, %", fontsize=10)
    figure.tight_layout()
    return figure


def _html_table(head, body) -> str:
    cells = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in line) + "</tr>" for line in body
    )
    return f"<table><tr>{cells}</tr>{lines}</table>"


def _waiting(entries, shares) -> str:
    """Shortest token time at the least residency first."""
    found = {(_name(e), e["residency"]): e for e in entries}
    names = sorted(
        dict.fromkeys(map(_name, entries)), key=lambda n: found[n, shares[0]]["token_time"]
    )
    body = [
        (
            name,
            *(
                f"{e['token_time']:.2f} · {e['waiting_layers']:.1%} · {e['waiting_tokens']:.1%}"
                for e in (found[name, share] for share in shares)
            ),
        )
        for name in names
    ]
    under = (
        "Token time by the model (a step's cycles over those with everything resident) · layers · "
        + "tokens with at least one miss."
    )
    return f'<p class="under">{under}</p>' + _html_table(
        ("policy", *(f"{share:.1%} resident" for share in shares)), body
    )


def _table(entries) -> str:
    body = []
    for e in entries:
        interval = (
            "–" if e["gap_interval"] is None else "{:+.2f} … {:+.2f}".format(*e["gap_interval"])
        )
        flash = e["flash_against_lru_pooled"]
        body.append(
            (
                _name(e),
                f"{e['residency']:.1%}",
                f"{e['hit_rate']:.2%}",
                _gap(e["gap"]),
                interval,
                "–" if flash is None else f"{flash:.2f}",
                "told the future" if e["oracle"] else "",
            )
        )
    return _html_table(
        (
            "policy",
            "resident",
            "hit rate",
            "gap",
            "95 % over documents",
            "flash reads / pooled LRU's",
            "",
        ),
        body,
    )


def _gap(value) -> str:
    return "–" if value is None else f"{value:+.3f}"


def _documents(entries) -> str:
    """The gap on each document, and over the others without it."""
    traces = list(entries[0]["gap_by_trace"])
    body = []
    for e in entries:
        if e["oracle"]:
            continue
        alone, without = e["gap_by_trace"], e["gap_leaving_out"]
        body.append(
            (
                _name(e),
                f"{e['residency']:.1%}",
                *(_gap(alone[t]) + (f" ({_gap(without[t])})" if without else "") for t in traces),
            )
        )
    under = (
        "Gap on each document; in brackets over the others, without it."
        if len(traces) > 1
        else "Gap."
    )
    return f'<p class="under">{under}</p>' + _html_table(("policy", "resident", *traces), body)


def _prefetch(entries) -> str:
    body = [
        (
            _name(e),
            f"{e['residency']:.1%}",
            f"{e['prefetch_issued']:,}",
            f"{e['prefetch_useful'] / e['prefetch_issued']:.1%}",
            f"{e['prefetch_late']:,}",
            _gap(e["gap"]),
            _gap(e["gap_without_prefetch"]),
        )
        for e in entries
        if e["prefetch_issued"]
    ]
    return (
        _html_table(
            ("policy", "resident", "issued", "used", "late", "gap", "gap, prefetch off"), body
        )
        if body
        else "No policy here prefetches."
    )


def _costs(entries) -> str:
    seen = {_name(e): e for e in entries}
    return _html_table(
        ("policy", "bits kept per page"),
        [(name, e["metadata_bits_per_page"]) for name, e in seen.items() if not e["oracle"]],
    )


def _losses(losses) -> str:
    if not losses:
        return "Nowhere by more than 0.1 point, or neither kelp nor a policy of one's own was run."
    body = [
        (
            f["policy"],
            f["trace"],
            f"{f['residency']:.1%}",
            f["queue"],
            f"{f['hit_rate']:.2%}",
            f"{f['lru_per_head']:.2%}",
        )
        for f in losses[:40]
    ]
    return _html_table(("policy", "trace", "resident", "queue", "hit rate", "LRU per queue"), body)
