# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Which pages a query asks for: estimates, exact scores, masses (docs/select.md)."""
