# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""RTLIL of a component, whose ports are the signals of its signature."""

from __future__ import annotations

import contextlib
import gc

from amaranth.back import rtlil
from amaranth.hdl import Const, Value
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

from .quick_amaranth import quick_amaranth
from .shared_expressions import shared_expressions

__all__ = ["component_ports", "to_rtlil"]


def component_ports(component: wiring.Component) -> dict[str, tuple[Value, wiring.Member]]:
    """Verilog name → (signal, member) of each port, flattened as Amaranth does (``i__payload``).

    Left out are constants: the `ready` of an `always_ready` stream has no wire.
    """
    ports = {}
    for path, member, value in component.signature.flatten(component):
        value = Value.cast(value)
        if not isinstance(value, Const):
            ports["__".join(map(str, path))] = (value, member)
    return ports


def to_rtlil(component: wiring.Component, *, name: str, sources: bool = False) -> str:
    """RTLIL of `component` as top module `name`, free of source paths unless `sources`.

    `amaranth.back.rtlil.convert` alone refuses a component whose signature has constants (0.5.10).
    What it makes, millions of objects, is in use until it returns: looking for garbage among them
    takes as long as all the rest.
    """
    ports = {
        port: (value, PortDirection.Input if member.flow is wiring.In else PortDirection.Output)
        for port, (value, member) in component_ports(component).items()
    }
    with _uncollected(), quick_amaranth(), shared_expressions():
        return rtlil.convert(component, name=name, ports=ports, emit_src=sources)


@contextlib.contextmanager
def _uncollected():
    """Without the cyclic garbage collector, where it runs."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()
