# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choices near memory beside a host that caches: a slot shows what its page has, dirty lines come
home before. The bench sees planted bugs. (A model of its own: slow.)"""

import pytest
from planted_driver import planted_driver

import kelp_hw.coherence.front as front
import kelp_hw.endpoint as endpoint
from kelp_hw.coherence.directory import Directory
from kelp_hw.host.ingress import Ingress
from kelp_rtl.device import DriverError
from kelp_verif.coherence.choosing_driver import ChoosingDriver, choosing_weather

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("name", ["smooth", "rough", "slow RwD", "silent", "registers", "foul"])
def test_a_slot_shows_what_its_page_has(name):
    # Where RwD are slow, so are queries, and few lines are dirty when they are asked for.
    counted = choosing_weather(name, transactions=30_000 if name == "slow RwD" else 12_000)
    assert counted["selects"] > 10 and counted["held"] > 30
    assert counted["gathered"] - counted["gathered_nxm"] > 100
    assert counted["called_home"] > 2  # they were dirty when they were asked for


#: Planted bugs: where the block is looked up, the block, the piece and what it becomes; the
#: weather that shows it, and what the bench says.
BUGS = {
    "dirty lines stay with the host": (
        front,
        Directory,
        "op.gathers & ((s.old == Held.STALE) | (s.old == Held.ANY))",
        "op.gathers & 0",
        "rough",
        "has it dirty",
    ),
    "writes keep reads out": (
        endpoint,
        Ingress,
        "& ~req_goes",
        "",
        "registers",
        "is not answered",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_bench_catches_a_planted_bug(bug):
    module, block, old, new, name, said = BUGS[bug]
    planted = planted_driver(ChoosingDriver, module, block, old, new)
    with pytest.raises(DriverError, match=said):
        choosing_weather(name, transactions=12_000, driver=planted)
