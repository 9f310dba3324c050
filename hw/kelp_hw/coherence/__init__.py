# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""HDM-DB: what the host may hold, and how it is called back."""
