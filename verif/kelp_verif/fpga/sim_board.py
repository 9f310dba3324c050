# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board in simulation, with its UART as a pseudo-terminal: what talks to a real one talks to it
unchanged."""

from __future__ import annotations

import ctypes
import os
import pty
import select
import threading
import time
import tty
from pathlib import Path

from kelp_fpga.boards.board import Board
from kelp_hw.export.verilog import to_verilog
from kelp_rtl.verilator import QUICK_OPT, Cpp, verilate_model

from .chip import CHIP, VIOLATIONS
from .sim_top import BoardWithChip

__all__ = ["SimBoard"]

_CHUNK = 50, 2_000  #: cycles between two looks at the terminal, at least and at most
#: seconds between them, within those: a slow model would run thousands of cycles for nothing before
#: each question of the host's
_LOOK = 0.02
_REST_AFTER = 400_000  #: cycles without a byte after which the simulation only dozes


class SimBoard:
    """`with SimBoard(board) as sim: open(sim.port)` …; the model is built (cached) by the
    constructor, and runs in a thread inside the `with`.

    Parameters
    ----------
    board : Board
    seed : int
        Of everything that power-up leaves to chance.
    verilog : str, optional
        The board's top as text, instead of what is generated from it: a netlist, whose cells are in
        `sources`.
    plusarg : str
        For `$value$plusargs` in that text.

    Attributes
    ----------
    port : str
        Path of the pseudo-terminal.
    error : str or None
        Why the simulation stopped by itself.
    """

    def __init__(
        self,
        board: Board,
        *,
        seed: int = 1,
        verilog: str | None = None,
        sources=(),
        name: str | None = None,
        verilator_args=(),
        plusarg: str = "",
        opt: str = QUICK_OPT,
    ):
        text = verilog or to_verilog(BoardWithChip(board), checked=True)
        name = name or f"board-{board.config.name}"
        driver = Path(__file__).with_name("board.cpp")
        library = verilate_model(
            text,
            Cpp(sources=[driver]),
            name=name,
            sources=[CHIP, *sources],
            verilator_args=verilator_args,
            opt=opt,
        )
        self._library = lib = ctypes.CDLL(str(library))
        lib.board_new.restype = ctypes.c_void_p
        lib.board_new.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p]
        lib.board_run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        for what, kind in (
            ("free", None),
            ("cycles", ctypes.c_int64),
            ("framing_errors", ctypes.c_int64),
            ("waiting", ctypes.c_int),
            ("violation", ctypes.c_uint32),
            ("leds", ctypes.c_uint32),
        ):
            function = getattr(lib, f"board_{what}")
            function.restype, function.argtypes = kind, [ctypes.c_void_p]
        self._board, self.error, self.seconds = (
            lib.board_new(board.divisor, seed, plusarg.encode()),
            None,
            0.0,
        )
        self._stop = threading.Event()

    def __enter__(self) -> SimBoard:
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.port = os.ttyname(self._slave)
        os.set_blocking(self._master, False)
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._master)
        os.close(self._slave)
        for what in ("cycles", "framing_errors", "leds", "violation"):
            setattr(self, f"_{what}", self._ask(what))
        self._library.board_free(self._board)
        self._board = None

    def _run(self) -> None:
        buffer, rest, pending, chunk = ctypes.create_string_buffer(1 << 16), 0, b"", _CHUNK[0]
        while not self._stop.is_set():
            data = b""
            if (
                select.select([self._master], [], [], 0.02 if rest > _REST_AFTER else 0)[0]
                and self._ask("waiting") < 4096
            ):
                try:
                    data = os.read(self._master, 4096)
                except OSError:
                    self.error = "the terminal was closed"
                    return
            began = time.perf_counter()
            count = self._library.board_run(
                self._board, chunk, data, len(data), buffer, len(buffer)
            )
            took = time.perf_counter() - began
            self.seconds += took
            if count < 0:
                self.error = f"an RTL Assert failed at cycle {self.cycles}"
                return
            rest = 0 if data or count else rest + chunk
            chunk = min(max(_CHUNK[0], int(chunk * min(2.0, _LOOK / max(took, 1e-6)))), _CHUNK[1])
            pending += buffer.raw[:count]
            if pending:
                try:
                    pending = pending[os.write(self._master, pending) :]
                except BlockingIOError:
                    pass

    def _ask(self, what: str) -> int:
        return (
            getattr(self._library, f"board_{what}")(self._board)
            if self._board
            else getattr(self, f"_{what}")
        )

    @property
    def cycles(self) -> int:
        return self._ask("cycles")

    @property
    def framing_errors(self) -> int:
        return self._ask("framing_errors")

    @property
    def leds(self) -> int:
        return self._ask("leds")

    @property
    def violations(self) -> list[str]:
        """What the SDRAM chip has seen broken."""
        value = self._ask("violation")
        return [name for n, name in enumerate(VIOLATIONS) if value >> n & 1]
