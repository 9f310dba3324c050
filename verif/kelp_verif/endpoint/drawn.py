# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Configurations drawn at random: small ones of any legal sizes, since benches that know the named
ones alone know powers of two and pools of the usual formats."""

from __future__ import annotations

import numpy as np

from kelp_spec.config import POOLS, Config, ConfigError
from kelp_spec.formats import Format

__all__ = ["drawn"]


def drawn(seed: int, **fixed) -> Config:
    """The configuration of `seed`, the same on every machine; a third of them with `select`.
    `fixed` are fields that are not drawn.

    Raises
    ------
    ConfigError
        No configuration has these fields.
    """
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        sizes = _sizes(rng) | (_choice(rng) if rng.integers(3) == 0 else {})
        try:
            return Config(**{"name": f"drawn{seed}"} | sizes | fixed)
        except ConfigError as error:
            refused = error
    raise refused


def _power(rng, low, high):
    return 1 << int(rng.integers(low, high + 1))


def _sizes(rng) -> dict:
    return dict(
        sessions=int(rng.integers(1, 5)),
        queues=int(rng.integers(1, 9)),
        pages=_power(rng, 2, 7),
        half_lines=_power(rng, 2, 6),
        frames=tuple(int(n) for n in rng.integers(4, 20, len(POOLS))),
        misses=_power(rng, 4, 6),
        parked=_power(rng, 4, 7),
        write_backs=_power(rng, 1, 4),
        line_slots=_power(rng, 3, 6),
        scale_slots=_power(rng, 2, 5),
        write_slots=_power(rng, 3, 7),
        hot_pages=_power(rng, 1, 4),
        hint_lines=_power(rng, 1, 3),
        prefetch_slots=_power(rng, 2, 5),
        candidates=int(rng.integers(1, 17)),
        codec_lanes=_power(rng, 3, 5),
        codecs=bool(rng.integers(4)),
        wide_blocks=bool(rng.integers(2)),
        wide_counters=bool(rng.integers(2)),
        protect=bool(rng.integers(4)),
        pool_formats=_pools(rng) if rng.integers(2) else Config.pool_formats,
    )


def _pools(rng) -> tuple[str, ...]:
    """The first of raw16; of the others a page's halves in one format, or in two."""

    def one():
        return list(Format)[rng.integers(len(Format))].label

    others = (one() if rng.random() < 0.7 else f"{one()}/{one()}" for _ in POOLS[1:])
    return (Format.RAW16.label, *others)


def _choice(rng) -> dict:
    return dict(
        pages=_power(rng, 6, 7),
        select=_power(rng, 2, 4),
        select_heads=int(rng.integers(1, 5)),
        select_lines=_power(rng, 0, 3),
        select_quota=int(rng.integers(1, 9)),
        select_lanes=_power(rng, 0, 4),
        select_groups=_power(rng, 0, 3),
        select_looks=_power(rng, 2, 6),
        select_estimates=bool(rng.integers(2)),
        select_tables=bool(rng.integers(2)),
        select_port=bool(rng.integers(2)),
    )
