# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A session's policy parameters in an engineer's units, and the register values they become (spec
§5, §7)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES
from kelp_spec.metadata import ScoreSource
from kelp_spec.scores import IDLE_BIAS, RECENCY_BIAS, idle_constants, recency_constants

from .arguments import integer, real, short
from .errors import UnsupportedError

__all__ = ["Policy"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Parameters of a session's queues.

    Parameters
    ----------
    score : str or ScoreSource
        Where scores come from: ``"pushed"`` (hint lines), ``"observed"`` (accesses), ``"none"``.
    alpha : float
        Weight of the newest mass in the moving average, 1/256 … 1; rounded to 1/256.
    tau : float
        Recency time constant in steps, 1 … 65536.
    mass_shift : int
        Pushed masses are multiplied by 2^mass_shift, saturating; 0 … 15. With masses spread over n
        pages, log2(n) keeps them well above rounding.
    window : int
        Pages prefetched on either side of an access, 0 … 63 (source ``window`` must be on:
        `Device.configure`).
    switches : int
        Policy: 0 the plain formula, 1 `kelp` (docs/policy.md), 2 what choices near memory have
        taught, in a configuration with `select_tables` (docs/select_tables.md).
    budget_bytes : int
        DRAM that one queue may keep before it becomes the first to give frames back. 0: the queue
        with most frames gives.
    auto_step : int
        The step advances by itself every so many accesses; 0: only by `advance`.
    """

    score: ScoreSource | str = ScoreSource.OBSERVED
    alpha: float = 26 / 256
    tau: float = 1000.0
    mass_shift: int = 0
    window: int = 0
    switches: int = 0
    budget_bytes: int = 0
    auto_step: int = 0

    def __post_init__(self):
        if isinstance(self.score, str):
            try:
                object.__setattr__(self, "score", ScoreSource[self.score.upper()])
            except KeyError:
                raise ValueError(
                    f"score = {short(self.score)} is refused; legal: none, pushed, observed"
                ) from None
        try:
            object.__setattr__(self, "score", ScoreSource(self.score))
        except ValueError:
            raise ValueError(
                f"score = {short(self.score)} is refused; legal: none, pushed, observed"
            ) from None
        object.__setattr__(self, "alpha", real("alpha", self.alpha, 1 / 256, 1))
        object.__setattr__(self, "tau", real("tau", self.tau, 1, 65536))
        for name, low, high in (
            ("mass_shift", 0, 15),
            ("window", 0, 63),
            ("switches", 0, 2),
            ("budget_bytes", 0, (2**32 - 1) * LINE_BYTES),
            ("auto_step", 0, 2**24 - 1),
        ):
            object.__setattr__(self, name, integer(name, getattr(self, name), low, high))

    def with_(self, **changes) -> Policy:
        """A checked copy with some fields changed."""
        return replace(self, **changes)

    def policy_fields(self, config: Config) -> dict[str, int]:
        """Fields of the register `policy` of a device with this configuration."""
        if self.switches == 2 and not config.select_tables:
            raise UnsupportedError(
                f"configuration {config.name!r} has no policy 2 (`switches`); one with "
                + "`select_tables` does (golden:unit_select)"
            )
        return dict(
            alpha=round(self.alpha * 256),
            mass_shift=self.mass_shift,
            score_source=int(self.score),
            window=self.window,
            policy=int(self.switches > 0),
        ) | ({"tables": 1} if self.switches == 2 else {})

    @property
    def recency_fields(self) -> dict[str, int]:
        """Fields of the register `recency`."""
        (tau_m, tau_sh), (idle_m, idle_sh) = (
            recency_constants(self.tau),
            idle_constants(round(self.alpha * 256)),
        )
        return dict(
            tau_m=tau_m, tau_sh=tau_sh + RECENCY_BIAS, idle_m=idle_m, idle_sh=idle_sh + IDLE_BIAS
        )

    @property
    def budget_lines(self) -> int:
        """The register `budget`: DRAM lines; of less than one, one, since 0 is no budget."""
        return max(int(self.budget_bytes > 0), self.budget_bytes // LINE_BYTES)
