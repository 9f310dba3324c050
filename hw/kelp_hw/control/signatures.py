# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Interfaces of the registers and between their blocks (spec §3, §9).

Payloads that cross rooms are in `kelp_hw.layouts`. In each signature, `Out` is what the block named
first in its docstring drives.
"""

from __future__ import annotations

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS
from kelp_spec.registers import COUNTERS, QUEUE_COUNTERS, RegisterMap

from ..layouts import Layouts
from .register_file import register_layout

__all__ = [
    "Commands",
    "Configuration",
    "Counted",
    "SessionRegisters",
    "SessionStates",
    "queue_counter_names",
    "queue_event_layout",
    "status_layout",
]


def status_layout() -> data.StructLayout:
    """Endpoint → registers, for the status register: the endpoint is `ready`, is `quiescent`; a
    memory lost what cannot be rebuilt (`fatal`, which interrupts too)."""
    return data.StructLayout({"ready": 1, "quiescent": 1, "fatal": 1})


def queue_counter_names(config: Config) -> tuple[str, ...]:
    """The counters that are kept of each queue."""
    return tuple(
        name for name, _ in (QUEUE_COUNTERS if config.wide_counters else QUEUE_COUNTERS[:4])
    )


def queue_event_layout(config: Config) -> data.StructLayout:
    """Counters of one queue to bump by one: a bit per counter kept."""
    return data.StructLayout(
        {"squeue": config.squeue_bits, "bump": len(queue_counter_names(config))}
    )


class Counted(wiring.Signature):
    """Telemetry → registers. `pulses`: bit i, entry i of `COUNTERS` counts one more. `queue`:
    counters of a queue that do. `useful`: a page of this queue was prefetched and then demanded."""

    def __init__(self, config: Config):
        event = queue_event_layout(config)
        super().__init__(
            {
                "pulses": Out(len(COUNTERS)),
                "queue": Out(stream.Signature(event, always_ready=True)),
                "useful": Out(stream.Signature(config.squeue_bits, always_ready=True)),
            }
        )


class SessionRegisters(wiring.Signature):
    """Registers → session control: the registers of these names of each session."""

    def __init__(self, config: Config):
        by_name = RegisterMap(config).by_name
        super().__init__(
            {
                name: Out(data.ArrayLayout(register_layout(by_name[f"s0_{name}"]), config.sessions))
                for name in ("shape", "formats", "queue", "policy", "recency", "budget")
            }
        )


class Commands(wiring.Signature):
    """Registers → session control. `command`, taken while `busy` is low: the command register that
    was written, of `session`, by the host `ld_id`. `busy`: a command is carried out, of session
    `busy_session`. `refused`, bit s: the last command of session s was."""

    def __init__(self, config: Config):
        command = register_layout(RegisterMap(config).by_name["s0_command"])
        super().__init__(
            {
                "command": Out(stream.Signature(command, always_ready=True)),
                "session": Out(config.session_bits),
                "ld_id": Out(LD_ID_BITS),
                "busy": In(1),
                "busy_session": In(config.session_bits),
                "refused": In(config.sessions),
            }
        )


class SessionStates(wiring.Signature):
    """Registers → session control, as M3 has them. Bit s: session s is `open`, is `closing`."""

    def __init__(self, config: Config):
        super().__init__({"open": Out(config.sessions), "closing": Out(config.sessions)})


class Configuration(wiring.Signature):
    """Session control → registers. `write`: one queue's configuration, in a cycle with `ready`
    only; `opening`: the walk that it is of is that of an OPEN."""

    def __init__(self, config: Config):
        write = Layouts(config).config_write
        super().__init__(
            {
                "write": Out(stream.Signature(write, always_ready=True)),
                "ready": In(1),
                "opening": Out(1),
            }
        )
