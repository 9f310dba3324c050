# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The stream rule, checked on every stream port of every block of a design, for simulation and
proofs: what is offered stays as it is until it is taken.

Amaranth, "Data transfer rules": once ``valid`` is high with ``ready`` low, ``valid`` stays high and
``payload`` as it is until ``ready`` is high. An Assert looks at every cycle, and takes none.
"""

from collections import Counter
from collections.abc import Iterator

from amaranth.hdl import (
    Assert,
    Assume,
    Const,
    DomainRenamer,
    Elaboratable,
    Fragment,
    Module,
    ResetSignal,
    Signal,
    Value,
)
from amaranth.hdl._ast import Assign
from amaranth.lib import stream, wiring

__all__ = ["Checked", "streams_of"]


class Checked(Elaboratable):
    """`component`, with an Assert of the stream rule beside each stream port of it and of
    everything below it, whichever side drives that port. Ports that are plainly wired together are
    one stream, and have one Assert. A port that is always ready has no rule to break. Reset
    withdraws every offer.

    The ports, and every other attribute, are those of `component`. Nothing of the hardware changes:
    the checks read it.

    Parameters
    ----------
    component
        An elaboratable; blocks are the :class:`amaranth.lib.wiring.Component` in it.
    driven : int
        For proofs: the input streams of blocks in the top `driven` levels are driven by the solver.
        On those the rule is an Assume, and all of it is combinational, as a solver wants it: a
        clocked statement counts a cycle late. In a simulation, which has glitches, it is clocked.
        There each port has a rule of its own: what is assumed of one is asserted of the other.
    """

    def __init__(self, component, *, driven: int = 0):
        self._component, self._driven = component, driven

    def __getattr__(self, name):
        return getattr(self._component, name)

    def elaborate(self, platform):
        fragment = Fragment.get(self._component, platform)
        if self._driven:
            _check(fragment, "top", self._driven, "comb")
        else:
            _check(fragment, "top", 0, "sync", _Wires(fragment))
        return fragment


def streams_of(
    interface, signature=None, path: str = ""
) -> Iterator[tuple[str, wiring.Flow, object]]:
    """(name, direction, stream) of every stream port of `interface`, those in other signatures
    among them."""
    for name, member in (signature or interface.signature).members.items():
        if member.is_signature:
            flipped = isinstance(member.signature, wiring.FlippedSignature)
            plain = member.signature.flip() if flipped else member.signature
            for where, port in _each(getattr(interface, name), path + name):
                if isinstance(plain, stream.Signature):
                    yield where, member.flow, port
                else:
                    yield from streams_of(port, member.signature, f"{where}.")


def _each(value, path):
    """(path, member) of a member, or of each one in an array of them."""
    if isinstance(value, list | tuple):
        for n, one in enumerate(value):
            yield from _each(one, f"{path}[{n}]")
    else:
        yield path, value


class _Wires:
    """Which signals of a design are the same wire, because one is nothing but the other: as
    :func:`amaranth.lib.wiring.connect` makes it."""

    def __init__(self, fragment: Fragment):
        self._source, self._drivers, self._streams = {}, Counter(), set()
        self._collect(fragment)

    def _collect(self, fragment):
        for below, *_ in fragment.subfragments:
            self._collect(below)
        for domain, statements in fragment.statements.items():
            for statement in statements:
                self._drivers.update(map(id, statement._lhs_signals()))
                if domain == "comb" and isinstance(statement, Assign):
                    to, of = statement.lhs, statement.rhs
                    if isinstance(to, Signal) and isinstance(of, Signal) and len(to) == len(of):
                        self._source[id(to)] = of

    def _origin(self, value) -> Value:
        value = Value.cast(value)
        while id(value) in self._source and self._drivers[id(value)] == 1:
            value = self._source[id(value)]
        return value

    def is_new(self, port) -> bool:
        """Whether no port has been asked for yet that is the same stream as `port`."""
        wires = [self._origin(value) for value in (port.valid, port.payload, port.ready)]
        if not all(isinstance(wire, Signal) for wire in wires):
            return True  # a part of a signal, or an expression, is equal to nothing
        stream = tuple(map(id, wires))
        known = stream in self._streams
        self._streams.add(stream)
        return not known


def _check(
    fragment: Fragment, path: str, driven: int, domain: str, wires: _Wires | None = None
) -> None:
    for n, (below, name, _) in enumerate(fragment.subfragments):
        _check(below, f"{path}.{name or n}", driven - 1, domain, wires)
    ports = [
        (f"{path}.{name}", port, driven > 0 and flow is wiring.In)
        for block in fragment.origins or ()
        if isinstance(block, wiring.Component)
        for name, flow, port in streams_of(block)
        if not isinstance(port.ready, Const) and (wires is None or wires.is_new(port))
    ]
    if ports:
        rule = DomainRenamer(fragment.domain_renames.get("sync", "sync"))(_Rule(ports, domain))
        fragment.add_subfragment(Fragment.get(rule, None), "stream_rule")


class _Rule(Elaboratable):
    """The stream rule on `ports`, (name, stream, is assumed) each, stated in `domain`."""

    def __init__(self, ports, domain):
        self._ports, self._domain = ports, domain

    def elaborate(self, platform):
        m = Module()
        for name, port, assumed in self._ports:
            payload = Value.cast(port.payload)
            waits, waited, held, offer = Signal(), Signal(), Signal(), Signal(len(payload))
            m.d.comb += [
                waits.eq(port.valid & ~port.ready),
                held.eq(waited & ~ResetSignal(allow_reset_less=True)),
            ]
            m.d.sync += waited.eq(waits)
            with m.If(waits):
                m.d.sync += offer.eq(payload)
            holds = ~held | (port.valid & (payload == offer))
            message = f"stream rule: the offer at {name} is withdrawn or changes"
            m.d[self._domain] += Assume(holds) if assumed else Assert(holds, message)
        return m
