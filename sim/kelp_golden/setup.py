# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a host programs before it uses a device: one description, as register writes for hardware
and as a configured golden endpoint.

A replay holds RTL and golden model against each other, so both must have been told the same thing;
:class:`Setup` is that thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kelp_spec.config import POOLS, Config
from kelp_spec.formats import Format, HostType
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.metadata import LAYER_RANGES, PrefetchSource, ScoreSource
from kelp_spec.policy import Policy
from kelp_spec.registers import RegisterMap, SessionCommand
from kelp_spec.scores import IDLE_BIAS, RECENCY_BIAS, idle_constants, recency_constants

from .endpoint import Endpoint, QueuePolicy
from .ops import QueueConfig, Session

__all__ = ["LayerFormats", "Setup"]

#: the session that is opened; its owner is LD-ID 0, which may also write control registers
SESSION = 0


@dataclass(frozen=True, kw_only=True)
class LayerFormats:
    """Stored formats of the layers up to `last_layer` that no earlier range holds."""

    last_layer: int
    k: Format
    v: Format


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One session on one device. A value outside its range is a ValueError that names it.

    `limits`, `low_water` and `high_water` are frames, `budgets` DRAM lines of one queue, by pool;
    `tau` is in steps, `alpha` in units of 1/256.
    """

    config: Config
    layers: int
    kv_heads: int
    used_lines: int
    used_pages: int
    formats: tuple[LayerFormats, ...]
    limits: tuple[int, ...]
    budgets: tuple[int, ...]
    low_water: int = 1
    high_water: int = 4
    tau: float = 1000
    alpha: int = 26
    source: ScoreSource = ScoreSource.OBSERVED
    mass_shift: int = 0
    window: int = 0
    prefetch: frozenset[PrefetchSource] = frozenset()
    policy: Policy = Policy.EMA
    tables: bool = False  #: policy 2, with policy `kelp` and `Config.select_tables`
    host_type: HostType = HostType.FP16

    def __post_init__(self) -> None:
        c = self.config

        def need(field: str, value, ok: bool, legal: str) -> None:
            if not ok:
                raise ValueError(
                    f"{field} = {value} is refused by configuration {c.name!r}; legal: {legal}"
                )

        need(
            "queues (layers · kv_heads)",
            self.queues,
            1 <= self.queues <= c.queues,
            f"1 … {c.queues}",
        )
        need(
            "used_lines",
            self.used_lines,
            1 <= self.used_lines <= c.half_lines,
            f"1 … {c.half_lines} lines of a page's K half",
        )
        need(
            "used_pages",
            self.used_pages,
            1 <= self.used_pages <= c.pages,
            f"1 … {c.pages} pages of a queue",
        )
        need(
            "formats",
            len(self.formats),
            1 <= len(self.formats) <= LAYER_RANGES,
            f"1 … {LAYER_RANGES} ranges of layers",
        )
        ends = [r.last_layer for r in self.formats]
        need(
            "formats",
            ends,
            ends == sorted(set(ends)) and ends[-1] >= self.layers - 1,
            f"ascending ranges that reach layer {self.layers - 1}",
        )
        for fmt in {fmt for r in self.formats for fmt in (r.k, r.v)} - set(c.formats):
            need(
                "format",
                Format(fmt).label,
                False,
                ", ".join(f.label for f in c.formats)
                + "; other formats need a configuration with codecs",
            )
        need("window", self.window, 0 <= self.window <= 63, "0 … 63 pages")
        need(
            "tables",
            self.tables,
            not self.tables or (self.policy == Policy.KELP and c.select_tables),
            "False without policy `kelp` and select_tables",
        )
        need("mass_shift", self.mass_shift, 0 <= self.mass_shift <= 15, "0 … 15")
        for pool, name in enumerate(POOLS):
            need(
                f"frames of pool {name}",
                self.limits[pool],
                0 <= self.limits[pool] <= c.frames[pool],
                f"0 … {c.frames[pool]}",
            )
            keep = max(self.low_water, self.high_water, 1)
            need(
                f"frames of pool {name}",
                self.limits[pool],
                pool not in self.pools or self.limits[pool] > keep,
                f"more than the {keep} that eviction keeps free",
            )
        recency_constants(self.tau)
        idle_constants(self.alpha)

    @property
    def queues(self) -> int:
        return self.layers * self.kv_heads

    def formats_of(self, queue: int) -> LayerFormats:
        return next(r for r in self.formats if queue // self.kv_heads <= r.last_layer)

    @cached_property
    def pools(self) -> tuple[int, ...]:
        """[queues]: the pool of each queue's pages."""
        frames = self.config.frame_lines
        found = {
            r: smallest_pool(frames, stored_lines(r.k, r.v, self.used_lines)) for r in self.formats
        }
        return tuple(found[self.formats_of(queue)] for queue in range(self.queues))

    def stored_lines(self, queue: int) -> int:
        """DRAM lines of one of the queue's pages."""
        formats = self.formats_of(queue)
        return stored_lines(formats.k, formats.v, self.used_lines)

    @property
    def descriptor(self) -> Session:
        """The session's registers as OPEN makes them."""
        return Session(
            host_type=int(self.host_type),
            used_queues=self.queues,
            used_lines=self.used_lines,
            used_pages=self.used_pages,
            kv_heads=self.kv_heads,
        )

    def endpoint(self) -> Endpoint:
        """A golden endpoint that has been told all this; its session is not open yet."""
        endpoint = Endpoint(self.config)
        endpoint.tracker.set_limits(self.limits)
        endpoint.tracker.low_water = self.low_water
        for queue, pool in enumerate(self.pools):
            formats = self.formats_of(queue)
            policy = QueuePolicy(
                alpha=self.alpha,
                mass_shift=self.mass_shift,
                source=int(self.source),
                tau=recency_constants(self.tau),
                idle=idle_constants(self.alpha),
                window=self.window,
                policy=int(self.policy) + self.tables,
                budget=self.budgets[pool],
            )
            endpoint.configure(
                SESSION * self.config.queues + queue,
                QueueConfig(int(formats.k), int(formats.v), pool),
                policy,
            )
        return endpoint

    def registers(self) -> list[tuple[str, int]]:
        """Register writes (name, value) in order, the OPEN among them; each takes effect before its
        Cmp."""
        by_name = RegisterMap(self.config).by_name
        prefix = f"s{SESSION}_"
        writes = []

        def write(name: str, **fields: int) -> None:
            register = by_name[name]
            layout = {f.name: f for f in register.fields}
            values = {f.name: f.reset for f in register.fields} | fields
            writes.append(
                (name, sum(value << layout[field].low for field, value in values.items()))
            )

        tau_m, tau_sh = recency_constants(self.tau)
        idle_m, idle_sh = idle_constants(self.alpha)
        write("low_water", value=self.low_water)
        write("high_water", value=self.high_water)
        write(
            "prefetch_enable",
            **{s.name.lower(): int(s in self.prefetch) for s in PrefetchSource if s},
        )
        for pool, limit in zip(POOLS, self.limits, strict=True):
            write(f"pool_limit_{pool}", value=limit)
        write(
            prefix + "shape",
            layers=self.layers,
            kv_heads=self.kv_heads,
            used_lines=self.used_lines,
            host_type=int(self.host_type),
            k_only=0,
            used_pages=self.used_pages,
            owner=0,
        )
        ranges = {}
        for r in range(LAYER_RANGES):
            formats = self.formats[min(r, len(self.formats) - 1)]
            ranges |= {
                f"last_layer_{r}": formats.last_layer,
                f"format_k_{r}": int(formats.k),
                f"format_v_{r}": int(formats.v),
            }
        write(prefix + "formats", **ranges)
        write(
            prefix + "policy",
            alpha=self.alpha,
            mass_shift=self.mass_shift,
            score_source=int(self.source),
            window=self.window,
            policy=int(self.policy),
            **({"tables": int(self.tables)} if self.config.select_tables else {}),
        )
        write(
            prefix + "recency",
            tau_m=tau_m,
            tau_sh=tau_sh + RECENCY_BIAS,
            idle_m=idle_m,
            idle_sh=idle_sh + IDLE_BIAS,
        )
        first = self.pools[0]
        write(prefix + "budget", value=self.budgets[first])
        write(prefix + "command", command=SessionCommand.OPEN)
        # Queues of another pool have another budget.
        for pool in sorted(set(self.pools) - {first}):
            write(prefix + "budget", value=self.budgets[pool])
            for queue in (q for q, own in enumerate(self.pools) if own == pool):
                write(prefix + "queue", queue=queue)
                write(prefix + "command", command=SessionCommand.APPLY_QUEUE)
        return writes

    def advance(self, steps: int = 1) -> tuple[str, int]:
        """The register write (name, value) that advances the session's step."""
        name = f"s{SESSION}_command"
        low = {f.name: f.low for f in RegisterMap(self.config).by_name[name].fields}
        return name, SessionCommand.ADVANCE << low["command"] | steps << low["argument"]
