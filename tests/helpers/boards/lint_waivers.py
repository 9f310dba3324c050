# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What generated Verilog is not blamed for."""

__all__ = ["WAIVED"]

# How Amaranth and Yosys write Verilog: initial values beside processes, constants in processes,
# widths extended, fields that a block leaves alone, outputs of the clock's cell left open; and the
# cell library's own sins, which are reported before its files are left out.
WAIVED = (
    "ALWNEVER",
    "CASEINCOMPLETE",
    "DECLFILENAME",
    "INITIALDLY",
    "PINMISSING",
    "PROCASSINIT",
    "SPECIFYIGN",
    "UNDRIVEN",
    "UNUSEDSIGNAL",
    "VARHIDDEN",
    "WIDTHEXPAND",
    "WIDTHTRUNC",
)
