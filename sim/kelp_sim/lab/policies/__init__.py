# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The policies by id, and a user's own: ``my.py:Class`` names a class in a file, which needs a ``victim`` and no more (docs/lab.md)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from ..engine import Policy

__all__ = ["IDS", "load"]

_HOME = {
    "lru": "lru:Lru", "fifo": "fifo:Fifo", "clock": "clock:Clock", "lfu": "lfu:Lfu", "arc": "arc:Arc", "s3fifo": "s3fifo:S3Fifo",
    "sieve": "sieve:Sieve", "wtinylfu": "wtinylfu:WTinyLfu", "belady": "belady:Belady", "streamingllm": "streamingllm:StreamingLlm",
    "h2o": "h2o:H2O", "snapkv": "snapkv:SnapKv", "quest": "quest:Quest", "infinigen": "infinigen:InfiniGen", "freekv": "freekv:FreeKv",
    "speckv": "speckv:SpecKv", "plain": "plain:Plain", "ema": "ema:Ema", "kelp": "kelp:Kelp", "kelp-noprefetch": "kelp:KelpNoPrefetch",
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
        raise ValueError(f"policy {name!r}: {path} cannot be loaded: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ValueError(f"policy {name!r}: {path} has no class {attribute} derived from kelp_sim.lab.Policy")
    if found.id == "?":
        found.id = attribute.lower()
    return found
