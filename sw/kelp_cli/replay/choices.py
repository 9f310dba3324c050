# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the command line says of a replay, and the plan that follows from it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from ..output import UserError

__all__ = [
    "FORMATS",
    "Choices",
    "Source",
    "parse_formats",
    "parse_layers",
    "parse_policy",
    "parse_sources",
]

#: Stored formats where none are asked for: three of the five, one pool.
FORMATS = ("0-2:int8,int4", "3-:fp8_e4m3,int4")
#: Cycles; after twice as many the device gives a fetch up.
_MOST_LATENCY = 500_000


class Source(StrEnum):
    """Where scores come from."""

    OBSERVED = "observed"
    PUSHED = "pushed"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A recording and everything that may be chosen about its replay, as `kelp replay --help` has
    it."""

    trace: Path
    config: str = "trace"
    residency: float = 0.25
    accesses: int | None = None
    first_step: int = 0
    layers: str | None = None
    formats: Sequence[str] = FORMATS
    policy: str = "ema"
    tau: float = 1000.0
    alpha: int = 26
    source: Source = Source.OBSERVED
    mass_shift: int = 0
    budget: str = "equal"
    prefetch: str = "none"
    window: int = 1
    seed: int = 1
    tier_latency: int | None = None

    def plan(self):
        """The replay's plan; UserError where there can be none."""
        from kelp_sim.replay.plan import Excerpt, Prefetch, plan
        from kelp_sim.replay.waiting import TIER_LATENCY
        from kelp_sim.trace.trace import read
        from kelp_spec.config_text import configuration
        from kelp_spec.metadata import PrefetchSource

        if not 0 <= self.window <= 63:
            raise UserError(f"window = {self.window} is refused; legal: 0 … 63 pages each side")
        if not 0 <= self.seed < 1 << 32:
            raise UserError(f"--seed {self.seed} is refused; legal: 0 … {(1 << 32) - 1}")
        latency = TIER_LATENCY if self.tier_latency is None else self.tier_latency
        if not 0 <= latency <= _MOST_LATENCY:
            raise UserError(
                f"--tier-latency {latency} is refused; legal: 0 … {_MOST_LATENCY} cycles"
            )
        policy = parse_policy(self.policy)
        sources = parse_sources(self.prefetch)
        window = self.window if PrefetchSource.WINDOW in sources else 0
        try:
            chosen = plan(
                read(self.trace),
                configuration(self.config),
                residency=self.residency,
                excerpt=Excerpt(
                    accesses=self.accesses,
                    first_step=self.first_step,
                    layers=None if self.layers is None else parse_layers(self.layers),
                ),
                formats=parse_formats(self.formats),
                retention=self._retention(policy),
                prefetch=Prefetch(sources=sources, window=window),
                seed=self.seed,
            )
            return replace(chosen, tier_latency=latency)
        except ValueError as error:  # TraceError among them: each is one line
            raise UserError(str(error)) from None

    def _retention(self, policy):
        """Under `kelp` the device keeps one frame free (docs/policy.md)."""
        from kelp_sim.replay.plan import Retention
        from kelp_spec.metadata import ScoreSource
        from kelp_spec.policy import Policy

        if policy == Policy.KELP and self.source is Source.PUSHED:
            raise UserError("--source pushed is for --policy ema; kelp takes no pushed scores")
        water = dict(low_water=0, high_water=1) if policy == Policy.KELP else {}
        return Retention(
            policy=policy,
            tau=self.tau,
            alpha=self.alpha,
            source=ScoreSource[self.source.name],
            mass_shift=self.mass_shift,
            budget=self.budget,
            **water,
        )


def parse_layers(text: str) -> tuple[int, int]:
    """``FIRST-LAST``, or one layer."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None:
        raise UserError(f"--layers {text!r} is not FIRST-LAST")
    return int(match[1]), int(match[2] or match[1])


def parse_formats(texts) -> tuple:
    """``K,V`` or ``FORMAT`` for all layers; ``FIRST-LAST:K,V`` (LAST may be left out) for a range,
    ranges in order and without a gap."""
    from kelp_golden.setup import LayerFormats
    from kelp_spec.formats import Format

    found, next_layer = [], 0
    for text in texts:
        match = re.fullmatch(r"(?:(\d+)(-)?(\d+)?:)?([a-z0-9_]+)(?:,([a-z0-9_]+))?", text)
        if match is None or (match[3] and not match[2]):
            raise UserError(f"--formats {text!r} is not K,V or FIRST-LAST:K,V")
        first = int(match[1] or 0)
        last = (int(match[3]) if match[3] else 1023 if match[2] else first) if match[1] else 1023
        if first != next_layer or last < first:
            raise UserError(
                f"--formats {text!r}: ranges must follow one another; layer {next_layer} is next"
            )
        try:
            k = Format.named(match[4])
            v = Format.named(match[5] or match[4])
        except ValueError as error:
            raise UserError(f"--formats {text!r}: {error}") from None
        found.append(LayerFormats(last_layer=last, k=k, v=v))
        next_layer = last + 1
    return tuple(found)


def parse_policy(text: str):
    """A policy by its name or number."""
    from kelp_spec.policy import POLICIES, Policy

    if text in POLICIES:
        return POLICIES[text]
    if text in {str(int(policy)) for policy in Policy}:
        return Policy(int(text))
    raise UserError(
        f"--policy {text!r} is unknown; legal: "
        + f"{', '.join(f'{name} or {int(policy)}' for name, policy in POLICIES.items())}"
    )


def parse_sources(text: str) -> frozenset:
    """Prefetch sources by name, commas between: those that a recording can trigger; or none."""
    from kelp_spec.metadata import PrefetchSource

    legal = {
        s.name.lower(): s
        for s in (PrefetchSource.WINDOW, PrefetchSource.LAYER_AHEAD, PrefetchSource.PREVIOUS)
    }
    names = [name for name in text.split(",") if name]
    if names == ["none"]:
        return frozenset()
    for name in names:
        if name not in legal:
            raise UserError(f"--prefetch {name!r} is unknown; legal: {', '.join(legal)}, or none")
    return frozenset(legal[name] for name in names)
