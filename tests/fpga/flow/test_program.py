# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the flow and the loader say when something is missing, and the flow as a whole."""

import json
import shutil

import pytest
from command import kelp
from stub_board import Stub

from kelp_cli import doctor
from kelp_fpga.boards.ulx3s import Ulx3s, Ulx3sPlatform
from kelp_fpga.configs import BOARD_CONFIGS, board_config
from kelp_fpga.flow.build import TARGETS, BuildError, build, check_built, program
from kelp_golden.codec import round_trip
from kelp_spec.formats import Format


def stub_top(config, hz, baud):
    return Ulx3sPlatform(), Ulx3s(Stub())


def test_every_target_has_a_configuration_that_its_board_holds():
    for name, target in TARGETS.items():
        platform, top = target.top(board_config(target.config), 80_000_000, 3_000_000, round_trip)
        assert (
            top.board.config.name == target.config
            and top.board.cold_first < top.board.lines
            and platform.device.startswith("LFE5")
        ), name
    assert board_config(TARGETS["versa_ecp5_5g"].config).formats == (Format.RAW16,), (
        "with codecs the 45F does not hold it"
    )


@pytest.mark.slow
def test_the_flow_ends_in_a_bitstream_and_a_report(tmp_path):
    def built(directory, **changed):
        return build(
            "ulx3s_85f",
            BOARD_CONFIGS["unit"],
            top=stub_top,
            directory=directory,
            hz=80_000_000,
            **changed,
        )

    here, beside = tmp_path / "seed1", tmp_path / "seed2"
    figures = built(here)
    assert (
        figures["fmax_mhz"] > 80
        and 0 < figures["luts"] < 200
        and figures["luts_total"] > 80_000
        and (here / "top.bit").stat().st_size > 10_000
    )
    assert figures["critical_path"]["ns"] > 0 and figures == json.loads(
        (here / "report.json").read_text(encoding="utf-8")
    )
    # Broken off behind the placement, it goes on from there.
    (here / "routing.done").unlink()
    (here / "top.bit").unlink()
    made = {
        name: (here / name).stat().st_mtime_ns
        for name in ("top.json", "placed.json", "refined.json", "top.config")
    }
    assert built(here) == figures and (here / "top.bit").is_file()
    assert {name for name, time in made.items() if (here / name).stat().st_mtime_ns != time} == {
        "top.config"
    }
    # Another seed has the same netlist, and another placement.
    assert built(beside, seed=2)["seed"] == 2 and (beside / "top.bit").is_file()
    assert [
        (beside / name).is_file() for name in ("synthesis.log", "globals.log", "placement.log")
    ] == [False, False, True]


def test_the_flow_says_what_is_missing(tmp_path):
    with pytest.raises(BuildError, match="board 'nexys' is unknown; known: ulx3s_85f"):
        program("nexys", tmp_path)
    with pytest.raises(BuildError, match="board 'nexys' is unknown; known: ulx3s_85f"):
        build("nexys", BOARD_CONFIGS["unit"], top=stub_top, directory=tmp_path, hz=80_000_000)
    done = kelp("fpga", "program", "--seed", "999")
    assert (
        done.returncode == 1
        and "Traceback" not in done.stderr
        and ("no such bitstream" in done.stderr or "openFPGALoader" in done.stderr)
    )
    for command in ("build", "report"):
        done = kelp("fpga", command, "--board", "nexys")
        assert (
            done.returncode == 1
            and "board 'nexys' is unknown" in done.stderr
            and "Traceback" not in done.stderr
        )
    done = kelp("fpga", "report", "--board", "versa_ecp5_5g", KELP_BUILD=str(tmp_path))
    assert done.returncode == 1 and "nothing was built for versa_ecp5_5g" in done.stderr


def test_a_line_rate_that_the_clock_cannot_make_is_refused(tmp_path):
    with pytest.raises(BuildError, match="1.60 cycles a bit"):
        build(
            "ulx3s_85f",
            board_config("first_light"),
            top=stub_top,
            directory=tmp_path,
            hz=8_000_000,
            baud=5_000_000,
        )


@pytest.fixture
def loader(tmp_path, monkeypatch):
    """A loader that ends as told, in front of every other."""

    def make(script):
        path = tmp_path / "bin" / "openfpgaloader-cli"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return make


def test_program_says_why_nothing_was_programmed(tmp_path, loader, monkeypatch):
    bitstream = tmp_path / "top.bit"
    bitstream.write_bytes(b"bits")
    loader("echo no device found >&2; exit 1")
    with pytest.raises(BuildError, match="no board answers") as error:
        program("ulx3s_85f", bitstream)
    assert "no device found" in str(error.value)
    loader("echo x: error while loading shared libraries: libusb-1.0.so.0 >&2; exit 127")
    with pytest.raises(BuildError, match="does not start: apt-get install libusb"):
        program("ulx3s_85f", bitstream)
    loader('echo "$@" > ' + str(tmp_path / "asked"))
    program("versa_ecp5_5g", bitstream)
    assert (tmp_path / "asked").read_text(encoding="utf-8").split() == [
        "-c",
        "ft2232",
        "-m",
        str(bitstream),
    ]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(BuildError, match="no openFPGALoader"):
        program("ulx3s_85f", bitstream)


def test_a_bitstream_of_other_sources_is_not_loaded(tmp_path):
    """Which each host would refuse, once it is in the board."""
    config, made = board_config("ulx3s"), {"config": "ulx3s", "netlist": "a"}
    check_built(tmp_path, config)  # nothing is known
    path = tmp_path / "report.json"
    for said, why in (
        (made | {"digest": config.digest}, None),
        (
            made | {"digest": "0123456789ab"},
            f"'ulx3s' with digest 0123456789ab, and 'ulx3s' has digest {config.digest} here: build",
        ),
        (made, "is no report of this version of kelp: build it anew"),
        ([], "is no report of this version of kelp: build it anew"),
    ):
        path.write_text(json.dumps(said), encoding="utf-8")
        if why is None:
            check_built(tmp_path, config)
            continue
        with pytest.raises(BuildError, match=why):
            check_built(tmp_path, config)
    path.write_text(json.dumps(made | {"digest": config.digest}), encoding="utf-8")
    done = tmp_path / "synthesis.done"
    done.write_text("a", encoding="utf-8")
    check_built(tmp_path, config)
    done.write_text("b", encoding="utf-8")
    with pytest.raises(BuildError, match="older than the netlist beside it, of which no build has"):
        check_built(tmp_path, config)


def test_the_doctor_looks_for_the_loaders_that_program_does(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(shutil, "which", lambda name: asked.append(name))
    with pytest.raises(BuildError, match=doctor._loader().remedy):
        program("ulx3s_85f", tmp_path / "top.bit")
    assert asked == 2 * ["openfpgaloader-cli", "openFPGALoader"]


def test_program_says_what_was_loaded(tmp_path, loader):
    made = tmp_path / "fpga" / "ulx3s_85f" / "first_light-seed1" / "top.bit"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"bits")
    report = made.with_name("report.json")
    report.write_text('{"config": "ulx3s", "digest": "1", "netlist": "a"}', encoding="utf-8")
    done = kelp("fpga", "program", "--config", "first_light", KELP_BUILD=str(tmp_path))
    assert done.returncode == 1 and "and 'first_light' has digest" in done.stderr
    report.unlink()
    for ends, code, said, complaint in (
        (0, 0, f"ulx3s_85f loaded with {made}; it stays until power goes\n", ""),
        (1, 1, "", "no board answers"),
    ):
        loader(f"exit {ends}")
        done = kelp("fpga", "program", "--config", "first_light", KELP_BUILD=str(tmp_path))
        assert (
            (done.returncode, done.stdout) == (code, said)
            and complaint in done.stderr
            and "Traceback" not in done.stderr
        )
