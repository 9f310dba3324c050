# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""``python -m cxl_kv.native``: build the optional library and say how this CPU writes a line."""

import sys

from . import BuildError, best_way, build, library

try:
    print(build())
except BuildError as error:
    sys.exit(f"cxl_kv goes on without it: {error}")
if library() is None:
    sys.exit("built, and not used: KELP_NATIVE=0 is set, or it does not load")
print(f"lines are written by {best_way()}")
