# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The command ``kelp linux``."""

from __future__ import annotations

import math
import time
from typing import Annotated

import typer
from rich.text import Text

from kelp_spec.config_text import configuration

from ..config import CONFIGURATION
from ..output import UserError, console

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    @app.command(name="linux")
    def boot(
        config: Annotated[
            str, typer.Option(help=f"{CONFIGURATION} One that has CXL.io.")
        ] = "unit_cxl",
        seconds: Annotated[float, typer.Option(help="For the boot, at most.")] = 300.0,
        perf: Annotated[
            bool, typer.Option(help="Build the kernel's CXL PMU driver and count with it.")
        ] = True,
        verbose: Annotated[bool, typer.Option(help="Print the whole console.")] = False,
    ) -> None:
        """Boots Debian's Linux kernel on the device's RTL.

        Fetches kernel, emulator and tools as Debian packages, through this machine's own apt, and
        unpacks them below build/linux: nothing is installed, no root is needed. The kernel finds
        the device, makes a region of it and a devdax, stores and loads KV through it, poisons
        lines, takes the events and tears it down. What it said is printed; build/linux/report.json
        has what was found. Where packages cannot be had, `bound` in it is null.
        """
        from .run import run

        if not 0 < seconds < math.inf:
            raise UserError(f"--seconds {seconds} is refused; legal: above 0")
        began = time.monotonic()

        def say(text: str) -> None:
            console.print(Text.assemble((f"{time.monotonic() - began:6.1f} s", "dim"), f"  {text}"))

        chosen = configuration(config)
        if not chosen.cxlio:
            raise UserError(f"configuration {config!r} has no CXL.io; unit_cxl has")
        folder, report = run(chosen, seconds, perf, verbose, say)
        path = folder / "report.json"
        if report["bound"] is None:
            console.print(f"not booted: {report['missing']}")
        console.print(f"report: {path}")
        if report["bound"] is False or report.get("failed"):
            raise typer.Exit(1)
