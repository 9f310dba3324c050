# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""AxiArbiter: each manager has its own answers, in turn and in order, whoever waits; its pace."""

import random

import pytest
from streams import Ends, pump

from kelp_fpga.memory.axi_arbiter import AxiArbiter

MANAGERS = 3


def arbiter():
    return AxiArbiter(managers=MANAGERS, address_bits=25, id_bits=4)


def test_latency_and_interval():
    block, some = arbiter(), [{"id": n} for n in range(4)]
    ends = Ends({"i_1.ar": some, "i_2.ar": some}, ("o.ar",))
    addresses = pump(block, ends, cycles=30)["o.ar"]
    assert [each.offered for each in addresses] == [
        block.LATENCY + n * block.INTERVAL for n in range(2 * len(some))
    ]
    writes = {f"i_{n}.{name}": some for n in (1, 2) for name in ("aw", "w")}
    writes |= {name: [{"data": n} for n in range(4)] for name in ("i_1.w", "i_2.w")}
    seen = pump(arbiter(), Ends(writes, ("o.aw", "o.w")), cycles=40)
    for name, first in (("o.aw", block.LATENCY), ("o.w", block.LATENCY + 1)):
        assert [each.offered for each in seen[name]] == [
            first + n * block.WRITE_INTERVAL for n in range(2 * len(some))
        ]
    for name, first in (("r", block.ANSWER_LATENCY), ("b", block.ANSWER_LATENCY + 1)):
        seen = pump(arbiter(), Ends({f"o.{name}": some}, (f"i_0.{name}",)), cycles=30)
        assert [each.offered for each in seen[f"i_0.{name}"]] == [
            first + n * block.ANSWER_INTERVAL for n in range(len(some))
        ]


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.4, 1.0), (1.0, 0.4), (0.6, 0.6)])
def test_every_manager_has_its_own_answers(offer, take):
    """Data go with their address, ids come back as they were, and nobody is left out: with all
    asking, each has its turn in any `MANAGERS`."""
    rng, sends = random.Random(2), {"o.r": [], "o.b": []}
    for n in range(MANAGERS):
        ids = [{"id": rng.randrange(16), "addr": 64 * (100 * n + k)} for k in range(12)]
        data = [{"data": 1000 * n + k, "strb": rng.getrandbits(64)} for k in range(12)]
        sends |= {f"i_{n}.ar": ids, f"i_{n}.aw": ids, f"i_{n}.w": data}
    takes = ("o.ar", "o.aw", "o.w", *(f"i_{n}.{c}" for n in range(MANAGERS) for c in "rb"))

    def memory(path, item):
        if path == "o.ar":
            yield "o.r", {"id": item.id, "data": item.addr}
        elif path == "o.aw":
            yield "o.b", {"id": item.id}

    seen = pump(arbiter(), Ends(sends, takes, offer, take, answer=memory), cycles=1500)
    for n in range(MANAGERS):
        ids = [each["id"] for each in sends[f"i_{n}.ar"]]
        assert [r.item.id for r in seen[f"i_{n}.r"]] == ids
        assert [b.item.id for b in seen[f"i_{n}.b"]] == ids
        assert [r.item.data for r in seen[f"i_{n}.r"]] == [64 * (100 * n + k) for k in range(12)]
    of = [each.item.id >> 4 for each in seen["o.aw"]]
    assert [w.item.data // 1000 for w in seen["o.w"]] == of
    for n in range(MANAGERS):
        assert [(w.item.data, w.item.strb) for w in seen["o.w"] if w.item.data // 1000 == n] == [
            (each["data"], each["strb"]) for each in sends[f"i_{n}.w"]
        ]
    if offer == 1:
        turns = [each.item.id >> 4 for each in seen["o.ar"]][: 6 * MANAGERS]
        assert all(
            len(set(turns[k : k + MANAGERS])) == MANAGERS for k in range(len(turns) - MANAGERS)
        )


def test_too_few_managers_are_refused():
    with pytest.raises(ValueError, match="managers = 1 is refused"):
        AxiArbiter(managers=1, address_bits=25, id_bits=4)
