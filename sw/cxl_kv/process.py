# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A handle belongs to the process that opened it. A child has a copy of the handle, and shares with
its parent what lies behind it: a socket's stream, a mapping's locks, a port."""

from __future__ import annotations

import os
import weakref

from .errors import ForkedError, UnsupportedError

__all__ = ["Home", "NotCopied", "let_go_in_children"]

#: Counts the forks between the first process and this one: a child in a namespace of its own may
#: have its parent's number.
_depth = 0
_holders: weakref.WeakSet = weakref.WeakSet()


def let_go_in_children(holder) -> None:
    """In every child by `os.fork`, call `holder.let_go()`, which closes the child's copy of a file:
    what ends with its last copy must end with the process that opened it."""
    _holders.add(holder)


def _forked():
    global _depth
    _depth += 1
    for holder in list(_holders):
        holder.let_go()


os.register_at_fork(after_in_child=_forked)


class Home:
    """The process that made this object."""

    __slots__ = ("_depth", "_pid")

    def __init__(self):
        self._depth, self._pid = _depth, os.getpid()

    def left(self) -> bool:
        """Whether this is another process, by `fork` of whatever kind."""
        return self._depth != _depth or self._pid != os.getpid()

    def check(self) -> None:
        """ForkedError in any other process. To be called before a lock is taken: in a child it may
        be held by a thread that does not exist there."""
        if self.left():
            raise ForkedError(
                f"this handle was opened by process {self._pid} and is of no use in a child of it; "
                + "open the device again by its URL"
            )


class NotCopied:
    """What a copy would share half of, and another process nothing: `copy.copy`, `copy.deepcopy`
    and `pickle` are an UnsupportedError of one line, `_uncopied`."""

    _uncopied: str  #: what it is, and what to do

    def __reduce__(self):
        raise UnsupportedError(self._uncopied)
