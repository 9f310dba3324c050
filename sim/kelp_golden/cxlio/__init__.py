# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CXL.io of the device, in plain Python: what each access reads and does. Untimed: a command is
over when the next access comes."""
