# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What goes wrong on the device is a typed error that names session, layer, head and page; nothing
wrong is ever returned, and everybody else goes on."""

import contextlib
import itertools

import numpy as np
import pytest
from narrow_unit import RTL
from serial_board import SerialBoard

import cxl_kv
from cxl_kv.backends import golden
from cxl_kv.control import Control
from cxl_kv.core import ALL_BYTES, Loaded
from cxl_kv.device import Device
from cxl_kv.transport import LocalTransport
from kelp_rtl.device import MemoryTiming
from kelp_spec.address import HINT_BYTES, REGISTER_BYTES, AddressMap, KvAddress
from kelp_spec.config import named
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.metadata import Event, PageState, Protected
from kelp_spec.registers import (
    EVENT_RECORDS,
    SESSION_BASE,
    SESSION_STRIDE,
    SessionCommand,
)

pytestmark = pytest.mark.timeout(1800)  # the first RTL test builds the model

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
UNIT = named("unit")


@pytest.fixture(params=["golden:unit", RTL])
def device(request):
    with cxl_kv.open(request.param) as opened:
        yield opened


@pytest.fixture(params=["golden", "rtl", "serial", "dax"])
def any_device(request, tmp_path):
    urls = {
        "golden": "golden:unit",
        "rtl": RTL,
        "dax": f"dax:{tmp_path}/memory?config=unit&create=1",
    }
    with contextlib.ExitStack() as stack:
        url = urls.get(request.param)
        if url is None:
            url = f"serial:{stack.enter_context(SerialBoard()).port}?patience=30"
        yield stack.enter_context(cxl_kv.open(url))


def tensors(tokens=32, seed=1):
    return np.random.default_rng(seed).standard_normal((2, 2, 2, tokens, 32)).astype(np.float16)


def cold_page(session):
    """(layer, head, page) of a page on the cold tier."""
    for layer, head, page in np.ndindex(2, 2, session.pages):
        if session.page_state(layer, head, page)["state"] is PageState.COLD:
            return layer, head, page
    raise AssertionError("no page is cold")


def quiet(device):
    """No write-back or prefetch is under way: simulated time goes on only while somebody asks."""
    settle = getattr(device.transport.core, "settle", None)
    if settle:
        settle()


def test_a_page_that_flash_lost_is_named(device):
    """Poison for that page alone; written anew it is sound again."""
    first, second = (device.open_session(SHAPE) for _ in range(2))
    k, v = tensors()
    for session in (first, second):
        session.write([0, 1], k, v)
    quiet(device)
    layer, head, page = cold_page(first)
    device.transport.core.fail_fetches()
    where = dict(start=4 * page, stop=4 * page + 4, heads=head)
    with pytest.raises(
        cxl_kv.FlashError, match=f"session 0, layer {layer}, head {head}, page {page}: .*cold tier"
    ) as caught:
        first.read(layer, **where)
    assert (caught.value.session, caught.value.layer, caught.value.head, caught.value.page) == (
        0,
        layer,
        head,
        page,
    )
    assert "FETCH_FAILED" in [e["code"] for e in device.events()]
    assert (second.read([0, 1], stop=32)[0] == k).all()
    others = [p for p in range(first.pages) if p != page]
    assert (
        first.read(layer, positions=[4 * p for p in others], heads=head)[0][0]
        == k[layer, head, [4 * p for p in others]]
    ).all()
    first.write(
        layer,
        k[layer, head, None, 4 * page : 4 * page + 4],
        v[layer, head, None, 4 * page : 4 * page + 4],
        start=4 * page,
        heads=head,
    )
    assert (first.read([0, 1], stop=32)[1] == v).all()


def test_why_memory_made_poison_is_told():
    """Though the device tells of it behind its answer (docs/interface.md, "Order")."""
    with cxl_kv.open(RTL) as device:
        session, driver = device.open_session(SHAPE), device.transport.core.driver
        k, v = tensors(tokens=4)
        session.write([0, 1], k, v)
        for n in range(16):
            driver.configure(memory=MemoryTiming())
            session.read([0, 1], stop=4)  # after which no buffer has lines of layer 0
            driver.configure(memory=MemoryTiming(read_error=1.0))
            began = driver.time
            with pytest.raises(cxl_kv.PoisonError, match="answered a read with an error"):
                session.read(0, heads=n % 2, start=n % 4, stop=n % 4 + 1)
            # Of a page of many lines no register would say so yet.
            assert driver.time - began > UNIT.page_lines + 64
            assert {e["code"] for e in device.events()} == {"MEMORY_READ_FAILED"}


def pinned_full(device, *, cold=False):
    """A session whose pinned pages are all of the pool: the next page finds no frame. `cold`: its
    page (1, 0, 0) is on the cold tier."""
    device.configure(low_water=0, high_water=0, reserve=0, starve_limit=1 << 24)
    session = device.open_session(SHAPE)
    k, v = tensors()
    if cold:
        session.write(1, k[1, :1, :4], v[1, :1, :4], heads=0)
        quiet(device)
    # 2 heads × 4 pages, and eight frames, of which eviction keeps one free
    session.write(0, k[0, :, :16], v[0, :, :16])
    for head in (0, 1):
        session.hints.pin(0, head, range(4))
    session.read(0, stop=16)  # so the last one comes back and stays
    quiet(device)
    device.configure(starve_limit=3000)
    return session


def test_a_full_device_says_which_page_was_lost(device):
    """Everything pinned: the next page finds no frame. After a release there is room again."""
    session, (k, v) = pinned_full(device), tensors()
    pinned = [session.page_state(0, head, page) for head in (0, 1) for page in range(4)]
    assert all(word["pinned"] and word["state"] is PageState.RESIDENT for word in pinned)
    with pytest.raises(
        cxl_kv.DeviceFullError, match="session 0, layer 1, head 1, page 2: the device is full"
    ):
        session.write(1, k[1, 1:, 8:12], v[1, 1:, 8:12], start=8, heads=1)
    with pytest.raises(
        cxl_kv.DeviceFullError, match="layer 1, head 1, page 2: .* its content is lost"
    ):
        session.read(1, start=8, stop=9, heads=1)
    assert {"NO_VICTIM", "STARVED"} <= {e["code"] for e in device.events()}
    assert (session.read(0, stop=16)[0] == k[0, :, :16]).all()
    device.configure(starve_limit=1 << 24)  # longer than flash takes to write a page back
    session.hints.release(0, 0, [0])
    quiet(device)
    session.write(1, k[1, 1:, 8:12], v[1, 1:, 8:12], start=8, heads=1)
    assert (session.read(1, start=8, stop=12, heads=1)[1] == v[1, 1:, 8:12]).all()
    assert (session.read(0, stop=16)[0] == k[0, :, :16]).all()


def test_a_lost_write_is_told_whoever_takes_the_event(device):
    """Another thread asks for events, for a session of its own, while this one's store is on its
    way."""
    session, (k, v) = pinned_full(device), tensors()
    store = device.transport.store

    def overtaken(*arguments):
        store(*arguments)
        quiet(device)
        device.events()

    device.transport.store = overtaken
    with pytest.raises(cxl_kv.DeviceFullError, match="session 0, layer 1, head 1, page 2"):
        session.write(1, k[1, 1:, 8:12], v[1, 1:, 8:12], start=8, heads=1)
    device.transport.store = store
    session.close()
    device.configure(starve_limit=1 << 24)
    successor = device.open_session(SHAPE)
    successor.write(0, k[0], v[0])  # which lost nothing


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("how", ["read", "sample", "another"])
def test_a_read_that_found_no_frame_is_no_later_writes_loss(device, how, same):
    """Neither of another page nor, when there is room again, of the same one, which of somebody
    else's reads nobody can tell."""
    session, (k, v) = pinned_full(device, cold=True), tensors()
    where = dict(positions=np.arange(4), heads=0)
    if how == "read":
        with pytest.raises(cxl_kv.DeviceFullError, match="page 0: .* is in the cold tier still"):
            session.read(1, **where)
    elif how == "sample":
        assert not session.sample(1, **where)[1].any()
    else:
        first = session.layout.addresses(slice(1, 2), slice(0, 1), np.zeros(1, np.int64))
        assert device.transport.load(first[0, 0, 0]).status.all()
    if not same:
        session.write(0, k[0, 1:, :4], v[0, 1:, :4], heads=1)
    device.configure(starve_limit=1 << 24)
    session.hints.release(0, 0, [0])
    quiet(device)
    if how != "another":
        assert (session.read(1, **where)[0] == k[1, :1, :4]).all()  # which was not lost
        session.write(1, k[1, :1, :4], v[1, :1, :4], heads=0)
    assert "STARVED" in {e["code"] for e in device.events()}


def test_what_befell_the_session_before_explains_nothing():
    """Its pages have the same numbers; nor does what befell a page before memory failed."""
    with cxl_kv.open("golden:unit") as device:
        core, (k, v) = device.transport.core, tensors()
        where = cold = None
        for _ in range(2):
            session = device.open_session(SHAPE)
            session.write([0, 1], k, v)
            if cold is None:
                cold = layer, head, page = cold_page(session)
                where = dict(start=4 * page, stop=4 * page + 4, heads=head)
                core.fail_fetches()
                with pytest.raises(cxl_kv.FlashError):
                    session.read(layer, **where)
                session.close()
        session.read(layer, **where)
        core.engine.settled_frame(2 * layer + head, page).poison = 1
        with pytest.raises(cxl_kv.PoisonError) as caught:
            session.read(layer, **where)
        assert caught.type is cxl_kv.PoisonError
        for code in (Event.FETCH_FAILED, Event.MEMORY_READ_FAILED):
            core.window.events.log(code, squeue=2 * layer + head, page=page)
        with pytest.raises(cxl_kv.PoisonError) as caught:
            session.read(layer, **where)
        assert caught.type is cxl_kv.PoisonError


def test_a_lost_write_is_told_whose_event_found_no_room(device):
    """The device's log is full of others' events by then."""
    session, (k, v) = pinned_full(device), tensors()
    device.events()
    hints = np.full(EVENT_RECORDS + 4, AddressMap(device.config).hint_base, np.uint64)
    device.transport.store(hints, np.zeros((len(hints), 64), np.uint8))  # lines of no kind
    with pytest.raises(cxl_kv.PoisonError, match="layer 1, head 1, page 2: the page is lost"):
        session.write(1, k[1, 1:, 8:12], v[1, 1:, 8:12], start=8, heads=1)
    codes = {event["code"] for event in device.events()}
    assert "OVERFLOW" in codes and "STARVED" not in codes
    device.configure(starve_limit=1 << 24)
    session.hints.release(0, 0, [0])
    quiet(device)
    device.transport.store(hints, np.zeros((len(hints), 64), np.uint8))
    session.write(1, k[1, 1:, 8:12], v[1, 1:, 8:12], start=8, heads=1)  # which is there
    assert (session.read(1, start=8, stop=12, heads=1)[1] == v[1, 1:, 8:12]).all()


@pytest.mark.parametrize("closed", [False, True])
def test_a_lost_write_is_told_whose_event_was_taken_long_ago(closed):
    """Others have asked for so many events since that it is not kept any more."""
    with cxl_kv.open("golden:unit") as device:
        session, (k, v) = pinned_full(device), tensors()
        log, store = device.transport.core.window.events.log, device.transport.store

        def overtaken(*arguments):
            if closed:
                device.transport.close_session(0)
            store(*arguments)
            device.poll()
            for _ in range(1024 // EVENT_RECORDS):
                for _ in range(EVENT_RECORDS):
                    log(Event.CORRECTED)
                device.poll()

        device.transport.store = overtaken
        first = device.polled
        error = cxl_kv.SessionClosedError if closed else cxl_kv.PoisonError
        with pytest.raises(error, match="nothing was stored" if closed else "the page is lost"):
            session.write(1, k[1, 1:, 8:12], v[1, 1:, 8:12], start=8, heads=1)
        device.transport.store = store
        kept, polled = device.since(first)
        assert [event["code"] for event in kept] == ["OVERFLOW"] + 1024 * ["CORRECTED"]
        assert kept[0]["number"] == kept[1]["number"]
        assert len(device.since(polled - 1024)[0]) == 1024 and device.since(polled)[0] == []


def test_a_session_that_is_another_owners_by_now(device):
    """Closed behind one's back, and its number given to another LD-ID."""
    session, (k, v) = device.open_session(SHAPE), tensors()
    device.transport.close_session(0)
    with cxl_kv.Device(LocalTransport(device.transport.core, 3, shared=True)) as other:
        successor = other.open_session(SHAPE)
        assert successor.number == session.number
        with pytest.raises(cxl_kv.SessionClosedError, match="another owner's.*nothing was stored"):
            session.write(0, k[0], v[0])
        assert not successor.read(0, stop=32)[0].any()
        successor.write(0, k[0], v[0])  # the other's refusal is none of its own


def test_a_session_closed_behind_ones_back(device):
    session = device.open_session(SHAPE)
    k, v = tensors()
    session.write([0, 1], k, v)
    device.transport.close_session(0)
    with pytest.raises(cxl_kv.SessionClosedError, match="session 0"):
        session.read(0, stop=1)
    with pytest.raises(cxl_kv.SessionClosedError, match="nothing was stored"):
        session.write(0, k[0], v[0])
    again = device.open_session(SHAPE)
    assert not again.read([0, 1], stop=32)[0].any()


@pytest.mark.parametrize("overflows", [False, True])
def test_a_write_into_what_has_become_anothers_session(device, overflows):
    """Reopened for another LD-ID behind its owner's back, who would believe it stored; also where
    the event that tells of it finds no room."""
    core = device.transport.core
    owner, stranger = (Device(LocalTransport(core, ld_id, shared=True)) for ld_id in (5, 6))
    session, (k, v) = owner.open_session(SHAPE), tensors()
    session.write(0, k[0], v[0])
    device.transport.close_session(session.number)
    other = stranger.open_session(SHAPE)
    assert other.number == session.number
    if overflows:
        for _ in range(EVENT_RECORDS):
            refused(device, 7)
    with pytest.raises(cxl_kv.SessionClosedError, match="another owner's.*nothing was stored"):
        session.write(0, k[0], v[0])
    assert not other.read(0, stop=32)[0].any()
    other.write(0, k[0], v[0])  # which was refused nothing


def test_what_a_stranger_was_refused_is_no_error_of_a_write(device):
    """LD-ID 0 is told of it, and its own line is stored."""
    session, (k, v) = device.open_session(SHAPE), tensors()
    session.write(0, k[0], v[0])
    device.transport.core.load(session.layout.addresses([0], [0], [0]).reshape(-1)[:1], 7)
    session.write(0, k[0], v[0])
    assert "FOREIGN_LD" in [e["code"] for e in device.events()]


def test_a_line_beyond_the_sessions_shape(device):
    """An address of the session that its descriptor does not have: told apart from a closed
    session."""
    session = device.open_session(SHAPE, max_tokens=8)
    session.layout.shape = SHAPE
    session.max_tokens = 32
    with pytest.raises(
        cxl_kv.NotMappedError,
        match="session 0, layer 0, head 0, page 2: the device maps no such line",
    ):
        session.read(0, start=8, stop=12)
    with pytest.raises(
        cxl_kv.NotMappedError, match="layer 0, head 0, page 2: .* no such line .* not stored"
    ):
        session.write(0, tensors(4)[0][0], tensors(4)[1][0], start=8)
    with pytest.raises(cxl_kv.NotMappedError):
        session.read(0, start=8, stop=12)
    session.write(0, tensors(4)[0][0], tensors(4)[1][0], start=0)  # no fault of this one's


def test_poison_is_explained_by_what_came_last(monkeypatch):
    """Not by a fetch that had failed long before."""
    with cxl_kv.open("golden:unit") as device:
        session, (k, v) = device.open_session(SHAPE), tensors()
        session.write([0, 1], k, v)
        layer, head, page = cold_page(session)
        where = dict(start=4 * page, stop=4 * page + 4, heads=head)
        log, squeue = device.transport.core.window.events.log, 2 * layer + head
        device.transport.core.fail_fetches()
        with pytest.raises(cxl_kv.FlashError):
            session.read(layer, **where)
        load = device.transport.load

        def spoiled(addresses):
            """Poison, of which `log` says why."""
            lines, status = load(addresses)
            return Loaded(lines, np.full_like(status, cxl_kv.Status.POISON))

        monkeypatch.setattr(device.transport, "load", spoiled)
        for code in (Event.MEMORY_READ_FAILED, Event.MEMORY_WRITE_FAILED):
            log(code, squeue=squeue, page=page)
            with pytest.raises(cxl_kv.PoisonError, match="memory has answered") as caught:
                session.read(layer, **where)
            assert type(caught.value) is cxl_kv.PoisonError


@pytest.mark.parametrize("told", ["event", "overflow", "before"])
def test_a_device_that_has_failed_says_so(told, monkeypatch):
    """A fatal error of a memory: a write that is confirmed is lost, and no page can be mended."""
    with cxl_kv.open("golden:unit") as device:
        core = device.transport.core
        session, (k, v) = device.open_session(SHAPE), tensors()
        session.write([0, 1], k, v)

        def fails():
            read, load = core._read_register, core._read_page
            monkeypatch.setattr(core.window, "_read", lambda *a: read(*a) | (a[0] == "status") << 4)

            def poisoned(session, squeue, page, lines, ld_id, versions):
                load(session, squeue, page, lines, ld_id, versions)
                versions[:] = golden._POISONED

            monkeypatch.setattr(core, "_read_page", poisoned)

        fails()
        if told == "before":
            device = Device(LocalTransport(core, shared=True))
            session = device.open_session(SHAPE)
        if told == "overflow":
            for _ in range(EVENT_RECORDS):
                refused(device, 7)
        if told != "before":
            core.window.events.log(Event.FATAL, argument=Protected.MISS_BUFFER)
        for _ in range(2):  # the event is taken by the first call
            with pytest.raises(cxl_kv.DeviceFailedError, match=r"layer 1, .*until .* reset"):
                session.write(1, k[1], v[1])
        with pytest.raises(cxl_kv.DeviceFailedError, match=r"layer 1, .*until .* reset"):
            session.read(1, stop=1)
        monkeypatch.undo()  # it is reset
        session.write(1, k[1], v[1])
        assert (session.read(1, stop=32)[0] == k[1]).all()


def test_a_word_that_names_no_page_is_not_told_to_the_owner_of_session_0():
    """Its record has zeros where others name a page."""
    with cxl_kv.open("golden:unit") as device:
        core = device.transport.core
        owner = Device(LocalTransport(core, 5, shared=True))
        session = owner.open_session(SHAPE)
        assert session.number == 0
        log = core.window.events.log
        log(Event.WORD_LOST, argument=Protected.HOST)
        log(Event.BIRSP_UNASKED)
        log(Event.WORD_LOST, argument=Protected.SCORES, page=1)
        log(Event.FATAL, argument=Protected.HOST)
        codes = ["WORD_LOST", "BIRSP_UNASKED", "WORD_LOST", "FATAL"]
        assert [e["code"] for e in device.events()] == codes
        told = [(e["code"], e["argument"], e["page"]) for e in owner.events()]
        assert told == [("WORD_LOST", Protected.SCORES, 1), ("FATAL", Protected.HOST, 0)]


class Accesses:
    """Accesses that are refused, each by the owner of session 1, a stranger and LD-ID 0; and what
    each was answered, told and counted."""

    def __init__(self, url):
        self.told = []
        with cxl_kv.open(url) as device:
            self.device, self.core, self.map = device, device.transport.core, AddressMap(UNIT)
            owner = Device(LocalTransport(self.core, 5, shared=True))
            k, v = tensors()
            device.open_session(SHAPE).write([0, 1], k, v)
            owner.open_session(SHAPE)
            quiet(device)
            device.events()
            for ld_id in (0, 5, 7):
                for name, address in self.places():
                    self.at(f"{name} of LD-ID {ld_id}", address, ld_id)
                self.commands(ld_id)
            self.hints()

    def places(self):
        """Places that are nobody's, or not everybody's, in each region."""
        c, top = UNIT, 1 << UNIT.aperture_bits
        last = KvAddress(1, c.queues - 1, c.pages - 1, 1, c.half_lines - 1)
        yield "own or foreign", self.map.encode(KvAddress(0, 0, 0, 0, 0))
        yield "the last line", self.map.encode(last)
        yield "behind the hints", top + HINT_BYTES
        yield "behind the registers", 2 * top + REGISTER_BYTES
        yield "in no region", 3 * top + self.map.encode(last)
        yield "far away", 1 << 50
        for offset in (0x40, 0x400, 0x600, 0x800, SESSION_BASE + SESSION_STRIDE):
            yield f"register {offset:#x}", 2 * top + offset

    def at(self, name, address, ld_id):
        at = np.array([address], np.uint64)
        self.note(f"load {name}", lambda: self.core.load(at, ld_id))
        self.note(f"spec_read {name}", lambda: self.core.spec_read(at, ld_id))
        if ld_id != 0:  # who would set registers
            for enabled in (0, 0xFF00, ALL_BYTES):
                self.note(f"store {enabled:#x} {name}", lambda e=enabled: self.store(at, e, ld_id))

    def store(self, at, enabled, ld_id, line=None):
        line = np.zeros((1, 64), np.uint8) if line is None else line
        self.core.store(at, line, np.full(1, enabled, np.uint64), ld_id)

    def commands(self, ld_id):
        for session in (0, 1):
            at = self.map.register_base + SESSION_BASE + SESSION_STRIDE * session
            for command in (0, SessionCommand.OPEN, SessionCommand.PEEK, 15):
                line = np.zeros((1, 64), np.uint8)
                line[0, 16] = command
                self.note(
                    f"command {command} of session {session} by LD-ID {ld_id}",
                    lambda line=line, at=at: self.store(
                        np.array([at], np.uint64), 0xFF << 16, ld_id, line
                    ),
                )

    def hints(self):
        pins, numbers = tuple(range(UNIT.pages)), itertools.count()
        good = dict(kind=HintKind.MASS, session=0, queue=0, first_page=0, entries=(1, 2))
        for changed, ld_id in (
            (dict(session=9), 0),
            ({}, 5),
            (dict(session=1), 7),
            ({}, 0),
            (dict(queue=9), 0),
            (dict(first_page=UNIT.pages - 1), 0),
            (dict(kind=HintKind.PIN, entries=(0, 6000, 6100)), 0),
            (dict(kind=HintKind.PIN, entries=pins), 0),
            (dict(kind=HintKind.PIN, queue=1, entries=pins), 0),
            (dict(kind=HintKind.PIN, queue=2, entries=pins), 0),
        ):
            line = HintLine(sequence=2 * next(numbers), advance=False, **{**good, **changed})
            line = np.frombuffer(pack(line), np.uint8)[None]
            for enabled in (0xFF, ALL_BYTES):
                at = np.array([self.map.hint_base], np.uint64)
                self.note(f"hint {changed}", lambda a=(at, enabled, ld_id, line): self.store(*a))

    def note(self, name, access):
        before = self.device.counters()["refused"]
        answer = access()
        quiet(self.device)
        events = [
            tuple(e[f] for f in ("code", "ld_id", "session", "queue", "page", "argument"))
            for e in self.device.events()
        ]
        if not name.startswith("hint"):  # there is no tag in a golden device
            events = [
                e[:-1] if e[0] in ("OUT_OF_MAP", "CLOSED_SESSION", "FOREIGN_LD") else e
                for e in events
            ]
        status = None if answer is None else answer.status.tolist()
        self.told.append((name, status, events, self.device.counters()["refused"] - before))


def test_what_is_refused_is_told_alike():
    """The golden device and the RTL: answer, event, LD-ID, page, argument, counter."""
    golden_told, rtl_told = (Accesses(url).told for url in ("golden:unit", f"{RTL}&lockstep=1"))
    for mine, other in zip(golden_told, rtl_told, strict=True):
        assert mine == other
    codes = {event[0] for _, _, events, _ in golden_told for event in events}
    assert codes >= {
        "OUT_OF_MAP",
        "FOREIGN_LD",
        "REGISTER_REFUSED",
        "OPEN_REFUSED",
        "PIN_REFUSED",
        "HINT_MALFORMED",
        "HINT_BAD_PAGE",
        "HINT_BAD_QUEUE",
        "HINT_GAP",
    }


def test_refused_pins_are_events(device):
    session = device.open_session(SHAPE)
    session.write([0, 1], *tensors())
    for layer, head in np.ndindex(2, 2):
        session.hints.pin(layer, head, range(session.pages))
    quiet(device)
    refused = [e for e in device.events() if e["code"] == "PIN_REFUSED"]
    assert refused and {e["session"] for e in refused} == {0}


def refused(device, ld_id):
    """A read of registers of LD-ID 0's, by another one: an event of its own."""
    core = device.transport.core
    address = AddressMap(core.config).register_base + SESSION_BASE
    core.load(np.array([address], np.uint64), ld_id)


def test_an_event_between_read_and_drain_is_told_by_the_next(device):
    """The device goes on while its log is read: the record that came last is not taken unread, nor
    an overflow."""
    registers = Control.of(device.transport.core).registers
    write, late = registers.write, []

    def overtaken(name, *value, **fields):
        if name.startswith("event_") and late:
            count = late.pop()
            for _ in range(count):
                refused(device, 9)
            quiet(device)
        write(name, *value, **fields)

    registers.write = overtaken
    refused(device, 7)
    late.append(1)
    assert [e["ld_id"] for e in device.events()] == [7]
    assert [e["ld_id"] for e in device.events()] == [9]
    refused(device, 7)
    late.append(EVENT_RECORDS)  # one more than there is room for
    assert [e["code"] for e in device.events()] == ["REGISTER_REFUSED"]
    told = [e["code"] for e in device.events()]
    assert told == ["REGISTER_REFUSED"] * (EVENT_RECORDS - 1) + ["OVERFLOW"]
    for _ in range(EVENT_RECORDS):
        refused(device, 7)
    late.append(1)
    assert len(device.events()) == EVENT_RECORDS
    assert [e["code"] for e in device.events()] == ["OVERFLOW"]  # of an empty log
    assert device.events() == []


def test_an_event_of_a_later_version_has_its_number():
    """A host takes a device of a later minor version; an event that it does not know must not cost
    those that were read with it."""
    with cxl_kv.open("golden:unit") as device:
        log = device.transport.core.window.events.log
        for code in (200, Event.HINT_GAP):
            log(code, squeue=5, page=3)
        told = device.events()
    assert [e["code"] for e in told] == ["EVENT_200", "HINT_GAP"]
    assert [(e["session"], e["queue"], e["page"]) for e in told] == [(1, 1, 3)] * 2


def test_a_golden_device_that_was_interrupted_answers_nothing_wrong():
    """Ctrl-C in the midst of a store, at whichever step, leaves it half done within the model."""
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
    k = np.ones((2, 2, 32, 32), np.float16)
    with cxl_kv.open("golden:unit?frames=8,8,8,8") as device:
        engine = device.transport.core.engine
        request, calls = engine.request, itertools.count()

        def interrupted(op):
            if next(calls) == 20:
                raise KeyboardInterrupt
            return request(op)

        with pytest.raises(KeyboardInterrupt), device.open_session(shape) as session:
            session.write([0, 1], k, k)
            engine.request = interrupted
            session.write([0, 1], k, k)
        with pytest.raises(cxl_kv.SessionClosedError):
            session.read(0, stop=1)
        with pytest.raises(cxl_kv.ConnectionLostError, match="broken off in the middle"):
            device.open_session(shape)


def test_a_board_that_was_interrupted_answers_nothing_wrong(monkeypatch):
    """Ctrl-C amid a read, whose answers come when nobody waits for them any more: they are no
    later call's."""
    with SerialBoard() as board, cxl_kv.open(f"serial:{board.port}?patience=30") as device:
        session, host = device.open_session(SHAPE), device.transport.core.host
        turn, turns = host._turn, itertools.count()

        def interrupted(wait):
            found = turn(wait)
            if next(turns) == 1:
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(host, "_turn", interrupted)
            session.read([0, 1], stop=32)
        address = np.zeros(1, np.uint64)
        for call in (
            lambda: device.transport.spec_read(address),
            lambda: session.read(0, stop=1),
            session.state,
            lambda: device.open_session(SHAPE),
        ):
            with pytest.raises(cxl_kv.ConnectionLostError, match="broken off in the middle"):
                call()
        session.close()


def test_events_that_nobody_asks_for_do_not_go_in_silence():
    with cxl_kv.open("golden:unit") as device:
        for _ in range(1100):
            refused(device, 7)
            device.poll()
        told = [e["code"] for e in device.events()]
        assert told == ["OVERFLOW"] + ["REGISTER_REFUSED"] * 1024
        refused(device, 7)
        assert [e["code"] for e in device.events()] == ["REGISTER_REFUSED"]


def test_an_interrupt_stays_until_the_log_is_empty(device):
    registers = Control.of(device.transport.core).registers
    registers.write("irq_enable", 1 << Event.REGISTER_REFUSED)
    refused(device, 7)
    registers.write("irq_enable", 0)  # of events to come
    refused(device, 9)
    for count in (2, 1):
        assert registers.read("event_count") == count and registers.fields("status")["irq"]
        registers.write("event_taken", count=1)
    assert not registers.fields("status")["irq"]
    refused(device, 7)
    assert device.events() and not registers.fields("status")["irq"]


@pytest.mark.parametrize("url", ["golden:unit", RTL])
def test_an_error_survives_the_socket(url, tmp_path):
    """A tenant behind a server is told of its own page, by the same type."""
    from cxl_kv.serving.server import Server
    from cxl_kv.url import make_core

    core = make_core(url)
    with Server(core) as server, cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock")) as device:
        session = device.open_session(SHAPE)
        k, v = tensors()
        session.write([0, 1], k, v)
        with core.lock:
            if hasattr(core, "settle"):
                core.settle()
        layer, head, page = cold_page(session)
        with core.lock:
            core.fail_fetches()
        with pytest.raises(cxl_kv.FlashError, match=f"layer {layer}, head {head}, page {page}"):
            session.read(layer, start=4 * page, stop=4 * page + 4, heads=head)
        assert [e["code"] for e in device.events()] == ["FETCH_FAILED"]


def test_no_address_is_too_large_to_be_answered(any_device):
    """What lies beyond the 52 bits of a message is as little mapped as what lies beyond the map."""
    transport, scheme = any_device.transport, type(any_device.transport.core).__name__
    beyond = np.array([1 << 51, 1 << 52, (1 << 52) + (1 << 43), 1 << 63, (1 << 64) - 64], np.uint64)
    loaded = transport.load(beyond)
    assert loaded.status.tolist() == [cxl_kv.Status.NOT_MAPPED] * 5 and not loaded.lines.any()
    transport.spec_read(beyond)
    if scheme == "DaxCore":  # which says so of a store
        return
    transport.store(beyond, np.ones((5, 64), np.uint8))
    transport.store(beyond, np.ones((5, 64), np.uint8), np.full(5, 1, np.uint64))
    assert (transport.load(beyond).status == cxl_kv.Status.NOT_MAPPED).all()
