# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""KELP's host library: an LLM's KV cache behind a CXL memory endpoint, by 64-byte loads and stores.

::

    import cxl_kv, numpy as np

    with cxl_kv.open("golden:trace") as device:
        shape = cxl_kv.ModelShape(layers=2, kv_heads=4, head_dim=32, formats="int8")
        session = device.open_session(shape, max_tokens=256)
        session.write(0, k, v, start=0)            # float16 [kv_heads, tokens, head_dim]
        k, v = session.read(0, stop=64)

The same calls work on the golden model (`golden:`), the Verilated RTL (`rtl:`), a server (`unix:`,
`tcp://`), mapped plain memory (`dax:`) and a KELP device in this machine's memory (`cxl:`). NumPy
is all that this package needs; a back end's own package is imported when a URL asks for it.
docs/cxl_kv.md is the guide.
"""

from __future__ import annotations

from kelp_spec.formats import Format, HostType

from .batch import Batch, Completion
from .core import Status
from .device import Device
from .errors import (
    BusError,
    ConnectionLostError,
    CxlKvError,
    DeviceFailedError,
    DeviceFullError,
    FlashError,
    ForkedError,
    HintRefusedError,
    NotMappedError,
    OpenRefusedError,
    PoisonError,
    SelectRefusedError,
    SessionClosedError,
    SessionLostError,
    TransportError,
    UnsupportedError,
)
from .hints import Hints
from .layout import bf16_to_float32, float32_to_bf16
from .policy import Policy
from .select import Chosen
from .session import Session
from .shape import PRESETS, LayerFormats, ModelShape, preset
from .transport import LocalTransport, Transport

__all__ = [
    "Batch",
    "BusError",
    "Chosen",
    "Completion",
    "ConnectionLostError",
    "CxlKvError",
    "Device",
    "DeviceFailedError",
    "DeviceFullError",
    "FlashError",
    "ForkedError",
    "Format",
    "HintRefusedError",
    "Hints",
    "HostType",
    "LayerFormats",
    "ModelShape",
    "NotMappedError",
    "OpenRefusedError",
    "PRESETS",
    "PoisonError",
    "SelectRefusedError",
    "Policy",
    "Session",
    "SessionClosedError",
    "SessionLostError",
    "Status",
    "Transport",
    "TransportError",
    "UnsupportedError",
    "bf16_to_float32",
    "float32_to_bf16",
    "open",
    "preset",
]


def open(url: str) -> Device:
    """Open a device.

    Parameters
    ----------
    url : str
        ``golden:CONFIG``, ``rtl:CONFIG`` (both with fields of the configuration as options:
        ``golden:trace?sessions=8``; ``rtl:unit?lockstep=1``), ``unix:/path`` or ``tcp://host:port``
        of a running `kelp serve`, ``dax:/path?config=CONFIG``, ``cxl:/dev/dax0.0``,
        ``serial:/dev/ttyUSB0``.

    Raises
    ------
    ValueError, kelp_spec.config.ConfigError
        The URL is not understood; the message says what is legal.
    UnsupportedError
        The back end is not there.
    TransportError
        The server or the memory cannot be reached.
    """
    from .url import make_core, split

    scheme = split(url)[0]
    if scheme in ("unix", "tcp"):
        from .backends.remote import RemoteTransport

        return Device(RemoteTransport(url))
    return Device(LocalTransport(make_core(url)))
