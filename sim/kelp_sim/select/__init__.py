# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which pages a choice near memory finds, against an ideal reader, and what attending to them alone
costs a model. docs/select.md defines the choice; its integers are :mod:`kelp_golden.select`'s.
"""
