# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The golden model as a device, by loads and stores that no call of the host library makes; the RTL
in lock-step does the same."""

from dataclasses import replace

import numpy as np
import pytest
from narrow_unit import RTL

from cxl_kv.registers import Registers
from cxl_kv.url import make_core
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.config import POOLS
from kelp_spec.formats import Format
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.metadata import LAYER_RANGES, Event
from kelp_spec.registers import SessionCommand

WHOLE = np.uint64((1 << 64) - 1)
BACK_ENDS = (
    "golden:unit",
    pytest.param(f"{RTL}&lockstep=1", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
)


class Host:
    """LD-ID 0 with session 0 open, in int4."""

    def __init__(self, url):
        self.core = make_core(url)
        self.config, self.map = self.core.config, AddressMap(self.core.config)
        self.registers = Registers(
            self.config,
            lambda addresses: self.core.load(addresses, 0).lines,
            lambda addresses, rows, enable: self.core.store(addresses, rows, enable, 0),
        )
        c, r = self.config, self.registers
        r.write("s0_shape", layers=1, kv_heads=c.queues, used_lines=c.half_lines)
        self.formats(Format.INT4)
        r.write("s0_command", command=SessionCommand.OPEN)
        assert not r.fields("s0_state")["refused"]

    def formats(self, fmt):
        fields = {f"format_{half}_{r}": int(fmt) for half in "kv" for r in range(LAYER_RANGES)}
        self.registers.write("s0_formats", **fields)

    def lines_of(self, page):
        """Addresses of the lines of a page of each queue."""
        c = self.config
        each = (
            KvAddress(0, queue, page, kv, line)
            for queue in range(c.queues)
            for kv in range(2)
            for line in range(c.half_lines)
        )
        return np.array([self.map.encode(one) for one in each], np.uint64)

    def store(self, addresses, lines=None, enable=None):
        addresses = np.atleast_1d(np.asarray(addresses, np.uint64))
        if lines is None:
            lines = np.random.default_rng(1).integers(0, 256, (len(addresses), 64), np.uint8)
        if enable is not None:
            enable = np.full(len(addresses), enable, np.uint64)
        self.core.store(addresses, lines, enable, 0)
        return lines

    def used(self):
        return [self.registers.read(f"pool_used_{pool}") for pool in POOLS]

    def events(self):
        count = self.registers.read("event_count")
        found = [self.registers.fields(f"event_{i}") for i in range(count)]
        self.registers.write("event_taken", count=count, overflow=1)
        return found


@pytest.fixture(params=BACK_ENDS)
def host(request):
    host = Host(request.param)
    yield host
    host.core.close()


def test_apply_keeps_the_formats_and_the_shape_of_the_open(host):
    """What LD-ID 0 writes there for the session's next owner, amid its pages."""
    host.store(host.lines_of(0))
    first = host.core.load(host.lines_of(0), 0).lines
    host.formats(Format.RAW16)
    host.registers.write("s0_shape", layers=1, kv_heads=0, used_lines=1, used_pages=1)
    host.registers.write("s0_command", command=SessionCommand.APPLY_ALL)
    assert not host.registers.fields("s0_state")["refused"]
    more = host.store(host.lines_of(1))
    assert (host.core.load(host.lines_of(0), 0).lines == first).all()
    assert (host.core.load(host.lines_of(1), 0).lines != more).any(), "stored in int4"
    assert not any(host.used()[:-1]), "in frames of int4 alone"
    host.registers.write("s0_command", command=SessionCommand.CLOSE)
    while host.registers.fields("s0_state")["busy"]:
        pass
    assert not any(host.used())


def test_a_pool_that_evictions_empty_takes_the_limit_that_waits(host):
    host.registers.write("low_water", value=0)
    host.registers.write("high_water", value=1)
    host.store(host.lines_of(0)[0])
    assert sum(host.used()) == 1
    pool = next(name for name, used in zip(POOLS, host.used(), strict=True) if used)
    host.registers.write(f"pool_limit_{pool}", value=2)
    host.registers.write("high_water", value=host.config.frames[0])
    host.store(host.lines_of(0)[0])  # in lock-step nothing is left of it behind its eviction
    host.registers.write("high_water", value=1)
    host.store(host.lines_of(0))
    assert sum(host.used()) == 1, "one of two frames stays free"


def test_a_write_of_no_byte_is_no_request_of_a_phase(host):
    """Of 4096 requests reads have to be more than ten times the writes: 373 are too many."""
    line = host.lines_of(0)[:1]
    host.store(np.repeat(line, 372))
    host.store(np.repeat(line, 8), enable=0)
    host.core.load(np.repeat(line, 4096 - 372), 0)
    state = host.registers.fields("s0_state")
    assert state["decode"] == 1
    assert host.registers.read("count_writes") == 372


def test_counters_wrap_as_the_devices():
    """Totals at 2^48, a queue's at 2^32; neither spills over its register."""
    host = Host("golden:unit")
    endpoint, line = host.core.endpoint, host.lines_of(0)[:1]
    endpoint.counters["writes"] = (1 << 48) - 1
    endpoint.queue_counters["allocations"][0] = (1 << 32) - 1
    host.registers.write("s0_queue", queue=0)
    host.store(line)
    assert host.registers.read("count_writes") == 0
    assert host.registers.read("s0_queue_allocations") == 0


def test_a_hint_line_in_part_is_counted_and_told(host):
    hint = HintLine(kind=HintKind.RELEASE, queue=0, sequence=0x1234, entries=(0,))
    line = np.frombuffer(pack(hint, host.config), np.uint8)[None]
    host.store(host.map.hint_base, line, int(WHOLE) >> 1)
    assert host.registers.read("count_hint_lines") == 1
    (event,) = host.events()
    assert (event["code"], event["argument"]) == (Event.HINT_MALFORMED, 0x1234)


def test_what_is_outside_the_map_is_told_with_its_page_in_the_order_of_a_load(host):
    aperture = 1 << host.config.aperture_bits
    where = KvAddress(0, 1, 2, 0, 0)
    inside = host.map.encode(where)
    closed = host.map.encode(replace(where, session=1))
    asked = [Region.OUTSIDE * aperture + inside, closed, 5 * aperture + inside]
    host.core.load(np.array(asked, np.uint64), 0)
    host.store(asked)
    queues = host.config.queues
    outside = (Event.OUT_OF_MAP, 1, 2)
    assert [(e["code"], e["squeue"], e["page"]) for e in host.events()] == 2 * [
        outside,
        (Event.CLOSED_SESSION, queues + 1, 2),
        outside,
    ]


def test_a_read_that_is_refused_names_the_first_register_of_its_line(host):
    line = host.registers.register("irq_enable").offset & ~63
    host.core.load(np.array([host.map.register_base + line], np.uint64), 3)
    (event,) = host.events()
    assert (event["code"], event["ld_id"]) == (Event.REGISTER_REFUSED, 3)
    assert event["argument"] == line >> 3
