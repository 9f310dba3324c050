# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A byte-level BPE tokenizer (``tokenizer.json`` of type BPE with the ByteLevel pre-tokenizer), in
plain Python; and the texts that quality is measured on."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sysconfig
from pathlib import Path

import numpy as np

from ..trace.trace import parsed, printable

__all__ = ["Tokenizer", "TokenizerError", "texts"]

# GPT-2's pieces: contractions, words, numbers, other signs, spaces. A trailing space belongs to
# what follows.
_PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


class TokenizerError(ValueError):
    """The file is no tokenizer of this kind."""


@functools.cache
def _letters() -> list[str]:
    """The printable character that stands for each byte."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [b for b in range(256) if b not in plain]
    names = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [names[b] for b in range(256)]


class Tokenizer:
    """``encode`` gives the ids that the model was trained on, up to ``highest``."""

    def __init__(self, path: Path):
        try:
            table = parsed(Path(path).read_text(encoding="utf-8"))
            model = table["model"]
            if model["type"] != "BPE" or table["pre_tokenizer"]["type"] != "ByteLevel":
                raise TokenizerError(f"{path}: a byte-level BPE tokenizer is expected")
            merges = [
                tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]
            ]
            self._ids: dict[str, int] = model["vocab"]
            tokens = {*_letters(), *("".join(merge) for merge in merges)}
            if lacks := sorted(tokens - self._ids.keys()):
                raise TokenizerError(f"{path}: its vocabulary lacks {printable(repr(lacks[0]))}")
            if any(type(self._ids[token]) is not int for token in tokens):
                raise TokenizerError(f"{path}: its vocabulary has other ids than numbers")
        except OSError as error:
            raise TokenizerError(f"{path}: {error.strerror}") from None
        except TokenizerError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = printable(str(error))
            raise TokenizerError(f"{path} is no tokenizer: {said}") from None
        self.highest = max(self._ids[token] for token in tokens)
        self._rank = {pair: rank for rank, pair in enumerate(merges)}
        self._piece = functools.lru_cache(maxsize=65536)(self._merged)

    def encode(self, text: str) -> list[int]:
        return [i for piece in _PIECES.findall(text) for i in self._piece(piece)]

    def _merged(self, piece: str) -> tuple[int, ...]:
        letters = _letters()
        parts = [letters[b] for b in piece.encode("utf-8")]
        while len(parts) > 1:
            pairs = list(zip(parts, parts[1:], strict=False))
            first = min(pairs, key=lambda pair: self._rank.get(pair, len(self._rank)))
            if first not in self._rank:
                break
            joined, at = [], 0
            while at < len(parts):
                if at + 1 < len(parts) and (parts[at], parts[at + 1]) == first:
                    joined.append(parts[at] + parts[at + 1])
                    at += 2
                else:
                    joined.append(parts[at])
                    at += 1
            parts = joined
        return tuple(self._ids[part] for part in parts)


def texts(tokenizer: Tokenizer, count: int, tokens: int) -> list[tuple[str, np.ndarray]]:
    """(file name, the first ``tokens`` ids) of ``count`` modules of the running Python's standard
    library that are long enough.

    The order is that of the names' hashes: arbitrary, the same everywhere, and more texts begin
    with the same ones.
    """
    library = Path(sysconfig.get_path("stdlib"))
    # A token is seldom more than eight bytes here: a shorter file may be too short.
    found = []
    for folder, folders, files in os.walk(library):
        folders[:] = [
            name
            for name in folders
            if name not in ("site-packages", "dist-packages", "lib2to3", "encodings", "__pycache__")
        ]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    chosen = []
    for path in sorted(
        found, key=lambda p: hashlib.sha256(p.relative_to(library).as_posix().encode()).digest()
    ):
        if len(chosen) < count and path.stat().st_size > 8 * tokens:
            ids = tokenizer.encode(
                path.read_text(encoding="utf-8", errors="replace")[: 16 * tokens]
            )[:tokens]
            if len(ids) == tokens:
                chosen.append((path.name, np.array(ids, np.int64)))
    if len(chosen) < count:
        raise TokenizerError(
            f"{count} texts are refused; {library} has {len(chosen)} files that are long "
            + f"enough for {tokens} tokens"
        )
    return chosen
