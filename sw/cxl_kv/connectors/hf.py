# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Hugging Face transformers (5.16 and later): a cache whose keys and values live on a KELP device.

::

    from cxl_kv.connectors.hf import EndpointCache

    with cxl_kv.open("golden:trace?sessions=4") as device:
        cache = EndpointCache(device, model.config, formats="int8")
        model.generate(**inputs, past_key_values=cache)
        print(cache.report())

`update` writes the new tokens' keys and values to the device and returns what the device gives back
for all of them; nothing is kept in host memory. One session holds one row of the batch. With the
attention implementation ``"kelp_probe"`` (`use_probe(model)`) each step's attention mass is pushed
as hints.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from ..errors import UnsupportedError
from ..policy import Policy
from ..session import Session
from ..shape import ModelShape

__all__ = ["PROBE", "EndpointCache", "EndpointLayer", "model_shape", "use_probe"]

PROBE = "kelp_probe"  #: attention implementation that tells the cache what was attended to

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_asking = threading.local()  # the cache that this thread's latest `update` belongs to


def model_shape(config, dtype: torch.dtype, **changes) -> ModelShape:
    """The KV shape of a model's config; `changes` as of ModelShape (formats, page_tokens).
    UnsupportedError for a dtype that no device stores."""
    config = config.get_text_config(decoder=True)
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"keys and values of {dtype} are not stored by the device; load the model in "
            + "torch.float16 or torch.bfloat16"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return ModelShape(
        layers=config.num_hidden_layers,
        kv_heads=heads,
        head_dim=head_dim,
        dtype=_DTYPES[dtype],
        **changes,
    )


class EndpointLayer(DynamicLayer):
    """One decoder layer's part of an :class:`EndpointCache`. Holds a length, no tensor."""

    supports_early_init = False

    def __init__(self, cache: EndpointCache, index: int, sliding_window: int | None = None):
        super().__init__()
        self.cache, self.index, self.sliding_window = cache, index, sliding_window
        self.is_sliding = sliding_window is not None
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [batch, kv_heads, n, head_dim]; returns what the device has of the whole row, or of
        the sliding window, as it reads it."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[-2]
        first = self._first_visible()
        self.cache.write(self.index, self.length, key_states, value_states)
        self.length += new
        return self.cache.read(self.index, first, self.length, key_states)

    def _first_visible(self) -> int:
        return max(0, self.length - self.sliding_window + 1) if self.is_sliding else 0

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = self._first_visible()
        return self.length - first + query_length, first

    def get_max_length(self) -> int:
        return self.sliding_window if self.is_sliding else -1

    def reset(self) -> None:
        self.length = 0
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop({tokens_to_remove}) is refused; a negative number says how many tokens "
                + "to remove"
            )
        self.length = max(0, self.length + tokens_to_remove)

    def reorder_cache(self, beam_idx) -> None:
        raise NotImplementedError("rows are reordered by the cache as a whole")

    batch_repeat_interleave = batch_select_indices = reorder_cache


class EndpointCache(Cache):
    """`past_key_values` on a device.

    Parameters
    ----------
    device : cxl_kv.Device
        Must have a free session for each row of the batch (beams included).
    config : transformers config
        The model's.
    formats : as of ModelShape
        How keys and values are stored; ``"raw16"`` gives the very tokens that DynamicCache gives.
    max_tokens : int, optional
        Positions per row.
    policy : Policy
        With ``score="pushed"``, the default, masses come from the attention implementation PROBE;
        without it, choose ``"observed"``.
    page_tokens : int, optional
    """

    def __init__(
        self,
        device,
        config,
        *,
        formats="raw16",
        max_tokens: int | None = None,
        policy: Policy = Policy(score="pushed", mass_gain=4),
        page_tokens: int | None = None,
    ):
        text = config.get_text_config(decoder=True)
        windows = _sliding_windows(text)
        super().__init__(
            layers=[EndpointLayer(self, i, window) for i, window in enumerate(windows)]
        )
        self.device, self.config, self.policy = device, config, policy
        self._shape_changes = dict(formats=formats, page_tokens=page_tokens)
        self._max_tokens = max_tokens
        self.rows: list[Session] = []
        self._spare: list[Session] = []
        #: whether the attention implementation has pushed masses in this step
        self.probed = False

    # - data ---------------------------------------------------------------------------------------
    def write(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """[batch, kv_heads, n, head_dim] at positions start …; rows get their sessions here."""
        self._rows_for(keys)
        for row, session in enumerate(self.rows):
            session.write(layer, _to_numpy(keys[row]), _to_numpy(values[row]), start=start)

    def read(
        self, layer: int, first: int, last: int, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions first … last − 1 of every row, as the device gives them."""
        if layer == len(self.layers) - 1 and not self.probed:
            for session in self.rows:
                session.advance()
        self.probed = False
        _asking.cache = self
        pairs = [
            session.read(layer, start=first, stop=last, dtype=np.int16) for session in self.rows
        ]
        return tuple(
            torch.from_numpy(np.stack([pair[half] for pair in pairs]))
            .view(like.dtype)
            .to(like.device)
            for half in (0, 1)
        )

    def _rows_for(self, states: torch.Tensor) -> None:
        batch = states.shape[0]
        if len(self.rows) == batch:
            return
        if self.rows:
            raise ValueError(f"a batch of {batch} rows for a cache of {len(self.rows)} is refused")
        self.rows = [self._session(states.dtype) for _ in range(batch)]

    def _session(self, dtype) -> Session:
        if self._spare:
            return self._spare.pop()
        shape = model_shape(self.config, dtype, **self._shape_changes)
        most = self.device.config.pages * shape.page_tokens_in(self.device.config)
        return self.device.open_session(
            shape, max_tokens=min(most, self._max_tokens or most), policy=self.policy
        )

    # - rows ---------------------------------------------------------------------------------------
    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Row i becomes what row beam_idx[i] was."""
        self._choose(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._choose([row for row in range(len(self.rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._choose(
            indices.nonzero().flatten().tolist()
            if indices.dtype == torch.bool
            else indices.tolist()
        )

    def _choose(self, sources: Sequence[int]) -> None:
        """Sessions move to their new rows; a row that is wanted more than once is copied on the
        device's side of this library, as it reads.

        A copy of raw16, fp8 or int8 is exact; int4 may round once more.
        """
        old, length = self.rows, self.layers[0].length
        if not old:
            return
        taken: dict[int, Session] = {}
        rows: list[Session | None] = []
        for source in sources:
            rows.append(None if source in taken else old[source])
            taken.setdefault(source, old[source])
        self._spare += [session for row, session in enumerate(old) if row not in taken]
        layers = list(range(len(self.layers)))
        copies = [(i, source) for i, source in enumerate(sources) if rows[i] is None]
        for i, source in copies:
            rows[i] = self._session(
                next(
                    dtype
                    for dtype, name in _DTYPES.items()
                    if name == old[0].shape.dtype.name.lower()
                )
            )
            if length:
                keys, values = old[source].read(layers, stop=length, dtype=np.uint16)
                rows[i].write(layers, keys, values)
        self.rows = rows

    def reset(self) -> None:
        """Empty, with the sessions kept for the next batch."""
        super().reset()
        self._spare += self.rows
        self.rows = []

    # - attention mass -----------------------------------------------------------------------------
    def push(self, layer: int, weights: torch.Tensor) -> None:
        """Weights [batch, heads, queries, keys] of a layer's attention over what `update` returned:
        the newest query's mass, averaged over each KV head's group, goes to the device; with the
        last layer the step advances."""
        batch, heads, _, keys = weights.shape
        kv_heads = self.rows[0].shape.kv_heads
        newest = (
            weights.detach()[:, :, -1]
            .reshape(batch, kv_heads, heads // kv_heads, keys)
            .float()
            .mean(dim=2)
            .numpy()
        )
        first = self.layers[layer].length - keys
        self.probed = True
        for row, session in enumerate(self.rows):
            before = first % session.page_tokens
            padded = np.pad(newest[row], ((0, 0), (before, 0)))
            session.hints.push_attention(
                layer, padded, first_position=first - before, advance=layer == len(self.layers) - 1
            )

    # - people -------------------------------------------------------------------------------------
    def report(self) -> str:
        """Where the keys and values are: one line per layer, over all rows."""
        lines = [
            f"{len(self.rows)} sessions × {self.layers[0].length} tokens on "
            + f"{self.device.config.name!r}, step {self.rows[0].step if self.rows else 0}"
        ]
        tables = [session.telemetry() for session in self.rows]
        for layer in range(len(self.layers)):
            sums = {
                name: sum(int(t[name][layer].sum()) for t in tables)
                for name in ("resident_bytes", "hits", "misses", "evictions")
            }
            accesses = sums["hits"] + sums["misses"]
            rate = f"{100 * sums['hits'] / accesses:5.1f} % hits" if accesses else "no accesses"
            where = (
                f"{sums['resident_bytes']:>9,} bytes in DRAM, {sums['evictions']:,} pages "
                + "sent to flash"
            )
            lines.append(f"  layer {layer}: {accesses:>6,} accesses, {rate}, {where}")
        return "\n".join(lines)

    def close(self) -> None:
        """Close every session."""
        for session in self.rows + self._spare:
            session.close()
        self.rows, self._spare = [], []


def _sliding_windows(config) -> list[int | None]:
    """Of each layer: its window, or None."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or getattr(
        config, "attention_chunk_size", None
    )
    if types is None:
        types = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    known = {"full_attention", "sliding_attention", "chunked_attention"}
    if not set(types) <= known:
        raise UnsupportedError(
            f"layers of type {', '.join(sorted(set(types) - known))} are not stored by the "
            + f"device; legal: {', '.join(sorted(known))}"
        )
    return [None if kind == "full_attention" else window for kind in types]


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Bit patterns, uint16."""
    return tensor.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16)


# - the attention implementation that tells --------------------------------------------------------


def _probe(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Eager attention, whose weights are pushed to the cache that gave `key`."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
    weights = torch.matmul(query, keys.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = torch.nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    cache = getattr(_asking, "cache", None)
    if cache is not None and cache.rows and cache.layers[module.layer_idx].length >= key.shape[2]:
        cache.push(module.layer_idx, weights)
    return torch.matmul(weights, values).transpose(1, 2).contiguous(), weights


def use_probe(model) -> None:
    """Give `model` the attention implementation PROBE."""
    AttentionInterface.register(PROBE, _probe)
    AttentionMaskInterface.register(PROBE, eager_mask)
    model.set_attn_implementation(PROBE)
