# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What makes Amaranth quicker changes nothing that it says."""

from amaranth.back import rtlil
from amaranth.hdl import _ast, _nir
from amaranth.sim import Simulator

from kelp_hw.export.quick_amaranth import quick_amaranth
from kelp_hw.export.rtlil import component_ports
from kelp_hw.tracker.tracker import Tracker
from kelp_spec.config import named


def _rtlil():
    """Of a block made anew, by Amaranth alone."""
    block = Tracker(config=named("unit"))
    ports = [value for value, _ in component_ports(block).values()]
    return rtlil.convert(block, ports=ports, emit_src=False)


def test_rtlil_is_the_same_to_the_byte():
    plain = _rtlil()
    with quick_amaranth():
        assert _rtlil() == plain


def test_amaranth_is_its_own_again_afterwards():
    before = dict(_nir.Value.__dict__), _ast.Operator.shape
    with quick_amaranth():
        assert _nir.Value.__dict__["__new__"] is not before[0]["__new__"]
        Simulator(Tracker(config=named("unit")))
    assert (dict(_nir.Value.__dict__), _ast.Operator.shape) == before


def test_the_last_of_several_puts_it_back():
    """They need not end in the order in which they began: each may be a thread's."""
    before = dict(_nir.Value.__dict__), _ast.Operator.shape
    first, second = quick_amaranth(), quick_amaranth()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _ast.Operator.shape is not before[1]
    second.__exit__(None, None, None)
    assert (dict(_nir.Value.__dict__), _ast.Operator.shape) == before
