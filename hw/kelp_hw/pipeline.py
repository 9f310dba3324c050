# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Distances that several blocks must agree on, each from the stages that it counts (docs/design.md
§1, §10)."""

__all__ = [
    "DECIDED",
    "FRAME_STAGES",
    "IDS_AT_HAND",
    "M0_TO_M3",
    "RELEASE_TO_FREE",
    "RESERVE",
    "RESULT_TO_NEED",
    "SCORE_BACK",
    "SCORE_FRONT",
    "SCRUBS",
    "TRACKER_STAGES",
    "flushes",
]

#: The tracker's stages behind M0, and those of the frame stage behind M3, a cycle each.
TRACKER_STAGES = ("MA", "M1", "M2", "M3")
FRAME_STAGES = ("F1", "F2")

#: Cycles from an op's handshake at M0 to its decision.
M0_TO_M3 = len(TRACKER_STAGES)

#: A `ready` credit promises this many free places: more ops than can be between M0's look at it and
#: the place where they are counted. One for `ready`, which is a register, one for the register of
#: M0's credits, and one for each stage up to the FIFO of data ops, the farthest of these places.
RESERVE = 2 + len(TRACKER_STAGES + FRAME_STAGES)

#: Free miss ids at hand, so that an op in each cycle may take one: one for each stage up to M3, one
#: for the op at M0, one that M0's credit, a cycle old, leaves there, and one whose successor is on
#: its way.
IDS_AT_HAND = M0_TO_M3 + 3

#: So long after a control op's handshake its decision shows in the session registers, and a PEEK's
#: word beside them: up to M3, the result, its register, and two of margin.
DECIDED = M0_TO_M3 + 2 + 2

#: So long after an op's result at M3 the evictor has seen it in every way: as an event of the queue
#: state (registered in `came`, then in `entered`), as an eviction under way (in `count`, then in
#: `need`), and as the pools' used frames (in `used`, then in `need`): two cycles, two of margin.
RESULT_TO_NEED = 2 + 2

#: So long after a RELEASE's result its frame counts as under way, until the pool's free count has
#: it: RELEASE to `need`, and one more so that the frame is never counted by neither.
RELEASE_TO_FREE = RESULT_TO_NEED + 1

#: The score engine's stages before Exp2 and behind `b0`, a cycle each; `b0` waits for a page whose
#: update is on its way, the others never do.
SCORE_FRONT = ("a0", "a1")
SCORE_BACK = ("b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9")

#: SCRUBs of closing sessions that are on their way, or whose frames are not free yet.
SCRUBS = 16


def flushes(write_backs: int) -> int:
    """Frames whose flush may be asked for and not yet answered: of evictions, of SCRUBs, and of
    lost words, which are rare. The FREE of one may wait for the data path, so the data path never
    waits for the report of another."""
    return write_backs + SCRUBS + RESERVE
