# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Which absent pages are fetched before they are asked for."""
