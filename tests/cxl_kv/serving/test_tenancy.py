# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Non-interference through `kelp serve`: whatever one tenant does within its quota, another one
sees the very same answers as if it were alone."""

import numpy as np
import pytest
from narrow_unit import RTL
from simulated_window import SimulatedWindow
from tenants import tenants

import cxl_kv
from cxl_kv import control
from cxl_kv.backends.cxl import CxlCore
from cxl_kv.backends.golden import GoldenCore
from cxl_kv.device import Device
from cxl_kv.serving.server import Server
from cxl_kv.serving.tenancy import Kept, TenantTransport
from cxl_kv.url import make_core
from kelp_spec.address import AddressMap
from kelp_spec.config import named
from kelp_spec.metadata import Event, Protected
from kelp_spec.registers import SessionCommand
from kelp_spec.select import BELL_FIELDS, record_bytes

SHAPE = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
PAGES = 4 * 2  # that the watcher writes: two of each queue


def tensors(seed, tokens=32):
    return np.random.default_rng(seed).standard_normal((2, 2, 2, tokens, 32)).astype(np.float16)


def everything(device, session):
    """All that a tenant can ask about: every register, its telemetry, page words, events, and where
    no line is."""
    c = device.config
    registers = {
        name: device.registers.read(name)
        for name, r in device.registers.by_name.items()
        if r.access.name != "WO"
    }
    words = [
        session.page_state(layer, head, page)
        for layer in (0, 1)
        for head in (0, 1)
        for page in range(session.pages)
    ]
    telemetry = {name: x.tolist() for name, x in session.telemetry().items()}
    # A line of every page of the whole device.
    first = np.arange(c.sessions * (1 << c.queue_bits) * c.pages, dtype=np.uint64) << np.uint64(
        c.line_bits + 6
    )
    loaded = device.transport.load(first)
    return (
        registers,
        words,
        telemetry,
        device.events(),
        loaded.lines.tobytes(),
        loaded.status.tolist(),
    )


def mapped(url):
    """The same device as memory that is mapped, where whoever asks is LD-ID 0."""
    core = make_core(url)
    return CxlCore(SimulatedWindow(core), core.config)


def watch(tmp_path, neighbour, make):
    """What a tenant sees at each of its steps, beside a neighbour that does something or nothing
    between them."""
    k, v = tensors(1)
    seen = []
    frame = SHAPE.frame_bytes(0, make_core("golden:unit").config)
    with Server(make("golden:unit?sessions=2&frames=24,8,24,8"), budget_bytes=2 * frame) as server:
        url = server.listen(f"unix:{tmp_path}/{neighbour.__name__}.sock")
        with cxl_kv.open(url) as mine, cxl_kv.open(url) as theirs:
            session = mine.open_session(SHAPE, policy=cxl_kv.Policy(score="pushed"))
            state = {}
            for step in range(6):
                neighbour(theirs, state, step)
                session.write([0, 1], k[:, :, :8], v[:, :, :8])
                session.hints.push_mass(0, 1, [0.5, 0.25], advance=True)
                neighbour(theirs, state, step)
                got = session.read([0, 1], stop=8)
                seen.append((got[0].tobytes(), got[1].tobytes(), *everything(mine, session)))
            with pytest.raises((cxl_kv.NotMappedError, cxl_kv.UnsupportedError)):
                mine.transport.close_session(1)
    return seen


def test_counters_begin_at_zero_for_the_next_owner(tmp_path):
    """By the registers themselves, after another tenant had the same session number."""
    with Server(make_core("golden:unit")) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as first:
            with first.open_session(SHAPE) as session:
                session.write([0, 1], *tensors(1))
                assert first.registers.read(f"s{session.number}_queue_evictions")
        with cxl_kv.open(url) as second, second.open_session(SHAPE) as again:
            assert again.number == session.number
            names = [
                name
                for name in second.registers.by_name
                if name.startswith(f"s{again.number}_queue_")
            ]
            assert len(names) > 4 and not any(second.registers.read(name) for name in names)


def nobody(device, state, step):
    pass


def busy(device, state, step):
    """Writes, reads, pins, provokes every refusal it can, closes and opens again."""
    if "session" not in state or state["session"].closed:
        shape = device.registers.pack("s0_shape", layers=0, kv_heads=1)
        nothing = dict.fromkeys(("formats", "policy", "recency", "auto_step"), 0)
        with pytest.raises(cxl_kv.OpenRefusedError, match="the device refused"):
            device.transport.open_session({"shape": shape, "budgets": [[0, []]], **nothing})
        state["session"] = device.open_session(
            SHAPE.with_(formats=("raw16", "int8")[step % 2]), policy=cxl_kv.Policy(window=3)
        )
    session = state["session"]
    session.write([0, 1], *tensors(step + 10))
    session.read([0, 1], stop=32)
    session.hints.pin(1, 1, range(2))
    with pytest.raises(cxl_kv.HintRefusedError, match="pinning 8 pages"):
        session.hints.pin(1, 1, range(8))
    session.hints.release(1, 1, [0])
    session.hints.pin(1, 1, [5])
    session.hints.release(1, 1, [1, 5])
    session.advance(3)
    device.transport.load(np.array([0, 1 << 45], np.uint64))
    device.registers.read("count_accesses")
    device.registers.write("s0_command", command=3, argument=5)
    device.registers.write("s0_command", command=2)
    if step % 3 == 2:
        session.close()


@pytest.mark.parametrize("make", [make_core, mapped])
def test_a_neighbour_changes_nothing_that_a_tenant_can_see(tmp_path, make):
    alone, beside = watch(tmp_path, nobody, make), watch(tmp_path, busy, make)
    names = (
        "keys",
        "values",
        "registers",
        "page words",
        "telemetry",
        "events",
        "lines of other pages",
        "their status",
    )
    for step, (one, other) in enumerate(zip(alone, beside, strict=True)):
        for name, a, b in zip(names, one, other, strict=True):
            if isinstance(a, dict):
                differ = {key: (a[key], b[key]) for key in a if a[key] != b[key]}
                assert not differ, f"step {step}: {name} {differ}"
            assert a == b, f"step {step}: {name}"


def test_a_tenant_sees_its_own_refusals_that_concern_no_session(tmp_path):
    """Though session 0, which their records name, is another's; that one does not see them."""
    with Server(make_core("golden:unit")) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as theirs, cxl_kv.open(url) as mine:
            theirs.open_session(SHAPE)
            hints = AddressMap(mine.config).hint_base
            mine.transport.store(np.array([hints], np.uint64), np.full((1, 64), 0xFF, np.uint8))
            mine.transport.load(np.array([1 << 45], np.uint64))
            mine.registers.write("s0_command", command=SessionCommand.CLOSE)
            refused = [(e["number"], e["code"], e["ld_id"]) for e in mine.events()]
            codes = ("HINT_MALFORMED", "OUT_OF_MAP", "REGISTER_REFUSED")
            assert refused == [(i, code, mine.transport.ld_id) for i, code in enumerate(codes)]
            with cxl_kv.open(f"{url}?admin=1") as admin:
                admin.transport.store(
                    np.array([hints], np.uint64), np.full((1, 64), 0xFF, np.uint8)
                )
                assert admin.events()[-1]["code"] == "HINT_MALFORMED"
            assert theirs.events() == [] == mine.events()


def test_speculative_reads_fetch_no_other_tenants_pages(tmp_path):
    """A page is brought for its own tenant, in whatever connection of its."""
    known = tenants(tmp_path, "alice", "bob")
    with Server(make_core("golden:unit"), tokens=known) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        alice, bob = (f"{url}?token_file={tmp_path}/{name}.token" for name in ("alice", "bob"))
        with cxl_kv.open(f"{url}?admin=1") as admin:
            admin.configure(prefetch=["spec_read"], low_water=0, high_water=1)
        with cxl_kv.open(alice) as device, cxl_kv.open(alice) as mate, cxl_kv.open(bob) as other:
            session = device.open_session(SHAPE)
            session.write([0, 1], *tensors(1))
            cold = next(p for p in range(8) if session.page_state(0, 0, p)["state"].name == "COLD")
            token = np.array([cold * session.page_tokens])
            line = session.layout.addresses([0], [0], token).reshape(-1)[:1]
            before, outside = session.telemetry(), np.array([1 << 45, (1 << 64) - 64], np.uint64)
            theirs = other.open_session(SHAPE)
            other.transport.spec_read(np.append(line, outside))
            after = session.telemetry()
            assert not {name for name, x in before.items() if (x != after[name]).any()}
            theirs.close()
            mate.transport.spec_read(np.append(outside, line))
            assert session.telemetry()["prefetch_issued"][0, 0] == 1


def test_every_tenant_is_told_of_a_fatal_error(tmp_path):
    """Nothing that any of them wrote can be read from then on."""
    with Server(make_core("golden:unit")) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        with cxl_kv.open(url) as one, cxl_kv.open(url) as other:
            one.open_session(SHAPE)
            with server.core.lock:
                server.core.window.events.log(Event.FATAL, argument=int(Protected.TRACKER))
            for device in (one, other):
                (event,) = device.events()
                assert (event["code"], event["argument"]) == ("FATAL", Protected.TRACKER)


def test_choices_hold_no_more_than_the_budget(tmp_path):
    """Whatever layer a doorbell names: of each queue what choices may hold and what is pinned are
    within the budget together, over all connections of a tenant, until the session is closed."""
    core = make_core("golden:unit_select?frames=32,8,32,8")
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
    known = tenants(tmp_path, "alice", budget_bytes=4 * shape.frame_bytes(0, core.config))
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, 2, 2, 64, 32)).astype(np.float16)
    q = rng.standard_normal((4, 32)).astype(np.float16)
    stored = []

    def store(*lines):
        stored.append(lines)
        return device_store(*lines)

    with Server(core, tokens=known) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock") + f"?token_file={tmp_path}/alice.token"
        with cxl_kv.open(url) as device, cxl_kv.open(url) as mate:
            session = device.open_session(shape)
            session.write([0, 1], k, v)
            device_store, device.transport.store = device.transport.store, store
            with pytest.raises(
                cxl_kv.SelectRefusedError, match=r"choosing up to 5 pages .* legal: 4, the first"
            ):
                session.select(0, q, tokens=64, pages=3)
            with pytest.raises(cxl_kv.SelectRefusedError, match="choosing up to 5 pages"):
                mate.transport.store(*stored[-1])
            chosen = session.select(0, q, tokens=64, pages=2)
            assert chosen.page_count == 2 * 4 and sum(held.sum() for held in chosen.held)
            session.select(0, q, tokens=64, pages=6, speculative=True)  # which holds nothing
            with pytest.raises(cxl_kv.HintRefusedError, match="legal: 0, .* 4 pages that its cho"):
                session.hints.pin(0, 0, [1])
            session.hints.pin(1, 0, [1, 2])
            with pytest.raises(cxl_kv.SelectRefusedError, match="legal: 2, .* beside 2 pinned"):
                session.select(1, q, tokens=64, pages=1)
            session.select(1, q, tokens=64, pages=0)
            session.close()
            again = device.open_session(shape)
            assert again.number == session.number
            again.hints.pin(0, 0, [0, 1, 2, 3])


def test_doorbells_that_hold_nothing_do_not_count():
    """Nor does one of a store that is refused for another of its lines."""

    def bell(**fields):
        return 0, record_bytes(BELL_FIELDS, {"newest": 60, "most": 30, **fields}, 64)

    kept = Kept(4 * 64)
    kept.opened(0, [4, 4])
    kept.take([], [bell(release=1), bell(speculative=1), bell(queue=2), (1, bell()[1])])
    kept.take([], [bell(newest=3)])  # no more pages than there are
    assert kept.chosen == {(0, 0): 4}
    with pytest.raises(cxl_kv.SelectRefusedError, match="up to 5 pages of session 0, queue 0"):
        kept.take([], [bell(queue=1, most=0), bell(most=3)])
    kept.take([], [bell(most=1)])  # the largest one stays
    assert kept.chosen == {(0, 0): 4}


@pytest.mark.parametrize("url", ["golden:unit", RTL])
def test_a_session_cannot_name_another_ones_queue(url):
    """PEEK and APPLY of a queue beyond the session's own are refused, counters beyond it are 0, and
    a page word is gone with the session that asked for it."""
    with cxl_kv.open(url) as device:
        registers = device.registers
        c = device.config
        small = cxl_kv.ModelShape(layers=1, kv_heads=2, head_dim=32)
        with device.open_session(small) as mine, device.open_session(SHAPE) as theirs:
            theirs.write([0, 1], *tensors(2))
            me = f"s{mine.number}_"

            def peek(queue):
                registers.write(me + "queue", queue=queue, page=0)
                registers.write(me + "command", command=SessionCommand.PEEK)
                return registers.fields(me + "state")["refused"], registers.read(me + "page_word")

            mine.write(0, *(x[0, :2] for x in tensors(3)))
            refused, own = peek(0)
            assert not refused and own
            for queue in (2, c.queues, c.queues + theirs.number * c.queues):
                assert peek(queue) == (1, own), queue
                registers.write(me + "command", command=SessionCommand.APPLY_QUEUE)
                assert registers.fields(me + "state")["refused"]
                assert not any(
                    registers.read_many(
                        [name for name in registers.by_name if name.startswith(me + "queue_")]
                    )
                )
        with device.open_session(small) as again:
            assert again.number == mine.number and registers.read(me + "page_word") == 0


class ScrubbingCore(GoldenCore):
    """A session that was told to close is busy while it `scrubs`."""

    scrubs, closing = True, None

    def _command(self, session, code, argument, ld_id):
        if code == SessionCommand.CLOSE:
            self.closing = session
        return super()._command(session, code, argument, ld_id)

    def _read_register(self, name, session):
        value = super()._read_register(name, session)
        busy = self.scrubs and session == self.closing and name.endswith("_state")
        return value | 2 * busy


@pytest.mark.parametrize("how", ["left", "failed"])
def test_a_close_that_was_broken_off_does_not_close_the_next_owners_session(how, monkeypatch):
    """Of a client that went while its session was scrubbed, and of one whose first try was given
    up: the number is another's by the time it is closed again."""
    core = ScrubbingCore(named("unit").with_(sessions=1))
    first, second = (TenantTransport(core, n, kept=None) for n in (1, 2))
    number = Device(first).open_session(SHAPE).number
    if how == "left":
        closing = first.closing(number)
        next(closing)
        closing.close()
    else:
        monkeypatch.setattr(control, "_CLOSE_TIMEOUT", 0)
        with pytest.raises(cxl_kv.TransportError, match="still closing"):
            first.close_session(number)
    with pytest.raises(cxl_kv.DeviceFullError):
        Device(second).open_session(SHAPE)
    core.scrubs = False
    session = Device(second).open_session(SHAPE)
    k, v = tensors(1)
    session.write([0, 1], k, v)
    assert session.number == number and first.owned == {number}
    for _ in first.closing(number):
        raise AssertionError("it is closed")
    assert not first.owned
    first.close()
    assert session.state()["open"] and (session.read([0, 1], stop=32)[0] == k).all()
    for tenant in (second, second, TenantTransport(core, 3, kept=None)):
        session.close()
        session = Device(tenant).open_session(SHAPE)
        assert session.number == number
