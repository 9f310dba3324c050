# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Refinement of a placement of nextpnr-ecp5 before routing, and the timing it predicts. Knows
nothing of the design that is placed (README.md)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["sources"]


def sources() -> list[str]:
    """The text of every module: with another one a refined netlist is another."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [file.read_text(encoding="utf-8") for file in files]
