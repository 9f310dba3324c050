# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""docs/figures.md: the rows of ``kelp bench`` as a page."""

import re
from collections.abc import Iterable, Iterator

from .bars import NOT_MEASURED

__all__ = ["figures_markdown"]

# Group → heading, and what its rows are. The page is checked to have every group of the command.
_TITLES = {
    "metadata": (
        "Metadata",
        "SRAM bytes for each byte that they describe, check bits included: page word, score word "
        + "and profile per byte of KV, a frame's entry per resident byte. Pages of 8 KB. Counted "
        + "from the layouts, not simulated.",
    ),
    "codec": (
        "Codec",
        "Quantiser (`enc`) and dequantiser (`dec`) alone, 12 000 random lines in every format, at "
        + "full rate. The latency is the largest seen.",
    ),
    "blocks": (
        "Blocks",
        "Tracker, EMA engine and prefetcher alone, 640 queues. `background` is what is left for "
        + "ops of the engines while requests come in every cycle.",
    ),
    "endpoint": (
        "Endpoint, all hits",
        "16 interleaved page-sequential streams, a memory of 64 cycles. The latency is that of "
        + "the slowest format, beyond the memory's own.",
    ),
    "kelp": ("Endpoint, policy `kelp`", "Hits and storms of misses, as in the other groups."),
    "miss": (
        "Storms of misses",
        "One line of each cold page is asked for, with hits on 16 streams in between; the tier has "
        + "14 GB/s and 25 µs, at 1 GHz. `one_hot_queue`: all hits in the queue that victims are "
        + "asked of. `dirty`: each fetch costs a write-back too.",
    ),
    "scale": (
        "Cost against size",
        "5 % page misses, 128 lines per access; the bar is 5 % more than 64 × 64.",
    ),
    "waiting": (
        "Who waits",
        "Real model (SmolLM2-135M, `data/traces/smollm2_argparse.npz`), a quarter of the pages "
        + "resident. `layers`, `tokens`: the shares that wait for a page from flash; `token_time`: "
        + "a step's cycles over those with everything resident ([replay.md](replay.md#who-waits)). "
        + "Policies over one pool on the whole recording, by the model; `rtl` is the clock of the "
        + "demo's part under `kelp`, 16 steps that begin with the newest pages resident: most of "
        + "their layers wait.",
    ),
    "policy": (
        "Policy `kelp`",
        "`gap_closed`: of the misses between LRU and Belady, both over one pool, from history "
        + "alone. `real_model` is SmolLM2-135M (`data/traces/smollm2_argparse.npz`, tuned on), "
        + "`kelp` three recordings of the small model.",
    ),
    "select": (
        "Choice near memory",
        "attn_3, a text that the small model decodes by chosen pages "
        + "([select_study.md](select_study.md)). "
        + "Configuration `trace_select`: 200 steps on the RTL, everything resident; "
        + "`timing_error` is the timing model's, of all cycles. `gathered_lines_per_cycle`: while "
        + "the next KV head's SELECT runs; `hit_lines_per_cycle`: plain ones of a session amid a "
        + "choice of its own. Below: 959 steps by that model, a quarter of the pages resident.",
    ),
    "replay": (
        "Replay rates",
        "Wall-clock rates of one core, the median of three, attn_0 (the small model), comparison "
        + "with the golden model included. They are of the machine as much as of the program: the "
        + "last row is a plain Python loop in the same run.",
    ),
    "lab": (
        "Policy lab",
        "Wall-clock rates of one core, the median of three, attn_0 (the small model) at 25 %, one "
        + "pool; libcachesim's in the same run, where it is installed.",
    ),
    "host": (
        "Host library",
        "Wall-clock rates of the library on simulated devices. Simulation is not acceleration.",
    ),
    "serve": (
        "Server",
        "99th percentile of 200 clients' latency, wall clock, without attackers and beside one of "
        + "each kind, in turns; the ratio is the median of five.",
    ),
    "hf": (
        "Hugging Face",
        "Greedy decoding of a tiny random Llama and, under `smollm2`, of SmolLM2-135M, wall clock; "
        + "`update` at SmolLM2's sizes, CPU time. `.venv.hf`.",
    ),
}


def figures_markdown(rows: Iterable[dict], groups: Iterable[str]) -> str:
    """The page; `rows` as `kelp bench` writes them, `groups` all that it has."""
    of: dict[str, list[dict]] = {group: [] for group in groups}
    for row in rows:
        of[row["command"].rpartition(" ")[2]].append(row)
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1 -->",
        "# Figures",
        "",
        "This page has every row that `kelp bench` measures, against its bar, for whoever judges "
        + "what KELP came to. Bars are those of [spec §10](specification.md#10-bars). Figures of "
        + "boards are in [fpga.md](fpga.md), hit rates of policies in [lab.md](lab.md).",
        "",
        "| group | rows | miss their bar |",
        "|---|---|---|",
        *(_summary(group, measured) for group, measured in of.items()),
        "",
        "Generated by `kelp docs` from `data/bench/bench.json`; `tests/test_docs.py` checks that "
        + "it is up to date. Do not edit. To measure anew:",
        "",
        "```sh",
        "kelp bench -o data/bench/bench.json    # all groups; --only GROUP measures one",
        "kelp docs",
        "```",
        "",
        "`kelp bench` exits 1 where a row in cycles or a ratio misses its bar, and warns where a "
        + "wall-clock row does.",
    ]
    for group, measured in of.items():
        lines += _group(group, measured)
    lines += ["", "## Not measured", ""]
    lines += ["Bars of what `kelp bench` does not run. [select_study.md](select_study.md) has"]
    lines += ["measured all by hand but the gaps of the real model.", ""]
    lines += ["| row | unit | bar |", "|---|---|---|"]
    lines += [f"| `{name}` | {unit} | {goal} |" for name, unit, goal in NOT_MEASURED]
    return "\n".join(lines) + "\n"


def _summary(group: str, rows: list[dict]) -> str:
    """The group's row in the table at the top."""
    title, _ = _TITLES[group]
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    missed = ", ".join(f"`{row['name']}`" for row in rows if row["met"] is False)
    return f"| [{title}](#{anchor}) | {len(rows) or 'not in this run'} | {missed} |"


def _group(group: str, rows: list[dict]) -> Iterator[str]:
    title, what = _TITLES[group]
    yield from ("", f"## {title}", "", what)
    command = f"`kelp bench --only {group}`"
    if not rows:
        yield from ("", f"Not in this run: {command}.")
        return
    days = sorted({row["measured"] for row in rows})
    yield from (
        "",
        f"{command}, {' and '.join(days)}:",
        "",
        "| row | measured | unit | bar | met | configuration |",
        "|---|---|---|---|---|---|",
    )
    for row in rows:
        met = {None: "", True: "yes", False: "**no**"}[row["met"]]
        cells = (
            f"`{row['name']}`",
            _number(row["value"]),
            row["unit"],
            row["goal"],
            met,
            row["config"],
        )
        yield f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
