# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Records the attention of any Hugging Face causal model as a ``kelp-attention-1`` file, through
transformers' attention interface.

The text is teacher-forced: a prefill, :data:`PART` tokens a pass, then one decode step a token,
:data:`STEPS` of them in one pass, since each attends to what is before it alone. So a pass takes as
much memory whatever the prefill is, beside the cache. The model's own attention runs as it is
(SDPA), and beside it each layer's rows of probabilities, one a step, are summed over pages and
averaged over the group's query heads. A full attention matrix is never made, and what a pass leaves
is reduced at once to what the file holds: 16 bits of mass and one bit of reads for each queue, step
and page. Of chosen layers queries, keys and values can be kept, too, in a file beside it. Needs
torch and transformers (the environment `.venv.hf`, `make test-engines ENGINES=hf`); nothing else of
this project does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kelp_spec.files import whole_file

__all__ = ["PART", "STEPS", "ReadRule", "RecorderError", "qkv_path", "record"]

STEPS = 64  #: decode steps of one pass
PART = 256  #: tokens of the prefill in one pass
_NAME = "kelp_recorder"


class RecorderError(ValueError):
    """The model or the text cannot be recorded; one line says why."""


@dataclass
class _Tape:
    """What the attention function leaves of one pass, layer by layer; off during prefill."""

    page_tokens: int
    on: bool = False
    mass: list = field(default_factory=list)  # [kv_heads, steps, pages] float32
    queries: list = field(default_factory=list)  # [q_heads, steps, head_dim]


@dataclass(frozen=True)
class ReadRule:
    """Largest mass first until ``top_p`` of it, at most ``max_pages``, and always the page being
    written. A page that is not read and has less than ``mass_floor`` is written with no mass, which
    makes the file a fifth. RecorderError for what is no share, or no page."""

    top_p: float = 0.9
    max_pages: int = 16
    mass_floor: float = 0.0

    def __post_init__(self):
        if not (0 < self.top_p <= 1 and self.max_pages >= 1 and 0 <= self.mass_floor <= 1):
            raise RecorderError(
                f"top_p = {self.top_p}, max_pages = {self.max_pages}, mass_floor = "
                + f"{self.mass_floor} are refused; legal: above 0 to 1, from 1 on, 0 to 1"
            )

    def chosen(
        self, mass: np.ndarray, newest: int | np.ndarray, whole: float | None = None
    ) -> np.ndarray:
        """[..., pages] bool of ``mass``, ``newest`` ([...]) being written; equal masses go to the
        lower page. ``whole``: the mass of all pages, where ``mass`` lacks some."""
        order = np.argsort(-mass, axis=-1, kind="stable")
        ordered = np.take_along_axis(mass, order, axis=-1)
        before = np.cumsum(ordered, axis=-1) - ordered
        whole = mass.sum(axis=-1, keepdims=True) if whole is None else whole
        wanted = (
            (before < self.top_p * whole)
            & (np.arange(mass.shape[-1]) < self.max_pages)
            & (ordered > 0)
        )
        chosen = np.zeros(mass.shape, bool)
        np.put_along_axis(chosen, order, wanted, axis=-1)
        written = np.broadcast_to(np.asarray(newest)[..., None], (*mass.shape[:-1], 1))
        np.put_along_axis(chosen, written, True, axis=-1)
        return chosen


@contextlib.contextmanager
def _taped(model, tape: _Tape) -> Iterator[None]:
    """The model with our attention function in place, and its own afterwards."""
    import torch
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(module, query, key, value, attention_mask, scaling=None, **rest):
        for name in ("softcap", "s_aux"):  # capped scores, attention sinks
            if rest.get(name) is not None:
                raise RecorderError(
                    f"{type(model).__name__} changes its softmax ({name}), which is not recorded"
                )
        if tape.on:
            heads, steps, count = key.shape[1], query.shape[2], key.shape[2]
            rows = query[0].float().unflatten(0, (heads, -1))
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            # [kv_heads, group, steps, tokens]
            scores = rows @ key[0].float().transpose(1, 2)[:, None] * scale
            later = (
                torch.arange(count, device=key.device)
                > torch.arange(count - steps, count, device=key.device)[:, None]
            )
            scores = scores.masked_fill(later, -torch.inf)
            if attention_mask is not None:
                mask = attention_mask[0, 0, -steps:, :count]
                scores = (
                    scores.masked_fill(~mask, -torch.inf)
                    if mask.dtype == torch.bool
                    else scores + mask.float()
                )
            share = scores.softmax(-1).mean(1)
            padding = -share.shape[-1] % tape.page_tokens
            tape.mass.append(
                torch.nn.functional.pad(share, (0, padding))
                .unflatten(-1, (-1, tape.page_tokens))
                .sum(-1)
                .cpu()
                .numpy()
            )
            tape.queries.append(query[0].to(torch.float16).cpu().numpy())
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )

    AttentionInterface.register(_NAME, attend)
    with contextlib.suppress(ImportError):
        from transformers import AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionMaskInterface.register(_NAME, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def record(
    model,
    tokens: Sequence[int],
    path: Path,
    *,
    prefill: int = 512,
    page_tokens: int = 16,
    rule: ReadRule = ReadRule(),
    lines: bool | Sequence[int] = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Decode ``tokens`` with ``model`` and write the recording; ``lines``: keys, values and queries
    too, or those of the layers listed, into the file :func:`qkv_path`, rows in this order.
    ``progress`` hears (tokens done, tokens), prefill included."""
    from transformers import DynamicCache

    _check(model, len(tokens), prefill, page_tokens)
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    kept = range(layers if lines else 0) if isinstance(lines, bool) else lines
    for layer in kept:
        if not 0 <= layer < layers:
            raise RecorderError(f"layer {layer} is refused; legal: 0 … {layers - 1}")
    cache = DynamicCache(config=model.config)
    decoded = _Decoded(prefill, len(tokens), page_tokens, rule, kept)
    _decode(model, tokens, cache, decoded, progress)
    meta = decoded.meta() | {"model": Path(model.config.name_or_path).name}
    stated = np.array(json.dumps(meta))
    arrays = {"mass": decoded.mass, "reads": decoded.reads}
    found = {"q": decoded.queries} | _keys_and_values(cache, kept) if kept else {}
    if lines is True:
        arrays |= found
    elif found:
        with whole_file(qkv_path(path)) as file:
            np.savez_compressed(file, meta=stated, layers=np.array(kept, np.int32), **found)
    arrays["tokens"] = np.asarray(tokens).astype(np.int32)
    with whole_file(path) as file:
        np.savez_compressed(file, meta=stated, **arrays)


def qkv_path(path: Path) -> Path:
    """Where queries, keys and values of the recording ``path`` lie."""
    return Path(path).with_suffix(".qkv.npz")


def _check(model, count: int, prefill: int, page_tokens: int) -> None:
    """RecorderError where this model, or so many tokens with so many before the first step, cannot
    be recorded."""
    if page_tokens < 1:
        raise RecorderError(f"page_tokens = {page_tokens} is refused; legal: 1 and up")
    if count < 2 * page_tokens:
        raise RecorderError(
            f"a text of {count} tokens is refused; legal: at least two pages, {2 * page_tokens} "
            + "tokens"
        )
    if not 0 < prefill < count or prefill % page_tokens:
        raise RecorderError(
            f"prefill {prefill} is refused; legal: a multiple of {page_tokens} below the "
            + f"text's {count} tokens"
        )
    config = model.config.get_text_config(decoder=True)
    limit = getattr(config, "max_position_embeddings", count)
    if count > limit:
        raise RecorderError(f"{count} tokens are refused; the model's positions end at {limit}")
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise RecorderError(
            f"{type(model).__name__} has a sliding window of {config.sliding_window} tokens, which "
            + "is not recorded"
        )


class _Decoded:
    """What decoding left, as the file holds it; the arrays are made when the first pass has shown
    their shapes.

    Attributes
    ----------
    mass : [layers, kv_heads, steps, pages] uint16
    reads : [layers, kv_heads, steps, pages / 8] uint8
    queries : [kept layers, q_heads, steps, head_dim] float16, or None where none are kept
    loss : nats, summed over the steps
    """

    def __init__(
        self,
        prefill: int,
        count: int,
        page_tokens: int,
        rule: ReadRule,
        kept: Sequence[int],
    ):
        self.prefill, self.count, self.page_tokens = prefill, count, page_tokens
        self.rule, self.kept = rule, kept
        self.mass = self.reads = self.queries = None
        self.loss = 0.0

    def _shape(self, tape: _Tape) -> None:
        layers, heads = len(tape.mass), tape.mass[0].shape[0]
        self.q_heads, _, self.head_dim = tape.queries[0].shape
        steps, pages = self.count - self.prefill, -(-self.count // self.page_tokens)
        self.mass = np.zeros((layers, heads, steps, pages), np.uint16)
        self.reads = np.zeros((layers, heads, steps, -(-pages // 8)), np.uint8)
        if self.kept:
            shape = len(self.kept), self.q_heads, steps, self.head_dim
            self.queries = np.zeros(shape, np.float16)

    def meta(self) -> dict:
        layers, kv_heads, steps, _ = self.mass.shape
        rule = {"top_p": self.rule.top_p, "max_pages": self.rule.max_pages, "plus": "current page"}
        return {
            "format": "kelp-attention-1",
            "layers": layers,
            "q_heads": self.q_heads,
            "kv_heads": kv_heads,
            "head_dim": self.head_dim,
            "page_tokens": self.page_tokens,
            "prefill_tokens": self.prefill,
            "tokens": self.count,
            "steps": steps,
            "read_rule": rule,
            "mass_floor": self.rule.mass_floor,
            "cross_entropy": round(self.loss / max(1, steps - 1), 4),
        }

    def take(self, tape: _Tape, step: int) -> None:
        """What one pass, of the steps from ``step`` on, left on the tape."""
        if self.mass is None:
            self._shape(tape)
        share = np.stack(tape.mass)  # [layers, kv_heads, steps of the pass, pages so far]
        end, pages = step + share.shape[2], share.shape[3]
        for at in range(step, end):
            mass = share[:, :, at - step]
            chosen = self.rule.chosen(mass, (self.prefill + at) // self.page_tokens)
            kept = np.where(chosen | (mass >= self.rule.mass_floor), mass, 0)
            self.mass[:, :, at, :pages] = np.minimum(65535, np.round(kept * 65536))
            packed = np.packbits(chosen, axis=-1, bitorder="little")
            self.reads[:, :, at, : packed.shape[-1]] = packed
        for row, layer in enumerate(self.kept):
            self.queries[row, :, step:end] = tape.queries[layer]
        tape.mass.clear()
        tape.queries.clear()


def _decode(model, tokens, cache, decoded: _Decoded, progress) -> None:
    """The prefill into ``cache``, then the steps, into ``decoded``; ``progress`` hears of each
    pass."""
    import torch

    count, prefill, tape = decoded.count, decoded.prefill, _Tape(decoded.page_tokens)
    text = torch.as_tensor(np.asarray(tokens, np.int64), device=model.device)[None]
    with torch.inference_mode(), _taped(model, tape):
        for at in range(0, prefill, PART):
            end = min(at + PART, prefill)
            model(text[:, at:end], past_key_values=cache, use_cache=True, logits_to_keep=1)
            if progress is not None:
                progress(end, count)
        tape.on = True
        for at in range(prefill, count, STEPS):
            end = min(at + STEPS, count)
            logits = model(text[:, at:end], past_key_values=cache, use_cache=True).logits[0]
            following = text[0, at + 1 : end + 1]
            decoded.loss -= float(
                torch.log_softmax(logits[: len(following)].float(), -1)
                .gather(1, following[:, None])
                .sum()
            )
            _check_tape(model, tape)
            decoded.take(tape, at - prefill)
            if progress is not None:
                progress(end, count)


def _check_tape(model, tape: _Tape) -> None:
    if not tape.mass:
        raise RecorderError(
            f"{type(model).__name__} does not call the attention interface: it cannot be recorded"
        )
    shapes = {m.shape[0] for m in tape.mass}
    if len(shapes) > 1:
        raise RecorderError(
            f"layers of several shapes ({sorted(shapes)} KV heads) are not recorded"
        )


def _keys_and_values(cache, layers: Sequence[int]) -> dict[str, np.ndarray]:
    import torch

    return {
        name: np.stack(
            [
                getattr(cache.layers[layer], which)[0].to(torch.float16).cpu().numpy()
                for layer in layers
            ]
        )
        for name, which in (("k", "keys"), ("v", "values"))
    }
