# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The generated parts of docs/ are those that their sources generate, the C header compiles, and
what pages and code refer to is there; the architecture page has a row for every source file, and
for nothing that is not there."""

import ast
import importlib
import itertools
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer
from amaranth.lib import wiring
from paths import DOCS, ROOT
from source_tree import ALLOWED, ALSO, tracked

import cxl_kv
from cxl_kv.device import POISONING
from kelp_cli.docs import DOCUMENTED, generated
from kelp_cli.main import build_app
from kelp_golden.arithmetic import (
    decay,
    ema,
    exponent,
    fold,
    halving,
    initial,
    mass,
    priority,
    touch,
)
from kelp_golden.codec import encode
from kelp_hw.endpoint import Endpoint
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import NAMED, named
from kelp_spec.cxlio.config import CXLIO, named_cxlio
from kelp_spec.cxlio.events import CORRECTABLE, RECORDS, UNCORRECTABLE, Kind, Log
from kelp_spec.cxlio.render import cxl_registers_markdown
from kelp_spec.formats import Format, HostType
from kelp_spec.metadata import Event, PageState, PrefetchSource, ScoreSource
from kelp_spec.registers import COUNTERS, QUEUE_COUNTERS, SessionCommand
from kelp_spec.render import c_header, registers_markdown
from kelp_spec.scores import idle_constants, recency_constants
from kelp_spec.select import ANSWER_FIELDS, BELL_FIELDS, CHOSEN_FIELDS, PLAN_FIELDS, Refusal
from kelp_verif.formal.proofs import PROOFS

BENCH = ROOT / "data" / "bench" / "bench.json"
REGISTERS = (DOCS / "registers.md").read_text(encoding="utf-8")
PAGES = sorted(path for path in tracked() if path.suffix == ".md")
PACKAGES = {Path(root).name: ROOT / Path(root).parent for root in ALLOWED}
TEXTS = [path for path in tracked() if path.suffix in {".py", ".md", ".v", ".cpp", ".h", ".toml"}]


@pytest.mark.parametrize(
    "name",
    [
        "registers.md",
        "cxl_registers.md",
        "ports.md",
        "kelp_regs.h",
        "figures.md",
        "select.md",
        "verification.md",
        "architecture.svg",
    ],
)
def test_generated_files_are_up_to_date(name):
    assert (DOCS / name).read_text(encoding="utf-8") == generated(BENCH, DOCS)[name], (
        f"docs/{name} is stale: run `kelp docs`"
    )


def test_the_format_that_the_guide_adds_can_be_added():
    patch = DOCS / "guides" / "add_a_format.patch"
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, check=True)


def test_c_header_agrees_with_the_address_map(tmp_path):
    config = named(DOCUMENTED)
    where = KvAddress(session=1, queue=7, page=100, kv=1, line=13)
    body = (
        'printf("%llu %d", KELP_KV_ADDRESS(1, 7, 100, 1, 13), KELP_SESSION(1, '
        + "KELP_SESSION_COMMAND));"
        # A later minor version, an earlier one, another major one, another digest.
        + 'printf(" %d%d%d%d%d", KELP_MATCHES(KELP_CONFIG_IDENTITY, KELP_CONFIG_DIGEST), '
        + ", ".join(
            f"KELP_MATCHES(KELP_CONFIG_IDENTITY + {i}ll, KELP_CONFIG_DIGEST + {d})"
            for i, d in ((1, 0), (-1, 0), (1 << 16, 0), (0, 1))
        )
        + ");"
    )
    (tmp_path / "t.c").write_text(
        f'#include "kelp_regs.h"\n#include <stdio.h>\nint main(void) {{ {body} return 0; }}\n'
    )
    subprocess.run(
        [
            "gcc",
            "-Wall",
            "-Werror",
            "-I",
            str(DOCS),
            "-o",
            str(tmp_path / "t"),
            str(tmp_path / "t.c"),
        ],
        check=True,
    )
    said = subprocess.run([str(tmp_path / "t")], check=True, capture_output=True, text=True).stdout
    assert said == f"{AddressMap(config).encode(where)} {0x1000 + 0x200 + 0x10} 11000"


@pytest.mark.parametrize("name", NAMED)
def test_every_configuration_s_header_has_its_addresses(name, tmp_path):
    config = named(name)
    last = KvAddress(
        session=config.sessions - 1,
        queue=config.queues - 1,
        page=config.pages - 1,
        kv=1,
        line=config.half_lines - 1,
    )
    where = f"{last.session}, {last.queue}, {last.page}, 1, {last.line}"
    (tmp_path / "kelp_regs.h").write_text(c_header(config))
    (tmp_path / "t.c").write_text(
        f'#include "kelp_regs.h"\nint a[KELP_KV_ADDRESS({where}) == '
        + f"{AddressMap(config).encode(last)}ull ? 1 : -1];\n"
    )
    command = ["gcc", "-std=c99", "-pedantic", "-Wall", "-Werror", "-c", "-o", "/dev/null", "t.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("prefix", "codes"),
    [
        ("COMMAND", SessionCommand),
        ("EVENT", Event),
        ("FORMAT", Format),
        ("PAGE", PageState),
        ("PREFETCH", PrefetchSource),
        ("SCORE", ScoreSource),
    ],
)
def test_every_code_that_a_register_holds_is_in_the_table_and_the_header(prefix, codes):
    config = named(DOCUMENTED)
    table = f"| {', '.join(f'{code.value} {code.name}' for code in codes)} |"
    assert table in registers_markdown(config)
    header = c_header(config)
    assert all(f"#define KELP_{prefix}_{c.name} {c.value}\n" in header for c in codes)


def test_a_queue_s_counter_is_told_as_the_total_of_its_name_is():
    rows = dict(re.findall(r"`((?:count|queue)_\w+)`.* \| ([^|]*) \|$", REGISTERS, re.M))
    for name, _ in QUEUE_COUNTERS:
        if total := rows.get(f"count_{name}"):
            assert rows[f"queue_{name}"] == f"{total} since OPEN (selected queue), modulo 2^32", (
                name
            )


@pytest.mark.parametrize("name", CXLIO)
def test_every_register_of_cxl_io_is_described(name):
    page = cxl_registers_markdown(named_cxlio(name))
    rows = re.findall(r"^\| 0x\w+ \| \d \| `(\w+)` \| .* \| (.*) \|$", page, re.M)
    silent = [register for register, what in rows if not what.strip()]
    assert len(rows) > 50 and not silent, f"nothing is said of {', '.join(silent)}"


def test_the_fields_of_a_select_are_where_the_page_says():
    page = prose(Path("docs/select.md"))
    told = re.findall(r"^\| (\d+) \| (\d+) \| ([a-z_]+) \|", page, re.M)
    laid = []
    for fields in (BELL_FIELDS, ANSWER_FIELDS, CHOSEN_FIELDS):
        ends = itertools.accumulate(bits for _, bits in fields)
        laid += [(end - bits, bits, name) for end, (name, bits) in zip(ends, fields, strict=True)]
    assert [(int(bit), int(bits), name) for bit, bits, name in told] == laid
    assert "| 32 × 8 | mean |" in page and "| 9 | exponent |" in page
    assert sum(bits for _, bits in PLAN_FIELDS) == 32 * (8 + 3 + 3) + 9 + 1
    refusals = re.findall(r"^\| (\d) ([A-Z_]+) \|", page, re.M)
    assert {name: int(code) for code, name in refusals} == {
        reason.name: reason.value for reason in Refusal if reason
    }


def prose(path: Path) -> str:
    """A page's text without its code blocks."""
    return re.sub(
        r"^ *```.*?^ *```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.M | re.S
    )


@cache
def headings(path: Path) -> tuple[str, ...]:
    return tuple(re.findall(r"^#+ +(.+?) *$", prose(path), flags=re.M))


@cache
def anchors(path: Path) -> frozenset[str]:
    """What a link may name in a page: its headings in lower case, without punctuation, hyphens for
    blanks (the rule of GitHub and of MyST)."""
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(path)
    )


def section(path: Path, number: str) -> bool:
    return any(heading.startswith(f"{number}. ") for heading in headings(path))


def table(path: Path, head: str) -> list[list[str]]:
    """The rows of the table whose first cell is `head`."""
    lines = iter(prose(path).splitlines())
    next(line for line in lines if line.startswith(f"| {head} |"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_the_import_table_is_that_of_the_layout_test():
    page = Path("docs/specification.md")
    packages = {row[0].strip("`"): names(row[2]) for row in table(page, "package")}
    assert packages == ALLOWED
    assert {row[0].strip("`"): names(row[1]) for row in table(page, "place")} == ALSO


ERRORS = Path("docs/errors.md")


def wrong_events(rows: list[list[str]]) -> list[str]:
    """What the rows of the events' table say otherwise than the source."""
    codes = [event.name for event in Event if event]
    wrong = [] if [row[0] for row in rows] == codes else [f"events are {', '.join(codes)}"]
    for row in rows:
        event, counters, record, bit, raised = Event[row[0]], *row[4:]
        told = ", ".join(e.name for e in RECORDS.get(event, (Log.INFO, Kind.VENDOR))).lower()
        uncorrectable, correctable = UNCORRECTABLE.get(event), CORRECTABLE.get(event)
        is_bit = "" if uncorrectable is None else uncorrectable.name
        if correctable is not None:
            is_bit = f"{correctable.name}, correctable"
        is_bit = is_bit.replace("_", " ").lower()
        wrong += [
            f"{event.name}: {what}"
            for what, right in (
                (f"record is {told}", record == told),
                (f"RAS bit is {is_bit}", bit.lower() == is_bit),
                ("no such counter", names(counters) <= dict(COUNTERS).keys()),
                ("no such exception", names(raised) <= set(cxl_kv.errors.__all__)),
                ("poison is raised", event.name not in POISONING or "Error" in raised),
                ("empty cell", all(row[1:4])),
            )
            if not right
        ]
    return wrong


def test_every_event_is_told_as_the_source_has_it():
    rows = table(ERRORS, "event")
    assert not (wrong := wrong_events(rows)), "\n".join(wrong)
    for column, false in ((4, "`hit`"), (5, "info, dram"), (6, "internal"), (7, "`NoError`")):
        planted = [[*row] for row in rows]
        planted[6][column] = false
        assert wrong_events(planted), false
    assert wrong_events(rows[:-1])


def test_every_exception_of_the_library_is_told():
    told = set().union(*(names(row[0]) for row in table(Path("docs/cxl_kv.md"), "error")))
    silent = sorted(set(cxl_kv.errors.__all__) - {"CxlKvError"} - told)
    assert not silent, f"docs/cxl_kv.md says nothing of {', '.join(silent)}"


def exit_codes(tree) -> set[int]:
    """Numbers that calls of `sys.exit` and `typer.Exit` name, and those that have names."""
    found, names = set(), {"_INTERRUPTED", "_UNREAD", "_TERMINATED"}
    for node in ast.walk(tree):
        ends = isinstance(node, ast.Call) and ast.unparse(node.func) in {"sys.exit", "typer.Exit"}
        named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names
        if ends or named:
            values = node.args if ends else [node.value]
            found |= {
                each.value
                for value in values
                for each in ast.walk(value)
                if isinstance(each, ast.Constant) and type(each.value) is int
            }
    return found


def test_every_exit_code_is_told():
    files = (ROOT / "sw" / "kelp_cli").rglob("*.py")
    codes = set().union(*(exit_codes(ast.parse(path.read_text("utf-8"))) for path in files))
    told = {int(row[0]) for row in table(ERRORS, "exit code")}
    assert told == codes | {2}  # which is Typer's own


_SECTIONS = r"(§\d+(?:(?:, | and )§\d+)*)"


def missing_references(text: str) -> list[str]:
    """Sections of the specification and of other pages that `text` names and that do not exist."""
    joined = re.sub(r"\s*\n\s*(?:(?:#:?|//|\*|>) )?", " ", text)
    missing = []
    for found in re.finditer(rf"\bspec {_SECTIONS}", joined):
        for number in re.findall(r"\d+", found[1]):
            if not section(Path("docs/specification.md"), number):
                missing.append(f"spec §{number}")
    for found in re.finditer(rf"\b(\w+\.md)(?:\)?,)? (?:{_SECTIONS}|\"([^\"]+)\")", joined):
        page, title = Path("docs") / found[1], found[3]
        if page not in PAGES:
            missing.append(str(page))
        elif title and title.rstrip(".,") not in headings(page):
            missing.append(f'{page} "{title}"')
        else:
            for number in re.findall(r"\d+", found[2] or ""):
                if not section(page, number):
                    missing.append(f"{page} §{number}")
    return missing


@pytest.mark.parametrize(
    "text",
    ["(spec §3,\n# §12)", "docs/design.md §99", 'docs/lab.md, "No such heading"', "no.md §1"],
)
def test_a_planted_reference_is_seen(text):
    assert missing_references(text)


def test_every_section_that_is_named_exists():
    bad = [
        f"{path}: {what}"
        for path in TEXTS
        if path.name != "test_docs.py"
        for what in missing_references((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not bad, "\n".join(bad)


def test_every_link_leads_somewhere():
    bad = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if re.match(r"\w+:", target):
                continue
            file, _, anchor = target.partition("#")
            where = (ROOT / page.parent / file).resolve() if file else ROOT / page
            there = where.exists() and (not anchor or anchor in anchors(where.relative_to(ROOT)))
            if not there:
                bad.append(f"{page}: {target}")
    assert not bad, "\n".join(bad)


def test_every_source_file_that_a_page_names_exists():
    known = [str(path) for path in tracked()]
    bad = []
    for page in PAGES:
        for name in re.findall(r"`([\w./-]+\.(?:py|v|sv|cpp|svg|toml))`", prose(page)):
            if not name.startswith("build/") and not any(
                path == name or path.endswith(f"/{name}") for path in known
            ):
                bad.append(f"{page}: {name}")
    assert not bad, "\n".join(bad)


def commands(text):
    """What a page says to type: ``kelp …`` and ``make …``, in code alone."""
    typed = r"(?:^|(?<=[\s/;(]))((?:kelp|make) [a-z][a-z-]*(?: [^|;#&`\n]*)?)"
    for block, inline in re.findall(r"```[a-z]*\n(.*?)```|`([^`]+)`", text, re.DOTALL):
        if block:
            yield from re.findall(typed, re.sub(r"\\\n\s*", " ", block), re.MULTILINE)
        elif re.match(r"(\S*/)?(kelp|make) ", inline):
            yield from re.findall(typed, inline.replace("\n", " "))


@cache
def application():
    return typer.main.get_command(build_app())


def untypable(command):
    """Why there is no such command, None where there is."""
    tool, *words = command.split()
    if tool == "make":
        made = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        goals = itertools.takewhile(re.compile(r"[a-z][a-z0-9-]*$").match, words)
        return next((f"no target {goal}" for goal in goals if goal not in made), None)
    at = application()
    while words and hasattr(at, "commands"):
        word = words.pop(0).rstrip(",.:)")
        if word not in at.commands:
            return f"no command {word}"
        at = at.commands[word]
    legal = {o for p in at.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    asked = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(words))
    fault = next((f"no option {option}" for option in asked if option not in legal), None)
    if fault or re.search(r"[…[(]|(?<![^\s=:,])[A-Z]+(?![^\s=:,])", command):  # FILE, N, …
        return fault
    try:
        at.make_context(command, shlex.split(command)[-len(words) :] if words else [])
    except typer.BadParameter as error:
        if type(error) is typer.BadParameter:  # not one that is missing: a page may leave it out
            return f"{error.param.opts[0]}: {error.message}"
    except (typer.BadParameter.__base__, typer.Exit, ValueError):
        pass  # it goes on in words
    return None


def faults(parts_of, fault_of):
    """A line for each part of a page that has a fault."""
    return [
        f"{page}: {part}: {fault}"
        for page in PAGES
        for part in parts_of((ROOT / page).read_text(encoding="utf-8"))
        if (fault := fault_of(part))
    ]


def test_every_command_that_a_page_says_to_type_is_there():
    bad = faults(commands, untypable)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`kelp lab FILE --polcy lru`", "no option --polcy"),
        ("```sh\n.venv/bin/kelp fpga biuld\n```", "no command biuld"),
        ("`make dmo`", "no target dmo"),
        ("`kelp lab x.npz --jobs many`", "--jobs: Input should be a valid integer, unable "),
    ],
)
def test_a_planted_command_is_seen(text, fault):
    (found,) = (untypable(command) for command in commands(text))
    assert found.startswith(fault)


@cache
def spoken(folder: Path) -> str:
    """Names of tests and texts in the sources below `folder`: what `-k` chooses by, but for
    configurations and proofs, whose names come from elsewhere."""
    paths = [path for path in tracked() if path.suffix == ".py" and path.is_relative_to(folder)]
    return "\n".join(f"{path} " + (ROOT / path).read_text(encoding="utf-8") for path in paths)


def no_tests(line):
    """Why a `pytest` or `make … ARGS="…"` that a page says to type would run nothing, None where it
    would run something."""
    found = re.search(r"\bpytest\b(.*)", line) or re.search(
        r"\bmake (?:test|slow|prove|test-engines)\b.*ARGS=(.*)", line
    )
    try:
        words = shlex.split(found[1]) if found else []
        words = words if len(words) != 1 else shlex.split(words[0])
    except ValueError:  # it goes on in words
        return None
    where = [Path(word.split("::")[0]) for word in words if word.startswith("tests/")]
    for word in words:
        path, _, test = word.partition("::")
        if path.startswith("tests/") and not list(ROOT.glob(path.rstrip("/"))):
            return f"no {path}"
        if test and f"def {test.split('[')[0]}(" not in (ROOT / path).read_text(encoding="utf-8"):
            return f"no {test} in {path}"
    marker = words[words.index("-m") + 1] if "-m" in words else "slow"
    if marker not in ("slow", "prove", "quick"):
        return f"no marker {marker}"
    chosen = words[words.index("-k") + 1] if "-k" in words else ""
    texts = "\n".join(spoken(path) for path in where or [Path("tests")]) + "\n".join(
        [*NAMED, *(proof.name for proof in PROOFS)]
    )
    for name in set(re.findall(r"[\w.-]+", chosen)) - {"and", "or", "not"}:
        parts = name.lower().split("-")
        if not all(part in texts.lower() for part in parts):
            return f"no test says {name}"
    return None


def lines_of_code(text):
    for block, inline in re.findall(r"```[a-z]*\n(.*?)```|`([^`]+)`", text, re.DOTALL):
        yield from re.sub(r"\\\n\s*", " ", block or inline.replace("\n", " ")).splitlines()


def test_every_environment_variable_is_told():
    """Those that the device, the commands and the library read; benches have some among them."""
    read = re.compile(r'environ(?:\.get)?[\[(]"(KELP_\w+)"')
    names = {
        n
        for root in ("hw", "sim", "fpga", "sw")
        for p in (ROOT / root).rglob("*.py")
        for n in read.findall(p.read_text(encoding="utf-8"))
    }
    told = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    silent = sorted(name for name in names if name not in told)
    assert len(names) > 2 and not silent, f"no page names {', '.join(silent)}"


def test_the_readme_leads_to_every_page_and_names_every_room():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {path.as_posix() for path in PAGES if path.parent == Path("docs")} - {"docs/index.md"}
    lost = [page for page in sorted(pages) if f"]({page}" not in readme]
    rooms = {path.parent.name for path in PAGES if path.match("hw/kelp_hw/*/README.md")}
    nameless = [room for room in sorted(rooms) if f"`{room}`" not in readme]
    assert not lost and not nameless, f"README.md says nothing of {', '.join(lost + nameless)}"


def test_every_test_that_a_page_says_to_run_is_there():
    bad = faults(lines_of_code, no_tests)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("pytest -s tests/hw/test_nothing.py", "no tests/hw/test_nothing.py"),
        ("pytest tests/test_docs.py::test_nothing", "no test_nothing in tests/test_docs.py"),
        ("pytest -m slow tests/hw/flit -k " + "wo" + "rdless", "no test says " + "wo" + "rdless"),
        ('make slow ARGS="-m slw"', "no marker slw"),
    ],
)
def test_a_planted_test_is_seen(line, fault):
    assert no_tests(line) == fault


def unrunnable(line):
    """Why a `python -m MODULE` of ours, or a script, cannot be typed so; None where it can."""
    found = re.search(r"\bpython -m ([\w.]+)([^#|;]*)", line)
    script = re.search(r"(?:^|\s)((?:examples|scripts)/\w+(?:\.py)?)(?=\s|$)([^#|;]*)", line)
    if not script and (not found or found[1].partition(".")[0] not in PACKAGES):
        return None
    if script:
        place, typed = ROOT / script[1], script[2]
        if not place.is_file():
            return f"no {script[1]}"
        sources = [place]
    else:
        root, *names_left = found[1].split(".")
        folder = PACKAGES[root] / root
        place, typed = folder.joinpath(*names_left), found[2]
        place = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
        if not place.is_file():
            return f"no {found[1]}"
        if place.name != "__main__.py" and "__main__" not in place.read_text(encoding="utf-8"):
            return f"{found[1]} is not to be run"
        sources = [place, *(path for path in folder.rglob("*.py"))]
    said = "".join(path.read_text(encoding="utf-8") for path in sources)
    asked = re.findall(r"(?<![\w-])--[a-z][a-z-]*", typed)
    return next((f"no option {option}" for option in asked if f'"{option}"' not in said), None)


def test_every_module_that_a_page_says_to_run_is_there():
    bad = faults(lines_of_code, unrunnable)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("python -m kelp_verif.endpoint.strom", "no kelp_verif.endpoint.strom"),
        ("python -m kelp_verif.endpoint.storm --sedes 1 2", "no option --sedes"),
        ("python -m kelp_spec.formats", "kelp_spec.formats is not to be run"),
        (".venv.hf/bin/python examples/generate.py golden:trace --tokns 8", "no option --tokns"),
        ("examples/generat.py golden:trace", "no examples/generat.py"),
    ],
)
def test_a_planted_module_is_seen(line, fault):
    assert unrunnable(line) == fault


def test_no_page_names_a_commit():
    """A reader has no use for a commit's hash; a day and a command say what was measured."""
    commit = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)(?:[0-9a-f]{7,12}|[0-9a-f]{40})\b")
    bad = [f"{page}: {found}" for page in PAGES for found in commit.findall(prose(page))]
    assert not bad, "\n".join(bad)


def test_every_module_that_a_page_names_exists():
    bad = []
    for page in PAGES:
        for dotted in re.findall(rf"\b((?:{'|'.join(PACKAGES)})(?:\.\w+)+)", prose(page)):
            at, *names_left = dotted.split(".")
            place = PACKAGES[at] / at
            while names_left and (place / names_left[0]).is_dir():
                place /= names_left.pop(0)
            if names_left and (place / f"{names_left[0]}.py").is_file():
                source = place / f"{names_left.pop(0)}.py"
            else:
                source = place / "__init__.py"
            text = source.read_text(encoding="utf-8")
            if not all(re.search(rf"\b{name}\b", text) for name in names_left):
                bad.append(f"{page}: {dotted}")
    assert not bad, "\n".join(bad)


ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
PICTURE = (DOCS / "architecture.svg").read_text(encoding="utf-8")
# A row of the index: task, block, file.
INDEX = re.findall(r"^\| .* \| (?:`(\w+)`)? ?\| \[[^]]*\]\(([^)]+)\) \|$", ARCHITECTURE, re.M)


def test_the_picture_leads_to_files_that_are_there():
    links = re.findall(r'<a href="([^"#]+)"', PICTURE)
    dead = {link for link in links if not (DOCS / link).is_file()}
    assert len(links) > 60 and not dead, f"docs/architecture.svg leads to {sorted(dead)}"


def blocks_below(component, levels):
    """The Components of kelp_hw that `component` instantiates, and so on for so many levels."""
    if levels:
        module = component.elaborate(None)
        for part, _ in (*module._named_submodules.values(), *module._anon_submodules):
            if isinstance(part, wiring.Component) and type(part).__module__.startswith("kelp_hw."):
                yield type(part)
                yield from blocks_below(part, levels - 1)


def test_the_picture_shows_every_block_of_the_endpoint():
    """Two levels of blocks; those of room `lib` are in the index below the picture."""
    shown = set(re.findall(r'<a href="\.\./hw/(\S+)\.py"', PICTURE))
    common = {block for block, path in INDEX if "/lib/" in path}
    blocks = set(blocks_below(Endpoint(config=named("trace")), 2))
    missing = sorted(
        cls.__name__
        for cls in blocks
        if cls.__module__.replace(".", "/") not in shown and cls.__name__ not in common
    )
    assert len(blocks) > 40 and not missing, f"docs/architecture.svg shows no {missing}"


def names_of(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name


def test_architecture_names_blocks_that_are_there():
    gone = [
        f"{block} in {path}"
        for block, path in INDEX
        if block and (DOCS / path).is_file() and block not in names_of(DOCS / path)
    ]
    assert len(INDEX) > 200 and not gone, f"docs/architecture.md: no {', '.join(gone)}"


# One row leads to all of a folder's files.
TOGETHER = ("sim/kelp_sim/lab/policies",)


def without_row(paths, page):
    linked = {(DOCS / path).resolve() for path in re.findall(r"\]\(([^)#]+)\)", page)}
    return [
        str(path)
        for path in paths
        if path.suffix in {".py", ".v", ".c", ".cpp", ".h"}
        and not path.name.startswith("_")
        and any(path.is_relative_to(root) for root in ALLOWED)
        and not any(path.is_relative_to(folder) for folder in TOGETHER)
        and (ROOT / path).resolve() not in linked
    ]


def test_every_source_file_has_a_row_in_the_index():
    missing = without_row(tracked(), ARCHITECTURE)
    assert not missing, f"docs/architecture.md has no row for {', '.join(missing)}"


def test_a_planted_file_without_a_row_is_seen():
    path = Path("hw/kelp_hw/miss/grants.py")
    page = "| a task | `A` | [miss/grants.py](../hw/kelp_hw/miss/grants.py) |"
    assert without_row([path], "") == [str(path)] and not without_row([path], page)


def test_worked_examples_of_addresses_are_right():
    config = named("trace")
    addresses = AddressMap(config)
    where = addresses.encode(KvAddress(session=1, queue=7, page=100, kv=1, line=13))
    page = (DOCS / "interface.md").read_text(encoding="utf-8")
    assert f"= {where:#x}\n" in page and (addresses.hint_base, addresses.register_base) == (
        0x80_0000,
        0x100_0000,
    )
    squeue = 1 * config.queues + 7
    lba = (squeue * config.pages + 100) * config.cold_slot_sectors
    assert (squeue, config.cold_slot_sectors, lba) == (23, 5, 15_220)
    assert "(23 · 128 + 100) · 5 = 15 220" in prose(Path("docs/cold_tier.md"))


def test_worked_examples_of_arithmetic_are_right():
    page = prose(Path("docs/arithmetic.md"))
    alpha, idle = 26, idle_constants(26)
    scores = [initial(alpha), ema(100, 65535, alpha), mass(6746, 100, 4, alpha)]
    scores += [fold(20000, 30, *idle), touch(20000, 31, alpha, *idle)]
    assert scores == [6656, 6746, 6223, 804, 7378]
    assert all(re.search(rf"(= |it ){score}\b", page) for score in scores)
    rows = table(Path("docs/arithmetic.md"), "s")
    for row in rows:
        s, age, *told = (int(re.sub(r"\D", "", cell)) for cell in row)
        t, recency = exponent(age, *recency_constants(1000)), decay(age, *recency_constants(1000))
        assert told == [t, halving(t), recency, priority(s, recency)]
    assert len(rows) == 2
    line = np.zeros((1, 32), np.float16)
    line[0, :4] = 1, -0.3, 0.05, 1.7
    stored = {
        fmt: encode(line.view(np.uint16), HostType.FP16, fmt)
        for fmt in (Format.FP8_E4M3, Format.INT8, Format.INT4)
    }
    of_fp8, of_int8, of_int4 = (payload[0, :4].tolist() for payload, _ in stored.values())
    assert of_fp8 == [0x38, 0xAA, 0x15, 0x3E] and "38, AA, 15, 3E" in page
    assert of_int8 == [64, 256 - 19, 3, 109] and of_int4[:2] == [0xF4, 0x70]
    assert [int(scale[0]) for _, scale in stored.values()] == [0, 127, 125]


def wrong_figures(text):
    """`Block.FIGURE` = N where the block of that name has another number."""
    files = {block: DOCS / path for block, path in INDEX if block and "/hw/kelp_hw/" in f"/{path}"}
    for block, figure, told in re.findall(r"`(\w+)\.([A-Z_]+)` = (\d+)", text):
        path = files[block].resolve().relative_to(ROOT / "hw").with_suffix("")
        module = importlib.import_module(".".join(path.parts))
        if (has := getattr(getattr(module, block), figure)) != int(told):
            yield f"{block}.{figure} is {has}"


def test_figures_of_blocks_are_those_of_their_classes():
    """Latencies and the like that a page gives as attributes."""
    page = (DOCS / "arithmetic.md").read_text(encoding="utf-8")
    assert "`Exp2.LATENCY` = " in page and not (wrong := [*wrong_figures(page)]), wrong
    assert [*wrong_figures("`Exp2.LATENCY` = 7")] == ["Exp2.LATENCY is 11"]


def test_every_page_that_names_a_stage_links_to_where_it_is_explained():
    stage = re.compile(r"\b(?:M[A0-3]|F[12])\b")
    bad = [
        str(page)
        for page in PAGES
        if page.parent.name == "docs" and page.name != "design.md"
        if stage.search(prose(page)) and not re.search(r"\(design\.md#[mf]\w-", prose(page))
    ]
    assert not bad, "\n".join(bad)
