# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The eviction engine on Verilator, in a world of golden models."""

import dataclasses

from kelp_hw.eviction.eviction import Eviction
from kelp_spec.config import named
from kelp_verif.harness.runner import Model, made, run_cocotb

__all__ = ["MEMORIES", "SMALL", "run"]

#: Where bits flip.
MEMORIES = {
    "queues": ("queues.settings.rows.rows.memory", ("top.queues.settings*", "memory")),
    "slots": ("slots.releases.fifo.storage", ("top.slots*", "storage")),
}

#: One design for as many benches as can be: it is built once, and mutants are in no other. Sessions
#: and queues are no powers of two, and the first pool holds a page of each queue and one more.
SMALL = named("unit").with_(sessions=3, queues=3, frames=(10, 8, 8, 8))


def run(config, test, engine=None, seed=None, **params):
    """`engine`: another one than `Eviction` as it is; `seed`: of a run that is to be as it was."""
    params["config"] = dataclasses.asdict(config)
    # No directory is there, and seeds stay what they were before it had a size.
    del params["config"]["directory_sets"]
    return run_cocotb(
        engine or made(Eviction, config=config),
        bench="kelp_verif.eviction.evictor_bench",
        test=test,
        seed=seed,
        model=Model(public=[public for _, public in MEMORIES.values()]),
        params=params,
        timeout_s=200,
    )
