# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Interfaces of the tracker, to the other rooms and between its blocks (docs/design.md §1, §3).

Payloads that cross rooms are in `kelp_hw.layouts`. In each signature, `Out` is what the block named
first in its docstring drives.
"""

from __future__ import annotations

from amaranth.hdl import signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Op

from ..layouts import POOL_BITS, Layouts, code_shape

__all__ = [
    "BACKGROUND",
    "KINDS",
    "Admission",
    "BackgroundOps",
    "FrameReports",
    "Pause",
    "PoolAnswers",
    "PoolChange",
    "PoolCounts",
    "PoolLevels",
    "PoolSettings",
    "PoolUse",
    "SELECT_KINDS",
    "count_bits",
    "credits_layout",
    "entering_layout",
    "kinds",
    "poisoned_ports",
    "spare_shape",
]

#: Background streams, first to last, and the ops that each may carry.
KINDS = {
    "miss": (Op.GRANT, Op.FILL, Op.REPLAY, Op.FLIP),
    "control": (Op.STEP, Op.OPEN, Op.CLOSE, Op.PEEK),
    "hint": (Op.MASS, Op.PIN, Op.UNPIN, Op.STEP),
    "evict": (Op.SCAN, Op.CLAIM, Op.RELEASE, Op.FREE, Op.SCRUB, Op.PEEK, Op.RECOVER, Op.CLOSED),
    "prefetch": (Op.PREFETCH,),
}
BACKGROUND = tuple(KINDS)
#: With `Config.select`, ops that come by the stream `hint` too.
SELECT_KINDS = (Op.LOOK, Op.HOLD, Op.UNHOLD)
#: Fields of an op that come from the request that it answers.
ORIGIN = ("kv_line", "write", "partial", "poison", "has_write", "write_slot", "origin")
#: Fields of an op that a request has.
REQUEST = (*ORIGIN, "session", "squeue", "page", "refused", "no_memory")


def kinds(config: Config) -> dict:
    """`KINDS` of a configuration."""
    return KINDS | ({"hint": (*KINDS["hint"], *SELECT_KINDS)} if config.select else {})


def count_bits(config: Config) -> int:
    """Width of a number of frames of one pool."""
    return max(config.frames).bit_length()


def spare_shape(config: Config):
    """Shape of free frames of one pool less the miss entries that wait for one."""
    return signed(max(count_bits(config), config.misses.bit_length()) + 1)


def credits_layout(*, ids: bool = True) -> data.StructLayout:
    """Each: at least RESERVE places free behind `o_frame_op` (`data`), for parked requests
    (`miss`), behind `o_score` (`score`), in the queue state (`queue`), in the event log (`event`);
    with `ids`, one more free miss id than ops on their way that may take one (`miss_id`)."""
    fields = ("data", "miss", *(("miss_id",) if ids else ()), "score", "queue", "event")
    return data.StructLayout(dict.fromkeys(fields, 1))


def entering_layout(config: Config) -> data.StructLayout:
    """An op in two parts, `request`'s and `behind`'s (the background op's), before it is known
    whose it is: none of their bits waits for M0's choice.

    `cold`: the op is a request's; `takes_frame`: it is a background op that uses the frame stage,
    else the request part is the request's of the cycle.
    """
    op = Layouts(config).op
    return data.StructLayout(
        {
            "request": data.StructLayout({field: op.members[field] for field in REQUEST}),
            "behind": data.StructLayout(
                {
                    field: shape
                    for field, shape in op.members.items()
                    if field not in ("refused", "no_memory")
                }
            ),
            "cold": 1,
            "takes_frame": 1,
        }
    )


class BackgroundOps(wiring.Signature):
    """Engines → M0: a stream of ops of each in `BACKGROUND`, in this order of priority; its ops are
    of its `KINDS`. `behind`, of each of these: what the stream has in the next cycle if its op is
    taken in this one. Not `valid`: nothing, or the stream does not tell."""

    def __init__(self, config: Config):
        op = Layouts(config).op
        behind = data.StructLayout({"valid": 1, "kind": code_shape(Op)})
        super().__init__(
            {
                **{name: Out(stream.Signature(op)) for name in BACKGROUND},
                "behind": Out(data.ArrayLayout(behind, len(BACKGROUND))),
            }
        )


class Admission(wiring.Signature):
    """Arbiter → tracker: what enters. `hot`: a request by the hot lane. `valid`, `op`: something by
    the tracker lane, and what; :func:`.arbiter.choose` says which op that is. That op looks at a
    page word (`reads`), may take a miss id (`takes`), changes a session (`session`), is the
    evictor's, whose PEEKs are of frames (`frame_peek`), is no request (`background`). `queue`: a
    request's, within its session."""

    def __init__(self, config: Config):
        flags = ("valid", "hot", "reads", "takes", "session", "frame_peek", "background")
        super().__init__(
            {
                **dict.fromkeys(flags, Out(1)),
                "op": Out(entering_layout(config)),
                "queue": Out(config.queue_bits),
            }
        )


class FrameReports(wiring.Signature):
    """Frame table → eviction engine. `claim`: the entry of a frame whose page was given away, as
    its CLAIM found it; `owner`: whose a frame is that a PEEK asked for; `error`: a frame in whose
    lines memory's error was noted, one in two cycles at most."""

    def __init__(self, config: Config):
        layouts = Layouts(config)
        super().__init__(
            {
                "claim": Out(stream.Signature(layouts.claim, always_ready=True)),
                "owner": Out(stream.Signature(layouts.frame_owner, always_ready=True)),
                "error": Out(stream.Signature(config.frame_bits, always_ready=True)),
            }
        )


def poisoned_ports(config: Config) -> dict:
    """Members of a block that tells which lines are poisoned from now on: with CXL.io."""
    layout = Layouts(config).poisoned_lines
    ports = {"o_poisoned": Out(stream.Signature(layout, always_ready=True))}
    return ports if config.cxlio else {}


class Pause(wiring.Signature):
    """Error lines → tracker. `pause`: nothing more may enter the pipeline. `paused`: nothing has
    for a cycle, and nothing is left in it."""

    def __init__(self):
        super().__init__({"pause": Out(1), "paused": In(1)})


class PoolSettings(wiring.Signature):
    """Registers → pools. `limit`: frames that each pool may use in the next cycle; it changes only
    while the pool is unused. `low_water`, `reserve`: frames that prefetch leaves free; frames that
    pins leave unpinned. Both count two cycles later."""

    def __init__(self, config: Config):
        bits = count_bits(config)
        super().__init__(
            {
                "limit": Out(data.ArrayLayout(bits, len(POOLS))),
                "low_water": Out(bits),
                "reserve": Out(bits),
            }
        )


class PoolUse(wiring.Signature):
    """Pools → registers, of each pool. `used`: frames in use. `unused`: `used` is 0, from a
    register."""

    def __init__(self, config: Config):
        used = data.ArrayLayout(count_bits(config), len(POOLS))
        super().__init__({"used": Out(used), "unused": Out(len(POOLS))})


class PoolCounts(wiring.Signature):
    """Pools → evictor, of each pool. `used`: frames in use. `spare`: frames that may be taken less
    the miss entries that wait for one."""

    def __init__(self, config: Config):
        used, spare = count_bits(config), spare_shape(config)
        super().__init__(
            {
                "used": Out(data.ArrayLayout(used, len(POOLS))),
                "spare": Out(data.ArrayLayout(spare, len(POOLS))),
            }
        )


class PoolLevels(wiring.Signature):
    """Pools → engines, of each pool: `free`, frames that may be taken, and what `PoolUse` and
    `PoolCounts` have."""

    def __init__(self, config: Config):
        free = data.ArrayLayout(count_bits(config), len(POOLS))
        parts = (PoolUse(config), PoolCounts(config))
        super().__init__(
            {"free": Out(free)} | {k: v for part in parts for k, v in part.members.items()}
        )


class PoolAnswers(wiring.Signature):
    """M3 → pools. `select`: the pool of the op at M3; `ahead`: what `select` will be in the next
    cycle. `frame`, of `select`: what `pop` takes. `can_<what>`, chosen a cycle earlier by `ahead`:
    free > 0 (`pop`); free > waiting (`take`); free > waiting + low_water (`prefetch`); pins +
    reserve < limit (`pin`)."""

    def __init__(self, config: Config):
        super().__init__(
            {
                "ahead": Out(POOL_BITS),
                "select": Out(POOL_BITS),
                "frame": In(config.frame_bits),
                "can_pop": In(1),
                "can_take": In(1),
                "can_prefetch": In(1),
                "can_pin": In(1),
            }
        )


class PoolChange(wiring.Signature):
    """M3 → pools: what its op does to the pool that it selects. `pop`: `frame` is taken. `push`,
    `push_frame`: a frame comes back, and which. `wait`, `unwait`: a miss entry begins, ends waiting
    for a frame. `want`: `pop` or `wait`, which M3 knows before it knows which of them. `pin`,
    `unpin`: a page is pinned, unpinned; `unpin` of a pool without pins does nothing: the pin of a
    word that could not be corrected is counted as it was read."""

    def __init__(self, config: Config):
        strobes = ("pop", "push", "wait", "unwait", "want", "pin", "unpin")
        super().__init__({**dict.fromkeys(strobes, Out(1)), "push_frame": Out(config.frame_bits)})
