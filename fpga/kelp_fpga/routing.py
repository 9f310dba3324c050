# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""nextpnr's router, asked for what the refined placement can reach.

`python -m kelp_fpga.routing NEXTPNR OPTIONS…`, a step of :mod:`.build`. router2 takes a wire again only where two signals want one, or, when it is told to
(`--tmg-ripup`), also where a path is later than asked for. Without that a net with hundreds of loads goes round by what it has of wires already, 12 ns for
80 tiles; with it, and asked for more than the placement can give, it does not end. So it is asked for what :mod:`.refinement` has predicted, and where it
does not get there, routes without.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["GOAL", "route"]

GOAL = "kelp/goal_mhz"      #: the setting of a refined netlist that says what to ask for
_ROUNDS = 400               #: of the router, which itself gives up at 1 000
_EVERY = 2.0                #: s between two looks at its log


def route(command: list[str], *, rounds: int = _ROUNDS, tell=lambda line: None) -> int:
    """Run nextpnr, first with a goal, then without; its exit status.

    Parameters
    ----------
    command : list of str
        With `--json`, `--freq` and `--log`, each followed by its value.
    rounds : int
        After so many of the router's the first run is broken off.
    tell : callable
        Takes a line for each run.
    """
    where = {option: command.index(option) + 1 for option in ("--json", "--freq", "--log")}
    design = json.loads(Path(command[where["--json"]]).read_text(encoding="utf-8"))
    [goal] = {module["settings"][GOAL] for module in design["modules"].values() if GOAL in module.get("settings", {})} or {None}
    if goal is not None:
        asked = [*command, "--tmg-ripup"]
        asked[where["--freq"]] = goal
        tell(f"routing for {goal} MHz")
        log = Path(command[where["--log"]])
        log.unlink(missing_ok=True)
        process = subprocess.Popen(asked)
        while process.poll() is None:
            time.sleep(_EVERY)
            done = re.findall(r"iter=(\d+) ", log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
            if done and int(done[-1]) > rounds:
                process.kill()
        if process.returncode == 0:
            return 0
        tell(f"not reached in {rounds} rounds")
    tell("routing without a goal")
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(route(sys.argv[1:], tell=lambda line: print(line, flush=True)))
