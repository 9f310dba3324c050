# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Numbers that several blocks of the tracker pipeline must agree on (docs/design.md §1, §10)."""

__all__ = ["RESERVE"]

#: A `ready` credit promises this many free places: more ops than can be between M0's look at it and
#: the place where they are counted.
RESERVE = 8
