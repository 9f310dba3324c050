# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Payloads: each is declared once, read by someone, and a field that holds a code is as wide as the
code is."""

import ast
import re
from collections import defaultdict

from amaranth.hdl import Shape
from amaranth.lib import data
from paths import ROOT

from kelp_hw.layouts import Layouts, code_shape
from kelp_spec import metadata
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.policy import Policy

HW = ROOT / "hw" / "kelp_hw"
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(HW.rglob("*.py"))}
LAYOUTS = HW / "layouts.py"
#: Field → the codes that it holds, where it does in every payload of `Layouts`.
CODES = {
    "answer": metadata.Answer,
    "code": metadata.Event,
    "format": Format,
    "format_k": Format,
    "format_v": Format,
    "miss_kind": metadata.MissKind,
    "outcome": metadata.Outcome,
    "policy": Policy,
    "refused": metadata.Event,
    "score_source": metadata.ScoreSource,
    "status": metadata.ColdStatus,
}
#: Payload → the codes of its `kind` or `op`.
KINDS = {
    "op": metadata.Op,
    "frame_op": metadata.Op,
    "data_op": metadata.DataOp,
    "score_event": metadata.ScoreEvent,
    "score_commit": metadata.ScoreEvent,
    "cold_command": metadata.ColdOp,
}


def structs(tree):
    """The fields of each struct of two fields and more that is written out."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("StructLayout", "S")
            and node.args
            and isinstance(node.args[0], ast.Dict)
        ):
            keys = [key.value for key in node.args[0].keys if isinstance(key, ast.Constant)]
            if len(keys) > 1:
                yield tuple(keys)


def declared_in_two_rooms(sources):
    """Field names that are written out as a struct in more than one room (`layouts` is one)."""
    rooms = defaultdict(set)
    for path, text in sources.items():
        for fields in structs(ast.parse(text)):
            rooms[fields].add(path.relative_to(HW).parts[0])
    return {fields: places for fields, places in rooms.items() if len(places) > 1}


def unread(sources):
    """Payloads of `Layouts` that nobody asks for, itself among them."""
    others = "\n".join(text for path, text in sources.items() if path != LAYOUTS)
    own = sources[LAYOUTS]
    return {
        name
        for name in re.findall(r"self\.(\w+) = ", own)
        if not re.search(rf"[lL]ayouts(?:\([^()]*\))?\.{name}\b", others)
        and len(re.findall(rf"self\.{name}\b", own)) == 1
    }


def test_no_payload_is_declared_in_two_rooms():
    assert not declared_in_two_rooms(SOURCES)


def test_a_payload_that_is_declared_again_is_seen():
    again = HW / "host" / "again.py"
    text = 'x = data.StructLayout({"missed": 1, "cycles": 20})'
    assert list(declared_in_two_rooms(SOURCES | {again: text})) == [("missed", "cycles")]


def test_every_payload_is_read():
    assert not unread(SOURCES)
    forgotten = SOURCES[LAYOUTS] + "        self.forgotten = S({})\n"
    assert unread(SOURCES | {LAYOUTS: forgotten}) == {"forgotten"}


def test_fields_are_as_wide_as_their_codes():
    layouts, seen = Layouts(named("unit")), set()
    for name, layout in vars(layouts).items():
        if not isinstance(layout, data.StructLayout):
            continue
        codes = CODES | {key: KINDS[name] for key in ("kind", "op") if name in KINDS}
        for field, place in layout:
            if field in codes and not isinstance(place.shape, data.StructLayout):
                assert Shape.cast(place.shape) == code_shape(codes[field]), f"{name}.{field}"
                seen.add(field)
    assert seen >= CODES.keys()
