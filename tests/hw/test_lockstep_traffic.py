# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Lock-step under random traffic: requests, hint lines of every kind, MemSpecRd and steps, with
every source of prefetch; RTL and golden model decide the same ops in the same order, and count the
same."""

import dataclasses

import numpy as np
import pytest
from narrow_unit import UNIT

from kelp_golden.lines import POISONED
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig
from kelp_golden.setup import SESSION, LayerFormats, Setup
from kelp_rtl.device import Driver, FlashTiming, RunRules
from kelp_rtl.program import PARTIAL, READ, SPEC_READ, WRITE, Program, Response
from kelp_rtl.replay.rows import OPS, describe, device_ops, golden_op, mask_ops
from kelp_spec.config import POOLS, Config
from kelp_spec.formats import Format
from kelp_spec.hints import ENTRIES, HintKind, HintLine, pack
from kelp_spec.metadata import Answer, MissKind, Op, Outcome, PrefetchSource, ScoreSource
from kelp_spec.policy import Policy
from kelp_spec.registers import SessionCommand
from kelp_verif.endpoint.drawn import drawn
from kelp_verif.harness.seeds import reseeded

pytestmark = pytest.mark.timeout(2400)  # the first test builds the model


def _formats(config: Config, rng: np.random.Generator) -> tuple[LayerFormats, ...]:
    """Of the first layer and of the others; with `unit` such that pages lie in two pools."""
    first, *others = (int(f) for f in rng.permutation(config.formats))
    k, v = (others or [first])[0], int(rng.choice(config.formats))
    return (
        LayerFormats(last_layer=0, k=Format(first), v=Format(first)),
        LayerFormats(last_layer=1023, k=Format(k), v=Format(v)),
    )


class Traffic:
    """A device and the golden model, which are told and asked for the same, one after the other.

    Parameters
    ----------
    policy : Policy or None
        Of all queues; None: KELP of the odd ones, EMA of the others, two of each in a pool.
    source : ScoreSource
    seed : int
        Of the traffic, and of the settings that it is under.
    config : Config
    """

    def __init__(
        self, policy: Policy | None, source: ScoreSource, seed: int, config: Config = UNIT
    ):
        self.config, self.rng = config, np.random.default_rng(seed)
        rng, heads = self.rng, 2 - config.queues % 2
        self.queues, self.pages = config.queues, min(config.pages, 30)
        high = int(rng.integers(1, 4))
        self.sequence, self.rows, self.step = 0, [], 0
        self.missed = self.given_up = 0
        self.setup = setup = Setup(
            config=config,
            layers=config.queues // heads,
            kv_heads=heads,
            used_lines=config.half_lines,
            used_pages=self.pages,
            formats=_formats(config, rng),
            limits=tuple(min(n, int(rng.integers(high + 1, high + 6))) for n in config.frames),
            budgets=(0,) * 4,
            low_water=int(rng.integers(0, 3)),
            high_water=high,
            tau=float(rng.integers(2, 30)),
            alpha=int(rng.integers(10, 200)),
            source=source,
            window=int(rng.integers(0, 4)),
            prefetch=frozenset(s for s in PrefetchSource if s and rng.random() < 0.8),
            policy=Policy.EMA if policy is None else policy,
        )
        self.engine = LockStep(
            setup.endpoint(),
            evict_target=max(1, setup.low_water, setup.high_water),
            enable=setup.prefetch,
            log=self._log,
        )
        self.device = Driver(
            config,
            flash=FlashTiming(latency=20, write_latency=20),
            rules=RunRules(in_order=True, record_hot_reads=True),
        )
        reserve = int(rng.integers(0, 4))
        self.engine.endpoint.tracker.reserve = reserve
        for name, value in (*setup.registers(), ("reserve", reserve)):
            self.device.write64(name, value)
        if policy is None:
            self._mix()
        self.device.settle()
        self.device.take_commits()
        self.engine.open(SESSION, setup.descriptor)
        self.rows.clear()
        self.seen = dict.fromkeys(("hint", "line", "spec", "step", "early", "ops"), 0)

    def _log(self, result) -> None:
        self.rows.append(golden_op(result))
        op = result.op
        self.missed += op.kind <= Op.WRITE and result.outcome == Outcome.MISSED
        # What an absent page was to be given, and was not.
        absent = op.kind == Op.FLIP and op.miss_kind == MissKind.ALLOCATE
        self.given_up += bool(absent and op.failed)

    def _mix(self) -> None:
        """Policy `kelp` for every second queue."""
        kelp = dataclasses.replace(self.setup, policy=Policy.KELP)
        policies = kelp.endpoint().policies
        self.device.write64(f"s{SESSION}_policy", dict(kelp.registers())[f"s{SESSION}_policy"])
        for queue in range(1, self.queues, 2):
            formats = kelp.formats_of(queue)
            self.engine.endpoint.configure(
                queue,
                QueueConfig(int(formats.k), int(formats.v), kelp.pools[queue]),
                policies[queue],
            )
            self.device.write_registers({f"s{SESSION}_queue": queue})
            self.device.session_command(SESSION, SessionCommand.APPLY_QUEUE)

    def page(self) -> tuple[int, int]:
        """(queue, page), some of them much more often."""
        rng = self.rng
        span = self.pages if rng.random() < 0.6 else 3
        return int(rng.integers(self.queues)), int(rng.integers(span))

    def one(self) -> None:
        """One thing that a host does, by both."""
        kind = self.rng.choice(["line"] * 12 + ["hint"] * 5 + ["spec"] * 2 + ["step"])
        self.seen[kind] += 1
        getattr(self, f"_{kind}")()
        self._compare(kind)

    def _line(self) -> None:
        (queue, page), rng = self.page(), self.rng
        kv_line, opcode = (
            int(rng.integers(2 * self.config.half_lines)),
            int(rng.choice([READ, READ, WRITE, PARTIAL])),
        )
        write, partial = int(opcode != READ), int(opcode == PARTIAL)
        data = rng.integers(0, 0x7C00, (write, 32), np.uint16).view(np.uint8)  # finite in FP16
        mask = int.from_bytes(rng.bytes(8), "little") if partial else (1 << 64) - 1
        op = TrackerOp(
            Op.WRITE if write else Op.READ,
            SESSION,
            queue,
            page,
            kv_line,
            write,
            partial,
            origin=(data.tobytes(), mask) if write else None,
        )
        half, line = divmod(kv_line, self.config.half_lines)
        address = [self.device.address(SESSION, queue, page, half, line)]
        expected = self.engine.request(op)
        result = self.device.run(
            Program(opcode=opcode, address=address, data=data, byte_enable=mask), lockstep=True
        )
        answered = Response.POISON if expected.poison else Response.DATA
        assert result.response[0] == (Response.CMP if expected.kind == Answer.CMP else answered)
        if answered == Response.DATA and not write and expected.version != POISONED:
            want = self.engine.endpoint.lines.resolve([expected.version]).view(np.uint8)
            assert (result.data[0] == want.reshape(64)).all()

    def _hint(self) -> None:
        rng, kind = self.rng, HintKind(int(self.rng.integers(1, 5)))
        advance, queue = bool(rng.random() < 0.4), int(rng.integers(self.queues + 1))
        count = int(rng.choice([1, 3, 8, ENTRIES]))
        if kind == HintKind.MASS:
            first, entries = int(rng.integers(4)), rng.integers(0, 65536, count)
        else:
            # Pins that take a whole pool would let requests starve, which takes time.
            count = {HintKind.PIN: 1, HintKind.RELEASE: ENTRIES}.get(kind, count)
            first, entries = 0, rng.permutation(self.pages + 2)[:count]
        line = pack(
            HintLine(
                kind=kind,
                session=SESSION,
                queue=queue,
                sequence=self.sequence,
                first_page=first,
                entries=tuple(map(int, entries)),
                advance=advance,
            )
        )
        self.sequence = (self.sequence + 1) & 0xFFFF
        self.seen["early"] += advance and kind == HintKind.PREFETCH and len(entries) >= 8
        self.engine.hint(line)
        row = np.frombuffer(line, np.uint8).reshape(1, 64)
        self.device.run(Program.writes([self.device.addresses.hint_base], row), lockstep=True)

    def _spec(self) -> None:
        queue, page = self.page()
        self.engine.spec_read(queue, page)
        address = [self.device.address(SESSION, queue, page, 0, 0)]
        self.device.run(Program(opcode=SPEC_READ, address=address), lockstep=True)

    def _step(self) -> None:
        self.engine.step(SESSION)
        self.device.write64(*self.setup.advance())
        self.device.settle(lockstep=True)

    def books(self) -> None:
        """Every count of the device is the golden model's, and they add up."""
        device, golden, pools = (
            self.device,
            self.engine.endpoint,
            self.engine.endpoint.tracker.pools,
        )
        total, bins = device.counters(), device.latency_histograms()
        assert total == self.engine.totals()
        assert total["accesses"] == total["hits"] + total["misses"] + total["allocations"]
        assert sum(map(sum, bins.values())) == total["reads"] + total["writes"] + total["refused"]
        assert sum(bins["miss"]) == self.missed
        used = device.read_registers([f"pool_used_{pool}" for pool in POOLS])
        assert used == [pool.used for pool in pools]
        taken = total["allocations"] - self.given_up + total["fetches"]
        assert sum(used) == taken - total["evictions"]
        assert not total["corrected"] and not total["uncorrected"]
        for source in PrefetchSource:
            if source:
                of = {
                    what: total[f"prefetch_{what}_{source.name.lower()}"]
                    for what in ("issued", "useful", "late", "useless")
                }
                waiting = sum(
                    f.in_use and f.source == source and not f.used for f in golden.frames.frames
                )
                assert of.pop("issued") == sum(of.values()) + waiting
        summed = dict.fromkeys(golden.queue_counters, 0)
        for queue in range(self.queues):
            device.write_registers({f"s{SESSION}_queue": queue})
            names = [f"s{SESSION}_queue_{name}" for name in summed]
            *counts, lines = device.read_registers([*names, f"s{SESSION}_resident"])
            assert counts == [of[queue] for of in golden.queue_counters.values()], queue
            assert lines == golden.queues.resident_lines(queue)
            summed = {name: summed[name] + n for name, n in zip(summed, counts, strict=True)}
        for name, n in summed.items():
            assert n == sum(total[of] for of in total if of == name or of.startswith(f"{name}_"))

    def _compare(self, what: str) -> None:
        """Every op since the last call, in order."""
        commits = self.device.take_commits()
        ops, hot = device_ops(commits, *commits.sequence())
        golden = np.array(self.rows, np.int64).reshape(len(self.rows), len(OPS))
        self.rows.clear()
        kinds = [[Op(int(kind)).name for kind in rows[:, 0]] for rows in (ops, golden)]
        assert kinds[0] == kinds[1], (what, self.seen)
        self.seen["ops"] += len(ops)
        ops, golden = mask_ops(ops, hot), mask_ops(golden, hot)
        for at in np.flatnonzero((ops != golden).any(axis=1))[:1]:
            told = describe(OPS, ops[at].tolist(), golden[at].tolist())
            raise AssertionError(f"{what}, {self.seen}: {kinds[0][at]} {told}")


@pytest.mark.parametrize(
    ("policy", "source", "seeds"),
    [
        pytest.param(Policy.EMA, ScoreSource.OBSERVED, 1, id="ema"),
        pytest.param(Policy.KELP, ScoreSource.PUSHED, 1, id="kelp"),
        pytest.param(None, ScoreSource.OBSERVED, 1, id="mixed"),
        *(
            pytest.param(p, s, 12, id=f"{name}-{s.name.lower()}", marks=pytest.mark.slow)
            for p, name in ((Policy.EMA, "ema"), (Policy.KELP, "kelp"), (None, "mixed"))
            for s in (ScoreSource.PUSHED, ScoreSource.OBSERVED)
        ),
    ],
)
def test_every_op_is_the_golden_models(policy, source, seeds):
    early = 0
    for number in range(seeds):
        seed = reseeded(700 + number)
        print(f"seed {seed}")
        traffic = Traffic(policy, source, seed)
        for _ in range(250):
            traffic.one()
        traffic.books()
        early += traffic.seen["early"]
        traffic.device.close()
    assert early >= seeds // 2


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_so_in_other_configurations(number):
    """Whatever the sizes, powers of two or none."""
    config = drawn(reseeded(40 + number), sessions=1, codec_lanes=8)
    print(config)
    for seed, policy in enumerate((Policy.EMA, Policy.KELP, None)):
        traffic = Traffic(policy, ScoreSource.OBSERVED, seed, config)
        for _ in range(250):
            traffic.one()
        assert traffic.seen["ops"] > 250
        traffic.books()
        traffic.device.close()
