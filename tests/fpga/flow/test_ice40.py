# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What blocks take on an iCE40: the figures on which docs/fpga.md drops that board."""

import pytest

from kelp_fpga.flow import ice40
from kelp_fpga.flow.ice40 import LEAST, ice40_size, main
from kelp_hw.control.phase import PhaseDetector


def test_a_small_block_is_sized():
    figures = ice40_size(PhaseDetector(config=LEAST), name="phase")
    assert (
        20 < figures["luts"] < 600
        and 10 < figures["ffs"] < 200
        and figures.keys() == ice40.COUNTED.keys()
    )
    assert not figures["ebr"] and not figures["dsp"], "three registers and a comparison or two"


def test_what_is_printed_is_each_block_and_the_sum(monkeypatch, capsys):
    monkeypatch.setattr(
        ice40,
        "ice40_size",
        lambda component, name: {"luts": len(name), "ffs": 2, "ebr": 3, "dsp": 4},
    )
    assert main(["ema", "phase"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ema: 3 LUT4, 2 FF, 3 block RAMs, 4 multipliers",
        "phase: 5 LUT4, 2 FF, 3 block RAMs, 4 multipliers",
        "together: 8 LUT4, 4 FF, 6 block RAMs, 8 multipliers",
    ]
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "block 'nothing' is unknown; known: data_path, tracker" in capsys.readouterr().err


@pytest.mark.slow
def test_tracker_ema_and_eviction_fit_no_ice40(capsys):
    """7 680 LUT4 are an HX8K, without multipliers; 5 280 an UP5K, with eight."""
    main([])
    together = capsys.readouterr().out.splitlines()[-1]
    assert int(together.split()[1]) > 7680, together
