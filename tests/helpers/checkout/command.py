# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` command as a user calls it."""

import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from kelp_cli.main import main

__all__ = ["kelp", "refused"]


def kelp(*arguments, timeout=240, **env):
    """``kelp`` with `arguments`, finished: its exit code and what it said; `env` adds to the
    environment."""
    command = [str(Path(sys.executable).parent / "kelp"), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | env,
        check=False,
        timeout=timeout,
    )


def refused(*arguments, seconds=60):
    """The same, in a copy of this process, which has imported most of what the command does: for
    input that it refuses at once, in a tenth of the time."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _become(arguments, out.fileno(), err.fileno(), seconds)
        _, status = os.waitpid(child, 0)
        said = [file.seek(0) or file.read().decode() for file in (out, err)]
    return subprocess.CompletedProcess(arguments, os.waitstatus_to_exitcode(status), *said)


def _become(arguments, out, err, seconds):
    """`kelp`, which ends this process."""
    code = 1
    try:
        signal.alarm(seconds)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        sys.argv = ["kelp", *arguments]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
