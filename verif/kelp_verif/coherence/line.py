# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One line between a host and a device, message by message: every step that either may take next.

The host's side is written here, from docs/coherence.md alone; the device's side takes what a
message comes to from the golden model. A value is one bit: whether it is what was written last."""

from collections.abc import Iterator
from typing import NamedTuple

from kelp_golden.coherence import request, written
from kelp_spec.coherence import Held, MetaField, MetaValue, SnpType
from kelp_spec.messages import S2MNDR, M2SReq

__all__ = ["BUGS", "START", "Violation", "at_rest", "check", "steps"]

#: Planted bugs, each of which the search must find.
BUGS = {
    "early recall": "a recall does not wait for the grant that is under way",
    "unblocked": "a Req is served while its line is being called back",
    "blocked write": "a MemWr waits until its line's recall is over",
    "blocked conflict": "RwD waits while a Req waits",
    "blocked answer": "a BIRsp waits while a Req waits",
    "no wait": "the line counts as given up when BISnp is sent",
    "forgotten copy": "after a MemWr that keeps a copy nothing is held",
    "No-Op forgets": "after a MemWr that does not say what it keeps nothing is held",
    "clean only": "lines that were granted S are not called back",
    "granted S": "Cmp-E is sent and S is noted",
    "no stale": "a copy of a rounded line stays",
    "early Cmp": "a write's Cmp leaves before the write is seen",
    "late Ack": "BIConflictAck waits for the BIRsp",
    "Ack overtakes": "BIConflictAck leaves ahead of what waits in NDR",
    "evict wins": "a MemClnEvct that was overtaken by a recall ends the recall",
}

_META0, _NO_OP = MetaField.META0, MetaField.NO_OP
_REQUESTS = {
    "read shared": (M2SReq.MEM_RD, _META0, MetaValue.SHARED, SnpType.DATA),
    "read any": (M2SReq.MEM_RD, _META0, MetaValue.ANY, SnpType.INV),
    "own": (M2SReq.MEM_INV, _META0, MetaValue.ANY, SnpType.INV),
    "look": (M2SReq.MEM_RD, _NO_OP, MetaValue.INVALID, SnpType.CUR),
    "clean evict": (M2SReq.MEM_CLN_EVCT, _META0, MetaValue.INVALID, SnpType.NO_OP),
    "read and drop": (M2SReq.MEM_RD, _META0, MetaValue.INVALID, SnpType.INV),
    "drop": (M2SReq.MEM_INV, _META0, MetaValue.INVALID, SnpType.INV),
}
_DROPS = ("clean evict", "read and drop", "drop")  #: the host holds nothing from then on
_READS = ("read shared", "read any", "look", "read and drop")
#: Writes with their MetaField and MetaValue; "uncached" is one of a host that holds nothing. One
#: with No-Op does not say what the host holds afterwards.
_KEEPS = {
    "write I": (_META0, MetaValue.INVALID),
    "write S": (_META0, MetaValue.SHARED),
    "write A": (_META0, MetaValue.ANY),
    "No-Op, I": (_NO_OP, MetaValue.INVALID),
    "No-Op, S": (_NO_OP, MetaValue.INVALID),
    "No-Op, E": (_NO_OP, MetaValue.INVALID),
    "uncached": (_META0, MetaValue.INVALID),
    "uncached, No-Op": (_NO_OP, MetaValue.INVALID),
}
_AFTER = {
    "write I": "I",
    "write S": "S",
    "write A": "E",
    "No-Op, I": "I",
    "No-Op, S": "S",
    "No-Op, E": "E",
}


class Violation(AssertionError):
    """The protocol is broken."""


class State(NamedTuple):
    # host: its copy, whether that is the newest, whether the device has rounded it since
    cache: str = "I"
    newest: bool = False
    raw: bool = False
    out: str | None = None  # the request or write-back under way
    cmp: int | None = None  # of it: the completion that came, the data
    data: bool | None = None
    # None, "here" (to be answered), "conflict" (waits for the Ack), "after" (once `out` is done)
    snoop: str | None = None
    # channels
    req: tuple = ()
    rwd: tuple = ()
    birsp: tuple = ()
    drs: tuple = ()
    ndr: tuple = ()
    bisnp: tuple = ()
    # device
    held: Held = Held.NONE
    recall: str | None = None  # None, "wanted", "sent"
    inner: tuple = ()  # accepted and not yet executed, in order
    memory: bool = True


START = State()
ACK = S2MNDR.BI_CONFLICT_ACK


def at_rest(s: State) -> bool:
    return not (s.out or s.snoop or s.recall or s.inner) and not any(
        (s.req, s.rwd, s.birsp, s.drs, s.ndr, s.bisnp)
    )


def check(s: State) -> None:
    """What holds in every state."""
    values = [m[1] for m in (*s.rwd, *s.inner) if m[0] in _KEEPS]
    if not (s.memory or s.cache != "I" and s.newest or any(values)):
        raise Violation("lost write: nobody has what was written last")
    if s.held == Held.NONE and not s.recall and s.cache != "I":
        raise Violation(f"the device takes the line while the host holds {s.cache}")
    if s.held == Held.SHARED and s.cache in "EM":
        raise Violation(f"the device thinks S, the host holds {s.cache}")


def _stored(s: State, **more) -> State:
    """The host writes its copy: every other value is old."""

    def aged(messages):
        return tuple((m[0], False) if m[0] in _KEEPS else m for m in messages)

    return s._replace(
        cache="M",
        newest=True,
        raw=False,
        memory=False,
        rwd=aged(s.rwd),
        inner=aged(s.inner),
        **more,
    )


def steps(
    s: State, *, bugs=(), rounds=False, room=2, eager=False
) -> Iterator[tuple[str, bool, State]]:
    """(what happens, whether it is of somebody's own accord, state after it). Channels hold `room`
    messages each. `eager`: as in `Coherence`."""
    yield from _host_acts(s, room)
    yield from _host_hears(s, room)
    yield from _device(s, bugs, rounds, room, eager)


def _host_acts(s: State, room: int):
    if s.out or s.snoop:
        return
    clean = s.cache in "SE"
    if len(s.req) < room:
        for name in _REQUESTS:
            if name in _DROPS:
                if clean or s.cache == "I" and name != "clean evict":
                    gone = s._replace(cache="I", newest=False, raw=False)
                    yield name, True, gone._replace(out=name, req=(*s.req, name))
            elif s.cache == "I" or s.cache == "S" and name in ("read any", "own"):
                yield name, True, s._replace(out=name, req=(*s.req, name))
            elif name == "look" and clean and not s.raw:
                yield name, True, s._replace(out=name, req=(*s.req, name))
    if len(s.rwd) < room:
        for name, after in _AFTER.items():
            if s.cache == "M":
                sent = (*s.rwd, (name, s.newest))
                yield name, True, s._replace(cache=after, out=name, rwd=sent)
        if s.cache == "I":
            for name in ("uncached", "uncached, No-Op"):
                new = _stored(s)._replace(cache="I", newest=False, out=name)
                yield name, True, new._replace(rwd=(*new.rwd, (name, True)))
    if clean:
        yield "silent drop", True, s._replace(cache="I", newest=False, raw=False)
    if s.cache == "E":
        yield "silent E to S", True, s._replace(cache="S")
    if s.cache in "EM":
        yield "store", True, _stored(s)
    if s.cache != "I" and not s.newest:
        raise Violation("stale read: a hit in the host's cache is not what was written last")


def _host_hears(s: State, room: int):
    if s.bisnp:
        rest = s._replace(bisnp=s.bisnp[1:])
        if not s.out or s.out in _KEEPS:  # a write-back under way: its Cmp may be waited for
            yield "host: snoop", False, rest._replace(snoop="here")
        if s.out and len(s.rwd) < room:
            sent = (*s.rwd, ("conflict",))
            yield "host: conflict", False, rest._replace(snoop="conflict", rwd=sent)
    if s.drs:
        yield "host: data", False, _done(s._replace(drs=s.drs[1:], data=s.drs[0]))
    if s.ndr and s.ndr[0] != ACK:
        if not s.out:
            raise Violation("a completion of nothing")
        yield "host: Cmp", False, _done(s._replace(ndr=s.ndr[1:], cmp=int(s.ndr[0])))
    if s.ndr and s.ndr[0] == ACK:
        rest = s._replace(ndr=s.ndr[1:])
        if s.snoop != "conflict":
            raise Violation("an Ack of nothing")
        if not s.out:
            yield "host: Ack, all done", False, rest._replace(snoop="here")
        elif s.cmp is not None:
            yield "host: Ack after Cmp", False, rest._replace(snoop="after")
        elif len(s.birsp) < room:
            given = rest._replace(cache="I", newest=False, raw=False, snoop=None)
            if s.cache == "M":
                raise Violation("the snoop comes first and the host is dirty")
            yield "host: Ack before Cmp", False, given._replace(birsp=("I",))
    if s.snoop == "here" and not s.out:
        if s.cache == "M":
            if len(s.rwd) < room:
                sent = (*s.rwd, ("write I", s.newest))
                yield (
                    "host: dirty home",
                    False,
                    s._replace(cache="I", newest=False, out="write I", rwd=sent),
                )
        elif len(s.birsp) < room:
            given = s._replace(cache="I", newest=False, raw=False, snoop=None)
            yield "host: BIRsp", False, given._replace(birsp=(*s.birsp, "I"))


def _done(s: State) -> State:
    """The host's request is over once all that belongs to it is there."""
    needs_data = s.out in _READS
    if s.cmp is None or needs_data and s.data is None:
        return s
    done = s._replace(
        out=None, cmp=None, data=None, snoop="here" if s.snoop == "after" else s.snoop
    )
    granted = {S2MNDR.CMP_S: "S", S2MNDR.CMP_E: "E"}.get(s.cmp)
    if needs_data:
        if not s.data:
            raise Violation("stale read: memory's data are not what was written last")
        if s.out == "look" or s.out in _DROPS:
            if granted:
                raise Violation(f"{s.out} is answered with a grant")
            return done
        return done._replace(cache=granted or s.cache, newest=bool(granted), raw=False)
    if s.out == "own":
        # Without a copy of its own the host writes the whole line.
        return done._replace(cache="E") if s.cache != "I" else _stored(done)
    if s.cache == "I":
        return done._replace(newest=False)
    return done


def _device(s: State, bugs, rounds: bool, room: int, eager: bool):
    waits = bool(s.req) and bool(s.recall) and "unblocked" not in bugs
    if s.req:
        yield from _device_request(s, bugs, eager)
    if s.rwd and not ("blocked conflict" in bugs and waits):
        yield from _device_write(s, bugs, rounds, room)
    if s.inner:
        yield from _device_executes(s, bugs, room)
    if s.held != Held.NONE and not s.recall and _may_recall(s, bugs):
        yield "device: recall", True, s._replace(recall="wanted")
    if s.recall == "wanted" and len(s.bisnp) < room:
        if "clean only" in bugs and s.held == Held.SHARED:
            yield "device: unheld", False, s._replace(recall=None, held=Held.NONE)
        else:
            sent = s._replace(recall="sent", bisnp=(*s.bisnp, "inv"))
            if "no wait" in bugs:
                sent = sent._replace(recall=None, held=Held.NONE)
            yield "device: BISnp", False, sent
    if s.birsp and not ("blocked answer" in bugs and waits):
        if any(m[0] in _AFTER for m in s.rwd):
            raise Violation("a BIRsp comes ahead of its line's data")
        gone = s._replace(birsp=s.birsp[1:], recall=None, held=Held.NONE)
        yield "device: recall ends", False, gone


def _may_recall(s: State, bugs) -> bool:
    """No grant of the line is under way."""
    return all(m[0] in _KEEPS for m in s.inner) or "early recall" in bugs


def _device_request(s: State, bugs, eager: bool):
    name, rest = s.req[0], s._replace(req=s.req[1:])
    opcode, field, value, snoop = _REQUESTS[name]
    if s.recall and "unblocked" not in bugs:
        if "evict wins" in bugs and name == "clean evict" and s.recall == "sent":
            inner = (*s.inner, (name, S2MNDR.CMP))
            yield (
                "device: evict",
                False,
                rest._replace(recall=None, held=Held.NONE, inner=inner),
            )
        return
    reply = request(s.held, opcode, field, value, snoop, eager)
    if reply.first:
        if _may_recall(s, bugs):
            yield "device: recall first", False, s._replace(recall="wanted")
        return
    held = reply.held
    if "granted S" in bugs and reply.ndr == S2MNDR.CMP_E:
        held = Held.SHARED
    inner = (*s.inner, (name, reply.ndr))
    yield f"device: {name}", False, rest._replace(held=held, inner=inner)


def _device_write(s: State, bugs, rounds: bool, room: int):
    name, rest = s.rwd[0][0], s._replace(rwd=s.rwd[1:])
    if name == "conflict":
        if "late Ack" in bugs and s.recall == "sent" and not s.birsp:
            return
        if len(s.ndr) < room:
            ndr = (ACK, *s.ndr) if "Ack overtakes" in bugs else (*s.ndr, ACK)
            yield "device: Ack", False, rest._replace(ndr=ndr)
        return
    if "blocked write" in bugs and s.recall:
        return
    field, value = _KEEPS[name]
    held, _ = written(s.held, field, value, rounds=rounds, recalled=bool(s.recall))
    if "forgotten copy" in bugs or "No-Op forgets" in bugs and field == _NO_OP:
        held = Held.NONE
    if "no stale" in bugs and held == Held.STALE:
        held = Held.ANY
    if "early Cmp" in bugs:
        if len(s.ndr) < room:
            late = (*s.inner, (*s.rwd[0], "late"))
            yield (
                "device: early Cmp",
                False,
                rest._replace(held=held, inner=late, ndr=(*s.ndr, S2MNDR.CMP)),
            )
        return
    raw = rounds and s.cache in "SE" and s.out == name
    yield (
        f"device: {name}",
        False,
        rest._replace(held=held, inner=(*s.inner, s.rwd[0]), raw=raw or s.raw),
    )


def _device_executes(s: State, bugs, room: int):
    """The inner device executes what it accepted: accesses to one line never overtake."""
    order = range(len(s.inner)) if "early Cmp" in bugs else (0,)
    for n in order:
        what = s.inner[n]
        rest = s._replace(inner=s.inner[:n] + s.inner[n + 1 :])
        if what[0] in _KEEPS:
            done = rest._replace(memory=what[1])
            if "late" not in what:
                if len(s.ndr) == room:
                    continue
                done = done._replace(ndr=(*s.ndr, S2MNDR.CMP))
            yield "device: written", False, done
        elif len(s.ndr) < room and len(s.drs) < room:
            data = what[0] in _READS
            if data and s.raw and s.cache != "I":
                raise Violation("two values: the line is read while a copy that differs is held")
            drs = (*s.drs, s.memory) if data else s.drs
            yield "device: answers", False, rest._replace(ndr=(*s.ndr, what[1]), drs=drs)
