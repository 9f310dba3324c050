# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A block that was reset in the midst of traffic, beside one that never ran: what either shows from
then on is equal, whatever comes (spec §9). One contract for any block."""

from amaranth.asserts import AnySeq
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    ClockDomain,
    ClockSignal,
    Const,
    Cover,
    DomainRenamer,
    Module,
    Signal,
    Value,
)
from amaranth.lib import data, wiring

__all__ = ["ResetTwins"]


class ResetTwins(wiring.Component):
    """Two of a block with one stream of inputs, any. One is reset in any one cycle; the other is in
    reset until then. After that every output port of the two is equal: of a stream the payload
    where it is valid, and likewise of a record with a field `valid`.

    What the block asserts of itself and its inputs is assumed (`prove`'s `trusted`): so its inputs
    are what its neighbours may give it.

    Parameters
    ----------
    make : callable
        Makes the block, anew with each call.
    when : dict of str to callable
        Outputs, by their names, that mean something only while what the callable makes of the block
        holds.
    given : callable or None
        ``given(m, block, done)``: what the block's neighbours keep to since the reset, as a value;
        `done` holds from the reset on.
    deaf : bool
        Planted bug: the block does not hear its reset.
    """

    def __init__(self, make, *, when=None, given=None, deaf=False):
        self.blocks, self.when, self.given, self.deaf = (make(), make()), when or {}, given, deaf
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        reset, done, busy = Signal(), Signal(), Signal()
        m.d.comb += reset.eq(AnySeq(1) & ~done)
        with m.If(reset):
            m.d.sync += done.eq(1)
        ports = []
        for name, block, pulled in zip(
            ("used", "new"), self.blocks, (Const(0) if self.deaf else reset, ~done), strict=True
        ):
            domain = ClockDomain(name)
            m.domains += domain
            m.d.comb += [ClockSignal(name).eq(ClockSignal()), domain.rst.eq(pulled)]
            m.submodules[name] = DomainRenamer(name)(block)
            ports.append(
                {
                    path: (member.flow, value)
                    for path, member, value in block.signature.flatten(block)
                    if not isinstance(Value.cast(value), Const)
                }
            )
        used, new = ports
        if self.given:
            m.d.comb += Assume(~done | self.given(m, self.blocks[1], done))
        moved = Const(0)
        for path, (flow, value) in used.items():
            other = new[path][1]
            if flow is wiring.In:
                free = AnySeq(len(Value.cast(value)))
                m.d.comb += [Value.cast(value).eq(free), Value.cast(other).eq(free)]
                continue
            name = ".".join(map(str, path))
            shown = Const(1)
            if path[-1] == "payload":
                shown = used[(*path[:-1], "valid")][1]
            if name in self.when:
                shown = self.when[name](self.blocks[0])
            m.d.comb += Assert(~(done & shown) | _equal(value, other), f"{name} differs")
            value = Value.cast(value)
            moved = moved | (value != getattr(value, "init", 0))
        # The used one had something to forget, and shows something after.
        m.d.sync += busy.eq(busy | (moved & ~done))
        m.d.comb += Cover(busy & done & moved)
        return m


def _equal(a, b):
    """Values, or records field by field: those beside a field `valid` count where it is on."""
    if not isinstance(a, data.View):
        return Value.cast(a) == Value.cast(b)
    fields = [name for name, _ in a.shape()]
    same = {name: _equal(a[name], b[name]) for name in fields}
    if "valid" not in same or len(Value.cast(a["valid"])) > 1:  # a line mask is no flag
        return Cat(same.values()).all()
    rest = Cat(value for name, value in same.items() if name != "valid").all()
    return same["valid"] & (~a["valid"] | rest)
