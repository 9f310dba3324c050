# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Replays: the golden engine, the audit of a commit stream, and the RTL in lock-step and
free-running with planted faults."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command import kelp, refused
from trace_files import contents, save

from kelp_golden.audit.stream import Audit, FrameRecord, ResultRecord, ScoreRecord
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.setup import LayerFormats
from kelp_rtl.replay.rows import wide_integers
from kelp_sim.replay.plan import Excerpt, Prefetch, Retention, capacity_shares, plan
from kelp_sim.replay.replay import run_golden
from kelp_sim.trace.trace import TraceError, read
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.metadata import Answer, Op, Outcome, PageState, PrefetchSource
from kelp_spec.policy import Policy

TRACE = named("trace")
TWO_POOLS = (
    LayerFormats(last_layer=0, k=Format.INT8, v=Format.INT4),
    LayerFormats(last_layer=1023, k=Format.RAW16, v=Format.RAW16),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A recording of 4 queues × 10 pages × 8 lines."""
    return save(tmp_path_factory.mktemp("trace") / "small.npz", contents())


@pytest.fixture
def planned(small):
    return plan(
        read(small),
        TRACE,
        residency=0.5,
        formats=TWO_POOLS,
        prefetch=Prefetch(sources=frozenset({PrefetchSource.LAYER_AHEAD})),
        retention=Retention(high_water=3),
    )


def stream(chosen, plant=None):
    """A commit stream as a device would make it, from the golden model in lock-step: records, and
    per request (kind, version). `plant` is given the engine first."""
    records, answers, scores = [], [], []
    golden = chosen.setup.endpoint()

    def log(result):
        op, r = result.op, result
        copy = TrackerOp(*(getattr(op, name) for name in TrackerOp.__slots__))
        copy.origin = None
        records.append(
            ResultRecord(
                copy,
                7,
                r.outcome,
                r.old,
                r.word,
                r.changed,
                r.first,
                r.frame,
                r.pool,
                r.miss,
                r.corrected,
                r.uncorrected,
            )
        )
        records.extend(scores)  # what the op wrote follows it
        scores.clear()

    golden.on_score = lambda *score: scores.append(ScoreRecord(*score))
    setup = chosen.setup
    engine = LockStep(golden, evict_target=setup.high_water, enable=setup.prefetch, log=log)
    if plant is not None:
        plant(engine)
    engine.open(0, setup.descriptor)
    step = -1
    for at, r in enumerate(chosen.requests.tolist()):
        if chosen.step[at] != step:
            step = chosen.step[at]
            engine.step(0)
        row = chosen.row[at]
        origin = (chosen.lines[row].tobytes(), -1) if r[1] else None
        kv_line = r[4] * setup.config.half_lines + r[5]
        answers.append(
            engine.request(
                TrackerOp(
                    Op.WRITE if r[1] else Op.READ, 0, r[2], r[3], kv_line, int(r[1]), origin=origin
                )
            )
        )
    data = golden.lines.resolve([a.version for a in answers])
    return records, np.array([a.kind for a in answers]), data


def judged(chosen, records, kinds, data, *, answered=True):
    """The audit after all records and answers."""
    indices = iter(range(len(kinds)))

    def requests(tag):
        at = next(indices)
        return at, chosen.lines[chosen.row[at]].tobytes(), -1

    audit = Audit(
        chosen.setup.config, chosen.setup.endpoint(), {0: chosen.setup.descriptor}, requests
    )
    audit.begin(len(kinds))
    for record in records:
        (audit.score if isinstance(record, ScoreRecord) else audit.result)(record)
    audit.finish()
    if answered:
        audit.answers(kinds, np.zeros(len(kinds), bool), data)
    return audit


def wrong(*given):
    """Mismatches, or 1 when the golden model cannot follow at all."""
    try:
        return judged(*given).count
    except (KeyError, IndexError, ValueError, RuntimeError, StopIteration):
        return 1


def test_the_audit_of_a_sound_stream_finds_nothing(planned):
    records, kinds, data = stream(planned)
    audit = judged(planned, records, kinds, data)
    assert not audit.count, "\n".join(map(str, audit.mismatches))
    assert audit.victims > 20
    assert {r.op.kind for r in records if isinstance(r, ResultRecord)} >= {
        Op.CLAIM,
        Op.RELEASE,
        Op.GRANT,
        Op.FILL,
        Op.FLIP,
        Op.PREFETCH,
        Op.SCAN,
        Op.STEP,
    }
    assert (kinds == Answer.DATA).sum() == planned.sequence.line_reads


@pytest.mark.parametrize("kind", [Op.READ, Op.SCAN, Op.RELEASE, Op.PREFETCH, Op.STEP])
def test_the_audit_misses_a_dropped_commit_of_any_kind(planned, kind):
    records, kinds, data = stream(planned)
    where, fresh = [], set()
    for i, r in enumerate(records):
        if isinstance(r, ScoreRecord):
            continue
        page = r.op.squeue, r.op.page
        if r.op.kind == kind and r.outcome != Outcome.DROPPED and page not in fresh:
            where.append(i)
        if r.op.kind in (Op.SCAN, Op.CLAIM):
            fresh.clear()
        elif r.word.state == PageState.RESIDENT:  # a sweep that begins now may not know of it
            fresh.add(page)
    del records[where[len(where) // 2]]
    assert wrong(planned, records, kinds, data)


def another_queue(engine):
    """The root of a pool's tree names the queue after the right one that has pages."""
    queues, squeues = engine.endpoint.queues, engine.endpoint.config.squeues
    root = queues.root

    def wrong_root(pool):
        excess, squeue = root(pool)
        if excess is not None:
            following = ((squeue + k) % squeues for k in range(1, squeues + 1))
            squeue = next(q for q in following if queues.pool[q] == pool and queues.listed[q])
        return excess, squeue

    queues.root = wrong_root


def one_page_left_out(engine):
    """Each sweep of three pages or more leaves out the second."""
    evictor, queues = engine.evictor, engine.endpoint.queues
    sweep = evictor.sweep

    def short_sweep(squeue):
        pages = queues.listed[squeue]
        if len(pages) > 2:
            queues.listed[squeue] = pages - {sorted(pages)[1]}
        sweep(squeue)
        queues.listed[squeue] = pages

    evictor.sweep = short_sweep


def list_thrown_away(engine):
    """Each choice sweeps anew."""
    attempt = engine.evictor.attempt

    def forgetful(*arguments):
        engine.evictor.candidates.clear()
        return attempt(*arguments)

    engine.evictor.attempt = forgetful


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (another_queue, "the rule names"),
        (one_page_left_out, "left out pages"),
        (list_thrown_away, "of its list was not tried"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_audit_sees_a_wrong_choice(planned, plant, said):
    """A stream that is consistent in itself, of a device that chooses by another rule."""
    audit = judged(planned, *stream(planned, plant))
    assert any(said in str(mismatch) for mismatch in audit.mismatches)
    assert {mismatch.what for mismatch in audit.mismatches} == {"eviction"}


@pytest.fixture
def planned_kelp(tmp_path):
    """Under policy `kelp`: three layers, half of the pages resident."""
    path = save(tmp_path / "t.npz", contents(layers=3, prefill_tokens=48, steps=32, tokens=80))
    kelp = Retention(policy=Policy.KELP, low_water=0, high_water=1, budget="none")
    return plan(read(path), TRACE, residency=0.5, retention=kelp)


def test_the_audit_of_a_sound_stream_under_kelp_finds_nothing(planned_kelp):
    audit = judged(planned_kelp, *stream(planned_kelp))
    assert not audit.count, "\n".join(map(str, audit.mismatches))
    assert audit.victims > 200


def offers_kept(engine):
    """What a queue has given away, it still offers."""
    evictor = engine.evictor
    give = evictor._give

    def greedy(squeue, claim, working):
        excess = engine.endpoint.queues.excess[squeue]
        page = give(squeue, claim, working)
        engine.endpoint.queues.offer(squeue, excess or 0)
        return page

    evictor._give = greedy


def never_anew(engine):
    """No queue is valued anew when it is left."""
    engine.evictor.refresh = lambda squeue: None


def lower_offer(engine):
    """The second sweep is left out: the queue asked first gives, whatever others offer."""
    evictor, queues = engine.evictor, engine.endpoint.queues
    offered = evictor._offered

    def hasty(pool, squeue):
        root, queues.root = queues.root, lambda pool: (None, 0)
        found = offered(pool, squeue)
        queues.root = root
        return found

    evictor._offered = hasty


def another_asks(engine):
    """Where all pages are in use, the queue after the one that asks gives."""
    evictor, queues = engine.evictor, engine.endpoint.queues
    offered = evictor._offered

    def wrong(pool, squeue):
        kept = queues.requester[pool]
        following = ((kept + k) % len(queues.listed) for k in range(1, len(queues.listed) + 1))
        queues.requester[pool] = next(q for q in following if queues.listed[q])
        found = offered(pool, squeue)
        queues.requester[pool] = kept
        return found

    evictor._offered = wrong


@pytest.mark.parametrize(
    "plant",
    [another_queue, offers_kept, never_anew, lower_offer, another_asks],
    ids=lambda plant: plant.__name__,
)
@pytest.mark.sampled
def test_the_audit_sees_a_wrong_choice_under_kelp(planned_kelp, plant):
    audit = judged(planned_kelp, *stream(planned_kelp, plant))
    assert any("offers" in str(mismatch) for mismatch in audit.mismatches)
    assert {mismatch.what for mismatch in audit.mismatches} == {"eviction"}


def test_the_audit_sees_another_owners_hot_read(planned):
    """A hot hit is judged by the LD-ID that the device names, not by the session's."""
    records, _, _ = stream(planned)
    setup = planned.setup
    written = next(
        i
        for i, r in enumerate(records)
        if isinstance(r, ResultRecord) and r.outcome == Outcome.ALLOCATED
    )
    owner = setup.descriptor.ld_id
    for ld_id, wanted in ((owner, 0), (owner ^ 1, 1)):
        endpoint = setup.endpoint()
        audit = Audit(setup.config, endpoint, {0: setup.descriptor}, lambda tag: (0, bytes(64), -1))
        audit.begin(1)
        for record in records[: written + 2]:
            (audit.score if isinstance(record, ScoreRecord) else audit.result)(record)
        op, frame = records[written].op, records[written].frame
        f = endpoint.frames[frame]
        entry = (1, f.dirty, f.redirty, f.used, f.source, op.squeue, op.page, f.valid, f.poison)
        hit = (int(Op.READ), int(Outcome.HIT), 1, 0, 0, 0, 0, ld_id, 7, frame)
        found = audit.count
        audit.frame(FrameRecord(True, *hit, op.squeue, op.page, op.kv_line, entry))
        assert audit.count - found == wanted
        together = audit.hot_reads(0, ld_id, op.squeue, op.page, [op.kv_line], frame, entry)
        assert together == (not wanted)


def test_the_audit_sees_a_wrong_victim_and_a_wrong_bit(planned):
    records, kinds, data = stream(planned)
    claims = [r for r in records if isinstance(r, ResultRecord) and r.op.kind == Op.CLAIM]
    claims[5].op.page ^= 1
    assert wrong(planned, records, kinds, data)
    claims[5].op.page ^= 1
    assert not wrong(planned, records, kinds, data)
    data[np.flatnonzero(kinds == Answer.DATA)[100], 3] ^= 1
    assert wrong(planned, records, kinds, data) == 1


def test_poison_is_spared_only_where_memory_erred(planned):
    """An answer with poison for a sound line, without an ERROR, with one in another frame, and with
    one in its own."""
    records, kinds, data = stream(planned)
    at = int(np.flatnonzero(kinds == Answer.DATA)[100])
    poison = np.zeros(len(kinds), bool)
    poison[at] = True
    results = [r for r in records if isinstance(r, ResultRecord)]
    frame = [r.frame for r in results if r.op.kind in (Op.READ, Op.WRITE)][at]

    def found(*erred):
        audit = judged(planned, records, kinds, data, answered=False)
        for other in erred:
            audit.frame(FrameRecord(False, int(Op.ERROR), *(0,) * 7, 0, other, 0, 0, 0, ()))
        audit.answers(kinds, poison, data)
        return audit.count, audit.spared

    assert [found(), found(frame + 1), found(frame)] == [(1, 0), (1, 0), (0, 1)]


def test_golden_engine_counts_every_request_and_returns_every_line(small):
    chosen = plan(
        read(small),
        TRACE,
        residency=0.5,
        formats=TWO_POOLS,
        prefetch=Prefetch(sources=frozenset({PrefetchSource.PREVIOUS})),
        retention=Retention(high_water=3),
    )
    run = run_golden(chosen)
    assert (run.mismatches, run.examples) == (0, ())
    assert (
        run.counters["accesses"]
        == len(chosen.sequence)
        == run.counters["hits"] + run.counters["misses"] + run.counters["allocations"]
    )
    assert (run.counters["reads"], run.counters["writes"]) == (
        chosen.sequence.line_reads,
        chosen.sequence.line_writes,
    )
    columns = run.meter.columns(chosen.sequence.steps)
    assert (columns["step_accesses"] == chosen.sequence.counts()).all()
    assert columns["step_misses"].sum() == run.counters["misses"]
    assert (
        columns["flash_demand"].sum() + columns["flash_prefetch"].sum() == run.counters["fetches"]
    )
    assert all(pool.used <= pool.limit for pool in run.endpoint.tracker.pools)


def test_taking_reads_together_changes_nothing(planned):
    """The golden engine's short cut against one request for every line."""
    together = run_golden(planned)
    records, kinds, _ = stream(planned)
    ops = [r for r in records if isinstance(r, ResultRecord)]
    assert together.lockstep.victims == sum(
        r.op.kind == Op.CLAIM and r.outcome == Outcome.DONE for r in ops
    )
    words = {(r.op.squeue, r.op.page): r.word for r in ops if r.changed}
    assert all(together.endpoint.tracker.word(*page) == word for page, word in words.items())


def test_every_page_that_flash_gave_is_in_the_bytes(small):
    """With about as few frames as queues an access's page is evicted between its lines and read
    again, in the same step: no further miss, but a page read."""
    done = plan(read(small), TRACE, residency=0.2, retention=Retention(high_water=4))
    run = run_golden(done)
    assert run.counters["fetches"] > run.counters["misses"]
    assert sum(run.page_reads) == run.counters["fetches"]


def test_without_keys_and_values_the_golden_engine_replays_metadata(tmp_path, small):
    bare = save(tmp_path / "bare.npz", contents(with_kv=False))
    with_lines, without = (run_golden(plan(read(p), TRACE, residency=0.5)) for p in (small, bare))
    assert without.counters == with_lines.counters


def test_capacity_is_shared_by_queues():
    assert capacity_shares(384, [2] * 12) == (0, 0, 384, 0)
    assert capacity_shares(10, [0, 0, 3]) == (7, 0, 0, 3)
    assert sum(capacity_shares(101, [0, 1, 2, 3, 3])) == 101


@pytest.mark.parametrize(
    ("choices", "fault"),
    [
        (dict(residency=0), "residency = 0 is refused"),
        (dict(residency=0.01), "residency = 0.01 of .* 0 frames; legal: a frame for each queue"),
        (
            dict(residency=0.1),
            "frames of pool int4 = 4 is refused .* more than the 4 that eviction keeps free",
        ),
        (
            dict(formats=(LayerFormats(last_layer=0, k=Format.INT8, v=Format.INT8),)),
            "ranges that reach layer 1",
        ),
        (dict(excerpt=Excerpt(accesses=10**6)), "accesses are refused"),
        (dict(excerpt=Excerpt(first_step=3)), "first step 3 is refused"),
        (dict(excerpt=Excerpt(layers=(1, 7))), "layers 1-7 are refused; legal: FIRST-LAST"),
        (dict(excerpt=Excerpt(layers=(1, 0))), "layers 1-0 are refused"),
        (dict(retention=Retention(tau=0)), "tau = 0 is refused"),
        (dict(retention=Retention(alpha=300)), "alpha = 300 is refused"),
    ],
)
def test_a_bad_choice_is_named(small, choices, fault):
    with pytest.raises(ValueError, match=fault):
        plan(read(small), TRACE, **choices)


def test_a_bad_budget_is_named():
    with pytest.raises(ValueError, match="budget = 'all' is refused; legal: equal, none"):
        Retention(budget="all")


def test_a_format_that_the_configuration_has_not_is_refused(small):
    with pytest.raises(
        ValueError,
        match=f"format = int4 is refused by configuration '{TRACE.name}'; legal: raw16; other "
        + "formats need .* codecs",
    ):
        plan(
            read(small),
            replace(TRACE, codecs=False),
            formats=(LayerFormats(last_layer=1, k=Format.RAW16, v=Format.INT4),),
        )


def test_a_recording_that_does_not_fit_is_refused(small):
    with pytest.raises(
        TraceError, match=r"used_pages = 10 is refused by configuration 'unit'; legal: 1 … 8"
    ):
        plan(read(small), named("unit"))
    with pytest.raises(TraceError, match=r"frames of pool int4 = 20 is refused .* legal: 0 … 16"):
        plan(read(small), replace(TRACE, frames=(16, 16, 16, 16)), residency=0.5)


# - the command ------------------------------------------------------------------------------------


def test_golden_replay_from_the_command_line(small, tmp_path):
    done = kelp(
        "replay",
        str(small),
        "--engine",
        "golden",
        "--residency",
        "0.5",
        "--formats",
        "0-0:int8,int4",
        "--formats",
        "1-:raw16",
        "--json",
        str(tmp_path / "r.json"),
        "--report",
        str(tmp_path / "report"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (found["schema"], found["engine"], found["mismatches"], found["trace"]) == (
        "kelp.report",
        "golden",
        0,
        "small",
    )
    assert set(found["formats"].values()) == {"int8", "int4", "raw16"}
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["none.npz"], "none.npz: no such trace"),
        (["{small}", "--config", "tracer"], "unknown configuration 'tracer'"),
        (["{small}", "--config", "unit"], "does not fit"),
        (["{small}", "--config", "unit?queue=2"], "queue in 'unit?queue=2': no field of a"),
        (["{small}", "--tier-latency", "-3"], "--tier-latency -3 is refused; legal: 0"),
        (
            ["data/traces/smollm2_argparse.npz", "--config", "trace"],
            "smollm2_argparse.npz: does not fit: queues (layers · kv_heads) = 90 is refused by "
            + "configuration 'trace'; legal: 1 … 16",
        ),
        (["{small}", "--residency", "2"], ".npz: residency = 2.0 is refused"),
        (["{small}", "--residency", "0.01"], ".npz: residency = 0.01 of "),
        (["{small}", "--formats", "int9"], "stored format 'int9' is unknown"),
        (["{small}", "--formats", "1-2:int8"], "layer 0 is next"),
        (["{small}", "--prefetch", "psychic"], "--prefetch 'psychic' is unknown"),
        (["{small}", "--plant", "bit"], "are for --engine rtl"),
        (["{broken}"], "is not an .npz (zip) file"),
    ],
)
@pytest.mark.sampled
def test_what_is_the_users_to_mend_is_one_line(small, tmp_path, arguments, fault):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"\0" * 100)
    done = refused(
        "replay", *(a.format(small=small, broken=broken) for a in arguments), "--engine", "golden"
    )
    assert done.returncode != 0
    assert fault in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# - RTL --------------------------------------------------------------------------------------------

RTL = (
    "--residency",
    "0.5",
    "--formats",
    "0-0:int8,int4",
    "--formats",
    "1-:raw16",
    "--prefetch",
    "layer_ahead,previous",
    "--tier-latency",  # most cycles of a miss are those in which nothing happens
    "1000",
)


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """A recording whose pages, of as many lines as unit_select's have, fill two pools."""
    keys = contents(prefill_tokens=8, steps=24, tokens=32, head_dim=32)
    return save(tmp_path_factory.mktemp("trace") / "longer.npz", keys)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("mode", "config"),
    [
        ("--lockstep", "unit_select"),
        # At full speed test_demo replays with this model.
        pytest.param("--free-running", "unit_select", marks=pytest.mark.night),
        pytest.param("--free-running", "trace", marks=pytest.mark.slow),
    ],
)
def test_rtl_agrees_with_the_golden_model(longer, tmp_path, mode, config):
    done = kelp(
        "replay",
        str(longer),
        mode,
        *RTL,
        "--config",
        config,
        "--accesses",
        "250",
        "--json",
        str(tmp_path / "r.json"),
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (found["engine"], found["mismatches"], found["mismatch_examples"]) == ("rtl", 0, [])
    assert (
        found["victims"] > 50
        and found["write_backs"] > 20
        # in `trace` 6 of this recording's are issued
        and found["prefetches"] > (10 if config == "unit_select" else 4)
        and found["cycles"] > found["line_requests"] / 2
    )
    assert (found["lockstep_accesses"] == found["accesses"]) == (mode == "--lockstep")
    # At full speed the same requests are run once more with everything resident, where it fits.
    assert found["token_time_measured"] == (config == "trace")
    if config == "trace":
        ours, resident = np.array(found["step_cycles"]), np.array(found["resident_step_cycles"])
        lines = found["line_requests"] / found["steps"]
        assert len(ours) == len(resident) == found["steps"] and (ours > resident).any()
        assert lines < resident.mean() < lines + 300 * 2  # of two layers
        assert found["token_time"] == pytest.approx(ours.sum() / resident.sum())
        assert ours.sum() <= found["cycles"]
        # The model knows of no write-back and of no page that is fetched twice in a step.
        assert 0.5 < found["token_time"] / found["token_time_modelled"] < 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("mode", "first_step", "accesses"),
    [("--lockstep", 0, 2000), ("--free-running", 768, 20_000)],
)
def test_rtl_agrees_at_the_size_of_a_real_model(repo_root, tmp_path, mode, first_step, accesses):
    """SmolLM2's 90 queues: whole steps of the shipped recording. At full speed hardly more pages
    are missed than where each access waits for the one before."""
    trace = repo_root / "data" / "traces" / "smollm2_argparse.npz"
    part = ["--first-step", str(first_step), "--accesses", str(accesses)]
    choice = ["--config", "smollm2", "--policy", "kelp", *part]
    out = tmp_path / "r.json"
    done = kelp("replay", str(trace), mode, *choice, "--json", str(out), timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["mismatches"], found["mismatch_examples"]) == (0, [])
    assert found["accesses"] >= accesses and found["demand_misses"] > accesses / 25
    if mode == "--free-running":
        done = kelp("replay", str(trace), "--engine", "golden", *choice, "--json", str(out))
        assert done.returncode == 0, done.stdout + done.stderr
        in_order = json.loads(out.read_text(encoding="utf-8"))["demand_misses"]
        assert found["demand_misses"] < 1.03 * in_order


def kelp_unit(tmp_path, *engine):
    """The figures of a replay of one trace under policy kelp, sound."""
    path = save(tmp_path / "t.npz", contents(prefill_tokens=32, steps=32, tokens=64))
    choice = "--config", "unit_select", "--residency", "0.5", "--policy", "kelp"
    choice += "--formats", "raw16", "--json", str(tmp_path / "r.json")
    done = kelp("replay", str(path), *engine, *choice, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert not found["mismatches"]
    return path, found


@pytest.mark.timeout(1500)
def test_kelp_is_one_policy_in_lab_golden_and_rtl(tmp_path):
    """One trace, one residency: `kelp lab`, golden lock-step and RTL lock-step report the same
    hits, misses and flash reads."""
    path, golden = kelp_unit(tmp_path, "--engine", "golden")
    report = tmp_path / "lab.json"
    choice = "--residency", "0.5", "--policy", "kelp"
    assert kelp("lab", str(path), *choice, "--json", str(report)).returncode == 0
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    lab = next(r for r in rows if r["policy"] == "kelp")
    wanted = {
        "accesses": lab["accesses"],
        "demand_misses": lab["demand_misses"],
        "prefetches": lab["prefetch_issued"],
        "hit_rate": lab["hit_rate"],
        "flash_reads": lab["flash_reads"],
    }
    assert wanted["demand_misses"] > 200 and not wanted["prefetches"]
    for found in (golden, kelp_unit(tmp_path, "--lockstep")[1]):
        assert {name: found[name] for name in wanted} == wanted, found["engine"]


@pytest.mark.slow  # most of its cycles wait; test_demo runs policy kelp at full speed
@pytest.mark.timeout(1500)
def test_kelp_is_judged_at_full_speed(tmp_path):
    kelp_unit(tmp_path, "--free-running")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("mode", "plant"),
    [
        ("--lockstep", "victim"),
        pytest.param("--free-running", "victim", marks=pytest.mark.slow),
        pytest.param("--free-running", "commit", marks=pytest.mark.slow),
        ("--free-running", "bit"),
    ],
)
@pytest.mark.sampled
def test_a_planted_fault_is_found(longer, tmp_path, mode, plant):
    done = kelp(
        "replay",
        str(longer),
        mode,
        *RTL,
        "--config",
        "unit_select",
        "--accesses",
        "120",
        "--plant",
        plant,
        "--json",
        str(tmp_path / "r.json"),
        timeout=1500,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert found["mismatches"] > 0 and found["mismatch_examples"]


def test_a_mask_of_64_lines_is_no_negative_number():
    full = 2**64 - 1
    assert np.asarray(wide_integers(np.array([full, 1], np.uint64)), object).tolist() == [full, 1]
    assert wide_integers(np.array([5], np.uint64)).dtype == np.uint64
