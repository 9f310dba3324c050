# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The host's side of the endpoint: M2S messages in, S2M messages out, hint lines."""
