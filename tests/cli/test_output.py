# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""kelp_cli.output: what could not be written at the end of long work is refused before it;
tables are shown whole."""

import json
import os
from pathlib import Path

import pytest
import typer
from command import refused
from paths import ROOT
from rich import box
from rich.console import Console
from rich.table import Table
from trace_files import contents, save
from typer.testing import CliRunner

from kelp_cli import nightly
from kelp_cli.bench.commands import _others
from kelp_cli.fpga.shared import finish
from kelp_cli.main import build_app
from kelp_cli.output import UserError, anyway, console, progress_bar, show, writable, write_json


def test_what_can_be_written_gets_its_directories_and_stays_as_it_is(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    new = tmp_path / "new" / "rows.json"
    writable(None, kept, new, json=Path("-"), folder=tmp_path / "page")
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
    with pytest.raises(UserError, match=f"{file} is a file; the name of a directory is expected"):
        writable(folder=file)
    with pytest.raises(UserError, match="- is no directory's name here"):
        writable(folder=Path("-"))


def test_what_is_read_or_named_twice_is_not_replaced(tmp_path):
    read, other = tmp_path / "read.json", tmp_path / "other.json"
    read.write_text("{}")
    (tmp_path / "link").symlink_to(read)
    for named in (read, tmp_path / "new" / ".." / "read.json", tmp_path / "link"):
        with pytest.raises(UserError, match=f"{read} is read by this command, and would be"):
            writable(other, json=named, inputs=[None, "data/model", read])
    with pytest.raises(UserError, match=f"{other} is named for two results; name another"):
        writable(other, json=other)
    writable(other, Path("/dev/null"), json=Path("/dev/null"), inputs=[read])
    assert read.read_text() == "{}" and not other.exists()


@pytest.mark.parametrize(
    "command",
    [
        "trace import oracle {0} -o {0}",
        "replay {0} --engine golden --residency 1 --json {0}",
        "lab {0} --csv {0}",
        "model --inputs {0} --json {0}",
        "select {0} --lists {0}",
        "quality {0} --json {0}",
    ],
)
def test_a_command_does_not_replace_what_it_reads(tmp_path, command):
    file = tmp_path / "t.npz"
    save(file, contents(with_kv=False))
    before = file.read_bytes()
    done = refused(*command.format(file).split())
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"{file} is read by this command, and would be replaced" in done.stderr
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["[x]", "[/b]x", ":warning:"])
def test_names_in_brackets_are_names(capsys, name):
    table = Table("name")
    table.add_row(name)
    show(table)
    console.print(f"{name} written")
    with progress_bar() as bar:
        bar.add_task(name)
    said = capsys.readouterr()
    assert said.out.count(name) == 2 and name in said.err


def test_a_closed_stdout_is_one_line(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)  # what `>&-` leaves
    with pytest.raises(UserError, match="stdout is closed"):
        write_json("-", "config", {})


@pytest.mark.parametrize("file", ["/dev/full", "{0}/new/figures.json"])
@pytest.mark.parametrize(
    "command",
    [
        "replay {0}/t.npz --engine golden --residency 1 --json",
        "lab {0}/t.npz --residency 0.5 --policy lru --fresh --jobs 1 --csv",
        "model kv --json",
    ],
)
def test_what_work_came_to_is_shown_when_its_file_cannot_be_written(tmp_path, command, file):
    save(tmp_path / "t.npz", contents(with_kv=False))
    asked = [*command.format(tmp_path).split(), file.format(tmp_path)]
    found = CliRunner().invoke(build_app(), asked)
    assert "LRU" in found.stdout or "one sequence" in found.stdout
    full = file == "/dev/full"
    assert isinstance(found.exception, OSError) == full, found.exception
    assert full or (tmp_path / "new" / "figures.json").stat().st_size


def test_figures_for_a_pipe_are_json_alone(capsys):
    with pytest.raises(typer.Exit):
        finish({"passed": True}, Path("-"), "fpga-selftest")
    assert json.loads(capsys.readouterr().out)["passed"]


def test_what_was_written_stays_where_nobody_reads_the_table(tmp_path):
    def tell():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError), anyway(tell):
        write_json(tmp_path / "figures.json", "figures", {})
    assert (tmp_path / "figures.json").is_file()


def test_rows_of_something_else_are_refused(tmp_path):
    other = tmp_path / "README.md"
    other.write_text("# words\n")
    with pytest.raises(UserError, match="holds no rows of kelp bench"):
        _others(other, set())


def test_a_device_without_end_holds_no_rows():
    assert _others(Path("/dev/full"), set()) == [] == nightly._recorded(Path("/dev/full"))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("model kv --png {0}", "{0} is a directory; the name of a file is expected"),
        ("fpga report --board nope", "board 'nope' is unknown; known: ulx3s_85f, ecpix5_85f"),
        ("quality --texts 0 --formats=", "format '' is unknown; legal: raw16"),
        ("lab x.npz --store {0}", "{0} is a directory; the name of a file is expected"),
        ("lab x.npz --store {0}/cut.json/x", "{0}/cut.json cannot be written to: "),
        ("quality x.npz --texts 1 --tune 0 --store {0}", "{0} is a directory; the name of a"),
        ("model kv --png -", "- is no file's name here; only --json goes to stdout"),
        ("model --write-inputs -", "- is no file's name here; only --json goes to stdout"),
        ("lab x.npz --csv -", "- is no file's name here; only --json goes to stdout"),
        ("nightly prove -o {0}", "{0} is a directory; the name of a file is expected"),
        ("nightly prove -o {0}/cut.json", "{0}/cut.json is no record of kelp nightly; remove it"),
        ("model kv --json {0}", "{0} is a directory; the name of a file is expected"),
        ("quality x.npz --budgets 0.1,nan", "--budgets '0.1,nan' is not positive numbers"),
        ("size --dram inf", "dram = inf is refused; legal: positive numbers"),
        ("top golden:trace --interval nan", "interval = nan is refused; legal: above 0"),
        ("serve golden:trace --listen x", "'x' is refused; a server listens on unix:/path or"),
        ("token a --tokens {0}/t --to {0}/a --clients -1", "clients = -1 of a in {0}/t is refused"),
        ("lab x.npz --jobs 1000000", "--jobs 1000000 is refused; legal: 1 … 1024, or -1 for"),
        ("linux --seconds nan", "--seconds nan is refused; legal: above 0"),
        ("linux --seconds -1", "--seconds -1.0 is refused; legal: above 0"),
        ("replay x.npz --seed -1", "--seed -1 is refused; legal: 0 … 4294967295"),
        ("demo --seed 4294967296", "--seed 4294967296 is refused; legal: 0 … 4294967295"),
        ("lab /dev/full", "/dev/full: is a device or a pipe, not a trace"),
        ("trace import mooncake /dev/zero -o {0}/x.npz", "/dev/zero: is a device; a file is exp"),
        ("trace import oracle /dev/zero -o {0}/x.npz", "/dev/zero: is a device; a file is exp"),
        ("trace import oracle {0} -o {0}/x.npz", "{0}: is a directory; a file is expected"),
        ("trace import lmcache {0} -o {0}/x.npz", "{0}: is a directory; a file is expected"),
        ("model --inputs /dev/zero", "/dev/zero: is a device; a file is expected"),
        ("model --bench /dev/zero", "/dev/zero: is a device; a file is expected"),
        ("docs --bench {0}/cut.json -o docs", "{0}/nightly.json: no such file; call it in a"),
        ("docs --bench {0} -o docs", "{0} is no file; --bench wants one that kelp bench has wri"),
        ("select {0}", "{0}: is no file; a recording (.npz) or a text is expected"),
        *(
            (f"{command} -o {where}", said)
            for command in ("verilog", "fpga axi", "fpga vivado --board vcu118")
            for where, said in (
                ("-", "- is no directory's name here; only --json goes to stdout"),
                ("{0}/cut.json", "{0}/cut.json is a file; the name of a directory is expected"),
                ("/proc/self", "/proc/self cannot be written to: "),  # it is there
            )
        ),
        *(
            (f"fpga {command} --json {{0}}", "{0} is a directory; the name of a file is expected")
            for command in (
                *("build", "dummy", "netlist", "proof"),
                *("selftest --port {0}", "replay x.npz --port {0}"),
            )
        ),
        ("fpga proof {0}/cut.json", "{0}/cut.json: is not an .npz (zip) file"),
        ("fpga proof --residency nan", "residency = nan is refused; legal: above 0, at most 1"),
        ("fpga proof --test-lines 999999", "--test-lines 999999 is refused; the board has 524288"),
        ("fpga netlist --test-lines 513", "--test-lines 513 is refused; the board has 512 lines"),
        ("fpga estimate --board nope", "board 'nope' is unknown; known: ulx3s_85f, ecpix5_85f"),
        ("fpga paths --board nope", "board 'nope' is unknown; known: ulx3s_85f, ecpix5_85f"),
        ("fpga estimate --only [", "--only '[' is no regular expression: unterminated"),
        *(
            (f"fpga estimate --netlist {{0}}/{name}.json", f"{{0}}/{name}.json: no netlist (")
            for name in ("cut", "list", "none")
        ),
        ("fpga proof --prefill-pages 99", "--prefill-pages 99 is refused; legal: 1 … 32"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(tmp_path, command, line):
    (tmp_path / "cut.json").write_text('[{"na')
    (tmp_path / "list.json").write_text("[1, 2]")
    found = CliRunner().invoke(build_app(), command.format(tmp_path).split())
    assert isinstance(found.exception, UserError) and line.format(tmp_path) in str(found.exception)


@pytest.mark.parametrize(
    "command",
    [
        *(f"fpga {of} --divisor 3" for of in ("sim", "proof", "netlist")),
        *(f"fpga {of} --mhz {mhz}" for of in ("sim", "build", "proof") for mhz in ("nan", -1)),
        "fpga proof --lines 0",
        "fpga build --seed -1",
        "fpga dummy --seed 2147483648",
        "fpga proof --prefill-pages -1",
        "fpga netlist --test-lines 0",
        "fpga estimate --paths -1",
        "fpga paths --above nan",
    ],
)
def test_a_board_that_cannot_be_is_a_usage_error(command):
    found = CliRunner().invoke(build_app(), command.split())
    assert found.exit_code == 2 and command.split()[-2] in found.output


def test_rows_that_are_cut_are_named(tmp_path):
    for name in ("bench", "nightly", "mutate", "coverage"):
        (tmp_path / f"{name}.json").write_text("[")
    found = CliRunner().invoke(build_app(), ["docs", "--bench", f"{tmp_path}/bench.json"])
    assert str(found.exception).startswith(f"{tmp_path}/nightly.json is not JSON: ")


@pytest.mark.parametrize("name", ["bench", "nightly", "mutate", "coverage"])
@pytest.mark.parametrize(
    "rows", ['{"rows": 1}', '{"blocks": 7}', "[[1]]", "3", '[{"part": "bench"}]']
)
def test_rows_of_another_shape_are_named(tmp_path, name, rows):
    pages = (ROOT / "docs" / page for page in ("verification.md", "select.md"))
    for path in (*(ROOT / "data" / "bench").glob("*.json"), *pages):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / f"{name}.json").write_text(rows)
    options = ["docs", "--bench", f"{tmp_path}/bench.json", "-o", str(tmp_path)]
    found = CliRunner().invoke(build_app(), options)
    assert isinstance(found.exception, UserError), found.exception
    assert str(found.exception).startswith(f"{tmp_path}/{name}.json holds other rows than `")


@pytest.mark.parametrize(("page", "mark"), [("verification", "runs"), ("select", "example")])
def test_a_page_without_its_marks_is_named(tmp_path, page, mark):
    for name in ("verification.md", "select.md"):
        (tmp_path / name).write_bytes((ROOT / "docs" / name).read_bytes())
    (tmp_path / f"{page}.md").write_text("# A page\n")
    options = ["docs", "--bench", str(ROOT / "data/bench/bench.json"), "-o", str(tmp_path)]
    found = CliRunner().invoke(build_app(), options)
    assert isinstance(found.exception, UserError), found.exception
    assert str(found.exception).startswith(f"{tmp_path}/{page}.md has no two lines <!-- {mark}")
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("columns", [24, 40, 80])
def test_no_table_is_cut_in_a_narrow_terminal(columns, monkeypatch, capsys):
    # The command's own took its width when it was made, maybe for another test.
    monkeypatch.setattr("kelp_cli.output.console", Console(width=columns))
    table = Table(*("reader", "tokens that wait", "what it depends on"), box=box.SIMPLE_HEAD)
    table.columns[1].no_wrap = True
    table.add_row("infinigen", "1,048,576", "frames " * 9 + "of/a/path/that/may/be/folded.npz")
    show(table)
    shown = capsys.readouterr().out
    assert "…" not in shown and max(len(line) for line in shown.splitlines()) <= max(columns, 72)
    words = shown.split()
    assert {"reader", "infinigen", "1,048,576", "depends"} <= {*words} and "wait" in words
    assert words.count("frames") == 9


def test_commands_show_tables_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    found = CliRunner().invoke(build_app(), ["config"])
    assert found.exit_code == 0 and "1,048,576" in found.stdout.split()
