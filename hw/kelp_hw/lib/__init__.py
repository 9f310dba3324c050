# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Blocks that know nothing of pages: register slices, FIFOs, memories, SECDED, arithmetic."""
