# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Methods of Amaranth's classes replaced for a while (:class:`Replaced`)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

__all__ = ["Replaced"]


class Replaced:
    """A context within which methods are others. The last of those who are within it at once, in
    several threads, puts them back as they were.

    Parameters
    ----------
    methods : iterable of (class, name, function)
        The function makes the method that stands in from the one that it stands in for.
    """

    def __init__(self, methods: Iterable[tuple[type, str, Callable]]):
        self._methods = tuple(methods)
        self._lock, self._users, self._put_back = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self):
        with self._lock:
            if not self._users:
                for owner, name, made in self._methods:
                    self._replace(owner, name, made(getattr(owner, name)))
            self._users += 1

    def __exit__(self, *error):
        with self._lock:
            self._users -= 1
            if not self._users:
                self._put_back.close()

    def _replace(self, owner: type, name: str, by: Callable) -> None:
        if name in owner.__dict__:
            self._put_back.callback(setattr, owner, name, owner.__dict__[name])
        else:
            self._put_back.callback(delattr, owner, name)
        setattr(owner, name, by)
