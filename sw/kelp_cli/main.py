# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The ``kelp`` application: finds the subcommands, runs one, and turns expected failures into one
clear line.

A subcommand is a module of this package with a function ``register(app)`` that adds itself to the
:class:`typer.Typer` it is given; nothing else is needed, and no list is kept here. A module should
import Amaranth, NumPy, cocotb and matplotlib inside its functions, so that ``kelp --help`` stays
quick. What is the user's to put right is raised as :class:`~kelp_cli.output.UserError`.
"""

import errno
import importlib
import os
import pkgutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from cxl_kv.version import version
from kelp_hw.export.tools import ToolError, build_root
from kelp_spec.config import ConfigError

from .install import missing_package, ours
from .output import UserError, complain

__all__ = ["build_app", "main"]

# The order in which a newcomer meets them; any other command follows in alphabetical order.
_ORDER = ["doctor", "demo", "replay", "verilog", "config", "bench"]

# As a shell tells of what a signal ended: SIGINT, SIGPIPE, SIGTERM.
_INTERRUPTED = 130
_UNREAD = 141
_TERMINATED = 143

_HELP = """
KELP is a CXL memory endpoint, generated from Python, that understands LLM KV cache.

[bold]kelp doctor[/]          is everything installed?

[bold]kelp demo[/]            a recorded attention trace, RTL against golden model

[bold]kelp replay TRACE[/]    the same with any trace

[bold]kelp verilog -o DIR[/]  the Verilog of the endpoint

Every command explains itself with --help and exits non-zero when something is wrong.
"""


def build_app() -> typer.Typer:
    """The application with every subcommand of this package."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )

    def show_version(asked: bool) -> None:
        if asked:
            print(f"kelp {version()}")
            raise typer.Exit

    @app.callback()
    def root(
        _: Annotated[
            bool,
            typer.Option(
                "--version",
                callback=show_version,
                is_eager=True,
                help="Say which version is installed, and end.",
            ),
        ] = False,
    ) -> None:
        pass

    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    for name in sorted(
        names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)
    ):
        if name == "main":
            continue
        try:
            register = getattr(importlib.import_module(f"kelp_cli.{name}"), "register", None)
        except ModuleNotFoundError as error:
            # A broken environment must not take `kelp doctor` down with it.
            if ours(error):
                raise
            _register_broken(app, name, error)
            continue
        if register is not None:
            register(app)
    return app


def _register_broken(app: typer.Typer, name: str, error: ModuleNotFoundError) -> None:
    def broken() -> None:
        raise UserError(missing_package(error, f"kelp {name}"))

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help="(not available: see kelp doctor)", context_settings=settings)(broken)


def main() -> None:
    """Entry point of the ``kelp`` command. SIGTERM ends it as Ctrl-C does, so that neither workers
    nor files under way are left behind."""
    # The terminal may be set to ASCII or Latin-1; tables and units are UTF-8 either way.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    told: list[int] = []

    def terminate(number: int, _) -> None:
        told.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, terminate)
    try:
        _run(told)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _interrupted(told: list[int]) -> None:
    # What was being built is not used now, and Amaranth warns of that when it is dropped.
    warnings.simplefilter("ignore")
    complain("terminated" if told else "interrupted")
    sys.exit(_TERMINATED if told else _INTERRUPTED)


def _run(told: list[int]) -> None:
    """The application, and one line where it fails as can be expected; `told` has SIGTERM in it
    once that has come."""
    stdout = sys.stdout
    try:
        build_app()()
    except UserError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _interrupted(told)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # Typer has taken it, and says nothing
            _interrupted(told)
        if sys.stdout is not stdout:  # Typer puts another there when the reader has gone
            sys.exit(_UNREAD)
        raise
    except SystemError as error:
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            _interrupted(told)  # within compiled code, which makes another error of it
        raise
    except BrokenPipeError:
        # The reader (head, less) has gone: not an error, but nothing may be flushed to it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_UNREAD)
    except ModuleNotFoundError as error:
        if ours(error):
            raise
        complain(missing_package(error))
        sys.exit(1)
    except (ConfigError, ToolError) as error:
        complain(str(error))
        sys.exit(1)
    except OSError as error:
        line = _line_of(error)
        if line is None:
            raise
        complain(line)
        sys.exit(1)


def _line_of(error: OSError) -> str | None:
    """What to tell of it; None where that is not the user's to put right."""
    if _no_folder():  # first: a relative path that is named is there for whoever reads the line
        return "the current directory is gone; change to one that is there"
    if error.filename is not None:
        line = f"{error.filename}: {error.strerror}"
        root, missing = build_root(), error.errno == errno.ENOENT
        # What is only missing there is not to be looked for in another place.
        if Path(str(error.filename)).is_relative_to(root) and not (missing and root.is_dir()):
            line += "; KELP_BUILD=DIR names another place for what is built"
        return line
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):  # of what stdout goes to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"the output could not be written: {error.strerror}"
    return None


def _no_folder() -> bool:
    """Whether the current directory has been removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
