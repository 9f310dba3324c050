# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Opaque blocks by key on a device: what engines that move whole KV chunks as bytes need (LMCache,
vLLM, SGLang).

A block takes whole pages of one session, stored raw16, so that its bytes come back as they went in;
which of them are in DRAM is the device's business. The index lives in this process: it goes with
it, and so do the blocks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

import numpy as np

from kelp_spec.formats import ELEMENTS, LINE_BYTES

from .arguments import instance, integer, short, unmasked
from .device import Device
from .errors import CxlKvError, PoisonError
from .policy import Policy
from .process import NotCopied
from .shape import ModelShape

__all__ = ["BlockStore"]

_TOGETHER = 1 << 22  #: bytes that one load or store of several blocks moves at most, or one block


class BlockStore(NotCopied):
    """Blocks of up to `block_bytes` under hashable keys, TypeError for others. Thread-safe; a
    context manager that closes its session.

    Parameters
    ----------
    device : cxl_kv.Device
    block_bytes : int
        Of the largest block; every block takes pages for so much.
    blocks : int, optional
        Blocks at most; what the configuration's pages hold when left out.
    policy : Policy
        Of the session. Blocks are read whole, so observed scores serve well.
    on_drop : callable, optional
        Called with (key, bytes) of a block that was dropped for another, or because it was lost; it
        puts nothing into this store.

    Attributes
    ----------
    capacity : int
        Blocks at most.
    lock : RLock
        Held during every call, and so while `on_drop` is told: for whoever keeps something beside
        the blocks that is to come and go with them.
    evicted : int
        Blocks that were dropped for others (least recently used first; pinned ones stay).
    lost : int
        Blocks that were dropped because they could not be loaded: a line of theirs was poisoned,
        or the way to the device, or the session, is gone.
    """

    _uncopied = (
        "a store's index is of one process and is not copied or sent to another; open the device "
        + "there by its URL, and a store on it"
    )

    def __init__(
        self,
        device,
        block_bytes: int,
        *,
        blocks: int | None = None,
        policy: Policy = Policy(auto_step=256),
        on_drop: Callable[[Hashable, int], None] | None = None,
    ):
        block_bytes = integer("block_bytes", block_bytes, 1)
        c = instance("device", device, Device, "a device (cxl_kv.open makes one)").config
        self.device, self.block_bytes, self.on_drop = device, block_bytes, on_drop
        self.page_bytes = c.page_lines * LINE_BYTES
        self._pages_each = -(-block_bytes // self.page_bytes)
        most = c.queues * c.pages // self._pages_each
        if not most:
            raise ValueError(
                f"block_bytes = {block_bytes} is refused; configuration {c.name!r} holds "
                + f"{c.queues * c.pages * self.page_bytes} bytes a session"
            )
        self.capacity = most if blocks is None else integer("blocks", blocks, 1, most)
        # One line a token: a position is a line, and a half of a page is as many positions as it
        # has lines. Of 1024 queues, one more than a layer of a descriptor has heads, half are a
        # second layer's.
        layers = 1 if c.queues < 1024 else 2
        shape = ModelShape(
            layers=layers,
            kv_heads=c.queues // layers,
            head_dim=ELEMENTS,
            page_tokens=c.half_lines,
        )
        self.session = device.open_session(shape, policy=policy)
        # key → (place, bytes), least recently used first
        self._index: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._pins: dict[Hashable, int] = {}  # also of keys whose block is gone
        self._free = list(range(self.capacity - 1, -1, -1))
        self.lock = threading.RLock()
        self._dropping = False  # on_drop is told, by whoever has the lock
        self.evicted = self.lost = 0

    # - addresses ----------------------------------------------------------------------------------
    def _addresses(self, place: int, size: int, first: int = 0) -> np.ndarray:
        """Of the lines of `size` bytes of a block from byte `first` on. A device gets one queue
        after another, page by page; plain memory gets them as they lie."""
        c = self.device.config
        lines = np.arange(first // LINE_BYTES, -(-(first + size) // LINE_BYTES))
        if not self.device.transport.hints:
            start = (
                self.session.number << c.queue_bits + c.page_bits + c.line_bits
            ) + place * self._pages_each * c.page_lines
            return (start + lines << 6).astype(np.uint64)
        page = place * self._pages_each + lines // c.page_lines
        queue, page = page % c.queues, page // c.queues
        x = ((self.session.number << c.queue_bits) + queue << c.page_bits) + page << c.line_bits
        return (x + lines % c.page_lines << 6).astype(np.uint64)

    # - blocks -------------------------------------------------------------------------------------
    def put(self, key: Hashable, data) -> bool:
        """Store bytes-like `data` under `key`, in place of what was there. False, and nothing
        stored, when every block is pinned.

        Raises ValueError for more than `block_bytes`, DeviceFullError when the device had no frame:
        the block is then not there. SessionClosedError once the store is closed.
        """
        done = self.put_many([(key, data)])[0]
        if isinstance(done, Exception):
            raise done
        return done

    def put_many(self, items: Iterable[tuple[Hashable, object]]) -> list[bool | Exception]:
        """Several `put`s by as few stores as may be: of each, in order, what `put` would return or
        raise."""
        results: list[bool | Exception] = []
        # result, key, place, addresses, bytes
        placed: list[tuple[int, Hashable, int, np.ndarray, np.ndarray]] = []
        self.device.transport.home.check()  # a child's lock may be a lost thread's
        with self.lock:
            if self._dropping:
                raise RuntimeError(
                    "a put within on_drop is refused: the place is another block's; put it once "
                    + "the call that has dropped it is over"
                )
            self.session._usable()  # else its number, and so these lines, may be another's
            try:
                self._put_many(items, placed, results)
            except BaseException:
                # Whatever broke off in between: what has a place but may not be stored is not here.
                for _, key, place, _, _ in placed:
                    if key in self._index and self._index[key][0] == place:
                        self.delete(key)
                raise
            if not results:
                self.device.transport.check()
        return results

    def _put_many(self, items, placed, results) -> None:
        """`placed` holds what has a place and is not stored yet."""
        for key, data in items:
            results.append(True)
            try:
                _check_key(key)
                data = _bytes_of(data, self.block_bytes)
            except (TypeError, ValueError) as error:
                results[-1] = error
                continue
            if key in self._index:
                place, _ = self._index[key]
            elif self._free or self._make_room():
                place = self._free.pop()
            else:
                results[-1] = False
                continue
            # Before the index has it: what breaks off in between finds it here, and takes it back.
            placed.append((len(results) - 1, key, place, self._addresses(place, data.nbytes), data))
            self._index[key] = (place, data.nbytes)
            self._index.move_to_end(key)
            if sum(len(p[4]) for p in placed) >= _TOGETHER:
                self._store(placed, results)
                placed.clear()
        self._store(placed, results)

    def _store(self, placed, results) -> None:
        if not placed:
            return
        ends = np.cumsum([len(p[3]) for p in placed])
        lines = np.empty((int(ends[-1]), LINE_BYTES), np.uint8)
        for end, (_, _, _, addresses, data) in zip(ends, placed, strict=True):
            flat = lines[end - len(addresses) : end].reshape(-1)
            flat[: data.nbytes], flat[data.nbytes :] = data, 0
        try:
            addresses = np.concatenate([p[3] for p in placed])
            self.device.transport.store(addresses, lines)
            self.session._check_written(addresses)
        except CxlKvError as error:
            if len(placed) == 1:
                number, key, _, _, _ = placed[0]
                results[number] = error
                self.delete(key)
                return
            lost: dict[Hashable, Exception] = {}
            for one in placed:  # whose fault it was, one by one
                number, key, place = one[:3]
                if key in self._index and self._index[key][0] == place:
                    self._store([one], results)
                    if isinstance(results[number], Exception):
                        lost[key] = results[number]
                elif key in lost:  # it was to go where that was
                    results[number] = lost[key]

    def get(self, key: Hashable) -> np.ndarray | None:
        """The block's bytes, uint8[n]; None when it is not there. PoisonError when a line of it is
        lost, another CxlKvError when the device cannot be asked: the block is then dropped. Not so
        by a DeviceFullError: its pages found no frame, have lost nothing (`in_cold_tier`), and can
        be read when others were released. SessionClosedError once the store is closed."""
        got = self.get_many([key])[0]
        if isinstance(got, Exception):
            raise got
        return got

    def get_many(
        self, keys: Iterable[Hashable], *, first: int = 0, size: int | None = None
    ) -> list[np.ndarray | Exception | None]:
        """Several `get`s by as few loads as may be: of each, in order, what `get` would return or
        raise; of all, only `size` bytes from `first` on, a multiple of 64, where they are given."""
        first = integer("first", first, 0)
        if first % LINE_BYTES:
            raise ValueError(f"first = {first} is refused; legal: multiples of {LINE_BYTES}")
        if size is not None:
            size = integer("size", size, 0)
        results: list[np.ndarray | Exception | None] = []
        wanted: list[tuple[int, Hashable, int, np.ndarray]] = []  # result, key, bytes, addresses
        self.device.transport.home.check()  # a child's lock may be a lost thread's
        with self.lock:
            self.session._usable()
            for key in keys:
                _check_key(key)
                results.append(None)
                if key not in self._index:
                    continue
                place, whole = self._index[key]
                self._index.move_to_end(key)
                part = max(0, whole - first) if size is None else min(size, max(0, whole - first))
                wanted.append((len(results) - 1, key, part, self._addresses(place, part, first)))
                if sum(w[2] for w in wanted) >= _TOGETHER:
                    self._load(wanted, results)
                    wanted = []
            self._load(wanted, results)
            if all(result is None for result in results):
                self.device.transport.check()
        return results

    def _load(self, wanted, results) -> None:
        if not wanted:
            return
        try:
            lines, status = self.device.transport.load(np.concatenate([w[3] for w in wanted]))
        except CxlKvError as error:
            # Whoever finds a block by its key counts on its being there.
            for number, key, _, _ in wanted:
                results[number] = error
                self._lose(key)
            return
        at, lost = 0, []
        for number, key, size, addresses in wanted:
            part = slice(at, at + len(addresses))
            at = part.stop
            if status[part].any():
                lost.append((number, key, addresses, status[part]))
            else:
                results[number] = lines[part].reshape(-1)[:size]
        for number, key, addresses, answers in lost:
            results[number] = self._failure(key, addresses, answers)

    def _failure(self, key, addresses, answers) -> CxlKvError:
        """What there is to say of a block that has lines without data. It is dropped, unless all
        pages of these found no frame and are in the cold tier still."""
        page, first = addresses // np.uint64(self.page_bytes), None
        for one in np.unique(page[answers != 0]):
            try:
                self.session._fail(addresses[page == one], answers[page == one])
            except CxlKvError as error:
                if not isinstance(error, PoisonError):
                    self._lose(key)
                    return error
                if not getattr(error, "in_cold_tier", False):
                    self._lose(key)
                    return error.with_(message=f"block {key!r} is lost: {error.message}")
                first = first or error.with_(message=f"block {key!r}: {error.message}")
        return first

    def contains(self, key: Hashable) -> bool:
        """Whether the block is there."""
        _check_key(key)
        with self.lock:
            return key in self._index

    __contains__ = contains

    def __len__(self) -> int:
        return len(self._index)

    def keys(self) -> list:
        """Every key, least recently used first."""
        with self.lock:
            return list(self._index)

    def touch(self, keys: Iterable[Hashable]) -> None:
        """As if they had just been used."""
        keys = _checked(keys)
        with self.lock:
            for key in keys:
                if key in self._index:
                    self._index.move_to_end(key)

    def delete(self, key: Hashable) -> bool:
        """Forget a block, pinned or not; whether it was there."""
        _check_key(key)
        with self.lock:
            if key not in self._index:
                return False
            self._free.append(self._index.pop(key)[0])
            return True

    def delete_unpinned(self, key: Hashable) -> int | None:
        """Forget a block that nobody has pinned; its bytes, None where it stays or was not there.
        No pin comes between the look and the end."""
        _check_key(key)
        with self.lock:
            if key not in self._index or key in self._pins:
                return None
            size = self._index[key][1]
            self.delete(key)
            return size

    def pin(self, key: Hashable) -> bool:
        """Keep a block until as many `unpin`s; whether it was there. Where it is lost or deleted
        before, its pins stay for the next block of that key: whose an `unpin` is nobody tells, so
        it must not let go of what another has pinned since."""
        _check_key(key)
        with self.lock:
            if key in self._index:
                self._pins[key] = self._pins.get(key, 0) + 1
            return key in self._index

    def unpin(self, key: Hashable) -> bool:
        """Take back one `pin`; whether there was one."""
        _check_key(key)
        with self.lock:
            count = self._pins.get(key, 0)
            if count > 1:
                self._pins[key] = count - 1
            else:
                self._pins.pop(key, None)
            return count > 0

    def prefetch(self, keys: Iterable[Hashable]) -> None:
        """Ask the device to bring blocks into DRAM, by speculative reads of their pages."""
        c, keys = self.device.config, _checked(keys)
        self.device.transport.home.check()  # a child's lock may be a lost thread's
        with self.lock:
            self.session._usable()
            wanted = [
                self._addresses(*self._index[key])[:: c.page_lines]
                for key in keys
                if key in self._index
            ]
        if wanted:
            self.device.transport.spec_read(np.concatenate(wanted))
        else:
            self.device.transport.check()

    @property
    def used_bytes(self) -> int:
        """Bytes of all blocks."""
        with self.lock:
            return sum(size for _, size in self._index.values())

    def _make_room(self) -> bool:
        if len(self._index) < self.capacity:  # a call that broke off had taken a place out
            taken = {place for place, _ in self._index.values()}
            self._free = [place for place in range(self.capacity) if place not in taken]
            return True
        for key in self._index:
            if key not in self._pins:
                self._drop(key)
                self.evicted += 1
                return True
        return False

    def _lose(self, key):
        if key in self._index:
            self.lost += 1
            self._drop(key)

    def _drop(self, key):
        size = self._index[key][1]
        self.delete(key)
        if self.on_drop is not None:
            before, self._dropping = self._dropping, True
            try:
                self.on_drop(key, size)
            finally:
                self._dropping = before

    def size_of(self, key: Hashable) -> int:
        """Bytes of a block; 0 when it is not there."""
        _check_key(key)
        with self.lock:
            return self._index[key][1] if key in self._index else 0

    def close(self) -> None:
        """Forget every block and close the session: nothing is put or found from then on. Harmless
        a second time, and in a child of the process that opened it."""
        if self.device.transport.home.left():
            return
        with self.lock:
            self._index.clear()
            self.session.close()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _checked(keys) -> list[Hashable]:
    """The keys; TypeError where one cannot be one."""
    keys = list(keys)
    for key in keys:
        _check_key(key)
    return keys


def _check_key(key) -> None:
    """TypeError for what cannot be one."""
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"key = {short(key)} is refused; legal: what is hashable, such as str or tuple"
        ) from None


def _bytes_of(data, most: int) -> np.ndarray:
    """uint8[n] of bytes-like data or an array; ValueError for anything else, and for more than
    `most`."""
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:  # its bytes are addresses in this process
            raise ValueError(f"data of dtype {data.dtype} is refused; legal: numbers, or bytes")
        whole = np.ascontiguousarray(unmasked("data", data))
        found = whole.reshape(-1).view(np.uint8)
    else:
        try:
            found = np.frombuffer(memoryview(data).cast("B"), np.uint8)
        except TypeError:
            raise ValueError(
                f"data of type {type(data).__name__} is refused; legal: bytes-like, in one piece"
            ) from None
    if found.nbytes > most:
        raise ValueError(f"a block of {found.nbytes} bytes is refused; legal: {most} at most")
    return found
