# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Flits: the six channels on a link of 256-byte flits, and back."""
