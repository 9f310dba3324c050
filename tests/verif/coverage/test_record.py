# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A coverage run made in parts: what a part does not look at stays as it was."""

from kelp_verif.coverage.record import EMPTY, markdown, merged


def block(name, share, met=True):
    kind = {"points": 100, "reached": 90, "waived": 1, "share": share, "missed": []}
    return {"block": name, "line": kind, "toggle": kind, "met": met}


def point(name, bench, met):
    return {"clause": "§3", "point": name, "bench": bench, "met": met, "reached": bool(met)}


def test_parts_add_up_and_the_last_look_counts():
    first = [point("a hit", "host", 3), point("a miss", "miss", None)]
    then = [point("a hit", "host", None), point("a miss", "miss", 0)]
    record = merged(EMPTY, [block("A", 0.5, False)], first, {"date": "1", "commit": "a"})
    record = merged(record, [block("B", 1.0)], then, {"date": "2", "commit": "b"})
    assert [(row["block"], row["date"]) for row in record["blocks"]] == [("A", "1"), ("B", "2")]
    assert [(at["met"], at["date"]) for at in record["cover_points"]] == [(3, "1"), (0, "2")]
    record = merged(record, [block("A", 0.96)], first, {"date": "3", "commit": "c"})
    assert record["blocks"][0]["line"]["share"] == 0.96 and not EMPTY["blocks"]
    page = markdown(record)
    assert "| `A` | 100 | 96.0% | 100 | 96.0% | 2 | 3 |" in page and "Below a bar: none." in page
    assert "| §3 | 2 | 1 | 3 |" in page and "Not reached: a miss (miss)." in page


def test_a_block_below_a_bar_and_a_point_that_never_ran_are_named():
    record = merged(EMPTY, [block("A", 0.5, False)], [point("x", "b", None)], {"date": "1"})
    page = markdown(record)
    assert "Below a bar: `A`." in page and "| §3 | 1 | 0 | never |" in page
    assert "Not reached" not in page
    assert markdown(EMPTY) == "No run is recorded.\n"
