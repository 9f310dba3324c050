# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a server logs: events with fields, on one line each, and not more of a kind than somebody
can read."""

from __future__ import annotations

import json
import logging
import time
import traceback

__all__ = ["JsonFormatter", "Journal", "where"]

_MOST = 10  #: lines of one event in a second


class Journal:
    """Logs events. What a client repeats is counted: beyond ten lines of one event in a second,
    the next line of it says in `suppressed` how many were left out.

    Parameters
    ----------
    logger : logging.Logger
        Each record has `event` and `fields` as attributes; its message is both as key=value.
    """

    def __init__(self, logger: logging.Logger):
        self._logger = logger
        self._seen: dict[str, list] = {}  # event → [start of its second, lines in it, left out]

    def info(self, event: str, **fields) -> None:
        self._say(logging.INFO, event, fields)

    def warning(self, event: str, **fields) -> None:
        self._say(logging.WARNING, event, fields)

    def error(self, event: str, **fields) -> None:
        self._say(logging.ERROR, event, fields)

    def _say(self, level, event, fields):
        now = time.monotonic()
        seen = self._seen.setdefault(event, [now, 0, 0])
        if now - seen[0] >= 1:
            seen[:2] = [now, 0]
        if seen[1] >= _MOST:
            seen[2] += 1
            return
        seen[1] += 1
        if seen[2]:
            fields, seen[2] = fields | {"suppressed": seen[2]}, 0
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
        self._logger.log(level, "%s %s", event, text, extra={"event": event, "fields": fields})


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
        }
        return json.dumps(head | getattr(record, "fields", {}))


def where(error: BaseException) -> str:
    """The innermost line that an error came from, as file:line."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
