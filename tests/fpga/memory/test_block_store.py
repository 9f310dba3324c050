# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""BlockStore: what is written is read, byte by byte, whoever waits; its pace."""

import random

import pytest
from streams import Ends, pump

from kelp_fpga.memory.block_store import BlockStore

LINES = 8


def store():
    return BlockStore(lines=LINES, address_bits=25, id_bits=4)


def test_latency_and_interval():
    block = store()
    reads = [{"id": n, "addr": n << 6} for n in range(4)]
    r = pump(block, Ends({"axi.ar": reads}, ("axi.r",)), cycles=12)["axi.r"]
    assert [answer.taken for answer in r] == [
        block.LATENCY + n * block.INTERVAL for n in range(len(reads))
    ]
    block = store()
    writes = {"axi.aw": reads, "axi.w": [{"strb": 1}] * len(reads)}
    b = pump(block, Ends(writes, ("axi.b",)), cycles=12)["axi.b"]
    assert [answer.taken for answer in b] == [
        block.LATENCY + n * block.WRITE_INTERVAL for n in range(len(reads))
    ]


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.4, 1.0), (1.0, 0.4), (0.6, 0.6)])
def test_what_is_written_is_read(offer, take):
    """Bytes without a strobe keep what they held; addresses beyond the last line wrap round."""
    rng, held, aw, w = random.Random(1), [bytes(64)] * LINES, [], []
    for n in range(40):
        line, strobe, data = rng.randrange(4 * LINES), rng.getrandbits(64), rng.randbytes(64)
        old = held[line % LINES]
        held[line % LINES] = bytes(data[k] if strobe >> k & 1 else old[k] for k in range(64))
        aw.append({"id": n % 16, "addr": line << 6})
        w.append({"strb": strobe, "data": int.from_bytes(data, "little"), "last": 1})
    block = store()
    lines = [rng.randrange(4 * LINES) for _ in range(40)]
    ends = Ends({"axi.aw": aw, "axi.w": w, "axi.ar": []}, ("axi.r", "axi.b"), offer, take)

    def answer(path, item):
        """Reads begin when the last write is answered."""
        answered.append(path)
        if len(answered) == len(aw):
            return [("axi.ar", {"id": n % 16, "addr": each << 6}) for n, each in enumerate(lines)]
        return ()

    answered, ends.answer = [], answer
    seen = pump(block, ends, cycles=600)
    assert [b.item.id for b in seen["axi.b"]] == [n % 16 for n in range(40)]
    assert [r.item.id for r in seen["axi.r"]] == [n % 16 for n in range(40)]
    assert [r.item.data.to_bytes(64, "little") for r in seen["axi.r"]] == [
        held[line % LINES] for line in lines
    ]


def test_a_number_of_lines_that_is_no_power_of_two_is_refused():
    with pytest.raises(ValueError, match="lines = 100 is refused"):
        BlockStore(lines=100, address_bits=25, id_bits=4)
