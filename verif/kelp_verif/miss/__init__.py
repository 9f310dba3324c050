# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Benches of miss buffer and cold scheduler, and the flash model."""
