# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A text decoded step by step by a host whose device chooses: what is resident decides what is
attended to, and that decides the next queries. Several devices decode side by side.

A page that is wanted and absent is fetched and used when it has landed, by the clock of
:mod:`kelp_sim.select.timing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from kelp_golden import select as golden
from kelp_spec import policy2

from ..compiled import njit
from ..quality.llama import Llama, attend
from ..quality.threads import one_thread
from . import kernel, memory
from .readers import _blocks, plans_of, scale_of
from .timing import RTL, Choice, Layer, Shape, Timing

__all__ = [
    "Device",
    "Host",
    "NearHost",
    "Prefix",
    "Query",
    "Run",
    "attended",
    "decode",
    "frames_of",
]

ONE = 1 << 16
POLICIES = {"lru": memory.LRU, "table": memory.TABLE, "kelp": memory.KELP}


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device and what its host asks of it."""

    residency: float = 1.0  #: of the pages at the end
    compute: int = 0  #: of the host, cycles a layer
    quota: int = 16
    most: int = 16
    target: float = 0.9
    #: a layer waits while more than this share of its mass is missing; 1: never
    wait_above: float = 1.0
    policy: str = "table"  #: of `POLICIES`: what a pool keeps by
    #: mass of each query head's 65536 from which on a page that is wanted is fetched, but under LRU
    fetch_from: int = policy2.FETCH
    guess: bool = True  #: the host sends the next layer's guessed query
    #: the mass of an absent candidate is known as if its keys were here: what estimates cost
    told: bool = False
    timing: Timing = RTL

    def begin(self, prefix: Prefix) -> Host:
        """Its host, by the clock of :mod:`kelp_sim.select.timing`."""
        return NearHost(self, prefix)


@dataclass(frozen=True, eq=False)
class Prefix:
    """A text up to its first decoded token, as every device gets it."""

    model: Llama
    shape: Shape
    first: int
    tokens: int  #: of the whole text
    k: np.ndarray  #: [layers, kv_heads, first, d]
    v: np.ndarray
    lines: np.ndarray  #: how keys are summarised, uint8 [layers, kv_heads, lines of a token, 64]
    plans: list  #: what these lines say, by layer and KV head

    @property
    def pages(self) -> int:
        return -(-self.tokens // self.shape.page_tokens)

    def run(self, device: Device) -> Run:
        """Of a host that has not begun."""
        steps, heads = self.tokens - self.first, self.shape.kv_heads
        at = steps, self.model.layers
        return Run(
            device,
            np.zeros(steps),
            np.zeros((*at, heads, self.pages), bool),
            np.zeros(steps, np.int64),
            np.zeros(at, bool),
            *(np.zeros(steps, np.int64) for _ in range(2)),
            np.zeros((*at, heads, 4)),
            np.zeros(steps, np.int64),
            np.zeros(steps, np.int64),
        )


class Query(NamedTuple):
    """A layer's queries: as numbers float32 [heads, d], and as blocks [heads, lines]."""

    values: np.ndarray
    x: np.ndarray
    e: np.ndarray


class Host(Protocol):
    """What a text is decoded with."""

    run: Run

    def write(self, layer: int, position: int, k, v, blocks) -> None:
        """The step's key and value [kv_heads, d], as float16 has them, and the key's blocks."""

    def attend(
        self, step: int, layer: int, position: int, query: Query, guess: Query | None
    ) -> np.ndarray:
        """What a layer of a step reads [heads, d]; ``guess``: the next layer's query, as it is
        guessed."""

    def step_over(self, step: int) -> None:
        """Every layer of the step is over."""


@dataclass
class Run:
    """What one device did, step by step from ``first`` on."""

    device: Device
    nats: np.ndarray  #: [steps] −log p of the next token
    chosen: np.ndarray  #: [steps, layers, kv_heads, pages] bool
    cycles: np.ndarray  #: [steps] from the first message to the last answer
    waits: np.ndarray  #: [steps, layers] bool
    reads: np.ndarray  #: [steps] flash reads
    early: np.ndarray  #: [steps] those of a guess
    #: [steps, layers, kv_heads, 4]: mass of the candidates that are absent, as estimated and as it
    #: is, candidates, absent ones
    missing: np.ndarray
    link: np.ndarray  #: [steps] bytes over the link
    useful: np.ndarray = field(default=None)  #: [steps] bytes of the pages chosen
    #: where it was asked for, float16: queries [steps, layers, heads, d] as the host writes them,
    #: keys and values [layers, kv_heads, tokens, d]
    q: np.ndarray | None = None
    k: np.ndarray | None = None
    v: np.ndarray | None = None
    plans: np.ndarray | None = None  #: uint8 [layers, kv_heads, lines, 64], as the host writes them


def frames_of(residency: float, pages: int) -> int:
    """Frames for a share of so many pages of all queues."""
    return round(residency * pages)


@njit
def attended(q, k, v, chosen, position, size, out):
    """One KV head: q [heads, d], k, v [tokens, d]; over the chosen pages, to the position."""
    heads, dim = q.shape
    scale = np.float32(dim**-0.5)
    for head in range(heads):
        top, whole = np.float32(-np.inf), np.float32(0)
        out[head] = 0
        for page in range(position // size + 1):
            if not chosen[page]:
                continue
            for token in range(page * size, min(page * size + size, position + 1)):
                score = np.float32(0)
                for i in range(dim):
                    score += q[head, i] * k[token, i]
                score *= scale
                if score > top:
                    fade = np.exp(top - score)
                    whole *= fade
                    for i in range(dim):
                        out[head, i] *= fade
                    top = score
                w = np.exp(score - top)
                whole += w
                for i in range(dim):
                    out[head, i] += w * v[token, i]
        for i in range(dim):
            out[head, i] /= whole


class NearHost:
    """One device with its keys, and what it counts."""

    def __init__(self, device: Device, prefix: Prefix):
        model, shape, first = prefix.model, prefix.shape, prefix.first
        self.d, self.shape, self.plans = device, shape, prefix.plans
        self._compiled = [[kernel.planned(plan) for plan in layer] for layer in self.plans]
        self.layers, heads = model.layers, shape.kv_heads
        self.queues = self.layers * heads
        size = shape.page_tokens
        self.pages = prefix.pages
        self.m, self.sh = scale_of(model.head_dim)
        k, v = prefix.k, prefix.v
        padded = self.layers, heads, self.pages * size, model.head_dim
        self.k, self.v = np.zeros(padded, np.float32), np.zeros(padded, np.float32)
        self.k[:, :, :first], self.v[:, :, :first] = k, v
        lines = shape.lines
        self.kx = np.zeros((*padded[:3], lines, 32), np.int8)
        self.ke = np.full((*padded[:3], lines), -127, np.int16)
        self.codes = np.zeros(self.ke.shape, np.uint32)
        for layer in range(self.layers):
            for head in range(heads):
                blocks = _blocks(k[layer, head])
                self.kx[layer, head, :first], self.ke[layer, head, :first] = blocks.x, blocks.e
                self._summarise(layer, head, slice(0, first // size * size))
        self.frames = frames_of(device.residency, self.pages * self.queues)
        self.pool = memory.new_pool(self.queues, self.pages, self.frames)
        self._start(first)
        self.now = self._slots = 0
        self._guesses = (
            device.guess and device.policy != "lru" and self.frames < self.queues * self.pages
        )
        self.run = prefix.run(device)
        self._sums, self._true = np.zeros((2, self.pages), np.int64)
        self._chosen, self._wanted = np.zeros((2, self.pages), bool)

    def _start(self, first: int) -> None:
        """The first page of each queue is resident, which every query reads, and its newest, as
        many as its share of the frames."""
        newest, s = (first - 1) // self.shape.page_tokens, self.pool
        share = max(1, min(newest + 1, self.frames // self.queues))
        for queue in range(self.queues):
            at = queue * self.pages + newest
            held = np.r_[queue * self.pages, at - share + 2 : at + 1]
            s.state[held], s.shadow[held] = memory.RESIDENT, True
        s.newest[:] = newest
        s.at[memory.USED] = s.at[memory.SHADOW] = share * self.queues

    def _summarise(self, layer: int, head: int, part: slice) -> None:
        """Keys of whole pages."""
        x, e = (a[layer, head, part].astype(np.int64) for a in (self.kx, self.ke))
        keys = golden.Blocks(x, e, np.zeros(e.shape, bool))
        self.codes[layer, head, part] = golden.summary(keys, self.plans[layer][head])

    def write(self, layer: int, position: int, k, v, blocks) -> None:
        self.k[layer, :, position], self.v[layer, :, position] = k, v
        self.kx[layer, :, position], self.ke[layer, :, position] = blocks
        if position and not position % self.shape.page_tokens:
            for head in range(self.shape.kv_heads):
                self._summarise(layer, head, slice(position - self.shape.page_tokens, position))

    def _consider(self, layer: int, head: int, query, turn: memory.Turn, tokens: int):
        mine = slice(head * self.shape.group, (head + 1) * self.shape.group)
        at = layer, head
        kept = self.kx[at], self.ke[at], self.codes[at], self._compiled[layer][head]
        _, row = self._queue(layer, head)
        asked = kernel.Asked(
            turn.newest, tokens, self.shape.page_tokens, self.d.quota, self.m, self.sh
        )
        found = kernel.consider(
            query.x[mine],
            query.e[mine],
            kernel.Head(*kept, self.pool.state[row]),
            asked,
            self._sums,
            self._true,
        )
        if self.d.told:
            self._sums[:] = self._true
        return found

    def _turn(self, step: int, newest: int, queue: int, now: int) -> memory.Turn:
        slot = -(-self.shape.slot_bytes // self.d.timing.tier_bytes)
        keeps = POLICIES[self.d.policy], self.d.fetch_from
        pool = self.pages, self.frames, self.shape.group, slot, *keeps
        return memory.Turn(*pool, newest, queue, step + 1, int(now))

    def attend(
        self, step: int, layer: int, position: int, query: Query, guess: Query | None
    ) -> np.ndarray:
        d, shape, run = self.d, self.shape, self.run
        newest, tokens = position // shape.page_tokens, position % shape.page_tokens + 1
        begun, start = self.now, self.now + d.compute
        first = layer * shape.kv_heads
        if tokens == 1:
            for queue in range(first, first + shape.kv_heads):
                memory.opened(self.pool, self._turn(step, newest, queue, start), queue)
        self.pool.held[:] = False
        clock = d.timing.begin(shape, d.quota, d.most)
        gathered, out = 0, np.empty_like(query.values)
        for head in range(shape.kv_heads):
            at = step, layer, head
            answered, count = self._select(at, query, newest, tokens, start, clock)
            gathered += d.timing.page_lines(shape, count, tokens)
            mine = slice(head * shape.group, (head + 1) * shape.group)
            keys = self.k[layer, head], self.v[layer, head]
            attended(
                query.values[mine], *keys, self._chosen, position, shape.page_tokens, out[mine]
            )
        if guess is not None and self._guesses:
            after = self._turn(step, newest, first + shape.kv_heads, answered)
            self._early(layer + 1, guess, after, tokens)
        self.now = start + clock.over()
        run.cycles[step] += self.now - begun
        asked = shape.kv_heads * (d.timing.asked(shape) + d.timing.told(d.most))
        asked += d.timing.written(shape)
        if guess is not None and d.guess:
            asked += shape.kv_heads * d.timing.asked(shape)
        useful = 64 * gathered
        run.useful[step] += useful
        run.link[step] += useful + 64 * asked
        return out

    def _select(self, at, query, newest, tokens, start, clock: Layer) -> tuple[int, int]:
        """SELECT of a KV head behind others: when it is answered, and how many pages it chose."""
        s, run, (step, layer, head) = self.pool, self.run, at
        now = start + clock.front
        queue, keys = self._queue(layer, head)
        memory.land(s, now)
        turn = self._turn(step, newest, queue, now)
        candidates, looks, wait = self._choice(at, query, turn, tokens)
        run.chosen[at] = self._chosen
        s.held[keys] = self._chosen
        count = int(self._chosen.sum())
        did = Choice(
            pages=newest + 1,
            candidates=candidates,
            looks=looks,
            chosen=count,
            tokens=tokens,
            rebuilt=int(tokens == 1 and newest > 1),  # the page that is whole by now
            released=self._slots if head == 0 else 0,
        )
        self._slots = count if head == 0 else self._slots + count
        answered = start + clock.serve(did, wait)
        turn = self._turn(step, newest, queue, answered)
        memory.turn_over(s, turn, queue, self._chosen | self._wanted)
        memory.demand(s, turn, queue, self._wanted, self._sums, False)
        return answered, count

    def _choice(self, at, query, turn: memory.Turn, tokens: int) -> tuple[int, int, int]:
        """Chosen and wanted pages of a KV head: how many candidates there were, how many of their
        tokens were looked at, and how long the layer waits for the tier."""
        d, shape, s, run, (step, layer, head) = self.d, self.shape, self.pool, self.run, at
        queue, keys = self._queue(layer, head)
        candidates, absent, looks = self._consider(layer, head, query, turn, tokens)
        missing = self._choose(queue, turn)
        gone = s.state[keys][: turn.newest + 1] != memory.RESIDENT
        true = self._true[: turn.newest + 1][gone].sum()
        run.missing[at] = missing, true, candidates, absent
        if missing <= d.wait_above * ONE * shape.group or not self._wanted.any():
            return candidates, looks, 0
        run.waits[step, layer] = True
        wait = self._fetched(queue, keys, turn)
        self._consider(layer, head, query, turn, tokens)
        self._choose(queue, turn)
        return candidates, looks, wait

    def _choose(self, queue: int, turn: memory.Turn) -> int:
        """By the masses that were found: what is missing."""
        target = round(self.d.target * ONE) * self.shape.group
        state = self.pool.state[queue * self.pages : (queue + 1) * self.pages]
        return kernel.choose(
            self._sums, state, turn.newest, target, self.d.most, self._chosen, self._wanted
        )

    def _queue(self, layer: int, head: int) -> tuple[int, slice]:
        """A KV head's queue, and its keys."""
        queue = layer * self.shape.kv_heads + head
        return queue, slice(queue * self.pages, (queue + 1) * self.pages)

    def _fetched(self, queue: int, keys: slice, turn: memory.Turn) -> int:
        """The layer waits until what is wanted is there: so many cycles."""
        s = self.pool
        s.held[keys] = self._chosen
        latest = memory.demand(s, turn, queue, self._wanted, self._sums, True)
        wait = max(0, latest - turn.now)
        memory.land(s, turn.now + wait)
        return wait

    def _early(self, layer: int, guess, turn: memory.Turn, tokens: int) -> None:
        for head in range(self.shape.kv_heads):
            queue = layer * self.shape.kv_heads + head
            self._consider(layer, head, guess, turn, tokens)
            if self.d.policy == "kelp":
                self._choose(queue, turn)
                memory.ahead(self.pool, turn, queue, self._wanted, self._sums)
                continue
            mass = np.minimum(self._sums // self.shape.group, 65535)
            memory.early(self.pool, turn, queue, mass, self._sums > 0)

    def step_over(self, step: int) -> None:
        s, run = self.pool, self.run
        run.reads[step], run.early[step] = s.at[memory.READS], s.at[memory.EARLY]
        s.at[[memory.READS, memory.EARLY]] = 0


@one_thread()
def decode(
    model: Llama,
    tokens: np.ndarray,
    first: int,
    devices: Sequence[Device],
    *,
    keep: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[Run]:
    """The text from token ``first`` on, of each device; dense before, whose keys and queries the
    hosts plan with. With ``keep`` each `Run` has the lines that its host writes."""
    heads, kv_heads = model.config["num_attention_heads"], model.kv_heads
    shape = Shape(kv_heads=kv_heads, group=heads // kv_heads, lines=-(-model.head_dim // 32))
    prefix = Prefix(model, shape, first, len(tokens), *_prefix(model, tokens[:first], shape))
    hosts = [device.begin(prefix) for device in devices]
    count, queries = len(hosts), []  # of each step and layer [heads, devices, d]
    for step, position in enumerate(range(first, len(tokens) - 1)):
        turn = model.turn(np.array([position]))
        x = np.repeat(model.embedded(tokens[position : position + 1]), count, axis=0)
        for layer in range(model.layers):
            q, k, v = model.project(layer, x, turn)
            # The next layer's query, from this layer's input; after the last layer none is known.
            after = layer + 1 < model.layers
            guess = model.query(layer + 1, x, turn) if after else None
            kv = np.stack([k, v]).astype(np.float16).astype(np.float32)
            rows = np.concatenate([q, k] + ([guess] if after else []))
            found = _blocks(rows.reshape(-1, rows.shape[-1]))
            bx = found.x.reshape(*rows.shape[:2], shape.lines, 32).astype(np.int8)
            be = found.e.reshape(*rows.shape[:2], shape.lines).astype(np.int16)
            out = np.empty_like(q)
            if keep:
                queries.append(q.astype(np.float16))
            for n, host in enumerate(hosts):
                host.write(
                    layer, position, kv[0][:, n], kv[1][:, n],
                    (bx[heads : heads + kv_heads, n], be[heads : heads + kv_heads, n]),
                )  # fmt: skip
                query = _query(q, bx[:heads], be[:heads], n)
                guessed = _query(guess, bx[-heads:], be[-heads:], n) if after else None
                out[:, n] = host.attend(step, layer, position, query, guessed)
            x = model.after(layer, x, out)
        nats = model.nats(x, np.repeat(tokens[position + 1], count))
        for n, host in enumerate(hosts):
            host.run.nats[step] = nats[n]
            host.step_over(step)
        if progress is not None:
            progress(step + 1)
    for host in hosts:
        for name in ("nats", "chosen", "cycles", "waits", "reads", "early", "missing",
                     "link", "useful"):  # fmt: skip
            setattr(host.run, name, getattr(host.run, name)[:-1])
    if keep:
        every = np.stack(queries).reshape(-1, model.layers, *queries[0].shape)
        for n, host in enumerate(hosts):
            end = len(tokens) - 1
            host.run.q = every[:, :, :, n]
            host.run.k, host.run.v = (a[:, :, :end].astype(np.float16) for a in (host.k, host.v))
            host.run.plans = prefix.lines
    return [host.run for host in hosts]


def _query(values, x, e, device: int) -> Query:
    """One device's, of all."""
    return Query(*(np.ascontiguousarray(part[:, device]) for part in (values, x, e)))


def _prefix(model: Llama, tokens: np.ndarray, shape: Shape):
    """Keys and values [layers, kv_heads, tokens, d], and plans made of them: the host's lines
    [layers, kv_heads, lines, 64], and by layer and KV head what they say."""
    kept, lines, plans = [], [], []

    def note(_layer, q, k, v, positions):
        kept.append((k, v))
        made = plans_of(k, q, model.moved, shape.page_tokens)
        lines.append(np.stack([one for one, _ in made]))
        plans.append([plan for _, plan in made])
        return attend(q, k, v, positions)

    model.losses(tokens, attention=note)
    k, v = (np.stack(half) for half in zip(*kept, strict=True))
    return k, v, np.stack(lines), plans
