# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""CXL.io of the device as data: configuration space, component and device registers, mailbox
commands. Plain Python."""
