# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What every bench stands on: cocotb on Verilator, clock and reset, netlists against RTL."""

from kelp_hw.export.tools import ToolError

if not __debug__:
    raise ToolError(
        "benches judge by assert, which PYTHONOPTIMIZE and python -O leave out; unset it"
    )
