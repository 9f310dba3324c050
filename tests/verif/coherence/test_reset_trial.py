# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Resets under a caching host's traffic: nothing of before is shown, answered or waited for, what
comes too late has its event, and every decision is the golden model's. The bench sees planted
bugs."""

import pytest
from planted_driver import planted_driver

import kelp_hw.coherence.front as front
import kelp_hw.endpoint as endpoint
from kelp_hw.coherence.directory import Directory
from kelp_hw.coherence.host_port import CoherentHostPort
from kelp_hw.coherence.snoop_engine import SnoopEngine
from kelp_rtl.device import DriverError
from kelp_spec.config import named
from kelp_verif.coherence.audited_driver import AuditedDriver
from kelp_verif.coherence.endpoint_bench import WEATHERS, CachingDriver
from kelp_verif.coherence.reset_trial import reset_trial

FULL = named("unit_coherent")
NARROW = FULL.with_(codec_lanes=8)
QUICK = ("rough", "foul")

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in WEATHERS],
)
@pytest.mark.sampled
def test_after_a_reset_nothing_of_before_is_there(name):
    config, resets = (NARROW, 20) if name in QUICK else (FULL, 100)
    # The golden model does not hear when tenants give their queues other policies.
    driver = CachingDriver if "registers" in WEATHERS[name][0] else AuditedDriver
    counted = reset_trial(name, config=config, resets=resets, driver=driver)
    assert counted["late_writes"] > 3 and counted["look"] > 1_000 and counted["snoops"] > 100
    assert counted["under_close"] > 5
    assert counted["judged"] > 300 * resets or driver is CachingDriver
    assert counted["stale_rsps"] > 2 or name not in QUICK


#: Planted bugs: where the block is looked up, the block, the piece and what it becomes; what the
#: bench says.
BUGS = {
    "recalls go on": (
        front,
        SnoopEngine,
        'Signal(self._job, name=f"job_{n}")',
        'Signal(self._job, reset_less=True, name=f"job_{n}")',
        "nothing moves|assertion failed",
    ),
    "the directory is not emptied": (
        front,
        Directory,
        "scrub, empty = Signal(range(sizes.sets + 1))",
        "scrub, empty = Signal(range(sizes.sets + 1), init=sizes.sets)",
        "nothing was granted|assertion failed|BISnp|nothing moves",
    ),
    "the host does not wait": (
        endpoint,
        CoherentHostPort,
        "inner.ready & self.enable",
        "inner.ready",
        "before the endpoint is ready",
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", BUGS)
def test_the_bench_catches_a_planted_bug(bug):
    module, block, old, new, said = BUGS[bug]
    planted = planted_driver(CachingDriver, module, block, old, new)
    with pytest.raises((AssertionError, DriverError), match=said):
        reset_trial("rough", config=NARROW, resets=100, driver=planted)
