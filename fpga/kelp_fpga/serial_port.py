# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A serial port, or a pseudo-terminal, as a stream of bytes. Linux; no package needed."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import tty

__all__ = ["PortError", "SerialPort"]


class PortError(OSError):
    """The port cannot be used; the message says what to do."""


class SerialPort:
    """Raw, 8N1, no flow control.

    Parameters
    ----------
    path : str
        `/dev/ttyUSB0`, or whatever a simulation says.
    baud : int
        One that the system knows (`termios.B…`); a pseudo-terminal ignores it.
    """

    def __init__(self, path: str, baud: int = 3_000_000):
        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            legal = sorted(int(name[1:]) for name in dir(termios) if name[0] == "B" and name[1:].isdigit() and int(name[1:]) >= 9600)
            raise ValueError(f"baud = {baud} is refused; legal: {', '.join(map(str, legal))}")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except PermissionError:
            raise PortError(f"{path}: permission denied: add yourself to the group that owns it (dialout), and log in again") from None
        except OSError as error:
            raise PortError(f"{path}: {error.strerror}; is the board plugged in? ls /dev/ttyUSB* /dev/ttyACM*") from None
        self.path = path
        try:
            tty.setraw(self._fd)
            settings = termios.tcgetattr(self._fd)
            settings[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
            settings[4] = settings[5] = speed
            termios.tcsetattr(self._fd, termios.TCSANOW, settings)
            termios.tcflush(self._fd, termios.TCIOFLUSH)
        except termios.error as error:
            os.close(self._fd)
            raise PortError(f"{path}: is no serial port ({error.args[-1]})") from None

    def read(self, timeout: float) -> bytes:
        """What has come; waits for at most `timeout` seconds for the first byte."""
        if not select.select([self._fd], [], [], max(0.0, timeout))[0]:
            return b""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise PortError(f"{self.path}: {error.strerror}: the board is gone") from None
        if not data:
            raise PortError(f"{self.path}: the board is gone")
        return data

    def write(self, data: bytes) -> int:
        """Bytes taken without waiting."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PortError(f"{self.path}: {error.strerror}: the board is gone") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
