# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""No board: what a self-test says of one that falls silent when its page words are read. Simulated
boards, in tests/verif/fpga, hold the self-test itself."""

from types import SimpleNamespace

from kelp_cli.fpga import selftest
from kelp_fpga.board_registers import BoardRegister
from kelp_fpga.configs import board_config
from kelp_fpga.link.host import BoardError


class PassedBoard:
    """Each part of its own test has passed."""

    config, patience = board_config("unit"), 1
    link = SimpleNamespace(bad=0, resent=0, polls=0)

    def __init__(self):
        self.scratch = 0

    def wait(self, bit, seconds):
        pass

    def start_test(self, first, lines):
        return lines

    def status(self):
        return {"passed": True}

    def board(self, register, value=None):
        if register == BoardRegister.SCRATCH:
            self.scratch = self.scratch if value is None else value
            return self.scratch
        return 0b01010101 if register == BoardRegister.TEST_RESULT else 0


def test_what_other_parts_came_to_is_told(monkeypatch):
    def silent(host):
        raise BoardError("no answer from the board for 10 s")

    monkeypatch.setattr(selftest, "wrong_page_word", silent)
    result = selftest.selftest(PassedBoard(), 0, 8)
    assert not result["passed"] and result["page words"].startswith("silent: no answer")
    parts = "bridge", "memory march", "endpoint loop-back", "codec signature", "metadata ECC"
    assert [result[part] for part in parts] == ["passed"] * 5
