# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Hint lines: the format in Python, the absorber in RTL."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing import check_pace, shown

from kelp_golden.hints import HintAbsorber as GoldenAbsorber
from kelp_golden.hints import HintEvent, HintOp
from kelp_hw.host.hints import HintAbsorber
from kelp_spec.config import named
from kelp_spec.hints import (
    ENTRIES,
    HEADER,
    HEADER_BITS,
    LINE_BYTES,
    HintError,
    HintKind,
    HintLine,
    mass_lines,
    pack,
    page_lines,
    unpack,
)
from kelp_spec.metadata import Event, Op
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, run_cocotb
from kelp_verif.host.hints_bench import Session

UNIT = named("unit")
SESSION = {
    "sessions.0.open": 1,
    "sessions.0.used_queues": UNIT.queues,
    "sessions.0.used_pages": UNIT.pages,
    "o_op.ready": 1,
    "o_prefetch.ready": 1,
}


@pytest.mark.parametrize(
    ("stream", "kind"), [("o_op", HintKind.PIN), ("o_prefetch", HintKind.PREFETCH)]
)
def test_latency_and_interval(stream, kind):
    """A hint line of three entries, and two cycles in which they leave."""
    data = int.from_bytes(pack(HintLine(kind=kind, entries=(1, 2, 3)), UNIT), "little")
    stimuli = [{"i.valid": 1, "i.p.data": data}, {}, {}]
    block = HintAbsorber(config=UNIT)
    check_pace(block, "LATENCY", shown(stream, "page"), stimuli, prepare=SESSION)


@st.composite
def lines(draw):
    kind = draw(st.sampled_from(HintKind))
    advance = draw(st.booleans())
    first = draw(st.integers(0, 8191)) if kind == HintKind.MASS else 0
    least = 0 if advance else 1
    if kind == HintKind.MASS:
        entries = draw(
            st.lists(st.integers(0, 65535), min_size=least, max_size=min(ENTRIES, 8192 - first))
        )
    else:
        entries = draw(
            st.lists(st.integers(0, 8191), min_size=least, max_size=ENTRIES, unique=True)
        )
    return HintLine(
        kind=kind,
        session=draw(st.integers(0, 15)),
        queue=draw(st.integers(0, 1023)),
        sequence=draw(st.integers(0, 65535)),
        first_page=first,
        entries=tuple(entries),
        advance=advance,
    )


@given(lines())
def test_unpack_undoes_pack(line):
    assert unpack(pack(line)) == line


@given(st.binary(min_size=LINE_BYTES, max_size=LINE_BYTES))
def test_unpack_takes_or_refuses_any_64_bytes(data):
    try:
        line = unpack(data)
    except HintError as error:
        assert "refused" in str(error)
    else:
        assert len(line.entries) <= ENTRIES


def test_layout_is_the_documented_one():
    assert HEADER_BITS + 16 * ENTRIES == 512 and ENTRIES == 26
    line = pack(
        HintLine(
            kind=HintKind.MASS,
            session=2,
            queue=0x123,
            sequence=0xBEEF,
            first_page=0x456,
            entries=(0x1111, 0x2222),
            advance=True,
        )
    )
    assert line.hex() == "1101020223 01efbe5604 0000 11112222".replace(" ", "") + "00" * 48


def test_docs_table_lists_the_header(repo_root):
    text = (repo_root / "docs" / "hints.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+):(\d+) \| `(\w+)` \|", text, re.MULTILINE)
    low, want = 0, []
    for name, bits, _ in HEADER:
        want.append((str(low + bits - 1), str(low), name))
        low += bits
    assert rows == want
    example = re.search(r"^```\n((?:[0-9a-f]{2} ?)+\n)+```", text, re.MULTILINE)
    worked = HintLine(
        kind=HintKind.MASS,
        session=1,
        queue=9,
        sequence=258,
        first_page=30,
        entries=(13828, 5243, 655),
        advance=True,
    )
    assert bytes.fromhex(example[0].strip("`\n")) == pack(worked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": 9}, "kind = 9"),
        ({"session": 16}, r"session = 16 .* 0 … 15"),
        ({"queue": -1}, "queue = -1"),
        ({"sequence": 65536}, "sequence = 65536"),
        ({"first_page": 8192}, "first_page = 8192"),
        ({"entries": (1,) * 27}, r"27 of them .* 0 … 26"),
        ({"entries": (65536,)}, r"entries\[0\] \(mass\) = 65536"),
        ({"entries": (0.5,)}, "entries.*0.5"),
        ({"entries": ()}, "without entries"),
        ({"first_page": 8191, "entries": (1, 2)}, "last page is 8191"),
        ({"kind": HintKind.PIN, "first_page": 1}, "first_page = 1 .* PIN"),
        ({"kind": HintKind.PIN, "entries": (8192,)}, r"entries\[0\] \(page\) = 8192"),
        ({"kind": HintKind.PREFETCH, "entries": (3, 4, 3)}, "page 3 appears twice"),
    ],
)
def test_pack_refuses(change, message):
    with pytest.raises(HintError, match=message):
        pack(HintLine(**{"kind": HintKind.MASS, "entries": (1,)} | change))


def test_pack_refuses_what_the_configuration_lacks():
    unit = named("unit")
    for change, message in (
        ({"session": 2}, "session = 2"),
        ({"queue": 4}, "queue = 4"),
        ({"first_page": 8}, "first_page = 8"),
        ({"first_page": 7, "entries": (1, 2)}, "last page is 7"),
    ):
        with pytest.raises(HintError, match=message):
            pack(HintLine(**{"kind": HintKind.MASS, "entries": (1,)} | change), unit)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 0x12, "version"),
        (0, 0x51, "kind"),
        (1, 2, "flags"),
        (3, 27, "count"),
        (10, 1, "reserved"),
        (3, 0, "nothing"),
    ],
)
def test_unpack_refuses(at, value, message):
    line = bytearray(pack(HintLine(kind=HintKind.MASS, entries=(1,))))
    line[at] = value
    with pytest.raises(HintError, match=message):
        unpack(bytes(line))


def test_long_runs_are_cut_into_numbered_lines():
    cut = list(
        mass_lines(
            session=1, queue=2, first_page=100, masses=range(60), sequence=65535, advance=True
        )
    )
    assert [line.sequence for line in cut] == [65535, 0, 1] and [
        line.first_page for line in cut
    ] == [100, 126, 152]
    assert [line.advance for line in cut] == [False, False, True] and sum(
        (line.entries for line in cut), ()
    ) == tuple(range(60))
    cut = list(page_lines(HintKind.PREFETCH, session=0, queue=0, pages=range(27), sequence=4))
    assert [len(line.entries) for line in cut] == [26, 1] and [line.sequence for line in cut] == [
        4,
        5,
    ]


def test_golden_leaves_out_bad_pages_and_still_steps():
    golden = GoldenAbsorber(named("unit"))
    sessions = [Session(used_queues=4, used_pages=6), Session(ld_id=3, used_queues=4, used_pages=6)]
    line = pack(
        HintLine(
            kind=HintKind.MASS,
            session=1,
            queue=1,
            sequence=1,
            first_page=5,
            entries=(10, 20, 30),
            advance=True,
        )
    )
    assert golden.absorb(line, 3, sessions) == [
        HintEvent(Event.HINT_GAP, 3, 5, argument=0),
        HintOp(Op.MASS, 1, 5, 5, 10),
        HintEvent(Event.HINT_BAD_PAGE, 3, 5, 6, 6),
        HintOp(Op.STEP, 1, 5),
    ]
    assert golden.absorb(line, 4, sessions) == [HintEvent(Event.FOREIGN_LD, 4, 4, argument=1)]


@pytest.mark.parametrize(("first", "told"), [(65535, 65535), (6, 8), (40000, 40000)])
def test_the_first_bad_page_of_a_line_is_told_whole(first, told):
    """A MASS line's pages pass 65535 behind a first one that is bad already."""
    config = named("unit")
    line = bytearray(pack(HintLine(kind=HintKind.MASS, sequence=0, entries=(1, 2, 3))))
    line[8:10] = first.to_bytes(2, "little")
    session = Session(used_queues=config.queues, used_pages=config.pages)
    found = GoldenAbsorber(config).absorb(bytes(line), 0, [session] * config.sessions)
    (event,) = (each for each in found if isinstance(each, HintEvent))
    assert (event.code, event.page, event.argument) == (
        Event.HINT_BAD_PAGE,
        told % config.pages,
        told,
    )


@pytest.mark.parametrize("fields", [{"sessions": 3, "queues": 5, "pages": 64}, {}])
def test_absorber_agrees_with_golden(fields):
    """More pages than a line has entries, sizes that are no power of two; and fewer."""
    result = run_cocotb(
        HintAbsorber(config=named("unit").with_(**fields)),
        bench="kelp_verif.host.hints_bench",
        model=Model(public=PUBLIC),
        test=[
            "random_lines",
            "reset_forgets",
            "sessions_open_and_close",
            "a_session_closes_under_way",
            "flipped_headers",
        ],
        params={"config": "unit", "fields": fields, "rounds": 30, "resets": 20},
    )
    assert {
        "MASS",
        "PREFETCH",
        "PIN",
        "UNPIN",
        "STEP",
        "HINT_MALFORMED",
        "OUT_OF_MAP",
        "FOREIGN_LD",
        "HINT_GAP",
        "HINT_BAD_QUEUE",
        "HINT_BAD_PAGE",
    } <= set(result.records["seen"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # what is left of a line goes to the session's next owner
        ("item.void.eq(void | ~line_live)", "item.void.eq(0)"),
        # so do lines that waited
        pytest.param("stale[s].eq(left_over != 0)", "stale[s].eq(0)", marks=pytest.mark.slow),
        # the next owner's lines are refused
        pytest.param("judge & stale[s]", "0", marks=pytest.mark.slow),
    ],
)
def test_the_bench_catches_a_planted_bug(old, new):
    with pytest.raises(AssertionError, match="failed with seed"):
        run_cocotb(
            mutant(HintAbsorber, old, new)(config=UNIT),
            bench="kelp_verif.host.hints_bench",
            test="a_session_closes_under_way",
            params={"config": "unit"},
        )


def test_one_page_update_a_cycle():
    config = named("llama70b")
    result = run_cocotb(
        HintAbsorber(config=config),
        bench="kelp_verif.host.hints_bench",
        test="full_rate",
        params={"config": "llama70b", "rate_lines": 400},
    )
    assert result.records["ops_per_cycle"] >= 0.999, result.records
    assert result.records["cycles"] >= 10_000


def test_configuration_is_checked():
    with pytest.raises(TypeError, match="config = 'unit'"):
        HintAbsorber(config="unit")
