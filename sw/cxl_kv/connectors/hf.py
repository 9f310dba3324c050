# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Hugging Face transformers (5.16 and later): a cache whose keys and values live on a KELP device.

::

    from cxl_kv.connectors.hf import EndpointCache

    with cxl_kv.open("golden:trace?sessions=4") as device:
        with EndpointCache(device, model.config, formats="int8") as cache:
            model.generate(**inputs, past_key_values=cache)
            print(cache.report())

A cache is of one request: its sessions end with `close`, with the context, or with the last
reference to it; `copy.deepcopy` gives a second one of the same content (a prefix that many requests
share). `update` writes the new tokens' keys and values to the device and returns what the device
gives back for all of them; nothing is kept in host memory. One session holds one row of the batch.
With the attention implementation ``"kelp_probe"`` (`use_probe(model)`) each step's attention mass
is pushed as hints. A forward pass in which a layer's keys or values could not be written or read
leaves the cache as long as it was: it can be made again.

`generate` is refused before it stores anything where `max_new_tokens` or `max_length` lead beyond
what a row holds. It tells a cache nothing of them, so this module wraps the steps of
`GenerationMixin` that check its lengths and prepare its cache. A loop of one's own says it with
`expect`, or looks at `room`.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import itertools
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation import GenerationMixin, GenerationMode
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from ..arguments import instance, integer, short
from ..device import Device
from ..errors import DeviceFullError, SessionClosedError, UnsupportedError
from ..policy import Policy
from ..session import Session
from ..shape import ModelShape

__all__ = ["PROBE", "EndpointCache", "EndpointLayer", "model_shape", "use_probe"]

PROBE = "kelp_probe"  #: attention implementation that tells the cache what was attended to

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_HOST = {torch.float16: np.float16, torch.bfloat16: np.int16}  # as NumPy holds them
_given = threading.local()  # .latest: what this thread's latest `update` has given


class _Given(NamedTuple):
    """Keys that a cache has returned for a layer."""

    cache: weakref.ref
    layer: int
    keys: weakref.ref


def model_shape(config, dtype: torch.dtype, **changes) -> ModelShape:
    """The KV shape of a model's config; `changes` as of ModelShape (formats, page_tokens), or of
    what the model's layers are seen to give (kv_heads, head_dim). UnsupportedError for a dtype that
    no device stores."""
    config = config.get_text_config(decoder=True)
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"keys and values of {dtype} are not stored by the device; load the model in "
            + "torch.float16 or torch.bfloat16"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    shape = dict(layers=config.num_hidden_layers, kv_heads=heads, head_dim=head_dim)
    return ModelShape(**(shape | changes), dtype=_DTYPES[dtype])


class EndpointLayer(DynamicLayer):
    """One decoder layer's part of an :class:`EndpointCache`. Holds a length, no tensor."""

    supports_early_init = False

    def __init__(self, cache: EndpointCache, index: int, sliding_window: int | None = None):
        super().__init__()
        # Weak, so that a cache is gone with its last user and not some time later.
        self._cache, self.index, self.sliding_window = weakref.ref(cache), index, sliding_window
        self.is_sliding = sliding_window is not None
        self.length = 0
        #: whether the device has chosen, and may have summarised pages by the sessions' plans
        self.has_chosen = False

    def _tensor(self) -> None:
        if self.length:
            raise UnsupportedError(
                f"the keys and values of layer {self.index} are on the device, and no tensors of "
                + "it; what wants these, as an encoder-decoder model of its "
                + "cross_attention_cache, needs a DynamicCache there"
            )

    #: None before there are any, as of other layers; UnsupportedError from then on.
    keys = values = property(_tensor, lambda self, _: None)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [batch, kv_heads, n, head_dim]; returns what the device has of the whole row, or of
        the sliding window, as it reads it."""
        cache, new, first = self._cache(), key_states.shape[-2], self._first_visible()
        if cache is None:
            raise SessionClosedError("the cache of this layer is gone; keep it while it is in use")
        cache.begin(self)
        try:
            cache.write(self.index, self.length, key_states, value_states)
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            self.length += new
            if cache.chooses(self, new):
                return cache.offer(self.index, key_states, value_states)
            return cache.read(self.index, first, self.length, key_states, value_states)
        except BaseException:
            cache.undo()
            raise

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
        self.length, self.is_initialized = 0, False

    def reorder_cache(self, *_) -> None:
        raise NotImplementedError("rows are moved, and layers cropped, by the cache as a whole")

    batch_repeat_interleave = batch_select_indices = crop = reorder_cache


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
        Positions per row; all that the configuration's pages hold when left out. A prompt beyond
        them is refused before anything of it is stored, and so is one whose new tokens would lead
        beyond them (`expect`).
    policy : Policy
        With ``score="pushed"``, the default, masses come from the attention implementation PROBE;
        without it, choose ``"observed"``, and in a sparse cache policy 2 where the device has it.
    page_tokens : int, optional
    sparse : hf_sparse.Sparse, optional
        After the prompt, attend to the pages that the device chooses, alone.

    Attributes
    ----------
    counts : dict
        Of a sparse one, by layer: choices (one for each step and row), pages chosen, pages there
        were, and pages looked at that were not resident, over all KV heads.
    """

    def __init__(
        self,
        device,
        config,
        *,
        formats="raw16",
        max_tokens: int | None = None,
        policy: Policy = Policy(score="pushed", mass_shift=4),
        page_tokens: int | None = None,
        sparse=None,
    ):
        instance("device", device, Device, "a device (cxl_kv.open makes one)")
        instance("policy", policy, Policy, "a Policy")
        if max_tokens is not None:
            max_tokens = integer("max_tokens", max_tokens, 1)
        if not hasattr(config, "get_text_config"):
            raise ValueError(f"config = {short(config)} is refused; legal: model.config")
        if sparse is not None and not hasattr(sparse, "fits"):
            raise ValueError(f"sparse = {short(sparse)} is refused; legal: a Sparse, or None")
        text = config.get_text_config(decoder=True)
        windows = _sliding_windows(text)
        if sparse is not None and max(sparse.dense, default=0) >= len(windows):
            raise ValueError(
                f"sparse.dense = {short(sparse.dense)} is refused; legal: layers 0 … "
                + f"{len(windows) - 1}"
            )
        super().__init__(
            layers=[EndpointLayer(self, i, window) for i, window in enumerate(windows)]
        )
        self.device, self.config, self.policy, self.sparse = device, config, policy, sparse
        self.counts: dict[int, list[int]] = {}
        self._offered: int | None = None  # the layer that waits for its query
        self.closed = False
        self._before = 0  # tokens before the pass under way
        self._shape_changes = dict(formats=formats, page_tokens=page_tokens)
        self._max_tokens = max_tokens
        self.rows: list[Session] = []
        self._spare: list[Session] = []
        self._shape: ModelShape | None = None  # of the sessions, once a layer has been seen
        # Heads, elements of a key and of a value, and their type.
        self._sizes: tuple = (0, 0, 0, None)
        #: layers that store; those behind them use the keys and values of earlier ones
        self.stored = _stored_layers(text)
        self._most = 0  # positions of a row
        self._coming = 0  # positions of a row that are to come to be, as `expect` was told
        self._opened: list[Session] = []  # all of them, for whoever closes them
        _ = device.worker  # which closes them when this object is gone
        weakref.finalize(self, device.abandon, self._opened).atexit = False
        #: whether the attention implementation has pushed masses in this step
        self.probed = False

    # - passes -------------------------------------------------------------------------------------
    def begin(self, layer: EndpointLayer) -> None:
        """A layer's part of a forward pass begins, with the first layer's the pass.

        RuntimeError where the last one broke off between two layers, elsewhere in the model: it has
        begun with a length that is not all layers'.
        """
        first = self.layers[0]
        if layer is first:
            self._before = layer.length
        elif layer.is_initialized and layer.length != self._before:
            lengths = f"layer {layer.index} holds {layer.length} tokens, layer 0 {self._before}"
            self.undo()
            raise RuntimeError(
                f"{lengths}: an earlier forward pass broke off in between; crop(-n) takes its n "
                + "tokens back, reset() all of them"
            )

    def undo(self) -> None:
        """The pass under way has failed: every layer is as long as it was before."""
        for layer in self.layers:
            layer.length = min(layer.length, self._before)

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last −`tokens_to_remove` tokens of as many as `get_seq_length` says, in
        every layer."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop({tokens_to_remove}) is refused; a negative number says how many tokens "
                + "to remove"
            )
        left = max(0, self.get_seq_length() + tokens_to_remove)
        for layer in self.layers:
            layer.length = min(layer.length, left)
        if not left:
            self._forget_plans()

    def _forget_plans(self) -> None:
        """What comes next is another text, in whatever sessions."""
        for layer in self.layers:
            layer.has_chosen = False
        for session in self._opened:
            session.plans.clear()

    # - room ---------------------------------------------------------------------------------------
    @property
    def room(self) -> int | None:
        """Positions that a row has left; None before the first pass, which shows how many tokens a
        page holds."""
        return self._most - self.get_seq_length() if self._most else None

    def expect(self, length: int) -> None:
        """A row will come to hold `length` positions: where it cannot, the next pass, with the
        prompt, is refused. `generate` says so by itself. Forgotten with that pass, and by
        :meth:`reset`; of two before a pass the later one counts."""
        self._usable()
        self._coming = integer("length", length, 0)

    def _check_room(self, end: int) -> None:
        """ValueError where a row does not hold `end` positions, or what is to come."""
        coming, self._coming = self._coming, 0
        if max(end, coming) <= self._most:
            return
        holds = f"a row of this cache holds {self._most} (configuration {self.device.config.name!r}"
        holds += f", max_tokens = {self._max_tokens})" if self._max_tokens else ")"
        if end > self._most:
            raise ValueError(
                f"{end} tokens are refused: {holds}; crop(-n) and reset() make room, `?pages=` in "
                + "the device's URL makes more"
            )
        raise ValueError(
            f"{end} tokens that may become {coming} are refused: {holds}; lower max_new_tokens or "
            + f"max_length by {coming - self._most}, or raise `?pages=` in the device's URL"
        )

    # - data ---------------------------------------------------------------------------------------
    def write(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """[batch, kv_heads, n, head_dim] at positions start …; rows get their sessions here.

        Raises
        ------
        ValueError
            More positions than a row holds or, by `expect`, than it will come to hold; another
            batch than before; keys and values of different rows or tokens.
        UnsupportedError
            A dtype that no device stores, or a layer of another type or other sizes than the first.
        DeviceFullError
            Not enough free sessions for the rows.
        SessionClosedError
            After :meth:`close`.

        In all of these cases nothing was stored.
        """
        self._usable()
        self._check_sizes(layer, keys, values)
        self._check_room(start + keys.shape[-2])
        self._rows_for(keys)
        k, v = (_to_numpy(x, self._shape.head_dim) for x in (keys, values))
        for row, session in enumerate(self.rows):
            session.write(layer, k[row], v[row], start=start)

    def _usable(self):
        if self.closed:
            raise SessionClosedError("this cache was closed; make another one for another request")

    def _check_sizes(self, layer, keys, values):
        sizes = keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype
        if values.dtype != keys.dtype:
            raise UnsupportedError(
                f"layer {layer} has keys of {keys.dtype} and values of {values.dtype}: "
                + "the device stores one type"
            )
        if keys.shape[1] != values.shape[1]:
            raise UnsupportedError(
                f"layer {layer} has {keys.shape[1]} heads of keys and {values.shape[1]} of "
                + "values, which the device does not store"
            )
        if keys.shape[:-1] != values.shape[:-1]:
            raise ValueError(
                f"layer {layer} has keys of shape {list(keys.shape)} and values of "
                + f"{list(values.shape)}; legal: as many rows and tokens of both"
            )
        if self._shape is None:
            # Keys and values of different sizes (latent attention) are padded to the longer.
            self._shape = model_shape(
                self.config,
                keys.dtype,
                **self._shape_changes,
                layers=self.stored,
                kv_heads=sizes[0],
                head_dim=max(sizes[1:3]),
            )
            self._sizes = sizes
            held = self.device.config.pages * self._shape.page_tokens_in(self.device.config)
            self._most = min(held, self._max_tokens or held)
        elif sizes != self._sizes:
            raise UnsupportedError(
                "layer {} gives {} heads with keys of {} and values of {}, {}".format(layer, *sizes)
                + "; before it were {} of {} and {}, {}: ".format(*self._sizes)
                + "a device stores layers of one size and type"
            )

    def chooses(self, layer: EndpointLayer, new: int) -> bool:
        """Whether a layer attends to `new` tokens by the device's choice."""
        if self.sparse is None or layer.is_sliding or new != 1 or layer.length == 1:
            return False
        text = self.config.get_text_config(decoder=True)
        return self.sparse.fits(layer.index, getattr(text, "_attn_implementation", None))

    def offer(self, layer: int, keys: torch.Tensor, values: torch.Tensor):
        """Keys and values that stand for what the layer's query will choose."""
        self._usable()  # it may have been closed since they were written
        self._offered = layer
        _given.latest = _Given(weakref.ref(self), layer, weakref.ref(keys))
        return keys, values

    def offers(self, layer: int) -> bool:
        """Whether that is what `update` has given."""
        return self._offered == layer

    def attended(self, layer: int) -> None:
        """A layer's query has chosen; with the last layer the step advances."""
        self._offered = None
        self.layers[layer].has_chosen = True
        if layer == self.stored - 1:
            for session in self.rows:
                session.advance()

    def read(
        self, layer: int, first: int, last: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions first … last − 1 of every row, as the device gives them, of the types and sizes
        of `keys` and `values`."""
        self._usable()
        self._offered = None
        if layer == self.stored - 1 and not self.probed:
            for session in self.rows:
                session.advance()
        self.probed = False
        dtype = _HOST[keys.dtype]
        pairs = [session.read(layer, start=first, stop=last, dtype=dtype) for session in self.rows]
        # A batch of one row is handed out as it was read.
        halves = (
            (half[None] for half in pairs[0])
            if len(pairs) == 1
            else map(np.stack, zip(*pairs, strict=True))
        )
        out = tuple(
            _to_torch(half, like) for half, like in zip(halves, (keys, values), strict=True)
        )
        _given.latest = _Given(weakref.ref(self), layer, weakref.ref(out[0]))
        return out

    def presses(self, layer: int, length: int) -> bool:
        """Whether pages may have gone before the layer's first choice: as many as hold `length`
        positions of each queue of the device's sessions are more than half of the frames."""
        shape, config = self._shape, self.device.config
        pages = -(-length // shape.page_tokens_in(config))
        return self.device.queues * pages > self.device.frames(shape, layer) // 2

    def summarise(self, row: Session, layer: int, start: int, length: int) -> None:
        """Positions start … length − 1, where they press and there is a plan, which stays."""
        if self.presses(layer, length) and layer in row.plans:
            row.summarise(layer, tokens=length, start=start)
            self.layers[layer].has_chosen = True

    def _filled(self, target: Session, content: _Content, length: int) -> None:
        """A session of this cache gets another's content."""
        _fill(target, content)
        for layer in target.plans:
            self.summarise(target, layer, 0, length)

    def _rows_for(self, states: torch.Tensor) -> None:
        batch = states.shape[0]
        if len(self.rows) == batch:
            return
        if self.rows or self.get_seq_length():  # where none was selected, none is begun amid it
            raise ValueError(f"a batch of {batch} rows for a cache of {len(self.rows)} is refused")
        rows: list[Session] = []
        try:
            rows += (self._session() for _ in range(batch))
        except BaseException:
            self._end(rows)
            raise
        self.rows = rows

    def _session(self) -> Session:
        if self._spare:
            return self._spare.pop()
        how = dict(shape=self._shape, max_tokens=self._most, policy=self.policy)
        try:
            session = self.device.open_session(**how)
        except DeviceFullError:
            gc.collect()  # caches that nobody uses may have sessions still
            session = self.device.open_session(**how)
        self._opened.append(session)
        if self.sparse is not None:
            try:
                session.wait_above = self.sparse.wait_above
                if self.sparse.fetch and not self.device.ld_id:
                    self.device.fetch_chosen()
            except BaseException:
                self._end([session])
                raise
        return session

    def _end(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            session.close()
            self._opened.remove(session)  # where closing breaks off, it can be made again

    # - rows ---------------------------------------------------------------------------------------
    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Row i becomes what row beam_idx[i] was."""
        self._choose(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._choose([row for row in range(len(self.rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if indices.dtype != torch.bool:
            self._choose(indices.tolist())
            return
        if len(indices) != len(self.rows):
            raise IndexError(f"a mask of {len(indices)} for {len(self.rows)} rows is refused")
        self._choose(indices.nonzero().flatten().tolist())

    def _choose(self, sources: Sequence[int]) -> None:
        """Sessions move to their new rows; a row that is wanted more than once is copied on the
        device's side of this library, as it reads.

        A copy of raw16, fp8 or int8 is exact; int4 may round once more. Where a copy fails that
        has begun to take an old row's place the cache is closed, since the rows can be neither what
        they were nor what they were to be.
        """
        self._usable()
        old, length = self.rows, self.layers[0].length
        if not old:
            return
        last = len(old) - 1
        if outside := [row for row in sources if not -len(old) <= row <= last]:
            raise IndexError(f"row {outside[0]} is refused; legal: 0 … {last}")
        sources = [row % len(old) for row in sources]  # -1 is the last one
        taken: dict[int, Session] = {}
        rows: list[Session | None] = []
        for source in sources:
            rows.append(None if source in taken else old[source])
            taken.setdefault(source, old[source])
        copies = [(i, source) for i, source in enumerate(sources) if rows[i] is None]
        dropped = [session for row, session in enumerate(old) if row not in taken]
        more: list[Session] = []
        spoiled = False
        try:
            # All that are missing first: where the device is full, the rows stay as they are.
            while len(more) + len(dropped) < len(copies):
                more.append(self._session())
            targets = more + dropped
            for (i, source), target in zip(copies, targets, strict=False):
                content = _content(old[source], self.stored, length)
                spoiled |= target in dropped
                self._filled(target, content, length)
                rows[i] = target
        except BaseException:
            self._spare += more
            if spoiled:
                self.close()
            raise
        self._spare += targets[len(copies) :]
        self.rows = rows

    def __deepcopy__(self, memo) -> EndpointCache:
        """The same content in sessions of its own; int4 may round once more."""
        other = EndpointCache(
            self.device,
            self.config,
            **self._shape_changes,
            max_tokens=self._max_tokens,
            policy=self.policy,
            sparse=self.sparse,
        )
        memo[id(self)] = other
        other._shape, other._sizes, other._most = self._shape, self._sizes, self._most
        other.closed, other.counts = self.closed, copy.deepcopy(self.counts)
        for mine, copied in zip(self.layers, other.layers, strict=True):
            copied.length, copied.is_initialized = mine.length, mine.is_initialized
            if mine.is_initialized:
                copied.dtype, copied.device = mine.dtype, mine.device
        try:
            for row in self.rows:
                other.rows.append(other._session())
                length = self.get_seq_length()
                other._filled(other.rows[-1], _content(row, self.stored, length), length)
        except BaseException:
            other.close()  # whoever holds the error holds it, too
            raise
        return other

    def __copy__(self):
        raise UnsupportedError(
            "a cache on a device is not copied by reference; copy.deepcopy copies its content"
        )

    def __reduce__(self):
        raise UnsupportedError("a cache on a device is of one process and is not sent to another")

    def reset(self) -> None:
        """Empty, with the sessions kept for the next batch."""
        super().reset()
        self._forget_plans()
        self._coming = 0
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
            .cpu()
            .numpy()
        )
        first = self.layers[layer].length - keys
        self.probed = True
        for row, session in enumerate(self.rows):
            before = first % session.page_tokens
            padded = np.pad(newest[row], ((0, 0), (before, 0)))
            session.hints.push_attention(
                layer, padded, first_position=first - before, advance=layer == self.stored - 1
            )

    # - people -------------------------------------------------------------------------------------
    def report(self) -> str:
        """Where the keys and values are: one line per layer, over all rows. Hits are of hits and
        misses: an access that allocates its page is neither."""
        lines = [
            f"{len(self.rows)} sessions × {self.layers[0].length} tokens on "
            + f"{self.device.config.name!r}, step {self.rows[0].step if self.rows else 0}"
        ]
        tables = [session.telemetry() for session in self.rows]
        for layer in range(self.stored):
            sums = {
                name: sum(int(t[name][layer].sum()) for t in tables)
                for name in ("resident_bytes", "hits", "misses", "evictions")
            }
            counted = sums["hits"] + sums["misses"]
            rate = (
                f"{100 * sums['hits'] / counted:5.1f} % hits of {counted:>6,} hits and misses"
                if counted
                else "neither hits nor misses"
            )
            where = (
                f"{sums['resident_bytes']:>9,} bytes in DRAM, {sums['evictions']:,} pages "
                + "sent to flash"
            )
            lines.append(f"  layer {layer}: {rate}, {where}")
            if self.sparse is not None:
                lines[-1] += f", {self.sparse.report(self.counts.get(layer))}"
        return "\n".join(lines)

    def close(self) -> None:
        """Close every session; the cache is empty and takes nothing more. Harmless a second
        time."""
        self.closed = True
        super().reset()
        self.rows, self._spare = [], []
        self._end(list(self._opened))

    def __enter__(self) -> EndpointCache:
        return self

    def __exit__(self, *_) -> None:
        self.close()


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


def _stored_layers(config) -> int:
    """How many layers have keys and values of their own: all but those at the end that use earlier
    layers'."""
    modes = getattr(config, "kv_sharing_modes", None) or ()
    reused = itertools.takewhile(lambda mode: mode == "reuse", reversed(modes))
    return config.num_hidden_layers - sum(1 for _ in reused)


def _to_numpy(tensor: torch.Tensor, head_dim: int) -> np.ndarray:
    """Elements padded to `head_dim`, as :meth:`cxl_kv.Session.write` takes them."""
    if tensor.requires_grad or not tensor.is_cpu:
        tensor = tensor.detach().cpu()
    if missing := head_dim - tensor.shape[-1]:
        tensor = torch.nn.functional.pad(tensor, (0, missing))
    # NumPy has no bfloat16.
    return (tensor if tensor.dtype == torch.float16 else tensor.view(torch.int16)).numpy()


def _to_torch(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """The way back; what is as it should be is not touched: each call costs a microsecond."""
    tensor = torch.from_numpy(array)
    if tensor.shape[-1] != like.shape[-1]:
        tensor = tensor[..., : like.shape[-1]]
    if tensor.dtype != like.dtype:
        tensor = tensor.view(like.dtype)
    return tensor if like.is_cpu else tensor.to(like.device)


class _Content(NamedTuple):
    """Of a session: some layers' first positions, as they read, and how they are summarised."""

    plans: dict[int, np.ndarray]
    halves: tuple[np.ndarray, np.ndarray] | None  #: of no position, None


def _content(source: Session, layers: int, length: int) -> _Content:
    halves = source.read(list(range(layers)), stop=length, dtype=np.uint16) if length else None
    return _Content(dict(source.plans), halves)


def _fill(target: Session, content: _Content) -> None:
    target.plans = content.plans
    if content.halves is not None:
        target.write(list(range(len(content.halves[0]))), *content.halves)


# - generate, which is to say how much is to come --------------------------------------------------


def _noting(validate):
    """`GenerationMixin._validate_generated_length`, which alone is told how many ids generate was
    given: the generation config, which is of this call, takes it along."""

    @functools.wraps(validate)
    def note(self, *args, **named):
        given = inspect.signature(validate).bind(self, *args, **named).arguments
        given["generation_config"]._ids_given = given["input_ids_length"]
        return validate(self, *args, **named)

    return note


def _telling(prepare):
    """`GenerationMixin._prepare_cache_for_generation`, whose generation config is resolved by
    then, for every way of decoding. Other caches never notice, whatever its arguments are."""

    @functools.wraps(prepare)
    def tell(self, *args, **named):
        given = inspect.signature(prepare).bind(self, *args, **named).arguments
        model_kwargs = given.get("model_kwargs", {})
        cache = model_kwargs.get("past_key_values")
        if isinstance(cache, EndpointCache):
            config, mode = given["generation_config"], given.get("generation_mode")
            cache.expect(_comes_to(cache.get_seq_length(), config, mode, model_kwargs))
        return prepare(self, *args, **named)

    return tell


def _comes_to(held: int, generation_config, mode, model_kwargs) -> int:
    """Positions of a cache that holds `held` once generate has made all that it may. By generate's
    own rule the first pass leaves out what is held where it is given embeddings, or as many ids as
    the attention mask has; where it drafts (assisted) it leaves out nothing."""
    ids = generation_config._ids_given
    embeds, mask = model_kwargs.get("inputs_embeds"), model_kwargs.get("attention_mask")
    masked = getattr(generation_config, "_mask_length", -1) if mask is None else mask.shape[1]
    whole = embeds is not None or masked == ids
    first = ids if embeds is None else embeds.shape[1]
    if whole and mode != GenerationMode.ASSISTED_GENERATION:
        first -= held
    # Of the newest token nothing is stored.
    return held + first + max(0, generation_config.max_length - ids - 1)


GenerationMixin._validate_generated_length = _noting(GenerationMixin._validate_generated_length)
GenerationMixin._prepare_cache_for_generation = _telling(
    GenerationMixin._prepare_cache_for_generation
)


# - the attention implementation that tells --------------------------------------------------------


def _probe(module, query, key, value, attention_mask, **kwargs):
    """The model's own eager attention, with its sinks and soft-caps, whose weights are pushed to
    the cache that gave `key`; to none where that came from elsewhere."""
    output, weights = _eager_of(module)(module, query, key, value, attention_mask, **kwargs)
    cache, layer = given_by(key)
    if cache is not None:
        cache.push(layer, weights)
    return output, weights


def given_by(key: torch.Tensor) -> tuple[EndpointCache | None, int]:
    """The cache, still open, and the layer from which this thread's `key` comes; it is asked
    once."""
    given, _given.latest = getattr(_given, "latest", None), None
    if given is None or given.keys() is not key:
        return None, -1
    cache = given.cache()
    return (cache, given.layer) if cache is not None and not cache.closed else (None, -1)


def _eager_of(module):
    """`eager_attention_forward` of the file that defines the module's class, or the class that it
    was derived from; None where there is none."""
    for kind in type(module).__mro__:
        found = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    return None


def use_probe(model) -> None:
    """Give `model` the attention implementation PROBE.

    UnsupportedError for a model that has attention layers without an eager attention to ask, or
    whose class takes no attention implementation.
    """
    asked = [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "scaling")]
    for module in asked:
        if _eager_of(module) is None:
            raise UnsupportedError(
                f"{type(module).__name__} has no eager_attention_forward whose weights could be "
                + 'pushed; use Policy(score="observed") without the probe'
            )
    AttentionInterface.register(PROBE, _probe)
    AttentionMaskInterface.register(PROBE, eager_mask)
    model.set_attn_implementation(PROBE)
