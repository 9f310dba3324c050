# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`kelp fpga replay`'s clock; simulated boards, in tests/fpga/boards, hold the replay itself."""

from kelp_cli.fpga.replay import _Clock


class Board:
    """A host whose board's TIME register shows these values, one after another."""

    def __init__(self, *times):
        self._times = iter(times)

    def board(self, _register):
        return next(self._times) % 2**32


def test_a_clock_goes_on_where_its_register_begins_again():
    clock = _Clock(Board(100, 2**32 - 6, 2**32 + 4, 2 * 2**32))
    counted = []
    for _ in range(3):
        clock.look()
        counted.append(clock.cycles)
    assert counted == [2**32 - 106, 2**32 - 96, 2 * 2**32 - 100]


def test_a_clock_keeps_up_within_a_step_of_minutes():
    """The register wraps twice before the step is over: looked at between, no turn of it is lost;
    and it is not asked more often than is needed."""
    clock = _Clock(Board(0, 3 * 2**30, 6 * 2**30, 9 * 2**30))
    for _ in range(2):
        clock.keep_up(seconds=0)
        clock.keep_up(seconds=3600)
    clock.look()
    assert clock.cycles == 9 * 2**30
