# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""kelp_sim.store: finished work goes on where it was, and another file is left alone."""

import json
from pathlib import Path

import pytest

from kelp_sim.store import StoreError, append, entries


@pytest.mark.parametrize(
    "cut",
    [b"", b'{"key": "b", "ro', b'{"key": "b"}', b'{"key": ' + b"[" * 100_000, b"9" * 5000],
    ids=["nothing", "half", "line", "nested", "digits"],
)
def test_what_is_appended_is_found_again_behind_a_line_that_was_cut(tmp_path, cut):
    store = tmp_path / "new" / "rows.jsonl"
    append(store, {"key": "a", "row": 1})
    store.write_bytes(store.read_bytes() + cut)
    append(store, {"key": "c", "row": 3})
    assert [entry["key"] for entry in entries(store) if "row" in entry] == ["a", "c"]


def test_an_entry_that_is_none_of_ours_does_not_count(tmp_path):
    """Its key is what it is found by, a text."""
    store = tmp_path / "rows.jsonl"
    store.write_text('{"key": ["a"], "row": 1}\n{"key": "b", "row": 2}\n', encoding="utf-8")
    assert entries(store) == [{"key": "b", "row": 2}]


@pytest.mark.parametrize("content", [b"# words\n", b"PK\3\4\xab", b"[]", b'{"schema": 1}\n'])
def test_another_file_is_refused_and_stays_as_it_is(tmp_path, content):
    store = tmp_path / "other"
    store.write_bytes(content)
    with pytest.raises(StoreError, match=f"{store} holds something else.*--store"):
        entries(store)
    assert store.read_bytes() == content
    with pytest.raises(StoreError, match="is no file"):
        entries(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"ke', b'{"key": "a'])
def test_what_was_cut_at_once_is_begun_anew(tmp_path, content):
    store = tmp_path / "rows.jsonl"
    store.write_bytes(content)
    assert entries(store) == []
    append(store, {"key": "a"})
    assert json.loads(store.read_text().splitlines()[-1]) == {"key": "a"}


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
def test_a_device_is_not_read(device):
    assert entries(Path(device)) == []


def test_a_full_disk_is_the_store_s():
    with pytest.raises(OSError, match="/dev/full"):
        append(Path("/dev/full"), {"key": "a"})
