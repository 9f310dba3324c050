# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What leaves the project for other tools: Verilog that lints clean, its wrapper, its
description."""
