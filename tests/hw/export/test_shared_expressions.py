# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""An expression that is used more than once is one cell, and what is emitted means the same."""

import contextlib
import subprocess

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Module, Signal
from amaranth.hdl._ir import PortDirection
from amaranth.hdl._xfrm import DomainLowerer
from amaranth.lib import wiring

from kelp_hw.codec.quantise import Quantiser
from kelp_hw.export import tools
from kelp_hw.export.rtlil import component_ports, to_rtlil
from kelp_hw.export.shared_expressions import shared_expressions

#: Registers of the same name are taken as equal, and proved to be so in the next cycle.
_EQUIVALENT = """\
read_rtlil gold.il; rename top gold; read_rtlil gate.il; rename top gate; proc
delete t:$check; opt_clean
equiv_make gold gate both; hierarchy -top both; flatten; opt_merge
equiv_simple -undef; equiv_status -assert
"""


def _quantiser(context):
    block = Quantiser(meta_shape=1, lanes=8)
    ports = {
        name: (value, PortDirection.Input if member.flow is wiring.In else PortDirection.Output)
        for name, (value, member) in component_ports(block).items()
    }
    with context:
        return rtlil.convert(block, ports=ports, emit_src=False)


def _equivalent(folder, gold, gate):
    for name, text in (("gold", gold), ("gate", gate)):
        (folder / f"{name}.il").write_text(text)
    (folder / "equivalent.ys").write_text(_EQUIVALENT)
    done = subprocess.run(
        [tools.find("yosys"), "-q", "equivalent.ys"],
        cwd=folder,
        env=tools.tool_env(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 or "unproven $equiv" in done.stderr + done.stdout
    return done.returncode == 0


def test_it_means_the_same(tmp_path):
    plain, shared = _quantiser(contextlib.nullcontext()), _quantiser(shared_expressions())
    assert shared.count("\n  cell ") < plain.count("\n  cell ") / 4
    assert _equivalent(tmp_path, plain, shared)
    assert not _equivalent(tmp_path, plain, shared.replace("cell $xor ", "cell $or ", 1))


def test_what_is_emitted_is_shared():
    assert to_rtlil(Quantiser(meta_shape=1, lanes=8), name="top") == _quantiser(
        shared_expressions()
    )


@pytest.mark.parametrize("shared, inverters", [(False, 12), (True, 2)])
def test_each_module_has_its_own(shared, inverters):
    """Of one expression that is read in two modules, six times in each."""
    flag, ports = Signal(), []
    inverted = ~flag
    top = Module()
    for n in range(2):
        top.submodules += (below := Module())
        for k in range(3):
            y = Signal(2, name=f"y_{n}_{k}")
            below.d.sync += y.eq(inverted.replicate(2))
            ports.append(y)
    with shared_expressions() if shared else contextlib.nullcontext():
        text = rtlil.convert(top, ports=[flag, *ports], emit_src=False)
    assert text.count("cell $not ") == inverters


def test_amaranth_is_its_own_again_afterwards():
    before = dict(DomainLowerer.__dict__)
    with shared_expressions():
        assert "on_value" in DomainLowerer.__dict__
    assert dict(DomainLowerer.__dict__) == before
