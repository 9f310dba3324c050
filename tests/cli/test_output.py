# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""kelp_cli.output: what could not be written at the end of long work is refused before it."""

import os
from pathlib import Path

import pytest

from kelp_cli.bench.commands import _others
from kelp_cli.output import UserError, writable


def test_what_can_be_written_gets_its_directories_and_stays_as_it_is(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    writable(None, Path("-"), kept, tmp_path / "new" / "rows.json", folder=tmp_path / "page")
    assert kept.read_text() == "{}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept.json", "new", "page"]
    assert not [*(tmp_path / "new").iterdir(), *(tmp_path / "page").iterdir()]


def test_a_pipe_is_written_to_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writable(tmp_path / "pipe")  # opening it would wait for a reader
    assert (tmp_path / "pipe").is_fifo() and len([*tmp_path.iterdir()]) == 1


def test_what_cannot_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="is a directory; the name of a file is expected"):
        writable(tmp_path)
    with pytest.raises(UserError, match=f"{file} cannot be written to"):
        writable(file / "rows.json")
    with pytest.raises(UserError, match=f"{file} cannot be written to"):
        writable(folder=file)


def test_rows_of_something_else_are_refused(tmp_path):
    other = tmp_path / "README.md"
    other.write_text("# words\n")
    with pytest.raises(UserError, match="holds no rows of kelp bench"):
        _others(other, set())
