# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What is on a board, whatever the board is called: endpoint, memory, cold tier, self-test, bridge,
UART, LEDs."""

from __future__ import annotations

from amaranth.hdl import (
    Cat,
    ClockDomain,
    ClockSignal,
    Const,
    DomainRenamer,
    Module,
    Mux,
    ResetInserter,
    ResetSignal,
    Signal,
    Value,
)
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.endpoint import Endpoint
from kelp_spec.config import Config

from ..board_registers import IDENT, BoardRegister, Control, Status
from ..configs import FIRST_LIGHT
from ..link.bridge import HostBridge
from ..link.uart import UartReceiver, UartTransmitter
from ..memory.axi_arbiter import AxiArbiter
from ..memory.block_store import BlockStore
from ..memory.cold_store import ColdStore
from ..memory.memory_test import MemoryTest
from ..memory.sdram import Sdram
from ..memory.sdram_core import SdramPins
from ..selftest.self_test import SelfTest
from ..selftest.self_test_program import program
from .no_endpoint import NoEndpoint
from .one_place import OnePlace

__all__ = ["Board", "SDRAM_LINES"]

SDRAM_LINES = 1 << 19  #: of 64 bytes: 32 MB
_RESET_CYCLES = 255  #: longer than any line of the memory is under way
_ADDRESS_BITS = 25


class Board(wiring.Component):
    """One clock. `sync` is never reset but by power-up; the endpoint and what hangs on it are in
    the domain `device`, which CONTROL.RESET resets as well. `chip` is `sync` for what talks to the
    memory chip, reset by a register of its own.

    The memory's first `config.dram_lines` lines are the endpoint's frames, the rest is the cold
    tier.

    Parameters
    ----------
    config : Config
        Its frames and at least one cold page must fit into the memory.
    hz : int
        Clock.
    divisor : int
        Clock cycles per bit of the UART.
    block_lines : int or None
        Lines of memory in block RAM, a power of two, for a board without a memory chip of ours;
        None is the SDRAM.
    ultra : bool
        These lines are in UltraRAM.

    Members
    -------
    rx, tx : the UART's wires
    sdram : Out(SdramPins)
        Not there with `block_lines`.
    leds : Out(8)
        From 0 on: memory initialised; endpoint ready; a host is connected; line traffic; a request
        is under way; self-test running (slow blink); self-test passed; self-test failed.
    """

    def __init__(
        self,
        *,
        config: Config,
        hz: int,
        divisor: int,
        block_lines: int | None = None,
        ultra: bool = False,
    ):
        self.config, self.hz, self.divisor, self.block_lines, self.ultra = (
            config,
            int(hz),
            divisor,
            block_lines,
            ultra,
        )
        self.lines = SDRAM_LINES if block_lines is None else block_lines
        self.cold_first = -(-config.dram_lines // 64) * 64
        if self.cold_first + config.cold_slot_sectors * 8 > self.lines:
            raise ValueError(
                f"configuration {config.name!r}: dram_lines = {config.dram_lines} is refused; "
                + f"the board has {self.lines}, cold tier included"
            )
        self.program = program(config)
        super().__init__(
            {"rx": In(1, init=1), "tx": Out(1, init=1), "leds": Out(8)}
            | ({"sdram": Out(SdramPins())} if block_lines is None else {})
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        port = axi_signature(c)
        in_device = DomainRenamer("device")
        m.domains.device = ClockDomain()
        s = m.submodules
        s.receiver = receiver = UartReceiver(divisor=self.divisor)
        s.transmitter = transmitter = UartTransmitter(divisor=self.divisor)
        s.bridge = bridge = HostBridge(patience=20 * self.divisor)
        endpoint = (NoEndpoint if c.name == FIRST_LIGHT else Endpoint)(config=c)
        arbiter = AxiArbiter(managers=3, address_bits=_ADDRESS_BITS, id_bits=port.id_bits)
        ids = port.id_bits + arbiter.select_bits
        cold = ColdStore(
            config=c,
            first_line=self.cold_first,
            lines=self.lines - self.cold_first,
            address_bits=_ADDRESS_BITS,
        )
        test = MemoryTest(address_bits=_ADDRESS_BITS)
        s.endpoint, s.arbiter, s.cold, s.test = (
            in_device(endpoint),
            in_device(arbiter),
            in_device(cold),
            in_device(test),
        )
        s.self_test = self_test = SelfTest(program=self.program)
        memory_ready = Signal()
        if self.block_lines is None:
            sdram = Sdram(hz=self.hz, address_bits=_ADDRESS_BITS, id_bits=ids, core_domain="board")
            m.domains.chip = ClockDomain()
            chip_reset = Signal(init=1, reset_less=True)
            m.d.sync += chip_reset.eq(ResetSignal(allow_reset_less=True))
            m.d.comb += [ClockSignal("chip").eq(ClockSignal()), ResetSignal("chip").eq(chip_reset)]
            s.sdram = DomainRenamer({"sync": "device", "board": "chip"})(sdram)
            connect(m, sdram.pins, flipped(self.sdram))
            m.d.comb += memory_ready.eq(sdram.ready)
            memory = sdram.axi
        else:
            store = BlockStore(
                lines=self.block_lines, address_bits=_ADDRESS_BITS, id_bits=ids, ultra=self.ultra
            )
            s.store = in_device(store)
            m.d.comb += memory_ready.eq(1)
            memory = store.axi

        # - reset ----------------------------------------------------------------------------------
        # Power-up holds everything for a moment as well: configuration leaves block RAM's first
        # cycles to chance on some boards.
        resetting = Signal(range(_RESET_CYCLES + 1), init=_RESET_CYCLES)
        with m.If(resetting != 0):
            m.d.sync += resetting.eq(resetting - 1)
        # A register of its own, from a register: it goes to most of the device.
        counting, device_reset, running = Signal(init=1), Signal(init=1), Signal()
        m.d.sync += [counting.eq(resetting != 0), device_reset.eq(counting)]
        m.d.comb += running.eq((resetting == 0) & ~counting & ~device_reset)
        m.d.comb += [
            ClockSignal("device").eq(ClockSignal()),
            ResetSignal("device").eq(device_reset),
            bridge.device_reset.eq(device_reset),
        ]

        # - the line, the endpoint -----------------------------------------------------------------
        m.d.comb += [receiver.rx.eq(self.rx), self.tx.eq(transmitter.tx)]
        connect(m, receiver.o, bridge.i)
        connect(m, bridge.o, transmitter.i)
        # A message takes the UART hundreds of cycles: what the endpoint does with it need not reach
        # the bridge's wide registers in the same one, nor the other way round.
        under_way = []
        for name in ("m2s_req", "m2s_rwd"):
            s[f"{name}_place"] = place = in_device(OnePlace(getattr(endpoint, name).p.shape()))
            connect(m, getattr(bridge, name), place.i)
            connect(m, place.o, getattr(endpoint, name))
            under_way.append(place.o.valid)
        answers = {}
        for name in ("s2m_drs", "s2m_ndr"):
            s[f"{name}_place"] = place = in_device(OnePlace(getattr(endpoint, name).p.shape()))
            connect(m, getattr(endpoint, name), place.i)
            connect(m, place.o, getattr(bridge, name))
            answers[name.removeprefix("s2m_")] = place.o
        m.d.comb += endpoint.s2m_bisnp.ready.eq(1)
        connect(m, endpoint.cold_command, cold.command)
        s.completion_place = place = in_device(OnePlace(cold.completion.p.shape()))
        connect(m, cold.completion, place.i)
        connect(m, place.o, endpoint.cold_completion)

        # - self-test ------------------------------------------------------------------------------
        s.inject_place = place = ResetInserter(~self_test.busy)(OnePlace(self_test.o.p.shape()))
        connect(m, self_test.o, place.i)
        connect(m, place.o, bridge.inject)
        # A cycle late, which nobody sees who has to send a message first.
        quiescent = Signal()
        m.d.sync += quiescent.eq(endpoint.quiescent & ~Cat(under_way).any())
        march = Signal()
        m.d.sync += march.eq(self_test.march)
        m.d.comb += [
            bridge.hold.eq(self_test.busy),
            bridge.take_drs.eq(self_test.drs.ready),
            bridge.take_ndr.eq(self_test.ndr.ready),
            self_test.owed.eq(bridge.owed),
            *(getattr(self_test, name).valid.eq(answer.valid) for name, answer in answers.items()),
            *(
                Value.cast(getattr(self_test, name).payload).eq(Value.cast(answer.payload))
                for name, answer in answers.items()
            ),
            self_test.memory_ready.eq(memory_ready),
            self_test.ready.eq(endpoint.ready & running),
            self_test.quiescent.eq(quiescent),
            endpoint.ecc_flip.eq(self_test.flip),
            test.start.eq(march),
            self_test.march_done.eq(test.done),
            self_test.march_wrong.eq(test.result != 0),
        ]
        with m.If(self_test.reset):
            m.d.sync += resetting.eq(_RESET_CYCLES)
        detail = Signal(19)
        with m.If(test.done):
            m.d.sync += detail.eq(test.detail)

        # - memory ---------------------------------------------------------------------------------
        for n, manager in enumerate((endpoint, cold, test)):
            self._join(m, manager.axi, getattr(arbiter, f"i_{n}"))
        connect(m, arbiter.o, memory)

        # - registers ------------------------------------------------------------------------------
        time, scratch, lockstep = Signal(32), Signal(32), Signal()
        first, count, fetches, stores = (
            Signal(19),
            Signal(20, init=self.lines),
            Signal(32),
            Signal(32),
        )
        # two registers: the cold tier may lie at the other end of the device
        fetched, stored = Signal(2), Signal(2)
        status, values = Signal(32), {}
        m.d.sync += [
            time.eq(time + 1),
            fetched.eq(Cat(cold.reads, fetched[0])),
            stored.eq(Cat(cold.writes, stored[0])),
            fetches.eq(Mux(device_reset, 0, fetches + fetched[1])),
            stores.eq(Mux(device_reset, 0, stores + stored[1])),
        ]
        m.d.comb += [
            endpoint.lockstep.eq(lockstep),
            test.first.eq(first),
            test.count.eq(count),
            status[Status.MEMORY].eq(memory_ready),
            status[Status.READY].eq(endpoint.ready & running),
            status[Status.QUIESCENT].eq(quiescent),
            status[Status.IRQ].eq(endpoint.irq),
            status[Status.TESTING].eq(self_test.busy),
            status[Status.TESTED].eq(self_test.done),
            status[Status.PASSED].eq(self_test.passed),
        ]
        values |= {
            BoardRegister.IDENT: Const(IDENT, 32),
            BoardRegister.DIGEST: Const(int(c.digest[:8], 16), 32),
            BoardRegister.CLOCK: Const(self.hz, 32),
            BoardRegister.STATUS: status,
            BoardRegister.CONTROL: lockstep << Control.LOCKSTEP,
            BoardRegister.SCRATCH: scratch,
            BoardRegister.LINES: Const(self.lines, 32),
            BoardRegister.COLD_FIRST: Const(self.cold_first, 32),
            BoardRegister.COLD_LINES: Const(self.lines - self.cold_first, 32),
            BoardRegister.FETCHES: fetches,
            BoardRegister.STORES: stores,
            BoardRegister.TEST_FIRST: first,
            BoardRegister.TEST_LINES: count,
            BoardRegister.TEST_RESULT: Value.cast(self_test.result),
            BoardRegister.TEST_DETAIL: detail,
            BoardRegister.TIME: time,
            BoardRegister.TEST_CHECK: self_test.check,
        }
        with m.Switch(bridge.board_address):
            for register, value in values.items():
                with m.Case(register):
                    m.d.comb += bridge.board_read_data.eq(value)
        data, starts = bridge.board_data, Signal()
        m.d.sync += starts.eq(0)
        m.d.comb += self_test.start.eq(starts)
        with m.If(bridge.board_write):
            with m.Switch(bridge.board_address):
                with m.Case(BoardRegister.SCRATCH):
                    m.d.sync += scratch.eq(data)
                with m.Case(BoardRegister.TEST_FIRST):
                    m.d.sync += first.eq(data)
                with m.Case(BoardRegister.TEST_LINES):
                    m.d.sync += count.eq(data)
                with m.Case(BoardRegister.CONTROL):
                    m.d.sync += [lockstep.eq(data[Control.LOCKSTEP]), starts.eq(data[Control.TEST])]
                    with m.If(data[Control.RESET]):
                        m.d.sync += resetting.eq(_RESET_CYCLES)

        # - LEDs -----------------------------------------------------------------------------------
        # a frame lights its LED for a twentieth of a second
        shown = Signal(range(max(2, self.hz // 20)))
        with m.If(bridge.heard):
            m.d.sync += shown.eq(~0)
        with m.Elif(shown != 0):
            m.d.sync += shown.eq(shown - 1)
        m.d.sync += self.leds.eq(
            Cat(
                memory_ready,
                endpoint.ready,
                bridge.synced,
                shown != 0,
                ~quiescent,
                self_test.busy & time[23],
                self_test.passed,
                self_test.done & ~self_test.passed,
            )
        )
        return m

    @staticmethod
    def _join(m, manager, port):
        """A manager whose ids and addresses are shorter than the port's."""
        for name in ("ar", "aw"):
            ours, theirs = getattr(manager, name), getattr(port, name)
            m.d.comb += [
                theirs.valid.eq(ours.valid),
                ours.ready.eq(theirs.ready),
                *(
                    theirs.p[field].eq(ours.p[field])
                    for field in ("id", "addr", "len", "size", "burst")
                ),
            ]
        connect(m, manager.w, port.w)
        for name in ("r", "b"):
            ours, theirs = getattr(manager, name), getattr(port, name)
            m.d.comb += [
                ours.valid.eq(theirs.valid),
                theirs.ready.eq(ours.ready),
                *(ours.p[field].eq(theirs.p[field]) for field in theirs.p.shape().members),
            ]
