# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""System models: what a KV endpoint is worth in a machine. One room per question; every input is in
``defaults.toml``; docs/model.md has the findings.

Units are in the names: gb and gb_per_s are 10^9 bytes, gib 2^30, tokens are tokens; times are ms,
us or ns as named. Shares are 0…1.
"""
