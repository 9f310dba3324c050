# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

import sys

import pytest


@pytest.fixture(autouse=True)
def deep_expressions():
    """The simulator descends into `RegisterFile`'s OR of all registers, one call per register."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(limit)
