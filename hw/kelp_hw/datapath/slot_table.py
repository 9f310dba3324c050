# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which DRAM line each slot of a line buffer holds, and what is still under way for it
(docs/design.md §4): one look-up a cycle, answered in the next."""

from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from kelp_spec.config import Config

from ..layouts import Layouts
from ..lib.protected import CheckedWord, Fault, fault_ports, merged, used
from .order import POSITION_BITS
from .signatures import FrameFlush, HeadSlot, LookUp, SlotErrors, written_layout

__all__ = ["NoSlots", "SlotTable", "encode", "one_hot"]

#: Cycles between two looks of the patrol at one slot; a dirty slot is due after at most two of
#: them.
PATROL_PERIOD = 512


def encode(select: Value, bits: int) -> Value:
    """Index of the one set bit of `select`; 0 when none is set."""
    return Cat(
        Cat(select[n] for n in range(len(select)) if n >> bit & 1).any() for bit in range(bits)
    )


def one_hot(index: Value, count: int) -> Value:
    """`count` bits, the one at `index` set; none of them where that is `count` or more."""
    return Cat(index == n for n in range(count))


def behind_first(m: Module, vector: Value) -> Value:
    """The bits above the lowest set one: a tree of ORs, which an FPGA's tables do sooner than its
    carry chain."""
    bits, reach = Signal(len(vector)), 1
    m.d.comb += bits.eq(vector)
    while reach < len(bits):
        wider = Signal(len(bits))
        m.d.comb += wider.eq(reduce(or_, (bits << k * reach for k in range(4))))
        bits, reach = wider, 4 * reach
    return (bits << 1)[: len(bits)]


def first_from(m: Module, vector: Value, ahead: Value) -> Value:
    """One-hot of the first set bit of `vector` in cyclic order that begins with the bits of the
    mask `ahead`."""
    above = Signal(len(vector))
    m.d.comb += above.eq(vector & ahead)
    return Mux(above.any(), above & ~behind_first(m, above), vector & ~behind_first(m, vector))


class _State:
    """What the parts of a table share; a bit per slot where nothing else is said."""

    def __init__(self, table: SlotTable):
        n = table.slots
        self.tags = [Signal(table.tag_layout, name=f"tag_{i}") for i in range(n)]
        self.valid = Signal(n)  #: the tag counts
        self.busy = Signal(n)  #: an op between `look.fire` and release uses it
        self.filling = Signal(n)  #: a read is to be issued or under way
        self.filled = table.filled  #: that read's data is there
        self.dirty = Signal(n)  #: stored to since its last write-back
        self.writing = Signal(n)  #: write-back without response yet
        #: To be written: nothing more can be combined into it, or it has waited long.
        self.complete = Signal(n)
        self.aged = Signal(n)  #: soon to be reallocated
        self.seen = Signal(n)  #: dirty when the patrol came by
        #: Of the op in D2, known from the beginning of the cycle: the slot that it hits, whether
        #: there is one, and its tag.
        self.looked, self.hit = table.match, Signal()
        self.tag = Signal(table.tag_layout)
        self.allocate = Signal()  #: it is no hit, and goes
        self.victim, self.victim_valid = Signal(n), Signal()  #: what it allocates then
        self.faults: list[Value] = []  #: of memories
        #: What happens in this cycle, and (`…_before`) what happened in the one before.
        self.attached, self.attached_before = Signal(n), Signal(n)
        self.allocated, self.allocated_before = Signal(n), Signal(n)
        self.filling_before, self.tag_before = Signal(n), Signal(table.tag_layout)
        self.forgotten, self.release = Signal(n), Signal(n)
        self.fill, self.written = Signal(n), Signal(n)
        self.stored, self.stored_before, self.complete_before = Signal(n), Signal(n), Signal()
        self.taken, self.taken_before = Signal(n), Signal(n)
        self.out = Signal(n)  #: the slot offered on `out`
        self.to_write = Signal(n)  #: of the flush under way: still to be written
        #: Memory's errors. The fill is no line: the next op that wants it asks again.
        self.bad = table.bad
        self.erred = Signal(n)  #: an error is still to be reported
        self.spoilt = Signal(n)  #: of these, those that took something that was written
        #: The lines are poisoned by now, but ops that were attached before that are still to come.
        self.draining = Signal(n)
        self.answered_badly = Signal(n)  #: memory answers the slot with an error in this cycle
        self.spoils = Signal(n)  #: that takes something that was written
        self.reported = Signal(n)  #: the errors of the slot are reported, and its lines poisoned


class SlotTable(wiring.Component):
    """Tags and states of `slots` slots: a fully associative look-up, an allocator, the order of
    write-back, and flushing.

    **Look-up.** `look.tag` is compared with every tag in the cycle of its transfer; in the cycles
    that follow, `match`, `look.slot`, `look.select` and `look.available` stand for it until the
    next one. `look.fire` attaches the op to that slot, or allocates it; look-ups may follow each
    other every cycle. `may_allocate`, which does not wait for `look.fire`, is up while an op waits
    to allocate `victim_slot`, which no op uses. Allocation is cyclic, so a slot's line stays for
    combining about as long as `slots` allocations. **Use.** A slot is busy from `look.fire` until
    the op that was attached last is released: `look.position`, a number that is unique among the
    attached ops, comes back in `head.release`. Busy, filling, dirty and writing slots are never
    reallocated. **Head.** `head.filled` is worked out in the cycle before, for the op at the head
    (`head.there`) and for the one behind it (`head.next`). **Write-back.** A stored-to slot is due
    when its content is complete, when it will be reallocated within `lead` allocations, when the
    patrol has seen it dirty twice (within 2·PATROL_PERIOD + 1 cycles), when its frame is flushed,
    or under `drain`. `out` offers the due slots, one per cycle. **Flush.** `flush.capture` notes
    what has to reach memory; when `flush.pending` falls, `flush.invalidate` forgets the frame's
    slots, except those to which later ops have been attached meanwhile.

    **Errors.** A fill with an error is `bad`; for the next op that wants it, memory is read again.
    A bad fill that is merged (`spoil`) and a write that memory did not take lose written data: the
    slot is `lost`. It is so until `errors.done` says that the frame table has poisoned its lines,
    and until the ops that were attached before that are done. These are done when the head comes to
    the op that was next then (`head.position`), or next at the last report, where there are more. A
    slot with an error to report is not reallocated, and its frame's flush waits for it.

    Latency `LATENCY` cycle, from `look.tag` to the look-up's other members; one look-up a cycle.

    Contradictions are `Assert`ed.

    Parameters
    ----------
    config : Config
    slots : int
        4 … 256, a power of two.
    lead : int
        1 … slots − 1.

    Members
    -------
    look : In(LookUp)
    want_fill : in
        The op in D2 awaits the line.
    match : out
        The slot that the op in D2 hits, one-hot; 0 where it hits none.
    may_allocate, victim_slot : out
        The op in D2 waits to allocate the slot, or does.
    head : In(HeadSlot)
    store_complete : in
        The slot that `head.mark` names has all its content.
    filled : out
        Per slot: memory's line is there.
    fill, written : in, always-ready streams of ``slot``, ``error``
        Memory's line is there; memory answers a write.
    spoil : in
        Per slot: its bad fill is merged with a partial write.
    bad, lost : out
        Per slot: the fill is no line; nor is what was stored.
    errors : In(SlotErrors)
    out : stream of ``slot``, ``address``
        Due slots. The address is a code word, as it was read.
    drain : in
        Everything dirty is due.
    flush : In(FrameFlush)
    idle : out
        Nothing is used, under way or dirty.
    fault : out, Fault
        With `config.protect`: of which op was attached last to a slot that is released, in the
        cycle after, and of which line a slot with an error to report holds.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config, slots: int, lead: int):
        if not isinstance(slots, int) or slots not in (4, 8, 16, 32, 64, 128, 256):
            raise ValueError(f"slots = {slots!r} is refused; legal: a power of two, 4 … 256")
        if not isinstance(lead, int) or not 1 <= lead < slots:
            raise ValueError(f"lead = {lead!r} is refused; legal: 1 … {slots - 1}")
        self.config = config
        self.slots = slots
        self.lead = lead
        self.slot_bits = slot_bits = exact_log2(slots)
        look = LookUp(config, slots)
        self.tag_layout = look.tag_layout
        named = data.StructLayout({"tag": self.tag_layout, "stored": Layouts(config).stored})
        #: The rows of each memory.
        self.words = {
            name: CheckedWord(shape, protect=config.protect)
            for name, shape in (
                ("addresses", config.dram_line_bits),
                ("lasts", POSITION_BITS),
                ("names", named),
            )
        }
        self.name_layout = named
        out = data.StructLayout({"slot": slot_bits, "address": self.words["addresses"].code_bits})
        super().__init__(
            {
                "look": In(look),
                "want_fill": In(1),
                "match": Out(slots),
                "may_allocate": Out(1),
                "victim_slot": Out(slot_bits),
                "head": In(HeadSlot(slots=slots, position_bits=POSITION_BITS)),
                "store_complete": In(1),
                "filled": Out(slots),
                "fill": In(stream.Signature(written_layout(slots), always_ready=True)),
                "written": In(stream.Signature(written_layout(slots), always_ready=True)),
                "spoil": In(slots),
                "bad": Out(slots),
                "lost": Out(slots),
                "errors": In(SlotErrors(config, slots)),
                "out": Out(stream.Signature(out)),
                "drain": In(1),
                "flush": In(FrameFlush(frame_bits=config.frame_bits)),
                "idle": Out(1),
                **fault_ports(config.protect, "fault"),
            }
        )

    def fill_there(self) -> Value:
        """Whether the fill of the slot of the op at the head is there, as of this cycle."""
        return (self.head.there.select & self.filled).any()

    def elaborate(self, platform):
        m = Module()
        s = _State(self)
        self._look_up(m, s)
        self._remember(m, s)
        self._allocator(m, s)
        self._head(m, s)
        self._slots(m, s)
        self._age(m, s)
        self._write_back(m, s)
        self._flush(m, s)
        self._errors(m, s)
        self._invariants(m, s)
        if self.config.protect:
            m.d.comb += self.fault.eq(merged(*s.faults))
        return m

    def _look_up(self, m: Module, s: _State) -> None:
        """Compare tags; attach the op in D2 to its slot."""
        n, bits, look = self.slots, self.slot_bits, self.look
        # Critical path: `look.fire` changes the slots from registers, one cycle later; what reads
        # the slots in that cycle reads these, too.
        m.d.sync += [
            s.attached_before.eq(s.attached),
            s.allocated_before.eq(s.allocated),
            s.filling_before.eq(Mux(look.request_fill, s.attached, 0)),
            s.tag_before.eq(s.tag),
        ]
        again = Signal(n)  # filled, but worth another try
        m.d.comb += [
            again.eq(s.bad & ~s.spoilt),
            look.available.eq(s.hit | s.victim_valid),
            look.select.eq(Mux(s.hit, s.looked, s.victim)),
            look.slot.eq(encode(look.select, bits)),
            s.allocate.eq(look.fire & ~s.hit),
            self.may_allocate.eq(look.use & s.victim_valid & ~s.hit),
            look.request_fill.eq(
                self.want_fill
                & ~(
                    s.looked
                    & (((s.filling | (s.filled & ~again)) & ~s.allocated_before) | s.filling_before)
                ).any()
            ),
            s.attached.eq(Mux(look.fire, look.select, 0)),
            s.allocated.eq(Mux(s.allocate, s.victim, 0)),
        ]
        with m.If(look.tag.valid):
            same = Signal()
            m.d.comb += same.eq(Value.cast(s.tag) == Value.cast(look.tag.p))
            equal, again = Signal(n), Signal()
            m.d.comb += [
                again.eq(Value.cast(s.tag_before) == Value.cast(look.tag.p)),
                equal.eq(
                    (
                        Cat(Value.cast(t) == Value.cast(look.tag.p) for t in s.tags)
                        & s.valid
                        & ~s.forgotten
                        & ~s.allocated_before
                    )
                    | (again.replicate(n) & s.allocated_before)
                ),
            ]
            # The op in D2 may give a slot another tag in this cycle. Critical path: `allocate` is
            # the last input of both.
            m.d.sync += [
                s.tag.eq(look.tag.p),
                s.looked.eq((equal & ~s.allocated) | Mux(same, s.allocated, 0)),
                s.hit.eq(Mux(s.allocate, (equal & ~s.victim).any() | same, equal.any())),
            ]
        with m.Else():
            m.d.sync += [
                s.looked.eq(s.looked & ~s.forgotten),
                s.hit.eq((s.looked & ~s.forgotten).any()),
            ]
        for i in range(n):
            with m.If(s.allocated_before[i]):
                m.d.sync += s.tags[i].eq(s.tag_before)

    def _remember(self, m: Module, s: _State) -> None:
        """Address and line of each slot, and the op that was attached last."""
        n, look = self.slots, self.look
        words = self.words
        addresses = memory.Memory(shape=words["addresses"].code_bits, depth=n, init=())
        lasts = memory.Memory(shape=words["lasts"].code_bits, depth=n, init=())
        m.submodules.addresses, m.submodules.lasts = addresses, lasts
        address_write, s.address_read = addresses.write_port(), addresses.read_port(domain="comb")
        last_write, s.last_read = lasts.write_port(), lasts.read_port(domain="comb")
        # Critical path: written without `look.fire`. A victim's address is of no use, and the op
        # will be the last one attached to its slot.
        m.d.comb += [
            address_write.en.eq(self.may_allocate),
            address_write.addr.eq(self.victim_slot),
            address_write.data.eq(words["addresses"].encode(m, look.address)),
            last_write.en.eq(look.use & look.available),
            last_write.addr.eq(look.slot),
            last_write.data.eq(words["lasts"].encode(m, look.position)),
        ]
        word, protect = words["names"], self.config.protect
        shape = word.code_bits if protect else self.name_layout
        m.submodules.names = names = memory.Memory(shape=shape, depth=n, init=())
        name_write, name_read = names.write_port(), names.read_port()
        given, name = name_write.data, name_read.data
        if protect:
            given = Signal(self.name_layout)
            row, single, double = word.decode(m, name)
            name, fault = self.name_layout(row), Fault(Cat(single.any(), double.any()))
            s.faults.append(used(fault, self.errors.there))
            m.d.comb += name_write.data.eq(word.encode(m, given))
        m.d.comb += [
            name_write.en.eq(self.may_allocate),
            name_write.addr.eq(self.victim_slot),
            given.tag.eq(s.tag),
            given.stored.eq(look.stored),
            name_read.addr.eq(self.errors.slot),
            self.errors.frame.eq(name.tag.frame),
            self.errors.offset.eq(name.tag.offset),
            self.errors.stored.eq(name.stored),
        ]

    def _allocator(self, m: Module, s: _State) -> None:
        """One candidate is always ready."""
        n, bits, look = self.slots, self.slot_bits, self.look
        ahead = Signal(n)  # slots after the one picked last
        picked = Signal(n)
        used_victim = Signal()
        free = Signal(n)
        candidates = Signal(n)
        m.d.comb += [
            free.eq(~(s.busy | s.attached_before | s.filling | s.dirty | s.writing | s.erred)),
            # What the op in the look-up stage hits, or takes, is about to be busy.
            candidates.eq(free & ~Mux(look.use, s.looked, 0) & ~Mux(s.victim_valid, s.victim, 0)),
            picked.eq(first_from(m, candidates, ahead)),
            used_victim.eq(look.fire & (~s.hit | (s.looked & s.victim).any())),
        ]
        with m.If(~s.victim_valid | used_victim):
            m.d.sync += s.victim_valid.eq(candidates.any())
            with m.If(candidates.any()):
                m.d.sync += [
                    s.victim.eq(picked),
                    self.victim_slot.eq(encode(picked, bits)),
                    ahead.eq(behind_first(m, picked)),
                ]

    def _head(self, m: Module, s: _State) -> None:
        """Whether the fill that the op at the head awaits is there."""
        head = self.head
        # Of the op that is at the head in the next cycle: the one there now, or the one behind it.
        # Critical path: `head.moves` and `fill.valid`; so what was there (`known`) and what comes
        # in this cycle (`comes`) are registered separately and joined in the next one.
        awaits = one_hot(self.fill.p.slot, self.slots)
        known, comes = Signal(), Signal()
        filled = s.filled & ~s.filling_before  # unless memory is asked again
        m.d.sync += [
            known.eq(
                Mux(
                    head.moves,
                    ~head.next.waits | (head.next.select & filled).any(),
                    ~head.there.waits | (head.there.select & filled).any(),
                )
            ),
            comes.eq(
                self.fill.valid
                & Mux(
                    head.moves,
                    (head.next.select & awaits).any(),
                    (head.there.select & awaits).any(),
                )
            ),
        ]
        m.d.comb += head.filled.eq(known | comes)

    def _slots(self, m: Module, s: _State) -> None:
        """What happens to a slot."""
        n, head = self.slots, self.head
        was_last = s.last_read.data == self.words["lasts"].encode(m, head.release.p.position)
        release = Mux(head.release.valid & was_last, one_hot(head.release.p.slot, n), 0)
        if self.config.protect:
            release |= self._late_release(m, s, was_last)
        m.d.comb += s.last_read.addr.eq(head.release.p.slot)
        m.d.comb += [
            s.release.eq(release),
            s.fill.eq(Mux(self.fill.valid, one_hot(self.fill.p.slot, n), 0)),
            s.written.eq(Mux(self.written.valid, one_hot(self.written.p.slot, n), 0)),
            s.stored.eq(Mux(head.mark.valid, head.mark.p, 0)),
            s.taken.eq(Mux(self.out.ready, s.out, 0)),
        ]
        # Critical path: `head.mark.valid` and `out.ready` change the slots from registers, one
        # cycle later. A slot stored to is busy until then, and one taken is still dirty.
        m.d.sync += [
            s.stored_before.eq(s.stored),
            s.complete_before.eq(self.store_complete),
            s.taken_before.eq(s.taken),
        ]
        m.d.sync += [
            s.valid.eq((s.valid & ~s.forgotten) | s.allocated_before),
            s.busy.eq((s.busy & ~s.release) | s.attached_before),
            s.filling.eq((s.filling & ~s.fill) | s.filling_before),
            s.filled.eq(((s.filled & ~s.filling_before) | s.fill) & ~s.allocated_before | s.spoils),
            s.dirty.eq((s.dirty & ~s.taken_before) | s.stored_before),
            s.writing.eq((s.writing & ~s.written) | s.taken_before),
        ]

    def _late_release(self, m: Module, s: _State, was_last: Value) -> Value:
        """The slot whose last op is known as such only when its number is corrected: released a
        cycle later, so that decoding is no part of that path. An op that is attached meanwhile
        makes the slot busy after that."""
        release, word = self.head.release, self.words["lasts"]
        looked, before, last = Signal(), Signal(release.p.shape()), Signal(word.code_bits)
        m.d.sync += [
            looked.eq(release.valid & ~was_last),
            before.eq(release.p),
            last.eq(s.last_read.data),
        ]
        position, single, double = word.decode(m, last)
        s.faults.append(used(Fault(Cat(single.any(), double.any())), looked))
        late = looked & single.any() & (position == before.position)
        return Mux(late, one_hot(before.slot, self.slots), 0)

    def _age(self, m: Module, s: _State) -> None:
        """Slots to be written: complete, seen dirty twice, soon to be reallocated."""
        n, bits = self.slots, self.slot_bits
        # The hand runs `lead` slots ahead of the allocator; a slot that it has passed is written as
        # soon as it is stored to.
        hand = Signal(bits)
        hand_moves = Signal()
        prescaler = Signal(range(max(2, PATROL_PERIOD // n)))
        patrol = Signal(bits)
        patrols = Signal(n)
        m.d.comb += [
            hand_moves.eq(hand != (self.victim_slot + self.lead)[:bits]),
            patrols.eq(Mux(prescaler == 0, one_hot(patrol, n), 0)),
        ]
        m.d.sync += prescaler.eq(Mux(prescaler == 0, max(1, PATROL_PERIOD // n) - 1, prescaler - 1))
        with m.If(prescaler == 0):
            m.d.sync += patrol.eq(patrol + 1)
        with m.If(hand_moves):
            m.d.sync += hand.eq(hand + 1)
        m.d.sync += [
            s.complete.eq(
                ((s.complete | (patrols & s.seen & s.dirty)) & ~s.taken_before)
                | Mux(s.complete_before, s.stored_before, 0)
            ),
            s.seen.eq(
                (s.seen & ~patrols & ~s.taken_before) | (patrols & s.dirty & ~s.taken_before)
            ),
            s.aged.eq((s.aged | Mux(hand_moves, one_hot(hand, n), 0)) & ~s.allocated_before),
        ]

    def _write_back(self, m: Module, s: _State) -> None:
        """Offer the slots that are due, in cyclic order."""
        n, bits = self.slots, self.slot_bits
        due = Signal(n)
        out_ahead = Signal(n)
        out_picked = Signal(n)
        m.d.comb += [
            due.eq(
                s.dirty
                & ~s.writing
                & ~s.taken_before
                & (s.complete | s.aged | s.to_write | self.drain.replicate(n))
                & ~Mux(self.out.valid, s.out, 0)
            ),
            out_picked.eq(first_from(m, due, out_ahead)),
            self.out.p.slot.eq(encode(s.out, bits)),
            s.address_read.addr.eq(self.out.p.slot),
            self.out.p.address.eq(s.address_read.data),
        ]
        with m.If(~self.out.valid | self.out.ready):
            m.d.sync += [self.out.valid.eq(due.any()), s.out.eq(out_picked)]
        # What is behind the slot offered is worked out when it stands there: the next is picked in
        # the order from the one before, and is never that itself.
        m.d.sync += out_ahead.eq(behind_first(m, s.out))

    def _flush(self, m: Module, s: _State) -> None:
        """What a frame's flush has to wait for; forget its slots."""
        n, look = self.slots, self.look
        of_frame = Signal(n)
        to_confirm = Signal(n)  # of the flush under way: written, response awaited
        m.d.sync += of_frame.eq(Cat(t.frame == self.flush.frame for t in s.tags) & s.valid)
        with m.If(self.flush.capture):
            m.d.sync += [
                s.to_write.eq(of_frame & s.dirty & ~s.taken_before),
                to_confirm.eq(of_frame & (s.taken_before | (s.writing & ~s.dirty)) & ~s.written),
            ]
        with m.Else():
            m.d.sync += [
                s.to_write.eq(s.to_write & ~s.taken_before),
                to_confirm.eq((to_confirm & ~s.written) | (s.to_write & s.taken_before)),
            ]
        m.d.comb += self.flush.pending.eq((s.to_write | to_confirm | (of_frame & s.erred)).any())
        with m.If(self.flush.invalidate):
            m.d.comb += s.forgotten.eq(
                of_frame
                & ~(s.busy | s.attached_before | s.filling | s.dirty | s.writing | s.erred)
                & ~Mux(look.use, s.looked, 0)
            )

        m.d.comb += self.idle.eq(
            ~(s.busy | s.attached_before | s.filling | s.dirty | s.writing | s.erred).any()
        )

    def _errors(self, m: Module, s: _State) -> None:
        """What memory's errors do to a slot."""
        n, errors = self.slots, self.errors
        unwritten, done = Signal(n), Signal(n)
        mark, passed = Signal(POSITION_BITS), Signal()  # the first op after the last report
        m.d.comb += [
            unwritten.eq(Mux(self.written.p.error, s.written, 0)),
            s.answered_badly.eq(unwritten | Mux(self.fill.p.error, s.fill, 0)),
            s.spoils.eq(unwritten | self.spoil),
            done.eq(Mux(errors.done.valid, one_hot(errors.done.p.slot, n), 0)),
            s.reported.eq(Mux(errors.done.p.spoils, done, 0)),
            passed.eq(self.head.position == mark),
            self.lost.eq(s.spoilt | Mux(passed, 0, s.draining)),
            errors.any.eq(s.erred.any()),
        ]
        m.d.sync += [
            # A fill that was under way when something was lost may have met the line half written:
            # what memory says of it does not count.
            s.bad.eq(
                ((s.bad & (~s.fill | s.spoilt)) | Mux(self.fill.p.error, s.fill, 0) | s.spoils)
                & ~s.allocated_before
            ),
            s.spoilt.eq((s.spoilt & ~s.reported) | s.spoils),
            # Reported is what was there when the report began.
            s.erred.eq(
                (s.erred & ~Mux(errors.done.p.spoils, done, done & ~s.spoilt))
                | s.answered_badly
                | s.spoils
            ),
            s.draining.eq((Mux(passed, 0, s.draining) | s.reported) & ~s.allocated_before),
            # What was lost is reported when no fill is under way, for the same reason.
            errors.there.eq(
                (
                    one_hot(errors.slot, n) & s.erred & ~(s.spoilt & (s.filling | s.filling_before))
                ).any()
            ),
            errors.spoils.eq((one_hot(errors.slot, n) & s.spoilt).any()),
        ]
        with m.If(s.reported.any()):
            m.d.sync += mark.eq(self.look.position + self.look.fire)

    def _invariants(self, m: Module, s: _State) -> None:
        """Contradictions."""
        n, look, head = self.slots, self.look, self.head
        m.d.sync += [
            Assert((s.looked & (s.looked - 1)) == 0, "two slots hold one line"),
            Assert(
                (s.hit == s.looked.any()) & ((s.looked & ~(s.valid | s.allocated_before)) == 0),
                "a look-up's result is out of date",
            ),
            Assert(
                ~look.fire | (look.use & look.available),
                "an op takes a slot that is not there",
            ),
            Assert(
                ~s.allocate
                | ~(
                    s.victim
                    & (s.busy | s.attached_before | s.filling | s.dirty | s.writing | s.erred)
                ).any(),
                "a slot in use is reallocated",
            ),
            Assert(
                (s.filling_before & (s.filling | (s.filled & ~s.bad)) & ~s.allocated_before) == 0,
                "a slot is filled twice",
            ),
            Assert((s.fill & ~s.filling) == 0, "read data for a slot that awaits none"),
            Assert((s.written & ~s.writing) == 0, "write response for a slot that awaits none"),
            Assert(
                (s.taken & (s.writing | s.taken_before | ~s.dirty)) == 0,
                "a slot is written back twice",
            ),
            Assert(
                (s.stored_before & ~s.busy) == 0,
                "a slot is reallocated before it is known that it was stored to",
            ),
            Assert((s.stored & ~s.busy) == 0, "a slot that no op uses is stored to"),
            Assert(
                ~head.release.valid | (one_hot(head.release.p.slot, n) & s.busy).any(),
                "a slot that no op uses is released",
            ),
            Assert((s.spoilt & ~s.erred) == 0, "nobody will report what was lost"),
            Assert((self.spoil & ~s.busy) == 0, "a slot that no op uses is merged"),
            Assert((s.reported & ~s.erred) == 0, "a slot without an error is reported"),
        ]


class NoSlots(SlotTable):
    """A table in which no op looks anything up: idle, with nothing to write and nothing to wait
    for. Combinational: constants.

    Members
    -------
    look, want_fill, match, may_allocate, victim_slot, head, store_complete, filled : as the base's
    fill, written, spoil, bad, lost, errors, out, drain, flush, idle, fault : as the base's
    """

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.idle.eq(1), self.head.filled.eq(1)]
        return m
