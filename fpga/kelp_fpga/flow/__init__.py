# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""From a top to a bitstream and its reports: synthesis, placement, routing, sizes."""
