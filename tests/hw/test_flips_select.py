# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits that flip in the memories of a choice, in an endpoint that chooses pages amid traffic
(docs/protection.md, "Beside the endpoint"): each has a row there, and what a host reads is right or
told to be in doubt."""

import functools

import numpy as np
import pytest
from protection import judge, matches, memory_rows

from kelp_hw.endpoint import Endpoint
from kelp_rtl.device import Driver
from kelp_rtl.program import Program, Response
from kelp_spec.config import named
from kelp_verif.coherence.choosing_driver import CONFIG as CHOOSING
from kelp_verif.endpoint.flip_campaign import Bench, campaign
from kelp_verif.endpoint.flip_model import FlipDriver, memories
from kelp_verif.endpoint.flip_select import SelectHost
from kelp_verif.endpoint.flip_traffic import ready_device
from kelp_verif.endpoint.inventory import inventory
from kelp_verif.harness.seeds import reseeded


@functools.cache
def everything():
    return inventory(Endpoint(config=named("unit_select")))


def design():
    return {name: cells for name, cells in everything().items() if name.startswith("select.")}


def rows_of(name):
    return matches(name, memory_rows("Beside the endpoint"))


def checked(name):
    """Whether the table promises check bits."""
    return "SECDED" in rows_of(name)[0][1]


def test_each_memory_of_a_choice_is_in_the_table_once():
    strays = [name for name in design() if len(rows_of(name)) != 1]
    assert not strays, f"rows of docs/protection.md for each of these: {strays}"
    wrong = [name for name, cells in design().items() if checked(name) != bool(cells.columns)]
    assert not wrong, f"docs/protection.md says another thing of {wrong}"


@pytest.mark.timeout(2400)  # it may build the model
def test_each_memory_is_within_reach_of_a_campaign():
    strays = set(memories(Driver(named("unit_select")))) ^ set(everything())
    assert not strays, f"either the model or the design lacks {sorted(strays)}"


@pytest.fixture(scope="module")
def bench():
    return Bench(11, SelectHost(11))


@pytest.mark.slow  # five minutes of processor time, the model's of two and a half among them
@pytest.mark.timeout(2400)
def test_bits_in_each_memory_of_a_choice(bench):
    judge(campaign(each=1, only=list(design()), states=1, bench=bench), checked)


@pytest.mark.timeout(2400)  # it may build the model
def test_bits_in_every_row_between_an_answer_and_its_slots():
    """One bit is corrected; of two the host is told, and is shown no other page."""
    driver, host = ready_device(3, SelectHost(3))
    there = memories(driver)
    for name in ("window.answers.rows", "gather.slots_asked.rows", "gather.queues_asked.rows"):
        for bits in ((3,), (3, 5)):
            before = driver.read64("count_corrected"), driver.read64("count_uncorrected")
            for row in range(there[f"select.{name}"].depth):
                there[f"select.{name}"].flip(row, *bits)
            host.last(driver)
            more = driver.read64("count_corrected"), driver.read64("count_uncorrected")
            assert not host.seen.wrong and not host.seen.poisoned, (name, host.seen)
            assert more[len(bits) - 1] > before[len(bits) - 1], (name, bits)
            assert not driver.irq


@pytest.mark.slow  # a model of its own
@pytest.mark.timeout(2400)
def test_a_choice_is_heard_beside_a_coherent_front():
    """One bit in each queue's row of slots, then another; a read of a slot looks at its row."""
    driver = FlipDriver(CHOOSING, seed=1)
    rows = memories(driver)["select.gather.queues_asked.rows"]
    slot = Program.reads(np.array([driver.addresses.gather(0, 0, 0, 0, 0, 0)], np.uint64))
    for bit, counter in ((3, "count_corrected"), (5, "count_uncorrected")):
        for row in range(rows.depth):
            rows.flip(row, bit)
        assert driver.read64(counter) == 0
        assert driver.run(slot).response[0] == Response.NXM
        assert driver.read64(counter) == 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_flips_in_every_memory_of_a_choice():
    seed = reseeded(12)
    bench = Bench(seed, SelectHost(seed))
    judge(campaign(each=12, only=list(design()), states=6, bench=bench), checked)
