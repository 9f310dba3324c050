# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Numbers that several blocks of the tracker pipeline must agree on (docs/design.md §1, §10)."""

__all__ = ["RELEASE_TO_FREE", "RESERVE", "RESULT_TO_NEED"]

#: A `ready` credit promises this many free places: more ops than can be between M0's look at it and
#: the place where they are counted.
RESERVE = 8

#: So long after an op's result at M3 the evictor has seen it in every way: as an event of the queue
#: state (registered in `came`, then in `entered`), as an eviction under way (in `count`, then in
#: `need`), and as the pools' used frames (in `used`, then in `need`): two cycles, two of margin.
RESULT_TO_NEED = 2 + 2

#: So long after a RELEASE's result its frame counts as under way, until the pool's free count has
#: it: RELEASE to `need`, and one more so that the frame is never counted by neither.
RELEASE_TO_FREE = RESULT_TO_NEED + 1
