# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Merges what runs under ``$KELP_COVERAGE`` left: Verilator's ``coverage.dat`` and the figures that
benches record.

A *line* is a branch of the emitted Verilog: each side of an `If`, a `Switch`, an FSM state or a
multiplexer of the source. A *control signal* has one bit and a name in the source; its rise and its
fall are a point each. Modules of the stream rule's checks are no part of a design, nor are branches
that Yosys and the harness add, and what an `Assert` says when it fails.
"""

import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

__all__ = ["BARS", "block_rows", "point_rows"]

#: Kind → the share that must be reached.
BARS = {"line": 0.95, "toggle": 0.9}
_HERE = Path(__file__).parent
# The trigger and the constant condition of Yosys's `always @*`, and the harness's guard of asserts.
_ADDED = re.compile(r"\$auto\$verilog_backend|if \(1'h1\)|if \(\$time > 1\)")
_GENERATED = "__024"  #: the dollar of a name that Amaranth or Yosys gave, as Verilator spells it
_NUMBERED = re.compile(r"\$\d")  #: of such a name another configuration has another meaning
_KINDS = {"v_line": "line", "v_branch": "line", "v_toggle": "toggle"}


def _runs(folder: Path) -> Iterator[dict]:
    for path in sorted(folder.glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8")) | {"data": path.with_suffix(".dat")}


def _points_of(path: Path) -> Iterator[tuple[dict, int]]:
    """The points of one ``coverage.dat``, each as Verilator's fields, and how often it was met."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if found := re.fullmatch(r"C '(.*)' (\d+)", line):
            fields = (field.partition("\x02") for field in found[1].split("\x01") if field)
            yield {name: value for name, _, value in fields}, int(found[2])


@cache
def _source(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _lines(path: str, number: int) -> tuple[str, str]:
    """A line, by its number from 1 on, and the one that follows."""
    source = _source(path)
    return source[number - 1].strip(), "".join(source[number : number + 1]).strip()


def _named(run: dict) -> Iterator[tuple[str, str, int]]:
    """(kind, what, count) of one run's points: of a line its module and text, with a number where a
    module has equal ones, of an edge of a signal its module and name."""
    met = Counter()
    for fields, count in _points_of(run["data"]):
        page, _, module = fields.get("page", "").partition("/")
        kind = _KINDS.get(page)
        if kind is None or "stream_rule" in module:
            continue
        if kind == "toggle":
            what = fields["o"]
            if _GENERATED in what:
                continue
        else:
            text, then = _lines(run["verilog"], int(fields["l"]))
            # A block is a register's initial value or a process as a whole.
            if fields["o"] == "block" or _ADDED.search(text) or then.startswith("$write("):
                continue
            what = f"{text} ({fields['o']})"
        place = f"{module}: {what}"
        met[place] += 1
        yield kind, place if met[place] == 1 else f"{place} #{met[place]}", count


def block_rows(folder: Path) -> list[dict]:
    """For each class that was simulated: points, reached ones, waived ones and what is missed, of
    lines and of control signals. Of several configurations it is the largest that meets the bars,
    or the one closest to them; a point with a name in the source counts whichever reached it."""
    met: dict[str, dict[str, dict[str, Counter]]] = defaultdict(lambda: defaultdict(_by_kind))
    for run in _runs(folder):
        if run["data"].is_file():
            design = "\n".join(_source(run["verilog"]))
            for kind, what, count in _named(run):
                met[run["component"]][design][kind][what] += count
    return [
        max(
            (_row(block, design, designs.values()) for design in designs.values()),
            key=_standing,
        )
        for block, designs in sorted(met.items())
    ]


def _by_kind() -> dict[str, Counter]:
    return defaultdict(Counter)


def _standing(row: dict) -> tuple[bool, float]:
    if row["met"]:
        return True, sum(row[kind]["points"] for kind in BARS)
    return False, min(row[kind]["share"] / bar for kind, bar in BARS.items())


def _row(block: str, design: dict[str, Counter], designs: Iterable[dict[str, Counter]]) -> dict:
    """What was met of one of a block's `designs`."""
    row: dict = {"block": block}
    for kind in BARS:
        points = design[kind]
        missed = sorted(
            what
            for what, count in points.items()
            if not count and (_NUMBERED.search(what) or not any(d[kind][what] for d in designs))
        )
        waived = [what for what in missed if _waived(block, kind, what)]
        reached = len(points) - len(missed)
        asked = len(points) - len(waived)
        row[kind] = {
            "points": len(points),
            "reached": reached,
            "waived": len(waived),
            "share": reached / asked if asked else 1.0,
            "missed": [what for what in missed if what not in waived],
        }
    row["met"] = all(row[kind]["share"] >= bar for kind, bar in BARS.items())
    return row


@cache
def _waivers() -> list[dict]:
    return tomllib.loads((_HERE / "waivers.toml").read_text(encoding="utf-8"))["waiver"]


def _waived(block: str, kind: str, what: str) -> bool:
    return any(
        waiver["block"] in ("*", block)
        and waiver["kind"] == kind
        and re.search(waiver["match"], re.sub(r"(:[01]->[01])?( #\d+)?$", "", what))
        for waiver in _waivers()
    )


def point_rows(folder: Path) -> list[dict]:
    """The cover points, each with how often its bench met it: the most of any of its runs, None
    where the bench did not run."""
    most: dict[str, Counter] = {}
    for run in _runs(folder):
        figures = most.setdefault(run["bench"].removeprefix("kelp_verif."), Counter())
        for name, value in _flat(run["records"]):
            figures[name] = max(figures[name], value)
    rows = []
    for clause in tomllib.loads((_HERE / "points.toml").read_text(encoding="utf-8"))["clause"]:
        for point in clause["points"]:
            figures = most.get(clause["bench"])
            met = None if figures is None else figures[point["counter"]]
            rows.append(
                {
                    "clause": clause["title"],
                    "point": point["point"],
                    "bench": clause["bench"],
                    "met": met,
                    "reached": met is not None and met >= point.get("least", 1),
                }
            )
    return rows


def _flat(records, prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in records.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value
