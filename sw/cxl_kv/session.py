# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A session: one sequence's keys and values by (layer, head, positions)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Iterable

import numpy as np

from kelp_spec.formats import LINE_BYTES, HostType
from kelp_spec.metadata import PageState
from kelp_spec.policy2 import FETCH
from kelp_spec.registers import SessionCommand

from .arguments import instance, integer, listed, real, short, unmasked
from .core import Status
from .errors import (
    BusError,
    ConnectionLostError,
    DeviceFailedError,
    DeviceFullError,
    FlashError,
    NotMappedError,
    PoisonError,
    SessionClosedError,
    TransportError,
    UnsupportedError,
)
from .hints import Hints
from .layout import Layout, to_bits, to_float32
from .policy import Policy
from .process import NotCopied
from .select import Chosen, gather, plan, select, summarise, table
from .shape import ModelShape

__all__ = ["Session"]

_SERIALS = itertools.count(1)
_FAILED = (
    "a memory of the device lost what cannot be rebuilt (event FATAL); nothing is read or kept "
    + "until the device is reset"
)

_NOTHING_STORED = "the session is closed on the device; nothing was stored"

#: axes of [layers, kv_heads] that telemetry sums over
_SUMMED = {"head": (), "layer": (1,), "session": (0, 1)}


def _while_open(method):
    """A method whose calls are carried out one by one, and none on a session that is closed: once
    it is, its number may be another's, whose lines a call under way would read or write."""

    @functools.wraps(method)
    def call(self, *args, **named):
        self.device.transport.home.check()  # a child's lock may be a lost thread's
        with self._calls:
            self._usable()
            return method(self, *args, **named)

    return call


class Session(NotCopied):
    """One sequence's KV cache on a device; :meth:`cxl_kv.Device.open_session` makes one. A context
    manager that closes it. Thread-safe: its calls are carried out one after the other.

    Arrays are [kv_heads, positions, head_dim] for one layer and [layers, kv_heads, positions,
    head_dim] for several. In a session of fp16 they are float16; in one of bf16, uint16 bit
    patterns (or any two-byte type to write; `read(dtype=…)` views them as one).

    Attributes
    ----------
    number : int
        The device's number of the session.
    serial : int
        No other session of this process has the same, open or closed.
    shape : ModelShape
    page_tokens, max_tokens, pages : int
        Tokens per page; positions that may be used; pages of each queue.
    hints : Hints
        Attention masses, prefetch, pin, release.
    wait_above : float or None
        While the device estimates that more than this share of the attention is missing, an answer
        to :meth:`select` waits for the pages that are wanted, which are fetched as with its
        `fetch`; for 131 072 cycles of the device at most. None: what is there is used at once.
        UnsupportedError where the device does not estimate it.
    fetch_from : float
        Of the pages that :meth:`select` would have fetched, those that have at least this share of
        the attention are, in a device that estimates what absent pages have; the others are not
        worth what they would take the place of (docs/select_tables.md). What an answer waits
        for is fetched in any case.
    choices : int
        How many :meth:`select` and :meth:`summarise` have made, but for those that were refused:
        each gives back what the device holds for the one before.
    plans : dict of int → uint8 [kv_heads, lines of a token, 64]
        By layer, what :meth:`select` tells the device of how to summarise keys, as it was planned.
        Whoever fills the session with another sequence clears it.
    """

    _uncopied = (
        "a session is of one process and is not copied or sent to another; open the device there "
        + "by its URL, and a session on it"
    )

    def __init__(self, device, number: int, shape: ModelShape, *, max_tokens: int, policy: Policy):
        self.device, self.number, self.shape, self.max_tokens, self.policy = (
            device,
            number,
            shape,
            max_tokens,
            policy,
        )
        self.layout = Layout(device.config, number, shape)
        self.page_tokens = self.layout.page_tokens
        self.pages = -(-max_tokens // self.page_tokens)
        self.hints = Hints(self)
        self._wait_above: float | None = None
        self._switches = np.full((shape.layers, shape.kv_heads), policy.switches)
        self.fetch_from = FETCH / 65536
        self.plans: dict[int, np.ndarray] = {}
        self.serial = next(_SERIALS)
        self.closed = False
        self._sequence = 0
        self.choices = 0
        # Of the call under way: close waits for it, and the device has one place for queries.
        self._calls = threading.RLock()
        # What is told up to here is of the sessions that had this number before.
        device.poll()
        self._first = self._polled = device.polled

    # - data ---------------------------------------------------------------------------------------
    @_while_open
    def write(
        self,
        layer,
        k,
        v=None,
        *,
        start: int | None = None,
        positions: Iterable[int] | None = None,
        heads=None,
    ) -> None:
        """Write keys and values.

        Parameters
        ----------
        layer : int or sequence of int
        k, v : array
            [heads, n, head_dim], with the layers in front where `layer` is a sequence. `v` is None
            exactly for K-only shapes.
        start, positions
            Positions start … start + n − 1, or n positions in any order; 0 when neither is given.
            Repeated positions: the last one stays.
        heads : int or sequence of int, optional
            KV heads; all when left out.

        Raises
        ------
        ValueError
            Shape, dtype or position does not fit.
        DeviceFullError
            A page got no frame; what was written to it is lost. It names the page, of several the
            first; the others that the call was given may be stored. The same call can be made again
            when pages were released. The device's event does not say whose request found no frame:
            where another host's read of the page did so just before, what was written may be there.
        PoisonError
            The same, where the event that says so is not to be had any more: the device's log had
            no room for it, or more than 1024 came meanwhile.
        DeviceFailedError
            Nothing is kept any more.
        NotMappedError, SessionClosedError, SessionLostError, TransportError
        """
        layers, one = self._layers(layer)
        heads = self._heads(heads)
        if (v is None) != self.shape.k_only:
            raise ValueError(
                "v is missing" if v is None else "v is refused: this session stores keys alone"
            )
        k = to_bits(k, self.shape.dtype, "k")
        v = None if v is None else to_bits(v, self.shape.dtype, "v")
        if one:
            k, v = k[None], None if v is None else v[None]
        count = k.shape[2] if k.ndim == 4 else -1
        expected = (_count(layers), _count(heads), count, self.shape.head_dim)
        for name, x in (("k", k), ("v", v)):
            if x is not None and x.shape != expected:
                raise ValueError(
                    f"{name} of shape {list(x.shape[one:])} is refused; legal: "
                    + f"{list(expected[one:-2])} + [positions, {self.shape.head_dim}]"
                )
        positions = self._positions(positions, start, count)
        if not count:
            self.device.transport.check()
            return
        addresses = self.layout.addresses(layers, heads, positions).reshape(-1)
        lines = self.layout.to_lines(k, v)
        order = _page_order(addresses)
        if order is not None:
            addresses, lines = addresses[order], lines[order]
        try:
            self.device.transport.store(addresses, lines)
        except BusError as error:
            place = {} if error.address is None else self.layout.place(error.address)
            raise error.with_(**place) from None
        except (NotMappedError, TransportError) as error:
            raise error.with_(**self.layout.place(addresses[0])) from None
        self._check_written(addresses)

    @_while_open
    def read(
        self,
        layer,
        *,
        start: int | None = None,
        stop: int | None = None,
        positions: Iterable[int] | None = None,
        heads=None,
        dtype=None,
    ):
        """Read keys and values.

        Parameters
        ----------
        layer : int or sequence of int
        start, stop, positions
            Positions start … stop − 1, from 0 where start is left out, or those listed. What was
            never written reads as zeros.
        heads : int or sequence of int, optional
        dtype : dtype, optional
            A two-byte type to view the elements as; float16 for fp16 sessions and uint16 for bf16
            when left out.

        Returns
        -------
        (k, v)
            [heads, n, head_dim] each, with the layers in front where `layer` is a sequence; v is
            None for K-only shapes. They share one buffer, which belongs to the caller.

        Raises
        ------
        PoisonError, FlashError, DeviceFailedError, DeviceFullError
            A line's content is lost, or, as the message then says, its page found no frame and is
            in the cold tier still; it names the page. Nothing is returned.
        NotMappedError, SessionClosedError, SessionLostError, TransportError
        """
        layers, one = self._layers(layer)
        heads = self._heads(heads)
        dtype = self._element_type(dtype)
        if (positions is None) == (stop is None):
            raise ValueError(
                ("stop is missing" if stop is None else "positions and stop exclude each other")
                + ": read(layer, start=…, stop=…) or read(layer, positions=…)"
            )
        count = 0
        if positions is None:
            start = integer("start", 0 if start is None else start, 0)
            count = integer("stop", stop, start) - start
        positions = self._positions(positions, start, count)
        lines = None
        if count and not self.device.transport.hints:
            lines = self._load_pages(layers, heads, positions)
        if lines is None:
            lines = self._load(layers, heads, positions)
        k, v = (
            None if x is None else x.view(dtype)
            for x in self.layout.from_lines(lines, _count(layers), _count(heads), _count(positions))
        )
        return (k[0], None if v is None else v[0]) if one else (k, v)

    def _load_pages(self, layers, heads, positions: slice) -> np.ndarray | None:
        """Plain memory's lines of `positions`, page by page instead of line by line; None where
        :meth:`_load` must ask for each."""
        first, counts = self.layout.spans(layers, heads, positions.start, positions.stop)
        try:
            return self.device.transport.load_spans(first, counts)
        except TransportError as error:
            raise error.with_(**self.layout.place(first[0])) from None

    def _load(self, layers, heads, positions) -> np.ndarray:
        """The lines of `positions`, uint8[n, 64]."""
        addresses = self.layout.addresses(layers, heads, positions).reshape(-1)
        # Plain memory has no pages to bring in one after another.
        order = _page_order(addresses) if self.device.transport.hints else None
        try:
            lines, status = self.device.transport.load(
                addresses if order is None else addresses[order]
            )
        except (NotMappedError, TransportError) as error:
            if not len(addresses):
                raise
            raise error.with_(**self.layout.place(addresses[0])) from None
        if order is not None:
            sorted_lines, sorted_status = lines, status
            lines, status = np.empty_like(sorted_lines), np.empty_like(sorted_status)
            lines[order], status[order] = sorted_lines, sorted_status
        if status.any():
            self._fail(addresses, status)
        return lines

    @_while_open
    def view(self, layer: int, head: int, page: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The device's own memory of one page, without a copy: (k, v), uint16[page_tokens,
        head_dim], live and writable.

        Only where the device is mapped plain memory (`dax:`). Unlike :meth:`read`, touching a view
        of memory that is gone ends the process with SIGBUS; and once the session is closed, what
        lies there may be another's.
        """
        page = integer("page", page, 0, self.pages - 1)
        c, tokens = self.device.config, self.page_tokens
        first = int(
            self.layout.addresses(
                self._layers(layer)[0], self._heads(head), np.array([page * tokens])
            )[0, 0, 0, 0, 0]
        )
        size = tokens * self.layout.token_lines * 64
        halves = [
            self.device.transport.view(first + half * c.half_lines * 64, size)
            for half in range(self.shape.halves)
        ]
        if halves[0] is None:
            raise UnsupportedError(
                "view() needs a device that is mapped plain memory (dax:); read() works everywhere"
            )
        halves = [h.view(np.uint16).reshape(tokens, -1)[:, : self.shape.head_dim] for h in halves]
        return halves[0], halves[1] if len(halves) == 2 else None

    # - choice near memory -------------------------------------------------------------------------
    @_while_open
    def select(
        self,
        layer: int,
        queries,
        *,
        tokens: int,
        pages: int | None = None,
        mass: float = 0.9,
        scale: float | None = None,
        fetch: bool = False,
        speculative: bool = False,
    ) -> Chosen:
        """Let the device choose the pages that a layer's queries ask for (docs/select.md). The
        pages chosen keep their frames until the session selects in another layer, selects in this
        one again, or lets a moment pass; until then :meth:`gather` reads them in one go.

        A device summarises pages by a *plan* of the layer's keys and queries, each once, at the
        first choice that has it below its newest page. Where :meth:`plan` has not named one by the
        first choice that has any such page, it is made then, and stays: of `queries`, and of up
        to 512 tokens of the pages behind the first, spread over the context, which are read for it
        and count as read; pages that cannot be read are left out.

        Parameters
        ----------
        layer : int
        queries : array
            [query heads, head_dim], of the session's type; as many for each KV head, in order.
        tokens : int
            Positions 0 … tokens − 1 are asked for.
        pages : int, optional
            Pages of each KV head at most, beside the first and the newest; as many as there are
            slots for when left out.
        mass : float
            Share of the attention after which no more pages are taken.
        scale : float, optional
            What products of query and key are multiplied by; 1/√head_dim when left out.
        fetch : bool
            Have pages that are wanted and not resident fetched for a later step, as a prefetch
            hint would, where the device is set to it (:meth:`cxl_kv.Device.fetch_chosen`); not
            those of less than `fetch_from`.
        speculative : bool
            Have them fetched for a layer whose queries are only guessed: nothing is chosen, and
            slots stay as they are.

        Raises
        ------
        UnsupportedError
            The device has no `select`, or does not choose among keys of this head_dim.
        ValueError
            An argument does not fit, or a query has a NaN.
        SelectRefusedError
            A server's budget has not so many pages, or the device refused. Where all heads were
            refused, the choice before holds what it held.
        TransportError
            The doorbell or the plan did not arrive as it was written.
        """
        return select(
            self,
            layer,
            queries,
            tokens=tokens,
            pages=pages,
            mass=mass,
            scale=scale,
            flags={
                name: int(instance(name, value, (bool, np.bool_), "True, False"))
                for name, value in (("fetch", fetch), ("speculative", speculative))
            },
        )

    @_while_open
    def plan(self, layer: int, keys, queries) -> None:
        """Name what a layer's pages are summarised by, from keys and queries at hand: better than
        what the first :meth:`select` reads and is given.

        For the end of a prefill, before the layer's first `select` with more than two pages.
        Summaries that the device has made stay as they are, and what they say is then mistaken:
        a later plan makes choices poorer, until these pages' keys are written anew. What is read is
        right whatever the plan.

        Parameters
        ----------
        layer : int
        keys : array
            [kv_heads, tokens, head_dim], of the session's type: of the whole context, or of some
            hundred tokens that are spread over it.
        queries : array
            [query heads, positions, head_dim]; the latest are like those to come.

        Raises
        ------
        UnsupportedError
            As :meth:`select`.
        ValueError
            Shape or dtype does not fit, or a query has a NaN.
        """
        plan(self, layer, keys, queries)

    @_while_open
    def summarise(self, layer: int, *, tokens: int, start: int = 0) -> None:
        """Have pages summarised before the first :meth:`select`, by the layer's plan, which is the
        session's from then on: those that hold positions start … tokens − 1, but the newest.

        For a prefill that is longer than the device's frames: a page that has gone before it was
        summarised is tried by each `select`, and nobody knows what mass it has. Pages are read, and
        so fetched where they are not there, and summarised by a SELECT that chooses nothing, KV
        head after KV head, as many at a time as half of a queue's share of the frames: frames of
        the pool / (2 · queues of the sessions opened by this device), at least one. The step
        advances with each lot, and the slots of the last choice are given back. Where others press
        so hard that pages go before that, these stay without.

        Raises
        ------
        UnsupportedError
            As :meth:`select`.
        ValueError
            An argument does not fit, or the layer has no plan (:meth:`plan`).
        """
        summarise(self, layer, start, tokens)

    @_while_open
    def sample(
        self, layer: int, positions: np.ndarray, *, heads=None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys of a layer at some positions, float32 [heads, n, head_dim]; and which of them could
        be read, bool [heads, n]. `heads` as of :meth:`read`."""
        shape = self.shape
        layer, heads = integer("layer", layer, 0, shape.layers - 1), self._heads(heads)
        positions = self._positions(_whole_numbers(positions), None, 0)
        addresses = self.layout.addresses(slice(layer, layer + 1), heads, positions)[0, :, 0]
        lines, status = self.device.transport.load(addresses.reshape(-1))
        if (status == Status.NOT_MAPPED).any():
            self._fail(addresses.reshape(-1), np.where(status == Status.NOT_MAPPED, status, 0))
        rows = lines.view(np.uint16).reshape(*addresses.shape[:2], -1)[..., : shape.head_dim]
        known = (status.reshape(addresses.shape) == Status.DATA).all(axis=-1)
        if not known.all():
            _, self._polled = self.device.since(self._polled)  # of a read, and no later store's
        return to_float32(rows, shape.dtype), known

    @_while_open
    def gather(self, chosen: Chosen, *, dtype=None):
        """The keys and values of the pages that :meth:`select` chose.

        Returns
        -------
        (k, v, positions)
            k and v [kv_heads, n, head_dim] and the tokens' positions, int64 [kv_heads, n]: −1 for
            places of a head that chose fewer pages, and behind the last token. v is None for K-only
            shapes. k and v share one buffer, which belongs to the caller; how often a line is
            copied on its way there says docs/cxl_kv.md.

        Raises
        ------
        NotMappedError
            A slot was given back meanwhile: select again.
        PoisonError, FlashError, DeviceFullError, SessionClosedError, TransportError
        """
        dtype = self._element_type(dtype)
        first, own, positions = gather(self, chosen)
        lines = self._load_whole(first.reshape(-1), own.reshape(-1))
        k, v = (
            None if x is None else x[0].view(dtype)
            for x in self.layout.from_lines(lines, 1, len(positions), positions.shape[1])
        )
        return k, v, positions

    def _load_whole(self, first: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The lines of pages' halves that begin at `first`, in their order; `own` are the addresses
        that an error names."""
        transport, count = self.device.transport, self.page_tokens * self.shape.token_lines
        if not transport.hints:
            lines = transport.load_spans(first, np.full(len(first), count))
            if lines is not None:
                return lines
        in_half = np.arange(0, LINE_BYTES * count, LINE_BYTES, dtype=np.uint64)
        lines, status = transport.load((first[:, None] + in_half).reshape(-1))
        if status.any():
            self._fail((own[:, None] + in_half).reshape(-1), status)
        return lines

    @contextlib.contextmanager
    def gather_in_place(self, chosen: Chosen, *, dtype=None):
        """The keys and values of the pages that :meth:`select` chose, where they lie: no line is
        copied. Only where the device is mapped plain memory (`dax:`)::

            with session.gather_in_place(chosen) as (k, v, pages):
                out = attend(q, k, v, pages, chosen.tokens)

        Yields
        ------
        (k, v, pages)
            k and v [kv_heads, pages to the newest, page_tokens, head_dim], read-only views of the
            device's own memory, v None for K-only shapes; and which pages were chosen, int64
            [kv_heads, n], −1 behind a head's last one. Position p is token p mod page_tokens of
            page p div page_tokens; those from `chosen.tokens` on do not count.

        Until the block ends other threads' calls on this session wait, so nothing is written, and
        the session not closed, behind the reader's back; what the block itself writes shows in the
        views. What was computed holds when the block has ended without an error: with its end the
        session is looked at, as :meth:`gather` does behind its copy. Behind the block the views,
        and what shares memory with them, are not to be touched: what lies there may be written
        anew, or be another's. As of :meth:`view`, touching memory that is gone ends the process
        with SIGBUS, in a child with SIGSEGV.

        Raises
        ------
        UnsupportedError
            The device is no mapped plain memory.
        ValueError
            `chosen` is another session's.
        SessionLostError, SessionClosedError, TransportError
            At the block's end: what was computed does not hold.
        """
        self.device.transport.home.check()
        with self._calls:
            self._usable()
            pages, dtype = table(self, chosen), self._element_type(dtype)
            halves = self._in_place(chosen.layer, (chosen.tokens - 1) // self.page_tokens, dtype)
            yield *halves, pages
            self._usable()
            self._load(slice(chosen.layer, chosen.layer + 1), np.arange(1), np.arange(1))

    def _in_place(self, layer: int, newest: int, dtype) -> tuple[np.ndarray, np.ndarray | None]:
        """Views of K and V of a layer's pages 0 … newest."""
        c, shape, tokens = self.device.config, self.shape, self.page_tokens
        first = self.layout.addresses(
            slice(layer, layer + 1), slice(None), tokens * np.arange(newest + 1)
        )[0, ..., 0]  # [kv_heads, halves, pages]
        begin, size = int(first[0, 0, 0]), tokens * shape.token_lines * LINE_BYTES
        memory = self.device.transport.view(
            begin, int(first[-1, -1, -1]) + size - begin, first[:, 0].reshape(-1)
        )
        if memory is None:
            raise UnsupportedError(
                "gather_in_place() needs a device that is mapped plain memory (dax:); gather() "
                + "works everywhere"
            )
        strides = [c.page_bits + c.line_bits, c.half_line_bits, c.line_bits]
        seen = np.lib.stride_tricks.as_strided(
            memory.view(dtype),
            (*first.shape, tokens, shape.head_dim),
            (*(LINE_BYTES << bits for bits in strides), shape.token_lines * LINE_BYTES, 2),
            writeable=False,
        )
        return seen[:, 0], seen[:, 1] if shape.halves == 2 else None

    def next_sequence(self) -> int:
        """A number for the next SELECT."""
        self._sequence = self._sequence % ((1 << 32) - 1) + 1
        return self._sequence

    # - steps and policy ---------------------------------------------------------------------------
    @_while_open
    def advance(self, steps: int = 1) -> None:
        """The session's step advances: one decode step is over."""
        integer("steps", steps, 0, (1 << 24) - 1)
        self.device.registers.write(
            self._name("command"), command=SessionCommand.ADVANCE, argument=steps
        )

    @property
    def step(self) -> int:
        """The device's step counter of this session, modulo 2^24."""
        return self.state()["step"]

    @_while_open
    def state(self) -> dict[str, int]:
        """Fields of the register `state`: open, busy, refused, decode, step."""
        return self.device.registers.fields(self._name("state"))

    @_while_open
    def set_policy(
        self, policy: Policy, *, layer: int | None = None, head: int | None = None
    ) -> None:
        """Change the policy of every queue, or of one layer's or one head's queues. Budgets are the
        control plane's (LD-ID 0); `auto_step` is the whole session's, so a policy of some queues
        has the one that the session has."""
        instance("policy", policy, Policy, "a Policy")
        some = layer is not None or head is not None
        if some and policy.auto_step != self.policy.auto_step:
            raise ValueError(
                f"auto_step = {policy.auto_step} is refused for one layer or head; legal: "
                + f"{self.policy.auto_step}, which is the session's"
            )
        if policy.budget_bytes != self.policy.budget_bytes and self.device.ld_id:
            raise UnsupportedError(
                "budget_bytes is the control plane's to change; open a session with less, or "
                + "ask who runs the server"
            )
        r = self.device.registers
        with self.device.transport.exclusive():
            fields = policy.policy_fields(self.device.config)
            writes = [
                (self._name("policy"), r.pack(self._name("policy"), **fields)),
                (self._name("recency"), r.pack(self._name("recency"), **policy.recency_fields)),
                (self._name("auto_step"), policy.auto_step),
            ]
            if not self.device.ld_id:
                writes.append((self._name("budget"), policy.budget_lines))
            layers, heads = (
                range(limit) if one is None else _indices(one, limit, name)
                for one, limit, name in (
                    (layer, self.shape.layers, "layer"),
                    (head, self.shape.kv_heads, "head"),
                )
            )
            if not some:
                writes.append(
                    (
                        self._name("command"),
                        r.pack(self._name("command"), command=SessionCommand.APPLY_ALL),
                    )
                )
            else:
                for one in layers:
                    for h in heads:
                        writes += [
                            (
                                self._name("queue"),
                                r.pack(
                                    self._name("queue"),
                                    queue=int(one) * self.shape.kv_heads + int(h),
                                ),
                            ),
                            (
                                self._name("command"),
                                r.pack(self._name("command"), command=SessionCommand.APPLY_QUEUE),
                            ),
                        ]
            r.write_many(writes)
            self._switches[np.ix_(layers, heads)] = policy.switches
            if not some:
                self.policy = policy

    def by_tables(self, layer: int) -> bool:
        """Whether a queue of the layer is under policy 2."""
        layer = integer("layer", layer, 0, self.shape.layers - 1)
        return bool((self._switches[layer] == 2).any())

    @property
    def wait_above(self) -> float | None:
        return self._wait_above

    @wait_above.setter
    def wait_above(self, value: float | None) -> None:
        if value is not None:
            value = real("wait_above", value, 0.0, 1.0)
            if not self.device.config.select_estimates:
                raise UnsupportedError(
                    f"configuration {self.device.config.name!r} does not estimate what is "
                    + "missing; one with `select_estimates` does (golden:unit_select)"
                )
        self._wait_above = value

    # - telemetry ----------------------------------------------------------------------------------
    @_while_open
    def telemetry(self, by: str = "head") -> dict[str, np.ndarray]:
        """`hits`, `misses`, `evictions`, `prefetch_useful`, `resident_bytes`, and where the
        configuration keeps them `allocations`, `write_backs`, `prefetch_issued`, `evicted_missed`;
        counted since the session was opened, of each queue modulo 2^32.

        Parameters
        ----------
        by : str
            ``"head"``: of each queue, int64[layers, kv_heads]; ``"layer"``: int64[layers];
            ``"session"``: int64[].
        """
        if not isinstance(by, str) or by not in _SUMMED:
            raise ValueError(f"by = {short(by)} is refused; legal: {', '.join(_SUMMED)}")
        return {name: x.sum(axis=_SUMMED[by]) for name, x in self._queue_counters().items()}

    def _queue_counters(self) -> dict[str, np.ndarray]:
        """Of each queue. The device counts from 0 in each session."""
        r = self.device.registers
        prefix = self._name("queue_")
        names = [name for name in r.by_name if name.startswith(prefix)]
        out = {
            name.removeprefix(prefix): np.zeros((self.shape.layers, self.shape.kv_heads), np.int64)
            for name in names
        }
        out["resident_bytes"] = np.zeros((self.shape.layers, self.shape.kv_heads), np.int64)
        with self.device.transport.exclusive():
            for queue in range(self.shape.queues):
                r.write(self._name("queue"), queue=queue)
                values = r.read_many([*names, self._name("resident")])
                for column, value in zip(
                    [*(name.removeprefix(prefix) for name in names), "resident_bytes"],
                    values,
                    strict=True,
                ):
                    out[column].flat[queue] = value * 64 if column == "resident_bytes" else value
        return out

    @_while_open
    def page_state(self, layer: int, head: int, page: int) -> dict:
        """A page's word: `state` (PageState), `pinned`, `last_step`, `format_k`, `format_v`,
        `place`."""
        layer = integer("layer", layer, 0, self.shape.layers - 1)
        head = integer("head", head, 0, self.shape.kv_heads - 1)
        integer("page", page, 0, self.pages - 1)
        r = self.device.registers
        with self.device.transport.exclusive():
            r.write_many(
                [
                    (
                        self._name("queue"),
                        r.pack(
                            self._name("queue"),
                            queue=layer * self.shape.kv_heads + head,
                            page=page,
                        ),
                    ),
                    (
                        self._name("command"),
                        r.pack(self._name("command"), command=SessionCommand.PEEK),
                    ),
                ]
            )
            word = r.fields(self._name("page_word"))
        return word | {"state": PageState(word["state"])}

    # - end ----------------------------------------------------------------------------------------
    def close(self) -> None:
        """Close the session; its pages are scrubbed and its frames free when this returns. Waits
        for other threads' calls that are under way. Harmless a second time, in a child of the
        process that opened it, and where the connection to the server is lost: with that the server
        closes it, in its own time. Where it fails or is interrupted, it can be called again."""
        if not self.closed:
            self.closed = True  # from now on, no call begins
            if self.device.transport.home.left() or self.device.closed:
                self.plans.clear()
                return  # a device that was closed has closed its sessions
            try:
                # What the transport has closed already is closed.
                with self._calls, contextlib.suppress(ConnectionLostError, NotMappedError):
                    self.plans.clear()
                    self.device.transport.close_session(self.number)
                self.device.forget(self.serial)
            except BaseException:
                # The device has it still, to be closed again, unless its number is another's.
                self.closed = not self.device.holds(self.serial)
                raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self):
        size = (
            f"{self.shape.layers} layers × {self.shape.kv_heads} heads × {self.max_tokens} tokens"
        )
        return f"<cxl_kv.Session {self.number}: {size}{' (closed)' if self.closed else ''}>"

    # - checks -------------------------------------------------------------------------------------
    def _name(self, register: str) -> str:
        return f"s{self.number}_{register}"

    def _usable(self):
        if self.closed:
            raise SessionClosedError("the session was closed", session=self.number)

    def _layers(self, layer) -> tuple[np.ndarray | slice, bool]:
        """An index into the layers, and whether it is one layer, without a dimension of its own."""
        if type(layer) is int and 0 <= layer < self.shape.layers:
            return slice(layer, layer + 1), True
        return _indices(layer, self.shape.layers, "layer"), np.ndim(layer) == 0

    def _element_type(self, dtype) -> np.dtype:
        """Of what `read` returns."""
        if dtype is None:
            dtype = np.float16 if self.shape.dtype == HostType.FP16 else np.uint16
        try:
            found = np.dtype(dtype)
        except TypeError:
            found = None
        if found is None or found.itemsize != 2 or not found.isnative:
            raise ValueError(
                f"dtype = {short(dtype)} is refused; legal: a type of two bytes in this machine's "
                + "order, as float16 or uint16"
            )
        return found

    def _heads(self, heads) -> np.ndarray | slice:
        return (
            slice(0, self.shape.kv_heads)
            if heads is None
            else _indices(heads, self.shape.kv_heads, "head")
        )

    def _positions(self, positions, start, count) -> np.ndarray | slice:
        most = self.max_tokens
        if positions is not None and start is not None:
            raise ValueError(
                f"start = {short(start)} is refused beside positions; legal: one of the two"
            )
        if positions is None:
            start = 0 if start is None else start
            start = start if type(start) is int else integer("start", start, 0, most)
            chosen = slice(start, start + max(0, count))
            fits = count <= 0 or 0 <= start <= most - count
            outside = [] if fits else [start if start < 0 else max(start, most)]
        else:
            chosen = _whole_numbers(positions)
            if count and len(chosen) != count:
                raise ValueError(f"{len(chosen)} positions for {count} tokens are refused")
            outside = chosen[(chosen < 0) | (chosen >= most)]
        if len(outside):
            raise ValueError(
                f"position {outside[0]} is refused; session {self.number} holds 0 … {most - 1}"
            )
        return chosen

    def _check_written(self, addresses):
        """An error where lines that were just stored are not there."""
        events, self._polled = self.device.since(self._polled)
        if self.device.has_failed():
            raise DeviceFailedError(_FAILED, **self.layout.place(addresses[0]))
        for event in events:
            if event["session"] != self.number:
                continue
            layer, head = divmod(event["queue"], self.shape.kv_heads)
            place = {"layer": layer, "head": head, "page": event["page"]}
            if event["code"] == "CLOSED_SESSION":
                raise SessionClosedError(_NOTHING_STORED, session=self.number)
            if event["code"] == "STARVED" and place in self._pages_of(addresses):
                # Of another page it is of somebody's read; of these, nobody can tell.
                raise DeviceFullError(
                    "the device is full: the page found no frame, and what was written to it is "
                    + "lost; release pages or close a session",
                    session=self.number,
                    **place,
                )
            if event["ld_id"] != self.device.ld_id:
                continue  # LD-ID 0 is also told what others were refused here
            if event["code"] == "FOREIGN_LD":
                raise SessionClosedError(
                    "the session was closed on the device, and its number is another owner's by "
                    + "now; nothing was stored",
                    session=self.number,
                )
            if event["code"] == "OUT_OF_MAP" and self._is_of(event, addresses):
                raise NotMappedError(
                    "the device maps no such line for this session; it was not stored",
                    session=self.number,
                    **place,
                )
        if any(event["code"] == "OVERFLOW" for event in events):
            self._look_for_lost_pages(addresses)

    def _is_of(self, event: dict, addresses) -> bool:
        """Whether the event's page is one of those of `addresses`."""
        c = self.device.config
        page = (event["session"] << c.queue_bits | event["queue"]) << c.page_bits | event["page"]
        return bool((addresses >> np.uint64(6 + c.line_bits) == page).any())

    def _look_for_lost_pages(self, addresses):
        """An event that is not to be had any more may have told of a page just written, or that
        nothing was stored."""
        if not self.state()["open"]:
            raise SessionClosedError(
                "the session is closed on the device, or another owner's; nothing was stored",
                session=self.number,
            )
        for place in self._pages_of(addresses):
            word = self.page_state(**place)
            if word["state"] is PageState.LOST:
                raise PoisonError(
                    "the page is lost, and what was written to it; the event that says why is not "
                    + "to be had any more: write the page anew or recompute it",
                    session=self.number,
                    **place,
                )

    def _pages_of(self, addresses) -> list[dict[str, int]]:
        """`layer`, `head` and `page` of each page that these lines are of."""
        page_bytes = np.uint64(LINE_BYTES << self.device.config.line_bits)
        places = map(self.layout.place, np.unique(addresses // page_bytes) * page_bytes)
        return [{name: place[name] for name in ("layer", "head", "page")} for place in places]

    def _fail(self, addresses, status):
        first = int(np.flatnonzero(status)[0])
        place = self.layout.place(addresses[first])
        if status[first] == Status.NOT_MAPPED:
            if not self.state()["open"]:
                raise SessionClosedError(
                    "the session is closed on the device, or another owner's", **place
                )
            raise NotMappedError("the device maps no such line for this session", **place)
        if not self.device.transport.hints:
            raise BusError(
                "the memory behind this line is gone (SIGBUS); nothing is known about what it held",
                **place,
            ).with_(address=int(addresses[first]))
        if self.device.has_failed():
            raise DeviceFailedError(_FAILED, **place)
        queue = place["layer"] * self.shape.kv_heads + place["head"]
        why = self.device.explain(self.number, queue, place["page"], polled=self._first)
        self._polled = self.device.polled  # of a read, and no later store's
        if why == "FETCH_FAILED":
            raise FlashError(
                "the page could not be read from the cold tier; write it anew or recompute it",
                **place,
            )
        if why == "STARVED":
            named = {name: place[name] for name in ("layer", "head", "page")}
            if self.page_state(**named)["state"] is PageState.COLD:
                # A page that a write was meant for is LOST by then, or was written anew.
                raise DeviceFullError(
                    "the device is full: the page found no frame, and is in the cold tier still; "
                    + "it can be read when pages were released or a session was closed",
                    **place,
                ).with_(in_cold_tier=True)
            raise DeviceFullError(
                "the device is full: the page found no frame, and its content is lost", **place
            )
        if why == "MEMORY_READ_FAILED":
            raise PoisonError(
                "the device's memory has answered a read with an error, and may hold what was "
                + "written: read the page again, or write it anew or recompute it",
                **place,
            )
        if why == "MEMORY_WRITE_FAILED":
            raise PoisonError(
                "the device's memory has answered with an error; write the page anew or "
                + "recompute it",
                **place,
            )
        raise PoisonError(
            "the device answered with poison; write the page anew or recompute it", **place
        )


def _whole_numbers(positions) -> np.ndarray:
    """int64[n]; ValueError for what is no list of whole numbers: 1.5 is not position 1."""
    legal = "whole numbers, one a token"
    if not isinstance(positions, np.ndarray):
        positions = listed("positions", positions, legal)
    array = np.asarray(unmasked("positions", positions))
    if array.ndim != 1 or array.size and array.dtype.kind not in "iu":
        raise ValueError(f"positions = {short(positions)} is refused; legal: {legal}")
    return array.astype(np.int64)


def _indices(value, limit: int, name: str) -> np.ndarray:
    array = np.atleast_1d(np.asarray(unmasked(name, value)))
    if (
        array.ndim != 1
        or array.dtype.kind not in "iu"
        or not len(array)
        or array.min() < 0
        or array.max() >= limit
    ):
        raise ValueError(
            f"{name} = {short(value)} is refused; legal: 0 … {limit - 1}, or a sequence of them"
        )
    return array.astype(np.int64)


def _count(index: np.ndarray | slice) -> int:
    """How many an index of `Session._layers` or `_heads` picks."""
    return index.stop - index.start if isinstance(index, slice) else len(index)


def _page_order(addresses: np.ndarray) -> np.ndarray | None:
    """An order in which pages come one after another, K and V together, equal addresses in theirs;
    None where it is so already."""
    if (addresses[1:] >= addresses[:-1]).all():
        return None
    return np.argsort(addresses, kind="stable")
