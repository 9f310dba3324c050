# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The Verilated endpoint as a library: build, device, programs of requests, replays
(docs/driver.md)."""
