# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Everything that `cxl_kv` raises: one tree under :class:`CxlKvError`.

An error that concerns stored keys or values carries the place as attributes: `session`, `layer`,
`head`, `page` (None where it does not apply), and says them in its message. No call returns data
after one of these.
"""

from __future__ import annotations

__all__ = [
    "BusError",
    "ConnectionLostError",
    "CxlKvError",
    "DeviceFailedError",
    "DeviceFullError",
    "FlashError",
    "ForkedError",
    "HintRefusedError",
    "NotMappedError",
    "OpenRefusedError",
    "PoisonError",
    "SelectRefusedError",
    "SessionClosedError",
    "SessionLostError",
    "TransportError",
    "UnsupportedError",
]


class CxlKvError(Exception):
    """Base of all errors of this package."""


class _PlaceError(CxlKvError):
    """An error at a place in a session.

    `told`: names of what it tells besides its message, as attributes; integers, or None.
    """

    told: tuple[str, ...] = ("session", "layer", "head", "page")

    def __init__(
        self,
        message: str,
        *,
        session: int | None = None,
        layer: int | None = None,
        head: int | None = None,
        page: int | None = None,
    ):
        place = ", ".join(
            f"{name} {value}"
            for name, value in (
                ("session", session),
                ("layer", layer),
                ("head", head),
                ("page", page),
            )
            if value is not None
        )
        super().__init__(f"{place}: {message}" if place else message)
        self.message, self.session, self.layer, self.head, self.page = (
            message,
            session,
            layer,
            head,
            page,
        )

    def with_(self, *, message: str | None = None, **told):
        """The same error in other words, or with other things told (of its place, or what else it
        has)."""
        known = {name: getattr(self, name) for name in self.told} | told
        place = {name: known.pop(name) for name in _PlaceError.told}
        other = type(self)(self.message if message is None else message, **place)
        for name, value in known.items():
            setattr(other, name, value)
        return other

    def __reduce__(self):
        return _rebuild, (
            type(self),
            self.message,
            {name: getattr(self, name) for name in self.told},
        )


def _rebuild(kind, message, told):
    return kind(message).with_(**told)


class PoisonError(_PlaceError):
    """A line was answered with poison: its content is lost. Write the page anew, or recompute what
    it held."""


class FlashError(PoisonError):
    """Poison because the page could not be fetched from the cold tier (event FETCH_FAILED). The
    cold copy may have survived a passing fault."""


class BusError(PoisonError):
    """Mapped memory could not be reached (SIGBUS): truncated, unplugged or bad."""

    told = (*_PlaceError.told, "address")
    address: int | None = None  #: of the line, in the KV aperture


class DeviceFailedError(PoisonError):
    """A memory of the device lost what cannot be rebuilt (event FATAL): until it is reset each line
    is answered with poison, and nothing that is written is kept."""


class DeviceFullError(PoisonError):
    """A page found no frame within `starve_limit` (event STARVED), or there is no room for another
    session. Writes to that page are lost; a page of the cold tier that was only read stays there
    (`in_cold_tier`), and can be read when others were released."""

    told = (*_PlaceError.told, "in_cold_tier")
    in_cold_tier: bool = False  #: whether the page has lost nothing


class NotMappedError(_PlaceError):
    """A line outside the map: beyond the session's shape, or in a session that is another owner's
    (MemData-NXM)."""


class SessionClosedError(NotMappedError):
    """The session is closed."""


class SessionLostError(SessionClosedError):
    """The session is no longer this process's, though it never closed it: another process has
    opened it. What it held is lost, and so may be what the call stored."""


class OpenRefusedError(CxlKvError):
    """The device refused to open a session; the message names the descriptor."""


class HintRefusedError(CxlKvError, ValueError):
    """A hint was refused before it was sent; the message names the field and the legal range."""


class SelectRefusedError(CxlKvError, ValueError):
    """A choice was refused: before the device saw it, since it may hold more pages than a server's
    budget does, and the message says how many are legal; or by the device, and the message names
    the reason (`kelp_spec.select.Refusal`)."""


class UnsupportedError(CxlKvError):
    """This back end cannot do that; the message says which can."""


class TransportError(_PlaceError):
    """The way to the device failed (a broken frame, a bus error, a simulation that ended). What was
    in flight may or may not have happened; a read or write names the first page that it was
    about."""


class ForkedError(TransportError):
    """The handle was opened by another process, of which this one is a child. Open the device
    again."""


class ConnectionLostError(TransportError):
    """The server is gone or closed the connection; or an access to a golden device of this process,
    or to a board, was broken off, and the device is of no use any more."""
