# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sequencer's program: health, alerts, shutdown state, label storage, vendor features."""

from __future__ import annotations

from kelp_spec.cxlio.commands import KNOB_BYTES, Opcode, ReturnCode, knob_uuid
from kelp_spec.cxlio.knobs import KNOBS

from .image import IO, PAYLOAD, Image
from .program import Reg

__all__ = [
    "get_alerts",
    "get_feature",
    "get_lsa",
    "get_shutdown",
    "health",
    "set_alerts",
    "set_feature",
    "set_lsa",
    "set_shutdown",
    "supported_features",
]

A, B, C, D, E, F, G, H = Reg.A, Reg.B, Reg.C, Reg.D, Reg.E, Reg.F, Reg.G, Reg.H
I, J, K, IOS, ZERO = Reg.I, Reg.J, Reg.K, Reg.M, Reg.ZERO
_READ, _WRITE = 4, 5  #: requests to the data path, of a vendor feature
#: Alerts that can be programmed: life used, over and under temperature, corrected errors.
PROGRAMMABLE = 0x0F
#: Critical: life used in percent; degrees Celsius, and below 0.
LIFE_CRITICAL, OVER_CRITICAL = 100, 85
_FEATURE_BYTES, _VERSION = 48, 1


def health(im: Image) -> None:
    p = im.program
    p.li(B, PAYLOAD)
    p.li(C, 4)
    p.call("zeros")
    p.sh(ZERO, B)
    # Each is read once: it may change at any time, and the status is to agree with what it is of.
    p.lw(A, IOS, IO.HEALTH)
    p.lw(G, IOS, IO.TEMPERATURE)
    p.lw(H, IOS, IO.CORRECTED)
    p.sw(A, ZERO, PAYLOAD)
    p.sh(G, ZERO, PAYLOAD + 4)
    p.sh(H, ZERO, PAYLOAD + 0xA)
    p.shr(B, H, 16)
    p.sh(B, ZERO, PAYLOAD + 0xC)
    if Opcode.SET_ALERTS in im.config.commands:
        _alerts(im)
    p.li(A, 0x12)
    p.jmp("ok")


def _alerts(im: Image) -> None:
    """Additional status: what is beyond a critical threshold, or beyond a warning's that is
    enabled. A: the word with status, media, additional, life; G: the temperature; H: errors that
    were corrected."""
    p, at = im.program, im.store("alerts")
    p.lb(F, ZERO, at)
    p.shr(E, A, 16)
    p.andi(E, E, 0xFF)
    p.shr(B, A, 24)
    p.li(C, LIFE_CRITICAL)
    p.bgeu(B, C, "life_critical")
    p.andi(D, F, 1)
    p.beq(D, ZERO, "life_judged")
    p.lb(C, ZERO, at + 2)
    p.bltu(B, C, "life_judged")
    p.addi(E, E, 1)
    p.jmp("life_judged")
    p.label("life_critical")
    p.addi(E, E, 2)
    p.label("life_judged")
    # Temperatures are signed: compared with their sign bits turned round.
    p.li(C, 0x8000)
    p.xor(A, G, C)
    p.li(B, 0x8000 + OVER_CRITICAL)
    p.bgeu(A, B, "temperature_critical")
    p.bltu(A, C, "temperature_critical")
    p.andi(D, F, 2)
    p.beq(D, ZERO, "temperature_low")
    p.lh(B, ZERO, at + 4)
    p.xor(B, B, C)
    p.bgeu(A, B, "temperature_warning")
    p.label("temperature_low")
    p.andi(D, F, 4)
    p.beq(D, ZERO, "temperature_judged")
    p.lh(B, ZERO, at + 6)
    p.xor(B, B, C)
    p.bltu(B, A, "temperature_judged")
    p.label("temperature_warning")
    p.addi(E, E, 4)
    p.jmp("temperature_judged")
    p.label("temperature_critical")
    p.addi(E, E, 8)
    p.label("temperature_judged")
    p.andi(D, F, 8)
    p.beq(D, ZERO, "corrected_judged")
    p.lh(B, ZERO, at + 8)
    p.bltu(H, B, "corrected_judged")
    p.addi(E, E, 16)
    p.label("corrected_judged")
    p.sb(E, ZERO, PAYLOAD + 2)


def get_alerts(im: Image) -> None:
    """The store holds: enabled, life warning (halves); over, under temperature; corrected; and the
    critical thresholds are 100 %, 85 and 0 degrees."""
    p, at = im.program, im.store("alerts")
    p.lh(A, ZERO, at)
    p.li(B, PROGRAMMABLE << 8)
    p.or_(A, A, B)
    p.sh(A, ZERO, PAYLOAD)
    p.lb(A, ZERO, at + 2)
    p.shl(A, A, 8)
    p.addi(A, A, LIFE_CRITICAL)
    p.sh(A, ZERO, PAYLOAD + 2)
    p.li(A, OVER_CRITICAL)
    p.sw(A, ZERO, PAYLOAD + 4)
    for i in range(3):
        p.lh(A, ZERO, at + 4 + 2 * i)
        p.sh(A, ZERO, PAYLOAD + 8 + 2 * i)
    p.sh(ZERO, ZERO, PAYLOAD + 14)
    p.li(A, 16)
    p.jmp("ok")


def set_alerts(im: Image) -> None:
    """Of each bit in `valid`: whether it is enabled, and its threshold."""
    p, at = im.program, im.store("alerts")
    p.lb(E, ZERO, PAYLOAD)
    p.lb(F, ZERO, PAYLOAD + 1)
    p.li(B, PROGRAMMABLE + 1)
    p.bgeu(E, B, "bad_input")
    p.lh(G, ZERO, at)
    p.or_(G, G, E)
    p.xor(G, G, E)
    p.and_(F, F, E)
    p.or_(G, G, F)
    p.sh(G, ZERO, at)
    places = (
        (1, 2, 2, p.lb, p.sb),
        *((2 << i, 4 + 2 * i, 4 + 2 * i, p.lh, p.sh) for i in range(3)),
    )
    for bit, given, kept, load, store in places:
        p.andi(A, E, bit)
        p.beq(A, ZERO, f"alerts_{bit}")
        load(A, ZERO, PAYLOAD + given)
        store(A, ZERO, at + kept)
        p.label(f"alerts_{bit}")
    p.jmp("nothing")


def get_shutdown(im: Image) -> None:
    p = im.program
    p.lw(A, ZERO, im.store("shutdown"))
    p.sb(A, ZERO, PAYLOAD)
    p.li(A, 1)
    p.jmp("ok")


def set_shutdown(im: Image) -> None:
    p = im.program
    p.lb(A, ZERO, PAYLOAD)
    p.li(B, 2)
    p.bgeu(A, B, "bad_input")
    p.sw(A, ZERO, im.store("shutdown"))
    p.jmp("nothing")


def _within_labels(im: Image) -> None:
    """E, the offset, and C, how many bytes, lie in the label storage."""
    p = im.program
    p.lw(E, ZERO, PAYLOAD)
    p.li(B, im.config.lsa)
    p.bltu(B, E, "bad_input")
    p.sub(B, B, E)
    p.bltu(B, C, "bad_input")
    p.li(B, im.store("lsa"))


def get_lsa(im: Image) -> None:
    p = im.program
    p.lw(C, ZERO, PAYLOAD + 4)
    _within_labels(im)
    p.li(D, im.config.payload)
    p.bltu(D, C, "bad_input")
    p.add(A, B, E)
    p.mov(E, C)
    p.li(B, PAYLOAD)
    p.call("copy_bytes")
    p.mov(A, E)
    p.jmp("ok")


def set_lsa(im: Image) -> None:
    p = im.program
    p.lw(C, IOS, IO.LENGTH)
    p.addi(C, C, -8)
    _within_labels(im)
    p.add(B, B, E)
    p.li(A, PAYLOAD + 8)
    p.call("copy_bytes")
    p.jmp("nothing")


def supported_features(im: Image) -> None:
    """Entries from number `start` on, as many as `count` bytes hold."""
    p, c = im.program, im.config
    entries = b"".join(
        knob_uuid(i)
        + i.to_bytes(2, "little")
        + 2 * KNOB_BYTES.to_bytes(2, "little")
        + (1).to_bytes(4, "little")  # changeable
        + bytes([_VERSION, _VERSION])
        + (1 << 2).to_bytes(2, "little")  # immediate configuration change
        + bytes(18)
        for i in range(c.knobs)
    )
    im.add("features", entries)
    if c.wired:
        knobs = KNOBS[: c.knobs]
        im.add("knob_defaults", b"".join(k.default.to_bytes(4, "little") for k in knobs))
        masks = ((1 << k.bits) - 1 for k in knobs)
        im.add("knob_masks", b"".join(mask.to_bytes(4, "little") for mask in masks))
    p.lw(E, ZERO, PAYLOAD)
    p.lh(F, ZERO, PAYLOAD + 4)
    p.li(B, 8)
    p.bltu(E, B, "bad_input")
    p.li(B, c.knobs)
    p.bgeu(F, B, "bad_input")
    p.sub(G, B, F)  # entries that there are
    p.addi(E, E, -8)
    p.li(H, 0)  # entries that are given
    p.li(I, (c.payload - 8) // _FEATURE_BYTES)
    p.li(B, _FEATURE_BYTES)
    p.label("features_fit")
    p.beq(H, G, "features_counted")
    p.beq(H, I, "features_counted")
    p.bltu(E, B, "features_counted")
    p.sub(E, E, B)
    p.addi(H, H, 1)
    p.jmp("features_fit")
    p.label("features_counted")
    p.sh(H, ZERO, PAYLOAD)
    p.li(A, c.knobs)
    p.sh(A, ZERO, PAYLOAD + 2)
    p.sw(ZERO, ZERO, PAYLOAD + 4)
    # 48 bytes are 12 words: 8 and 4.
    p.shl(A, F, 5)
    p.shl(B, F, 4)
    p.add(A, A, B)
    p.li(B, im.table("features"))
    p.add(A, A, B)
    p.shl(C, H, 3)
    p.shl(D, H, 2)
    p.add(C, C, D)
    p.shl(E, C, 2)
    p.addi(E, E, 8)
    p.li(B, PAYLOAD + 8)
    p.call("copy")
    p.mov(A, E)
    p.jmp("ok")


def _knob(im: Image, name: str) -> None:
    """G: the number of the feature whose UUID the payload begins with."""
    p = im.program
    p.li(G, 0)
    p.li(A, im.table("features"))
    p.label(name + "_next")
    for word in range(4):
        p.lw(B, A, 4 * word)
        p.lw(C, ZERO, PAYLOAD + 4 * word)
        p.bne(B, C, name + "_other")
    p.jmp(name + "_found")
    p.label(name + "_other")
    p.addi(A, A, _FEATURE_BYTES)
    p.addi(G, G, 1)
    p.li(B, im.config.knobs)
    p.bltu(G, B, name + "_next")
    p.li(A, ReturnCode.UNSUPPORTED)
    p.jmp("fail")
    p.label(name + "_found")


def get_feature(im: Image) -> None:
    """`count` bytes from `offset` on of the current value (selector 0) or the default (1)."""
    p = im.program
    _knob(im, "feature_get")
    p.lb(A, ZERO, PAYLOAD + 20)
    p.li(B, 2)
    p.bltu(A, B, "feature_selected")
    p.li(A, ReturnCode.FEATURE_SELECTOR)
    p.jmp("fail")
    p.label("feature_selected")
    p.lh(E, ZERO, PAYLOAD + 16)
    p.lh(C, ZERO, PAYLOAD + 18)
    p.li(B, KNOB_BYTES)
    p.bltu(B, E, "bad_input")
    p.sub(B, B, E)
    p.bltu(B, C, "bad_input")
    p.beq(C, ZERO, "bad_input")
    _value(im)
    p.label("feature_shift")
    p.beq(E, ZERO, "feature_shifted")
    p.shr(H, H, 8)
    p.addi(E, E, -1)
    p.jmp("feature_shift")
    p.label("feature_shifted")
    p.mov(E, C)
    p.li(B, PAYLOAD)
    p.label("feature_byte")
    p.sb(H, B)
    p.shr(H, H, 8)
    p.addi(B, B, 1)
    p.addi(C, C, -1)
    p.bne(C, ZERO, "feature_byte")
    p.mov(A, E)
    p.jmp("ok")


def _value(im: Image) -> None:
    """H: the value of feature G, the default where A says so."""
    p = im.program
    if not im.config.wired:
        p.li(H, 0)
        p.bne(A, ZERO, "feature_value")
        p.shl(A, G, 2)
        p.li(B, im.store("knobs"))
        p.add(A, A, B)
        p.lw(H, A)
        p.label("feature_value")
        return
    p.beq(A, ZERO, "feature_asked")
    p.shl(A, G, 2)
    p.li(B, im.table("knob_defaults"))
    p.add(A, A, B)
    p.lw(H, A)
    p.jmp("feature_value")
    p.label("feature_asked")
    p.mov(K, E)
    _ask(im, "feature_get", _READ)
    p.bne(J, ZERO, "poison_refused")
    p.lw(H, IOS, IO.VALUE)
    p.mov(E, K)
    p.label("feature_value")


def _ask(im: Image, name: str, kind: int) -> None:
    """J: what the data path answers to request `kind` of feature G."""
    p = im.program
    p.lw(A, ZERO, im.store("background"))
    p.beq(A, ZERO, name + "_asked")
    p.li(A, ReturnCode.BUSY)
    p.jmp("fail")
    p.label(name + "_asked")
    p.shl(E, G, 6)
    p.li(F, 0)
    p.li(J, kind)
    p.call("poison_request")


def set_feature(im: Image) -> None:
    """A whole value in one transfer; the knob has it when the command ends. One that the register
    has no bits for is refused."""
    p = im.program
    _knob(im, "feature_set")
    p.lw(A, ZERO, PAYLOAD + 16)
    p.andi(B, A, 7)
    p.beq(B, ZERO, "feature_full")
    p.li(C, 2)
    p.bltu(B, C, "bad_input")
    p.li(C, 5)
    p.bgeu(B, C, "bad_input")
    p.li(A, ReturnCode.TRANSFER_ORDER)
    p.jmp("fail")
    p.label("feature_full")
    p.bne(A, ZERO, "bad_input")
    p.lb(A, ZERO, PAYLOAD + 22)
    p.li(B, _VERSION)
    p.beq(A, B, "feature_version")
    p.li(A, ReturnCode.FEATURE_VERSION)
    p.jmp("fail")
    p.label("feature_version")
    p.lh(A, ZERO, PAYLOAD + 20)
    p.bne(A, ZERO, "bad_input")
    p.lw(A, IOS, IO.LENGTH)
    p.li(B, 32 + KNOB_BYTES)
    p.bne(A, B, "bad_length")
    p.lw(H, ZERO, PAYLOAD + 32)
    p.shl(A, G, 2)
    if im.config.wired:
        p.li(B, im.table("knob_masks"))
        p.add(B, B, A)
        p.lw(A, B)
        p.or_(B, A, H)
        p.bne(A, B, "bad_input")
        p.sw(H, IOS, IO.DATA)
        _ask(im, "feature_set", _WRITE)
        p.jmp("poison_refused")
        return
    p.li(B, im.store("knobs"))
    p.add(B, B, A)
    p.sw(H, B)
    p.add(A, A, IOS)
    p.sw(H, A, IO.KNOB)
    p.jmp("nothing")
