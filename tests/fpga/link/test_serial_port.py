# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the serial port and the command say when things are not there; its driver's low latency."""

import errno
import os
import pty
import termios

import pytest
from command import kelp

import cxl_kv
from kelp_fpga.link.serial_port import PortError, SerialPort


def test_a_port_that_is_not_there():
    with pytest.raises(PortError, match="plugged in"):
        SerialPort("/dev/kelp-no-such-port")
    for baud in (12345, 0):  # B0 would hang up
        with pytest.raises(ValueError, match=f"baud = {baud} is refused; legal: 9600, "):
            SerialPort("/dev/null", baud)
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


def test_a_port_where_no_board_answers_is_free_again():
    master, slave = pty.openpty()
    path = os.ttyname(slave)
    try:
        with pytest.raises(cxl_kv.ConnectionLostError) as kept:
            cxl_kv.open(f"serial:{path}?patience=0.2&timeout=0.05")
        SerialPort(path).close()
        assert kept.value.__traceback__  # which would keep the port
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
