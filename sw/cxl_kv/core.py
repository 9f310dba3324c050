# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A device in this process: what every back end implements, and how it answers.

A :class:`Core` takes 64-byte loads and stores on the address map of `kelp_spec.address`, and the
requester's LD-ID with each of them. `cxl_kv.transport` is a requester's way to it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from kelp_spec.config import Config
from kelp_spec.formats import Format

from .process import NotCopied

__all__ = ["ALL_BYTES", "Core", "Loaded", "Status", "nameable"]

ALL_BYTES = (1 << 64) - 1  #: byte enables of a whole line
_LAST_LINE = np.uint64((1 << 52) - 64)  #: that a CXL.mem message can name; no device maps it


def nameable(addresses: np.ndarray) -> np.ndarray:
    """uint64[n] as messages can name them: in place of what lies beyond 2^52 an address that is as
    little mapped."""
    return np.minimum(addresses, _LAST_LINE)


class Status(IntEnum):
    """How a load of one line was answered."""

    DATA = 0
    POISON = 1  #: the line's content is lost; its bytes read as zeros
    NOT_MAPPED = 2  #: outside the map, closed, or another owner's


class Loaded(NamedTuple):
    """Answers to a load: uint8[n, 64] and Status, uint8[n]."""

    lines: np.ndarray
    status: np.ndarray


class Core(NotCopied, ABC):
    """A device in this process. Its methods may be called under `lock` only; the lock is
    reentrant."""

    _uncopied = (
        "a device is of one process and is not copied or sent to another; open another by its URL"
    )

    config: Config
    hints: bool = True  #: whether hint lines and policies mean anything to it
    persistent: bool = False  #: whether its contents outlive the process

    def __init__(self):
        self.lock = threading.RLock()

    @property
    def formats(self) -> frozenset[Format]:
        """Stored formats that it has."""
        return frozenset(self.config.formats)

    @abstractmethod
    def load(self, addresses: np.ndarray, ld_id: int) -> Loaded:
        """Loads in any order: as :meth:`Transport.load`."""

    def load_spans(self, addresses: np.ndarray, counts: np.ndarray, ld_id: int):
        """As :meth:`Transport.load_spans`."""
        return None

    @abstractmethod
    def store(
        self, addresses: np.ndarray, lines: np.ndarray, byte_enable: np.ndarray | None, ld_id: int
    ) -> None:
        """Stores; those to hints and registers in order. Done when it returns."""

    def spec_read(self, addresses: np.ndarray, ld_id: int) -> None:
        """MemSpecRd of lines: prefetch candidates without an answer, so a core may ignore it."""

    def exclusive(self) -> AbstractContextManager:
        """Nobody else touches the device meanwhile."""
        return self.lock

    def view(self, offset: int, size: int, pages: np.ndarray | None = None) -> np.ndarray | None:
        """The device's own bytes, uint8[size], writable and live, from `offset` of the KV aperture
        on; None where there is no such mapping. They are of one session, and looked at within the
        pages alone that begin at `pages`, uint64[n], or within that of `offset`: of these, what was
        never written is zeros from now on."""
        return None

    def close(self) -> None:
        """Let go of what the core holds."""
