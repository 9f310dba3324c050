# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Random messages for the six channels, and the loads that flits are judged by."""

from kelp_spec.flit import DIRECTIONS
from kelp_spec.messages import FIELDS

__all__ = ["LOADS", "random_message", "raw"]

#: Load → direction → messages of each channel in one round.
LOADS = {
    "reads": {"m2s": {"M2SReq": 1}, "s2m": {"S2MDRS": 1}},
    "writes": {"m2s": {"M2SRwD": 1}, "s2m": {"S2MNDR": 1}},
    "mixed 2:1": {"m2s": {"M2SReq": 2, "M2SRwD": 1}, "s2m": {"S2MDRS": 2, "S2MNDR": 1}},
    "BISnp-heavy": {
        "m2s": {"M2SReq": 1, "M2SRwD": 1, "M2SBIRsp": 2},
        "s2m": {"S2MDRS": 1, "S2MNDR": 1, "S2MBISnp": 2},
    },
}


def random_message(name, rng, *, bep=0.3):
    """Any bits in every field. A write without byte enables has them all set, as it arrives."""
    message = {field: rng.getrandbits(bits) for field, bits in FIELDS[name]}
    if "bep" in message:
        message["bep"] = int(rng.random() < bep)
        if not message["bep"]:
            message["byte_enable"] = (1 << 64) - 1
    return message


def raw(name, message):
    """The message as the integer that its layout has."""
    word = at = 0
    for field, bits in FIELDS[name]:
        word |= message[field] << at
        at += bits
    return word


assert all(
    set(each[name]) <= set(DIRECTIONS[name].channels) for each in LOADS.values() for name in each
)
