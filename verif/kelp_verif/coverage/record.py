# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What is kept of coverage runs, which may be made in parts: each block and each cover point as the
run that looked at it last left it."""

import textwrap

from .report import BARS

__all__ = ["EMPTY", "markdown", "merged"]

EMPTY: dict = {"bars": BARS, "blocks": [], "cover_points": []}


def merged(kept: dict, blocks: list[dict], points: list[dict], state: dict) -> dict:
    """`kept`, with what a run at `state` (date, commit) found in place of what it looked at: blocks
    that it simulated, and points whose bench ran."""
    rows = {row["block"]: row for row in kept["blocks"]}
    rows |= {row["block"]: row | state for row in blocks}
    known = {_key(point): point for point in kept["cover_points"]}
    asked = [
        point | state if point["met"] is not None else known.get(_key(point), point)
        for point in points
    ]
    return {"bars": BARS, "blocks": [rows[name] for name in sorted(rows)], "cover_points": asked}


def _key(point: dict) -> tuple:
    return point["bench"], point["point"]


def markdown(record: dict) -> str:
    """The blocks as a table, what each clause's cover points came to, and the blocks below the
    bar."""
    if not record["blocks"]:
        return "No run is recorded.\n"
    lines = [
        "| block | lines | reached | control signals' edges | reached | waived | last run |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["blocks"]:
        cells = [f"`{row['block']}`"]
        for kind in BARS:
            cells += [str(row[kind]["points"]), f"{row[kind]['share']:.1%}"]
        cells += [str(sum(row[kind]["waived"] for kind in BARS)), row["date"]]
        lines.append(f"| {' | '.join(cells)} |")
    low = [f"`{row['block']}`" for row in record["blocks"] if not row["met"]]
    lines += ["", textwrap.fill(f"Below a bar: {', '.join(low) or 'none'}.", 120), ""]
    lines += ["| clause | cover points | reached | last run |", "|---|---|---|---|"]
    clauses: dict[str, list[dict]] = {}
    for point in record["cover_points"]:
        clauses.setdefault(point["clause"], []).append(point)
    for clause, points in clauses.items():
        reached = sum(point["reached"] for point in points)
        dates = [point["date"] for point in points if "date" in point]
        lines.append(f"| {clause} | {len(points)} | {reached} | {max(dates, default='never')} |")
    missed = [p for p in record["cover_points"] if not p["reached"] and p["met"] is not None]
    if missed:
        said = ", ".join(f"{point['point']} ({point['bench']})" for point in missed)
        lines += ["", textwrap.fill(f"Not reached: {said}.", 120)]
    return "\n".join([*lines, ""])
