# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What every subcommand shares: the consoles, the error that becomes one line, the bar that shows
how far it is, and the JSON files."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kelp_spec.files import write_whole

__all__ = ["SCHEMA_VERSION", "UserError", "complain", "console", "progress_bar", "write_json"]

# Of every JSON object this command writes; raised when a field changes its meaning or goes away.
SCHEMA_VERSION = 1

# Tables and results go to stdout; progress and complaints go to stderr, so that a pipe sees results
# alone.
console = Console(highlight=False)


class UserError(Exception):
    """Something the user can put right: shown as one line without a traceback; ``exit_code`` is the
    process's."""

    def __init__(self, message: str, *, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


def complain(message: str) -> None:
    """One line on stderr, with what a tool said below it, if anything."""
    first, _, rest = message.partition("\n")
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)
    stderr.print(Text.assemble(("kelp: ", "bold red"), first))
    if rest:
        stderr.print(Text(rest, style="dim"))


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """On stderr, so that a pipe sees results alone."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        yield bar


def write_json(path: Path | str, kind: str, payload: dict) -> None:
    """Write ``payload`` with its ``schema`` (``kelp.<kind>``) and ``schema_version`` as UTF-8;
    ``-`` is stdout. Makes the directory."""
    text = json.dumps(
        {"schema": f"kelp.{kind}", "schema_version": SCHEMA_VERSION, **payload},
        indent=2,
        ensure_ascii=False,
        allow_nan=False,
    )
    if str(path) == "-":
        sys.stdout.write(text + "\n")
        return
    path = Path(path)
    write_whole(path, text + "\n")
