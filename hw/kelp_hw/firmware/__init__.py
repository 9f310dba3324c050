# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The program that carries out the mailbox's commands, assembled in Python. No block."""
