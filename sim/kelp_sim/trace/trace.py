# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Reads and checks a recorded attention trace (``attn_*.npz``, format ``kelp-attention-1``; see
docs/recordings.md).

:func:`read` returns a :class:`Trace` whose arrays have been checked against each other and against
the replay rules, so that nothing behind it checks again. Whatever is wrong with a file is a
:class:`TraceError` of one line that names the file and the fault.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

__all__ = [
    "FORMAT",
    "LINE_BYTES",
    "Trace",
    "TraceError",
    "distinct",
    "parsed",
    "printable",
    "read",
    "read_arrays",
    "read_meta",
    "read_tokens",
]

FORMAT = "kelp-attention-1"
LINE_BYTES = 64
_NUMBERS = (
    "layers",
    "q_heads",
    "kv_heads",
    "head_dim",
    "page_tokens",
    "prefill_tokens",
    "tokens",
    "steps",
)
_ALWAYS = ("meta", "mass", "reads")
# A damaged archive shows itself as any of these, depending on which byte is hit; MemoryError is a
# shape that cannot be meant.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    OSError,
    KeyError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    TypeError,
)


class TraceError(ValueError):
    """A trace cannot be used; the message is one line that names the file and what is wrong with
    it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """One recording. Queue = layer · kv_heads + head; page p starts with token p · page_tokens;
    step t decodes token prefill_tokens + t."""

    path: Path
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    prefill_tokens: int
    steps: int
    #: [layers, kv_heads, steps, pages] bool: the pages read, the newest among them
    reads: np.ndarray
    #: [layers, kv_heads, steps, pages] uint16: attention mass, UQ0.16
    mass: np.ndarray
    #: [layers, kv_heads, tokens, head_dim] float16: keys after RoPE
    k: np.ndarray | None = None
    v: np.ndarray | None = None  #: [layers, kv_heads, tokens, head_dim] float16
    #: [layers, q_heads, steps, head_dim] float16: the decode steps' queries
    q: np.ndarray | None = None
    #: of a part of a recording (:meth:`of_layers`): which of its layers is layer 0 here
    first_layer: int | None = None

    @property
    def name(self) -> str:
        if self.first_layer is None:
            return self.path.stem
        last = self.first_layer + self.layers - 1
        return f"{self.path.stem}_layers_{self.first_layer}_to_{last}"

    def of_layers(self, first: int, last: int) -> Trace:
        """Layers ``first`` … ``last`` of the recording, as layers 0, 1, …; :class:`TraceError`
        where it has no such layers."""
        if not 0 <= first <= last < self.layers:
            raise TraceError(
                f"{self.path}: layers {first}-{last} are refused; legal: FIRST-LAST, within 0-"
                + f"{self.layers - 1}"
            )
        part = slice(first, last + 1)
        arrays = {name: getattr(self, name) for name in ("reads", "mass", "k", "v", "q")}
        return replace(
            self,
            layers=last + 1 - first,
            first_layer=(self.first_layer or 0) + first,
            **{name: None if array is None else array[part] for name, array in arrays.items()},
        )

    @property
    def queues(self) -> int:
        return self.layers * self.kv_heads

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.steps

    @property
    def pages(self) -> int:
        """Pages of each queue when the last token is written."""
        return -(-self.tokens // self.page_tokens)

    @property
    def prefill_pages(self) -> int:
        return self.prefill_tokens // self.page_tokens

    @property
    def lines_per_token(self) -> int:
        """Whole lines that one token's key (or value) takes: element size 2 bytes."""
        return -(-self.head_dim * 2 // LINE_BYTES)

    @property
    def half_lines(self) -> int:
        """Lines of a page's K half (and of its V half)."""
        return self.page_tokens * self.lines_per_token

    @cached_property
    def lines(self) -> np.ndarray:
        """[queues, pages, 2, half_lines, 64] uint8: the lines as the host writes them; K 0, V 1;
        zeros pad a token. The recording's own bytes, or made up where it has none: normal deviates,
        the same for equal sizes."""
        padded = np.zeros(
            (2, self.queues, self.pages * self.page_tokens, self.lines_per_token * LINE_BYTES // 2),
            np.float16,
        )
        shape = self.queues, self.tokens, self.head_dim
        random = np.random.default_rng(1)
        for kv, half in enumerate((self.k, self.v)):
            if half is None:
                half = random.standard_normal(shape, np.float32)
            padded[kv, :, : self.tokens, : self.head_dim] = half.reshape(shape)
        lines = padded.view(np.uint8).reshape(
            2, self.queues, self.pages, self.half_lines, LINE_BYTES
        )
        return np.ascontiguousarray(lines.transpose(1, 2, 0, 3, 4))


def read(path: str | Path) -> Trace:
    """The recording at ``path``, checked; :class:`TraceError` otherwise."""
    path = Path(path)
    arrays = read_arrays(path, _ALWAYS, ("k", "v", "q"))
    numbers = _numbers(path, arrays["meta"])
    trace = Trace(
        path=path,
        reads=_unpack(path, arrays["reads"], numbers),
        mass=_checked(
            path,
            arrays,
            "mass",
            (*_queue_shape(numbers), numbers["steps"], _pages(numbers)),
            np.uint16,
        ),
        **_optional(path, arrays, numbers),
        **{field: numbers[field] for field in _NUMBERS if field != "tokens"},
    )
    _check_reads(trace)
    return trace


def distinct(paths: Iterable[str | Path]) -> None:
    """Refuse recordings, or texts, of one name: figures are kept by it. Raises
    :class:`TraceError`."""
    named: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.stem in named:
            raise TraceError(
                f"{named[path.stem]} and {path} are both named {path.stem!r}; give each "
                + "recording once, and a name of its own"
            )
        named[path.stem] = path


def read_tokens(trace: Trace) -> np.ndarray:
    """[tokens] int64: the recording's text, as its model's tokenizer numbers it;
    :class:`TraceError` where it keeps none, or something else."""
    found = read_arrays(trace.path, (), ("tokens",)).get("tokens")
    if found is None:
        raise TraceError(f"{trace.path}: keeps no tokens; record it again, or give the text")
    if found.shape != (trace.tokens,) or found.dtype.kind not in "iu" or found.min() < 0:
        raise TraceError(
            f"{trace.path}: tokens is {found.dtype}{list(found.shape)}; {trace.tokens} whole "
            + "numbers from 0 on are expected"
        )
    return found.astype(np.int64)


def read_arrays(
    path: Path, always: tuple[str, ...], also: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Arrays of the .npz at ``path``: all of ``always``, and those of ``also`` that it has;
    :class:`TraceError` otherwise."""
    if not path.exists():
        ours = path.parts[:2] == ("data", "traces")
        where = "; recordings are no part of the package: they lie in a checkout of KELP"
        raise TraceError(f"{path}: no such trace{where if ours else ''}")
    if not path.is_file():  # a device may have no end, and a zip file is read from it
        kind = "directory" if path.is_dir() else "device or a pipe"
        raise TraceError(f"{path}: is a {kind}, not a trace")
    try:
        with path.open("rb") as file:
            head = file.read(4)
            if not zipfile.is_zipfile(file):
                # The table of contents is at an archive's end: a zip that begins right and is none
                # has lost its tail.
                fault = (
                    "is truncated: its zip directory is missing"
                    if head == b"PK\3\4"
                    else "is not an .npz (zip) file"
                )
                raise TraceError(f"{path}: {fault}")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                missing = [key for key in always if key not in archive.files]
                if missing:
                    found = printable(", ".join(archive.files)) or "nothing"
                    raise TraceError(f"{path}: has no {', '.join(missing)}; found {found}")
                return {
                    key: _load(path, archive, key)
                    for key in (*always, *also)
                    if key in archive.files
                }
    except PermissionError:
        raise TraceError(f"{path}: may not be read (permission denied)") from None
    except TraceError:
        raise
    except _DAMAGE as error:
        raise TraceError(
            f"{path}: is damaged: {printable(str(error)) or type(error).__name__}"
        ) from error


def _load(path: Path, archive, key: str) -> np.ndarray:
    try:
        return archive[key]
    except _DAMAGE as error:
        raise TraceError(
            f"{path}: {key} is damaged: {printable(str(error)) or type(error).__name__}"
        ) from error


def printable(text: str) -> str:
    """What a damaged file says may be of any length and hold any character; an error is one
    line."""
    return "".join(c if c.isprintable() else " " for c in text)[:120]


def parsed(text: str | bytes):
    """What JSON says; ValueError of one line, also where it is nested beyond what Python reads."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:  # nor UTF-8, or a number without end, maybe
        raise ValueError(printable(str(error))) from None


def read_meta(path: Path, meta: np.ndarray, format_: str) -> dict:
    """What an array ``meta`` states, which is of ``format_``; :class:`TraceError` otherwise."""
    if meta.shape != () or meta.dtype.kind != "U":
        raise TraceError(f"{path}: meta is {meta.dtype}{list(meta.shape)}, not a string")
    try:
        stated = parsed(str(meta))
    except ValueError as error:
        raise TraceError(f"{path}: meta is not JSON: {error}") from None
    if not isinstance(stated, dict) or stated.get("format") != format_:
        found = repr(stated.get("format")) if isinstance(stated, dict) else type(stated).__name__
        raise TraceError(f"{path}: meta.format is {printable(found)}, not {format_!r}")
    return stated


def _numbers(path: Path, meta: np.ndarray) -> dict[str, int]:
    """The sizes that ``meta`` states, each checked by itself and with the others."""
    stated = read_meta(path, meta, FORMAT)
    for field in _NUMBERS:
        value = stated.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 24:
            raise TraceError(
                f"{path}: meta.{field} is {printable(repr(value))}; legal: 1 … {(1 << 24) - 1}"
            )
    numbers = {field: stated[field] for field in _NUMBERS}
    if numbers["prefill_tokens"] % numbers["page_tokens"]:
        raise TraceError(
            f"{path}: meta.prefill_tokens {numbers['prefill_tokens']} is not whole pages of "
            + f"{numbers['page_tokens']} tokens"
        )
    if numbers["q_heads"] % numbers["kv_heads"]:
        raise TraceError(
            f"{path}: meta.q_heads {numbers['q_heads']} is not whole groups of "
            + f"{numbers['kv_heads']} kv_heads"
        )
    if numbers["tokens"] != numbers["prefill_tokens"] + numbers["steps"]:
        parts = f"({numbers['prefill_tokens']} + {numbers['steps']})"
        raise TraceError(
            f"{path}: meta.tokens {numbers['tokens']} is not prefill_tokens + steps {parts}"
        )
    return numbers


def _queue_shape(numbers: dict[str, int]) -> tuple[int, int]:
    return numbers["layers"], numbers["kv_heads"]


def _pages(numbers: dict[str, int]) -> int:
    return -(-numbers["tokens"] // numbers["page_tokens"])


def _checked(
    path: Path, arrays: dict[str, np.ndarray], key: str, shape: tuple[int, ...], dtype
) -> np.ndarray:
    found = arrays[key]
    if found.shape != shape or found.dtype != dtype:
        raise TraceError(
            f"{path}: {key} is {found.dtype}{list(found.shape)}; meta asks for "
            + f"{np.dtype(dtype)}{list(shape)}"
        )
    return found


def _unpack(path: Path, packed: np.ndarray, numbers: dict[str, int]) -> np.ndarray:
    pages = _pages(numbers)
    packed = _checked(
        path,
        {"reads": packed},
        "reads",
        (*_queue_shape(numbers), numbers["steps"], -(-pages // 8)),
        np.uint8,
    )
    bits = np.unpackbits(packed, axis=-1, bitorder="little").view(bool)
    if bits[..., pages:].any():
        raise TraceError(f"{path}: reads has bits set beyond page {pages - 1}")
    return bits[..., :pages]


def _optional(
    path: Path, arrays: dict[str, np.ndarray], numbers: dict[str, int]
) -> dict[str, np.ndarray]:
    if ("k" in arrays) != ("v" in arrays):
        raise TraceError(f"{path}: has {'k but no v' if 'k' in arrays else 'v but no k'}")
    shapes = {
        "k": (*_queue_shape(numbers), numbers["tokens"], numbers["head_dim"]),
        "v": (*_queue_shape(numbers), numbers["tokens"], numbers["head_dim"]),
        "q": (numbers["layers"], numbers["q_heads"], numbers["steps"], numbers["head_dim"]),
    }
    return {
        key: _checked(path, arrays, key, shape, np.float16)
        for key, shape in shapes.items()
        if key in arrays
    }


def _check_reads(trace: Trace) -> None:
    """Every step reads the page being written and no page that does not exist yet."""
    steps = np.arange(trace.steps)
    newest = (trace.prefill_tokens + steps) // trace.page_tokens
    unread = ~trace.reads[:, :, steps, newest]
    future = (trace.reads & (np.arange(trace.pages) > newest[:, None])).any(axis=-1)
    for bad, fault in (
        (unread, "does not read the page being written"),
        (future, "reads a page that is not written yet"),
    ):
        if bad.any():
            layer, head, step = np.argwhere(bad)[0]
            raise TraceError(
                f"{trace.path}: reads: layer {layer}, head {head} {fault} at step {step}"
            )
