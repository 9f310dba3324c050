# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The built-in self-test: its sequencer and its program."""
