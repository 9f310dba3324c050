# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Configurations that boards are built from. Plain Python."""

from __future__ import annotations

from kelp_spec.config import NAMED, Config, ConfigError

__all__ = ["BOARD_CONFIGS", "FIRST_LIGHT", "board_config"]

FIRST_LIGHT = "first_light"

#: `board_small`: the engines of `unit` with pages as the recordings have them; quick to simulate.
#: `ulx3s_select` chooses pages near memory, for one query head a KV head and keys of one line
#: (head_dim 32), in raw16 alone: 12 queues of 64 pages, each with a frame.
#: `ulx3s_block` is `ulx3s` with as many frames as block RAM holds, for an 85F without our memory
#: chip; `unit` the smallest of the named ones, `small` that with every slot at its least, `versa`
#: the same with raw16 alone, for the 45F. `first_light` has no endpoint
#: (kelp_fpga.boards.no_endpoint): clock, UART, bridge, registers and memory, to be routed in
#: minutes on any board.
BOARD_CONFIGS: dict[str, Config] = {
    c.name: c
    for c in (
        NAMED["ulx3s"],
        NAMED["unit"],
        NAMED["ulx3s"].with_(name="ulx3s_block", frames=(8, 8, 8, 8)),
        Config(
            name="board_small",
            sessions=1,
            queues=16,
            pages=32,
            half_lines=16,
            frames=(64, 64, 64, 64),
            misses=16,
            parked=32,
            write_backs=4,
            line_slots=16,
            scale_slots=8,
            write_slots=16,
            hot_pages=4,
            hint_lines=4,
            prefetch_slots=8,
            candidates=4,
            codec_lanes=8,
            wide_counters=False,
        ),
        NAMED["unit"].with_(
            name="small",
            sessions=1,
            parked=16,
            write_backs=2,
            line_slots=8,
            scale_slots=4,
            write_slots=8,
            hot_pages=2,
            hint_lines=2,
            prefetch_slots=4,
            candidates=2,
            codec_lanes=8,
            wide_counters=False,
        ),
        NAMED["unit"].with_(
            name="versa",
            sessions=1,
            frames=(16, 4, 4, 4),
            parked=16,
            write_backs=2,
            line_slots=8,
            scale_slots=4,
            write_slots=8,
            hot_pages=2,
            hint_lines=2,
            prefetch_slots=4,
            candidates=2,
            codecs=False,
            wide_counters=False,
        ),
        Config(
            name="ulx3s_select",
            sessions=1,
            queues=12,
            pages=64,
            half_lines=16,
            frames=(768, 4, 4, 4),
            misses=16,
            parked=16,
            write_backs=2,
            line_slots=8,
            scale_slots=4,
            write_slots=8,
            hot_pages=2,
            hint_lines=2,
            prefetch_slots=4,
            candidates=2,
            codec_lanes=8,
            codecs=False,
            wide_counters=False,
            protect=False,
            wide_blocks=True,
            select=8,
            select_heads=1,
            select_lines=1,
            select_quota=6,
            select_lanes=1,
            select_groups=2,
            select_looks=16,
        ),
        NAMED["unit"].with_(name=FIRST_LIGHT, sessions=1),
    )
}


def board_config(name: str) -> Config:
    """The configuration called `name`; a ConfigError that lists the names otherwise."""
    if name not in BOARD_CONFIGS:
        raise ConfigError(
            f"configuration {name!r} is none for boards; known: {', '.join(BOARD_CONFIGS)}"
        )
    return BOARD_CONFIGS[name]
