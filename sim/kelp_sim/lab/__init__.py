# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The policy lab: what a controller-resident policy is worth on recorded accesses (docs/lab.md)."""
