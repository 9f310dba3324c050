# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The whole endpoint between a host that does everything it may and may not, AxiRam, and a flash
that fails and falls silent (spec §3, §4).

Parameters: `config`, a Config's fields; `phases`, a list of {`cycles`, `mix`, `faults`, `actions`};
`at_least`, coverage that the run goes on to reach; `settings`, what is not left to chance;
`standstill`, cycles without an answer, while some are owed, that fail.
"""

import time
from collections import Counter
from itertools import cycle, islice

import cocotb
from cocotb.triggers import RisingEdge

from kelp_spec.config import Config
from kelp_spec.formats import Format

from ..harness.runner import bench_params, record
from .endpoint_cold import Faults
from .endpoint_director import Director, Settings
from .endpoint_tb import PATIENCE, TB
from .endpoint_traffic import Mix

#: What is demanded and has not come about gets so many more phases of so many cycles each.
MORE_PHASES, MORE_CYCLES = 30, 2000


async def started(dut) -> tuple[TB, Director]:
    params = bench_params()
    values = params["config"]
    tb = TB(
        dut,
        Config.of_json(values),
        standstill=params.get("standstill", PATIENCE),
    )
    await tb.start()
    director = Director(tb, Settings(**params.get("settings", {})))
    await prepare(tb, director)
    return tb, director


async def prepare(tb: TB, director: Director) -> None:
    await director.program()
    for session in range(tb.config.sessions):
        await director.open(session)


async def phase(tb: TB, director: Director, plan: dict) -> None:
    """Traffic of one kind for a while, with things happening meanwhile."""
    tb.set_mix(Mix(**plan.get("mix", {})))
    tb.watch.faults = Faults(**plan.get("faults", {}))
    await tb.write({"prefetch_enable": tb.traffic.mix.prefetch})
    end = tb.cycle + plan["cycles"]
    tb.traffic.on = True
    actions = plan.get("actions", {})
    while tb.cycle < end:
        await tb.cycles(min(end - tb.cycle, tb.rng.randint(50, 500)))
        if actions and tb.cycle < end:
            await director.act(actions)


async def settled(tb: TB, director: Director) -> None:
    await tb.settle()
    await director.check_log()
    await director.check_steps()


def coverage(tb: TB, director: Director, counters: dict) -> dict[str, int]:
    """How often each thing came about so far."""
    found = (
        tb.coverage()
        | dict(tb.model.seen)
        | {f"cold_{name}": n for name, n in (tb.watch.seen + tb.watch.count).items()}
        | dict(director.seen)
    )
    found |= {
        name: counters[name]
        for name in (
            "misses",
            "evictions",
            "write_backs",
            "evicted_missed",
            "corrected",
            "uncorrected",
        )
    }
    found |= {
        what: sum(n for name, n in counters.items() if name.startswith(f"prefetch_{what}_"))
        for what in ("issued", "useful", "late", "useless")
    }
    return found | {
        "exact_logs": director.exact_logs,
        "formats": sum(found.get(f"read_{fmt.label}", 0) > 0 for fmt in Format),
    }


def missing(found: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What did not come about often enough: (found, demanded)."""
    return {
        name: (found.get(name, 0), least)
        for name, least in bench_params().get("at_least", {}).items()
        if found.get(name, 0) < least
    }


async def reach(tb: TB, director: Director) -> None:
    """More of the same phases, in turn, while something that is demanded has not come about: it is
    not for the seed to say whether a run looks at it. Nor for what the seed drew at the beginning:
    with small pools and low watermarks hardly a prefetch finds a frame, however long a run goes on.
    """
    for plan in islice(cycle(bench_params()["phases"]), MORE_PHASES):
        found = Counter(coverage(tb, director, await director.counters()))
        # These come at the end in any case.
        open_ones = [s.shape for s in tb.model.sessions if s.state == "open"]
        found["close"] += len(open_ones)
        found["scrub"] += sum(shape.queues * shape.used_pages for shape in open_ones)
        if not missing(found):
            return
        print(f"cycle {tb.cycle}: not yet (found, demanded): {missing(found)}")
        director.seen["more_phases"] += 1
        await director.watermarks()
        await phase(tb, director, plan | {"cycles": MORE_CYCLES})
        await settled(tb, director)


def report(tb: TB, director: Director, counters: dict, began: float) -> None:
    """Prints and hands back what came about; AssertionError for what did not come about often
    enough."""
    found = coverage(tb, director, counters)
    print(f"seed {cocotb.RANDOM_SEED}: {tb.cycle} cycles in {time.monotonic() - began:.0f} s")
    print("  ".join(f"{name}={n}" for name, n in sorted(found.items())))
    record(cycles=tb.cycle, coverage=found)
    assert not missing(found), f"coverage (found, demanded): {missing(found)}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def random_traffic(dut):
    """Phases of random traffic, each settled and its log compared; then everything is read back,
    closed and counted."""
    began = time.monotonic()
    tb, director = await started(dut)
    for plan in bench_params()["phases"]:
        await phase(tb, director, plan)
        await settled(tb, director)
    await reach(tb, director)
    report(tb, director, await director.finish(), began)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def reset_under_traffic(dut):
    """A reset in the middle of each phase: nothing older is answered, no session is open, no line
    and no frame is left, no completion of an older cold-tier command is taken for a new one's, and
    service goes on."""
    began = time.monotonic()
    tb, director = await started(dut)
    for plan in bench_params()["phases"]:
        await phase(tb, director, plan)
        for _ in range(tb.rng.randrange(20)):
            await RisingEdge(dut.clk)
        tb.traffic.on = False
        director.seen["reset_in_flight"] += await tb.reset()
        director.singles = director.slack = director.irq_enable = 0
        await prepare(tb, director)
        await director.read_back(0.3)
    for plan in bench_params()["phases"][:1]:
        await phase(tb, director, plan)
        await settled(tb, director)
    await reach(tb, director)
    report(tb, director, await director.finish(), began)
