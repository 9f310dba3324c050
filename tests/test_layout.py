# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rules of the repository as a whole: who may import whom, licence lines, nothing generated,
nothing of one machine, lint."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from paths import ROOT

# Each source root's package, and the packages of ours it may import (docs/specification.md §2): the
# direction that keeps RTL and golden model apart.
ALLOWED = {
    "hw/kelp_spec": set(),
    "hw/kelp_hw": {"kelp_spec"},
    "sim/kelp_golden": {"kelp_spec"},
    "sim/kelp_sim": {"kelp_spec", "kelp_golden"},
    "sim/kelp_rtl": {"kelp_spec", "kelp_hw", "kelp_golden", "kelp_sim"},
    "verif/kelp_verif": {
        "kelp_spec",
        "kelp_hw",
        "kelp_golden",
        "kelp_sim",
        "kelp_rtl",
        "kelp_fpga",
    },
    "fpga/kelp_fpga": {"kelp_spec", "kelp_hw"},
    "sw/cxl_kv": {"kelp_spec"},
    "sw/kelp_cli": {
        "kelp_spec",
        "kelp_hw",
        "kelp_golden",
        "kelp_sim",
        "kelp_rtl",
        "kelp_verif",
        "kelp_fpga",
        "cxl_kv",
    },
}
OURS = {Path(root).name for root in ALLOWED}
# Rooms and files that may import more than their root, and why.
ALSO = {
    # synthesis takes its Verilog and its tools from there
    "fpga/kelp_fpga/flow": {"kelp_rtl"},
    # the constants: what the golden model says a stored line comes back as
    "fpga/kelp_fpga/selftest/self_test_program.py": {"kelp_golden"},
    # Back ends of the host library: each is imported when a URL asks for it, so it may bring in
    # what it drives.
    "sw/cxl_kv/backends/golden.py": {"kelp_golden"},
    "sw/cxl_kv/backends/golden_engine.py": {"kelp_golden"},
    "sw/cxl_kv/backends/rtl.py": {"kelp_rtl"},
    "sw/cxl_kv/backends/serial.py": {"kelp_fpga"},
}

# What must stay usable where the hardware tools are not installed.
WITHOUT_RTL_TOOLS = ("hw/kelp_spec", "sim/kelp_golden", "sim/kelp_sim", "sw/cxl_kv")
RTL_TOOLS = {"amaranth", "amaranth_boards", "cocotb", "cocotb_tools", "cocotbext"}

SOURCE_SUFFIXES = {
    ".py",
    ".v",
    ".sv",
    ".svh",
    ".vlt",
    ".c",
    ".cpp",
    ".h",
    ".hpp",
    ".toml",
    ".sh",
    ".lock",
}
SPDX = "SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1"


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def is_source(path):
    return (
        path.suffix in SOURCE_SUFFIXES
        or path.name == "Makefile"
        or path.parts[0] in ("scripts", ".ci")
    )


def imports(text, package):
    """Every top-level package that ``text`` imports, at module level or inside a function, with its
    line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield (node.module.partition(".")[0] if node.level == 0 else package), node.lineno
        elif isinstance(node, ast.Call) and getattr(
            node.func, "attr", getattr(node.func, "id", "")
        ) in ("import_module", "__import__"):
            if (
                node.args
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
            ):
                yield node.args[0].value.partition(".")[0], node.lineno


def violations(text, root):
    package = Path(root).name
    forbidden = (OURS - ALLOWED[root] - {package}) | (
        RTL_TOOLS if root in WITHOUT_RTL_TOOLS else set()
    )
    return [(line, name) for name, line in imports(text, package) if name in forbidden]


@pytest.mark.parametrize("root", ALLOWED)
def test_imports_go_one_way(root):
    found = []
    for path in sorted((ROOT / root).rglob("*.py")):
        extra = set().union(
            *(more for place, more in ALSO.items() if path.is_relative_to(ROOT / place))
        )
        wrong = [
            (line, name)
            for line, name in violations(path.read_text(encoding="utf-8"), root)
            if name not in extra
        ]
        found += [f"{path.relative_to(ROOT)}:{line}: imports {name}" for line, name in wrong]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("root", "text"),
    [
        ("sim/kelp_golden", "import kelp_hw.scores.ema"),
        ("sim/kelp_golden", "def f():\n    from kelp_hw import ema"),
        ("sim/kelp_golden", "import importlib\nimportlib.import_module('kelp_hw.scores.ema')"),
        ("hw/kelp_hw", "from kelp_golden.codec import encode"),
        ("hw/kelp_spec", "from amaranth.lib import data"),
        ("sw/cxl_kv", "import kelp_hw"),
    ],
)
def test_a_planted_import_is_seen(root, text):
    assert violations(text, root)


def test_no_package_lies_outside_the_layout():
    packages = {
        str(path.parent)
        for path in tracked()
        if path.name == "__init__.py" and len(path.parts) == 3
    }
    assert packages <= set(ALLOWED)


def test_every_source_file_names_its_licence_first():
    bad = []
    for path in filter(is_source, tracked()):
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        first = lines[1] if lines and lines[0].startswith("#!") else (lines or [""])[0]
        if SPDX not in first:
            bad.append(str(path))
    assert not bad, "no SPDX line first: " + ", ".join(bad)


def test_nothing_generated_is_tracked():
    bad = [
        str(path)
        for path in tracked()
        if path.suffix
        in {".vcd", ".fst", ".gtkw", ".o", ".so", ".a", ".pyc", ".il", ".bit", ".svf", ".smt2"}
        or path.parts[0] in ("build", "dist", ".venv")
        or "obj_dir" in path.parts
        or (
            path.suffix in (".v", ".sv")
            and re.search(r"Generated by .*Yosys", (ROOT / path).read_text(encoding="utf-8")[:2000])
        )
    ]
    assert not bad, ", ".join(bad)


def test_nothing_names_a_place_on_one_machine():
    pattern = re.compile(r"(?<![\w.~])/(?:root|home|work|Users)/\w")
    bad = []
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            lines = data.decode("utf-8").splitlines()
            bad += [
                f"{path}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)
            ]
    assert not bad, ", ".join(bad)


def test_lock_pins_every_dependency_and_names_no_host():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = {
        re.sub(r"[-_.]+", "-", name).lower()
        for name in re.findall(r"^([\w.-]+)==\S+ \\$", text, re.MULTILINE)
    }
    assert "://" not in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    parts = re.fullmatch(r"kelp-cxl\[(.*)\]", extras["dev"][0])[1].split(",")
    wanted = (
        project["project"]["dependencies"]
        + project["build-system"]["requires"]
        + [name for part in parts for name in extras[part]]
    )
    names = {
        re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()
        for requirement in wanted
    }
    assert names <= pinned, f"run make lock: {sorted(names - pinned)}"


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=["check", "format"])
def test_ruff_is_clean(command):
    files = [str(path) for path in tracked() if path.suffix == ".py"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
