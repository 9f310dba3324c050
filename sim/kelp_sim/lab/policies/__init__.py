# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The policies, one short file each."""
