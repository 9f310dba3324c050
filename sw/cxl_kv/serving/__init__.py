# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One device for many clients: server, tenants, wire protocol, metrics."""
