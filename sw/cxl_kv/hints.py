# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A session's hints: attention masses, prefetch, pin, release, as hint lines (spec §6,
docs/hints.md).

A hint is advice: it never changes data, and one that is lost costs hit rate alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kelp_spec.address import AddressMap
from kelp_spec.hints import (
    SEQUENCE_BITS,
    HintError,
    HintKind,
    HintLine,
    mass_lines,
    pack,
    page_lines,
)

from .arguments import integer, listed, short, unmasked
from .errors import HintRefusedError, UnsupportedError
from .process import NotCopied

__all__ = ["Hints", "mass_codes"]

_MOST = 1.0000001  #: a share of 1, as sums of floats have it


def mass_codes(masses) -> list[int]:
    """Attention masses, fractions of 1, as UQ0.16: rounded to nearest, 1 becomes 65535.
    HintRefusedError outside 0 … 1."""
    masses = _floats("masses", masses).reshape(-1)
    if len(masses) and not (0 <= masses.min() and masses.max() <= _MOST):
        raise HintRefusedError(
            f"mass {masses[~(masses >= 0) | (masses > 1)][0]} is refused; legal: 0 … 1"
        )
    return np.minimum(np.rint(masses * 65536), 65535).astype(np.int64).tolist()


def _floats(name: str, values) -> np.ndarray:
    unmasked(name, values, error=HintRefusedError)
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "iufO":  # text, imaginary parts and flags are no numbers here
            raise TypeError
        return array.astype(np.float64)
    except (OverflowError, TypeError, ValueError):
        raise HintRefusedError(f"{name} = {short(values)} are refused; legal: numbers") from None


class Hints(NotCopied):
    """Sends one session's hint lines, numbered in the order of the calls. Thread-safe."""

    _uncopied = (
        "hints are of one session and are not copied or sent to another process; open the device "
        + "there by its URL, and a session on it"
    )

    def __init__(self, session):
        self._session = session
        self._base = AddressMap(session.device.config).hint_base
        self._sequence = 0

    def push_mass(
        self, layer: int, head: int, masses, *, first_page: int = 0, advance: bool = False
    ) -> None:
        """Attention mass that pages `first_page`, … of one queue received in this step; each is one
        step of the page's moving average, so what is pushed twice counts twice.

        Parameters
        ----------
        masses : array of float
            Fractions of the head's attention, 0 … 1, one a page; or ints, which are taken as UQ0.16
            codes.
        advance : bool
            The session's step advances after them.
        """
        array = np.asarray(unmasked("masses", masses, error=HintRefusedError))
        codes = array.reshape(-1).tolist() if array.dtype.kind in "iu" else mass_codes(masses)
        queue = self._queue(layer, head)
        last = self._session.device.config.pages - 1
        first_page = integer("first_page", first_page, 0, last, error=HintRefusedError)
        self._send(
            lambda sequence: mass_lines(
                session=self._session.number,
                queue=queue,
                first_page=first_page,
                masses=codes,
                sequence=sequence,
                advance=advance,
            )
        )

    def push_attention(
        self, layer: int, weights, *, first_position: int = 0, advance: bool = False
    ) -> None:
        """Attention weights of one layer's newest token(s): float[kv_heads, positions], each row a
        head's weights of the positions from `first_position` (the start of a page) on; a query
        group's rows are to be averaged first. Summed over pages and pushed."""
        weights = _floats("weights", weights)
        first_position = integer("first_position", first_position, 0, error=HintRefusedError)
        session = self._session
        tokens = session.page_tokens
        if weights.ndim != 2 or len(weights) != session.shape.kv_heads or first_position % tokens:
            legal = f"[{session.shape.kv_heads}, positions] from a multiple of {tokens}"
            raise HintRefusedError(
                f"weights of shape {list(weights.shape)} from position {first_position} are "
                + f"refused; legal: {legal}"
            )
        # Here, as some head's may be sent before another's are found to be no weights.
        legible = (weights >= 0) & (weights <= _MOST)
        if not legible.all():
            raise HintRefusedError(f"weight {weights[~legible][0]} is refused; legal: 0 … 1")
        pages = -(-weights.shape[1] // tokens)
        padded = np.zeros((len(weights), pages * tokens))
        padded[:, : weights.shape[1]] = weights
        masses = np.minimum(padded.reshape(len(weights), pages, tokens).sum(axis=2), 1.0)
        for head, row in enumerate(masses):
            self.push_mass(
                layer,
                head,
                row,
                first_page=first_position // tokens,
                advance=advance and head == len(masses) - 1,
            )

    def prefetch(self, layer: int, head: int, pages: Iterable[int]) -> None:
        """Pages of one queue to fetch from the cold tier (source ``hint`` must be on:
        `Device.configure`)."""
        self._pages(HintKind.PREFETCH, layer, head, pages)

    def pin(self, layer: int, head: int, pages: Iterable[int]) -> None:
        """Pages of one queue that must stay resident. Refused by the device, with event
        PIN_REFUSED, beyond pool limit − reserve. Pins do not add up: one :meth:`release` undoes
        any number of them."""
        self._pages(HintKind.PIN, layer, head, pages)

    def release(self, layer: int, head: int, pages: Iterable[int]) -> None:
        """Pages of one queue that may go again, pinned or not."""
        self._pages(HintKind.RELEASE, layer, head, pages)

    def advance(self) -> None:
        """The session's step advances by one, as a hint line of its own."""
        self.push_mass(0, 0, [], advance=True)

    # ----------------------------------------------------------------------------------------------
    def _pages(self, kind, layer, head, pages):
        pages = listed("pages", pages, "a list of pages", error=HintRefusedError)
        most = self._session.device.config.pages - 1
        pages = [integer("page", p, 0, most, error=HintRefusedError) for p in pages]
        queue = self._queue(layer, head)
        self._send(
            lambda sequence: page_lines(
                kind, session=self._session.number, queue=queue, pages=pages, sequence=sequence
            )
        )

    def _queue(self, layer, head):
        shape = self._session.shape
        layer = integer("layer", layer, 0, shape.layers - 1, error=HintRefusedError)
        head = integer("head", head, 0, shape.kv_heads - 1, error=HintRefusedError)
        return layer * shape.kv_heads + head

    def _send(self, make):
        session = self._session
        session._usable()
        session.device.transport.check()
        if not session.device.transport.hints:
            raise UnsupportedError(
                "this back end is plain memory and takes no hints; golden:, rtl: and a KELP "
                + "device do"
            )
        with session._calls:
            session._usable()  # else its number may be another's by now
            try:
                lines: list[HintLine] = list(make(self._sequence))
                rows = b"".join(pack(line, session.device.config) for line in lines)
            except HintError as error:
                raise HintRefusedError(str(error)) from None
            addresses = np.full(len(lines), self._base, np.uint64)
            session.device.transport.store(addresses, np.frombuffer(rows, np.uint8).reshape(-1, 64))
            self._sequence = (self._sequence + len(lines)) % (1 << SEQUENCE_BITS)
