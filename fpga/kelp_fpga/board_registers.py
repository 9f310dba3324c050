# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The board's own registers, beside the endpoint's: what the bridge's BOARD messages read and
write. Plain Python."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["IDENT", "BoardRegister", "Control", "Status"]

IDENT = 0x4B454C50  #: "KELP"


class BoardRegister(IntEnum):
    """32 bits each. Only CONTROL, SCRATCH, TEST_FIRST and TEST_LINES may be written."""

    IDENT = 0
    DIGEST = 1  #: first eight hex digits of the configuration's digest
    CLOCK = 2  #: Hz
    STATUS = 3  #: :class:`Status`
    CONTROL = 4  #: :class:`Control`
    SCRATCH = 5  #: whatever was written
    LINES = 6  #: lines of the board's memory (the SDRAM's, or block RAM's)
    COLD_FIRST = 7  #: first line of the cold tier's region
    COLD_LINES = 8  #: its lines
    FETCHES = 9  #: pages read from the cold tier since reset
    STORES = 10  #: pages written to it
    TEST_FIRST = 11  #: first line that the memory test touches; all of the memory after power-up
    TEST_LINES = 12  #: how many
    #: two bits for each :class:`kelp_fpga.selftest.self_test_program.Part`: a
    #: :class:`kelp_fpga.selftest.self_test_program.State`
    TEST_RESULT = 13
    TEST_DETAIL = 14  #: the first line of memory that was wrong
    TIME = 15  #: clock cycles, modulo 2^32
    TEST_CHECK = 16  #: 256 and the number of the first check of the endpoint that failed, or 0


class Status(IntEnum):
    """Bits of STATUS."""

    MEMORY = 0  #: the memory is initialised
    READY = 1  #: the endpoint takes requests
    QUIESCENT = 2  #: nothing will change in it until it is asked something
    IRQ = 3
    TESTING = 4
    TESTED = 5  #: the self-test has ended since reset
    PASSED = 6  #: every part of it


class Control(IntEnum):
    """Bits of CONTROL."""

    RESET = 0  #: the endpoint, its cold tier and its memory port start anew; falls by itself
    #: run the self-test; falls by itself. It overwrites the memory that it tests, and resets as
    #: RESET does, before and after
    TEST = 1
    LOCKSTEP = 2  #: the endpoint's engines take turns, as the golden model's do
