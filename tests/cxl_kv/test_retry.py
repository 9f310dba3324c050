# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a call that raised leaves behind: the same call made again does what it would have done, and
nothing that was there is lost. What a second call with the same arguments does."""

import numpy as np
import pytest
from filled_session import DIM, HEADS, LAYERS, filled, queries
from worlds import seen

import cxl_kv
from cxl_kv.blocks import BlockStore
from kelp_spec.select import Refusal

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
TOKENS = 20
RNG = np.random.default_rng(7)
Q = queries(RNG)
ASKED = RNG.standard_normal((2 * HEADS, 8, DIM)).astype(np.float16)
NEW = RNG.standard_normal((2, LAYERS, HEADS, 5, DIM)).astype(np.float16)
_WAYS = ("load", "load_spans", "store", "spec_read", "open_session", "close_session", "events")


class Setting:
    """A device with a filled session, a plan, a choice and a store of blocks."""

    def __init__(self):
        self.device, self.session, self.k, self.v = filled(
            "golden:unit_select?frames=512,256,256,256&sessions=4", tokens=TOKENS
        )
        self.session.plan(1, self.k[1], ASKED)
        self.chosen = self.session.select(1, Q, tokens=TOKENS)
        self.store = BlockStore(self.device, 300, policy=cxl_kv.Policy())
        self.store.put("a", b"first")
        self.spare = self.device.open_session(SHAPE)
        self.device.events()

    def left(self):
        """What is there, for whoever looks."""
        return seen(
            [
                self.session.read(range(LAYERS), stop=TOKENS),
                self.session.step,
                self.session.policy,
                self.session.plans,
                self.device.queues,
                self.device.pools()["int4"],
                self.device.registers.read("prefetch_enable"),
                {key: self.store.get(key) for key in sorted(self.store.keys())},
                [self.session.page_state(0, 0, page)["pinned"] for page in range(3)],
            ]
        )


CALLS = {
    "open_session": lambda s: s.device.open_session(SHAPE),
    "write": lambda s: s.session.write([0, 1], *NEW, start=9),
    "write some": lambda s: s.session.write(1, *NEW[:, 1, :1], positions=range(2, 7), heads=1),
    "read": lambda s: s.session.read([1, 0], start=3, stop=15),
    "sample": lambda s: s.session.sample(0, np.arange(5)),
    "select": lambda s: s.session.select(0, Q, tokens=TOKENS, mass=0.5).pages,
    "select again": lambda s: s.session.select(1, Q, tokens=TOKENS).pages,
    "guess": lambda s: s.session.select(1, Q, tokens=TOKENS, speculative=True).wanted,
    "gather": lambda s: s.session.gather(s.chosen),
    "plan": lambda s: s.session.plan(0, s.k[0], ASKED),
    "advance": lambda s: s.session.advance(),
    "state": lambda s: s.session.state()["open"],
    "set_policy": lambda s: s.session.set_policy(cxl_kv.Policy(alpha=0.5, auto_step=3)),
    "set_policy of a head": lambda s: s.session.set_policy(cxl_kv.Policy(tau=5), head=1),
    "telemetry": lambda s: s.session.telemetry()["evictions"],
    "page_state": lambda s: s.session.page_state(1, 1, 1)["state"],
    "pin": lambda s: s.session.hints.pin(0, 0, [0, 2]),
    "push_mass": lambda s: s.session.hints.push_mass(0, 0, [0.5], advance=True),
    "configure": lambda s: s.device.configure(prefetch=["hint"], pool_limits={"int4": 9}),
    "fetch_chosen": lambda s: s.device.fetch_chosen(),
    "pools": lambda s: s.device.pools(),
    "histograms": lambda s: s.device.latency_histograms(),
    "events": lambda s: s.device.events(),
    "frames": lambda s: s.device.frames(SHAPE, 0),
    "close": lambda s: s.spare.close(),
    "a batch": lambda s: s.device.batch().read(s.session, 0, stop=9).submit().result(60),
    "a store": lambda s: BlockStore(s.device, 64).capacity,
    "put": lambda s: s.store.put("b", b"second"),
    "prefetch": lambda s: s.store.prefetch(["a"]),
    "close of the store": lambda s: s.store.close(),
}
#: What is done twice, where only its answer was lost.
_ADDS_UP = {"advance", "push_mass", "open_session", "a store"}


def faults(monkeypatch, device, at, late):
    """Its transport's call number `at` from now on raises, once: before it has done anything, or,
    `late`, behind it. A list of the calls that were made."""
    made = []

    def planted(name, call):
        def instead(*given, **named):
            made.append(name)
            if len(made) != at + 1:
                return call(*given, **named)
            if late:
                call(*given, **named)
            raise cxl_kv.TransportError("planted")

        return instead

    for name in _WAYS:
        monkeypatch.setattr(device.transport, name, planted(name, getattr(device.transport, name)))
    monkeypatch.setattr(device.registers, "_store", device.transport.store)
    return made


@pytest.mark.parametrize(
    ("name", "late"),
    [(name, late) for name in CALLS for late in (False, True)[: 2 - (name in _ADDS_UP)]],
)
@pytest.mark.sampled
def test_a_call_that_broke_off_can_be_made_again(name, late, monkeypatch):
    call, untouched = CALLS[name], Setting()
    wanted = seen(call(untouched))
    wanted_left = untouched.left() if name != "close of the store" else None
    for at in range(40):
        setting = Setting()
        with monkeypatch.context() as patch:
            made = faults(patch, setting.device, at, late)
            try:
                call(setting)
            except cxl_kv.TransportError as error:
                assert "planted" in str(error)
            if len(made) <= at:
                assert made or name == "plan"  # which asks the device for nothing
                return
        assert seen(call(setting)) == wanted, f"behind call {at}, {made[-1]}"
        if wanted_left is not None:
            assert setting.left() == wanted_left, f"behind call {at}, {made[-1]}"
        setting.device.close()
    raise AssertionError(f"{name} makes more than 40 calls")


@pytest.mark.parametrize("who", ["server", "device", "one head"])
def test_a_choice_that_was_refused_leaves_the_one_before(who, monkeypatch):
    """It changes nothing, so that is gathered still; not so where a head was served."""
    setting = Setting()
    session, core = setting.session, setting.device.transport.core
    before, answers = session.choices, iter([Refusal.COUNT, Refusal(0)])
    wanted = seen(session.gather(setting.chosen))

    def refuses(*_):
        raise cxl_kv.SelectRefusedError("beyond a budget")

    with monkeypatch.context() as patch:
        if who == "server":
            patch.setattr(setting.device.transport, "store", refuses)
        else:
            of = (lambda *_: Refusal.COUNT) if who == "device" else (lambda *_: next(answers))
            patch.setattr(core.region, "_refusal", of)
        with pytest.raises(cxl_kv.SelectRefusedError):
            session.select(0, Q, tokens=TOKENS)
    if who == "one head":
        assert session.choices == before + 1
        with pytest.raises(cxl_kv.NotMappedError, match="select again"):
            session.gather(setting.chosen)
    else:
        assert session.choices == before and seen(session.gather(setting.chosen)) == wanted
    assert session.select(0, Q, tokens=TOKENS).number == session.choices


def test_a_write_of_which_a_part_found_no_frame_is_made_again_as_a_whole():
    """Pages that were stored and the one that was lost alike."""
    with cxl_kv.open("golden:unit") as device:
        device.configure(low_water=0, high_water=0, reserve=0)
        others, session = device.open_session(SHAPE), device.open_session(SHAPE)
        k, v = np.random.default_rng(1).standard_normal((2, 1, 24, 32)).astype(np.float16)
        others.write(0, np.ones((1, 32, 32), "f2"), np.ones((1, 32, 32), "f2"), heads=0)
        session.write(0, k[:, :4], v[:, :4], heads=0)
        for _ in range(2):
            others.hints.pin(0, 0, range(7))
            others.read(0, stop=28, heads=0)
        session.hints.pin(0, 0, [0])
        session.read(0, stop=4, heads=0)  # the last frame
        with pytest.raises(cxl_kv.DeviceFullError, match="head 0, page 1: .*is lost"):
            session.write(0, k, v, heads=0)
        assert (session.read(0, stop=4, heads=0)[0] == k[:, :4]).all()
        with pytest.raises(cxl_kv.PoisonError):
            session.read(0, stop=24, heads=0)
        others.hints.release(0, 0, range(7))
        session.write(0, k, v, heads=0)
        assert seen(session.read(0, stop=24, heads=0)) == seen((k, v))


#: Calls of which a second one with the same arguments returns what the first did, and leaves all as
#: that left it.
TWICE = CALLS.keys() - _ADDS_UP - {"events", "close of the store"}


@pytest.mark.parametrize("name", sorted(TWICE))
def test_a_second_call_is_as_the_first(name):
    setting = Setting()
    first = seen(CALLS[name](setting))
    left = setting.left()
    assert seen(CALLS[name](setting)) == first and setting.left() == left


def test_what_a_second_call_adds():
    """What counts, counts twice; a pin is no count; what is over is over."""
    setting = Setting()
    session, hints, device = setting.session, setting.session.hints, setting.device
    step, choices = session.step, session.choices
    for _ in range(2):
        session.advance()
        hints.pin(0, 0, [0])
    assert session.step == step + 2
    hints.release(0, 0, [0])
    assert not session.page_state(0, 0, 0)["pinned"]
    hints.release(0, 0, [0])
    older = session.select(0, Q, tokens=TOKENS)
    session.select(0, Q, tokens=TOKENS)
    assert session.choices == choices + 2
    with pytest.raises(cxl_kv.NotMappedError, match="select again"):
        session.gather(older)
    device.registers.read_many(["s3_state"])
    device.transport.load(np.array([1 << 40], np.uint64))
    assert device.events() and not device.events()
    batch = device.batch().advance(session)
    done = batch.submit()
    assert done.result(60) is done.result(60)
    with pytest.raises(ValueError, match="was submitted before"):
        batch.submit()
    assert setting.store.delete("a") and not setting.store.delete("a")
    for _ in range(2):
        setting.store.close()
        device.close()
