# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the compiled driver's host is to do, and what came of it: arrays, one entry a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kelp_spec.messages import M2SReq, M2SRwD

__all__ = [
    "PARTIAL",
    "POISON",
    "READ",
    "SETTLE",
    "SPEC_READ",
    "WRITE",
    "Program",
    "Response",
    "Result",
    "rwd",
]

_RWD = 0x10


def rwd(opcode: int) -> int:
    """`Program.opcode` of an opcode on M2S RwD; one on M2S Req stands for itself."""
    return _RWD | opcode


READ = int(M2SReq.MEM_RD)
SPEC_READ = int(M2SReq.MEM_SPEC_RD)  #: has no answer
WRITE = rwd(M2SRwD.MEM_WR)
PARTIAL = rwd(M2SRwD.MEM_WR_PTL)

POISON = 1  #: flag of a write: its data is poison
#: flag of a group's first request: wait until the endpoint is quiescent and nothing is in flight
SETTLE = 2


class Response(IntEnum):
    """How a request was answered."""

    NONE = 0  #: not (yet), or needs no answer
    DATA = 1
    POISON = 2
    NXM = 3
    CMP = 4


def _exactly(name: str, value, dtype) -> np.ndarray:
    """`value` as an array of `dtype`, which holds every one of its values."""
    given = np.asarray(value)
    if given.dtype == dtype:
        return given
    if given.dtype.kind not in "biu":  # integers, some of them above 2^63, make floats
        given = np.asarray(value, object)
    try:
        array = given.astype(dtype)
        good = not (array != given).any() and (given < 0).any() == (array < 0).any()
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        info = np.iinfo(dtype)
        raise ValueError(f"{name} is refused; legal: whole numbers, {info.min} … {info.max}")
    return array


class Program:
    """Requests in order. Every argument is one value for all or one for each.

    Parameters
    ----------
    opcode
        READ, WRITE, PARTIAL, SPEC_READ, any other `M2SReq`, or `rwd()` of any other `M2SRwD`.
    address
        Host address in bytes, a multiple of 64.
    ld_id
        The requester's LD-ID.
    group
        Numbers that change from one group to the next. A group is issued when every answer of the
        group before has come.
    data, data_index
        64-byte rows, uint8[rows, 64], and the row that each write sends (−1: zeros). Without
        `data_index` the writes take the rows in order.
    byte_enable
        Bit i says whether byte i of a write counts; of a PARTIAL.
    flags
        POISON | SETTLE.
    """

    def __init__(
        self,
        *,
        opcode,
        address,
        ld_id=0,
        group=0,
        data=None,
        data_index=None,
        byte_enable=(1 << 64) - 1,
        flags=0,
    ):
        count = np.broadcast(
            np.asarray(opcode),
            np.asarray(address),
            np.asarray(ld_id),
            np.asarray(group),
            np.asarray(flags),
        ).size

        def column(name, value, dtype):
            return np.ascontiguousarray(np.broadcast_to(_exactly(name, value, dtype), (count,)))

        self.opcode, self.ld_id, self.flags = (
            column("opcode", opcode, np.uint8),
            column("ld_id", ld_id, np.uint8),
            column("flags", flags, np.uint8),
        )
        self.address = column("address", address, np.uint64)
        self.group = column("group", group, np.int32)
        self.byte_enable = column("byte_enable", byte_enable, np.uint64)
        rows = _exactly("data", data if data is not None else np.zeros((0, 64)), np.uint8)
        if rows.shape[-1:] != (64,) and (rows.ndim != 1 or rows.size % 64):
            raise ValueError(f"data of shape {rows.shape} is refused; legal: (rows, 64)")
        self.data = np.ascontiguousarray(rows).reshape(-1, 64)
        writes = self.opcode & _RWD != 0
        if data_index is not None:
            self.data_index = column("data_index", data_index, np.int64)
        else:
            self.data_index = np.full(count, -1, np.int64)
            if data is not None:
                if len(self.data) != writes.sum():
                    raise ValueError(f"data: {len(self.data)} rows for {writes.sum()} writes")
                self.data_index[writes] = np.arange(len(self.data))
        if count and (self.data_index.max() >= len(self.data) or self.data_index.min() < -1):
            raise ValueError(f"data_index is refused; legal: -1 … {len(self.data) - 1}")
        if (self.address & np.uint64(63)).any() or (self.address >> np.uint64(52)).any():
            raise ValueError("address is refused; legal: multiples of 64 below 2^52")
        if (self.opcode >= 2 * _RWD).any():
            raise ValueError(f"opcode = {self.opcode.max():#x} is refused; legal: 0 … 0x1f")
        if (self.flags > POISON | SETTLE).any():
            raise ValueError(f"flags = {self.flags.max()} is refused; legal: POISON | SETTLE")
        if (self.ld_id > 15).any():
            raise ValueError(f"ld_id = {self.ld_id.max()} is refused; legal: 0 … 15")

    def __len__(self):
        return len(self.opcode)

    @classmethod
    def reads(cls, address, **columns) -> Program:
        return cls(opcode=READ, address=address, **columns)

    @classmethod
    def writes(cls, address, data, **columns) -> Program:
        return cls(opcode=WRITE, address=address, data=data, **columns)

    @classmethod
    def join(cls, programs: Sequence[Program]) -> Program:
        """The programs one after another, each a new group at least."""
        groups, base_group, base_row, indices, data = [], 0, 0, [], []
        for p in programs:
            if not len(p):
                continue
            groups.append(np.cumsum(np.r_[base_group, p.group[1:] != p.group[:-1]]))
            base_group = int(groups[-1][-1]) + 1
            indices.append(np.where(p.data_index < 0, -1, p.data_index + base_row))
            base_row += len(p.data)
            data.append(p.data)
        programs = [p for p in programs if len(p)]
        if not programs:
            return cls(opcode=[], address=[])
        return cls(
            **{
                name: np.concatenate([getattr(p, name) for p in programs])
                for name in ("opcode", "address", "ld_id", "byte_enable", "flags")
            },
            group=np.concatenate(groups),
            data=np.concatenate(data),
            data_index=np.concatenate(indices),
        )


@dataclass(frozen=True)
class Result:
    """What came of a program: per request, then of the run as a whole.

    Cycles are the endpoint's `now` at the transfer, extended to 64 bits; −1 where there was none.
    Orders count from 0. In one cycle RwD is accepted before Req.
    """

    response: np.ndarray  #: Response
    accept_cycle: np.ndarray
    response_cycle: np.ndarray
    accept_order: np.ndarray
    response_order: np.ndarray
    data: np.ndarray  #: uint8[n, 64], of reads
    missing: int  #: requests that are without the answer they need
    #: cycles `evaluated` and `simulated`, transfers of memory and flash; see `_Counts` in driver.py
    counts: dict[str, int]

    @property
    def latency(self) -> np.ndarray:
        """Cycles from acceptance to answer, −1 where there is none."""
        return np.where(self.response_cycle < 0, -1, self.response_cycle - self.accept_cycle)
