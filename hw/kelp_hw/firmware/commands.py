# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sequencer's program: its loop, which command is which, and the commands that answer from
tables."""

from __future__ import annotations

from kelp_spec.cxlio.commands import COMMANDS, Opcode, ReturnCode
from kelp_spec.cxlio.config import CxlIoConfig

from . import events, exchange, poison, state
from .image import IO, IO_BASE, PAYLOAD, Image, Work
from .program import Reg

__all__ = ["image"]

A, B, C, D, E, F = Reg.A, Reg.B, Reg.C, Reg.D, Reg.E, Reg.F
ZERO, IOS = Reg.ZERO, Reg.M


def image(config: CxlIoConfig) -> Image:
    """Tables and program of a configuration."""
    im = Image(config)
    _start(im)
    _loop(im)
    _command(im)
    _routines(im)
    events.routines(im)
    poison.routines(im)
    for opcode in sorted(config.commands):
        im.program.label(opcode.name)
        _HANDLERS[opcode](im)
    events.append(im)
    poison.background_end(im)
    if config.doe:
        exchange.serve(im)
    entries = b"".join(
        int(op).to_bytes(2, "little")
        + im.program.labels[op.name].to_bytes(2, "little")
        + COMMANDS[op].least.to_bytes(2, "little")
        + im.most(op).to_bytes(2, "little")
        for op in sorted(config.commands)
    )
    im.fill("commands", entries)
    return im


def _start(im: Image) -> None:
    """Zeros in the store, then the mailbox is ready."""
    p = im.program
    p.li(A, im.store("policy"))
    p.li(B, im.store("policy") + 4 * im.store_words)
    p.label("clear")
    p.sw(ZERO, A)
    p.addi(A, A, 4)
    p.bltu(A, B, "clear")
    p.li(IOS, IO_BASE)
    p.li(A, 0b101)
    p.sw(A, IOS, IO.MEMORY)


def _loop(im: Image) -> None:
    p = im.program
    p.label("idle")
    p.lw(A, IOS, IO.WORK)
    # First what comes once a sanitize: nobody who rings can keep it waiting. Events last: whoever
    # uses the memory makes them, without a pause if he likes.
    waits = [(Work.ANSWER, "background_end"), (Work.DOORBELL, "command")]
    doe = [(Work.EXCHANGE, "exchange")] if im.config.doe else []
    for bit, target in (*waits, *doe, (Work.EVENT, "event")):
        p.andi(B, A, bit)
        p.bne(B, ZERO, target)
    p.jmp("idle")
    # Behind a command, and behind an exchange, what comes after it above has its turn.
    p.label("command_over")
    p.lw(A, IOS, IO.WORK)
    p.andi(B, A, Work.EXCHANGE | Work.EVENT)
    p.beq(B, ZERO, "idle")
    for bit, target in doe:
        p.andi(B, A, bit)
        p.bne(B, ZERO, target)
    p.jmp("event")
    p.label("exchange_over")
    p.lw(A, IOS, IO.WORK)
    p.andi(B, A, Work.EVENT)
    p.bne(B, ZERO, "event")
    p.jmp("idle")


def _command(im: Image) -> None:
    """Finds the command's handler, which ends in `ok` with A bytes or in `fail` with code A."""
    p, entries = im.program, len(im.config.commands)
    im.add("commands", bytes(8 * entries))
    p.label("command")
    p.lw(A, IOS, IO.OPCODE)
    p.li(B, im.table("commands"))
    p.li(C, im.table("commands") + 8 * entries)
    p.label("search")
    p.lh(D, B)
    p.beq(D, A, "found")
    p.addi(B, B, 8)
    p.bltu(B, C, "search")
    p.li(A, ReturnCode.UNSUPPORTED)
    p.jmp("fail")
    p.label("found")
    p.lw(C, IOS, IO.LENGTH)
    p.lh(D, B, 4)
    p.bltu(C, D, "bad_length")
    p.lh(D, B, 6)
    p.bltu(D, C, "bad_length")
    p.lh(D, B, 2)
    p.jr(D)
    for name, code in (
        ("bad_length", ReturnCode.LENGTH),
        ("bad_input", ReturnCode.INPUT),
        ("bad_address", ReturnCode.ADDRESS),
        ("bad_handle", ReturnCode.HANDLE),
        ("internal", ReturnCode.INTERNAL),
    ):
        p.label(name)
        p.li(A, code)
        p.jmp("fail")
    p.label("nothing")
    p.li(A, 0)
    p.label("ok")
    p.sw(A, IOS, IO.OUT_LENGTH)
    p.sw(ZERO, IOS, IO.DONE)
    p.jmp("command_over")
    p.label("fail")
    p.sw(ZERO, IOS, IO.OUT_LENGTH)
    p.sw(A, IOS, IO.DONE)
    p.jmp("command_over")


def _routines(im: Image) -> None:
    """`copy`: C words from A to B; `copy_bytes`: C bytes; `zeros`: C words at B. All leave A and B
    behind the last, and change D."""
    p = im.program
    for name, step, load, store in (("copy", 4, p.lw, p.sw), ("copy_bytes", 1, p.lb, p.sb)):
        p.label(name)
        p.beq(C, ZERO, name + "_end")
        load(D, A)
        store(D, B)
        p.addi(A, A, step)
        p.addi(B, B, step)
        p.addi(C, C, -1)
        p.jmp(name)
        p.label(name + "_end")
        p.jr()
    p.label("zeros")
    p.sw(ZERO, B)
    p.addi(B, B, 4)
    p.addi(C, C, -1)
    p.bne(C, ZERO, "zeros")
    p.jr()


def _from_table(name: str, size: int):
    """Answers with a table of `size` bytes."""

    def handler(im: Image) -> None:
        p = im.program
        p.li(A, im.table(name))
        p.li(B, PAYLOAD)
        p.li(C, size // 4)
        p.call("copy")
        if size % 4:
            p.li(C, size % 4)
            p.call("copy_bytes")
        p.li(A, size)
        p.jmp("ok")

    return handler


def _get_log(im: Image) -> None:
    """Bytes of the command effects log."""
    p = im.program
    p.li(A, im.table("cel_uuid"))
    for word in range(4):
        p.lw(C, A, 4 * word)
        p.lw(D, ZERO, PAYLOAD + 4 * word)
        p.bne(C, D, "other_log")
    p.lw(A, ZERO, PAYLOAD + 16)
    p.lw(C, ZERO, PAYLOAD + 20)
    p.li(B, im.cel_bytes)
    p.bltu(B, A, "bad_input")
    p.sub(B, B, A)
    p.bltu(B, C, "bad_input")
    p.li(B, im.config.payload)
    p.bltu(B, C, "bad_input")
    p.li(B, im.table("cel"))
    p.add(A, A, B)
    p.li(B, PAYLOAD)
    p.mov(E, C)
    p.call("copy_bytes")
    p.mov(A, E)
    p.jmp("ok")
    p.label("other_log")
    p.li(A, ReturnCode.LOG)
    p.jmp("fail")


def _get_timestamp(im: Image) -> None:
    p = im.program
    p.lw(A, IOS, IO.TIME)
    p.lw(B, IOS, IO.TIME_HIGH)
    p.sw(A, ZERO, PAYLOAD)
    p.sw(B, ZERO, PAYLOAD + 4)
    p.li(A, 8)
    p.jmp("ok")


def _set_timestamp(im: Image) -> None:
    p = im.program
    p.lw(A, ZERO, PAYLOAD)
    p.lw(B, ZERO, PAYLOAD + 4)
    p.sw(A, IOS, IO.SET_TIME)
    p.sw(B, IOS, IO.SET_TIME_HIGH)
    p.jmp("nothing")


_HANDLERS = {
    Opcode.GET_EVENTS: events.get,
    Opcode.CLEAR_EVENTS: events.clear,
    Opcode.GET_INTERRUPT_POLICY: events.get_policy,
    Opcode.SET_INTERRUPT_POLICY: events.set_policy,
    Opcode.FIRMWARE_INFO: _from_table("firmware", 0x50),
    Opcode.GET_TIMESTAMP: _get_timestamp,
    Opcode.SET_TIMESTAMP: _set_timestamp,
    Opcode.SUPPORTED_LOGS: _from_table("logs", 0x1C),
    Opcode.GET_LOG: _get_log,
    Opcode.SUPPORTED_FEATURES: state.supported_features,
    Opcode.GET_FEATURE: state.get_feature,
    Opcode.SET_FEATURE: state.set_feature,
    Opcode.IDENTIFY: _from_table("identify", 0x43),
    Opcode.PARTITION_INFO: _from_table("partition", 0x20),
    Opcode.GET_LSA: state.get_lsa,
    Opcode.SET_LSA: state.set_lsa,
    Opcode.HEALTH: state.health,
    Opcode.GET_ALERTS: state.get_alerts,
    Opcode.SET_ALERTS: state.set_alerts,
    Opcode.GET_SHUTDOWN: state.get_shutdown,
    Opcode.SET_SHUTDOWN: state.set_shutdown,
    Opcode.POISON_LIST: poison.get,
    Opcode.INJECT_POISON: poison.inject,
    Opcode.CLEAR_POISON: poison.clear,
    Opcode.SANITIZE: poison.sanitize,
}
