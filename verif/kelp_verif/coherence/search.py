# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every state of one line, by breadth-first search: `python -m kelp_verif.coherence.search`.

Exit 1 where a state breaks a rule, or where one cannot come to rest by messages alone (deadlock);
the shortest way there is printed."""

import argparse
import itertools
import sys
from collections import deque
from dataclasses import dataclass

from .line import BUGS, START, Violation, at_rest, check, steps

__all__ = ["Found", "main", "search"]


@dataclass(frozen=True)
class Found:
    """What a search found. `problem` is None where every state is sound; `way` leads to it."""

    states: int
    steps: int
    seen: frozenset
    problem: str | None = None
    way: tuple[str, ...] = ()


def search(
    *, bugs=(), rounds: bool = False, room: int = 2, eager: bool = False, limit: int = 2_000_000
) -> Found:
    """All states that can be reached from the start."""
    unknown = set(bugs) - set(BUGS)
    if unknown:
        raise ValueError(f"unknown bugs {sorted(unknown)}; known: {', '.join(BUGS)}")
    parent, queue, count, seen = {START: None}, deque([START]), 0, set()
    onwards = {}  # by messages alone: state → states before it

    def way(state, last=()):
        names = [*last]
        while parent[state] is not None:
            state, name = parent[state]
            names.insert(0, name)
        return tuple(names)

    while queue:
        state = queue.popleft()
        try:
            check(state)
            each = steps(state, bugs=bugs, rounds=rounds, room=room, eager=eager)
            for name, own_accord, after in each:
                count += 1
                seen.add(name)
                if not own_accord:
                    onwards.setdefault(after, []).append(state)
                if after not in parent:
                    parent[after] = state, name
                    queue.append(after)
                    if len(parent) > limit:
                        raise RuntimeError(f"more than {limit} states")
        except Violation as problem:
            return Found(len(parent), count, frozenset(seen), str(problem), way(state))
    rests = deque(state for state in parent if at_rest(state))
    can_rest = set(rests)
    while rests:
        for before in onwards.get(rests.popleft(), ()):
            if before not in can_rest:
                can_rest.add(before)
                rests.append(before)
    for state in parent:
        if state not in can_rest:
            problem = "deadlock: no message leads to rest"
            return Found(len(parent), count, frozenset(seen), problem, way(state))
    return Found(len(parent), count, frozenset(seen))


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.search")
    parser.add_argument("--bug", choices=BUGS, action="append", default=[])
    parser.add_argument("--room", type=int, default=3, help="messages that a channel holds (3)")
    args = parser.parse_args(argv)
    failed = False
    for rounds, eager in itertools.product((False, True), repeat=2):
        found = search(bugs=args.bug, rounds=rounds, room=args.room, eager=eager)
        kind = ("rounding format" if rounds else "raw16") + (", eager" if eager else "")
        print(f"{kind}: {found.states} states, {found.steps} steps, {len(found.seen)} kinds")
        if found.problem:
            failed = True
            print(f"  {found.problem}, after:")
            print("".join(f"    {name}\n" for name in found.way), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
