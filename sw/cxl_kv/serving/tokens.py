# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Who may connect: tokens in files that their owner alone may read.

The server's file is TOML. A tenant's token names the tenant and its limits; the LD-ID of the first
tenant is 1, of the next 2, and so on, where the server starts with it: one that it reads later
(:meth:`cxl_kv.serving.server.Server.renew`) leaves who is known its LD-ID, and gives the others
free ones. The token of `metrics` reads every metric::

    [metrics]
    token = "…"

    [tenants.alice]
    token = "…"
    clients = 64             # connections at once; 256
    sessions = 4             # open at once; as many as the device has
    budget_bytes = 1048576   # DRAM of each queue; as `kelp serve --budget` says
    idle_seconds = 600       # without a request; 3600

A client's file holds its token alone. A token is never an argument, never in a URL and never in a
log; it is compared in constant time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ..arguments import short

__all__ = ["METRICS", "Grant", "TokenError", "Tokens", "add", "read_token"]

METRICS = "metrics"  #: name of the grant that reads every metric and is no tenant
TENANTS = 15  #: LD-IDs that are not the control plane's
_SHORTEST, _LONGEST = 32, 256
_YEAR = 31_536_000  #: seconds
_LARGEST = 1 << 20  #: characters of a file
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


class TokenError(ValueError):
    """A token file is refused; the message names the file and what is wrong, never a token."""


@dataclass(frozen=True)
class Grant:
    """What a token allows.

    Attributes
    ----------
    name : str
        Of the tenant; METRICS for the token of the metrics.
    ld_id : int
        The tenant's; 0 for the token of the metrics, which opens no session.
    clients, sessions : int or None
        At once; None: no limit of the tenant's own.
    budget_bytes : int or None
        Of each queue; None: the server's.
    idle_seconds : float
        Without a request, after which a connection is closed.
    """

    name: str
    ld_id: int
    clients: int = 256
    sessions: int | None = None
    budget_bytes: int | None = None
    idle_seconds: float = 3600.0


class Tokens:
    """The grants of a server.

    Parameters
    ----------
    grants : dict
        Token → :class:`Grant`. The tokens themselves are not kept.
    """

    def __init__(self, grants: dict[str, Grant]):
        self._known = [(_digest(token), grant) for token, grant in grants.items()]

    @property
    def grants(self) -> list[Grant]:
        return [grant for _, grant in self._known]

    def changed(self, other: Tokens) -> set[str]:
        """Names whose token is another there, or that only one of the two has."""
        mine, theirs = ({g.name: digest for digest, g in t._known} for t in (self, other))
        return {name for name in mine | theirs if mine.get(name) != theirs.get(name)}

    def find(self, token: str) -> Grant | None:
        """The token's grant. How long that takes does not depend on the token."""
        digest, found = _digest(token), None
        for known, grant in self._known:
            if hmac.compare_digest(known, digest):
                found = grant
        return found

    @classmethod
    def load(cls, path: str | os.PathLike) -> Tokens:
        """The grants of a file; TokenError when it is refused."""
        text = _private(path)
        try:
            content = tomllib.loads(text)
        except (ValueError, RecursionError):  # of what is nested, or a number of any length, too
            raise TokenError(f"{path} is no TOML") from None
        if not set(content) <= {METRICS, "tenants"} or not content:
            raise TokenError(f"{path} is refused; legal: [{METRICS}] and [tenants.NAME]")
        grants: dict[str, Grant] = {}
        tenants = content.get("tenants", {})
        if not isinstance(tenants, dict) or len(tenants) > TENANTS:
            raise TokenError(f"tenants of {path} are refused; legal: {TENANTS} at most")
        for ld_id, (name, entry) in enumerate(tenants.items(), 1):
            if not _is_name(name) or name == METRICS:
                raise TokenError(f"tenant {name!r} of {path} is refused; legal: {_NAME.pattern}")
            _put(grants, path, name, ld_id, entry)
        if METRICS in content:
            _put(grants, path, METRICS, 0, content[METRICS])
        return cls(grants)


def _put(grants, path, name, ld_id, entry):
    limits = {"clients": int, "sessions": int, "budget_bytes": int, "idle_seconds": int}
    legal = ("token", *(limits if ld_id else ()))
    if not isinstance(entry, dict) or not set(entry) <= set(legal):
        raise TokenError(f"{name} of {path} is refused; legal: {', '.join(legal)}")
    token = entry.pop("token", None)
    if not isinstance(token, str) or not _is_token(token) or token in grants:
        raise TokenError(
            f"the token of {name} in {path} is refused; legal: {_SHORTEST} … {_LONGEST} printable "
            + "ASCII characters, each token once (kelp token makes them)"
        )
    for limit, value in entry.items():
        most = _YEAR if limit == "idle_seconds" else None
        if type(value) is not int or value < 1 or most is not None and value > most:
            legal = f"1 … {most}" if most else "1 and up"
            raise TokenError(
                f"{limit} = {short(value)} of {name} in {path} is refused; legal: {legal}"
            )
    grants[token] = Grant(name, ld_id, **entry)


def read_token(path: str | os.PathLike) -> str:
    """A client's token; TokenError when the file is refused."""
    token = _private(path).strip()
    if not _is_token(token):
        raise TokenError(f"{path} holds no token")
    return token


def add(
    tokens: str | os.PathLike, name: str, token_file: str | os.PathLike, **limits: int
) -> Grant:
    """Add a tenant (or METRICS) with a fresh token to the server's file, which is made where it is
    not there, and write its token into a new file. TokenError when either is refused."""
    # Of a link, what it points to is written anew, and not the link.
    tokens, token_file = Path(os.path.realpath(tokens)), Path(token_file)
    table = METRICS if name == METRICS else f"tenants.{name}"
    if not _is_name(name):
        raise TokenError(f"tenant {name!r} is refused; legal: {_NAME.pattern}")
    if token_file.resolve() == tokens:
        raise TokenError(f"{token_file} is refused; legal: another file than the server's")
    with _alone(tokens.parent):
        return _add(tokens, name, table, token_file, limits)


@contextlib.contextmanager
def _alone(folder: Path):
    """No other `add` of this folder meanwhile: each writes the whole file anew."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _add(tokens, name, table, token_file, limits) -> Grant:
    before = _private(tokens) if tokens.exists() else ""
    if name in {grant.name for grant in (Tokens.load(tokens).grants if before.strip() else ())}:
        raise TokenError(f"{tokens} has {name} already")
    token = secrets.token_urlsafe(32)
    lines = [f"[{table}]", f'token = "{token}"']
    lines += [f"{limit} = {value}" for limit, value in limits.items() if value is not None]
    after = (before.rstrip() + "\n\n" if before.strip() else "") + "\n".join(lines) + "\n"
    draft, made = tokens.with_name(f"{tokens.name}.{secrets.token_hex(4)}"), False
    try:
        _write_new(draft, after)
        grant = next(g for g in Tokens.load(draft).grants if g.name == name)
        _write_new(token_file, token + "\n")
        made = True
        os.replace(draft, tokens)
    except TokenError as error:
        raise TokenError(str(error).replace(str(draft), str(tokens))) from None
    except FileExistsError:
        raise TokenError(f"{token_file} is there already") from None
    finally:
        if made and draft.exists():  # the server knows nothing of it
            token_file.unlink()
        draft.unlink(missing_ok=True)
    return grant


def _write_new(path, text):
    """A file that was not there, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except BaseException:  # as on a full disk
        os.unlink(path)
        raise


def _private(path) -> str:
    """The text of a regular file that its owner alone may touch, and that is this user's."""
    try:
        # A FIFO without a writer would keep a plain open waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TokenError(f"{path} is refused; legal: a regular file")
            if status.st_mode & 0o077 or status.st_uid not in (os.getuid(), 0):
                raise TokenError(
                    f"{path} may be read by others than you; make it yours alone: chmod 600 {path}"
                )
            text = file.read(_LARGEST + 1)
            if len(text) > _LARGEST:
                raise TokenError(f"{path} is no token file: it has over {_LARGEST} characters")
            return text
    except OSError as error:
        raise TokenError(f"{path or repr('')}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenError(f"{path} is no text") from None


def _is_name(name: str) -> bool:
    """Not one that the server has for others."""
    reserved = name in ("admin", "unknown") or name.startswith("anonymous-")
    return bool(_NAME.fullmatch(name)) and not reserved


def _is_token(token: str) -> bool:
    return _SHORTEST <= len(token) <= _LONGEST and token.isascii() and token.isprintable()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
