# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The policies by id, and a user's own: ``my.py:Class`` names a class in a file, which needs a
``victim`` and no more (docs/lab.md).

A policy's parameters are what its constructor takes by name with a number as default, and the
numbers of a dataclass that is a default.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from ..engine import Policy, Pool

__all__ = ["IDS", "arguments", "load", "maker", "parameters_of"]

_HOME = {
    "lru": "lru:Lru",
    "fifo": "fifo:Fifo",
    "clock": "clock:Clock",
    "lfu": "lfu:Lfu",
    "arc": "arc:Arc",
    "s3fifo": "s3fifo:S3Fifo",
    "sieve": "sieve:Sieve",
    "wtinylfu": "wtinylfu:WTinyLfu",
    "belady": "belady:Belady",
    "streamingllm": "streamingllm:StreamingLlm",
    "h2o": "h2o:H2O",
    "snapkv": "snapkv:SnapKv",
    "quest": "quest:Quest",
    "tworate": "two_rate:TwoRate",
    "infinigen": "infinigen:InfiniGen",
    "freekv": "freekv:FreeKv",
    "speckv": "speckv:SpecKv",
    "plain": "plain:Plain",
    "ema": "ema:Ema",
    "kelp": "kelp:Kelp",
}
IDS = tuple(_HOME)


def load(name: str) -> type[Policy]:
    """The class of an id or of ``FILE.py:Class``; ValueError says what is wrong with the name."""
    if name in _HOME:
        module, _, attribute = _HOME[name].partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    path, colon, attribute = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ValueError(f"policy {name!r} is refused; legal: {' '.join(IDS)}, or FILE.py:Class")
    if not Path(path).is_file():
        raise ValueError(f"policy {name!r}: no such file {path}")
    module_name = f"kelp_lab_user_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(
            f"policy {name!r}: {path} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ValueError(
            f"policy {name!r}: {path} has no class {attribute} derived from kelp_sim.lab.Policy"
        )
    if found.id == "?":
        found.id = attribute.lower()
    return found


def parameters_of(policy: type[Policy]) -> dict[str, int | float]:
    """Name → default of every parameter of ``policy``."""
    found = {}
    for name, default in _defaults(policy).items():
        values = (
            dataclasses.asdict(default) if dataclasses.is_dataclass(default) else {name: default}
        )
        found |= {
            n: v
            for n, v in values.items()
            if isinstance(v, (int, float)) and not isinstance(v, bool)
        }
    return found


def arguments(name: str, chosen: dict[str, float] | None = None) -> dict:
    """What the constructor of policy ``name`` takes by name, with ``chosen`` parameters for their
    defaults; ValueError where one is none or of another kind."""
    policy = load(name)
    legal, chosen = parameters_of(policy), chosen or {}
    for key, value in chosen.items():
        if key not in legal:
            raise ValueError(
                f"policy {name!r} has no parameter {key!r}; legal: "
                + f"{', '.join(f'{n} ({v})' for n, v in legal.items()) or 'none'}"
            )
        if isinstance(legal[key], int) and not isinstance(value, int):
            raise ValueError(f"policy {name!r}: {key} = {value} is refused; legal: whole numbers")
    found = {}
    for key, default in _defaults(policy).items():
        if dataclasses.is_dataclass(default):
            found[key] = dataclasses.replace(
                default,
                **{f.name: chosen[f.name] for f in dataclasses.fields(default) if f.name in chosen},
            )
        else:
            found[key] = chosen.get(key, default)
    return found


def maker(name: str, chosen: dict[str, float] | None = None) -> Callable[[Pool], Policy]:
    """Makes the policy for a pool, with ``chosen`` parameters."""
    return functools.partial(load(name), **arguments(name, chosen))


def _defaults(policy: type[Policy]) -> dict:
    taken = inspect.signature(policy).parameters.values()
    return {
        p.name: p.default
        for p in taken
        if isinstance(p.default, (int, float)) or dataclasses.is_dataclass(p.default)
    }
