# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""session.select and session.gather: what the device chooses is what attention asks for, and comes
back as it was written."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from filled_session import DIM, GOLDEN, HEADS, LAYERS, TOKENS, filled, queries
from serial_board import SerialBoard
from simulated_window import SimulatedWindow

import cxl_kv
from cxl_kv import select
from cxl_kv.backends.cxl import CxlCore
from cxl_kv.backends.golden import GoldenCore
from cxl_kv.core import Loaded, Status
from cxl_kv.device import Device
from cxl_kv.plans import plan_of_keys, plan_of_sample, turned
from cxl_kv.policy import Policy
from cxl_kv.select import gather, scale_of
from cxl_kv.serving.server import Server
from cxl_kv.session import Session
from cxl_kv.transport import LocalTransport
from cxl_kv.url import make_core
from kelp_golden import select_region
from kelp_spec.address import AddressMap
from kelp_spec.config import named
from kelp_spec.metadata import PageState
from kelp_spec.select import Refusal, SelectMap


def exact(q, k, page_tokens):
    """Share of the attention of each KV head's query heads that each page has."""
    group = len(q) // len(k)
    out = []
    for head, keys in enumerate(k.astype(np.float64)):
        scores = q[head * group : (head + 1) * group].astype(np.float64) @ keys.T / DIM**0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        pages = np.add.reduceat(weights, range(0, len(keys), page_tokens), axis=1)
        out.append(pages.mean(axis=0))
    return out


def test_what_attention_asks_for():
    device, session, k, v = filled()
    with device:
        rng = np.random.default_rng(3)
        for layer in (0, 1, 1):
            q = queries(rng)
            chosen = session.select(layer, q, tokens=TOKENS, mass=1.0)
            newest = (TOKENS - 1) // session.page_tokens
            for head, share in enumerate(exact(q, k[layer], session.page_tokens)):
                pages = chosen.pages[head]
                assert pages[:2].tolist() == [0, newest] and chosen.held[head].all()
                assert len(set(pages.tolist())) == len(pages) == device.config.select
                best = np.sort(np.delete(share, [0, newest]))[::-1][: len(pages) - 2].sum()
                assert share[pages[2:]].sum() > 0.6 * best
            k_out, v_out, positions = session.gather(chosen)
            for head in range(HEADS):
                real = positions[head] >= 0
                assert real.sum() == len(pages) * session.page_tokens - 1  # the newest has one less
                assert (k_out[head][real] == k[layer, head][positions[head][real]]).all()
                assert (v_out[head][real] == v[layer, head][positions[head][real]]).all()
            assert (session.gather(chosen, dtype=np.uint16)[0] == k_out.view(np.uint16)).all()


def test_a_board_at_a_serial_port_chooses_as_the_golden_model_does():
    """By its UART: frames, messages and the map of its configuration, which has raw16 alone."""
    found = []
    with SerialBoard("ulx3s_select") as board:
        for core in (None, GoldenCore(board.config)):
            made = Device(LocalTransport(core)) if core else cxl_kv.open(f"serial:{board.port}")
            device, session, k, _ = filled(made)
            with device:
                q = queries(np.random.default_rng(3), HEADS)  # it has one for each KV head
                chosen = session.select(1, q, tokens=TOKENS, mass=1.0)
                found.append((chosen.pages, chosen.masses, session.gather(chosen)))
                for head, share in enumerate(exact(q, k[1], session.page_tokens)):
                    assert share[chosen.pages[head]].sum() > 0.9
    for one, other in zip(*found, strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_mass_and_pages_end_a_choice():
    device, session, _, _ = filled()
    with device:
        q = queries(np.random.default_rng(4))
        few = session.select(0, q, tokens=TOKENS, pages=0)
        assert [len(pages) for pages in few.pages] == [2, 2]
        assert session.select(0, q, tokens=TOKENS, mass=0.0).page_count == 4
        assert session.select(0, q, tokens=1).pages[0].tolist() == [0]
        more = session.select(0, q, tokens=TOKENS, mass=1.0)
        assert more.page_count == 2 * device.config.select
        assert all(masses.sum() <= 1 for masses in more.masses)


def test_a_query_head_for_each_kv_head_is_as_two_alike():
    device, session, _, _ = filled()
    with device:
        q = queries(np.random.default_rng(5), HEADS)
        one = session.select(0, q, tokens=TOKENS)
        two = session.select(0, np.repeat(q, 2, axis=0), tokens=TOKENS)
        for a, b in zip(one.pages, two.pages, strict=True):
            assert (a == b).all()


def test_slots_are_given_back():
    device, session, _, _ = filled()
    with device:
        q = queries(np.random.default_rng(6))
        first = session.select(0, q, tokens=TOKENS)
        page = int(first.pages[0][2])
        assert session.page_state(0, 0, page)["state"] == 1
        session.gather(first)
        session.select(1, q, tokens=TOKENS)
        with pytest.raises(cxl_kv.NotMappedError, match="maps no such line"):
            session.gather(first)


@pytest.mark.parametrize("between", ["selects", "summaries"])
def test_an_old_choice_is_not_gathered_when_generations_have_come_round(between):
    """Its addresses are those of other pages' slots then."""
    device, session, k, _ = filled()
    with device:
        rng = np.random.default_rng(6)
        first = session.select(0, queries(rng), tokens=TOKENS)
        for _ in range(1 << device.config.generation_bits):
            if between == "selects":
                last = session.select(0, queries(rng), tokens=TOKENS)
            else:
                session.summarise(0, tokens=TOKENS)
            with pytest.raises(cxl_kv.NotMappedError, match=r"layer 0: .*no such line.*again"):
                session.gather(first)
        if between == "selects":
            assert last.generations == first.generations
            keys, _, positions = session.gather(last)
            there = positions[0] >= 0
            assert (keys[0, there] == k[0, 0, positions[0, there]]).all()


def test_a_slot_shows_nowhere_in_a_page_word():
    """`pinned` is the host's; what the word has of slots is beside it, where a register has
    `place`."""
    device, session, _, _ = filled()
    with device:
        pages = range(-(-TOKENS // session.page_tokens))
        words = [[session.page_state(0, head, page) for page in pages] for head in range(HEADS)]
        chosen = session.select(0, queries(np.random.default_rng(6)), tokens=TOKENS)
        for head in range(HEADS):
            assert chosen.held[head].any()
            assert [session.page_state(0, head, page) for page in pages] == words[head]


@pytest.mark.parametrize("switches", [0, 1, 2])
@pytest.mark.sampled
def test_slots_do_not_fill_a_pool_of_an_eighth_of_the_pages(switches):
    """Layer after layer, step after step: those of one layer are held and no others, each chosen
    page that is there gets its slot, and what is written and fetched beside them finds a frame."""
    rng, layers, steps, tokens = np.random.default_rng(5), 4, 6, 240
    with cxl_kv.open(f"golden:unit_select?queues={layers * HEADS}&frames=62,8,8,8") as device:
        device.configure(prefetch=["hint"], low_water=1, high_water=4)
        shape = cxl_kv.ModelShape(layers=layers, kv_heads=HEADS, head_dim=DIM)
        policy = Policy(switches=switches)
        session = device.open_session(shape, max_tokens=tokens + steps, policy=policy)
        assert 62 / (layers * HEADS * session.pages) < 0.13
        k, v = rng.standard_normal((2, layers, HEADS, tokens + steps, DIM)).astype(np.float16)
        session.write(range(layers), k[:, :, :tokens], v[:, :, :tokens])
        for layer in range(layers):
            session.plan(layer, k[layer], queries(rng)[:, None])
            session.summarise(layer, tokens=tokens)
        words, pages = device.transport.core.endpoint.words, device.config.pages
        most, found = 0, [0, 0]
        for step in range(steps):
            now = slice(tokens + step, tokens + step + 1)
            session.write(range(layers), k[:, :, now], v[:, :, now], start=now.start)
            for layer in range(layers):
                chosen = session.select(layer, queries(rng), tokens=now.stop, mass=1.0)
                held = [at for at, pinned in enumerate(words.pinned) if pinned]
                assert {at // pages // HEADS for at in held} <= {layer}
                assert len(held) == sum(map(sum, chosen.held))
                most = max(most, len(held))
                for head in range(HEADS):
                    for page, has in zip(chosen.pages[head], chosen.held[head], strict=True):
                        state = words.state[(layer * HEADS + head) * pages + page]
                        assert has or state != PageState.RESIDENT, "no room for a slot"
                        found[bool(has)] += 1
                session.gather(chosen)
        assert 2 * HEADS < most <= HEADS * device.config.select <= 62 // 3
        assert found[1] > 100, found
        assert not {"NO_VICTIM", "STARVED"} & {e["code"] for e in device.events()}


def test_what_has_a_plan_is_the_same_on_plain_memory(tmp_path):
    """There nothing is summarised, and by the same calls as elsewhere."""
    for url in (GOLDEN, f"dax:{tmp_path}/kv?config=unit_select&create=1"):
        device, session, k, _ = filled(url)
        with device:
            q = queries(np.random.default_rng(6))
            with pytest.raises(ValueError, match="layer 0 has no plan .*; call plan first"):
                session.summarise(0, tokens=TOKENS)
            session.plan(0, k[0], q[:, None])
            session.select(1, q, tokens=2 * session.page_tokens)
            assert list(session.plans) == [0], "no page to summarise"
            session.select(1, q, tokens=2 * session.page_tokens + 1, speculative=True)
            assert list(session.plans) == [0, 1]
            for layer in session.plans:
                session.summarise(layer, tokens=TOKENS)
            with pytest.raises(ValueError, match="start = 96"):
                session.summarise(0, tokens=TOKENS, start=TOKENS + 1)


def test_a_guess_chooses_nothing_and_leaves_slots(tmp_path):
    for url in (GOLDEN, f"dax:{tmp_path}/kv?config=unit_select&create=1"):
        device, session, _, _ = filled(url)
        with device:
            q = queries(np.random.default_rng(6))
            first = session.select(0, q, tokens=TOKENS)
            guess = session.select(1, q, tokens=TOKENS, speculative=True)
            assert guess.page_count == 0 and guess.absent == HEADS * [0]
            session.gather(first)


def test_what_is_missing_is_told_or_waited_for(monkeypatch):
    """Frames for a part of the pages: late, then above nothing, then above all; no longer than a
    host would put up with, since a page whose fetch is dropped never lands."""
    bells = []

    def ask(session, places, sequence, asked, lines, ask=select._ask):
        bells.extend(asked)
        return ask(session, places, sequence, asked, lines)

    monkeypatch.setattr(select, "_ask", ask)
    with cxl_kv.open("golden:unit_select?frames=30,4,4,4") as device:
        device.configure(prefetch=["hint"], low_water=2, high_water=12)
        shape = cxl_kv.ModelShape(layers=LAYERS, kv_heads=HEADS, head_dim=DIM)
        session = device.open_session(shape, max_tokens=47)
        rng = np.random.default_rng(8)
        k, v = rng.standard_normal((2, LAYERS, HEADS, 47, DIM)).astype(np.float16)
        q = queries(rng)
        session.write([0], k[:1], v[:1])
        session.select(0, q, tokens=47)  # all pages are there
        session.select(1, q, tokens=1)  # its slots are given back
        session.write([1], k[1:], v[1:])
        late = session.select(0, q, tokens=47)
        assert max(late.absent) and 0 < max(late.missing) < 1
        session.wait_above = 1.0
        never = session.select(0, q, tokens=47)
        assert never.missing == late.missing and not device.counters()["prefetch_issued_hint"]
        session.wait_above = 0.0
        waited = session.select(0, q, tokens=47)
        assert sum(waited.missing) <= sum(late.missing)
        assert device.counters()["prefetch_issued_hint"] > 0
    assert {bell.get("patience") for bell in bells} == {None, 17}
    plain = cxl_kv.open("golden:trace_select")
    with plain:
        shape = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)
        session = plain.open_session(shape, max_tokens=40)
        with pytest.raises(cxl_kv.UnsupportedError, match="does not estimate what is missing"):
            session.wait_above = 0.5
        with pytest.raises(ValueError, match="wait_above"):
            session.wait_above = 2.0
        assert session.wait_above is None


def test_a_page_that_is_chosen_and_gone_is_named():
    """The first page is chosen wherever it is. What is gathered is right in any case."""
    with cxl_kv.open("golden:unit_select?frames=30,4,4,4") as device:
        shape = cxl_kv.ModelShape(layers=LAYERS, kv_heads=HEADS, head_dim=DIM)
        session = device.open_session(shape, max_tokens=TOKENS)
        rng = np.random.default_rng(8)
        k, v = rng.standard_normal((2, LAYERS, HEADS, TOKENS, DIM)).astype(np.float16)
        session.write(range(LAYERS), k, v)
        chosen, gone = session.select(0, queries(rng), tokens=TOKENS, mass=1.0), 0
        for head in range(HEADS):
            pages = chosen.pages[head].tolist()
            states = [session.page_state(0, head, page)["state"] for page in pages]
            assert chosen.gone[head].tolist() == [state == PageState.COLD for state in states]
            assert chosen.held[head].tolist() == [state == PageState.RESIDENT for state in states]
            gone += chosen.gone[head].sum()
        assert 0 < gone < chosen.page_count
        keys, _, positions = session.gather(chosen)
        for head in range(HEADS):
            real = positions[head] >= 0
            assert (keys[head][real] == k[0, head][positions[head][real]]).all()


@pytest.mark.timeout(2400)  # it builds the model
@pytest.mark.parametrize("scheme", ["golden", "unix", "rtl"])
def test_a_host_fetches_what_is_named_as_wanted(scheme, tmp_path):
    """By itself, without a hint: a read brings a page in, and the next choice takes it."""
    tokens = 47
    with ExitStack() as stack:
        url = "rtl:unit_select" if scheme == "rtl" else "golden:unit_select"
        if scheme == "unix":
            server = stack.enter_context(Server(make_core(url), fetch=False))
            url = server.listen(f"unix:{tmp_path}/kelp.sock")
        device = stack.enter_context(cxl_kv.open(url))
        shape = cxl_kv.ModelShape(layers=LAYERS, kv_heads=HEADS, head_dim=DIM)
        session = device.open_session(shape, max_tokens=tokens)
        rng = np.random.default_rng(8)
        k, v = rng.standard_normal((2, LAYERS, HEADS, tokens, DIM)).astype(np.float16)
        q = queries(rng)
        session.write([0], k[:1], v[:1])
        there = session.select(0, q, tokens=tokens, mass=1.0)
        session.select(1, q, tokens=1)  # its slots are given back
        assert there.wanted_counts == [0, 0] and not any(map(len, there.wanted))
        session.write([1], k[1:, :, :23], v[1:, :, :23])
        guess = session.select(0, q, tokens=tokens, mass=1.0, speculative=True)
        late = session.select(0, q, tokens=tokens, mass=1.0)
        assert all(map(len, late.wanted)), "else this shows nothing"
        for head in range(HEADS):
            wanted, masses = late.wanted[head], late.wanted_masses[head]
            assert len(wanted) == min(
                late.wanted_counts[head], device.config.select - len(late.pages[head])
            )
            assert not {*wanted.tolist()} & {*late.pages[head].tolist()}
            states = {session.page_state(0, head, int(page))["state"] for page in wanted}
            assert PageState.RESIDENT not in states
            assert (masses > 0).all() and (np.diff(masses) <= 0).all()
            assert masses.sum() <= late.missing[head] + 1e-9
            beside = [page for page in guess.wanted[head] if page not in late.pages[head]]
            assert beside[: len(wanted)] == wanted.tolist(), "a guess names what it would want"
        best = [int(wanted[0]) for wanted in late.wanted]
        for head, page in enumerate(best):
            session.advance()  # what is read last goes last
            session.sample(0, page * session.page_tokens + np.arange(1), heads=[head])
        found = session.select(0, q, tokens=tokens, mass=1.0)
        for head, page in enumerate(best):
            assert page in found.pages[head][found.held[head]]
            assert found.missing[head] < late.missing[head]


def test_behind_a_server(tmp_path):
    """Two tenants: each chooses among its own pages, and answers are those of one alone."""
    q = queries(np.random.default_rng(9))
    alone, session, _, _ = filled(seed=2)
    wanted = session.select(0, q, tokens=TOKENS)
    alone.close()
    with Server(make_core(GOLDEN)) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        first, _, _, _ = filled(url, seed=1)
        second, session, k, _ = filled(url, seed=2)
        with first, second:
            chosen = session.select(0, q, tokens=TOKENS)
            for a, b in zip(chosen.pages, wanted.pages, strict=True):
                assert (a == b).all()
            found, _, positions = session.gather(chosen)
            real = positions[0] >= 0
            assert (found[0][real] == k[0, 0][positions[0][real]]).all()


@pytest.mark.parametrize("words", [False, True])
def test_in_memory_that_is_mapped(tmp_path, words):
    """The same choices and the same pages through loads and stores of the processor's; behind a
    server a neighbour gathers nothing of it. In words of 8 bytes, in which a doorbell would be in
    parts, the host chooses."""
    core = make_core(GOLDEN)
    mapped = CxlCore(SimulatedWindow(core, words=words), core.config)
    q = queries(np.random.default_rng(5))
    with Server(mapped) as server:
        url = server.listen(f"unix:{tmp_path}/kelp.sock")
        device, session, k, v = filled(url)
        with device, cxl_kv.open(url) as other:
            chosen = session.select(1, q, tokens=TOKENS, mass=0.9)
            plain, alone, *_ = filled()
            with plain:
                wanted = alone.select(1, q, tokens=TOKENS, mass=0.9)
                assert words or all(map(np.array_equal, chosen.pages, wanted.pages))
            k_out, v_out, positions = session.gather(chosen)
            for head in range(HEADS):
                real = positions[head] >= 0
                assert (k_out[head][real] == k[1, head][positions[head][real]]).all()
                assert (v_out[head][real] == v[1, head][positions[head][real]]).all()
            addresses = gather(session, chosen)[0].reshape(-1)
            assert not device.transport.load(addresses).status.any()
            foreign = other.transport.load(addresses)
            assert (foreign.status == Status.NOT_MAPPED).all() and not foreign.lines.any()


def test_plain_memory(tmp_path):
    """`dax:` has no device that looks: the host does, exactly."""
    device, session, k, v = filled(f"dax:{tmp_path}/kv?config=unit_select&create=1")
    with device:
        q = queries(np.random.default_rng(11))
        chosen = session.select(1, q, tokens=TOKENS, pages=4, mass=1.0)
        for head, share in enumerate(exact(q, k[1], session.page_tokens)):
            best = np.argsort(-share[1:-1], kind="stable")[:4] + 1
            assert chosen.pages[head].tolist() == [0, len(share) - 1, *best]
            assert chosen.masses[head] == pytest.approx(share[chosen.pages[head]], rel=1e-4)
            assert not chosen.wanted_counts[head] and not len(chosen.wanted[head])
        some = session.select(1, q, tokens=TOKENS, mass=0.7)
        for pages, masses in zip(some.pages, some.masses, strict=True):
            assert masses.sum() >= 0.7 > masses[:-1].sum() or len(pages) == 2
        keys, values, positions = session.gather(chosen)
        real = positions[0] >= 0
        assert (keys[0][real] == k[1, 0][positions[0][real]]).all()
        assert (values[0][real] == v[1, 0][positions[0][real]]).all()
        with pytest.raises(ValueError, match="queries with a NaN are refused"):
            session.select(0, np.full_like(q, np.nan), tokens=TOKENS)


@pytest.mark.timeout(2400)  # it builds the model
def test_the_rtl_chooses_alike():
    tokens, found = 22, {}
    for scheme in ("golden", "rtl"):
        device, session, k, _ = filled(f"{scheme}:unit_select", tokens=tokens)
        with device:
            for n in range(3):
                q = queries(np.random.default_rng(n))
                chosen = session.select(n % 2, q, tokens=tokens, pages=2)
                keys, values, positions = session.gather(chosen)
                found.setdefault(scheme, []).append(
                    (*map(tuple, chosen.pages), *map(tuple, chosen.masses), keys.tobytes())
                )
                real = positions[0] >= 0
                assert (keys[0][real] == k[n % 2, 0][positions[0][real]]).all()
    assert found["golden"] == found["rtl"]


@pytest.mark.parametrize(("formats", "dtype"), [("int8", "fp16"), ("int4", "bf16")])
def test_stored_formats(formats, dtype):
    device, session, _, _ = filled(formats=formats, dtype=dtype)
    with device:
        q = queries(np.random.default_rng(7))
        if dtype == "bf16":
            q = cxl_kv.float32_to_bf16(q.astype(np.float32))
        chosen = session.select(1, q, tokens=TOKENS)
        k, v, positions = session.gather(chosen)
        for head in range(HEADS):
            real = positions[head] >= 0
            want = session.read(1, positions=positions[head][real].tolist(), heads=[head])
            assert (k[head][real] == want[0][0]).all() and (v[head][real] == want[1][0]).all()


def test_bad_input():
    device, session, _, _ = filled()
    with device:
        q = queries(np.random.default_rng(8))
        for arguments, message in (
            (dict(layer=2), "layer = 2 is refused; legal: 0 … 1"),
            (dict(tokens=0), "tokens = 0 is refused"),
            (dict(pages=7), "pages = 7 is refused; legal: 0 … 6"),
            (dict(mass=1.5), "mass = 1.5 is refused"),
            (dict(scale=-1), "scale = -1 is refused"),
            (dict(fetch="no"), "fetch = 'no' is refused; legal: True, False"),
            (dict(speculative=np.array([1, 0])), r"speculative = array\(\[1, 0\]\) is refused"),
            (dict(queries=q[:3]), r"queries of shape \[3, 32\] are refused; legal: .* 1, 2 for"),
            (dict(queries=q[:, :16]), r"queries of shape \[4, 16\] are refused"),
            (dict(queries=np.full_like(q, np.nan)), "queries with a NaN are refused"),
        ):
            given = dict(layer=0, queries=q, tokens=TOKENS) | arguments
            with pytest.raises(ValueError, match=message):
                session.select(**given)
        assert not session.plans  # nothing of all that was planned for
        session.close()
        with pytest.raises(cxl_kv.SessionClosedError):
            session.select(0, q, tokens=TOKENS)
    with cxl_kv.open("golden:unit") as other:
        shape = cxl_kv.ModelShape(layers=1, kv_heads=2, head_dim=32)
        plain = other.open_session(shape, max_tokens=8)
        with pytest.raises(cxl_kv.UnsupportedError, match="chooses no pages near memory"):
            plain.select(0, q, tokens=8)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_plain_memory_takes_what_is_no_number_as_a_device_does(tmp_path, dtype):
    """±Inf is the largest finite value, a key with a NaN has the least score."""
    url = f"dax:{tmp_path}/kv?config=unit_select&create=1"
    device, session, k, _ = filled(url, dtype=dtype)
    infinite, nan, largest = (
        (0x7C00, 0x7E00, 0x7BFF) if dtype == "fp16" else (0x7F80, 0x7FC0, 0x7F7F)
    )
    size = session.page_tokens
    with device:
        bits = k[0].view(np.uint16).copy()
        bits[:, 5 * size : 6 * size] = 0  # alone in asking for nothing …
        q = np.ones((2 * HEADS, DIM), np.float32)
        q = q.astype(np.float16) if dtype == "fp16" else cxl_kv.float32_to_bf16(q)
        bits[:, 5 * size, 0] = nan  # … and here a NaN, there the most that there can be
        bits[:, 7 * size] = infinite
        session.write(0, bits, bits)
        chosen = session.select(0, q, tokens=TOKENS, pages=3)
        assert [pages[2] for pages in chosen.pages] == [7, 7]
        assert all(np.isfinite(masses).all() and masses[2] == 1 for masses in chosen.masses)
        wild = q.view(np.uint16).copy()
        wild[:, 3] = infinite
        tame = np.where(wild == infinite, largest, wild).astype(np.uint16)
        a, b = (session.select(0, x, tokens=TOKENS, mass=1.0) for x in (wild, tame))
        for pages, others, masses in zip(a.pages, b.pages, a.masses, strict=True):
            assert pages.tolist() == others.tolist() and masses.sum() == pytest.approx(1)
        bits[:] = nan
        session.write(0, bits, bits)
        nothing = session.select(0, q, tokens=TOKENS, mass=1.0)
        assert all(masses.sum() == pytest.approx(1) for masses in nothing.masses)


def test_threads_share_a_session():
    device, session, _, _ = filled()
    with device, ThreadPoolExecutor(4) as pool:
        q = queries(np.random.default_rng(5))
        alone = [session.select(layer, q, tokens=TOKENS).pages for layer in range(LAYERS)]
        session.select(0, q, tokens=TOKENS)

        def several(layer):
            return [session.select(layer, q, tokens=TOKENS).pages for _ in range(4)]

        for layer, found in zip((0, 1, 0, 1), pool.map(several, (0, 1, 0, 1)), strict=True):
            for pages in found:
                assert [sorted(p) for p in pages] == [sorted(p) for p in alone[layer]]


class LateCore(GoldenCore):
    """Serves a doorbell when so many lines were read behind it, and reads the lines of a load last
    one first: "across lines nothing is promised" (docs/interface.md)."""

    def __init__(self, config, late):
        super().__init__(config)
        self._late, self._reads = late, 0
        region, base = SelectMap(config), AddressMap(config).select_base
        of_all = itertools.product(range(config.sessions), range(config.select_groups))
        self._doorbells = [base + 64 * region.bell(*of) for of in of_all]
        self._rung = []

    def load(self, addresses, ld_id):
        lines, status = np.zeros((len(addresses), 64), np.uint8), np.zeros(len(addresses), np.uint8)
        for n in reversed(range(len(addresses))):
            one = slice(n, n + 1)
            lines[one], status[one] = super().load(addresses[one], ld_id)
            self._reads += bool(self._rung)
            if self._reads == self._late:
                self._reads = 0
                super().store(*self._rung.pop(0))
        return Loaded(lines, status)

    def store(self, addresses, lines, byte_enable, ld_id):
        rings = np.isin(addresses, self._doorbells)
        for n in np.flatnonzero(rings):
            self._rung.append((addresses[n : n + 1], lines[n : n + 1], None, ld_id))
        enable = None if byte_enable is None else byte_enable[~rings]
        super().store(addresses[~rings], lines[~rings], enable, ld_id)


@pytest.mark.parametrize("late", [1, 5])
@pytest.mark.parametrize(("layers", "heads"), [(2, 2), (1, 4)])
def test_an_answer_is_taken_when_it_is_there(layers, heads, late):
    """Neither what a group told of the head before, where a layer has more heads than the device
    groups, nor lines that were read before their answer's header."""
    config = named("unit_select").with_(frames=(256, 256, 256, 256))
    shape = cxl_kv.ModelShape(layers=layers, kv_heads=heads, head_dim=DIM)
    rng = np.random.default_rng(14)
    k, v = rng.standard_normal((2, layers, heads, TOKENS, DIM)).astype(np.float16)
    rounds = [queries(rng, 2 * heads) for _ in range(3)]
    found = []
    for core in (GoldenCore(config), LateCore(config, late)):
        with Device(LocalTransport(core)) as device:
            session = device.open_session(shape, max_tokens=TOKENS)
            session.write(range(layers), k, v)
            session.plan(0, k[0], rounds[0][:, None])
            found.append([])
            for q in rounds:
                chosen = session.select(0, q, tokens=TOKENS)
                gathered, _, positions = session.gather(chosen)
                for head in range(heads):
                    there = positions[head] >= 0
                    assert (gathered[head, there] == k[0, head, positions[head, there]]).all()
                found[-1].append([pages.tolist() for pages in chosen.pages])
    assert found[0] == found[1]


def test_another_sessions_choice_is_not_gathered():
    device, session, k, v = filled()
    with device:
        q = queries(np.random.default_rng(6))
        chosen = session.select(0, q, tokens=TOKENS)
        for what in (None, chosen.pages):
            with pytest.raises(ValueError, match="legal: what Session.select returned"):
                session.gather(what)
        other = device.open_session(session.shape, max_tokens=TOKENS)
        other.write(range(LAYERS), v, k)
        other.select(0, q, tokens=TOKENS)
        with pytest.raises(ValueError, match="another session's choice"):
            other.gather(chosen)


def test_a_slot_is_read_by_its_owner_and_at_its_generation_alone():
    """Another LD-ID, another generation, an empty slot, a slot of a session that closed."""
    device, session, k, _ = filled()
    with device:
        q = queries(np.random.default_rng(6))
        chosen = session.select(0, q, tokens=TOKENS, pages=3)
        core, places = device.transport.core, AddressMap(device.transport.core.config)
        number, owner, now = session.number, device.ld_id, chosen.generations[0]

        def read(slot=1, generation=now, queue=0, ld_id=owner):
            address = places.gather(number, queue, generation, 0, slot, 0)
            found = core.load(np.array([address], np.uint64), ld_id)
            return found.lines[0], Status(found.status[0])

        line, status = read()
        newest = (TOKENS - 1) // session.page_tokens * session.page_tokens
        assert status == Status.DATA and line.tobytes() == k[0, 0, newest, :32].tobytes()
        many = 1 << places.config.generation_bits
        assert read(generation=now + many)[1] == Status.DATA, "modulo its bits"
        core.spec_read(np.array([places.gather(number, 0, now, 0, 1, 0)], np.uint64), owner)
        dropped = device.counters()["prefetch_dropped_spec_read"]
        assert dropped == 1, "its page, which is there"
        device.events()
        wrong = {"ld_id": owner + 1}, {"generation": now + 1}, {"slot": len(chosen.pages[0])}
        for how in (*wrong, {"queue": LAYERS * HEADS}):
            line, status = read(**how)
            assert status == Status.NOT_MAPPED and not line.any(), how
        codes = [event["code"] for event in device.events()]
        assert codes == ["FOREIGN_LD"] + 3 * ["OUT_OF_MAP"]
        session.close()
        assert read()[1] == Status.NOT_MAPPED


@pytest.mark.parametrize("factor", [1e-4, 0.125, 0.1767, 1.0, 37.0])
def test_scale(factor):
    m, sh = scale_of(factor)
    assert 0 < m < 1 << 16 and m * 2.0**-sh == pytest.approx(factor / np.log(2), rel=1e-4)


# - what the device knows of keys: plans ----------------------------------------------------------


def needles(rng, dim, tokens, size, count=3):
    """Keys [1, 1, tokens, dim] and, of some pages, (page, queries of two heads that ask for one
    token of it)."""
    keys = rng.standard_normal((1, 1, tokens, dim))
    asked = []
    for page in rng.choice(np.arange(2, tokens // size - 8), count, replace=False).tolist():
        ways = rng.standard_normal((2, dim))
        ways *= dim**0.5 / np.linalg.norm(ways, axis=1, keepdims=True)
        keys[0, 0, page * size + rng.integers(size)] = 0.9 * ways.sum(axis=0)
        asked.append((page, (2 * ways).astype(np.float16)))
    return keys.astype(np.float16), asked


@pytest.mark.parametrize(
    ("dim", "formats", "dtype"),
    [(32, "raw16", "fp16"), (64, "raw16", "fp16"), (64, "int4", "fp16"), (128, "raw16", "bf16")],
)
@pytest.mark.parametrize("said", [False, True])
def test_a_page_that_one_query_alone_asks_for_is_found(dim, formats, dtype, said):
    """Whether the plan is of a prompt's keys and queries, or of a sample and another query."""
    print("seed 21")
    rng = np.random.default_rng(21)
    lines = max(2, dim // 32)
    config = replace(
        named("unit_select"), half_lines=2 * lines, select_lines=lines, frames=(256, 256, 256, 256)
    )

    def stored(x):
        return cxl_kv.float32_to_bf16(x) if dtype == "bf16" else x.astype(np.float16)

    with Device(LocalTransport(GoldenCore(config))) as device:
        shape = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=dim, formats=formats, dtype=dtype)
        session = device.open_session(shape)
        tokens = session.max_tokens - 1
        keys, asked = needles(rng, dim, tokens, session.page_tokens, 8)
        session.write([0], stored(keys), stored(keys))
        other = stored(rng.standard_normal((2, 5, dim)))
        if said:
            session.plan(0, stored(keys[0]), other)
        session.select(0, other[:, 0], tokens=tokens)
        for page, query in asked:
            chosen = session.select(0, stored(query), tokens=tokens, pages=2)
            assert page in chosen.pages[0] and chosen.masses[0][2:].sum() > 0.25


def test_what_a_select_waits_for_is_there_when_it_chooses_again():
    """Pages that tables think little of, in two layers that share 12 frames: what was fetched for a
    SELECT that waits is not the next victim, though its tables say so until the turn is over."""
    print("seed 1")
    rng, found = np.random.default_rng(1), 0
    with cxl_kv.open("golden:unit_select?frames=12,4,4,4&select_tables=1") as device:
        device.configure(prefetch=["hint"], low_water=1, high_water=3)
        session = device.open_session(cxl_kv.ModelShape(layers=2, kv_heads=1, head_dim=64))
        session.set_policy(Policy(switches=2))
        size, tokens = session.page_tokens, session.max_tokens - 8
        keys = rng.standard_normal((2, 1, tokens, 64)).astype(np.float16)
        for start in range(0, tokens, size):
            part = keys[:, :, start : start + size]
            session.write([0, 1], part, part, start=start)
            for layer in (0, 1):
                query = rng.standard_normal((2, 64)).astype(np.float16)
                session.select(layer, query, tokens=start + size)
            session.advance()
        session.wait_above, before = 0.2, device.counters()["fetches"]
        for _ in range(60):
            session.advance()
            for layer in (0, 1):
                token = rng.integers(tokens - 20)
                query = 2 * keys[layer, :, token] + rng.standard_normal((2, 64)) / 2
                chosen = session.select(layer, query.astype(np.float16), tokens=tokens, pages=4)
                found += token // size in chosen.pages[0]
        fetched = device.counters()["fetches"] - before
    print(f"found {found} of 120, {fetched} pages fetched")
    assert found > 65 and fetched < 280


def test_an_absent_page_that_a_query_asks_for_is_wanted(monkeypatch):
    """A context grown token by token, a pool of a quarter of its pages: the device knows by its
    codes alone which page is missing, and has it fetched."""
    print("seed 1")
    rng, choices = np.random.default_rng(1), []
    choose = select_region.choose_pages

    def noted(*arguments, **options):
        choices.append(choose(*arguments, **options))
        return choices[-1]

    monkeypatch.setattr(select_region, "choose_pages", noted)
    with cxl_kv.open("golden:unit_select?frames=16,4,4,4") as device:
        device.configure(prefetch=["hint"], low_water=2, high_water=6)
        session = device.open_session(cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=64))
        size, tokens = session.page_tokens, session.max_tokens - 1
        keys, asked = needles(rng, 64, tokens, size)
        other = rng.standard_normal((2, 64)).astype(np.float16)
        for start in range(0, tokens, size):
            part = keys[:, :, start : start + size]
            session.write([0], part, part, start=start)
            session.select(0, other, tokens=min(start + size, tokens))
        late = 0
        for page, query in asked:
            absent = session.page_state(0, 0, page)["state"] == PageState.COLD
            chosen = session.select(0, query, tokens=tokens, pages=3, fetch=True)
            assert (page in chosen.pages[0]) == (not absent)
            if not absent:
                continue
            late += 1
            assert page in choices[-1].wanted and chosen.missing[0] > 0.1
            assert page in session.select(0, query, tokens=tokens, pages=1).pages[0]
        assert late == 3


def test_policy_2_learns_from_choices_and_guesses():
    """What is chosen or wanted is worth more than what is not; a guess fetches within its
    credit."""
    with cxl_kv.open("golden:unit_select?frames=16,4,4,4") as device:
        device.configure(prefetch=["hint"], low_water=0, high_water=1)
        shape = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=64)
        session = device.open_session(shape, policy=Policy(switches=2))
        size, rng = session.page_tokens, np.random.default_rng(1)
        tokens = 24 * size
        keys, asked = needles(rng, 64, tokens, size)
        session.write([0], keys, keys, start=0)
        tables = device.transport.core.endpoint.tables
        for _ in range(3):
            for _, query in asked:
                chosen = session.select(0, query, tokens=tokens, pages=2, fetch=True)
                session.advance()
        pages = {page for page, _ in asked}
        post = np.array([page.post for page in tables._queue(0).pages[: tokens // size]])
        rest = [p for p in range(1, len(post) - 1) if p not in pages]
        assert min(post[sorted(pages)]) > np.median(post[rest])
        assert chosen.pages[0][0] == 0
        session.select(0, asked[0][1], tokens=tokens, speculative=True)
        assert tables.likely(0, asked[0][0]) > 0


@pytest.mark.parametrize(
    ("where", "layers"),
    [({}, {0, 1}), ({"layer": 1}, {1}), ({"head": 1}, {0, 1}), ({"layer": 0, "head": 0}, {0})],
)
def test_a_choice_is_made_by_tables_where_a_queue_of_its_layer_has_policy_2(
    where, layers, monkeypatch
):
    bells, rung = [], select._rung

    def ring(session, layer, tokens, lines, fields):
        bells.append((layer, fields["tables"]))
        return rung(session, layer, tokens, lines, fields)

    monkeypatch.setattr(select, "_rung", ring)
    device, session, _, _ = filled()
    with device:
        session.set_policy(Policy(switches=2), **where)
        for layer in range(LAYERS):
            session.select(layer, queries(np.random.default_rng(4)), tokens=TOKENS)
    assert {layer for layer, tables in bells if tables} == layers


def test_policy_2_needs_tables():
    with cxl_kv.open("golden:unit") as device:
        shape = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)
        with pytest.raises(cxl_kv.UnsupportedError, match="has no policy 2"):
            device.open_session(shape, policy=Policy(switches=2))
        session = device.open_session(shape)
        with pytest.raises(cxl_kv.UnsupportedError, match="has no policy 2"):
            session.set_policy(Policy(switches=2))


def test_a_layer_is_planned_once():
    """When a page first lies between the first and the newest; then for good, or until it is said
    otherwise; of what could be read."""
    device, session, k, _ = filled()
    rng, size = np.random.default_rng(9), session.page_tokens
    with device:
        session.select(1, queries(rng), tokens=2 * size)
        assert not session.plans
        session.select(1, queries(rng), tokens=2 * size + 1, speculative=True)
        (early,) = session.plans.values()
        assert set(session.plans) == {1} and early.shape == (HEADS, 1, 64)
        session.select(1, queries(rng), tokens=TOKENS)
        assert session.plans[1] is early
        q = rng.standard_normal((2 * HEADS, 7, DIM)).astype(np.float16)
        session.plan(1, k[1], q)
        said = session.plans[1]
        assert (said != early).any()
        session.select(1, queries(rng), tokens=TOKENS)
        assert session.plans[1] is said
        session.close()
        assert not session.plans


def test_what_is_lost_is_left_out_of_a_sample():
    device, session, k, _ = filled()
    with device:
        bare, size = session.sample, session.page_tokens

        def lossy(lost):
            def sample(layer, positions):
                keys, known = bare(layer, positions)
                assert known.all() and (keys == k[layer][:, positions]).all()
                assert len(positions) == TOKENS - size and positions[0] == size
                keys[:, lost], known[:, lost] = np.nan, False
                return keys, known

            return sample

        q = queries(np.random.default_rng(9))
        session.sample = lossy(slice(None))
        assert session.select(0, q, tokens=TOKENS).page_count and not session.plans
        session.sample = lossy(slice(3, 9))
        session.select(0, q, tokens=TOKENS)
        there = np.delete(np.arange(size, TOKENS), range(3, 9))
        asked = q.astype(np.float32).reshape(HEADS, 2, DIM)
        for head in range(HEADS):
            wanted = plan_of_keys(k[0, head, there].astype(np.float32), asked[head])
            assert (session.plans[0][head] == wanted).all()


def test_a_long_context_is_sampled():
    """512 tokens of pages that are spread over it, whatever a page holds."""
    asked = []

    class Long:
        shape = cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=32)

        def __init__(self, size):
            self.page_tokens, self.plans = size, {}

        def sample(self, layer, positions):
            asked.append(positions)
            return np.ones((1, len(positions), 32)), np.ones((1, len(positions)), bool)

    for size, tokens in ((16, 8000), (16, 600), (1, 3000), (700, 4000)):
        plan_of_sample(Long(size), 0, np.ones((1, 2, 32)), tokens)
        positions = asked.pop()
        assert 256 <= len(positions) <= 512 and (np.diff(positions) > 0).all()
        assert size <= positions[0] and positions[-1] < tokens
        assert positions[-1] >= tokens - size or size > 512


def test_two_hosts_of_one_session_with_plans_of_their_own():
    """Codes by one plan and read by another choose other pages; what is read is right."""
    device, session, k, _ = filled()
    with device:
        rng = np.random.default_rng(9)
        other = Session(device, session.number, session.shape, max_tokens=TOKENS, policy=Policy())
        wild = (300 * rng.standard_normal((HEADS, 40, DIM))).astype(np.float16)
        other.plan(1, wild, rng.standard_normal((2 * HEADS, 3, DIM)).astype(np.float16))
        for n in range(6):
            mine = (session, other)[n % 2]
            chosen = mine.select(1, queries(rng), tokens=TOKENS)
            keys, _, positions = mine.gather(chosen)
            for head in range(HEADS):
                real = positions[head] >= 0
                assert (keys[head][real] == k[1, head][positions[head][real]]).all()


def test_a_choice_that_the_device_refuses_names_the_reason(monkeypatch):
    device, session, _, _ = filled()
    with device:
        rng = np.random.default_rng(1)
        monkeypatch.setattr(device.transport.core.region, "_refusal", lambda *_: Refusal.COUNT)
        with pytest.raises(cxl_kv.SelectRefusedError, match="the device refused .* COUNT"):
            session.select(0, queries(rng), tokens=TOKENS)


def test_plans_that_are_refused():
    device, session, k, _ = filled()
    with device:
        q = np.zeros((2 * HEADS, 3, DIM), np.float16)
        for arguments, message in (
            (dict(layer=2), "layer = 2 is refused; legal: 0 … 1"),
            (
                dict(keys=k[0, :1]),
                r"keys of shape \[1, 95, 32\] are refused; legal: \[2, tokens, 32\]",
            ),
            (dict(keys=k[0, :, :0]), r"keys of shape \[2, 0, 32\] are refused"),
            (dict(keys=k[0].astype(np.float32)), "keys of dtype float32 is refused"),
            (
                dict(queries=q[:, 0]),
                r"queries of shape \[4, 32\] are refused; legal: \[query heads, ",
            ),
            (dict(queries=q[:3]), r"queries of shape \[3, 3, 32\] are refused"),
            (dict(queries=q[:, :0]), r"queries of shape \[4, 0, 32\] are refused"),
            (dict(queries=np.full_like(q, np.nan)), "queries with a NaN are refused"),
        ):
            with pytest.raises(ValueError, match=message):
                session.plan(**dict(layer=0, keys=k[0], queries=q) | arguments)
        session.plan(0, k[0], q)  # of queries without a direction, too
        assert session.select(0, q[:, 0], tokens=TOKENS).page_count
        session.plans[0] = np.zeros_like(session.plans[0])
        with pytest.raises(cxl_kv.TransportError, match="its plan did not arrive .*PLAN"):
            session.select(0, q[:, 0], tokens=TOKENS)
        session.close()
        with pytest.raises(cxl_kv.SessionClosedError):
            session.plan(0, k[0], q)
    with cxl_kv.open("golden:trace_select") as device:
        wide = device.open_session(cxl_kv.ModelShape(layers=1, kv_heads=1, head_dim=96))
        q = np.zeros((4, 96), np.float16)
        for call in (
            lambda: wide.select(0, q, tokens=1),
            lambda: wide.plan(0, q[:1, None], q[:, None]),
        ):
            with pytest.raises(
                cxl_kv.UnsupportedError, match="head_dim = 96 takes 3 lines a token"
            ):
                call()


def test_rows_are_turned_as_rope_turns_them():
    """A row at one position, turned, is the same row at another; a score depends on the distance
    alone."""
    theta, dim, first = 100_000.0, 64, 37
    rng = np.random.default_rng(4)
    plain = np.tile(rng.standard_normal(dim), (2, 300, 1))
    angle = (first + np.arange(300))[:, None] * theta ** (-np.arange(32) / 32)
    low, high = plain[..., :32], plain[..., 32:]
    rows = np.concatenate(
        [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)], -1
    )
    found = turned(rows.astype(np.float32), first, theta)
    assert found.shape == rows.shape and found.dtype == np.float32
    # All over the positions: the slowest pair has been everywhere between its ends.
    slow = np.arctan2(found[0, :, 63], found[0, :, 31]) - np.arctan2(
        plain[0, 0, 63], plain[0, 0, 31]
    )
    reach = 4095 * theta ** (-31 / 32)
    assert np.allclose(np.sort(slow)[[0, -1]], [0, reach], atol=reach / 50)
    assert np.allclose(np.linalg.norm(found, axis=-1), np.linalg.norm(rows, axis=-1), rtol=1e-4)


def _summarised(device, session, layer):
    """Pages of the layer's queues that have a summary, of each KV head."""
    c, held = device.config, device.transport.core.endpoint.summaries
    queues = [session.number * c.queues + layer * HEADS + head for head in range(HEADS)]
    return [sorted(k % c.pages for k in held if k // c.pages == queue) for queue in queues]


@pytest.mark.parametrize("limit", [30, 16])
@pytest.mark.parametrize("policy", [{}, {"score": "pushed"}, {"switches": 1}, {"switches": 2}])
@pytest.mark.sampled
def test_pages_are_summarised_though_frames_are_few(policy, limit):
    """24 pages of each of four queues in 30 frames, or fewer: without that the pages that were
    written first have gone; of what comes later only the new pages are looked at. Nothing is
    fetched but what is read."""
    with cxl_kv.open("golden:unit_select?frames=30,4,4,4") as device:
        shape = cxl_kv.ModelShape(layers=LAYERS, kv_heads=HEADS, head_dim=DIM)
        device.configure(pool_limits={"raw16": limit})
        session = device.open_session(shape, max_tokens=120, policy=Policy(**policy))
        device.fetch_chosen()
        rng = np.random.default_rng(1)
        k, v = rng.standard_normal((2, LAYERS, HEADS, 120, DIM)).astype(np.float16)
        session.write(range(LAYERS), k[:, :, :TOKENS], v[:, :, :TOKENS])
        newest = (TOKENS - 1) // session.page_tokens
        with pytest.raises(ValueError, match="layer 0 has no plan"):
            session.summarise(0, tokens=TOKENS)
        for layer in range(LAYERS):
            session.plan(layer, k[layer, :, :TOKENS], queries(rng)[:, None])
        session.select(1, queries(rng), tokens=TOKENS, speculative=True)
        assert all(len(pages) < newest / 2 for pages in _summarised(device, session, 1))
        before = device.counters()
        for layer in range(LAYERS):
            session.summarise(layer, tokens=TOKENS)
            assert _summarised(device, session, layer) == [list(range(newest))] * HEADS
        fetched, missed = (device.counters()[x] - before[x] for x in ("fetches", "misses"))
        assert 0 < fetched == missed <= LAYERS * HEADS * (newest + 1)
        session.write(range(LAYERS), k[:, :, TOKENS:], v[:, :, TOKENS:], start=TOKENS)
        reads = device.counters()["reads"]
        session.summarise(0, tokens=120, start=TOKENS - 1)
        assert device.counters()["reads"] - reads < 10 * HEADS
        whole = list(range(119 // session.page_tokens))
        assert _summarised(device, session, 0) == [whole] * HEADS


@pytest.mark.parametrize(
    "url", ["trace_select?frames=30,4,4,4", "unit_select?frames=30,4,4,4&select_tables=0"]
)
def test_without_tables_nothing_but_what_is_read_is_fetched(url):
    """A guess fetches there what it names and does not find. Slots are given back, and a share of
    what is missing that a choice would wait for is none of these pages'."""
    device, session, k, _ = filled("golden:" + url, tokens=380 if "trace" in url else TOKENS)
    rng = np.random.default_rng(1)
    with device:
        device.fetch_chosen()
        group = device.config.select_heads
        session.plan(0, k[0], queries(rng, group * HEADS)[:, None])
        session.wait_above = 0.0 if device.config.select_estimates else None
        before = device.counters()
        session.summarise(0, tokens=k.shape[2])
        newest = (k.shape[2] - 1) // session.page_tokens
        of_device = list(range(0 if device.config.select_estimates else 1, newest))
        assert _summarised(device, session, 0) == [of_device] * HEADS
        fetched, missed = (device.counters()[x] - before[x] for x in ("fetches", "misses"))
        assert fetched == missed
        assert not any(queue.pages for queue in device.transport.core.region.queues)
