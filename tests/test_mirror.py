# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Where the test of a module is found: at the module's own path below tests/, or in the tests that
the table below names for it. What a test reaches is told from imports, its helpers' among them."""

import ast
import re
from functools import cache

import pytest
from paths import ROOT
from source_tree import ALLOWED, imported_modules, modules, own_test

#: Packages whose modules have tests, and the folder that mirrors each. The blocks of `kelp_hw` and
#: `kelp_fpga` have one each at their own path, without exception (tests/test_layout.py).
MIRRORS = {
    "hw/kelp_spec": "tests/spec",
    "sim/kelp_golden": "tests/golden",
    "sim/kelp_sim": "tests/sim",
    "sim/kelp_rtl": "tests/rtl",
    "fpga/kelp_fpga": "tests/fpga",
    "refinement/ecp5_refinement": "tests/refinement",
    "sw/cxl_kv": "tests/cxl_kv",
    "sw/kelp_cli": "tests/cli",
}

#: Folder or module → the tests, or folders of them, through which what has none at its own path is
#: tested. The longest row that fits counts.
TESTED_BY = {
    # formats and parameters: by those who share them
    "hw/kelp_spec": ("tests/hw", "tests/cxl_kv", "tests/golden", "tests/test_docs.py"),
    # the golden model: in lock step with the RTL
    "sim/kelp_golden": ("tests/hw", "tests/rtl/replay"),
    "sim/kelp_sim/lab": ("tests/sim/lab", "tests/cli/test_lab.py"),
    "sim/kelp_sim/lab/models.py": ("tests/engines/test_recorder.py",),
    "sim/kelp_sim/lab/recorder.py": ("tests/engines",),
    "sim/kelp_sim/lab/train.py": ("tests/engines/test_hf_train.py",),
    "sim/kelp_sim/model": ("tests/sim/model/test_model.py", "tests/cli/test_model.py"),
    "sim/kelp_sim/quality": ("tests/sim/quality/test_quality.py", "tests/cli/test_quality.py"),
    "sim/kelp_sim/quality/real.py": ("tests/engines/test_hf_quality.py",),
    "sim/kelp_sim/replay": ("tests/rtl/replay", "tests/sim/report"),
    "sim/kelp_sim/report": ("tests/sim/report/test_report.py",),
    "sim/kelp_sim/select": ("tests/sim/select/test_worth.py",),
    "sim/kelp_sim/trace": ("tests/sim/lab", "tests/sim/replay"),
    "sim/kelp_rtl": ("tests/rtl/test_device.py",),
    "sim/kelp_rtl/verilator.py": ("tests/verif/harness/test_runner.py",),
    "sim/kelp_rtl/replay": ("tests/rtl/replay", "tests/cli/test_demo.py"),
    "fpga/kelp_fpga": ("tests/fpga/boards/test_board.py",),
    "fpga/kelp_fpga/axi": ("tests/fpga/axi/test_axi_endpoint.py",),
    "fpga/kelp_fpga/flow/parts.py": ("tests/fpga/flow/test_reports.py",),
    "fpga/kelp_fpga/flow/pnr.py": ("tests/fpga/flow/test_blocks.py",),
    "fpga/kelp_fpga/link": ("tests/fpga/boards/test_board.py", "tests/fpga/link/test_bridge.py"),
    "fpga/kelp_fpga/memory": ("tests/fpga/memory/test_sdram.py",),
    "fpga/kelp_fpga/selftest": ("tests/fpga/selftest/test_self_test.py",),
    "refinement/ecp5_refinement": ("tests/refinement/test_refinement.py",),
    "sw/cxl_kv": ("tests/cxl_kv/test_session.py", "tests/cxl_kv/serving"),
    "sw/cxl_kv/backends": ("tests/cxl_kv/backends", "tests/cxl_kv/test_session.py"),
    "sw/cxl_kv/backends/rtl.py": ("tests/rtl/replay", "tests/cxl_kv/test_session.py"),
    "sw/cxl_kv/backends/serial.py": ("tests/verif/fpga/test_sim_board.py",),
    # engines: against the real ones, where they are installed
    "sw/cxl_kv/connectors": ("tests/engines",),
    "sw/cxl_kv/serving": ("tests/cxl_kv/serving",),
    # commands: as a user calls them
    "sw/kelp_cli": ("tests/cli",),
    "sw/kelp_cli/bench": ("tests/cli/bench",),
    "sw/kelp_cli/docs.py": ("tests/test_docs.py",),
    "sw/kelp_cli/fpga": ("tests/fpga", "tests/cli/fpga", "tests/verif/fpga"),
    "sw/kelp_cli/replay": ("tests/rtl/replay", "tests/cli/test_demo.py"),
    "sw/kelp_cli/verilog.py": ("tests/hw/export/test_verilog.py",),
}

#: What is imported by name: a package's policies, back ends and commands.
BY_NAME = re.compile(r"(?:import_module|iter_modules|walk_packages)\(")


@cache
def known():
    """Every module of ours, and the helpers of tests: name → file."""
    found = {path.stem: path for path in (ROOT / "tests/helpers").rglob("*.py")}
    for root in ALLOWED:
        found |= modules(root)
    return found


def edges(name, path):
    """Modules that a file imports, by itself, by name or in a process of its own."""
    text = path.read_text(encoding="utf-8")
    found = imported_modules(name, text, known(), package=path.stem == "__init__")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in known():
            found.add(node.value)
    if name in known() and BY_NAME.search(text):
        found |= {each for each in known() if each.startswith(name.rpartition(".main")[0] or name)}
    if name == "command":
        found.add("kelp_cli.main")
    return found


@cache
def reached(*starts):
    """What these files import, and what that imports."""
    left, seen = set().union(*(edges(f"tests.{path.stem}", path) for path in starts)), set()
    while left:
        seen |= left
        left = set().union(*(of(name) for name in left)) - seen
    return seen


@cache
def of(name):
    return frozenset(edges(name, known()[name]))


def found_at(place):
    """The test at `place`, or those below it."""
    path = ROOT / place
    return (path,) if path.is_file() else tuple(sorted(path.rglob("test_*.py")))


def row(path):
    """The row of TESTED_BY for a module's file, or None."""
    inner = path.relative_to(ROOT)
    fits = [place for place in TESTED_BY if inner.is_relative_to(place)]
    return max(fits, key=len, default=None)


@cache
def without_own_test():
    """Row → the modules, by name, that it is for: those without a test at their own path."""
    found = {place: [] for place in TESTED_BY} | {None: []}
    for root, mirror in MIRRORS.items():
        for name, path in modules(root).items():
            if not path.stem.startswith("_") and not own_test(root, mirror, path).exists():
                found[row(path)].append(name)
    return found


def test_every_module_has_a_test_or_a_row():
    assert not without_own_test()[None], f"without a test: {', '.join(without_own_test()[None])}"


@pytest.mark.parametrize("place", TESTED_BY)
def test_a_row_names_what_reaches_its_modules(place):
    names = set(without_own_test()[place])
    assert names, "every module here has a test of its own"
    reaching = {where: names & reached(*found_at(where)) for where in TESTED_BY[place]}
    assert not (idle := [where for where, found in reaching.items() if not found]), idle
    missed = names - set().union(*reaching.values())
    assert not missed, f"no test of the row imports {', '.join(sorted(missed))}"


def test_what_a_test_does_not_import_is_seen():
    assert "kelp_golden.tracker" in reached(ROOT / "tests/hw/tracker/test_tracker.py")
    assert "kelp_golden.prefetch" not in reached(ROOT / "tests/golden/test_codec.py")
    assert row(ROOT / "sim/kelp_sim/lab/models.py") == "sim/kelp_sim/lab/models.py"
    assert row(ROOT / "hw/kelp_hw/endpoint.py") is None
