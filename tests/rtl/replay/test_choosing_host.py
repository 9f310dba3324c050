# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""How a host looks for an answer, on a driver that answers as it is told to."""

from types import SimpleNamespace

import numpy as np

from kelp_rtl.replay import choosing_host
from kelp_rtl.replay.choosing_host import ChoosingHost, Head
from kelp_spec.select import ANSWER_FIELDS, record_bytes


class _Driver:
    """Whose answer has its sequence from the `late`-th look on."""

    def __init__(self, late: int):
        self.late, self.looks = late, 0

    def run(self, program):
        count, self.looks = len(program), self.looks + 1
        header = record_bytes(ANSWER_FIELDS, {"sequence": 7 if self.looks > self.late else 6})
        rows = [np.frombuffer(header.ljust(64, b"\0"), np.uint8)] * count
        return SimpleNamespace(data=np.array(rows), response_cycle=[10 * self.looks] * count)


def host_of(driver):
    host = ChoosingHost.__new__(ChoosingHost)
    host.driver = driver
    return host


def test_an_answer_is_looked_for_until_it_is_there(monkeypatch):
    none = np.zeros(0, np.uint64)
    head = Head((0, 0, 0), 7, 64 * np.arange(3, dtype=np.uint64), none, none)
    lines, cycle = host_of(_Driver(2)).poll(head)
    assert len(lines) == 3 and cycle == 30
    monkeypatch.setattr(choosing_host, "_POLLS", 5)
    driver = _Driver(5)
    assert host_of(driver).poll(head) is None and driver.looks == 5
