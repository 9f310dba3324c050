# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Host and board over a serial line: UART, frames, bridge, and the host's half."""
