# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CXL.io as a whole: recordings of Linux, what a driver relies on, random accesses."""

from dataclasses import replace

import pytest
from paths import ROOT
from power_up import undefined
from timing import GAP, changes

from kelp_hw.cxlio.cxl_io import CxlIo
from kelp_rtl.cxlio.model import RegisterModel
from kelp_spec.cxlio.commands import Opcode
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.device import PAYLOAD
from kelp_spec.cxlio.pci import MSIX_TABLE
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, made, run_cocotb

LINUX = ROOT / "data" / "linux"
# The device's own first: a hunt's mutants are in the design that is built first.
CONFIGS = ("joined", pytest.param("recorded", marks=pytest.mark.night))
MODEL = Model(public=PUBLIC)
# The stand-in's command effects log had no effects; ours are true. Line of the recording → what it
# read, and what the RTL reads.
EFFECTS = {
    369: (0x101, 0x100101),
    371: (0x103, 0x20103),
    374: (0x301, 0x80301),
    380: (0x4301, 0x44301),
    381: (0x4302, 0x44302),
}
# The stand-in's clock stood still: low words of the time in the three event records.
TIMES = (658, 741, 824)


def run(bench, config, test=None, **params):
    named = named_cxlio(config)
    return run_cocotb(
        made(CxlIo, config=replace(named, capacity=params.get("capacity", named.capacity))),
        bench=bench,
        test=test,
        params={"config": config, **params},
        model=MODEL,
        timeout_s=280,
    ).records


@pytest.mark.parametrize("config", CONFIGS)
def test_random_accesses(config):
    seen = run("kelp_verif.cxlio.access_bench", config, "random_accesses", steps=800, pause=0.1)
    counts = seen["seen"]
    wanted = ("refused", "allowed", "signalled", "silent", "error", "event", "command")
    wanted += tuple(f"{kind} of {size}" for kind in ("read", "write") for size in (1, 2, 4, 8))
    if config == "joined":
        wanted += ("sanitized", "reset")
    assert {name: counts.get(name, 0) for name in wanted if not counts.get(name)} == {}
    assert seen["messages"] >= 4 and seen["requests"] > 2


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    "test",
    [
        "capabilities",
        "register_blocks",
        "decoders",
        "doorbell_while_busy",
        "interrupts",
        "errors",
        "cdat",
        "monitors",
        "flips",
    ],
)
@pytest.mark.sampled
def test_what_a_driver_relies_on(config, test):
    run("kelp_verif.cxlio.checks_bench", config, test)


@pytest.mark.parametrize(
    ("capacity", "both", "met"), [(1, 0, 15), pytest.param(8, 10, 50, marks=pytest.mark.night)]
)
def test_every_bit_that_a_host_may_write(capacity, both, met):
    """Of a device of two GiB, too, so that both decoders have memory in every interleaving. Few
    addresses lie inside the one window of the smallest: 28 to 52 with seeds 1 to 6."""
    seen = run("kelp_verif.cxlio.access_bench", "joined", "every_bit", pause=0.1, capacity=capacity)
    counts = seen["seen"]
    assert counts.get("both", 0) >= both and counts["none"] >= 5, counts
    assert min(counts["inside"], counts["outside"]) >= met, counts
    assert len(counts) > 40


def test_a_boot_of_linux_reads_what_it_read():
    path = LINUX / "registers_boot_poison_teardown.txt"
    seen = run("kelp_verif.cxlio.replay_bench", "recorded", recording=str(path), pause=0.1)
    assert (seen["lines"], seen["reads"], seen["messages"]) == (998, 812, 3)
    differs = {line: (recorded, ours) for line, ours, recorded in seen["differs"]}
    assert {line: differs.pop(line) for line in EFFECTS} == EFFECTS
    assert tuple(differs) == TIMES
    assert all(0 < ours - recorded < 1 << 24 for recorded, ours in differs.values())


def test_perf_counts_what_it_counted():
    path = LINUX / "registers_perf.txt"
    # Before these lines the program that perf watched ran.
    seen = run(
        "kelp_verif.cxlio.replay_bench",
        "recorded_pmu",
        recording=str(path),
        pause=0.1,
        traffic=[743, 837],
    )
    assert (seen["lines"], seen["reads"], seen["messages"]) == (860, 646, 0)
    differs = {line: (recorded, ours) for line, ours, recorded in seen["differs"]}
    assert differs == {line - 1: values for line, values in EFFECTS.items()}


@pytest.mark.slow  # two models of their own
def test_after_any_power_up_no_memory_has_lost_anything():
    """Not even where a host reads, or writes a part of, what nobody has written: no flip-flop and
    no row of a memory begins with a value."""
    config = named_cxlio("full")
    with undefined() as power:
        for seed in (1, 2):
            model = RegisterModel(config, seed=seed)
            assert power.tables == {"top.engine.sequencer.rom.memory", "top.engine.tables.memory"}
            assert power.registers > 100 and power.memories == 6
            power.scramble(model, seed)
            before = model.faults()
            model.reset()
            assert model.write("configuration", 4, 2, 2) == 0
            assert model.write("device", PAYLOAD + 9, 1, 0x5A) == 0
            # The device writes a part of a word, too.
            code, answer = model.command(Opcode.IDENTIFY)
            assert code == 0 and answer[:8] == b"KELP 0.1"
            for lane in range(len(answer) + 7 >> 3, config.payload // 8):
                assert model.read("device", PAYLOAD + 8 * lane, 8) == (0, 0)
            for vector in range(config.vectors):
                assert model.read("device", MSIX_TABLE + 16 * vector, 8) == (0, 0)
                assert model.read("device", MSIX_TABLE + 16 * vector + 8, 8) == (1 << 32, 0)
            assert model.faults() == before


def test_latency_and_interval():
    dut = CxlIo(config=named_cxlio("recorded"))
    given = [{"port.ar.valid": 1, "port.r.ready": 1, "port.ar.p.addr": 0x30000}] * 16
    seen = changes(dut, "port.r.valid", given, settle=dut.cleared_after)
    assert seen[0] == dut.LATENCY and seen[2] - seen[0] == dut.INTERVAL
    dut, held = CxlIo(config=dut.config), given[0]
    first = changes(
        dut, "port.r.valid", [held], prepare=held, settle=0, within=dut.cleared_after + dut.LATENCY
    )
    assert [GAP + cycle for cycle in first] == [dut.cleared_after + dut.LATENCY]
