# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Devices of every kind, on which the same calls are made, and what a caller sees of each."""

import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tenants import tenants

import cxl_kv
from cxl_kv.batch import Batch
from cxl_kv.blocks import BlockStore
from cxl_kv.device import Device
from cxl_kv.select import Chosen
from cxl_kv.serving.server import Server
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core

__all__ = ["World", "outcome", "seen"]


class World:
    """A device, and what a program has made on it."""

    def __init__(self, stack, url: str, *, served: str = ""):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.name, self.plain = f"{served} {url}", url.startswith("dax")
        self.tenant = served in ("unix", "tcp")
        self.core = make_core(url.format(folder=folder))
        if served:
            known = tenants(Path(folder), "alice")
            server = stack.enter_context(Server(self.core, tokens=known, fetch=False))
            address = server.listen(f"unix:{folder}/kelp.sock")
            self.admin = stack.enter_context(cxl_kv.open(address + "?admin=1"))
            if served == "tcp":
                address = server.listen("tcp://127.0.0.1:0") + f"?token_file={folder}/alice.token"
            self.handles = [self.admin] * 2
            if self.tenant:
                self.handles = [stack.enter_context(cxl_kv.open(address)) for _ in range(2)]
        else:
            self.admin = stack.enter_context(Device(LocalTransport(self.core)))
            self.handles = [self.admin] * 2
        self.sessions: dict[int, cxl_kv.Session] = {}
        self.stores: dict[int, BlockStore] = {}
        self.chosen: dict[int, Chosen] = {}

    def settle(self):
        """Nothing is under way; a simulation goes on only while it is spoken to."""
        if hasattr(self.core, "settle") and not self.admin.closed:
            self.core.settle()

    def events(self, *, split):
        """Of both handles: in their order where one of them has all sessions."""
        told = [e for device in dict.fromkeys(self.handles) for e in device.events()]
        hidden = ("number", "time", "ld_id")
        told = [tuple((k, v) for k, v in e.items() if k not in hidden) for e in told]
        return sorted(told) if split else told


def seen(value):
    """What a caller sees of a result, to be compared."""
    if isinstance(value, np.ndarray):
        flags = value.flags.writeable, value.flags.c_contiguous
        return "array", value.dtype.str, value.shape, flags, value.tobytes()
    if isinstance(value, Chosen):
        return {k: seen(v) for k, v in asdict(value).items() if k != "session"}
    if isinstance(value, cxl_kv.Completion):
        return value.state, value.completed, seen(value.results), seen(value.error)
    if isinstance(value, BaseException):
        named = ("message", "session", "layer", "head", "page")
        return type(value), str(value), [getattr(value, name, None) for name in named]
    if isinstance(value, dict):
        return {k: seen(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value), *map(seen, value)]
    if isinstance(value, cxl_kv.Session):
        return repr(value)
    if isinstance(value, Batch):
        return len(value)
    return type(value), value


def outcome(call, world):
    try:
        return "returned", seen(call(world))
    except Exception as error:
        return "raised", seen(error)
