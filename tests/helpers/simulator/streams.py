# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Both ends of a block's streams, in Amaranth's simulator: offers that come and are taken as often
as one likes, each with the cycles in which it was seen."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amaranth.hdl import Module, Signal, Value
from simulation import simulate

__all__ = ["Ends", "Transfer", "pump"]


class Transfer(NamedTuple):
    """An item that was taken: the cycle in which it was first offered, that in which it was taken,
    and what it was."""

    offered: int
    taken: int
    item: Any


@dataclass
class Ends:
    """What a test does at a block's ports.

    sends : stream (`i`, `i.0`) → items, each an integer or a dict of fields; offered in turn, held
        until taken
    takes : the streams that the test takes from
    offer, take : the shares of cycles in which it begins an offer, is ready; `takes_of` of single
        streams
    held : port → value, all the time
    answer : (stream, item) of what the block gives → (stream, item) to send, one after another
    sent : the same of what it has taken
    watch : called in each cycle with the simulator's context, before the clock edge
    before : a testbench that is run first, with the context and the block
    """

    sends: dict
    takes: tuple
    offer: float = 1.0
    take: float = 1.0
    takes_of: dict = field(default_factory=dict)
    held: dict | None = None
    answer: Any = None
    sent: Any = None
    watch: Any = None
    before: Any = None


def _at(dut, path):
    for name in path.split("."):
        dut = dut[int(name)] if name.isdecimal() else getattr(dut, name)
    return dut


def _fixed(stream):
    """Its reader is always ready."""
    return not hasattr(stream.ready, "name")


def pump(dut, ends, *, cycles, seed=1, quiet=None, compiled=None):
    """`cycles` cycles; stream → its transfers. What is offered by the block must stay until it is
    taken. It ends sooner where nothing is left to send and for `quiet` cycles nothing was
    offered. `compiled` runs the bench in place of Amaranth's simulator: the `simulate` of
    kelp_verif.harness.compiled."""
    rng = random.Random(seed)
    queues = {path: deque(items) for path, items in ends.sends.items()}
    streams = {path: _at(dut, path) for path in (*queues, *ends.takes)}
    seen, since, standing = {path: [] for path in streams}, {}, {}
    left = set(queues)  # nothing is offered on them any more

    def drive(ctx, cycle):
        for path, queue in queues.items():
            if path not in since and queue and rng.random() < ends.offer:
                since[path] = cycle
                ctx.set(streams[path].payload, queue[0])
            elif path in left:
                # What is on a stream that offers nothing is nothing to anybody.
                payload = Value.cast(streams[path].payload)
                ctx.set(payload, (1 << len(payload)) - 1)
            ctx.set(streams[path].valid, path in since)
        left.clear()
        for path in ends.takes:
            if not _fixed(streams[path]):
                share = ends.takes_of.get(path, ends.take)
                ctx.set(streams[path].ready, rng.random() < share)

    def follow(hook, path, item):
        for to, what in hook(path, item) if hook else ():
            queues.setdefault(to, deque()).append(what)

    def given(ctx, cycle, path):
        """What the block offers is seen, and perhaps taken."""
        stream = streams[path]
        valid, raw = ctx.get(stream.valid), ctx.get(Value.cast(stream.payload))
        if path in standing:
            assert valid and raw == standing.pop(path)[1], f"cycle {cycle}: {path} is taken back"
        if not valid:
            since.pop(path, None)
            return
        since.setdefault(path, cycle)
        if ctx.get(stream.ready):
            item = ctx.get(stream.payload)
            seen[path].append(Transfer(since.pop(path), cycle, item))
            follow(ends.answer, path, item)
        else:
            standing[path] = since[path], raw

    async def bench(ctx):
        for path, value in (ends.held or {}).items():
            ctx.set(_at(dut, path), value)
        if ends.before:
            await ends.before(ctx, dut)
        still = 0
        for cycle in range(cycles):
            drive(ctx, cycle)
            if ends.watch:
                ends.watch(ctx)
            taken = [path for path in queues if path in since and ctx.get(streams[path].ready)]
            for path in ends.takes:
                given(ctx, cycle, path)
            for path in taken:
                seen[path].append(Transfer(since.pop(path), cycle, queues[path].popleft()))
                left.add(path)
                follow(ends.sent, path, seen[path][-1].item)
            await ctx.tick()
            still = 0 if since or any(queues.values()) else still + 1
            if still == quiet:
                break

    if compiled:
        compiled(dut, bench)
        return seen
    top = Module()
    top.submodules.dut = dut
    top.d.sync += Signal().eq(1)  # a combinational block has no clock of its own
    simulate(top, bench)
    return seen
