# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Configurations as text: the name of one, and the fields that are to differ."""

from __future__ import annotations

import re
from dataclasses import fields
from urllib.parse import parse_qsl

from .config import Config, named
from .errors import ConfigError

__all__ = ["changed", "configuration", "options_of"]

_NAME = re.compile(r"[A-Za-z0-9._+,=()-]{1,100}")  #: it becomes part of the names of files


def configuration(text: str) -> Config:
    """`NAME` or `NAME?field=value&…`: a named configuration, with other values of its fields where
    they are said: whole numbers, 0 or 1 for a switch, `frames=64,16,16,16` and
    `pool_formats=raw16,fp8,int8,int4` of the pools in their order.

    Raises ConfigError, which names what is refused and what is legal.
    """
    name, _, query = text.partition("?")
    options = options_of(query, text)
    config = changed(named(name), options)
    if options:
        known = ", ".join(field.name for field in fields(Config))
        raise ConfigError(
            f"{', '.join(options)} in {text!r}: no field of a configuration; known: {known}"
        )
    return config


def options_of(query: str, text: str) -> dict[str, str]:
    """`name=value&…` as a dict. ConfigError, which names the `text` that it is of, where it is
    anything else or has a name twice."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(
            f"options {query!r} of {text!r} are refused; legal: name=value, with & between"
        ) from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigError(f"options {query!r} of {text!r} are refused; legal: each name once")
    return options


def changed(config: Config, options: dict[str, str]) -> Config:
    """`config` with those options that are fields of Config; they are taken out of `options`. Its
    name, which its digest depends on, says what was changed, unless the option `name` says another:
    that of a device which was built under a name of its own.

    Raises ConfigError, which names what is refused and what is legal.
    """
    called = options.pop("name", None)
    if called is not None and not _NAME.fullmatch(called):
        raise ConfigError(
            f"name = {_short(called)} is refused; legal: letters, digits and . _ - + , = ( )"
        )
    changes = {
        field.name: _value(field, options.pop(field.name))
        for field in fields(Config)
        if field.name in options
    }
    if called is not None:
        return config.with_(**changes, name=called)
    if not changes:
        return config
    # A name is part of the names of files.
    said = {
        name: "+".join(map(str, value)).replace("/", "-") if isinstance(value, tuple) else value
        for name, value in sorted(changes.items())
    }
    parts = ",".join(f"{name}={value}" for name, value in said.items())
    return config.with_(**changes, name=f"{config.name}({parts})")


def _value(field, text: str):
    if field.type == "bool":
        if text not in ("0", "1"):
            raise ConfigError(f"{field.name}={text} is refused; legal: 0, 1")
        return text == "1"
    if field.type == "str":
        return text
    if field.name == "pool_formats":
        return tuple(text.split(","))
    counts = field.name == "frames"
    try:
        return tuple(int(n) for n in text.split(",")) if counts else int(text)
    except ValueError:
        legal = "four counts with commas" if counts else "a number"
        raise ConfigError(f"{field.name} = {_short(text)} is refused; legal: {legal}") from None


def _short(text: str) -> str:
    said = repr(text)
    return said if len(said) <= 100 else "an object of str"
