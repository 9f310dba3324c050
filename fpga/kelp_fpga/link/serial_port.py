# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A serial port, or a pseudo-terminal, as a stream of bytes. Linux; no package needed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import tty

__all__ = ["PortError", "SerialPort"]

_SERIAL_STRUCT = 128  #: bytes, room enough for Linux's `struct serial_struct`
_FLAGS_AT = struct.calcsize("iiIi")  #: type, line, port and irq come before its flags
_LOW_LATENCY = 1 << 13  #: ASYNC_LOW_LATENCY


class PortError(OSError):
    """The port cannot be used; the message says what to do."""


class SerialPort:
    """Raw, 8N1, no flow control, low latency where the driver has it.

    An FTDI chip keeps what does not fill a USB packet until its latency timer ends, 16 ms by
    default: longer than the board takes for a whole window of answers. With ASYNC_LOW_LATENCY the
    driver makes that 1 ms. A port that refuses it (a pseudo-terminal, another driver) is used as it
    is.

    One open port at a time, among programs that lock it (`flock`), as pyserial's `exclusive` and
    others do; PortError for the second one.

    Parameters
    ----------
    path : str
        `/dev/ttyUSB0`, or whatever a simulation says.
    baud : int
        One that the system knows (`termios.B…`); a pseudo-terminal ignores it.
    """

    def __init__(self, path: str, baud: int = 3_000_000):
        speed = getattr(termios, f"B{baud}", None)
        if not speed:  # B0 is no speed: it hangs up
            legal = sorted(
                int(name[1:])
                for name in dir(termios)
                if name[0] == "B" and name[1:].isdigit() and int(name[1:]) >= 9600
            )
            raise ValueError(f"baud = {baud} is refused; legal: {', '.join(map(str, legal))}")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except PermissionError:
            raise PortError(
                f"{path}: permission denied: add yourself to the group that owns it "
                + "(dialout), and log in again"
            ) from None
        except OSError as error:
            raise PortError(
                f"{path}: {error.strerror}; is the board plugged in? ls /dev/ttyUSB* /dev/ttyACM*"
            ) from None
        self.path = path
        try:
            termios.tcgetattr(self._fd)  # a port, before anything else of it is touched
            self._lock()
            tty.setraw(self._fd)
            settings = termios.tcgetattr(self._fd)
            settings[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
            settings[4] = settings[5] = speed
            termios.tcsetattr(self._fd, termios.TCSANOW, settings)
            termios.tcflush(self._fd, termios.TCIOFLUSH)
        except termios.error as error:
            os.close(self._fd)
            raise PortError(f"{path}: is no serial port ({error.args[-1]})") from None
        with contextlib.suppress(OSError):
            self._ask_for_low_latency()

    def _lock(self) -> None:
        """Before anything is set or flushed: another program may be in the middle of a frame."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise PortError(
                f"{self.path}: another program uses this port (fuser {self.path} names it); "
                + "`kelp serve serial:…` shares a board among several"
            ) from None

    def _ask_for_low_latency(self) -> None:
        settings = bytearray(_SERIAL_STRUCT)
        fcntl.ioctl(self._fd, termios.TIOCGSERIAL, settings)
        (flags,) = struct.unpack_from("i", settings, _FLAGS_AT)
        struct.pack_into("i", settings, _FLAGS_AT, flags | _LOW_LATENCY)
        fcntl.ioctl(self._fd, termios.TIOCSSERIAL, settings)

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
