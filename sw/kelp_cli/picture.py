# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The picture of docs/architecture.md: the rooms of the endpoint with their blocks, each a link to
its file, and the steps of four ways through them. The tables below are all that it shows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROOMS", "WAYS", "picture"]


@dataclass(frozen=True, kw_only=True)
class Room:
    """A room at (`x`, `y`) with its `blocks` by rows of `columns`, (file, what it does) each; None
    leaves a place free. `joined`: the file that joins them, where it is not one of them."""

    x: int
    y: int
    columns: int
    blocks: tuple
    joined: str = ""

    @property
    def height(self) -> int:
        return _HEAD + _PITCH_Y * -(-len(self.blocks) // self.columns)


_BOX, _PITCH_X, _PITCH_Y, _HEAD = (124, 42), 132, 52, 28
_TOP, _BELOW = 50, 452  #: of the upper and of the lower rooms
_FOOT, _PACKAGES = 914, 978  #: of what every room uses, and of the other packages
_WIDTH, _HEIGHT = 1140, 1046

ROOMS = {
    "host": Room(
        x=110,
        y=_TOP,
        columns=1,
        blocks=(
            ("ingress", "M2S in, address decode"),
            ("windows", "hint or register"),
            ("hints", "hint lines to ops"),
            None,
            None,
            ("egress", "answers to S2M"),
        ),
    ),
    "tracker": Room(
        x=270,
        y=_TOP,
        columns=2,
        joined="tracker",
        blocks=(
            ("arbiter", "M0: who enters"),
            ("foresight", "what M0 knows ahead"),
            ("hot_pages", "pages held in registers"),
            ("page_words", "page words, SECDED"),
            ("sessions", "open, owner, range"),
            ("decide", "M3: what an op does"),
            ("pools", "free frames, pins"),
            ("miss_ids", "free miss ids, counts"),
            ("queue_formats", "formats, pool, policy"),
            ("page_address", "line to DRAM line"),
            ("frame_table", "F1, F2: dirty, valid"),
            ("error_lines", "errors to frame table"),
        ),
    ),
    "datapath": Room(
        x=562,
        y=_TOP,
        columns=2,
        joined="datapath",
        blocks=(
            ("front", "D1, D2: slots, early AR"),
            ("slot_table", "tags, allocation, due"),
            ("line_slots", "DRAM lines of payload"),
            ("scale_slots", "DRAM lines of scales"),
            ("head", "executes ops in order"),
            ("order", "the ops between them"),
            ("write_store", "host data by slot"),
            ("write_path", "full, partial writes"),
            ("quarters", "a payload in its line"),
            ("error_reports", "memory's errors"),
            ("flush", "frame out of buffers"),
            ("write_out", "AW, W, B"),
        ),
    ),
    "codec": Room(
        x=854,
        y=90,
        columns=1,
        blocks=(
            ("dequantise", "stored to host: 6"),
            ("quantise", "host to stored: 10"),
            ("raw_lines", "no codec: raw16 alone"),
        ),
    ),
    "control": Room(
        x=110,
        y=_BELOW,
        columns=2,
        blocks=(
            ("registers", "the register window"),
            ("register_file", "storage, access rights"),
            ("session_control", "OPEN, CLOSE, step"),
            ("queue_config", "a queue's settings"),
            ("telemetry", "results to pulses"),
            ("counters", "totals, per queue"),
            ("events", "event log, irq"),
            ("faults", "memories' errors"),
            ("phase", "prefill or decode"),
        ),
    ),
    "prefetch": Room(
        x=402,
        y=_BELOW,
        columns=1,
        blocks=(
            ("sources", "where candidates begin"),
            ("prefetch", "judges candidates"),
            ("fifo", "nearest first, no twins"),
            ("throttle", "credit by usefulness"),
        ),
    ),
    "scores": Room(
        x=402,
        y=_BELOW + 268,
        columns=1,
        blocks=(
            ("ema", "the EMA of every page"),
            ("kelp_scores", "what policy kelp values"),
        ),
    ),
    "eviction": Room(
        x=562,
        y=_BELOW,
        columns=2,
        joined="eviction",
        blocks=(
            ("evictor", "chooses the victim"),
            ("queue_state", "per-queue facts"),
            ("plain_search", "next step, policy 0"),
            ("kelp_search", "next step, policy kelp"),
            ("pool_need", "which pool is served"),
            ("sweep", "scans a queue"),
            ("residency_map", "which pages are here"),
            ("priority", "score, age to priority"),
            ("excess_tree", "who is over budget"),
            ("candidates", "a sweep's best pages"),
            ("kelp_state", "whose turn is over"),
            ("slots", "evictions under way"),
            ("closer", "scrubs closed sessions"),
            ("orphans", "frames without a page"),
        ),
    ),
    "miss": Room(
        x=854,
        y=_BELOW,
        columns=1,
        blocks=(
            ("miss_buffer", "one entry a page: ops"),
            ("park_lists", "requests that wait"),
            ("grants", "who gets a free frame"),
            ("cold_scheduler", "flash: order, retries"),
        ),
    ),
}

#: The ways, and the files that each passes, step by step.
WAYS = {
    "read": "host/ingress tracker/arbiter tracker/page_words tracker/decide tracker/frame_table "
    + "datapath/front datapath/line_slots datapath/head codec/dequantise host/egress",
    "write": "host/ingress datapath/write_store tracker/arbiter tracker/page_words tracker/decide "
    + "tracker/frame_table datapath/front datapath/write_path codec/quantise datapath/head "
    + "host/egress datapath/write_out",
    "miss": "host/ingress tracker/page_words tracker/decide miss/park_lists miss/grants "
    + "miss/cold_scheduler miss/miss_buffer tracker/arbiter tracker/frame_table",
    "hint": "host/ingress host/windows host/hints tracker/arbiter tracker/decide scores/ema",
}
_CALLED = {"read": "a read that hits", "write": "a write", "miss": "a miss", "hint": "a hint line"}

_JOINS = (
    ("endpoint", "endpoint.py", "joins the rooms; ports"),
    ("layouts", "layouts.py", "payloads between blocks"),
    ("pipeline", "pipeline.py", "distances blocks agree on"),
    ("lib", "lib/README.md", "FIFOs, SRAMs, SECDED"),
    ("export", "export/README.md", "Verilog for others"),
    ("flit", "flit/README.md", "channels on a link"),
)
_OTHERS = (
    ("hw/kelp_spec", "what both sides share"),
    ("sim/kelp_golden", "the same, in NumPy"),
    ("sim/kelp_rtl", "RTL as a library"),
    ("verif/kelp_verif", "benches, proofs"),
    ("sim/kelp_sim", "recordings, lab"),
    ("fpga/kelp_fpga", "boards"),
    ("sw/cxl_kv", "host library"),
    ("sw/kelp_cli", "the kelp command"),
)
#: What stands outside: x, y, width, height, its name, and lines of text (y, text).
_OUTSIDE = (
    (12, 78, 82, 298, "Host", ((113, "CXL.mem"), (143, "M2S"), (315, "S2M"))),
    (1040, 50, 88, 340, "Memory", ((85, "AXI4"), (100, "512 bits"))),
    (
        1046,
        480,
        82,
        252,
        "Cold tier",
        ((515, "flash with"), (530, "its own DMA"), (560, "commands,"), (575, "completions")),
    ),
)
#: Wires between rooms; those without a head lead into another.
_WIRES = (
    "M 94 99 H 116",
    "M 116 359 H 96",
    "M 250 99 H 268",
    "M 542 359 H 560",
    "M 834 195 H 852",
    "M 854 148 H 836",
    "M 834 364 H 1038",
    "M 1040 70 H 836",
    "M 562 382 V 402 H 180 V 384",
    "M 430 426 V 392",
    "M 210 440 V 451",
    "M 500 440 V 451",
    "M 392 440 V 748 H 401",
    "M 740 440 V 451",
    "M 958 440 V 451",
    "M 994 642 H 1044",
    "M 1046 657 H 996",
)
_JOINED = (
    ("M 160 426 H 904", ""),
    ("M 210 440 H 958", ' stroke-dasharray="4 3"'),
    ("M 160 452 V 426", ""),
    ("M 450 452 V 426", ""),
    ("M 690 452 V 426", ""),
    ("M 904 452 V 426", ""),
)
_NOTES = (
    (200, 398, "answers, in the order of ops"),
    (440, 422, "ops of the engines go up to M0"),
    (640, 422, "results of M3 come down (dashed), one a cycle, in one order"),
    (12, _PACKAGES + 25, "other packages"),
)
_STYLE = """\
<style>
  svg { font-family: system-ui, sans-serif; }
  .sheet { fill: #ffffff; }
  .room { fill: #f1f5f9; stroke: #94a3b8; }
  .block { fill: #ffffff; stroke: #64748b; }
  a:hover .block { fill: #dbeafe; }
  .outside { fill: none; stroke: #64748b; stroke-dasharray: 5 3; }
  .name { font-size: 14px; font-weight: 700; fill: #0f172a; }
  .file { font-size: 12px; font-weight: 600; fill: #1d4ed8; }
  .does { font-size: 9.5px; fill: #334155; }
  .wire { fill: none; stroke: #475569; stroke-width: 1.6; marker-end: url(#head); }
  .joined { fill: none; stroke: #475569; stroke-width: 1.6; }
  .note { font-size: 10.5px; fill: #334155; }
  .step { font-size: 9.5px; font-weight: 700; fill: #ffffff; text-anchor: middle; }
  .read { fill: #2563eb; } .write { fill: #15803d; } .miss { fill: #c2410c; } .hint { fill: #7e22ce; }
</style>
<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">\
<path d="M0,0 L7,3 L0,6 z" fill="#475569"/></marker></defs>
"""  # noqa: E501


def picture() -> str:
    """The picture as SVG."""
    steps = {}
    for way, files in WAYS.items():
        for number, file in enumerate(files.split(), 1):
            steps.setdefault(file, []).append((way, number))
    unknown = steps.keys() - {f"{room}/{b[0]}" for room in ROOMS for b in ROOMS[room].blocks if b}
    assert not unknown, f"WAYS leads to {sorted(unknown)}, which no room shows"
    parts = [
        "<!-- SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1 -->",
        "<!-- written by `kelp docs` -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        + 'aria-label="The rooms of the endpoint, their blocks, and the ways of a read, a write, '
        + 'a miss and a hint">',
        _STYLE + f'<rect class="sheet" width="{_WIDTH}" height="{_HEIGHT}"/>',
        *_legend(),
    ]
    for name, room in ROOMS.items():
        parts += _room(name, room, steps)
    for x, y, width, height, name, lines in _OUTSIDE:
        parts.append(_rectangle("outside", x, y, width, height, 8))
        parts.append(_text("name", x + 8, y + 20, name))
        parts += [_text("note", x + 8, at, text) for at, text in lines]
    parts += [f'<path class="wire" d="{path}"/>' for path in _WIRES]
    parts += [f'<path class="joined" d="{path}"{dashes}/>' for path, dashes in _JOINED]
    parts += [_text("note", x, y, text) for x, y, text in _NOTES]
    for n, (name, path, does) in enumerate(_JOINS):
        parts.append(_box(f"hw/kelp_hw/{path}", name, does, 110 + 152 * n, _FOOT, 140))
    for n, (package, does) in enumerate(_OTHERS):
        name = package.rpartition("/")[2]
        parts.append(_box(f"{package}/README.md", name, does, 110 + 127 * n, _PACKAGES, 118))
    return "\n".join([*parts, "</svg>\n"])


def _legend():
    for n, (way, called) in enumerate(_CALLED.items()):
        yield _step(way, "n", 110 + 170 * n, 22)
        yield _text("note", 124 + 170 * n, 26, f"{called}, step n")
    yield _text("note", 810, 26, "every box is a link to its file")


def _room(name: str, room: Room, steps: dict):
    yield _rectangle("room", room.x, room.y, 8 + _PITCH_X * room.columns, room.height, 8)
    readme = f"hw/kelp_hw/{name}/README.md"
    yield _link(readme, _text("name", room.x + 10, room.y + 18, name))
    if room.joined:
        file = _text("does", room.x + _PITCH_X + 15, room.y + 17, f"joined in {room.joined}.py")
        yield _link(f"hw/kelp_hw/{name}/{room.joined}.py", file)
    for n, block in enumerate(room.blocks):
        if block is None:
            continue
        file, does = block
        x = room.x + 8 + _PITCH_X * (n % room.columns)
        y = room.y + _HEAD + _PITCH_Y * (n // room.columns)
        yield _box(f"hw/kelp_hw/{name}/{file}.py", file, does, x, y, _BOX[0])
        here = steps.get(f"{name}/{file}", [])
        for k, (way, number) in enumerate(here):
            yield _step(way, number, x + _BOX[0] - 8 - 18 * (len(here) - 1 - k), y - 2)


def _box(path: str, name: str, does: str, x: int, y: int, width: int) -> str:
    inside = (
        _rectangle("block", x, y, width, _BOX[1], 4),
        _text("file", x + 7, y + 19, name),
        _text("does", x + 7, y + 33, does),
    )
    return _link(path, "".join(inside))


def _link(path: str, inside: str) -> str:
    return f'<a href="../{path}">{inside}</a>'


def _rectangle(kind: str, x: int, y: int, width: int, height: int, radius: int) -> str:
    size = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    return f'<rect class="{kind}" {size} rx="{radius}"/>'


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{text}</text>'


def _step(way: str, number, x: int, y: int) -> str:
    return f'<circle class="{way}" cx="{x}" cy="{y}" r="8"/>' + _text("step", x, y + 3.5, number)
