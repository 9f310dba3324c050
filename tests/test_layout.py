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
from source_tree import (
    ALLOWED,
    ALSO,
    ROOM_ALSO,
    ROOMS,
    imported_modules,
    modules,
    own_test,
    tracked,
)

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


@pytest.mark.parametrize("place", ALSO)
def test_a_wider_allowance_is_used(place):
    path = ROOT / place
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    used = {
        name
        for file in files
        for name, _ in imports(file.read_text(encoding="utf-8"), Path(place).parts[1])
    }
    assert not (idle := ALSO[place] - used), f"{place} imports no {', '.join(sorted(idle))}"


@pytest.mark.parametrize(
    ("root", "text"),
    [
        ("sim/kelp_golden", "import kelp_hw.scores.ema"),
        ("sim/kelp_golden", "def f():\n    from kelp_hw import ema"),
        ("sim/kelp_golden", "import importlib\nimportlib.import_module('kelp_hw.scores.ema')"),
        ("hw/kelp_hw", "from kelp_golden.codec import encode"),
        ("hw/kelp_spec", "from amaranth.lib import data"),
        ("fpga/kelp_fpga", "from kelp_rtl.verilator import call"),
        ("fpga/kelp_fpga", "def f():\n    from kelp_golden.codec import round_trip"),
        ("sw/cxl_kv", "import kelp_hw"),
    ],
)
def test_a_planted_import_is_seen(root, text):
    assert violations(text, root)


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


def strangers(path, text, known):
    """Rooms, or the endpoint, that file `path` of kelp_hw imports and may not."""
    room = path.split("/")[0]
    name = "kelp_hw." + path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    used = imported_modules(name, text, known, package=path.endswith("__init__.py"))
    rooms = {module.split(".")[1] for module in used - {"kelp_hw"}} & {*ROOMS, "endpoint"}
    return rooms - {room} - ROOMS[room] - ROOM_ALSO.get(path, set())


def test_rooms_import_as_their_table_says():
    root = ROOT / "hw/kelp_hw"
    known = modules("hw/kelp_hw")
    assert {path.parent.name for path in root.glob("*/__init__.py")} == set(ROOMS)
    assert not circle(ROOMS)
    bad = [
        f"{path.relative_to(ROOT)}: imports {', '.join(sorted(wrong))}"
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
        if (
            wrong := strangers(
                path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"), known
            )
        )
    ]
    assert not bad, "\n".join(bad)


def test_a_planted_stranger_is_seen():
    known = {"kelp_hw", "kelp_hw.endpoint", "kelp_hw.layouts", "kelp_hw.host.egress"}
    text = (
        "from ..layouts import Layouts\nfrom ..host.egress import Egress\nimport kelp_hw.endpoint"
    )
    assert strangers("miss/grants.py", text, known) == {"host", "endpoint"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_readme_says_what_it_may_import(room):
    text = (ROOT / "hw/kelp_hw" / room / "README.md").read_text(encoding="utf-8")
    said = re.search(r"^May import rooms: ([^.]*)\.", text, re.MULTILINE)[1]
    assert set(re.findall(r"`(\w+)`", said)) == ROOMS[room]


# Packages outside kelp_hw whose rooms have a README each.
OF_ROOMS = (
    "sim/kelp_sim",
    "sim/kelp_rtl",
    "verif/kelp_verif",
    "fpga/kelp_fpga",
    "sw/cxl_kv",
    "sw/kelp_cli",
)
# Packages and rooms outside kelp_hw whose README has a row, or a link in one, for each file.
WITH_ROWS = (
    "hw/kelp_spec",
    "sim/kelp_golden",
    "refinement",
    *OF_ROOMS,
    *(
        f"{root}/{path.parent.name}"
        for root in OF_ROOMS
        for path in sorted((ROOT / root).glob("*/__init__.py"))
    ),
)


def missing_in_readme(folder, text):
    """Files below `folder`, and blocks of the RTL in them, that its README `text` does not name. A
    folder below it with a README of its own is left to that."""
    rooms = {path.parent for path in (ROOT / folder).rglob("*/README.md")}
    for path in sorted((ROOT / folder).rglob("[!_]*.py")):
        if rooms & set(path.parents):
            continue
        name = path.relative_to(ROOT / folder).as_posix()
        if f"]({name})" not in text:
            yield name
        if folder.startswith("hw/"):
            blocks = components(path.read_text(encoding="utf-8"))
            yield from (
                f"{name}: {block}"
                for block in blocks
                if not block.startswith("_") and f"`{block}`" not in text
            )


def test_every_room_has_a_readme_that_names_its_files_and_blocks():
    bad = [
        f"{folder}/README.md does not name {what}"
        for folder in (*WITH_ROWS, *(f"hw/kelp_hw/{room}" for room in ROOMS))
        for what in missing_in_readme(
            folder, (ROOT / folder / "README.md").read_text(encoding="utf-8")
        )
    ]
    assert not bad, "\n".join(bad)


def test_a_block_that_a_readme_leaves_out_is_seen():
    left_out = set(missing_in_readme("hw/kelp_hw/miss", "[grants.py](grants.py)"))
    assert {"grants.py: MissGrants", "park_lists.py"} <= left_out and "grants.py" not in left_out


def imports_of(root, room):
    """Rooms and root modules of the same package, and packages of ours, that a room imports."""
    package, base = Path(root).name, ROOT / root
    names = {name for each in ALLOWED for name in modules(each)}
    found = set()
    for path in sorted((base / room).rglob("*.py")):
        parts = (package, *path.relative_to(base).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        found |= imported_modules(name, text, names, package=path.stem == "__init__")
    others = {name.split(".")[1] for name in found if name.startswith(f"{package}.")} - {room}
    rooms = {name for name in others if (base / name).is_dir()}
    return rooms, others - rooms, {name.split(".")[0] for name in found} - {package}


def said_imports(text):
    """The same, as a README says it."""
    said = re.search(
        r"^May import rooms: ([^.]*)\.\sModules\sof\sthe\sroot:\s([^.]*)\.\sPackages:\s([^.]*)\.",
        text,
        re.MULTILINE,
    )
    return tuple(set(re.findall(r"`(\w+)`", part)) for part in said.groups())


@pytest.mark.parametrize(
    ("root", "room"),
    [
        pytest.param(root, path.parent.name, id=f"{root}/{path.parent.name}")
        for root in OF_ROOMS
        for path in sorted((ROOT / root).glob("*/__init__.py"))
    ],
)
def test_a_rooms_readme_says_what_it_imports(root, room):
    """Outside kelp_hw the line follows what is so: a new import is a new word there, for a reader
    to see."""
    text = (ROOT / root / room / "README.md").read_text(encoding="utf-8")
    assert said_imports(text) == imports_of(root, room)


def test_an_import_that_a_readme_leaves_out_is_seen():
    text = "x\nMay import rooms: `link`. Modules of the root: none. Packages: `kelp_hw`.\n"
    assert (
        said_imports(text)
        == ({"link"}, set(), {"kelp_hw"})
        != imports_of("fpga/kelp_fpga", "boards")
    )


def components(text):
    """Classes of ``text`` that are blocks, or tops of boards."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        and {"Component", "wiring.Component", "Elaboratable"}
        & {ast.unparse(base) for base in node.bases}
    ]


#: Packages of blocks, and the folder of tests that mirrors each.
WITH_BLOCKS = {"hw/kelp_hw": "tests/hw", "fpga/kelp_fpga": "tests/fpga"}


def test_a_blocks_test_is_found_by_its_path():
    bad = [
        str(path.relative_to(ROOT))
        for root, mirror in WITH_BLOCKS.items()
        for path in sorted((ROOT / root).rglob("*.py"))
        if components(path.read_text(encoding="utf-8"))
        and not own_test(root, mirror, path).exists()
    ]
    assert not bad, "no test at the mirrored path: " + ", ".join(bad)


def test_a_planted_block_is_seen():
    assert components("class A(wiring.Component): pass\nclass B(A): pass") == ["A"]


def without_pace(text):
    """What the module docstring of a block's file does not say within the file's first 20 lines, or
    None. A file without a block need not."""
    if not components(text):
        return None
    tree = ast.parse(text)
    if ast.get_docstring(tree) is None or tree.body[0].lineno > 20:
        return "what it does"
    top = "\n".join(text.splitlines()[:20][tree.body[0].lineno - 1 : tree.body[0].end_lineno])
    return None if re.search(r"(?i)latency|cycle|interval|combinational", top) else "how fast it is"


def test_the_top_of_a_blocks_file_says_what_it_does_and_how_fast():
    bad = [
        f"{path.relative_to(ROOT)}: {missing}"
        for root in WITH_BLOCKS
        for path in sorted((ROOT / root).rglob("*.py"))
        if (missing := without_pace(path.read_text(encoding="utf-8")))
    ]
    assert not bad, "not in its first 20 lines:\n" + "\n".join(bad)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('"""A FIFO. One item a cycle."""\nclass A(Component): pass', None),
        ('"""A FIFO."""\nCYCLE = 1\nclass A(Component):\n """1 cycle."""', "how fast it is"),
        ('"""A FIFO.' + 20 * "\n" + 'One a cycle."""\nclass A(Component): pass', "how fast it is"),
        ("# One item a cycle.\nclass A(Component): pass", "what it does"),
        ('"""Layouts."""\nclass A(Signature): pass', None),
    ],
)
def test_a_planted_top_without_pace_is_seen(text, missing):
    assert without_pace(text) == missing


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


#: Commands and what they call write through `kelp_spec.files`.
WRITERS = ("sw/kelp_cli", "sim/kelp_sim", "fpga/kelp_fpga")


def direct_writes(text):
    """Lines that write a file under its final name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            name = called.rpartition(".")[2]
            if name in ("write_text", "write_bytes") or (
                called.startswith("np.save") and ast.unparse(node.args[0]) != "file"
            ):
                yield node.lineno


@pytest.mark.parametrize("root", WRITERS)
def test_files_are_written_whole_or_not_at_all(root):
    bad = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / root).rglob("*.py"))
        for line in direct_writes(path.read_text(encoding="utf-8"))
    ]
    assert not bad, "write_whole is for: " + ", ".join(bad)


def test_a_planted_write_is_seen():
    assert list(direct_writes("path.write_text(text)")) == [1]
    assert list(direct_writes("with f() as file:\n np.savez(file, a=1)\nnp.savez(path)")) == [3]
    assert not list(direct_writes("write_whole(path, text)"))


# A function has at most so many parameters (self aside) and so many lines, docstring among them.
MOST_PARAMETERS, MOST_LINES = 8, 100
# Those beyond it, `path:function`, and why each is one idea all the same. A command of `kelp` needs
# no entry for its parameters, which are the command's options, nor for the lines of its signature;
# its body makes an object of them and hands that on, so the body counts as a function does.
LONG = {
    "hw/kelp_hw/layouts.py:Layouts.__init__": "fields of every payload, one after another",
}


def functions(text):
    """Every function of ``text`` with its qualified name and whether its first parameter is the
    instance or the class."""

    def walk(node, prefix, in_class):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.", True)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                static = any(ast.unparse(d) == "staticmethod" for d in child.decorator_list)
                yield f"{prefix}{child.name}", child, in_class and not static
                yield from walk(child, f"{prefix}{child.name}.", False)
            else:
                yield from walk(child, prefix, in_class)

    return walk(ast.parse(text), "", False)


def size(function, bound, *, command):
    """Parameters and lines of ``function``, as the limits count them."""
    a = function.args
    named = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    parameters = sum(each is not None for each in named) - bound
    first = function.body[0].lineno if command else function.lineno
    return 0 if command else parameters, function.end_lineno - first + 1


def is_command(path, function):
    """Of `kelp`: what typer has been told how to read from the command line."""
    return path.startswith("sw/kelp_cli/") and any(
        argument.annotation is not None
        and re.search(r"typer\.(Option|Argument)\(", ast.unparse(argument.annotation))
        for argument in function.args.args
    )


def oversized(path, text):
    """``path:function``, parameters and lines of each function of a file that is over a limit."""
    for name, function, bound in functions(text):
        parameters, lines = size(function, bound, command=is_command(path, function))
        if parameters > MOST_PARAMETERS or lines > MOST_LINES:
            yield f"{path}:{name}", parameters, lines


def all_oversized():
    for path in tracked():
        if path.suffix == ".py":
            yield from oversized(str(path), (ROOT / path).read_text(encoding="utf-8"))


def test_functions_are_of_a_size_to_be_read():
    found = {
        name: f"{name}: {parameters} parameters, {lines} lines"
        for name, parameters, lines in all_oversized()
    }
    beyond = [text for name, text in found.items() if name not in LONG]
    assert not beyond, "\n".join(beyond)
    assert not (idle := LONG.keys() - found.keys()), f"LONG lists what is within limits: {idle}"


OPTION = "a: Annotated[int, typer.Option(help='how many')]"


@pytest.mark.parametrize(
    ("path", "text", "seen"),
    [
        ("sim/a.py", "def f(a, b, c, d, e, f, *, g, h): pass", False),
        ("sim/a.py", "def f(a, b, c, d, e, f, *, g, h, i): pass", True),
        ("sim/a.py", "class A:\n def f(self, a, b, c, d, e, f, g, h): pass", False),
        ("sim/a.py", "class A:\n def f(self, a, b, c, d, e, f, g, *h, **i): pass", True),
        ("sim/a.py", "def f():\n" + 99 * "    pass\n", False),
        ("sim/a.py", "def f():\n" + 100 * "    pass\n", True),
        ("sw/kelp_cli/a.py", "def f(a, b, c, d, e, f, g, h, i): pass", True),
        ("sw/kelp_cli/a.py", f"def f({OPTION}, b, c, d, e, f, g, h, i): pass", False),
        ("sw/kelp_cli/a.py", f"def f({OPTION}):\n" + 101 * "    pass\n", True),
        ("sim/a.py", f"def f({OPTION}, b, c, d, e, f, g, h, i): pass", True),
    ],
)
def test_the_limits_are_seen(path, text, seen):
    assert bool(list(oversized(path, text))) is seen


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
