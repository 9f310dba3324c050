# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a model's KV cache looks like, and what a device is told about it: the session descriptor of
spec §3 in an engineer's words. Plain Python.

::

    ModelShape(layers=32, kv_heads=8, head_dim=128)                 # Llama-3-8B
    preset("llama-3-70b", formats=(LayerFormats(last_layer=1, k="raw16", v="raw16"),
    LayerFormats(k="int8", v="int4")))
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, LINE_BYTES, Format, HostType
from kelp_spec.geometry import StoredPage, smallest_pool
from kelp_spec.metadata import LAYER_RANGES

from .arguments import integer, short

__all__ = ["PRESETS", "LayerFormats", "ModelShape", "preset"]

LAST_LAYER = 1023  #: of a range that goes on to the end


@dataclass(frozen=True, kw_only=True)
class LayerFormats:
    """Stored formats of K and V in the layers up to `last_layer` that no earlier range holds. A
    format is a Format or its label (``"int8"``)."""

    k: Format | str = Format.RAW16
    v: Format | str = Format.RAW16
    last_layer: int = LAST_LAYER

    def __post_init__(self):
        for name in ("k", "v"):
            value = getattr(self, name)
            object.__setattr__(self, name, _format(name, value))
        last = integer("last_layer", self.last_layer, 0, LAST_LAYER)
        object.__setattr__(self, "last_layer", last)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Shape of one sequence's KV cache.

    Parameters
    ----------
    layers, kv_heads, head_dim : int
        `head_dim` in elements; MLA keeps one head whose dimension is the latent's (rank plus RoPE
        part) and no V.
    dtype : HostType or str
        ``"fp16"`` or ``"bf16"``; what the host reads and writes.
    page_tokens : int or None
        Tokens per page; None takes 16, or fewer where a configuration's pages are smaller.
    formats : Format, label, LayerFormats, or up to four LayerFormats by ascending `last_layer`
        How lines are stored; one format stands for K and V of every layer.
    k_only : bool
        V does not exist (MLA).
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: HostType | str = HostType.FP16
    page_tokens: int | None = None
    formats: tuple[LayerFormats, ...] | LayerFormats | Format | str = Format.RAW16
    k_only: bool = False

    def __post_init__(self):
        try:
            by_name = HostType[self.dtype.upper()] if isinstance(self.dtype, str) else self.dtype
            object.__setattr__(self, "dtype", HostType(by_name))
        except (KeyError, ValueError):
            raise ValueError(f"dtype = {short(self.dtype)} is refused; legal: fp16, bf16") from None
        formats = self.formats
        if isinstance(formats, (Format, str, int)):
            formats = LayerFormats(k=formats, v=formats)
        formats = formats if isinstance(formats, (tuple, list)) else (formats,)
        if not all(isinstance(r, LayerFormats) for r in formats):
            raise ValueError(
                f"formats = {short(self.formats)} is refused; legal: a format's label, "
                + "LayerFormats, or a sequence of LayerFormats"
            )
        formats = tuple(formats)
        object.__setattr__(self, "formats", formats)
        for name in ("layers", "kv_heads", "head_dim"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        if self.page_tokens is not None:
            object.__setattr__(self, "page_tokens", integer("page_tokens", self.page_tokens, 1))
        if not isinstance(self.k_only, bool):
            raise ValueError(f"k_only = {short(self.k_only)} is refused; legal: True, False")
        ends = [r.last_layer for r in formats]
        if (
            not 1 <= len(formats) <= LAYER_RANGES
            or ends != sorted(set(ends))
            or ends[-1] < self.layers - 1
        ):
            raise ValueError(
                f"formats with last layers {ends} are refused; legal: 1 … {LAYER_RANGES} "
                + f"ascending ranges that reach layer {self.layers - 1}"
            )

    @property
    def queues(self) -> int:
        return self.layers * self.kv_heads

    @property
    def token_lines(self) -> int:
        """64-byte lines of one token's K (and of its V) in one queue."""
        return -(-self.head_dim // ELEMENTS)

    @property
    def halves(self) -> int:
        """1 for K alone, 2 for K and V."""
        return 1 if self.k_only else 2

    @property
    def token_bytes(self) -> int:
        """Host bytes of one token over all layers and heads, padding of lines not counted."""
        return self.queues * self.head_dim * 2 * self.halves

    def formats_of(self, layer: int) -> LayerFormats:
        return next(r for r in self.formats if layer <= r.last_layer)

    def page_tokens_in(self, config: Config) -> int:
        """Tokens per page on a device of `config`; ValueError when not even one fits."""
        most = config.half_lines // self.token_lines
        if not most or self.page_tokens is not None and self.page_tokens > most:
            legal = (
                f"page_tokens of 1 … {most}"
                if most
                else f"head_dim up to {config.half_lines * ELEMENTS}"
            )
            half = f"a page half of configuration {config.name!r} has {config.half_lines} lines"
            raise ValueError(
                f"page_tokens = {self.page_tokens or 1} of {self.token_lines} lines is "
                + f"refused: {half}; legal: {legal}"
            )
        return self.page_tokens or min(16, most)

    def stored_page(self, layer: int, config: Config) -> StoredPage:
        """How one of the layer's pages is stored."""
        formats = self.formats_of(layer)
        return StoredPage(
            formats.k, formats.v, self.page_tokens_in(config) * self.token_lines, self.k_only
        )

    def frame_bytes(self, layer: int, config: Config) -> int:
        """DRAM that one resident page of the layer takes: a frame of the smallest pool that holds
        it."""
        return config.frame_lines[self.pool(layer, config)] * LINE_BYTES

    def pool(self, layer: int, config: Config) -> int:
        """Which pool that is."""
        return smallest_pool(config.frame_lines, self.stored_page(layer, config).lines)

    def with_(self, **changes) -> ModelShape:
        """A checked copy with some fields changed."""
        return replace(self, **changes)


def _format(name: str, value) -> Format:
    if isinstance(value, str):
        return Format.named(value)
    try:
        return Format(value)
    except ValueError:
        raise ValueError(
            f"{name} = {short(value)} is refused; legal: {', '.join(f.label for f in Format)}"
        ) from None


#: Published shapes; every one may be changed with `preset(name, field=value)`.
PRESETS: dict[str, ModelShape] = {
    "llama-3-70b": ModelShape(layers=80, kv_heads=8, head_dim=128, dtype="bf16"),
    "llama-3-8b": ModelShape(layers=32, kv_heads=8, head_dim=128, dtype="bf16"),
    "qwen2.5-7b": ModelShape(layers=28, kv_heads=4, head_dim=128, dtype="bf16"),
    "qwen3-8b": ModelShape(layers=36, kv_heads=8, head_dim=128, dtype="bf16"),
    "qwen3-32b": ModelShape(layers=64, kv_heads=8, head_dim=128, dtype="bf16"),
    # DeepSeek-V3's multi-head latent attention: a latent of 512 and a shared RoPE key of 64, once a
    # layer.
    "deepseek-v3-mla": ModelShape(layers=61, kv_heads=1, head_dim=576, dtype="bf16", k_only=True),
}


def preset(name: str, **changes) -> ModelShape:
    """A named shape, with some fields changed; ValueError lists the names."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset {short(name)} is unknown; known: {', '.join(PRESETS)}")
    return PRESETS[name].with_(**changes)
