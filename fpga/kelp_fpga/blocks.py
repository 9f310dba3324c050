# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The blocks of the endpoint, to be synthesised, placed and routed alone."""

from __future__ import annotations

from importlib import import_module

from kelp_spec.config import Config

__all__ = ["BLOCKS", "block"]

#: Name → class, and its arguments beside the configuration. All that stands in `kelp_hw.endpoint.Endpoint` but its `Skid`s.
BLOCKS: dict[str, tuple[str, dict]] = {
    "data_path": ("kelp_hw.datapath:DataPath", {}), "tracker": ("kelp_hw.tracker:Tracker", {}), "eviction": ("kelp_hw.eviction:Eviction", {}),
    "registers": ("kelp_hw.registers:Registers", {"event_sources": 4}), "ema": ("kelp_hw.ema:EmaEngine", {}),
    "cold_scheduler": ("kelp_hw.cold_scheduler:ColdScheduler", {}), "miss_buffer": ("kelp_hw.miss_buffer:MissBuffer", {}),
    "frame_table": ("kelp_hw.frame_table:FrameTable", {}), "prefetcher": ("kelp_hw.prefetch:Prefetcher", {}), "hints": ("kelp_hw.hints:HintAbsorber", {}),
    "ingress": ("kelp_hw.ingress:Ingress", {}), "egress": ("kelp_hw.egress:Egress", {}), "data_queue": ("kelp_hw.endpoint:DataQueue", {}),
    "telemetry": ("kelp_hw.telemetry:Telemetry", {}), "phase": ("kelp_hw.phase:PhaseDetector", {}),
    "windows": ("kelp_hw.queue_config:QueueConfig", {"fields": ("window",)}),
}


def block(name: str, config: Config):
    """The block called `name`, as the endpoint has it; KeyError when there is none."""
    path, arguments = BLOCKS[name]
    module, _, cls = path.partition(":")
    return getattr(import_module(module), cls)(config=config, **arguments)
