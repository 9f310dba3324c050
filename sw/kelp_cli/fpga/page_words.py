# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's page words beside the golden model's: what no line that is read depends on, such as the
step of the last access, is seen there alone (used by ``kelp fpga selftest``)."""

from __future__ import annotations

from .endpoint_registers import read_registers, write_register

__all__ = ["wrong_page_word"]

#: Steps between looks: a page's last one is 555555, then AAAAAA, so that each bit is both.
_ADVANCES = (0x555555, 0x555555)
_POLLS = 1000


def wrong_page_word(host) -> str:
    """Writes and reads pages of every format that the configuration has, in far apart steps, and
    looks at page words each time. What the first that differs is and should be, or nothing. The
    endpoint is reset before, and has an open session behind. BoardError where the board falls
    silent."""
    from kelp_golden.lockstep import LockStep
    from kelp_golden.ops import Op as TrackerOp
    from kelp_golden.setup import SESSION
    from kelp_spec.address import AddressMap, KvAddress
    from kelp_spec.metadata import Op

    setup, addresses = _setup(host.config), AddressMap(host.config)
    endpoint = setup.endpoint()
    golden = LockStep(endpoint, evict_target=setup.high_water)
    golden.open(SESSION, setup.descriptor)
    host.reset(lockstep=True)
    for name, value in setup.registers():
        write_register(host, name, value)
    last = setup.used_pages - 1
    some = [(queue, page) for page in (0, last, 1) for queue in range(setup.queues)]
    for advance in _ADVANCES:
        write_register(host, *setup.advance(advance))
        golden.step(SESSION, advance)
        for n, (queue, page) in enumerate(some):
            address, line = addresses.encode(KvAddress(SESSION, queue, page, 0, 0)), bytes([n]) * 64
            for op in (Op.WRITE, Op.READ):
                host.wait("quiescent", 60)
                if op == Op.WRITE:
                    host.write([address], [line])
                else:
                    host.read([address])
                write = int(op == Op.WRITE)
                origin = (line, -1) if write else None
                golden.request(TrackerOp(op, SESSION, queue, page, 0, write=write, origin=origin))
        host.wait("quiescent", 60)
        for queue, page in [*some, (0, last - 1)]:
            seen, word = _peek(host, queue, page), endpoint.tracker.word(queue, page)
            if seen != (wanted := word._asdict()):
                return f"queue {queue}, page {page}: {_differs(seen, wanted)}"
    return ""


def _setup(config):
    from kelp_fpga.selftest.self_test_program import queue_formats
    from kelp_golden.setup import LayerFormats, Setup
    from kelp_spec.config import POOLS

    formats = queue_formats(config)
    return Setup(
        config=config,
        layers=len(formats),
        kv_heads=1,
        used_lines=config.half_lines,
        used_pages=config.pages,
        formats=tuple(LayerFormats(last_layer=n, k=k, v=v) for n, (k, v) in enumerate(formats)),
        limits=config.frames,
        budgets=(0,) * len(POOLS),
        high_water=1,
    )


def _peek(host, queue: int, page: int) -> dict[str, int]:
    from kelp_fpga.link.host import BoardError
    from kelp_spec.registers import RegisterMap, SessionCommand

    by_name = RegisterMap(host.config).by_name

    def fields(name, value):
        return {f.name: value >> f.low & (1 << f.bits) - 1 for f in by_name[name].fields}

    low = {f.name: f.low for f in by_name["s0_queue"].fields}
    write_register(host, "s0_queue", queue << low["queue"] | page << low["page"])
    write_register(host, "s0_command", int(SessionCommand.PEEK))
    for _ in range(_POLLS):
        state, word = read_registers(host, ["s0_state", "s0_page_word"])
        if not fields("s0_state", state)["busy"]:
            return fields("s0_page_word", word)
    raise BoardError(f"a session command is still under way after {_POLLS} looks: PEEK")


def _differs(seen: dict[str, int], wanted: dict[str, int]) -> str:
    return ", ".join(
        f"{name} is {seen[name]:#x}, should be {wanted[name]:#x}"
        for name in wanted
        if seen[name] != wanted[name]
    )
