# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Latency and interval of a block, measured in Amaranth's simulator."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.sim import Simulator
from flips import opened

__all__ = [
    "changes",
    "check_fifo",
    "check_interval",
    "check_memory",
    "check_pace",
    "check_phases",
    "least_interval",
    "offers",
    "port",
    "shown",
    "varied",
]

GAP = 12  #: cycles between `before` and the stimuli, and after these


def port(dut, path):
    for name in path.split("."):
        dut = dut[int(name)] if name.isdigit() else getattr(dut, name)
    return Value.cast(dut)


def changes(dut, output, stimuli, *, prepare=None, before=(), settle=2, interval=1, within=40):
    """Cycles, counted from the first of `stimuli`, in which `output` is not what it was a cycle
    before; as many as there are stimuli.

    A stimulus is a dict of port path → value, which holds for one cycle; `prepare` holds all the
    time, except where a stimulus says otherwise. Stimuli come `interval` cycles apart, after
    `settle` cycles, the dicts of `before` (one a cycle) and a gap. `output` is a port path or a
    function of the block.
    """
    prepare = prepare or {}
    seen, n = [], len(stimuli)
    paths = {*prepare, *(path for each in (*before, *stimuli) for path in each)}
    signals = {path: port(dut, path) for path in paths}
    watched = output(dut) if callable(output) else port(dut, output)
    at = dict(zip(range(settle, settle + len(before)), before, strict=True))
    start = settle + len(before) + GAP
    at |= {start + k * interval: each for k, each in enumerate(stimuli)}

    async def bench(ctx):
        for cycle in range(start + n * interval + within):
            values = prepare | at.get(cycle, {})
            for path, signal in signals.items():
                ctx.set(signal, values.get(path, 0))
            seen.append(ctx.get(watched))
            await ctx.tick()

    top = Module()
    top.submodules.dut = dut
    top.d.sync += Signal().eq(1)  # a combinational block has no clock of its own
    simulator = Simulator(opened(top)[0])
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return [t - start for t in range(start, len(seen)) if seen[t] != seen[t - 1]][:n]


def least_interval(make, output, stimuli, latency, *, most=64, **options):
    """Least number of cycles between stimuli at which each shows `latency` cycles after it came, or
    None: what the block's INTERVAL claims to be. `make` gives a new block."""
    for interval in range(1, most + 1):
        expected = [latency + k * interval for k in range(len(stimuli))]
        if changes(make(), output, stimuli, interval=interval, **options) == expected:
            return interval
    return None


def varied(path, values=(1, 2, 3), **fields):
    """A stimulus for each of `values` of the port at `path`, with `fields` in all of them."""
    return [{path: value} | fields for value in values]


def offers(values=(1, 2, 3), *, stream="i", field=None, **fields):
    """A stimulus for each of `values`: `stream` offers it, as its payload or in that one's
    `field`."""
    path = f"{stream}.p.{field}" if field else f"{stream}.p"
    return varied(path, values, **{f"{stream}.valid": 1}, **fields)


def shown(stream="o", field=None):
    """An output: what `stream` offers, its payload or a `field` of it; else 0."""
    path = f"{stream}.p.{field}" if field else f"{stream}.p"
    return lambda dut: Mux(port(dut, f"{stream}.valid"), port(dut, path), 0)


def check_pace(block, attribute, output, stimuli, **options):
    """Of `stimuli`, one a cycle, the first shows at `output` as many cycles later as `attribute` of
    the block says, and each further one INTERVAL cycles after the one before. `options` are those
    of `changes`."""
    first = getattr(block, attribute)
    expected = [first + k * block.INTERVAL for k in range(len(stimuli))]
    assert changes(block, output, stimuli, **options) == expected


def check_interval(make, attribute, output, stimuli, **options):
    """INTERVAL is the least distance of `stimuli` at which each shows at `output` as many cycles
    after it came as `attribute` of the block says. `make` gives a new block."""
    block = make()
    latency = getattr(block, attribute)
    assert least_interval(make, output, stimuli, latency, **options) == block.INTERVAL


def check_fifo(block):
    """What is offered to the block in each cycle leaves at its pace, while all is taken."""
    check_pace(block, "LATENCY", shown(), offers(), prepare={"o.ready": 1})


def check_memory(block):
    """Rows that were written are read, one a cycle, as late as the block says."""
    rows = (1, 2, 3)
    written = [{"write_en": 1, "write_address": row, "write_data": 8 + row} for row in rows]
    reads = varied("read_address", rows, read_en=1)
    check_pace(block, "LATENCY", "read_data", reads, before=written)


def check_phases(make, output, stimuli, prepare):
    """The first of `stimuli` shows at `output` LATENCY cycles later or up to TURN more, as what is
    within goes round; the second, INTERVAL cycles after it."""
    block, seen = make(), []
    for settle in range(2, 2 + block.TURN):
        times = changes(make(), output, stimuli, prepare=prepare, settle=settle, within=80)
        seen.append(times[0::2])
    first = sorted(first for first, _ in seen)
    assert first == list(range(block.LATENCY, block.LATENCY + block.TURN))
    assert {second - first for first, second in seen} == {block.INTERVAL}
