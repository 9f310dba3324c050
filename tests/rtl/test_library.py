# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The library of a model is looked for where it was noted, and built where a pass is to see it."""

from kelp_hw.export import passes
from kelp_rtl import library
from kelp_spec.config import named

CONFIG = named("unit").with_(name="noted")


class Mutants(passes.Passes):
    """Other passes than none."""


def test_a_note_is_not_for_a_pass(tmp_path, monkeypatch):
    """What was built without a pass, or with another one's mutants, holds none of its."""
    built = []

    def build(component, config, waves, **rest):
        built.append(component)
        made = tmp_path / f"{len(built)}.so"
        made.touch()
        return made

    def found_by_another_process():
        library._built.cache_clear()
        return library.endpoint_library(CONFIG, False, checked=True)

    monkeypatch.setattr(library, "build", build)
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    noted = found_by_another_process()
    assert found_by_another_process() == noted and len(built) == 1
    monkeypatch.setattr(passes, "_installed", Mutants())
    assert found_by_another_process() != noted and len(built) == 2
    assert library.endpoint_library(CONFIG, False, checked=True) and len(built) == 2
