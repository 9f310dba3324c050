# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The library of a model is looked for where it was noted, and built where a pass is to see it."""

import os

import pytest

from kelp_hw.export import passes
from kelp_rtl import library
from kelp_spec.config import named

CONFIG = named("unit").with_(name="noted")


class Mutants(passes.Passes):
    """Other passes than none."""


@pytest.fixture
def built(tmp_path, monkeypatch):
    """What was built, in place of libraries."""
    components = []

    def build(component, config, waves, **rest):
        components.append(component)
        made = tmp_path / f"{len(components)}.so"
        made.touch()
        return made

    monkeypatch.setattr(library, "build", build)
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    return components


def found_by_another_process(beside=None):
    library._built.cache_clear()
    return library.endpoint_library(CONFIG, False, checked=True, beside=beside)


def written(path, text):
    """A file that was there before this process."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (1, 1))
    return path


def test_what_is_included_counts(built, tmp_path):
    """C++ beside the driver, and what that includes from where it lies."""
    header = written(tmp_path / "host.h", "// as it was\n")
    beside = written(tmp_path / "host.cpp", '#include "driver.cpp"\n#include "host.h"\n')
    noted = found_by_another_process(beside)
    assert found_by_another_process(beside) == noted and len(built) == 1
    written(header, "// as it is\n")
    assert found_by_another_process(beside) != noted and len(built) == 2


def test_what_is_newer_than_this_process_is_not_noted(built, tmp_path, monkeypatch):
    """It builds by what it has loaded, which is older than what is read for the note's name."""
    newer = tmp_path / "library.py"
    newer.touch()
    monkeypatch.setattr(library, "_BUILT_BY", [*library._BUILT_BY, newer])
    found_by_another_process()
    assert len(built) == 1 and not list(tmp_path.rglob("*.library"))


def test_a_note_is_not_for_a_pass(built, monkeypatch):
    """What was built without a pass, or with another one's mutants, holds none of its."""
    noted = found_by_another_process()
    assert found_by_another_process() == noted and len(built) == 1
    monkeypatch.setattr(passes, "_installed", Mutants())
    assert found_by_another_process() != noted and len(built) == 2
    assert library.endpoint_library(CONFIG, False, checked=True) and len(built) == 2
