# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Faults in a board's Verilog that a plusarg switches on, so that one build shows what its self-test finds."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

__all__ = ["Fault", "with_faults"]

_MODULE = re.compile(r"(?m)^module (\\\S+|\w+)")
_SITE = re.compile(r"(?m)^  assign (\\\$\d+ ) = ([^;?]*);$")     # an intermediate value of Yosys's; multiplexers are left alone


@dataclass(frozen=True)
class Fault:
    """Number `n` (`+fault=n`): an intermediate value of `module` is inverted."""

    n: int
    module: str
    line: str


def with_faults(verilog: str, modules: dict[str, int], *, seed: int = 1) -> tuple[str, list[Fault]]:
    """The text with so many faults in each module whose name ends in the key; of values one bit wide, in places that `seed` chooses."""
    rng, faults, out = random.Random(seed), [], []
    starts = [match.start() for match in _MODULE.finditer(verilog)]
    for start, end in zip(starts, [*starts[1:], len(verilog)], strict=True):
        text = verilog[start:end]
        name = _MODULE.match(text)[1]
        count = next((count for suffix, count in modules.items() if name.endswith(suffix)), 0)
        if count:
            narrow = set(re.findall(r"(?m)^  wire (\\\$\d+ );$", text))
            sites = [site for site in _SITE.finditer(text) if site[1] in narrow]
            if len(sites) < count:
                raise ValueError(f"{name} has {len(sites)} places for a fault; {count} are asked for")
            for site in sorted(rng.sample(sites, count), key=lambda site: -site.start()):
                fault = Fault(len(faults) + 1, name, site[0].strip())
                faults.append(fault)
                text = text[:site.start()] + f"  assign {site[1]} = ({site[2]}) ^ (top.fault == {fault.n});" + text[site.end():]
        if name == "top":
            head = text.index(");") + 2
            text = text[:head] + "\n  reg [31:0] fault = 0;\n  initial if ($value$plusargs(\"fault=%d\", fault)) begin end\n" + text[head:]
        out.append(text)
    return verilog[:starts[0]] + "".join(out), faults
