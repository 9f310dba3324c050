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
from source_tree import ALLOWED, ALSO, tracked

# What must stay usable where the hardware tools are not installed.
WITHOUT_RTL_TOOLS = ("hw/kelp_spec", "sim/kelp_golden", "sim/kelp_sim", "sw/cxl_kv")
OURS = {Path(root).name for root in ALLOWED}
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


def modules(root):
    """Every module of a source root: dotted name → file."""
    base = ROOT / root
    out = {}
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(base.parent).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return out


def imported_modules(name, text, known, *, package):
    """Those of `known` that the text of module `name` imports, at module level or inside a
    function: `from a import b` is module a.b where there is one, else a. `package`: whether it is
    an `__init__`."""
    out = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: None if package else -1]
            base = ".".join(
                above[: len(above) + 1 - node.level] + ([node.module] if node.module else [])
                if node.level
                else [node.module]
            )
            for alias in node.names:
                out.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base)
    return (out & set(known)) - {name}


def circle(graph):
    """Some path of `graph` (name → names) that ends where it begins, or None."""
    left = {name: set(others) for name, others in graph.items()}
    while leaves := {name for name, others in left.items() if not others}:
        left = {name: others - leaves for name, others in left.items() if name not in leaves}
    if not left:
        return None
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]]))
    return path[path.index(path[-1]) :]


@pytest.mark.parametrize("root", ALLOWED)
def test_no_package_has_an_import_circle(root):
    """Imports inside functions count as those at module level do. What does not count is that a
    package's `__init__` is run before its modules: it may import them for others to find."""
    known = modules(root)
    found = circle(
        {
            name: imported_modules(
                name, path.read_text(encoding="utf-8"), known, package=path.stem == "__init__"
            )
            for name, path in known.items()
        }
    )
    assert not found, " → ".join(found)


def test_a_planted_circle_is_seen():
    texts = {"p": "from .b import x", "p.a": "import p.b", "p.b": "def f():\n    from . import a"}
    graph = {
        name: imported_modules(name, text, texts, package=name == "p")
        for name, text in texts.items()
    }
    assert graph == {"p": {"p.b"}, "p.a": {"p.b"}, "p.b": {"p.a"}}
    assert circle(graph) in (["p.a", "p.b", "p.a"], ["p.b", "p.a", "p.b"])
    assert circle(graph | {"p.b": set()}) is None


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
