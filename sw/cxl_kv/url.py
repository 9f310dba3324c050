# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Device URLs: `golden:CONFIG`, `rtl:CONFIG`, `unix:/path`, `tcp://host:port`, `dax:/path`,
`cxl:/path`, `serial:/path`, with `?name=value&…` (docs/cxl_kv.md)."""

from __future__ import annotations

import os

from kelp_spec.config import Config, named
from kelp_spec.config_text import changed, options_of

from .arguments import instance, integer, nothing_left, short, switch, whole
from .core import Core
from .errors import UnsupportedError
from .registers import refuse_unlike

__all__ = ["config_of", "is_port", "make_core", "split"]

DEFAULT_CONFIG = "trace"
_LEGAL = (
    "golden:CONFIG, rtl:CONFIG, unix:/path, tcp://host:port, dax:/path, cxl:/path, serial:/path"
)
_HOW = "with pip, pip install 'kelp-cxl[rtl]'; in a checkout, make setup"


def split(url: str) -> tuple[str, str, dict[str, str]]:
    """(scheme, rest, options) of a URL; ValueError when it has no scheme."""
    scheme, colon, rest = instance("device", url, str, _LEGAL).partition(":")
    rest, _, query = rest.partition("?")
    pathless = scheme.lower() in ("dax", "cxl", "serial") and not rest
    if not colon or not scheme or pathless or "\0" in url or not _is_encodable(url):
        raise ValueError(f"device {short(url)} is refused; legal: {_LEGAL}")
    return scheme.lower(), rest, options_of(query, url)


def is_port(text: str) -> bool:
    """Whether it is a TCP port's number, 0 for any among them."""
    return text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 65536


def _is_encodable(text: str) -> bool:
    """Whether a path may be named so."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def config_of(name: str, options: dict[str, str]) -> Config:
    """The named configuration with the options that are fields of Config; they are taken out of
    `options` (`kelp_spec.config_text.changed`). ConfigError when it is refused."""
    return changed(named(name or DEFAULT_CONFIG), options)


def make_core(url: str) -> Core:
    """The device of a `golden:`, `rtl:`, `serial:`, `dax:` or `cxl:` URL, in this process, which is
    touched once the whole URL is known to be legal. The back end's package is imported here, and
    not before. TransportError where the device's registers say that it is another than the URL
    does, or of another version (docs/interface.md)."""
    core = _core_of(url)
    try:
        refuse_unlike(core, url)
    except BaseException:
        core.close()
        raise
    return core


def _core_of(url: str) -> Core:
    scheme, rest, options = split(url)
    if scheme == "golden":
        from .backends.golden import GoldenCore

        config = config_of(rest, options)
        nothing_left(url, options)
        return GoldenCore(config)
    if scheme == "rtl":
        lockstep = switch(options, "lockstep")
        seed = integer("seed", whole(options, "seed", 1), 0, (1 << 64) - 1)
        tier = whole(options, "tier_latency", 25_000)
        tier = integer("tier_latency", tier, 0, 500_000)  # the device gives up after twice that
        config = config_of(rest, options)
        try:
            from .backends.rtl import RtlCore

            nothing_left(url, options)
            return RtlCore(config, lockstep=lockstep, seed=seed, tier_latency=tier)
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                f"{url} needs the RTL simulation, and {error.name!r} is not installed: {_HOW}"
            ) from error
    if scheme == "serial":
        try:
            from .backends.serial import SerialCore
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                f"{url} needs {error.name!r}, which is not installed: {_HOW}"
            ) from error
        return SerialCore(rest, options)
    if scheme == "dax":
        from .backends.dax import DaxCore

        create = switch(options, "create")
        config = config_of(options.pop("config", ""), options)
        nothing_left(url, options)
        return DaxCore(rest, config, create=create)
    if scheme == "cxl":
        from .backends.cxl import CxlCore

        name = options.pop("config", "")
        config = config_of(name, options) if name else None
        nothing_left(url, options)
        return CxlCore.open(rest, config)
    if scheme in ("unix", "tcp"):
        raise ValueError(f"{url!r} is refused here: it names a server, and no device of its own")
    raise ValueError(
        f"scheme {scheme!r} of {url!r} is unknown; legal: golden, rtl, dax, cxl, unix, tcp, serial"
    )
