# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Finished work, one JSON object a line, each under a key: a run that was killed goes on from
there."""

import contextlib
import json
from pathlib import Path

__all__ = ["StoreError", "append", "entries"]

_BEGINS = b'{"key": '


class StoreError(ValueError):
    """The file is something else; the message names it and says what to do."""


def entries(store: Path | None) -> list[dict]:
    """What ``store`` holds, nothing where it is not there. A line that a kill has cut short does
    not count. :class:`StoreError` for another kind of file, to which nothing is to be added."""
    if store is None or not store.exists() or store.is_char_device():
        return []
    if not store.is_file():
        raise StoreError(f"{store} is no file; name another one with --store")
    with store.open("rb") as file:
        head = file.read(len(_BEGINS))
        if not _BEGINS.startswith(head):
            raise StoreError(
                f"{store} holds something else than finished rows; name another file with "
                + "--store, or remove it"
            )
        lines = (head + file.read()).decode(errors="replace").splitlines()
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [e for e in found if isinstance(e, dict) and isinstance(e.get("key"), str)]


def append(store: Path, entry: dict) -> None:
    """Add one, behind the rest of a line that was cut short, if there is one. Makes the
    directory. An OSError names the store, a full disk's too."""
    line = json.dumps(entry).encode() + b"\n"
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with store.open("ab+") as file:
            if store.is_file() and file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            file.write(line)
    except OSError as error:
        error.filename = error.filename or str(store)
        raise
