# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A text decoded by a host whose device is RTL, with fewer frames than pages: what the device
answers is attended to, and that decides the next queries (docs/select_study.md,
"In a closed loop")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kelp_sim.select.decode import ONE, Device, Prefix, Query, attended, frames_of
from kelp_sim.select.readers import scale_of
from kelp_spec import policy2
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES
from kelp_spec.hints import mass_lines
from kelp_spec.metadata import PrefetchSource
from kelp_spec.select import (
    ANSWER_FIELDS,
    CHOSEN_FIELDS,
    SelectStatus,
    SlotState,
    record,
)

from ..device import Descriptor, Driver, DriverError, FlashTiming, MemoryTiming, QueueParameters
from ..program import Program, Response, Result
from .choosing_host import ChoosingHost, Head, Reads, padded

__all__ = ["FREE", "PATIENCE", "RtlDevice", "RtlHost"]

#: frames that eviction keeps free (register `high_water`), beside the share of the pages that are
#: resident; all but _FETCHED of them, or one for each queue, are for pages that are written for the
#: first time (`low_water`): where fetches take these a token waits until a page has gone to flash
FREE, _FETCHED = 16, 4
#: a SELECT waits for so many times what a page takes from flash, to the next power of two
PATIENCE = 4


@dataclass(kw_only=True, eq=False)
class RtlDevice:
    """`device` by the RTL of `config`, which must estimate and have tables; its frames are those of
    the device's residency and FREE more. ValueError, as it begins, where a text does not fit."""

    device: Device
    config: Config
    memory: MemoryTiming = MemoryTiming(latency=64)
    seed: int = 1
    host: RtlHost | None = None  #: of the text that began last

    def begin(self, prefix: Prefix) -> RtlHost:
        self.host = RtlHost(self, prefix)
        return self.host


class RtlHost(ChoosingHost):
    """The host of a text: :class:`kelp_sim.select.decode.Host`.

    Each page of the prefix is summarised as it is whole, by a guess that names nothing: one that
    goes before has no codes until it is fetched, and costs each SELECT a try. A guess
    of the next layer is sent where what it fetches can land by then: behind the last answer of a
    layer, beside its last gathered lines.

    Attributes
    ----------
    wrong : int
        Gathered lines that are not what was written.
    cycles : int64 [steps, layers]
    late : int
        Pages chosen that were not there any more, and were read at their own addresses.
    guesses : int
        Layers whose guessed query was sent.
    """

    def __init__(self, rtl: RtlDevice, prefix: Prefix):
        d, model, shape, first = rtl.device, prefix.model, prefix.shape, prefix.first
        self.d, self.group, self.run = d, shape.group, prefix.run(d)
        queues = model.layers * shape.kv_heads
        frames = frames_of(d.residency, prefix.pages * queues) + FREE
        config = _fitting(rtl.config, prefix, frames, d)
        k = np.zeros((*prefix.k.shape[:2], prefix.pages * shape.page_tokens, model.head_dim))
        k, v = k.astype(np.float16), k.astype(np.float16)
        k[:, :, :first], v[:, :, :first] = prefix.k, prefix.v
        self._float_k, self._float_v = k.astype(np.float32), v.astype(np.float32)
        t = d.timing
        driver = Driver(
            config,
            memory=rtl.memory,
            flash=FlashTiming(
                latency=t.tier_latency, write_latency=t.tier_latency, bytes_per_cycle=t.tier_bytes
            ),
            seed=rtl.seed,
        )
        m, sh = scale_of(model.head_dim)
        bell = {"target": round(d.target * ONE) * shape.group, "most": d.most, "m": m, "sh": sh}
        super().__init__(config, driver, padded(k), padded(v), prefix.lines, bell)
        driver.write_registers(
            {
                "prefetch_enable": 1 << PrefetchSource.HINT - 1,
                "high_water": FREE,
                "low_water": min(queues, FREE - _FETCHED),
            }
        )
        driver.open_session(
            0,
            Descriptor(
                layers=self.layers, kv_heads=self.kv_heads, used_lines=self.size * self.lines
            ),
            QueueParameters(policy=2),
        )
        self.cycles = np.zeros(self.run.waits.shape, np.int64)
        self.wrong = self.late = self.guesses = self._sequence = 0
        self._prefix(first)
        self._reads, self._guessed = driver.counts()["flash_reads"], driver.time

    # - the prefix ---------------------------------------------------------------------------------
    def _prefix(self, first: int) -> None:
        none = np.zeros((self.kv_heads * self.group, LINE_BYTES * self.lines), np.uint8)
        for page in range(-(-first // self.size)):
            tokens = range(page * self.size, min(first, (page + 1) * self.size))
            for layer in range(self.layers):
                # A sweep that has begun when a page gets its frame takes it for any other.
                self.driver.run(_stores(*self.written(layer, tokens[:1])))
                self.driver.settle()
                if tokens[1:]:
                    self.driver.run(_stores(*self.written(layer, tokens[1:])))
                if len(tokens) < self.size:
                    continue
                # With others between, the page might be gone, which nobody has read.
                asked = self._asked(layer, none, tokens.stop, speculative=1, most=0, target=0)
                self.driver.run(_stores(*asked))
                for head in range(self.kv_heads):
                    self._answer(head)
            self.driver.settle()

    # - a step -------------------------------------------------------------------------------------
    def write(self, layer: int, position: int, k, v, blocks) -> None:
        for half, numbers, lines in ((k, self._float_k, self.k), (v, self._float_v, self.v)):
            numbers[layer, :, position] = half
            lines[layer, :, position] = padded(half.astype(np.float16))

    def attend(
        self, step: int, layer: int, position: int, query: Query, guess: Query | None
    ) -> np.ndarray:
        driver, run, begun = self.driver, self.run, self.driver.time
        if self.d.compute:
            driver.elapse(self.d.compute)
        addresses, rows = self.written(layer, [position])
        more = {"fetch": 1, "fetch_from": policy2.FETCH * self.group}
        if self.d.wait_above < 1:
            above = round(self.d.wait_above * ONE) * self.group
            patience = (PATIENCE * self.d.timing.tier_latency).bit_length()
            more |= {"waits": 1, "wait_above": above, "patience": patience}
        asked = self._asked(layer, padded(query.values.astype(np.float16)), position, **more)
        addresses += asked[0]
        rung = driver.run(_stores(addresses, rows + asked[1])).accept_cycle[-1]  # the last bell's
        run.link[step] += len(addresses)
        out, sequence, told = np.empty_like(query.values), self._sequence, None
        for n in range(self.kv_heads):
            rows, cycle = told or self._answer(n)
            waited = cycle - rung > self.d.timing.tier_latency // 2
            head = self._head((step, layer, n), rows, position)
            mine = slice(n * self.group, (n + 1) * self.group)
            keys = self._float_k[layer, n], self._float_v[layer, n]
            chosen = run.chosen[step, layer, n]
            attended(query.values[mine], *keys, chosen, position, self.size, out[mine])
            reads, told = Reads(), None
            last = n == self.kv_heads - 1
            if last and guess is not None:
                self._guess(layer + 1, guess, position)
            reads.gather(head, None if last else self._asked_too(n + 1, sequence))
            wanted = head.wanted
            for what, one, at, result in reads.run(driver):
                if what == "pages":
                    count = at.stop - at.start
                    waited |= self._gathered(wanted[:count], at, result)
                    wanted = wanted[count:]
                elif one.is_done(result.data[at][0]) and at.stop - at.start == len(one.told):
                    told = [row.tobytes() for row in result.data[at]], result.response_cycle[at][0]
            run.waits[step, layer] |= waited
            run.useful[step] += LINE_BYTES * len(head.pages)
        self.cycles[step, layer] = driver.time - begun
        run.cycles[step] += driver.time - begun
        return out

    def step_over(self, step: int) -> None:
        run, driver = self.run, self.driver
        run.link[step] = LINE_BYTES * run.link[step] + run.useful[step]
        reads = driver.counts()["flash_reads"]
        run.reads[step], self._reads = reads - self._reads, reads
        hints = mass_lines(session=0, queue=0, first_page=0, masses=[], sequence=step, advance=True)
        driver.push_hints(hints)

    # - lines --------------------------------------------------------------------------------------
    def _asked(self, layer: int, queries, position: int, **more: int):
        """Addresses and lines of a layer's queries uint8 [heads, 64 · lines], plans and doorbells,
        under the next sequence."""
        self._sequence += 1
        lines = []
        for head in range(self.kv_heads):
            mine = queries[head * self.group : (head + 1) * self.group]
            bell = self.bell(self._sequence, layer, head, position, **more)
            lines += self.asked_lines(layer, head, mine)
            lines.append((self.map.bell(0, head), np.frombuffer(bell, np.uint8)))
        return [self.base + LINE_BYTES * line for line, _ in lines], [row for _, row in lines]

    def _guess(self, layer: int, guess: Query, position: int) -> None:
        """A layer's guessed queries, where pages that are fetched by them land before it asks."""
        now = self.driver.time
        gap, self._guessed = now - self._guessed, now
        if not self.d.guess or gap < self.d.timing.tier_latency:
            return
        self.guesses += 1
        queries = padded(guess.values.astype(np.float16))
        more = {"speculative": 1, "tables": 1}
        self.driver.run(_stores(*self._asked(layer, queries, position, **more)))

    def _asked_too(self, head: int, sequence: int) -> Head:
        """A KV head of which the host waits for the answer."""
        none = np.zeros(0, np.uint64)
        return Head((0, 0, head), sequence, self.answer_addresses(head), none, none)

    def _answer(self, head: int) -> tuple[list[bytes], int]:
        """A head's answer, and when it was there."""
        answer = self.poll(self._asked_too(head, self._sequence))
        if answer is None:
            raise DriverError(f"head {head}: no answer", self.driver.time)
        return [row.tobytes() for row in answer[0]], answer[1]

    def _head(self, place, rows: list[bytes], position: int) -> Head:
        """What a head's answer says, and the lines to gather."""
        header, listed = record(ANSWER_FIELDS, rows[0]), b"".join(rows[1:])
        if header["status"] != SelectStatus.DONE:
            raise DriverError(f"{place}: the answer is {header}", self.driver.time)
        pages = [record(CHOSEN_FIELDS, listed[8 * n : 8 * n + 8]) for n in range(header["count"])]
        self.run.missing[place][[0, 3]] = header["missing"], header["absent"]
        self.run.chosen[place][[page["page"] for page in pages]] = True
        self.late += sum(page["state"] != SlotState.HELD for page in pages)
        lines = self.page_lines(*place[1:], header, pages, position)
        return Head(place, header["sequence"], self.answer_addresses(place[2]), *lines)

    def _gathered(self, wanted: np.ndarray, at: slice, result: Result) -> bool:
        """Compare lines that were gathered; whether one of them came from flash."""
        right = (result.response[at] == Response.DATA) & (result.data[at] == wanted).all(axis=1)
        self.wrong += int((~right).sum())
        return bool((result.latency[at] > self.d.timing.tier_latency // 2).any())


def _stores(addresses, rows) -> Program:
    return Program.writes(np.array(addresses, np.uint64), np.array(rows))


def _fitting(config: Config, prefix: Prefix, frames: int, device: Device) -> Config:
    """`config` with so many frames; ValueError where the text, or what its host asks, does not
    fit."""
    shape, queues = prefix.shape, prefix.model.layers * prefix.shape.kv_heads
    for what, value, legal in (
        ("query heads of a KV head", shape.group, shape.group == config.select_heads),
        ("lines of a token", shape.lines, shape.lines <= config.select_lines),
        (
            "tokens of a page",
            shape.page_tokens,
            shape.page_tokens * shape.lines == config.half_lines,
        ),
        ("layers · KV heads", queues, queues <= config.queues),
        ("KV heads", shape.kv_heads, shape.kv_heads <= config.select_groups),
        ("pages chosen", device.most + 2, device.most + 2 <= config.select),
        ("pages of a queue", prefix.pages, prefix.pages <= config.pages),
        ("pages that each head names", device.quota, device.quota == config.select_quota),
    ):
        if not legal:
            raise ValueError(f"{value} {what} do not fit configuration {config.name!r}")
    if config.frames[0] == frames:
        return config
    return config.with_(name=f"{config.name}_{frames}", frames=(frames, *config.frames[1:]))
