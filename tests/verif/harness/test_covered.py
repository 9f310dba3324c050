# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What simulations leave for ``make coverage``: runs of one model are added up."""

import json

import pytest

from kelp_verif.harness.covered import Reached, covering, leave_coverage, leave_figures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KELP_COVERAGE", str(tmp_path))
    monkeypatch.delenv("KELP_COVER_POINTS_ALONE", raising=False)
    return tmp_path


def left(folder):
    """(component, bench, text of its data) of each model."""
    found = []
    for path in sorted(folder.glob("*.json")):
        said = json.loads(path.read_text())
        found.append((said["component"], said["bench"], path.with_suffix(".dat").read_text()))
    return found


def test_runs_of_a_model_are_added_up(folder):
    verilog = folder / "model-1" / "top.v"
    reached = Reached("DataPath", "a.bench", verilog)
    for text in (
        "# SystemC::Coverage-3\nC 'x' 2\nC 'with 'quotes'' 0\n",
        "C 'x' 3\nC 'y' 1\nC 'with 'quotes'' 4\n",
    ):
        reached.data.write_text(text)
        reached.add()
        assert not reached.data.exists()
    assert left(folder) == [("DataPath", "a.bench", "C 'x' 5\nC 'with 'quotes'' 4\nC 'y' 1\n")]


def test_each_model_has_its_own(folder):
    for name in ("model-1", "model-2"):
        reached = Reached("DataPath", "a.bench", folder / name / "top.v")
        reached.data.write_text(f"C '{name}' 1\n")
        reached.add()
    assert [text for *_, text in left(folder)] == ["C 'model-1' 1\n", "C 'model-2' 1\n"]


def test_a_run_of_cocotb_leaves_its_own(folder):
    data = folder / "run-7" / "coverage.dat"
    data.parent.mkdir()
    data.write_text("C 'x' 1\n")
    leave_coverage("Skid", "a.bench", folder / "top.v", data, {"met": 3})
    assert left(folder) == [("Skid", "a.bench", "C 'x' 1\n")]
    assert json.loads((folder / "Skid-run-7.json").read_text())["records"] == {"met": 3}


def test_figures_are_left_for_make_coverage_alone(folder, monkeypatch):
    assert covering()
    leave_figures("a.bench", {"met": 3})
    (path,) = folder.glob("*.json")
    assert json.loads(path.read_text()) == {"bench": "a.bench", "records": {"met": 3}}
    monkeypatch.setenv("KELP_COVER_POINTS_ALONE", "1")
    assert not covering()
    monkeypatch.delenv("KELP_COVERAGE")
    leave_figures("a.bench", {"met": 3})
    assert not covering() and len(list(folder.glob("*.json"))) == 1
