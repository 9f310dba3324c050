# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the models are told: one TOML, every key required and checked; :class:`InputError` names the
table, the key, the value and what is legal.

The dataclasses below are the schema. Numbers are above 0 unless :func:`_zero` (0 too) or
:func:`_share` (0 … 1) says otherwise.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

from kelp_spec.files import read_text

from ..trace.trace import parsed

__all__ = [
    "DEFAULTS",
    "Heads",
    "Hybrid",
    "InputError",
    "Inputs",
    "Latent",
    "Measured",
    "Scenario",
    "load",
    "with_bench",
]

DEFAULTS = Path(__file__).parent / "defaults.toml"
DENSE, LATENT, HYBRID = ("mha", "gqa", "mqa"), "mla", "hybrid"


class InputError(ValueError):
    """An input file was refused; one line says why."""


def _zero():
    return field(metadata={"zero": True})


def _share():
    return field(metadata={"zero": True, "share": True})


@dataclass(frozen=True, kw_only=True)
class Heads:
    """MHA, GQA, MQA: a key and a value for each KV head."""

    attention: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    element_bytes: float
    parameters_billion: float


@dataclass(frozen=True, kw_only=True)
class Latent:
    """MLA: one latent with its RoPE part for each layer, key and value at once."""

    attention: str
    layers: int
    latent: int
    rope: int = _zero()
    element_bytes: float
    parameters_billion: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """Layers with one entry for each ``compress`` tokens, and beside each ``index_bytes`` of index
    key."""

    layers: int
    compress: int
    entry_bytes: float
    index_bytes: float = _zero()


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Compressed entries of several kinds of layers, and a window of whole tokens in each layer."""

    attention: str
    window_tokens: int = _zero()
    groups: tuple[Group, ...]
    parameters_billion: float


@dataclass(frozen=True, kw_only=True)
class Gpu:
    hbm_gb: float
    hbm_gb_per_s: float


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    dram_gb: float
    dram_channels: int
    dram_mt_per_s: float
    dram_share: float = _share()
    free_frames: int = _zero()
    clock_ghz: float
    page_tokens: int


@dataclass(frozen=True, kw_only=True)
class Link:
    gt_per_s: float
    lanes: int
    gb_per_s: float


@dataclass(frozen=True, kw_only=True)
class Flash:
    capacity_tb: float
    latency_us: float = _zero()
    gb_per_s: float
    write_gb_per_s: float
    slow_share: float = _share()
    slow_us: float = _zero()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A figure, the row of `kelp bench` that it is, and the command that measures it."""

    value: float
    row: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Rtl:
    hit_latency_cycles: Measured
    hit_lines_per_cycle: Measured
    mixed_lines_per_cycle: Measured
    quantise_lines_per_cycle: Measured
    dequantise_lines_per_cycle: Measured
    quantise_cycles: Measured
    dequantise_cycles: Measured
    quantise_mhz: float
    dequantise_mhz: float
    tracker_updates_per_cycle: Measured
    tier_share: Measured
    storm_hit_lines_per_cycle: Measured
    metadata_bytes_per_kv_byte: Measured
    frame_bytes_per_resident_byte: Measured


@dataclass(frozen=True, kw_only=True)
class Policy:
    residency: tuple[float, ...] = _share()
    lru_per_queue: tuple[float, ...] = _share()
    window: tuple[float, ...] = _share()
    window_flash_reads: tuple[float, ...] = _zero()
    kelp: tuple[float, ...] = _share()
    kelp_flash_reads: tuple[float, ...] = _zero()
    recent_mass: tuple[float, ...] = _share()


@dataclass(frozen=True, kw_only=True)
class Wall:
    model: str
    weights_gb: float
    users: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Latency:
    stages: dict[str, float] = _zero()
    dma_us: float


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    layers: int
    layer_gb: float
    compute_ms: float
    endpoints: tuple[int, ...]
    buffers: int


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    context: int
    read_share: float = _share()
    leaves_dram: float = _share()
    sessions: int
    hit_rates: tuple[float, ...] = _share()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    context: int
    read_share: float = _share()
    hit_rate: float = _share()
    leaves_dram: float = _share()
    sessions_per_s: float
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Serving:
    model: str
    weights_gb: float
    endpoints: int
    prefill_tokens_per_s: float
    steps: int
    seed: int = _zero()
    sensitivity: Sensitivity
    scenarios: dict[str, Scenario]


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    model: str
    window_tokens: tuple[int, ...]
    tokens_per_s: float
    session_minutes: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Power:
    typical: dict[str, float] = _zero()
    peak: dict[str, float] = _zero()


@dataclass(frozen=True, kw_only=True)
class Cost:
    years: float
    published_gpus: tuple[float, ...] = _zero()
    published_endpoints: tuple[float, ...] = _zero()
    published_gpu_count: int
    published_endpoint_count: int
    gpu: float
    gpu_kilowatt: float
    dram_dollars_per_gb: float = _zero()
    flash_dollars_per_tb: float = _zero()
    controller_dollars: float = _zero()
    dollars_per_kwh: float = _zero()
    overhead: float


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    weights_gb: float
    hold_seconds: float
    tokens_per_s: float
    read_share: float = _share()
    rates_per_minute: tuple[float, ...]
    contexts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Inflection:
    model: str
    share: float = _share()
    weight_bytes: float
    kv_element_bytes: float
    contexts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    contexts: tuple[int, ...]
    models: dict[str, Heads | Latent | Hybrid]
    gpu: Gpu
    endpoint: Endpoint
    link: Link
    flash: Flash
    rtl: Rtl
    policy: Policy
    wall: Wall
    latency: Latency
    pipeline: Pipeline
    serving: Serving
    prefetch: Prefetch
    power: Power
    cost: Cost
    break_even: BreakEven
    inflection: Inflection

    def model(self, name: str) -> Heads | Latent | Hybrid:
        return self.models[name]


def load(path: Path = DEFAULTS) -> Inputs:
    """The inputs of a TOML file; an InputError says in one line what is wrong with it."""
    try:
        table = tomllib.loads(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # nor UTF-8, or a number without end, maybe
        raise InputError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path} is not TOML: it is nested too deeply") from None
    try:
        inputs = _record(Inputs, table, "")
        _check(inputs)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return inputs


def with_bench(inputs: Inputs, path: Path) -> Inputs:
    """``inputs`` with the figures of [rtl] that a file of `kelp bench` holds."""
    try:
        rows = {row["name"]: float(row["value"]) for row in parsed(read_text(path))}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise InputError(
            f"{path} is no file of `kelp bench`: a list of rows with name and value is expected"
        ) from None
    figures = {f.name: getattr(inputs.rtl, f.name) for f in fields(Rtl)}
    found = {
        name: replace(old, value=rows[old.row])
        for name, old in figures.items()
        if isinstance(old, Measured) and old.row in rows
    }
    if not found:
        raise InputError(
            f"{path} has none of the rows that [rtl] names, such as "
            + f"{inputs.rtl.hit_latency_cycles.row!r}"
        )
    for figure in found.values():
        if not 0 < figure.value < math.inf:
            raise InputError(
                f"{path}: {figure.row} = {figure.value} is refused; legal: numbers above 0"
            )
    return replace(inputs, rtl=replace(inputs.rtl, **found))


def _check(inputs: Inputs) -> None:
    """What one key alone cannot tell."""
    for name, model in inputs.models.items():
        if isinstance(model, Heads):
            legal = {
                "mha": model.kv_heads == model.query_heads,
                "mqa": model.kv_heads == 1,
                "gqa": model.query_heads % model.kv_heads == 0,
            }
            if not legal[model.attention]:
                raise InputError(
                    f"[models.{name}] kv_heads = {model.kv_heads} is refused for "
                    + f"{model.attention} with {model.query_heads} query heads"
                )
    for where in ("wall", "serving", "prefetch", "inflection"):
        name = getattr(inputs, where).model
        if name not in inputs.models:
            raise InputError(
                f"[{where}] model = {name!r} is unknown; there are: {', '.join(inputs.models)}"
            )
    for f in fields(Policy):
        if len(getattr(inputs.policy, f.name)) != len(inputs.policy.residency):
            raise InputError(
                f"[policy] {f.name} needs {len(inputs.policy.residency)} values, one for each "
                + "residency"
            )
    if set(inputs.power.typical) != set(inputs.power.peak):
        raise InputError("[power.typical] and [power.peak] must name the same parts")


def _record(cls, table, where: str):
    name = where or "the file"
    if not isinstance(table, dict):
        raise InputError(f"{_at(where)}must be a table")
    known = {f.name: f for f in fields(cls)}
    for key in table:
        if key not in known:
            raise InputError(f"{_in(where)} has an unknown key {key!r}; legal: {', '.join(known)}")
    for key in known:
        if key not in table:
            raise InputError(
                f"{_in(where)} lacks {key!r}"
                + (" (all keys are required)" if name == "the file" else "")
            )
    hints = get_type_hints(cls)
    return cls(
        **{
            key: _value(
                hints[key], table[key], f"{where}.{key}" if where else key, known[key].metadata
            )
            for key in known
        }
    )


def _value(kind, value, where: str, rules):
    if is_dataclass(kind):
        return _record(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or not value:
            raise InputError(
                f"{_at(where)}{value!r} is refused; legal: a list of at least one value"
            )
        return tuple(_value(get_args(kind)[0], v, where, rules) for v in value)
    if get_origin(kind) is dict:
        if not isinstance(value, dict) or not value:
            raise InputError(f"{_at(where)}must be a table with at least one entry")
        return {
            key: _value(get_args(kind)[1], v, f"{where}.{key}", rules) for key, v in value.items()
        }
    if kind in (int, float):
        return _number(kind, value, where, rules)
    if kind is str:
        if not isinstance(value, str) or not value:
            raise InputError(f"{_at(where)}{value!r} is refused; legal: a text")
        return value
    return _model(value, where)


def _model(value, where: str):
    attention = value.get("attention") if isinstance(value, dict) else None
    for names, cls in ((DENSE, Heads), ((LATENT,), Latent), ((HYBRID,), Hybrid)):
        if attention in names:
            return _record(cls, value, where)
    raise InputError(
        f"{_in(where)} attention = {attention!r} is unknown; legal: "
        + f"{', '.join((*DENSE, LATENT, HYBRID))}"
    )


def _number(kind, value, where: str, rules):
    legal = "0 … 1" if rules.get("share") else ("0 and up" if rules.get("zero") else "above 0")
    fits = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (kind is float or isinstance(value, int))
    )
    if (
        not fits
        or value < 0
        or (value == 0 and not rules.get("zero"))
        or (rules.get("share") and value > 1)
    ):
        raise InputError(
            f"{_at(where)}{value!r} is refused; legal: "
            + f"{'a whole number ' if kind is int else ''}{legal}"
        )
    return kind(value)


def _in(where: str) -> str:
    return f"[{where}]" if where else "the file"


def _at(where: str) -> str:
    table, _, key = where.rpartition(".")
    return (f"[{table}] " if table else "") + f"{key} = "
