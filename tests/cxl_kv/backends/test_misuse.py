# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The same misuse has the same answer on every back end, by name: calls on what is closed, those
that ask for nothing too, and arguments that no device takes. Drawn programs (test_alike.py) say the
same of what nobody has thought of."""

import contextlib

import numpy as np
import pytest
from narrow_unit import GOLDEN, RTL
from worlds import World, outcome

import cxl_kv
from cxl_kv.blocks import BlockStore

_DAX = "dax:{folder}/memory?config=unit&sessions=3&create=1"
_UNIT = "golden:unit?sessions=3"
#: the first of each tells what is right: (URL, how it is served)
WORLDS = {
    "a served model": [(_UNIT, how) for how in ("", "unix", "tcp", "admin")],
    "plain memory": [(_UNIT, ""), (_DAX, ""), (_DAX, "unix"), (_DAX, "admin")],
    "rtl": [(GOLDEN, ""), (f"{RTL}&lockstep=1", "")],
}
SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
NONE = np.zeros((2, 0, 32), np.float16)
ONE = np.ones((2, 1, 32), np.float16)


def no_choice(session):
    """What a guess chooses."""
    heads = session.shape.kv_heads
    none = [np.zeros(0, np.int64)] * heads
    return cxl_kv.Chosen(
        session.serial, 0, 0, 1, none, none, none, none, [0] * heads, [0.0] * heads, none, none,
        [0] * heads, [0] * heads,
    )  # fmt: skip


#: Of a session; those of the second part ask the device for nothing.
OF_A_SESSION = {
    "write": lambda s: s.write(0, ONE, ONE),
    "read": lambda s: s.read(0, stop=1),
    "sample": lambda s: s.sample(0, np.arange(1)),
    "advance": lambda s: s.advance(),
    "state": lambda s: s.state(),
    "step": lambda s: s.step,
    "telemetry": lambda s: s.telemetry(),
    "page_state": lambda s: s.page_state(0, 0, 0),
    "set_policy": lambda s: s.set_policy(cxl_kv.Policy()),
    "push_mass": lambda s: s.hints.push_mass(0, 0, [0.5]),
    "pin": lambda s: s.hints.pin(0, 0, [0]),
    "advance by a hint": lambda s: s.hints.advance(),
    "write of nothing": lambda s: s.write(0, NONE, NONE),
    "write of no positions": lambda s: s.write([0, 1], *np.stack([[NONE] * 2] * 2), positions=[]),
    "read of nothing": lambda s: s.read(0, stop=0),
    "read of no positions": lambda s: s.read([0, 1], positions=[]),
    "sample of nothing": lambda s: s.sample(0, np.zeros(0, np.int64)),
    "gather of nothing": lambda s: s.gather(no_choice(s)),
    "no step": lambda s: s.advance(0),
    "no masses": lambda s: s.hints.push_mass(0, 0, []),
    "no weights": lambda s: s.hints.push_attention(0, np.zeros((2, 0))),
    "no page to pin": lambda s: s.hints.pin(0, 0, []),
    "no page to release": lambda s: s.hints.release(0, 0, ()),
    "no page to fetch": lambda s: s.hints.prefetch(0, 0, (page for page in ())),
    "a batch of nothing": lambda s: s.device.batch().write(s, 0, NONE, NONE).submit().result(60),
}
OF_A_DEVICE = {
    "open": lambda d: d.open_session(SHAPE),
    "events": lambda d: d.events(),
    "poll": lambda d: d.poll(),
    "since": lambda d: d.since(0),
    "explain": lambda d: d.explain(0, 0, 0),
    "has_failed": lambda d: d.has_failed(),
    "frames": lambda d: d.frames(SHAPE, 0),
    "store of nothing": lambda d: d.transport.store(
        np.zeros(0, np.uint64), np.zeros((0, 64), "u1")
    ),
    "load of nothing": lambda d: d.transport.load([]),
    "spec_read of nothing": lambda d: d.transport.spec_read([]),
    "no register": lambda d: d.registers.read_many([]),
    "no register to write": lambda d: d.registers.write_many([]),
    "an empty batch": lambda d: d.batch().submit(),
    "exclusive": lambda d: d.transport.exclusive().__enter__(),
}
OF_A_STORE = {
    "put": lambda b: b.put("a", b"1"),
    "get": lambda b: b.get("a"),
    "put of nothing": lambda b: b.put("a", b""),
    "no put": lambda b: b.put_many([]),
    "no get": lambda b: b.get_many([]),
    "get of what is not there": lambda b: b.get("nothing"),
    "no prefetch": lambda b: b.prefetch([]),
    "prefetch of what is not there": lambda b: b.prefetch(["nothing"]),
}
OF_THE_CONTROL_PLANE = {
    "configure": lambda d: d.configure(),
    "fetch_chosen": lambda d: d.fetch_chosen(),
    "counters": lambda d: d.counters(),
    "pools": lambda d: d.pools(),
    "latency_histograms": lambda d: d.latency_histograms(),
}
#: Of an open session of two layers, two heads and 8 tokens of 4 a page.
MISUSE = {
    "no such layer": lambda s: s.read(2, stop=1),
    "no such head": lambda s: s.write(0, ONE, ONE, heads=[0, 2]),
    "beyond the tokens": lambda s: s.read(0, start=8, stop=9),
    "a position of none": lambda s: s.write(0, ONE, ONE, positions=[8]),
    "a negative position": lambda s: s.write(0, ONE, ONE, start=-1),
    "half a position": lambda s: s.read(0, positions=[0.5]),
    "two ways of saying where": lambda s: s.read(0, positions=[0], stop=1),
    "keys without values": lambda s: s.write(0, ONE),
    "another shape": lambda s: s.write(0, ONE[:, :, :31], ONE[:, :, :31]),
    "another type": lambda s: s.write(0, ONE.astype(np.float32), ONE.astype(np.float32)),
    "a type of four bytes": lambda s: s.read(0, stop=1, dtype=np.float32),
    "too many steps": lambda s: s.advance(1 << 24),
    "no policy": lambda s: s.set_policy("observed"),
    "an auto_step of one head": lambda s: s.set_policy(cxl_kv.Policy(auto_step=7), head=0),
    "an auto_step of one layer": lambda s: s.set_policy(cxl_kv.Policy(auto_step=7), layer=0),
    "no such page": lambda s: s.page_state(0, 0, 2),
    "no such sum": lambda s: s.telemetry("page"),
    "a mass of two": lambda s: s.hints.push_mass(0, 0, [2.0]),
    "no such page to pin": lambda s: s.hints.pin(0, 0, [8]),
    "another session's choice": lambda s: s.gather(no_choice(s.device.other)),
    "no choice": lambda s: s.gather(None),
    "share above one": lambda s: setattr(s, "wait_above", 1.5),
    "a shape that does not fit": lambda s: s.device.open_session(SHAPE.with_(layers=9)),
    "a page that does not fit": lambda s: s.device.open_session(SHAPE.with_(page_tokens=9)),
    "too many tokens": lambda s: s.device.open_session(SHAPE, max_tokens=999),
    "no register": lambda s: s.device.registers.read("nothing"),
    "a value too large": lambda s: s.device.registers.write("s0_command", 1 << 64),
    "an odd address": lambda s: s.device.transport.load([1]),
    "no session to close": lambda s: s.device.transport.close_session(99),
    "a session that nobody opened": lambda s: s.device.transport.close_session(2),
    "a session by its name": lambda s: s.device.transport.close_session("0"),
    "a negative address": lambda s: s.device.transport.load([-64]),
    "a fraction of an address": lambda s: s.device.transport.spec_read(np.array([64.0])),
    "an address without end": lambda s: s.device.transport.load([1 << 64]),
    "lines of 63 bytes": lambda s: s.device.transport.store([0, 64], np.zeros((2, 63), "u1")),
    "lines of objects": lambda s: s.device.transport.store([0], np.zeros(8, object)),
    "enables of another count": lambda s: s.device.transport.store([0], np.zeros(64, "u1"), [1, 2]),
    "a negative enable": lambda s: s.device.transport.store([0], np.zeros(64, "u1"), -1),
    "keys of no order": lambda s: s.read(0, positions={0, 1}),
    "a batch of nobody": lambda s: s.device.batch().advance(None),
    "a line too few": lambda s: s.device.transport.store([0, 64], np.zeros((1, 64), np.uint8)),
}


@pytest.fixture(params=WORLDS)
def worlds(request):
    with contextlib.ExitStack() as stack:
        yield [World(stack, url, served=served) for url, served in WORLDS[request.param]]


def alike(worlds, calls, of, error=None):
    """Each call's outcome is the first world's, on all of them; `error`, where it is named. Plain
    memory takes no hints, which it says of what is open."""
    wrong = []
    for name, call in calls.items():
        told = [outcome(lambda w, call=call: call(of(w)), world) for world in worlds]
        if error is not None and (told[0][0] != "raised" or not issubclass(told[0][1][0], error)):
            wrong.append((name, worlds[0].name, told[0]))
        wrong += [
            (name, told[0], world.name, mine)
            for world, mine in zip(worlds[1:], told[1:], strict=True)
            if mine != told[0] and not (error is None and world.plain and unsupported(mine))
        ]
    assert not wrong, "\n".join(map(str, wrong))


def unsupported(told):
    return told[0] == "raised" and told[1][0] is cxl_kv.UnsupportedError


@pytest.mark.timeout(2100)
def test_what_is_closed_says_so_of_every_call(worlds):
    """A closed session and a closed store are a SessionClosedError, a closed device is a
    TransportError, also of calls that ask for nothing."""
    stores, later = {}, {}
    for world in worlds:
        device = world.handles[0]
        # One after another: a device of the RTL has two sessions.
        closed = device.open_session(SHAPE)
        closed.write(0, ONE, ONE)
        closed.close()
        stores[world] = BlockStore(device, 64)
        stores[world].put("a", b"1")
        stores[world].close()
        world.sessions = {0: closed, 1: device.open_session(SHAPE, max_tokens=8)}
        later[world] = BlockStore(device, 64)
    alike(worlds, OF_A_SESSION, lambda w: w.sessions[0], cxl_kv.SessionClosedError)
    alike(worlds, OF_A_STORE, lambda w: stores[w], cxl_kv.SessionClosedError)
    for world in worlds:
        for device in (*world.handles, world.admin):
            device.close()
    alike(worlds, OF_A_SESSION, lambda w: w.sessions[1], cxl_kv.TransportError)
    alike(worlds, OF_A_DEVICE, lambda w: w.handles[0], cxl_kv.TransportError)
    alike(worlds, OF_A_STORE, lambda w: later[w], cxl_kv.TransportError)
    alike(worlds, OF_THE_CONTROL_PLANE, lambda w: w.admin, cxl_kv.TransportError)


@pytest.mark.timeout(2100)
def test_every_misuse_has_one_answer(worlds):
    """And leaves the session as it was."""
    for world in worlds:
        session = world.handles[0].open_session(SHAPE, max_tokens=8)
        session.write(0, 3 * ONE, 5 * ONE, start=7)
        session.device.other = world.handles[0].open_session(SHAPE)
        world.sessions[0] = session
    alike(worlds, MISUSE, lambda w: w.sessions[0], Exception)
    for world in worlds:
        session = world.sessions[0]
        k, v = session.read(0, stop=8)
        assert (k[:, 7] == 3).all() and (v[:, 7] == 5).all() and not k[:, :7].any()
        assert session.step == 0 and not session.state()["refused"] and session.pages == 2
        assert session.policy == cxl_kv.Policy()
