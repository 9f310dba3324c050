# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every row of kelp_verif.formal.resets: a block that was reset under traffic is as new, the proof
is about something, and a block that does not hear its reset is caught."""

import pytest

from kelp_verif.formal.resets import RESETS

#: `make test` takes these, `make prove` all.
QUICK = ("order_fifo", "closer", "kelp_state", "orphans")


def rows():
    return [
        pytest.param(
            reset,
            id=reset.name,
            marks=[
                pytest.mark.prove,
                pytest.mark.timeout(reset.timeout_s + 60),
                *([pytest.mark.quick] if reset.name in QUICK else []),
            ],
        )
        for reset in RESETS
    ]


@pytest.mark.parametrize("reset", rows())
def test_a_block_that_was_reset_is_as_new(reset):
    result = reset.holds()
    assert result.passed, result


@pytest.mark.parametrize("reset", rows())
def test_it_had_something_to_forget(reset):
    result = reset.covers()
    assert result.passed, result


@pytest.mark.parametrize("reset", rows())
def test_a_block_that_does_not_hear_its_reset_is_caught(reset):
    assert reset.catches().status == "FAIL"
