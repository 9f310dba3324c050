# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What is on a board, whatever the board is called: endpoint, memory, cold tier, self-test, bridge,
UART, LEDs. As fast as its UART: a request and its answer take it some 100 bytes of ten bits,
thousands of cycles, beside which the endpoint's are few."""

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
from ..selftest.self_test_program import RoundTrip, program
from .no_endpoint import NoEndpoint
from .one_place import OnePlace

__all__ = ["Board", "SDRAM_LINES"]

SDRAM_LINES = 1 << 19  #: of 64 bytes: 32 MB
_RESET_CYCLES = 255  #: longer than any line of the memory is under way
_ADDRESS_BITS = 25


class _State:
    """What the parts of a board know of one another."""

    def __init__(self):
        #: The device is reset for as many cycles more. Power-up holds everything for a moment as
        #: well: configuration leaves block RAM's first cycles to chance on some boards.
        self.resetting = Signal(range(_RESET_CYCLES + 1), init=_RESET_CYCLES)
        self.device_reset = Signal(init=1)
        self.running = Signal()
        self.memory_ready = Signal()
        self.quiescent = Signal()
        self.time = Signal(32)
        self.detail = Signal(19)  #: of the last memory test


class Board(wiring.Component):
    """One clock. `sync` is never reset but by power-up; the endpoint and what hangs on it are in
    the domain `device`, which CONTROL.RESET resets as well. `chip` is `sync` for what talks to the
    memory chip, reset by a register of its own.

    The memory's first `config.dram_lines` lines are the endpoint's frames, the rest is the cold
    tier.

    Latency and throughput: those of its parts.

    Parameters
    ----------
    config : Config
        Its frames and at least one cold page must fit into the memory.
    round_trip : RoundTrip
        The codec that says what the self-test's lines must come back as.
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
        round_trip: RoundTrip,
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
        self.program = program(config, round_trip)
        super().__init__(
            {"rx": In(1, init=1), "tx": Out(1, init=1), "leds": Out(8)}
            | ({"sdram": Out(SdramPins())} if block_lines is None else {})
        )

    def elaborate(self, platform):
        m = Module()
        m.domains.device = ClockDomain()
        state = _State()
        self._blocks(m)
        memory = self._memory(m, state)
        self._reset(m, state)
        under_way, answers = self._line(m)
        # A cycle later, which nobody sees who has to send a message first.
        m.d.sync += state.quiescent.eq(m.submodules.endpoint.quiescent & ~Cat(under_way).any())
        self._self_test(m, state, answers)
        s = m.submodules
        for n, manager in enumerate((s.endpoint, s.cold_store, s.test)):
            self._join(m, manager.axi, getattr(s.arbiter, f"i_{n}"))
        connect(m, s.arbiter.o, memory)
        self._registers(m, state)
        self._leds(m, state)
        return m

    def _blocks(self, m: Module) -> None:
        """All but the memory; with the endpoint in the domain `device` what hangs on it."""
        c, s, in_device = self.config, m.submodules, DomainRenamer("device")
        s.receiver = UartReceiver(divisor=self.divisor)
        s.transmitter = UartTransmitter(divisor=self.divisor)
        s.bridge = HostBridge(patience=20 * self.divisor)
        s.endpoint = in_device((NoEndpoint if c.name == FIRST_LIGHT else Endpoint)(config=c))
        s.arbiter = in_device(
            AxiArbiter(managers=3, address_bits=_ADDRESS_BITS, id_bits=axi_signature(c).id_bits)
        )
        s.cold_store = in_device(
            ColdStore(
                config=c,
                first_line=self.cold_first,
                lines=self.lines - self.cold_first,
                address_bits=_ADDRESS_BITS,
            )
        )
        s.test = in_device(MemoryTest(address_bits=_ADDRESS_BITS))
        s.self_test = SelfTest(program=self.program)

    def _memory(self, m: Module, state: _State):
        """The SDRAM or block RAM. Returns its port."""
        s = m.submodules
        ids = axi_signature(self.config).id_bits + s.arbiter.select_bits
        if self.block_lines is not None:
            store = BlockStore(
                lines=self.block_lines, address_bits=_ADDRESS_BITS, id_bits=ids, ultra=self.ultra
            )
            s.store = DomainRenamer("device")(store)
            m.d.comb += state.memory_ready.eq(1)
            return store.axi
        sdram = Sdram(hz=self.hz, address_bits=_ADDRESS_BITS, id_bits=ids, core_domain="board")
        m.domains.chip = ClockDomain()
        chip_reset = Signal(init=1, reset_less=True)
        m.d.sync += chip_reset.eq(ResetSignal(allow_reset_less=True))
        m.d.comb += [ClockSignal("chip").eq(ClockSignal()), ResetSignal("chip").eq(chip_reset)]
        s.sdram = DomainRenamer({"sync": "device", "board": "chip"})(sdram)
        connect(m, sdram.pins, flipped(self.sdram))
        m.d.comb += state.memory_ready.eq(sdram.ready)
        return sdram.axi

    def _reset(self, m: Module, state: _State) -> None:
        """Of the domain `device`; the self-test and CONTROL.RESET begin one."""
        resetting, counting = state.resetting, Signal(init=1)
        with m.If(resetting != 0):
            m.d.sync += resetting.eq(resetting - 1)
        # A register of its own, from a register: it goes to most of the device.
        m.d.sync += [counting.eq(resetting != 0), state.device_reset.eq(counting)]
        m.d.comb += [
            state.running.eq((resetting == 0) & ~counting & ~state.device_reset),
            ClockSignal("device").eq(ClockSignal()),
            ResetSignal("device").eq(state.device_reset),
            m.submodules.bridge.device_reset.eq(state.device_reset),
        ]

    def _place(self, m: Module, name: str, source, sink) -> OnePlace:
        """A register slice between two of the device's streams."""
        m.submodules[f"{name}_place"] = place = DomainRenamer("device")(OnePlace(source.p.shape()))
        connect(m, source, place.i)
        connect(m, place.o, sink)
        return place

    def _line(self, m: Module):
        """The UART, the bridge and the endpoint. Returns requests that are under way, and the
        endpoint's answers by channel.

        A message takes the UART hundreds of cycles: what the endpoint does with it need not reach
        the bridge's wide registers in the same one, nor the other way round.
        """
        s, bridge, endpoint = m.submodules, m.submodules.bridge, m.submodules.endpoint
        m.d.comb += [s.receiver.rx.eq(self.rx), self.tx.eq(s.transmitter.tx)]
        connect(m, s.receiver.o, bridge.i)
        connect(m, bridge.o, s.transmitter.i)
        requests = [
            self._place(m, name, getattr(bridge, name), getattr(endpoint, name))
            for name in ("m2s_req", "m2s_rwd")
        ]
        drs = self._place(m, "s2m_drs", endpoint.s2m_drs, bridge.s2m_drs)
        ndr = self._place(m, "s2m_ndr", endpoint.s2m_ndr, bridge.s2m_ndr)
        m.d.comb += endpoint.s2m_bisnp.ready.eq(1)
        connect(m, endpoint.cold_command, s.cold_store.command)
        self._place(m, "completion", s.cold_store.completion, endpoint.cold_completion)
        return [place.o.valid for place in requests], {"drs": drs.o, "ndr": ndr.o}

    def _self_test(self, m: Module, state: _State, answers) -> None:
        """The self-test at the bridge and the memory test; it looks at the `answers`."""
        s, bridge = m.submodules, m.submodules.bridge
        self_test, test = s.self_test, s.test
        s.inject_place = place = ResetInserter(~self_test.busy)(OnePlace(self_test.o.p.shape()))
        connect(m, self_test.o, place.i)
        connect(m, place.o, bridge.inject)
        march = Signal()
        m.d.sync += march.eq(self_test.march)
        for name, answer in answers.items():
            seen = getattr(self_test, name)
            m.d.comb += [
                seen.valid.eq(answer.valid),
                Value.cast(seen.payload).eq(Value.cast(answer.payload)),
            ]
        m.d.comb += [
            bridge.hold.eq(self_test.busy),
            bridge.take_drs.eq(self_test.drs.take),
            bridge.take_ndr.eq(self_test.ndr.take),
            self_test.owed.eq(bridge.owed),
            self_test.memory_ready.eq(state.memory_ready),
            self_test.ready.eq(s.endpoint.ready & state.running),
            self_test.quiescent.eq(state.quiescent),
            s.endpoint.ecc_flip.eq(self_test.flip),
            test.start.eq(march),
            self_test.march_done.eq(test.done),
            self_test.march_wrong.eq(test.result != 0),
        ]
        with m.If(self_test.reset):
            m.d.sync += state.resetting.eq(_RESET_CYCLES)
        with m.If(test.done):
            m.d.sync += state.detail.eq(test.detail)

    def _counts(self, m: Module, state: _State) -> tuple[Signal, Signal]:
        """Pages fetched from the cold tier, and stored, since the device was reset."""
        cold_store = m.submodules.cold_store
        fetches, stores = Signal(32), Signal(32)
        # two registers: the cold tier may lie at the other end of the device
        fetched, stored = Signal(2), Signal(2)
        m.d.sync += [
            fetched.eq(Cat(cold_store.reads, fetched[0])),
            stored.eq(Cat(cold_store.writes, stored[0])),
            fetches.eq(Mux(state.device_reset, 0, fetches + fetched[1])),
            stores.eq(Mux(state.device_reset, 0, stores + stored[1])),
        ]
        return fetches, stores

    def _status(self, m: Module, state: _State) -> Signal:
        """Register STATUS."""
        s, status = m.submodules, Signal(32)
        m.d.comb += [
            status[Status.MEMORY].eq(state.memory_ready),
            status[Status.READY].eq(s.endpoint.ready & state.running),
            status[Status.QUIESCENT].eq(state.quiescent),
            status[Status.IRQ].eq(s.endpoint.irq),
            status[Status.TESTING].eq(s.self_test.busy),
            status[Status.TESTED].eq(s.self_test.done),
            status[Status.PASSED].eq(s.self_test.passed),
        ]
        return status

    def _registers(self, m: Module, state: _State) -> None:
        """The board's registers, at the bridge."""
        s, bridge = m.submodules, m.submodules.bridge
        scratch, lockstep = Signal(32), Signal()
        first, count = Signal(19), Signal(20, init=self.lines)
        fetches, stores = self._counts(m, state)
        m.d.sync += state.time.eq(state.time + 1)
        m.d.comb += [
            s.endpoint.lockstep.eq(lockstep),
            s.test.first.eq(first),
            s.test.count.eq(count),
        ]
        values = {
            BoardRegister.IDENT: Const(IDENT, 32),
            BoardRegister.DIGEST: Const(int(self.config.digest[:8], 16), 32),
            BoardRegister.CLOCK: Const(self.hz, 32),
            BoardRegister.STATUS: self._status(m, state),
            BoardRegister.CONTROL: lockstep << Control.LOCKSTEP,
            BoardRegister.SCRATCH: scratch,
            BoardRegister.LINES: Const(self.lines, 32),
            BoardRegister.COLD_FIRST: Const(self.cold_first, 32),
            BoardRegister.COLD_LINES: Const(self.lines - self.cold_first, 32),
            BoardRegister.FETCHES: fetches,
            BoardRegister.STORES: stores,
            BoardRegister.TEST_FIRST: first,
            BoardRegister.TEST_LINES: count,
            BoardRegister.TEST_RESULT: Value.cast(s.self_test.result),
            BoardRegister.TEST_DETAIL: state.detail,
            BoardRegister.TIME: state.time,
            BoardRegister.TEST_CHECK: s.self_test.check,
        }
        with m.Switch(bridge.board.p.address):
            for register, value in values.items():
                with m.Case(register):
                    m.d.comb += bridge.board_read_data.eq(value)
        data, starts = bridge.board.p.data, Signal()
        m.d.sync += starts.eq(0)
        m.d.comb += s.self_test.start.eq(starts)
        with m.If(bridge.board.p.write):
            with m.Switch(bridge.board.p.address):
                with m.Case(BoardRegister.SCRATCH):
                    m.d.sync += scratch.eq(data)
                with m.Case(BoardRegister.TEST_FIRST):
                    m.d.sync += first.eq(data)
                with m.Case(BoardRegister.TEST_LINES):
                    m.d.sync += count.eq(data)
                with m.Case(BoardRegister.CONTROL):
                    m.d.sync += [lockstep.eq(data[Control.LOCKSTEP]), starts.eq(data[Control.TEST])]
                    with m.If(data[Control.RESET]):
                        m.d.sync += state.resetting.eq(_RESET_CYCLES)

    def _leds(self, m: Module, state: _State) -> None:
        s, bridge, self_test = m.submodules, m.submodules.bridge, m.submodules.self_test
        # a frame lights its LED for a twentieth of a second
        shown = Signal(range(max(2, self.hz // 20)))
        with m.If(bridge.heard):
            m.d.sync += shown.eq(~0)
        with m.Elif(shown != 0):
            m.d.sync += shown.eq(shown - 1)
        m.d.sync += self.leds.eq(
            Cat(
                state.memory_ready,
                s.endpoint.ready,
                bridge.synced,
                shown != 0,
                ~state.quiescent,
                self_test.busy & state.time[23],
                self_test.passed,
                self_test.done & ~self_test.passed,
            )
        )

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
