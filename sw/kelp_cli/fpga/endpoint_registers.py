# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Registers of the endpoint on a board, through their window in its address map."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..output import UserError

__all__ = ["read_registers", "write_register"]


def write_register(host, name: str, value: int) -> None:
    """One register; when this returns it has its value."""
    from kelp_spec.address import AddressMap
    from kelp_spec.registers import RegisterMap

    offset = RegisterMap(host.config).by_name[name].offset
    line = np.zeros(8, "<u8")
    line[offset % 64 // 8] = value
    host.write(
        [AddressMap(host.config).register_base + offset // 64 * 64],
        [line.tobytes()],
        [0xFF << offset % 64],
        ordered=True,
    )


def read_registers(host, names: Iterable[str]) -> list[int]:
    """Registers, line by line; UserError where the board refuses to show them."""
    from kelp_spec.address import AddressMap
    from kelp_spec.registers import RegisterMap

    by_name = RegisterMap(host.config).by_name
    offsets = [by_name[name].offset for name in names]
    lines = sorted({offset // 64 for offset in offsets})
    base = AddressMap(host.config).register_base
    data, _, nxm = host.read([base + 64 * line for line in lines])
    if nxm.any():
        raise UserError("the board refuses to show its registers")
    words = dict(zip(lines, data.view("<u8"), strict=True))
    return [int(words[offset // 64][offset % 64 // 8]) for offset in offsets]
