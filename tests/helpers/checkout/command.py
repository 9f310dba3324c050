# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` command as a user calls it."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["kelp"]


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
