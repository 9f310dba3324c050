# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The blocks of the endpoint, to be synthesised, placed and routed alone."""

from __future__ import annotations

from importlib import import_module

from kelp_spec.config import Config

__all__ = ["BLOCKS", "block"]

#: Name → class, and its arguments beside the configuration. All that stands in
#: `kelp_hw.endpoint.Endpoint` but its `Skid`s, where `Config.protect` is left out, as on every
#: board; with it, the `FaultMonitor` stands there, too.
BLOCKS: dict[str, tuple[str, dict]] = {
    "data_path": ("kelp_hw.datapath.datapath:DataPath", {}),
    "tracker": ("kelp_hw.tracker.tracker:Tracker", {}),
    "eviction": ("kelp_hw.eviction.eviction:Eviction", {}),
    "registers": ("kelp_hw.control.registers:Registers", {"event_sources": 5}),
    "ema": ("kelp_hw.scores.ema:EmaEngine", {}),
    "cold_scheduler": ("kelp_hw.miss.cold_scheduler:ColdScheduler", {}),
    "miss_buffer": ("kelp_hw.miss.miss_buffer:MissBuffer", {}),
    "frame_table": ("kelp_hw.tracker.frame_table:FrameTable", {}),
    "error_lines": ("kelp_hw.tracker.error_lines:ErrorLines", {}),
    "prefetcher": ("kelp_hw.prefetch.prefetch:Prefetcher", {}),
    "hints": ("kelp_hw.host.hints:HintAbsorber", {}),
    "ingress": ("kelp_hw.host.ingress:Ingress", {}),
    "router": ("kelp_hw.host.windows:WindowRouter", {}),
    "egress": ("kelp_hw.host.egress:Egress", {}),
    "data_fifo": ("kelp_hw.endpoint:DataFifo", {}),
    "telemetry": ("kelp_hw.control.telemetry:Telemetry", {}),
    "phase": ("kelp_hw.control.phase:PhaseDetector", {}),
    "windows": ("kelp_hw.control.queue_config:QueueConfig", {"fields": ("window",)}),
}


def block(name: str, config: Config):
    """The block called `name`, as the endpoint has it; KeyError when there is none."""
    path, arguments = BLOCKS[name]
    module, _, cls = path.partition(":")
    return getattr(import_module(module), cls)(config=config, **arguments)
