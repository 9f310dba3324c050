# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Files that are there whole or not at all: what breaks off, on a full disk or by an interrupt,
leaves under its final name what was there before. And texts that are read whole."""

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["read_text", "whole_file", "write_whole"]

_NUMBERS = itertools.count()  # of files under way in this process: two may come to have one name
_SHOWN = 40  #: characters of a name that its file under way has: a name may be as long as names are


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[BinaryIO]:
    """A file to be written, which takes the name ``path`` at the end; its directory is made if need
    be. An OSError names ``path``."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe, a terminal: nothing to replace
        try:
            with path.open("wb") as file:
                yield file
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
        return
    target = path.resolve()  # of a link, what it points to
    temporary = target.with_name(f".{target.name[:_SHOWN]}.{os.getpid()}.{next(_NUMBERS)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and (error.filename in (None, str(temporary))):
            error.filename = str(path)
        raise


def read_text(path: Path | str) -> str:
    """The UTF-8 text of a file or a pipe. OSError for a device, too: /dev/zero has no end."""
    path = Path(path)
    if path.is_char_device():
        raise OSError(errno.EINVAL, "is a device; a file is expected", str(path))
    return path.read_text(encoding="utf-8")


def write_whole(path: Path | str, content: str | bytes) -> None:
    """``content`` into ``path``, text as UTF-8."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
