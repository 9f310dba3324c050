# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The data path as a function: a list of steps in, checked answers and cycle counts out.

A :class:`Traffic` collects steps and, beside them, what a plain model of stored lines says about
every answer; :func:`run` sends them through the compiled RTL and an AXI memory
(datapath_driver.cpp), compares, and returns the figures.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from amaranth.hdl import Shape

import kelp_rtl
from kelp_golden.codec import decode, encode
from kelp_hw.datapath.datapath import DataPath, axi_signature
from kelp_hw.export.packing import Packing
from kelp_hw.export.verilog import to_verilog
from kelp_hw.layouts import Layouts
from kelp_rtl.library import reachable
from kelp_rtl.verilator import QUICK_OPT, Cpp, verilate_model
from kelp_spec.config import Config
from kelp_spec.formats import FORMAT_BITS, LINE_BYTES, Format, HostType
from kelp_spec.geometry import StoredPage
from kelp_spec.metadata import Answer, DataOp
from kelp_verif.endpoint.inventory import inventory

from ..harness.covered import COVERAGE_ARGS, COVERAGE_OPT, Reached, covering

__all__ = [
    "ROUGH",
    "Flips",
    "Memory",
    "Page",
    "Run",
    "Traffic",
    "build",
    "code_words",
    "random_lines",
    "run",
]

_OP, _WAIT_FLUSHED, _WRITE_MEMORY, _READ_MEMORY, _PAUSE, _WAIT_ANSWERED, _WAIT_IDLE, _ERRORS = (
    range(8)
)
_ALL = (1 << 32) - 1  # memories, or code words of a row
_STEP = np.dtype(
    [
        ("kind", "<u4"),
        ("has_write", "<u4"),
        ("argument", "<u8"),
        ("op", "<u4", 8),
        ("data", "<u4", 16),
        ("byte_enable", "<u4", 2),
    ]
)
_OPTIONS = (
    "op_words",
    "answer_words",
    "write_slot_first",
    "write_slot_bits",
    "id_bits",
    "address_bits",
    "read_latency",
    "read_jitter",
    "write_latency",
    "write_jitter",
    "shuffle",
    "late",
    "i_valid",
    "o_ready",
    "ar_ready",
    "aw_ready",
    "w_ready",
    "flushed_ready",
    "r_valid",
    "b_valid",
    "write_delay",
    "error_every",
    "stall",
    "flips",
    "flip_period",
    "flip_memory",
    "flip_word",
    "kind_first",
    "frame_first",
    "frame_bits",
    "base_first",
    "base_bits",
    "offset_first",
    "scale_offset_first",
    "offset_bits",
    "scaled_first",
    "partial_first",
    "fresh_first",
    "poison_first",
    "stored_first",
    "stored_bits",
)
_FIGURES = (
    "cycles",
    "answers",
    "flushes",
    "reads",
    "writes",
    "most_reads",
    "most_slots",
    "reports",
    "first_accepted",
    "last_answered",
    "code",
    "where",
    "looks",
    "corrected",
    "fatal",
    "ended",
)


class _Options(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in _OPTIONS),
        ("seed", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
    ]


class _Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _FIGURES]


@dataclass(frozen=True)
class Memory:
    """The memory's manners. Latencies in cycles from AR to R and from AW and W to B; `…_ready` and
    `…_valid` are chances of 256."""

    read_latency: int = 64
    read_jitter: int = 0
    write_latency: int = 64
    write_jitter: int = 0
    shuffle: bool = False  #: answers in any order
    late: bool = False  #: reads and writes take place at any time within their latency
    i_valid: int = 256
    o_ready: int = 256
    ar_ready: int = 256
    aw_ready: int = 256
    w_ready: int = 256
    flushed_ready: int = 256
    r_valid: int = 256
    b_valid: int = 256
    write_delay: int = 0  #: cycles, at most, that an op follows its write data beyond four
    error_every: int = 0  #: lines whose number is a multiple of it are read with an error
    #: Every now and then a channel stands still for up to so many cycles.
    stall: int = 0

    def __post_init__(self):
        for name, value in asdict(self).items():
            most = 256 if name.endswith(("_ready", "_valid")) else (1 << 31) - 1
            if not 0 <= value <= most:
                raise ValueError(f"{name} = {value!r} is refused; legal: 0 … {most}")


@dataclass(frozen=True)
class Flips:
    """Bits that flip in the block's memories, every `period` cycles: one of each code word that was
    written meanwhile, or two neighbours."""

    bits: int
    memory: str | None = None  #: by name, as in `code_words`; else all of them
    word: int | None = None  #: of each row; else all of them
    period: int = 40


#: Everything at once.
ROUGH = Memory(
    read_latency=5,
    read_jitter=90,
    write_latency=3,
    write_jitter=90,
    shuffle=True,
    late=True,
    i_valid=200,
    o_ready=150,
    ar_ready=150,
    aw_ready=130,
    w_ready=130,
    flushed_ready=60,
    r_valid=180,
    b_valid=180,
    write_delay=6,
)


@dataclass(frozen=True)
class Page:
    """One frame and how its page is stored."""

    frame: int
    base: int
    stored: StoredPage
    host_type: HostType = HostType.FP16

    def format_of(self, kv: int) -> Format:
        return self.stored.format_v if kv else self.stored.format_k


def random_lines(rng: np.random.Generator, count: int) -> np.ndarray:
    """Host lines of any bits, half of them with exponents that both host types and every format can
    tell apart."""
    lines = rng.integers(0, 1 << 16, (count, 32), dtype=np.uint16)
    tame = rng.integers(0, 2, count).astype(bool)
    lines[tame] = (lines[tame] & 0x87FF) | 0x3800
    return lines


@dataclass(frozen=True)
class Run:
    """Figures of a run. Cycles: of each op's acceptance, each answer, AR, R, flush report; `memory`
    holds the lines that READ_MEMORY steps saw; `poisoned` counts the reads whose line the frame
    table knew to be poisoned, and those that memory's errors alone turned to poison."""

    figures: dict[str, int]
    accepted: np.ndarray
    answered: np.ndarray
    asked: np.ndarray
    returned: np.ndarray
    flushed: np.ndarray
    memory: list[bytes]
    poisoned: tuple[int, int]

    @property
    def rate(self) -> float:
        """Answers per cycle between the first and the last quarter of the answers, so that neither
        the first latency nor the drain counts."""
        n = len(self.answered)
        first, last = n // 8, n - n // 8 - 1
        return (last - first) / float(self.answered[last] - self.answered[first])


#: What an answer has of its op, beside the tag.
_ORIGIN = ("tag", "ld_id", "start", "missed")


def _origin(tag: int) -> tuple[int, ...]:
    """Of the op with that tag: all bits of all fields change from op to op."""
    mixed = tag * 0x9E3779B1 >> 3
    return tag, mixed & 0xF, mixed >> 4 & 0xFFFFFFFF, mixed >> 36 & 1


class Traffic:
    """Steps and expectations. Methods append; data are host lines as ``uint16[32]``."""

    def __init__(self, config: Config, seed: int):
        self.config = config
        self.seed = seed
        self.layouts = Layouts(self.config)
        self.packing = Packing(self.layouts.data_op)
        self.rng = np.random.default_rng(seed)
        self.steps: list[tuple] = []
        self.expected: list[tuple] = []  # (answer, poison, tag, key of the data or None)
        self.flushes: list[int] = []  # token | frame packed, in order
        self.stored: dict[tuple, tuple] = {}  # (frame, kv, line) → (payload, scale)
        self.checks: list[tuple] = []  # (what, frame's page) of READ_MEMORY steps
        self.reads: list[tuple] = []
        self._tag = 0
        self._hosts: dict[tuple, int] = {}  # (frame, kv, line) → its number, for the driver
        self._errors = False
        self.uncertain: list[bool] = []  # by answer: memory's errors may make it poison

    def page(
        self,
        frame: int,
        format_k: Format,
        format_v: Format | None = None,
        used_lines: int | None = None,
        host_type: HostType = HostType.FP16,
    ) -> Page:
        c = self.config
        pool = max(p for p in range(4) if c.pool_first_frame[p] <= frame)
        stored = StoredPage(
            format_k, format_k if format_v is None else format_v, used_lines or c.half_lines
        )
        assert stored.lines <= c.frame_lines[pool], f"frame {frame} of pool {pool} is too small"
        return Page(
            frame,
            c.pool_base_line[pool] + (frame - c.pool_first_frame[pool]) * c.frame_lines[pool],
            stored,
            host_type,
        )

    # - ops ----------------------------------------------------------------------------------------
    def _op(
        self,
        kind: DataOp,
        has_write: bool,
        owed: int,
        data=None,
        byte_enable: int = (1 << 64) - 1,
        host: int = 0,
        **fields,
    ) -> int:
        tag = self._tag
        self._tag = (self._tag + 1) & 0xFFFF
        self.uncertain += [self._errors] * owed
        origin = {
            f"origin.{name}": value for name, value in zip(_ORIGIN, _origin(tag), strict=True)
        }
        vector = self.packing.pack(kind=kind, has_write=has_write, **origin, **fields)
        words = np.frombuffer(vector.to_bytes(32, "little"), "<u4")
        line = (
            np.zeros(16, "<u4")
            if data is None
            else np.ascontiguousarray(data, np.uint16).view("<u4")
        )
        self.steps.append(
            (
                _OP,
                int(has_write),
                owed | host << 8,
                words,
                line,
                (byte_enable & 0xFFFFFFFF, byte_enable >> 32),
            )
        )
        return tag

    def _place(self, page: Page, kv: int, line: int) -> dict:
        at = page.stored.place(kv, line)
        fmt = page.format_of(kv)
        host = self._hosts.setdefault((page.frame, kv, line), len(self._hosts) + 1)
        return {
            "host": host,
            "frame": page.frame,
            "base": page.base,
            "offset": at.offset,
            "part": at.part,
            "scaled": int(fmt.scale_bytes > 0),
            "scale_offset": at.scale_offset,
            "scale_byte": at.scale_byte,
            "format": fmt,
            "stored.used_lines": page.stored.used_lines,
            "stored.format_k": page.stored.format_k,
            "stored.format_v": page.stored.format_v,
            "stored.k_only": page.frame & 1,  # is not looked at, and comes back with an error
            "host_type": page.host_type,
        }

    def read(self, page: Page, kv: int, line: int, *, error: bool = False) -> None:
        """`error`: memory will say so, and the answer is poison."""
        tag = self._op(DataOp.READ, False, 1, answer=Answer.DATA, **self._place(page, kv, line))
        known = (*self.stored[page.frame, kv, line], page.host_type, page.format_of(kv))
        self.expected.append(
            (Answer.POISON, 1, tag, None) if error else (Answer.DATA, 0, tag, known)
        )

    def write(
        self, page: Page, kv: int, line: int, data: np.ndarray, stored: tuple | None = None
    ) -> None:
        """`stored` is what the data encode to, when that has been computed in a batch."""
        tag = self._op(
            DataOp.WRITE, True, 1, data, answer=Answer.CMP, **self._place(page, kv, line)
        )
        self.expected.append((Answer.CMP, 0, tag, None))
        self.stored[page.frame, kv, line] = stored or self.encoded(page, kv, data[None])[0]

    def write_partial(
        self, page: Page, kv: int, line: int, data: np.ndarray, byte_enable: int
    ) -> None:
        key = page.frame, kv, line
        fresh = key not in self.stored
        tag = self._op(
            DataOp.WRITE,
            True,
            1,
            data,
            byte_enable,
            answer=Answer.CMP,
            partial=1,
            fresh=int(fresh),
            **self._place(page, kv, line),
        )
        self.expected.append((Answer.CMP, 0, tag, None))
        before = np.zeros(LINE_BYTES, np.uint8)
        if not fresh:
            payload, scale = self.stored[key]
            before = decode(
                payload[None], np.array([scale], np.uint16), page.host_type, page.format_of(kv)
            )[0].view(np.uint8)
        enabled = np.array([byte_enable >> n & 1 for n in range(LINE_BYTES)], bool)
        after = np.where(enabled, np.ascontiguousarray(data).view(np.uint8), before).view(np.uint16)
        self.stored[key] = self.encoded(page, kv, after[None])[0]

    def answer(self, answer: Answer, *, has_write: bool = False, poison: int = 0) -> None:
        """Without memory. Such an op need not be of any queue: its format is whatever it is."""
        data = random_lines(self.rng, 1)[0] if has_write else None
        fmt = self._tag % (1 << FORMAT_BITS)
        tag = self._op(DataOp.ANSWER, has_write, 1, data, answer=answer, poison=poison, format=fmt)
        self.expected.append((answer, poison, tag, None))

    def read_nothing(self, page: Page, kv: int, line: int, *, poison: bool, fresh: bool) -> None:
        """A line that memory is not asked for: poisoned, or never written, or both."""
        tag = self._op(
            DataOp.READ,
            False,
            1,
            answer=Answer.DATA,
            poison=int(poison),
            fresh=int(fresh),
            **self._place(page, kv, line),
        )
        self.expected.append(
            (Answer.POISON, 1, tag, None) if poison else (Answer.ZEROS, 0, tag, None)
        )

    def flush(self, page: Page, token: int) -> None:
        self._op(DataOp.FLUSH, False, 0, frame=page.frame, token=token, base=page.base)
        self.flushes.append(page.frame | token << self.config.frame_bits)

    def encoded(self, page: Page, kv: int, lines: np.ndarray) -> list[tuple]:
        payload, scale = encode(lines, page.host_type, page.format_of(kv))
        return list(zip(payload, (int(s) for s in scale), strict=True))

    # - waits, and the other master ----------------------------------------------------------------
    def _step(self, kind: int, argument: int = 0, data=None) -> None:
        line = np.zeros(16, "<u4") if data is None else np.frombuffer(data, "<u4")
        self.steps.append((kind, 0, argument, np.zeros(8, "<u4"), line, (0, 0)))

    def wait_flushed(self) -> None:
        self._step(_WAIT_FLUSHED, len(self.flushes))

    def wait_answered(self) -> None:
        self._step(_WAIT_ANSWERED)

    def wait_idle(self) -> None:
        self._step(_WAIT_IDLE)

    def errors(self, reads: int, writes: int) -> None:
        """From now on memory answers so many reads and writes of 256 with an error."""
        self._step(_ERRORS, reads | writes << 16)
        self._errors = bool(reads or writes)

    def pause(self, cycles: int) -> None:
        self._step(_PAUSE, cycles)

    def image(self, page: Page) -> tuple[bytearray, bytearray]:
        """The page's DRAM lines as the model knows them, and a mask of the bytes that it knows."""
        content, known = (
            bytearray(page.stored.lines * LINE_BYTES),
            bytearray(page.stored.lines * LINE_BYTES),
        )
        for (frame, kv, line), (payload, scale) in self.stored.items():
            if frame != page.frame:
                continue
            at = page.stored.place(kv, line)
            fmt = page.format_of(kv)
            for start, piece in (
                (at.offset * LINE_BYTES + at.part * fmt.payload_bytes, payload.tobytes()),
                (
                    at.scale_offset * LINE_BYTES + at.scale_byte,
                    scale.to_bytes(2, "little")[: fmt.scale_bytes],
                ),
            ):
                content[start : start + len(piece)] = piece
                known[start : start + len(piece)] = b"\1" * len(piece)
        return content, known

    def load(self, page: Page) -> None:
        """Another master fills the frame with a whole page."""
        for kv in range(2):
            lines = random_lines(self.rng, page.stored.used_lines)
            for line, stored in enumerate(self.encoded(page, kv, lines)):
                self.stored[page.frame, kv, line] = stored
        content, _ = self.image(page)
        for n in range(page.stored.lines):
            self._step(
                _WRITE_MEMORY, page.base + n, bytes(content[n * LINE_BYTES : (n + 1) * LINE_BYTES])
            )

    def check_memory(self, page: Page) -> None:
        """Another master reads the frame; it must see everything stored so far."""
        content, known = self.image(page)
        for n in range(page.stored.lines):
            self._step(_READ_MEMORY, page.base + n)
            part = slice(n * LINE_BYTES, (n + 1) * LINE_BYTES)
            self.checks.append((page.frame, n, bytes(content[part]), bytes(known[part])))

    def forget(self, page: Page) -> None:
        for key in [key for key in self.stored if key[0] == page.frame]:
            del self.stored[key]

    def expected_data(self, count: int) -> dict[int, bytes]:
        """Index of a DATA answer of the first `count` → its line; decoded in batches."""
        groups: dict[tuple, list[int]] = {}
        for n, (_, _, _, stored) in enumerate(self.expected[:count]):
            if stored is not None:
                groups.setdefault((stored[2], stored[3]), []).append(n)
        lines = {}
        for (host_type, fmt), members in groups.items():
            payload = np.stack([self.expected[n][3][0] for n in members])
            scale = np.array([self.expected[n][3][1] for n in members], np.uint16)
            lines |= dict(
                zip(
                    members,
                    (line.tobytes() for line in decode(payload, scale, host_type, fmt)),
                    strict=True,
                )
            )
        return lines


@functools.cache
def code_words(config: Config) -> dict[str, tuple[range, ...]]:
    """Memory of the data path → the code words of its rows. Of the two memories of a byte mask,
    which are one code word together, one."""
    cells = inventory(DataPath(config=config))
    return {name: cells[name].words for name in cells if not name.endswith(".cleared")}


def _ports(config: Config) -> str:
    """What the driver must know of the block when it is compiled."""
    memories = ", ".join(
        f'{{"{name}", nullptr, 0, 0, 0, {{{", ".join(map(str, _bounds(words)))}}}, {{}}}}'
        for name, words in code_words(config).items()
    )
    return (
        f"#define DATAPATH_PROTECTED {int(config.protect)}\n"
        + f"#define DATAPATH_MEMORIES {{{memories}}}\n"
    )


def _bounds(words: tuple[range, ...]) -> list[int]:
    return [*(word.start for word in words), words[-1].stop]


@functools.cache
def build(config: Config, waves: bool = False):
    """The compiled data path of a configuration; with `waves`, its runs leave ``datapath.vcd`` in
    the current directory."""
    driver = Path(__file__).with_name("datapath_driver.cpp")
    verilog = to_verilog(DataPath(config=config), checked=True)
    counts = covering()
    library = verilate_model(
        reachable(verilog),
        Cpp(
            sources=[driver],
            headers={"datapath_ports.h": _ports(config)},
            flags=["-DVM_COVERAGE=1"] if counts else (),
        ),
        name=f"datapath-{config.name}",
        sources=[Path(kelp_rtl.__file__).with_name("cpp") / "arrays.vlt"],
        opt=COVERAGE_OPT if counts else QUICK_OPT,
        waves=waves,
        verilator_args=COVERAGE_ARGS if counts else (),
    )
    compiled = ctypes.CDLL(str(library))
    function = compiled.datapath_run
    array = np.ctypeslib.ndpointer(np.uint32, flags="C_CONTIGUOUS")
    function.argtypes = [
        np.ctypeslib.ndpointer(_STEP, flags="C_CONTIGUOUS"),
        ctypes.c_uint64,
        ctypes.POINTER(_Options),
        *[array] * 9,
        ctypes.POINTER(_Figures),
    ]
    if not counts:
        return function
    reached = Reached("DataPath", __name__, library.parent / "top.v")
    compiled.datapath_coverage(os.fsencode(reached.data))

    def counted(*arguments):
        code = function(*arguments)
        reached.add()
        return code

    return counted


def run(
    traffic: Traffic,
    memory: Memory = Memory(),
    *,
    limit: int | None = None,
    waves: bool = False,
    flips: Flips | None = None,
) -> Run:
    """Send `traffic` through the RTL, check every answer, flush report and memory line, and return
    the figures. The block says of no word that it had a flipped bit, but with `flips`. Two of them
    must be `fatal`, which ends the run, and one `corrected`, which does where `flips` names a word:
    `figures["ended"]` says when, and what was answered by then is right.
    """
    function = build(traffic.config, waves)
    steps = np.array(traffic.steps, _STEP)
    ops = sum(step[0] == _OP for step in traffic.steps)
    answer_packing = Packing(traffic.layouts.answer)
    answer_words = -(-answer_packing.width // 32)
    axi = axi_signature(traffic.config)
    options = _Options(
        **{name: int(getattr(memory, name)) for name in Memory.__dataclass_fields__},
        op_words=8,
        answer_words=answer_words,
        write_slot_first=traffic.packing.fields["write_slot"][0],
        write_slot_bits=traffic.config.write_slot_bits,
        **_places(traffic),
        id_bits=axi.id_bits,
        address_bits=axi.address_bits,
        flips=flips.bits if flips else 0,
        flip_period=flips.period if flips else 1,
        flip_memory=_flipping(traffic.config, flips),
        flip_word=_ALL if not flips or flips.word is None else flips.word,
        seed=traffic.seed,
        limit=limit or 5000 + 200 * ops,
    )
    answers = np.zeros((ops, answer_words), np.uint32)
    accepted, answered, asked, returned, flushed, flushed_at, poisoned = (
        np.zeros(4 * ops + 16, np.uint32) for _ in range(7)
    )
    reads = np.zeros((len(traffic.checks) + 1, 16), np.uint32)
    figures = _Figures()
    code = function(
        steps,
        len(steps),
        ctypes.byref(options),
        answers.reshape(-1),
        accepted,
        answered,
        asked,
        returned,
        flushed,
        flushed_at,
        poisoned,
        reads.reshape(-1),
        ctypes.byref(figures),
    )
    what = {
        1: "out of time",
        2: "an assertion of the RTL failed",
        3: "the block broke a rule of its ports",
        4: "a memory is not what it should be",
    }.get(code)
    result = {name: int(getattr(figures, name)) for name in _FIGURES}
    assert code == 0, f"seed {traffic.seed}: {what}: {result}, {ops} ops"
    count = result["answers"]
    if result["ended"]:  # a word that an answer was made of may have been read with it
        count = int((answered[:count] + 2 <= result["ended"]).sum())
    else:
        came = count, result["flushes"], result["looks"]
        due = tuple(map(len, (traffic.expected, traffic.flushes, traffic.checks)))
        assert came == due, f"seed {traffic.seed}: answers, flush reports, lines: {came}, not {due}"
    found = _compare(traffic, answers[:count], poisoned, answer_packing)
    assert flushed[: result["flushes"]].tolist() == traffic.flushes[: result["flushes"]], (
        f"seed {traffic.seed}: wrong flush reports"
    )
    for n, (frame, line, content, known) in enumerate(traffic.checks[: result["looks"]]):
        seen = reads[n].tobytes()
        bad = [k for k in range(LINE_BYTES) if known[k] and seen[k] != content[k]]
        assert not bad, (
            f"seed {traffic.seed}: frame {frame}, DRAM line {line} in memory differs at bytes {bad}"
        )
    return Run(
        result,
        accepted[:ops],
        answered[: result["answers"]],
        asked[: result["reads"]],
        returned[: result["reads"]],
        flushed_at[: result["flushes"]],
        [row.tobytes() for row in reads[: len(traffic.checks)]],
        found,
    )


def _flipping(config: Config, flips: Flips | None) -> int:
    """The memory that flips, by number."""
    if not flips or flips.memory is None:
        return _ALL
    return [*code_words(config)].index(flips.memory)


def _places(traffic: Traffic) -> dict[str, int]:
    """Where the driver finds what it looks at in an op."""
    fields = traffic.packing.fields
    names = (
        "kind",
        "frame",
        "base",
        "offset",
        "scale_offset",
        "scaled",
        "partial",
        "fresh",
        "poison",
    )
    return {f"{name}_first": fields[name][0] for name in names} | {
        "stored_first": fields["stored.used_lines"][0],
        "stored_bits": Shape.cast(traffic.layouts.stored).width,
        "frame_bits": traffic.config.frame_bits,
        "base_bits": traffic.config.dram_line_bits,
        "offset_bits": traffic.config.offset_bits,
    }


def _compare(
    traffic: Traffic, answers: np.ndarray, poisoned: np.ndarray, packing: Packing
) -> tuple[int, int]:
    """Answers against what they must be. Poison is right where the frame table knew of it, and a
    read may become poison while memory errs; the numbers of both are returned."""
    table, alone = 0, 0
    data = traffic.expected_data(len(answers))
    for n, (kind, poison, tag, _) in enumerate(traffic.expected[: len(answers)]):
        got = packing.unpack(int.from_bytes(answers[n].tobytes(), "little"))
        seen = got["answer"], got["poison"], got["origin.tag"]
        origin = tuple(got[f"origin.{name}"] for name in _ORIGIN)
        assert origin[0] != tag or origin == _origin(tag), (
            f"seed {traffic.seed}: answer {n} has origin {origin}, not {_origin(tag)}"
        )
        if poisoned[n]:
            kind, poison = Answer.POISON, 1
            table += 1
        elif traffic.uncertain[n] and kind == Answer.DATA and got["answer"] == Answer.POISON:
            kind, poison = Answer.POISON, 1
            alone += 1
        assert seen == (kind, poison, tag), (
            f"seed {traffic.seed}: answer {n} is {seen}, not {(kind, poison, tag)}"
        )
        assert kind == Answer.DATA or not got["data"], (
            f"seed {traffic.seed}: answer {n} (tag {tag}) has data, and none is due"
        )
        if n in data and kind == Answer.DATA:
            line = got["data"].to_bytes(LINE_BYTES, "little")
            assert line == data[n], (
                f"seed {traffic.seed}: answer {n} (tag {tag}) has data {line.hex()}, not "
                + f"{data[n].hex()}"
            )
    return table, alone
