# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every state of one line is sound, and each planted bug is found."""

import pytest

from kelp_verif.coherence.line import BUGS
from kelp_verif.coherence.search import main, search

#: Bugs that show with a rounding format alone, or without one alone.
ONLY = {"no stale": True, "clean only": False}


@pytest.mark.parametrize("rounds", [False, True], ids=["raw16", "rounds"])
@pytest.mark.parametrize("room", [2, 3])
@pytest.mark.parametrize("eager", [False, True], ids=["as the endpoint", "eager"])
def test_every_state_is_sound(rounds, room, eager):
    found = search(rounds=rounds, room=room, eager=eager)
    assert found.problem is None, (found.problem, found.way)
    races = {
        "host: conflict",
        "host: snoop",
        "host: Ack before Cmp",
        "host: Ack after Cmp",
        "host: Ack, all done",
        "host: dirty home",
        "device: recall",
        "uncached",
        "clean evict",
        "look",
        "read and drop",
        "drop",
        "write S",
        "No-Op, E",
        "uncached, No-Op",
        "silent drop",
    }
    assert found.states > 300 and races <= found.seen
    assert ("device: recall first" in found.seen) == rounds


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    found = search(bugs=[bug], rounds=ONLY.get(bug, False))
    assert found.problem, f"nobody notices that {BUGS[bug]}"


def test_the_way_to_a_bug_is_printed(capsys):
    assert main(["--bug", "blocked write"]) == 1
    said = capsys.readouterr().out
    assert "deadlock: no message leads to rest, after:" in said and "device: recall" in said


def test_an_unknown_bug_is_refused():
    with pytest.raises(ValueError, match="unknown bugs"):
        search(bugs=["none"])
