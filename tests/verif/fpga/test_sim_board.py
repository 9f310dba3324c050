# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The whole board in simulation, by the commands and the library that a real one is used with.
Slow: the model is built first."""

import json
import os
import pty
import select
import threading
import tty

import numpy as np
import pytest
from command import kelp
from trace_files import contents, save

from cxl_kv.backends.serial import SerialCore
from cxl_kv.core import Status
from cxl_kv.transport import LocalTransport
from kelp_fpga.board_registers import BoardRegister
from kelp_fpga.boards.board import Board
from kelp_fpga.configs import board_config
from kelp_fpga.flow.build import TARGETS
from kelp_fpga.link.protocol import FROM_DEVICE, Deframer, Kind, encode, pack, unpack
from kelp_golden.codec import round_trip
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.messages import FIELDS
from kelp_verif.fpga.sim_board import SimBoard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

_OPTIONS = {"timeout": "5", "patience": "300"}


@pytest.fixture(scope="module")
def simulated():
    with SimBoard(
        Board(config=board_config("board_small"), round_trip=round_trip, hz=80_000_000, divisor=4)
    ) as board:
        yield board
    assert not board.violations and not board.framing_errors and board.error is None


def test_the_library_reads_back_what_it_wrote(simulated):
    """Through `serial:`'s core: a session, full and partial lines, an unmapped address."""
    core = SerialCore(simulated.port, dict(_OPTIONS))
    transport = LocalTransport(core, 0)
    config = transport.config
    assert config.name == "board_small" and core.host.board(BoardRegister.IDENT) == 0x4B454C50
    session = transport.open_session(
        {
            "shape": _shape(config),
            "formats": 0,
            "policy": 0,
            "recency": 0,
            "auto_step": 0,
            "budgets": [[0x7FFFFFFF, []]],
        }
    )
    rng = np.random.default_rng(1)
    addresses = np.array(
        [
            AddressMap(config).encode(KvAddress(session, 1, page, kv, line))
            for page in (0, 3)
            for kv in (0, 1)
            for line in (0, 15)
        ],
        np.uint64,
    )
    lines = rng.integers(0, 256, (len(addresses), 64), np.uint8)
    transport.store(addresses, lines)
    transport.store(addresses[:1], np.full((1, 64), 7, np.uint8), np.array([0xFF], np.uint64))
    lines[0, :8] = 7
    got = transport.load(addresses)
    assert (got.lines == lines).all() and (got.status == Status.DATA).all()
    assert transport.load(np.array([1 << 45], np.uint64)).status.tolist() == [Status.NOT_MAPPED]
    transport.close()


def _shape(config):
    from cxl_kv.registers import Registers

    pack = Registers(config, None, None).pack
    return pack(
        "s0_shape", layers=2, kv_heads=2, used_lines=16, host_type=0, k_only=0, used_pages=8
    )


#: What a self-test says of.
PARTS = (
    "bridge",
    "memory march",
    "endpoint loop-back",
    "codec signature",
    "metadata ECC",
    "page words",
)


def command(name, *arguments):
    """Exit code and figures of a command that speaks to a simulated board."""
    done = kelp(
        "fpga", name, *arguments, "--timeout", "5", "--patience", "300", "--json", "-", timeout=1500
    )
    assert "{" in done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout[: done.stdout.rindex("}") + 1])


def test_selftest_by_its_command(simulated):
    code, result = command("selftest", "--port", simulated.port, "--lines", "40")
    assert code == 0 and result["passed"]
    assert [result[part] for part in PARTS] == ["passed"] * len(PARTS)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """4 queues of 10 pages of 8 lines."""
    return str(save(tmp_path_factory.mktemp("trace") / "small.npz", contents()))


SMALL = "--lines", "100", "--prefill-pages", "2"


@pytest.mark.parametrize("how", ["--free-running", "--lockstep"])
def test_replay_by_its_command(simulated, recording, how):
    code, result = command("replay", recording, "--port", simulated.port, *SMALL, how)
    assert code == 0 and result["passed"] and result["lockstep"] == (how == "--lockstep")
    assert result["lines"] >= 100 and (
        result["mismatches"],
        result["examples"],
        result["counter_mismatches"],
    ) == (0, [], {})
    assert (
        result["counters"]["misses"]
        and result["counters"]["write_backs"]
        and result["fetched_pages"]
        and result["stored_pages"]
    )


class WrongAnswer:
    """Between the command and a board: one bit of the `n`th line that is read comes back wrong, in
    a frame whose CRC is right, as of a wrong endpoint."""

    def __init__(self, port: str, n: int):
        self._left, self._deframer, self._stop = n, Deframer(FROM_DEVICE), threading.Event()
        self._board = os.open(port, os.O_RDWR | os.O_NOCTTY)
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.port, self.changed = os.ttyname(self._slave), None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        for end in (self._board, self._master, self._slave):
            os.close(end)

    def _run(self):
        while not self._stop.is_set():
            ready = select.select([self._board, self._master], [], [], 0.1)[0]
            if self._master in ready:
                os.write(self._board, os.read(self._master, 4096))
            if self._board in ready:
                for frame in self._deframer.feed(os.read(self._board, 4096)):
                    os.write(self._master, encode(self._through(frame)))

    def _through(self, frame):
        self._left -= frame.kind == Kind.RWD
        if frame.kind != Kind.RWD or self._left or self.changed is not None:
            return frame
        fields = unpack(FIELDS["S2MDRS"], frame.payload)
        fields["data"] ^= 1 << 77
        self.changed = fields["data"].to_bytes(64, "little").hex()
        return frame._replace(payload=pack(FIELDS["S2MDRS"], **fields))


def test_replay_tells_a_wrong_line(simulated, recording):
    with WrongAnswer(simulated.port, 60) as line:  # the first few are the endpoint's counters
        code, result = command("replay", recording, "--port", line.port, *SMALL)
    assert code == 1 and not result["passed"] and result["mismatches"] == 1
    (example,) = result["examples"]
    assert f"board {line.changed}, golden" in example
    assert (result["frames_bad"], result["frames_resent"], line.changed is None) == (0, 0, False)


def test_proof(tmp_path):
    """`make fpga-sim`: at least 1024 lines of a real recording, 16 misses and 8 write-backs, every
    line equal to the golden model's."""
    done = kelp("fpga", "proof", "--json", str(tmp_path / "sim.json"), timeout=2800)
    result = json.loads((tmp_path / "sim.json").read_text(encoding="utf-8"))
    assert (
        done.returncode == 0
        and result["passed"]
        and result["replay"]["lines"] >= 1024
        and result["replay"]["mismatches"] == 0
    )
    assert (
        result["replay"]["counters"]["misses"] >= 16
        and result["replay"]["counters"]["write_backs"] >= 8
        and not result["sdram_violations"]
    )


def test_selftest_after_synthesis(tmp_path):
    """`make fpga-netlist`: the top as ECP5 cells passes the same self-test."""
    done = kelp("fpga", "netlist", "--json", str(tmp_path / "netlist.json"), timeout=2800)
    result = json.loads((tmp_path / "netlist.json").read_text(encoding="utf-8"))
    assert (
        done.returncode == 0
        and result["passed"]
        and result["cells"]["LUT4"] > 20_000
        and result["cells"]["TRELLIS_FF"] > 10_000
    )


def selftest_of_routed(name):
    """The self-test of a board whose memory is block RAM: the configuration and the memory of its
    bitstream."""
    target = TARGETS[name]
    config = board_config(target.config)
    lines = target.top(config, 80_000_000, 3_000_000, round_trip)[1].board.block_lines
    with SimBoard(
        Board(config=config, round_trip=round_trip, hz=80_000_000, divisor=4, block_lines=lines)
    ) as board:
        code, result = command("selftest", "--port", board.port)  # all of the memory
        assert code == 0 and [result[part] for part in PARTS] == ["passed"] * len(PARTS)
        assert result["memory_lines"] == lines and board.error is None


def test_selftest_without_codecs():
    """The Versa: its self-test asks for raw16 alone, and passes."""
    selftest_of_routed("versa_ecp5_5g")


def test_selftest_with_memory_in_block_ram():
    """The ECPIX-5, with the ButterStick's top."""
    selftest_of_routed("ecpix5_85f")
