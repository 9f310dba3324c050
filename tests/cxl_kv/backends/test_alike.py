# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One program of drawn calls on several devices at once: every visible outcome is the same, what
is returned as much as what is raised, refused and lost; but for what docs/cxl_kv.md says differs.

`golden:` tells what is right. The others are a server's tenants (two clients, so that a program is
split over two handles), its administrator, plain memory with and without a server, and the RTL.
"""

import contextlib
import copy
import os
import pickle
import random

import ml_dtypes
import numpy as np
import pytest
from narrow_unit import GOLDEN, RTL
from worlds import World, outcome

import cxl_kv
from cxl_kv.blocks import BlockStore

_LABELS = ("raw16", "fp8_e4m3", "fp8_e5m2", "int8", "int4")
#: What is asked of a device and not of what it stores: plain memory says nothing of it.
_OF_A_TRACKER = {"hint", "telemetry", "page", "counters", "events", "policy"}


class Program:
    """Draws calls: (what they are of, a line for the reader, call of a world)."""

    def __init__(self, seed: int, *, select=False, plain=False, timed=False):
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.select, self.plain, self.timed = select, plain, timed
        #: all pages are of one pool, whose frames are pinned soon
        self.crowded = not plain and not select and seed % 3 == 0
        self.shapes: dict[int, tuple] = {}  # slot → shape, tokens
        self.budgets: dict[int, int] = {}
        self.steps: dict[int, int] = {}  # slot → auto_step
        self.live: set[int] = set()  # slots with an open session
        self.blocks = 0

    # - arguments ----------------------------------------------------------------------------------
    def odd(self):
        return self.rng.random() < 0.06

    def index(self, limit):
        """A layer, head or page, or several."""
        r = self.rng
        one, some = r.randrange(limit), [r.randrange(limit) for _ in range(r.randint(1, 3))]
        if self.odd():
            return r.choice(
                [limit, -1, True, np.True_, 1.0, "0", None, [], [limit], [0.5], slice(0, 1)]
                + [np.zeros((1, 1), int), [True], np.array([True, False]), 1 << 70, {}, "01", b"0"]
            )
        return r.choice(
            [one, one, np.int64(one), np.uint8(one), np.array(one), some, tuple(some)]
            + [np.array(some, np.int32), np.array([0, *some])[::-1], range(limit)]
        )

    def positions(self, most, count=None):
        """Named arguments that say which positions, and how many these are."""
        r = self.rng
        n = r.choice([0, 1, 1, 2, 3, 5, 9, min(most, 20)]) if count is None else count
        n = min(n, most)
        if self.odd():
            return r.choice(
                [{"start": -1}, {"start": most}, {"start": True}, {"start": 1.0}]
                + [{"start": None}, {"start": "0"}, {"positions": [most]}, {"positions": [-1]}]
                + [{"positions": [0.0] * n}, {"positions": "0"}, {"positions": 3}]
                + [{"positions": [True] * n}, {"start": 0, "positions": [0]}]
                + [{"positions": np.zeros((n, 1), int)}, {"positions": [1 << 63]}, {}]
            ), n
        first, some = r.randint(0, most - n), [r.randrange(most) for _ in range(n)]
        if r.random() < 0.4:
            return {"start": r.choice([first, np.int64(first), np.uint16(first)])}, n
        return {
            "positions": r.choice(
                [some, tuple(some), np.array(some, np.int64), np.array(some, np.uint8)]
                + [range(first, first + n), range(first + n - 1, first - 1, -1)]
                + [np.arange(first, first + n)[::-1], dict.fromkeys(range(first, first + n))]
            )
        }, n

    def elements(self, shape, layers, heads, n):
        """Keys or values, as callers have them."""
        r, numbers = self.rng, self.numbers
        whole = (layers, heads, n, shape.head_dim)
        bits = numbers.standard_normal(whole).astype(np.float16).view(np.uint16)
        if shape.dtype == 1:
            bits = cxl_kv.float32_to_bf16(numbers.standard_normal(whole))
        if r.random() < 0.2:
            bits = numbers.integers(0, 1 << 16, whole).astype(np.uint16)  # NaN, Inf, subnormal
        own = np.float16 if shape.dtype == 0 else ml_dtypes.bfloat16
        x = bits.view(r.choice([np.uint16, own, np.int16]))
        if self.odd():
            x = r.choice(
                [x.astype(np.float32), x.astype(object), None, 1.5, "k", x[..., :-1], x[..., None]]
                + [x.view(np.uint16).astype(np.int64), x.tolist(), np.zeros(0, np.uint16)]
                + [bits.view(np.float16 if shape.dtype else ml_dtypes.bfloat16), b"ab"]
            )
            return x
        how = r.randrange(7)
        if how == 1:
            x = np.repeat(x, 2, axis=-1)[..., ::2]
        elif how == 2:
            x = x[..., ::-1, ::-1]
        elif how == 3:
            x = np.asfortranarray(x)
        elif how == 4 and n:
            x = np.broadcast_to(x[:, :, :1], whole)
        elif how == 5 and x.dtype.kind in "uif" and x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder(">"))
        elif how == 6:
            x.flags.writeable = False
        return x

    def policy(self, slot):
        r = self.rng
        return cxl_kv.Policy(
            score=r.choice(["pushed", "observed", "none"]),
            alpha=r.choice([1 / 256, 0.1, 1]),
            tau=r.choice([1, 50, 1000.0, 65536]),
            mass_shift=r.choice([0, 3, 15]),
            window=r.choice([0, 1, 63]),
            switches=r.choice([0, 1, 2] if self.select else [0, 1]),
            budget_bytes=self.budgets.get(slot, 0),
            # A device in hardware takes such a step amid the access, before it evicts.
            auto_step=0 if self.plain or self.timed else r.choice([0, 0, 1, 7]),
        )

    def shape(self):
        r = self.rng
        formats = "raw16"
        if not (self.plain or self.crowded) and r.random() < 0.7:
            ends = r.choice([(1023,), (0, 1023), (0, 1)])
            formats = tuple(
                cxl_kv.LayerFormats(k=r.choice(_LABELS), v=r.choice(_LABELS), last_layer=end)
                for end in ends
            )
        return cxl_kv.ModelShape(
            layers=r.choice([1, 2]),
            kv_heads=r.choice([1, 2]),
            head_dim=r.choice([32, 32, 16, 48, 64, 1] if not self.select else [32, 32, 64]),
            dtype=r.choice(["fp16", "bf16"]),
            page_tokens=r.choice([None, None, None, 1, 2]) if not self.select else None,
            formats=formats,
            k_only=r.random() < 0.15,
        )

    # - calls --------------------------------------------------------------------------------------
    def draw(self):
        r = self.rng
        slot = r.randrange(2)
        if slot not in self.shapes or slot not in self.live and r.random() < 0.7:
            return self.open(slot)
        kinds = [self.write] * 8 + [self.read] * 8 + [self.hint] * 4 + [self.look] * 3
        kinds += [self.step] * 2 + [self.of_device] * 2 + [self.batch, self.text, self.policy_call]
        kinds += [self.close, self.sample, self.view, self.block, self.block, self.block]
        kinds += [self.open] * (r.random() < 0.1)
        if self.select:
            kinds += [self.choose] * 8
        elif not (self.plain or self.timed):
            kinds += [self.fault]
        return r.choice(kinds)(slot)

    def open(self, slot):
        # How many pages are summarised together depends on a handle's own sessions.
        shape, handle, r = self.shape(), 0 if self.select else self.rng.randrange(2), self.rng
        budget = 0 if self.plain else r.choice([0, 0, 0, 1, 1024, 4096])
        policy = self.policy(slot).with_(budget_bytes=budget)
        most = r.choice([None, None, 5, 11, 1, 0, 999, 7.0]) if not self.select else None
        self.shapes.setdefault(slot, (shape, 4))

        def call(world):
            session = world.handles[handle].open_session(shape, max_tokens=most, policy=policy)
            world.sessions[slot] = session
            self.shapes[slot], self.budgets[slot] = (shape, session.max_tokens), budget
            self.steps[slot] = policy.auto_step
            self.live.add(slot)
            return session, session.page_tokens, session.max_tokens, session.pages, session.step

        return "open", f"open {slot} {shape} {most} {policy}", call

    def close(self, slot):
        self.live.discard(slot)
        if self.rng.random() < 0.3:
            return "close", f"leave {slot}", lambda w: w.sessions[slot].__exit__(None, None, None)
        return "close", f"close {slot}", lambda w: w.sessions[slot].close()

    def _where(self, slot):
        shape, most = self.shapes[slot]
        layer = self.index(shape.layers)
        heads = None if self.rng.random() < 0.5 else self.index(shape.kv_heads)
        return shape, most, layer, heads

    def write_arguments(self, slot):
        shape, most, layer, heads = self._where(slot)
        where, n = self.positions(most)
        count = [len(layer)] if hasattr(layer, "__len__") and np.ndim(layer) else []
        rows = shape.kv_heads
        if heads is not None:
            rows = len(heads) if hasattr(heads, "__len__") and np.ndim(heads) else 1
        k, v = (self.elements(shape, (count or [1])[0], rows, n) for _ in range(2))
        if not count:
            k, v = (x[0] if isinstance(x, np.ndarray) and len(x) else x for x in (k, v))
        if shape.k_only and not self.odd() or self.rng.random() < 0.02:
            v = None
        return (layer, k, v), where | {"heads": heads}

    def write(self, slot):
        given, named = self.write_arguments(slot)
        said = f"write {slot} {given[0]!r} k{getattr(given[1], 'shape', given[1])} {named}"
        return "write", said, lambda w: w.sessions[slot].write(*given, **named)

    def read_arguments(self, slot):
        _, most, layer, heads = self._where(slot)
        where, n = self.positions(most)
        if "start" in where and type(where["start"]) is not bool:
            with contextlib.suppress(TypeError):
                where["stop"] = where["start"] + n
        dtypes = [None] * 6 + [np.uint16, "f2", "V2", "S2", ml_dtypes.bfloat16]
        dtype = self.rng.choice([">u2", "f4", 7, "x", object] if self.odd() else dtypes)
        return (layer,), where | {"heads": heads, "dtype": dtype}

    def read(self, slot):
        given, named = self.read_arguments(slot)

        def call(world):
            k, v = world.sessions[slot].read(*given, **named)
            shared = v is not None and k.size and np.shares_memory(k.base, v.base)
            return k, v, shared

        return "read", f"read {slot} {given} {named}", call

    def sample(self, slot):
        _, most, layer, heads = self._where(slot)
        where, _ = self.positions(most)
        at = where.get("positions", [0])
        return (
            "read",
            f"sample {slot} {layer!r} {at!r} {heads!r}",
            lambda w: w.sessions[slot].sample(layer, at, heads=heads),
        )

    def view(self, slot):
        shape, _ = self.shapes[slot]
        given = self.index(shape.layers), self.index(shape.kv_heads), self.index(4)
        return "view", f"view {slot} {given}", lambda w: w.sessions[slot].view(*given)

    def step(self, slot):
        steps = self.rng.choice([1, 1, 2, 0, np.int64(3), (1 << 24) - 1])
        if self.odd():
            steps = self.rng.choice([-1, 1 << 24, True, 1.0, None, "1"])
        return (
            "step",
            f"advance {slot} {steps!r}",
            lambda w: (
                w.sessions[slot].advance(steps),
                w.sessions[slot].step,
                w.sessions[slot].state()["open"],
            ),
        )

    def hint_arguments(self, slot):
        r = self.rng
        shape, most = self.shapes[slot]
        layer, head = r.randrange(shape.layers), r.randrange(shape.kv_heads)
        if self.odd():
            layer, head = self.index(shape.layers), self.index(shape.kv_heads)
        kinds = ["prefetch", "push_mass", "push_attention", "release"]
        # Plain memory loses no page for want of a frame, and takes no step by a hint.
        kind = r.choice(kinds if self.plain else [*kinds, "pin", "advance"])
        if self.crowded and r.random() < 0.4:
            return r.choice(["pin", "pin", "release"]), (layer, head, range(8)), {}
        pages = [r.randrange(8) for _ in range(r.randrange(4))]
        if self.odd():
            pages = r.choice(["0", 3, None, [8], [-1], [True], [0.5], [1, 1], np.array(2), [[1]]])
        elif r.random() < 0.3:
            pages = r.choice([range(8), (p for p in ()), np.array(pages, np.uint8), set(pages)])
        if kind == "push_mass":
            masses = [r.random() for _ in range(r.randrange(10))]
            if self.odd():
                masses = r.choice([[1.5], [-1], [np.nan], "a", None, [70000], [1 << 70], [True], 3])
            named = {
                "first_page": r.choice([0, 1, 7, np.int8(2)]),
                "advance": not self.plain and r.random() < 0.3,
            }
            if self.odd():
                named["first_page"] = r.choice([8, -1, True, 0.0, None])
            return kind, (layer, head, masses), named
        if kind == "push_attention":
            weights = self.numbers.random((shape.kv_heads, r.randrange(most + 1))) / most
            if self.odd():
                weights = r.choice([weights[0], "a", [[2.0]], -weights, weights[:0]])
            return kind, (layer, weights), {"first_position": r.choice([0, 0, 4, 3, -4])}
        return kind, () if kind == "advance" else (layer, head, pages), {}

    def hint(self, slot):
        kind, given, named = self.hint_arguments(slot)
        return (
            "hint",
            f"{kind} {slot} {given} {named}",
            lambda w: getattr(w.sessions[slot].hints, kind)(*given, **named),
        )

    def policy_call(self, slot):
        shape, policy = self.shapes[slot][0], self.policy(slot)
        named = self.rng.choice(
            [{}, {"layer": self.index(shape.layers)}, {"head": self.index(shape.kv_heads)}]
        )
        if named and not self.odd():  # of some queues: the session's own
            policy = policy.with_(auto_step=self.steps.get(slot, 0))

        def call(world):
            session = world.sessions[slot]
            session.set_policy(policy, **named)
            self.steps[slot] = session.policy.auto_step
            return session.policy

        return "policy", f"set_policy {slot} {policy} {named}", call

    def look(self, slot):
        r = self.rng
        shape, _ = self.shapes[slot]
        if r.random() < 0.5:
            by = r.choice(["head", "layer", "session", "page", None, []])
            return "telemetry", f"telemetry {slot} {by}", lambda w: w.sessions[slot].telemetry(by)
        given = r.randrange(shape.layers), r.randrange(shape.kv_heads), r.randrange(2)
        if self.odd():
            given = self.index(shape.layers), self.index(shape.kv_heads), self.index(9)

        def call(world):
            word = world.sessions[slot].page_state(*given)
            return word | {"place": 0}

        return "page", f"page_state {slot} {given}", call

    def of_device(self, slot):
        r = self.rng
        shape, handle = self.shapes[slot][0], r.randrange(2)
        what = r.choice(["events", "counters", "pools", "frames", "registers", "configure", "all"])
        if what == "events":
            return "events", "events", lambda w: w.events(split=not self.select)
        if what in ("counters", "pools"):
            return "counters", what, lambda w: getattr(w.admin, what)()
        if what == "frames":
            layer = self.index(shape.layers)
            return "frames", f"frames {layer!r}", lambda w: w.handles[handle].frames(shape, layer)
        if what == "registers":
            name = r.choice(["identity", "digest", "geometry", "nothing", "s0_step"])
            return "registers", name, lambda w: w.handles[handle].registers.read(name)
        if what == "configure":
            marks = r.choice([(0, 0), (0, 1), (1, 3), (2, 2)])
            named = {
                "prefetch": r.sample(["window", "hint", "layer_ahead", "previous"], 2),
                "low_water": marks[0],
                "high_water": marks[1],
                "reserve": r.choice([0, 0, 2]),
            }
            if self.odd():
                named |= r.choice([{"prefetch": "hint"}, {"low": 1}, {"reserve": -1}])
            return "counters", f"configure {named}", lambda w: w.admin.configure(**named)
        return (
            "registers",
            "device",
            lambda w: (
                w.handles[handle].config.name,
                sum(device.queues for device in dict.fromkeys(w.handles)),
                w.handles[handle].closed,
            ),
        )

    def fault(self, slot):
        def call(world):
            world.settle()
            with world.core.lock:
                world.core.fail_fetches()

        return "fault", "the next fetch fails", call

    def text(self, slot):
        copied = self.rng.choice([copy.copy, copy.deepcopy, pickle.dumps, repr, str, hash])
        if copied is hash:
            return "text", "compare", lambda w: (w.sessions[slot] == w.sessions[slot], bool(w))
        return "text", f"{copied.__name__} {slot}", lambda w: copied(w.sessions[slot])

    def batch(self, slot):
        r, calls = self.rng, []
        for _ in range(r.randrange(5)):
            kind = r.choice(["write", "read", "advance", "push_mass", "prefetch"])
            if self.plain and kind in ("push_mass", "prefetch"):
                kind = "read"
            if kind == "write":
                given, named = self.write_arguments(slot)
            elif kind == "read":
                given, named = self.read_arguments(slot)
            elif kind == "advance":
                given, named = (r.choice([1, 2, -1]),), {}
            elif kind == "prefetch":
                given, named = (0, 0, [r.randrange(9)]), {}
            else:
                given, named = (0, 0, [0.25, r.choice([0.5, 1.5])]), {}
            calls.append((kind, given, named))

        def call(world):
            batch = world.sessions[slot].device.batch()
            for kind, given, named in calls:
                getattr(batch, kind)(world.sessions[slot], *given, **named)
            done = batch.submit()
            assert done.wait(120)
            return done, batch

        return "batch", f"batch {slot} {calls}", call

    # - choice near memory -------------------------------------------------------------------------
    def choose(self, slot):
        r = self.rng
        shape, most = self.shapes[slot]
        layer = r.randrange(shape.layers) if not self.odd() else self.index(shape.layers)
        group = r.choice([1, 2])
        queries = self.elements(shape, 1, shape.kv_heads * group, 1)
        queries = queries[0, :, 0] if isinstance(queries, np.ndarray) and queries.ndim == 4 else 0
        what = r.choice(["select", "select", "gather", "gather", "plan", "summarise", "wait"])
        tokens = r.randint(1, most)
        if what == "select":
            named = {
                "tokens": tokens,
                "pages": r.choice([None, None, 0, 3, 6, 7]),
                "mass": r.choice([0.9, 0.0, 1.0, 0.5, 1.1]),
                "scale": r.choice([None, None, 1.0, 0.0]),
                "fetch": r.random() < 0.3,
                "speculative": r.random() < 0.2,
            }

            def call(world):
                world.settle()
                world.chosen[slot] = world.sessions[slot].select(layer, queries, **named)
                return world.chosen[slot], world.sessions[slot].choices

            return "select", f"select {slot} {layer!r} {named}", call
        if what == "gather":
            of, dtype = r.choice([slot, slot, 0, 1]), r.choice([None, None, np.uint16, "f4"])
            return (
                "select",
                f"gather {slot} of {of}",
                lambda w: w.sessions[slot].gather(w.chosen.get(of), dtype=dtype),
            )
        if what == "plan":
            keys = self.elements(shape, 1, shape.kv_heads, 9)
            keys = keys[0] if isinstance(keys, np.ndarray) and len(keys) else keys
            asked = self.elements(shape, 1, shape.kv_heads * group, 3)
            asked = asked[0] if isinstance(asked, np.ndarray) and len(asked) else asked
            return (
                "select",
                f"plan {slot} {layer!r}",
                lambda w: (
                    w.sessions[slot].plan(layer, keys, asked),
                    w.sessions[slot].plans,
                ),
            )
        if what == "summarise":
            return (
                "select",
                f"summarise {slot} {layer!r} {tokens}",
                lambda w: w.sessions[slot].summarise(layer, tokens=tokens),
            )
        above = r.choice([None, 0.0, 0.5, 2.0, "a"])
        return (
            "select",
            f"wait_above {slot} {above}",
            lambda w: setattr(w.sessions[slot], "wait_above", above),
        )

    # - blocks -------------------------------------------------------------------------------------
    def block(self, slot):
        r = self.rng
        if not self.blocks or r.random() < 0.05:
            size, limit = r.choice([1, 64, 100, 512, 3000, 1 << 20]), r.choice([None, 2, 4, 0])
            handle, policy = r.randrange(2), cxl_kv.Policy()

            def call(world):
                if 0 in world.stores:
                    world.stores[0].close()
                store = BlockStore(world.handles[handle], size, blocks=limit, policy=policy)
                world.stores[0], self.blocks = store, 1
                return store.capacity, store.page_bytes, len(store)

            return "block", f"store of {size} {limit}", call
        keys = [r.choice(["a", "b", ("c", 1), 4, None, 5.0]) for _ in range(r.randint(1, 4))]
        data = [self.numbers.bytes(r.choice([0, 1, 63, 64, 65, 100, 512, 700])) for _ in keys]
        rows = [r.choice([bytes, bytearray, memoryview, _array])(one) for one in data]
        if self.odd():
            keys[-1], rows[0] = r.choice([[], {}]), r.choice(["text", 3, None, np.array([None])])
        first, size = r.choice([0, 0, 64, 128, 3, -64]), r.choice([None, None, 0, 10, 1000, -1])
        one, many = (keys[0], rows[0]), list(zip(keys, rows, strict=True))
        calls = [
            ("put", lambda s: s.put(*one)),
            ("put_many", lambda s: s.put_many(many)),
            ("get", lambda s: s.get(keys[0])),
            ("get_many", lambda s: s.get_many(keys)),
            ("a part", lambda s: s.get_many(keys, first=first, size=size)),
            ("in", lambda s: (keys[0] in s, len(s), s.keys(), s.used_bytes, s.evicted, s.lost)),
            ("delete", lambda s: s.delete(keys[0])),
            ("delete_unpinned", lambda s: s.delete_unpinned(keys[0])),
            ("pin", lambda s: (s.pin(keys[0]), s.size_of(keys[0]))),
            ("unpin", lambda s: s.unpin(keys[0])),
            ("touch", lambda s: s.touch(keys)),
            ("prefetch", lambda s: s.prefetch(keys)),
            ("copy", copy.copy),
        ]
        if r.random() < 0.02:
            calls = [("close", lambda s: s.close())]
        name, do = r.choice(calls[:5] * 3 + calls)
        return "block", f"{name} {keys} {[len(d) for d in data]}", lambda w: do(w.stores[0])


def _array(data):
    return np.frombuffer(data, np.uint8)


def differs(of, wanted, got, world):
    """Whether an outcome is none that docs/cxl_kv.md allows."""
    if world.plain and (of in _OF_A_TRACKER or of == "view"):
        refused = got[0] == "raised" and got[1][0] is cxl_kv.UnsupportedError
        return wanted[0] == "returned" and got[0] == "raised" and not refused
    return wanted != got


def run(program, worlds, calls):
    """Carry out so many calls of a program on each of the worlds, and a few more once the devices
    are closed; AssertionError where one of them differs from the first."""
    said = []
    for number in range(calls + calls // 8):
        if number == calls:
            for world in worlds:
                for device in {*world.handles, world.admin}:
                    device.close()
        of, line, call = program.draw()
        said.append(line)
        wanted = outcome(call, worlds[0])
        for world in worlds[1:]:
            got = outcome(call, world)
            if differs(of, wanted, got, world):
                before = "\n".join(said[-40:])
                raise AssertionError(f"{before}\n{worlds[0].name}: {wanted}\n{world.name}: {got}")


_DAX = "dax:{folder}/memory?config=unit&sessions=3&create=1"
_UNIT = "golden:unit?sessions=3"
_SERVED = ("", "unix", "tcp", "admin")
#: first the one that tells what is right: (URL, how it is served); then the program, seeds, calls
PROGRAMS = {
    "served": ([(_UNIT, how) for how in _SERVED], {}, (3, 4), 150),
    "served, choosing": (
        [("golden:unit_select", how) for how in _SERVED],
        {"select": True},
        (1,),
        80,
    ),
    "plain memory": (
        [(_UNIT, ""), (_DAX, ""), (_DAX, "unix"), (_DAX, "admin")],
        {"plain": True},
        (1, 2),
        150,
    ),
    "rtl": (
        [(GOLDEN, ""), (f"{RTL}&lockstep=1", "")],
        {"timed": True},
        (2,),
        40,
    ),
}


# The RTL's is begun before the files that wait for the model that it builds.
@pytest.mark.timeout(2100)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_outcome_is_the_same(name):
    of_worlds, how, seeds, calls = PROGRAMS[name]
    more = int(os.environ.get("KELP_EXAMPLES", "1"))
    for seed in [*seeds, *range(100, 99 + more)]:
        print(f"seed {seed}, {calls} calls")
        with contextlib.ExitStack() as stack:
            worlds = [World(stack, url, served=served) for url, served in of_worlds]
            run(Program(seed, **how), worlds, calls)


@pytest.mark.parametrize("spoil", ["a message", "a flag", "a line"])
def test_a_difference_would_be_noticed(spoil, monkeypatch):
    with contextlib.ExitStack() as stack:
        worlds = [World(stack, _UNIT), World(stack, _UNIT)]
        transport = worlds[1].admin.transport
        load, store, stores = transport.load, transport.store, []

        def spoilt_load(addresses):
            loaded = load(addresses)
            loaded.lines.flags.writeable = spoil != "a flag"
            return loaded

        def spoilt_store(addresses, lines, *enable):
            stores.append(1)
            if spoil == "a message" and len(stores) == 9:
                raise cxl_kv.TransportError("the line is bad")
            store(addresses, lines ^ (spoil == "a line" and not enable), *enable)

        monkeypatch.setattr(transport, "load", spoilt_load)
        monkeypatch.setattr(transport, "store", spoilt_store)
        with pytest.raises(AssertionError, match="golden:unit"):
            run(Program(1), worlds, 60)
