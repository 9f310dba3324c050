# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""session.gather copies no line more than its back end must, and session.gather_in_place none at
all: whose memory it is that a reader is given, and until when it holds."""

import threading

import numpy as np
import pytest
from filled_session import DIM, GOLDEN, HEADS, TOKENS, filled, queries
from simulated_window import SimulatedWindow

import cxl_kv
from cxl_kv.backends.cxl import CxlCore
from cxl_kv.device import Device
from cxl_kv.serving.server import Server
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core

DAX = "dax:{}/memory?config=unit_select&create=1"


def noted(monkeypatch, owner, name, of=lambda found: found):
    """What `owner.name` returns from now on, each time."""
    found, call = [], getattr(owner, name)

    def note(*arguments, **options):
        result = call(*arguments, **options)
        found.append(of(result))
        return result

    monkeypatch.setattr(owner, name, note)
    return found


def gathered(session, q=None, **options):
    q = queries(np.random.default_rng(5)) if q is None else q
    chosen = session.select(1, q, tokens=TOKENS, **options)
    return chosen, *session.gather(chosen)


@pytest.mark.parametrize("url", [GOLDEN, DAX])
def test_a_choice_is_counted_and_a_guess_is_not(url, tmp_path):
    device, session, *_ = filled(url.format(tmp_path))
    with device:
        before, q = session.choices, queries(np.random.default_rng(5))
        for n, guess in enumerate((False, True, False), 1):
            chosen = session.select(1, q, tokens=TOKENS, speculative=guess)
            assert session.choices == before + (n + 1) // 2 == chosen.number


# - as few copies as there can be ------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["golden", "dax", "cxl", "unix"])
def test_what_a_back_end_has_put_together_is_handed_out(scheme, monkeypatch, tmp_path):
    """Of the last copy that each must make: the rows that the model keeps, lines out of mapped
    memory, the reply of a server. Nothing behind it copies a line again."""
    with Server(make_core(GOLDEN)) as server:
        if scheme == "cxl":
            core = CxlCore(SimulatedWindow(make_core(GOLDEN)), make_core(GOLDEN).config)
            made = Device(LocalTransport(core))
        elif scheme == "unix":
            made = cxl_kv.open(server.listen(f"unix:{tmp_path}/kelp.sock"))
        else:
            made = GOLDEN if scheme == "golden" else DAX.format(tmp_path)
        device, session, k, v = filled(made)
        with device:
            chosen, *_ = gathered(session)
            transport = device.transport
            last = {
                "golden": lambda: (transport.core.endpoint.lines, "resolve"),
                "dax": lambda: (transport.core, "load_spans"),
                "cxl": lambda: (transport.core._window, "load", lambda found: found[0]),
                "unix": lambda: (transport, "_ask", lambda reply: np.frombuffer(reply, np.uint8)),
            }[scheme]()
            copies = noted(monkeypatch, *last)
            keys, values, positions = session.gather(chosen)
            assert len(copies) == 1
            for given, written in ((keys, k), (values, v)):
                assert np.shares_memory(given, copies[0]) and given.flags.writeable
                for head in range(HEADS):
                    real = positions[head] >= 0
                    assert (given[head][real] == written[1, head][positions[head][real]]).all()


def test_many_lines_come_in_several_replies(tmp_path, monkeypatch):
    monkeypatch.setattr("cxl_kv.backends.remote.MOST_LINES", 7)
    with Server(make_core(GOLDEN)) as server:
        device, session, k, _ = filled(server.listen(f"unix:{tmp_path}/kelp.sock"))
        with device:
            _, keys, _, positions = gathered(session)
            for head in range(HEADS):
                real = positions[head] >= 0
                assert (keys[head][real] == k[1, head][positions[head][real]]).all()


# - and none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [DIM, 48, 64])
def test_in_place_is_the_devices_own_memory(tmp_path, dim):
    """Read-only, live, and what `gather` copies; with a token of whole lines and without."""
    device, session, k, v = filled(DAX.format(tmp_path), dim=dim)
    with device:
        rng, size = np.random.default_rng(5), session.page_tokens
        chosen, *copied, positions = gathered(session, queries(rng, dim=dim), pages=4)
        with session.gather_in_place(chosen) as (*halves, pages):
            for seen, copy, of in zip(halves, copied, (0, 1), strict=True):
                assert seen.shape == (HEADS, -(-TOKENS // size), size, dim)
                assert seen.dtype == np.float16 and not seen.flags.writeable
                for head in range(HEADS):
                    assert pages[head].tolist() == chosen.pages[head].tolist()
                    for page in pages[head]:
                        mine = session.view(1, head, int(page))[of]
                        assert np.shares_memory(seen[head, page], mine)
                        assert (seen[head, page] == mine.view(np.float16)).all()
                    real = positions[head] >= 0
                    rows = seen[head][pages[head]].reshape(-1, dim)
                    assert (rows[real] == copy[head][real]).all()
                with pytest.raises(ValueError, match="read-only"):
                    seen[0, 0] = 1
            session.write(1, *(x[1][:, :1] + 1 for x in (k, v)), start=0)  # by the block itself
            assert (halves[0][:, 0, 0] == k[1, :, 0] + 1).all()
        with session.gather_in_place(chosen, dtype=np.uint16) as (keys, *_):
            assert (keys.view(np.float16) == halves[0]).all()


def test_heads_that_chose_fewer_pages_have_none_there(tmp_path):
    device, session, k, _ = filled(DAX.format(tmp_path))
    with device:
        q = queries(np.random.default_rng(5))
        q[:2] = 8 * k[1, 0, 40]  # the first KV head's heads ask for one token
        chosen = session.select(1, q, tokens=TOKENS, mass=0.8)
        few, more = map(len, chosen.pages)
        assert few < more
        with session.gather_in_place(chosen) as (_, _, pages):
            assert pages.shape == (HEADS, more) and (pages[0, few:] == -1).all()
            assert (pages[0, :few] >= 0).all() and (pages[1] >= 0).all()


def test_keys_alone_have_no_values(tmp_path):
    with cxl_kv.open(DAX.format(tmp_path)) as device:
        shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=DIM, k_only=True)
        session = device.open_session(shape)
        k = np.random.default_rng(1).standard_normal((2, 2, TOKENS, DIM)).astype(np.float16)
        session.write([0, 1], k)
        chosen = session.select(1, queries(np.random.default_rng(2)), tokens=TOKENS)
        with session.gather_in_place(chosen) as (keys, values, _):
            assert values is None and (keys[1, 3, 1] == k[1, 1, 3 * session.page_tokens + 1]).all()


def test_a_former_owners_memory_is_not_seen(tmp_path):
    """Pages of the context that were never written are zeros, as `gather` reads them."""
    device, session, _, _ = filled(DAX.format(tmp_path))
    with device:
        session.close()
        again = device.open_session(session.shape)
        assert again.number == session.number
        ones = np.ones((HEADS, 1, DIM), np.float16)
        again.write(1, ones, ones, start=TOKENS - 1)
        chosen, *_ = gathered(again)
        with again.gather_in_place(chosen) as (keys, values, _):
            for seen in (keys, values):
                assert (seen.sum(axis=(1, 2)) == 1).all() and (seen >= 0).all()


def test_a_write_of_another_thread_waits_for_the_block(tmp_path):
    device, session, k, v = filled(DAX.format(tmp_path))
    with device:
        chosen, *_ = gathered(session)
        begun, done = threading.Event(), threading.Event()

        def write():
            begun.set()
            session.write(1, np.zeros_like(k[1]), np.zeros_like(v[1]))
            done.set()

        thread = threading.Thread(target=write)
        with session.gather_in_place(chosen) as (keys, *_):
            thread.start()
            assert begun.wait(10) and not done.wait(0.3)
            assert (keys[0, 5, 0] == k[1, 0, 5 * session.page_tokens]).all()
        thread.join(10)
        assert done.is_set() and not session.read(1, stop=TOKENS)[0].any()


@pytest.mark.parametrize("how", ["closed", "taken"])
def test_what_was_read_of_a_session_that_went_does_not_hold(how, tmp_path):
    """The block ends with an error; one that ended with its own keeps that."""
    device, session, _, _ = filled(DAX.format(tmp_path))
    with device:
        chosen, *_ = gathered(session)
        table = device.transport.core.header._table
        kind = cxl_kv.SessionClosedError if how == "closed" else cxl_kv.SessionLostError
        with pytest.raises(KeyError):
            with session.gather_in_place(chosen):
                raise KeyError
        with pytest.raises(kind):
            with session.gather_in_place(chosen):
                if how == "closed":
                    session.close()
                else:
                    table["generation"][session.number] += 1  # as whoever takes it over
        with pytest.raises(kind):
            with session.gather_in_place(chosen):
                raise AssertionError("it is gone")


def test_in_place_is_refused_elsewhere(tmp_path):
    device, session, _, _ = filled()
    with device:
        chosen, *_ = gathered(session)
        with pytest.raises(cxl_kv.UnsupportedError, match=r"mapped plain memory \(dax:\); gather"):
            with session.gather_in_place(chosen):
                pass
    device, session, _, _ = filled(DAX.format(tmp_path))
    with device:
        other = device.open_session(session.shape) if device.config.sessions > 1 else None
        with pytest.raises(ValueError, match="dtype = 'float32' is refused"):
            with session.gather_in_place(gathered(session)[0], dtype="float32"):
                pass
        with pytest.raises(ValueError, match="another session's choice"):
            with other.gather_in_place(gathered(session)[0]):
                pass
