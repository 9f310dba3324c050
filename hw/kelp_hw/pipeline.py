# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Numbers that several blocks of the tracker pipeline must agree on (docs/design.md §1, §10)."""

__all__ = ["ORPHAN_TOKEN", "RESERVE", "WRITE_BACKS"]

#: A `ready` credit promises this many free places: more ops than can be between M0's look at it and the place where they are counted.
RESERVE = 8

#: Write-backs in flight at once, and evictions that overlap; flush tokens below it are the evictor's.
WRITE_BACKS = 4

#: Flush token of a frame whose page went away while it was fetched; whoever frees orphans answers its `flushed` with FREE.
ORPHAN_TOKEN = 15
