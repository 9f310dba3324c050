# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Registers, counters, events, telemetry, the phase detector, per-queue configuration."""
