# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Processes that tests kill."""

import os
import signal

__all__ = ["forked"]


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
