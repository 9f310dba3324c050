# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Processes that tests fork: some they kill, some have to end."""

import os
import signal

__all__ = ["ends_in_a_child", "forked"]


def ends_in_a_child(work, *, seconds=20):
    """Whether a forked child that does `work` and nothing else ends within that time."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def forked(work):
    """A process that does `work` and keeps what it returns until it is killed; its number, once the
    work is done."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _kept = work()
            os.write(write, b"up")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 2) == b"up", "the process did not get so far"
    os.close(read)
    return pid
