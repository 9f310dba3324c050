# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CXL.io: configuration space, component and device registers, mailbox, behind one register
port."""
