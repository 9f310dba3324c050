# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Payloads that cross blocks, each declared once (docs/design.md §2, §3).

Fixed-width messages are `data.Struct`-like layouts made from `kelp_spec.messages`; the others
depend on the configuration and hang off one `Layouts(config)` object.
"""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Cat, Shape, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.address import REGISTER_BYTES
from kelp_spec.coherence import sizes_of
from kelp_spec.config import POOLS, Config
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.formats import LINE_BITS, LINE_BYTES, Format
from kelp_spec.messages import FIELDS, LD_ID_BITS, TAG_BITS
from kelp_spec.metadata import (
    SCORE_BITS,
    STEP_BITS,
    Answer,
    ColdOp,
    ColdStatus,
    DataOp,
    Event,
    MissKind,
    Op,
    Outcome,
    PrefetchSource,
    ScoreEvent,
    ScoreSource,
    frame_entry_fields,
    page_word_fields,
)
from kelp_spec.policy import EPOCH_BITS, PROFILE_BITS, Policy
from kelp_spec.registers import EVENT_ARGUMENT_BITS
from kelp_spec.select import select_offset_bits

__all__ = [
    "DropReason",
    "MESSAGES",
    "POOL_BITS",
    "TIME_BITS",
    "Layouts",
    "ResidentLines",
    "code_shape",
    "is_pinned",
    "latency_layout",
    "passing",
    "queue_in_map",
    "recall_ports",
]

TIME_BITS = 32  #: the time base `now`; latencies and deadlines are differences modulo 2^32
POOL_BITS = (len(POOLS) - 1).bit_length()

#: CXL.mem message name → layout.
MESSAGES = {
    name: data.StructLayout({field: bits for field, bits in fields})
    for name, fields in FIELDS.items()
}


def passing(*names: str) -> dict:
    """Ports of a block through which these of CXL.mem's messages pass: of M2SReq `i_req` and
    `o_req`, and so on."""
    return {
        f"{side}_{name[3:].lower()}": flow(stream.Signature(MESSAGES[name]))
        for side, flow in (("i", In), ("o", Out))
        for name in names
    }


def recall_ports(config: Config) -> dict:
    """Ports of who asks the endpoint for a sector that nobody is to hold."""
    sector = sizes_of(config).sector_address_bits(config)
    return {
        "recall": Out(stream.Signature(sector)),
        "still_held": In(stream.Signature(1, always_ready=True)),
    }


def code_shape(codes: type[IntEnum]) -> Shape:
    """Shape of a field that holds one of `codes`. It is plain bits: an enum of Amaranth's would
    put its names into every module's RTLIL."""
    return unsigned(max(codes).bit_length())


def is_pinned(word) -> Value:
    """Whether a page word's page is protected: by the host, or by a slot."""
    return word.pinned.any() if len(word.pinned) > 1 else word.pinned


def queue_in_map(m, config: Config, squeue) -> Value:
    """`session | queue`, as an address has it, of a queue's number session · queues + queue. They
    differ where a session's queues are no power of two."""
    session, queue = Signal(config.session_bits), Signal(config.queue_bits)
    m.d.comb += queue.eq(squeue)
    for k in range(1, config.sessions):
        with m.If(squeue >= k * config.queues):
            m.d.comb += [session.eq(k), queue.eq(squeue - k * config.queues)]
    return Cat(queue, session)


def latency_layout(cycles) -> data.StructLayout:
    """An answer's latency of shape `cycles`, for the histograms; `missed`: those of misses."""
    return data.StructLayout({"missed": 1, "cycles": cycles})


class DropReason(IntEnum):
    """Why a candidate went no further."""

    OUTSIDE = 0  #: its session is not open, or the queue or the page is outside the session
    DISABLED = 1  #: its source is switched off
    THROTTLED = 2  #: its source is out of credit
    DUPLICATE = 3  #: the page was in the FIFO already; of the two the nearer one stays
    FULL = 4  #: the FIFO was full, and this was the farthest candidate
    CANCELLED = 5  #: its session closed while it was in the FIFO
    #: M3 did not take it: absent, resident or fetching already, or no frame or miss entry to spare
    REFUSED = 6


class Layouts:
    """Every configuration-dependent payload.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    page : layout
        Names a page: `squeue` (session · queues + queue), `page`.
    page_word, frame_entry : layout
        The SRAM words without check bits (docs/design.md §2).
    origin : layout
        What an answer needs of its request: `tag`, `ld_id`, `start` (`now` at acceptance) and
        `missed` (both for the latency histograms).
    request : layout
        A decoded demand request, READ or WRITE, from ingress to M0.
    op : layout
        An op in the tracker pipeline (one union of every op's arguments).
    result : layout
        What M3 decided; broadcast valid-only to every engine, in M3 order.
    frame_op : layout
        From M3 to the frame stage.
    data_op : layout
        From the frame stage to the data path.
    score_event : layout
        From M3 to the EMA engine.
    coming, ahead : layout
        What M0 asks of a request (`memory`: neither refused already nor without memory); the
        request that M0 has in the next cycle unless the present one stays: one of two, and `which`
        is known later than they are.
    hot : layout
        A request served by the hot lane: a hit that is no access and changes no page word.
    latency : layout
        An answer's (`latency_layout`).
    session : layout
        Registers of one session as M3 reads them.
    queue_config, config_write : layout
        One queue's configuration; its broadcast to every copy of the configuration memory.
    scanned : layout
        From the score engine to a sweep: a page as its SCAN found it. `eligible` = RESIDENT and not
        pinned. Policy `kelp`: `score` is its value; `finished`, the turn of its queue in this step
        has passed, and it has been read since it was written.
    """

    def __init__(self, config: Config):
        if not isinstance(config, Config):
            raise TypeError(f"config must be a kelp_spec.Config, not {config!r}")
        c = self.config = config
        S = data.StructLayout

        self.page = S({"squeue": c.squeue_bits, "page": c.page_bits})
        #: A MemSpecRd, and whose it is.
        self.spec_read = S({"page": self.page, "ld_id": LD_ID_BITS})
        self.page_word = S(dict(page_word_fields(c)))
        self.frame_entry = S(dict(frame_entry_fields(c)))
        #: A flush's token says whose it was: 0 … write_backs − 1 are evictions, above them those
        #: that end in FREE.
        self.token_bits = max(4, c.write_back_bits + 1)
        self.scrub_token = 1 << (self.token_bits - 1)  #: the closer's
        self.recover_token = self.scrub_token + 1  #: of a lost page word's frame
        #: of a frame whose page went away while it was fetched
        self.orphan_token = self.scrub_token + 2

        #: `look`: of a LOOK, whose answer goes to no host
        self.origin = S(
            {"tag": TAG_BITS, "ld_id": LD_ID_BITS, "start": TIME_BITS, "missed": 1}
            | ({"look": 1} if c.select else {})
        )

        #: `has_write`: a write slot is held until the data path has consumed the op.
        #: `kv_line` = kv · half_lines + line; `refused` ≠ 0 (an Event code) when ingress already
        #: knows that it is outside the map; `gathered`: it came by the GATHER region.
        self.request = S(
            {
                "write": 1,
                "partial": 1,
                "poison": 1,
                "has_write": 1,
                "write_slot": c.write_slot_bits,
                "session": c.session_bits,
                "queue": c.queue_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "kv_line": c.line_bits,
                "refused": code_shape(Event),
                "no_memory": 1,
                "origin": self.origin,
            }
            | ({"gathered": 1} if c.select else {})
        )

        self.coming = S(
            {
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "kv_line": c.line_bits,
                "ld_id": LD_ID_BITS,
                "memory": 1,
            }
        )
        self.ahead = S({"candidates": data.ArrayLayout(self.coming, 2), "which": 1})
        self.hot = S(
            {
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "kv_line": c.line_bits,
                "write": 1,
            }
        )
        self.latency = latency_layout(self.origin["start"].shape)

        #: One op. `kind` is kelp_spec.metadata.Op; fields not named by the op's row are ignored.
        self.op = S(
            {
                "kind": code_shape(Op),
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "kv_line": c.line_bits,
                "write": 1,
                "partial": 1,
                "poison": 1,
                "has_write": 1,
                "write_slot": c.write_slot_bits,
                "origin": self.origin,
                "refused": code_shape(Event),  # READ/WRITE: event code known before M3
                "no_memory": 1,  # MemInv/MemClnEvct and the like: answer Cmp, change nothing
                "miss": c.miss_bits,  # GRANT FILL REPLAY FLIP
                "pool": POOL_BITS,  # GRANT FREE
                "frame": c.frame_bits,  # FILL REPLAY FLIP RELEASE FREE RECOVER PEEK-of-frame
                # FILL RELEASE; GRANT REPLAY FLIP of an entry that gets no frame (decisions.md, miss
                # path)
                "failed": 1,
                # FILL: ALLOCATE starts empty (or lost), DEMAND/PREFETCH from the line mask
                "miss_kind": code_shape(MissKind),
                # FILL: page was LOST: every line starts valid and poisoned; failed FLIP: a write
                # was dropped
                "lost": 1,
                "source": code_shape(PrefetchSource),  # PREFETCH, FILL: PrefetchSource
                # SCAN: number of the sweep modulo 16; CLAIM … RECOVER: token of the flush
                "slot": self.token_bits,
                "mass": SCORE_BITS,  # MASS
                "written": 1,  # RELEASE: flash was written, for the counters
                "delta": STEP_BITS,  # STEP: steps to advance
            }
        )

        #: What happened at M3, for everyone, in order. `word` is the page word after the op, `old`
        #: before (corrected), `policy` the queue's.
        self.result = S(
            {
                "op": self.op,
                "outcome": code_shape(Outcome),
                "old": self.page_word,
                "word": self.page_word,
                "changed": 1,
                "first": 1,
                "policy": code_shape(Policy),
                "frame": c.frame_bits,
                "pool": POOL_BITS,
                "miss": c.miss_bits,
                "corrected": 1,
                "uncorrected": 1,
            }
        )

        #: Frame stage input. `use` false: the op passes without touching the frame table (answers,
        #: misses, SCRUB without a frame, PEEK of a word). `write` tells a REPLAY's direction; READ
        #: and WRITE set it too.
        self.frame_op = S(
            {
                "kind": code_shape(Op),
                "outcome": code_shape(Outcome),
                "frame": c.frame_bits,
                "pool": POOL_BITS,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "use": 1,
                "write": 1,
                "kv_line": c.line_bits,
                "used_lines": c.half_line_bits + 1,
                "k_only": 1,
                "host_type": 1,
                "format_k": code_shape(Format),
                "format_v": code_shape(Format),
                "partial": 1,
                "poison": 1,
                "has_write": 1,
                "write_slot": c.write_slot_bits,
                "origin": self.origin,
                # kelp_spec.metadata.Answer when no memory is needed
                "answer": code_shape(Answer),
                # start the entry anew: owner, source; valid and poison from the line mask, zeros or
                # (lost) all ones
                "init": 1,
                "lost": 1,
                "failed": 1,
                "source": code_shape(PrefetchSource),
                "miss": c.miss_bits,
                "slot": self.token_bits,
            }
        )

        #: A stored page's validity and poison, one bit per host line, K lines first.
        #: which lines of a stored page were written, and which of these are poisoned
        self.line_mask = S({"valid": c.page_lines, "poison": c.page_lines})

        #: Frame stage reports: a CLAIM's frame as it was claimed; a PEEK of a frame; a prefetch
        #: that proved useful (or useless); every frame op with the entry after it (`entry` is
        #: defined when `op.use`).
        self.claim = S(
            {
                "slot": self.token_bits,
                "frame": c.frame_bits,
                "dirty": 1,
                "line_mask": self.line_mask,
            }
        )
        self.frame_owner = S(
            {
                "slot": self.token_bits,
                "frame": c.frame_bits,
                "in_use": 1,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
            }
        )
        self.usage = S(
            {
                "source": code_shape(PrefetchSource),
                "squeue": c.squeue_bits,
                "useful": 1,
                "useless": 1,
            }
        )
        self.frame_commit = S({"op": self.frame_op, "entry": self.frame_entry})
        #: Lines of a page that are poisoned from now on, or are so no more, a bit each.
        self.poisoned_lines = S(
            {
                "healed": 1,
                "source": code_shape(PoisonSource),
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "lines": c.page_lines,
            }
        )

        #: Cold tier (design §5). `index` of a command id is the miss id of a READ and `misses` + w
        #: of write-back w; `line` and `lines` are DRAM lines. `line_mask` counts in a WRITE command
        #: and in the completion of a READ.
        self.cold_id = S({"index": (c.misses + c.write_backs - 1).bit_length(), "attempt": 1})
        self.cold_command = S(
            {
                "op": code_shape(ColdOp),
                "id": self.cold_id,
                "lba": (c.page_words * c.cold_slot_sectors - 1).bit_length(),
                "line": c.dram_line_bits,
                "lines": (max(c.frame_lines)).bit_length(),
                "line_mask": self.line_mask,
            }
        )
        self.cold_completion = S(
            {"id": self.cold_id, "status": code_shape(ColdStatus), "line_mask": self.line_mask}
        )

        #: Miss buffer ↔ scheduler, evictor ↔ scheduler. `token` is the evictor's own and comes
        #: back.
        self.fetch = S(
            {
                "miss": c.miss_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "frame": c.frame_bits,
                "demand": 1,
            }
        )
        self.fetched = S({"miss": c.miss_bits, "failed": 1, "line_mask": self.line_mask})
        self.write_back = S(
            {
                "token": c.write_back_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "frame": c.frame_bits,
                "line_mask": self.line_mask,
            }
        )
        self.written_back = S({"token": c.write_back_bits, "failed": 1})

        #: How a page is stored: with a frame and a host line of it, the line's place follows.
        self.stored = S(
            {
                "used_lines": c.half_line_bits + 1,
                "k_only": 1,
                "format_k": code_shape(Format),
                "format_v": code_shape(Format),
            }
        )
        #: Memory answered with an error: DRAM line `offset` of a frame, and how the page there is
        #: stored. `spoils`: something written is lost, so the line's host lines are to be poisoned.
        self.memory_error = S(
            {"frame": c.frame_bits, "offset": c.offset_bits, "spoils": 1, "stored": self.stored}
        )
        #: The same as the frame table executes it: `lines` has payload or scale in that DRAM line.
        self.frame_error = S(
            {
                "frame": c.frame_bits,
                "offset": c.offset_bits,
                "spoils": 1,
                "lines": c.page_lines,
            }
        )

        #: Where a host line is stored. `base` is the frame's first DRAM line; offsets count from
        #: it. The host line is the half or quarter `part` of DRAM line `offset`; where it is
        #: `scaled`, its scale is byte `scale_byte` of DRAM line `scale_offset`.
        place = {
            "base": c.dram_line_bits,
            "offset": c.offset_bits,
            "part": 2,
            "scaled": 1,
            "scale_offset": c.offset_bits,
            "scale_byte": 6,
            "format": code_shape(Format),
        }
        self.place = S(place)

        #: Data path input, executed in order.
        self.data_op = S(
            {
                "kind": code_shape(DataOp),
                "answer": code_shape(Answer),
                "frame": c.frame_bits,
                **place,
                "stored": self.stored,
                "host_type": 1,
                # never-written line: partial write merges into zeros, READ answers them
                "partial": 1,
                "fresh": 1,
                # answer carries poison; READ: it does, and no data, for its line does
                "poison": 1,
                # ANSWER frees the slot too
                "has_write": 1,
                "write_slot": c.write_slot_bits,
                "token": self.token_bits,  # FLUSH: echoed by `flushed`
                "origin": self.origin,
            }
        )

        #: 64 bytes for the write store; `byte_enable` is all ones for a full write.
        self.write_data = S(
            {"slot": c.write_slot_bits, "data": LINE_BITS, "byte_enable": LINE_BYTES}
        )

        #: A frame to be flushed, or that is, and its requester's name for that.
        self.flush = S({"frame": c.frame_bits, "token": self.token_bits})

        #: What the data path answers; `data` is zero but for Answer.DATA.
        self.answer = S(
            {"answer": code_shape(Answer), "poison": 1, "data": LINE_BITS, "origin": self.origin}
        )

        #: `step` is the low byte of the session's.
        self.score_event = S(
            {
                "kind": code_shape(ScoreEvent),
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "gap": STEP_BITS,
                "mass": SCORE_BITS,
                "step": 8,
                "slot": 4,
                "scan": self.page_word,
            }
        )

        #: A score as it is written back (or, for SCAN, as it was read).
        self.score_commit = S(
            {
                "kind": code_shape(ScoreEvent),
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "score": SCORE_BITS,
                "profile": PROFILE_BITS + EPOCH_BITS,
            }
        )

        #: An event for the log; `code` is kelp_spec.metadata.Event.
        self.event = S(
            {
                "code": code_shape(Event),
                "ld_id": LD_ID_BITS,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                # a tag, a number of a hint line, … of 16 bits at most, or a frame
                "argument": min(EVENT_ARGUMENT_BITS, max(16, c.frame_bits)),
            }
        )

        #: An access to the hint window (`hint`), the SELECT region (`select`) or the register
        #: window; `offset` is in lines.
        self.window_access = S(
            {
                "hint": 1,
                **({"select": 1} if c.select else {}),
                "write": 1,
                "offset": max((REGISTER_BYTES // 64 - 1).bit_length(), select_offset_bits(c)),
                "byte_enable": LINE_BYTES,
                "data": LINE_BITS,
                "ld_id": LD_ID_BITS,
                "tag": TAG_BITS,
                "poison": 1,
            }
        )
        #: The same as the registers see it.
        self.register_access = S(
            {name: field.shape for name, field in self.window_access if name != "hint"}
        )
        #: Answer to an access: a read's line, or a write's Cmp.
        self.window_answer = S(
            {"write": 1, "tag": TAG_BITS, "ld_id": LD_ID_BITS, "data": LINE_BITS}
        )
        #: A hint line on its way to the absorber; `broken` marks a partial or poisoned write.
        self.hint_line = S({"data": LINE_BITS, "ld_id": LD_ID_BITS, "broken": 1})

        self.session = S(
            {
                "open": 1,
                "closing": 1,
                "ld_id": LD_ID_BITS,
                "host_type": 1,
                "used_queues": c.queue_bits + 1,
                "used_lines": c.half_line_bits + 1,
                "k_only": 1,
                "used_pages": c.page_bits + 1,
                "kv_heads": c.queue_bits + 1,
                "step": STEP_BITS,
            }
        )

        #: A demand line request that was served, for the phase detector.
        self.phase_request = S({"session": c.session_bits, "write": 1})

        per_source = len(PrefetchSource) - 1
        #: The prefetcher's counts of one cycle, a bit for each source (code − 1). `dropped` has one
        #: such word for each DropReason.
        self.prefetch_pulses = S(
            {
                "issued": per_source,
                "useful": per_source,
                "late": per_source,
                "useless": per_source,
                "dropped": data.ArrayLayout(per_source, len(DropReason)),
            }
        )

        #: Values of the control registers that other blocks read; `pool_limit` as it will be in the
        #: next cycle.
        self.settings = S(
            {
                "low_water": 16,
                "high_water": 16,
                "reserve": 16,
                "cold_retries": 4,
                "cold_timeout": 32,
                "starve_limit": 32,
                "prefetch_enable": per_source,
                "pool_limit": data.ArrayLayout(24, len(POOLS)),
            }
        )

        #: Per-queue configuration (written by registers and the OPEN walk). `tables`: with policy
        #: `kelp`, pages are worth what the tables of choices say.
        self.queue_config = S(
            {
                "alpha": 9,
                "mass_shift": 4,
                "score_source": code_shape(ScoreSource),
                "tau_m": 16,
                "tau_sh": 5,
                "idle_m": 16,
                "idle_sh": 5,
                "window": 6,
                "policy": code_shape(Policy),
                "format_k": code_shape(Format),
                "format_v": code_shape(Format),
                "pool": POOL_BITS,
                "budget": c.dram_line_bits,
            }
            | ({"tables": 1} if c.select_tables else {})
        )

        self.config_write = S({"squeue": c.squeue_bits, "queue_config": self.queue_config})
        self.scanned = S(
            {
                "page": c.page_bits,
                "slot": 4,
                "eligible": 1,
                "last_step": STEP_BITS,
                "score": SCORE_BITS,
                "finished": 1,
            }
        )


class PageValues(wiring.Signature):
    """Eviction engine → tables of choices (docs/select_tables.md). `value` of `page` of
    `squeue`, what the page is worth at least, in the cycle after."""

    def __init__(self, config: Config):
        address = {"squeue": Out(config.squeue_bits), "page": Out(config.page_bits)}
        super().__init__(address | {"value": In(SCORE_BITS)})


class DroppedPages(wiring.Signature):
    """Prefetcher → choice of pages. Queues of which a candidate will not be fetched, one each a
    cycle: `judged`, of a hint that is outside its session, switched off or throttled; `crowded`,
    of any for which the FIFO had no place. What M3 refuses, its results say."""

    def __init__(self, config: Config):
        queue = stream.Signature(config.squeue_bits, always_ready=True)
        super().__init__({"judged": Out(queue), "crowded": Out(queue)})


class ResidentLines(wiring.Signature):
    """Registers → eviction engine. `lines`: DRAM lines that the resident pages of `squeue` take; 0
    until they are counted for it, which is when `known` is high."""

    def __init__(self, config: Config):
        super().__init__({"squeue": Out(config.squeue_bits), "lines": In(32), "known": In(1)})
