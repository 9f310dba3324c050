# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How the blocks of the data path are joined (docs/design.md §4): one signature per relation, named
after what it is about and seen from the block that asks."""

from __future__ import annotations

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from kelp_spec.config import Config
from kelp_spec.formats import FORMAT_BITS, LINE_BITS, LINE_BYTES, SCALE_BITS

from ..layouts import Layouts
from .order import POSITION_BITS
from .quarters import QUARTERS

__all__ = [
    "FrameFlush",
    "HeadSlot",
    "HeadWrites",
    "LineHead",
    "LineLookUp",
    "LookUp",
    "ScaleHead",
    "ScaleLookUp",
    "SlotErrors",
    "WriteBack",
    "fill_layout",
    "full_write_layout",
    "result_layout",
    "written_layout",
]

_BYTE_BITS = ceil_log2(LINE_BYTES)


def full_write_layout(config: Config) -> data.StructLayout:
    """What the quantiser must know of a write."""
    return data.StructLayout(
        {"write_slot": config.write_slot_bits, "format": FORMAT_BITS, "host_type": 1}
    )


def result_layout() -> data.StructLayout:
    """A write in stored form."""
    return data.StructLayout({"payload": LINE_BITS, "scale": SCALE_BITS})


def fill_layout(slots: int) -> data.StructLayout:
    """A DRAM line from memory for a slot; `error`: memory's response was not OKAY."""
    return data.StructLayout({"slot": ceil_log2(slots), "data": LINE_BITS, "error": 1})


def written_layout(slots: int) -> data.StructLayout:
    """A write of a slot that memory has answered; `error`: its response was not OKAY."""
    return data.StructLayout({"slot": ceil_log2(slots), "error": 1})


class LookUp(wiring.Signature):
    """Look-up in a slot table, seen from the stages D1 and D2 of the front.

    Members
    -------
    tag : Out, always-ready stream of ``frame``, ``offset``
        The line of the op in D1, which is in D2 in the next cycle. The other members are about the
        op in D2.
    use : Out
        The op uses the table.
    fire : Out
        The op goes on; only with `use` and `available`.
    address, position, stored : Out
        DRAM line, the op's number, and how its page is stored.
    available : In
        The line has a slot that takes the op, or one can be allocated.
    slot, select : In
        That slot as a number and one-hot.
    request_fill : In
        Memory has to be asked for the line.
    """

    def __init__(self, config: Config, slots: int):
        #: What a slot holds: a frame, and a DRAM line in it.
        self.tag_layout = data.StructLayout(
            {"frame": config.frame_bits, "offset": config.offset_bits}
        )
        super().__init__(
            {
                "tag": Out(stream.Signature(self.tag_layout, always_ready=True)),
                "use": Out(1),
                "fire": Out(1),
                "address": Out(config.dram_line_bits),
                "position": Out(POSITION_BITS),
                "stored": Out(Layouts(config).stored),
                "available": In(1),
                "slot": In(ceil_log2(slots)),
                "select": In(slots),
                "request_fill": In(1),
            }
        )


class LineLookUp(wiring.Signature):
    """Look-up in the line buffer, seen from the front: `slot` (:class:`LookUp`), and what the op
    does to the line.

    Members
    -------
    slot : Out(LookUp)
    quarters : Out
        What of the line the op touches.
    reads, stores : Out
    wait : In
        The op has to await the slot's fill at the head.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "slot": Out(LookUp(config, config.line_slots)),
                "quarters": Out(QUARTERS),
                "reads": Out(1),
                "stores": Out(1),
                "wait": In(1),
            }
        )


class ScaleLookUp(wiring.Signature):
    """Look-up in the scale buffer, seen from the front: `slot` (:class:`LookUp`), and whether the
    op `reads` the scale."""

    def __init__(self, config: Config):
        super().__init__(
            {
                "slot": Out(LookUp(config, config.scale_slots)),
                "reads": Out(1),
            }
        )


class HeadSlot(wiring.Signature):
    """Use of slots in order, seen from the head.

    Members
    -------
    there, next : Out, ``select`` (one-hot or 0) and ``waits``
        The slot of the op at the head, and of the one behind it, and whether it awaits the fill.
    moves : Out
        `next` is `there` in the next cycle.
    position : Out
        Number of the op at the head, or of the next one where there is none.
    filled : In
        The fill that the op at the head awaits is there, or it awaits none. Registered.
    mark : Out, always-ready stream of a one-hot or 0
        The slot is stored to; the data follow one cycle later. The payload also stands without
        `valid`: it is the slot that would be stored to.
    release : Out, always-ready stream of ``slot``, ``position``
        An op is done with its slot.
    """

    def __init__(self, *, slots: int, position_bits: int):
        use = data.StructLayout({"select": slots, "waits": 1})
        release = data.StructLayout({"slot": ceil_log2(slots), "position": position_bits})
        super().__init__(
            {
                "there": Out(use),
                "next": Out(use),
                "moves": Out(1),
                "position": Out(position_bits),
                "filled": In(1),
                "mark": Out(stream.Signature(slots, always_ready=True)),
                "release": Out(stream.Signature(release, always_ready=True)),
            }
        )


class LineHead(wiring.Signature):
    """The line buffer, seen from the head.

    Members
    -------
    slot : Out(HeadSlot)
    mark_quarters : Out
        What of the line `slot.mark` stores.
    may_read : Out
        Comes with every `read_en`, and is known earlier in the cycle.
    read_en : Out
        `line` counts in the next cycle; not under `refuse`.
    read_slot, read_quarters : Out
        Read in every cycle.
    refuse : In
        Write-back has its turn. Registered.
    line, error : In
        One cycle after `read_slot`: its line as far as `read_quarters` go, and whether memory's
        errors have made it no good.
    merge : Out
        With these: a partial write will store what was read.
    store : Out, always-ready stream of ``slot``, ``quarters``, ``data``
        One cycle after `slot.mark`.
    """

    def __init__(self, config: Config):
        slots = config.line_slots
        bits = ceil_log2(slots)
        store = data.StructLayout({"slot": bits, "quarters": QUARTERS, "data": LINE_BITS})
        super().__init__(
            {
                "slot": Out(HeadSlot(slots=slots, position_bits=POSITION_BITS)),
                "mark_quarters": Out(QUARTERS),
                "may_read": Out(1),
                "read_en": Out(1),
                "read_slot": Out(bits),
                "read_quarters": Out(QUARTERS),
                "refuse": In(1),
                "line": In(LINE_BITS),
                "error": In(1),
                "merge": Out(1),
                "store": Out(stream.Signature(store, always_ready=True)),
            }
        )


class ScaleHead(wiring.Signature):
    """The scale buffer, seen from the head.

    Members
    -------
    slot : Out(HeadSlot)
    place : Out, ``slot``, ``byte``, ``wide``
        The scale that is read, and marked by `slot.mark`: one byte, or two at an even `byte`.
    may_read, read_en, refuse : as in :class:`LineHead`
    scale, error : In
        One cycle after `place`.
    merge : as in :class:`LineHead`
    store : Out, always-ready stream of ``place``, ``scale``
        One cycle after `slot.mark`.
    """

    def __init__(self, config: Config):
        slots = config.scale_slots
        place = data.StructLayout({"slot": ceil_log2(slots), "byte": _BYTE_BITS, "wide": 1})
        store = data.StructLayout({"place": place, "scale": SCALE_BITS})
        super().__init__(
            {
                "slot": Out(HeadSlot(slots=slots, position_bits=POSITION_BITS)),
                "place": Out(place),
                "may_read": Out(1),
                "read_en": Out(1),
                "refuse": In(1),
                "scale": In(SCALE_BITS),
                "error": In(1),
                "merge": Out(1),
                "store": Out(stream.Signature(store, always_ready=True)),
            }
        )


class HeadWrites(wiring.Signature):
    """The write path, seen from the head.

    Members
    -------
    ready : In
        The oldest full write that is not consumed is quantised.
    consume : Out
        It is stored; only with `ready`.
    slot : Out
        Write slot whose `result` is read.
    result : In, result_layout
        One cycle after `slot`, for that cycle.
    merge : Out, stream of ``write``, ``fresh``, ``line``
        A partial write and its line as it was (`fresh`: zeros); taken into the quantiser.
    merge_done : In
        Pulse: the result of the merge is there.
    free : Out, always-ready stream of a write slot
    """

    def __init__(self, config: Config):
        bits = config.write_slot_bits
        merge = data.StructLayout(
            {"write": full_write_layout(config), "fresh": 1, "line": LINE_BITS}
        )
        super().__init__(
            {
                "ready": In(1),
                "consume": Out(1),
                "slot": Out(bits),
                "result": In(result_layout()),
                "merge": Out(stream.Signature(merge)),
                "merge_done": In(1),
                "free": Out(stream.Signature(bits, always_ready=True)),
            }
        )


class WriteBack(wiring.Signature):
    """Dirty lines, seen from the buffer that has them.

    Members
    -------
    due : Out, ``valid``, ``slot``, ``address``
        A line to be written, which stays until it is taken.
    turn : In
        The line may be taken in this cycle.
    take : Out
        It is: it is due, it is its turn, and the head leaves it the store's read port.
    data, strobes : Out
        One cycle after `take`, for that cycle: the line, and which of its equal parts to write.
    """

    def __init__(self, *, slots: int, address_bits: int, strobes: int):
        due = data.StructLayout({"valid": 1, "slot": ceil_log2(slots), "address": address_bits})
        super().__init__(
            {
                "due": Out(due),
                "turn": In(1),
                "take": Out(1),
                "data": Out(LINE_BITS),
                "strobes": Out(strobes),
            }
        )


class FrameFlush(wiring.Signature):
    """A frame's lines out of one buffer, seen from the flush unit.

    Members
    -------
    frame : Out
        Stable from one cycle before `capture` to `invalidate`.
    capture : Out
        Note which of the frame's lines have to reach memory.
    pending : In
        Some of them have not.
    invalidate : Out
        Forget the frame's lines, but for those that later ops use.
    """

    def __init__(self, *, frame_bits: int):
        super().__init__(
            {"frame": Out(frame_bits), "capture": Out(1), "invalidate": Out(1), "pending": In(1)}
        )


class SlotErrors(wiring.Signature):
    """What memory's errors did to the slots of one buffer, seen from the block that reports them.

    Members
    -------
    any : In
        Some slot has an error to report.
    slot : Out
        A slot is looked at.
    there, spoils : In
        One cycle after `slot`: it has an error to report; something that was written is lost.
    frame, offset, stored : In
        One cycle after `slot`: which line it holds, and how that line's page is stored.
    done : Out, always-ready stream of ``slot``, ``spoils``
        The slot's errors so far are reported; with `spoils`, its lines are poisoned from now on.
    """

    def __init__(self, config: Config, slots: int):
        bits = ceil_log2(slots)
        done = data.StructLayout({"slot": bits, "spoils": 1})
        super().__init__(
            {
                "any": In(1),
                "slot": Out(bits),
                "there": In(1),
                "spoils": In(1),
                "frame": In(config.frame_bits),
                "offset": In(config.offset_bits),
                "stored": In(Layouts(config).stored),
                "done": Out(stream.Signature(done, always_ready=True)),
            }
        )
