# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SELECT and GATHER in a storm (docs/select.md): doorbells good and bad among everything else, and
what their answers and the gathered lines may be.

In the midst of traffic a gathered line is that of some page of its queue. When a chapter is
over each doorbell has its answer, which names pages of the session's own, and each slot shows the
very page that the answer says it holds."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kelp_rtl.program import PARTIAL, READ, WRITE, Response
from kelp_spec.formats import LINE_BYTES
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    CHOSEN_FIELDS,
    Refusal,
    SelectMap,
    SelectStatus,
    SlotState,
    record,
    record_bytes,
)

from .some_plan import no_plan, some_plan

__all__ = ["Choices"]

_POLLS = 1500  #: reads of an answer until it counts as missing: longer than a SELECT may wait
_LONG = 0, 24, 25, 255  #: a doorbell's `hold` that is longer than a storm lasts


@dataclass
class _Bell:
    """The doorbell that a group's next answer is for."""

    tenant: object
    fields: dict
    refusals: set  #: what it may be refused for; NONE where it need not be


def _chooses(fields) -> bool:
    """Whether a doorbell, if it is not refused, changes slots."""
    return fields["release"] or not fields["speculative"]


class Choices:
    """What tenants of a `storm` ask of the SELECT region and the GATHER window.

    Parameters
    ----------
    storm : Storm
    ask : class
        Of the storm's requests.
    lost : bytes
        The content of a line whose writer said that it is poison.
    """

    def __init__(self, storm, ask, lost: bytes):
        self.storm, self.ask, self.lost = storm, ask, lost
        self.map = SelectMap(storm.config)
        self.sequence = 0
        self.last: dict[tuple[int, int], _Bell] = {}  # by (session, group)
        #: by (session, queue): generation and pages of slots that stay until the next SELECT
        self.chosen: dict[tuple[int, int], tuple] = {}
        self.generations: dict[tuple[int, int], int] = {}  # of the last choice that was answered
        #: by (session, queue): the slots that held a page when that choice was answered
        self.held: dict[tuple[int, int], list[int]] = {}
        self.rung: dict[int, list[tuple]] = {}  # by session, since `check`: (group, fields)

    # - what is asked ------------------------------------------------------------------------------
    def some(self) -> list:
        """A few requests that belong together, of a tenant."""
        rng, storm = self.storm.rng, self.storm
        tenant = storm.tenants[rng.integers(len(storm.tenants))]
        group = int(rng.integers(storm.config.select_groups))
        kind = rng.random()
        if kind < 0.45:
            return self._select(tenant, group)
        if kind < 0.85:
            return self._gathers(tenant)
        return [self._odd(tenant, group)]

    def _line(self, line, tenant, data=None, **more):
        address = self.storm.device.addresses.select_base + LINE_BYTES * line
        return self.ask(READ if data is None else WRITE, address, tenant.owner, data, **more)

    def _select(self, tenant, group):
        """Queries and a plan, perhaps, and a doorbell."""
        rng, c, asks = self.storm.rng, self.storm.config, []
        if rng.random() < 0.6:
            for head in range(c.select_heads):
                for line in range(c.select_lines):
                    data = self.storm._data() if rng.random() < 0.97 else b"\xff" * LINE_BYTES
                    asks.append(
                        self._line(self.map.query(tenant.session, group, head, line), tenant, data)
                    )
        if rng.random() < 0.9:
            asks += self._plan(tenant, group)
        # Now and then several doorbells of a group, each in the place of the one before.
        times = 1 if rng.random() < 0.8 else int(rng.integers(2, 7))
        return asks + [self._ring(tenant, group) for _ in range(times)]

    def _ring(self, tenant, group):
        """A doorbell."""
        rng = self.storm.rng
        bell = self._bell(tenant)
        data = record_bytes(BELL_FIELDS, bell).ljust(LINE_BYTES, b"\0")
        ring = self._line(self.map.bell(tenant.session, group), tenant, data)
        kind, broken = rng.random(), False
        if kind < 0.03:
            ring.opcode, ring.enable, broken = PARTIAL, int(rng.integers(1 << 63)), True
        elif kind < 0.05:
            ring.poison = broken = True
        refusals = {Refusal.BELL} if broken else {self._refusal(tenant, bell)}
        if refusals == {Refusal.NONE} and not bell["release"]:
            refusals |= {Refusal.QUERY_NAN, Refusal.PLAN}
        ring.accepted = lambda: self._rung(group, _Bell(tenant, bell, refusals))
        return ring

    def _plan(self, tenant, group):
        """A plan, mostly; now and then it does not arrive whole."""
        rng, lines = self.storm.rng, self.storm.config.select_lines
        rows = (some_plan if rng.random() < 0.95 else no_plan)(rng, lines)
        asks = [
            self._line(self.map.plan(tenant.session, group, n), tenant, row.tobytes())
            for n, row in enumerate(rows)
        ]
        if rng.random() < 0.03:
            asks[0].poison = True
        return asks

    def _bell(self, tenant):
        rng, c = self.storm.rng, self.storm.config
        self.sequence += 1
        sizes = [1 << n for n in range(c.select_lines.bit_length())]
        lines = int(rng.choice([n for n in sizes if tenant.shape.used_lines % n == 0]))
        tokens = tenant.shape.used_lines // lines
        queue = int(rng.integers(tenant.queues))
        bell = {
            "sequence": self.sequence,
            "queue": queue,
            "layer": queue // tenant.shape.kv_heads,
            "newest": int(rng.integers(min(16, tenant.shape.used_pages))),
            "tokens": int(rng.integers(1, tokens + 1)),
            "lines": lines,
            "most": int(rng.integers(c.select - 1)),
            "hold": int(rng.choice(_LONG)) if rng.random() < 0.8 else int(rng.integers(1, 12)),
            "release": int(rng.random() < 0.08),
            "fetch": int(rng.integers(2)),
            "speculative": int(rng.random() < 0.15),
            "waits": int(rng.random() < 0.4),
            "wait_above": int(rng.choice([0, 1 << 10, 1 << 15, (1 << 32) - 1])),
            "patience": int(rng.integers(1, 13)),
            "fetch_from": int(rng.choice([0, 1 << 10, 1 << 15, (1 << 32) - 1])),
            "tables": int(rng.integers(2)),
            "target": int(rng.choice([0, 1 << 15, c.select_heads << 16, (1 << 32) - 1])),
            "m": int(rng.choice([47274, 0, 65535])),
            "sh": int(rng.choice([18, 0, 31])),
            "beyond": int(rng.integers(8)),
        }
        if rng.random() < 0.15:
            wrong = [("queue", 65535), ("newest", 65535), ("tokens", 0), ("tokens", 65535)]
            wrong += [("lines", 0), ("lines", 255), ("most", 255), ("layer", 65535)]
            bell |= dict([wrong[rng.integers(len(wrong))]])
        return bell

    def _refusal(self, tenant, bell):
        """As docs/select.md has them, in its order."""
        c, shape = self.storm.config, tenant.shape
        rules = (
            (bell["queue"] >= tenant.queues, Refusal.QUEUE),
            (bell["newest"] >= shape.used_pages, Refusal.PAGE),
            (
                not 1 <= bell["lines"] <= c.select_lines
                or bell["lines"] & bell["lines"] - 1
                or shape.used_lines % max(1, bell["lines"]),
                Refusal.LINES,
            ),
            (not 1 <= bell["tokens"] * bell["lines"] <= shape.used_lines, Refusal.TOKENS),
            (bell["most"] > c.select - 2, Refusal.COUNT),
        )
        if bell["release"]:
            return Refusal.NONE
        return next((refusal for holds, refusal in rules if holds), Refusal.NONE)

    def _rung(self, group, bell):
        session = bell.tenant.session
        self.last[session, group] = bell
        self.rung.setdefault(session, []).append((group, bell.fields))
        self.chosen = {key: value for key, value in self.chosen.items() if key[0] != session}

    def _stays(self, session, queue):
        """Of the SELECTs of a session since `check`, in whatever order groups were served, none has
        taken the slots of `queue` from the last one of it."""
        rung = [(group, fields) for group, fields in self.rung[session] if _chooses(fields)]
        groups = {group for group, fields in rung if fields["queue"] == queue}
        return (
            len({fields["layer"] for _, fields in rung}) == 1
            and len(groups) == 1
            and not any(fields["release"] or fields["hold"] not in _LONG for _, fields in rung)
        )

    def _gathers(self, tenant):
        """Lines of the window: of the last choice, or of any place."""
        rng, c, d = self.storm.rng, self.storm.config, self.storm.device
        queue, slots = int(rng.integers(tenant.queues)), range(c.select)
        generation = int(rng.integers(1 << c.generation_bits))
        holding = [queue for session, queue in self.held if session == tenant.session]
        if holding and rng.random() < 0.5:  # what was held, and is still if nothing else was chosen
            queue = int(rng.choice(holding))
            slots = self.held[tenant.session, queue]
            generation = self.generations[tenant.session, queue]
        elif rng.random() < 0.8:  # of the last choice, or of one that is under way by now
            known = self.generations.get((tenant.session, queue), 0)
            generation = known + int(rng.choice([0, 0, 1, 2])) & (1 << c.generation_bits) - 1
        owner = tenant.owner if rng.random() < 0.95 else 15
        asks = []
        for _ in range(int(rng.integers(1, 8))):
            kv, slot = int(rng.integers(2)), int(rng.choice(slots))
            line = int(rng.integers(c.half_lines))
            address = d.addresses.gather(tenant.session, queue, generation, kv, slot, line)
            ask = self.ask(READ, address, owner)
            if rng.random() < 0.05:
                ask.opcode, ask.data, ask.refused = WRITE, self.storm._data(), True
            elif owner != tenant.owner:
                ask.refused = True
            else:
                at = tenant, queue, kv, line
                ask.judge = functools.partial(self._some_page, *at)
            asks.append(ask)
        return asks

    def _odd(self, tenant, group):
        """Answers, early and late; lines that have no meaning; others' lines."""
        rng = self.storm.rng
        line = int(rng.integers(1 << self.map.offset_bits))
        if rng.random() < 0.5:
            line = self.map.bell(tenant.session, group) + int(rng.integers(self.map.answer_lines))
        ask = self._line(line, tenant)
        kind = rng.random()
        session = line >> self.map.offset_bits - self.storm.config.session_bits
        if kind < 0.3:
            ask.ld_id = 15
            ask.judge = lambda response, data, _: self._zeros(response, data, "to a stranger")
            if kind < 0.15:
                ask.opcode, ask.data, ask.judge = WRITE, self.storm._data(), None
        elif session != tenant.session:
            ask.judge = lambda response, data, _: self._zeros(response, data, "of another session")
        elif kind < 0.4 and line % (1 << self.map.half_bits + 1) != 1 << self.map.half_bits:
            ask.opcode, ask.data, ask.enable = PARTIAL, self.storm._data(), 0xFF
        else:
            ask.judge = lambda response, data, _: self._count_answer(response)
        return ask

    # - what is answered ---------------------------------------------------------------------------
    def _zeros(self, response, data, what):
        if response != Response.DATA or any(data):
            self.storm.silent.append(f"SELECT region: {response.name} {data.hex()} {what}")

    def _count_answer(self, response):
        if response != Response.DATA:
            self.storm.silent.append(f"SELECT region: {response.name}")

    def _some_page(self, tenant, queue, kv, line, response, data, truths_of):
        """A line of some page of that queue."""
        storm = self.storm
        storm._count(f"gather_{response.name.lower()}")
        if response == Response.NXM:
            return
        if kv and tenant.shape.k_only or line >= tenant.shape.used_lines:
            storm.silent.append(f"GATHER: {response.name} outside the session's shape")
            return
        address = functools.partial(storm.device.address, tenant.session, queue)
        truths = {
            truth
            for page in range(tenant.shape.used_pages)
            for truth in truths_of(tenant, address(page, kv, line))
        }
        if response == Response.POISON:
            if storm.weather.fair and self.lost not in truths:
                storm.silent.append("GATHER: poison, where nothing fails")
        elif data not in truths:
            storm.silent.append(f"GATHER: {data.hex()} is of no page of queue {queue}")

    def check(self) -> None:
        """Each doorbell has its answer, and each slot its page."""
        for (session, group), bell in sorted(self.last.items()):
            tenant = bell.tenant
            if tenant is self.storm.tenants[session] and not tenant.closing:
                self._answered(tenant, group, bell)
        self.last.clear()
        self.rung.clear()
        self._quiet()
        self._amid_lines()
        asks = []
        for (session, queue), (generation, pages) in self.chosen.items():
            asks += self._slots(self.storm.tenants[session], queue, generation, pages)
        if asks:
            self.storm._ask(asks)

    def _quiet(self) -> None:
        """A SELECT of each tenant, of pages that were read just before."""
        rng, storm = self.storm.rng, self.storm
        for tenant in storm.tenants:
            group = int(rng.integers(storm.config.select_groups))
            *queries, ring = self._select(tenant, group)
            bell = record(BELL_FIELDS, ring.data)
            if ring.opcode == WRITE and not ring.poison and bell["queue"] < tenant.queues:
                places = [
                    (tenant, bell["queue"], page, 0, line)
                    for page in range(min(bell["newest"] + 1, 6))
                    for line in range(tenant.shape.used_lines)
                ]
                storm._ask(storm._plain(READ, places))
            storm._ask([*queries, ring])
            self._answered(tenant, group, self.last.pop((tenant.session, group)))
            self.rung.clear()

    def _amid_lines(self) -> None:
        """Gathers amid reads and writes of all tenants, but no SELECT: what is held stays."""
        rng, storm = self.storm.rng, self.storm
        tenants = [storm.tenants[session] for session, _ in self.held]
        if tenants:
            asks = storm._lines(200)
            for at in sorted(rng.choice(200, 20, replace=False), reverse=True):
                asks[at:at] = self._gathers(tenants[rng.integers(len(tenants))])
            storm._ask(asks)

    def _answered(self, tenant, group, bell):
        storm, first = self.storm, self.map.bell(tenant.session, group)
        lines = [self._line(first + n, tenant) for n in range(self.map.answer_lines)]
        for _ in range(_POLLS):
            result = storm.device.run(storm._program(lines))
            header = record(ANSWER_FIELDS, result.data[0].tobytes())
            if header["sequence"] == bell.fields["sequence"]:
                break
        else:
            storm.silent.append(f"no answer to {bell.fields}: {header}")
            return
        rows = result.data[1:].tobytes()
        pages, wanted = (
            [record(CHOSEN_FIELDS, rows[8 * n : 8 * n + 8]) for n in each]
            for each in (
                range(header["count"]),
                self.map.named_places(header["count"], header["wanted"]),
            )
        )
        self._judge(tenant, bell, header, pages, wanted)

    def _judge(self, tenant, bell, header, pages, wanted):
        storm, fields = self.storm, bell.fields
        wrong = []
        if header["refusal"] not in bell.refusals:
            wrong.append(f"refusal {header['refusal']}, not one of {bell.refusals}")
        storm._count("selects_refused" if header["refusal"] else "selects")
        storm._count(f"refused_{Refusal(header['refusal']).name.lower()}")
        for name in ("release", "speculative", "fetch", "waits"):
            storm._count(name, bool(fields[name] and not header["refusal"]))
        if header["status"] != (SelectStatus.REFUSED if header["refusal"] else SelectStatus.DONE):
            wrong.append("status")
        names = [page["page"] for page in pages]
        if Refusal.BELL not in bell.refusals:
            wrong += self._named(header, fields, names, wanted)
        if header["refusal"] or fields["release"] or fields["speculative"]:
            if pages or header["absent"] and not fields["speculative"] or header["generation"]:
                wrong.append("pages of a SELECT that chooses none")
        elif Refusal.BELL not in bell.refusals:
            always = sorted({0, fields["newest"]})
            masses = [page["mass"] for page in pages[len(always) :]]
            if names[: len(always)] != always or len(set(names)) != len(names):
                wrong.append(f"pages {names}")
            if max(names) > fields["newest"] or len(masses) > fields["most"]:
                wrong.append(f"pages {names}")
            if masses != sorted(masses, reverse=True) or 0 in masses:
                wrong.append(f"masses {masses}")
            self.generations[tenant.session, fields["queue"]] = header["generation"]
            held = [n for n, page in enumerate(pages) if page["state"] == SlotState.HELD]
            storm._count("held", len(held))
            self.held.pop((tenant.session, fields["queue"]), None)
            if held:
                self.held[tenant.session, fields["queue"]] = held
            if self._stays(tenant.session, fields["queue"]):
                self.chosen[tenant.session, fields["queue"]] = header["generation"], pages
        storm.silent += [f"SELECT {fields} answers {header} {names}: {what}" for what in wrong]

    def _named(self, header, fields, names, wanted) -> list[str]:
        """What is wrong with the pages that an answer names as wanted."""
        self.storm._count("named", len(wanted))
        always = {0, fields["newest"]} if fields["speculative"] else set()
        found, masses = [page["page"] for page in wanted], [page["mass"] for page in wanted]
        best = [page["mass"] for page in wanted if page["page"] not in always]
        ok = header["wanted"] <= header["absent"] and sum(masses) <= header["missing"]
        ok &= {page["state"] for page in wanted} <= {SlotState.WANTED}
        ok &= len({*found, *names}) == len(found) + len(names)
        ok &= max(found, default=0) <= fields["newest"] and len(best) <= fields["most"]
        ok &= best == sorted(best, reverse=True) and 0 not in best
        return [] if ok else [f"wanted {wanted}"]

    def _slots(self, tenant, queue, generation, pages):
        """A read of every line of every slot, judged as its page's own; empty ones are refused."""
        c, d = self.storm.config, self.storm.device
        asks = []
        for slot in range(c.select):
            held = slot < len(pages) and pages[slot]["state"] == SlotState.HELD
            for kv in range(1 if tenant.shape.k_only else 2):
                for line in range(tenant.shape.used_lines):
                    address = d.addresses.gather(tenant.session, queue, generation, kv, slot, line)
                    ask = self.ask(READ, address, tenant.owner, refused=not held)
                    if held:
                        ask.tenant, ask.fmt = tenant, tenant.format_of(queue, kv)
                        ask.means = d.address(tenant.session, queue, pages[slot]["page"], kv, line)
                    asks.append(ask)
        return asks

    def release(self) -> None:
        """No tenant has slots."""
        for tenant in self.storm.tenants:
            bell = {"sequence": self.sequence, "release": 1}
            data = record_bytes(BELL_FIELDS, bell).ljust(LINE_BYTES, b"\0")
            line = self.map.bell(tenant.session, 0)
            self.storm.device.run(self.storm._program([self._line(line, tenant, data)]))
        self.chosen.clear()
        self.last.clear()

    def forget(self, session: int | None = None) -> None:
        """A session, or every one, begins anew."""
        for known in (self.chosen, self.last, self.generations, self.held):
            for key in [key for key in known if session in (None, key[0])]:
                del known[key]
