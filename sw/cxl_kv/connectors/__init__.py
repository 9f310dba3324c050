# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Inference engines on top of `cxl_kv`. Each module needs its engine's packages and is imported by
whoever uses that engine (docs/cxl_kv.md, engines)."""
