# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One stream that several blocks listen to. One item a cycle, in the same cycle or, registered, in
the next."""

from __future__ import annotations

from amaranth.hdl import Module

__all__ = ["broadcast"]


def broadcast(m: Module, source, *sinks, registered: bool = False) -> None:
    """Connect an `always_ready` stream to every one of `sinks`, which are `always_ready` too.

    Latency: none, or one cycle when `registered`. `amaranth.lib.wiring.connect` joins one output to
    one input; here each sink sees each transfer.

    Raises ValueError where a stream may push back: a transfer that only some take is not a
    broadcast.
    """
    domain = m.d.sync if registered else m.d.comb
    for each in (source, *sinks):
        if not each.signature.always_ready:
            raise ValueError(f"{each!r} is refused: only an always_ready stream can be broadcast")
    for sink in sinks:
        domain += [sink.p.eq(source.p), sink.valid.eq(source.valid)]
