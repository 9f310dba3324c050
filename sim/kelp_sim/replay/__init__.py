# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a replay is: its plan, the golden run, the references, its result and figures."""
