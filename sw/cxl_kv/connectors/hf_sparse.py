# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""transformers' attention over the pages that the device chooses (docs/select.md).

::

    from cxl_kv.connectors.hf import EndpointCache
    from cxl_kv.connectors.hf_sparse import Sparse, use_sparse

    use_sparse(model)
    with EndpointCache(device, model.config, sparse=Sparse(mass=0.9, dense=(0,))) as cache:
        model.generate(**inputs, past_key_values=cache)

A prompt is attended to whole. From then on each layer's query chooses pages of its own, all heads
of a KV head together, and attends to these alone; layers in `dense`, and those with a sliding
window, attend to everything that they see. The device knows of no padding: in a row that begins
with padding the first page is chosen all the same, and what the padding's keys seem to weigh is
missing from the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from ..arguments import instance, integer, real
from ..errors import UnsupportedError
from ..plans import turned
from .hf import _HOST, EndpointCache, _eager_of, _to_numpy, _to_torch, given_by

__all__ = ["SPARSE", "Sparse", "use_sparse"]

SPARSE = "kelp_sparse"  #: attention implementation that asks the device which pages to attend to
_PLANNED = 64  #: a prompt's last positions, whose queries its pages are summarised for


@dataclass
class Sparse:
    """How an :class:`EndpointCache` chooses; as many as like may share one.

    Parameters
    ----------
    pages : int, optional
        Of each KV head at most, beside the first and the newest; as many as there are slots for
        when left out.
    mass : float
        Share of the attention after which no more pages are taken.
    fetch : bool
        Pages that were looked at and not resident are fetched for a later step.
    dense : tuple of int
        Layers that attend to everything.
    wait_above : float, optional
        As :attr:`cxl_kv.Session.wait_above`: a choice waits for pages while more than this share of
        the attention is missing. UnsupportedError from a cache whose device does not estimate it.
    """

    pages: int | None = None
    mass: float = 0.9
    fetch: bool = True
    dense: tuple[int, ...] = ()
    wait_above: float | None = None

    def __post_init__(self):
        real("mass", self.mass, 0.0, 1.0)
        if self.pages is not None:
            integer("pages", self.pages, 0)
        if self.wait_above is not None:
            real("wait_above", self.wait_above, 0.0, 1.0)
        dense = instance("dense", self.dense, Iterable, "layers, as (0, 1)")
        self.dense = tuple(integer("dense", layer, 0) for layer in dense)

    def fits(self, layer: int, implementation: str | None) -> bool:
        """Whether a layer's next token is attended to by choice. UnsupportedError where the model
        would not ask."""
        if layer in self.dense:
            return False
        if implementation != SPARSE:
            raise UnsupportedError(
                f"a sparse cache under attention implementation {implementation!r} is refused; "
                + "call cxl_kv.connectors.hf_sparse.use_sparse(model)"
            )
        return True

    def report(self, counts: list[int] | None) -> str:
        """What a layer has chosen so far, by its :attr:`EndpointCache.counts`, for people."""
        if counts is None:
            return "dense"
        choices, chosen, there, absent = counts
        return (
            f"{chosen / choices:.1f} of {there / choices:.1f} pages a step, "
            + f"{absent / choices:.1f} absent"
        )


def _theta(config) -> float | None:
    """The base of a model's RoPE, where it is one that turns the halves of all elements alike in
    each layer; else None."""
    said = getattr(config, "rope_parameters", None) or {}
    theta = said.get("rope_theta", getattr(config, "rope_theta", None))
    plain = said.get("rope_type", "default") == "default"
    whole = said.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0)) == 1.0
    return float(theta) if isinstance(theta, int | float) and plain and whole else None


def _turned(rows: torch.Tensor, first: int, theta: float) -> torch.Tensor:
    """:func:`cxl_kv.plans.turned`, in the type of `rows`."""
    found = turned(rows.detach().cpu().float().numpy(), first, theta)
    return torch.from_numpy(found).to(rows.dtype)


def _prefilled(cache: EndpointCache, layer: int, query, key, theta: float | None) -> None:
    """A prompt, or a part of one, has been attended to: where the layer will choose its pages are
    planned, and summarised while they are there if they may go before it does (`presses`). That
    fixes the plan. A part's plan chooses no worse than the whole prompt's
    (docs/select_study.md), and summaries that another plan made would."""
    endpoint, sparse = cache.layers[layer], cache.sparse
    if sparse is None or endpoint.is_sliding or layer in sparse.dense:
        return
    start = max(0, endpoint.length - query.shape[2] - 1) if endpoint.has_chosen else 0
    if not endpoint.has_chosen:
        _plan(cache, layer, query, key, theta)
    for session in cache.rows:
        cache.summarise(session, layer, start, endpoint.length)


def _plan(cache: EndpointCache, layer: int, query, key, theta: float | None) -> None:
    """Has pages summarised for a prompt's last queries [batch, heads, positions, head_dim]; with
    RoPE of base `theta` for those further on, too. Of a prompt without pages to summarise `select`
    knows more later."""
    query = query[:, :, -_PLANNED:]
    for row, session in enumerate(cache.rows):
        asked = query[row][:, ~query[row].isnan().any(dim=-1).any(dim=0)]
        if (key.shape[2] - 1) // session.page_tokens > 1 and asked.shape[1]:
            keys = key[row]
            if theta is not None:
                keys = _turned(keys, 0, theta)
                asked = _turned(asked, key.shape[2] - asked.shape[1], theta)
            keys, asked = (_to_numpy(x, session.shape.head_dim) for x in (keys, asked))
            session.plan(layer, keys, asked)


def _attend(cache: EndpointCache, layer: int, query, values, attention_mask, scaling):
    """[batch, 1, heads, value elements] of query [batch, heads, 1, head_dim]."""
    sparse, length = cache.sparse, cache.layers[layer].length
    rows = []
    for row, session in enumerate(cache.rows):
        asked = _to_numpy(query[row, :, 0], session.shape.head_dim)
        chosen = session.select(
            layer,
            asked,
            tokens=length,
            pages=sparse.pages,
            mass=sparse.mass,
            scale=scaling,
            fetch=sparse.fetch,
        )
        k, v, positions = session.gather(chosen, dtype=_HOST[query.dtype])
        heads = len(positions)
        counts = cache.counts.setdefault(layer, [0, 0, 0, 0])
        there = heads * (1 + (length - 1) // session.page_tokens)
        for n, more in enumerate((1, chosen.page_count, there, sum(chosen.absent))):
            counts[n] += more
        k, v = _to_torch(k, query), _to_torch(v, values)
        at = torch.from_numpy(positions).to(query.device)
        # Behind the last token lies what was cropped, or another text's, of which 0 · NaN is NaN.
        v.masked_fill_((at < 0)[..., None], 0)  # it is nobody else's
        scores = query[row, :, 0].reshape(heads, -1, query.shape[-1]) @ k.transpose(1, 2)
        scores = (scores * scaling).float()
        hidden = (at < 0)[:, None]
        if attention_mask is not None:
            mask = attention_mask[min(row, len(attention_mask) - 1), 0, -1]
            seen = mask[at.clamp(min=0)][:, None]
            if mask.dtype == torch.bool:
                hidden = hidden | ~seen
            else:
                scores = scores + seen
        weights = scores.masked_fill(hidden, torch.finfo(torch.float32).min).softmax(dim=-1)
        rows.append((weights.to(v.dtype) @ v).reshape(1, query.shape[1], -1))
    return torch.stack(rows)


def _sparse(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention to what the device chooses where `key` comes from a cache that has it choose; else
    the model's own eager attention."""
    cache, layer = given_by(key)
    if cache is None or not cache.offers(layer):
        if cache is not None:
            try:
                _prefilled(cache, layer, query, key, _theta(module.config))
            except BaseException:
                cache.undo()
                raise
        elif attention_mask is not None and key.shape[-2] == 1 < attention_mask.shape[-1]:
            raise UnsupportedError(
                f"layer {module.layer_idx} attends to keys that are another layer's, or made of "
                + "what is stored, and these are not chosen for; name the layer whose they are, or "
                + "every layer, in Sparse.dense"
            )
        return _eager_of(module)(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                f"attention with {name} is not chosen for; name every layer in Sparse.dense"
            )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    try:
        out = _attend(cache, layer, query, value, attention_mask, scaling)
    except BaseException:
        cache.undo()
        raise
    cache.attended(layer)
    return out, None


def use_sparse(model) -> None:
    """Give `model` the attention implementation SPARSE.

    UnsupportedError for a model that has attention layers without an eager attention, which
    prompts and dense layers take.
    """
    for module in model.modules():
        if hasattr(module, "layer_idx") and hasattr(module, "scaling") and not _eager_of(module):
            raise UnsupportedError(
                f"{type(module).__name__} has no eager_attention_forward to be dense with"
            )
    AttentionInterface.register(SPARSE, _sparse)
    AttentionMaskInterface.register(SPARSE, eager_mask)
    model.set_attn_implementation(SPARSE)
