# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Ports of the endpoint's blocks: no output that nothing around reads, no input that nothing
drives, none that is reached from further away than the block around it."""

from collections import defaultdict

from amaranth.hdl import Fragment, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.endpoint import Endpoint
from kelp_spec.config import named

#: (block, port) that nothing in the endpoint reads, but its bench, which holds the block to it.
OBSERVED = {
    ("ColdScheduler", "idle"),
    ("ColdScheduler", "o_retry"),
    ("ColdScheduler", "o_timeout"),
    ("Eviction", "idle"),
    ("Prefetcher", "access_lost"),
    ("Prefetcher", "credit"),
    ("Prefetcher", "previous_lost"),
}
#: (block, port) → why it may be idle here.
IDLE = {
    ("FaultMonitor", "faults"): "a configuration that protects no memory has no faults",
    (
        "PlainSearch",
        "search",
    ): "of the policies' searches only that of `kelp` moves",
}


def fragments(fragment, path="top"):
    yield path, fragment
    for n, (below, name, _) in enumerate(fragment.subfragments):
        yield from fragments(below, f"{path}.{name or n}")


def signals(value):
    """Those in a port of an instance or a memory."""
    if isinstance(value, Value):
        try:
            yield from value._rhs_signals()
        except NotImplementedError:
            pass  # a clock
    elif isinstance(value, dict):
        for each in value.values():
            yield from signals(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from signals(each)
    elif type(value).__module__ == "amaranth.hdl._mem":
        names = getattr(type(value), "__slots__", None) or vars(value)
        yield from signals([getattr(value, name, None) for name in names])


def users_of_signals(everything):
    """Of each signal's id, the paths of the fragments that read it, and of those that drive it."""
    readers, drivers = defaultdict(set), defaultdict(set)
    for path, fragment in everything:
        for statements in fragment.statements.values():
            for signal in statements._rhs_signals():
                readers[id(signal)].add(path)
            for signal in statements._lhs_signals():
                drivers[id(signal)].add(path)
        if type(fragment) is not Fragment:
            for signal in signals(list(vars(fragment).values())):
                readers[id(signal)].add(path)
                drivers[id(signal)].add(path)
    return readers, drivers


def reached_over(component):
    """{(user, block, port)}: a port that is read or driven over the head of the block around it."""
    everything = list(fragments(Fragment.get(component, None)))
    readers, drivers = users_of_signals(everything)
    found = set()
    for path, fragment in everything:
        around = path.rpartition(".")[0]
        for block in fragment.origins or ():
            if not isinstance(block, wiring.Component):
                continue
            for names, _, port in block.signature.flatten(block):
                for signal in Value.cast(port)._rhs_signals():
                    for user in readers[id(signal)] | drivers[id(signal)]:
                        if around.startswith(f"{user}."):
                            found.add((user, type(block).__name__, names[0]))
    return found


def dead_ports(component):
    """{(block, port)} read, or driven, at no instance of the block in `component`; blocks of the
    room `lib` serve in many ways and do not count."""
    everything = list(fragments(Fragment.get(component, None)))
    readers, drivers = users_of_signals(everything)
    alive, seen = set(), set()
    for path, fragment in everything[1:]:
        for block in fragment.origins or ():
            if not isinstance(block, wiring.Component) or ".lib." in type(block).__module__:
                continue
            for names, member, port in block.signature.flatten(block):
                users = readers if member.flow is Out else drivers
                key = type(block).__name__, names[0], names[1:]
                for signal in Value.cast(port)._rhs_signals():
                    seen.add(key)
                    for user in users[id(signal)]:
                        if user != path and not user.startswith(f"{path}."):
                            alive.add(key)
    return {key[:2] for key in seen - alive}


def test_each_port_is_used():
    assert dead_ports(Endpoint(config=named("unit"))) <= OBSERVED | IDLE.keys()


def test_no_port_is_reached_over_the_block_around_it():
    assert not reached_over(Endpoint(config=named("unit")))


class Inner(wiring.Component):
    used: Out(1)
    dead: Out(1)
    driven: In(1)
    open: In(1)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.used.eq(self.driven), self.dead.eq(self.open & self.used)]
        return m


class Outer(wiring.Component):
    i: In(1)
    o: Out(1)

    def __init__(self):
        self.inner = Inner()
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = inner = self.inner
        m.d.comb += [self.o.eq(inner.used), inner.driven.eq(self.i)]
        return m


def test_dead_ports_are_seen():
    assert dead_ports(Outer()) == {("Inner", "dead"), ("Inner", "open")}


class Over(wiring.Component):
    o: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.outer = outer = Outer()
        m.d.comb += [self.o.eq(outer.inner.used), outer.i.eq(1)]
        return m


def test_a_port_that_is_reached_over_a_block_is_seen():
    assert reached_over(Over()) == {("top", "Inner", "used")}
