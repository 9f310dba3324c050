# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""An LD-ID 0 that writes every register beside a host that caches: agents notice nothing, what is
refused has its event, and the rest reads back. The bench sees planted bugs."""

import pytest
from planted_driver import planted_driver

import kelp_hw.control.registers as registers
from kelp_hw.control.register_file import RegisterFile
from kelp_hw.control.session_control import SessionControl
from kelp_rtl.device import DriverError
from kelp_spec.config import named
from kelp_verif.coherence.endpoint_bench import WEATHERS
from kelp_verif.coherence.meddling_driver import MeddlingDriver, meddled_weather

FULL = named("unit_coherent")
NARROW = FULL.with_(codec_lanes=8)
#: Tenants write these weathers' registers themselves, and nobody knows what these hold.
NAMES = [name for name in WEATHERS if not {"registers"} & WEATHERS[name][0].keys()]

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "flood" else pytest.mark.slow) for name in NAMES],
)
def test_agents_notice_nothing_of_an_ld_id_0_that_writes_every_register(name):
    config, transactions = (NARROW, 3_000) if name == "flood" else (FULL, 20_000)
    counted = meddled_weather(name, config=config, transactions=transactions)
    assert counted["REGISTER_REFUSED"] > 50 and counted["OPEN_REFUSED"] > 20
    assert counted["commands"] - counted["OPEN_REFUSED"] > 20
    assert counted["longest"] < 2_000  # cycles of a write, whatever else goes on


#: Planted bugs: the block, the piece and what it becomes; what the bench says.
BUGS = {
    "APPLY takes the formats that stand there": (
        SessionControl,
        "Mux(opening, chosen(self.registers.formats), chosen(command.opened_formats))",
        "chosen(self.registers.formats)",
        "were written|stale read|assertion failed",
    ),
    "LD-ID 0 may not write sessions' registers": (
        RegisterFile,
        "allowed.eq(control | (self.ld_id == self.owner[session]))",
        "allowed.eq(self.ld_id == self.owner[session])",
        "did not open",
    ),
    "a refused command has no event": (
        SessionControl,
        "[self.given.busy.eq(1), self.o_event.valid.eq(1)]",
        "[self.given.busy.eq(1), self.o_event.valid.eq(command.ld_id != 0)]",
        "events OPEN_REFUSED",
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", BUGS)
def test_the_bench_catches_a_planted_bug(bug):
    block, old, new, said = BUGS[bug]
    planted = planted_driver(MeddlingDriver, registers, block, old, new)
    with pytest.raises((AssertionError, DriverError), match=said):
        meddled_weather("smooth", config=NARROW, transactions=20_000, driver=planted)
