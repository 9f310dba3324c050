# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Widths and formats of the choice of pages near memory (docs/select.md). Nothing here computes a
value."""

__all__ = [
    "ALIGNED_BITS",
    "ALIGNED_FRACTION",
    "BLOCK_EXPONENT_BITS",
    "BLOCK_EXPONENT_LEAST",
    "BOUND_MASS_BITS",
    "MASS_BITS",
    "RATIO_BITS",
    "RECIPROCAL_BITS",
    "SCORE_BITS",
    "SCORE_FRACTION",
    "SCORE_LEAST",
    "SCORE_MOST",
    "SHARE_BITS",
    "SUMMARY_BITS",
    "WEIGHT_BITS",
]

#: a block's exponent, signed: −127 … 130 of keys, one more of summaries
BLOCK_EXPONENT_BITS, BLOCK_EXPONENT_LEAST = 9, -127

#: of each bound of a summary, signed. A summary's 64-byte line is the low bounds of 32 elements,
#: the high ones negated (−127 / 2 rounds to −64, which has a place), the exponent; then zeros
SUMMARY_BITS = 7

#: a line's product q · k, signed, and how many of its bits lie after the point
ALIGNED_BITS, ALIGNED_FRACTION = 24, 8

#: log2 of a token's weight, signed, and how many of its bits lie after the point
SCORE_BITS, SCORE_FRACTION = 20, 8
SCORE_LEAST, SCORE_MOST = -(1 << SCORE_BITS - 1), (1 << SCORE_BITS - 1) - 1

#: 2 to the power of a score's fraction, one bit before the point
WEIGHT_BITS = 16
#: the weights of a page's tokens, summed; more counts as the most
MASS_BITS = 24
#: the weights of the bounds of all pages, summed; the same
BOUND_MASS_BITS = 32
#: places by which the reciprocal of a head's whole mass is shifted
RECIPROCAL_BITS = 40
#: a page's share of a head's mass, all after the point
SHARE_BITS = 16
#: what pages without exact scores add to a mass, SHARE_BITS of it after the point; more counts as
#: the most
RATIO_BITS = 24
