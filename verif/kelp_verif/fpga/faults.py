# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Faults in a board's Verilog that a plusarg switches on, so that one build shows what its
self-test finds."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

__all__ = ["Fault", "with_faults"]

_MODULE = re.compile(r"(?m)^module (\\\S+|\w+)")
_VALUE = re.compile(r"\\\$\d+ ")
# an intermediate value of Yosys's; multiplexers are left alone
_SITE = re.compile(r"(?m)^  assign (\\\$\d+ ) = ([^;?]*);$")


@dataclass(frozen=True)
class Fault:
    """Number `n` (`+fault=n`): an intermediate value of `module` is inverted, `line` and every
    other that computes the same."""

    n: int
    module: str
    line: str


def with_faults(verilog: str, modules: dict[str, int], *, seed: int = 1) -> tuple[str, list[Fault]]:
    """The text with so many faults in each module whose name ends in the key; of values one bit
    wide, in places that `seed` chooses.

    The text computes the same thing many times over (the syndrome once for each bit that it may
    correct), which synthesis merges: the value is inverted.
    """
    rng, faults, out = random.Random(seed), [], []
    starts = [match.start() for match in _MODULE.finditer(verilog)]
    for start, end in zip(starts, [*starts[1:], len(verilog)], strict=True):
        text = verilog[start:end]
        name = _MODULE.match(text)[1]
        count = next((count for suffix, count in modules.items() if name.endswith(suffix)), 0)
        if count:
            narrow = set(re.findall(r"(?m)^  wire (\\\$\d+ );$", text))
            same: dict[str, list[re.Match]] = {}
            named: dict[str, str] = {}
            for site in _SITE.finditer(text):
                value = _VALUE.sub(
                    lambda match, named=named: named.get(match[0], match[0]), site[2]
                )
                named[site[1]] = same.setdefault(value, [site])[0][1]
                if same[value][0] is not site:
                    same[value].append(site)
            values = [sites for sites in same.values() if sites[0][1] in narrow]
            if len(values) < count:
                raise ValueError(
                    f"{name} has {len(values)} places for a fault; {count} are asked for"
                )
            changes = []
            for sites in rng.sample(values, count):
                fault = Fault(len(faults) + 1, name, sites[0][0].strip())
                faults.append(fault)
                changes += [
                    (site, f"  assign {site[1]} = ({site[2]}) ^ (top.fault == {fault.n});")
                    for site in sites
                ]
            for site, line in sorted(changes, key=lambda change: -change[0].start()):
                text = text[: site.start()] + line + text[site.end() :]
        if name == "top":
            head = text.index(");") + 2
            text = (
                text[:head]
                + '\n  reg [31:0] fault = 0;\n  initial if ($value$plusargs("fault=%d", '
                + "fault)) begin end\n"
                + text[head:]
            )
        out.append(text)
    return verilog[: starts[0]] + "".join(out), faults
